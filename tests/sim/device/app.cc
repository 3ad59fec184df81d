/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications call: the steps of the plan. Each rank calls when it likes, some operations ahead of those that have
 * ended.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

extern "C" {
#include "reduce.h"
}

extern struct process *launching;
static size_t last; /* nobody calls what comes from here on; NONE: it is not known yet */
static uint64_t ahead;

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
	plan_add(o);
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
		((uint16_t *)b->at[Y])[i] = cvy_f32_bf16((float)((i * 37 + (size_t)p->rank * 11) % 509) / 64 - 4);
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
		    plan_hash(o->seed, 2000 + (uint64_t)(std::min(r, rank) * ROOM + std::max(r, rank))) % 4 == 0)
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
	if (!combine && plan_hash(o->seed, 4) % 2) { /* as behind a mask: ids stand in the route */
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

		u.send[r] = plan_pair(o, p->rank, r, &at) * 4;
		u.send_at[r] = ((size_t)r * o->count + at) * 4;
		u.recv[r] = plan_pair(o, r, p->rank, &at) * 4;
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

void app_begin(void)
{
	last = NONE;
	ahead = 1 + sim_below(5);
}
