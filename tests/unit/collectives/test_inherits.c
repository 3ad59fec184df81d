/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank's process inherits: cores. Whether a rank spins follows from the cores that it may use, and not from
 * those of the machine.
 *
 * labels: redis real
 */
#include "harness.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "handle.h"

#define RANKS 2

struct job {
	struct covey_config config;
	int cpu[RANKS]; /* the only one of each rank */
	int *spins;	/* [RANKS], shared */
};

/* ---- cores ---- */

static int bound_rank(void *arg, int me)
{
	struct job *job = arg;
	struct covey_group *group;
	float in = 1, out = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(job->cpu[me], &set);
	must(!sched_setaffinity(0, sizeof(set), &set), "rank %d cannot be bound", me);
	group = harness_join(&job->config, me);
	must(!covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL) && out == RANKS, "out %g",
	     (double)out);
	job->spins[me] = group->engine->spin;
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", me);
	covey_close(group);
	return 0;
}

static void run_bound(int first, int second, int spins)
{
	struct job job = { .config = harness_config("cores", RANKS), .cpu = { first, second } };
	pid_t pid[RANKS];

	job.spins = harness_shared(RANKS * sizeof(*job.spins));
	for (int r = 0; r < RANKS; r++)
		pid[r] = harness_fork(bound_rank, &job, r);
	for (int r = 0; r < RANKS; r++)
		must(!harness_reap(pid[r]), "rank %d ended badly", r);
	for (int r = 0; r < RANKS; r++)
		must(job.spins[r] == spins, "rank %d of cores %d and %d: spins %d", r, first, second, job.spins[r]);
}

/* Two cores that this process may use; the same one twice: there is no other. */
static void two_cores(int cpu[2])
{
	cpu_set_t set;
	int n = 0;

	must(!sched_getaffinity(0, sizeof(set), &set), "no mask");
	for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &set))
			cpu[n++] = i;
	if (n < 2)
		cpu[1] = cpu[0];
}

START_TEST(ranks_on_one_core_do_not_spin)
{
	int cpu[2];

	two_cores(cpu);
	run_bound(cpu[0], cpu[0], 0);
}
END_TEST

START_TEST(ranks_that_a_launcher_bound_to_a_core_each_spin)
{
	int cpu[2];

	two_cores(cpu);
	if (cpu[0] != cpu[1]) /* where a machine has one core, the test above is all there is to see */
		run_bound(cpu[0], cpu[1], 1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collectives/inherits");
	TCase *cores = tcase_create("cores");

	tcase_add_test(cores, ranks_on_one_core_do_not_spin);
	tcase_add_test(cores, ranks_that_a_launcher_bound_to_a_core_each_spin);
	suite_add_tcase(suite, cores);
	return harness_main(suite);
}
