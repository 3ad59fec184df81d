/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of NCCL as ep-perf all2all calls, where no device is: sends and receives of one group, in the order of their
 * stream, also in a graph. Each pair of ranks has a ring in a file that all of them map.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define RING ((size_t)1 << 16)
#define NAP_NS 50000
#define NAPS 400000 /* then something is wrong */
#define USAGE 5	    /* ncclInvalidUsage */
#define UINT8 1	    /* ncclUint8: elements are bytes here */

struct id {
	char bytes[128]; /* the file's path */
};

struct ring {
	std::atomic<uint64_t> head, tail;
	char data[RING];
};

struct comm {
	int size, rank;
	std::atomic<int> *here;
	struct ring *rings; /* [source][destination] */
};

struct part {
	struct ring *ring;
	char *at;
	size_t left;
	bool send;
};

struct group {
	std::vector<struct part> parts;
	cudaStream_t stream;
};

static struct group *open_group;

static void nap(int *naps)
{
	struct timespec t = { 0, NAP_NS };

	if (++*naps > NAPS) {
		fprintf(stderr, "nccl: a send or a receive has no other side\n");
		abort();
	}
	nanosleep(&t, NULL);
}

/* As many bytes as there are, or as there is room for, up to the ring's end. */
static bool moves(struct part *p)
{
	uint64_t head = p->ring->head, tail = p->ring->tail, from = p->send ? tail : head;
	size_t n = std::min(
		{ p->left, (size_t)(p->send ? RING - (tail - head) : tail - head), RING - (size_t)(from % RING) });

	if (!n)
		return false;
	if (p->send)
		memcpy(p->ring->data + from % RING, p->at, n);
	else
		memcpy(p->at, p->ring->data + from % RING, n);
	(p->send ? p->ring->tail : p->ring->head) += n;
	p->at += n;
	p->left -= n;
	return true;
}

/* Of parts with the same ring and direction the first goes first. */
static bool is_behind(const std::vector<struct part> &parts, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (parts[k].ring == parts[i].ring && parts[k].send == parts[i].send && parts[k].left)
			return true;
	return false;
}

static void run(void *group)
{
	std::vector<struct part> parts = ((struct group *)group)->parts;
	int naps = 0;

	for (bool all = false; !all;) {
		bool any = false;

		all = true;
		for (size_t i = 0; i < parts.size(); i++) {
			any |= parts[i].left && !is_behind(parts, i) && moves(&parts[i]);
			all &= !parts[i].left;
		}
		if (!any && !all)
			nap(&naps);
	}
}

static int add(struct comm *c, const void *at, size_t bytes, int type, int peer, bool send, cudaStream_t stream)
{
	if (!open_group || type != UINT8 || peer < 0 || peer >= c->size)
		return USAGE;
	open_group->stream = stream;
	open_group->parts.push_back(
		{ &c->rings[send ? c->rank * c->size + peer : peer * c->size + c->rank], (char *)at, bytes, send });
	return 0;
}

extern "C" {

int ncclGetUniqueId(struct id *id)
{
	snprintf(id->bytes, sizeof(id->bytes), "/tmp/covey-nccl-XXXXXX");
	return close(mkstemp(id->bytes)) ? USAGE : 0;
}

int ncclCommInitRank(void **out, int size, struct id id, int rank)
{
	size_t bytes = 4096 + (size_t)(size * size) * sizeof(struct ring);
	int fd = open(id.bytes, O_RDWR | O_CLOEXEC), naps = 0;
	char *at;

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		return USAGE;
	at = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return USAGE;
	*out = new comm{ size, rank, (std::atomic<int> *)at, (struct ring *)(at + 4096) };
	((struct comm *)*out)->here->fetch_add(1);
	while (*((struct comm *)*out)->here < size)
		nap(&naps);
	if (!rank)
		unlink(id.bytes);
	return 0;
}

int ncclCommDestroy(void *comm)
{
	delete (struct comm *)comm;
	return 0;
}

int ncclGetVersion(int *version)
{
	*version = 0;
	return 0;
}

int ncclGroupStart(void)
{
	open_group = new group();
	return 0;
}

/* A graph may run it at any time: it stays. */
int ncclGroupEnd(void)
{
	struct group *g = open_group;

	open_group = NULL;
	return g->parts.empty() || cudaLaunchHostFunc(g->stream, run, g) == cudaSuccess ? 0 : USAGE;
}

int ncclSend(const void *at, size_t count, int type, int peer, void *comm, cudaStream_t stream)
{
	return add((struct comm *)comm, at, count, type, peer, true, stream);
}

int ncclRecv(void *at, size_t count, int type, int peer, void *comm, cudaStream_t stream)
{
	return add((struct comm *)comm, at, count, type, peer, false, stream);
}

/* Looked for, and not called by all2all. */
#define NEVER(name) \
	int name(void) \
	{ \
		return USAGE; \
	}

NEVER(ncclAllReduce)
NEVER(ncclReduce)
NEVER(ncclBroadcast)
NEVER(ncclAllGather)
NEVER(ncclReduceScatter)
NEVER(ncclMemAlloc)

} /* extern "C" */
