/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of operations that move elements and fold none, whatever their type. */
#include "choose.cuh"
#include "exchange.cuh"
#include "pull.cuh"
#include "two_hop.cuh"

static int to_and_from_all(int kind)
{
	return kind == CVY_GPU_ALLGATHER || kind == CVY_GPU_ALLTOALL;
}

template <int PARTS> static const struct cvy_gpu_entry *pairs(int kind)
{
	if (to_and_from_all(kind))
		return cvy_kernel<cvy_body_exchange<void, CVY_GPU_PAIR, 1, PARTS>>();
	return cvy_kernel<cvy_body_one_way<CVY_GPU_PAIR, 1, PARTS>>();
}

template <int ROWS> static const struct cvy_gpu_entry *lines(int kind)
{
	if (to_and_from_all(kind))
		return cvy_kernel<cvy_body_exchange<void, CVY_GPU_LINE, ROWS>>();
	if (kind == CVY_GPU_BROADCAST_TWO_HOP)
		return cvy_kernel<cvy_body_two_hop<ROWS>>();
	return cvy_kernel<cvy_body_one_way<CVY_GPU_LINE, ROWS, 0>>();
}

static const struct cvy_gpu_entry *windows(int kind)
{
	if (cvy_gpu_is_broadcast(kind))
		return cvy_kernel<cvy_body_pull<void, cvy_body_two_hop<CVY_GPU_ROWS>>>();
	return cvy_kernel<cvy_body_pull<void, cvy_body_exchange<void, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
}

const struct cvy_gpu_entry *cvy_gpu_place(const struct cvy_gpu_call *call)
{
	if (call->windows)
		return windows(call->kind);
	if (call->packet == CVY_GPU_PAIR)
		return call->plain == CVY_GPU_PARTS ? pairs<1>(call->kind) : pairs<0>(call->kind);
	return cvy_gpu_one_row(call) ? lines<1>(call->kind) : lines<CVY_GPU_ROWS>(call->kind);
}
