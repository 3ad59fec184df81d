/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory of a device: each rank has one window of device_window_bytes, mapped by all others, and gives parts
 * of it to the application. Large operations read such buffers in place (kernels/pull.cuh).
 */
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "device_state.h"
#include "window.h"

struct cvy_device_memory {
	struct cvy_device_memory *next;
	size_t offset, bytes;
};

int cvy_device_window_open(struct cvy_device *d, size_t bytes)
{
	int err;

	d->window_fd = -1;
	d->window_bytes = bytes;
	if (!bytes)
		return 0;
	err = d->mapped->window(d->gpu, bytes, &d->window, &d->window_fd);
	if (err)
		return cvy_fail(d->box, err, -1, 0, "device_window_bytes %zu: %s", bytes, d->ops->why(d->gpu));
	return cvy_heap_init(&d->heap, CVY_GPU_WINDOW_FIRST, bytes - CVY_GPU_WINDOW_FIRST);
}

void cvy_device_window_close(struct cvy_device *d)
{
	if (d->window_fd >= 0)
		close(d->window_fd);
	while (d->memory) {
		struct cvy_device_memory *m = d->memory;

		d->memory = m->next;
		free(m);
	}
	cvy_heap_clear(&d->heap);
}

int cvy_device_mem_alloc(struct cvy_device *d, size_t bytes, void **out)
{
	struct cvy_device_memory *m = malloc(sizeof(*m));

	if (!m)
		return cvy_fail(d->box, COVEY_ERR_NOMEM, -1, 0, "no memory for registered device memory");
	m->bytes = bytes;
	m->offset = d->window_bytes ? cvy_heap_alloc(&d->heap, bytes) : 0; /* 0: no room, since the heap begins later */
	if (!m->offset) {
		free(m);
		return cvy_fail(d->box, COVEY_ERR_NOMEM, -1, 0,
				"no room for %zu bytes of registered device memory: device_window_bytes is %zu", bytes,
				d->window_bytes);
	}
	m->next = d->memory;
	d->memory = m;
	*out = (uint8_t *)d->window + m->offset;
	return 0;
}

int cvy_device_peers(struct cvy_device *d, struct covey_device_peers *out)
{
	if (!d->window_bytes)
		return cvy_fail(d->box, COVEY_ERR_UNSUPPORTED, -1, 0,
				"device_peers: device_window_bytes is 0: with a size, peers map that much memory");
	if (CVY_GPU_IS_WIDE)
		return cvy_fail(
			d->box, COVEY_ERR_UNSUPPORTED, -1, 0,
			"device_peers: kernels of the application reach the peers of a library for 32 ranks, this "
			"one is for %d (COVEY_DEVICE_RANKS)",
			CVY_GPU_RANKS);
	*out = (struct covey_device_peers){ .rank = d->rank };
	d->ops->peers(d->gpu, out);
	return 0;
}

int cvy_device_mem_free(struct cvy_device *d, void *memory)
{
	struct cvy_device_memory **at = &d->memory, *m;

	while (*at && (uint8_t *)d->window + (*at)->offset != memory)
		at = &(*at)->next;
	m = *at;
	if (!m)
		return cvy_fail(d->box, COVEY_ERR_INVAL, -1, 0,
				"device_mem_free: this is not what covey_device_mem_alloc gave");
	*at = m->next;
	cvy_heap_free(&d->heap, m->offset, m->bytes);
	free(m);
	return 0;
}
