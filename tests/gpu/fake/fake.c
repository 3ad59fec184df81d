/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is none: libcovey_cuda's table (gpu.h) over shared memory, whose kernels are functions on a thread. It
 * parks, resumes, claims lanes and obeys verdicts as lane.cuh does, so that what collectives/device.c decides in a view
 * change is tested where no device is. Chunks are memfds; "device memory" is what fake_alloc() gives.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "covey.h"
#include "gpu.h"

#define EXPORT __attribute__((visibility("default")))
#define ARENA ((size_t)64 << 20)
#define PLACES (CVY_GPU_RANKS * CVY_GPU_GENERATIONS)

struct launch {
	struct launch *next;
	struct cvy_gpu_call call;
};

struct cvy_gpu {
	struct cvy_gpu_control control;
	struct cvy_gpu_mailbox mailbox;
	uint8_t *in[PLACES], *out[PLACES];
	uint8_t *saved;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct launch *first, **last;
	int busy, closing;
};

struct run { /* as struct cvy_lane_run */
	struct cvy_gpu *gpu;
	const struct cvy_gpu_call *call;
	struct cvy_gpu_lane lane;
	int index, again, complete, touched;
	uint32_t gone;
	unsigned open;
};

static uint8_t *arena;
static size_t used;
static struct cvy_gpu *the_gpu;
EXPORT void *fake_alloc(size_t bytes);
EXPORT void fake_wait(void);

EXPORT void *fake_alloc(size_t bytes)
{
	size_t at;

	if (!arena)
		arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at = used;
	used += (bytes + 63) & ~(size_t)63;
	return arena != MAP_FAILED && used <= ARENA ? arena + at : NULL;
}

/* ---- the kernel ---- */

static unsigned gate(struct cvy_gpu *g)
{
	return (unsigned)(__atomic_load_n(&g->control.entered, __ATOMIC_SEQ_CST) >> CVY_GPU_GATE_SHIFT);
}

static int has(uint32_t mask, int r)
{
	return mask >> r & 1;
}

static size_t place(int rank, uint64_t generations)
{
	return (size_t)rank * CVY_GPU_GENERATIONS + (generations >> (2 * rank) & 3);
}

static uint64_t tile_words(const struct cvy_gpu_call *c)
{
	return (uint64_t)c->rows * (uint64_t)c->threads;
}

static uint64_t word_get(const uint8_t *buf, uint64_t word, uint64_t bytes)
{
	uint64_t v = 0, at = word * 8;

	if (at < bytes)
		memcpy(&v, buf + at, bytes - at < 8 ? bytes - at : 8);
	return v;
}

static void word_put(uint8_t *buf, uint64_t word, uint64_t bytes, uint64_t v)
{
	uint64_t at = word * 8;

	if (at < bytes)
		memcpy(buf + at, &v, bytes - at < 8 ? bytes - at : 8);
}

static void push(uint8_t *slot, uint64_t u, uint64_t v, uint64_t tag)
{
	uint64_t *packet = (uint64_t *)(slot + u * CVY_GPU_PACKET);

	packet[0] = v;
	__atomic_store_n(&packet[1], tag, __ATOMIC_RELEASE);
}

/* 1: the gate closed before the packet was here. */
static int take(struct run *r, const uint8_t *slot, uint64_t u, uint64_t tag, uint64_t *v)
{
	const uint64_t *packet = (const uint64_t *)(slot + u * CVY_GPU_PACKET);

	while (__atomic_load_n(&packet[1], __ATOMIC_ACQUIRE) != tag) {
		if (gate(r->gpu) != r->open)
			return 1;
		sched_yield();
	}
	*v = packet[0];
	return 0;
}

static uint64_t add(uint64_t a, uint64_t b)
{
	return (uint64_t)((uint32_t)(a >> 32) + (uint32_t)(b >> 32)) << 32 | (uint32_t)((uint32_t)a + (uint32_t)b);
}

static const uint8_t *source(const struct run *r, int to)
{
	const struct cvy_gpu_call *c = r->call;

	return c->send + (c->kind == CVY_GPU_ALLTOALL && to < c->size ? (size_t)to * c->bytes : 0);
}

static uint64_t own_word(const struct run *r, size_t slot, uint64_t u, const uint8_t *from, uint64_t word)
{
	const struct cvy_gpu_call *c = r->call;

	if (c->in_place && (r->complete || (r->again && c->steps == 1)))
		return *(const uint64_t *)(r->gpu->saved + slot + u * CVY_GPU_PACKET);
	return word_get(from, word, c->bytes);
}

static void push_word(struct run *r, size_t slot, uint64_t u, uint64_t word, uint64_t tag)
{
	const struct cvy_gpu_call *c = r->call;

	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		uint64_t v = own_word(r, slot, u, source(r, p), word);

		if (!has(r->lane.mask, p))
			continue;
		if (p == c->rank && c->in_place)
			*(uint64_t *)(r->gpu->saved + slot + u * CVY_GPU_PACKET) = v;
		if (p != c->rank)
			push(r->gpu->out[place(p, r->lane.out)] + slot, u, v, tag);
	}
}

static int take_word(struct run *r, size_t slot, uint64_t u, uint64_t word, uint64_t tag)
{
	const struct cvy_gpu_call *c = r->call;
	uint32_t lost = r->complete && cvy_gpu_is_private(c->kind) ? r->gone : 0;
	uint64_t sum = 0, v;

	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		int here = has(r->lane.mask & ~lost, p);

		if (!here && (c->kind == CVY_GPU_ALLREDUCE || p >= c->size))
			continue;
		v = 0;
		if (here && p == c->rank)
			v = own_word(r, slot, u, source(r, p), word);
		else if (here && take(r, r->gpu->in[place(p, r->lane.in)] + slot, u, tag, &v))
			return 1;
		if (c->kind == CVY_GPU_ALLREDUCE)
			sum = add(sum, v);
		else if (c->kind != CVY_GPU_BARRIER && p < c->size)
			word_put(c->recv + (size_t)p * c->bytes, word, c->bytes, v);
	}
	if (c->kind == CVY_GPU_ALLREDUCE)
		word_put(c->recv, word, c->bytes, sum);
	return 0;
}

/* A lane's steps; 1: stopped. A barrier is one word that nobody keeps. */
static int body(struct run *r)
{
	const struct cvy_gpu_call *c = r->call;
	uint64_t words = c->kind == CVY_GPU_BARRIER ? 1 : (c->bytes + 7) / 8, tile = tile_words(c);

	for (int step = r->complete ? c->steps - 1 : 0; step < c->steps; step++) {
		uint32_t count = r->lane.count + 1 + (uint32_t)step;
		uint64_t base = ((uint64_t)step * (uint64_t)c->lanes + (uint64_t)r->index) * tile;
		size_t slot = cvy_gpu_slot_at(0, r->index, count);
		uint64_t tag = CVY_GPU_TAG(r->lane.epoch, count);

		for (uint64_t u = 0; u < tile && base + u < words && !r->complete; u++)
			push_word(r, slot, u, base + u, tag);
		for (uint64_t u = 0; u < tile && base + u < words; u++)
			if (take_word(r, slot, u, base + u, tag))
				return 1;
	}
	return 0;
}

static void lane_done(struct run *r, uint64_t op)
{
	struct cvy_gpu_control *control = &r->gpu->control;
	uint32_t missing = r->complete && cvy_gpu_is_private(r->call->kind) ? r->gone & r->lane.mask : 0;

	control->past[r->index] = (struct cvy_gpu_past){ CVY_GPU_DONE(op, r->lane.epoch),
							 (uint64_t)(uint32_t)(op + 1) << 32 | r->lane.count };
	control->lane[r->index].count = r->lane.count + (uint32_t)r->call->steps;
	if (!r->index || missing)
		control->status = (struct cvy_gpu_status){ r->lane.failed == (uint32_t)op + 1 ? COVEY_ERR_LOST : 0,
							   r->lane.epoch, op, r->lane.mask, missing };
}

static void say_parked(struct run *r, uint64_t op)
{
	const struct cvy_gpu_call *c = r->call;
	struct cvy_gpu_parked *p = &r->gpu->control.parked;

	p->op = op;
	p->lanes = (uint32_t)c->lanes;
	p->steps = (uint32_t)c->steps;
	p->rounds = 1;
	p->slot_bytes = (uint32_t)(c->rows * c->threads * CVY_GPU_PACKET);
	p->private_parts = (uint32_t)cvy_gpu_is_private(c->kind);
	if (c->in_place && c->steps > 1 && r->touched)
		p->spoiled = (uint32_t)op + 1;
}

static int park(struct run *r, uint64_t op)
{
	struct cvy_gpu_control *control = &r->gpu->control;
	const struct cvy_gpu_call *c = r->call;
	uint64_t quanta = CVY_GPU_QUANTA / (uint64_t)c->lanes;

	say_parked(r, op);
	__atomic_fetch_add(&control->stopped, quanta, __ATOMIC_SEQ_CST);
	while ((gate(r->gpu) & 1) && !__atomic_load_n(&control->verdict.ended, __ATOMIC_ACQUIRE))
		sched_yield();
	__atomic_fetch_sub(&control->stopped, quanta, __ATOMIC_SEQ_CST);
	return control->verdict.ended;
}

static int claim(struct run *r, int i, int own, uint64_t op, uint32_t epoch)
{
	struct cvy_gpu_past *past = &r->gpu->control.past[i];
	uint64_t want = CVY_GPU_DONE(op, epoch);

	if (past->done == want || (i != own && (uint32_t)past->done != (uint32_t)want))
		return 0;
	past->done = want;
	r->index = i;
	r->lane = r->gpu->control.lane[i];
	if (past->counted >> 32 == (uint32_t)(op + 1))
		r->lane.count = (uint32_t)past->counted;
	r->again = 1;
	r->complete = 0;
	r->open = CVY_GPU_GATE_OPEN(epoch);
	r->touched = 1;
	if (r->call->in_place && r->call->steps > 1)
		say_parked(r, op);
	return 1;
}

/* All lanes that are for this one; 1: stopped. */
static int do_again(struct run *r, int own, uint64_t op)
{
	uint32_t epoch = r->gpu->control.verdict.epoch;

	for (int i = 0; i < r->call->lanes; i++) {
		if (!claim(r, i, own, op, epoch))
			continue;
		if (body(r) || gate(r->gpu) != r->open)
			return 1;
		lane_done(r, op);
	}
	return 0;
}

static int do_complete(struct run *r, uint64_t op)
{
	const struct cvy_gpu_control *control = &r->gpu->control;

	r->lane.in = control->lane[r->index].in;
	r->complete = 1;
	r->gone = control->verdict.gone;
	r->open = CVY_GPU_GATE_OPEN(control->verdict.epoch);
	if (body(r) || gate(r->gpu) != r->open)
		return 1;
	lane_done(r, op);
	return 0;
}

static void cta(struct cvy_gpu *g, const struct cvy_gpu_call *c, int index)
{
	uint64_t quanta = CVY_GPU_QUANTA / (uint64_t)c->lanes, entered, op;
	struct run r = { .gpu = g, .call = c, .lane = g->control.lane[index], .index = index };
	int stopped;

	r.open = CVY_GPU_GATE_OPEN(r.lane.epoch);
	entered = __atomic_fetch_add(&g->control.entered, quanta, __ATOMIC_SEQ_CST);
	op = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
	stopped = c->in_place && c->steps > 1 && entered >> CVY_GPU_GATE_SHIFT != r.open;
	r.touched = !stopped;
	if (!stopped && c->in_place && c->steps > 1) /* who spoils inputs says so before */
		say_parked(&r, op);
	stopped = stopped || body(&r) || entered >> CVY_GPU_GATE_SHIFT != r.open;
	if (!stopped)
		lane_done(&r, op);
	while (stopped) {
		if (park(&r, op)) {
			g->control.status.op = op;
			g->control.status.status = g->control.verdict.ended;
			break;
		}
		stopped = op < g->control.verdict.base ? do_complete(&r, op) : do_again(&r, index, op);
	}
	__atomic_fetch_add(&g->control.finished, quanta, __ATOMIC_SEQ_CST);
}

static void *stream_main(void *arg)
{
	struct cvy_gpu *g = arg;

	pthread_mutex_lock(&g->lock);
	for (;;) {
		struct launch *l = g->first;

		if (!l && g->closing)
			break;
		if (!l) {
			pthread_cond_wait(&g->changed, &g->lock);
			continue;
		}
		g->first = l->next;
		if (!g->first)
			g->last = &g->first;
		g->busy = 1;
		pthread_mutex_unlock(&g->lock);
		for (int i = 0; i < l->call.lanes; i++)
			cta(g, &l->call, i);
		free(l);
		pthread_mutex_lock(&g->lock);
		g->busy = 0;
		pthread_cond_broadcast(&g->changed);
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* ---- the table ---- */

static int fake_unmap(uint8_t **at)
{
	if (*at)
		munmap(*at, CVY_GPU_CHUNK);
	*at = NULL;
	return 0;
}

static int fake_map(uint8_t **at, int fd)
{
	fake_unmap(at);
	*at = mmap(NULL, CVY_GPU_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (*at != MAP_FAILED)
		return 0;
	*at = NULL;
	return COVEY_ERR_NOMEM;
}

static int fake_open(int device, int late_ms, int park_ms, struct cvy_gpu **out, char *why, size_t why_bytes)
{
	struct cvy_gpu *g = aligned_alloc(128, (sizeof(*g) + 127) & ~(size_t)127);

	(void)late_ms;
	(void)park_ms;
	if (device > 63) {
		snprintf(why, why_bytes, "device %d: there are devices 0 to 63", device);
		free(g);
		return COVEY_ERR_INVAL;
	}
	if (!g)
		return COVEY_ERR_NOMEM;
	memset(g, 0, sizeof(*g));
	g->saved =
		mmap(NULL, CVY_GPU_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	g->control.entered = (uint64_t)CVY_GPU_GATE_CLOSED(0) << CVY_GPU_GATE_SHIFT;
	g->last = &g->first;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	the_gpu = g;
	*out = g;
	return pthread_create(&g->thread, NULL, stream_main, g) ? COVEY_ERR_NOMEM : 0;
}

static int fake_chunk(struct cvy_gpu *g, int rank, int generation, int *fd)
{
	*fd = getenv("FAKE_NO_CHUNK") ? -1 : (int)memfd_create("fake-chunk", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, (off_t)CVY_GPU_CHUNK))
		return COVEY_ERR_IO;
	return fake_map(&g->in[rank * CVY_GPU_GENERATIONS + generation], *fd);
}

static int fake_unchunk(struct cvy_gpu *g, int rank, int generation)
{
	return fake_unmap(&g->in[rank * CVY_GPU_GENERATIONS + generation]);
}

static int fake_attach(struct cvy_gpu *g, int rank, int generation, int fd)
{
	return fake_map(&g->out[rank * CVY_GPU_GENERATIONS + generation], fd);
}

static int fake_detach(struct cvy_gpu *g, int rank, int generation)
{
	return fake_unmap(&g->out[rank * CVY_GPU_GENERATIONS + generation]);
}

static int fake_gate(struct cvy_gpu *g, uint8_t value)
{
	__atomic_store_n((uint8_t *)&g->control.entered + CVY_GPU_GATE_SHIFT / 8, value, __ATOMIC_SEQ_CST);
	return 0;
}

static int fake_counters(struct cvy_gpu *g, struct cvy_gpu_counters *c, int all)
{
	c->finished = __atomic_load_n(&g->control.finished, __ATOMIC_SEQ_CST);
	c->stopped = __atomic_load_n(&g->control.stopped, __ATOMIC_SEQ_CST);
	c->entered = __atomic_load_n(&g->control.entered, __ATOMIC_SEQ_CST);
	c->gate = (uint8_t)(c->entered >> CVY_GPU_GATE_SHIFT);
	c->entered &= CVY_GPU_COUNT_MASK;
	if (all) {
		c->parked = g->control.parked;
		memcpy(c->lane, g->control.lane, sizeof(c->lane));
		memcpy(c->past, g->control.past, sizeof(c->past));
	}
	return 0;
}

static int fake_words(struct cvy_gpu *g, const struct cvy_gpu_lane *lanes, const uint64_t *fresh,
		      const struct cvy_gpu_verdict *verdict)
{
	if (fresh) {
		__atomic_store_n(&g->control.entered,
				 *fresh * CVY_GPU_QUANTA | (uint64_t)CVY_GPU_GATE_CLOSED(0) << CVY_GPU_GATE_SHIFT,
				 __ATOMIC_SEQ_CST);
		__atomic_store_n(&g->control.finished, *fresh * CVY_GPU_QUANTA, __ATOMIC_SEQ_CST);
	}
	memcpy(g->control.lane, lanes, sizeof(g->control.lane));
	g->control.verdict.base = verdict->base;
	g->control.verdict.gone = verdict->gone;
	g->control.verdict.epoch = verdict->epoch;
	__atomic_store_n(&g->control.verdict.ended, verdict->ended, __ATOMIC_RELEASE);
	return 0;
}

static int fake_read(struct cvy_gpu *g, int rank, int generation, size_t at, void *to, size_t bytes)
{
	const uint8_t *chunk = g->in[rank * CVY_GPU_GENERATIONS + generation];

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return COVEY_ERR_INVAL;
	memcpy(to, chunk + at, bytes);
	return 0;
}

static int fake_write(struct cvy_gpu *g, int rank, int generation, size_t at, const void *from, size_t bytes)
{
	uint8_t *chunk = g->in[rank * CVY_GPU_GENERATIONS + generation];

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return COVEY_ERR_INVAL;
	memcpy(chunk + at, from, bytes);
	return 0;
}

static int fake_is_device(const void *at)
{
	return arena && (size_t)((const uint8_t *)at - arena) < ARENA;
}

static int fake_launch(struct cvy_gpu *g, struct cvy_gpu_call *call, struct CUstream_st *stream)
{
	struct launch *l = calloc(1, sizeof(*l));

	(void)stream;
	if (!l)
		return COVEY_ERR_NOMEM;
	if (call->kind != CVY_GPU_ALLREDUCE && call->kind != CVY_GPU_ALLREDUCE_TWO_SHOT &&
	    call->kind != CVY_GPU_ALLGATHER && call->kind != CVY_GPU_ALLTOALL && call->kind != CVY_GPU_BARRIER) {
		free(l);
		return COVEY_ERR_UNSUPPORTED;
	}
	l->call = *call;
	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		l->call.kind = CVY_GPU_ALLREDUCE;
	l->call.packet = CVY_GPU_PAIR;
	l->call.threads = 64;
	l->call.rows = 1;
	l->call.lanes = 4;
	l->call.steps = cvy_gpu_steps(&l->call, (call->bytes + 7) / 8);
	pthread_mutex_lock(&g->lock);
	*g->last = l;
	g->last = &l->next;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
	return 0;
}

static int fake_synchronise(struct cvy_gpu *g)
{
	pthread_mutex_lock(&g->lock);
	while (g->first || g->busy)
		pthread_cond_wait(&g->changed, &g->lock);
	pthread_mutex_unlock(&g->lock);
	return 0;
}

EXPORT void fake_wait(void)
{
	fake_synchronise(the_gpu);
}

static void fake_close(struct cvy_gpu *g)
{
	__atomic_store_n(&g->control.verdict.ended, COVEY_ERR_CLOSED, __ATOMIC_RELEASE);
	fake_gate(g, CVY_GPU_GATE_CLOSED(0));
	pthread_mutex_lock(&g->lock);
	g->closing = 1;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	for (int i = 0; i < PLACES; i++) {
		fake_unmap(&g->in[i]);
		fake_unmap(&g->out[i]);
	}
	munmap(g->saved, CVY_GPU_CHUNK);
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->changed);
	free(g);
}

static const struct cvy_gpu_mailbox *fake_mailbox(struct cvy_gpu *g)
{
	return &g->mailbox;
}

static const char *fake_why(const struct cvy_gpu *g)
{
	(void)g;
	return "the device that is none";
}

static const struct cvy_gpu_status *fake_status(struct cvy_gpu *g)
{
	return &g->control.status;
}

static int fake_status_read(struct cvy_gpu *g, struct cvy_gpu_status *to)
{
	*to = g->control.status;
	return 0;
}

EXPORT extern const struct cvy_gpu_ops cvy_gpu_ops;
const struct cvy_gpu_ops cvy_gpu_ops = {
	.abi = CVY_GPU_ABI,
	.open = fake_open,
	.close = fake_close,
	.why = fake_why,
	.describe = fake_why,
	.chunk = fake_chunk,
	.unchunk = fake_unchunk,
	.attach = fake_attach,
	.detach = fake_detach,
	.gate = fake_gate,
	.counters = fake_counters,
	.words = fake_words,
	.read = fake_read,
	.write = fake_write,
	.mailbox = fake_mailbox,
	.is_device = fake_is_device,
	.launch = fake_launch,
	.synchronise = fake_synchronise,
	.status = fake_status,
	.status_read = fake_status_read,
};
