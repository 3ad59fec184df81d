/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that sleeps on the robust words of peers (futex_waitv), so that a death on this host wakes it at once. It
 * never reads a peer's memory, which may be unmapped meanwhile: it kicks the agent, which looks and then calls
 * cvy_watcher_set() to make it sleep again.
 */
#ifndef CVY_WATCHER_H
#define CVY_WATCHER_H

#include <stdint.h>

#define CVY_WATCHER_MAX 127 /* words: futex_waitv takes 128, one is the watcher's own */

struct cvy_watcher;

struct cvy_watcher_word {
	const uint32_t *word;
	uint32_t value; /* as last read */
};

/* @kick is called from the watcher's thread. COVEY_ERR_UNSUPPORTED: the kernel has no futex_waitv. */
int cvy_watcher_new(void (*kick)(void *ctx), void *ctx, struct cvy_watcher **out);
void cvy_watcher_free(struct cvy_watcher *watcher); /* waits for its thread */
/* Makes the watcher sleep on these words; also the answer to a kick. NULL watcher is fine. */
void cvy_watcher_set(struct cvy_watcher *watcher, const struct cvy_watcher_word *words, int n);
/* Wakes every other watcher of a word: the kernel wakes only one when the owner dies. */
void cvy_watcher_pass_on(const uint32_t *word);

#endif
