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
	bool gathers = !operation_table[c->op].send_blocks;
	struct chaos_blocks u = { 0 };

	for (int r = 0; r < m->size && operation_table[c->op].uneven; r++) {
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

/* Where this rank's input is; not all forms in place are drawn. */
static float *input(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	const struct operation *o = &operation_table[c->op];

	if (!c->in_place || (o->rooted && operation_has_blocks(o)))
		return m->send;
	if (o->send_blocks)
		return o->recv_blocks && !o->uneven && !m->device ? m->recv : m->send;
	if (o->recv_blocks)
		return m->recv + (o->uneven ? u->at[m->rank] : (size_t)m->rank * c->count);
	return m->recv;
}

static float *output(struct chaos_member *m, const struct chaos_call *c)
{
	return c->in_place && c->op == OP_REDUCE_SCATTER ? m->send + (size_t)m->rank * c->count : m->recv;
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
	const struct operation *o = &operation_table[c->op];
	bool apart = o->send_blocks && o->uneven;
	size_t most = chaos_elements(m) + CHAOS_ROOM_SLACK / sizeof(float);
	size_t stride = (apart ? c->count + CHAOS_CALL_GAP : c->count) * (c->dtype == COVEY_FLOAT64 ? 2 : 1);
	float *from = input(m, c, u);

	if (o->no_data)
		return;
	memset(m->recv, UNTOUCHED, most * sizeof(float));
	for (int r = 0; r < (o->send_blocks ? m->size : 1) && c->count < most; r++)
		put_all(m, from + (size_t)r * stride, c->dtype, r,
			apart	    ? u->send[r]
			: o->uneven ? u->send[m->rank] + (size_t)(c->more_at < 0 ? c->more : 0)
				    : c->count + (size_t)c->more);
}

int chaos_operate(struct chaos_member *m, int op, struct operation_call call)
{
	int (*make)(const struct operation_call *) = operation_table[op].call;

	call.group = m->group;
	if (m->device) {
		call.stream = chaos_stream(m);
		return chaos_device_end(m, chaos_device_begin(m) ? COVEY_ERR_IO : make(&call), call.result);
	}
	if (!chaos_in_two(m))
		return make(&call);
	call.work = &m->work;
	return chaos_started(m, make(&call), call.result);
}

int chaos_call_make(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u,
		    struct covey_result *result)
{
	struct operation_call call = { .send = c->bare ? NULL : chaos_there(m, input(m, c, u)),
				       .recv = chaos_there(m, output(m, c)),
				       .count = c->count,
				       .dtype = c->dtype,
				       .redop = c->redop,
				       .root = c->root,
				       .send_counts = u->send,
				       .send_displs = u->at,
				       .recv_counts = c->bare ? NULL : u->recv,
				       .recv_displs = u->at,
				       .result = result };

	if (c->op == OP_ALLGATHERV)
		call.count = u->send[m->rank] + (size_t)(c->more_at < 0 ? c->more : 0);
	return chaos_operate(m, c->op, call);
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

int chaos_call_check(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	const struct operation *o = &operation_table[c->op];
	int to = o->send_blocks ? m->rank : 0, n = o->recv_blocks ? m->size : 1, code = 0;

	if (o->no_data)
		return 0;
	if (o->to_root && c->root != m->rank)
		return input(m, c, u) == m->recv ? 0 : expect_untouched(m, c, c->count * (size_t)n);
	for (int r = 0; r < n && !code; r++) {
		float own = m->record.mask >> r & 1 ? (float)(r + 1) : 0;
		float weight = o->of == OP_OF_ALL ? folded(m, c) : o->of == OP_OF_ROOT ? (float)(c->root + 1) : own;

		code = expect(m, c, o->uneven ? u->at[r] : (size_t)r * c->count, o->uneven ? u->recv[r] : c->count,
			      weight, to);
	}
	return code;
}
