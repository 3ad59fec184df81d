/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a host's addresses. It is pure but for one look at /sys, so that tests can make up hosts. */
#include <arpa/inet.h>
#include <ctype.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interface.h"

#define ITEMS 32
#define WORD 64

struct item {
	char word[WORD]; /* a name, or the beginning of one */
	int exact;
	int family; /* of a network or an address, else 0 */
	unsigned char net[16];
	int bits;
};

struct setting {
	int except, count;
	struct item item[ITEMS];
};

static int family_bits(int family)
{
	return family == AF_INET ? 32 : 128;
}

/* The bytes of an address; NULL: neither IPv4 nor IPv6. */
static const unsigned char *bytes_of(const struct sockaddr *addr)
{
	if (addr && addr->sa_family == AF_INET)
		return (const unsigned char *)&((const struct sockaddr_in *)(const void *)addr)->sin_addr;
	if (addr && addr->sa_family == AF_INET6)
		return (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
	return NULL;
}

static const char *parse_item(const char *at, size_t bytes, struct item *item)
{
	char *slash, *end;

	memset(item, 0, sizeof(*item));
	if (bytes && *at == '=') {
		item->exact = 1;
		at++;
		bytes--;
	}
	if (!bytes || bytes >= WORD)
		return "a name between commas is missing or too long";
	memcpy(item->word, at, bytes);
	if (strpbrk(item->word, "^= \t\r\n"))
		return "a ^ stands only before the whole list, a = only before a name";
	slash = strchr(item->word, '/');
	if (slash)
		*slash = '\0';
	item->family = inet_pton(AF_INET, item->word, item->net) == 1	 ? AF_INET
		       : inet_pton(AF_INET6, item->word, item->net) == 1 ? AF_INET6
									 : 0;
	item->bits = item->family ? family_bits(item->family) : 0;
	if (!slash)
		return NULL;
	if (!item->family || !isdigit((unsigned char)slash[1]))
		return "a network is an address, a slash and a number of bits";
	item->bits = (int)strtol(slash + 1, &end, 10);
	return *end || item->bits > family_bits(item->family) ? "a network has at most 32 bits, 128 of IPv6" : NULL;
}

static const char *parse(const char *text, struct setting *s)
{
	const char *why = NULL;

	memset(s, 0, sizeof(*s));
	s->except = *text == '^';
	text += s->except;
	if (!*text)
		return s->except ? "nothing stands behind the ^" : NULL;
	for (; !why; text++) {
		size_t bytes = strcspn(text, ",");

		if (s->count == ITEMS)
			return "more than 32 names";
		why = parse_item(text, bytes, &s->item[s->count++]);
		text += bytes;
		if (!*text)
			break;
	}
	return why;
}

const char *cvy_interface_wrong(const char *setting)
{
	struct setting s;

	return parse(setting, &s);
}

static int in_network(const struct item *item, const struct sockaddr *addr)
{
	const unsigned char *bytes = bytes_of(addr);
	int whole = item->bits / 8, rest = item->bits % 8;

	if (!bytes || addr->sa_family != item->family || memcmp(bytes, item->net, (size_t)whole) != 0)
		return 0;
	return !rest || (bytes[whole] ^ item->net[whole]) >> (8 - rest) == 0;
}

static int item_fits(const struct item *item, const char *name, const struct sockaddr *addr, int whole_name)
{
	if (item->family && !item->exact)
		return in_network(item, addr);
	return item->exact || whole_name ? !strcmp(name, item->word) : !strncmp(name, item->word, strlen(item->word));
}

/* The first item that fits, -1: none. */
static int fits(const struct setting *s, const struct ifaddrs *all, const char *name, const struct sockaddr *addr)
{
	for (int i = 0; i < s->count; i++) {
		int whole = 0;

		for (const struct ifaddrs *at = all; at; at = at->ifa_next)
			whole |= !s->except && !strcmp(at->ifa_name, s->item[i].word);
		if (item_fits(&s->item[i], name, addr, whole))
			return i;
	}
	return -1;
}

int cvy_interface_fits(const char *setting, const char *name, const struct sockaddr *addr)
{
	struct setting s;

	return *setting && !parse(setting, &s) && (fits(&s, NULL, name, addr) >= 0) != s.except;
}

static int is_virtual(const char *name)
{
	static const char *const begin[] = { "docker",	"veth",	   "virbr",  "br-",   "vnet", "vmnet",	"cni",
					     "flannel", "cali",	   "cilium", "lxc",   "lxd",  "podman", "weave",
					     "kube",	"nerdctl", "tunl",   "dummy", "ifb",  "vbox",	"nodelocaldns" };
	char path[64];

	for (size_t i = 0; i < sizeof(begin) / sizeof(begin[0]); i++)
		if (!strncmp(name, begin[i], strlen(begin[i])))
			return 1;
	snprintf(path, sizeof(path), "/sys/class/net/%.20s/bridge", name);
	return !access(path, F_OK);
}

static enum cvy_interface_kind kind_of(const struct ifaddrs *i)
{
	if (i->ifa_flags & IFF_LOOPBACK)
		return CVY_INTERFACE_LOOPBACK;
	if (!(i->ifa_flags & IFF_RUNNING))
		return CVY_INTERFACE_CARRIER;
	return is_virtual(i->ifa_name) ? CVY_INTERFACE_VIRTUAL : CVY_INTERFACE_PLAIN;
}

static int is_usable(const struct ifaddrs *i)
{
	if (!(i->ifa_flags & IFF_UP) || !bytes_of(i->ifa_addr))
		return 0;
	return i->ifa_addr->sa_family == AF_INET ||
	       !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr);
}

static void fill(struct cvy_interface *to, const char *name, const struct sockaddr *addr)
{
	memset(to, 0, sizeof(*to));
	snprintf(to->name, sizeof(to->name), "%s", name);
	memcpy(&to->addr, addr, addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	inet_ntop(addr->sa_family, bytes_of(addr), to->text, sizeof(to->text));
}

/* Order: taken addresses first, then by the setting, by kind, IPv4 before IPv6. */
static int before(const struct cvy_interface *a, const struct cvy_interface *b)
{
	int a_out = a->kind >= CVY_INTERFACE_NOT_NAMED, b_out = b->kind >= CVY_INTERFACE_NOT_NAMED;

	if (a_out != b_out)
		return b_out;
	if (a->item != b->item)
		return a->item < b->item;
	if (a->kind != b->kind)
		return a->kind < b->kind;
	return a->addr.ss_family == AF_INET && b->addr.ss_family != AF_INET;
}

/* Inserts in order; of equals the earlier stays first. */
static void insert(struct cvy_interface *list, int *count, int max, const struct cvy_interface *one)
{
	int at = *count;

	if (at == max)
		return;
	for (; at > 0 && before(one, &list[at - 1]); at--)
		list[at] = list[at - 1];
	list[at] = *one;
	++*count;
}

/* Addresses of the setting that no interface has: 127.0.0.2, or one that is not configured yet. */
static void add_literals(const struct setting *s, struct cvy_interface *list, int *count, int max)
{
	for (int i = 0; i < s->count && !s->except; i++) {
		const struct item *item = &s->item[i];
		struct sockaddr_storage addr = { 0 };
		struct cvy_interface one;
		int known = 0;

		if (!item->family || item->exact || item->bits != family_bits(item->family))
			continue;
		addr.ss_family = (sa_family_t)item->family;
		memcpy((unsigned char *)(uintptr_t)bytes_of((struct sockaddr *)&addr), item->net,
		       (size_t)item->bits / 8);
		fill(&one, "", (struct sockaddr *)&addr);
		one.item = i;
		for (int k = 0; k < *count; k++)
			known |= !strcmp(list[k].text, one.text);
		if (!known)
			insert(list, count, max, &one);
	}
}

int cvy_interface_order(const char *setting, const struct ifaddrs *all, struct cvy_interface *list, int max, int *taken)
{
	struct setting s;
	int count = 0, others = 0;

	*taken = 0;
	if (parse(setting, &s))
		return 0;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		others += is_usable(i) && !(i->ifa_flags & IFF_LOOPBACK);
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		struct cvy_interface one;
		int item;

		if (!is_usable(i))
			continue;
		fill(&one, i->ifa_name, i->ifa_addr);
		item = fits(&s, all, i->ifa_name, i->ifa_addr);
		one.kind = kind_of(i);
		if (s.except && item >= 0)
			one.kind = CVY_INTERFACE_EXCLUDED;
		else if (!s.except && s.count && item < 0)
			one.kind = CVY_INTERFACE_NOT_NAMED;
		else if ((s.except || !s.count) && one.kind == CVY_INTERFACE_LOOPBACK && others)
			one.kind = CVY_INTERFACE_NOT_NAMED;
		else if (item > 0)
			one.item = item;
		insert(list, &count, max, &one);
	}
	add_literals(&s, list, &count, max);
	while (*taken < count && list[*taken].kind < CVY_INTERFACE_NOT_NAMED)
		++*taken;
	return count;
}

int cvy_interface_list(const char *setting, struct cvy_interface *list, int max, int *taken)
{
	struct ifaddrs *all = NULL;
	int count;

	if (getifaddrs(&all))
		all = NULL;
	count = cvy_interface_order(setting, all, list, max, taken);
	freeifaddrs(all);
	return count;
}

const char *cvy_interface_why(enum cvy_interface_kind kind)
{
	static const char *const why[] = { "",		 "bridge, containers or virtual machines",
					   "no carrier", "loopback",
					   "not taken",	 "left out by COVEY_INTERFACE" };

	return why[kind];
}

void cvy_interface_print(const struct cvy_interface *list, int count, char *text, size_t bytes)
{
	size_t used = 0;

	*text = '\0';
	for (int i = 0; i < count && used < bytes; i++) {
		const char *why = cvy_interface_why(list[i].kind);

		used += (size_t)snprintf(text + used, bytes - used, "%s%s%s%s%s%s%s", i ? ", " : "", list[i].name,
					 list[i].name[0] ? " " : "", list[i].text, *why ? " (" : "", why,
					 *why ? ")" : "");
	}
}
