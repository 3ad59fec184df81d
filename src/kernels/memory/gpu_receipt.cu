/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receipts: what an operation has left, for a host that does not wait for the stream. The stream copies the outcome to
 * pinned memory behind the operation's kernel, then comes to an event. Outcomes of messages are their own: the kernel
 * stores each of them in its receipt. In a group of calls a receipt is there before the launch: it is promised.
 */
#include "gpu_state.cuh"

#include <pthread.h>

enum state { FREE, HELD, DROPPED /* given back, and the stream may still write there */ };

struct cvy_gpu_receipt {
	enum state state;
	int posted;
	int promised; /* a launch that is to come will post it */
	int lost;     /* no event tells when the stream has passed: it is never taken again */
	cudaEvent_t event;
	union {
		struct cvy_gpu_status *outcome;
		struct cvy_gpu_answer *answer;
	};
};

static_assert(sizeof(struct cvy_gpu_status) <= CVY_GPU_RECEIPT_LINE, "one outcome has a line for itself");

struct cvy_gpu_receipts {
	pthread_mutex_t lock; /* of all states */
	uint8_t *outcomes;    /* pinned */
	uint8_t *seen;	      /* the same, as kernels see it */
	struct cvy_gpu_receipt receipt[CVY_GPU_RECEIPTS];
};

int cvy_gpu_receipts_open(struct cvy_gpu *gpu)
{
	struct cvy_gpu_receipts *all = (struct cvy_gpu_receipts *)calloc(1, sizeof(*all));
	int err;

	if (!all)
		return fail(gpu, COVEY_ERR_NOMEM, "no memory for receipts");
	pthread_mutex_init(&all->lock, NULL);
	gpu->receipts = all;
	err = check(gpu,
		    cudaHostAlloc((void **)&all->outcomes, (size_t)CVY_GPU_RECEIPTS * CVY_GPU_RECEIPT_LINE,
				  cudaHostAllocMapped),
		    "pinned memory");
	if (!err)
		err = check(gpu, cudaHostGetDevicePointer((void **)&all->seen, all->outcomes, 0), "pinned memory");
	for (int i = 0; !err && i < CVY_GPU_RECEIPTS; i++)
		all->receipt[i].outcome = (struct cvy_gpu_status *)(all->outcomes + (size_t)i * CVY_GPU_RECEIPT_LINE);
	return err;
}

void cvy_gpu_receipts_close(struct cvy_gpu *gpu)
{
	struct cvy_gpu_receipts *all = gpu->receipts;

	if (!all)
		return;
	for (int i = 0; i < CVY_GPU_RECEIPTS; i++)
		if (all->receipt[i].event)
			cudaEventDestroy(all->receipt[i].event);
	cudaFreeHost(all->outcomes);
	pthread_mutex_destroy(&all->lock);
	free(all);
	gpu->receipts = NULL;
}

uint8_t *cvy_gpu_receipts_at(struct cvy_gpu *gpu)
{
	return gpu->receipts->seen;
}

/* Has the stream come past it? */
static cudaError_t look(const struct cvy_gpu_receipt *r)
{
	return __atomic_load_n(&r->promised, __ATOMIC_ACQUIRE) ? cudaErrorNotReady : cudaEventQuery(r->event);
}

static struct cvy_gpu_receipt *find(struct cvy_gpu_receipts *all)
{
	struct cvy_gpu_receipt *found = NULL;

	pthread_mutex_lock(&all->lock);
	for (int i = 0; i < CVY_GPU_RECEIPTS && !found; i++) {
		struct cvy_gpu_receipt *r = &all->receipt[i];

		if (r->state == FREE || (r->state == DROPPED && !r->lost && look(r) != cudaErrorNotReady))
			found = r;
	}
	if (found) {
		found->state = HELD;
		found->posted = 0;
	}
	pthread_mutex_unlock(&all->lock);
	return found;
}

int cvy_gpu_receipt(struct cvy_gpu *gpu, struct cvy_gpu_receipt **out)
{
	struct cvy_gpu_receipt *r = find(gpu->receipts);
	int err = 0;

	if (!r)
		return fail(gpu, COVEY_ERR_NOMEM, "%d works of device operations are not freed; there may be no more",
			    CVY_GPU_RECEIPTS);
	if (!r->event)
		err = check(gpu, cudaEventCreateWithFlags(&r->event, cudaEventDisableTiming), "an event");
	if (err)
		cvy_gpu_receipt_free(gpu, r);
	else
		*out = r;
	return err;
}

/* Behind what was launched, which writes to the receipt. */
static int record(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct CUstream_st *stream, const char *what)
{
	int err = check(gpu, cudaEventRecord(r->event, stream), what);

	r->lost = err != 0;
	return err;
}

int cvy_gpu_receipt_post(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct CUstream_st *stream)
{
	int err = check(gpu,
			cudaMemcpyAsync(r->outcome, &gpu->control->status, sizeof(*r->outcome), cudaMemcpyDeviceToHost,
					stream),
			"the outcome");

	if (!err)
		err = record(gpu, r, stream, "an event behind the operation");
	r->posted = !err;
	return err;
}

int cvy_gpu_receipt_look(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct cvy_gpu_status *out)
{
	cudaError_t got = look(r);

	if (got == cudaErrorNotReady)
		return COVEY_ERR_AGAIN;
	if (got == cudaSuccess)
		*out = *r->outcome;
	return check(gpu, got, "an operation");
}

void cvy_gpu_receipt_free(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r)
{
	pthread_mutex_lock(&gpu->receipts->lock);
	r->state = r->posted || r->promised || r->lost ? DROPPED : FREE;
	pthread_mutex_unlock(&gpu->receipts->lock);
}

/* ---- of messages ---- */

int cvy_gpu_receipt_promise(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r)
{
	memset(r->answer, 0, sizeof(*r->answer));
	__atomic_store_n(&r->promised, 1, __ATOMIC_RELAXED);
	return (int)(r - gpu->receipts->receipt) + 1;
}

int cvy_gpu_receipt_promised(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct CUstream_st *stream, int err)
{
	if (!err)
		err = record(gpu, r, stream, "an event behind the message");
	if (err)
		r->answer->status = err;
	pthread_mutex_lock(&gpu->receipts->lock);
	r->posted = !err;
	__atomic_store_n(&r->promised, 0, __ATOMIC_RELEASE);
	if (err && !r->lost && r->state == DROPPED)
		r->state = FREE;
	pthread_mutex_unlock(&gpu->receipts->lock);
	return err;
}

int cvy_gpu_receipt_answer(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct cvy_gpu_answer *out)
{
	cudaError_t got = look(r);

	if (got == cudaErrorNotReady)
		return COVEY_ERR_AGAIN;
	if (got == cudaSuccess)
		*out = *r->answer;
	return check(gpu, got, "a message");
}
