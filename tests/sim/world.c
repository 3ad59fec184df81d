/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of one seed: it is opened, its events are handled one after the other until the group has come
 * to rest after the last fault, and it is closed.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "world.h"

#define AWAY_SEEDS 7071421
#define STRAY_SEEDS 7071389 /* of sim_hash: which runs meet a second job, and when */

static void handle(struct sim *s, struct sim_event *e);

/* What arrives at a stopped process waits for it, in order. */
static int hold(struct proc *p, struct sim_event *e)
{
	switch (e->kind) {
	case FAULT:
	case RESUME:
	case SPAWN:
	case EXIT:
	case REAP:
	case STRIKE:
	case ASKED: /* it has left already */
	case HEAL:
		return 0;
	default:
		if (!p->paused)
			return 0;
	}
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
		sim_event_free(e);
		e = following;
	}
	sim_post(p, &tick);
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
		sim_post(p, &ev);
		break;
	case STEP:
		sim_step(s, p);
		break;
	case POSTED:
		sim_post(p, &e->event);
		break;
	case PING:
		sim_ping(s, p);
		break;
	case DELIVER:
		sim_replied(p, e);
		break;
	case ASKED:
		sim_asked(s, e);
		break;
	case DIAL:
		sim_dialled(s, p, e);
		break;
	case LINKED:
		sim_linked(s, p, e);
		break;
	case DOWN:
		if (sim_mesh_down(p, e->number, &e->rank, &e->inc))
			sim_link_event(p, CVY_EV_LINK_DOWN, e->rank, e->inc);
		break;
	case MESSAGE:
		sim_message(s, p, e);
		break;
	case ECHO:
		sim_echo(s, p, e);
		break;
	case NOTICE:
		ev.kind = CVY_EV_NOTICE;
		ev.text = e->text;
		sim_post(p, &ev);
		break;
	case FAULT:
		sim_fault(s, e);
		break;
	case STRIKE:
		sim_strike(s, e);
		break;
	case HEAL:
		sim_heal(s, e);
		break;
	case EXIT:
		if (p->alive)
			sim_kill(p);
		break;
	case REAP:
		sim_reap(s);
		sim_at(s, 500 * CVY_MS, REAP, 0);
		break;
	case RESUME:
		sim_trace(s, "resume process %d", p->id);
		resume(s, p);
		break;
	case SPAWN:
		sim_spawn(s, e->rank, e->rank == SIM_STRAY ? COVEY_CREATE_FIRST : COVEY_CREATE_NEVER);
		break;
	case PROOF:
		sim_suspect(s, p, e->other);
		break;
	case UP:
		sim_hears(p);
		break;
	default:
		break;
	}
}

int sim_away;

/* Longer than join_ms, leases and whatever else has a limit; 0: it is not. */
uint64_t sim_away_ns(const struct sim *s)
{
	return sim_away ? (61000 + sim_hash(s->seed, AWAY_SEEDS) % 30000) * CVY_MS : 0;
}

/* From some time among the other faults on. */
static void plan_away(struct sim *s)
{
	struct sim_event *e = sim_at(s, (100 + sim_hash(s->seed, AWAY_SEEDS + 1) % 1100) * CVY_MS, HEAL, 0);

	e->rank = SIM_AWAY;
	e->number = sim_hash(s->seed, AWAY_SEEDS + 2);
}

static void open_world(struct sim *s, uint64_t seed, int trace)
{
	memset(s, 0, sizeof(*s));
	s->seed = seed;
	for (int i = 0; i < SIM_STREAMS; i++)
		s->rng[i] = sim_hash(seed, (uint64_t)i);
	s->trace = trace;
	s->faults = 1;
	s->now = CVY_MS;
	s->box = cvy_errbox_new();
	s->world = 2 + (int)sim_draw(s, SIM_WORLD, 4);
	s->tcp = (int)sim_draw(s, SIM_WORLD, 2);
	/* The constant is one that leaves the runs of regressions and mutants as they were. */
	if (s->tcp && sim_hash(seed, 7071319) % 3 == 0)
		s->hosts = sim_hash(seed, 7071320) % 3 ? 2 : 1;
	if (s->hosts == 2 && sim_hash(seed, 7071321) % 4)
		s->world = 4; /* two hosts alike: allreduces are chains */
	s->slot_bytes = sim_draw(s, SIM_WORLD, 4) ? 512 : 16384;
	s->undo_bytes = sim_draw(s, SIM_WORLD, 4) ? 1u << 20 : 0;
	s->blind = sim_draw(s, SIM_WORLD, 3) == 0;
	s->wrap = sim_draw(s, SIM_WORLD, 8) ? WRAP_NONE : 1 + (int)sim_draw(s, SIM_WORLD, WRAPS - 1);
	s->manual = sim_draw(s, SIM_WORLD, 6) == 0;
	sim_stores_open(s);
	sim_plan(s);
	for (int i = 0; i < s->world; i++)
		sim_spawn(s, i, COVEY_CREATE_FIRST);
	sim_at(s, FAULTS_END + 900 * CVY_MS, REAP, 0);
	/* A second job comes under the same name. The constant leaves the runs of regressions and mutants as they were. */
	if (sim_hash(seed, STRAY_SEEDS) % 16 == 0)
		sim_at(s, (60 + sim_hash(seed, STRAY_SEEDS + 1) % 1100) * CVY_MS, SPAWN, 0)->rank = SIM_STRAY;
	if (sim_away)
		plan_away(s);
}

static void close_world(struct sim *s)
{
	while (s->count)
		sim_event_free(sim_next(s));
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		while (p->held) {
			struct sim_event *e = p->held;

			p->held = e->next;
			sim_event_free(e);
		}
		cvy_driver_clear(&p->driver);
		app_end(p);
		cvy_engine_close(p->engine);
		sim_mesh_close(p);
		free(p);
	}
	free(s->heap);
	sim_stores_close(s);
	sim_plan_free(s);
	sim_net_free(s);
	cvy_errbox_free(s->box);
}

/* After a failure locks may be held and lists half done: descriptors and windows are given back, the rest is left. */
static void abandon_world(struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		sim_mesh_abandon(s->proc[i]);
		close(s->proc[i]->engine->idle_fd);
	}
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
	uint64_t low, goal = 0, end = FAULTS_END + (700 + SETTLE_MS) * CVY_MS + sim_away_ns(s);

	while (s->count && !s->failed) {
		struct sim_event *e = sim_next(s);

		s->now = e->at;
		if (hold(s->proc[e->proc], e))
			continue;
		handle(s, e);
		sim_watch(s, s->proc[e->proc]);
		sim_check(s->proc[e->proc]);
		sim_event_free(e);
		if (s->now > FAULTS_END + 700 * CVY_MS)
			s->faults = 0;
		if (!s->faults && !s->store_down && sim_settled(s, &low)) {
			if (!goal)
				goal = low + 20;
			if ((low >= goal || low == UINT64_MAX) && app_talk_settled(s))
				break;
		}
		if (s->now > end || ++s->steps > EVENTS_MAX) {
			sim_stuck(s);
			break;
		}
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
	if (failed) {
		abandon_world(world);
	} else {
		close_world(world);
		free(world);
	}
	world = NULL;
	return failed;
}
