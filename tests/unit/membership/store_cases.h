/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts that hold for the store's script whatever runs it: test_store.c runs them in memory, test_redis.c
 * against a real server. A case talks to a `struct bench`: members by number, one line a call.
 */
#ifndef STORE_CASES_H
#define STORE_CASES_H

#include "../../sim/store_memory.h"

#define CASE_RANKS 8

struct bench {
	void *ctx;
	int (*call)(void *ctx, int argc, const char *const *argv, struct memory_reply *reply);
	void (*flush)(void *ctx);    /* FLUSHALL */
	void (*restart)(void *ctx);  /* other names, the same data */
	void (*save)(void *ctx);     /* remembers the data, all or nothing */
	void (*restore)(void *ctx);  /* back to what was remembered, under other names */
	int (*published)(void *ctx); /* notices so far; -1: cannot tell */
	struct memory_reply reply;   /* of the last call */
	char gid[40];
	char inc[2 * CASE_RANKS][24], life[2 * CASE_RANKS][64]; /* of member slots; rank = slot % CASE_RANKS */
	unsigned long random;
};

struct store_case {
	const char *name;
	void (*run)(struct bench *b);
};

extern struct store_case store_cases[];
extern int store_case_count;

#endif
