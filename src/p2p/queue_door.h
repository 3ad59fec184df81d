/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections for queues across hosts: a listening socket, and calls to others'. Who is there is known by a cookie of
 * its own for each connection, which a link that has proven both ends brought; it is the first that a caller sends, and
 * who has none to show gets no answer. All on the loop's thread.
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

/* @fd: connected and blocking, the callee's from here on; < 0: nothing came of it, @why. */
typedef void cvy_door_opened(void *ctx, int rank, int fd, const char *why);

/* @ctx: for @come and dialled calls. @interface: as the setting. */
int cvy_door_open(struct cvy_loop *loop, const char *interface, void *ctx, cvy_door_opened *come,
		  struct cvy_errbox *box, struct cvy_door **out);
void cvy_door_close(struct cvy_door *door);		/* calls under way end unheard; NULL is fine */
const char *cvy_door_name(const struct cvy_door *door); /* what others dial */
/* Whoever shows *cookie (made here) is @rank: come() once, then it is forgotten. NOMEM. */
int cvy_door_expect(struct cvy_door *door, int rank, struct cvy_cookie *cookie);
void cvy_door_forget(struct cvy_door *door, int rank); /* nobody is @rank any more */
/* Calls @name and shows @cookie; @opened unless it is hung up before. */
int cvy_door_dial(struct cvy_door *door, const char *name, const struct cvy_cookie *cookie, int rank,
		  cvy_door_opened *opened, struct cvy_knock **out);
void cvy_door_hang_up(struct cvy_knock *knock); /* not after opened(); NULL is fine */

#endif
