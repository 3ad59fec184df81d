/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group on hosts made of namespaces: ranks 2h and 2h+1 live on host h, the store on the bridge. Ranks run
 * allreduces with a safe point now and then, check every byte, and write down every outcome in shared
 * memory. Who is fenced says so and joins again by itself. The parent cuts, kills and compares.
 */
#ifndef TESTS_HOSTS_H
#define TESTS_HOSTS_H

#include "chaos/net.h"
#include "harness.h"

#define RANKS 4
#define HOSTS 2
#define NOTES (1u << 16) /* the last outcomes of a rank */
#define ALL 15u

struct note {
	uint64_t seq, mask, sum;
	uint32_t epoch;
};

struct hosts_shared {
	uint64_t at[RANKS];	/* last operation done */
	uint64_t mask[RANKS];	/* its contributors */
	uint64_t joined[RANKS]; /* lives of the rank's processes that came to their first operation */
	uint64_t fenced[RANKS]; /* times that the library said so */
	uint64_t stop;		/* the last operation */
	struct note note[RANKS][NOTES];
};

/* Parts of the system that a rank has of its own, or shares. */
enum hosts_way {
	HOSTS_ONE_NAME = 1,  /* every rank has a UTS namespace of its own, and all have one name of a host */
	HOSTS_USERS = 2,     /* every rank is another user, who has a COVEY_HOST as the page says */
	HOSTS_PIDS = 4,	     /* every rank is process 1 of a PID namespace, */
	HOSTS_OUTER_PROC = 8 /* and sees /proc of the namespace outside, whose process 1 is another */
};

struct hosts {
	unsigned ways;
	struct covey_config config;
	struct hosts_shared *shared;
	pid_t pid[RANKS], store;
};

void hosts_open(struct hosts *h, const char *name);
void hosts_start(struct hosts *h, int rank, int replacement);
void hosts_kill(struct hosts *h, int rank);
void hosts_begin(struct hosts *h);		      /* all ranks, until each has done some operations */
void hosts_progress(struct hosts *h, unsigned ranks); /* each of them does some more operations */
/* Open and begin, where a path will be cut: silence on it is soon told. */
void hosts_cut_begin(struct hosts *h, const char *name);
void hosts_until_mask(struct hosts *h, unsigned ranks, unsigned mask); /* operations of @ranks are of exactly @mask */
void hosts_partition(int a, int b);				       /* both ways */
void hosts_links(
	struct hosts *h); /* shm inside a host, tcp between and between PID namespaces and users, or the test fails */
void hosts_finish(struct hosts *h, unsigned ranks); /* these come to the same last operation and leave */

#endif
