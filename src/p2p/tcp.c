/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts over connections: the peer's window is mirrored here; its puts arrive at the same offsets.
 *
 * A link has one stream or several. The first carries everything small, and the order. A large put is cut into a part
 * for each stream, and the next line is preceded by a *fence*, which says how many bytes the others have carried. A
 * reader of the fence takes nothing more from the first stream until these bytes are in the mirror.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "tcp_stream.h"

#define STRIPE_MIN ((size_t)64 << 10) /* puts below it take one stream */

struct tcp {
	int streams; /* 0: lost */
	int parted;  /* a put took several streams since the last line */
	struct cvy_stream *stream[CVY_TCP_CONNECTIONS_MAX];
};

static void hang_up(struct tcp *tcp)
{
	for (int i = 0; i < tcp->streams; i++)
		cvy_stream_free(tcp->stream[i]);
	tcp->streams = 0;
}

static int lost(struct cvy_link *link, const char *why)
{
	struct tcp *tcp = link->state;

	if (tcp->streams) {
		hang_up(tcp);
		cvy_mesh_lost(link, why);
	}
	return COVEY_ERR_PEER;
}

/* ---- out ---- */

/* 1: bytes left, 0: the sockets take nothing, < 0: lost */
static int flush(struct cvy_link *link)
{
	struct tcp *tcp = link->state;
	const char *why = "";
	int moved = 0;

	for (int i = 0; i < tcp->streams; i++) {
		int r = cvy_stream_flush(link, tcp->stream[i], &why);

		if (r < 0)
			return lost(link, why);
		moved |= r;
	}
	return moved;
}

/* Room for @n entries on each stream, after a flush. */
static int room(struct cvy_link *link, size_t n, int streams)
{
	struct tcp *tcp = link->state;
	int tight = 0;

	for (int again = 0; again < 2; again++) {
		tight = 0;
		for (int i = 0; i < tcp->streams && i < streams; i++)
			tight |= tcp->stream[i]->count + n > tcp->stream[i]->room;
		if (tcp->streams && !tight)
			return 0;
		if (!tcp->streams || flush(link) < 0)
			return COVEY_ERR_PEER;
	}
	return COVEY_ERR_AGAIN;
}

static void queue_part(struct cvy_stream *s, size_t offset, size_t bytes)
{
	while (bytes) {
		size_t n = bytes < CVY_STREAM_PUT_MAX ? bytes : CVY_STREAM_PUT_MAX;

		cvy_stream_queue(s, CVY_FRAME_PUT, offset, n, NULL);
		offset += n;
		bytes -= n;
	}
}

static int tcp_put(struct cvy_link *link, size_t offset, size_t bytes)
{
	struct tcp *tcp = link->state;
	int parts = bytes < STRIPE_MIN ? 1 : tcp->streams, err;
	size_t each;

	if (offset > link->window_bytes || bytes > link->window_bytes - offset)
		return COVEY_ERR_INVAL;
	if (!parts)
		return COVEY_ERR_PEER;
	each = (bytes / (size_t)parts + 63) / 64 * 64;
	err = room(link, each / CVY_STREAM_PUT_MAX + 1, parts); /* all of it or nothing */
	if (err == COVEY_ERR_AGAIN && parts > 1) {		/* the first has a longer queue */
		parts = 1;
		each = bytes;
		err = room(link, each / CVY_STREAM_PUT_MAX + 1, parts);
	}
	if (err)
		return err;
	for (int i = 0; i < parts && bytes; i++) {
		size_t n = bytes < each || i == parts - 1 ? bytes : each;

		queue_part(tcp->stream[i], offset, n);
		offset += n;
		bytes -= n;
	}
	tcp->parted |= parts > 1;
	return 0; /* leaves with its line, in one call of the system for each stream, or with the next poll */
}

static void queue_fence(struct tcp *tcp)
{
	uint64_t await[CVY_TCP_CONNECTIONS_MAX - 1];

	for (int i = 1; i < tcp->streams; i++)
		await[i - 1] = tcp->stream[i]->put;
	cvy_stream_queue(tcp->stream[0], CVY_FRAME_FENCE, 0, (size_t)(tcp->streams - 1) * sizeof(await[0]), await);
	tcp->parted = 0;
}

int cvy_tcp_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line)
{
	struct tcp *tcp = link->state;
	int err = room(link, 2, 1);

	if (err)
		return err;
	if (tcp->parted)
		queue_fence(tcp);
	cvy_stream_queue(tcp->stream[0], CVY_FRAME_SIGNAL, offset, sizeof(*line), line);
	return flush(link) < 0 ? COVEY_ERR_PEER : 0;
}

static int tcp_signal(struct cvy_link *link, size_t offset)
{
	return cvy_tcp_signal_line(link, offset, (const struct cvy_line *)(link->own + offset));
}

/* ---- in ---- */

static int fence_met(const struct tcp *tcp)
{
	const struct cvy_stream *first = tcp->stream[0];

	for (int i = 1; i < tcp->streams; i++)
		if (tcp->stream[i]->got < first->await[i - 1])
			return 0;
	return 1;
}

/* 1: something came */
static int read_all(struct cvy_link *link)
{
	struct tcp *tcp = link->state;
	const char *why = "";
	int moved = 0;

	for (int i = tcp->streams - 1; i >= 0; i--) { /* the first one last: the others complete its fences */
		int r = cvy_stream_read(link, tcp->stream[i], &why);

		if (r < 0)
			return lost(link, why);
		moved |= r;
	}
	while (tcp->stream[0]->held && fence_met(tcp)) {
		if (cvy_stream_release(link, tcp->stream[0], &why))
			return lost(link, why);
		moved = 1;
	}
	return moved;
}

/* A path may carry the short packets of PINGs and not those of data. Then the link is lost, as if it were cut. */
static int silent(struct cvy_link *link)
{
	struct tcp *tcp = link->state;
	int ms = link->mesh->link_ms;
	uint64_t now = ms > 0 ? cvy_now_ns() : 0;
	char why[CVY_CAUSE];

	for (int i = 0; ms > 0 && i < tcp->streams; i++) {
		if (!cvy_silent(&tcp->stream[i]->silence, tcp->stream[i]->fd, now, (uint64_t)ms * CVY_MS))
			continue;
		snprintf(why, sizeof(why), "for %d ms (link_ms) no packet of data came through" CVY_PATH_HINT, ms);
		cvy_warn("p2p", "link to rank %d: %s", link->rank, why);
		return lost(link, why);
	}
	return 0;
}

static int tcp_poll(struct cvy_link *link)
{
	const struct tcp *tcp = link->state;
	int out = tcp->streams ? flush(link) : COVEY_ERR_PEER, in = out < 0 ? out : read_all(link);

	if (!out && !in)
		in = silent(link);
	return in < 0 ? COVEY_ERR_PEER : out | in;
}

static int tcp_unsent(struct cvy_link *link)
{
	const struct tcp *tcp = link->state;
	unsigned int n = 0;

	for (int i = 0; i < tcp->streams; i++)
		n += tcp->stream[i]->count;
	return (int)n;
}

static int tcp_fd(struct cvy_link *link, int i, short *events)
{
	const struct tcp *tcp = link->state;
	const struct cvy_stream *s = i < tcp->streams ? tcp->stream[i] : NULL;

	if (!s)
		return -1;
	*events = (short)((s->held ? 0 : POLLIN) | (s->count ? POLLOUT : 0)); /* a held one waits for the others */
	return s->fd;
}

/* No byte of either side moves afterwards, and the mirror is fresh memory. */
static void tcp_fence(struct cvy_link *link)
{
	hang_up(link->state);
	cvy_mesh_unview(link->mesh, link->rank);
}

static void tcp_close(struct cvy_link *link)
{
	if (link->state)
		hang_up(link->state);
	free(link->state);
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

int cvy_tcp_open(struct cvy_link *link, const int *fds, int n)
{
	struct tcp *tcp = calloc(1, sizeof(*tcp));

	for (int i = 0; tcp && i < n; i++) {
		tcp->stream[i] = cvy_stream_new(fds[i], i, n);
		if (!tcp->stream[i]) {
			while (i--)
				free(tcp->stream[i]);
			free(tcp);
			tcp = NULL;
		}
	}
	if (!tcp)
		return COVEY_ERR_NOMEM;
	tcp->streams = n;
	link->ops = &cvy_transport_tcp;
	link->state = tcp;
	return 0;
}
