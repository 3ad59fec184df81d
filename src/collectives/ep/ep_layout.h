/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places in the buffers of expert parallelism: pure arithmetic, no state.
 *
 * On host memory a source publishes a token once (struct cvy_ep_shape: ids, weights if they travel, then rows) and an
 * owner publishes its results packed by source. Rows are in *bins*, in each by source, then token. struct cvy_ep_pack
 * defines a bin and all other differences between presets; no other code knows presets.
 */
#ifndef CVY_EP_LAYOUT_H
#define CVY_EP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define CVY_EP_MAX_TOP_K 32
#define CVY_EP_MAX_EXPERTS 65536
#define CVY_EP_MAX_TOKENS (1 << 20)
#define CVY_EP_MAX_HIDDEN (1 << 20)
#define CVY_EP_MAX_ROWS INT32_MAX   /* a row's number is an int32 */
#define CVY_EP_MAX_PLACES (1 << 20) /* of all experts */

struct cvy_ep_shape {
	int tokens; /* T */
	int hidden; /* H */
	int top_k;
	int experts;
	int max_ranks;
	int preset;
	int back;   /* enum cvy_ep_codes: rows of a combine slot; 0: as they are */
	int places; /* P: the most that an expert has; 0: 1 */
};

/* A preset: a row of a table. */
struct cvy_ep_pack {
	int once;   /* a bin is a rank and a token has one row there; else it is an expert, and each naming is a row */
	int beside; /* weights travel, beside the rows, with the experts that they name */
	int scale_by_row; /* scales of a row are adjacent; else those of a group are */
	int flat;	  /* each row comes with its source and its entry there */
	int close;	  /* a bin begins where the one before ends; else where it would end if it were full */
	int hops;	  /* on devices rows go to other hosts over two hops */
	int triplets;	  /* each row comes with its source, its token and the place of the expert there */
};

const struct cvy_ep_pack *cvy_ep_pack_of(int preset); /* NULL: none */

/*
 * Rows kept for a bin of a rank with @el experts among @ranks; close: for all its bins. No more than T rows of a source enter
 * one bin, so there a source has at most min(K, El) * T.
 */
int64_t cvy_ep_rows_kept(const struct cvy_ep_shape *s, int ranks, int el);

/* One entry per source in an owner's combine slot: first row for that source, and number of rows. */
struct cvy_ep_run {
	uint32_t first, count;
};

#define CVY_EP_NO_RUN UINT32_MAX /* the source is left out: more rows than there can be */

#define CVY_EP_ALIGN 4096

/* Of x, y and out, and of a dispatch slot. */
static inline size_t cvy_ep_row_bytes(const struct cvy_ep_shape *s)
{
	return 2 * (size_t)s->hidden;
}

/* Dispatch slot: ids [T][K] at 0, weights [T][K] if they travel, rows [T] after them, then a bit for each rank. */
size_t cvy_ep_dispatch_weights_at(const struct cvy_ep_shape *s);
size_t cvy_ep_dispatch_rows_at(const struct cvy_ep_shape *s);
size_t cvy_ep_dispatch_skips_at(const struct cvy_ep_shape *s);
size_t cvy_ep_dispatch_bytes(const struct cvy_ep_shape *s);

/* Combine slot: runs [max_ranks] at 0, rows after them. */
size_t cvy_ep_back_bytes(const struct cvy_ep_shape *s); /* of a row */
size_t cvy_ep_combine_rows_at(const struct cvy_ep_shape *s);
size_t cvy_ep_combine_rows(const struct cvy_ep_shape *s); /* the most that one owner can have */
size_t cvy_ep_combine_bytes(const struct cvy_ep_shape *s);

/* P, of an expert; and of all experts */
static inline int cvy_ep_places(const struct cvy_ep_shape *s)
{
	return s->places > 1 ? s->places : 1;
}

static inline int cvy_ep_all_places(const struct cvy_ep_shape *s)
{
	return s->experts * cvy_ep_places(s);
}

/* owner[e]: blocks of ceil(experts / size) */
void cvy_ep_blocks(int experts, int size, int *owner);
/* The same for all places: those of an expert are on different ranks, as far apart as these allow; -1: none is left. */
void cvy_ep_spread(const struct cvy_ep_shape *s, int size, int *owner);
/* local[v]: index of place v among those of @rank, ascending; -1: of another. @n: places. Returns how many @rank has. */
int cvy_ep_locals(int n, const int *owner, int rank, int *local);

/* A run of rows as the API packs it. */
static inline int64_t cvy_ep_range(uint32_t count, uint32_t first)
{
	return (int64_t)((uint64_t)count << 32 | first);
}

static inline uint32_t cvy_ep_range_count(int64_t range)
{
	return (uint32_t)((uint64_t)range >> 32);
}

static inline uint32_t cvy_ep_range_first(int64_t range)
{
	return (uint32_t)range;
}

#endif
