/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of kernels: which instance of which body a call needs. Each element type has its instances in a file of its
 * own, so that compilers work side by side.
 */
#ifndef CVY_CHOOSE_CUH
#define CVY_CHOOSE_CUH

#include "gpu.h"
#include "operate.cuh"
#include "table.cuh"

/* Operations that fold, flat and in two levels, by element type; integers of 32 bits have one kernel (CVY_GPU_SIGNED). */
#define CVY_GPU_FOLDS(type) \
	const struct cvy_gpu_entry *cvy_gpu_fold_##type(const struct cvy_gpu_call *call); \
	const struct cvy_gpu_entry *cvy_gpu_levels_##type(const struct cvy_gpu_call *call);
CVY_GPU_FOLDS(float32)
CVY_GPU_FOLDS(float16)
CVY_GPU_FOLDS(bfloat16)
CVY_GPU_FOLDS(int32)
CVY_GPU_FOLDS(other)
#undef CVY_GPU_FOLDS

const struct cvy_gpu_entry *cvy_gpu_levels_place(
	const struct cvy_gpu_call *call); /* levels_place.cu: those that fold nothing */
const struct cvy_gpu_entry *cvy_gpu_place(const struct cvy_gpu_call *call);	    /* place.cu: the others */
const struct cvy_gpu_entry *cvy_gpu_uneven_kernel(const struct cvy_gpu_call *call); /* uneven.cu */
const struct cvy_gpu_entry *cvy_gpu_message_kernel(int few);			    /* message.cu */

template <typename BODY> static const struct cvy_gpu_entry *cvy_kernel(void)
{
	return &cvy_listed<cvy_operation<BODY>>;
}

/* Do the lines of a call go in one step of one row? Most of these are small. */
static inline int cvy_gpu_one_row(const struct cvy_gpu_call *call)
{
	return call->rows == 1 && call->steps == 1;
}

#endif
