/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that ep-run inherits. For itself it changes that as needed. Its ranks get the original: signals that were
 * ignored or blocked on purpose (nohup, a shell's background), and the limit of descriptors.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "../inherit.h"
#include "run.h"

#define PER_RANK 2	/* descriptors of the keeper: its output; with ssh one more */
#define OF_KEEPER 16	/* all else, and what a start needs for a moment */
#define OF_SERVER 40	/* redis-server's own */
#define STORE_OF_RANK 2 /* its connections */

static struct {
	sigset_t ignored, blocked;
	struct rlimit files;
} given;

void run_inherit(void)
{
	struct sigaction now;

	sigemptyset(&given.ignored);
	for (int sig = 1; sig < NSIG; sig++)
		if (!sigaction(sig, NULL, &now) && now.sa_handler == SIG_IGN)
			sigaddset(&given.ignored, sig);
	sigprocmask(SIG_SETMASK, NULL, &given.blocked);
	if (getrlimit(RLIMIT_NOFILE, &given.files))
		given.files = (struct rlimit){ RLIM_INFINITY, RLIM_INFINITY };
	tool_settle();
}

bool run_ignored(int sig)
{
	return sigismember(&given.ignored, sig) == 1;
}

void run_give_back(void)
{
	for (int sig = 1; sig < NSIG; sig++)
		if (sigismember(&given.ignored, sig) == 1)
			signal(sig, SIG_IGN);
	sigprocmask(SIG_SETMASK, &given.blocked, NULL);
	setrlimit(RLIMIT_NOFILE, &given.files);
}

/* A limit that is too low is raised as far as allowed; the ranks get the original limit. */
static bool have_files(rlim_t need, const char *who, const char *else_what)
{
	struct rlimit files = given.files;

	if (need > files.rlim_max) {
		run_say("%s takes %llu descriptors and may have %llu: raise ulimit -n%s", who, (unsigned long long)need,
			(unsigned long long)files.rlim_max, else_what);
		return false;
	}
	if (files.rlim_cur < need + OF_KEEPER) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	return true;
}

bool run_limits(const struct run_options *opt)
{
	const rlim_t ranks = (rlim_t)opt->ranks;

	return have_files(ranks * (PER_RANK + !!opt->ssh_count) + OF_KEEPER, "ep-run", "") &&
	       (opt->store || have_files(ranks * STORE_OF_RANK + OF_SERVER, "redis-server",
					 ", or name a store that runs elsewhere with --store"));
}

const char *run_why(int err)
{
	switch (err) {
	case EAGAIN:
		return ": raise ulimit -u, or pids.max of the cgroup";
	case EMFILE:
		return ": raise ulimit -n";
	case ENFILE:
		return ": raise fs.file-max of this machine";
	case ENOMEM:
		return ": there is no memory, or ulimit -v is too small";
	}
	return "";
}
