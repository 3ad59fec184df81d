/* SPDX-License-Identifier: Apache-2.0 */
/* The director's life, once for each part of a run: see director.h. The bounds below end its waits. */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "director.h"

#define POLL_MS 5
#define STOOD_STILL_NS 1000000000u /* longer rounds of our loop are time that nobody had */
#define SILENCE_NS 20000000000u	   /* without a report for this long the run has failed */
#define CHECK_NS 60000000000u	   /* without a verdict for this long the checker has failed */
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

static bool all_done(const struct moe_director *d)
{
	return moe_plan_done(d) && d->whole && d->step + 1 >= (uint64_t)d->opt->steps &&
	       d->step >= d->event_step + SETTLE_STEPS;
}

static void stop_ranks(struct moe_director *d)
{
	d->stopping = true;
	d->stop_ns = moe_now_ns();
	for (int i = 0; i < d->conns; i++)
		if (d->conn[i].fd >= 0)
			send(d->conn[i].fd, "s", 1, MSG_NOSIGNAL);
}

static bool all_ended(const struct moe_director *d)
{
	for (int i = 0; i < d->conns; i++)
		if (!d->conn[i].ended)
			return false;
	return true;
}

static void fail(struct moe_director *d, const char *why)
{
	if (!d->failed)
		moe_say(d, "%s", why);
	d->failed = true;
}

static void run(struct moe_director *d)
{
	uint64_t now = moe_now_ns(), before;

	while (!d->failed && !(d->stopping && all_ended(d))) {
		before = now;

		moe_conn_wait(d, POLL_MS);
		moe_plan_reap(d);
		if (!d->stopping) {
			moe_plan_run(d);
			moe_plan_wake(d);
		}
		now = moe_now_ns();
		if (now > before + STOOD_STILL_NS) {
			d->last_ns += now - before;
			d->stop_ns += now - before;
		}
		if (!d->stopping && all_done(d))
			stop_ranks(d);
		if (!d->stopping && d->step > d->event_step + WAIT_STEPS * (uint64_t)d->opt->steps)
			fail(d, "the plan is not done: nothing happens any more");
		if (d->group_ended && !d->stopping && all_ended(d))
			fail(d, "all ranks of ep-run ended");
		if (now > d->last_ns + SILENCE_NS || (d->stopping && now > d->stop_ns + END_NS))
			fail(d, "no more reports");
	}
}

/* Releases the ranks and waits for every process; a process that stays is killed. */
static void let_go(struct moe_director *d)
{
	uint64_t end = moe_now_ns() + (d->failed ? 0 : END_NS);

	for (int r = 0; r < MOE_MAX_RANKS; r++)
		if (d->seat[r].stopped)
			kill(d->seat[r].stopped, SIGKILL);
	for (int i = 0; i < d->conns; i++)
		moe_conn_close(&d->conn[i]);
	d->stopping = true;
	while ((!d->group_ended || d->children) && moe_now_ns() < end) {
		moe_plan_reap(d);
		poll(NULL, 0, POLL_MS);
	}
	if (!d->group_ended) { /* its keeper ends all ranks when the front has ended */
		kill(d->group, SIGKILL);
		waitpid(d->group, NULL, 0);
	}
	for (int i = 0; i < d->children; i++) {
		kill(d->child[i].pid, SIGKILL);
		waitpid(d->child[i].pid, NULL, 0);
	}
	close(d->listener);
	unlink(d->socket);
	rmdir(d->dir);
}

/* The checker is behind: the ranks have ended, so it has the machine to itself. */
static void catch_up(struct moe_director *d)
{
	uint64_t checked = d->story.checked, since = moe_now_ns();

	while (d->story.checked < d->story.reports && !d->failed) {
		moe_conn_wait(d, POLL_MS);
		if (d->story.checked > checked)
			since = moe_now_ns();
		checked = d->story.checked;
		if (moe_now_ns() > since + CHECK_NS)
			fail(d, "no more verdicts");
	}
}

static int run_part(struct moe_options *opt, struct moe_total *total)
{
	static struct moe_director d;
	int deaths = 0, failed;

	memset(&d, 0, sizeof(d));
	d.opt = opt;
	d.listener = d.queue.fd = -1;
	d.random = (uint32_t)opt->seed * 2654435761u + 1;
	d.want = opt->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << opt->ranks) - 1;
	d.last_ns = moe_now_ns();
	for (int i = 0; i < opt->plans; i++)
		deaths += opt->plan[i].kind != MOE_EXTEND;
	printf("ep-moe: %d ranks over %s%s, %d experts, top %d, %d tokens of %d a rank and step, text %s, seed %llu\n",
	       opt->ranks, opt->transport, opt->devices ? " and device memory" : "", opt->shape.experts,
	       opt->shape.top_k, opt->shape.tokens, opt->shape.hidden, opt->text, (unsigned long long)opt->seed);
	fflush(stdout);
	if (moe_conn_listen(&d) || moe_queue_start(&d.queue, opt)) {
		perror("ep-moe");
		return 1;
	}
	d.group = moe_start_group(opt, d.socket);
	if (d.group < 0) {
		perror("ep-run");
		d.group_ended = d.failed = true;
	}
	run(&d);
	let_go(&d);
	d.listener = -1;
	catch_up(&d);
	moe_queue_end(&d.queue);
	if (d.story.reports)
		moe_story_progress(&d.story, &d.latest, true);
	moe_story_sum(&d.story, opt);
	moe_table_part(&d.story, opt, deaths, total);
	failed = d.failed;
	moe_story_close(&d.story);
	return failed;
}

int moe_director_main(struct moe_options *opt)
{
	static struct moe_total total;
	bool all = opt->demo && opt->part < 0;

	signal(SIGPIPE, SIG_IGN);
	if (!all) {
		if (run_part(opt, &total))
			total.failed = 1;
		return moe_table_end(&total) ? 1 : 0;
	}
	for (opt->part = 0; opt->part < MOE_PARTS && !total.failed; opt->part++) {
		opt->transport = opt->part ? "tcp" : "shm";
		moe_demo_plan(opt, opt->part);
		if (opt->part)
			printf("\n");
		if (run_part(opt, &total))
			total.failed = 1;
	}
	return moe_table_end(&total) ? 1 : 0;
}
