/* SPDX-License-Identifier: Apache-2.0 */
/* Runs without a plan: the parent strikes again and again, and measures. Ranks, checks and store are those of a plan. */
#ifndef CHAOS_BENCH_H
#define CHAOS_BENCH_H

#include <jansson.h>

#include "plan.h"

#define CHAOS_GAPS (1u << 20) /* operations looked at around one admission */

struct chaos_samples {
	const char *name;
	double bar_ms; /* 0: none */
	int count;
	double ms[CHAOS_SAMPLES];
};

struct chaos_bench {
	uint64_t victims; /* ranks struck last */
	int spared;	  /* strikes after which no operation needed a view change */
	int inside;	  /* strikes inside an operation */
	int done;	  /* strikes */
	bool watch;	  /* collect gaps */
	double *gap_ms;
	uint32_t gaps;
	struct chaos_samples calm; /* undisturbed operations */
	struct chaos_samples killed, stopped, replaced, pause, extended;
	struct chaos_samples first, meanwhile; /* of these, the operation alone: without inputs, checks and copies */
	uint32_t calls;			       /* operations seen, to take some as samples */
	double longest_ms;		       /* operation of a founder, while `watch` is on */
	double survivor_ms;		       /* the same of a survivor */
};

/* bench.c. Functions that return int: 0, or -1 after a message. */
int chaos_until(struct chaos_run *run, bool (*is)(struct chaos_run *run, uint64_t what), uint64_t what,
		const char *text);
uint64_t chaos_alive(struct chaos_run *run);
bool chaos_first_done(struct chaos_run *run, uint64_t ranks); /* each of @ranks has done an operation */
int chaos_cycle(struct chaos_run *run, uint64_t victims, bool stop);
int chaos_strike(struct chaos_run *run, uint64_t victims, bool stop); /* without a replacement */
void chaos_bench_note(struct chaos_run *run, struct chaos_worker *w, const struct chaos_record *record);

/* watch.c, load.c: the number of bars missed, or -1 */
int chaos_idle(struct chaos_run *run);
int chaos_leak(struct chaos_run *run);
int chaos_steps(struct chaos_run *run);
int chaos_extend(struct chaos_run *run);
int chaos_overload(struct chaos_run *run);

/* report.c */
void chaos_print_json(json_t *json); /* on one line; released */
void chaos_sample(struct chaos_samples *samples, double ms);
int chaos_report(struct chaos_run *run); /* bars missed */

#endif
