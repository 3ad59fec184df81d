/* SPDX-License-Identifier: Apache-2.0 */
/* A call from its description: its input, the call itself, and the right result for this rank. */
#include <stdio.h>
#include <string.h>

#include "call.h"

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

/* Blocks have gaps between them, so that one with more elements has room. */
struct chaos_blocks chaos_call_lay_out(const struct chaos_member *m, const struct chaos_call *c)
{
	bool gathers = c->op == CHAOS_W_ALLGATHERV;
	struct chaos_blocks u = { 0 };

	for (int r = 0; r < m->size && (gathers || c->op == CHAOS_W_ALLTOALLV); r++) {
		u.at[r] = (size_t)r * (c->count + 7);
		u.send[r] = part(m, c, m->rank, gathers ? 0 : r);
		u.recv[r] = part(m, c, r, gathers ? 0 : m->rank);
	}
	if (c->more_at >= 0) {
		u.send[c->more_at] += (size_t)c->more;
		u.recv[c->more_at] += gathers ? (size_t)c->more : 0;
	}
	return u;
}

void chaos_call_fill(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	bool apart = c->op == CHAOS_W_ALLTOALLV, many = apart || blocks(c->op);
	size_t stride = apart ? c->count + 7 : c->count, most = chaos_elements(m) + CHAOS_ROOM_SLACK / sizeof(float);

	memset(m->recv, 1, most * sizeof(float));
	for (int to = 0; to < (many ? m->size : 1) && c->count < most; to++) {
		size_t n = apart ? u->send[to] : c->count + (size_t)c->more;

		for (size_t i = 0; i < n; i++)
			put(m->send, c->dtype, (size_t)to * stride + i, chaos_value(m, m->rank, to, i));
	}
}

int chaos_call_make(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u,
		    struct covey_result *result)
{
	const void *send = c->bare ? NULL : m->send;

	switch (c->op) {
	case CHAOS_W_BROADCAST:
		return CHAOS_CALL(broadcast, send, m->recv, c->count, c->dtype, c->root);
	case CHAOS_W_ALLGATHER:
		return CHAOS_CALL(allgather, send, m->recv, c->count, c->dtype);
	case CHAOS_W_ALLTOALL:
		return CHAOS_CALL(alltoall, send, m->recv, c->count, c->dtype);
	case CHAOS_W_ALLTOALLV:
		return c->bare ? CHAOS_CALL(alltoallv, send, u->send, u->at, m->recv, NULL, u->at, c->dtype)
			       : CHAOS_CALL(alltoallv, send, u->send, u->at, m->recv, u->recv, u->at, c->dtype);
	case CHAOS_W_BARRIER:
		return covey_barrier(m->group, NULL, result);
	case CHAOS_W_REDUCE:
		return CHAOS_CALL(reduce, send, m->recv, c->count, c->dtype, c->redop, c->root);
	case CHAOS_W_REDUCE_SCATTER:
		return CHAOS_CALL(reduce_scatter, send, m->recv, c->count, c->dtype, c->redop);
	case CHAOS_W_ALLGATHERV:
		return CHAOS_CALL(allgatherv, send, u->send[m->rank] + (size_t)(c->more_at < 0 ? c->more : 0), m->recv,
				  u->recv, u->at, c->dtype);
	case CHAOS_W_GATHER:
		return CHAOS_CALL(gather, send, m->recv, c->count, c->dtype, c->root);
	case CHAOS_W_SCATTER:
		return CHAOS_CALL(scatter, send, m->recv, c->count, c->dtype, c->root);
	default:
		return CHAOS_CALL(allreduce, send, m->recv, c->count, c->dtype, c->redop);
	}
}

/* ---- Results ---- */

static double folded(const struct chaos_member *m, const struct chaos_call *c, int to, size_t i)
{
	double sum = 0;
	bool first = true;

	for (int r = 0; r < m->size; r++) {
		double v = chaos_value(m, r, to, i);

		if (!(m->record.mask >> r & 1))
			continue;
		sum = first ? v : c->redop == COVEY_SUM ? sum + v : (c->redop == COVEY_MAX) == (v > sum) ? v : sum;
		first = false;
	}
	return sum;
}

static int expect(struct chaos_member *m, const struct chaos_call *c, size_t at, size_t i, double want)
{
	double got = get(m->recv, c->dtype, at + i);

	return got == want ? 0 : chaos_bad_bytes(m, chaos_work_names[c->op], at + i, got, want);
}

static int expect_whole(struct chaos_member *m, const struct chaos_call *c)
{
	int to = c->op == CHAOS_W_REDUCE_SCATTER || c->op == CHAOS_W_SCATTER ? m->rank : 0, code = 0;
	bool given = c->op == CHAOS_W_BROADCAST || c->op == CHAOS_W_SCATTER;

	if (c->op == CHAOS_W_REDUCE && c->root != m->rank)
		return 0;
	for (size_t i = 0; i < c->count && !code; i++)
		code = expect(m, c, 0, i, given ? chaos_value(m, c->root, to, i) : folded(m, c, to, i));
	return code;
}

static int expect_blocks(struct chaos_member *m, const struct chaos_call *c, const struct chaos_blocks *u)
{
	bool uneven = c->op == CHAOS_W_ALLTOALLV || c->op == CHAOS_W_ALLGATHERV;
	int to = c->op == CHAOS_W_ALLTOALL || c->op == CHAOS_W_ALLTOALLV ? m->rank : 0, code = 0;

	if (c->op == CHAOS_W_GATHER && c->root != m->rank)
		return 0;
	for (int r = 0; r < m->size && !code; r++) {
		size_t n = uneven ? u->recv[r] : c->count, at = uneven ? u->at[r] : (size_t)r * c->count;
		bool there = m->record.mask >> r & 1;

		for (size_t i = 0; i < n && !code; i++)
			code = expect(m, c, at, i, there ? chaos_value(m, r, to, i) : 0);
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
