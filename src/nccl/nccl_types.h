/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's types as programs that were compiled with nccl.h 2.28 to 2.30 pass them: our own declarations, so that this
 * library needs no NCCL to be built. tests/nccl/types.cc compares them with nccl.h where it is there.
 */
#ifndef CVY_NCCL_TYPES_H
#define CVY_NCCL_TYPES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ncclComm;
struct ncclWindow_vidmem;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *ncclStream; /* cudaStream_t */

#define CVY_NCCL_VERSION 23007 /* of these declarations */
#define CVY_NCCL_ID_BYTES 128
#define CVY_NCCL_MAGIC 0xcafebeefu /* of ncclConfig_t */
#define CVY_NCCL_SIM_MAGIC 0x74685283u
#define CVY_NCCL_UNDEF_INT INT_MIN
#define CVY_NCCL_NOCOLOR (-1)
#define CVY_NCCL_SHRINK_ABORT 1

typedef struct {
	char internal[CVY_NCCL_ID_BYTES];
} ncclUniqueId;

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
	ncclTimeout = 8,
	ncclNumResults = 9
} ncclResult_t;

typedef enum {
	ncclSum = 0,
	ncclProd = 1,
	ncclMax = 2,
	ncclMin = 3,
	ncclAvg = 4,
	ncclNumOps = 5, /* the first that ncclRedOpCreatePreMulSum gives */
	ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
	ncclFloat8e4m3 = 10,
	ncclFloat8e5m2 = 11,
	ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef enum {
	ncclStatGpuMemSuspend = 0,
	ncclStatGpuMemSuspended = 1,
	ncclStatGpuMemPersist = 2,
	ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

/* Later versions have more at the end; `size` says how much there is. */
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int blocking; /* CVY_NCCL_UNDEF_INT or 1: calls return when they are done */
	int cgaClusterSize;
	int minCTAs;
	int maxCTAs;
	const char *netName;
	int splitShare;
	int trafficClass;
	const char *commName;
	int collnetEnable;
	int CTAPolicy;
	int shrinkShare;
	int nvlsCTAs;
	int nChannelsPerNetPeer;
	int nvlinkCentricSched;
	int graphUsageMode;
	int numRmaCtx;
	int maxP2pPeers;
	int graphStreamOrdering;
} ncclConfig_t;

typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	float estimatedTime;
} ncclSimInfo_t;

typedef struct {
	int opCnt;
	int peer;
	int sigIdx;
	int ctx;
} ncclWaitSignalDesc_t;

/* Of nccl_device/core.h */
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int rank;
	int nRanks;
	int cudaDev;
	int nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	int ginType;
	int nLsaTeams;
	bool hostRmaSupport;
	int railedGinType;
} ncclCommProperties_t;

typedef struct {
	int nRanks, rank, stride;
} ncclTeam_t;

#endif
