/* SPDX-License-Identifier: Apache-2.0 */
/* Cores that a process may use: its mask, and the quotas of both versions of cgroups, in a made-up hierarchy. */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../suite.h"
#include "cores.h"

static char root[] = "/tmp/covey-cores-XXXXXX";

static void make_root(void)
{
	snprintf(root, sizeof(root), "/tmp/covey-cores-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static void remove_root(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", root);
	ck_assert_int_eq(system(command), 0);
}

static void put(const char *path, const char *text)
{
	char full[256];
	FILE *file;

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *at = strchr(full + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		mkdir(full, 0700);
		*at = '/';
	}
	file = fopen(full, "we");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
}

TEST(no_quota_is_no_bound)
{
	uint64_t id = 1;

	put("a/cpu.max", "max 100000\n");
	put("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
	put("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
	ck_assert_uint_eq(cvy_cores_quota(root, "4:cpu,cpuacct:/a\n0::/a\n", &id), 0);
	ck_assert_uint_eq(id, 0);
	ck_assert_uint_eq(cvy_cores_quota(root, "", &id), 0);
	ck_assert_uint_eq(cvy_cores_quota(root, "no lines\n:\n::\n0:", &id), 0);
}

TEST(the_smallest_quota_on_the_way_up_counts)
{
	uint64_t id, same, other;

	put("job/cpu.max", "250000 100000\n");
	put("job/rank0/cpu.max", "400000 100000\n");
	put("job/rank1/cpu.max", "120000 50000\n");
	ck_assert_uint_eq(cvy_cores_quota(root, "0::/job/rank0\n", &id), 2);
	ck_assert_uint_eq(cvy_cores_quota(root, "0::/job\n", &same), 2);
	ck_assert_uint_eq(id, same); /* both are bound by that of the job */
	ck_assert_uint_eq(cvy_cores_quota(root, "0::/job/rank1\n", &other), 2);
	ck_assert_uint_ne(id, other);
}

TEST(a_quota_below_a_core_is_one)
{
	uint64_t id;

	put("cpu.max", "20000 100000\n");
	ck_assert_uint_eq(cvy_cores_quota(root, "0::/\n", &id), 1);
	ck_assert_uint_ne(id, 0);
}

TEST(version_1_is_read_too)
{
	uint64_t id;

	put("cpu/box/cpu.cfs_quota_us", "300000\n");
	put("cpu/box/cpu.cfs_period_us", "100000\n");
	put("cpu/box/in/cpu.cfs_quota_us", "-1\n");
	put("cpu/box/in/cpu.cfs_period_us", "100000\n");
	ck_assert_uint_eq(cvy_cores_quota(root, "5:cpuset:/\n3:cpuacct,cpu:/box/in\n1:name=systemd:/\n", &id), 3);
	ck_assert_uint_eq(cvy_cores_quota(root, "5:cpuset:/box\n2:cpuacct:/box\n", &id), 0);
}

/* A container sees its own group at the root, and the name that it has outside. */
TEST(a_name_from_outside_a_container_does_no_harm)
{
	uint64_t id;

	put("cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
	put("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
	ck_assert_uint_eq(cvy_cores_quota(root, "4:cpu,cpuacct:/docker/0123456789abcdef\n", &id), 2);
}

TEST(the_mask_is_counted_and_not_the_machine)
{
	struct cvy_cores all, one, again;
	cpu_set_t set;

	cvy_cores_get(&all);
	ck_assert_uint_ge(all.cores, 1);
	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
	cvy_cores_get(&one);
	cvy_cores_get(&again);
	ck_assert_uint_eq(one.cores, 1);
	ck_assert_uint_ne(one.mask_id, 0);
	ck_assert_uint_eq(one.mask_id, again.mask_id);
	ck_assert(all.cores == 1 || all.mask_id != one.mask_id);
}

SUITE_MAIN(.name = "base/cores", .setup = make_root, .teardown = remove_root, .timeout_s = 60)
