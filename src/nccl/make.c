/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How communicators are made: all of them join a group under a name that every member can compute. A split asks first who
 * belongs together (ask.c). Nothing here waits by itself: cvy_nccl_step() goes as far as it can, and
 * ncclCommGetAsyncError() or cvy_nccl_try() calls it again.
 */
#include "make.h"
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SLICE_NS 1000000 /* of a wait: others of this thread may have to take a step */
#define JOIN_MS 600000	 /* programs of NCCL come when they need it first, minutes apart */

/* ---- an empty communicator ---- */

int cvy_nccl_blocking(const ncclConfig_t *config, int fallback)
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

ncclResult_t cvy_nccl_make(int size, int rank, const struct cvy_nccl_id *id, int blocking, ncclComm_t *out)
{
	struct ncclComm *comm;
	ncclResult_t r;
	int device;

	*out = NULL;
	if (size < 1 || rank < 0 || rank >= size)
		return cvy_nccl_fail(ncclInvalidArgument, "rank %d of %d ranks: it must be 0 to %d", rank, size,
				     size - 1);
	if (size > covey_device_max_ranks())
		return cvy_nccl_fail(ncclInvalidUsage,
				     "%d ranks: a communicator has at most %d in this build (COVEY_DEVICE_RANKS)", size,
				     covey_device_max_ranks());
	r = cvy_nccl_cuda(cudaGetDevice(&device), "cudaGetDevice");
	if (r)
		return r;
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return cvy_nccl_fail(ncclSystemError, "no memory for a communicator");
	pthread_mutex_init(&comm->lock, NULL);
	pthread_mutex_init(&comm->group_lock, NULL);
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
	char *url = cvy_nccl_store_use(&comm->id), name[CVY_NCCL_NAME_CHARS], device[16];
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_group *group = NULL;
	ncclResult_t r;

	if (!url)
		return ncclInvalidUsage;
	config.store = url;
	cvy_nccl_name(&comm->id, name);
	snprintf(device, sizeof(device), "%d", comm->device);
	config.group = config.job = name;
	config.rank = comm->rank;
	config.world = config.max_ranks = comm->size;
	config.device = device;
	if (!getenv("COVEY_JOIN_MS"))
		config.join_ms = JOIN_MS;
	r = cvy_nccl_covey(covey_join_start(&config, &group), NULL, "joining the communicator");
	free(url);
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

/* ---- steps ---- */

static ncclResult_t step_ask(struct ncclComm *comm)
{
	ncclResult_t r = cvy_nccl_answer(comm);

	if (r)
		return r;
	comm->stage = CVY_NCCL_JOINING;
	r = join_start(comm);
	return r ? r : ncclInProgress;
}

/* Under the lock. */
ncclResult_t cvy_nccl_step(struct ncclComm *comm, uint64_t deadline_ns)
{
	ncclResult_t r = comm->state;

	if (r == ncclInProgress && comm->stage == CVY_NCCL_ASKING)
		r = step_ask(comm);
	else if (r == ncclInProgress && comm->stage == CVY_NCCL_JOINING)
		r = step_join(comm, deadline_ns);
	else if (r == ncclInProgress)
		r = cvy_nccl_fail(ncclInvalidUsage, "the communicator was aborted while it was made");
	comm->state = r;
	return r;
}

ncclResult_t cvy_nccl_try(struct ncclComm *comm)
{
	ncclResult_t r;

	pthread_mutex_lock(&comm->lock);
	r = cvy_nccl_step(comm, cvy_nccl_now_ns() + SLICE_NS);
	if (r == ncclInProgress && comm->stage == CVY_NCCL_ASKING)
		cvy_nccl_nap(comm);
	pthread_mutex_unlock(&comm->lock);
	return r;
}

ncclResult_t cvy_nccl_begin(ncclComm_t *out)
{
	ncclResult_t r = join_start(*out);

	if (r) {
		cvy_nccl_discard(*out);
		*out = NULL;
	}
	return r;
}

/* ---- from an id ---- */

ncclResult_t cvy_nccl_id_read(const ncclUniqueId *bytes, struct cvy_nccl_id *id)
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

/* A communicator that has begun to join. */
static ncclResult_t init(ncclComm_t *out, int size, const ncclUniqueId *bytes, int rank, const ncclConfig_t *config)
{
	struct cvy_nccl_id id;
	ncclResult_t r;
	int blocking;

	if (!out)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitRank: the communicator's place is NULL");
	*out = NULL;
	blocking = cvy_nccl_blocking(config, 1);
	if (blocking < 0)
		return ncclInvalidArgument;
	r = cvy_nccl_id_read(bytes, &id);
	if (!r)
		r = cvy_nccl_make(size, rank, &id, blocking, out);
	return r ? r : cvy_nccl_begin(out);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId bytes, int rank, ncclConfig_t *config)
{
	return cvy_nccl_making(init(out, size, &bytes, rank, config), out);
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

static ncclResult_t check_devices(int n, const int *list)
{
	int count = 0;
	ncclResult_t r = cvy_nccl_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");

	for (int i = 0; i < n && !r; i++) {
		int device = list ? list[i] : i;

		if (device < 0 || device >= count)
			r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitAll: device %d: it must be 0 to %d", device,
					  count - 1);
		for (int k = 0; k < i && list && !r; k++)
			if (list[i] == list[k])
				r = cvy_nccl_fail(ncclInvalidUsage,
						  "ncclCommInitAll: device %d stands twice in the list", device);
	}
	return r;
}

static ncclResult_t init_on(int device, ncclComm_t *out, int n, const ncclUniqueId *id, int rank)
{
	ncclResult_t r = cvy_nccl_cuda(cudaSetDevice(device), "cudaSetDevice");

	return r ? cvy_nccl_making(r, out) : ncclCommInitRank(out, n, *id, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *list)
{
	ncclResult_t r = comms && n > 0 ? check_devices(n, list)
					: cvy_nccl_fail(ncclInvalidArgument, "ncclCommInitAll: %d devices", n);
	ncclResult_t ended;
	ncclUniqueId id;
	int was = 0;

	if (!r)
		r = ncclGetUniqueId(&id);
	if (r)
		return r;
	cudaGetDevice(&was);
	ncclGroupStart();
	for (int i = 0; i < n; i++) {
		comms[i] = NULL;
		if (!r)
			r = init_on(list ? list[i] : i, &comms[i], n, &id, i);
	}
	ended = ncclGroupEnd();
	cudaSetDevice(was);
	return r ? r : ended;
}
