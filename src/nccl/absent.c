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

#define REFUSE(name, arguments, why) \
	ncclResult_t name arguments \
	{ \
		static int told; \
		return refuse(&told, __func__, why); \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"

REFUSE(ncclCommSuspend, (ncclComm_t comm, int flags), NO_SUSPENSION)
REFUSE(ncclCommResume, (ncclComm_t comm), NO_SUSPENSION)
REFUSE(ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value), "memory is not counted")
REFUSE(ncclPutSignal,
       (const void *buffer, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset, int signal,
	int context, unsigned int flags, ncclComm_t comm, ncclStream stream),
       NO_SIGNALS)
REFUSE(ncclSignal, (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, ncclStream stream),
       NO_SIGNALS)
REFUSE(ncclWaitSignal, (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, ncclStream stream), NO_SIGNALS)
REFUSE(ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void **out), IN_PLACE_OF_WINDOWS)
REFUSE(ncclDevCommCreate, (ncclComm_t comm, const void *requirements, void *out),
       "kernels of NCCL's device interface cannot run on covey: see covey_device.h")
REFUSE(ncclDevCommDestroy, (ncclComm_t comm, const void *out), "there is none: ncclDevCommCreate() refuses")
REFUSE(ncclGetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void **out), IN_PLACE_OF_WINDOWS)
REFUSE(ncclGetLsaDevicePointer, (ncclWindow_t window, size_t offset, int rank, void **out), IN_PLACE_OF_WINDOWS)
REFUSE(ncclGetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **out), IN_PLACE_OF_WINDOWS)

/* The calls of the open group are forgotten, as after a simulation. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	static int told;

	cvy_nccl_group_drop();
	return refuse(&told, __func__, "times are not estimated; the calls of the group were dropped");
}
