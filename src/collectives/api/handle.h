/* SPDX-License-Identifier: Apache-2.0 */
/* struct covey_group: one member's handle. It owns loop, agent, mesh and engine, and the state that calls return. */
#ifndef CVY_HANDLE_H
#define CVY_HANDLE_H

#include "engine.h"
#include "membership.h"
#include "p2p.h"
#include "recorder.h"

#define CVY_EVENTS_KEPT 256

struct cvy_device;
struct cvy_gpu_receipt;

struct covey_work {
	struct covey_group *group;
	struct cvy_op *op; /* an operation on host memory; NULL: one on a device, or an elastic request */
	uint64_t id;	   /* request */
	int answered, err; /* under the handle's lock */
	char text[120];
	struct covey_work *next; /* requests not answered yet */

	struct cvy_gpu_receipt *receipt; /* an operation or message on a device (device_work.c); NULL: none */
	int is_message;
	const char *what;
	uint64_t posted_ns;
	struct covey_result outcome; /* until `answered` what was known when it was launched */
};

struct covey_group {
	struct cvy_config config;
	struct cvy_errbox *box;
	struct cvy_loop *loop;
	struct cvy_agent *agent;
	struct cvy_mesh *mesh;
	struct cvy_engine *engine;
	const struct cvy_site *here; /* what calls may read of it */
	struct cvy_seam seam;
	struct cvy_recorder *recorder;
	struct cvy_flight *flight; /* its page, NULL: none */
	struct cvy_metrics *metrics;
	struct cvy_device *device; /* NULL: none was asked for */
	int forked;		   /* this is the child of a fork: nothing works here */

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	int join_done, join_err;
	int join_told; /* its failure is in the log */
	int joiner;    /* joined as a replacement or extension: covey_admit comes first */
	int ready_asked;
	struct cvy_identity identity;
	struct cvy_view *view;
	int active;
	struct covey_event event[CVY_EVENTS_KEPT];
	uint64_t event_in, event_out;
	int event_fd;
	uint64_t next_id;
	struct covey_work *asked;
	struct cvy_memory *memory; /* registered buffers (memory.c) */
	struct cvy_op *admit_op;   /* a joiner's first admit that met its deadline: it continues */

	struct covey_group *next; /* all groups of the process, for fork */
};

struct cvy_engine *cvy_handle_engine(struct covey_group *group);
struct cvy_errbox *cvy_handle_box(struct covey_group *group);

/* 0, or the error that every call on this handle returns */
int cvy_handle_check(struct covey_group *group);
/* the same, and a joiner must have called covey_admit; never 0 for NULL, which lint does not see: callers ask again */
int cvy_handle_check_op(struct covey_group *group);
/* work.c. Under the lock: waits for a change; TIMEOUT at the deadline (0: none). */
int cvy_handle_await(struct covey_group *group, uint64_t deadline_ns);

void cvy_handle_seam(struct covey_group *group); /* fills group->seam and the engine's sink and send */
/* A message to a member, with a descriptor or -1. Agent's thread. */
int cvy_handle_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		    int fd);
struct cvy_observer cvy_handle_observer(struct covey_group *group);
void cvy_handle_left(struct covey_group *group);   /* its process may end: that is no death */
void cvy_memory_forget(struct covey_group *group); /* it is freed with the window */
struct covey_work *cvy_work_of(struct covey_group *group, struct cvy_op *op);
int cvy_work_aborted(const struct covey_work *work); /* an undecided work stays so: covey_abort() was called */
/* A wait for a work ends with @err before it is decided: tells covey_last_error() what it waits for. Returns @err. */
int cvy_work_undecided(struct covey_work *work, int err);

#endif
