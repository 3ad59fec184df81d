/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated world: a heap of events in virtual time, links with delay, a store that restarts and
 * forgets, and faults drawn from the seed. Invariants are looked at after every event.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

#define US 1000ull
#define FAULTS_END (2500 * CVY_MS)
#define SETTLE_MS 20000 /* after the last fault everybody is in one active view by then */
#define EVENTS_MAX 3000000

enum { TIMER = 1, STEP, DELIVER, DIAL, DOWN, MESSAGE, NOTICE, FAULT, RESUME, SPAWN, PROOF, UP, LOSE, EXIT, REAP };

struct sim_event {
	uint64_t at, serial, inc, number;
	int kind, proc, other, rank;
	struct memory_delivery *delivery;
	struct cvy_msg msg;
	char text[40];
};

uint64_t sim_random(struct sim *s, uint64_t below)
{
	uint64_t z = s->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

void sim_fail(struct sim *s, const char *format, ...)
{
	va_list ap;

	if (s->failed)
		return;
	s->failed = 1;
	va_start(ap, format);
	vsnprintf(s->why, sizeof(s->why), format, ap);
	va_end(ap);
}

void sim_trace(struct sim *s, const char *format, ...)
{
	va_list ap;

	if (!s->trace)
		return;
	printf("%9.3f ", (double)s->now / 1e6);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

/* ---- The heap ---- */

static int before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->serial < b->serial;
}

static struct sim_event *at(struct sim *s, uint64_t delay, int kind, int proc)
{
	struct sim_event *e = calloc(1, sizeof(*e));
	int i;

	if (s->count == s->room) {
		s->room = s->room ? 2 * s->room : 256;
		s->heap = realloc(s->heap, (size_t)s->room * sizeof(*s->heap));
	}
	if (!e || !s->heap)
		abort();
	e->at = s->now + delay;
	e->serial = ++s->serial;
	e->kind = kind;
	e->proc = proc;
	for (i = s->count++; i > 0 && before(e, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = e;
	return e;
}

static struct sim_event *next(struct sim *s)
{
	struct sim_event *top = s->heap[0], *last = s->heap[--s->count];
	int i = 0, c;

	while ((c = 2 * i + 1) < s->count) {
		if (c + 1 < s->count && before(s->heap[c + 1], s->heap[c]))
			c++;
		if (before(last, s->heap[c]))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	if (s->count)
		s->heap[i] = last;
	return top;
}

static uint64_t lag(struct sim *s, uint64_t us)
{
	return US * (20 + sim_random(s, us));
}

/* ---- Processes ---- */

struct proc *sim_proc_of(struct sim *s, uint64_t inc)
{
	for (int i = 0; i < s->procs && inc; i++)
		if (s->proc[i]->inc == inc)
			return s->proc[i];
	return NULL;
}

int sim_linked(const struct proc *a, const struct proc *b)
{
	return a->sim->link[a->id][b->id];
}

static void arm(struct proc *p)
{
	uint64_t t = cvy_driver_timer(&p->driver);

	if (!p->alive || p->paused || t == CVY_NEVER || t == p->timer_ns)
		return;
	p->timer_ns = t;
	at(p->sim, t > p->sim->now ? t - p->sim->now : 0, TIMER, p->id);
}

static void post(struct proc *p, const struct cvy_event *e)
{
	if (p->alive && !p->paused && !p->driver.ended)
		cvy_driver_post(&p->driver, e, p->sim->now);
	arm(p);
}

static void identity(void *ctx, const struct cvy_identity *id)
{
	struct proc *p = ctx;

	p->rank = id->rank;
	p->inc = id->inc;
	sim_trace(p->sim, "process %d is rank %d inc %" PRIu64, p->id, p->rank, p->inc);
}

static void expect(void *ctx, int rank, uint64_t inc)
{
	((struct proc *)ctx)->expects[rank] = inc;
}

static void dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct proc *p = ctx;
	struct sim_event *e = at(p->sim, lag(p->sim, 500), DIAL, p->id);

	(void)host;
	e->rank = rank;
	e->inc = inc;
	e->other = atoi(addr + 1);
}

static void cut(struct proc *p, struct proc *q)
{
	struct sim *s = p->sim;

	if (!s->link[p->id][q->id])
		return;
	s->link[p->id][q->id] = s->link[q->id][p->id] = 0;
	at(s, lag(s, 3000), DOWN, p->id)->other = q->id;
	at(s, lag(s, 3000), DOWN, q->id)->other = p->id;
}

static void drop(void *ctx, int rank, uint64_t inc)
{
	struct proc *p = ctx, *q = sim_proc_of(p->sim, inc);

	(void)rank;
	if (p->expects[rank] == inc)
		p->expects[rank] = 0;
	if (q)
		cut(p, q);
}

static int send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	struct proc *p = ctx, *q = sim_proc_of(p->sim, inc);
	struct sim_event *e;
	void *copy;

	(void)rank;
	if (!q || !sim_linked(p, q))
		return COVEY_ERR_IO;
	copy = malloc(bytes + 1);
	if (!copy)
		abort();
	memcpy(copy, body, bytes);
	e = at(p->sim, lag(p->sim, 300), MESSAGE, q->id);
	e->other = p->id;
	e->msg = (struct cvy_msg){ type, p->rank, p->inc, epoch, bytes, copy };
	return 0;
}

static void deliver(void *ctx, struct memory_delivery *d)
{
	struct proc *p = ctx;
	struct sim *s = p->sim;
	int lose = s->faults && sim_random(s, 50) == 0;
	struct sim_event *e = at(s, lose ? 200 * CVY_MS : lag(s, 200), lose ? LOSE : DELIVER, p->id);

	e->delivery = d;
}

static void reply(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause)
{
	struct cvy_event e = { .kind = CVY_EV_REPLY, .rank = -1, .id = id, .err = err, .argc = argc, .argv = argv };

	(void)cause;
	post(ctx, &e);
}

static void joined(void *ctx, int err)
{
	struct proc *p = ctx;
	struct cvy_event ready = { .kind = CVY_EV_API, .api = CVY_API_READY, .rank = -1 };

	p->joined = !err;
	p->join_err = err;
	sim_trace(p->sim, "process %d joined %d", p->id, err);
	if (!err)
		cvy_driver_post(&p->driver, &ready, p->sim->now);
}

static void viewed(void *ctx, const struct cvy_view *v, int active)
{
	struct proc *p = ctx;

	sim_trace(p->sim, "process %d view %u base %" PRIu64 " members %" PRIx64 " pending %" PRIx64 " active %d", p->id,
		  v->epoch, v->base, v->members.word[0], v->pending.word[0], active);
}

static void over(void *ctx, int err)
{
	struct proc *p = ctx;
	struct covey_error_info info;

	cvy_errbox_get(p->sim->box, &info);
	sim_trace(p->sim, "process %d ended %d: %s", p->id, err, info.cause);
	at(p->sim, lag(p->sim, 8000), EXIT, p->id);
}

static struct proc *spawn(struct sim *s, int rank, int create)
{
	struct cvy_group_args args = { .rank = rank, .world = s->world, .max_ranks = SIM_RANKS, .create = create,
				       .host = "h", .join_ms = 10000 };
	struct cvy_store_sink sink = { .reply = reply };
	struct cvy_observer observer = { .joined = joined, .view = viewed, .ended = over };
	struct cvy_event join = { .kind = CVY_EV_API, .api = CVY_API_JOIN, .rank = -1 }, up = { .kind = CVY_EV_STORE_UP };
	struct proc *p;
	char addr[16];

	if (s->procs == SIM_PROCS)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (!p)
		abort();
	p->sim = s;
	p->id = s->procs;
	p->alive = 1;
	p->rank = -1;
	p->want_rank = rank;
	s->proc[s->procs++] = p;
	snprintf(addr, sizeof(addr), "p%d", p->id);
	args.addr = addr;
	args.nonce = s->seed * 1000 + (uint64_t)p->id + 1;
	args.seed = sim_random(s, UINT64_MAX);
	p->seam = (struct cvy_seam){ .ctx = p, .identity = identity, .expect = expect, .dial = dial, .drop = drop,
				     .send = send };
	engine_open(p);
	sink.ctx = observer.ctx = p;
	if (cvy_driver_init(&p->driver, &args, &p->seam, &observer, s->box, s->now))
		abort();
	memory_client_init(&p->client, s->server, "sim", &sink, deliver, p);
	p->driver.store = &p->client.store;
	post(p, &up);
	post(p, &join);
	at(s, lag(s, 1000), STEP, p->id);
	return p;
}

static void kill_proc(struct proc *p)
{
	struct sim *s = p->sim;

	sim_trace(s, "kill process %d rank %d", p->id, p->rank);
	p->alive = 0;
	s->dead_ns[p->id] = s->now;
	for (int i = 0; i < s->procs; i++) {
		if (s->link[p->id][i])
			cut(p, s->proc[i]);
		if (s->proc[i]->alive)
			at(s, lag(s, 8000), PROOF, i)->other = p->id;
	}
}

/* The launcher's word: these processes are reaped. Without it a group of which too many died may not decide. */
static void reap(struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];
		struct memory_reply r = { 0 };
		char rank[16], inc[24];
		const char *argv[] = { "prove", "-", "-", "-", "-", "-", "00112233445566778899aabbccddeeff", rank, inc, "pidfd" };

		if (p->alive || p->rank < 0)
			continue;
		snprintf(rank, sizeof(rank), "%d", p->rank);
		snprintf(inc, sizeof(inc), "%" PRIu64, p->inc);
		memory_server_call(s->server, "sim", 10, argv, &r);
		memory_reply_clear(&r);
	}
}

/* ---- Faults ---- */

static struct proc *victim(struct sim *s)
{
	struct proc *list[SIM_PROCS];
	int n = 0;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->driver.ended && s->proc[i]->joined)
			list[n++] = s->proc[i];
	return n > 1 ? list[sim_random(s, (uint64_t)n)] : NULL;
}

static void ask(struct sim *s, struct proc *p, int api)
{
	struct proc *other = victim(s);
	struct cvy_event e = { .kind = CVY_EV_API, .api = api, .id = 1 + sim_random(s, 1000) };

	if (!other || other->rank < 0)
		return;
	e.rank = api == CVY_API_LEAVE ? -1 : other->rank;
	sim_trace(s, "process %d asks %d of rank %d", p->id, api, e.rank);
	post(p, &e);
}

static void restart_store(struct sim *s)
{
	char run[32];
	uint64_t what = sim_random(s, 3);

	snprintf(run, sizeof(run), "run%d", ++s->restarts);
	memory_server_names(s->server, run, run);
	sim_trace(s, "store restarts, keeps %s", what == 0 ? "all" : what == 1 ? "some" : "nothing");
	if (what == 1 && s->copy)
		memory_server_load(s->server, s->copy);
	else if (what == 2)
		memory_server_flush(s->server);
}

static void pause_proc(struct sim *s, struct proc *p)
{
	sim_trace(s, "pause process %d", p->id);
	p->paused = 1;
	at(s, (50 + sim_random(s, 500)) * CVY_MS, RESUME, p->id);
	for (int i = 0; i < s->procs; i++)
		if (s->link[p->id][i])
			at(s, 100 * CVY_MS, PROOF, i)->other = -1 - p->id; /* a suspicion, no proof */
}

static void fault(struct sim *s)
{
	struct proc *p = victim(s);

	if (s->now < FAULTS_END)
		at(s, (20 + sim_random(s, 400)) * CVY_MS, FAULT, 0);
	if (!p)
		return;
	switch (sim_random(s, 11)) {
	case 0:
	case 1:
		kill_proc(p);
		at(s, sim_random(s, 100) * CVY_MS, SPAWN, 0)->rank = p->rank;
		break;
	case 2:
		kill_proc(p);
		break;
	case 3:
		if (!p->paused)
			pause_proc(s, p);
		break;
	case 4:
		restart_store(s);
		break;
	case 5:
		memory_copy_free(s->copy);
		s->copy = memory_server_save(s->server);
		break;
	case 6:
		at(s, 0, SPAWN, 0)->rank = -1;
		break;
	case 7:
		ask(s, p, CVY_API_EVICT);
		break;
	case 8:
		ask(s, p, sim_random(s, 2) ? CVY_API_LEAVE : CVY_API_RETIRE);
		break;
	case 9: {
		struct cvy_event down = { .kind = CVY_EV_STORE_DOWN, .err = COVEY_ERR_STORE };

		p->client.deaf = 1;
		post(p, &down);
		at(s, sim_random(s, 600) * CVY_MS, UP, p->id);
		break;
	}
	default: {
		struct proc *q = victim(s);

		if (q && q != p)
			cut(p, q);
		break;
	}
	}
}

/* ---- Invariants ---- */

/* Who counts: alive, not ended, and in the store's present view. */
static int survivor(struct proc *p)
{
	char field[16];
	const char *m;

	if (!p->alive || p->driver.ended || p->rank < 0)
		return 0;
	snprintf(field, sizeof(field), "m:%d", p->rank);
	m = memory_server_field(p->sim->server, "sim", field);
	return m && strtoull(m, NULL, 10) == p->inc;
}

static void compare(struct proc *p, struct proc *q, uint64_t seq)
{
	const struct outcome *a = &p->engine.outcome[seq], *b = &q->engine.outcome[seq];

	if (!b->have || strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0)
		return;
	if (a->status != b->status || a->epoch != b->epoch || a->mask != b->mask)
		sim_fail(p->sim, "I5: operation %" PRIu64 ": process %d has %d/%u/%" PRIx64 ", %d has %d/%u/%" PRIx64, seq,
			 p->id, a->status, a->epoch, a->mask, q->id, b->status, b->epoch, b->mask);
}

void sim_check_outcome(struct proc *p, uint64_t seq)
{
	if (!survivor(p))
		return;
	for (int i = 0; i < p->sim->procs; i++)
		if (p->sim->proc[i] != p && survivor(p->sim->proc[i]))
			compare(p, p->sim->proc[i], seq);
}

static void check(struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		if (!p->alive || p->driver.ended || !cvy_group_active(p->driver.group))
			continue;
		for (int k = 0; k < i; k++) {
			struct proc *q = s->proc[k];
			const struct cvy_view *a = cvy_group_view(p->driver.group), *b = cvy_group_view(q->driver.group);

			if (!q->alive || q->driver.ended || !cvy_group_active(q->driver.group) ||
			    strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0)
				continue;
			if (a->epoch == b->epoch && a->vid != b->vid)
				sim_fail(s, "I2: processes %d and %d hold two views %u", i, k, a->epoch);
		}
	}
}

/* ---- The loop ---- */

static void link_event(struct proc *p, int kind, const struct proc *other)
{
	struct cvy_event e = { .kind = kind, .rank = other->rank, .inc = other->inc };

	post(p, &e);
}

static void dialled(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = e->other < s->procs ? s->proc[e->other] : NULL;
	struct cvy_event failed = { .kind = CVY_EV_LINK_DOWN, .rank = e->rank, .inc = e->inc, .text = "refused" };

	if (q && q->alive && q->inc == e->inc && p->rank >= 0 && q->expects[p->rank] == p->inc && p->alive) {
		s->link[p->id][q->id] = s->link[q->id][p->id] = 1;
		link_event(p, CVY_EV_LINK_UP, q);
		link_event(q, CVY_EV_LINK_UP, p);
	} else {
		post(p, &failed);
	}
}

static void suspect(struct sim *s, struct proc *p, int other)
{
	int proof = other >= 0;
	struct proc *q = s->proc[proof ? other : -1 - other];
	struct cvy_event e = { .kind = CVY_EV_SUSPECT, .rank = q->rank, .inc = q->inc,
			       .source = proof ? CVY_SOURCE_ROBUST : CVY_SOURCE_HEARTBEAT };

	if (q->rank >= 0 && (proof || q->paused))
		post(p, &e);
}

static void published(void *ctx, const char *channel, const char *message)
{
	struct sim *s = ctx;

	(void)channel;
	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->client.deaf && (!s->faults || sim_random(s, 10)))
			snprintf(at(s, lag(s, 200), NOTICE, i)->text, 40, "%s", message);
}

static void handle(struct sim *s, struct sim_event *e)
{
	struct proc *p = s->proc[e->proc];
	struct cvy_event ev = { .rank = -1 };

	/* What arrives at a stopped process waits for it. */
	if (p->paused && (e->kind == DOWN || e->kind == MESSAGE || e->kind == DELIVER || e->kind == LOSE || e->kind == STEP ||
			  e->kind == PROOF || e->kind == UP || e->kind == DIAL)) {
		struct sim_event *later = at(s, CVY_MS, e->kind, e->proc);
		uint64_t when = later->at, serial = later->serial;

		*later = *e;
		later->at = when;
		later->serial = serial;
		return;
	}
	switch (e->kind) {
	case TIMER:
		if (p->timer_ns != e->at)
			break;
		p->timer_ns = 0;
		ev.kind = CVY_EV_TICK;
		post(p, &ev);
		break;
	case STEP:
		if (!p->alive || p->driver.ended)
			break;
		engine_step(p);
		arm(p);
		at(s, lag(s, 2000), STEP, p->id);
		break;
	case DELIVER:
		memory_delivery_run(e->delivery);
		break;
	case LOSE:
		memory_delivery_drop(e->delivery, COVEY_ERR_TIMEOUT);
		break;
	case DIAL:
		dialled(s, p, e);
		break;
	case DOWN:
		if (!s->link[p->id][e->other])
			link_event(p, CVY_EV_LINK_DOWN, s->proc[e->other]);
		break;
	case MESSAGE:
		ev.kind = CVY_EV_MSG;
		ev.msg = e->msg;
		if (s->link[p->id][e->other])
			post(p, &ev);
		free((void *)(uintptr_t)e->msg.body);
		break;
	case NOTICE:
		ev.kind = CVY_EV_NOTICE;
		ev.text = e->text;
		post(p, &ev);
		break;
	case FAULT:
		fault(s);
		break;
	case EXIT:
		if (p->alive)
			kill_proc(p);
		break;
	case REAP:
		reap(s);
		at(s, 500 * CVY_MS, REAP, 0);
		break;
	case RESUME:
		sim_trace(s, "resume process %d", p->id);
		p->paused = 0;
		p->timer_ns = 0;
		ev.kind = CVY_EV_TICK;
		post(p, &ev);
		break;
	case SPAWN:
		spawn(s, e->rank, COVEY_CREATE_NEVER);
		break;
	case PROOF:
		suspect(s, p, e->other);
		break;
	case UP:
		p->client.deaf = 0;
		ev.kind = CVY_EV_STORE_UP;
		post(p, &ev);
		break;
	default:
		break;
	}
}

static int settled(struct sim *s, uint64_t *low)
{
	uint32_t epoch = 0;
	int n = 0, members = 0;

	*low = UINT64_MAX;
	for (int i = 0; i < s->procs; i++)
		members += s->proc[i]->alive && !s->proc[i]->driver.ended && cvy_group_view(s->proc[i]->driver.group);
	if (!members) /* joiners alone have no group to come into */
		return 1;
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		if (!p->alive || p->driver.ended)
			continue;
		if (p->paused || !cvy_group_active(p->driver.group))
			return 0;
		if (n++ && cvy_group_view(p->driver.group)->epoch != epoch)
			return 0;
		epoch = cvy_group_view(p->driver.group)->epoch;
		if (p->engine.done < *low)
			*low = p->engine.done;
	}
	return 1;
}

static void open_world(struct sim *s, uint64_t seed, int trace)
{
	memset(s, 0, sizeof(*s));
	s->seed = seed;
	s->rng = seed * 0x2545f4914f6cdd1dull;
	s->trace = trace;
	s->faults = 1;
	s->now = CVY_MS;
	s->box = cvy_errbox_new();
	s->server = memory_server_new("run0", "run0");
	s->world = 2 + (int)sim_random(s, 4);
	memory_server_on_publish(s->server, published, s);
	memory_server_time(s->server, 1000);
	for (int i = 0; i < s->world; i++)
		spawn(s, i, COVEY_CREATE_FIRST);
	at(s, 300 * CVY_MS, FAULT, 0);
	at(s, FAULTS_END + 900 * CVY_MS, REAP, 0);
}

static void close_world(struct sim *s)
{
	while (s->count) {
		struct sim_event *e = next(s);

		if (e->delivery)
			memory_delivery_drop(e->delivery, COVEY_ERR_STORE);
		free((void *)(uintptr_t)e->msg.body);
		free(e);
	}
	for (int i = 0; i < s->procs; i++) {
		cvy_driver_clear(&s->proc[i]->driver);
		engine_close(s->proc[i]);
		free(s->proc[i]);
	}
	free(s->heap);
	memory_copy_free(s->copy);
	memory_server_free(s->server);
	cvy_errbox_free(s->box);
}

static void stuck(struct sim *s)
{
	char text[200] = "";
	size_t n = 0;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->driver.ended && n + 40 < sizeof(text))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " %d:phase %d epoch %u done %" PRIu64, i,
					      cvy_group_phase(s->proc[i]->driver.group),
					      cvy_group_view(s->proc[i]->driver.group) ?
						      cvy_group_view(s->proc[i]->driver.group)->epoch : 0,
					      s->proc[i]->engine.done);
	sim_fail(s, "I15: no one active view that makes progress:%s", text);
}

int sim_run(uint64_t seed, int trace, char *why, size_t bytes, uint64_t *steps)
{
	struct sim *s = calloc(1, sizeof(*s));
	uint64_t low, goal = 0, end = FAULTS_END + (700 + SETTLE_MS) * CVY_MS;
	int failed;

	if (!s)
		abort();
	open_world(s, seed, trace);
	while (s->count && !s->failed) {
		struct sim_event *e = next(s);

		s->now = e->at;
		memory_server_time(s->server, 1000 + s->now / CVY_MS);
		handle(s, e);
		free(e);
		check(s);
		if (s->now > FAULTS_END + 700 * CVY_MS)
			s->faults = 0;
		if (!s->faults && settled(s, &low)) {
			if (!goal)
				goal = low + 20;
			if (low >= goal || low == UINT64_MAX)
				break;
		}
		if (s->now > end || ++s->steps > EVENTS_MAX)
			stuck(s);
	}
	failed = s->failed;
	snprintf(why, bytes, "%s", s->why);
	*steps = s->steps;
	sim_trace(s, "%s", failed ? s->why : "held");
	s->trace = 0;
	s->failed = 1;
	for (int i = 0; i < s->procs; i++)
		s->proc[i]->alive = 0;
	close_world(s);
	free(s);
	return failed;
}
