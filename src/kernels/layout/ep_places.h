/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of experts: the ranks that hold them. Place p of expert e has the number e * places + p; code that knows
 * experts by number knows places by it. Hosts and devices compile the one rule by which tokens find their place, so
 * ranks that agree on the owners and on who lives agree on all places without a word.
 */
#ifndef CVY_EP_PLACES_H
#define CVY_EP_PLACES_H

#include "layout.h"

/* The table of owners: [experts][places] ranks, as ints or as bytes. A rank has an expert once at most. */
struct cvy_ep_places {
	const int *owner;	    /* -1: no place */
	int places;		    /* of an expert, 1 or more */
	const cvy_rank_small *near; /* instead of owner, CVY_EP_NOBODY: no place */
};

#define CVY_EP_NOBODY ((cvy_rank_small)~0u)

CVY_GPU_BOTH static inline int cvy_ep_owner_of(const struct cvy_ep_places *t, int place)
{
	if (!t->near)
		return t->owner[place];
	return t->near[place] == CVY_EP_NOBODY ? -1 : t->near[place];
}

/* @living: a bit for each rank that the table names, in words of 64. */
CVY_GPU_BOTH static inline int cvy_ep_place_lives(int owner, const uint64_t *living)
{
	return owner >= 0 && (living[owner / 64] >> owner % 64 & 1);
}

/*
 * The place that takes the tokens of rank @source for @expert, as its number. Of the n places whose owners live, it is
 * the one with index @source modulo n, ascending. -1: none lives.
 */
CVY_GPU_BOTH static inline int cvy_ep_place_of(const struct cvy_ep_places *t, int expert, int source,
					       const uint64_t *living)
{
	const int first = expert * t->places;
	int n = 0, skip;

	for (int p = 0; p < t->places; p++)
		n += cvy_ep_place_lives(cvy_ep_owner_of(t, first + p), living);
	if (!n)
		return -1;
	skip = source % n;
	for (int p = 0; p < t->places; p++)
		if (cvy_ep_place_lives(cvy_ep_owner_of(t, first + p), living) && skip-- == 0)
			return first + p;
	return -1;
}

#endif
