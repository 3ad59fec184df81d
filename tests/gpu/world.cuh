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
#include "shape.h"

#define RANKS 8
#define CANARY 64
#ifndef MOST
#define MOST ((size_t)8 << 20)
#endif

extern "C" const struct cvy_gpu_ops cvy_gpu_ops;
static const struct cvy_gpu_ops *ops = &cvy_gpu_ops;

static int n;
static struct rank {
	int device;
	struct cvy_gpu *gpu;
	cudaStream_t stream;
	uint8_t *send, *recv, *host, *out; /* buffers of the jobs: plain, or registered */
	uint8_t *plain[2], *window;
	int window_fd;
	uint64_t in, outgen;
	struct cvy_gpu_roll roll;
} ranks[RANKS];
static uint32_t epoch, mask;
static int width; /* ranks of a host, where large operations go in two levels; 0: all ranks are of one host */
static uint8_t hosts[RANKS]; /* of each rank: equal numbers, one host */
static uint32_t by_queues;   /* CVY_GPU_FAR: queues lead to some ranks; 0: all have mapped memory */

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

	OK(ranks[to].gpu, ops->mapped(ranks[to].gpu)->chunk(ranks[to].gpu, from, generation));
	OK(ranks[to].gpu, ops->mapped(ranks[to].gpu)->chunk_fd(ranks[to].gpu, from, generation, &fd));
	OK(ranks[from].gpu, ops->mapped(ranks[from].gpu)->attach(ranks[from].gpu, to, generation, fd));
	close(fd);
	OK(ranks[from].gpu,
	   ops->mapped(ranks[from].gpu)->attach_window(ranks[from].gpu, to, generation, ranks[to].window_fd));
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
	const struct cvy_gpu_era eras[] = { { 0, epoch - 1, mask, 0, 0 }, { base, epoch, members, 0, 0 } };
	struct cvy_gpu_verdict v = { epoch, 0, base, gone, 0 };
	uint32_t lags;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	lags = c.finished / CVY_GPU_QUANTA < base ? CVY_GPU_LAGS : 0;
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, members, by_queues | lags, ranks[r].in, ranks[r].outgen };
	memcpy(ranks[r].roll.era, eras, sizeof(eras));
	ranks[r].roll.eras = 2;
	memcpy(ranks[r].roll.host, hosts, sizeof(hosts));
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, &ranks[r].roll, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

/* Operations of a rank that is left out end with an error. */
static inline void end(int r)
{
	struct cvy_gpu_verdict v = { UINT32_MAX, COVEY_ERR_FENCED, 0, 0, 0 };
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, NULL, &v));
	CUDA(cudaStreamSynchronize(ranks[r].stream));
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
	size_t count;	/* elements of a block */
	size_t shift;	/* bytes that buffers are off alignment */
	int registered; /* mask of ranks whose buffers are */
	int lies;	/* plus 1: this rank sends the first an element less than it should; 0: nobody */
	int shift_of;	/* mask of ranks whose buffers are, 0: all */
	int grown;	/* the last rank has come since: the buffers of the others know nothing of it */
};

/* Lines of a sum, at no root. */
static inline struct job job_of(int kind, int dtype, size_t count, int lanes = 2, int threads = 64, int rows = 1)
{
	struct job j = {};

	j.kind = kind;
	j.packet = CVY_GPU_LINE;
	j.dtype = dtype;
	j.redop = COVEY_SUM;
	j.root = -1;
	j.lanes = lanes;
	j.threads = threads;
	j.rows = rows;
	j.count = count;
	return j;
}

/* Pairs go in one step of one row, on as many lanes as that takes: what is too large for that goes in lines, as does what has a root in two rounds. */
static inline void fit(struct job *j)
{
	uint64_t words = ((uint64_t)j->count * elem_of(j->dtype) + 7) / 8;

	if (j->packet == CVY_GPU_LINE || cvy_gpu_is_uneven(j->kind))
		return;
	j->rows = 1;
	while (j->lanes < 16 && (uint64_t)j->lanes * j->threads < words)
		j->lanes *= 2;
	if ((uint64_t)j->lanes * j->threads < words || (j->root >= 0 && cvy_gpu_has_rounds(j->kind)))
		j->packet = CVY_GPU_LINE;
}

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

/* Of alltoallv and allgatherv: elements that @from has for @to, @count at most; some have none. */
static inline size_t pair_count(const struct job *j, int from, int to)
{
	size_t h = (size_t)from * 7 + (j->kind == CVY_GPU_ALLTOALLV ? (size_t)to * 3 : 0) + j->count;

	if (j->count < 5 && j->kind == CVY_GPU_ALLTOALLV)
		return h % (j->count + 1);
	return h % 5 == 0 ? 0 : h % 5 == 1 ? j->count : h % 5 == 2 ? j->count % 3 : j->count * (h % 4) / 4;
}

#define GAP 3 /* elements between two blocks, which nobody writes */

/* Element at which the block for @other, or from it, begins at @r: the last rank's is the first. -1: where all end. */
static inline size_t block_at(const struct job *j, int r, int other, int received)
{
	size_t at = 0;

	for (int p = n - 1; p > other; p--)
		at += (received ? pair_count(j, p, r) : pair_count(j, r, p)) + GAP;
	return at;
}

static inline size_t send_items(const struct job *j, int r)
{
	if (j->kind == CVY_GPU_ALLTOALLV)
		return block_at(j, r, -1, 0);
	return j->kind == CVY_GPU_ALLGATHERV ? pair_count(j, r, r) : send_blocks(j) * j->count;
}

static inline size_t recv_items(const struct job *j, int r)
{
	return cvy_gpu_is_uneven(j->kind) ? block_at(j, r, -1, 1) : recv_blocks(j) * j->count;
}

/* In place, the own block of allgatherv. */
static inline size_t send_shift(const struct job *j, int r)
{
	return j->kind == CVY_GPU_ALLGATHERV && j->in_place ? block_at(j, r, r, 1) * elem_of(j->dtype) : 0;
}

/* Bytes before the first of a buffer. */
static inline size_t pad_at(const struct job *j, int r)
{
	return CANARY + (!j->shift_of || j->shift_of >> r & 1 ? j->shift : 0);
}

/* Is @r's call in place? ODD_IN_PLACE: on every second rank. */
enum { ODD_IN_PLACE = 2 };

static inline int in_place_on(const struct job *j, int r)
{
	return j->in_place == ODD_IN_PLACE ? r % 2 : j->in_place;
}

static inline uint8_t *recv_at(const struct job *j, int r)
{
	return (in_place_on(j, r) ? ranks[r].send : ranks[r].recv) + pad_at(j, r);
}

static inline void fill_blocks(const struct job *j, int r, struct cvy_gpu_uneven *u)
{
	const size_t elem = elem_of(j->dtype);
	const int own = j->kind == CVY_GPU_ALLGATHERV;

	u->call.bytes = 0;
	for (int p = 0; p < n; p++) {
		u->send[p] = pair_count(j, r, p) * elem;
		u->send_at[p] = own ? 0 : block_at(j, r, p, 0) * elem;
		u->recv[p] = pair_count(j, p, r) * elem;
		u->recv_at[p] = block_at(j, r, p, 1) * elem;
		if (j->lies == r + 1 && !p && u->send[p])
			u->send[p] -= elem;
		if ((own ? u->recv[p] : u->send[p]) > u->call.bytes)
			u->call.bytes = own ? u->recv[p] : u->send[p];
	}
}

static inline void launch(const struct job *j, int r)
{
	struct cvy_gpu_uneven uneven = {};
	struct cvy_gpu_call &call = uneven.call;

	call.send = ranks[r].send + pad_at(j, r) + send_shift(j, r);
	call.recv = recv_at(j, r);
	call.bytes = j->count * elem_of(j->dtype);
	call.kind = j->kind;
	call.packet = j->packet;
	call.dtype = j->dtype;
	call.redop = j->redop;
	call.root = j->root;
	call.size = j->grown && r < n - 1 ? n - 1 : n;
	call.lanes = j->lanes;
	call.threads = j->threads;
	call.rows = j->rows;
	call.in_place = in_place_on(j, r) && !cvy_gpu_is_uneven(j->kind);
	call.rank = r;
	if (cvy_gpu_is_uneven(j->kind))
		fill_blocks(j, r, &uneven);
	cvy_gpu_derive(&call);
	call.pulls = j->registered != 0;
	call.levels = width && cvy_gpu_can_levels(&call);
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

/* Operations that ranks of @left have completed: the fewest, and the most. */
static inline void how_far(uint32_t left, uint64_t *least, uint64_t *most)
{
	for (int r = 0; r < n; r++) {
		if (!(left >> r & 1))
			continue;
		*most = finished(r) > *most ? finished(r) : *most;
		*least = finished(r) < *least ? finished(r) : *least;
	}
}

static inline void launch_admit(int r, uint32_t admits, int joins)
{
	struct cvy_gpu_call call = {};

	call.kind = CVY_GPU_ADMIT;
	call.root = -1;
	call.rank = r;
	call.size = n;
	call.lanes = call.rows = call.steps = 1;
	call.threads = 32;
	call.admits = admits;
	call.admit_epoch = epoch;
	call.joins = joins;
	CUDA(cudaSetDevice(ranks[r].device));
	OK(ranks[r].gpu, ops->launch(ranks[r].gpu, &call, (struct CUstream_st *)ranks[r].stream));
}

static inline void place_buffers(int r, int registered)
{
	ranks[r].send = registered ? ranks[r].window + CVY_GPU_WINDOW_FIRST : ranks[r].plain[0];
	ranks[r].recv = registered ? ranks[r].send + MOST : ranks[r].plain[1];
}

static inline void open_rank(int r)
{
	struct cvy_gpu_args args = { ranks[r].device, 1000, COVEY_DEVICE_MEMORY_VMM, 0 };
	char why[240];

	if (ops->open(&args, &ranks[r].gpu, why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		exit(1);
	}
	OK(ranks[r].gpu, ops->mapped(ranks[r].gpu)
				 ->window(ranks[r].gpu, CVY_GPU_WINDOW_FIRST + 2 * MOST, (void **)&ranks[r].window,
					  &ranks[r].window_fd));
}

static inline void open_all(void)
{
	int devices;

	CUDA(cudaGetDeviceCount(&devices));
	for (int r = 0; r < n; r++) {
		ranks[r].device = r % devices;
		open_rank(r);
		printf("# rank %d: %s\n", r, ops->describe(ranks[r].gpu));
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking));
		CUDA(cudaMalloc(&ranks[r].plain[0], MOST));
		CUDA(cudaMalloc(&ranks[r].plain[1], MOST));
		place_buffers(r, 0);
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
