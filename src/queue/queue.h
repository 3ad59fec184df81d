/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By a queue threads of a GPU, or of a host, write into another rank's memory across a network: they post entries,
 * ring, test tickets. A queue is an mlx5 send queue, or a ring of commands to a proxy thread. The doorbell of a send
 * queue is rung by the poster (direct) or copied by a thread of the host (assisted); the poster sees no difference.
 *
 * A slot is claimed only if there is room, so no poster waits for room while others wait for the entries that it
 * claimed. Entries become visible in the order of their claims; one ring shows the adapter all visible entries. A
 * ticket counts entries in 64 bits; the adapter's 16 bits are hidden here. Every wait ends by its event, by
 * wait_ticks, by a failure of the queue or by the abort word; nothing traps.
 *
 * Posters use offsets, not addresses. Bases and keys belong to the queue, so the host can point it at another
 * incarnation while no kernel runs. Puts and signals of one queue arrive in order; those of two queues in no order.
 */
#ifndef CVY_QUEUE_H
#define CVY_QUEUE_H

#include "queue_mlx5.h"
#include "queue_ring.h"

enum cvy_queue_kind { CVY_QUEUE_MLX5 = 1, CVY_QUEUE_RING };

/* Instead of a ticket. */
enum cvy_queue_error {
	CVY_QUEUE_FULL = -1,	/* no room within wait_ticks: the thread that makes room may be dead */
	CVY_QUEUE_FAILED = -2,	/* the queue is broken, the far end suspect; words->status says how */
	CVY_QUEUE_ABORTED = -3, /* the host wants all to stop */
	CVY_QUEUE_RANGE = -4	/* not within the two memories, misaligned, or more than the queue ever holds */
};

/* Why a queue failed: words->status. 1..255: syndrome of the adapter or a proxy's word for it. */
#define CVY_QUEUE_STATUS_ORDER 256 /* a poster gave up its claim: no entry behind it will be shown */

#define CVY_Q_OWN_LINE __attribute__((aligned(64)))

/* Written by posters, in their own memory. Counts of entries since the beginning. */
struct cvy_queue_words {
	uint64_t head CVY_Q_OWN_LINE;  /* claimed */
	uint64_t ready CVY_Q_OWN_LINE; /* written, in order */
	uint64_t rung;		       /* shown to the adapter; written by the holder of bell */
	uint64_t bell;		       /* 1: a poster rings */
	uint64_t done CVY_Q_OWN_LINE;  /* mlx5: completed. ring: taken, when last read */
	uint64_t seen;		       /* completions that were read */
	uint64_t status CVY_Q_OWN_LINE;
};

struct cvy_queue_mlx5 {
	uint8_t *entries;    /* depth blocks */
	const uint8_t *cqes; /* completions */
	uint32_t *record;    /* [1]: index of the next entry, for the adapter */
	uint64_t *bell;	     /* register, or the word that a host thread copies */
	uint32_t qpn;
	uint32_t cqe_shift;    /* log2 of their number; no less than depth */
	uint32_t collapsed;    /* one completion that is always the newest */
	uint32_t sink_lkey_be; /* for the answer of an add, which is never read */
	uint64_t sink;
	uint32_t lkey_be, rkey_be;
	uint64_t local, remote; /* addresses of offset 0 */
};

struct cvy_queue_ring {
	uint64_t *slots;      /* depth commands of two words; several queues share them, and words->head and done */
	const uint64_t *tail; /* commands that the proxy has taken */
	const uint64_t *done; /* of this queue: tickets up to here */
	const uint64_t *status;
	uint32_t number;     /* of this queue, with the proxy */
	uint32_t look_every; /* entries between reads of the host's words, a power of two; 1: also of status, abort */
};

struct cvy_queue {
	uint32_t kind, depth; /* power of two */
	uint64_t wait_ticks;
	const uint64_t *abort; /* not 0: every wait ends */
	struct cvy_queue_words *words;
	uint64_t local_bytes, remote_bytes;
	struct cvy_queue_mlx5 mlx5;
	struct cvy_queue_ring ring;
};

/*
 * For a ring of a device's threads. The host's words are across PCIe, where reads of one word are serialised (0.5 us
 * each on an H100). So only one in CVY_QUEUE_LOOK_EVERY entries reads how much has been taken.
 */
#define CVY_QUEUE_LOOK_EVERY 64

/* One wait; since = 0 before it. */
struct cvy_queue_wait {
	uint64_t since;
	uint32_t looks;
};

#define CVY_QUEUE_LOOKS 32 /* checks of the awaited word for each read of the clock */

/* The status for posters. Posters of a ring note themselves that it is stuck; the host reports all other failures. */
CVY_Q_BOTH uint64_t cvy_queue_status(const struct cvy_queue *q)
{
	uint64_t own = cvy_q_load(&q->words->status);

	return own || q->kind != CVY_QUEUE_RING ? own : cvy_q_load(q->ring.status);
}

/* 0: go on waiting, else the error. */
CVY_Q_BOTH int cvy_queue_gives_up(const struct cvy_queue *q, struct cvy_queue_wait *w)
{
	uint64_t now;

	if (++w->looks % CVY_QUEUE_LOOKS)
		return 0;
	if (cvy_queue_status(q))
		return CVY_QUEUE_FAILED;
	if (cvy_q_load(q->abort))
		return CVY_QUEUE_ABORTED;
	now = cvy_q_ticks();
	if (!w->since)
		w->since = now ? now : 1;
	else if (now - w->since > q->wait_ticks)
		return CVY_QUEUE_FULL;
	cvy_q_pause();
	return 0;
}

CVY_Q_BOTH void cvy_queue_raise(uint64_t *word, uint64_t to)
{
	uint64_t now = cvy_q_load(word), was;

	while (now < to) {
		was = cvy_q_swap_if(word, now, to);
		if (was == now)
			return;
		now = was;
	}
}

CVY_Q_BOTH void cvy_queue_fail(struct cvy_queue *q, uint64_t status)
{
	cvy_q_swap_if(&q->words->status, 0, status); /* the first cause stays */
}

/* All entries before @counter + 1 are done. A counter further ahead than the queue's depth was seen before. */
CVY_Q_BOTH void cvy_queue_completed(struct cvy_queue *q, uint16_t counter)
{
	uint64_t done = cvy_q_load(&q->words->done);
	uint16_t ahead = (uint16_t)(counter + 1 - (uint16_t)done);

	if (ahead && ahead <= q->depth)
		cvy_queue_raise(&q->words->done, done + ahead);
}

/* Takes one completion; 1: there was a new one. */
CVY_Q_BOTH int cvy_queue_look(struct cvy_queue *q)
{
	uint64_t seen = cvy_q_load(&q->words->seen);
	uint64_t slot = q->mlx5.collapsed ? 0 : seen & (((uint64_t)1 << q->mlx5.cqe_shift) - 1);
	const uint8_t *cqe = q->mlx5.cqes + slot * CVY_MLX5_BLOCK;
	uint32_t tail = cvy_q_load32((const uint32_t *)(cqe + CVY_MLX5_CQE_TAIL));
	uint32_t opcode = CVY_MLX5_CQE_OPCODE(tail), syndrome;
	uint64_t done;

	if (opcode == CVY_MLX5_CQE_NONE)
		return 0;
	if (!q->mlx5.collapsed && CVY_MLX5_CQE_OWNER(tail) != (seen >> q->mlx5.cqe_shift & 1))
		return 0;
	if (opcode != CVY_MLX5_CQE_OK) {
		syndrome = cvy_q_load32((const uint32_t *)(cqe + CVY_MLX5_CQE_SYNDROME / 4 * 4)) >> 24;
		cvy_queue_fail(q, syndrome ? syndrome : 255);
		return 0;
	}
	done = cvy_q_load(&q->words->done);
	if (!q->mlx5.collapsed && cvy_q_swap_if(&q->words->seen, seen, seen + 1) != seen)
		return 1; /* another thread took it */
	cvy_queue_completed(q, CVY_MLX5_CQE_COUNTER(tail));
	return cvy_q_load(&q->words->done) != done;
}

/* Shows the adapter all entries that are ready. Never waits: the holder of the bell checks again after releasing it. */
CVY_Q_BOTH void cvy_queue_flush(struct cvy_queue *q)
{
	struct cvy_queue_words *w = q->words;
	uint64_t ready;

	if (q->kind != CVY_QUEUE_MLX5)
		return;
	while (cvy_q_load(&w->rung) < cvy_q_load(&w->ready) && !cvy_q_swap_if(&w->bell, 0, 1)) {
		ready = cvy_q_load(&w->ready);
		if (ready != cvy_q_load(&w->rung)) {
			cvy_q_store(&w->rung, ready);
			cvy_q_fence(); /* entries before the record */
			cvy_q_store32(&q->mlx5.record[1], cvy_q_be32((uint32_t)ready & 0xffff));
			cvy_q_fence(); /* the record before the register */
			cvy_q_store(q->mlx5.bell, cvy_mlx5_doorbell(q->mlx5.qpn, ready));
		}
		cvy_q_store(&w->bell, 0);
		cvy_q_fence(); /* pairs with the swap of a poster that made its entry ready and found the bell taken */
	}
}

/* Number of entries that are done, or of commands that are taken. */
CVY_Q_BOTH uint64_t cvy_queue_room_from(struct cvy_queue *q, int fresh)
{
	if (fresh && q->kind == CVY_QUEUE_RING)
		cvy_queue_raise(&q->words->done, cvy_q_load(q->ring.tail));
	else if (fresh)
		while (cvy_queue_look(q))
			;
	return cvy_q_load(&q->words->done);
}

/* `done` may be past @end: others may have moved the head since. */
CVY_Q_BOTH int cvy_queue_crowded(struct cvy_queue *q, uint64_t end, uint64_t most)
{
	if ((int64_t)(end - cvy_q_peek(&q->words->done)) <= (int64_t)most)
		return 0;
	cvy_queue_raise(&q->words->done, cvy_q_load(q->ring.tail));
	return (int64_t)(end - cvy_q_peek(&q->words->done)) > (int64_t)most;
}

/*
 * Waits until this poster may write the entries of a ring that it claimed, from @first on. A poster that gives up
 * leaves a hole: the proxy takes nothing behind it, and nobody may fill it, since the proxy may not have read the lap
 * before. So all queues of the ring have failed, and all posters and waiters see that.
 */
CVY_Q_BOTH int cvy_queue_wait_for_room(struct cvy_queue *q, uint64_t first, uint64_t n)
{
	uint64_t since;
	int why = 0;

	for (since = cvy_q_ticks(); !why && cvy_queue_crowded(q, first + n, q->depth); cvy_q_pause()) {
		if (cvy_q_load(&q->words->status))
			return CVY_QUEUE_FAILED;
		if (cvy_q_load(q->abort))
			why = CVY_QUEUE_ABORTED;
		else if (cvy_q_ticks() - since > q->wait_ticks)
			why = CVY_QUEUE_FULL;
	}
	if (why)
		cvy_queue_fail(q, CVY_QUEUE_STATUS_ORDER);
	return why;
}

/*
 * Claims entries of a ring while half of it is free. An addition never fails; a swap fails if many threads try at
 * once. Nothing here waits for the host, unless the other half was claimed at the same moment: then a poster waits for
 * room that it has claimed. 1: done; 0: there may be no room; else the error.
 */
CVY_Q_BOTH int cvy_queue_claim_fast(struct cvy_queue *q, uint64_t n, uint64_t *first)
{
	uint64_t hole = cvy_q_peek(&q->words->status), head = cvy_q_peek(&q->words->head);
	int why;

	if (hole)
		return CVY_QUEUE_FAILED;
	if (n > q->depth / 2 || cvy_queue_crowded(q, head + n, q->depth / 2))
		return 0;
	if (q->ring.look_every == 1) {
		if (cvy_queue_status(q))
			return CVY_QUEUE_FAILED;
		if (cvy_q_load(q->abort))
			return CVY_QUEUE_ABORTED;
	}
	*first = cvy_q_take(&q->words->head, n);
	why = cvy_queue_wait_for_room(q, *first, n);
	return why ? why : 1;
}

/*
 * After entries from @first on were posted to a ring: if it is this poster's turn, it reads how much has been taken,
 * before any poster finds the ring crowded. The turn follows from the place of the entries, which is each poster's
 * own, not from the head, which many may have seen. Waiting posters and the host check for a failed queue and the
 * abort word.
 */
CVY_Q_BOTH void cvy_queue_ask(struct cvy_queue *q, uint64_t first, uint64_t n)
{
	uint64_t below = q->ring.look_every - 1;

	if (below && ((first + below) & ~below) < first + n)
		cvy_queue_raise(&q->words->done, cvy_q_load(q->ring.tail));
}

/* Claims @n entries; @first: the first of them. 0, or the error: then nothing is claimed. */
CVY_Q_BOTH int cvy_queue_claim(struct cvy_queue *q, uint64_t n, uint64_t *first)
{
	struct cvy_queue_wait wait = { 0, 0 };
	uint64_t head;
	int fresh = 0, why;

	if (n > q->depth)
		return CVY_QUEUE_RANGE;
	if (q->kind == CVY_QUEUE_RING) {
		why = cvy_queue_claim_fast(q, n, first);
		if (why)
			return why == 1 ? 0 : why;
	}
	if (cvy_queue_status(q))
		return CVY_QUEUE_FAILED;
	if (cvy_q_load(q->abort))
		return CVY_QUEUE_ABORTED;
	for (;;) {
		head = cvy_q_load(&q->words->head);
		if ((int64_t)(head + n - cvy_queue_room_from(q, fresh)) > (int64_t)q->depth) {
			if (fresh) {
				cvy_queue_flush(q); /* entries that were not shown would never make room */
				why = cvy_queue_gives_up(q, &wait);
				if (why)
					return why;
			}
			fresh = 1;
		} else if (cvy_q_swap_if(&q->words->head, head, head + n) == head) {
			*first = head;
			return 0;
		}
	}
}

/* Entries [first, first + n) are written. Posters of earlier entries are between claim and publish, and do not wait. */
CVY_Q_BOTH int64_t cvy_queue_publish(struct cvy_queue *q, uint64_t first, uint64_t n)
{
	struct cvy_queue_wait wait = { 0, 0 };
	int why;

	while (cvy_q_load(&q->words->ready) != first) {
		why = cvy_queue_gives_up(q, &wait);
		if (why == CVY_QUEUE_FULL || why == CVY_QUEUE_ABORTED)
			cvy_queue_fail(q, CVY_QUEUE_STATUS_ORDER); /* these entries will never be shown */
		if (why)
			return why == CVY_QUEUE_FULL ? CVY_QUEUE_FAILED : why;
	}
	cvy_q_fence();
	cvy_q_store(&q->words->ready, first + n);
	return (int64_t)(first + n);
}

CVY_Q_BOTH uint32_t *cvy_queue_block(struct cvy_queue *q, uint64_t index)
{
	return (uint32_t *)(q->mlx5.entries + (index & (q->depth - 1)) * CVY_MLX5_BLOCK);
}

CVY_Q_BOTH struct cvy_mlx5_entry cvy_queue_entry(const struct cvy_queue *q, uint64_t index, int signalled, uint64_t to)
{
	struct cvy_mlx5_entry e;

	e.qpn = q->mlx5.qpn;
	e.index = index;
	e.signalled = signalled;
	e.remote = q->mlx5.remote + to;
	e.rkey_be = q->mlx5.rkey_be;
	return e;
}

CVY_Q_BOTH void cvy_queue_command(struct cvy_queue *q, uint64_t index, const struct cvy_ring_command *c)
{
	uint64_t w[2];

	cvy_ring_pack(c, cvy_ring_lap(index, q->depth), w);
	cvy_q_store_pair(q->ring.slots + 2 * (index & (q->depth - 1)), w[0], w[1]);
}

/* The post of one call: a put of any length, then a signal or an add. The last entry gives a completion. */
struct cvy_queue_job {
	uint64_t local, remote, bytes; /* put */
	int puts;		       /* 0: none; an empty put is one */
	int signal;		       /* 0, or CVY_RING_SIGNAL, CVY_RING_ADD */
	uint64_t at, value;
};

CVY_Q_BOTH int cvy_queue_within(uint64_t at, uint64_t bytes, uint64_t all)
{
	return bytes <= all && at <= all - bytes;
}

CVY_Q_BOTH int cvy_queue_post_fits(const struct cvy_queue *q, const struct cvy_queue_job *p)
{
	if (p->puts && (!cvy_queue_within(p->local, p->bytes, q->local_bytes) ||
			!cvy_queue_within(p->remote, p->bytes, q->remote_bytes)))
		return 0;
	return !p->signal || (cvy_queue_within(p->at, 8, q->remote_bytes) && p->at % 8 == 0);
}

/* Entry @i of @n that this call posts, at @index. */
CVY_Q_BOTH void cvy_queue_write_mlx5(struct cvy_queue *q, const struct cvy_queue_job *p, uint64_t i, uint64_t n,
				     uint64_t index)
{
	uint32_t *block = cvy_queue_block(q, index);
	struct cvy_mlx5_entry e;
	uint64_t at = i * CVY_MLX5_PUT_MAX, rest = p->bytes - at;

	if (i < (uint64_t)p->puts) {
		e = cvy_queue_entry(q, index, i + 1 == n, p->remote + at);
		cvy_mlx5_write(block, &e, (uint32_t)(rest < CVY_MLX5_PUT_MAX ? rest : CVY_MLX5_PUT_MAX),
			       q->mlx5.lkey_be, q->mlx5.local + p->local + at);
		return;
	}
	e = cvy_queue_entry(q, index, 1, p->at);
	if (p->signal == CVY_RING_ADD)
		cvy_mlx5_add64(block, &e, p->value, q->mlx5.sink_lkey_be, q->mlx5.sink);
	else
		cvy_mlx5_signal(block, &e, p->value);
}

CVY_Q_BOTH void cvy_queue_write_ring(struct cvy_queue *q, const struct cvy_queue_job *p, uint64_t i, uint64_t index)
{
	uint64_t at = i * CVY_RING_PUT_MAX, rest = p->bytes - at;
	struct cvy_ring_command c;

	c.queue = q->ring.number;
	c.local = c.bytes = c.value = 0;
	if (i < (uint64_t)p->puts) {
		c.op = CVY_RING_PUT;
		c.remote = p->remote + at;
		c.local = p->local + at;
		c.bytes = rest < CVY_RING_PUT_MAX ? rest : CVY_RING_PUT_MAX;
	} else {
		c.op = p->signal;
		c.remote = p->at;
		c.value = p->value;
	}
	cvy_queue_command(q, index, &c);
}

CVY_Q_BOTH int64_t cvy_queue_post(struct cvy_queue *q, struct cvy_queue_job *p)
{
	uint64_t most = q->kind == CVY_QUEUE_RING ? CVY_RING_PUT_MAX : CVY_MLX5_PUT_MAX, n, i, first = 0;
	int err;

	if (!cvy_queue_post_fits(q, p))
		return CVY_QUEUE_RANGE;
	if (p->bytes > most * q->depth)
		return CVY_QUEUE_RANGE;
	if (p->puts && p->bytes)
		p->puts = (int)((p->bytes + most - 1) / most);
	n = (uint64_t)p->puts + (p->signal ? 1 : 0);
	err = cvy_queue_claim(q, n, &first);
	if (err)
		return err;
	if (q->kind == CVY_QUEUE_RING) {
		if (p->puts)
			cvy_q_release(); /* data of the put before the command. The ring keeps commands in order */
		for (i = 0; i < n; i++)
			cvy_queue_write_ring(q, p, i, first + i);
		cvy_queue_ask(q, first, n);
		return (int64_t)(first + n);
	}
	for (i = 0; i < n; i++)
		cvy_queue_write_mlx5(q, p, i, n, first + i);
	return cvy_queue_publish(q, first, n);
}

/**
 * cvy_queue_put - post a copy of @bytes from @local of this rank's memory to @remote of the far end's
 *
 * cvy_queue_flush() shows it to the adapter. Returns a ticket (> 0), or enum cvy_queue_error.
 */
CVY_Q_BOTH int64_t cvy_queue_put(struct cvy_queue *q, uint64_t local, uint64_t remote, uint64_t bytes)
{
	struct cvy_queue_job p = { local, remote, bytes, 1, 0, 0, 0 };

	return cvy_queue_post(q, &p);
}

/* The same, and then @value is stored at @at of the far end's memory, whole, after the copy has arrived. */
CVY_Q_BOTH int64_t cvy_queue_put_signal(struct cvy_queue *q, uint64_t local, uint64_t remote, uint64_t bytes,
					uint64_t at, uint64_t value)
{
	struct cvy_queue_job p = { local, remote, bytes, 1, CVY_RING_SIGNAL, at, value };

	return cvy_queue_post(q, &p);
}

CVY_Q_BOTH int64_t cvy_queue_signal(struct cvy_queue *q, uint64_t at, uint64_t value)
{
	struct cvy_queue_job p = { 0, 0, 0, 0, CVY_RING_SIGNAL, at, value };

	return cvy_queue_post(q, &p);
}

/* Atomic only with other adds through the far end's adapter, or its proxy. */
CVY_Q_BOTH int64_t cvy_queue_add64(struct cvy_queue *q, uint64_t at, uint64_t value)
{
	struct cvy_queue_job p = { 0, 0, 0, 0, CVY_RING_ADD, at, value };

	return cvy_queue_post(q, &p);
}

/*
 * 1: everything up to @ticket is done, its memory may be used again; 0: not yet; else it never will be. Waits for
 * nothing.
 */
CVY_Q_BOTH int cvy_queue_test(struct cvy_queue *q, int64_t ticket)
{
	if (ticket <= 0)
		return CVY_QUEUE_RANGE;
	if (q->kind == CVY_QUEUE_RING) {
		if (cvy_q_load(q->ring.done) >= (uint64_t)ticket)
			return 1;
	} else {
		while (cvy_q_load(&q->words->done) < (uint64_t)ticket)
			if (!cvy_queue_look(q))
				break;
		if (cvy_q_load(&q->words->done) >= (uint64_t)ticket)
			return 1;
	}
	if (cvy_queue_status(q))
		return CVY_QUEUE_FAILED;
	return cvy_q_load(q->abort) ? CVY_QUEUE_ABORTED : 0;
}

/* Waits for @ticket: 1, or the error; FULL: not within wait_ticks. */
CVY_Q_BOTH int cvy_queue_await(struct cvy_queue *q, int64_t ticket)
{
	struct cvy_queue_wait wait = { 0, 0 };
	int now;

	cvy_queue_flush(q);
	for (;;) {
		now = cvy_queue_test(q, ticket);
		if (now)
			return now;
		now = cvy_queue_gives_up(q, &wait);
		if (now)
			return now;
	}
}

#endif
