/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one process, one per device (or several on one), connected by hand: what tests of kernels alone share. */
#ifndef WORLD_CUH
#define WORLD_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "covey.h"
#include "gpu.h"

#define RANKS 8
#define CANARY 64
#define MOST ((size_t)8 << 20)

extern "C" const struct cvy_gpu_ops cvy_gpu_ops;
static const struct cvy_gpu_ops *ops = &cvy_gpu_ops;

static int n;
static struct rank {
	int device;
	struct cvy_gpu *gpu;
	cudaStream_t stream;
	uint8_t *send, *recv, *host, *out;
	uint64_t in, outgen;
} ranks[RANKS];
static uint32_t epoch, mask;

#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)

#define OK(gpu, call) \
	do { \
		int err_ = (call); \
		if (err_) { \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, err_, ops->why(gpu)); \
			exit(1); \
		} \
	} while (0)

static inline void connect_pair(int from, int to, int generation)
{
	int fd;

	OK(ranks[to].gpu, ops->chunk(ranks[to].gpu, from, generation, &fd));
	OK(ranks[from].gpu, ops->attach(ranks[from].gpu, to, generation, fd));
	close(fd);
	ranks[to].in = (ranks[to].in & ~(3ull << (2 * from))) | (uint64_t)generation << (2 * from);
	ranks[from].outgen = (ranks[from].outgen & ~(3ull << (2 * to))) | (uint64_t)generation << (2 * to);
}

static inline void freeze(int r)
{
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	do
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 0));
	while (c.finished + c.stopped != c.entered);
}

static inline uint64_t finished(int r)
{
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 0));
	return c.finished / CVY_GPU_QUANTA;
}

/* The next view of @members at @base, for rank @r. */
static inline void thaw(int r, uint32_t members, uint64_t base, uint32_t gone)
{
	struct cvy_gpu_counters c;
	struct cvy_gpu_verdict v = { epoch, 0, base, gone, 0 };

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, members, 0, ranks[r].in, ranks[r].outgen };
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, NULL, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

static inline size_t elem_of(int dtype)
{
	switch (dtype) {
	case COVEY_INT8:
	case COVEY_UINT8:
		return 1;
	case COVEY_INT16:
	case COVEY_FLOAT16:
	case COVEY_BFLOAT16:
		return 2;
	case COVEY_INT64:
	case COVEY_UINT64:
	case COVEY_FLOAT64:
		return 8;
	default:
		return 4;
	}
}

struct job {
	int kind, packet, dtype, redop, root, lanes, threads, rows, in_place;
	size_t count; /* elements of a block */
	size_t shift; /* bytes that buffers are off alignment */
};

static inline size_t send_blocks(const struct job *j)
{
	return j->kind == CVY_GPU_ALLTOALL || j->kind == CVY_GPU_REDUCE_SCATTER || j->kind == CVY_GPU_SCATTER
		       ? (size_t)n
		       : 1;
}

static inline size_t recv_blocks(const struct job *j)
{
	return j->kind == CVY_GPU_ALLTOALL || j->kind == CVY_GPU_ALLGATHER || j->kind == CVY_GPU_GATHER ? (size_t)n : 1;
}

static inline uint8_t *recv_at(const struct job *j, int r)
{
	return j->in_place ? ranks[r].send + CANARY + j->shift : ranks[r].recv + CANARY + j->shift;
}

static inline void launch(const struct job *j, int r)
{
	struct cvy_gpu_call call = {};

	call.send = ranks[r].send + CANARY + j->shift;
	call.recv = recv_at(j, r);
	call.bytes = j->count * elem_of(j->dtype);
	call.kind = j->kind;
	call.packet = j->packet;
	call.dtype = j->dtype;
	call.redop = j->redop;
	call.root = j->root;
	call.size = n;
	call.lanes = j->lanes;
	call.threads = j->threads;
	call.rows = j->rows;
	call.in_place = j->in_place;
	call.rank = r;
	call.steps = cvy_gpu_steps(&call, (call.bytes + 7) / 8);
	CUDA(cudaSetDevice(ranks[r].device));
	OK(ranks[r].gpu, ops->launch(ranks[r].gpu, &call, (struct CUstream_st *)ranks[r].stream));
}

static inline void synchronise(void)
{
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamSynchronize(ranks[r].stream));
	}
}

static inline void open_all(void)
{
	int devices;

	CUDA(cudaGetDeviceCount(&devices));
	for (int r = 0; r < n; r++) {
		char why[240];

		ranks[r].device = r % devices;
		if (ops->open(ranks[r].device, 1000, 60000, &ranks[r].gpu, why, sizeof(why))) {
			fprintf(stderr, "%s\n", why);
			exit(1);
		}
		printf("# rank %d: %s\n", r, ops->describe(ranks[r].gpu));
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking));
		CUDA(cudaMalloc(&ranks[r].send, MOST));
		CUDA(cudaMalloc(&ranks[r].recv, MOST));
		ranks[r].host = (uint8_t *)malloc(MOST);
		ranks[r].out = (uint8_t *)malloc(MOST);
		for (int p = 0; p < devices; p++)
			if (p != ranks[r].device)
				cudaDeviceEnablePeerAccess(p, 0);
	}
	for (int a = 0; a < n; a++)
		for (int b = 0; b < n; b++)
			if (a != b)
				connect_pair(a, b, 0);
	epoch = 1;
	mask = (1u << n) - 1;
	for (int r = 0; r < n; r++)
		thaw(r, mask, 0, 0);
}

#endif
