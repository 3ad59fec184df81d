/* SPDX-License-Identifier: Apache-2.0 */
/* A tool as a shell would start it, one at a time, and what it printed on both streams. */
#ifndef TESTS_PROGRAM_H
#define TESTS_PROGRAM_H

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

static struct {
	pid_t pid;
	int out; /* its stdout and stderr */
	char text[1 << 18];
	size_t used;
} run;

/* The surroundings of the next programs. */
static struct {
	int out_to;	      /* their standard output, < 0: what we read */
	int ignored, blocked; /* a signal; 0: none */
} given = { .out_to = -1 };

static char dir[] = "/tmp/covey-test-XXXXXX"; /* TMPDIR */

static inline void make_place(void)
{
	memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
	ck_assert_ptr_nonnull(mkdtemp(dir));
	setenv("TMPDIR", dir, 1);
	unsetenv("COVEY_STORE");
	unsetenv("COVEY_GROUP");
	unsetenv("COVEY_MAX_RANKS");
}

static inline void remove_place(void)
{
	rmdir(dir); /* it must be empty; the tests look before */
}

static inline int entries(void)
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

/* @words[0] is the path of the program. */
static inline void start_words(const char *const *words)
{
	sigset_t blocked;
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	run.used = 0;
	run.text[0] = '\0';
	run.out = ends[0];
	run.pid = fork();
	ck_assert_int_ge(run.pid, 0);
	if (!run.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(given.out_to < 0 ? ends[1] : given.out_to, STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		sigemptyset(&blocked);
		if (given.blocked)
			sigaddset(&blocked, given.blocked);
		sigprocmask(SIG_SETMASK, &blocked, NULL);
		if (given.ignored)
			signal(given.ignored, SIG_IGN);
		execv(words[0], (char *const *)(uintptr_t)words);
		_exit(99);
	}
	close(ends[1]);
}

#define start(...) start_words((const char *const[]){ __VA_ARGS__, NULL })

/* Reads until @text was printed, NULL: until the end of the output. */
static inline void read_until(const char *text)
{
	struct pollfd wait = { .fd = run.out, .events = POLLIN };
	ssize_t n;

	while (!text || !strstr(run.text, text)) {
		ck_assert_msg(poll(&wait, 1, WATCHDOG_MS) == 1, "it hangs; so far: %s", run.text);
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

/* Its exit code, or 1000 and the signal. A process whose output is closed is waited for, too. */
static inline int finish(void)
{
	int status = 0;

	read_until(NULL);
	close(run.out);
	for (int ms = 0; waitpid(run.pid, &status, WNOHANG) != run.pid; ms++) {
		ck_assert_msg(ms < WATCHDOG_MS, "it hangs after: %s", run.text);
		poll(NULL, 0, 1);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define assert_has(want) ck_assert_msg(strstr(run.text, want) != NULL, "no \"%s\" in: %s", want, run.text)
#define assert_lacks(word) ck_assert_msg(strstr(run.text, word) == NULL, "\"%s\" in: %s", word, run.text)

static inline int have_server(void)
{
	return !system(
		"(command -v redis-server || command -v valkey-server || command -v redis-check-rdb) >/dev/null");
}

#endif
