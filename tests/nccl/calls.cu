/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation with every type and reduction, groups, streams, a graph, operators, wrong arguments. */
#include "api.h"

static void reductions(int type, size_t count)
{
	const ncclDataType_t t = (ncclDataType_t)type;

	for (int op = ncclSum; op <= ncclAvg; op++) {
		struct shape s = { type, op, size, rank, (type + op) % size, count };
		const size_t at_root = rank == s.root ? count : 0;
		const ncclRedOp_t o = (ncclRedOp_t)op;

		if (type > ncclBfloat16 && op == ncclProd && size > 2) /* beyond the largest of an 8-bit float */
			continue;
		fill_in(&s, count);
		GETS(&s, count, folded, ncclAllReduce(in, to(), count, t, o, comm, stream));
		GETS(&s, at_root, folded, ncclReduce(in, at_root ? to() : NULL, count, t, o, s.root, comm, stream));
		fill_in(&s, count * (size_t)size);
		GETS(&s, count, own_block, ncclReduceScatter(in, to(), count, t, o, comm, stream));
	}
}

static void copies(int type, size_t count)
{
	struct shape s = { type, 0, size, rank, type % size, count };
	const size_t all = count * (size_t)size, at_root = rank == s.root ? all : 0;
	const ncclDataType_t t = (ncclDataType_t)type;

	fill_in(&s, all);
	GETS(&s, count, of_root, ncclBroadcast(in, to(), count, t, s.root, comm, stream));
	GETS(&s, all, gathered, ncclAllGather(in, to(), count, t, comm, stream));
	GETS(&s, all, exchanged, ncclAlltoAll(in, to(), count, t, comm, stream));
	GETS(&s, at_root, gathered, ncclGather(in, at_root ? to() : NULL, count, t, s.root, comm, stream));
	GETS(&s, count, scattered, ncclScatter(at_root ? in : NULL, to(), count, t, s.root, comm, stream));
}

/* As GETS, where what this rank gives stands at @at. */
#define GETS_IN_PLACE(at, bytes, n, value, call) \
	do { \
		clear_out(); \
		CUDA(cudaMemcpyAsync(at, in, bytes, cudaMemcpyDeviceToDevice, stream)); \
		OK(call); \
		compare(#call, &s, n, value); \
	} while (0)

static void in_place(void)
{
	struct shape s = { ncclFloat32, ncclSum, size, rank, size - 1, 33 };
	const size_t block = 33 * 4, all = 33 * (size_t)size;
	uint8_t *own = to() + (size_t)rank * block;

	fill_in(&s, 33);
	GETS_IN_PLACE(to(), block, 33, folded, ncclAllReduce(to(), to(), 33, ncclFloat32, ncclSum, comm, stream));
	GETS_IN_PLACE(to(), block, 33, of_root, ncclBcast(to(), 33, ncclFloat32, s.root, comm, stream));
	GETS_IN_PLACE(own, block, all, gathered, ncclAllGather(own, to(), 33, ncclFloat32, comm, stream));
	fill_in(&s, all);
	GETS_IN_PLACE(to(), all * 4, all, exchanged, ncclAlltoAll(to(), to(), 33, ncclFloat32, comm, stream));
}

/* ---- messages and groups ---- */

/* Every rank sends its block for each peer: an alltoall by messages, each in @parts. */
static void exchange(int parts, cudaStream_t *streams, int n_streams)
{
	struct shape s = { ncclInt32, 0, size, rank, 0, (size_t)parts * 3 };
	size_t block = s.count * 4;
	int nth = 0;

	fill_in(&s, s.count * (size_t)size);
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
	compare("messages", &s, s.count * (size_t)size, exchanged);
}

static void ring(void)
{
	struct shape s = { ncclFloat64, 0, size, rank, (rank + size - 1) % size, 7 };

	fill_in(&s, 7);
	if (rank % 2) { /* one after the other, on one stream, without a group */
		OK(ncclSend(in, 7, ncclFloat64, (rank + 1) % size, comm, stream));
		OK(ncclRecv(to(), 7, ncclFloat64, s.root, comm, stream));
	} else {
		OK(ncclRecv(to(), 7, ncclFloat64, s.root, comm, stream));
		OK(ncclSend(in, 7, ncclFloat64, (rank + 1) % size, comm, stream));
	}
	compare("ring", &s, 7, of_root);
}

/* Collectives of one group on two streams, with messages between them that others call in another order. */
static void mixed(cudaStream_t other)
{
	struct shape s = { ncclInt64, ncclSum, size, rank, (rank + size - 1) % size, 50 };
	uint8_t *far_in = in + room / 2, *far_out = to() + 400;

	fill_in(&s, 50);
	CUDA(cudaMemcpyAsync(far_in, in, 400, cudaMemcpyDeviceToDevice, stream));
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
	compare("allreduce beside messages", &s, 50, folded);
}

/* One operation after the other on streams of which each ends before the next. */
static void streams_in_turn(void)
{
	struct shape s = { ncclInt32, ncclSum, size, rank, 0, MOST };

	fill_in(&s, MOST);
	for (int i = 0; i < 4; i++) {
		cudaStream_t one;

		CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
		OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, one));
		if (i % 2)
			CUDA(cudaStreamSynchronize(one));
		CUDA(cudaStreamDestroy(one));
	}
	OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, stream));
	compare("streams in turn", &s, MOST, folded);
}

static void sleep_a_little(void *)
{
	usleep(20000);
}

/* Rank 0 is late on one stream; its next operation, on another stream, must wait, or the two would be taken for each other. */
static void one_stream_late(cudaStream_t other)
{
	struct shape s = { ncclInt32, ncclSum, size, rank, 0, 40 };

	fill_in(&s, 40);
	if (!rank)
		CUDA(cudaLaunchHostFunc(other, sleep_a_little, NULL));
	OK(ncclAllReduce(in, in + 400, 40, ncclInt32, ncclProd, comm, other));
	OK(ncclAllReduce(in, to(), 40, ncclInt32, ncclSum, comm, stream));
	compare("after a late stream", &s, 40, folded);
}

/* Messages of one group on two streams: what they send, and what follows them, is in order with both. */
static void two_streams_late(cudaStream_t other)
{
	struct shape s = { ncclInt32, 0, size, rank, (rank + size - 1) % size, 20 };
	int next = (rank + 1) % size;
	uint8_t *late = in + room / 2, *first = in + room / 4;

	fill_in(&s, 20);
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
	compare("messages on two streams", &s, 20, of_root);
}

static void captured(void)
{
	struct shape s = { ncclFloat32, ncclSum, size, rank, 0, 40 };
	cudaGraphExec_t exec;
	cudaGraph_t graph;

	fill_in(&s, 40);
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 3; i++) {
		clear_out();
		CUDA(cudaGraphLaunch(exec, stream));
		compare("a graph", &s, 40, folded);
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	clear_out();
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	compare("after a graph", &s, 40, folded);
}

/* ---- operators ---- */

static int64_t tripled(const struct shape *s, size_t i)
{
	return 3 * folded(s, i);
}

static int64_t tripled_block(const struct shape *s, size_t i)
{
	return 3 * own_block(s, i);
}

static void scaled(int type, int on_device)
{
	struct shape s = { type, ncclSum, size, rank, 1 % size, 20 };
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
	s.op = op;
	fill_in(&s, 20 * (size_t)size);
	GETS(&s, 20, tripled, ncclAllReduce(in, to(), 20, t, op, comm, stream));
	GETS(&s, rank == s.root ? 20 : 0, tripled, ncclReduce(in, to(), 20, t, op, s.root, comm, stream));
	GETS(&s, 20, tripled_block, ncclReduceScatter(in, to(), 20, t, op, comm, stream));
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
	struct shape s = { ncclInt32, ncclSum, size, rank, 0, 20 };
	ncclRedOp_t first, second;
	int32_t three = 3, five = 5;

	fill_in(&s, 20);
	OK(ncclRedOpCreatePreMulSum(&first, &three, ncclInt32, ncclScalarHostImmediate, comm));
	OK(ncclGroupStart());
	OK(ncclAllReduce(in, to(), 20, ncclInt32, first, comm, stream));
	OK(ncclRedOpDestroy(first, comm));
	OK(ncclRedOpCreatePreMulSum(&second, &five, ncclInt32, ncclScalarHostImmediate, comm));
	OK(ncclAllReduce(in, in + 400, 20, ncclInt32, second, comm, stream));
	OK(ncclGroupEnd());
	compare("two operators in a group", &s, 20, tripled);
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
	struct shape s = { ncclInt32, ncclSum, size, rank, 0, 40 };

	fill_in(&s, 40);
	if (rank == size - 1)
		CUDA(cudaLaunchHostFunc(stream, sleep_a_little, NULL));
	OK(ncclAllReduce(in, to(), 40, ncclInt32, ncclSum, comm, stream));
	OK(ncclCommDestroy(comm));
	compare("a destroyed communicator", &s, 40, folded);
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

/* Whether the type has all inputs: 9 has four bits. */
static int exact(int type)
{
	return type != ncclFloat8e5m2 || size != 3;
}

void plan_calls(void)
{
	static const size_t counts[] = { 1, 37, MOST / 4 };
	cudaStream_t streams[2] = { stream, NULL };
	pthread_t watchdog;
	void *saw = NULL;

	CUDA(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
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
