/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prover: a process beside the keeper that tells the store which ranks are surely dead, so that
 * survivors need not wait for them. A wrong proof could split the group, so it is careful about
 * whom it names: an incarnation counts as ours only if the store showed it as the holder of the
 * rank and our process was still alive after that answer. What it does not know it does not say.
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

#include "covey.h"
#include "run.h"

#define LOOK_MS 300   /* between two looks at the store, and one more for every rank */
#define CALL_MS 1000  /* bound of one call */
#define PF_EXITING 4u /* in the flags of /proc/PID/stat */

struct note {
	int rank;
	pid_t pid; /* started as this; 0: dead for certain */
};

struct holder {
	pid_t pid;
	uint64_t inc;  /* its incarnation, 0: not known */
	uint64_t seen; /* who holds the rank, as the look under way shows it */
};

struct prover {
	const char *url, *group;
	struct holder *holder;
	int ranks;
};

/* m:R = `inc from addr host` */
static void see_pair(void *ctx, const char *key, const char *value)
{
	struct prover *p = ctx;
	int rank;

	if (sscanf(key, "m:%d", &rank) == 1 && rank >= 0 && rank < p->ranks)
		p->holder[rank].seen = strtoull(value, NULL, 10);
}

static void ignore_pair(void *ctx, const char *key, const char *value)
{
	(void)ctx, (void)key, (void)value;
}

/* Not a zombie, not stopped, and its first thread not on its way out. */
static bool running(pid_t pid)
{
	char path[32], line[512], state, *after;
	unsigned flags;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (n <= 0)
		return false;
	line[n] = '\0';
	after = strrchr(line, ')');
	if (!after || sscanf(after, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	return state != 'Z' && state != 'X' && state != 'T' && state != 't' && !(flags & PF_EXITING);
}

static void look(struct prover *p)
{
	static const char *const argv[] = { "peek" };

	for (int r = 0; r < p->ranks; r++)
		p->holder[r].seen = 0;
	if (covey_admin_call(p->url, p->group, 1, argv, run_now_ns() + CALL_MS * UINT64_C(1000000), see_pair, p))
		return; /* not formed yet, or the store is away: nothing learned */
	for (int r = 0; r < p->ranks; r++)
		/* The first that is seen while the process runs is its own. A later one is a replacement's: a stopped
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
	snprintf(number, sizeof(number), "%d", rank);
	snprintf(inc, sizeof(inc), "%" PRIu64, p->holder[rank].inc);
	covey_admin_call(p->url, p->group, 4, argv, run_now_ns() + CALL_MS * UINT64_C(1000000), ignore_pair, NULL);
}

static void __attribute__((noreturn)) live(struct prover *p, int from)
{
	struct pollfd wait = { .fd = from, .events = POLLIN };
	struct note note;

	for (;;) {
		int ready = poll(&wait, 1, LOOK_MS + p->ranks);

		if (ready < 0 && errno != EINTR)
			_exit(0);
		if (ready <= 0) {
			look(p);
			continue;
		}
		if (read(from, &note, sizeof(note)) != sizeof(note))
			_exit(0); /* the keeper is gone */
		if (!note.pid)
			prove(p, note.rank);
		p->holder[note.rank] = (struct holder){ .pid = note.pid };
	}
}

pid_t run_prover_start(const char *url, const char *group, int ranks, int *to)
{
	struct prover p = { url, group, NULL, ranks };
	int ends[2];
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	pid = run_fork();
	if (!pid) {
		/* Only its pipe: the keeper's others must end when the keeper does. */
		if (dup2(ends[0], 3) < 0)
			_exit(RUN_EXIT_SELF);
		for (int fd = 4; fd < 64; fd++)
			close(fd);
		covey_log_set(NULL, NULL, COVEY_LOG_ERROR);
		p.holder = calloc((size_t)ranks, sizeof(*p.holder));
		if (!p.holder)
			_exit(RUN_EXIT_SELF);
		live(&p, 3);
	}
	close(ends[0]);
	if (pid < 0) {
		close(ends[1]);
		return -1;
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK); /* a stuck store must not stop the keeper: then it is not told */
	*to = ends[1];
	return pid;
}

static void tell(int to, struct note note)
{
	/* Smaller than PIPE_BUF: all or nothing. A lost start only means a death that is not proven. */
	if (to >= 0 && write(to, &note, sizeof(note)) != sizeof(note))
		run_say("the death of ranks is no longer reported to the store: %s", strerror(errno));
}

void run_prover_spawned(int to, int rank, pid_t pid)
{
	tell(to, (struct note){ rank, pid });
}

void run_prover_dead(int to, int rank)
{
	tell(to, (struct note){ rank, 0 });
}
