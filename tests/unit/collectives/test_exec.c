/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that a rank starts, at random times, while groups are joined, used and left: none of them is given a
 * descriptor of the library. The store's connections have given a password, and windows and links end with their
 * last descriptor.
 *
 * labels: redis real
 */
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 2
#define ROUNDS 12
#define OPERATIONS 20
#define YIELDS 64 /* between two programs, at most */

struct job {
	struct covey_config config[ROUNDS];
	uint64_t seed;
};

struct starter {
	uint64_t random;
	int stop, started, given;
};

/* The program that is started: how many descriptors it was given, beside the standard ones. */
static int count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	char path[300], what[128];
	int given = 0;

	if (!dir)
		return 100;
	for (struct dirent *d = readdir(dir); d; d = readdir(dir)) {
		int fd = atoi(d->d_name);
		ssize_t n;

		if (fd <= STDERR_FILENO || fd == dirfd(dir))
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%s", d->d_name);
		n = readlink(path, what, sizeof(what) - 1);
		fprintf(stderr, "a program was given descriptor %d: %.*s\n", fd, (int)n, what);
		given++;
	}
	closedir(dir);
	return given;
}

/* What the test itself has open is not the library's. */
static void keep_own(void)
{
	int most = (int)sysconf(_SC_OPEN_MAX);

	for (int fd = STDERR_FILENO + 1; fd < most && fd < 4096; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void *start_programs(void *arg)
{
	char self[] = "/proc/self/exe", word[] = "count", *argv[] = { self, word, NULL };
	struct starter *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
		int status = 0;
		pid_t pid;

		must(!posix_spawn(&pid, self, NULL, NULL, argv, environ), "a program cannot be started");
		must(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "the program ended with %x", status);
		s->started++;
		s->given += WEXITSTATUS(status) != 0;
		for (uint64_t n = harness_random(&s->random) % YIELDS; n; n--)
			sched_yield();
	}
	return NULL;
}

static int rank_main(void *arg, int me)
{
	struct job *job = arg;
	struct starter s = { .random = job->seed + (uint64_t)me };
	struct covey_group *group;
	float in = 1, out;
	pthread_t thread;

	keep_own();
	must(!pthread_create(&thread, NULL, start_programs, &s), "no thread");
	for (int i = 0; i < ROUNDS; i++) {
		group = harness_join(&job->config[i], me);
		for (int k = 0; k < OPERATIONS; k++)
			must(!covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL),
			     "operation %d", k);
		must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", me);
		covey_close(group);
	}
	__atomic_store_n(&s.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	must(s.started, "no program was started");
	return s.given != 0;
}

TEST_LOOP(programs_are_given_no_descriptor, 0, 2)
{
	struct job job = { .seed = harness_seed() };
	pid_t pid[RANKS];

	for (int i = 0; i < ROUNDS; i++) {
		job.config[i] = harness_config("exec", RANKS);
		job.config[i].transport = _i ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	}
	harness_fork_all(rank_main, &job, pid, RANKS);
	for (int r = 0; r < RANKS; r++)
		must(!harness_reap(pid[r]), "rank %d: programs were given descriptors, or it ended badly", r);
}

int main(int argc, char **argv)
{
	(void)argv;
	return argc > 1 ? count_descriptors() : harness_main(SUITE(.name = "collectives/exec"));
}
