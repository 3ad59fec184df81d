/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receipts: what an operation has left, for a host that does not wait for the stream. The stream copies the outcome to
 * pinned memory behind the operation's kernel, then comes to an event.
 */
#include "gpu_state.cuh"

#include <pthread.h>

#define LINE 128 /* bytes that one outcome has for itself */

enum state { FREE, HELD, DROPPED /* given back, and the stream may still write there */ };

struct cvy_gpu_receipt {
	enum state state;
	int posted;
	cudaEvent_t event;
	struct cvy_gpu_status *outcome;
};

struct cvy_gpu_receipts {
	pthread_mutex_t lock; /* of all states */
	uint8_t *outcomes;    /* pinned */
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
	err = check(gpu, cudaHostAlloc((void **)&all->outcomes, (size_t)CVY_GPU_RECEIPTS * LINE, 0), "pinned memory");
	for (int i = 0; !err && i < CVY_GPU_RECEIPTS; i++)
		all->receipt[i].outcome = (struct cvy_gpu_status *)(all->outcomes + (size_t)i * LINE);
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

/* Has the stream come past it? Another thread may be capturing a graph, which a plain question would spoil. */
static cudaError_t look(const struct cvy_gpu_receipt *r)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	cudaError_t got = cudaThreadExchangeStreamCaptureMode(&mode);

	if (got != cudaSuccess)
		return got;
	got = cudaEventQuery(r->event);
	cudaThreadExchangeStreamCaptureMode(&mode);
	return got;
}

static struct cvy_gpu_receipt *find(struct cvy_gpu_receipts *all)
{
	struct cvy_gpu_receipt *found = NULL;

	pthread_mutex_lock(&all->lock);
	for (int i = 0; i < CVY_GPU_RECEIPTS && !found; i++) {
		struct cvy_gpu_receipt *r = &all->receipt[i];

		if (r->state == FREE || (r->state == DROPPED && look(r) != cudaErrorNotReady))
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
	int was = gpu->device, err = 0;

	if (!r)
		return fail(gpu, COVEY_ERR_NOMEM, "%d works of device operations are not freed; there may be no more",
			    CVY_GPU_RECEIPTS);
	cudaGetDevice(&was);
	if (!r->event) {
		err = use(gpu);
		if (!err)
			err = check(gpu, cudaEventCreateWithFlags(&r->event, cudaEventDisableTiming), "an event");
	}
	if (was != gpu->device)
		cudaSetDevice(was);
	if (err)
		cvy_gpu_receipt_free(gpu, r);
	else
		*out = r;
	return err;
}

int cvy_gpu_receipt_post(struct cvy_gpu *gpu, struct cvy_gpu_receipt *r, struct CUstream_st *stream)
{
	int err = check(gpu,
			cudaMemcpyAsync(r->outcome, &gpu->control->status, sizeof(*r->outcome), cudaMemcpyDeviceToHost,
					stream),
			"the outcome");

	if (!err)
		err = check(gpu, cudaEventRecord(r->event, stream), "an event behind the operation");
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
	r->state = r->posted ? DROPPED : FREE;
	pthread_mutex_unlock(&gpu->receipts->lock);
}
