/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-run inherits decides nothing in silence: signals that its parent ignores or blocks, limits, closed standard
 * descriptors, the umask, the working directory, HOME and TMPDIR. What it changes for itself its ranks find unchanged.
 *
 * labels: redis real
 */
#include "program.h"

static void assert_nothing_left(void)
{
	ck_assert_int_eq(entries(), 0);
}

/* `sh -c WRAP`, which ends by exec "$@": ep-run -n 2 -- sh -c SCRIPT. Its exit code. */
static int wrapped(const char *wrap, const char *script)
{
	start("/bin/sh", "-c", wrap, "sh", EP_RUN, "-n", "2", "--", "sh", "-c", script);
	return finish();
}

/* Under a parent that ignores or blocks a signal. */
static int with_signal(int ignored, int blocked, const char *script)
{
	given.ignored = ignored;
	given.blocked = blocked;
	start(EP_RUN, "-n", "2", "--", "sh", "-c", script);
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
	given.ignored = ignored;
	given.blocked = blocked;
	start(EP_RUN, "-n", "2", "--", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status");
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
	given.ignored = SIGHUP;
	start(EP_RUN, "-n", "1", "--", "sh", "-c",
	      "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done");
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
	start("/bin/sh", "-c", "TMPDIR=/nowhere exec \"$@\"", "sh", EP_RUN, "-n", "1", "--store", "redis://127.0.0.1:1",
	      "--", "echo", "started");
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
	setenv("COVEY_STORE", "redis://127.0.0.1:1", 1);
	setenv("COVEY_RANK", "0", 1);
	setenv("COVEY_WORLD", "2", 1);
	given.blocked = SIGALRM;
	start(EP_PERF, "allreduce", "-b", "8", "-e", "8", "-T", "1");
	ck_assert_int_ne(finish(), 0);
	assert_has("the time of -T is over");
}

int main(void)
{
	if (!have_server())
		return 77;
	return suite_run(SUITE(.name = "tools/inherits", .setup = make_place, .teardown = remove_place));
}
