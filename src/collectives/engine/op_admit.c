/* SPDX-License-Identifier: Apache-2.0 */
/*
 * barrier, and admit: the safe point. If no rank is pending, admit is a store without a wait. With pending ranks it is
 * a barrier of members and pending ranks. The lowest member sends the pending ranks number, tick and state over the
 * control link, and they begin with it.
 */
#include <stdlib.h>

#include "clock.h"
#include "engine_state.h"
#include "log.h"

#define TELL_AGAIN_MS 500 /* to joiners that do not enter an ADMIT: they may have had no memory for the message */

const struct cvy_op_kind cvy_op_barrier = {
	.name = "barrier",
	.op_class = CVY_OP_ALL,
};

struct admit_head {
	uint64_t seq, since;	    /* the calls before it, as in struct cvy_engine */
	uint32_t past, tick, bytes; /* bytes of state follow */
	uint32_t zero;
};

static void tell_joiners(struct cvy_engine *e, const struct cvy_op *op, const struct covey_mask *whom, uint32_t tick)
{
	uint8_t msg[sizeof(struct admit_head) + CVY_STATE_MAX];
	struct admit_head head = {
		.seq = op->seq, .since = e->since, .past = e->past, .tick = tick, .bytes = (uint32_t)op->bytes
	};

	memcpy(msg, &head, sizeof(head));
	if (op->bytes)
		memcpy(msg + sizeof(head), op->send, op->bytes);
	CVY_MASK_EACH(r, whom)
	e->send(e->send_ctx, r, e->view->member[r].inc, CVY_MSG_ADMIT, e->here.epoch, msg,
		(uint32_t)(sizeof(head) + op->bytes));
}

void cvy_admit_send(struct cvy_engine *e, struct cvy_op *op)
{
	tell_joiners(e, op, &e->view->pending, e->tick + 1);
}

/* Kept while its epoch lasts: it may come before the view is active here. */
void cvy_admit_message(struct cvy_engine *e, const struct cvy_msg *msg)
{
	struct admit_head head;
	void *state;

	if (!e->view || !e->here.pending || msg->bytes < sizeof(head) || msg->epoch != e->view->epoch)
		return;
	memcpy(&head, msg->body, sizeof(head));
	if (!head.seq || !head.tick || head.bytes > CVY_STATE_MAX || msg->bytes != sizeof(head) + head.bytes) {
		cvy_warn("engine", "rank %d sent an admission of %u bytes that cannot be read, epoch %u", msg->rank,
			 msg->bytes, msg->epoch);
		return;
	}
	state = malloc(head.bytes + 1);
	if (!state) /* the message is sent again (cvy_engine_admit_late) */
		return;
	memcpy(state, (const uint8_t *)msg->body + sizeof(head), head.bytes);
	free(e->admit_state);
	e->admit_state = state;
	e->admit_bytes = head.bytes;
	e->admit_seq = head.seq;
	e->admit_tick = head.tick;
	e->admit_since = head.since;
	e->admit_past = head.past;
	e->admit_epoch = msg->epoch;
}

/* Pending ranks of which an entered ADMIT has no signal; none while it awaits an admitted rank too. */
static void missing_joiners(struct cvy_engine *e, struct cvy_op *op, struct covey_mask *missing)
{
	memset(missing, 0, sizeof(*missing));
	if (!op || op->state != CVY_OP_ENTERED || op->kind->op_class != CVY_OP_ADMIT || !op->entered ||
	    e->here.pending || cvy_mask_empty(&e->view->pending))
		return;
	for (int k = 0; k < e->here.set.n; k++) {
		int r = e->here.set.rank[k];

		if (k == e->here.set.self || __atomic_load_n(&cvy_source_line(e, op, 0, k, 1)->tag, __ATOMIC_ACQUIRE) ==
						     cvy_tag(e->here.epoch, op->first))
			continue;
		if (!covey_mask_has(&e->view->pending, r)) { /* it may be the one that sends joiners their number */
			memset(missing, 0, sizeof(*missing));
			return;
		}
		cvy_mask_add(missing, r);
	}
}

/* PROTOCOL section 6: the following change leaves them out even if they report. */
void cvy_engine_admit_late(struct cvy_engine *e, uint64_t now_ns)
{
	struct cvy_event ev = { .kind = CVY_EV_SUSPECT, .source = CVY_SOURCE_ADMIT };
	struct covey_mask missing;

	if (__atomic_load_n(&e->gate, __ATOMIC_ACQUIRE) || pthread_mutex_trylock(&e->lock))
		return; /* a stepper holds the lock: the next tick looks again */
	if (!e->active || !e->view) {
		pthread_mutex_unlock(&e->lock);
		return;
	}
	missing_joiners(e, e->head, &missing);
	if (cvy_mask_empty(&missing)) {
		e->late_seq = 0;
	} else if (e->late_seq != e->head->seq || e->late_epoch != e->here.epoch) {
		e->late_seq = e->head->seq;
		e->late_epoch = e->here.epoch;
		e->late_ns = e->told_ns = now_ns;
	} else if (now_ns - e->told_ns >= TELL_AGAIN_MS * CVY_MS && now_ns - e->late_ns < CVY_ADMIT_MS * CVY_MS) {
		e->told_ns = now_ns;
		if (cvy_lowest_admitted(e) == e->here.rank)
			tell_joiners(e, e->head, &missing, (uint32_t)e->head->first);
	} else if (now_ns - e->late_ns >= CVY_ADMIT_MS * CVY_MS) {
		CVY_MASK_EACH(r, &missing)
		{
			ev.rank = r;
			ev.inc = e->view->member[r].inc;
			cvy_post(&e->sink, &ev);
		}
		e->late_ns = now_ns; /* sent once; again if they do not enter */
	}
	pthread_mutex_unlock(&e->lock);
}

void cvy_admit_take_state(struct cvy_engine *e, const struct cvy_op *op, void *state)
{
	if (!e->admit_state)
		return;
	if (state)
		memcpy(state, e->admit_state, e->admit_bytes < op->bytes ? e->admit_bytes : op->bytes);
	free(e->admit_state);
	e->admit_state = NULL;
}

/* A joiner gives the members' state to its caller. */
static void admit_finish(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->result.status || !op->recv || !e->admit_state || e->admit_seq != op->seq)
		return;
	if (e->admit_bytes != op->bytes)
		cvy_warn("engine", "operation %llu: members give %zu bytes of state, this rank asks for %zu",
			 (unsigned long long)op->seq, e->admit_bytes, op->bytes);
	cvy_admit_take_state(e, op, op->recv);
}

const struct cvy_op_kind cvy_op_admit = {
	.name = "admit",
	.op_class = CVY_OP_ADMIT,
	.finish = admit_finish,
};
