/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a change costs with very many ranks: for every size one death, a replacement, the death of a third of the
 * ranks at once, and an extend from half the size to the size. A table, and the same as JSON.
 *
 *   scale [--ranks N,N,...] [--json FILE] [--change] [--grow-most N]
 *
 * --change: the death and the replacement alone
 * --grow-most: above this size forming and extending are not measured; they take most of the work (1024)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "scale.h"

#define SIZES_MAX 8
#define GROW_MOST 1024
#define NAME_WIDTH 17 /* of the table */

enum step { FORM, DEATH, JOIN, THIRD, EXTEND, STEPS };

static const char *const names[STEPS] = { "form", "one death", "replacement", "a third dies", "extend from half" };

/* What a member may ask of the store, in all: as much with thousands of ranks as with LARGE. 0: it grows with the ranks. */
static const double calls_most[STEPS] = { 0, 3, 5, 0, 0 };

#define LARGE 128

struct result {
	int ranks, done;
	double ms;
	struct scale_count count;
};

static struct result results[STEPS][SIZES_MAX];

static double cpu_s(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

static uint64_t calls_of(const struct scale_count *c)
{
	uint64_t n = 0;

	for (int k = 0; k < SC_CALLS; k++)
		n += c->calls[k];
	return n;
}

static void row(int step, int ranks, const struct result *r, double cpu)
{
	const struct scale_count *c = &r->count;
	double n = ranks;

	printf("%-*s %5d %10.2f %9.2f %5lu %9.1f %7lu %9.1f %9.1f %10.1f %9lu %9.1f %9lu %7.1f  ", NAME_WIDTH,
	       names[step], ranks, r->ms, (double)c->busy_ns / 1e6, c->views, (double)calls_of(c) / n, c->most_calls,
	       (double)c->commands / n, (double)c->fields / n, (double)c->reply_bytes / n, c->most_bytes,
	       (double)c->notices / n, c->messages, cpu);
	for (int k = 0; k < SC_CALLS; k++)
		if (c->calls[k])
			printf(" %s %lu", scale_call_names[k], c->calls[k]);
	printf("\n");
	fflush(stdout);
}

static int calls_are_few(int step, int ranks, const struct scale_count *c)
{
	double each = (double)(calls_of(c) - c->calls[SC_BEAT]) / ranks;

	if (ranks < LARGE || !calls_most[step] || each <= calls_most[step])
		return 1;
	fprintf(stderr, "scale: %s with %d ranks: each makes %.1f calls of the store besides beats, and %.0f suffice\n",
		names[step], ranks, each, calls_most[step]);
	return 0;
}

static int measure(struct scale_world *w, int step, int size, int ranks)
{
	struct result *r = &results[step][size];
	double cpu = cpu_s();
	uint64_t ns = scale_settle(w, &r->count);

	r->ranks = ranks;
	r->ms = (double)ns / 1e6;
	r->done = ns > 0;
	row(step, ranks, r, cpu_s() - cpu);
	if (!ns)
		fprintf(stderr, "scale: %s with %d ranks does not end\n", names[step], ranks);
	return ns && calls_are_few(step, ranks, &r->count) ? 0 : -1;
}

/* A group of @ranks. If @form, forming is measured; else the store is quick, which takes less than half the work. */
static struct scale_world *formed(int ranks, int max_ranks, int size, int form)
{
	struct scale_world *w = scale_open(ranks, max_ranks);
	struct scale_count count;

	scale_quick(w, !form);
	if (form ? measure(w, FORM, size, ranks) : !scale_settle(w, &count)) {
		scale_close(w);
		return NULL;
	}
	scale_quick(w, 0);
	return w;
}

static int changes(struct scale_world *w, int size, int ranks, int change)
{
	int err;

	scale_kill(w, ranks - 1);
	err = measure(w, DEATH, size, ranks);
	if (err)
		return err;
	scale_join(w, ranks - 1);
	err = measure(w, JOIN, size, ranks);
	if (err || change)
		return err;
	for (int r = 0; r < ranks; r += 3)
		scale_kill(w, r);
	return measure(w, THIRD, size, ranks);
}

static int extend(struct scale_world *w, int size, int ranks)
{
	for (int r = ranks / 2; r < ranks; r++)
		scale_join(w, r);
	return measure(w, EXTEND, size, ranks);
}

static int one_size(int ranks, int size, int change, int grow)
{
	struct scale_world *w = formed(ranks, ranks, size, grow);
	int err = -1;

	results[DEATH][size].ranks = ranks;
	if (w) {
		err = changes(w, size, ranks, change);
		scale_close(w);
	}
	if (err || change || !grow)
		return err;
	w = formed(ranks / 2, ranks, size, 0);
	if (!w)
		return -1;
	err = extend(w, size, ranks);
	scale_close(w);
	return err;
}

/* For tests/bench/tables: calls, fields and bytes are those of a member. */
static int write_json(const char *path, int sizes)
{
	FILE *f = fopen(path, "w");
	const char *between = "";

	if (!f)
		return -1;
	fprintf(f, "{\"scale\": [");
	for (int s = 0; s < STEPS; s++)
		for (int i = 0; i < sizes; i++) {
			const struct result *r = &results[s][i];
			double n = r->ranks;

			if (!r->done)
				continue;
			fprintf(f,
				"%s\n{\"step\": \"%s\", \"ranks\": %d, \"ms\": %.3f, \"calls\": %.2f, \"fields\": "
				"%.1f, \"bytes\": %.1f}",
				between, names[s], r->ranks, r->ms, (double)calls_of(&r->count) / n,
				(double)r->count.fields / n, (double)r->count.reply_bytes / n);
			between = ",";
		}
	fprintf(f, "\n]}\n");
	return fclose(f) ? -1 : 0;
}

int main(int argc, char **argv)
{
	const char *list = "64,256,1024", *json = NULL;
	int sizes = 0, err = 0, change = 0, grow_most = GROW_MOST;
	struct rusage usage;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
			list = argv[++i];
		else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
			json = argv[++i];
		else if (strcmp(argv[i], "--change") == 0)
			change = 1;
		else if (strcmp(argv[i], "--grow-most") == 0 && i + 1 < argc)
			grow_most = atoi(argv[++i]);
	}
	printf("assumed: %.0f us one way, store %.0f us a call + %.1f us a field + %.1f us a notice + %.1f us a kB of "
	       "reply\n",
	       LATENCY_US, CALL_US, FIELD_US, NOTICE_US, KBYTE_US);
	printf("%-*s %5s %10s %9s %5s %9s %7s %9s %9s %10s %9s %9s %9s %7s   calls\n", NAME_WIDTH, "", "ranks",
	       "time ms", "store ms", "views", "calls/r", "most", "cmds/r", "fields/r", "replyB/r", "most", "notices/r",
	       "messages", "cpu s");
	while (*list && sizes < SIZES_MAX && !err) {
		char *end;
		int ranks = (int)strtol(list, &end, 10);

		if (ranks < 4 || ranks > COVEY_MAX_RANKS)
			return 2;
		err = one_size(ranks, sizes++, change, ranks <= grow_most);
		list = *end ? end + 1 : end;
	}
	if (getrusage(RUSAGE_SELF, &usage) == 0)
		printf("memory at most: %ld MiB\n", usage.ru_maxrss / 1024);
	if (json && !err)
		err = write_json(json, sizes);
	return err ? 1 : 0;
}
