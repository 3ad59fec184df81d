/* SPDX-License-Identifier: Apache-2.0 */
/* Resources of the ranks: time while idle; memory, descriptors, mappings and threads over many cycles or steps. */
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define SETTLE_MS 300
#define IDLE_BAR_PERCENT 0.5
#define RSS_GROWTH_PERCENT 1.0
#define LEAK_EARLY_CYCLE 20
#define STEP_MS 600000 /* bound on all steps */

/* User and system time of a process, in seconds; < 0: it has ended. */
static double cpu_seconds(pid_t pid)
{
	char name[16], line[1024];
	unsigned long user, system;
	const char *after;

	snprintf(name, sizeof(name), "%d", (int)pid);
	after = tool_stat(name, line, sizeof(line));
	if (!after || sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		return -1;
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static pid_t pid_of(struct chaos_run *run, int rank)
{
	const struct chaos_worker *w = chaos_crew_at(run, rank);

	return w ? w->pid : -1;
}

static double group_seconds(struct chaos_run *run)
{
	double sum = 0;

	for (int r = 0; r < run->target; r++)
		sum += cpu_seconds(pid_of(run, r));
	return sum;
}

int chaos_idle(struct chaos_run *run)
{
	uint64_t start;
	double used, percent;

	chaos_command(run, CHAOS_IDLE);
	chaos_run_for(run, SETTLE_MS);
	used = group_seconds(run);
	start = tool_now_ns();
	for (int i = 0; i < run->opt->idle_s; i++)
		sleep(1); /* a look would disturb */
	used = group_seconds(run) - used;
	percent = 100 * used / ((double)(tool_now_ns() - start) / 1e9);
	chaos_command(run, CHAOS_RUN);
	chaos_run_for(run, SETTLE_MS);
	if (run->opt->json)
		chaos_print_json(json_pack("{s:f, s:i}", "idle_percent", percent, "seconds", run->opt->idle_s));
	else
		printf("idle group of %d: %.2f %% of one core over %d s (bar %.1f): %s\n", run->target, percent,
		       run->opt->idle_s, IDLE_BAR_PERCENT, percent < IDLE_BAR_PERCENT ? "pass" : "MISS");
	return percent >= IDLE_BAR_PERCENT;
}

static long count_entries(pid_t pid, const char *what)
{
	char path[64];
	struct dirent *entry;
	long n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	dir = opendir(path);
	if (!dir)
		return -1;
	while ((entry = readdir(dir)))
		n += isdigit((unsigned char)entry->d_name[0]) != 0;
	closedir(dir);
	return n;
}

static long count_lines(pid_t pid, const char *what, const char *field)
{
	char path[64], line[1024];
	long n = 0, value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		n++;
		if (field && !strncmp(line, field, strlen(field)))
			value = strtol(line + strlen(field), NULL, 10);
	}
	fclose(file);
	return field ? value : n;
}

/* Resources of a process: they must not grow. */
struct usage {
	long rss_kib, fds, maps, threads;
};

static struct usage usage_of(pid_t pid)
{
	return (struct usage){
		.rss_kib = count_lines(pid, "status", "VmRSS:"),
		.fds = count_entries(pid, "fd"),
		.maps = count_lines(pid, "maps", NULL),
		.threads = count_entries(pid, "task"),
	};
}

/* An integer reply of the store; -1: none. */
static long ask(const struct chaos_run *run, const char *command)
{
	char reply[128];

	if (chaos_server_say(&run->server, command, reply, sizeof(reply)) || reply[0] != ':')
		return -1;
	return strtol(reply + 1, NULL, 10);
}

/* The group at one time: one row for each rank that lives throughout, then the store. */
struct look {
	struct usage rank[CHAOS_MAX_RANKS];
	long keys, fields;
};

static void look(struct chaos_run *run, struct look *look)
{
	chaos_run_for(run, SETTLE_MS);
	for (int r = 0; r < run->target; r++)
		look->rank[r] = usage_of(pid_of(run, r));
	look->keys = ask(run, "DBSIZE");
	look->fields = ask(run, "HLEN covey:{crew0}:g");
}

/* How many of the figures grew. */
static int compare_looks(const struct look *a, const struct look *b, int ranks, const char *when)
{
	int bad = 0;

	for (int r = 0; r < ranks; r++) {
		const struct usage *x = &a->rank[r], *y = &b->rank[r];
		double growth = 100.0 * (double)(y->rss_kib - x->rss_kib) / (double)x->rss_kib;
		bool same = x->fds == y->fds && x->maps == y->maps && x->threads == y->threads && x->fds > 0 &&
			    growth <= RSS_GROWTH_PERCENT && growth >= -RSS_GROWTH_PERCENT;

		bad += !same;
		printf("rank %d, %s: RSS %ld -> %ld KiB (%+.2f %%), descriptors %ld -> %ld, mappings %ld -> %ld, "
		       "threads %ld -> %ld: %s\n",
		       r, when, x->rss_kib, y->rss_kib, growth, x->fds, y->fds, x->maps, y->maps, x->threads,
		       y->threads, same ? "pass" : "FAIL");
	}
	printf("store, %s: keys %ld -> %ld, fields %ld -> %ld: %s\n", when, a->keys, b->keys, a->fields, b->fields,
	       a->keys == b->keys && a->fields == b->fields && a->keys > 0 ? "pass" : "FAIL");
	bad += !(a->keys == b->keys && a->fields == b->fields && a->keys > 0);
	return bad;
}

/* Always the highest rank dies, so that the others live through all cycles. */
int chaos_leak(struct chaos_run *run)
{
	struct look early = { 0 }, late = { 0 };
	int last = run->opt->kills, from = last > LEAK_EARLY_CYCLE ? LEAK_EARLY_CYCLE : last / 2, grew;

	for (int i = 1; i <= last; i++) {
		if (chaos_cycle(run, UINT64_C(1) << (run->target - 1), run->opt->stop))
			return -1;
		if (i == from)
			look(run, &early);
	}
	look(run, &late);
	if (run->alarms)
		chaos_wrong(run, "%d ranks ended by themselves: their figures say nothing", (int)run->alarms);
	grew = compare_looks(&early, &late, run->target - 1, "early and late cycle");
	if (grew)
		chaos_wrong(run, "%d figures grew", grew);
	return grew;
}

static uint64_t least_steps(struct chaos_run *run)
{
	uint64_t least = UINT64_MAX;

	for (int r = 0; r < run->target; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);

		if (w && w->last[0].step < least)
			least = w->last[0].step;
	}
	return least;
}

static int reach(struct chaos_run *run, uint64_t steps)
{
	uint64_t end = tool_now_ns() + STEP_MS * UINT64_C(1000000);

	while (least_steps(run) < steps) {
		chaos_run_poll(run);
		if (run->alarms || run->wrong || tool_now_ns() > end) {
			chaos_wrong(run, "%llu steps of %llu came to pass", (unsigned long long)least_steps(run),
				    (unsigned long long)steps);
			return -1;
		}
	}
	return 0;
}

int chaos_steps(struct chaos_run *run)
{
	struct look early = { 0 }, late = { 0 };

	if (reach(run, (uint64_t)run->opt->steps / 10))
		return 1;
	look(run, &early);
	if (reach(run, (uint64_t)run->opt->steps))
		return 1;
	look(run, &late);
	if (!compare_looks(&early, &late, run->target, "a tenth and all of the steps"))
		return 0;
	chaos_wrong(run, "the steps were not flat");
	return 1;
}
