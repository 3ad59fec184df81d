/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks that are of two hosts for each other, with a network between them that does what it is told: it holds back
 * what is put, or brings it in part. What a deadline must see to where a rank is passed over: what has not left is not
 * written over, what is written over while it is read counts for nothing, and afterwards all is as ever.
 */
#include "ep_compare.cuh"
#include "queues.h"

#define GENERATION 1
#define LANES 4
#define DEADLINE_MS 100
#define LINE CVY_EP_LINE_BYTES

enum way { OPEN, HELD, TORN }; /* TORN: lines come but for their tags */

/* From one rank to the other. */
static struct wire {
	uint8_t *from, *to; /* what stands for the chunk; the chunk */
	struct cvy_ring_command command[CVY_PROXY_UNDER_WAY];
	uint64_t posted, done;
	enum way way;
	struct cvy_queue_memory reach;
	struct cvy_proxy *proxy;
	uint64_t *abort;
} wire[2];

static int post(void *ctx, const struct cvy_ring_command *c)
{
	struct wire *w = (struct wire *)ctx;

	w->command[w->posted % CVY_PROXY_UNDER_WAY] = *c;
	__atomic_store_n(&w->posted, w->posted + 1, __ATOMIC_RELEASE);
	return 0;
}

static void bring(struct wire *w, const struct cvy_ring_command *c)
{
	if (c->op == CVY_RING_SIGNAL) {
		cvy_q_store((uint64_t *)(w->to + c->remote), c->value);
		return;
	}
	for (uint64_t at = 0; at < c->bytes; at += 8)
		if (__atomic_load_n(&w->way, __ATOMIC_ACQUIRE) != TORN || (c->remote + at) % LINE != LINE - 8)
			cvy_q_store((uint64_t *)(w->to + c->remote + at), *(uint64_t *)(w->from + c->local + at));
}

static void flush(void *)
{
}

static uint64_t done(void *ctx, uint64_t *status)
{
	struct wire *w = (struct wire *)ctx;

	*status = 0;
	while (__atomic_load_n(&w->way, __ATOMIC_ACQUIRE) != HELD && w->done < w->posted) {
		bring(w, &w->command[w->done % CVY_PROXY_UNDER_WAY]);
		__atomic_store_n(&w->done, w->done + 1, __ATOMIC_RELEASE);
	}
	return w->done;
}

static void set(struct wire *w, enum way way)
{
	__atomic_store_n(&w->way, way, __ATOMIC_RELEASE);
}

/* Until the proxy has nothing to do for it any more. */
static void settle(struct wire *w)
{
	while (!cvy_proxy_idle(w->proxy))
		usleep(100);
}

static void open_wire(int from)
{
	struct wire *w = &wire[from];
	struct cvy_gpu *gpu = ranks[from].gpu;
	uint32_t number = (uint32_t)(!from * CVY_GPU_GENERATIONS + GENERATION);
	struct cvy_proxy_link link = { w, CVY_GPU_CHUNK, CVY_GPU_CHUNK, post, flush, done };
	struct cvy_proxy_args args = { 8192, CVY_GPU_RANKS * CVY_GPU_GENERATIONS, 0, NULL, &w->reach };
	struct cvy_queue queue;
	char why[160];
	void *seen;

	OK(gpu, ops->far_chunk(ranks[!from].gpu, from, GENERATION, 0, (void **)&w->to));
	OK(gpu, ops->far_chunk(gpu, !from, GENERATION, 1, (void **)&w->from));
	OK(gpu, ops->reach(gpu, &w->reach));
	w->abort = (uint64_t *)aligned_alloc(4096, 4096);
	memset(w->abort, 0, 4096);
	OK(gpu, w->reach.map(w->reach.ctx, w->abort, 4096, 0, &seen, why, sizeof(why)));
	args.abort = (uint64_t *)seen;
	OK(gpu, cvy_proxy_open(&args, &w->proxy));
	OK(gpu, cvy_proxy_attach(w->proxy, number, &link));
	cvy_proxy_queue(w->proxy, number, &queue);
	OK(gpu, ops->queue(gpu, !from, GENERATION, &queue, 1000));
	ranks[!from].in = (ranks[!from].in & ~(3ull << (2 * from))) | (uint64_t)GENERATION << (2 * from);
	ranks[from].outgen = (ranks[from].outgen & ~(3ull << (2 * !from))) | (uint64_t)GENERATION << (2 * !from);
}

static void close_wire(int from)
{
	struct wire *w = &wire[from];

	cvy_proxy_close(w->proxy);
	w->reach.unmap(w->reach.ctx, w->abort, 4096);
	free(w->abort);
}

/* A view in which the two are of two hosts. */
static void part(int r)
{
	struct cvy_gpu_verdict v = { epoch, 0, finished(r), 0, 0 };
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, mask, CVY_GPU_FAR, ranks[r].in, ranks[r].outgen };
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, &ranks[r].roll, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

static struct setup setup_of(int once)
{
	struct setup s = {};

	s.shape.hidden = 264;
	s.shape.tokens = 16;
	s.shape.top_k = 4;
	s.shape.experts = 6;
	s.shape.once = once;
	s.lanes = LANES;
	s.timeout_ms = DEADLINE_MS;
	for (int e = 0; e < s.shape.experts; e++)
		s.owner[e] = e / 3;
	prepare(&s);
	return s;
}

/* Dispatch of @r alone, which goes on without the other, and counts it as active all the same. */
static void alone(const struct setup *s, int r)
{
	launch_ep(s, r, CVY_GPU_DISPATCH, CVY_EP_SEND | CVY_EP_RECV);
	CUDA(cudaStreamSynchronize(ranks[r].stream));
	upload(r, ACTIVE);
}

/* Everybody, for as long as it takes. */
static void both(const struct setup *given, const char *what)
{
	struct setup s = *given;

	s.timeout_ms = 0;
	for (int kind = CVY_GPU_DISPATCH; kind <= CVY_GPU_COMBINE; kind++) {
		if (kind == CVY_GPU_COMBINE)
			compute(&s, mask);
		go(&s, kind, mask);
		synchronise();
		if (kind == CVY_GPU_DISPATCH)
			check_dispatch(&s, what, mask, mask, 0);
		else
			check_combine(&s, what, mask, mask);
		expect_missing(&s, what, mask, 0);
	}
}

static struct job sum_of(void)
{
	struct job j = job_of(CVY_GPU_ALLREDUCE, COVEY_INT32, 300, LANES);

	j.packet = CVY_GPU_PAIR;
	return j;
}

/* An operation that knows no deadline, next to them. */
static void sum(int r)
{
	struct job j = sum_of();

	for (size_t i = 0; i < j.count; i++)
		((int32_t *)(ranks[r].host))[i] = (int32_t)i + r;
	CUDA(cudaMemcpy(ranks[r].send + pad_at(&j, r), ranks[r].host, j.count * 4, cudaMemcpyHostToDevice));
	launch(&j, r);
}

static void check_sum(const char *what)
{
	struct job j = sum_of();

	synchronise();
	for (int r = 0; r < n; r++) {
		const int32_t *got = (const int32_t *)ranks[r].out;

		CUDA(cudaMemcpy(ranks[r].out, recv_at(&j, r), j.count * 4, cudaMemcpyDeviceToHost));
		checks++;
		for (size_t i = 0; i < j.count; i++) {
			if (got[i] == 2 * (int32_t)i + 1)
				continue;
			failures++;
			fprintf(stderr, "%s: rank %d: sum %zu is %d\n", what, r, i, got[i]);
			break;
		}
	}
}

static void unchanged(const struct setup *s, const char *what, const uint8_t *before, uint64_t posted)
{
	checks++;
	if (memcmp(before, wire[0].from, CVY_GPU_SIGNALS) || posted != wire[0].posted)
		complain(s, what, 0, "what has not left", 0, (unsigned)wire[0].posted, (unsigned)posted);
}

/* Puts to a rank that does not answer stay where they are: their slots stand as they were. */
static void held(int once)
{
	const char *what = once ? "held, compact" : "held";
	struct setup s = setup_of(once);
	uint8_t *before = (uint8_t *)malloc(CVY_GPU_SIGNALS);
	uint64_t posted = 0;

	set(&wire[0], HELD);
	for (int i = 0; i < 3; i++) {
		alone(&s, 0);
		expect_missing(&s, what, 1, 2);
		if (i == 0) {
			memcpy(before, wire[0].from, CVY_GPU_SIGNALS);
			posted = wire[0].posted;
		}
		unchanged(&s, what, before, posted);
	}
	set(&wire[0], OPEN);
	settle(&wire[0]);
	alone(&s, 1); /* the first has come, whole */
	check_dispatch(&s, what, mask, 2, 0);
	expect_missing(&s, what, 2, 0);
	for (int i = 0; i < 2; i++) {
		alone(&s, 1);
		expect_missing(&s, what, 2, 1);
	}
	both(&s, what);
	free(before);
}

/* The same for an operation without a deadline, which waits. */
static void held_sum(void)
{
	const char *what = "held, then a sum";
	struct setup s = setup_of(0);
	uint8_t *before = (uint8_t *)malloc(CVY_GPU_SIGNALS);

	set(&wire[0], HELD);
	alone(&s, 0);
	memcpy(before, wire[0].from, CVY_GPU_SIGNALS);
	alone(&s, 0);
	sum(0);
	usleep(20000); /* were it to push, it would have */
	unchanged(&s, what, before, wire[0].posted);
	set(&wire[0], OPEN);
	for (int i = 0; i < 2; i++)
		alone(&s, 1);
	sum(1);
	check_sum(what);
	both(&s, what);
	free(before);
}

/* A rank two steps behind reads what is being written over: the other is missing, and none of its rows is there. */
static void overtaken(int once)
{
	const char *what = once ? "overtaken, compact" : "overtaken";
	struct setup s = setup_of(once);

	for (int i = 0; i < 3; i++) {
		if (i == 2) {
			settle(&wire[0]);
			set(&wire[0], TORN);
			poison(0, X);
		}
		alone(&s, 0);
		expect_missing(&s, what, 1, 2);
	}
	settle(&wire[0]);
	set(&wire[0], OPEN);
	alone(&s, 1);
	check_dispatch(&s, what, 2, 2, 0);
	expect_missing(&s, what, 2, 1);
	for (int i = 0; i < 2; i++)
		alone(&s, 1);
	prepare(&s);
	both(&s, what);
}

/*
 * A rank of another host waits without a deadline for what has been written over since: it says so, since nothing comes. Its host
 * ends it, so this is the last.
 */
static void outrun(void)
{
	const char *what = "outrun";
	struct setup s = setup_of(0);
	const uint64_t op = finished(1);
	const struct cvy_gpu_mailbox *box = ops->mailbox(ranks[1].gpu);
	const uint64_t late = box->late[0];
	uint64_t told;

	for (int i = 0; i < 3; i++)
		alone(&s, 0);
	settle(&wire[0]);
	s.timeout_ms = 0;
	launch_ep(&s, 1, CVY_GPU_DISPATCH, CVY_EP_SEND | CVY_EP_RECV);
	while (!__atomic_load_n(&box->outrun[0], __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&box->late[0], __ATOMIC_ACQUIRE) == late && finished(1) == op)
		usleep(100);
	told = __atomic_load_n(&box->outrun[0],
			       __ATOMIC_ACQUIRE); /* it looks there before it says that the other is late */
	checks++;
	if (told != op + 1)
		complain(&s, what, 1, "what it tells", 0, (unsigned)told, (unsigned)op + 1);
	OK(ranks[1].gpu, ops->gate(ranks[1].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	end(1);
}

int main(void)
{
	n = 2;
	open_all();
	make_room();
	for (int r = 0; r < n; r++)
		freeze(r);
	epoch++;
	for (int r = 0; r < n; r++)
		open_wire(r);
	for (int r = 0; r < n; r++)
		part(r);
	for (int once = 0; once < 2; once++) {
		struct setup s = setup_of(once);

		both(&s, "two hosts");
		held(once);
		overtaken(once);
	}
	held_sum();
	outrun();
	printf("%d checks, %d failed\n", checks, failures);
	for (int r = 0; r < n; r++) {
		cvy_gpu_ep_ops.state_free(ranks[r].gpu, side[r].state, BEHIND);
		close_wire(r);
	}
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	return failures != 0;
}
