/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch on host memory. A source publishes its routing ids and each token's row once. Every owner scans the ids of
 * all sources and gathers the rows for its experts, as the preset packs them. So a token crosses to a rank once, even
 * if it names several of the rank's experts, and no rank plans for another. Places follow from the ids alone: they are
 * the same in every run and after every redo. The number of tokens travels in the signal's line.
 *
 * A row's place depends on earlier sources alone, or where bins stand close on counts taken before, so its word of `arrived`
 * is told as soon as the row is written.
 */
#include <string.h>

#include "ep.h"
#include "ep_quant.h"
#include "mask.h"

#define GIVEN ((uint64_t)1 << 32) /* beside the number of tokens: their rows are e4m3 and scales */

static void write_codes(const struct covey_ep *ep, const struct covey_dispatch_args *args, uint8_t *rows)
{
	size_t hidden = (size_t)ep->shape.hidden, row = cvy_ep_row_bytes(&ep->shape);
	size_t groups = cvy_ep_code_groups(cvy_ep_code_of(CVY_EP_E4M3), hidden);

	for (size_t t = 0; t < (size_t)args->num_tokens; t++) {
		memcpy(rows + t * row, (const uint8_t *)args->x + t * hidden, hidden);
		memcpy(rows + t * row + hidden, args->x_scales + t * groups, groups * sizeof(float));
	}
}

/* Entry @i of the own tokens, by token then k, as it travels. */
static int32_t sent_id(const struct cvy_ep_shape *s, const struct covey_dispatch_args *args, size_t i)
{
	int64_t id = args->experts64 ? args->experts64[i] : args->experts[i];

	return cvy_ep_masked(s, args->token_mask, args->mask_columns, i) ? -1 : cvy_ep_id_or_none(s, id);
}

uint64_t cvy_ep_dispatch_write(const struct covey_ep *ep, const struct covey_dispatch_args *args, uint8_t *slot)
{
	const struct cvy_ep_shape *s = &ep->shape;
	size_t n = (size_t)args->num_tokens, ids = n * (size_t)s->top_k;
	int32_t *to = (int32_t *)(void *)slot;

	for (size_t i = 0; i < ids; i++)
		to[i] = sent_id(s, args, i);
	if (n && cvy_ep_pack_of(s->preset)->beside)
		memcpy(slot + cvy_ep_dispatch_weights_at(s), args->weights, ids * sizeof(float));
	if (n && args->x_scales)
		write_codes(ep, args, slot + cvy_ep_dispatch_rows_at(s));
	else if (n)
		memcpy(slot + cvy_ep_dispatch_rows_at(s), args->x, n * cvy_ep_row_bytes(s));
	return n | (args->x_scales ? GIVEN : 0);
}

/* A word of `arrived`: what it stands for is written. */
static void tell(const struct covey_ep *ep, const struct covey_dispatch_args *args, size_t word)
{
	if (args->arrived && ep->el)
		__atomic_store_n(&args->arrived[word], COVEY_EP_ARRIVED, __ATOMIC_RELEASE);
}

/* Rows that were told before are written over from here on. */
static void tell_again(const struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	if (!args->arrived || !ep->el)
		return;
	/* Not a store: it comes before the stores after it. */
	__atomic_exchange_n(&args->arrived[COVEY_EP_ARRIVED_AGAIN], 1, __ATOMIC_SEQ_CST);
}

/*
 * Members agree on the places that take tokens by the view in which the operation is decided. So these are all of its
 * contributors: also one that was removed or masked since, since others may have completed the operation with it.
 */
static void note_living(const struct cvy_engine *e, struct cvy_ep_call *call)
{
	const struct cvy_set *set = &cvy_site(e)->set;

	if (cvy_ep_places(&call->ep->shape) == 1 && !call->dispatch.placed)
		return;
	memset(&call->living, 0, sizeof(call->living));
	for (int k = 0; k < set->n; k++)
		cvy_mask_add(&call->living, set->rank[k]);
}

/* The place that takes tokens of @src for an id that is valid; with one place each, also if its owner is gone. */
static inline int place_for(const struct cvy_ep_call *call, int32_t id, int src)
{
	const struct covey_ep *ep = call->ep;

	return cvy_ep_places(&ep->shape) == 1 ? id : cvy_ep_serves(ep, id, src, call->living.word);
}

void cvy_ep_dispatch_placed(const struct cvy_ep_call *call)
{
	const struct covey_dispatch_args *a = &call->dispatch;
	const struct covey_ep *ep = call->ep;

	for (size_t i = 0; a->placed && i < (size_t)a->num_tokens * (size_t)ep->shape.top_k; i++) {
		int32_t id = sent_id(&ep->shape, a, i);

		a->placed[i] = id < 0 ? -1 : cvy_ep_serves(ep, id, ep->rank, call->living.word);
	}
}

static int token_goes_to(const struct cvy_ep_call *call, const int32_t *ids, int rank)
{
	const struct covey_ep *ep = call->ep;

	for (int k = 0; k < ep->shape.top_k; k++) {
		int v = cvy_ep_valid(&ep->shape, ids[k]) ? place_for(call, ids[k], ep->rank) : -1;

		if (v >= 0 && ep->owner[v] == rank)
			return 1;
	}
	return 0;
}

#define RUNS_MAX 256 /* of one dispatch to one rank, since a transport's queue has a bound */

/* To a rank that does not see our window: all ids, and runs of its tokens; the last run may hold more. */
static void push_to(struct cvy_engine *e, const struct cvy_ep_call *call, const uint8_t *slot, int rank)
{
	const struct covey_ep *ep = call->ep;
	const int n = call->dispatch.num_tokens;
	const int32_t *ids = (const int32_t *)(const void *)slot;
	const uint8_t *rows = slot + cvy_ep_dispatch_rows_at(&ep->shape);
	size_t row = cvy_ep_row_bytes(&ep->shape);
	int top_k = ep->shape.top_k, runs = 0;

	if (!n)
		return;
	cvy_put(e, rank, slot, (size_t)n * (size_t)top_k * sizeof(*ids));
	if (cvy_ep_pack_of(ep->shape.preset)->beside)
		cvy_put(e, rank, slot + cvy_ep_dispatch_weights_at(&ep->shape),
			(size_t)n * (size_t)top_k * sizeof(float));
	for (int t = 0, end; t < n; t = end + 1) {
		for (end = t; end < n && token_goes_to(call, ids + (size_t)end * (size_t)top_k, rank); end++)
			;
		if (end > t && ++runs == RUNS_MAX)
			end = n;
		if (end > t)
			cvy_put(e, rank, rows + (size_t)t * row, (size_t)(end - t) * row);
	}
}

/* Marks the ranks that get nothing; 1: there are some. */
static int note_skips(const struct cvy_ep_call *call, uint8_t *slot)
{
	int some = 0;

	for (int r = 0; call->active && r < call->ep->size; r++) {
		uint64_t *word = cvy_ep_dispatch_skips(call->ep, slot, r), bit = (uint64_t)1 << r % 64;

		if (r % 64 == 0)
			*word = 0;
		if (cvy_ep_left_out(call, r)) {
			*word |= bit;
			some = 1;
		}
	}
	return some;
}

/* Has the k-th source left this rank out? */
static int skipped(const struct cvy_engine *e, const struct cvy_op *op, const struct covey_ep *ep, int k)
{
	const struct cvy_site *here = cvy_site(e);
	uint8_t *slot = (uint8_t *)(uintptr_t)here->set.base[k] + cvy_ep_dispatch_slot(ep, op);

	return cvy_source_line(e, op, 0, k, 1)->bytes &&
	       *cvy_ep_dispatch_skips(ep, slot, ep->rank) >> ep->rank % 64 & 1;
}

static void dispatch_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;
	uint8_t *slot = here->own_base + cvy_ep_dispatch_slot(call->ep, op);

	(void)i;
	cvy_ep_active_begin(e, op);
	note_living(e, call);
	line->aux = cvy_ep_dispatch_write(call->ep, &call->dispatch, slot);
	line->bytes = (uint32_t)note_skips(call, slot);
	for (int p = 0; p < here->set.npush; p++) {
		int to = here->set.push[p];

		if (line->bytes)
			cvy_put(e, to, cvy_ep_dispatch_skips(call->ep, slot, to), sizeof(uint64_t));
		if (!cvy_ep_left_out(call, to))
			push_to(e, call, slot, to);
	}
}

/* The next row of @src in @bin, or -1: its rows there are used up. */
static int place_row(const struct cvy_ep_call *call, int bin, int src)
{
	const struct covey_ep *ep = call->ep;
	const size_t run = (size_t)bin * (size_t)ep->size + (size_t)src;
	const int close = cvy_ep_pack_of(ep->shape.preset)->close;
	int64_t *range = &call->dispatch.range[run];
	uint32_t n = cvy_ep_range_count(*range), first = cvy_ep_range_first(*range);

	if (n >= (close ? call->rows[run] : (uint32_t)ep->shape.tokens))
		return -1;
	*range = cvy_ep_range(n + 1, first);
	return (int)(first + n);
}

/* A token of a source in a slot: ids are read once, since a peer may still write. */
struct token {
	int src, number, given;
	int local[CVY_EP_MAX_TOP_K]; /* of each id: index among the experts here, -1: none */
	int32_t id[CVY_EP_MAX_TOP_K];
	const float *weights;
	const uint8_t *row;
};

/* Rows that their source had as codes: scales stand behind them. */
static void put_given(const struct cvy_ep_code *code, size_t hidden, const uint8_t *row, uint8_t *codes, float *scales,
		      size_t stride)
{
	size_t bytes = cvy_ep_code_bytes(code, hidden);

	memcpy(codes, row, bytes);
	for (size_t g = 0; g < cvy_ep_code_groups(code, hidden); g++)
		memcpy(&scales[g * stride], row + bytes + g * sizeof(float), sizeof(float));
}

/* Row @at of bin @bin; NULL, or the factors of its elements. */
struct place {
	int bin, at;
	const float *smooth;
};

/* A source publishes its rows as they are, even if receivers want codes: the numbers are the same, once per row. */
static void put_row(const struct covey_ep *ep, const struct covey_dispatch_args *args, const struct place *p,
		    const struct token *t)
{
	const struct cvy_ep_code *code = cvy_ep_code_of(ep->rows_as);
	size_t rows = cvy_ep_bin_rows(ep), hidden = (size_t)ep->shape.hidden;
	size_t to = cvy_ep_row_at(ep, p->bin, (size_t)p->at), bytes = cvy_ep_code_bytes(code, hidden);
	size_t groups = cvy_ep_code_groups(code, hidden);
	int by_row = cvy_ep_pack_of(ep->shape.preset)->scale_by_row;
	const struct cvy_ep_plain x = { t->row, ep->dtype, hidden, p->smooth, NULL };
	uint8_t *codes = (uint8_t *)args->packed_x + to * bytes;
	size_t stride = by_row ? 1 : rows;
	float *scales;

	if (!groups) {
		memcpy(codes, t->row, bytes);
		return;
	}
	scales = args->packed_scales + (by_row ? to * groups : (size_t)p->bin * groups * rows + (size_t)p->at);
	if (t->given)
		put_given(code, hidden, t->row, codes, scales, stride);
	else
		cvy_ep_quantise(ep->rows_as, &x, codes, scales, stride);
}

/* Row @row is of the expert that the token names at @k. */
static void put_origin(const struct covey_ep *ep, const struct covey_dispatch_args *args, size_t row,
		       const struct token *t, int k)
{
	args->src_info[row] = t->number;
	if (args->triplets)
		memcpy(args->triplets + row * 3, (const int32_t[]){ t->src, t->number, k }, 3 * sizeof(int32_t));
	if (args->flat)
		memcpy(args->flat + row * 2, (const int32_t[]){ t->src, t->number * ep->shape.top_k + k },
		       2 * sizeof(int32_t));
}

static void one_row_each(const struct cvy_ep_call *call, const struct token *t)
{
	const struct covey_ep *ep = call->ep;
	const struct covey_dispatch_args *args = &call->dispatch;
	size_t hidden = (size_t)ep->shape.hidden;

	for (int k = 0; k < ep->shape.top_k; k++) {
		struct place p;
		int le = t->local[k], at = le >= 0 ? place_row(call, le, t->src) : -1;

		if (at < 0)
			continue;
		p = (struct place){ le, at, args->smooth ? args->smooth + (size_t)t->id[k] * hidden : NULL };
		put_row(ep, args, &p, t);
		put_origin(ep, args, cvy_ep_row_at(ep, le, (size_t)at), t, k);
		tell(ep, args, COVEY_EP_ARRIVED_ROWS + cvy_ep_row_at(ep, le, (size_t)at));
		args->count[le]++;
	}
}

static int named_before(const struct token *t, int k)
{
	for (int j = 0; j < k; j++)
		if (t->local[j] == t->local[k])
			return 1;
	return 0;
}

static void one_row(const struct cvy_ep_call *call, const struct token *t)
{
	const struct covey_ep *ep = call->ep;
	const struct covey_dispatch_args *args = &call->dispatch;
	size_t top_k = (size_t)ep->shape.top_k;
	struct place p = { 0, 0, NULL };
	int first = 0, at;

	while (first < ep->shape.top_k && t->local[first] < 0)
		first++;
	at = first < ep->shape.top_k ? place_row(call, 0, t->src) : -1;
	if (at < 0)
		return;
	p.at = at;
	put_row(ep, args, &p, t);
	put_origin(ep, args, (size_t)at, t, first);
	for (size_t k = 0; k < top_k; k++) {
		int le = t->local[k];

		args->recv_experts[(size_t)at * top_k + k] = le;
		args->recv_weights[(size_t)at * top_k + k] = le < 0 ? 0 : t->weights[k];
		if (le >= 0 && !named_before(t, (int)k))
			args->count[le]++;
	}
	tell(ep, args, COVEY_EP_ARRIVED_ROWS + (size_t)at);
}

/* Which of the experts here takes tokens of @src for @id, -1: none. */
static int local_of(const struct cvy_ep_call *call, int32_t id, int src)
{
	const struct covey_ep *ep = call->ep;
	int v = cvy_ep_valid(&ep->shape, id) ? place_for(call, id, src) : -1;

	return v >= 0 ? ep->local[v] : -1;
}

static void gather(const struct cvy_ep_call *call, int src, const uint8_t *slot, int n, int given)
{
	const struct covey_ep *ep = call->ep;
	const struct cvy_ep_shape *s = &ep->shape;
	size_t top_k = (size_t)s->top_k;
	const int32_t *ids = (const int32_t *)(const void *)slot;
	const float *weights = (const float *)(const void *)(slot + cvy_ep_dispatch_weights_at(s));
	const uint8_t *rows = slot + cvy_ep_dispatch_rows_at(s);
	struct token t = { .src = src, .given = given };

	for (t.number = 0; t.number < n; t.number++) {
		t.weights = weights + (size_t)t.number * top_k;
		t.row = rows + (size_t)t.number * cvy_ep_row_bytes(s);
		for (size_t k = 0; k < top_k; k++) {
			t.id[k] = ids[(size_t)t.number * top_k + k];
			t.local[k] = local_of(call, t.id[k], src);
		}
		if (cvy_ep_pack_of(s->preset)->once)
			one_row(call, &t);
		else
			one_row_each(call, &t);
	}
}

/* How many tokens a source has told that has this slot; -1: it has told nothing, or what no source may tell. */
static int tokens_told(const struct covey_ep *ep, const uint8_t *slot, uint64_t told)
{
	const uint64_t n = told & ~GIVEN;

	if (!slot || n > (uint64_t)ep->shape.tokens || ((told & GIVEN) && !cvy_ep_in_e4m3(ep->rows_as)))
		return -1;
	return (int)n;
}

/*
 * Where bins stand close: how many rows each gets, and thus where it begins. Ids are read a second time when rows are placed.
 * A peer may write meanwhile, so no run then gets more than it has here.
 */
static void count_rows(const struct cvy_ep_call *call, const uint8_t *const *slot, const uint64_t *told)
{
	const struct covey_ep *ep = call->ep;
	const size_t size = (size_t)ep->size, runs = (size_t)ep->el * size, top_k = (size_t)ep->shape.top_k;
	uint32_t first = 0;

	if (!cvy_ep_pack_of(ep->shape.preset)->close || !ep->el)
		return;
	memset(call->rows, 0, runs * sizeof(*call->rows));
	for (int src = 0; src < ep->size; src++) {
		const int32_t *ids = (const int32_t *)(const void *)slot[src];
		const int n = tokens_told(ep, slot[src], told[src]);

		for (size_t i = 0; n > 0 && i < (size_t)n * top_k; i++) {
			const int le = local_of(call, ids[i], src);
			uint32_t *rows = le < 0 ? NULL : &call->rows[(size_t)le * size + (size_t)src];

			if (rows && *rows < (uint32_t)ep->shape.tokens)
				++*rows;
		}
	}
	for (size_t run = 0; run < runs; first += call->rows[run++])
		call->dispatch.range[run] = cvy_ep_range(0, first);
}

int cvy_ep_dispatch_take(const struct cvy_ep_call *call, int src, const uint8_t *slot, uint64_t told)
{
	const struct covey_ep *ep = call->ep;
	const struct covey_dispatch_args *args = &call->dispatch;
	const int n = tokens_told(ep, slot, told), close = cvy_ep_pack_of(ep->shape.preset)->close;

	for (int bin = 0; !close && bin < cvy_ep_bins(ep); bin++) {
		int64_t *range = &args->range[(size_t)bin * (size_t)ep->size + (size_t)src];
		uint32_t end = src ? cvy_ep_range_count(range[-1]) + cvy_ep_range_first(range[-1]) : 0;

		*range = cvy_ep_range(0, end);
	}
	if (n < 0)
		return -1;
	gather(call, src, slot, n, (told & GIVEN) != 0);
	return 0;
}

void cvy_ep_dispatch_take_all(struct cvy_ep_call *call, const uint8_t *const *slot, const uint64_t *told)
{
	count_rows(call, slot, told);
	for (int r = 0; r < call->ep->size; r++)
		if (cvy_ep_dispatch_take(call, r, slot[r], told[r]) < 0)
			cvy_mask_add(&call->missing, r);
}

static void dispatch_begin(const struct cvy_engine *e, struct cvy_ep_call *call)
{
	if (call->consumed)
		tell_again(call->ep, &call->dispatch);
	note_living(e, call);
	memset(&call->missing, 0, sizeof(call->missing));
	if (call->ep->el)
		memset(call->dispatch.count, 0, (size_t)call->ep->el * sizeof(*call->dispatch.count));
	call->consumed = 1;
}

/* The rows of all sources are placed. */
static void dispatch_end(struct cvy_ep_call *call)
{
	cvy_ep_dispatch_placed(call);
	cvy_ep_dispatch_outputs(call->ep, &call->dispatch);
	tell(call->ep, &call->dispatch, COVEY_EP_ARRIVED_RANGE);
}

/* NULL in slot[size]: nothing of that source is here. */
static void take_all(const struct cvy_engine *e, struct cvy_ep_call *call, const uint8_t *const *slot,
		     const uint64_t *told)
{
	dispatch_begin(e, call);
	cvy_ep_dispatch_take_all(call, slot, told);
	dispatch_end(call);
}

static void dispatch_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;
	const struct covey_ep *ep = call->ep;
	const size_t at = cvy_ep_dispatch_slot(ep, op);
	const uint8_t *slot[COVEY_MAX_RANKS];
	uint64_t told[COVEY_MAX_RANKS];

	memset((void *)slot, 0, (size_t)ep->size * sizeof(*slot));
	memset(told, 0, (size_t)ep->size * sizeof(*told));
	for (int k = 0; k < here->set.n; k++) {
		const int r = here->set.rank[k];

		if (r >= ep->size || cvy_ep_source_missing(e, k) || skipped(e, op, ep, k))
			continue;
		slot[r] = here->set.base[k] + at;
		told[r] = cvy_source_line(e, op, i, k, 1)->aux;
	}
	take_all(e, call, slot, told);
}

/* Nothing was read here: no source's part is here, and the outputs show this. */
static void dispatch_nothing(const struct cvy_engine *e, struct cvy_ep_call *call)
{
	static const uint8_t *const none[COVEY_MAX_RANKS];
	static const uint64_t nothing[COVEY_MAX_RANKS];

	take_all(e, call, none, nothing);
}

static void dispatch_finish(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;

	/*
	 * A failed dispatch has taken its place too, and its combine has to take its own on all ranks. Without this,
	 * ranks whose old `range` is invalid would refuse that combine alone. (If the handle has ended, the caller's
	 * buffers may be gone.)
	 */
	if (!call->consumed && !__atomic_load_n(&here->ended, __ATOMIC_RELAXED))
		dispatch_nothing(e, call);
	if (!op->result.status) {
		cvy_ep_active_finish(e, call);
		cvy_mask_sub(&op->result.mask, &call->missing);
	}
	/* Whatever the outcome: readers wait for this word. */
	tell(call->ep, &call->dispatch, COVEY_EP_ARRIVED_ENDED);
}

const struct cvy_op_kind cvy_op_dispatch = {
	.name = "dispatch",
	.op_class = CVY_OP_PRIVATE,
	.publish = dispatch_publish,
	.consume = dispatch_consume,
	.look = cvy_ep_active_look,
	.finish = dispatch_finish,
	.release = cvy_ep_release,
};
