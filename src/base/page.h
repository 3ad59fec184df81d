/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first bytes of every window, written by its owner alone, mapped read-only by the peers on its
 * host: signs of life, and the signals of its slots. Each group of fields has its own cache line.
 */
#ifndef CVY_PAGE_H
#define CVY_PAGE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "size.h"

#define CVY_PAGE_MAGIC 0x33596576f6ull /* changes with the layout */

/* Signal words: {epoch, tick}. The tick is in the low half: a futex can sleep on it. */
static inline uint64_t cvy_tag(uint32_t epoch, uint32_t tick)
{
	return (uint64_t)epoch << 32 | tick;
}

#define CVY_LINE_DATA 32 /* bytes of payload in a line */

/*
 * One cache line: the signal of a slot, with a small payload. All is written before tag, which is stored last with
 * release.
 */
struct cvy_line {
	uint8_t data[CVY_LINE_DATA];
	uint64_t aux;	/* per kind: ticks needed, token counts */
	uint64_t call;	/* the call in short, for the text of a mismatch; low byte: hash of number and first tick */
	uint32_t sig;	/* hash of the call, its number and its first tick */
	uint32_t bytes; /* valid bytes of the slot or of data */
	uint64_t tag;
} __attribute__((aligned(64)));

#define CVY_DEPTH 2		  /* D: ticks in flight */
#define CVY_SLOTS (2 * CVY_DEPTH) /* slots per source */

struct cvy_page {
	pthread_mutex_t alive __attribute__((aligned(64))); /* robust, shared; held for life by the agent's thread */
	uint64_t magic;
	uint64_t inc, nonce;
	int32_t pid;
	int32_t max_ranks;
	uint64_t pid_start; /* field 22 of /proc/PID/stat: reveals a reused pid */
	uint64_t window_bytes, slot_bytes;
	uint64_t cores_id, quota_id; /* cores of the owner when it joined (cores.h); 0: not known, no quota */
	uint32_t cores, quota;
	uint64_t beat __attribute__((aligned(64)));	/* counts up while the agent lives */
	uint32_t beat_ms;				/* period of the beat: idle agents beat slower */
	uint32_t sleepers __attribute__((aligned(64))); /* threads of this rank that sleep on a peer's line */
	uint32_t epoch; /* of the last view learned: slots are, or will be, written for that view */
	uint32_t left;	/* 1: a view is without it because it left: the end of its process is no death */
	struct cvy_line first[CVY_SLOTS];  /* signal of slot i, first round */
	struct cvy_line second[CVY_SLOTS]; /* second round (reduced shards) */
	struct cvy_line done;		   /* tag: last tick completed; aux: seq done */
};

/*
 * Fences between the name of data in a window and the data. The writer stores the name first; a reader checks it last.
 * ThreadSanitizer knows no fences and sees only one process.
 */
static inline void cvy_named(void)
{
#ifndef __SANITIZE_THREAD__
	__atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

static inline void cvy_read(void)
{
#ifndef __SANITIZE_THREAD__
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

/*
 * Offsets in a window: page, slots, heap (buffers of EP handles), pool (rings of messages, p2p/channel.h; only used
 * addresses become memory). A slot holds slot_bytes of input and the same again for shards.
 */
#define CVY_POOL_MAX ((size_t)128 << 20)

struct cvy_extent { /* bytes of a window */
	size_t offset, bytes;
};

struct cvy_layout {
	size_t window_bytes; /* stride between the windows of two ranks */
	size_t slot_bytes;
	size_t slots;  /* offset of slot 0 */
	size_t stride; /* of slots: 2 * slot_bytes */
	size_t heap;   /* offset of the heap */
	size_t pool;   /* offset of the pool, to the end of the window */
};

static inline struct cvy_layout cvy_layout(size_t window_bytes, size_t slot_bytes)
{
	struct cvy_layout l = { window_bytes, slot_bytes, 0, 0, 0, window_bytes };
	size_t pool;

	l.slots = cvy_round_up(sizeof(struct cvy_page), CVY_MEMORY_PAGE);
	l.stride = 2 * slot_bytes;
	l.heap = l.slots + CVY_SLOTS * l.stride;
	pool = window_bytes > l.heap ? cvy_round_down((window_bytes - l.heap) / 4, CVY_MEMORY_PAGE) : 0;
	l.pool = window_bytes - (pool < CVY_POOL_MAX ? pool : CVY_POOL_MAX);
	return l;
}

/*
 * The least window_bytes, with the slots of @l, whose heap has @bytes: a multiple of CVY_MEMORY_PAGE, not 0. The pool has
 * a quarter of the pages behind the slots, rounded down: for n of the heap these are at least n + (n - 1) / 3.
 */
static inline size_t cvy_window_for(const struct cvy_layout *l, size_t bytes)
{
	size_t pool = (bytes / CVY_MEMORY_PAGE - 1) / 3 * CVY_MEMORY_PAGE;

	return l->heap + bytes + (pool < CVY_POOL_MAX ? pool : CVY_POOL_MAX);
}

#endif
