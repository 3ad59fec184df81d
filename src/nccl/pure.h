/* SPDX-License-Identifier: Apache-2.0 */
/* What needs neither a group nor a device: types, names of groups, rounds of messages. Tested alone. */
#ifndef CVY_NCCL_PURE_H
#define CVY_NCCL_PURE_H

#include "nccl_types.h"

#define CVY_NCCL_RANKS 256 /* of a communicator in any build; covey_device_max_ranks() says of how many this one is */
#define CVY_NCCL_MESSAGES 128 /* of one launch */
#define CVY_NCCL_PEERS 32     /* the same: each takes two processors at least */
#define CVY_NCCL_STORE_CHARS 96
#define CVY_NCCL_NAME_CHARS 48

/* The content of an ncclUniqueId. */
struct cvy_nccl_id {
	char mark[8];			  /* CVY_NCCL_MARK */
	uint64_t root;			  /* random; the same for all communicators that were made from one id */
	uint64_t path;			  /* 0, then mixed with each step from communicator to communicator */
	uint64_t own_store;		  /* not 0: the store ends with the last process that uses it (store.h) */
	char store[CVY_NCCL_STORE_CHARS]; /* URL; empty: the variable COVEY_STORE of each rank */
};

#define CVY_NCCL_MARK "covey-1"

/* How a communicator was made from another one. */
enum cvy_nccl_step { CVY_NCCL_SPLIT = 1, CVY_NCCL_SHRINK, CVY_NCCL_GROW };

/* covey's number for the type in which a type is reduced: 8-bit floats are, as f32. -1: no such type. */
int cvy_nccl_reduced(ncclDataType_t type);
/* The same for a type that is only moved: 8-bit floats move as bytes. */
int cvy_nccl_moved(ncclDataType_t type);
int cvy_nccl_is_float8(ncclDataType_t type);
/* Bytes of an element; 0: no such type. */
size_t cvy_nccl_bytes(ncclDataType_t type);
/* What a caller of NCCL gets for an error of covey. */
ncclResult_t cvy_nccl_result(int err);

/* One more step on a path: the same on all ranks that give the same numbers. */
uint64_t cvy_nccl_mix(uint64_t path, enum cvy_nccl_step step, uint64_t number, uint64_t count);
/* The name of the group, in @text of CVY_NCCL_NAME_CHARS. */
void cvy_nccl_name(const struct cvy_nccl_id *id, char *text);

/*
 * The place of a rank in a split: @all has color and key of each of @size ranks. Returns the size of the new communicator
 * and writes the rank; 0: the rank is in none.
 */
int cvy_nccl_split(const int32_t (*all)[2], int size, int rank, int *new_rank);
/* The same for a shrink; -1: @excluded names no rank, or a rank twice, or this one. */
int cvy_nccl_shrink(const int *excluded, int n, int size, int rank, int *new_rank, uint64_t *key);

/*
 * The round of a message of one communicator and one group of calls, which is the nth to that peer, or from it. In one
 * round a rank has messages with at most CVY_NCCL_PEERS peers, a quota with each. Both follow from the size and from the sum
 * of the two ranks. So both sides have it in the same round, and no launch has more than CVY_NCCL_MESSAGES.
 */
int cvy_nccl_round(int nth, int size, int rank, int peer);

#endif
