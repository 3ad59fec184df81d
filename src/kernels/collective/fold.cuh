/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that fold elements of one type. */
#ifndef CVY_FOLD_CUH
#define CVY_FOLD_CUH

#include "choose.cuh"
#include "exchange.cuh"
#include "pull.cuh"
#include "two_shot.cuh"

template <typename T, int ROWS> static const struct cvy_gpu_entry *cvy_fold_lines(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		return cvy_kernel<cvy_body_two_shot<T, CVY_GPU_LINE, ROWS>>();
	return cvy_kernel<cvy_body_exchange<T, CVY_GPU_LINE, ROWS>>();
}

template <typename T> static const struct cvy_gpu_entry *cvy_fold_pairs(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		return cvy_kernel<cvy_body_two_shot<T, CVY_GPU_PAIR, 1>>();
	if constexpr (!std::is_same<T, cvy_other>::value)
		if (call->plain == CVY_GPU_PARTS)
			return cvy_kernel<cvy_body_exchange<T, CVY_GPU_PAIR, 1, 1>>();
	return cvy_kernel<cvy_body_exchange<T, CVY_GPU_PAIR, 1>>();
}

template <typename T> static const struct cvy_gpu_entry *cvy_fold_windows(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		return cvy_kernel<cvy_body_pull<T, cvy_body_two_shot<T, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
	return cvy_kernel<cvy_body_pull<T, cvy_body_exchange<T, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
}

template <typename T> static const struct cvy_gpu_entry *cvy_folds(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_REDUCE_TWO_SHOT) /* of lines (shape.h) */
		return cvy_kernel<cvy_body_two_shot<T, CVY_GPU_LINE, CVY_GPU_ROWS, 1>>();
	if (call->windows)
		return cvy_fold_windows<T>(call);
	if (call->packet == CVY_GPU_PAIR)
		return cvy_fold_pairs<T>(call);
	return cvy_gpu_one_row(call) ? cvy_fold_lines<T, 1>(call) : cvy_fold_lines<T, CVY_GPU_ROWS>(call);
}

#endif
