/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network namespaces as hosts, on one machine: every host has one interface on one bridge; the store lives on the
 * caller's side of the bridge. Root only.
 *
 * A host is a number from 0; CHAOS_NET_STORE is the caller's side. Processes of two hosts share the file system, so a
 * unix socket of a store reaches them all despite any cut: use chaos_net_address(CHAOS_NET_STORE).
 *
 * With CHAOS_CABLES=NAME in the environment, hosts exist already: host h is the interface eth<h> with the address of
 * that host, plugged into a bridge by port<h>, and its RDMA device NAME<h>. All are in one namespace, since Soft-RoCE
 * knows only one; COVEY_HOST separates their ranks. The store's side cannot be cut off then. With CHAOS_CABLES==NAME
 * all hosts use the one device NAME, whose port is connected to itself: nothing can be cut.
 */
#ifndef CHAOS_NET_H
#define CHAOS_NET_H

#define CHAOS_NET_HOSTS 4
#define CHAOS_NET_STORE (-1)
#define CHAOS_NET_NARROW 1000 /* bytes */

/*
 * All return 0, or -1 after a line on stderr with the cause. The calling thread moves into a network of its own: call
 * this before other threads and the store are started.
 */
int chaos_net_open(int hosts);
int chaos_net_enter(int host); /* the calling thread, for good: in the child, before exec */
const char *chaos_net_address(int host);

int chaos_net_cut(int from,
		  int to); /* packets from @from to @to are dropped silently; not those in the other direction */
int chaos_net_narrow(int from, int to); /* as a cut, of packets that are longer than CHAOS_NET_NARROW */
int chaos_net_heal(void);		/* undoes all cuts */
int chaos_net_slow(int host, int kbit); /* in both directions; 0: undo */

void chaos_net_close(void); /* brings the calling thread back; hosts end with their last process */

#endif
