/* SPDX-License-Identifier: Apache-2.0 */
/* The private redis-server of a run: on a unix socket in the private directory, nothing on disk. */
#include <fcntl.h>
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

#include "chaos.h"

#define START_MS 5000
#define REPLY_MS 1000

/* redis-check-rdb is the same program and serves when it is called redis-server. */
static const char *const servers[] = { "redis-server", "valkey-server", "redis-check-rdb", NULL };

static void __attribute__((noreturn)) exec_server(const char *dir, pid_t parent)
{
	char socket_path[96], log[96];
	int null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		_exit(125);
	snprintf(socket_path, sizeof(socket_path), "%s/store", dir);
	snprintf(log, sizeof(log), "%s/log", dir);
	for (int i = 0; servers[i]; i++)
		execlp(servers[i], "redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "",
		       "--appendonly", "no", "--dir", dir, "--logfile", log, "--loglevel", "warning", (char *)NULL);
	_exit(127);
}

static int dial(const struct chaos *c)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(to.sun_path, sizeof(to.sun_path), "%s/store", c->dir);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	close(fd);
	return -1;
}

/* One line of reply to one inline command, into @reply. */
static int ask(const struct chaos *c, const char *command, char *reply, size_t bytes)
{
	struct pollfd wait = { .fd = dial(c), .events = POLLIN };
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

long chaos_store_ask(const struct chaos *c, const char *command)
{
	char reply[128];

	if (ask(c, command, reply, sizeof(reply)) || reply[0] != ':')
		return -1;
	return strtol(reply + 1, NULL, 10);
}

int chaos_store_start(struct chaos *c)
{
	uint64_t end = chaos_now_ns() + START_MS * UINT64_C(1000000);
	pid_t parent = getpid();
	char reply[128];

	snprintf(c->shared->store, sizeof(c->shared->store), "redis+unix://%s/store", c->dir);
	c->store = fork();
	if (!c->store)
		exec_server(c->dir, parent);
	while (c->store > 0 && chaos_now_ns() < end) {
		if (!ask(c, "PING", reply, sizeof(reply)) && !strncmp(reply, "+PONG", 5))
			return 0;
		if (waitpid(c->store, NULL, WNOHANG) == c->store) {
			c->store = 0;
			break;
		}
		chaos_sleep_us(2000);
	}
	fprintf(stderr, "ep-chaos: no redis-server answers: install redis-tools\n");
	return -1;
}
