/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the masks: which ranks died, in which operation, how long the survivors had no outcome, which ranks came. */
#include <stdio.h>

#include "director.h"

static void somebody_died(struct moe_director *d, const struct moe_report *r, int q, int op)
{
	struct moe_event *e = moe_story_add(&d->story, MOE_DIED, q);

	d->present &= ~(UINT64_C(1) << q);
	d->seat[q].died = d->event_step = r->step + 1;
	d->seat[q].pid = 0;
	if (e) {
		e->from = e->step = r->step;
		e->op = op;
		e->epoch_before = d->epoch;
		moe_plan_hit(d, e);
	}
	moe_say(d, "rank %d is dead", q);
	moe_plan_replace(d, q);
}

/* Notes from survivors; a newer epoch replaces older ones. */
static void hear(struct moe_director *d, const struct moe_report *r)
{
	for (int i = 0; i < r->notes; i++) {
		const struct moe_note *n = &r->note[i];
		struct moe_heard *h;

		if (n->rank < 0 || n->rank >= MOE_MAX_RANKS)
			continue;
		h = n->left ? &d->seat[n->rank].left : &d->seat[n->rank].suspect;
		if (n->epoch > h->epoch)
			*h = (struct moe_heard){ n->epoch, n->time_ns };
		else if (n->epoch == h->epoch && (n->left ? n->time_ns > h->time_ns : n->time_ns < h->time_ns))
			h->time_ns = n->time_ns;
	}
}

/* More reports about a death that is not complete. */
static void read_more(struct moe_director *d, const struct moe_report *r, struct moe_event *e)
{
	const struct moe_seat *seat = &d->seat[e->rank];

	if (!e->exact && seat->suspect.epoch >= e->epoch_before)
		e->death_ns = seat->suspect.time_ns;
	if (seat->left.epoch > e->epoch_before)
		e->view_ns = seat->left.time_ns;
	if (e->step != r->step)
		return;
	for (int op = 0; op < MOE_OPS; op++) {
		if (r->mask[op] >> e->rank & 1)
			continue;
		if (op < e->op)
			e->op = op;
		if (r->done_ns[op] > e->done_ns)
			e->done_ns = r->done_ns[op];
		break; /* the first operation without it */
	}
	e->epoch = r->epoch[MOE_SUM];
	e->mask = r->mask[MOE_SUM];
}

static void read_deaths(struct moe_director *d, const struct moe_report *r)
{
	for (int op = 0; op < MOE_OPS; op++) {
		uint64_t lack = d->present & ~r->mask[op];

		for (int q = 0; q < MOE_MAX_RANKS; q++)
			if ((lack >> q & 1) && r->step + 1 >= d->seat[q].came + (op == MOE_ADMIT))
				somebody_died(d, r, q, op);
	}
	for (int q = 0; q < MOE_MAX_RANKS; q++) {
		struct moe_event *e = d->seat[q].died > d->seat[q].came ? moe_story_last(&d->story, MOE_DIED, q) : NULL;

		if (e)
			read_more(d, r, e);
	}
}

static void somebody_came(struct moe_director *d, const struct moe_report *r, int q)
{
	struct moe_seat *seat = &d->seat[q];
	struct moe_event *e;

	d->present |= UINT64_C(1) << q;
	seat->came = r->step + 1;
	if (r->step == 0 && !seat->asked_ns)
		return; /* a founder */
	d->event_step = r->step + 1;
	e = moe_story_add(&d->story, seat->died ? MOE_BACK : MOE_GREW, q);
	moe_say(d, "rank %d is in", q);
	if (!e)
		return;
	e->from = seat->asked_ns && seat->asked_step < r->step ? seat->asked_step : r->step;
	e->step = r->step;
	e->asked_ns = seat->asked_ns ? seat->asked_ns : e->time_ns;
	e->exec_ns = seat->exec_ns;
	e->epoch = r->epoch[MOE_ADMIT];
	e->mask = r->mask[MOE_ADMIT];
}

static void read_comers(struct moe_director *d, const struct moe_report *r)
{
	uint64_t came = r->mask[MOE_ADMIT] & ~d->present;
	struct moe_story *s = &d->story;

	for (int q = 0; q < MOE_MAX_RANKS; q++)
		if ((came >> q & 1) && r->step + 1 > d->seat[q].died)
			somebody_came(d, r, q);
	for (int i = 0; i < s->events; i++) {
		struct moe_event *e = &s->event[i];

		if (e->kind != MOE_DIED && e->step == r->step && e->rank == r->rank && r->fresh)
			e->first_ns = r->done_ns[MOE_ADMIT];
	}
	for (int i = 0; i < s->events && (r->moved || r->made); i++)
		if (s->event[i].kind != MOE_DIED && s->event[i].step == r->step) {
			s->event[i].moved += r->moved;
			s->event[i].made += r->made;
			break;
		}
}

void moe_watch_step(struct moe_director *d, const struct moe_report *r)
{
	bool whole;

	if (r->step >= d->step)
		d->latest = *r;
	if (r->step > d->step)
		d->step = r->step;
	hear(d, r);
	read_comers(d, r);
	read_deaths(d, r);
	d->epoch = r->epoch[MOE_SUM] > d->epoch ? r->epoch[MOE_SUM] : d->epoch;
	whole = d->present == d->want;
	if (whole && !d->whole)
		d->whole_step = d->step;
	d->whole = whole;
	moe_story_progress(&d->story, &d->latest, false);
}

/* A rank that continued after its removal must report that it is fenced; all else is a failure. */
void moe_watch_failed(struct moe_director *d, const struct moe_report *r)
{
	struct moe_seat *seat = &d->seat[r->rank];
	struct moe_event *e = moe_story_last(&d->story, MOE_DIED, r->rank);

	if (seat->zombie != r->pid || r->err != COVEY_ERR_FENCED) {
		moe_say(d, "rank %d gave up: %s", r->rank, covey_strerror(r->err));
		if (d->present >> r->rank & 1 && !d->stopping)
			d->failed = true;
		return;
	}
	moe_say(d, "the process of rank %d that went on is fenced", r->rank);
	seat->zombie = 0;
	if (e) {
		e->woken_ns = seat->woken_ns;
		e->fenced_ns = moe_now_ns();
	}
}
