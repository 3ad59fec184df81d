/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that leaves, by itself or retired, first waits until each contributor has completed what this device has. A rank
 * that lags would do such an operation again without this one, and two ranks would have two answers for it. First the
 * gate is closed, for good: the number of completed operations stands still. The agent's thread, except for
 * cvy_device_may_leave().
 */
#include "clock.h"
#include "device_state.h"
#include "log.h"

#define QUIET_MS 50 /* longest wait of a retired rank, which is called on, for a moment without a kernel inside */
#define ASK_MS 10   /* between two questions to one rank */

struct passed {
	uint64_t op;   /* operations that the sender has completed */
	uint32_t asks; /* the sender waits for the same from the receiver */
	uint32_t zero;
};

int cvy_device_may_leave(struct cvy_device *d, int retired)
{
	__atomic_store_n(&d->leaving.wanted, retired ? CVY_LEAVING_RETIRED : CVY_LEAVING, __ATOMIC_RELEASE);
	return __atomic_load_n(&d->leaving.ready, __ATOMIC_ACQUIRE);
}

int cvy_device_leave_awaits(struct cvy_device *d)
{
	return __atomic_load_n(&d->leaving.behind, __ATOMIC_ACQUIRE);
}

/* During a change the counters are those of the freeze: operations are completed after it. @all: lanes are read, too. */
static int read_counters(struct cvy_device *d, int all)
{
	if (d->phase != CVY_DEVICE_RUNS || !d->ops->counters(d->gpu, &d->counters, all))
		return 0;
	cvy_device_broken(d, "the counters of the device");
	return COVEY_ERR_FENCED;
}

static uint64_t completed(const struct cvy_device *d)
{
	const uint64_t op = d->counters.finished / CVY_GPU_QUANTA;

	return op < d->begin ? d->begin : op; /* before its first: its kernel does not know its number yet */
}

static void say_passed(struct cvy_device *d, int rank, uint64_t inc, uint32_t asks)
{
	const struct passed passed = { completed(d), asks, 0 };

	d->send(d->send_ctx, rank, inc, CVY_MSG_PASSED, d->epoch, &passed, sizeof(passed), -1);
}

/* Closes the gate, at a moment without a kernel inside if there is one. Is it closed? */
static int shut(struct cvy_device *d, int retired, uint64_t now)
{
	struct cvy_device_leaving *l = &d->leaving;
	const struct cvy_gpu_counters *c = &d->counters;

	if (l->shut)
		return 1;
	if (!l->since_ns)
		l->since_ns = now;
	if (read_counters(d, 0) ||
	    ((c->finished != c->entered || c->guests) && !(retired && now - l->since_ns >= QUIET_MS * CVY_MS)))
		return 0;
	if (d->ops->gate(d->gpu, CVY_GPU_GATE_CLOSED(d->epoch))) {
		cvy_device_broken(d, "closing the gate of the device");
		return 0;
	}
	l->shut = 1;
	return 1;
}

/* Behind the closed gate: does nothing move any more? */
static int stands(struct cvy_device *d)
{
	const struct cvy_gpu_counters *c = &d->counters;

	return !read_counters(d, 1) && c->finished + c->stopped == c->entered && !c->guests;
}

void cvy_device_leave_look(struct cvy_device *d)
{
	struct cvy_device_leaving *l = &d->leaving;
	const int wanted = __atomic_load_n(&l->wanted, __ATOMIC_ACQUIRE);
	int asks, behind = -1;
	uint64_t now;

	if (!wanted || l->ready || d->phase != CVY_DEVICE_RUNS || d->given_up)
		return;
	now = cvy_now_ns();
	asks = now - l->asked_ns >= ASK_MS * CVY_MS;
	if (!shut(d, wanted == CVY_LEAVING_RETIRED, now) || !stands(d))
		return;
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		const struct cvy_device_peer *p = &d->peer[r];
		uint64_t inc;

		if (r == d->rank || !cvy_ranks_has(cvy_device_contributors(d), r))
			continue;
		inc = d->view->member[r].inc;
		if (p->passed_inc == inc && p->passed >= completed(d))
			continue;
		behind = r;
		if (asks)
			say_passed(d, r, inc, 1);
	}
	if (asks)
		l->asked_ns = now;
	__atomic_store_n(&l->behind, behind, __ATOMIC_RELEASE);
	__atomic_store_n(&l->ready, behind < 0, __ATOMIC_RELEASE);
}

void cvy_device_got_passed(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];
	struct passed passed;

	if (msg->bytes != sizeof(passed)) {
		cvy_warn("device", "rank %d tells its progress in %u bytes instead of %zu", msg->rank, msg->bytes,
			 sizeof(passed));
		return;
	}
	memcpy(&passed, msg->body, sizeof(passed));
	p->passed = passed.op;
	p->passed_inc = msg->inc;
	if (passed.asks && !read_counters(d, 0))
		say_passed(d, msg->rank, msg->inc, 0);
	cvy_device_leave_look(d);
}
