/* SPDX-License-Identifier: Apache-2.0 */
/* Planned acts of the director: signals, growth, new processes for dead ranks, and waking stopped ones. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "director.h"

#define MAX_STARTS 8	      /* of one rank */
#define RANDOM_US 50000	      /* a kill at a random time comes within this time of its step */
#define WAKE_STEPS 20	      /* the others do these without a stopped rank before it continues */
#define FENCE_NS 10000000000u /* from SIGCONT to its report that it is fenced */

static uint32_t draw(struct moe_director *d, uint32_t below)
{
	d->random = d->random * 1664525u + 1013904223u;
	return (d->random >> 8) % below;
}

static void note_child(struct moe_director *d, pid_t pid, int rank)
{
	if (pid > 0 && d->children < MOE_MAX_CHILDREN)
		d->child[d->children++] = (struct moe_child){ pid, rank };
	else if (pid < 0)
		perror("fork");
}

static void start_rank(struct moe_director *d, int rank)
{
	struct moe_seat *seat = &d->seat[rank];

	if (seat->starts++ >= MAX_STARTS) {
		moe_say(d, "rank %d was started too often", rank);
		d->failed = true;
		return;
	}
	seat->exec_ns = moe_now_ns();
	note_child(d, moe_start_rank(d->opt, d->socket, &d->hello, rank), rank);
}

static void ask_for(struct moe_director *d, int rank)
{
	d->seat[rank].asked_ns = moe_now_ns();
	d->seat[rank].asked_step = d->step;
	start_rank(d, rank);
}

void moe_plan_replace(struct moe_director *d, int rank)
{
	if (!d->opt->recover) {
		d->want &= ~(UINT64_C(1) << rank);
		return;
	}
	note_child(d, moe_start_admin(d->opt, &d->hello, "recover", rank), -1);
	ask_for(d, rank);
}

static void extend(struct moe_director *d, int size)
{
	moe_say(d, "ep-admin extend %d, new processes start", size);
	note_child(d, moe_start_admin(d->opt, &d->hello, "extend", size), -1);
	for (int r = 0; r < size; r++) {
		if (d->want >> r & 1)
			continue;
		d->want |= UINT64_C(1) << r;
		ask_for(d, r);
	}
}

static int victim(struct moe_director *d)
{
	uint64_t from = d->present; /* ranks that have not died yet, if there are any */
	int n, at;

	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if (d->seat[r].died && (from & (from - 1)))
			from &= ~(UINT64_C(1) << r);
	n = __builtin_popcountll(from);
	at = n ? (int)draw(d, (uint32_t)n) : 0;
	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if ((from >> r & 1) && at-- == 0)
			return r;
	return 0;
}

static void carry_out(struct moe_director *d, struct moe_plan *p)
{
	struct moe_seat *seat;

	p->done = true;
	if (p->kind == MOE_EXTEND) {
		extend(d, p->rank);
		return;
	}
	if (p->rank < 0)
		p->rank = victim(d);
	seat = &d->seat[p->rank];
	if (!seat->pid || !(d->present >> p->rank & 1) || seat->stopped) {
		moe_say(d, "rank %d is not there to be killed", p->rank);
		return;
	}
	seat->killed = p->sent = true;
	p->fault = strsignal(p->signal);
	moe_say(d, "a signal to rank %d from outside: %s", p->rank, p->fault);
	if (p->signal == SIGSTOP)
		seat->stopped = seat->pid;
	seat->kill_ns = moe_now_ns();
	kill(seat->pid, p->signal);
}

void moe_plan_run(struct moe_director *d)
{
	uint64_t now = moe_now_ns();
	bool earlier = true; /* all entries before this one are done */

	for (int i = 0; i < d->opt->plans; i++) {
		struct moe_plan *p = &d->opt->plan[i];
		uint64_t from = p->whole ? d->whole_step + p->step : p->step;

		if (!p->done && p->kind != MOE_FAULT && d->step >= from && (!p->whole || (d->whole && earlier))) {
			if (!p->due_ns)
				p->due_ns = now + (p->rank < 0 ? draw(d, RANDOM_US) * UINT64_C(1000) : 0);
			if (now >= p->due_ns)
				carry_out(d, p);
		}
		earlier = earlier && p->done;
	}
}

void moe_plan_hit(struct moe_director *d, struct moe_event *e)
{
	struct moe_seat *seat = &d->seat[e->rank];

	snprintf(e->how, sizeof(e->how), "not by the plan");
	for (int i = 0; i < d->opt->plans && !e->planned; i++) {
		struct moe_plan *p = &d->opt->plan[i];

		if (p->rank != e->rank || p->kind == MOE_EXTEND ||
		    (p->kind == MOE_KILL && !(p->sent && seat->killed)) || (p->kind == MOE_FAULT && p->done))
			continue;
		p->done = e->planned = true;
		p->sent = false;
		e->exact = p->kind == MOE_KILL;
		e->death_ns = e->exact ? seat->kill_ns : 0;
		snprintf(e->how, sizeof(e->how), "%s%.40s",
			 p->kind == MOE_FAULT ? "fault " : "from outside: ", p->fault);
	}
	seat->killed = false;
}

void moe_plan_reap(struct moe_director *d)
{
	int status;

	if (!d->group_ended && waitpid(d->group, &status, WNOHANG) == d->group)
		d->group_ended = true;
	for (int i = 0; i < d->children; i++) {
		struct moe_child *c = &d->child[i];

		if (waitpid(c->pid, &status, WNOHANG) != c->pid)
			continue;
		if (c->rank < 0 && status)
			moe_say(d, "ep-admin failed, status %d", WEXITSTATUS(status));
		else if (c->rank >= 0 && !d->stopping && !(d->present >> c->rank & 1) && (d->want >> c->rank & 1))
			start_rank(d, c->rank); /* it never joined: another one takes its place */
		*c = d->child[--d->children];
		i--;
	}
}

void moe_plan_wake(struct moe_director *d)
{
	for (int r = 0; r < MOE_MAX_RANKS; r++) {
		struct moe_seat *seat = &d->seat[r];

		if (seat->zombie && moe_now_ns() > seat->woken_ns + FENCE_NS) {
			moe_say(d, "rank %d went on and does not say that it is fenced", r);
			d->failed = true;
		}
		if (!seat->stopped || !seat->died || !d->whole || d->step < d->event_step + WAKE_STEPS)
			continue;
		moe_say(d, "the stopped process of rank %d goes on", r);
		seat->zombie = seat->stopped;
		seat->stopped = 0;
		seat->woken_ns = moe_now_ns();
		kill(seat->zombie, SIGCONT);
	}
}

bool moe_plan_done(const struct moe_director *d)
{
	for (int i = 0; i < d->opt->plans; i++)
		if (!d->opt->plan[i].done)
			return false;
	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if (d->seat[r].killed || d->seat[r].stopped || d->seat[r].zombie)
			return false;
	return true;
}
