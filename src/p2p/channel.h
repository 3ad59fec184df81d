/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel: two streams of bytes, one each way, between two incarnations. It knows no messages.
 *
 * As in the mesh, each end writes its own window alone. Sent bytes stay in a ring of the sender's window until the far
 * end says, in its own window, how many it has consumed. So no other copy is needed: after a link broke, the same bytes
 * are put again at the same place, and nothing is lost, doubled or reordered. The counts never fall, and begin at 0
 * with every incarnation.
 *
 * The pool at the end of a window has a *port* (two lines) and a ring for every rank. Both take no memory until a
 * channel is used.
 */
#ifndef CVY_CHANNEL_H
#define CVY_CHANNEL_H

#include "p2p.h"

#define CVY_RING_MAX ((size_t)256 << 10)
#define CVY_RING_MIN ((size_t)1 << 10)

/*
 * Lines of the owner of the window about one far end; aux names its incarnation. If the newest bytes are one note
 * (cvy_channel_note), `out` holds it too: one line crosses between the cores, not two. The note is whole if tag ==
 * call, with tag read before it and call after it.
 */
struct cvy_port {
	struct cvy_line out;	/* tag: bytes written to the ring so far; call, data, sig, bytes: the note */
	struct cvy_line credit; /* tag: bytes consumed of the far end's ring; data: the note, 64 bits */
};

#define CVY_CREDIT_LOOKS 64
#define CVY_NOTE_DATA CVY_LINE_DATA

/* Bytes of the ring that fit into a line: a word of the channel's user and a few bytes of data. */
struct cvy_note {
	uint64_t end;	  /* of its bytes in the stream */
	uint32_t word, n; /* n: bytes of data */
	uint32_t bytes;	  /* that it takes in the ring */
	uint64_t data[CVY_NOTE_DATA / 8];
};

struct cvy_channel {
	struct cvy_mesh *mesh;
	uint8_t *own;	      /* own window */
	struct cvy_link *now; /* from cvy_channel_look(): valid while the engine's lock is held */
	const uint8_t *far;   /* the far end's window, valid as long; NULL: not visible */
	int rank, self;	      /* far end; self: it is this rank */
	uint64_t inc, own_inc;
	size_t ring;				       /* bytes, a power of two */
	size_t own_port, far_port, own_ring, far_ring; /* offsets in the owner's window */
	uint64_t link;				       /* id of the link that was met last, 0: none */
	int tell;				       /* a new link: the far end may not know our credit */
	int broken;			 /* the far end's words are impossible; set by the user of the channel */
	uint64_t written, pushed, freed; /* to the ring; put and announced; consumed at the far end */
	uint64_t here, read, told;	 /* the other way: arrived, consumed, announced as consumed */
	uint64_t note, noted, far_note;	 /* a number beside the credit, for the user of the channel; only grows */
	uint64_t unasked;		 /* far_note once all of it is claimed; set by the user of the channel */
	struct cvy_note brief;		 /* the last one written */
	unsigned looks;			 /* credit is looked at every CVY_CREDIT_LOOKS-th time, needed or not */
};

struct cvy_channel_args {
	struct cvy_mesh *mesh;
	int own_rank, rank, max_ranks;
	uint64_t own_inc, inc; /* of the far end */
};

/* 0; NOMEM: the window has no room for rings */
int cvy_channel_open(struct cvy_channel *ch, const struct cvy_channel_args *args);
/* Reads what the far end has written and, if that matters, consumed. With @poll it polls the link first. Later calls
 * under the same lock use these values. 1: news, 0: none, COVEY_ERR_IO: impossible values. */
int cvy_channel_look(struct cvy_channel *ch, int poll);
/* Are enough bytes on their way to look at the far end's credit? Each look costs a line that it has just written. */
static inline int cvy_channel_awaits_credit(const struct cvy_channel *ch)
{
	return ch->looks % CVY_CREDIT_LOOKS == 0 || ch->written - ch->freed > ch->ring / 2 ||
	       ch->unasked - ch->far_note > ch->ring / 2;
}
enum { CVY_FLUSHED_OUT = 1, CVY_FLUSHED_CREDIT = 2 }; /* bits: these lines have changed */
/* Announces the bytes written and consumed. With @lazy, credit is announced only when much has collected (sockets). */
int cvy_channel_flush(struct cvy_channel *ch, int lazy);
/* The far end lacks an announcement, or had it by an earlier link. */
int cvy_channel_behind(const struct cvy_channel *ch);
struct cvy_link *cvy_channel_link(const struct cvy_channel *ch); /* to that incarnation, NULL: none, or self */
struct cvy_port *cvy_channel_port(const struct cvy_channel *ch);
const struct cvy_port *cvy_channel_far_port(const struct cvy_channel *ch); /* NULL: not visible */

static inline size_t cvy_channel_room(const struct cvy_channel *ch)
{
	return ch->ring - (size_t)(ch->written - ch->freed);
}

static inline size_t cvy_channel_ready(const struct cvy_channel *ch)
{
	return (size_t)(ch->here - ch->read);
}

/* The far end's note, if nothing else has arrived: 1. @head: bytes that it takes in the ring besides its data. */
int cvy_channel_note(const struct cvy_channel *ch, size_t head, struct cvy_note *note);
/*
 * Were the bytes read since the look written for this incarnation? A process that is stopped while it reads may wake
 * after it was removed, when the ring serves another incarnation: then nothing that it read counts.
 */
int cvy_channel_held(const struct cvy_channel *ch);
void cvy_channel_write(struct cvy_channel *ch, const void *from, size_t n);	      /* n <= room */
void cvy_channel_peek(const struct cvy_channel *ch, size_t skip, void *to, size_t n); /* skip + n <= ready */
static inline void cvy_channel_eat(struct cvy_channel *ch, size_t n)		      /* n <= ready */
{
	ch->read += n;
}

#endif
