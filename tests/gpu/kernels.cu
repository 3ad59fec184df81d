/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels alone: ranks of one process, one per device (or several on one), connected by hand. Every operation
 * against an oracle on the host, with canaries around the results; then view changes made by hand: a rank that does
 * not come is removed, before, between and after what others had of it. `--time`: what an operation takes in a graph.
 */
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

static int n, failures, checks;
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

static void connect_pair(int from, int to, int generation)
{
	int fd;

	OK(ranks[to].gpu, ops->chunk(ranks[to].gpu, from, generation, &fd));
	OK(ranks[from].gpu, ops->attach(ranks[from].gpu, to, generation, fd));
	close(fd);
	ranks[to].in = (ranks[to].in & ~(3ull << (2 * from))) | (uint64_t)generation << (2 * from);
	ranks[from].outgen = (ranks[from].outgen & ~(3ull << (2 * to))) | (uint64_t)generation << (2 * to);
}

static void freeze(int r)
{
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	do
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 0));
	while (c.finished + c.stopped != c.entered);
}

static uint64_t finished(int r)
{
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 0));
	return c.finished / CVY_GPU_QUANTA;
}

/* The next view of @members at @base, for rank @r. */
static void thaw(int r, uint32_t members, uint64_t base, uint32_t gone)
{
	struct cvy_gpu_counters c;
	struct cvy_gpu_verdict v = { epoch, 0, base, gone, 0 };

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, members, 0, ranks[r].in, ranks[r].outgen };
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, NULL, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

static size_t elem_of(int dtype)
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

/* Small whole numbers: sums and products of all ranks are exact in every type. */
static int number(int rank, size_t i)
{
	return (int)((i * 7 + (size_t)rank * 3 + i / 1000) % 4) + 1;
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
	case COVEY_UINT32:
		((int32_t *)at)[i] = (int32_t)v;
		break;
	case COVEY_INT64:
	case COVEY_UINT64:
		((int64_t *)at)[i] = (int64_t)v;
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

static double folded(int redop, uint32_t members, size_t i)
{
	double v = 0;
	int begun = 0, k = 0;

	for (int r = 0; r < n; r++) {
		double x = number(r, i);

		if (!(members >> r & 1))
			continue;
		v = !begun		  ? x
		    : redop == COVEY_PROD ? v * x
		    : redop == COVEY_MAX  ? (x > v ? x : v)
		    : redop == COVEY_MIN  ? (x < v ? x : v)
					  : v + x;
		begun = 1;
		k++;
	}
	return redop == COVEY_AVG ? v / k : v;
}

struct job {
	int kind, packet, dtype, redop, root, lanes, threads, rows, in_place;
	size_t count; /* elements of a block */
	size_t shift; /* bytes that buffers are off alignment */
};

static size_t send_blocks(const struct job *j)
{
	return j->kind == CVY_GPU_ALLTOALL || j->kind == CVY_GPU_REDUCE_SCATTER || j->kind == CVY_GPU_SCATTER
		       ? (size_t)n
		       : 1;
}

static size_t recv_blocks(const struct job *j)
{
	return j->kind == CVY_GPU_ALLTOALL || j->kind == CVY_GPU_ALLGATHER || j->kind == CVY_GPU_GATHER ? (size_t)n : 1;
}

static uint8_t *recv_at(const struct job *j, int r)
{
	return j->in_place ? ranks[r].send + CANARY + j->shift : ranks[r].recv + CANARY + j->shift;
}

static void prepare(const struct job *j, int r)
{
	size_t elem = elem_of(j->dtype), total = send_blocks(j) * j->count;

	for (size_t i = 0; i < total; i++)
		put(ranks[r].host, j->dtype, i, number(r, i));
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemset(ranks[r].recv, 0xc5, MOST));
	CUDA(cudaMemset(ranks[r].send, 0xc5, MOST));
	CUDA(cudaMemcpy(ranks[r].send + CANARY + j->shift, ranks[r].host, total * elem, cudaMemcpyHostToDevice));
	CUDA(cudaDeviceSynchronize());
}

static void launch(const struct job *j, int r)
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

static void expect(const struct job *j, int r, uint32_t members, uint8_t *want)
{
	size_t elem = elem_of(j->dtype), blocks = recv_blocks(j);

	memset(want, 0xc5, j->count * elem * blocks);
	for (size_t b = 0; b < blocks; b++) {
		for (size_t i = 0; i < j->count; i++) {
			double v;

			switch (j->kind) {
			case CVY_GPU_ALLREDUCE:
			case CVY_GPU_ALLREDUCE_TWO_SHOT:
				v = folded(j->redop, members, i);
				break;
			case CVY_GPU_REDUCE:
				if (r != j->root)
					return;
				v = folded(j->redop, members, i);
				break;
			case CVY_GPU_REDUCE_SCATTER:
				v = folded(j->redop, members, (size_t)r * j->count + i);
				break;
			case CVY_GPU_ALLGATHER:
				v = members >> b & 1 ? number((int)b, i) : 0;
				break;
			case CVY_GPU_GATHER:
				if (r != j->root)
					return;
				v = members >> b & 1 ? number((int)b, i) : 0;
				break;
			case CVY_GPU_ALLTOALL:
				v = members >> b & 1 ? number((int)b, (size_t)r * j->count + i) : 0;
				break;
			case CVY_GPU_SCATTER:
				v = number(j->root, (size_t)r * j->count + i);
				break;
			default:
				v = number(j->root, i);
			}
			put(want, j->dtype, b * j->count + i, v);
		}
	}
}

static void compare(const struct job *j, int r, uint32_t members, const char *what)
{
	size_t bytes = j->count * elem_of(j->dtype) * recv_blocks(j), pad = CANARY + j->shift;
	uint8_t *got = ranks[r].out, *want = ranks[r].host;

	checks++;
	if (j->kind == CVY_GPU_BARRIER)
		return;
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemcpy(got, recv_at(j, r) - pad, pad + bytes + CANARY, cudaMemcpyDeviceToHost));
	expect(j, r, members, want);
	if (j->in_place && j->kind == CVY_GPU_REDUCE && r != j->root)
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
	for (size_t i = 0; i < CANARY && !j->in_place; i++) {
		if (got[i] != 0xc5 || got[pad + bytes + i] != 0xc5) {
			fprintf(stderr, "%s: kind %d type %d count %zu rank %d: a canary died\n", what, j->kind,
				j->dtype, j->count, r);
			failures++;
			return;
		}
	}
}

static void synchronise(void)
{
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamSynchronize(ranks[r].stream));
	}
}

static void run(const struct job *j)
{
	for (int r = 0; r < n; r++)
		prepare(j, r);
	for (int r = 0; r < n; r++)
		launch(j, r);
	synchronise();
	for (int r = 0; r < n; r++)
		compare(j, r, mask, "healthy");
}

static void open_all(void)
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

static void healthy(void)
{
	static const size_t counts[] = { 0, 1, 7, 64, 1000, 5000, 60001 };
	static const int types[] = { COVEY_INT8,     COVEY_UINT8,   COVEY_INT16,  COVEY_INT32,
				     COVEY_UINT32,   COVEY_INT64,   COVEY_UINT64, COVEY_FLOAT16,
				     COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_FLOAT64 };
	static const int shapes[][3] = { { 1, 32, 1 }, { 1, 256, 4 }, { 4, 256, 2 }, { 8, 512, 1 }, { 16, 64, 4 } };
	unsigned k = 0;

	for (int kind = 0; kind <= CVY_GPU_BARRIER; kind++) {
		for (size_t ci = 0; ci < 7; ci++) {
			for (size_t ti = 0; ti < 11; ti++, k++) {
				struct job j = {};
				const int *shape = shapes[k % 5];

				if (kind == CVY_GPU_BARRIER && (ti || ci))
					continue;
				j.kind = kind;
				j.packet = k / 3 % 2;
				j.dtype = types[ti];
				j.redop = (int)(k % 5);
				if (j.redop == COVEY_AVG && (elem_of(j.dtype) == 2 && j.dtype != COVEY_INT16))
					j.redop = COVEY_SUM; /* the oracle does not round */
				if (j.redop == COVEY_AVG && (j.dtype == COVEY_FLOAT32 || j.dtype == COVEY_FLOAT64))
					j.redop = n == 2 || n == 4 ? COVEY_AVG : COVEY_SUM;
				j.count = counts[ci];
				j.lanes = shape[0];
				j.threads = shape[1];
				j.rows = shape[2];
				j.shift = k % 7 == 0 ? 3 * elem_of(j.dtype) : 0;
				j.root = kind == CVY_GPU_BROADCAST || kind == CVY_GPU_REDUCE ||
							 kind == CVY_GPU_GATHER || kind == CVY_GPU_SCATTER
						 ? (int)(k % (unsigned)n)
						 : -1;
				j.in_place =
					k % 4 == 3 && (kind == CVY_GPU_ALLREDUCE ||
						       kind == CVY_GPU_ALLREDUCE_TWO_SHOT || kind == CVY_GPU_REDUCE);
				run(&j);
			}
		}
	}
}

/*
 * The last rank does not launch. The others freeze; where @holder, the first has the operation though, as if all but
 * the others' view of the last one's packets were there: tested by a launch of the last rank that pushes to the first only.
 */
static void removed(int kind, size_t count, int packet, int in_place)
{
	uint32_t left = mask & ~(1u << (n - 1));
	struct job j = { kind, packet, COVEY_FLOAT32, COVEY_SUM, -1, 4, 256, 2, in_place, count, 0 };
	uint64_t base = 0;

	if (getenv("VERBOSE"))
		fprintf(stderr, "kind %d packet %d in place %d\n", kind, packet, in_place);
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	for (int r = 0; r < n - 1; r++)
		launch(&j, r);
	usleep(20000);
	for (int r = 0; r < n - 1; r++)
		freeze(r);
	for (int r = 0; r < n - 1; r++)
		base = finished(r) > base ? finished(r) : base;
	epoch++;
	for (int r = 0; r < n - 1; r++)
		thaw(r, left, base, 1u << (n - 1));
	synchronise();
	for (int r = 0; r < n - 1; r++)
		compare(&j, r, left, "one removed");
	/* back again: the last rank counts as new, with the others' counts */
	{
		struct cvy_gpu_counters c;
		struct cvy_gpu_verdict v = { ++epoch, 0, 0, 0, 0 };
		uint64_t fresh;
		int last = n - 1;

		for (int r = 0; r < last; r++)
			freeze(r);
		OK(ranks[0].gpu, ops->counters(ranks[0].gpu, &c, 1));
		fresh = c.finished / CVY_GPU_QUANTA;
		for (int r = 0; r < last; r++) {
			int g = (int)(ranks[r].in >> (2 * last) & 3);

			connect_pair(last, r, (g + 1) % 4);
			g = (int)(ranks[last].in >> (2 * r) & 3);
			connect_pair(r, last, (g + 1) % 4);
		}
		v.base = fresh;
		for (int i = 0; i < CVY_GPU_LANES; i++)
			c.lane[i] = { c.lane[i].count, epoch, mask, 0, ranks[last].in, ranks[last].outgen };
		OK(ranks[last].gpu, ops->words(ranks[last].gpu, c.lane, &fresh, &v));
		OK(ranks[last].gpu, ops->gate(ranks[last].gpu, CVY_GPU_GATE_OPEN(epoch)));
		for (int r = 0; r < last; r++)
			thaw(r, mask, fresh, 0);
	}
	run(&j);
}

static void timed(int kind, size_t bytes, int packet, int lanes, int threads, int rows)
{
	struct job j = { kind, packet, COVEY_FLOAT32, COVEY_SUM, -1, lanes, threads, rows, 0, bytes / 4, 0 };
	cudaGraphExec_t exec[RANKS];
	cudaEvent_t begin, end;
	float best = 1e9f, ms;

	for (int r = 0; r < n; r++) {
		cudaGraph_t graph;

		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal));
		for (int i = 0; i < 100; i++)
			launch(&j, r);
		CUDA(cudaStreamEndCapture(ranks[r].stream, &graph));
		CUDA(cudaGraphInstantiate(&exec[r], graph, 0));
	}
	CUDA(cudaSetDevice(ranks[0].device));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int round = 0; round < 8; round++) {
		for (int r = n - 1; r >= 0; r--) {
			CUDA(cudaSetDevice(ranks[r].device));
			if (!r)
				CUDA(cudaEventRecord(begin, ranks[0].stream));
			CUDA(cudaGraphLaunch(exec[r], ranks[r].stream));
		}
		CUDA(cudaEventRecord(end, ranks[0].stream));
		synchronise();
		CUDA(cudaEventElapsedTime(&ms, begin, end));
		if (round && ms < best)
			best = ms;
	}
	printf("kind %d %9zu B packet %d %3d x %3d x %d: %8.2f us %8.1f GB/s\n", kind, bytes, packet, lanes, threads,
	       rows, best * 10, (double)bytes / (best * 1e-5) / 1e9);
	fflush(stdout);
	for (int r = 0; r < n; r++)
		CUDA(cudaGraphExecDestroy(exec[r]));
}

static void times(void)
{
	timed(CVY_GPU_BARRIER, 0, 0, 1, 32, 1);
	for (int two = 0; two < 2; two++)
		for (int packet = 0; packet < 2; packet++) {
			timed(two, 8, packet, 1, 32, 1);
			timed(two, 256, packet, 1, 32, 1);
			timed(two, 2048, packet, 1, 256, 1);
			timed(two, 8192, packet, 4, 256, 1);
			timed(two, 32768, packet, 16, 256, 1);
			timed(two, 131072, packet, 64, 256, 1);
			timed(two, 131072, packet, 32, 256, 2);
			timed(two, 524288, packet, 64, 512, 2);
			timed(two, 524288, packet, 128, 256, 2);
			timed(two, 2097152, packet, 64, 512, 4);
			timed(two, 2097152, packet, 128, 512, 2);
			timed(two, 2097152, packet, 128, 512, 4);
			timed(two, 8388608 - 256, packet, 128, 512, 4);
		}
	timed(CVY_GPU_ALLGATHER, 8192, 0, 4, 256, 1);
	timed(CVY_GPU_ALLGATHER, 1 << 20, 1, 128, 512, 2);
	timed(CVY_GPU_ALLTOALL, 128, 0, 1, 32, 1);
	timed(CVY_GPU_ALLTOALL, 1 << 20, 1, 128, 512, 2);
	timed(CVY_GPU_BROADCAST, 8192, 0, 4, 256, 1);
}

int main(int argc, char **argv)
{
	int time = 0;

	n = 2;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--time"))
			time = 1;
		else
			n = atoi(argv[i]);
	}
	if (cudaGetDeviceCount(&checks) != cudaSuccess || !checks) {
		printf("skipped: no device\n");
		return 77;
	}
	checks = 0;
	if (n < 2 || n > RANKS) {
		fprintf(stderr, "kernels [RANKS] [--time]: 2 to %d ranks\n", RANKS);
		return 2;
	}
	open_all();
	healthy();
	printf("healthy: %d checks, %d failed\n", checks, failures);
	fflush(stdout);
	for (int kind = 0; kind <= CVY_GPU_ALLTOALL; kind++)
		for (int packet = 0; packet < 2; packet++)
			for (int in_place = 0; in_place < 2; in_place++)
				if (!in_place || kind == CVY_GPU_ALLREDUCE)
					removed(kind, 1500, packet, in_place);
	printf("removed: %d checks, %d failed\n", checks, failures);
	fflush(stdout);
	if (time)
		times();
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	printf("%d checks, %d failed\n", checks, failures);
	return failures != 0;
}
