/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of ep-moe. A *rank* (rank.h) does the work, computes every step again in the plainest way (check.c), and
 * reports the step: masks and epochs, times, what the check found. The *director* (director.c) starts the ranks, breaks
 * them on purpose, and keeps the story of the run (story.c), which it has from the reports alone.
 */
#ifndef MOE_H
#define MOE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "../local/small.h"
#include "covey_ep.h"
#include "model.h"

#define MOE_MAX_PLAN 16
#define MOE_MAX_EVENTS 64
#define MOE_PARTS 2 /* of the demonstration */

enum moe_plan_kind { MOE_KILL, MOE_FAULT, MOE_EXTEND };

struct moe_plan {
	int kind;	   /* enum moe_plan_kind */
	int rank;	   /* -1: a random one; extend: the new size */
	uint64_t step;	   /* from this step on */
	bool whole;	   /* step counts from the moment when no rank is missing or on the way */
	const char *fault; /* plan for COVEY_FAULT */
	uint64_t due_ns;   /* when it is to be done, 0: not due yet */
	bool done;	   /* the death was seen, or the growth requested */
	bool sent;	   /* the signal is on its way */
};

struct moe_options {
	int ranks, max_ranks, steps, ffn, replicas;
	int preset;  /* enum covey_ep_preset */
	int devices; /* of this host, shared by the ranks; 0: tokens are in host memory */
	struct moe_shape shape;
	uint64_t seed;
	const char *text, *transport;
	bool recover, demo, seeded;
	int part;	    /* of the demonstration, from 0; < 0: all of them, one after the other */
	const char *report; /* socket of the director; NULL: none */
	struct moe_plan plan[MOE_MAX_PLAN];
	int plans;
	char **argv;
	int argc;
};

enum moe_op { MOE_ADMIT, MOE_DISPATCH, MOE_COMBINE, MOE_SUM, MOE_OPS };

struct moe_verdict {	   /* of one check */
	int counts_bad;	   /* 1: counts, ranges or entries are not those of the reference */
	int wrong;	   /* tokens out of tolerance */
	int lost, partial; /* tokens without any owner, or without some of their owners */
	float worst;	   /* error over the largest magnitude of its row */
};

enum moe_report_kind { MOE_HELLO = 1, MOE_STEP, MOE_END, MOE_FAILED };

/* From a rank to the director: one message each. */
struct moe_report {
	int kind, rank, pid, size, local;
	int fresh;	 /* it came after the group was formed, and this is its first step */
	int moved, made; /* experts received from their old owner, made from the seed */
	int err;	 /* of a rank that failed */
	uint32_t epoch[MOE_OPS];
	uint64_t mask[MOE_OPS], done_ns[MOE_OPS], wait_ns; /* wait: of dispatch */
	uint64_t living;	      /* contributors of the view in which the dispatch was decided */
	int again;		      /* how often the pair was done again, since results were lost */
	uint64_t suspect_ns, view_ns; /* first suspicion and last change of the view since the last report; 0: none */
	uint64_t step, incarnation, start_ns, end_ns; /* start: of its process */
	int64_t sum;
	struct moe_verdict verdict;
	char store[256], group[72]; /* of a hello */
};

int moe_rank_main(struct moe_options *opt);
int moe_director_main(struct moe_options *opt);
void moe_demo_plan(struct moe_options *opt, int part);

const char *moe_preset_name(int preset); /* NULL: there is none */

/* What a dispatch wrote beside its rows. */
struct moe_arrived {
	int preset; /* enum covey_ep_preset */
	const int64_t *range;
	const int32_t *count, *flat, *triplets; /* flat: with FLAT; triplets: with WIN */
};

/* A row is for all experts of a rank that its token names. */
static inline bool moe_once(int preset)
{
	return preset == COVEY_EP_COMPACT || preset == COVEY_EP_HT;
}

/* The rows of an expert begin where those of the one before end. */
static inline bool moe_close(int preset)
{
	return preset == COVEY_EP_WIN;
}

/* A step of @report's rank under the masks of its report. @ref makes all weights, as needed. */
void moe_check(struct moe_model *ref, const struct moe_report *report, const struct moe_arrived *arrived,
	       const uint16_t *out, struct moe_verdict *verdict);

/* ---- The story of a run ---- */

enum moe_event_kind { MOE_DIED, MOE_BACK, MOE_GREW };

struct moe_event {
	int kind; /* enum moe_event_kind */
	int rank;
	bool planned;
	bool exact; /* death_ns is that of kill(), not of the first suspicion */
	char how[64];
	uint64_t from, step; /* first and last step that it may have slowed */
	int op;		     /* died: the first operation that lacked it */
	uint32_t epoch_before, epoch;
	uint64_t mask;	  /* of the survivors, or of all */
	uint64_t time_ns; /* when the director read the report */
	/* died: */
	uint64_t death_ns, view_ns, done_ns; /* death, the last survivor's new view, its outcome without the rank */
	/* back, grew: */
	uint64_t asked_ns, exec_ns, first_ns; /* asked for, process started, its first operation was done */
	int moved, made;
};

struct moe_step {			      /* from the reports of all ranks */
	uint64_t reported, missing, admitted; /* ranks that reported it, that others lacked, that were to take part */
	uint64_t end_ns, longest_ns;	      /* last end of a rank, longest time of a rank from end to end */
	int64_t sum;			      /* the allreduce, in its newest epoch */
	uint64_t again;			      /* how often its pair was done again */
	uint64_t mask, owners, lacked;	      /* its contributors, the ranks that have it, the ranks that it lacks */
	uint32_t epoch;
};

struct moe_past { /* the last report of a rank */
	uint64_t incarnation, step, end_ns;
	bool undone; /* its allreduce was done again without it: it must have died */
};

struct moe_story {
	struct moe_event event[MOE_MAX_EVENTS];
	int events;
	struct moe_step *step;
	uint64_t steps, room, first_ns;
	struct moe_past past[MOE_MAX_RANKS];
	uint64_t reports, differ, gaps, undone, again; /* see moe_story_end() */
	struct moe_verdict sum;			       /* of all reports; worst: the worst */
};

struct moe_total { /* of all parts of a run */
	struct moe_story all;
	uint64_t steps;
	int hits, planned, moved, made, failed;
};

int moe_story_step(struct moe_story *s, const struct moe_report *report); /* -1: no memory */
struct moe_event *moe_story_add(struct moe_story *s, int kind, int rank);
struct moe_event *moe_story_last(struct moe_story *s, int kind, int rank); /* NULL: none */
void moe_story_progress(const struct moe_story *s, const struct moe_report *report, bool last);
/* Timeline and speed of one part, added up into @total; all reports are in. */
void moe_story_part(struct moe_story *s, const struct moe_options *opt, int planned, struct moe_total *total);
int moe_story_end(const struct moe_total *total); /* 0 if all matched and every planned death hit an operation */

#endif
