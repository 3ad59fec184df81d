/* SPDX-License-Identifier: Apache-2.0 */
/* Where a program that is built without CUDA finds the table of tool.h. */
#ifndef CVY_GPU_TOOL_FIND_H
#define CVY_GPU_TOOL_FIND_H

#include <dlfcn.h>

#include "library.h"
#include "tool.h"

/* NULL: there is none, or it is of another version. */
static inline const struct cvy_gpu_tool *cvy_gpu_tool_find(void)
{
	void *library = dlopen(CVY_GPU_TOOL_LIBRARY, RTLD_NOW);
	const struct cvy_gpu_tool *tool =
		library ? (const struct cvy_gpu_tool *)dlsym(library, CVY_GPU_TOOL_SYMBOL) : NULL;

	return tool && tool->abi == CVY_GPU_TOOL_ABI ? tool : NULL;
}

#endif
