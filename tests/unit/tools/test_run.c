/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-run as a shell would start it: labels, exit codes, replacements, and that nothing outlives it.
 * What is left behind is counted in a private TMPDIR and among the processes whose environment
 * carries this test's mark.
 *
 * labels: redis real
 */
#include "program.h"

static char mark[64]; /* in the environment of everything that we start */

static void make_marked_place(void)
{
	make_place();
	snprintf(mark, sizeof(mark), "COVEY_TEST_MARK=%d", (int)getpid());
	setenv("COVEY_TEST_MARK", mark + strlen("COVEY_TEST_MARK="), 1);
}

static int carries_mark(const char *pid)
{
	char path[280], text[65536];
	ssize_t n, used = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/environ", pid);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	while (used < (ssize_t)sizeof(text) && (n = read(fd, text + used, sizeof(text) - (size_t)used)) > 0)
		used += n;
	close(fd);
	return memmem(text, (size_t)used, mark, strlen(mark) + 1) != NULL;
}

/* Processes that carry our mark, without ourselves. A zombie has no environment any more. */
static int processes(void)
{
	struct dirent *entry;
	DIR *d = opendir("/proc");
	int count = 0;

	ck_assert_ptr_nonnull(d);
	while ((entry = readdir(d)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && atoi(entry->d_name) != (int)getpid())
			count += carries_mark(entry->d_name);
	closedir(d);
	return count;
}

/* Nothing of a run is left, at once or (after a SIGKILL of ep-run) as soon as the keeper is through. */
static void assert_nothing_left(void)
{
	for (int i = 0; i < WATCHDOG_MS / 5 && (entries() || processes()); i++)
		poll(NULL, 0, 5);
	ck_assert_int_eq(processes(), 0);
	ck_assert_int_eq(entries(), 0);
}

/* `ep-run ARGS -- sh -c SCRIPT`: its exit code. */
static int shell(const char *a, const char *b, const char *script)
{
	if (b)
		start(EP_RUN, "-n", "3", a, b, "--", "sh", "-c", script);
	else if (a)
		start(EP_RUN, "-n", "3", a, "--", "sh", "-c", script);
	else
		start(EP_RUN, "-n", "3", "--", "sh", "-c", script);
	return finish();
}

TEST(run_labels_whole_lines_of_both_streams)
{
	ck_assert_int_eq(shell(NULL, NULL, "printf 'a%s ' $RANK; echo b; echo e$COVEY_RANK >&2; printf tail"), 0);
	assert_has("[0] a0 b\n");
	assert_has("[2] a2 b\n");
	assert_has("[1] e1\n");
	assert_has("[1] tail\n");
	assert_nothing_left();
}

TEST(run_cuts_a_line_without_end)
{
	ck_assert_int_eq(shell(NULL, NULL, "[ $RANK = 0 ] || exit 0; head -c 20000 /dev/zero | tr '\\0' x"), 0);
	assert_has("x\n[0] x");
}

TEST(run_sets_the_environment)
{
	setenv("COVEY_CREATE", "never", 1); /* of a group around it */
	ck_assert_int_eq(shell("--local", "--hosts=a,b",
			       "echo $WORLD_SIZE $COVEY_WORLD $COVEY_MAX_RANKS $LOCAL_RANK $COVEY_HOST $COVEY_GROUP "
			       "${COVEY_STORE%%/*} $COVEY_CREATE $MASTER_ADDR ${MASTER_PORT:+port}"),
			 0);
	unsetenv("COVEY_CREATE");
	assert_has("[0] 3 3 64 0 a covey redis+unix: first 127.0.0.1 port\n");
	assert_has("[1] 3 3 64 1 a covey redis+unix: first 127.0.0.1 port\n");
	assert_has("[2] 3 3 64 0 b covey redis+unix: first 127.0.0.1 port\n");
}

TEST(run_refuses_wrong_numbers_of_the_environment)
{
	static const char *const wrong[][3] = { { "MASTER_PORT", "http", "65535" },
						{ "COVEY_MAX_RANKS", "many", "4096" },
						{ "COVEY_MAX_RANKS", "2", "4096" } }; /* there are three */
	char text[100];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		setenv(wrong[i][0], wrong[i][1], 1);
		ck_assert_int_eq(shell(NULL, NULL, "true"), 125);
		unsetenv(wrong[i][0]);
		snprintf(text, sizeof(text), "%s is %s: a number from %s to %s is needed", wrong[i][0], wrong[i][1],
			 i ? "3" : "1", wrong[i][2]);
		assert_has(text);
	}
}

TEST(run_keeps_a_port_for_torch)
{
	setenv("MASTER_PORT", "29123", 1);
	ck_assert_int_eq(shell(NULL, NULL, "echo $MASTER_ADDR $MASTER_PORT"), 0);
	unsetenv("MASTER_PORT");
	assert_has("[2] 127.0.0.1 29123\n");
}

/* A TMPDIR that would have to be escaped in a URL or in the settings of a store is not used, and that is said. */
TEST(run_lives_with_any_tmpdir)
{
	static const struct {
		const char *path, *why;
	} tmp[] = {
		{ "/tmp/a b", "a character" },
		{ "/tmp/a\"b", "a character" },
		{ "/tmp/a\nb", "a character" },
		{ "/tmp/a?db=1", "a character" },
		{ "/tmp/a%20b", "a character" },
		{ "tmp", "not an absolute path" },
		{ "/tmp/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
		  "longer than 76 bytes" }
	};

	for (size_t i = 0; i < sizeof(tmp) / sizeof(*tmp); i++) {
		setenv("TMPDIR", tmp[i].path, 1);
		ck_assert_int_eq(shell(NULL, NULL, "echo ${COVEY_STORE%%covey-*}"), 0);
		assert_has("[0] redis+unix:///tmp/\n");
		assert_has(tmp[i].why);
	}
	setenv("TMPDIR", dir, 1);
}

TEST(run_hands_on_a_store_with_a_long_password)
{
	char url[4096] = "redis://:";

	memset(url + strlen(url), 'a', 3000);
	strcat(url, "@127.0.0.1:1");
	setenv("COVEY_STORE", url, 1);
	ck_assert_int_eq(shell(NULL, NULL, "echo ${#COVEY_STORE}"), 0);
	unsetenv("COVEY_STORE");
	assert_has("[0] 3021\n");
}

TEST(run_gives_the_code_of_a_failed_rank)
{
	ck_assert_int_eq(shell(NULL, NULL, "[ $RANK != 1 ] || exit 7"), 7);
	assert_nothing_left();
}

TEST(run_forgives_a_killed_rank_when_the_group_lived)
{
	ck_assert_int_eq(shell(NULL, NULL, "[ $RANK != 1 ] || kill -9 $$"), 0);
	assert_has("rank 1 was killed by signal 9");
}

TEST(run_strict_forgives_nothing)
{
	ck_assert_int_eq(shell("--strict", NULL, "[ $RANK != 1 ] || kill -9 $$"), 137);
}

TEST(run_fails_when_all_are_killed)
{
	ck_assert_int_eq(shell(NULL, NULL, "kill -9 $$"), 137);
}

TEST(run_says_what_cannot_be_run)
{
	start(EP_RUN, "-n", "1", "--", "/nonexistent");
	ck_assert_int_eq(finish(), 127);
}

TEST(run_refuses_a_password_in_its_arguments)
{
	start(EP_RUN, "-n", "1", "--store", "redis://u:geheim@h/0", "--", "true");
	ck_assert_int_eq(finish(), 64);
	assert_lacks("geheim");
}

/* Rank 1 dies once; the others wait for its replacement through a file. */
TEST(run_replaces_a_rank_on_failure)
{
	char back[64];

	ck_assert_int_eq(shell("--restart", "on-failure",
			       "if [ $RANK = 1 ]; then [ \"$COVEY_CREATE\" = never ] || kill -9 $$; echo again; : > "
			       "$TMPDIR/back; else until [ -e $TMPDIR/back ]; do sleep 0.02; done; fi"),
			 0);
	assert_has("[1] again\n");
	snprintf(back, sizeof(back), "%s/back", dir);
	ck_assert_int_eq(unlink(back), 0);
	assert_nothing_left();
}

/* Nobody lives on without a rank that is replaced again and again: what its program says is said. */
TEST(run_gives_the_code_of_a_crash_loop)
{
	ck_assert_int_eq(
		shell("--restart", "on-failure",
		      "if [ $RANK != 1 ]; then until [ -e $TMPDIR/third ]; do sleep 0.02; done; exit 0; fi; "
		      "[ ! -e $TMPDIR/second ] || : > $TMPDIR/third; [ ! -e $TMPDIR/first ] || : > $TMPDIR/second; "
		      ": > $TMPDIR/first; exit 7"),
		7);
	ck_assert_int_eq(system("rm $TMPDIR/first $TMPDIR/second $TMPDIR/third"), 0);
	assert_nothing_left();
}

TEST(run_gives_the_signal_of_a_crash_loop)
{
	ck_assert_int_eq(
		shell("--restart", "on-failure",
		      "if [ $RANK != 1 ]; then until [ -e $TMPDIR/third ]; do sleep 0.02; done; exit 0; fi; "
		      "[ ! -e $TMPDIR/second ] || : > $TMPDIR/third; [ ! -e $TMPDIR/first ] || : > $TMPDIR/second; "
		      ": > $TMPDIR/first; kill -SEGV $$"),
		139);
	ck_assert_int_eq(system("rm $TMPDIR/first $TMPDIR/second $TMPDIR/third"), 0);
}

/* Rank 0 is reaped, so ep-run knows that the work is done, before the replacement fails. */
static const char late[] =
	"case $RANK in 1) ;; 0) echo $$ > $TMPDIR/pid.new; mv $TMPDIR/pid.new $TMPDIR/pid; until [ -e "
	"$TMPDIR/back ]; do sleep 0.02; done; exit 0;; *) sleep 1000 & wait;; esac; "
	"[ \"$COVEY_CREATE\" = never ] || eval \"$FIRST_END\"; until [ -e $TMPDIR/pid ]; do sleep 0.02; done; : > "
	"$TMPDIR/back; while [ -d /proc/$(cat $TMPDIR/pid) ]; do sleep 0.02; done; exit 3";

static int late_replacement(const char *first_end)
{
	int code;

	setenv("FIRST_END", first_end, 1);
	start(EP_RUN, "-n", "2", "--restart", "on-failure", "--", "sh", "-c", late);
	code = finish();
	ck_assert_int_eq(system("rm $TMPDIR/pid $TMPDIR/back"), 0);
	return code;
}

TEST(run_counts_what_a_late_replacement_replaced)
{
	ck_assert_int_eq(late_replacement("kill -KILL $$"), 0);
	ck_assert_int_eq(late_replacement("exit 9"), 9);
}

TEST(run_starts_joiners)
{
	start(EP_RUN, "-n", "2", "--grow", "2", "--", "sh", "-c",
	      "echo r$RANK w$WORLD_SIZE $COVEY_RANK ${COVEY_CREATE-first}");
	ck_assert_int_eq(finish(), 0);
	assert_has("[1] r1 w2 1 first\n");
	assert_has("[2] r2 w2 2 never\n");
	assert_has("[3] r3 w2 3 never\n");
}

TEST(run_says_that_its_output_is_lost)
{
	int ends[2];

	start("/bin/sh", "-c", "exec \"$0\" -n 2 -- sh -c 'echo lost' >/dev/full", EP_RUN);
	ck_assert_int_eq(finish(), 125);
	assert_has("output of the ranks is lost: standard output: No space left on device");
	/* A reader that has seen enough is no loss. */
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	close(ends[0]);
	given.out_to = ends[1];
	start("/bin/sh", "-c", "\"$0\" -n 2 -- sh -c 'echo lost; echo more'; echo code $? >&2", EP_RUN);
	given.out_to = -1;
	close(ends[1]);
	ck_assert_int_eq(finish(), 0);
	assert_has("code 0");
}

TEST(run_says_why_its_store_does_not_start)
{
	start("/bin/sh", "-c", "ulimit -n 30; exec \"$0\" -n 2 -- true", EP_RUN);
	ck_assert_int_eq(finish(), 125);
	assert_has("descriptors and may have 30: raise ulimit -n");
	start("/bin/sh", "-c",
	      "d=$(mktemp -d); printf '#!/bin/sh\\nexit 1\\n' >$d/redis-server; "
	      "chmod +x $d/redis-server; PATH=$d:$PATH \"$0\" -n 2 -- true; rc=$?; rm -r $d; exit $rc",
	      EP_RUN);
	ck_assert_int_eq(finish(), 125);
	assert_has("redis-server ended with code 1 at its start");
	assert_lacks("0x");
}

TEST(run_starts_its_store_again)
{
	ck_assert_int_eq(shell("--verbose", NULL,
			       "s=${COVEY_STORE#redis+unix://}; [ $RANK = 0 ] && redis-cli -s $s shutdown nosave; "
			       "until redis-cli -s $s ping 2>/dev/null | grep -q PONG; do sleep 0.02; done"),
			 0);
	assert_has("the store was started 2 times");
	assert_nothing_left();
}

TEST(run_hands_signals_on)
{
	start(EP_RUN, "-n", "2", "--", "sh", "-c",
	      "trap 'echo got; exit 5' TERM; echo up$RANK; while :; do sleep 0.05; done");
	read_until("up0\n");
	read_until("up1\n");
	kill(run.pid, SIGTERM);
	ck_assert_int_eq(finish(), 5);
	assert_has("[0] got");
	assert_has("[1] got");
	assert_nothing_left();
}

TEST(run_kills_at_the_second_signal)
{
	start(EP_RUN, "-n", "1", "--", "sh", "-c", "trap 'echo no' TERM; echo up; while :; do sleep 0.05; done");
	read_until("up\n");
	kill(run.pid, SIGTERM);
	read_until("no\n");
	kill(run.pid, SIGTERM);
	ck_assert_int_eq(finish(), 137);
	assert_nothing_left();
}

/* Children of ranks in sessions of their own are the hard case: nobody but a subreaper finds them. */
static const char stray[] = "setsid sh -c 'sleep 1000' & sleep 1000 & echo up$RANK; wait";

TEST(run_killed_leaves_nothing)
{
	int status;

	start(EP_RUN, "-n", "2", "--", "sh", "-c", stray);
	read_until("up0\n");
	read_until("up1\n");
	ck_assert_int_gt(entries(), 0);
	kill(run.pid, SIGKILL);
	ck_assert_int_eq(waitpid(run.pid, &status, 0), run.pid);
	assert_nothing_left();
	close(run.out);
}

/* The keeper is the only child of ep-run. */
static pid_t keeper_of(pid_t pid)
{
	char path[64], text[64] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	file = fopen(path, "r");
	if (file) {
		if (!fgets(text, sizeof(text), file))
			text[0] = '\0';
		fclose(file);
	}
	return (pid_t)atoi(text);
}

TEST(run_with_its_keeper_killed_leaves_nothing)
{
	pid_t keeper;

	start(EP_RUN, "-n", "2", "--", "sh", "-c", stray);
	read_until("up0\n");
	read_until("up1\n");
	keeper = keeper_of(run.pid);
	ck_assert_int_gt(keeper, 1);
	kill(keeper, SIGKILL);
	ck_assert_int_eq(finish(), 125);
	assert_nothing_left();
}

TEST(run_ended_leaves_no_stray_of_a_rank)
{
	ck_assert_int_eq(shell(NULL, NULL, "setsid sleep 1000 & sleep 1000 & exit 0"), 0);
	assert_nothing_left();
}

int main(void)
{
	if (!have_server())
		return 77;
	return suite_run(SUITE(.name = "tools/run", .setup = make_marked_place, .teardown = remove_place));
}
