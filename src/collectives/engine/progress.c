/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread of a process: steps operations that nobody waits for, and sleeps as wait.c does. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "clock.h"
#include "engine_state.h"
#include "list.h"
#include "pair_state.h"
#include "process.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t left; /* an engine was released */
	struct cvy_engine *first, *stepping;
	uint32_t kick; /* futex */
	int running;
} progress = { .lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER };

/* The finding of a step of one engine, or of all; the later value counts for all. */
enum stepped { NOTHING_TO_DO, BLOCKED, MOVED };

static enum stepped step_one(struct cvy_engine *e)
{
	enum stepped r = NOTHING_TO_DO;

	if (__atomic_load_n(&e->waiters, __ATOMIC_SEQ_CST))
		return NOTHING_TO_DO;
	if (pthread_mutex_trylock(&e->lock)) /* held for a moment, and released without a kick */
		return BLOCKED;
	cvy_engine_look_far(e); /* it sleeps for a millisecond between looks */
	if (e->head || e->repair || cvy_pairs_busy(e))
		r = cvy_engine_step(e) ? MOVED : BLOCKED;
	else if (cvy_engine_unsent(e)) /* behind a closed gate too: a laggard may wait for it */
		r = BLOCKED;
	pthread_mutex_unlock(&e->lock);
	return r;
}

static struct cvy_engine *claim_next(struct cvy_engine *after)
{
	struct cvy_engine *e;

	pthread_mutex_lock(&progress.lock);
	for (e = progress.first; after && e && e != after;)
		e = e->next_engine;
	if (after) /* an engine that was removed meanwhile has no next: starts from the first */
		e = e ? e->next_engine : progress.first;
	progress.stepping = e;
	pthread_cond_broadcast(&progress.left);
	pthread_mutex_unlock(&progress.lock);
	return e;
}

static enum stepped step_all(void)
{
	enum stepped best = NOTHING_TO_DO;

	for (struct cvy_engine *e = claim_next(NULL); e; e = claim_next(e)) {
		enum stepped r = step_one(e);

		if (r > best)
			best = r;
	}
	return best;
}

static void *progress_main(void *arg)
{
	uint64_t since = 0;

	(void)arg;
	pthread_setname_np(pthread_self(), "covey-progress");
	for (;;) {
		uint32_t seen = __atomic_load_n(&progress.kick, __ATOMIC_SEQ_CST);
		struct timespec brief = { 0, (long)CVY_MS };
		enum stepped r = step_all();

		if (r == MOVED) {
			since = 0;
			continue;
		}
		if (r == BLOCKED) {
			uint64_t now = cvy_now_ns();

			if (!since)
				since = now;
			if (now - since < CVY_YIELD_NS)
				sched_yield();
			else
				cvy_futex(&progress.kick, FUTEX_WAIT_PRIVATE, seen, &brief);
			continue;
		}
		since = 0;
		cvy_futex(&progress.kick, FUTEX_WAIT_PRIVATE, seen, NULL);
	}
	return NULL;
}

void cvy_progress_kick(void)
{
	__atomic_add_fetch(&progress.kick, 1, __ATOMIC_SEQ_CST);
	cvy_futex(&progress.kick, FUTEX_WAKE_PRIVATE, 1, NULL);
}

/* A thread that stops waiting kicks, too. An agent that woke the thread for nothing would lose its core to it. */
void cvy_engine_kick(struct cvy_engine *e)
{
	if (!__atomic_load_n(&e->waiters, __ATOMIC_SEQ_CST))
		cvy_progress_kick();
}

int cvy_progress_add(struct cvy_engine *e)
{
	char why[CVY_HINT];
	pthread_t thread;
	int err = 0;

	cvy_barrier_all(); /* registers this process */
	pthread_mutex_lock(&progress.lock);
	e->next_engine = progress.first;
	progress.first = e;
	if (!progress.running) {
		err = cvy_thread_start(&thread, progress_main, NULL);
		if (err) {
			progress.first = e->next_engine;
		} else {
			pthread_detach(thread);
			progress.running = 1;
		}
	}
	pthread_mutex_unlock(&progress.lock);
	return err ? cvy_fail(e->here.box, COVEY_ERR_IO, -1, 0, "cannot start the progress thread: %s%s", strerror(err),
			      cvy_process_hint(err, why, sizeof(why)))
		   : 0;
}

void cvy_progress_remove(struct cvy_engine *e)
{
	pthread_mutex_lock(&progress.lock);
	CVY_UNLINK(progress.first, e, next_engine);
	while (progress.stepping == e)
		pthread_cond_wait(&progress.left, &progress.lock);
	pthread_mutex_unlock(&progress.lock);
}

/* A forked child has no such thread. */
void cvy_progress_forget(void)
{
	pthread_mutex_init(&progress.lock, NULL);
	pthread_cond_init(&progress.left, NULL);
	progress.first = progress.stepping = NULL;
	progress.running = 0;
}
