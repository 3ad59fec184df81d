/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other hosts, as a device sees them: memory of the host where a chunk would be mapped, at one address for device
 * and host, and a table of queues. This file does not know how bytes move between hosts.
 */
#include "gpu_state.cuh"

/* Host and device see it at one address. */
static int far_fill(struct cvy_gpu *gpu, CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access[2] = { { { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device },
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
				      { { CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE } };
	int err = check_driver(gpu, gpu->driver.map(at, CVY_GPU_CHUNK, 0, handle, 0), "mapping host memory");

	if (err)
		return err;
	err = check_driver(gpu, gpu->driver.access(at, CVY_GPU_CHUNK, access, 2), "access to host memory");
	if (!err)
		err = cvy_gpu_clear(gpu, at, CVY_GPU_CHUNK, "clearing host memory");
	if (err)
		gpu->driver.unmap(at, CVY_GPU_CHUNK);
	return err;
}

int cvy_gpu_far_chunk(struct cvy_gpu *gpu, int rank, int generation, int out, void **host)
{
	size_t i = place(rank, generation);
	CUdeviceptr at = (out ? gpu->out : gpu->in) + i * CVY_GPU_STRIDE;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {};
	int err = gpu->memory == &cvy_gpu_vmm
			  ? 0
			  : fail(gpu, COVEY_ERR_UNSUPPORTED,
				 "device %d: memory by CUDA IPC reaches no rank of another host", gpu->device);

	if (!err)
		err = out ? gpu->memory->detach(gpu, rank, generation) : gpu->memory->unchunk(gpu, rank, generation);

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	if (!err)
		err = use(gpu);
	if (!err)
		err = check_driver(gpu, gpu->driver.create(&handle, CVY_GPU_CHUNK, &prop, 0),
				   "host memory for a rank of another host");
	if (err)
		return err;
	err = far_fill(gpu, at, handle);
	gpu->driver.release(handle);
	gpu->at[out ? CVY_GPU_OUT : CVY_GPU_IN][i] = err ? 0 : at;
	*host = (void *)(uintptr_t)at;
	return err;
}

int cvy_gpu_reach(struct cvy_gpu *gpu, struct cvy_queue_memory *out)
{
	char why[sizeof(gpu->why)] = "";
	int err = gpu->reach.ctx ? 0 : cvy_gpu_queue_memory_open(gpu->device, &gpu->reach, why, sizeof(why));

	*out = gpu->reach;
	return err ? fail(gpu, err, "queues on device %d: %s", gpu->device, why) : 0;
}

int cvy_gpu_queue(struct cvy_gpu *gpu, int rank, int generation, const struct cvy_queue *queue, int wait_ms)
{
	struct cvy_queue *h = (struct cvy_queue *)gpu->stage;
	int err = use(gpu);

	memset(h, 0, sizeof(*h));
	if (queue) {
		*h = *queue;
		h->wait_ticks = cvy_gpu_cycles(gpu, wait_ms);
	}
	if (!err) /* those of the queue that was here */
		err = cvy_gpu_clear(gpu, (CUdeviceptr)(gpu->tickets + place(rank, generation) * CVY_GPU_TICKETS),
				    CVY_GPU_TICKETS * sizeof(uint64_t), "tickets of a queue");
	return err ? err : copy(gpu, gpu->queues + place(rank, generation), h, sizeof(*h), "a queue");
}
