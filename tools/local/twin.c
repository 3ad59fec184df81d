/* SPDX-License-Identifier: Apache-2.0 */
#include "twin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "covey.h"
#include "tool_find.h"

void tool_device_choose(int devices, int rank)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", devices ? rank % devices : 0);
	if (devices)
		setenv("COVEY_DEVICE", text, 1);
}

int tool_device_open(struct tool_device *d, const char *name, int device)
{
	const struct cvy_gpu_tool *tool = cvy_gpu_tool_find();
	const char *why = tool ? NULL : dlerror();

	*d = (struct tool_device){ .tool = tool };
	if (tool && !tool->use(device) && !tool->stream(&d->stream))
		return 0;
	if (tool)
		fprintf(stderr, "%s: device %d: %s\n", name, device, tool->why());
	else
		fprintf(stderr, "%s: %s\n", name, why ? why : "libcovey_cuda_tools is of another version");
	return -1;
}

void tool_device_forget(struct tool_device *d)
{
	while (d->twins)
		d->tool->release(d->twin[--d->twins].there);
}

void tool_device_close(struct tool_device *d)
{
	if (!d->tool)
		return;
	tool_device_forget(d);
	if (d->stream)
		d->tool->stream_end(d->stream);
	d->tool = NULL;
}

int tool_device_twin(struct tool_device *d, void *host, size_t bytes)
{
	void *there = NULL;
	int err = d->twins < TOOL_TWINS ? d->tool->alloc(bytes ? bytes : 1, &there) : COVEY_ERR_NOMEM;

	if (!err)
		d->twin[d->twins++] = (struct tool_twin){ host, there, bytes };
	return err;
}

static const struct tool_twin *twin_of(const struct tool_device *d, const void *host)
{
	for (int i = 0; d && host && i < d->twins; i++) {
		const struct tool_twin *t = &d->twin[i];

		if (host == t->host ||
		    (uintptr_t)host - (uintptr_t)t->host < t->bytes) /* one of no bytes has a place, too */
			return t;
	}
	return NULL;
}

void *tool_device_there(const struct tool_device *d, const void *host)
{
	const struct tool_twin *t = twin_of(d, host);

	return t ? t->there + ((const char *)host - t->host) : (void *)(uintptr_t)host;
}

int tool_device_copy(const struct tool_device *d, const void *host, bool back)
{
	const struct tool_twin *t = twin_of(d, host);

	if (!t)
		return 0;
	return d->tool->copy(back ? t->host : t->there, back ? t->there : t->host, t->bytes);
}
