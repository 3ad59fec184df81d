/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How posters that are no threads of this process reach a queue, and how a proxy copies between memories that no host
 * thread reads: what the room that knows queues asks of the room that knows the GPU. No table: posters are threads here.
 * All return 0 or COVEY_ERR_*.
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

/*
 * Copies, from one thread: each begins when the one before has arrived, and none waits for what the device computes. A
 * copy stores what it brings in ascending order, words of 8 bytes whole.
 */
#define CVY_COPIER_MARKS 2     /* not reached, at most */
#define CVY_COPIER_STORES 1024 /* from one reached mark on, at most */

struct cvy_copier {
	void *ctx;
	/* @rows of @bytes, @stride from one to the next, at both ends. */
	int (*copy)(void *ctx, uint64_t to, uint64_t from, size_t bytes, size_t rows, size_t stride);
	int (*store)(void *ctx, uint64_t to, uint64_t value);
	int (*mark)(void *ctx);			    /* behind all that was asked for */
	int (*reached)(void *ctx, uint64_t *marks); /* of all marks, how many; waits for nothing */
};

/* Both ends of what a queue copies, as the copier names them; of one size. */
struct cvy_copies {
	struct cvy_copier copier;
	uint64_t from, to;
	uint64_t quiet_ns; /* commands are held until none has come for so long, if there is room, and not for many times as long */
};

#endif
