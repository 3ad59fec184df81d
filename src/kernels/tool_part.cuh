/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of tool.h have of each other. */
#ifndef CVY_TOOL_PART_CUH
#define CVY_TOOL_PART_CUH

#include <cuda_runtime.h>

#include "tool.h"

/* 0 or COVEY_ERR_*; then why() has @what and the cause. */
int cvy_tool_check(cudaError_t got, const char *what);

/* The first row of expert @e; close: behind those of the experts before it. */
static __device__ __forceinline__ size_t cvy_tool_first_row(const int32_t *count, int rows, int close, int e)
{
	size_t first = 0;

	if (!close)
		return (size_t)e * (size_t)rows;
	for (int i = 0; i < e; i++)
		first += (size_t)count[i];
	return first;
}

int cvy_tool_scale_load(void); /* its kernels */
int cvy_tool_scale(struct CUstream_st *stream, const struct cvy_gpu_scale *s);

int cvy_tool_sorted_load(void);
int cvy_tool_sorted(struct CUstream_st *stream, const struct cvy_gpu_sorted *s, int step);

int cvy_tool_heap_load(void);
int cvy_tool_heap(struct CUstream_st *stream, const struct cvy_gpu_heap *h);

#endif
