/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of dispatch and combine. What a rank sends follows from (incarnation, number): how many tokens, where
 * each goes (at random, all to one expert, nowhere, to experts that are not there), its row. An expert's result
 * follows from the row, the expert and the incarnation that owns it. So every row and every sum is known.
 *
 * The first handle is of LL or WIN, the second of FLAT or WIN; their slots are the same. Each dispatch tells which rows have
 * arrived.
 */
#include "app_ep.h"

#include <inttypes.h>
#include <stdlib.h>

#include "reduce.h"

/* ---- what is sent ---- */

int app_ep_tokens(uint64_t inc, uint64_t seq)
{
	uint64_t h = sim_hash(inc ^ 0x70, seq);

	return h % 4 ? 1 + (int)(h / 4 % EP_TOKENS) : 0;
}

int32_t app_ep_id(uint64_t inc, uint64_t seq, int i)
{
	uint64_t how = sim_hash(0x71, seq) % 4, h = sim_hash(inc ^ 0x72, seq * 64 + (uint64_t)i);

	if (how == 0 || h % 8 == 0) /* nowhere: empty, or an expert that is not there */
		return how == 0 || h & 8 ? -1 : EP_EXPERTS + 3;
	return how == 1 ? (int32_t)(seq % EP_EXPERTS) : (int32_t)(h / 16 % EP_EXPERTS);
}

void app_ep_row(uint64_t inc, uint64_t seq, int token, uint16_t *row)
{
	for (int h = 0; h < EP_HIDDEN; h += 4) {
		uint64_t v = sim_hash(inc ^ 0x73, seq * 1024 + (uint64_t)(token * EP_HIDDEN + h));

		memcpy(row + h, &v, sizeof(v));
	}
}

/* A small whole number as bf16: exact, so that only the order of a sum matters. */
uint16_t app_ep_result(uint16_t x, uint64_t owner, int expert, int h)
{
	return cvy_f32_bf16((float)((x ^ sim_hash(owner, (uint64_t)(expert * EP_HIDDEN + h))) & 63));
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
int app_ep_close_by(const struct app_layer *l)
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

	l->tokens = app_ep_tokens(p->inc, seq);
	for (int t = 0; t < l->tokens; t++)
		app_ep_row(p->inc, seq, t, l->x[t]);
	for (int i = 0; i < l->tokens * EP_TOP_K; i++)
		l->ids[i] = app_ep_id(p->inc, seq, i);
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

int app_ep_bin(const struct app_layer *l)
{
	const int el = l->ep->el, of_all = l->ep->size * l->ep->shape.tokens;

	return app_ep_close_by(l) ? of_all * (EP_TOP_K < el ? EP_TOP_K : el) : of_all;
}

int app_ep_local(const struct app_layer *l, int expert)
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
		int le = app_ep_local(l, x), first;

		if (le < 0)
			continue;
		first = app_ep_close_by(l) ? (int)cvy_ep_range_first(l->range[le * l->ep->size]) : le * app_ep_bin(l);
		for (int row = 0; row < l->count[le]; row++) {
			int at = first + row;

			for (int h = 0; h < EP_HIDDEN; h++)
				l->y[at][h] = app_ep_result(l->packed[at][h], p->inc, x, h);
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
