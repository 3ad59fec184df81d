/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of dispatch and combine work with: set-ups by chance, buffers of ranks on both sides with canaries around
 * them, and launches.
 */
#ifndef EP_WORLD_CUH
#define EP_WORLD_CUH

#include <cuda_fp16.h>

#include "ep_call.h"
#include "ep_oracle.h"
#include "ep_outputs.h"
#include "ep_places.h"
#include "world.cuh"

/* Bytes of the two largest buffers; others have a quarter. Times want more rows than checks. */
static size_t room_bytes = (size_t)256 << 20;
#define POISON 0xc5
#define BEHIND ((size_t)4 << 20) /* for the places of all set-ups: a rank has one state */

extern "C" const struct cvy_gpu_ep_ops cvy_gpu_ep_ops;

enum routing { RANDOM, SKEWED, EMPTY, ONE_EXPERT, HOSTILE, ROUTINGS };

static int failures, checks, devices;
static uint64_t seed;

struct part { /* device and host side of one buffer */
	uint8_t *device, *host;
	size_t bytes;
};

enum {
	X,
	X_SCALES,
	SMOOTH,
	IDS,
	IDS64,
	WEIGHTS,
	PACKED,
	SCALES,
	COUNT,
	SRC,
	RANGE,
	ROUTE,
	Y,
	OUT,
	ACTIVE,
	WAITED,
	NAMED,
	NAMED_WEIGHTS,
	MASK,
	EXPERT_TOKENS,
	RECV_COUNTS,
	TRIPLETS,
	FLAT,
	ARRIVED,
	EXPERT_SCALE,
	PLACED,
	PARTS
};

static struct side {
	struct part part[PARTS];
	uint8_t *got;
	struct cvy_ep_state *state;
	int num_tokens, el;
	int bins;    /* of rows: its experts, or one */
	int runs;    /* of rows of each source: its experts, or one */
	size_t kept; /* rows of a bin */
} side[RANKS];

struct setup {
	struct cvy_ep_shape_gpu shape;
	struct cvy_ep_form dispatch, combine; /* dispatch: with or without smooth */
	int owner[CVY_EP_EXPERTS];	      /* of shape.experts places */
	int places;			      /* of an expert; 0: one */
	uint32_t living;		      /* contributors of the dispatch; 0: all whose parts are there */
	int lanes, split, renormalise, timeout_ms;
	int fp16;	 /* elements, else bf16 */
	int odd;	 /* some elements are NaN, infinite or subnormal, and sums of fp16 overflow */
	int smooth;	 /* elements are multiplied by factors of their expert */
	uint32_t given;	 /* ranks that have x in e4m3 */
	uint32_t wide;	 /* ranks that have ids in int64 */
	uint32_t masked; /* ranks that have a mask, of so many columns */
	int mask_columns;
	uint32_t asked; /* outputs beside the usual: a bit for each part from EXPERT_TOKENS on */
	int sums, alignment, fill_tail;
	int scaled; /* results are multiplied by factors of their expert */
	enum routing routing;
};

static inline int asks(const struct setup *s, int which)
{
	return s->asked >> (which - EXPERT_TOKENS) & 1 && !(which == RECV_COUNTS && s->shape.once);
}

static inline int experts_of(const struct setup *s)
{
	return s->shape.experts / (s->places > 1 ? s->places : 1);
}

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t n)
{
	return (next_random() >> 20) % n;
}

static inline int32_t route(const struct setup *s, int k)
{
	uint64_t r = next_random() >> 8;

	switch (s->routing) {
	case SKEWED:
		return r % 4 ? 0 : (int32_t)(r / 7 % (uint64_t)experts_of(s));
	case ONE_EXPERT:
		return k ? -1 : experts_of(s) - 1;
	case HOSTILE:
		if (r % 5 == 0)
			return -1 - (int32_t)(r % 1000);
		return r % 5 == 1 ? experts_of(s) + (int32_t)(r % 100000)
				  : (int32_t)(r % (uint64_t)(experts_of(s) > 1 ? 2 : 1));
	default:
		return (int32_t)(r % (uint64_t)experts_of(s));
	}
}

/*
 * The same ids in int64. Some of them are beyond int32, with the low word of an expert; in int32 these are -1, as the
 * oracle has them.
 */
static inline void widen(const struct setup *s, int32_t *ids, int64_t *wide, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const int64_t expert = (int64_t)below((uint64_t)experts_of(s));

		switch (below(16)) {
		case 0:
			wide[i] = expert + ((int64_t)1 << 32);
			break;
		case 1:
			wide[i] = INT64_MIN + expert;
			break;
		case 2:
			wide[i] = expert - ((int64_t)1 << 32);
			break;
		default:
			wide[i] = ids[i];
			continue;
		}
		ids[i] = -1;
	}
}

static uint16_t bf16(float v)
{
	uint32_t b;

	memcpy(&b, &v, 4);
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static uint16_t fp16(float v)
{
	return __half_as_ushort(__float2half_rn(v));
}

/* An element of about @v. In an odd set-up one of a hundred has any bits, and fp16 is so large that sums overflow. */
static inline uint16_t element(const struct setup *s, float v)
{
	if (s->odd && below(100) == 0)
		return (uint16_t)below(65536);
	if (s->odd && s->fp16)
		v *= 5000;
	return s->fp16 ? fp16(v) : bf16(v);
}

/* ---- buffers ---- */

static inline void size_part(struct side *d, int which, size_t bytes)
{
	if (bytes > room_bytes / (which == PACKED || which == Y ? 1 : 4)) {
		fprintf(stderr, "part %d takes %zu bytes\n", which, bytes);
		exit(1);
	}
	d->part[which].bytes = bytes;
}

static inline void make_room(void)
{
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		for (int i = 0; i < PARTS; i++) {
			size_t bytes = room_bytes / (i == PACKED || i == Y ? 1 : 4) + 2 * CANARY;

			CUDA(cudaMalloc(&side[r].part[i].device, bytes));
			side[r].part[i].host = (uint8_t *)malloc(bytes);
		}
		side[r].got = (uint8_t *)malloc(room_bytes + 2 * CANARY);
	}
}

static uint8_t *device_at(int r, int which)
{
	return side[r].part[which].device + CANARY;
}

static uint8_t *host_at(int r, int which)
{
	return side[r].part[which].host + CANARY;
}

/* A copy from pageable memory may return before it has ended, a memset does: and the streams of ranks wait for neither. */
static inline void poison(int r, int which)
{
	CUDA(cudaMemset(side[r].part[which].device, POISON, side[r].part[which].bytes + 2 * CANARY));
	CUDA(cudaStreamSynchronize(NULL));
	memset(side[r].part[which].host, POISON, side[r].part[which].bytes + 2 * CANARY);
}

static inline void upload(int r, int which)
{
	CUDA(cudaMemcpy(device_at(r, which), host_at(r, which), side[r].part[which].bytes, cudaMemcpyHostToDevice));
	CUDA(cudaStreamSynchronize(NULL));
}

/* ---- what both sides know ---- */

static inline void tables_of(const struct setup *s, struct cvy_ep_tables *t)
{
	int at = 0;

	memset(t, 0, sizeof(*t));
	memset(t->owner, 0xff, sizeof(t->owner)); /* CVY_EP_NOBODY */
	for (int r = 0; r < n; r++) {
		int local = 0;

		t->first[r] = (uint16_t)at;
		for (int e = 0; e < s->shape.experts; e++) {
			if (s->owner[e] != r)
				continue;
			t->owner[e] = (uint8_t)r;
			t->local[e] = (uint16_t)local++;
			at++;
		}
		t->first[r + 1] = (uint16_t)at;
	}
}

static struct oracle oracle_of(const struct setup *s, uint32_t members)
{
	struct oracle o = {};

	o.size = n;
	o.tokens = s->shape.tokens;
	o.hidden = s->shape.hidden;
	o.top_k = s->shape.top_k;
	o.experts = experts_of(s);
	o.places = s->places;
	o.living = s->living;
	o.owner = s->owner;
	o.members = members;
	o.per_rank = s->shape.per_rank;
	o.renormalise = s->renormalise;
	o.code = s->shape.code;
	o.back = s->shape.back;
	o.dtype = s->fp16 ? COVEY_FLOAT16 : COVEY_BFLOAT16;
	o.preset = s->shape.once ? COVEY_EP_COMPACT : s->shape.close ? COVEY_EP_WIN : COVEY_EP_LL;
	o.host = s->shape.hops ? hosts : NULL;
	o.mask_columns = s->mask_columns;
	o.sums = s->sums;
	o.alignment = s->alignment;
	o.fill_tail = s->fill_tail;
	for (int r = 0; r < n; r++) {
		struct oracle_rank *k = &o.rank[r];

		k->num_tokens = side[r].num_tokens;
		k->x = host_at(r, X);
		k->x_scales = s->given >> r & 1 ? (float *)host_at(r, X_SCALES) : NULL;
		k->smooth = s->smooth ? (float *)host_at(r, SMOOTH) : NULL;
		k->ids = (int32_t *)host_at(r, IDS);
		k->weights = (float *)host_at(r, WEIGHTS);
		k->packed = (uint16_t *)host_at(r, PACKED);
		k->count = (int32_t *)host_at(r, COUNT);
		k->src_info = (int32_t *)host_at(r, SRC);
		k->range = (int64_t *)host_at(r, RANGE);
		k->scales = (float *)host_at(r, SCALES);
		k->recv_experts = (int32_t *)host_at(r, NAMED);
		k->recv_weights = (float *)host_at(r, NAMED_WEIGHTS);
		k->mask = s->masked >> r & 1 ? host_at(r, MASK) : NULL;
		k->expert_tokens = asks(s, EXPERT_TOKENS) ? (int64_t *)host_at(r, EXPERT_TOKENS) : NULL;
		k->recv_counts = asks(s, RECV_COUNTS) ? (int32_t *)host_at(r, RECV_COUNTS) : NULL;
		k->triplets = asks(s, TRIPLETS) ? (int32_t *)host_at(r, TRIPLETS) : NULL;
		k->flat = asks(s, FLAT) ? (int32_t *)host_at(r, FLAT) : NULL;
		k->placed = s->places > 1 ? (int32_t *)host_at(r, PLACED) : NULL;
		k->y = (uint16_t *)host_at(r, Y);
		k->expert_scale = s->scaled ? (float *)host_at(r, EXPERT_SCALE) : NULL;
		k->out = (uint16_t *)host_at(r, OUT);
	}
	return o;
}

/* @el: experts of the rank. */
static inline void size_parts(const struct setup *s, struct side *d, size_t el)
{
	const struct cvy_ep_shape_gpu *h = &s->shape;
	const size_t k = (size_t)h->top_k, t = (size_t)h->tokens, groups = (size_t)cvy_ep_div(h->hidden, CVY_EP_GROUP);
	const size_t bins = h->once || h->close ? el > 0 : el, runs = h->once ? bins : el;
	const size_t rows = (size_t)n * t * (h->close ? k < el ? k : el : 1);

	d->el = (int)el;
	d->bins = (int)bins;
	d->runs = (int)runs;
	d->kept = rows;
	size_part(d, X, t * (size_t)h->hidden * 2);
	size_part(d, X_SCALES, t * groups * 4);
	size_part(d, SMOOTH, (size_t)s->smooth * (size_t)h->experts * (size_t)h->hidden * 4);
	size_part(d, IDS, t * k * 4);
	size_part(d, IDS64, t * k * 8);
	size_part(d, WEIGHTS, t * k * 4);
	size_part(d, PACKED, bins * rows * (size_t)h->hidden * 2);
	size_part(d, SCALES, bins * rows * groups * 4);
	size_part(d, COUNT, el * 4);
	size_part(d, SRC, bins * rows * 4);
	size_part(d, RANGE, runs * (size_t)n * 8);
	size_part(d, ROUTE, cvy_ep_route_bytes(n, h->tokens, h->top_k, s->places));
	size_part(d, Y, bins * rows * (size_t)h->hidden * 2);
	size_part(d, OUT, t * (size_t)h->hidden * 2);
	size_part(d, ACTIVE, (size_t)n * 4);
	size_part(d, WAITED, (size_t)n * 8);
	size_part(d, NAMED, h->once * bins * rows * k * 4);
	size_part(d, NAMED_WEIGHTS, h->once * bins * rows * k * 4);
	size_part(d, MASK, t * k);
	size_part(d, EXPERT_TOKENS, el * 8);
	size_part(d, RECV_COUNTS, el * (size_t)n * 4);
	size_part(d, TRIPLETS, bins * rows * 3 * 4);
	size_part(d, FLAT, bins * rows * 2 * 4);
	size_part(d, ARRIVED, (COVEY_EP_ARRIVED_ROWS + bins * rows) * 4);
	size_part(d, EXPERT_SCALE, el * 4);
	size_part(d, PLACED, t * k * 4);
}

static inline void draw_inputs(const struct setup *s, int r)
{
	const struct cvy_ep_shape_gpu *h = &s->shape;
	const size_t k = (size_t)h->top_k, t = (size_t)h->tokens, groups = (size_t)cvy_ep_div(h->hidden, CVY_EP_GROUP);
	const struct side *d = &side[r];

	for (size_t i = 0; i < t * (size_t)h->hidden; i++)
		((uint16_t *)host_at(r, X))[i] = element(s, ((float)below(2001) - 1000) / (float)(1 << below(12)));
	for (size_t i = 0; i < t * groups; i++)
		((float *)host_at(r, X_SCALES))[i] = (float)below(1000) / 999;
	for (size_t i = 0; i < d->part[SMOOTH].bytes / 4; i++) /* the same on all ranks */
		((float *)host_at(r, SMOOTH))[i] = (float)(i * 7919 % 1013 + (i % 97 == 0) * 4000) / 512;
	for (size_t i = 0; i < t * k; i++)
		((int32_t *)host_at(r, IDS))[i] = route(s, (int)(i % k));
	if (s->wide >> r & 1)
		widen(s, (int32_t *)host_at(r, IDS), (int64_t *)host_at(r, IDS64), t * k);
	for (size_t i = 0; i < t * k; i++)
		((float *)host_at(r, WEIGHTS))[i] = (float)below(1000) / 999;
	for (size_t i = 0; i < t * k; i++)
		host_at(r, MASK)[i] = below(3) ? 1 + (uint8_t)below(255) : 0;
	for (int i = 0; i < n; i++)
		((int32_t *)host_at(r, ACTIVE))[i] = 1;
	for (size_t i = 0; i < (size_t)d->el; i++)
		((float *)host_at(r, EXPERT_SCALE))[i] = (float)below(1000) / 333;
	memset(host_at(r, WAITED), 0, (size_t)n * 8);
	for (int which : { X, X_SCALES, SMOOTH, IDS, IDS64, WEIGHTS, MASK, ACTIVE, EXPERT_SCALE, WAITED })
		upload(r, which);
}

static inline void prepare(struct setup *s)
{
	const struct cvy_ep_shape_gpu *h = &s->shape;
	struct cvy_ep_tables tables;
	struct oracle o = oracle_of(s, mask);

	tables_of(s, &tables);
	s->shape.size = n;
	s->shape.most_local = 0;
	for (int r = 0; r < n; r++)
		if (tables.first[r + 1] - tables.first[r] > s->shape.most_local)
			s->shape.most_local = tables.first[r + 1] - tables.first[r];
	s->shape.whole = s->smooth;
	if (!cvy_ep_form_of(h, s->lanes, 0, &s->dispatch) || !cvy_ep_form_of(h, s->lanes, 1, &s->combine)) {
		fprintf(stderr, "hidden %d top %d experts %d: no form\n", h->hidden, h->top_k, h->experts);
		exit(1);
	}
	if ((size_t)s->lanes * cvy_ep_placed_words(h->tokens, h->top_k, s->places) * 4 > BEHIND) {
		fprintf(stderr, "places of %d tokens do not fit\n", h->tokens);
		exit(1);
	}
	for (int r = 0; r < n; r++) {
		struct side *d = &side[r];

		CUDA(cudaSetDevice(ranks[r].device));
		size_parts(s, d, (size_t)oracle_local(&o, r));
		d->num_tokens = s->routing == EMPTY ? 0 : r % 3 == 2 ? (int)below((uint64_t)h->tokens + 1) : h->tokens;
		for (int i = 0; i < PARTS; i++)
			poison(r, i);
		draw_inputs(s, r);
		OK(ranks[r].gpu, cvy_gpu_ep_ops.state(ranks[r].gpu, &tables, BEHIND, &d->state));
	}
}

/* As the library: ids that are left stand where the dispatch says what it sent. */
static inline void launch_mask(const struct setup *s, int r, struct cvy_ep_args *a)
{
	struct cvy_ep_masking m = {};

	m.mask = device_at(r, MASK);
	m.ids = a->ids;
	m.ids64 = a->ids64;
	m.to = a->sent + (s->places > 1 ? s->shape.tokens * s->shape.top_k : 0);
	m.num_tokens = a->num_tokens;
	m.top_k = a->top_k;
	m.columns = s->mask_columns;
	if (a->phases & CVY_EP_SEND)
		OK(ranks[r].gpu, cvy_gpu_ep_ops.mask(ranks[r].gpu, &m, (struct CUstream_st *)ranks[r].stream));
	a->ids = m.to;
	a->ids64 = NULL;
}

static inline void launch_outputs(const struct setup *s, int r, const struct cvy_ep_args *a)
{
	struct cvy_ep_outputs o = {};

	o.count = a->count;
	o.route = a->route;
	o.sent = a->sent;
	o.placed = s->places > 1 ? (int32_t *)device_at(r, PLACED) : NULL;
	o.num_tokens = a->num_tokens;
	o.range = a->range;
	o.expert_tokens = asks(s, EXPERT_TOKENS) ? (int64_t *)device_at(r, EXPERT_TOKENS) : NULL;
	o.recv_counts = asks(s, RECV_COUNTS) ? (int32_t *)device_at(r, RECV_COUNTS) : NULL;
	o.triplets = asks(s, TRIPLETS) ? (int32_t *)device_at(r, TRIPLETS) : NULL;
	o.flat = asks(s, FLAT) ? (int32_t *)device_at(r, FLAT) : NULL;
	o.src_info = a->src_info;
	o.recv_experts = a->recv_experts;
	o.recv_weights = a->recv_weights;
	o.size = n;
	o.tokens = a->tokens;
	o.top_k = a->top_k;
	o.el = a->el;
	o.once = a->once;
	o.kept = s->shape.close ? (int32_t)side[r].kept : 0;
	o.fill_tail = s->fill_tail;
	o.sums = s->sums;
	o.alignment = s->alignment > 1 ? s->alignment : 1;
	if (cvy_ep_has_outputs(&o))
		OK(ranks[r].gpu, cvy_gpu_ep_ops.outputs(ranks[r].gpu, &o, (struct CUstream_st *)ranks[r].stream));
}

/* Has a row come? Of a dispatch that was not compared: it may. */
static inline int rows_came(int r)
{
	const int32_t *count = (const int32_t *)host_at(r, COUNT);

	for (int e = 0; e < side[r].el; e++)
		if (count[e])
			return 1;
	return 0;
}

/* A buffer of no bytes is NULL. */
static inline uint8_t *if_any(int n, int r, int which)
{
	return n ? device_at(r, which) : NULL;
}

static inline void launch_ep(const struct setup *s, int r, int kind, int phases)
{
	struct cvy_ep_args a = {};
	size_t items = cvy_ep_route_items(n, s->shape.tokens, s->shape.top_k);
	uint8_t *route_at = device_at(r, ROUTE);

	a.call.kind = kind;
	a.call.rank = r;
	a.call.size = n;
	a.form = kind == CVY_GPU_DISPATCH ? s->dispatch : s->combine;
	a.state = side[r].state;
	a.tokens = s->shape.tokens;
	a.hidden = s->shape.hidden;
	a.top_k = s->shape.top_k;
	a.experts = s->shape.experts;
	a.el = side[r].el;
	a.num_tokens = side[r].num_tokens;
	a.code = s->shape.code;
	a.fp16 = s->fp16;
	a.once = s->shape.once;
	a.hops = s->shape.hops;
	a.per_rank = s->shape.per_rank || s->shape.once;
	a.recv_experts = (int32_t *)device_at(r, NAMED);
	a.recv_weights = (float *)device_at(r, NAMED_WEIGHTS);
	a.phases = phases;
	a.x = if_any(a.num_tokens, r, X);
	a.smooth = s->smooth ? (float *)device_at(r, SMOOTH) : NULL;
	if (s->wide >> r & 1)
		a.ids64 = (int64_t *)if_any(a.num_tokens, r, IDS64);
	else
		a.ids = (int32_t *)if_any(a.num_tokens, r, IDS);
	a.weights = (float *)if_any(a.num_tokens, r, WEIGHTS);
	a.packed = if_any(a.el, r, PACKED);
	a.scales = (float *)if_any(a.el, r, SCALES);
	a.count = (int32_t *)if_any(a.el, r, COUNT);
	a.src_info = (int32_t *)if_any(a.el, r, SRC);
	a.range = (int64_t *)if_any(a.el, r, RANGE);
	a.lost = (cvy_ranks *)route_at;
	a.route = (int32_t *)(route_at + CVY_EP_ROUTE_HEAD);
	a.route_weights = (float *)(a.route + items);
	a.sent = a.route + 2 * items;
	a.active = s->timeout_ms ? (int32_t *)device_at(r, ACTIVE) : NULL;
	a.waited = (uint64_t *)device_at(r, WAITED);
	a.timeout_ms = s->timeout_ms;
	CUDA(cudaSetDevice(ranks[r].device));
	if (kind == CVY_GPU_DISPATCH && s->masked >> r & 1)
		launch_mask(s, r, &a);
	if (kind == CVY_GPU_DISPATCH) {
		a.places = s->places;
		a.close = s->shape.close;
		a.x_scales = s->given >> r & 1 ? (float *)device_at(r, X_SCALES) : NULL;
		a.flat = asks(s, FLAT) ? (int32_t *)device_at(r, FLAT) : NULL;
		a.arrived = asks(s, ARRIVED) && side[r].el ? (uint32_t *)device_at(r, ARRIVED) : NULL;
	} else {
		a.renormalise = s->renormalise;
		a.back = s->shape.back;
		if (s->shape.close && a.el > a.top_k) /* as the library */
			a.el = a.top_k;
		a.expert_scale = s->scaled ? (float *)device_at(r, EXPERT_SCALE) : NULL;
		a.y = if_any(rows_came(r), r, Y);
		a.out = if_any(a.num_tokens, r, OUT);
	}
	if (kind == CVY_GPU_DISPATCH && phases & CVY_EP_RECV && a.arrived)
		CUDA(cudaMemsetAsync(a.arrived, 0, side[r].part[ARRIVED].bytes, ranks[r].stream));
	OK(ranks[r].gpu, cvy_gpu_ep_ops.launch(ranks[r].gpu, &a, (struct CUstream_st *)ranks[r].stream));
	if (kind == CVY_GPU_DISPATCH && phases & CVY_EP_RECV)
		launch_outputs(s, r, &a);
}

static inline void go(const struct setup *s, int kind, uint32_t who)
{
	for (int r = 0; r < n && s->split; r++)
		if (who >> r & 1)
			launch_ep(s, r, kind, CVY_EP_SEND);
	for (int r = 0; r < n; r++)
		if (who >> r & 1)
			launch_ep(s, r, kind, s->split ? CVY_EP_RECV : CVY_EP_SEND | CVY_EP_RECV);
}

#endif
