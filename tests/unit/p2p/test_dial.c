/* SPDX-License-Identifier: Apache-2.0 */
/* A rank on another host gives several addresses: which of them are published, and that each is tried in order. */
#include "../../suite.h"
#include "rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static struct rig rig;

static void setup(void)
{
	memset(&rig, 0, sizeof(rig));
	ck_assert_int_eq(cvy_loop_new(&rig.loop), 0);
}

static void teardown(void)
{
	rig_close(&rig);
}

static void open_two(const char *interface)
{
	struct cvy_config a, b;

	rig_config(&a, 0, "one");
	rig_config(&b, 0, "two");
	a.interface = (char *)(uintptr_t)interface;
	rig_open(&rig, 0, &a);
	rig_open(&rig, 1, &b);
	cvy_mesh_identity(rig.rank[0].mesh, &rig.rank[0].id);
	cvy_mesh_identity(rig.rank[1].mesh, &rig.rank[1].id);
	cvy_mesh_expect(rig.rank[0].mesh, 1, rig.rank[1].id.inc);
}

static void dial(const char *addr)
{
	cvy_mesh_dial(rig.rank[1].mesh, 0, rig.rank[0].id.inc, addr, cvy_mesh_host(rig.rank[0].mesh));
}

/* The `tcp:` part number @at of rank 0's address. */
static void tcp_part(int at, char *text, size_t bytes)
{
	const char *part = cvy_mesh_addr(rig.rank[0].mesh);

	for (part = strstr(part, "tcp:"); part && at; at--)
		part = strstr(part + 4, "tcp:");
	ck_assert_ptr_nonnull(part);
	snprintf(text, bytes, "%.*s", (int)strcspn(part, ","), part);
}

static int b_down(struct rig *r)
{
	return r->rank[1].downs > 0;
}

TEST(all_addresses_that_are_named_are_published_in_order)
{
	char text[64], addr[256];

	open_two("127.0.0.3,127.0.0.2,127.0.0.4");
	tcp_part(0, text, sizeof(text));
	ck_assert_msg(!strncmp(text, "tcp:127.0.0.3:", 14), "%s", text);
	tcp_part(1, text, sizeof(text));
	ck_assert_msg(!strncmp(text, "tcp:127.0.0.2:", 14), "%s", text);
	tcp_part(2, text, sizeof(text));
	ck_assert_msg(!strncmp(text, "tcp:127.0.0.4:", 14), "%s", text);
	ck_assert_uint_le(strlen(cvy_mesh_addr(rig.rank[0].mesh)), CVY_ADDR_MAX);
	/* Each of them takes calls. */
	snprintf(addr, sizeof(addr), "unix:@none,%s", text);
	dial(addr);
	rig_run(&rig, rig_both_up);
}

/* A port of 127.0.0.@last at which nobody listens, for as long as the descriptor is open. */
static int nobody(int last, int *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	at.sin_addr.s_addr = htonl(0x7f000000u + (uint32_t)last);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	*port = ntohs(at.sin_port);
	return fd;
}

TEST(a_later_address_is_dialled_where_the_first_is_of_no_use)
{
	char text[64], addr[256];
	int port, fd;

	open_two("127.0.0.1");
	tcp_part(0, text, sizeof(text));
	fd = nobody(9, &port);
	/* Refused, not to be reached at all, and then the right one. */
	snprintf(addr, sizeof(addr), "unix:@none,tcp:127.0.0.9:%d,tcp:255.255.255.255:%d,%s", port, port, text);
	dial(addr);
	rig_run(&rig, rig_both_up);
	ck_assert_str_eq(cvy_mesh_link(rig.rank[1].mesh, 0)->ops->name, "tcp");
	close(fd);
}

TEST(an_address_that_swallows_everything_is_given_up)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	char text[64], addr[256];
	int port, fd, full[3];

	open_two("127.0.0.1");
	tcp_part(0, text, sizeof(text));
	fd = nobody(8, &port);
	ck_assert_int_eq(listen(fd, 0), 0);
	at.sin_addr.s_addr = htonl(0x7f000008u);
	at.sin_port = htons((uint16_t)port);
	for (int i = 0; i < 3; i++) { /* its queue: what comes then is dropped */
		full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		ck_assert(connect(full[i], (struct sockaddr *)&at, sizeof(at)) == 0 || errno == EINPROGRESS);
	}
	snprintf(addr, sizeof(addr), "unix:@none,tcp:127.0.0.8:%d,%s", port, text);
	dial(addr);
	rig_run(&rig, rig_both_up);
	for (int i = 0; i < 3; i++)
		close(full[i]);
	close(fd);
}

TEST(addresses_of_no_use_are_named_with_their_causes)
{
	char addr[256], want[2][64];
	int port, fd;

	open_two("127.0.0.1");
	fd = nobody(9, &port);
	snprintf(addr, sizeof(addr), "unix:@none,tcp:127.0.0.9:%d,tcp:127.0.0.10:%d", port, port);
	dial(addr);
	rig_run(&rig, b_down);
	for (int i = 0; i < 2; i++) {
		snprintf(want[i], sizeof(want[i]), "127.0.0.%d:%d: Connection refused", 9 + i, port);
		ck_assert_msg(strstr(rig.rank[1].cause, want[i]) != NULL, "no %s in: %s", want[i], rig.rank[1].cause);
	}
	close(fd);
}

/* Somebody else is at the first address, and hangs up: the next cycle begins with the second. */
TEST(an_address_where_somebody_else_is_comes_last_in_the_next_cycle)
{
	char text[64], addr[256];
	int port, fd;

	open_two("127.0.0.1");
	tcp_part(0, text, sizeof(text));
	fd = nobody(7, &port);
	ck_assert_int_eq(listen(fd, 8), 0);
	snprintf(addr, sizeof(addr), "unix:@none,tcp:127.0.0.7:%d,%s", port, text);
	dial(addr);
	while (1) {
		int stranger = accept(fd, NULL, NULL);

		if (stranger < 0 && errno == EAGAIN) {
			rig.until = b_down;
			rig.deadline_ns = cvy_now_ns() + 1000000;
			rig_turn(&rig);
			continue;
		}
		ck_assert_int_ge(stranger, 0);
		close(stranger);
		break;
	}
	rig_run(&rig, b_down);
	dial(addr);
	rig_run(&rig, rig_both_up);
	close(fd);
}

SUITE_MAIN(.name = "p2p/dial", .setup = setup, .teardown = teardown, .timeout_s = 60)
