/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process group of Mooncake: collectives in chunks through buffers of 16 MiB, and messages in slots of 64 KiB.
 *
 * A rank has two buffers to send from and two to receive into; operations take them in turns (its *parity*). A chunk of
 * rank r lands at r * chunk bytes of the receiver, followed by the int32 1 in word r of the receiver's sync words. A
 * message takes adjacent slots.
 */
#ifndef CVY_WIRE_PG_H
#define CVY_WIRE_PG_H

#include "wire.h"

#define CVY_WIRE_PG_BUFFER ((size_t)16 << 20)
#define CVY_WIRE_PG_BUFFERS 2 /* to send from, and as many to receive into */
#define CVY_WIRE_PG_RANKS 64  /* at most; also the words of a sync region */
#define CVY_WIRE_PG_SLOT ((size_t)64 << 10)
#define CVY_WIRE_PG_SLOTS 256

enum cvy_wire_pg_kind {
	CVY_WIRE_PG_SAME, /* every peer gets the same bytes: allreduce, allgather, broadcast */
	CVY_WIRE_PG_EACH  /* a part for each peer: alltoall, reduce_scatter, scatter */
};

struct cvy_wire_pg {
	/* by the caller */
	struct cvy_errbox *box;
	int ranks, kind;
	/* by cvy_wire_pg_layout */
	size_t chunk;	      /* bytes of one rank */
	size_t buffers_bytes; /* of all four */
	size_t sync_bytes;    /* of one region; a parity has one to send from and one to receive into */
};

int cvy_wire_pg_layout(struct cvy_wire_pg *pg);
size_t cvy_wire_pg_steps(const struct cvy_wire_pg *pg, size_t bytes); /* chunks of @bytes */

static inline int cvy_wire_pg_parity(uint64_t operation)
{
	return (int)(operation % CVY_WIRE_PG_BUFFERS);
}

/* Where the bytes for rank @peer are in the buffer that they are sent from. */
static inline size_t cvy_wire_pg_from(const struct cvy_wire_pg *pg, int peer)
{
	return pg->kind == CVY_WIRE_PG_EACH ? (size_t)peer * pg->chunk : 0;
}

/* Where the bytes of rank @src are in the buffer that they are received into. */
static inline size_t cvy_wire_pg_to(const struct cvy_wire_pg *pg, int src)
{
	return (size_t)src * pg->chunk;
}

/* The memory of rank @rank that a step writes: a receive buffer and the sync words of its parity. */
struct cvy_wire_pg_memory {
	struct cvy_wire_image buffer, sync;
};

/* One step. @send: of each rank, its send buffer; NULL: it sends nothing, as all but the root of a broadcast. */
int cvy_wire_pg_write(const struct cvy_wire_pg *pg, const uint8_t *const *send, size_t bytes, int rank,
		      const struct cvy_wire_pg_memory *to);
/* @bytes of rank @src, into @piece; AGAIN: not arrived */
int cvy_wire_pg_read(const struct cvy_wire_pg *pg, const struct cvy_wire_pg_memory *from, int src, size_t bytes,
		     void *piece);

/* The slots of a message: @seq is its number between two ranks. */
struct cvy_wire_pg_slots {
	int first, count;
};

int cvy_wire_pg_slots(struct cvy_errbox *box, uint64_t seq, size_t bytes, struct cvy_wire_pg_slots *out);
int cvy_wire_pg_message_write(struct cvy_errbox *box, uint64_t seq, const void *message, size_t bytes,
			      const struct cvy_wire_image *region);
int cvy_wire_pg_message_read(struct cvy_errbox *box, uint64_t seq, const struct cvy_wire_image *region, void *message,
			     size_t bytes);

#endif
