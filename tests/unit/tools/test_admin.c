/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-admin against a store whose replies come late, through a proxy that holds each of them back: every command
 * works within its bounds, and past them says what did not answer. The group is real, and reads the store directly.
 *
 * labels: redis real
 */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../server.h"
#include "../../suite.h"
#include "covey.h"

#define WATCHDOG_MS 50000
#define LATE_MS 500
#define TOO_LATE_MS 10000 /* past the 5 s of one request */
#define EP_ADMIN COVEY_BUILD_DIR "/tools/ep-admin"

static struct {
	char dir[64], store[128], slow[128];
	pid_t server, proxy;
	unsigned *stop; /* shared */
} test;

/* ---- processes ---- */

static pid_t child(void)
{
	pid_t parent = getpid(), pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void unix_address(struct sockaddr_un *to, const char *name)
{
	memset(to, 0, sizeof(*to));
	to->sun_family = AF_UNIX;
	snprintf(to->sun_path, sizeof(to->sun_path), "%.60s/%s", test.dir, name);
}

/* Until the end of the stream; each piece waits. */
static void copy(int from, int to, int late_ms)
{
	char bytes[65536];
	ssize_t n;

	while ((n = read(from, bytes, sizeof(bytes))) > 0) {
		poll(NULL, 0, late_ms);
		if (send(to, bytes, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	}
	shutdown(to, SHUT_WR);
	_exit(0);
}

static void proxy(int listener, int late_ms)
{
	struct sockaddr_un to;
	int client, server;

	signal(SIGCHLD, SIG_IGN);
	unix_address(&to, "store");
	while ((client = accept(listener, NULL, NULL)) >= 0) {
		server = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(server, (struct sockaddr *)&to, sizeof(to)))
			_exit(1);
		if (!child())
			copy(client, server, 0);
		if (!child())
			copy(server, client, late_ms);
		close(client);
		close(server);
	}
	_exit(1);
}

static void start_proxy(int late_ms)
{
	struct sockaddr_un at;
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	unix_address(&at, "slow");
	unlink(at.sun_path);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(listener, 16), 0);
	test.proxy = child();
	if (!test.proxy)
		proxy(listener, late_ms);
	close(listener);
}

/* Safe points and sums until the parent's word; the exit code is the error that ended them. */
static pid_t start_rank(int rank, int joiner)
{
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_result res;
	struct covey_group *group;
	pid_t pid = child();
	float in = 1, out;
	int err;

	if (pid)
		return pid;
	config.store = test.store;
	config.group = "late";
	config.rank = rank;
	config.world = joiner ? 0 : 2;
	config.create = joiner ? COVEY_CREATE_NEVER : COVEY_CREATE_FIRST;
	config.admission = COVEY_ADMISSION_MANUAL;
	config.max_ranks = 8;
	config.hang_ms = 5000;
	err = covey_join(&config, &group);
	while (!err && !__atomic_load_n(test.stop, __ATOMIC_ACQUIRE)) {
		err = covey_admit(group, NULL, 0, &res);
		if (!err)
			err = covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, &res);
		poll(NULL, 0, 1);
	}
	_exit(-err);
}

static void reap(pid_t pid, int code)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == code, "wait status %x, exit code %d awaited", status,
		      code);
}

/* ---- ep-admin ---- */

static char said[65536];

/* Its exit code; what it said on both streams is in said[]. */
static int __attribute__((format(printf, 2, 3))) admin(const char *store, const char *format, ...)
{
	char line[600];
	va_list args;
	size_t used;
	int status;
	FILE *out;

	used = (size_t)snprintf(line, sizeof(line), "COVEY_LOG=error %s --store '%s' --group late ", EP_ADMIN, store);
	va_start(args, format);
	used += (size_t)vsnprintf(line + used, sizeof(line) - used, format, args);
	va_end(args);
	snprintf(line + used, sizeof(line) - used, " 2>&1");
	out = popen(line, "r");
	ck_assert_ptr_nonnull(out);
	said[fread(said, 1, sizeof(said) - 1, out)] = '\0';
	status = pclose(out);
	ck_assert_msg(WIFEXITED(status), "%s: wait status %x", line, status);
	return WEXITSTATUS(status);
}

#define assert_does(store, code, ...) \
	do { \
		int is = admin(store, __VA_ARGS__); \
\
		ck_assert_msg(is == (code), "exit code %d: %s", is, said); \
	} while (0)
#define assert_said(what) ck_assert_msg(strstr(said, what) != NULL, "no \"%s\" in: %s", what, said)

/* Looks at the store directly until it shows @what. */
static void until_said(const char *what, const char *command)
{
	for (int i = 0; i < WATCHDOG_MS / 20; i++) {
		admin(test.store, "%s", command);
		if (strstr(said, what))
			return;
		poll(NULL, 0, 20);
	}
	ck_abort_msg("never \"%s\" in: %s", what, said);
}

static void setup(void)
{
	strcpy(test.dir, "/tmp/covey-late-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(test.dir));
	snprintf(test.store, sizeof(test.store), "redis+unix://%s/store", test.dir);
	snprintf(test.slow, sizeof(test.slow), "redis+unix://%s/slow", test.dir);
	test.stop = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(test.stop != MAP_FAILED);
	unsetenv("COVEY_STORE");
	unsetenv("COVEY_GROUP");
	test.server = server_begin("--port 0 --unixsocket %s/store --dir %s", test.dir, test.dir);
}

static void teardown(void)
{
	char line[100];

	kill(test.proxy, SIGKILL);
	kill(test.server, SIGKILL);
	waitpid(test.proxy, NULL, 0);
	waitpid(test.server, NULL, 0);
	snprintf(line, sizeof(line), "rm -rf %s", test.dir);
	ck_assert_int_eq(system(line), 0);
}

TEST(admin_does_everything_over_a_late_store)
{
	pid_t rank[3];

	start_proxy(LATE_MS);
	rank[0] = start_rank(0, 0);
	rank[1] = start_rank(1, 0);
	until_said("phase run  epoch 1  size 2 of 8", "status");
	assert_does(test.slow, 0, "status");
	assert_said("admission manual");
	assert_does(test.slow, 0, "status --json");
	assert_said("\"max_ranks\": 8");
	assert_said("\"state\": \"active\"");
	until_said("shm", "links"); /* beats tell it */
	assert_does(test.slow, 0, "links");
	assert_said("self");
	rank[2] = start_rank(2, 1);
	assert_does(test.slow, 0, "extend 3 --wait=%d", WATCHDOG_MS);
	assert_does(test.slow, 0, "retire 2 --wait=%d", WATCHDOG_MS);
	reap(rank[2], -COVEY_ERR_CLOSED);
	rank[2] = start_rank(2, 1);
	assert_does(test.slow, 0, "recover 2 --wait=%d", WATCHDOG_MS);
	assert_does(test.slow, 0, "evict 2 --wait=%d", WATCHDOG_MS);
	reap(rank[2], -COVEY_ERR_FENCED);
	assert_does(test.slow, 2, "retire 2");
	assert_said("rank 2 is not in the view");
	__atomic_store_n(test.stop, 1, __ATOMIC_RELEASE);
	kill(rank[0], SIGKILL);
	kill(rank[1], SIGKILL);
}

TEST(admin_says_what_was_too_late)
{
	start_proxy(TOO_LATE_MS);
	until_said("there is no group", "status"); /* the server is there */
	assert_does(test.slow, 4, "status");
	assert_said("the store does not answer the greeting");
	assert_does(test.slow, 4, "evict 1");
	assert_said("the store does not answer the greeting");
}

int main(void)
{
	if (system("command -v redis-server > /dev/null") != 0) {
		puts("skipped: there is no redis-server on PATH");
		return 77;
	}
	return suite_run(SUITE(.name = "tools/admin", .setup = setup, .teardown = teardown));
}
