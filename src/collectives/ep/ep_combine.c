/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine on host memory. An owner publishes its results packed by source: for each source one run of rows, ordered by
 * bin, then token, then k. A source knows its own routing, so it computes the place of each of its rows in that run; no
 * index travels. An owner that did not get this rank's tokens (it lost them in the dispatch) shows this by the length
 * of the run, and counts as missing here.
 */
#include <stdlib.h>
#include <string.h>

#include "ep.h"
#include "ep_quant.h"
#include "mask.h"
#include "reduce.h"

struct cvy_ep_call *cvy_ep_call_new(struct covey_ep *ep, int combine)
{
	struct cvy_ep_call *call = calloc(1, sizeof(*call));
	size_t bins = (size_t)cvy_ep_all_bins(ep), size = (size_t)ep->size;

	if (!call)
		return NULL;
	call->ep = ep;
	if (!combine) {
		if (cvy_ep_pack_of(ep->shape.preset)->close)
			call->rows = calloc((size_t)ep->el * size + 1, sizeof(*call->rows));
		if (call->rows || !cvy_ep_pack_of(ep->shape.preset)->close)
			return call;
		cvy_ep_call_free(call);
		return NULL;
	}
	call->place = calloc(bins, sizeof(*call->place));
	call->rows = calloc(bins, sizeof(*call->rows));
	call->run = calloc(size, sizeof(*call->run));
	call->from = calloc(size, sizeof(*call->from));
	call->own = calloc((size_t)cvy_ep_bins(ep) + 1, sizeof(*call->own));
	call->sum = calloc((size_t)ep->shape.hidden, sizeof(*call->sum));
	call->part = calloc((size_t)ep->shape.hidden, sizeof(*call->part));
	call->row = calloc((size_t)ep->shape.hidden, sizeof(*call->row));
	if (call->place && call->rows && call->run && call->from && call->own && call->sum && call->part && call->row)
		return call;
	cvy_ep_call_free(call);
	return NULL;
}

void cvy_ep_call_free(struct cvy_ep_call *call)
{
	if (!call)
		return;
	free(call->place);
	free(call->rows);
	free(call->run);
	free((void *)call->from);
	free(call->own);
	free(call->sum);
	free(call->part);
	free(call->row);
	free(call->ns);
	free(call);
}

/* @n rows of results, as they travel. @by: NULL, or the factor of their expert. */
static void put_rows(const struct covey_ep *ep, uint8_t *to, const uint8_t *y, size_t n, const float *by)
{
	size_t plain = cvy_ep_row_bytes(&ep->shape), back = cvy_ep_back_bytes(&ep->shape);

	if (ep->shape.back == CVY_EP_AS_IS && !by) {
		memcpy(to, y, n * plain);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		const struct cvy_ep_plain x = { y + i * plain, ep->dtype, (size_t)ep->shape.hidden, NULL, by };

		if (ep->shape.back == CVY_EP_AS_IS)
			cvy_ep_multiply(&x, to + i * back);
		else
			cvy_ep_quantise_eights(&x, to + i * back);
	}
}

/* @own: NULL, or the rows stay where they are, and it says where. */
static uint32_t write_run(const struct covey_ep *ep, const struct covey_combine_args *args, int src, uint32_t first,
			  uint8_t *slot, struct cvy_ep_own *own)
{
	size_t plain = cvy_ep_row_bytes(&ep->shape), per_bin = cvy_ep_bin_rows(ep);
	size_t row = cvy_ep_back_bytes(&ep->shape);
	struct cvy_ep_run *run = (struct cvy_ep_run *)(void *)slot + src;
	uint8_t *to = slot + cvy_ep_combine_rows_at(&ep->shape);
	uint32_t next = first;

	for (int bin = 0; bin < cvy_ep_bins(ep); bin++) {
		int64_t range = args->range[(size_t)bin * (size_t)ep->size + (size_t)src];
		size_t n = cvy_ep_range_count(range), from = cvy_ep_range_first(range);

		if (own)
			own[bin] = (struct cvy_ep_own){ 0, 0 };
		if (n > (size_t)ep->shape.tokens || from + n > per_bin || next + n > cvy_ep_combine_rows(&ep->shape))
			continue; /* a dispatch never writes this; the run's length shows it to the source */
		if (own)
			own[bin] = (struct cvy_ep_own){ cvy_ep_row_at(ep, bin, from) - (next - first), n };
		else if (n)
			put_rows(ep, to + next * row, (const uint8_t *)args->y + cvy_ep_row_at(ep, bin, from) * plain,
				 n, args->expert_scale ? &args->expert_scale[bin] : NULL);
		next += (uint32_t)n;
	}
	*run = (struct cvy_ep_run){ first, next - first };
	return next;
}

uint32_t cvy_ep_combine_write(const struct covey_ep *ep, const struct covey_combine_args *args, int src, uint32_t first,
			      uint8_t *slot)
{
	return write_run(ep, args, src, first, slot, NULL);
}

/* May the own rows be summed from y? Not if they travel in another form, or if results are written over them. */
static int stays(const struct covey_ep *ep, const struct covey_combine_args *args)
{
	size_t row = cvy_ep_row_bytes(&ep->shape), y_bytes = cvy_ep_bin_rows(ep) * (size_t)cvy_ep_bins(ep) * row;
	uintptr_t y = (uintptr_t)args->y, out = (uintptr_t)args->out;

	return ep->shape.back == CVY_EP_AS_IS && !args->expert_scale &&
	       (out >= y + y_bytes || y >= out + (size_t)args->num_tokens * row);
}

static void combine_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;
	const struct covey_ep *ep = call->ep;
	uint8_t *slot = here->own_base + cvy_ep_combine_slot(ep, op);
	struct cvy_ep_run *run = (struct cvy_ep_run *)(void *)slot;
	size_t row = cvy_ep_back_bytes(&ep->shape), rows_at = cvy_ep_combine_rows_at(&ep->shape);
	uint32_t next = 0;

	(void)i;
	cvy_ep_active_begin(e, op);
	call->own_stays = stays(ep, &call->combine);
	for (int src = 0; src < ep->size; src++) {
		next = write_run(ep, &call->combine, src, next, slot,
				 src == ep->rank && call->own_stays ? call->own : NULL);
		if (cvy_ep_left_out(call, src))
			run[src].count = CVY_EP_NO_RUN;
	}
	line->aux = next;
	line->bytes = 0;
	for (int p = 0; p < here->set.npush; p++) {
		int to = here->set.push[p];

		if (to >= ep->size)
			continue;
		cvy_put(e, to, &run[to], sizeof(*run));
		if (run[to].count && run[to].count != CVY_EP_NO_RUN)
			cvy_put(e, to, slot + rows_at + run[to].first * row, run[to].count * row);
	}
}

/* Ids of the own token @t; @room: for those that the caller has in int64, or masks. */
static const int32_t *ids_of(const struct cvy_ep_call *call, size_t t, int32_t room[CVY_EP_MAX_TOP_K])
{
	const struct cvy_ep_shape *s = &call->ep->shape;
	const struct covey_combine_args *a = &call->combine;
	size_t top_k = (size_t)s->top_k;

	if (!a->experts64 && !a->token_mask)
		return a->experts + t * top_k;
	for (size_t k = 0; k < top_k; k++) {
		size_t i = t * top_k + k;

		int64_t id = a->experts64 ? a->experts64[i] : a->experts[i];
		int named = cvy_ep_valid(s, id) || cvy_ep_is_special(s, a, id);

		room[k] = named && !cvy_ep_masked(s, a->token_mask, a->mask_columns, i) ? (int32_t)id : -1;
	}
	return room;
}

/*
 * The places that served the own token @t, as its dispatch says, by its ids; with one place each these are the ids.
 * A number that is no place of the expert counts as none: the caller's array is read again here.
 */
static const int32_t *places_of(const struct cvy_ep_call *call, size_t t, const int32_t *ids,
				int32_t room[CVY_EP_MAX_TOP_K])
{
	const struct covey_ep *ep = call->ep;
	const int places = cvy_ep_places(&ep->shape), top_k = ep->shape.top_k;

	if (places == 1)
		return ids;
	for (int k = 0; k < top_k; k++) {
		int32_t v = call->combine.placed[t * (size_t)top_k + (size_t)k];
		int holds = cvy_ep_valid(&ep->shape, ids[k]) && v >= 0 && v / places == ids[k] && ep->owner[v] >= 0;

		room[k] = holds ? v : -1;
	}
	return room;
}

/* If a bin is a rank: is one of the places before @k in it, too? */
static int owner_before(const struct covey_ep *ep, const int32_t *placed, int k)
{
	for (int j = 0; j < k; j++)
		if (cvy_ep_is_place(&ep->shape, placed[j]) && ep->owner[placed[j]] == ep->owner[placed[k]])
			return 1;
	return 0;
}

/* Rows of each bin from this rank's own routing, and thus the place of each bin in its owner's run. */
static void count_rows(struct cvy_ep_call *call)
{
	const struct covey_ep *ep = call->ep;
	const struct cvy_ep_shape *s = &ep->shape;
	int once = cvy_ep_pack_of(s->preset)->once;
	int32_t room[CVY_EP_MAX_TOP_K], places[CVY_EP_MAX_TOP_K];

	memset(call->rows, 0, (size_t)cvy_ep_all_bins(ep) * sizeof(*call->rows));
	memset(call->run, 0, (size_t)ep->size * sizeof(*call->run));
	for (int t = 0; t < call->combine.num_tokens; t++) {
		const int32_t *placed = places_of(call, (size_t)t, ids_of(call, (size_t)t, room), places);

		for (int k = 0; k < s->top_k; k++) {
			int bin = cvy_ep_is_place(s, placed[k]) ? cvy_ep_bin(ep, placed[k]) : -1;

			if (bin >= 0 && call->rows[bin] < (uint32_t)s->tokens && !(once && owner_before(ep, placed, k)))
				call->rows[bin]++;
		}
	}
	for (int bin = 0; bin < cvy_ep_all_bins(ep); bin++) {
		int owner = once ? bin : ep->owner[bin];
		struct cvy_ep_run *run = owner < 0 ? NULL : &call->run[owner];

		if (!run)
			continue;
		call->place[bin] = run->count;
		run->count += call->rows[bin];
	}
}

/* The bin of this rank that @bin of all is, -1: none. */
static int own_bin(const struct covey_ep *ep, int bin)
{
	if (cvy_ep_pack_of(ep->shape.preset)->once)
		return bin == ep->rank ? 0 : -1;
	return ep->owner[bin] == ep->rank ? ep->local[bin] : -1;
}

/* Are the own rows in y those that the own tokens need? */
static int own_rows_fit(const struct cvy_ep_call *call)
{
	for (int bin = 0; bin < cvy_ep_all_bins(call->ep); bin++) {
		int own = own_bin(call->ep, bin);

		if (own >= 0 && call->own[own].rows != call->rows[bin])
			return 0;
	}
	return 1;
}

/* First row of each owner's run for this rank. Words in a peer's window are checked before use. */
static void find_runs(struct cvy_ep_call *call, const uint8_t *const *slot)
{
	const struct covey_ep *ep = call->ep;
	size_t row = cvy_ep_back_bytes(&ep->shape), rows_at = cvy_ep_combine_rows_at(&ep->shape);

	memset(&call->missing, 0, sizeof(call->missing));
	for (int o = 0; o < ep->size; o++) {
		struct cvy_ep_run run = { 0, 0 };

		call->from[o] = NULL;
		if (slot[o])
			memcpy(&run, slot[o] + (size_t)ep->rank * sizeof(run), sizeof(run));
		if (!slot[o] || run.count != call->run[o].count ||
		    (size_t)run.first + run.count > cvy_ep_combine_rows(&ep->shape) ||
		    (o == ep->rank && call->own_stays && !own_rows_fit(call)))
			cvy_mask_add(&call->missing, o);
		else
			call->from[o] = slot[o] + rows_at + run.first * row;
	}
}

/* The terms of a token's sum: rows, and experts that no rank has, in their order, with their weights. */
struct terms {
	int n;
	const uint8_t *row[CVY_EP_MAX_TOP_K];
	int32_t special[CVY_EP_MAX_TOP_K]; /* where there is no row: the id */
	float weight[CVY_EP_MAX_TOP_K];
	int owner[CVY_EP_MAX_TOP_K]; /* if a row belongs to an expert; -1: no row */
	float all, here;	     /* weights of the experts that it names, and of those whose owner takes part */
};

/* The next row of @bin, whose owner's run begins at @from. */
static const uint8_t *next_row(struct cvy_ep_call *call, int bin, const uint8_t *from)
{
	size_t row = cvy_ep_back_bytes(&call->ep->shape), number = call->place[bin]++;
	int own = call->own_stays ? own_bin(call->ep, bin) : -1;

	if (own >= 0)
		return (const uint8_t *)call->combine.y + (call->own[own].shift + number) * row;
	return from + number * row;
}

/* Is it an expert of which no place lived? Its weight is one of those that the token names. */
static int unplaced(const struct covey_ep *ep, int32_t id, int32_t v)
{
	return cvy_ep_valid(&ep->shape, id) && v < 0;
}

/* An expert that no rank has takes part always. 0: @id is none. */
static int special_term(const struct cvy_ep_call *call, int32_t id, float weight, struct terms *to)
{
	if (!cvy_ep_is_special(&call->ep->shape, &call->combine, id))
		return 0;
	to->all += weight;
	to->here += weight;
	to->row[to->n] = NULL;
	to->owner[to->n] = -1;
	to->special[to->n] = id;
	to->weight[to->n++] = weight;
	return 1;
}

static void terms_by_expert(struct cvy_ep_call *call, const int32_t *ids, const int32_t *placed, const float *weights,
			    struct terms *to)
{
	const struct covey_ep *ep = call->ep;

	for (int k = 0; k < ep->shape.top_k; k++) {
		const int32_t v = placed[k];
		const uint8_t *from;

		if (special_term(call, ids[k], weights[k], to))
			continue;
		if (unplaced(ep, ids[k], v))
			to->all += weights[k];
		if (!cvy_ep_is_place(&ep->shape, v) || call->rows[v] == 0)
			continue;
		call->rows[v]--;
		to->all += weights[k];
		from = call->from[ep->owner[v]];
		if (!from)
			continue;
		to->here += weights[k];
		to->row[to->n] = next_row(call, v, from);
		to->owner[to->n] = ep->owner[v];
		to->weight[to->n++] = weights[k];
	}
}

/* Owners ascending: the lowest that serves the token past @after, -1: no more. */
static int owner_after(const struct covey_ep *ep, const int32_t *placed, int after)
{
	int next = -1;

	for (int k = 0; k < ep->shape.top_k; k++) {
		int o = cvy_ep_is_place(&ep->shape, placed[k]) ? ep->owner[placed[k]] : -1;

		if (o > after && (next < 0 || o < next))
			next = o;
	}
	return next;
}

static void terms_by_rank(struct cvy_ep_call *call, const int32_t *ids, const int32_t *placed, const float *weights,
			  struct terms *to)
{
	const struct covey_ep *ep = call->ep;

	for (int o = owner_after(ep, placed, -1); o >= 0; o = owner_after(ep, placed, o)) {
		if (!call->from[o])
			continue;
		to->row[to->n] = next_row(call, o, call->from[o]);
		to->weight[to->n++] = 1;
	}
	for (int k = 0; k < ep->shape.top_k; k++) {
		if (special_term(call, ids[k], weights[k], to) || !cvy_ep_valid(&ep->shape, ids[k]))
			continue;
		to->all += weights[k];
		if (placed[k] >= 0 && call->from[ep->owner[placed[k]]])
			to->here += weights[k];
	}
}

/* Adds call->part as the row of a sum that @owner would send; the own one is not rounded, but coded like the others. */
static void add_part(const struct cvy_reduce_table *loops, struct cvy_ep_call *call, int owner)
{
	const struct covey_ep *ep = call->ep;
	size_t hidden = (size_t)ep->shape.hidden;

	if (ep->back_as == COVEY_EP_BACK_INT8) {
		cvy_ep_quantise_sum(call->part, ep->dtype, hidden, (uint8_t *)call->row);
		cvy_ep_weigh_eights(call->sum, (const uint8_t *)call->row, ep->dtype, 1, hidden);
		return;
	}
	if (owner != ep->rank) {
		loops->narrow[ep->dtype](call->row, call->part, hidden);
		loops->weigh[ep->dtype](call->sum, call->row, 1, hidden);
		return;
	}
	for (size_t h = 0; h < hidden; h++)
		call->sum[h] += call->part[h];
}

/*
 * COVEY_EP_PER_RANK: the sum that each owner would send, owners ascending. Here the rows of experts have come, and are
 * summed in that order: the same bits as on devices, where one row comes.
 */
static void sum_parts(const struct cvy_reduce_table *loops, struct cvy_ep_call *call, const int32_t *placed,
		      const struct terms *terms, size_t t)
{
	const struct covey_ep *ep = call->ep;
	size_t hidden = (size_t)ep->shape.hidden;

	for (int o = owner_after(ep, placed, -1); o >= 0; o = owner_after(ep, placed, o)) {
		memset(call->part, 0, hidden * sizeof(*call->part));
		for (int i = 0; i < terms->n; i++)
			if (terms->owner[i] == o)
				loops->weigh[ep->dtype](call->part, terms->row[i], terms->weight[i], hidden);
		add_part(loops, call, o);
	}
	for (int i = 0; i < terms->n; i++)
		if (!terms->row[i])
			cvy_ep_add_special(call, t, terms->special[i], terms->weight[i]);
}

/* A row is mostly in the caches of another core, and its processor does not fetch the first lines of a page ahead. */
static void fetch_row(const struct terms *terms, int i, size_t bytes)
{
	const uint8_t *row = i < terms->n ? terms->row[i] : NULL;

	for (size_t at = 0; row && at < bytes; at += CVY_CACHE_LINE)
		__builtin_prefetch(row + at);
}

/* The rows of a token's sum that have come, and what needs none. */
static void sum_rows(const struct cvy_reduce_table *loops, struct cvy_ep_call *call, const struct terms *terms,
		     size_t t)
{
	const struct covey_ep *ep = call->ep;
	size_t hidden = (size_t)ep->shape.hidden;

	for (int i = 0; i < terms->n; i++) {
		fetch_row(terms, i + 1, cvy_ep_back_bytes(&ep->shape));
		if (!terms->row[i])
			cvy_ep_add_special(call, t, terms->special[i], terms->weight[i]);
		else if (ep->shape.back == CVY_EP_AS_IS)
			loops->weigh[ep->dtype](call->sum, terms->row[i], terms->weight[i], hidden);
		else
			cvy_ep_weigh_eights(call->sum, terms->row[i], ep->dtype, terms->weight[i], hidden);
	}
}

static void sum_token(const struct cvy_reduce_table *loops, struct cvy_ep_call *call, size_t t)
{
	const struct cvy_ep_shape *s = &call->ep->shape;
	int32_t room[CVY_EP_MAX_TOP_K], places[CVY_EP_MAX_TOP_K];
	const int32_t *ids = ids_of(call, t, room), *placed = places_of(call, t, ids, places);
	const int dtype = call->ep->dtype;
	static const float none[CVY_EP_MAX_TOP_K]; /* for outputs without weights */
	const float *weights = call->combine.weights ? call->combine.weights + t * (size_t)s->top_k : none;
	int once = cvy_ep_pack_of(s->preset)->once, parts = !once && call->ep->combine_as == COVEY_EP_PER_RANK;
	struct terms terms = { .n = 0 };
	float scale;

	if (once)
		terms_by_rank(call, ids, placed, weights, &terms);
	else
		terms_by_expert(call, ids, placed, weights, &terms);
	if (call->combine.bias)
		memcpy(call->sum, call->combine.bias + t * (size_t)s->hidden, (size_t)s->hidden * sizeof(*call->sum));
	else
		memset(call->sum, 0, (size_t)s->hidden * sizeof(*call->sum));
	if (parts)
		sum_parts(loops, call, placed, &terms, t);
	else
		sum_rows(loops, call, &terms, t);
	scale = call->combine.renormalise && terms.here != terms.all && terms.here != 0 ? terms.all / terms.here : 1;
	for (int h = 0; scale != 1 && h < s->hidden; h++)
		call->sum[h] *= scale;
	cvy_ep_set_nan(call->sum, (size_t)s->hidden);
	loops->narrow[dtype]((uint8_t *)call->combine.out + t * cvy_ep_row_bytes(s), call->sum, (size_t)s->hidden);
}

void cvy_ep_combine_read(struct cvy_ep_call *call, const uint8_t *const *slot)
{
	const struct cvy_reduce_table *loops = cvy_reduce_loops();

	call->consumed = 1;
	count_rows(call);
	find_runs(call, slot);
	for (int t = 0; t < call->combine.num_tokens; t++)
		sum_token(loops, call, (size_t)t);
}

static void combine_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;
	const struct covey_ep *ep = call->ep;
	size_t at = cvy_ep_combine_slot(ep, op);
	const uint8_t *slot[COVEY_MAX_RANKS];

	(void)i;
	memset((void *)slot, 0, (size_t)ep->size * sizeof(*slot));
	for (int k = 0; k < here->set.n; k++)
		if (here->set.rank[k] < ep->size && !cvy_ep_source_missing(e, k))
			slot[here->set.rank[k]] = here->set.base[k] + at;
	cvy_ep_combine_read(call, slot);
}

static void combine_finish(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_ep_call *call = op->priv;
	const uint8_t *none[COVEY_MAX_RANKS] = { NULL };

	if (op->result.status)
		return;
	if (!call->consumed) /* decided by a repair before this rank entered it: no owner's rows are here */
		cvy_ep_combine_read(call, none);
	cvy_ep_active_finish(e, call);
	cvy_mask_sub(&op->result.mask, &call->missing);
}

void cvy_ep_release(struct cvy_op *op)
{
	struct cvy_ep_call *call = op->priv;
	struct covey_ep *ep = call->ep;

	cvy_ep_call_free(call);
	cvy_ep_put(ep);
	op->priv = NULL;
}

const struct cvy_op_kind cvy_op_combine = {
	.name = "combine",
	.op_class = CVY_OP_PRIVATE,
	.publish = combine_publish,
	.consume = combine_consume,
	.look = cvy_ep_active_look,
	.finish = combine_finish,
	.release = cvy_ep_release,
};
