/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions that programs make: a scalar that multiplies each input before the sum. */
#include "group.h"

#include <stdlib.h>
#include <string.h>

static struct cvy_nccl_redop *free_place(struct ncclComm *comm)
{
	struct cvy_nccl_redop *more;

	for (int i = 0; i < comm->redop_count; i++)
		if (!comm->redops[i].used)
			return &comm->redops[i];
	more = realloc(comm->redops, ((size_t)comm->redop_count + 1) * sizeof(*more));
	if (!more)
		return NULL;
	comm->redops = more;
	return &more[comm->redop_count++];
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
				      ncclScalarResidence_t residence, ncclComm_t comm)
{
	ncclResult_t r = cvy_nccl_check(comm, "ncclRedOpCreatePreMulSum");
	struct cvy_nccl_redop *place;

	if (!r && (!op || !scalar))
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: the %s is NULL",
				  op ? "scalar" : "place of the operator");
	if (!r && cvy_nccl_reduced(type) < 0)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: %d is no type", (int)type);
	if (!r && residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: residence %d", (int)residence);
	if (!r)
		r = cvy_nccl_enter(comm, "ncclRedOpCreatePreMulSum");
	if (r)
		return r;
	place = free_place(comm);
	if (place) {
		*place = (struct cvy_nccl_redop){ .used = 1, .type = type };
		if (residence == ncclScalarDevice)
			place->at = scalar;
		else
			memcpy(place->value, scalar, cvy_nccl_bytes(type));
		*op = (ncclRedOp_t)(ncclNumOps + (int)(place - comm->redops));
	}
	cvy_nccl_leave(comm);
	return place ? ncclSuccess : cvy_nccl_fail(ncclSystemError, "no memory for an operator");
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	int at = (int)op - ncclNumOps;
	ncclResult_t r = cvy_nccl_enter(comm, "ncclRedOpDestroy");

	if (r)
		return r;
	if (at < 0 || at >= comm->redop_count || !comm->redops[at].used)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclRedOpDestroy: %d is no operator that was created here",
				  (int)op);
	else
		comm->redops[at].used = 0;
	cvy_nccl_leave(comm);
	return r;
}
