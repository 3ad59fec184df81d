/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes that a repair brought, until the application calls their operations. */
#ifndef CVY_OUTCOME_H
#define CVY_OUTCOME_H

#include "engine_state.h"

struct cvy_outcome {		  /* brought by a repair */
	struct cvy_outcome *next; /* of those that the application has not called yet */
	struct cvy_outcome *next_given;
	int shared; /* it is in both lists */
	struct covey_result result;
	uint32_t sig, past;   /* past: as of its struct cvy_op */
	int root;	      /* given: rank whose slots have the parts of all ranks, -1: all got the same */
	uint64_t ticks, from; /* given: ticks in all, first one in bytes */
	uint8_t *bytes;	      /* ticks one after the other, each {u32 n, bytes} */
	size_t n;
};

/*
 * Is it of the call made here? sig is 0 if nobody completed it. If others completed a private operation without this
 * rank's part, then not all had made the call, unless it may be decided without a part.
 */
static inline int cvy_outcome_fits(const struct cvy_outcome *o, const struct cvy_op *op)
{
	if (o->sig && (o->sig != op->sig || (o->ticks && o->ticks != op->ticks)))
		return 0;
	return o->result.status || op->kind->op_class != CVY_OP_PRIVATE || op->partial;
}

/* Contributors of a given outcome: of a private one nothing comes with it, not even the own part. */
static inline const struct covey_mask *cvy_outcome_mask(const struct cvy_outcome *o, const struct cvy_op *op)
{
	static const struct covey_mask nobody;

	return op->kind->op_class == CVY_OP_PRIVATE ? &nobody : &o->result.mask;
}

void cvy_outcome_put(struct cvy_outcome *o);
int cvy_outcome_add_tick(struct cvy_outcome *o, const uint8_t *bytes, uint32_t n); /* 0 or NOMEM */
/* The bytes of tick @i, which must be among them. */
const uint8_t *cvy_outcome_tick(const struct cvy_outcome *o, uint64_t i, uint32_t *bytes);
/* Keeps it for members that ask for it, and (unless @called) for the application. */
void cvy_outcome_hold(struct cvy_engine *e, struct cvy_outcome *o, int called);
/* The outcome of the call that the application makes, NULL: none; the caller puts it. */
struct cvy_outcome *cvy_outcome_claim(struct cvy_engine *e, uint64_t seq);
void cvy_outcome_forget_given(struct cvy_engine *e);
void cvy_outcome_forget(struct cvy_engine *e);

#endif
