/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of rank 0 of two or three, alone: what a repair makes of a private operation whose source rank 1 is
 * written here by hand into its window. No agent, no links: the others are on another host, and their links are down.
 */
#include "../../suite.h"
#include "harness.h"

#include <stdlib.h>

#include "algo.h"
#include "engine_state.h"
#include "lend.h"
#include "window.h"

#define COUNT 8

static struct {
	struct cvy_loop *loop;
	struct cvy_mesh *mesh;
	struct cvy_engine *engine;
	struct cvy_view *view;
	struct cvy_op *op;
	struct cvy_page *other; /* rank 1's window as it is seen here */
	float in[3 * COUNT], out[3 * COUNT];
	int repaired;
} f;

static void post(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	f.repaired += event->kind == CVY_EV_REPAIRED;
}

static int on_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	(void)ctx, (void)rank, (void)inc, (void)type, (void)epoch, (void)body, (void)bytes;
	return 0;
}

static void view_open(int ranks)
{
	f.view = cvy_view_new(4);
	f.view->epoch = f.view->base = 1;
	f.view->size = ranks;
	for (int r = 0; r < ranks; r++) {
		f.view->member[r].inc = (uint64_t)r + 1;
		cvy_mask_add(&f.view->members, r);
	}
}

/* A member of an active view that has called an alltoall and published its part. */
static void setup_ranks(int ranks)
{
	static char interface[] = "127.0.0.1", none[] = "";
	struct cvy_config config = {
		.host = none, .interface = interface, .max_ranks = 4, .slot_bytes = 4096, .window_bytes = 65536
	};
	struct cvy_mesh_args args = { .config = &config, .sink = { .post = post } };
	struct cvy_identity id = { .rank = 0, .max_ranks = 4, .inc = 1, .nonce = 1 };
	struct covey_mask nobody = { { 0 } };

	memset(&f, 0, sizeof(f));
	must(!cvy_loop_new(&args.loop) && !cvy_mesh_open(&args, &f.mesh), "mesh");
	f.loop = args.loop;
	cvy_mesh_identity(f.mesh, &id);
	f.other = (struct cvy_page *)(void *)cvy_mesh_view(f.mesh, 1);
	for (int r = 1; r < ranks; r++)
		must(!cvy_window_fresh(cvy_mesh_view(f.mesh, r), 65536), "window");
	must(!cvy_engine_open(&f.engine, f.mesh, NULL, 65536), "engine");
	f.engine->sink.post = post;
	f.engine->send = on_send;
	view_open(ranks);
	cvy_engine_identity(f.engine, 0, 4);
	cvy_engine_learn(f.engine, f.view, &nobody, &nobody);
	cvy_engine_repair(f.engine, &nobody);
	cvy_engine_thaw(f.engine);
	f.op = cvy_op_new(f.engine, &cvy_op_alltoall);
	f.op->send = f.in;
	f.op->recv = f.out;
	f.op->count = COUNT;
	f.op->elem = sizeof(float);
	f.op->bytes = COUNT * sizeof(float);
	f.op->dtype = COVEY_FLOAT32;
	f.op->kind->plan(f.engine, f.op, ranks);
	memset(f.out, 0x5a, sizeof(f.out));
	f.repaired = 0;
}

static void setup(void)
{
	setup_ranks(2);
}

static void teardown(void)
{
	cvy_engine_stop(f.engine, COVEY_ERR_CLOSED);
	cvy_op_put(f.op);
	cvy_engine_close(f.engine);
	cvy_mesh_close(f.mesh);
	cvy_loop_free(f.loop);
	cvy_view_free(f.view);
}

static void call(void)
{
	cvy_op_sign(f.op, COVEY_ON_LOSS_CONTINUE);
	must(!cvy_engine_post(f.engine, f.op), "post");
	ck_assert(f.op->state == CVY_OP_ENTERED && f.op->entered == 1);
}

/* The next view, in which rank 1 has done what is called here, and this rank lags. */
static void change(void)
{
	struct covey_mask nobody = { { 0 } }, lag = { { 1 } }, holders = { { 2 } };

	cvy_engine_freeze(f.engine, f.view->epoch);
	f.view->epoch = f.view->base = 2;
	cvy_engine_learn(f.engine, f.view, &nobody, &lag);
	cvy_engine_repair(f.engine, &holders);
}

/* Its part is here, or on its way over a link that was up: rank 1 announces it. */
static void other_publishes(void)
{
	struct cvy_line *line = &f.other->first[cvy_slot_index(f.op, 0)];

	line->sig = f.op->mark;
	line->call = f.op->call;
	__atomic_store_n(&line->tag, cvy_tag(1, f.op->first), __ATOMIC_RELEASE);
}

TEST(what_a_link_that_was_down_would_have_brought_is_missing)
{
	static const float zero[COUNT];

	call();
	change();
	ck_assert(cvy_op_decided(f.op) && f.repaired);
	ck_assert_int_eq(f.op->result.status, 0);
	ck_assert_uint_eq(f.op->result.mask.word[0], 1);
	ck_assert_mem_eq(f.out + COUNT, zero, sizeof(zero));
}

TEST(what_is_here_is_taken_whatever_the_link)
{
	call();
	other_publishes();
	change();
	ck_assert(cvy_op_decided(f.op) && f.repaired);
	ck_assert_uint_eq(f.op->result.mask.word[0], 3);
}

/* Rank 1's part came before its link broke, rank 2's did not: the mask says what was read. */
TEST(what_came_before_its_link_broke_is_taken_without_the_others)
{
	static const float zero[COUNT];
	float sent[COUNT];

	teardown();
	setup_ranks(3);
	for (int i = 0; i < COUNT; i++)
		sent[i] = (float)i + 1;
	call();
	memcpy((void *)(uintptr_t)cvy_source_piece(f.engine, f.op, 0, 1), sent, sizeof(sent));
	other_publishes();
	cvy_engine_step(f.engine);
	change();
	ck_assert(cvy_op_decided(f.op) && f.repaired);
	ck_assert_int_eq(f.op->result.status, 0);
	ck_assert_uint_eq(f.op->result.mask.word[0], 3);
	ck_assert_mem_eq(f.out + COUNT, sent, sizeof(sent));
	ck_assert_mem_eq(f.out + (size_t)2 * COUNT, zero, sizeof(zero));
}

static const struct covey_mask nobody, own_rank = { { 1 } }, other_rank = { { 2 } };

/* Its window is mapped here, and it is in view 1. */
static void share_memory(void)
{
	f.engine->here.set.link[1] = 0;
	f.engine->here.set.npush = 0;
	f.other->epoch = 1;
}

static void learn(uint32_t epoch, uint64_t base, const struct covey_mask *lag)
{
	cvy_engine_freeze(f.engine, epoch - 1);
	f.view->epoch = epoch;
	f.view->base = base;
	f.repaired = 0;
	cvy_engine_learn(f.engine, f.view, &nobody, lag);
}

/* View 2 is acknowledged here, but only rank 1 begins it: it masks this rank as late and is done. Then view 3. */
TEST(who_never_began_a_view_is_repaired_in_the_next)
{
	f.op->timeout_ns = 100000000;
	call();
	share_memory();
	learn(2, 1, &nobody);
	ck_assert_uint_eq(f.engine->here.own->epoch, 2); /* what others look at when they have read */
	cvy_engine_repair(f.engine, &other_rank);
	ck_assert(f.repaired);
	f.other->epoch = 2;
	f.other->first[1].tag = cvy_tag(2, 1);
	f.other->done.aux = 1;
	learn(3, 2, &own_rank);
	cvy_engine_repair(f.engine, &other_rank);
	for (int i = 0; i < 10; i++)
		cvy_engine_step(f.engine);
	ck_assert(cvy_op_decided(f.op) && f.repaired);
}

/* Stopped between learning view 2 and its repair; view 3 leaves it out and is written before it wakes. */
TEST(who_was_left_out_before_its_repair_tells_no_mismatch)
{
	call();
	share_memory();
	other_publishes();
	f.other->done.aux = 1;
	learn(2, 2, &own_rank);
	f.other->epoch = 3;
	f.other->first[cvy_slot_index(f.op, 0)].tag = cvy_tag(3, 1);
	cvy_engine_repair(f.engine, &other_rank);
	ck_assert(!cvy_op_decided(f.op));
}

SUITE_MAIN(.name = "collectives/repair", .setup = setup, .teardown = teardown)
