/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's part in letting ranks in. The host's safe point decides which ranks: its outcome is the same on
 * all members, however late one of them calls it. The views show whether that outcome let a process in. It is the last
 * process of a rank that was listed by the outcome's epoch, if no earlier safe point counted it. So all members launch
 * the same ADMITs at the same places of their streams, and the device does the rest (kernels/admit.cuh).
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "device_state.h"
#include "process.h"
#include "shape.h"

#define DRAIN_LOOK_US 1000

int cvy_device_capturing(struct cvy_device *d, struct CUstream_st *stream)
{
	struct cvy_gpu_scope had;

	cvy_device_enter(d, &had);
	return cvy_device_leave(d, &had, d->ops->capturing(stream));
}

/* The process that had @rank when a safe point of @epoch was passed; NULL: too many have come since. */
static struct cvy_device_arrival *arrival_at(struct cvy_device_peer *p, uint32_t epoch)
{
	for (unsigned i = p->arrivals; i && p->arrivals - i < CVY_DEVICE_ARRIVALS; i--) {
		struct cvy_device_arrival *a = &p->arrival[(i - 1) % CVY_DEVICE_ARRIVALS];

		if (a->epoch <= epoch)
			return a;
	}
	return NULL;
}

/* The ranks that @outcome let in; they count from here on. */
static int newcomers(struct cvy_device *d, const struct covey_result *outcome, cvy_ranks *come)
{
	cvy_ranks mask = cvy_device_mask(&outcome->mask), latest = cvy_ranks_none();
	int known = 1;

	*come = cvy_ranks_none();
	pthread_mutex_lock(&d->lock);
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		struct cvy_device_peer *p = &d->peer[r];
		struct cvy_device_arrival *a = cvy_ranks_has(mask, r) ? arrival_at(p, outcome->epoch) : NULL;

		known = known && (a || !cvy_ranks_has(mask, r));
		if (!a)
			continue;
		if (!a->counted)
			*come = cvy_ranks_with(*come, r);
		a->counted = 1;
		if (a == &p->arrival[(p->arrivals - 1) % CVY_DEVICE_ARRIVALS])
			latest = cvy_ranks_with(latest, r);
	}
	latest = cvy_ranks_and(cvy_ranks_and(*come, latest), d->roll.members);
	d->contributors = cvy_ranks_or(d->contributors, latest);
	pthread_mutex_unlock(&d->lock);
	return known ? 0 : COVEY_ERR_FENCED;
}

/* The call of an ADMIT; *launch 0: no rank comes in. */
static int prepare(struct cvy_device *d, const struct covey_result *outcome, struct cvy_gpu_call *call, int *launch)
{
	int err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	memset(call, 0, sizeof(*call));
	call->kind = CVY_GPU_ADMIT;
	call->rank = d->rank;
	call->root = -1;
	call->size = outcome->size;
	call->admit_epoch = outcome->epoch;
	cvy_gpu_shape(call);
	if (!err) {
		err = newcomers(d, outcome, &call->admits);
		if (err)
			cvy_device_give_up(
				d, err, d->rank, outcome->epoch,
				"device: a safe point of epoch %u is called after more changes than are kept",
				outcome->epoch);
	}
	call->joins = cvy_ranks_has(call->admits, d->rank);
	*launch = !err && cvy_ranks_any(call->admits);
	return err;
}

int cvy_device_admit(struct cvy_device *d, const struct covey_result *outcome, struct CUstream_st *stream)
{
	struct cvy_gpu_call call;
	int launch, err = prepare(d, outcome, &call, &launch);

	if (!launch)
		return err;
	CVY_DEVICE_DO(d, err, d->ops->launch(d->gpu, &call, stream));
	return cvy_device_tells(d, err);
}

/* ---- without a stream ---- */

void cvy_device_drain_init(struct cvy_device *d)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&d->drain.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&d->drain.changed, &attr);
	pthread_condattr_destroy(&attr);
}

void cvy_device_drain_end(struct cvy_device *d)
{
	if (d->drain.begun)
		pthread_join(d->drain.thread, NULL);
	d->drain.begun = 0;
	pthread_mutex_destroy(&d->drain.lock);
	pthread_cond_destroy(&d->drain.changed);
}

/* A graph that is being captured keeps the runtime from waiting: until its capture has ended, or everything has. */
static int drain(struct cvy_device *d)
{
	int err;

	while ((err = d->ops->synchronise(d->gpu, 0)) == COVEY_ERR_AGAIN &&
	       !__atomic_load_n(&d->ended, __ATOMIC_ACQUIRE))
		usleep(DRAIN_LOOK_US);
	return err;
}

static void *drain_main(void *arg)
{
	struct cvy_device *d = arg;
	int err = drain(d);

	if (!err)
		err = d->ops->launch(d->gpu, &d->drain.call, NULL);
	if (!err)
		err = drain(d);
	pthread_mutex_lock(&d->drain.lock);
	d->drain.err = err;
	d->drain.ended = 1;
	pthread_cond_broadcast(&d->drain.changed);
	pthread_mutex_unlock(&d->drain.lock);
	return NULL;
}

int cvy_device_draining(const struct cvy_device *d)
{
	return d->drain.begun;
}

void cvy_device_drain_abort(struct cvy_device *d)
{
	pthread_mutex_lock(&d->drain.lock);
	d->drain.aborted = 1;
	pthread_cond_broadcast(&d->drain.changed);
	pthread_mutex_unlock(&d->drain.lock);
}

int cvy_device_drained(struct cvy_device *d, struct covey_result *outcome)
{
	struct cvy_device_drain *w = &d->drain;
	uint64_t until = cvy_deadline_ns(cvy_now_ns(), d->join_ms);
	struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
	int ended, aborted;

	pthread_mutex_lock(&w->lock);
	while (!w->ended && !w->aborted && pthread_cond_timedwait(&w->changed, &w->lock, &t) != ETIMEDOUT)
		;
	ended = w->ended;
	aborted = w->aborted;
	pthread_mutex_unlock(&w->lock);
	if (aborted)
		return COVEY_ERR_ABORTED;
	if (!ended)
		return cvy_fail(
			d->box, COVEY_ERR_TIMEOUT, d->rank, d->epoch,
			"admit: what was launched on the device has not ended, or the others' devices have not come to "
			"the safe point, within %d ms",
			d->join_ms);
	pthread_join(w->thread, NULL);
	w->begun = 0;
	if (w->err)
		return cvy_device_tells(d, w->err);
	ended = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);
	if (!ended)
		*outcome = w->result;
	return ended;
}

int cvy_device_admit_drain(struct cvy_device *d, const struct covey_result *outcome)
{
	struct cvy_device_drain *w = &d->drain;
	struct covey_result same;
	int failed_to, launch, err = prepare(d, outcome, &w->call, &launch);

	if (!launch)
		return err;
	w->result = *outcome;
	w->ended = w->err = 0;
	failed_to = cvy_thread_start(&w->thread, drain_main, d);
	if (failed_to) {
		cvy_device_give_up(d, COVEY_ERR_NOMEM, d->rank, d->epoch, "no thread to wait for the device");
		return COVEY_ERR_NOMEM;
	}
	w->begun = 1;
	return cvy_device_drained(d, &same);
}
