/* SPDX-License-Identifier: Apache-2.0 */
/* The calls between layers in one process: the agent's calls to mesh and engine, its news to the application. */
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "device.h"
#include "handle.h"
#include "log.h"
#include "metrics.h"

/* ---- seam: agent's thread ---- */

static void seam_identity(void *ctx, const struct cvy_identity *id)
{
	struct covey_group *group = ctx;

	pthread_mutex_lock(&group->lock);
	group->identity = *id;
	group->config.max_ranks = id->max_ranks; /* as the creator set it */
	pthread_mutex_unlock(&group->lock);
	cvy_mesh_identity(group->mesh, id);
	cvy_engine_identity(group->engine, id->rank, id->max_ranks);
	if (group->device)
		cvy_device_identity(group->device, id);
	cvy_flight_identity(group->flight, id->rank, id->inc);
	cvy_metrics_serve(group->metrics, id->rank);
}

int cvy_handle_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		    int fd)
{
	struct covey_group *group = ctx;

	return fd < 0 ? cvy_mesh_send(group->mesh, rank, inc, type, epoch, body, bytes)
		      : cvy_mesh_send_fd(group->mesh, rank, inc, type, body, bytes, fd);
}

/* Once a second: whom this rank waits for is looked up here, so that no operation has to record it. */
static void seam_numbers(void *ctx, char text[CVY_BEAT_TEXT])
{
	struct covey_group *group = ctx;
	uint64_t waited_ns = 0;
	int awaited;

	text[0] = '\0';
	if (!group->flight)
		return;
	awaited = cvy_engine_awaited(group->engine, cvy_now_ns(), &waited_ns);
	__atomic_store_n(&group->flight->awaited, awaited, __ATOMIC_RELAXED);
	__atomic_store_n(&group->flight->awaited_ns, waited_ns, __ATOMIC_RELAXED);
	cvy_metrics_beat(group->flight, text);
}

static void seam_freeze(void *ctx, uint32_t epoch)
{
	struct covey_group *group = ctx;

	if (group->device) /* kernels and steppers stop at the same time */
		cvy_device_freeze(group->device, epoch);
	cvy_engine_freeze(group->engine, epoch);
}

static void seam_learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		       const struct covey_mask *lag)
{
	struct covey_group *group = ctx;

	if (group->device)
		cvy_device_learn(group->device, view, removed);
	cvy_engine_learn(group->engine, view, removed, lag);
}

static void seam_thaw(void *ctx)
{
	struct covey_group *group = ctx;

	if (group->device)
		cvy_device_thaw(group->device);
	cvy_engine_thaw(group->engine);
}

static void seam_stop(void *ctx, int err)
{
	struct covey_group *group = ctx;

	if (group->device)
		cvy_device_stop(group->device, err);
	cvy_engine_stop(group->engine, err);
}

static uint64_t seam_progress(void *ctx, int *waiting)
{
	struct covey_group *group = ctx;
	struct cvy_engine *e = group->engine;
	uint64_t now = cvy_now_ns();

	if (group->flight)
		__atomic_store_n(&group->flight->clock_ns, now, __ATOMIC_RELAXED);
	if (group->device)
		cvy_device_look(group->device);
	cvy_engine_admit_late(e, now);
	return cvy_engine_progress(e, waiting);
}

static int seam_retire(void *ctx)
{
	struct covey_group *group = ctx;

	cvy_engine_ask_progress(group->engine, cvy_now_ns());
	return cvy_engine_retire(group->engine) && (!group->device || cvy_device_may_leave(group->device, 1));
}

static void seam_point(void *ctx, const char *name)
{
	cvy_fault_point(cvy_mesh_fault(((struct covey_group *)ctx)->mesh), name);
}

/* ---- engine to mesh: control messages are sent on the agent's thread ---- */

struct outgoing {
	int rank, type;
	uint64_t inc;
	uint32_t epoch, bytes;
	uint8_t body[];
};

static void send_posted(void *ctx, void *arg)
{
	struct covey_group *group = ctx;
	struct outgoing *o = arg;

	cvy_mesh_send(group->mesh, o->rank, o->inc, o->type, o->epoch, o->body, o->bytes);
	free(o);
}

static int engine_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	struct covey_group *group = ctx;
	struct outgoing *o = malloc(sizeof(*o) + bytes);
	int err;

	if (!o)
		return COVEY_ERR_NOMEM;
	*o = (struct outgoing){ rank, type, inc, epoch, bytes };
	if (bytes)
		memcpy(o->body, body, bytes);
	err = cvy_loop_post(group->loop, send_posted, group, o);
	if (err)
		free(o);
	return err;
}

void cvy_handle_seam(struct covey_group *group)
{
	group->seam = (struct cvy_seam){
		.ctx = group,
		.links = group->mesh,
		.engine = group->engine,
		.identity = seam_identity,
		.expect = cvy_mesh_expect,
		.dial = cvy_mesh_dial,
		.drop = cvy_mesh_drop,
		.send = cvy_mesh_send,
		.page = cvy_mesh_page,
		.describe = cvy_mesh_describe,
		.numbers = seam_numbers,
		.freeze = seam_freeze,
		.learn = seam_learn,
		.repair = cvy_engine_repair,
		.thaw = seam_thaw,
		.message = cvy_engine_message,
		.stop = seam_stop,
		.progress = seam_progress,
		.retire = seam_retire,
		.peer_progress = cvy_engine_peer_progress,
		.point = cvy_mesh_fault(group->mesh) ? seam_point : NULL,
	};
	cvy_engine_connect(group->engine, group->device ? cvy_device_sink(group->device) : cvy_agent_sink(group->agent),
			   engine_send, group);
}

/* ---- observer: agent's thread ---- */

static void changed(struct covey_group *group)
{
	pthread_cond_broadcast(&group->changed);
	pthread_mutex_unlock(&group->lock);
}

static void observe_joined(void *ctx, int err)
{
	struct covey_group *group = ctx;

	if (!err && cvy_engine_await_admit(group->engine))
		group->joiner = 1;
	pthread_mutex_lock(&group->lock);
	group->join_err = err;
	__atomic_store_n(&group->join_done, 1, __ATOMIC_RELEASE);
	changed(group);
}

static void observe_event(void *ctx, const struct covey_event *event)
{
	struct covey_group *group = ctx;
	uint64_t one = 1;

	cvy_flight_event(group->flight, event);
	pthread_mutex_lock(&group->lock);
	if (group->event_in - group->event_out == CVY_EVENTS_KEPT)
		group->event_out++;
	group->event[group->event_in++ % CVY_EVENTS_KEPT] = *event;
	(void)!write(group->event_fd, &one, sizeof(one));
	changed(group);
}

static void observe_view(void *ctx, const struct cvy_view *view, int active)
{
	struct covey_group *group = ctx;

	cvy_flight_view(group->flight, view, active);
	pthread_mutex_lock(&group->lock);
	if (view && !group->view)
		group->view = cvy_view_dup(view);
	else if (view)
		cvy_view_copy(group->view, view);
	group->active = active;
	changed(group);
}

static void observe_answer(void *ctx, uint64_t id, int err, const char *cause)
{
	struct covey_group *group = ctx;

	pthread_mutex_lock(&group->lock);
	for (struct covey_work **at = &group->asked; *at; at = &(*at)->next) {
		struct covey_work *work = *at;

		if (work->id != id)
			continue;
		*at = work->next;
		work->err = err;
		if (cause)
			snprintf(work->text, sizeof(work->text), "%s", cause);
		__atomic_store_n(&work->answered, 1, __ATOMIC_RELEASE);
		break;
	}
	changed(group);
	if (err)
		cvy_fail(group->box, err, -1, group->view ? group->view->epoch : 0, "%s",
			 cause ? cause : covey_strerror(err));
}

/* For peers that see the process end before they learn the view without it. */
void cvy_handle_left(struct covey_group *group)
{
	if (group->engine && group->here->own)
		__atomic_store_n(&group->here->own->left, 1, __ATOMIC_RELEASE);
}

static void observe_ended(void *ctx, int err)
{
	struct covey_group *group = ctx;

	if (group->flight)
		group->flight->ended = 1;
	if (err == COVEY_ERR_CLOSED)
		cvy_handle_left(group);
	pthread_mutex_lock(&group->lock);
	if (!group->join_done) {
		group->join_err = err;
		__atomic_store_n(&group->join_done, 1, __ATOMIC_RELEASE);
	}
	while (group->asked) {
		struct covey_work *work = group->asked;

		group->asked = work->next;
		work->err = err;
		__atomic_store_n(&work->answered, 1, __ATOMIC_RELEASE);
	}
	changed(group);
}

struct cvy_observer cvy_handle_observer(struct covey_group *group)
{
	return (struct cvy_observer){
		group, observe_joined, observe_event, observe_view, observe_answer, observe_ended
	};
}
