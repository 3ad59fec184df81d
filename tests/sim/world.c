/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated world: a heap of events in virtual time, processes and their links, a store that
 * restarts and forgets, and faults drawn from the seed. Invariants are looked at as the world moves.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

#define US 1000ull
#define FAULTS_END (1200 * CVY_MS)
#define SETTLE_MS 20000 /* after the last fault everybody is in one active view by then */
#define EVENTS_MAX 3000000

enum {
	TIMER = 1,
	STEP,
	DELIVER,
	DIAL,
	LINKED,
	DOWN,
	MESSAGE,
	NOTICE,
	POSTED,
	PING,
	FAULT,
	RESUME,
	SPAWN,
	PROOF,
	UP,
	LOSE,
	EXIT,
	REAP
};

struct sim_event {
	struct sim_event *next; /* of those held for a stopped process */
	uint64_t at, serial, inc, number;
	int kind, proc, other, rank;
	struct memory_delivery *delivery;
	struct cvy_msg msg;
	struct cvy_event event;
	char text[40];
};

uint64_t sim_random(struct sim *s, uint64_t below)
{
	uint64_t z = s->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

uint64_t sim_hash(uint64_t a, uint64_t b)
{
	uint64_t z = (a ^ 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull + b * 0x94d049bb133111ebull;

	z = (z ^ (z >> 29)) * 0xd6e8feb86659fd93ull;
	return z ^ (z >> 32);
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

uint64_t sim_lag(struct sim *s, uint64_t us)
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

	for (int r = 0; r < SIM_RANKS && p->rank >= 0; r++) /* another identity: all begins anew */
		cvy_mesh_fence(&p->mesh, r);
	p->rank = id->rank;
	p->inc = id->inc;
	cvy_engine_identity(p->engine, id->rank, id->max_ranks);
	sim_trace(p->sim, "process %d is rank %d inc %" PRIu64, p->id, p->rank, p->inc);
}

static void expect(void *ctx, int rank, uint64_t inc)
{
	struct proc *p = ctx;

	p->expects[rank] = inc;
}

static void dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct proc *p = ctx;
	struct sim_event *e = at(p->sim, sim_lag(p->sim, 500), DIAL, p->id);

	(void)host;
	e->rank = rank;
	e->inc = inc;
	e->other = atoi(addr + 1);
}

void sim_cut(struct proc *p, struct proc *q, int tell_p)
{
	struct sim *s = p->sim;
	uint64_t id = s->link[p->id][q->id];

	if (!id)
		return;
	s->link[p->id][q->id] = s->link[q->id][p->id] = 0;
	s->cut_ns[p->id][q->id] = s->cut_ns[q->id][p->id] = s->now;
	for (int i = !tell_p; i < 2; i++) {
		struct sim_event *e = at(s, sim_lag(s, 3000), DOWN, i ? q->id : p->id);

		e->other = i ? p->id : q->id;
		e->number = id;
	}
}

static void drop(void *ctx, int rank, uint64_t inc)
{
	sim_mesh_drop(ctx, rank, inc);
}

/* Messages keep their order on a link. */
static int send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	struct proc *p = ctx, *q = sim_proc_of(p->sim, inc);
	struct sim *s = p->sim;
	struct sim_event *e;
	uint64_t when;
	void *copy;

	if (!q || q->rank != rank || !p->mesh.link[rank] || p->mesh.link[rank]->link.inc != inc ||
	    s->link[p->id][q->id] != p->mesh.link[rank]->id)
		return COVEY_ERR_PEER;
	copy = malloc(bytes + 1);
	if (!copy)
		abort();
	if (bytes)
		memcpy(copy, body, bytes);
	when = s->now + sim_lag(s, 300);
	if (when <= s->order[p->id][q->id])
		when = s->order[p->id][q->id] + 1;
	s->order[p->id][q->id] = when;
	e = at(s, when - s->now, MESSAGE, q->id);
	e->other = p->id;
	e->number = s->link[p->id][q->id];
	e->msg = (struct cvy_msg){ type, p->rank, p->inc, epoch, bytes, copy };
	return 0;
}

static struct cvy_page *page(void *ctx, int rank)
{
	return cvy_mesh_page(&((struct proc *)ctx)->mesh, rank);
}

/* ---- The engine behind the seam ---- */

static void freeze(void *ctx, uint32_t epoch)
{
	cvy_engine_freeze(((struct proc *)ctx)->engine, epoch);
}

static void learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		  const struct covey_mask *lag)
{
	struct proc *p = ctx;

	if (!p->engine->gate)
		sim_fail(p->sim, "I3: process %d learns view %u without standing still", p->id, view->epoch);
	if (view->epoch <= p->fenced)
		sim_fail(p->sim, "I1: process %d goes from view %u to %u", p->id, p->fenced, view->epoch);
	if (view->member[p->rank].from != CVY_PENDING && p->engine->done >= view->base)
		sim_fail(p->sim, "I6: process %d is done with %" PRIu64 ", base is %" PRIu64, p->id, p->engine->done,
			 view->base);
	if (view->member[p->rank].from == CVY_PENDING && p->app.decided)
		sim_fail(p->sim, "I12: process %d has completed operations and is pending again", p->id);
	cvy_engine_learn(p->engine, view, removed, lag);
	p->fenced = view->epoch;
}

static void repair(void *ctx, const struct covey_mask *holders)
{
	struct proc *p = ctx;
	const struct cvy_view *v = cvy_group_view(p->driver.group);

	CVY_MASK_EACH(r, holders)
	if (covey_mask_has(&v->pending, r))
		sim_fail(p->sim, "I12: process %d is told to ask the pending rank %d", p->id, r);
	cvy_engine_repair(p->engine, holders);
}

static void thaw(void *ctx)
{
	struct proc *p = ctx;
	const struct cvy_view *v = cvy_group_view(p->driver.group);

	if (!covey_mask_has(&v->pending, p->rank) && p->engine->done + 1 != v->base)
		sim_fail(p->sim, "I6: process %d begins view %u with done %" PRIu64 ", base %" PRIu64, p->id, v->epoch,
			 p->engine->done, v->base);
	if (p->fenced != v->epoch)
		sim_fail(p->sim, "I9: process %d begins view %u before it has fenced", p->id, v->epoch);
	cvy_engine_thaw(p->engine);
}

static void message(void *ctx, const struct cvy_msg *msg)
{
	cvy_engine_message(((struct proc *)ctx)->engine, msg);
}

static void stop(void *ctx, int err)
{
	cvy_engine_stop(((struct proc *)ctx)->engine, err);
}

static uint64_t progress(void *ctx, uint64_t *floor_tick, int *waiting)
{
	return cvy_engine_progress(((struct proc *)ctx)->engine, floor_tick, waiting);
}

static void peer_progress(void *ctx, int rank, uint64_t done, uint64_t floor_tick)
{
	cvy_engine_peer_progress(((struct proc *)ctx)->engine, rank, done, floor_tick);
}

/* What the engine posts while it steps comes later, as from another thread. */
static void engine_post(void *ctx, const struct cvy_event *event)
{
	struct proc *p = ctx;

	if (p->driver.draining)
		cvy_driver_post(&p->driver, event, p->sim->now);
	else
		at(p->sim, sim_lag(p->sim, 100), POSTED, p->id)->event = *event;
}

static const struct cvy_seam seam = { .identity = identity,
				      .expect = expect,
				      .dial = dial,
				      .drop = drop,
				      .send = send,
				      .page = page,
				      .freeze = freeze,
				      .learn = learn,
				      .repair = repair,
				      .thaw = thaw,
				      .message = message,
				      .stop = stop,
				      .progress = progress,
				      .peer_progress = peer_progress };

static void engine_open(struct proc *p)
{
	sim_mesh_open(p);
	p->mesh.own[0] = 0;
	if (cvy_engine_open(&p->engine, &p->mesh, p->sim->box, p->sim->undo_bytes))
		abort();
	p->engine->sink = (struct cvy_sink){ engine_post, p };
	p->engine->send = send;
	p->engine->send_ctx = p;
	p->seam = seam;
	p->seam.ctx = p;
}

static void deliver(void *ctx, struct memory_delivery *d)
{
	struct proc *p = ctx;
	struct sim *s = p->sim;
	int lose = s->faults && sim_random(s, 50) == 0;
	struct sim_event *e = at(s, lose ? 200 * CVY_MS : sim_lag(s, 200), lose ? LOSE : DELIVER, p->id);

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
	if (err)
		return;
	if (!p->engine->active)
		p->engine->pending = 1; /* connected, not in a view yet: a joiner */
	app_start(p);
	if (p->engine->pending)
		cvy_driver_post(&p->driver, &ready, p->sim->now); /* as its first covey_admit does */
}

struct sim_view *sim_view_of(struct proc *p, uint32_t epoch)
{
	struct sim *s = p->sim;

	for (int i = s->views; i-- > 0;)
		if (s->view[i].epoch == epoch && !strcmp(s->view[i].gid, cvy_group_gid(p->driver.group)))
			return &s->view[i];
	return NULL;
}

/* I2, and G1: everyone who runs in an epoch runs with the same incarnations. */
static void activated(struct proc *p, const struct cvy_view *v)
{
	struct sim_view *known = sim_view_of(p, v->epoch);

	for (int i = 0; i < p->sim->procs; i++) { /* a rival of which all are dead is none */
		struct proc *q = p->sim->proc[i];

		if (q->alive && !q->driver.ended && cvy_group_active(q->driver.group) &&
		    cvy_group_view(q->driver.group)->epoch == v->epoch &&
		    cvy_group_view(q->driver.group)->vid != v->vid &&
		    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
			sim_fail(p->sim, "I2: process %d runs in another view %u than process %d", p->id, v->epoch, i);
	}
	if (known && known->vid != v->vid)
		known = NULL;
	for (int r = 0; known && r < SIM_RANKS; r++)
		if (known->inc[r] != v->member[r].inc)
			sim_fail(p->sim, "G1: process %d has another incarnation of rank %d in view %u", p->id, r,
				 v->epoch);
	if (!covey_mask_has(&v->pending, p->rank) && p->engine->done < v->member[p->rank].from)
		sim_fail(p->sim, "I16: process %d was admitted at %" PRIu64 " and has done %" PRIu64, p->id,
			 v->member[p->rank].from, p->engine->done);
	if (known || p->sim->views == SIM_VIEWS)
		return;
	known = &p->sim->view[p->sim->views++];
	snprintf(known->gid, sizeof(known->gid), "%s", cvy_group_gid(p->driver.group));
	known->epoch = v->epoch;
	known->vid = v->vid;
	known->pending = v->pending.word[0];
	for (int r = 0; r < SIM_RANKS; r++)
		known->inc[r] = v->member[r].inc;
}

static void viewed(void *ctx, const struct cvy_view *v, int active)
{
	struct proc *p = ctx;

	sim_trace(p->sim, "process %d view %u base %" PRIu64 " members %" PRIx64 " pending %" PRIx64 " active %d",
		  p->id, v->epoch, v->base, v->members.word[0], v->pending.word[0], active);
	if (active)
		activated(p, v);
}

static void over(void *ctx, int err)
{
	struct proc *p = ctx;
	struct covey_error_info info;

	cvy_errbox_get(p->sim->box, &info);
	sim_trace(p->sim, "process %d ended %d: %s", p->id, err, info.cause);
	at(p->sim, sim_lag(p->sim, 8000), EXIT, p->id);
}

static struct proc *spawn(struct sim *s, int rank, int create)
{
	struct cvy_group_args args = {
		.rank = rank, .world = s->world, .max_ranks = SIM_RANKS, .create = create, .host = "h", .join_ms = 10000
	};
	struct cvy_store_sink sink = { .reply = reply };
	struct cvy_observer observer = { .joined = joined, .view = viewed, .ended = over };
	struct cvy_event join = { .kind = CVY_EV_API, .api = CVY_API_JOIN, .rank = -1 },
			 up = { .kind = CVY_EV_STORE_UP };
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
	p->held_last = &p->held;
	engine_open(p);
	sink.ctx = observer.ctx = p;
	if (cvy_driver_init(&p->driver, &args, &p->seam, &observer, s->box, s->now))
		abort();
	memory_client_init(&p->client, s->server, "sim", &sink, deliver, p);
	p->driver.store = &p->client.store;
	post(p, &up);
	post(p, &join);
	at(s, sim_lag(s, 1000), STEP, p->id);
	if (s->tcp)
		at(s, sim_lag(s, 50000), PING, p->id);
	return p;
}

static void kill_proc(struct proc *p)
{
	struct sim *s = p->sim;

	sim_trace(s, "kill process %d rank %d", p->id, p->rank);
	p->alive = 0;
	for (int i = 0; i < s->procs; i++) {
		sim_cut(p, s->proc[i], 0);
		if (s->proc[i]->alive)
			at(s, sim_lag(s, 8000), PROOF, i)->other = p->id;
	}
}

/* The launcher's word: these processes are reaped. Without it a group of which too many died may not decide. */
static void reap(struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];
		struct memory_reply r = { 0 };
		char rank[16], inc[24];
		const char *argv[] = { "prove", "-", "-",    "-", "-", "-", "00112233445566778899aabbccddeeff",
				       rank,	inc, "pidfd" };

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
		at(s, (10 + sim_random(s, 200)) * CVY_MS, FAULT, 0);
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
			sim_cut(p, q, 1);
		break;
	}
	}
}

/* ---- Invariants ---- */

/* Who counts: alive, not ended, and in the store's present view. */
int sim_survivor(struct proc *p)
{
	char field[16];
	const char *m;

	if (!p->alive || p->driver.ended || p->rank < 0)
		return 0;
	snprintf(field, sizeof(field), "m:%d", p->rank);
	m = memory_server_field(p->sim->server, "sim", field);
	return m && strtoull(m, NULL, 10) == p->inc;
}

static int running(struct proc *p)
{
	return p->alive && !p->driver.ended && !p->engine->gate;
}

static void check_pair(struct proc *p, struct proc *q)
{
	const struct cvy_engine *a = p->engine, *b = q->engine;
	uint32_t apart = a->complete > b->complete ? a->complete - b->complete : b->complete - a->complete;

	if (a->epoch == b->epoch && !a->pending && !b->pending && apart > CVY_SLOTS &&
	    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
		sim_fail(p->sim, "I4: processes %d and %d are %u ticks apart", p->id, q->id, apart);
}

/* After a process did something. */
static void check(struct proc *p)
{
	const struct cvy_engine *n = p->engine;

	if (!running(p))
		return;
	if (!cvy_group_active(p->driver.group))
		sim_fail(p->sim, "I3: process %d works in phase %d", p->id, cvy_group_phase(p->driver.group));
	if (n->ent < n->done || n->ent > n->done + 1)
		sim_fail(p->sim, "I4: process %d has done %" PRIu64 " and entered %" PRIu64, p->id, n->done, n->ent);
	for (int i = 0; i < p->sim->procs; i++)
		if (running(p->sim->proc[i]))
			check_pair(p, p->sim->proc[i]);
}

/* ---- The loop ---- */

static void link_event(struct proc *p, int kind, int rank, uint64_t inc)
{
	struct cvy_event e = { .kind = kind, .rank = rank, .inc = inc, .text = "cut" };

	post(p, &e);
}

/* Both ends learn of the link on their own; control messages come after that. */
static void dialled(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = e->other < s->procs ? s->proc[e->other] : NULL;
	uint64_t id;

	if (!p->alive)
		return;
	if (!q || !q->alive || q->inc != e->inc || p->rank < 0 || q->expects[p->rank] != p->inc ||
	    s->link[p->id][q->id]) {
		link_event(p, CVY_EV_LINK_DOWN, e->rank, e->inc);
		return;
	}
	q->expects[p->rank] = 0;
	id = s->link[p->id][q->id] = s->link[q->id][p->id] = ++s->links;
	for (int i = 0; i < 2; i++) {
		struct proc *me = i ? q : p, *other = i ? p : q;
		struct sim_event *up = at(s, sim_lag(s, 300), LINKED, me->id);

		up->other = other->id;
		up->rank = other->rank;
		up->inc = other->inc;
		up->number = id;
		s->order[other->id][me->id] = up->at;
	}
}

static void linked(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = s->proc[e->other];
	int stands = p->alive && s->link[p->id][q->id] == e->number;

	if (stands)
		sim_mesh_up(p, q, e->rank, e->inc, e->number);
	link_event(p, stands ? CVY_EV_LINK_UP : CVY_EV_LINK_DOWN, e->rank, e->inc);
}

/* Signs of life over tcp; on one host the pages tell the same. */
static void ping(struct sim *s, struct proc *p)
{
	const struct cvy_view *v = cvy_group_view(p->driver.group);
	uint64_t body[2];
	int waiting;

	if (!p->alive || p->driver.ended)
		return;
	at(s, 50 * CVY_MS, PING, p->id);
	if (!v)
		return;
	body[0] = cvy_engine_progress(p->engine, &body[1], &waiting);
	CVY_MASK_EACH(r, &v->members)
	if (r != p->rank)
		send(p, r, v->member[r].inc, CVY_MSG_PING, v->epoch, body, sizeof(body));
}

/* One step of the engine at a time, mostly: a kill can fall between any two. */
static void step(struct sim *s, struct proc *p)
{
	int steps = 1 + (int)sim_random(s, 3), moved = 1;

	if (!p->alive)
		return;
	app_step(p);
	pthread_mutex_lock(&p->engine->lock);
	while (steps-- && moved) {
		moved = cvy_engine_step(p->engine);
		if (!moved)
			cvy_engine_unsent(p->engine);
	}
	pthread_mutex_unlock(&p->engine->lock);
	app_step(p);
	if (!p->driver.ended)
		at(s, sim_lag(s, moved ? 60 : 1200), STEP, p->id);
}

static void suspect(struct sim *s, struct proc *p, int other)
{
	int proof = other >= 0;
	struct proc *q = s->proc[proof ? other : -1 - other];
	struct cvy_event e = { .kind = CVY_EV_SUSPECT,
			       .rank = q->rank,
			       .inc = q->inc,
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
			snprintf(at(s, sim_lag(s, 200), NOTICE, i)->text, 40, "%s", message);
}

static void handle(struct sim *s, struct sim_event *e);

static void event_free(struct sim_event *e)
{
	if (e->delivery)
		memory_delivery_drop(e->delivery, COVEY_ERR_STORE);
	free((void *)(uintptr_t)e->msg.body);
	free(e);
}

/* What arrives at a stopped process waits for it, in order. */
static int hold(struct proc *p, struct sim_event *e)
{
	if (!p->paused || e->kind == FAULT || e->kind == RESUME || e->kind == SPAWN || e->kind == EXIT ||
	    e->kind == REAP)
		return 0;
	e->next = NULL;
	*p->held_last = e;
	p->held_last = &e->next;
	return 1;
}

static void resume(struct sim *s, struct proc *p)
{
	struct sim_event *e = p->held;
	struct cvy_event tick = { .kind = CVY_EV_TICK, .rank = -1 };

	p->paused = 0;
	p->timer_ns = 0;
	p->held = NULL;
	p->held_last = &p->held;
	while (e) {
		struct sim_event *following = e->next;

		handle(s, e);
		event_free(e);
		e = following;
	}
	post(p, &tick);
}

static void handle(struct sim *s, struct sim_event *e)
{
	struct proc *p = s->proc[e->proc];
	struct cvy_event ev = { .rank = -1 };

	switch (e->kind) {
	case TIMER:
		if (p->timer_ns != e->at)
			break;
		p->timer_ns = 0;
		ev.kind = CVY_EV_TICK;
		post(p, &ev);
		break;
	case STEP:
		step(s, p);
		break;
	case POSTED:
		post(p, &e->event);
		break;
	case PING:
		ping(s, p);
		break;
	case DELIVER:
		memory_delivery_run(e->delivery);
		e->delivery = NULL;
		break;
	case LOSE:
		memory_delivery_drop(e->delivery, COVEY_ERR_TIMEOUT);
		e->delivery = NULL;
		break;
	case DIAL:
		dialled(s, p, e);
		break;
	case LINKED:
		linked(s, p, e);
		break;
	case DOWN:
		if (sim_mesh_down(p, e->number, &e->rank, &e->inc))
			link_event(p, CVY_EV_LINK_DOWN, e->rank, e->inc);
		break;
	case MESSAGE:
		ev.kind = CVY_EV_MSG;
		ev.msg = e->msg;
		if (s->link[p->id][e->other] == e->number)
			post(p, &ev);
		free((void *)(uintptr_t)e->msg.body);
		e->msg.body = NULL;
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
		resume(s, p);
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

/*
 * A joiner that no view has listed yet and whose rank is held now waits until it is free: the store says
 * BUSY, and its covey_admit ends after join_ms.
 */
static int waits_for_rank(struct proc *p)
{
	char field[16];

	snprintf(field, sizeof(field), "m:%d", p->want_rank);
	return p->want_rank >= 0 && p->joined && cvy_group_rank(p->driver.group) < 0 &&
	       memory_server_field(p->sim->server, "sim", field);
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

		if (!p->alive || p->driver.ended || waits_for_rank(p))
			continue;
		if (p->paused || !cvy_group_active(p->driver.group))
			return 0;
		if (n++ && cvy_group_view(p->driver.group)->epoch != epoch)
			return 0;
		epoch = cvy_group_view(p->driver.group)->epoch;
		if (p->app.decided < *low)
			*low = p->app.decided;
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
	s->tcp = (int)sim_random(s, 2);
	s->slot_bytes = sim_random(s, 4) ? 256 : 16384;
	s->undo_bytes = sim_random(s, 4) ? 1u << 20 : 0;
	memory_server_on_publish(s->server, published, s);
	memory_server_time(s->server, 1000);
	for (int i = 0; i < s->world; i++)
		spawn(s, i, COVEY_CREATE_FIRST);
	at(s, 300 * CVY_MS, FAULT, 0);
	at(s, FAULTS_END + 900 * CVY_MS, REAP, 0);
}

static void close_world(struct sim *s)
{
	while (s->count)
		event_free(next(s));
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		while (p->held) {
			struct sim_event *e = p->held;

			p->held = e->next;
			event_free(e);
		}
		cvy_driver_clear(&p->driver);
		app_end(p);
		cvy_engine_close(p->engine);
		sim_mesh_close(p);
		free(p);
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
					      cvy_group_view(s->proc[i]->driver.group)
						      ? cvy_group_view(s->proc[i]->driver.group)->epoch
						      : 0,
					      s->proc[i]->engine->done);
	for (int i = 0; i < s->procs; i++) {
		const struct cvy_engine *e = s->proc[i]->engine;

		if (s->proc[i]->alive && !s->proc[i]->driver.ended)
			sim_trace(s,
				  "process %d: epoch %u gate %u pending %d tick %u complete %u floor %u admit %" PRIu64
				  "/%u; %s %" PRIu64 " state %d entered %" PRIu64 " completed %" PRIu64,
				  i, e->epoch, e->gate, e->pending, e->tick, e->complete, e->floor, e->admit_seq,
				  e->admit_epoch, e->head ? e->head->kind->name : "-", e->head ? e->head->seq : 0,
				  e->head ? e->head->state : 0, e->head ? e->head->entered : 0,
				  e->head ? e->head->completed : 0);
		for (int r = 0; r < SIM_RANKS && s->proc[i]->alive; r++)
			sim_trace(s, "  rank %d: expects inc %" PRIu64 ", link %d", r, s->proc[i]->expects[r],
				  s->proc[i]->mesh.link[r] ? s->proc[i]->mesh.link[r]->other : -1);
	}
	for (int r = 0; s->trace && r < SIM_RANKS; r++) {
		char joiner[16];
		const char *value;

		snprintf(joiner, sizeof(joiner), "j:%d", r);
		value = memory_server_field(s->server, "sim", joiner);
		sim_trace(s, "store: %s %s", joiner, value ? value : "-");
	}
	sim_fail(s, "I15: no one active view that makes progress:%s", text);
}

static struct sim *world;
static sigjmp_buf touched;

/* A fenced window has no memory behind its addresses: who touches it ends the run. Anything else is our own fault. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	uint8_t *at = info->si_addr;

	(void)context;
	if ((uintptr_t)at < 1 << 20) /* a window that is not there */
		siglongjmp(touched, 1);
	for (int i = 0; world && i < world->procs; i++) {
		const struct cvy_mesh *mesh = &world->proc[i]->mesh;

		if (at >= mesh->base && at < mesh->base + mesh->layout.window_bytes * SIM_RANKS)
			siglongjmp(touched, 1);
	}
	signal(sig, SIG_DFL);
}

static void run(struct sim *s)
{
	uint64_t low, goal = 0, end = FAULTS_END + (700 + SETTLE_MS) * CVY_MS;

	while (s->count && !s->failed) {
		struct sim_event *e = next(s);

		s->now = e->at;
		memory_server_time(s->server, 1000 + s->now / CVY_MS);
		if (hold(s->proc[e->proc], e))
			continue;
		handle(s, e);
		check(s->proc[e->proc]);
		event_free(e);
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
}

int sim_run(uint64_t seed, int trace, char *why, size_t bytes, uint64_t *steps)
{
	static const struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };
	int failed;

	world = calloc(1, sizeof(*world));
	if (!world)
		abort();
	sigaction(SIGSEGV, &action, NULL);
	open_world(world, seed, trace);
	if (sigsetjmp(touched, 1))
		sim_fail(world, "I8: memory of a member that was fenced is touched");
	else
		run(world);
	failed = world->failed;
	snprintf(why, bytes, "%s", world->why);
	*steps = world->steps;
	sim_trace(world, "%s", failed ? why : "held");
	world->trace = 0;
	world->failed = 1;
	for (int i = 0; i < world->procs; i++)
		world->proc[i]->alive = 0;
	if (!failed) { /* after a failure locks may be held and lists half done: the memory is left */
		close_world(world);
		free(world);
	}
	world = NULL;
	return failed;
}
