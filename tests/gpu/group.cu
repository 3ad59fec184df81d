/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group whose ranks compute on devices, under ep-run: every step is a safe point, collectives on device memory and a
 * graph that was captured once, each checked against what the mask of its outcome says, and outcomes compared among
 * all ranks. With `--kill RANK@STEP` that rank dies at a random moment of that step; with --restart on-failure its
 * replacement comes in, and all go on until `--steps` whole steps have passed since.
 *
 *	ep-run -n 2 --restart on-failure -- ./gpu-group --kill 1@20 --steps 50
 *
 * `--hops 1`: steps of nothing but broadcasts and reduces in two rounds, of the first and of the last rank, so that is
 * where it dies.
 * `--aside 1`: of nothing but exchanges in place.
 * `--levels 1`: of nothing but operations that go in two levels between hosts: allreduce alone, in place and in the graph,
 * allgather, and broadcast.
 * `--again RANK`: the first time that the group is whole again, that rank dies while its device takes the newcomer in.
 * `--shy N`: the first N that come to take a place leave as soon as they are connected, before they are let in.
 * `--refuse 1`: calls that devices do not take come first.
 */
#include <covey_admin.h>
#include <covey_device.h>
#include <covey_ep.h>
#include <time.h>

#include "driver.cuh"
#include "outcome.h"

#define ROOM ((size_t)8 << 20)
#define SMALL 1000
#ifndef LARGE
#define LARGE 300001
#endif
#define GRAPH_OPS 10
#define ASIDES 20	    /* of a step */
#define LEVELS 1000003	    /* of several steps */
#define LEVELS_GATHER 66001 /* more than CVY_GPU_LEVELS_GATHER of bytes */
#define HOPS 135000	    /* more than CVY_GPU_TWO_HOP of bytes, and no whole number of pieces */

static int *host, *send, *recv, only_hops, only_aside, only_levels, again = -1, shy, refuse;
static uint64_t losses;
static double worst_ms;

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int number(int r, size_t i)
{
	return (int)(i * 31 + (size_t)r * 7 + (size_t)state.step * 3) % 1000;
}

static void fill(size_t count)
{
	for (size_t i = 0; i < count; i++)
		host[i] = number(rank, i);
	CUDA(cudaMemcpyAsync(send, host, count * sizeof(int), cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemsetAsync(recv, 0xc5, ROOM, stream));
}

static int copy(void *to, const void *from, size_t bytes)
{
	return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess ? 0 : COVEY_ERR_IO;
}

/* Waits for the stream; the outcome of the last operation, alike on all ranks: where each gets a part of its own
 * (@parts), one may lack it and say LOST. */
static struct covey_device_outcome outcome(const char *what, int parts)
{
	struct covey_device_outcome o, all[64];
	struct covey_result result;
	double since = now_ms();

	CUDA(cudaStreamSynchronize(stream));
	if (now_ms() - since > worst_ms)
		worst_ms = now_ms() - since;
	must(device_outcome(group, copy, &o), "outcome");
	memset(all, 0, sizeof(all));
	must(covey_allgather(&o, all, sizeof(o), COVEY_UINT8, group, NULL, &result), "allgather of outcomes");
	for (int r = 0; r < size; r++) {
		if (!covey_mask_has(&result.mask, r) || all[r].seq != o.seq)
			continue; /* who died in between, or ran ahead */
		if ((!parts && all[r].status != o.status) || all[r].epoch != o.epoch || all[r].mask != o.mask) {
			fprintf(stderr,
				"rank %d, step %ld, %s: outcome %d epoch %u mask %llx here, %d %u %llx on rank %d\n",
				rank, state.step, what, o.status, o.epoch, (unsigned long long)o.mask, all[r].status,
				all[r].epoch, (unsigned long long)all[r].mask, r);
			failures++;
		}
	}
	if (o.status && o.status != COVEY_ERR_LOST && o.status != COVEY_ERR_ROOT)
		must(o.status, what);
	losses += o.status != 0;
	return o;
}

static void expect(const char *what, size_t i, int got, int want, uint64_t mask)
{
	if (got == want)
		return;
	if (failures++ < 10)
		fprintf(stderr, "rank %d, step %ld, %s: element %zu is %d, not %d; contributors %llx\n", rank,
			state.step, what, i, got, want, (unsigned long long)mask);
}

static void take(size_t count, const int *from)
{
	CUDA(cudaMemcpyAsync(host, from, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	checks++;
}

static int sum(uint64_t mask, size_t i)
{
	int s = 0;

	for (int r = 0; r < size; r++)
		if (mask >> r & 1)
			s += number(r, i);
	return s;
}

static void check_sums(const char *what, size_t count, const int *from, struct covey_device_outcome o)
{
	if (o.status)
		return;
	take(count, from);
	for (size_t i = 0; i < count; i++)
		expect(what, i, host[i], sum(o.mask, i), o.mask);
}

static void allreduce(const char *what, size_t count, int in_place)
{
	int *to = in_place ? send : recv;

	fill(count);
	must(covey_allreduce(send, to, count, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), what);
	check_sums(what, count, to, outcome(what, 0));
}

static size_t in_graph(void)
{
	return only_levels ? LEVELS : SMALL;
}

static void replay(void)
{
	fill(in_graph());
	CUDA(cudaGraphLaunch(graph, stream));
	check_sums("graph", in_graph(), recv, outcome("graph", 0));
}

static void allgather(size_t count)
{
	struct covey_device_outcome o;

	fill(count);
	must(covey_allgather(send, recv, count, COVEY_INT32, group, STREAM, NULL), "allgather");
	o = outcome("allgather", 0);
	take((size_t)size * count, recv);
	for (size_t i = 0; i < (size_t)size * count; i++) {
		const int r = (int)(i / count);

		expect("allgather", i, host[i], o.mask >> r & 1 ? number(r, i % count) : 0, o.mask);
	}
}

static void alltoall(int in_place)
{
	const char *what = in_place ? "alltoall in place" : "alltoall";
	int *to = in_place ? send : recv;
	struct covey_device_outcome o;

	fill((size_t)size * SMALL);
	must(covey_alltoall(send, to, SMALL, COVEY_INT32, group, STREAM, NULL), what);
	o = outcome(what, 1);
	take((size_t)size * SMALL, to);
	for (size_t i = 0; i < (size_t)size * SMALL; i++) {
		int r = (int)(i / SMALL), here = (o.mask & ~o.missing) >> r & 1;

		expect(what, i, host[i], here ? number(r, (size_t)rank * SMALL + i % SMALL) : 0, o.mask);
	}
}

/* What @from has for @to: none, or a part of a block. */
static size_t share(int from, int to)
{
	return (size_t)((from * 3 + to * 5 + (int)state.step) % 4) * (SMALL / 3);
}

/* Each block is replaced where it is; what the new one is too short for stays. */
static void uneven_in_place(void)
{
	size_t out[64], in[64], at[64];
	struct covey_device_outcome o;

	for (int r = 0; r < size; r++) {
		out[r] = share(rank, r);
		in[r] = share(r, rank);
		at[r] = (size_t)r * SMALL;
	}
	fill((size_t)size * SMALL);
	must(covey_alltoallv(send, out, at, send, in, at, COVEY_INT32, group, STREAM, NULL), "alltoallv in place");
	o = outcome("alltoallv in place", 1);
	take((size_t)size * SMALL, send);
	for (size_t i = 0; i < (size_t)size * SMALL; i++) {
		int r = (int)(i / SMALL), here = (o.mask & ~o.missing) >> r & 1;
		int want = here ? number(r, (size_t)rank * SMALL + i % SMALL) : 0;

		expect("alltoallv in place", i, host[i], i % SMALL < in[r] ? want : number(rank, i), o.mask);
	}
}

/* ---- works ---- */

static void wrong(const char *what, int got, int want)
{
	if (failures++ < 10)
		fprintf(stderr, "rank %d, step %ld, works: %s: %d, not %d\n", rank, state.step, what, got, want);
}

static void hold(void *held)
{
	while (__atomic_load_n((int *)held, __ATOMIC_ACQUIRE))
		usleep(100);
}

/* The stream stands before them: they are not decided, and a wait ends by its deadline. Then they are, in any order. */
static void works(void)
{
	static int held;
	struct covey_work *first, *second;
	struct covey_result a, b, last;
	struct covey_error_info info;
	char text[200];
	int got;

	__atomic_store_n(&held, 1, __ATOMIC_RELEASE);
	fill(SMALL);
	CUDA(cudaLaunchHostFunc(stream, hold, &held));
	must(covey_allreduce_start(send, recv, SMALL, COVEY_INT32, COVEY_SUM, group, STREAM, &first),
	     "allreduce_start");
	must(covey_barrier_start(group, STREAM, &second), "barrier_start");
	got = covey_work_test(first, &a);
	if (got != COVEY_ERR_AGAIN)
		wrong("a test before the stream comes past", got, COVEY_ERR_AGAIN);
	got = covey_work_wait(first, 1, &a);
	if (got != COVEY_ERR_TIMEOUT)
		wrong("a wait that is over", got, COVEY_ERR_TIMEOUT);
	covey_last_error(group, &info);
	if (info.err != COVEY_ERR_TIMEOUT || info.rank != rank || !strstr(info.cause, "allreduce: launched"))
		wrong(info.cause, info.err, COVEY_ERR_TIMEOUT);
	covey_work_progress(first, text, sizeof(text));
	if (!strstr(text, "allreduce: launched"))
		wrong(text, 0, 1);
	__atomic_store_n(&held, 0, __ATOMIC_RELEASE);
	must(covey_work_wait(second, 0, &b), "wait for a barrier");
	must(covey_device_result(group, &last), "result");
	if (b.seq != last.seq || b.epoch != last.epoch || memcmp(&b.mask, &last.mask, sizeof(b.mask)) || b.size != size)
		wrong("another outcome than the device's last", (int)b.seq, (int)last.seq);
	got = covey_work_test(first, &a);
	if (got)
		wrong("a test of what the stream has passed", got, 0);
	if (a.status || a.seq + 1 != b.seq || a.epoch > b.epoch || !a.wait_ns)
		wrong("the outcome of the first of two", (int)a.seq, (int)b.seq - 1);
	covey_work_free(first);
	covey_work_free(second);
	take(SMALL, recv);
	for (size_t i = 0; i < SMALL; i++)
		expect("allreduce_start", i, host[i], sum(a.mask.word[0], i), a.mask.word[0]);
}

/* So many works may be there; one that is freed while its operation is under way makes room when that is over. */
static void many_works(void)
{
	static struct covey_work *work[2000];
	struct covey_error_info info;
	int n = 0, err;

	while (!(err = covey_barrier_start(group, STREAM, &work[n])) && n + 1 < 2000)
		n++;
	covey_last_error(group, &info);
	if (err != COVEY_ERR_NOMEM || !strstr(info.cause, "works of device operations"))
		wrong(info.cause, err, COVEY_ERR_NOMEM);
	while (n)
		covey_work_free(work[--n]);
	outcome("many works", 0);
	must(covey_barrier_start(group, STREAM, &work[0]), "a work after many");
	must(covey_work_wait(work[0], 0, NULL), "wait after many");
	covey_work_free(work[0]);
}

static void refused(const char *what, int err, int want, const char *cause)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	checks++;
	if (err != want || !strstr(info.cause, cause))
		wrong(what, err, want);
}

/* A handle may be one for host memory alone: its first call on the device says why. */
static void no_dispatch(const struct covey_ep_config *config, int timeout_ms, int32_t *active, const char *cause)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_ep *ep;

	must(covey_ep_create(group, config, &ep), "covey_ep_create");
	args.num_tokens = 1;
	args.x = args.packed_x = args.route = recv;
	args.packed_scales = (float *)recv;
	args.experts = args.count = args.src_info = args.recv_experts = (int32_t *)recv;
	args.range = (int64_t *)recv;
	args.weights = args.recv_weights = (float *)recv;
	args.timeout_ms = timeout_ms;
	args.active_ranks = active;
	refused("dispatch", covey_dispatch(ep, &args, STREAM, NULL), COVEY_ERR_UNSUPPORTED, cause);
	covey_ep_destroy(ep);
}

static void refusals(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;

	refused("a stream with memory of the host",
		covey_allreduce(host, host, 1, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), COVEY_ERR_INVAL, "");
	refused("no stream with memory of the device",
		covey_allreduce(send, recv, 1, COVEY_INT32, COVEY_SUM, group, NULL, NULL), COVEY_ERR_INVAL, "");
	refused("one buffer of the host", covey_allreduce(send, host, 1, COVEY_INT32, COVEY_SUM, group, STREAM, NULL),
		COVEY_ERR_INVAL, "");
	config.max_tokens = COVEY_DEVICE_MAX_TOKENS + 1;
	config.hidden = 8;
	config.top_k = 1;
	config.experts = 2;
	no_dispatch(&config, -1, NULL, "max_tokens: 16385, at most 16384");
	config.max_tokens = 4;
	config.preset = COVEY_EP_HT;
	no_dispatch(&config, 7, NULL, "one of 7 ms");
	no_dispatch(&config, -1, (int32_t *)send, "active_ranks");
	config.rows = COVEY_EP_ROWS_INT8;
	no_dispatch(&config, -1, NULL, "rows or results of integers");
	config.rows = COVEY_EP_ROWS_BF16;
	config.combine_rows = COVEY_EP_BACK_INT8;
	no_dispatch(&config, -1, NULL, "rows or results of integers");
}

static void broadcast(int root, size_t count)
{
	struct covey_device_outcome o;

	fill(count);
	must(covey_broadcast(send, recv, count, COVEY_INT32, root, group, STREAM, NULL), "broadcast");
	o = outcome("broadcast", 0);
	if (o.status)
		return;
	take(count, recv);
	for (size_t i = 0; i < count; i++)
		expect("broadcast", i, host[i], number(root, i), o.mask);
}

static void reduce(int root, size_t count)
{
	struct covey_device_outcome o;

	fill(count);
	must(covey_reduce(send, recv, count, COVEY_INT32, COVEY_SUM, root, group, STREAM, NULL), "reduce");
	o = outcome("reduce", 0);
	if (rank == root)
		check_sums("reduce", count, recv, o);
}

static void reduce_scatter(void)
{
	struct covey_device_outcome o;

	fill((size_t)size * SMALL);
	must(covey_reduce_scatter(send, recv, SMALL, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), "reduce_scatter");
	o = outcome("reduce_scatter", 1);
	if (o.status)
		return;
	take(SMALL, recv);
	for (size_t i = 0; i < SMALL; i++)
		expect("reduce_scatter", i, host[i], sum(o.mask, (size_t)rank * SMALL + i), o.mask);
}

static void barrier(void)
{
	must(covey_barrier(group, STREAM, NULL), "barrier");
	outcome("barrier", 0);
}

static void capture(void)
{
	struct covey_work *work = NULL;
	cudaGraph_t captured;
	int err;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	err = covey_barrier_start(group, STREAM, &work);
	if (err != COVEY_ERR_INVAL || work)
		wrong("a work of a stream that is captured", err, COVEY_ERR_INVAL);
	for (int i = 0; i < (only_levels ? 2 : GRAPH_OPS); i++)
		must(covey_allreduce(send, recv, in_graph(), COVEY_INT32, COVEY_SUM, group, STREAM, NULL), "capture");
	CUDA(cudaStreamEndCapture(stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
}

static void one_step(uint64_t members)
{
	static const unsigned moments[2] = { 0, 20000 };

	if (doomed())
		die_soon(moments);
	if (only_hops) {
		broadcast(__builtin_ctzll(members), HOPS);
		broadcast(63 - __builtin_clzll(members), HOPS);
		reduce(__builtin_ctzll(members), HOPS);
		reduce(63 - __builtin_clzll(members), HOPS);
		return;
	}
	for (int i = 0; only_aside && i < ASIDES; i++) {
		alltoall(1);
		uneven_in_place();
	}
	if (only_aside)
		return;
	if (only_levels) {
		allreduce("large allreduce", LEVELS, 0);
		allreduce("large allreduce in place", LEVELS, 1);
		allgather(LEVELS_GATHER);
		broadcast(__builtin_ctzll(members), HOPS);
		broadcast(63 - __builtin_clzll(members), HOPS);
		replay();
		return;
	}
	allreduce("allreduce", SMALL, 0);
	allreduce("allreduce in place", SMALL, 1);
	allgather(SMALL);
	alltoall(0);
	alltoall(1);
	uneven_in_place();
	works();
	if (!state.step)
		many_works();
	broadcast(__builtin_ctzll(members), SMALL);
	reduce_scatter();
	barrier();
	if (state.step % 5 == 0)
		allreduce("large allreduce, in place on some ranks", LARGE, rank % 2);
	replay();
}

/* Of those that come for a place, the first leave without it. */
static void go_if_shy(void)
{
	struct covey_view view;

	must(covey_view(group, &view), "view");
	if (replacement && shy && view.incarnation <= (uint64_t)(world() + shy))
		_exit(1);
}

static void die_again(const struct covey_result *result)
{
	static const unsigned moments[2] = { 0, 400 };

	if (covey_mask_count(&result->mask) == world() && result->epoch > 1 && !state.again++ && rank == again)
		die_soon(moments);
}

/* What covey_explain() says of hosts. */
static void say_levels(void)
{
	static char text[1 << 16];

	must(covey_explain(group, text, sizeof(text)), "explain");
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (!strncmp(line, "two levels between hosts:", 25) || !strncmp(line, "put to other hosts", 18))
			printf("rank %d: %s\n", rank, line);
}

int main(int argc, char **argv)
{
	static const struct number own[] = { { "--hops", &only_hops },
					     { "--aside", &only_aside },
					     { "--levels", &only_levels },
					     { "--again", &again },
					     { "--shy", &shy },
					     { "--refuse", &refuse },
					     { NULL, NULL } };
	struct covey_result result;

	steps = 50;
	options(argc, argv, own);
	start();
	go_if_shy();
	CUDA(cudaMalloc(&send, ROOM));
	CUDA(cudaMalloc(&recv, ROOM));
	host = (int *)malloc(ROOM);
	if (refuse)
		refusals();
	for (;; state.step++) {
		must(state.step % 2 ? covey_admit_async(group, &state, sizeof(state), STREAM, &result)
				    : covey_admit(group, &state, sizeof(state), &result),
		     "admit");
		size = result.size;
		die_again(&result);
		if (!graph)
			capture();
		one_step(result.mask.word[0]);
		if (!another(&result, world()))
			break;
	}
	if (only_levels)
		say_levels();
	printf("rank %d: %llu checks, %d failed, %llu lost, epoch %u, longest wait %.1f ms\n", rank,
	       (unsigned long long)checks, failures, (unsigned long long)losses, result.epoch, worst_ms);
	return finish();
}
