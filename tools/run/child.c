/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes and the private directory: how they begin, and how all of them end. Only direct children are killed here:
 * until we reap a child, its number cannot be reused, and as a subreaper we become the parent of a killed child's
 * children.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define KILL_MS 10000 /* a process in an uninterruptible call may take as long to die */

/* Parent and session of a process, from its stat line; -1: it has ended. */
static int read_stat(const char *pid, int *parent, int *session)
{
	char line[512];
	const char *after = tool_stat(pid, line, sizeof(line));

	if (!after || sscanf(after, ") %*c %d %*d %d", parent, session) != 2)
		return -1;
	return 0;
}

/* Kills and reaps the present children; returns how many are left. */
static int kill_children(pid_t spare_session)
{
	int parent, session, left = 0;
	struct dirent *entry;
	DIR *proc = opendir("/proc");

	if (!proc)
		return 0;
	while ((entry = readdir(proc))) {
		pid_t pid;

		if (!isdigit((unsigned char)entry->d_name[0]) || read_stat(entry->d_name, &parent, &session))
			continue;
		if (parent != getpid() || session == spare_session)
			continue;
		pid = (pid_t)strtol(entry->d_name, NULL, 10);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, WNOHANG);
		left++;
	}
	closedir(proc);
	return left;
}

/* Ends every child, and theirs as we inherit them. @spare_session: children of it are older than this run; 0: none. */
void run_kill_all(pid_t spare_session)
{
	uint64_t end = tool_now_ns() + KILL_MS * UINT64_C(1000000);
	int left;

	while ((left = kill_children(spare_session))) {
		if (tool_now_ns() > end) {
			run_say("%d processes cannot be killed: they are stuck in the kernel", left);
			return;
		}
		poll(NULL, 0, 1);
	}
}

int run_make_dir(struct run_options *opt)
{
	const char *why, *base = tool_tmp(&why);

	if (why)
		run_say("TMPDIR %s: the directory of the store is made in /tmp", why);
	snprintf(opt->dir, sizeof(opt->dir), "%s/covey-XXXXXX", base);
	if (mkdtemp(opt->dir) && !chmod(opt->dir, 0700)) /* with any umask */
		return 0;
	run_say("no directory can be made in %s: %s; set TMPDIR to one that can be written, or name a store with "
		"--store, which needs none",
		base, strerror(errno));
	opt->dir[0] = '\0';
	return -1;
}

/* Signals as a program expects them, and death with the parent. */
pid_t run_fork(void)
{
	pid_t parent = getpid(), pid = fork();
	sigset_t none;

	if (pid) {
		if (pid > 0)
			setpgid(pid, pid); /* here too: parent and child race */
		return pid;
	}
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(RUN_EXIT_SELF); /* it died before the line above */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
	return 0;
}

/* Ranks are placed on hosts in equal blocks, the first hosts taking one more; or as many on each as it has slots. */
void run_place(const struct run_options *opt, int rank, int *host, int *local)
{
	int hosts = opt->host_count ? opt->host_count : 1;
	int each = opt->ranks / hosts, more = opt->ranks % hosts, first = 0;

	for (*host = 0; *host < hosts - 1; (*host)++) {
		int here = opt->slots[0] ? opt->slots[*host] : each + (*host < more);

		if (rank < first + here)
			break;
		first += here;
	}
	*local = rank - first;
}

static void set_text(struct run_variable *to, const char *name, const char *value)
{
	to->name = name;
	to->value = value;
}

static void set_number(struct run_variable *to, const char *name, int value)
{
	to->name = name;
	snprintf(to->number, sizeof(to->number), "%d", value);
	to->value = to->number;
}

int run_variables(const struct run_options *opt, const char *url, int rank, bool replacement,
		  struct run_variable list[RUN_VARIABLES])
{
	int host, local, n = 0;

	run_place(opt, rank, &host, &local);
	set_text(&list[n++], "COVEY_STORE", url);
	set_text(&list[n++], "COVEY_GROUP", opt->group);
	set_number(&list[n++], "COVEY_RANK", opt->first + rank);
	set_number(&list[n++], "RANK", opt->first + rank);
	set_number(&list[n++], "LOCAL_RANK", local);
	set_number(&list[n++], "COVEY_WORLD", opt->world);
	set_number(&list[n++], "WORLD_SIZE", opt->world);
	set_number(&list[n++], "COVEY_MAX_RANKS", opt->max_ranks);
	if (opt->job[0])
		set_text(&list[n++], "COVEY_JOB", opt->job);
	if (opt->meeting) {
		set_text(&list[n++], "MASTER_ADDR", opt->ssh_count ? opt->hosts[0] : "127.0.0.1");
		set_number(&list[n++], "MASTER_PORT", opt->meeting);
	}
	if (opt->host_count)
		set_text(&list[n++], "COVEY_HOST", opt->hosts[host]);
	/* That of here may be of another group: ep-run in a rank that was started again. */
	set_text(&list[n++], "COVEY_CREATE", replacement ? "never" : "first");
	return n;
}

static void set_environment(const struct run_options *opt, const char *url, int rank, bool replacement)
{
	struct run_variable list[RUN_VARIABLES];
	int n = run_variables(opt, url, rank, replacement, list);

	for (int i = 0; i < n; i++)
		setenv(list[i].name, list[i].value, 1);
}

/* @word with {host} replaced, in memory that the child never frees. */
static char *fill_host(const char *word, const char *host)
{
	const char *at = strstr(word, "{host}");
	char *text = NULL;

	if (!at)
		return strdup(word);
	if (asprintf(&text, "%.*s%s%s", (int)(at - word), word, host, at + strlen("{host}")) < 0)
		return NULL;
	return text;
}

static void __attribute__((noreturn)) exec_program(const struct run_options *opt, int rank)
{
	int host, local, count = 1; /* the program, then its arguments */
	char **argv;

	while (opt->argv[count])
		count++;
	argv = calloc((size_t)(opt->launch_count + count + 1), sizeof(*argv));
	if (!argv)
		_exit(RUN_EXIT_SELF);
	run_place(opt, rank, &host, &local);
	for (int i = 0; i < opt->launch_count; i++) {
		argv[i] = fill_host(opt->launch[i], opt->hosts[host]);
		if (!argv[i])
			_exit(RUN_EXIT_SELF);
	}
	memcpy(argv + opt->launch_count, opt->argv, (size_t)count * sizeof(*argv));
	execvp(argv[0], argv);
	dprintf(STDERR_FILENO, "ep-run: %s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

pid_t run_spawn(const struct run_options *opt, const char *url, int rank, bool replacement, const int out[2],
		int *lifeline)
{
	size_t bytes = 0;
	int in = -1;
	pid_t pid;

	*lifeline = -1;
	if (opt->ssh_count) {
		in = run_lifeline(opt, url, rank, replacement, &bytes, lifeline);
		if (in < 0)
			return -1;
	}
	pid = run_fork();
	if (pid) {
		if (in >= 0)
			close(in);
		if (pid < 0 && *lifeline >= 0) {
			close(*lifeline);
			*lifeline = -1;
		}
		return pid;
	}
	if (in < 0)
		in = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (in < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out[0], STDOUT_FILENO) < 0 || dup2(out[1], STDERR_FILENO) < 0)
		_exit(RUN_EXIT_SELF);
	run_give_back();
	if (opt->ssh_count)
		run_exec_remote(opt, rank, bytes);
	set_environment(opt, url, rank, replacement);
	exec_program(opt, rank);
}
