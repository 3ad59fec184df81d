/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel: two streams of bytes, one each way, between two incarnations. Knows no messages.
 *
 * The one idea is the mesh's: each end writes its own window alone. What I send stands in a ring of my
 * window until the far end says, in its window, how much of it was consumed; so bytes on their way need
 * no other copy, and after a link broke the same bytes are put again at the same place: nothing is lost,
 * doubled or reordered. The counts never go back and begin at 0 with every incarnation.
 *
 * The pool at the end of a window has a *port* (two lines) and a ring for every rank. Both are addresses
 * until a channel is used.
 */
#ifndef CVY_CHANNEL_H
#define CVY_CHANNEL_H

#include "p2p.h"

#define CVY_RING_MAX ((size_t)256 << 10)
#define CVY_RING_MIN ((size_t)1 << 10)

/* Lines of the owner of the window about one far end; aux names its incarnation. */
struct cvy_port {
	struct cvy_line out;	/* tag: bytes written to the ring so far */
	struct cvy_line credit; /* tag: bytes consumed of the far end's ring; data: the note, 64 bits */
};

struct cvy_channel {
	struct cvy_mesh *mesh;
	int rank, self; /* far end; it is this rank itself */
	uint64_t inc, own_inc;
	size_t ring;				       /* bytes, a power of two */
	size_t own_port, far_port, own_ring, far_ring; /* offsets in the owner's window */
	uint64_t link;				       /* id of the link that was told last, 0: none */
	int tell;				       /* a new link: the far end may not know our credit */
	int broken;				       /* the far end said what cannot be; who uses it sets it */
	uint64_t written, pushed, freed;	       /* to the ring; put and told; consumed at the far end */
	uint64_t here, read, told;		       /* the other way: arrived, consumed, told so */
	uint64_t note, noted, far_note; /* a number beside the credit, for who uses the channel; only grows */
};

struct cvy_channel_args {
	struct cvy_mesh *mesh;
	int own_rank, rank, max_ranks;
	uint64_t own_inc, inc; /* of the far end */
};

/* 0; NOMEM: the window has no room for rings */
int cvy_channel_open(struct cvy_channel *ch, const struct cvy_channel_args *args);
/* What the far end has written and consumed, after a poll of its link where @poll says so. 1: news, 0: none,
 * COVEY_ERR_IO: it says what cannot be. */
int cvy_channel_look(struct cvy_channel *ch, int poll);
/* Tells the far end what was written and consumed: all of it, or with @lazy credit only when much has come together
 * (sockets). Bits: 1 the out line changed, 2 the credit line did. */
int cvy_channel_flush(struct cvy_channel *ch, int lazy);
/* The far end has not been told all, or by a link that is no more. */
int cvy_channel_behind(const struct cvy_channel *ch);
struct cvy_link *cvy_channel_link(const struct cvy_channel *ch); /* to that incarnation, NULL: none now, or self */
struct cvy_port *cvy_channel_port(const struct cvy_channel *ch);
const struct cvy_port *cvy_channel_far_port(const struct cvy_channel *ch); /* NULL: out of sight */

static inline size_t cvy_channel_room(const struct cvy_channel *ch)
{
	return ch->ring - (size_t)(ch->written - ch->freed);
}

static inline size_t cvy_channel_ready(const struct cvy_channel *ch)
{
	return (size_t)(ch->here - ch->read);
}

void cvy_channel_write(struct cvy_channel *ch, const void *from, size_t n);	      /* n <= room */
void cvy_channel_peek(const struct cvy_channel *ch, size_t skip, void *to, size_t n); /* skip + n <= ready */
static inline void cvy_channel_eat(struct cvy_channel *ch, size_t n)		      /* n <= ready */
{
	ch->read += n;
}

#endif
