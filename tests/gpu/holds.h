/* SPDX-License-Identifier: Apache-2.0 */
/* What a process with a device holds: after many deaths and replacements it must be what it was after the first two. */
#ifndef HOLDS_H
#define HOLDS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tool.h"

struct holds {
	size_t room, addresses;
	int descriptors;
};

static inline struct holds holds_look(const struct cvy_gpu_tool *tool)
{
	struct holds h = { .room = tool->room() };
	FILE *f = fopen("/proc/self/statm", "re");
	DIR *dir = opendir("/proc/self/fd");

	if (!f || fscanf(f, "%zu", &h.addresses) != 1)
		exit(1);
	fclose(f);
	while (dir && readdir(dir))
		h.descriptors++;
	if (dir)
		closedir(dir);
	h.addresses *= (size_t)sysconf(_SC_PAGESIZE);
	return h;
}

/* The second cycle is the first that has everything once; a process that came later has nothing to compare. 0: more. */
static inline int holds_same(const struct holds *first, const struct holds *last, int rank, long cycle)
{
	const size_t slack = (size_t)64 << 20;

	if (!first->addresses || !last->addresses)
		return 1;
	printf("rank %d: cycle 2 to %ld: room %zu to %zu MiB, addresses %zu to %zu MiB, descriptors %d to %d\n", rank,
	       cycle, first->room >> 20, last->room >> 20, first->addresses >> 20, last->addresses >> 20,
	       first->descriptors, last->descriptors);
	return last->room + slack >= first->room && last->addresses <= first->addresses + slack &&
	       last->descriptors <= first->descriptors;
}

#endif
