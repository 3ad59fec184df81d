/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole group in one process from one seed: virtual time, members with the real driver, state machine,
 * engine and the script of the store. Made up are the links and windows (sim_mesh.c), what the applications call
 * (app.c), and the faults (faults.c). Nothing is random but through sim_draw(), so a seed is a run; what is
 * drawn for one purpose has a stream of its own, so that a new fault leaves the network as it was.
 */
#ifndef SIM_H
#define SIM_H

#include "app.h"
#include "clock.h"
#include "driver.h"
#include "engine_state.h"
#include "store_memory.h"
#include "window.h"

#define SIM_PROCS 32 /* processes of one run, dead ones too */
#define SIM_RANKS 6
#define SIM_SEQS 8192  /* operations of one run */
#define SIM_VIEWS 512  /* active views of one run */
#define SIM_LINES 4096 /* views decided in one run */

struct sim;
struct sim_event;
struct sim_net;
struct sim_plan;
struct sim_request;

/* Streams of random numbers, all made from the seed: how the run is laid out, ..., who runs when, ... */
enum sim_stream { SIM_WORLD, SIM_FAULTS, SIM_NET, SIM_STORE, SIM_STEPS, SIM_APPS, SIM_STREAMS };

/* ---- sim_mesh.c ---- */

struct frame { /* of the tcp flavour: a put or a signal on its way */
	struct frame *next;
	uint64_t at_ns, link; /* arrives; id of the link it was sent on */
	size_t offset, bytes;
	int signal, rank; /* of the sender */
	uint8_t *data;
};

struct sim_link {
	struct cvy_link link; /* first: what the engine sees */
	uint64_t id;
	int other; /* process at the far end */
	int open;
	struct frame *out, **out_last; /* not handed to the network yet; puts by reference, like the real one */
};

#define SIM_CELLS 8

struct cvy_mesh {
	struct proc *p;
	struct cvy_layout layout;
	int fd; /* memory of the own window */
	uint8_t *own;
	uint8_t *base; /* SIM_RANKS windows: addresses that peers are mapped at */
	struct cvy_heap heap;
	size_t cells, cell_bytes;		  /* registered buffers: offset of the first, bytes of each */
	uint8_t cell[SIM_CELLS];		  /* in use */
	int mapped[SIM_RANKS], mirror[SIM_RANKS]; /* mirror: memory of this process, which puts fill */
	uint64_t map_inc[SIM_RANKS], fenced_inc[SIM_RANKS];
	struct sim_link *link[SIM_RANKS];
	struct sim_link *old; /* removed: kept so that a use is found, not a crash */
	struct frame *in, **in_last;
};

/* ---- check_*.c ---- */

struct seen { /* what was seen of a process before */
	int reported, spoiled, mismatch, scribbled;
	uint32_t report_epoch, active_epoch;
	uint64_t done, ent, adm, active_vid;
	uint64_t member[SIM_RANKS]; /* incarnations of the last view that it acknowledged */
};

struct sim_line { /* a view and the one that it was decided in */
	uint64_t vid, parent;
	int ran; /* some server has called it active, with these voters */
	uint64_t voter[SIM_RANKS];
};

struct proc {
	struct sim *sim;
	int id, alive, paused, want_rank;
	int stray; /* of another job, which takes the name for its own */
	int host;
	int rank;
	uint64_t inc;
	struct cvy_driver driver;
	struct cvy_seam seam;
	struct cvy_store store; /* how its calls go: request.c */
	int deaf, told_down;	/* cut from the store; its client knows */
	int sees_old;		/* of two servers */
	int slow;		/* times slower than others, 0: is not */
	struct cvy_report told; /* what it reported last */
	struct cvy_mesh mesh;
	struct cvy_engine *engine;
	struct app app;
	struct seen seen;
	struct outcome outcome[SIM_SEQS];
	uint64_t timer_ns, expects[SIM_RANKS];
	uint32_t fenced; /* epoch that the engine has learned */
	int joined, join_err;
	int stuck;			     /* as a joiner it never enters its ADMIT, though its agent answers */
	uint64_t waits_for, waits_since;     /* number of its operation, and since when */
	struct sim_event *held, **held_last; /* what happened to it while it was stopped */
	uint64_t allocations;		     /* scarce.c: that count */
	int failed_allocations;
};

struct sim_view { /* every view that was active anywhere */
	char gid[40];
	uint32_t epoch;
	uint64_t vid, inc[SIM_RANKS];
	uint64_t pending, admitted; /* ranks; seq of the ADMIT that took them in, 0: none did */
};

struct sim {
	uint64_t seed, rng[SIM_STREAMS], now, serial, steps;
	int trace, failed, procs, world, faults, looked;
	int tcp; /* flavour of the links */
	int hosts; /* with tcp: of the two, 1: processes take turns, 2: two by two; 0: each lives alone, and nobody knows */
	size_t slot_bytes, undo_bytes;
	char why[300];
	struct proc *proc[SIM_PROCS];
	uint64_t link[SIM_PROCS][SIM_PROCS];   /* id, 0: none */
	uint64_t cut_ns[SIM_PROCS][SIM_PROCS]; /* when the last one was cut */
	uint64_t order[SIM_PROCS][SIM_PROCS];  /* arrival of the last control message */
	uint64_t frames[SIM_PROCS][SIM_PROCS]; /* and of the last data frame */
	uint64_t links;
	struct sim_view view[SIM_VIEWS];
	int views;
	struct sim_line line[SIM_LINES];
	int lines;
	struct sim_event **heap;
	int count, room;
	struct memory_server *server;
	struct memory_copy *copy;
	struct cvy_errbox *box;
	int restarts;
	struct memory_server *old; /* a primary that was replaced and does not know it */
	struct sim_request *late;  /* a call that was made and will be made again */
	int store_down, two;	   /* two: both servers answer */
	int manual;		   /* policy of admission */
	int blind;		   /* deaths are suspected, not proven, before the launcher says so */
	int wrap;		   /* enum sim_wrap: a counter that starts near its end */
	struct sim_plan *plan;	   /* faults.c */
	struct sim_net *net;	   /* net.c: the walls between processes */
};

enum sim_wrap { WRAP_NONE, WRAP_EPOCH, WRAP_TICK, WRAP_STAMP, WRAP_INCS, WRAP_LIFE, WRAPS };

/* heap.c */
uint64_t sim_draw(struct sim *sim, int stream, uint64_t below);
uint64_t sim_random(struct sim *sim, uint64_t below); /* of the applications */
uint64_t sim_hash(uint64_t a, uint64_t b);
uint64_t sim_lag(struct sim *sim, uint64_t us); /* of the network, ns */
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
int sim_off(const char *name); /* a checker that is switched off: I8, G2, ... */
void sim_trace(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* proc.c, invariants.c, net.c, world.c */
struct proc *sim_proc_of(struct sim *sim, uint64_t inc); /* NULL: no such */
int sim_survivor(struct proc *p);
uint64_t sim_passes(const struct sim *sim, const struct proc *from, const struct proc *to); /* ns, or later */
void sim_cut(struct proc *p, struct proc *q, int tell_p);			 /* ends the link of two processes */
struct sim_view *sim_view_of(struct proc *p, uint32_t epoch);			 /* NULL: never active */
extern const char *sim_offs;							 /* --off: names, commas between */
int sim_run(uint64_t seed, int trace, char *why, size_t bytes, uint64_t *steps); /* 0: held */

int sim_by_tcp(const struct proc *p, const struct proc *q); /* are they linked by sockets? */

/* sim_mesh.c */
void sim_mesh_open(struct proc *p);
void sim_mesh_close(struct proc *p);
void sim_mesh_abandon(struct proc *p);
void sim_mesh_up(struct proc *p, struct proc *other, int rank, uint64_t inc, uint64_t id);
int sim_mesh_down(struct proc *p, uint64_t id, int *rank, uint64_t *inc); /* 1: that link stood here, to them */
void sim_mesh_drop(struct proc *p, int rank, uint64_t inc);

extern int sim_away;  /* --away: the store is away for longer than every limit of members and joiners */
extern int sim_large; /* --large: members and store do what they do in groups of thousands */

/* scarce.c */
extern int sim_scarce;			       /* --scarce */
struct proc *sim_scarce_enter(struct proc *p); /* what the library does from here on is this process's; whose it was */
void sim_scarce_leave(struct proc *was);
void sim_scarce_pause(int on);
int sim_scarce_hit(const struct proc *p);		/* an allocation of it has failed */
int sim_scarce_fails(struct proc *p, const char *what); /* one that is made up fails */

/* app.c */
void app_start(struct proc *p);
void app_step(struct proc *p); /* calls what is due, takes what is decided */
void app_end(struct proc *p);

#endif
