/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Framed messages over a stream socket, never blocking: a frame is read as it comes; a message that the socket does not
 * take waits in a bounded queue.
 *
 * A connection breaks in one place. A failed send only shuts the socket down. The loop then sees that, and calls
 * broken(): never from inside a call of the agent.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "mesh.h"

#define FRAMES_AT_ONCE 64 /* then others get their turn */
#define HEAD ((uint32_t)sizeof(struct cvy_wire))

struct cvy_out {
	struct cvy_out *next;
	size_t bytes, sent;
	int fd;
	uint8_t data[];
};

static void queue_clear(struct cvy_conn *conn)
{
	while (conn->first) {
		struct cvy_out *out = conn->first;

		conn->first = out->next;
		if (out->fd >= 0)
			close(out->fd);
		free(out);
	}
	conn->last = &conn->first;
	conn->queued = 0;
}

static void conn_free(struct cvy_conn *conn)
{
	queue_clear(conn);
	free(conn->body);
	free(conn);
}

void cvy_conn_close(struct cvy_conn *conn)
{
	if (!conn || conn->closed)
		return;
	conn->closed = 1;
	cvy_loop_unwatch(conn->watch);
	cvy_loop_cancel(conn->timer);
	conn->timer = NULL;
	if (conn->fd >= 0)
		close(conn->fd);
	if (conn->in_fd >= 0)
		close(conn->in_fd);
	conn->fd = conn->in_fd = -1;
	if (!conn->busy)
		conn_free(conn);
}

static void conn_watch(struct cvy_conn *conn)
{
	uint32_t events = conn->stopped ? 0 : EPOLLIN;

	if (conn->first || conn->connecting)
		events |= EPOLLOUT;
	if (events != conn->events)
		cvy_loop_change(conn->watch, events);
	conn->events = events;
}

/* Shuts down from this side: the loop sees the end of the stream and calls broken() with this cause. */
static void conn_cut(struct cvy_conn *conn, const char *cause)
{
	if (!conn->cause)
		conn->cause = cause;
	shutdown(conn->fd, SHUT_RDWR);
	queue_clear(conn);
	conn->stopped = 0;
}

static ssize_t out_write(struct cvy_conn *conn, struct cvy_out *out)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { out->data + out->sent, out->bytes - out->sent };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (out->fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = control.room;
		msg.msg_controllen = sizeof(control.room);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &out->fd, sizeof(int));
	}
	return sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void conn_flush(struct cvy_conn *conn)
{
	while (conn->first) {
		struct cvy_out *out = conn->first;
		ssize_t n = out_write(conn, out);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0) {
			conn_cut(conn, "the peer closed the connection");
			break;
		}
		if (out->fd >= 0) { /* the descriptor travels with the first byte, once */
			close(out->fd);
			out->fd = -1;
		}
		out->sent += (size_t)n;
		if (out->sent < out->bytes)
			continue;
		conn->first = out->next;
		if (!conn->first)
			conn->last = &conn->first;
		conn->queued -= out->bytes;
		free(out);
	}
	conn_watch(conn);
}

int cvy_conn_send(struct cvy_conn *conn, const struct cvy_wire *head, const void *body, int pass_fd)
{
	struct cvy_out *out;

	if (conn->closed || conn->cause)
		return COVEY_ERR_PEER;
	if (conn->queued + HEAD + head->bytes > CVY_QUEUE_BYTES) {
		conn_cut(conn, "8 MiB of messages wait: the peer does not read");
		conn_watch(conn);
		return COVEY_ERR_PEER;
	}
	out = malloc(sizeof(*out) + HEAD + head->bytes);
	if (!out)
		return COVEY_ERR_NOMEM;
	*out = (struct cvy_out){ .bytes = HEAD + head->bytes, .fd = -1 };
	if (pass_fd >= 0) {
		out->fd = fcntl(pass_fd, F_DUPFD_CLOEXEC, 0);
		if (out->fd < 0) {
			free(out);
			return COVEY_ERR_IO;
		}
	}
	memcpy(out->data, head, HEAD);
	if (head->bytes)
		memcpy(out->data + HEAD, body, head->bytes);
	*conn->last = out;
	conn->last = &out->next;
	conn->queued += out->bytes;
	if (!conn->connecting)
		conn_flush(conn);
	return 0;
}

/* Keeps the last descriptor. The padding of room for one has room for two: all that came are ours to close. */
static void take_descriptors(struct cvy_conn *conn, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			if (conn->in_fd >= 0)
				close(conn->in_fd);
			memcpy(&conn->in_fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
		}
	}
}

/* Reads up to @bytes: > 0, 0 if nothing is there, < 0 if broken, with *cause. */
static ssize_t conn_recv(struct cvy_conn *conn, void *to, size_t bytes, const char **cause)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { to, bytes };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)
	};
	ssize_t n;

	do
		n = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		take_descriptors(conn, &msg);
		return n;
	}
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	*cause = n ? strerror(errno) : "end of stream";
	return -1;
}

static int head_check(struct cvy_conn *conn, const char **cause)
{
	static _Thread_local char text[CVY_CAUSE];
	const struct cvy_wire *head = &conn->head;

	if (head->magic != CVY_WIRE_MAGIC) {
		*cause = "what came is not the covey protocol";
		return COVEY_ERR_VERSION;
	}
	if (head->version != CVY_WIRE_VERSION) {
		snprintf(text, sizeof(text), "the peer speaks protocol version %u, this library version %u",
			 (unsigned)head->version, (unsigned)CVY_WIRE_VERSION);
		*cause = text;
		return COVEY_ERR_VERSION;
	}
	if (conn->got >= HEAD && head->bytes > conn->bound) {
		*cause = "a message is longer than allowed";
		return COVEY_ERR_INVAL;
	}
	return 0;
}

/* 1: a whole frame is here, 0: not yet, < 0: broken, with *cause. */
static int frame_read(struct cvy_conn *conn, const char **cause)
{
	while (conn->got < HEAD) {
		ssize_t n = conn_recv(conn, (uint8_t *)&conn->head + conn->got, HEAD - conn->got, cause);

		if (n <= 0)
			return n < 0 ? COVEY_ERR_IO : 0;
		conn->got += (uint32_t)n;
		if (conn->got >= 8) { /* magic and version are here: no other version's message is waited for */
			int err = head_check(conn, cause);

			if (err)
				return err;
		}
	}
	if (conn->head.bytes && !conn->body)
		conn->body = malloc(conn->head.bytes);
	if (conn->head.bytes && !conn->body) {
		*cause = "no memory for a message";
		return COVEY_ERR_NOMEM;
	}
	while (conn->got < HEAD + conn->head.bytes) {
		uint32_t have = conn->got - HEAD;
		ssize_t n = conn_recv(conn, conn->body + have, conn->head.bytes - have, cause);

		if (n <= 0)
			return n < 0 ? COVEY_ERR_IO : 0;
		conn->got += (uint32_t)n;
	}
	return 1;
}

static void conn_read(struct cvy_conn *conn)
{
	for (int i = 0; i < FRAMES_AT_ONCE && !conn->closed && !conn->stopped; i++) {
		const char *cause = NULL;
		int r = frame_read(conn, &cause);

		if (r < 0)
			conn->broken(conn, r, conn->cause ? conn->cause : cause);
		if (r <= 0)
			return;
		conn->frame(conn, &conn->head, conn->body);
		free(conn->body);
		conn->body = NULL;
		conn->got = 0;
	}
}

static void conn_opened(struct cvy_conn *conn)
{
	int err = 0;
	socklen_t len = sizeof(err);

	conn->connecting = 0;
	if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
		conn->broken(conn, COVEY_ERR_IO, strerror(err ? err : errno));
		return;
	}
	conn->opened(conn);
	if (!conn->closed)
		conn_flush(conn);
}

static void conn_ready(void *ctx, uint32_t events)
{
	struct cvy_conn *conn = ctx;

	conn->busy++;
	if (conn->connecting)
		conn_opened(conn);
	else if (events & EPOLLOUT)
		conn_flush(conn);
	if (events & (EPOLLERR | EPOLLHUP))
		conn->stopped = 0; /* a paused reader still learns of the end */
	if (!conn->closed && !conn->connecting && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
		conn_read(conn);
	if (!--conn->busy && conn->closed)
		conn_free(conn);
}

void cvy_conn_pause(struct cvy_conn *conn, int stopped)
{
	conn->stopped = stopped;
	if (!conn->closed)
		conn_watch(conn);
}

struct cvy_conn *cvy_conn_new(struct cvy_loop *loop, int fd, int connecting)
{
	struct cvy_conn *conn = calloc(1, sizeof(*conn));

	if (!conn) {
		close(fd);
		return NULL;
	}
	conn->fd = fd;
	conn->in_fd = -1;
	conn->connecting = connecting;
	conn->bound = CVY_SHAKE_MAX;
	conn->events = connecting ? EPOLLOUT : EPOLLIN;
	conn->last = &conn->first;
	if (cvy_loop_watch(loop, fd, connecting ? EPOLLOUT : EPOLLIN, conn_ready, conn, &conn->watch)) {
		close(fd);
		free(conn);
		return NULL;
	}
	return conn;
}
