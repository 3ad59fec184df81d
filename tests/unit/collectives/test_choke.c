/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link whose queue is full when an operation puts: what did not fit is never missing behind a line that says it is
 * there, because no line leaves any more and the path is given up.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "engine_state.h"
#include "mesh.h"

static struct {
	struct cvy_mesh mesh;
	struct cvy_peer peer;
	struct cvy_link link;
	struct cvy_engine *e;
	struct cvy_line line;
	int room, puts, lines; /* that still fit; that were taken */
} t;

static int take(int *count)
{
	if (!t.room)
		return COVEY_ERR_AGAIN;
	t.room--;
	++*count;
	return 0;
}

static int put(struct cvy_link *link, size_t offset, size_t bytes)
{
	(void)link, (void)offset, (void)bytes;
	return take(&t.puts);
}

static int signal_(struct cvy_link *link, size_t offset)
{
	(void)link, (void)offset;
	return take(&t.lines);
}

static const struct cvy_transport small = { .name = "small", .put = put, .signal = signal_ };

static void set_up(void)
{
	memset(&t, 0, sizeof(t));
	ck_assert_int_eq(cvy_loop_new(&t.mesh.loop), 0);
	t.e = calloc(1, sizeof(*t.e));
	ck_assert_ptr_nonnull(t.e);
	t.link = (struct cvy_link){ .ops = &small, .mesh = &t.mesh, .rank = 1, .id = 1 };
	t.peer.link = &t.link;
	t.mesh.peer[1] = &t.peer;
	t.e->mesh = &t.mesh;
	t.e->here.own_base = (uint8_t *)&t.line;
}

static void tear_down(void)
{
	cvy_loop_free(t.mesh.loop);
	free(t.e);
}

TEST(no_line_leaves_after_a_put_that_did_not_fit)
{
	t.room = 1;
	cvy_put(t.e, 1, &t.line, 64);
	cvy_put(t.e, 1, &t.line, 64);
	t.room = 9;
	cvy_signal(t.e, 1, &t.line);
	cvy_put(t.e, 1, &t.line, 64);
	ck_assert_int_eq(t.puts, 1);
	ck_assert_int_eq(t.lines, 0);
	ck_assert_ptr_nonnull(strstr(t.peer.lost, "more waits for it than its queue holds"));
}

TEST(a_line_that_did_not_fit_ends_the_path)
{
	cvy_signal(t.e, 1, &t.line);
	t.room = 9;
	cvy_signal(t.e, 1, &t.line);
	ck_assert_int_eq(t.lines, 0);
	ck_assert_ptr_nonnull(strstr(t.peer.lost, "more waits for it than its queue holds"));
}

SUITE_MAIN(.name = "collectives/choke", .setup = set_up, .teardown = tear_down)
