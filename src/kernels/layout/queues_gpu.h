/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of libcovey_cuda for the code that makes queues for a GPU's threads. */
#ifndef CVY_QUEUES_GPU_H
#define CVY_QUEUES_GPU_H

#include "queue_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_GPU_EXPORT __attribute__((visibility("default")))

/* 0, or COVEY_ERR_* with a line in @why. */
CVY_GPU_EXPORT int cvy_gpu_queue_memory_open(int device, struct cvy_queue_memory *out, char *why, size_t why_bytes);
CVY_GPU_EXPORT void cvy_gpu_queue_memory_close(struct cvy_queue_memory *memory);

#ifdef __cplusplus
}
#endif

#endif
