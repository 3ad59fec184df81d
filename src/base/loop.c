/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of an agent. One round is one epoll wait, then the ready descriptors, the posted
 * calls, the due timers and the tick. An idle round makes no other system call: the clock is
 * in the vDSO, and the eventfd for posts is edge-triggered, so that it is never read.
 *
 * A callback may remove a watch that the same batch still holds. So a removed watch is only marked, and freed when its
 * round is over.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "covey.h"
#include "log.h"
#include "loop.h"
#include "process.h"

#define BATCH 32 /* descriptors per round */
#define TICK_MS_MAX 10000

struct cvy_watch {
	struct cvy_loop *loop;
	int fd; /* -1: removed */
	void (*ready)(void *ctx, uint32_t events);
	void *ctx;
	struct cvy_watch *next_dead;
};

struct cvy_timer {
	struct cvy_loop *loop;
	uint64_t deadline_ns;
	size_t at; /* in heap[] */
	void (*fire)(void *ctx);
	void *ctx;
};

struct post {
	struct post *next;
	void (*fn)(void *ctx, void *arg);
	void *ctx, *arg;
};

struct cvy_loop {
	int epfd, wakefd;
	int millis_only; /* the kernel has no epoll_pwait2 */
	struct cvy_watch *dead;
	struct cvy_timer **heap; /* the earliest first */
	uint64_t round_ns;	 /* timers due by then fire in this round */
	size_t timers, room;

	pthread_mutex_t lock; /* of the three below */
	struct post *first, **last;
	int ended; /* run has returned: posts are refused */

	int stop; /* any thread */
};

/* The null pointer distinguishes the wake descriptor from a watch. */
static int watch_wake(struct cvy_loop *loop)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };

	return epoll_ctl(loop->epfd, EPOLL_CTL_ADD, loop->wakefd, &ev);
}

int cvy_loop_new(struct cvy_loop **out)
{
	struct cvy_loop *loop = calloc(1, sizeof(*loop));
	char why[CVY_HINT];

	if (!loop)
		return COVEY_ERR_NOMEM;
	pthread_mutex_init(&loop->lock, NULL);
	loop->last = &loop->first;
	loop->epfd = epoll_create1(EPOLL_CLOEXEC);
	loop->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->epfd < 0 || loop->wakefd < 0 || watch_wake(loop)) {
		cvy_warn("base", "cannot open an event loop: %s%s", strerror(errno),
			 cvy_process_hint(errno, why, sizeof(why)));
		cvy_loop_free(loop);
		return COVEY_ERR_IO;
	}
	*out = loop;
	return 0;
}

static void bury(struct cvy_loop *loop)
{
	while (loop->dead) {
		struct cvy_watch *watch = loop->dead;

		loop->dead = watch->next_dead;
		free(watch);
	}
}

void cvy_loop_free(struct cvy_loop *loop)
{
	if (!loop)
		return;
	/* Posts that no run took are dropped with their arguments: their contexts may be freed. */
	while (loop->first) {
		struct post *post = loop->first;

		loop->first = post->next;
		free(post);
	}
	for (size_t i = 0; i < loop->timers; i++)
		free(loop->heap[i]);
	free(loop->heap);
	bury(loop);
	if (loop->epfd >= 0)
		close(loop->epfd);
	if (loop->wakefd >= 0)
		close(loop->wakefd);
	pthread_mutex_destroy(&loop->lock);
	free(loop);
}

static void wake(struct cvy_loop *loop)
{
	uint64_t one = 1;

	/* The counter cannot fill up: that takes 2^64 writes. */
	if (write(loop->wakefd, &one, sizeof(one)) < 0)
		cvy_error("base", "cannot wake an event loop: %s", strerror(errno));
}

void cvy_loop_stop(struct cvy_loop *loop)
{
	__atomic_store_n(&loop->stop, 1, __ATOMIC_RELEASE);
	wake(loop);
}

int cvy_loop_watch(struct cvy_loop *loop, int fd, uint32_t events, void (*ready)(void *ctx, uint32_t events), void *ctx,
		   struct cvy_watch **out)
{
	struct cvy_watch *watch = calloc(1, sizeof(*watch));
	struct epoll_event ev = { .events = events, .data.ptr = watch };

	if (!watch)
		return COVEY_ERR_NOMEM;
	*watch = (struct cvy_watch){ .loop = loop, .fd = fd, .ready = ready, .ctx = ctx };
	if (epoll_ctl(loop->epfd, EPOLL_CTL_ADD, fd, &ev)) {
		cvy_warn("base", "cannot watch descriptor %d: %s", fd, strerror(errno));
		free(watch);
		return COVEY_ERR_IO;
	}
	*out = watch;
	return 0;
}

void cvy_loop_change(struct cvy_watch *watch, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = watch };

	if (epoll_ctl(watch->loop->epfd, EPOLL_CTL_MOD, watch->fd, &ev))
		cvy_warn("base", "cannot change the watch of descriptor %d: %s", watch->fd, strerror(errno));
}

void cvy_loop_unwatch(struct cvy_watch *watch)
{
	if (!watch || watch->fd < 0)
		return;
	epoll_ctl(watch->loop->epfd, EPOLL_CTL_DEL, watch->fd, NULL);
	watch->fd = -1;
	watch->next_dead = watch->loop->dead;
	watch->loop->dead = watch;
}

int cvy_loop_post(struct cvy_loop *loop, void (*fn)(void *ctx, void *arg), void *ctx, void *arg)
{
	struct post *post = malloc(sizeof(*post));
	int was_empty, ended;

	if (!post)
		return COVEY_ERR_NOMEM;
	*post = (struct post){ .fn = fn, .ctx = ctx, .arg = arg };
	pthread_mutex_lock(&loop->lock);
	ended = loop->ended;
	was_empty = !loop->first;
	if (!ended) {
		*loop->last = post;
		loop->last = &post->next;
	}
	pthread_mutex_unlock(&loop->lock);
	if (ended) {
		free(post);
		return COVEY_ERR_CLOSED;
	}
	if (was_empty)
		wake(loop);
	return 0;
}

/* Runs the calls posted so far. Calls that these post wait for the next round. */
static void run_posts(struct cvy_loop *loop)
{
	struct post *list;

	pthread_mutex_lock(&loop->lock);
	list = loop->first;
	loop->first = NULL;
	loop->last = &loop->first;
	pthread_mutex_unlock(&loop->lock);
	while (list) {
		struct post *post = list;

		list = post->next;
		post->fn(post->ctx, post->arg);
		free(post);
	}
}

/* After the last round: each successful post has taken its argument, so every call still runs. */
static void end_posts(struct cvy_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->ended = 1;
	pthread_mutex_unlock(&loop->lock);
	run_posts(loop);
}

static void place(struct cvy_loop *loop, struct cvy_timer *timer, size_t at)
{
	loop->heap[at] = timer;
	timer->at = at;
}

/* Moves @timer from the hole @at to its place in the heap. */
static void settle(struct cvy_loop *loop, struct cvy_timer *timer, size_t at)
{
	while (at > 0 && loop->heap[(at - 1) / 2]->deadline_ns > timer->deadline_ns) {
		place(loop, loop->heap[(at - 1) / 2], at);
		at = (at - 1) / 2;
	}
	for (;;) {
		size_t child = 2 * at + 1;

		if (child + 1 < loop->timers && loop->heap[child + 1]->deadline_ns < loop->heap[child]->deadline_ns)
			child++;
		if (child >= loop->timers || loop->heap[child]->deadline_ns >= timer->deadline_ns)
			break;
		place(loop, loop->heap[child], at);
		at = child;
	}
	place(loop, timer, at);
}

struct cvy_timer *cvy_loop_timer(struct cvy_loop *loop, uint64_t deadline_ns, void (*fire)(void *ctx), void *ctx)
{
	struct cvy_timer *timer = malloc(sizeof(*timer));

	if (timer && loop->timers == loop->room) {
		size_t room = loop->room ? 2 * loop->room : 16;
		struct cvy_timer **heap = realloc(loop->heap, room * sizeof(*heap));

		if (heap) {
			loop->heap = heap;
			loop->room = room;
		} else {
			free(timer);
			timer = NULL;
		}
	}
	if (!timer)
		return NULL;
	if (deadline_ns <= loop->round_ns) /* set for the past by a call of this round: waits for the next */
		deadline_ns = loop->round_ns + 1;
	*timer = (struct cvy_timer){ .loop = loop, .deadline_ns = deadline_ns, .fire = fire, .ctx = ctx };
	loop->timers++;
	settle(loop, timer, loop->timers - 1);
	return timer;
}

/* The last timer takes the place @at. */
static void take_out(struct cvy_loop *loop, size_t at)
{
	if (at < --loop->timers)
		settle(loop, loop->heap[loop->timers], at);
}

void cvy_loop_cancel(struct cvy_timer *timer)
{
	if (!timer)
		return;
	take_out(timer->loop, timer->at);
	free(timer);
}

/* Fires timers due at @now_ns. A timer that its own call sets again for the past waits for the next round. */
static void run_timers(struct cvy_loop *loop, uint64_t now_ns)
{
	loop->round_ns = now_ns;
	while (loop->timers && loop->heap[0]->deadline_ns <= now_ns) {
		struct cvy_timer *first = loop->heap[0], timer = *first;

		take_out(loop, 0);
		free(first);
		timer.fire(timer.ctx);
	}
}

/* Waits for events until @until_ns, never returning much before it: a wait rounded down would spin. */
static int wait_events(struct cvy_loop *loop, struct epoll_event *events, uint64_t until_ns)
{
	uint64_t now = cvy_now_ns();
	uint64_t left = until_ns > now ? until_ns - now : 0;
	struct timespec t = { .tv_sec = (time_t)(left / 1000000000ull), .tv_nsec = (long)(left % 1000000000ull) };
	int n;

	if (!loop->millis_only) {
		n = epoll_pwait2(loop->epfd, events, BATCH, &t, NULL);
		if (n >= 0 || (errno != ENOSYS && errno != EPERM))
			return n;
		loop->millis_only = 1;
	}
	return epoll_wait(loop->epfd, events, BATCH, (int)((left + CVY_MS - 1) / CVY_MS));
}

static void run_ready(struct cvy_loop *loop, const struct epoll_event *events, int n)
{
	int posted = 0;

	for (int i = 0; i < n; i++) {
		struct cvy_watch *watch = events[i].data.ptr;

		if (!watch)
			posted = 1;
		else if (watch->fd >= 0)
			watch->ready(watch->ctx, events[i].events);
	}
	if (posted)
		run_posts(loop);
}

void cvy_loop_run(struct cvy_loop *loop, void (*tick)(void *ctx, uint64_t now_ns), void *ctx, const int *tick_ms)
{
	struct epoll_event events[BATCH];
	uint64_t now = cvy_now_ns();

	while (!__atomic_load_n(&loop->stop, __ATOMIC_ACQUIRE)) {
		int ms = __atomic_load_n(tick_ms, __ATOMIC_RELAXED);
		uint64_t step = (uint64_t)(ms < 1 ? 1 : ms > TICK_MS_MAX ? TICK_MS_MAX : ms) * CVY_MS;
		uint64_t until =
			now + step - now % step; /* a multiple of the step: all loops of a machine wake together */
		int n;

		if (loop->timers && loop->heap[0]->deadline_ns < until)
			until = loop->heap[0]->deadline_ns;
		n = wait_events(loop, events, until);
		if (n < 0 && errno != EINTR) {
			cvy_error("base", "event loop: %s", strerror(errno));
			break;
		}
		run_ready(loop, events, n);
		now = cvy_now_ns();
		run_timers(loop, now);
		tick(ctx, now);
		bury(loop);
	}
	end_posts(loop);
	bury(loop);
}
