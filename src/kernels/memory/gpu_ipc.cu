/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that peers map where a device has no VMM: CUDA IPC. A *block* is memory of cudaMalloc, of whole pages of 2 MiB, so
 * that exported pages hold nothing else; its handle opens it in other processes, at addresses that nobody chooses:
 * kernels look them up in a table (cvy_gpu_call.places). Three rules of CUDA shape the rest:
 *
 * - Exported memory may be freed only when no other process has it open. So a handle does not travel bare: it waits in a
 *   socket, whose end is the descriptor that the peer is given, and which it closes after cudaIpcCloseMemHandle, or by dying.
 *   The other end, here, shows when the last of them is closed. Nobody waits for that: a block is set aside until then, and
 *   stays with the process when the group is closed before. A peer that is stopped keeps one block from being used, no more.
 * - A call that frees or closes memory waits for kernels of the device, and holds up copies and launches of all threads
 *   meanwhile (tests/gpu/waits.cu), while parked CTAs wait for a copy. So blocks are reused instead of freed, and mappings
 *   are closed when the device is idle and nothing is launched: in covey_admit without a stream, or at the end. Until then
 *   this process keeps memory of a dead one. Calls that allocate and open were not seen to wait. No document promises it, so
 *   blocks for all peers and a few more are allocated at the beginning.
 * - A process cannot open what it has exported itself, so two ranks of one process need VMM.
 */
#include "gpu_state.cuh"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define PAGE ((size_t)2 << 20)
#define TABLE_BYTES (CVY_GPU_PLACES * MAPPINGS * sizeof(uint64_t))
#define SPARES 2 /* for replacements */
#define REST_MS \
	500 /* stores of a killed process were seen 30 ms after its descriptors had been closed: G4 rests on this time */

struct block {
	struct block *next;
	void *at;
	size_t bytes;
	cudaIpcMemHandle_t handle;
	int device;
	int door;	  /* shows when nobody has it open; -1: it was given to nobody */
	uint64_t shut_ns; /* when that was seen, 0: it was not */
};

/* A block of another process that is open here. */
struct opened {
	struct opened *next;
	void *at;
	int fd; /* closed after the memory */
};

struct cvy_ipc {
	struct block *spare, *old; /* given to nobody; maybe still open elsewhere */
	struct block *in[MAPPINGS], *window;
	struct opened *open[CVY_GPU_PLACES][MAPPINGS];
	struct opened *closing; /* no kernel uses them */
	pthread_mutex_t lock;	/* of closing */
};

static int groups; /* of this process that use IPC */

/* Of groups of this process that were closed while peers had them open. */
static struct block *left_behind;
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- blocks ---- */

static void push_block(struct block **list, struct block *b)
{
	b->next = *list;
	*list = b;
}

/* Is it open in no other process? */
static int is_shut(struct block *b)
{
	struct pollfd p = { b->door, 0, 0 };

	if (b->door >= 0 && !b->shut_ns && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)))
		b->shut_ns = cvy_now_ns();
	return b->door < 0 || b->shut_ns;
}

static void free_block(struct block *b)
{
	cudaFree(b->at);
	if (b->door >= 0)
		close(b->door);
	free(b);
}

/* May wait for kernels. */
static int new_block(struct cvy_gpu *gpu, size_t bytes, struct block **out)
{
	struct block *b = (struct block *)calloc(1, sizeof(*b));
	int err = b ? use(gpu) : COVEY_ERR_NOMEM;

	if (!b)
		return fail(gpu, err, "no memory of the host");
	b->bytes = bytes;
	b->device = gpu->device;
	b->door = -1;
	if (!err)
		err = check(gpu, cudaMalloc(&b->at, bytes), "memory for peers");
	if (!err)
		err = check(gpu, cudaIpcGetMemHandle(&b->handle, b->at), "a handle for memory");
	*out = b;
	if (err)
		free_block(b);
	return err;
}

/* The first of @list that is for @device, of @bytes bytes, and open nowhere for @rest_ms; taken off. */
static struct block *take_shut(struct block **list, int device, size_t bytes, uint64_t rest_ms)
{
	for (; *list; list = &(*list)->next) {
		struct block *b = *list;

		if (b->device != device || b->bytes != bytes || !is_shut(b) ||
		    (b->shut_ns && cvy_now_ns() - b->shut_ns < rest_ms * CVY_MS))
			continue;
		*list = b->next;
		if (b->door >= 0)
			close(b->door);
		b->door = -1;
		b->shut_ns = 0;
		return b;
	}
	return NULL;
}

/* For a chunk: what was used before, else what was allocated for this, else what may have to wait for kernels. */
static int take_block(struct cvy_gpu *gpu, struct block **out)
{
	struct cvy_ipc *ipc = gpu->ipc;

	*out = take_shut(&ipc->old, gpu->device, CVY_GPU_CHUNK, REST_MS);
	if (!*out)
		*out = take_shut(&ipc->spare, gpu->device, CVY_GPU_CHUNK, 0);
	return *out ? 0 : new_block(gpu, CVY_GPU_CHUNK, out);
}

/* The device stands still. */
static void leave_block(struct block *b)
{
	if (!b)
		return;
	if (is_shut(b)) {
		free_block(b);
		return;
	}
	pthread_mutex_lock(&left_lock);
	push_block(&left_behind, b);
	pthread_mutex_unlock(&left_lock);
}

/* Blocks that earlier groups left and nobody has open: chunks are reused, windows freed. */
static void look_behind(struct cvy_gpu *gpu, struct block **chunks)
{
	struct block *b, **at = &left_behind;

	pthread_mutex_lock(&left_lock);
	while ((b = take_shut(&left_behind, gpu->device, CVY_GPU_CHUNK, REST_MS)))
		push_block(chunks, b);
	while ((b = *at)) {
		if (b->device != gpu->device || b->bytes == CVY_GPU_CHUNK || !is_shut(b)) {
			at = &b->next;
			continue;
		}
		*at = b->next;
		free_block(b);
	}
	pthread_mutex_unlock(&left_lock);
}

/* A descriptor in which the handle waits for the peer that may open it. */
static int export_block(struct cvy_gpu *gpu, struct block *b, int *fd)
{
	int ends[2];

	if (b->door >= 0)
		return fail(gpu, COVEY_ERR_INVAL, "memory was exported before");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		return fail(gpu, COVEY_ERR_IO, "a socket for a handle: %s", strerror(errno));
	b->door = ends[0];
	*fd = ends[1];
	if (send(ends[0], &b->handle, sizeof(b->handle), MSG_NOSIGNAL) == (ssize_t)sizeof(b->handle))
		return 0;
	close(ends[1]);
	return fail(gpu, COVEY_ERR_IO, "a handle is not sent: %s", strerror(errno));
}

/* ---- what kernels look up ---- */

/* No kernel has words that name this mapping. */
static int stands_at(struct cvy_gpu *gpu, int kind, size_t i, void *at)
{
	gpu->at[kind][i] = (CUdeviceptr)(uintptr_t)at;
	*(uint64_t *)gpu->stage = (uint64_t)(uintptr_t)at;
	return copy(gpu, gpu->places + (size_t)kind * MAPPINGS + i, gpu->stage, sizeof(uint64_t), "a table of places");
}

static int ipc_unchunk(struct cvy_gpu *gpu, int rank, int generation)
{
	size_t i = place(rank, generation);

	if (gpu->ipc->in[i])
		push_block(&gpu->ipc->old, gpu->ipc->in[i]);
	gpu->ipc->in[i] = NULL;
	gpu->at[CVY_GPU_IN][i] = 0;
	for (struct block *b = gpu->ipc->old; b; b = b->next)
		is_shut(b); /* from when on it rests */
	return 0;
}

static int ipc_chunk(struct cvy_gpu *gpu, int rank, int generation)
{
	size_t i = place(rank, generation);
	struct block *b;
	int err = ipc_unchunk(gpu, rank, generation);

	if (!err)
		err = use(gpu);
	if (!err)
		err = take_block(gpu, &b);
	if (err)
		return err;
	gpu->ipc->in[i] = b;
	err = cvy_gpu_clear(gpu, (CUdeviceptr)(uintptr_t)b->at, CVY_GPU_CHUNK, "clearing a chunk"); /* no tag is 0 */
	return err ? err : stands_at(gpu, CVY_GPU_IN, i, b->at);
}

static int ipc_chunk_fd(struct cvy_gpu *gpu, int rank, int generation, int *fd)
{
	struct block *b = gpu->ipc->in[place(rank, generation)];

	return b ? export_block(gpu, b, fd) : fail(gpu, COVEY_ERR_INVAL, "no chunk of rank %d", rank);
}

/* ---- what others export ---- */

/* The process may launch nothing until this is done. */
static void close_all(struct cvy_ipc *ipc)
{
	struct opened *o;

	pthread_mutex_lock(&ipc->lock);
	o = ipc->closing;
	ipc->closing = NULL;
	pthread_mutex_unlock(&ipc->lock);
	while (o) {
		struct opened *next = o->next;

		cudaIpcCloseMemHandle(o->at);
		close(o->fd); /* its owner may use the memory again */
		free(o);
		o = next;
	}
}

/* No kernel uses it. */
static void forget(struct cvy_gpu *gpu, int kind, size_t i)
{
	struct opened *o = gpu->ipc->open[kind][i];

	gpu->ipc->open[kind][i] = NULL;
	gpu->at[kind][i] = 0;
	if (!o)
		return;
	pthread_mutex_lock(&gpu->ipc->lock);
	o->next = gpu->ipc->closing;
	gpu->ipc->closing = o;
	pthread_mutex_unlock(&gpu->ipc->lock);
}

/*
 * All that was launched has ended, and nothing is launched meanwhile. Of one group: what another launches might wait for a
 * rank whose death its agent could not tell it of.
 */
static void ipc_idle(struct cvy_gpu *gpu)
{
	if (__atomic_load_n(&groups, __ATOMIC_SEQ_CST) == 1)
		close_all(gpu->ipc);
}

static int open_at(struct cvy_gpu *gpu, int kind, size_t i, int fd)
{
	cudaIpcMemHandle_t handle;
	struct opened *o;
	int err = use(gpu);

	forget(gpu, kind, i);
	/* It stays there: the same may come again by another link. */
	if (!err && recv(fd, &handle, sizeof(handle), MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof(handle))
		err = fail(gpu, COVEY_ERR_IO, "no handle of memory has come");
	o = err ? NULL : (struct opened *)calloc(1, sizeof(*o));
	if (!o)
		return err ? err : fail(gpu, COVEY_ERR_NOMEM, "no memory of the host");
	o->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* before: without it the owner would take the memory for closed */
	if (o->fd < 0)
		err = fail(gpu, COVEY_ERR_IO, "no descriptor is left for memory of a peer: %s", strerror(errno));
	if (!err)
		err = check(gpu, cudaIpcOpenMemHandle(&o->at, handle, cudaIpcMemLazyEnablePeerAccess),
			    "memory of a peer");
	if (err) {
		cudaGetLastError(); /* or it would be the answer to what the application calls next */
		if (o->fd >= 0)
			close(o->fd);
		free(o);
		return err;
	}
	gpu->ipc->open[kind][i] = o;
	return stands_at(gpu, kind, i, o->at);
}

static int ipc_attach(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	return open_at(gpu, CVY_GPU_OUT, place(rank, generation), fd);
}

static int ipc_attach_window(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	return open_at(gpu, CVY_GPU_WINDOW, place(rank, generation), fd);
}

static int ipc_detach(struct cvy_gpu *gpu, int rank, int generation)
{
	forget(gpu, CVY_GPU_WINDOW, place(rank, generation));
	forget(gpu, CVY_GPU_OUT, place(rank, generation));
	return 0;
}

/* ---- registered memory ---- */

static int ipc_window(struct cvy_gpu *gpu, size_t bytes, void **base, int *fd)
{
	struct block *b;
	int err = new_block(gpu, (bytes + PAGE - 1) / PAGE * PAGE, &b);

	if (err)
		return err;
	gpu->ipc->window = b;
	*base = b->at;
	gpu->window = (CUdeviceptr)(uintptr_t)b->at;
	gpu->window_bytes = b->bytes;
	gpu->windows = gpu->window; /* there are some; where is in the table */
	err = cvy_gpu_clear(gpu, gpu->window, gpu->window_bytes, "clearing a window");
	return err ? err : export_block(gpu, b, fd);
}

/* ---- open and close ---- */

static int ipc_open(struct cvy_gpu *gpu, int peers)
{
	struct block *b;
	int err = check(gpu, cudaMalloc((void **)&gpu->places, TABLE_BYTES), "a table of places");

	gpu->ipc = err ? NULL : (struct cvy_ipc *)calloc(1, sizeof(*gpu->ipc));
	if (!gpu->ipc)
		return err ? err : fail(gpu, COVEY_ERR_NOMEM, "no memory of the host");
	pthread_mutex_init(&gpu->ipc->lock, NULL);
	__atomic_add_fetch(&groups, 1, __ATOMIC_SEQ_CST);
	err = cvy_gpu_clear(gpu, (CUdeviceptr)(uintptr_t)gpu->places, TABLE_BYTES, "a table of places");
	look_behind(gpu, &gpu->ipc->spare);
	for (int i = 0; !err && i < peers + SPARES; i++) {
		err = new_block(gpu, CVY_GPU_CHUNK, &b);
		if (!err)
			push_block(&gpu->ipc->spare, b);
	}
	return err;
}

static void leave_list(struct block *b)
{
	while (b) {
		struct block *next = b->next;

		leave_block(b);
		b = next;
	}
}

static void ipc_close(struct cvy_gpu *gpu)
{
	struct cvy_ipc *ipc = gpu->ipc;

	cudaFree(gpu->places);
	if (!ipc)
		return;
	for (size_t i = 0; i < MAPPINGS; i++) {
		forget(gpu, CVY_GPU_OUT, i);
		forget(gpu, CVY_GPU_WINDOW, i);
		leave_block(ipc->in[i]);
	}
	close_all(ipc);
	leave_block(ipc->window);
	leave_list(ipc->spare);
	leave_list(ipc->old);
	__atomic_sub_fetch(&groups, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_destroy(&ipc->lock);
	free(ipc);
}

const struct cvy_gpu_memory cvy_gpu_ipc = {
	ipc_open,   ipc_close,	ipc_chunk,  ipc_chunk_fd,      ipc_unchunk,
	ipc_attach, ipc_detach, ipc_window, ipc_attach_window, ipc_idle,
};
