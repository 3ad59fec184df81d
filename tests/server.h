/* SPDX-License-Identifier: Apache-2.0 */
/* A redis-server of a test's own: it writes nothing to disk by itself, and ends with the process that started it. */
#ifndef TESTS_SERVER_H
#define TESTS_SERVER_H

#include <check.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The options are those of redis-server, as a shell reads them. */
static inline pid_t __attribute__((format(printf, 1, 2))) server_begin(const char *options, ...)
{
	static const char program[] = "exec redis-server --save '' ";
	char line[2000];
	pid_t parent = getpid(), pid = fork();
	va_list args;

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || !freopen("/dev/null", "w", stdout))
		_exit(1);
	strcpy(line, program);
	va_start(args, options);
	vsnprintf(line + sizeof(program) - 1, sizeof(line) - sizeof(program), options, args);
	va_end(args);
	execl("/bin/sh", "sh", "-c", line, (char *)NULL);
	_exit(127);
}

static inline void server_end(pid_t server)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
}

static inline int server_free_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert(!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !getsockname(fd, (struct sockaddr *)&at, &bytes));
	close(fd);
	return ntohs(at.sin_port);
}

/* Until it takes a connection at @port of this host. */
static inline void server_wait(int port)
{
	const struct sockaddr_in at = { .sin_family = AF_INET,
					.sin_port = htons((uint16_t)port),
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int up = 0;

	for (int i = 0; i < 4000 && !up; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		up = !connect(fd, (const struct sockaddr *)&at, sizeof(at));
		close(fd);
		usleep(up ? 0 : 5000);
	}
	ck_assert_msg(up, "nobody answers at port %d", port);
}

#endif
