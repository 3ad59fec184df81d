/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives. A message concerns two ranks, so it is no operation, and adds nothing to their number: its CTA counts in
 * `entered` while it works, so that no change takes memory from under it, and leaves when the gate closes. Then it waits, comes
 * in again by the words of the next view, and goes on where it was: if the peer is the process that it was. No slot bears a
 * view. The memory of a pair is of two processes, and is fresh where one of them is; so a slot's tag is its number in their
 * life, from 1 on, and what was left of another process is not there.
 *
 * One CTA serves what goes to a rank and what comes from it, and waits only while neither can go on: for room in the ring
 * there, or for the next slot here. So a group of sends and receives ends, however they form a ring, if all CTAs of it run.
 * A message is its bytes and tag, then its words, cut into slots of lines.
 */
#ifndef CVY_MESSAGE_CUH
#define CVY_MESSAGE_CUH

#include "queue.h"
#include "step.cuh"

#define CVY_MESSAGE_HEAD 2 /* words before a message's own */
#define CVY_MESSAGE_PACKETS (CVY_GPU_ROWS * CVY_GPU_THREADS)
#define CVY_MESSAGE_WORDS ((uint64_t)(CVY_MESSAGE_PACKETS / 8 * CVY_LINE_WORDS)) /* of a slot */
#define CVY_MESSAGE_CREDIT \
	(CVY_GPU_RING / 4) /* slots are given back so many at a time: a fence for each would be dear */

/* One direction of a pair. Alike in all threads. */
struct cvy_flow {
	int at;		/* message under way, -1: none is left */
	uint64_t slot;	/* of it, the next */
	uint64_t count; /* slots of the pair before */
};

struct cvy_message_run {
	const struct cvy_gpu_messages *all;
	const struct cvy_gpu_with *with;
	struct cvy_lane_run r; /* words of the view; and the watch */
	uint64_t since;	       /* of the peer, 0: not looked at yet */
	uint64_t credit;       /* slots that the peer has given back, as far as is known */
	uint64_t bytes;	       /* of the message that comes, from its first slot */
	int keeps;	       /* and whether it is what was asked for */
	struct cvy_flow send, recv;
};

static __device__ __forceinline__ const struct cvy_gpu_message *cvy_message_at(const struct cvy_message_run *m,
									       const struct cvy_flow *f)
{
	return &m->all->message[f->at];
}

static __device__ __forceinline__ uint64_t cvy_message_words(uint64_t bytes)
{
	return CVY_MESSAGE_HEAD + bytes / 8 + (bytes % 8 != 0);
}

/* A slot of a message of @words words is through. */
static __device__ __forceinline__ void cvy_flow_on(const struct cvy_message_run *m, struct cvy_flow *f, uint64_t words)
{
	f->count++;
	f->slot++;
	if (f->slot * CVY_MESSAGE_WORDS < words)
		return;
	f->at = cvy_message_at(m, f)->next;
	f->slot = 0;
}

/* One thread. The host is told of the first. */
static __device__ __noinline__ void cvy_message_failed(const struct cvy_message_run *m, const struct cvy_flow *f,
						       int sends, int err)
{
	const struct cvy_gpu_message *x = cvy_message_at(m, f);

	atomicCAS((unsigned long long *)&m->all->call.control->failure, 0ull,
		  (unsigned long long)CVY_GPU_FAILURE(err, m->with->peer, sends, x->tag));
}

static __device__ __forceinline__ int cvy_message_fits(const struct cvy_gpu_message *x, int tag, uint64_t bytes)
{
	return (x->tag == tag || x->tag == COVEY_TAG_ANY) && bytes <= x->bytes;
}

/* ---- slots ---- */

/* Packets of a slot that this thread has in one turn: first word of each, how many, and which. 0: its warp has none. */
static __device__ __forceinline__ unsigned cvy_message_turn(uint64_t base, uint64_t words, int first,
							    int u[CVY_GPU_ROWS], uint64_t word[CVY_GPU_ROWS],
							    int n[CVY_GPU_ROWS])
{
	unsigned need = 0;

#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++) {
		u[i] = first + i * (int)blockDim.x + (int)threadIdx.x;
		if (u[i] < CVY_MESSAGE_PACKETS && base + cvy_warp_word<CVY_GPU_LINE>(u[i]) < words)
			need |= 1u << i;
		n[i] = cvy_place<CVY_GPU_LINE>(u[i], &word[i]);
		word[i] += base;
	}
	return need;
}

/* All threads: the slot that comes next of what is sent. */
static __device__ void cvy_message_push(struct cvy_message_run *m)
{
	const struct cvy_gpu_message *x = cvy_message_at(m, &m->send);
	const uint64_t words = cvy_message_words(x->bytes), base = m->send.slot * CVY_MESSAGE_WORDS;
	uint8_t *slot = cvy_to(&m->all->call, &m->r, m->with->peer) + cvy_gpu_ring_slot(m->send.count);

#pragma unroll 1
	for (int first = 0; first < CVY_MESSAGE_PACKETS; first += CVY_GPU_ROWS * (int)blockDim.x) {
		uint64_t v[CVY_GPU_ROWS][2], word[CVY_GPU_ROWS];
		int u[CVY_GPU_ROWS], n[CVY_GPU_ROWS];
		unsigned need = cvy_message_turn(base, words, first, u, word, n);

		if (!need)
			break;
#pragma unroll
		for (int i = 0; i < CVY_GPU_ROWS; i++) {
			if (!(need >> i & 1))
				continue;
			v[i][0] = x->bytes;
			v[i][1] = (uint64_t)(uint32_t)x->tag;
			if (word[i])
				cvy_get<CVY_GPU_LINE>(x->at, word[i] - CVY_MESSAGE_HEAD, x->bytes, v[i]);
		}
#pragma unroll
		for (int i = 0; i < CVY_GPU_ROWS; i++)
			if (need >> i & 1)
				cvy_push<CVY_GPU_LINE>(slot, u[i], v[i], m->send.count + 1);
	}
	cvy_flow_on(m, &m->send, words);
}

/* All threads: bytes and tag of the message whose first slot is coming. 1: stopped. */
static __device__ int cvy_message_head(struct cvy_message_run *m, const uint8_t *slot)
{
	__shared__ uint64_t head[2];
	int stopped = 0;

	if (threadIdx.x < 32) {
		const uint8_t *at[4] = { slot + threadIdx.x * CVY_GPU_PACKET, NULL, NULL, NULL };
		const int whom[4] = { m->with->peer, m->with->peer, m->with->peer, m->with->peer };
		uint64_t v[4][2];

		stopped = cvy_wait_packets<CVY_GPU_LINE>(at, whom, 1, m->recv.count + 1, v, &m->r.watch);
		if (!threadIdx.x && !stopped) {
			head[0] = v[0][0];
			head[1] = v[0][1];
		}
	}
	if (__syncthreads_or(stopped))
		return 1;
	m->bytes = head[0];
	m->keeps = cvy_message_fits(cvy_message_at(m, &m->recv), (int)(uint32_t)head[1], m->bytes);
	if (!m->keeps && !threadIdx.x)
		cvy_message_failed(m, &m->recv, 0, COVEY_ERR_MISMATCH);
	return 0;
}

/* All threads: the words of a slot, to where they belong; what nobody asked for goes nowhere. 1: stopped. */
static __device__ int cvy_message_words_of(struct cvy_message_run *m, const uint8_t *slot)
{
	const struct cvy_gpu_message *x = cvy_message_at(m, &m->recv);
	const uint64_t words = cvy_message_words(m->bytes), base = m->recv.slot * CVY_MESSAGE_WORDS;
	const int whom[4] = { m->with->peer, m->with->peer, m->with->peer, m->with->peer };

#pragma unroll 1
	for (int first = 0; first < CVY_MESSAGE_PACKETS; first += CVY_GPU_ROWS * (int)blockDim.x) {
		uint64_t v[CVY_GPU_ROWS][2], word[CVY_GPU_ROWS];
		int u[CVY_GPU_ROWS], n[CVY_GPU_ROWS];
		unsigned need = cvy_message_turn(base, words, first, u, word, n);
		const uint8_t *at[CVY_GPU_ROWS];

		if (!need)
			break;
#pragma unroll
		for (int i = 0; i < CVY_GPU_ROWS; i++)
			at[i] = slot + (size_t)u[i] * CVY_GPU_PACKET;
		if (cvy_wait_packets<CVY_GPU_LINE>(at, whom, need, m->recv.count + 1, v, &m->r.watch))
			return 1;
#pragma unroll
		for (int i = 0; i < CVY_GPU_ROWS; i++)
			if ((need >> i & 1) && word[i] && m->keeps)
				cvy_set<CVY_GPU_LINE>(x->at, word[i] - CVY_MESSAGE_HEAD, n[i], m->bytes, v[i]);
	}
	return 0;
}

/* All threads: the slot that comes next of what is received. 1: stopped; then it is taken once more, whole. */
static __device__ int cvy_message_take(struct cvy_message_run *m)
{
	const struct cvy_gpu_call *c = &m->all->call;
	const uint8_t *slot = cvy_from(c, &m->r, m->with->peer) + cvy_gpu_ring_slot(m->recv.count);

	if (!m->recv.slot && cvy_message_head(m, slot))
		return 1;
	if (__syncthreads_or(cvy_message_words_of(m, slot)))
		return 1;
	cvy_flow_on(m, &m->recv, cvy_message_words(m->bytes));
	if (!threadIdx.x && m->recv.count % CVY_MESSAGE_CREDIT == 0) {
		__threadfence_system(); /* all have read before it is written again */
		cvy_store_word(cvy_to(c, &m->r, m->with->peer) + CVY_GPU_CREDIT, m->recv.count);
	}
	return 0;
}

/* ---- a pair ---- */

/* One thread: what the pair may go on with, 0: it has to leave. */
static __device__ int cvy_message_next(struct cvy_message_run *m)
{
	const uint8_t *from = cvy_from(&m->all->call, &m->r, m->with->peer);
	const int last = 7 * CVY_GPU_PACKET + 8; /* the tag of a slot's first line */
	struct cvy_either e = { NULL, m->send.count, NULL, m->recv.count + 1, 0 };
	int may;

	if (m->send.at >= 0 && m->send.count - m->credit < CVY_GPU_RING)
		e.may = CVY_MAY_SEND;
	else if (m->send.at >= 0)
		e.credit = (const uint64_t *)(from + CVY_GPU_CREDIT);
	if (m->recv.at >= 0)
		e.tag = (const uint64_t *)(from + cvy_gpu_ring_slot(m->recv.count) + last);
	may = cvy_wait_either(&e, m->with->peer, &m->r.watch, &m->credit);
	if (e.credit)
		__threadfence_system(); /* slots that were given back are written after that */
	return may;
}

/* All threads, counted in: until all messages of the pair are through; 1: the gate closed. */
static __device__ int cvy_message_serve(struct cvy_message_run *m)
{
	__shared__ int next;
	__shared__ uint64_t credit;

	while (m->send.at >= 0 || m->recv.at >= 0) {
		int may;

		if (!threadIdx.x) {
			next = cvy_message_next(m);
			credit = m->credit;
		}
		__syncthreads();
		may = next;
		m->credit = credit;
		__syncthreads();
		if (!may)
			return 1;
		if (may & CVY_MAY_SEND)
			cvy_message_push(m);
		if ((may & CVY_MAY_TAKE) && cvy_message_take(m))
			return 1;
	}
	return 0;
}

/* All threads, counted in, by the words of the view: is the peer who it was? 0, or why nothing more comes of it. */
static __device__ int cvy_message_peer(struct cvy_message_run *m)
{
	const struct cvy_gpu_call *c = &m->all->call;
	const struct cvy_gpu_pair *pair = &c->control->pair[m->with->peer];
	uint32_t since = cvy_load_half(&c->control->roll.since[m->with->peer]);
	uint32_t want = m->since ? (uint32_t)m->since : m->with->since;

	if (!cvy_has(m->r.lane.mask, m->with->peer) || !cvy_has(m->r.lane.mask, c->rank) || (want && since != want))
		return COVEY_ERR_PEER;
	if (cvy_far(&m->r) && c->queues[cvy_mapping(m->r.lane.out, m->with->peer)].kind)
		return COVEY_ERR_UNSUPPORTED;
	if (m->since)
		return 0;
	m->since = since;
	if (cvy_load_word(&pair->since) == since) {
		m->send.count = cvy_load_word(&pair->sent);
		m->recv.count = cvy_load_word(&pair->taken);
	}
	return 0;
}

/* All threads: what the next kernel begins from is written, and the CTA counts no more. */
static __device__ void cvy_message_leave(const struct cvy_message_run *m)
{
	struct cvy_gpu_pair *pair = &m->all->call.control->pair[m->with->peer];

	__syncthreads();
	if (threadIdx.x)
		return;
	if (m->since) {
		cvy_store_packet((uint8_t *)pair, m->since, m->send.count);
		cvy_store_word((uint8_t *)&pair->taken, m->recv.count);
	}
	if (CVY_GUARDED)
		cvy_leave(m->all->call.control);
}

/* All threads: counted in, with the words of a view. 0, or why it is not let in any more. */
static __device__ int cvy_message_enter(struct cvy_message_run *m)
{
	const struct cvy_gpu_call *c = &m->all->call;
	__shared__ unsigned open;
	__shared__ int err;

	if (!threadIdx.x) {
		err = 0;
		if (CVY_GUARDED)
			err = cvy_enter(c->control, c->park_cycles, &open);
		if (err == COVEY_ERR_TIMEOUT)
			cvy_store_word((uint8_t *)&c->mailbox->gave_up, 1);
	}
	__syncthreads();
	m->r.lane = cvy_lane_words(c->control, 0);
	m->r.watch.open = open;
	return err;
}

static __device__ void cvy_message_pair(struct cvy_message_run *m)
{
	int err, stopped = 0;

	do {
		err = cvy_message_enter(m);
		if (err)
			break;
		err = cvy_message_peer(m);
		stopped = !err && cvy_message_serve(m);
		cvy_message_leave(m);
	} while (stopped);
	if (err && !threadIdx.x)
		cvy_message_failed(m, m->recv.at >= 0 ? &m->recv : &m->send, m->recv.at < 0, err);
}

/* What a rank sends to itself: the host has seen to it that there are as many receives. */
static __device__ void cvy_message_own(struct cvy_message_run *m)
{
	while (m->send.at >= 0) {
		const struct cvy_gpu_message *from = cvy_message_at(m, &m->send), *to = cvy_message_at(m, &m->recv);

		if (!cvy_message_fits(to, from->tag, from->bytes)) {
			if (!threadIdx.x)
				cvy_message_failed(m, &m->recv, 0, COVEY_ERR_MISMATCH);
		} else {
			for (uint64_t i = threadIdx.x; i * 8 < from->bytes; i += blockDim.x)
				cvy_word_put(to->at, i, from->bytes, cvy_word_get(from->at, i, from->bytes));
		}
		m->send.at = from->next;
		m->recv.at = to->next;
	}
}

static __global__ void __launch_bounds__(CVY_GPU_THREADS, 1)
	cvy_messages(const __grid_constant__ struct cvy_gpu_messages all)
{
	struct cvy_message_run m = {};

	m.all = &all;
	m.with = &all.with[blockIdx.x];
	m.r.watch.control = all.call.control;
	m.r.watch.mailbox = all.call.mailbox;
	m.send.at = m.with->send;
	m.recv.at = m.with->recv;
	if (m.with->peer == all.call.rank)
		cvy_message_own(&m);
	else
		cvy_message_pair(&m);
}

#endif
