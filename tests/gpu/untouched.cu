/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public call on a device, under ep-run: the thread that calls has the same current device, capture mode, errno and
 * signal mask afterwards. And a graph that another thread captures in global mode, the default of CUDA, stays valid while ranks
 * die, come back and come in. It holds an operation, whose replay has the sums of those who are there.
 *
 *	ep-run -n 3 --restart on-failure -- ./gpu-untouched --kill 1@2 --steps 3 --extend 1
 *
 * `--far 1`: ranks are on several hosts. That no call which takes a stream is missing, untouched_calls.awk sees.
 */
#include <errno.h>
#include <semaphore.h>

#include "covey_admin.h"
#include "covey_device.h"
#include "covey_ep.h"
#include "driver.cuh"

#define COUNT 1000
#define ROOM ((size_t)64 * COUNT * sizeof(int))
#define TOKENS 8
#define HIDDEN 256
#define TOP_K 2
#define EXPERTS 12
#define ODD 4711 /* no number of an error */

static int *send, *recv, *replayed, extends, far, other, own_device;
static sigset_t mask;

/* ---- what a thread has ---- */

static void before(void)
{
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

	CUDA(cudaSetDevice(other));
	CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	errno = ODD;
}

static void wrong(const char *call, const char *what, int got, int want)
{
	if (failures++ < 20)
		fprintf(stderr, "rank %d, step %ld: %s: %s is %d, not %d\n", rank, state.step, call, what, got, want);
}

static int is_other_mask(const sigset_t *now)
{
	for (int signal = 1; signal < 32; signal++)
		if (sigismember(now, signal) != sigismember(&mask, signal))
			return signal;
	return 0;
}

/* From here on calls of the test itself mind no capture of others. */
static void after(const char *call)
{
	const int error = errno;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
	sigset_t now;
	int device = -1;

	CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	CUDA(cudaGetDevice(&device));
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	checks++;
	if (error != ODD)
		wrong(call, "errno", error, ODD);
	if (mode != cudaStreamCaptureModeGlobal)
		wrong(call, "the capture mode", (int)mode, (int)cudaStreamCaptureModeGlobal);
	if (device != other)
		wrong(call, "the device", device, other);
	if (is_other_mask(&now))
		wrong(call, "the mask of signals differs in", is_other_mask(&now), 0);
	CUDA(cudaSetDevice(own_device));
}

#define SAME(call) \
	do { \
		int err_; \
		before(); \
		err_ = (call); \
		after(#call); \
		must(err_, #call); \
	} while (0)

#define SAME_VOID(call) \
	do { \
		before(); \
		call; \
		after(#call); \
	} while (0)

/* ---- a capture that is held ---- */

static struct {
	pthread_t thread;
	sem_t begun, over;
	cudaGraphExec_t graph; /* NULL: the capture became invalid */
} held;

static void *capture(void *)
{
	cudaStream_t side;
	cudaGraph_t captured = NULL;
	cudaError_t got;

	CUDA(cudaSetDevice(own_device));
	CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
	must(covey_allreduce(send, replayed, COUNT, COVEY_INT32, COVEY_SUM, group, (struct CUstream_st *)side, NULL),
	     "a captured allreduce");
	sem_post(&held.begun);
	sem_wait(&held.over);
	got = cudaStreamEndCapture(side, &captured);
	held.graph = NULL;
	if (got != cudaSuccess)
		wrong("cudaStreamEndCapture", "its error", (int)got, 0);
	else
		CUDA(cudaGraphInstantiate(&held.graph, captured, 0));
	CUDA(cudaStreamDestroy(side));
	return NULL;
}

static void hold(void)
{
	sem_init(&held.begun, 0, 0);
	sem_init(&held.over, 0, 0);
	if (pthread_create(&held.thread, NULL, capture, NULL))
		exit(1);
	sem_wait(&held.begun);
}

static void let_go(void)
{
	sem_post(&held.over);
	pthread_join(held.thread, NULL);
}

static void drop(void)
{
	if (held.graph)
		CUDA(cudaGraphExecDestroy(held.graph));
}

static void replay(void)
{
	struct covey_result result;
	int got = 0, want = 0;

	if (!held.graph)
		exit(1);
	CUDA(cudaGraphLaunch(held.graph, stream));
	CUDA(cudaStreamSynchronize(stream));
	SAME(covey_device_result(group, &result));
	CUDA(cudaMemcpy(&got, replayed, sizeof(got), cudaMemcpyDeviceToHost));
	for (int r = 0; r < size; r++)
		want += covey_mask_has(&result.mask, r) ? r + 1 : 0;
	if (result.status || got != want)
		wrong("the replay", "its sum", got, want);
	drop();
}

/* ---- calls ---- */

static void collectives(void)
{
	size_t counts[64], at[64];
	struct covey_result result;
	int sum;

	for (int r = 0; r < size; r++) {
		counts[r] = COUNT / 2;
		at[r] = (size_t)r * COUNT;
	}
	SAME(covey_allreduce(send, recv, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, &result));
	SAME(covey_broadcast(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, NULL));
	SAME(covey_allgather(send, recv, COUNT, COVEY_INT32, group, STREAM, NULL));
	SAME(covey_alltoall(send, recv, COUNT, COVEY_INT32, group, STREAM, NULL));
	SAME(covey_alltoall(recv, recv, COUNT, COVEY_INT32, group, STREAM, NULL));
	SAME(covey_alltoallv(send, counts, at, recv, counts, at, COVEY_INT32, group, STREAM, NULL));
	SAME(covey_allgatherv(send, COUNT / 2, recv, counts, at, COVEY_INT32, group, STREAM, NULL));
	SAME(covey_reduce(send, recv, COUNT, COVEY_INT32, COVEY_SUM, 0, group, STREAM, NULL));
	SAME(covey_reduce_scatter(send, recv, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, NULL));
	SAME(covey_gather(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, NULL));
	SAME(covey_scatter(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, NULL));
	SAME(covey_barrier(group, STREAM, NULL));
	CUDA(cudaStreamSynchronize(stream));
	SAME(covey_device_result(group, &result));
	SAME(covey_allreduce(&rank, &sum, 1, COVEY_INT32, COVEY_SUM, group, NULL, NULL));
}

#define STARTED(call) \
	do { \
		struct covey_work *work; \
		SAME(call); \
		SAME(covey_work_wait(work, 0, NULL)); \
		SAME_VOID(covey_work_free(work)); \
	} while (0)

static void started(void)
{
	size_t counts[64], at[64];

	for (int r = 0; r < size; r++) {
		counts[r] = COUNT / 2;
		at[r] = (size_t)r * COUNT;
	}
	STARTED(covey_broadcast_start(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, &work));
	STARTED(covey_allgather_start(send, recv, COUNT, COVEY_INT32, group, STREAM, &work));
	STARTED(covey_alltoall_start(send, recv, COUNT, COVEY_INT32, group, STREAM, &work));
	STARTED(covey_alltoallv_start(send, counts, at, recv, counts, at, COVEY_INT32, group, STREAM, &work));
	STARTED(covey_allgatherv_start(send, COUNT / 2, recv, counts, at, COVEY_INT32, group, STREAM, &work));
	STARTED(covey_reduce_start(send, recv, COUNT, COVEY_INT32, COVEY_SUM, 0, group, STREAM, &work));
	STARTED(covey_reduce_scatter_start(send, recv, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, &work));
	STARTED(covey_gather_start(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, &work));
	STARTED(covey_scatter_start(send, recv, COUNT, COVEY_INT32, 0, group, STREAM, &work));
	STARTED(covey_barrier_start(group, STREAM, &work));
}

static void works(void)
{
	struct covey_work *work;
	char text[200];

	SAME(covey_allreduce_start(send, recv, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, &work));
	SAME(covey_work_wait(work, 0, NULL));
	SAME(covey_work_test(work, NULL));
	SAME(covey_work_progress(work, text, sizeof(text)));
	SAME_VOID(covey_work_free(work));
}

/* To the next rank, from the one before. */
static void messages(void)
{
	const int to = (rank + 1) % size, from = (rank + size - 1) % size;
	struct covey_work *work, *sent;

	SAME(covey_group_start());
	SAME(covey_send(send, COUNT, COVEY_INT32, to, 1, group, STREAM, NULL));
	SAME(covey_recv(recv, COUNT, COVEY_INT32, from, 1, group, STREAM, NULL));
	SAME(covey_group_end());
	SAME(covey_send(send, 8, COVEY_INT32, to, 2, group, STREAM, NULL));
	SAME(covey_recv_start(recv, 8, COVEY_INT32, from, 2, group, STREAM, &work));
	SAME(covey_work_wait(work, 0, NULL));
	SAME_VOID(covey_work_free(work));
	SAME(covey_send_start(send, 8, COVEY_INT32, to, 3, group, STREAM, &sent));
	SAME(covey_recv_start(recv, 8, COVEY_INT32, from, 3, group, STREAM, &work));
	SAME(covey_work_wait(sent, 0, NULL));
	SAME(covey_work_wait(work, 0, NULL));
	SAME_VOID(covey_work_free(sent));
	SAME_VOID(covey_work_free(work));
}

static void memory(void)
{
	static char text[1 << 16];
	const struct covey_device_outcome *at;
	struct covey_device_peers peers;
	void *room;

	SAME(covey_device_mem_alloc(group, 4096, &room));
	SAME(covey_device_mem_free(group, room));
	SAME(covey_device_outcome_at(group, &at));
	if (covey_device_max_ranks() == 32)
		SAME(covey_device_peers(group, &peers));
	SAME(covey_explain(group, text, sizeof(text)));
}

static void *room(size_t bytes)
{
	void *at;

	CUDA(cudaMalloc(&at, bytes));
	CUDA(cudaMemset(at, 0, bytes));
	return at;
}

static void experts(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	struct covey_ep *ep;

	config.max_tokens = TOKENS;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	SAME(covey_ep_create(group, &config, &ep));
	d.num_tokens = c.num_tokens = TOKENS;
	d.x = room(TOKENS * HIDDEN * 2);
	d.experts = (int32_t *)room(TOKENS * TOP_K * 4);
	d.packed_x = room((size_t)covey_ep_rows(ep) * (size_t)covey_ep_local_experts(ep) * HIDDEN * 2);
	d.count = (int32_t *)room(EXPERTS * 4);
	d.src_info = (int32_t *)room((size_t)covey_ep_rows(ep) * (size_t)covey_ep_local_experts(ep) * 4);
	d.range = (int64_t *)room(EXPERTS * 64 * 8);
	d.route = room(covey_ep_route_bytes(ep));
	c.y = d.packed_x;
	c.out = room(TOKENS * HIDDEN * 2);
	c.weights = (float *)room(TOKENS * TOP_K * 4);
	c.route = d.route;
	SAME(covey_dispatch(ep, &d, STREAM, NULL));
	SAME(covey_combine(ep, &c, STREAM, NULL));
	SAME(covey_dispatch_send(ep, &d, STREAM));
	SAME(covey_dispatch_recv(ep, 0, NULL));
	SAME(covey_combine_send(ep, &c, STREAM));
	SAME(covey_combine_recv(ep, 0, NULL));
	CUDA(cudaStreamSynchronize(stream));
	SAME(covey_ep_remap(ep, NULL));
	SAME_VOID(covey_ep_destroy(ep));
}

static void one_step(void)
{
	static const unsigned moments[2] = { 0, 20000 };
	struct covey_result result;

	if (doomed())
		die_soon(moments);
	for (int i = 0; i < 20; i++) {
		SAME(covey_allreduce(send, recv, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, NULL));
		CUDA(cudaStreamSynchronize(stream));
		SAME(covey_device_result(group, &result));
	}
	works();
	memory();
	if (state.step)
		return;
	collectives();
	started();
	if (!far) /* messages on devices are for one host */
		messages();
	experts();
}

/* As start() of driver.cuh, from a thread that is on another device. */
static void join(void)
{
	int devices;

	own_device = choose_device();
	CUDA(cudaGetDeviceCount(&devices));
	other = (own_device + 1) % devices;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	SAME(covey_join(NULL, &group));
	joined();
}

int main(int argc, char **argv)
{
	static const struct number own[] = { { "--extend", &extends }, { "--far", &far }, { NULL, NULL } };
	struct covey_result result;

	steps = 2;
	setenv("COVEY_DEVICE_WINDOW_BYTES", "4194304", 1);
	options(argc, argv, own);
	join();
	send = (int *)room(ROOM);
	recv = (int *)room(ROOM);
	replayed = (int *)room(ROOM);
	for (int first = 1;; state.step++, first = 0) {
		int number;

		SAME(covey_admit_async(group, &state, sizeof(state), STREAM, &result));
		if (!first) {
			let_go();
			drop();
		}
		size = result.size;
		number = rank + 1;
		CUDA(cudaMemcpy(send, &number, sizeof(number), cudaMemcpyHostToDevice));
		hold();
		one_step();
		let_go();
		replay();
		hold(); /* through the next safe point */
		if (another(&result, world() + state.extended))
			continue;
		if (failures || !extends || state.extended)
			break;
		extend(argv, __builtin_ctzll(result.mask.word[0]));
	}
	let_go();
	drop();
	printf("rank %d: %llu checks, %d failed\n", rank, (unsigned long long)checks, failures);
	SAME(covey_leave(group, 0));
	SAME_VOID(covey_close(group));
	return failures != 0;
}
