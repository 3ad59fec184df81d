/* SPDX-License-Identifier: Apache-2.0 */
/* What stays of calls: stores that came by an id, ends in another order, and what a calling thread has. */
#include <errno.h>
#include <semaphore.h>

#include "api.h"

#define ODD 4711 /* no number of an error */

/* A rank that got its store by an id makes ids of the same store, and starts no server. */
void plan_adopt(void)
{
	enum { LONG = 5000 };
	struct cvy_nccl_id id, next;
	char url[2 * LONG];
	ncclUniqueId bytes;
	int n;

	unsetenv("COVEY_STORE");
	if (!rank) {
		OK(ncclGetUniqueId(&bytes));
		memcpy(&id, &bytes, sizeof(id));
		setenv("COVEY_STORE", id.store, 1);
	}
	bytes = id_of("first", 0);
	memcpy(&id, &bytes, sizeof(id));
	GIVES(0, id.own_store);
	OK(ncclCommInitRank(&comm, size, bytes, rank));
	OK(ncclGetUniqueId(&bytes));
	memcpy(&next, &bytes, sizeof(next));
	GIVES(0, strcmp(id.store, next.store));
	GIVES(0, next.own_store);
	sum_of(comm, size, rank, "a store that came by an id");
	OK(ncclCommDestroy(comm));
	/* A long URL is read to its end. */
	n = snprintf(url, sizeof(url), "%s?", id.store);
	memset(url + n, '&', LONG);
	strcpy(url + n + LONG, "link_ms=x");
	setenv("COVEY_STORE", url, 1);
	GIVES(1, ncclCommInitRank(&comm, size, id_of("long", 0), rank) != ncclSuccess);
	GIVES(1, strstr(ncclGetLastError(NULL), "link_ms") != NULL);
}

/* For tests/nccl/store: ranks that wait to be killed; machines without a server, or with one that does not start. */
void plan_sleep(void)
{
	printf("ready\n");
	pause();
}

void plan_storeless(void)
{
	ncclUniqueId id;

	GIVES(ncclSystemError, ncclGetUniqueId(&id));
	GIVES(1, strstr(ncclGetLastError(NULL), "COVEY_STORE") != NULL);
	GIVES(1, strstr(ncclGetLastError(NULL), "redis-server") != NULL);
}

void plan_unanswered(void)
{
	ncclUniqueId id;

	GIVES(ncclSystemError, ncclGetUniqueId(&id));
	GIVES(1, strstr(ncclGetLastError(NULL), "does not answer") != NULL);
}

/* Each rank ends one of two communicators while the other rank does not end it before that call has returned. */
void plan_order(void)
{
	const int first = rank % 2;
	char name[2][32];
	ncclComm_t two[2];
	int unused = 0;

	for (int i = 0; i < 2; i++) {
		snprintf(name[i], sizeof(name[i]), "ended-%d", i);
		OK(ncclCommInitRank(&two[i], size, id_of(i ? "second" : "first", 0), rank));
		sum_of(two[i], size, rank, "one of two");
	}
	alarm(ID_MS / 1000); /* ranks that wait for each other would come to an end, but later */
	OK(ncclCommDestroy(two[first]));
	id_tell(name[first], &unused, sizeof(unused));
	id_hear(name[!first], &unused, sizeof(unused));
	OK(ncclCommDestroy(two[!first]));
}

/* What the calling thread has is the same after a call; @other: a device that is not the communicator's. */
static void same(int device, const char *call, int line)
{
	const int error = errno;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal; /* the test itself minds no capture */
	int now = -1;

	CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	CUDA(cudaGetDevice(&now));
	gives(error, ODD, call, line);
	gives((int)mode, (int)cudaStreamCaptureModeGlobal, call, line);
	gives(now, device, call, line);
}

#define SAME(on, call) \
	do { \
		cudaStreamCaptureMode global_ = cudaStreamCaptureModeGlobal; \
		ncclResult_t r_; \
		CUDA(cudaSetDevice(on)); \
		CUDA(cudaThreadExchangeStreamCaptureMode(&global_)); \
		errno = ODD; \
		r_ = (call); \
		same(on, #call, __LINE__); \
		OK(r_); \
	} while (0)

static sem_t begun, over;

static void *capture(void *valid)
{
	cudaStream_t side;
	cudaGraph_t graph;

	CUDA(cudaSetDevice(own_device));
	CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
	OK(ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, side));
	sem_post(&begun);
	sem_wait(&over);
	*(int *)valid = cudaStreamEndCapture(side, &graph) == cudaSuccess;
	return NULL;
}

void plan_untouched(void)
{
	const ncclUniqueId first = id_of("first", 0), next = id_of("second", 0);
	int devices, other, valid = 0, count;
	ncclComm_t half, second;
	ncclResult_t state;
	pthread_t thread;
	void *memory;

	CUDA(cudaGetDeviceCount(&devices));
	other = (own_device + 1) % devices;
	sem_init(&begun, 0, 0);
	sem_init(&over, 0, 0);
	SAME(own_device, ncclCommInitRank(&comm, size, first, rank));
	SAME(own_device, ncclCommInitRank(&second, size, next, rank));
	pthread_create(&thread, NULL, capture, &valid);
	sem_wait(&begun);
	SAME(other, ncclAllReduce(in, to(), 40, ncclFloat32, ncclSum, comm, stream));
	SAME(other, ncclGroupStart());
	SAME(other, ncclSend(in, 40, ncclFloat32, (rank + 1) % size, comm, stream));
	SAME(other, ncclRecv(to(), 40, ncclFloat32, (rank + size - 1) % size, comm, stream));
	SAME(other, ncclGroupEnd());
	SAME(other, ncclCommSplit(comm, 0, rank, &half, NULL));
	SAME(other, ncclCommGetAsyncError(comm, &state));
	SAME(other, ncclCommCount(comm, &count));
	SAME(own_device, ncclMemAlloc(&memory, 4096));
	SAME(own_device, ncclMemFree(memory));
	sem_post(&over);
	pthread_join(thread, NULL);
	GIVES(1, valid);
	SAME(other, ncclCommFinalize(half));
	SAME(other, ncclCommRevoke(second, 0));
	SAME(other, ncclCommDestroy(half));
	SAME(other, ncclCommAbort(second));
	SAME(other, ncclCommDestroy(comm));
}
