/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run by plan: the crew works; the steps are done one after the other and repeated until the time is up; at the end a
 * whole group must work and stop in order.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "net.h"
#include "plan.h"

#define POLL_US 1000
#define DEFAULT_SECONDS 10
#define MAJORITY_MS 5000
#define SAID_MAX 10 /* faults that are printed; all are counted */

void chaos_wrong(struct chaos_run *run, const char *format, ...)
{
	va_list args;

	if (run->wrong++ >= SAID_MAX)
		return;
	fprintf(stderr, "ep-chaos: WRONG: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

uint64_t chaos_random(struct chaos_run *run, uint64_t below)
{
	run->random ^= run->random << 13;
	run->random ^= run->random >> 7;
	run->random ^= run->random << 17;
	return run->random % below;
}

void chaos_run_poll(struct chaos_run *run)
{
	chaos_sleep_us(POLL_US);
	chaos_crew_poll(run);
}

void chaos_run_for(struct chaos_run *run, uint64_t ms)
{
	uint64_t end = tool_now_ns() + ms * UINT64_C(1000000);

	while (tool_now_ns() < end)
		chaos_run_poll(run);
}

void chaos_command(struct chaos_run *run, enum chaos_command command)
{
	__atomic_store_n(&run->crew->command, command, __ATOMIC_RELEASE);
	syscall(SYS_futex, &run->crew->command, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Ranks of a group without a working process. */
static uint64_t absent(struct chaos_run *run, int group)
{
	uint64_t mask = 0;
	int member;

	for (int r = 0; r < run->target; r++) {
		struct chaos_worker *w = chaos_crew_at(run, r);

		if (chaos_in_group(run->crew, group, r, &member) && (!w || w->state != CHAOS_P_LIVE))
			mask |= UINT64_C(1) << member;
	}
	return mask;
}

static uint64_t everybody(const struct chaos_run *run)
{
	int n = run->crew->groups > 1 ? run->crew->members : run->target;

	return (UINT64_C(1) << n) - 1;
}

/* Out of the view because of cut links: it waits for them to heal. */
static bool beyond(const struct chaos_run *run, const struct chaos_worker *w, int group, int member)
{
	return w->cut_off && run->uniform[group].seq > w->last[group].seq && !(run->uniform[group].mask >> member & 1);
}

/* Has group @g reached the condition? */
static bool group_there(struct chaos_run *run, int g, enum chaos_until until)
{
	uint64_t gone = absent(run, g);
	int member, there = 0;

	if (until == CHAOS_FLOWING && gone)
		return true;
	for (int r = 0; r < run->target; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);
		const struct chaos_record *seen;

		if (!chaos_in_group(run->crew, g, r, &member) || gone >> member & 1 || beyond(run, w, g, member))
			continue;
		seen = &w->seen[g];
		if (seen->enter_ns < run->settle_ns || seen->mask & gone ||
		    (until == CHAOS_WHOLE && seen->mask != (everybody(run) & ~gone)))
			return false;
		there++;
	}
	return there > 0;
}

static void say_who_hangs(struct chaos_run *run, enum chaos_until until)
{
	static const char *const what[] = { "without the lost ranks", "beside the fault", "with all ranks" };

	for (int g = 0; g < run->crew->groups; g++) {
		if (group_there(run, g, until))
			continue;
		chaos_wrong(run, "group %d did no operation %s within %d ms", g, what[until], CHAOS_OUTCOME_MS);
		for (int d = 0; d < CHAOS_DESKS; d++) {
			const struct chaos_worker *w = &run->worker[d];

			if (w->pid)
				fprintf(stderr,
					"ep-chaos:   rank %d (pid %d, state %d): last seq %llu in epoch %u, mask "
					"%#llx, %.1f ms ago, inside %u %s\n",
					w->rank, (int)w->pid, (int)w->state, (unsigned long long)w->last[g].seq,
					w->last[g].epoch, (unsigned long long)w->last[g].mask,
					(double)(tool_now_ns() - w->last[g].done_ns) / 1e6,
					run->crew->desk[d].seat[g].inside, run->crew->desk[d].cause);
		}
	}
}

/*
 * A false alarm beside stopped ranks may leave too few voters to decide anything: then the group waits for a stopped
 * rank, as it must. The stopped ranks continue, and the alarm is counted.
 */
static void mend_majority(struct chaos_run *run)
{
	if (run->alarms == run->alarms_seen || tool_now_ns() < run->settle_ns + MAJORITY_MS * UINT64_C(1000000))
		return;
	run->alarms_seen = run->alarms;
	fprintf(stderr, "ep-chaos: after a false alarm nothing moves for %d ms: those that are stopped go on\n",
		MAJORITY_MS);
	chaos_resume(run);
}

int chaos_await(struct chaos_run *run, enum chaos_until until)
{
	uint64_t end = chaos_outcome_end();
	bool all;

	run->settle_ns = tool_now_ns();
	do {
		chaos_run_poll(run);
		all = true;
		for (int g = 0; g < run->crew->groups && all; g++)
			all = group_there(run, g, until);
		if (!all)
			mend_majority(run);
	} while (!all && chaos_awake_ns() < end && !run->wrong);
	if (all) {
		if (until == CHAOS_WHOLE)
			run->alarms_seen = run->alarms;
		chaos_event_close(run, tool_now_ns());
		return 0;
	}
	if (!run->wrong)
		say_who_hangs(run, until);
	return -1;
}

int chaos_run_start(struct chaos_run *run)
{
	int err = 0;

	run->start_ns = tool_now_ns();
	for (int r = 0; r < run->target && !err; r++)
		err = chaos_crew_spawn(run, r, false, NULL);
	if (!err)
		err = chaos_await(run, CHAOS_WHOLE);
	run->start_ns = tool_now_ns();
	return err;
}

static int rounds(struct chaos_run *run)
{
	const struct chaos_options *opt = run->opt;
	const struct chaos_plan *plan = &run->plan;

	for (int i = 0; run->wrong == 0; i = (i + 1) % plan->steps) {
		const struct chaos_step *step = &plan->step[i];
		bool round = i == 0, late = tool_now_ns() >= run->end_ns;

		if (round && run->rounds == plan->rounds && plan->rounds)
			return 0;
		/* A round of the random plan is long; rounds of other plans are completed. */
		if (late && (round || (!strcmp(plan->name, "random") && plan->step[i - 1].verb == CHAOS_REPLACE)))
			return 0;
		run->rounds += round;
		if (opt->verbose)
			fprintf(stderr, "ep-chaos: %8.1f ms: line %d: %s\n",
				(double)(tool_now_ns() - run->start_ns) / 1e6, step->line, step->kind);
		if (!chaos_act(run, step))
			continue;
		if (!run->wrong)
			chaos_wrong(run, "step failed");
		fprintf(stderr, "ep-chaos: round %d, line %d of the plan: %s\n", run->rounds, step->line, step->kind);
	}
	return -1;
}

int chaos_run_stop(struct chaos_run *run)
{
	uint64_t end = chaos_outcome_end();
	int left;

	chaos_command(run, CHAOS_STOP);
	do {
		chaos_run_poll(run);
		left = 0;
		for (int d = 0; d < CHAOS_DESKS; d++)
			left += run->worker[d].pid != 0;
	} while (left && chaos_awake_ns() < end);
	chaos_check_disputes(run, true);
	if (left)
		chaos_wrong(run, "%d processes did not stop within %d ms", left, CHAOS_OUTCOME_MS);
	return left ? -1 : 0;
}

void chaos_run_close(struct chaos_run *run)
{
	chaos_crew_close(run);
	chaos_server_close(run);
	if (run->net)
		chaos_net_close();
	tool_remove_dir(run->server.dir);
	free(run);
}

static void fill_defaults(struct chaos_plan *plan, int ranks)
{
	static const uint32_t sizes[] = { 8, 4096, 65536, 400000 };

	if (ranks)
		plan->ranks = ranks;
	if (!plan->ranks)
		plan->ranks = 4;
	if (!plan->work)
		plan->work = (1u << CHAOS_W_COMBINE) - 1;
	if (!plan->groups)
		plan->groups = 1;
	if (!plan->sizes) {
		plan->sizes = 4;
		memcpy(plan->bytes, sizes, sizeof(sizes));
	}
}

static bool ranks_fit(const struct chaos_plan *plan)
{
	uint32_t named = 0;

	for (int i = 0; i < plan->steps; i++)
		named |= plan->step[i].verb == CHAOS_EXTEND ? 0 : plan->step[i].ranks;
	if (plan->groups > 1 && plan->members > plan->ranks) {
		fprintf(stderr, "ep-chaos: plan %s: groups of %d need as many ranks, there are %d\n", plan->name,
			plan->members, plan->ranks);
		return false;
	}
	for (int i = 0; i < plan->steps; i++)
		if (plan->step[i].verb == CHAOS_EXTEND)
			return true;
	if (named >> plan->ranks)
		fprintf(stderr, "ep-chaos: plan %s names ranks above the %d that there are\n", plan->name, plan->ranks);
	return !(named >> plan->ranks);
}

/* Messages, mistakes and handles of changing sizes are not for devices; the rest of such a plan runs. */
static bool devices_fit(struct chaos_plan *plan, int devices)
{
	const char *lack = NULL;

	if (!devices)
		return true;
	plan->work &= ~(1u << CHAOS_W_MESSAGES);
	plan->mix.handles = false;
	plan->mix.mistakes = 0;
	if (plan->groups > 1)
		lack = "one group";
	else if (plan->hosts)
		lack = "one host";
	else if (!plan->work)
		lack = "another load than messages";
	if (lack)
		fprintf(stderr, "ep-chaos: plan %s: --devices needs %s\n", plan->name, lack);
	return !lack;
}

void chaos_run_init(struct chaos_run *run, const struct chaos_options *opt)
{
	run->opt = opt;
	run->random = (uint64_t)opt->seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	run->crew_fd = -1;
	run->bucket_ns = UINT64_C(60000000000) / CHAOS_BUCKETS;
}

/* A process of its own removes the directory however this one ends: no signal comes between the two. */
static int make_dir(char *dir)
{
	sigset_t all, was;
	int end[2], err;
	char byte;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &was);
	err = !mkdtemp(dir);
	if (!err && !pipe2(end, O_CLOEXEC)) {
		if (!fork()) {
			setsid(); /* Ctrl-C is not for it */
			close(end[1]);
			if (!read(end[0], &byte, 1))
				tool_remove_dir(dir);
			_exit(0);
		}
		close(end[0]);
	}
	sigprocmask(SIG_SETMASK, &was, NULL);
	return err;
}

int chaos_run_open(struct chaos_run *run)
{
	const char *why, *tmp = tool_tmp(&why);

	if (strlen(tmp) > sizeof(run->server.dir) - sizeof("/covey-chaos-XXXXXX"))
		tmp = "/tmp";
	snprintf(run->server.dir, sizeof(run->server.dir), "%s/covey-chaos-XXXXXX", tmp);
	if (make_dir(run->server.dir)) {
		run->server.dir[0] = '\0';
		return -1;
	}
	if (run->plan.hosts) {
		if (chaos_net_open(run->plan.hosts))
			return CHAOS_SKIPPED;
		run->net = true;
	}
	if (chaos_crew_open(run))
		return -1;
	return chaos_server_open(run);
}

static int judge(struct chaos_run *run)
{
	const struct chaos_options *opt = run->opt;
	int err = chaos_run_start(run);

	run->end_ns = run->start_ns + (uint64_t)(opt->seconds ? opt->seconds : DEFAULT_SECONDS) * UINT64_C(1000000000);
	if (run->plan.rounds && !opt->seconds)
		run->end_ns = UINT64_MAX;
	/* A plan of rounds ends by itself: then columns are as for a minute, and later ones are not drawn. */
	run->bucket_ns = (run->end_ns == UINT64_MAX ? UINT64_C(60000000000) : (run->end_ns - run->start_ns) * 3 / 2) /
			 CHAOS_BUCKETS;
	if (!err)
		err = rounds(run);
	if (!err)
		err = chaos_heal_all(run);
	if (!err)
		err = chaos_run_stop(run);
	run->end_ns = tool_now_ns();
	chaos_table(run);
	if (opt->plot && chaos_plot(run, opt->plot))
		err = -1;
	return err || run->wrong || (opt->strict && run->alarms) ? 1 : 0;
}

int chaos_plan_run(const struct chaos_options *opt)
{
	struct chaos_run *run = calloc(1, sizeof(*run));
	char *text;
	int err;

	if (opt->show) {
		text = chaos_plan_random((uint64_t)opt->seed);
		printf("# ep-chaos --plan random --seed %llu\n%s", (unsigned long long)opt->seed, text ? text : "");
		free(text);
		free(run);
		return 0;
	}
	if (!run || chaos_plan_read(&run->plan, opt->plan, (uint64_t)opt->seed)) {
		free(run);
		return 64;
	}
	chaos_run_init(run, opt);
	fill_defaults(&run->plan, opt->ranks_named ? opt->ranks : 0);
	run->target = run->plan.ranks;
	err = ranks_fit(&run->plan) && devices_fit(&run->plan, opt->devices) ? chaos_run_open(run) : 64;
	if (!err)
		err = judge(run);
	else if (err < 0)
		err = 2;
	chaos_run_close(run);
	return err;
}
