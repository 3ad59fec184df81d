/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that the director starts: ep-run with the ranks, later ranks, ep-admin. All die with it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "moe.h"

#define MOE_MAX_ARGS 64

static pid_t start(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(125); /* it died before the line above */
	signal(SIGPIPE, SIG_DFL);
	return 0;
}

static void set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

/* This program's own command line, with the options that ranks share, behind @head (@n words). */
static void exec_self(const struct moe_options *opt, const char *socket, char **head, int n)
{
	char report[160], seed[40], part[24], *argv[MOE_MAX_ARGS];

	snprintf(report, sizeof(report), "--report=%s", socket);
	snprintf(seed, sizeof(seed), "--seed=%llu", (unsigned long long)opt->seed);
	snprintf(part, sizeof(part), "--part=%d", opt->part < 0 ? 0 : opt->part);
	for (int i = 0; i < n; i++)
		argv[i] = head[i];
	argv[n++] = (char *)opt->self;
	for (int i = 1; i < opt->argc && n < MOE_MAX_ARGS - 4; i++)
		argv[n++] = opt->argv[i];
	argv[n++] = report;
	argv[n++] = seed;
	argv[n++] = part;
	argv[n] = NULL;
	execvp(argv[0], argv);
	perror(argv[0]);
	_exit(127);
}

pid_t moe_start_group(const struct moe_options *opt, const char *socket)
{
	char program[4200], ranks[16], most[16];
	char *head[] = { program, "-n", ranks, "--max-ranks", most, "--restart", "never", "--" };
	pid_t pid = start();

	if (pid)
		return pid;
	snprintf(program, sizeof(program), "%s/ep-run", opt->tools);
	snprintf(ranks, sizeof(ranks), "%d", opt->ranks);
	snprintf(most, sizeof(most), "%d", opt->max_ranks);
	setenv("COVEY_TRANSPORT", opt->transport, 1);
	exec_self(opt, socket, head, (int)(sizeof(head) / sizeof(head[0])));
	return -1;
}

pid_t moe_start_rank(const struct moe_options *opt, const char *socket, const struct moe_report *hello, int rank)
{
	pid_t pid = start();

	if (pid)
		return pid;
	setenv("COVEY_STORE", hello->store, 1);
	setenv("COVEY_GROUP", hello->group, 1);
	setenv("COVEY_CREATE", "never", 1);
	setenv("COVEY_TRANSPORT", opt->transport, 1);
	set_number("COVEY_RANK", rank);
	set_number("RANK", rank);
	set_number("COVEY_MAX_RANKS", opt->max_ranks);
	exec_self(opt, socket, NULL, 0);
	return -1;
}

pid_t moe_start_admin(const struct moe_options *opt, const struct moe_report *hello, const char *verb, int number)
{
	char program[4200], text[16];
	pid_t pid = start();

	if (pid)
		return pid;
	snprintf(program, sizeof(program), "%s/ep-admin", opt->tools);
	snprintf(text, sizeof(text), "%d", number);
	setenv("COVEY_STORE", hello->store, 1);
	setenv("COVEY_GROUP", hello->group, 1);
	execl(program, program, verb, text, (char *)NULL);
	perror(program);
	_exit(127);
}
