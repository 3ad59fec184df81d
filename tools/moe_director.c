/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director: starts the ranks and the checker, hands every report on to be checked, learns from the masks in them
 * who died and who came, does what the plan says, and replaces the dead if asked to. It believes reports only: a death
 * is what survivors say of it. Every wait of it ends: see the bounds below.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moe.h"

#define MAX_CONNS 128
#define MAX_CHILDREN 64	    /* replacements, joiners and ep-admin calls of one run */
#define MAX_STARTS 8	    /* of one rank */
#define SILENCE_NS 20000000000u /* no report for so long: the run failed */
#define END_NS 15000000000u	    /* from the stop to the end of the last process */
#define SETTLE_STEPS 30	    /* after the last event, so that there is a rate to print */

struct conn {
	int fd, rank, pid;
	bool ended;
	struct moe_report head;
	size_t got;
	uint8_t *body;
};

struct child {
	pid_t pid;
	int rank; /* -1: ep-admin */
};

struct director {
	struct moe_options *opt;
	char dir[64], socket[96];
	int listener, checker;
	pid_t group, checker_pid;
	bool group_ended, stopping, failed;
	struct conn conn[MAX_CONNS];
	int conns;
	struct child child[MAX_CHILDREN];
	int children;
	int pid[MOE_MAX_RANKS], starts[MOE_MAX_RANKS];
	bool killed[MOE_MAX_RANKS];
	uint64_t came[MOE_MAX_RANKS], died[MOE_MAX_RANKS]; /* step of the last of each, +1; 0: never */
	uint64_t asked_ns[MOE_MAX_RANKS];
	uint64_t present, want; /* who is in as far as reports say; who is to be in */
	uint64_t step, whole_step, event_step;
	bool whole;
	uint64_t last_ns, stop_ns;
	uint32_t epoch;
	uint32_t random;
	struct moe_report hello, latest;
	struct moe_story story;
};

static void __attribute__((format(printf, 2, 3))) say(const struct director *d, const char *format, ...)
{
	char text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printf("%sstep %-6llu %s\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "", (unsigned long long)d->step, text);
	fflush(stdout);
}

static uint32_t draw(struct director *d, uint32_t below)
{
	d->random = d->random * 1664525u + 1013904223u;
	return (d->random >> 8) % below;
}

static void note_child(struct director *d, pid_t pid, int rank)
{
	if (pid > 0 && d->children < MAX_CHILDREN)
		d->child[d->children++] = (struct child){ pid, rank };
	else if (pid < 0)
		perror("fork");
}

/* ---- What the plan and the losses ask for ---- */

static void start_rank(struct director *d, int rank)
{
	if (d->starts[rank]++ >= MAX_STARTS) {
		say(d, "rank %d was started too often", rank);
		d->failed = true;
		return;
	}
	note_child(d, moe_start_rank(d->opt, d->socket, &d->hello, rank), rank);
}

static void extend(struct director *d, int size)
{
	say(d, "ep-admin extend %d, new processes start", size);
	note_child(d, moe_start_admin(d->opt, &d->hello, "extend", size), -1);
	for (int r = 0; r < size; r++) {
		if (d->want >> r & 1)
			continue;
		d->want |= UINT64_C(1) << r;
		d->asked_ns[r] = moe_now_ns();
		start_rank(d, r);
	}
}

static int victim(struct director *d)
{
	uint64_t from = d->present; /* those that did not die yet, if there are any */
	int n, at;

	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if (d->died[r] && (from & (from - 1)))
			from &= ~(UINT64_C(1) << r);
	n = __builtin_popcountll(from);
	at = n ? (int)draw(d, (uint32_t)n) : 0;
	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if ((from >> r & 1) && at-- == 0)
			return r;
	return 0;
}

static void carry_out(struct director *d, struct moe_plan *p)
{
	p->done = true;
	if (p->kind == MOE_EXTEND) {
		extend(d, p->rank);
		return;
	}
	if (p->rank < 0)
		p->rank = victim(d);
	if (!d->pid[p->rank] || !(d->present >> p->rank & 1)) {
		say(d, "rank %d is not there to be killed", p->rank);
		return;
	}
	d->killed[p->rank] = true;
	p->fault = strsignal(p->signal);
	say(d, "a signal to rank %d from outside", p->rank);
	kill(d->pid[p->rank], p->signal);
}

static void run_plan(struct director *d)
{
	uint64_t now = moe_now_ns();
	bool earlier = true; /* all entries before this one are done */

	for (int i = 0; i < d->opt->plans; i++) {
		struct moe_plan *p = &d->opt->plan[i];
		uint64_t from = p->whole ? d->whole_step + p->step : p->step;

		if (!p->done && p->kind != MOE_FAULT && d->step >= from && (!p->whole || (d->whole && earlier))) {
			if (!p->due_ns)
				p->due_ns = now + (p->rank < 0 ? draw(d, 50000) * UINT64_C(1000) : 0);
			if (now >= p->due_ns)
				carry_out(d, p);
		}
		earlier = earlier && p->done;
	}
}

/* ---- Reading the masks ---- */

static void somebody_died(struct director *d, const struct moe_report *r, int q, int op)
{
	struct moe_event *e = moe_story_add(&d->story, MOE_DIED, q);

	d->present &= ~(UINT64_C(1) << q);
	d->died[q] = d->event_step = r->step + 1;
	d->pid[q] = 0;
	if (e) {
		e->step = r->step;
		e->op = op;
		e->epoch_before = d->epoch;
		snprintf(e->how, sizeof(e->how), "not by the plan");
	}
	for (int i = 0; i < d->opt->plans; i++) {
		struct moe_plan *p = &d->opt->plan[i];

		if (p->rank != q || p->kind == MOE_EXTEND || (p->kind == MOE_KILL && !d->killed[q]) ||
		    (p->kind == MOE_FAULT && p->done) || !e)
			continue;
		p->done = e->planned = true;
		snprintf(e->how, sizeof(e->how), "%s%.40s", p->kind == MOE_FAULT ? "fault " : "from outside: ", p->fault);
	}
	d->killed[q] = false;
	say(d, "rank %d is dead", q);
	if (!d->opt->recover) {
		d->want &= ~(UINT64_C(1) << q);
		return;
	}
	d->asked_ns[q] = moe_now_ns();
	note_child(d, moe_start_admin(d->opt, &d->hello, "recover", q), -1);
	start_rank(d, q);
}

static void read_deaths(struct director *d, const struct moe_report *r)
{
	for (int op = 0; op < MOE_OPS; op++) {
		uint64_t lack = d->present & ~r->mask[op];

		for (int q = 0; q < MOE_MAX_RANKS; q++)
			if ((lack >> q & 1) && r->step + 1 >= d->came[q] + (op == MOE_ADMIT))
				somebody_died(d, r, q, op);
	}
	for (int i = 0; i < d->story.events; i++) { /* others tell more about the same death */
		struct moe_event *e = &d->story.event[i];

		if (e->kind != MOE_DIED || e->step != r->step)
			continue;
		for (int op = MOE_OPS - 1; op >= 0; op--)
			if (!(r->mask[op] >> e->rank & 1) && op < e->op)
				e->op = op;
		for (int op = e->op; op < MOE_OPS; op++)
			if (!(r->mask[op] >> e->rank & 1) && r->wait_ns[op] > e->wait_ns)
				e->wait_ns = r->wait_ns[op];
		e->epoch = r->epoch[MOE_SUM];
		e->mask = r->mask[MOE_SUM];
	}
}

static void read_comers(struct director *d, const struct moe_report *r)
{
	uint64_t came = r->mask[MOE_ADMIT] & ~d->present;

	for (int q = 0; q < MOE_MAX_RANKS; q++) {
		struct moe_event *e;

		if (!(came >> q & 1) || r->step + 1 <= d->died[q])
			continue;
		d->present |= UINT64_C(1) << q;
		d->came[q] = r->step + 1;
		if (r->step == 0 && !d->asked_ns[q])
			continue; /* a founder */
		d->event_step = r->step + 1;
		e = moe_story_add(&d->story, d->died[q] ? MOE_BACK : MOE_GREW, q);
		say(d, "rank %d is in", q);
		if (!e)
			continue;
		e->step = r->step;
		e->asked_ns = d->asked_ns[q] ? d->asked_ns[q] : e->time_ns;
		e->epoch = r->epoch[MOE_ADMIT];
		e->mask = r->mask[MOE_ADMIT];
	}
	for (int i = 0; i < d->story.events && (r->moved || r->made); i++)
		if (d->story.event[i].kind != MOE_DIED && d->story.event[i].step == r->step) {
			d->story.event[i].moved += r->moved;
			d->story.event[i].made += r->made;
			break;
		}
}

static void read_step(struct director *d, const struct moe_report *r)
{
	bool whole;

	if (r->step >= d->step)
		d->latest = *r;
	if (r->step > d->step)
		d->step = r->step;
	read_comers(d, r);
	read_deaths(d, r);
	d->epoch = r->epoch[MOE_SUM] > d->epoch ? r->epoch[MOE_SUM] : d->epoch;
	whole = d->present == d->want;
	if (whole && !d->whole)
		d->whole_step = d->step;
	d->whole = whole;
	moe_story_progress(&d->story, &d->latest, false);
}

/* ---- The checker ---- */

static void take_verdicts(struct director *d, bool all)
{
	struct moe_verdict v;
	struct moe_story *s = &d->story;

	while (all ? s->checked < s->reports : recv(d->checker, &v, sizeof(v), MSG_PEEK | MSG_DONTWAIT) == sizeof(v)) {
		if (moe_read(d->checker, &v, sizeof(v))) {
			say(d, "the checker ended");
			d->failed = true;
			return;
		}
		s->checked++;
		s->wrong += (uint64_t)v.wrong;
		s->counts_bad += (uint64_t)v.counts_bad;
		s->lost += (uint64_t)v.lost;
		s->partial += (uint64_t)v.partial;
		if (v.worst > s->worst || v.worst != v.worst)
			s->worst = v.worst;
	}
}

static void hand_on(struct director *d, const struct conn *c)
{
	take_verdicts(d, false);
	if (moe_story_step(&d->story, &c->head) || moe_write(d->checker, &c->head, sizeof(c->head)) ||
	    moe_write(d->checker, c->body, c->head.body))
		d->failed = true;
}

static int start_checker(struct director *d)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -1;
	d->checker_pid = fork();
	if (d->checker_pid < 0)
		return -1;
	if (d->checker_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		_exit(moe_check_main(d->opt, pair[1]));
	}
	close(pair[1]);
	d->checker = pair[0];
	return 0;
}

/* ---- Connections ---- */

static int listen_at(struct director *d)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(d->dir, sizeof(d->dir), "/tmp/ep-moe-XXXXXX");
	if (!mkdtemp(d->dir))
		return -1;
	snprintf(d->socket, sizeof(d->socket), "%s/reports", d->dir);
	memcpy(at.sun_path, d->socket, strlen(d->socket) + 1);
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (d->listener < 0 || bind(d->listener, (struct sockaddr *)&at, sizeof(at)) || listen(d->listener, 64))
		return -1;
	return 0;
}

static void accept_rank(struct director *d)
{
	int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (d->conns == MAX_CONNS) {
		close(fd);
		return;
	}
	d->conn[d->conns++] = (struct conn){ .fd = fd, .rank = -1 };
}

static void close_conn(struct conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->ended = true;
	free(c->body);
	c->body = NULL;
}

static void take_report(struct director *d, struct conn *c)
{
	const struct moe_report *r = &c->head;

	d->last_ns = moe_now_ns();
	c->rank = r->rank;
	switch (r->kind) {
	case MOE_HELLO:
		if (!d->hello.kind)
			d->hello = *r;
		d->pid[r->rank] = r->pid;
		break;
	case MOE_STEP:
		hand_on(d, c);
		read_step(d, r);
		break;
	default:
		c->ended = true;
	}
}

/* One read of what is there; a report is taken when it is whole. */
static void read_conn(struct director *d, struct conn *c)
{
	size_t head = sizeof(c->head), want = c->got < head ? head - c->got : head + c->head.body - c->got;
	void *to = c->got < head ? (uint8_t *)&c->head + c->got : c->body + (c->got - head);
	ssize_t n = recv(c->fd, to, want, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) { /* a killed rank leaves half a report: it never ended that step */
		close_conn(c);
		return;
	}
	c->got += (size_t)n;
	if (c->got == head) {
		c->head.store[sizeof(c->head.store) - 1] = c->head.group[sizeof(c->head.group) - 1] = '\0';
		if (c->head.rank < 0 || c->head.rank >= MOE_MAX_RANKS || c->head.body > MOE_MAX_BODY ||
		    (c->head.body && !(c->body = malloc(c->head.body)))) {
			close_conn(c);
			return;
		}
	}
	if (c->got < head || c->got < head + c->head.body)
		return;
	take_report(d, c);
	free(c->body);
	c->body = NULL;
	c->got = 0;
}

static void wait_for_reports(struct director *d, int timeout_ms)
{
	struct pollfd fds[MAX_CONNS + 1];
	int n = d->conns;

	for (int i = 0; i < n; i++)
		fds[i] = (struct pollfd){ d->conn[i].fd, POLLIN, 0 }; /* closed: -1, passed over */
	fds[n] = (struct pollfd){ d->listener, POLLIN, 0 };
	if (poll(fds, (nfds_t)n + 1, timeout_ms) <= 0)
		return;
	for (int i = 0; i < n; i++)
		if (fds[i].revents)
			read_conn(d, &d->conn[i]);
	if (fds[n].revents)
		accept_rank(d);
}

/* ---- Life ---- */

static void reap(struct director *d)
{
	int status;

	if (!d->group_ended && waitpid(d->group, &status, WNOHANG) == d->group)
		d->group_ended = true;
	for (int i = 0; i < d->children; i++) {
		struct child *c = &d->child[i];

		if (waitpid(c->pid, &status, WNOHANG) != c->pid)
			continue;
		if (c->rank < 0 && status)
			say(d, "ep-admin failed, status %d", WEXITSTATUS(status));
		else if (c->rank >= 0 && !d->stopping && !(d->present >> c->rank & 1) && (d->want >> c->rank & 1))
			start_rank(d, c->rank); /* it never came in: another one takes its place */
		*c = d->child[--d->children];
		i--;
	}
}

static bool all_done(const struct director *d)
{
	for (int i = 0; i < d->opt->plans; i++)
		if (!d->opt->plan[i].done)
			return false;
	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if (d->killed[r])
			return false;
	return d->whole && d->step + 1 >= (uint64_t)d->opt->steps && d->step >= d->event_step + SETTLE_STEPS;
}

static void stop_ranks(struct director *d)
{
	d->stopping = true;
	d->stop_ns = moe_now_ns();
	for (int i = 0; i < d->conns; i++)
		if (d->conn[i].fd >= 0)
			send(d->conn[i].fd, "s", 1, MSG_NOSIGNAL);
}

static bool all_ended(const struct director *d)
{
	for (int i = 0; i < d->conns; i++)
		if (!d->conn[i].ended)
			return false;
	return true;
}

static void run(struct director *d)
{
	while (!d->failed && !(d->stopping && all_ended(d))) {
		uint64_t now;

		wait_for_reports(d, 5);
		take_verdicts(d, false);
		reap(d);
		if (!d->stopping)
			run_plan(d);
		now = moe_now_ns();
		if (!d->stopping && all_done(d))
			stop_ranks(d);
		if (d->group_ended && !d->stopping && all_ended(d))
			d->failed = true, say(d, "all ranks of ep-run ended");
		if (now > d->last_ns + SILENCE_NS || (d->stopping && now > d->stop_ns + END_NS))
			d->failed = true, say(d, "no more reports");
	}
	take_verdicts(d, true);
}

/* Lets the ranks go and waits for every process; whoever stays is killed. */
static void finish(struct director *d)
{
	uint64_t end = moe_now_ns() + (d->failed ? 0 : END_NS);

	for (int i = 0; i < d->conns; i++)
		close_conn(&d->conn[i]);
	close(d->checker);
	d->stopping = true;
	while ((!d->group_ended || d->children) && moe_now_ns() < end) {
		reap(d);
		poll(NULL, 0, 5);
	}
	if (!d->group_ended) { /* its keeper ends all ranks when the front is gone */
		kill(d->group, SIGKILL);
		waitpid(d->group, NULL, 0);
	}
	for (int i = 0; i < d->children; i++) {
		kill(d->child[i].pid, SIGKILL);
		waitpid(d->child[i].pid, NULL, 0);
	}
	kill(d->checker_pid, SIGKILL);
	waitpid(d->checker_pid, NULL, 0);
	unlink(d->socket);
	rmdir(d->dir);
}

int moe_director_main(struct moe_options *opt)
{
	static struct director d;
	int deaths = 0, bad;

	d.opt = opt;
	d.listener = d.checker = -1;
	d.random = (uint32_t)opt->seed * 2654435761u + 1;
	d.want = opt->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << opt->ranks) - 1;
	d.last_ns = moe_now_ns();
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < opt->plans; i++)
		deaths += opt->plan[i].kind != MOE_EXTEND;
	printf("ep-moe: %d ranks over %s, %d experts, top %d, %d tokens of %d a rank and step, text %s, seed %llu\n", opt->ranks,
	       opt->transport, opt->shape.experts, opt->shape.top_k, opt->shape.tokens, opt->shape.hidden, opt->text,
	       (unsigned long long)opt->seed);
	fflush(stdout);
	if (listen_at(&d) || start_checker(&d)) {
		perror("ep-moe");
		return 1;
	}
	d.group = moe_start_group(opt, d.socket);
	if (d.group < 0) {
		perror("ep-run");
		d.group_ended = d.failed = true;
	}
	run(&d);
	finish(&d);
	if (d.story.reports)
		moe_story_progress(&d.story, &d.latest, true);
	bad = moe_story_end(&d.story, opt, deaths);
	return bad || d.failed ? 1 : 0;
}
