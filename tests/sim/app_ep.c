/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of dispatch and combine. What a rank sends follows from (incarnation, number): how many tokens, where
 * each goes (at random, all to one expert, nowhere, to experts that are not there), its row. An expert's result
 * follows from the row, the expert and the incarnation that owns it. So every row and every sum is known.
 *
 * The first handle is of LL or WIN, the second of FLAT or WIN; their slots are the same. Each dispatch tells which rows have
 * arrived.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "checks.h"
#include "ep.h"
#include "sim.h"

#define ROWS (SIM_RANKS * EP_ROOM) /* kept for each expert at most */
#define UNTOUCHED 0x5a

struct app_layer {
	struct covey_ep *ep;
	uint64_t made; /* at this safe point, 0: before the first */
	int owner[EP_EXPERTS * EP_PLACES];
	uint64_t dispatched; /* number of the last dispatch taken, 0: it failed, or none was called since */
	int failed;
	int tokens, renormalise;
	uint16_t x[EP_TOKENS][EP_HIDDEN], out[EP_TOKENS][EP_HIDDEN];
	int32_t ids[EP_IDS], placed[EP_IDS];
	float weights[EP_IDS];
	int32_t active[SIM_RANKS];
	uint16_t packed[EP_EXPERTS * ROWS][EP_HIDDEN], y[EP_EXPERTS * ROWS][EP_HIDDEN];
	int32_t count[EP_EXPERTS], src[EP_EXPERTS * ROWS];
	int64_t range[EP_EXPERTS * SIM_RANKS];
	int32_t flat[EP_EXPERTS * ROWS * 2], triplets[EP_EXPERTS * ROWS * 3];
	uint32_t arrived[COVEY_EP_ARRIVED_ROWS + EP_EXPERTS * ROWS];
};

/* ---- what is sent ---- */

static int tokens_of(uint64_t inc, uint64_t seq)
{
	uint64_t h = sim_hash(inc ^ 0x70, seq);

	return h % 4 ? 1 + (int)(h / 4 % EP_TOKENS) : 0;
}

static int32_t id_of(uint64_t inc, uint64_t seq, int i)
{
	uint64_t how = sim_hash(0x71, seq) % 4, h = sim_hash(inc ^ 0x72, seq * 64 + (uint64_t)i);

	if (how == 0 || h % 8 == 0) /* nowhere: empty, or an expert that is not there */
		return how == 0 || h & 8 ? -1 : EP_EXPERTS + 3;
	return how == 1 ? (int32_t)(seq % EP_EXPERTS) : (int32_t)(h / 16 % EP_EXPERTS);
}

static void row_of(uint64_t inc, uint64_t seq, int token, uint16_t *row)
{
	for (int h = 0; h < EP_HIDDEN; h += 4) {
		uint64_t v = sim_hash(inc ^ 0x73, seq * 1024 + (uint64_t)(token * EP_HIDDEN + h));

		memcpy(row + h, &v, sizeof(v));
	}
}

/* A small whole number as bf16: exact, so that only the order of a sum matters. */
static uint16_t result_of(uint16_t x, uint64_t owner, int expert, int h)
{
	float f = (float)((x ^ sim_hash(owner, (uint64_t)(expert * EP_HIDDEN + h))) & 63);
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static float weight_of(uint64_t inc, uint64_t seq, int i)
{
	return (float)(1 + sim_hash(inc ^ 0x74, seq * 64 + (uint64_t)i) % 255) / 256;
}

/* ---- handles ---- */

/* One to three places from rank @first on; which of them are there, and their order, @h says. */
static void places(int *owner, int first, int size, uint64_t h)
{
	int shift = (int)(h % EP_PLACES);

	for (int i = 0; i < EP_PLACES; i++)
		owner[(i + shift) % EP_PLACES] = i < size && (!i || h >> (8 + i) & 1) ? (first + i) % size : -1;
}

static const int *owners(const struct proc *p, struct app_layer *l, int which, uint64_t seq)
{
	int size = p->engine->here.size;

	if (!which || size < 1)
		return NULL;
	for (int x = 0; x < EP_EXPERTS; x++) {
		int first = (int)(sim_hash(seq, (uint64_t)x) % 4 ? sim_hash(seq, (uint64_t)x) / 4 % (uint64_t)size
								 : seq % (uint64_t)size);

		if (app_places(p->sim))
			places(l->owner + (ptrdiff_t)x * EP_PLACES, first, size, sim_hash(seq, (uint64_t)x) >> 32);
		else
			l->owner[x] = first;
	}
	return l->owner;
}

/* WIN: the rows of an expert begin where those of the one before end. */
static int close_by(const struct app_layer *l)
{
	return l->ep->shape.preset == COVEY_EP_WIN;
}

static int preset_of(const struct proc *p, int which, uint64_t seq)
{
	static const int presets[2][2] = { { COVEY_EP_LL, COVEY_EP_WIN }, { COVEY_EP_FLAT, COVEY_EP_WIN } };

	return presets[which % 2][sim_hash(p->sim->seed * 23 + (uint64_t)which, seq) % 2];
}

static void make(struct proc *p, int which, int tokens, uint64_t seq)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct app_layer *l = p->app.layer[which];
	int err;

	config.max_tokens = tokens;
	config.hidden = EP_HIDDEN;
	config.top_k = EP_TOP_K;
	config.experts = EP_EXPERTS;
	config.preset = preset_of(p, which, seq);
	config.places = app_places(p->sim) ? EP_PLACES : 0;
	config.expert_owner = owners(p, l, which, seq);
	l->made = seq;
	do
		err = covey_ep_create(p->app.group, &config, &l->ep);
	while (err == COVEY_ERR_NOMEM && sim_scarce_hit(p));
	if (err)
		sim_fail(p->sim, "G8: process %d has no room for the buffers of layer %d", p->id, which);
}

void app_ep_open(struct proc *p)
{
	for (int i = 0; i < SIM_LAYERS; i++) {
		p->app.layer[i] = calloc(1, sizeof(*p->app.layer[i]));
		if (!p->app.layer[i])
			abort();
		make(p, i, EP_TOKENS, 0);
	}
}

void app_ep_close(struct proc *p)
{
	for (int i = 0; i < SIM_LAYERS; i++) {
		if (p->app.layer[i])
			covey_ep_destroy(p->app.layer[i]->ep);
		free(p->app.layer[i]);
		p->app.layer[i] = NULL;
	}
}

/* The handles go, and others of other sizes stand where they stood: what was a slot is parts of several now. */
static void swap(struct proc *p, uint64_t seq)
{
	static const int rooms[] = { EP_TOKENS, 20, 40, EP_ROOM };
	uint64_t h = sim_hash(p->sim->seed * 19 + 5, seq);

	for (int i = 0; i < SIM_LAYERS; i++)
		covey_ep_destroy(p->app.layer[i]->ep);
	for (int i = 0; i < SIM_LAYERS; i++) {
		int which = h & 1 ? SIM_LAYERS - 1 - i : i;

		make(p, which, rooms[h >> (4 + 2 * which) & 3], seq);
	}
}

/* At every safe point; a joiner laid out for a group that it did not know. */
void app_ep_remap(struct proc *p, uint64_t seq)
{
	if (app_swaps(p->sim))
		swap(p, seq);
	for (int i = 0; i < SIM_LAYERS; i++) {
		struct app_layer *l = p->app.layer[i];
		int err;

		do
			err = app_swaps(p->sim) ? 0 : covey_ep_remap(l->ep, owners(p, l, i, seq));
		while (err == COVEY_ERR_NOMEM && sim_scarce_hit(p));
		l->dispatched = 0;
		l->failed = 0; /* its ranges are of another layout */
		if (err)
			sim_fail(p->sim, "G5: process %d cannot lay out layer %d anew: %d", p->id, i, err);
	}
}

int app_ep_same(const struct proc *p, const struct proc *q)
{
	for (int i = 0; i < SIM_LAYERS; i++)
		if (p->app.layer[i] && q->app.layer[i] && p->app.layer[i]->made == q->app.layer[i]->made &&
		    (p->app.layer[i]->ep->dispatch != q->app.layer[i]->ep->dispatch ||
		     p->app.layer[i]->ep->combine != q->app.layer[i]->ep->combine))
			return 0;
	return 1;
}

/* ---- calls ---- */

/* Of each rank its own; many are shorter than a slow rank needs. */
static int timeout_of(const struct proc *p, const struct call *c)
{
	return c->shape.timed ? 1 + (int)(sim_hash(p->inc ^ 0x75, c->seq) % 9) : -1;
}

/* One rank in five, so that most of those left out are left out by few. */
int app_ep_leaves_out(uint64_t inc, uint64_t seq, int other)
{
	return !(sim_hash(inc ^ 0x76, seq * SIM_RANKS + (uint64_t)other) % 5);
}

static int32_t *active_of(const struct proc *p, struct app_layer *l, const struct call *c)
{
	for (int r = 0; r < SIM_RANKS; r++)
		l->active[r] = !app_ep_leaves_out(p->inc, c->seq, r);
	return c->shape.choosy ? l->active : NULL;
}

static int call_dispatch(struct proc *p, struct app_layer *l, const struct call *c)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	size_t rows = (size_t)(l->ep->el * l->ep->size * l->ep->shape.tokens);
	uint64_t seq = c->seq;

	l->tokens = tokens_of(p->inc, seq);
	for (int t = 0; t < l->tokens; t++)
		row_of(p->inc, seq, t, l->x[t]);
	for (int i = 0; i < l->tokens * EP_TOP_K; i++)
		l->ids[i] = id_of(p->inc, seq, i);
	memset(l->packed, UNTOUCHED, rows * sizeof(l->packed[0]));
	memset(l->src, UNTOUCHED, rows * sizeof(l->src[0]));
	memset(l->range, UNTOUCHED, sizeof(l->range));
	memset(l->count, UNTOUCHED, sizeof(l->count));
	memset(l->arrived, 0, sizeof(l->arrived));
	memset(l->placed, UNTOUCHED, sizeof(l->placed));
	l->dispatched = 0;
	l->failed = 0;
	args.num_tokens = l->tokens;
	args.x = l->x;
	args.experts = l->ids;
	args.packed_x = l->packed;
	args.count = l->count;
	args.src_info = l->src;
	args.range = l->range;
	args.flat = l->flat;
	args.triplets = l->triplets;
	args.arrived = l->arrived;
	args.placed = app_places(p->sim) ? l->placed : NULL;
	args.timeout_ms = timeout_of(p, c);
	args.active_ranks = active_of(p, l, c);
	return covey_dispatch_send(l->ep, &args, NULL);
}

/* Rows kept for each expert; of WIN for all of them. */
static int bin_rows(const struct app_layer *l)
{
	const int el = l->ep->el, of_all = l->ep->size * l->ep->shape.tokens;

	return close_by(l) ? of_all * (EP_TOP_K < el ? EP_TOP_K : el) : of_all;
}

/* Index of an expert among those here, -1: it has no place here. */
static int local_of(const struct app_layer *l, int expert)
{
	int n = cvy_ep_places(&l->ep->shape), le = -1;

	for (int p = 0; p < n; p++)
		if (l->ep->local[expert * n + p] >= 0)
			le = l->ep->local[expert * n + p];
	return le;
}

/*
 * The experts' work between the phases. Without a dispatch there is nothing to give back, and nothing is asked for; one
 * that failed has left its ranges empty, or with the rows that came, and these go back as ever.
 */
static void work(struct proc *p, struct app_layer *l)
{
	int el = l->ep->el, n = 0;

	if (!l->dispatched)
		l->tokens = 0;
	if (!l->dispatched && !l->failed) {
		memset(l->range, 0, sizeof(l->range));
		return;
	}
	for (int x = 0; x < EP_EXPERTS && n < el; x++) {
		int le = local_of(l, x), first;

		if (le < 0)
			continue;
		first = close_by(l) ? (int)cvy_ep_range_first(l->range[le * l->ep->size]) : le * bin_rows(l);
		for (int row = 0; row < l->count[le]; row++) {
			int at = first + row;

			for (int h = 0; h < EP_HIDDEN; h++)
				l->y[at][h] = result_of(l->packed[at][h], p->inc, x, h);
		}
		n++;
	}
}

static int call_combine(struct proc *p, struct app_layer *l, const struct call *c)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	uint64_t seq = c->seq;

	work(p, l);
	for (int i = 0; i < EP_IDS; i++)
		l->weights[i] = weight_of(p->inc, seq, i);
	memset(l->out, UNTOUCHED, sizeof(l->out));
	args.renormalise = l->renormalise = (int)(seq >> 3 & 1);
	args.num_tokens = l->tokens;
	args.y = l->y;
	args.count = l->count;
	args.src_info = l->src;
	args.range = l->range;
	args.experts = l->ids;
	args.weights = l->weights;
	args.out = l->out;
	args.placed = app_places(p->sim) ? l->placed : NULL;
	args.timeout_ms = timeout_of(p, c);
	args.active_ranks = active_of(p, l, c);
	return covey_combine_send(l->ep, &args, NULL);
}

int app_ep_may_call(const struct proc *p, const struct shape *shape)
{
	return shape->kind != COMBINE || !p->app.layer[shape->layer]->ep->sent[0];
}

int app_ep_call(struct proc *p, struct call *c)
{
	struct app_layer *l = p->app.layer[c->shape.layer];
	int combine = c->shape.kind == COMBINE;
	int err = combine ? call_combine(p, l, c) : call_dispatch(p, l, c);

	if (!err)
		c->op = l->ep->sent[combine];
	return err;
}

/* Whatever the outcome: readers wait for this word. */
static void check_ended(struct proc *p, const struct app_layer *l, const struct call *c)
{
	if (l->ep->el && l->arrived[COVEY_EP_ARRIVED_ENDED] != COVEY_EP_ARRIVED)
		sim_fail(p->sim, "G5: process %d dispatch %" PRIu64 " has ended, and its readers are not told", p->id,
			 c->seq);
}

int app_ep_take(struct proc *p, struct call *c, struct covey_result *result)
{
	struct app_layer *l = p->app.layer[c->shape.layer];
	int err;

	if (c->shape.kind == COMBINE)
		return covey_combine_recv(l->ep, 0, result);
	err = covey_dispatch_recv(l->ep, 0, result);
	if (!err)
		l->dispatched = c->seq;
	l->failed = err && !p->engine->here.ended;
	check_ended(p, l, c);
	return err;
}

/* ---- what came ---- */

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
	int n = inc && serves(r, src) ? tokens_of(inc, r->seq) : 0;
	uint16_t want[EP_HIDDEN];

	for (int i = 0, at = r->begin + first; i < n * EP_TOP_K && r->row - first < l->ep->shape.tokens; i++) {
		if (id_of(inc, r->seq, i) != r->expert)
			continue;
		row_of(inc, r->seq, i / EP_TOP_K, want);
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
		sim_fail(p->sim, "G3: process %d dispatch %" PRIu64 ": its range is not told", p->id, res->seq);
	for (int row = first; row < end; row++)
		if (row < last ? word[row] != COVEY_EP_ARRIVED : word[row] && !l->arrived[COVEY_EP_ARRIVED_AGAIN])
			sim_fail(p->sim, "G3: process %d dispatch %" PRIu64 ": row %d of %d: word %x", p->id, res->seq,
				 row, last, word[row]);
	if (!untouched(l, last, end))
		sim_fail(p->sim, "G3: process %d dispatch %" PRIu64 ": a row past %d was written", p->id, res->seq,
			 last);
}

static void check_dispatch(struct proc *p, const struct app_layer *l, const struct covey_result *res,
			   const struct sim_view *v)
{
	const uint64_t living = check_contributors(v, res->seq);
	const int bin = bin_rows(l), close = close_by(l);
	int rows = 0;

	for (int x = 0; x < EP_EXPERTS; x++) {
		int le = local_of(l, x), begin = close ? rows : le * bin;
		struct reader r = { l, res->seq, living, p->rank, x, le, 0, begin, close ? rows : 0 };

		if (le < 0)
			continue;
		for (int src = 0; src < l->ep->size; src++)
			if (!check_source(&r, covey_mask_has(&res->mask, src) ? v->inc[src] : 0, src))
				sim_fail(p->sim,
					 "G3: process %d dispatch %" PRIu64 " epoch %u mask %" PRIx64
					 ": expert %d has not the rows of rank %d",
					 p->id, res->seq, res->epoch, res->mask.word[0], x, src);
		if (l->count[le] != r.row)
			sim_fail(p->sim, "G3: process %d dispatch %" PRIu64 ": expert %d has %d rows, not %d", p->id,
				 res->seq, x, l->count[le], r.row);
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
			sim_fail(p->sim,
				 "G3: process %d dispatch %" PRIu64
				 " epoch %u: expert %d of token %d is at place %d, not %d",
				 p->id, res->seq, res->epoch, x, i / EP_TOP_K, l->placed[i], want);
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
	le = local_of(l, expert);
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
		sim_fail(q->sim,
			 "G3: process %d dispatch %" PRIu64
			 " epoch %u: its tokens for expert %d are at %d of %d places",
			 q->id, res->seq, res->epoch, expert, found, lives);
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

static float value(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint16_t rounded(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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
			sum[h] += l->weights[i] * value(result_of(l->x[token][h], v->inc[owner], x, h));
	}
	if (l->renormalise && here != all && here != 0)
		scale = all / here;
	for (int h = 0; h < EP_HIDDEN; h++)
		out[h] = rounded(sum[h] * scale);
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
			sim_fail(p->sim,
				 "G3: process %d combine %" PRIu64 " epoch %u mask %" PRIx64
				 ": the sum of token %d is not that of its experts",
				 p->id, res->seq, res->epoch, res->mask.word[0], t);
	}
}

/* G6 */
static void check_inputs(struct proc *p, const struct app_layer *l, uint64_t dispatched)
{
	uint16_t row[EP_HIDDEN];

	for (int t = 0; t < l->tokens; t++) {
		row_of(p->inc, dispatched, t, row);
		if (memcmp(row, l->x[t], sizeof(row)) != 0)
			sim_fail(p->sim, "G6: process %d: token %d of dispatch %" PRIu64 " was overwritten", p->id, t,
				 dispatched);
	}
	for (int i = 0; i < l->tokens * EP_TOP_K; i++)
		if (l->ids[i] != id_of(p->inc, dispatched, i))
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
