/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host side of covey asks of a device: memory that peers can map, the words of the control page, launches.
 * The table is in a library of its own (libcovey_cuda), opened when a device is asked for, so the rest of covey needs
 * no CUDA. It knows nothing of views: collectives/device.c decides, this does.
 */
#ifndef CVY_GPU_H
#define CVY_GPU_H

#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_GPU_ABI 1
#define CVY_GPU_SYMBOL "cvy_gpu_ops"

struct cvy_gpu;
struct CUstream_st;

struct cvy_gpu_counters {
	uint8_t gate;
	uint64_t entered, finished, stopped; /* quanta; finished and stopped were read before entered */
	struct cvy_gpu_parked parked;
	struct cvy_gpu_lane lane[CVY_GPU_LANES];
	struct cvy_gpu_past past[CVY_GPU_LANES];
};

/* All return 0 or COVEY_ERR_* with a line in @why of cvy_gpu_why(). Agent's thread, but for launch and is_device. */
struct cvy_gpu_ops {
	uint32_t abi;
	/* Takes CUDA device @device (0, 1, ...); late_ms and park_ms as in struct cvy_gpu_call, 0: never. */
	int (*open)(int device, int late_ms, int park_ms, struct cvy_gpu **out, char *why, size_t why_bytes);
	void (*close)(struct cvy_gpu *gpu); /* ends what is parked first */
	const char *(*why)(const struct cvy_gpu *gpu);
	const char *(*describe)(const struct cvy_gpu *gpu);

	/* Fresh memory under generation @generation of the chunk that @rank pushes into here; *fd: for @rank, caller's. */
	int (*chunk)(struct cvy_gpu *gpu, int rank, int generation, int *fd);
	int (*unchunk)(struct cvy_gpu *gpu, int rank, int generation);
	/* Maps @fd (stays the caller's), the chunk that this rank pushes into at @rank. */
	int (*attach)(struct cvy_gpu *gpu, int rank, int generation, int fd);
	int (*detach)(struct cvy_gpu *gpu, int rank, int generation);

	int (*gate)(struct cvy_gpu *gpu, uint8_t gate);
	int (*counters)(struct cvy_gpu *gpu, struct cvy_gpu_counters *counters, int all); /* all: lanes too */
	/* Words for the next attempt, written while the gate is closed: lanes, start of `entered` and `finished` if base
	 * is not 0 and this rank is new (@fresh), then the verdict. */
	int (*words)(struct cvy_gpu *gpu, const struct cvy_gpu_lane *lanes, const uint64_t *fresh,
		     const struct cvy_gpu_verdict *verdict);
	/* Bytes of an inbound chunk, for repair. */
	int (*read)(struct cvy_gpu *gpu, int rank, int generation, size_t at, void *to, size_t bytes);
	int (*write)(struct cvy_gpu *gpu, int rank, int generation, size_t at, const void *from, size_t bytes);
	const struct cvy_gpu_mailbox *(*mailbox)(struct cvy_gpu *gpu);

	int (*is_device)(const void *at);
	/* Fills the fields of @call that the device knows (control, chunks, bounds) and launches it. */
	int (*launch)(struct cvy_gpu *gpu, struct cvy_gpu_call *call, struct CUstream_st *stream);
	int (*synchronise)(struct cvy_gpu *gpu);		     /* until all that was launched has ended */
	const struct cvy_gpu_status *(*status)(struct cvy_gpu *gpu); /* device address */
	int (*status_read)(struct cvy_gpu *gpu, struct cvy_gpu_status *to);
};

const void *cvy_gpu_kernel(const struct cvy_gpu_call *call); /* collectives.cu */

#ifdef __cplusplus
}
#endif

#endif
