/* SPDX-License-Identifier: Apache-2.0 */
/* Who opens a device loads the kernels of the table (table.cuh), and no other can be launched from then on. */
#include <stdio.h>

#include "covey.h"
#include "gpu.h"
#include "table.cuh"

extern "C" const struct cvy_gpu_ops cvy_gpu_ops;

static __global__ void listed(const __grid_constant__ struct cvy_gpu_call)
{
}

static __global__ void unlisted(const __grid_constant__ struct cvy_gpu_call)
{
}

static cudaError_t launch(const void *kernel)
{
	struct cvy_gpu_call call = {};
	void *args[] = { &call };

	return cudaLaunchKernel(kernel, dim3(1), dim3(1), args, 0, NULL);
}

int main(void)
{
	const struct cvy_gpu_entry *entry = &cvy_listed<listed>;
	const struct cvy_gpu_args args = { 0, 0, COVEY_DEVICE_MEMORY_VMM, 0 };
	struct cvy_gpu *gpu;
	char why[240] = "";
	int failed;

	if (cvy_gpu_ops.open(&args, &gpu, why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	failed = launch(entry->at) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
	failed |= launch((const void *)unlisted) != cudaErrorInvalidDeviceFunction;
	cvy_gpu_ops.close(gpu);
	printf("%s\n", failed ? "failed" : "what the table has is loaded, and nothing else");
	return failed;
}
