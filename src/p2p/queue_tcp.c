/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of a proxy over a socket. A frame is a head of 24 bytes and, for a put, its bytes, sent in place: a ticket
 * is done, and the memory free, when the far end has acknowledged it. The receiver trusts nothing: a frame that does
 * not fit into the window, or has no meaning, ends the connection before a byte of it is stored.
 *
 * The window is read while bytes arrive. Words of 8 bytes are stored whole and in ascending order, so a reader that
 * sees the last word of a packet or a line sees everything sent before it. Hence nothing is received in place.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "clock.h"
#include "process.h"
#include "queues.h"
#include "silence.h"

#define FRAMES CVY_PROXY_UNDER_WAY /* under way to the system; power of two */
#define PIECES 64		   /* of one call of the system */
#define BUFFER 65536		   /* of the receiver, for heads and short puts */
#define ACK_EVERY 64		   /* frames, while more are in the buffer */
#define NO_ANSWER 0x15		   /* status of a queue whose connection ended, or carries no data */

struct head {
	uint32_t op, queue;
	uint64_t remote;
	uint64_t value; /* of a put: bytes */
};

struct cvy_tcp_sender {
	int fd;
	const uint8_t *local;
	size_t local_bytes, remote_bytes;
	uint64_t posted, gone, sent; /* frames: posted, handed to the system; bytes of the next one that are sent */
	uint64_t done, status;
	struct head head[FRAMES];
	const uint8_t *data[FRAMES];
	uint8_t ack[8];
	size_t ack_bytes;
	struct cvy_silence silence;
	uint64_t silence_ns; /* its bound, 0: none */
};

int cvy_tcp_sender_open(int fd, const void *local, size_t local_bytes, size_t remote_bytes, int link_ms,
			struct cvy_tcp_sender **out)
{
	struct cvy_tcp_sender *s = calloc(1, sizeof(*s));

	if (!s)
		return COVEY_ERR_NOMEM;
	s->fd = fd;
	s->local = local;
	s->local_bytes = local_bytes;
	s->remote_bytes = remote_bytes;
	s->silence_ns = link_ms > 0 ? (uint64_t)link_ms * CVY_MS : 0;
	*out = s;
	return 0;
}

static size_t frame_bytes(const struct cvy_tcp_sender *s, uint64_t i)
{
	const struct head *h = &s->head[i % FRAMES];

	return sizeof(*h) + (h->op == CVY_RING_PUT ? h->value : 0);
}

/* Hands the system as much as it takes. */
static void sender_flush(void *ctx)
{
	struct cvy_tcp_sender *s = ctx;
	struct iovec iov[PIECES];
	struct msghdr m = { .msg_iov = iov };
	ssize_t n;

	while (s->gone != s->posted && !s->status) {
		uint64_t skip = s->sent;

		m.msg_iovlen = 0;
		for (uint64_t i = s->gone; i != s->posted && m.msg_iovlen + 2 <= PIECES; i++, skip = 0) {
			struct head *h = &s->head[i % FRAMES];
			size_t of_head = skip < sizeof(*h) ? sizeof(*h) - skip : 0;
			size_t of_data = frame_bytes(s, i) - skip - of_head;

			if (of_head)
				iov[m.msg_iovlen++] = (struct iovec){ (uint8_t *)h + skip, of_head };
			if (of_data)
				iov[m.msg_iovlen++] =
					(struct iovec){ (void *)(uintptr_t)(s->data[i % FRAMES] + (h->value - of_data)),
							of_data };
		}
		n = sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				s->status = NO_ANSWER;
			return;
		}
		for (s->sent += (uint64_t)n; s->gone != s->posted && s->sent >= frame_bytes(s, s->gone); s->gone++)
			s->sent -= frame_bytes(s, s->gone);
	}
}

static int sender_post(void *ctx, const struct cvy_ring_command *c)
{
	struct cvy_tcp_sender *s = ctx;
	struct head *h = &s->head[s->posted % FRAMES];

	if (s->status)
		return COVEY_ERR_PEER;
	if (s->posted - s->gone == FRAMES) {
		sender_flush(s);
		if (s->posted - s->gone == FRAMES)
			return COVEY_ERR_AGAIN;
	}
	if (c->op == CVY_RING_PUT && (c->bytes > s->local_bytes || c->local > s->local_bytes - c->bytes))
		return COVEY_ERR_INVAL;
	*h = (struct head){ (uint32_t)c->op, c->queue, c->remote, c->op == CVY_RING_PUT ? c->bytes : c->value };
	s->data[s->posted++ % FRAMES] = s->local + c->local;
	return 0;
}

/* The far end's count of frames, 8 bytes each time; only the newest matters. */
static uint64_t sender_done(void *ctx, uint64_t *status)
{
	struct cvy_tcp_sender *s = ctx;
	uint64_t count;
	ssize_t n;

	sender_flush(s);
	for (;;) {
		n = recv(s->fd, s->ack + s->ack_bytes, sizeof(s->ack) - s->ack_bytes, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		s->ack_bytes += (size_t)n;
		if (s->ack_bytes < sizeof(s->ack))
			continue;
		s->ack_bytes = 0;
		memcpy(&count, s->ack, sizeof(count));
		if (count < s->done || count > s->gone)
			s->status = NO_ANSWER; /* an impossible count */
		else
			s->done = count;
	}
	if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
		s->status = NO_ANSWER;
	if (s->silence_ns && s->done != s->posted && cvy_silent(&s->silence, s->fd, cvy_now_ns(), s->silence_ns))
		s->status = NO_ANSWER;
	*status = s->status;
	return s->done;
}

void cvy_tcp_sender_link(struct cvy_tcp_sender *s, struct cvy_proxy_link *link)
{
	*link = (struct cvy_proxy_link){ .ctx = s,
					 .local_bytes = s->local_bytes,
					 .remote_bytes = s->remote_bytes,
					 .post = sender_post,
					 .flush = sender_flush,
					 .done = sender_done };
}

void cvy_tcp_sender_close(struct cvy_tcp_sender *s)
{
	free(s);
}

struct cvy_tcp_receiver {
	int fd, ended, started;
	pthread_t thread;
	uint8_t *window;
	size_t bytes;
	uint64_t frames, told;
	size_t at, here; /* of buffer: read up to, filled up to */
	uint8_t buffer[BUFFER];
};

/* Sends the number of stored frames. The sender reads it at every look, so this waits at most as long as TCP does. */
static int tell(struct cvy_tcp_receiver *r)
{
	ssize_t n;

	if (r->told == r->frames)
		return 0;
	do {
		n = send(r->fd, &r->frames, sizeof(r->frames), MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	r->told = r->frames;
	return n == sizeof(r->frames) ? 0 : -1;
}

/* Reads more from the socket, behind the rest of the buffer. Before it sleeps, it tells the sender how far it is. */
static int fill(struct cvy_tcp_receiver *r)
{
	ssize_t got;

	if (tell(r))
		return -1;
	r->here -= r->at;
	memmove(r->buffer, r->buffer + r->at, r->here);
	r->at = 0;
	do
		got = recv(r->fd, r->buffer + r->here, BUFFER - r->here, 0);
	while (got < 0 && errno == EINTR);
	r->here += got > 0 ? (size_t)got : 0;
	return got > 0 ? 0 : -1;
}

static int take_head(struct cvy_tcp_receiver *r, struct head *h)
{
	while (r->here - r->at < sizeof(*h))
		if (fill(r))
			return -1;
	memcpy(h, r->buffer + r->at, sizeof(*h));
	r->at += sizeof(*h);
	return 0;
}

/* Bytes up to the next word, or a word. */
static size_t piece(const uint8_t *to, size_t bytes)
{
	size_t n = 8 - ((uintptr_t)to & 7);

	return n < bytes ? n : bytes;
}

static void store_piece(uint8_t *to, const uint8_t *from, size_t bytes)
{
	uint64_t word;

	if (bytes == 8) {
		memcpy(&word, from, 8);
		cvy_q_store((uint64_t *)(void *)to, word);
		return;
	}
	for (size_t i = 0; i < bytes; i++)
		__atomic_store_n(to + i, from[i], __ATOMIC_RELEASE);
}

static int take_put(struct cvy_tcp_receiver *r, uint8_t *to, size_t bytes)
{
	while (bytes) {
		size_t n = piece(to, bytes);

		while (r->here - r->at < n)
			if (fill(r))
				return -1;
		store_piece(to, r->buffer + r->at, n);
		r->at += n;
		to += n;
		bytes -= n;
	}
	return 0;
}

static int store(struct cvy_tcp_receiver *r, const struct head *h)
{
	size_t bytes = h->op == CVY_RING_PUT ? h->value : 8;
	uint64_t *word = (uint64_t *)(void *)(r->window + h->remote);

	if (!cvy_queue_within(h->remote, bytes, r->bytes))
		return -1;
	if (h->op == CVY_RING_PUT)
		return take_put(r, r->window + h->remote, bytes);
	if (h->remote % 8)
		return -1;
	if (h->op == CVY_RING_SIGNAL)
		cvy_q_store(word, h->value);
	else if (h->op == CVY_RING_ADD)
		__atomic_fetch_add(word, h->value, __ATOMIC_ACQ_REL);
	else
		return -1;
	return 0;
}

static void *receiver_main(void *arg)
{
	struct cvy_tcp_receiver *r = arg;
	struct head h;

	while (!take_head(r, &h) && !store(r, &h)) {
		r->frames++;
		if (r->frames - r->told >= ACK_EVERY && tell(r))
			break;
	}
	__atomic_store_n(&r->ended, 1, __ATOMIC_RELEASE);
	shutdown(r->fd, SHUT_RDWR); /* the sender sees it */
	return NULL;
}

int cvy_tcp_receiver_open(int fd, void *window, size_t bytes, struct cvy_tcp_receiver **out)
{
	struct cvy_tcp_receiver *r = calloc(1, sizeof(*r));

	if (!r)
		return COVEY_ERR_NOMEM;
	r->fd = fd;
	r->window = window;
	r->bytes = bytes;
	if (cvy_thread_start(&r->thread, receiver_main, r)) {
		free(r);
		return COVEY_ERR_NOMEM;
	}
	r->started = 1;
	*out = r;
	return 0;
}

int cvy_tcp_receiver_check(const struct cvy_tcp_receiver *r)
{
	return __atomic_load_n(&r->ended, __ATOMIC_ACQUIRE) ? COVEY_ERR_PEER : 0;
}

void cvy_tcp_receiver_close(struct cvy_tcp_receiver *r)
{
	if (!r)
		return;
	shutdown(r->fd, SHUT_RDWR); /* ends its wait */
	if (r->started)
		pthread_join(r->thread, NULL);
	free(r);
}
