/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device as the host side of covey uses it: memory that peers can map, the words of the control page, launches.
 * The table is in a library of its own (libcovey_cuda), opened when a device is asked for, so the rest of covey needs
 * no CUDA. It knows nothing of views: collectives/device/device.c decides, this does.
 */
#ifndef CVY_GPU_H
#define CVY_GPU_H

#include "covey_device.h"
#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_GPU_ABI_VERSION 26
#define CVY_GPU_ABI (CVY_GPU_ABI_VERSION | CVY_GPU_RANKS << 16) /* one library may be of a build for other ranks */
#define CVY_GPU_SYMBOL "cvy_gpu_ops"

struct cvy_gpu;
struct cvy_gpu_receipt;
struct cvy_queue;
struct cvy_queue_memory;
struct cvy_copies;
struct CUstream_st;
struct covey_device_peers;

struct cvy_gpu_args {
	int device;  /* CUDA device, 0, 1, ... */
	int late_ms; /* as in struct cvy_gpu_call, 0: never */
	int memory;  /* enum covey_device_memory */
	int peers;   /* IPC: memory for so many is there from the beginning */
};

/* What the calling thread had before cvy_gpu_ops.enter. */
struct cvy_gpu_scope {
	int pushed;  /* the context of this device */
	int capture; /* enum cudaStreamCaptureMode */
	int error;   /* errno */
};

struct cvy_gpu_counters {
	uint8_t gate;
	uint64_t entered, finished, stopped; /* quanta; finished and stopped were read before entered */
	uint64_t guests;
	struct cvy_gpu_parked parked;
	struct cvy_gpu_status status;
	struct cvy_gpu_lane lane[CVY_GPU_LANES];
	struct cvy_gpu_past past[CVY_GPU_LANES];
	struct cvy_gpu_admitted admitted;
};

/* How peers come to map memory of a device. Returns and thread as of struct cvy_gpu_ops. */
struct cvy_gpu_memory {
	int (*open)(struct cvy_gpu *gpu, int peers); /* with the device; @peers: as in struct cvy_gpu_args */
	void (*close)(struct cvy_gpu *gpu);	     /* with the device */

	/* Fresh memory under generation @generation of the chunk that @rank pushes into here. */
	int (*chunk)(struct cvy_gpu *gpu, int rank, int generation);
	/* *fd: of that memory (IPC: a socket in which its handle waits), for @rank, once; the caller's. Apart, since it takes as long
	 * as the memory, and nobody waits for it. */
	int (*chunk_fd)(struct cvy_gpu *gpu, int rank, int generation, int *fd);
	int (*unchunk)(struct cvy_gpu *gpu, int rank, int generation);
	/* Maps @fd (stays the caller's), the chunk that this rank pushes into at @rank. */
	int (*attach)(struct cvy_gpu *gpu, int rank, int generation, int fd);
	int (*detach)(struct cvy_gpu *gpu, int rank, int generation); /* the window too */
	/* Registered memory of this rank, once and for good; *fd: for all peers, caller's. The application's begins at
	 * CVY_GPU_WINDOW_FIRST. Then that of a peer, with its chunk. */
	int (*window)(struct cvy_gpu *gpu, size_t bytes, void **base, int *fd);
	int (*attach_window)(struct cvy_gpu *gpu, int rank, int generation, int fd);
	/* The device was waited for, and stands still. Any thread; NULL: nothing to do. */
	void (*idle)(struct cvy_gpu *gpu);
};

/* All return 0 or COVEY_ERR_* with a line in @why of cvy_gpu_why(). Agent's thread, but for launch and is_device. */
struct cvy_gpu_ops {
	uint32_t abi;
	int (*open)(const struct cvy_gpu_args *args, struct cvy_gpu **out, char *why, size_t why_bytes);
	void (*close)(struct cvy_gpu *gpu); /* ends what is parked first */
	/*
	 * Around all that a thread of the application calls here, but open and close, which do so themselves. Its current device,
	 * how its calls bear on captures, and errno are afterwards what they were.
	 */
	void (*enter)(struct cvy_gpu *gpu, struct cvy_gpu_scope *had);
	void (*leave)(struct cvy_gpu *gpu, const struct cvy_gpu_scope *had);
	const char *(*why)(const struct cvy_gpu *gpu);
	const char *(*describe)(const struct cvy_gpu *gpu);
	int (*memory)(const struct cvy_gpu *gpu); /* how peers map it: COVEY_DEVICE_MEMORY_VMM or _IPC */
	const struct cvy_gpu_memory *(*mapped)(const struct cvy_gpu *gpu);

	int (*gate)(struct cvy_gpu *gpu, uint8_t gate);
	int (*counters)(struct cvy_gpu *gpu, struct cvy_gpu_counters *counters, int all); /* all: lanes too */
	/* Words for the next attempt, written while the gate is closed: lanes, roll (NULL: as they were), then the verdict. Before
	 * them its epoch, for readers of this rank's registered memory. */
	int (*words)(struct cvy_gpu *gpu, const struct cvy_gpu_lane *lanes, const struct cvy_gpu_roll *roll,
		     const struct cvy_gpu_verdict *verdict);
	/* Bytes of an inbound chunk, for repair. */
	int (*read)(struct cvy_gpu *gpu, int rank, int generation, size_t at, void *to, size_t bytes);
	int (*write)(struct cvy_gpu *gpu, int rank, int generation, size_t at, const void *from, size_t bytes);
	struct cvy_gpu_mailbox *(*mailbox)(struct cvy_gpu *gpu);

	int (*is_device)(struct cvy_gpu *gpu, const void *at); /* 1: memory of this device; 2: of another one */
	int (*capturing)(struct CUstream_st *stream);	       /* does what is launched there become a graph? */
	/* Fills the fields of @call that the device knows (control, chunks, bounds) and launches it. ALLGATHERV, ALLTOALLV:
	 * @call is the head of a struct cvy_gpu_uneven. */
	int (*launch)(struct cvy_gpu *gpu, struct cvy_gpu_call *call, struct CUstream_st *stream);
	/*
	 * Until all that was launched has ended. AGAIN: a graph is being captured, so the runtime refuses to wait; @ending: kernels
	 * have been told to end, so that is waited for otherwise.
	 */
	int (*synchronise)(struct cvy_gpu *gpu, int ending);
	const struct cvy_gpu_status *(*status)(struct cvy_gpu *gpu); /* device address */
	int (*status_read)(struct cvy_gpu *gpu, struct cvy_gpu_status *to);
	void (*peers)(struct cvy_gpu *gpu, struct covey_device_peers *out); /* all but its rank */

	/* For ranks of other hosts. */
	/* How threads of the device reach queues; the library's, until close. */
	int (*reach)(struct cvy_gpu *gpu, struct cvy_queue_memory *out);
	/* Memory of the host in place of a chunk, *host its address here: the chunk that @rank pushes into, for the receiver of
	 * its puts; or (out) the one that this rank pushes into for @rank, for the sender. unchunk, detach end it. */
	int (*far_chunk)(struct cvy_gpu *gpu, int rank, int generation, int out, void **host);
	/* Data pushed there are put to @queue, whose waits are wait_ms long; NULL: none are. No kernel uses it meanwhile. */
	int (*queue)(struct cvy_gpu *gpu, int rank, int generation, const struct cvy_queue *queue, int wait_ms);

	/* For those of them whose chunks this device reaches by copies. The first once, before there are kernels
	 * that it might wait for. */
	int (*copies_open)(struct cvy_gpu *gpu);
	/* Memory of this device in the place of the chunk at @rank, for kernels; @fd (stays the caller's), that chunk, is mapped where
	 * no kernel looks; *out copies from the one to the other, from one thread. detach ends both, after copies_end. */
	int (*copies)(struct cvy_gpu *gpu, int rank, int generation, int fd, struct cvy_copies *out);
	void (*copies_end)(struct cvy_gpu *gpu, int rank); /* what was asked for has landed; nobody asks for more */

	/* For operations that are launched, and whose outcome is asked for later. */
	/* Before the launch; NOMEM: there are CVY_GPU_RECEIPTS. Then, behind it, on its stream, which is not captured. */
	int (*receipt)(struct cvy_gpu *gpu, struct cvy_gpu_receipt **out);
	int (*receipt_post)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream);
	/* AGAIN: the stream has not come past it. Any thread. */
	int (*receipt_look)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct cvy_gpu_status *out);
	void (*receipt_free)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt);

	/* As launch, of a copy of the @bytes bytes at call->send. */
	int (*launch_aside)(struct cvy_gpu *gpu, struct cvy_gpu_call *call, uint64_t bytes, struct CUstream_st *stream);
};

/* Of a launch: the fields that the device knows. gpu.cu */
void cvy_gpu_begin(struct cvy_gpu *gpu, struct cvy_gpu_call *call);
uint64_t cvy_gpu_cycles(const struct cvy_gpu *gpu, int ms);

/* Dispatch and combine (ep.cu). */
#define CVY_GPU_EP_SYMBOL "cvy_gpu_ep_ops"

struct cvy_ep_args;
struct cvy_ep_masking;
struct cvy_ep_outputs;
struct cvy_ep_state;
struct cvy_ep_tables;

struct cvy_gpu_ep_ops {
	uint32_t abi;
	/* @behind: bytes more that a handle needs, always the same (cvy_ep_placed_words). */
	int (*state)(struct cvy_gpu *gpu, const struct cvy_ep_tables *tables, size_t behind,
		     struct cvy_ep_state **state);
	void (*state_free)(struct cvy_gpu *gpu, struct cvy_ep_state *state, size_t behind);
	/* args->call has kind, rank and size, args->form is filled in; the rest of the call is this function's. */
	int (*launch)(struct cvy_gpu *gpu, struct cvy_ep_args *args, struct CUstream_st *stream);
	/* Before a dispatch that has a mask, and after one that was asked for more (ep_outputs.h). */
	int (*mask)(struct cvy_gpu *gpu, const struct cvy_ep_masking *masking, struct CUstream_st *stream);
	int (*outputs)(struct cvy_gpu *gpu, const struct cvy_ep_outputs *outputs, struct CUstream_st *stream);
};

/* Messages (message.cu). */
#define CVY_GPU_MESSAGE_SYMBOL "cvy_gpu_message_ops"

struct cvy_gpu_message_ops {
	uint32_t abi;
	/* messages has pairs, of which `lanes` are this function's; so are `receipts`, and the call but for its rank. */
	int (*launch)(struct cvy_gpu *gpu, struct cvy_gpu_messages *messages, struct CUstream_st *stream);
	/* CVY_GPU_FAILURE of the first message that failed since this was called before, 0: none. Any thread, one at a time. */
	int (*failure)(struct cvy_gpu *gpu, uint64_t *failure);

	/* A receipt is for a message that will be launched. Returns its number, for struct cvy_gpu_message. */
	int (*promise)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt);
	/* Behind the launch, on its stream; @err: it was not launched, and that is the outcome. */
	int (*promised)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream, int err);
	/* AGAIN: it is not launched, or the stream has not come past it. Any thread. */
	int (*answer)(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct cvy_gpu_answer *out);
};

#ifdef __cplusplus
}
#endif

#endif
