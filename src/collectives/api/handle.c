/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a handle: join, leave, abort, close, and the effect of fork. */
#include "calls.h"
#include "device.h"
#include "handle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "pair.h"
#include "metrics.h"
#include "plan.h"
#include "process.h"

#define LEAVE_MS 10000 /* drain_ms of the protocol */

static struct {
	pthread_mutex_t lock;
	struct covey_group *first;
	pthread_once_t once;
} groups = { .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT };

static void before_fork(void)
{
	pthread_mutex_lock(&groups.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&groups.lock);
}

/* The child has none of the threads. Its copies of sockets would hide our death from peers, and hold the metrics' place. */
static void after_fork_in_child(void)
{
	for (struct covey_group *g = groups.first; g; g = g->next) {
		g->forked = 1;
		if (g->mesh)
			cvy_mesh_forget(g->mesh);
		cvy_metrics_forget(g->metrics);
	}
	groups.first = NULL;
	cvy_progress_forget();
	cvy_calls_forget();
	pthread_mutex_init(&groups.lock, NULL);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void list_add(struct covey_group *group)
{
	pthread_once(&groups.once, watch_forks);
	pthread_mutex_lock(&groups.lock);
	group->next = groups.first;
	groups.first = group;
	pthread_mutex_unlock(&groups.lock);
}

static void list_del(struct covey_group *group)
{
	pthread_mutex_lock(&groups.lock);
	CVY_UNLINK(groups.first, group, next);
	pthread_mutex_unlock(&groups.lock);
}

static int start_parts(struct covey_group *group)
{
	struct cvy_mesh_args mesh = { .config = &group->config, .box = group->box };
	struct cvy_agent_args agent = { .config = &group->config, .seam = &group->seam, .box = group->box };
	struct cvy_device_args device = {
		.config = &group->config, .box = group->box, .send = cvy_handle_send, .send_ctx = group
	};
	int err = cvy_process_check(&group->config, group->box);

	if (err)
		return err;
	err = cvy_loop_new(&group->loop);

	if (err)
		return cvy_fail(group->box, err, -1, 0, "no event loop");
	err = cvy_agent_new(group->loop, &group->agent);
	if (err)
		return cvy_fail(group->box, err, -1, 0, "no memory for an agent");
	mesh.loop = device.loop = group->loop;
	mesh.sink = device.sink = cvy_agent_sink(group->agent);
	err = cvy_device_open(&device, &group->device);
	if (err)
		return err;
	if (group->device)
		mesh.sink = cvy_device_sink(group->device);
	err = cvy_mesh_open(&mesh, &group->mesh);
	if (err)
		return err;
	err = cvy_engine_open(&group->engine, group->mesh, group->box, group->config.undo_bytes);
	if (err)
		return err;
	group->here = cvy_site(group->engine);
	err = cvy_plan_rules(group->engine, group->config.algo);
	if (err)
		return err;
	cvy_engine_set_late(group->engine, group->config.late_ms, group->config.late == COVEY_LATE_EVICT);
	cvy_mesh_set_lock(group->mesh, cvy_engine_lock(group->engine));
	group->recorder = cvy_recorder_open(&group->config, cvy_mesh_host(group->mesh), cvy_op_name);
	group->flight = cvy_recorder_page(group->recorder);
	cvy_engine_record_to(group->engine, group->flight);
	err = cvy_metrics_open(&group->config, group->loop, group->flight, &group->metrics);
	if (err)
		return cvy_fail(group->box, err, -1, 0, "no memory for metrics");
	cvy_handle_seam(group);
	err = cvy_progress_add(group->engine);
	if (err)
		return err;
	agent.addr = cvy_mesh_addr(group->mesh);
	agent.host = cvy_mesh_host(group->mesh);
	agent.own_page = (struct cvy_page *)cvy_mesh_own(group->mesh);
	agent.observer = cvy_handle_observer(group);
	return cvy_agent_start(group->agent, &agent);
}

/*
 * A failed join is logged once, with its cause, for programs that ignore the return value of covey_join(). It is also
 * stored for covey_last_error(NULL) of this thread, since the handle is freed. @group: NULL, or with the cause in its
 * box.
 */
static int join_failed(struct covey_group *group, int err)
{
	struct covey_error_info info = { .err = 0, .rank = -1 };
	int told = 0;

	cvy_errbox_get(group ? group->box : NULL, &info);
	if (!info.err)
		snprintf(info.cause, sizeof(info.cause), "%s", covey_strerror(err));
	if (group && group->box)
		cvy_fail(NULL, err, info.rank, info.epoch, "%s", info.cause);
	if (group) {
		pthread_mutex_lock(&group->lock);
		told = group->join_told;
		group->join_told = 1;
		pthread_mutex_unlock(&group->lock);
	}
	if (!told)
		cvy_error("join", "group %s: %s: %s", group && group->config.group ? group->config.group : "not known",
			  covey_strerror(err), info.cause);
	return err;
}

static struct covey_group *group_new(void)
{
	struct covey_group *group = calloc(1, sizeof(*group));
	pthread_condattr_t attr;

	if (!group)
		return NULL;
	pthread_mutex_init(&group->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&group->changed, &attr);
	pthread_condattr_destroy(&attr);
	for (int i = 0; i < CVY_EVENTS_KEPT; i++) /* touched here: events must not make the process grow later */
		((volatile struct covey_event *)group->event)[i].kind = 0;
	group->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	group->box = cvy_errbox_new();
	return group;
}

static int join_start(const struct covey_config *config, struct covey_group **out)
{
	struct covey_group *group;
	char why[CVY_HINT];
	int err;

	if (!out)
		return join_failed(NULL, cvy_fail(NULL, COVEY_ERR_INVAL, -1, 0, "join: out is NULL"));
	*out = NULL;
	cvy_process_standard();
	group = group_new();
	if (!group)
		return join_failed(NULL, cvy_fail(NULL, COVEY_ERR_NOMEM, -1, 0, "no memory for a group"));
	err = group->box && group->event_fd >= 0
		      ? cvy_config_resolve(config, &group->config, group->box)
		      : cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory or no descriptor for a group%s",
				 cvy_process_hint(group->event_fd < 0 ? EMFILE : ENOMEM, why, sizeof(why)));
	if (!err)
		list_add(group);
	if (!err)
		err = start_parts(group);
	if (!err) {
		*out = group;
		return 0;
	}
	join_failed(group, err);
	covey_close(group);
	return err;
}

/* This, leave and close ask much of the system; errno is the caller's. */
int covey_join_start(const struct covey_config *config, struct covey_group **out)
{
	const int had = errno, err = join_start(config, out);

	errno = had;
	return err;
}

int covey_join_wait(struct covey_group *group, uint64_t deadline_ns)
{
	int err = 0, final;

	if (!group)
		return COVEY_ERR_INVAL;
	if (group->forked)
		return COVEY_ERR_FORKED;
	pthread_mutex_lock(&group->lock);
	while (!group->join_done && !err) {
		int ended = __atomic_load_n(&group->here->ended, __ATOMIC_ACQUIRE);

		err = ended ? ended : cvy_handle_await(group, deadline_ns);
	}
	if (group->join_done)
		err = group->join_err;
	final = group->join_done && err;
	pthread_mutex_unlock(&group->lock);
	return final ? join_failed(group, err) : err;
}

int covey_join(const struct covey_config *config, struct covey_group **out)
{
	struct covey_group *group;
	int err = covey_join_start(config, out);

	if (err || !*out)
		return err;
	group = *out;
	*out = NULL;
	err = covey_join_wait(group, cvy_deadline_ns(cvy_now_ns(), group->config.join_ms + group->config.join_ms / 4));
	if (!err) {
		*out = group;
		return 0;
	}
	join_failed(group, err);
	covey_close(group);
	return err;
}

/* Waits until the queue is empty and no member is behind, on the device neither; or for the deadline. */
static int drain(struct covey_group *group, uint64_t deadline_ns)
{
	while (!__atomic_load_n(&group->here->ended, __ATOMIC_ACQUIRE)) {
		struct timespec nap = { 0, CVY_MS };

		if (cvy_engine_drained(group->engine) && cvy_pairs_drained(group->engine) &&
		    (!group->device || cvy_device_may_leave(group->device, 0)))
			return 0;
		cvy_engine_ask_progress(group->engine, cvy_now_ns());
		if (cvy_now_ns() >= deadline_ns)
			return cvy_fail(
				group->box, COVEY_ERR_TIMEOUT,
				group->device ? cvy_device_leave_awaits(group->device) : -1, group->here->epoch,
				"leave: others have not completed operation %llu or what the device of this rank "
				"has, or not received all that was sent to them",
				(unsigned long long)cvy_engine_done(group->engine));
		nanosleep(&nap, NULL);
	}
	return group->here->ended;
}

static int leave(struct covey_group *group, uint64_t deadline_ns)
{
	struct covey_work work = { .group = group };
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (!deadline_ns)
		deadline_ns = cvy_deadline_ns(cvy_now_ns(), LEAVE_MS);
	err = drain(group, deadline_ns);
	if (err)
		return err;
	pthread_mutex_lock(&group->lock);
	work.id = ++group->next_id;
	work.next = group->asked;
	group->asked = &work;
	pthread_mutex_unlock(&group->lock);
	err = cvy_agent_ask(group->agent, CVY_API_LEAVE, work.id, group->identity.rank, 0, NULL);
	pthread_mutex_lock(&group->lock);
	while (!err && !work.answered)
		err = __atomic_load_n(&group->here->ended, __ATOMIC_ACQUIRE) == COVEY_ERR_ABORTED
			      ? COVEY_ERR_ABORTED
			      : cvy_handle_await(group, deadline_ns);
	CVY_UNLINK(group->asked, &work, next);
	if (work.answered)
		err = work.err;
	pthread_mutex_unlock(&group->lock);
	if (!err)
		cvy_handle_left(group);
	if (err == COVEY_ERR_TIMEOUT)
		cvy_fail(group->box, err, -1, group->here->epoch,
			 "leave: the view without this rank was not decided in time");
	return err;
}

int covey_leave(struct covey_group *group, uint64_t deadline_ns)
{
	const int had = errno, err = leave(group, deadline_ns);

	errno = had;
	return err;
}

void covey_abort(struct covey_group *group)
{
	if (!group || group->forked)
		return;
	cvy_fail(group->box, COVEY_ERR_ABORTED, -1, group->here->epoch, "covey_abort was called");
	cvy_engine_stop(group->engine, COVEY_ERR_ABORTED);
	if (group->device)
		cvy_device_drain_abort(group->device);
	pthread_mutex_lock(&group->lock);
	pthread_cond_broadcast(&group->changed);
	pthread_mutex_unlock(&group->lock);
}

static void close_group(struct covey_group *group)
{
	if (!group)
		return;
	if (group->forked) { /* the rest belongs to threads that this process does not have */
		free(group);
		return;
	}
	list_del(group);
	if (group->engine) {
		cvy_engine_stop(group->engine, COVEY_ERR_CLOSED);
		cvy_calls_close(group->engine, group->device);
		cvy_progress_remove(group->engine);
	}
	cvy_agent_stop(group->agent);
	cvy_metrics_close(group->metrics);
	cvy_device_close(group->device);
	cvy_mesh_close(group->mesh);
	if (group->admit_op) /* the engine frees it */
		cvy_op_put(group->admit_op);
	cvy_engine_close(group->engine);
	cvy_recorder_close(group->recorder);
	cvy_loop_free(group->loop);
	cvy_memory_forget(group);
	cvy_view_free(group->view);
	cvy_config_clear(&group->config);
	cvy_errbox_free(group->box);
	if (group->event_fd >= 0)
		close(group->event_fd);
	pthread_cond_destroy(&group->changed);
	pthread_mutex_destroy(&group->lock);
	free(group);
}

void covey_close(struct covey_group *group)
{
	const int had = errno;

	close_group(group);
	errno = had;
}

struct cvy_engine *cvy_handle_engine(struct covey_group *group)
{
	return group->engine;
}

struct cvy_errbox *cvy_handle_box(struct covey_group *group)
{
	return group->box;
}

int cvy_handle_check(struct covey_group *group)
{
	if (!group)
		return cvy_fail(NULL, COVEY_ERR_INVAL, -1, 0, "the group is NULL");
	if (group->forked)
		return COVEY_ERR_FORKED;
	return __atomic_load_n(&group->here->ended, __ATOMIC_ACQUIRE);
}

int cvy_handle_check_op(struct covey_group *group)
{
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (!__atomic_load_n(&group->join_done, __ATOMIC_ACQUIRE) || group->join_err)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"the group is not joined yet: covey_join_wait() first");
	if (__atomic_load_n(&group->here->pending, __ATOMIC_RELAXED))
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "a joiner's first operation is covey_admit()");
	return 0;
}
