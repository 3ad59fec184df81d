/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device for tools that make inputs and check results in host memory: a buffer there may have a *twin* on the device,
 * which is copied as a whole. Memory and streams come from the table of libcovey_cuda_tools (tool.h): tools are
 * built without CUDA.
 */
#ifndef LOCAL_TWIN_H
#define LOCAL_TWIN_H

#include <stdbool.h>
#include <stddef.h>

#include "tool.h"

#define TOOL_TWINS 12

struct tool_twin {
	char *host, *there;
	size_t bytes;
};

struct tool_device {
	const struct cvy_gpu_tool *tool;
	struct CUstream_st *stream;
	int twins;
	struct tool_twin twin[TOOL_TWINS];
};

void tool_device_choose(int devices, int rank); /* before covey_join(): ranks share devices if there are fewer */
/* Opens the library if it is not open. 0, or -1 after a message of @tool. */
int tool_device_open(struct tool_device *d, const char *tool, int device);
void tool_device_close(struct tool_device *d);	/* its twins, too */
void tool_device_forget(struct tool_device *d); /* all twins */

int tool_device_twin(struct tool_device *d, void *host, size_t bytes); /* 0 or COVEY_ERR_* */
/* The place on the device; @host itself if it has no twin, or @d is NULL. */
void *tool_device_there(const struct tool_device *d, const void *host);
int tool_device_copy(const struct tool_device *d, const void *host, bool back); /* 0 or COVEY_ERR_* */

#endif
