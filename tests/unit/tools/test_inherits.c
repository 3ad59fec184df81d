/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-run inherits decides nothing in silence: signals that its parent ignores or blocks, limits, closed standard
 * descriptors, the umask, the working directory, HOME and TMPDIR. What it changes for itself its ranks find unchanged.
 *
 * labels: redis real
 */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../suite.h"

#define WATCHDOG_MS 40000 /* 20 times and more of what anything here takes */
#define EP_RUN COVEY_BUILD_DIR "/tools/ep-run"
#define EP_PERF COVEY_BUILD_DIR "/tools/ep-perf"

static char dir[] = "/tmp/covey-test-XXXXXX";

struct run {
	pid_t pid;
	int out; /* its stdout and stderr */
	char text[65536];
	size_t used;
};

static struct run run;

static void make_place(void)
{
	snprintf(dir, sizeof(dir), "/tmp/covey-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	setenv("TMPDIR", dir, 1);
	unsetenv("COVEY_STORE");
	unsetenv("COVEY_GROUP");
	unsetenv("COVEY_MAX_RANKS");
}

static void remove_place(void)
{
	rmdir(dir);
}

static void assert_nothing_left(void)
{
	struct dirent *entry;
	DIR *d = opendir(dir);

	ck_assert_ptr_nonnull(d);
	while ((entry = readdir(d)))
		ck_assert_msg(entry->d_name[0] == '.', "%s was left", entry->d_name);
	closedir(d);
}

static int ignored_in_child, blocked_in_child; /* a signal that the next program finds so; 0: none */

static void start(const char *path, const char *const *argv)
{
	sigset_t set;
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	run.used = 0;
	run.text[0] = '\0';
	run.out = ends[0];
	run.pid = fork();
	ck_assert_int_ge(run.pid, 0);
	if (!run.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		sigemptyset(&set);
		if (blocked_in_child)
			sigaddset(&set, blocked_in_child);
		sigprocmask(SIG_SETMASK, &set, NULL);
		if (ignored_in_child)
			signal(ignored_in_child, SIG_IGN);
		execv(path, (char *const *)argv);
		_exit(99);
	}
	close(ends[1]);
}

/* Reads until @text was printed, NULL: until the end of the output. */
static void read_until(const char *text)
{
	struct pollfd wait = { .fd = run.out, .events = POLLIN };
	ssize_t n;

	while (!text || !strstr(run.text, text)) {
		ck_assert_msg(poll(&wait, 1, WATCHDOG_MS) == 1, "ep-run hangs; so far: %s", run.text);
		n = read(run.out, run.text + run.used, sizeof(run.text) - 1 - run.used);
		ck_assert_int_ge(n, 0);
		if (!n) {
			ck_assert_msg(!text, "the end came before \"%s\": %s", text ? text : "", run.text);
			return;
		}
		run.used += (size_t)n;
		run.text[run.used] = '\0';
	}
}

/* Its exit code. A process whose output is closed is waited for by its descriptor. */
static int finish(void)
{
	int status = 0;

	read_until(NULL);
	close(run.out);
	for (int ms = 0; waitpid(run.pid, &status, WNOHANG) != run.pid; ms++) {
		ck_assert_msg(ms < WATCHDOG_MS, "ep-run hangs after: %s", run.text);
		poll(NULL, 0, 1);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define assert_has(want) ck_assert_msg(strstr(run.text, want) != NULL, "no \"%s\" in: %s", want, run.text)
#define assert_lacks(word) ck_assert_msg(strstr(run.text, word) == NULL, "\"%s\" in: %s", word, run.text)

/* `sh -c WRAP`, which ends by exec "$@": ep-run -n 2 -- sh -c SCRIPT. Its exit code. */
static int wrapped(const char *wrap, const char *script)
{
	const char *argv[] = { "sh", "-c", wrap, "sh", EP_RUN, "-n", "2", "--", "sh", "-c", script, NULL };

	start("/bin/sh", argv);
	return finish();
}

/* Under a parent that ignores or blocks a signal. */
static int with_signal(int ignored, int blocked, const char *script)
{
	const char *argv[] = { "ep-run", "-n", "2", "--", "sh", "-c", script, NULL };

	ignored_in_child = ignored;
	blocked_in_child = blocked;
	start(EP_RUN, argv);
	return finish();
}

TEST(run_ends_under_a_parent_that_ignores_its_children)
{
	ck_assert_int_eq(with_signal(SIGCHLD, 0, "exit 0"), 0);
	ck_assert_int_eq(with_signal(0, SIGCHLD, "exit 3"), 3);
	assert_nothing_left();
}

/* Bits of signals in /proc/PID/status: 1 << (number - 1). No shell is between: it clears its mask. */
static void shows(int ignored, int blocked, const char *ign, const char *blk)
{
	const char *argv[] = { "ep-run", "-n", "2", "--", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status", NULL };

	ignored_in_child = ignored;
	blocked_in_child = blocked;
	start(EP_RUN, argv);
	ck_assert_int_eq(finish(), 0);
	assert_has(ign);
	assert_has(blk);
}

TEST(run_leaves_ignored_and_blocked_signals_to_its_ranks)
{
	shows(SIGHUP, SIGUSR1, "[0] SigIgn:\t0000000000000001\n", "[0] SigBlk:\t0000000000000200\n");
	shows(SIGPIPE, 0, "[1] SigIgn:\t0000000000001000\n", "[1] SigBlk:\t0000000000000000\n");
	shows(SIGCHLD, SIGCHLD, "[1] SigIgn:\t0000000000010000\n", "[1] SigBlk:\t0000000000010000\n");
	shows(0, 0, "[0] SigIgn:\t0000000000000000\n", "[0] SigBlk:\t0000000000000000\n");
}

/* nohup: the hang-up of a terminal is not handed on. */
TEST(run_ignores_a_signal_that_was_ignored)
{
	const char *argv[] = { "ep-run",
			       "-n",
			       "1",
			       "--",
			       "sh",
			       "-c",
			       "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done",
			       NULL };

	ignored_in_child = SIGHUP;
	start(EP_RUN, argv);
	read_until("up\n");
	kill(run.pid, SIGHUP);
	kill(run.pid, SIGTERM);
	ck_assert_int_eq(finish(), 5); /* a second signal would have killed: 137 */
	assert_has("[0] got");
}

TEST(run_works_with_closed_standard_descriptors)
{
	const char *show = "for i in 0 1 2; do readlink /proc/$$/fd/$i; done >$TMPDIR/fds.$RANK";
	char path[80], text[256] = "";
	FILE *file;

	ck_assert_int_eq(wrapped("exec \"$@\" <&- >&- 2>&-", show), 0);
	for (int r = 0; r < 2; r++) {
		snprintf(path, sizeof(path), "%s/fds.%d", dir, r);
		file = fopen(path, "re");
		ck_assert_ptr_nonnull(file);
		text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
		fclose(file);
		unlink(path);
		ck_assert_msg(!strncmp(text, "/dev/null\n", 10) && strstr(text, "pipe:") && !strstr(text, "socket:"),
			      "rank %d was given %s", r, text);
	}
	assert_nothing_left();
}

TEST(run_gives_the_limit_of_descriptors_back)
{
	ck_assert_int_eq(wrapped("ulimit -Sn 40; exec \"$@\"", "ulimit -Sn"), 0);
	assert_has("[0] 40\n");
}

TEST(run_names_a_limit_of_descriptors_before_it_starts)
{
	ck_assert_int_eq(wrapped("ulimit -n 30; exec \"$@\"", "echo started"), 125);
	assert_has("redis-server takes 44 descriptors and may have 30: raise ulimit -n");
	assert_lacks("started");
	assert_nothing_left();
}

TEST(run_names_the_directory_that_it_cannot_make)
{
	ck_assert_int_eq(wrapped("TMPDIR=/nowhere exec \"$@\"", "echo started"), 125);
	assert_has("no directory can be made in /nowhere");
	assert_has("set TMPDIR");
	assert_lacks("started");
}

TEST(run_needs_no_directory_with_a_named_store)
{
	const char *argv[] = { "sh", "-c",	"TMPDIR=/nowhere exec \"$@\"", "sh", EP_RUN, "-n",
			       "1",  "--store", "redis://127.0.0.1:1",	       "--", "echo", "started",
			       NULL };

	start("/bin/sh", argv);
	ck_assert_int_eq(finish(), 0);
	assert_has("[0] started\n");
}

TEST(run_does_not_depend_on_umask_home_or_directory)
{
	const char *wrap = "mkdir $TMPDIR/gone && cd $TMPDIR/gone && rmdir $TMPDIR/gone && umask 0777 && unset HOME && "
			   "exec \"$@\"";

	ck_assert_int_eq(wrapped(wrap, "redis-cli -s ${COVEY_STORE#redis+unix://} ping; umask"), 0);
	assert_has("[0] PONG\n");
	assert_has("[0] 0777\n");
	assert_nothing_left();
}

/* A store that is not there is waited for longer than this test waits. */
TEST_LOOP(perf_ends_in_time_though_its_alarm_was_blocked, 0, !access(EP_PERF, X_OK))
{
	const char *argv[] = { "ep-perf", "allreduce", "-b", "8", "-e", "8", "-T", "1", NULL };

	setenv("COVEY_STORE", "redis://127.0.0.1:1", 1);
	setenv("COVEY_RANK", "0", 1);
	setenv("COVEY_WORLD", "2", 1);
	blocked_in_child = SIGALRM;
	start(EP_PERF, argv);
	ck_assert_int_ne(finish(), 0);
	assert_has("the time of -T is over");
}

int main(void)
{
	if (system("(command -v redis-server || command -v valkey-server || command -v redis-check-rdb) >/dev/null"))
		return 77;
	return suite_run(SUITE(.name = "tools/inherits", .setup = make_place, .teardown = remove_place));
}
