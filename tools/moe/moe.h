/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of ep-moe. A *rank* (rank.h) does the work and reports every step: masks and epochs, counts and ranges that
 * it received, rows that it made. The *director* (director.h) starts everything, breaks it on purpose and keeps the
 * story. The *checker* (check.c), its child, has all weights and computes every step again.
 */
#ifndef MOE_H
#define MOE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "covey.h"
#include "model.h"

#define MOE_MAX_PLAN 16
#define MOE_MAX_STORY 64
#define MOE_MAX_NOTES 16 /* of one report */
#define MOE_PARTS 2	 /* of the demonstration */
#define MOE_MAX_BODY (256u << 20)

enum moe_plan_kind { MOE_KILL, MOE_FAULT, MOE_EXTEND };

struct moe_plan {
	int kind;      /* enum moe_plan_kind */
	int rank;      /* -1: a random one; extend: the new size */
	uint64_t step; /* from this step on */
	bool whole;    /* step counts from the moment when no rank is missing or on the way */
	int signal;
	const char *fault; /* plan for COVEY_FAULT */
	uint64_t due_ns;   /* when it is to be done, 0: not due yet */
	bool done;	   /* the death was seen, or the growth requested */
	bool sent;	   /* a signal is on its way */
};

struct moe_options {
	int ranks, max_ranks, steps, ffn;
	int devices; /* of this host, shared by the ranks; 0: tokens are in host memory */
	struct moe_shape shape;
	uint64_t seed;
	const char *text, *transport;
	bool recover, demo, seeded;
	int part;	    /* of the demonstration, from 0; < 0: all of them, one after the other */
	const char *report; /* socket of the director; NULL: none */
	struct moe_plan plan[MOE_MAX_PLAN];
	int plans;
	char self[4096], tools[4096]; /* this program, and its directory */
	char **argv;
	int argc;
};

enum moe_op { MOE_ADMIT, MOE_DISPATCH, MOE_COMBINE, MOE_SUM, MOE_OPS };
enum moe_report_kind { MOE_HELLO = 1, MOE_STEP, MOE_END, MOE_FAILED };

/* News of a rank from its group: it suspects @rank, or a view without it became active. */
struct moe_note {
	int32_t left; /* 0: suspected */
	int32_t rank;
	uint32_t epoch;
	uint64_t time_ns;
};

/* From a rank to the director and on to the checker. The body of a step: range, count, out. */
struct moe_report {
	uint32_t kind, body; /* bytes that follow */
	int32_t rank, pid, size, tokens, local, fresh;
	int32_t moved, made; /* experts received from their old owner, made from the seed */
	int32_t notes, err;  /* err: of a rank that failed */
	uint32_t epoch[MOE_OPS];
	uint64_t mask[MOE_OPS], wait_ns[MOE_OPS], done_ns[MOE_OPS];
	struct moe_note note[MOE_MAX_NOTES];
	uint64_t step, incarnation, end_ns;
	int64_t sum;
	char store[256], group[72];
};

struct moe_verdict {
	uint64_t step;
	int32_t rank;
	int32_t counts_bad;    /* 1: counts or ranges are not those of the reference */
	int32_t wrong;	       /* tokens out of tolerance */
	int32_t lost, partial; /* tokens without any owner, or without some of their owners */
	float worst;	       /* error over the largest magnitude of its row */
};

int moe_rank_main(struct moe_options *opt);
int moe_director_main(struct moe_options *opt);
void moe_demo_plan(struct moe_options *opt, int part);

/* A step under the masks of its report. @ref holds all weights, made as needed. */
void moe_check(struct moe_model *ref, const struct moe_report *report, const uint8_t *body,
	       struct moe_verdict *verdict);
/* The checker's life: reads reports and writes verdicts on @fd until it ends. */
int moe_check_main(const struct moe_options *opt, int fd);
size_t moe_body_bytes(const struct moe_shape *s, int local, int size, int tokens);

/* All bytes or -1. */
int moe_write(int fd, const void *from, size_t bytes);
int moe_read(int fd, void *to, size_t bytes);

/* ---- Processes ---- */
pid_t moe_start_group(const struct moe_options *opt, const char *socket);
pid_t moe_start_rank(const struct moe_options *opt, const char *socket, const struct moe_report *hello, int rank);
pid_t moe_start_admin(const struct moe_options *opt, const struct moe_report *hello, const char *verb, int number);

static inline uint64_t moe_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
