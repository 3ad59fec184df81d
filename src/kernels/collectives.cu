/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels: which instance of which body a call needs. */
#include "body.cuh"
#include "gpu.h"

template <typename BODY> static const void *kernel(void)
{
	return (const void *)cvy_operation<BODY>;
}

template <typename T, int PACKET, int ROWS> static const void *reducing(int kind)
{
	switch (kind) {
	case CVY_GPU_ALLREDUCE:
	case CVY_GPU_REDUCE:
		return kernel<cvy_body_allreduce<T, PACKET, ROWS>>();
	case CVY_GPU_ALLREDUCE_TWO_SHOT:
		return kernel<cvy_body_two_shot<T, PACKET, ROWS>>();
	default:
		return kernel<cvy_body_reduce_scatter<T, PACKET, ROWS>>();
	}
}

template <int PACKET, int ROWS> static const void *of_type(int kind, int dtype)
{
	switch (dtype) {
	case COVEY_INT8:
		return reducing<int8_t, PACKET, ROWS>(kind);
	case COVEY_UINT8:
		return reducing<uint8_t, PACKET, ROWS>(kind);
	case COVEY_INT16:
		return reducing<int16_t, PACKET, ROWS>(kind);
	case COVEY_INT32:
		return reducing<int32_t, PACKET, ROWS>(kind);
	case COVEY_UINT32:
		return reducing<uint32_t, PACKET, ROWS>(kind);
	case COVEY_INT64:
		return reducing<int64_t, PACKET, ROWS>(kind);
	case COVEY_UINT64:
		return reducing<uint64_t, PACKET, ROWS>(kind);
	case COVEY_FLOAT16:
		return reducing<__half, PACKET, ROWS>(kind);
	case COVEY_BFLOAT16:
		return reducing<__nv_bfloat16, PACKET, ROWS>(kind);
	case COVEY_FLOAT64:
		return reducing<double, PACKET, ROWS>(kind);
	default:
		return reducing<float, PACKET, ROWS>(kind);
	}
}

template <int PACKET, int ROWS> static const void *moving(int kind)
{
	if (kind == CVY_GPU_ALLGATHER || kind == CVY_GPU_ALLTOALL)
		return kernel<cvy_body_blocks<PACKET, ROWS>>();
	return kernel<cvy_body_one_way<PACKET, ROWS>>();
}

template <int PACKET, int ROWS> static const void *of_kind(const struct cvy_gpu_call *call)
{
	switch (call->kind) {
	case CVY_GPU_ALLREDUCE:
	case CVY_GPU_ALLREDUCE_TWO_SHOT:
	case CVY_GPU_REDUCE_SCATTER:
	case CVY_GPU_REDUCE:
		return of_type<PACKET, ROWS>(call->kind, call->dtype);
	default:
		return moving<PACKET, ROWS>(call->kind);
	}
}

const void *cvy_gpu_kernel(const struct cvy_gpu_call *call)
{
	if (call->rows == 1)
		return call->packet == CVY_GPU_PAIR ? of_kind<CVY_GPU_PAIR, 1>(call) : of_kind<CVY_GPU_LINE, 1>(call);
	return call->packet == CVY_GPU_PAIR ? of_kind<CVY_GPU_PAIR, CVY_GPU_ROWS>(call)
					    : of_kind<CVY_GPU_LINE, CVY_GPU_ROWS>(call);
}
