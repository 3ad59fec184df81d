/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of ep-admin: what a store said about a group, and how people and programs read it. */
#ifndef ADMIN_H
#define ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "covey.h"

struct admin_member {
	bool member, pending, joiner, joiner_ready;
	uint64_t inc, joiner_inc, from;
	char host[128], joiner_host[128];
	uint64_t beat_ms; /* server's clock; 0: none */
	uint64_t done;
	char *links;	  /* `0:shm,1:tcp`; NULL: not told */
	char mark[8];	  /* evict, retire or empty */
	char wanted[8];	  /* recover, extend or empty */
	char accused[64]; /* reason or empty */
	char proven[32];  /* kind of the proof that it is dead, or empty */
};

struct admin_group {
	char status[16], why[256];
	char gid[40], vid[40], phase[8], life[64], policy[8];
	uint64_t epoch, base;
	int size, max_ranks;
	uint64_t now_ms; /* of this machine, for the age of beats */
	struct admin_member rank[COVEY_MAX_RANKS];
};

void admin_group_clear(struct admin_group *group);
void admin_group_pair(void *ctx, const char *key, const char *value); /* for covey_admin_call() */

void admin_print_status(const struct admin_group *group, const char *name);
void admin_print_links(const struct admin_group *group);
void admin_json_status(const struct admin_group *group, const char *name);
void admin_json_links(const struct admin_group *group, const char *name);

#endif
