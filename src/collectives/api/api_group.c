/* SPDX-License-Identifier: Apache-2.0 */
/* The group as its application sees it: view, events, last error, safe points, requests for change. */
#include <errno.h>
#include <unistd.h>

#include "covey_device.h"
#include "calls.h"
#include "clock.h"
#include "device_message.h"
#include "handle.h"

int covey_last_error(const struct covey_group *group, struct covey_error_info *info)
{
	if (!info)
		return COVEY_ERR_INVAL;
	cvy_errbox_get(group ? group->box : NULL, info);
	return 0;
}

int covey_view(const struct covey_group *handle, struct covey_view *view)
{
	struct covey_group *group = (struct covey_group *)(uintptr_t)handle;

	if (!group || !view)
		return COVEY_ERR_INVAL;
	if (group->forked)
		return COVEY_ERR_FORKED;
	memset(view, 0, sizeof(*view));
	pthread_mutex_lock(&group->lock);
	view->rank = group->join_done ? group->identity.rank : -1;
	view->incarnation = group->identity.inc;
	view->max_ranks = group->identity.max_ranks;
	view->active = group->active;
	if (group->view) {
		view->epoch = group->view->epoch;
		view->size = group->view->size;
		view->base_seq = group->view->base;
		view->members = group->view->members;
		view->pending = group->view->pending;
		for (int i = 0; i < COVEY_MAX_RANKS / 64; i++)
			view->members.word[i] &= ~view->pending.word[i];
	}
	pthread_mutex_unlock(&group->lock);
	view->done_seq = cvy_engine_done(group->engine);
	return 0;
}

int covey_event_fd(const struct covey_group *group)
{
	return group ? group->event_fd : COVEY_ERR_INVAL;
}

int covey_event_next(struct covey_group *group, struct covey_event *event)
{
	int err = COVEY_ERR_AGAIN, had = errno;
	uint64_t drain;

	if (!group || !event)
		return COVEY_ERR_INVAL;
	if (group->forked)
		return COVEY_ERR_FORKED;
	pthread_mutex_lock(&group->lock);
	if (group->event_in != group->event_out) {
		*event = group->event[group->event_out++ % CVY_EVENTS_KEPT];
		err = 0;
	}
	if (group->event_in == group->event_out)
		(void)!read(group->event_fd, &drain, sizeof(drain));
	errno = had;
	pthread_mutex_unlock(&group->lock);
	return err;
}

/* ---- safe points ---- */

static struct cvy_op *admit_op(struct cvy_engine *e, void *state, size_t bytes)
{
	struct cvy_op *op = cvy_op_new(e, &cvy_op_admit);

	if (!op)
		return NULL;
	op->send = op->recv = state;
	op->bytes = op->count = bytes;
	op->elem = 1;
	op->dtype = COVEY_UINT8;
	op->ticks = 1;
	cvy_op_sign(op, COVEY_ON_LOSS_CONTINUE);
	return op;
}

/* A joiner asks to be let in, once; if there is no memory for that, nothing has changed. */
static int ask_to_come_in(struct covey_group *group)
{
	int err = 0;

	if (!group->ready_asked)
		err = cvy_agent_ask(group->agent, CVY_API_READY, 0, group->identity.rank, 0, NULL);
	if (!err)
		group->ready_asked = 1;
	return err;
}

/* Then it waits for the members. At its deadline the operation stays posted for the next call. */
static int admit_joiner(struct covey_group *group, struct cvy_op *op)
{
	struct cvy_engine *e = group->engine;
	int err = cvy_engine_wait(e, op, cvy_deadline_ns(cvy_now_ns(), group->config.join_ms));

	if (err != COVEY_ERR_TIMEOUT)
		return err ? err : op->result.status;
	pthread_mutex_lock(cvy_engine_lock(e));
	op->recv = NULL;
	pthread_mutex_unlock(cvy_engine_lock(e));
	return cvy_fail(group->box, err, -1, 0, "the members did not come to a safe point within %d ms",
			group->config.join_ms);
}

/* The posted admit of an earlier call, with this call's state buffer. */
static struct cvy_op *resume_admit(struct covey_group *group, void *state)
{
	struct cvy_op *op = group->admit_op;
	struct cvy_engine *e = group->engine;

	pthread_mutex_lock(cvy_engine_lock(e));
	if (cvy_op_decided(op))
		cvy_admit_take_state(e, op, state);
	op->recv = state;
	pthread_mutex_unlock(cvy_engine_lock(e));
	return op;
}

static int admit(struct covey_group *group, void *state, size_t bytes, struct covey_result *result)
{
	struct cvy_op *op;
	int err = cvy_handle_check(group), joiner;

	if (err)
		return err;
	if (bytes > CVY_STATE_MAX || (bytes && !state))
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"admit: state has %zu bytes; 0 to %d are allowed, not NULL", bytes, CVY_STATE_MAX);
	if (!__atomic_load_n(&group->join_done, __ATOMIC_ACQUIRE) || group->join_err)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "admit: the group is not joined yet");
	if (group->admit_op && bytes != group->admit_op->bytes)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"admit: state has %zu bytes; the call that this one resumes gave %zu", bytes,
				group->admit_op->bytes);
	joiner = group->admit_op || __atomic_load_n(&group->here->pending, __ATOMIC_RELAXED);
	if (cvy_calls_open()) /* calls after it may depend on the ranks that it lets in */
		return cvy_calls_failed(cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
						 "admit: not between covey_group_start and covey_group_end"));
	op = group->admit_op ? resume_admit(group, state) : admit_op(group->engine, state, bytes);
	if (!op)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for an operation");
	if (!joiner)
		return cvy_engine_run(group->engine, op, result);
	err = ask_to_come_in(group);
	if (!err && !group->admit_op)
		err = cvy_engine_post(group->engine, op);
	if (err && !group->admit_op) {
		cvy_op_put(op);
		return err;
	}
	group->admit_op = op;
	if (!err)
		err = admit_joiner(group, op);
	if (err == COVEY_ERR_TIMEOUT)
		return err;
	group->admit_op = NULL;
	if (result && cvy_op_decided(op))
		*result = op->result;
	cvy_op_put(op);
	return err;
}

int covey_admit(struct covey_group *group, void *state, size_t bytes, struct covey_result *result)
{
	struct covey_result outcome = { 0 };
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (!group->device)
		return admit(group, state, bytes, result);
	err = cvy_device_between_phases(group->device);
	if (err)
		return err;
	if (cvy_device_draining(group->device)) {
		err = cvy_device_drained(group->device, &outcome);
	} else {
		err = admit(group, state, bytes, &outcome);
		if (!err)
			err = cvy_device_admit_drain(group->device, &outcome);
	}
	if (result && (!err || outcome.seq)) /* decided */
		*result = outcome;
	return err;
}

static int check_stream(struct covey_group *group, struct CUstream_st *stream)
{
	if (!group->device)
		return !stream ? 0
			       : cvy_fail(group->box, COVEY_ERR_UNSUPPORTED, -1, 0,
					  "admit: a stream needs a group that was joined with a device (device, "
					  "COVEY_DEVICE)");
	if (cvy_device_draining(group->device))
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"admit: a call of covey_admit met its deadline; it is to be called again first");
	if (cvy_device_between_phases(group->device))
		return COVEY_ERR_INVAL;
	if (!stream)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"admit: stream is NULL: give that of the operations on device memory; the default "
				"stream is COVEY_STREAM_DEFAULT");
	return !cvy_device_capturing(group->device, stream)
		       ? 0
		       : cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "admit: the stream is being captured");
}

int covey_admit_async(struct covey_group *group, void *state, size_t bytes, struct CUstream_st *stream,
		      struct covey_result *result)
{
	struct covey_result outcome = { 0 };
	int err = cvy_handle_check(group);

	if (!err)
		err = check_stream(group, stream);
	if (!err)
		err = admit(group, state, bytes, &outcome);
	if (!err && group->device)
		err = cvy_device_admit(group->device, &outcome, stream);
	if (result && (!err || outcome.seq)) /* decided */
		*result = outcome;
	return err;
}

/* ---- device ---- */

static int check_device(struct covey_group *group)
{
	int err = cvy_handle_check(group);

	if (err)
		return err;
	return group->device ? 0
			     : cvy_fail(group->box, COVEY_ERR_UNSUPPORTED, -1, 0,
					"the group was joined without a device (device, COVEY_DEVICE)");
}

int covey_device_outcome_at(struct covey_group *group, const struct covey_device_outcome **out)
{
	int err = check_device(group);

	if (err)
		return err;
	if (!out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "out is NULL");
	*out = cvy_device_status(group->device);
	return 0;
}

int covey_device_result(struct covey_group *group, struct covey_result *result)
{
	int err = check_device(group);

	if (err)
		return err;
	if (!result)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "result is NULL");
	return cvy_device_result(group->device, group->here->size, result);
}

int covey_device_mem_alloc(struct covey_group *group, size_t bytes, void **out)
{
	int err = check_device(group);

	if (err)
		return err;
	if (!bytes || !out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
				"device_mem_alloc: bytes is 0 or the place for it NULL");
	pthread_mutex_lock(&group->lock);
	err = cvy_device_mem_alloc(group->device, bytes, out);
	pthread_mutex_unlock(&group->lock);
	return err;
}

int covey_device_mem_free(struct covey_group *group, void *memory)
{
	int err = cvy_handle_check(group);

	if (err == COVEY_ERR_INVAL || err == COVEY_ERR_FORKED)
		return err;
	if (!group->device)
		return check_device(group);
	pthread_mutex_lock(&group->lock);
	err = cvy_device_mem_free(group->device, memory);
	pthread_mutex_unlock(&group->lock);
	return err;
}

int covey_device_peers(struct covey_group *group, struct covey_device_peers *out)
{
	int err = check_device(group);

	if (err)
		return err;
	if (!out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "device_peers: the place for it is NULL");
	return cvy_device_peers(group->device, out);
}

/* ---- requests for change ---- */

static int ask(struct covey_group *group, int api, int rank, uint64_t number, const struct covey_mask *ranks,
	       struct covey_work **out)
{
	struct covey_work *work;
	int err;

	if (!out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, rank, 0, "work is NULL");
	work = cvy_work_of(group, NULL);
	if (!work)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, rank, 0, "no memory for a request");
	pthread_mutex_lock(&group->lock);
	work->id = ++group->next_id;
	work->next = group->asked;
	group->asked = work;
	pthread_mutex_unlock(&group->lock);
	err = cvy_agent_ask(group->agent, api, work->id, rank, number, ranks);
	if (err) {
		covey_work_free(work);
		return err;
	}
	*out = work;
	return 0;
}

static int check_rank(struct covey_group *group, int rank)
{
	int err = cvy_handle_check(group);

	if (!err && (rank < 0 || rank >= group->config.max_ranks))
		err = cvy_fail(group->box, COVEY_ERR_INVAL, rank, 0, "rank %d: must be 0 to %d", rank,
			       group->config.max_ranks - 1);
	return err;
}

int covey_recover(struct covey_group *group, const int *ranks, int n, struct covey_work **out)
{
	struct covey_mask mask = { { 0 } };
	int err = cvy_handle_check(group);

	if (err)
		return err;
	if (!ranks || n < 1)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "recover: no ranks given");
	for (int i = 0; !err && i < n; i++) {
		err = check_rank(group, ranks[i]);
		if (!err)
			mask.word[ranks[i] >> 6] |= 1ull << (ranks[i] & 63);
	}
	return err ? err : ask(group, CVY_API_RECOVER, -1, 0, &mask, out);
}

int covey_extend(struct covey_group *group, int size, struct covey_work **out)
{
	int err = cvy_handle_check(group);

	if (!err && (size < 1 || size > group->config.max_ranks))
		err = cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0,
			       "extend: size %d must be 1 to max_ranks, which is %d", size, group->config.max_ranks);
	return err ? err : ask(group, CVY_API_EXTEND, -1, (uint64_t)size, NULL, out);
}

int covey_retire(struct covey_group *group, int rank, struct covey_work **out)
{
	int err = check_rank(group, rank);

	return err ? err : ask(group, CVY_API_RETIRE, rank, 0, NULL, out);
}

int covey_evict(struct covey_group *group, int rank, struct covey_work **out)
{
	int err = check_rank(group, rank);

	return err ? err : ask(group, CVY_API_EVICT, rank, 0, NULL, out);
}
