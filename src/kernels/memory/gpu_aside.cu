/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations whose results would overwrite inputs that are still to be sent, or to be sent again after a change of the
 * view: the stream first copies the inputs aside. So such an operation loses nothing by a death.
 */
#include "gpu_state.cuh"

/* Up to here there is room that the device has anyway. */
#ifndef CVY_GPU_ASIDE
#define CVY_GPU_ASIDE CVY_GPU_CHUNK
#endif

static_assert(CVY_GPU_ASIDE <= CVY_GPU_CHUNK, "there is no more");

/* No operation before this one in the stream needs what it has saved: it has ended on this device. */
static int room_for(struct cvy_gpu *gpu, uint64_t bytes, cudaStream_t stream, void **room)
{
	*room = gpu->saved;
	return bytes <= CVY_GPU_ASIDE ? 0
				      : check(gpu, cudaMallocAsync(room, bytes, stream),
					      "in place, as much memory as the inputs take, for a copy of them");
}

int cvy_gpu_launch_aside(struct cvy_gpu *gpu, struct cvy_gpu_call *call, uint64_t bytes, struct CUstream_st *stream)
{
	void *room;
	int err = room_for(gpu, bytes, stream, &room);

	if (err)
		return err;
	err = check(gpu, cudaMemcpyAsync(room, call->send, bytes, cudaMemcpyDeviceToDevice, stream),
		    "copying inputs aside");
	call->send = (const uint8_t *)room;
	if (!err)
		err = cvy_gpu_launch(gpu, call, stream);
	if (room != gpu->saved)
		cudaFreeAsync(room, stream);
	return err;
}
