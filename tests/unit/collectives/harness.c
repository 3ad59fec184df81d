/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private server, threads, processes. Nothing here sleeps for a guessed time: the server says on its
 * output when it is ready, processes are waited for by descriptor, counters are watched until they move.
 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct {
	pid_t pid;
	char dir[64], socket[96], url[128];
	int output; /* of the server */
} server = { .pid = -1, .output = -1 };

void harness_fail(const char *file, int line, const char *cond, const char *format, ...)
{
	char text[600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "%s:%d: pid %d: %s: %s\n", file, line, (int)getpid(), cond, text);
	ck_abort_msg("%s:%d: %s: %s", file, line, cond, text);
	abort();
}

void harness_refused(const char *file, int line, const char *call, struct covey_group *group, int err, int want,
		     const char *cause)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	if (err != want || info.err != want || !strstr(info.cause, cause))
		harness_fail(file, line, call, "%s, not %s; the cause \"%s\", not \"%s\"", covey_strerror(err),
			     covey_strerror(want), info.cause, cause);
}

void harness_join_in_vain(const char *file, int line, const struct covey_config *config, int want, const char *cause)
{
	struct covey_config mine = *config;
	struct covey_group *group = NULL;
	struct covey_error_info info;
	int err;

	do {
		err = covey_join(&mine, &group);
		covey_last_error(NULL, &info);
		mine.join_ms *= 4;
	} while (err && (err != want || !strstr(info.cause, cause)) && mine.join_ms < WATCHDOG_MS);
	harness_refused(file, line, "covey_join", NULL, err, want, cause);
	ck_assert_ptr_null(group);
}

uint64_t harness_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t harness_deadline(int ms)
{
	return harness_now_ns() + (uint64_t)ms * 1000000ull;
}

uint64_t harness_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint64_t harness_seed(void)
{
	const char *given = getenv("COVEY_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : harness_now_ns();

	printf("COVEY_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

/* ---- server ---- */

static void server_run(int output)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(output, STDOUT_FILENO);
	execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", server.socket, "--save", "",
	       "--appendonly", "no", "--dir", server.dir, (char *)NULL);
	_exit(127);
}

/* The server's output up to the line that it is ready; 0, or -1 when it ended before. */
static int server_ready(void)
{
	char text[16384];
	size_t n = 0;
	ssize_t got;

	while ((got = read(server.output, text + n, sizeof(text) - 1 - n)) > 0) {
		n += (size_t)got;
		text[n] = 0;
		if (strstr(text, "eady to accept connections"))
			return 0;
		if (n > sizeof(text) - 1024)
			return -1;
	}
	return -1;
}

static void server_stop(void)
{
	if (server.pid > 0) {
		kill(server.pid, SIGKILL);
		waitpid(server.pid, NULL, 0);
	}
	if (server.dir[0]) {
		unlink(server.socket);
		rmdir(server.dir);
	}
}

static int server_start(void)
{
	int out[2];

	snprintf(server.dir, sizeof(server.dir), "/tmp/covey-test-XXXXXX");
	if (!mkdtemp(server.dir) || pipe(out))
		return -1;
	snprintf(server.socket, sizeof(server.socket), "%s/s", server.dir);
	snprintf(server.url, sizeof(server.url), "redis+unix://%s", server.socket);
	server.pid = fork();
	if (!server.pid)
		server_run(out[1]);
	close(out[1]);
	server.output = out[0];
	return server_ready();
}

const char *harness_store(void)
{
	return server.url;
}

void harness_store_signal(int number)
{
	must(!kill(server.pid, number), "store: %s", strerror(errno));
}

/* One inline command and everything that comes back within one read; enough for KEYS of a few groups. */
int harness_keys(const char *part, char *text, size_t bytes)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), keys = -1;
	char ask[128];
	ssize_t got;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", server.socket);
	snprintf(ask, sizeof(ask), "KEYS *%s*\r\n", part);
	must(!connect(fd, (struct sockaddr *)&to, sizeof(to)), "%s: %s", server.socket, strerror(errno));
	must(write(fd, ask, strlen(ask)) == (ssize_t)strlen(ask), "%s", strerror(errno));
	got = read(fd, text, bytes - 1);
	must(got > 0 && text[0] == '*', "KEYS: %s", strerror(errno));
	text[got] = 0;
	keys = atoi(text + 1);
	close(fd);
	return keys;
}

int harness_main(Suite *suite)
{
	static const char *const ours[] = { "RANK",	  "WORLD_SIZE",	 "COVEY_STORE",	    "COVEY_GROUP",
					    "COVEY_RANK", "COVEY_WORLD", "COVEY_TRANSPORT", "COVEY_MAX_RANKS",
					    "COVEY_HOST", "COVEY_CREATE" };
	int failed;

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		unsetenv(ours[i]);
	if (server_start()) {
		fprintf(stderr, "skipped: redis-server is not there or does not start\n");
		server_stop();
		return 77;
	}
	failed = suite_run(suite);
	server_stop();
	return failed;
}

struct covey_config harness_config(const char *name, int world)
{
	static char names[16][96];
	static int next;
	struct covey_config config = COVEY_CONFIG_INIT;
	char *group = names[next++ % 16];

	snprintf(group, sizeof(names[0]), "%s-%d-%d", name, (int)getpid(), next);
	config.store = server.url;
	config.group = group;
	config.world = world;
	config.max_ranks = 16;
	config.join_ms = 20000;
	config.window_bytes = 256u << 20;
	/* A busy machine is no failure. Tests of detection set their own bounds. */
	config.hang_ms = UNDER_TSAN ? 20000 : 5000;
	config.link_ms = 20000;
	config.lease_ms = 60000;
	return config;
}

struct covey_config harness_config_over(int tcp, const char *name, int world)
{
	struct covey_config config = harness_config(name, world);

	config.transport = tcp ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	return config;
}

/* ---- threads ---- */

struct covey_group *harness_join(const struct covey_config *config, int rank)
{
	struct covey_config mine = *config;
	struct covey_group *group = NULL;
	struct covey_error_info info;
	int err;

	mine.rank = rank;
	err = covey_join(&mine, &group);
	if (err)
		covey_last_error(NULL, &info);
	must(!err, "rank %d cannot join: %s: %s", rank, covey_strerror(err), info.cause);
	return group;
}

struct thread {
	struct member member;
	member_fn fn;
	pthread_t id;
};

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	struct member *m = &t->member;
	int err;

	m->group = harness_join(&m->config, m->rank);
	t->fn(m);
	err = m->no_leave ? 0 : covey_leave(m->group, harness_deadline(WATCHDOG_MS));
	must(!err, "rank %d cannot leave: %s", m->rank, covey_strerror(err));
	covey_close(m->group);
	return NULL;
}

void harness_threads(const struct covey_config *config, member_fn fn, void *arg)
{
	harness_threads_on(config, fn, arg, 0);
}

void harness_threads_on(const struct covey_config *config, member_fn fn, void *arg, int hosts)
{
	static const char *const host[] = { "host-a", "host-b", "host-c", "host-d" };
	int n = config->world;
	struct thread *t = calloc((size_t)n, sizeof(*t));
	pthread_barrier_t met;

	pthread_barrier_init(&met, NULL, (unsigned)n);
	for (int r = 0; r < n; r++) {
		t[r].fn = fn;
		t[r].member = (struct member){ .config = *config, .rank = r, .n = n, .arg = arg, .met = &met };
		if (hosts > 0)
			t[r].member.config.host = host[r % hosts];
		else if (hosts) /* of neighbouring ranks */
			t[r].member.config.host = host[r * -hosts / n];
		must(!pthread_create(&t[r].id, NULL, thread_main, &t[r]), "thread %d", r);
	}
	for (int r = 0; r < n; r++)
		pthread_join(t[r].id, NULL);
	pthread_barrier_destroy(&met);
	free(t);
}

void harness_meet(struct member *member)
{
	pthread_barrier_wait(member->met);
}

/* ---- processes ---- */

void *harness_shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED, "%zu bytes: %s", bytes, strerror(errno));
	return at;
}

pid_t harness_fork(int (*fn)(void *arg, int rank), void *arg, int rank)
{
	pid_t parent = getpid(), pid;

	fflush(NULL);
	pid = fork();
	must(pid >= 0, "fork: %s", strerror(errno));
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() && getppid() != parent) /* 0: the parent is of another PID namespace */
		_exit(1);
	_exit(fn(arg, rank));
}

static uint64_t sum(const uint64_t *counters, int n)
{
	uint64_t all = 0;

	for (int i = 0; i < n; i++)
		all += __atomic_load_n(&counters[i], __ATOMIC_RELAXED);
	return all;
}

int harness_reap(pid_t pid)
{
	return harness_reap_busy(pid, NULL, 0);
}

void harness_fork_all(int (*fn)(void *arg, int rank), void *arg, pid_t *pid, int n)
{
	for (int r = 0; r < n; r++)
		pid[r] = harness_fork(fn, arg, r);
}

void harness_reap_all(const pid_t *pid, int n, int victim)
{
	for (int r = 0; r < n; r++) {
		int status = harness_reap(pid[r]);

		if (r == victim)
			must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "rank %d: status %#x", r, status);
		else
			must(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d: status %#x", r, status);
	}
}

int harness_reap_busy(pid_t pid, const uint64_t *counters, int n)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0), status = 0, ended;
	struct pollfd p = { fd, POLLIN, 0 };
	uint64_t before, after = sum(counters, n);

	must(fd >= 0, "pidfd_open: %s", strerror(errno));
	do {
		before = after;
		ended = poll(&p, 1, WATCHDOG_MS) == 1;
		after = sum(counters, n);
	} while (!ended && after != before);
	must(ended, "process %d hangs", (int)pid);
	close(fd);
	must(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	return status;
}

void harness_until(const uint64_t *word, uint64_t least, const char *what)
{
	uint64_t end = harness_deadline(WATCHDOG_MS);

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < least) {
		must(harness_now_ns() < end, "%s: still %llu, %llu awaited", what, (unsigned long long)*word,
		     (unsigned long long)least);
		usleep(200); /* whoever is awaited needs the cores */
	}
}
int harness_entries(const char *path, const char *part)
{
	DIR *dir = opendir(path);
	int n = 0;

	for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir))
		n += strstr(d->d_name, part) != NULL;
	if (dir)
		closedir(dir);
	return n;
}

int harness_sockets(const char *part)
{
	FILE *f = fopen("/proc/net/unix", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, part) != NULL;
	if (f)
		fclose(f);
	return n;
}
