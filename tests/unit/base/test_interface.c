/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a host's addresses, and what COVEY_INTERFACE takes and leaves out, on hosts that are made up. */
#include <arpa/inet.h>
#include <check.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "interface.h"

#define UP (IFF_UP | IFF_RUNNING)
#define DOWN IFF_UP /* no carrier */
#define LO (IFF_UP | IFF_RUNNING | IFF_LOOPBACK)

static struct host {
	const char *name, *ip;
	unsigned int flags;
} usual[] = {
	{ "lo", "127.0.0.1", LO },	 { "docker0", "172.17.0.1", DOWN },
	{ "br-12ab", "172.18.0.1", UP }, { "eth0", "10.9.0.1", UP },
	{ "eth10", "10.8.0.1", UP },	 { "ib0", "192.168.5.1", UP },
	{ "veth3", "169.254.1.1", UP },	 { "lo", "::1", LO },
	{ "eth0", "fd00::9", UP },	 { "eth0", "fe80::1", UP },
	{ "wlan0", "10.7.0.1", DOWN },	 { "off0", "10.6.0.1", 0 },
};

#define N(list) (sizeof(list) / sizeof((list)[0]))

static struct cvy_interface list[CVY_INTERFACES];
static int taken;

/* Orders @host by @setting; the addresses that are taken, with spaces between. */
static const char *order(const char *setting, const struct host *host, size_t n)
{
	static struct ifaddrs all[CVY_INTERFACES];
	static struct sockaddr_in6 addr[CVY_INTERFACES];
	static char text[1000];
	size_t used = 0;

	memset(all, 0, sizeof(all));
	memset(addr, 0, sizeof(addr));
	for (size_t i = 0; i < n; i++) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&addr[i];

		if (inet_pton(AF_INET, host[i].ip, &v4->sin_addr) == 1) {
			v4->sin_family = AF_INET;
		} else {
			addr[i].sin6_family = AF_INET6;
			ck_assert_int_eq(inet_pton(AF_INET6, host[i].ip, &addr[i].sin6_addr), 1);
		}
		all[i].ifa_name = (char *)(uintptr_t)host[i].name;
		all[i].ifa_flags = host[i].flags;
		all[i].ifa_addr = (struct sockaddr *)&addr[i];
		all[i].ifa_next = i + 1 < n ? &all[i + 1] : NULL;
	}
	cvy_interface_order(setting, n ? all : NULL, list, CVY_INTERFACES, &taken);
	text[0] = '\0';
	for (int i = 0; i < taken; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? " " : "", list[i].text);
	return text;
}

TEST(those_without_carrier_and_of_containers_come_last)
{
	ck_assert_str_eq(order("", usual, N(usual)), "10.9.0.1 10.8.0.1 192.168.5.1 fd00::9 172.18.0.1 169.254.1.1 "
						     "172.17.0.1 10.7.0.1");
	ck_assert_str_eq(list[0].name, "eth0");
	ck_assert_int_eq(list[4].kind, CVY_INTERFACE_VIRTUAL);
	ck_assert_int_eq(list[6].kind, CVY_INTERFACE_CARRIER);
}

TEST(a_host_without_more_takes_what_it_has)
{
	ck_assert_str_eq(order("", usual, 1), "127.0.0.1");
	ck_assert_str_eq(order("", usual, 2), "172.17.0.1");
	ck_assert_str_eq(order("", usual, 0), "");
	ck_assert_str_eq(order("^docker", usual, 2), "");
}

TEST(a_setting_chooses_by_name_beginning_network_and_address)
{
	static const struct {
		const char *setting, *want;
	} cases[] = {
		{ "eth0", "10.9.0.1 fd00::9" },
		{ "eth", "10.9.0.1 10.8.0.1 fd00::9" },
		{ "=eth0", "10.9.0.1 fd00::9" },
		{ "=eth", "" },
		{ "eth1", "10.8.0.1" },
		{ "ib0,eth0", "192.168.5.1 10.9.0.1 fd00::9" },
		{ "10.0.0.0/8", "10.9.0.1 10.8.0.1 10.7.0.1" },
		{ "10.8.0.0/15", "10.9.0.1 10.8.0.1" },
		{ "0.0.0.0/0,fd00::/8", "10.9.0.1 10.8.0.1 192.168.5.1 172.18.0.1 169.254.1.1 172.17.0.1 10.7.0.1 "
					"127.0.0.1 fd00::9" },
		{ "10.8.0.1", "10.8.0.1" },
		{ "127.0.0.9", "127.0.0.9" }, /* at no interface by that number */
		{ "docker0", "172.17.0.1" },  /* also without carrier: who names it wants it */
		{ "lo", "127.0.0.1 ::1" },
		{ "^docker,lo", "10.9.0.1 10.8.0.1 192.168.5.1 fd00::9 172.18.0.1 169.254.1.1 10.7.0.1" },
		{ "^eth,br-,veth,172.16.0.0/12,wlan0", "192.168.5.1" },
		{ "^=eth0,10.0.0.0/9", "192.168.5.1 172.18.0.1 169.254.1.1 172.17.0.1" },
		{ "nothing", "" },
	};

	for (size_t i = 0; i < N(cases); i++) {
		const char *got = order(cases[i].setting, usual, N(usual));

		ck_assert_ptr_null(cvy_interface_wrong(cases[i].setting));
		ck_assert_msg(!strcmp(got, cases[i].want), "%s: %s", cases[i].setting, got);
	}
}

TEST(what_makes_no_sense_is_refused)
{
	static const char *const wrong[] = { "^",
					     "eth0,",
					     ",eth0",
					     "eth0,^lo",
					     "eth 0",
					     "10.0.0.0/33",
					     "10.0.0.0/",
					     "10.0.0.0/-1",
					     "eth0/8",
					     "fd00::/129",
					     "=",
					     "10.0.0.0/8x",
					     "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,a,b,c,d,e,f,g" };

	for (size_t i = 0; i < N(wrong); i++) {
		ck_assert_msg(cvy_interface_wrong(wrong[i]) != NULL, "%s", wrong[i]);
		ck_assert_str_eq(order(wrong[i], usual, N(usual)), "");
	}
}

TEST(people_are_told_what_there_is_and_why)
{
	char text[400];
	int count;

	order("^eth,fd00::/8", usual, 4);
	count = 4;
	cvy_interface_print(list, count, text, sizeof(text));
	ck_assert_str_eq(text, "br-12ab 172.18.0.1 (bridge, containers or virtual machines), docker0 172.17.0.1 (no "
			       "carrier), lo 127.0.0.1 (not taken), eth0 10.9.0.1 (left out by COVEY_INTERFACE)");
	cvy_interface_print(list, count, text, 20);
	ck_assert_uint_eq(strlen(text), 19);
}

SUITE_MAIN(.name = "base/interface")
