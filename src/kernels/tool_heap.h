/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of the way by a heap: a *heap* is memory of a rank that all ranks map, with the same slices at the same offsets.
 * It has two halves, for even and odd turns. In a half each source has rows for its entries, in the order in which its warps
 * took them; results come back to the place of their entry. Memory of the rank alone has the entries by expert.
 */
#ifndef CVY_TOOL_HEAP_H
#define CVY_TOOL_HEAP_H

#include "tool.h"

#define CVY_HEAP_ALIGN 128
#define CVY_HEAP_EXPERTS 256 /* of a rank */

struct cvy_heap_words { /* the rank's own */
	uint64_t turn;
	uint64_t late;			  /* 1: a wait took too long, and no wait waits from then on */
	unsigned done;			  /* CTAs of the last kernel of a turn */
	int sent[CVY_GPU_ROUTED_RANKS];	  /* entries of each owner, until now */
	int came[CVY_GPU_ROUTED_RANKS];	  /* entries of each source */
	int post_count[CVY_HEAP_EXPERTS]; /* entries of each expert here, until now */
};

struct cvy_heap_at {
	size_t entries, post_rows; /* at most: of a source; of an expert */
	/* in a half: words, which a turn may find zeroed */
	size_t flag;	  /* [size][entries]: a row has come */
	size_t count;	  /* [size]: how many a source sends, + 1 */
	size_t sent;	  /* [size]: all of them have come */
	size_t back_flag; /* [entries] */
	size_t returned;  /* [size]: all results of an owner have come */
	size_t zeroed;	  /* bytes of these */
	size_t meta;	  /* [size][entries]: expert << 32 | entry */
	size_t rows;	  /* [size][entries][hidden] */
	size_t back;	  /* [entries][hidden] */
	size_t half;	  /* bytes */
	/* in the rank's own memory, behind the words */
	size_t post_meta; /* [local][post_rows]: source << 32 | entry */
	size_t post;	  /* [local][post_rows][hidden] */
	size_t result;	  /* the same */
	size_t own;	  /* bytes */
};

static inline size_t cvy_heap_slice(size_t *top, size_t n, size_t each)
{
	size_t here = *top;

	*top = (here + n * each + CVY_HEAP_ALIGN - 1) / CVY_HEAP_ALIGN * CVY_HEAP_ALIGN;
	return here;
}

/* @most: tokens of a rank */
static inline struct cvy_heap_at cvy_heap_places(const struct cvy_gpu_routed *in, int most)
{
	size_t size = (size_t)in->size, row = (size_t)in->hidden * 2, top = 0, local = (size_t)in->local;
	struct cvy_heap_at at;

	at.entries = (size_t)most * (size_t)in->top_k;
	at.post_rows = (size_t)most * size;
	at.flag = cvy_heap_slice(&top, size * at.entries, 8);
	at.count = cvy_heap_slice(&top, size, 8);
	at.sent = cvy_heap_slice(&top, size, 8);
	at.back_flag = cvy_heap_slice(&top, at.entries, 8);
	at.returned = cvy_heap_slice(&top, size, 8);
	at.zeroed = top;
	at.meta = cvy_heap_slice(&top, size * at.entries, 8);
	at.rows = cvy_heap_slice(&top, size * at.entries, row);
	at.back = cvy_heap_slice(&top, at.entries, row);
	at.half = top;
	top = 0;
	cvy_heap_slice(&top, 1, sizeof(struct cvy_heap_words));
	at.post_meta = cvy_heap_slice(&top, local * at.post_rows, 8);
	at.post = cvy_heap_slice(&top, local * at.post_rows, row);
	at.result = cvy_heap_slice(&top, local * at.post_rows, row);
	at.own = top;
	return at;
}

#endif
