/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network namespaces as hosts, on one machine: every host has one interface on one bridge, and the
 * caller's side of the bridge is where the store lives. Root only.
 *
 * A host is a number from 0; CHAOS_NET_STORE is the caller's side. Processes of two hosts share the
 * file system, so a unix socket of a store reaches them all whatever is cut: use
 * chaos_net_address(CHAOS_NET_STORE).
 *
 * With CHAOS_CABLES=NAME in the environment hosts are none of ours: host h is the interface eth<h> with the address of
 * that host, plugged into a bridge by port<h>, and its RDMA device NAME<h>; all in one namespace, since Soft-RoCE knows
 * only one. Their ranks are told apart by COVEY_HOST. The store's side cannot be cut off then. With CHAOS_CABLES==NAME
 * all hosts use the one device NAME, whose port talks to itself: nothing can be cut.
 */
#ifndef CHAOS_NET_H
#define CHAOS_NET_H

#define CHAOS_NET_HOSTS 4
#define CHAOS_NET_STORE (-1)

/*
 * All return 0, or -1 after a line on stderr that says why. The calling thread moves into a network of
 * its own: call this before other threads and the store are started.
 */
int chaos_net_open(int hosts);
int chaos_net_enter(int host); /* the calling thread, for good: in the child, before exec */
const char *chaos_net_address(int host);

int chaos_net_cut(int from, int to);	/* what @from sends to @to is dropped, in silence; not the way back */
int chaos_net_heal(void);		/* undoes all cuts */
int chaos_net_slow(int host, int kbit); /* both ways, to and from everybody; 0: undo */

void chaos_net_close(void); /* brings the calling thread back; hosts end with their last process */

#endif
