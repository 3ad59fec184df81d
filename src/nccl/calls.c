/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's operations, each as one struct. */
#include "group.h"

/* The operation @name of the arguments in the parentheses, between which and the stream all have the communicator. */
#define CALL(name_, of, arguments, ...) \
	ncclResult_t name_(EACH arguments, ncclComm_t comm, ncclStream stream) \
	{ \
		return cvy_nccl_call(&(struct cvy_nccl_call){ .name = #name_, \
							      .kind = CVY_NCCL_##of, \
							      .type = type, \
							      .count = count, \
							      .comm = comm, \
							      .stream = stream, \
							      __VA_ARGS__ }); \
	}
#define EACH(...) __VA_ARGS__
#define BUFFERS const void *send, void *recv, size_t count, ncclDataType_t type

CALL(ncclAllReduce, ALLREDUCE, (BUFFERS, ncclRedOp_t op), .send = send, .recv = recv, .op = (int)op)
CALL(ncclReduce, REDUCE, (BUFFERS, ncclRedOp_t op, int root), .send = send, .recv = recv, .op = (int)op, .root = root)
CALL(ncclReduceScatter, REDUCE_SCATTER, (BUFFERS, ncclRedOp_t op), .send = send, .recv = recv, .op = (int)op)
CALL(ncclBroadcast, BROADCAST, (BUFFERS, int root), .send = send, .recv = recv, .root = root)
CALL(ncclBcast, BROADCAST, (void *buffer, size_t count, ncclDataType_t type, int root), .send = buffer, .recv = buffer,
     .root = root)
CALL(ncclAllGather, ALLGATHER, (BUFFERS), .send = send, .recv = recv)
CALL(ncclAlltoAll, ALLTOALL, (BUFFERS), .send = send, .recv = recv)
CALL(ncclGather, GATHER, (BUFFERS, int root), .send = send, .recv = recv, .root = root)
CALL(ncclScatter, SCATTER, (BUFFERS, int root), .send = send, .recv = recv, .root = root)
CALL(ncclSend, SEND, (const void *buffer, size_t count, ncclDataType_t type, int peer), .send = buffer, .root = peer)
CALL(ncclRecv, RECV, (void *buffer, size_t count, ncclDataType_t type, int peer), .recv = buffer, .root = peer)
