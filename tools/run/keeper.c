/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: parent of the private store and of every rank. One loop over the front's pipe, the
 * children's deaths and their output; at its end, whatever brought it there, no process and no file
 * of this run is left.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define RETRY_FIRST_MS 50 /* before the second replacement of a rank, then doubled, up to */
#define RETRY_LAST_MS 2000
#define GONE_POLL_MS 5 /* while a process group of a dead rank is not quite gone */

struct keeper {
	const struct run_options *opt;
	struct run_store store;
	const char *url;
	struct run_rank *rank;
	struct run_stream *stream; /* 2 per rank: out, err */
	struct pollfd *wait;	   /* front, children, streams */
	pid_t prover;
	int front, children, to_prover;
	int signalled; /* signals the front has handed on */
	int restarts, succeeded;
	int code;    /* of the first failure that counts in any case; 0: none */
	int excused; /* of the first failure that counts unless another rank ended with 0 */
	bool over;   /* the front is gone, or ep-run failed */
};

static bool start_rank(struct keeper *k, int r, bool replacement)
{
	struct run_rank *rank = &k->rank[r];
	int out[2], err[2], ends[2];

	if (pipe2(out, O_CLOEXEC))
		return false;
	if (pipe2(err, O_CLOEXEC)) {
		close(out[0]);
		close(out[1]);
		return false;
	}
	ends[0] = out[1];
	ends[1] = err[1];
	if (rank->lifeline >= 0)
		close(rank->lifeline);
	rank->pid = run_spawn(k->opt, k->url, r, replacement, ends, &rank->lifeline);
	close(out[1]);
	close(err[1]);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	fcntl(err[0], F_SETFL, O_NONBLOCK);
	run_stream_close(&k->stream[2 * r]);
	run_stream_close(&k->stream[2 * r + 1]);
	if (run_stream_open(&k->stream[2 * r], out[0], STDOUT_FILENO, r) ||
	    run_stream_open(&k->stream[2 * r + 1], err[0], STDERR_FILENO, r) || rank->pid < 0) {
		rank->pid = 0;
		return false;
	}
	rank->group = rank->pid;
	rank->start_ns = run_now_ns();
	rank->retry_ns = 0;
	run_prover_spawned(k->to_prover, r, rank->pid);
	return true;
}

static int running(const struct keeper *k)
{
	int count = 0;

	for (int r = 0; r < k->opt->ranks; r++)
		count += k->rank[r].pid != 0;
	return count;
}

static int exit_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* The last process of a rank has ended: does its failure count? See --help. */
static void conclude(struct keeper *k, int r)
{
	struct run_rank *rank = &k->rank[r];
	int code = exit_code(rank->status);
	bool lived_on = WIFSIGNALED(rank->status) || rank->restarts;

	rank->ended = true;
	rank->failed = code != 0;
	if (!code)
		k->succeeded++;
	else if (lived_on && !k->opt->strict && !k->signalled && !k->excused)
		k->excused = code;
	else if ((!lived_on || k->opt->strict || k->signalled) && !k->code)
		k->code = code;
}

/* A replacement makes sense only while others run and none has finished: later it would find no group. */
static bool may_replace(const struct keeper *k)
{
	return k->opt->restart && !k->signalled && !k->succeeded && k->restarts < RUN_MAX_RESTARTS && running(k) > 0;
}

static void rank_ended(struct keeper *k, int r, int status)
{
	struct run_rank *rank = &k->rank[r];
	uint64_t wait_ms = RETRY_FIRST_MS;

	rank->pid = 0;
	if (k->opt->ssh_count)
		status = run_remote_status(status);
	rank->status = status;
	if (WIFSIGNALED(status))
		run_say("rank %d was killed by signal %d (%s)", r, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		run_say("rank %d ended with code %d", r, WEXITSTATUS(status));
	if (!exit_code(status) || !may_replace(k)) {
		conclude(k, r);
		return;
	}
	for (int i = 1; i < rank->restarts && wait_ms < RETRY_LAST_MS; i++)
		wait_ms *= 2;
	if (wait_ms > RETRY_LAST_MS)
		wait_ms = RETRY_LAST_MS;
	rank->retry_ns = run_now_ns() + (rank->restarts ? wait_ms * UINT64_C(1000000) : 0);
}

static void store_ended(struct keeper *k, int status)
{
	run_say("the store ended, status 0x%x: starting it again, empty", (unsigned)status);
	if (run_store_restart(k->opt, &k->store)) {
		run_say("the store cannot be started again");
		k->store.pid = 0;
	}
}

static void child_ended(struct keeper *k, pid_t pid, int status)
{
	if (pid == k->store.pid)
		store_ended(k, status);
	else if (pid == k->prover)
		k->prover = 0;
	for (int r = 0; r < k->opt->ranks; r++) {
		if (k->rank[r].pid != pid)
			continue;
		/* Their last words come before what we say about them. */
		run_stream_read(&k->stream[2 * r]);
		run_stream_read(&k->stream[2 * r + 1]);
		rank_ended(k, r, status);
		return;
	}
}

static void reap(struct keeper *k)
{
	struct signalfd_siginfo info;
	siginfo_t si;
	int status;

	while (read(k->children, &info, sizeof(info)) == sizeof(info))
		;
	for (;;) {
		si.si_pid = 0;
		if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) || !si.si_pid)
			return;
		/* While the leader is not reaped its group's number is its own. */
		for (int r = 0; r < k->opt->ranks; r++)
			if (k->rank[r].pid == si.si_pid)
				kill(-si.si_pid, SIGKILL);
		if (waitpid(si.si_pid, &status, 0) == si.si_pid)
			child_ended(k, si.si_pid, status);
	}
}

/* A rank is surely dead when its whole process group is gone; only then is it proven, and replaced. */
static bool settle(struct keeper *k)
{
	bool all = true;

	for (int r = 0; r < k->opt->ranks; r++) {
		struct run_rank *rank = &k->rank[r];

		if (rank->pid || !rank->group)
			continue;
		if (!kill(-rank->group, 0) || errno != ESRCH) {
			all = false;
			continue;
		}
		rank->group = 0;
		if (exit_code(rank->status))
			run_prover_dead(k->to_prover, r);
	}
	return all;
}

static void replace(struct keeper *k)
{
	for (int r = 0; r < k->opt->ranks; r++) {
		struct run_rank *rank = &k->rank[r];

		if (rank->pid || rank->ended || rank->group || rank->retry_ns > run_now_ns())
			continue;
		if (!may_replace(k)) {
			conclude(k, r);
			continue;
		}
		k->restarts++;
		rank->restarts++;
		if (!start_rank(k, r, true))
			conclude(k, r);
	}
}

/* To the rank on its host. A line that cannot be written is no signal: then the connection goes, which kills it. */
static bool signal_far(const struct run_rank *rank, int sig)
{
	char line[8];
	int n = snprintf(line, sizeof(line), "%d\n", sig);

	return rank->lifeline >= 0 && sig != SIGKILL && write(rank->lifeline, line, (size_t)n) == n;
}

static void forward(struct keeper *k, int sig)
{
	if (k->signalled++)
		sig = SIGKILL;
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].pid && !signal_far(&k->rank[r], sig))
			kill(-k->rank[r].pid, k->rank[r].lifeline >= 0 ? SIGKILL : sig);
}

static void hear_front(struct keeper *k)
{
	unsigned char sig;
	ssize_t n = read(k->front, &sig, 1);

	if (n == 1)
		forward(k, sig);
	else if (n == 0 || errno != EINTR)
		k->over = true;
}

static bool undecided(const struct keeper *k)
{
	for (int r = 0; r < k->opt->ranks; r++)
		if (!k->rank[r].ended)
			return true;
	return false;
}

static void loop(struct keeper *k)
{
	int streams = 2 * k->opt->ranks;

	while (!k->over && undecided(k)) {
		int timeout = settle(k) ? (k->opt->restart ? RETRY_FIRST_MS : -1) : GONE_POLL_MS;

		replace(k);
		if (!undecided(k))
			return;
		k->wait[0] = (struct pollfd){ .fd = k->front, .events = POLLIN };
		k->wait[1] = (struct pollfd){ .fd = k->children, .events = POLLIN };
		for (int i = 0; i < streams; i++)
			k->wait[2 + i] = (struct pollfd){ .fd = k->stream[i].fd, .events = POLLIN };
		if (poll(k->wait, (nfds_t)streams + 2, timeout) < 0 && errno != EINTR)
			return;
		if (k->wait[0].revents)
			hear_front(k);
		for (int i = 0; i < streams; i++)
			if (k->wait[2 + i].revents)
				run_stream_read(&k->stream[i]);
		reap(k);
	}
}

static void summary(const struct keeper *k)
{
	if (k->store.starts > 1)
		run_say("the store was started %d times", k->store.starts);
	for (int r = 0; r < k->opt->ranks; r++) {
		const struct run_rank *rank = &k->rank[r];

		run_say("rank %d: %s %d, %d replacements", r,
			WIFSIGNALED(rank->status) ? "killed by signal" : "ended with",
			WIFSIGNALED(rank->status) ? WTERMSIG(rank->status) : WEXITSTATUS(rank->status), rank->restarts);
	}
}

static void front_died(int sig)
{
	(void)sig;
	run_output_gone = 1;
}

/* Own session, heir of all orphans, told at once when the front dies: a write that hangs is then cut short. */
static int settle_down(struct keeper *k)
{
	struct sigaction action = { .sa_handler = front_died };
	sigset_t set;

	setsid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigaction(SIGUSR2, &action, NULL);
	prctl(PR_SET_PDEATHSIG, SIGUSR2);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_SETMASK, &set, NULL);
	sigdelset(&set, SIGINT);
	sigdelset(&set, SIGTERM);
	sigdelset(&set, SIGHUP);
	k->children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	k->rank = calloc((size_t)k->opt->ranks, sizeof(*k->rank));
	k->stream = calloc((size_t)k->opt->ranks * 2, sizeof(*k->stream));
	k->wait = calloc((size_t)k->opt->ranks * 2 + 2, sizeof(*k->wait));
	if (k->children < 0 || !k->rank || !k->stream || !k->wait)
		return -1;
	for (int i = 0; i < 2 * k->opt->ranks; i++)
		k->stream[i].fd = -1;
	for (int r = 0; r < k->opt->ranks; r++)
		k->rank[r].lifeline = -1;
	return 0;
}

/* With a launcher between us and the rank, the death of our child says nothing, unless it is one that becomes the rank. */
static bool can_prove(const struct run_options *opt)
{
	return !opt->store && !opt->ssh_count && (!opt->launch_count || !strcmp(opt->launch[0], "ip"));
}

static bool start_all(struct keeper *k)
{
	k->url = k->opt->store;
	if (!k->url) {
		if (run_store_start(k->opt, &k->store))
			return false;
		k->url = k->store.url;
	}
	if (can_prove(k->opt))
		k->prover = run_prover_start(k->url, k->opt->group, k->opt->ranks, &k->to_prover);
	for (int r = 0; r < k->opt->ranks; r++) {
		if (!start_rank(k, r, false)) {
			run_say("rank %d cannot be started: %s%s", r, strerror(errno), run_why(errno));
			return false;
		}
	}
	return true;
}

int run_keeper(const struct run_options *opt, int front)
{
	struct keeper k = { .opt = opt, .front = front, .to_prover = -1 };
	int code = RUN_EXIT_SELF;

	if (!settle_down(&k) && start_all(&k)) {
		loop(&k);
		if (!k.over && !undecided(&k))
			code = k.code ? k.code : k.succeeded ? 0 : k.excused;
	}
	run_kill_all(0);
	for (int i = 0; k.stream && i < 2 * opt->ranks; i++) {
		if (k.stream[i].fd >= 0) {
			run_stream_read(&k.stream[i]);
			run_stream_close(&k.stream[i]);
		}
	}
	if (opt->verbose && !k.over)
		summary(&k);
	run_remove_dir(opt->dir);
	free(k.rank);
	free(k.stream);
	free(k.wait);
	return code;
}
