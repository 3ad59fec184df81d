/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups under load: four ranks more join while the others work, again and again; and many ranks beside busy loops on
 * few cores, where no rank may be suspected.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"

#define CALM_MS 300	 /* of traffic before and after each change of size */
#define LOOPS_PER_CORE 2 /* busy processes */
#define LOOPS_MAX 64
#define PROGRESS_S 60

static uint32_t joiners(const struct chaos *c)
{
	return ((1u << c->opt->ranks) - 1) & ~((1u << c->opt->world) - 1);
}

/* Waits until all ranks have done an operation; the longest one of a founder meanwhile is the sample. */
static int grow(struct chaos *c)
{
	uint64_t end = chaos_outcome_end();
	uint32_t left = joiners(c);

	c->longest_ms = 0;
	c->watch = true;
	for (int r = c->opt->world; r < c->opt->ranks; r++)
		chaos_fleet_spawn(c, r, true);
	while (left && chaos_awake_ns() < end) {
		chaos_fleet_poll(c);
		for (int r = c->opt->world; r < c->opt->ranks; r++)
			if (c->process[r].first_ns)
				left &= ~(1u << r);
	}
	chaos_run_for(c, CALM_MS);
	c->watch = false;
	if (left) {
		chaos_wrong(c, "joiners %#x did no operation within %d ms", left, CHAOS_OUTCOME_MS);
		return -1;
	}
	chaos_sample(&c->extended, c->longest_ms);
	return 0;
}

static int shrink(struct chaos *c)
{
	return chaos_strike(c, joiners(c), SIGKILL);
}

int chaos_extend(struct chaos *c)
{
	for (int i = 0; i < c->opt->extends; i++) {
		chaos_run_for(c, CALM_MS);
		if (grow(c) || shrink(c))
			return -1;
		if ((i + 1) % 10 == 0)
			fprintf(stderr, "ep-chaos: %d of %d times, %d wrong\n", i + 1, c->opt->extends, c->wrong);
	}
	return 0;
}

/* Cores that this process may use, and so the ranks and loops that it starts. */
static int own_cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

static int start_loops(pid_t loop[LOOPS_MAX])
{
	int n = own_cores() * LOOPS_PER_CORE;

	if (n > LOOPS_MAX)
		n = LOOPS_MAX;
	for (int i = 0; i < n; i++) {
		loop[i] = fork();
		if (loop[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (volatile uint64_t spin = 0;; spin++)
			;
	}
	return n;
}

int chaos_overload(struct chaos *c)
{
	uint64_t suspects = 0, operations = 0;
	pid_t loop[LOOPS_MAX];
	int n = start_loops(loop);

	for (int s = 0; s < c->opt->overload_s; s++) {
		chaos_run_for(c, 1000);
		if ((s + 1) % PROGRESS_S == 0)
			fprintf(stderr, "ep-chaos: %d of %d s, %d wrong\n", s + 1, c->opt->overload_s, c->wrong);
	}
	for (int i = 0; i < n; i++) {
		if (loop[i] <= 0)
			continue;
		kill(loop[i], SIGKILL);
		waitpid(loop[i], NULL, 0);
	}
	for (int r = 0; r < c->opt->ranks; r++) {
		suspects += c->shared->slot[r].suspects;
		operations += c->process[r].last[CHAOS_HOST].seq;
	}
	if (c->opt->json)
		printf("{\"seconds\": %d, \"suspicions\": %llu, \"ended\": %d, \"operations\": %llu}\n",
		       c->opt->overload_s, (unsigned long long)suspects, c->unplanned,
		       (unsigned long long)(operations / (uint64_t)c->opt->ranks));
	else
		printf("%d ranks and %d busy loops on %d cores for %d s: %llu suspicions, %d ranks lost, %llu "
		       "operations: %s\n",
		       c->opt->ranks, n, own_cores(), c->opt->overload_s, (unsigned long long)suspects, c->unplanned,
		       (unsigned long long)(operations / (uint64_t)c->opt->ranks),
		       suspects || c->unplanned ? "MISS" : "pass");
	return suspects || c->unplanned;
}
