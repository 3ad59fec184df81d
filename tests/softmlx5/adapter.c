/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that is the adapter. It takes doorbells from the pages where posters write them, reads the record of the
 * queue that was named, picks up the entries before that index, executes them in order and writes completions. A
 * plan may put time between picking up, executing and completing; then each entry is hashed when it is picked up
 * and looked at again when it is done, which shows slots that were used too early and entries that were not whole.
 *
 * A doorbell is taken by a swap with a value that none has, so the same value written twice is not lost. A doorbell
 * may name the last entry (libmlx5) or the one behind it (posters on GPUs): only the record says how far to go. One thing is
 * weaker than an adapter: where two queues share a register, one doorbell may cover the other before it is looked at.
 */
#include <infiniband/mlx5dv.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "state.h"

#define IDLE_LOOKS 4000 /* at all registers, before a nap */
#define NAP_US 20
#define LOOK_MS 10 /* between looks for records without a doorbell */
#define SEGMENTS_BYTES 1024

struct adapter adapter = { .lock = PTHREAD_MUTEX_INITIALIZER, .uar_fd = -1 };

static const char *const names[] = {
#define X(name, word, text) word,
	SOFTMLX5_CHECKS(X)
#undef X
};

int found(int check, const char *format, ...)
{
	va_list args;

	if (adapter.lax >> check & 1)
		return 0;
	adapter.stats.found[check]++;
	va_start(args, format);
	vsnprintf(adapter.stats.last, sizeof(adapter.stats.last), format, args);
	va_end(args);
	if (getenv("SOFTMLX5_TRACE"))
		fprintf(stderr, "softmlx5: %s: %s\n", names[check], adapter.stats.last);
	return 1;
}

static uint64_t hash_of(const struct queue *q, uint16_t index, unsigned blocks)
{
	uint64_t h = 1469598103934665603ull, w;

	for (unsigned i = 0; i < blocks * 8; i++) {
		memcpy(&w, q->ring + ((index + i / 8) & (q->depth - 1)) * 64 + i % 8 * 8, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h;
}

static void entry_copy(const struct queue *q, uint16_t index, unsigned blocks, uint8_t *to)
{
	for (unsigned i = 0; i < blocks; i++)
		memcpy(to + 64 * i, q->ring + ((index + i) & (q->depth - 1)) * 64, 64);
}

/* Counter, signature and owner are one store, and the last. */
static void complete(struct queue *q, const struct picked *p)
{
	struct completions *c = &adapter.cq[q->cq];
	struct mlx5_cqe64 n = { 0 };
	struct mlx5_err_cqe *e = (struct mlx5_err_cqe *)&n;
	uint8_t *to = c->ring + (c->collapsed ? 0 : c->next & (c->n - 1)) * 64;
	uint32_t tail;

	if (!c->live)
		return;
	if (!c->ignore_overrun && c->next - (be32toh(__atomic_load_n(c->record, __ATOMIC_ACQUIRE)) & 0xffffff) >= c->n)
		found(SOFTMLX5_CQ_OVERRUN, "%u completions of queue %x are not taken", c->n, q->shared->qpn);
	n.srqn_uidx = htobe32(q->user_index);
	n.byte_cnt = htobe32(p->bytes);
	n.sop_drop_qpn = htobe32((uint32_t)p->opcode << 24 | q->shared->qpn);
	n.wqe_counter = htobe16(p->index);
	if (p->syndrome) {
		e->syndrome = (uint8_t)p->syndrome;
		e->vendor_err_synd = 0x77;
	}
	n.op_own = (uint8_t)((p->syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ) << 4 | !!(c->next & c->n));
	memcpy(to, &n, 60);
	memcpy(&tail, (uint8_t *)&n + 60, 4);
	__atomic_store_n((uint32_t *)(to + 60), tail, __ATOMIC_RELEASE);
	c->next++;
	adapter.stats.completions++;
	adapter.stats.errors += p->syndrome != 0;
	if (p->syndrome && getenv("SOFTMLX5_TRACE"))
		fprintf(stderr, "softmlx5: entry %u of queue %x, opcode %x, ended with %x\n", p->index, q->shared->qpn,
			p->opcode, p->syndrome);
}

static uint64_t retry_ns(const struct queue *q)
{
	uint64_t unit = adapter.plan.ack_unit_ns ? adapter.plan.ack_unit_ns : 4096;

	return q->timeout ? (q->retries + 1) * (unit << q->timeout) : UINT64_MAX / 2; /* 0: never */
}

static void activate(struct queue *q, uint32_t place)
{
	if (q->active)
		return;
	q->active = 1;
	adapter.active[adapter.actives++] = place;
}

static struct picked *under_way(struct queue *q, uint16_t index)
{
	return &q->under_way[index & (q->depth - 1)];
}

/* Another look at an entry: is it still what was picked up? A slot whose index is of the next time round was used too early. */
static int check_again(const struct queue *q, const struct picked *p)
{
	const uint8_t *now = q->ring + (p->index & (q->depth - 1)) * 64;
	uint16_t index = (uint16_t)(be32_at(now) >> 8);

	if (!p->hash || hash_of(q, p->index, p->blocks) == p->hash)
		return 0;
	if (index != p->index)
		return found(SOFTMLX5_REWRITTEN, "slot of entry %u of queue %x holds %u before it is done", p->index,
			     q->shared->qpn, index);
	return found(SOFTMLX5_CHANGED, "entry %u of queue %x changed after its doorbell", p->index, q->shared->qpn);
}

static void execute(struct queue *q, struct picked *p)
{
	uint8_t entry[SEGMENTS_BYTES];
	uint64_t delay = random_below(adapter.plan.delay_ns);

	entry_copy(q, p->index, p->blocks, entry);
	p->executed = 1;
	p->due = delay ? now_ns() + delay : 0;
	if (q->shared->state != QUEUE_RTS) {
		p->syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
		return;
	}
	if (adapter.plan.silent_qpn == q->shared->qpn && q->entries > adapter.plan.silent_at)
		adapter.segment->queue[q->shared->far & (QUEUES - 1)].silent = 1;
	if (check_again(q, p)) {
		p->hash = 0; /* said once */
		p->syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
		return;
	}
	p->syndrome = entry_check(q, entry, p);
	if (!p->syndrome)
		p->syndrome = entry_execute(q, entry, p);
	if (p->syndrome == MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR)
		p->due = now_ns() + retry_ns(q);
}

static int waits(const struct queue *q, struct picked *p)
{
	if (!p->due || now_ns() >= p->due)
		return 0;
	if (q->shared->state != QUEUE_ERROR)
		return 1;
	if (p->syndrome) /* its retries are cut short */
		p->syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
	return 0;
}

/* Executes and completes what is due, in order; 1: something is left. */
static int advance(struct queue *q)
{
	struct picked *p;

	while (q->done != q->picked) {
		p = under_way(q, q->done);
		if (!p->executed && waits(q, p))
			return 1;
		if (!p->executed)
			execute(q, p);
		if (waits(q, p))
			return 1;
		check_again(q, p);
		if (p->syndrome)
			q->shared->state = QUEUE_ERROR;
		if (p->syndrome || p->signalled)
			complete(q, p);
		q->done += p->blocks;
		adapter.stats.entries++;
	}
	return 0;
}

static void pick_up(struct queue *q, uint16_t to)
{
	struct picked *p;
	uint8_t first[64];
	uint64_t delay;

	while (q->picked != to) {
		p = under_way(q, q->picked);
		entry_copy(q, q->picked, 1, first);
		*p = (struct picked){ .index = q->picked };
		entry_shape(first, p);
		if ((uint16_t)(to - q->picked) < p->blocks) /* ends behind the record */
			p->blocks = (uint8_t)(to - q->picked);
		p->hash = adapter.plan.delay_ns ? hash_of(q, p->index, p->blocks) : 0;
		delay = random_below(adapter.plan.delay_ns);
		p->due = delay ? now_ns() + delay : 0;
		q->unsignalled = p->signalled ? 0 : q->unsignalled + p->blocks;
		if (q->unsignalled > q->depth) {
			found(SOFTMLX5_UNSIGNALLED, "%u entries of queue %x ask for no completion", q->unsignalled,
			      q->shared->qpn);
			q->unsignalled = 0;
		}
		q->entries++;
		q->picked += p->blocks;
		if (!adapter.plan
			     .delay_ns) /* nothing to hold: done before the next is looked at, so room is made early */
			advance(q);
	}
}

static void doorbell(uint64_t value)
{
	uint32_t qpn = be32_at((uint8_t *)&value + 4) >> 8;
	uint16_t named = (uint16_t)(be32_at(&value) >> 8), to;
	struct queue *q = queue_of(qpn);

	adapter.stats.doorbells++;
	if (!q || !q->ring) {
		found(SOFTMLX5_QPN, "a doorbell for queue %x, which is none", qpn);
		return;
	}
	to = (uint16_t)be32toh(__atomic_load_n(q->record, __ATOMIC_ACQUIRE));
	if ((int16_t)(to - named) < 0)
		found(SOFTMLX5_AHEAD, "a doorbell names %u of queue %x, its record %u", named, qpn, to);
	if ((uint16_t)(to - q->done) > q->depth) {
		if (found(SOFTMLX5_OVERRUN, "%u entries under way in queue %x of %u", (uint16_t)(to - q->done), qpn,
			  q->depth))
			q->shared->state = QUEUE_ERROR;
		to = (uint16_t)(q->done + q->depth);
	}
	if (q->shared->state != QUEUE_RTS && q->shared->state != QUEUE_ERROR)
		return;
	pick_up(q, to);
	if (advance(q))
		activate(q, qpn & (QUEUES - 1));
}

static int look_at_registers(void);

void adapter_hear(void)
{
	look_at_registers();
}

void adapter_error(struct queue *q)
{
	q->shared->state = QUEUE_ERROR;
	if (q->ring)
		advance(q);
}

static int look_at_registers(void)
{
	static const unsigned at[] = { 0x800, 0x900, 0xa00, 0xb00 };
	int any = 0;

	for (uint32_t u = 0; u < adapter.uar_top; u++) {
		for (unsigned i = 0; adapter.uar_used[u] && i < 4; i++) {
			uint64_t *reg = (uint64_t *)(adapter.uars + (size_t)u * PAGE_BYTES + at[i]);

			if (__atomic_load_n(reg, __ATOMIC_ACQUIRE) == NO_BELL)
				continue;
			doorbell(__atomic_exchange_n(reg, NO_BELL, __ATOMIC_SEQ_CST));
			any = 1;
		}
	}
	return any;
}

static void look_at_active(void)
{
	for (uint32_t i = 0; i < adapter.actives;) {
		struct queue *q = &adapter.queue[adapter.active[i]];

		if (q->shared && q->ring && advance(q)) {
			i++;
			continue;
		}
		q->active = 0;
		adapter.active[i] = adapter.active[--adapter.actives];
	}
}

/*
 * A record that moved while nobody rang: found once for each place it stops at. Time is counted in looks that came, and is
 * long: a thread that rings for others may not run for seconds where a machine has much to do.
 */
static void look_for_lost(void)
{
	uint32_t bound = (adapter.plan.lost_ms ? adapter.plan.lost_ms : 15000) / LOOK_MS;

	for (uint32_t i = 0; i < QUEUES; i++) {
		struct queue *q = &adapter.queue[i];
		uint16_t at;

		if (!q->shared || !q->ring || q->shared->state != QUEUE_RTS)
			continue;
		at = (uint16_t)be32toh(__atomic_load_n(q->record, __ATOMIC_ACQUIRE));
		if (at == q->picked || at != q->record_seen) {
			q->record_seen = at;
			q->record_looks = at == q->picked ? 0 : 1;
		} else if (q->record_looks && q->record_looks++ > bound) {
			found(SOFTMLX5_LOST, "record %u of queue %x, and nobody rang since %u", at, q->shared->qpn,
			      q->picked);
			q->record_looks = 0;
		}
	}
}

static void *adapter_main(void *unused)
{
	uint64_t looked = 0, now;
	unsigned idle = 0, turns = 0;
	int any;

	(void)unused;
	for (;;) {
		while (__atomic_load_n(&adapter.callers, __ATOMIC_SEQ_CST))
			sched_yield();
		answer_asks();
		pthread_mutex_lock(&adapter.lock);
		any = look_at_registers();
		if (adapter.actives)
			look_at_active();
		if (turns++ % 1024 == 0 || idle >= IDLE_LOOKS) {
			now = now_ns();
			if (now - looked > LOOK_MS * 1000000ull) {
				looked = now;
				look_for_lost();
			}
		}
		any |= adapter.actives > 0;
		if (adapter.plan.stall_ns && any && !random_below(1000)) {
			struct timespec t = { 0, (long)random_below(adapter.plan.stall_ns) };

			nanosleep(&t, NULL);
		}
		pthread_mutex_unlock(&adapter.lock);
		idle = any ? 0 : idle + 1;
		if (idle >= IDLE_LOOKS)
			usleep(NAP_US);
		else if (idle % 16 == 15)
			sched_yield();
	}
	return NULL;
}

static void lax_from(const char *words)
{
	size_t n;

	for (; words && *words; words += n + (words[n] == ',')) {
		n = strcspn(words, ",");
		for (int i = 0; i < SOFTMLX5_NCHECKS; i++)
			if (strlen(names[i]) == n && !strncmp(names[i], words, n))
				adapter.lax |= 1u << i;
	}
}

/* SOFTMLX5_PLAN=seed=1,delay_ns=2000: for programs that know nothing of this. */
static void plan_from(const char *words)
{
	static const struct {
		const char *name;
		size_t at;
	} known[] = { { "delay_ns", offsetof(struct softmlx5_plan, delay_ns) },
		      { "stall_ns", offsetof(struct softmlx5_plan, stall_ns) },
		      { "ack_unit_ns", offsetof(struct softmlx5_plan, ack_unit_ns) },
		      { "lost_ms", offsetof(struct softmlx5_plan, lost_ms) },
		      { "refuse", offsetof(struct softmlx5_plan, refuse) } };
	unsigned long v;
	char name[16];
	int n = 0;

	for (; words && sscanf(words, "%15[a-z_]=%lu%n", name, &v, &n) == 2; words += n + (words[n] == ',')) {
		if (!strcmp(name, "seed"))
			adapter.plan.seed = v;
		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (!strcmp(name, known[i].name))
				*(uint32_t *)((char *)&adapter.plan + known[i].at) = (uint32_t)v;
	}
	adapter.random += (adapter.plan.seed + (uint64_t)getpid() * !!adapter.plan.seed) * 2654435769u;
}

/* Once per process, at its first look at the device: a child of fork() has an adapter of its own. */
void adapter_start(void)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_t thread;

	pthread_mutex_lock(&once);
	if (!adapter.segment) {
		adapter.random = 88172645463325252ull;
		lax_from(getenv("SOFTMLX5_LAX"));
		plan_from(getenv("SOFTMLX5_PLAN"));
		if (segment_open() || pthread_create(&thread, NULL, adapter_main, NULL))
			abort();
		pthread_detach(thread);
	}
	pthread_mutex_unlock(&once);
}

void softmlx5_stats(struct softmlx5_stats *to)
{
	pthread_mutex_lock(&adapter.lock);
	*to = adapter.stats;
	pthread_mutex_unlock(&adapter.lock);
}

uint64_t softmlx5_found(void)
{
	struct softmlx5_stats s;
	uint64_t n = 0;

	softmlx5_stats(&s);
	for (int i = 0; i < SOFTMLX5_NCHECKS; i++)
		n += s.found[i];
	return n;
}

void softmlx5_forget(void)
{
	pthread_mutex_lock(&adapter.lock);
	memset(adapter.stats.found, 0, sizeof(adapter.stats.found));
	adapter.stats.last[0] = 0;
	pthread_mutex_unlock(&adapter.lock);
}

void softmlx5_strict(int check, int on)
{
	pthread_mutex_lock(&adapter.lock);
	adapter.lax = on ? adapter.lax & ~(1u << check) : adapter.lax | 1u << check;
	pthread_mutex_unlock(&adapter.lock);
}

const char *softmlx5_check_name(int check)
{
	return names[check];
}

void softmlx5_plan(const struct softmlx5_plan *plan)
{
	pthread_mutex_lock(&adapter.lock);
	adapter.plan = *plan;
	adapter.random = plan->seed * 2654435769u + 88172645463325252ull;
	pthread_mutex_unlock(&adapter.lock);
}

void softmlx5_silence(uint32_t qpn)
{
	struct queue *q;

	pthread_mutex_lock(&adapter.lock);
	q = queue_of(qpn);
	if (q)
		q->shared->silent = 1;
	pthread_mutex_unlock(&adapter.lock);
}

uint64_t softmlx5_calls(void)
{
	return __atomic_load_n(&adapter.calls, __ATOMIC_RELAXED);
}

void softmlx5_copy(void (*copy)(void *to, const void *from, size_t bytes))
{
	adapter.copy = copy;
}
