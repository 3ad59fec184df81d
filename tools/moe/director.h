/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director starts the ranks by ep-run, which replaces them if asked to, reads their reports, and executes the plan.
 * It trusts reports only: a death is a statement of survivors. director.c reads and lives, plan.c acts.
 */
#ifndef MOE_DIRECTOR_H
#define MOE_DIRECTOR_H

#include <poll.h>

#include "moe.h"

#define MOE_MAX_CONNS 256
#define MOE_MAX_RUNS 17 /* ep-run of the founders, and one for each growth */

struct moe_seat { /* a rank as the director knows it */
	int pid;
	bool killed;
	uint64_t came, died; /* step of the last of each, +1; 0: never */
	uint64_t asked_ns, kill_ns, asked_step;
};

struct moe_director {
	struct moe_options *opt;
	char dir[64], socket[96];
	struct pollfd conn[MOE_MAX_CONNS + 1]; /* the first listens; < 0: closed */
	bool ended[MOE_MAX_CONNS + 1];	       /* it said so, or is closed */
	int conns;
	pid_t run[MOE_MAX_RUNS]; /* 0: ended */
	int runs;
	bool stopping, failed, whole;
	struct moe_seat seat[MOE_MAX_RANKS];
	uint64_t present, want; /* members according to reports; planned members */
	uint64_t step, whole_step, event_step, last_ns, stop_ns;
	uint32_t epoch, random;
	struct moe_report hello, latest;
	struct moe_story story;
};

void __attribute__((format(printf, 2, 3))) moe_say(const struct moe_director *d, const char *format, ...);
void moe_fail(struct moe_director *d, const char *why);

void moe_start_run(struct moe_director *d, int grow); /* joiners; 0: the founders */
bool moe_reap(struct moe_director *d);		      /* have all ep-run ended? */

void moe_plan_run(struct moe_director *d);
void moe_plan_hit(struct moe_director *d, struct moe_event *e); /* was this death planned? */
bool moe_plan_done(const struct moe_director *d);

#endif
