/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's reach for queues across hosts (queue/queue_memory.h): pages of this process and of an adapter's registers,
 * registered one by one and counted, since records and registers of several queues share pages. An adapter's register
 * takes IoMemory, which a driver may refuse to all but root; pages of the software adapter are plain.
 */
#include "queues_gpu.h"
#include "scope.cuh"

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "covey.h"

#define PAGE ((size_t)4096)
#define SLOT ((size_t)512) /* for the words of one queue */
#define SLOTS 1024

struct page {
	uint8_t *host;
	unsigned uses;
};

struct gpu_reach {
	int device;
	cudaStream_t stream; /* of its own: it waits for no kernel */
	uint64_t *stage;     /* pinned */
	pthread_mutex_t lock;
	uint8_t *slots; /* taken once: a later allocation or free would wait for kernels, and these wait for queues */
	uint8_t taken[SLOTS];
	struct page *page;
	size_t npages, room;
};

static int say(char *why, size_t why_bytes, cudaError_t got, const char *what, const char *help)
{
	snprintf(why, why_bytes, "%s: %s%s", what, cudaGetErrorString(got), help);
	cudaGetLastError();
	return COVEY_ERR_UNSUPPORTED;
}

static int zero_slot(struct gpu_reach *g, size_t slot)
{
	memset(g->stage, 0, SLOT);
	return cvy_gpu_use(g->device) != cudaSuccess ||
			       cudaMemcpyAsync(g->slots + slot * SLOT, g->stage, SLOT, cudaMemcpyHostToDevice,
					       g->stream) != cudaSuccess ||
			       cudaStreamSynchronize(g->stream) != cudaSuccess
		       ? COVEY_ERR_IO
		       : 0;
}

static int words(void *ctx, size_t bytes, void **at)
{
	struct gpu_reach *g = (struct gpu_reach *)ctx;
	size_t slot = 0;
	int err;

	if (bytes > SLOT)
		return COVEY_ERR_INVAL;
	pthread_mutex_lock(&g->lock);
	while (slot < SLOTS && g->taken[slot])
		slot++;
	err = slot < SLOTS ? zero_slot(g, slot) : COVEY_ERR_NOMEM;
	if (!err) {
		g->taken[slot] = 1;
		*at = g->slots + slot * SLOT;
	}
	pthread_mutex_unlock(&g->lock);
	return err;
}

static void words_free(void *ctx, void *at)
{
	struct gpu_reach *g = (struct gpu_reach *)ctx;

	if (!at)
		return;
	pthread_mutex_lock(&g->lock);
	g->taken[(size_t)((uint8_t *)at - g->slots) / SLOT] = 0;
	pthread_mutex_unlock(&g->lock);
}

static int read_words(void *ctx, const void *from, size_t offset, size_t bytes, void *to)
{
	struct gpu_reach *g = (struct gpu_reach *)ctx;
	int err = COVEY_ERR_IO;

	if (bytes > PAGE)
		return COVEY_ERR_INVAL;
	pthread_mutex_lock(&g->lock);
	if (cvy_gpu_use(g->device) == cudaSuccess &&
	    cudaMemcpyAsync(g->stage, (const uint8_t *)from + offset, bytes, cudaMemcpyDeviceToHost, g->stream) ==
		    cudaSuccess &&
	    cudaStreamSynchronize(g->stream) == cudaSuccess) {
		memcpy(to, g->stage, bytes);
		err = 0;
	}
	pthread_mutex_unlock(&g->lock);
	return err;
}

static struct page *find(struct gpu_reach *g, const uint8_t *host)
{
	for (size_t i = 0; i < g->npages; i++)
		if (g->page[i].host == host)
			return &g->page[i];
	return NULL;
}

static int add_page(struct gpu_reach *g, uint8_t *host, int io, char *why, size_t why_bytes)
{
	const unsigned plain = cudaHostRegisterPortable | cudaHostRegisterMapped;
	struct page *p = find(g, host);
	cudaError_t got = cudaErrorUnknown;

	if (p) {
		p->uses++;
		return 0;
	}
	if (g->npages == g->room) {
		size_t room = g->room ? 2 * g->room : 64;

		p = (struct page *)realloc(g->page, room * sizeof(*p));
		if (!p)
			return COVEY_ERR_NOMEM;
		g->page = p;
		g->room = room;
	}
	if (io)
		got = cudaHostRegister(host, PAGE, plain | cudaHostRegisterIoMemory);
	if (io && got == cudaErrorNotPermitted)
		say(why, why_bytes, got, "registers",
		    " (the NVIDIA driver takes NVreg_RegistryDwords=\"PeerMappingOverride=1;\"; else use the assisted "
		    "doorbell)");
	if (got != cudaSuccess && got != cudaErrorNotPermitted) {
		cudaGetLastError();
		got = cudaHostRegister(host, PAGE, plain);
		if (got != cudaSuccess)
			say(why, why_bytes, got, io ? "registers" : "a page", "");
	}
	if (got != cudaSuccess)
		return COVEY_ERR_UNSUPPORTED;
	g->page[g->npages].host = host;
	g->page[g->npages++].uses = 1;
	return 0;
}

static void drop_page(struct gpu_reach *g, uint8_t *host)
{
	struct page *p = find(g, host);

	if (!p || --p->uses)
		return;
	cudaHostUnregister(host);
	*p = g->page[--g->npages];
}

static void unmap(void *ctx, void *host, size_t bytes)
{
	struct gpu_reach *g = (struct gpu_reach *)ctx;

	cvy_gpu_use(g->device);
	pthread_mutex_lock(&g->lock);
	for (size_t at = 0; at < bytes; at += PAGE)
		drop_page(g, (uint8_t *)host + at);
	pthread_mutex_unlock(&g->lock);
}

/* Pages keep their addresses on the GPU, so a row of them is a row there, too. */
static int map(void *ctx, void *host, size_t bytes, int io, void **at, char *why, size_t why_bytes)
{
	struct gpu_reach *g = (struct gpu_reach *)ctx;
	size_t done;
	int err = 0;

	cvy_gpu_use(g->device);
	pthread_mutex_lock(&g->lock);
	for (done = 0; done < bytes && !err; done += err ? 0 : PAGE)
		err = add_page(g, (uint8_t *)host + done, io, why, why_bytes);
	pthread_mutex_unlock(&g->lock);
	if (err) {
		unmap(ctx, host, done);
		return err;
	}
	*at = host;
	return 0;
}

int cvy_gpu_queue_memory_open(int device, struct cvy_queue_memory *out, char *why, size_t why_bytes)
{
	struct gpu_reach *g;
	int same = 0;
	cudaError_t got = cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device);

	if (got != cudaSuccess)
		return say(why, why_bytes, got, "no such device", "");
	if (!same)
		return say(why, why_bytes, cudaErrorNotSupported, "host memory has other addresses on this GPU", "");
	g = (struct gpu_reach *)calloc(1, sizeof(*g));
	if (!g)
		return COVEY_ERR_NOMEM;
	g->device = device;
	pthread_mutex_init(&g->lock, NULL);
	got = cvy_gpu_use(device);
	if (got == cudaSuccess)
		got = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
	if (got == cudaSuccess)
		got = cudaHostAlloc((void **)&g->stage, PAGE, cudaHostAllocPortable);
	if (got == cudaSuccess)
		got = cudaMalloc((void **)&g->slots, SLOTS * SLOT);
	if (got != cudaSuccess) {
		out->ctx = g;
		cvy_gpu_queue_memory_close(out);
		return say(why, why_bytes, got, "no stream, pinned memory, or memory for words", "");
	}
	out->ctx = g;
	out->words = words;
	out->words_free = words_free;
	out->read = read_words;
	out->map = map;
	out->unmap = unmap;
	return 0;
}

void cvy_gpu_queue_memory_close(struct cvy_queue_memory *memory)
{
	struct gpu_reach *g = (struct gpu_reach *)memory->ctx;

	if (g->stream)
		cudaStreamDestroy(g->stream);
	cudaFreeHost(g->stage);
	cudaFree(g->slots);
	pthread_mutex_destroy(&g->lock);
	free(g->page);
	free(g);
	memory->ctx = NULL;
}
