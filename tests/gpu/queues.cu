/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a GPU post to the adapter in software: queues, records and the page of doorbells are host memory that the
 * GPU maps, so the adapter judges every entry, its order before the record, and the record's before the doorbell,
 * as the GPU's stores arrive. Then the same calls through the ring of a proxy. Figures at the end.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "queues_gpu.h"
extern "C" {
#include "queues.h"
#include "softmlx5.h"
}

#define BYTES ((size_t)1 << 20)
#define FAR (BYTES / 2)
#define WAIT_CYCLES 20000000000ull

#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)

#define OK(call) \
	do { \
		int err_ = (call); \
		if (err_) { \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, err_, cause()); \
			exit(1); \
		} \
	} while (0)

static struct cvy_errbox *box;
static struct cvy_queue_memory reach;
static struct cvy_nic *nic;
static uint8_t *memory; /* pinned: first half from, second half the far end */
static uint64_t *host;	/* pinned: [0] abort, [8] what a kernel says */
static int failures;

static const char *cause(void)
{
	static struct covey_error_info info;

	cvy_errbox_get(box, &info);
	return info.cause;
}

static void expect(int good, const char *what, const char *mode)
{
	struct softmlx5_stats s;

	softmlx5_stats(&s);
	if (softmlx5_found())
		good = 0;
	printf("%s  %s, %s%s%s\n", good ? "ok  " : "FAIL", mode, what, s.last[0] ? ": " : "", s.last);
	failures += !good;
	softmlx5_forget();
}

/* Each thread of the launch posts @each puts with signals and an add, and sees that they are done. */
__global__ void posters(struct cvy_queue q, uint64_t each, uint64_t *bad, uint8_t *from)
{
	uint64_t me = blockIdx.x * blockDim.x + threadIdx.x, at = 4096 + me * 128;

	for (uint64_t i = 1; i <= each; i++) {
		int64_t t;

		*(volatile uint64_t *)(from + at) = i * 1000 + me;
		t = cvy_queue_add64(&q, FAR, 1);
		if (t > 0)
			t = cvy_queue_put_signal(&q, at, FAR + at, 64, FAR + at + 64, i);
		if (t < 0 || cvy_queue_await(&q, t) != 1) {
			atomicAdd((unsigned long long *)bad, 1ull);
			return;
		}
	}
}

/* One thread, @n signals, a bell every 16. */
__global__ void streamer(struct cvy_queue q, uint64_t n, uint64_t *bad)
{
	int64_t t = 0;

	for (uint64_t i = 1; i <= n && t >= 0; i++) {
		t = cvy_queue_signal(&q, FAR + i % 64 * 8, i);
		if (i % 16 == 0)
			cvy_queue_flush(&q);
	}
	if (t < 0 || cvy_queue_await(&q, t) != 1)
		*bad = (uint64_t)(-t) | 1ull << 32;
}

/* All threads of the launch post @each signals; the last ticket of each is awaited. */
__global__ void streamers(struct cvy_queue q, uint64_t each, uint64_t *bad)
{
	uint64_t me = blockIdx.x * blockDim.x + threadIdx.x;
	int64_t t = 0;

	for (uint64_t i = 1; i <= each && t >= 0; i++)
		t = cvy_queue_signal(&q, FAR + me % 1024 * 8, i);
	if (t < 0 || cvy_queue_await(&q, t) != 1)
		atomicExch((unsigned long long *)bad, (unsigned long long)-t | 1ull << 32);
}

/* Signals that come back into memory that the GPU watches: there and back, in cycles. */
__global__ void pingpong(struct cvy_queue q, uint64_t *word, uint64_t n, uint64_t *cycles)
{
	uint64_t since = cvy_q_ticks();

	for (uint64_t i = 1; i <= n; i++) {
		cvy_queue_signal(&q, FAR, i);
		cvy_queue_flush(&q);
		while (cvy_q_load(word) != i)
			if (cvy_q_ticks() - since > WAIT_CYCLES)
				return;
	}
	*cycles = (cvy_q_ticks() - since) / n;
}

/* Posts into a queue that will never make room, until the host says stop. */
__global__ void stuck(struct cvy_queue q, int64_t *said)
{
	int64_t t;

	do {
		t = cvy_queue_signal(&q, FAR, 1);
	} while (t > 0);
	*said = t;
}

static double seconds(void)
{
	return (double)cvy_q_ticks() * 1e-9;
}

static void check_posters(struct cvy_queue *q, const char *mode)
{
	uint64_t each = 200, threads = 96, bad;
	int good = 1;

	memset(memory, 0, BYTES);
	host[8] = 0;
	posters<<<3, 32>>>(*q, each, host + 8, memory);
	CUDA(cudaDeviceSynchronize());
	bad = host[8];
	for (uint64_t i = 0; i < threads; i++) {
		uint64_t at = FAR + 4096 + i * 128;

		good &= *(uint64_t *)(memory + at) == each * 1000 + i && *(uint64_t *)(memory + at + 64) == each;
	}
	good &= *(uint64_t *)(memory + FAR) == each * threads;
	expect(good && !bad, "96 threads post puts, signals and adds", mode);
}

static void check_stream(struct cvy_queue *q, const char *mode, double ghz)
{
	uint64_t n = 200000, cycles = 0;
	double since;
	int good = 1;

	memset(memory, 0, BYTES);
	host[8] = 0;
	since = seconds();
	streamer<<<1, 1>>>(*q, n, host + 8);
	CUDA(cudaDeviceSynchronize());
	since = seconds() - since;
	for (uint64_t i = n - 63; i <= n; i++)
		good &= *(uint64_t *)(memory + FAR + i % 64 * 8) == i;
	expect(good && !host[8], "200,000 signals of one thread", mode);
	memset(memory, 0, BYTES);
	host[9] = 0;
	pingpong<<<1, 1>>>(*q, (uint64_t *)(memory + FAR), 2000, host + 9);
	CUDA(cudaDeviceSynchronize());
	cycles = host[9];
	expect(cycles > 0, "ping-pong", mode);
	printf("      %s: one thread %.2f M entries/s; there and back %.2f us\n", mode, (double)n / since * 1e-6,
	       (double)cycles / ghz * 1e-3);
}

static void check_streams(struct cvy_queue *q, const char *mode)
{
	static const unsigned threads[] = { 1, 32, 1024 };

	for (unsigned n : threads) {
		unsigned width = n < 32 ? n : 32, blocks = n / width;
		uint64_t all = 1u << 19, each = all / n;
		char what[64];
		double since;
		int good = 1;

		memset(memory, 0, BYTES);
		host[8] = 0;
		since = seconds();
		streamers<<<blocks, width>>>(*q, each, host + 8);
		CUDA(cudaDeviceSynchronize());
		since = seconds() - since;
		for (unsigned i = 0; i < n; i++)
			good &= *(uint64_t *)(memory + FAR + i * 8) == each;
		snprintf(what, sizeof(what), "signals of %u threads, back to back", n);
		expect(good && !host[8], what, mode);
		printf("      %s: %u threads %.2f M entries/s\n", mode, n, (double)all / since * 1e-6);
	}
}

static void run_pair(int mode, int assisted, double ghz)
{
	struct cvy_pair_args args = {};
	struct cvy_bells *bells = NULL;
	struct cvy_region *region;
	struct cvy_pair_name name[2];
	struct cvy_queue_pair *pair[2];
	struct cvy_queue q;
	const char *what = mode == CVY_PAIR_DEVX ? assisted ? "DEVX, assisted" : "DEVX, direct"
			   : assisted		 ? "verbs, assisted"
						 : "verbs, direct";

	OK(cvy_region_open(nic, memory, BYTES, -1, &region));
	if (assisted)
		OK(cvy_bells_open(&reach, 4, &bells));
	args.mode = (enum cvy_pair_mode)mode;
	args.depth = 64;
	args.wait_ticks = WAIT_CYCLES;
	args.abort = host;
	args.local = args.window = region;
	args.bells = bells;
	args.timeout = 14;
	for (int i = 0; i < 2; i++) {
		OK(cvy_pair_open(nic, &args, &pair[i]));
		cvy_pair_name(pair[i], &name[i]);
	}
	for (int i = 0; i < 2; i++)
		OK(cvy_pair_connect(pair[i], &name[!i]));
	cvy_pair_queue(pair[0], &q);
	check_posters(&q, what);
	check_stream(&q, what, ghz);
	if (!assisted) {
		struct softmlx5_plan plan = {};

		plan.seed = 7;
		plan.delay_ns = 2000;
		softmlx5_plan(&plan);
		check_posters(&q, mode == CVY_PAIR_DEVX ? "DEVX, delays" : "verbs, delays");
		plan.delay_ns = 0;
		plan.ack_unit_ns = 1u << 30;
		softmlx5_plan(&plan);
		softmlx5_silence(name[1].qpn);
		host[10] = 0;
		stuck<<<1, 1>>>(q, (int64_t *)(host + 10));
		for (double since = seconds(); seconds() - since < 0.2;)
			;
		__atomic_store_n(host, 1, __ATOMIC_RELEASE);
		CUDA(cudaDeviceSynchronize());
		expect((int64_t)host[10] == CVY_QUEUE_ABORTED, "the abort word ends a wait for room", what);
		__atomic_store_n(host, 0, __ATOMIC_RELEASE);
		OK(cvy_pair_stop(pair[0]));
		stuck<<<1, 1>>>(q, (int64_t *)(host + 10));
		CUDA(cudaDeviceSynchronize());
		expect((int64_t)host[10] == CVY_QUEUE_FAILED, "a stopped queue fails", what);
		expect(cvy_pair_check(pair[0], 1) == COVEY_ERR_PEER, "and the host knows why", what);
		plan.ack_unit_ns = 0;
		softmlx5_plan(&plan);
	}
	for (int i = 0; i < 2; i++)
		cvy_pair_close(pair[i]);
	cvy_bells_close(bells);
	cvy_region_close(region);
}

/* The far end of the proxy's link is memory: what the ring alone costs. */
static uint64_t link_posts;

static int link_post(void *ctx, const struct cvy_ring_command *c)
{
	uint8_t *m = (uint8_t *)ctx;

	link_posts++;
	if (c->op == CVY_RING_PUT)
		memcpy(m + c->remote, m + c->local, c->bytes);
	else if (c->op == CVY_RING_ADD)
		__atomic_fetch_add((uint64_t *)(m + c->remote), c->value, __ATOMIC_SEQ_CST);
	else
		__atomic_store_n((uint64_t *)(m + c->remote), c->value, __ATOMIC_RELEASE);
	return 0;
}

static void link_flush(void *ctx)
{
	(void)ctx;
}

static uint64_t link_done(void *ctx, uint64_t *status)
{
	(void)ctx;
	*status = 0;
	return link_posts;
}

static void run_ring(double ghz)
{
	struct cvy_proxy_args args = {};
	struct cvy_proxy_link link = { memory, BYTES, BYTES, link_post, link_flush, link_done };
	struct cvy_proxy *proxy;
	struct cvy_queue q;

	args.depth = 8192;
	args.queues = 2;
	args.wait_ticks = WAIT_CYCLES;
	args.abort = host;
	args.memory = &reach;
	OK(cvy_proxy_open(&args, &proxy));
	OK(cvy_proxy_attach(proxy, 0, &link));
	cvy_proxy_queue(proxy, 0, &q);
	check_posters(&q, "ring");
	check_stream(&q, "ring", ghz);
	check_streams(&q, "ring");
	cvy_proxy_close(proxy);
}

int main(void)
{
	struct cvy_nic_args args = {};
	int devices = 0, khz = 0;
	char why[160] = "";

	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no device\n");
		return 77;
	}
	box = cvy_errbox_new();
	if (cvy_gpu_queue_memory_open(0, &reach, why, sizeof(why))) {
		printf("FAIL  %s\n", why);
		return 1;
	}
	CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
	CUDA(cudaHostAlloc((void **)&memory, BYTES, cudaHostAllocMapped | cudaHostAllocPortable));
	CUDA(cudaHostAlloc((void **)&host, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(host, 0, 4096);
	args.memory = &reach;
	args.box = box;
	if (cvy_nic_open(&args, &nic)) {
		printf("none  mlx5: %s\n", cause());
	} else {
		for (int way = 0; way < 4; way++)
			run_pair(way & 1 ? CVY_PAIR_DEVX : CVY_PAIR_VERBS, way >> 1, khz * 1e-6);
		cvy_nic_close(nic);
	}
	run_ring(khz * 1e-6);
	cvy_gpu_queue_memory_close(&reach);
	printf("%d failed\n", failures);
	return failures ? 1 : 0;
}
