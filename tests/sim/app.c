/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The applications: each calls operation after operation through covey.h, several at once, gives some works
 * away without waiting for them, is busy with other things at times, and leaves now and then. What comes is
 * looked at in check_outcome.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "algo.h"
#include "checks.h"
#include "ep.h"
#include "handle.h"
#include "world.h"

/* ---- the handle: what collectives/api/handle.c is to an application ---- */

struct cvy_engine *cvy_handle_engine(struct covey_group *group)
{
	return group->engine;
}

struct cvy_errbox *cvy_handle_box(struct covey_group *group)
{
	return group->box;
}

int cvy_handle_check(struct covey_group *group)
{
	return group->engine->here.ended;
}

int cvy_handle_check_op(struct covey_group *group)
{
	if (group->engine->here.pending)
		return COVEY_ERR_INVAL;
	return group->engine->here.ended;
}

static void handle_open(struct proc *p)
{
	struct covey_group *g = calloc(1, sizeof(*g));

	if (!g)
		abort();
	g->box = p->sim->box;
	g->engine = p->engine;
	g->here = cvy_site(p->engine);
	g->mesh = &p->mesh;
	g->config.max_ranks = g->identity.max_ranks = SIM_RANKS;
	g->identity.rank = p->rank;
	g->identity.inc = p->inc;
	g->join_done = 1;
	g->view = cvy_group_view(p->driver.group) ? cvy_view_dup(cvy_group_view(p->driver.group)) : NULL;
	pthread_mutex_init(&g->lock, NULL);
	p->app.group = g;
}

/* ---- calling ---- */

static int start(struct proc *p, struct call *c)
{
	const struct shape *k = &c->shape;
	const struct operation *op = app_op(k->kind);
	int elsewhere = op->rooted && k->root != p->rank;
	size_t sc[SIM_RANKS], sd[SIM_RANKS], rc[SIM_RANKS], rd[SIM_RANKS];
	struct operation_call call = { .send = elsewhere && op->send_blocks ? NULL : c->send,
				       .recv = elsewhere && op->to_root ? NULL : c->recv,
				       .count = k->count,
				       .dtype = COVEY_INT32,
				       .redop = COVEY_SUM,
				       .root = k->root,
				       .send_counts = sc,
				       .send_displs = sd,
				       .recv_counts = rc,
				       .recv_displs = rd,
				       .group = p->app.group,
				       .work = &c->work };

	for (int r = 0; r < c->size && op->uneven; r++) {
		sc[r] = op->send_blocks ? app_vcount(p->sim, k, c->seq, p->rank, r) : 0;
		rc[r] = op->send_blocks ? app_vcount(p->sim, k, c->seq, r, p->rank) : app_gcount(k, r);
		sd[r] = op->send_blocks ? app_vat(p->sim, k, c->seq, p->rank, r, 0) : 0;
		rd[r] = op->send_blocks ? app_vat(p->sim, k, c->seq, p->rank, r, 1) : (size_t)r * (k->count + 1);
	}
	if (op->uneven)
		call.count = rc[p->rank];
	return op->call(&call);
}

/* covey_admit without its wait, which nobody can do here. */
static int start_admit(struct proc *p, struct call *c)
{
	struct cvy_op *op = cvy_op_new(p->engine, &cvy_op_admit);
	int err;

	if (!op)
		return COVEY_ERR_NOMEM;
	op->send = c->send;
	op->recv = c->recv;
	op->bytes = op->count = STATE_BYTES;
	op->elem = 1;
	op->dtype = COVEY_UINT8;
	op->ticks = 1;
	cvy_op_sign(op, COVEY_ON_LOSS_CONTINUE);
	err = cvy_engine_post(p->engine, op);
	if (err)
		cvy_op_put(op);
	else
		c->op = op;
	return err;
}

static int post(struct proc *p, struct call *c)
{
	int err;

	if (c->shape.kind == ADMIT)
		return start_admit(p, c);
	covey_set_on_loss(p->app.group, c->shape.on_loss);
	if (c->shape.kind == DISPATCH || c->shape.kind == COMBINE)
		return app_ep_call(p, c);
	err = start(p, c);
	if (!err)
		c->op = c->work->op;
	return err;
}

static void call_free(struct proc *p, struct call *c)
{
	if (c->work)
		covey_work_free(c->work);
	else if (c->op && c->shape.kind == ADMIT)
		cvy_op_put(c->op);
	if (!c->in_place)
		free(c->recv);
	if (c->lent)
		covey_mem_free(p->app.group, c->send);
	else
		free(c->send);
}

/* Nothing is called until it is decided, even if this rank errs and calls something else. */
static int is_safe_point(const struct call *c)
{
	return c->seq % SIM_BLOCK == 0;
}

/* The operation goes on; its buffers live until it is decided. */
static void give_away(struct proc *p, struct call *c)
{
	if (!c->work || is_safe_point(c) || sim_random(p->sim, 40))
		return;
	covey_work_free(c->work);
	c->work = NULL;
	c->op = NULL;
}

static void call_next(struct proc *p)
{
	struct app *a = &p->app;
	struct call *c = &a->call[a->calls];
	int err;

	*c = (struct call){ .seq = a->joiner ? 0 : a->next, .size = p->engine->here.size };
	c->shape = a->joiner ? (struct shape){ .kind = ADMIT } : app_shape(p->sim, a->next, p->rank);
	if (c->shape.root >= c->size && !a->joiner) /* would be refused; sizes are alike between two safe points */
		c->shape.root = c->size - 1;
	if (!app_ep_may_call(p, &c->shape))
		return;
	if (!a->acked)
		a->acked = p->engine->acked.word[0];
	app_buffers(p, c);
	sim_trace(p->sim, "process %d calls %" PRIu64 " %s of %zu%s%s", p->id, c->seq, app_names[c->shape.kind],
		  c->send_bytes, c->in_place ? " in place" : "", c->shape.odd ? ", not what the others call" : "");
	err = post(p, c);
	if (err == COVEY_ERR_NOMEM && sim_scarce_hit(p)) { /* nothing changed: it is called again */
		call_free(p, c);
		return;
	}
	if (err) {
		if (!p->engine->here.ended)
			sim_fail(p->sim, "G5: process %d: %s is refused with %d", p->id, app_names[c->shape.kind], err);
		call_free(p, c);
		a->started = 0;
		return;
	}
	a->calls++;
	a->admitting = is_safe_point(c);
	a->next++;
	if (c->seq && c->op->seq != c->seq)
		sim_fail(p->sim, "G1: process %d: operation %" PRIu64 " was given number %" PRIu64, p->id, c->seq,
			 c->op->seq);
	give_away(p, c);
}

/* ---- taking ---- */

/* Who gave its work away learns of the end only by what follows. */
static int is_over(const struct proc *p, const struct call *c)
{
	return c->op ? cvy_op_decided(c->op) : p->engine->done >= c->seq;
}

static void take_first(struct proc *p)
{
	struct app *a = &p->app;
	struct call c = a->call[0];
	struct covey_result res;

	if (c.op) {
		res = c.op->result;
		c.late = c.op->late;
		if (c.shape.kind == DISPATCH || c.shape.kind == COMBINE)
			app_ep_take(p, &c, &res);
		if (!p->engine->here.ended) {
			check_outcome(p, &c, &res);
			if (!c.seq)
				a->next = res.seq + 1;
			a->joiner = 0;
			if (c.shape.kind == ADMIT)
				a->acked = res.mask.word[0];
			if (is_safe_point(&c))
				app_ep_remap(p, res.seq);
		}
	} else {
		check_input(p, &c, 0);
	}
	if (is_safe_point(&c))
		a->admitting = 0;
	a->decided++;
	a->last_ns = p->sim->now;
	memmove(a->call, a->call + 1, sizeof(a->call) - sizeof(a->call[0]));
	a->calls--;
	call_free(p, &c);
	if (sim_random(p->sim, 12) == 0)
		a->resume_ns = p->sim->now + sim_random(p->sim, 30) * CVY_MS;
}

/* ---- leaving: what covey_leave does ---- */

static void leave(struct proc *p)
{
	struct cvy_event e = { .kind = CVY_EV_API, .api = CVY_API_LEAVE, .id = 7, .rank = -1 };

	if (p->app.leaving == 1 && !p->app.calls && cvy_engine_drained(p->engine) && app_talk_over(p)) {
		p->app.leaving = 2;
		sim_trace(p->sim, "process %d has drained and leaves", p->id);
		sim_post(p, &e);
	}
}

void app_start(struct proc *p)
{
	p->app.started = 1;
	p->app.next = 1;
	p->app.joiner = p->engine->here.pending;
	handle_open(p);
	app_ep_open(p);
}

void app_step(struct proc *p)
{
	struct app *a = &p->app;

	if (!a->group)
		return;
	cvy_engine_progress(p->engine, NULL); /* as the agent does at every tick */
	while (a->calls && is_over(p, &a->call[0]))
		take_first(p);
	app_talk(p);
	if (p->engine->here.ended && a->calls && a->call[a->calls - 1].op && !cvy_op_decided(a->call[a->calls - 1].op))
		sim_fail(p->sim, "G5: process %d has ended and its operation %" PRIu64 " has not", p->id,
			 a->call[a->calls - 1].seq);
	if (a->leaving) {
		leave(p);
		return;
	}
	if (!a->started || a->admitting || a->calls == SIM_QUEUE || p->sim->now < a->resume_ns ||
	    a->next + 2 >= SIM_SEQS ||
	    (sim_away && p->sim->store_down && a->next > SIM_SEQS / 2)) /* some are left for when it is back */
		return;
	if (!a->calls || sim_random(p->sim, 2))
		call_next(p);
	if (p->sim->faults && !a->joiner && sim_random(p->sim, 20000) == 0)
		a->leaving = 1;
}

void app_end(struct proc *p)
{
	struct app *a = &p->app;

	for (int i = 0; i < a->calls; i++)
		call_free(p, &a->call[i]);
	a->calls = 0;
	if (!a->group)
		return;
	app_ep_close(p);
	app_talk_end(p);
	cvy_memory_forget(a->group);
	cvy_view_free(a->group->view);
	pthread_mutex_destroy(&a->group->lock);
	free(a->group);
	a->group = NULL;
}
