/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends what to whom in operations of two levels (levels.cuh), by contributors and the width of a host alone: so all
 * ranks agree without a word. Host and device compile it. Builds for more than 32 ranks have the flat form alone.
 */
#ifndef CVY_LEVELS_H
#define CVY_LEVELS_H

#include "layout.h"

struct cvy_levels {
	uint32_t near; /* contributors of this rank's host */
	uint32_t like; /* with the index of this rank on their hosts: one of each, ascending */
	int hosts;     /* 0: the flat form */
	int host;      /* this rank's, among those */
};

CVY_GPU_BOTH static inline int cvy_levels_count(uint32_t ranks)
{
	int n = 0;

	for (; ranks; ranks &= ranks - 1)
		n++;
	return n;
}

/* Rows of warps that blocks of each host have of a tile; 0: the flat form. */
CVY_GPU_BOTH static inline int cvy_levels_share(int rows, int threads, int hosts)
{
	return rows * (threads / 32) / hosts;
}

#if CVY_GPU_IS_WIDE
CVY_GPU_BOTH static inline struct cvy_levels cvy_levels_of(cvy_ranks mask, int rank, int width)
{
	const struct cvy_levels flat = { 0, 0, 0, 0 };

	(void)mask;
	(void)rank;
	(void)width;
	return flat;
}
#else
/* The lowest of @ranks but @skip lower ones; as a mask. */
CVY_GPU_BOTH static inline uint32_t cvy_levels_nth(uint32_t ranks, int skip)
{
	while (skip--)
		ranks &= ranks - 1;
	return ranks & (0 - ranks);
}

/* Contributors of host @host. */
CVY_GPU_BOTH static inline uint32_t cvy_levels_host(uint32_t mask, int host, int width)
{
	return mask & (((uint32_t)1 << width) - 1) << host * width;
}

/* The flat form is for one host, hosts of one contributor, and hosts that do not have as many each. */
CVY_GPU_BOTH static inline struct cvy_levels cvy_levels_of(uint32_t mask, int rank, int width)
{
	struct cvy_levels l = { 0, 0, 0, 0 };
	int index, each;

	if (width < 2 || width > CVY_GPU_RANKS / 2)
		return l;
	l.near = cvy_levels_host(mask, rank / width, width);
	index = cvy_levels_count(l.near & (((uint32_t)1 << rank) - 1));
	each = cvy_levels_count(l.near);
	for (int h = 0; h * width < CVY_GPU_RANKS; h++) {
		const uint32_t here = cvy_levels_host(mask, h, width);

		if (here && cvy_levels_count(here) != each) {
			l.hosts = 0;
			return l;
		}
		if (h == rank / width)
			l.host = l.hosts;
		if (here)
			l.hosts++;
		l.like |= cvy_levels_nth(here, index);
	}
	if (l.hosts < 2 || each < 2)
		l.hosts = 0;
	return l;
}
#endif

#endif
