/* SPDX-License-Identifier: Apache-2.0 */
/* A tcp connection whose path carries no data: links between hosts and queues of devices have one bound for it. */
#ifndef CVY_SILENCE_H
#define CVY_SILENCE_H

#include <stdint.h>

#define CVY_SILENCE_LOOKS 4 /* at what is acknowledged, within the bound */

struct cvy_silence {
	uint64_t acked, look_ns; /* bytes that the peer's system has acknowledged at the last look; the next look */
	int still;		 /* looks since they moved */
};

/*
 * Has the peer's system acknowledged nothing of what was sent on @fd for @bound_ns? A full receive window only says that the
 * peer is late. Looks at most CVY_SILENCE_LOOKS times in that time, and counts looks: a process that was stopped saw nothing.
 */
int cvy_silent(struct cvy_silence *s, int fd, uint64_t now, uint64_t bound_ns);

#endif
