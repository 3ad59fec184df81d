/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The director starts the ranks and the checker, passes every report on to be checked, learns deaths and arrivals from
 * the masks in them, executes the plan, and replaces dead ranks if asked to. It trusts reports only: a death is a
 * statement of survivors. director.c is its life, conn.c reads the ranks, queue.c feeds the checker, plan.c acts,
 * watch.c reads the masks.
 */
#ifndef MOE_DIRECTOR_H
#define MOE_DIRECTOR_H

#include "story.h"

#define MOE_MAX_CONNS 128
#define MOE_MAX_CHILDREN 64 /* replacements, joiners and ep-admin calls of one run */

struct moe_conn {
	int fd, rank, pid;
	bool ended;
	struct moe_report head;
	size_t got;
	uint8_t *body;
};

struct moe_child {
	pid_t pid;
	int rank; /* -1: ep-admin */
};

struct moe_item; /* a report that waits for the checker */

struct moe_queue {
	int fd;
	pid_t pid;
	struct moe_item *first, **last;
	size_t bytes;
};

struct moe_heard { /* the report of the newest epoch about a rank */
	uint32_t epoch;
	uint64_t time_ns;
};

struct moe_seat { /* a rank as the director knows it */
	int pid, starts;
	bool killed;
	int stopped;	     /* pid of one that SIGSTOP holds, 0: none */
	uint64_t came, died; /* step of the last of each, +1; 0: never */
	uint64_t asked_ns, exec_ns, kill_ns;
	uint64_t asked_step;
	struct moe_heard suspect, left;
	int zombie; /* continued after its replacement: must report that it is fenced */
	uint64_t woken_ns;
};

struct moe_director {
	struct moe_options *opt;
	char dir[64], socket[96];
	int listener;
	pid_t group;
	bool group_ended, stopping, failed, whole;
	struct moe_queue queue;
	struct moe_conn conn[MOE_MAX_CONNS];
	int conns;
	struct moe_child child[MOE_MAX_CHILDREN];
	int children;
	struct moe_seat seat[MOE_MAX_RANKS];
	uint64_t present, want; /* members according to reports; planned members */
	uint64_t step, whole_step, event_step;
	uint64_t last_ns, stop_ns;
	uint32_t epoch;
	uint32_t random;
	struct moe_report hello, latest;
	struct moe_story story;
};

void __attribute__((format(printf, 2, 3))) moe_say(const struct moe_director *d, const char *format, ...);

/* Reads reports: waits at most @timeout_ms, and reads the checker's verdicts meanwhile. */
int moe_conn_listen(struct moe_director *d);
void moe_conn_wait(struct moe_director *d, int timeout_ms);
void moe_conn_close(struct moe_conn *c);

int moe_queue_start(struct moe_queue *q, const struct moe_options *opt);
int moe_queue_add(struct moe_queue *q, const struct moe_report *report, uint8_t *body); /* takes @body */
bool moe_queue_full(const struct moe_queue *q);
int moe_queue_send(struct moe_queue *q); /* as much as the checker takes at once */
int moe_queue_take(struct moe_queue *q, struct moe_story *s);
void moe_queue_end(struct moe_queue *q);

void moe_plan_run(struct moe_director *d);
void moe_plan_hit(struct moe_director *d, struct moe_event *e); /* was this death planned? */
void moe_plan_replace(struct moe_director *d, int rank);
void moe_plan_reap(struct moe_director *d);
void moe_plan_wake(struct moe_director *d); /* wakes stopped ranks when the others have continued without them */
bool moe_plan_done(const struct moe_director *d);

void moe_watch_step(struct moe_director *d, const struct moe_report *report);
void moe_watch_failed(struct moe_director *d, const struct moe_report *report); /* a rank that gave up */

#endif
