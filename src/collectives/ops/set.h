/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of a view and their hosts, as operations see them. */
#ifndef CVY_SET_H
#define CVY_SET_H

#include "page.h"

#define CVY_HOSTS_MAX 1024 /* with more than these, all operations are flat */

/* The hosts of a set's ranks; indices are those of the set. */
struct cvy_hosts {
	int n;	    /* hosts; 1: the fields below are not filled in; 0: more than CVY_HOSTS_MAX */
	int own;    /* host of this rank */
	int nth;    /* this rank among those of its host */
	int local;  /* ranks of this host */
	int widest; /* ranks of the host that has most */
	int most;   /* the most parts that one window holds for its host, on any host */
	int even;   /* each host has the same number of adjacent ranks: a fold may travel from host to host */
	int *of;    /* [n of the set] host of each source */
	int *via;   /* [n of the set] the rank whose window has its part for this host: itself, if it is on this host */
	int *place; /* [n of the set] number of parts before its part there */
	int *like;  /* [n] the rank of each host with the same index as this rank, modulo its ranks */
	int *out;  /* [nout] ranks to signal in the first round: one of each other host, and those here with a socket */
	int *mate; /* [nmate] ranks of this host with a socket */
	int *near; /* [nnear] ranks on other hosts whose lines this one awaits in operations of two levels, and out */
	int nout, nmate, nnear;
};

/* The sources of the view that operations run in, ascending by rank. */
struct cvy_set {
	int n;
	int self; /* index of the own rank, -1: not among them */
	int cut;  /* contributors of the last ADMIT are missing here: it had begun when a change cut it */
	int open; /* the windows of all are mapped here, with everything that each wrote for others: one host */
	int *rank;
	struct cvy_page **page; /* page of each source as seen here */
	const uint8_t **base;	/* its window as seen here, or its copy set aside */
	const void **src;	/* [n] room for a list of inputs */
	uint8_t *gone;		/* removed since: nothing more comes from it */
	uint64_t *link;		/* id of the link of its puts, 0: none is needed */
	int *push;		/* [npush] ranks that need signals (cvy_push_link): links change within a view */
	int npush;
	int nlocal; /* peers on this host that sleep on our lines */
	struct cvy_page **local;
	uint64_t *host; /* name of each source's host in the view that the set was made from */
	struct cvy_hosts hosts;
};

#endif
