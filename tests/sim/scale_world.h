/* SPDX-License-Identifier: Apache-2.0 */
/* Private to scale_world.c and scale_store.c: members, what is on its way between them and the store, and the clock. */
#ifndef SCALE_WORLD_H
#define SCALE_WORLD_H

#include <stdlib.h>

#include "clock.h"
#include "scale.h"

enum kind { TICK, CALL, STORE_FREE, REPLY, NOTICE, DIAL, UP, DOWN, PROOF };

struct event {
	uint64_t at, serial, inc;
	int kind, member, other; /* members by number */
	void *data;
};

struct request {
	uint64_t id;
	int argc;
	char **argv;
	struct member *from;
	struct request *next; /* in the queue of the store */
};

struct reply {
	uint64_t id;
	int err;
	struct memory_reply got;
};

struct notice {
	int hearers;
	char *text;
};

struct endpoint {
	struct cvy_store store; /* first: what the driver calls */
	struct member *m;
};

struct member {
	struct scale_world *w;
	int id, alive, rank, counted; /* counted: it is active in the newest view */
	uint64_t inc, timer_ns;
	uint64_t *expects, *linked; /* [max_ranks]: inc */
	uint64_t *knocks;	    /* dialled in before it was expected: held, as the mesh does */
	uint64_t done, adm;
	struct cvy_seam seam;
	struct endpoint endpoint;
	struct cvy_driver driver;
	uint64_t calls, bytes;
};

struct scale_world {
	uint64_t now, serial, handled;
	int world, max_ranks, alive, newest;
	uint32_t epoch; /* of the newest active view */
	int members, pending;
	struct member **member;
	int count, room;
	int *by_inc, incs;
	struct event *heap;
	int events, events_room;
	struct memory_server *server;
	struct request *first, **last; /* wait for the store */
	int serving, quick;
	struct cvy_errbox *box;
	struct scale_count total;
	struct notice *published[8]; /* by the script that runs */
	int publishing;
};

static inline uint64_t us(double n)
{
	return (uint64_t)(n * 1000);
}

static inline void *must(void *p)
{
	if (!p)
		abort(); /* a test program has no way on */
	return p;
}

static inline void notice_free(struct notice *n)
{
	free(n->text);
	free(n);
}

/* scale_world.c */
void scale_at(struct scale_world *w, uint64_t when, struct event e); /* it happens then */

/* scale_store.c */
extern const struct cvy_store_ops scale_store_ops;			/* what a driver calls */
void scale_published(void *ctx, const char *channel, const char *text); /* by the script that runs */
void scale_arrived(struct scale_world *w, struct request *r);		/* owned */
void scale_store_free(struct scale_world *w);				/* it takes the next call */
void scale_store_close(struct scale_world *w);				/* drops the calls that wait */

#endif
