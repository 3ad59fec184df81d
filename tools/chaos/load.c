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

#include "bench.h"

#define CALM_MS 300	 /* of traffic before and after each change of size */
#define LOOPS_PER_CORE 2 /* busy processes */
#define LOOPS_MAX 64
#define PROGRESS_S 60

/* Ranks that come and go */
static uint64_t joiners(const struct chaos_run *run)
{
	return ((UINT64_C(1) << run->opt->ranks) - 1) & ~((UINT64_C(1) << run->opt->world) - 1);
}

/* Waits until all ranks have done an operation; the longest one of a founder meanwhile is the sample. */
static int grow(struct chaos_run *run)
{
	struct chaos_bench *b = run->bench;
	int err = 0;

	b->longest_ms = 0;
	b->watch = true;
	run->target = run->opt->ranks;
	for (int r = run->opt->world; r < run->target && !err; r++)
		err = chaos_crew_spawn(run, r, true, NULL);
	if (!err)
		err = chaos_until(run, chaos_first_done, joiners(run), "an operation of the joiners");
	chaos_run_for(run, CALM_MS);
	b->watch = false;
	if (!err)
		chaos_sample(&b->extended, b->longest_ms);
	return err;
}

static int shrink(struct chaos_run *run)
{
	int err = chaos_strike(run, joiners(run), false);

	run->target = run->opt->world;
	return err;
}

int chaos_extend(struct chaos_run *run)
{
	for (int i = 0; i < run->opt->extends; i++) {
		chaos_run_for(run, CALM_MS);
		if (grow(run) || shrink(run))
			return -1;
		if ((i + 1) % 10 == 0)
			fprintf(stderr, "ep-chaos: %d of %d times, %d wrong\n", i + 1, run->opt->extends, run->wrong);
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

int chaos_overload(struct chaos_run *run)
{
	uint64_t suspects = 0, operations = 0;
	pid_t loop[LOOPS_MAX];
	int n = start_loops(loop);

	for (int s = 0; s < run->opt->overload_s; s++) {
		chaos_run_for(run, 1000);
		if ((s + 1) % PROGRESS_S == 0)
			fprintf(stderr, "ep-chaos: %d of %d s, %d wrong\n", s + 1, run->opt->overload_s, run->wrong);
	}
	for (int i = 0; i < n; i++) {
		if (loop[i] <= 0)
			continue;
		kill(loop[i], SIGKILL);
		waitpid(loop[i], NULL, 0);
	}
	for (int d = 0; d < CHAOS_DESKS; d++) {
		suspects += run->crew->desk[d].suspects;
		operations += run->worker[d].last[0].seq;
	}
	if (run->opt->json)
		chaos_print_json(json_pack("{s:i, s:I, s:I, s:I}", "seconds", run->opt->overload_s, "suspicions",
					   (json_int_t)suspects, "ended", (json_int_t)run->alarms, "operations",
					   (json_int_t)(operations / (uint64_t)run->opt->ranks)));
	else
		printf("%d ranks and %d busy loops on %d cores for %d s: %llu suspicions, %d ranks lost, %llu "
		       "operations: %s\n",
		       run->opt->ranks, n, own_cores(), run->opt->overload_s, (unsigned long long)suspects,
		       (int)run->alarms, (unsigned long long)(operations / (uint64_t)run->opt->ranks),
		       suspects || run->alarms ? "MISS" : "pass");
	return suspects || run->alarms;
}
