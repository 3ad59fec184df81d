/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's operations, each as one struct. */
#include "group.h"

#define CALL(...) cvy_nccl_call(&(struct cvy_nccl_call){ .name = __func__, __VA_ARGS__ })

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
			   ncclComm_t comm, ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_ALLREDUCE, .type = type, .send = send, .recv = recv, .count = count, .op = (int)op,
		    .comm = comm, .stream = stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
			ncclComm_t comm, ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_REDUCE, .type = type, .send = send, .recv = recv, .count = count, .op = (int)op,
		    .root = root, .comm = comm, .stream = stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
			       ncclComm_t comm, ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_REDUCE_SCATTER, .type = type, .send = send, .recv = recv, .count = count,
		    .op = (int)op, .comm = comm, .stream = stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
			   ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_BROADCAST, .type = type, .send = send, .recv = recv, .count = count, .root = root,
		    .comm = comm, .stream = stream);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_BROADCAST, .type = type, .send = buffer, .recv = buffer, .count = count,
		    .root = root, .comm = comm, .stream = stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
			   ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_ALLGATHER, .type = type, .send = send, .recv = recv, .count = count, .comm = comm,
		    .stream = stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
			  ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_ALLTOALL, .type = type, .send = send, .recv = recv, .count = count, .comm = comm,
		    .stream = stream);
}

ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
			ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_GATHER, .type = type, .send = send, .recv = recv, .count = count, .root = root,
		    .comm = comm, .stream = stream);
}

ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
			 ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_SCATTER, .type = type, .send = send, .recv = recv, .count = count, .root = root,
		    .comm = comm, .stream = stream);
}

ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_SEND, .type = type, .send = buffer, .count = count, .root = peer, .comm = comm,
		    .stream = stream);
}

ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ncclStream stream)
{
	return CALL(.kind = CVY_NCCL_RECV, .type = type, .recv = buffer, .count = count, .root = peer, .comm = comm,
		    .stream = stream);
}
