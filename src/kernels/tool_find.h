/* SPDX-License-Identifier: Apache-2.0 */
/* Where a program that is built without CUDA finds the table of tool.h. */
#ifndef CVY_GPU_TOOL_FIND_H
#define CVY_GPU_TOOL_FIND_H

#include <dlfcn.h>

#include "library.h"
#include "tool.h"

/* In the library that covey_join() has opened (@load: or that is opened now); NULL: there is none, or it is of another version. */
static inline const struct cvy_gpu_tool *cvy_gpu_tool_find(int load)
{
	void *library = dlopen(CVY_GPU_LIBRARY, RTLD_NOW | (load ? 0 : RTLD_NOLOAD));
	const struct cvy_gpu_tool *tool =
		library ? (const struct cvy_gpu_tool *)dlsym(library, CVY_GPU_TOOL_SYMBOL) : NULL;

	return tool && tool->abi == CVY_GPU_TOOL_ABI ? tool : NULL;
}

#endif
