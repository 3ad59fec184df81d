/* SPDX-License-Identifier: Apache-2.0 */
/* Which instance of which body a call needs. Instances are in several files, for compilers that work side by side. */
#ifndef CVY_CHOOSE_CUH
#define CVY_CHOOSE_CUH

#include "exchange.cuh"
#include "operate.cuh"
#include "gpu.h"
#include "two_hop.cuh"
#include "two_shot.cuh"

const void *cvy_gpu_small(const struct cvy_gpu_call *call); /* small.cu: packets of a word, in one step */
const void *cvy_gpu_parts(const struct cvy_gpu_call *call); /* parts.cu: the same, of words that are not whole */
const void *cvy_gpu_wide(const struct cvy_gpu_call *call);  /* wide.cu: lines */
const void *cvy_gpu_large(const struct cvy_gpu_call *call); /* large.cu: registered buffers, or the widest lines */
const void *cvy_gpu_uneven_kernel(const struct cvy_gpu_call *call); /* uneven.cu */
const void *cvy_gpu_message_kernel(void);			    /* message.cu */

template <typename BODY> static const void *cvy_kernel(void)
{
	return (const void *)cvy_operation<BODY>;
}

/* What @of has for an element type; integers of a size have one (CVY_GPU_SIGNED). */
template <typename OF> static const void *cvy_of_type(int dtype, OF of)
{
	switch (dtype) {
	case COVEY_INT32:
	case COVEY_UINT32:
		return of((uint32_t)0);
#ifdef CVY_INT32_ALONE /* for who folds nothing else, and waits for compilers */
	default:
		return NULL;
#else
	case COVEY_INT8:
	case COVEY_UINT8:
		return of((uint8_t)0);
	case COVEY_INT16:
		return of((int16_t)0);
	case COVEY_INT64:
	case COVEY_UINT64:
		return of((uint64_t)0);
	case COVEY_FLOAT16:
		return of(__half());
	case COVEY_BFLOAT16:
		return of(__nv_bfloat16());
	case COVEY_FLOAT64:
		return of(0.0);
	default:
		return of(0.0f);
#endif
	}
}

template <typename T, int PACKET, int ROWS, int PARTS> static const void *cvy_folding(int kind)
{
	if constexpr (!PARTS)
		if (kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
			return cvy_kernel<cvy_body_two_shot<T, PACKET, ROWS>>();
	return cvy_kernel<cvy_body_exchange<T, PACKET, ROWS, PARTS>>();
}

template <int PACKET, int ROWS, int PARTS> static const void *cvy_placing(int kind)
{
	if constexpr (PACKET == CVY_GPU_LINE)
		if (kind == CVY_GPU_BROADCAST_TWO_HOP)
			return cvy_kernel<cvy_body_two_hop<ROWS>>();
	return cvy_kernel<cvy_body_one_way<PACKET, ROWS, PARTS>>();
}

template <int PACKET, int ROWS, int PARTS = 0> static const void *cvy_by_packets(const struct cvy_gpu_call *call)
{
	switch (call->kind) {
	case CVY_GPU_ALLREDUCE:
	case CVY_GPU_ALLREDUCE_TWO_SHOT:
	case CVY_GPU_REDUCE_SCATTER:
	case CVY_GPU_REDUCE:
		return cvy_of_type(call->dtype, [&](auto zero) {
			return cvy_folding<decltype(zero), PACKET, ROWS, PARTS>(call->kind);
		});
	case CVY_GPU_ALLGATHER:
	case CVY_GPU_ALLTOALL:
		return cvy_kernel<cvy_body_exchange<void, PACKET, ROWS, PARTS>>();
	default:
		return cvy_placing<PACKET, ROWS, PARTS>(call->kind);
	}
}

#endif
