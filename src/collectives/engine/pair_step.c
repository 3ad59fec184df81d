/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a pair: records in, matching, records out. They do all that they can without waiting. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "pair_state.h"

#define WHOLE_PART 4 /* of a ring: the longest message that is sent whole, and the longest part */

/* ---- lists ---- */

void cvy_parcel_add(struct cvy_parcels *list, struct cvy_parcel *x)
{
	x->next = NULL;
	*list->last = x;
	list->last = &x->next;
}

struct cvy_parcel *cvy_parcel_take(struct cvy_parcels *list, struct cvy_parcel **at)
{
	struct cvy_parcel *x = *at;

	*at = x->next;
	if (!*at)
		list->last = at;
	return x;
}

static struct cvy_parcel **find_number(struct cvy_parcels *list, uint64_t number)
{
	struct cvy_parcel **at = &list->first;

	while (*at && (*at)->number != number)
		at = &(*at)->next;
	return at;
}

/* ---- ends ---- */

static int is_send(const struct cvy_parcel *x)
{
	return x->op->kind == &cvy_op_send;
}

/* @x must be in no list. */
void cvy_pair_done(struct cvy_engine *e, struct cvy_parcel *x, int status)
{
	struct cvy_op *op = x->op;
	struct covey_result *res = &op->result;

	res->status = status;
	res->epoch = e->view ? e->view->epoch : 0;
	res->seq = x->number;
	res->size = e->here.size;
	for (int w = 0; w < e->mask_words; w++)
		res->mask.word[w] = 0;
	cvy_mask_add(&res->mask, e->here.rank);
	if (status != COVEY_ERR_PEER)
		cvy_mask_add(&res->mask, op->root);
	res->wait_ns = op->posted_ns ? cvy_now_ns() - op->posted_ns : 0;
	res->bytes = is_send(x) ? op->bytes : x->at;
	res->peer = op->root;
	res->tag = x->tag;
	cvy_op_turn(op, CVY_OP_DECIDED);
	if (__atomic_load_n(&e->asleep, __ATOMIC_RELAXED))
		cvy_engine_wake(e);
	cvy_op_put(op);
}

static void received(struct cvy_engine *e, struct cvy_pair *p, struct cvy_parcel *x)
{
	int status = 0;

	if (x->total > x->op->bytes)
		status = cvy_fail(e->here.box, COVEY_ERR_TRUNCATED, p->rank, e->view->epoch,
				  "message %llu of rank %d, tag %d, has %zu bytes; the buffer holds %zu",
				  (unsigned long long)x->number, p->rank, x->tag, x->total, x->op->bytes);
	cvy_pair_done(e, x, status);
}

/* ---- matching ---- */

static int wants(const struct cvy_parcel *x, int tag)
{
	return x->tag == COVEY_TAG_ANY || x->tag == tag;
}

static size_t taken(const struct cvy_parcel *x)
{
	return x->total < x->op->bytes ? x->total : x->op->bytes;
}

/* Room that a whole message without a receive takes at the receiver: empty ones count too. */
static uint64_t cost(uint64_t bytes)
{
	return bytes + sizeof(struct cvy_pair_record);
}

static void meet(struct cvy_parcel *x, uint64_t number, int tag, uint64_t bytes)
{
	x->number = number;
	x->tag = tag;
	x->total = (size_t)bytes;
	x->at = 0;
}

void cvy_pair_claim(struct cvy_engine *e, struct cvy_pair *p, struct cvy_parcel *x)
{
	struct cvy_arrival **at = &p->arrived, *a;

	while (*at && !wants(x, (*at)->tag))
		at = &(*at)->next;
	a = *at;
	if (!a) {
		cvy_parcel_add(&p->posted, x);
		return;
	}
	*at = a->next;
	if (!*at)
		p->arrived_last = at;
	meet(x, a->number, a->tag, a->bytes);
	if (a->whole) {
		x->at = taken(x);
		memcpy(x->op->recv, a->data, x->at);
		p->ch.note += cost(a->bytes);
		received(e, p, x);
	} else {
		cvy_parcel_add(&p->wanting, x);
	}
	free(a);
}

/* The body of the record that is taken, from its note or the ring. */
static void body_of(const struct cvy_pair *p, const struct cvy_note *note, void *to, size_t n)
{
	if (note && n <= CVY_NOTE_DATA)
		cvy_copy_few(to, note->data, n);
	else
		cvy_channel_peek(&p->ch, sizeof(struct cvy_pair_record), to, n);
}

/* What becomes of a record; < 0: COVEY_ERR_IO, no honest peer writes it. */
enum use {
	NOT_NOW, /* there is none, no memory for it, or its bytes are of another incarnation */
	USED
};

/* Keeps a message that has no receive yet. */
static int keep(struct cvy_pair *p, const struct cvy_pair_record *r, const struct cvy_note *note)
{
	int whole = r->kind == CVY_RECORD_WHOLE;
	struct cvy_arrival *a = malloc(sizeof(*a) + (whole ? (size_t)r->bytes : 0));

	if (!a)
		return NOT_NOW;
	*a = (struct cvy_arrival){ .number = r->number, .bytes = r->bytes, .tag = r->tag, .whole = whole };
	if (whole)
		body_of(p, note, a->data, (size_t)r->bytes);
	if (!cvy_channel_held(&p->ch)) {
		free(a);
		return NOT_NOW;
	}
	*p->arrived_last = a;
	p->arrived_last = &a->next;
	return USED;
}

/* A header. */
static int arrive(struct cvy_engine *e, struct cvy_pair *p, const struct cvy_pair_record *r,
		  const struct cvy_note *note)
{
	struct cvy_parcel **at = &p->posted.first, *x;

	while (*at && !wants(*at, r->tag))
		at = &(*at)->next;
	if (!*at)
		return keep(p, r, note);
	x = cvy_parcel_take(&p->posted, at);
	meet(x, r->number, r->tag, r->bytes);
	if (r->kind == CVY_RECORD_OFFER) {
		cvy_parcel_add(&p->wanting, x);
		return USED;
	}
	x->at = taken(x);
	body_of(p, note, x->op->recv, x->at);
	if (!cvy_channel_held(&p->ch)) {
		cvy_parcel_add(&p->posted, x); /* it ends with the handle */
		return NOT_NOW;
	}
	p->ch.note += cost(r->bytes);
	received(e, p, x);
	return USED;
}

/* ---- in ---- */

static int wanted(struct cvy_engine *e, struct cvy_pair *p, const struct cvy_pair_record *r)
{
	struct cvy_parcel **at = find_number(&p->offered, r->number), *x;

	if (!*at || r->bytes > (*at)->op->bytes)
		return COVEY_ERR_IO;
	x = cvy_parcel_take(&p->offered, at);
	x->total = (size_t)r->bytes;
	if (x->total)
		cvy_parcel_add(&p->parting, x);
	else
		cvy_pair_done(e, x, 0);
	return USED;
}

static int part(struct cvy_engine *e, struct cvy_pair *p, const struct cvy_pair_record *r)
{
	struct cvy_parcel **at = find_number(&p->coming, r->number), *x = *at;

	if (!x || r->bytes > taken(x) - x->at)
		return COVEY_ERR_IO;
	cvy_channel_peek(&p->ch, sizeof(*r), (uint8_t *)x->op->recv + x->at, (size_t)r->bytes);
	if (!cvy_channel_held(&p->ch))
		return NOT_NOW;
	x->at += (size_t)r->bytes;
	if (x->at == taken(x))
		received(e, p, cvy_parcel_take(&p->coming, at));
	return USED;
}

/* Detects from the record alone, before any use of it, a record that no honest peer writes. */
static int believed(const struct cvy_pair *p, const struct cvy_pair_record *r)
{
	switch (r->kind) {
	case CVY_RECORD_WHOLE:
		return r->number == p->expect && r->tag >= 0 && r->bytes <= p->ch.ring / WHOLE_PART;
	case CVY_RECORD_OFFER:
		return r->number == p->expect && r->tag >= 0 && r->bytes <= SIZE_MAX / 2;
	case CVY_RECORD_WANT:
		return 1;
	case CVY_RECORD_PART:
		return r->bytes && r->bytes <= p->ch.ring / WHOLE_PART;
	default:
		return 0;
	}
}

/* One record. */
static int take_record(struct cvy_engine *e, struct cvy_pair *p)
{
	struct cvy_pair_record r;
	struct cvy_note note;
	size_t body;
	int used, noted;

	if (cvy_channel_ready(&p->ch) < sizeof(r))
		return cvy_channel_ready(&p->ch) ? COVEY_ERR_IO : NOT_NOW;
	noted = cvy_channel_note(&p->ch, sizeof(r), &note);
	if (noted)
		r = (struct cvy_pair_record){ CVY_RECORD_WHOLE, (int32_t)note.word, p->expect, note.n };
	else
		cvy_channel_peek(&p->ch, 0, &r, sizeof(r));
	if (!cvy_channel_held(&p->ch))
		return NOT_NOW;
	if (!believed(p, &r))
		return COVEY_ERR_IO;
	body = r.kind == CVY_RECORD_WHOLE || r.kind == CVY_RECORD_PART ? (size_t)r.bytes : 0;
	if (cvy_channel_ready(&p->ch) < sizeof(r) + body)
		return COVEY_ERR_IO; /* records are published as a whole */
	if (r.kind == CVY_RECORD_WANT)
		used = wanted(e, p, &r);
	else if (r.kind == CVY_RECORD_PART)
		used = part(e, p, &r);
	else
		used = arrive(e, p, &r, noted ? &note : NULL);
	if (used != USED)
		return used;
	if (r.kind == CVY_RECORD_WHOLE || r.kind == CVY_RECORD_OFFER)
		p->expect++;
	cvy_channel_eat(&p->ch, sizeof(r) + body);
	return USED;
}

/* ---- out ---- */

static void write_record(struct cvy_pair *p, uint32_t kind, const struct cvy_parcel *x, const void *body, size_t bytes)
{
	struct cvy_pair_record r = { .kind = kind, .tag = x->tag, .number = x->number, .bytes = bytes };

	cvy_channel_write(&p->ch, &r, sizeof(r));
	if (body)
		cvy_channel_write(&p->ch, body, bytes);
	if (!body || kind != CVY_RECORD_WHOLE || bytes > CVY_NOTE_DATA)
		return;
	p->ch.brief.end = p->ch.written;
	p->ch.brief.word = (uint32_t)x->tag;
	p->ch.brief.n = (uint32_t)bytes;
	p->ch.brief.bytes = (uint32_t)(sizeof(r) + bytes);
	cvy_copy_few(p->ch.brief.data, body, bytes);
}

/* WANTs first: the far end waits for them. */
static int write_wants(struct cvy_engine *e, struct cvy_pair *p)
{
	int moved = 0;

	while (p->wanting.first && cvy_channel_room(&p->ch) >= sizeof(struct cvy_pair_record)) {
		struct cvy_parcel *x = cvy_parcel_take(&p->wanting, &p->wanting.first);

		write_record(p, CVY_RECORD_WANT, x, NULL, taken(x));
		if (taken(x))
			cvy_parcel_add(&p->coming, x);
		else
			received(e, p, x);
		moved = 1;
	}
	return moved;
}

static int write_part(struct cvy_engine *e, struct cvy_pair *p)
{
	struct cvy_parcel *x = p->parting.first;
	size_t n, most = p->ch.ring / WHOLE_PART;

	if (!x)
		return 0;
	n = x->total - x->at < most ? x->total - x->at : most;
	if (cvy_channel_room(&p->ch) < sizeof(struct cvy_pair_record) + n)
		return 0;
	write_record(p, CVY_RECORD_PART, x, (const uint8_t *)x->op->send + x->at, n);
	x->at += n;
	if (x->at == x->total)
		cvy_pair_done(e, cvy_parcel_take(&p->parting, &p->parting.first), 0);
	return 1;
}

/* The next message in order: whole, or offered. */
static int write_header(struct cvy_engine *e, struct cvy_pair *p)
{
	struct cvy_parcel *x = p->queued.first;
	int whole;

	if (!x)
		return 0;
	whole = x->op->bytes <= p->ch.ring / WHOLE_PART &&
		p->ch.unasked - p->ch.far_note + cost(x->op->bytes) <= p->ch.ring;
	if (cvy_channel_room(&p->ch) < sizeof(struct cvy_pair_record) + (whole ? x->op->bytes : 0))
		return 0;
	x = cvy_parcel_take(&p->queued, &p->queued.first);
	x->number = p->number++;
	if (!whole) {
		write_record(p, CVY_RECORD_OFFER, x, NULL, x->op->bytes);
		cvy_parcel_add(&p->offered, x);
		return 1;
	}
	write_record(p, CVY_RECORD_WHOLE, x, x->op->send, x->op->bytes);
	p->ch.unasked += cost(x->op->bytes);
	cvy_pair_done(e, x, 0);
	return 1;
}

/*
 * A message without a receive may stay in the ring for a while: its receive takes it from there, without a copy kept
 * aside. But not if a record of another kind is awaited, or the ring fills up.
 */
static int worth_taking(const struct cvy_pair *p)
{
	return p->posted.first || p->offered.first || p->coming.first || cvy_channel_ready(&p->ch) > p->ch.ring / 2;
}

int cvy_pair_step(struct cvy_engine *e, struct cvy_pair *p, int poll)
{
	int moved = cvy_channel_look(&p->ch, poll), got = moved, flushed;

	if (moved < 0 || p->ch.far_note > p->ch.unasked)
		return COVEY_ERR_IO;
	if (p->ch.far && worth_taking(p)) /* without a far end, nothing is received or sent */
		while ((got = take_record(e, p)) == USED)
			moved = 1;
	if (got < 0)
		return got;
	moved |= write_wants(e, p);
	moved |= write_part(e, p); /* one before the headers, so that a stream of short messages cannot hold it up */
	while (write_header(e, p))
		moved = 1;
	while (write_part(e, p))
		moved = 1;
	flushed = cvy_channel_flush(&p->ch, 1);
	if (flushed & CVY_FLUSHED_OUT)
		cvy_engine_announce_to(e, p->rank, &cvy_channel_port(&p->ch)->out);
	if (flushed & CVY_FLUSHED_CREDIT)
		cvy_engine_announce_to(e, p->rank, &cvy_channel_port(&p->ch)->credit);
	return moved;
}
