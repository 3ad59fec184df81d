/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of NCCL as calls of covey: datatypes, reductions, streams. */
#include "group.h"

static struct CUstream_st *stream_of(const struct cvy_nccl_call *c)
{
	return c->stream ? (struct CUstream_st *)c->stream : COVEY_STREAM_DEFAULT;
}

static int reduces(enum cvy_nccl_kind kind)
{
	return kind == CVY_NCCL_ALLREDUCE || kind == CVY_NCCL_REDUCE || kind == CVY_NCCL_REDUCE_SCATTER;
}

static int run(const struct cvy_nccl_call *c, int type, int op)
{
	struct covey_group *g = c->comm->group;
	struct CUstream_st *s = stream_of(c);

	switch (c->kind) {
	case CVY_NCCL_ALLREDUCE:
		return covey_allreduce(c->send, c->recv, c->count, type, op, g, s, NULL);
	case CVY_NCCL_REDUCE:
		return covey_reduce(c->send, c->recv, c->count, type, op, c->root, g, s, NULL);
	case CVY_NCCL_REDUCE_SCATTER:
		return covey_reduce_scatter(c->send, c->recv, c->count, type, op, g, s, NULL);
	case CVY_NCCL_BROADCAST:
		return covey_broadcast(c->send, c->recv, c->count, type, c->root, g, s, NULL);
	case CVY_NCCL_ALLGATHER:
		return covey_allgather(c->send, c->recv, c->count, type, g, s, NULL);
	case CVY_NCCL_ALLTOALL:
		return covey_alltoall(c->send, c->recv, c->count, type, g, s, NULL);
	case CVY_NCCL_GATHER:
		return covey_gather(c->send, c->recv, c->count, type, c->root, g, s, NULL);
	case CVY_NCCL_SCATTER:
		return covey_scatter(c->send, c->recv, c->count, type, c->root, g, s, NULL);
	case CVY_NCCL_SEND:
		return covey_send(c->send, c->count, type, c->root, 0, g, s, NULL);
	case CVY_NCCL_RECV:
		return covey_recv(c->recv, c->count, type, c->root, 0, g, s, NULL);
	}
	return COVEY_ERR_INVAL;
}

static ncclResult_t run_plain(const struct cvy_nccl_call *c, int op)
{
	int type = reduces(c->kind) ? cvy_nccl_reduced(c->type) : cvy_nccl_moved(c->type);

	return cvy_nccl_covey(run(c, type, op), c->comm->group, c->name);
}

/* Elements that a rank gives. */
static size_t given(const struct cvy_nccl_call *c)
{
	return c->kind == CVY_NCCL_REDUCE_SCATTER ? c->count * (size_t)c->comm->size : c->count;
}

/* Memory of the stream, which a graph can capture. */
static ncclResult_t borrow(const struct cvy_nccl_call *c, size_t bytes, void **room)
{
	return cvy_nccl_cuda(cudaMallocAsync(room, bytes, c->stream), "memory for the inputs of a reduction");
}

/* ---- a scalar, then a sum ---- */

static struct cvy_nccl_scaling scaling_of(const struct cvy_nccl_call *c, const struct cvy_nccl_redop *op, void *to)
{
	struct cvy_nccl_scaling s = { .from = c->send, .to = to, .count = given(c), .at = op->at, .type = (int)c->type };

	for (size_t i = 0; i < sizeof(s.value); i++)
		s.value[i] = op->value[i];
	return s;
}

static ncclResult_t scale(const struct cvy_nccl_call *c, const struct cvy_nccl_redop *op, void *to)
{
	struct cvy_nccl_scaling s = scaling_of(c, op, to);

	return cvy_nccl_cuda((cudaError_t)cvy_nccl_scale(&s, c->stream), c->name);
}

/* The output of an allreduce has room for the scaled input; the others borrow memory. */
static ncclResult_t run_scaled(const struct cvy_nccl_call *c, const struct cvy_nccl_redop *op)
{
	struct cvy_nccl_call then = *c;
	void *room = c->recv;
	ncclResult_t r = ncclSuccess;

	if (!given(c))
		return run_plain(c, COVEY_SUM);
	if (c->kind != CVY_NCCL_ALLREDUCE)
		r = borrow(c, given(c) * cvy_nccl_bytes(c->type), &room);
	if (r)
		return r;
	r = scale(c, op, room);
	then.send = room;
	if (!r)
		r = run_plain(&then, COVEY_SUM);
	if (room != c->recv)
		cudaFreeAsync(room, c->stream);
	return r;
}

/* ---- 8-bit floats ---- */

static ncclResult_t widen(const struct cvy_nccl_call *c, float *to)
{
	const struct cvy_nccl_redop one = { .value = { c->type == ncclFloat8e4m3 ? 0x38 : 0x3c } };
	struct cvy_nccl_scaling s = scaling_of(c, c->op < ncclNumOps ? &one : &c->made, to);

	return cvy_nccl_cuda((cudaError_t)cvy_nccl_widen(&s, c->stream), c->name);
}

/* The result, where this rank has one. */
static ncclResult_t narrow(const struct cvy_nccl_call *c, const float *from)
{
	const struct cvy_nccl_scaling s = { .from = from, .to = c->recv, .count = c->count, .type = (int)c->type };

	if (c->kind == CVY_NCCL_REDUCE && c->root != c->comm->rank)
		return ncclSuccess;
	return cvy_nccl_cuda((cudaError_t)cvy_nccl_narrow(&s, c->stream), c->name);
}

/* In borrowed memory, in place. */
static ncclResult_t run_float8(const struct cvy_nccl_call *c)
{
	struct cvy_nccl_call then = *c;
	void *room = NULL;
	float *result;
	ncclResult_t r;

	if (!c->count)
		return run_plain(c, COVEY_SUM);
	r = borrow(c, given(c) * sizeof(float), &room);
	if (r)
		return r;
	result = (float *)room + (c->kind == CVY_NCCL_REDUCE_SCATTER ? c->count * (size_t)c->comm->rank : 0);
	then.send = room;
	then.recv = result;
	r = widen(c, room);
	if (!r)
		r = run_plain(&then, c->op < ncclNumOps ? c->op : COVEY_SUM);
	if (!r)
		r = narrow(c, result);
	cudaFreeAsync(room, c->stream);
	return r;
}

ncclResult_t cvy_nccl_launch(const struct cvy_nccl_call *c)
{
	if (reduces(c->kind) && cvy_nccl_is_float8(c->type))
		return run_float8(c);
	if (!reduces(c->kind) || c->op < ncclNumOps)
		return run_plain(c, c->op);
	return run_scaled(c, &c->made);
}
