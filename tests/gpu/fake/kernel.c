/* SPDX-License-Identifier: Apache-2.0 */
/* What runs on the device that is none: operations as operate.cuh and admit.cuh have them, in plain C, on one thread. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

struct run { /* as struct cvy_lane_run */
	struct cvy_gpu *gpu;
	const struct cvy_gpu_call *call;
	struct cvy_gpu_lane lane;
	int index, again, complete, touched, steps, wrong;
	int own, saved; /* lane of the CTA; its inputs in place have been */
	uint32_t gone;
	unsigned open;
};

static unsigned gate(const struct cvy_gpu_control *control)
{
	return (unsigned)(__atomic_load_n(&control->entered, __ATOMIC_SEQ_CST) >> CVY_GPU_GATE_SHIFT);
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
		if (gate(&r->gpu->control) != r->open)
			return 1;
		sched_yield();
	}
	*v = packet[0];
	return 0;
}

static uint64_t add(const struct cvy_gpu_call *c, uint64_t a, uint64_t b)
{
	float x[2], y[2];

	if (c->dtype != COVEY_FLOAT32)
		return (uint64_t)((uint32_t)(a >> 32) + (uint32_t)(b >> 32)) << 32 |
		       (uint32_t)((uint32_t)a + (uint32_t)b);
	memcpy(x, &a, 8);
	memcpy(y, &b, 8);
	x[0] += y[0];
	x[1] += y[1];
	memcpy(&a, x, 8);
	return a;
}

static int folds(const struct cvy_gpu_call *c)
{
	return c->kind == CVY_GPU_ALLREDUCE || c->kind == CVY_GPU_REDUCE || c->kind == CVY_GPU_REDUCE_SCATTER;
}

/* What goes to @to; NULL: a word that says no more than that it has come. */
static const uint8_t *source(const struct run *r, int to)
{
	const struct cvy_gpu_call *c = r->call;
	int blocks = c->kind == CVY_GPU_ALLTOALL || c->kind == CVY_GPU_REDUCE_SCATTER || c->kind == CVY_GPU_SCATTER;

	if ((c->kind == CVY_GPU_SCATTER || c->kind == CVY_GPU_BROADCAST) && c->rank != c->root)
		return NULL;
	if (!blocks)
		return c->send;
	return to < c->size ? c->send + (size_t)to * c->bytes : NULL;
}

/* Where what comes from @from goes; NULL: nowhere. */
static uint8_t *target(const struct run *r, int from)
{
	const struct cvy_gpu_call *c = r->call;

	if (c->kind == CVY_GPU_SCATTER || c->kind == CVY_GPU_BROADCAST)
		return from == c->root ? c->recv : NULL;
	if (c->kind >= CVY_GPU_BARRIER || from >= c->size || (c->kind == CVY_GPU_GATHER && c->rank != c->root))
		return NULL;
	return c->recv + (size_t)from * c->bytes;
}

static uint64_t own_word(const struct run *r, size_t slot, uint64_t u, const uint8_t *from, uint64_t word)
{
	const struct cvy_gpu_call *c = r->call;

	if (c->in_place && (r->complete || (r->again && c->steps == 1 && (r->saved || r->index != r->own))))
		return *(const uint64_t *)(r->gpu->saved + slot + u * CVY_GPU_PACKET);
	return from ? word_get(from, word, c->bytes) : 0;
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

/* Who completes it does without the packets of the removed. */
static int no_packets(const struct cvy_gpu_call *c)
{
	return cvy_gpu_is_private(c->kind) || c->kind == CVY_GPU_ADMIT;
}

static int take_word(struct run *r, size_t slot, uint64_t u, uint64_t word, uint64_t tag)
{
	const struct cvy_gpu_call *c = r->call;
	uint32_t lost = r->complete && no_packets(c) ? r->gone : 0;
	uint64_t sum = 0, v;
	int begun = 0;

	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		int here = has(r->lane.mask & ~lost, p);

		if (!here && (folds(c) || p >= c->size))
			continue;
		v = 0;
		if (here && p == c->rank)
			v = own_word(r, slot, u, source(r, p), word);
		else if (here && take(r, r->gpu->in[place(p, r->lane.in)] + slot, u, tag, &v))
			return 1;
		if (folds(c))
			sum = begun ? add(c, sum, v) : v;
		else if (target(r, p))
			word_put(target(r, p), word, c->bytes, v);
		begun = 1;
	}
	if (folds(c) && (c->kind != CVY_GPU_REDUCE || c->rank == c->root))
		word_put(c->recv, word, c->bytes, sum);
	return 0;
}

static uint8_t *welcome(uint8_t *chunk, int i)
{
	return chunk + CVY_GPU_WELCOME + (size_t)i * CVY_GPU_PACKET;
}

static void note_admitted(struct cvy_gpu_control *control, uint64_t op, uint32_t epoch, uint32_t mask)
{
	control->admitted.era = (struct cvy_gpu_era){ op, epoch, mask, 0, 0 };
	for (int i = 0; i < CVY_GPU_LANES; i++)
		control->admitted.count[i] = control->lane[i].count;
}

/* As admit.cuh: counts the newcomers in and tells them. */
static void take_in(struct run *r, uint64_t op)
{
	struct cvy_gpu_control *control = &r->gpu->control;
	uint32_t come = r->call->admits & control->roll.members & ~r->lane.mask, mask;
	uint64_t tag = CVY_GPU_TAG(r->lane.epoch, 1);

	for (int p = 0; p < CVY_GPU_RANKS; p++)
		if (has(come, p) && control->roll.since[p] > r->call->admit_epoch)
			come &= ~(1u << p);
	mask = r->complete ? cvy_gpu_era_of(&control->roll, op).mask : r->lane.mask | come;
	control->status.mask = mask;
	for (int p = 0; p < CVY_GPU_RANKS && !r->complete; p++) {
		uint8_t *chunk = r->gpu->out[place(p, r->lane.out)];

		if (!has(come, p))
			continue;
		for (int i = 0; i < CVY_GPU_WELCOME_OP; i++)
			push(welcome(chunk, i), 0,
			     control->lane[2 * i].count | (uint64_t)control->lane[2 * i + 1].count << 32, tag);
		push(welcome(chunk, CVY_GPU_WELCOME_OP), 0, op + 1, tag);
		push(welcome(chunk, CVY_GPU_WELCOME_MASK), 0, mask, tag);
	}
	for (int i = 0; i < CVY_GPU_LANES && !r->complete; i++)
		control->lane[i].mask = mask;
	if (come && !r->complete)
		note_admitted(control, op, r->lane.epoch, mask);
}

/* ---- blocks of different sizes, as uneven.cuh has them ---- */

static const struct cvy_gpu_uneven *blocks(const struct run *r)
{
	return (const struct cvy_gpu_uneven *)r->call;
}

/* Where it stands that a rank has come to a step, and with what. Of allgatherv it is in what a holder gives. */
static size_t word_at(const struct run *r, uint32_t count)
{
	return r->call->kind == CVY_GPU_ALLGATHERV ? cvy_gpu_signal_at(0, r->index, count)
						   : cvy_gpu_slot_at(1, r->index, count);
}

static void uneven_push(struct run *r, uint32_t count, uint64_t base, uint64_t tag)
{
	const struct cvy_gpu_uneven *b = blocks(r);

	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		uint8_t *chunk = r->gpu->out[place(p, r->lane.out)];

		if (p == r->call->rank || !has(r->lane.mask, p))
			continue;
		push(chunk + word_at(r, count), 0, b->send[p], tag);
		if (r->call->kind == CVY_GPU_ALLTOALLV)
			push(chunk + word_at(r, count), 1, (uint64_t)r->call->steps, tag);
		for (uint64_t u = 0; u < tile_words(r->call) && base + u < (b->send[p] + 7) / 8; u++)
			push(chunk + cvy_gpu_slot_at(0, r->index, count), u,
			     word_get(r->call->send + b->send_at[p], base + u, b->send[p]), tag);
	}
}

/* What each rank says of the step: bytes, and the most steps that one needs. 1: stopped. */
static int uneven_hear(struct run *r, uint32_t count, uint32_t sources, uint64_t tag, uint64_t *bytes)
{
	const struct cvy_gpu_uneven *b = blocks(r);
	int most = r->call->steps;

	r->wrong = 0;
	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		const uint8_t *said = r->gpu->in[place(p, r->lane.in)] + word_at(r, count);
		uint64_t needs = 1;

		bytes[p] = p == r->call->rank ? b->send[p] : 0;
		if (!has(sources, p))
			continue;
		if (p != r->call->rank && take(r, said, 0, tag, &bytes[p]))
			return 1;
		if (p != r->call->rank && r->call->kind == CVY_GPU_ALLTOALLV && take(r, said, 1, tag, &needs))
			return 1;
		if (bytes[p] != b->recv[p])
			r->wrong = COVEY_ERR_MISMATCH;
		if ((int)needs > most)
			most = (int)needs;
	}
	if (!r->complete)
		r->steps = most;
	return 0;
}

static int uneven_take(struct run *r, uint32_t count, uint64_t base, uint32_t sources, uint64_t tag,
		       const uint64_t *bytes)
{
	const struct cvy_gpu_uneven *b = blocks(r);

	for (int p = 0; p < CVY_GPU_RANKS; p++) {
		const uint8_t *slot = r->gpu->in[place(p, r->lane.in)] + cvy_gpu_slot_at(0, r->index, count);
		uint64_t n = bytes[p] < b->recv[p] ? bytes[p] : b->recv[p], v;

		for (uint64_t u = 0; has(sources, p) && u < tile_words(r->call); u++) {
			if (base + u >= (bytes[p] + 7) / 8)
				break;
			if (p == r->call->rank)
				v = word_get(r->call->send + b->send_at[p], base + u, b->send[p]);
			else if (take(r, slot, u, tag, &v))
				return 1;
			word_put(r->call->recv + b->recv_at[p], base + u, n, v);
		}
	}
	return 0;
}

static int uneven(struct run *r)
{
	const struct cvy_gpu_call *c = r->call;
	uint32_t sources = r->lane.mask & ~(r->complete && cvy_gpu_is_private(c->kind) ? r->gone : 0);
	uint64_t bytes[CVY_GPU_RANKS];

	for (int step = r->complete ? r->steps - 1 : 0; step < r->steps; step++) {
		uint32_t count = r->lane.count + 1 + (uint32_t)step;
		uint64_t base = ((uint64_t)step * (uint64_t)c->lanes + (uint64_t)r->index) * tile_words(c);
		uint64_t tag = CVY_GPU_TAG(r->lane.epoch, count);

		if (!r->complete)
			uneven_push(r, count, base, tag);
		if (uneven_hear(r, count, sources, tag, bytes) || uneven_take(r, count, base, sources, tag, bytes))
			return 1;
	}
	for (int p = 0; p < c->size; p++)
		for (uint64_t u = 0; !has(sources, p) && u < (blocks(r)->recv[p] + 7) / 8; u++)
			word_put(c->recv + blocks(r)->recv_at[p], u, blocks(r)->recv[p], 0);
	return 0;
}

/* A lane's steps; 1: stopped. A barrier is one word that nobody keeps; where the root is gone nobody keeps any. */
static int body(struct run *r)
{
	const struct cvy_gpu_call *c = r->call;
	uint64_t words = (c->bytes + 7) / 8, tile = tile_words(c);

	if (cvy_gpu_is_uneven(c->kind))
		return uneven(r);
	if (!words && (c->kind >= CVY_GPU_BARRIER || c->root >= 0))
		words = 1; /* signals */
	for (int step = r->complete ? r->steps - 1 : 0; step < r->steps; step++) {
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

static int status_of(const struct run *r, uint64_t op, uint32_t missing)
{
	const struct cvy_gpu_control *control = &r->gpu->control;
	const struct cvy_gpu_era era = cvy_gpu_era_of(&control->roll, op);
	const struct cvy_gpu_call *c = r->call;

	if (r->complete ? era.fails && era.op == op : (r->lane.failed & CVY_GPU_FAILS) && op == control->verdict.base)
		return COVEY_ERR_LOST;
	if (c->root >= 0 && !has(r->lane.mask, c->root))
		return COVEY_ERR_ROOT;
	if (missing && (c->kind == CVY_GPU_REDUCE_SCATTER || (c->root >= 0 && has(missing, c->root))))
		return COVEY_ERR_LOST;
	return r->wrong;
}

static void lane_done(struct run *r, uint64_t op)
{
	struct cvy_gpu_control *control = &r->gpu->control;
	uint32_t missing = r->complete && cvy_gpu_is_private(r->call->kind) ? r->gone & r->lane.mask : 0;

	control->past[r->index] =
		(struct cvy_gpu_past){ CVY_GPU_DONE(op, r->lane.epoch), CVY_GPU_COUNTED(r->lane.count) };
	control->lane[r->index].count = r->lane.count + (uint32_t)r->steps;
	if (!r->index || missing)
		control->status = (struct cvy_gpu_status){ .status = status_of(r, op, missing),
							   .epoch = r->lane.epoch,
							   .op = op,
							   .mask = r->lane.mask,
							   .missing = missing };
	if (r->call->kind == CVY_GPU_ADMIT)
		take_in(r, op);
}

static void say_parked(struct run *r, uint64_t op)
{
	const struct cvy_gpu_call *c = r->call;
	struct cvy_gpu_parked *p = &r->gpu->control.parked;

	p->op = op;
	p->lanes = (uint32_t)c->lanes;
	p->steps = (uint32_t)r->steps;
	p->rounds = 1;
	p->slot_bytes = (uint32_t)(c->rows * c->threads * CVY_GPU_PACKET);
	p->private_parts = (uint32_t)no_packets(c);
	if (c->in_place && c->steps > 1 && r->touched)
		p->spoiled = op + 1;
}

/* What the verdict ends with, 0: nothing. */
static int park(struct cvy_gpu_control *control, uint64_t quanta)
{
	do { /* closed again: the next change may have counted this CTA among those that stand still */
		__atomic_fetch_add(&control->stopped, quanta, __ATOMIC_SEQ_CST);
		while ((gate(control) & 1) && !__atomic_load_n(&control->verdict.ended, __ATOMIC_ACQUIRE))
			sched_yield();
		__atomic_fetch_sub(&control->stopped, quanta, __ATOMIC_SEQ_CST);
	} while ((gate(control) & 1) && !__atomic_load_n(&control->verdict.ended, __ATOMIC_ACQUIRE));
	return control->verdict.ended;
}

/* Of alltoallv not known before the first step is done. */
static int first_steps(const struct cvy_gpu_call *c)
{
	return c->kind == CVY_GPU_ALLTOALLV ? 1 : c->steps;
}

static int claim(struct run *r, int i, int own, uint64_t op, uint32_t epoch)
{
	struct cvy_gpu_past *past = &r->gpu->control.past[i];
	uint64_t want = CVY_GPU_DONE(op, epoch);
	int same = CVY_GPU_DONE_OP(past->done) == CVY_GPU_DONE_OP(want);

	if (past->done == want || (i != own && !same))
		return 0;
	if (!same)
		past->counted = 0;
	past->done = want;
	r->index = i;
	r->lane = r->gpu->control.lane[i];
	if (cvy_gpu_counted(past->done, past->counted, op))
		r->lane.count = (uint32_t)past->counted;
	r->again = 1;
	r->complete = 0;
	r->wrong = 0;
	r->steps = first_steps(r->call);
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
		if (body(r) || gate(&r->gpu->control) != r->open) {
			r->saved |= i == own;
			return 1;
		}
		r->saved |= i == own;
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
	if (body(r) || gate(&r->gpu->control) != r->open)
		return 1;
	lane_done(r, op);
	return 0;
}

static void cta(struct cvy_gpu *g, const struct cvy_gpu_call *c, int index)
{
	uint64_t quanta = CVY_GPU_QUANTA / (uint64_t)c->lanes, rest = CVY_GPU_QUANTA % (uint64_t)c->lanes, entered, op;
	struct run r = { .gpu = g, .call = c, .lane = g->control.lane[index], .index = index, .own = index };
	const struct cvy_gpu_verdict *v = &g->control.verdict;
	int stopped;

	quanta += index ? 0 : rest;
	r.steps = first_steps(c);
	r.open = CVY_GPU_GATE_OPEN(r.lane.epoch);
	entered = __atomic_fetch_add(&g->control.entered, quanta, __ATOMIC_SEQ_CST);
	op = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
	stopped = (c->in_place && c->steps > 1 && entered >> CVY_GPU_GATE_SHIFT != r.open) ||
		  ((r.lane.failed & CVY_GPU_LAGS) && op == v->base && v->partly);
	r.touched = r.saved = !stopped;
	if (!stopped && c->in_place && c->steps > 1) /* who spoils inputs says so before */
		say_parked(&r, op);
	stopped = stopped || body(&r) || entered >> CVY_GPU_GATE_SHIFT != r.open;
	if (!stopped)
		lane_done(&r, op);
	while (stopped) {
		say_parked(&r, op);
		if (park(&g->control, quanta)) {
			g->control.status.op = op;
			g->control.status.status = g->control.verdict.ended;
			break;
		}
		stopped = op < g->control.verdict.base ? do_complete(&r, op) : do_again(&r, index, op);
	}
	__atomic_fetch_add(&g->control.finished, quanta, __ATOMIC_SEQ_CST);
}

/* All words of a welcome; 1: the gate closed before. */
static int await_welcome(struct run *r, uint64_t *got)
{
	uint8_t *chunk = r->gpu->in[place(__builtin_ctz(r->lane.mask), r->lane.in)];

	for (int i = 0; i < CVY_GPU_WELCOMES; i++)
		if (take(r, welcome(chunk, i), 0, CVY_GPU_TAG(r->lane.epoch, 1), &got[i]))
			return 1;
	return 0;
}

static void settle(struct cvy_gpu *g, const uint64_t *got)
{
	for (int i = 0; i < CVY_GPU_LANES; i++) {
		g->control.lane[i].count = (uint32_t)(got[i / 2] >> (i % 2 * 32));
		g->control.lane[i].mask = (uint32_t)got[CVY_GPU_WELCOME_MASK];
	}
}

/* As cvy_join() of admit.cuh. */
static void join_in(struct cvy_gpu *g, const struct cvy_gpu_call *c)
{
	struct cvy_gpu_control *control = &g->control;
	struct run r = { .gpu = g, .call = c, .lane = control->lane[0] };
	uint64_t got[CVY_GPU_WELCOMES], entered, own, next;
	struct cvy_gpu_era era;
	unsigned seen;
	int in, stopped;

	entered = __atomic_fetch_add(&control->entered, CVY_GPU_QUANTA, __ATOMIC_SEQ_CST);
	own = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
	for (seen = (unsigned)(entered >> CVY_GPU_GATE_SHIFT);; seen = gate(control)) {
		in = has(r.lane.mask, c->rank);
		r.open = CVY_GPU_GATE_OPEN(r.lane.epoch);
		stopped = seen != r.open || (!in && (!r.lane.mask || await_welcome(&r, got)));
		if (!stopped && (r.again ? gate(control) == r.open : 1))
			break;
		if (park(control, CVY_GPU_QUANTA)) {
			control->status.status = control->verdict.ended;
			__atomic_fetch_add(&control->finished, CVY_GPU_QUANTA, __ATOMIC_SEQ_CST);
			return;
		}
		r.again = 1;
		r.lane = control->lane[0];
	}
	next = in ? control->roll.begin : got[CVY_GPU_WELCOME_OP];
	if (!in) {
		settle(g, got);
		note_admitted(control, next - 1, r.lane.epoch, control->lane[0].mask);
	}
	era = in && next ? cvy_gpu_era_of(&control->roll, next - 1) : control->admitted.era;
	if (!era.epoch)
		era = (struct cvy_gpu_era){ next - 1, r.lane.epoch, control->lane[0].mask, 0, 0 };
	control->status = (struct cvy_gpu_status){ .epoch = era.epoch, .op = next - 1, .mask = era.mask };
	__atomic_fetch_add(&control->entered, (next - own - 1) * CVY_GPU_QUANTA, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&control->finished, (next - own) * CVY_GPU_QUANTA, __ATOMIC_SEQ_CST);
}

void *fake_main(void *arg)
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
		if (l->stall_ms)
			usleep((useconds_t)l->stall_ms * 1000);
		else if (l->mark)
			clock_gettime(CLOCK_MONOTONIC, l->mark);
		else if (l->call.kind == CVY_GPU_ADMIT && l->call.joins)
			join_in(g, &l->call);
		else
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
