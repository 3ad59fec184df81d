/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole group in one process from one seed: virtual time, members with the real driver and state
 * machine, the real store.lua, made-up links and an engine behind struct cvy_seam. The engine stands in a
 * file of its own (fake_engine.c) so that the real one can take its place.
 */
#ifndef SIM_H
#define SIM_H

#include "clock.h"
#include "driver.h"
#include "store_memory.h"

#define SIM_PROCS 32	/* processes of one run, dead ones too */
#define SIM_RANKS 6
#define SIM_SEQS 16384	/* operations of one run */
#define SIM_SLOTS 4	/* 2D: published operations that can be read */

struct sim;

struct outcome {
	int have, status;
	uint32_t epoch;
	uint64_t mask; /* ranks */
};

struct publication { /* what a member wrote into its own window */
	uint32_t epoch;
	uint64_t seq;
};

struct engine {
	struct cvy_view *view;
	int frozen, stopped, repairing;
	uint64_t done, ent, adm;
	uint64_t holders; /* ranks */
	struct publication slot[SIM_SLOTS];
	struct outcome outcome[SIM_SEQS];
};

struct proc {
	struct sim *sim;
	int id, alive, paused, ready, want_rank, launched;
	int rank;
	uint64_t inc;
	struct cvy_driver driver;
	struct cvy_seam seam;
	struct memory_client client;
	struct engine engine;
	uint64_t timer_ns, expects[SIM_RANKS];
	int joined, join_err;
	uint64_t deaf_until;
};

struct sim_event;

struct sim {
	uint64_t seed, rng, now, serial, steps;
	int trace, failed, procs, world, faults;
	char why[256];
	struct proc *proc[SIM_PROCS];
	int link[SIM_PROCS][SIM_PROCS];
	uint64_t dead_ns[SIM_PROCS];
	struct sim_event **heap;
	int count, room;
	struct memory_server *server;
	struct memory_copy *copy;
	struct cvy_errbox *box;
	uint64_t down_until;
	int restarts;
};

/* world.c */
uint64_t sim_random(struct sim *sim, uint64_t below);
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct proc *sim_proc_of(struct sim *sim, uint64_t inc); /* NULL: no such */
int sim_linked(const struct proc *a, const struct proc *b);
void sim_check_outcome(struct proc *p, uint64_t seq);
int sim_run(uint64_t seed, int trace, char *why, size_t bytes, uint64_t *steps); /* 0: held */

/* The engine behind the seam: fake_engine.c */
void engine_open(struct proc *p);
void engine_close(struct proc *p);
void engine_step(struct proc *p);

#endif
