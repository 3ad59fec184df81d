/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is none: libcovey_cuda's table (gpu.h) over shared memory, whose kernels are functions on a thread. It
 * parks, resumes, claims lanes and obeys verdicts as operate.cuh does, so that what collectives/device/device.c decides in a view
 * change is tested where no device is. Chunks are memfds; "device memory" is what fake_alloc() gives.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

static uint8_t *arena;
static size_t used;
struct cvy_gpu *fake_gpu;
struct cvy_gpu_graph *fake_graph;
int fake_poisoned;

EXPORT void *fake_alloc(size_t bytes)
{
	size_t at;

	if (!arena)
		arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at = used;
	used += (bytes + 63) & ~(size_t)63;
	return arena != MAP_FAILED && used <= ARENA ? arena + at : NULL;
}

size_t fake_room(void)
{
	return ARENA - used;
}

/* ---- the table ---- */

static int fake_unmap(uint8_t **at)
{
	if (*at)
		munmap(*at, CVY_GPU_CHUNK);
	*at = NULL;
	return 0;
}

static int fake_map(uint8_t **at, int fd)
{
	fake_unmap(at);
	*at = mmap(NULL, CVY_GPU_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (*at != MAP_FAILED)
		return 0;
	*at = NULL;
	return COVEY_ERR_NOMEM;
}

/* Its memory is the same by either name; FAKE_NO_VMM: a device that has no VMM. */
static int fake_memory(const struct cvy_gpu *g)
{
	return g->ipc ? COVEY_DEVICE_MEMORY_IPC : COVEY_DEVICE_MEMORY_VMM;
}

static int fake_open(const struct cvy_gpu_args *args, struct cvy_gpu **out, char *why, size_t why_bytes)
{
	struct cvy_gpu *g = aligned_alloc(128, (sizeof(*g) + 127) & ~(size_t)127);
	const char *begin = getenv("FAKE_BEGIN"); /* from which number on: some take long to reach */

	if (args->device > 63) {
		snprintf(why, why_bytes, "device %d: there are devices 0 to 63", args->device);
		free(g);
		return COVEY_ERR_INVAL;
	}
	if (!g)
		return COVEY_ERR_NOMEM;
	memset(g, 0, sizeof(*g));
	g->ipc = args->memory == COVEY_DEVICE_MEMORY_IPC || getenv("FAKE_NO_VMM");
	g->saved =
		mmap(NULL, CVY_GPU_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	g->control.finished = begin ? strtoull(begin, NULL, 0) * CVY_GPU_QUANTA : 0;
	g->control.entered = (uint64_t)CVY_GPU_GATE_CLOSED(0) << CVY_GPU_GATE_SHIFT | g->control.finished;
	g->last = &g->first;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	fake_gpu = g;
	*out = g;
	return pthread_create(&g->thread, NULL, fake_main, g) ? COVEY_ERR_NOMEM : 0;
}

static int fake_unchunk(struct cvy_gpu *g, int rank, int generation)
{
	size_t i = (size_t)(rank * CVY_GPU_GENERATIONS + generation);

	if (g->in_fd[i])
		close(g->in_fd[i] - 1);
	g->in_fd[i] = 0;
	return fake_unmap(&g->in[i]);
}

static int fake_chunk(struct cvy_gpu *g, int rank, int generation)
{
	int fd = getenv("FAKE_NO_CHUNK") ? -1 : (int)memfd_create("fake-chunk", MFD_CLOEXEC);
	size_t i = (size_t)(rank * CVY_GPU_GENERATIONS + generation);

	fake_unchunk(g, rank, generation);
	if (fd < 0 || ftruncate(fd, (off_t)CVY_GPU_CHUNK))
		return COVEY_ERR_IO;
	g->in_fd[i] = fd + 1;
	return fake_map(&g->in[i], fd);
}

static int fake_chunk_fd(struct cvy_gpu *g, int rank, int generation, int *fd)
{
	*fd = fcntl(g->in_fd[rank * CVY_GPU_GENERATIONS + generation] - 1, F_DUPFD_CLOEXEC, 0);
	return *fd < 0 ? COVEY_ERR_IO : 0;
}

static int fake_attach(struct cvy_gpu *g, int rank, int generation, int fd)
{
	return fake_map(&g->out[rank * CVY_GPU_GENERATIONS + generation], fd);
}

static int fake_detach(struct cvy_gpu *g, int rank, int generation)
{
	return fake_unmap(&g->out[rank * CVY_GPU_GENERATIONS + generation]);
}

/* Registered memory: mapped, and not made use of: the stand-in pushes all. */
static int fake_window(struct cvy_gpu *g, size_t bytes, void **base, int *fd)
{
	*fd = (int)memfd_create("fake-window", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes))
		return COVEY_ERR_IO;
	g->window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
	g->window_bytes = bytes;
	*base = g->window;
	return g->window == MAP_FAILED ? COVEY_ERR_NOMEM : 0;
}

static int fake_attach_window(struct cvy_gpu *g, int rank, int generation, int fd)
{
	uint8_t *at = mmap(NULL, g->window_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);

	(void)rank;
	(void)generation;
	return at == MAP_FAILED || munmap(at, g->window_bytes) ? COVEY_ERR_NOMEM : 0;
}

static int fake_gate(struct cvy_gpu *g, uint8_t value)
{
	__atomic_store_n((uint8_t *)&g->control.entered + CVY_GPU_GATE_SHIFT / 8, value, __ATOMIC_SEQ_CST);
	return 0;
}

static int fake_counters(struct cvy_gpu *g, struct cvy_gpu_counters *c, int all)
{
	if (fake_poisoned)
		return COVEY_ERR_IO;
	c->finished = __atomic_load_n(&g->control.finished, __ATOMIC_SEQ_CST);
	c->stopped = __atomic_load_n(&g->control.stopped, __ATOMIC_SEQ_CST);
	c->guests = __atomic_load_n(&g->control.guests, __ATOMIC_SEQ_CST);
	c->entered = __atomic_load_n(&g->control.entered, __ATOMIC_SEQ_CST);
	c->gate = (uint8_t)(c->entered >> CVY_GPU_GATE_SHIFT);
	c->entered &= CVY_GPU_COUNT_MASK;
	if (all) {
		c->parked = g->control.parked;
		c->status = g->control.status;
		memcpy(c->lane, g->control.lane, sizeof(c->lane));
		memcpy(c->past, g->control.past, sizeof(c->past));
		c->admitted = g->control.admitted;
	}
	return 0;
}

static int fake_words(struct cvy_gpu *g, const struct cvy_gpu_lane *lanes, const struct cvy_gpu_roll *roll,
		      const struct cvy_gpu_verdict *verdict)
{
	if (roll)
		g->control.roll = *roll;
	if (lanes)
		memcpy(g->control.lane, lanes, sizeof(g->control.lane));
	g->control.verdict.base = verdict->base;
	g->control.verdict.gone = verdict->gone;
	g->control.verdict.partly = verdict->partly;
	g->control.verdict.epoch = verdict->epoch;
	__atomic_store_n(&g->control.verdict.ended, verdict->ended, __ATOMIC_RELEASE);
	return 0;
}

static int fake_read(struct cvy_gpu *g, int rank, int generation, size_t at, void *to, size_t bytes)
{
	const uint8_t *chunk = g->in[rank * CVY_GPU_GENERATIONS + generation];

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return COVEY_ERR_INVAL;
	memcpy(to, chunk + at, bytes);
	return 0;
}

static int fake_write(struct cvy_gpu *g, int rank, int generation, size_t at, const void *from, size_t bytes)
{
	uint8_t *chunk = g->in[rank * CVY_GPU_GENERATIONS + generation];

	if (!chunk || at > CVY_GPU_CHUNK || bytes > CVY_GPU_CHUNK - at)
		return COVEY_ERR_INVAL;
	memcpy(chunk + at, from, bytes);
	return 0;
}

static int fake_is_device(struct cvy_gpu *gpu, const void *at)
{
	const struct cvy_gpu *g = fake_gpu;

	(void)gpu;
	if (g && g->window && (size_t)((const uint8_t *)at - g->window) < g->window_bytes)
		return 1;
	return arena && (size_t)((const uint8_t *)at - arena) < ARENA;
}

static int fake_capturing(struct CUstream_st *stream)
{
	(void)stream;
	return fake_graph != NULL;
}

/* Onto the one stream that there is, or into the graph that is captured. */
void fake_queue(struct cvy_gpu *g, struct launch *l)
{
	if (fake_graph) {
		*fake_graph->last = l;
		fake_graph->last = &l->next;
		return;
	}
	pthread_mutex_lock(&g->lock);
	*g->last = l;
	g->last = &l->next;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

static int reduces(const struct cvy_gpu_call *c)
{
	return c->kind == CVY_GPU_ALLREDUCE || c->kind == CVY_GPU_ALLREDUCE_TWO_SHOT || c->kind == CVY_GPU_REDUCE ||
	       c->kind == CVY_GPU_REDUCE_SCATTER;
}

static int fake_launch(struct cvy_gpu *g, struct cvy_gpu_call *call, struct CUstream_st *stream)
{
	struct launch *l = fake_poisoned ? NULL : calloc(1, sizeof(*l));

	(void)stream;
	if (!l)
		return fake_poisoned ? COVEY_ERR_IO : COVEY_ERR_NOMEM;
	if (reduces(call) &&
	    (call->redop != COVEY_SUM || (call->dtype != COVEY_INT32 && call->dtype != COVEY_FLOAT32))) {
		free(l);
		return COVEY_ERR_UNSUPPORTED;
	}
	if (cvy_gpu_is_uneven(call->kind))
		l->uneven = *(const struct cvy_gpu_uneven *)call;
	else
		l->call = *call;
	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		l->call.kind = CVY_GPU_ALLREDUCE;
	if (call->kind == CVY_GPU_BROADCAST_TWO_HOP)
		l->call.kind = CVY_GPU_BROADCAST;
	l->call.packet = CVY_GPU_PAIR;
	l->call.threads = 64;
	l->call.rows = 1;
	l->call.lanes = call->kind == CVY_GPU_ADMIT ? 1 : 4;
	l->call.steps = cvy_gpu_steps(&l->call, (call->bytes + 7) / 8);
	fake_queue(g, l);
	return 0;
}

int fake_synchronise(struct cvy_gpu *g)
{
	pthread_mutex_lock(&g->lock);
	while (g->first || g->busy)
		pthread_cond_wait(&g->changed, &g->lock);
	pthread_mutex_unlock(&g->lock);
	return 0;
}

EXPORT void fake_wait(void)
{
	fake_synchronise(fake_gpu);
}

static void fake_close(struct cvy_gpu *g)
{
	__atomic_store_n(&g->control.verdict.ended, COVEY_ERR_CLOSED, __ATOMIC_RELEASE);
	fake_gate(g, CVY_GPU_GATE_CLOSED(0));
	pthread_mutex_lock(&g->lock);
	g->closing = 1;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	for (int i = 0; i < PLACES; i++) {
		fake_unchunk(g, i / CVY_GPU_GENERATIONS, i % CVY_GPU_GENERATIONS);
		fake_unmap(&g->out[i]);
	}
	munmap(g->saved, CVY_GPU_CHUNK);
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->changed);
	free(g);
}

static struct cvy_gpu_mailbox *fake_mailbox(struct cvy_gpu *g)
{
	return &g->mailbox;
}

static const char *fake_why(const struct cvy_gpu *g)
{
	(void)g;
	return "the device that is none";
}

static const char *fake_describe(const struct cvy_gpu *g)
{
	return g->ipc ? "the device that is none; memory by CUDA IPC" : "the device that is none";
}

static const struct cvy_gpu_status *fake_status(struct cvy_gpu *g)
{
	return &g->control.status;
}

static int fake_status_read(struct cvy_gpu *g, struct cvy_gpu_status *to)
{
	*to = g->control.status;
	return 0;
}

static int fake_stand_still(struct cvy_gpu *g, int ending)
{
	(void)ending;
	return fake_synchronise(g);
}

static void fake_enter(struct cvy_gpu *g, struct cvy_gpu_scope *had)
{
	(void)g;
	(void)had;
}

static void fake_leave(struct cvy_gpu *g, const struct cvy_gpu_scope *had)
{
	(void)g;
	(void)had;
}

EXPORT extern const struct cvy_gpu_ops cvy_gpu_ops;
const struct cvy_gpu_ops cvy_gpu_ops = {
	.abi = CVY_GPU_ABI,
	.open = fake_open,
	.close = fake_close,
	.enter = fake_enter,
	.leave = fake_leave,
	.why = fake_why,
	.describe = fake_describe,
	.memory = fake_memory,
	.chunk = fake_chunk,
	.chunk_fd = fake_chunk_fd,
	.unchunk = fake_unchunk,
	.attach = fake_attach,
	.window = fake_window,
	.attach_window = fake_attach_window,
	.detach = fake_detach,
	.gate = fake_gate,
	.counters = fake_counters,
	.words = fake_words,
	.read = fake_read,
	.write = fake_write,
	.mailbox = fake_mailbox,
	.is_device = fake_is_device,
	.capturing = fake_capturing,
	.launch = fake_launch,
	.synchronise = fake_stand_still,
	.status = fake_status,
	.status_read = fake_status_read,
};
