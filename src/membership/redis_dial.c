/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets to the store. They are made here and handed to hiredis. hiredis' own sockets are not close-on-exec: a program
 * that another thread starts would inherit an authenticated connection.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "redis.h"

/* Socket address of a path or a literal address; -1: it is neither. */
static int place(const char *path, const char *ip, int port, struct sockaddr_storage *to, socklen_t *bytes)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *list;
	struct sockaddr_un *un = (struct sockaddr_un *)to;
	char service[16];

	memset(to, 0, sizeof(*to));
	if (path[0]) {
		un->sun_family = AF_UNIX;
		*bytes = sizeof(*un);
		return snprintf(un->sun_path, sizeof(un->sun_path), "%s", path) < (int)sizeof(un->sun_path) ? 0 : -1;
	}
	snprintf(service, sizeof(service), "%d", port);
	if (getaddrinfo(ip, service, &hint, &list))
		return -1;
	memcpy(to, list->ai_addr, list->ai_addrlen);
	*bytes = list->ai_addrlen;
	freeaddrinfo(list);
	return 0;
}

/* Begins a connection; -1: errno has the cause. */
static int dial(const char *path, const char *ip, int port)
{
	struct sockaddr_storage to;
	socklen_t bytes;
	int fd, one = 1, err;

	if (place(path, ip, port, &to, &bytes)) {
		errno = path[0] ? ENAMETOOLONG : EADDRNOTAVAIL;
		return -1;
	}
	fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (to.ss_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!connect(fd, (struct sockaddr *)&to, bytes) || errno == EINPROGRESS)
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

redisContext *cvy_redis_connect(const char *path, const char *ip, int port, char *why, size_t bytes)
{
	int fd = dial(path, ip, port);
	redisContext *c;

	if (fd < 0) {
		snprintf(why, bytes, "%s", strerror(errno));
		return NULL;
	}
	c = redisConnectFd(fd);
	if (!c || c->err) {
		snprintf(why, bytes, "%s", c ? c->errstr : "out of memory");
		close(fd);
		if (c) {
			c->fd = -1;
			redisFree(c);
		}
		return NULL;
	}
	c->flags &= ~REDIS_BLOCK; /* hiredis takes a foreign descriptor for a blocking one */
	return c;
}
