/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by device.c, ep_device.c, ep_check.c and ep_split.c, which work on device memory. */
#ifndef PERF_DEVICE_H
#define PERF_DEVICE_H

#include "perf.h"
#include "tool_find.h"

struct perf_device {
	const struct cvy_gpu_tool *tool;
	struct CUstream_st *stream;
	struct perf_nccl *nccl;
	char *at[2];	   /* of the sent, of the received data */
	const char *of[2]; /* the same on the host */
	size_t bytes;	   /* of each */
};

/* One turn calls once() as often as -n says. */
struct perf_repeat {
	int (*once)(struct perf_job *job, void *ctx);
	void *ctx;
};

/* Prints @what and the cause that the device gives; returns @err. */
int perf_device_failed(const struct perf_job *job, const char *what, int err);
/* Times of @of[0], with @sides 2 of @of[1] by turns with it (side->nccl_us); over ranks as -a says. */
int perf_device_repeat(struct perf_job *job, const struct perf_repeat *of, int sides, struct perf_side *side);

/* ep_device.c: one row of dispatch and combine, open. */
struct perf_pair {
	struct covey_ep *ep;
	struct covey_dispatch_args to;
	struct covey_combine_args back;
	struct perf_pair_row *row;
};

/* ep_split.c */
int perf_split(struct perf_job *job, struct perf_pair *pair);

#endif
