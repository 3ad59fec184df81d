/* SPDX-License-Identifier: Apache-2.0 */
/* Private to gpu*.cu: what is known of the device, and how its calls are made and checked. */
#ifndef CVY_GPU_STATE_CUH
#define CVY_GPU_STATE_CUH

#include "gpu.h"
#include "needs.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "covey.h"
#include "queue.h"
#include "queues_gpu.h"
#include "scope.cuh"
#include "table.cuh"

#define MAPPINGS ((size_t)CVY_GPU_MAPPINGS)
#define STAGE_BYTES CVY_GPU_STAGE_BYTES
#define ZERO_BYTES CVY_GPU_ZERO_BYTES

struct driver {
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*push)(CUcontext);
	CUresult (*pop)(CUcontext *);
	CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*unreserve)(CUdeviceptr, size_t);
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
	CUresult (*to_fd)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
	CUresult (*from_fd)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
	CUresult (*text)(CUresult, const char **);
};

struct cvy_ipc;
struct cvy_gpu_copies;
struct cvy_gpu_receipts;

struct cvy_gpu {
	int device;
	uint64_t late_cycles;
	int khz, processors;
	int shared;   /* bytes of shared memory that a CTA may have */
	int overlaps; /* kernels are compiled so that one may be launched while that before it ends */
	const struct cvy_gpu_memory *memory;
	CUdeviceptr at[CVY_GPU_PLACES][MAPPINGS]; /* what is mapped; 0: nothing is */
	struct driver driver;			  /* contexts; VMM */
	CUcontext context;			  /* the device's primary one */
	struct cvy_ipc *ipc;			  /* IPC, with its table on the device */
	uint64_t *places;
	CUdeviceptr in, out;				  /* addresses of all places */
	CUmemGenericAllocationHandle in_handle[MAPPINGS]; /* of this device; 0: none */
	CUdeviceptr window, windows;			  /* own registered memory; places of the others' */
	size_t window_bytes, window_stride;
	uint8_t *saved;
	struct cvy_gpu_control *control;
	struct cvy_gpu_mailbox *mailbox, *mailbox_device;
	struct cvy_queue *queues; /* MAPPINGS, by mapping */
	uint64_t *tickets;	  /* MAPPINGS * CVY_GPU_TICKETS */
	struct cvy_queue_memory reach;
	struct cvy_gpu_copies *copies; /* gpu_copy.cu; NULL: none are made */
	CUdeviceptr beyond,
		copied[MAPPINGS]; /* chunks at peers that are only copied to: addresses; what is mapped, 0: nothing */
	uint8_t *stage;		  /* pinned: what is copied to and from the device */
	uint8_t *zeros;		  /* pinned: what memory is cleared with */
	cudaStream_t stream;
	struct cvy_gpu_receipts *receipts;
	struct cvy_ep_spare *spares; /* memory of handles that are gone (ep.cu) */
	struct cvy_gpu_trace *trace; /* gpu_trace.cu; NULL: there is none */
	char why[240], name[300];
};

static inline int fail(struct cvy_gpu *gpu, int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(gpu->why, sizeof(gpu->why), format, args);
	va_end(args);
	return err;
}

static inline int check(struct cvy_gpu *gpu, cudaError_t got, const char *what)
{
	if (got == cudaSuccess)
		return 0;
	return fail(gpu, got == cudaErrorMemoryAllocation ? COVEY_ERR_NOMEM : COVEY_ERR_IO, "%s on device %d: %s", what,
		    gpu->device, cudaGetErrorString(got));
}

static inline int check_driver(struct cvy_gpu *gpu, CUresult got, const char *what)
{
	const char *text = NULL;

	if (got == CUDA_SUCCESS)
		return 0;
	gpu->driver.text(got, &text);
	return fail(gpu, got == CUDA_ERROR_OUT_OF_MEMORY ? COVEY_ERR_NOMEM : COVEY_ERR_IO, "%s on device %d: %s", what,
		    gpu->device, text ? text : "unknown error");
}

static inline int use(struct cvy_gpu *gpu)
{
	return check(gpu, cvy_gpu_use(gpu->device), "choosing the device");
}

static inline size_t place(int rank, int generation)
{
	return (size_t)rank * CVY_GPU_GENERATIONS + (size_t)generation;
}

static inline int copy(struct cvy_gpu *gpu, void *to, const void *from, size_t bytes, const char *what)
{
	int err = check(gpu, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu->stream), what);

	return err ? err : check(gpu, cudaStreamSynchronize(gpu->stream), what);
}

/*
 * Zeroes memory by copies from the host: a memset is a kernel, and finds no processor while all hold CTAs that are parked
 * until this very memory is there.
 */
static inline int cvy_gpu_clear(struct cvy_gpu *gpu, CUdeviceptr at, size_t bytes, const char *what)
{
	cudaError_t got = cudaSuccess;

	for (size_t i = 0; i < bytes && got == cudaSuccess; i += ZERO_BYTES)
		got = cudaMemcpyAsync((void *)(at + i), gpu->zeros, bytes - i < ZERO_BYTES ? bytes - i : ZERO_BYTES,
				      cudaMemcpyHostToDevice, gpu->stream);
	return check(gpu, got == cudaSuccess ? cudaStreamSynchronize(gpu->stream) : got, what);
}

/*
 * Launches beside the kernel that is before it in the stream: CTAs may start when all CTAs of that one have said that they
 * wait for nobody (cvy_let_next_begin), or have ended, and begin with cvy_wait_for_stream(). gpu.cu
 */
cudaError_t cvy_gpu_launch_kernel(const struct cvy_gpu *gpu, const struct cvy_gpu_entry *kernel, int ctas, int threads,
				  void **args, size_t room, cudaStream_t stream);
/* As cvy_gpu_launch_kernel(), of a kernel that is no operation. */
template <auto KERNEL, typename ARGS>
static inline int cvy_gpu_launch_beside(struct cvy_gpu *gpu, int ctas, int threads, ARGS args, cudaStream_t stream,
					const char *what)
{
	void *all[] = { &args };

	return check(gpu, cvy_gpu_launch_kernel(gpu, &cvy_listed<KERNEL>, ctas, threads, all, 0, stream), what);
}
const struct cvy_gpu_entry *cvy_gpu_kernel(const struct cvy_gpu_call *call);  /* collectives.cu */
const struct cvy_gpu_entry *cvy_ep_bulk_kernel(const struct cvy_ep_args *a);  /* ep_bulk.cu */
const struct cvy_gpu_entry *cvy_ep_close_kernel(const struct cvy_ep_args *a); /* ep_close.cu: of a dispatch */
const struct cvy_gpu_entry *cvy_ep_hops_kernel(const struct cvy_ep_args *a);  /* ep_hops.cu */
const struct cvy_gpu_entry *cvy_ep_ints_kernel(const struct cvy_ep_args *a);  /* ep_ints.cu */
struct cvy_ep_masking;
struct cvy_ep_outputs;
int cvy_ep_mask(struct cvy_gpu *gpu, const struct cvy_ep_masking *a, struct CUstream_st *stream);
int cvy_ep_write_outputs(struct cvy_gpu *gpu, const struct cvy_ep_outputs *o, struct CUstream_st *stream);
void cvy_ep_free_spares(struct cvy_gpu *gpu);		     /* when nothing runs */
extern const struct cvy_gpu_memory cvy_gpu_vmm, cvy_gpu_ipc; /* gpu_vmm.cu, gpu_ipc.cu */
int cvy_gpu_find_context(struct cvy_gpu *gpu);
int cvy_gpu_has_vmm(struct cvy_gpu *gpu); /* or says what it lacks (why) */
/* gpu_far.cu: of struct cvy_gpu_ops */
int cvy_gpu_reach(struct cvy_gpu *gpu, struct cvy_queue_memory *out);
int cvy_gpu_far_chunk(struct cvy_gpu *gpu, int rank, int generation, int out, void **host);
int cvy_gpu_queue(struct cvy_gpu *gpu, int rank, int generation, const struct cvy_queue *queue, int wait_ms);

/* gpu_trace.cu: if a trace is asked for; and writes it, when nothing runs */
int cvy_gpu_trace_open(struct cvy_gpu *gpu);
void cvy_gpu_trace_close(struct cvy_gpu *gpu);

/* gpu_vmm.cu: memory of this device where the chunk at @rank would be mapped, and that chunk, @fd, beyond */
int cvy_gpu_stand_in(struct cvy_gpu *gpu, int rank, int generation, int fd);
/* gpu_copy.cu: of struct cvy_gpu_ops */
int cvy_gpu_copies_open(struct cvy_gpu *gpu);
void cvy_gpu_copies_close(struct cvy_gpu *gpu);
int cvy_gpu_copies(struct cvy_gpu *gpu, int rank, int generation, int fd, struct cvy_copies *out);
void cvy_gpu_copies_end(struct cvy_gpu *gpu, int rank);
/* gpu_receipt.cu: and of struct cvy_gpu_ops */
int cvy_gpu_receipts_open(struct cvy_gpu *gpu);
void cvy_gpu_receipts_close(struct cvy_gpu *gpu);
int cvy_gpu_receipt(struct cvy_gpu *gpu, struct cvy_gpu_receipt **out);
int cvy_gpu_receipt_post(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream);
int cvy_gpu_receipt_look(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct cvy_gpu_status *out);
void cvy_gpu_receipt_free(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt);
uint8_t *cvy_gpu_receipts_at(struct cvy_gpu *gpu); /* the first, as kernels see it */
/* the same: and of struct cvy_gpu_message_ops */
int cvy_gpu_receipt_promise(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt);
int cvy_gpu_receipt_promised(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream, int err);
int cvy_gpu_receipt_answer(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct cvy_gpu_answer *out);
/* gpu.cu, gpu_aside.cu: of struct cvy_gpu_ops */
int cvy_gpu_launch(struct cvy_gpu *gpu, struct cvy_gpu_call *call, struct CUstream_st *stream);
int cvy_gpu_launch_aside(struct cvy_gpu *gpu, struct cvy_gpu_call *call, uint64_t bytes, struct CUstream_st *stream);

#endif
