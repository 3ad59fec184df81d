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
	const uint8_t *host; /* [CVY_GPU_RANKS] of each rank: equal numbers, one host */
	uint32_t living;     /* the contributors */
};

CVY_GPU_BOTH static inline int cvy_ep_lives(const struct cvy_ep_hosts *t, int rank)
{
	return (int)(t->living >> rank & 1);
}

/* The contributors of one host. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_of_host(const struct cvy_ep_hosts *t, int host)
{
	uint32_t mask = 0;

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (cvy_ep_lives(t, r) && t->host[r] == host)
			mask |= 1u << r;
	return mask;
}

/* The contributors of @rank's host, without @rank. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_neighbours(const struct cvy_ep_hosts *t, int rank)
{
	return cvy_ep_of_host(t, t->host[rank]) & ~(1u << rank);
}

CVY_GPU_BOTH static inline int cvy_ep_members(uint32_t mask)
{
	int n = 0;

	for (; mask; mask &= mask - 1)
		n++;
	return n;
}

/*
 * The forwarder of @source on another host. Of the n contributors there it is the one with the index of @source on its
 * own host, modulo n, ascending. -1: nobody lives there.
 */
CVY_GPU_BOTH static inline int cvy_ep_forwarder(const struct cvy_ep_hosts *t, int source, int host)
{
	const uint32_t there = cvy_ep_of_host(t, host);
	const uint32_t before = cvy_ep_of_host(t, t->host[source]) & ((1u << source) - 1);
	int skip;

	if (!there)
		return -1;
	skip = cvy_ep_members(before) % cvy_ep_members(there);
	for (int r = 0;; r++)
		if ((there >> r & 1) && skip-- == 0)
			return r;
}

/* The rank that stores rows of @source in memory of @target: @source, or its forwarder. Both live. */
CVY_GPU_BOTH static inline int cvy_ep_stored_by(const struct cvy_ep_hosts *t, int source, int target)
{
	int forwarder;

	if (t->host[source] == t->host[target])
		return source;
	forwarder = cvy_ep_forwarder(t, source, t->host[target]);
	return forwarder == target ? source : forwarder;
}

/* Far sources whose rows @rank passes on to its neighbours. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_passes_on(const struct cvy_ep_hosts *t, int rank)
{
	uint32_t mask = 0;

	for (int s = 0; s < CVY_GPU_RANKS; s++)
		if (cvy_ep_lives(t, s) && t->host[s] != t->host[rank] && cvy_ep_forwarder(t, s, t->host[rank]) == rank)
			mask |= 1u << s;
	return mask;
}

/* Hop one: ranks in whose memory @rank stores its own rows. */
CVY_GPU_BOTH static inline uint32_t cvy_ep_gives(const struct cvy_ep_hosts *t, int rank)
{
	uint32_t mask = cvy_ep_neighbours(t, rank);

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (cvy_ep_lives(t, r) && t->host[r] != t->host[rank])
			mask |= 1u << cvy_ep_forwarder(t, rank, t->host[r]);
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

#endif
