/* SPDX-License-Identifier: Apache-2.0 */
/* What a member knows of operations that others have completed: device_eras.c over a device of numbers. */
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "numbers.h"

/* What others have completed is completed as in their era; who has completed most says which there were. */
TEST(device_takes_the_history_of_who_has_completed_most)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct cvy_device_have have = { .op = OP + 4, .mask = 7, .eras = 3 };
	const struct cvy_gpu_era told[] = { { .op = 0, .epoch = 1, .mask = 7 },
					    { .op = OP + 2, .epoch = 2, .mask = 15 },
					    { .op = OP + 3, .epoch = 2, .mask = 7 } };

	memcpy(have.era, told, sizeof(told));
	kernel.entered = kernel.stopped = 0;
	lose_rank_2(d);
	tell(d, CVY_MSG_HAVE, 1, 2, &have, sizeof(have));
	ck_assert_int_ge(d->phase, CVY_DEVICE_FETCHES);
	ck_assert_uint_eq(d->roll.eras, 4);
	for (int i = 0; i < 3; i++) {
		struct cvy_gpu_era era = cvy_gpu_era_of(&d->roll, OP + 1 + (uint64_t)i);

		ck_assert_uint_eq(era.epoch, told[i].epoch);
		ck_assert_uint_eq(era.mask, told[i].mask);
	}
	ck_assert_uint_eq(cvy_gpu_era_of(&d->roll, OP + 4).epoch, 2);
	ck_assert_uint_eq(cvy_gpu_era_of(&d->roll, OP + 4).mask, 3);
	/* Of operations that nobody has completed who is left, this view's words are the end. */
	have.op = OP + 2;
	cvy_device_freeze(d, 2);
	learn(d, 3, 3, 0, 3);
	have.eras = 1;
	tell(d, CVY_MSG_HAVE, 1, 2, &have, sizeof(have));
	ck_assert_uint_eq(d->roll.eras, 2);
	ck_assert_uint_eq(cvy_gpu_era_of(&d->roll, OP + 2).epoch, 3);
	device_free(d);
}

/* An ADMIT that the device has done since the last change begins an era, and is told with the lanes' counts. */
TEST(device_tells_of_an_admit_in_the_stream)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct cvy_device_have *have = &d->peer[0].have;

	meet(d, 1, 2);
	meet(d, 2, 3);
	learn(d, 1, 7, 0, 3);
	hear_have(d, 1, 2, 0);
	hear_have(d, 2, 3, 0);
	cvy_device_thaw(d);
	kernel.admitted = (struct cvy_gpu_admitted){ { .op = 3, .epoch = 1, .mask = 15 }, { 40 } };
	cvy_device_freeze(d, 1);
	learn(d, 2, 3, 4, 3);
	ck_assert_uint_eq(have->admitted.count[0], 40);
	ck_assert_uint_eq(have->era[have->eras - 1].op, 3);
	ck_assert_uint_eq(have->era[have->eras - 1].mask, 15);
	hear_have(d, 1, 2, OP + 1);
	cvy_device_thaw(d);
	cvy_device_freeze(d, 2); /* it is of a view before: the others have said what came of that */
	learn(d, 3, 3, 0, 3);
	ck_assert_uint_eq(have->admitted.era.epoch, 0);
	memset(&kernel.admitted, 0, sizeof(kernel.admitted));
	device_free(d);
}

/*
 * Others have completed operations by deadlines before it began any: its first is the one behind the ADMIT that let it in, or the
 * group's first, and it lags.
 */
TEST(device_that_never_began_lags_behind_its_first_operation)
{
	for (uint32_t founder = 0; founder < 2; founder++) {
		struct cvy_device *d = device_new(hear_nothing);
		struct cvy_device_have have = {
			.op = OP + 4, .mask = 7, .eras = 1, .era = { { .op = 0, .epoch = 1, .mask = 15 } }
		};
		uint64_t first = founder ? 0 : OP + 1;

		if (!founder)
			have.admitted = (struct cvy_gpu_admitted){ { .op = OP, .epoch = 1, .mask = 15 }, { 40 } };
		kernel.newcomer = 1;
		wants = 0;
		learn(d, 1, 7, 0, 3);
		meet(d, 1, 2);
		meet(d, 2, 3);
		tell(d, CVY_MSG_HAVE, 1, 2, &have, sizeof(have));
		tell(d, CVY_MSG_HAVE, 2, 3, &have, sizeof(have));
		ck_assert_int_ge(d->phase, CVY_DEVICE_FETCHES);
		ck_assert_uint_eq(d->roll.begin, first);
		ck_assert_uint_eq(d->lanes[0].count, founder ? 0 : 40);
		ck_assert_uint_eq(d->lanes[0].failed, CVY_GPU_LAGS);
		ck_assert_uint_eq(d->verdict.gone, 8); /* it has had no words that named it */
		ck_assert_int_eq(wants, 0);
		kernel.newcomer = 0;
		device_free(d);
	}
}

/* Half of an operation's CTAs had ended when the view changed, the others had not entered: those do all of it again. */
TEST(device_tells_lanes_of_an_operation_that_is_partly_done)
{
	for (int waits = 0; waits < 2; waits++) {
		struct cvy_device *d = device_new(hear_nothing);

		kernel.before = CVY_GPU_QUANTA / 2;
		kernel.entered = kernel.stopped = waits ? CVY_GPU_QUANTA / 4 : 0; /* one of it does that */
		lose_rank_2(d);
		hear_have(d, 1, 2, OP);
		ck_assert_uint_eq(d->verdict.base, OP);
		ck_assert_uint_eq(d->verdict.partly, !waits);
		ck_assert_uint_eq(d->lanes[0].failed, waits ? 0 : CVY_GPU_LAGS);
		kernel.before = kernel.entered = kernel.stopped = 0;
		device_free(d);
	}
}

SUITE_MAIN(.name = "collectives/device_eras")
