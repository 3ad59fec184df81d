/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sleep of the watcher. Its own control word is the first in every futex_waitv: the agent counts it up when the
 * list changes or the thread must end. After a kick the thread sleeps on the control word alone, so that a word that
 * is already "dead" cannot make it spin.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "covey.h"
#include "log.h"
#include "process.h"
#include "slice.h"
#include "watcher.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* The header of an older kernel does not have it; the layout is the system call's. */
struct waiter {
	uint64_t value;
	uint64_t address;
	uint32_t flags;
	uint32_t reserved;
};

#define FLAG_32 2 /* FUTEX_32, shared between processes */

struct cvy_watcher {
	void (*kick)(void *ctx);
	void *ctx;
	pthread_t thread;
	pthread_mutex_t lock; /* of the three below */
	struct cvy_watcher_word words[CVY_WATCHER_MAX];
	int n;
	int stop;
	uint32_t control; /* futex: counts changes, under the lock */
};

static int sleep_on(struct waiter *waiters, unsigned int n)
{
	return (int)syscall(SYS_futex_waitv, waiters, n, 0, NULL, CLOCK_MONOTONIC);
}

static struct waiter waiter_of(const uint32_t *word, uint32_t value, uint32_t flags)
{
	return (struct waiter){ .value = value, .address = (uint64_t)(uintptr_t)word, .flags = flags };
}

/* Copies the list into @waiters and returns its length; 0: the thread must end. */
static unsigned int fill(struct cvy_watcher *watcher, struct waiter *waiters)
{
	unsigned int n = 0;

	pthread_mutex_lock(&watcher->lock);
	if (!watcher->stop) {
		waiters[n++] = waiter_of(&watcher->control, watcher->control, FLAG_32 | FUTEX_PRIVATE_FLAG);
		for (int i = 0; i < watcher->n; i++)
			waiters[n++] = waiter_of(watcher->words[i].word, watcher->words[i].value, FLAG_32);
	}
	pthread_mutex_unlock(&watcher->lock);
	return n;
}

static void *watch(void *arg)
{
	struct cvy_watcher *watcher = arg;
	struct waiter waiters[CVY_WATCHER_MAX + 1];
	unsigned int n;

	pthread_setname_np(pthread_self(), "covey-watcher"); /* by the thread itself: agent.c says why */
	cvy_slice_short();
	while ((n = fill(watcher, waiters)) != 0) {
		uint32_t seen = (uint32_t)waiters[0].value;

		/*
		 * 0: the control word. Else a peer's word was woken, had changed or was unmapped: the agent looks.
		 */
		if (sleep_on(waiters, n) == 0 || errno == EINTR)
			continue;
		if (__atomic_load_n(&watcher->control, __ATOMIC_ACQUIRE) != seen)
			continue;
		watcher->kick(watcher->ctx);
		while (__atomic_load_n(&watcher->control, __ATOMIC_ACQUIRE) == seen)
			sleep_on(waiters, 1);
	}
	return NULL;
}

static int supported(void)
{
	uint32_t word = 1;
	struct waiter one = waiter_of(&word, 0, FLAG_32 | FUTEX_PRIVATE_FLAG);

	/* The word has another value, so a kernel with the call returns EAGAIN. */
	return sleep_on(&one, 1) < 0 && errno == EAGAIN;
}

int cvy_watcher_new(void (*kick)(void *ctx), void *ctx, struct cvy_watcher **out)
{
	struct cvy_watcher *watcher;
	char why[CVY_HINT];
	int err;

	if (!supported())
		return COVEY_ERR_UNSUPPORTED;
	watcher = calloc(1, sizeof(*watcher));
	if (!watcher)
		return COVEY_ERR_NOMEM;
	watcher->kick = kick;
	watcher->ctx = ctx;
	pthread_mutex_init(&watcher->lock, NULL);
	err = cvy_thread_start(&watcher->thread, watch, watcher);
	if (err) {
		cvy_warn("membership", "cannot start the watcher: %s%s", strerror(err),
			 cvy_process_hint(err, why, sizeof(why)));
		pthread_mutex_destroy(&watcher->lock);
		free(watcher);
		return COVEY_ERR_IO;
	}
	*out = watcher;
	return 0;
}

/* Called with the lock held, last before the unlock. */
static void bump(struct cvy_watcher *watcher)
{
	__atomic_add_fetch(&watcher->control, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &watcher->control, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void cvy_watcher_set(struct cvy_watcher *watcher, const struct cvy_watcher_word *words, int n)
{
	if (!watcher)
		return;
	if (n > CVY_WATCHER_MAX)
		n = CVY_WATCHER_MAX;
	pthread_mutex_lock(&watcher->lock);
	if (n)
		memcpy(watcher->words, words, (size_t)n * sizeof(*words));
	watcher->n = n;
	bump(watcher);
	pthread_mutex_unlock(&watcher->lock);
}

void cvy_watcher_free(struct cvy_watcher *watcher)
{
	if (!watcher)
		return;
	pthread_mutex_lock(&watcher->lock);
	watcher->stop = 1;
	bump(watcher);
	pthread_mutex_unlock(&watcher->lock);
	pthread_join(watcher->thread, NULL);
	pthread_mutex_destroy(&watcher->lock);
	free(watcher);
}

void cvy_watcher_pass_on(const uint32_t *word)
{
	/* Not a private one: the sleepers are other processes. Works through a read-only mapping. */
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
