/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of ep-moe. A *rank* (moe_rank.c) does the work and reports every step: what it was told (masks, epochs),
 * what it got (counts, ranges) and what it made (rows). The *director* (moe_director.c) starts everything, breaks it
 * on purpose and keeps the story; the *checker* (moe_check.c), its child, has all weights and makes every step anew.
 */
#ifndef MOE_H
#define MOE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "covey.h"
#include "moe_model.h"

#define MOE_MAX_PLAN 16
#define MOE_MAX_STORY 64
#define MOE_MAX_BODY (256u << 20)

enum moe_plan_kind { MOE_KILL, MOE_FAULT, MOE_EXTEND };

struct moe_plan {
	int kind;	  /* enum moe_plan_kind */
	int rank;	  /* -1: a random one; extend: the new size */
	uint64_t step;	  /* from this step on */
	bool whole;	  /* step counts from the moment when nobody is missing or on the way */
	int signal;
	const char *fault; /* plan for COVEY_FAULT */
	int delay_ms;
	uint64_t due_ns; /* when it is to be done, 0: not due yet */
	bool done;
};

struct moe_options {
	int ranks, max_ranks, steps, ffn;
	struct moe_shape shape;
	uint64_t seed;
	const char *text, *transport;
	bool recover, demo, seeded;
	const char *report; /* socket of the director; NULL: none */
	struct moe_plan plan[MOE_MAX_PLAN];
	int plans;
	char self[4096], tools[4096]; /* this program, and its directory */
	char **argv;
	int argc;
};

enum moe_op { MOE_ADMIT, MOE_DISPATCH, MOE_COMBINE, MOE_SUM, MOE_OPS };
enum moe_report_kind { MOE_HELLO = 1, MOE_STEP, MOE_END };

/* From a rank to the director and on to the checker. The body of a step: range, count, out. */
struct moe_report {
	uint32_t kind, body; /* bytes that follow */
	int32_t rank, pid, size, tokens, local, fresh;
	int32_t moved, made; /* experts received from their old owner, made from the seed */
	uint32_t epoch[MOE_OPS];
	uint64_t mask[MOE_OPS], wait_ns[MOE_OPS];
	uint64_t step, incarnation, end_ns;
	int64_t sum;
	char store[256], group[72];
};

struct moe_verdict {
	uint64_t step;
	int32_t rank;
	int32_t counts_bad;  /* 1: counts or ranges are not those of the reference */
	int32_t wrong;	     /* tokens out of tolerance */
	int32_t lost, partial; /* tokens all, some of whose owners are missing */
	float worst;	     /* error over the largest magnitude of its row */
};

int moe_rank_main(struct moe_options *opt);
int moe_director_main(struct moe_options *opt);

/* A step under the masks of its report. @ref holds all weights, made as they are needed. */
void moe_check(struct moe_model *ref, const struct moe_report *report, const uint8_t *body, struct moe_verdict *verdict);
/* The checker's life: reports come in, verdicts go out on @fd until it ends. */
int moe_check_main(const struct moe_options *opt, int fd);
size_t moe_body_bytes(const struct moe_shape *s, int local, int size, int tokens);

/* All bytes or -1. */
int moe_write(int fd, const void *from, size_t bytes);
int moe_read(int fd, void *to, size_t bytes);

/* ---- Processes ---- */
pid_t moe_start_group(const struct moe_options *opt, const char *socket);
pid_t moe_start_rank(const struct moe_options *opt, const char *socket, const struct moe_report *hello, int rank);
pid_t moe_start_admin(const struct moe_options *opt, const struct moe_report *hello, const char *verb, int number);

/* ---- Story ---- */
enum moe_story_kind { MOE_DIED, MOE_BACK, MOE_GREW };

struct moe_event {
	int kind; /* enum moe_story_kind */
	int rank; /* grew: the new size */
	bool planned;
	char how[64];
	uint64_t step;
	int op; /* the first operation that lacked it */
	uint32_t epoch_before, epoch;
	uint64_t mask;	     /* of the survivors, or of all */
	uint64_t wait_ns;    /* longest of the survivors */
	uint64_t asked_ns, time_ns;
	int moved, made;
};

struct moe_story {
	struct moe_event event[MOE_MAX_STORY];
	int events;
	uint64_t *reported, *missing, *admitted; /* [steps]: who reported the step, whom others lacked, who was to take part */
	uint64_t *time_ns, *tokens; /* [steps] */
	uint64_t *sum, *sum_mask, *survivors; /* [steps] what the allreduce gave, said by ranks that lived to report the next */
	uint64_t *lacked; /* [steps] whom survivors' allreduce lacked */
	struct moe_report last[MOE_MAX_RANKS];
	uint64_t steps, room, first_ns;
	uint64_t reports, checked, lost, partial, wrong, counts_bad;
	uint64_t differ; /* survivors whose allreduce had another outcome than others of the step */
	float worst;
};

int moe_story_step(struct moe_story *s, const struct moe_report *report); /* notes a report; -1: no memory */
struct moe_event *moe_story_add(struct moe_story *s, int kind, int rank);
void moe_story_progress(struct moe_story *s, const struct moe_report *report, bool last);
/* Prints timeline and table. 0 if all matched and every planned death hit an operation. */
int moe_story_end(struct moe_story *s, const struct moe_options *opt, int planned);
char *moe_mask_text(uint64_t mask, char *text, size_t bytes);

static inline uint64_t moe_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
