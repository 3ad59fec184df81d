/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentinels keep their state in their own files: files and ports are made here, and the rest is the sentinels'. This
 * file only asks, in a loop with a deadline, until they agree on the expected state.
 */
#include "sentinel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SERVERS 2
#define SENTINELS 3
#define NAME "covey"
#define DOWN_MS 500	  /* silence after which a sentinel takes a server for dead */
#define FAILOVER_MS 2000  /* of a sentinel; twice this between two attempts */
#define REPLY_MS 2000	  /* of one question */
#define WATCHDOG_MS 55000 /* of any wait: some seconds, and 30 s more after a starved sentinel */
#define LOOK_MS 20
#define PRIORITY -10
#define PONG "+PONG\r\n"

struct server {
	pid_t pid; /* 0: none */
	int port;
};

static struct {
	char dir[80];
	struct server server[SERVERS], sentinel[SENTINELS];
	int master, lags; /* index of server; lags: the other one is stopped */
} set;

static void (*meanwhile)(void *ctx); /* called while we wait */
static void *meanwhile_ctx;

/* The server's names. redis-check-rdb is the same program, and serves when it is called redis-server. */
static const char *const programs[] = { "redis-server", "valkey-server", "redis-check-rdb", NULL };

static int __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "chaos_sentinel: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- questions ---- */

static struct sockaddr_in loopback(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return at;
}

/* One inline command and its reply up to the answer of a PING after it. Empty: no answer. */
static const char *ask(const struct server *server, const char *command)
{
	static char reply[16384];
	struct sockaddr_in at = loopback(server->port);
	struct pollfd wait = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .events = POLLIN };
	size_t used = 0;
	ssize_t n = 1;

	if (wait.fd >= 0 && !connect(wait.fd, (struct sockaddr *)&at, sizeof(at)) &&
	    dprintf(wait.fd, "%s\r\nPING\r\n", command) > 0) {
		while (n > 0 && used < sizeof(reply) - 1 && poll(&wait, 1, REPLY_MS) == 1) {
			n = read(wait.fd, reply + used, sizeof(reply) - 1 - used);
			used += n > 0 ? (size_t)n : 0;
			reply[used] = '\0';
			if (strstr(reply, PONG))
				break;
		}
	}
	if (wait.fd >= 0)
		close(wait.fd);
	reply[used] = '\0';
	return reply;
}

static int answers(const struct server *server, const char *command, const char *part)
{
	return strstr(ask(server, command), part) != NULL;
}

static int all_sentinels(const char *command, const char *part)
{
	for (int i = 0; i < SENTINELS; i++)
		if (!answers(&set.sentinel[i], command, part))
			return 0;
	return 1;
}

/* ---- things to wait for ---- */

static int servers_linked(void)
{
	return answers(&set.server[1 - set.master], "INFO replication", "master_link_status:up");
}

static int sentinels_know(void)
{
	return all_sentinels("INFO sentinel", "status=ok") && all_sentinels("INFO sentinel", "slaves=1,sentinels=3");
}

/* No sentinel takes the replica for down, else it would not be promoted for a while. */
static int replica_known(void)
{
	return servers_linked() && all_sentinels("SENTINEL REPLICAS " NAME, "\r\nflags\r\n$5\r\nslave\r\n");
}

/* Every sentinel names the other server, and that server confirms it. */
static int other_is_master(void)
{
	const struct server *other = &set.server[1 - set.master];
	char port[32];

	snprintf(port, sizeof(port), "\r\n%d\r\n", other->port);
	return all_sentinels("SENTINEL get-master-addr-by-name " NAME, port) && answers(other, "ROLE", "master");
}

static void wait_ms(int ms)
{
	uint64_t end = now_ms() + (uint64_t)ms;

	if (!meanwhile)
		poll(NULL, 0, ms);
	while (meanwhile && now_ms() < end)
		meanwhile(meanwhile_ctx);
}

static int wait_for(int (*true_now)(void), const char *what)
{
	uint64_t end = now_ms() + WATCHDOG_MS;

	while (!true_now()) {
		if (now_ms() > end) {
			if (!all_sentinels("INFO sentinel", "sentinel_tilt:0"))
				say("a sentinel was starved and is in tilt mode");
			return say("%s: not within %d ms", what, WATCHDOG_MS);
		}
		wait_ms(LOOK_MS);
	}
	return 0;
}

/* ---- processes ---- */

/* All at once, so that no two are the same. Another process may still take one; then start reports it. */
static int find_ports(void)
{
	int fd[SERVERS + SENTINELS], err = 0;

	for (int i = 0; i < SERVERS + SENTINELS; i++) {
		struct sockaddr_in at = loopback(0);
		socklen_t bytes = sizeof(at);
		struct server *to = i < SERVERS ? &set.server[i] : &set.sentinel[i - SERVERS];

		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		err |= fd[i] < 0 || bind(fd[i], (struct sockaddr *)&at, bytes) ||
		       getsockname(fd[i], (struct sockaddr *)&at, &bytes);
		*to = (struct server){ 0, ntohs(at.sin_port) };
	}
	for (int i = 0; i < SERVERS + SENTINELS; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	return err ? say("no free ports") : 0;
}

/* @mode: --sentinel, or a word without effect. */
static void start(struct server *server, const char *config, const char *mode)
{
	pid_t parent = getpid(), pid = fork();
	int null;

	server->pid = pid > 0 ? pid : 0;
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A sentinel that is starved for 2 s pauses for 30 s, which is not under test. This may fail. */
	setpriority(PRIO_PROCESS, 0, PRIORITY);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		_exit(125);
	for (int i = 0; programs[i]; i++)
		execlp(programs[i], "redis-server", config, mode, (char *)NULL);
	_exit(127);
}

static void end(struct server *server)
{
	if (!server->pid)
		return;
	kill(server->pid, SIGKILL);
	waitpid(server->pid, NULL, 0);
	server->pid = 0;
}

static int write_config(const char *path, int port, const char *more)
{
	FILE *file = fopen(path, "we");
	int err;

	if (!file)
		return say("%s cannot be written", path);
	err = fprintf(file, "port %d\nbind 127.0.0.1\ndir %s\nlogfile %s.log\n%s", port, set.dir, path, more) < 0;
	return fclose(file) || err ? say("%s cannot be written", path) : 0;
}

static int start_server(int i)
{
	char path[128], more[256] = "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n";

	snprintf(path, sizeof(path), "%s/server%d", set.dir, i);
	if (i != set.master)
		snprintf(more + strlen(more), sizeof(more) - strlen(more), "replicaof 127.0.0.1 %d\n",
			 set.server[set.master].port);
	if (write_config(path, set.server[i].port, more))
		return -1;
	start(&set.server[i], path, NULL);
	return 0;
}

static int start_sentinel(int i)
{
	char path[128], more[320];

	snprintf(path, sizeof(path), "%s/sentinel%d", set.dir, i);
	snprintf(more, sizeof(more),
		 "sentinel monitor " NAME " 127.0.0.1 %d 2\nsentinel down-after-milliseconds " NAME " %d\n"
		 "sentinel failover-timeout " NAME " %d\nsentinel parallel-syncs " NAME " 1\n",
		 set.server[0].port, DOWN_MS, FAILOVER_MS);
	if (write_config(path, set.sentinel[i].port, more))
		return -1;
	start(&set.sentinel[i], path, "--sentinel");
	return 0;
}

/* ---- the interface ---- */

int chaos_sentinel_start(const char *dir, char *url, size_t bytes)
{
	int err;

	memset(&set, 0, sizeof(set));
	snprintf(set.dir, sizeof(set.dir), "%s", dir);
	err = find_ports();
	for (int i = 0; !err && i < SERVERS; i++)
		err = start_server(i);
	/* A sentinel looks for replicas at its start and then every 10 s: they must be there first. */
	if (!err)
		err = wait_for(servers_linked, "a replica that follows its master");
	for (int i = 0; !err && i < SENTINELS; i++)
		err = start_sentinel(i);
	if (!err)
		err = wait_for(sentinels_know, "sentinels that know each other");
	if (err)
		chaos_sentinel_stop();
	else
		snprintf(url, bytes, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/" NAME,
			 set.sentinel[0].port, set.sentinel[1].port, set.sentinel[2].port);
	return err;
}

void chaos_sentinel_meanwhile(void (*look)(void *ctx), void *ctx)
{
	meanwhile = look;
	meanwhile_ctx = ctx;
}

int chaos_sentinel_ask(void)
{
	uint64_t end = now_ms() + WATCHDOG_MS;

	/* NOGOODSLAVE and INPROG pass: its last look may be some seconds old. */
	while (!answers(&set.sentinel[0], "SENTINEL FAILOVER " NAME, "+OK\r\n" PONG)) {
		if (now_ms() > end)
			return say("no sentinel starts a failover: %s",
				   ask(&set.sentinel[0], "SENTINEL FAILOVER " NAME));
		wait_ms(5 * LOOK_MS);
	}
	return 0;
}

int chaos_sentinel_promoted(void)
{
	if (wait_for(other_is_master, "a failover"))
		return -1;
	set.master = 1 - set.master;
	/* A killed one comes back when it is revived. */
	return set.server[1 - set.master].pid ? wait_for(servers_linked, "a master that became a replica") : 0;
}

int chaos_sentinel_failover(void)
{
	return chaos_sentinel_ask() || chaos_sentinel_promoted() ? -1 : 0;
}

int chaos_sentinel_lag(void)
{
	struct server *replica = &set.server[1 - set.master];

	if (!replica->pid || set.lags || kill(replica->pid, SIGSTOP))
		return say("there is no replica to stop");
	set.lags = 1;
	/* Bytes in its socket would still reach it: the master closes that. */
	return answers(&set.server[set.master], "CLIENT KILL TYPE replica", ":1") ? 0
										  : say("the replica was not cut off");
}

void chaos_sentinel_strike(void)
{
	end(&set.server[set.master]);
	if (set.lags && set.server[1 - set.master].pid)
		kill(set.server[1 - set.master].pid, SIGCONT);
	set.lags = 0;
}

int chaos_sentinel_kill(void)
{
	chaos_sentinel_strike();
	return chaos_sentinel_promoted();
}

int chaos_sentinel_revive(void)
{
	int other = 1 - set.master;

	if (set.server[other].pid)
		return say("nobody is dead");
	return start_server(other) || wait_for(replica_known, "a server that comes back as a replica");
}

long chaos_sentinel_number(int replica, const char *key, const char *field)
{
	const struct server *server = &set.server[replica ? 1 - set.master : set.master];
	char command[128];
	const char *bulk;

	snprintf(command, sizeof(command), "HGET %s %s", key, field);
	bulk = strstr(ask(server, command), "\r\n"); /* $LENGTH, NUMBER, and the answer to the PING */
	return bulk && bulk[2] >= '0' && bulk[2] <= '9' ? strtol(bulk + 2, NULL, 10) : -1;
}

int chaos_sentinel_port(void)
{
	return set.server[set.master].port;
}

void chaos_sentinel_stop(void)
{
	for (int i = 0; i < SENTINELS; i++)
		end(&set.sentinel[i]);
	for (int i = 0; i < SERVERS; i++)
		end(&set.server[i]);
}
