/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of this host that peers on other hosts get, and their order. The library, ep-run (for its store) and
 * ep-admin doctor use it, so that all three choose the same; needs libc alone.
 *
 * The setting (COVEY_INTERFACE) is a list with commas between:
 *	eth0		the interface of that name; if there is none, those whose names begin so
 *	=eth0		the interface of just that name
 *	10.0.0.0/8	addresses of that network
 *	10.1.2.3	that address
 *	^docker,lo	all but these; ^ precedes the whole list
 */
#ifndef CVY_INTERFACE_H
#define CVY_INTERFACE_H

#include <stddef.h>
#include <sys/socket.h>

#define CVY_INTERFACES 64 /* addresses of one host that are considered */

struct ifaddrs;

/* Preference of an address; the lesser first. */
enum cvy_interface_kind {
	CVY_INTERFACE_PLAIN,
	CVY_INTERFACE_VIRTUAL, /* a bridge, or a network of containers or virtual machines: often only of this host */
	CVY_INTERFACE_CARRIER, /* no carrier: the other end is not connected */
	CVY_INTERFACE_LOOPBACK,
	CVY_INTERFACE_NOT_NAMED, /* this and all below: not taken */
	CVY_INTERFACE_EXCLUDED
};

struct cvy_interface {
	char name[32]; /* empty: an address of the setting that no interface has */
	char text[64]; /* the address */
	struct sockaddr_storage addr;
	enum cvy_interface_kind kind;
	int item; /* item of the setting that it fits */
};

/* The error in the setting; NULL: none. */
const char *cvy_interface_wrong(const char *setting);

/*
 * All addresses in @all but link-local ones, best first. Returns their number; the first *taken are to be used. Without
 * a setting, loopback is taken only if there is nothing else.
 */
int cvy_interface_order(const char *setting, const struct ifaddrs *all, struct cvy_interface *list, int max,
			int *taken);
/* The same of this host. */
int cvy_interface_list(const char *setting, struct cvy_interface *list, int max, int *taken);

const char *cvy_interface_why(enum cvy_interface_kind kind); /* "no carrier"; of PLAIN empty */
/* "docker0 172.17.0.1 (no carrier), ...": for people, cut to @bytes. */
void cvy_interface_print(const struct cvy_interface *list, int count, char *text, size_t bytes);
/* Does the setting name this address, or its interface? 0 without a setting. */
int cvy_interface_fits(const char *setting, const char *name, const struct sockaddr *addr);

#endif
