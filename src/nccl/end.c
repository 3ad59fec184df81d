/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How communicators end. One that ends well waits for its stream, then for the others to do the same: a rank that left
 * earlier would be missing in operations that others have not completed. Ranks of one process may end one after the other
 * on one thread, so the last of them waits for all. Others may end their communicators in another order, and wait in the
 * next one for this rank: so a call waits for a moment only, and a thread for as long as it takes. One that is aborted,
 * revoked, or has lost a rank waits for nobody.
 *
 * Threads may end the same communicator at a time: one of them claims it, and the last that uses it frees its memory.
 */
#include "comm.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define OTHERS_MS 60000 /* that a living rank has to end too; then it is left alone */
#define CALL_MS 200	/* that a call waits for it */

static struct {
	pthread_mutex_t lock;
	struct ncclComm *first;
	pthread_cond_t lingered;
	int lingering; /* threads that wait for others */
	pid_t process; /* whose threads these are; 0: there were none */
} alive = { .lock = PTHREAD_MUTEX_INITIALIZER, .lingered = PTHREAD_COND_INITIALIZER };

/* ---- those of this process ---- */

void cvy_nccl_enlist(struct ncclComm *comm)
{
	pthread_mutex_lock(&alive.lock);
	comm->users = 1;
	comm->next = alive.first;
	alive.first = comm;
	pthread_mutex_unlock(&alive.lock);
}

static void delist(struct ncclComm *comm)
{
	struct ncclComm **at = &alive.first;

	pthread_mutex_lock(&alive.lock);
	while (*at && *at != comm)
		at = &(*at)->next;
	if (*at)
		*at = comm->next;
	pthread_mutex_unlock(&alive.lock);
}

/* Under the lock of the list. */
static int is_listed(const struct ncclComm *comm)
{
	const struct ncclComm *at = alive.first;

	while (at && at != comm)
		at = at->next;
	return at != NULL;
}

int cvy_nccl_use(struct ncclComm *comm)
{
	int found;

	pthread_mutex_lock(&alive.lock);
	found = is_listed(comm);
	if (found)
		comm->users++;
	pthread_mutex_unlock(&alive.lock);
	return found;
}

int cvy_nccl_claim(struct ncclComm *comm)
{
	int first;

	pthread_mutex_lock(&alive.lock);
	first = !comm->claimed;
	comm->claimed = 1;
	pthread_mutex_unlock(&alive.lock);
	return first;
}

static int is_sibling(const struct ncclComm *a, const struct ncclComm *b)
{
	return a->id.root == b->id.root && a->id.path == b->id.path;
}

/* Another rank of @id in this process has not begun to end. */
static int is_awaited(const struct cvy_nccl_id *id)
{
	struct ncclComm key = { .id = *id };
	int others = 0;

	pthread_mutex_lock(&alive.lock);
	for (struct ncclComm *at = alive.first; at; at = at->next)
		others += is_sibling(at, &key) && !at->started_end;
	pthread_mutex_unlock(&alive.lock);
	return others;
}

static void note_end(struct ncclComm *comm, int destroyed)
{
	pthread_mutex_lock(&alive.lock);
	comm->started_end = 1;
	comm->destroyed |= destroyed;
	pthread_mutex_unlock(&alive.lock);
}

/* A rank of @id that was destroyed while others were awaited; NULL: there is none. */
static struct ncclComm *take_destroyed(const struct cvy_nccl_id *id)
{
	struct ncclComm key = { .id = *id }, **at = &alive.first, *found;

	pthread_mutex_lock(&alive.lock);
	while (*at && !(is_sibling(*at, &key) && (*at)->destroyed))
		at = &(*at)->next;
	found = *at;
	if (found)
		found->destroyed = 0;
	pthread_mutex_unlock(&alive.lock);
	return found;
}

/* ---- at once ---- */

void cvy_nccl_end(struct ncclComm *comm)
{
	covey_work_free(comm->ending);
	comm->ending = NULL;
	cvy_nccl_ask_no_more(comm);
	cvy_nccl_close(comm);
	comm->stage = CVY_NCCL_ENDED;
}

static void free_memory(struct ncclComm *comm)
{
	while (comm->tallies) {
		struct cvy_nccl_tally *tally = comm->tallies;

		comm->tallies = tally->next;
		free(tally);
	}
	if (comm->done)
		cudaEventDestroy(comm->done);
	free(comm->redops);
	pthread_mutex_destroy(&comm->lock);
	pthread_mutex_destroy(&comm->group_lock);
	free(comm);
}

static void end_uses(struct ncclComm *comm, int n)
{
	int left;

	pthread_mutex_lock(&alive.lock);
	left = comm->users -= n;
	pthread_mutex_unlock(&alive.lock);
	if (!left)
		free_memory(comm);
}

void cvy_nccl_unuse(struct ncclComm *comm)
{
	end_uses(comm, 1);
}

void cvy_nccl_free(struct ncclComm *comm)
{
	delist(comm);
	cvy_nccl_unuse(comm);
}

void cvy_nccl_discard(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	cvy_nccl_end(comm);
	pthread_mutex_unlock(&comm->lock);
	if (cvy_nccl_claim(comm))
		cvy_nccl_free(comm);
}

/* Used by this call: ends what is under way, and threads that wait with the lock let go of it. */
static void end_now(struct ncclComm *comm)
{
	__atomic_store_n(&comm->aborted, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&comm->group_lock);
	covey_abort(comm->group);
	pthread_mutex_unlock(&comm->group_lock);
	pthread_mutex_lock(&comm->lock);
	cvy_nccl_end(comm);
	pthread_mutex_unlock(&comm->lock);
}

/* Without the lock, which another thread may hold for long. */
static ncclResult_t use(struct ncclComm *comm, const char *call)
{
	return cvy_nccl_use(comm) ? ncclSuccess : cvy_nccl_check(comm, call);
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
	ncclResult_t r = use(comm, "ncclCommRevoke");

	if (r)
		return r;
	if (flags)
		r = cvy_nccl_fail(ncclInvalidArgument, "ncclCommRevoke: flags are %d: they must be 0", flags);
	else
		end_now(comm);
	cvy_nccl_unuse(comm);
	return r;
}

/* ---- together ---- */

/* Under the lock: waits for the stream, and tells the others that this rank has no more operations. */
static ncclResult_t begin(struct ncclComm *comm)
{
	ncclResult_t r = comm->stage == CVY_NCCL_READY ? cvy_nccl_stream_drain(comm) : ncclSuccess;

	if (comm->stage == CVY_NCCL_ENDING)
		return r;
	cvy_nccl_look(comm, 1);
	if (comm->stage != CVY_NCCL_READY || comm->state || r || covey_barrier_start(comm->group, NULL, &comm->ending))
		cvy_nccl_end(comm);
	else
		comm->stage = CVY_NCCL_ENDING;
	return r;
}

/*
 * Under the lock: ends when all living ranks have begun to end. Another thread may end it meanwhile. 0: one has not within @ms.
 */
static int finish(struct ncclComm *comm, unsigned ms)
{
	uint64_t until = cvy_nccl_now_ns() + ms * 1000000ull;

	while (comm->stage == CVY_NCCL_ENDING && covey_work_test(comm->ending, NULL) == COVEY_ERR_AGAIN &&
	       !__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE)) {
		if (cvy_nccl_now_ns() >= until)
			return 0;
		cvy_nccl_nap(comm);
	}
	if (comm->stage != CVY_NCCL_ENDING)
		return 1;
	covey_leave(comm->group, 0); /* no death in the logs of the others */
	cvy_nccl_end(comm);
	return 1;
}

static void *linger(void *arg)
{
	struct ncclComm *comm = arg;

	pthread_mutex_lock(&comm->lock);
	finish(comm, OTHERS_MS);
	cvy_nccl_end(comm);
	pthread_mutex_unlock(&comm->lock);
	cvy_nccl_unuse(comm);
	pthread_mutex_lock(&alive.lock);
	alive.lingering--;
	pthread_cond_broadcast(&alive.lingered);
	pthread_mutex_unlock(&alive.lock);
	return NULL;
}

/* At exit: a rank that is gone would be missing in what the others have not completed. */
static void await_lingering(void)
{
	if (getpid() != alive.process) /* threads are of the process that started them */
		return;
	pthread_mutex_lock(&alive.lock);
	while (alive.lingering)
		pthread_cond_wait(&alive.lingered, &alive.lock);
	pthread_mutex_unlock(&alive.lock);
}

/* Without the lock. The calling thread uses it, and a thread of ours from here on, which waits for the others. */
static void finish_later(struct ncclComm *comm)
{
	sigset_t all, had;
	pthread_t thread;
	int first;

	pthread_mutex_lock(&alive.lock);
	comm->users++;
	alive.lingering++;
	first = alive.process != getpid();
	alive.process = getpid();
	pthread_mutex_unlock(&alive.lock);
	if (first)
		atexit(await_lingering);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &had);
	if (pthread_create(&thread, NULL, linger, comm))
		linger(comm);
	else
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &had, NULL);
}

/* The last rank of this process waits for those that were destroyed before it; after an abort nobody waits. */
static void finish_destroyed(const struct cvy_nccl_id *id, int aborted)
{
	struct ncclComm *comm;

	if (is_awaited(id))
		return;
	while ((comm = take_destroyed(id))) {
		int over;

		pthread_mutex_lock(&comm->lock);
		over = aborted || finish(comm, CALL_MS);
		if (over)
			cvy_nccl_end(comm);
		pthread_mutex_unlock(&comm->lock);
		if (!over)
			finish_later(comm);
		cvy_nccl_free(comm);
	}
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	ncclResult_t r = cvy_nccl_enter(comm, "ncclCommFinalize");
	int over;

	if (r)
		return r;
	r = cvy_nccl_usable(comm, "ncclCommFinalize");
	if (!r)
		r = begin(comm);
	note_end(comm, 0);
	over = r || is_awaited(&comm->id) || finish(comm, CALL_MS);
	pthread_mutex_unlock(&comm->lock);
	if (!over)
		finish_later(comm);
	cvy_nccl_unuse(comm);
	return r;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	struct cvy_nccl_id id;
	ncclResult_t r;

	if (!comm)
		return ncclSuccess;
	r = cvy_nccl_enter(comm, "ncclCommDestroy");
	if (r)
		return r;
	if (!cvy_nccl_claim(comm)) {
		cvy_nccl_leave(comm);
		return cvy_nccl_fail(ncclInvalidArgument, "ncclCommDestroy: another call has destroyed %p",
				     (void *)comm);
	}
	id = comm->id;
	r = begin(comm);
	note_end(comm, 1); /* from here on finish_destroyed() frees it, of any thread */
	cvy_nccl_leave(comm);
	finish_destroyed(&id, 0);
	return r;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	struct cvy_nccl_id id;
	ncclResult_t r;
	int claimed;

	if (!comm)
		return ncclSuccess;
	r = use(comm, "ncclCommAbort");
	if (r)
		return r;
	id = comm->id;
	end_now(comm);
	claimed = cvy_nccl_claim(comm);
	if (claimed)
		delist(comm);
	end_uses(comm, 1 + claimed);
	finish_destroyed(&id, 1);
	return ncclSuccess;
}
