/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that begins when the words of the next view are written and the gate is not open yet, while all others are in
 * that view: whatever it has pushed by then, it and the others come to the right result. The gate opens sooner or later.
 * A watchdog ends it if somebody waits for ever.
 *
 *	cpu-gate flat|levels [TIMES]
 */
#include <signal.h>
#include <unistd.h>

#include "jobs.cuh"

#define WATCHDOG 60 /* seconds, for what takes milliseconds */
#define LATEST 2000 /* us that the gate opens behind the words */

static const char *what;
static int tries;

static void hangs(int)
{
	fprintf(stderr, "%s: somebody waits for ever, try %d\n", what, tries);
	_exit(1);
}

/* The words of the view that is now: as cvy_device_thaw() has them written. */
static void write_words(int r, uint64_t base)
{
	const struct cvy_gpu_era eras[] = { { 0, epoch - 1, mask, 0, 0 }, { base, epoch, mask, 0, 0 } };
	const uint32_t bits = (uint32_t)width << CVY_GPU_WIDTH_SHIFT;
	struct cvy_gpu_verdict verdict = { epoch, 0, base, 0, 0 };
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, mask, bits, ranks[r].in, ranks[r].outgen };
	memcpy(ranks[r].roll.era, eras, sizeof(eras));
	ranks[r].roll.eras = 2;
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, &ranks[r].roll, &verdict));
}

/* Rank 0 launches between its words and its gate. */
static void change(const struct job *j, unsigned us)
{
	uint64_t base;

	for (int r = 0; r < n; r++)
		freeze(r);
	base = finished(0);
	epoch++;
	for (int r = 0; r < n; r++)
		prepare(j, r);
	for (int r = 1; r < n; r++) {
		write_words(r, base);
		OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
		launch(j, r);
	}
	usleep(3000); /* they wait in the operation for rank 0 */
	write_words(0, base);
	launch(j, 0);
	usleep(us);
	OK(ranks[0].gpu, ops->gate(ranks[0].gpu, CVY_GPU_GATE_OPEN(epoch)));
	synchronise();
	for (int r = 0; r < n; r++)
		compare(j, r, mask, what);
}

/* Ten steps in one lane of one warp; @wide: between hosts of so many ranks, five of them. */
static void many_steps(const char *name, int wide, int times)
{
	const int kind = wide ? CVY_GPU_ALLREDUCE_TWO_SHOT : CVY_GPU_ALLREDUCE;
	struct job j = job_of(kind, COVEY_INT32, 1200 * (wide ? 2 : 1), 1, 32, 2);

	what = name;
	width = wide;
	n = wide ? 2 * wide : 2;
	open_all();
	for (tries = 0; tries < times; tries++) {
		alarm(WATCHDOG);
		change(&j, (unsigned)(tries * 37) % LATEST);
		alarm(0);
	}
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	printf("%s: %d tries, %d checks, %d failed\n", name, times, checks, failures);
}

int main(int argc, char **argv)
{
	const int levels = argc > 1 && !strcmp(argv[1], "levels"), times = argc > 2 ? atoi(argv[2]) : 20;

	if (argc < 2 || times < 1) {
		fprintf(stderr, "cpu-gate flat|levels [TIMES]\n");
		return 2;
	}
	signal(SIGALRM, hangs);
	many_steps(levels ? "in two levels" : "in one level", levels ? 2 : 0, times);
	return failures != 0;
}
