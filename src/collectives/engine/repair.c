/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair (PROTOCOL section 8): a member that lacks operations that others completed pulls their missing ticks from a
 * holder before it acknowledges the view. Private operations continue with the sources' published data, under the old
 * stamps. Runs while the gate is closed, lock held.
 *
 * A member completed each repaired operation, so all had published all of it. If not, ranks made different calls. To
 * show this, every member writes the operation that it is past into its done line, after its ticks on every link. A tick
 * of that operation that is not here then never comes.
 *
 * A rank that some left out of an operation may not have published it, and others may wait for its part. It publishes
 * here, under the old stamps, once it has called the operation.
 *
 * This is the laggard's part; repair_give.c is the holder's.
 */
#include <stdlib.h>

#include "clock.h"
#include "engine_state.h"
#include "hosts.h"
#include "log.h"
#include "outcome.h"
#include "repair.h"

#define ASK_AGAIN_MS 200 /* if a holder gives nothing for so long, asks it or another again */

struct cvy_repair {
	struct covey_mask holders;
	uint64_t asked;		     /* seq of the PULL under way, 0: none */
	uint64_t sent_on;	     /* seq for which a holder named the root, once */
	int holder;		     /* rank that was asked last */
	uint64_t next;		     /* next expected tick of the operation */
	int told;		     /* REPAIRED was posted */
	int lags;		     /* a member lags: each reports its progress */
	uint64_t said;		     /* last reported seq, plus 1 */
	uint64_t asked_ns;	     /* when the holder was asked, or gave the last tick */
	struct covey_mask asked_of;  /* all that were asked for that operation */
	struct covey_mask without;   /* of these, ranks that cannot give it */
	struct cvy_outcome *partial; /* the part that has come */
	struct cvy_outcome *apart; /* of an operation that a holder completed without this rank, which it had left out */
};

int cvy_repair_open(struct cvy_engine *e)
{
	e->repair_room = calloc(1, sizeof(*e->repair_room));
	return e->repair_room ? 0 : COVEY_ERR_NOMEM;
}

void cvy_repair_drop(struct cvy_engine *e)
{
	if (!e->repair)
		return;
	cvy_outcome_put(e->repair->partial);
	cvy_outcome_put(e->repair->apart);
	e->repair = NULL;
}

static void tell_repaired(struct cvy_engine *e)
{
	struct cvy_event ev = { .kind = CVY_EV_REPAIRED, .rank = -1, .epoch = e->view->epoch };

	if (e->repair->told)
		return;
	e->repair->told = 1;
	cvy_post_after_device(e, &ev); /* on whichever thread stepped the repair */
}

static void begin_asking(struct cvy_repair *rep, uint64_t seq)
{
	if (rep->asked == seq)
		return;
	rep->asked = seq;
	memset(&rep->asked_of, 0, sizeof(rep->asked_of));
	memset(&rep->without, 0, sizeof(rep->without));
}

static void ask(struct cvy_engine *e, uint64_t seq, uint64_t from_tick, int whom)
{
	struct cvy_pull pull = { seq, from_tick };

	begin_asking(e->repair, seq);
	cvy_mask_add(&e->repair->asked_of, whom);
	e->repair->asked_ns = cvy_engine_now(e);
	e->repair->holder = whom;
	e->repair->next = from_tick;
	cvy_debug("engine", "pull operation %llu from rank %d, epoch %u", (unsigned long long)seq, whom,
		  e->view->epoch);
	e->send(e->send_ctx, whom, e->view->member[whom].inc, CVY_MSG_PULL, e->view->epoch, &pull, sizeof(pull));
}

/* The first holder of it from @rank on, -1: none. */
static int holder_from(const struct cvy_engine *e, uint64_t seq, int rank)
{
	int h = cvy_mask_next(&e->repair->holders, rank);

	while (h >= 0 && (h == e->here.rank || e->view->member[h].from > seq || covey_mask_has(&e->repair->without, h)))
		h = cvy_mask_next(&e->repair->holders, h + 1);
	return h;
}

static void send_pull(struct cvy_engine *e, uint64_t seq, uint64_t from_tick)
{
	int h;

	begin_asking(e->repair, seq);
	h = holder_from(e, seq, 0);
	if (h >= 0) {
		ask(e, seq, from_tick, h);
		return;
	}
	cvy_warn("engine", "no holder of operation %llu, epoch %u", (unsigned long long)seq, e->view->epoch);
	if (!cvy_mask_empty(&e->repair->without))
		cvy_engine_give_up(e, "operation %llu: nobody has memory for what removed ranks left of it",
				   (unsigned long long)seq);
}

/*
 * Links lose nothing, but if memory fails, a question or its answer may be lost. The next holder is asked for the rest,
 * or the same one again.
 */
static void ask_again(struct cvy_engine *e)
{
	struct cvy_repair *rep = e->repair;
	int h;

	if (cvy_engine_now(e) - rep->asked_ns < ASK_AGAIN_MS * CVY_MS)
		return;
	h = rep->sent_on == rep->asked ? rep->holder : holder_from(e, rep->asked, rep->holder + 1);
	if (h < 0)
		h = holder_from(e, rep->asked, 0);
	if (h >= 0)
		ask(e, rep->asked, rep->next, h);
}

/* An outcome that needs no bytes, for an operation called here or not. 0: this rank gives up. */
static int settle(struct cvy_engine *e, const struct covey_result *res)
{
	uint64_t seq = res->seq;
	struct cvy_op *op = e->head && e->head->seq == seq ? e->head : NULL;
	struct cvy_outcome *o;

	if (op) {
		cvy_engine_explain(e, op, res->status);
		if (seq == e->failed.seq)
			cvy_engine_forget_calls(e, seq);
		cvy_engine_decide(e, op, res->status, res->epoch, &res->mask, e->here.size);
		return 1;
	}
	if (seq == e->failed.seq) {
		if (res->status == COVEY_ERR_MISMATCH)
			cvy_engine_keep_words(e, seq);
		cvy_engine_forget_calls(e, seq);
	}
	o = cvy_calloc_twice(sizeof(*o));
	if (!o) {
		cvy_engine_give_up(e, "no memory for the outcome of operation %llu", (unsigned long long)seq);
		return 0;
	}
	o->result = *res;
	o->result.size = e->here.size;
	o->root = -1;
	cvy_outcome_hold(e, o, 0);
	cvy_engine_reach(e, seq);
	return 1;
}

/* Is the awaited tick of the k-th source here? Then it counts, and a look may have passed it already. */
static int came(const struct cvy_engine *e, const struct cvy_op *op, int k)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first + (uint32_t)op->completed);

	return __atomic_load_n(&cvy_source_line(e, op, op->completed, k, 1)->tag, __ATOMIC_ACQUIRE) == tag;
}

/* Masks sources whose awaited puts were on a link that was replaced: 1 if there is one more. */
static int links_renewed(struct cvy_engine *e, const struct cvy_op *op)
{
	int found = 0;

	for (int k = 0; k < e->here.set.n; k++) {
		struct cvy_link *link = e->here.set.link[k] ? cvy_mesh_link(e->mesh, e->here.set.rank[k]) : NULL;

		if (!e->here.set.link[k] || e->here.set.gone[k] || (link && link->id == e->here.set.link[k]) ||
		    came(e, op, k))
			continue;
		e->here.set.gone[k] = 1;
		found = 1;
	}
	return found;
}

/* Did this rank enter it, in the view in which others have completed it? If a later one did it again, it did not. */
static int entered(const struct cvy_engine *e, const struct cvy_op *op)
{
	return op->state == CVY_OP_ENTERED && op->seq < e->anew;
}

/* Has this rank published all ticks of it, as far as it can know? Then others may have completed it. */
static int published(const struct cvy_engine *e, const struct cvy_op *op)
{
	return entered(e, op) && op->entered >= (op->ticks ? op->ticks : 1);
}

static void go_on(struct cvy_engine *e, struct cvy_op *op)
{
	while (e->head == op && published(e, op) && cvy_op_step(e, op))
		;
}

/* A private operation of which all sources had published: continues under the old stamps. */
static int resume(struct cvy_engine *e, struct cvy_op *op)
{
	cvy_engine_look_at_push(e);
	go_on(e, op);
	while (e->head == op && links_renewed(e, op)) /* puts on a replaced link never come: those sources are masked */
		go_on(e, op);
	return e->head != op;
}

/*
 * A private operation needs every rank that called it. If others are past its number and this rank had not published
 * all of it, or a source never does, then a rank made another call there.
 */
static int settle_private(struct cvy_engine *e, struct cvy_op *op)
{
	struct covey_result other = { .status = COVEY_ERR_MISMATCH, .epoch = e->here.epoch, .seq = op->seq };
	enum cvy_absent absent = CVY_ABSENT_ANOTHER_CALL;

	if (published(e, op) && resume(e, op))
		return 1;
	if (published(e, op))
		absent = cvy_late_in_repair(e, op);
	if (absent == CVY_ABSENT_MASKED)
		go_on(e, op);
	if (absent != CVY_ABSENT_ANOTHER_CALL)
		return e->head != op;
	if (cvy_engine_outrun(e)) /* its findings are of a view without this rank */
		return 0;
	return settle(e, &other);
}

/* Others may have completed it without this rank: they masked it as late or left it out, and a holder knows. */
static int masked_elsewhere(const struct cvy_engine *e, const struct cvy_op *op)
{
	return op->partial && !published(e, op);
}

static void take(struct cvy_engine *e, struct cvy_outcome *o);

/*
 * A holder had left this rank out of it, which is a matter between the two: the others get this rank's part, and it gets
 * theirs. If nobody wants it, or another call was made here, the holder's outcome is taken. 0: it waits.
 */
static int take_part(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_outcome *o = e->repair->apart;
	uint64_t seq = o->result.seq;
	uint32_t n, first;

	if (__atomic_load_n(&e->retiring, __ATOMIC_RELAXED) ||
	    (op ? !cvy_outcome_fits(o, op) : !cvy_late_wanted(e, seq))) {
		e->repair->apart = NULL;
		take(e, o);
		return 1;
	}
	if (!op)
		return 0;
	if (!op->entered) {
		memcpy(&first, cvy_outcome_tick(o, 0, &n), sizeof(first));
		cvy_late_enter(e, op, first);
	}
	if (e->done < seq && !settle_private(e, op))
		return 0;
	cvy_outcome_put(o);
	e->repair->apart = NULL;
	return 1;
}

/*
 * For the root of a reduce or gather that others completed without its word. They saw the lines of all; the root sees
 * the same, in windows or copies set aside.
 */
static int fold_what_all_saw(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->kind->op_class != CVY_OP_TO_ROOT || op->root != e->here.rank)
		return 0;
	go_on(e, op);
	return e->head != op;
}

void cvy_repair_step(struct cvy_engine *e)
{
	struct cvy_repair *rep = e->repair;

	while (rep && !rep->told) {
		uint64_t s = e->done + 1;
		struct cvy_op *op = e->head && e->head->seq == s ? e->head : NULL;

		if (rep->lags && rep->said != s) { /* s - 1 is decided here */
			rep->said = s;
			cvy_say_done(e);
		}
		if (s >= e->view->base) {
			tell_repaired(e);
			return;
		}
		if (s == e->failed.seq) {
			if (!settle(e, &e->failed))
				return;
		} else if (rep->apart) {
			if (!take_part(e, op))
				return;
		} else if (op && op->kind->op_class == CVY_OP_PRIVATE && !masked_elsewhere(e, op)) {
			if (!settle_private(e, op))
				return;
		} else if (!op || !fold_what_all_saw(e, op)) {
			if (rep->asked != s)
				send_pull(e, s, op && entered(e, op) ? op->completed : 0);
			else
				ask_again(e);
			return;
		}
	}
}

int cvy_repair_go_on(struct cvy_engine *e)
{
	cvy_repair_step(e);
	return e->repair && !e->repair->told;
}

static int somebody_lags(const struct cvy_engine *e, const struct covey_mask *holders)
{
	CVY_MASK_EACH(r, &e->view->members)
	if (r != e->here.rank && !covey_mask_has(holders, r) && !covey_mask_has(&e->view->pending, r))
		return 1;
	return e->done + 1 < e->view->base;
}

void cvy_engine_repair(void *ctx, const struct covey_mask *holders)
{
	struct cvy_engine *e = ctx;

	pthread_mutex_lock(&e->lock);
	cvy_repair_drop(e);
	e->repair = e->repair_room;
	memset(e->repair, 0, sizeof(*e->repair));
	e->repair->holders = *holders;
	e->repair->lags = somebody_lags(e, holders);
	cvy_repair_step(e);
	cvy_engine_look_for_end(e);
	pthread_mutex_unlock(&e->lock);
	cvy_engine_kick(e);
}

/* ---- laggard ---- */

/* All of it is here. If the application has not called it yet, it stays in private memory until then. */
static void take(struct cvy_engine *e, struct cvy_outcome *o)
{
	struct cvy_op *op = e->head && e->head->seq == o->result.seq ? e->head : NULL;
	int status = o->result.status;

	cvy_outcome_hold(e, o, op != NULL);
	if (op && o->root >= 0 && o->sig != op->sig) /* the call made here had no such part */
		status = COVEY_ERR_MISMATCH;
	if (!op) {
		cvy_engine_reach(e, o->result.seq);
		return;
	}
	if (!cvy_outcome_fits(o, op))
		status = COVEY_ERR_MISMATCH;
	if (!status && op->kind->op_class == CVY_OP_TO_ROOT && op->root == e->here.rank && op->completed < op->ticks)
		status = COVEY_ERR_LOST; /* there was no memory for a copy of a removed rank's data */
	for (uint64_t i = o->from; !status && op->kind->take && i < o->ticks; i++) {
		uint32_t n;
		const uint8_t *bytes = cvy_outcome_tick(o, i, &n);

		op->kind->take(e, op, i, bytes, n);
	}
	if (status)
		cvy_engine_explain(e, op, status);
	cvy_engine_decide(e, op, status, o->result.epoch, cvy_outcome_mask(o, op), o->result.size);
}

/*
 * The root has this rank's part. It has decided everything that others have, even if it lags behind them since, and it
 * is frozen like all members until this rank acknowledges the view.
 */
static void be_sent_on(struct cvy_engine *e, const struct cvy_msg *msg, const struct cvy_give *head)
{
	struct covey_result res = { .status = COVEY_ERR_LOST, .epoch = head->epoch, .seq = head->seq };
	struct cvy_op *op = e->head && e->head->seq == head->seq ? e->head : NULL;
	int root = head->root;

	if (msg->rank != e->repair->holder || root == msg->rank || e->repair->partial)
		return;
	if (op && op->sig != head->sig) {
		res.status = COVEY_ERR_MISMATCH;
	} else if (e->repair->sent_on != head->seq && root >= 0 && root < e->view->max_ranks && root != e->here.rank &&
		   covey_mask_has(&e->view->members, root) && e->view->member[root].from <= head->seq) {
		e->repair->sent_on = head->seq;
		ask(e, head->seq, e->repair->next, root);
		return;
	}
	if (settle(e, &res))
		cvy_repair_step(e);
}

/* It has no copy of removed ranks' data: another may. */
static void be_refused(struct cvy_engine *e, const struct cvy_msg *msg, const struct cvy_give *head)
{
	cvy_mask_add(&e->repair->without, msg->rank);
	if (msg->rank == e->repair->holder)
		send_pull(e, head->seq, e->repair->next);
}

static void take_give(struct cvy_engine *e, const struct cvy_msg *msg)
{
	const struct cvy_give *head = msg->body;
	int apart;
	struct cvy_outcome *o;
	const uint8_t *words;

	if (!e->repair || !e->view || msg->epoch != e->view->epoch || msg->bytes < sizeof(*head))
		return;
	if (head->words > CVY_MASK_WORDS ||
	    msg->bytes != sizeof(*head) + head->words * sizeof(uint64_t) + head->bytes || head->seq != e->done + 1 ||
	    e->repair->asked != head->seq)
		return;
	if (head->status == COVEY_ERR_AGAIN && head->root >= 0) {
		be_sent_on(e, msg, head);
		return;
	}
	if (head->status == COVEY_ERR_NOMEM) {
		be_refused(e, msg, head);
		return;
	}
	if (head->tick < e->repair->next && covey_mask_has(&e->repair->asked_of, msg->rank)) /* it was asked twice */
		return;
	o = e->repair->partial;
	if (!covey_mask_has(&e->repair->asked_of, msg->rank) || head->tick != e->repair->next ||
	    (o && o->ticks != head->ticks) || head->size < 0 || head->size > e->view->max_ranks || head->root < -1 ||
	    head->root >= e->view->max_ranks) {
		cvy_warn("engine", "rank %d gives tick %llu of operation %llu out of place, epoch %u", msg->rank,
			 (unsigned long long)head->tick, (unsigned long long)head->seq, msg->epoch);
		return;
	}
	if (!o) {
		o = e->repair->partial = cvy_calloc_twice(sizeof(*o));
		if (!o) {
			cvy_engine_give_up(e, "no memory for the outcome of operation %llu",
					   (unsigned long long)head->seq);
			return;
		}
		o->from = head->tick;
	}
	apart = head->status == COVEY_ERR_AGAIN;
	e->repair->next++;
	e->repair->asked_ns = cvy_engine_now(e);
	words = (const uint8_t *)msg->body + sizeof(*head);
	o->result = (struct covey_result){
		.status = apart ? 0 : head->status, .epoch = head->epoch, .seq = head->seq, .size = head->size
	};
	memcpy(o->result.mask.word, words, head->words * sizeof(uint64_t));
	o->sig = head->sig;
	o->past = head->past;
	cvy_engine_told_calls(e, head->seq, head->past, head->since);
	o->root = head->root;
	o->ticks = head->ticks;
	if (head->ticks && cvy_outcome_add_tick(o, words + head->words * sizeof(uint64_t), head->bytes)) {
		cvy_engine_give_up(e, "no memory for %u bytes of operation %llu", head->bytes,
				   (unsigned long long)head->seq);
		return;
	}
	if (head->tick + 1 < head->ticks)
		return;
	e->repair->partial = NULL;
	if (apart && head->bytes == sizeof(uint32_t) && head->epoch == e->here.epoch && head->seq < e->anew &&
	    !e->here.set.cut)
		e->repair->apart = o;
	else
		take(e, o);
	cvy_repair_step(e);
}

void cvy_repair_message(struct cvy_engine *e, const struct cvy_msg *msg)
{
	if (msg->type == CVY_MSG_PULL)
		cvy_repair_answer(e, msg);
	else
		take_give(e, msg);
}
