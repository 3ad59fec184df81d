/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives. A message concerns two ranks, so it is no operation, and adds nothing to their number: its CTAs count in
 * `entered` while they work, so that no change takes memory from under them, and leave when the gate closes. Then they wait,
 * enter again by the words of the next view, and go on where they were, if the peer is the same process. Nothing of a message
 * carries a view. The memory between two ranks belongs to two processes and is fresh if one of them is new. So a tag is a
 * number in their life, from 1 on, and nothing of another process is left there.
 *
 * Each direction to and from a rank has CTAs of its own, so a group of sends and receives that forms a ring ends if all CTAs
 * of a launch run. The work of a CTA between entering and leaving is in message_flow.cuh.
 */
#ifndef CVY_MESSAGE_CUH
#define CVY_MESSAGE_CUH

#include "message_flow.cuh"
#include "queue.h"

/* A CTA's copy of words of the control page, read by one thread for all. */
struct cvy_message_words {
	struct cvy_gpu_lane lane;
	struct cvy_gpu_flow flow;
	uint32_t since; /* of the peer's process */
	int open;	/* these are words of one view, and the CTA is counted in */
};

static __device__ __forceinline__ struct cvy_gpu_flow *cvy_message_flow(const struct cvy_message_run *m)
{
	return &m->all.call->control->flow[m->with->peer][m->way];
}

/*
 * All threads: counted in (or they are already), and the words. All is asked for at once, and the add says whether the words
 * are of the view whose gate was open: the host writes none while one is in.
 */
static __device__ __forceinline__ void cvy_message_read(struct cvy_message_run *m, int enters,
							struct cvy_message_words *words)
{
	struct cvy_gpu_control *control = m->all.call->control;

	if (!threadIdx.x) {
		const uint8_t *flow = (const uint8_t *)cvy_message_flow(m);
		struct cvy_gpu_lane lane = cvy_lane_words(control, 0);
		uint32_t since = cvy_load_half(&control->roll.since[m->with->peer]);
		uint64_t v[6];
		int open = 1;

		cvy_load_packet(flow, v);
		cvy_load_packet(flow + 16, v + 2);
		cvy_load_packet(flow + 32, v + 4);
		if (CVY_GUARDED && enters)
			open = atomicAdd((unsigned long long *)&control->entered, 1ull) >> CVY_GPU_GATE_SHIFT ==
			       CVY_GPU_GATE_OPEN(lane.epoch);
		words->lane = lane;
		words->since = since;
		words->open = open;
		words->flow.since = v[0];
		words->flow.cells = v[1];
		words->flow.pieces = v[2];
		words->flow.credit = v[3];
		words->flow.begun = v[4];
	}
	__syncthreads();
	m->r.lane = words->lane;
	m->r.watch.open = CVY_GPU_GATE_OPEN(words->lane.epoch);
}

/* All threads, by words of a view: is the peer the same process? 0, or the reason why the message cannot go on. */
static __device__ __forceinline__ int cvy_message_peer(struct cvy_message_run *m, const struct cvy_message_words *words)
{
	const struct cvy_gpu_call *c = m->all.call;
	const uint64_t want = m->since ? m->since : words->flow.begun ? words->flow.begun : m->with->since;

	if (!cvy_has(m->r.lane.mask, m->with->peer) || !cvy_has(m->r.lane.mask, c->rank) ||
	    (want && words->since != want))
		return COVEY_ERR_PEER;
	if (cvy_far(&m->r) && c->queues[cvy_mapping(m->r.lane.out, m->with->peer)].kind)
		return COVEY_ERR_UNSUPPORTED;
	if (m->since)
		return 0;
	m->since = words->since;
	if (words->flow.since == m->since) {
		m->cell = words->flow.cells;
		m->came = words->flow.pieces;
		m->first = m->came;
		m->credit = words->flow.credit;
	}
	return 0;
}

static __device__ __forceinline__ int cvy_message_serve(struct cvy_message_run *m)
{
	return m->way == CVY_GPU_SENDS ? cvy_message_send(m) : cvy_message_receive(m);
}

/* One thread, before it counts no more: CTAs that come in later are for the same process. */
static __device__ __forceinline__ void cvy_message_begun(const struct cvy_message_run *m)
{
	if (m->lanes > 1)
		cvy_store_word((uint8_t *)&cvy_message_flow(m)->begun, m->since ? m->since : CVY_GPU_NOBODY);
}

/*
 * One thread of the last CTA of a way, after all have read: what the next kernel begins from. @here: its words are of a view with
 * the process that the messages were for; another one is told nothing. 1: the peer was told.
 */
static __device__ __forceinline__ int cvy_message_count(struct cvy_message_run *m, int here)
{
	uint8_t *flow = (uint8_t *)cvy_message_flow(m);
	int tells = here && m->way == CVY_GPU_TAKES && m->cell - m->credit >= CVY_GPU_CELLS / 4;

	if (m->lanes > 1)
		cvy_store_packet(flow + 32, 0, 0);
	if (tells) {
		m->credit = m->cell;
		cvy_store_word(cvy_to(m->all.call, &m->r, m->with->peer) + CVY_GPU_CREDIT, m->cell);
	}
	if (m->since) {
		cvy_store_packet(flow, m->since, m->cell);
		cvy_store_packet(flow + 16, m->first, m->credit);
	}
	return tells;
}

/* How a CTA ends. */
enum cvy_message_how {
	CVY_MESSAGE_OUT,   /* it may not enter again, and is not counted */
	CVY_MESSAGE_ALONE, /* it counts, and its peer is not there */
	CVY_MESSAGE_WHOLE
};

/*
 * All threads have come here. Stores to peers land before the CTA's count is taken away. The number of CTAs that have left is
 * requested first and used last.
 */
static __device__ __forceinline__ void cvy_message_end(struct cvy_message_run *m, enum cvy_message_how how)
{
	const int lands = CVY_GUARDED && how != CVY_MESSAGE_OUT;
	unsigned long long left = 0;

	if (threadIdx.x)
		return;
	cvy_message_begun(m);
	if (m->lanes > 1)
		left = atomicAdd((unsigned long long *)&cvy_message_flow(m)->left, 1ull);
	if (lands && (m->lanes > 1 || m->way == CVY_GPU_SENDS || m->first != m->came))
		__threadfence_system();
	if (left + 1 == (unsigned long long)m->lanes && cvy_message_count(m, how == CVY_MESSAGE_WHOLE) && lands)
		__threadfence_system();
	if (lands)
		atomicAdd((unsigned long long *)&m->all.call->control->entered, 0ull - 1ull);
}

/* All threads: counted in if the gate is open, else after a wait. 0, or the reason why it may not enter. */
static __device__ int cvy_message_enter(const struct cvy_gpu_call *c)
{
	__shared__ int err;
	unsigned open;

	if (!threadIdx.x)
		err = cvy_enter(c->control, &open);
	__syncthreads();
	return err;
}

/*
 * All threads: nothing more comes of messages @at and on, a warp's own: another may be through with what it lacks. So each
 * warp tells the host of its first that has no receipt.
 */
static __device__ __noinline__ void cvy_message_lost(struct cvy_message_all all, const struct cvy_gpu_with *with,
						     int way, int at, int err)
{
	int told = 0;

	for (; !(threadIdx.x % 32) && at >= 0; at = all.message[at].next) {
		if (all.message[at].receipt || !told)
			cvy_message_failed(all, with->peer, way, at, err);
		told |= !all.message[at].receipt;
	}
}

/* All threads of a CTA that was stopped, or came to a closed gate, or found that its peer is not there. */
static __device__ __noinline__ void cvy_message_rest(struct cvy_message_run m)
{
	__shared__ struct cvy_message_words words;
	const struct cvy_gpu_call *c = m.all.call;
	enum cvy_message_how how;
	int err, stopped;

	do {
		if (CVY_GUARDED && !threadIdx.x) {
			if (m.since)
				cvy_message_begun(&m);
			cvy_leave(c->control);
		}
		err = CVY_GUARDED ? cvy_message_enter(c) : 0;
		how = CVY_MESSAGE_OUT;
		if (!err) {
			cvy_message_read(&m, 0, &words);
			err = cvy_message_peer(&m, &words);
			how = err ? CVY_MESSAGE_ALONE : CVY_MESSAGE_WHOLE;
		}
		stopped = __syncthreads_or(!err && cvy_message_serve(&m));
	} while (stopped);
	if (err)
		cvy_message_lost(m.all, m.with, m.way, m.at, err);
	cvy_message_end(&m, how);
}

static __device__ __forceinline__ void cvy_message_pair(struct cvy_message_run *m)
{
	__shared__ struct cvy_message_words words;
	int stopped;

	cvy_message_read_ahead(m);
	cvy_message_read(m, 1, &words);
	stopped = !words.open || cvy_message_peer(m, &words);
	if (!stopped)
		stopped = cvy_message_serve(m);
	if (__syncthreads_or(stopped))
		cvy_message_rest(*m);
	else
		cvy_message_end(m, CVY_MESSAGE_WHOLE);
}

/* Messages of a rank to itself: the host has checked that there are as many receives. */
static __device__ __noinline__ void cvy_message_own(struct cvy_message_all all, const struct cvy_gpu_with *with,
						    unsigned index)
{
	const unsigned step = with->lanes[CVY_GPU_SENDS] * blockDim.x;
	int out = with->first[CVY_GPU_SENDS], in = with->first[CVY_GPU_TAKES];

	while (out >= 0) {
		const struct cvy_gpu_message *from = &all.message[out], *to = &all.message[in];

		if ((to->tag != from->tag && to->tag != COVEY_TAG_ANY) || from->bytes > to->bytes) {
			if (!threadIdx.x && !index)
				cvy_message_failed(all, with->peer, CVY_GPU_TAKES, in, COVEY_ERR_MISMATCH);
		} else {
			if (!threadIdx.x && !index)
				cvy_message_came(all, to, from->bytes, (uint32_t)from->tag);
			for (uint64_t i = index * blockDim.x + threadIdx.x; i * 8 < from->bytes; i += step)
				cvy_word_put(to->at, i, from->bytes, cvy_word_get(from->at, i, from->bytes));
		}
		out = from->next;
		in = to->next;
	}
}

/* Each way of a pair has as many CTAs as that which needs most; those that it has no use for end at once. */
static __device__ __forceinline__ void cvy_message_cta(struct cvy_message_all all, const struct cvy_gpu_with *with)
{
	const unsigned lanes = (unsigned)all.call->lanes, way = blockIdx.x / lanes, index = blockIdx.x % lanes;
	struct cvy_message_run m = {};

	cvy_wait_for_stream();
	with += way / CVY_GPU_WAYS;
	m.all = all;
	m.with = with;
	m.way = (int)(way % CVY_GPU_WAYS);
	m.lanes = with->lanes[m.way];
	m.index = (int)index;
	m.at = with->first[m.way];
	m.r.watch.control = all.call->control;
	m.r.watch.mailbox = all.call->mailbox;
	if (m.index >= m.lanes)
		return;
	if (with->peer != all.call->rank)
		cvy_message_pair(&m);
	else if (m.way == CVY_GPU_SENDS)
		cvy_message_own(all, with, index);
}

/* Kernels for few messages, which most launches have, and for as many as there may be: arguments take time. */
template <typename ARGS>
static __global__ void __launch_bounds__(CVY_GPU_THREADS, 1) cvy_messages(const __grid_constant__ ARGS args)
{
	const struct cvy_message_all all = { &args.call, args.message, args.receipts };

	cvy_message_cta(all, args.with);
}

#endif
