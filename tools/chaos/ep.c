/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of the crew. Routing and tokens are functions of source, token and step, so that every row that
 * arrives has one right place and value. Experts return their input, so a combined token is itself times the sum of
 * the weights whose owners took part: small integers, which bf16 has all.
 *
 * A *measured* pair (--tokens) is of the size of a real layer. It stays on the device, and only what comes back at the
 * end is checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

#define VALUES 31 /* tokens are 1 to 31 */

struct chaos_ep_room {
	bool measured;
	int tokens, hidden, top_k, experts;
	size_t rows, x_bytes, ids_bytes;
	uint16_t *x, *out, *packed; /* [tokens][hidden], packed [rows][hidden] */
	int32_t *ids, *count, *src_info, *active;
	float *weights;
	int64_t *range;
};

static const struct chaos_ep_room planned = { .tokens = 32, .hidden = 128, .top_k = 2, .experts = 16 };
static const struct chaos_ep_room layer = { .measured = true, .hidden = 7168, .top_k = 8, .experts = 256 };

static unsigned token(const struct chaos_member *m, int source, int t, int h)
{
	return (unsigned)(((uint64_t)source * 5 + (uint64_t)t * 3 + (uint64_t)h + m->step) % VALUES + 1);
}

static int tokens(const struct chaos_member *m, int source)
{
	int most = m->room->tokens;

	return m->room->measured ? most : (int)(((uint64_t)source * 5 + m->step) % (uint64_t)(most + 1));
}

/* A token names no expert twice. */
static int expert(const struct chaos_member *m, int source, int t, int k)
{
	const struct chaos_ep_room *room = m->room;
	uint64_t at = (uint64_t)source * 3 + (uint64_t)t * 7 + m->step + (uint64_t)k * 37;

	if (k && !room->measured && ((uint64_t)t + m->step) % 11 == 0)
		return -1;
	return (int)(at % (uint64_t)room->experts);
}

static unsigned weight(const struct chaos_ep_room *room, int k)
{
	return room->measured ? 1 : (unsigned)k + 1;
}

static int per_rank(const struct chaos_member *m)
{
	return (m->room->experts + m->size - 1) / m->size;
}

static int make_room(struct chaos_member *m)
{
	struct chaos_ep_room *room = m->room = malloc(sizeof(*room));
	size_t bytes[9], ids;

	if (!room)
		return -1;
	*room = m->crew->tokens ? layer : planned;
	room->tokens = m->crew->tokens ? m->crew->tokens : room->tokens;
	room->rows = (size_t)(room->experts + CHAOS_MAX_RANKS) * (size_t)room->tokens;
	ids = (size_t)room->tokens * (size_t)room->top_k;
	room->x_bytes = (size_t)room->tokens * (size_t)room->hidden * sizeof(*room->x);
	room->ids_bytes = ids * sizeof(*room->ids);
	void **const at[] = { (void **)&room->x,	(void **)&room->out,	 (void **)&room->packed,
			      (void **)&room->ids,	(void **)&room->weights, (void **)&room->count,
			      (void **)&room->src_info, (void **)&room->range,	 (void **)&room->active };
	bytes[0] = bytes[1] = room->x_bytes;
	bytes[2] = room->rows * (size_t)room->hidden * sizeof(*room->packed);
	bytes[3] = bytes[4] = room->ids_bytes;
	bytes[5] = (size_t)room->experts * sizeof(*room->count);
	bytes[6] = room->rows * sizeof(*room->src_info);
	bytes[7] = (size_t)room->experts * CHAOS_MAX_RANKS * sizeof(*room->range);
	bytes[8] = CHAOS_MAX_RANKS * sizeof(*room->active);
	for (int i = 0; i < 9; i++) {
		*at[i] = calloc(1, bytes[i]);
		if (!*at[i] || chaos_device_twin(m, *at[i], bytes[i]))
			return -1;
	}
	return 0;
}

int chaos_ep_open(struct chaos_member *m)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	int err;

	if (!(m->crew->work >> CHAOS_W_DISPATCH & 1))
		return 0;
	if (make_room(m))
		return chaos_member_fail(m, "no memory", COVEY_ERR_NOMEM);
	config.max_tokens = m->room->tokens;
	config.hidden = m->room->hidden;
	config.top_k = m->room->top_k;
	config.experts = m->room->experts;
	if (m->room->measured)
		config.combine = COVEY_EP_PER_RANK;
	err = covey_ep_create(m->group, &config, &m->ep);
	return err ? chaos_member_fail(m, "ep_create", err) : chaos_device_route(m);
}

int chaos_ep_resize(struct chaos_member *m)
{
	int err = m->ep ? covey_ep_remap(m->ep, NULL) : 0;

	return err ? chaos_member_fail(m, "ep_remap", err) : chaos_device_route(m);
}

void chaos_ep_close(struct chaos_member *m)
{
	struct chaos_ep_room *room = m->room;

	covey_ep_destroy(m->ep);
	if (!room)
		return;
	free(room->x), free(room->out), free(room->packed), free(room->ids), free(room->weights);
	free(room->count), free(room->src_info), free(room->range), free(room->active);
	free(room);
}

/* ---- Ranks that are left out (active_ranks) ---- */

static bool masked(const struct chaos_member *m)
{
	const int masks = m->crew->mix.masks;

	return masks && !m->room->measured && m->size > 1 && !chaos_draw(m, 70, (uint64_t)masks);
}

/* Does rank @a leave out rank @b in @op of this step? Of all ranks one does, one other; in dispatch, combine, or both. */
static bool leaves_out(const struct chaos_member *m, int op, int a, int b)
{
	const int by = (int)chaos_draw(m, 71, (uint64_t)m->size);
	const int whom = (by + 1 + (int)chaos_draw(m, 72, (uint64_t)m->size - 1)) % m->size;
	const uint64_t where = chaos_draw(m, 73, 3);

	return masked(m) && a == by && b == whom && (where == 2 || (where == 0) == (op == CHAOS_W_DISPATCH));
}

/* The argument of a call: NULL in steps without masks. */
static int32_t *active_ranks(struct chaos_member *m, int op, int *err)
{
	int32_t *active = m->room->active;

	if (!masked(m))
		return NULL;
	for (int r = 0; r < CHAOS_MAX_RANKS; r++)
		active[r] = r >= m->size || !leaves_out(m, op, m->rank, r);
	if (!*err)
		*err = chaos_device_copy(m, active, false);
	return chaos_there(m, active);
}

/* Of two ranks, has one left out the other until here? What a dispatch lacks its combine lacks, too. */
static bool apart(const struct chaos_member *m, int op, int a, int b)
{
	bool out = leaves_out(m, CHAOS_W_DISPATCH, a, b) || leaves_out(m, CHAOS_W_DISPATCH, b, a);

	return out || (op == CHAOS_W_COMBINE && (leaves_out(m, op, a, b) || leaves_out(m, op, b, a)));
}

/* Has a rank left out this one, in @op or, of a combine, in its dispatch? */
static bool left_out(const struct chaos_member *m, int op)
{
	bool out = false;

	for (int r = 0; r < m->size && !out; r++)
		out = leaves_out(m, CHAOS_W_DISPATCH, r, m->rank) ||
		      (op == CHAOS_W_COMBINE && leaves_out(m, op, r, m->rank));
	return out;
}

/*
 * Without deadlines, the mask of an outcome has all members of its view from which this rank is not apart. Or it is empty,
 * which check.c looks at.
 */
static int check_mask(struct chaos_member *m, int op)
{
	struct covey_view view;

	m->record.left = left_out(m, op);
	if (m->record.left && !m->record.mask)
		return 0;
	covey_view(m->group, &view);
	for (int r = 0; r < m->size && view.epoch == m->record.epoch && !getenv("COVEY_LATE_MS"); r++)
		if (covey_mask_has(&view.members, r) && !(m->record.mask >> r & 1) && !apart(m, op, m->rank, r))
			return chaos_bad_bytes(m, "mask", (size_t)r, 0, 1);
	return 0;
}

static void route(struct chaos_member *m)
{
	struct chaos_ep_room *room = m->room;

	for (int t = 0; t < tokens(m, m->rank); t++) {
		for (int h = 0; h < room->hidden; h++)
			room->x[t * room->hidden + h] = tool_bf16(token(m, m->rank, t, h));
		for (int k = 0; k < room->top_k; k++) {
			room->ids[t * room->top_k + k] = expert(m, m->rank, t, k);
			room->weights[t * room->top_k + k] = (float)weight(room, k);
		}
	}
	if (!room->measured)
		memset(room->out, 0xee, room->x_bytes);
}

/* Checks the rows that local expert @e has of @source, from row @first on: their number, or -1 if one is wrong. */
static int check_rows(struct chaos_member *m, int e, int source, int first)
{
	const struct chaos_ep_room *room = m->room;
	int id = m->rank * per_rank(m) + e, base = e * covey_ep_rows(m->ep), n = 0;

	for (int t = 0; t < tokens(m, source); t++) {
		for (int k = 0; k < room->top_k; k++) {
			int row = base + first + n;

			if (expert(m, source, t, k) != id)
				continue;
			if ((size_t)row >= room->rows || room->src_info[row] != t)
				return -1;
			for (int h = 0; h < room->hidden; h++)
				if (room->packed[row * room->hidden + h] != tool_bf16(token(m, source, t, h)))
					return -1;
			n++;
		}
	}
	return n;
}

static int check_dispatch(struct chaos_member *m)
{
	const struct chaos_ep_room *room = m->room;
	int local = covey_ep_local_experts(m->ep);

	for (int e = 0; e < local; e++) {
		int at = 0;

		for (int s = 0; s < m->size; s++) {
			int64_t range = room->range[e * m->size + s];
			int want = 0;

			if (m->record.mask >> s & 1)
				want = check_rows(m, e, s, at);
			if (want < 0 || range >> 32 != want || (want && (int32_t)range != at))
				return chaos_bad_bytes(m, "dispatch", (size_t)(e * m->size + s), (double)(range >> 32),
						       want);
			at += want;
		}
		if (room->count[e] != at)
			return chaos_bad_bytes(m, "dispatch count", (size_t)e, room->count[e], at);
	}
	return 0;
}

static int check_combine(struct chaos_member *m)
{
	const struct chaos_ep_room *room = m->room;

	for (int t = 0; t < tokens(m, m->rank); t++) {
		unsigned sum = 0;

		for (int k = 0; k < room->top_k; k++) {
			int id = expert(m, m->rank, t, k);

			if (id >= 0 && m->record.mask >> (id / per_rank(m)) & 1)
				sum += weight(room, k);
		}
		for (int h = 0; h < room->hidden; h++) {
			size_t at = (size_t)(t * room->hidden + h);
			uint16_t want = tool_bf16(sum * token(m, m->rank, t, h));

			if (room->out[at] != want)
				return chaos_bad_bytes(m, "combine", at, room->out[at], want);
		}
	}
	return 0;
}

/* The tokens go to the device. */
static int bring(struct chaos_member *m)
{
	const struct chaos_ep_room *room = m->room;
	int err = chaos_device_copy(m, room->x, false);

	if (!err)
		err = chaos_device_copy(m, room->ids, false);
	if (!err)
		err = chaos_device_copy(m, room->weights, false);
	return err || room->measured ? err : chaos_device_copy(m, room->out, false);
}

/* The rows that came, for the check. */
static int fetch(struct chaos_member *m)
{
	const struct chaos_ep_room *room = m->room;
	int err = chaos_device_copy(m, room->packed, true);

	if (!err)
		err = chaos_device_copy(m, room->count, true);
	if (!err)
		err = chaos_device_copy(m, room->src_info, true);
	return err ? err : chaos_device_copy(m, room->range, true);
}

static int run_dispatch(struct chaos_member *m)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct chaos_ep_room *room = m->room;
	struct covey_result result = { 0 };
	int err = bring(m), code;

	args.num_tokens = tokens(m, m->rank);
	args.x = chaos_there(m, room->x);
	args.experts = chaos_there(m, room->ids);
	args.weights = chaos_there(m, room->weights);
	args.packed_x = chaos_there(m, room->packed);
	args.count = chaos_there(m, room->count);
	args.src_info = chaos_there(m, room->src_info);
	args.range = chaos_there(m, room->range);
	args.route = chaos_route(m);
	args.active_ranks = active_ranks(m, CHAOS_W_DISPATCH, &err);
	chaos_begin(m, CHAOS_W_DISPATCH);
	if (!err && room->measured)
		err = covey_dispatch(m->ep, &args, chaos_stream(m), &result);
	else if (!err)
		err = covey_dispatch_send(m->ep, &args, chaos_stream(m));
	chaos_trap_at(m, CHAOS_T_IN_DISPATCH);
	if (!err && !room->measured)
		err = covey_dispatch_recv(m->ep, 0, &result);
	if (m->device)
		err = chaos_device_outcome(m, err, &result);
	if (!err && !room->measured)
		err = fetch(m);
	code = chaos_end(m, err, &result);
	if (!code && !m->record.status && !room->measured)
		code = check_mask(m, CHAOS_W_DISPATCH);
	if (!code && !m->record.status && !room->measured)
		code = check_dispatch(m);
	if (!code)
		chaos_put(m);
	return code;
}

static int run_combine(struct chaos_member *m)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	struct chaos_ep_room *room = m->room;
	struct covey_result result = { 0 };
	int err = 0, code;

	args.num_tokens = tokens(m, m->rank);
	args.y = chaos_there(m, room->packed);
	args.count = chaos_there(m, room->count);
	args.src_info = chaos_there(m, room->src_info);
	args.range = chaos_there(m, room->range);
	args.experts = chaos_there(m, room->ids);
	args.weights = chaos_there(m, room->weights);
	args.out = chaos_there(m, room->out);
	args.route = chaos_route(m);
	args.active_ranks = active_ranks(m, CHAOS_W_COMBINE, &err);
	chaos_begin(m, CHAOS_W_COMBINE);
	if (!err && room->measured)
		err = covey_combine(m->ep, &args, chaos_stream(m), &result);
	else if (!err)
		err = covey_combine_send(m->ep, &args, chaos_stream(m));
	chaos_trap_at(m, CHAOS_T_IN_COMBINE);
	if (!err && !room->measured)
		err = covey_combine_recv(m->ep, 0, &result);
	if (m->device)
		err = chaos_device_outcome(m, err, &result);
	if (!err)
		err = chaos_device_copy(m, room->out, true);
	code = chaos_end(m, err, &result);
	if (!code && !m->record.status && !room->measured)
		code = check_mask(m, CHAOS_W_COMBINE);
	if (!code && !m->record.status)
		code = check_combine(m);
	if (!code)
		chaos_put(m);
	return code;
}

int chaos_ep_work(struct chaos_member *m)
{
	int code;

	route(m);
	chaos_trap_at(m, CHAOS_T_BEFORE_DISPATCH);
	code = run_dispatch(m);
	chaos_trap_at(m, CHAOS_T_BETWEEN);
	if (!code)
		code = run_combine(m);
	chaos_trap_at(m, CHAOS_T_AFTER_COMBINE);
	return code;
}
