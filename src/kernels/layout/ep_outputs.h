/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dispatch may take and give besides: a kernel before it masks ids, one after it writes outputs that follow from
 * those of the dispatch. Kernels of dispatch know nothing of either, so a call without them is as fast as if there were none.
 */
#ifndef CVY_EP_OUTPUTS_H
#define CVY_EP_OUTPUTS_H

#include "layout.h"

#define CVY_EP_BESIDE_THREADS 256
#define CVY_EP_BESIDE_CTAS 64 /* at most */

/*
 * The ids that are left go to `sent` of the route, and the dispatch reads them there. A dispatch writes -1 there for an
 * id past the T rows of its expert. A lane may read that id before or after: either way it is counted behind the first T.
 */
struct cvy_ep_masking {
	const uint8_t *mask; /* NULL: there is none */
	const int32_t *ids;
	const int64_t *ids64; /* instead of ids, or NULL */
	int32_t *to;	      /* [num_tokens][top_k] */
	int32_t num_tokens, top_k;
	int32_t columns; /* of the mask: top_k, or one, that is 0 or 1 */
};

/* Outputs that are not asked for are NULL. */
struct cvy_ep_outputs {
	const int32_t *count, *route; /* as the dispatch wrote them */
	const int64_t *range;
	int64_t *expert_tokens;	  /* [el] */
	int32_t *recv_counts;	  /* [el][size]; not with once */
	const int32_t *sent;	  /* as the dispatch wrote it */
	int32_t *placed;	  /* [num_tokens][top_k] */
	int32_t *triplets;	  /* [bins][size * tokens][3] */
	int32_t *src_info, *flat; /* the tails of these, if fill_tail */
	int32_t *recv_experts;	  /* once */
	float *recv_weights;	  /* once */
	int32_t size, tokens, top_k, el, num_tokens;
	int32_t once, fill_tail;
	int32_t kept;		 /* close: [kept] in place of [bins][size * tokens]; else 0 */
	int32_t sums, alignment; /* of expert_tokens; alignment is 1 or more */
};

struct cvy_ep_beside {
	struct cvy_ep_masking masking;
	struct cvy_ep_outputs outputs;
};

/* CTAs of a launch that has @items to look at. */
CVY_GPU_BOTH static inline int cvy_ep_beside_ctas(size_t items)
{
	const size_t most = CVY_EP_BESIDE_CTAS, ctas = (items + CVY_EP_BESIDE_THREADS - 1) / CVY_EP_BESIDE_THREADS;

	return (int)(ctas < 1 ? 1 : ctas > most ? most : ctas);
}

static inline int cvy_ep_has_outputs(const struct cvy_ep_outputs *o)
{
	return o->placed || (o->el && (o->expert_tokens || o->recv_counts || o->triplets || o->fill_tail));
}

#endif
