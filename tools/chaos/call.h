/* SPDX-License-Identifier: Apache-2.0 */
/* One call of an operation with all its arguments, right or wrong. */
#ifndef CHAOS_CALL_H
#define CHAOS_CALL_H

#include "work.h"

struct chaos_call {
	int op;
	size_t count; /* elements, of a block where there are blocks */
	int dtype, redop, root;
	int more_at, more; /* of the uneven operations: this many elements more in block `more_at` */
	bool bare;	   /* send is NULL */
	bool in_place;
};

#define CHAOS_CALL_GAP 7 /* elements between the blocks of uneven operations: one with more has room */

struct chaos_blocks {
	size_t send[CHAOS_MAX_RANKS], recv[CHAOS_MAX_RANKS], at[CHAOS_MAX_RANKS];
};

/* On a device: launched, or captured and replayed. Else started and waited for, or as one call. COVEY_ERR_* */
int chaos_operate(struct chaos_member *m, int op, struct operation_call call);

const char *chaos_call_text(const struct chaos_call *call, char *to, size_t bytes);
struct chaos_blocks chaos_call_lay_out(const struct chaos_member *m, const struct chaos_call *call);
void chaos_call_fill(struct chaos_member *m, const struct chaos_call *call, const struct chaos_blocks *blocks);
int chaos_call_make(struct chaos_member *m, const struct chaos_call *call, const struct chaos_blocks *blocks,
		    struct covey_result *result); /* COVEY_ERR_* */
/* For a call that succeeded with the mask of m->record: 0 or the exit code */
int chaos_call_check(struct chaos_member *m, const struct chaos_call *call, const struct chaos_blocks *blocks);

#endif
