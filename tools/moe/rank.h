/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the job. Its loop has no code for deaths: covey_admit() returns the members, the operations return the
 * contributors, and the step continues. rank.c is its life, step.c one step, elastic.c moves the experts, device.c has
 * what device memory needs.
 */
#ifndef MOE_RANK_H
#define MOE_RANK_H

#include "../local/twin.h"
#include "moe.h"

struct moe_state { /* state for a joiner: the members' copy at covey_admit() */
	uint64_t step, holders;
	int64_t size;
};

struct moe_rank {
	const struct moe_options *opt;
	struct moe_model model, ref; /* ref: of the check, with all weights */
	struct covey_group *group;
	struct covey_ep *ep;
	int self, local, fd; /* fd: to the director; -1: there is none */
	int fresh;	     /* came after the group was formed, nothing is known yet */
	struct moe_state state;
	struct tool_device *device; /* NULL: host memory */
	void *nets, *route;	    /* on the device */
	int *owner;		    /* [experts][places] of the present layout */
	uint16_t *x, *packed_x, *y, *out;
	int32_t *experts, *placed, *count, *src_info, *recv_experts; /* recv: COMPACT and HT */
	int32_t *flat, *triplets;				     /* FLAT; WIN */
	float *weights, *recv_weights;
	int64_t *range;
	struct moe_report report;
	int stop, asked; /* all stop; the director asked this rank to */
	/* The last operation that needs everyone says who contributes to its view. */
	uint32_t known_epoch;
	uint64_t known;
	struct moe_verdict bad; /* no director: what the checks found */
};

int moe_rank_step(struct moe_rank *r);
int moe_rank_fail(struct moe_rank *r, const char *what, int err); /* prints the cause; returns @err */
void *moe_room(void *old, size_t bytes);			  /* never NULL */

/* Lays out for the size of the group; from the layout for @old_size, held by @holders. */
int moe_elastic_move(struct moe_rank *r, int old_size, uint64_t holders, int size);

/* device.c. Without --devices open and room do nothing. */
int moe_device_open(struct moe_rank *r);
int moe_device_room(struct moe_rank *r, int size); /* for the present layout */
void moe_device_close(struct moe_rank *r);
int moe_device_experts(struct moe_rank *r); /* launched */
int moe_device_outcome(struct moe_rank *r, int err, struct covey_result *result);
int moe_device_copies(struct moe_rank *r, bool back, const void *const *host, int n);

#endif
