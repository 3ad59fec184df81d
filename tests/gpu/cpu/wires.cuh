/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one process with queues between some of them: a proxy posts for each rank, and a wire leads from it to each rank
 * that is far(). Included behind world.cuh. The program says in far() who that is.
 *
 * A slow wire brings a put line by line, between looks of the proxy. It compares each line with what stood there when it
 * was posted: memory that is written while a put of it is under way may arrive torn.
 */
#ifndef WIRES_CUH
#define WIRES_CUH

#include <utility>

#include "queues.h"

#define PAIRS (RANKS * RANKS)
#define WIRE_LINE 128

/* A command that is under way. */
struct parcel {
	struct cvy_ring_command command;
	uint64_t *was, at; /* what a put was to bring; bytes of it that have been brought */
};

/* From one rank to another. */
struct wire {
	uint8_t *from, *to; /* what stands for the chunk; the chunk */
	uint64_t posted, done, bytes;
	struct parcel parcel[CVY_PROXY_UNDER_WAY];
};

/* What posts for one rank. */
struct post {
	struct cvy_queue_memory reach;
	struct cvy_proxy *proxy;
	uint64_t *abort;
};

static struct wire wires[PAIRS];
static struct post posts[RANKS];
static int generation[PAIRS];	     /* of the chunk, and of what stands for it */
static unsigned wire_lines;	     /* that a slow wire brings at a time, less than that; 0: wires are not slow */
static std::atomic<int> wire_spoilt; /* lines that were written while they were under way */

static int far(int a, int b);

/* Up to @end of a put. */
static void wire_bring(struct wire *w, struct parcel *p, uint64_t end)
{
	const struct cvy_ring_command *c = &p->command;
	const uint8_t *from = w->from + c->local;
	uint8_t *to = w->to + c->remote;

	for (uint64_t at = p->at; at < end; at += WIRE_LINE) {
		const uint64_t bytes = c->bytes - at < WIRE_LINE ? c->bytes - at : WIRE_LINE;

		if (p->was && memcmp(from + at, p->was + at / 8, bytes) != 0)
			wire_spoilt++;
		for (uint64_t i = at; i < at + bytes; i += 8)
			cvy_q_store((uint64_t *)(to + i), *(const uint64_t *)(from + i));
	}
	p->at = end;
}

/* Some lines, or a signal. 1: it has been brought. */
static int wire_go_on(struct wire *w, struct parcel *p)
{
	const struct cvy_ring_command *c = &p->command;
	uint64_t end = c->bytes;

	if (c->op == CVY_RING_SIGNAL) {
		cvy_q_store((uint64_t *)(w->to + c->remote), c->value);
		return 1;
	}
	if (wire_lines)
		end = p->at + (uint64_t)rand() % wire_lines * WIRE_LINE;
	wire_bring(w, p, end < c->bytes ? end : c->bytes);
	if (p->at < c->bytes)
		return 0;
	free(p->was);
	return 1;
}

static int wire_post(void *ctx, const struct cvy_ring_command *c)
{
	struct wire *w = (struct wire *)ctx;
	struct parcel *p = &w->parcel[w->posted % CVY_PROXY_UNDER_WAY];

	*p = { *c, NULL, 0 };
	w->posted++;
	w->bytes += c->op == CVY_RING_SIGNAL ? 0 : c->bytes;
	if (!wire_lines) {
		w->done += (uint64_t)wire_go_on(w, p);
	} else if (c->op != CVY_RING_SIGNAL) {
		p->was = (uint64_t *)malloc(c->bytes);
		memcpy(p->was, w->from + c->local, c->bytes);
	}
	return 0;
}

static void wire_flush(void *)
{
}

static uint64_t wire_done(void *ctx, uint64_t *status)
{
	struct wire *w = (struct wire *)ctx;

	*status = 0;
	if (w->done < w->posted && wire_go_on(w, &w->parcel[w->done % CVY_PROXY_UNDER_WAY]))
		w->done++;
	return w->done;
}

static void open_post(int r)
{
	struct post *p = &posts[r];
	struct cvy_proxy_args args = { 8192, CVY_GPU_RANKS * CVY_GPU_GENERATIONS, 0, NULL, &p->reach };
	char why[160];
	void *seen;

	OK(ranks[r].gpu, ops->reach(ranks[r].gpu, &p->reach));
	p->abort = (uint64_t *)aligned_alloc(4096, 4096);
	memset(p->abort, 0, 4096);
	OK(ranks[r].gpu, p->reach.map(p->reach.ctx, p->abort, 4096, 0, &seen, why, sizeof(why)));
	args.abort = (uint64_t *)seen;
	OK(ranks[r].gpu, cvy_proxy_open(&args, &p->proxy));
}

static void close_post(int r)
{
	cvy_proxy_close(posts[r].proxy);
	posts[r].reach.unmap(posts[r].reach.ctx, posts[r].abort, 4096);
	free(posts[r].abort);
}

static void open_wire(int from, int to)
{
	const int g = generation[from * RANKS + to];
	const uint32_t number = (uint32_t)(to * CVY_GPU_GENERATIONS + g);
	struct wire *w = &wires[from * RANKS + to];
	struct cvy_proxy_link link = { w, CVY_GPU_CHUNK, CVY_GPU_CHUNK, wire_post, wire_flush, wire_done };
	struct cvy_queue queue;

	w->posted = w->done = w->bytes = 0;
	OK(ranks[to].gpu, ops->far_chunk(ranks[to].gpu, from, g, 0, (void **)&w->to));
	OK(ranks[from].gpu, ops->far_chunk(ranks[from].gpu, to, g, 1, (void **)&w->from));
	OK(ranks[from].gpu, cvy_proxy_attach(posts[from].proxy, number, &link));
	cvy_proxy_queue(posts[from].proxy, number, &queue);
	OK(ranks[from].gpu, ops->queue(ranks[from].gpu, to, g, &queue, 1000));
	ranks[to].in = (ranks[to].in & ~(3ull << (2 * from))) | (uint64_t)g << (2 * from);
	ranks[from].outgen = (ranks[from].outgen & ~(3ull << (2 * to))) | (uint64_t)g << (2 * to);
}

/* Fresh memory both ways, at other addresses. */
static void connect_anew(int a, int b)
{
	for (int way = 0; way < 2; way++, std::swap(a, b)) {
		int *g = &generation[a * RANKS + b];

		*g = (*g + 1) % CVY_GPU_GENERATIONS;
		if (far(a, b))
			open_wire(a, b);
		else
			connect_pair(a, b, *g);
	}
}

/* The network has nothing under way. */
static void settle(void)
{
	for (int r = 0; r < n; r++)
		while (!cvy_proxy_idle(posts[r].proxy))
			usleep(100);
}

#endif
