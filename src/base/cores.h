/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores that this process may use: those of its affinity mask, and of its cgroup's quota. Ranks of one host compare
 * what they were given: with the same mask they share those cores, with different masks (a launcher has bound each of
 * them) each has its own. The file needs nothing else of the library: tools compile it, too.
 */
#ifndef CVY_CORES_H
#define CVY_CORES_H

#include <stddef.h>
#include <stdint.h>

struct cvy_cores {
	uint64_t mask_id;  /* alike for processes with the same mask; 0: not known */
	uint64_t quota_id; /* alike for processes under the same quota of one host; 0: there is none */
	uint32_t cores;	   /* in the mask */
	uint32_t quota;	   /* cores' worth of time, rounded down, at least 1; 0: no bound */
};

/* Of the calling thread, which its threads to come inherit. */
void cvy_cores_get(struct cvy_cores *cores);

/*
 * The smallest quota of a process whose /proc/self/cgroup is @groups, in the hierarchies under @root (/sys/fs/cgroup),
 * of version 1 and 2. 0: none. A container may see its own groups at the root, and their names not at all.
 */
uint32_t cvy_cores_quota(const char *root, const char *groups, uint64_t *id);

#endif
