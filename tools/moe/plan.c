/* SPDX-License-Identifier: Apache-2.0 */
/* The director's acts on the group: it starts ranks, kills them by its plan, and adds more. */
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "director.h"

#define MAX_ARGS 64
#define RANDOM_US 50000 /* a kill at a random time comes within this time of its step */

static uint32_t draw(struct moe_director *d, uint32_t below)
{
	d->random = d->random * 1664525u + 1013904223u;
	return (d->random >> 8) % below;
}

/* ep-run beside this program, with this program and the options that ranks share. @grow: joiners; 0: the founders */
static void __attribute__((noreturn)) exec_run(const struct moe_director *d, int grow, pid_t parent)
{
	const struct moe_options *opt = d->opt;
	char self[4096] = "", path[4096], run[4200], ranks[40], most[40], restart[40], report[160], seed[40], part[24];
	char *argv[MAX_ARGS] = { run, ranks, most, restart, "--", self };
	int n = 6;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		_exit(125);
	memcpy(path, self, sizeof(path));
	snprintf(run, sizeof(run), "%s/ep-run", dirname(path));
	snprintf(ranks, sizeof(ranks), grow ? "--grow=%d" : "--ranks=%d", grow ? grow : opt->ranks);
	snprintf(most, sizeof(most), "--max-ranks=%d", opt->max_ranks);
	snprintf(restart, sizeof(restart), "--restart=%s", opt->recover ? "on-failure" : "never");
	snprintf(report, sizeof(report), "--report=%s", d->socket);
	snprintf(seed, sizeof(seed), "--seed=%llu", (unsigned long long)opt->seed);
	snprintf(part, sizeof(part), "--part=%d", opt->part < 0 ? 0 : opt->part);
	for (int i = 1; i < opt->argc && n < MAX_ARGS - 4; i++)
		argv[n++] = opt->argv[i];
	argv[n++] = report;
	argv[n++] = seed;
	argv[n] = part;
	setenv("COVEY_TRANSPORT", opt->transport, 1);
	if (grow) {
		setenv("COVEY_STORE", d->hello.store, 1);
		setenv("COVEY_GROUP", d->hello.group, 1);
	}
	signal(SIGPIPE, SIG_DFL);
	execv(run, argv);
	perror(run);
	_exit(127);
}

void moe_start_run(struct moe_director *d, int grow)
{
	pid_t parent = getpid(), pid = d->runs < MOE_MAX_RUNS ? fork() : -1;

	if (!pid)
		exec_run(d, grow, parent);
	if (pid > 0)
		d->run[d->runs++] = pid;
	else
		moe_fail(d, "no process for ep-run");
}

bool moe_reap(struct moe_director *d)
{
	bool all = true;

	for (int i = 0; i < d->runs; i++) {
		if (d->run[i] && waitpid(d->run[i], NULL, WNOHANG) == d->run[i])
			d->run[i] = 0;
		all = all && !d->run[i];
	}
	return all;
}

/* ---- The plan ---- */

static void extend(struct moe_director *d, int size)
{
	int grow = 0;

	for (int r = 0; r < size; r++) {
		if (d->want >> r & 1)
			continue;
		d->want |= UINT64_C(1) << r;
		d->seat[r].asked_ns = tool_now_ns();
		d->seat[r].asked_step = d->step;
		grow++;
	}
	moe_say(d, "ep-run --grow %d: new processes start", grow);
	if (grow)
		moe_start_run(d, grow);
}

/* A rank that has not died yet, if there is any. */
static int victim(struct moe_director *d)
{
	uint64_t from = d->present;
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
	if (!seat->pid || !(d->present >> p->rank & 1)) {
		moe_say(d, "rank %d is not there to be killed", p->rank);
		return;
	}
	seat->killed = p->sent = true;
	moe_say(d, "a signal to rank %d from outside: Killed", p->rank);
	seat->kill_ns = tool_now_ns();
	kill(seat->pid, SIGKILL);
}

void moe_plan_run(struct moe_director *d)
{
	uint64_t now = tool_now_ns();
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
		    (p->kind == MOE_KILL ? !(p->sent && seat->killed) : p->done))
			continue;
		p->done = e->planned = true;
		p->sent = false;
		e->exact = p->kind == MOE_KILL;
		e->death_ns = e->exact ? seat->kill_ns : 0;
		if (e->exact)
			snprintf(e->how, sizeof(e->how), "from outside: Killed");
		else
			snprintf(e->how, sizeof(e->how), "fault %.40s", p->fault);
	}
	seat->killed = false;
}

bool moe_plan_done(const struct moe_director *d)
{
	bool done = true;

	for (int i = 0; i < d->opt->plans; i++)
		done = done && d->opt->plan[i].done;
	for (int r = 0; r < MOE_MAX_RANKS; r++)
		done = done && !d->seat[r].killed;
	return done;
}
