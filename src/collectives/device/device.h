/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a member, and its part in a view change. The device counts operations on device memory, since captured
 * graphs replay without a call. They are not in the engine's queue. A view that the store decides holds for them too.
 * The change freezes both, and members that have learned a view send each other the number of device operations that
 * they completed (HAVE). Every member knows all numbers before any acknowledges, and no number changes while frozen, so
 * all come to the same result. Operations below the largest number are completed under the old stamps, with packets of
 * removed ranks from a holder (WANT, SLOTS). Operations from it on are done again by the new view.
 */
#ifndef CVY_DEVICE_H
#define CVY_DEVICE_H

#include "config.h"
#include "covey_device.h"
#include "loop.h"
#include "seam.h"

struct cvy_device;
struct cvy_gpu_call;
struct cvy_gpu_receipt;
struct cvy_ep_args;
struct cvy_ep_beside;
struct cvy_ep_state;
struct cvy_ep_tables;

struct cvy_device_args {
	const struct cvy_config *config;
	struct cvy_loop *loop;
	struct cvy_errbox *box;
	struct cvy_sink sink; /* of the agent: gets everything that is not for the device */
	/* A message to a member; @fd: -1 or a descriptor to send along (UNSUPPORTED: the member is on another host). */
	int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		    int fd);
	void *send_ctx;
};

/* The device that the configuration names, if any: *out is NULL otherwise. Before the loop runs. */
int cvy_device_open(const struct cvy_device_args *args, struct cvy_device **out);
void cvy_device_close(struct cvy_device *d); /* after the loop ended; ends parked kernels */
/* Called before the agent's sink: links, messages and the engine's news pass here. */
struct cvy_sink cvy_device_sink(struct cvy_device *d);

/* From the seam; agent's thread. */
void cvy_device_identity(struct cvy_device *d, const struct cvy_identity *id);
void cvy_device_freeze(struct cvy_device *d, uint32_t epoch);
void cvy_device_learn(struct cvy_device *d, const struct cvy_view *view, const struct covey_mask *removed);
void cvy_device_thaw(struct cvy_device *d);
void cvy_device_stop(struct cvy_device *d, int err);
void cvy_device_look(struct cvy_device *d); /* each tick: the words that kernels have written to the host */

/* From calls; any thread. */
int cvy_device_holds(struct cvy_device *d,
		     const void *at); /* 1: memory of this device; 2: of another one; 0: of the host */
int cvy_device_run(struct cvy_device *d, struct cvy_gpu_call *call, struct CUstream_st *stream,
		   struct covey_result *result);
int cvy_device_capturing(struct cvy_device *d, struct CUstream_st *stream);
/*
 * For one launch on @stream: a receipt is taken before it, and posted behind it. Looked at, AGAIN, or 0 and the outcome in
 * @result, which has what was known at the launch. device_receipt.c
 */
int cvy_device_receipt(struct cvy_device *d, const char *what, struct CUstream_st *stream,
		       struct cvy_gpu_receipt **out);
int cvy_device_receipt_post(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream);
int cvy_device_receipt_look(struct cvy_device *d, struct cvy_gpu_receipt *receipt, struct covey_result *result);
void cvy_device_receipt_free(struct cvy_device *d, struct cvy_gpu_receipt *receipt);
/*
 * After a safe point with @outcome: if it let a rank in, launches the ADMIT that reports it to the device, on @stream.
 * With drain, for any streams: launches it after all launched work has ended, and waits for its end; TIMEOUT after
 * join_ms, and cvy_device_draining() until a call of cvy_device_drained() has waited for the rest.
 */
int cvy_device_admit(struct cvy_device *d, const struct covey_result *outcome, struct CUstream_st *stream);
int cvy_device_admit_drain(struct cvy_device *d, const struct covey_result *outcome);
int cvy_device_draining(const struct cvy_device *d);
void cvy_device_drain_abort(struct cvy_device *d); /* ends that wait, now and later; from any thread */
/*
 * This rank leaves: it begins no operation from the time on when no kernel is inside. 1: all contributors have completed
 * what it has. @retired: it may be called on, so it waits for that time only for a moment. From any thread.
 */
int cvy_device_may_leave(struct cvy_device *d, int retired);
int cvy_device_leave_awaits(struct cvy_device *d); /* one of those that have not, -1: none is known. From any thread */
/* 0, or INVAL: a dispatch or combine was sent and not received, and its slots hold data. */
int cvy_device_between_phases(struct cvy_device *d);
int cvy_device_drained(struct cvy_device *d, struct covey_result *outcome);
/* Registered memory; under the handle's lock. */
int cvy_device_mem_alloc(struct cvy_device *d, size_t bytes, void **out);
int cvy_device_mem_free(struct cvy_device *d, void *memory);
int cvy_device_peers(struct cvy_device *d, struct covey_device_peers *out);
/* The memory of a handle for dispatch and combine, with its tables; *state: NULL, or the state before. */
int cvy_device_ep_state(struct cvy_device *d, const struct cvy_ep_tables *tables, size_t behind,
			struct cvy_ep_state **state);
void cvy_device_ep_free(struct cvy_device *d, struct cvy_ep_state *state, size_t behind);
/* @beside: what a dispatch takes and gives besides, or NULL */
int cvy_device_ep_run(struct cvy_device *d, struct cvy_ep_args *args, const struct cvy_ep_beside *beside,
		      struct CUstream_st *stream, struct covey_result *result);
const void *cvy_device_status(struct cvy_device *d); /* device address of the status word */
/* The last outcome there, or the first failure of a message, which is then forgotten. Written only if this returns 0. */
int cvy_device_result(struct cvy_device *d, int size, struct covey_result *result);

#endif
