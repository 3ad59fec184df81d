/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections for queues across hosts: a listening socket, and calls to others'. A cookie identifies the caller. Each
 * connection has its own, which a proven link has carried. The caller sends it first; a caller without one gets no
 * answer. All on the loop's thread.
 */
#ifndef CVY_QUEUE_DOOR_H
#define CVY_QUEUE_DOOR_H

#include <stdint.h>

#include "error.h"
#include "loop.h"

#define CVY_DOOR_NAME 128

struct cvy_door;
struct cvy_knock; /* a call under way, or a stranger's */

struct cvy_cookie {
	uint8_t byte[32];
};

/* @fd: connected and blocking, owned by the callee; < 0: the connection failed, @why. */
typedef void cvy_door_opened(void *ctx, int rank, int fd, const char *why);

/* @ctx: for @come and dialled calls. @interface: as the setting. */
int cvy_door_open(struct cvy_loop *loop, const char *interface, void *ctx, cvy_door_opened *come,
		  struct cvy_errbox *box, struct cvy_door **out);
void cvy_door_close(struct cvy_door *door);		/* calls under way end without a callback; NULL is fine */
const char *cvy_door_name(const struct cvy_door *door); /* the name that others dial */
/* A caller that shows *cookie (made here) is @rank: come() is called once, then the cookie is forgotten. NOMEM. */
int cvy_door_expect(struct cvy_door *door, int rank, struct cvy_cookie *cookie);
void cvy_door_forget(struct cvy_door *door, int rank); /* no caller is taken for @rank */
/* Calls @name and shows @cookie; @opened follows, unless it is hung up before. */
int cvy_door_dial(struct cvy_door *door, const char *name, const struct cvy_cookie *cookie, int rank,
		  cvy_door_opened *opened, struct cvy_knock **out);
void cvy_door_hang_up(struct cvy_knock *knock); /* not after opened(); NULL is fine */

#endif
