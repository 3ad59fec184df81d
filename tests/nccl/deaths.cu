/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies: under operations, in a wait, in a split, or while nothing is under way. The others end, and go on without it. */
#include "api.h"

static void *die(void *unused)
{
	uint64_t now;

	usleep(3000);
	now = now_us();
	id_tell("dead", &now, sizeof(now));
	raise(SIGKILL);
	return unused;
}

/* Operations without end, until the loss is told. Returns how many were launched. */
static int until_lost(uint64_t *told_us)
{
	ncclResult_t state = ncclSuccess;
	int n = 0;

	while (!state && n < 100000) {
		ncclResult_t r = ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, comm, stream);

		if (r)
			GIVES(ncclRemoteError, r);
		else
			n++;
		if (n % 8 == 0) {
			CUDA(cudaStreamSynchronize(stream)); /* nothing hangs */
			OK(ncclCommGetAsyncError(comm, &state));
		}
		if (r)
			OK(ncclCommGetAsyncError(comm, &state));
	}
	*told_us = now_us();
	gives((int)state, ncclRemoteError, "the loss", __LINE__);
	return n;
}

/* What every survivor does after a death of @dead, from then on in a communicator of its own. */
static void survive(int dead, int by_shrink)
{
	int me = rank - (rank > dead), n = size - 1;
	ncclComm_t next = NULL;

	if (by_shrink) {
		OK(ncclCommShrink(comm, &dead, 1, &next, NULL, CVY_NCCL_SHRINK_ABORT));
		CUDA(cudaStreamSynchronize(stream));
		OK(ncclCommAbort(comm));
	} else {
		OK(ncclCommAbort(comm));
		CUDA(cudaStreamSynchronize(stream));
		OK(ncclCommInitRank(&next, n, id_of("survivors", dead ? 0 : 1), me));
	}
	sum_of(next, n, me, "survivors");
	OK(ncclCommDestroy(next));
}

void plan_killed(void)
{
	struct shape s = { ncclInt32, ncclSum, size, rank, 0, 0 };
	const int dead = plan.dead;
	uint64_t told, died;
	pthread_t thread;
	int n;

	fill_in(&s, MOST);
	if (rank == dead)
		pthread_create(&thread, NULL, die, NULL);
	n = until_lost(&told);
	if (rank == dead)
		pause();
	GIVES(ncclRemoteError, ncclAllReduce(in, to(), 1, ncclInt32, ncclSum, comm, stream));
	id_hear("dead", &died, sizeof(died));
	printf("rank %d: rank %d was lost after %d operations, told %.1f ms after its death\n", rank, dead, n,
	       (double)(told - died) / 1000);
	survive(dead, plan.how);
}

/* A receive from a rank that dies, or a sum with it: it ends, and then the loss is told at the first question. */
void plan_waited(void)
{
	ncclResult_t state, r;

	meet("waiting", (1u << size) - 1);
	if (rank == plan.dead)
		raise(SIGKILL);
	r = plan.how ? ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream)
		     : ncclRecv(to(), 10, ncclInt32, plan.dead, comm, stream);
	if (r) /* it was known at the call */
		GIVES(ncclRemoteError, r);
	CUDA(cudaStreamSynchronize(stream));
	OK(ncclCommGetAsyncError(comm, &state));
	GIVES(ncclRemoteError, state);
	OK(ncclCommDestroy(comm));
}

/* A death while nothing is under way: how soon it is told. */
void plan_idle(void)
{
	uint64_t died;

	meet("waiting", (1u << size) - 1);
	if (rank == plan.dead) {
		die(NULL);
		return;
	}
	for (ncclResult_t state = ncclSuccess; !state; usleep(100)) {
		OK(ncclCommGetAsyncError(comm, &state));
		if (state)
			GIVES(ncclRemoteError, state);
	}
	id_hear("dead", &died, sizeof(died)); /* it is there, since it came before the death */
	printf("rank %d: told %.1f ms after the death\n", rank, (double)(now_us() - died) / 1000);
	OK(ncclCommDestroy(comm));
}

/* One rank has launched an operation when another learns of the loss and is refused the same: the first must not hang. */
void plan_refused(void)
{
	ncclResult_t state = ncclSuccess;
	int unused;

	if (rank == plan.dead) {
		id_hear("launched", &unused, sizeof(unused));
		raise(SIGKILL);
	}
	if (rank == 1) {
		OK(ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream));
		id_tell("launched", &rank, sizeof(rank));
		CUDA(cudaStreamSynchronize(stream));
		id_tell("through", &rank, sizeof(rank));
		OK(ncclCommGetAsyncError(comm, &state));
		GIVES(ncclRemoteError, state);
	} else {
		while (!state)
			OK(ncclCommGetAsyncError(comm, &state));
		GIVES(ncclRemoteError, ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, comm, stream));
		id_hear("through", &unused, sizeof(unused));
	}
	OK(ncclCommAbort(comm));
}

/* A rank dies that the others wait for in a split. */
void plan_split(void)
{
	int dead = plan.dead, unused;
	ncclComm_t c = NULL;

	if (rank == plan.dead) {
		id_hear("asking", &unused, sizeof(unused));
		die(NULL);
	}
	if (!rank)
		id_tell("asking", &rank, sizeof(rank));
	GIVES(ncclRemoteError, ncclCommSplit(comm, 0, rank, &c, NULL));
	GIVES(1, c == NULL);
	OK(ncclCommShrink(comm, &dead, 1, &c, NULL, 0));
	sum_of(c, size - 1, rank, "a shrink after a split that failed");
	OK(ncclCommDestroy(c));
	OK(ncclCommDestroy(comm));
}
