/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on sets of ranks (struct covey_mask). */
#ifndef CVY_MASK_H
#define CVY_MASK_H

#include <string.h>

#include "covey.h"

#define CVY_MASK_WORDS (COVEY_MAX_RANKS / 64)

static inline void cvy_mask_add(struct covey_mask *m, int rank)
{
	m->word[rank >> 6] |= 1ull << (rank & 63);
}

static inline void cvy_mask_del(struct covey_mask *m, int rank)
{
	m->word[rank >> 6] &= ~(1ull << (rank & 63));
}

static inline void cvy_mask_or(struct covey_mask *m, const struct covey_mask *other)
{
	for (int i = 0; i < CVY_MASK_WORDS; i++)
		m->word[i] |= other->word[i];
}

static inline void cvy_mask_sub(struct covey_mask *m, const struct covey_mask *other)
{
	for (int i = 0; i < CVY_MASK_WORDS; i++)
		m->word[i] &= ~other->word[i];
}

static inline int cvy_mask_empty(const struct covey_mask *m)
{
	for (int i = 0; i < CVY_MASK_WORDS; i++)
		if (m->word[i])
			return 0;
	return 1;
}

static inline int cvy_mask_equal(const struct covey_mask *a, const struct covey_mask *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* 1 if every rank of @part is in @whole */
static inline int cvy_mask_within(const struct covey_mask *part, const struct covey_mask *whole)
{
	for (int i = 0; i < CVY_MASK_WORDS; i++)
		if (part->word[i] & ~whole->word[i])
			return 0;
	return 1;
}

/* the first rank >= @from, or -1 */
static inline int cvy_mask_next(const struct covey_mask *m, int from)
{
	int i = from >> 6;
	uint64_t w;

	if (from >= COVEY_MAX_RANKS)
		return -1;
	w = m->word[i] & (~0ull << (from & 63));
	while (!w) {
		if (++i == CVY_MASK_WORDS)
			return -1;
		w = m->word[i];
	}
	return i * 64 + __builtin_ctzll(w);
}

#define CVY_MASK_EACH(rank, mask) \
	for (int rank = cvy_mask_next(mask, 0); rank >= 0; rank = cvy_mask_next(mask, rank + 1))

/* "0,2-4" into text ("none": no rank; "..": the rest did not fit); returns text */
char *cvy_mask_text(const struct covey_mask *m, char *text, size_t bytes);

#endif
