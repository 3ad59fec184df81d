/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the runtime share (runtime.cc). */
#ifndef CPU_RUNTIME_H
#define CPU_RUNTIME_H

#include "machine.h"

/* Held by calls that wait for kernels: what else the process asks of its device waits too (tests/gpu/waits.cu). */
extern std::mutex &cpu_context;

void cpu_unmap(void *at); /* memory of cudaMallocAsync() */

#define ALIVE() \
	do { \
		if (cpu_failed) \
			return cudaErrorIllegalAddress; \
	} while (0)

#endif
