/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of covey has its operations on one stream at a time; a communicator of NCCL may be used on any. So the next
 * stream waits for the last one. That may have been destroyed by then, so what is waited for is an event, recorded after
 * each launch.
 */
#include "comm.h"

enum cudaStreamCaptureMode cvy_nccl_exempt(enum cudaStreamCaptureMode mode)
{
	cudaThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

/* The default stream cannot be; while another stream is, to ask of it is an error. */
static ncclResult_t is_captured(cudaStream_t stream, int *captured)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	ncclResult_t r = ncclSuccess;

	if (stream && stream != cudaStreamLegacy)
		r = cvy_nccl_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");

	*captured = status == cudaStreamCaptureStatusActive;
	return r;
}

ncclResult_t cvy_nccl_device_enter(const struct ncclComm *comm, int *was)
{
	ncclResult_t r = cvy_nccl_cuda(cudaGetDevice(was), "cudaGetDevice");

	if (!r && *was != comm->device)
		r = cvy_nccl_cuda(cudaSetDevice(comm->device), "cudaSetDevice");
	return r;
}

void cvy_nccl_device_leave(const struct ncclComm *comm, int was)
{
	if (was != comm->device)
		cudaSetDevice(was);
}

static ncclResult_t need_event(struct ncclComm *comm)
{
	if (comm->done)
		return ncclSuccess;
	return cvy_nccl_cuda(cudaEventCreateWithFlags(&comm->done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

/* A captured launch runs with its graph, and not between calls: its order is the caller's. */
ncclResult_t cvy_nccl_stream_before(struct ncclComm *comm, cudaStream_t stream, int *captured)
{
	ncclResult_t r = is_captured(stream, captured);

	/* Also where it is the last one's handle: another stream may have that of one that was destroyed. */
	if (!r && !*captured && comm->launched)
		r = cvy_nccl_cuda(cudaStreamWaitEvent(stream, comm->done, 0), "cudaStreamWaitEvent");
	return r;
}

ncclResult_t cvy_nccl_stream_after(struct ncclComm *comm, cudaStream_t stream, int captured)
{
	ncclResult_t r;

	if (captured)
		return ncclSuccess;
	r = need_event(comm);
	if (!r)
		r = cvy_nccl_cuda(cudaEventRecord(comm->done, stream), "cudaEventRecord");
	comm->launched = !r;
	return r;
}

ncclResult_t cvy_nccl_stream_wait(cudaStream_t waiting, cudaStream_t done)
{
	cudaEvent_t event;
	ncclResult_t r;

	r = cvy_nccl_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
	if (r)
		return r;
	r = cvy_nccl_cuda(cudaEventRecord(event, done), "cudaEventRecord");
	if (!r)
		r = cvy_nccl_cuda(cudaStreamWaitEvent(waiting, event, 0), "cudaStreamWaitEvent");
	cudaEventDestroy(event); /* the runtime keeps it for as long as somebody waits */
	return r;
}

ncclResult_t cvy_nccl_stream_drain(struct ncclComm *comm)
{
	while (comm->launched && !__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE)) {
		enum cudaStreamCaptureMode had = cvy_nccl_exempt(cudaStreamCaptureModeRelaxed);
		cudaError_t got = cudaEventQuery(comm->done);

		cvy_nccl_exempt(had);
		if (got != cudaErrorNotReady)
			return cvy_nccl_cuda(got, "what was launched");
		cvy_nccl_look(comm, 1);
		if (comm->state)
			return ncclSuccess;
		cvy_nccl_nap(comm);
	}
	return ncclSuccess;
}
