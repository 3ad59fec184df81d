/* SPDX-License-Identifier: Apache-2.0 */
/* Signs of life between hosts: PINGs on the links to a few members in ring order. Agent's thread. */
#ifndef CVY_PING_H
#define CVY_PING_H

#include "seam.h"

#define CVY_PING_PEERS 3 /* a neighbour and two skips */

struct cvy_ping;

struct cvy_ping_args {
	const struct cvy_seam *seam; /* page, send, progress */
	struct cvy_sink sink;	     /* CVY_EV_SUSPECT */
	int link_ms;		     /* -1: silence is never suspect */
	int max_ranks;
};

int cvy_ping_new(const struct cvy_ping_args *args, struct cvy_ping **out);
void cvy_ping_free(struct cvy_ping *ping);

void cvy_ping_link(struct cvy_ping *ping, int rank, uint64_t inc, int up);
/* Chooses the peers to ping: members of @view with a link and without a page here. Also after cvy_ping_link. */
void cvy_ping_view(struct cvy_ping *ping, const struct cvy_view *view, int own_rank);
/* Any message of a peer is a sign of life. PINGs are answered by the driver. */
void cvy_ping_heard(struct cvy_ping *ping, int rank, uint64_t inc);
void cvy_ping_tick(struct cvy_ping *ping, uint64_t now_ns);

#endif
