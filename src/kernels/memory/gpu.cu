/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One device as the rest of covey uses it (gpu.h): the control page, launches, repair. How peers come to map its memory is
 * other files' (gpu_vmm.cu, gpu_ipc.cu). Copies go by a stream of their own, and never wait for kernels.
 */
#include "gpu_state.cuh"

#include <errno.h>
#include <unistd.h>

#include "shape.h"

const struct cvy_gpu_entry *cvy_kernels;

/* ---- registered memory ---- */

/* Where in the own window @bytes bytes at @at stand, plus 1; 0: they do not, or not at a packet's boundary. */
static uint64_t lent(const struct cvy_gpu *gpu, const void *at, uint64_t bytes)
{
	uint64_t offset = (uint64_t)(uintptr_t)at - gpu->window;

	if ((CUdeviceptr)(uintptr_t)at < gpu->window || offset >= gpu->window_bytes ||
	    bytes > gpu->window_bytes - offset || offset % CVY_GPU_PACKET)
		return 0;
	return offset + 1;
}

/* Tells a kernel of a large operation where registered buffers are. */
static void lend(const struct cvy_gpu *gpu, struct cvy_gpu_call *call)
{
	uint64_t blocks = (uint64_t)call->size;

	call->windows = (uint8_t *)gpu->windows;
	call->window_stride = gpu->window_stride;
	call->lent_send = lent(gpu, call->send, call->send_stride ? call->bytes * blocks : call->bytes);
	call->lent_recv = lent(gpu, call->recv,
			       call->kind == CVY_GPU_ALLGATHER || call->kind == CVY_GPU_ALLTOALL ? call->bytes * blocks
												 : call->bytes);
	if (((uintptr_t)call->send | (uintptr_t)call->recv) % CVY_GPU_PACKET)
		call->lent_send = 0;
}

/* ---- the control page ---- */

static int gpu_gate(struct cvy_gpu *gpu, uint8_t gate)
{
	int err = use(gpu);

	if (err)
		return err;
	gpu->stage[0] = gate;
	return copy(gpu, (uint8_t *)&gpu->control->entered + CVY_GPU_GATE_SHIFT / 8, gpu->stage, 1, "the gate");
}

static int gpu_counters(struct cvy_gpu *gpu, struct cvy_gpu_counters *out, int all)
{
	struct cvy_gpu_control *d = gpu->control, *h = (struct cvy_gpu_control *)gpu->stage;
	int err = use(gpu);

	if (!err)
		err = copy(gpu, &h->finished, &d->finished, 3 * sizeof(uint64_t), "the counters");
	if (!err)
		err = copy(gpu, &h->entered, &d->entered, sizeof(uint64_t), "the counters");
	if (!err && all)
		err = copy(gpu, &h->parked, &d->parked, sizeof(*d) - offsetof(struct cvy_gpu_control, parked),
			   "the lanes");
	if (err)
		return err;
	out->gate = (uint8_t)(h->entered >> CVY_GPU_GATE_SHIFT);
	out->entered = h->entered & CVY_GPU_COUNT_MASK;
	out->finished = h->finished;
	out->stopped = h->stopped;
	out->guests = h->guests;
	if (all) {
		out->parked = h->parked;
		out->status = h->status;
		memcpy(out->lane, h->lane, sizeof(out->lane));
		memcpy(out->past, h->past, sizeof(out->past));
		out->admitted = h->admitted;
	}
	return 0;
}

static int gpu_words(struct cvy_gpu *gpu, const struct cvy_gpu_lane *lanes, const struct cvy_gpu_roll *roll,
		     const struct cvy_gpu_verdict *verdict)
{
	struct cvy_gpu_control *d = gpu->control, *h = (struct cvy_gpu_control *)gpu->stage;
	int err = use(gpu);

	if (lanes)
		memcpy(h->lane, lanes, sizeof(h->lane));
	h->verdict = *verdict;
	if (!err && gpu->window)
		err = copy(gpu, (void *)(gpu->window + CVY_GPU_WINDOW_EPOCH), &h->verdict.epoch, sizeof(uint32_t),
			   "the epoch of the window");
	if (!err && roll) {
		h->roll = *roll;
		err = copy(gpu, &d->roll, &h->roll, sizeof(h->roll), "the roll");
	}
	if (!err && lanes)
		err = copy(gpu, d->lane, h->lane, sizeof(h->lane), "the lanes");
	if (!err) /* its epoch last: readers take it twice */
		err = copy(gpu, &d->verdict.ended, &h->verdict.ended,
			   sizeof(h->verdict) - offsetof(struct cvy_gpu_verdict, ended), "the verdict");
	if (!err)
		err = copy(gpu, &d->verdict.epoch, &h->verdict.epoch, sizeof(uint32_t), "the verdict");
	return err;
}

/* ---- repair ---- */

static int gpu_read(struct cvy_gpu *gpu, int rank, int generation, size_t at, void *to, size_t bytes)
{
	CUdeviceptr chunk = gpu->at[CVY_GPU_IN][place(rank, generation)];
	int err = use(gpu);

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return fail(gpu, COVEY_ERR_INVAL, "no chunk of rank %d", rank);
	return err ? err : copy(gpu, to, (void *)(chunk + at), bytes, "reading a chunk");
}

static int gpu_write(struct cvy_gpu *gpu, int rank, int generation, size_t at, const void *from, size_t bytes)
{
	CUdeviceptr chunk = gpu->at[CVY_GPU_IN][place(rank, generation)];
	int err = use(gpu);

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return fail(gpu, COVEY_ERR_INVAL, "no chunk of rank %d", rank);
	return err ? err : copy(gpu, (void *)(chunk + at), from, bytes, "writing a chunk");
}

/* ---- launches ---- */

/* After a kernel has failed no question is answered: the launch then returns the error. */
static int gpu_is_device(struct cvy_gpu *gpu, const void *at)
{
	struct cudaPointerAttributes a;

	if (cudaPointerGetAttributes(&a, at) != cudaSuccess)
		return 1;
	return a.type != cudaMemoryTypeDevice ? 0 : a.device == gpu->device ? 1 : 2;
}

static int gpu_capturing(struct CUstream_st *stream)
{
	cudaStreamCaptureStatus status;

	return cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

void cvy_gpu_begin(struct cvy_gpu *gpu, struct cvy_gpu_call *call)
{
	call->control = gpu->control;
	call->mailbox = gpu->mailbox_device;
	call->in = (uint8_t *)gpu->in;
	call->out = (uint8_t *)gpu->out;
	call->places = gpu->places;
	call->plain = gpu->places ? CVY_GPU_LONG_WAY : call->plain;
	call->saved = gpu->saved;
	call->queues = gpu->queues;
	call->tickets = gpu->tickets;
	call->late_cycles = gpu->late_cycles;
	call->quanta = call->lanes ? CVY_GPU_QUANTA / (unsigned)call->lanes : 0;
}

uint64_t cvy_gpu_cycles(const struct cvy_gpu *gpu, int ms)
{
	return (uint64_t)ms * (uint64_t)gpu->khz;
}

cudaError_t cvy_gpu_launch_kernel(const struct cvy_gpu *gpu, const struct cvy_gpu_entry *kernel, int ctas, int threads,
				  void **args, size_t room, cudaStream_t stream)
{
	cudaLaunchAttribute beside = {};
	const cudaLaunchConfig_t config = { dim3((unsigned)ctas),   dim3((unsigned)threads), room, stream, &beside,
					    gpu->overlaps ? 1u : 0u };

	beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	beside.val.programmaticStreamSerializationAllowed = 1;
	return cudaLaunchKernelExC(&config, kernel->at, args);
}

int cvy_gpu_launch(struct cvy_gpu *gpu, struct cvy_gpu_call *call, struct CUstream_st *stream)
{
	void *args[] = { call };

	cvy_gpu_begin(gpu, call);
	if (gpu->window_bytes && call->pulls)
		lend(gpu, call);
	return check(gpu, cvy_gpu_launch_kernel(gpu, cvy_gpu_kernel(call), call->lanes, call->threads, args, 0, stream),
		     "launching an operation");
}

/*
 * While any thread captures a graph, to wait for the device is refused, and ends that capture. To free memory waits for the
 * same, but holds up the copies of all threads, for which kernels of other groups may wait.
 */
static int gpu_synchronise(struct cvy_gpu *gpu, int ending)
{
	cudaError_t got = cudaSuccess;
	void *none = NULL;
	int err = use(gpu);

	if (!err)
		got = cudaDeviceSynchronize();
	if (got == cudaErrorStreamCaptureUnsupported) {
		cudaGetLastError();
		if (!ending)
			return fail(gpu, COVEY_ERR_AGAIN, "a graph is being captured");
		got = cudaMalloc(&none, 1);
		if (got == cudaSuccess)
			got = cudaFree(none);
	}
	if (!err)
		err = check(gpu, got, "waiting for the device");
	if (!err && gpu->memory->idle)
		gpu->memory->idle(gpu);
	return err;
}

static int gpu_status_read(struct cvy_gpu *gpu, struct cvy_gpu_status *to)
{
	int err = use(gpu);

	return err ? err : copy(gpu, to, &gpu->control->status, sizeof(*to), "the status");
}

static void gpu_peers(struct cvy_gpu *gpu, struct covey_device_peers *out)
{
	out->window = (void *)gpu->window;
	out->window_bytes = gpu->window_bytes;
	out->guests = &gpu->control->guests;
	out->gate = &gpu->control->entered;
	out->words = (const uint64_t *)&gpu->control->lane[0];
	out->ended = (const uint64_t *)&gpu->control->verdict; /* its upper half */
	out->since = (const uint64_t *)gpu->control->roll.since;
	out->table = gpu->places ? gpu->places + CVY_GPU_WINDOW * CVY_GPU_MAPPINGS : NULL;
	out->windows = (uint8_t *)gpu->windows;
	out->stride = gpu->window_stride;
	out->far = (const uint8_t *)gpu->queues;
	out->far_bytes = sizeof(struct cvy_queue);
}

static const struct cvy_gpu_status *gpu_status(struct cvy_gpu *gpu)
{
	return &gpu->control->status;
}

static struct cvy_gpu_mailbox *gpu_mailbox(struct cvy_gpu *gpu)
{
	return gpu->mailbox;
}

static const char *gpu_why(const struct cvy_gpu *gpu)
{
	return gpu->why;
}

static const char *gpu_describe(const struct cvy_gpu *gpu)
{
	return gpu->name;
}

static int gpu_memory(const struct cvy_gpu *gpu)
{
	return gpu->memory == &cvy_gpu_ipc ? COVEY_DEVICE_MEMORY_IPC : COVEY_DEVICE_MEMORY_VMM;
}

static const struct cvy_gpu_memory *gpu_mapped(const struct cvy_gpu *gpu)
{
	return gpu->memory;
}

/* ---- threads of the application ---- */

/*
 * The context is pushed and popped: to set the device that the thread had would make a context there, if it has none.
 */
static void gpu_enter(struct cvy_gpu *gpu, struct cvy_gpu_scope *had)
{
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

	had->error = errno;
	had->pushed = gpu->context && gpu->driver.push(gpu->context) == CUDA_SUCCESS;
	cudaThreadExchangeStreamCaptureMode(&mode);
	had->capture = mode;
}

static void gpu_leave(struct cvy_gpu *gpu, const struct cvy_gpu_scope *had)
{
	cudaStreamCaptureMode mode = (cudaStreamCaptureMode)had->capture;
	CUcontext context;

	cudaThreadExchangeStreamCaptureMode(&mode);
	if (had->pushed)
		gpu->driver.pop(&context);
	errno = had->error;
}

/* ---- open and close ---- */

static int allocate(struct cvy_gpu *gpu)
{
	const uint64_t closed = (uint64_t)CVY_GPU_GATE_CLOSED(0) << CVY_GPU_GATE_SHIFT;
	int least, most;
	int err = check(gpu, cudaDeviceGetStreamPriorityRange(&least, &most), "the streams");

	if (!err)
		err = check(gpu, cudaStreamCreateWithPriority(&gpu->stream, cudaStreamNonBlocking, most), "a stream");
	if (!err)
		err = check(gpu, cudaMalloc((void **)&gpu->control, sizeof(*gpu->control)), "the control page");
	if (!err)
		err = check(gpu, cudaMalloc((void **)&gpu->queues, CVY_GPU_QUEUES_BYTES), "a table of queues");
	if (!err)
		err = check(gpu, cudaMemsetAsync(gpu->queues, 0, CVY_GPU_QUEUES_BYTES, gpu->stream),
			    "a table of queues");
	if (!err)
		err = check(gpu, cudaMalloc((void **)&gpu->tickets, CVY_GPU_TICKETS_BYTES), "a table of tickets");
	if (!err)
		err = check(gpu, cudaMemsetAsync(gpu->tickets, 0, CVY_GPU_TICKETS_BYTES, gpu->stream),
			    "a table of tickets");
	if (!err)
		err = check(gpu, cudaMalloc((void **)&gpu->saved, CVY_GPU_CHUNK), "room for inputs in place");
	if (!err)
		err = check(gpu, cudaHostAlloc((void **)&gpu->mailbox, sizeof(*gpu->mailbox), cudaHostAllocMapped),
			    "the mailbox");
	if (!err)
		err = check(gpu, cudaHostGetDevicePointer((void **)&gpu->mailbox_device, gpu->mailbox, 0),
			    "the mailbox");
	if (!err)
		err = check(gpu, cudaHostAlloc((void **)&gpu->stage, STAGE_BYTES, 0), "pinned memory");
	if (!err)
		err = check(gpu, cudaHostAlloc((void **)&gpu->zeros, ZERO_BYTES, 0), "pinned memory");
	if (err)
		return err;
	memset(gpu->zeros, 0, ZERO_BYTES);
	memset(gpu->mailbox, 0, sizeof(*gpu->mailbox));
	memset(gpu->stage, 0, sizeof(*gpu->control));
	((struct cvy_gpu_control *)gpu->stage)->entered = closed;
	return copy(gpu, gpu->control, gpu->stage, sizeof(*gpu->control), "the control page");
}

static void gpu_close(struct cvy_gpu *gpu)
{
	struct cvy_gpu_verdict end = {};
	struct cvy_gpu_scope had;

	if (!gpu)
		return;
	gpu_enter(gpu, &had);
	end.epoch = UINT32_MAX;
	end.ended = COVEY_ERR_CLOSED;
	if (gpu->control && gpu->stage && gpu->stream) {
		gpu_words(gpu, NULL, NULL, &end); /* parked CTAs leave */
		gpu_gate(gpu, CVY_GPU_GATE_CLOSED(0));
		gpu_synchronise(gpu, 1);
	}
	cvy_gpu_trace_close(gpu);
	cvy_gpu_copies_close(gpu);
	cvy_gpu_receipts_close(gpu);
	if (gpu->memory)
		gpu->memory->close(gpu);
	cvy_ep_free_spares(gpu);
	cudaFree(gpu->control);
	if (gpu->reach.ctx)
		cvy_gpu_queue_memory_close(&gpu->reach);
	cudaFree(gpu->queues);
	cudaFree(gpu->tickets);
	cudaFree(gpu->saved);
	cudaFreeHost(gpu->mailbox);
	cudaFreeHost(gpu->stage);
	cudaFreeHost(gpu->zeros);
	if (gpu->stream)
		cudaStreamDestroy(gpu->stream);
	gpu_leave(gpu, &had);
	free(gpu);
}

static int describe(struct cvy_gpu *gpu, int late_ms)
{
	struct cudaDeviceProp prop;
	int khz = 0;
	int err = check(gpu, cudaGetDeviceProperties(&prop, gpu->device), "the device's properties");

	if (!err)
		err = check(gpu, cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, gpu->device), "the device's clock");
	if (!err)
		err = check(gpu, cudaDeviceGetAttribute(&gpu->processors, cudaDevAttrMultiProcessorCount, gpu->device),
			    "the device's processors");
	if (!err)
		err = check(gpu,
			    cudaDeviceGetAttribute(&gpu->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu->device),
			    "the device's shared memory");
	if (err)
		return err;
	snprintf(gpu->name, sizeof(gpu->name), "%.100s, device %d, %02x:%02x", prop.name, gpu->device, prop.pciBusID,
		 prop.pciDeviceID);
	if (prop.major < 7)
		return fail(gpu, COVEY_ERR_UNSUPPORTED, "%s: compute capability 7.0 or later is needed, this has %d.%d",
			    gpu->name, prop.major, prop.minor);
	gpu->khz = khz;
	gpu->late_cycles = late_ms > 0 ? (uint64_t)late_ms * (uint64_t)khz : 0;
	return 0;
}

/* A kernel that is launched beside another waits for it (cvy_wait_for_stream), where it was compiled for what has the instruction. */
static int choose_overlap(struct cvy_gpu *gpu)
{
	const char *asked = getenv("COVEY_DEVICE_OVERLAP");
	struct cudaFuncAttributes how = {};

	if (asked && strcmp(asked, "0") != 0 && strcmp(asked, "1") != 0)
		return fail(gpu, COVEY_ERR_INVAL, "COVEY_DEVICE_OVERLAP is \"%.40s\": it must be 0 or 1", asked);
	gpu->overlaps = (!asked || *asked == '1') && cudaFuncGetAttributes(&how, cvy_kernels->at) == cudaSuccess &&
			how.ptxVersion >= 90;
	return 0;
}

/* VMM where it is there, and IPC was not asked for. */
static int choose_memory(struct cvy_gpu *gpu, int asked)
{
	size_t n = strlen(gpu->name), room = sizeof(gpu->name) - n;
	int has = asked != COVEY_DEVICE_MEMORY_IPC && cvy_gpu_has_vmm(gpu);

	if (asked == COVEY_DEVICE_MEMORY_VMM && !has)
		return COVEY_ERR_UNSUPPORTED;
	gpu->memory = has ? &cvy_gpu_vmm : &cvy_gpu_ipc;
	if (asked == COVEY_DEVICE_MEMORY_IPC)
		snprintf(gpu->name + n, room, "; memory by CUDA IPC, as asked for");
	else if (!has)
		snprintf(gpu->name + n, room, "; memory by CUDA IPC, since %s", gpu->why);
	return 0;
}

/*
 * Kernels are loaded, and threads have the stacks that they take. To give them larger ones the driver waits until the device is idle:
 * at the first launch that needs it, while what runs may wait for that launch, or for a copy that waits for it.
 */
static int load(struct cvy_gpu *gpu)
{
	struct cudaFuncAttributes kernel = {};
	size_t stack = 0, has = 0;
	int err = 0;

	for (const struct cvy_gpu_entry *k = cvy_kernels; k && !err; k = k->next) {
		err = check(gpu, cudaFuncGetAttributes(&kernel, k->at), "loading the kernels");
		stack = kernel.localSizeBytes > stack ? kernel.localSizeBytes : stack;
	}
	if (!err)
		err = check(gpu, cudaDeviceGetLimit(&has, cudaLimitStackSize), "stacks of the kernels");
	if (!err && stack > has)
		err = check(gpu, cudaDeviceSetLimit(cudaLimitStackSize, stack), "stacks of the kernels");
	return err;
}

static int find_device(struct cvy_gpu *gpu)
{
	int count = 0, err = check(gpu, cudaGetDeviceCount(&count), "looking for devices");

	if (!err && (gpu->device < 0 || gpu->device >= count))
		err = fail(gpu, COVEY_ERR_INVAL, "device %d: there are devices 0 to %d", gpu->device, count - 1);
	return err ? err : cvy_gpu_find_context(gpu);
}

static int open_parts(struct cvy_gpu *gpu, const struct cvy_gpu_args *args)
{
	int err = describe(gpu, args->late_ms);

	if (!err)
		err = load(gpu);
	if (!err)
		err = choose_overlap(gpu);
	if (!err)
		err = choose_memory(gpu, args->memory);
	if (!err)
		err = allocate(gpu);
	if (!err)
		err = cvy_gpu_receipts_open(gpu);
	if (!err)
		err = cvy_gpu_trace_open(gpu);
	return err ? err : gpu->memory->open(gpu, args->peers);
}

static int gpu_open(const struct cvy_gpu_args *args, struct cvy_gpu **out, char *why, size_t why_bytes)
{
	struct cvy_gpu *gpu = (struct cvy_gpu *)calloc(1, sizeof(*gpu));
	struct cvy_gpu_scope had;
	int err;

	if (!gpu)
		return COVEY_ERR_NOMEM;
	gpu->device = args->device;
	err = find_device(gpu);
	if (!err) {
		gpu_enter(gpu, &had);
		err = open_parts(gpu, args);
		gpu_leave(gpu, &had);
	}
	if (!err) {
		*out = gpu;
		return 0;
	}
	snprintf(why, why_bytes, "%s", gpu->why);
	gpu_close(gpu);
	return err;
}

extern "C" __attribute__((visibility("default"))) const struct cvy_gpu_ops cvy_gpu_ops = {
	CVY_GPU_ABI,
	gpu_open,
	gpu_close,
	gpu_enter,
	gpu_leave,
	gpu_why,
	gpu_describe,
	gpu_memory,
	gpu_mapped,
	gpu_gate,
	gpu_counters,
	gpu_words,
	gpu_read,
	gpu_write,
	gpu_mailbox,
	gpu_is_device,
	gpu_capturing,
	cvy_gpu_launch,
	gpu_synchronise,
	gpu_status,
	gpu_status_read,
	gpu_peers,
	cvy_gpu_reach,
	cvy_gpu_far_chunk,
	cvy_gpu_queue,
	cvy_gpu_copies_open,
	cvy_gpu_copies,
	cvy_gpu_copies_end,
	cvy_gpu_receipt,
	cvy_gpu_receipt_post,
	cvy_gpu_receipt_look,
	cvy_gpu_receipt_free,
	cvy_gpu_launch_aside,
};
