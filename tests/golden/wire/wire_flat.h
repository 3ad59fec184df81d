/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The symmetric heap of the alltoall work log for MI300X: a token and one of its experts (a *flat entry*) is a row of its
 * own. All ranks take the same slices in the same order, so an address of one rank is that of another plus the
 * difference of their heaps.
 *
 * A sender puts an entry into the next row of comm_x at the owner, among those of its source. Meta says {local expert,
 * entry}, where entry is token * top_k + choice; a flag follows. recv_flag has the number of rows + 1; recv_counts is
 * where the owner keeps the number itself, and is not written here. The owner moves rows to post_x, by expert, with
 * {source, entry}. Results go to row `entry` of the source, each with a flag.
 */
#ifndef CVY_WIRE_FLAT_H
#define CVY_WIRE_FLAT_H

#include "wire.h"

#define CVY_WIRE_FLAT_ALIGN 128
#define CVY_WIRE_FLAT_HEAP ((size_t)10 << 30)
#define CVY_WIRE_FLAT_COMBINE ((size_t)5 << 30) /* where combine's slices begin */

struct cvy_wire_flat {
	/* by the caller */
	struct cvy_errbox *box;
	int ranks, experts, tokens, hidden, top_k;
	/* by cvy_wire_flat_layout */
	int local;
	struct cvy_wire_slot row;
	size_t entries;								    /* of one source: tokens * top_k */
	size_t post_rows;							    /* of one expert: ranks * tokens */
	struct cvy_wire_place comm_x, comm_meta, comm_flag, recv_counts, recv_flag; /* [ranks][entries] and [ranks] */
	struct cvy_wire_place post_x, post_meta, post_counts;			    /* [local][post_rows] and [local] */
	size_t dispatch_bytes;
	struct cvy_wire_place back_x, back_flag; /* [entries], from CVY_WIRE_FLAT_COMBINE on */
	size_t combine_bytes;
};

int cvy_wire_flat_layout(struct cvy_wire_flat *flat);

/* The next slice of a heap; *top is where the last one ended. */
size_t cvy_wire_flat_slice(size_t *top, size_t bytes);

/* The address at another rank that corresponds to @p here. */
static inline uint64_t cvy_wire_flat_translate(uint64_t p, uint64_t here, uint64_t there)
{
	return there + (p - here);
}

/* @heap: dispatch's slices of rank @rank, when all entries have arrived and none is taken. */
int cvy_wire_flat_write(const struct cvy_wire_flat *flat, const struct cvy_wire_routing *routing, int rank,
			const struct cvy_wire_image *heap);
/* AGAIN: has not arrived */
int cvy_wire_flat_count(const struct cvy_wire_flat *flat, const struct cvy_wire_image *heap, int src, int *count);
int cvy_wire_flat_read(const struct cvy_wire_flat *flat, const struct cvy_wire_image *heap, int src, int row,
		       int *local_expert, struct cvy_wire_token *token);

/* The owner's rows by expert, in the order of sources. */
int cvy_wire_flat_post_write(const struct cvy_wire_flat *flat, const struct cvy_wire_routing *routing, int rank,
			     const struct cvy_wire_image *heap);
int cvy_wire_flat_post_read(const struct cvy_wire_flat *flat, const struct cvy_wire_image *heap, int local_expert,
			    int row, int *src, struct cvy_wire_token *token);

/* @heap: combine's slices of a rank that sent @source. @rows [tokens][top_k]: results of the experts. */
int cvy_wire_flat_combine_write(const struct cvy_wire_flat *flat, const struct cvy_wire_source *source,
				const uint8_t *rows, const struct cvy_wire_image *heap);
int cvy_wire_flat_combine_read(const struct cvy_wire_flat *flat, const struct cvy_wire_image *heap, int token,
			       int choice, void *row);

#endif
