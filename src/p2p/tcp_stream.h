/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of a tcp link: puts and lines leave in order, and arriving ones are stored in the mirror. It knows of
 * the other connections only by the fence: a line must not be seen before the parts of a put that other streams carry.
 */
#ifndef CVY_TCP_STREAM_H
#define CVY_TCP_STREAM_H

#include "mesh.h"
#include "silence.h"

#define CVY_STREAM_QUEUE 4096	  /* entries that wait for the socket of the first stream; more: COVEY_ERR_AGAIN */
#define CVY_STREAM_QUEUE_MORE 256 /* and of each other stream, which carries only parts of large puts */
#define CVY_STREAM_PUT_MAX ((size_t)1 << 30) /* bytes of one frame */
#define CVY_STREAM_STAGE 16384

enum { CVY_FRAME_PUT = 0x50757431, CVY_FRAME_SIGNAL = 0x53696731, CVY_FRAME_FENCE = 0x46656e31 };

struct cvy_frame {
	uint32_t kind, bytes;
	uint64_t offset;
};

struct cvy_entry {
	struct cvy_frame frame;
	union {
		struct cvy_line line;			     /* of a signal */
		uint64_t await[CVY_TCP_CONNECTIONS_MAX - 1]; /* of a fence: bytes put on streams 1, 2, ... so far */
	};
};

struct cvy_stream {
	int fd;
	int first;			/* the one that carries lines and fences */
	unsigned int head, count, room; /* of the ring */
	size_t sent;			/* bytes of the first entry that left */
	size_t left;			/* bytes of the present put that are received directly into the mirror */
	uint64_t at;			/* where */
	size_t staged, eaten;		/* bytes in stage, bytes of them used */
	uint64_t put, got;		/* bytes of all puts: queued here, stored in the mirror */
	int held;			/* a fence: what follows waits for the other streams */
	int others;			/* number of other streams */
	struct cvy_silence silence;
	uint64_t await[CVY_TCP_CONNECTIONS_MAX - 1];
	uint8_t stage[CVY_STREAM_STAGE];
	struct cvy_entry ring[];
};

struct cvy_stream *cvy_stream_new(int fd, int number, int streams); /* takes fd unless it returns NULL */
void cvy_stream_free(struct cvy_stream *s);			    /* closes */
void cvy_stream_queue(struct cvy_stream *s, uint32_t kind, size_t offset, size_t bytes, const void *value);
/* 1: bytes moved, 0: the socket has or takes nothing, < 0: lost, and *why */
int cvy_stream_flush(const struct cvy_link *link, struct cvy_stream *s, const char **why);
int cvy_stream_read(const struct cvy_link *link, struct cvy_stream *s, const char **why);
/* Continues with the bytes behind a fence, which the caller has found to be met. 0, or < 0 and *why. */
int cvy_stream_release(const struct cvy_link *link, struct cvy_stream *s, const char **why);

#endif
