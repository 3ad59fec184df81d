/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that leaves waits until the others have completed what its device has: device_leave.c over a device of numbers. */
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "numbers.h"

struct passed { /* as device_leave.c has it */
	uint64_t op;
	uint32_t asks, zero;
};

static struct cvy_device *member_of_three(void)
{
	struct cvy_device *d = device_new(hear_nothing);

	memset(&kernel, 0, sizeof(kernel));
	passes = 0;
	meet(d, 1, 2);
	meet(d, 2, 3);
	learn(d, 1, 7, 0, 3);
	hear_have(d, 1, 2, OP);
	hear_have(d, 2, 3, OP);
	cvy_device_thaw(d);
	return d;
}

static int may_leave(struct cvy_device *d, int retired)
{
	cvy_device_may_leave(d, retired);
	cvy_device_leave_look(d);
	return cvy_device_may_leave(d, retired);
}

static void has_passed(struct cvy_device *d, int rank, uint64_t inc, uint64_t op)
{
	const struct passed passed = { op, 0, 0 };

	tell(d, CVY_MSG_PASSED, rank, inc, &passed, sizeof(passed));
}

TEST(device_leaves_when_the_others_have_completed_what_it_has)
{
	struct cvy_device *d = member_of_three();

	ck_assert(!may_leave(d, 0));
	ck_assert_int_eq(gate_is, CVY_GPU_GATE_CLOSED(1));
	ck_assert_int_eq(passes, 2);
	has_passed(d, 1, 2, OP);
	ck_assert(!may_leave(d, 0));
	has_passed(d, 2, 3, OP - 1);
	ck_assert(!may_leave(d, 0));
	has_passed(d, 2, 3, OP);
	ck_assert(may_leave(d, 0));
	device_free(d);
}

/* What the process before had completed is not the new one's; who has died is not waited for. The gate stays closed. */
TEST(device_waits_for_no_dead_rank_to_leave)
{
	struct cvy_device *d = member_of_three();

	ck_assert(!may_leave(d, 0));
	has_passed(d, 1, 2, OP + 1);
	has_passed(d, 2, 9, OP);
	ck_assert(!may_leave(d, 0));
	cvy_device_freeze(d, 1);
	learn(d, 2, 3, 4, 3);
	hear_have(d, 1, 2, OP);
	ck_assert(!may_leave(d, 0)); /* in a change nobody leaves */
	cvy_device_thaw(d);
	ck_assert_int_eq(gate_is, CVY_GPU_GATE_CLOSED(2));
	kernel.without = 4;
	ck_assert(may_leave(d, 0));
	kernel.without = 0;
	device_free(d);
}

/* A kernel inside is waited for; of a retired rank, which is called on, only for a moment. */
TEST(device_closes_its_gate_when_no_kernel_is_inside)
{
	struct cvy_device *d = member_of_three();

	kernel.entered = CVY_GPU_QUANTA;
	d->leaving.since_ns = 1; /* long ago */
	ck_assert(!may_leave(d, 0));
	ck_assert_int_eq(gate_is, CVY_GPU_GATE_OPEN(1));
	ck_assert(!may_leave(d, 1));
	ck_assert_int_eq(gate_is, CVY_GPU_GATE_CLOSED(1));
	has_passed(d, 1, 2, OP);
	has_passed(d, 2, 3, OP);
	ck_assert(!may_leave(d, 1)); /* it still moves */
	kernel.stopped = CVY_GPU_QUANTA;
	ck_assert(may_leave(d, 1));
	kernel.entered = kernel.stopped = 0;
	device_free(d);
}

/* Who is asked answers, and counts nothing of its own. */
TEST(device_says_what_it_has_completed)
{
	struct cvy_device *d = member_of_three();
	const struct passed asks = { OP, 1, 0 };

	tell(d, CVY_MSG_PASSED, 1, 2, &asks, sizeof(asks));
	ck_assert_int_eq(passes, 1);
	ck_assert_int_eq(gate_is, CVY_GPU_GATE_OPEN(1));
	tell(d, CVY_MSG_PASSED, 1, 2, &asks, 3); /* is no such message */
	ck_assert_int_eq(passes, 1);
	device_free(d);
}

SUITE_MAIN(.name = "collectives/device_leave")
