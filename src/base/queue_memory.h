/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How posters that are no threads of this process reach a queue: what the room that knows queues asks of the room
 * that knows the GPU. No table: posters are threads here. All return 0 or COVEY_ERR_*.
 */
#ifndef CVY_QUEUE_MEMORY_H
#define CVY_QUEUE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct cvy_queue_memory {
	void *ctx;
	int (*words)(void *ctx, size_t bytes, void **at); /* zeroed, for struct cvy_queue_words */
	void (*words_free)(void *ctx, void *at);
	int (*read)(void *ctx, const void *words, size_t offset, size_t bytes, void *to); /* never behind a kernel */
	/* Where posters see whole pages of this process; @io: a device's registers. Each map has its unmap. */
	int (*map)(void *ctx, void *host, size_t bytes, int io, void **at, char *why, size_t why_bytes);
	void (*unmap)(void *ctx, void *host, size_t bytes);
};

#endif
