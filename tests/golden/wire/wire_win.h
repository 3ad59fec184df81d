/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The windows of Ascend's MoeDistributeDispatchV2 and CombineV2. A window has two halves, used in turns by dispatches. A
 * half is combine's slots, then dispatch's, by run (source * local experts + local expert). Words that announce them are
 * in a window of their own of 1 MiB, for parity 0 and 1:
 *
 *	parity * 500 KiB		by run of dispatch, 32 bytes each: 1.0f, then the count as an int32
 *	parity * 500 KiB + 64 KiB	by row of combine, 32 bytes each: 1.0f eight times
 *	950 KiB, 975 KiB		which half is next, of dispatch and of combine
 *	1000 KiB			a mark of a wait that timed out
 *
 * The words of dispatch are by local expert, then source. In full mesh a slot is cut into blocks of 512 bytes, 480 of
 * data and a float that is 1.0 once the block is there: no count is needed.
 *
 * Where shared experts have ranks of their own, these come first and have one expert each.
 */
#ifndef CVY_WIRE_WIN_H
#define CVY_WIRE_WIN_H

#include "wire.h"

#define CVY_WIRE_WIN_DEFAULT ((size_t)200 << 20)
#define CVY_WIRE_WIN_STATE ((size_t)1 << 20)
#define CVY_WIRE_WIN_PARITY ((size_t)500 << 10)
#define CVY_WIRE_WIN_COMBINE_STATE ((size_t)64 << 10)
#define CVY_WIRE_WIN_DISPATCH_HALF ((size_t)950 << 10)
#define CVY_WIRE_WIN_COMBINE_HALF ((size_t)975 << 10)
#define CVY_WIRE_WIN_TIMEOUT ((size_t)1000 << 10)
#define CVY_WIRE_WIN_STAGING ((size_t)170 << 10) /* memory of a core for copies under way */

#define CVY_WIRE_WIN_RANKS 768
#define CVY_WIRE_WIN_EXPERTS 1024
#define CVY_WIRE_WIN_TOKENS 512
#define CVY_WIRE_WIN_TOP_K 16
#define CVY_WIRE_WIN_SHARED 4

struct cvy_wire_win {
	/* by the caller */
	struct cvy_errbox *box;
	int format;	    /* CVY_WIRE_WIN_16, _INT8, _INT4, or CVY_WIRE_MESH_* */
	int combine_format; /* CVY_WIRE_WIN_COMBINE or _INT8; 0: the former */
	int ranks, experts, tokens, hidden, top_k;
	int shared_ranks, shared_experts; /* no ranks: nothing is sent to shared experts */
	size_t window_bytes;		  /* 0: CVY_WIRE_WIN_DEFAULT */
	/* by cvy_wire_win_layout */
	int local;   /* experts of a rank that has no shared one */
	int choices; /* rows of a token: top_k, and one for each shared expert */
	struct cvy_wire_slot slot, row;
	size_t run_bytes, dispatch_at, half_bytes; /* combine's slots are at 0 */
	size_t needed_bytes;			   /* of a whole window, by the operator's formula */
};

/* Which of the operator's formulas: it has one for dispatch, one for combine, and one for full mesh. */
enum cvy_wire_win_formula { CVY_WIRE_WIN_BY_DISPATCH, CVY_WIRE_WIN_BY_COMBINE, CVY_WIRE_WIN_BY_MESH };

/* A window that is too small is INVAL, and the cause has the size that is needed. */
int cvy_wire_win_layout(struct cvy_wire_win *win);
size_t cvy_wire_win_capacity(const struct cvy_wire_win *win, enum cvy_wire_win_formula formula);
/* Copies under way in @budget bytes that also hold @fixed: 2, else 1; or an error. */
int cvy_wire_win_buffers(struct cvy_errbox *box, size_t budget, size_t fixed, size_t each);

/* ---- Routing ---- */

struct cvy_wire_win_owner {
	int rank, local; /* rank -1: nobody */
};

/* Choice @c of token @t: one of its experts, then the shared ones. A token without any expert takes no part. */
struct cvy_wire_win_owner cvy_wire_win_owner(const struct cvy_wire_win *win, const struct cvy_wire_routing *routing,
					     int src, int t, int c);
int cvy_wire_win_local(const struct cvy_wire_win *win, int rank); /* experts there */
/* Rows that a rank must have room for, if all have as many tokens as any. */
size_t cvy_wire_win_rows(const struct cvy_wire_win *win, int rank);
/* epRecvCounts [local][ranks]: the end of each run, inclusive of all before it. */
int cvy_wire_win_recv_counts(const struct cvy_wire_win *win, const struct cvy_wire_routing *routing, int rank,
			     int32_t *ends);
/* expertTokenNums [local]. @type 0: ends; 1: counts */
int cvy_wire_win_token_nums(const struct cvy_wire_win *win, const struct cvy_wire_routing *routing, int rank, int type,
			    int64_t *nums);

/* ---- Images ---- */

static inline size_t cvy_wire_win_run_at(const struct cvy_wire_win *win, int rank, int local, int src)
{
	size_t run = (size_t)src * (size_t)cvy_wire_win_local(win, rank) + (size_t)local;

	return win->dispatch_at + run * win->run_bytes;
}

static inline size_t cvy_wire_win_row_at(const struct cvy_wire_win *win, int token, int c)
{
	return ((size_t)token * (size_t)win->choices + (size_t)c) * win->row.bytes;
}

static inline size_t cvy_wire_win_count_at(const struct cvy_wire_win *win, int parity, int local, int src)
{
	return (size_t)parity * CVY_WIRE_WIN_PARITY + 32 * ((size_t)local * (size_t)win->ranks + (size_t)src);
}

static inline size_t cvy_wire_win_done_at(const struct cvy_wire_win *win, int parity, int token, int c)
{
	return (size_t)parity * CVY_WIRE_WIN_PARITY + CVY_WIRE_WIN_COMBINE_STATE +
	       32 * ((size_t)token * (size_t)win->choices + (size_t)c);
}

/* The memory of rank @rank. */
struct cvy_wire_win_memory {
	int rank, parity;
	struct cvy_wire_image half, state;
};

/* One run of it. */
struct cvy_wire_win_run {
	int local, src;
};

int cvy_wire_win_write(const struct cvy_wire_win *win, const struct cvy_wire_routing *routing,
		       const struct cvy_wire_win_memory *to);
/* Tokens of a run. AGAIN: not arrived. Full mesh: those that have come up to the first that has not. */
int cvy_wire_win_count(const struct cvy_wire_win *win, const struct cvy_wire_win_memory *from,
		       const struct cvy_wire_win_run *run, int *count);
int cvy_wire_win_read(const struct cvy_wire_win *win, const struct cvy_wire_win_memory *from,
		      const struct cvy_wire_win_run *run, int slot, struct cvy_wire_token *token);

/* Results of the experts: [tokens][choices] of each. */
struct cvy_wire_win_rows {
	const uint8_t *payload, *scales; /* scales: of CVY_WIRE_WIN_COMBINE_INT8 */
};

/* @to: the memory of the rank that sent @routing's tokens */
int cvy_wire_win_combine_write(const struct cvy_wire_win *win, const struct cvy_wire_routing *routing,
			       const struct cvy_wire_win_rows *rows, const struct cvy_wire_win_memory *to);
int cvy_wire_win_combine_read(const struct cvy_wire_win *win, const struct cvy_wire_win_memory *from, int token, int c,
			      struct cvy_wire_token *row);

#endif
