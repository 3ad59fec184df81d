/* SPDX-License-Identifier: Apache-2.0 */
/* One seat of a process of the crew: its group, its buffers and the current operation. */
#ifndef CHAOS_WORK_H
#define CHAOS_WORK_H

#include "plan.h"
#include "covey_ep.h"

#define CHAOS_ROOM_SLACK 4096 /* bytes of send and recv past the largest size of the plan */
#define CHAOS_HANDLES 3	      /* dispatch/combine handles at a time */
#define CHAOS_BLOCKS 3	      /* and registered buffers */

/* A step in which ranks call something else than the others. All draw the same one. */
struct chaos_mistake {
	enum chaos_slip slip;
	int op;		/* of the right call */
	uint64_t ranks; /* the wrong ranks; a missing rank makes no mistake */
	bool apart;	/* each in another way */
	uint64_t random;
};

struct chaos_member {
	struct chaos_crew *crew;
	struct chaos_desk *desk;
	struct chaos_seat *seat, *log; /* log: for the record of this operation */
	struct covey_group *group;
	struct covey_work *work; /* of a started call */
	int number;		 /* of the group */
	int rank;		 /* in the group */
	int size;		 /* of the group, since the last safe point */
	bool joiner;
	bool scribbles;	       /* spoils its own window by a rule: its own results do not count */
	uint64_t step, random; /* of this step, the same on all ranks */
	float *send, *recv;
	float *inputs;	/* see chaos_inputs() */
	uint32_t epoch; /* whose view event was noted */
	bool lends;	/* send is a registered buffer */
	struct covey_ep *ep;
	struct chaos_ep_room *room;
	struct chaos_device *device; /* NULL: on host memory */
	struct chaos_record record;
	struct chaos_handle *handle[CHAOS_HANDLES]; /* of changing sizes; NULL: not there */
	void *block[CHAOS_BLOCKS];		    /* registered buffers that come and go */
	size_t sent;				    /* bytes of send if it is registered, else 0 */
	float *home;				    /* send if it is not registered */
	const struct chaos_mistake *mistake;	    /* of this step, NULL: none */
};

void chaos_begin(struct chaos_member *m, int op);
/* 0: an outcome of the group (status in the record); else the exit code of this process. */
int chaos_end(struct chaos_member *m, int err, const struct covey_result *result);
void chaos_put(struct chaos_member *m);
int chaos_bad_bytes(struct chaos_member *m, const char *what, size_t at, double got, double want);
int chaos_member_fail(struct chaos_member *m, const char *what, int err);
void chaos_trap_at(struct chaos_member *m, enum chaos_trap trap);

uint64_t chaos_draw(const struct chaos_member *m, unsigned what, uint64_t below); /* the same on all ranks */
uint64_t chaos_scramble(uint64_t x);

int chaos_work(struct chaos_member *m); /* one operation; 0 or the exit code */
/* A form of call drawn for each rank: true: started and waited for. */
bool chaos_in_two(const struct chaos_member *m);
int chaos_started(struct chaos_member *m, int err, struct covey_result *result);
size_t chaos_elements(const struct chaos_member *m); /* of this step */
/* The input of rank @rank for @to: a small integer, different in every step. */
float chaos_value(const struct chaos_member *m, int rank, int to, size_t i);
/* What all ranks' inputs for @to are a multiple of, in this step: rank r's is r + 1 times that. */
const float *chaos_inputs(const struct chaos_member *m, int to);
int chaos_inputs_make(struct chaos_member *m, size_t bytes);

/* Block @r of @count elements must be rank r's input for @to, or zero if it took no part. */
int chaos_expect_block(struct chaos_member *m, const char *what, const float *got, int r, int to, size_t count);

/* mistake.c. settle, refused: judge this rank's call in a step with a mistake; the record is logged or ready for it */
bool chaos_mistake_draw(const struct chaos_member *m, struct chaos_mistake *out); /* false: none in this step */
int chaos_mistake_work(struct chaos_member *m, const struct chaos_mistake *mistake);
int chaos_mistake_unlike(const struct chaos_member *m, uint64_t mask);
int chaos_mistake_settle(struct chaos_member *m, bool strict, const char *mine);
int chaos_mistake_refused(struct chaos_member *m, bool refused);

/* handles.c */
int chaos_handles_work(struct chaos_member *m);
int chaos_handles_mistake(struct chaos_member *m);
void chaos_handles_close(struct chaos_member *m);

/* block.c: send becomes a registered buffer of this step's size, or not; a freed one is overwritten first */
int chaos_block_take(struct chaos_member *m, size_t bytes);
int chaos_block_give(struct chaos_member *m);

int chaos_ep_open(struct chaos_member *m);
int chaos_ep_resize(struct chaos_member *m);
int chaos_ep_work(struct chaos_member *m);
void chaos_ep_close(struct chaos_member *m);

/* device.c. open, twin, admitted, route: 0 or the exit code; copy, begin, outcome, end: 0 or COVEY_ERR_*. */
int chaos_device_open(struct chaos_member *m);
void chaos_device_close(struct chaos_member *m);
int chaos_device_twin(struct chaos_member *m, void *host, size_t bytes);
void *chaos_there(struct chaos_member *m, const void *host); /* its place on the device; without one, itself */
struct CUstream_st *chaos_stream(const struct chaos_member *m);
int chaos_device_copy(struct chaos_member *m, const void *host, bool back); /* the whole twin */
int chaos_device_begin(struct chaos_member *m);
int chaos_device_end(struct chaos_member *m, int err, struct covey_result *result);
int chaos_device_outcome(struct chaos_member *m, int err, struct covey_result *result);
int chaos_device_admitted(struct chaos_member *m);
int chaos_device_route(struct chaos_member *m);
void *chaos_route(const struct chaos_member *m);

#endif
