/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection on one host. Silence is measured in the observer's own attention. Each look adds the time since the last
 * look, but at most a quarter of the bound. So an observer that was itself starved or stopped needs several looks
 * before it may call a peer silent, and a peer that was paused together with it has time to beat first.
 *
 * Every look asks for the pages again: a view change unmaps some.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "detect.h"
#include "log.h"
#include "proc.h"
#include "watcher.h"

#define LATE_BEATS 5
#define LATE_MIN_NS (30 * CVY_MS)
#define BEAT_MAX_MS 1000      /* a page with a slower beat is not believed */
#define STARVED_TIMES 4	      /* hang bounds for which a runnable peer may stay silent */
#define LOOK_NS (10 * CVY_MS) /* at least between two looks into /proc */

struct peer {
	struct cvy_detect *detect;
	int rank;
	uint64_t inc;
	int known;     /* the fields of its page were read and its descriptors opened */
	int proven;    /* dead for sure */
	uint32_t word; /* as the watcher knows it */
	uint64_t beat;
	uint64_t silent_ns; /* attention since the beat moved */
	uint64_t look_ns;   /* silence at which /proc is read next */
	struct cvy_proc proc;
	int pidfd;
	struct cvy_watch *watch;
};

struct cvy_detect {
	struct cvy_detect_args args;
	struct cvy_watcher *watcher; /* NULL: words are read in ticks only */
	struct peer *peer[CVY_LOCAL_ALL];
	int peers;
	uint64_t hang_ns; /* CVY_NEVER: silence is never suspect */
	uint64_t first_look_ns, step_max_ns;
	uint64_t last_ns; /* of the last tick, 0: none yet */
	int late;
};

int cvy_life_take(struct cvy_page *own)
{
	pthread_mutexattr_t attr;
	int err;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	err = pthread_mutex_init(&own->alive, &attr);
	pthread_mutexattr_destroy(&attr);
	if (!err)
		err = pthread_mutex_lock(&own->alive);
	if (err) {
		cvy_error("membership", "cannot take the robust word: %s", strerror(err));
		return COVEY_ERR_IO;
	}
	/* Without this bit the kernel wakes nobody when the owner dies. */
	__atomic_fetch_or((uint32_t *)cvy_life_word(own), FUTEX_WAITERS, __ATOMIC_RELEASE);
	return 0;
}

/* The page of exactly this incarnation; NULL: not mapped, or another incarnation's. */
static const struct cvy_page *page_of(const struct cvy_detect *d, int rank, uint64_t inc)
{
	const struct cvy_page *page = d->args.seam->page(d->args.seam->links, rank);

	return page && (!page->inc || page->inc == inc) ? page : NULL;
}

static const char has_left[] = "has left and ended";

/* How the peer ended, by its page; a killed process writes nothing. Only texts depend on it. */
static const char *end_of(const struct peer *peer)
{
	const struct cvy_page *page = page_of(peer->detect, peer->rank, peer->inc);

	if (!page || page->inc != peer->inc)
		return "has ended"; /* a view without it unmapped the page */
	return __atomic_load_n(&page->left, __ATOMIC_ACQUIRE) ? has_left : "is dead";
}

static void suspect(const struct peer *peer, int source)
{
	const struct cvy_event event = {
		.kind = CVY_EV_SUSPECT,
		.rank = peer->rank,
		.inc = peer->inc,
		.source = source,
		.text = end_of(peer) == has_left ? "the rank has left" : NULL,
	};

	cvy_post(&peer->detect->args.sink, &event);
}

static void proven(struct peer *peer, int source)
{
	if (peer->proven)
		return;
	peer->proven = source;
	cvy_info("membership", "rank %d incarnation %llu %s: %s", peer->rank, (unsigned long long)peer->inc,
		 end_of(peer), cvy_source_name(source));
	suspect(peer, source);
}

/* Readable: no thread of the process is left. */
static void pidfd_ready(void *ctx, uint32_t events)
{
	struct peer *peer = ctx;

	(void)events;
	cvy_loop_unwatch(peer->watch);
	peer->watch = NULL;
	proven(peer, CVY_SOURCE_PIDFD);
}

/* Opens the descriptors to keep. Ranks that are threads of this process get no pidfd: it would show our own death. */
static void get_to_know(struct peer *peer, const struct cvy_page *page, uint32_t word)
{
	pid_t pid = page->pid;

	peer->known = 1;
	if (pid > 0 && pid != getpid())
		peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	/* After the pidfd: if the process is the right one here, it was so when the pidfd was opened. */
	cvy_proc_open(&peer->proc, pid, (pid_t)(word & FUTEX_TID_MASK), page->pid_start);
	if (peer->pidfd >= 0 && peer->proc.leader >= 0)
		cvy_loop_watch(peer->detect->args.loop, peer->pidfd, EPOLLIN, pidfd_ready, peer, &peer->watch);
}

static struct peer *peer_new(struct cvy_detect *d, int rank, uint64_t inc)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return NULL;
	peer->detect = d;
	peer->rank = rank;
	peer->inc = inc;
	peer->look_ns = d->first_look_ns;
	peer->pidfd = peer->proc.leader = peer->proc.thread = -1;
	return peer;
}

static void peer_free(struct peer *peer)
{
	cvy_loop_unwatch(peer->watch);
	if (peer->pidfd >= 0)
		close(peer->pidfd);
	cvy_proc_close(&peer->proc);
	free(peer);
}

/* Watcher's thread. */
static void kick_on_loop(void *ctx, void *arg)
{
	(void)arg;
	cvy_detect_kicked(ctx);
}

static void kick(void *ctx)
{
	struct cvy_detect *d = ctx;

	/* If this fails, the next tick reads the words. */
	cvy_loop_post(d->args.loop, kick_on_loop, d, NULL);
}

int cvy_detect_new(const struct cvy_detect_args *args, struct cvy_detect **out)
{
	struct cvy_detect *d = calloc(1, sizeof(*d));
	uint64_t beat_ns = (uint64_t)args->heartbeat_ms * CVY_MS;

	if (!d)
		return COVEY_ERR_NOMEM;
	d->args = *args;
	d->hang_ns = args->hang_ms < 0 ? CVY_NEVER : (uint64_t)args->hang_ms * CVY_MS;
	d->first_look_ns = LATE_BEATS * beat_ns > LATE_MIN_NS ? LATE_BEATS * beat_ns : LATE_MIN_NS;
	if (d->first_look_ns > d->hang_ns)
		d->first_look_ns = d->hang_ns;
	d->step_max_ns = 3 * beat_ns < d->hang_ns / 4 ? 3 * beat_ns : d->hang_ns / 4;
	if (cvy_watcher_new(kick, d, &d->watcher))
		cvy_info("membership", "no futex_waitv: deaths on this host show within a heartbeat of %d ms",
			 args->heartbeat_ms);
	*out = d;
	return 0;
}

void cvy_detect_free(struct cvy_detect *d)
{
	if (!d)
		return;
	cvy_watcher_free(d->watcher);
	for (int i = 0; i < d->peers; i++)
		peer_free(d->peer[i]);
	free(d);
}

static void rewatch(struct cvy_detect *d)
{
	struct cvy_watcher_word words[CVY_LOCAL_ALL];
	int n = 0;

	for (int i = 0; i < d->peers; i++) {
		const struct peer *peer = d->peer[i];
		const struct cvy_page *page = page_of(d, peer->rank, peer->inc);

		/* A word without a holder is left to the ticks. */
		if (page && !peer->proven && (peer->word & FUTEX_TID_MASK))
			words[n++] = (struct cvy_watcher_word){ cvy_life_word(page), peer->word };
	}
	cvy_watcher_set(d->watcher, words, n);
}

/* 1: the word differs from the watcher's copy */
static int look_at_word(struct peer *peer, const struct cvy_page *page)
{
	const uint32_t *at = cvy_life_word(page);
	uint32_t word = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	int changed = word != peer->word;

	peer->word = word;
	if (word & FUTEX_OWNER_DIED) {
		if (changed)
			cvy_watcher_pass_on(at);
		proven(peer, CVY_SOURCE_ROBUST);
	} else if (!peer->known && (word & FUTEX_TID_MASK)) {
		get_to_know(peer, page, word);
	}
	return changed;
}

static void look_at_words(struct cvy_detect *d, int must_set)
{
	for (int i = 0; i < d->peers; i++) {
		const struct cvy_page *page = page_of(d, d->peer[i]->rank, d->peer[i]->inc);

		if (page)
			must_set |= look_at_word(d->peer[i], page);
	}
	if (must_set)
		rewatch(d);
}

void cvy_detect_kicked(struct cvy_detect *d)
{
	look_at_words(d, 1);
}

/* Source of a suspicion of @peer after its present silence; 0: none. */
static int judge(const struct cvy_detect *d, const struct peer *peer)
{
	uint64_t silent = peer->silent_ns;

	switch (cvy_proc_state(&peer->proc)) {
	case CVY_PROC_EXITING:
		return CVY_SOURCE_EXITING;
	case CVY_PROC_STOPPED:
		return silent >= d->hang_ns ? CVY_SOURCE_STOPPED : 0;
	case CVY_PROC_SLEEPING:
		return silent >= d->hang_ns ? CVY_SOURCE_HEARTBEAT : 0;
	default:
		return silent / STARVED_TIMES >= d->hang_ns ? CVY_SOURCE_HEARTBEAT : 0;
	}
}

/* Looks into /proc get rarer as the silence grows, but meet each bound. */
static uint64_t next_look(const struct cvy_detect *d, uint64_t silent)
{
	uint64_t next = silent + (silent / 8 > LOOK_NS ? silent / 8 : LOOK_NS);

	if (silent < d->hang_ns && next > d->hang_ns)
		return d->hang_ns;
	if (d->hang_ns != CVY_NEVER && silent < STARVED_TIMES * d->hang_ns && next > STARVED_TIMES * d->hang_ns)
		return STARVED_TIMES * d->hang_ns;
	return next;
}

static void look_at_beat(struct cvy_detect *d, struct peer *peer, const struct cvy_page *page, uint64_t step_ns)
{
	uint64_t beat = __atomic_load_n(&page->beat, __ATOMIC_RELAXED),
		 every = __atomic_load_n(&page->beat_ms, __ATOMIC_RELAXED);
	int source;

	if (every < (uint64_t)d->args.heartbeat_ms || every > BEAT_MAX_MS)
		every = (uint64_t)d->args.heartbeat_ms;

	if (beat != peer->beat || !peer->known) {
		peer->beat = beat;
		peer->silent_ns = 0;
		peer->look_ns = d->first_look_ns;
		return;
	}
	peer->silent_ns += step_ns;
	if (d->hang_ns != CVY_NEVER && peer->silent_ns < (STARVED_TIMES + 1) * d->hang_ns &&
	    peer->silent_ns >= 3 * CVY_MS * every)
		d->late = 1;
	if (peer->silent_ns < peer->look_ns)
		return;
	source = judge(d, peer);
	peer->look_ns = next_look(d, peer->silent_ns);
	if (!source)
		return;
	cvy_info("membership", "rank %d incarnation %llu is silent for %llu ms: %s", peer->rank,
		 (unsigned long long)peer->inc, (unsigned long long)(peer->silent_ns / CVY_MS),
		 cvy_source_name(source));
	suspect(peer, source);
}

void cvy_detect_tick(struct cvy_detect *d, uint64_t now_ns)
{
	uint64_t step = d->last_ns ? now_ns - d->last_ns : 0;

	if (step > d->step_max_ns)
		step = d->step_max_ns;
	d->last_ns = now_ns;
	d->late = 0;
	look_at_words(d, 0);
	for (int i = 0; i < d->peers; i++) {
		struct peer *peer = d->peer[i];
		const struct cvy_page *page = peer->proven ? NULL : page_of(d, peer->rank, peer->inc);

		if (page)
			look_at_beat(d, peer, page, step);
	}
}

int cvy_detect_late(const struct cvy_detect *d)
{
	return d->late;
}

/* The members to monitor, in ring order after the own rank. */
static int choose(const struct cvy_detect *d, const struct cvy_view *view, int own, int *ranks)
{
	int local = 0, n = 0;

	for (int i = 1; i < view->max_ranks; i++) {
		int rank = (own + i) % view->max_ranks;

		if (!covey_mask_has(&view->members, rank) || !page_of(d, rank, view->member[rank].inc))
			continue;
		if (n < CVY_LOCAL_ALL - 1)
			ranks[n++] = rank;
		local++;
	}
	return local > CVY_LOCAL_ALL - 1 ? CVY_LOCAL_RING : n;
}

/* Takes the peer (rank, inc) out of the old list; NULL: it is not there. */
static struct peer *take_old(struct peer **old, int n, int rank, uint64_t inc)
{
	for (int i = 0; i < n; i++) {
		struct peer *peer = old[i];

		if (peer && peer->rank == rank && peer->inc == inc) {
			old[i] = NULL;
			return peer;
		}
	}
	return NULL;
}

int cvy_detect_view(struct cvy_detect *d, const struct cvy_view *view, int own_rank)
{
	struct peer *old[CVY_LOCAL_ALL];
	int ranks[CVY_LOCAL_ALL], n = choose(d, view, own_rank, ranks), olds = d->peers;

	memcpy(old, d->peer, sizeof(old));
	d->peers = 0;
	for (int i = 0; i < n; i++) {
		uint64_t inc = view->member[ranks[i]].inc;
		struct peer *peer = take_old(old, olds, ranks[i], inc);

		if (!peer)
			peer = peer_new(d, ranks[i], inc);
		if (peer)
			d->peer[d->peers++] = peer;
	}
	for (int i = 0; i < olds; i++)
		if (old[i])
			peer_free(old[i]);
	/* A new view forgets accusations: accuse its members that are known to be dead again. */
	for (int i = 0; i < d->peers; i++)
		if (d->peer[i]->proven)
			suspect(d->peer[i], d->peer[i]->proven);
	look_at_words(d, 1);
	return d->peers < n ? COVEY_ERR_NOMEM : 0;
}
