/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators that come and go: splits, shrinks, growth, an init that is not waited for, an abort, a revocation; and all
 * ranks in one process.
 */
#include "api.h"

/* Ways to end a communicator on a thread of its own, each after @WAIT us. */
#define ENDS(NAME, WAIT, CALL) \
	static void *NAME(void *c) \
	{ \
		usleep(WAIT); \
		return (void *)(intptr_t)CALL((ncclComm_t)c); \
	}
ENDS(abort_soon, 20000, ncclCommAbort)
ENDS(abort_now, 0, ncclCommAbort)
ENDS(destroy, 0, ncclCommDestroy)
ENDS(finalize, 0, ncclCommFinalize)

static void await(ncclComm_t c, int want, const char *what)
{
	ncclResult_t state = ncclInProgress;
	uint64_t until = now_us() + ID_MS * 1000u;

	while (state == ncclInProgress && now_us() < until) {
		OK(ncclCommGetAsyncError(c, &state));
		nap();
	}
	gives((int)state, want, what, __LINE__);
}

static ncclConfig_t config_of(int blocking)
{
	ncclConfig_t c;

	memset(&c, 0, sizeof(c));
	c.size = sizeof(c);
	c.magic = CVY_NCCL_MAGIC;
	c.version = CVY_NCCL_VERSION;
	c.blocking = blocking;
	return c;
}

static void splits(void)
{
	ncclConfig_t later = config_of(0);
	ncclComm_t half[2] = { NULL, NULL }, none = (ncclComm_t)1, all = NULL;
	int n, me;

	/* Even and odd ranks, in descending order, twice: the two have different groups. */
	for (int i = 0; i < 2; i++) {
		OK(ncclCommSplit(comm, rank % 2, -rank, &half[i], NULL));
		OK(ncclCommCount(half[i], &n));
		OK(ncclCommUserRank(half[i], &me));
		GIVES((size + 1 - rank % 2) / 2, n);
		GIVES((size - 1 - rank) / 2, me);
		sum_of(half[i], n, me, "a split");
	}
	/* Rank 0 is in none. */
	OK(ncclCommSplit(comm, rank ? 3 : CVY_NCCL_NOCOLOR, 0, &none, NULL));
	GIVES(!rank, none == NULL);
	if (none) {
		sum_of(none, size - 1, rank - 1, "a split without rank 0");
		OK(ncclCommDestroy(none));
	}
	GIVES(ncclInProgress, ncclCommSplit(comm, 0, rank, &all, &later));
	await(all, ncclSuccess, "a split that is not waited for");
	sum_of(all, size, rank, "a split that is not waited for");
	OK(ncclCommDestroy(all));
	for (int i = 0; i < 2; i++)
		OK(ncclCommDestroy(half[i]));
	sum_of(comm, size, rank, "the parent of splits");
}

static void smaller_and_larger(void)
{
	ncclComm_t some = NULL, grown[2] = { NULL, NULL };
	ncclUniqueId id;
	int last = size - 1;

	for (int i = 0; i < 2 && size > 2; i++) { /* twice the same */
		if (rank == last)
			break;
		OK(ncclCommShrink(comm, &last, 1, &some, NULL, 0));
		sum_of(some, size - 1, rank, "a shrink");
		if (!i)
			OK(ncclCommDestroy(some));
	}
	GIVES(ncclInvalidArgument, ncclCommShrink(comm, &rank, 1, &grown[0], NULL, 0));
	if (size < 3)
		return;
	/* The last rank comes back into what was made without it, twice. */
	for (int i = 0; i < 2; i++) {
		char name[16];

		snprintf(name, sizeof(name), "grown-%d", i);
		if (!rank) {
			OK(ncclCommGetUniqueId(some, &id));
			GIVES(ncclInvalidUsage, ncclCommGetUniqueId(some, &id));
			id_tell(name, &id, sizeof(id));
		}
		if (rank == last) {
			id_hear(name, &id, sizeof(id));
			OK(ncclCommGrow(NULL, size, &id, last, &grown[i], NULL));
		} else {
			OK(ncclCommGrow(some, size, rank ? NULL : &id, -1, &grown[i], NULL));
		}
		sum_of(grown[i], size, rank, "a growth");
	}
	for (int i = 0; i < 2; i++)
		OK(ncclCommDestroy(grown[i]));
	if (rank != last)
		OK(ncclCommDestroy(some));
}

static void not_waited_for(void)
{
	ncclConfig_t later = config_of(0), bad = config_of(7);
	ncclUniqueId id = id_of("later", 0), none;
	ncclComm_t c = NULL, split = NULL;
	int n;

	memset(&none, 0, sizeof(none));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&c, size, none, rank));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&c, size, id, size));
	GIVES(ncclInvalidUsage, ncclCommInitRank(&c, 257, id, 0));
	GIVES(ncclInvalidUsage, ncclCommInitRank(&c, 33, id, rank));
	GIVES(ncclInvalidArgument, ncclCommInitRankConfig(&c, size, id, rank, &bad));
	GIVES(1, c == NULL);
	GIVES(ncclInProgress, ncclCommInitRankConfig(&c, size, id, rank, &later));
	GIVES(ncclInvalidArgument, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	GIVES(ncclInvalidArgument, ncclCommSplit(c, 0, 0, &split, NULL));
	GIVES(ncclInvalidArgument, ncclCommCount(c, &n));
	await(c, ncclSuccess, "an init that is not waited for");
	sum_of(c, size, rank, "an init that is not waited for");
	OK(ncclCommFinalize(c));
	GIVES(ncclInvalidUsage, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	OK(ncclCommDestroy(c));
}

/* A communicator can be given up at any time while it is made. */
static void given_up(void)
{
	ncclConfig_t later = config_of(0);
	ncclComm_t alone = NULL, split = NULL;
	ncclUniqueId id;

	if (!rank) { /* the others never come */
		OK(ncclGetUniqueId(&id));
		GIVES(ncclInProgress, ncclCommInitRankConfig(&alone, size + 1, id, rank, &later));
		OK(ncclCommAbort(alone));
	}
	for (int i = 0; i < 3; i++) {
		GIVES(ncclInProgress, ncclCommSplit(comm, 0, 0, &split, &later));
		OK(ncclCommAbort(split));
	}
	sum_of(comm, size, rank, "the parent of splits that were given up");
}

/* Operations that others never call, and one thread that waits for them while another aborts. The others live. */
static void aborted(void)
{
	ncclComm_t c = NULL;
	pthread_t thread;
	void *got = (void *)1;

	OK(ncclCommInitRank(&c, size, id_of("aborted", 0), rank));
	if (!rank) {
		OK(ncclRecv(to(), MOST, ncclInt32, 1, c, stream));
		OK(ncclAllReduce(in, to(), MOST, ncclInt32, ncclSum, c, stream));
		pthread_create(&thread, NULL, abort_soon, c);
		CUDA(cudaStreamSynchronize(stream));
		pthread_join(thread, &got);
		GIVES(1, got == NULL);
	}
	meet("aborted-done", 1);
	if (rank)
		OK(ncclCommAbort(c));
}

static void revoked(void)
{
	ncclComm_t c = NULL, some = NULL;
	ncclUniqueId id = id_of("revoked", 1 % size);
	int first = 0;

	OK(ncclCommInitRankScalable(&c, size, rank, 1, &id, NULL));
	OK(ncclCommRevoke(c, 0));
	GIVES(ncclInvalidUsage, ncclAllReduce(in, to(), 1, ncclInt8, ncclSum, c, stream));
	if (rank) {
		OK(ncclCommShrink(c, &first, 1, &some, NULL, 0));
		sum_of(some, size - 1, rank - 1, "a shrink of what was revoked");
		OK(ncclCommDestroy(some));
	}
	OK(ncclCommDestroy(c));
}

void plan_life(void)
{
	splits();
	smaller_and_larger();
	not_waited_for();
	given_up();
	aborted();
	revoked();
	OK(ncclCommDestroy(comm));
}

/* ---- all ranks in one process ---- */

/* All ranks of @all ask for the same split in one group of calls, on one thread. */
static void split_together(ncclComm_t *all, int n)
{
	ncclComm_t parts[RANKS];
	int count, me;

	OK(ncclGroupStart());
	for (int r = 0; r < n; r++)
		OK(ncclCommSplit(all[r], 0, -r, &parts[r], NULL));
	OK(ncclGroupEnd());
	for (int r = 0; r < n; r++) {
		OK(ncclCommCount(parts[r], &count));
		OK(ncclCommUserRank(parts[r], &me));
		GIVES(n, count);
		GIVES(n - 1 - r, me);
	}
	for (int r = 0; r < n; r++)
		OK(ncclCommDestroy(parts[r]));
}

/* A rank that is refused: those of the same group that have begun to join end at once, and wait for nobody. */
static void refused_together(void)
{
	ncclComm_t some[2] = { NULL, NULL };
	ncclUniqueId id;
	int none[2] = { 0, 1000 };

	GIVES(ncclInvalidArgument, ncclCommInitAll(some, 2, none));
	OK(ncclGetUniqueId(&id));
	OK(ncclGroupStart());
	OK(ncclCommInitRank(&some[0], 2, id, 0));
	GIVES(ncclInvalidArgument, ncclCommInitRank(&some[1], 2, id, 2));
	GIVES(ncclInvalidArgument, ncclGroupEnd());
	GIVES(1, some[0] == NULL && some[1] == NULL);
	/* The same where the group is forgotten. */
	OK(ncclGroupStart());
	OK(ncclCommInitRank(&some[0], 2, id, 0));
	GIVES(ncclInvalidUsage, ncclGroupSimulateEnd(NULL));
	GIVES(1, some[0] == NULL);
}

/* A communicator that one thread destroys and another aborts: one of them may come too late, and is told so. */
static void ended_twice(void)
{
	static void *(*const ends[])(void *) = { destroy, abort_now };
	ncclComm_t all[2];
	pthread_t threads[4];
	void *got;

	for (int round = 0; round < 20; round++) {
		OK(ncclCommInitAll(all, 2, NULL));
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, ends[(i + round) % 2], all[i / 2]);
		for (int i = 0; i < 4; i++) {
			pthread_join(threads[i], &got);
			if (got)
				GIVES(ncclInvalidArgument, (intptr_t)got);
		}
	}
}

/*
 * A rank that waits in ncclCommFinalize() keeps nobody from asking, nor from a revocation, which ends the wait. The others
 * never call what it waits for.
 */
static void revoked_under_way(ncclComm_t *all, cudaStream_t on)
{
	ncclResult_t state;
	pthread_t thread;
	void *got;

	CUDA(cudaSetDevice(0));
	OK(ncclAllReduce(in, in, 1, ncclInt8, ncclSum, all[0], on));
	pthread_create(&thread, NULL, finalize, all[0]);
	usleep(20000);
	OK(ncclCommGetAsyncError(all[0], &state));
	OK(ncclCommRevoke(all[0], 0));
	pthread_join(thread, &got);
	CUDA(cudaStreamSynchronize(on));
}

/* Several ranks in one process and one thread. */
void plan_one(void)
{
	ncclComm_t all[RANKS];
	cudaStream_t streams[RANKS];
	uint8_t *buffers[RANKS], *outs[RANKS];
	int same[2] = { 1, 1 }, n = size;
	struct shape s = { ncclInt32, ncclSum, n, 0, 0, 100 };

	GIVES(ncclInvalidUsage, ncclCommInitAll(all, 2, same));
	OK(ncclCommInitAll(all, n, NULL));
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(r));
		CUDA(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
		CUDA(cudaMalloc((void **)&buffers[r], 4096));
		CUDA(cudaMalloc((void **)&outs[r], room));
		for (size_t i = 0; i < 100; i++)
			put(ncclInt32, host + i * 4, input(r, i, n));
		CUDA(cudaMemcpy(buffers[r], host, 400, cudaMemcpyHostToDevice));
		CUDA(cudaMemset(outs[r], PAD, room));
	}
	OK(ncclGroupStart());
	for (int r = 0; r < n; r++)
		OK(ncclAllReduce(buffers[r], outs[r] + EDGE, 100, ncclInt32, ncclSum, all[r], streams[r]));
	OK(ncclGroupEnd());
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(r));
		CUDA(cudaStreamSynchronize(streams[r]));
		out = outs[r];
		stream = streams[r];
		compare("ranks of one process", &s, 100, folded);
	}
	split_together(all, n);
	refused_together();
	revoked_under_way(all, streams[0]);
	for (int r = 0; r < n; r++)
		OK(ncclCommDestroy(all[r]));
	ended_twice();
}
