/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is on whose host, as the library finds it: same boot, same namespaces, same COVEY_HOST; or COVEY_TEST_TOPOLOGY. It
 * decides the paths of preset HT on devices, and so the order of its sums.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "perf.h"

#define NAME 256

static unsigned long inode(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : (unsigned long)st.st_ino;
}

static void own_name(int rank, char name[NAME])
{
	const char *host = getenv("COVEY_HOST"), *topology = getenv("COVEY_TEST_TOPOLOGY");
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	char boot[40] = "";
	int hosts, ranks;

	if (file && !fgets(boot, sizeof(boot), file))
		boot[0] = '\0';
	if (file)
		fclose(file);
	if (topology && sscanf(topology, "%dx%d", &hosts, &ranks) == 2 && ranks > 0) /* the library has checked it */
		snprintf(name, NAME, "%d", rank / ranks);
	else
		snprintf(name, NAME, "%s %lu %lu %s", boot, inode("/proc/self/ns/net"), inode("/proc/self/ns/pid"),
			 host ? host : "");
}

int perf_hosts(struct perf_job *job)
{
	char own[NAME] = "", *all = calloc((size_t)job->size, NAME);
	struct covey_result result;
	int err;

	if (!all)
		return perf_fail(job, "hosts", COVEY_ERR_NOMEM);
	own_name(job->rank, own);
	err = covey_allgather(own, all, NAME, COVEY_UINT8, job->group, NULL, &result);
	for (int r = 0; r < job->size && r < PERF_HOST_RANKS; r++) {
		int first = 0;

		while (memcmp(all + first * NAME, all + r * NAME, NAME) != 0)
			first++;
		job->host[r] = (uint8_t)first;
	}
	free(all);
	return err ? perf_fail(job, "hosts", err) : 0;
}
