/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The redis-server of a run, and the steps of a plan that act on it. It listens on a unix socket in the private
 * directory, through which this process always reaches it, and on an address if ranks have networks of their own. It
 * keeps data only if the plan restarts it with them.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net.h"
#include "plan.h"
#include "sentinel.h"

#define START_MS 5000
#define REPLY_MS 1000
#define PORT "6379"
#define PROXY_NOTHING_US 0

/* redis-check-rdb is the same program, and serves when it is called redis-server. */
static const char *const servers[] = { "redis-server", "valkey-server", "redis-check-rdb", NULL };

#ifndef COVEY_MODULES
#define COVEY_MODULES "../lib/covey" /* from the folder of this program, once installed */
#endif

/* A clock that only this server sees (tests/chaos/clock.c), built beside this program. */
static int clock_module(char *path, size_t bytes)
{
	static const char *const places[] = { ".", COVEY_MODULES };
	char self[PATH_MAX] = "";

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return -1;
	dirname(self);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, bytes, "%.180s/%s/libchaos-clock.so", self, places[i]);
		if (!access(path, R_OK))
			return 0;
	}
	return -1;
}

static int set_clock(const struct chaos_server *s, int seconds)
{
	int64_t step = seconds;
	char path[96];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/clock", s->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	n = write(fd, &step, sizeof(step));
	close(fd);
	return n == sizeof(step) ? 0 : -1;
}

static void __attribute__((noreturn)) exec_server(const struct chaos_server *s, pid_t parent)
{
	char socket_path[96], log[96], clock[96], module[256];
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		_exit(125);
	snprintf(socket_path, sizeof(socket_path), "%s/store", s->dir);
	snprintf(log, sizeof(log), "%s/log", s->dir);
	snprintf(clock, sizeof(clock), "%s/clock", s->dir);
	if (s->clock && !clock_module(module, sizeof(module))) {
		setenv("LD_PRELOAD", module, 1);
		setenv("CHAOS_CLOCK", clock, 1);
	}
	for (int i = 0; servers[i]; i++)
		execlp(servers[i], "redis-server", "--port", s->bind ? PORT : "0", "--bind",
		       s->bind ? s->bind : "127.0.0.1", "--protected-mode", "no", "--unixsocket", socket_path, "--save",
		       "", "--appendonly", s->data ? "yes" : "no", "--dir", s->dir, "--logfile", log, "--loglevel",
		       "warning", (char *)NULL);
	_exit(127);
}

static int dial(const struct chaos_server *s)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(to.sun_path, sizeof(to.sun_path), "%s/store", s->dir);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	close(fd);
	return -1;
}

/* One line of reply to one inline command, into @reply. */
int chaos_server_say(const struct chaos_server *s, const char *command, char *reply, size_t bytes)
{
	struct pollfd wait = { .fd = dial(s), .events = POLLIN };
	ssize_t n = -1;

	if (wait.fd < 0)
		return -1;
	if (dprintf(wait.fd, "%s\r\n", command) > 0 && poll(&wait, 1, REPLY_MS) == 1)
		n = read(wait.fd, reply, bytes - 1);
	close(wait.fd);
	if (n <= 0)
		return -1;
	reply[n] = '\0';
	return 0;
}

int chaos_server_start(struct chaos_server *s)
{
	uint64_t end = tool_now_ns() + START_MS * UINT64_C(1000000);
	pid_t parent = getpid();
	char reply[128];

	s->pid = fork();
	if (!s->pid)
		exec_server(s, parent);
	while (s->pid > 0 && tool_now_ns() < end) {
		if (!chaos_server_say(s, "PING", reply, sizeof(reply)) && !strncmp(reply, "+PONG", 5))
			return 0;
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
			s->pid = 0;
			break;
		}
		chaos_sleep_us(2000);
	}
	fprintf(stderr, "ep-chaos: no redis-server answers: install redis-tools\n");
	return -1;
}

static void end_server(struct chaos_server *s)
{
	if (s->pid <= 0)
		return;
	kill(s->pid, SIGKILL);
	waitpid(s->pid, NULL, 0);
	s->pid = 0;
}

static int restart(struct chaos_run *run, bool empty)
{
	struct chaos_server *s = &run->server;
	char data[96];

	end_server(s);
	snprintf(data, sizeof(data), "%s/appendonlydir", s->dir);
	if (empty && s->data)
		tool_remove_dir(data);
	return chaos_server_start(s);
}

static int command(struct chaos_run *run, const char *format, unsigned long long number)
{
	char text[64], reply[128];

	snprintf(text, sizeof(text), format, number);
	if (!chaos_server_say(&run->server, text, reply, sizeof(reply)) && *reply == '+')
		return 0;
	chaos_wrong(run, "the store does not take `%s`", text);
	return -1;
}

/* Epoch of the first group, as the master or its replica has it. */
static long epoch_at(int replica)
{
	return chaos_sentinel_number(replica, "covey:{crew0}:g", "epoch");
}

/* A lagging replica takes over without some views. This checks that it lacks them, or the plan would show nothing. */
static int strike_master(struct chaos_run *run)
{
	long knew = run->lags ? epoch_at(0) : 0, has;

	chaos_sentinel_strike();
	has = run->lags ? epoch_at(1) : -1;
	run->lags = false;
	if (knew > has && run->opt->verbose)
		fprintf(stderr, "ep-chaos: the master had epoch %ld, the replica that takes over has %ld\n", knew, has);
	if (knew <= has)
		chaos_wrong(run, "the replica was to lag, and has epoch %ld like the master", has);
	return knew > has ? 0 : -1;
}

static int sentinel_act(struct chaos_run *run, enum chaos_server_act what)
{
	int err = 0;

	switch (what) {
	case CHAOS_S_FAILOVER:
		err = chaos_sentinel_ask();
		break;
	case CHAOS_S_FAILKILL:
		return strike_master(run);
	case CHAOS_S_LAG:
		err = chaos_sentinel_lag();
		run->lags = !err;
		break;
	case CHAOS_S_PROMOTED:
		err = chaos_sentinel_promoted();
		break;
	case CHAOS_S_REVIVE:
		err = chaos_sentinel_revive();
		break;
	default: /* nothing to undo */
		break;
	}
	if (err)
		chaos_wrong(run, "the sentinels do not do what they are asked for");
	return err;
}

int chaos_server_act(struct chaos_run *run, const struct chaos_step *step)
{
	struct chaos_server *s = &run->server;

	if (run->sentinel)
		return sentinel_act(run, (enum chaos_server_act)step->what);
	switch ((enum chaos_server_act)step->what) {
	case CHAOS_S_STOP:
		return s->pid > 0 ? kill(s->pid, SIGSTOP) : 0;
	case CHAOS_S_CONTINUE: /* undoes any other step */
		__atomic_store_n(&run->crew->proxy_us, PROXY_NOTHING_US, __ATOMIC_RELAXED);
		return s->pid > 0 ? kill(s->pid, SIGCONT) : restart(run, false);
	case CHAOS_S_KILL:
		end_server(s);
		return 0;
	case CHAOS_S_START:
		return restart(run, false);
	case CHAOS_S_EMPTY:
		return restart(run, true);
	case CHAOS_S_FLUSH:
		return command(run, "FLUSHALL%.0llu", 0);
	case CHAOS_S_PAUSE:
		return command(run, "CLIENT PAUSE %llu ALL", (unsigned long long)step->from_ms);
	case CHAOS_S_SLOW:
		__atomic_store_n(&run->crew->proxy_us, (uint32_t)step->from_ms * 1000, __ATOMIC_RELAXED);
		return 0;
	case CHAOS_S_CLOCK:
		return set_clock(s, step->a);
	default:
		return -1;
	}
}

static void look(void *ctx)
{
	chaos_run_poll(ctx);
}

int chaos_server_open(struct chaos_run *run)
{
	const struct chaos_plan *plan = &run->plan;
	struct chaos_server *s = &run->server;
	char module[256];

	if (plan->needs_sentinel) {
		chaos_sentinel_meanwhile(look, run);
		run->sentinel = !chaos_sentinel_start(s->dir, run->crew->store, sizeof(run->crew->store));
		return run->sentinel ? 0 : -1;
	}
	s->data = plan->needs_data;
	s->clock = plan->needs_clock;
	if (s->clock && (clock_module(module, sizeof(module)) || set_clock(s, 0))) {
		fprintf(stderr, "ep-chaos: plan %s: no libchaos-clock.so beside ep-chaos\n", plan->name);
		return CHAOS_SKIPPED;
	}
	if (run->net)
		s->bind = chaos_net_address(CHAOS_NET_STORE);
	if (s->bind)
		snprintf(run->crew->store, sizeof(run->crew->store), "redis://%s:" PORT, s->bind);
	else
		snprintf(run->crew->store, sizeof(run->crew->store), "redis+unix://%s/%s", s->dir,
			 plan->needs_proxy ? "slow" : "store");
	if (chaos_server_start(s))
		return -1;
	return plan->needs_proxy ? chaos_proxy_start(run) : 0;
}

void chaos_server_close(struct chaos_run *run)
{
	if (run->proxy > 0) {
		kill(run->proxy, SIGKILL);
		waitpid(run->proxy, NULL, 0);
	}
	if (run->sentinel)
		chaos_sentinel_stop();
	end_server(&run->server);
}
