/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, and groups of calls (group.c). */
#ifndef CVY_NCCL_GROUP_H
#define CVY_NCCL_GROUP_H

#include "comm.h"

enum cvy_nccl_kind {
	CVY_NCCL_ALLREDUCE,
	CVY_NCCL_REDUCE,
	CVY_NCCL_REDUCE_SCATTER,
	CVY_NCCL_BROADCAST,
	CVY_NCCL_ALLGATHER,
	CVY_NCCL_ALLTOALL,
	CVY_NCCL_GATHER,
	CVY_NCCL_SCATTER,
	CVY_NCCL_SEND,
	CVY_NCCL_RECV
};

struct cvy_nccl_call {
	const char *name;
	enum cvy_nccl_kind kind;
	ncclDataType_t type;
	const void *send;
	void *recv;
	size_t count;
	int op;			    /* ncclRedOp_t */
	int root;		    /* or the peer */
	struct cvy_nccl_redop made; /* of an operator that the program made: it may destroy it before the group ends */
	struct ncclComm *comm;
	cudaStream_t stream;
};

/* Checks a call; runs it, or keeps it until the end of the group of calls that is open on this thread. */
ncclResult_t cvy_nccl_call(const struct cvy_nccl_call *call);
/*
 * The end of each call that makes a communicator. @r: it was refused, and then the others of the open group end with it.
 * Else *out, unless it is NULL, is waited for, by this call or at the end of the group.
 */
ncclResult_t cvy_nccl_making(ncclResult_t r, ncclComm_t *out);
/* Forgets the open group of calls, and ends the communicators that were made in it. */
void cvy_nccl_group_drop(void);

/* launch.c, under the lock of the communicator. */
ncclResult_t cvy_nccl_launch(const struct cvy_nccl_call *call);

/* scale.cu: @to[i] = @from[i] times the scalar of @op. */
struct cvy_nccl_scaling {
	const void *from;
	void *to;
	size_t count, step; /* of a thread, in elements */
	const void *at;
	unsigned char value[8];
	int type;
};
#ifdef __cplusplus
extern "C" {
#endif
int cvy_nccl_scale(const struct cvy_nccl_scaling *scaling, struct CUstream_st *stream);
/* The same from an 8-bit float to f32; and from f32 back, without a scalar. */
int cvy_nccl_widen(const struct cvy_nccl_scaling *scaling, struct CUstream_st *stream);
int cvy_nccl_narrow(const struct cvy_nccl_scaling *scaling, struct CUstream_st *stream);
#ifdef __cplusplus
}
#endif

#endif
