/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation under way: struct cvy_op. The functions of its kind set rounds, piece, ticks and input_bytes when it is
 * planned, and priv; all else is set by the call that makes it and by the engine.
 */
#ifndef CVY_OPERATION_H
#define CVY_OPERATION_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "covey.h"

struct cvy_engine;
struct cvy_op;
struct cvy_op_kind;

/* How the bytes of an operation travel (hosts.c). */
enum cvy_way {
	CVY_WAY_FLAT,  /* each rank signals each */
	CVY_WAY_HOSTS, /* one rank of a host receives, and passes on in its window */
	CVY_WAY_CHAIN  /* a running fold travels from host to host */
};

/* The arguments of a blocking call: the same call again gets the same operation. */
struct cvy_asked {
	const struct cvy_op_kind *kind;
	const void *send;
	void *recv;
	size_t count;
	int dtype, redop, root;
};

/*
 *             begins               is decided
 *     QUEUED --------> ENTERED ---------------> DECIDED,   and a repair or the end decides a QUEUED one
 *       ^                 |                        |
 *       '-----------------+------------------------'
 *         a view has it done again; the same call takes it again
 */
enum cvy_op_state { CVY_OP_QUEUED, CVY_OP_ENTERED, CVY_OP_DECIDED };

/* One send or receive: the private part of an operation of class PAIR (op->priv, pair.h). */
struct cvy_parcel {
	struct cvy_parcel *next;
	struct cvy_op *op;
	uint64_t number; /* of the message, once it is known */
	int tag;	 /* asked for; that of the message, once it is known */
	size_t total;	 /* bytes of the message (receive), bytes that are wanted (send) */
	size_t at;	 /* bytes of these that were moved */
};

struct cvy_op {
	const struct cvy_op_kind *kind;
	uint64_t seq;	 /* 0: a joiner's first covey_admit, not known yet */
	uint32_t sig;	 /* hash of the call: the same on all ranks */
	uint32_t mark;	 /* in its lines: hash of sig, number and first tick, and of the calls before it */
	uint32_t past;	 /* e->past when it began */
	uint64_t detail; /* hash of arguments that must be the same and are in no other field, 0: none */
	uint64_t call;	 /* kind, type, op, root, count in short, for reports of mismatches; and the lap */
	int state;	 /* enum cvy_op_state; DECIDED is stored with release */
	int rounds;	 /* 1 or 2 */
	int way;	 /* enum cvy_way, chosen from the view when it begins: the same on all ranks */
	int flat_rounds; /* rounds of CVY_WAY_FLAT */
	uint64_t ticks;	 /* of the whole operation; 0: not known before tick 0 is complete */
	uint32_t first;	 /* tick number of i = 0 */
	uint64_t entered, second, completed; /* ticks published in round 1, in round 2, completed */
	uint64_t handed;		     /* ticks of which a chain has passed on its fold */
	int scan[3];			     /* per round: index in the set of the first source not seen yet */
	int on_loss;
	size_t lends; /* offset of the own input in the own window, 0: it is copied through slots */
	int lent;     /* some source of it lends: it ends with everyone's done word */
	int spoiled;  /* results were written over inputs that a redo would need */

	const void *send; /* arguments, as the kinds use them */
	void *recv;
	size_t count, elem, bytes; /* bytes: count * elem */
	size_t piece;		   /* bytes of the operation per tick */
	int dtype, redop, root;
	const uint8_t *input; /* send, or the undo copy of an in-place input */
	size_t input_bytes;   /* of an input that results overwrite (in place), 0: none */
	uint8_t *undo;	      /* the engine's; NULL: none */
	void *priv;	      /* of the kind */
	struct cvy_engine *engine;
	uint64_t posted_ns;
	int refs;	     /* caller or work; queue, then record */
	uint64_t behind;     /* last operation whose data others may still read where its slots are, 0: none */
	int partial;	     /* it may be decided without a rank that has not published: a deadline, or one left out */
	uint64_t timeout_ns; /* of one tick, from its publishing: then missing sources are masked; 0: never */
	uint64_t late_ns;    /* the time when that ends, once the tick is published */
	int late;	     /* a source was masked for it */
	struct cvy_op *next;
	struct cvy_op *next_again; /* its call returned AGAIN */
	struct cvy_parcel parcel;
	struct cvy_asked asked;
	uint32_t planned;	    /* e->plans when it was planned, 0: the plan is not reused */
	struct covey_result result; /* last: its mask is not cleared in advance */
};

/* The only writer of op->state. */
static inline void cvy_op_turn(struct cvy_op *op, enum cvy_op_state to)
{
	assert(to == CVY_OP_ENTERED ? op->state == CVY_OP_QUEUED : to != CVY_OP_DECIDED || op->state != CVY_OP_DECIDED);
	__atomic_store_n(&op->state, to, __ATOMIC_RELEASE);
}

#define CVY_LAP_BITS 8

/* A hash of number and first tick. Ranks differ in it only if mismatched calls made them count ticks differently. */
static inline uint8_t cvy_lap(uint64_t call)
{
	return (uint8_t)call;
}

#endif
