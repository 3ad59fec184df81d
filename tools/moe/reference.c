/* SPDX-License-Identifier: Apache-2.0 */
/* The plain form of dispatch, experts and combine: see reference.h. Slow and obvious on purpose. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

float moe_from_bf16(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

uint16_t moe_to_bf16(float f)
{
	uint32_t bits, low;

	memcpy(&bits, &f, sizeof(bits));
	if (f != f)
		return (uint16_t)(bits >> 16 | 0x40);
	low = bits & 0xffff;
	bits >>= 16;
	if (low > 0x8000 || (low == 0x8000 && bits % 2))
		bits++;
	return (uint16_t)bits;
}

/* How many times one source named expert e before entry @at of its routing. */
static int named_before(const struct moe_batch *b, size_t at, int e)
{
	int n = 0;

	for (size_t i = 0; i < at; i++)
		n += b->experts[i] == e;
	return n;
}

/* Of one source at most `tokens` rows are sent to one expert; only a repeated id in one token can ask for more. */
static int entry_counts(const struct moe_shape *s, const struct moe_batch *b, size_t at)
{
	int e = b->experts[at];

	return e >= 0 && e < s->experts && named_before(b, at, e) < s->tokens;
}

void moe_ref_dispatch(const struct moe_shape *s, const struct moe_batch *batch, const int *owner, int rank,
		      const struct moe_packed *to)
{
	size_t per_expert = (size_t)s->size * (size_t)s->tokens, hidden = (size_t)s->hidden, top_k = (size_t)s->top_k;
	size_t le = 0;

	for (int e = 0; e < s->experts; e++) {
		size_t row = 0;

		if (owner[e] != rank)
			continue;
		for (int src = 0; src < s->size; src++) {
			const struct moe_batch *b = &batch[src];
			size_t first = row, entries = b->experts ? (size_t)b->tokens * top_k : 0;

			for (size_t i = 0; i < entries; i++) {
				if (b->experts[i] != e || !entry_counts(s, b, i))
					continue;
				if (to->packed_x)
					memcpy(to->packed_x + (le * per_expert + row) * hidden,
					       b->x + i / top_k * hidden, 2 * hidden);
				if (to->src_info)
					to->src_info[le * per_expert + row] = (int32_t)(i / top_k);
				if (to->flat) {
					to->flat[2 * (le * per_expert + row)] = src;
					to->flat[2 * (le * per_expert + row) + 1] = (int32_t)i;
				}
				row++;
			}
			to->range[le * (size_t)s->size + (size_t)src] =
				(int64_t)((uint64_t)(row - first) << 32 | first);
		}
		to->count[le++] = (int32_t)row;
	}
}

static int names(const struct moe_shape *s, const struct moe_batch *b, size_t token, int e)
{
	for (size_t i = token * (size_t)s->top_k; i < (token + 1) * (size_t)s->top_k; i++)
		if (b->experts[i] == e)
			return 1;
	return 0;
}

void moe_ref_dispatch_once(const struct moe_shape *s, const struct moe_batch *batch, const int *owner, int rank,
			   const struct moe_packed *to)
{
	size_t row = 0;

	for (int src = 0; src < s->size; src++) {
		const struct moe_batch *b = &batch[src];
		size_t first = row;

		for (size_t t = 0; b->experts && t < (size_t)b->tokens; t++) {
			int comes = 0, le = 0;

			for (int e = 0; e < s->experts; e++) {
				if (owner[e] != rank)
					continue;
				to->count[le] += names(s, b, t, e);
				comes |= names(s, b, t, e);
				le++;
			}
			row += (size_t)comes;
		}
		to->range[src] = (int64_t)((uint64_t)(row - first) << 32 | first);
	}
}

void moe_ref_combine(const struct moe_shape *s, const struct moe_batch *b, const int *owner, const unsigned char *here,
		     int renormalise, moe_expert_fn expert, void *ctx, uint16_t *out)
{
	size_t hidden = (size_t)s->hidden;
	uint16_t *y = malloc(2 * hidden);
	float *sum = malloc(sizeof(*sum) * hidden);

	if (!y || !sum)
		abort(); /* a checker that cannot check must not report success */
	for (int t = 0; t < b->tokens; t++) {
		float all = 0, part = 0, scale = 1;

		memset(sum, 0, sizeof(*sum) * hidden);
		for (size_t i = (size_t)t * (size_t)s->top_k; i < ((size_t)t + 1) * (size_t)s->top_k; i++) {
			if (!entry_counts(s, b, i))
				continue;
			all += b->weights[i];
			if (!here[owner[b->experts[i]]])
				continue;
			part += b->weights[i];
			expert(ctx, b->experts[i], b->x + (size_t)t * hidden, y);
			for (size_t h = 0; h < hidden; h++)
				sum[h] += b->weights[i] * moe_from_bf16(y[h]);
		}
		if (renormalise && part != all && part != 0)
			scale = all / part;
		for (size_t h = 0; h < hidden; h++)
			out[(size_t)t * hidden + h] = moe_to_bf16(sum[h] * scale);
	}
	free(y);
	free(sum);
}
