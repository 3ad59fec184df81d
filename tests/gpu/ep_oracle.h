/* SPDX-License-Identifier: Apache-2.0 */
/* What dispatch and combine must give, computed by the functions of the host engine; for tests of the kernels. */
#ifndef EP_ORACLE_H
#define EP_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include "covey_ep.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ORACLE_RANKS 64

struct oracle_rank { /* inputs of one rank, and room for what it must get */
	int num_tokens;
	const void *x;
	const float *x_scales; /* x is e4m3, or NULL: elements */
	const float *smooth;   /* factors, or NULL */
	const int32_t *ids;
	const float *weights;
	uint16_t *packed; /* [el][size * tokens][hidden] */
	uint8_t *codes;	  /* the same rows as codes, with scales [el][groups][size * tokens] */
	float *scales;
	int32_t *count, *src_info;
	int64_t *range;
	int32_t *recv_experts; /* preset compact: [size * tokens][top_k] of each row */
	float *recv_weights;
	const uint8_t *mask;	/* NULL: none */
	int64_t *expert_tokens; /* of these outputs NULL: not asked for */
	int32_t *recv_counts, *triplets, *flat, *placed;
	const uint16_t *y;	   /* results of its experts, in the rows of packed */
	const float *expert_scale; /* NULL: none */
	uint16_t *out;
};

struct oracle {
	int size, tokens, hidden, top_k, experts;
	int places;	  /* of an expert; 0: one */
	const int *owner; /* [experts][places] */
	uint64_t members; /* ranks whose parts are there */
	uint64_t living;  /* contributors of the dispatch; 0: these */
	int per_rank, renormalise, preset;
	int dtype;				      /* of elements, enum covey_dtype */
	int code, back;				      /* enum cvy_ep_codes: of rows of dispatch, and of combine */
	const uint8_t *host;			      /* of each rank: combine over two hops; NULL: from each owner */
	int mask_columns, sums, alignment, fill_tail; /* as in struct covey_dispatch_args */
	struct oracle_rank rank[ORACLE_RANKS];
};

int oracle_local(const struct oracle *o, int rank); /* experts of @rank */
void oracle_dispatch(const struct oracle *o, int rank);
/* Fills out of @rank; returns owners whose rows are missing. */
uint64_t oracle_combine(const struct oracle *o, int rank);

#ifdef __cplusplus
}
#endif

#endif
