/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of ep-admin: a group as the store shows it, and its forms for people and programs. */
#ifndef ADMIN_H
#define ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../local/small.h"
#include "covey_admin.h"
#include "metrics.h"

struct admin_member {
	bool member, pending, joiner, joiner_ready;
	uint64_t inc, joiner_inc, from;
	char host[128], joiner_host[128];
	uint64_t beat_ms; /* server's clock; 0: none */
	uint64_t done;	  /* from beats; false: not known yet */
	bool done_told;
	char left[12]; /* left or retired: the end of the last process with this rank; or empty */
	char flags[8]; /* of its report in the present change */
	int64_t number[CVY_BEAT_NUMBERS];
	int numbers;	  /* how many of these the beat told */
	char *links;	  /* `0:shm,1:tcp`; NULL: unknown */
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

enum { EXIT_DONE, EXIT_USAGE, EXIT_REFUSED, EXIT_TIMEOUT, EXIT_STORE, EXIT_OUTPUT };

#define ADMIN_MAX_WORDS 4096 /* ranks in one request */

struct admin {
	char *store; /* NULL: the environment */
	long run;    /* process of ep-run that has the store, named or found; 0: none */
	const char *group;
	bool json, dead, once, device, seen; /* seen: watch, top, events: the group was there */
	long wait_ms;			     /* 0: do not wait */
	long interval_ms;		     /* watch, top, events: between two looks */
	long looks;			     /* watch, top, events: how many; -1: without end */
	const char *flight;
	const char *command;
	int ranks[ADMIN_MAX_WORDS];
	int count;
	struct admin_group now;
};

int admin_look(struct admin *a);		/* fills a->now; returns the exit code, after printing any cause */
int admin_try(struct admin *a);			/* the same without a message: COVEY_ERR_* */
int admin_code(const struct admin *a, int err); /* the exit code for a call that failed */

bool admin_over(struct admin *a, int err); /* after a look: the group has ended, which is said */
int admin_watch(struct admin *a);
int admin_top(struct admin *a);
int admin_events(struct admin *a);
int admin_plan(const struct admin *a);
int admin_doctor(struct admin *a);

/* Flight recorders of members on this host: see flight.c. */
struct cvy_flight;
struct admin_flight {
	struct cvy_flight *page; /* a copy */
	bool alive;		 /* its process exists */
};
int admin_flight_find(const char *group, const char *directory, struct admin_flight *list, int max); /* by rank */
void admin_flight_drop(struct admin_flight *list, int count);
void admin_flight_print(const struct admin_flight *list, int count);
void admin_flight_json(const struct admin_flight *list, int count);

const char *admin_clock(char text[16]); /* the local time */
void admin_group_clear(struct admin_group *group);
void admin_group_pair(void *ctx, const char *key, const char *value); /* for covey_admin_call() */

const char *admin_host_name(const char *host);
const char *admin_state(const struct admin_group *group, int rank); /* a word; NULL: nothing to say of that rank */
void admin_notes(const struct admin_member *member, FILE *to);
uint64_t admin_beat_age_ms(const struct admin_group *group, const struct admin_member *member);
bool admin_done(const struct admin_group *group, const struct admin_member *member, uint64_t *done);
void admin_print_status(const struct admin_group *group, const char *name);
void admin_print_links(const struct admin_group *group);
void admin_json_status(const struct admin_group *group, const char *name);
void admin_json_links(const struct admin_group *group, const char *name);
void admin_json_look(const struct admin_group *group, const char *name, const char *time); /* status, on one line */
void admin_json_failure(const char *name, const char *time, const char *why); /* the same for a failed look */

#endif
