/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies for a proxy (queue/queue_memory.h), made by the device's copy engines: from memory of this device to a chunk of a
 * peer, mapped where no kernel looks. They are plain asynchronous copies on streams that carry nothing else. A kernel or a
 * memset would want a processor while all hold CTAs that wait for these very copies. Everything is allocated before the
 * first copy.
 *
 * A stored word is copied from pinned memory, which keeps it until a mark behind it is reached. A mark is an event.
 */
#include "gpu_state.cuh"

#define STREAMS 8     /* ranks share them: a copy ends whatever its peer does */
#define QUIET_NS 1000 /* less than it takes to ask for a copy; lanes of a step post within it, one after the other */

struct copier {
	struct cvy_gpu_copies *all;
	cudaStream_t stream;
	cudaEvent_t event[CVY_COPIER_MARKS];
	uint64_t marks, reached, stores;
	uint64_t *word; /* pinned, CVY_COPIER_STORES */
};

struct cvy_gpu_copies {
	int device;
	cudaStream_t stream[STREAMS];
	uint64_t *words;
	struct copier copier[CVY_GPU_RANKS];
};

/* The calling thread is the library's: once. */
static int enter(const struct cvy_gpu_copies *all)
{
	static thread_local const struct cvy_gpu_copies *entered;

	if (entered == all)
		return 0;
	if (cvy_gpu_use(all->device) != cudaSuccess)
		return COVEY_ERR_IO;
	entered = all;
	return 0;
}

static int copy_rows(void *ctx, uint64_t to, uint64_t from, size_t bytes, size_t rows, size_t stride)
{
	struct copier *c = (struct copier *)ctx;
	cudaError_t got;

	if (enter(c->all))
		return COVEY_ERR_IO;
	if (rows == 1)
		got = cudaMemcpyAsync((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDefault,
				      c->stream);
	else
		got = cudaMemcpy2DAsync((void *)(uintptr_t)to, stride, (const void *)(uintptr_t)from, stride, bytes,
					rows, cudaMemcpyDefault, c->stream);
	return got == cudaSuccess ? 0 : COVEY_ERR_IO;
}

static int store_word(void *ctx, uint64_t to, uint64_t value)
{
	struct copier *c = (struct copier *)ctx;
	uint64_t *word = c->word + c->stores++ % CVY_COPIER_STORES;

	*word = value;
	return copy_rows(ctx, to, (uint64_t)(uintptr_t)word, sizeof(value), 1, 0);
}

static int mark(void *ctx)
{
	struct copier *c = (struct copier *)ctx;

	if (enter(c->all) || cudaEventRecord(c->event[c->marks % CVY_COPIER_MARKS], c->stream) != cudaSuccess)
		return COVEY_ERR_IO;
	c->marks++;
	return 0;
}

static int reached(void *ctx, uint64_t *marks)
{
	struct copier *c = (struct copier *)ctx;
	cudaError_t got = enter(c->all) ? cudaErrorUnknown : cudaSuccess;

	while (c->reached != c->marks && got == cudaSuccess) {
		got = cudaEventQuery(c->event[c->reached % CVY_COPIER_MARKS]);
		c->reached += got == cudaSuccess;
	}
	*marks = c->reached;
	return got == cudaSuccess || got == cudaErrorNotReady ? 0 : COVEY_ERR_IO;
}

/* ---- open and close ---- */

static int open_copier(struct cvy_gpu *gpu, int rank)
{
	struct cvy_gpu_copies *all = gpu->copies;
	struct copier *c = &all->copier[rank];
	int err = 0;

	c->all = all;
	c->stream = all->stream[rank % STREAMS];
	c->word = all->words + (size_t)rank * CVY_COPIER_STORES;
	for (int i = 0; i < CVY_COPIER_MARKS && !err; i++)
		err = check(gpu, cudaEventCreateWithFlags(&c->event[i], cudaEventDisableTiming), "a mark of copies");
	return err;
}

int cvy_gpu_copies_open(struct cvy_gpu *gpu)
{
	int least, most, err = use(gpu);

	if (gpu->copies || err)
		return err;
	if (gpu->memory != &cvy_gpu_vmm)
		return fail(gpu, COVEY_ERR_UNSUPPORTED, "memory of device %d goes by CUDA IPC", gpu->device);
	gpu->copies = (struct cvy_gpu_copies *)calloc(1, sizeof(*gpu->copies));
	if (!gpu->copies)
		return fail(gpu, COVEY_ERR_NOMEM, "no memory of the host");
	gpu->copies->device = gpu->device;
	err = check_driver(gpu, gpu->driver.reserve(&gpu->beyond, MAPPINGS * CVY_GPU_STRIDE, 0, 0, 0),
			   "addresses for what is copied to");
	if (!err)
		err = check(gpu,
			    cudaHostAlloc((void **)&gpu->copies->words,
					  CVY_GPU_RANKS * CVY_COPIER_STORES * sizeof(uint64_t), 0),
			    "pinned memory");
	if (!err)
		err = check(gpu, cudaDeviceGetStreamPriorityRange(&least, &most), "the streams");
	for (int i = 0; i < STREAMS && !err; i++)
		err = check(gpu, cudaStreamCreateWithPriority(&gpu->copies->stream[i], cudaStreamNonBlocking, most),
			    "a stream of copies");
	for (int r = 0; r < CVY_GPU_RANKS && !err; r++)
		err = open_copier(gpu, r);
	if (err)
		cvy_gpu_copies_close(gpu);
	return err;
}

/* Before the addresses go: copies end here. */
void cvy_gpu_copies_close(struct cvy_gpu *gpu)
{
	struct cvy_gpu_copies *all = gpu->copies;

	if (!all)
		return;
	for (int i = 0; i < STREAMS; i++) {
		if (!all->stream[i])
			continue;
		cudaStreamSynchronize(all->stream[i]);
		cudaStreamDestroy(all->stream[i]);
	}
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		for (int i = 0; i < CVY_COPIER_MARKS; i++)
			if (all->copier[r].event[i])
				cudaEventDestroy(all->copier[r].event[i]);
	cudaFreeHost(all->words);
	free(all);
	gpu->copies = NULL;
}

int cvy_gpu_copies(struct cvy_gpu *gpu, int rank, int generation, int fd, struct cvy_copies *out)
{
	struct copier *c;
	int err = gpu->copies ? cvy_gpu_stand_in(gpu, rank, generation, fd)
			      : fail(gpu, COVEY_ERR_INVAL, "no copies were opened on device %d", gpu->device);

	if (err)
		return err;
	c = &gpu->copies->copier[rank];
	c->marks = c->reached = 0;
	out->copier.ctx = c;
	out->copier.copy = copy_rows;
	out->copier.store = store_word;
	out->copier.mark = mark;
	out->copier.reached = reached;
	out->from = gpu->at[CVY_GPU_OUT][place(rank, generation)];
	out->to = gpu->copied[place(rank, generation)];
	out->quiet_ns = QUIET_NS;
	return 0;
}

void cvy_gpu_copies_end(struct cvy_gpu *gpu, int rank)
{
	if (!use(gpu) && gpu->copies)
		cudaStreamSynchronize(gpu->copies->copier[rank].stream);
}
