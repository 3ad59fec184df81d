/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels' reports in host memory: ranks that they wait for, passed over, or were outrun by. Agent's thread. */
#include "device_state.h"
#include "log.h"

/* Nothing is awaited from it, or a holder's packets replace its own. */
void cvy_device_forget_outrun(struct cvy_device *d, int rank)
{
	__atomic_store_n(&d->ops->mailbox(d->gpu)->outrun[rank], 0, __ATOMIC_RELEASE);
}

/* A change completed it with a holder's packets, or did it again. */
static int has_completed(struct cvy_device *d, uint64_t op)
{
	if (!d->ops->counters(d->gpu, &d->counters, 0))
		return d->counters.finished / CVY_GPU_QUANTA > op;
	cvy_device_broken(d, "the counters of the device");
	return 1;
}

/*
 * Others ended an operation by a deadline that this rank missed. Then they wrote over packets that this rank awaits in
 * an operation without a deadline: these never come, and the others would wait for this rank in the end. A rank that
 * cannot complete what others have completed gives up its membership.
 */
static void outrun(struct cvy_device *d, int rank)
{
	uint64_t op = __atomic_load_n(&d->ops->mailbox(d->gpu)->outrun[rank], __ATOMIC_ACQUIRE);

	if (!op || d->given_up)
		return;
	if (has_completed(d, op - 1))
		cvy_device_forget_outrun(d, rank);
	else
		cvy_device_give_up(
			d, COVEY_ERR_FENCED, rank, d->epoch,
			"device operation %llu has no deadline, and this rank missed those of later ones: rank %d "
			"went on, and wrote over what it had sent; longer deadlines would leave time",
			(unsigned long long)(op - 1), rank);
}

/* A deadline of a dispatch or combine ended it without @rank. */
static void passed_by(struct cvy_device *d, int rank, uint64_t op)
{
	struct cvy_event ev = { .kind = CVY_EV_LATE, .rank = rank, .number = op };

	cvy_info("device", "operation %llu: rank %d is late and masked, epoch %u", (unsigned long long)op, rank,
		 d->epoch);
	if (!d->late_evict || !d->view || !covey_mask_has(&d->view->members, rank))
		return;
	ev.inc = d->view->member[rank].inc;
	cvy_post(&d->agent, &ev);
}

void cvy_device_look(struct cvy_device *d)
{
	const struct cvy_gpu_mailbox *box = d->ops->mailbox(d->gpu);

	cvy_device_go_on(d);
	cvy_device_queues_look(d);
	cvy_device_leave_look(d);
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		uint64_t late = __atomic_load_n(&box->late[r], __ATOMIC_ACQUIRE);
		uint64_t passed = __atomic_load_n(&box->passed[r], __ATOMIC_ACQUIRE);

		if (d->phase == CVY_DEVICE_RUNS) /* else the change may remove that rank */
			outrun(d, r);
		if (passed != d->passed_told[r]) {
			d->passed_told[r] = passed;
			passed_by(d, r, passed - 1);
		}
		if (late == d->late_told[r])
			continue;
		d->late_told[r] = late;
		cvy_info("device", "operation %llu has waited %d ms for rank %d, epoch %u",
			 (unsigned long long)(late - 1), CVY_DEVICE_LATE_MS, r, d->epoch);
	}
}
