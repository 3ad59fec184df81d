/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine by handles that come and go. Numbers of tokens, elements, experts and owners change each time; all
 * presets, forms of rows and of results occur, with and without factors of elements (smooth) and, of LL and FLAT, of experts
 * (expert_scale); but with COMPACT and HT no expert has several places.
 * No call of the group comes between the last operation of a handle, its end and the next handle, so a fast rank makes the
 * next one while others still read its data. All handles end before a safe point: a rank that joins there begins without
 * any.
 *
 * Tokens are small integers, with 448 at the start of each 128: so 8-bit rows have the scale 1 and are exact.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handles.h"

#define DEADLINE_MS 5000
#define BEHIND 16 /* elements of a block of an alltoall behind a combine */

/* Mistakes of some ranks in a step. */
enum slip { OWNERS, ROWS, LATE, ORDER, OTHER, TOO_MANY, SLIPS };

uint16_t chaos_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float chaos_from_bf16(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* ---- Inputs ---- */

float chaos_handle_element(const struct chaos_member *m, int source, int t, int i)
{
	if (i % CHAOS_GROUP == 0)
		return CHAOS_PEAK;
	return (float)(((uint64_t)source * 4 + (uint64_t)t * 5 + (uint64_t)i + m->step * 7) % CHAOS_VALUES + 1);
}

int chaos_handle_tokens(const struct chaos_member *m, const struct chaos_handle *h, int source)
{
	return (int)(((uint64_t)source * 5 + m->step * 3) % (uint64_t)(h->tokens + 1));
}

/* A token names no expert twice. */
int chaos_handle_expert(const struct chaos_member *m, const struct chaos_handle *h, int source, int t, int k)
{
	if (k >= h->experts || ((uint64_t)(t + k) + m->step) % 11 == 0)
		return -1;
	return (int)(((uint64_t)source * 3 + (uint64_t)t * 7 + m->step + (uint64_t)k) % (uint64_t)h->experts);
}

float chaos_handle_smooth(int expert, int i)
{
	return (float)(1 << (expert + i) % 3) / 2;
}

float chaos_handle_scale(const struct chaos_handle *h, int expert)
{
	return h->scaled ? (float)(1 + expert % 2) : 1;
}

static void fill(const struct chaos_member *m, struct chaos_handle *h)
{
	for (int t = 0; t < chaos_handle_tokens(m, h, m->rank); t++) {
		for (int i = 0; i < h->hidden; i++)
			h->x[t * h->hidden + i] = chaos_bf16(chaos_handle_element(m, m->rank, t, i));
		for (int k = 0; k < h->top_k; k++) {
			h->ids[t * h->top_k + k] = chaos_handle_expert(m, h, m->rank, t, k);
			h->weights[t * h->top_k + k] = (float)(k + 1);
		}
	}
	memset(h->placed, 0xff, (size_t)h->tokens * (size_t)h->top_k * sizeof(*h->placed)); /* none */
	memset(h->out, 0xee, (size_t)h->tokens * (size_t)h->hidden * sizeof(*h->out));
}

/* ---- A handle ---- */

static void end(struct chaos_handle *h)
{
	if (!h)
		return;
	covey_ep_destroy(h->ep);
	free(h->x), free(h->y), free(h->out), free(h->packed), free(h->scales), free(h->weights);
	free(h->smooth), free(h->flat), free(h->triplets), free(h->arrived), free(h->recv_weights), free(h->ids),
		free(h->count), free(h->src_info), free(h->recv_ids), free(h->range), free(h->placed);
	free(h);
}

static void draw_owners(const struct chaos_member *m, struct chaos_handle *h, unsigned what)
{
	uint64_t first = chaos_draw(m, what, (uint64_t)h->size), step = 1 + chaos_draw(m, what + 1, 3);

	for (int e = 0; e < h->experts; e++)
		for (int p = 0; p < h->places; p++)
			h->owner[e * h->places + p] =
				p && (e + p) % 3 == 0
					? -1
					: (int)((first + (uint64_t)e * step + (uint64_t)p) % (uint64_t)h->size);
}

bool chaos_handle_owns(const struct chaos_handle *h, int expert, int rank)
{
	for (int p = 0; p < h->places; p++)
		if (h->owner[expert * h->places + p] == rank)
			return true;
	return false;
}

/* Of expert 0: another rank, or its places the other way round. */
static void misname(struct chaos_handle *h)
{
	int was = h->owner[0];

	h->owner[0] = h->places > 1 ? h->owner[1] : (was + 1) % h->size;
	if (h->places > 1)
		h->owner[1] = was;
}

static bool rooms(struct chaos_handle *h)
{
	size_t source = (size_t)h->size * (size_t)h->tokens, row = (size_t)h->hidden, all = source;
	size_t names = (size_t)h->tokens * (size_t)h->top_k, bins = (size_t)h->experts;

	if (!chaos_handle_once(h))
		all *= bins;
	h->x = calloc((size_t)h->tokens * row, sizeof(*h->x));
	h->out = calloc((size_t)h->tokens * row, sizeof(*h->out));
	h->packed = calloc(all * row, sizeof(uint16_t));
	h->y = calloc(all * row, sizeof(*h->y));
	h->scales = calloc(all * (row / CHAOS_GROUP + 1), sizeof(*h->scales));
	h->weights = calloc(names, sizeof(*h->weights));
	h->ids = calloc(names, sizeof(*h->ids));
	h->placed = calloc(names, sizeof(*h->placed));
	h->recv_weights = calloc(source * (size_t)h->top_k, sizeof(*h->recv_weights));
	h->recv_ids = calloc(source * (size_t)h->top_k, sizeof(*h->recv_ids));
	h->count = calloc(bins, sizeof(*h->count));
	h->src_info = calloc(all, sizeof(*h->src_info));
	h->smooth = calloc(bins * row, sizeof(*h->smooth));
	h->flat = calloc(all * 2, sizeof(*h->flat));
	h->triplets = calloc(all * 3, sizeof(*h->triplets));
	h->arrived = calloc(COVEY_EP_ARRIVED_ROWS + all, sizeof(*h->arrived));
	h->range = calloc(bins * (size_t)h->size, sizeof(*h->range));
	return h->x && h->out && h->packed && h->y && h->scales && h->weights && h->ids && h->recv_weights &&
	       h->recv_ids && h->count && h->src_info && h->smooth && h->flat && h->triplets && h->arrived &&
	       h->range && h->placed;
}

/* With COMPACT and HT a row has no expert of its own, with WIN none that its place says. */
static void draw_factors(const struct chaos_member *m, struct chaos_handle *h, unsigned what)
{
	bool integers = h->rows == COVEY_EP_ROWS_INT8 || h->rows == COVEY_EP_ROWS_INT4;

	h->smoothed = integers && !chaos_handle_once(h) && chaos_draw(m, what, 2);
	h->scaled = !chaos_handle_once(h) && !chaos_handle_close(h) && chaos_draw(m, what + 1, 2);
}

/* @slip: the difference from the handles of other ranks; SLIPS: none */
static int begin(struct chaos_member *m, int at, unsigned what, enum slip slip)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct chaos_handle *h = calloc(1, sizeof(*h));
	int err;

	if (!h)
		return chaos_member_fail(m, "no memory", COVEY_ERR_NOMEM);
	h->size = m->size;
	config.max_tokens = h->tokens = 1 + (int)chaos_draw(m, what, CHAOS_TOKENS);
	config.hidden = h->hidden = 8 * (1 + (int)chaos_draw(m, what + 1, CHAOS_HIDDEN / 8));
	config.top_k = h->top_k = 1 + (int)chaos_draw(m, what + 2, CHAOS_TOP_K);
	config.experts = h->experts = 1 + (int)chaos_draw(m, what + 3, CHAOS_EXPERTS);
	config.preset = h->preset = (int)chaos_draw(m, what + 4, COVEY_EP_HT + 1); /* enum covey_ep_preset */
	config.combine_rows = h->back = (int)chaos_draw(m, what + 8, 2);
	config.rows = h->rows = (int)chaos_draw(m, what + 5, 4) ^ (slip == ROWS);
	h->places = chaos_handle_once(h) ? 1 : 1 + (int)chaos_draw(m, what + 11, CHAOS_PLACES);
	config.places = h->places = h->places < h->size ? h->places : h->size;
	draw_owners(m, h, what + 6);
	if (slip == OWNERS)
		misname(h);
	config.expert_owner = h->owner;
	draw_factors(m, h, what + 9);
	err = rooms(h) ? covey_ep_create(m->group, &config, &h->ep) : COVEY_ERR_NOMEM;
	if (err) {
		end(h);
		return chaos_member_fail(m, "ep_create", err);
	}
	m->handle[at] = h;
	__atomic_fetch_add(&m->desk->handles, 1, __ATOMIC_RELAXED);
	return 0;
}

static int remap(struct chaos_member *m, struct chaos_handle *h)
{
	int err;

	draw_owners(m, h, 50);
	err = covey_ep_remap(h->ep, h->owner);
	return err ? chaos_member_fail(m, "ep_remap", err) : 0;
}

static void drop(struct chaos_member *m, int at)
{
	end(m->handle[at]);
	m->handle[at] = NULL;
}

void chaos_handles_close(struct chaos_member *m)
{
	for (int i = 0; i < CHAOS_HANDLES; i++)
		drop(m, i);
}

/* ---- The pair ---- */

/* Drawn; always if this process is to kill itself, which may be between the halves. */
static bool in_halves(const struct chaos_member *m)
{
	return chaos_in_two(m) || __atomic_load_n(&m->desk->trap, __ATOMIC_ACQUIRE) != CHAOS_T_NONE;
}

/* Of the experts that this rank has. */
static void give_factors(const struct chaos_member *m, struct chaos_handle *h, struct covey_dispatch_args *args)
{
	int local = 0;

	for (int e = 0; e < h->experts; e++) {
		for (int i = 0; i < h->hidden; i++)
			h->smooth[e * h->hidden + i] = chaos_handle_smooth(e, i);
		if (chaos_handle_owns(h, e, m->rank))
			h->factors[local++] = chaos_handle_scale(h, e);
	}
	args->smooth = h->smoothed ? h->smooth : NULL;
}

static size_t words(const struct chaos_handle *h)
{
	size_t rows = (size_t)h->size * (size_t)h->tokens;

	return COVEY_EP_ARRIVED_ROWS + rows * (chaos_handle_once(h) ? 1 : (size_t)h->experts);
}

static int dispatch(struct chaos_member *m, struct chaos_handle *h, int more, int timeout_ms,
		    struct covey_result *result)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	int err;

	args.num_tokens = more ? h->tokens + more : chaos_handle_tokens(m, h, m->rank);
	args.x = h->x;
	args.experts = h->ids;
	args.weights = h->weights;
	args.packed_x = h->packed;
	args.packed_scales = h->scales;
	args.count = h->count;
	args.src_info = h->src_info;
	args.range = h->range;
	args.recv_experts = h->recv_ids;
	args.recv_weights = h->recv_weights;
	args.placed = h->placed;
	args.flat = h->flat;
	args.triplets = h->triplets;
	args.arrived = h->arrived;
	memset(h->arrived, 0, words(h) * sizeof(*h->arrived));
	give_factors(m, h, &args);
	args.timeout_ms = timeout_ms;
	if (!in_halves(m))
		return covey_dispatch(h->ep, &args, NULL, result);
	err = covey_dispatch_send(h->ep, &args, NULL);
	chaos_trap_at(m, CHAOS_T_IN_DISPATCH);
	return err ? err : covey_dispatch_recv(h->ep, 0, result);
}

/* Started while a combine is under way; its outcome comes behind the combine's. */
static int start_alltoall(struct chaos_member *m)
{
	for (int r = 0; r < m->size; r++)
		for (size_t i = 0; i < BEHIND; i++)
			m->send[(size_t)r * BEHIND + i] = chaos_value(m, m->rank, r, i);
	memset(m->recv, 1, (size_t)m->size * BEHIND * sizeof(float));
	return covey_alltoall_start(m->send, m->recv, BEHIND, COVEY_FLOAT32, m->group, NULL, &m->work);
}

/* @started: starts an alltoall behind it, and gets the result of that call; or NULL */
static int combine(struct chaos_member *m, struct chaos_handle *h, int *started, struct covey_result *result)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	int err;

	args.num_tokens = chaos_handle_tokens(m, h, m->rank);
	args.y = h->y;
	args.count = h->count;
	args.src_info = h->src_info;
	args.range = h->range;
	args.experts = h->ids;
	args.weights = h->weights;
	args.out = h->out;
	args.expert_scale = h->scaled ? h->factors : NULL;
	args.placed = h->placed;
	if (!started && !in_halves(m))
		return covey_combine(h->ep, &args, NULL, result);
	err = covey_combine_send(h->ep, &args, NULL);
	if (!err && started)
		*started = start_alltoall(m);
	chaos_trap_at(m, CHAOS_T_IN_COMBINE);
	return err ? err : covey_combine_recv(h->ep, 0, result);
}

static int end_alltoall(struct chaos_member *m, int err)
{
	struct covey_result result = { 0 };
	int code;

	chaos_begin(m, OP_ALLTOALL);
	err = chaos_started(m, err, &result);
	code = chaos_end(m, err, &result);
	for (int r = 0; r < m->size && !code && !m->record.status; r++)
		code = chaos_expect_block(m, "alltoall behind combine", m->recv + (size_t)r * BEHIND, r, m->rank,
					  BEHIND);
	if (!code)
		chaos_put(m);
	return code;
}

static int run_combine(struct chaos_member *m, struct chaos_handle *h)
{
	bool behind = chaos_draw(m, 26, 4) == 0;
	struct covey_result result = { 0 };
	int err, started = 0, code;

	chaos_begin(m, CHAOS_W_COMBINE);
	err = combine(m, h, behind ? &started : NULL, &result);
	code = chaos_end(m, err, &result);
	if (!code && !m->record.status)
		code = chaos_handle_check_combine(m, h);
	if (!code)
		chaos_put(m);
	/* Its contents are not needed when the combine has ended. */
	memset(h->y, 0x77, (size_t)h->size * (size_t)h->hidden * sizeof(*h->y));
	return code || !behind ? code : end_alltoall(m, started);
}

static int run_pair(struct chaos_member *m, struct chaos_handle *h)
{
	struct covey_result result = { 0 };
	int err, code;

	fill(m, h);
	chaos_trap_at(m, CHAOS_T_BEFORE_DISPATCH);
	chaos_begin(m, CHAOS_W_DISPATCH);
	err = dispatch(m, h, 0, 0, &result);
	code = chaos_end(m, err, &result);
	if (!code && !m->record.status)
		code = chaos_handle_check_dispatch(m, h);
	if (code)
		return code;
	chaos_put(m);
	chaos_trap_at(m, CHAOS_T_BETWEEN);
	code = run_combine(m, h);
	chaos_trap_at(m, CHAOS_T_AFTER_COMBINE);
	return code;
}

int chaos_handles_work(struct chaos_member *m)
{
	int at = (int)chaos_draw(m, 20, CHAOS_HANDLES), pairs = 1 + (int)chaos_draw(m, 21, 2), code = 0;

	if (chaos_draw(m, 22, 3) == 0)
		drop(m, at);
	if (chaos_draw(m, 23, 4) == 0)
		drop(m, (at + 1) % CHAOS_HANDLES);
	if (!m->handle[at])
		code = begin(m, at, 30, SLIPS);
	else if (chaos_draw(m, 24, 3) == 0)
		code = remap(m, m->handle[at]);
	for (int i = 0; i < pairs && !code; i++)
		code = run_pair(m, m->handle[at]);
	if (!code && chaos_draw(m, 25, 2) == 0)
		drop(m, at);
	return code;
}

/* ---- Mistakes ---- */

static int call_wrongly(struct chaos_member *m, struct chaos_handle *h, enum slip slip, bool *refused,
			struct covey_result *result)
{
	int err;

	switch (slip) {
	case LATE:
		return dispatch(m, h, 0, DEADLINE_MS, result);
	case ORDER:
		return combine(m, h, NULL, result);
	case TOO_MANY:
		err = dispatch(m, h, 1, 0, result);
		*refused = err == COVEY_ERR_INVAL;
		return *refused ? dispatch(m, h, 0, 0, result) : err;
	default:
		return dispatch(m, h, 0, 0, result);
	}
}

/* A new handle in the first place; for OTHER one in the second, which wrong ranks use. They end with the step. */
int chaos_handles_mistake(struct chaos_member *m)
{
	static const char *const names[SLIPS] = { "dispatch by a handle with other owners",
						  "dispatch by a handle with other rows",
						  "dispatch with a deadline",
						  "combine",
						  "dispatch by another handle",
						  "dispatch of too many tokens" };
	enum slip slip = (enum slip)chaos_draw(m, 60, SLIPS);
	bool wrong = m->mistake->ranks >> m->rank & 1, refused = false;
	struct covey_result result = { 0 };
	struct chaos_handle *h;
	int err, code;

	drop(m, 0);
	drop(m, 1);
	code = begin(m, 0, 30, wrong ? slip : SLIPS);
	if (!code && slip == OTHER)
		code = begin(m, 1, 70, SLIPS);
	if (code)
		return code;
	h = m->handle[wrong && slip == OTHER];
	fill(m, h);
	chaos_begin(m, CHAOS_W_DISPATCH);
	err = call_wrongly(m, h, wrong ? slip : SLIPS, &refused, &result);
	code = chaos_end(m, err, &result);
	if (!code && slip == TOO_MANY)
		code = chaos_mistake_refused(m, refused);
	if (!code && !m->record.status && !(wrong && slip == ORDER) && chaos_mistake_unlike(m, m->record.mask) < 0)
		code = chaos_handle_check_dispatch(m, h);
	if (!code && slip != TOO_MANY)
		code = chaos_mistake_settle(m, true, wrong ? names[slip] : "dispatch");
	else if (!code)
		chaos_put(m);
	drop(m, 1);
	drop(m, 0);
	return code;
}
