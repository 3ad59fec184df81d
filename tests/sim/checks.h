/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold, one function for each: its comment begins with the name that sim_fail is given. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include "sim.h"

/* check_outcome.c: what an application is told */
void check_outcome(struct proc *p, const struct call *c, const struct covey_result *res);
void check_input(struct proc *p, const struct call *c, int status);
int check_left_out(const struct proc *p);			     /* others went on without it */
uint64_t check_contributors(const struct sim_view *v, uint64_t seq); /* of a view that was active: MASK(seq) */

/* check_calls.c: p has an outcome of seq */
void check_calls(struct proc *p, uint64_t seq);

/* check_step.c: after every event of a process */
void check_step(struct proc *p);
void check_poison(struct sim *s);
void check_begins(struct proc *p, const struct cvy_view *v); /* a view is active here */

/* check_store.c: when a member calls the store, and when a call has decided */
void check_call(struct proc *p, int argc, const char *const *argv);
void check_voters(struct sim *s, struct memory_server *server);
void check_decided(struct sim *s, const char *before, const char *vid); /* a view came of another */
void check_ran(struct sim *s, struct memory_server *server);		/* has it just called its view active? */
void check_by_itself(struct proc *p, const struct cvy_view *v);
void check_descent(struct proc *p, const struct cvy_view *v);

#endif
