/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a group as the store keeps it: field and value strings, in order of arrival. Strings let a member give
 * a store that forgot exactly the record that it got. Copies share the strings; a record and its copies belong to one
 * thread.
 */
#ifndef CVY_RECORD_H
#define CVY_RECORD_H

#include "view.h"

struct cvy_field {
	const char *field, *value; /* only record.c changes or frees them */
};

struct cvy_record {
	struct cvy_field *pair;
	int count, room;
};

struct cvy_joiner { /* of j:R */
	uint64_t inc;
	char addr[256], host[128];
	uint64_t epoch;
};

/* A pair that is no part of a record: made of two strings (0 or NOMEM), or shared with a record. Drop takes a zeroed one. */
int cvy_field_make(struct cvy_field *field, const char *name, const char *value);
void cvy_field_share(struct cvy_field *to, const struct cvy_field *from);
void cvy_field_drop(struct cvy_field *field);

void cvy_record_clear(struct cvy_record *record);
int cvy_record_set(struct cvy_record *record, const char *field, const char *value); /* 0 or NOMEM */
int cvy_record_copy(struct cvy_record *to, const struct cvy_record *from);
/* Appends the pairs of a reply (argv[0] is its status) that belong to a record. */
int cvy_record_take(struct cvy_record *record, int argc, const char *const *argv);
/*
 * The record that follows @from, which was active: @from with the changes of a reply (`on` in store.h), e: and w: of
 * @news.
 */
int cvy_record_step(struct cvy_record *to, const struct cvy_record *from, int argc, const char *const *argv,
		    const struct cvy_record *news);
/* Replaces j: e: w: by those of a reply; if the reply has `gone`, only the fields that it names. */
int cvy_record_news(struct cvy_record *record, int argc, const char *const *argv);

const char *cvy_record_get(const struct cvy_record *record, const char *field); /* NULL: not there */
uint64_t cvy_record_number(const struct cvy_record *record, const char *field); /* 0: not there */
/* value of `letter:number`, e.g. m:3, l:17 */
const char *cvy_record_at(const struct cvy_record *record, char letter, uint64_t number);
/* rank of a field `letter:R` of pair @i, -1: another field or no rank */
int cvy_record_rank(const struct cvy_record *record, int i, char letter, int max_ranks);

/* Value of @field in a reply, NULL: not there. */
const char *cvy_reply_get(int argc, const char *const *argv, const char *field);

/* The view of the record; COVEY_ERR_INVAL if a field is missing or malformed. */
int cvy_record_view(const struct cvy_record *record, struct cvy_view **out);
uint64_t cvy_vid(const char *text);				/* a vid as a number */
int cvy_ranks_parse(const char *text, struct covey_mask *mask); /* `rank,...` or `-` */
int cvy_joiner_parse(const char *text, struct cvy_joiner *joiner);
/* addr and host of a member's m: field, or of a joiner's j: field */
int cvy_member_place(const char *text, char *addr, size_t addr_bytes, char *host, size_t host_bytes);
/* Turns the record into that of an active view: its admitted members are the voters, no view is doubtful. */
int cvy_record_activate(struct cvy_record *record);

#endif
