/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member's decisions about its device when one view follows another at once: device_change.c over a device of numbers.
 *
 * labels: tsan
 */
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "clock.h"
#include "numbers.h"

#define CHANGES 2000 /* in which two threads meet */

/* A holder has a removed rank's packets where they came, although a successor has come and gone in the same change. */
TEST(device_keeps_packets_of_the_removed_while_successors_go)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct want want = { .op = OP, .gone = 2, .lanes = 1, .slot_bytes = 16, .rounds = 1 };
	int packets;

	learn(d, 1, 7, 0, 3);
	link_up(d, 1, 2);
	link_up(d, 2, 3);
	cvy_device_thaw(d);
	packets = fresh[2];
	cvy_device_freeze(d, 1);
	learn(d, 2, 3, 4, 3);
	ck_assert_int_ne(fresh[2], packets);
	link_up(d, 2, 9);
	learn(d, 3, 7, 0, 9);
	learn(d, 4, 3, 4, 9);
	tell(d, CVY_MSG_WANT, 1, 2, &want, sizeof(want));
	ck_assert_int_eq(read_from, packets);
	device_free(d);
}

/* Who has not thawed since a rank was removed has words with it, and takes its successor for no contributor all the same. */
TEST(device_takes_a_successor_for_no_contributor)
{
	struct cvy_device *d = device_new(hear_nothing);

	learn(d, 1, 7, 0, 3);
	cvy_device_thaw(d);
	cvy_device_freeze(d, 1);
	learn(d, 2, 3, 4, 3);
	learn(d, 3, 7, 0, 9);
	ck_assert_uint_eq(d->peer[0].have.mask, 3);
	device_free(d);
}

/* The operation that others have completed is completed here views later: nobody else has the packets by then. */
TEST(device_keeps_packets_that_it_lacks_until_they_are_used)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct {
		uint64_t op;
		int32_t gone;
		uint32_t last;
		uint64_t at;
		uint32_t bytes, zero;
		uint8_t data[16];
	} slots = { .op = OP, .gone = 2, .last = 1, .bytes = 16 }; /* as device_packets.c has it */

	wants = written = 0;
	lose_rank_2(d);
	hear_have(d, 1, 2, OP + 1);
	ck_assert_int_eq(wants, 1);
	tell(d, CVY_MSG_SLOTS, 1, 2, &slots, sizeof(slots));
	ck_assert_int_eq(d->peer[2].gone, CVY_GONE_WHOLE);
	meet(d, 2, 9);
	learn(d, 3, 7, 0, 9); /* the others may have thawed before */
	hear_have(d, 1, 2, OP + 1);
	hear_have(d, 2, 9, 0);
	ck_assert_int_ge(d->phase, CVY_DEVICE_FETCHES);
	ck_assert_int_eq(wants, 1);
	ck_assert_uint_eq(d->verdict.gone, 4);
	cvy_device_thaw(d);
	cvy_device_freeze(d, 3); /* before the kernel went on */
	written = 0;
	learn(d, 4, 3, 4, 9);
	hear_have(d, 1, 2, OP + 1);
	ck_assert_int_eq(wants, 1);
	ck_assert_uint_eq(d->verdict.gone, 4);
	ck_assert_int_eq(written, 1);
	ck_assert_int_eq(written_to, d->peer[2].in);
	cvy_device_forget_packets(d);
	device_free(d);
}

/* A kernel that entered after the device stood still has pushed, and others have completed what it lacks packets for. */
TEST(device_asks_for_what_a_kernel_behind_the_gate_lacks)
{
	struct cvy_device *d = device_new(hear_nothing);

	wants = 0;
	kernel.parked = OP - 1;
	lose_rank_2(d);
	kernel.entered = CVY_GPU_QUANTA;
	d->queues.timer = (struct cvy_timer *)d; /* one is set already */
	hear_have(d, 1, 2, OP + 1);
	ck_assert_int_eq(d->phase, CVY_DEVICE_STANDS);
	kernel.stopped = CVY_GPU_QUANTA;
	kernel.parked = OP;
	cvy_device_reconcile(d);
	ck_assert_int_ge(d->phase, CVY_DEVICE_FETCHES);
	ck_assert_int_eq(wants, 1);
	device_free(d);
}

/*
 * What no CTA has ever written says operation 0, which may be the one that others have completed. Nothing of it has entered
 * then, and nobody can be asked for as many packets as none.
 */
TEST(device_whose_kernels_never_stopped_asks_for_nothing)
{
	struct cvy_device *d = device_new(hear_nothing);

	wants = 0;
	kernel.parked = OP;
	kernel.never_parked = 1;
	lose_rank_2(d);
	hear_have(d, 1, 2, OP + 1);
	ck_assert_int_eq(wants, 0);
	kernel.never_parked = 0;
	device_free(d);
}

/* CTAs that come by a view's words look first whether others have completed their operation, and how; only where some may have. */
TEST(device_tells_lanes_that_it_lags)
{
	struct cvy_device_have have = {
		.op = OP + 1, .mask = 7, .eras = 1, .era = { { .op = 0, .epoch = 1, .mask = 7 } }
	};

	for (int ahead = 0; ahead < 2; ahead++) {
		struct cvy_device *d = device_new(hear_nothing);

		kernel.entered = kernel.stopped = 0;
		lose_rank_2(d);
		have.op = OP + (uint64_t)ahead;
		tell(d, CVY_MSG_HAVE, 1, 2, &have, sizeof(have));
		ck_assert_int_ge(d->phase, CVY_DEVICE_FETCHES);
		for (int i = 0; i < CVY_GPU_LANES; i++)
			ck_assert_uint_eq(d->lanes[i].failed, ahead ? CVY_GPU_LAGS : 0);
		cvy_device_freeze(d, 2);
		learn(d, 3, 3, 0, 3); /* nothing comes of the change before */
		have.op = OP;
		tell(d, CVY_MSG_HAVE, 1, 2, &have, sizeof(have));
		ck_assert_uint_eq(d->lanes[0].failed, 0);
		device_free(d);
	}
}

/* Of private operations nobody is asked; who is gone is known all the same until what lacks is completed, views later. */
TEST(device_knows_who_is_gone_until_it_lacks_nothing)
{
	struct cvy_device *d = device_new(hear_nothing);

	wants = 0;
	kernel.entered = kernel.stopped = CVY_GPU_QUANTA;
	kernel.private_parts = 1;
	lose_rank_2(d);
	hear_have(d, 1, 2, OP + 1);
	ck_assert_uint_eq(d->verdict.gone, 4);
	cvy_device_thaw(d);
	cvy_device_freeze(d, 2); /* before the kernel went on */
	meet(d, 2, 9);
	learn(d, 3, 7, 0, 9);
	hear_have(d, 1, 2, OP + 1);
	hear_have(d, 2, 9, 0);
	ck_assert_uint_eq(d->verdict.gone, 4);
	ck_assert_int_eq(wants, 0);
	device_free(d);
}

/* Who was registered, left out before it knew of any view, and registered again, is given other memory by all. */
TEST(device_takes_memory_for_each_of_its_names)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct cvy_identity id = { .rank = 0, .max_ranks = 8, .inc = 5 };

	attached = 0;
	cvy_device_identity(d, &id);
	meet(d, 1, 2);
	meet(d, 1, 2); /* a link that comes again brings nothing new */
	ck_assert_int_eq(attached, 1);
	cvy_device_identity(d, &id);
	meet(d, 1, 2);
	ck_assert_int_eq(attached, 1);
	id.inc = 7;
	cvy_device_identity(d, &id);
	meet(d, 1, 2);
	ck_assert_int_eq(attached, 2);
	ck_assert_uint_eq(d->peer[1].inc, 2);
	ck_assert_int_eq(stands[0][1][d->peer[1].in], 1);
	device_free(d);
}

/* However many processes come to a place and go before one is let in: what kernels use is not given up. */
TEST(device_keeps_memory_in_use_after_many_that_came_for_nothing)
{
	struct cvy_device *d = device_new(hear_nothing);

	memset(stands, 0, sizeof(stands));
	lose_rank_2(d);
	cvy_device_thaw(d);
	for (uint64_t inc = 4; inc < 20; inc++)
		meet(d, 2, inc);
	cvy_device_freeze(d, 2);
	learn(d, 3, 7, 0, 19);
	cvy_device_thaw(d);
	for (int changes = 0; changes < 3; changes++) {
		cvy_device_freeze(d, 3);
		for (int r = 1; r < 3; r++) {
			ck_assert_int_eq(stands[0][r][d->peer[r].in], 1);
			ck_assert_int_eq(stands[1][r][d->peer[r].out], 1);
		}
		learn(d, 4 + (uint32_t)changes, 7, 0, 19);
		cvy_device_thaw(d);
	}
	device_free(d);
}

static int repaired;

static void hear_repaired(void *ctx, const struct cvy_event *event)
{
	if (event->kind == CVY_EV_REPAIRED)
		__atomic_add_fetch(&repaired, 1, __ATOMIC_SEQ_CST);
}

static pthread_barrier_t together;

static void *say_repaired(void *arg)
{
	const struct cvy_event ev = { .kind = CVY_EV_REPAIRED, .rank = -1 };
	struct cvy_sink sink = cvy_device_sink(arg);

	for (int change = 0; change < CHANGES; change++) {
		pthread_barrier_wait(&together);
		sink.post(sink.ctx, &ev);
		pthread_barrier_wait(&together);
	}
	return NULL;
}

/* The thread that steps a repair says so, while the agent's hears the last number: one of the two tells the agent. */
TEST(device_tells_once_that_both_are_repaired)
{
	struct cvy_device *d = device_new(hear_repaired);
	pthread_t stepper;

	repaired = 0;
	kernel.private_parts = 0;
	pthread_barrier_init(&together, NULL, 2);
	lose_rank_2(d);
	ck_assert_int_eq(pthread_create(&stepper, NULL, say_repaired, d), 0);
	for (int change = 0; change < CHANGES; change++) {
		pthread_barrier_wait(&together);
		hear_have(d, 1, 2, OP);
		pthread_barrier_wait(&together);
		ck_assert_int_eq(__atomic_load_n(&repaired, __ATOMIC_SEQ_CST), change + 1);
		cvy_device_freeze(d, 2);
		learn(d, 3 + (uint32_t)change, 3, 0, 3);
	}
	pthread_join(stepper, NULL);
	pthread_barrier_destroy(&together);
	device_free(d);
}

static uint64_t suspected; /* the process */

static void hear_suspicions(void *ctx, const struct cvy_event *event)
{
	if (event->kind == CVY_EV_SUSPECT)
		suspected = event->inc;
}

/* A kernel's word that it could not post may come when the rank has another process already: that has another queue. */
TEST(device_suspects_whom_a_kernel_could_not_post_to)
{
	struct cvy_device *d = device_new(hear_suspicions);

	learn(d, 1, 7, 0, 9);
	d->queues.proxy = (struct cvy_proxy *)d; /* there is one: it is not asked */
	d->peer[2].out = 1;			 /* mapping 0 was of the process before */
	d->peer[2].out_inc = 9;
	box.unsent[2 * CVY_GPU_GENERATIONS] = 1;
	cvy_device_look(d);
	ck_assert_uint_eq(suspected, 0);
	box.unsent[2 * CVY_GPU_GENERATIONS + 1] = 1;
	cvy_device_look(d);
	ck_assert_uint_eq(suspected, 9);
	device_free(d);
}

static int words_here(void *ctx, size_t bytes, void **at)
{
	*at = calloc(1, bytes);
	return 0;
}

static void words_free(void *ctx, void *at)
{
	free(at);
}

static int map_here(void *ctx, void *host, size_t bytes, int io, void **at, char *text, size_t text_bytes)
{
	(void)ctx, (void)bytes, (void)io, (void)text, (void)text_bytes;
	*at = host;
	return 0;
}

static void unmap_here(void *ctx, void *host, size_t bytes)
{
	(void)ctx, (void)host, (void)bytes;
}

static int reach(struct cvy_gpu *gpu, struct cvy_queue_memory *out)
{
	*out = (struct cvy_queue_memory){
		.words = words_here, .words_free = words_free, .map = map_here, .unmap = unmap_here
	};
	return 0;
}

static int no_error(struct cvy_gpu *gpu)
{
	return 0;
}

static int idle(struct cvy_gpu *gpu, int ending)
{
	return 0;
}

/* Who beats and never answers what it was offered would keep a change from ending. */
TEST(device_suspects_who_does_not_answer)
{
	struct cvy_device *d = device_new(hear_suspicions);
	struct cvy_config config = { .topology = (char[]){ "3x1" }, .queues = (char[]){ "copy" }, .max_ranks = 3 };
	uint64_t until;

	numbers.reach = reach;
	numbers.copies_open = no_error;
	numbers.synchronise = idle;
	config.interface = config.rdma_device = (char[]){ "" };
	d->join_ms = 20;
	ck_assert_int_eq(cvy_device_queues_open(d, &config), 0);
	suspected = 0;
	memset(&box, 0, sizeof(box));
	learn(d, 1, 7, 0, 9);
	link_up(d, 2, 9);
	d->peer[1].out_inc = 2; /* reached */
	for (until = cvy_now_ns() + 10000 * CVY_MS; !suspected && cvy_now_ns() < until;)
		cvy_device_look(d);
	ck_assert_uint_eq(suspected, 9);
	cvy_device_queues_close(d);
	device_free(d);
}

static int given_up;

static void hear_give_up(void *ctx, const struct cvy_event *event)
{
	given_up += event->kind == CVY_EV_FROZE_NOT;
}

/* Others went on by deadlines, and wrote over what a kernel here waits for: it can not come any more. */
TEST(device_gives_up_once_when_it_is_outrun)
{
	struct cvy_device *d = device_new(hear_give_up);

	memset(&box, 0, sizeof(box));
	given_up = 0;
	d->box = cvy_errbox_new();
	learn(d, 1, 7, 0, 3);
	cvy_device_look(d);
	ck_assert_int_eq(given_up, 0);
	box.outrun[1] = OP + 1;
	cvy_device_look(d); /* a change is under way */
	learn(d, 2, 5, 2, 3);
	cvy_device_thaw(d);
	cvy_device_look(d); /* which has taken that rank away */
	ck_assert_int_eq(given_up, 0);
	box.outrun[2] = OP;
	cvy_device_look(d); /* that operation has been completed since */
	ck_assert_int_eq(given_up, 0);
	ck_assert_uint_eq(box.outrun[2], 0);
	box.outrun[2] = OP + 1;
	cvy_device_look(d);
	cvy_device_look(d);
	ck_assert_int_eq(given_up, 1);
	cvy_errbox_free(d->box);
	device_free(d);
}

SUITE_MAIN(.name = "collectives/device")
