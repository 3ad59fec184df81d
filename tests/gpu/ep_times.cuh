/* SPDX-License-Identifier: Apache-2.0 */
/* Times of dispatch and combine, by ranks of one process: `gpu-ep RANKS SEEDS times`. */
#ifndef EP_TIMES_CUH
#define EP_TIMES_CUH

#include <time.h>

#include "ep_compare.cuh"

#define OPS 20
#define ROUNDS 15

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Of one operation, or pair, in graphs of OPS on all ranks: the median over rounds of the time until all have ended. */
static double timed(const struct setup *s, int kinds)
{
	cudaGraphExec_t exec[RANKS];
	double us[ROUNDS + 1];

	for (int r = 0; r < n; r++) {
		cudaGraph_t graph;

		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeRelaxed));
		for (int i = 0; i < OPS; i++) {
			if (kinds & 1)
				launch_ep(s, r, CVY_GPU_DISPATCH, CVY_EP_SEND | CVY_EP_RECV);
			if (kinds & 2)
				launch_ep(s, r, CVY_GPU_COMBINE, CVY_EP_SEND | CVY_EP_RECV);
		}
		CUDA(cudaStreamEndCapture(ranks[r].stream, &graph));
		CUDA(cudaGraphInstantiate(&exec[r], graph, 0));
	}
	for (int i = 0; i <= ROUNDS; i++) {
		us[i] = now_us();
		for (int r = 0; r < n; r++) {
			CUDA(cudaSetDevice(ranks[r].device));
			CUDA(cudaGraphLaunch(exec[r], ranks[r].stream));
		}
		synchronise();
		us[i] = (now_us() - us[i]) / OPS;
	}
	qsort(us + 1, ROUNDS, sizeof(us[0]), ascending);
	return us[1 + ROUNDS / 2];
}

/* Copies of a token that cross to other ranks, and with them the bytes of the busiest wire. */
static double crossing(const struct setup *s)
{
	size_t most = 0;

	for (int r = 0; r < n; r++) {
		const int32_t *ids = (int32_t *)host_at(r, IDS);
		size_t copies = 0;

		for (int t = 0; t < side[r].num_tokens; t++) {
			uint32_t to = 0;

			for (int k = 0; k < s->shape.top_k; k++)
				to |= 1u << s->owner[ids[t * s->shape.top_k + k]];
			copies += (size_t)__builtin_popcount(to & ~(1u << r));
		}
		most = copies > most ? copies : most;
	}
	return (double)most;
}

/* As calls have them; where ranks share a device, as many as find room. */
static int lanes_of(const struct cvy_ep_shape_gpu *s)
{
	int lanes = cvy_ep_lanes_of(s);

	while (lanes * n > 128 * devices)
		lanes /= 2;
	return lanes;
}

/* @compact_rows: of that preset, else of LL. @given: the caller has rows in e4m3. */
static void time_one(int tokens, int lanes, int compact_rows, int given)
{
	struct setup s = {};

	s.shape.hidden = 7168;
	s.shape.tokens = tokens;
	s.shape.top_k = 8;
	s.shape.experts = 256 / 4 * n; /* a rank has as many as with four */
	s.shape.code = s.shape.per_rank = 1;
	s.shape.once = compact_rows;
	s.given = given ? mask : 0;
	s.lanes = lanes ? lanes : lanes_of(&s.shape);
	for (int e = 0; e < s.shape.experts; e++)
		s.owner[e] = e / (s.shape.experts / n);
	prepare(&s);
	compute(&s, mask);
	timed(&s, 3);
	printf("%6d%c%c %6d %10.2f %10.2f %10.2f %12.2f\n", tokens, compact_rows ? 'c' : ' ', given ? 'g' : ' ',
	       s.lanes, timed(&s, 1), timed(&s, 2), timed(&s, 3), crossing(&s) * (7408 + 14336) / 370e3);
	fflush(stdout);
}

static void times(void)
{
	static const int tokens[] = { 1, 8, 32, 64, 128 };

	printf("%8s %6s %10s %10s %10s %12s\n", "tokens", "lanes", "dispatch", "combine", "pair", "floor (wire)");
	for (int i = 0; i < 5; i++)
		time_one(tokens[i], 0, 0, 0);
	for (int lanes = 64; lanes >= 8; lanes /= 2)
		time_one(128, lanes, 0, 0);
	for (int lanes = 128; lanes >= 16; lanes /= 2)
		time_one(4096, lanes, 1, 0);
	for (int many = 32; many <= 1024; many *= 2)
		time_one(many, 0, 1, 0);
	for (int lanes = 64; lanes >= 16; lanes /= 2)
		time_one(128, lanes, 1, 0);
	for (int lanes = 128; lanes >= 16; lanes /= 2)
		time_one(4096, lanes, 1, 1);
	time_one(4096, 24, 1, 0);
	time_one(4096, 24, 1, 1);
	time_one(8, 0, 0, 1);
	time_one(128, 0, 0, 1);
}

#endif
