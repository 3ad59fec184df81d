/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI side of the benchmark, every operation that MPI has: see bench.h. */
#include <mpi.h>

#include "bench.h"

static struct bench_side side;

static int allreduce(void *send, void *recv, size_t count)
{
	return MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int in_place(void *send, void *recv, size_t count)
{
	(void)send;
	return MPI_Allreduce(MPI_IN_PLACE, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int broadcast(void *send, void *recv, size_t count)
{
	return MPI_Bcast(side.rank ? recv : send, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int allgather(void *send, void *recv, size_t count)
{
	return MPI_Allgather(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT, MPI_COMM_WORLD);
}

static int alltoall(void *send, void *recv, size_t count)
{
	return MPI_Alltoall(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT, MPI_COMM_WORLD);
}

static int reduce_scatter(void *send, void *recv, size_t count)
{
	return MPI_Reduce_scatter_block(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int reduce(void *send, void *recv, size_t count)
{
	return MPI_Reduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static int gather(void *send, void *recv, size_t count)
{
	return MPI_Gather(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int scatter(void *send, void *recv, size_t count)
{
	return MPI_Scatter(send, (int)count, MPI_FLOAT, recv, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

/* Round the ring: to the next rank, from the one before. */
static int sendrecv(void *send, void *recv, size_t count)
{
	int next = (side.rank + 1) % side.ranks, before = (side.rank + side.ranks - 1) % side.ranks;

	return MPI_Sendrecv(send, (int)count, MPI_FLOAT, next, 0, recv, (int)count, MPI_FLOAT, before, 0,
			    MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int barrier(void *send, void *recv, size_t count)
{
	(void)send;
	(void)recv;
	(void)count;
	return MPI_Barrier(MPI_COMM_WORLD);
}

static int max(double *value)
{
	return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static struct bench_side side = {
	.call = { [BENCH_ALLREDUCE] = allreduce,
		  [BENCH_IN_PLACE] = in_place,
		  [BENCH_BROADCAST] = broadcast,
		  [BENCH_ALLGATHER] = allgather,
		  [BENCH_ALLTOALL] = alltoall,
		  [BENCH_REDUCE_SCATTER] = reduce_scatter,
		  [BENCH_REDUCE] = reduce,
		  [BENCH_GATHER] = gather,
		  [BENCH_SCATTER] = scatter,
		  [BENCH_SENDRECV] = sendrecv,
		  [BENCH_BARRIER] = barrier },
	.max = max,
};

int main(int argc, char **argv)
{
	int err;

	if (MPI_Init(&argc, &argv))
		return 1;
	MPI_Comm_rank(MPI_COMM_WORLD, &side.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &side.ranks);
	err = bench_main(&side, argc, argv);
	if (err)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return err;
}
