/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on device memory for message.cu: bytes that say who sent them and as what, and what becomes of a message or a work. */
#ifndef MESSAGES_CUH
#define MESSAGES_CUH

#include "driver.cuh"
#include "layout.h"

#define RANKS (CVY_GPU_RANKS < 64 ? CVY_GPU_RANKS : 64) /* `members` is one word */
#define PIECE ((size_t)CVY_GPU_PIECE_WORDS * 8)
#define CELL ((size_t)CVY_GPU_CELL_MOST) /* of more bytes there are pieces */
#define LARGE ((CVY_GPU_RING + 3) * PIECE + 5)
#define ROOM (LARGE + 64) /* of one message */
#define EDGE 32		  /* before and behind it */
#define PAD 0xc5

static int died;		 /* kill_rank dies in this step */
static uint8_t *host, *in, *out; /* ROOM for each rank */
static uint64_t members, lost;

static void wrong(const char *what, int peer, size_t i, int got, int want)
{
	if (failures++ < 10)
		fprintf(stderr, "rank %d, step %ld, %s: with rank %d at %zu: %d, not %d\n", rank, state.step, what,
			peer, i, got, want);
}

static int here(int r)
{
	return members >> r & 1;
}

/* ---- buffers ---- */

static uint8_t *at(uint8_t *buffers, int peer)
{
	return buffers + (size_t)peer * ROOM;
}

/* Byte @i of what @from sends to @to. */
static uint8_t byte_of(int from, int to, int what, size_t i)
{
	uint32_t v = (uint32_t)i * 2654435761u + (uint32_t)(from * RANKS + to) * 40503u + (uint32_t)what * 977u +
		     (uint32_t)state.step * 131u;

	return (uint8_t)(v >> 13);
}

/* For each peer its message of @bytes, and rooms where nothing is yet. */
static void fill(int what, size_t bytes)
{
	for (int p = 0; p < size; p++)
		for (size_t i = 0; i < bytes; i++)
			at(host, p)[EDGE + i] = byte_of(rank, p, what, i);
	CUDA(cudaMemcpyAsync(out, host, (size_t)size * ROOM, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemsetAsync(in, PAD, (size_t)size * ROOM, stream));
	CUDA(cudaStreamSynchronize(stream));
}

/* What came of @peer: @bytes, and nothing beside them. @came -1: some of them, maybe. */
static void check(const char *name, int peer, int what, size_t bytes, int came)
{
	uint8_t *to = at(host, peer);

	CUDA(cudaMemcpyAsync(to, at(in, peer), ROOM, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	checks++;
	for (size_t i = 0; i < ROOM; i++) {
		int inside = i >= EDGE && i < EDGE + bytes;
		int want = inside ? byte_of(peer, rank, what, i - EDGE) : PAD;

		if (to[i] == want || (inside && came < 0))
			continue;
		wrong(name, peer, i, to[i], want);
		break;
	}
}

static int send(int peer, size_t bytes, int tag)
{
	return covey_send(at(out, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, NULL);
}

static int recv(int peer, size_t bytes, int tag)
{
	return covey_recv(at(in, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, NULL);
}

/* ---- what became of it ---- */

/* Waits for the stream. The failure that is known of the messages until here: @want, of @peer if that is not -1. */
static void outcome(const char *name, int want, int peer)
{
	struct covey_result o;

	CUDA(cudaStreamSynchronize(stream));
	must(covey_device_result(group, &o), "message outcome");
	if (o.peer < 0)
		o.status = 0; /* that of a collective */
	if (o.status != want && !(died && o.status == COVEY_ERR_PEER && o.peer == kill_rank))
		wrong(name, o.peer, 0, o.status, want);
	if (o.status && want == o.status && peer >= 0 && o.peer != peer)
		wrong(name, o.peer, 1, o.peer, peer);
	lost += o.status == COVEY_ERR_PEER;
}

/* A call says so at once where its peer is known to be gone. */
static void called(int err, int peer, const char *name)
{
	if (died && err == COVEY_ERR_PEER && peer == kill_rank)
		lost++;
	else
		must(err, name);
}

/* A group's end tells of the first call that was refused. */
static void ended(int err, const char *name)
{
	if (!died || err != COVEY_ERR_PEER)
		must(err, name);
}

static int next_of(int r)
{
	do
		r = (r + 1) % size;
	while (!here(r));
	return r;
}

static int before(int r)
{
	do
		r = (r + size - 1) % size;
	while (!here(r));
	return r;
}

/* ---- works ---- */

static struct covey_work *send_start(int peer, size_t bytes, int tag)
{
	struct covey_work *work = NULL;

	called(covey_send_start(at(out, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, &work), peer,
	       "send_start");
	return work;
}

static struct covey_work *recv_start(int peer, size_t bytes, int tag)
{
	struct covey_work *work = NULL;

	called(covey_recv_start(at(in, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, &work), peer,
	       "recv_start");
	return work;
}

/* The end of a work: @want, and of a message that came its length and tag. */
static void decided(const char *name, struct covey_work *work, int want, int peer, size_t bytes, int tag)
{
	struct covey_result o;
	int got;

	checks++;
	if (!work)
		return;
	got = covey_work_wait(work, 0, &o);
	if (got != want && !(died && got == COVEY_ERR_PEER && peer == kill_rank))
		wrong(name, peer, 0, got, want);
	if (o.status != got || o.peer != peer || !o.wait_ns)
		wrong(name, peer, 1, o.peer, peer);
	if (!got && (o.bytes != bytes || o.tag != tag))
		wrong(name, peer, o.bytes, o.tag, tag);
	lost += got == COVEY_ERR_PEER;
	covey_work_free(work);
}

#endif
