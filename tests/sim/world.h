/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that make up the world share: kinds of events, and who does what at one. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "sim.h"

#define US 1000ull
#define FAULTS_END (1200 * CVY_MS)
#define SETTLE_MS 20000 /* after the last fault everybody is in one active view by then */
#define EVENTS_MAX 3000000

enum sim_kind {
	TIMER = 1,
	STEP,
	DELIVER,
	DIAL,
	LINKED,
	DOWN,
	MESSAGE,
	NOTICE,
	POSTED,
	PING,
	FAULT,
	RESUME,
	SPAWN,
	PROOF,
	UP,
	LOSE,
	EXIT,
	REAP
};

struct sim_event {
	struct sim_event *next; /* of those held for a stopped process */
	uint64_t at, serial, inc, number;
	int kind, proc, other, rank;
	struct memory_delivery *delivery;
	struct cvy_msg msg;
	struct cvy_event event;
	char *text;
};

/* heap.c */
struct sim_event *sim_at(struct sim *s, uint64_t delay, int kind, int proc);
struct sim_event *sim_next(struct sim *s);
void sim_event_free(struct sim_event *e);

/* net.c */
void sim_link_event(struct proc *p, int kind, int rank, uint64_t inc);
void sim_dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host);
void sim_drop(void *ctx, int rank, uint64_t inc);
int sim_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes);
void sim_dialled(struct sim *s, struct proc *p, const struct sim_event *e);
void sim_linked(struct sim *s, struct proc *p, const struct sim_event *e);
void sim_ping(struct sim *s, struct proc *p);

/* proc.c */
void sim_post(struct proc *p, const struct cvy_event *e);
struct proc *sim_spawn(struct sim *s, int rank, int create);
void sim_kill(struct proc *p);
void sim_step(struct sim *s, struct proc *p);

/* faults.c */
void sim_fault(struct sim *s);
void sim_reap(struct sim *s);
void sim_suspect(struct sim *s, struct proc *p, int other);

/* invariants.c */
void sim_activated(struct proc *p, const struct cvy_view *v);
void sim_check(struct proc *p);
int sim_settled(struct sim *s, uint64_t *low);
void sim_stuck(struct sim *s);

#endif
