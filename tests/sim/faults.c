/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong, and when. Every kind of fault has its own times, made from seed and kind alone, and draws
 * its details from a stream that begins anew with each fault: a new kind leaves the others where they were.
 * Some strike at once; some wait for the moment that hurts (a phase of somebody, a call of a script).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "world.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define FAULTS_BEGIN_MS 300
#define FAULTS_MS (FAULTS_END / CVY_MS - FAULTS_BEGIN_MS)

struct sim_plan {
	int phase, strikes, what; /* next: who comes into this phase is struck, so often, by that */
	int doom;		  /* who next calls this script dies: enum sim_doom, 0: nobody */
	const char *script;
	struct memory_copy *lagging; /* what a replica will have when it takes over */
};

enum strike { KILL_IT, KILL_OTHER, STOP_IT, CUT_IT_FROM_STORE, RESTART_STORE, NEWCOMER, EVICT_IT, STRIKES };

static uint64_t draw(struct sim *s, uint64_t below)
{
	return sim_draw(s, SIM_FAULTS, below);
}

static int living(struct sim *s)
{
	int n = 0;

	for (int i = 0; i < s->procs; i++)
		n += s->proc[i]->alive && !s->proc[i]->driver.ended && s->proc[i]->joined;
	return n;
}

static struct proc *victim(struct sim *s)
{
	struct proc *list[SIM_PROCS];
	int n = 0;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->driver.ended && s->proc[i]->joined)
			list[n++] = s->proc[i];
	return n > 1 ? list[draw(s, (uint64_t)n)] : NULL;
}

/* ---- processes ---- */

static void newcomer(struct sim *s, int rank, uint64_t delay)
{
	sim_at(s, delay, SPAWN, 0)->rank = rank;
}

static void kill_one(struct sim *s, struct proc *p)
{
	sim_kill(p);
	if (draw(s, 3))
		newcomer(s, p->rank, draw(s, 100) * CVY_MS);
}

static void stop_one(struct sim *s, struct proc *p)
{
	if (p->paused)
		return;
	sim_trace(s, "pause process %d", p->id);
	p->paused = 1;
	sim_at(s, (50 + draw(s, 500)) * CVY_MS, RESUME, p->id);
	for (int i = 0; i < s->procs; i++)
		if (s->link[p->id][i])
			sim_at(s, 100 * CVY_MS, PROOF, i)->other = -1 - p->id; /* a suspicion, no proof */
}

static void stop_several(struct sim *s, struct proc *p)
{
	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && s->proc[i]->joined && draw(s, 2))
			stop_one(s, s->proc[i]);
}

static void slow_one(struct sim *s, struct proc *p)
{
	p->slow = 5 + (int)draw(s, 40);
	sim_trace(s, "process %d runs %d times slower", p->id, 1 + p->slow);
	sim_at(s, (50 + draw(s, 400)) * CVY_MS, HEAL, p->id)->rank = -3;
}

static void join_one(struct sim *s, struct proc *p)
{
	newcomer(s, draw(s, 2) ? -1 : (int)draw(s, SIM_RANKS), 0);
}

/* ---- what members ask for, and what comes from outside of the group, late and twice ---- */

static void member_asks(struct sim *s, struct proc *p, int api)
{
	struct proc *other = victim(s);
	struct cvy_event e = { .kind = CVY_EV_API, .api = api, .id = 1 + draw(s, 1000) };

	if (!other || other->rank < 0)
		return;
	e.rank = api == CVY_API_LEAVE ? -1 : other->rank;
	sim_trace(s, "process %d asks %d of rank %d", p->id, api, e.rank);
	sim_post(p, &e);
}

static void evict(struct sim *s, struct proc *p)
{
	member_asks(s, p, CVY_API_EVICT);
}

static void leave(struct sim *s, struct proc *p)
{
	member_asks(s, p, draw(s, 2) ? CVY_API_LEAVE : CVY_API_RETIRE);
}

static void from_outside(struct sim *s, const char *name, const char *a, const char *b, const char *c)
{
	const char *argv[] = { name, a, b, c };
	int n = 1 + (int)draw(s, 3);

	sim_trace(s, "ep-admin, %d times: %s %s %s", n, name, a, b);
	for (int i = 0; i < n; i++)
		sim_ask(s, draw(s, i || draw(s, 2) ? 400 : 2) * CVY_MS, c ? 4 : 3, argv);
}

static void operator_asks(struct sim *s, struct proc *p)
{
	static const char *const kinds[] = { "recover", "recover", "extend", "extend", "evict",
					     "retire",	"policy",  "forget", "prove" };
	const char *kind = kinds[draw(s, sizeof(kinds) / sizeof(kinds[0]))];
	char number[16], inc[24];

	snprintf(number, sizeof(number), "%d", (int)draw(s, SIM_RANKS));
	if (!strcmp(kind, "extend"))
		snprintf(number, sizeof(number), "%d", 1 + (int)draw(s, SIM_RANKS));
	if (!strcmp(kind, "policy")) {
		from_outside(s, "ask", kind, draw(s, 2) ? "auto" : "manual", NULL);
	} else if (!strcmp(kind, "prove")) { /* the launcher of one that died long ago, under whatever rank it had */
		p = s->proc[draw(s, (uint64_t)s->procs)];
		if (p->alive || p->rank < 0)
			return;
		snprintf(number, sizeof(number), "%d", p->rank);
		snprintf(inc, sizeof(inc), "%" PRIu64, p->inc);
		from_outside(s, kind, number, inc, "pidfd");
	} else {
		from_outside(s, "ask", kind, number, NULL);
	}
}

/* ---- links and walls ---- */

static void cut_one(struct sim *s, struct proc *p)
{
	struct proc *q = victim(s);

	if (q && q != p) {
		sim_trace(s, "cut processes %d and %d", p->id, q->id);
		sim_cut(p, q, 1);
	}
}

static void partition(struct sim *s, struct proc *p)
{
	int groups = draw(s, 3) ? 2 : 3, one_way = draw(s, 3) == 0, cut = (int)draw(s, 2), store = (int)draw(s, 3);
	uint64_t ns = (20 + draw(s, 500)) * CVY_MS;

	sim_trace(s, "partition in %d, %s%s%s", groups, one_way ? "one way" : "both ways", cut ? ", links are cut" : "",
		  store ? "" : ", one group sees no store");
	sim_wall(s, groups, one_way, cut, ns);
	for (int i = 0; i < s->procs && !store; i++)
		if (sim_apart(s, s->proc[0], s->proc[i]) || sim_apart(s, s->proc[i], s->proc[0]))
			sim_deaf(s->proc[i], ns, (int)draw(s, 2));
}

/* ---- the store ---- */

static void deaf_one(struct sim *s, struct proc *p)
{
	sim_trace(s, "process %d is cut from the store", p->id);
	sim_deaf(p, draw(s, 600) * CVY_MS, draw(s, 4) != 0);
}

static void deaf_several(struct sim *s, struct proc *p)
{
	uint64_t ns = draw(s, 400) * CVY_MS;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && draw(s, 2)) {
			sim_trace(s, "process %d is cut from the store", i);
			sim_deaf(s->proc[i], ns, draw(s, 4) != 0);
		}
}

static void save_store(struct sim *s, struct proc *p)
{
	memory_copy_free(s->copy);
	s->copy = memory_server_save(s->server);
}

/* For @ns; some clients are told at once, others find out. */
static void no_store(struct sim *s, uint64_t ns)
{
	s->store_down++;
	sim_at(s, ns, HEAL, 0)->rank = -4;
	for (int i = 0; i < s->procs; i++)
		sim_deaf(s->proc[i], ns, draw(s, 4) != 0);
}

static void restart_store(struct sim *s, struct proc *p)
{
	static const char *const words[] = { "all", "some", "nothing" };
	uint64_t what = draw(s, 3), ns = draw(s, 2) ? 0 : draw(s, 300) * CVY_MS;

	if (what == 1 && !s->copy)
		what = 0;
	sim_trace(s, "store restarts after %d ms, keeps %s", (int)(ns / CVY_MS), words[what]);
	if (what == 1)
		memory_server_load(s->server, s->copy);
	else if (what == 2)
		memory_server_flush(s->server);
	sim_store_names(s);
	if (ns)
		no_store(s, ns);
}

/* A replica that has not heard the last of it takes over; or both answer for a while. */
static void fail_over(struct sim *s, struct proc *p)
{
	if (s->plan->lagging)
		return;
	s->plan->lagging = memory_server_save(s->server);
	sim_at(s, draw(s, 2) ? draw(s, 5) * CVY_MS : draw(s, 80) * CVY_MS, HEAL, 0)->rank = draw(s, 2) ? -5 : -6;
}

static void take_over(struct sim *s, int both)
{
	if (both && !s->two) {
		sim_trace(s, "failover: the old primary answers still");
		sim_two_stores(s, s->plan->lagging, (20 + draw(s, 400)) * CVY_MS);
	} else {
		sim_trace(s, "failover to a replica that lags");
		memory_server_load(s->server, s->plan->lagging);
		sim_store_names(s);
	}
	memory_copy_free(s->plan->lagging);
	s->plan->lagging = NULL;
}

/* ---- those that wait for their moment ---- */

static void next_strike(struct sim *s)
{
	s->plan->phase = (int)draw(s, 8) ? CVY_PHASE_FREEZING + (int)draw(s, 4) : CVY_PHASE_JOINING;
	s->plan->what = draw(s, 2) ? KILL_IT : (int)draw(s, STRIKES);
}

/* A death, and more of it while the group recovers from that. */
static void cascade(struct sim *s, struct proc *p)
{
	s->plan->strikes = 1 + (int)draw(s, 3);
	next_strike(s);
	sim_trace(s, "%d strikes to come, the next at phase %d", s->plan->strikes, s->plan->phase);
	if (draw(s, 2))
		kill_one(s, p);
}

void sim_watch(struct sim *s, struct proc *p)
{
	struct sim_plan *plan = s->plan;
	struct sim_event *e;

	if (!plan->strikes || !s->faults || !p->alive || p->paused || p->driver.ended ||
	    cvy_group_phase(p->driver.group) != plan->phase)
		return;
	plan->strikes--;
	e = sim_at(s, draw(s, 2) ? 0 : draw(s, 3000) * US, STRIKE, p->id);
	e->rank = plan->what;
	e->number = draw(s, UINT64_MAX);
	next_strike(s);
}

void sim_strike(struct sim *s, const struct sim_event *e)
{
	struct proc *p = s->proc[e->proc];

	s->rng[SIM_FAULTS] = e->number;
	if (!p->alive || p->driver.ended || living(s) < 2)
		return;
	sim_trace(s, "strike %d at process %d, phase %d", e->rank, p->id, cvy_group_phase(p->driver.group));
	if (e->rank == KILL_OTHER || e->rank == EVICT_IT)
		p = victim(s);
	switch (e->rank) {
	case KILL_IT:
	case KILL_OTHER:
		kill_one(s, p);
		break;
	case STOP_IT:
		stop_one(s, p);
		break;
	case CUT_IT_FROM_STORE:
		deaf_one(s, p);
		break;
	case RESTART_STORE:
		restart_store(s, p);
		break;
	case NEWCOMER:
		join_one(s, p);
		break;
	default:
		evict(s, p);
		break;
	}
}

static void doom(struct sim *s, struct proc *p)
{
	static const char *const scripts[] = { "register", "ready",  "hello", "open", "open", "report",
					       "report",   "decide", "ack",   "ack",  "peek", "ask" };

	s->plan->script = scripts[draw(s, sizeof(scripts) / sizeof(scripts[0]))];
	if (!strcmp(s->plan->script, "peek") && draw(s, 2))
		s->plan->script = "beat";
	s->plan->doom = DOOM_BEFORE + (int)draw(s, 3);
	sim_trace(s, "who next calls %s %s", s->plan->script,
		  s->plan->doom == DOOM_BEFORE	? "dies before it"
		  : s->plan->doom == DOOM_AFTER ? "dies after it"
						: "hears no answer");
}

int sim_doom(struct sim *s, const struct proc *p, const char *script)
{
	int how = s->plan->doom;

	if (!how || !s->faults || strcmp(script, s->plan->script) || (how != DOOM_LOST && living(s) < 2))
		return DOOM_NONE;
	s->plan->doom = DOOM_NONE;
	sim_trace(s, "doom of process %d at %s", p->id, script);
	if (how != DOOM_LOST && sim_draw(s, SIM_FAULTS, 2))
		newcomer(s, p->rank >= 0 ? p->rank : p->want_rank, (5 + draw(s, 100)) * CVY_MS);
	return how;
}

/* ---- when ---- */

static const struct fault {
	const char *name;
	int per_100; /* seeds: so many times, on average */
	void (*run)(struct sim *s, struct proc *p);
} faults[] = {
	{ "kill", 150, kill_one },
	{ "stop", 70, stop_one },
	{ "stop several", 15, stop_several },
	{ "slow", 40, slow_one },
	{ "join", 70, join_one },
	{ "evict", 40, evict },
	{ "leave or retire", 60, leave },
	{ "ep-admin", 80, operator_asks },
	{ "cut", 50, cut_one },
	{ "partition", 50, partition },
	{ "no store for one", 40, deaf_one },
	{ "no store for several", 40, deaf_several },
	{ "store saves", 100, save_store },
	{ "store restarts", 50, restart_store },
	{ "store fails over", 60, fail_over },
	{ "cascade", 60, cascade },
	{ "doom", 100, doom },
};

/* Seeds are calm or wild, and some lack a kind altogether, so that rare things meet in a clean world too. */
void sim_plan(struct sim *s)
{
	static const int wild[] = { 30, 60, 100, 150 };
	uint64_t share = (uint64_t)wild[sim_draw(s, SIM_WORLD, 4)];

	s->plan = calloc(1, sizeof(*s->plan));
	if (!s->plan)
		abort();
	for (size_t k = 0; k < sizeof(faults) / sizeof(faults[0]); k++) {
		uint64_t h = sim_hash(s->seed, 7000 + k), n = (uint64_t)faults[k].per_100 * share;

		n = h % 4 ? (n * 4 / 3 + (h >> 8) % 10000) / 10000 : 0;
		for (uint64_t i = 0; i < n; i++) {
			uint64_t at = sim_hash(h, i) % (FAULTS_MS * 1000) * US;
			struct sim_event *e = sim_at(s, FAULTS_BEGIN_MS * CVY_MS + at, FAULT, 0);

			e->rank = (int)k;
			e->number = sim_hash(h, i + 1000);
		}
	}
}

void sim_plan_free(struct sim *s)
{
	memory_copy_free(s->plan->lagging);
	free(s->plan);
}

void sim_fault(struct sim *s, const struct sim_event *e)
{
	struct proc *p;

	s->rng[SIM_FAULTS] = e->number;
	p = victim(s);
	if (!p)
		return;
	sim_trace(s, "fault: %s", faults[e->rank].name);
	faults[e->rank].run(s, p);
}

/* What ends by itself. */
void sim_heal(struct sim *s, const struct sim_event *e)
{
	switch (e->rank) {
	case -2:
		sim_one_store(s);
		break;
	case -3:
		s->proc[e->proc]->slow = 0;
		break;
	case -4:
		s->store_down--;
		break;
	case SIM_AWAY:
		s->rng[SIM_FAULTS] = e->number;
		sim_trace(s, "the store is away for %d ms", (int)(sim_away_ns(s) / CVY_MS));
		no_store(s, sim_away_ns(s));
		break;
	case -5:
	case -6:
		take_over(s, e->rank == -6);
		break;
	default:
		sim_wall_end(s, e->number);
		break;
	}
}

/*
 * The launcher's word: these processes are reaped. Without it a group of which too many died may not decide, where deaths are
 * only suspected or processes are of another host. Elsewhere members find out by themselves.
 */
void sim_reap(struct sim *s)
{
	static const char *const policy[] = { "ask", "policy", "auto" };

	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];
		char rank[16], inc[24];
		const char *argv[] = { "prove", rank, inc, "pidfd" };

		if (p->alive || p->rank < 0 || (!s->blind && !s->hosts))
			continue;
		snprintf(rank, sizeof(rank), "%d", p->rank);
		snprintf(inc, sizeof(inc), "%" PRIu64, p->inc);
		sim_ask(s, 0, 4, argv);
	}
	sim_ask(s, 0, 3, policy); /* whoever waits to be asked for comes in */
}

/* Only members of the learned view are watched. */
static int watches(const struct proc *p, const struct proc *q)
{
	const struct cvy_view *view = cvy_group_view(p->driver.group);

	return view && q->rank >= 0 && q->rank < view->max_ranks && view->member[q->rank].inc == q->inc;
}

void sim_suspect(struct sim *s, struct proc *p, int other)
{
	int proof = other >= 0;
	struct proc *q = s->proc[proof ? other : -1 - other];
	struct cvy_event e = { .kind = CVY_EV_SUSPECT,
			       .rank = q->rank,
			       .inc = q->inc,
			       .source = proof && !s->blind ? CVY_SOURCE_ROBUST : CVY_SOURCE_HEARTBEAT };

	if (proof && !watches(p, q))
		return;
	if (q->rank >= 0 && (proof || q->paused))
		sim_post(p, &e);
}
