/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a plan that strike processes, limits and links. Each strike opens an event; the next settle closes it. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "net.h"
#include "plan.h"
#include "covey_admin.h"

#define INSIDE_MS 2000	/* how long to look for a victim inside an operation */
#define TRAP_MS 10000	/* until a process reaches the place where it is to die */
#define FENCED_MS 10000 /* a process that wakes learns within this that it was removed */
#define ASK_MS 10000
#define WHY_BYTES 200

static uint64_t ms_from_now(unsigned ms)
{
	return chaos_awake_ns() + ms * UINT64_C(1000000);
}

static int kind_of(struct chaos_run *run, const char *name)
{
	int k = 0;

	while (k < run->kinds && strcmp(run->kind[k], name))
		k++;
	if (k == CHAOS_KINDS)
		return k - 1;
	if (k == run->kinds)
		snprintf(run->kind[run->kinds++], sizeof(run->kind[0]), "%s", name);
	return k;
}

void chaos_event_open(struct chaos_run *run, const char *kind)
{
	if (run->events == CHAOS_EVENTS)
		return;
	run->event[run->events++] = (struct chaos_event){ .kind = kind_of(run, kind), .begin_ns = tool_now_ns() };
}

void chaos_event_close(struct chaos_run *run, uint64_t now)
{
	for (int i = run->events - 1; i >= 0 && !run->event[i].end_ns; i--)
		run->event[i].end_ns = now;
}

/* The chosen processes: the named ones that exist, or the given number of live ones. */
static int pick(struct chaos_run *run, const struct chaos_step *step, struct chaos_worker **out)
{
	int n = 0, live = 0;

	for (int r = 0; r < CHAOS_MAX_RANKS; r++) {
		struct chaos_worker *w = chaos_crew_at(run, r);

		if (!w || w->state != CHAOS_P_LIVE)
			continue;
		if (!step->ranks)
			out[live++] = w;
		else if (step->ranks >> r & 1)
			out[n++] = w;
	}
	if (step->ranks)
		return n;
	for (; n < step->count && n < live - 1; n++) { /* one is left to report */
		int other = n + (int)chaos_random(run, (uint64_t)(live - n));
		struct chaos_worker *w = out[n];

		out[n] = out[other];
		out[other] = w;
	}
	return n;
}

static struct chaos_desk *desk_of(struct chaos_run *run, const struct chaos_worker *w)
{
	return &run->crew->desk[w - run->worker];
}

bool chaos_await_inside(struct chaos_run *run, const struct chaos_worker *w, uint32_t op, unsigned ms)
{
	uint64_t end = ms_from_now(ms);
	uint32_t at;

	do {
		at = __atomic_load_n(&desk_of(run, w)->seat[0].inside, __ATOMIC_ACQUIRE);
		if (op ? at == op : at != 0)
			return true;
	} while (chaos_awake_ns() < end);
	return false;
}

static void doomed(struct chaos_worker *w)
{
	w->state = CHAOS_P_KILLED;
	w->doubt = true;
}

int chaos_await_end(struct chaos_run *run, const struct chaos_worker *w, unsigned ms, const char *what)
{
	uint64_t end = ms_from_now(ms);

	while (w->pid && chaos_awake_ns() < end)
		chaos_run_poll(run);
	if (!w->pid)
		return 0;
	chaos_wrong(run, "rank %d lives on %u ms after %s", w->rank, ms, what);
	return -1;
}

static int act_kill(struct chaos_run *run, const struct chaos_step *step)
{
	struct chaos_worker *w[CHAOS_MAX_RANKS];
	int n = pick(run, step, w);

	if (n && step->what > 0)
		chaos_await_inside(run, w[0], (uint32_t)step->what, INSIDE_MS);
	chaos_event_open(run, step->kind);
	for (int i = 0; i < n; i++) {
		if (step->what < 0)
			__atomic_store_n(&desk_of(run, w[i])->trap, (uint32_t)-step->what, __ATOMIC_RELEASE);
		else
			kill(w[i]->pid, SIGKILL);
	}
	for (int i = 0; i < n; i++)
		doomed(w[i]);
	for (int i = 0; i < n && step->what < 0; i++)
		if (chaos_await_end(run, w[i], TRAP_MS, "it was to kill itself"))
			return -1;
	return 0;
}

static int act_stop(struct chaos_run *run, const struct chaos_step *step)
{
	struct chaos_worker *w[CHAOS_MAX_RANKS];
	int n = pick(run, step, w);

	chaos_event_open(run, step->kind);
	for (int i = 0; i < n; i++) {
		kill(w[i]->pid, SIGSTOP);
		w[i]->state = CHAOS_P_HALTED;
		w[i]->halted = true;
	}
	return 0;
}

/* Do the others of a group go on without this process? */
static bool left_out(struct chaos_run *run, const struct chaos_worker *w)
{
	int member;

	for (int g = 0; g < run->crew->groups; g++)
		if (chaos_in_group(run->crew, g, w->rank, &member) && run->uniform[g].seq > w->last[g].seq &&
		    !(run->uniform[g].mask >> member & 1))
			return true;
	return false;
}

/* A stopped process that was removed from its group is a zombie: its rank is free, and it must find itself fenced. */
static bool bury_if_out(struct chaos_run *run, struct chaos_worker *w)
{
	if (w->state != CHAOS_P_LIMBO && !left_out(run, w))
		return false;
	w->state = CHAOS_P_LIMBO;
	w->doubt = true;
	return true;
}

/* A process that stopped itself by its rule is halted like any other. */
static bool stopped_itself(const struct chaos_worker *w)
{
	char pid[16], line[512];
	const char *state;

	if (!w->armed || w->state != CHAOS_P_LIVE)
		return false;
	snprintf(pid, sizeof(pid), "%d", (int)w->pid);
	state = tool_stat(pid, line, sizeof(line));
	return state && state[1] == ' ' && state[2] == 'T';
}

int chaos_resume(struct chaos_run *run)
{
	int err = 0;

	for (int d = 0; d < CHAOS_DESKS; d++) {
		struct chaos_worker *w = &run->worker[d];

		if (!w->pid || !w->halted)
			continue;
		if (!bury_if_out(run, w))
			w->state = CHAOS_P_LIVE;
		w->halted = false;
		chaos_event_open(run, w->state == CHAOS_P_LIMBO ? "resume, left out" : "resume in time");
		kill(w->pid, SIGCONT);
		if (w->state == CHAOS_P_LIMBO)
			err |= chaos_await_end(run, w, FENCED_MS, "it woke, left out of the view");
	}
	return err;
}

/* Waits until the others are without @ranks, which their own rule kills or stops. */
static int act_gone(struct chaos_run *run, const struct chaos_step *step)
{
	uint64_t end = ms_from_now(CHAOS_OUTCOME_MS);
	struct chaos_worker *w;

	for (int r = 0; r < CHAOS_MAX_RANKS; r++) {
		while (step->ranks >> r & 1 && (w = chaos_crew_at(run, r)) && chaos_awake_ns() < end) {
			w->halted |= stopped_itself(w);
			if (!w->halted || !bury_if_out(run, w))
				chaos_run_poll(run);
		}
		if (step->ranks >> r & 1 && chaos_crew_at(run, r)) {
			chaos_wrong(run, "rank %d is still there %d ms after it was to go", r, CHAOS_OUTCOME_MS);
			return -1;
		}
	}
	return 0;
}

static int act_start(struct chaos_run *run, const struct chaos_step *step)
{
	int err = 0;

	if (step->verb == CHAOS_EXTEND)
		run->target = step->a > run->target ? step->a : run->target;
	for (int r = 0; r < run->target && !err; r++) {
		struct chaos_worker *w = chaos_crew_at(run, r);

		if (w && (!w->halted || !bury_if_out(run, w)))
			continue;
		chaos_event_open(run, step->kind);
		err = chaos_crew_spawn(run, r, true, NULL);
	}
	if (err || step->verb == CHAOS_START)
		return err;
	return chaos_await(run, CHAOS_WHOLE);
}

struct peeked {
	bool running;
	int members, voters;
};

static void look(void *ctx, const char *key, const char *value)
{
	struct peeked *seen = ctx;

	seen->running |= !strcmp(key, "ph") && !strcmp(value, "run");
	seen->members += !strncmp(key, "m:", 2);
	seen->voters += !strncmp(key, "o:", 2);
}

static int present(struct chaos_run *run, int group)
{
	int n = 0, member;

	for (int r = 0; r < run->target; r++)
		n += chaos_in_group(run->crew, group, r, &member) && chaos_crew_at(run, r);
	return n;
}

/* Waits until no change is under way in any group and all admitted ranks have a vote. */
static int act_quiet(struct chaos_run *run)
{
	uint64_t end = ms_from_now(CHAOS_OUTCOME_MS);
	const char *argv[] = { "peek" };
	int g = 0;

	while (g < run->crew->groups && chaos_awake_ns() < end) {
		struct peeked seen = { 0 };
		char name[16];

		snprintf(name, sizeof(name), "crew%d", g);
		if (!covey_admin_call(run->crew->store, name, 1, argv, end, look, &seen) && seen.running &&
		    seen.members == present(run, g) && seen.voters == seen.members)
			g++;
		else
			chaos_run_poll(run);
	}
	if (g == run->crew->groups)
		return 0;
	chaos_wrong(run, "group %d did not come to rest within %d ms", g, CHAOS_OUTCOME_MS);
	return -1;
}

static void take_why(void *ctx, const char *key, const char *value)
{
	if (!strcmp(key, "why"))
		snprintf(ctx, WHY_BYTES, "%s", value);
}

/* A store that lost its memory refuses until the members have written the group to it again. */
static int ask(struct chaos_run *run, const char *what, int rank, char *why)
{
	char text[16], name[16] = "crew0";
	const char *argv[] = { "ask", what, text };
	uint64_t end = tool_now_ns() + ASK_MS * UINT64_C(1000000); /* an answer may take seconds */
	int err;

	snprintf(text, sizeof(text), "%d", rank);
	do {
		err = covey_admin_call(run->crew->store, name, 3, argv, end, take_why, why);
		chaos_run_poll(run);
	} while (err == COVEY_ERR_REFUSED && tool_now_ns() < end);
	return err;
}

/* An eviction from one of several groups would end the process: so the plan has one group. */
static int act_ask(struct chaos_run *run, const struct chaos_step *step)
{
	const bool evict = step->verb == CHAOS_EVICT;
	const char *what = evict ? "evict" : "retire";
	struct chaos_worker *w[CHAOS_MAX_RANKS];
	int n = pick(run, step, w), err = 0;
	char why[WHY_BYTES] = "";

	chaos_event_open(run, step->kind);
	for (int i = 0; i < n && !err; i++) {
		w[i]->retiring |= !evict;
		if (evict) {
			w[i]->state = CHAOS_P_LIMBO;
			w[i]->doubt = true;
		}
		err = ask(run, what, w[i]->rank, why);
		if (err)
			chaos_wrong(run, "%s %d: %s: %s", what, w[i]->rank, covey_strerror(err), why);
		else
			err = chaos_await_end(run, w[i], evict ? FENCED_MS : CHAOS_OUTCOME_MS,
					      evict ? "it was evicted" : "it was asked to retire");
	}
	return err;
}

/* It leaves by itself, between two of its operations; the others are in the middle of theirs. */
static int act_leave(struct chaos_run *run, const struct chaos_step *step)
{
	struct chaos_worker *w[CHAOS_MAX_RANKS];
	int n = pick(run, step, w), err = 0;

	chaos_event_open(run, step->kind);
	for (int i = 0; i < n; i++) {
		w[i]->retiring = true;
		kill(w[i]->pid, SIGTERM);
	}
	for (int i = 0; i < n && !err; i++)
		err = chaos_await_end(run, w[i], CHAOS_OUTCOME_MS, "it was told to leave");
	return err;
}

static int highest_file(pid_t pid)
{
	char path[64];
	struct dirent *entry;
	int highest = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		if (atoi(entry->d_name) > highest)
			highest = atoi(entry->d_name);
	if (dir)
		closedir(dir);
	return highest;
}

/* A working process gets no further descriptor; undone by raising the soft limit again. */
static int act_limit(struct chaos_run *run, const struct chaos_step *step)
{
	struct chaos_worker *w[CHAOS_MAX_RANKS];
	int n = pick(run, step, w);
	struct rlimit limit;

	if (step->verb == CHAOS_LIMIT)
		chaos_event_open(run, step->kind);
	for (int i = 0; i < n; i++) {
		if (prlimit(w[i]->pid, RLIMIT_NOFILE, NULL, &limit))
			continue;
		limit.rlim_cur = step->verb == CHAOS_LIMIT ? (rlim_t)highest_file(w[i]->pid) + 1 : limit.rlim_max;
		if (prlimit(w[i]->pid, RLIMIT_NOFILE, &limit, NULL))
			chaos_wrong(run, "limit of rank %d: %s", w[i]->rank, strerror(errno));
	}
	return 0;
}

/* A joiner that lacks a resource ends with an error that names it. */
static int act_starve(struct chaos_run *run, const struct chaos_step *step)
{
	int r = step->ranks ? __builtin_ctz(step->ranks) : 0;

	if (chaos_crew_at(run, r)) {
		chaos_wrong(run, "starve %d: the rank is taken, so kill it before", r);
		return -1;
	}
	chaos_event_open(run, step->kind);
	if (chaos_crew_spawn(run, r, true, step->text))
		return -1;
	return chaos_await_end(run, &run->worker[(run->next_desk + CHAOS_DESKS - 1) % CHAOS_DESKS], CHAOS_OUTCOME_MS,
			       "it had to fail");
}

static int act_network(struct chaos_run *run, const struct chaos_step *step)
{
	chaos_event_open(run, step->kind);
	for (int d = 0; d < CHAOS_DESKS; d++)
		run->worker[d].cut_off |= step->verb != CHAOS_HEAL && run->worker[d].pid;
	if (step->verb == CHAOS_HEAL)
		return chaos_net_heal();
	return step->verb == CHAOS_CUT ? chaos_net_cut(step->a, step->b) : chaos_net_slow(step->a, step->b);
}

/* A rank that was cut off learns here that it is out of the view, or is in it. */
static int act_heal(struct chaos_run *run, const struct chaos_step *step)
{
	int err = act_network(run, step);

	for (int d = 0; d < CHAOS_DESKS && !err; d++) {
		struct chaos_worker *w = &run->worker[d];

		if (!w->pid || w->state != CHAOS_P_LIVE || !w->cut_off || !bury_if_out(run, w))
			continue;
		err = chaos_await_end(run, w, CHAOS_OUTCOME_MS, "the links healed, left out of the view");
	}
	for (int d = 0; d < CHAOS_DESKS; d++)
		run->worker[d].cut_off = false;
	return err;
}

int chaos_act(struct chaos_run *run, const struct chaos_step *step)
{
	switch (step->verb) {
	case CHAOS_KILL:
		return act_kill(run, step);
	case CHAOS_HALT:
		return act_stop(run, step);
	case CHAOS_RESUME:
		return chaos_resume(run);
	case CHAOS_START:
	case CHAOS_REPLACE:
	case CHAOS_EXTEND:
		return act_start(run, step);
	case CHAOS_RETIRE:
	case CHAOS_EVICT:
		return act_ask(run, step);
	case CHAOS_LEAVE:
		return act_leave(run, step);
	case CHAOS_ARM:
		for (int r = 0; r < CHAOS_MAX_RANKS; r++)
			if (step->ranks >> r & 1)
				snprintf(run->rule[r], sizeof(run->rule[r]), "%s", step->text);
		return 0;
	case CHAOS_WAIT:
		chaos_run_for(run, step->from_ms + chaos_random(run, step->to_ms - step->from_ms + 1));
		return 0;
	case CHAOS_SETTLE:
		return chaos_await(run, CHAOS_SETTLED);
	case CHAOS_FLOW:
		return chaos_await(run, CHAOS_FLOWING);
	case CHAOS_SERVER:
		chaos_event_open(run, step->kind);
		return chaos_server_act(run, step);
	case CHAOS_CUT:
	case CHAOS_SLOW:
		return act_network(run, step);
	case CHAOS_HEAL:
		return act_heal(run, step);
	case CHAOS_LIMIT:
	case CHAOS_UNLIMIT:
		return act_limit(run, step);
	case CHAOS_STARVE:
		return act_starve(run, step);
	case CHAOS_GONE:
		return act_gone(run, step);
	case CHAOS_QUIET:
		return act_quiet(run);
	}
	return -1;
}

/* Undoes everything that a plan left behind, so that the last look is at a whole group. */
int chaos_heal_all(struct chaos_run *run)
{
	const struct chaos_step replace = { .verb = CHAOS_REPLACE, .kind = "replace" };
	const struct chaos_step heal = { .verb = CHAOS_HEAL, .kind = "heal" };
	const struct chaos_step resume = { .verb = CHAOS_SERVER, .what = CHAOS_S_CONTINUE };
	int err = 0;

	if (run->net)
		err = act_heal(run, &heal);
	if (!err)
		err = chaos_server_act(run, &resume);
	if (!err)
		err = chaos_resume(run);
	return err ? err : act_start(run, &replace);
}
