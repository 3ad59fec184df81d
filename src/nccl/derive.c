/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators from other ones: splits, shrinks, growth. Each step of the same kind leads to another name, which all ranks
 * that take it compute from the name of the parent and from how often they took it.
 */
#include "make.h"

#include <stdlib.h>
#include <string.h>

/* How often this step was taken before. */
static unsigned tally(struct ncclComm *comm, enum cvy_nccl_step step, uint64_t number)
{
	uint64_t key = cvy_nccl_mix(0, step, number, 0);
	struct cvy_nccl_tally *at = comm->tallies;

	while (at && at->key != key)
		at = at->next;
	if (!at) {
		at = calloc(1, sizeof(*at));
		if (!at)
			return 0;
		at->key = key;
		at->next = comm->tallies;
		comm->tallies = at;
	}
	return at->count++;
}

static struct cvy_nccl_id child_of(struct ncclComm *comm, enum cvy_nccl_step step, uint64_t number)
{
	struct cvy_nccl_id id = comm->id;

	id.path = cvy_nccl_mix(id.path, step, number, tally(comm, step, number));
	return id;
}

/* A new communicator is on the device of its parent. */
static ncclResult_t make_child(const struct ncclComm *parent, int size, int rank, const struct cvy_nccl_id *id,
			       int blocking, ncclComm_t *out)
{
	ncclResult_t r = cvy_nccl_make(size, rank, id, blocking, out);

	if (!r)
		(*out)->device = parent->device;
	return r;
}

/* What @config says, else the parent's; *out is cleared. */
static ncclResult_t child_config(const struct ncclComm *parent, const ncclConfig_t *config, ncclComm_t *out,
				 const char *call, int *blocking)
{
	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "%s: the new communicator's place is NULL", call);
	*blocking = cvy_nccl_blocking(config, parent->blocking);
	if (*blocking < 0)
		return ncclInvalidArgument;
	*out = NULL;
	return ncclSuccess;
}

/* ---- splits ---- */

/* Under the lock of the parent. */
static ncclResult_t ask(struct ncclComm *parent, int color, int key, ncclComm_t *out, int blocking)
{
	struct cvy_nccl_id id = parent->id;
	ncclResult_t r;

	cvy_nccl_reap(parent);
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_SPLIT, (uint64_t)(uint32_t)color, tally(parent, CVY_NCCL_SPLIT, 0));
	if (color < 0)
		return cvy_nccl_ask(parent, NULL, color, key);
	r = make_child(parent, parent->size, parent->rank, &id, blocking, out);
	if (!r)
		r = cvy_nccl_ask(parent, *out, color, key);
	if (r && *out) {
		cvy_nccl_discard(*out);
		*out = NULL;
	}
	return r;
}

/* Under the lock of the parent. */
static ncclResult_t split(struct ncclComm *parent, int color, int key, ncclComm_t *out, const ncclConfig_t *config)
{
	int blocking;
	ncclResult_t r = child_config(parent, config, out, "ncclCommSplit", &blocking);

	if (!r && color < 0 && color != CVY_NCCL_NOCOLOR)
		r = cvy_nccl_fail(ncclInvalidArgument,
				  "ncclCommSplit: the color is %d: it must be 0 or more, or "
				  "NCCL_SPLIT_NOCOLOR",
				  color);
	if (!r)
		r = cvy_nccl_usable(parent, "ncclCommSplit");
	return r ? r : ask(parent, color, key, out, blocking);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
	ncclResult_t r = cvy_nccl_enter(parent, "ncclCommSplit");

	if (!r) {
		r = split(parent, color, key, out, config);
		cvy_nccl_leave(parent);
	}
	return cvy_nccl_making(r, out);
}

/* ---- shrinks ---- */

/* Under the lock of the parent. */
static ncclResult_t shrink(struct ncclComm *parent, const int *excluded, int n, ncclComm_t *out,
			   const ncclConfig_t *config, int flags)
{
	int blocking, size, rank = 0;
	ncclResult_t r = child_config(parent, config, out, "ncclCommShrink", &blocking);
	struct cvy_nccl_id id;
	uint64_t key;

	if (!r)
		r = cvy_nccl_is_made(parent, "ncclCommShrink");
	if (r)
		return r;
	size = cvy_nccl_shrink(excluded, n, parent->size, parent->rank, &rank, &key);
	if (size < 0)
		return cvy_nccl_fail(ncclInvalidArgument,
				     "ncclCommShrink: the excluded ranks are %d others of 0 to %d, "
				     "each once, and not this one",
				     n, parent->size - 1);
	if (flags & CVY_NCCL_SHRINK_ABORT)
		cvy_nccl_end(parent);
	id = child_of(parent, CVY_NCCL_SHRINK, key);
	return make_child(parent, size, rank, &id, blocking, out);
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int *excluded, int n, ncclComm_t *out, ncclConfig_t *config, int flags)
{
	ncclResult_t r = cvy_nccl_enter(parent, "ncclCommShrink");

	if (!r) {
		r = shrink(parent, excluded, n, out, config, flags);
		cvy_nccl_leave(parent);
	}
	if (!r)
		r = cvy_nccl_begin(out);
	return cvy_nccl_making(r, out);
}

/* ---- growth ---- */

/* Members need no id to grow; those that come in get this one. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *out)
{
	ncclResult_t r = out ? cvy_nccl_enter(comm, "ncclCommGetUniqueId")
			     : cvy_nccl_fail(ncclInvalidArgument, "ncclCommGetUniqueId: the id is NULL");
	struct cvy_nccl_id id;

	if (r)
		return r;
	if (comm->grow_pending)
		r = cvy_nccl_fail(ncclInvalidUsage, "ncclCommGetUniqueId: the last id has not been used: call "
						    "ncclCommGrow() first");
	comm->grow_pending = 1;
	id = comm->id;
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_GROW, 0, comm->grown);
	cvy_nccl_leave(comm);
	if (!r)
		memcpy(out, &id, sizeof(id));
	return r;
}

/* Under the lock of @parent: a rank that is already there. */
static ncclResult_t grow(struct ncclComm *parent, int size, ncclComm_t *out, const ncclConfig_t *config)
{
	struct cvy_nccl_id id = parent->id;
	int blocking;
	ncclResult_t r = child_config(parent, config, out, "ncclCommGrow", &blocking);

	if (!r)
		r = cvy_nccl_is_made(parent, "ncclCommGrow");
	if (!r && size <= parent->size)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: %d ranks: there are %d already", size,
				  parent->size);
	if (r)
		return r;
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_GROW, 0, parent->grown++);
	parent->grow_pending = 0;
	return make_child(parent, size, parent->rank, &id, blocking, out);
}

static ncclResult_t grow_member(struct ncclComm *parent, int size, ncclComm_t *out, const ncclConfig_t *config)
{
	ncclResult_t r = cvy_nccl_enter(parent, "ncclCommGrow");

	if (r)
		return r;
	r = grow(parent, size, out, config);
	cvy_nccl_leave(parent);
	return r;
}

static ncclResult_t come_in(const ncclUniqueId *bytes, int size, int rank, ncclComm_t *out, const ncclConfig_t *config)
{
	int blocking = cvy_nccl_blocking(config, 1);
	struct cvy_nccl_id id;
	ncclResult_t r;

	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: the new communicator's place is NULL");
	*out = NULL;
	if (blocking < 0)
		return ncclInvalidArgument;
	if (!bytes)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: a new rank needs the id of "
							  "ncclCommGetUniqueId()");
	r = cvy_nccl_id_read(bytes, &id);
	return r ? r : cvy_nccl_make(size, rank, &id, blocking, out);
}

ncclResult_t ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId *bytes, int rank, ncclComm_t *out,
			  ncclConfig_t *config)
{
	ncclResult_t r = parent ? grow_member(parent, size, out, config) : come_in(bytes, size, rank, out, config);

	if (!r)
		r = cvy_nccl_begin(out);
	return cvy_nccl_making(r, out);
}
