/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The applications: every member calls the same operations, made from their numbers alone, with inputs
 * made from (incarnation, number). So the right outcome is known from its mask: what was contributed by
 * somebody who is not in it, by another incarnation of the rank, or for another operation, is seen.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "algo.h"
#include "sim.h"

#define STATE_BYTES 40 /* that a joiner gets */

enum kind { ALLREDUCE, BROADCAST, ALLGATHER, ALLTOALL, BARRIER, ADMIT };

struct shape { /* of operation seq: alike on all ranks */
	int kind, root, in_place;
	size_t count; /* of int32, per block */
};

static const char *const names[] = { "allreduce", "broadcast", "allgather", "alltoall", "barrier", "admit" };

static struct shape shape_of(const struct sim *s, uint64_t seq)
{
	static const int kinds[] = {
		ALLREDUCE, BROADCAST, ALLGATHER, ALLTOALL, BARRIER, ALLREDUCE, ALLTOALL, BROADCAST
	};
	uint64_t h = sim_hash(s->seed, seq);
	size_t slot = s->slot_bytes / 4;
	const size_t counts[] = { 4, 0, 8, 50, slot, slot + 1, 3 * slot + 7, 5 * slot };
	struct shape shape = { kinds[h % 8], (int)((h >> 8) % (uint64_t)s->world), (int)(h >> 16) & 1,
			       counts[(h >> 24) % 8] };

	if (seq % 6 == 0)
		return (struct shape){ ADMIT, 0, 0, 0 };
	if (shape.kind == BARRIER)
		shape.count = 0;
	return shape;
}

/* Element i of what an incarnation contributes to seq (alltoall: for one destination). */
static uint32_t element(uint64_t inc, uint64_t seq, int to, size_t i)
{
	uint64_t h = sim_hash(inc * 64 + (uint64_t)to, seq);

	return (uint32_t)h + (uint32_t)i * ((uint32_t)(h >> 32) | 1);
}

static void fill(uint8_t *at, uint64_t inc, uint64_t seq, int to, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t v = element(inc, seq, to, i);

		memcpy(at + 4 * i, &v, 4);
	}
}

/* ---- calling ---- */

static const struct cvy_op_kind *op_kind(int kind)
{
	static const struct cvy_op_kind *const kinds[] = { &cvy_op_allreduce, &cvy_op_broadcast, &cvy_op_allgather,
							   &cvy_op_alltoall,  &cvy_op_barrier,	 &cvy_op_admit };

	return kinds[kind];
}

static void plan(struct cvy_engine *e, struct cvy_op *op, int kind, int size)
{
	op->ticks = 1;
	if (kind == ALLREDUCE) {
		cvy_allreduce_plan(e, op, size);
		op->input_bytes = op->send == op->recv ? op->bytes : 0;
	} else if (kind == BROADCAST) {
		cvy_broadcast_plan(e, op);
	} else if (kind == ALLGATHER) {
		cvy_allgather_plan(e, op, size);
	} else if (kind == ALLTOALL) {
		cvy_alltoall_plan(e, op, size);
		op->input_bytes = op->send == op->recv ? op->bytes * (size_t)size : 0;
	}
}

static uint8_t *buffer(size_t bytes)
{
	uint8_t *b = malloc(bytes + 1);

	if (!b)
		abort();
	memset(b, 0x5a, bytes + 1);
	return b;
}

static void make_buffers(struct proc *p, struct call *c, const struct shape *shape)
{
	size_t bytes = 4 * shape->count, all = bytes * (size_t)c->size;

	c->send_bytes = shape->kind == ALLTOALL ? all : bytes;
	c->recv_bytes = shape->kind == ALLTOALL || shape->kind == ALLGATHER ? all : bytes;
	if (shape->kind == ADMIT)
		c->send_bytes = c->recv_bytes = STATE_BYTES;
	c->in_place = shape->in_place && (shape->kind == ALLREDUCE || shape->kind == ALLTOALL);
	c->send = buffer(c->send_bytes);
	c->recv = c->in_place ? c->send : buffer(c->recv_bytes);
	if (shape->kind == ALLTOALL)
		for (int r = 0; r < c->size; r++)
			fill(c->send + bytes * (size_t)r, p->inc, c->seq, r, shape->count);
	else if (shape->kind == ADMIT && c->seq)
		fill(c->send, 0, c->seq, 0, STATE_BYTES / 4);
	else
		fill(c->send, p->inc, c->seq, 0, shape->count);
}

static void call_next(struct proc *p)
{
	struct app *a = &p->app;
	struct cvy_engine *e = p->engine;
	struct shape shape = shape_of(p->sim, a->next);
	struct call *c = &a->call[a->calls];

	if (a->joiner)
		shape = (struct shape){ ADMIT, 0, 0, 0 };
	*c = (struct call){ .seq = a->joiner ? 0 : a->next, .size = e->size };
	make_buffers(p, c, &shape);
	c->op = cvy_op_new(e, op_kind(shape.kind));
	if (!c->op)
		abort();
	c->op->send = c->send;
	c->op->recv = c->recv;
	c->op->count = shape.kind == ADMIT ? STATE_BYTES : shape.count;
	c->op->elem = shape.kind == ADMIT ? 1 : 4;
	c->op->bytes = c->op->count * c->op->elem;
	c->op->dtype = shape.kind == ADMIT ? COVEY_UINT8 : COVEY_INT32;
	c->op->root = shape.root;
	plan(e, c->op, shape.kind, c->size);
	cvy_op_sign(c->op, COVEY_ON_LOSS_CONTINUE);
	a->calls++;
	a->admitting = shape.kind == ADMIT;
	a->next++;
	sim_trace(p->sim, "process %d calls %" PRIu64 " %s of %zu, %" PRIu64 " ticks", p->id, c->seq, names[shape.kind],
		  c->op->bytes, c->op->ticks);
	if (cvy_engine_post(e, c->op)) {
		a->calls--;
		cvy_op_put(c->op);
		if (!c->in_place)
			free(c->recv);
		free(c->send);
		a->started = 0;
	} else if (c->seq && c->op->seq != c->seq) {
		sim_fail(p->sim, "process %d: operation %" PRIu64 " was given number %" PRIu64, p->id, c->seq,
			 c->op->seq);
	}
}

/* ---- looking at what came ---- */

static uint64_t hash_of(const uint8_t *bytes, size_t n)
{
	uint64_t h = n;

	for (size_t i = 0; i < n; i++)
		h = (h ^ bytes[i]) * 0x100000001b3ull;
	return h;
}

static void compare(struct proc *p, struct proc *q, uint64_t seq)
{
	const struct outcome *a = &p->outcome[seq], *b = &q->outcome[seq];

	if (!b->have || !a->replicated || strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0)
		return;
	if (a->status != b->status || a->epoch != b->epoch || a->mask != b->mask || a->hash != b->hash ||
	    a->size != b->size)
		sim_fail(p->sim,
			 "I5: operation %" PRIu64 ": process %d has %d/%u/%" PRIx64 "/%d/%" PRIx64
			 ", %d has %d/%u/%" PRIx64 "/%d/%" PRIx64,
			 seq, p->id, a->status, a->epoch, a->mask, a->size, a->hash, q->id, b->status, b->epoch,
			 b->mask, b->size, b->hash);
}

/* Others went on without it: they write their slots anew, and what it returns until it knows is not promised. */
static int left_out(const struct proc *p)
{
	const struct cvy_view *mine = cvy_group_view(p->driver.group);

	for (int i = 0; i < p->sim->procs; i++) {
		const struct proc *q = p->sim->proc[i];
		const struct cvy_view *v = cvy_group_view(q->driver.group);

		if (v && mine && v->epoch > mine->epoch && v->member[p->rank].inc != p->inc &&
		    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
			return 1;
	}
	return 0;
}

static void compare_all(struct proc *p, uint64_t seq)
{
	for (int i = 0; i < p->sim->procs && sim_survivor(p) && !left_out(p); i++)
		if (p->sim->proc[i] != p && sim_survivor(p->sim->proc[i]) && !left_out(p->sim->proc[i]))
			compare(p, p->sim->proc[i], seq);
}

static void expect(struct proc *p, const struct call *c, const char *what, int ok)
{
	const struct covey_result *r = &c->op->result;

	if (!ok)
		sim_fail(p->sim, "%s: process %d operation %" PRIu64 " (%s), status %d epoch %u mask %" PRIx64, what,
			 p->id, r->seq, c->op->kind->name, r->status, r->epoch, r->mask.word[0]);
}

/* MASK(seq) of a view that was active. */
static uint64_t mask_of(const struct sim_view *v, uint64_t seq)
{
	uint64_t mask = 0;

	for (int r = 0; r < SIM_RANKS; r++)
		if (v->inc[r] && (!(v->pending >> r & 1) || (v->admitted && seq >= v->admitted)))
			mask |= 1ull << r;
	return mask;
}

static void check_block(struct proc *p, const struct call *c, const uint8_t *at, uint64_t inc, int to, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t got, want = inc ? element(inc, c->op->result.seq, to, i) : 0;

		memcpy(&got, at + 4 * i, 4);
		if (got != want) {
			expect(p, c,
			       inc ? "G2: the bytes are not those of the contributor"
				   : "G3: a missing block is not zero",
			       0);
			return;
		}
	}
}

static void check_sum(struct proc *p, const struct call *c, const struct sim_view *v, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t got, want = 0;

		for (int r = 0; r < SIM_RANKS; r++)
			if (covey_mask_has(&c->op->result.mask, r))
				want += element(v->inc[r], c->op->result.seq, 0, i);
		memcpy(&got, c->recv + 4 * i, 4);
		if (got != want) {
			expect(p, c, "G2: the sum is not that of the contributors", 0);
			return;
		}
	}
}

static void check_bytes(struct proc *p, const struct call *c, const struct shape *shape, const struct sim_view *v)
{
	const struct covey_result *res = &c->op->result;

	if (left_out(p))
		return;
	if (shape->kind == ALLREDUCE)
		check_sum(p, c, v, shape->count);
	else if (shape->kind == BROADCAST)
		check_block(p, c, c->recv, v->inc[shape->root], 0, shape->count);
	else if (shape->kind == ALLGATHER || shape->kind == ALLTOALL)
		for (int r = 0; r < c->size; r++)
			check_block(p, c, c->recv + 4 * shape->count * (size_t)r,
				    covey_mask_has(&res->mask, r) ? v->inc[r] : 0,
				    shape->kind == ALLTOALL ? p->rank : 0, shape->count);
}

/* A mask says the truth: all contributors of its view, for a private operation those whose part is here. */
static void check_mask(struct proc *p, const struct call *c, const struct shape *shape, struct sim_view *v)
{
	const struct covey_result *res = &c->op->result;
	uint64_t mask = res->mask.word[0], all;

	if (shape->kind == ADMIT && (mask & v->pending) && !v->admitted)
		v->admitted = res->seq;
	all = mask_of(v, res->seq);
	if (shape->kind == ALLTOALL)
		expect(p, c, "G3: the mask names one who did not contribute", !(mask & ~all) && (mask >> p->rank & 1));
	else
		expect(p, c, "I12: the mask is not that of the view", mask == all);
	expect(p, c, "G2: the size is not that of the last safe point", shape->kind == ADMIT || res->size == c->size);
}

static void check_call(struct proc *p, const struct call *c)
{
	const struct covey_result *res = &c->op->result;
	struct shape shape = c->seq ? shape_of(p->sim, c->seq) : (struct shape){ ADMIT, 0, 0, 0 };
	struct sim_view *v = sim_view_of(p, res->epoch);

	if (res->status == COVEY_ERR_LOST) {
		expect(p, c, "G5: an operation whose inputs are whole is lost",
		       c->in_place && c->op->ticks > 1 && c->op->input_bytes > p->sim->undo_bytes);
	} else if (res->status == COVEY_ERR_ROOT) {
		expect(p, c, "G5: the root is there",
		       shape.kind == BROADCAST && v && !(mask_of(v, res->seq) >> shape.root & 1));
	} else if (res->status || !v) {
		expect(p, c, v ? "G5: an unexpected status" : "I3: decided in a view that was never active", 0);
	} else {
		check_mask(p, c, &shape, v);
		check_bytes(p, c, &shape, v);
	}
	if (shape.kind == ADMIT && !res->status) /* a joiner was given the state of the members */
		for (size_t i = 0; i < STATE_BYTES / 4; i++) {
			uint32_t want = element(0, res->seq, 0, i);

			expect(p, c, "the state of the safe point",
			       !memcmp((c->seq ? c->send : c->recv) + 4 * i, &want, 4));
		}
	else if (!c->in_place && shape.kind == ALLTOALL)
		for (int r = 0; r < c->size; r++)
			check_block(p, c, c->send + 4 * shape.count * (size_t)r, p->inc, r, shape.count);
	else if (!c->in_place) /* G6 */
		check_block(p, c, c->send, p->inc, 0, shape.count);
}

static void record(struct proc *p, const struct call *c)
{
	const struct covey_result *res = &c->op->result;
	struct outcome *o;

	if (!res->seq || res->seq >= SIM_SEQS)
		return;
	o = &p->outcome[res->seq];
	if (o->have)
		expect(p, c, "I1: decided twice", 0);
	*o = (struct outcome){ 1,	   res->status,	      res->size, c->op->kind->op_class != CVY_OP_PRIVATE,
			       res->epoch, res->mask.word[0], 0 };
	if (!res->status && o->replicated && c->op->kind->op_class != CVY_OP_ADMIT)
		o->hash = hash_of(c->recv, c->recv_bytes);
	sim_trace(p->sim, "process %d decides %" PRIu64 " %s status %d epoch %u mask %" PRIx64 " size %d", p->id,
		  res->seq, c->op->kind->name, res->status, res->epoch, res->mask.word[0], res->size);
	compare_all(p, res->seq);
}

static void call_free(struct call *c)
{
	cvy_op_put(c->op);
	if (!c->in_place)
		free(c->recv);
	free(c->send);
}

static void take_first(struct proc *p)
{
	struct app *a = &p->app;
	struct call c = a->call[0];

	if (!p->engine->ended) {
		check_call(p, &c);
		record(p, &c);
		if (!c.seq)
			a->next = c.op->result.seq + 1;
		a->joiner = 0;
	}
	if (c.op->kind->op_class == CVY_OP_ADMIT)
		a->admitting = 0;
	a->decided++;
	a->last_ns = p->sim->now;
	memmove(a->call, a->call + 1, sizeof(a->call) - sizeof(a->call[0]));
	a->calls--;
	call_free(&c);
	if (sim_random(p->sim, 12) == 0)
		a->resume_ns = p->sim->now + sim_random(p->sim, 30) * CVY_MS;
}

void app_start(struct proc *p)
{
	p->app.started = 1;
	p->app.next = 1;
	p->app.joiner = p->engine->pending;
}

void app_step(struct proc *p)
{
	struct app *a = &p->app;

	while (a->calls && cvy_op_decided(a->call[0].op))
		take_first(p);
	if (!a->started || a->admitting || a->calls == SIM_QUEUE || p->sim->now < a->resume_ns ||
	    a->next + 2 >= SIM_SEQS)
		return;
	if (!a->calls || sim_random(p->sim, 2))
		call_next(p);
}

void app_end(struct proc *p)
{
	for (int i = 0; i < p->app.calls; i++)
		call_free(&p->app.call[i]);
	p->app.calls = 0;
}
