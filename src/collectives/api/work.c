/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works: operations on host memory, operations on a device (device_work.c), and requests for change, which the agent
 * answers.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "call.h"
#include "clock.h"
#include "device_message.h"
#include "device_work.h"
#include "handle.h"
#include "list.h"
#include "pair.h"

struct covey_work *cvy_work_of(struct covey_group *group, struct cvy_op *op)
{
	struct covey_work *work = calloc(1, sizeof(*work));

	if (!work)
		return NULL;
	work->group = group;
	work->op = op;
	return work;
}

int covey_work_resume(struct covey_group *group, uint64_t seq, struct covey_work **out)
{
	struct covey_work *work;

	if (!group || !out || !group->engine)
		return COVEY_ERR_INVAL;
	if (group->forked)
		return COVEY_ERR_FORKED;
	work = cvy_work_of(group, NULL);
	if (!work)
		return COVEY_ERR_NOMEM;
	work->op = cvy_engine_resume(group->engine, seq);
	if (!work->op) {
		free(work);
		return cvy_call_refuse(group, "seq", "must be that of a call that returned AGAIN and was not resumed");
	}
	*out = work;
	return 0;
}

static void request_result(const struct covey_work *work, struct covey_result *result)
{
	if (!result)
		return;
	memset(result, 0, sizeof(*result));
	result->status = work->err;
	if (work->group->view) {
		result->epoch = work->group->view->epoch;
		result->size = work->group->view->size;
		result->mask = work->group->view->members;
	}
}

/* Other ends decide a work: they answer a request, and stop a device. */
int cvy_work_aborted(const struct covey_work *work)
{
	return __atomic_load_n(&work->group->here->ended, __ATOMIC_ACQUIRE) == COVEY_ERR_ABORTED;
}

int cvy_work_undecided(struct covey_work *work, int err)
{
	struct covey_group *group = work->group;
	uint32_t epoch;
	char text[160];
	int rank;

	/* The last error is why the group ended. */
	if (err == COVEY_ERR_TIMEOUT && __atomic_load_n(&group->here->ended, __ATOMIC_ACQUIRE))
		return err;
	pthread_mutex_lock(&group->lock);
	rank = group->identity.rank;
	epoch = group->view ? group->view->epoch : 0;
	pthread_mutex_unlock(&group->lock);
	covey_work_progress(work, text, sizeof(text));
	return cvy_fail(group->box, err, rank, epoch, "%s; %s",
			err == COVEY_ERR_ABORTED ? "covey_abort was called" : "the wait ended at its deadline", text);
}

int covey_work_test(struct covey_work *work, struct covey_result *result)
{
	int err = COVEY_ERR_AGAIN;

	if (!work)
		return COVEY_ERR_INVAL;
	if (work->group->forked)
		return COVEY_ERR_FORKED;
	if (work->op) {
		if (!cvy_op_decided(work->op))
			return COVEY_ERR_AGAIN;
		if (result)
			*result = work->op->result;
		return 0;
	}
	if (work->receipt) {
		err = cvy_device_work_test(work, result);
	} else {
		pthread_mutex_lock(&work->group->lock);
		if (work->answered) {
			request_result(work, result);
			err = 0;
		}
		pthread_mutex_unlock(&work->group->lock);
	}
	return err && cvy_work_aborted(work) ? COVEY_ERR_ABORTED : err;
}

int cvy_handle_await(struct covey_group *group, uint64_t deadline_ns)
{
	struct timespec until = { (time_t)(deadline_ns / 1000000000ull), (long)(deadline_ns % 1000000000ull) };

	if (!deadline_ns) {
		pthread_cond_wait(&group->changed, &group->lock);
		return 0;
	}
	return pthread_cond_timedwait(&group->changed, &group->lock, &until) == ETIMEDOUT ? COVEY_ERR_TIMEOUT : 0;
}

static int wait_request(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result)
{
	struct covey_group *group = work->group;
	int err = 0, answered;

	pthread_mutex_lock(&group->lock);
	while (!work->answered && !err)
		err = cvy_work_aborted(work) ? COVEY_ERR_ABORTED : cvy_handle_await(group, deadline_ns);
	answered = work->answered;
	if (answered) {
		request_result(work, result);
		err = work->err;
	}
	pthread_mutex_unlock(&group->lock);
	return answered ? err : cvy_work_undecided(work, err);
}

int covey_work_wait(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result)
{
	int err;

	if (!work)
		return COVEY_ERR_INVAL;
	if (work->group->forked)
		return COVEY_ERR_FORKED;
	if (work->receipt)
		return cvy_device_work_wait(work, deadline_ns, result);
	if (!work->op)
		return wait_request(work, deadline_ns, result);
	err = cvy_engine_wait(work->group->engine, work->op, deadline_ns ? deadline_ns : CVY_NEVER);
	if (err)
		return err;
	if (result)
		*result = work->op->result;
	return work->op->result.status;
}

static int message_progress(struct cvy_engine *e, const struct cvy_op *op, char *text, size_t bytes)
{
	const struct cvy_parcel *x = op->priv;
	int sending = op->kind == &cvy_op_send, done = cvy_op_decided(op);

	snprintf(text, bytes, "%s %s rank %d, tag %d: %s%zu of %zu bytes", op->kind->name, sending ? "to" : "from",
		 op->root, x->tag, done ? "done, " : "", done ? op->result.bytes : x->at, op->bytes);
	return pthread_mutex_unlock(cvy_engine_lock(e));
}

/* Progress of the present operation, if its stepper releases the lock. */
static int op_progress(const struct covey_work *work, char *text, size_t bytes)
{
	struct cvy_engine *e = work->group->engine;
	struct cvy_op *op = work->op;
	char awaited[40] = "";
	int rank;

	if (op->kind->op_class == CVY_OP_PAIR) {
		pthread_mutex_lock(cvy_engine_lock(e));
		return message_progress(e, op, text, bytes);
	}
	if (cvy_op_decided(op))
		return snprintf(text, bytes, "%s: operation %llu is decided", op->kind->name,
				(unsigned long long)op->seq);
	if (pthread_mutex_trylock(cvy_engine_lock(e)))
		return snprintf(text, bytes, "%s: operation %llu is under way", op->kind->name,
				(unsigned long long)op->seq);
	rank = cvy_engine_misses(e);
	if (rank >= 0)
		snprintf(awaited, sizeof(awaited), ", waits for rank %d", rank);
	snprintf(text, bytes, "%s: operation %llu of %llu decided so far, %llu of %llu ticks%s", op->kind->name,
		 (unsigned long long)op->seq, (unsigned long long)cvy_engine_done(e), (unsigned long long)op->completed,
		 (unsigned long long)op->ticks, awaited);
	return pthread_mutex_unlock(cvy_engine_lock(e));
}

int covey_work_progress(const struct covey_work *work, char *text, size_t bytes)
{
	struct covey_group *group;

	if (!work || !text || !bytes)
		return COVEY_ERR_INVAL;
	group = work->group;
	if (group->forked)
		return COVEY_ERR_FORKED;
	if (work->op) {
		op_progress(work, text, bytes);
		return 0;
	}
	if (work->receipt) {
		cvy_device_work_progress((struct covey_work *)(uintptr_t)work, text, bytes);
		return 0;
	}
	pthread_mutex_lock(&group->lock);
	if (work->answered)
		snprintf(text, bytes, "decided: %s%s%s", covey_strerror(work->err), work->text[0] ? ": " : "",
			 work->text);
	else
		snprintf(text, bytes, "asked at epoch %u; waits for the next view",
			 group->view ? group->view->epoch : 0);
	pthread_mutex_unlock(&group->lock);
	return 0;
}

void covey_work_free(struct covey_work *work)
{
	if (!work)
		return;
	if (work->op) {
		cvy_op_put(work->op);
	} else if (work->receipt) {
		if (!work->group->forked)
			cvy_device_receipt_free(work->group->device, work->receipt);
	} else if (!work->group->forked) {
		pthread_mutex_lock(&work->group->lock);
		CVY_UNLINK(work->group->asked, work, next);
		pthread_mutex_unlock(&work->group->lock);
	}
	free(work);
}
