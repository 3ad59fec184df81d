/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between membership and the rest: calls of a group's agent to links and engine. collectives fills it in when
 * a group is opened; the simulator fills in its own links. All calls come from the agent's thread.
 */
#ifndef CVY_SEAM_H
#define CVY_SEAM_H

#include "event.h"
#include "flight.h"
#include "page.h"
#include "view.h"

struct cvy_identity {
	char gid[33];	    /* 128 random bits in hex: the life of the group */
	uint8_t secret[32]; /* key of the members' proofs */
	int rank, max_ranks;
	uint64_t inc, nonce;
};

struct cvy_seam {
	void *ctx, *links, *engine; /* each function has the one that it names */

	/* Links. The member with the greater inc dials; the other expects. LINK_UP or LINK_DOWN follows. */
	void (*identity)(void *ctx, const struct cvy_identity *id);
	void (*expect)(void *links, int rank, uint64_t inc); /* prepare a chunk, accept its dial */
	void (*dial)(void *links, int rank, uint64_t inc, const char *addr, const char *host);
	void (*drop)(void *links, int rank, uint64_t inc); /* close a link that no view needs */
	int (*send)(void *links, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes);
	struct cvy_page *(*page)(void *links, int rank); /* own or mapped page of a peer on this host; NULL: none */
	void (*describe)(void *links, char *text, size_t bytes); /* "1:shm,2:tcp": kinds of the links */
	void (*numbers)(void *ctx, char text[CVY_BEAT_TEXT]);	 /* of a beat (metrics.h); may be NULL */

	/* Engine. */
	void (*freeze)(void *ctx, uint32_t epoch); /* FROZEN (with a report) or FROZE_NOT is posted, maybe at once */
	void (*learn)(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		      const struct covey_mask *lag); /* saves data of the removed, fences them, adopts; posts FENCED */
	void (*repair)(void *engine,
		       const struct covey_mask *holders);	  /* done+1 .. base-1; posts REPAIRED, maybe at once */
	void (*thaw)(void *ctx);				  /* the learned view is active */
	void (*message)(void *engine, const struct cvy_msg *msg); /* ADMIT, PULL, GIVE */
	void (*stop)(void *ctx, int err);	       /* FENCED, CLOSED, ABORTED: all operations end with this error */
	uint64_t (*progress)(void *ctx, int *waiting); /* done seq; is an operation waiting > 1 ms? */
	int (*retire)(void *ctx); /* stop entering operations; 1: every member has decided all that this rank has */
	void (*peer_progress)(void *engine, int rank, uint64_t done); /* from PING */
	void (*point)(void *ctx, const char *name); /* a point in the agent's life, for fault plans; may be NULL */
};

#endif
