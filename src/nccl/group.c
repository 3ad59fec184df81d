/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of calls of one thread: nothing is launched until its end. Then all communicators that are being made join;
 * collectives are launched in the order of the calls; and the messages of each communicator in rounds, each one launch.
 */
#include "group.h"

#include <stdlib.h>
#include <string.h>

static __thread struct {
	int depth;
	ncclResult_t failed; /* the first call that was refused */
	struct cvy_nccl_call *calls;
	size_t count, room;
	/* Communicators that are being made. Each is in use until it leaves this list. */
	struct ncclComm *makings, **last_making;
	ncclResult_t unmade; /* the first that was refused */
} kept;

/* ---- checks ---- */

static int is_message(const struct cvy_nccl_call *c)
{
	return c->kind == CVY_NCCL_SEND || c->kind == CVY_NCCL_RECV;
}

static int has_root(enum cvy_nccl_kind kind)
{
	return kind != CVY_NCCL_ALLREDUCE && kind != CVY_NCCL_REDUCE_SCATTER && kind != CVY_NCCL_ALLGATHER &&
	       kind != CVY_NCCL_ALLTOALL;
}

static ncclResult_t check_op(struct cvy_nccl_call *c)
{
	int made = c->op - ncclNumOps;

	if (c->op < 0 || (made >= 0 && (made >= c->comm->redop_count || !c->comm->redops[made].used)))
		return cvy_nccl_fail(ncclInvalidArgument, "%s: %d is no reduction", c->name, c->op);
	if (made >= 0 && c->comm->redops[made].type != c->type)
		return cvy_nccl_fail(ncclInvalidArgument, "%s: the operator was created for type %d, not %d", c->name,
				     (int)c->comm->redops[made].type, (int)c->type);
	if (made >= 0)
		c->made = c->comm->redops[made];
	return ncclSuccess;
}

/* Under the lock. */
static ncclResult_t check(struct cvy_nccl_call *c)
{
	if (cvy_nccl_moved(c->type) < 0)
		return cvy_nccl_fail(ncclInvalidArgument, "%s: %d is no type", c->name, (int)c->type);
	if (has_root(c->kind) && (c->root < 0 || c->root >= c->comm->size))
		return cvy_nccl_fail(ncclInvalidArgument, "%s: %s %d: it must be 0 to %d", c->name,
				     is_message(c) ? "rank" : "root", c->root, c->comm->size - 1);
	if (c->kind <= CVY_NCCL_REDUCE_SCATTER)
		return check_op(c);
	return ncclSuccess;
}

/* ---- collectives ---- */

static ncclResult_t run_on_device(const struct cvy_nccl_call *c)
{
	int captured;
	ncclResult_t r = cvy_nccl_stream_before(c->comm, c->stream, &captured);

	if (!r)
		r = cvy_nccl_launch(c);
	return r ? r : cvy_nccl_stream_after(c->comm, c->stream, captured);
}

/* Under the lock. */
static ncclResult_t run_locked(const struct cvy_nccl_call *c, ncclResult_t (*what)(const struct cvy_nccl_call *))
{
	ncclResult_t r = cvy_nccl_usable(c->comm, c->name);
	int was;

	if (!r)
		r = cvy_nccl_device_enter(c->comm, &was);
	if (r)
		return r;
	r = what(c);
	cvy_nccl_device_leave(c->comm, was);
	return r;
}

/* A communicator may have been destroyed since the call. */
static ncclResult_t run(const struct cvy_nccl_call *c, ncclResult_t (*what)(const struct cvy_nccl_call *))
{
	ncclResult_t r = cvy_nccl_enter(c->comm, c->name);

	if (r)
		return r;
	r = run_locked(c, what);
	cvy_nccl_leave(c->comm);
	return r;
}

static ncclResult_t run_collectives(void)
{
	ncclResult_t first = ncclSuccess;

	for (size_t i = 0; i < kept.count; i++) {
		struct cvy_nccl_call *c = &kept.calls[i];
		ncclResult_t r;

		if (is_message(c))
			continue;
		r = run(c, run_on_device);
		first = first ? first : r;
	}
	return first;
}

/* ---- messages ---- */

/* The round of each message of @comm, in `op`. Returns the number of rounds. */
static int number_rounds(const struct ncclComm *comm)
{
	int nth[2][CVY_NCCL_RANKS] = { { 0 } }, rounds = 0;

	for (size_t i = 0; i < kept.count; i++) {
		struct cvy_nccl_call *c = &kept.calls[i];

		if (!is_message(c) || c->comm != comm)
			continue;
		c->op = cvy_nccl_round(nth[c->kind == CVY_NCCL_SEND][c->root]++, comm->size, comm->rank, c->root);
		rounds = c->op + 1 > rounds ? c->op + 1 : rounds;
	}
	return rounds;
}

/* All messages go on the stream of the first; the others wait for it, or it for them. */
static ncclResult_t meet(const struct cvy_nccl_call *first, int before)
{
	ncclResult_t r = ncclSuccess;

	for (const struct cvy_nccl_call *c = first; c < kept.calls + kept.count && !r; c++) {
		int seen = c->stream == first->stream || !is_message(c) || c->comm != first->comm;

		for (const struct cvy_nccl_call *d = first; d < c && !seen; d++)
			seen = is_message(d) && d->comm == c->comm && d->stream == c->stream;
		if (!seen)
			r = before ? cvy_nccl_stream_wait(first->stream, c->stream)
				   : cvy_nccl_stream_wait(c->stream, first->stream);
	}
	return r;
}

static ncclResult_t run_round(const struct cvy_nccl_call *first, int round)
{
	ncclResult_t r = cvy_nccl_covey(covey_group_start(), NULL, first->name);
	ncclResult_t ended;

	if (r)
		return r;
	for (const struct cvy_nccl_call *c = first; c < kept.calls + kept.count && !r; c++) {
		struct cvy_nccl_call on_one = *c;

		if (!is_message(c) || c->comm != first->comm || c->op != round)
			continue;
		on_one.stream = first->stream;
		r = cvy_nccl_launch(&on_one);
	}
	ended = cvy_nccl_covey(covey_group_end(), first->comm->group, first->name);
	return r ? r : ended;
}

static ncclResult_t run_messages_of(const struct cvy_nccl_call *first)
{
	int rounds = number_rounds(first->comm), captured;
	ncclResult_t r = cvy_nccl_stream_before(first->comm, first->stream, &captured);

	if (!r)
		r = meet(first, 1);
	for (int round = 0; round < rounds && !r; round++)
		r = run_round(first, round);
	if (!r)
		r = cvy_nccl_stream_after(first->comm, first->stream, captured);
	return r ? r : meet(first, 0);
}

static ncclResult_t run_messages(void)
{
	ncclResult_t first = ncclSuccess;

	for (size_t i = 0; i < kept.count; i++) {
		struct cvy_nccl_call *c = &kept.calls[i];
		int seen = !is_message(c);
		ncclResult_t r;

		for (size_t k = 0; k < i && !seen; k++)
			seen = is_message(&kept.calls[k]) && kept.calls[k].comm == c->comm;
		if (seen)
			continue;
		r = run(c, run_messages_of);
		first = first ? first : r;
	}
	return first;
}

/* ---- communicators ---- */

/* Ranks of one thread wait for each other: each takes a step in turn. */
static void step_makings(void)
{
	int left;

	do {
		left = 0;
		for (struct ncclComm *comm = kept.makings; comm; comm = comm->next_making)
			left += comm->blocking && cvy_nccl_try(comm) == ncclInProgress;
	} while (left);
}

/* @r: all of them end with it. */
static ncclResult_t finish_making(struct ncclComm *comm, ncclResult_t r)
{
	if (!r)
		r = comm->blocking ? cvy_nccl_try(comm) : ncclInProgress;
	if (r && r != ncclInProgress) {
		*comm->out = NULL;
		cvy_nccl_discard(comm);
	}
	cvy_nccl_unuse(comm);
	return r;
}

static ncclResult_t finish_makings(ncclResult_t refused)
{
	ncclResult_t first = ncclSuccess;

	if (!refused)
		step_makings();
	while (kept.makings) {
		struct ncclComm *comm = kept.makings;
		ncclResult_t r;

		kept.makings = comm->next_making;
		r = finish_making(comm, refused);
		if (!first || first == ncclInProgress)
			first = r ? r : first;
	}
	return first;
}

ncclResult_t cvy_nccl_making(ncclResult_t r, ncclComm_t *out)
{
	struct ncclComm *comm = r ? NULL : *out;

	if (r && kept.depth && !kept.unmade)
		kept.unmade = r;
	if (!comm)
		return r;
	cvy_nccl_use(comm);
	comm->out = out;
	comm->next_making = NULL;
	if (!kept.makings)
		kept.last_making = &kept.makings;
	*kept.last_making = comm;
	kept.last_making = &comm->next_making;
	return kept.depth ? ncclSuccess : finish_makings(ncclSuccess);
}

/* ---- calls ---- */

static ncclResult_t keep(const struct cvy_nccl_call *c)
{
	if (kept.count == kept.room) {
		size_t room = kept.room ? 2 * kept.room : 16;
		struct cvy_nccl_call *more = realloc(kept.calls, room * sizeof(*more));

		if (!more)
			return cvy_nccl_fail(ncclSystemError, "%s: no memory for a group of calls", c->name);
		kept.calls = more;
		kept.room = room;
	}
	kept.calls[kept.count++] = *c;
	return ncclSuccess;
}

static ncclResult_t call_or_keep(struct cvy_nccl_call *c)
{
	ncclResult_t r = cvy_nccl_enter(c->comm, c->name);

	if (r)
		return r;
	r = check(c);
	if (!r)
		r = kept.depth ? keep(c) : run_locked(c, run_on_device);
	cvy_nccl_leave(c->comm);
	return r;
}

ncclResult_t cvy_nccl_call(const struct cvy_nccl_call *call)
{
	struct cvy_nccl_call c = *call;
	ncclResult_t r = call_or_keep(&c);

	if (r && kept.depth && !kept.failed)
		kept.failed = r;
	return r;
}

ncclResult_t ncclGroupStart(void)
{
	kept.depth++;
	return ncclSuccess;
}

void cvy_nccl_group_drop(void)
{
	finish_makings(ncclInvalidUsage);
	kept.depth = 0;
	kept.failed = kept.unmade = ncclSuccess;
	free(kept.calls);
	kept.calls = NULL;
	kept.count = kept.room = 0;
}

/* A call that was refused does not keep the others from their peers; but nobody waits for a communicator that was. */
ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t refused = kept.failed, made, r;

	if (!kept.depth)
		return cvy_nccl_fail(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart()");
	if (--kept.depth)
		return ncclSuccess;
	made = finish_makings(kept.unmade);
	made = kept.unmade ? kept.unmade : made;
	r = run_collectives();
	r = r ? r : run_messages();
	cvy_nccl_group_drop();
	r = refused ? refused : r;
	return r ? r : made;
}
