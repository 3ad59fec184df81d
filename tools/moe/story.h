/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The story of a run: each step's reports and their senders, deaths, returns and growth, with times. Notes are taken
 * while it runs (story.c); timeline and table are printed at its end (table.c).
 */
#ifndef MOE_STORY_H
#define MOE_STORY_H

#include "moe.h"

enum moe_story_kind { MOE_DIED, MOE_BACK, MOE_GREW };

struct moe_event {
	int kind; /* enum moe_story_kind */
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
	uint64_t woken_ns, fenced_ns;	     /* a stopped one continued, and reported that it is fenced */
	/* back, grew: */
	uint64_t asked_ns, exec_ns, first_ns; /* asked for, process started, its first operation was done */
	int moved, made;
};

struct moe_step {			      /* from the reports of all ranks */
	uint64_t reported, missing, admitted; /* ranks that reported it, that others lacked, that were to take part */
	uint64_t end_ns, longest_ns, tokens;  /* last end of a rank, longest time of a rank from end to end */
	int64_t sum;			      /* of the allreduce, from ranks that lived on */
	uint64_t sum_mask, survivors, lacked; /* its contributors, the ranks that report it, the ranks that it lacked */
};

struct moe_last { /* report of a rank that did not live on */
	uint64_t step, mask;
	int64_t sum;
};

struct moe_story {
	struct moe_event event[MOE_MAX_STORY];
	int events;
	struct moe_step *step;
	uint64_t steps, room, first_ns;
	struct moe_report last[MOE_MAX_RANKS];
	struct moe_last dead[MOE_MAX_STORY];
	int deads;
	uint64_t reports, checked, lost, partial, wrong, counts_bad;
	uint64_t differ; /* survivors whose allreduce had another outcome than others of the step */
	uint64_t gaps;	 /* survivors that left out a step */
	uint64_t undone; /* allreduces that only a dead rank had completed */
	float worst;
};

struct moe_total { /* of all parts of a run */
	uint64_t steps, reports, checked, wrong, counts_bad, differ, gaps, undone, lost, partial;
	int hits, planned, moved, made, failed;
	float worst;
};

int moe_story_step(struct moe_story *s, const struct moe_report *report); /* notes a report; -1: no memory */
void moe_story_survived(struct moe_story *s, int rank); /* its last report counts: it ended with the run */
struct moe_event *moe_story_add(struct moe_story *s, int kind, int rank);
struct moe_event *moe_story_last(struct moe_story *s, int kind, int rank); /* NULL: none */
void moe_story_progress(struct moe_story *s, const struct moe_report *report, bool last);
void moe_story_sum(struct moe_story *s, const struct moe_options *opt); /* all reports are in */
void moe_story_close(struct moe_story *s);
char *moe_mask_text(uint64_t mask, char *text, size_t bytes);

/* Timeline and speed of one part, added up into @total. */
void moe_table_part(const struct moe_story *s, const struct moe_options *opt, int planned, struct moe_total *total);
int moe_table_end(const struct moe_total *total); /* 0 if all matched and every planned death hit an operation */

#endif
