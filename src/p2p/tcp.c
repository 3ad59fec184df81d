/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts over a stream: the peer's window is mirrored here, its puts land at the same offsets.
 *
 * A put is queued by reference, because the slot it names keeps its bytes until everybody has them
 * (PROTOCOL section 7); a signal is queued by value, because its line is used again sooner. Both leave
 * in order, and the reader stores a line's tag last, so who sees the tag sees the put.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "mesh.h"

#define QUEUE 4096		  /* entries that wait for the socket; more: COVEY_ERR_AGAIN */
#define PUT_MAX ((size_t)1 << 30) /* bytes of one frame */
#define IOV 64
#define STAGE 16384
#define READS_AT_ONCE 32 /* of one poll: other links get their turn */

enum { FRAME_PUT = 0x50757431, FRAME_SIGNAL = 0x53696731 };

struct frame {
	uint32_t kind, bytes;
	uint64_t offset;
};

struct entry {
	struct frame frame;
	struct cvy_line line; /* of a signal */
};

struct tcp {
	int fd;			  /* -1: lost */
	unsigned int head, count; /* of the ring */
	size_t sent;		  /* bytes of the first entry that left */
	size_t left;		  /* bytes of the present put that go straight into the mirror */
	uint64_t at;		  /* where */
	size_t staged, eaten;	  /* bytes in stage, bytes of them used */
	uint8_t stage[STAGE];
	struct entry ring[QUEUE];
};

static int lost(struct cvy_link *link, const char *cause)
{
	struct tcp *tcp = link->state;

	if (tcp->fd >= 0) {
		shutdown(tcp->fd, SHUT_RDWR); /* wakes who sleeps on it */
		close(tcp->fd);
		tcp->fd = -1;
		tcp->count = 0;
		cvy_mesh_lost(link, cause);
	}
	return COVEY_ERR_PEER;
}

/* The parts of the entries that are not sent yet. */
static int gather(const struct cvy_link *link, struct tcp *tcp, struct iovec *iov)
{
	size_t skip = tcp->sent;
	int n = 0;

	for (unsigned int i = 0; i < tcp->count && n + 2 <= IOV; i++) {
		struct entry *e = &tcp->ring[(tcp->head + i) % QUEUE];
		uint8_t *body = e->frame.kind == FRAME_PUT ? link->own + e->frame.offset : (uint8_t *)&e->line;

		if (skip < sizeof(e->frame))
			iov[n++] = (struct iovec){ (uint8_t *)&e->frame + skip, sizeof(e->frame) - skip };
		skip = skip > sizeof(e->frame) ? skip - sizeof(e->frame) : 0;
		iov[n++] = (struct iovec){ body + skip, e->frame.bytes - skip };
		skip = 0;
	}
	return n;
}

static void advance(struct tcp *tcp, size_t bytes)
{
	tcp->sent += bytes;
	while (tcp->count) {
		size_t whole = sizeof(struct frame) + tcp->ring[tcp->head].frame.bytes;

		if (tcp->sent < whole)
			break;
		tcp->sent -= whole;
		tcp->head = (tcp->head + 1) % QUEUE;
		tcp->count--;
	}
}

/* 1: bytes left, 0: the socket takes nothing, < 0: lost */
static int flush(struct cvy_link *link)
{
	struct tcp *tcp = link->state;
	int moved = 0;

	while (tcp->fd >= 0 && tcp->count) {
		struct iovec iov[IOV];
		struct msghdr msg = { .msg_iov = iov };
		ssize_t n;

		msg.msg_iovlen = (size_t)gather(link, tcp, iov);
		n = sendmsg(tcp->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0)
			return lost(link, strerror(errno));
		advance(tcp, (size_t)n);
		moved = 1;
	}
	return moved;
}

/* Room for @n entries, after sending what goes. */
static int room(struct cvy_link *link, size_t n)
{
	struct tcp *tcp = link->state;

	if (tcp->fd < 0)
		return COVEY_ERR_PEER;
	if (tcp->count + n <= QUEUE)
		return 0;
	if (flush(link) < 0)
		return COVEY_ERR_PEER;
	return tcp->count + n <= QUEUE ? 0 : COVEY_ERR_AGAIN;
}

static struct entry *push(struct tcp *tcp, uint32_t kind, size_t offset, size_t bytes)
{
	struct entry *e = &tcp->ring[(tcp->head + tcp->count++) % QUEUE];

	e->frame = (struct frame){ kind, (uint32_t)bytes, offset };
	return e;
}

static int tcp_put(struct cvy_link *link, size_t offset, size_t bytes)
{
	int err;

	if (offset > link->window_bytes || bytes > link->window_bytes - offset)
		return COVEY_ERR_INVAL;
	err = room(link, (bytes + PUT_MAX - 1) / PUT_MAX); /* all of it or nothing */
	if (err)
		return err;
	while (bytes) {
		size_t n = bytes < PUT_MAX ? bytes : PUT_MAX;

		push(link->state, FRAME_PUT, offset, n);
		offset += n;
		bytes -= n;
	}
	return 0; /* leaves with its signal, in one call of the system, or with the next poll */
}

int cvy_tcp_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line)
{
	int err = room(link, 1);

	if (err)
		return err;
	push(link->state, FRAME_SIGNAL, offset, sizeof(*line))->line = *line;
	return flush(link) < 0 ? COVEY_ERR_PEER : 0;
}

static int tcp_signal(struct cvy_link *link, size_t offset)
{
	return cvy_tcp_signal_line(link, offset, (const struct cvy_line *)(link->own + offset));
}

static int frame_good(const struct cvy_link *link, const struct frame *f)
{
	size_t slots = link->mesh->layout.slots;

	if (f->kind == FRAME_PUT)
		return f->offset >= slots && f->offset <= link->window_bytes &&
		       f->bytes <= link->window_bytes - f->offset && f->bytes <= PUT_MAX;
	return f->kind == FRAME_SIGNAL && f->bytes == sizeof(struct cvy_line) && f->offset % 64 == 0 &&
	       f->offset >= offsetof(struct cvy_page, first) && f->offset <= offsetof(struct cvy_page, done);
}

static void store_line(uint8_t *to, const uint8_t *from)
{
	struct cvy_line *line = (struct cvy_line *)to;
	uint64_t tag;

	memcpy(line, from, offsetof(struct cvy_line, tag));
	memcpy(&tag, from + offsetof(struct cvy_line, tag), sizeof(tag));
	/* pairs with the acquire load of who waits for this line: then it sees the line and all earlier puts */
	__atomic_store_n(&line->tag, tag, __ATOMIC_RELEASE);
}

/* Uses what is staged: 0, or < 0 for a frame that no honest peer sends. */
static int digest(struct cvy_link *link, struct tcp *tcp)
{
	for (;;) {
		size_t have = tcp->staged - tcp->eaten;
		struct frame f;

		if (tcp->left) {
			size_t n = have < tcp->left ? have : tcp->left;

			if (!n)
				break;
			memcpy(link->view + tcp->at, tcp->stage + tcp->eaten, n);
			tcp->at += n;
			tcp->left -= n;
			tcp->eaten += n;
			continue;
		}
		if (have < sizeof(f))
			break;
		memcpy(&f, tcp->stage + tcp->eaten, sizeof(f));
		if (!frame_good(link, &f))
			return COVEY_ERR_IO;
		if (f.kind == FRAME_SIGNAL) {
			if (have < sizeof(f) + sizeof(struct cvy_line))
				break;
			store_line(link->view + f.offset, tcp->stage + tcp->eaten + sizeof(f));
			tcp->eaten += sizeof(struct cvy_line);
		} else {
			tcp->at = f.offset;
			tcp->left = f.bytes;
		}
		tcp->eaten += sizeof(f);
	}
	memmove(tcp->stage, tcp->stage + tcp->eaten, tcp->staged - tcp->eaten);
	tcp->staged -= tcp->eaten;
	tcp->eaten = 0;
	return 0;
}

/* One read: the rest of a put straight into the mirror, what follows it into the stage. */
static ssize_t receive(struct cvy_link *link, struct tcp *tcp)
{
	struct iovec iov[2] = { { link->view + tcp->at, tcp->left },
				{ tcp->stage + tcp->staged, STAGE - tcp->staged } };
	ssize_t n;
	size_t direct;

	do
		n = readv(tcp->fd, tcp->left ? iov : iov + 1, tcp->left ? 2 : 1);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n;
	direct = (size_t)n < tcp->left ? (size_t)n : tcp->left;
	tcp->at += direct;
	tcp->left -= direct;
	tcp->staged += (size_t)n - direct;
	return n;
}

static int tcp_poll(struct cvy_link *link)
{
	struct tcp *tcp = link->state;
	int moved = flush(link);

	if (moved < 0 || tcp->fd < 0)
		return COVEY_ERR_PEER;
	for (int i = 0; i < READS_AT_ONCE; i++) {
		ssize_t n = receive(link, tcp);

		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0)
			return lost(link, strerror(errno));
		if (n == 0)
			return lost(link, "end of the data stream");
		if (digest(link, tcp))
			return lost(link, "a bad frame on the data stream");
		moved = 1;
	}
	return moved;
}

static int tcp_unsent(struct cvy_link *link)
{
	return ((struct tcp *)link->state)->count > 0;
}

static int tcp_fd(struct cvy_link *link, short *events)
{
	const struct tcp *tcp = link->state;

	*events = tcp->count ? POLLIN | POLLOUT : POLLIN;
	return tcp->fd;
}

/* Neither side's bytes move any more, and the mirror is fresh memory. */
static void tcp_fence(struct cvy_link *link)
{
	struct tcp *tcp = link->state;

	if (tcp->fd >= 0) {
		shutdown(tcp->fd, SHUT_RDWR);
		close(tcp->fd);
		tcp->fd = -1;
		tcp->count = 0;
	}
	cvy_mesh_unview(link->mesh, link->rank);
}

static void tcp_close(struct cvy_link *link)
{
	struct tcp *tcp = link->state;

	if (tcp && tcp->fd >= 0) {
		shutdown(tcp->fd, SHUT_RDWR);
		close(tcp->fd);
	}
	free(tcp);
	link->state = NULL;
}

const struct cvy_transport cvy_transport_tcp = {
	.name = "tcp",
	.put = tcp_put,
	.signal = tcp_signal,
	.poll = tcp_poll,
	.unsent = tcp_unsent,
	.fd = tcp_fd,
	.fence = tcp_fence,
	.close = tcp_close,
};

int cvy_tcp_open(struct cvy_link *link, int fd)
{
	struct tcp *tcp = calloc(1, sizeof(*tcp));

	if (!tcp)
		return COVEY_ERR_NOMEM;
	tcp->fd = fd;
	link->ops = &cvy_transport_tcp;
	link->state = tcp;
	return 0;
}
