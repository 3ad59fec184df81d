/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that is stopped while it reads its peers' windows, and wakes when they have left it out and written on:
 * what it read is nobody's result.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "engine_state.h"
#include "mesh.h"
#include "pair_state.h"

#define VALUE 7u
#define LATER 9u
#define INC 3u
#define OWN_INC 4u

static struct {
	struct cvy_mesh mesh;
	struct cvy_peer peer;
	struct cvy_link link;
	struct cvy_engine *e;
	struct cvy_view *view;
	uint8_t *own, *far; /* windows */
	uint32_t got;
	int stopped; /* while it reads */
} t;

static struct cvy_page *far_page(void)
{
	return (struct cvy_page *)(void *)t.far;
}

/* Reads the other's line; the others may be in the next view before it comes to that. */
static void read_line(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	if (t.stopped) {
		__atomic_store_n(&far_page()->epoch, 2, __ATOMIC_RELEASE);
		memcpy(far_page()->first[1].data, &(uint32_t){ LATER }, sizeof(uint32_t));
	}
	memcpy(&t.got, cvy_source_line(e, op, i, 1, 1)->data, sizeof(t.got));
}

/* The same in the fold of a second round. */
static void fold_line(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	read_line(e, op, i);
	memcpy(line->data, &t.got, sizeof(t.got));
}

/* And while a holder makes what it gives. */
static size_t give_line(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	read_line(e, op, i);
	memcpy(out, &t.got, sizeof(t.got));
	return sizeof(t.got);
}

static const struct cvy_op_kind folder = { .name = "folder", .op_class = CVY_OP_ALL, .publish2 = fold_line };
static const struct cvy_op_kind reader = {
	.name = "reader", .op_class = CVY_OP_ALL, .consume = read_line, .give = give_line
};
static const struct cvy_transport memory = { .name = "memory" };

static void set_up(void)
{
	struct cvy_layout layout = cvy_layout((size_t)4 << 20, 4096);

	memset(&t, 0, sizeof(t));
	ck_assert_int_eq(cvy_loop_new(&t.mesh.loop), 0);
	t.e = calloc(1, sizeof(*t.e));
	t.view = cvy_view_new(2);
	ck_assert(t.e && t.view);
	t.own = aligned_alloc(4096, layout.window_bytes);
	t.far = aligned_alloc(4096, layout.window_bytes);
	ck_assert(t.own && t.far);
	memset(t.own, 0, layout.window_bytes);
	memset(t.far, 0, layout.window_bytes);
	t.link = (struct cvy_link){ .ops = &memory, .mesh = &t.mesh, .rank = 1, .id = 1, .inc = INC };
	t.peer.link = &t.link;
	t.mesh.peer[1] = &t.peer;
	t.mesh.view[1] = t.far;
	t.mesh.layout = layout;
	t.mesh.window = calloc(1, sizeof(*t.mesh.window));
	ck_assert_ptr_nonnull(t.mesh.window);
	t.mesh.window->own = t.own;
	t.e->mesh = &t.mesh;
	t.e->here.layout = layout;
	t.e->here.own_base = t.own;
	t.e->here.own = (struct cvy_page *)(void *)t.own;
	t.e->view = t.view;
	t.view->epoch = 1;
	pthread_mutex_init(&t.e->lock, NULL);
}

static void tear_down(void)
{
	cvy_loop_free(t.mesh.loop);
	cvy_view_free(t.view);
	free(t.mesh.window);
	free(t.own);
	free(t.far);
	free(t.e);
}

/* ---- an operation ---- */

static int ranks[] = { 0, 1 };
static uint8_t gone[2];
static uint64_t no_link[2];
static struct cvy_page *pages[2];
static const uint8_t *bases[2];

/* Runs an operation as far as it goes, in epoch 1 with the other's line there: is it decided? */
static int run(const struct cvy_op_kind *kind, int rounds)
{
	struct cvy_op *op = cvy_op_new(t.e, kind);

	op->seq = 1;
	op->ticks = 1;
	op->rounds = rounds;
	pages[0] = t.e->here.own;
	pages[1] = far_page();
	bases[0] = t.own;
	bases[1] = t.far;
	t.e->here.set =
		(struct cvy_set){ .n = 2, .rank = ranks, .page = pages, .base = bases, .gone = gone, .link = no_link };
	t.e->here.epoch = t.e->here.own->epoch = far_page()->epoch = 1;
	t.e->active = 1;
	memcpy(far_page()->first[1].data, &(uint32_t){ VALUE }, sizeof(uint32_t));
	t.e->head = t.e->tail = op;
	cvy_engine_step(t.e);
	far_page()->first[1].sig = op->mark;
	far_page()->first[1].tag = cvy_tag(1, 1);
	for (int i = 0; i < 3; i++)
		cvy_engine_step(t.e);
	return op->state == CVY_OP_DECIDED;
}

static void forget(void)
{
	if (t.e->head)
		cvy_op_put(t.e->head);
	for (int i = 0; i < 8; i++)
		if (t.e->record[i])
			cvy_op_put(t.e->record[i]);
	for (int i = 0; i < 2; i++)
		free(t.e->spare[i]);
}

TEST(what_is_read_in_the_view_is_a_result)
{
	ck_assert(run(&reader, 1));
	ck_assert_uint_eq(t.got, VALUE);
	forget();
}

TEST(what_is_read_when_the_others_are_in_a_later_view_is_none)
{
	t.stopped = 1;
	ck_assert(!run(&reader, 1));
	ck_assert_uint_eq(t.got, LATER); /* so it would have been told that */
	ck_assert_uint_eq(t.e->done, 0);
	forget();
}

TEST(what_was_folded_of_a_later_view_is_not_announced)
{
	t.stopped = 1;
	run(&folder, 2);
	ck_assert_uint_eq(t.got, LATER);
	ck_assert_uint_ne(t.e->here.own->second[1].tag, cvy_tag(1, 1));
	forget();
}

static int gives;

static int count_gives(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	(void)ctx, (void)rank, (void)inc, (void)epoch, (void)body, (void)bytes;
	gives += type == CVY_MSG_GIVE;
	return 0;
}

/* A holder of what rank 1 asks for; @stopped: while it gives, until the next view is written. */
static int gives_when(int stopped)
{
	uint64_t pull[2] = { 1, 0 };
	struct cvy_msg msg = {
		.type = CVY_MSG_PULL, .rank = 1, .inc = INC, .epoch = 1, .body = pull, .bytes = sizeof(pull)
	};

	gives = 0;
	t.e->send = count_gives;
	ck_assert(run(&reader, 1));
	t.e->active = 0;
	t.stopped = stopped;
	cvy_repair_message(t.e, &msg);
	cvy_engine_drop_aside(t.e);
	forget();
	return gives;
}

TEST(a_holder_gives_what_it_reads_in_the_view)
{
	ck_assert_int_eq(gives_when(0), 1);
}

TEST(a_holder_does_not_give_what_it_reads_of_a_later_view)
{
	ck_assert_int_eq(gives_when(1), 0);
}

/* ---- a message ---- */

static struct cvy_channel far_end; /* the same window, seen by its owner */

static void open_far_end(int inc_of_reader)
{
	struct cvy_channel_args args = {
		.mesh = &t.mesh, .own_rank = 1, .max_ranks = 2, .inc = (uint64_t)inc_of_reader
	};

	t.mesh.window->own = t.far;
	ck_assert_int_eq(cvy_channel_open(&far_end, &args), 0);
	t.mesh.window->own = t.own;
}

static void write_message(uint32_t value)
{
	struct cvy_pair_record r = { .kind = CVY_RECORD_WHOLE, .bytes = sizeof(value) };

	cvy_channel_write(&far_end, &r, sizeof(r));
	cvy_channel_write(&far_end, &value, sizeof(value));
	cvy_channel_flush(&far_end, 0);
}

static struct cvy_pair *open_pair(void)
{
	struct cvy_channel_args args = { .mesh = &t.mesh, .rank = 1, .max_ranks = 2, .own_inc = OWN_INC, .inc = INC };
	struct cvy_pair *p = calloc(1, sizeof(*p));

	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(cvy_channel_open(&p->ch, &args), 0);
	p->rank = 1;
	p->queued.last = &p->queued.first;
	p->parting.last = &p->parting.first;
	p->wanting.last = &p->wanting.first;
	p->posted.last = &p->posted.first;
	p->arrived_last = &p->arrived;
	return p;
}

/* The receive is posted when the message is here already: is it done? */
static int receive(struct cvy_pair *p)
{
	struct cvy_op *op = cvy_pair_op(t.e, 0, 0);
	int done;

	op->recv = &t.got;
	op->bytes = sizeof(t.got);
	op->root = 1;
	op->refs = 2;
	cvy_parcel_add(&p->posted, op->priv);
	ck_assert_int_ge(cvy_pair_step(t.e, p, 1), 0);
	done = op->state == CVY_OP_DECIDED;
	if (!done)
		cvy_op_put(op);
	cvy_op_put(op);
	for (int i = 0; i < 2; i++)
		free(t.e->spare[i]);
	free(p);
	return done;
}

static struct cvy_pair *with_a_message(void)
{
	struct cvy_pair *p = open_pair();

	far_end = (struct cvy_channel){ 0 };
	open_far_end(OWN_INC);
	far_end.self = 1; /* no link to tell it by: they share memory */
	write_message(VALUE);
	ck_assert_int_eq(cvy_pair_step(t.e, p, 1), 1); /* it stands in the ring */
	return p;
}

TEST(a_message_of_the_view_arrives)
{
	struct cvy_pair *p = with_a_message();

	ck_assert(receive(p));
	ck_assert_uint_eq(t.got, VALUE);
}

TEST(a_message_to_the_next_incarnation_does_not)
{
	struct cvy_pair *p = with_a_message();

	open_far_end(OWN_INC + 1);
	far_end.self = 1;
	write_message(LATER);
	ck_assert(!receive(p));
}

SUITE_MAIN(.name = "collectives/outrun", .setup = set_up, .teardown = tear_down)
