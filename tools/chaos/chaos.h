/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of ep-chaos and its small things. The parent owns the store, the ranks (this program again, with --desk)
 * and a shared memory in which every rank logs each operation (plan.h). The parent alone kills, reads the logs,
 * compares them and computes the figures. A rank only works and logs its results.
 */
#ifndef CHAOS_H
#define CHAOS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../local/small.h"

#define CHAOS_MAX_RANKS 8
#define CHAOS_SAMPLES 4096     /* measurements of one kind */
#define CHAOS_OUTCOME_MS 20000 /* bound on any outcome: past it the group counts as hung */
#define CHAOS_EXIT_FENCED 3

enum chaos_command { CHAOS_RUN, CHAOS_IDLE, CHAOS_STOP }; /* the highest that any rank saw counts */

struct chaos_options {
	int ranks, kills, burst, idle_s, steps, extends, overload_s;
	int world; /* founders: ranks without later joiners */
	bool bench, leak, mix, json, strict, stop, both, signal_named, verbose;
	int bytes, touch_mib, seed;
	int rank, shared_fd; /* of a rank's process */
	bool joiner;
	int desk; /* of a rank's process; -1: the parent */
	int devices, tokens;
	int seconds;
	bool show, ranks_named;
	const char *plan, *plot;
};

/* For deadlines: time in which this process stood still, and so perhaps the whole machine, does not count. */
uint64_t chaos_awake_ns(void);
/* The deadline of any outcome, in the time of chaos_awake_ns. */
uint64_t chaos_outcome_end(void);
void chaos_sleep_us(unsigned us);

int chaos_plan_run(const struct chaos_options *opt);  /* run.c; the exit code */
int chaos_bench_run(const struct chaos_options *opt); /* bench.c */

#endif
