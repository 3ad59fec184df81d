/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of scale.h: events by value in a heap, members by process number and by incarnation, one queue in
 * front of the store.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "scale_world.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define END_NS (600ull * 1000 * CVY_MS) /* of one step: who takes longer is stuck */

/* ---- The heap ---- */

static int before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->serial < b->serial;
}

void scale_at(struct scale_world *w, uint64_t when, struct event e)
{
	int i;

	if (w->events == w->events_room) {
		w->events_room = w->events_room ? 2 * w->events_room : 1024;
		w->heap = must(realloc(w->heap, (size_t)w->events_room * sizeof(*w->heap)));
	}
	e.at = when;
	e.serial = ++w->serial;
	for (i = w->events++; i > 0 && before(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
		w->heap[i] = w->heap[(i - 1) / 2];
	w->heap[i] = e;
}

static struct event next(struct scale_world *w)
{
	struct event top = w->heap[0], last = w->heap[--w->events];
	int i = 0, c;

	while ((c = 2 * i + 1) < w->events) {
		if (c + 1 < w->events && before(&w->heap[c + 1], &w->heap[c]))
			c++;
		if (before(&last, &w->heap[c]))
			break;
		w->heap[i] = w->heap[c];
		i = c;
	}
	w->heap[i] = last;
	return top;
}

/* ---- Members ---- */

static void post(struct member *m, const struct cvy_event *e)
{
	uint64_t t;

	if (!m->alive || m->driver.ended)
		return;
	cvy_driver_post(&m->driver, e, m->w->now);
	t = cvy_driver_timer(&m->driver);
	if (m->driver.draining || t == CVY_NEVER || (m->timer_ns > m->w->now && m->timer_ns <= t))
		return; /* a tick too early does no harm */
	m->timer_ns = t > m->w->now ? t : m->w->now + 1;
	scale_at(m->w, m->timer_ns, (struct event){ .kind = TICK, .member = m->id });
}

static struct member *member_of(struct scale_world *w, uint64_t inc)
{
	return inc && inc < (uint64_t)w->incs && w->by_inc[inc] ? w->member[w->by_inc[inc] - 1] : NULL;
}

static void identity(void *ctx, const struct cvy_identity *id)
{
	struct member *m = ctx;
	struct scale_world *w = m->w;

	m->rank = id->rank;
	m->inc = id->inc;
	if (id->inc >= (uint64_t)w->incs) {
		int incs = 2 * (int)id->inc + 64;

		w->by_inc = must(realloc(w->by_inc, (size_t)incs * sizeof(int)));
		memset(w->by_inc + w->incs, 0, (size_t)(incs - w->incs) * sizeof(int));
		w->incs = incs;
	}
	w->by_inc[id->inc] = m->id + 1;
}

static void connected(struct member *m, struct member *q)
{
	struct scale_world *w = m->w;
	uint64_t there = w->now + 2 * us(LATENCY_US);

	w->total.messages += 2; /* PROOF, WELCOME */
	scale_at(w, there, (struct event){ .kind = UP, .member = m->id, .other = q->rank, .inc = q->inc });
	scale_at(w, there, (struct event){ .kind = UP, .member = q->id, .other = m->rank, .inc = m->inc });
}

static void expect(void *ctx, int rank, uint64_t inc)
{
	struct member *m = ctx, *q = member_of(m->w, inc);

	m->expects[rank] = inc;
	if (m->knocks[rank] == inc && q && q->alive)
		connected(q, m);
	m->knocks[rank] = 0;
}

static void dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct member *m = ctx;

	m->w->total.messages++;
	scale_at(m->w, m->w->now + us(LATENCY_US),
		 (struct event){ .kind = DIAL, .member = m->id, .other = rank, .inc = inc });
}

static void drop(void *ctx, int rank, uint64_t inc)
{
	struct member *m = ctx;

	if (m->linked[rank] == inc)
		m->linked[rank] = 0;
}

static int send_message(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	((struct member *)ctx)->w->total.messages++;
	return 0;
}

static void tell(struct member *m, int kind, uint32_t epoch)
{
	struct cvy_event e = { .kind = kind, .rank = -1, .epoch = epoch };

	e.report.done = e.report.ent = m->done;
	e.report.adm = m->adm;
	post(m, &e);
}

static void freeze(void *ctx, uint32_t epoch)
{
	tell(ctx, CVY_EV_FROZEN, epoch);
}

static void learn(void *ctx, const struct cvy_view *v, const struct covey_mask *removed, const struct covey_mask *lag)
{
	struct member *m = ctx;

	m->done = v->base - 1;
	m->adm = 0;
	tell(m, CVY_EV_FENCED, v->epoch);
}

static void repair(void *ctx, const struct covey_mask *holders)
{
	struct member *m = ctx;

	tell(m, CVY_EV_REPAIRED, cvy_group_view(m->driver.group)->epoch);
}

/* Applications call covey_admit at once: where somebody is pending it takes everybody in. */
static void thaw(void *ctx)
{
	struct member *m = ctx;
	const struct cvy_view *v = cvy_group_view(m->driver.group);

	if (cvy_mask_empty(&v->pending))
		return;
	m->done = m->adm = v->base;
	m->w->total.messages++;
	tell(m, CVY_EV_ADMITTED, v->epoch);
}

static struct cvy_page *page(void *ctx, int rank)
{
	return NULL;
}

static void message(void *ctx, const struct cvy_msg *msg)
{
}

static void stop(void *ctx, int err)
{
	struct member *m = ctx;

	fprintf(stderr, "scale: rank %d is out of the group: %d\n", m->rank, err);
}

static uint64_t progress(void *ctx, int *waiting)
{
	*waiting = 0;
	return ((struct member *)ctx)->done;
}

static int retire(void *ctx)
{
	return 1;
}

static const struct cvy_seam seam = { .identity = identity,
				      .expect = expect,
				      .dial = dial,
				      .drop = drop,
				      .send = send_message,
				      .page = page,
				      .freeze = freeze,
				      .learn = learn,
				      .repair = repair,
				      .thaw = thaw,
				      .message = message,
				      .stop = stop,
				      .progress = progress,
				      .retire = retire };

static void joined(void *ctx, int err)
{
	struct member *m = ctx;
	struct cvy_event ready = { .kind = CVY_EV_API, .api = CVY_API_READY, .rank = -1 };

	if (err)
		fprintf(stderr, "scale: rank %d did not join: %d\n", m->rank, err);
	else
		post(m, &ready);
}

static void viewed(void *ctx, const struct cvy_view *v, int active)
{
	struct member *m = ctx;
	struct scale_world *w = m->w;

	if (active && v->epoch > w->epoch) {
		w->epoch = v->epoch;
		w->newest = w->members = w->pending = 0;
		CVY_MASK_EACH(r, &v->members)
		w->members++;
		CVY_MASK_EACH(r, &v->pending)
		w->pending++;
		for (int i = 0; i < w->count; i++)
			w->member[i]->counted = 0;
		w->total.views++;
	}
	w->newest -= m->counted;
	m->counted = active && v->epoch == w->epoch;
	w->newest += m->counted;
}

static void spawn(struct scale_world *w, int rank, int create)
{
	struct cvy_group_args args = {
		.rank = rank, .world = w->world, .max_ranks = w->max_ranks, .create = create, .join_ms = 3600000
	};
	struct cvy_observer observer = { .joined = joined, .view = viewed };
	struct cvy_event join = { .kind = CVY_EV_API, .api = CVY_API_JOIN, .rank = -1 },
			 up = { .kind = CVY_EV_STORE_UP };
	struct member *m = must(calloc(1, sizeof(*m)));
	char addr[32], host[32];

	if (w->count == w->room) {
		w->room = w->room ? 2 * w->room : 64;
		w->member = must(realloc(w->member, (size_t)w->room * sizeof(struct member *)));
	}
	m->w = w;
	m->id = w->count;
	m->alive = 1;
	m->rank = -1;
	w->member[w->count++] = m;
	w->alive++;
	m->expects = must(calloc((size_t)w->max_ranks, sizeof(uint64_t)));
	m->linked = must(calloc((size_t)w->max_ranks, sizeof(uint64_t)));
	m->knocks = must(calloc((size_t)w->max_ranks, sizeof(uint64_t)));
	snprintf(addr, sizeof(addr), "10.0.%d.%d:%d", rank / HOST_RANKS / 250, rank / HOST_RANKS % 250, 7000 + m->id);
	snprintf(host, sizeof(host), "host%d", rank / HOST_RANKS);
	args.addr = addr;
	args.host = host;
	args.nonce = args.seed = (uint64_t)m->id + 1;
	m->seam = seam;
	m->seam.ctx = m->seam.links = m->seam.engine = observer.ctx = m;
	if (cvy_driver_init(&m->driver, &args, &m->seam, &observer, w->box, w->now))
		abort();
	m->endpoint.store.ops = &scale_store_ops;
	m->endpoint.m = m;
	m->driver.store = &m->endpoint.store;
	post(m, &up);
	post(m, &join);
}

/* ---- What happens ---- */

static void link_event(struct member *m, int kind, int rank, uint64_t inc)
{
	struct cvy_event e = { .kind = kind, .rank = rank, .inc = inc, .text = "cut" };

	post(m, &e);
}

static void dialled(struct scale_world *w, struct member *m, const struct event *e)
{
	struct member *q = member_of(w, e->inc);

	if (!q || !q->alive)
		scale_at(w, w->now + us(LATENCY_US),
			 (struct event){ .kind = DOWN, .member = m->id, .other = e->other, .inc = e->inc });
	else if (q->expects[m->rank] == m->inc)
		connected(m, q);
	else
		q->knocks[m->rank] = m->inc;
}

static void handle(struct scale_world *w, struct event *e)
{
	struct member *m = w->member[e->member];
	struct cvy_event ev = { .rank = -1 };

	switch (e->kind) {
	case TICK:
		if (m->timer_ns != e->at)
			break;
		m->timer_ns = 0;
		ev.kind = CVY_EV_TICK;
		post(m, &ev);
		break;
	case CALL:
		scale_arrived(w, e->data);
		break;
	case STORE_FREE:
		scale_store_free(w);
		break;
	case REPLY: {
		struct reply *r = e->data;

		ev = (struct cvy_event){ .kind = CVY_EV_REPLY, .rank = -1, .id = r->id, .err = r->err };
		ev.argc = r->err ? 0 : r->got.argc;
		ev.argv = (const char *const *)r->got.argv;
		post(m, &ev);
		memory_reply_clear(&r->got);
		free(r);
		break;
	}
	case NOTICE: {
		struct notice *n = e->data;

		ev.kind = CVY_EV_NOTICE;
		ev.text = n->text;
		post(m, &ev);
		if (!--n->hearers)
			notice_free(n);
		break;
	}
	case DIAL:
		dialled(w, m, e);
		break;
	case UP:
		m->linked[e->other] = e->inc;
		link_event(m, CVY_EV_LINK_UP, e->other, e->inc);
		break;
	case DOWN:
		m->linked[e->other] = 0;
		link_event(m, CVY_EV_LINK_DOWN, e->other, e->inc);
		break;
	case PROOF:
		ev = (struct cvy_event){
			.kind = CVY_EV_SUSPECT, .rank = e->other, .inc = e->inc, .source = CVY_SOURCE_ROBUST
		};
		post(m, &ev);
		break;
	default:
		break;
	}
}

static int settled(const struct scale_world *w)
{
	return w->newest == w->alive && w->members == w->alive && !w->pending;
}

static void count_most(struct scale_world *w)
{
	w->total.most_calls = w->total.most_bytes = 0;
	for (int i = 0; i < w->count; i++) {
		struct member *m = w->member[i];

		if (m->calls > w->total.most_calls)
			w->total.most_calls = m->calls;
		if (m->bytes > w->total.most_bytes)
			w->total.most_bytes = m->bytes;
		m->calls = m->bytes = 0;
	}
}

static void run_until(struct scale_world *w, uint64_t end, int (*enough)(const struct scale_world *w))
{
	while (w->events && w->heap[0].at < end && !(enough && enough(w))) {
		struct event e = next(w);

		w->now = e.at;
		w->handled++;
		handle(w, &e);
	}
}

void scale_quick(struct scale_world *w, int quick)
{
	w->quick = quick;
}

uint64_t scale_settle(struct scale_world *w, struct scale_count *count)
{
	uint64_t began = w->now, took;

	run_until(w, w->now + END_NS, settled);
	took = settled(w) ? w->now - began : 0;
	count_most(w);
	*count = w->total;
	run_until(w, w->now + 1500 * CVY_MS, NULL); /* late calls belong to no step */
	count_most(w);
	memset(&w->total, 0, sizeof(w->total));
	return took;
}

void scale_kill(struct scale_world *w, int rank)
{
	struct member *m = NULL;

	for (int i = 0; i < w->count; i++)
		if (w->member[i]->alive && w->member[i]->rank == rank)
			m = w->member[i];
	if (!m)
		return;
	m->alive = 0;
	w->alive--;
	w->newest -= m->counted;
	m->counted = 0;
	for (int i = 0; i < w->count; i++) {
		struct member *q = w->member[i];

		if (!q->alive || q->linked[rank] != m->inc)
			continue; /* a process that dies while somebody knocks is no case of these steps */
		if (q->rank / HOST_RANKS == rank / HOST_RANKS)
			scale_at(w, w->now + us(ROBUST_US),
				 (struct event){ .kind = PROOF, .member = i, .other = rank, .inc = m->inc });
		scale_at(w, w->now + us(BROKEN_US),
			 (struct event){ .kind = DOWN, .member = i, .other = rank, .inc = m->inc });
	}
	w->members = 0; /* the view that was active is not what is waited for */
}

void scale_join(struct scale_world *w, int rank)
{
	spawn(w, rank, COVEY_CREATE_NEVER);
	w->members = 0;
}

struct scale_world *scale_open(int ranks, int max_ranks)
{
	struct scale_world *w = must(calloc(1, sizeof(*w)));

	w->now = CVY_MS;
	w->world = ranks;
	w->max_ranks = max_ranks;
	w->box = must(cvy_errbox_new());
	w->server = memory_server_new("run", "run");
	memory_server_on_publish(w->server, scale_published, w);
	for (int i = 0; i < ranks; i++)
		spawn(w, i, COVEY_CREATE_FIRST);
	return w;
}

void scale_close(struct scale_world *w)
{
	w->alive = 0;
	for (int i = 0; i < w->count; i++)
		w->member[i]->alive = 0; /* what is under way is taken by nobody */
	while (w->events) {
		struct event e = next(w);

		if (e.kind == CALL || e.kind == REPLY || e.kind == NOTICE)
			handle(w, &e);
	}
	scale_store_close(w);
	for (int i = 0; i < w->count; i++) {
		cvy_driver_clear(&w->member[i]->driver);
		free(w->member[i]->expects);
		free(w->member[i]->linked);
		free(w->member[i]->knocks);
		free(w->member[i]);
	}
	free(w->member);
	free(w->by_inc);
	free(w->heap);
	memory_server_free(w->server);
	cvy_errbox_free(w->box);
	free(w);
}

uint64_t scale_events(const struct scale_world *w)
{
	return w->handled;
}
