/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between two incarnations (PROTOCOL section 9), over a channel (p2p/channel.h).
 *
 * The stream of a channel is a sequence of whole records; each is published only when all of it is in the ring:
 *
 *   WHOLE  a short message: number, tag, bytes; the bytes follow
 *   OFFER  a long message: number, tag, bytes; nothing follows
 *   WANT   the receiver has a buffer for the offered message `number` and takes so many bytes of it
 *   PART   bytes of the offered message `number`
 *
 * So headers arrive in the order of the calls whatever the sizes, which is the order per tag. The receiver never has to
 * leave anything in the ring: it keeps messages aside that nobody asked for yet. These are at most a ring of bytes per
 * peer, since a sender whose short messages were not claimed (counted by `note` of the channel) offers the next ones
 * instead. Numbers begin at 0 with every incarnation.
 *
 * Views matter in one way: when one is learned, messages of an incarnation that it does not list fail. Everything is
 * under the engine's lock; nothing here waits, wait.c does.
 */
#ifndef CVY_PAIR_STATE_H
#define CVY_PAIR_STATE_H

#include "channel.h"
#include "engine_state.h"
#include "pair.h"

enum cvy_record_kind { CVY_RECORD_WHOLE = 0x57, CVY_RECORD_OFFER, CVY_RECORD_WANT, CVY_RECORD_PART };

struct cvy_pair_record {
	uint32_t kind;
	int32_t tag;
	uint64_t number, bytes;
};

struct cvy_parcels {
	struct cvy_parcel *first, **last;
};

/* A message that nobody has asked for yet. */
struct cvy_arrival {
	struct cvy_arrival *next;
	uint64_t number, bytes;
	int tag;
	int whole; /* its bytes follow; else it is an offer */
	uint8_t data[];
};

struct cvy_pair {
	struct cvy_pair *next, *next_active;
	int active; /* in the list of stepped pairs */
	int rank;
	uint64_t inc;
	struct cvy_channel ch;
	/* ch.unasked: bytes of whole messages sent so far; ch.far_note of them were claimed */
	uint64_t number, expect;     /* of my next message, of the far end's */
	struct cvy_parcels queued;   /* sends without a record yet */
	struct cvy_parcels offered;  /* sends that wait for WANT */
	struct cvy_parcels parting;  /* sends whose parts are written */
	struct cvy_parcels posted;   /* receives that have no message */
	struct cvy_parcels wanting;  /* receives whose WANT is not written yet */
	struct cvy_parcels coming;   /* receives whose parts come */
	struct cvy_arrival *arrived; /* in order */
	struct cvy_arrival **arrived_last;
};

/* An engine's pairs, once it was asked for a message. */
struct cvy_pairs {
	struct cvy_pair *all, *active;
	struct cvy_pair *of[]; /* [max_ranks] */
};

/* ---- lock held ---- */

int cvy_pairs_step(struct cvy_engine *e); /* 1: something moved */
static inline int cvy_pairs_busy(const struct cvy_engine *e)
{
	return e->pairs && e->pairs->active;
}
int cvy_pairs_alone(const struct cvy_engine *e, const struct cvy_op *op); /* no other message is under way */
/* The far end of the oldest message whose wait has a beginning, -1: none. */
int cvy_pairs_awaited(const struct cvy_engine *e, uint64_t *since_ns);
struct cvy_pair *cvy_pair_of(const struct cvy_op *op); /* NULL: decided */
void cvy_pairs_learn(struct cvy_engine *e);	       /* the engine's view is a different one */
void cvy_pairs_end(struct cvy_engine *e, int err);     /* everything ends */
void cvy_pairs_close(struct cvy_engine *e);

/* pair_step.c */
int cvy_pair_step(struct cvy_engine *e, struct cvy_pair *p, int poll); /* 1: it moved, 0, < 0: the far end lies */
void cvy_pair_done(struct cvy_engine *e, struct cvy_parcel *x, int status);
void cvy_pair_claim(struct cvy_engine *e, struct cvy_pair *p,
		    struct cvy_parcel *x); /* a receive; looks at arrived messages */
struct cvy_parcel *cvy_parcel_take(struct cvy_parcels *list, struct cvy_parcel **at);
void cvy_parcel_add(struct cvy_parcels *list, struct cvy_parcel *x);

#endif
