/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a group as the store keeps it: field and value strings, in the order they came. It is
 * kept as strings so that a member can tell a store that forgot exactly what it was told. Copies share the strings;
 * a record and its copies belong to one thread.
 */
#ifndef CVY_RECORD_H
#define CVY_RECORD_H

#include "view.h"

struct cvy_pair {
	const char *field, *value; /* of record.c: not changed, not freed by anyone else */
};

struct cvy_record {
	struct cvy_pair *pair;
	int count, room;
};

struct cvy_joiner { /* of j:R */
	uint64_t inc;
	char addr[256], host[128];
	uint64_t epoch;
};

void cvy_record_clear(struct cvy_record *record);
int cvy_record_set(struct cvy_record *record, const char *field, const char *value); /* 0 or NOMEM */
void cvy_record_drop(struct cvy_record *record, const char *prefix);		     /* every field that begins so */
int cvy_record_copy(struct cvy_record *to, const struct cvy_record *from);
/* Appends the pairs of a reply (argv[0] is its status) that belong to a record. */
int cvy_record_take(struct cvy_record *record, int argc, const char *const *argv);
/*
 * The record that follows @from, which was active, by what a reply says has changed (`on` in store.h); e: and w: are
 * those of @news.
 */
int cvy_record_step(struct cvy_record *to, const struct cvy_record *from, int argc, const char *const *argv,
		    const struct cvy_record *news);
/* Replaces the fields j: e: w: by those of a reply, or those that it names if it has `gone`. */
int cvy_record_news(struct cvy_record *record, int argc, const char *const *argv);

const char *cvy_record_get(const struct cvy_record *record, const char *field); /* NULL: not there */
uint64_t cvy_record_number(const struct cvy_record *record, const char *field); /* 0: not there */
/* value of `letter:number`, e.g. m:3, l:17 */
const char *cvy_record_at(const struct cvy_record *record, char letter, uint64_t number);
/* rank of a field `letter:R` of pair @i, -1: another field or no rank */
int cvy_record_rank(const struct cvy_record *record, int i, char letter, int max_ranks);

/* Value of @field in a reply, NULL: not there. */
const char *cvy_reply_get(int argc, const char *const *argv, const char *field);

/* The view that the record names; COVEY_ERR_INVAL when a field is missing or makes no sense. */
int cvy_record_view(const struct cvy_record *record, struct cvy_view **out);
uint64_t cvy_vid(const char *text);				/* a vid as a number */
int cvy_ranks_parse(const char *text, struct covey_mask *mask); /* `rank,...` or `-` */
int cvy_joiner_parse(const char *text, struct cvy_joiner *joiner);
/* addr and host of a member's m: field */
int cvy_member_place(const char *text, char *addr, size_t addr_bytes, char *host, size_t host_bytes);
/* An active view: its admitted members are the voters, no view is doubtful. */
int cvy_record_activate(struct cvy_record *record);

#endif
