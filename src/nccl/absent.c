/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are there to be found by the loader, and refuse. */
#include "group.h"

#include <stdio.h>

#define IN_PLACE_OF_WINDOWS "no window is ever given: memory of peers is reached by covey_device.h"
#define NO_SIGNALS "puts and signals are not part of this library: send and receive, or see covey_device.h"
#define NO_SUSPENSION "memory of a communicator is not given back while it lives: destroy it, and make it anew"

static ncclResult_t refuse(int *told, const char *call, const char *why)
{
	ncclResult_t r = cvy_nccl_fail(ncclInvalidUsage, "%s: %s", call, why);

	if (!__atomic_exchange_n(told, 1, __ATOMIC_RELAXED))
		cvy_nccl_warn(cvy_nccl_why());
	return r;
}

#define REFUSE(why) \
	do { \
		static int told; \
		return refuse(&told, __func__, why); \
	} while (0)

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* The calls of the open group are forgotten, as after a simulation. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	cvy_nccl_group_drop();
	REFUSE("times are not estimated; the calls of the group were dropped");
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags)
{
	REFUSE(NO_SUSPENSION);
}

ncclResult_t ncclCommResume(ncclComm_t comm)
{
	REFUSE(NO_SUSPENSION);
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	REFUSE("memory is not counted");
}

ncclResult_t ncclPutSignal(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
			   size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
			   ncclStream stream)
{
	REFUSE(NO_SIGNALS);
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm, ncclStream stream)
{
	REFUSE(NO_SIGNALS);
}

ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, ncclStream stream)
{
	REFUSE(NO_SIGNALS);
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **out)
{
	REFUSE(IN_PLACE_OF_WINDOWS);
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *out)
{
	REFUSE("kernels of NCCL's device interface cannot run on covey: see covey_device.h");
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *out)
{
	REFUSE("there is none: ncclDevCommCreate() refuses");
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **out)
{
	REFUSE(IN_PLACE_OF_WINDOWS);
}

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void **out)
{
	REFUSE(IN_PLACE_OF_WINDOWS);
}

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **out)
{
	REFUSE(IN_PLACE_OF_WINDOWS);
}
