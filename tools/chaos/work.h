/* SPDX-License-Identifier: Apache-2.0 */
/* One seat of a process of the crew: its group, its buffers and the operation under way. */
#ifndef CHAOS_WORK_H
#define CHAOS_WORK_H

#include "plan.h"
#include "covey.h"

#define CHAOS_EP_TOKENS 32
#define CHAOS_EP_HIDDEN 128
#define CHAOS_EP_TOP_K 2
#define CHAOS_EP_EXPERTS 16

struct chaos_member {
	struct chaos_crew *crew;
	struct chaos_desk *desk;
	struct chaos_seat *seat, *log; /* log: where the record of this operation goes */
	struct covey_group *group;
	struct covey_work *work; /* of a call that was started */
	int number;		 /* of the group */
	int rank;		 /* in the group */
	int size;		 /* of the group, since the last safe point */
	bool joiner;
	bool scribbles;	       /* spoils its own window by a rule: its own results are nobody's */
	uint64_t step, random; /* of this step, the same on all ranks */
	float *send, *recv;
	bool lends; /* send is a registered buffer */
	struct covey_ep *ep;
	struct chaos_ep_room *room;
	struct chaos_device *device; /* NULL: on host memory */
	struct chaos_record record;
};

void chaos_begin(struct chaos_member *m, enum chaos_work op);
/* 0: an outcome of the group (status in the record); else the exit code of this process. */
int chaos_end(struct chaos_member *m, int err, const struct covey_result *result);
void chaos_put(struct chaos_member *m);
int chaos_bad_bytes(struct chaos_member *m, const char *what, size_t at, double got, double want);
int chaos_member_fail(struct chaos_member *m, const char *what, int err);
void chaos_trap_at(struct chaos_member *m, enum chaos_trap trap);

int chaos_work(struct chaos_member *m); /* one operation; 0 or the exit code */

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
