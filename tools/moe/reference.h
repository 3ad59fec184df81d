/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The right results of dispatch, experts and combine, in one process and in the plainest way: no slots, no packing
 * tricks, one loop per sentence of covey.h. The job's checker and the unit tests compare with it.
 */
#ifndef MOE_REFERENCE_H
#define MOE_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

struct moe_shape {
	int tokens; /* most per source */
	int hidden, top_k, experts;
	int size; /* sources and owners */
};

/* The tokens of one source; experts NULL: its part is not here. */
struct moe_batch {
	int tokens;
	const uint16_t *x;
	const int32_t *experts;
	const float *weights;
};

struct moe_packed { /* as struct covey_dispatch_args names them */
	uint16_t *packed_x;
	int32_t *count, *src_info;
	int64_t *range;
	int32_t *flat;
};

/* y [hidden] of one row */
typedef void (*moe_expert_fn)(void *ctx, int expert, const uint16_t *x, uint16_t *y);

float moe_from_bf16(uint16_t v);
uint16_t moe_to_bf16(float f); /* nearest, ties to even */

/* Output of a dispatch of batch[size] at rank @rank. packed_x, src_info and flat may be NULL. */
void moe_ref_dispatch(const struct moe_shape *s, const struct moe_batch *batch, const int *owner, int rank,
		      const struct moe_packed *to);

/* The same where a token has one row at a rank: range [size], and count: rows that name each expert. No other output. */
void moe_ref_dispatch_once(const struct moe_shape *s, const struct moe_batch *batch, const int *owner, int rank,
			   const struct moe_packed *to);

/* out [tokens][hidden] of one source; here[r]: rank r's rows take part */
void moe_ref_combine(const struct moe_shape *s, const struct moe_batch *batch, const int *owner,
		     const unsigned char *here, int renormalise, moe_expert_fn expert, void *ctx, uint16_t *out);

#endif
