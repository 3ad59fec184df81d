/* SPDX-License-Identifier: Apache-2.0 */
/* Works of operations on device memory (device_work.h): nobody steps them, so a wait looks again and again. */
#include "device_work.h"

#include <sched.h>
#include <time.h>

#include "clock.h"
#include "device_message.h"

#define LOOKS 200 /* of a wait, before it sleeps between two */
#define SLEEP_NS 20000

int cvy_device_work_new(struct covey_group *group, const char *what, struct CUstream_st *stream,
			struct covey_work **out)
{
	struct covey_work *work = cvy_work_of(group, NULL);
	int err;

	if (!work)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "%s: no memory for a work", what);
	work->what = what;
	work->posted_ns = cvy_now_ns();
	err = cvy_device_receipt(group->device, what, stream, &work->receipt);
	if (err)
		covey_work_free(work);
	else
		*out = work;
	return err;
}

int cvy_device_work_start(struct covey_group *group, const struct cvy_device_launch *l, struct covey_work **out)
{
	struct covey_work *work = NULL;
	int err = cvy_handle_check_op(group);

	if (err)
		return err;
	if (!out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "%s: work is NULL", l->what);
	err = cvy_device_work_new(group, l->what, l->stream, &work);
	if (err || !work)
		return err;
	err = l->launch(group, l->call, &work->outcome);
	if (!err)
		err = cvy_device_receipt_post(group->device, work->receipt, l->stream);
	if (err) {
		covey_work_free(work);
		return err;
	}
	*out = work;
	return 0;
}

static int look(struct covey_work *work, struct covey_result *outcome)
{
	struct cvy_device *d = work->group->device;

	return work->is_message ? cvy_device_message_look(d, work->receipt, outcome)
				: cvy_device_receipt_look(d, work->receipt, outcome);
}

/* The lock is not held while the driver is asked: the agent takes it, too, and others of the driver's calls wait for the agent. */
int cvy_device_work_test(struct covey_work *work, struct covey_result *result)
{
	struct covey_result outcome;
	int decided;

	pthread_mutex_lock(&work->group->lock);
	outcome = work->outcome;
	decided = work->answered;
	pthread_mutex_unlock(&work->group->lock);
	if (!decided && look(work, &outcome))
		return COVEY_ERR_AGAIN;
	pthread_mutex_lock(&work->group->lock);
	if (!work->answered) {
		outcome.wait_ns = cvy_now_ns() - work->posted_ns;
		work->outcome = outcome;
		work->answered = 1;
	}
	if (result)
		*result = work->outcome;
	pthread_mutex_unlock(&work->group->lock);
	return 0;
}

int cvy_device_work_wait(struct covey_work *work, uint64_t deadline_ns, struct covey_result *result)
{
	const struct timespec nap = { 0, SLEEP_NS };
	struct covey_result outcome;

	if (work->is_message && cvy_device_message_is_kept(work->receipt))
		return cvy_fail(work->group->box, COVEY_ERR_INVAL, work->outcome.peer, 0,
				"%s: a wait before covey_group_end(), which launches it, would never end", work->what);
	for (int looks = 0; cvy_device_work_test(work, &outcome); looks++) {
		if (cvy_work_aborted(work))
			return cvy_work_undecided(work, COVEY_ERR_ABORTED);
		if (deadline_ns && cvy_now_ns() >= deadline_ns)
			return cvy_work_undecided(work, COVEY_ERR_TIMEOUT);
		if (looks < LOOKS)
			sched_yield();
		else
			nanosleep(&nap, NULL);
	}
	if (result)
		*result = outcome;
	return outcome.status;
}

void cvy_device_work_progress(struct covey_work *work, char *text, size_t bytes)
{
	struct covey_result outcome;

	if (work->is_message && cvy_device_message_is_kept(work->receipt))
		snprintf(text, bytes, "%s: covey_group_end() launches it", work->what);
	else if (cvy_device_work_test(work, &outcome))
		snprintf(text, bytes, "%s: launched; the stream has not come past it", work->what);
	else if (work->is_message)
		snprintf(text, bytes, "%s: rank %d, tag %d: decided: %s", work->what, outcome.peer, outcome.tag,
			 covey_strerror(outcome.status));
	else
		snprintf(text, bytes, "%s: operation %llu of the device is decided", work->what,
			 (unsigned long long)outcome.seq);
}
