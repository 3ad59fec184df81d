/* SPDX-License-Identifier: Apache-2.0 */
/* The director's life, once for each part of a run, and what it reads in the reports. The bounds below end its waits. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "director.h"

#define POLL_MS 5
#define STOOD_STILL_NS 1000000000u /* longer rounds of our loop are time that nobody had */
#define SILENCE_NS 20000000000u	   /* without a report for this long the run has failed */
#define END_NS 15000000000u	   /* from the stop to the end of the last process */
#define SETTLE_STEPS 30		   /* after the last event, so that there is a rate to print */
#define WAIT_STEPS 20		   /* times --steps without an event: the rest of the plan will not happen */

void moe_say(const struct moe_director *d, const char *format, ...)
{
	char text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printf("%sstep %-6llu %s\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "", (unsigned long long)d->step, text);
	fflush(stdout);
}

void moe_fail(struct moe_director *d, const char *why)
{
	if (!d->failed)
		moe_say(d, "%s", why);
	d->failed = true;
}

/* ---- What the masks say: which ranks died, in which operation, and which came ---- */

static void somebody_died(struct moe_director *d, const struct moe_report *r, int q, int op)
{
	struct moe_event *e = moe_story_add(&d->story, MOE_DIED, q);

	d->present &= ~(UINT64_C(1) << q);
	d->seat[q].died = d->event_step = r->step + 1;
	d->seat[q].asked_ns = tool_now_ns();
	d->seat[q].asked_step = d->step;
	if (!d->opt->recover)
		d->want &= ~(UINT64_C(1) << q);
	if (e) {
		e->from = e->step = r->step;
		e->op = op;
		e->epoch_before = d->epoch;
		moe_plan_hit(d, e);
	}
	moe_say(d, "rank %d is dead", q);
}

/* A survivor's report of the step in which a rank died. */
static void read_more(const struct moe_report *r, struct moe_event *e)
{
	if (!e->exact && r->suspect_ns && (!e->death_ns || r->suspect_ns < e->death_ns))
		e->death_ns = r->suspect_ns;
	if (r->view_ns > e->view_ns)
		e->view_ns = r->view_ns;
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
	for (int q = 0; q < MOE_MAX_RANKS; q++) {
		const struct moe_seat *seat = &d->seat[q];
		struct moe_event *e;

		for (int op = 0; op < MOE_OPS; op++)
			if ((d->present & ~r->mask[op]) >> q & 1 && r->step + 1 >= seat->came + (op == MOE_ADMIT))
				somebody_died(d, r, q, op);
		e = seat->died > seat->came ? moe_story_last(&d->story, MOE_DIED, q) : NULL;
		if (e && e->step == r->step)
			read_more(r, e);
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
	e->from = seat->asked_step < r->step ? seat->asked_step : r->step;
	e->step = r->step;
	e->asked_ns = seat->asked_ns;
	e->epoch = r->epoch[MOE_ADMIT];
	e->mask = r->mask[MOE_ADMIT];
}

static void read_comers(struct moe_director *d, const struct moe_report *r)
{
	struct moe_event *shared = NULL; /* of those who came in one step the first has their counts */

	/* Replaced within one safe point: no mask lacks it. */
	if (r->fresh && d->present >> r->rank & 1 && r->step + 1 > d->seat[r->rank].came)
		somebody_died(d, r, r->rank, MOE_ADMIT);
	for (int q = 0; q < MOE_MAX_RANKS; q++)
		if ((r->mask[MOE_ADMIT] & ~d->present) >> q & 1 &&
		    (r->step + 1 > d->seat[q].died || (r->fresh && q == r->rank)))
			somebody_came(d, r, q);
	for (int i = d->story.events - 1; i >= 0; i--) {
		struct moe_event *e = &d->story.event[i];

		if (e->kind == MOE_DIED || e->step != r->step)
			continue;
		shared = e;
		if (e->rank == r->rank && r->fresh) {
			e->exec_ns = r->start_ns;
			e->first_ns = r->done_ns[MOE_ADMIT];
		}
	}
	if (shared) {
		shared->moved += r->moved;
		shared->made += r->made;
	}
}

static void read_step(struct moe_director *d, const struct moe_report *r)
{
	bool whole;

	if (moe_story_step(&d->story, r))
		moe_fail(d, "no memory for the story");
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

/* ---- Reports ---- */

static int listen_for_ranks(struct moe_director *d)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(d->dir, sizeof(d->dir), "/tmp/ep-moe-XXXXXX");
	if (fd < 0 || !mkdtemp(d->dir))
		return -1;
	snprintf(d->socket, sizeof(d->socket), "%s/reports", d->dir);
	memcpy(at.sun_path, d->socket, strlen(d->socket) + 1);
	d->conn[d->conns++] = (struct pollfd){ fd, POLLIN, 0 };
	return bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, MOE_MAX_RANKS) ? -1 : 0;
}

static void close_conn(struct moe_director *d, int i)
{
	if (d->conn[i].fd >= 0)
		close(d->conn[i].fd);
	d->conn[i].fd = -1;
	d->ended[i] = true;
}

static void take_report(struct moe_director *d, int i, const struct moe_report *r)
{
	d->last_ns = tool_now_ns();
	if (r->kind == MOE_HELLO) {
		if (!d->hello.kind)
			d->hello = *r;
		d->seat[r->rank].pid = r->pid;
	} else if (r->kind == MOE_STEP) {
		read_step(d, r);
	} else {
		d->ended[i] = true;
	}
	if (r->kind != MOE_FAILED)
		return;
	moe_say(d, "rank %d gave up: %s", r->rank, covey_strerror(r->err));
	d->failed |= d->present >> r->rank & 1 && !d->stopping;
}

/*
 * All that is there: a process that came later has a connection behind those of its peers and its predecessor, so what
 * they reported before it came is read before its own reports.
 */
static void read_conn(struct moe_director *d, int i)
{
	static struct moe_report r;
	ssize_t n;

	while ((n = recv(d->conn[i].fd, &r, sizeof(r), MSG_DONTWAIT)) == (ssize_t)sizeof(r))
		take_report(d, i, &r);
	if (n >= 0 || (errno != EAGAIN && errno != EINTR))
		close_conn(d, i); /* its process has ended */
}

static void read_reports(struct moe_director *d)
{
	int n = d->conns, fd;

	if (poll(d->conn, (nfds_t)n, POLL_MS) <= 0)
		return;
	for (int i = 1; i < n; i++)
		if (d->conn[i].revents)
			read_conn(d, i);
	if (!d->conn[0].revents)
		return;
	fd = accept4(d->conn[0].fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0 && d->conns <= MOE_MAX_CONNS)
		d->conn[d->conns++] = (struct pollfd){ fd, POLLIN, 0 };
	else if (fd >= 0)
		close(fd);
}

static bool ranks_ended(const struct moe_director *d)
{
	bool all = true;

	for (int i = 1; i < d->conns; i++)
		all = all && d->ended[i];
	return all;
}

/* ---- A part of a run ---- */

static void stop_ranks(struct moe_director *d)
{
	d->stopping = true;
	d->stop_ns = tool_now_ns();
	for (int i = 1; i < d->conns; i++)
		if (d->conn[i].fd >= 0)
			send(d->conn[i].fd, "s", 1, MSG_NOSIGNAL);
}

static bool all_done(const struct moe_director *d)
{
	return moe_plan_done(d) && d->whole && d->step + 1 >= (uint64_t)d->opt->steps &&
	       d->step >= d->event_step + SETTLE_STEPS;
}

static void run(struct moe_director *d)
{
	uint64_t now = tool_now_ns(), before;

	while (!d->failed && !(d->stopping && ranks_ended(d))) {
		bool runs_ended = moe_reap(d);

		before = now;
		read_reports(d);
		if (!d->stopping)
			moe_plan_run(d);
		now = tool_now_ns();
		if (now > before + STOOD_STILL_NS) {
			d->last_ns += now - before;
			d->stop_ns += now - before;
		}
		if (!d->stopping && all_done(d))
			stop_ranks(d);
		if (!d->stopping && d->step > d->event_step + WAIT_STEPS * (uint64_t)d->opt->steps)
			moe_fail(d, "the plan is not done: nothing happens any more");
		if (runs_ended && !d->stopping)
			moe_fail(d, "all ranks of ep-run ended");
		if (now > d->last_ns + SILENCE_NS || (d->stopping && now > d->stop_ns + END_NS))
			moe_fail(d, "no more reports");
	}
}

/* Releases the ranks and waits for every process; a process that stays is killed. */
static void let_go(struct moe_director *d)
{
	uint64_t end = tool_now_ns() + (d->failed ? 0 : END_NS);

	for (int i = 0; i < d->conns; i++)
		close_conn(d, i);
	while (!moe_reap(d) && tool_now_ns() < end)
		poll(NULL, 0, POLL_MS);
	for (int i = 0; i < d->runs; i++) {
		if (!d->run[i])
			continue;
		kill(d->run[i], SIGKILL); /* its keeper ends all ranks when the front has ended */
		waitpid(d->run[i], NULL, 0);
	}
	unlink(d->socket);
	rmdir(d->dir);
}

static int run_part(struct moe_options *opt, struct moe_total *total)
{
	static struct moe_director d;
	int deaths = 0;

	memset(&d, 0, sizeof(d));
	d.opt = opt;
	d.random = (uint32_t)opt->seed * 2654435761u + 1;
	d.want = opt->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << opt->ranks) - 1;
	d.last_ns = tool_now_ns();
	for (int i = 0; i < opt->plans; i++)
		deaths += opt->plan[i].kind != MOE_EXTEND;
	printf("ep-moe: %d ranks over %s%s, preset %s, %d experts, top %d, %d tokens of %d a rank and step, text %s, "
	       "seed %llu\n",
	       opt->ranks, opt->transport, opt->devices ? " and device memory" : "", moe_preset_name(opt->preset),
	       opt->shape.experts, opt->shape.top_k, opt->shape.tokens, opt->shape.hidden, opt->text,
	       (unsigned long long)opt->seed);
	fflush(stdout);
	if (listen_for_ranks(&d)) {
		perror("ep-moe");
		return 1;
	}
	moe_start_run(&d, 0);
	run(&d);
	let_go(&d);
	if (d.story.reports)
		moe_story_progress(&d.story, &d.latest, true);
	moe_story_part(&d.story, opt, deaths, total);
	return d.failed;
}

int moe_director_main(struct moe_options *opt)
{
	static struct moe_total total;
	bool all = opt->demo && opt->part < 0;

	signal(SIGPIPE, SIG_IGN);
	for (opt->part = all ? 0 : opt->part; opt->part < MOE_PARTS && !total.failed; opt->part++) {
		if (all) {
			opt->transport = opt->part ? "tcp" : "shm";
			moe_demo_plan(opt, opt->part);
			printf("%s", opt->part ? "\n" : "");
		}
		if (run_part(opt, &total))
			total.failed = 1;
		if (!all)
			break;
	}
	return moe_story_end(&total) ? 1 : 0;
}
