/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that takes commands of 16 bytes from a ring and posts them on links: for networks whose queues no GPU can
 * write. Commands of one queue are posted in the order of the ring. A queue's `done` is the ring's index behind the
 * last of its completed commands. So a ticket of the ring is a ticket of each of its queues, and a dead peer delays no
 * other queue's completions.
 *
 * The thread publishes `tail` once it has read commands, not when they are done: room in the ring is free early.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "process.h"
#include "queues.h"
#include "size.h"

#define BATCH 256	/* commands that are read before links are flushed */
#define IDLE_LOOKS 2000 /* at the ring, before a nap */
#define NAP_NS 20000
#define NO_LINK 0x05 /* the status of a queue without a link */
#define BROKEN 255

/* A queue's link, and the tickets of the commands under way there. */
struct lane {
	struct cvy_proxy_link link;
	int attached, listed, dirty;
	uint64_t posted, done; /* commands */
	uint64_t ticket[CVY_PROXY_UNDER_WAY];
};

struct cvy_proxy {
	struct cvy_proxy_args args;
	pthread_mutex_t lock; /* lanes; held for a turn */
	pthread_t thread;
	int started, stop;
	uint64_t next;	/* index of the next command */
	uint64_t bytes; /* put */
	struct lane **lane;
	uint32_t *listed, nlisted; /* lanes with something under way */
	/* Read by posters: one piece of memory. */
	uint64_t *slots, *tail, *done, *status, *posters_see;
	size_t shared_bytes;
	int mapped;
	struct cvy_queue_words *words;
};

static void break_lane(struct cvy_proxy *p, uint32_t number, uint64_t status)
{
	if (!p->status[number])
		cvy_q_store(&p->status[number], status);
}

/* 1: both halves of the command are of this lap. */
static int command_at(const struct cvy_proxy *p, uint64_t index, struct cvy_ring_command *c)
{
	const uint64_t *slot = p->slots + 2 * (index & (p->args.depth - 1));
	uint64_t lap = cvy_ring_lap(index, p->args.depth), w[2] = { cvy_q_load(slot), cvy_q_load(slot + 1) };

	if (((w[0] ^ lap) | (w[1] ^ lap)) & CVY_RING_LAP)
		return 0;
	cvy_ring_unpack(w, c);
	return 1;
}

/* 0: taken, even if it failed; AGAIN: later */
static int post(struct cvy_proxy *p, const struct cvy_ring_command *c, uint64_t ticket)
{
	struct lane *l = c->queue < p->args.queues ? p->lane[c->queue] : NULL;
	int err;

	if (c->queue >= p->args.queues)
		return 0;
	if (!l || !l->attached) {
		break_lane(p, c->queue, NO_LINK);
		return 0;
	}
	if (p->status[c->queue])
		return 0;
	if (l->posted - l->done == CVY_PROXY_UNDER_WAY)
		return COVEY_ERR_AGAIN;
	err = l->link.post(l->link.ctx, c);
	if (err == COVEY_ERR_AGAIN)
		return err;
	if (err) {
		break_lane(p, c->queue, BROKEN);
		return 0;
	}
	if (c->op == CVY_RING_PUT)
		__atomic_store_n(&p->bytes, p->bytes + c->bytes, __ATOMIC_RELAXED);
	l->ticket[l->posted++ % CVY_PROXY_UNDER_WAY] = ticket;
	l->dirty = 1;
	if (!l->listed) {
		l->listed = 1;
		p->listed[p->nlisted++] = c->queue;
	}
	return 0;
}

static int take(struct cvy_proxy *p)
{
	struct cvy_ring_command c;
	int n = 0;

	while (n < BATCH && command_at(p, p->next, &c)) {
		if (post(p, &c, p->next + 1))
			break;
		p->next++;
		n++;
	}
	if (n)
		cvy_q_store(p->tail, p->next);
	return n;
}

/* Completed posts of this lane advance the queue's `done`. 1: something is under way still. */
static int complete(struct cvy_proxy *p, uint32_t number, int *any)
{
	struct lane *l = p->lane[number];
	uint64_t status = 0, done = l->link.done(l->link.ctx, &status);

	if (done > l->done) { /* also of a link that broke then */
		l->done = done;
		cvy_q_store(&p->done[number], l->ticket[(l->done - 1) % CVY_PROXY_UNDER_WAY]);
		*any = 1;
	}
	if (status)
		break_lane(p, number, status);
	return !status && l->done != l->posted;
}

static int turn(struct cvy_proxy *p)
{
	int any;

	pthread_mutex_lock(&p->lock);
	any = take(p) > 0;
	for (uint32_t i = 0; i < p->nlisted;) {
		struct lane *l = p->lane[p->listed[i]];

		if (l->dirty && l->attached)
			l->link.flush(l->link.ctx);
		l->dirty = 0;
		if (l->attached && !p->status[p->listed[i]] && complete(p, p->listed[i], &any)) {
			i++;
			continue;
		}
		l->listed = 0;
		p->listed[i] = p->listed[--p->nlisted];
	}
	pthread_mutex_unlock(&p->lock);
	return any;
}

static void *proxy_main(void *arg)
{
	const struct timespec nap = { 0, NAP_NS };
	struct cvy_proxy *p = arg;
	unsigned idle = 0;

	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
		idle = turn(p) ? 0 : idle + 1;
		if (idle >= IDLE_LOOKS)
			nanosleep(&nap, NULL);
		else if (idle % 16 == 15)
			cvy_q_pause();
	}
	return NULL;
}

static int proxy_memory(struct cvy_proxy *p)
{
	const struct cvy_queue_memory *m = p->args.memory;
	size_t words = 2 * (size_t)p->args.depth + 8 + 2 * (size_t)p->args.queues;
	char why[160];
	int err;

	p->shared_bytes = cvy_round_up(words * sizeof(uint64_t), CVY_MEMORY_PAGE);
	p->slots = aligned_alloc(CVY_MEMORY_PAGE, p->shared_bytes);
	p->lane = calloc(p->args.queues, sizeof(struct lane *));
	p->listed = calloc(p->args.queues, sizeof(*p->listed));
	if (!p->slots || !p->lane || !p->listed)
		return COVEY_ERR_NOMEM;
	memset(p->slots, 0, p->shared_bytes);
	p->tail = p->slots + 2 * (size_t)p->args.depth;
	p->done = p->tail + 8;
	p->status = p->done + p->args.queues;
	p->posters_see = p->slots;
	if (!m) {
		p->words = aligned_alloc(64, sizeof(*p->words));
		if (!p->words)
			return COVEY_ERR_NOMEM;
		memset(p->words, 0, sizeof(*p->words));
		return 0;
	}
	err = m->map(m->ctx, p->slots, p->shared_bytes, 0, (void **)&p->posters_see, why, sizeof(why));
	if (err)
		return cvy_fail(NULL, err, -1, 0, "the ring is out of the GPU's reach: %s", why);
	p->mapped = 1;
	return m->words(m->ctx, sizeof(*p->words), (void **)&p->words);
}

int cvy_proxy_open(const struct cvy_proxy_args *args, struct cvy_proxy **out)
{
	struct cvy_proxy *p;
	int err;

	if (!args->depth || (args->depth & (args->depth - 1)) || !args->queues || args->queues > CVY_RING_QUEUES ||
	    !args->abort)
		return COVEY_ERR_INVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return COVEY_ERR_NOMEM;
	p->args = *args;
	pthread_mutex_init(&p->lock, NULL);
	err = proxy_memory(p);
	if (!err && cvy_thread_start(&p->thread, proxy_main, p))
		err = COVEY_ERR_NOMEM;
	p->started = !err;
	if (err) {
		cvy_proxy_close(p);
		return err;
	}
	*out = p;
	return 0;
}

/* Attaches another incarnation at the far end: its status begins anew; tickets continue, since those of the ring do. */
int cvy_proxy_attach(struct cvy_proxy *p, uint32_t number, const struct cvy_proxy_link *link)
{
	struct lane *l;

	if (number >= p->args.queues)
		return COVEY_ERR_INVAL;
	pthread_mutex_lock(&p->lock);
	l = p->lane[number];
	if (!l)
		l = p->lane[number] = calloc(1, sizeof(*l));
	if (l) {
		l->link = *link;
		l->attached = 1;
		l->posted = l->done = 0;
		cvy_q_store(&p->status[number], 0);
	}
	pthread_mutex_unlock(&p->lock);
	return l ? 0 : COVEY_ERR_NOMEM;
}

void cvy_proxy_detach(struct cvy_proxy *p, uint32_t number)
{
	pthread_mutex_lock(&p->lock);
	break_lane(p, number, NO_LINK);
	if (p->lane[number])
		p->lane[number]->attached = 0;
	pthread_mutex_unlock(&p->lock);
}

void cvy_proxy_queue(const struct cvy_proxy *p, uint32_t number, struct cvy_queue *queue)
{
	*queue = (struct cvy_queue){ .kind = CVY_QUEUE_RING,
				     .depth = p->args.depth,
				     .wait_ticks = p->args.wait_ticks,
				     .abort = p->args.abort,
				     .words = p->words };
	queue->ring.slots = p->posters_see;
	queue->ring.tail = p->posters_see + (p->tail - p->slots);
	queue->ring.done = p->posters_see + (p->done - p->slots) + number;
	queue->ring.status = p->posters_see + (p->status - p->slots) + number;
	queue->ring.number = number;
	queue->ring.look_every = p->args.memory ? CVY_QUEUE_LOOK_EVERY : 1;
	if (p->lane[number]) {
		queue->local_bytes = p->lane[number]->link.local_bytes;
		queue->remote_bytes = p->lane[number]->link.remote_bytes;
	}
}

uint64_t cvy_proxy_status(const struct cvy_proxy *p, uint32_t number)
{
	return cvy_q_load(&p->status[number]);
}

uint64_t cvy_proxy_bytes(const struct cvy_proxy *p)
{
	return __atomic_load_n(&p->bytes, __ATOMIC_RELAXED);
}

int cvy_proxy_idle(struct cvy_proxy *p)
{
	struct cvy_ring_command c;
	int idle;

	pthread_mutex_lock(&p->lock);
	idle = !command_at(p, p->next, &c) && !p->nlisted;
	pthread_mutex_unlock(&p->lock);
	return idle;
}

void cvy_proxy_close(struct cvy_proxy *p)
{
	const struct cvy_queue_memory *m;

	if (!p)
		return;
	m = p->args.memory;
	__atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
	if (p->started)
		pthread_join(p->thread, NULL);
	if (p->mapped)
		m->unmap(m->ctx, p->slots, p->shared_bytes);
	if (m && p->words)
		m->words_free(m->ctx, p->words);
	else
		free(p->words);
	for (uint32_t i = 0; p->lane && i < p->args.queues; i++)
		free(p->lane[i]);
	pthread_mutex_destroy(&p->lock);
	free(p->lane);
	free(p->listed);
	free(p->slots);
	free(p);
}

/* One command is one entry, so completed entries count completed posts. */
static int pair_post(void *ctx, const struct cvy_ring_command *c)
{
	struct cvy_queue *q = ctx;
	int64_t ticket;

	switch (c->op) {
	case CVY_RING_PUT:
		ticket = cvy_queue_put(q, c->local, c->remote, c->bytes);
		break;
	case CVY_RING_SIGNAL:
		ticket = cvy_queue_signal(q, c->remote, c->value);
		break;
	case CVY_RING_ADD:
		ticket = cvy_queue_add64(q, c->remote, c->value);
		break;
	default:
		return COVEY_ERR_INVAL;
	}
	if (ticket > 0)
		return 0;
	return ticket == CVY_QUEUE_FULL ? COVEY_ERR_AGAIN : COVEY_ERR_PEER;
}

static void pair_flush(void *ctx)
{
	cvy_queue_flush(ctx);
}

static uint64_t pair_done(void *ctx, uint64_t *status)
{
	struct cvy_queue *q = ctx;
	uint64_t done = cvy_queue_room_from(q, 1);

	*status = cvy_queue_status(q);
	return done;
}

void cvy_proxy_pair_link(struct cvy_queue *queue, struct cvy_proxy_link *link)
{
	queue->wait_ticks = 0; /* no room: the ring waits, not the thread */
	*link = (struct cvy_proxy_link){ .ctx = queue,
					 .local_bytes = queue->local_bytes,
					 .remote_bytes = queue->remote_bytes,
					 .post = pair_post,
					 .flush = pair_flush,
					 .done = pair_done };
}
