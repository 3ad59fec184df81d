/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over one connection. A put is queued by reference: its slot keeps the bytes until all peers have them
 * (PROTOCOL section 7). A line is queued by value, because it is used again sooner. Both leave in order, and the reader
 * stores a line's tag last, so a reader of the tag sees the put.
 */
#include "tcp_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define IOV 64
#define PACK 4096
#define READS_AT_ONCE 32 /* of one poll: other links get their turn */
#define TAIL 256	 /* bytes that are taken behind a long put: a line, and the next head */

struct cvy_stream *cvy_stream_new(int fd, int number, int streams)
{
	unsigned int room = number ? CVY_STREAM_QUEUE_MORE : CVY_STREAM_QUEUE;
	struct cvy_stream *s = calloc(1, sizeof(*s) + room * sizeof(s->ring[0]));

	if (!s)
		return NULL;
	s->fd = fd;
	s->first = !number;
	s->others = streams - 1;
	s->room = room;
	return s;
}

void cvy_stream_free(struct cvy_stream *s)
{
	if (!s)
		return;
	shutdown(s->fd, SHUT_RDWR); /* wakes a thread that sleeps on it */
	close(s->fd);
	free(s);
}

void cvy_stream_queue(struct cvy_stream *s, uint32_t kind, size_t offset, size_t bytes, const void *value)
{
	struct cvy_entry *e = &s->ring[(s->head + s->count++) % s->room];

	e->frame = (struct cvy_frame){ kind, (uint32_t)bytes, offset };
	if (value)
		memcpy(&e->line, value, bytes);
	else
		s->put += bytes;
}

/* ---- out ---- */

/* The unsent parts of the entries. */
static int gather(const struct cvy_link *link, struct cvy_stream *s, struct iovec *iov)
{
	size_t skip = s->sent;
	int n = 0;

	for (unsigned int i = 0; i < s->count && n + 2 <= IOV; i++) {
		struct cvy_entry *e = &s->ring[(s->head + i) % s->room];
		uint8_t *body = e->frame.kind == CVY_FRAME_PUT ? link->own + e->frame.offset : (uint8_t *)&e->line;

		if (skip < sizeof(e->frame))
			iov[n++] = (struct iovec){ (uint8_t *)&e->frame + skip, sizeof(e->frame) - skip };
		skip = skip > sizeof(e->frame) ? skip - sizeof(e->frame) : 0;
		iov[n++] = (struct iovec){ body + skip, e->frame.bytes - skip };
		skip = 0;
	}
	return n;
}

static void advance(struct cvy_stream *s, size_t bytes)
{
	s->sent += bytes;
	while (s->count) {
		size_t whole = sizeof(struct cvy_frame) + s->ring[s->head].frame.bytes;

		if (s->sent < whole)
			break;
		s->sent -= whole;
		s->head = (s->head + 1) % s->room;
		s->count--;
	}
}

/* Copies short entries together. 0: they are longer than @room. */
static size_t pack(const struct iovec *iov, int n, uint8_t *to, size_t room)
{
	size_t bytes = 0;

	for (int i = 0; i < n; bytes += iov[i++].iov_len) {
		if (iov[i].iov_len > room - bytes)
			return 0;
		memcpy(to + bytes, iov[i].iov_base, iov[i].iov_len);
	}
	return bytes;
}

/* The system takes longer to read a list of buffers than this takes to copy short ones. */
static ssize_t send_entries(const struct cvy_link *link, struct cvy_stream *s)
{
	uint8_t few[PACK];
	struct iovec iov[IOV];
	struct msghdr msg = { .msg_iov = iov };
	int n = gather(link, s, iov);
	size_t bytes = pack(iov, n, few, sizeof(few));

	msg.msg_iovlen = (size_t)n;
	return bytes ? send(s->fd, few, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
		     : sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int cvy_stream_flush(const struct cvy_link *link, struct cvy_stream *s, const char **why)
{
	int moved = 0;

	while (s->count) {
		ssize_t n = send_entries(link, s);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0) {
			*why = strerror(errno);
			return COVEY_ERR_PEER;
		}
		advance(s, (size_t)n);
		moved = 1;
	}
	return moved;
}

/* ---- in ---- */

static int frame_good(const struct cvy_link *link, const struct cvy_stream *s, const struct cvy_frame *f)
{
	size_t slots = link->mesh->layout.slots;

	if (f->kind == CVY_FRAME_PUT)
		return f->offset >= slots && f->offset <= link->window_bytes &&
		       f->bytes <= link->window_bytes - f->offset && f->bytes <= CVY_STREAM_PUT_MAX;
	if (f->kind == CVY_FRAME_FENCE)
		return s->first && s->others && f->bytes == (size_t)s->others * sizeof(s->await[0]);
	if (f->kind != CVY_FRAME_SIGNAL || !s->first || f->bytes != sizeof(struct cvy_line) || f->offset % 64)
		return 0;
	if (f->offset >= link->mesh->layout.pool) /* of a channel */
		return f->offset <= link->window_bytes - sizeof(struct cvy_line);
	return f->offset >= offsetof(struct cvy_page, first) && f->offset <= offsetof(struct cvy_page, done);
}

static void store_line(uint8_t *to, const uint8_t *from)
{
	struct cvy_line *line = (struct cvy_line *)to;
	uint64_t tag;

	memcpy(line, from, offsetof(struct cvy_line, tag));
	memcpy(&tag, from + offsetof(struct cvy_line, tag), sizeof(tag));
	/* pairs with the acquire load of the line's reader: then it sees the line and all earlier puts */
	__atomic_store_n(&line->tag, tag, __ATOMIC_RELEASE);
}

/* Stores bytes of the present put from the stage. 0: the stage is empty. */
static int digest_put(const struct cvy_link *link, struct cvy_stream *s)
{
	size_t have = s->staged - s->eaten, n = have < s->left ? have : s->left;

	memcpy(link->view + s->at, s->stage + s->eaten, n);
	s->at += n;
	s->left -= n;
	s->got += n;
	s->eaten += n;
	return n > 0;
}

/* One frame of the stage, or the head of a put. 1: taken, 0: more must come first, < 0: no honest peer sends it. */
static int digest_frame(const struct cvy_link *link, struct cvy_stream *s)
{
	size_t have = s->staged - s->eaten;
	const uint8_t *body = s->stage + s->eaten + sizeof(struct cvy_frame);
	struct cvy_frame f;

	if (have < sizeof(f))
		return 0;
	memcpy(&f, s->stage + s->eaten, sizeof(f));
	if (!frame_good(link, s, &f))
		return COVEY_ERR_IO;
	if (f.kind == CVY_FRAME_PUT) {
		s->at = f.offset;
		s->left = f.bytes;
		s->eaten += sizeof(f);
		return 1;
	}
	if (have < sizeof(f) + f.bytes)
		return 0;
	if (f.kind == CVY_FRAME_SIGNAL) {
		store_line(link->view + f.offset, body);
	} else {
		memcpy(s->await, body, f.bytes);
		s->held = 1;
	}
	s->eaten += sizeof(f) + f.bytes;
	return 1;
}

/* Consumes the stage, up to a fence. */
static int digest(const struct cvy_link *link, struct cvy_stream *s)
{
	int more = 1;

	while (more > 0 && !s->held)
		more = s->left ? digest_put(link, s) : digest_frame(link, s);
	if (more < 0)
		return more;
	memmove(s->stage, s->stage + s->eaten, s->staged - s->eaten);
	s->staged -= s->eaten;
	s->eaten = 0;
	return 0;
}

/* One read: the rest of a put directly into the mirror, following bytes into the stage. @more: it filled all room. */
static ssize_t receive(const struct cvy_link *link, struct cvy_stream *s, int *more)
{
	size_t stage = s->left > CVY_STREAM_STAGE ? TAIL : CVY_STREAM_STAGE - s->staged, room = s->left + stage;
	struct iovec iov[2] = { { link->view + s->at, s->left }, { s->stage + s->staged, stage } };
	ssize_t n;
	size_t direct;

	do
		n = s->left ? readv(s->fd, iov, 2) : recv(s->fd, iov[1].iov_base, stage, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n;
	*more = (size_t)n == room;
	direct = (size_t)n < s->left ? (size_t)n : s->left;
	s->at += direct;
	s->left -= direct;
	s->got += direct;
	s->staged += (size_t)n - direct;
	return n;
}

int cvy_stream_read(const struct cvy_link *link, struct cvy_stream *s, const char **why)
{
	int moved = 0, more = 1;

	for (int i = 0; i < READS_AT_ONCE && more && !s->held; i++) {
		ssize_t n = receive(link, s, &more);

		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		*why = n < 0 ? strerror(errno) : n == 0 ? "end of the data stream" : "a bad frame on the data stream";
		if (n <= 0 || digest(link, s))
			return COVEY_ERR_PEER;
		moved = 1;
	}
	return moved;
}

int cvy_stream_release(const struct cvy_link *link, struct cvy_stream *s, const char **why)
{
	s->held = 0;
	*why = "a bad frame on the data stream";
	return digest(link, s);
}
