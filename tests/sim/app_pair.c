/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages beside the collectives: in every second run each application now and then sends to or receives from
 * some member, itself too. Message n of one incarnation to another is made from the two and n alone, and which
 * message a receive must get is known when it is posted: the oldest that it wants and no earlier one gets. So
 * one that is lost, doubled, reordered or of another incarnation is seen.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "checks.h"
#include "handle.h"
#include "pair.h"

#define TAGS 3
#define OPEN_MOST 5 /* works of one kind with one peer */
#define LEAVE_MS 50 /* that who leaves waits for its messages to be received */

struct app_message {
	struct app_message *next;
	int sending;
	uint64_t number; /* it is this one, or must get this one */
	size_t room;
	uint8_t *buffer;
	struct covey_work *work;
};

struct app_talk { /* with one incarnation */
	struct app_talk *next;
	int rank, to_send, to_get; /* works not decided */
	uint64_t inc, sent;
	uint8_t due[SIM_MESSAGES]; /* some receive was posted that gets this number */
	struct app_message *open;
};

int app_talks(const struct sim *s)
{
	return sim_hash(s->seed, 4711) % 2 == 0;
}

/* ---- message n ---- */

static uint64_t draw(uint64_t from, uint64_t to, uint64_t number)
{
	return sim_hash(from * 8191 + to, number * 2 + 1);
}

static int tag_of(uint64_t from, uint64_t to, uint64_t number)
{
	return (int)(draw(from, to, number) % TAGS);
}

/* None, a few bytes, as a whole or not, several rings. */
static size_t bytes_of(uint64_t from, uint64_t to, uint64_t number)
{
	uint64_t h = draw(from, to, number) >> 8;
	static const size_t most[] = { 1, 60, 513, 600, 3000, 9000 };

	return (size_t)((h >> 8) % most[h % 6]);
}

static void fill(uint8_t *at, size_t n, uint64_t from, uint64_t to, uint64_t number)
{
	uint64_t h = draw(from, to, number);

	for (size_t i = 0; i < n; i++)
		at[i] = (uint8_t)(h >> 16) ^ (uint8_t)(i * 31 + i / 256);
}

/* ---- posting ---- */

static struct app_talk *talk_with(struct proc *p, int rank)
{
	uint64_t inc = p->engine->view ? p->engine->view->member[rank].inc : 0;
	struct app_talk *t = p->app.talk;

	if (!inc || !covey_mask_has(&p->engine->view->members, rank) || covey_mask_has(&p->engine->view->pending, rank))
		return NULL;
	while (t && t->inc != inc)
		t = t->next;
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		abort();
	t->rank = rank;
	t->inc = inc;
	t->next = p->app.talk;
	p->app.talk = t;
	return t;
}

static void post(struct proc *p, struct app_talk *t, struct app_message *m, int tag)
{
	struct covey_group *g = p->app.group;
	int err;

	do
		err = m->sending ? covey_send_start(m->buffer, m->room, COVEY_UINT8, t->rank, tag, g, NULL, &m->work)
				 : covey_recv_start(m->buffer, m->room, COVEY_UINT8, t->rank, tag, g, NULL, &m->work);
	while (err == COVEY_ERR_NOMEM && sim_scarce_hit(p));
	if (err && !p->engine->here.ended)
		sim_fail(p->sim, "G5: process %d: a message is refused with %d", p->id, err);
	if (err) {
		free(m->buffer);
		free(m);
		return;
	}
	*(m->sending ? &t->to_send : &t->to_get) += 1;
	m->next = t->open;
	t->open = m;
	sim_trace(p->sim, "process %d %s message %" PRIu64 " with incarnation %" PRIu64 ", tag %d, %zu bytes", p->id,
		  m->sending ? "sends" : "asks for", m->number, t->inc, tag, m->room);
}

static struct app_message *message(int sending, uint64_t number, size_t room)
{
	struct app_message *m = calloc(1, sizeof(*m));

	if (!m || !(m->buffer = malloc(room + 1)))
		abort();
	m->sending = sending;
	m->number = number;
	m->room = room;
	m->buffer[room] = 0x5a;
	return m;
}

static void send_one(struct proc *p, struct app_talk *t)
{
	size_t n = bytes_of(p->inc, t->inc, t->sent);
	struct app_message *m;

	if (t->to_send == OPEN_MOST || t->sent == SIM_MESSAGES)
		return;
	m = message(1, t->sent, n);
	fill(m->buffer, n, p->inc, t->inc, t->sent);
	post(p, t, m, tag_of(p->inc, t->inc, t->sent++));
}

static void get_one(struct proc *p, struct app_talk *t)
{
	int tag = (int)sim_random(p->sim, TAGS + 1);
	uint64_t number = 0;
	size_t room;

	while (number < SIM_MESSAGES && (t->due[number] || (tag < TAGS && tag_of(t->inc, p->inc, number) != tag)))
		number++;
	if (t->to_get == OPEN_MOST || number == SIM_MESSAGES)
		return;
	t->due[number] = 1;
	room = bytes_of(t->inc, p->inc, number);
	if (sim_random(p->sim, 10) == 0) /* too small, or larger than need be */
		room = sim_random(p->sim, 2) ? room / 2 : room + 100;
	post(p, t, message(0, number, room), tag < TAGS ? tag : COVEY_TAG_ANY);
}

/* ---- taking ---- */

static void complain(struct proc *p, const struct app_talk *t, const struct app_message *m,
		     const struct covey_result *res, const char *what)
{
	sim_fail(p->sim,
		 "%s: process %d %s incarnation %" PRIu64 ", message %" PRIu64 ": number %" PRIu64
		 ", status %d, %zu bytes",
		 what, p->id, m->sending ? "to" : "from", t->inc, m->number, res->seq, res->status, res->bytes);
}

static void check_received(struct proc *p, const struct app_talk *t, const struct app_message *m,
			   const struct covey_result *res)
{
	size_t n = bytes_of(t->inc, p->inc, m->number), fits = n < m->room ? n : m->room;
	uint8_t *want = malloc(n + 1);

	if (!want)
		abort();
	fill(want, n, t->inc, p->inc, m->number);
	if (res->status != (n > m->room ? COVEY_ERR_TRUNCATED : 0))
		complain(p, t, m, res, "P1: a receive ends otherwise than its length says");
	else if (res->seq != m->number || res->tag != tag_of(t->inc, p->inc, m->number))
		complain(p, t, m, res, "P1: a receive gets another message than is due");
	else if (res->bytes != fits || memcmp(m->buffer, want, fits) != 0)
		complain(p, t, m, res, "P1: the bytes are not those of the message");
	else if (m->buffer[m->room] != 0x5a)
		complain(p, t, m, res, "P1: bytes past the buffer were written");
	free(want);
}

/* P1: exactly the message that is due, whole; P2: it fails only when the other was removed. */
static void check(struct proc *p, const struct app_talk *t, const struct app_message *m, const struct covey_result *res)
{
	const struct cvy_view *v = p->engine->view;

	if (p->engine->here.ended || p->seen.scribbled || check_left_out(p))
		return;
	if (res->status == COVEY_ERR_PEER) {
		if (covey_mask_has(&v->members, t->rank) && v->member[t->rank].inc == t->inc)
			complain(p, t, m, res, "P2: it fails though the other is a member");
	} else if (!m->sending) {
		check_received(p, t, m, res);
	} else if (res->status || res->seq != m->number) {
		complain(p, t, m, res, "P1: a send has another number or status");
	}
}

static void take(struct proc *p, struct app_talk *t)
{
	for (struct app_message **at = &t->open; *at;) {
		struct app_message *m = *at;
		struct covey_result res;

		if (covey_work_test(m->work, &res)) {
			if (p->engine->here.ended)
				sim_fail(p->sim, "G5: process %d has ended and a message of it has not", p->id);
			if (!covey_mask_has(&p->engine->view->members, t->rank) ||
			    p->engine->view->member[t->rank].inc != t->inc)
				sim_fail(p->sim, "P2: process %d waits for a message of one that was removed", p->id);
			at = &m->next;
			continue;
		}
		check(p, t, m, &res);
		*(m->sending ? &t->to_send : &t->to_get) -= 1;
		*at = m->next;
		covey_work_free(m->work);
		free(m->buffer);
		free(m);
	}
}

void app_talk(struct proc *p)
{
	struct app_talk *t;

	for (t = p->app.talk; t; t = t->next)
		take(p, t);
	if (!app_talks(p->sim) || !p->sim->faults || p->app.joiner || p->engine->here.pending ||
	    p->engine->here.ended || p->app.leaving || sim_random(p->sim, 3))
		return;
	t = talk_with(p, (int)sim_random(p->sim, SIM_RANKS));
	if (!t)
		return;
	if (sim_random(p->sim, 2))
		send_one(p, t);
	else
		get_one(p, t);
}

/* covey_leave waits until its messages were received, or its deadline. */
int app_talk_over(struct proc *p)
{
	if (!p->app.left_ns)
		p->app.left_ns = p->sim->now + LEAVE_MS * CVY_MS;
	return cvy_pairs_drained(p->engine) || p->sim->now > p->app.left_ns;
}

/* ---- in the end ---- */

static const struct app_talk *other_side(const struct proc *p, const struct proc *q)
{
	const struct app_talk *t = q->app.talk;

	while (t && (t->inc != p->inc || t->rank != p->rank))
		t = t->next;
	return t;
}

/* Does a message that was sent and asked for still not lie in the buffer? */
static int owed(const struct proc *q, const struct app_talk *mine, const struct app_talk *theirs)
{
	for (const struct app_message *m = mine->open; m; m = m->next)
		if (m->sending ? theirs->due[m->number] : m->number < theirs->sent)
			return !q->engine->here.ended;
	return 0;
}

/* Between two that are members of each other's view nothing is owed. */
int app_talk_settled(const struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		const struct proc *p = s->proc[i];

		if (!p->alive || p->engine->here.ended || p->seen.scribbled)
			continue;
		for (const struct app_talk *t = p->app.talk; t; t = t->next) {
			const struct proc *q = sim_proc_of((struct sim *)(uintptr_t)s, t->inc);
			const struct app_talk *theirs = q && q->alive && !q->seen.scribbled ? other_side(p, q) : NULL;

			if (theirs && q->engine->view->member[p->rank].inc == p->inc &&
			    p->engine->view->member[q->rank].inc == q->inc && owed(q, t, theirs))
				return 0;
		}
	}
	return 1;
}

void app_talk_end(struct proc *p)
{
	while (p->app.talk) {
		struct app_talk *t = p->app.talk;

		p->app.talk = t->next;
		while (t->open) {
			struct app_message *m = t->open;

			t->open = m->next;
			covey_work_free(m->work);
			free(m->buffer);
			free(m);
		}
		free(t);
	}
}
