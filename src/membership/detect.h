/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs of life on one host. Every member beats in its page and holds the robust word there; every member looks at the
 * pages of the others. It posts findings as CVY_EV_SUSPECT: proof for a dead word or process, else only a suspicion.
 * Agent's thread, but for the kick of the watcher.
 */
#ifndef CVY_DETECT_H
#define CVY_DETECT_H

#include "loop.h"
#include "seam.h"

#define CVY_LOCAL_ALL 16 /* up to this many, each member of a host monitors all others */
#define CVY_LOCAL_RING 8 /* else this many that follow it in rank order */

struct cvy_detect;

struct cvy_detect_args {
	const struct cvy_seam *seam; /* page() is used */
	struct cvy_loop *loop;	     /* pidfds */
	struct cvy_sink sink;	     /* CVY_EV_SUSPECT, posted on the calling thread */
	int heartbeat_ms, hang_ms;   /* hang_ms -1: silence is never suspect */
};

/*
 * Takes the robust word of the own page for the calling thread. When that thread ends, and only then, peers see it die.
 */
int cvy_life_take(struct cvy_page *own);

int cvy_detect_new(const struct cvy_detect_args *args, struct cvy_detect **out);
void cvy_detect_free(struct cvy_detect *detect);

/* Monitors the members of @view whose page is mapped; call it again when a page is mapped later. A peer that is proven
 * dead is posted again. 0, or NOMEM: not all of them are watched. */
int cvy_detect_view(struct cvy_detect *detect, const struct cvy_view *view, int own_rank);

/* Looks at every peer. Costs a load or two each, and no system call unless a peer is late. */
void cvy_detect_tick(struct cvy_detect *detect, uint64_t now_ns);

/* The watcher was woken: looks at the words alone. Agent's thread. */
void cvy_detect_kicked(struct cvy_detect *detect);

/* 1: a peer's beat is late and a bound is near: tick more often to meet it. */
int cvy_detect_late(const struct cvy_detect *detect);

/* The robust word inside the mutex, whose layout is the C library's. */
static inline const uint32_t *cvy_life_word(const struct cvy_page *page)
{
	return (const uint32_t *)&page->alive.__data.__lock;
}

#endif
