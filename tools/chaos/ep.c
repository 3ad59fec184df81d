/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of the crew. Routing and tokens are functions of source, token and step, so that every row that
 * arrives has one right place and value. Experts return their input and weights are 1 and 2, so a combined token is
 * itself times the sum of the weights whose owners took part.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

#define TOKENS CHAOS_EP_TOKENS
#define HIDDEN CHAOS_EP_HIDDEN
#define TOP_K CHAOS_EP_TOP_K
#define EXPERTS CHAOS_EP_EXPERTS
#define ROWS (EXPERTS * CHAOS_MAX_RANKS * TOKENS)

struct chaos_ep_room {
	uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], packed[ROWS][HIDDEN];
	int32_t experts[TOKENS][TOP_K], count[EXPERTS], src_info[ROWS];
	float weights[TOKENS][TOP_K];
	int64_t range[EXPERTS * CHAOS_MAX_RANKS];
};

/* Integers up to 256 have one bf16, the upper half of their float. */
static uint16_t bf16(unsigned n)
{
	float f = (float)n;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static unsigned token(const struct chaos_member *m, int source, int t, int h)
{
	return (unsigned)(((uint64_t)source * 32 + (uint64_t)t * 5 + (uint64_t)h + m->step) % 63 + 1);
}

static int tokens(const struct chaos_member *m, int source)
{
	return (int)(((uint64_t)source * 5 + m->step) % (TOKENS + 1));
}

static int expert(const struct chaos_member *m, int source, int t, int k)
{
	uint64_t first = ((uint64_t)source * 3 + (uint64_t)t * 7 + m->step) % EXPERTS;

	if (!k)
		return (int)first;
	if (((uint64_t)t + m->step) % 11 == 0)
		return -1;
	return (int)((first + 1 + ((uint64_t)t + m->step) % (EXPERTS - 1)) % EXPERTS);
}

static int per_rank(const struct chaos_member *m)
{
	return (EXPERTS + m->size - 1) / m->size;
}

int chaos_ep_open(struct chaos_member *m)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	int err;

	if (!(m->crew->work >> CHAOS_W_DISPATCH & 1))
		return 0;
	m->room = calloc(1, sizeof(*m->room));
	config.max_tokens = TOKENS;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	err = m->room ? covey_ep_create(m->group, &config, &m->ep) : COVEY_ERR_NOMEM;
	if (err)
		return chaos_member_fail(m, "ep_create", err);
	return chaos_device_twin(m, m->room, sizeof(*m->room)) || chaos_device_route(m);
}

int chaos_ep_resize(struct chaos_member *m)
{
	int err = m->ep ? covey_ep_remap(m->ep, NULL) : 0;

	return err ? chaos_member_fail(m, "ep_remap", err) : chaos_device_route(m);
}

void chaos_ep_close(struct chaos_member *m)
{
	covey_ep_destroy(m->ep);
	free(m->room);
}

static void route(struct chaos_member *m)
{
	struct chaos_ep_room *room = m->room;

	for (int t = 0; t < tokens(m, m->rank); t++) {
		for (int h = 0; h < HIDDEN; h++)
			room->x[t][h] = bf16(token(m, m->rank, t, h));
		for (int k = 0; k < TOP_K; k++) {
			room->experts[t][k] = expert(m, m->rank, t, k);
			room->weights[t][k] = (float)(k + 1);
		}
	}
}

/* Checks the rows that local expert @e has of @source, from row @first on: their number, or -1 if one is wrong. */
static int check_rows(struct chaos_member *m, int e, int source, int first)
{
	const struct chaos_ep_room *room = m->room;
	int id = m->rank * per_rank(m) + e, base = e * covey_ep_rows(m->ep), n = 0;

	for (int t = 0; t < tokens(m, source); t++) {
		for (int k = 0; k < TOP_K; k++) {
			int row = base + first + n;

			if (expert(m, source, t, k) != id)
				continue;
			if (row >= ROWS || room->src_info[row] != t)
				return -1;
			for (int h = 0; h < HIDDEN; h++)
				if (room->packed[row][h] != bf16(token(m, source, t, h)))
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
		unsigned weight = 0;

		for (int k = 0; k < TOP_K; k++) {
			int id = expert(m, m->rank, t, k);

			if (id >= 0 && m->record.mask >> (id / per_rank(m)) & 1)
				weight += (unsigned)k + 1;
		}
		for (int h = 0; h < HIDDEN; h++)
			if (room->out[t][h] != bf16(weight * token(m, m->rank, t, h)))
				return chaos_bad_bytes(m, "combine", (size_t)(t * HIDDEN + h), room->out[t][h],
						       bf16(weight * token(m, m->rank, t, h)));
	}
	return 0;
}

/* Reads the device's outcome, and copies its results to the host. */
static int on_device(struct chaos_member *m, int err, struct covey_result *result)
{
	if (!m->device)
		return err;
	err = chaos_device_outcome(m, err, result);
	return err ? err : chaos_device_copy(m, m->room, true);
}

static int run_dispatch(struct chaos_member *m)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct chaos_ep_room *room = m->room;
	struct covey_result result = { 0 };
	int err, code;

	args.num_tokens = tokens(m, m->rank);
	args.x = chaos_there(m, room->x);
	args.experts = chaos_there(m, room->experts[0]);
	args.weights = chaos_there(m, room->weights[0]);
	args.packed_x = chaos_there(m, room->packed);
	args.count = chaos_there(m, room->count);
	args.src_info = chaos_there(m, room->src_info);
	args.range = chaos_there(m, room->range);
	args.route = chaos_route(m);
	chaos_begin(m, CHAOS_W_DISPATCH);
	err = chaos_device_copy(m, room, false);
	if (!err)
		err = covey_dispatch_send(m->ep, &args, chaos_stream(m));
	chaos_trap_at(m, CHAOS_T_IN_DISPATCH);
	if (!err)
		err = covey_dispatch_recv(m->ep, 0, &result);
	err = on_device(m, err, &result);
	code = chaos_end(m, err, &result);
	if (!code && !m->record.status)
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
	int err, code;

	args.num_tokens = tokens(m, m->rank);
	args.y = chaos_there(m, room->packed);
	args.count = chaos_there(m, room->count);
	args.src_info = chaos_there(m, room->src_info);
	args.range = chaos_there(m, room->range);
	args.experts = chaos_there(m, room->experts[0]);
	args.weights = chaos_there(m, room->weights[0]);
	args.out = chaos_there(m, room->out);
	args.route = chaos_route(m);
	chaos_begin(m, CHAOS_W_COMBINE);
	err = covey_combine_send(m->ep, &args, chaos_stream(m));
	chaos_trap_at(m, CHAOS_T_IN_COMBINE);
	if (!err)
		err = covey_combine_recv(m->ep, 0, &result);
	err = on_device(m, err, &result);
	code = chaos_end(m, err, &result);
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
	memset(m->room->out, 0xee, sizeof(m->room->out));
	chaos_trap_at(m, CHAOS_T_BEFORE_DISPATCH);
	code = run_dispatch(m);
	chaos_trap_at(m, CHAOS_T_BETWEEN);
	if (!code)
		code = run_combine(m);
	chaos_trap_at(m, CHAOS_T_AFTER_COMBINE);
	return code;
}
