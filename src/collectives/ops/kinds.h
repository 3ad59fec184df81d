/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of operations. Their numbers in the protocol are those of kinds[] in op.c. */
#ifndef CVY_KINDS_H
#define CVY_KINDS_H

#include "op.h"

extern const struct cvy_op_kind cvy_op_allreduce, cvy_op_broadcast, cvy_op_allgather, cvy_op_alltoall, cvy_op_alltoallv,
	cvy_op_barrier, cvy_op_admit, cvy_op_dispatch, cvy_op_combine, cvy_op_reduce, cvy_op_reduce_scatter,
	cvy_op_allgatherv, cvy_op_gather, cvy_op_scatter;

#endif
