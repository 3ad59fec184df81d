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

/* Under the lock: rank and size are known. It may have ended since. */
static ncclResult_t is_made(const struct ncclComm *parent, const char *call)
{
	if (parent->state != ncclInProgress)
		return ncclSuccess;
	return cvy_nccl_fail(ncclInvalidArgument,
			     "%s: the communicator is not ready: ncclCommGetAsyncError() says when "
			     "it is",
			     call);
}

static struct cvy_nccl_id child_of(struct ncclComm *comm, enum cvy_nccl_step step, uint64_t number)
{
	struct cvy_nccl_id id = comm->id;

	id.path = cvy_nccl_mix(id.path, step, number, tally(comm, step, number));
	return id;
}

/* Under the lock of the parent. */
static ncclResult_t split(struct ncclComm *parent, int color, int key, ncclComm_t *out, int blocking)
{
	ncclResult_t r = cvy_nccl_usable(parent, "ncclCommSplit");
	struct cvy_nccl_id id;

	if (r)
		return r;
	cvy_nccl_reap(parent);
	id = parent->id;
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_SPLIT, (uint64_t)(uint32_t)color, tally(parent, CVY_NCCL_SPLIT, 0));
	if (color < 0)
		return cvy_nccl_ask(parent, NULL, color, key);
	r = cvy_nccl_make(parent->size, parent->rank, &id, blocking, out);
	if (!r)
		r = cvy_nccl_ask(parent, *out, color, key);
	if (r && *out) {
		cvy_nccl_free(*out);
		*out = NULL;
	}
	return r;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
	ncclResult_t r = cvy_nccl_check(parent, "ncclCommSplit");
	int blocking = r ? 0 : cvy_nccl_blocking(config, parent->blocking);

	if (!r && !out)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommSplit: the new communicator's place is NULL");
	if (!r && color < 0 && color != CVY_NCCL_NOCOLOR)
		r = cvy_nccl_fail(ncclInvalidArgument,
				  "ncclCommSplit: the color is %d: it must be 0 or more, or "
				  "NCCL_SPLIT_NOCOLOR",
				  color);
	if (r || blocking < 0)
		return r ? r : ncclInvalidArgument;
	*out = NULL;
	pthread_mutex_lock(&parent->lock);
	r = split(parent, color, key, out, blocking);
	pthread_mutex_unlock(&parent->lock);
	return r || !*out ? r : cvy_nccl_making(out);
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int *excluded, int n, ncclComm_t *out, ncclConfig_t *config, int flags)
{
	ncclResult_t r = cvy_nccl_check(parent, "ncclCommShrink");
	int blocking = r ? 0 : cvy_nccl_blocking(config, parent->blocking), size, rank = 0;
	struct cvy_nccl_id id;
	uint64_t key;

	if (!r && !out)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommShrink: the new communicator's place is NULL");
	if (r || blocking < 0)
		return r ? r : ncclInvalidArgument;
	*out = NULL;
	size = cvy_nccl_shrink(excluded, n, parent->size, parent->rank, &rank, &key);
	if (size < 0)
		return cvy_nccl_fail(ncclInvalidArgument,
				     "ncclCommShrink: the excluded ranks are %d others of 0 to %d, "
				     "each once, and not this one",
				     n, parent->size - 1);
	pthread_mutex_lock(&parent->lock);
	r = is_made(parent, "ncclCommShrink");
	if (!r && flags & CVY_NCCL_SHRINK_ABORT)
		cvy_nccl_end(parent);
	if (!r)
		id = child_of(parent, CVY_NCCL_SHRINK, key);
	pthread_mutex_unlock(&parent->lock);
	if (!r)
		r = cvy_nccl_make(size, rank, &id, blocking, out);
	return r ? r : cvy_nccl_begin(out);
}

/* Members need no id to grow; those that come in get this one. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *out)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommGetUniqueId");
	struct cvy_nccl_id id;

	if (!r && !out)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommGetUniqueId: the id is NULL");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	if (comm->grow_pending)
		r = cvy_nccl_fail(ncclInvalidUsage, "ncclCommGetUniqueId: the last id has not been used: call "
						    "ncclCommGrow() first");
	comm->grow_pending = 1;
	id = comm->id;
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_GROW, 0, comm->grown);
	pthread_mutex_unlock(&comm->lock);
	if (!r)
		memcpy(out, &id, sizeof(id));
	return r;
}

/* A rank that is already there. */
static ncclResult_t grow(struct ncclComm *parent, int size, ncclComm_t *out, int blocking)
{
	struct cvy_nccl_id id;
	ncclResult_t r;

	if (size <= parent->size)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: %d ranks: there are %d already", size,
				     parent->size);
	pthread_mutex_lock(&parent->lock);
	r = is_made(parent, "ncclCommGrow");
	id = parent->id;
	if (!r) {
		id.path = cvy_nccl_mix(id.path, CVY_NCCL_GROW, 0, parent->grown++);
		parent->grow_pending = 0;
	}
	pthread_mutex_unlock(&parent->lock);
	if (!r)
		r = cvy_nccl_make(size, parent->rank, &id, blocking, out);
	return r ? r : cvy_nccl_begin(out);
}

ncclResult_t ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId *bytes, int rank, ncclComm_t *out,
			  ncclConfig_t *config)
{
	int blocking =
		cvy_nccl_blocking(config, parent && !cvy_nccl_check(parent, "ncclCommGrow") ? parent->blocking : 1);
	struct cvy_nccl_id id;
	ncclResult_t r;

	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: the new communicator's place is NULL");
	*out = NULL;
	if (blocking < 0)
		return ncclInvalidArgument;
	if (parent) {
		r = cvy_nccl_check(parent, "ncclCommGrow");
		return r ? r : grow(parent, size, out, blocking);
	}
	if (!bytes)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommGrow: a new rank needs the id of "
							  "ncclCommGetUniqueId()");
	r = cvy_nccl_id_read(bytes, &id);
	if (!r)
		r = cvy_nccl_make(size, rank, &id, blocking, out);
	return r ? r : cvy_nccl_begin(out);
}
