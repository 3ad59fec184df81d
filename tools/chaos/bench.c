/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cycles without a plan: strike ranks inside an operation, wait until the survivors have agreed, start the
 * replacements, wait until they work. Times come from the ranks' logs, not from the parent's looks.
 */
#include "bench.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_KILLS 20
#define BENCH_KILLS 100
#define STOPS_PER_KILL 5 /* the bench stops one rank for this many that it kills */
#define STOP_SLACK_MS 10
#define DEFAULT_HANG_MS 100
#define QUIET_MS 20   /* of undisturbed work on both sides of a kill and of an admission */
#define INSIDE_MS 20  /* how long to look for a moment inside an operation */
#define CALM_EVERY 97 /* one in this many undisturbed operations is a sample */

int chaos_until(struct chaos_run *run, bool (*is)(struct chaos_run *run, uint64_t what), uint64_t what,
		const char *text)
{
	uint64_t end = chaos_outcome_end();

	do {
		chaos_run_poll(run);
		if (is(run, what))
			return 0;
	} while (chaos_awake_ns() < end && !run->wrong);
	if (!run->wrong)
		chaos_wrong(run, "%s: not within %d ms, ranks %#llx are alive", text, CHAOS_OUTCOME_MS,
			    (unsigned long long)chaos_alive(run));
	return -1;
}

uint64_t chaos_alive(struct chaos_run *run)
{
	uint64_t alive = 0;

	for (int r = 0; r < run->target; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);

		alive |= (uint64_t)(w && w->state == CHAOS_P_LIVE) << r;
	}
	return alive;
}

/* ---- What a record tells ---- */

/* A measured unit: an operation, or a step of two. */
static bool whole(const struct chaos_record *record)
{
	return record->op < CHAOS_W_DISPATCH || record->op == CHAOS_W_COMBINE;
}

void chaos_bench_note(struct chaos_run *run, struct chaos_worker *w, const struct chaos_record *record)
{
	uint64_t enter_ns = record->op == CHAOS_W_COMBINE ? w->begun_ns : record->enter_ns;
	double ms = (double)(record->done_ns - enter_ns) / 1e6;
	struct chaos_bench *b = run->bench;

	if (record->op == CHAOS_W_DISPATCH) /* records of two seats come in any order */
		w->begun_ns = record->enter_ns;
	if (!w->first_ns && whole(record)) {
		w->first_ns = record->done_ns;
		w->first_took_ms = ms;
	}
	if (!w->after.seq && b->victims && !(record->mask & b->victims) &&
	    (whole(record) || record->op == CHAOS_W_CONTROL)) {
		w->after = *record;
		w->after.enter_ns = enter_ns;
	}
	if (!b->victims && !b->watch && whole(record) && b->calls++ % CALM_EVERY == 0)
		chaos_sample(&b->calm, ms);
	if (b->watch && w->rank < run->opt->world && ms > b->longest_ms)
		b->longest_ms = ms;
	if (b->watch && !(b->victims >> w->rank & 1) && whole(record) && ms > b->survivor_ms)
		b->survivor_ms = ms;
	if (record->done_ns < w->done_ns)
		return;
	if (b->watch && w->done_ns && b->gaps < CHAOS_GAPS && !(b->victims >> w->rank & 1))
		b->gap_ms[b->gaps++] = (double)(record->done_ns - w->done_ns) / 1e6;
	w->done_ns = record->done_ns;
}

/* ---- Strikes ---- */

/* Strikes @victims when one of them is seen inside an operation; returns the time. */
static uint64_t strike(struct chaos_run *run, uint64_t victims, bool stop)
{
	const struct chaos_step step = { .verb = stop ? CHAOS_HALT : CHAOS_KILL,
					 .ranks = (uint32_t)victims,
					 .kind = "kill" };
	struct chaos_bench *b = run->bench;

	b->inside += chaos_await_inside(run, chaos_crew_at(run, __builtin_ctzll(victims)), 0, INSIDE_MS);
	for (int r = 0; r < run->target; r++)
		if (chaos_crew_at(run, r))
			chaos_crew_at(run, r)->after.seq = 0;
	b->victims = victims;
	b->done++;
	run->events = 0; /* nothing is drawn */
	chaos_act(run, &step);
	return run->event[0].begin_ns;
}

/* Has every survivor done an operation without the victims? */
static bool agreed(struct chaos_run *run, uint64_t what)
{
	uint64_t alive = chaos_alive(run);

	(void)what;
	for (int r = 0; r < run->target; r++)
		if (alive >> r & 1 && !chaos_crew_at(run, r)->after.seq)
			return false;
	return true;
}

/* An operation entered after the view was agreed on did not need the change. */
static bool needed(const struct chaos_run *run, const struct chaos_worker *w)
{
	const struct chaos_view *view = &run->crew->desk[w - run->worker].view[w->after.epoch % CHAOS_VIEWS];

	return __atomic_load_n(&view->epoch, __ATOMIC_ACQUIRE) != w->after.epoch || w->after.enter_ns < view->time_ns;
}

/* The time until the last survivor had the result, if at least one needed the change. */
static void measure(struct chaos_run *run, uint64_t at, struct chaos_samples *samples)
{
	uint64_t last = 0, alive = chaos_alive(run);
	bool any = false;

	for (int r = 0; r < run->target; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);

		if (!(alive >> r & 1))
			continue;
		any = any || needed(run, w);
		if (w->after.done_ns > last)
			last = w->after.done_ns;
	}
	if (any)
		chaos_sample(samples, (double)(last - at) / 1e6);
	run->bench->spared += !any;
}

/* Killed ranks are reaped. Stopped ranks continue, must find that they were removed, and end for that reason. */
static int bury(struct chaos_run *run)
{
	int err = 0;

	for (int d = 0; d < CHAOS_DESKS; d++)
		if (run->worker[d].pid && run->worker[d].state == CHAOS_P_HALTED)
			run->worker[d].state = CHAOS_P_LIMBO;
	err = chaos_resume(run);
	for (int d = 0; d < CHAOS_DESKS && !err; d++)
		if (run->worker[d].pid && run->worker[d].state == CHAOS_P_KILLED)
			err = chaos_await_end(run, &run->worker[d], CHAOS_OUTCOME_MS, "SIGKILL");
	return err;
}

static void measure_pause(struct chaos_bench *b)
{
	if (!b->gaps)
		return;
	qsort(b->gap_ms, b->gaps, sizeof(*b->gap_ms), tool_ascending);
	chaos_sample(&b->pause, b->gap_ms[b->gaps - 1] - b->gap_ms[b->gaps / 2]);
	chaos_sample(&b->meanwhile, b->survivor_ms);
}

bool chaos_first_done(struct chaos_run *run, uint64_t ranks)
{
	for (int r = 0; r < run->target; r++)
		if (ranks >> r & 1 && (!chaos_crew_at(run, r) || !chaos_crew_at(run, r)->first_ns))
			return false;
	return true;
}

/* Replaces all missing ranks, also those that ended by themselves. */
static int replace(struct chaos_run *run)
{
	uint64_t missing = ((UINT64_C(1) << run->target) - 1) & ~chaos_alive(run);
	struct chaos_bench *b = run->bench;
	int err = 0;

	b->gaps = 0;
	b->survivor_ms = 0;
	b->victims = missing;
	b->watch = true;
	for (int r = 0; r < run->target && !err; r++)
		if (missing >> r & 1)
			err = chaos_crew_spawn(run, r, true, NULL);
	if (!err)
		err = chaos_until(run, chaos_first_done, missing, "an operation of the replacements");
	chaos_run_for(run, QUIET_MS);
	b->watch = false;
	b->victims = 0;
	for (int r = 0; r < run->target && !err; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);

		if (missing >> r & 1 && w)
			chaos_sample(&b->first, w->first_took_ms);
		if (missing >> r & 1 && w)
			chaos_sample(
				&b->replaced,
				(double)(w->first_ns -
					 (run->opt->devices ? run->crew->desk[w - run->worker].ready_ns : w->exec_ns)) /
					1e6);
	}
	if (!err)
		measure_pause(b);
	return err;
}

/* Has every possible victim touched its memory? */
static bool heavy(struct chaos_run *run, uint64_t what)
{
	(void)what;
	for (int r = 0; r < run->target && run->crew->touch_bytes; r++) {
		const struct chaos_worker *w = chaos_crew_at(run, r);

		if (w && !__atomic_load_n(&run->crew->desk[w - run->worker].touch_ns, __ATOMIC_ACQUIRE))
			return false;
	}
	return true;
}

int chaos_strike(struct chaos_run *run, uint64_t victims, bool stop)
{
	struct chaos_bench *b = run->bench;
	uint64_t at;
	int err;

	victims &= chaos_alive(run);
	if (!victims)
		return 0;
	at = strike(run, victims, stop);
	if (chaos_until(run, agreed, 0, "an outcome without the ranks that were struck"))
		return -1;
	measure(run, at, stop ? &b->stopped : &b->killed);
	err = bury(run);
	b->victims = 0;
	return err;
}

int chaos_cycle(struct chaos_run *run, uint64_t victims, bool stop)
{
	if (chaos_until(run, heavy, 0, "memory to be touched"))
		return -1;
	chaos_run_for(run, QUIET_MS + chaos_random(run, QUIET_MS));
	chaos_sleep_us((unsigned)chaos_random(run, 1000)); /* not in step with the parent's looks */
	if (chaos_strike(run, victims, stop))
		return -1;
	chaos_run_for(run, 1 + chaos_random(run, QUIET_MS));
	return replace(run);
}

/* ---- The kinds of runs ---- */

static uint64_t pick(struct chaos_run *run)
{
	int n = 1 + (int)chaos_random(run, (uint64_t)run->opt->burst);
	uint64_t victims = 0;

	while (__builtin_popcountll(victims) < n)
		victims |= UINT64_C(1) << chaos_random(run, (uint64_t)run->opt->ranks);
	return victims;
}

static int cycles(struct chaos_run *run, int n, bool all_stop)
{
	const struct chaos_samples *replaced = &run->bench->replaced;

	for (int i = 0; i < n; i++) {
		bool stop = all_stop || (run->opt->both && !run->opt->bench && i % 2);
		uint64_t victims = pick(run);

		if (chaos_cycle(run, victims, stop))
			return -1;
		if (run->opt->verbose)
			fprintf(stderr, "ep-chaos: kill %d: ranks %#llx by %s, %.2f ms to replace, %d wrong\n", i + 1,
				(unsigned long long)victims, stop ? "SIGSTOP" : "SIGKILL",
				replaced->count ? replaced->ms[replaced->count - 1] : 0, run->wrong);
		else if ((i + 1) % 10 == 0)
			fprintf(stderr, "ep-chaos: %d of %d kills, %d wrong\n", i + 1, n, run->wrong);
	}
	return 0;
}

/* Number of figures over their bar; < 0: the run could not continue. */
static int work(struct chaos_run *run)
{
	const struct chaos_options *opt = run->opt;
	int err;

	if (opt->idle_s)
		return chaos_idle(run);
	if (opt->extends)
		return chaos_extend(run);
	if (opt->overload_s)
		return chaos_overload(run);
	if (opt->steps)
		return chaos_steps(run);
	if (opt->leak)
		return chaos_leak(run);
	err = cycles(run, opt->kills, opt->stop);
	if (!err && opt->bench && opt->both)
		err = cycles(run, (opt->kills + STOPS_PER_KILL - 1) / STOPS_PER_KILL, true);
	return err;
}

/* Defaults for options that are not set. */
static void fill_defaults(struct chaos_options *opt)
{
	bool measures = opt->bench || opt->idle_s || opt->leak || opt->steps || opt->extends || opt->overload_s;

	if (!measures) {
		opt->mix = true;
		opt->both = opt->both || !opt->signal_named;
	}
	if (!opt->burst)
		opt->burst = measures ? 1 : 2;
	if (opt->burst > opt->ranks / 2)
		opt->burst = opt->ranks / 2;
	if (!opt->kills)
		opt->kills = opt->bench || opt->leak ? BENCH_KILLS : DEFAULT_KILLS;
	if (opt->touch_mib < 0)
		opt->touch_mib = opt->devices ? 0 : opt->bench ? 256 : 16;
	if (opt->extends || opt->overload_s)
		opt->ranks = CHAOS_MAX_RANKS;
	opt->world = opt->extends ? CHAOS_MAX_RANKS / 2 : opt->ranks;
}

static void name_samples(struct chaos_bench *b, const struct chaos_options *opt)
{
	const char *hang = getenv("COVEY_HANG_MS");

	b->calm.name = "an operation that nothing disturbed";
	b->extended.name = "longest operation while 4 more join";
	b->killed.name = opt->tokens ? "SIGKILL to next right step" : "SIGKILL to agreed result";
	b->killed.bar_ms = 20;
	b->stopped.name = "SIGSTOP to agreed result";
	b->stopped.bar_ms = (hang ? atoi(hang) : DEFAULT_HANG_MS) + STOP_SLACK_MS;
	b->replaced.name = opt->devices ? "replacement: ready to first result" : "replacement: exec to first result";
	b->first.name = "replacement: its first operation";
	b->pause.name = "pause of survivors meanwhile";
	b->meanwhile.name = "a survivor's longest operation then";
}

static void load_of(struct chaos_plan *plan, const struct chaos_options *opt)
{
	plan->ranks = opt->world;
	plan->groups = plan->sizes = 1;
	plan->bytes[0] = (uint32_t)opt->bytes;
	plan->work = opt->tokens ? 1u << CHAOS_W_DISPATCH : opt->mix ? (1u << CHAOS_W_COMBINE) - 1 : 1u << OP_ALLREDUCE;
}

int chaos_bench_run(const struct chaos_options *given)
{
	struct chaos_run *run = calloc(1, sizeof(*run));
	struct chaos_bench *b = calloc(1, sizeof(*b));
	struct chaos_options opt = *given;
	int missed = -1, err = -1;

	fill_defaults(&opt);
	if (!run || !b) {
		free(run);
		free(b);
		return 2;
	}
	chaos_run_init(run, &opt);
	run->bench = b;
	b->gap_ms = malloc(CHAOS_GAPS * sizeof(*b->gap_ms));
	name_samples(b, &opt);
	load_of(&run->plan, &opt);
	run->target = opt.world;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (b->gap_ms && !chaos_run_open(run) && !chaos_run_start(run))
		err = chaos_until(run, chaos_first_done, (UINT64_C(1) << run->target) - 1, "an operation of each rank");
	if (!err) {
		missed = work(run);
		if (missed >= 0)
			chaos_run_stop(run);
		if (b->done || b->extended.count)
			missed += chaos_report(run);
	}
	if (err || run->wrong)
		fprintf(stderr, "ep-chaos: failed; seed %llu\n", (unsigned long long)opt.seed);
	err = err ? 2 : run->wrong || missed < 0 || (opt.strict && missed);
	chaos_run_close(run);
	free(b->gap_ms);
	free(b);
	return err;
}
