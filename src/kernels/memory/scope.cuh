/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread needs to call the runtime here. Its calls may come while another thread captures a graph. By default
 * (cudaStreamCaptureModeGlobal) calls such as cudaMalloc, cudaEventQuery and cudaStreamSynchronize would then fail and end
 * that capture, though none of them is of its streams. So threads that call from here are exempt: the library's own for
 * good, the application's for one call (struct cvy_gpu_scope, gpu.h). cudaDeviceSynchronize() alone is refused all the same.
 */
#ifndef CVY_SCOPE_CUH
#define CVY_SCOPE_CUH

#include <cuda_runtime.h>

/* In a scope the device is current already: to set it would outlast the scope. */
static inline cudaError_t cvy_gpu_use(int device)
{
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	int now = -1;
	cudaError_t got = cudaGetDevice(&now);

	if (got == cudaSuccess && now != device)
		got = cudaSetDevice(device);
	return got == cudaSuccess ? cudaThreadExchangeStreamCaptureMode(&mode) : got;
}

#endif
