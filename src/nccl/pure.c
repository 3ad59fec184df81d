/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and arithmetic (pure.h). */
#include "pure.h"

#include <covey.h>
#include <stdio.h>
#include <string.h>

static const struct {
	int reduced, moved;
	size_t bytes;
} types[ncclNumTypes] = {
	[ncclInt8] = { COVEY_INT8, COVEY_INT8, 1 },	      [ncclUint8] = { COVEY_UINT8, COVEY_UINT8, 1 },
	[ncclInt32] = { COVEY_INT32, COVEY_INT32, 4 },	      [ncclUint32] = { COVEY_UINT32, COVEY_UINT32, 4 },
	[ncclInt64] = { COVEY_INT64, COVEY_INT64, 8 },	      [ncclUint64] = { COVEY_UINT64, COVEY_UINT64, 8 },
	[ncclFloat16] = { COVEY_FLOAT16, COVEY_FLOAT16, 2 },  [ncclFloat32] = { COVEY_FLOAT32, COVEY_FLOAT32, 4 },
	[ncclFloat64] = { COVEY_FLOAT64, COVEY_FLOAT64, 8 },  [ncclBfloat16] = { COVEY_BFLOAT16, COVEY_BFLOAT16, 2 },
	[ncclFloat8e4m3] = { COVEY_FLOAT32, COVEY_UINT8, 1 }, [ncclFloat8e5m2] = { COVEY_FLOAT32, COVEY_UINT8, 1 },
};

static int is_type(ncclDataType_t type)
{
	return (int)type >= 0 && type < ncclNumTypes;
}

int cvy_nccl_reduced(ncclDataType_t type)
{
	return is_type(type) ? types[type].reduced : -1;
}

int cvy_nccl_moved(ncclDataType_t type)
{
	return is_type(type) ? types[type].moved : -1;
}

int cvy_nccl_is_float8(ncclDataType_t type)
{
	return type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
}

size_t cvy_nccl_bytes(ncclDataType_t type)
{
	return is_type(type) ? types[type].bytes : 0;
}

ncclResult_t cvy_nccl_result(int err)
{
	switch (err) {
	case COVEY_OK:
		return ncclSuccess;
	case COVEY_ERR_INVAL:
	case COVEY_ERR_STALE:
	case COVEY_ERR_TRUNCATED:
		return ncclInvalidArgument;
	case COVEY_ERR_MISMATCH:
	case COVEY_ERR_REFUSED:
	case COVEY_ERR_UNSUPPORTED:
	case COVEY_ERR_CLOSED:
	case COVEY_ERR_ABORTED:
	case COVEY_ERR_BUSY:
	case COVEY_ERR_FULL:
	case COVEY_ERR_FORKED:
		return ncclInvalidUsage;
	case COVEY_ERR_LOST:
	case COVEY_ERR_PEER:
	case COVEY_ERR_ROOT:
	case COVEY_ERR_FENCED:
	case COVEY_ERR_NOQUORUM:
		return ncclRemoteError;
	default:
		return ncclSystemError;
	}
}

/* ---- names ---- */

/* The finalizer of splitmix64: each bit of the input changes about half of the output. */
static uint64_t stir(uint64_t v)
{
	v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
	v = (v ^ v >> 27) * 0x94d049bb133111ebu;
	return v ^ v >> 31;
}

uint64_t cvy_nccl_mix(uint64_t path, enum cvy_nccl_step step, uint64_t number, uint64_t count)
{
	uint64_t v = stir(path + 0x9e3779b97f4a7c15u * (uint64_t)step);

	v = stir(v + number + 1);
	v = stir(v + 0x9e3779b97f4a7c15u * (count + 1));
	return v ? v : 1; /* 0 is the path of the first communicator */
}

void cvy_nccl_name(const struct cvy_nccl_id *id, char *text)
{
	snprintf(text, CVY_NCCL_NAME_CHARS, "nccl-%016llx-%016llx", (unsigned long long)id->root,
		 (unsigned long long)id->path);
}

/* ---- ranks of new communicators ---- */

int cvy_nccl_split(const int32_t (*all)[2], int size, int rank, int *new_rank)
{
	int n = 0, before = 0;

	if (all[rank][0] < 0)
		return 0;
	for (int r = 0; r < size; r++) {
		if (all[r][0] != all[rank][0])
			continue;
		n++;
		before += all[r][1] < all[rank][1] || (all[r][1] == all[rank][1] && r < rank);
	}
	*new_rank = before;
	return n;
}

int cvy_nccl_shrink(const int *excluded, int n, int size, int rank, int *new_rank, uint64_t *key)
{
	unsigned char gone[CVY_NCCL_RANKS] = { 0 };
	int left = 0;

	if (n < 1 || !excluded)
		return -1;
	for (int i = 0; i < n; i++) {
		if (excluded[i] < 0 || excluded[i] >= size || excluded[i] == rank || gone[excluded[i]]++)
			return -1;
	}
	*key = 0;
	for (int r = 0; r < size; r++) {
		if (r == rank)
			*new_rank = left;
		left += !gone[r];
		if (gone[r])
			*key = stir(*key + (uint64_t)r + 1);
	}
	return left;
}

int cvy_nccl_round(int nth, int size, int rank, int peer)
{
	const int classes = (size + CVY_NCCL_PEERS - 1) / CVY_NCCL_PEERS, peers = (size + classes - 1) / classes;
	const int quota = CVY_NCCL_MESSAGES / (2 * peers);

	return nth / quota * classes + (rank + peer) % classes;
}
