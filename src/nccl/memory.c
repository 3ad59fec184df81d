/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that programs allocate and register. covey reads memory of peers in place only in its own windows, which belong
 * to a group, and ncclMemAlloc() names no communicator. So registered buffers work as all others, by packets.
 */
#include "comm.h"

#include <stdlib.h>

struct registered {
	struct ncclComm *comm;
};

static cudaError_t exempt_malloc(void **out, size_t bytes)
{
	enum cudaStreamCaptureMode had = cvy_nccl_exempt(cudaStreamCaptureModeRelaxed);
	cudaError_t got = cudaMalloc(out, bytes);

	cvy_nccl_exempt(had);
	return got;
}

static cudaError_t exempt_free(void *memory)
{
	enum cudaStreamCaptureMode had = cvy_nccl_exempt(cudaStreamCaptureModeRelaxed);
	cudaError_t got = cudaFree(memory);

	cvy_nccl_exempt(had);
	return got;
}

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclMemAlloc: the output is NULL");
	return cvy_nccl_cuda(exempt_malloc(out, bytes), "ncclMemAlloc");
}

ncclResult_t ncclMemFree(void *memory)
{
	return cvy_nccl_cuda(exempt_free(memory), "ncclMemFree");
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommRegister");
	struct registered *registered;

	if (!r && (!buffer || !bytes || !handle))
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommRegister: no %s",
				  !handle ? "place for the handle" : "buffer");
	if (r)
		return r;
	registered = malloc(sizeof(*registered));
	if (!registered)
		return cvy_nccl_fail(ncclSystemError, "ncclCommRegister: no memory for a handle");
	registered->comm = comm;
	*handle = registered;
	return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	struct registered *registered = handle;
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommDeregister");

	if (!r && registered && registered->comm != comm)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommDeregister: the handle is of another communicator");
	if (!r)
		free(registered);
	return r;
}

/* No window: by that NCCL too says that a buffer is not symmetric here. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommWindowRegister");

	(void)flags;
	if (!r && (!buffer || !bytes || !window))
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommWindowRegister: no %s",
				  !window ? "place for the window" : "buffer");
	if (!r)
		*window = NULL;
	return r;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommWindowDeregister");

	if (!r && window)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommWindowDeregister: %p is no window of this library",
				  (void *)window);
	return r;
}
