/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications of the simulator call, and what they keep of it. Every member calls the same
 * operations, made from (seed, number) alone, with inputs made from (incarnation, number): so the right
 * outcome is known from its mask, and bytes of anybody else, or of another operation, are seen.
 */
#ifndef SIM_APP_H
#define SIM_APP_H

#include "engine.h"
#include "operations/operations.h"

#define SIM_QUEUE 4	 /* operations that an application has posted at once */
#define SIM_LAYERS 2	 /* handles of dispatch and combine */
#define SIM_BLOCK 6	 /* operations from one safe point to the next */
#define STATE_BYTES 40	 /* that a joiner gets */
#define SIM_MESSAGES 200 /* from one incarnation to another */
#define EP_TOKENS 5	 /* of one rank and dispatch */
#define EP_ROOM 180	 /* tokens that there is room for in the largest handle */
#define EP_HIDDEN 8
#define EP_TOP_K 2
#define EP_EXPERTS 8
#define EP_PLACES 3 /* of an expert, at most */
#define EP_IDS (EP_TOKENS * EP_TOP_K)

struct sim;
struct proc;
struct sim_view;

/* Kinds: those of operations.h, and these. */
enum app_kind { ADMIT = OP_SENDRECV, DISPATCH, COMBINE, APP_KINDS };

struct shape { /* of operation seq */
	int kind, root, in_place, on_loss;
	int layer;    /* dispatch, combine */
	int timed;    /* these with a deadline */
	int choosy;   /* these with active_ranks, each rank its own */
	int odd;      /* not what the others call */
	size_t count; /* of int32, per block */
};

struct outcome {
	int have, status, size, kind, root, odd;
	size_t count;
	uint32_t epoch;
	uint64_t mask; /* ranks */
	uint64_t hash; /* of the bytes of a replicated one */
};

struct call {
	struct shape shape;
	struct covey_work *work; /* NULL: given away at once, or no work is made of its kind */
	struct cvy_op *op;	 /* lives as long as work; NULL: given away */
	uint64_t seq;		 /* 0: a joiner's first */
	uint8_t *send, *recv;
	size_t send_bytes, recv_bytes;
	uint64_t send_hash; /* of the input, as it was when it was called */
	int size, in_place;
	int late; /* it is decided, and a source was masked as late */
	int lent; /* send is a registered buffer */
};

struct app_layer;
struct app_talk;

struct app {
	int started, joiner, admitting; /* admitting: a call of covey_admit is not decided */
	uint64_t next;			/* number of the next call */
	uint64_t resume_ns;		/* the application is busy with other things until then */
	struct call call[SIM_QUEUE];
	int calls;
	uint64_t decided, last_ns;
	uint64_t acked; /* ranks of its last safe point */
	int leaving;	/* it calls nothing any more and leaves when nobody needs it */
	struct covey_group *group;
	struct app_layer *layer[SIM_LAYERS];
	uint32_t last_epoch;   /* of the last outcome */
	struct app_talk *talk; /* app_pair.c: with whom it exchanges messages */
	uint64_t left_ns;      /* it leaves then at the latest */
};

/* app_shape.c */
struct shape app_shape(const struct sim *s, uint64_t seq, int rank);
int app_odd(const struct sim *s, uint64_t seq);	 /* rank that calls something else at seq, -1: none does */
int app_errs(const struct sim *s, uint64_t seq); /* somebody does, or each calls itself the root */
size_t app_vcount(const struct sim *s, const struct shape *shape, uint64_t seq, int from, int to);
/* Do some ranks have some of their inputs in registered buffers? */
int app_lends(const struct sim *s);
/* Do handles of dispatch and combine go at every safe point, and others of other sizes come? */
int app_swaps(const struct sim *s);
/* Do experts have several places? */
int app_places(const struct sim *s);
size_t app_vat(const struct sim *s, const struct shape *shape, uint64_t seq, int rank, int block, int receive);
void app_buffers(struct proc *p, struct call *c);
const struct operation *app_op(int kind);
int app_private(int kind);	  /* each rank has its own outcome */
int app_needs_everyone(int kind); /* it ends on no rank without a word of all */
int app_sends_blocks(const struct proc *p, const struct shape *shape);
size_t app_gcount(const struct shape *shape, int rank); /* elements of a rank in an allgatherv */
extern const char *const app_names[APP_KINDS];

/* Element i of what an incarnation contributes to seq, for one destination: at + i * by. */
struct stream {
	uint32_t at, by;
};
struct stream app_stream(uint64_t inc, uint64_t seq, int to);
uint64_t app_hash(const uint8_t *bytes, size_t n);

/* app_ep.c */
void app_ep_open(struct proc *p);
void app_ep_close(struct proc *p);
void app_ep_remap(struct proc *p, uint64_t seq);
int app_ep_call(struct proc *p, struct call *c);
int app_ep_may_call(const struct proc *p, const struct shape *shape); /* combine: its dispatch is taken */
int app_ep_take(struct proc *p, struct call *c, struct covey_result *result);
/* Does the rank of @inc leave @other out of that operation? */
int app_ep_leaves_out(uint64_t inc, uint64_t seq, int other);
int app_ep_same(const struct proc *p, const struct proc *q); /* offsets */

/* check_ep.c */
void app_ep_check(struct proc *p, const struct call *c, const struct covey_result *res, const struct sim_view *v);
/* owners that lost what this rank dispatched */
uint64_t app_ep_excused(const struct proc *p, const struct call *c, const struct sim_view *v);

/* app_pair.c */
int app_talks(const struct sim *s); /* applications of this run exchange messages */
void app_talk(struct proc *p);	    /* posts what is due, takes what is decided */
int app_talk_over(struct proc *p);  /* who leaves may go */
int app_talk_settled(const struct sim *s);
void app_talk_end(struct proc *p);

#endif
