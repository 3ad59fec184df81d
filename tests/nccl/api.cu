/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of NCCL: it calls nothing of covey. The parent starts the ranks; an id goes from rank to rank in a file, and no
 * environment is needed. Small integers in every type, so that each result is exact and compared byte by byte, with
 * bytes before and behind it that must stay.
 *
 *	nccl-api PLAN RANKS
 *
 *	calls	every operation with every type and reduction, groups, streams, a graph, wrong arguments
 *	life	splits, shrinks, growth, an init that is not waited for
 *	kill, shrink	a rank dies under operations; the others end, and go on by a new id, or by a shrink
 *	wait, sum	a rank dies that the others receive from, or sum with
 *	idle	a rank dies while nothing is under way
 *	split	a rank dies that the others wait for in a split
 *	refused	a rank dies after an operation that another is refused
 *	one	all ranks in one process
 *	adopt	ids of a rank that got its store by an id
 *	order	two communicators, destroyed in another order on each rank
 *	untouched	what a calling thread has is the same afterwards, and captures of others stay valid
 */
#include <cuda_runtime.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_calls.h"
#include "pure.h"

#define RANKS 8
#define EDGE 64 /* bytes before and behind an output */
#define PAD 0x5a
#define MOST 5000   /* elements */
#define ID_MS 30000 /* less than the end of a communicator waits for others */
#define ODD 4711    /* no number of an error */

extern char **environ;

static int rank, size, own_device, failures;
static long checks;
static const char *directory;
static ncclComm_t comm;
static cudaStream_t stream;
static uint8_t *in, *out; /* on the device */
static size_t room;	  /* bytes of each */

#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__, #call, \
				cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)

/* A call must return @want. */
static int gives(int got, int want, const char *call, int line)
{
	checks++;
	if (got == want)
		return 1;
	if (failures++ < 10)
		fprintf(stderr, "rank %d, line %d: %s: %d, not %d: %s\n", rank, line, call, got, want,
			ncclGetLastError(NULL));
	return 0;
}

#define GIVES(want, call) gives((int)(call), (int)(want), #call, __LINE__)
#define OK(call) \
	do { \
		if (!GIVES(ncclSuccess, call)) \
			exit(1); \
	} while (0)

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void nap(void)
{
	usleep(200);
}

/* ---- ids in files ---- */

static void id_path(char *path, size_t bytes, const char *name)
{
	snprintf(path, bytes, "%s/%s", directory, name);
}

static void id_tell(const char *name, const void *bytes, size_t n)
{
	char path[512], hidden[520];
	FILE *f;

	id_path(path, sizeof(path), name);
	snprintf(hidden, sizeof(hidden), "%s.new", path);
	f = fopen(hidden, "w");
	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) || rename(hidden, path)) {
		perror(path);
		exit(1);
	}
}

static int id_hear(const char *name, void *bytes, size_t n)
{
	uint64_t until = now_us() + ID_MS * 1000u;
	char path[512];

	id_path(path, sizeof(path), name);
	while (now_us() < until) {
		FILE *f = fopen(path, "r");

		if (f) {
			int whole = fread(bytes, 1, n, f) == n;

			fclose(f);
			return whole;
		}
		nap();
	}
	fprintf(stderr, "rank %d: no %s\n", rank, path);
	exit(1);
}

static ncclUniqueId id_of(const char *name, int root)
{
	ncclUniqueId id;

	if (rank == root) {
		OK(ncclGetUniqueId(&id));
		id_tell(name, &id, sizeof(id));
	} else {
		id_hear(name, &id, sizeof(id));
	}
	return id;
}

/* Waits until all of @ranks are here; their files may be of dead processes. */
static void meet(const char *name, unsigned ranks)
{
	char file[64];
	int unused;

	snprintf(file, sizeof(file), "%s-%d", name, rank);
	id_tell(file, &rank, sizeof(rank));
	for (int r = 0; r < RANKS; r++) {
		snprintf(file, sizeof(file), "%s-%d", name, r);
		if (ranks >> r & 1)
			id_hear(file, &unused, sizeof(unused));
	}
}

/* ---- elements ---- */

static const int elements[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 }; /* bytes, by type */

/* The value of a code without a sign. */
static double float8_value(int type, int code)
{
	const int bits = type == ncclFloat8e4m3 ? 3 : 2, bias = type == ncclFloat8e4m3 ? 7 : 15;
	const int exponent = code >> bits, fraction = code & ((1 << bits) - 1);

	return exponent ? ldexp((1 << bits) + fraction, exponent - bias - bits) : ldexp(fraction, 1 - bias - bits);
}

/* The nearest code; of two that are as near, the even one. */
static uint8_t float8_code(int type, double v)
{
	int best = 0;

	for (int code = 1; code < (type == ncclFloat8e4m3 ? 0x7f : 0x7c); code++) {
		double d = fabs(float8_value(type, code) - v) - fabs(float8_value(type, best) - v);

		if (d < 0 || (d == 0 && code % 2 == 0))
			best = code;
	}
	return (uint8_t)best;
}

/* @v: an integer of few bits. */
static void put(int type, void *at, int64_t v)
{
	float f = (float)v;
	double d = (double)v;
	uint32_t u;
	uint16_t h;

	memcpy(&u, &f, 4);
	switch (type) {
	case ncclFloat16:
		h = (uint16_t)(v ? (u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10) | (u >> 13 & 0x3ff) : 0);
		memcpy(at, &h, 2);
		break;
	case ncclBfloat16:
		h = (uint16_t)(u >> 16);
		memcpy(at, &h, 2);
		break;
	case ncclFloat32:
		memcpy(at, &f, 4);
		break;
	case ncclFloat64:
		memcpy(at, &d, 8);
		break;
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
		*(uint8_t *)at = float8_code(type, d);
		break;
	default:
		memcpy(at, &v, (size_t)elements[type]);
	}
}

/* Element @i of @from: a multiple of the number of ranks, so that an average is whole. */
static int64_t input(int from, size_t i, int n)
{
	return (int64_t)n * (int64_t)((size_t)(2 * from) + i) % (3 * n) + n;
}

/* Whether the type has all inputs: 9 has four bits. */
static int exact(int type)
{
	return type != ncclFloat8e5m2 || size != 3;
}

static int64_t fold(size_t i, int op, int n)
{
	int64_t v = input(0, i, n);

	for (int r = 1; r < n; r++) {
		int64_t w = input(r, i, n);

		v = op == ncclProd ? v * w : op == ncclMax ? (v > w ? v : w) : op == ncclMin ? (v < w ? v : w) : v + w;
	}
	return op == ncclAvg ? v / n : v;
}

/* ---- buffers ---- */

static uint8_t *host;

static void fill_in(int type, size_t count, int n, int me)
{
	for (size_t i = 0; i < count; i++)
		put(type, host + i * (size_t)elements[type], input(me, i, n));
	CUDA(cudaMemcpyAsync(in, host, count * (size_t)elements[type], cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
}

static void clear_out(void)
{
	memset(host, PAD, room);
	CUDA(cudaMemcpyAsync(out, host, room, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
}

static uint8_t *to(void)
{
	return out + EDGE;
}

/* Elements that out must have: @value gives each; with @n 0 nothing was written. */
static void compare(const char *what, int type, int op, size_t n, int64_t (*value)(size_t i, void *ctx), void *ctx)
{
	size_t width = (size_t)elements[type];
	uint8_t want[8];

	CUDA(cudaMemcpyAsync(host, out, room, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	checks++;
	for (size_t at = 0; at < room;) {
		size_t i = (at - EDGE) / width;
		int inside = at >= EDGE && i < n;
		size_t step = inside ? width : 1;

		memset(want, PAD, sizeof(want));
		if (inside)
			put(type, want, value(i, ctx));
		if (memcmp(host + at, want, step)) {
			if (failures++ < 10)
				fprintf(stderr,
					"rank %d of %d: %s, type %d, op %d: byte %zu (element %zu) is %02x, not %02x\n",
					rank, size, what, type, op, at, i, host[at], want[0]);
			return;
		}
		at += step;
	}
}

/* ---- what collectives give ---- */

struct shape {
	int op, n, me, root;
	size_t count;
};

static int64_t folded(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return fold(i, s->op, s->n);
}

static int64_t own_block(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return fold(s->count * (size_t)s->me + i, s->op, s->n);
}

static int64_t of_root(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return input(s->root, i, s->n);
}

static int64_t gathered(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return input((int)(i / s->count), i % s->count, s->n);
}

static int64_t exchanged(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return input((int)(i / s->count), s->count * (size_t)s->me + i % s->count, s->n);
}

static int64_t scattered(size_t i, void *ctx)
{
	struct shape *s = (struct shape *)ctx;

	return input(s->root, s->count * (size_t)s->me + i, s->n);
}

static void reductions(int type, size_t count)
{
	for (int op = ncclSum; op <= ncclAvg; op++) {
		struct shape s = { op, size, rank, (type + op) % size, count };

		if (type > ncclBfloat16 && op == ncclProd && size > 2) /* beyond the largest of an 8-bit float */
			continue;
		fill_in(type, count, size, rank);
		clear_out();
		OK(ncclAllReduce(in, to(), count, (ncclDataType_t)type, (ncclRedOp_t)op, comm, stream));
		compare("allreduce", type, op, count, folded, &s);
		clear_out();
		OK(ncclReduce(in, rank == s.root ? to() : NULL, count, (ncclDataType_t)type, (ncclRedOp_t)op, s.root,
			      comm, stream));
		compare("reduce", type, op, rank == s.root ? count : 0, folded, &s);
		fill_in(type, count * (size_t)size, size, rank);
		clear_out();
		OK(ncclReduceScatter(in, to(), count, (ncclDataType_t)type, (ncclRedOp_t)op, comm, stream));
		compare("reduce_scatter", type, op, count, own_block, &s);
	}
}

static void copies(int type, size_t count)
{
	struct shape s = { 0, size, rank, type % size, count };
	ncclDataType_t t = (ncclDataType_t)type;

	fill_in(type, count * (size_t)size, size, rank);
	clear_out();
	OK(ncclBroadcast(in, to(), count, t, s.root, comm, stream));
	compare("broadcast", type, 0, count, of_root, &s);
	clear_out();
	OK(ncclAllGather(in, to(), count, t, comm, stream));
	compare("allgather", type, 0, count * (size_t)size, gathered, &s);
	clear_out();
	OK(ncclAlltoAll(in, to(), count, t, comm, stream));
	compare("alltoall", type, 0, count * (size_t)size, exchanged, &s);
	clear_out();
	OK(ncclGather(in, rank == s.root ? to() : NULL, count, t, s.root, comm, stream));
	compare("gather", type, 0, rank == s.root ? count * (size_t)size : 0, gathered, &s);
	clear_out();
	OK(ncclScatter(rank == s.root ? in : NULL, to(), count, t, s.root, comm, stream));
	compare("scatter", type, 0, count, scattered, &s);
}

static void in_place(void)
{
	struct shape s = { ncclSum, size, rank, size - 1, 33 };
	size_t block = 33 * 4;

	fill_in(ncclFloat32, 33, size, rank);
	clear_out();
	CUDA(cudaMemcpyAsync(to(), in, block, cudaMemcpyDeviceToDevice, stream));
	OK(ncclAllReduce(to(), to(), 33, ncclFloat32, ncclSum, comm, stream));
	compare("allreduce in place", ncclFloat32, 0, 33, folded, &s);
	clear_out();
	CUDA(cudaMemcpyAsync(to(), in, block, cudaMemcpyDeviceToDevice, stream));
	OK(ncclBcast(to(), 33, ncclFloat32, s.root, comm, stream));
	compare("bcast", ncclFloat32, 0, 33, of_root, &s);
	clear_out();
	CUDA(cudaMemcpyAsync(to() + (size_t)rank * block, in, block, cudaMemcpyDeviceToDevice, stream));
	OK(ncclAllGather(to() + (size_t)rank * block, to(), 33, ncclFloat32, comm, stream));
	compare("allgather in place", ncclFloat32, 0, 33 * (size_t)size, gathered, &s);
	fill_in(ncclFloat32, 33 * (size_t)size, size, rank);
	clear_out();
	CUDA(cudaMemcpyAsync(to(), in, block * (size_t)size, cudaMemcpyDeviceToDevice, stream));
	OK(ncclAlltoAll(to(), to(), 33, ncclFloat32, comm, stream));
	compare("alltoall in place", ncclFloat32, 0, 33 * (size_t)size, exchanged, &s);
}

/* ---- messages and groups ---- */

/* Every rank sends its block for each peer: an alltoall by messages, each in @parts. */
static void exchange(int parts, cudaStream_t *streams, int n_streams)
{
	struct shape s = { 0, size, rank, 0, (size_t)parts * 3 };
	size_t block = s.count * 4;
	int nth = 0;

	fill_in(ncclInt32, s.count * (size_t)size, size, rank);
	clear_out();
	OK(ncclGroupStart());
	for (int r = 0; r < size; r++) {
		for (int p = 0; p < parts; p++) {
			size_t at = (size_t)r * block + (size_t)p * 12;

			OK(ncclSend(in + at, 3, ncclInt32, r, comm, streams[nth++ % n_streams]));
			OK(ncclRecv(to() + at, 3, ncclInt32, r, comm, streams[nth++ % n_streams]));
		}
	}
	OK(ncclGroupEnd());
	for (int i = 0; i < n_streams; i++)
		CUDA(cudaStreamSynchronize(streams[i]));
	compare("messages", ncclInt32, parts, s.count * (size_t)size, exchanged, &s);
}

static void ring(void)
{
	struct shape s = { 0, size, rank, (rank + size - 1) % size, 7 };

	fill_in(ncclFloat64, 7, size, rank);
	clear_out();
	if (rank % 2) { /* one after the other, on one stream, without a group */
		OK(ncclSend(in, 7, ncclFloat64, (rank + 1) % size, comm, stream));
		OK(ncclRecv(to(), 7, ncclFloat64, s.root, comm, stream));
	} else {
		OK(ncclRecv(to(), 7, ncclFloat64, s.root, comm, stream));
		OK(ncclSend(in, 7, ncclFloat64, (rank + 1) % size, comm, stream));
	}
	compare("ring", ncclFloat64, 0, 7, of_root, &s);
}

/* Collectives of one group on two streams, with messages between them that others call in another order. */
static void mixed(cudaStream_t other)
{
	struct shape s = { ncclSum, size, rank, (rank + size - 1) % size, 50 };
	uint8_t *far_in = in + room / 2, *far_out = to() + 400;

	fill_in(ncclInt64, 50, size, rank);
	CUDA(cudaMemcpyAsync(far_in, in, 400, cudaMemcpyDeviceToDevice, stream));
	clear_out();
	OK(ncclGroupStart());
	if (rank % 2)
		OK(ncclAllReduce(in, to(), 50, ncclInt64, ncclSum, comm, stream));
	OK(ncclSend(far_in, 50, ncclInt64, (rank + 1) % size, comm, other));
	OK(ncclGroupStart());
	OK(ncclRecv(far_out, 50, ncclInt64, s.root, comm, other));
	OK(ncclGroupEnd());
	if (rank % 2 == 0)
		OK(ncclAllReduce(in, to(), 50, ncclInt64, ncclSum, comm, stream));
	OK(ncclGroupEnd());
	CUDA(cudaStreamSynchronize(other));
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemsetAsync(far_out, PAD, 400, stream)); /* it is compared on its own below */
	compare("allreduce beside messages", ncclInt64, 0, 50, folded, &s);
}

/* One operation after the other on streams of which each ends before the next. */
static void streams_in_turn(void)
{
	struct shape s = { ncclSum, size, rank, 0, MOST };

	fill_in(ncclInt32, MOST, size, rank);
	clear_out();
	for (int i = 0; i < 4; i++) {
		cudaStream_t one;

		CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
		OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, one));
		if (i % 2)
			CUDA(cudaStreamSynchronize(one));
		CUDA(cudaStreamDestroy(one));
	}
	OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, stream));
	compare("streams in turn", ncclInt32, 0, MOST, folded, &s);
}

static void sleep_a_little(void *)
{
	usleep(20000);
}

/* Rank 0 is late on one stream; its next operation, on another stream, must wait, or the two would be taken for each other. */
static void one_stream_late(cudaStream_t other)
{
	struct shape s = { ncclSum, size, rank, 0, 40 };

	fill_in(ncclInt32, 40, size, rank);
	clear_out();
	if (!rank)
		CUDA(cudaLaunchHostFunc(other, sleep_a_little, NULL));
	OK(ncclAllReduce(in, in + 400, 40, ncclInt32, ncclProd, comm, other));
	OK(ncclAllReduce(in, to(), 40, ncclInt32, ncclSum, comm, stream));
	compare("after a late stream", ncclInt32, 0, 40, folded, &s);
}

/* Messages of one group on two streams: what they send, and what follows them, is in order with both. */
static void two_streams_late(cudaStream_t other)
{
	struct shape s = { 0, size, rank, (rank + size - 1) % size, 20 };
	int next = (rank + 1) % size;
	uint8_t *late = in + room / 2, *first = in + room / 4;

	fill_in(ncclInt32, 20, size, rank);
	clear_out();
	CUDA(cudaMemset(late, 0, 80));
	CUDA(cudaMemset(first, 0, 80));
	CUDA(cudaLaunchHostFunc(other, sleep_a_little, NULL));
	CUDA(cudaMemcpyAsync(late, in, 80, cudaMemcpyDeviceToDevice, other));
	OK(ncclGroupStart());
	OK(ncclSend(in, 20, ncclInt32, next, comm, stream));
	OK(ncclRecv(first, 20, ncclInt32, s.root, comm, stream));
	OK(ncclSend(late, 20, ncclInt32, next, comm, other));
	OK(ncclRecv(late + 80, 20, ncclInt32, s.root, comm, other));
	OK(ncclGroupEnd());
	CUDA(cudaMemcpyAsync(to(), late + 80, 80, cudaMemcpyDeviceToDevice, other));
	CUDA(cudaStreamSynchronize(other));
	compare("messages on two streams", ncclInt32, 0, 20, of_root, &s);
}

static void captured(void)
{
	struct shape s = { ncclSum, size, rank, 0, 40 };
	cudaGraphExec_t exec;
	cudaGraph_t graph;

	fill_in(ncclFloat32, 40, size, rank);
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 3; i++) {
		clear_out();
		CUDA(cudaGraphLaunch(exec, stream));
		compare("a graph", ncclFloat32, i, 40, folded, &s);
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	clear_out();
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	compare("after a graph", ncclFloat32, 0, 40, folded, &s);
}

/* ---- operators ---- */

static int64_t tripled(size_t i, void *ctx)
{
	return 3 * folded(i, ctx);
}

static int64_t tripled_block(size_t i, void *ctx)
{
	return 3 * own_block(i, ctx);
}

static void scaled(int type, int on_device)
{
	struct shape s = { ncclSum, size, rank, 1 % size, 20 };
	ncclDataType_t t = (ncclDataType_t)type;
	ncclRedOp_t op;
	uint8_t three[8] = { 0 };
	void *at = three;

	put(type, three, 3);
	if (on_device) {
		CUDA(cudaMalloc(&at, 8));
		CUDA(cudaMemcpy(at, three, 8, cudaMemcpyHostToDevice));
	}
	OK(ncclRedOpCreatePreMulSum(&op, at, t, on_device ? ncclScalarDevice : ncclScalarHostImmediate, comm));
	memset(three, 0, sizeof(three)); /* it was read, or is not read at all */
	fill_in(type, 20 * (size_t)size, size, rank);
	clear_out();
	OK(ncclAllReduce(in, to(), 20, t, op, comm, stream));
	compare("scaled allreduce", type, op, 20, tripled, &s);
	clear_out();
	OK(ncclReduce(in, to(), 20, t, op, s.root, comm, stream));
	compare("scaled reduce", type, op, rank == s.root ? 20 : 0, tripled, &s);
	clear_out();
	OK(ncclReduceScatter(in, to(), 20, t, op, comm, stream));
	compare("scaled reduce_scatter", type, op, 20, tripled_block, &s);
	GIVES(ncclInvalidArgument,
	      ncclAllReduce(in, to(), 20, type == ncclInt8 ? ncclUint8 : ncclInt8, op, comm, stream));
	OK(ncclRedOpDestroy(op, comm));
	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 20, t, op, comm, stream));
	GIVES(ncclInvalidArgument, ncclRedOpDestroy(op, comm));
	if (on_device)
		CUDA(cudaFree(at));
}

/* The second operator has the number of the first, which was destroyed before the group ended. */
static void two_operators(void)
{
	struct shape s = { ncclSum, size, rank, 0, 20 };
	ncclRedOp_t first, second;
	int32_t three = 3, five = 5;

	fill_in(ncclInt32, 20, size, rank);
	clear_out();
	OK(ncclRedOpCreatePreMulSum(&first, &three, ncclInt32, ncclScalarHostImmediate, comm));
	OK(ncclGroupStart());
	OK(ncclAllReduce(in, to(), 20, ncclInt32, first, comm, stream));
	OK(ncclRedOpDestroy(first, comm));
	OK(ncclRedOpCreatePreMulSum(&second, &five, ncclInt32, ncclScalarHostImmediate, comm));
	OK(ncclAllReduce(in, in + 400, 20, ncclInt32, second, comm, stream));
	OK(ncclGroupEnd());
	compare("two operators in a group", ncclInt32, 0, 20, tripled, &s);
	OK(ncclRedOpDestroy(second, comm));
}

/* ---- refusals ---- */

static void wrong(void)
{
	ncclResult_t unused;
	int n;

	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 1, (ncclDataType_t)12, ncclSum, comm, stream));
	GIVES(1, strstr(ncclGetLastError(comm), "12 is no type") != NULL);
	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 1, ncclInt8, (ncclRedOp_t)9, comm, stream));
	GIVES(ncclInvalidArgument, ncclBroadcast(in, to(), 1, ncclInt8, size, comm, stream));
	GIVES(ncclInvalidArgument, ncclSend(in, 1, ncclInt8, -1, comm, stream));
	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, NULL, stream));
	GIVES(ncclInvalidArgument, ncclAllReduce(in, in + 1, 4, ncclInt32, ncclSum, comm, stream));
	GIVES(ncclInvalidArgument, ncclCommCount(NULL, &n));
	GIVES(ncclInvalidArgument, ncclCommGetAsyncError(comm, NULL));
	GIVES(ncclInvalidUsage, ncclGroupEnd());
	GIVES(ncclInvalidUsage, ncclSignal(0, 0, 0, 0, comm, stream));
	GIVES(1, strstr(ncclGetLastError(comm), "ncclSignal") != NULL);
	OK(ncclGroupStart());
	GIVES(ncclInvalidArgument, ncclSend(in, 1, ncclInt8, size, comm, stream));
	GIVES(ncclInvalidArgument, ncclGroupEnd());
	OK(ncclCommGetAsyncError(comm, &unused));
	GIVES(ncclSuccess, unused); /* a refused call leaves it whole */
}

static void questions(void)
{
	void *handle = NULL, *memory = NULL;
	ncclWindow_t window = (ncclWindow_t)1;
	int n = -1, r = -1, version = 0;

	OK(ncclCommCount(comm, &n));
	OK(ncclCommUserRank(comm, &r));
	GIVES(size, n);
	GIVES(rank, r);
	GIVES(size, ncclTeamWorld(comm).nRanks);
	GIVES(rank, ncclTeamWorld(comm).rank);
	GIVES(1, ncclTeamLsa(comm).nRanks);
	OK(ncclGetVersion(&version));
	GIVES(CVY_NCCL_VERSION, version);
	OK(ncclMemAlloc(&memory, 4096));
	OK(ncclCommRegister(comm, memory, 4096, &handle));
	OK(ncclCommWindowRegister(comm, memory, 4096, &window, 0));
	OK(ncclCommWindowDeregister(comm, window));
	OK(ncclCommDeregister(comm, handle));
	OK(ncclMemFree(memory));
}

/* The end of a communicator waits for what is under way. */
static void destroyed_under_way(void)
{
	struct shape s = { ncclSum, size, rank, 0, 40 };

	fill_in(ncclInt32, 40, size, rank);
	clear_out();
	if (rank == size - 1)
		CUDA(cudaLaunchHostFunc(stream, sleep_a_little, NULL));
	OK(ncclAllReduce(in, to(), 40, ncclInt32, ncclSum, comm, stream));
	OK(ncclCommDestroy(comm));
	compare("a destroyed communicator", ncclInt32, 0, 40, folded, &s);
}

/* ---- other threads ---- */

static volatile int watching;

/* As a watchdog: it asks all the time. */
static void *watch(void *)
{
	ncclResult_t state;

	while (__atomic_load_n(&watching, __ATOMIC_ACQUIRE)) {
		if (ncclCommGetAsyncError(comm, &state) || state)
			return (void *)1;
		nap();
	}
	return NULL;
}

static void *abort_soon(void *c)
{
	usleep(20000);
	return (void *)(intptr_t)ncclCommAbort((ncclComm_t)c);
}

/* ---- plans ---- */

static void plan_calls(void)
{
	static const size_t counts[] = { 1, 37, MOST / 4 };
	cudaStream_t streams[2] = { stream, NULL };
	pthread_t watchdog;
	void *saw = NULL;

	CUDA(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	watching = 1;
	pthread_create(&watchdog, NULL, watch, NULL);
	questions();
	for (int type = 0; type < ncclNumTypes; type++) {
		copies(type, counts[type % 3]);
		if (exact(type))
			reductions(type, counts[(type + 1) % 3]);
	}
	in_place();
	exchange(1, streams, 1);
	exchange(2, streams, 2);
	exchange(140 / size, streams, 1); /* more than one launch takes */
	if (size > 1)
		ring();
	mixed(streams[1]);
	streams_in_turn();
	one_stream_late(streams[1]);
	two_streams_late(streams[1]);
	captured();
	for (int type = 0; type < ncclNumTypes; type++)
		if (exact(type))
			scaled(type, type % 2);
	two_operators();
	wrong();
	OK(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, comm, stream));
	__atomic_store_n(&watching, 0, __ATOMIC_RELEASE);
	pthread_join(watchdog, &saw);
	GIVES(1, saw == NULL);
	destroyed_under_way();
}

/* A sum over @c of @n ranks, of which this is @me. */
static void sum_of(ncclComm_t c, int n, int me, const char *what)
{
	struct shape s = { ncclSum, n, me, 0, 10 };

	fill_in(ncclInt32, 10, n, me);
	clear_out();
	OK(ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, c, stream));
	compare(what, ncclInt32, n, 10, folded, &s);
}

static void await(ncclComm_t c, int want, const char *what)
{
	ncclResult_t state = ncclInProgress;
	uint64_t until = now_us() + ID_MS * 1000u;

	while (state == ncclInProgress && now_us() < until) {
		OK(ncclCommGetAsyncError(c, &state));
		nap();
	}
	gives((int)state, want, what, __LINE__);
}

static ncclConfig_t config_of(int blocking)
{
	ncclConfig_t c;

	memset(&c, 0, sizeof(c));
	c.size = sizeof(c);
	c.magic = CVY_NCCL_MAGIC;
	c.version = CVY_NCCL_VERSION;
	c.blocking = blocking;
	return c;
}

static void splits(void)
{
	ncclConfig_t later = config_of(0);
	ncclComm_t half[2] = { NULL, NULL }, none = (ncclComm_t)1, all = NULL;
	int n, me;

	/* Even and odd ranks, in descending order, twice: the two have different groups. */
	for (int i = 0; i < 2; i++) {
		OK(ncclCommSplit(comm, rank % 2, -rank, &half[i], NULL));
		OK(ncclCommCount(half[i], &n));
		OK(ncclCommUserRank(half[i], &me));
		GIVES((size + 1 - rank % 2) / 2, n);
		GIVES((size - 1 - rank) / 2, me);
		sum_of(half[i], n, me, "a split");
	}
	/* Rank 0 is in none. */
	OK(ncclCommSplit(comm, rank ? 3 : CVY_NCCL_NOCOLOR, 0, &none, NULL));
	GIVES(!rank, none == NULL);
	if (none) {
		sum_of(none, size - 1, rank - 1, "a split without rank 0");
		OK(ncclCommDestroy(none));
	}
	GIVES(ncclInProgress, ncclCommSplit(comm, 0, rank, &all, &later));
	await(all, ncclSuccess, "a split that is not waited for");
	sum_of(all, size, rank, "a split that is not waited for");
	OK(ncclCommDestroy(all));
	for (int i = 0; i < 2; i++)
		OK(ncclCommDestroy(half[i]));
	sum_of(comm, size, rank, "the parent of splits");
}

static void smaller_and_larger(void)
{
	ncclComm_t some = NULL, grown[2] = { NULL, NULL };
	ncclUniqueId id;
	int last = size - 1;

	for (int i = 0; i < 2 && size > 2; i++) { /* twice the same */
		if (rank == last)
			break;
		OK(ncclCommShrink(comm, &last, 1, &some, NULL, 0));
		sum_of(some, size - 1, rank, "a shrink");
		if (!i)
			OK(ncclCommDestroy(some));
	}
	GIVES(ncclInvalidArgument, ncclCommShrink(comm, &rank, 1, &grown[0], NULL, 0));
	if (size < 3)
		return;
	/* The last rank comes back into what was made without it, twice. */
	for (int i = 0; i < 2; i++) {
		char name[16];

		snprintf(name, sizeof(name), "grown-%d", i);
		if (!rank) {
			OK(ncclCommGetUniqueId(some, &id));
			GIVES(ncclInvalidUsage, ncclCommGetUniqueId(some, &id));
			id_tell(name, &id, sizeof(id));
		}
		if (rank == last) {
			id_hear(name, &id, sizeof(id));
			OK(ncclCommGrow(NULL, size, &id, last, &grown[i], NULL));
		} else {
			OK(ncclCommGrow(some, size, rank ? NULL : &id, -1, &grown[i], NULL));
		}
		sum_of(grown[i], size, rank, "a growth");
	}
	for (int i = 0; i < 2; i++)
		OK(ncclCommDestroy(grown[i]));
	if (rank != last)
		OK(ncclCommDestroy(some));
}

static void not_waited_for(void)
{
	ncclConfig_t later = config_of(0), bad = config_of(7);
	ncclUniqueId id = id_of("later", 0), none;
	ncclComm_t c = NULL, split = NULL;
	int n;

	memset(&none, 0, sizeof(none));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&c, size, none, rank));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&c, size, id, size));
	GIVES(ncclInvalidUsage, ncclCommInitRank(&c, 257, id, 0));
	GIVES(ncclInvalidUsage, ncclCommInitRank(&c, 33, id, rank));
	GIVES(ncclInvalidArgument, ncclCommInitRankConfig(&c, size, id, rank, &bad));
	GIVES(1, c == NULL);
	GIVES(ncclInProgress, ncclCommInitRankConfig(&c, size, id, rank, &later));
	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	GIVES(ncclInvalidArgument, ncclCommSplit(c, 0, 0, &split, NULL));
	GIVES(ncclInvalidArgument, ncclCommCount(c, &n));
	await(c, ncclSuccess, "an init that is not waited for");
	sum_of(c, size, rank, "an init that is not waited for");
	OK(ncclCommFinalize(c));
	GIVES(ncclInvalidUsage, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	OK(ncclCommDestroy(c));
}

/* A communicator can be given up at any time while it is made. */
static void given_up(void)
{
	ncclConfig_t later = config_of(0);
	ncclComm_t alone = NULL, split = NULL;
	ncclUniqueId id;

	if (!rank) { /* the others never come */
		OK(ncclGetUniqueId(&id));
		GIVES(ncclInProgress, ncclCommInitRankConfig(&alone, size + 1, id, rank, &later));
		OK(ncclCommAbort(alone));
	}
	for (int i = 0; i < 3; i++) {
		GIVES(ncclInProgress, ncclCommSplit(comm, 0, 0, &split, &later));
		OK(ncclCommAbort(split));
	}
	sum_of(comm, size, rank, "the parent of splits that were given up");
}

/* Operations that others never call, and one thread that waits for them while another aborts. The others live. */
static void aborted(void)
{
	ncclComm_t c = NULL;
	pthread_t thread;
	void *got = (void *)1;

	OK(ncclCommInitRank(&c, size, id_of("aborted", 0), rank));
	if (!rank) {
		OK(ncclRecv(to(), MOST, ncclInt32, 1, c, stream));
		OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, c, stream));
		pthread_create(&thread, NULL, abort_soon, c);
		CUDA(cudaStreamSynchronize(stream));
		pthread_join(thread, &got);
		GIVES(1, got == NULL);
	}
	meet("aborted-done", 1);
	if (rank)
		OK(ncclCommAbort(c));
}

static void revoked(void)
{
	ncclComm_t c = NULL, some = NULL;
	ncclUniqueId id = id_of("revoked", 1 % size);
	int first = 0;

	OK(ncclCommInitRankScalable(&c, size, rank, 1, &id, NULL));
	OK(ncclCommRevoke(c, 0));
	GIVES(ncclInvalidUsage, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	if (rank) {
		OK(ncclCommShrink(c, &first, 1, &some, NULL, 0));
		sum_of(some, size - 1, rank - 1, "a shrink of what was revoked");
		OK(ncclCommDestroy(some));
	}
	OK(ncclCommDestroy(c));
}

static void plan_life(void)
{
	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	splits();
	smaller_and_larger();
	not_waited_for();
	given_up();
	aborted();
	revoked();
	OK(ncclCommDestroy(comm));
}

/* All ranks of @all ask for the same split in one group of calls, on one thread. */
static void split_together(ncclComm_t *all, int n)
{
	ncclComm_t parts[RANKS];
	int count, me;

	OK(ncclGroupStart());
	for (int r = 0; r < n; r++)
		OK(ncclCommSplit(all[r], 0, -r, &parts[r], NULL));
	OK(ncclGroupEnd());
	for (int r = 0; r < n; r++) {
		OK(ncclCommCount(parts[r], &count));
		OK(ncclCommUserRank(parts[r], &me));
		GIVES(n, count);
		GIVES(n - 1 - r, me);
	}
	for (int r = 0; r < n; r++)
		OK(ncclCommDestroy(parts[r]));
}

/* A rank that is refused: those of the same group that have begun to join end at once, and wait for nobody. */
static void refused_together(void)
{
	ncclComm_t some[2] = { NULL, NULL };
	ncclUniqueId id;
	int none[2] = { 0, 1000 };

	GIVES(ncclInvalidArgument, ncclCommInitAll(some, 2, none));
	OK(ncclGetUniqueId(&id));
	OK(ncclGroupStart());
	OK(ncclCommInitRank(&some[0], 2, id, 0));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&some[1], 2, id, 2));
	GIVES(ncclInvalidArgument, ncclGroupEnd());
	GIVES(1, some[0] == NULL && some[1] == NULL);
	/* The same where the group is forgotten. */
	OK(ncclGroupStart());
	OK(ncclCommInitRank(&some[0], 2, id, 0));
	GIVES(ncclInvalidUsage, ncclGroupSimulateEnd(NULL));
	GIVES(1, some[0] == NULL);
}

static void *destroy(void *c)
{
	return (void *)(intptr_t)ncclCommDestroy((ncclComm_t)c);
}

static void *abort_now(void *c)
{
	return (void *)(intptr_t)ncclCommAbort((ncclComm_t)c);
}

/* A communicator that one thread destroys and another aborts: one of them may come too late, and is told so. */
static void ended_twice(void)
{
	static void *(*const ends[])(void *) = { destroy, abort_now };
	ncclComm_t all[2];
	pthread_t threads[4];
	void *got;

	for (int round = 0; round < 20; round++) {
		OK(ncclCommInitAll(all, 2, NULL));
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, ends[(i + round) % 2], all[i / 2]);
		for (int i = 0; i < 4; i++) {
			pthread_join(threads[i], &got);
			if (got)
				GIVES(ncclInvalidArgument, (intptr_t)got);
		}
	}
}

static void *finalize(void *c)
{
	return (void *)(intptr_t)ncclCommFinalize((ncclComm_t)c);
}

/*
 * A rank that waits in ncclCommFinalize() keeps nobody from asking, nor from a revocation, which ends the wait. The others
 * never call what it waits for.
 */
static void revoked_under_way(ncclComm_t *all, cudaStream_t on)
{
	ncclResult_t state;
	pthread_t thread;
	void *got;

	CUDA(cudaSetDevice(0));
	OK(ncclAllReduce(in, in, 1, ncclInt8, ncclSum, all[0], on));
	pthread_create(&thread, NULL, finalize, all[0]);
	usleep(20000);
	OK(ncclCommGetAsyncError(all[0], &state));
	OK(ncclCommRevoke(all[0], 0));
	pthread_join(thread, &got);
	CUDA(cudaStreamSynchronize(on));
}

/* Several ranks in one process and one thread. */
static void plan_one(void)
{
	ncclComm_t all[RANKS];
	cudaStream_t streams[RANKS];
	uint8_t *buffers[RANKS], *outs[RANKS];
	int same[2] = { 1, 1 }, n = size;
	struct shape s = { ncclSum, n, 0, 0, 100 };

	GIVES(ncclInvalidUsage, ncclCommInitAll(all, 2, same));
	OK(ncclCommInitAll(all, n, NULL));
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(r));
		CUDA(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
		CUDA(cudaMalloc((void **)&buffers[r], 4096));
		CUDA(cudaMalloc((void **)&outs[r], room));
		for (size_t i = 0; i < 100; i++)
			put(ncclInt32, host + i * 4, input(r, i, n));
		CUDA(cudaMemcpy(buffers[r], host, 400, cudaMemcpyHostToDevice));
		CUDA(cudaMemset(outs[r], PAD, room));
	}
	OK(ncclGroupStart());
	for (int r = 0; r < n; r++)
		OK(ncclAllReduce(buffers[r], outs[r] + EDGE, 100, ncclInt32, ncclSum, all[r], streams[r]));
	OK(ncclGroupEnd());
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(r));
		CUDA(cudaStreamSynchronize(streams[r]));
		out = outs[r];
		stream = streams[r];
		compare("ranks of one process", ncclInt32, r, 100, folded, &s);
	}
	split_together(all, n);
	refused_together();
	revoked_under_way(all, streams[0]);
	for (int r = 0; r < n; r++)
		OK(ncclCommDestroy(all[r]));
	ended_twice();
}

/* ---- a death ---- */

static void *die(void *unused)
{
	uint64_t now;

	usleep(3000);
	now = now_us();
	id_tell("dead", &now, sizeof(now));
	raise(SIGKILL);
	return unused;
}

/* Operations without end, until the loss is told. Returns how many were launched. */
static int until_lost(uint64_t *told_us)
{
	ncclResult_t state = ncclSuccess;
	int n = 0;

	while (!state && n < 100000) {
		ncclResult_t r = ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, stream);

		if (r)
			GIVES(ncclRemoteError, r);
		else
			n++;
		if (n % 8 == 0) {
			CUDA(cudaStreamSynchronize(stream)); /* nothing hangs */
			OK(ncclCommGetAsyncError(comm, &state));
		}
		if (r)
			OK(ncclCommGetAsyncError(comm, &state));
	}
	*told_us = now_us();
	gives((int)state, ncclRemoteError, "the loss", __LINE__);
	return n;
}

/* What every survivor does after a death of @dead, from then on in a communicator of its own. */
static void survive(int dead, int by_shrink)
{
	int me = rank - (rank > dead), n = size - 1;
	ncclComm_t next = NULL;

	if (by_shrink) {
		OK(ncclCommShrink(comm, &dead, 1, &next, NULL, CVY_NCCL_SHRINK_ABORT));
		CUDA(cudaStreamSynchronize(stream));
		OK(ncclCommAbort(comm));
	} else {
		OK(ncclCommAbort(comm));
		CUDA(cudaStreamSynchronize(stream));
		OK(ncclCommInitRank(&next, n, id_of("survivors", dead ? 0 : 1), me));
	}
	sum_of(next, n, me, "survivors");
	OK(ncclCommDestroy(next));
}

static void killed(int dead, int by_shrink)
{
	uint64_t told, died;
	pthread_t thread;
	int n;

	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	fill_in(ncclInt32, MOST, size, rank);
	if (rank == dead)
		pthread_create(&thread, NULL, die, NULL);
	n = until_lost(&told);
	if (rank == dead)
		pause();
	GIVES(ncclRemoteError, ncclAllReduce(in, to(), 1, ncclInt32, ncclSum, comm, stream));
	id_hear("dead", &died, sizeof(died));
	printf("rank %d: rank %d was lost after %d operations, told %.1f ms after its death\n", rank, dead, n,
	       (double)(told - died) / 1000);
	survive(dead, by_shrink);
}

static void plan_kill(void)
{
	killed(1, 0);
}

static void plan_shrink(void)
{
	killed(0, 1);
}

/* A receive from a rank that dies, or a sum with it: it ends, and then the loss is told at the first question. */
static void waited(int sum)
{
	ncclResult_t state, r;
	int dead = size - 1;

	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	meet("waiting", (1u << size) - 1);
	if (rank == dead)
		raise(SIGKILL);
	r = sum ? ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream)
		: ncclRecv(to(), 10, ncclInt32, dead, comm, stream);
	if (r) /* it was known at the call */
		GIVES(ncclRemoteError, r);
	CUDA(cudaStreamSynchronize(stream));
	OK(ncclCommGetAsyncError(comm, &state));
	GIVES(ncclRemoteError, state);
	OK(ncclCommDestroy(comm));
}

static void plan_wait(void)
{
	waited(0);
}

static void plan_sum(void)
{
	waited(1);
}

/* A death while nothing is under way: how soon it is told. */
static void plan_idle(void)
{
	int dead = size - 1;
	uint64_t died;

	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	meet("waiting", (1u << size) - 1);
	if (rank == dead) {
		die(NULL);
		return;
	}
	for (ncclResult_t state = ncclSuccess; !state; usleep(100)) {
		OK(ncclCommGetAsyncError(comm, &state));
		if (state)
			GIVES(ncclRemoteError, state);
	}
	id_hear("dead", &died, sizeof(died)); /* it is there, since it came before the death */
	printf("rank %d: told %.1f ms after the death\n", rank, (double)(now_us() - died) / 1000);
	OK(ncclCommDestroy(comm));
}

/* One rank has launched an operation when another learns of the loss and is refused the same: the first must not hang. */
static void plan_refused(void)
{
	ncclResult_t state = ncclSuccess;
	int dead = size - 1, unused;

	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	if (rank == dead) {
		id_hear("launched", &unused, sizeof(unused));
		raise(SIGKILL);
	}
	if (rank == 1) {
		OK(ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream));
		id_tell("launched", &rank, sizeof(rank));
		CUDA(cudaStreamSynchronize(stream));
		id_tell("through", &rank, sizeof(rank));
		OK(ncclCommGetAsyncError(comm, &state));
		GIVES(ncclRemoteError, state);
	} else {
		while (!state)
			OK(ncclCommGetAsyncError(comm, &state));
		GIVES(ncclRemoteError, ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream));
		id_hear("through", &unused, sizeof(unused));
	}
	OK(ncclCommAbort(comm));
}

/* A rank dies that the others wait for in a split. */
static void plan_split(void)
{
	int dead = size - 1, unused;
	ncclComm_t c = NULL;

	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	if (rank == dead) {
		id_hear("asking", &unused, sizeof(unused));
		die(NULL);
	}
	if (!rank)
		id_tell("asking", &rank, sizeof(rank));
	GIVES(ncclRemoteError, ncclCommSplit(comm, 0, rank, &c, NULL));
	GIVES(1, c == NULL);
	OK(ncclCommShrink(comm, &dead, 1, &c, NULL, 0));
	sum_of(c, size - 1, rank, "a shrink after a split that failed");
	OK(ncclCommDestroy(c));
	OK(ncclCommDestroy(comm));
}

/* A rank that got its store by an id makes ids of the same store, and starts no server. */
static void plan_adopt(void)
{
	enum { LONG = 5000 };
	struct cvy_nccl_id id, next;
	char url[2 * LONG];
	ncclUniqueId bytes;
	int n;

	unsetenv("COVEY_STORE");
	if (!rank) {
		OK(ncclGetUniqueId(&bytes));
		memcpy(&id, &bytes, sizeof(id));
		setenv("COVEY_STORE", id.store, 1);
	}
	bytes = id_of("first", 0);
	memcpy(&id, &bytes, sizeof(id));
	GIVES(0, id.own_store);
	OK(ncclCommInitRank(&comm, size, bytes, rank));
	OK(ncclGetUniqueId(&bytes));
	memcpy(&next, &bytes, sizeof(next));
	GIVES(0, strcmp(id.store, next.store));
	GIVES(0, next.own_store);
	sum_of(comm, size, rank, "a store that came by an id");
	OK(ncclCommDestroy(comm));
	/* A long URL is read to its end. */
	n = snprintf(url, sizeof(url), "%s?", id.store);
	memset(url + n, '&', LONG);
	strcpy(url + n + LONG, "link_ms=x");
	setenv("COVEY_STORE", url, 1);
	GIVES(1, ncclCommInitRank(&comm, size, id_of("long", 0), rank) != ncclSuccess);
	GIVES(1, strstr(ncclGetLastError(NULL), "link_ms") != NULL);
}

/* For tests/nccl/store: ranks that wait to be killed; machines without a server, or with one that does not start. */
static void plan_sleep(void)
{
	OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	printf("ready\n");
	pause();
}

static void plan_storeless(void)
{
	ncclUniqueId id;

	GIVES(ncclSystemError, ncclGetUniqueId(&id));
	GIVES(1, strstr(ncclGetLastError(NULL), "COVEY_STORE") != NULL);
	GIVES(1, strstr(ncclGetLastError(NULL), "redis-server") != NULL);
}

static void plan_unanswered(void)
{
	ncclUniqueId id;

	GIVES(ncclSystemError, ncclGetUniqueId(&id));
	GIVES(1, strstr(ncclGetLastError(NULL), "does not answer") != NULL);
}

/* ---- ends ---- */

/* Each rank ends one of two communicators while the other rank does not end it before that call has returned. */
static void plan_order(void)
{
	const int first = rank % 2;
	char name[2][32];
	ncclComm_t two[2];
	int unused = 0;

	for (int i = 0; i < 2; i++) {
		snprintf(name[i], sizeof(name[i]), "ended-%d", i);
		OK(ncclCommInitRank(&two[i], size, id_of(i ? "second" : "first", 0), rank));
		sum_of(two[i], size, rank, "one of two");
	}
	alarm(ID_MS / 1000); /* ranks that wait for each other would come to an end, but later */
	OK(ncclCommDestroy(two[first]));
	id_tell(name[first], &unused, sizeof(unused));
	id_hear(name[!first], &unused, sizeof(unused));
	OK(ncclCommDestroy(two[!first]));
}

/* What the calling thread has is the same after a call; @other: a device that is not the communicator's. */
static void same(int device, const char *call, int line)
{
	const int error = errno;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal; /* the test itself minds no capture */
	int now = -1;

	CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	CUDA(cudaGetDevice(&now));
	gives(error, ODD, call, line);
	gives((int)mode, (int)cudaStreamCaptureModeGlobal, call, line);
	gives(now, device, call, line);
}

#define SAME(on, call) \
	do { \
		cudaStreamCaptureMode global_ = cudaStreamCaptureModeGlobal; \
		ncclResult_t r_; \
		CUDA(cudaSetDevice(on)); \
		CUDA(cudaThreadExchangeStreamCaptureMode(&global_)); \
		errno = ODD; \
		r_ = (call); \
		same(on, #call, __LINE__); \
		OK(r_); \
	} while (0)

static sem_t begun, over;

static void *capture(void *valid)
{
	cudaStream_t side;
	cudaGraph_t graph;

	CUDA(cudaSetDevice(own_device));
	CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, side));
	sem_post(&begun);
	sem_wait(&over);
	*(int *)valid = cudaStreamEndCapture(side, &graph) == cudaSuccess;
	return NULL;
}

static void plan_untouched(void)
{
	const ncclUniqueId first = id_of("first", 0), next = id_of("second", 0);
	int devices, other, valid = 0, count;
	ncclComm_t half, second;
	ncclResult_t state;
	pthread_t thread;
	void *memory;

	CUDA(cudaGetDeviceCount(&devices));
	other = (own_device + 1) % devices;
	sem_init(&begun, 0, 0);
	sem_init(&over, 0, 0);
	SAME(own_device, ncclCommInitRank(&comm, size, first, rank));
	SAME(own_device, ncclCommInitRank(&second, size, next, rank));
	pthread_create(&thread, NULL, capture, &valid);
	sem_wait(&begun);
	SAME(other, ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	SAME(other, ncclGroupStart());
	SAME(other, ncclSend(in, 40, ncclFloat32, (rank + 1) % size, comm, stream));
	SAME(other, ncclRecv(to(), 40, ncclFloat32, (rank + size - 1) % size, comm, stream));
	SAME(other, ncclGroupEnd());
	SAME(other, ncclCommSplit(comm, 0, rank, &half, NULL));
	SAME(other, ncclCommGetAsyncError(comm, &state));
	SAME(other, ncclCommCount(comm, &count));
	SAME(own_device, ncclMemAlloc(&memory, 4096));
	SAME(own_device, ncclMemFree(memory));
	sem_post(&over);
	pthread_join(thread, NULL);
	GIVES(1, valid);
	SAME(other, ncclCommFinalize(half));
	SAME(other, ncclCommRevoke(second, 0));
	SAME(other, ncclCommDestroy(half));
	SAME(other, ncclCommAbort(second));
	SAME(other, ncclCommDestroy(comm));
}

/* ---- processes ---- */

static void run_plan(const char *plan)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} plans[] = { { "calls", plan_calls },	   { "life", plan_life },
		      { "one", plan_one },	   { "kill", plan_kill },
		      { "shrink", plan_shrink },   { "wait", plan_wait },
		      { "sum", plan_sum },	   { "idle", plan_idle },
		      { "refused", plan_refused }, { "split", plan_split },
		      { "sleep", plan_sleep },	   { "storeless", plan_storeless },
		      { "adopt", plan_adopt },	   { "unanswered", plan_unanswered },
		      { "order", plan_order },	   { "untouched", plan_untouched } };

	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
		if (!strcmp(plan, plans[i].name)) {
			plans[i].run();
			return;
		}
	fprintf(stderr, "no plan %s\n", plan);
	exit(2);
}

static int rank_main(const char *plan)
{
	int devices;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	CUDA(cudaGetDeviceCount(&devices));
	own_device = rank % devices;
	CUDA(cudaSetDevice(own_device));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	room = (size_t)MOST * 8 * RANKS + 2 * EDGE;
	host = (uint8_t *)malloc(room);
	CUDA(cudaMalloc((void **)&in, room));
	CUDA(cudaMalloc((void **)&out, room));
	run_plan(plan);
	printf("rank %d: %ld checks, %d failed\n", rank, checks, failures);
	return failures ? 1 : 0;
}

static int is_dead(const char *plan, int r)
{
	static const char *const of_the_last[] = { "wait", "sum", "idle", "refused", "split" };

	if (!strcmp(plan, "kill"))
		return r == 1;
	if (!strcmp(plan, "shrink"))
		return r == 0;
	for (size_t i = 0; i < sizeof(of_the_last) / sizeof(of_the_last[0]); i++)
		if (!strcmp(plan, of_the_last[i]))
			return r == size - 1;
	return 0;
}

static int wait_for(pid_t *pids, int n, const char *plan)
{
	int bad = 0;

	for (int r = 0; r < n; r++) {
		int status = 0, right;

		waitpid(pids[r], &status, 0);
		right = is_dead(plan, r) ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : !status;
		if (!right)
			fprintf(stderr, "rank %d: status %x\n", r, status);
		bad += !right;
	}
	return bad;
}

static void remove_all(const char *path)
{
	DIR *d = opendir(path);
	char file[600];

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
		unlink(file);
	}
	if (d)
		closedir(d);
	rmdir(path);
}

int main(int argc, char **argv)
{
	const char *tmp = getenv("TMPDIR");
	char here[256], text[16];
	pid_t pids[RANKS];
	int n, bad;

	if (argc < 3 || (n = atoi(argv[2])) < 1 || n > RANKS) {
		fprintf(stderr, "usage: %s PLAN RANKS (1 to 8)\n", argv[0]);
		return 2;
	}
	size = n;
	if (argc == 5) {
		rank = atoi(argv[3]);
		directory = argv[4];
		return rank_main(argv[1]);
	}
	snprintf(here, sizeof(here), "%s/nccl-api-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
	if (!mkdtemp(here))
		return 2;
	setenv("COVEY_HANG_MS", "20000", 0); /* on a busy machine a rank may be silent for long: that is no death */
	if (!strcmp(argv[1], "one"))
		n = 1;
	for (int r = 0; r < n; r++) {
		char *const args[] = { argv[0], argv[1], argv[2], text, here, NULL };

		snprintf(text, sizeof(text), "%d", r);
		if (posix_spawn(&pids[r], "/proc/self/exe", NULL, NULL, args, environ))
			return 2;
	}
	bad = wait_for(pids, n, argv[1]);
	remove_all(here);
	printf("%s, %d ranks: %d failed\n", argv[1], size, bad);
	return bad ? 1 : 0;
}
