/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications call: a plan of steps that is alike on all ranks, made as far as somebody has come. A step is a
 * collective, or a dispatch and its combine, in one phase each or in two. Each rank calls when it likes, some operations ahead
 * of those that have ended.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

struct setup setup;
std::deque<struct op> plan;
std::deque<struct step> steps;
extern struct process *launching;
static size_t last; /* nobody calls what comes from here on; NONE: it is not known yet */
static uint64_t ahead;
static int deadlines;

/* By what alone it is of, not by when it is asked for. */
static uint64_t hash(uint64_t a, uint64_t b)
{
	uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xd1342543de82ef95ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static uint16_t bf16(float v)
{
	uint32_t b;

	memcpy(&b, &v, 4);
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

/* ---- the plan ---- */

static int called(const char *name)
{
	return sim.only.empty() || ("," + sim.only + ",").find(std::string(",") + name + ",") != std::string::npos;
}

static void give_ep(struct step *s, uint64_t seed)
{
	size_t tokens = (size_t)setup.shape.tokens, k = (size_t)setup.shape.top_k, hidden = (size_t)setup.shape.hidden;
	int hostile = hash(seed, 1) % 5 == 0, experts = setup.shape.experts / setup.places;

	for (int r = 0; r < setup.size; r++) {
		struct given *g = &s->given[r];
		uint64_t of = hash(seed, (uint64_t)r + 100);

		g->num_tokens = of % 6 ? setup.shape.tokens : (int)(of / 6 % (tokens + 1));
		for (size_t i = 0; i < tokens * hidden; i++)
			g->x.push_back(
				bf16(((float)(hash(of, i) % 2001) - 1000) / (float)(1 << hash(of, i) / 5000 % 12)));
		for (size_t i = 0; i < tokens * k; i++) {
			uint64_t one = hash(of, i + 1000000);

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
			s->given[r].send.push_back((int32_t)(hash(hash(seed, (uint64_t)r), i) & 0xffffff));
}

static void add(struct op o)
{
	o.step = steps.size() - 1;
	plan.push_back(o);
}

static void plan_ep(uint64_t seed)
{
	struct op o = {};

	give_ep(&steps.back(), seed);
	o.timeout_ms = deadlines && !setup.shape.hops && hash(seed, 2) % 2 ? 1 + (int)(hash(seed, 3) % 3) : 0;
	o.seed = seed;
	for (int combine = 0; combine < 2; combine++) {
		o.kind = combine ? CVY_GPU_COMBINE : CVY_GPU_DISPATCH;
		if (setup.split) {
			o.phase = CVY_EP_SEND;
			add(o);
		}
		o.phase = setup.split ? CVY_EP_RECV : CVY_EP_SEND | CVY_EP_RECV;
		add(o);
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
size_t app_pair(const struct op *o, int from, int to, size_t *at)
{
	uint64_t of = hash(o->seed, 1000 + (uint64_t)(from * RANKS + to)), most = o->count - 2;

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
	c->threads = hash(seed, 3) % 2 ? 32 : 64;
	c->rows = sim.tall ? CVY_GPU_ROWS : 1 + (int)(hash(seed, 4) % 2);
	c->lanes = 1 << hash(seed, 5) % 5;
	c->size = setup.size;
	c->root = -1;
	c->dtype = COVEY_INT32;
	tile = cvy_gpu_tile_words(c->packet, c->rows * c->threads) * 2;
	o.count = 2 + tile * (uint64_t)(hash(seed, 6) % 3 ? 1 : hash(seed, 6) % 2 ? c->lanes : 3 * c->lanes);
	give_plain(&steps.back(), o.count, seed);
	add(o);
}

static void plan_plain(uint64_t seed, const struct kind *k)
{
	struct op o = {};
	struct cvy_gpu_call *c = &o.call;
	uint64_t tile, most;

	o.kind = c->kind = k->kind;
	o.seed = seed;
	c->packet = hash(seed, 2) % 3 ? CVY_GPU_LINE : CVY_GPU_PAIR; /* which goes in one step of one row (shape.h) */
	c->threads = hash(seed, 3) % 2 ? 32 : 64;
	c->rows = c->packet == CVY_GPU_PAIR ? 1 : sim.tall ? CVY_GPU_ROWS : 1 + (int)(hash(seed, 4) % 2);
	c->lanes = 1 << hash(seed, 5) % 2;
	c->size = setup.size;
	c->root = k->kind >= CVY_GPU_BROADCAST && k->kind != CVY_GPU_BARRIER
			  ? (int)(hash(seed, 10) % (uint64_t)setup.size)
			  : -1;
	if (c->root >= 0 && c->packet == CVY_GPU_LINE)
		o.kind = c->kind = cvy_gpu_is_reduce(k->kind) ? CVY_GPU_REDUCE_TWO_SHOT : CVY_GPU_BROADCAST_TWO_HOP;
	c->dtype = COVEY_INT32;
	c->redop = COVEY_SUM;
	if ((k->kind <= CVY_GPU_ALLREDUCE_TWO_SHOT || cvy_gpu_is_reduce(k->kind)) && hash(seed, 6) % 3 == 0)
		o.in_place = c->root >= 0 ? 1ull << c->root : hash(seed, 11) % 2 ? hash(seed, 12) : ~0ull;
	tile = cvy_gpu_tile_words(c->packet, c->rows * c->threads) * 2 * (uint64_t)c->lanes;
	most = hash(seed, 8) % 2 || c->packet == CVY_GPU_PAIR ? tile : 3 * tile;
	o.count = k->kind == CVY_GPU_BARRIER ? 0 : 1 + hash(seed, 7) % most;
	if (o.count > tile && !sim.ragged) /* README.md: open */
		o.count = (o.count + tile - 1) / tile * tile;
	give_plain(&steps.back(), o.count, seed);
	add(o);
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
	uint64_t seed = hash(sim.seed, steps.size() + 1), draw = hash(seed, 77) % 10;
	const struct kind *other = sim.uneven ? &uneven : &kinds[0];
	const struct kind *k = sim.uneven && hash(seed, 79) % 2 ? &uneven
			       : sim.hosts || names_reduce()	? draw_of_called(hash(seed, 78))
								: &kinds[hash(seed, 78) % (KINDS - 2)];

	steps.emplace_back();
	steps.back().first = plan.size();
	if ((called("dispatch") || called("combine")) && (draw < 6 || !called(k->name)))
		plan_ep(seed);
	else if ((k = called(k->name) ? k : other) == &uneven)
		plan_uneven(seed);
	else
		plan_plain(seed, k);
}

static void plan_to(size_t op)
{
	while (plan.size() <= op)
		plan_step();
}

static size_t furthest(void)
{
	size_t most = 0;

	for (struct process *p : processes)
		if (p->next != NONE && p->next > most)
			most = p->next;
	return most;
}

static size_t step_after(size_t op)
{
	plan_to(op + 4);
	for (const struct step &s : steps)
		if (s.first >= op)
			return s.first;
	abort();
}

/* What nobody has called yet is put off: the safe point goes before it. */
size_t app_safe_point(const struct covey_result *outcome)
{
	size_t at = step_after(furthest() + sim_below(3));
	struct op o = {};

	while (plan.size() > at)
		plan.pop_back();
	while (!steps.empty() && steps.back().first >= at)
		steps.pop_back();
	steps.emplace_back();
	steps.back().first = at;
	o.kind = CVY_GPU_ADMIT;
	o.admit = *outcome;
	add(o);
	last = NONE;
	for (struct process *p : processes)
		if (p->next == NONE && process_of(p->rank) == p) {
			p->next = p->completed = p->first = at;
			p->outcome.resize(at);
		}
	return at;
}

/* ---- buffers ---- */

int app_bins(int rank, int *el)
{
	*el = setup.tables.first[rank + 1] - setup.tables.first[rank];
	return setup.shape.once || setup.shape.close ? *el > 0 : *el;
}

int app_runs(int rank)
{
	int el, bins = app_bins(rank, &el);

	return setup.shape.close ? el : bins;
}

size_t app_kept(int rank)
{
	const int top_k = setup.shape.top_k;
	int el;

	app_bins(rank, &el);
	return (size_t)setup.size * (size_t)setup.shape.tokens *
	       (size_t)(setup.shape.close ? el < top_k ? el : top_k : 1);
}

static void sizes_ep(struct process *p, struct buffers *b)
{
	const struct cvy_ep_shape_gpu *h = &setup.shape;
	size_t n = (size_t)setup.size, t = (size_t)h->tokens, k = (size_t)h->top_k;
	size_t groups = (size_t)cvy_ep_div(h->hidden, CVY_EP_GROUP), hidden = (size_t)h->hidden;
	int el;
	size_t bins = (size_t)app_bins(p->rank, &el), rows = app_kept(p->rank);

	b->bytes[X] = b->bytes[OUT] = t * hidden * 2;
	b->bytes[IDS] = b->bytes[WEIGHTS] = t * k * 4;
	b->bytes[PACKED] = b->bytes[Y] = bins * rows * hidden * 2;
	b->bytes[SCALES] = bins * rows * groups * 4;
	b->bytes[COUNT] = (size_t)el * 4;
	b->bytes[SRC] = bins * rows * 4;
	b->bytes[RANGE] = (size_t)app_runs(p->rank) * n * 8;
	b->bytes[ROUTE] = cvy_ep_route_bytes(setup.size, h->tokens, h->top_k, setup.places);
	b->bytes[ACTIVE] = n * 4;
	b->bytes[WAITED] = n * 8;
	b->bytes[ARRIVED] = sim.flat && el ? (COVEY_EP_ARRIVED_ROWS + bins * rows) * 4 : 0;
	b->bytes[FLAT] = sim.flat ? bins * rows * 2 * 4 : 0;
	b->bytes[NAMED] = b->bytes[NAMED_WEIGHTS] = h->once ? bins * rows * k * 4 : 0;
}

static void fill_ep(struct process *p, struct buffers *b, const struct given *g)
{
	memcpy(b->at[X], g->x.data(), b->bytes[X]);
	memcpy(b->at[IDS], g->ids.data(), b->bytes[IDS]);
	memcpy(b->at[WEIGHTS], g->weights.data(), b->bytes[WEIGHTS]);
	for (size_t i = 0; i < b->bytes[Y] / 2; i++)
		((uint16_t *)b->at[Y])[i] = bf16((float)((i * 37 + (size_t)p->rank * 11) % 509) / 64 - 4);
	for (int r = 0; r < setup.size; r++)
		((int32_t *)b->at[ACTIVE])[r] = 1;
	memset(b->at[WAITED], 0, b->bytes[WAITED]);
	memset(b->at[ARRIVED], 0, b->bytes[ARRIVED]);
	b->num_tokens = g->num_tokens;
}

/* Parts one after the other, each between canaries. */
static struct buffers *buffers_of(struct process *p, const struct op *o)
{
	const struct given *g = &steps[o->step].given[p->rank];
	struct buffers *b;
	size_t all = CANARY;

	if (p->buffers.size() <= o->step)
		p->buffers.resize(o->step + 1);
	b = &p->buffers[o->step];
	if (!b->memory.empty())
		return b;
	if (!g->x.empty())
		sizes_ep(p, b);
	else
		b->bytes[SEND] = b->bytes[RECV] = g->send.size() * 4;
	for (int i = 0; i < PARTS; i++)
		all += (b->bytes[i] + 15) / 16 * 16 + CANARY;
	b->memory.assign(all + 16, POISON);
	all = (16 - ((uintptr_t)b->memory.data() & 15)) % 16 + CANARY;
	for (int i = 0; i < PARTS; i++) {
		b->at[i] = b->memory.data() + all;
		all += (b->bytes[i] + 15) / 16 * 16 + CANARY;
	}
	if (!g->x.empty())
		fill_ep(p, b, g);
	else if (!g->send.empty())
		memcpy(b->at[SEND], g->send.data(), b->bytes[SEND]);
	return b;
}

/* Whom @rank leaves out of a dispatch and its combine, and they leave it out. */
uint64_t app_left_out(const struct op *o, int rank)
{
	uint64_t set = 0;

	if (!sim.apart || o->timeout_ms || (o->kind != CVY_GPU_DISPATCH && o->kind != CVY_GPU_COMBINE))
		return 0;
	for (int r = 0; r < setup.size; r++)
		if (r != rank &&
		    hash(o->seed, 2000 + (uint64_t)(std::min(r, rank) * ROOM + std::max(r, rank))) % 4 == 0)
			set |= 1ull << r;
	return set;
}

/* ---- calls ---- */

static int call_ep(struct process *p, const struct op *o, struct buffers *b)
{
	struct cvy_ep_args a = {};
	size_t items = cvy_ep_route_items(setup.size, setup.shape.tokens, setup.shape.top_k);
	int combine = o->kind == CVY_GPU_COMBINE;

	a.call.kind = o->kind;
	a.call.size = setup.size;
	a.form = setup.form[combine];
	a.state = p->state;
	a.tokens = setup.shape.tokens;
	a.hidden = setup.shape.hidden;
	a.top_k = setup.shape.top_k;
	a.experts = setup.shape.experts;
	app_bins(p->rank, &a.el);
	a.num_tokens = b->num_tokens;
	a.code = setup.shape.code;
	a.fp16 = setup.fp16;
	a.once = setup.shape.once;
	a.hops = setup.shape.hops;
	a.per_rank = setup.shape.per_rank || setup.shape.once;
	a.phases = o->phase;
	a.x = b->at[X];
	a.ids = (int32_t *)b->at[IDS];
	a.weights = (float *)b->at[WEIGHTS];
	a.packed = b->at[PACKED];
	a.scales = (float *)b->at[SCALES];
	a.count = (int32_t *)b->at[COUNT];
	a.src_info = (int32_t *)b->at[SRC];
	a.range = (int64_t *)b->at[RANGE];
	a.recv_experts = (int32_t *)b->at[NAMED];
	a.recv_weights = (float *)b->at[NAMED_WEIGHTS];
	a.lost = (cvy_ranks *)b->at[ROUTE];
	a.route = (int32_t *)(b->at[ROUTE] + CVY_EP_ROUTE_HEAD);
	a.route_weights = (float *)(a.route + items);
	a.sent = a.route + 2 * items;
	a.active = (o->timeout_ms && !combine) || sim.apart ? (int32_t *)b->at[ACTIVE] : NULL;
	for (int r = 0; r < setup.size && sim.apart; r++)
		((int32_t *)b->at[ACTIVE])[r] = !(app_left_out(o, p->rank) >> r & 1);
	a.waited = (uint64_t *)b->at[WAITED];
	a.timeout_ms = o->timeout_ms;
	if (combine) {
		a.renormalise = setup.renormalise;
		a.back = setup.shape.back;
		if (setup.shape.close && a.el > a.top_k) /* as the library */
			a.el = a.top_k;
		a.y = b->at[Y];
		a.out = b->at[OUT];
	} else {
		a.places = setup.places;
		a.close = setup.shape.close;
		a.flat = b->bytes[FLAT] ? (int32_t *)b->at[FLAT] : NULL;
		a.arrived = b->bytes[ARRIVED] ? (uint32_t *)b->at[ARRIVED] : NULL;
	}
	if (!combine && hash(o->seed, 4) % 2) { /* as behind a mask: ids stand in the route */
		int32_t *left = a.sent + (setup.places > 1 ? a.tokens * a.top_k : 0);

		if (o->phase & CVY_EP_SEND)
			memcpy(left, a.ids, b->bytes[IDS]);
		a.ids = left;
	}
	return cvy_device_ep_run(p->device, &a, NULL, NULL, NULL);
}

size_t app_row_bytes(void)
{
	return (size_t)setup.shape.hidden * (setup.shape.code ? 1 : 2);
}

/*
 * As another kernel would, while the dispatch runs: takes some of the rows that are announced. Counts and entries that are
 * announced are none that no attempt has written, also where rows are placed anew: a reader goes to memory by them.
 */
static void look_at_rows(struct process *p, size_t op)
{
	struct buffers *b = &p->buffers[plan[op].step];
	const uint32_t *arrived = (const uint32_t *)b->at[ARRIVED];
	const size_t row = app_row_bytes();

	if (!p->alive || p->completed > op)
		return;
	check_announced(p, op);
	for (size_t i = 0; !arrived[COVEY_EP_ARRIVED_AGAIN] && i < b->bytes[ARRIVED] / 4 - COVEY_EP_ARRIVED_ROWS; i++)
		if (arrived[COVEY_EP_ARRIVED_ROWS + i] == COVEY_EP_ARRIVED && sim_odds(4))
			b->seen.push_back({ i, { b->at[PACKED] + i * row, b->at[PACKED] + (i + 1) * row } });
	sim_after(sim_below(4 * US), [p, op] { look_at_rows(p, op); });
}

static int call_plain(struct process *p, const struct op *o, struct buffers *b)
{
	struct cvy_gpu_call c = o->call;

	c.rank = p->rank;
	c.bytes = o->count * 4;
	c.send = b->at[SEND];
	c.in_place = (int)(o->in_place >> p->rank & 1);
	c.recv = c.in_place ? b->at[SEND] : b->at[RECV];
	cvy_gpu_derive(&c);
	c.levels = sim.hosts && cvy_gpu_can_levels(&c) && cvy_device_takes_levels(p->device);
	return p->device->ops->launch(p->device->gpu, &c, NULL);
}

static int call_uneven(struct process *p, const struct op *o, struct buffers *b)
{
	struct cvy_gpu_uneven u = {};

	u.call = o->call;
	u.call.rank = p->rank;
	u.call.send = b->at[SEND];
	u.call.recv = b->at[RECV];
	for (int r = 0; r < setup.size; r++) {
		size_t at;

		u.send[r] = app_pair(o, p->rank, r, &at) * 4;
		u.send_at[r] = ((size_t)r * o->count + at) * 4;
		u.recv[r] = app_pair(o, r, p->rank, &at) * 4;
		u.recv_at[r] = ((size_t)r * o->count + at) * 4;
		u.call.bytes = std::max(u.call.bytes, u.send[r]);
	}
	cvy_gpu_derive(&u.call);
	return p->device->ops->launch(p->device->gpu, &u.call, NULL);
}

static void ended(struct process *p, size_t op)
{
	struct launch *l = p->stream.front();

	p->stream.pop_front();
	delete l;
	p->running = 0;
	if (p->lingers) {
		if (plan[op].kind == CVY_GPU_DISPATCH && !steps[plan[op].step].dispatched[p->rank])
			steps[plan[op].step].dispatched[p->rank] = p; /* its combine may be what others have of it */
		stream_pump(p);
		return;
	}
	p->completed = p->stream.empty() ? p->next : op + 1;
	if (p->outcome.size() <= op)
		p->outcome.resize(op + 1);
	check_ended(p, op);
	faults_on_end(p, op);
	stream_pump(p);
	app_run(p);
}

static void call(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	struct buffers *b = buffers_of(p, o);
	size_t before = p->stream.size();
	int err;

	launching = p;
	if (o->kind == CVY_GPU_ADMIT)
		err = cvy_device_admit(p->device, &o->admit, NULL);
	else if (o->kind == CVY_GPU_DISPATCH || o->kind == CVY_GPU_COMBINE)
		err = call_ep(p, o, b);
	else if (o->kind == CVY_GPU_ALLTOALLV)
		err = call_uneven(p, o, b);
	else
		err = call_plain(p, o, b);
	if (!err && o->kind == CVY_GPU_ADMIT && p->stream.size() == before) { /* it lets nobody in who is not */
		if (!before)
			p->completed = p->next;
		return;
	}
	if (err || p->stream.size() != before + 1) {
		if (p->out == OUT_NOT)
			sim_fail("G5", "rank %d cannot call operation %zu: %d", p->rank, op, err);
		return;
	}
	sim_tell("rank %d.%d calls %zu, kind %d", p->rank, (int)p->inc, op, o->kind);
	p->stream.back()->ended = [p, op] { ended(p, op); };
	if (o->kind == CVY_GPU_DISPATCH && o->phase & CVY_EP_RECV && b->bytes[ARRIVED])
		sim_after(sim_below(4 * US), [p, op] { look_at_rows(p, op); });
	stream_pump(p);
	faults_on_progress(p, op);
}

/* Not before the safe point's outcome can be known, nor when all has been called. */
static int may_call(struct process *p)
{
	if (last == NONE && faults_over() && members_settled() && view.active && !view.pending)
		last = step_after(furthest() + 4);
	plan_to(p->next);
	return p->next < last &&
	       !(plan[p->next].kind == CVY_GPU_ADMIT && p->device->epoch < plan[p->next].admit.epoch) &&
	       p->device->epoch && p->next < p->completed + ahead;
}

static void call_next(struct process *p)
{
	p->launching = 0;
	if (!p->alive || p->stopped || p->out == OUT_TOLD || p->device->ended || p->quits == QUITS)
		return;
	if (p->stalled_until > sim.now || !may_call(p)) {
		p->launching = 1;
		sim_after(20 * US + sim_below(100 * US), [p] { call_next(p); });
		return;
	}
	call(p, p->next++);
	app_run(p);
}

void app_run(struct process *p)
{
	if (p->launching || p->next == NONE)
		return;
	p->launching = 1;
	sim_after(sim_odds(8) ? sim_below(100 * US) : sim_below(8 * US), [p] { call_next(p); });
}

static int nobody_is_left(void)
{
	for (const struct process *p : processes)
		if (p->alive && p->out == OUT_NOT)
			return 0;
	return 1;
}

int app_over(void)
{
	if (nobody_is_left())
		return 1;
	if (last == NONE || !members_settled())
		return 0;
	for (int r = 0; r < setup.size; r++)
		if (process_of(r) && process_of(r)->completed < last)
			return 0;
	return 1;
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
	const int32_t lines = cvy_ep_div(f->row_words, CVY_EP_LINE_WORDS);

	f->per_step = 1;
	f->header_lines = f->entry_words ? cvy_ep_div(1 + f->count_words + f->entry_words, CVY_EP_LINE_PACKETS) : 1;
	if (f->across) {
		const int32_t most = (CVY_EP_STEP_LINES - f->header_lines) / f->rows;

		f->slice_lines = lines < most ? lines : most;
		f->slices = cvy_ep_div(lines, f->slice_lines);
	}
	f->across = 0;
	f->apart = f->lanes;
	f->steps = cvy_ep_div(setup.shape.tokens, f->lanes) * f->slices;
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

	memcpy(setup.host, hosts[hash(sim.seed, 9) % 8], sizeof(setup.host));
}

void app_begin(int n)
{
	struct cvy_ep_shape_gpu *h = &setup.shape;

	plan.clear();
	steps.clear();
	last = NONE;
	ahead = 1 + sim_below(5);
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
	if (sim_odds(5) | sim.steps) {
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

void app_end(void)
{
	plan.clear();
	steps.clear();
}
