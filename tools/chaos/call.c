/* SPDX-License-Identifier: Apache-2.0 */
/* A call from its description: its input, the call itself, and the right result for this rank. */
#include <stdio.h>
#include <string.h>

#include "call.h"

#define PIECE 256   /* elements that are compared at once */
#define UNTOUCHED 1 /* bytes where a result will be */

const char *chaos_call_text(const struct chaos_call *c, char *to, size_t bytes)
{
	snprintf(to, bytes, "%s(count %zu, type %d, reduction %d, root %d%s)", chaos_work_names[c->op], c->count,
		 c->dtype, c->redop, c->root, c->more ? ", a block with more" : "");
	return to;
}

static bool blocks(enum chaos_work op)
{
	return op == CHAOS_W_ALLTOALL || op == CHAOS_W_REDUCE_SCATTER || op == CHAOS_W_SCATTER;
}

static void put(void *at, int dtype, size_t i, float v)
{
	if (dtype == COVEY_FLOAT64)
		((double *)at)[i] = v;
	else if (dtype == COVEY_INT32)
		((int32_t *)at)[i] = (int32_t)v;
	else
		((float *)at)[i] = v;
}

static double get(const void *at, int dtype, size_t i)
{
	return dtype == COVEY_FLOAT64 ? ((const double *)at)[i]
	       : dtype == COVEY_INT32 ? ((const int32_t *)at)[i]
				      : ((const float *)at)[i];
}

/* The elements that @from sends to @to, of the uneven operations. */
static size_t part(const struct chaos_member *m, const struct chaos_call *c, int from, int to)
{
	return (size_t)((uint64_t)from * 5 + (uint64_t)to * 3 + m->step) % c->count;
}

struct chaos_blocks chaos_call_lay_out(const struct chaos_member *m, const struct chaos_call *c)
{
	bool gathers = c->op == CHAOS_W_ALLGATHERV;
	struct chaos_blocks u = { 0 };

	for (int r = 0; r < m->size && (gathers || c->op == CHAOS_W_ALLTOALLV); r++) {
		u.at[r] = (size_t)r * (c->count + CHAOS_CALL_GAP);
		u.send[r] = part(m, c, m->rank, gathers ? 0 : r);
		u.recv[r] = part(m, c, r, gathers ? 0 : m->rank);
	}
	if (c->more_at >= 0) {
		u.send[c->more_at] += (size_t)c->more;
		u.recv[c->more_at] += gathers ? (size_t)c->more : 0;
	}
	return u;
}

/* Where this rank's input is; not all operations have a form in place. */
static float *input(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	bool whole = c->op == CHAOS_W_ALLREDUCE || c->op == CHAOS_W_BROADCAST || c->op == CHAOS_W_REDUCE;

	if (c->in_place && (whole || (c->op == CHAOS_W_ALLTOALL && !m->device)))
		return m->recv;
	if (c->in_place && c->op == CHAOS_W_ALLGATHER)
		return m->recv + (size_t)m->rank * c->count;
	return c->in_place && c->op == CHAOS_W_ALLGATHERV ? m->recv + u->at[m->rank] : m->send;
}

static float *output(struct chaos_member *m, const struct chaos_call *c)
{
	return c->in_place && c->op == CHAOS_W_REDUCE_SCATTER ? m->send + (size_t)m->rank * c->count : m->recv;
}

static void put_all(const struct chaos_member *m, float *at, int dtype, int to, size_t count)
{
	const float *in = chaos_inputs(m, to);
	float mine = (float)(m->rank + 1);

	for (size_t i = 0; i < count && dtype != COVEY_FLOAT32; i++)
		put(at, dtype, i, mine * in[i]);
	for (size_t i = 0; i < count && dtype == COVEY_FLOAT32; i++)
		at[i] = mine * in[i];
}

void chaos_call_fill(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	bool apart = c->op == CHAOS_W_ALLTOALLV, many = apart || blocks(c->op);
	size_t most = chaos_elements(m) + CHAOS_ROOM_SLACK / sizeof(float);
	size_t stride = (apart ? c->count + CHAOS_CALL_GAP : c->count) * (c->dtype == COVEY_FLOAT64 ? 2 : 1);
	float *from = input(m, c, u);

	memset(m->recv, UNTOUCHED, most * sizeof(float));
	for (int r = 0; r < (many ? m->size : 1) && c->count < most; r++)
		put_all(m, from + (size_t)r * stride, c->dtype, r,
			apart			      ? u->send[r]
			: c->op == CHAOS_W_ALLGATHERV ? u->send[m->rank] + (size_t)(c->more_at < 0 ? c->more : 0)
						      : c->count + (size_t)c->more);
}

int chaos_call_make(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u,
		    struct covey_result *result)
{
	void *send = c->bare ? NULL : chaos_there(m, input(m, c, u)), *recv = chaos_there(m, output(m, c));

	switch (c->op) {
	case CHAOS_W_BROADCAST:
		return CHAOS_CALL(broadcast, send, recv, c->count, c->dtype, c->root);
	case CHAOS_W_ALLGATHER:
		return CHAOS_CALL(allgather, send, recv, c->count, c->dtype);
	case CHAOS_W_ALLTOALL:
		return CHAOS_CALL(alltoall, send, recv, c->count, c->dtype);
	case CHAOS_W_ALLTOALLV:
		return c->bare ? CHAOS_CALL(alltoallv, send, u->send, u->at, recv, NULL, u->at, c->dtype)
			       : CHAOS_CALL(alltoallv, send, u->send, u->at, recv, u->recv, u->at, c->dtype);
	case CHAOS_W_BARRIER:
		if (!m->device)
			return covey_barrier(m->group, NULL, result);
		return chaos_device_end(
			m, chaos_device_begin(m) ? COVEY_ERR_IO : covey_barrier(m->group, chaos_stream(m), result),
			result);
	case CHAOS_W_REDUCE:
		return CHAOS_CALL(reduce, send, recv, c->count, c->dtype, c->redop, c->root);
	case CHAOS_W_REDUCE_SCATTER:
		return CHAOS_CALL(reduce_scatter, send, recv, c->count, c->dtype, c->redop);
	case CHAOS_W_ALLGATHERV:
		return CHAOS_CALL(allgatherv, send, u->send[m->rank] + (size_t)(c->more_at < 0 ? c->more : 0), recv,
				  u->recv, u->at, c->dtype);
	case CHAOS_W_GATHER:
		return CHAOS_CALL(gather, send, recv, c->count, c->dtype, c->root);
	case CHAOS_W_SCATTER:
		return CHAOS_CALL(scatter, send, recv, c->count, c->dtype, c->root);
	default:
		return CHAOS_CALL(allreduce, send, recv, c->count, c->dtype, c->redop);
	}
}

/* ---- Results ---- */

/* Inputs are a multiple of the rank + 1, and positive: so are their sums, and the largest and the smallest. */
static float folded(const struct chaos_member *m, const struct chaos_call *c)
{
	float weight = 0;

	for (int r = 0; r < m->size; r++) {
		if (!(m->record.mask >> r & 1))
			continue;
		if (c->redop == COVEY_SUM || !weight || c->redop == COVEY_MAX) /* ranks ascend */
			weight = (c->redop == COVEY_SUM ? weight : 0) + (float)(r + 1);
	}
	return weight;
}

/* Elements up to the piece with a wrong one, by whole pieces. */
static size_t right(const float *got, const float *in, float weight, size_t count)
{
	size_t i = 0;
	int bad = 0;

	for (; i + PIECE <= count && !bad; i += PIECE)
		for (size_t k = 0; k < PIECE; k++)
			bad |= got[i + k] != weight * in[i + k];
	return bad ? i - PIECE : i;
}

/* @count elements from @at on must be @weight times the inputs for @for_rank. */
static int expect(struct chaos_member *m, const struct chaos_call *c, size_t at, size_t count, float weight,
		  int for_rank)
{
	const float *in = chaos_inputs(m, for_rank);
	const float *from = output(m, c);
	size_t i = 0;

	if (c->dtype == COVEY_FLOAT32)
		i = right(from + at, in, weight, count);
	while (i < count && get(from, c->dtype, at + i) == weight * in[i])
		i++;
	return i == count ? 0
			  : chaos_bad_bytes(m, chaos_work_names[c->op], at + i, get(from, c->dtype, at + i),
					    weight * in[i]);
}

/* The result is for the root alone: elsewhere not a byte is touched. */
static int expect_untouched(struct chaos_member *m, const struct chaos_call *c, size_t count)
{
	const uint8_t *got = (const uint8_t *)m->recv;

	for (size_t i = 0; i < count * sizeof(float) && !m->mistake; i++)
		if (got[i] != UNTOUCHED)
			return chaos_bad_bytes(m, chaos_work_names[c->op], i, got[i], UNTOUCHED);
	return 0;
}

static int expect_whole(struct chaos_member *m, const struct chaos_call *c)
{
	int to = c->op == CHAOS_W_REDUCE_SCATTER || c->op == CHAOS_W_SCATTER ? m->rank : 0;
	bool given = c->op == CHAOS_W_BROADCAST || c->op == CHAOS_W_SCATTER;

	if (c->op == CHAOS_W_REDUCE && c->root != m->rank)
		return c->in_place ? 0 : expect_untouched(m, c, c->count);
	return expect(m, c, 0, c->count, given ? (float)(c->root + 1) : folded(m, c), to);
}

static int expect_blocks(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	bool uneven = c->op == CHAOS_W_ALLTOALLV || c->op == CHAOS_W_ALLGATHERV;
	int to = c->op == CHAOS_W_ALLTOALL || c->op == CHAOS_W_ALLTOALLV ? m->rank : 0, code = 0;

	if (c->op == CHAOS_W_GATHER && c->root != m->rank)
		return expect_untouched(m, c, c->count * (size_t)m->size);
	for (int r = 0; r < m->size && !code; r++) {
		float weight = m->record.mask >> r & 1 ? (float)(r + 1) : 0;

		code = expect(m, c, uneven ? u->at[r] : (size_t)r * c->count, uneven ? u->recv[r] : c->count, weight,
			      to);
	}
	return code;
}

int chaos_call_check(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	switch (c->op) {
	case CHAOS_W_BARRIER:
		return 0;
	case CHAOS_W_ALLGATHER:
	case CHAOS_W_ALLTOALL:
	case CHAOS_W_ALLTOALLV:
	case CHAOS_W_ALLGATHERV:
	case CHAOS_W_GATHER:
		return expect_blocks(m, c, u);
	default:
		return expect_whole(m, c);
	}
}
