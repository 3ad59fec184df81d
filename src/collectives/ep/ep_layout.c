/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and offsets of expert-parallel buffers. All are sized by max_ranks once: a joiner that lays out later, for a
 * larger group, must arrive at the same offsets as the founders.
 */
#include "ep_layout.h"

#include "covey.h"
#include "size.h"

static const struct cvy_ep_pack packs[] = {
	[COVEY_EP_LL] = { .once = 0, .beside = 0, .scale_by_row = 0 },
	[COVEY_EP_COMPACT] = { .once = 1, .beside = 1, .scale_by_row = 1 },
};

const struct cvy_ep_pack *cvy_ep_pack_of(int preset)
{
	return preset < 0 || preset >= (int)(sizeof(packs) / sizeof(packs[0])) ? NULL : &packs[preset];
}

size_t cvy_ep_dispatch_weights_at(const struct cvy_ep_shape *s)
{
	return cvy_round_up((size_t)s->tokens * (size_t)s->top_k * sizeof(int32_t), CVY_CACHE_LINE);
}

size_t cvy_ep_dispatch_rows_at(const struct cvy_ep_shape *s)
{
	return cvy_ep_dispatch_weights_at(s) * (cvy_ep_pack_of(s->preset)->beside ? 2 : 1);
}

size_t cvy_ep_dispatch_skips_at(const struct cvy_ep_shape *s)
{
	return cvy_ep_dispatch_rows_at(s) + (size_t)s->tokens * cvy_ep_row_bytes(s); /* rows are multiples of 16 */
}

size_t cvy_ep_dispatch_bytes(const struct cvy_ep_shape *s)
{
	return cvy_round_up(cvy_ep_dispatch_skips_at(s) + ((size_t)s->max_ranks + 63) / 64 * sizeof(uint64_t),
			    CVY_EP_ALIGN);
}

size_t cvy_ep_combine_rows_at(const struct cvy_ep_shape *s)
{
	return cvy_round_up((size_t)s->max_ranks * sizeof(struct cvy_ep_run), CVY_CACHE_LINE);
}

/* Owners may change, so one rank may get all experts: a token has at most K rows there, or one. */
size_t cvy_ep_combine_rows(const struct cvy_ep_shape *s)
{
	size_t most = (size_t)(s->top_k < s->experts ? s->top_k : s->experts);

	if (cvy_ep_pack_of(s->preset)->once)
		most = 1;
	return (size_t)s->max_ranks * (size_t)s->tokens * most;
}

size_t cvy_ep_combine_bytes(const struct cvy_ep_shape *s)
{
	return cvy_round_up(cvy_ep_combine_rows_at(s) + cvy_ep_combine_rows(s) * cvy_ep_row_bytes(s), CVY_EP_ALIGN);
}

void cvy_ep_blocks(int experts, int size, int *owner)
{
	int block = (experts + size - 1) / size;

	for (int e = 0; e < experts; e++)
		owner[e] = e / block;
}

int cvy_ep_locals(int experts, const int *owner, int rank, int *local)
{
	int n = 0;

	for (int e = 0; e < experts; e++)
		local[e] = owner[e] == rank ? n++ : -1;
	return n;
}

size_t cvy_ep_ll_message_fp8(int hidden)
{
	return CVY_EP_LL_HEADER + (size_t)hidden + sizeof(float) * ((size_t)hidden / CVY_EP_LL_SCALE_GROUP);
}

size_t cvy_ep_ll_message_bf16(int hidden)
{
	return CVY_EP_LL_HEADER + 2 * (size_t)hidden;
}

size_t cvy_ep_ll_message_combine(int hidden)
{
	return 2 * (size_t)hidden;
}

size_t cvy_ep_ll_dispatch_at(int local_expert, int size, int src, int tokens, int slot, size_t message)
{
	return (cvy_ep_ll_signal_at(local_expert, size, src) * (size_t)tokens + (size_t)slot) * message;
}

size_t cvy_ep_ll_combine_at(int expert, int tokens, int token, int hidden)
{
	return ((size_t)expert * (size_t)tokens + (size_t)token) * cvy_ep_ll_message_combine(hidden);
}

/* A region holds the larger of the dispatch and combine messages, plus two headers. */
size_t cvy_ep_ll_data_bytes(int experts, int tokens, int hidden)
{
	return (size_t)experts * (size_t)tokens * (2 * CVY_EP_LL_HEADER + 2 * (size_t)hidden);
}

size_t cvy_ep_ll_total_bytes(int experts, int tokens, int hidden)
{
	size_t signals = (size_t)experts * sizeof(int32_t);

	return 2 * (2 * signals + 2 * cvy_ep_ll_data_bytes(experts, tokens, hidden));
}

struct cvy_ep_ll_outputs cvy_ep_ll_outputs(int local_experts, int size, int tokens, int hidden)
{
	size_t el = (size_t)local_experts, rows = (size_t)size * (size_t)tokens;

	return (struct cvy_ep_ll_outputs){ .packed_x = el * rows * (size_t)hidden,
					   .count = el,
					   .src_info = el * rows,
					   .range = el * (size_t)size,
					   .scales = el * ((size_t)hidden / CVY_EP_LL_SCALE_GROUP) * rows };
}
