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

/*
 * Lines of the owner of the window about one far end; aux names its incarnation. Where the bytes told last are one note
 * (cvy_channel_note), it stands in `out`, too: one line crosses between the cores, not two. It is whole for
 * who finds tag == call, the tag read before it and call after.
 */
struct cvy_port {
	struct cvy_line out;	/* tag: bytes written to the ring so far; call, data, sig, bytes: the note */
	struct cvy_line credit; /* tag: bytes consumed of the far end's ring; data: the note, 64 bits */
};

#define CVY_CREDIT_LOOKS 64
#define CVY_NOTE_DATA CVY_LINE_DATA

/* Bytes of the ring that fit into a line, as who uses the channel puts them: a word of its own and a few bytes. */
struct cvy_note {
	uint64_t end;	  /* of its bytes in the stream */
	uint32_t word, n; /* n: bytes of data */
	uint32_t bytes;	  /* that it takes in the ring */
	uint64_t data[CVY_NOTE_DATA / 8];
};

struct cvy_channel {
	struct cvy_mesh *mesh;
	uint8_t *own;	      /* own window */
	struct cvy_link *now; /* as cvy_channel_look() found it: good while the engine's lock is held */
	const uint8_t *far;   /* the far end's window, the same; NULL: out of sight */
	int rank, self;	      /* far end; it is this rank itself */
	uint64_t inc, own_inc;
	size_t ring;				       /* bytes, a power of two */
	size_t own_port, far_port, own_ring, far_ring; /* offsets in the owner's window */
	uint64_t link;				       /* id of the link that was told last, 0: none */
	int tell;				       /* a new link: the far end may not know our credit */
	int broken;				       /* the far end said what cannot be; who uses it sets it */
	uint64_t written, pushed, freed;	       /* to the ring; put and told; consumed at the far end */
	uint64_t here, read, told;		       /* the other way: arrived, consumed, told so */
	uint64_t note, noted, far_note; /* a number beside the credit, for who uses the channel; only grows */
	uint64_t unasked;		/* what far_note will be when all of it is claimed: who uses it sets it */
	struct cvy_note brief;		/* the last one written */
	unsigned looks;			/* credit is looked at every CVY_CREDIT_LOOKS-th time, needed or not */
};

struct cvy_channel_args {
	struct cvy_mesh *mesh;
	int own_rank, rank, max_ranks;
	uint64_t own_inc, inc; /* of the far end */
};

/* 0; NOMEM: the window has no room for rings */
int cvy_channel_open(struct cvy_channel *ch, const struct cvy_channel_args *args);
/* What the far end has written, and consumed if that matters now, after a poll of its link where @poll says so. What
 * follows under the same lock uses what is found here. 1: news, 0: none, COVEY_ERR_IO: it says what cannot be. */
int cvy_channel_look(struct cvy_channel *ch, int poll);
/* Is so much on its way that the far end's credit is worth a look? Each costs a line that it has just written. */
static inline int cvy_channel_awaits_credit(const struct cvy_channel *ch)
{
	return ch->looks % CVY_CREDIT_LOOKS == 0 || ch->written - ch->freed > ch->ring / 2 ||
	       ch->unasked - ch->far_note > ch->ring / 2;
}
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

/* The far end's note, where it is all that has arrived: 1. @head: bytes that it takes in the ring besides its data. */
int cvy_channel_note(const struct cvy_channel *ch, size_t head, struct cvy_note *note);
/*
 * Is what was read since the look what was written for this incarnation? Who is stopped while it reads may wake when it
 * was left out and the ring is another's: then nothing that was read counts.
 */
int cvy_channel_held(const struct cvy_channel *ch);
void cvy_channel_write(struct cvy_channel *ch, const void *from, size_t n);	      /* n <= room */
void cvy_channel_peek(const struct cvy_channel *ch, size_t skip, void *to, size_t n); /* skip + n <= ready */
static inline void cvy_channel_eat(struct cvy_channel *ch, size_t n)		      /* n <= ready */
{
	ch->read += n;
}

#endif
