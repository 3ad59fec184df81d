/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores that this process may use: those of its affinity mask, and of its cgroup's quota. Ranks of one host compare
 * them. With the same mask they share those cores; with different masks, set by a launcher, each has its own. The file
 * needs no other part of the library: tools compile it, too.
 */
#ifndef CVY_CORES_H
#define CVY_CORES_H

#include <stddef.h>
#include <stdint.h>

struct cvy_cores {
	uint64_t mask_id;  /* the same for processes with the same mask; 0: not known */
	uint64_t quota_id; /* the same for processes under one quota of one host; 0: there is none */
	uint32_t cores;	   /* in the mask */
	uint32_t quota;	   /* cores' worth of time, rounded down, at least 1; 0: no bound */
};

/* Those of the calling thread, which later threads inherit. */
void cvy_cores_get(struct cvy_cores *cores);

/*
 * The smallest quota of a process whose /proc/self/cgroup is @groups, in the hierarchies under @root (/sys/fs/cgroup),
 * of version 1 and 2. 0: none. A container may see its own groups at the root, without their names.
 */
uint32_t cvy_cores_quota(const char *root, const char *groups, uint64_t *id);

#endif
