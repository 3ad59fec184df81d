/* SPDX-License-Identifier: Apache-2.0 */
#include "operations.h"

#define CALL(name, ...) \
	static int name(const struct operation_call *c) \
	{ \
		return c->work ? covey_##name##_start(__VA_ARGS__, c->group, c->stream, c->work) \
			       : covey_##name(__VA_ARGS__, c->group, c->stream, c->result); \
	}

CALL(allreduce, c->send, c->recv, c->count, c->dtype, c->redop)
CALL(broadcast, c->send, c->recv, c->count, c->dtype, c->root)
CALL(allgather, c->send, c->recv, c->count, c->dtype)
CALL(alltoall, c->send, c->recv, c->count, c->dtype)
CALL(alltoallv, c->send, c->send_counts, c->send_displs, c->recv, c->recv_counts, c->recv_displs, c->dtype)
CALL(reduce, c->send, c->recv, c->count, c->dtype, c->redop, c->root)
CALL(reduce_scatter, c->send, c->recv, c->count, c->dtype, c->redop)
CALL(allgatherv, c->send, c->count, c->recv, c->recv_counts, c->recv_displs, c->dtype)
CALL(gather, c->send, c->recv, c->count, c->dtype, c->root)
CALL(scatter, c->send, c->recv, c->count, c->dtype, c->root)

static int barrier(const struct operation_call *c)
{
	return c->work ? covey_barrier_start(c->group, c->stream, c->work)
		       : covey_barrier(c->group, c->stream, c->result);
}

static int sendrecv(const struct operation_call *c)
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

const struct operation operation_table[OP_COUNT] = {
	[OP_ALLREDUCE] = { "allreduce", allreduce, OP_OF_ALL, .factor = 2, .others = true, .reduces = true },
	[OP_BROADCAST] = { "broadcast", broadcast, OP_OF_ROOT, .factor = 1, .rooted = true },
	[OP_ALLGATHER] = { "allgather", allgather, OP_OF_BLOCK, .factor = 1, .others = true, .recv_blocks = true },
	[OP_ALLTOALL] = { "alltoall", alltoall, OP_OF_BLOCK, .factor = 1, .others = true, .send_blocks = true,
			  .recv_blocks = true },
	[OP_ALLTOALLV] = { "alltoallv", alltoallv, OP_OF_BLOCK, .factor = 1, .others = true, .send_blocks = true,
			   .recv_blocks = true, .uneven = true },
	[OP_BARRIER] = { "barrier", barrier, .no_data = true },
	[OP_REDUCE] = { "reduce", reduce, OP_OF_ALL, .factor = 1, .reduces = true, .rooted = true, .to_root = true },
	[OP_REDUCE_SCATTER] = { "reduce_scatter", reduce_scatter, OP_OF_ALL, .factor = 1, .others = true,
				.send_blocks = true, .reduces = true },
	[OP_ALLGATHERV] = { "allgatherv", allgatherv, OP_OF_BLOCK, .factor = 1, .others = true, .recv_blocks = true,
			    .uneven = true },
	[OP_GATHER] = { "gather", gather, OP_OF_BLOCK, .factor = 1, .others = true, .recv_blocks = true, .rooted = true,
			.to_root = true },
	[OP_SCATTER] = { "scatter", scatter, OP_OF_ROOT, .factor = 1, .others = true, .send_blocks = true,
			 .rooted = true },
	[OP_SENDRECV] = { "sendrecv", sendrecv, OP_OF_BEFORE, .factor = 1 },
};
