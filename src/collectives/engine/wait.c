/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All waits of callers for operations and messages; progress.c has the progress thread's. (Calls that wait for the agent,
 * or leave, are in handle.c and work.c; those that wait for a device, in device_admit.c and device_queue.c.)
 *
 * A waiter looks, then yields, then after 1 ms sleeps on the line that it misses. If every rank that shares its cores
 * has a core, it spins for a while before it yields; else four looks are enough, since the peer needs this core.
 *
 * A rank that stores a line executes no fence: it would cost every operation 30 ns. The sleeper pays instead. It
 * announces its sleep, makes every process of covey pass a barrier (membarrier), and looks again. Every sleep has a
 * bound, and ends when the gate closes or the handle ends.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "engine_state.h"
#include "pair_state.h"

#define LOOKS_FIRST 64	  /* of a blocking call before it releases the lock; about 5 us with a core of its own */
#define LOOKS_AT_LINE 16  /* of each of these */
#define LOOKS_SHARED 4	  /* before the first yield when ranks share cores */
#define LOOKS_OWN 2000	  /* about 50 us with a core of its own */
#define LOOKS_OWN_FAR 150 /* the same where a look is a system call for each link, of one or two */
#define TURN_MIN_NS 1000  /* a yield that takes as long as a turn of a peer: */
#define TURN_MAX_NS 200000
#define CROWDED_WAITS 1000 /* after it, so many waits yield at once */
#define SLEEP_MS 10	   /* longest sleep on a line */
#define SLEEP_MIXED_MS 1   /* while sockets and lines both matter, and while a repair waits for either */
#define FDS_FEW 64	   /* sockets that one waiter polls without allocating memory */

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waitv { /* struct futex_waitv of Linux 5.16 */
	uint64_t val, addr;
	uint32_t flags, reserved;
};

long cvy_futex(const void *addr, int op, uint32_t val, const struct timespec *timeout)
{
	return syscall(SYS_futex, addr, op, val, timeout, NULL, 0);
}

static int barriers; /* registered; otherwise only the bound of sleeps helps */

/*
 * Registers at load, before there are threads: with threads the kernel waits for a grace period, which takes seconds on
 * a loaded machine. A process that never sleeps registers too, because it publishes to others that sleep and must pass
 * their barriers.
 */
__attribute__((constructor)) static void register_barrier(void)
{
	barriers = !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}

void cvy_barrier_all(void)
{
	if (barriers)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); /* a full barrier here too */
}

static const void *low_half(const uint64_t *tag)
{
	return tag; /* x86 and arm64 Linux: little endian, the tick is in the low half */
}

/* Peers that sleep on a line just published. */
void cvy_engine_announce(struct cvy_engine *e, const struct cvy_line *line)
{
	for (int i = 0; i < e->here.set.nlocal; i++) {
		if (!__atomic_load_n(&e->here.set.local[i]->sleepers, __ATOMIC_RELAXED))
			continue;
		cvy_futex(low_half(&line->tag), FUTEX_WAKE, INT_MAX, NULL);
		return;
	}
}

void cvy_engine_announce_to(struct cvy_engine *e, int rank, const struct cvy_line *line)
{
	struct cvy_page *page = rank == e->here.rank ? NULL : cvy_mesh_page(e->mesh, rank);

	if (page && __atomic_load_n(&page->sleepers, __ATOMIC_RELAXED))
		cvy_futex(low_half(&line->tag), FUTEX_WAKE, INT_MAX, NULL);
}

void cvy_engine_wake(struct cvy_engine *e)
{
	uint64_t one = 1;

	__atomic_add_fetch(&e->change, 1, __ATOMIC_SEQ_CST);
	cvy_futex(&e->change, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
	if (__atomic_load_n(&e->sockets, __ATOMIC_RELAXED))
		(void)!write(e->idle_fd, &one, sizeof(one));
}

static void sleep_on_change(struct cvy_engine *e, uint32_t seen, uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull) };

	__atomic_add_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
	cvy_futex(&e->change, FUTEX_WAIT_PRIVATE, seen, &t);
	__atomic_sub_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
}

/* Lines that a sleeper misses, at most two, and the tags that they had when it looked. */
struct spots {
	const struct cvy_line *line[2];
	uint64_t tag[2];
	int n;
};

/* The line that the queue waits for; n is 0 if it is already here. */
static struct spots spots_of_queue(struct cvy_engine *e)
{
	uint64_t want = 0;
	int source;
	struct spots s = { { cvy_engine_missing(e, &want, &source) }, { 0 }, 0 };

	if (s.line[0]) {
		s.tag[0] = __atomic_load_n(&s.line[0]->tag, __ATOMIC_ACQUIRE);
		s.n = s.tag[0] != want;
	}
	return s;
}

/* A message waits for bytes from the far end, or for room in the ring. */
static struct spots spots_of_pair(const struct cvy_pair *p)
{
	const struct cvy_port *port = cvy_channel_far_port(&p->ch);
	struct spots s = { { NULL }, { p->ch.here, p->ch.freed }, 0 };

	if (!port || p->ch.self)
		return s;
	s.line[0] = &port->out;
	s.line[1] = &port->credit;
	if (__atomic_load_n(&port->out.aux, __ATOMIC_ACQUIRE) != p->ch.own_inc)
		s.tag[0] = __atomic_load_n(&port->out.tag, __ATOMIC_ACQUIRE); /* of an earlier incarnation */
	if (__atomic_load_n(&port->credit.aux, __ATOMIC_ACQUIRE) != p->ch.own_inc)
		s.tag[1] = __atomic_load_n(&port->credit.tag, __ATOMIC_ACQUIRE);
	else if (!cvy_channel_awaits_credit(&p->ch)) /* not read lately, and not awaited */
		s.tag[1] = __atomic_load_n(&port->credit.tag, __ATOMIC_ACQUIRE);
	s.n = 2;
	return s;
}

static struct spots spots_of(struct cvy_engine *e, const struct cvy_op *op)
{
	const struct cvy_pair *p = op->kind->op_class == CVY_OP_PAIR ? cvy_pair_of(op) : NULL;

	return p ? spots_of_pair(p) : spots_of_queue(e);
}

/* Lock not held. Ends when one of the lines, or the engine, changes. */
static void sleep_on_spots(struct cvy_engine *e, const struct spots *s, uint32_t seen, uint64_t ns)
{
	struct timespec until;
	struct waitv v[3];

	for (int i = 0; i < s->n; i++)
		v[i] = (struct waitv){ (uint32_t)s->tag[i], (uintptr_t)low_half(&s->line[i]->tag), FUTEX_32, 0 };
	v[s->n] = (struct waitv){ seen, (uintptr_t)&e->change, FUTEX_32 | FUTEX_PRIVATE_FLAG, 0 };
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)ns;
	until.tv_sec += until.tv_nsec / 1000000000l;
	until.tv_nsec %= 1000000000l;
	if (syscall(SYS_futex_waitv, v, s->n + 1, 0, &until, CLOCK_MONOTONIC) < 0 &&
	    (errno == ENOSYS || errno == EPERM)) {
		struct timespec brief = { 0, (long)CVY_MS };

		cvy_futex(low_half(&s->line[0]->tag), FUTEX_WAIT, (uint32_t)s->tag[0], &brief);
	}
}

/*
 * Lock held; released while asleep. Returns whether the line is here. @again: it was here before the last step, too,
 * and the step did not use it, for example because of a mismatch. Then only the agent can continue, and it may need the
 * lock.
 */
static int sleep_on_line(struct cvy_engine *e, const struct cvy_op *op, int again, uint64_t ns)
{
	struct spots s = spots_of(e, op);
	uint32_t seen = __atomic_load_n(&e->change, __ATOMIC_SEQ_CST);

	if (!s.line[0]) {
		pthread_mutex_unlock(&e->lock);
		sleep_on_change(e, seen, ns < CVY_MS ? ns : CVY_MS);
		pthread_mutex_lock(&e->lock);
		return 0;
	}
	__atomic_add_fetch(&e->here.own->sleepers, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
	cvy_barrier_all();
	s = spots_of(e, op); /* a rank that stores after the barrier sees the sleeper */
	if ((s.n || again) && !__atomic_load_n(&e->gate, __ATOMIC_SEQ_CST)) {
		pthread_mutex_unlock(&e->lock);
		if (s.n)
			sleep_on_spots(e, &s, seen, ns);
		else
			sleep_on_change(e, seen, ns < CVY_MS ? ns : CVY_MS);
		pthread_mutex_lock(&e->lock);
	}
	__atomic_sub_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&e->here.own->sleepers, 1, __ATOMIC_SEQ_CST);
	return !s.n;
}

/* Sockets of all links, up to @room; returns how many there are. */
static int sockets(struct cvy_engine *e, struct pollfd *fds, int room)
{
	int n = 0;

	for (int i = 0; i < e->here.set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		for (int k = 0; link && link->ops->fd; k++, n++) {
			struct pollfd p = { .events = 0 };

			p.fd = link->ops->fd(link, k, &p.events);
			if (p.fd < 0)
				break;
			if (n < room)
				fds[n] = p;
		}
	}
	return n;
}

/* Lock held; released while asleep. */
static void sleep_on_sockets(struct cvy_engine *e, uint64_t ns)
{
	struct pollfd few[FDS_FEW + 1], *fds = few;
	int n = sockets(e, few, FDS_FEW);
	uint64_t drain;

	if (n > FDS_FEW) {
		fds = malloc(((size_t)n + 1) * sizeof(*fds));
		if (fds)
			n = sockets(e, fds, n);
	}
	if ((!fds || e->here.set.nlocal) && ns > SLEEP_MIXED_MS * CVY_MS)
		ns = SLEEP_MIXED_MS * CVY_MS;
	if (!fds) { /* no memory: the other sockets are looked at soon */
		fds = few;
		n = FDS_FEW;
	}
	fds[n].fd = e->idle_fd;
	fds[n++].events = POLLIN;
	__atomic_add_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&e->lock);
	poll(fds, (nfds_t)n, (int)((ns + CVY_MS - 1) / CVY_MS));
	(void)!read(e->idle_fd, &drain, sizeof(drain));
	if (fds != few)
		free(fds);
	pthread_mutex_lock(&e->lock);
	cvy_engine_look_far(e); /* any of them may have ended the sleep */
	__atomic_sub_fetch(&e->asleep, 1, __ATOMIC_SEQ_CST);
}

/* Looks only at the missing line, which is faster than whole steps. Uses up one look. */
static void look_at_line(const struct cvy_engine *e)
{
	uint64_t tag;
	int source;
	const struct cvy_line *line = cvy_engine_missing(e, &tag, &source);

	for (int i = 0; line && i < LOOKS_AT_LINE && __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != tag; i++)
		if (__atomic_load_n(&e->gate, __ATOMIC_RELAXED))
			return;
}

void cvy_engine_wait_briefly(struct cvy_engine *e, const struct cvy_op *op)
{
	int looks = e->spin && !e->here.set.npush ? LOOKS_FIRST : 1;

	while (!cvy_op_decided(op) && (cvy_engine_step(e) || --looks)) /* most operations are short */
		if (looks > 1 && !cvy_op_decided(op))
			look_at_line(e);
}

int cvy_engine_awaited(struct cvy_engine *e, uint64_t now_ns, uint64_t *waited_ns)
{
	uint64_t since_ns = 0;
	int rank;

	*waited_ns = 0;
	if (pthread_mutex_trylock(&e->lock))
		return -1;
	rank = cvy_engine_misses(e);
	if (rank >= 0)
		since_ns = e->head->posted_ns;
	if (rank < 0 && __atomic_load_n(&e->waiters, __ATOMIC_RELAXED))
		rank = cvy_pairs_awaited(e, &since_ns);
	pthread_mutex_unlock(&e->lock);
	if (rank >= 0 && since_ns && now_ns > since_ns)
		*waited_ns = now_ns - since_ns;
	return rank;
}

struct patience {
	int looks;
	uint64_t since_ns; /* first clock reading of this wait, 0: none */
	int here;	   /* the awaited line is here, and no step has used it yet */
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* At that time the head of the queue masks late ranks: no sleep is longer. */
static uint64_t until_late(const struct cvy_engine *e, uint64_t now, uint64_t ns)
{
	const struct cvy_op *op = e->head;

	if (!op || op->state != CVY_OP_ENTERED || op->late_ns <= now || op->late_ns - now >= ns)
		return ns;
	return op->late_ns - now;
}

/* A look at sockets is a system call, and the far end may be a process of another host that shares this core. */
static int looks_before_yield(struct cvy_engine *e)
{
	if (!e->here.set.npush)
		return e->spin ? LOOKS_OWN : LOOKS_SHARED;
	if (e->spin && !e->crowded)
		return LOOKS_OWN_FAR;
	return e->head && e->head->bytes > CVY_FEW_BYTES ? LOOKS_SHARED : 0;
}

/* Lock held; released meanwhile: the thread may not run for a while, and the agent may want to freeze. */
static void yield(struct cvy_engine *e, uint64_t now)
{
	uint64_t ns;

	pthread_mutex_unlock(&e->lock);
	sched_yield();
	ns = cvy_now_ns() - now;
	pthread_mutex_lock(&e->lock);
	if (ns >= TURN_MIN_NS && ns <= TURN_MAX_NS)
		e->crowded = CROWDED_WAITS;
}

/* One round of waiting. Lock held on entry and return. */
static void be_patient(struct cvy_engine *e, const struct cvy_op *op, struct patience *p, uint64_t deadline_ns)
{
	int most = looks_before_yield(e);
	uint64_t now, ns;

	if (p->looks < most) {
		/* The agent may want the lock: a look at many links counts as many, so that the time does not grow. */
		p->looks += most == LOOKS_OWN_FAR && e->looked > 2 ? e->looked / 2 : 1;
		pause_cpu();
		return;
	}
	now = cvy_now_ns();
	if (!p->since_ns)
		p->since_ns = now;
	if (now - p->since_ns < CVY_YIELD_NS) {
		yield(e, now);
		return;
	}
	__atomic_store_n(&e->waiting, 1, __ATOMIC_RELAXED);
	cvy_engine_look_for_mismatch(e);
	ns = SLEEP_MS * CVY_MS;
	if (deadline_ns != CVY_NEVER && deadline_ns - now < ns)
		ns = deadline_ns > now ? deadline_ns - now : 1;
	ns = until_late(e, now, ns);
	if (cvy_pairs_busy(e) && !cvy_pairs_alone(e, op) && ns > SLEEP_MIXED_MS * CVY_MS)
		ns = SLEEP_MIXED_MS * CVY_MS; /* several things are awaited */
	if (e->here.set.npush)
		sleep_on_sockets(e, ns);
	else
		p->here = sleep_on_line(e, op, p->here, ns);
}

/* The gate is closed: a view change is under way and the agent needs the lock. Lock not held. @brief: messages or a
 * repair continue. */
static void wait_for_gate(struct cvy_engine *e, const struct cvy_op *op, int brief, uint64_t deadline_ns)
{
	uint32_t seen = __atomic_load_n(&e->change, __ATOMIC_SEQ_CST);
	uint64_t now = cvy_now_ns(), ns = (brief ? SLEEP_MIXED_MS : SLEEP_MS) * CVY_MS;

	if (!__atomic_load_n(&e->gate, __ATOMIC_SEQ_CST) || cvy_op_decided(op))
		return;
	__atomic_store_n(&e->waiting, 1, __ATOMIC_RELAXED);
	if (deadline_ns != CVY_NEVER && deadline_ns < now + ns)
		ns = deadline_ns > now ? deadline_ns - now : 0;
	if (ns)
		sleep_on_change(e, seen, ns);
}

/* Bytes that a transport still holds after their operation was decided: lets it send them. */
int cvy_engine_unsent(struct cvy_engine *e)
{
	int n = 0;

	for (int i = 0; i < e->here.set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (!link || !link->ops->unsent || !link->ops->unsent(link))
			continue;
		if (link->ops->poll)
			link->ops->poll(link);
		n += link->ops->unsent(link);
	}
	return n;
}

int cvy_engine_wait(struct cvy_engine *e, struct cvy_op *op, uint64_t deadline_ns)
{
	struct patience p = { 0, 0, 0 };
	int err = 0, more, had;

	if (cvy_op_decided(op))
		return 0;
	had = errno;
	__atomic_add_fetch(&e->waiters, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&e->lock);
	if (e->crowded)
		e->crowded--;
	while (!cvy_op_decided(op)) {
		if (deadline_ns != CVY_NEVER && (p.since_ns || __atomic_load_n(&e->gate, __ATOMIC_RELAXED)) &&
		    cvy_now_ns() >= deadline_ns) {
			err = COVEY_ERR_TIMEOUT;
			break;
		}
		if (__atomic_load_n(&e->gate, __ATOMIC_SEQ_CST)) {
			int moved = cvy_pairs_step(e);
			/* the progress thread leaves both to the waiter */
			int brief = cvy_repair_go_on(e) | cvy_pairs_busy(e);

			cvy_engine_look_for_end(e);
			pthread_mutex_unlock(&e->lock);
			if (moved)
				sched_yield(); /* the agent wants the lock */
			else
				wait_for_gate(e, op, brief, deadline_ns);
			pthread_mutex_lock(&e->lock);
			p = (struct patience){ 0, 0, 0 };
		} else if (cvy_engine_step(e)) {
			p = (struct patience){ 0, 0, 0 };
		} else {
			be_patient(e, op, &p, deadline_ns);
			if (!op->posted_ns)
				op->posted_ns = p.since_ns;
		}
	}
	__atomic_store_n(&e->waiting, 0, __ATOMIC_RELAXED);
	more = e->head || cvy_pairs_busy(e) || cvy_engine_unsent(e);
	pthread_mutex_unlock(&e->lock);
	if (!__atomic_sub_fetch(&e->waiters, 1, __ATOMIC_SEQ_CST) && more)
		cvy_progress_kick();
	errno = had; /* the caller's */
	return err;
}
