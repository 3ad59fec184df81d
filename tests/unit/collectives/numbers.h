/* SPDX-License-Identifier: Apache-2.0 */
/* A device of numbers, for tests of what a member decides about its device: rank 0 of three, and what the others tell it. */
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <check.h>

#include "device_state.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define OP 5 /* operations that are complete when the device is frozen */

/* The kernel of operation OP. */
extern struct kernel {
	uint64_t entered, stopped, parked;
	uint32_t private_parts;
	uint64_t before;		  /* of it, quanta of CTAs that have ended */
	struct cvy_gpu_admitted admitted; /* an operation before */
	int newcomer;			  /* or no kernel has run yet */
	int never_parked;		  /* no CTA has ever stopped */
	uint32_t without;		  /* ranks that are no contributors any more */
} kernel;
extern struct cvy_gpu_mailbox box;
extern struct cvy_gpu_ops numbers; /* a test may put its own in */

extern int read_from, fresh[CVY_GPU_RANKS];			    /* generation that was read; that was made last */
extern int stands[2][CVY_GPU_RANKS][CVY_GPU_GENERATIONS], attached; /* chunks here; mapped of others; times */
extern int written, written_to;					    /* times that a chunk was; generation of the last */
extern int wants, passes;					    /* times that packets, or numbers, were asked for */
extern uint8_t gate_is;

struct want { /* as device_packets.c has it */
	uint64_t op;
	int32_t gone;
	uint32_t lanes, slot_bytes, rounds;
	uint32_t count[CVY_GPU_LANES];
};

struct cvy_device *device_new(void (*hear)(void *ctx, const struct cvy_event *event));
void device_free(struct cvy_device *d);
void hear_nothing(void *ctx, const struct cvy_event *event);
void link_up(struct cvy_device *d, int rank, uint64_t inc);
void learn(struct cvy_device *d, uint32_t epoch, uint64_t members, uint64_t removed, uint64_t inc_of_2);
void tell(struct cvy_device *d, int type, int rank, uint64_t inc, const void *body, size_t bytes);
void hear_have(struct cvy_device *d, int rank, uint64_t inc, uint64_t op); /* op 0: it is fresh */
void meet(struct cvy_device *d, int rank, uint64_t inc); /* it is linked: each gives the other a chunk */
void lose_rank_2(struct cvy_device *d); /* it has gone on in a view of all three, and learns one without rank 2 */

#endif
