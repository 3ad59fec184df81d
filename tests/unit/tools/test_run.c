/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-run as a shell would start it: labels, exit codes, replacements, and that nothing outlives it.
 * What is left behind is counted in a private TMPDIR and among the processes whose environment
 * carries this test's mark.
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../suite.h"

#define WATCHDOG_MS 20000 /* 20 times and more of what anything here takes */
#define EP_RUN COVEY_BUILD_DIR "/tools/ep-run"

static char dir[] = "/tmp/covey-test-XXXXXX";
static char mark[64]; /* in the environment of everything that we start */

struct run {
	pid_t pid;
	int out; /* its stdout and stderr */
	char text[65536];
	size_t used;
};

static void make_place(void)
{
	memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
	ck_assert_ptr_nonnull(mkdtemp(dir));
	setenv("TMPDIR", dir, 1);
	snprintf(mark, sizeof(mark), "COVEY_TEST_MARK=%d", (int)getpid());
	setenv("COVEY_TEST_MARK", mark + strlen("COVEY_TEST_MARK="), 1);
	unsetenv("COVEY_STORE");
	unsetenv("COVEY_GROUP");
	unsetenv("COVEY_MAX_RANKS");
}

static void remove_place(void)
{
	rmdir(dir); /* it must be empty; the tests look before */
}

static int entries(void)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	int count = 0;

	ck_assert_ptr_nonnull(d);
	while ((entry = readdir(d)))
		count += entry->d_name[0] != '.';
	closedir(d);
	return count;
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

static int out_to = -1; /* what its standard output is; -1: what we read */

static void start_program(struct run *run, const char *program, const char *const *argv)
{
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	run->used = 0;
	run->text[0] = '\0';
	run->out = ends[0];
	run->pid = fork();
	ck_assert_int_ge(run->pid, 0);
	if (!run->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out_to < 0 ? ends[1] : out_to, STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		execv(program, (char *const *)argv);
		_exit(99);
	}
	close(ends[1]);
}

static void start(struct run *run, const char *const *argv)
{
	start_program(run, EP_RUN, argv);
}

/* Reads until @text was printed, NULL: until the end of the output. */
static void read_until(struct run *run, const char *text)
{
	char *to = run->text + run->used, *end = run->text + sizeof(run->text) - 1;
	struct pollfd wait = { .fd = run->out, .events = POLLIN };
	ssize_t n;

	while (!text || !strstr(run->text, text)) {
		ck_assert_msg(poll(&wait, 1, WATCHDOG_MS) == 1, "ep-run hangs; so far: %s", run->text);
		n = read(run->out, to, (size_t)(end - to));
		ck_assert_int_ge(n, 0);
		if (!n) {
			ck_assert_msg(!text, "the end came before \"%s\": %s", text ? text : "", run->text);
			return;
		}
		to += n;
		run->used += (size_t)n;
		run->text[run->used] = '\0';
	}
}

static int finish(struct run *run)
{
	int status;

	read_until(run, NULL);
	close(run->out);
	ck_assert_int_eq(waitpid(run->pid, &status, 0), run->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* `ep-run ARGS -- sh -c SCRIPT`: its exit code. */
static int shell(struct run *run, const char *a, const char *b, const char *script)
{
	const char *argv[] = { "ep-run", "-n", "3", a, b, "--", "sh", "-c", script, NULL };
	const char *plain[] = { "ep-run", "-n", "3", "--", "sh", "-c", script, NULL };
	const char *one[] = { "ep-run", "-n", "3", a, "--", "sh", "-c", script, NULL };

	start(run, b ? argv : a ? one : plain);
	return finish(run);
}

#define assert_has(run, want) ck_assert_msg(strstr((run)->text, want) != NULL, "no \"%s\" in: %s", want, (run)->text)
#define assert_lacks(run, word) ck_assert_msg(strstr((run)->text, word) == NULL, "\"%s\" in: %s", word, (run)->text)

static struct run run;

TEST(run_labels_whole_lines_of_both_streams)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "printf 'a%s ' $RANK; echo b; echo e$COVEY_RANK >&2; printf tail"), 0);
	assert_has(&run, "[0] a0 b\n");
	assert_has(&run, "[2] a2 b\n");
	assert_has(&run, "[1] e1\n");
	assert_has(&run, "[1] tail\n");
	assert_nothing_left();
}

TEST(run_cuts_a_line_without_end)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "[ $RANK = 0 ] || exit 0; head -c 20000 /dev/zero | tr '\\0' x"), 0);
	assert_has(&run, "x\n[0] x");
}

TEST(run_sets_the_environment)
{
	ck_assert_int_eq(shell(&run, "--local", "--hosts=a,b",
			       "echo $WORLD_SIZE $COVEY_WORLD $COVEY_MAX_RANKS $LOCAL_RANK $COVEY_HOST $COVEY_GROUP "
			       "${COVEY_STORE%%/*} ${COVEY_CREATE-first} $MASTER_ADDR ${MASTER_PORT:+port}"),
			 0);
	assert_has(&run, "[0] 3 3 64 0 a covey redis+unix: first 127.0.0.1 port\n");
	assert_has(&run, "[1] 3 3 64 1 a covey redis+unix: first 127.0.0.1 port\n");
	assert_has(&run, "[2] 3 3 64 0 b covey redis+unix: first 127.0.0.1 port\n");
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
		ck_assert_int_eq(shell(&run, NULL, NULL, "echo ${COVEY_STORE%%covey-*}"), 0);
		assert_has(&run, "[0] redis+unix:///tmp/\n");
		assert_has(&run, tmp[i].why);
	}
	setenv("TMPDIR", dir, 1);
}

TEST(run_hands_on_a_store_with_a_long_password)
{
	char url[4096] = "redis://:";

	memset(url + strlen(url), 'a', 3000);
	strcat(url, "@127.0.0.1:1");
	setenv("COVEY_STORE", url, 1);
	ck_assert_int_eq(shell(&run, NULL, NULL, "echo ${#COVEY_STORE}"), 0);
	unsetenv("COVEY_STORE");
	assert_has(&run, "[0] 3021\n");
}

TEST(run_gives_the_code_of_a_failed_rank)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "[ $RANK != 1 ] || exit 7"), 7);
	assert_nothing_left();
}

TEST(run_forgives_a_killed_rank_when_the_group_lived)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "[ $RANK != 1 ] || kill -9 $$"), 0);
	assert_has(&run, "rank 1 was killed by signal 9");
}

TEST(run_strict_forgives_nothing)
{
	ck_assert_int_eq(shell(&run, "--strict", NULL, "[ $RANK != 1 ] || kill -9 $$"), 137);
}

TEST(run_fails_when_all_are_killed)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "kill -9 $$"), 137);
}

TEST(run_says_what_cannot_be_run)
{
	const char *argv[] = { "ep-run", "-n", "1", "--", "/nonexistent", NULL };

	start(&run, argv);
	ck_assert_int_eq(finish(&run), 127);
}

TEST(run_refuses_a_password_in_its_arguments)
{
	const char *argv[] = { "ep-run", "-n", "1", "--store", "redis://u:geheim@h/0", "--", "true", NULL };

	start(&run, argv);
	ck_assert_int_eq(finish(&run), 64);
	assert_lacks(&run, "geheim");
}

/* Rank 1 dies once; the others wait for its replacement through a file. */
TEST(run_replaces_a_rank_on_failure)
{
	char back[64];

	ck_assert_int_eq(shell(&run, "--restart", "on-failure",
			       "if [ $RANK = 1 ]; then [ \"$COVEY_CREATE\" = never ] || kill -9 $$; echo again; : > "
			       "$TMPDIR/back; "
			       "else until [ -e $TMPDIR/back ]; do sleep 0.02; done; fi"),
			 0);
	assert_has(&run, "[1] again\n");
	snprintf(back, sizeof(back), "%s/back", dir);
	ck_assert_int_eq(unlink(back), 0);
	assert_nothing_left();
}

/* Nobody lives on without a rank that is replaced again and again: what its program says is said. */
TEST(run_gives_the_code_of_a_crash_loop)
{
	ck_assert_int_eq(
		shell(&run, "--restart", "on-failure",
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
		shell(&run, "--restart", "on-failure",
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
	const char *argv[] = { "ep-run", "-n", "2", "--restart", "on-failure", "--", "sh", "-c", late, NULL };
	int code;

	setenv("FIRST_END", first_end, 1);
	start(&run, argv);
	code = finish(&run);
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
	const char *argv[] = { "ep-run", "-n", "2",
			       "--grow", "2",  "--",
			       "sh",	 "-c", "echo r$RANK w$WORLD_SIZE $COVEY_RANK ${COVEY_CREATE-first}",
			       NULL };

	start(&run, argv);
	ck_assert_int_eq(finish(&run), 0);
	assert_has(&run, "[1] r1 w2 1 first\n");
	assert_has(&run, "[2] r2 w2 2 never\n");
	assert_has(&run, "[3] r3 w2 3 never\n");
}

TEST(run_says_that_its_output_is_lost)
{
	const char *argv[] = { "sh", "-c", "exec \"$0\" -n 2 -- sh -c 'echo lost' >/dev/full", EP_RUN, NULL };
	const char *read_on[] = { "sh", "-c", "\"$0\" -n 2 -- sh -c 'echo lost; echo more'; echo code $? >&2", EP_RUN,
				  NULL };
	int ends[2];

	start_program(&run, "/bin/sh", argv);
	ck_assert_int_eq(finish(&run), 125);
	assert_has(&run, "output of the ranks is lost: standard output: No space left on device");
	/* A reader that has seen enough is no loss. */
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	close(ends[0]);
	out_to = ends[1];
	start_program(&run, "/bin/sh", read_on);
	out_to = -1;
	close(ends[1]);
	ck_assert_int_eq(finish(&run), 0);
	assert_has(&run, "code 0");
}

TEST(run_says_why_its_store_does_not_start)
{
	const char *few[] = { "sh", "-c", "ulimit -n 30; exec \"$0\" -n 2 -- true", EP_RUN, NULL };
	const char *ends[] = { "sh", "-c",
			       "d=$(mktemp -d); printf '#!/bin/sh\\nexit 1\\n' >$d/redis-server; "
			       "chmod +x $d/redis-server; PATH=$d:$PATH \"$0\" -n 2 -- true; rc=$?; rm -r $d; exit $rc",
			       EP_RUN, NULL };

	start_program(&run, "/bin/sh", few);
	ck_assert_int_eq(finish(&run), 125);
	assert_has(&run, "descriptors and may have 30: raise ulimit -n");
	start_program(&run, "/bin/sh", ends);
	ck_assert_int_eq(finish(&run), 125);
	assert_has(&run, "redis-server ended with code 1 at its start");
	assert_lacks(&run, "0x");
}

TEST(run_starts_its_store_again)
{
	ck_assert_int_eq(shell(&run, "--verbose", NULL,
			       "s=${COVEY_STORE#redis+unix://}; [ $RANK = 0 ] && redis-cli -s $s shutdown nosave; "
			       "until redis-cli -s $s ping 2>/dev/null | grep -q PONG; do sleep 0.02; done"),
			 0);
	assert_has(&run, "the store was started 2 times");
	assert_nothing_left();
}

TEST(run_hands_signals_on)
{
	const char *argv[] = { "ep-run",
			       "-n",
			       "2",
			       "--",
			       "sh",
			       "-c",
			       "trap 'echo got; exit 5' TERM; echo up$RANK; while :; do sleep 0.05; done",
			       NULL };

	start(&run, argv);
	read_until(&run, "up0\n");
	read_until(&run, "up1\n");
	kill(run.pid, SIGTERM);
	ck_assert_int_eq(finish(&run), 5);
	assert_has(&run, "[0] got");
	assert_has(&run, "[1] got");
	assert_nothing_left();
}

TEST(run_kills_at_the_second_signal)
{
	const char *argv[] = {
		"ep-run", "-n", "1", "--", "sh", "-c", "trap 'echo no' TERM; echo up; while :; do sleep 0.05; done",
		NULL
	};

	start(&run, argv);
	read_until(&run, "up\n");
	kill(run.pid, SIGTERM);
	read_until(&run, "no\n");
	kill(run.pid, SIGTERM);
	ck_assert_int_eq(finish(&run), 137);
	assert_nothing_left();
}

/* Children of ranks in sessions of their own are the hard case: nobody but a subreaper finds them. */
static const char stray[] = "setsid sh -c 'sleep 1000' & sleep 1000 & echo up$RANK; wait";

TEST(run_killed_leaves_nothing)
{
	const char *argv[] = { "ep-run", "-n", "2", "--", "sh", "-c", stray, NULL };
	int status;

	start(&run, argv);
	read_until(&run, "up0\n");
	read_until(&run, "up1\n");
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
	const char *argv[] = { "ep-run", "-n", "2", "--", "sh", "-c", stray, NULL };
	pid_t keeper;

	start(&run, argv);
	read_until(&run, "up0\n");
	read_until(&run, "up1\n");
	keeper = keeper_of(run.pid);
	ck_assert_int_gt(keeper, 1);
	kill(keeper, SIGKILL);
	ck_assert_int_eq(finish(&run), 125);
	assert_nothing_left();
}

TEST(run_ended_leaves_no_stray_of_a_rank)
{
	ck_assert_int_eq(shell(&run, NULL, NULL, "setsid sleep 1000 & sleep 1000 & exit 0"), 0);
	assert_nothing_left();
}

static int have_server(void)
{
	return !system(
		"(command -v redis-server || command -v valkey-server || command -v redis-check-rdb) >/dev/null");
}

int main(void)
{
	if (!have_server())
		return 77;
	return suite_run(SUITE(.name = "tools/run", .setup = make_place, .teardown = remove_place));
}
