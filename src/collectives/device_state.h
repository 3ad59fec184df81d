/* SPDX-License-Identifier: Apache-2.0 */
/* Private to device.c and device_change.c: what a member knows of its device and of the others'. */
#ifndef CVY_DEVICE_STATE_H
#define CVY_DEVICE_STATE_H

#include "device.h"
#include "gpu.h"

#define CVY_DEVICE_LATE_MS 1000 /* a kernel says whom it waits for */

struct cvy_device_have {
	uint64_t op;	  /* operations completed */
	uint32_t fresh;	  /* has taken part in none: takes number and counts from the others */
	uint32_t drained; /* its application waits in covey_admit and nothing is launched */
	uint32_t spoiled; /* what is under way cannot be done again */
	uint32_t mask;	  /* contributors until now */
	uint32_t count[CVY_GPU_LANES];
};

struct cvy_device_peer {
	uint64_t inc;	  /* for which the chunk here is */
	int in, out;	  /* generation in use */
	int fd;		  /* of the chunk here, -1: none */
	uint64_t out_inc; /* whose chunk there is mapped, 0: none */
	uint32_t have_epoch;
	struct cvy_device_have have;
};

struct cvy_device_retired {
	int rank, generation, out;
	uint64_t thaws; /* how many there had been */
};

struct cvy_device {
	const struct cvy_gpu_ops *ops;
	void *library;
	struct cvy_gpu *gpu;
	struct cvy_loop *loop;
	int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		    int fd);
	void *send_ctx;
	struct cvy_errbox *box;
	struct cvy_sink agent;
	int rank;
	int given_up; /* the membership */
	struct cvy_device_peer peer[CVY_GPU_RANKS];

	uint32_t epoch;	      /* of the words that the device has */
	uint32_t mask;	      /* contributors, as the device has them, 0: not this rank; read by calls */
	uint32_t members;     /* of the view, admitted or not; read by calls */
	int ended;	      /* read by calls */
	int drained;	      /* set by a call in covey_admit */
	int frozen, freezing; /* the device stands still; not yet */
	uint64_t freeze_ns;
	struct cvy_timer *timer;
	struct cvy_event owed; /* FROZEN of the engine, held until the device is frozen too */
	int owes_frozen, owes_repaired;
	struct cvy_event repaired;
	struct cvy_gpu_counters counters; /* as of the freeze */
	struct cvy_view *view;		  /* last learned */
	uint32_t removed;		  /* since the device was last thawed */
	int reconciled;
	uint32_t wanted; /* removed whose packets have not come yet */
	struct cvy_gpu_lane lanes[CVY_GPU_LANES];
	struct cvy_gpu_verdict verdict;
	uint64_t fresh_op;
	int begin_fresh;
	struct cvy_device_retired retired[4 * CVY_GPU_RANKS];
	int retirees;
	uint64_t thaws;
	uint64_t late_told[CVY_GPU_RANKS];
};

static inline uint32_t cvy_device_mask(const struct covey_mask *mask)
{
	return (uint32_t)mask->word[0];
}

#endif
