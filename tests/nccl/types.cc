/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations have the numbers and the layout of NCCL's: compiling this is the test. */
#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace ours
{
#define CUstream_st CUstream_st_
#include "nccl_types.h"
#undef CUstream_st
} // namespace ours

#define SAME(name) static_assert((long)ours::name == (long)::name, #name)
#define PLACE(type, field) \
	static_assert(offsetof(ours::type, field) == offsetof(::type, field) && \
			      sizeof(ours::type::field) == sizeof(::type::field), \
		      #type "." #field)

SAME(ncclSuccess);
SAME(ncclUnhandledCudaError);
SAME(ncclSystemError);
SAME(ncclInternalError);
SAME(ncclInvalidArgument);
SAME(ncclInvalidUsage);
SAME(ncclRemoteError);
SAME(ncclInProgress);
SAME(ncclInt8);
SAME(ncclUint8);
SAME(ncclInt32);
SAME(ncclUint32);
SAME(ncclInt64);
SAME(ncclUint64);
SAME(ncclFloat16);
SAME(ncclFloat32);
SAME(ncclFloat64);
SAME(ncclBfloat16);
SAME(ncclFloat8e4m3);
SAME(ncclFloat8e5m2);
SAME(ncclNumTypes);
SAME(ncclSum);
SAME(ncclProd);
SAME(ncclMax);
SAME(ncclMin);
SAME(ncclAvg);
SAME(ncclNumOps);
SAME(ncclMaxRedOp);
SAME(ncclScalarDevice);
SAME(ncclScalarHostImmediate);
static_assert(CVY_NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES && sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId), "id");
static constexpr ::ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static constexpr ::ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
static_assert(config.magic == CVY_NCCL_MAGIC && simulation.magic == CVY_NCCL_SIM_MAGIC, "magic");
static_assert(CVY_NCCL_UNDEF_INT == NCCL_CONFIG_UNDEF_INT, "an int that is not set");
static_assert(CVY_NCCL_NOCOLOR == NCCL_SPLIT_NOCOLOR, "no color");
static_assert(CVY_NCCL_SHRINK_ABORT == NCCL_SHRINK_ABORT, "shrink");
static_assert(sizeof(ours::ncclResult_t) == sizeof(::ncclResult_t), "results");
static_assert(sizeof(ours::ncclRedOp_t) == sizeof(::ncclRedOp_t), "reductions");
static_assert(sizeof(ours::ncclDataType_t) == sizeof(::ncclDataType_t), "types");
static_assert(sizeof(ours::ncclSimInfo_t) == sizeof(::ncclSimInfo_t), "a simulation");
PLACE(ncclConfig_t, size);
PLACE(ncclConfig_t, magic);
PLACE(ncclConfig_t, version);
PLACE(ncclConfig_t, blocking);
PLACE(ncclConfig_t, netName);
PLACE(ncclConfig_t, commName);
PLACE(ncclConfig_t, shrinkShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
SAME(ncclTimeout);
PLACE(ncclConfig_t, graphStreamOrdering);
PLACE(ncclWaitSignalDesc_t, ctx);
static_assert(sizeof(ours::ncclConfig_t) == sizeof(::ncclConfig_t), "the configuration");
static_assert(CVY_NCCL_VERSION >= NCCL_VERSION_CODE, "these declarations are of an older version");
#endif
