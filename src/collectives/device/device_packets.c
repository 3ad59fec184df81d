/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of removed ranks. A rank that lacks an operation that others have completed asks a holder for the removed
 * rank's packets there (WANT), and stores them (SLOTS) at their place. Agent's thread; all devices are frozen.
 *
 * The operation is completed when the gate opens, which may be several views later than elsewhere. Holders have
 * continued by then, and a successor of the removed rank may have come, and left with its chunk. So received packets
 * are kept until the operation is complete, and are stored again after each view.
 */
#include <stdlib.h>
#include <string.h>

#include "device_state.h"
#include "log.h"

struct want {
	uint64_t op;
	int32_t gone; /* owner of the packets */
	uint32_t lanes, slot_bytes, rounds;
	uint32_t count[CVY_GPU_LANES]; /* of the lacking step, per lane */
};

struct slots { /* `bytes` bytes follow */
	uint64_t op;
	int32_t gone;
	uint32_t last; /* the last one for this rank */
	uint64_t at;
	uint32_t bytes, zero;
};

struct cvy_device_packets { /* from a SLOTS */
	struct cvy_device_packets *next;
	int gone;
	uint64_t at;
	uint32_t bytes;
	uint8_t data[];
};

void cvy_device_gone_turn(struct cvy_device *d, cvy_ranks ranks, enum cvy_device_gone_turn turn)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (cvy_ranks_has(ranks, r))
			d->peer[r].gone = cvy_device_gone_next(d->peer[r].gone, turn);
}

static cvy_ranks in_state(const struct cvy_device *d, enum cvy_device_gone gone)
{
	cvy_ranks mask = cvy_ranks_none();

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		mask = cvy_ranks_with_if(mask, r, d->peer[r].gone == gone);
	return mask;
}

cvy_ranks cvy_device_removed(const struct cvy_device *d)
{
	return cvy_ranks_but(cvy_ranks_all(), in_state(d, CVY_GONE_NOT));
}

int cvy_device_awaits_packets(const struct cvy_device *d)
{
	return cvy_ranks_any(in_state(d, CVY_GONE_ASKED));
}

void cvy_device_forget_packets(struct cvy_device *d)
{
	while (d->packets) {
		struct cvy_device_packets *x = d->packets;

		d->packets = x->next;
		free(x);
	}
	cvy_device_gone_turn(d, cvy_ranks_all(), CVY_GONE_USED);
}

/* Forgets incomplete packets of a rank: they are asked for again. */
static void forget_parts(struct cvy_device *d)
{
	struct cvy_device_packets **at = &d->packets;

	while (*at) {
		struct cvy_device_packets *x = *at;

		if (d->peer[x->gone].gone == CVY_GONE_WHOLE) {
			at = &x->next;
			continue;
		}
		*at = x->next;
		free(x);
	}
}

static void store(struct cvy_device *d, const struct cvy_device_packets *x)
{
	if (d->ops->write(d->gpu, x->gone, d->peer[x->gone].in, x->at, x->data, x->bytes))
		cvy_device_broken(d, "packets of a removed rank");
}

static int keep(struct cvy_device *d, const struct slots *s, const void *data)
{
	struct cvy_device_packets *x = malloc(sizeof(*x) + s->bytes);

	if (!x)
		return COVEY_ERR_NOMEM;
	*x = (struct cvy_device_packets){ d->packets, s->gone, s->at, s->bytes };
	memcpy(x->data, data, s->bytes);
	d->packets = x;
	return 0;
}

void cvy_device_ask(struct cvy_device *d, int holder)
{
	const struct cvy_gpu_parked *p = &d->counters.parked;
	struct want want = { p->op, 0, p->lanes, p->slot_bytes, p->rounds, { 0 } };
	int nobody;

	for (uint32_t i = 0; i < p->lanes && i < CVY_GPU_LANES; i++) {
		const struct cvy_gpu_past *past = &d->counters.past[i];
		int done = cvy_gpu_counted(past->done, past->counted, p->op);

		want.count[i] = (done ? (uint32_t)past->counted : d->counters.lane[i].count) + p->steps;
	}
	/*
	 * Nobody else has the own part of a private operation. An operation that has not entered is one: for others a
	 * kernel would be here, except for lanes that had no part of it, which wait for nothing (CVY_GPU_LAGS). Where no CTA has
	 * ever stopped there are no lanes in what it says, and operation 0 has not entered either.
	 */
	nobody = p->private_parts || !p->lanes || p->op != d->peer[d->rank].have.op;
	cvy_device_gone_turn(d, cvy_ranks_all(), nobody ? CVY_GONE_UNASK : CVY_GONE_ASK);
	forget_parts(d);
	for (const struct cvy_device_packets *x = d->packets; x; x = x->next)
		store(d, x);
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		want.gone = r;
		if (d->peer[r].gone == CVY_GONE_ASKED)
			d->send(d->send_ctx, holder, d->view->member[holder].inc, CVY_MSG_WANT, d->view->epoch, &want,
				sizeof(want), -1);
	}
}

static int send_slot(struct cvy_device *d, const struct cvy_msg *to, const struct want *w, size_t at, int last)
{
	static const size_t head = sizeof(struct slots);
	uint8_t *buf = malloc(head + w->slot_bytes);
	struct slots s = { w->op, w->gone, (uint32_t)last, at, w->slot_bytes, 0 };
	const struct cvy_device_peer *p = &d->peer[w->gone];
	int err;

	if (!buf)
		return COVEY_ERR_NOMEM;
	memcpy(buf, &s, head);
	err = d->ops->read(d->gpu, w->gone, p->left, at, buf + head, w->slot_bytes);
	if (!err)
		err = d->send(d->send_ctx, to->rank, to->inc, CVY_MSG_SLOTS, to->epoch, buf,
			      (uint32_t)(head + w->slot_bytes), -1);
	free(buf);
	return err;
}

void cvy_device_got_want(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct want w;
	int err = 0;

	if (msg->bytes != sizeof(w))
		return;
	memcpy(&w, msg->body, sizeof(w));
	if (w.gone < 0 || w.gone >= CVY_GPU_RANKS || w.lanes > CVY_GPU_LANES || w.slot_bytes > CVY_GPU_SLOT ||
	    w.rounds < 1 || w.rounds > CVY_GPU_ROUNDS || d->peer[w.gone].gone == CVY_GONE_NOT) {
		cvy_warn("device", "rank %d asks for packets that nobody has", msg->rank);
		return;
	}
	for (uint32_t i = 0; !err && i < w.lanes; i++) /* a laggard lacks the last round; then its signals */
		err = send_slot(d, msg, &w, cvy_gpu_slot_at((int)w.rounds - 1, (int)i, w.count[i]), 0);
	w.slot_bytes = CVY_GPU_SIGNAL_BYTES;
	for (uint32_t i = 0; !err && i < w.lanes; i++)
		err = send_slot(d, msg, &w, cvy_gpu_signal_at(0, (int)i, w.count[i]), i + 1 == w.lanes);
	if (err)
		cvy_warn("device", "rank %d cannot have what rank %d left: %s", msg->rank, w.gone, covey_strerror(err));
}

void cvy_device_got_slots(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct slots s;

	if (msg->bytes < sizeof(s) || !d->view || msg->epoch != d->view->epoch)
		return;
	memcpy(&s, msg->body, sizeof(s));
	if (s.gone < 0 || s.gone >= CVY_GPU_RANKS || s.bytes != msg->bytes - sizeof(s) || s.at > CVY_GPU_CHUNK ||
	    s.bytes > CVY_GPU_CHUNK - s.at || d->peer[s.gone].gone != CVY_GONE_ASKED) {
		cvy_warn("device", "rank %d sends packets that were not asked for", msg->rank);
		return;
	}
	if (keep(d, &s, (const uint8_t *)msg->body + sizeof(s))) {
		cvy_device_give_up(d, COVEY_ERR_NOMEM, d->rank, d->epoch, "no memory for packets of a removed rank");
		return;
	}
	store(d, d->packets);
	if (s.last)
		cvy_device_gone_turn(d, cvy_ranks_one(s.gone), CVY_GONE_COME);
	cvy_device_tell_repaired(d);
}
