/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of queues (queue_door.h). A *knock* is a connection without an owner yet: a stranger that has not shown its
 * cookie, or a call of our own that has not been taken. Both are bounded in number and in time.
 */
#include "queue_door.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "mesh.h"

struct expected {
	struct expected *next;
	int rank;
	struct cvy_cookie cookie;
};

struct cvy_knock {
	struct cvy_knock *next;
	struct cvy_door *door;
	struct cvy_watch *watch;
	struct cvy_timer *timer;
	int fd, rank;
	cvy_door_opened *opened; /* NULL: a stranger */
	struct cvy_cookie cookie;
	size_t bytes; /* of the cookie: sent, or come */
};

struct cvy_door {
	struct cvy_loop *loop;
	struct cvy_watch *watch;
	int fd, strangers;
	char name[CVY_DOOR_NAME];
	void *ctx;
	cvy_door_opened *come;
	struct expected *expected;
	struct cvy_knock *knocks;
};

static int knock_free(struct cvy_knock *k)
{
	int fd = k->fd;

	cvy_loop_unwatch(k->watch);
	cvy_loop_cancel(k->timer);
	free(k);
	return fd;
}

/* Frees the knock; its descriptor passes to the caller. */
static int knock_end(struct cvy_knock *k)
{
	CVY_UNLINK(k->door->knocks, k, next);
	k->door->strangers -= !k->opened;
	return knock_free(k);
}

void cvy_door_hang_up(struct cvy_knock *k)
{
	if (k)
		close(knock_end(k));
}

static void failed(struct cvy_knock *k, const char *why)
{
	struct cvy_door *door = k->door;
	cvy_door_opened *opened = k->opened;
	int rank = k->rank;

	cvy_door_hang_up(k);
	if (opened)
		opened(door->ctx, rank, -1, why);
}

static void too_late(void *ctx)
{
	struct cvy_knock *k = ctx;

	k->timer = NULL;
	failed(k, "nobody answered in time");
}

static int blocking(int fd)
{
	int one = 1, flags = fcntl(fd, F_GETFL);

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	return fd;
}

/* The rank of the cookie of @k; -1: none. The cookie is used up. */
static int who(struct cvy_knock *k)
{
	for (struct expected **at = &k->door->expected; *at; at = &(*at)->next) {
		struct expected *e = *at;
		int rank = e->rank;

		if (sodium_memcmp(&e->cookie, &k->cookie, sizeof(e->cookie)))
			continue;
		*at = e->next;
		free(e);
		return rank;
	}
	return -1;
}

static void stranger_ready(void *ctx, uint32_t events)
{
	struct cvy_knock *k = ctx;
	struct cvy_door *door = k->door;
	ssize_t n = recv(k->fd, k->cookie.byte + k->bytes, sizeof(k->cookie) - k->bytes, 0);
	int rank;

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	k->bytes += n > 0 ? (size_t)n : 0;
	if (n > 0 && k->bytes < sizeof(k->cookie))
		return;
	rank = n > 0 ? who(k) : -1;
	if (rank < 0) {
		cvy_debug("p2p", "a stranger at the door of queues is turned away");
		cvy_door_hang_up(k);
		return;
	}
	door->come(door->ctx, rank, blocking(knock_end(k)), NULL);
}

/* The call was taken: sends the cookie, for which a fresh connection has room. */
static void dialled_ready(void *ctx, uint32_t events)
{
	struct cvy_knock *k = ctx;
	struct cvy_door *door = k->door;
	cvy_door_opened *opened = k->opened;
	int err = 0, rank = k->rank;
	socklen_t len = sizeof(err);

	(void)events;
	if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
		failed(k, strerror(err ? err : errno));
		return;
	}
	if (send(k->fd, &k->cookie, sizeof(k->cookie), MSG_NOSIGNAL) != sizeof(k->cookie)) {
		failed(k, "the connection ended at once");
		return;
	}
	opened(door->ctx, rank, blocking(knock_end(k)), NULL);
}

/* Takes @fd, also on failure. */
static struct cvy_knock *knock(struct cvy_door *door, int fd, int rank, cvy_door_opened *opened)
{
	struct cvy_knock *k = calloc(1, sizeof(*k));

	if (!k || cvy_loop_watch(door->loop, fd, opened ? EPOLLOUT : EPOLLIN, opened ? dialled_ready : stranger_ready,
				 k, &k->watch)) {
		free(k);
		close(fd);
		return NULL;
	}
	k->door = door;
	k->fd = fd;
	k->rank = rank;
	k->opened = opened;
	k->timer = cvy_loop_timer(door->loop, cvy_now_ns() + CVY_HANDSHAKE_MS * CVY_MS, too_late, k);
	k->next = door->knocks;
	door->knocks = k;
	door->strangers += !opened;
	return k;
}

static void callers(void *ctx, uint32_t events)
{
	struct cvy_door *door = ctx;
	int fd;

	(void)events;
	while ((fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		if (door->strangers >= CVY_STRANGERS)
			close(fd);
		else
			knock(door, fd, -1, NULL);
	}
}

int cvy_door_open(struct cvy_loop *loop, const char *interface, void *ctx, cvy_door_opened *come,
		  struct cvy_errbox *box, struct cvy_door **out)
{
	struct cvy_door *door = calloc(1, sizeof(*door));
	struct cvy_listener at;
	int err;

	if (!door)
		return COVEY_ERR_NOMEM;
	door->loop = loop;
	door->ctx = ctx;
	door->come = come;
	err = cvy_address_listen(interface, &at, 1, box);
	door->fd = err < 0 ? -1 : at.fd;
	err = err < 0 ? err : 0;
	if (!err)
		snprintf(door->name, sizeof(door->name), "%s", at.name);
	if (!err && cvy_loop_watch(loop, door->fd, EPOLLIN, callers, door, &door->watch))
		err = COVEY_ERR_IO;
	if (err) {
		cvy_door_close(door);
		return err;
	}
	*out = door;
	return 0;
}

void cvy_door_close(struct cvy_door *door)
{
	if (!door)
		return;
	for (struct cvy_knock *k = door->knocks, *next; k; k = next) {
		next = k->next;
		close(knock_free(k));
	}
	for (struct expected *e = door->expected, *next; e; e = next) {
		next = e->next;
		free(e);
	}
	cvy_loop_unwatch(door->watch);
	if (door->fd >= 0)
		close(door->fd);
	free(door);
}

const char *cvy_door_name(const struct cvy_door *door)
{
	return door->name;
}

int cvy_door_expect(struct cvy_door *door, int rank, struct cvy_cookie *cookie)
{
	struct expected *e = calloc(1, sizeof(*e));

	if (!e)
		return COVEY_ERR_NOMEM;
	e->rank = rank;
	randombytes_buf(&e->cookie, sizeof(e->cookie));
	*cookie = e->cookie;
	e->next = door->expected;
	door->expected = e;
	return 0;
}

void cvy_door_forget(struct cvy_door *door, int rank)
{
	for (struct expected **at = &door->expected; *at;) {
		struct expected *e = *at;

		if (e->rank != rank) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		free(e);
	}
}

int cvy_door_dial(struct cvy_door *door, const char *name, const struct cvy_cookie *cookie, int rank,
		  cvy_door_opened *opened, struct cvy_knock **out)
{
	const char *why = "";
	int fd = cvy_address_connect(name, 0, door->name, &why);

	if (fd < 0) {
		cvy_warn("p2p", "calling rank %d at %s: %s", rank, name, why);
		return fd;
	}
	*out = knock(door, fd, rank, opened);
	if (!*out)
		return COVEY_ERR_NOMEM;
	(*out)->cookie = *cookie;
	return 0;
}
