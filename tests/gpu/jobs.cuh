/* SPDX-License-Identifier: Apache-2.0 */
/* What jobs of ranks connected by hand must come to: inputs, an oracle on the host, canaries around the results. */
#ifndef JOBS_CUH
#define JOBS_CUH

#include "levels.h"
#include "world.cuh"

static int failures, checks;

static double rounded(int dtype, double v)
{
	return dtype == COVEY_FLOAT32 ? (double)(float)v : v;
}

/*
 * Small whole numbers: sums and products of all ranks are exact in every type. Floats of 32 and 64 bits have others, of which every
 * sum is rounded: they tell the order. Some integers are negative, or so large that they would be with a sign, where the greatest or
 * least is asked for. Drawn, so that no row of a step is like another.
 */
static double number(const struct job *j, int rank, size_t i)
{
	uint64_t drawn = (i * 64 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15ull;
	double small = (double)(drawn >> 62);

	switch (j->dtype) {
	case COVEY_FLOAT32:
	case COVEY_FLOAT64:
		return rounded(j->dtype, (double)(drawn >> 44) / 7);
	case COVEY_INT8:
	case COVEY_INT16:
	case COVEY_INT32:
	case COVEY_INT64:
		return small - 2;
	case COVEY_UINT8:
	case COVEY_UINT32:
	case COVEY_UINT64:
		if ((j->redop == COVEY_MAX || j->redop == COVEY_MIN) && small == 3)
			return 3 * (double)(1ull << (8 * elem_of(j->dtype) - 2));
	}
	return small + 1;
}

static void put(uint8_t *at, int dtype, size_t i, double v)
{
	switch (dtype) {
	case COVEY_INT8:
	case COVEY_UINT8:
		at[i] = (uint8_t)(int)v;
		break;
	case COVEY_INT16:
		((int16_t *)at)[i] = (int16_t)v;
		break;
	case COVEY_INT32:
		((int32_t *)at)[i] = (int32_t)v;
		break;
	case COVEY_UINT32:
		((uint32_t *)at)[i] = (uint32_t)v;
		break;
	case COVEY_INT64:
		((int64_t *)at)[i] = (int64_t)v;
		break;
	case COVEY_UINT64:
		((uint64_t *)at)[i] = (uint64_t)v;
		break;
	case COVEY_FLOAT64:
		((double *)at)[i] = v;
		break;
	case COVEY_FLOAT32:
		((float *)at)[i] = (float)v;
		break;
	case COVEY_BFLOAT16: {
		float f = (float)v;
		uint32_t b;
		memcpy(&b, &f, 4);
		((uint16_t *)at)[i] = (uint16_t)(b >> 16);
		break;
	}
	default: { /* f16 of a small whole number */
		int e = 0, k = (int)v;
		if (!k) {
			((uint16_t *)at)[i] = 0;
			break;
		}
		while (k >> (e + 1))
			e++;
		((uint16_t *)at)[i] = (uint16_t)((15 + e) << 10 | ((k << (10 - e)) & 0x3ff));
	}
	}
}

static inline int has_root(int kind)
{
	return cvy_gpu_is_broadcast(kind) || cvy_gpu_is_reduce(kind) || kind == CVY_GPU_GATHER ||
	       kind == CVY_GPU_SCATTER;
}

struct folding {
	double v;
	int k; /* numbers in it */
};

/* Each step rounded. */
static void fold_in(const struct job *j, struct folding *f, double x)
{
	f->v = rounded(j->dtype, !f->k			  ? x
				 : j->redop == COVEY_PROD ? f->v * x
				 : j->redop == COVEY_MAX  ? (x > f->v ? x : f->v)
				 : j->redop == COVEY_MIN  ? (x < f->v ? x : f->v)
							  : f->v + x);
	f->k++;
}

/* May it go in two levels? As the call that launch() makes. */
static int may_levels(const struct job *j)
{
	struct cvy_gpu_call call = {};

	call.kind = j->kind;
	call.packet = j->packet;
	call.lanes = j->lanes;
	call.threads = j->threads;
	call.rows = j->rows;
	call.bytes = j->count * elem_of(j->dtype);
	cvy_gpu_derive(&call);
	return width && cvy_gpu_can_levels(&call);
}

/* Ranks of a host where it goes in two levels, and hosts have as many of @members each; else all. */
static int fold_width(const struct job *j, uint32_t members)
{
	int of_host[RANKS] = { 0 }, most = 0, in_use = 0;

	if (!may_levels(j))
		return n;
	for (int r = 0; r < n; r++)
		of_host[r / width] += (int)(members >> r & 1);
	for (int h = 0; h * width < n; h++)
		most = of_host[h] > most ? of_host[h] : most;
	for (int h = 0; h * width < n; h++)
		if (of_host[h] && of_host[h] != most)
			return n;
	for (int h = 0; h * width < n; h++)
		in_use += of_host[h] > 0;
	if (j->kind == CVY_GPU_REDUCE_SCATTER && !cvy_levels_share(j->rows, j->threads, in_use))
		return n;
	return most > 1 ? width : n;
}

/* As the host folds: ascending; in two levels host by host. */
static double folded(const struct job *j, uint32_t members, size_t i)
{
	const int wide = fold_width(j, members), ranks_in = __builtin_popcount(members);
	struct folding all = { 0, 0 };

	for (int first = 0; first < n; first += wide) {
		struct folding host = { 0, 0 };

		for (int r = first; r < first + wide && r < n; r++)
			if (members >> r & 1)
				fold_in(j, &host, number(j, r, i));
		if (host.k)
			fold_in(j, &all, host.v);
	}
	return j->redop == COVEY_AVG ? all.v / ranks_in : all.v;
}

static void prepare(const struct job *j, int r)
{
	size_t elem = elem_of(j->dtype), total = send_items(j, r);

	place_buffers(r, j->registered >> r & 1);
	for (size_t i = 0; i < total; i++)
		put(ranks[r].host, j->dtype, i, number(j, r, i));
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemset(ranks[r].recv, 0xc5, MOST));
	CUDA(cudaMemset(ranks[r].send, 0xc5, MOST));
	CUDA(cudaMemcpy(ranks[r].send + pad_at(j, r) + send_shift(j, r), ranks[r].host, total * elem,
			cudaMemcpyHostToDevice));
	CUDA(cudaDeviceSynchronize());
}

/* What lies between blocks stays as it was. */
static void expect_uneven(const struct job *j, int r, uint32_t members, uint8_t *want)
{
	memset(want, 0xc5, recv_items(j, r) * elem_of(j->dtype));
	for (int p = 0; p < n; p++) {
		size_t at = block_at(j, r, p, 1), from = j->kind == CVY_GPU_ALLTOALLV ? block_at(j, p, r, 0) : 0;

		for (size_t i = 0; i < pair_count(j, p, r); i++)
			put(want, j->dtype, at + i, members >> p & 1 ? number(j, p, from + i) : 0);
	}
}

static void expect(const struct job *j, int r, uint32_t members, uint8_t *want)
{
	size_t elem = elem_of(j->dtype), blocks = recv_blocks(j);

	if (cvy_gpu_is_uneven(j->kind)) {
		expect_uneven(j, r, members, want);
		return;
	}
	memset(want, 0xc5, j->count * elem * blocks);
	for (size_t b = 0; b < blocks; b++) {
		for (size_t i = 0; i < j->count; i++) {
			double v;

			switch (j->kind) {
			case CVY_GPU_ALLREDUCE:
			case CVY_GPU_ALLREDUCE_TWO_SHOT:
				v = folded(j, members, i);
				break;
			case CVY_GPU_REDUCE:
			case CVY_GPU_REDUCE_TWO_SHOT:
				if (r != j->root)
					return;
				v = folded(j, members, i);
				break;
			case CVY_GPU_REDUCE_SCATTER:
				v = folded(j, members, (size_t)r * j->count + i);
				break;
			case CVY_GPU_ALLGATHER:
				v = members >> b & 1 ? number(j, (int)b, i) : 0;
				break;
			case CVY_GPU_GATHER:
				if (r != j->root)
					return;
				v = members >> b & 1 ? number(j, (int)b, i) : 0;
				break;
			case CVY_GPU_ALLTOALL:
				v = members >> b & 1 ? number(j, (int)b, (size_t)r * j->count + i) : 0;
				break;
			case CVY_GPU_SCATTER:
				v = j->grown && r == n - 1 ? 0 : number(j, j->root, (size_t)r * j->count + i);
				break;
			default:
				v = number(j, j->root, i);
			}
			put(want, j->dtype, b * j->count + i, v);
		}
	}
}

static void compare(const struct job *j, int r, uint32_t members, const char *what)
{
	size_t bytes = elem_of(j->dtype) * recv_items(j, r), pad = pad_at(j, r);
	uint8_t *got = ranks[r].out, *want = ranks[r].host;

	checks++;
	if (j->kind == CVY_GPU_BARRIER)
		return;
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemcpy(got, recv_at(j, r) - pad, pad + bytes + CANARY, cudaMemcpyDeviceToHost));
	expect(j, r, members, want);
	if (j->in_place && cvy_gpu_is_reduce(j->kind) && r != j->root)
		return;
	for (size_t i = 0; i < bytes; i++) {
		if (got[pad + i] != want[i]) {
			fprintf(stderr,
				"%s: kind %d packet %d type %d op %d count %zu lanes %d x %d x %d rank %d of %x: byte "
				"%zu is %02x, not %02x\n",
				what, j->kind, j->packet, j->dtype, j->redop, j->count, j->lanes, j->threads, j->rows,
				r, members, i, got[pad + i], want[i]);
			failures++;
			return;
		}
	}
	for (size_t i = 0; i < CANARY && !in_place_on(j, r); i++) {
		if (got[i] != 0xc5 || got[pad + bytes + i] != 0xc5) {
			fprintf(stderr, "%s: kind %d type %d count %zu rank %d: a canary died\n", what, j->kind,
				j->dtype, j->count, r);
			failures++;
			return;
		}
	}
}

static inline void run(const struct job *j)
{
	for (int r = 0; r < n; r++)
		prepare(j, r);
	for (int r = 0; r < n; r++)
		launch(j, r);
	synchronise();
	for (int r = 0; r < n; r++)
		compare(j, r, mask, "healthy");
}

#endif
