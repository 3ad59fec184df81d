/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs transport works out from text, files and numbers: regions of a window, the name of a device, what a
 * machine lacks, addresses, and the timeout that an adapter is given.
 */
#ifdef CVY_RDMA
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../suite.h"
#include "verbs.h"

TEST_LOOP(regions_cover_the_window_once, 0, 4)
{
	static const size_t windows[] = { 1 << 20, 16 << 20, (size_t)4 << 30, (size_t)4 << 40 };
	struct cvy_layout l = cvy_layout(windows[_i], 16384);
	size_t end = 0;
	int n = cvy_region_count(&l);

	ck_assert_int_le(n, CVY_RDMA_REGIONS);
	for (int i = 0; i < n; i++) {
		struct cvy_verbs_region r = cvy_region_get(&l, i);

		ck_assert_uint_eq(r.at, end);
		ck_assert_uint_gt(r.bytes, 0);
		ck_assert_int_eq(cvy_region_of(&l, r.at), i);
		ck_assert_int_eq(cvy_region_of(&l, r.at + r.bytes - 1), i);
		end = r.at + r.bytes;
	}
	ck_assert_uint_eq(end, l.window_bytes);
}

TEST(a_device_is_named_with_port_and_gid)
{
	static const char *const wrong[] = { "mlx5_0:",	   "mlx5_0:0",	   "mlx5_0:256", "mlx5_0:1/",
					     "mlx5_0:1/x", "mlx5_0:1/-1",  ":1",	 "../x",
					     "a/b",	   "mlx5_0:1/256", "mlx5_0: 1" };
	struct cvy_rdma_wish w;

	ck_assert_int_eq(cvy_rdma_parse("", &w), 0);
	ck_assert(!w.name[0] && !w.port && w.gid == -1);
	ck_assert_int_eq(cvy_rdma_parse("mlx5_0", &w), 0);
	ck_assert(!strcmp(w.name, "mlx5_0") && !w.port && w.gid == -1);
	ck_assert_int_eq(cvy_rdma_parse("mlx5_0:2/3", &w), 0);
	ck_assert(!strcmp(w.name, "mlx5_0") && w.port == 2 && w.gid == 3);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		ck_assert_msg(cvy_rdma_parse(wrong[i], &w) == COVEY_ERR_INVAL, "\"%s\" was taken", wrong[i]);
}

static void put_file(const char *root, const char *path, const char *text)
{
	char name[200];
	FILE *file;

	for (const char *c = path; (c = strchr(c, '/')); c++) {
		snprintf(name, sizeof(name), "%s/%.*s", root, (int)(c - path), path);
		mkdir(name, 0700);
	}
	snprintf(name, sizeof(name), "%s/%s", root, path);
	file = fopen(name, "w");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
}

static int look(const char *root, const char *device, char *why, size_t bytes)
{
	struct cvy_rdma_wish w;

	why[0] = '\0';
	ck_assert_int_eq(cvy_rdma_parse(device, &w), 0);
	return cvy_rdma_look(root, &w, why, bytes);
}

TEST(what_is_missing_is_said)
{
	char root[] = "/tmp/covey-verbs-XXXXXX", why[CVY_CAUSE], command[64];
	uint8_t gid[16];

	ck_assert_ptr_nonnull(mkdtemp(root));
	ck_assert_int_eq(look(root, "", why, sizeof(why)), COVEY_ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(why, "no RDMA device on this machine"));
	put_file(root, "mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:1234:56ff:fe78:9abc\n");
	put_file(root, "mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:000b\n");
	put_file(root, "mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
	ck_assert_int_eq(look(root, "", why, sizeof(why)), 0);
	ck_assert_int_eq(look(root, "mlx5_0:1/1", why, sizeof(why)), 0);
	ck_assert_int_eq(look(root, "mlx5_7", why, sizeof(why)), COVEY_ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(why, "no RDMA device mlx5_7; there are: mlx5_0"));
	ck_assert_int_eq(look(root, "mlx5_0:2", why, sizeof(why)), COVEY_ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(why, "has no port 2; its ports: 1"));
	ck_assert_int_eq(look(root, "mlx5_0:1/2", why, sizeof(why)), COVEY_ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(why, "GID 2"));
	ck_assert_int_eq(look(root, "mlx5_0:1/9", why, sizeof(why)), COVEY_ERR_UNSUPPORTED);
	ck_assert_int_eq(cvy_rdma_gid(root, "mlx5_0", 1, 1, gid), 1);
	ck_assert_int_eq(gid[15], 11);
	snprintf(command, sizeof(command), "rm -r %s", root);
	ck_assert_int_eq(system(command), 0);
}

TEST(addresses_survive_the_welcome)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a4d000b) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = { { { 0x20, 1, 0xd, 0xb8, [15] = 1 } } } };
	struct sockaddr_storage back;
	uint8_t ip[16];

	cvy_rdma_map((struct sockaddr *)&v4, ip);
	cvy_rdma_unmap(ip, 77, &back);
	ck_assert_int_eq(back.ss_family, AF_INET);
	ck_assert_uint_eq(((struct sockaddr_in *)&back)->sin_addr.s_addr, v4.sin_addr.s_addr);
	ck_assert_int_eq(ntohs(((struct sockaddr_in *)&back)->sin_port), 77);
	cvy_rdma_map((struct sockaddr *)&v6, ip);
	cvy_rdma_unmap(ip, 78, &back);
	ck_assert_int_eq(back.ss_family, AF_INET6);
	ck_assert_int_eq(memcmp(&((struct sockaddr_in6 *)&back)->sin6_addr, &v6.sin6_addr, 16), 0);
}

TEST(a_peer_is_given_up_within_the_bound)
{
	ck_assert_int_eq(cvy_rdma_ack_timeout(500), 14);
	for (int ms = 8; ms <= 60000; ms += 7) {
		int e = cvy_rdma_ack_timeout(ms);
		double all = (CVY_RDMA_RETRY + 1) * 4.096e-3 * (1 << e);

		ck_assert_int_ge(e, 8);
		ck_assert_int_le(e, 21);
		ck_assert_msg(all <= ms && (e == 21 || 2 * all > ms), "%d ms: %.1f ms", ms, all);
	}
}

SUITE_MAIN(.name = "p2p/verbs_device")
#else
#include <stdio.h>

int main(void)
{
	printf("no verbs transport in this build\n");
	return 77;
}
#endif
