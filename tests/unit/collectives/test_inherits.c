/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank's process inherits. Whether it spins follows from the cores that it may use. A limit that is too small is
 * named, with its value and what raises it, before the rank has done anything; the size of a stack and closed standard
 * descriptors do no harm.
 *
 * labels: redis real
 */
#include "harness.h"

#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_state.h"
#include "handle.h"

#define RANKS 2
#define NOBODY 65534

struct job {
	struct covey_config config;
	int cpu[RANKS]; /* the only one of each rank */
	int *spins;	/* [RANKS], shared */
};

/* ---- cores ---- */

static int bound_rank(void *arg, int me)
{
	struct job *job = arg;
	struct covey_group *group;
	float in = 1, out = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(job->cpu[me], &set);
	must(!sched_setaffinity(0, sizeof(set), &set), "rank %d cannot be bound", me);
	group = harness_join(&job->config, me);
	must(!covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL) && out == RANKS, "out %g",
	     (double)out);
	job->spins[me] = group->engine->spin;
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", me);
	covey_close(group);
	return 0;
}

static void run_bound(int transport, int first, int second, int spins)
{
	struct job job = { .config = harness_config("cores", RANKS), .cpu = { first, second } };
	pid_t pid[RANKS];

	job.config.transport = transport;
	job.spins = harness_shared(RANKS * sizeof(*job.spins));
	harness_fork_all(bound_rank, &job, pid, RANKS);
	for (int r = 0; r < RANKS; r++)
		must(!harness_reap(pid[r]), "rank %d ended badly", r);
	for (int r = 0; r < RANKS; r++)
		must(job.spins[r] == spins, "rank %d of cores %d and %d: spins %d", r, first, second, job.spins[r]);
}

/* Two cores that this process may use; the same one twice: there is no other. */
static void two_cores(int cpu[2])
{
	cpu_set_t set;
	int n = 0;

	must(!sched_getaffinity(0, sizeof(set), &set), "no mask");
	for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &set))
			cpu[n++] = i;
	if (n < 2)
		cpu[1] = cpu[0];
}

TEST(ranks_on_one_core_do_not_spin)
{
	int cpu[2];

	two_cores(cpu);
	run_bound(COVEY_TRANSPORT_AUTO, cpu[0], cpu[0], 0);
}

TEST(ranks_on_one_core_do_not_spin_over_sockets)
{
	int cpu[2];

	two_cores(cpu);
	run_bound(COVEY_TRANSPORT_TCP, cpu[0], cpu[0], 0);
}

TEST(ranks_that_a_launcher_bound_to_a_core_each_spin)
{
	int cpu[2];

	two_cores(cpu);
	if (cpu[0] != cpu[1]) /* where a machine has one core, the test above is all there is to see */
		run_bound(COVEY_TRANSPORT_AUTO, cpu[0], cpu[1], 1);
}

/* ---- limits ---- */

struct lack {
	const char *name;
	int resource;
	rlim_t most;
	const char *says[3]; /* in the cause of the failed join */
};

static const struct lack lacks[] = {
	{ "file size", RLIMIT_FSIZE, 1 << 20, { "ulimit -f", "1048576", "COVEY_WINDOW_BYTES" } },
#if !defined(__SANITIZE_ADDRESS__) && !UNDER_TSAN /* their runtimes need addresses themselves */
	{ "addresses", RLIMIT_AS, (rlim_t)2 << 30, { "ulimit -v", "2147483648", "COVEY_WINDOW_BYTES" } },
#endif
	{ "descriptors", RLIMIT_NOFILE, 24, { "ulimit -n", "24", "descriptors may be open" } },
	{ "threads", RLIMIT_NPROC, 0, { "ulimit -u", " 0)", "thread" } },
};

#define LACKS (int)(sizeof(lacks) / sizeof(lacks[0]))

static int poor_rank(void *arg, int me)
{
	const struct lack *lack = &lacks[me];
	struct rlimit limit = { lack->most, lack->most };
	struct covey_error_info info = { 0 };
	struct covey_group *group;
	int err;

	/* The kernel counts no threads of root. */
	must(lack->resource != RLIMIT_NPROC || geteuid() || (!setgid(NOBODY) && !setuid(NOBODY)), "still root");
	must(!setrlimit((__rlimit_resource_t)lack->resource, &limit), "no limit of %s", lack->name);
	err = covey_join(arg, &group);
	covey_last_error(NULL, &info);
	must(err, "a rank joined in spite of the limit of %s", lack->name);
	for (int i = 0; i < 3; i++)
		must(strstr(info.cause, lack->says[i]), "%s: \"%s\" is not in: %s", lack->name, lack->says[i],
		     info.cause);
	return 0;
}

TEST_LOOP(a_limit_that_is_too_small_is_named, 0, LACKS)
{
	struct covey_config config = harness_config("limits", 16);
	char keys[4096];
	int status;

	config.rank = 0;
	status = harness_reap(harness_fork(poor_rank, &config, _i));
	must(!status, "%s: status %x", lacks[_i].name, status);
	must(!harness_keys(config.group, keys, sizeof(keys)), "%s: the store was written: %s", lacks[_i].name, keys);
}

/* ---- umask ---- */

TEST(a_umask_does_not_close_the_record)
{
	struct covey_config config = harness_config("umask", 1);
	char place[] = "/tmp/covey-flight-XXXXXX", path[400];
	struct covey_group *group;
	struct stat st;
	glob_t found;

	must(mkdtemp(place), "no directory");
	config.flight = place;
	umask(0777);
	group = harness_join(&config, 0);
	snprintf(path, sizeof(path), "%s/%s.%d.*.flight", place, config.group, (int)getpid());
	must(!glob(path, 0, NULL, &found) && found.gl_pathc == 1, "there is no %s", path);
	must(!stat(found.gl_pathv[0], &st), "stat");
	globfree(&found);
	must((st.st_mode & 0777) == 0600, "its mode is %o", st.st_mode & 0777);
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "cannot leave");
	covey_close(group);
	must(!rmdir(place), "the record is left");
}

/* ---- a program that is started with it ---- */

/* The program: a group of one. Descriptors below @closed were closed, and may be /dev/null and nothing else. */
static int join_alone(const char *store, const char *name, int closed)
{
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_error_info info;
	struct covey_group *group;
	float in = 1, out = 0;
	struct stat st;
	int err;

	config.store = store;
	config.group = name;
	config.world = 1;
	config.window_bytes = 256u << 20;
	err = covey_join(&config, &group);
	if (err) {
		covey_last_error(NULL, &info);
		printf("covey_join: %s\n", info.cause);
		return 2;
	}
	for (int fd = 0; fd < closed; fd++)
		if (fstat(fd, &st) || !S_ISCHR(st.st_mode))
			return 10 + fd;
	err = covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL);
	if (err || out != 1)
		return 3;
	err = covey_leave(group, harness_deadline(WATCHDOG_MS));
	covey_close(group);
	return err ? 4 : 0;
}

struct start {
	rlim_t stack; /* 0: as it is */
	int closed;   /* standard descriptors */
	const char *group;
};

static int start_alone(void *arg, int unused)
{
	const struct start *s = arg;
	struct rlimit limit = { s->stack, RLIM_INFINITY };
	char closed[2] = { (char)('0' + s->closed), '\0' };

	(void)unused;
	if (s->stack)
		must(!setrlimit(RLIMIT_STACK, &limit), "no limit of the stack");
	for (int fd = 0; fd < s->closed; fd++)
		close(fd);
	execl("/proc/self/exe", "alone", harness_store(), s->group, closed, (char *)NULL);
	return 99;
}

static void alone(struct start *s)
{
	struct covey_config config = harness_config("alone", 1);
	int status;

	s->group = config.group;
	status = harness_reap(harness_fork(start_alone, s, 0));
	must(!status, "stack %llu, %d closed: status %x", (unsigned long long)s->stack, s->closed, status);
}

/* The C library takes the limit of the stack for the size of every thread's. */
TEST(stacks_of_threads_do_not_follow_the_limit)
{
	struct start huge = { .stack = (rlim_t)1 << 47 }, small = { .stack = 128 << 10 };

	alone(&huge);
	alone(&small);
}

TEST(nothing_comes_to_stand_as_a_standard_descriptor)
{
	for (int n = 1; n <= 3; n++) {
		struct start s = { .closed = n };

		alone(&s);
	}
}

int main(int argc, char **argv)
{
	if (argc > 3)
		return join_alone(argv[1], argv[2], atoi(argv[3]));
	return harness_main(SUITE(.name = "collectives/inherits"));
}
