/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process: the real driver and engine, and the seam and observer between them. What must hold when a
 * view is learned or traffic begins is looked at where it happens.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"
#include "proc.h"
#include "world.h"

#define LONG_NS (1000 * CVY_MS) /* virtual: an operation that takes longer may be a call that others do not make */

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
	sim_at(p->sim, t > p->sim->now ? t - p->sim->now : 0, TIMER, p->id);
}

void sim_post(struct proc *p, const struct cvy_event *e)
{
	struct proc *was = sim_scarce_enter(p);

	if (p->alive && !p->paused && !p->driver.ended)
		cvy_driver_post(&p->driver, e, p->sim->now);
	sim_scarce_leave(was);
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
	for (int i = 0; i < p->sim->procs; i++) {
		struct proc *q = p->sim->proc[i];

		if (q != p && q->inc == p->inc && !strcmp(cvy_group_gid(q->driver.group), id->gid))
			sim_fail(p->sim, "I1: processes %d and %d are both incarnation %" PRIu64, p->id, i, p->inc);
	}
}

static void expect(void *ctx, int rank, uint64_t inc)
{
	struct proc *p = ctx;

	p->expects[rank] = inc;
}

static struct cvy_page *page(void *ctx, int rank)
{
	return cvy_mesh_page(&((struct proc *)ctx)->mesh, rank);
}

static void freeze(void *ctx, uint32_t epoch)
{
	cvy_engine_freeze(((struct proc *)ctx)->engine, epoch);
}

/* I7: between the report and the commit nothing of it changes. */
static void check_told(struct proc *p)
{
	if (p->fenced &&
	    (p->told.done != p->engine->done || p->told.ent != p->engine->ent || p->told.adm != p->engine->adm))
		sim_fail(p->sim,
			 "I7: process %d reported done %" PRIu64 " ent %" PRIu64 ", at the commit it has done %" PRIu64
			 " ent %" PRIu64,
			 p->id, p->told.done, p->told.ent, p->engine->done, p->engine->ent);
}

/* Whoever begins to watch the dead finds them so. */
static void find_dead(struct proc *p, const struct cvy_view *view)
{
	CVY_MASK_EACH(r, &view->members)
	{
		const struct proc *q = sim_proc_of(p->sim, view->member[r].inc);

		if (q && !q->alive)
			sim_at(p->sim, sim_lag(p->sim, 8000), PROOF, p->id)->other = q->id;
	}
}

static void learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		  const struct covey_mask *lag)
{
	struct proc *p = ctx;

	check_told(p);
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
	find_dead(p, view);
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
	if (p->sim->wrap == WRAP_TICK) /* everybody begins there: ticks of a view are numbered alike */
		p->engine->tick = p->engine->complete = p->engine->floor =
			0xc0000000u - (uint32_t)(sim_hash(p->sim->seed, v->epoch) % 40);
}

static void message(void *ctx, const struct cvy_msg *msg)
{
	struct proc *p = ctx;
	const struct cvy_view *v = cvy_group_view(p->driver.group);

	if (!v || v->member[msg->rank].inc != msg->inc)
		sim_fail(p->sim, "G4: process %d takes message %d of incarnation %" PRIu64 ", which is no member",
			 p->id, msg->type, msg->inc);
	cvy_engine_message(((struct proc *)ctx)->engine, msg);
}

static void stop(void *ctx, int err)
{
	cvy_engine_stop(((struct proc *)ctx)->engine, err);
}

static uint64_t progress(void *ctx, int *waiting)
{
	return cvy_engine_progress(((struct proc *)ctx)->engine, waiting);
}

static int retire(void *ctx)
{
	return cvy_engine_retire(((struct proc *)ctx)->engine);
}

static void peer_progress(void *ctx, int rank, uint64_t done)
{
	cvy_engine_peer_progress(((struct proc *)ctx)->engine, rank, done);
}

/* What the engine posts while it steps comes later, as from another thread. */
static void engine_post(void *ctx, const struct cvy_event *event)
{
	struct proc *p = ctx;

	if (event->kind == CVY_EV_FROZEN)
		p->told = event->report;
	if (p->driver.draining)
		cvy_driver_post(&p->driver, event, p->sim->now);
	else
		sim_at(p->sim, sim_lag(p->sim, 100), POSTED, p->id)->event = *event;
}

static const struct cvy_seam seam = { .identity = identity,
				      .expect = expect,
				      .dial = sim_dial,
				      .drop = sim_drop,
				      .send = sim_send,
				      .page = page,
				      .freeze = freeze,
				      .learn = learn,
				      .repair = repair,
				      .thaw = thaw,
				      .message = message,
				      .stop = stop,
				      .progress = progress,
				      .retire = retire,
				      .peer_progress = peer_progress };

static void engine_open(struct proc *p)
{
	sim_mesh_open(p);
	p->mesh.own[0] = 0;
	if (cvy_engine_open(&p->engine, &p->mesh, p->sim->box, p->sim->undo_bytes))
		abort();
	if (p->sim->hosts == 2 && cvy_plan_rules(p->engine, "allreduce=chain")) /* its costs want more bytes */
		abort();
	p->engine->sink = (struct cvy_sink){ engine_post, p };
	p->engine->send = sim_send;
	p->engine->send_ctx = p;
	p->engine->late_evict = p->sim->seed % 32 == 30; /* of the runs with deadlines, one in four */
	p->seam = seam;
	p->seam.ctx = p->seam.links = p->seam.engine = p;
}

static void joined(void *ctx, int err)
{
	struct proc *p = ctx;
	struct cvy_event ready = { .kind = CVY_EV_API, .api = CVY_API_READY, .rank = -1 };

	p->joined = !err;
	p->join_err = err;
	sim_trace(p->sim, "process %d joined %d", p->id, err);
	if (p->stray && !err)
		sim_fail(p->sim, "G1: process %d is a member of a group that another job has formed", p->id);
	if (err) { /* covey_join closes its handle, which the others see as a death */
		sim_at(p->sim, sim_lag(p->sim, 8000), EXIT, p->id);
		return;
	}
	if (!p->engine->active)
		p->engine->here.pending = 1; /* connected, not in a view yet: a joiner */
	sim_scarce_pause(1);
	app_start(p);
	sim_scarce_pause(0);
	p->stuck = sim_hash(p->sim->seed, (uint64_t)p->id) % 8 == 0;
	if (p->engine->here.pending)
		cvy_driver_post(&p->driver, &ready, p->sim->now); /* as its first covey_admit does */
}

static void viewed(void *ctx, const struct cvy_view *v, int active)
{
	struct proc *p = ctx;

	sim_trace(p->sim, "process %d view %u base %" PRIu64 " members %" PRIx64 " pending %" PRIx64 " active %d",
		  p->id, v->epoch, v->base, v->members.word[0], v->pending.word[0], active);
	if (active)
		sim_activated(p, v);
}

static void over(void *ctx, int err)
{
	struct proc *p = ctx;
	struct covey_error_info info;

	cvy_errbox_get(p->sim->box, &info);
	sim_trace(p->sim, "process %d ended %d: %s", p->id, err, info.cause);
	sim_at(p->sim, sim_lag(p->sim, 8000), EXIT, p->id);
}

int sim_by_tcp(const struct proc *p, const struct proc *q)
{
	return p->sim->tcp && (!p->sim->hosts || p->host != q->host);
}

/* All are on one machine: the agent's thread is there, or it is not. The address is `pID`. */
static int find_process(void *ctx, const char *host, const char *addr)
{
	const struct proc *p = ctx;
	const struct sim *s = p->sim;
	int id = atoi(addr + 1);

	(void)host;
	if (id < 0 || id >= s->procs)
		return CVY_PROC_NOT_SEEN;
	return s->proc[id]->alive ? CVY_PROC_LIVES : CVY_PROC_GONE;
}

int sim_large;

struct proc *sim_spawn(struct sim *s, int rank, int create)
{
	struct cvy_group_args args = { .rank = rank,
				       .world = s->world,
				       .max_ranks = SIM_RANKS,
				       .create = create,
				       .name = "sim",
				       .job = "sim",
				       .join_ms = 10000,
				       .pace_members = sim_large ? 2 : 0 };
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
	if (rank == SIM_STRAY) {
		p->stray = 1;
		p->want_rank = args.rank = 0;
		args.world++;
		args.job = "another";
		sim_trace(s, "process %d is of another job", p->id);
	}
	p->host = s->hosts ? (p->want_rank >= 0 ? p->want_rank : p->id) / s->hosts % 2 : 0;
	p->sees_old = s->two && sim_draw(s, SIM_STORE, 2);
	s->proc[s->procs++] = p;
	snprintf(addr, sizeof(addr), "p%d", p->id);
	args.addr = addr;
	args.host = p->host ? "g" : "h";
	args.admission = s->manual ? COVEY_ADMISSION_MANUAL : COVEY_ADMISSION_AUTO;
	args.nonce = s->seed * 1000 + (uint64_t)p->id + 1;
	args.seed = sim_hash(s->seed, 1000 + (uint64_t)p->id);
	p->held_last = &p->held;
	engine_open(p);
	observer.ctx = p;
	if (cvy_driver_init(&p->driver, &args, &p->seam, &observer, s->box, s->now))
		abort();
	p->driver.find = find_process;
	p->driver.find_ctx = p;
	sim_store_open(p);
	sim_post(p, &up);
	sim_post(p, &join);
	sim_at(s, sim_lag(s, 1000), STEP, p->id);
	if (s->tcp)
		sim_at(s, sim_lag(s, 50000), PING, p->id);
	return p;
}

void sim_kill(struct proc *p)
{
	struct sim *s = p->sim;

	sim_trace(s, "kill process %d rank %d", p->id, p->rank);
	p->alive = 0;
	for (int i = 0; i < s->procs; i++) {
		sim_cut(p, s->proc[i], 0);
		if (s->proc[i]->alive)
			sim_at(s, sim_lag(s, 8000), PROOF, i)->other = p->id;
	}
}

/* As who waits long does, in a wait of its own; the lock is held. */
static void look_for_mismatch(struct proc *p)
{
	const struct cvy_op *op = p->engine->head;

	if (!op || op->seq != p->waits_for) {
		p->waits_for = op ? op->seq : 0;
		p->waits_since = p->sim->now;
	} else if (p->sim->now - p->waits_since > LONG_NS && !p->engine->gate) {
		cvy_engine_look_for_mismatch(p->engine);
	}
}

/* One step of the engine at a time, mostly: a kill can fall between any two. */
void sim_step(struct sim *s, struct proc *p)
{
	int steps = 1 + (int)sim_draw(s, SIM_STEPS, 3), moved = 1;
	struct proc *was;

	if (!p->alive)
		return;
	p->engine->clock_ns = s->now;
	was = sim_scarce_enter(p);
	app_step(p);
	cvy_engine_admit_late(p->engine, s->now); /* as the agent does at every tick */
	if (p->stuck && p->engine->here.pending)
		moved = 0;
	pthread_mutex_lock(&p->engine->lock);
	while (steps-- && moved) {
		moved = cvy_engine_step(p->engine);
		if (!moved)
			cvy_engine_unsent(p->engine);
	}
	look_for_mismatch(p);
	pthread_mutex_unlock(&p->engine->lock);
	app_step(p);
	sim_scarce_leave(was);
	if (!p->driver.ended)
		sim_at(s, US * (20 + sim_draw(s, SIM_STEPS, (moved ? 60 : 1200) * (1 + (uint64_t)p->slow))), STEP,
		       p->id);
}
