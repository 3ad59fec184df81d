/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator of devices: the kernels as they are, the host's part of a view change as it is, in one thread under a seed.
 * The one idea: whatever may come next (a turn of a warp, the arrival of a store, a step of an agent, a fault) is an event
 * in virtual time, and every draw comes from the seed. So a seed is a run, and a run can be told.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

extern "C" {
#include "device_state.h"
#include "ep_call.h"
#include "ep_places.h"
#include "shape.h"
}

#define RANKS (CVY_GPU_IS_WIDE ? 64 : 4) /* of a group; in a wide build not all are in one word */
#define ROOM (CVY_GPU_IS_WIDE ? 64 : 6)	 /* the most, with --hosts */
#define INCS (RANKS + 10)		 /* incarnations of a seed, from 1 on */
static_assert(ROOM <= 64, "a set of ranks is one word here");
#define US 1000ull
#define MS 1000000ull

typedef std::function<void()> deed;

/* Of a build for any number of ranks, those below 64. */
static inline uint64_t low_ranks(cvy_ranks set)
{
	return cvy_ranks_long(set, 0);
}

/* ---- world.cc: time, chance, what is told ---- */

struct world {
	uint64_t seed, now, events;
	uint64_t chance; /* state of the generator */
	int trace, failed;
	int ragged;	       /* operations whose last step is not full are called, too */
	int wide;	       /* more lanes than tokens, so that several share one */
	int tall;	       /* operations have all rows, as large ones do */
	int late;	       /* deadlines are set, and missed by warps that are held up */
	int uneven;	       /* half of the collectives are alltoallv */
	int flat;	       /* rows of dispatch are announced, and looked at then */
	int places;	       /* experts have two places */
	int close;	       /* the rows of experts stand close */
	int bulk;	       /* several tokens of a lane, a row each at a rank: they go by bulk */
	int hosts;	       /* ranks are of several hosts, and operations go in two levels */
	int width;	       /* ranks of each of these */
	int hops;	       /* ranks are of several hosts, and rows cross to one once */
	int steps;	       /* dispatch and combine have one lane, with several */
	int pieces;	       /* they have two lanes, each with a piece of the row of each of several tokens */
	int apart;	       /* pairs of ranks leave one another out of dispatch and combine, without deadlines */
	int leave;	       /* ranks leave, or are retired */
	int linger;	       /* kernels of a process that died go on for a while */
	int crowded;	       /* a seed of four: what goes wrong comes close together (faults.cc) */
	std::string off, only; /* checkers that are silent; operations that are called */
};
extern struct world sim;

void sim_begin(uint64_t seed);
uint64_t sim_below(uint64_t n);
uint64_t sim_ranks(int n); /* some of the first @n */
int sim_odds(uint64_t one_in);
void sim_after(uint64_t ns, deed what);
struct warp;
void sim_turn_after(uint64_t ns, struct warp *warp); /* as above, for what happens most */
int sim_step(void);				     /* 0: nothing is left */
void sim_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The seed has failed: @checker is the first word of the report, unless it is switched off. */
void sim_fail(const char *checker, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- machine.cc: CTAs of all processes ---- */

struct process;

struct launch {
	struct process *of;
	std::function<void()> body;
	unsigned ctas, threads, next, left, resident;
	size_t room;
	int starts_later; /* and none before: who calls back expects to find it */
	std::vector<struct cta *> here;
	deed ended;
};

void machine_begin(void);
void machine_tell(void);
void machine_end(void); /* whatever stands still is forgotten */
void machine_start(struct launch *l);
void machine_die(struct process *p);  /* of what it has stored lately some is lost */
void machine_stir(struct process *p); /* something has changed that its kernels look at */

extern "C" void cpu_switch(void **from, void *to); /* of a fiber's stack; what it must keep lies there */

/* ---- agent.cc ---- */

/* A fiber of the host: it can stand still in the middle of a call, too. */
struct agent {
	struct process *of;
	std::deque<deed> inbox;
	void *stack_at;
	uint8_t *stack;
	int busy, holds; /* holds: a lock, or what else may not be seen in the middle */
};
void agent_open(struct agent *a, struct process *of);
void agent_close(struct agent *a);
void agent_do(struct agent *a, uint64_t after, deed what);
int agent_pause(uint64_t ns); /* from its own deeds; 0: this is none */

/* ---- letters.cc: what members tell each other ---- */

void letters_begin(void);
void letters_end(void);
int letter_send(void *from, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes, int fd);
void link_up(struct process *p, struct process *q); /* @p hears of it */

/* ---- member.cc: processes, and what stands for their membership ---- */

enum { OUT_NOT, OUT_LEFT, OUT_TOLD };  /* left out; and knows it */
enum { QUITS_NOT, QUITS, IS_RETIRED }; /* it calls nothing any more; it calls on */
enum { HELD_NOT, HELD_STREAM, HELD_LANE };

struct outcome {
	int done;
	uint64_t without; /* whom it was ended without, also by a process that is left out and does not know */
	struct cvy_gpu_status status;
};

struct process {
	int rank;
	uint8_t host;	    /* with hops: the next process of a rank may be of another one */
	uint64_t inc, from; /* from: 0, or grows with the safe point that let it in */
	int alive, stopped, leaves, out, joined, due;
	int quits;     /* QUITS_*: it leaves as soon as it may */
	int left;      /* it has said that it leaves */
	int lingers;   /* it has died, and its kernels go on */
	int ever_slow; /* others may have passed over it */
	int held_back; /* HELD_*: launches do not begin, or the CTAs of one lane have no turns */
	unsigned held_lane;
	uint64_t stalled_until;
	uint64_t stir;
	std::vector<struct warp *> held; /* turns that came due while it was stopped */
	std::vector<deed> held_deeds;
	struct cvy_device *device;
	uintptr_t far_from, far_to; /* addresses of the others' memory */
	struct agent agent;
	struct cvy_view *learned;
	std::vector<uint64_t> fenced;
	uint64_t linked
		[64]; /* the newest process of a rank that it is linked to: no older one gets through, as in p2p/handshake.c */
	uint64_t attempt; /* the last change that it was asked to stand still for */
	std::deque<struct launch *> stream;
	int running;
	struct cvy_ep_state *state;
	size_t next, completed; /* operations: to be launched; the first that has not ended */
	int launching;
	size_t first; /* operation, of who came by an ADMIT; NONE */
	std::vector<struct outcome> outcome;
	std::deque<struct buffers> buffers; /* by step */
};
extern std::vector<struct process *> processes;

struct member_view {
	uint32_t epoch;
	uint64_t members, pending;
	uint64_t inc[ROOM];
	int active; /* all have acknowledged it */
};
extern struct member_view view;
extern std::vector<struct member_view> committed; /* all that were decided, by epoch from 1 */

void members_begin(int n);
void members_end(void);
struct process *process_of(int rank); /* of the view; NULL */
struct process *process_by(uint64_t inc);
struct process *process_open(int rank, size_t first); /* it joins with operation @first, or later */
void process_kill(struct process *p);
void process_stop(struct process *p, int on);
void process_suspect(struct process *p);			 /* it is to be left out */
void process_quit(struct process *p, int how);			 /* it is to leave */
int members_settled(void);					 /* no change is under way, nobody waits to come in */
int members_join(int rank);					 /* another process of it; 0: not now */
int process_leaves(const struct process *p);			 /* it is to be left out */
int same_view(const struct process *a, const struct process *b); /* both are in it, and alive */
void stream_pump(struct process *p);

/* ---- plan.cc: what there is to call ---- */

#define NONE SIZE_MAX

struct setup {
	int size, lanes, split, renormalise, owner[CVY_EP_EXPERTS];
	int places; /* of an expert: shape.experts are all of them */
	struct cvy_ep_shape_gpu shape;
	struct cvy_ep_form form[2];
	struct cvy_ep_tables tables;
	int resident;	     /* CTAs of a launch that run at a time */
	int fp16;	     /* elements, else bf16 */
	uint8_t host[RANKS]; /* of the first processes */
};
extern struct setup setup;

struct op {
	int kind, timeout_ms, phase; /* phase: 0, or CVY_EP_SEND, whose outcome nobody has */
	size_t step;
	struct cvy_gpu_call call; /* form of a collective */
	uint64_t in_place;	  /* ranks that call in place */
	size_t count;		  /* of int32; alltoallv: from one block to the next, gap included */
	uint64_t seed;
	struct covey_result admit;
};
extern std::deque<struct op> plan;

#define PARTS 19
enum {
	X,
	IDS,
	WEIGHTS,
	PACKED,
	SCALES,
	COUNT,
	SRC,
	RANGE,
	ROUTE,
	Y,
	OUT,
	ACTIVE,
	NAMED,
	NAMED_WEIGHTS,
	SEND,
	RECV,
	WAITED,
	ARRIVED,
	FLAT
};
#define CANARY 64
#define POISON 0xc5

struct seen { /* a row that was announced, as it was then */
	size_t row;
	std::vector<uint8_t> bytes;
};

struct buffers { /* of one step of one process; shared by its operations */
	std::vector<uint8_t> memory;
	uint8_t *at[PARTS];
	size_t bytes[PARTS];
	int num_tokens;
	int dispatched;	 /* its dispatch has ended, and is what it should be */
	uint64_t living; /* the contributors of that: by these its tokens have places */
	std::vector<struct seen> seen;
	int ended; /* the dispatch has told its end, with so many rows announced */
	size_t rows_at_end;
};

/* What a rank gives to a step, whoever it is then. */
struct given {
	std::vector<uint16_t> x;
	std::vector<int32_t> ids, send;
	std::vector<float> weights;
	int num_tokens;
};

struct step {
	size_t first; /* operation */
	struct given given[ROOM];
	struct process *dispatched[ROOM]; /* who had the rank */
};

extern std::deque<struct step> steps;
void plan_begin(int n);
void plan_end(void);
void plan_to(size_t op); /* there are so many operations, and one more */
void plan_add(struct op o);
/* By what alone it is of, not by when it is asked for. */
uint64_t plan_hash(uint64_t a, uint64_t b);
/* Of alltoallv: elements from rank @from to rank @to. *at: where they begin, in the blocks of either. */
size_t plan_pair(const struct op *o, int from, int to, size_t *at);

/* ---- app.cc: what is called ---- */

void app_begin(void);
void app_run(struct process *p);			   /* it calls what is next, some time */
size_t app_safe_point(const struct covey_result *outcome); /* the operation that lets newcomers in */
int app_over(void);					   /* all have called and completed all */
int app_bins(int rank, int *el);			   /* of rows: its experts, or one */
int app_runs(int rank);					   /* of rows of each source: its experts, or one */
size_t app_kept(int rank);				   /* rows of a bin */
uint64_t app_left_out(const struct op *o, int rank);
size_t app_row_bytes(void); /* of packed_x */

/* check.cc */

/* Operation @OP of @P is not what it must be. */
#define WRONG(CHECKER, P, OP, FORMAT, ...) \
	sim_fail(CHECKER, "rank %d, operation %zu of kind %d: " FORMAT, (P)->rank, OP, plan[OP].kind, ##__VA_ARGS__)

void check_begin(void);
void check_same(struct process *p, size_t op, const char *of, const void *got, const void *want, size_t bytes);
void check_ended(struct process *p, size_t op);
void check_words(const struct process *p); /* it is about to go on */
void check_gives_up(const struct process *p, const char *why);

/* check_ep.cc */
void check_announced(struct process *p, size_t op); /* while the dispatch runs */
void check_dispatch(struct process *p, size_t op);
void check_combine(struct process *p, size_t op);

/* faults.cc */
void faults_begin(int n);
void faults_on_progress(struct process *p, size_t op); /* it has called it */
void faults_on_end(struct process *p, size_t op);      /* it has its outcome */
void faults_on_change(const char *phase);
void faults_on_gate(struct process *p); /* it is about to stand still */
int faults_over(void);

#endif
