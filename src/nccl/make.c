/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How communicators are made: from an id, or from another communicator by a split, a shrink or a growth. All of them join
 * a group under a name that every member can compute. A split has to ask first who belongs together. Nothing here waits
 * by itself: cvy_nccl_step() goes as far as it can, and ncclCommGetAsyncError() or cvy_nccl_finish() calls it again.
 */
#include "group.h"
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SLICE_NS 20000000 /* of a wait */
#define JOIN_MS 600000	  /* programs of NCCL come when they need it first, minutes apart */

/* Guards the questions of splits, whose two ends are communicators with locks of their own. */
static pthread_mutex_t asking_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- an empty communicator ---- */

/* blocking: 0 or 1; -1: told. */
static int blocking_of(const ncclConfig_t *config, int fallback)
{
	if (!config)
		return fallback;
	if (config->magic != CVY_NCCL_MAGIC || config->size < offsetof(ncclConfig_t, cgaClusterSize)) {
		cvy_nccl_tell("the configuration was not initialised by NCCL_CONFIG_INITIALIZER");
		return -1;
	}
	if (config->blocking == CVY_NCCL_UNDEF_INT)
		return fallback;
	if (config->blocking != 0 && config->blocking != 1) {
		cvy_nccl_tell("config.blocking is %d: it must be 0 or 1", config->blocking);
		return -1;
	}
	return config->blocking;
}

static ncclResult_t make(int size, int rank, const struct cvy_nccl_id *id, int blocking, ncclComm_t *out)
{
	struct ncclComm *comm;
	ncclResult_t r;
	int device;

	*out = NULL;
	if (size < 1 || rank < 0 || rank >= size)
		return cvy_nccl_fail(ncclInvalidArgument, "rank %d of %d ranks: it must be 0 to %d", rank, size,
				     size - 1);
	if (size > CVY_NCCL_RANKS)
		return cvy_nccl_fail(ncclInvalidUsage, "%d ranks: a communicator has at most %d", size, CVY_NCCL_RANKS);
	r = cvy_nccl_cuda(cudaGetDevice(&device), "cudaGetDevice");
	if (r)
		return r;
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return cvy_nccl_fail(ncclSystemError, "no memory for a communicator");
	pthread_mutex_init(&comm->lock, NULL);
	pthread_mutex_init(&comm->group_lock, NULL);
	comm->mark = CVY_NCCL_COMM;
	comm->id = *id;
	comm->size = size;
	comm->rank = rank;
	comm->device = device;
	comm->blocking = blocking;
	comm->state = ncclInProgress;
	comm->stage = CVY_NCCL_JOINING;
	cvy_nccl_enlist(comm);
	*out = comm;
	return ncclSuccess;
}

/* ---- joining ---- */

static ncclResult_t join_start(struct ncclComm *comm)
{
	char url[4096], name[CVY_NCCL_NAME_CHARS], device[16];
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_group *group = NULL;
	ncclResult_t r;

	config.store = cvy_nccl_store_use(&comm->id, url, sizeof(url));
	if (!config.store)
		return ncclInvalidUsage;
	cvy_nccl_name(&comm->id, name);
	snprintf(device, sizeof(device), "%d", comm->device);
	config.group = config.job = name;
	config.rank = comm->rank;
	config.world = config.max_ranks = comm->size;
	config.device = device;
	if (!getenv("COVEY_JOIN_MS"))
		config.join_ms = JOIN_MS;
	r = cvy_nccl_covey(covey_join_start(&config, &group), NULL, "joining the communicator");
	pthread_mutex_lock(&comm->group_lock);
	comm->group = group;
	pthread_mutex_unlock(&comm->group_lock);
	return r;
}

static ncclResult_t step_join(struct ncclComm *comm, uint64_t deadline_ns)
{
	struct covey_error_info info = { .err = 0 };
	int err = covey_join_wait(comm->group, deadline_ns);
	ncclResult_t r;

	covey_last_error(comm->group, &info);
	if (err == COVEY_ERR_TIMEOUT && info.err != COVEY_ERR_TIMEOUT)
		return ncclInProgress; /* the deadline of this call, not that of the join */
	if (!err)
		err = covey_set_on_loss(comm->group, COVEY_ON_LOSS_FAIL);
	r = cvy_nccl_covey(err, comm->group, "joining the communicator");
	if (!r)
		comm->stage = CVY_NCCL_READY;
	return r;
}

/* ---- the question of a split ---- */

static void unlink_asking(struct cvy_nccl_asking *asking)
{
	struct cvy_nccl_asking **at = &asking->parent->askings;

	while (*at != asking)
		at = &(*at)->next;
	*at = asking->next;
	covey_work_free(asking->work);
	asking->parent = NULL;
}

/* Under the lock of @parent. */
static ncclResult_t ask(struct ncclComm *parent, struct ncclComm *child, int color, int key)
{
	struct cvy_nccl_asking *asking = calloc(1, sizeof(*asking));
	int err;

	if (!asking)
		return cvy_nccl_fail(ncclSystemError, "no memory for a split");
	asking->own[0] = color;
	asking->own[1] = key;
	err = covey_allgather_start(asking->own, asking->all, 2, COVEY_INT32, parent->group, NULL, &asking->work);
	if (err) {
		free(asking);
		return cvy_nccl_covey(err, parent->group, "ncclCommSplit");
	}
	pthread_mutex_lock(&asking_lock);
	asking->parent = parent;
	asking->child = child;
	asking->next = parent->askings;
	parent->askings = asking;
	pthread_mutex_unlock(&asking_lock);
	if (child) {
		child->asking = asking;
		child->stage = CVY_NCCL_ASKING;
	}
	return ncclSuccess;
}

/* Under the lock of @parent: frees questions that are answered and that nobody reads. */
static void reap(struct ncclComm *parent)
{
	pthread_mutex_lock(&asking_lock);
	for (struct cvy_nccl_asking *asking = parent->askings, *next; asking; asking = next) {
		next = asking->next;
		if (asking->child || covey_work_test(asking->work, NULL) == COVEY_ERR_AGAIN)
			continue;
		unlink_asking(asking);
		free(asking);
	}
	pthread_mutex_unlock(&asking_lock);
}

void cvy_nccl_ask_no_more(struct ncclComm *child)
{
	struct cvy_nccl_asking *asking = child->asking;

	if (!asking)
		return;
	pthread_mutex_lock(&asking_lock);
	asking->child = NULL;
	if (!asking->parent)
		free(asking);
	child->asking = NULL;
	pthread_mutex_unlock(&asking_lock);
}

void cvy_nccl_close(struct ncclComm *parent)
{
	struct covey_group *group = parent->group;

	pthread_mutex_lock(&asking_lock); /* until no operation writes into a buffer of a question */
	for (struct cvy_nccl_asking *asking = parent->askings; asking; asking = asking->next)
		covey_work_free(asking->work);
	pthread_mutex_lock(&parent->group_lock);
	parent->group = NULL;
	pthread_mutex_unlock(&parent->group_lock);
	covey_close(group);
	while (parent->askings) {
		struct cvy_nccl_asking *asking = parent->askings;

		parent->askings = asking->next;
		asking->parent = NULL;
		if (!asking->child)
			free(asking);
	}
	pthread_mutex_unlock(&asking_lock);
}

/* The answer: ncclInProgress, or what became of the question. */
static ncclResult_t answer(struct ncclComm *comm)
{
	struct cvy_nccl_asking *asking = comm->asking;
	struct covey_result result;
	int err;

	if (!asking->parent)
		return cvy_nccl_fail(ncclInvalidUsage, "ncclCommSplit: the parent ended before all of its ranks had "
						       "called it");
	err = covey_work_test(asking->work, &result);
	if (err == COVEY_ERR_AGAIN)
		return ncclInProgress;
	if (!err)
		err = result.status;
	unlink_asking(asking);
	if (err)
		return cvy_nccl_fail(cvy_nccl_result(err), "ncclCommSplit: %s", covey_strerror(err));
	comm->size = cvy_nccl_split((const int32_t(*)[2])asking->all, comm->size, comm->rank, &comm->rank);
	return ncclSuccess;
}

static ncclResult_t step_ask(struct ncclComm *comm)
{
	ncclResult_t r;

	pthread_mutex_lock(&asking_lock);
	r = answer(comm);
	pthread_mutex_unlock(&asking_lock);
	if (r)
		return r;
	cvy_nccl_ask_no_more(comm);
	comm->stage = CVY_NCCL_JOINING;
	r = join_start(comm);
	return r ? r : ncclInProgress;
}

/* ---- steps ---- */

/* Under the lock. */
ncclResult_t cvy_nccl_step(struct ncclComm *comm, uint64_t deadline_ns)
{
	ncclResult_t r = comm->state;

	if (r == ncclInProgress && comm->stage == CVY_NCCL_ASKING)
		r = step_ask(comm);
	else if (r == ncclInProgress && comm->stage == CVY_NCCL_JOINING)
		r = step_join(comm, deadline_ns);
	comm->state = r;
	return r;
}

static void wait_a_moment(const struct ncclComm *comm)
{
	if (comm->stage == CVY_NCCL_ASKING)
		nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}

ncclResult_t cvy_nccl_finish(ncclComm_t *out)
{
	struct ncclComm *comm = *out;
	ncclResult_t r;

	pthread_mutex_lock(&comm->lock);
	while ((r = cvy_nccl_step(comm, cvy_nccl_now_ns() + SLICE_NS)) == ncclInProgress)
		wait_a_moment(comm);
	if (r)
		cvy_nccl_end(comm);
	pthread_mutex_unlock(&comm->lock);
	if (r) {
		cvy_nccl_free(comm);
		*out = NULL;
	}
	return r;
}

/* Begins to join; then the caller, or the end of its group of calls, waits. */
static ncclResult_t begin(ncclComm_t *out)
{
	ncclResult_t r = join_start(*out);

	if (r) {
		cvy_nccl_end(*out);
		cvy_nccl_free(*out);
		*out = NULL;
		return r;
	}
	return cvy_nccl_making(out);
}

/* ---- from an id ---- */

static ncclResult_t id_of(const ncclUniqueId *bytes, struct cvy_nccl_id *id)
{
	memcpy(id, bytes, sizeof(*id));
	if (memcmp(id->mark, CVY_NCCL_MARK, sizeof(id->mark)) || memchr(id->store, 0, sizeof(id->store)) == NULL)
		return cvy_nccl_fail(ncclInvalidArgument,
				     "the unique id is not of this library: does rank 0 load another NCCL?");
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
	struct cvy_nccl_id id = { .mark = CVY_NCCL_MARK };
	ncclResult_t r;

	_Static_assert(sizeof(id) == sizeof(*out), "an id fits");
	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclGetUniqueId: the id is NULL");
	if (getrandom(&id.root, sizeof(id.root), 0) != (ssize_t)sizeof(id.root))
		return cvy_nccl_fail(ncclSystemError, "getrandom: %s", strerror(errno));
	r = cvy_nccl_store_find(&id);
	if (!r)
		memcpy(out, &id, sizeof(id));
	return r;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId bytes, int rank, ncclConfig_t *config)
{
	struct cvy_nccl_id id;
	ncclResult_t r;
	int blocking;

	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitRank: the communicator's place is NULL");
	*out = NULL;
	blocking = blocking_of(config, 1);
	if (blocking < 0)
		return ncclInvalidArgument;
	r = id_of(&bytes, &id);
	if (!r)
		r = make(size, rank, &id, blocking, out);
	return r ? r : begin(out);
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
	return ncclCommInitRankConfig(out, size, id, rank, NULL);
}

/* One id is enough: all ranks have the same list. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int size, int rank, int n_ids, ncclUniqueId *ids,
				      ncclConfig_t *config)
{
	if (n_ids < 1 || !ids)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitRankScalable: %d ids", n_ids);
	return ncclCommInitRankConfig(out, size, ids[0], rank, config);
}

static ncclResult_t devices_differ(int n, const int *list)
{
	for (int i = 0; i < n && list; i++)
		for (int k = 0; k < i; k++)
			if (list[i] == list[k])
				return cvy_nccl_fail(ncclInvalidUsage,
						     "ncclCommInitAll: device %d stands twice in the "
						     "list",
						     list[i]);
	return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *list)
{
	ncclResult_t r = comms && n > 0 ? devices_differ(n, list)
					: cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitAll: %d devices", n);
	ncclUniqueId id;
	int was = 0, ended;

	if (!r)
		r = ncclGetUniqueId(&id);
	if (r)
		return r;
	cudaGetDevice(&was);
	ncclGroupStart();
	for (int i = 0; i < n; i++) {
		comms[i] = NULL;
		if (!r)
			r = cvy_nccl_cuda(cudaSetDevice(list ? list[i] : i), "cudaSetDevice");
		if (!r)
			r = ncclCommInitRank(&comms[i], n, id, i);
	}
	ended = ncclGroupEnd();
	cudaSetDevice(was);
	return r ? r : (ncclResult_t)ended;
}

/* ---- from another communicator ---- */

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
	reap(parent);
	id = parent->id;
	id.path = cvy_nccl_mix(id.path, CVY_NCCL_SPLIT, (uint64_t)(uint32_t)color, tally(parent, CVY_NCCL_SPLIT, 0));
	if (color < 0)
		return ask(parent, NULL, color, key);
	r = make(parent->size, parent->rank, &id, blocking, out);
	if (!r)
		r = ask(parent, *out, color, key);
	if (r && *out) {
		cvy_nccl_free(*out);
		*out = NULL;
	}
	return r;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
	ncclResult_t r = cvy_nccl_check(parent, "ncclCommSplit");
	int blocking = r ? 0 : blocking_of(config, parent->blocking);

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
	int blocking = r ? 0 : blocking_of(config, parent->blocking), size, rank = 0;
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
		r = make(size, rank, &id, blocking, out);
	return r ? r : begin(out);
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
		r = make(size, parent->rank, &id, blocking, out);
	return r ? r : begin(out);
}

ncclResult_t ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId *bytes, int rank, ncclComm_t *out,
			  ncclConfig_t *config)
{
	int blocking = blocking_of(config, parent && !cvy_nccl_check(parent, "ncclCommGrow") ? parent->blocking : 1);
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
	r = id_of(bytes, &id);
	if (!r)
		r = make(size, rank, &id, blocking, out);
	return r ? r : begin(out);
}
