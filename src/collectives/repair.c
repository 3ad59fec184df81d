/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair (PROTOCOL section 8): a member that lacks operations which others completed pulls their
 * missing ticks from a holder before it acknowledges the view; private operations go on with what the
 * sources had published, under the old stamps. Runs while the gate is closed, lock held.
 */
#include <stdlib.h>

#include "engine.h"
#include "log.h"

struct cvy_repair {
	struct covey_mask holders;
	uint64_t asked;	   /* seq of the PULL under way, 0: none */
	int holder;	   /* who was asked */
	int told;	   /* REPAIRED was posted */
	struct cvy_outcome *partial; /* of an operation that was not called yet */
};

struct pull {
	uint64_t seq;
	uint64_t from_tick; /* first missing tick of the operation */
};

struct give { /* followed by `words` mask words and `bytes` bytes */
	uint64_t seq, ticks, tick; /* ticks 0: no data */
	int32_t status, size;
	uint32_t epoch, sig, bytes, words;
};

void cvy_repair_drop(struct cvy_engine *e)
{
	if (!e->repair)
		return;
	if (e->repair->partial) {
		free(e->repair->partial->bytes);
		free(e->repair->partial);
	}
	free(e->repair);
	e->repair = NULL;
}

static void tell_repaired(struct cvy_engine *e)
{
	struct cvy_event ev = { .kind = CVY_EV_REPAIRED, .rank = -1, .epoch = e->view->epoch };

	if (e->repair->told)
		return;
	e->repair->told = 1;
	cvy_post(&e->sink, &ev);
}

static void send_pull(struct cvy_engine *e, uint64_t seq, uint64_t from_tick)
{
	struct pull pull = { seq, from_tick };
	int h = cvy_mask_next(&e->repair->holders, 0);

	while (h >= 0 && (h == e->rank || e->view->member[h].from > seq))
		h = cvy_mask_next(&e->repair->holders, h + 1);
	if (h < 0) {
		cvy_warn("engine", "no holder of operation %llu, epoch %u", (unsigned long long)seq, e->view->epoch);
		return;
	}
	e->repair->asked = seq;
	e->repair->holder = h;
	cvy_debug("engine", "pull operation %llu from rank %d, epoch %u", (unsigned long long)seq, h, e->view->epoch);
	e->send(e->send_ctx, h, e->view->member[h].inc, CVY_MSG_PULL, e->view->epoch, &pull, sizeof(pull));
}

/* An outcome that needs no bytes, for an operation called here or not. */
static void settle(struct cvy_engine *e, uint64_t seq, int status)
{
	struct cvy_op *op = e->head && e->head->seq == seq ? e->head : NULL;
	struct cvy_outcome *o;

	if (op) {
		cvy_engine_explain(e, op, status);
		cvy_engine_decide(e, op, status, e->view->epoch, &e->mask, e->size);
		return;
	}
	o = calloc(1, sizeof(*o));
	if (o) {
		o->result = (struct covey_result){ .status = status, .epoch = e->view->epoch, .seq = seq, .size = e->size };
		o->result.mask = e->mask;
		o->next = e->outcomes;
		e->outcomes = o;
	}
	e->done = e->ent = seq;
}

/* A private operation of which all sources had published: goes on under the old stamps. */
static int resume(struct cvy_engine *e, struct cvy_op *op)
{
	for (int i = 0; i < e->set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (link && link->ops->poll)
			link->ops->poll(link);
	}
	while (e->head == op && cvy_op_step(e, op))
		;
	return e->head != op;
}

void cvy_repair_step(struct cvy_engine *e)
{
	struct cvy_repair *rep = e->repair;

	while (rep && !rep->told) {
		uint64_t s = e->done + 1;
		struct cvy_op *op = e->head && e->head->seq == s ? e->head : NULL;

		if (s >= e->view->base) {
			tell_repaired(e);
			return;
		}
		if (s == e->view->fail_seq) {
			settle(e, s, e->view->fail_err);
		} else if (op && op->kind->op_class == CVY_OP_PRIVATE) {
			if (op->state != CVY_OP_ENTERED)
				settle(e, s, COVEY_ERR_LOST); /* completed elsewhere without this rank: cannot be */
			else if (!resume(e, op))
				return;
		} else {
			if (rep->asked != s)
				send_pull(e, s, op && op->state == CVY_OP_ENTERED ? op->completed : 0);
			return;
		}
	}
}

void cvy_engine_repair(void *ctx, const struct covey_mask *holders)
{
	struct cvy_engine *e = ctx;

	pthread_mutex_lock(&e->lock);
	cvy_repair_drop(e);
	e->repair = calloc(1, sizeof(*e->repair));
	if (e->repair) {
		e->repair->holders = *holders;
		cvy_repair_step(e);
	}
	pthread_mutex_unlock(&e->lock);
	cvy_progress_kick();
}

/* ---- holder ---- */

static void send_give(struct cvy_engine *e, const struct cvy_msg *to, struct give *head, const struct covey_mask *mask,
		      const uint8_t *bytes)
{
	size_t words = CVY_MASK_WORDS, total;
	uint8_t *msg;

	while (words && !mask->word[words - 1])
		words--;
	head->words = (uint32_t)words;
	total = sizeof(*head) + words * 8 + head->bytes;
	msg = malloc(total);
	if (!msg)
		return;
	memcpy(msg, head, sizeof(*head));
	memcpy(msg + sizeof(*head), mask->word, words * 8);
	if (head->bytes)
		memcpy(msg + sizeof(*head) + words * 8, bytes, head->bytes);
	e->send(e->send_ctx, to->rank, to->inc, CVY_MSG_GIVE, to->epoch, msg, (uint32_t)total);
	free(msg);
}

static uint8_t *scratch(struct cvy_engine *e, size_t bytes)
{
	if (e->scratch_bytes < bytes) {
		free(e->scratch);
		e->scratch = malloc(bytes);
		e->scratch_bytes = e->scratch ? bytes : 0;
	}
	return e->scratch;
}

static void answer_pull(struct cvy_engine *e, const struct cvy_msg *msg)
{
	const struct pull *pull = msg->body;
	struct cvy_op *op;

	/* Who asks may have learned the view before this holder did; both stand still. */
	if (msg->bytes != sizeof(*pull) || !e->view || msg->epoch < e->view->epoch || e->active)
		return;
	op = cvy_engine_record(e, pull->seq);
	if (!op) {
		cvy_warn("engine", "rank %d asks for operation %llu, which is not held, epoch %u", msg->rank,
			 (unsigned long long)pull->seq, e->view->epoch);
		return;
	}
	for (uint64_t i = pull->from_tick;; i++) {
		struct give head = { .seq = op->seq, .ticks = op->ticks, .tick = i, .status = op->result.status,
				     .size = op->result.size, .epoch = op->result.epoch, .sig = op->sig };

		if (op->result.status || !op->kind->give) {
			head.ticks = 0;
		} else if (i < op->ticks) {
			uint8_t *bytes = scratch(e, CVY_MSG_MAX);

			if (!bytes)
				return;
			head.bytes = (uint32_t)op->kind->give(e, op, i, bytes);
		}
		send_give(e, msg, &head, &op->result.mask, e->scratch);
		if (i + 1 >= head.ticks)
			return;
	}
}

/* ---- laggard ---- */

static void keep_bytes(struct cvy_outcome *o, const uint8_t *bytes, uint32_t n)
{
	uint8_t *grown = realloc(o->bytes, o->n + sizeof(n) + n);

	if (!grown)
		return;
	o->bytes = grown;
	memcpy(o->bytes + o->n, &n, sizeof(n));
	if (n)
		memcpy(o->bytes + o->n + sizeof(n), bytes, n);
	o->n += sizeof(n) + n;
}

/* Not called by the application yet: into private memory, until it is. */
static void take_early(struct cvy_engine *e, const struct give *head, const struct covey_result *res, const uint8_t *bytes)
{
	struct cvy_repair *rep = e->repair;

	if (!rep->partial)
		rep->partial = calloc(1, sizeof(*rep->partial));
	if (!rep->partial)
		return;
	rep->partial->result = *res;
	rep->partial->sig = head->sig;
	if (head->ticks)
		keep_bytes(rep->partial, bytes, head->bytes);
	if (head->tick + 1 < head->ticks)
		return;
	rep->partial->next = e->outcomes;
	e->outcomes = rep->partial;
	rep->partial = NULL;
	e->done = e->ent = head->seq;
}

static void take(struct cvy_engine *e, struct cvy_op *op, const struct give *head, const struct covey_result *res,
		 const uint8_t *bytes)
{
	int status = res->status;

	if (!status && head->sig != op->sig)
		status = COVEY_ERR_MISMATCH;
	if (!status && head->ticks && op->kind->take)
		op->kind->take(e, op, head->tick, bytes, head->bytes);
	op->completed = head->tick + 1;
	if (status || head->tick + 1 >= head->ticks)
		cvy_engine_decide(e, op, status, res->epoch, &res->mask, res->size);
}

static void take_give(struct cvy_engine *e, const struct cvy_msg *msg)
{
	const struct give *head = msg->body;
	struct covey_result res = { 0 };
	struct cvy_op *op;
	const uint8_t *bytes;

	if (!e->repair || !e->view || msg->epoch != e->view->epoch || msg->bytes < sizeof(*head))
		return;
	if (head->words > CVY_MASK_WORDS || msg->bytes != sizeof(*head) + head->words * 8ull + head->bytes ||
	    head->seq != e->done + 1 || e->repair->asked != head->seq)
		return;
	memcpy(res.mask.word, (const uint8_t *)msg->body + sizeof(*head), head->words * 8ull);
	bytes = (const uint8_t *)msg->body + sizeof(*head) + head->words * 8ull;
	res.status = head->status;
	res.epoch = head->epoch;
	res.seq = head->seq;
	res.size = head->size;
	op = e->head && e->head->seq == head->seq ? e->head : NULL;
	if (op)
		take(e, op, head, &res, bytes);
	else
		take_early(e, head, &res, bytes);
	cvy_repair_step(e);
}

void cvy_repair_message(struct cvy_engine *e, const struct cvy_msg *msg)
{
	if (msg->type == CVY_MSG_PULL)
		answer_pull(e, msg);
	else
		take_give(e, msg);
}

void cvy_engine_message(void *ctx, const struct cvy_msg *msg)
{
	struct cvy_engine *e = ctx;

	pthread_mutex_lock(&e->lock);
	if (msg->type == CVY_MSG_ADMIT)
		cvy_admit_message(e, msg);
	else if (msg->type == CVY_MSG_PULL || msg->type == CVY_MSG_GIVE)
		cvy_repair_message(e, msg);
	pthread_mutex_unlock(&e->lock);
	cvy_engine_wake(e);
	cvy_progress_kick();
}
