/* SPDX-License-Identifier: Apache-2.0 */
/* A view as plain data: a decision of the store, shared by membership, links and engine. */
#ifndef CVY_VIEW_H
#define CVY_VIEW_H

#include "mask.h"

#define CVY_PENDING UINT64_MAX /* from[] of a member that waits for its ADMIT */

struct cvy_member {
	uint64_t inc;  /* incarnation, 0: no member */
	uint64_t from; /* seq of the ADMIT that took it in; 0: founder; CVY_PENDING */
	uint64_t host; /* hash of its host's identity in the store: the same on all ranks */
};

struct cvy_view {
	uint32_t epoch;
	uint32_t stamp;	   /* 32-bit stamps of this view start here */
	uint64_t vid;	   /* random name */
	uint64_t base;	   /* first operation of this view */
	uint64_t fail_seq; /* operation that failed for all, 0: none */
	int fail_err;	   /* COVEY_ERR_LOST or _MISMATCH */
	int size;	   /* 1 + highest rank ever admitted */
	int max_ranks;
	struct covey_mask members; /* admitted and pending */
	struct covey_mask pending;
	struct cvy_member member[]; /* [max_ranks] */
};

struct cvy_view *cvy_view_new(int max_ranks);
struct cvy_view *cvy_view_dup(const struct cvy_view *view);
void cvy_view_copy(struct cvy_view *to, const struct cvy_view *from); /* same max_ranks */
void cvy_view_free(struct cvy_view *view);

/* MASK(s): the admitted whose `from` <= s */
void cvy_view_mask(const struct cvy_view *view, uint64_t seq, struct covey_mask *mask);
/* size(s): the larger of view.size and 1 + highest rank with from < s */
int cvy_view_size(const struct cvy_view *view, uint64_t seq);

#endif
