/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of kernels. A launch takes an entry, and an entry is made by naming its kernel: cvy_listed<KERNEL>. So what a
 * choice may return is in the table, and whoever opens a device loads all of it (gpu.cu). Where the driver loads lazily, it
 * does so at a kernel's first launch and may wait until the device is idle: for ever, if that waits for the launch.
 */
#ifndef CVY_TABLE_CUH
#define CVY_TABLE_CUH

struct cvy_gpu_entry {
	const void *at;
	const struct cvy_gpu_entry *next;
};

extern const struct cvy_gpu_entry *cvy_kernels; /* all; whole before the library is open */

static inline const struct cvy_gpu_entry *cvy_list_kernel(const struct cvy_gpu_entry *kernel)
{
	const struct cvy_gpu_entry *next = cvy_kernels;

	cvy_kernels = kernel;
	return next;
}

template <auto KERNEL>
const struct cvy_gpu_entry cvy_listed = { (const void *)KERNEL, cvy_list_kernel(&cvy_listed<KERNEL>) };

#endif
