/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prover: a process beside the keeper that talks to the store, so that a silent store never delays the keeper. It
 * tells the store which ranks are surely dead, so that survivors need not wait for them. It tells the keeper which
 * ranks had left the group or were retired when they ended.
 *
 * A wrong proof could split the group. So an incarnation counts as ours only if the store showed it as the holder of
 * the rank and our process was still alive after that answer. Without that knowledge it proves nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "covey_admin.h"
#include "run.h"

#define LOOK_MS 300   /* between two looks at the store, and one more for every rank */
#define CALL_MS 1000  /* bound of one call */
#define SLACK_MS 2    /* clocks of the store and of here are read to the millisecond, one after the other */
#define PF_EXITING 4u /* in the flags of /proc/PID/stat */

struct note {
	int rank;
	pid_t pid;		   /* started as this; 0: it has ended */
	bool dead;		   /* by a signal or with another code than 0 */
	uint64_t start_ns, end_ns; /* of the process that has ended */
};

struct holder {
	pid_t pid;
	uint64_t inc;	   /* its incarnation, 0: not known */
	uint64_t seen;	   /* the holder of the rank in the present look */
	uint64_t left;	   /* the last incarnation that left the rank, as the last look shows it; 0: none */
	uint64_t left_ms;  /* when, by the store's clock */
	enum run_fate why; /* RUN_LEFT or RUN_RETIRED */
};

struct prover {
	const char *url, *group;
	struct holder *holder;
	int ranks, first;
	bool proofs, closed; /* closed: the group is, as the last look shows it */
	int to;		     /* the keeper */
	uint64_t looked_ns;  /* when the last answered look began; 0: none */
	uint64_t store_ms;   /* the store's clock at its answer, */
	uint64_t answer_ns;  /* and ours */
};

/* `inc left ms` or `inc retired ms` */
static void see_left(struct holder *h, const char *value)
{
	char why[16];

	if (sscanf(value, "%" SCNu64 " %15s %" SCNu64, &h->left, why, &h->left_ms) == 3)
		h->why = strcmp(why, "retired") ? RUN_LEFT : RUN_RETIRED;
	else
		h->left = 0;
}

/* m:R = `inc from addr host`; q:R: see above; now = server ms */
static void see_pair(void *ctx, const char *key, const char *value)
{
	struct prover *p = ctx;
	char kind;
	int rank;

	if (!strcmp(key, "now"))
		p->store_ms = strtoull(value, NULL, 10);
	if (!strcmp(key, "ph"))
		p->closed = !strcmp(value, "closed");
	if (sscanf(key, "%c:%d", &kind, &rank) != 2 || rank < p->first || rank - p->first >= p->ranks)
		return;
	if (kind == 'm')
		p->holder[rank - p->first].seen = strtoull(value, NULL, 10);
	else if (kind == 'q')
		see_left(&p->holder[rank - p->first], value);
}

static void ignore_pair(void *ctx, const char *key, const char *value)
{
	(void)ctx, (void)key, (void)value;
}

/* Not a zombie, not stopped, and its first thread not on its way out. */
static bool running(pid_t pid)
{
	char name[16], line[512], state;
	const char *after;
	unsigned flags;

	snprintf(name, sizeof(name), "%d", (int)pid);
	after = tool_stat(name, line, sizeof(line));
	if (!after || sscanf(after, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	return state != 'Z' && state != 'X' && state != 'T' && state != 't' && !(flags & PF_EXITING);
}

static void look(struct prover *p)
{
	static const char *const argv[] = { "peek" };
	uint64_t begin = tool_now_ns();

	for (int r = 0; r < p->ranks; r++)
		p->holder[r].seen = p->holder[r].left = 0;
	if (covey_admin_call(p->url, p->group, 1, argv, begin + CALL_MS * UINT64_C(1000000), see_pair, p))
		return; /* not formed yet, or the store is away: nothing learned */
	p->looked_ns = begin;
	p->answer_ns = tool_now_ns();
	for (int r = 0; r < p->ranks; r++)
		/* The first one seen while the process runs is its own. A later one is a replacement's: a stopped
		 * process may have lost its rank, and its end must not prove the wrong one dead. */
		if (!p->holder[r].inc && p->holder[r].seen && p->holder[r].pid && running(p->holder[r].pid))
			p->holder[r].inc = p->holder[r].seen;
}

static void prove(struct prover *p, int rank)
{
	char number[16], inc[24];
	const char *argv[] = { "prove", number, inc, "pidfd" };

	if (!p->holder[rank].inc)
		return;
	snprintf(number, sizeof(number), "%d", p->first + rank);
	snprintf(inc, sizeof(inc), "%" PRIu64, p->holder[rank].inc);
	covey_admin_call(p->url, p->group, 4, argv, tool_now_ns() + CALL_MS * UINT64_C(1000000), ignore_pair, NULL);
}

/*
 * Had the process left when it ended? If its incarnation is known, that decides. Otherwise the time of the last leave
 * decides: while this process ran, no other one of ours could hold the rank. Ages are compared, not the two clocks.
 */
static enum run_fate fate(const struct prover *p, const struct note *note)
{
	const struct holder *h = &p->holder[note->rank];
	uint64_t age_ms = (p->answer_ns - note->start_ns) / 1000000 + SLACK_MS;

	if (p->looked_ns < note->end_ns)
		return RUN_UNKNOWN;
	if (!h->left || (h->inc && h->inc != h->left))
		return RUN_DIED;
	if (!h->inc && p->store_ms - h->left_ms > age_ms)
		return RUN_DIED;
	return h->why;
}

/* A process of a rank has ended: the proof is sent first, since others wait for it. */
static void ended(struct prover *p, const struct note *note)
{
	struct run_answer answer = { .rank = note->rank, .end_ns = note->end_ns };

	if (p->proofs && note->dead)
		prove(p, note->rank);
	if (p->looked_ns < note->end_ns)
		look(p);
	answer.fate = fate(p, note);
	answer.closed = answer.fate != RUN_UNKNOWN && p->closed;
	if (write(p->to, &answer, sizeof(answer)) != sizeof(answer))
		_exit(0);
}

static void __attribute__((noreturn)) live(struct prover *p, int from)
{
	struct pollfd wait = { .fd = from, .events = POLLIN };
	struct note note;

	for (;;) {
		int ready = poll(&wait, 1, p->proofs ? LOOK_MS + p->ranks : -1);

		if (ready < 0 && errno != EINTR)
			_exit(0);
		if (ready <= 0) {
			look(p);
			continue;
		}
		if (read(from, &note, sizeof(note)) != sizeof(note))
			_exit(0); /* the keeper has ended */
		if (!note.pid)
			ended(p, &note);
		p->holder[note.rank].pid = note.pid;
		p->holder[note.rank].inc = 0;
	}
}

int run_prover_start(const struct run_options *opt, const char *url, bool proofs, struct run_prover *prover)
{
	struct prover p = {
		.url = url, .group = opt->group, .ranks = opt->ranks, .first = opt->first, .proofs = proofs
	};
	int there[2], back[2];

	if (pipe2(there, O_CLOEXEC))
		return -1;
	if (pipe2(back, O_CLOEXEC)) {
		close(there[0]);
		close(there[1]);
		return -1;
	}
	prover->pid = run_fork();
	if (!prover->pid) {
		/* Only its pipes: the keeper's others must end when the keeper does. */
		int from = fcntl(there[0], F_DUPFD_CLOEXEC, 64), to = fcntl(back[1], F_DUPFD_CLOEXEC, 64);

		if (from < 0 || to < 0 || dup2(from, 3) < 0 || dup2(to, 4) < 0)
			_exit(RUN_EXIT_SELF);
		for (int fd = 5; fd < 68; fd++)
			close(fd);
		covey_log_set(NULL, NULL, COVEY_LOG_ERROR);
		p.to = 4;
		p.holder = calloc((size_t)opt->ranks, sizeof(*p.holder));
		if (!p.holder)
			_exit(RUN_EXIT_SELF);
		live(&p, 3);
	}
	close(there[0]);
	close(back[1]);
	if (prover->pid < 0) {
		close(there[1]);
		close(back[0]);
		return -1;
	}
	fcntl(there[1], F_SETPIPE_SZ,
	      (int)(2 * (size_t)opt->ranks * sizeof(struct note))); /* of many ranks, or as it is */
	fcntl(there[1], F_SETFL, O_NONBLOCK); /* a stuck store must not stop the keeper: then the note is dropped */
	fcntl(back[0], F_SETFL, O_NONBLOCK);
	prover->to = there[1];
	prover->from = back[0];
	return 0;
}

/* Smaller than PIPE_BUF: all or nothing. A lost start only means a death that is not proven. */
static bool tell(const struct run_prover *prover, const struct note *note)
{
	if (prover->to < 0)
		return false;
	if (write(prover->to, note, sizeof(*note)) == sizeof(*note))
		return true;
	run_say("the death of ranks is not reported to the store: %s", strerror(errno));
	return false;
}

void run_prover_spawned(const struct run_prover *prover, int rank, pid_t pid)
{
	tell(prover, &(struct note){ .rank = rank, .pid = pid });
}

bool run_prover_ended(const struct run_prover *prover, int rank, const struct run_rank *what)
{
	struct note note = {
		.rank = rank, .dead = what->status != 0, .start_ns = what->start_ns, .end_ns = what->end_ns
	};

	return tell(prover, &note);
}
