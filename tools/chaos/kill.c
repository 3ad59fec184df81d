/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cycle: kill ranks inside an operation, wait until the survivors have agreed, start the replacements, wait until
 * they work. Times come from the ranks' logs, not from the parent's looks.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "chaos.h"

#define QUIET_MS 20	/* of undisturbed work on both sides of a kill and of an admission */
#define INSIDE_MS 20	/* how long to look for a moment inside an operation */
#define FENCED_MS 10000 /* a stopped rank that continues learns within this that it was removed */

uint64_t chaos_random(struct chaos *c, uint64_t below)
{
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	return c->random % below;
}

void chaos_run_for(struct chaos *c, unsigned ms)
{
	uint64_t end = chaos_now_ns() + ms * UINT64_C(1000000);

	do
		chaos_fleet_poll(c);
	while (chaos_now_ns() < end);
}

/* Kills @victims when one of them is seen inside an operation; returns the time. */
static uint64_t strike(struct chaos *c, uint32_t victims, int number)
{
	uint64_t end = chaos_now_ns() + INSIDE_MS * UINT64_C(1000000), at;
	int first = __builtin_ctz(victims);
	bool inside;

	do
		inside = __atomic_load_n(&c->shared->slot[first].inside, __ATOMIC_ACQUIRE);
	while (!inside && chaos_now_ns() < end);
	for (int r = 0; r < c->opt->ranks; r++)
		c->process[r].after.seq = 0;
	c->victims = victims;
	at = chaos_now_ns();
	for (int r = 0; r < c->opt->ranks; r++)
		if (victims >> r & 1)
			kill(c->process[r].pid, number);
	c->inside += inside;
	c->done++;
	for (int r = 0; r < c->opt->ranks; r++)
		if (victims >> r & 1)
			c->process[r].killed = true;
	return at;
}

/* Waits until every survivor has done an operation without the victims. */
static int await_outcome(struct chaos *c)
{
	uint64_t end = chaos_outcome_end();
	uint32_t missing;

	do {
		chaos_fleet_poll(c);
		missing = chaos_fleet_alive(c);
		for (int r = 0; r < c->opt->ranks; r++)
			if (c->process[r].after.seq)
				missing &= ~(1u << r);
		if (!missing)
			return 0;
	} while (chaos_awake_ns() < end);
	chaos_wrong(c, "ranks %#x have no outcome %d ms after ranks %#x were killed", missing, CHAOS_OUTCOME_MS,
		    c->victims);
	return -1;
}

/* An operation entered after the view was agreed on did not need the change. */
static bool needed(const struct chaos *c, int rank)
{
	const struct chaos_record *after = &c->process[rank].after;
	const struct chaos_view *view = &c->shared->slot[rank].view[after->epoch % CHAOS_VIEWS];

	return __atomic_load_n(&view->epoch, __ATOMIC_ACQUIRE) != after->epoch || after->enter_ns < view->time_ns;
}

/* The time until the last survivor had the result, if at least one needed the change. */
static void measure(struct chaos *c, uint64_t at, struct chaos_samples *samples)
{
	uint64_t last = 0;
	bool any = false;

	for (int r = 0; r < c->opt->ranks; r++) {
		const struct chaos_process *p = &c->process[r];

		if (!p->after.seq || c->victims >> r & 1)
			continue;
		any = any || needed(c, r);
		if (p->after.done_ns > last)
			last = p->after.done_ns;
	}
	if (any)
		chaos_sample(samples, (double)(last - at) / 1e6);
	c->spared += !any;
}

/* Killed ranks are reaped. Stopped ranks continue, must find that they were removed, and end for that reason. */
static void bury(struct chaos *c, int number)
{
	for (int r = 0; r < c->opt->ranks; r++) {
		struct chaos_process *p = &c->process[r];
		uint64_t end = chaos_awake_ns() + FENCED_MS * UINT64_C(1000000);
		int status = 0;

		if (!(c->victims >> r & 1) || !p->pid)
			continue;
		kill(p->pid, SIGCONT);
		while (waitpid(p->pid, &status, WNOHANG) != p->pid) {
			if (chaos_awake_ns() > end) {
				chaos_wrong(c, "rank %d, stopped and continued, lives on after %d ms", r, FENCED_MS);
				kill(p->pid, SIGKILL);
			}
			chaos_fleet_poll(c);
		}
		chaos_fleet_poll(c);
		p->pid = 0;
		if (number == SIGSTOP && (!WIFEXITED(status) || WEXITSTATUS(status) != CHAOS_EXIT_FENCED))
			chaos_wrong(c, "rank %d, stopped and continued, ended with status 0x%x and not fenced: %s", r,
				    (unsigned)status, c->shared->slot[r].cause);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure_pause(struct chaos *c)
{
	if (!c->gaps)
		return;
	qsort(c->gap_ms, c->gaps, sizeof(*c->gap_ms), compare);
	chaos_sample(&c->pause, c->gap_ms[c->gaps - 1] - c->gap_ms[c->gaps / 2]);
}

/* Replaces all missing ranks, also those that ended by themselves. */
static int replace(struct chaos *c)
{
	uint32_t all = (1u << c->opt->ranks) - 1, missing = all & ~chaos_fleet_alive(c), left;
	uint64_t end, begun;

	c->gaps = 0;
	c->victims = missing;
	c->watch = true;
	for (int r = 0; r < c->opt->ranks; r++)
		if (missing >> r & 1)
			chaos_fleet_spawn(c, r, true);
	end = chaos_outcome_end();
	do {
		chaos_fleet_poll(c);
		left = missing;
		for (int r = 0; r < c->opt->ranks; r++)
			if (c->process[r].first_ns)
				left &= ~(1u << r);
	} while (left && chaos_awake_ns() < end);
	chaos_run_for(c, QUIET_MS);
	c->watch = false;
	c->victims = 0;
	if (left) {
		chaos_wrong(c, "replacements %#x did no operation within %d ms: %s", left, CHAOS_OUTCOME_MS,
			    c->shared->slot[__builtin_ctz(left)].cause);
		return -1;
	}
	for (int r = 0; r < c->opt->ranks; r++) {
		if (!(missing >> r & 1))
			continue;
		begun = c->opt->devices ? c->shared->slot[r].ready_ns : c->process[r].exec_ns;
		chaos_sample(&c->replaced, (double)(c->process[r].first_ns - begun) / 1e6);
	}
	measure_pause(c);
	return 0;
}

/* Waits until every possible victim has touched its memory. */
static void await_ballast(struct chaos *c)
{
	uint64_t end = chaos_outcome_end();
	bool all = !c->shared->touch_bytes;

	while (!all && chaos_awake_ns() < end) {
		chaos_run_for(c, 1);
		all = true;
		for (int r = 0; r < c->opt->ranks; r++)
			all = all && __atomic_load_n(&c->shared->slot[r].touch_ns, __ATOMIC_ACQUIRE);
	}
}

int chaos_strike(struct chaos *c, uint32_t victims, int number)
{
	uint64_t at;

	victims &= chaos_fleet_alive(c);
	if (!victims)
		return 0;
	at = strike(c, victims, number);
	if (await_outcome(c))
		return -1;
	measure(c, at, number == SIGSTOP ? &c->stopped : &c->killed);
	bury(c, number);
	c->victims = 0;
	return 0;
}

int chaos_cycle(struct chaos *c, uint32_t victims, int number)
{
	await_ballast(c);
	chaos_run_for(c, QUIET_MS + (unsigned)chaos_random(c, QUIET_MS));
	chaos_sleep_us((unsigned)chaos_random(c, 1000)); /* not in step with the parent's looks */
	if (chaos_strike(c, victims, number))
		return -1;
	chaos_run_for(c, 1 + (unsigned)chaos_random(c, QUIET_MS));
	return replace(c);
}
