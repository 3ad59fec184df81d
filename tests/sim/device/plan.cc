/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of steps, which is alike on all ranks and made as far as somebody has come, and the shapes that a seed has. A step is
 * a collective, or a dispatch and its combine, in one phase each or in two.
 */
#include "device.h"

#include <string.h>

extern "C" {
#include "reduce.h"
}

struct setup setup;
std::deque<struct op> plan;
std::deque<struct step> steps;
static int deadlines;

uint64_t plan_hash(uint64_t a, uint64_t b)
{
	uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xd1342543de82ef95ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static int called(const char *name)
{
	return sim.only.empty() || ("," + sim.only + ",").find(std::string(",") + name + ",") != std::string::npos;
}

static void give_ep(struct step *s, uint64_t seed)
{
	size_t tokens = (size_t)setup.shape.tokens, k = (size_t)setup.shape.top_k, hidden = (size_t)setup.shape.hidden;
	int hostile = plan_hash(seed, 1) % 5 == 0, experts = setup.shape.experts / setup.places;

	for (int r = 0; r < setup.size; r++) {
		struct given *g = &s->given[r];
		uint64_t of = plan_hash(seed, (uint64_t)r + 100);

		g->num_tokens = of % 6 ? setup.shape.tokens : (int)(of / 6 % (tokens + 1));
		for (size_t i = 0; i < tokens * hidden; i++)
			g->x.push_back(cvy_f32_bf16(((float)(plan_hash(of, i) % 2001) - 1000) /
						    (float)(1 << plan_hash(of, i) / 5000 % 12)));
		for (size_t i = 0; i < tokens * k; i++) {
			uint64_t one = plan_hash(of, i + 1000000);

			g->ids.push_back(one % 16 < 1		   ? -1
					 : hostile && one % 16 < 4 ? experts + (int32_t)(one >> 40)
								   : (int32_t)(one / 16 % (uint64_t)experts));
			g->weights.push_back((float)(one >> 8 & 1023) / 999);
		}
	}
}

static void give_plain(struct step *s, size_t count, uint64_t seed)
{
	for (int r = 0; r < setup.size; r++)
		for (size_t i = 0; i < count * (size_t)setup.size; i++)
			s->given[r].send.push_back((int32_t)(plan_hash(plan_hash(seed, (uint64_t)r), i) & 0xffffff));
}

void plan_add(struct op o)
{
	o.step = steps.size() - 1;
	plan.push_back(o);
}

static void plan_ep(uint64_t seed)
{
	struct op o = {};

	give_ep(&steps.back(), seed);
	o.timeout_ms = deadlines && !setup.shape.hops && plan_hash(seed, 2) % 2 ? 1 + (int)(plan_hash(seed, 3) % 3) : 0;
	o.seed = seed;
	for (int combine = 0; combine < 2; combine++) {
		o.kind = combine ? CVY_GPU_COMBINE : CVY_GPU_DISPATCH;
		if (setup.split) {
			o.phase = CVY_EP_SEND;
			plan_add(o);
		}
		o.phase = setup.split ? CVY_EP_RECV : CVY_EP_SEND | CVY_EP_RECV;
		plan_add(o);
	}
}

static const struct kind {
	const char *name;
	int kind;
} kinds[] = {
	{ "allreduce", CVY_GPU_ALLREDUCE }, { "two-shot", CVY_GPU_ALLREDUCE_TWO_SHOT },
	{ "allgather", CVY_GPU_ALLGATHER }, { "reduce_scatter", CVY_GPU_REDUCE_SCATTER },
	{ "alltoall", CVY_GPU_ALLTOALL },   { "barrier", CVY_GPU_BARRIER },
	{ "broadcast", CVY_GPU_BROADCAST }, /* with --hosts alone: each seed stays the run that it was */
	{ "reduce", CVY_GPU_REDUCE },	    /* where it is named */
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static int names_reduce(void)
{
	return !sim.only.empty() && called("reduce");
}

static const struct kind uneven = { "alltoallv", CVY_GPU_ALLTOALLV };

/*
 * Some pairs have nothing for each other, and some of the others words for the first lane alone. Blocks begin where words of 8
 * bytes do, or not.
 */
size_t plan_pair(const struct op *o, int from, int to, size_t *at)
{
	uint64_t of = plan_hash(o->seed, 1000 + (uint64_t)(from * RANKS + to)), most = o->count - 2;

	*at = of % 3;
	if (of / 3 % 4 == 0)
		return 0;
	return 1 + of / 12 % (of / 3 % 4 == 1 && most > 40 ? 40 : most);
}

/* The form is one for all (shape.h), here with fewer threads and lanes. */
static void plan_uneven(uint64_t seed)
{
	struct op o = {};
	struct cvy_gpu_call *c = &o.call;
	uint64_t tile;

	o.kind = c->kind = CVY_GPU_ALLTOALLV;
	o.seed = seed;
	c->packet = CVY_GPU_LINE;
	c->threads = plan_hash(seed, 3) % 2 ? 32 : 64;
	c->rows = sim.tall ? CVY_GPU_ROWS : 1 + (int)(plan_hash(seed, 4) % 2);
	c->lanes = 1 << plan_hash(seed, 5) % 5;
	c->size = setup.size;
	c->root = -1;
	c->dtype = COVEY_INT32;
	tile = cvy_gpu_tile_words(c->packet, c->rows * c->threads) * 2;
	o.count = 2 + tile * (uint64_t)(plan_hash(seed, 6) % 3 ? 1 : plan_hash(seed, 6) % 2 ? c->lanes : 3 * c->lanes);
	give_plain(&steps.back(), o.count, seed);
	plan_add(o);
}

static void plan_plain(uint64_t seed, const struct kind *k)
{
	struct op o = {};
	struct cvy_gpu_call *c = &o.call;
	uint64_t tile, most;

	o.kind = c->kind = k->kind;
	o.seed = seed;
	c->packet =
		plan_hash(seed, 2) % 3 ? CVY_GPU_LINE : CVY_GPU_PAIR; /* which goes in one step of one row (shape.h) */
	c->threads = plan_hash(seed, 3) % 2 ? 32 : 64;
	c->rows = c->packet == CVY_GPU_PAIR ? 1 : sim.tall ? CVY_GPU_ROWS : 1 + (int)(plan_hash(seed, 4) % 2);
	c->lanes = 1 << plan_hash(seed, 5) % 2;
	c->size = setup.size;
	c->root = k->kind >= CVY_GPU_BROADCAST && k->kind != CVY_GPU_BARRIER
			  ? (int)(plan_hash(seed, 10) % (uint64_t)setup.size)
			  : -1;
	if (c->root >= 0 && c->packet == CVY_GPU_LINE)
		o.kind = c->kind = cvy_gpu_is_reduce(k->kind) ? CVY_GPU_REDUCE_TWO_SHOT : CVY_GPU_BROADCAST_TWO_HOP;
	c->dtype = COVEY_INT32;
	c->redop = COVEY_SUM;
	if ((k->kind <= CVY_GPU_ALLREDUCE_TWO_SHOT || cvy_gpu_is_reduce(k->kind)) && plan_hash(seed, 6) % 3 == 0)
		o.in_place = c->root >= 0 ? 1ull << c->root : plan_hash(seed, 11) % 2 ? plan_hash(seed, 12) : ~0ull;
	tile = cvy_gpu_tile_words(c->packet, c->rows * c->threads) * 2 * (uint64_t)c->lanes;
	most = plan_hash(seed, 8) % 2 || c->packet == CVY_GPU_PAIR ? tile : 3 * tile;
	o.count = k->kind == CVY_GPU_BARRIER ? 0 : 1 + plan_hash(seed, 7) % most;
	if (o.count > tile && !sim.ragged) /* README.md: open */
		o.count = (o.count + tile - 1) / tile * tile;
	give_plain(&steps.back(), o.count, seed);
	plan_add(o);
}

/* With --hosts, and where reduce is named: one of those that are called. */
static const struct kind *draw_of_called(uint64_t draw)
{
	const struct kind *some[KINDS];
	size_t some_n = 0;

	for (const struct kind &k : kinds)
		if (called(k.name) && (k.kind != CVY_GPU_REDUCE || names_reduce()))
			some[some_n++] = &k;
	return some_n ? some[draw % some_n] : &kinds[0];
}

static void plan_step(void)
{
	uint64_t seed = plan_hash(sim.seed, steps.size() + 1), draw = plan_hash(seed, 77) % 10;
	const struct kind *other = sim.uneven ? &uneven : &kinds[0];
	const struct kind *k = sim.uneven && plan_hash(seed, 79) % 2 ? &uneven
			       : sim.hosts || names_reduce()	     ? draw_of_called(plan_hash(seed, 78))
								     : &kinds[plan_hash(seed, 78) % (KINDS - 2)];

	steps.emplace_back();
	steps.back().first = plan.size();
	if ((called("dispatch") || called("combine")) && (draw < 6 || !called(k->name)))
		plan_ep(seed);
	else if ((k = called(k->name) ? k : other) == &uneven)
		plan_uneven(seed);
	else
		plan_plain(seed, k);
}

void plan_to(size_t op)
{
	while (plan.size() <= op)
		plan_step();
}

/* ---- set up ---- */

static void tables_of(struct cvy_ep_tables *t)
{
	int at = 0;

	memset(t, 0, sizeof(*t));
	memset(t->owner, 0xff, sizeof(t->owner)); /* CVY_EP_NOBODY */
	for (int r = 0; r < setup.size; r++) {
		t->first[r] = (uint16_t)at;
		for (int e = 0; e < setup.shape.experts; e++) {
			if (setup.owner[e] != r)
				continue;
			t->owner[e] = (uint8_t)r;
			t->local[e] = (uint16_t)(at++ - t->first[r]);
		}
		t->first[r + 1] = (uint16_t)at;
		if (at - t->first[r] > setup.shape.most_local)
			setup.shape.most_local = at - t->first[r];
	}
}

/* As cvy_ep_form_of() has it, but with more steps than so few bytes need. */
static void more_steps(struct cvy_ep_form *f)
{
	const int32_t across = sim.pieces;
	const int32_t lines = cvy_ep_div(cvy_ep_div(f->row_words, CVY_EP_LINE_WORDS), 1 << across);

	f->per_step = 1;
	f->header_lines = f->entry_words ? cvy_ep_div(1 + f->count_words + f->entry_words, CVY_EP_LINE_PACKETS) : 1;
	if (f->across || across) {
		const int32_t most = (CVY_EP_STEP_LINES - f->header_lines) / f->rows;

		f->slice_lines = lines < most ? lines : most;
		f->slices = cvy_ep_div(lines, f->slice_lines);
	}
	f->across = across;
	f->apart = f->lanes >> across;
	f->steps = cvy_ep_div(setup.shape.tokens, f->apart) * f->slices;
	cvy_ep_bulk_of(&setup.shape, f == &setup.form[1], f);
}

/* One of four experts has the first place alone. */
static void double_places(void)
{
	setup.places = 2;
	for (int e = setup.shape.experts - 1; e >= 0; e--) {
		const int first = setup.owner[e];

		setup.owner[2 * e] = first;
		setup.owner[2 * e + 1] = e % 4 == 3 ? -1 : (first + 1 + e % (setup.size - 1)) % setup.size;
	}
	setup.shape.experts *= 2;
}

/* Two or three of four ranks are neighbours, or none are. */
static void place_ranks(void)
{
	static const uint8_t hosts[][RANKS] = { { 0, 0, 1, 1 }, { 0, 1, 0, 1 }, { 0, 0, 0, 1 }, { 1, 0, 0, 0 },
						{ 0, 0, 1, 2 }, { 0, 1, 1, 0 }, { 0, 1, 2, 3 }, { 0, 0, 1, 1 } };

	memcpy(setup.host, hosts[plan_hash(sim.seed, 9) % 8], sizeof(setup.host));
}

void plan_begin(int n)
{
	struct cvy_ep_shape_gpu *h = &setup.shape;

	plan.clear();
	steps.clear();
	deadlines = sim_odds(5) || sim.late;
	setup = {};
	setup.size = n;
	setup.lanes = (sim.wide ? 4 : 1) + (sim.wide ? 3 : 2) * (int)sim_below(2);
	setup.split = sim_odds(4);
	setup.resident = 1 + (int)sim_below((uint64_t)setup.lanes);
	h->tokens = 1 + (int32_t)sim_below(4);
	h->hidden = 64 * (1 + (int32_t)sim_below(3));
	h->top_k = 1 + (int32_t)sim_below(4);
	h->experts = n * (1 + (int32_t)sim_below(3));
	h->size = n;
	h->code = sim_odds(3);
	h->per_rank = sim_odds(2);
	h->once = sim_odds(5);
	h->hops = sim.hops;
	h->once |= h->hops;
	h->close = sim.close && !h->once;
	if (sim.bulk) {
		h->once = 1;
		setup.lanes = 1 + setup.lanes % 2;
		setup.resident = setup.resident < setup.lanes ? setup.resident : setup.lanes;
		h->tokens += 2 * setup.lanes;
	}
	if (sim.steps) {
		setup.lanes = setup.resident = 1;
		h->tokens = 2 + h->tokens % 3;
	}
	if (sim.pieces) {
		setup.lanes = setup.resident = 2;
		h->tokens = 2 + h->tokens % 3;
	}
	if (h->code && h->hidden == 192)
		h->hidden = 384;   /* rows and scales in whole 16 bytes: they can go by bulk */
	setup.fp16 = h->top_k % 2; /* not drawn: each seed stays the run that it was */
	if (h->code && h->tokens % 2)
		h->code = CVY_EP_E4M3_POW2;
	setup.renormalise = sim_odds(2) && !h->per_rank && !h->once; /* the oracle has it there */
	for (int e = 0; e < h->experts; e++)
		setup.owner[e] = sim_odds(4) ? (int)sim_below((uint64_t)n) : e % n;
	setup.places = 1;
	if (sim.places)
		double_places();
	if (sim.hops)
		place_ranks();
	tables_of(&setup.tables);
	cvy_ep_form_of(h, setup.lanes, 0, &setup.form[0]);
	cvy_ep_form_of(h, setup.lanes, 1, &setup.form[1]);
	if (sim_odds(5) | sim.steps | sim.pieces) {
		more_steps(&setup.form[0]);
		more_steps(&setup.form[1]);
	}
	sim_tell("%d ranks, lanes %d resident %d split %d; tokens %d hidden %d top %d of %d, fp8 %d fp16 %d "
		 "per rank %d once %d close %d renormalise %d, steps %d and %d, bulk %d and %d, hosts %d %d %d %d",
		 n, setup.lanes, setup.resident, setup.split, h->tokens, h->hidden, h->top_k, h->experts, h->code,
		 setup.fp16, h->per_rank, h->once, h->close, setup.renormalise, setup.form[0].steps,
		 setup.form[1].steps, setup.form[0].bulk, setup.form[1].bulk, setup.host[0], setup.host[1],
		 setup.host[2], setup.host[3]);
}

void plan_end(void)
{
	plan.clear();
	steps.clear();
}
