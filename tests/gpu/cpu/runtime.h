/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the runtime share (runtime.cc). */
#ifndef CPU_RUNTIME_H
#define CPU_RUNTIME_H

#include "machine.h"

#define ALIVE() \
	do { \
		if (cpu_failed) \
			return cudaErrorIllegalAddress; \
	} while (0)

#endif
