/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the job. Its loop has no code for deaths: covey_admit() returns the members, the operations return the
 * contributors, and the step continues. rank.c is its life, step.c one step, elastic.c moves the experts, device.c does
 * the operations on device memory.
 */
#ifndef MOE_RANK_H
#define MOE_RANK_H

#include "moe.h"

struct moe_state { /* state for a joiner: the members' copy at covey_admit() */
	uint64_t step, holders;
	int64_t size;
};

struct moe_device; /* device.h */

struct moe_rank {
	const struct moe_options *opt;
	struct moe_model model;
	struct covey_group *group;
	struct covey_ep *ep;
	int self, local, fd;
	int fresh; /* came after the group was formed, nothing is known yet */
	struct moe_state state;
	struct moe_device *device; /* NULL: host memory */
	int *owner;		   /* [experts] of the present layout */
	uint16_t *x, *packed_x, *y, *out;
	int32_t *experts, *count, *src_info;
	float *weights;
	int64_t *range;
	struct moe_report report;
	int stop;
	struct moe_model ref; /* no director: the rank checks itself */
	struct moe_verdict bad;
};

int moe_rank_step(struct moe_rank *r);
int moe_rank_fail(struct moe_rank *r, const char *what, int err); /* prints the cause; returns @err */

/* Lays out for the size of the group; from the layout for @old_size, held by @holders. */
int moe_elastic_move(struct moe_rank *r, int old_size, uint64_t holders, int size);
int moe_elastic_room(struct moe_rank *r, int size);

void *moe_room(void *old, size_t bytes); /* never NULL */

#endif
