/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables by which the code of queues uses the code of the GPU: how posters outside this process reach a queue, and how
 * a proxy copies between memories that no host thread reads. Without a table, posters are threads of this process. All
 * functions return 0 or COVEY_ERR_*.
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
	/* *at: where posters see whole pages of this process; @io: a device's registers. Each map has its unmap. */
	int (*map)(void *ctx, void *host, size_t bytes, int io, void **at, char *why, size_t why_bytes);
	void (*unmap)(void *ctx, void *host, size_t bytes);
};

/*
 * Copies, from one thread. Each begins when the one before has arrived; none waits for computations of the device. A
 * copy stores in ascending order, words of 8 bytes whole.
 */
#define CVY_COPIER_MARKS 2     /* most marks that are not reached */
#define CVY_COPIER_STORES 1024 /* most stores after a reached mark */

struct cvy_copier {
	void *ctx;
	/* @rows of @bytes, @stride from one to the next, at both ends. */
	int (*copy)(void *ctx, uint64_t to, uint64_t from, size_t bytes, size_t rows, size_t stride);
	int (*store)(void *ctx, uint64_t to, uint64_t value);
	int (*mark)(void *ctx);			    /* after all copies and stores so far */
	int (*reached)(void *ctx, uint64_t *marks); /* number of marks reached so far; does not wait */
};

/* Both ends of a queue's copies, as the copier names them; of one size. */
struct cvy_copies {
	struct cvy_copier copier;
	uint64_t from, to;
	uint64_t quiet_ns; /* with room, commands wait until none has come for this long; bounded */
};

#endif
