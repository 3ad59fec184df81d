/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver: a queue of events. For each it makes one step of the group state machine and applies the actions in
 * order. Events that seam and store post from inside a call wait in the queue until the actions are applied.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"

#define RETIRE_LOOK_MS 1 /* period at which a retired rank checks whether it is still needed */
#define STAT_MS 1000	 /* period at which the kinds of the links are read for the beat */

/* ---- Actions ---- */

/* For fault plans: a call about to be made, a reply that came, a step of a view change. */
static void point(struct cvy_driver *d, const char *name)
{
	if (d->seam->point)
		d->seam->point(d->seam->ctx, name);
}

static void store_call(struct cvy_driver *d, const struct cvy_action *a)
{
	struct cvy_event lost = { .kind = CVY_EV_REPLY, .rank = -1, .id = a->id, .err = COVEY_ERR_STORE };

	point(d, a->argc ? a->argv[0] : "");
	if (d->store && a->argc)
		d->store->ops->call(d->store, a->id, a->argc, (const char *const *)a->argv);
	else
		cvy_event_queue_push(&d->queue, &lost, d->now_ns);
}

static void identity(struct cvy_driver *d)
{
	struct cvy_identity id;

	cvy_group_identity(d->group, &id);
	d->seam->identity(d->seam->ctx, &id);
}

static uint32_t epoch_of(const struct cvy_driver *d)
{
	const struct cvy_view *v = cvy_group_view(d->group);

	return v ? v->epoch : 0;
}

static void ended(struct cvy_driver *d, int err)
{
	if (!d->ended && d->observer.ended)
		d->observer.ended(d->observer.ctx, err);
	d->ended = err;
}

static void joined(struct cvy_driver *d, const struct cvy_action *a)
{
	if (a->err)
		cvy_fail(d->box, a->err, a->rank, epoch_of(d), "%s", a->text ? a->text : covey_strerror(a->err));
	if (d->observer.joined)
		d->observer.joined(d->observer.ctx, a->err);
	if (a->err)
		d->ended = a->err;
}

static void publish(struct cvy_driver *d, const struct cvy_action *a)
{
	const struct cvy_view *v = cvy_group_view(d->group);
	char ranks[120];

	if (a->err)
		cvy_fail(d->box, a->err, a->rank, epoch_of(d), "%s", a->event.cause);
	if (a->event.kind == COVEY_EVENT_VIEW && a->event.cause[0] && v)
		cvy_log(a->number ? COVEY_LOG_WARN : COVEY_LOG_INFO, "membership", "%s; view %u: ranks %s",
			a->event.cause, v->epoch, cvy_mask_text(&v->members, ranks, sizeof(ranks)));
	if (d->observer.event)
		d->observer.event(d->observer.ctx, &a->event);
}

/* The answer waits in the queue until the other actions are applied. */
static void look_up(struct cvy_driver *d, const struct cvy_action *a)
{
	struct cvy_event e = { .kind = CVY_EV_LOOKED, .rank = a->rank, .argc = a->argc, .text = a->text };

	if (!d->find || !a->argc || !a->text || !a->host)
		return;
	e.argv = (const char *const *)a->argv;
	e.source = d->find(d->find_ctx, a->host, a->text);
	cvy_event_queue_push(&d->queue, &e, d->now_ns);
}

static void apply(struct cvy_driver *d, const struct cvy_action *a)
{
	const struct cvy_seam *s = d->seam;

	switch (a->kind) {
	case CVY_DO_CALL:
		store_call(d, a);
		break;
	case CVY_DO_SEND:
		s->send(s->links, a->rank, a->inc, a->type, epoch_of(d), a->body, a->bytes);
		break;
	case CVY_DO_IDENTITY:
		identity(d);
		break;
	case CVY_DO_EXPECT:
		s->expect(s->links, a->rank, a->inc);
		break;
	case CVY_DO_DIAL:
		s->dial(s->links, a->rank, a->inc, a->text, a->host);
		break;
	case CVY_DO_DROP:
		s->drop(s->links, a->rank, a->inc);
		break;
	case CVY_DO_LOOK:
		look_up(d, a);
		break;
	case CVY_DO_FREEZE:
		point(d, "freeze");
		s->freeze(s->ctx, epoch_of(d));
		break;
	case CVY_DO_LEARN:
		cvy_info("membership", "view %u with base %llu", a->view->epoch, (unsigned long long)a->view->base);
		point(d, "learn");
		s->learn(s->ctx, a->view, &a->removed, &a->lag);
		point(d, "learned");
		break;
	case CVY_DO_REPAIR:
		point(d, "repair");
		s->repair(s->engine, &a->ranks);
		break;
	case CVY_DO_THAW:
		point(d, "thaw");
		s->thaw(s->ctx);
		break;
	case CVY_DO_STOP:
		if (a->err == COVEY_ERR_FENCED)
			cvy_warn("membership", "this rank is out of the group: %s", a->text ? a->text : "");
		cvy_fail(d->box, a->err, -1, epoch_of(d), "%s", a->text ? a->text : covey_strerror(a->err));
		s->stop(s->ctx, a->err);
		ended(d, a->err);
		break;
	case CVY_DO_JOINED:
		joined(d, a);
		break;
	case CVY_DO_SAY:
		cvy_warn("join", "waiting for up to %d ms: %s", (int)a->number, a->text ? a->text : "");
		break;
	case CVY_DO_PUBLISH:
		publish(d, a);
		break;
	case CVY_DO_VIEW:
		d->views++;
		if (d->observer.view)
			d->observer.view(d->observer.ctx, a->view, (int)a->number);
		break;
	case CVY_DO_ANSWER:
		if (a->err)
			cvy_fail(d->box, a->err, -1, epoch_of(d), "%s", a->text ? a->text : covey_strerror(a->err));
		if (d->observer.answer)
			d->observer.answer(d->observer.ctx, a->id, a->err, a->text);
		break;
	default:
		break;
	}
}

/* ---- Events that are not for the group alone ---- */

static int known(const struct cvy_driver *d, const struct cvy_msg *m)
{
	const struct cvy_view *v = cvy_group_view(d->group);

	return v && m->rank >= 0 && m->rank < v->max_ranks && m->inc && v->member[m->rank].inc == m->inc;
}

static void ping(struct cvy_driver *d, const struct cvy_msg *m)
{
	uint64_t done;
	int waiting = 0;

	if (m->bytes < sizeof(done) || !known(d, m))
		return;
	memcpy(&done, m->body, sizeof(done));
	if (d->seam->peer_progress)
		d->seam->peer_progress(d->seam->engine, m->rank, done);
	if (m->type != CVY_MSG_PING)
		return;
	done = d->seam->progress(d->seam->ctx, &waiting);
	d->seam->send(d->seam->links, m->rank, m->inc, CVY_MSG_PONG, epoch_of(d), &done, sizeof(done));
}

/* 1: the message was not for the group. */
static int message(struct cvy_driver *d, const struct cvy_event *e)
{
	switch (e->msg.type) {
	case CVY_MSG_PING:
	case CVY_MSG_PONG:
		ping(d, &e->msg);
		return 1;
	case CVY_MSG_ADMIT:
	case CVY_MSG_PULL:
	case CVY_MSG_GIVE:
		if (known(d, &e->msg))
			d->seam->message(d->seam->engine, &e->msg);
		return 1;
	default:
		return 0;
	}
}

/* A rank marked `retire` leaves when every member has what it completed. */
static void retire(struct cvy_driver *d)
{
	struct cvy_event leave = { .kind = CVY_EV_API, .api = CVY_API_LEAVE, .rank = -1 };

	if (d->ended || !cvy_group_retiring(d->group)) {
		d->retire_look_ns = 0;
		return;
	}
	if (!d->retire_deadline_ns)
		d->retire_deadline_ns = d->now_ns + CVY_DRAIN_MS * CVY_MS;
	if (d->seam->retire(d->seam->ctx) || d->now_ns >= d->retire_deadline_ns)
		cvy_event_queue_push(&d->queue, &leave, d->now_ns);
	d->retire_look_ns = d->now_ns + RETIRE_LOOK_MS * CVY_MS;
}

/* For COVEY_LOG=debug: logs every event but beats, and every action, with the phase. */
static void trace_event(const struct cvy_driver *d, const struct cvy_event *e)
{
	static const char *const names[] = { [CVY_EV_NOTICE] = "notice",
					     [CVY_EV_REPLY] = "reply",
					     [CVY_EV_STORE_UP] = "store up",
					     [CVY_EV_STORE_DOWN] = "store down",
					     [CVY_EV_MSG] = "message",
					     [CVY_EV_LINK_UP] = "link up",
					     [CVY_EV_LINK_DOWN] = "link down",
					     [CVY_EV_SUSPECT] = "suspect",
					     [CVY_EV_LATE] = "late",
					     [CVY_EV_FROZEN] = "frozen",
					     [CVY_EV_FROZE_NOT] = "froze not",
					     [CVY_EV_FENCED] = "fenced",
					     [CVY_EV_REPAIRED] = "repaired",
					     [CVY_EV_ADMITTED] = "admitted",
					     [CVY_EV_WANT_CHANGE] = "want change",
					     [CVY_EV_API] = "api" };
	const char *name = e->kind < (int)(sizeof(names) / sizeof(names[0])) ? names[e->kind] : NULL;

	if (name)
		cvy_debug("membership", "%llu us: rank %d phase %d epoch %u: %s rank %d id %llu err %d %s %.*s",
			  (unsigned long long)(d->now_ns / 1000), cvy_group_rank(d->group), cvy_group_phase(d->group),
			  epoch_of(d), name, e->rank, (unsigned long long)e->id, e->err, e->argc ? e->argv[0] : "",
			  e->text ? (int)strcspn(e->text, "\n") : 0, e->text ? e->text : "");
}

static void trace_action(const struct cvy_driver *d, const struct cvy_action *a)
{
	if (a->kind == CVY_DO_CALL && a->argc > 8)
		cvy_debug("membership", "%llu us: rank %d call %llu %s %s %s", (unsigned long long)(d->now_ns / 1000),
			  cvy_group_rank(d->group), (unsigned long long)a->id, a->argv[0], a->argv[7], a->argv[8]);
	else
		cvy_debug("membership", "%llu us: rank %d action %d rank %d %s", (unsigned long long)(d->now_ns / 1000),
			  cvy_group_rank(d->group), a->kind, a->rank, a->argc ? a->argv[0] : "");
}

/* The text of this member's beat: `done,numbers;links`. */
static void describe(const struct cvy_driver *d, char text[CVY_STAT_TEXT])
{
	int waiting = 0;
	size_t n;

	n = (size_t)snprintf(text, CVY_STAT_TEXT, "%llu",
			     (unsigned long long)d->seam->progress(d->seam->ctx, &waiting));
	if (d->seam->numbers) {
		d->seam->numbers(d->seam->ctx, text + n);
		n += strlen(text + n);
	}
	n += (size_t)snprintf(text + n, CVY_STAT_TEXT - n, ";");
	d->seam->describe(d->seam->links, text + n, CVY_STAT_TEXT - n);
}

static void handle(struct cvy_driver *d, struct cvy_event *e)
{
	char stat[CVY_STAT_TEXT] = "";

	if (e->kind == CVY_EV_MSG && message(d, e))
		return;
	if (e->kind == CVY_EV_TICK && !e->text && d->seam->describe && d->now_ns >= d->stat_ns) {
		describe(d, stat);
		e->text = stat;
		d->stat_ns = d->now_ns + STAT_MS * CVY_MS;
	}
	if (cvy_log_enabled(COVEY_LOG_DEBUG))
		trace_event(d, e);
	if (e->kind == CVY_EV_REPLY && e->argc)
		point(d, e->argv[0]);
	cvy_group_step(d->group, e, d->now_ns, &d->actions);
	for (int i = 0; i < d->actions.count; i++) {
		if (cvy_log_enabled(COVEY_LOG_DEBUG))
			trace_action(d, &d->actions.item[i]);
		apply(d, &d->actions.item[i]);
	}
	cvy_actions_clear(&d->actions);
	retire(d);
}

int cvy_driver_init(struct cvy_driver *d, const struct cvy_group_args *args, const struct cvy_seam *seam,
		    const struct cvy_observer *observer, struct cvy_errbox *box, uint64_t now_ns)
{
	memset(d, 0, sizeof(*d));
	d->seam = seam;
	d->observer = *observer;
	d->box = box;
	d->now_ns = now_ns;
	d->group = cvy_group_new(args, now_ns);
	cvy_event_queue_init(&d->queue);
	if (!d->group || cvy_actions_init(&d->actions)) {
		cvy_driver_clear(d);
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "no memory for a member");
	}
	return 0;
}

void cvy_driver_clear(struct cvy_driver *d)
{
	cvy_event_queue_clear(&d->queue);
	cvy_actions_free(&d->actions);
	cvy_group_free(d->group);
	d->group = NULL;
}

void cvy_driver_post(struct cvy_driver *d, const struct cvy_event *event, uint64_t now_ns)
{
	struct cvy_event_item *item;

	cvy_event_queue_push(&d->queue, event, now_ns);
	if (d->draining)
		return;
	d->draining = 1;
	while ((item = cvy_event_queue_pop(&d->queue))) {
		if (item->now_ns > d->now_ns)
			d->now_ns = item->now_ns;
		handle(d, &item->event);
		cvy_event_queue_give_back(&d->queue, item);
	}
	d->draining = 0;
}

uint64_t cvy_driver_timer(const struct cvy_driver *d)
{
	uint64_t at = cvy_group_timer(d->group);

	if (d->ended)
		return CVY_NEVER;
	return d->retire_look_ns && d->retire_look_ns < at ? d->retire_look_ns : at;
}
