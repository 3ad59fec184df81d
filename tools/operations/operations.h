/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations that all ranks call alike, as a table: how each is called, what its buffers hold, and whose elements
 * its result has. ep-perf, ep-chaos, the simulator and unit tests go through it: a new operation of covey.h is one entry
 * here and its call.
 *
 * In place, the smaller buffer is the own block of the larger one.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "covey.h"

#define OPERATION_LIST(X) \
	X(OP_ALLREDUCE, allreduce) \
	X(OP_BROADCAST, broadcast) \
	X(OP_ALLGATHER, allgather) \
	X(OP_ALLTOALL, alltoall) \
	X(OP_ALLTOALLV, alltoallv) \
	X(OP_BARRIER, barrier) \
	X(OP_REDUCE, reduce) \
	X(OP_REDUCE_SCATTER, reduce_scatter) \
	X(OP_ALLGATHERV, allgatherv) \
	X(OP_GATHER, gather) \
	X(OP_SCATTER, scatter)

#define OPERATION_ID(id, name) id,
#define OPERATION_NAME(id, name) [id] = #name,

enum operation_id {
	OPERATION_LIST(OPERATION_ID) OP_SENDRECV, /* to the next rank, from the one before: with no result of all */
	OP_COUNT
};

struct operation_call {
	const void *send;
	void *recv;
	size_t count; /* elements of a block; of allgatherv of the own one */
	int dtype, redop, root;
	int rank, size;							     /* of the group; OP_SENDRECV reads them */
	const size_t *send_counts, *send_displs, *recv_counts, *recv_displs; /* of the uneven ones */
	struct covey_group *group;
	struct CUstream_st *stream; /* NULL: host memory */
	struct covey_result *result;
	struct covey_work **work; /* where a started call is put; NULL: it is waited for */
};

struct operation {
	const char *name;
	int (*call)(const struct operation_call *call); /* COVEY_ERR_* */
	/* Whose elements a block of the result has: those of all, reduced; BEFORE: of the rank before in the ring */
	enum { OP_OF_ALL, OP_OF_ROOT, OP_OF_BLOCK, OP_OF_BEFORE } of;
	bool send_blocks, recv_blocks; /* a block for each rank, where it is rooted on the root alone */
	bool reduces, rooted;
	bool to_root; /* only the root receives */
	bool uneven;  /* with counts and displacements */
	bool no_data;
	bool others;   /* the factor counts for n - 1 of n ranks */
	double factor; /* of the bytes, for the bandwidth of the bus as nccl-tests counts it */
};

extern const struct operation operation_table[OP_COUNT];

static inline bool operation_has_blocks(const struct operation *op)
{
	return op->send_blocks || op->recv_blocks;
}

#endif
