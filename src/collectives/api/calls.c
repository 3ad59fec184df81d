/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped calls: between start and end the blocking forms of this thread post and return; end waits for all of them, in
 * all groups. Posted operations continue while an earlier one is waited for, so the order of the calls does not matter
 * to the peers.
 */
#include "calls.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "device_message.h"

#define FEW 8 /* calls of a group that need no memory */

struct call {
	struct cvy_engine *engine;
	struct cvy_op *op;
	struct covey_result *result;
};

/* No tls_model: variables of the initial-exec model would make the library too large to be loaded late. */
static __thread struct {
	int depth, err, engines; /* engines: number of different ones */
	struct call *call, few[FEW];
	size_t n, room;
} open_calls;

/* Threads that have a group open. Every operation reads it: while it is 0, no variable of the thread is looked up. */
static int threads_open;

int cvy_calls_open(void)
{
	return __atomic_load_n(&threads_open, __ATOMIC_RELAXED) && open_calls.depth > 0;
}

int cvy_calls_failed(int err)
{
	if (cvy_calls_open() && !open_calls.err)
		open_calls.err = err;
	return err;
}

static int have_room(void)
{
	size_t room = open_calls.room ? 2 * open_calls.room : FEW;
	struct call *more = open_calls.few;

	if (open_calls.n < open_calls.room)
		return 1;
	if (open_calls.room) {
		more = realloc(open_calls.room > FEW ? open_calls.call : NULL, room * sizeof(*more));
		if (!more)
			return 0;
		if (open_calls.room == FEW)
			memcpy(more, open_calls.few, sizeof(open_calls.few));
	}
	open_calls.call = more;
	open_calls.room = room;
	return 1;
}

int cvy_calls_add(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result,
		  int (*post)(struct cvy_engine *e, struct cvy_op *op))
{
	int err = have_room() ? post(e, op)
			      : cvy_fail(cvy_site(e)->box, COVEY_ERR_NOMEM, -1, 0, "no memory for grouped calls");

	if (err) {
		cvy_op_put(op);
		return cvy_calls_failed(err);
	}
	open_calls.engines |= open_calls.n && open_calls.call[0].engine != e;
	open_calls.call[open_calls.n++] = (struct call){ e, op, result };
	return 0;
}

int cvy_calls_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result)
{
	return cvy_calls_open() ? cvy_calls_add(e, op, result, cvy_engine_post_quietly) : cvy_engine_run(e, op, result);
}

int covey_group_start(void)
{
	if (open_calls.depth == CVY_NESTED_MAX)
		return cvy_fail(NULL, COVEY_ERR_INVAL, -1, 0, "covey_group_start: %d are open already", CVY_NESTED_MAX);
	if (!open_calls.depth++)
		__atomic_add_fetch(&threads_open, 1, __ATOMIC_RELAXED);
	return 0;
}

void cvy_calls_forget(void)
{
	if (open_calls.depth)
		__atomic_sub_fetch(&threads_open, 1, __ATOMIC_RELAXED);
	memset(&open_calls, 0, sizeof(open_calls));
	cvy_device_messages_forget();
}

static int end_call(struct call *c)
{
	int status;

	cvy_engine_wait(c->engine, c->op, CVY_NEVER); /* as the blocking form: ends with the handle */
	if (c->result)
		*c->result = c->op->result;
	status = c->op->result.status;
	cvy_op_put(c->op);
	return status;
}

void cvy_calls_close(struct cvy_engine *e, const struct cvy_device *d)
{
	size_t n = 0;

	if (!cvy_calls_open())
		return;
	for (size_t i = 0; i < open_calls.n; i++)
		if (open_calls.call[i].engine == e)
			cvy_calls_failed(end_call(&open_calls.call[i]));
		else
			open_calls.call[n++] = open_calls.call[i];
	open_calls.n = n;
	if (d && cvy_device_messages_drop(d))
		cvy_calls_failed(COVEY_ERR_CLOSED);
}

int covey_group_end(void)
{
	int err;

	if (!open_calls.depth)
		return cvy_fail(NULL, COVEY_ERR_INVAL, -1, 0, "covey_group_end without covey_group_start");
	if (--open_calls.depth)
		return 0;
	__atomic_sub_fetch(&threads_open, 1, __ATOMIC_RELAXED);
	err = cvy_device_messages_end(); /* launches them; nobody waits for them here */
	if (open_calls.err)
		err = open_calls.err;
	if (open_calls.engines) /* a wait for one engine does not step the others */
		cvy_progress_kick();
	for (size_t i = 0; i < open_calls.n; i++) {
		int status = end_call(&open_calls.call[i]);

		if (!err)
			err = status;
	}
	if (open_calls.room > FEW)
		free(open_calls.call);
	open_calls.call = NULL;
	open_calls.n = open_calls.room = 0;
	open_calls.err = open_calls.engines = 0;
	return err;
}
