/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of operations: name, call, factor of the bus bandwidth, and the origin of each element of a result. A new
 * operation of covey.h is one entry here and its call.
 */
#include "perf.h"

double perf_factor(const struct perf_op *op, int n)
{
	return op->others ? op->factor * (n - 1) / n : op->factor;
}

bool perf_origin(const struct perf_op *op, const struct perf_call *c, size_t block, size_t i, struct perf_origin *out)
{
	const int rank[] = { [PERF_OF_ALL] = PERF_ALL,
			     [PERF_OF_ROOT] = c->root,
			     [PERF_OF_BLOCK] = (int)block,
			     [PERF_OF_BEFORE] = (c->rank + c->size - 1) % c->size };

	if (op->no_data || (op->to_root && c->rank != c->root))
		return false;
	*out = (struct perf_origin){ rank[op->of], op->send == PERF_BLOCKS ? (size_t)c->rank * c->count + i : i };
	return true;
}

#define CALL(NAME, ...) \
	static int NAME(const struct perf_call *c) \
	{ \
		return covey_##NAME(__VA_ARGS__, c->group, c->stream, c->result); \
	}

CALL(allreduce, c->send, c->recv, c->count, c->dtype, c->redop)
CALL(broadcast, c->send, c->recv, c->count, c->dtype, c->root)
CALL(allgather, c->send, c->recv, c->count, c->dtype)
CALL(alltoall, c->send, c->recv, c->count, c->dtype)
CALL(reduce, c->send, c->recv, c->count, c->dtype, c->redop, c->root)
CALL(reduce_scatter, c->send, c->recv, c->count, c->dtype, c->redop)
CALL(gather, c->send, c->recv, c->count, c->dtype, c->root)
CALL(scatter, c->send, c->recv, c->count, c->dtype, c->root)

/* Equal blocks; the arguments are made again only when the blocks change. */
static size_t counts[COVEY_MAX_RANKS], displs[COVEY_MAX_RANKS];

static void lay_out(const struct perf_call *c)
{
	if (counts[0] == c->count && displs[c->size - 1] == c->count * (size_t)(c->size - 1))
		return;
	for (int r = 0; r < c->size; r++) {
		counts[r] = c->count;
		displs[r] = c->count * (size_t)r;
	}
}

static int allgatherv(const struct perf_call *c)
{
	lay_out(c);
	return covey_allgatherv(c->send, c->count, c->recv, counts, displs, c->dtype, c->group, c->stream, c->result);
}

static int alltoallv(const struct perf_call *c)
{
	lay_out(c);
	return covey_alltoallv(c->send, counts, displs, c->recv, counts, displs, c->dtype, c->group, c->stream,
			       c->result);
}

/* Around the ring, as nccl-tests does: to the next rank, from the one before. */
static int sendrecv(const struct perf_call *c)
{
	int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size, err, ended;

	err = covey_group_start();
	if (err)
		return err;
	err = covey_send(c->send, c->count, c->dtype, next, 0, c->group, c->stream, NULL);
	if (!err)
		err = covey_recv(c->recv, c->count, c->dtype, before, 0, c->group, c->stream, c->result);
	ended = covey_group_end();
	return err ? err : ended;
}

static int barrier(const struct perf_call *c)
{
	return covey_barrier(c->group, c->stream, c->result);
}

const struct perf_op perf_ops[] = {
	{ .name = "allreduce",
	  .summary = "every rank gets the reduction of all",
	  .call = allreduce,
	  .factor = 2,
	  .others = true,
	  .reduces = true,
	  .in_place = true },
	{ .name = "broadcast",
	  .summary = "every rank gets the root's buffer",
	  .call = broadcast,
	  .of = PERF_OF_ROOT,
	  .factor = 1,
	  .rooted = true,
	  .in_place = true },
	{ .name = "allgather",
	  .summary = "every rank gets the blocks of all",
	  .call = allgather,
	  .of = PERF_OF_BLOCK,
	  .factor = 1,
	  .others = true,
	  .recv = PERF_BLOCKS,
	  .total = true,
	  .in_place = true },
	{ .name = "alltoall",
	  .summary = "every rank gets its block of each",
	  .call = alltoall,
	  .of = PERF_OF_BLOCK,
	  .factor = 1,
	  .others = true,
	  .send = PERF_BLOCKS,
	  .recv = PERF_BLOCKS,
	  .total = true,
	  .in_place = true,
	  .where = PERF_OUT_ON_DEVICE },
	{ .name = "reduce",
	  .summary = "the root gets the reduction of all",
	  .call = reduce,
	  .to_root = true,
	  .factor = 1,
	  .reduces = true,
	  .rooted = true,
	  .in_place = true },
	{ .name = "reduce_scatter",
	  .summary = "every rank gets the reduction of its block",
	  .call = reduce_scatter,
	  .factor = 1,
	  .others = true,
	  .send = PERF_BLOCKS,
	  .reduces = true,
	  .total = true,
	  .in_place = true },
	{ .name = "allgatherv",
	  .summary = "allgather with counts and places",
	  .call = allgatherv,
	  .of = PERF_OF_BLOCK,
	  .factor = 1,
	  .others = true,
	  .recv = PERF_BLOCKS,
	  .total = true,
	  .in_place = true },
	{ .name = "alltoallv",
	  .summary = "alltoall with counts and places",
	  .call = alltoallv,
	  .of = PERF_OF_BLOCK,
	  .factor = 1,
	  .others = true,
	  .send = PERF_BLOCKS,
	  .recv = PERF_BLOCKS,
	  .total = true,
	  .in_place = true,
	  .where = PERF_OUT_ON_DEVICE },
	{ .name = "gather",
	  .summary = "the root gets the blocks of all",
	  .call = gather,
	  .of = PERF_OF_BLOCK,
	  .to_root = true,
	  .factor = 1,
	  .others = true,
	  .recv = PERF_BLOCKS,
	  .rooted = true,
	  .total = true,
	  .in_place = true },
	{ .name = "scatter",
	  .summary = "every rank gets its block of the root's buffer",
	  .call = scatter,
	  .of = PERF_OF_ROOT,
	  .factor = 1,
	  .others = true,
	  .send = PERF_BLOCKS,
	  .rooted = true,
	  .total = true,
	  .in_place = true },
	{ .name = "sendrecv",
	  .summary = "to the next rank, from the one before",
	  .call = sendrecv,
	  .of = PERF_OF_BEFORE,
	  .factor = 1,
	  .messages = true },
	{ .name = "barrier", .summary = "no data: one row, whatever the sizes", .call = barrier, .no_data = true },
};

const int perf_op_count = sizeof(perf_ops) / sizeof(perf_ops[0]);
