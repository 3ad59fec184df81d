/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dispatch and combine brought: every row and every sum is known, from the incarnations in the mask and the number of
 * the operation.
 */
#include "app_ep.h"

#include <inttypes.h>

#include "checks.h"
#include "reduce.h"

/* What process @P was given by the operation of @RES. */
#define WRONG(P, RES, FORMAT, ...) \
	sim_fail((P)->sim, "G3: process %d operation %" PRIu64 " epoch %u mask %" PRIx64 ": " FORMAT, (P)->id, \
		 (RES)->seq, (RES)->epoch, (RES)->mask.word[0], __VA_ARGS__)

struct reader { /* of one expert's rows */
	const struct app_layer *l;
	uint64_t seq, living;
	int rank, expert, le, row;
	int begin, counted; /* the first row of the expert among all; and as `range` counts */
};

/* The place that takes tokens of @src: the contributors' places in their order, and of these one by the source. */
static int place_for(const struct app_layer *l, int expert, int src, uint64_t living)
{
	int n = cvy_ep_places(&l->ep->shape), list[EP_PLACES], found = 0;

	if (n == 1)
		return expert;
	for (int v = expert * n; v < (expert + 1) * n; v++)
		if (l->ep->owner[v] >= 0 && living >> l->ep->owner[v] & 1)
			list[found++] = v;
	return found ? list[src % found] : -1;
}

static int serves(const struct reader *r, int src)
{
	int v = place_for(r->l, r->expert, src, r->living);

	return v >= 0 && r->l->ep->owner[v] == r->rank;
}

/* Does row @at say that it is of entry @i of @src? */
static int came_from(const struct app_layer *l, int at, int src, int i)
{
	const int32_t *flat = l->flat + (ptrdiff_t)2 * at, *triplet = l->triplets + (ptrdiff_t)3 * at;

	return l->src[at] == i / EP_TOP_K && flat[0] == src && flat[1] == i && triplet[0] == src &&
	       triplet[1] == i / EP_TOP_K && triplet[2] == i % EP_TOP_K;
}

/* All rows that one source sent to one expert, tokens ascending, at most max_tokens: 0 when one is not as it was sent. */
static int check_source(struct reader *r, uint64_t inc, int src)
{
	const struct app_layer *l = r->l;
	int first = r->row;
	int n = inc && serves(r, src) ? app_ep_tokens(inc, r->seq) : 0;
	uint16_t want[EP_HIDDEN];

	for (int i = 0, at = r->begin + first; i < n * EP_TOP_K && r->row - first < l->ep->shape.tokens; i++) {
		if (app_ep_id(inc, r->seq, i) != r->expert)
			continue;
		app_ep_row(inc, r->seq, i / EP_TOP_K, want);
		if (!came_from(l, at++, src, i) || memcmp(l->packed[at - 1], want, sizeof(want)) != 0)
			return 0;
		r->row++;
	}
	return l->range[r->le * l->ep->size + src] ==
	       cvy_ep_range((uint32_t)(r->row - first), (uint32_t)(r->counted + first));
}

/* Rows from the first to the end of its bin. */
static int untouched(const struct app_layer *l, int from, int end)
{
	const uint8_t *row = (const uint8_t *)l->packed[from];

	for (size_t i = 0; i < (size_t)(end - from) * sizeof(l->packed[0]); i++)
		if (row[i] != UNTOUCHED)
			return 0;
	return 1;
}

/* Of a bin, its rows from @first to before @last are told, and none from there to its @end, if they were placed once. */
static void check_told(struct proc *p, const struct app_layer *l, const struct covey_result *res, int first, int last,
		       int end)
{
	const uint32_t *word = l->arrived + COVEY_EP_ARRIVED_ROWS;

	if (l->arrived[COVEY_EP_ARRIVED_RANGE] != COVEY_EP_ARRIVED)
		WRONG(p, res, "word %x of its range", l->arrived[COVEY_EP_ARRIVED_RANGE]);
	for (int row = first; row < end; row++)
		if (row < last ? word[row] != COVEY_EP_ARRIVED : word[row] && !l->arrived[COVEY_EP_ARRIVED_AGAIN])
			WRONG(p, res, "row %d of %d: word %x", row, last, word[row]);
	if (!untouched(l, last, end))
		WRONG(p, res, "a row past %d was written", last);
}

static void check_dispatch(struct proc *p, const struct app_layer *l, const struct covey_result *res,
			   const struct sim_view *v)
{
	const uint64_t living = check_contributors(v, res->seq);
	const int bin = app_ep_bin(l), close = app_ep_close_by(l);
	int rows = 0;

	for (int x = 0; x < EP_EXPERTS; x++) {
		int le = app_ep_local(l, x), begin = close ? rows : le * bin;
		struct reader r = { l, res->seq, living, p->rank, x, le, 0, begin, close ? rows : 0 };

		if (le < 0)
			continue;
		for (int src = 0; src < l->ep->size; src++)
			if (!check_source(&r, covey_mask_has(&res->mask, src) ? v->inc[src] : 0, src))
				WRONG(p, res, "expert %d has not the rows of rank %d", x, src);
		if (l->count[le] != r.row)
			WRONG(p, res, "expert %d has %d rows, not %d", x, l->count[le], r.row);
		rows += r.row;
		if (!close)
			check_told(p, l, res, begin, begin + r.row, begin + bin);
	}
	if (close && l->ep->el)
		check_told(p, l, res, 0, rows, bin);
}

/* What the dispatch says of its own tokens, unless others completed it before this rank began. */
static void check_placed(struct proc *p, const struct app_layer *l, const struct covey_result *res,
			 const struct sim_view *v)
{
	const uint64_t living = check_contributors(v, res->seq);

	for (int i = 0; i < l->tokens * EP_TOP_K && covey_mask_has(&res->mask, p->rank); i++) {
		int x = l->ids[i], want = x >= 0 && x < EP_EXPERTS ? place_for(l, x, p->rank, living) : -1;

		if (l->placed[i] != want)
			WRONG(p, res, "expert %d of token %d is at place %d, not %d", x, i / EP_TOP_K, l->placed[i],
			      want);
	}
}

/*
 * Has @q rows of @src for an expert, from the dispatch of which @p has the outcome @res now? -1: it is not known, or it
 * has another outcome: of another view, or without that source.
 */
static int holds(const struct proc *p, const struct proc *q, int which, const struct covey_result *res, int expert,
		 int src)
{
	const struct outcome *o = q ? &q->outcome[res->seq] : NULL;
	const struct app_layer *l = q ? q->app.layer[which] : NULL;
	int known = q == p ? covey_mask_has(&res->mask, src)
			   : o && o->have && !o->status && o->epoch == res->epoch && (o->mask >> src & 1);
	int le;

	if (!l || l->dispatched != res->seq || !known)
		return -1;
	le = app_ep_local(l, expert);
	return le >= 0 && cvy_ep_range_count(l->range[le * l->ep->size + src]) > 0;
}

/* Whatever the rule: the tokens of a source for an expert are at one place, as far as it is known. */
static void check_expert(struct proc *p, struct proc *q, int which, const struct covey_result *res,
			 const struct sim_view *v, int expert)
{
	const uint64_t living = check_contributors(v, res->seq);
	const struct covey_ep *ep = q->app.layer[which]->ep;
	int found = 0, unknown = 0, lives = 0;

	for (int at = expert * EP_PLACES; at < (expert + 1) * EP_PLACES; at++) {
		int has, r = ep->owner[at];

		if (r < 0 || !(living >> r & 1))
			continue;
		has = holds(p, sim_proc_of(q->sim, v->inc[r]), which, res, expert, q->rank);
		lives++;
		unknown += has < 0;
		found += has > 0;
	}
	if (found > 1 || (lives && !found && !unknown))
		WRONG(q, res, "its tokens for expert %d are at %d of %d places", expert, found, lives);
}

/* The last process that has an outcome looks at the tokens of all. */
static void check_places(struct proc *p, int which, const struct covey_result *res, const struct sim_view *v)
{
	for (int r = 0; r < SIM_RANKS; r++) {
		struct proc *q = v->inc[r] ? sim_proc_of(p->sim, v->inc[r]) : NULL;
		const struct app_layer *l = q ? q->app.layer[which] : NULL;

		for (int i = 0; l && l->dispatched == res->seq && i < l->tokens * EP_TOP_K; i++)
			if (l->ids[i] >= 0 && l->ids[i] < EP_EXPERTS)
				check_expert(p, q, which, res, v, l->ids[i]);
	}
}

/* The rank of the place that served an entry, -1: none did. */
static int owner_of(const struct app_layer *l, int i)
{
	int at = cvy_ep_places(&l->ep->shape) > 1 ? l->placed[i] : l->ids[i];

	return at < 0 ? -1 : l->ep->owner[at];
}

/* One token: the sum of its experts' results, each weighed, in the order of its ids, without those of missing owners. */
static void true_sum(const struct app_layer *l, const struct covey_result *res, const struct sim_view *v, int token,
		     const int *taken, uint16_t *out)
{
	float sum[EP_HIDDEN] = { 0 }, all = 0, here = 0, scale = 1;

	for (int i = token * EP_TOP_K; i < (token + 1) * EP_TOP_K; i++) {
		int x = l->ids[i], owner = taken[i] ? owner_of(l, i) : -1;

		all += taken[i] ? l->weights[i] : 0;
		if (owner < 0 || !covey_mask_has(&res->mask, owner))
			continue;
		here += l->weights[i];
		for (int h = 0; h < EP_HIDDEN; h++)
			sum[h] += l->weights[i] * cvy_bf16_f32(app_ep_result(l->x[token][h], v->inc[owner], x, h));
	}
	if (l->renormalise && here != all && here != 0)
		scale = all / here;
	for (int h = 0; h < EP_HIDDEN; h++)
		out[h] = cvy_f32_bf16(sum[h] * scale);
}

static void check_combine(struct proc *p, const struct app_layer *l, const struct covey_result *res,
			  const struct sim_view *v)
{
	int rows[EP_EXPERTS] = { 0 }, taken[EP_IDS] = { 0 };
	uint16_t want[EP_HIDDEN];

	for (int i = 0; i < l->tokens * EP_TOP_K; i++)
		taken[i] = l->ids[i] >= 0 && l->ids[i] < EP_EXPERTS &&
			   (rows[l->ids[i]]++ < l->ep->shape.tokens || owner_of(l, i) < 0);
	for (int t = 0; t < l->tokens; t++) {
		true_sum(l, res, v, t, taken, want);
		if (memcmp(want, l->out[t], sizeof(want)) != 0)
			WRONG(p, res, "the sum of token %d is not that of its experts", t);
	}
}

/* G6 */
static void check_inputs(struct proc *p, const struct app_layer *l, uint64_t dispatched)
{
	uint16_t row[EP_HIDDEN];

	for (int t = 0; t < l->tokens; t++) {
		app_ep_row(p->inc, dispatched, t, row);
		if (memcmp(row, l->x[t], sizeof(row)) != 0)
			sim_fail(p->sim, "G6: process %d: token %d of dispatch %" PRIu64 " was overwritten", p->id, t,
				 dispatched);
	}
	for (int i = 0; i < l->tokens * EP_TOP_K; i++)
		if (l->ids[i] != app_ep_id(p->inc, dispatched, i))
			sim_fail(p->sim, "G6: process %d: the routing of dispatch %" PRIu64 " was overwritten", p->id,
				 dispatched);
}

void app_ep_check(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v)
{
	struct app_layer *l = p->app.layer[c->shape.layer];

	if (c->shape.kind == DISPATCH) {
		check_dispatch(p, l, res, v);
		if (app_places(p->sim)) {
			check_placed(p, l, res, v);
			check_places(p, c->shape.layer, res, v);
		}
	} else {
		check_combine(p, l, res, v);
	}
	if (l->dispatched)
		check_inputs(p, l, l->dispatched);
}

/* Owners whose own dispatch lacks this rank have nothing to give back to it, nor has anyone whose rank it does not know. */
uint64_t app_ep_excused(const struct proc *p, const struct call *c, const struct sim_view *v)
{
	uint64_t mask = 0, seq = p->app.layer[c->shape.layer]->dispatched;

	if (c->shape.kind != COMBINE)
		return 0;
	if (!seq)
		return ~0ull;
	for (int r = 0; r < SIM_RANKS; r++) {
		const struct proc *q = sim_proc_of(p->sim, v->inc[r]);
		const struct outcome *o = q ? &q->outcome[seq] : NULL;

		if (o && (!o->have || o->status || o->kind != DISPATCH || !(o->mask >> p->rank & 1)))
			mask |= 1ull << r;
	}
	return mask;
}
