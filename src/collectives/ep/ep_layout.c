/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and offsets of expert-parallel buffers. All are sized by max_ranks once: a joiner that lays out later, for a
 * larger group, must arrive at the same offsets as the founders.
 */
#include "ep_layout.h"

#include "covey_ep.h"
#include "ep_code.h"
#include "size.h"

static const struct cvy_ep_pack packs[] = {
	[COVEY_EP_LL] = { .once = 0, .beside = 0, .scale_by_row = 0 },
	[COVEY_EP_COMPACT] = { .once = 1, .beside = 1, .scale_by_row = 1 },
	[COVEY_EP_FLAT] = { .flat = 1 },
	[COVEY_EP_WIN] = { .close = 1, .scale_by_row = 1, .triplets = 1 },
	[COVEY_EP_HT] = { .once = 1, .beside = 1, .scale_by_row = 1, .hops = 1 },
};

const struct cvy_ep_pack *cvy_ep_pack_of(int preset)
{
	return preset < 0 || preset >= (int)(sizeof(packs) / sizeof(packs[0])) ? NULL : &packs[preset];
}

int64_t cvy_ep_rows_kept(const struct cvy_ep_shape *s, int ranks, int el)
{
	const int64_t of_all = (int64_t)ranks * s->tokens;

	return cvy_ep_pack_of(s->preset)->close ? of_all * (s->top_k < el ? s->top_k : el) : of_all;
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

size_t cvy_ep_back_bytes(const struct cvy_ep_shape *s)
{
	return cvy_ep_code_row(cvy_ep_code_of(s->back), (size_t)s->hidden);
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
	return cvy_round_up(cvy_ep_combine_rows_at(s) + cvy_ep_combine_rows(s) * cvy_ep_back_bytes(s), CVY_EP_ALIGN);
}

void cvy_ep_blocks(int experts, int size, int *owner)
{
	int block = (experts + size - 1) / size;

	for (int e = 0; e < experts; e++)
		owner[e] = e / block;
}

void cvy_ep_spread(const struct cvy_ep_shape *s, int size, int *owner)
{
	int places = cvy_ep_places(s), apart = size < places ? 1 : size / places;

	cvy_ep_blocks(s->experts, size, owner);
	for (int e = s->experts - 1; e >= 0; e--) { /* in place, from the end */
		int first = owner[e];

		for (int p = 0; p < places; p++)
			owner[e * places + p] = p < size ? (first + p * apart) % size : -1;
	}
}

int cvy_ep_locals(int n, const int *owner, int rank, int *local)
{
	int found = 0;

	for (int v = 0; v < n; v++)
		local[v] = owner[v] == rank ? found++ : -1;
	return found;
}
