/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an application is told of an operation: the status that can be, the contributors that its view says, the
 * bytes that follow from these alone, the same on all survivors, and its own inputs as they were.
 */
#include <inttypes.h>

#include "checks.h"
#include "lend.h"

/* Others went on without it: they write their slots anew, and what it returns until it knows is not promised. */
int check_left_out(const struct proc *p)
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

static void expect(struct proc *p, const struct call *c, const struct covey_result *r, int ok, const char *what)
{
	if (!ok)
		sim_fail(p->sim, "%s: process %d operation %" PRIu64 " (%s%s), status %d epoch %u mask %" PRIx64, what,
			 p->id, r->seq, c->shape.odd ? "odd " : "", app_names[c->shape.kind], r->status, r->epoch,
			 r->mask.word[0]);
}

/* ---- uniform ---- */

#define FOUND_WITHIN 16 /* operations after one that did not match: roots run ahead, and changes come between */

/* Did calls not match at @seq, or at one of the @before operations before it? */
static int erred(const struct sim *s, uint64_t seq, uint64_t before)
{
	for (uint64_t i = 0; i <= before && i < seq; i++)
		if (app_errs(s, seq - i))
			return 1;
	return 0;
}

/* I5, G2: two survivors have the same outcome of what is replicated. Where calls did not match, a rank that had
 * completed its own keeps it, unless the call needed everyone. */
static void compare(struct proc *p, struct proc *q, uint64_t seq)
{
	const struct outcome *a = &p->outcome[seq], *b = &q->outcome[seq];
	int needs_all = app_needs_everyone(a->kind);

	if (a->kind == OP_SCATTER && (a->status == COVEY_ERR_LOST || b->status == COVEY_ERR_LOST))
		return; /* each its own part */
	if (!b->have || app_private(a->kind) || app_private(b->kind) || a->odd || b->odd ||
	    (erred(p->sim, seq, CVY_SLOTS) && !needs_all) ||
	    strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0)
		return;
	if (a->status != b->status || a->epoch != b->epoch || a->mask != b->mask || a->hash != b->hash ||
	    a->size != b->size)
		sim_fail(p->sim,
			 "I5: operation %" PRIu64 ": process %d has %d/%u/%" PRIx64 "/%d/%" PRIx64
			 ", %d has %d/%u/%" PRIx64 "/%d/%" PRIx64,
			 seq, p->id, a->status, a->epoch, a->mask, a->size, a->hash, q->id, b->status, b->epoch,
			 b->mask, b->size, b->hash);
}

static void compare_all(struct proc *p, uint64_t seq)
{
	for (int i = 0; i < p->sim->procs && sim_survivor(p) && !check_left_out(p); i++)
		if (p->sim->proc[i] != p && sim_survivor(p->sim->proc[i]) && !check_left_out(p->sim->proc[i]))
			compare(p, p->sim->proc[i], seq);
}

/* ---- bytes ---- */

/* G2, G3: a block is its contributor's, to the byte; one of nobody is zero. */
static void check_block(struct proc *p, const struct call *c, const struct covey_result *res, const uint8_t *at,
			uint64_t inc, int to, size_t count)
{
	struct stream w = inc ? app_stream(inc, res->seq, to) : (struct stream){ 0, 0 };

	for (size_t i = 0; i < count; i++) {
		uint32_t got;

		memcpy(&got, at + 4 * i, 4);
		if (got == w.at + (uint32_t)i * w.by)
			continue;
		expect(p, c, res, 0,
		       !inc			    ? "G3: a missing block is not zero"
		       : app_private(c->shape.kind) ? "G3: the bytes are not those of the source"
						    : "G2: the bytes are not those of the contributor");
		return;
	}
}

/* G2: the sum is that of the contributors' inputs: of linear sequences again a linear one. */
static void check_sum(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v)
{
	struct stream all = { 0, 0 };

	for (int r = 0; r < SIM_RANKS; r++) {
		struct stream w = app_stream(v->inc[r], res->seq, app_op(c->shape.kind)->send_blocks ? p->rank : 0);

		if (!covey_mask_has(&res->mask, r))
			continue;
		all.at += w.at;
		all.by += w.by;
	}
	for (size_t i = 0; i < c->shape.count; i++) {
		uint32_t got;

		memcpy(&got, c->recv + 4 * i, 4);
		if (got != all.at + (uint32_t)i * all.by) {
			expect(p, c, res, 0, "G2: the sum is not that of the contributors");
			return;
		}
	}
}

/* G3: every part of alltoallv, and the gaps between them. */
static void check_parts(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v)
{
	for (int r = 0; r < c->size; r++) {
		size_t at = app_vat(p->sim, &c->shape, c->seq, p->rank, r, 1);
		size_t n = app_vcount(p->sim, &c->shape, c->seq, r, p->rank);
		uint32_t gap;

		check_block(p, c, res, c->recv + 4 * at, covey_mask_has(&res->mask, r) ? v->inc[r] : 0, p->rank, n);
		if (!(r & 1))
			continue;
		memcpy(&gap, c->recv + 4 * (at + n), 4);
		expect(p, c, res, gap == 0x5a5a5a5a, "G3: bytes between two parts were written");
	}
}

/* What is of the root alone: the others' buffers are as they were. */
static void check_untouched(struct proc *p, const struct call *c, const struct covey_result *res)
{
	for (size_t i = 0; !c->in_place && i < c->recv_bytes; i++)
		if (c->recv[i] != 0x5a) {
			expect(p, c, res, 0, "G2: a result stands where none belongs");
			return;
		}
}

static void check_bytes(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v)
{
	const struct shape *shape = &c->shape;
	const struct operation *op = app_op(shape->kind);
	int to = op->send_blocks ? p->rank : 0;
	size_t stride = 4 * (shape->count + (op->uneven ? 1 : 0));

	if (shape->kind == DISPATCH || shape->kind == COMBINE)
		app_ep_check(p, c, res, v);
	if (op->no_data)
		return;
	if (op->to_root && shape->root != p->rank)
		check_untouched(p, c, res);
	else if (op->reduces)
		check_sum(p, c, res, v);
	else if (op->of == OP_OF_ROOT)
		check_block(p, c, res, c->recv, v->inc[shape->root], to, shape->count);
	else if (shape->kind == OP_ALLTOALLV)
		check_parts(p, c, res, v);
	else
		for (int r = 0; r < c->size; r++)
			check_block(p, c, res, c->recv + stride * (size_t)r,
				    covey_mask_has(&res->mask, r) ? v->inc[r] : 0, to,
				    op->uneven ? app_gcount(shape, r) : shape->count);
}

/* The safe point hands the members' state to a joiner, and leaves theirs as it was. */
static void check_state(struct proc *p, const struct call *c, const struct covey_result *res)
{
	struct stream w = app_stream(0, res->seq, 0);

	for (size_t i = 0; i < STATE_BYTES / 4; i++) {
		uint32_t got;

		memcpy(&got, (c->seq ? c->send : c->recv) + 4 * i, 4);
		expect(p, c, res, got == w.at + (uint32_t)i * w.by, "G2: the state of the safe point");
	}
}

/* ---- masks ---- */

uint64_t check_contributors(const struct sim_view *v, uint64_t seq)
{
	uint64_t mask = 0;

	for (int r = 0; r < SIM_RANKS; r++)
		if (v->inc[r] && (!(v->pending >> r & 1) || (v->admitted && seq >= v->admitted)))
			mask |= 1ull << r;
	return mask;
}

/* Ranks that left @p out. */
static uint64_t left_out_by(const struct proc *p, const struct call *c, const struct sim_view *v)
{
	uint64_t mask = 0;

	for (int r = 0; r < SIM_RANKS && c->shape.choosy; r++)
		if (v->inc[r] && r != p->rank && app_ep_leaves_out(v->inc[r], c->seq, p->rank))
			mask |= 1ull << r;
	return mask;
}

/* Ranks that @p left out, or that left it out: no others. */
static uint64_t left_out(const struct proc *p, const struct call *c, const struct sim_view *v)
{
	uint64_t mask = left_out_by(p, c, v);

	for (int r = 0; r < SIM_RANKS && c->shape.choosy; r++)
		if (v->inc[r] && r != p->rank && app_ep_leaves_out(p->inc, c->seq, r))
			mask |= 1ull << r;
	return mask;
}

/*
 * With a deadline, or without a rank that they left out, others may complete it before that rank begins: then nothing is
 * here, not even its own part.
 */
static int came_too_late(const struct proc *p, const struct call *c, const struct sim_view *v, uint64_t mask)
{
	return !mask && (c->shape.timed || left_out_by(p, c, v));
}

/*
 * G3: leaving out is a matter of two. What a rank lacks besides, after a change, is what the removed took with them: the
 * living who called it gave it all theirs. (Links may have lost a part on the way, and who lags at a safe point does not
 * know the newcomers.)
 */
static void check_left_out_alone(struct proc *p, const struct call *c, const struct covey_result *res,
				 const struct sim_view *v, uint64_t lacks)
{
	for (int r = 0; r < SIM_RANKS; r++) {
		const struct proc *q = lacks >> r & 1 ? sim_proc_of(p->sim, v->inc[r]) : NULL;

		expect(p, c, res,
		       !q || p->sim->tcp || (v->admitted && res->seq - v->admitted <= CVY_SLOTS) || !q->alive ||
			       q->app.leaving || q->driver.ended || p->app.leaving || check_left_out(q) ||
			       check_left_out(p) || erred(p->sim, res->seq, FOUND_WITHIN),
		       "G3: a living rank is missing that nobody here left out");
	}
}

/*
 * G3: a private mask names contributors, this rank among them, and all of them unless a change came between or a
 * deadline passed.
 */
static void check_private(struct proc *p, const struct call *c, const struct covey_result *res,
			  const struct sim_view *v, uint64_t all)
{
	uint64_t mask = res->mask.word[0], lacks = all & ~mask & ~app_ep_excused(p, c, v) & ~left_out(p, c, v);

	expect(p, c, res, !(mask & ~all), "G3: the mask names one who did not contribute");
	expect(p, c, res, mask >> p->rank & 1 || c->shape.kind == COMBINE || came_too_late(p, c, v, mask),
	       "G3: the mask does not name this rank");
	expect(p, c, res, !(mask & left_out(p, c, v)), "G3: the mask names one that was left out");
	expect(p, c, res, p->fenced > res->epoch || (c->late && !c->shape.choosy) || !lacks,
	       "G3: the mask lacks one though nobody was removed");
	if (c->shape.choosy && !came_too_late(p, c, v, mask))
		check_left_out_alone(p, c, res, v, lacks);
}

/* I12: contributors are the admitted members of the view, all of them. */
static void check_mask(struct proc *p, const struct call *c, const struct covey_result *res, struct sim_view *v)
{
	uint64_t mask = res->mask.word[0], all;

	if (c->shape.kind == ADMIT && (mask & v->pending) && !v->admitted)
		v->admitted = res->seq;
	all = check_contributors(v, res->seq);
	if (app_private(c->shape.kind) && c->shape.kind != OP_REDUCE_SCATTER)
		check_private(p, c, res, v, all);
	else
		expect(p, c, res, mask == all, "I12: the mask is not that of the view");
	expect(p, c, res, c->shape.kind == ADMIT || res->size == c->size,
	       "G2: the size is not that of the last safe point");
}

/* ---- statuses ---- */

/* G2: who called something else is no contributor of what the others called, nor are they of its own. */
static void check_match(struct proc *p, const struct call *c, const struct covey_result *res)
{
	int odd = app_odd(p->sim, res->seq);
	uint64_t mask = res->mask.word[0];

	if (odd < 0 || !app_needs_everyone(c->shape.kind))
		return;
	expect(p, c, res, c->shape.odd ? !(mask & (mask - 1)) : !(mask >> odd & 1),
	       "G2: an operation completed with one who called another");
}

/* G2: with on_loss `fail` all contributors of the last safe point are here, or the status says so. */
static void check_loss(struct proc *p, const struct call *c, const struct covey_result *res)
{
	int lacks = (p->app.acked & ~res->mask.word[0]) != 0;

	if (c->shape.kind == DISPATCH || c->shape.kind == COMBINE) /* a handle masks more than the engine knows */
		return;
	if (res->status == COVEY_ERR_PEER)
		expect(p, c, res, c->shape.on_loss && lacks, "G2: all of the last safe point are here");
	else
		expect(p, c, res, !c->shape.on_loss || !lacks, "G2: one of the last safe point is not here");
}

/* The root is gone and with it this rank's part, or what a removed rank had sent here did not arrive. Where the windows
 * of the dead can be read, nothing of a reduction is lost. */
static int part_may_be_lost(const struct proc *p, const struct call *c)
{
	const struct cvy_view *now = cvy_group_view(p->driver.group);

	if (c->shape.kind == OP_SCATTER)
		return !covey_mask_has(&now->members, c->shape.root) || now->member[c->shape.root].from > c->seq;
	return c->shape.kind == OP_REDUCE_SCATTER && p->sim->tcp;
}

/* A result in place may stand before the operation is decided: of many ticks, or beside one who lends. */
static int may_stand_over(const struct proc *p, const struct call *c)
{
	return c->op->ticks != 1 || (app_lends(p->sim) && cvy_lendable(p->engine, c->op));
}

/* G5: the only ways in which an operation may fail. */
static void check_failed(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v)
{
	switch (res->status) {
	case COVEY_ERR_LOST: /* a result had been written over an input of which no copy was kept */
		expect(p, c, res,
		       c->shape.odd || part_may_be_lost(p, c) ||
			       (c->in_place && may_stand_over(p, c) && c->send_bytes > p->sim->undo_bytes),
		       "G5: an operation whose inputs are whole is lost");
		break;
	case COVEY_ERR_ROOT:
		expect(p, c, res,
		       c->shape.odd || (app_op(c->shape.kind)->rooted && v &&
					!(check_contributors(v, res->seq) >> c->shape.root & 1)),
		       "G5: the root is there");
		break;
	case COVEY_ERR_MISMATCH:
		expect(p, c, res, erred(p->sim, res->seq, FOUND_WITHIN), "G5: all called the same");
		break;
	case COVEY_ERR_PEER:
		check_loss(p, c, res);
		break;
	default:
		expect(p, c, res, 0, "G5: an unexpected status");
	}
}

/* G6: inputs are as they were; in place, as long as no result stands there, and after LOST nothing is promised. */
void check_input(struct proc *p, const struct call *c, int status)
{
	if (c->lent && p->seen.scribbled) /* it is left out, and what it lent was overwritten on purpose */
		return;
	if (c->in_place && status != COVEY_ERR_ROOT && status != COVEY_ERR_MISMATCH)
		return;
	if (c->send_hash != app_hash(c->send, c->send_bytes))
		sim_fail(p->sim, "G6: process %d: the input of operation %" PRIu64 " (%s) was overwritten, status %d",
			 p->id, c->seq, app_names[c->shape.kind], status);
}

/* G7: what is told in the order of operations has epochs that do not fall. */
static void check_epoch(struct proc *p, const struct call *c, const struct covey_result *res)
{
	expect(p, c, res, res->epoch >= p->app.last_epoch, "G7: an epoch goes backwards");
	if (res->epoch > p->app.last_epoch)
		p->app.last_epoch = res->epoch;
}

static void record(struct proc *p, const struct call *c, const struct covey_result *res)
{
	const struct operation *op = app_op(c->shape.kind);
	struct outcome *o;

	if (!res->seq || res->seq >= SIM_SEQS)
		return;
	o = &p->outcome[res->seq];
	expect(p, c, res, !o->have, "I1: decided twice");
	*o = (struct outcome){ .have = 1,
			       .status = res->status,
			       .size = res->size,
			       .kind = c->shape.kind,
			       .root = op->rooted ? c->shape.root : 0,
			       .count = c->shape.count,
			       .odd = c->shape.odd,
			       .epoch = res->epoch,
			       .mask = res->mask.word[0] };
	if (!res->status && o->kind < OP_SENDRECV && !op->send_blocks && !op->to_root)
		o->hash = app_hash(c->recv, c->recv_bytes);
	sim_trace(p->sim, "process %d decides %" PRIu64 " %s status %d epoch %u mask %" PRIx64 " size %d", p->id,
		  res->seq, app_names[c->shape.kind], res->status, res->epoch, res->mask.word[0], res->size);
	compare_all(p, res->seq);
	check_calls(p, res->seq);
}

void check_outcome(struct proc *p, const struct call *c, const struct covey_result *res)
{
	struct sim_view *v = sim_view_of(p, res->epoch);

	if (p->seen.scribbled) /* left out, and it reads what it is made to have written */
		return;
	if (res->status) {
		check_failed(p, c, res, v);
	} else if (!v) {
		expect(p, c, res, 0, "I3: decided in a view that was never active");
	} else {
		check_mask(p, c, res, v);
		check_match(p, c, res);
		check_loss(p, c, res);
		if (!check_left_out(p))
			check_bytes(p, c, res, v);
		if (c->shape.kind == ADMIT)
			check_state(p, c, res);
	}
	check_epoch(p, c, res);
	if (c->shape.kind != ADMIT)
		check_input(p, c, res->status);
	record(p, c, res);
}
