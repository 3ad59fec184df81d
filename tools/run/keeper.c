/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: parent of the private store and of every rank. It runs one loop over the front's pipe, the children's
 * deaths and their output. At any end of it, no process and no file of this run is left.
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
#define GONE_POLL_MS 5 /* until the process group of a dead rank has ended */
#define ANSWER_MS 1500 /* for the store's answer about an ended rank; without it, the rank counts as dead */

struct keeper {
	const struct run_options *opt;
	struct run_store store;
	const char *url;
	struct run_rank *rank;
	struct run_stream *stream; /* 2 per rank: out, err */
	struct pollfd *wait;	   /* front, children, prover, streams */
	struct run_prover prover;
	int front, children, shown;
	int signalled; /* signals that the front has passed on */
	int restarts, succeeded;
	int code;    /* of the first failure that counts in any case; 0: none */
	int excused; /* of the first failure that counts unless another rank ended with 0 */
	bool over;   /* the front has ended, or ep-run failed */
};

#define FIXED_WAITS 3

/* The number of the rank at place @r. */
static int name_of(const struct keeper *k, int r)
{
	return k->opt->first + r;
}

/* Its process joins an existing group: a replacement, or of --grow. */
static bool joins(const struct keeper *k, int r)
{
	return r >= k->opt->forming || k->rank[r].restarts;
}

static bool start_rank(struct keeper *k, int r)
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
	rank->pid = run_spawn(k->opt, k->url, r, joins(k, r), ends, &rank->lifeline);
	close(out[1]);
	close(err[1]);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	fcntl(err[0], F_SETFL, O_NONBLOCK);
	run_stream_close(&k->stream[2 * r]);
	run_stream_close(&k->stream[2 * r + 1]);
	if (run_stream_open(&k->stream[2 * r], out[0], STDOUT_FILENO, name_of(k, r)) ||
	    run_stream_open(&k->stream[2 * r + 1], err[0], STDERR_FILENO, name_of(k, r)) || rank->pid < 0) {
		rank->pid = 0;
		return false;
	}
	rank->group = rank->pid;
	rank->start_ns = tool_now_ns();
	rank->retry_ns = 0;
	rank->fate = RUN_UNKNOWN;
	rank->closed = false;
	run_prover_spawned(&k->prover, r, rank->pid);
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

/*
 * The rank is over: has it failed? The table in --help says the same. A process that came too late to take part says
 * nothing of the work: then the process before it counts. A signal is forgiven to the first process of a rank alone. If
 * replacements die too, the group did not live on without a rank, but was kept from being whole.
 */
static void conclude(struct keeper *k, int r)
{
	struct run_rank *rank = &k->rank[r];
	bool late = (rank->late || rank->closed) && k->succeeded && joins(k, r);
	int status = late && rank->restarts ? rank->before : rank->status, code = exit_code(status);
	bool first = rank->restarts - (late && rank->restarts) == 0;
	bool forgiven = first && (WIFSIGNALED(status) || (late && !rank->restarts));

	rank->ended = true;
	if (!exit_code(rank->status))
		k->succeeded += rank->fate != RUN_RETIRED;
	else if (rank->fate == RUN_RETIRED)
		return;
	else if (forgiven && !k->opt->strict && !k->signalled && !k->excused)
		k->excused = code;
	else if ((!forgiven || k->opt->strict || k->signalled) && !k->code)
		k->code = code;
}

/* A replacement makes sense only while others run and none has finished: later it would find no group. */
static bool may_replace(const struct keeper *k, int r)
{
	return k->opt->restart && k->rank[r].fate != RUN_LEFT && k->rank[r].fate != RUN_RETIRED && !k->signalled &&
	       !k->succeeded && k->restarts < RUN_MAX_RESTARTS && running(k) > 0;
}

/* The store's answer about the last process of a rank has come, or will not come. */
static void judge(struct keeper *k, int r)
{
	struct run_rank *rank = &k->rank[r];
	uint64_t wait_ms = RETRY_FIRST_MS;

	rank->answer_ns = 0;
	if (rank->ended) { /* with 0; if the rank was retired, that does not show that the work is done */
		k->succeeded -= rank->fate == RUN_RETIRED;
		return;
	}
	if (rank->fate == RUN_RETIRED)
		run_say("rank %d was retired: it is finished", name_of(k, r));
	if (!may_replace(k, r)) {
		conclude(k, r);
		return;
	}
	if (rank->closed)
		run_say("group %s is closed: rank %d is not started again", k->opt->group, name_of(k, r));
	for (int i = 1; i < rank->restarts && wait_ms < RETRY_LAST_MS; i++)
		wait_ms *= 2;
	if (wait_ms > RETRY_LAST_MS)
		wait_ms = RETRY_LAST_MS;
	rank->retry_ns = tool_now_ns() + (rank->restarts ? wait_ms * UINT64_C(1000000) : 0);
}

static void ask(struct keeper *k, int r)
{
	if (run_prover_ended(&k->prover, r, &k->rank[r]))
		k->rank[r].answer_ns = tool_now_ns() + ANSWER_MS * UINT64_C(1000000);
	else
		judge(k, r);
}

/* Ranks that ended with 0 are asked about only when another one failed, so that a run that ends well asks nothing. */
static void ask_of_finished(struct keeper *k)
{
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].ended && !k->rank[r].status && k->rank[r].fate == RUN_UNKNOWN && !k->rank[r].answer_ns)
			ask(k, r);
}

static bool answers_missing(const struct keeper *k)
{
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].answer_ns)
			return true;
	return false;
}

static void hear_prover(struct keeper *k)
{
	struct run_answer answer;
	uint64_t now = tool_now_ns();

	while (k->prover.from >= 0) {
		ssize_t n = read(k->prover.from, &answer, sizeof(answer));

		if (n == sizeof(answer)) {
			struct run_rank *rank = &k->rank[answer.rank];

			if (!rank->answer_ns || rank->end_ns != answer.end_ns)
				continue; /* it came too late, or is about the process before */
			rank->fate = answer.fate == RUN_UNKNOWN ? RUN_DIED : answer.fate;
			rank->closed = answer.closed;
			rank->answer_ns = now; /* judged below */
		} else if (n == 0) {
			close(k->prover.from);
			close(k->prover.to);
			k->prover.from = k->prover.to = -1;
		} else if (n < 0 && errno != EINTR) {
			break;
		}
	}
	/* Ranks that ended with 0 are settled first: the verdict on others depends on them. */
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].answer_ns && k->rank[r].ended && (k->rank[r].answer_ns <= now || k->prover.from < 0))
			judge(k, r);
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].ended && k->rank[r].answer_ns)
			return;
	for (int r = 0; r < k->opt->ranks; r++)
		if (k->rank[r].answer_ns && (k->rank[r].answer_ns <= now || k->prover.from < 0))
			judge(k, r);
}

static void rank_ended(struct keeper *k, int r, int status)
{
	struct run_rank *rank = &k->rank[r];
	char text[64];

	rank->pid = 0;
	if (k->opt->ssh_count)
		status = run_remote_status(status);
	rank->status = status;
	rank->end_ns = tool_now_ns();
	rank->late = k->succeeded > 0;
	if (!exit_code(status)) {
		conclude(k, r);
		return;
	}
	run_say("rank %d %s", name_of(k, r), run_status_text(status, text));
	if (k->signalled)
		conclude(k, r); /* the one that ends the run does not wait for a store */
}

static void store_ended(struct keeper *k, int status)
{
	char text[64];

	run_say("the store %s: starting it again, empty", run_status_text(status, text));
	if (run_store_restart(k->opt, &k->store)) {
		run_say("the store cannot be started again");
		k->store.pid = 0;
	}
}

static void child_ended(struct keeper *k, pid_t pid, int status)
{
	if (pid == k->store.pid)
		store_ended(k, status);
	else if (pid == k->prover.pid)
		k->prover.pid = 0;
	for (int r = 0; r < k->opt->ranks; r++) {
		if (k->rank[r].pid != pid)
			continue;
		/* Their last output is printed before our messages about them. */
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

/* A rank is surely dead when its whole process group has ended; only then is it proven, and replaced. */
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
		if (!exit_code(rank->status))
			continue;
		if (rank->ended) { /* no answer about it is needed, but others may wait for the proof of its death */
			run_prover_ended(&k->prover, r, rank);
			continue;
		}
		ask_of_finished(k);
		ask(k, r);
	}
	return all;
}

static void replace(struct keeper *k)
{
	for (int r = 0; r < k->opt->ranks; r++) {
		struct run_rank *rank = &k->rank[r];

		if (rank->pid || rank->ended || rank->group || rank->answer_ns || rank->retry_ns > tool_now_ns())
			continue;
		if (!may_replace(k, r)) {
			conclude(k, r);
			continue;
		}
		if (rank->closed) /* how the others end says what its end means */
			continue;
		k->restarts++;
		rank->restarts++;
		rank->before = rank->status;
		if (!start_rank(k, r))
			conclude(k, r);
	}
}

/* Sends a signal to the rank on its host. If that fails, the connection is closed, which kills the rank. */
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
		int timeout = settle(k) ? (k->opt->restart || answers_missing(k) ? RETRY_FIRST_MS : -1) : GONE_POLL_MS;

		replace(k);
		if (!undecided(k))
			return;
		k->wait[0] = (struct pollfd){ .fd = k->front, .events = POLLIN };
		k->wait[1] = (struct pollfd){ .fd = k->children, .events = POLLIN };
		k->wait[2] = (struct pollfd){ .fd = k->prover.from, .events = POLLIN };
		for (int i = 0; i < streams; i++)
			k->wait[FIXED_WAITS + i] = (struct pollfd){ .fd = k->stream[i].fd, .events = POLLIN };
		if (poll(k->wait, (nfds_t)streams + FIXED_WAITS, timeout) < 0 && errno != EINTR)
			return;
		if (k->wait[0].revents)
			hear_front(k);
		for (int i = 0; i < streams; i++)
			if (k->wait[FIXED_WAITS + i].revents)
				run_stream_read(&k->stream[i]);
		reap(k);
		hear_prover(k);
	}
}

static void summary(const struct keeper *k)
{
	if (k->store.starts > 1)
		run_say("the store was started %d times", k->store.starts);
	for (int r = 0; r < k->opt->ranks; r++) {
		const struct run_rank *rank = &k->rank[r];
		char text[64];

		run_say("rank %d %s%s, %d replacements", name_of(k, r), run_status_text(rank->status, text),
			rank->fate == RUN_RETIRED ? " after it was retired"
			: rank->fate == RUN_LEFT  ? " after it had left the group"
						  : "",
			rank->restarts);
	}
}

static void front_died(int sig)
{
	(void)sig;
	run_output_gone = 1;
}

/* Own session, subreaper, and a signal at the front's death, which interrupts a hanging write. */
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
	k->wait = calloc((size_t)k->opt->ranks * 2 + FIXED_WAITS, sizeof(*k->wait));
	if (k->children < 0 || !k->rank || !k->stream || !k->wait)
		return -1;
	for (int i = 0; i < 2 * k->opt->ranks; i++)
		k->stream[i].fd = -1;
	for (int r = 0; r < k->opt->ranks; r++)
		k->rank[r].lifeline = -1;
	return 0;
}

/* With a launcher between us and the rank, our child's death proves nothing, unless the launcher becomes the rank. */
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
		k->shown = run_show_store(k->opt, k->url);
	}
	if (run_prover_start(k->opt, k->url, can_prove(k->opt), &k->prover))
		k->prover.to = k->prover.from = -1;
	for (int r = 0; r < k->opt->ranks; r++) {
		if (!start_rank(k, r)) {
			run_say("rank %d cannot be started: %s%s", name_of(k, r), strerror(errno), run_why(errno));
			return false;
		}
	}
	return true;
}

int run_keeper(const struct run_options *opt, int front)
{
	struct keeper k = { .opt = opt, .front = front, .prover = { .to = -1, .from = -1 }, .shown = -1 };
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
	if (!code && run_output_lost)
		code = RUN_EXIT_SELF;
	tool_remove_dir(opt->dir);
	free(k.rank);
	free(k.stream);
	free(k.wait);
	return code;
}
