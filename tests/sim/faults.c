/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong: processes die, stop and are asked out, links break, the store restarts and forgets.
 */
#include <inttypes.h>
#include <stdio.h>

#include "world.h"

static struct proc *victim(struct sim *s)
{
	struct proc *list[SIM_PROCS];
	int n = 0;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->driver.ended && s->proc[i]->joined)
			list[n++] = s->proc[i];
	return n > 1 ? list[sim_draw(s, SIM_FAULTS, (uint64_t)n)] : NULL;
}

static void ask(struct sim *s, struct proc *p, int api)
{
	struct proc *other = victim(s);
	struct cvy_event e = { .kind = CVY_EV_API, .api = api, .id = 1 + sim_draw(s, SIM_FAULTS, 1000) };

	if (!other || other->rank < 0)
		return;
	e.rank = api == CVY_API_LEAVE ? -1 : other->rank;
	sim_trace(s, "process %d asks %d of rank %d", p->id, api, e.rank);
	sim_post(p, &e);
}

static void restart_store(struct sim *s)
{
	char run[32];
	uint64_t what = sim_draw(s, SIM_FAULTS, 3);

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
	sim_at(s, (50 + sim_draw(s, SIM_FAULTS, 500)) * CVY_MS, RESUME, p->id);
	for (int i = 0; i < s->procs; i++)
		if (s->link[p->id][i])
			sim_at(s, 100 * CVY_MS, PROOF, i)->other = -1 - p->id; /* a suspicion, no proof */
}

void sim_fault(struct sim *s)
{
	struct proc *p = victim(s);

	if (s->now < FAULTS_END)
		sim_at(s, (10 + sim_draw(s, SIM_FAULTS, 200)) * CVY_MS, FAULT, 0);
	if (!p)
		return;
	switch (sim_draw(s, SIM_FAULTS, 11)) {
	case 0:
	case 1:
		sim_kill(p);
		sim_at(s, sim_draw(s, SIM_FAULTS, 100) * CVY_MS, SPAWN, 0)->rank = p->rank;
		break;
	case 2:
		sim_kill(p);
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
		sim_at(s, 0, SPAWN, 0)->rank = -1;
		break;
	case 7:
		ask(s, p, CVY_API_EVICT);
		break;
	case 8:
		ask(s, p, sim_draw(s, SIM_FAULTS, 2) ? CVY_API_LEAVE : CVY_API_RETIRE);
		break;
	case 9: {
		struct cvy_event down = { .kind = CVY_EV_STORE_DOWN, .err = COVEY_ERR_STORE };

		p->client.deaf = 1;
		sim_post(p, &down);
		sim_at(s, sim_draw(s, SIM_FAULTS, 600) * CVY_MS, UP, p->id);
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

/* The launcher's word: these processes are reaped. Without it a group of which too many died may not decide. */
void sim_reap(struct sim *s)
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

void sim_suspect(struct sim *s, struct proc *p, int other)
{
	int proof = other >= 0;
	struct proc *q = s->proc[proof ? other : -1 - other];
	struct cvy_event e = { .kind = CVY_EV_SUSPECT,
			       .rank = q->rank,
			       .inc = q->inc,
			       .source = proof ? CVY_SOURCE_ROBUST : CVY_SOURCE_HEARTBEAT };

	if (q->rank >= 0 && (proof || q->paused))
		sim_post(p, &e);
}
