/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-run - start the ranks of a group, here or on other hosts, and a private store if none is named
 *
 * This file is the front: it reads the options, starts the keeper (keeper.c), passes signals on to it, and ends with
 * its exit code. If the keeper is killed, the front, which is a subreaper too, inherits the keeper's descendants and
 * kills them. If the front is killed, the keeper sees the end of their pipe and does the same.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "covey.h"
#include "../local/output.h"
#include "clean.h"
#include "run.h"

const char *argp_program_version = "ep-run " COVEY_VERSION;

static const char doc[] =
	"Start the ranks of a covey group and label their output, `[rank] line`."
	"\v"
	"Each rank gets COVEY_STORE, COVEY_GROUP, COVEY_RANK, COVEY_WORLD, COVEY_MAX_RANKS, COVEY_CREATE, RANK, "
	"WORLD_SIZE, LOCAL_RANK, COVEY_JOB (made for this run, unless it is set), MASTER_ADDR and MASTER_PORT (for "
	"torch's env://, unless they are set; not with --launch; the port is free on the host of ep-run: set it where "
	"rank 0 is on another one) and, with --hosts, COVEY_HOST; its standard input is empty. COVEY_STORE in the "
	"environment counts as --store. Without either a redis-server of its own serves the run: on a unix socket, or "
	"for several hosts on one address with a password made for this run. If it dies it is started again, and the "
	"members fill it anew.\n\n"
	"SIGINT, SIGTERM and SIGHUP are handed to all ranks; the second one kills them. One that is ignored when "
	"ep-run starts (nohup) stays ignored. When the process of a rank ends, what is left of its process group is "
	"killed. Nothing outlives ep-run, however it ends.\n\n"
	"A rank that dies is reported to a private store as proven dead, so that the others need not wait; with "
	"--launch only if its first word is `ip`, which becomes the program instead of starting it; with ssh never.\n\n"
	"With --hosts each rank is started by `ssh -o BatchMode=yes HOST`, in the same directory there, with all "
	"COVEY_* variables and LD_LIBRARY_PATH of here. ssh must not ask for anything. Addresses and passwords go "
	"through the connection, never into a list of processes; a rank is killed when its connection ends.\n\n"
	"Exit status:\n"
	"  0        the work is done\n"
	"  1..124   code of the rank that failed first\n"
	"  125      ep-run itself failed, or could not write the output; 126, 127: PROG cannot be run, was not found; "
	"64: usage\n"
	"  128+N    the rank that failed first was killed by signal N\n\n"
	"Which end of a rank counts, with --restart on-failure the end of its last process:\n"
	"  code 0                          no failure\n"
	"  another code                    a failure\n"
	"  signal, first process           a failure, unless another rank ended with 0: the group lived on without it\n"
	"  signal, replacement             a failure\n"
	"  a replacement that fails after  not counted: it came too late. The process that it replaced counts\n"
	"    another rank ended with 0     instead; of a joiner of --grow nothing\n"
	"  retired (ep-admin retire)       finished: no failure and no replacement, whatever its code\n"
	"  left the group, then failed     its code or signal counts as above; there is no replacement\n"
	"  failed when the group is        its code or signal counts as above, a replacement's as one that came too\n"
	"    closed                        late; there is no replacement\n"
	"With --strict, or after a signal to ep-run, every failure counts. A program that ends with 0 says that the "
	"work is done: from then on nobody is replaced.";

#define TEXT_OF(number) #number
#define TEXT(macro) TEXT_OF(macro)

enum { OPT_MAX = 256, OPT_GROW, OPT_RESTART, OPT_HOSTS, OPT_LAUNCH, OPT_STRICT, OPT_ADDRESS, OPT_SSH, OPT_LOCAL };

static const struct argp_option options[] = {
	{ "ranks", 'n', "N", 0, "Number of ranks to start (1 to 4096; default: what --hosts adds up to)", 0 },
	{ "grow", OPT_GROW, "N", 0,
	  "Start N joiners (COVEY_CREATE=never) of the ranks behind those of -n; without -n, joiners alone, of the "
	  "ranks behind those of the group in --store, or in the store of another ep-run on this host",
	  0 },
	{ "store", 's', "URL", 0,
	  "Store to use: redis://host:port/db, redis+unix:///path or redis+sentinel://host:port,.../MASTER (a "
	  "password: by COVEY_STORE)",
	  0 },
	{ "group", 'g', "NAME", 0, "Name of the group (COVEY_GROUP, else covey)", 0 },
	{ "max-ranks", OPT_MAX, "M", 0, "Ranks the group can ever have (COVEY_MAX_RANKS, else 64 or N)", 0 },
	{ "restart", OPT_RESTART, "never|on-failure", 0,
	  "Start a replacement for a rank that failed while others run (at most " TEXT(
		  RUN_MAX_RESTARTS) " in all; default "
				    "never)",
	  0 },
	{ "hosts", OPT_HOSTS, "A,B:N,...",
	  0, "Hosts to start the ranks on, by ssh: N ranks on each (1 where others have a number), or else in equal blocks",
	  0 },
	{ "ssh", OPT_SSH, "COMMAND", 0, "What reaches a host, split at blanks, HOST and a command appended", 0 },
	{ "local", OPT_LOCAL, NULL, 0, "All --hosts are names for this machine, told apart by COVEY_HOST", 0 },
	{ "launch", OPT_LAUNCH, "COMMAND", 0,
	  "Words to put before PROG, {host} replaced, split at blanks: 'ip netns exec {host}'. The environment must "
	  "reach PROG, and signals too",
	  0 },
	{ "address", OPT_ADDRESS, "ADDR", 0, "Address of this machine where other hosts reach a private store", 0 },
	{ "strict", OPT_STRICT, NULL, 0, "Every failure counts for the exit status", 0 },
	{ "verbose", 'v', NULL, 0, "Say where a private store is, and at the end what became of each rank", 0 },
	{ 0 },
};

void run_say(const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	dprintf(STDERR_FILENO, "ep-run: %s\n", cvy_clean(text));
}

const char *run_status_text(int status, char text[64])
{
	if (WIFSIGNALED(status))
		snprintf(text, 64, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(text, 64, "ended with code %d", WEXITSTATUS(status));
	return text;
}

static int number(struct argp_state *state, const char *what, const char *text, int max)
{
	long value;

	if (!tool_number(text, 1, max, &value, NULL))
		argp_error(state, "%s is %s: a number from 1 to %d is needed", what, text, max);
	return (int)value;
}

/* Splits @text, a word of argv, in place at @blank. */
static int split(struct argp_state *state, const char *what, char *text, const char *blank, const char **to, int max)
{
	char *save = NULL;
	int count = 0;

	for (char *word = strtok_r(text, blank, &save); word; word = strtok_r(NULL, blank, &save)) {
		if (count == max)
			argp_error(state, "%s: more than %d", what, max);
		to[count++] = word;
	}
	if (!count)
		argp_error(state, "%s is empty", what);
	return count;
}

/* Removes the numbers from `A,B:4`. */
static void take_slots(struct argp_state *state, struct run_options *opt)
{
	bool any = false;

	for (int i = 0; i < opt->host_count; i++) {
		char *colon = strchr(opt->hosts[i], ':');

		opt->slots[i] = 0;
		if (colon) {
			*colon = '\0';
			opt->slots[i] = number(state, "--hosts", colon + 1, COVEY_MAX_RANKS);
			any = true;
		}
		if (!opt->hosts[i][0] || opt->hosts[i][0] == '-')
			argp_error(state, "--hosts: \"%s\" is no name of a host", opt->hosts[i]);
	}
	for (int i = 0; any && i < opt->host_count; i++)
		if (!opt->slots[i])
			opt->slots[i] = 1;
}

static int all_slots(const struct run_options *opt)
{
	int sum = 0;

	for (int i = 0; i < opt->host_count; i++)
		sum += opt->slots[i];
	return sum;
}

static void no_password(struct argp_state *state, const char *url)
{
	const char *at = strrchr(url, '@'), *scheme = strstr(url, "://");
	const char *user = scheme && at && scheme < at ? scheme + 3 : url;

	if (at && memchr(user, ':', (size_t)(at - user)))
		argp_error(state,
			   "a password in --store can be read by everyone on this machine: set COVEY_STORE instead");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct run_options *opt = state->input;
	const struct tool_set plain[] = {
		{ 'v', &opt->verbose, NULL }, { OPT_LOCAL, &opt->local, NULL },	    { OPT_STRICT, &opt->strict, NULL },
		{ 'g', NULL, &opt->group },   { OPT_ADDRESS, NULL, &opt->address }, { 0 },
	};

	if (tool_set(plain, key, arg))
		return 0;
	switch (key) {
	case 'n':
		opt->ranks = number(state, "-n", arg, COVEY_MAX_RANKS);
		return 0;
	case 's':
		no_password(state, arg);
		opt->store = arg;
		return 0;
	case OPT_GROW:
		opt->joiners = number(state, "--grow", arg, COVEY_MAX_RANKS);
		return 0;
	case OPT_MAX:
		opt->max_ranks = number(state, "--max-ranks", arg, COVEY_MAX_RANKS);
		return 0;
	case OPT_RESTART:
		if (strcmp(arg, "never") && strcmp(arg, "on-failure"))
			argp_error(state, "--restart is %s: never or on-failure is needed", arg);
		opt->restart = !strcmp(arg, "on-failure");
		return 0;
	case OPT_HOSTS:
		opt->host_count = split(state, "--hosts", arg, ",", opt->hosts, RUN_MAX_HOSTS);
		take_slots(state, opt);
		return 0;
	case OPT_LAUNCH:
		opt->launch_count = split(state, "--launch", arg, " \t", opt->launch, RUN_MAX_WORDS);
		return 0;
	case OPT_SSH:
		opt->ssh_count = split(state, "--ssh", arg, " \t", opt->ssh, RUN_MAX_WORDS);
		return 0;
	case ARGP_KEY_ARG:
		opt->argv = state->argv + state->next - 1;
		state->next = state->argc; /* the rest is the program's */
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static void check_options(const struct argp *argp, char **argv, struct run_options *opt)
{
	const char *why = NULL;

	if (!opt->ranks && all_slots(opt) > opt->joiners)
		opt->ranks = all_slots(opt) - opt->joiners;
	opt->forming = opt->ranks;
	opt->world = opt->ranks;
	opt->ranks += opt->joiners;
	if (!opt->ranks || opt->ranks > COVEY_MAX_RANKS)
		why = "-n N is needed";
	else if (!opt->argv)
		why = "a program is needed: ep-run -n N -- PROG ARGS";
	else if (opt->max_ranks && opt->max_ranks < opt->ranks)
		why = "--max-ranks is smaller than -n and --grow";
	else if ((opt->launch_count || opt->ssh_count || opt->local) && !opt->host_count)
		why = "--launch, --ssh and --local need --hosts";
	else if (!!opt->launch_count + !!opt->ssh_count + opt->local > 1)
		why = "only one of --launch, --ssh and --local";
	else if (opt->slots[0] && all_slots(opt) < opt->ranks)
		why = "-n and --grow are more than the numbers of --hosts add up to";
	else if (!opt->slots[0] && opt->host_count > opt->ranks)
		why = "more --hosts than ranks";
	if (!why)
		return;
	fprintf(stderr, "ep-run: %s\n", why);
	argp_help(argp, stderr, ARGP_HELP_SEE, argv[0]);
	exit(64);
}

/* The number that a variable has; 0: it is not set. */
static int number_set(const char *name, int least, int most)
{
	const char *text = getenv(name);
	long value;

	if (!text || !*text)
		return 0;
	if (tool_number(text, least, most, &value, NULL))
		return (int)value;
	run_say("%s is %s: a number from %d to %d is needed", name, text, least, most);
	exit(RUN_EXIT_SELF);
}

static void fill_from_environment(struct run_options *opt)
{
	static const char *const ssh[] = { "ssh", "-o", "BatchMode=yes", "--" }; /* no host is an option */
	const char *text;
	uint64_t job;

	if (opt->host_count && !opt->launch_count && !opt->local && !opt->ssh_count) {
		opt->ssh_count = 4;
		memcpy(opt->ssh, ssh, sizeof(ssh));
	}
	text = getenv("COVEY_STORE");
	if (!opt->store && text && *text)
		opt->store = text;
	text = getenv("COVEY_GROUP");
	opt->group_named = opt->group || (text && *text);
	if (!opt->group)
		opt->group = text && *text ? text : "covey";
	text = getenv("COVEY_JOB");
	if ((!text || !*text) && getrandom(&job, sizeof(job), 0) == sizeof(job))
		snprintf(opt->job, sizeof(opt->job), "run.%016llx", (unsigned long long)job);
	text = getenv("MASTER_ADDR");
	if ((!text || !*text) && opt->forming && !opt->launch_count) {
		opt->meeting = number_set("MASTER_PORT", 1, 65535);
		if (!opt->meeting)
			opt->meeting = run_free_port("0.0.0.0");
	}
	if (opt->meeting < 0) /* then programs that want it say so */
		opt->meeting = 0;
	if (!opt->max_ranks)
		opt->max_ranks = number_set("COVEY_MAX_RANKS", opt->ranks, COVEY_MAX_RANKS);
	if (!opt->max_ranks)
		opt->max_ranks = opt->ranks > 64 ? opt->ranks : 64;
}

static void watch_signals(sigset_t *set)
{
	static const int ours[] = { SIGINT, SIGTERM, SIGHUP };

	sigemptyset(set);
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!run_ignored(ours[i])) /* a blocked signal is not ignored */
			sigaddset(set, ours[i]);
	sigaddset(set, SIGCHLD);
	sigprocmask(SIG_BLOCK, set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* Passes signals on until the keeper has ended; returns its exit code. */
static int front(pid_t keeper, int signals, int to_keeper)
{
	struct signalfd_siginfo info;
	int status;

	for (;;) {
		if (read(signals, &info, sizeof(info)) != sizeof(info)) {
			if (errno == EINTR)
				continue;
			return RUN_EXIT_SELF;
		}
		if (info.ssi_signo != SIGCHLD) {
			unsigned char byte = (unsigned char)info.ssi_signo;

			if (write(to_keeper, &byte, 1) != 1)
				run_say("the keeper is gone");
			continue;
		}
		if (waitpid(keeper, &status, WNOHANG) != keeper)
			continue;
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		run_say("the keeper was killed by signal %d: killing the ranks", WTERMSIG(status));
		return RUN_EXIT_SELF;
	}
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, "-- PROG [ARGS...]", doc, NULL, NULL, NULL };
	struct run_options opt = { 0 };
	int ends[2], signals, code;
	sigset_t set;
	pid_t keeper;

	run_inherit();
	tool_output_checked("ep-run", RUN_EXIT_SELF);
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &opt);
	check_options(&argp, argv, &opt);
	fill_from_environment(&opt);
	if (!opt.forming && run_find_group(&opt))
		return RUN_EXIT_SELF;
	watch_signals(&set);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (!run_limits(&opt))
		return RUN_EXIT_SELF;
	if (signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) || pipe2(ends, O_CLOEXEC)) {
		run_say("cannot start: %s%s", strerror(errno), run_why(errno));
		return RUN_EXIT_SELF;
	}
	if (!opt.store && run_make_dir(&opt))
		return RUN_EXIT_SELF;
	keeper = fork();
	if (keeper < 0) {
		run_say("cannot start the keeper: %s%s", strerror(errno), run_why(errno));
		tool_remove_dir(opt.dir);
		return RUN_EXIT_SELF;
	}
	if (!keeper) {
		close(ends[1]);
		close(signals);
		_exit(run_keeper(&opt, ends[0]));
	}
	close(ends[0]);
	code = front(keeper, signals, ends[1]);
	run_kill_all(getsid(0)); /* finds nothing unless the keeper was killed */
	tool_remove_dir(opt.dir);
	return code;
}
