/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of a device's host side fails once, in the middle of view changes: over a device of numbers, in one process.
 * What comes of it is the change as it would have been, or a rank that gives up its place with a cause; and nothing is left.
 */
#include "../../suite.h"
#include "failing.h"
#include "numbers.h"

#include <string.h>

#include "clock.h"
#include "loop.h"

static struct {
	long hit;
	char what[32], why[256];
	int given_up;
} seen;

static void hear(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	if (event->kind != CVY_EV_FROZE_NOT)
		return;
	seen.given_up++;
	snprintf(seen.why, sizeof(seen.why), "%s", event->text ? event->text : "");
}

#define ARMED(call) \
	do { \
		failing.armed = 1; \
		call; \
		failing.armed = 0; \
	} while (0)

static void learn_armed(struct cvy_device *d, uint32_t epoch, uint64_t members, uint64_t removed)
{
	struct cvy_view *view = cvy_view_new(8);
	struct covey_mask gone = { { removed } };

	view->epoch = epoch;
	view->members.word[0] = members;
	for (int r = 0; r < 3; r++)
		view->member[r].inc = (uint64_t)r + 1;
	ARMED(cvy_device_learn(d, view, &gone));
	cvy_view_free(view);
}

/* A kernel runs when the gate closes, and stops a little later. */
static void freeze_late(struct cvy_device *d)
{
	kernel.entered = CVY_GPU_QUANTA;
	kernel.stopped = 0;
	ARMED(cvy_device_freeze(d, 1));
	kernel.stopped = CVY_GPU_QUANTA;
	if (d->timer) /* nobody runs the loop: its timer would be the next look */
		cvy_loop_cancel(d->timer);
	d->timer = NULL;
	ARMED(cvy_device_look(d));
}

/* Rank 2 is removed; rank 1 has completed what lacks here, gives what rank 2 had pushed, and asks for it in its turn. */
static void repair(struct cvy_device *d)
{
	struct want want = { .op = OP, .gone = 2, .lanes = 1, .slot_bytes = 16, .rounds = 1 };
	struct {
		uint64_t op;
		int32_t gone;
		uint32_t last;
		uint64_t at;
		uint32_t bytes, zero;
		uint8_t data[16];
	} slots = { .op = OP, .gone = 2, .last = 1, .bytes = 16 }; /* as device_packets.c has it */

	ARMED(hear_have(d, 1, 2, OP + 1));
	if (d->phase == CVY_DEVICE_FETCHES && !seen.given_up)
		ARMED(tell(d, CVY_MSG_SLOTS, 1, 2, &slots, sizeof(slots)));
	if (!seen.given_up)
		ARMED(tell(d, CVY_MSG_WANT, 1, 2, &want, sizeof(want)));
}

/* 1: a call was made to fail. */
static int life(long n)
{
	struct cvy_loop *loop = NULL;
	long before = failing.count;
	struct cvy_device *d = device_new(hear);

	memset(&seen, 0, sizeof(seen));
	failing.calls = 0;
	failing.fails_at = n;
	ck_assert_int_eq(cvy_loop_new(&loop), 0);
	d->loop = loop;
	d->box = cvy_errbox_new();
	meet(d, 1, 2);
	meet(d, 2, 3);
	learn_armed(d, 1, 7, 0);
	if (!seen.given_up) {
		cvy_device_thaw(d);
		freeze_late(d);
		ck_assert_msg(d->phase == CVY_DEVICE_STANDS, "%s number %ld failed: the device never stands still",
			      seen.what, n);
		learn_armed(d, 2, 3, 4);
		repair(d);
	}
	ck_assert_msg(seen.given_up || d->phase == CVY_DEVICE_READY, "%s number %ld failed: no end of it", seen.what,
		      n);
	ck_assert_msg(!seen.given_up || seen.why[0], "%s number %ld failed: no cause", seen.what, n);
	cvy_device_forget_packets(d);
	cvy_errbox_free(d->box);
	device_free(d);
	cvy_loop_free(loop);
	ck_assert_msg(failing.count <= before, "%s number %ld failed: %ld allocations are left", seen.what, n,
		      failing.count - before);
	return seen.hit != 0;
}

TEST(every_allocation_of_a_device_fails_once)
{
	long n = 1;

	failing.hit = &seen.hit;
	failing.what = seen.what;
	while (life(n))
		n++;
	ck_assert_int_gt(n, 4); /* a view, a timer, packets kept, packets given */
}

SUITE_MAIN(.name = "collectives/alloc_device")
