/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' connections: each report is read whole, without waiting for any one rank. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "director.h"

int moe_conn_listen(struct moe_director *d)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(d->dir, sizeof(d->dir), "/tmp/ep-moe-XXXXXX");
	if (!mkdtemp(d->dir))
		return -1;
	snprintf(d->socket, sizeof(d->socket), "%s/reports", d->dir);
	memcpy(at.sun_path, d->socket, strlen(d->socket) + 1);
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (d->listener < 0 || bind(d->listener, (struct sockaddr *)&at, sizeof(at)) || listen(d->listener, 64))
		return -1;
	return 0;
}

static void accept_rank(struct moe_director *d)
{
	int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (d->conns == MOE_MAX_CONNS) {
		close(fd);
		return;
	}
	d->conn[d->conns++] = (struct moe_conn){ .fd = fd, .rank = -1 };
}

void moe_conn_close(struct moe_conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->ended = true;
	free(c->body);
	c->body = NULL;
}

static void take_report(struct moe_director *d, struct moe_conn *c)
{
	const struct moe_report *r = &c->head;

	d->last_ns = moe_now_ns();
	c->rank = r->rank;
	switch (r->kind) {
	case MOE_HELLO:
		if (!d->hello.kind)
			d->hello = *r;
		d->seat[r->rank].pid = r->pid;
		break;
	case MOE_STEP:
		if (moe_story_step(&d->story, r) || moe_queue_add(&d->queue, r, c->body))
			d->failed = true;
		c->body = NULL;
		moe_watch_step(d, r);
		break;
	case MOE_FAILED:
		c->ended = true;
		moe_watch_failed(d, r);
		break;
	default:
		c->ended = true;
		moe_story_survived(&d->story, r->rank);
	}
}

/* One read of the available bytes; a report is taken when it is whole. */
static void read_conn(struct moe_director *d, struct moe_conn *c)
{
	size_t head = sizeof(c->head), want = c->got < head ? head - c->got : head + c->head.body - c->got;
	void *to = c->got < head ? (uint8_t *)&c->head + c->got : c->body + (c->got - head);
	ssize_t n = recv(c->fd, to, want, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) { /* a killed rank leaves half a report: it never ended that step */
		moe_conn_close(c);
		return;
	}
	c->got += (size_t)n;
	if (c->got == head) {
		c->head.store[sizeof(c->head.store) - 1] = c->head.group[sizeof(c->head.group) - 1] = '\0';
		if (c->head.rank < 0 || c->head.rank >= MOE_MAX_RANKS || c->head.body > MOE_MAX_BODY ||
		    c->head.notes < 0 || c->head.notes > MOE_MAX_NOTES ||
		    (c->head.body && !(c->body = malloc(c->head.body)))) {
			moe_conn_close(c);
			return;
		}
	}
	if (c->got < head || c->got < head + c->head.body)
		return;
	take_report(d, c);
	free(c->body);
	c->body = NULL;
	c->got = 0;
}

void moe_conn_wait(struct moe_director *d, int timeout_ms)
{
	struct pollfd fds[MOE_MAX_CONNS + 2];
	int n = d->conns;
	bool full = moe_queue_full(&d->queue);

	for (int i = 0; i < n; i++)
		fds[i] = (struct pollfd){ full ? -1 : d->conn[i].fd, POLLIN, 0 }; /* closed: -1, passed over */
	fds[n] = (struct pollfd){ d->listener, POLLIN, 0 };
	fds[n + 1] = (struct pollfd){ d->queue.fd, d->queue.first ? POLLIN | POLLOUT : POLLIN, 0 };
	if (poll(fds, (nfds_t)n + 2, timeout_ms) <= 0)
		return;
	for (int i = 0; i < n; i++)
		if (fds[i].revents)
			read_conn(d, &d->conn[i]);
	if (fds[n].revents)
		accept_rank(d);
	if (moe_queue_send(&d->queue) || moe_queue_take(&d->queue, &d->story)) {
		moe_say(d, "the checker ended");
		d->failed = true;
	}
}
