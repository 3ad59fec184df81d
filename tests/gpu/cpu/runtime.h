/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the runtime share (runtime.cc). */
#ifndef CPU_RUNTIME_H
#define CPU_RUNTIME_H

#include "machine.h"

/* Held by calls that wait for kernels: what else the process asks of its device waits too (tests/gpu/waits.cu). */
extern std::mutex &cpu_context;

void cpu_unmap(void *at); /* memory of cudaMallocAsync() */
void cpu_wait_for_device(void);
/* What the driver does with contexts, each of which is a device's number here. */
void cpu_push(int device);
void cpu_pop(void);
/*
 * While a graph is captured some calls are refused, and end the capture: for threads that are not exempt from captures that
 * ask for it (cudaStreamCaptureMode), and a wait for the whole device for all threads.
 */
cudaError_t cpu_refused(int whole);

#define ALIVE() \
	do { \
		if (cpu_failed) \
			return cudaErrorIllegalAddress; \
	} while (0)

#define UNSAFE(whole) \
	do { \
		cudaError_t refused_ = cpu_refused(whole); \
		if (refused_ != cudaSuccess) \
			return refused_; \
	} while (0)

#endif
