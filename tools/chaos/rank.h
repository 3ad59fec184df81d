/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of ep-chaos without a plan: shared by its parts. */
#ifndef CHAOS_RANK_H
#define CHAOS_RANK_H

#include <stddef.h>

#include "chaos.h"
#include "covey.h"

struct chaos_there;

struct worker {
	struct chaos_shared *shared;
	struct chaos_slot *slot;
	struct covey_group *group;
	int rank;
	size_t count; /* elements of an allreduce: a multiple of the ranks */
	float *send, *recv, *want;
	float want_weight; /* for which @want was made */
	uint64_t step;
	uint32_t epoch;
	struct chaos_there *there; /* NULL: on host memory */
	struct chaos_record record;
};

/* rank.c. Codes are exit codes of the process; 0: continue. */
int chaos_rank_fail(struct worker *w, const char *what, int err);
int chaos_rank_wrong(struct worker *w, const char *what);
void chaos_record_begin(struct worker *w, enum chaos_op op);
void chaos_record_done(struct worker *w, const struct covey_result *result);
void chaos_record_put(struct worker *w);

/* rank_device.c */
int chaos_there_open(struct worker *w);	   /* before covey_join() */
int chaos_there_prepare(struct worker *w); /* after it */
void chaos_there_close(struct worker *w);
int chaos_there_admitted(struct worker *w);
int chaos_there_allreduce(struct worker *w, struct covey_result *result); /* COVEY_ERR_* */
int chaos_there_step(struct worker *w);					  /* dispatch and combine */

#endif
