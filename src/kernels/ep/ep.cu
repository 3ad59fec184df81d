/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of dispatch and combine, and the memory of a handle on its device: tables and words per lane. */
#include <cuda_runtime.h>
#include <stdlib.h>

#include "covey.h"
#include "ep_kernel.cuh"

template <int ONCE> static const struct cvy_gpu_entry *kernel_of(const struct cvy_ep_args *a)
{
	if (a->hops)
		return cvy_ep_hops_kernel(a);
	if (a->call.kind == CVY_GPU_DISPATCH && a->close)
		return cvy_ep_close_kernel(a);
	if (a->form.bulk)
		return cvy_ep_bulk_kernel(a);
	if (cvy_ep_in_ints(a->call.kind == CVY_GPU_DISPATCH ? a->code : a->back))
		return cvy_ep_ints_kernel(a);
	if (a->call.kind == CVY_GPU_DISPATCH)
		return cvy_ep_phase_of<cvy_ep_dispatch<ONCE>>(a);
	return a->phases != CVY_EP_SEND && cvy_ep_begins(a) ? &cvy_listed<cvy_ep_operation<cvy_ep_combine<ONCE, 1>>>
							    : cvy_ep_phase_of<cvy_ep_combine<ONCE, 0>>(a);
}

/* 0 if the device has so much shared memory for a CTA. */
static int check_shared(struct cvy_gpu *gpu, const struct cvy_ep_args *a, size_t bytes)
{
	if (bytes <= (size_t)gpu->shared)
		return 0;
	return fail(gpu, COVEY_ERR_UNSUPPORTED,
		    "a %s of hidden %d, top_k %d and %d experts in %d lanes takes %zu bytes of shared memory, and the "
		    "device has %d for a CTA: lay the handle out with more lanes, or with fewer experts on a rank",
		    a->call.kind == CVY_GPU_DISPATCH ? "dispatch" : "combine", a->hidden, a->top_k, a->experts,
		    a->form.lanes, bytes, gpu->shared);
}

static int ep_launch(struct cvy_gpu *gpu, struct cvy_ep_args *a, struct CUstream_st *stream)
{
	const struct cvy_gpu_entry *kernel = a->once ? kernel_of<1>(a) : kernel_of<0>(a);
	void *args[] = { a };
	size_t room = a->call.kind == CVY_GPU_DISPATCH ? cvy_ep_dispatch_room(a) : cvy_ep_combine_room(a);
	const size_t all = room + (a->hops ? CVY_EP_STATIC_HOPS : CVY_EP_STATIC);
	cudaError_t got = cudaSuccess;
	int err = check_shared(gpu, a, all);

	if (err)
		return err;
	a->call.lanes = a->form.lanes;
	a->call.steps = a->form.steps;
	a->call.threads = CVY_EP_THREADS;
	a->call.rows = 1;
	a->call.root = -1;
	a->size_mask = cvy_ranks_up_to(a->call.size);
	a->wide = a->call.kind == CVY_GPU_DISPATCH && a->ids64 && a->places <= 1 && !cvy_ep_near_ids(a);
	a->timeout_cycles = a->timeout_ms > 0 ? cvy_gpu_cycles(gpu, a->timeout_ms) : 0;
	cvy_gpu_begin(gpu, &a->call);
	if (all > (48 << 10)) /* more than kernels have unasked */
		got = cudaFuncSetAttribute(kernel->at, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room);
	if (got == cudaSuccess)
		got = cvy_gpu_launch_kernel(gpu, kernel, a->call.lanes, CVY_EP_THREADS, args, room, stream);
	return check(gpu, got, a->call.kind == CVY_GPU_DISPATCH ? "launching a dispatch" : "launching a combine");
}

/* Memory of a handle that is gone. To free it would wait for all that runs on the device, which may wait for a peer. */
struct cvy_ep_spare {
	struct cvy_ep_spare *next;
	struct cvy_ep_state *state;
	size_t bytes;
};

/* One of @bytes; NULL: there is none. */
static struct cvy_ep_state *take_spare(struct cvy_gpu *gpu, size_t bytes)
{
	for (struct cvy_ep_spare **at = &gpu->spares; *at; at = &(*at)->next) {
		struct cvy_ep_spare *spare = *at;
		struct cvy_ep_state *state = spare->state;

		if (spare->bytes != bytes)
			continue;
		*at = spare->next;
		free(spare);
		return state;
	}
	return NULL;
}

void cvy_ep_free_spares(struct cvy_gpu *gpu)
{
	while (gpu->spares)
		cudaFree(take_spare(gpu, gpu->spares->bytes));
}

/* Operations may be under way on the device, and wait for this rank: so nothing here is a kernel. */
static int ep_state(struct cvy_gpu *gpu, const struct cvy_ep_tables *tables, size_t behind, struct cvy_ep_state **state)
{
	const size_t bytes = sizeof(**state) + behind;
	int err = use(gpu);

	if (!err && !*state)
		*state = take_spare(gpu, bytes);
	if (!err && !*state)
		err = check(gpu, cudaMalloc((void **)state, bytes), "memory for a handle");
	if (!err)
		err = cvy_gpu_clear(gpu, (CUdeviceptr)*state, sizeof(**state), "memory for a handle");
	if (!err)
		err = copy(gpu, &(*state)->tables, tables, sizeof(*tables), "the tables of a handle");
	return err;
}

static void ep_state_free(struct cvy_gpu *gpu, struct cvy_ep_state *state, size_t behind)
{
	struct cvy_ep_spare *spare = state ? (struct cvy_ep_spare *)malloc(sizeof(*spare)) : NULL;

	if (!spare) /* without memory for a note of it it is lost until the process ends */
		return;
	spare->state = state;
	spare->bytes = sizeof(*state) + behind;
	spare->next = gpu->spares;
	gpu->spares = spare;
}

extern "C" __attribute__((visibility("default")))
const struct cvy_gpu_ep_ops cvy_gpu_ep_ops = { CVY_GPU_ABI, ep_state,	 ep_state_free,
					       ep_launch,   cvy_ep_mask, cvy_ep_write_outputs };
