/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows as memory: the own one (a sealed memfd that only its owner can write), the addresses reserved for all
 * windows, and the heap in the own one.
 *
 * The own window is mapped writable once and never moves. It has a reference count, because another rank in the same
 * process (tests, ranks as threads) reads it at its owner's address and may outlive it.
 */
#ifndef CVY_WINDOW_H
#define CVY_WINDOW_H

#include "config.h"
#include "page.h"

struct cvy_window {
	struct cvy_window *next; /* in the table of this process */
	int refs;
	int fd; /* the sealed memfd */
	uint64_t inode;
	struct cvy_layout layout;
	uint8_t *own;
};

/* Creates, fills and seals a window; max_ranks goes into its page. */
int cvy_window_new(const struct cvy_layout *layout, int max_ranks, struct cvy_errbox *box, struct cvy_window **out);
void cvy_window_put(struct cvy_window *window); /* the last reference unmaps; NULL is fine */
/* The identity of the owner becomes readable to peers. */
void cvy_window_name(struct cvy_window *window, uint64_t inc, uint64_t nonce, int max_ranks);

/* The window of this process behind @fd, with a reference taken; NULL: it belongs to another process. */
struct cvy_window *cvy_window_local(int fd, uint64_t nonce);
/* 0 if only the owner of @fd can write, shrink or grow it, and its size is right; else the reason in @why. */
int cvy_window_check(int fd, const struct cvy_layout *layout, const char **why);

uint8_t *cvy_window_reserve(size_t window_bytes, int max_ranks); /* addresses only; NULL: none left */
int cvy_window_map(uint8_t *at, int fd, size_t bytes);		 /* a peer's window, read-only, at a reserved place */
int cvy_window_void(uint8_t *at, size_t bytes);			 /* inaccessible again */
int cvy_window_fresh(uint8_t *at, size_t bytes);		 /* private zeroes: a mirror */

/* Keeps windows out of core dumps: a dump reads all of a mapping, and shared memory that is read takes memory. */
void cvy_window_hide(void *at, size_t bytes);

/* First fit over extents in address order: the result depends on the calls alone, not on addresses or time. */
struct cvy_heap {
	struct cvy_extent *free; /* sorted, never adjacent */
	int count, room;
};

int cvy_heap_init(struct cvy_heap *heap, size_t offset, size_t bytes);
size_t cvy_heap_alloc(struct cvy_heap *heap, size_t bytes);
/* Last fit, from its end. */
size_t cvy_heap_alloc_top(struct cvy_heap *heap, size_t bytes);
void cvy_heap_free(struct cvy_heap *heap, size_t offset, size_t bytes);
void cvy_heap_clear(struct cvy_heap *heap);

#endif
