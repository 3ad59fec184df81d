/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a rank on its device in a group of one host. The library allocates by the same numbers (gpu.cu, gpu_vmm.cu), and
 * tests/gpu/cpu/needs.cu compares both. Not counted: what the driver takes itself, and buffers of the application.
 */
#ifndef CVY_GPU_NEEDS_H
#define CVY_GPU_NEEDS_H

#include "layout.h"
#include "queue.h"

#define CVY_GPU_QUEUES_BYTES (CVY_GPU_MAPPINGS * sizeof(struct cvy_queue))
#define CVY_GPU_TICKETS_BYTES ((size_t)CVY_GPU_MAPPINGS * CVY_GPU_TICKETS * sizeof(uint64_t))
#define CVY_GPU_STAGE_BYTES ((size_t)1 << 20)
#define CVY_GPU_ZERO_BYTES ((size_t)2 << 20)
#define CVY_GPU_ADDRESSES ((size_t)CVY_GPU_MAPPINGS * CVY_GPU_STRIDE) /* of chunks, one way */

struct cvy_gpu_needs {
	uint64_t chunks;    /* bytes of the device that peers push into: one chunk each */
	uint64_t own;	    /* bytes of the device whatever the group: words, tables, inputs in place */
	uint64_t window;    /* bytes of the device: registered memory */
	uint64_t pinned;    /* bytes of the host */
	uint64_t addresses; /* reserved, without memory behind them */
	int mappings;	    /* of memory of other ranks */
	int descriptors;    /* that stay open */
};

static inline uint64_t cvy_gpu_whole_pages(uint64_t bytes)
{
	return (bytes + CVY_GPU_PAGE - 1) / CVY_GPU_PAGE * CVY_GPU_PAGE;
}

/* Of each rank in a group of @ranks, with device_window_bytes of @window. */
static inline struct cvy_gpu_needs cvy_gpu_needs_of(int ranks, uint64_t window)
{
	struct cvy_gpu_needs n = { 0, 0, 0, 0, 0, 0, 0 };
	const int peers = ranks - 1;

	n.chunks = (uint64_t)peers * CVY_GPU_CHUNK;
	n.own = sizeof(struct cvy_gpu_control) + CVY_GPU_QUEUES_BYTES + CVY_GPU_TICKETS_BYTES + CVY_GPU_CHUNK;
	n.window = cvy_gpu_whole_pages(window);
	n.pinned = sizeof(struct cvy_gpu_mailbox) + CVY_GPU_STAGE_BYTES + CVY_GPU_ZERO_BYTES;
	n.addresses = 2 * CVY_GPU_ADDRESSES + (window ? (CVY_GPU_MAPPINGS + 1) * n.window : 0);
	n.mappings = window ? 2 * peers : peers;
	n.descriptors = window ? peers + 1 : peers;
	return n;
}

#endif
