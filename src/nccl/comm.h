/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator: a group of covey whose members are fixed. A rank that is missing from its view is lost, and then it
 * takes no more operations.
 */
#ifndef CVY_NCCL_COMM_H
#define CVY_NCCL_COMM_H

#include <covey_device.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "nccl_calls.h"
#include "pure.h"

enum cvy_nccl_stage {
	CVY_NCCL_ASKING,  /* a split: the ranks of the parent tell each other color and key */
	CVY_NCCL_JOINING, /* covey_join_start() */
	CVY_NCCL_READY,
	CVY_NCCL_ENDING, /* it has no more operations, and tells the others so */
	CVY_NCCL_ENDED	 /* it has no group any more, or never had one */
};

/* The question of a split, on the group of the parent. Its buffers live until it is decided or that group is closed. */
struct cvy_nccl_asking {
	struct cvy_nccl_asking *next; /* of the same parent */
	struct ncclComm *parent;      /* NULL: decided, or the parent has ended */
	struct ncclComm *child;	      /* NULL: nobody reads the answer */
	struct covey_work *work;
	int closing; /* the parent's group is being closed, which then frees it */
	int32_t own[2];
	int32_t all[CVY_NCCL_RANKS][2]; /* color and key of each rank */
};

/* How often a step was taken: children of the same step have different names. */
struct cvy_nccl_tally {
	struct cvy_nccl_tally *next;
	uint64_t key;
	unsigned count;
};

struct cvy_nccl_redop {
	int used;
	ncclDataType_t type;
	const void *at; /* on the device, or NULL: `value` */
	unsigned char value[8];
};

struct ncclComm {
	pthread_mutex_t lock, group_lock;
	/* Constant from the beginning; of a split from the end of ASKING. */
	struct cvy_nccl_id id;
	int size, rank, device, blocking;
	/* Under the lock. */
	enum cvy_nccl_stage stage;
	ncclResult_t state;		 /* of ncclCommGetAsyncError; an error stays */
	struct covey_group *group;	 /* set and cleared under group_lock too, which is never held for long */
	struct covey_work *ending;	 /* a barrier: all ranks are ENDING */
	struct cvy_nccl_asking *asking;	 /* its own, in stage ASKING */
	struct cvy_nccl_asking *askings; /* those of its children */
	struct cvy_nccl_tally *tallies;
	struct cvy_nccl_redop *redops;
	int redop_count, grow_pending;
	unsigned grown; /* times */
	/* One stream at a time: the next waits for what the last one has. */
	cudaEvent_t done;
	int launched;
	int aborted; /* any thread: loops that wait end */
	/* Of this process, under a lock of end.c. */
	struct ncclComm *next;
	int users;   /* calls under way, and 1 until it is freed: the last one frees the memory */
	int claimed; /* a call will free it */
	int started_end, destroyed;
	/* Of the group of calls in which it is made (group.c). */
	struct ncclComm *next_making;
	ncclComm_t *out;
};

/* Keeps a line for ncclGetLastError() of this thread. */
void cvy_nccl_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Keeps the line and returns @r. */
#define cvy_nccl_fail(r, ...) (cvy_nccl_tell(__VA_ARGS__), (r))
/* The same for an error of covey. @group: NULL, or where the cause is. */
ncclResult_t cvy_nccl_covey(int err, const struct covey_group *group, const char *what);
/* The same for an error of the CUDA runtime. */
ncclResult_t cvy_nccl_cuda(cudaError_t err, const char *what);
const char *cvy_nccl_why(void);
/* A warning in covey's log. */
void cvy_nccl_warn(const char *text);

/* A handle that can be used: ncclSuccess, or told. */
ncclResult_t cvy_nccl_check(const struct ncclComm *comm, const char *call);
/* The same, and takes the lock. Until cvy_nccl_leave() no other thread frees the communicator. */
ncclResult_t cvy_nccl_enter(struct ncclComm *comm, const char *call);
void cvy_nccl_leave(struct ncclComm *comm);
/* Under the lock: rank and size are known. It may have ended since. */
ncclResult_t cvy_nccl_is_made(const struct ncclComm *comm, const char *call);
/* Under the lock, before each operation: ready, whole, and no error. A communicator that has lost a rank is ended here. */
ncclResult_t cvy_nccl_usable(struct ncclComm *comm, const char *call);
/* Under the lock: takes note of who is missing. @all: also if no news came. */
void cvy_nccl_look(struct ncclComm *comm, int all);
/* Under the lock: ends the group, and operations under way with it. It waits for nobody. */
void cvy_nccl_end(struct ncclComm *comm);
void cvy_nccl_free(struct ncclComm *comm); /* after cvy_nccl_end(), by who has claimed it */
/* A new one is among those of this process. */
void cvy_nccl_enlist(struct ncclComm *comm);
/* A handle of this process that is not freed before cvy_nccl_unuse(): 0, it is none. */
int cvy_nccl_use(struct ncclComm *comm);
void cvy_nccl_unuse(struct ncclComm *comm);
/* 1 for one caller: this one frees it. */
int cvy_nccl_claim(struct ncclComm *comm);
/* Ends it and frees it, unless another thread does. */
void cvy_nccl_discard(struct ncclComm *comm);

/* make.c: takes the next step of a communicator that is not READY; never waits longer than to @deadline_ns. */
ncclResult_t cvy_nccl_step(struct ncclComm *comm, uint64_t deadline_ns);
/* One step, with the lock, in which it waits for a moment. */
ncclResult_t cvy_nccl_try(struct ncclComm *comm);
/* Under the lock of the parent: closes its group, with what its children ask. */
void cvy_nccl_close(struct ncclComm *parent);
/* Under the lock of the child that ends: nobody reads the answer. */
void cvy_nccl_ask_no_more(struct ncclComm *child);
uint64_t cvy_nccl_now_ns(void);
/* Sleeps for a moment without the lock. */
void cvy_nccl_nap(struct ncclComm *comm);

/* stream.c. A capture of another thread forbids some calls of the runtime in this one, unless it is exempt. Returns the mode before. */
enum cudaStreamCaptureMode cvy_nccl_exempt(enum cudaStreamCaptureMode mode);
/* The same, under the lock. A thread may be on another device when it calls: memory and events are of this one. */
ncclResult_t cvy_nccl_device_enter(const struct ncclComm *comm, int *was);
void cvy_nccl_device_leave(const struct ncclComm *comm, int was);
/* Before and after what is launched on a stream, on the device. */
ncclResult_t cvy_nccl_stream_before(struct ncclComm *comm, cudaStream_t stream, int *captured);
ncclResult_t cvy_nccl_stream_after(struct ncclComm *comm, cudaStream_t stream, int captured);
/* @waiting waits for what is on @done now. */
ncclResult_t cvy_nccl_stream_wait(cudaStream_t waiting, cudaStream_t done);
/* Waits until what was launched has ended, or a rank is lost. It lets go of the lock while it sleeps. */
ncclResult_t cvy_nccl_stream_drain(struct ncclComm *comm);

#endif
