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
	EXIT,
	REAP,
	STRIKE,
	ASKED,
	HEAL,
	ECHO
};

struct sim_event {
	struct sim_event *next; /* of those held for a stopped process */
	uint64_t at, serial, inc, number;
	int kind, proc, other, rank;
	struct sim_request *request;
	struct cvy_msg msg;
	struct cvy_event event;
	char *text;
};

struct sim_request {	/* a call on its way to the store and back */
	int refs, proc; /* of the caller, -1: ep-admin or a launcher */
	uint64_t id;	/* of the call */
	int doom;	/* of the caller, at this call: enum sim_doom */
	int err, argc;
	char **argv;
	struct memory_reply reply;
};

/* The caller dies before its call runs, or after, or it lives and the reply is lost. */
enum sim_doom { DOOM_NONE, DOOM_BEFORE, DOOM_AFTER, DOOM_LOST };

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
void sim_message(struct sim *s, struct proc *p, struct sim_event *e);
void sim_echo(struct sim *s, struct proc *p, struct sim_event *e);
void sim_wall(struct sim *s, int groups, int one_way, int cut, uint64_t until_ns); /* a partition */
void sim_wall_end(struct sim *s, uint64_t number);
int sim_apart(const struct sim *s, const struct proc *from, const struct proc *to);
void sim_net_free(struct sim *s);

/* request.c: calls of the store, and the servers */
void sim_store_open(struct proc *p);
void sim_request_put(struct sim_request *r);
void sim_asked(struct sim *s, struct sim_event *e);				   /* a call arrives at its server */
void sim_replied(struct proc *p, struct sim_event *e);				   /* its answer at the caller */
void sim_ask(struct sim *s, uint64_t delay_ns, int argc, const char *const *argv); /* from outside: name, arguments */
void sim_stores_open(struct sim *s);
void sim_stores_close(struct sim *s);
void sim_store_time(struct sim *s);
void sim_deaf(struct proc *p, uint64_t ns, int tell); /* cut from the store for so long */
void sim_hears(struct proc *p);
void sim_store_names(struct sim *s);
void sim_two_stores(struct sim *s, const struct memory_copy *copy, uint64_t ns);
void sim_one_store(struct sim *s);
int sim_listed(struct proc *p); /* by every server that answers */

/* proc.c */
void sim_post(struct proc *p, const struct cvy_event *e);
#define SIM_AWAY (-7) /* rank: the store goes away for very long */
uint64_t sim_away_ns(const struct sim *s);
#define SIM_STRAY (-2) /* rank: of a process of another job */
struct proc *sim_spawn(struct sim *s, int rank, int create);
void sim_kill(struct proc *p);
void sim_step(struct sim *s, struct proc *p);

/* faults.c */
void sim_plan(struct sim *s);
void sim_plan_free(struct sim *s);
void sim_fault(struct sim *s, const struct sim_event *e);
void sim_strike(struct sim *s, const struct sim_event *e);
void sim_watch(struct sim *s, struct proc *p); /* is this what a fault waits for? */
int sim_doom(struct sim *s, const struct proc *p, const char *script);
void sim_heal(struct sim *s, const struct sim_event *e);
void sim_reap(struct sim *s);
void sim_suspect(struct sim *s, struct proc *p, int other);

/* invariants.c */
void sim_activated(struct proc *p, const struct cvy_view *v);
void sim_check(struct proc *p);
int sim_settled(struct sim *s, uint64_t *low);
void sim_stuck(struct sim *s);

#endif
