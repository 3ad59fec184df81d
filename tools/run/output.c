/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of the ranks: each stream is collected to whole lines, and each line is written with its label in one write,
 * so that lines of several ranks never mix. A line longer than the buffer is written in labelled pieces.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "run.h"

#define LINE_BYTES 16384

volatile int run_output_gone;
int run_output_lost;

/* A reader that closed, as in `ep-run ... | head`, wants no more. Any other failure is a loss, reported once. */
static void lost(int fd, int err)
{
	if (err == EPIPE || run_output_lost)
		return;
	run_output_lost = err;
	run_say("output of the ranks is lost: standard %s: %s", fd == STDOUT_FILENO ? "output" : "error",
		strerror(err));
}

static void put_all(int fd, struct iovec *part, int count)
{
	while (count && !run_output_gone) {
		ssize_t n = writev(fd, part, count);

		if (n < 0 && errno == EINTR)
			continue; /* the front may have died: the flag was set by then */
		if (n < 0 && errno == EAGAIN) {
			struct pollfd room = { .fd = fd, .events = POLLOUT };

			poll(&room, 1, -1); /* as long as a descriptor that blocks would take */
			continue;
		}
		if (n < 0) {
			lost(fd, errno);
			return; /* this stream is lost, the ranks continue */
		}
		while (count && (size_t)n >= part->iov_len) {
			n -= (ssize_t)part->iov_len;
			part++;
			count--;
		}
		if (count) {
			part->iov_base = (char *)part->iov_base + n;
			part->iov_len -= (size_t)n;
		}
	}
}

static void put_line(const struct run_stream *stream, char *text, size_t bytes)
{
	char label[16], newline[] = "\n";
	struct iovec part[3] = { { label, 0 }, { text, bytes }, { newline, 1 } };

	part[0].iov_len = (size_t)snprintf(label, sizeof(label), "[%d] ", stream->rank);
	put_all(stream->to, part, 3);
}

/* Writes every whole line, keeps the rest at the front of the buffer. */
static void put_lines(struct run_stream *stream)
{
	char *start = stream->line, *end = stream->line + stream->used, *newline;

	while ((newline = memchr(start, '\n', (size_t)(end - start)))) {
		put_line(stream, start, (size_t)(newline - start));
		start = newline + 1;
	}
	if (start == stream->line && stream->used == LINE_BYTES) {
		put_line(stream, start, LINE_BYTES);
		start = end;
	}
	stream->used = (unsigned)(end - start);
	memmove(stream->line, start, stream->used);
}

int run_stream_open(struct run_stream *stream, int fd, int to, int rank)
{
	stream->line = malloc(LINE_BYTES);
	if (!stream->line)
		return -1;
	stream->fd = fd;
	stream->to = to;
	stream->rank = rank;
	stream->used = 0;
	return 0;
}

void run_stream_read(struct run_stream *stream)
{
	ssize_t n;

	while (stream->fd >= 0) {
		n = read(stream->fd, stream->line + stream->used, LINE_BYTES - stream->used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			run_stream_close(stream);
			return;
		}
		stream->used += (unsigned)n;
		put_lines(stream);
	}
}

void run_stream_close(struct run_stream *stream)
{
	if (stream->fd < 0)
		return;
	if (stream->used)
		put_line(stream, stream->line, stream->used);
	close(stream->fd);
	free(stream->line);
	stream->fd = -1;
	stream->line = NULL;
}
