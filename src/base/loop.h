/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of an agent: file descriptors (epoll), one-shot timers and calls posted by other
 * threads. Callbacks run on the thread that is in cvy_loop_run.
 */
#ifndef CVY_LOOP_H
#define CVY_LOOP_H

#include <stdint.h>

struct cvy_loop;
struct cvy_watch; /* one descriptor */

int cvy_loop_new(struct cvy_loop **out);
void cvy_loop_free(struct cvy_loop *loop);

/*
 * Runs until cvy_loop_stop. @tick is called at least every *@tick_ms (read anew each round) and after every batch of
 * events.
 */
void cvy_loop_run(struct cvy_loop *loop, void (*tick)(void *ctx, uint64_t now_ns), void *ctx, const int *tick_ms);
void cvy_loop_stop(struct cvy_loop *loop); /* any thread */

/* events: EPOLLIN | EPOLLOUT; the descriptor stays the caller's. Agent's thread (or before run). */
int cvy_loop_watch(struct cvy_loop *loop, int fd, uint32_t events, void (*ready)(void *ctx, uint32_t events), void *ctx,
		   struct cvy_watch **out);
void cvy_loop_change(struct cvy_watch *watch, uint32_t events);
void cvy_loop_unwatch(struct cvy_watch *watch); /* safe inside callbacks; NULL is fine */

/* Any thread: makes the loop's thread run fn(arg) soon, in order of posting. fn owns arg, unless this fails:
 * COVEY_ERR_CLOSED once run has returned. A call posted before that always runs. */
int cvy_loop_post(struct cvy_loop *loop, void (*fn)(void *ctx, void *arg), void *ctx, void *arg);

/* One-shot timer. Agent's thread. */
struct cvy_timer;
struct cvy_timer *cvy_loop_timer(struct cvy_loop *loop, uint64_t deadline_ns, void (*fire)(void *ctx), void *ctx);
void cvy_loop_cancel(struct cvy_timer *timer); /* not after it has fired; NULL is fine */

#endif
