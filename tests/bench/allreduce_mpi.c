/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI side of the allreduce benchmark: see bench.h. */
#include <mpi.h>

#include "bench.h"

static int allreduce(const float *send, float *recv, size_t count)
{
	return MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int barrier(void)
{
	return MPI_Barrier(MPI_COMM_WORLD);
}

static int max(double *value)
{
	return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	struct bench_side side = { .allreduce = allreduce, .barrier = barrier, .max = max };
	int err;

	if (MPI_Init(&argc, &argv))
		return 1;
	MPI_Comm_rank(MPI_COMM_WORLD, &side.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &side.ranks);
	err = bench_main(&side);
	if (err)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return err;
}
