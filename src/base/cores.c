/* SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"
#include "hash.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define CPUS_FIRST 1024
#define CPUS_MOST (1 << 20)

static uint64_t hash(const uint8_t *bytes, size_t n)
{
	uint64_t h = CVY_HASH_BEGIN;

	while (n && !bytes[n - 1]) /* a longer mask of the same cores must give the same id */
		n--;
	for (size_t i = 0; i < n; i++)
		h = cvy_hash(h, bytes[i]);
	return h ? h : 1;
}

/* The kernel refuses a mask that is shorter than its own. */
static void get_mask(struct cvy_cores *cores)
{
	for (int cpus = CPUS_FIRST; cpus <= CPUS_MOST; cpus *= 2) {
		size_t bytes = CPU_ALLOC_SIZE(cpus);
		cpu_set_t *set = CPU_ALLOC(cpus);
		int failed;

		if (!set)
			return;
		CPU_ZERO_S(bytes, set);
		failed = sched_getaffinity(0, bytes, set) ? errno : 0;
		if (!failed) {
			cores->cores = (uint32_t)CPU_COUNT_S(bytes, set);
			cores->mask_id = hash((const uint8_t *)set, bytes);
		}
		CPU_FREE(set);
		if (failed != EINVAL)
			return;
	}
}

/* Reads quota and period of a cgroup; 0: it has a bound. */
static int read_quota(const char *dir, int version, long long *quota, long long *period)
{
	const char *names[2] = { version == 2 ? "cpu.max" : "cpu.cfs_quota_us", "cpu.cfs_period_us" };
	long long *to[2] = { quota, period };
	char path[PATH_BYTES + 32];
	int found = 1;

	for (int i = 0; i < (version == 2 ? 1 : 2) && found; i++) {
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		file = fopen(path, "re");
		found = file && (version == 2 ? fscanf(file, "%lld %lld", quota, period) == 2 /* or "max" */
					      : fscanf(file, "%lld", to[i]) == 1);
		if (file)
			fclose(file);
	}
	return found && *quota > 0 && *period > 0 ? 0 : -1;
}

struct least {
	long long quota, period;
	uint64_t id;
};

static void look(const char *dir, int version, struct least *least)
{
	long long quota, period;
	struct stat st;

	if (read_quota(dir, version, &quota, &period) || stat(dir, &st))
		return;
	if (least->id && (double)quota / (double)period >= (double)least->quota / (double)least->period)
		return;
	least->quota = quota;
	least->period = period;
	least->id = ((uint64_t)st.st_dev << 48 ^ (uint64_t)st.st_ino) | 1ull << 63;
}

/* Looks at a cgroup and all above it, up to the mount. */
static void climb(const char *mount, const char *group, int version, struct least *least)
{
	char dir[PATH_BYTES];
	size_t root = strlen(mount);
	char *slash;

	if (snprintf(dir, sizeof(dir), "%s%s", mount, group) >= (int)sizeof(dir))
		return;
	do {
		look(dir, version, least);
		slash = strrchr(dir + root, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
}

/* Is @word one of the names in "cpu,cpuacct"? */
static int names(const char *list, size_t n, const char *word)
{
	size_t w = strlen(word);

	for (size_t at = 0; at + w <= n; at++)
		if (!strncmp(list + at, word, w) && (!at || list[at - 1] == ',') &&
		    (at + w == n || list[at + w] == ','))
			return 1;
	return 0;
}

/* A line is NUMBER:CONTROLLERS:PATH; without controllers it is of version 2. */
static void look_at_line(const char *root, char *line, struct least *least)
{
	char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL, mount[PATH_BYTES];

	if (!group)
		return;
	list++;
	*group++ = '\0';
	if (!*list) {
		climb(root, group, 2, least);
	} else if (names(list, strlen(list), "cpu")) {
		snprintf(mount, sizeof(mount), "%s/%s", root, list);
		climb(mount, group, 1, least);
		snprintf(mount, sizeof(mount), "%s/cpu", root);
		climb(mount, group, 1, least);
	}
}

uint32_t cvy_cores_quota(const char *root, const char *groups, uint64_t *id)
{
	struct least least = { 0 };
	char *copy = strdup(groups), *save = NULL;

	*id = 0;
	if (!copy)
		return 0;
	for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		look_at_line(root, line, &least);
	free(copy);
	if (!least.id)
		return 0;
	*id = least.id;
	return least.quota < least.period ? 1 : (uint32_t)(least.quota / least.period);
}

void cvy_cores_get(struct cvy_cores *cores)
{
	char text[PATH_BYTES * 2];
	FILE *file = fopen("/proc/self/cgroup", "re");
	size_t n;

	memset(cores, 0, sizeof(*cores));
	cores->cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	get_mask(cores);
	if (!file)
		return;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = '\0';
	cores->quota = cvy_cores_quota("/sys/fs/cgroup", text, &cores->quota_id);
}
