/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, losses and numbers of a communicator (comm.h). */
#include "comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NAP_NS 50000

static __thread char last_error[512];

/* ---- errors ---- */

const char *cvy_nccl_why(void)
{
	return last_error;
}

void cvy_nccl_tell(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(last_error, sizeof(last_error), format, ap);
	va_end(ap);
}

ncclResult_t cvy_nccl_covey(int err, const struct covey_group *group, const char *what)
{
	struct covey_error_info info = { .err = 0 };

	if (!err)
		return ncclSuccess;
	covey_last_error(group, &info);
	return cvy_nccl_fail(cvy_nccl_result(err), "%s: %s%s%s", what, covey_strerror(err), info.err == err ? ": " : "",
			     info.err == err ? info.cause : "");
}

ncclResult_t cvy_nccl_cuda(cudaError_t err, const char *what)
{
	if (err == cudaSuccess)
		return ncclSuccess;
	return cvy_nccl_fail(ncclUnhandledCudaError, "%s: %s", what, cudaGetErrorString(err));
}

void cvy_nccl_warn(const char *text)
{
	const char *level = getenv("COVEY_LOG");

	if (!level || strcmp(level, "error"))
		fprintf(stderr, "covey: warn: nccl: %s\n", text);
}

uint64_t cvy_nccl_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void cvy_nccl_nap(struct ncclComm *comm)
{
	pthread_mutex_unlock(&comm->lock);
	nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
	pthread_mutex_lock(&comm->lock);
}

static ncclResult_t none(const struct ncclComm *comm, const char *call)
{
	if (!comm)
		return cvy_nccl_fail(ncclInvalidArgument, "%s: the communicator is NULL", call);
	return cvy_nccl_fail(ncclInvalidArgument, "%s: %p is no communicator, or was destroyed", call,
			     (const void *)comm);
}

ncclResult_t cvy_nccl_enter(struct ncclComm *comm, const char *call)
{
	if (!cvy_nccl_use(comm))
		return none(comm, call);
	pthread_mutex_lock(&comm->lock);
	return ncclSuccess;
}

void cvy_nccl_leave(struct ncclComm *comm)
{
	pthread_mutex_unlock(&comm->lock);
	cvy_nccl_unuse(comm);
}

ncclResult_t cvy_nccl_check(const struct ncclComm *comm, const char *call)
{
	if (!cvy_nccl_use((struct ncclComm *)comm))
		return none(comm, call);
	cvy_nccl_unuse((struct ncclComm *)comm);
	return ncclSuccess;
}

ncclResult_t cvy_nccl_is_made(const struct ncclComm *comm, const char *call)
{
	if (comm->state != ncclInProgress)
		return ncclSuccess;
	return cvy_nccl_fail(ncclInvalidArgument,
			     "%s: the communicator is not ready: ncclCommGetAsyncError() says when it is", call);
}

/* ---- losses ---- */

static void note_missing(struct ncclComm *comm, const struct covey_view *view)
{
	for (int r = 0; r < comm->size && !comm->state; r++) {
		if (covey_mask_has(&view->members, r))
			continue;
		comm->state = cvy_nccl_fail(
			ncclRemoteError,
			"rank %d of %d is no member of epoch %u: the log of covey (COVEY_LOG=info) says why", r,
			comm->size, view->epoch);
	}
}

void cvy_nccl_look(struct ncclComm *comm, int all)
{
	struct covey_event event;
	struct covey_view view;

	if (!comm->group || comm->stage != CVY_NCCL_READY || comm->state)
		return;
	while (!covey_event_next(comm->group, &event)) {
		all |= event.kind == COVEY_EVENT_VIEW;
		if (event.kind == COVEY_EVENT_FENCED)
			comm->state =
				cvy_nccl_fail(ncclRemoteError, "this rank was left out by the others: %s", event.cause);
	}
	if (all && !comm->state && !covey_view(comm->group, &view))
		note_missing(comm, &view);
}

ncclResult_t cvy_nccl_usable(struct ncclComm *comm, const char *call)
{
	ncclResult_t r = cvy_nccl_is_made(comm, call);

	if (r)
		return r;
	cvy_nccl_look(comm, 0);
	if (comm->state == ncclRemoteError)
		cvy_nccl_end(comm); /* others may have launched this operation: it ends there when this rank is gone */
	if (comm->state)
		return cvy_nccl_fail(comm->state,
				     "%s: the communicator has failed: abort it, and make a new one of the "
				     "ranks that are left",
				     call);
	if (comm->stage != CVY_NCCL_READY)
		return cvy_nccl_fail(ncclInvalidUsage, "%s: the communicator was finalized or revoked", call);
	return ncclSuccess;
}

/* ---- questions ---- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	ncclResult_t r = error ? cvy_nccl_enter(comm, "ncclCommGetAsyncError")
			       : cvy_nccl_fail(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is NULL");

	if (r)
		return r;
	if (comm->stage < CVY_NCCL_READY)
		cvy_nccl_step(comm, 1);
	cvy_nccl_look(comm, 1);
	*error = comm->state;
	cvy_nccl_leave(comm);
	return ncclSuccess;
}

/* @at: where the number is in the communicator. */
static ncclResult_t number(struct ncclComm *comm, size_t at, int *out, const char *call)
{
	ncclResult_t r =
		out ? cvy_nccl_enter(comm, call) : cvy_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);

	if (r)
		return r;
	r = cvy_nccl_is_made(comm, call);
	if (!r)
		memcpy(out, (const char *)comm + at, sizeof(*out));
	cvy_nccl_leave(comm);
	return r;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	return number(comm, offsetof(struct ncclComm, size), count, "ncclCommCount");
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return number(comm, offsetof(struct ncclComm, device), device, "ncclCommCuDevice");
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return number(comm, offsetof(struct ncclComm, rank), rank, "ncclCommUserRank");
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *out)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclCommQueryProperties");

	if (!r && (!out || out->magic != CVY_NCCL_MAGIC || out->size < offsetof(ncclCommProperties_t, nLsaTeams)))
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommQueryProperties: the properties were not initialised");
	if (!r)
		r = number(comm, offsetof(struct ncclComm, rank), &out->rank, "ncclCommQueryProperties");
	if (!r)
		r = number(comm, offsetof(struct ncclComm, size), &out->nRanks, "ncclCommQueryProperties");
	if (!r)
		r = number(comm, offsetof(struct ncclComm, device), &out->cudaDev, "ncclCommQueryProperties");
	if (r)
		return r;
	out->nvmlDev = out->cudaDev;
	out->deviceApiSupport = out->multimemSupport = false;
	out->ginType = 0;
	return ncclSuccess;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
	ncclTeam_t team = { 0, 0, 1 };

	if (number(comm, offsetof(struct ncclComm, size), &team.nRanks, "ncclTeamWorld") ||
	    number(comm, offsetof(struct ncclComm, rank), &team.rank, "ncclTeamWorld"))
		return (ncclTeam_t){ 0, 0, 0 };
	return team;
}

/* Those whose memory kernels of NCCL reach: nobody but this rank. */
ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
	return cvy_nccl_check(comm, "ncclTeamLsa") ? (ncclTeam_t){ 0, 0, 0 } : (ncclTeam_t){ 1, 0, 1 };
}

/* One of each team of the kind before. */
ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
	return ncclTeamWorld(comm);
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version)
		return cvy_nccl_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
	*version = CVY_NCCL_VERSION;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const texts[ncclNumResults] = {
		[ncclSuccess] = "no error",
		[ncclUnhandledCudaError] = "unhandled cuda error (ncclGetLastError() says which)",
		[ncclSystemError] = "unhandled system error (ncclGetLastError() says which)",
		[ncclInternalError] = "internal error",
		[ncclInvalidArgument] = "invalid argument (ncclGetLastError() says which)",
		[ncclInvalidUsage] = "invalid usage (ncclGetLastError() says which)",
		[ncclRemoteError] = "a rank of the communicator is lost",
		[ncclInProgress] = "in progress",
		[ncclTimeout] = "timeout",
	};

	return (int)result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return cvy_nccl_why();
}
