/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the cases of the store talk to it. `who` is a slot: its rank is who % CASE_RANKS, so that
 * slot 9 is the next process at rank 1.
 */
#ifndef STORE_TALK_H
#define STORE_TALK_H

#include <check.h>

#include "store_cases.h"

#define NOBODY (-1)

const char *say(struct bench *b, int who, const char *line);
const char *got(struct bench *b, const char *field);
void twice(struct bench *b, int who, const char *line, const char *status);
const char *field(struct bench *b, const char *name);
void enlist(struct bench *b, int who, int create, int world, const char *policy);
void acks(struct bench *b, int from, int to);
void group(struct bench *b, int world, const char *policy);
const char *report(struct bench *b, int who, const char *rest);
void accuse(struct bench *b, int by, int victim);
void prove(struct bench *b, int victim);
void tell(struct bench *b, char *record, size_t bytes, const char *ph);
const char *hello(struct bench *b, int who, const char *record);

#define SAYS(b, who, line, status) ck_assert_str_eq(say(b, who, line), status)
#define GOT(b, field, value) ck_assert_str_eq(got(b, field), value)

/* A case. It is in the list before TEST_LOOP asks how long that is: constructors with a number run first. */
#define CASE(NAME) \
	static void NAME(struct bench *b); \
	__attribute__((constructor(200))) static void NAME##_add(void) \
	{ \
		store_case_add(#NAME, NAME); \
	} \
	static void NAME(struct bench *b)

void store_case_add(const char *name, void (*run)(struct bench *b));

#endif
