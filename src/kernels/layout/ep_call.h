/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine on devices: what host and kernels agree on. They are operations like any other: lanes, tags, gate
 * and chunks are those of layout.h, so a pair needs no memory of its own beside two words per lane.
 *
 * Lane l of n has the tokens l, l + n, ... of its rank, `per_step` of them in each step. Where there are more lanes than tokens,
 * several lanes have a token: all of them plan it, and each moves a piece of its row. In a step a lane sends every rank a
 * *header* (which of these tokens come; in the first step how many rows each of its experts gets from here; where each
 * token's rows belong), each word a packet with its tag, and then the rows, each in lines of its own. Everyone hears of
 * everyone in every step, so two slots suffice. Rows of dispatch go once to each rank that has an expert of the token. Combine brings one row per rank
 * back, summed by weight there, or one per expert.
 *
 * Rows stand in bins, in each by source, then token: a bin for each expert here, or (`once`) one for the rank, in which a
 * token has one row. Bins begin where they would if those before were full, or (`close`) where those before end. All are
 * compiled from one text (templates ONCE, BINS): a preset is a row of a table, and no fork.
 */
#ifndef CVY_EP_CALL_H
#define CVY_EP_CALL_H

#include "covey_ep.h"
#include "ep_code.h"
#include "layout.h"

#define CVY_EP_LINE_BYTES 128
#define CVY_EP_LINE_WORDS 15  /* and the tag */
#define CVY_EP_LINE_EIGHTS 12 /* of integers; their scales take the other three words */
#define CVY_EP_LINE_PACKETS 8 /* of a header: a word and the tag */
#define CVY_EP_SLOT_LINES ((int)(CVY_GPU_SLOT / CVY_EP_LINE_BYTES))
#define CVY_EP_STEP_LINES (CVY_GPU_ROUNDS * CVY_EP_SLOT_LINES)
#ifndef CVY_EP_THREADS
#define CVY_EP_THREADS 512
#endif
#define CVY_EP_TOP_K 32
#define CVY_EP_EXPERTS 1024
#define CVY_EP_TOKENS 16384
#define CVY_EP_HIDDEN 8192
#define CVY_EP_STEP_TOKENS 64 /* one word says which of them come */
#define CVY_EP_STAGE ((int32_t)64 << 10)
#define CVY_EP_ENTRIES ((int32_t)16 << 10) /* bytes of shared memory for entries of all sources */
#define CVY_EP_ACROSS 8			   /* lanes that one token is cut across, at most: a power of two */
#ifndef CVY_EP_PIECE
#define CVY_EP_PIECE 4 /* lines of a row that are worth a lane, at least: what a warp moves at a time */
#endif
#ifndef CVY_EP_BULK_TOKENS
#define CVY_EP_BULK_TOKENS 8 /* of a lane, from which on rows go by bulk: fewer are pushed sooner than copied */
#endif
#define CVY_EP_BULK_STEP \
	32 /* tokens of a bulk step, at most: the word that says which come has a bit for the way, too */
#define CVY_EP_BULK_ROW \
	64 /* bytes of a row that are worth a bulk copy, at least; behind them the place of a row has room */
#define CVY_EP_BULK_PIECE ((size_t)5120) /* bytes of a row that a warp of combine sums at a time */

/* Dynamic shared memory of dispatch, in words of 4 bytes but for the last. */
#define CVY_EP_NEAR 2048   /* ids at most of which a CTA has a copy: it looks at all of them, and more than once */
#define CVY_EP_WINDOW 3072 /* what windows may take: alike on all ranks, and little beside the rest */
#define CVY_EP_MARKS 8192  /* what marks may take */
/* Bytes at most of what is static in shared memory: tables, and words and bits of ranks. */
#define CVY_EP_STATIC \
	(((size_t)5 << 10) + (size_t)(CVY_GPU_RANKS - 32) * 56 + (sizeof(cvy_rank_small) - 1) * CVY_EP_EXPERTS)
/* Of two hops, with what an attempt knows of its paths (ep_hop.cuh). */
#define CVY_EP_STATIC_HOPS (CVY_EP_STATIC + ((size_t)10 << 10))
#define CVY_EP_LEAST_SHARED ((size_t)99 << 10)		  /* what devices of 8.6, 8.9 and 12.x have for a CTA */
#define CVY_EP_ROOM (((size_t)227 << 10) - CVY_EP_STATIC) /* in all: what a device has for a CTA, less that */

enum cvy_ep_bins { CVY_EP_EACH = 0, CVY_EP_ONE = 1, CVY_EP_CLOSE = 2 }; /* one for each expert, for the rank; close */

enum cvy_ep_phase { CVY_EP_SEND = 1, CVY_EP_RECV = 2 };

/* How rows are cut into steps. From the handle's shape alone, so alike on all ranks. */
struct cvy_ep_form {
	int32_t lanes, steps;
	int32_t apart;	  /* tokens between one of a lane and its next */
	int32_t across;	  /* 2^across lanes have a token, each a piece of its row */
	int32_t per_step; /* tokens of a lane in a step */
	int32_t rows;	  /* of one token from one rank: 1, or top_k */
	int32_t slices;	  /* steps that a lane's piece of one token takes, where one is too small */
	int32_t row_words, slice_lines;
	int32_t count_words, entry_words; /* of the header: rows per expert; places of a token */
	int32_t header_lines;
	int32_t bulk; /* rows go whole to ranks whose memory is mapped (ep_bulk.cuh) */
};

struct cvy_ep_shape_gpu {
	int32_t tokens, hidden, top_k, experts, size; /* experts: all of their places, if they have several */
	int32_t code;				      /* enum cvy_ep_codes: of rows of dispatch */
	int32_t per_rank;			      /* combine sums on the expert's rank */
	int32_t most_local;			      /* experts of one rank, at most */
	int32_t once;				      /* a token has one row at a rank; that rank sends one back */
	int32_t ranks;				      /* as many as size may come to be: steps do not change then */
	int32_t back;				      /* enum cvy_ep_codes: of rows of combine */
	int32_t whole; /* rows of dispatch travel as they are, uncut, and receivers make codes of them (smooth) */
	int32_t close; /* bins stand close */
	int32_t hops;  /* rows go to other hosts over two hops (ep_hops.cuh) */
};

static inline int32_t cvy_ep_div(int32_t a, int32_t b)
{
	return (a + b - 1) / b;
}

/* Is a row of @lines lines worth twice as many pieces as 2^@across? */
static inline int cvy_ep_cuts(int32_t lines, int32_t across)
{
	return 2 << across <= CVY_EP_ACROSS && lines >> (across + 1) >= CVY_EP_PIECE;
}

/* In how many steps @rows pieces of @lines lines are sent, behind a header of one line. */
static inline int32_t cvy_ep_slices_of(int32_t rows, int32_t lines)
{
	return cvy_ep_div(lines, (CVY_EP_STEP_LINES - 1) / rows);
}

/*
 * Into 2^n pieces goes each of the @rows of a token, of @lines lines: as many as lanes are idle. If these pieces are longer
 * than a step, into as many as fit one, unless that is more than one step more for a lane: it has pieces of more tokens
 * then, which few tokens need not wait for.
 */
static inline int32_t cvy_ep_across_of(const struct cvy_ep_shape_gpu *s, int32_t lanes, int32_t rows, int32_t lines)
{
	int32_t n = 0, more;

	if (s->whole || s->hops)
		return 0;
	while (cvy_ep_cuts(lines, n) && s->tokens << (n + 1) <= lanes)
		n++;
	for (more = n; cvy_ep_slices_of(rows, cvy_ep_div(lines, 1 << more)) > 1; more++)
		if (!cvy_ep_cuts(lines, more) || lanes % (2 << more))
			return n;
	return 1 << (more - n) <= cvy_ep_slices_of(rows, cvy_ep_div(lines, 1 << n)) + 1 ? more : n;
}

/* A lane for each token as far as there are lanes, and more of them where rows are long. */
static inline int32_t cvy_ep_lanes_of(const struct cvy_ep_shape_gpu *s)
{
	int32_t lanes = 1, lines = cvy_ep_div(s->hidden / 4, CVY_EP_LINE_WORDS);

	while (lanes < CVY_GPU_LANES && lanes < s->tokens)
		lanes *= 2;
	for (int32_t across = 0; !s->hops && lanes < CVY_GPU_LANES && cvy_ep_cuts(lines, across); across++)
		lanes *= 2;
	return lanes;
}

/* Shared memory that a dispatch in bulk steps may take, whatever of it a rank needs: alike on all. */
static inline size_t cvy_ep_bulk_room(const struct cvy_ep_shape_gpu *s, const struct cvy_ep_form *f)
{
	size_t ranks = (size_t)(s->ranks > s->size ? s->ranks : s->size), step = (size_t)f->per_step;
	size_t halves = CVY_EP_NEAR + (ranks + 1) * step * (size_t)f->entry_words * 2 + (size_t)s->experts +
			(ranks + (size_t)s->close) * (size_t)(s->most_local + 2);

	halves += CVY_EP_MARKS > CVY_EP_WINDOW ? CVY_EP_MARKS : CVY_EP_WINDOW;
	return halves * 4 + CVY_EP_LINE_BYTES + 8 + 2 * step * (size_t)f->row_words * 8;
}

/* Shared memory that a dispatch over two hops may take, static and dynamic, whatever of it a rank needs: alike on all. */
static inline size_t cvy_ep_hops_room(const struct cvy_ep_shape_gpu *s, const struct cvy_ep_form *f)
{
	size_t ranks = (size_t)(s->ranks > s->size ? s->ranks : s->size), step = (size_t)f->per_step;
	size_t halves = CVY_EP_NEAR + CVY_EP_WINDOW + ranks * step * (size_t)f->entry_words * 2 + (size_t)s->experts +
			ranks * (size_t)(s->most_local + 2) + 1;

	return CVY_EP_STATIC_HOPS + halves * 4 + step * (size_t)f->row_words * 8;
}

/* Why the rows of a form are lines. */
enum cvy_ep_lines {
	CVY_EP_IN_BULK,	   /* they are not */
	CVY_EP_FEW_TOKENS, /* of a lane */
	CVY_EP_ROWS_EACH,  /* combine sends back the rows of each expert */
	CVY_EP_IN_PIECES,  /* one row is for several lanes or steps */
	CVY_EP_SHORT_ROWS, /* or odd for bulk copies; or so many are in a step that no word has a bit for each */
	CVY_EP_NO_SHARED,  /* dispatch would take more shared memory than there is */
	CVY_EP_INTEGERS,   /* of rows are codes that bulk steps do not have */
	CVY_EP_TWO_HOPS,   /* a forwarder passes lines on as it reads them */
	CVY_EP_NO_ROOM,	   /* header and rows of a step are more than a slot holds */
};

/* Lines of the header of bulk steps: the first has packets, the rest is without tags. */
static inline int32_t cvy_ep_bulk_header(const struct cvy_ep_form *f)
{
	int32_t lines = 1 + cvy_ep_div(f->per_step * f->entry_words * 8, CVY_EP_LINE_BYTES) +
			cvy_ep_div(f->count_words * 8, CVY_EP_LINE_BYTES);

	return lines < f->header_lines ? f->header_lines : lines;
}

/* Rows go by bulk if they are whole, as long as bulk copies want, and several of a lane. */
static inline enum cvy_ep_lines cvy_ep_lines_why(const struct cvy_ep_shape_gpu *s, int combine,
						 const struct cvy_ep_form *f)
{
	if (s->hops)
		return CVY_EP_TWO_HOPS;
	if (combine && !s->per_rank && !s->once)
		return CVY_EP_ROWS_EACH;
	if (cvy_ep_in_ints(combine ? s->back : s->code)) /* whole or not */
		return CVY_EP_INTEGERS;
	if (f->slices > 1 || f->across)
		return CVY_EP_IN_PIECES;
	if (cvy_ep_div(s->tokens, f->lanes) < CVY_EP_BULK_TOKENS)
		return CVY_EP_FEW_TOKENS;
	if (s->hidden % 16 || f->row_words % 2 || f->row_words * 8 < CVY_EP_BULK_ROW || f->per_step > CVY_EP_BULK_STEP)
		return CVY_EP_SHORT_ROWS;
	if (!combine && cvy_ep_bulk_room(s, f) > CVY_EP_ROOM)
		return CVY_EP_NO_SHARED;
	return cvy_ep_bulk_header(f) + f->per_step * f->slice_lines > CVY_EP_STEP_LINES ? CVY_EP_NO_ROOM
											: CVY_EP_IN_BULK;
}

static inline void cvy_ep_bulk_of(const struct cvy_ep_shape_gpu *s, int combine, struct cvy_ep_form *f)
{
	f->bulk = cvy_ep_lines_why(s, combine, f) == CVY_EP_IN_BULK;
	if (f->bulk)
		f->header_lines = cvy_ep_bulk_header(f);
}

/* Of 8 bytes, scales included. Each line of CVY_EP_INT8_BY_8 has its own scales. */
static inline int32_t cvy_ep_row_words(const struct cvy_ep_shape_gpu *s, int combine)
{
	const int code = combine ? s->back : s->whole ? CVY_EP_AS_IS : s->code;

	if (code == CVY_EP_INT8_BY_8)
		return cvy_ep_div(s->hidden, CVY_EP_LINE_EIGHTS * CVY_EP_EIGHT) * CVY_EP_LINE_WORDS;
	return (int32_t)((cvy_ep_code_row(cvy_ep_code_of(code), (size_t)s->hidden) + 7) / 8);
}

/* @lanes: up to CVY_GPU_LANES. 0: too large for a step. */
static inline int cvy_ep_form_of(const struct cvy_ep_shape_gpu *s, int32_t lanes, int combine, struct cvy_ep_form *f)
{
	int32_t ranks = s->ranks > s->size ? s->ranks : s->size, mine, lines, most;

	f->lanes = lanes;
	f->rows = combine && !s->per_rank && !s->once ? s->top_k : 1;
	f->row_words = cvy_ep_row_words(s, combine);
	f->count_words = combine ? 0 : cvy_ep_div(s->most_local + s->once, 4);
	f->entry_words = combine ? 0 : 2 * cvy_ep_div(s->top_k, 2);
	f->slices = 1;
	lines = cvy_ep_div(f->row_words, CVY_EP_LINE_WORDS);
	f->across = cvy_ep_across_of(s, lanes, f->rows, lines);
	f->apart = lanes >> f->across;
	mine = cvy_ep_div(s->tokens, f->apart);
	lines = cvy_ep_div(lines, 1 << f->across);
	most = CVY_EP_STAGE / (f->row_words * 8);
	if (ranks * f->entry_words * most > CVY_EP_ENTRIES / 8)
		most = CVY_EP_ENTRIES / 8 / (ranks * f->entry_words);
	f->per_step = mine < CVY_EP_STEP_TOKENS ? mine : CVY_EP_STEP_TOKENS;
	if (f->per_step > most)
		f->per_step = most;
	if (f->per_step < 1)
		f->per_step = 1;
	for (;; f->per_step--) {
		f->header_lines = cvy_ep_div(combine ? 2 : 1 + f->count_words + f->per_step * f->entry_words,
					     CVY_EP_LINE_PACKETS);
		if (f->per_step == 1 || (f->header_lines + f->per_step * f->rows * lines <= CVY_EP_STEP_LINES &&
					 (!s->hops || combine || cvy_ep_hops_room(s, f) <= CVY_EP_LEAST_SHARED)))
			break;
	}
	f->slice_lines = lines;
	if (f->header_lines + f->rows * lines > CVY_EP_STEP_LINES) { /* a lane's piece of one token is too much */
		f->slice_lines = (CVY_EP_STEP_LINES - f->header_lines) / f->rows;
		if (f->rows == 1 || f->slice_lines < 1)
			return 0;
		f->slices = cvy_ep_div(lines, f->slice_lines);
	}
	f->steps = cvy_ep_div(mine, f->per_step) * f->slices;
	cvy_ep_bulk_of(s, combine, f);
	return 1;
}

/*
 * Over two hops, of one attempt: what a rank stores in memory of another is in @blocks blocks at most, each with a header and
 * rows, and the longest header tells of @members ranks. *f: the form of the handle, whose steps are cut anew. 0: not even a line
 * of a row finds room.
 */
CVY_GPU_BOTH static inline int cvy_ep_hops_form(int combine, int32_t tokens, int32_t blocks, int32_t members,
						struct cvy_ep_form *f)
{
	const int32_t lines = (f->row_words + CVY_EP_LINE_WORDS - 1) / CVY_EP_LINE_WORDS;
	const int32_t room = CVY_EP_STEP_LINES / blocks, mine = (tokens + f->lanes - 1) / f->lanes;
	const int32_t fixed = combine ? (members > blocks ? members : blocks) : members * (1 + f->count_words);

	if (f->per_step > room / lines)
		f->per_step = room / lines;
	if (f->per_step < 1)
		f->per_step = 1;
	for (;; f->per_step--) {
		f->header_lines =
			(fixed + f->per_step * f->entry_words + CVY_EP_LINE_PACKETS - 1) / CVY_EP_LINE_PACKETS;
		if (f->per_step == 1 || f->header_lines + f->per_step * lines <= room)
			break;
	}
	f->slice_lines = lines;
	if (f->header_lines + lines > room)
		f->slice_lines = room - f->header_lines;
	if (f->slice_lines < 1)
		return 0;
	f->slices = (lines + f->slice_lines - 1) / f->slice_lines;
	f->steps = (mine + f->per_step - 1) / f->per_step * f->slices;
	return 1;
}

/* The owner of each expert, in device memory: written when the handle is laid out. */
struct cvy_ep_tables {
	cvy_rank_small owner[CVY_EP_EXPERTS];
	uint16_t local[CVY_EP_EXPERTS];	   /* index among its owner's */
	uint16_t first[CVY_GPU_RANKS + 1]; /* where each owner's begin, in a list of all by owner, then ascending */
};

/*
 * Of a handle's last operation, for each lane: the tag that it pushed under, for a CTA that completes it later, and the
 * ranks that it did not wait for.
 */
struct cvy_ep_lane {
	uint64_t pushed; /* tag before its first step */
	uint64_t mask;	 /* contributors then; above, from bit 32 on: the step that was sent last */
	uint64_t late_tag, late;
#if CVY_GPU_IS_WIDE
	cvy_ranks contributors, lates; /* instead of mask, but for the step, and of late */
#endif
} __attribute__((aligned(16)));

struct cvy_ep_state {
	struct cvy_ep_tables tables;
	uint32_t left; /* CTAs that have ended, where deadlines are set */
	struct cvy_ep_lane lane[CVY_GPU_LANES];
};

#define CVY_EP_UNPLACED (-2) /* an expert of which no place lives */

/*
 * Behind the state: where experts have several places, and ids are too many for a copy in shared memory, words of each CTA
 * for the places that take the tokens.
 */
CVY_GPU_BOTH static inline size_t cvy_ep_placed_words(int tokens, int top_k, int places)
{
	const size_t ids = (size_t)tokens * (size_t)top_k;

	return places > 1 && ids > CVY_EP_NEAR ? (ids + 3) / 4 * 4 : 0;
}

/* The first bytes of a route: whose tokens the dispatch did not get. */
#define CVY_EP_ROUTE_HEAD ((size_t)(sizeof(cvy_ranks) > 16 ? sizeof(cvy_ranks) : 16))

/* Dispatch leaves this for combine, in memory of the caller: rows here of all ranks' tokens, experts of the own tokens. */
static inline size_t cvy_ep_route_items(int size, int tokens, int top_k)
{
	return (size_t)size * (size_t)tokens * (size_t)top_k;
}

/* Where experts have several places, ids that a mask has left stand behind the places that were sent to. */
static inline size_t cvy_ep_route_bytes(int size, int tokens, int top_k, int places)
{
	size_t items = cvy_ep_route_items(size, tokens, top_k), own = (size_t)tokens * (size_t)top_k;

	return CVY_EP_ROUTE_HEAD + (2 * items + own * (places > 1 ? 2 : 1)) * 4;
}

/*
 * Arguments of a launch; nothing that a view changes. What dispatch and combine do not share stands at the same places: a
 * launch reads these words by lines of 64 bytes, and one line more costs it 0.2 us.
 */
struct cvy_ep_args {
	struct cvy_gpu_call call; /* kind, rank, size, lanes, threads, steps; the device fills in the rest */
	struct cvy_ep_form form;
	struct cvy_ep_state *state;
	int32_t tokens, hidden, top_k, experts, el, num_tokens, code, per_rank;
	union {
		int32_t places;	     /* dispatch: of an expert, at most: ids are of experts; 0 or 1: one */
		int32_t renormalise; /* combine */
	};
	int32_t phases;
	cvy_ranks size_mask; /* of ranks below size */
	int32_t fp16;	     /* elements are fp16, else bf16: alike on all ranks */
	const uint8_t *x;    /* dispatch */
	union {
		const float *x_scales;	   /* dispatch: x is e4m3, and this its scales; NULL: elements */
		const float *expert_scale; /* combine, not with once: [el], or NULL */
	};
	const int32_t *ids;
	const int64_t *ids64; /* instead of ids, or NULL */
	const float *weights;
	uint8_t *packed;
	float *scales;
	int32_t *count, *src_info;
	int64_t *range;
	cvy_ranks *lost;      /* whose tokens this dispatch did not get */
	int32_t *route;	      /* [size][tokens][top_k] rows here of each token, -1: none */
	float *route_weights; /* the same: with what each is summed */
	int32_t *sent;	      /* [tokens][top_k] experts (places) of the own tokens, -1: none, or CVY_EP_UNPLACED */
	union {
		int32_t *flat;	  /* dispatch: [rows][2] source and entry of each row, or NULL */
		const uint8_t *y; /* combine */
	};
	union {
		uint32_t *arrived; /* dispatch: enum covey_ep_arrived, then a word for each row; or NULL */
		uint8_t *out;	   /* combine */
	};
	int32_t *active;  /* [size] or NULL: 0: not waited for, nor sent to; made 0 where the deadline passed */
	uint64_t *waited; /* [size] or NULL: cycles that lane 0 waited for each source, added */
	uint64_t timeout_cycles;
	int32_t wide; /* dispatch: ids are read as int64, where the caller has them. The launch fills this in */
	int32_t once;
	int32_t *recv_experts; /* once: [size * tokens][top_k] experts here of each row, -1: none, */
	float *recv_weights;   /* and their weights */
	union {
		int32_t back;  /* combine: enum cvy_ep_codes of its rows */
		int32_t close; /* dispatch: bins stand close */
	};
	int32_t timeout_ms;  /* the device makes cycles of it */
	const float *smooth; /* dispatch: [experts][hidden] factors, or NULL; rows then come as they are */
	int32_t hops;	     /* for the launch alone, and so behind what kernels read: two hops */
};

/* Pieces of a row that a warp moves at a time, in a slice. */
CVY_GPU_BOTH static inline int cvy_ep_quads(const struct cvy_ep_args *a)
{
	return (a->form.slice_lines + 3) / 4;
}

/*
 * Does combine sum own parts before it hears anybody? Yes if there are sums and so few quads that the summing warps have
 * pushed nothing. With more quads it would only hear others later.
 */
static inline int cvy_ep_begins(const struct cvy_ep_args *a)
{
	return a->per_rank && !a->form.bulk && a->form.per_step == 1 &&
	       cvy_ep_quads(a) * a->call.size <= CVY_EP_THREADS / 32;
}

/* ---- dynamic shared memory of dispatch (struct cvy_ep_room), in words of 4 bytes ---- */

CVY_GPU_BOTH static inline size_t cvy_ep_entries(const struct cvy_ep_args *a)
{
	return (size_t)a->form.per_step * (size_t)a->form.entry_words * 2;
}

/* Bulk steps: a step is planned and staged while the one before is on its way. */
CVY_GPU_BOTH static inline int cvy_ep_turns(const struct cvy_ep_args *a)
{
	return a->form.bulk ? 2 : 1;
}

/* Words of 32 tokens that a rank may have. */
CVY_GPU_BOTH static inline int cvy_ep_mark_words(const struct cvy_ep_args *a)
{
	return (a->tokens + 31) / 32;
}

/* Is it marked at once, of all own tokens, where they go? Of bulk steps, and a token has a row at each rank. */
CVY_GPU_BOTH static inline int cvy_ep_marks(const struct cvy_ep_args *a)
{
	return a->form.bulk && a->once && 2 * a->call.size * cvy_ep_mark_words(a) <= CVY_EP_MARKS;
}

CVY_GPU_BOTH static inline size_t cvy_ep_near_ids(const struct cvy_ep_args *a)
{
	size_t ids = (size_t)a->num_tokens * (size_t)a->top_k;

	return ids <= CVY_EP_NEAR ? (ids + 3) / 4 * 4 : 0;
}

/* Words of 32 tokens that a step's window has: what any lane has in it, and what stands between. Of such that have a row at each rank. */
CVY_GPU_BOTH static inline int cvy_ep_window_words(const struct cvy_ep_args *a)
{
	return a->once ? (a->form.per_step * a->form.apart + 31) / 32 : 0;
}

/* Bins in which rows before the window are counted. */
CVY_GPU_BOTH static inline int cvy_ep_window_bins(const struct cvy_ep_args *a)
{
	return a->once ? a->call.size : a->experts;
}

/*
 * Are places counted from windows, one for each step? Else all ids are looked at for each, as where there is one step, or where windows
 * would take too much.
 */
CVY_GPU_BOTH static inline int cvy_ep_windows(const struct cvy_ep_args *a)
{
	return a->form.steps > 1 && !cvy_ep_marks(a) &&
	       cvy_ep_window_bins(a) + a->call.size * cvy_ep_window_words(a) <= CVY_EP_WINDOW;
}

/* In bytes. */
static inline size_t cvy_ep_dispatch_room(const struct cvy_ep_args *a)
{
	size_t size = (size_t)a->call.size, once = (size_t)a->once, step = (size_t)a->form.per_step;
	size_t turns = (size_t)cvy_ep_turns(a);
	size_t halves = cvy_ep_near_ids(a) + (size + turns - 1) * cvy_ep_entries(a) + (size_t)a->experts + once * size +
			size * ((size_t)a->el + once);

	if (a->close)
		halves += (size_t)a->el;
	if (a->hops) /* an attempt may have more steps than the form of the handle */
		halves += CVY_EP_WINDOW;
	else if (cvy_ep_windows(a))
		halves += (size_t)cvy_ep_window_bins(a) + size * (size_t)cvy_ep_window_words(a);
	if (cvy_ep_marks(a))
		halves += 2 * size * (size_t)cvy_ep_mark_words(a);
	if (a->form.bulk) /* whole lines are copied, also of what stands last */
		halves += CVY_EP_LINE_BYTES / 4;
	return (halves + 1) / 2 * 8 + turns * step * (size_t)a->form.row_words * 8;
}

/* Of combine: in bulk steps each warp has two pieces, so that one is summed while the other leaves. */
static inline size_t cvy_ep_combine_room(const struct cvy_ep_args *a)
{
	return a->form.bulk ? CVY_EP_THREADS / 32 * 2 * CVY_EP_BULK_PIECE : 0;
}

#endif
