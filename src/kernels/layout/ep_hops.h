/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hops: a token crosses to another host once, to the rank there that passes it on, the *forwarder*. Who forwards
 * what follows from the ranks' hosts and from the contributors alone. So ranks of one attempt agree on all paths
 * without a word, and another attempt, by other contributors, has other paths.
 *
 * A dispatch takes these paths from source to target, a combine the same paths back.
 */
#ifndef CVY_EP_HOPS_H
#define CVY_EP_HOPS_H

#include "layout.h"

/* Of one attempt. */
struct cvy_ep_hosts {
	uint32_t living;	    /* the contributors */
	uint32_t of[CVY_GPU_RANKS]; /* those of each contributor's host, itself included */
};

CVY_GPU_BOTH static inline int cvy_ep_members(uint32_t mask)
{
#ifdef __CUDA_ARCH__
	return __popc(mask);
#else
	return __builtin_popcount(mask);
#endif
}

CVY_GPU_BOTH static inline int cvy_ep_lives(const struct cvy_ep_hosts *t, int rank)
{
	return (int)(t->living >> rank & 1);
}

/* Of two contributors. */
CVY_GPU_BOTH static inline int cvy_ep_of_one_host(const struct cvy_ep_hosts *t, int a, int b)
{
	return (int)(t->of[a] >> b & 1);
}

/* What of[@rank] is to be. @host: equal numbers, one host. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_of_host(const uint8_t host[CVY_GPU_RANKS], uint32_t living, int rank)
{
	uint32_t mask = 0;

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (host[r] == host[rank])
			mask |= 1u << r;
	return living >> rank & 1 ? mask & living : 0;
}

/* The contributors of @rank's host, without @rank. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_neighbours(const struct cvy_ep_hosts *t, int rank)
{
	return t->of[rank] & ~(1u << rank);
}

/* Ascending, among the contributors of its host. */
CVY_GPU_BOTH static inline int cvy_ep_index(const struct cvy_ep_hosts *t, int rank)
{
	return cvy_ep_members(t->of[rank] & ((1u << rank) - 1));
}

/* Member @index of @mask, ascending, which has so many. */
CVY_GPU_BOTH static inline int cvy_ep_member(uint32_t mask, int index)
{
	int rank = 0;

	for (; index; index--)
		mask &= mask - 1;
	while (!(mask >> rank & 1))
		rank++;
	return rank;
}

/*
 * The forwarder of @source on @target's host, which is another one. Of the n contributors there it is the one with the
 * index of @source on its own host, modulo n, ascending.
 */
CVY_GPU_BOTH static inline int cvy_ep_forwarder(const struct cvy_ep_hosts *t, int source, int target)
{
	const uint32_t there = t->of[target];

	return cvy_ep_member(there, cvy_ep_index(t, source) % cvy_ep_members(there));
}

/* Is @rank the forwarder of @source on its host? Both live. */
CVY_GPU_BOTH static inline int cvy_ep_forwards(const struct cvy_ep_hosts *t, int rank, int source)
{
	return !cvy_ep_of_one_host(t, rank, source) &&
	       cvy_ep_index(t, source) % cvy_ep_members(t->of[rank]) == cvy_ep_index(t, rank);
}

/* The rank that stores rows of @source in memory of @target: @source, or its forwarder. Both live. */
CVY_GPU_BOTH static inline int cvy_ep_stored_by(const struct cvy_ep_hosts *t, int source, int target)
{
	if (cvy_ep_of_one_host(t, source, target) || cvy_ep_forwards(t, target, source))
		return source;
	return cvy_ep_forwarder(t, source, target);
}

/* Far sources whose rows @rank passes on to its neighbours. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_passes_on(const struct cvy_ep_hosts *t, int rank)
{
	uint32_t mask = 0;

	for (int s = 0; s < CVY_GPU_RANKS && cvy_ep_lives(t, rank); s++)
		if (cvy_ep_lives(t, s) && cvy_ep_forwards(t, rank, s))
			mask |= 1u << s;
	return mask;
}

/* Hop one: ranks in whose memory @rank stores its own rows. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_gives(const struct cvy_ep_hosts *t, int rank)
{
	uint32_t mask = cvy_ep_neighbours(t, rank);

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (cvy_ep_lives(t, r) && cvy_ep_forwards(t, r, rank))
			mask |= 1u << r;
	return mask;
}

/*
 * Ranks whose word @rank waits for in each step, as they wait for its word: those that store here, and those whose
 * memory it stores in. On hosts of different sizes only one of the two may be true.
 */
CVY_GPU_BOTH static inline uint32_t cvy_ep_hears(const struct cvy_ep_hosts *t, int rank)
{
	return cvy_ep_gives(t, rank) | cvy_ep_passes_on(t, rank);
}

/*
 * A rank stores blocks in the memory of another: the first is its own, then each source that it passes on
 * there has one, ascending. This is the number of @source's, which @rank passes on.
 */
CVY_GPU_BOTH static inline int cvy_ep_block(const struct cvy_ep_hosts *t, int rank, int source)
{
	return 1 + cvy_ep_members(cvy_ep_passes_on(t, rank) & ((1u << source) - 1));
}

/* Blocks of @rank in memory of a neighbour. */
CVY_GPU_BOTH static inline int cvy_ep_blocks_of(const struct cvy_ep_hosts *t, int rank)
{
	return cvy_ep_neighbours(t, rank) ? 1 + cvy_ep_members(cvy_ep_passes_on(t, rank)) : 1;
}

#endif
