/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all sides of the benchmark share, so that they differ in their calls only: data, checks, pinning,
 * repetitions, timing, output. A side fills in a struct bench_side, a call for each operation that it has,
 * and runs bench_main(). Input is not zero (zeros are copied faster), and its sums are exact in f32.
 *
 *   SIDE [-t MS] [-n COUNT] [-m] [-r] OPERATION:BYTES,BYTES,... ...
 *
 * A line each: `operation bytes repetitions mean_us p50_us`. The mean is loop time / repetitions, the largest over
 * the ranks, of the middle one of five loops that take about MS milliseconds together; -n: of one loop of COUNT.
 * The p50 is of another loop, on rank 0, since taking times costs time; -m leaves it out. Bytes are those of a block where there are blocks (gather, scatter, allgather,
 * alltoall, reduce_scatter), else of the whole buffer.
 */
#ifndef BENCH_H
#define BENCH_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BENCH_RANKS 64 /* with -r */

enum bench_op {
	BENCH_ALLREDUCE,
	BENCH_IN_PLACE,
	BENCH_BROADCAST,
	BENCH_ALLGATHER,
	BENCH_ALLTOALL,
	BENCH_REDUCE_SCATTER,
	BENCH_REDUCE,
	BENCH_GATHER,
	BENCH_SCATTER,
	BENCH_SENDRECV,
	BENCH_BARRIER,
	BENCH_DISPATCH,
	BENCH_COMBINE,
	BENCH_OPS
};

/* A call of one operation: @count floats of a block or of the buffer; the root is rank 0. 0: done. */
typedef int (*bench_call)(void *send, void *recv, size_t count);

struct bench_side {
	int rank, ranks;
	bench_call call[BENCH_OPS]; /* NULL: this side has no such operation */
	int (*max)(double *value);  /* over all ranks */
	int (*prepare)(void);	    /* before dispatch and combine; NULL: nothing to do */
};

struct bench_work {
	const struct bench_side *side;
	enum bench_op op;
	size_t count; /* floats of a block */
	float *send, *recv;
	double loop_us; /* how long all loops should take */
	int fixed;	/* repetitions; 0: by loop_us */
	int mean_only, fifo;
	pid_t pid[BENCH_RANKS];
};

/* send, recv: blocks in the buffer. A place holds ranks blocks where it is -1. */
static const struct {
	const char *name;
	int send, recv;
} bench_shape[BENCH_OPS] = {
	[BENCH_ALLREDUCE] = { "allreduce", 1, 1 },
	[BENCH_IN_PLACE] = { "in-place", 1, 1 },
	[BENCH_BROADCAST] = { "broadcast", 1, 1 },
	[BENCH_ALLGATHER] = { "allgather", 1, -1 },
	[BENCH_ALLTOALL] = { "alltoall", -1, -1 },
	[BENCH_REDUCE_SCATTER] = { "reduce_scatter", -1, 1 },
	[BENCH_REDUCE] = { "reduce", 1, 1 },
	[BENCH_GATHER] = { "gather", 1, -1 },
	[BENCH_SCATTER] = { "scatter", -1, 1 },
	[BENCH_SENDRECV] = { "sendrecv", 1, 1 },
	[BENCH_BARRIER] = { "barrier", 1, 1 },
	[BENCH_DISPATCH] = { "dispatch", 1, 1 },
	[BENCH_COMBINE] = { "dispatch+combine", 1, 1 },
};

#define BENCH_LOOP_MS 40     /* of all loops for a mean together */
#define BENCH_LOOPS 5	     /* the mean is that of the middle one */
#define BENCH_TRIALS 3	     /* one that was disturbed does not say how many fit into a loop */
#define BENCH_MOST (1 << 20) /* repetitions */

static inline uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * The calling thread gets the core number rank modulo cores. Called after the library has started, so that it
 * counted the cores of the machine. False where it is not possible.
 */
static inline int bench_pin(int rank)
{
	cpu_set_t all, one;
	int nth = 0;

	if (sched_getaffinity(0, sizeof(all), &all))
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || nth++ != rank % CPU_COUNT(&all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return !sched_setaffinity(0, sizeof(one), &one);
	}
	return 0;
}

/* Under SCHED_FIFO, or not any more; 0: the caller. */
static inline void bench_fifo(pid_t pid, int on)
{
	struct sched_param param = { .sched_priority = on ? 1 : 0 };

	if (sched_setscheduler(pid, on ? SCHED_FIFO : SCHED_OTHER, &param) && on)
		perror("SCHED_FIFO");
}

static inline float bench_value(int rank, size_t i)
{
	return (float)(rank + 1) * (float)(i % 251 + 1);
}

static inline float bench_sum(int ranks, size_t i)
{
	float sum = 0;

	for (int r = 0; r < ranks; r++)
		sum += bench_value(r, i);
	return sum;
}

/* What element @i of block @block must be here. */
static inline float bench_expect(const struct bench_work *w, size_t block, size_t i)
{
	const struct bench_side *side = w->side;
	size_t mine = (size_t)side->rank * w->count + i;

	switch (w->op) {
	case BENCH_ALLREDUCE:
	case BENCH_REDUCE:
		return bench_sum(side->ranks, i);
	case BENCH_REDUCE_SCATTER:
		return bench_sum(side->ranks, mine);
	case BENCH_ALLTOALL:
		return bench_value((int)block, mine);
	case BENCH_ALLGATHER:
	case BENCH_GATHER:
		return bench_value((int)block, i);
	case BENCH_SCATTER:
		return bench_value(0, mine);
	case BENCH_SENDRECV:
		return bench_value((side->rank + side->ranks - 1) % side->ranks, i);
	default:
		return bench_value(0, i);
	}
}

static inline int bench_receives(const struct bench_work *w)
{
	int rooted = w->op == BENCH_REDUCE || w->op == BENCH_GATHER;

	if (w->op == BENCH_IN_PLACE || w->op == BENCH_BARRIER || w->op == BENCH_DISPATCH || w->op == BENCH_COMBINE)
		return 0;
	if (w->op == BENCH_BROADCAST)
		return w->side->rank != 0;
	return !rooted || !w->side->rank;
}

/* Each element is compared: a sum of small integers has one right value. */
static inline int bench_check(const struct bench_work *w)
{
	size_t blocks = bench_shape[w->op].recv < 0 ? (size_t)w->side->ranks : 1;

	if (!bench_receives(w))
		return 0;
	for (size_t b = 0; b < blocks; b++) {
		for (size_t i = 0; i < w->count; i++) {
			float got = w->recv[b * w->count + i], want = bench_expect(w, b, i);

			if (got == want)
				continue;
			fprintf(stderr, "rank %d: %s: element %zu of block %zu is %g, not %g\n", w->side->rank,
				bench_shape[w->op].name, i, b, (double)got, (double)want);
			return -1;
		}
	}
	return 0;
}

static inline int bench_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* A function of its own, so that an emulator can count what happens inside. */
static __attribute__((noinline)) int timed(const struct bench_work *w, int n)
{
	bench_call call = w->side->call[w->op];

	for (int i = 0; i < n; i++)
		if (call(w->send, w->recv, w->count))
			return -1;
	return 0;
}

static inline int bench_barrier(const struct bench_work *w)
{
	return w->side->call[BENCH_BARRIER](w->send, w->recv, w->count);
}

/*
 * A rank under SCHED_FIFO never yields to one that is not, and may share its core. So rank 0 changes all of them while
 * they wait for it, itself first on the way up and last on the way down.
 */
static inline void bench_fifo_all(const struct bench_work *w, int on)
{
	if (w->side->rank)
		return;
	if (on)
		bench_fifo(0, 1);
	for (int r = 1; r < w->side->ranks; r++)
		bench_fifo(w->pid[r], on);
	if (!on)
		bench_fifo(0, 0);
}

static inline int bench_begin(const struct bench_work *w)
{
	if (bench_barrier(w))
		return -1;
	if (!w->fifo)
		return 0;
	bench_fifo_all(w, 1);
	return bench_barrier(w);
}

static inline int bench_end(const struct bench_work *w)
{
	if (!w->fifo)
		return 0;
	if (bench_barrier(w))
		return -1;
	bench_fifo_all(w, 0);
	return 0;
}

static inline int bench_pids(struct bench_work *w)
{
	for (int r = 0; r < w->side->ranks; r++) {
		double pid = r == w->side->rank ? getpid() : 0;

		if (r >= BENCH_RANKS || w->side->max(&pid))
			return -1;
		w->pid[r] = (pid_t)pid;
	}
	return 0;
}

static inline int bench_loop(const struct bench_work *w, int n, double *mean_us)
{
	uint64_t start;

	if (bench_begin(w))
		return -1;
	start = bench_now_ns();
	if (timed(w, n))
		return -1;
	*mean_us = (double)(bench_now_ns() - start) / 1000 / n;
	return bench_end(w) ? -1 : w->side->max(mean_us);
}

static inline int bench_median(const struct bench_work *w, int n, double *p50_us)
{
	uint64_t *took = malloc((size_t)n * sizeof(*took)), start;
	bench_call call = w->side->call[w->op];
	int err = took ? bench_begin(w) : -1;

	for (int i = 0; i < n && !err; i++) {
		start = bench_now_ns();
		err = call(w->send, w->recv, w->count);
		took[i] = bench_now_ns() - start;
	}
	if (!err)
		err = bench_end(w);
	if (!err) {
		qsort(took, (size_t)n, sizeof(*took), bench_compare);
		*p50_us = (double)took[n / 2] / 1000;
	}
	free(took);
	return err;
}

/* Is a loop of @n long enough to tell? One that was disturbed is not, so three must say so. */
static inline int bench_long_enough(const struct bench_work *w, int n, double *us)
{
	for (int i = 0; i < BENCH_TRIALS; i++) {
		double mean_us;

		if (bench_loop(w, n, &mean_us))
			return -1;
		if (!i || mean_us < *us)
			*us = mean_us;
		if (*us * n * BENCH_LOOPS < w->loop_us)
			return 0;
	}
	return 1;
}

/* How many fill a loop: the same on all ranks, since the mean is. Warms up, too. */
static inline int bench_repetitions(const struct bench_work *w, int *out)
{
	double us = 0;
	int n = 2, enough = 0;

	if (timed(w, w->fixed ? w->fixed : n))
		return -1;
	for (; !w->fixed && !enough && n < BENCH_MOST; n *= enough ? 1 : 4)
		enough = bench_long_enough(w, n, &us);
	if (enough < 0)
		return -1;
	n = w->fixed ? w->fixed : (int)(w->loop_us / BENCH_LOOPS / (us > 0.01 ? us : 0.01)) + 1;
	*out = n > BENCH_MOST ? BENCH_MOST : n;
	return 0;
}

static inline int bench_mean(const struct bench_work *w, int n, double *mean_us)
{
	double us[BENCH_LOOPS];
	int loops = w->fixed ? 1 : BENCH_LOOPS;

	for (int i = 0; i < loops; i++) {
		int at = i;

		if (bench_loop(w, n, mean_us))
			return -1;
		for (; at && us[at - 1] > *mean_us; at--)
			us[at] = us[at - 1];
		us[at] = *mean_us;
	}
	*mean_us = us[loops / 2];
	return 0;
}

static inline int bench_measure(const struct bench_work *w, size_t bytes)
{
	double mean_us = 0, p50_us = 0;
	int n;

	if (bench_repetitions(w, &n) || bench_check(w) || bench_mean(w, n, &mean_us))
		return -1;
	if (!w->mean_only) {
		if (bench_receives(w))
			memset(w->recv, 1, w->count * sizeof(float));
		if (bench_median(w, w->fixed || w->fifo ? n : n * BENCH_LOOPS, &p50_us) || bench_check(w))
			return -1;
	}
	if (!w->side->rank)
		printf("%s %zu %d %.4f %.4f\n", bench_shape[w->op].name, bytes, n, mean_us, p50_us);
	return 0;
}

static inline float *bench_buffer(const struct bench_work *w, int blocks, size_t *room)
{
	size_t bytes = w->count * sizeof(float) * (blocks < 0 ? (size_t)w->side->ranks : 1);

	*room = (bytes + 4095) / 4096 * 4096;
	return aligned_alloc(4096, *room);
}

/* In place, sums grow from call to call: those data are zeros. */
static inline int bench_size(struct bench_work *w, size_t bytes)
{
	size_t send_room, recv_room;
	int err = -1;

	w->count = bytes / sizeof(float);
	w->send = bench_buffer(w, bench_shape[w->op].send, &send_room);
	w->recv = bench_buffer(w, bench_shape[w->op].recv, &recv_room);
	if (w->send && w->recv) {
		for (size_t i = 0; i < send_room / sizeof(float); i++)
			w->send[i] = bench_value(w->side->rank, i);
		memset(w->recv, w->op != BENCH_IN_PLACE, recv_room);
		err = bench_measure(w, bytes);
	}
	free(w->send);
	free(w->recv);
	return err;
}

/* `operation:bytes,bytes`. An operation that this side has not is passed over: the table says so. */
static inline int bench_word(struct bench_work *w, char *word)
{
	char *sizes = strchr(word, ':'), *save = NULL;
	int op = 0;

	if (!sizes)
		return -1;
	*sizes++ = '\0';
	while (op < BENCH_OPS && strcmp(bench_shape[op].name, word) != 0)
		op++;
	if (op == BENCH_OPS)
		return -1;
	w->op = (enum bench_op)op;
	if (!w->side->call[op])
		return 0;
	if (op >= BENCH_DISPATCH && w->side->prepare && w->side->prepare())
		return -1;
	for (char *s = strtok_r(sizes, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		size_t bytes = strtoul(s, NULL, 10);

		if (bytes < sizeof(float) || bench_size(w, bytes)) {
			fprintf(stderr, "rank %d: %s of %s bytes failed\n", w->side->rank, word, s);
			return -1;
		}
		fflush(stdout);
	}
	return 0;
}

static inline int bench_main(const struct bench_side *side, int argc, char **argv)
{
	struct bench_work w = { .side = side, .loop_us = BENCH_LOOP_MS * 1000.0 };
	int c;

	bench_pin(side->rank);
	while ((c = getopt(argc, argv, "t:n:mr")) != -1) {
		if (c == 't' && atof(optarg) > 0)
			w.loop_us = atof(optarg) * 1000;
		else if (c == 'n' && atoi(optarg) > 0)
			w.fixed = atoi(optarg);
		else if (c == 'm')
			w.mean_only = 1;
		else if (c == 'r')
			w.fifo = 1;
		else
			return 2;
	}
	if (w.fifo && bench_pids(&w))
		return 1;
	for (; optind < argc; optind++)
		if (bench_word(&w, argv[optind]))
			return fprintf(stderr, "rank %d: %s failed\n", side->rank, argv[optind]), 1;
	return 0;
}

#endif
