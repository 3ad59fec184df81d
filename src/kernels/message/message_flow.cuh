/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way of a pair, as a CTA works on it. A message is its *cell* (bytes, tag, and all of it if it is short) and, if it is
 * not, *pieces* of a few lines each, which one warp moves at a time. Cells and pieces are numbered in the life of the pair, and
 * a number says which warp has the piece, on the sender and on the receiver. So neither side knows nor asks how many CTAs
 * the other has, and no warp waits for another except at the end of a receive.
 *
 * The warp that has read a place of the ring gives it back with one word; the launch gives back cells, which all CTAs read.
 * A thread has stored what it read, so its loads have ended. No fence is needed before that word.
 */
#ifndef CVY_MESSAGE_FLOW_CUH
#define CVY_MESSAGE_FLOW_CUH

#include "step.cuh"

/* Of a launch. */
struct cvy_message_all {
	const struct cvy_gpu_call *call;
	const struct cvy_gpu_message *message;
	uint8_t *receipts;
};

/* Alike in all threads, but for what is a warp's own. */
struct cvy_message_run {
	struct cvy_message_all all;
	const struct cvy_gpu_with *with;
	struct cvy_lane_run r; /* words of the view; and the watch */
	int way, lanes, index; /* of the way, and this CTA's among them */
	uint64_t since;	       /* of the peer's process, 0: not looked at yet */
	uint64_t credit; /* SENDS: cells that the peer has given back, as far as is known; TAKES: that it was told of */
	int at;		 /* message under way, -1: none is left. SENDS: a warp's own, and so are the next four */
	int headed;	 /* this CTA is through with its cell */
	uint64_t cell, first; /* number of its cell, and of its first piece */
	uint64_t next;	      /* a warp's own: the piece that it does next */
	uint64_t came, bytes; /* TAKES: first piece of the launch; bytes of the message */
	int keeps;	      /* TAKES: it is what was asked for */
	int read;	      /* SENDS: of whose cell this thread has read its first word, -1: none */
	uint64_t word;
};

static __device__ __forceinline__ const struct cvy_gpu_message *cvy_message_at(const struct cvy_message_run *m)
{
	return &m->all.message[m->at];
}

static __device__ __forceinline__ uint64_t cvy_message_warps(const struct cvy_message_run *m)
{
	return (uint64_t)m->lanes * (blockDim.x / 32);
}

/* The cell is one CTA's alone, but that all that receive read the head. */
static __device__ __forceinline__ int cvy_message_cell_is_mine(const struct cvy_message_run *m)
{
	return (m->cell & (uint64_t)(m->lanes - 1)) == (uint64_t)m->index;
}

/* The cell is through; this warp's first piece of the message. */
static __device__ __forceinline__ void cvy_message_headed(struct cvy_message_run *m)
{
	uint64_t own = (uint64_t)m->index + (uint64_t)m->lanes * (threadIdx.x / 32);

	m->headed = 1;
	m->next = m->first + ((own - m->first) & (cvy_message_warps(m) - 1));
}

static __device__ __forceinline__ void cvy_message_on(struct cvy_message_run *m, uint64_t bytes)
{
	m->first += cvy_gpu_pieces(bytes);
	m->cell++;
	m->headed = 0;
	m->at = cvy_message_at(m)->next;
}

static __device__ __forceinline__ uint8_t *cvy_message_receipt(struct cvy_message_all all,
							       const struct cvy_gpu_message *x)
{
	return all.receipts + (size_t)(x->receipt - 1) * CVY_GPU_RECEIPT_LINE;
}

/* One thread. A receipt tells of its own message; of the others the host is told of the first. */
static __device__ __noinline__ void cvy_message_failed(struct cvy_message_all all, int peer, int way, int at, int err)
{
	if (all.message[at].receipt)
		cvy_store_word(cvy_message_receipt(all, &all.message[at]), (uint32_t)err);
	else
		atomicCAS((unsigned long long *)&all.call->control->failure, 0ull,
			  (unsigned long long)CVY_GPU_FAILURE(err, peer, way == CVY_GPU_SENDS, all.message[at].tag));
}

/* One thread: what came for a receive, if somebody has asked. */
static __device__ __forceinline__ void cvy_message_came(struct cvy_message_all all, const struct cvy_gpu_message *x,
							uint64_t bytes, uint32_t tag)
{
	if (x->receipt)
		cvy_store_packet(cvy_message_receipt(all, x) + offsetof(struct cvy_gpu_answer, bytes), bytes,
				 (uint64_t)1 << 32 | tag);
}

/* Packets of its next piece that this thread has: which words of the message, and how many. 0: the warp has none there. */
static __device__ __forceinline__ unsigned cvy_message_packets(const struct cvy_message_run *m, uint64_t bytes,
							       uint64_t word[CVY_GPU_ROWS], int n[CVY_GPU_ROWS])
{
	const uint64_t words = bytes / 8 + (bytes % 8 != 0), base = (m->next - m->first) * CVY_GPU_PIECE_WORDS;
	unsigned need = 0;

#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++) {
		int u = i * 32 + (int)threadIdx.x % 32;

		if (base + cvy_warp_word<CVY_GPU_LINE>(u) < words)
			need |= 1u << i;
		n[i] = cvy_place<CVY_GPU_LINE>(u, &word[i]);
		word[i] += base;
	}
	return need;
}

/* Where packet @row of this thread stands in a piece. */
static __device__ __forceinline__ size_t cvy_message_packet(int row)
{
	return (size_t)(row * 32 + (int)threadIdx.x % 32) * CVY_GPU_PACKET;
}

/* The gate, as it is asked for at every fourth piece of a warp: many look at one word. */
static __device__ __forceinline__ unsigned cvy_message_gate(const struct cvy_message_run *m)
{
	if (!CVY_GUARDED || m->next & 3 * cvy_message_warps(m))
		return m->r.watch.open;
	return cvy_gate(m->all.call->control);
}

/* ---- what is sent ---- */

/* First loads of a short message, before the view's words are here: loads that wait for loads would be its time. */
static __device__ __forceinline__ void cvy_message_read_ahead(struct cvy_message_run *m)
{
	const struct cvy_gpu_message *x = cvy_message_at(m);

	m->read = -1;
	if (m->way == CVY_GPU_SENDS && m->lanes == 1 && cvy_gpu_cell_has(x->bytes, threadIdx.x)) {
		m->read = m->at;
		m->word = cvy_word_get(x->at, threadIdx.x - 1, x->bytes);
	}
}

static __device__ __forceinline__ uint64_t cvy_message_word(const struct cvy_message_run *m,
							    const struct cvy_gpu_message *x, unsigned i)
{
	if (m->read == m->at && i == threadIdx.x)
		return m->word;
	return cvy_word_get(x->at, i - 1, x->bytes);
}

/* All threads. 1: stopped. */
static __device__ __forceinline__ int cvy_message_push_cell(struct cvy_message_run *m, const struct cvy_gpu_message *x)
{
	const struct cvy_gpu_call *c = m->all.call;
	const uint64_t tag = m->cell + 1;
	uint8_t *cell = cvy_to(c, &m->r, m->with->peer) + cvy_gpu_cell_at(m->cell);

	if (m->cell - m->credit >= CVY_GPU_CELLS &&
	    cvy_wait_room((const uint64_t *)(cvy_from(c, &m->r, m->with->peer) + CVY_GPU_CREDIT), tag - CVY_GPU_CELLS,
			  m->with->peer, &m->r.watch, &m->credit))
		return 1;
#pragma unroll 1
	for (unsigned i = threadIdx.x; !i || cvy_gpu_cell_has(x->bytes, i); i += blockDim.x)
		cvy_store_packet(cell + (size_t)i * CVY_GPU_PACKET, i ? cvy_message_word(m, x, i) : x->bytes,
				 i ? tag : (uint64_t)(uint32_t)x->tag << 32 | (uint32_t)tag);
	return 0;
}

/* All threads of a warp: its next piece. 1: stopped, and nothing of it is sent. */
static __device__ __forceinline__ int cvy_message_push(struct cvy_message_run *m, const struct cvy_gpu_message *x)
{
	const struct cvy_gpu_call *c = m->all.call;
	const uint8_t *given = cvy_from(c, &m->r, m->with->peer) + cvy_gpu_given_at(m->next);
	uint8_t *piece = cvy_to(c, &m->r, m->with->peer) + cvy_gpu_piece_at(m->next);
	const unsigned gate = cvy_message_gate(m);
	uint64_t v[CVY_GPU_ROWS][2], word[CVY_GPU_ROWS], got;
	int n[CVY_GPU_ROWS];
	unsigned need = cvy_message_packets(m, x->bytes, word, n);

#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++)
		if (need >> i & 1)
			cvy_get<CVY_GPU_LINE>(x->at, word[i], x->bytes, v[i]);
	if (m->next >= CVY_GPU_RING &&
	    cvy_wait_room((const uint64_t *)given, m->next + 1 - CVY_GPU_RING, m->with->peer, &m->r.watch, &got))
		return 1;
	if (__any_sync(0xffffffffu, gate != m->r.watch.open))
		return 1;
#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++)
		if (need >> i & 1)
			cvy_push<CVY_GPU_LINE>(piece, i * 32 + (int)threadIdx.x % 32, v[i], m->next + 1);
	m->next += cvy_message_warps(m);
	return 0;
}

/* All threads, each warp by itself: until all messages have gone. 1: stopped. */
static __device__ __forceinline__ int cvy_message_send(struct cvy_message_run *m)
{
	while (m->at >= 0) {
		const struct cvy_gpu_message *x = cvy_message_at(m);
		const uint64_t end = m->first + cvy_gpu_pieces(x->bytes);

		if (!m->headed) {
			if (cvy_message_cell_is_mine(m) && cvy_message_push_cell(m, x))
				return 1;
			cvy_message_headed(m);
		}
#pragma unroll 1
		while (m->next < end)
			if (cvy_message_push(m, x))
				return 1;
		cvy_message_on(m, x->bytes);
	}
	return 0;
}

/* ---- what is received ---- */

/* The packets of a cell beside its head. */
struct cvy_message_rest_of {
	const uint8_t *cell;
	uint8_t *to; /* NULL: nowhere, since nobody asked for it */
	uint64_t tag, bytes;
	int peer;
};

/* All threads: packets @i and on of a cell to where they belong. 1: stopped. */
static __device__ __noinline__ int cvy_message_take_cell(struct cvy_message_rest_of c, unsigned i, struct cvy_waiting w)
{
	for (; cvy_gpu_cell_has(c.bytes, i); i += blockDim.x) {
		uint64_t head[2], word;

		if (cvy_wait_cell(c.cell, i, c.tag, c.peer, head, &word, &w))
			return 1;
		if (c.to)
			cvy_word_put(c.to, i - 1, c.bytes, word);
	}
	return 0;
}

/* All threads: the cell of the message that comes next. Where there are several CTAs, one thread waits for all. 1: stopped. */
static __device__ __forceinline__ int cvy_message_take_head(struct cvy_message_run *m)
{
	__shared__ uint64_t heads[2][2]; /* one is written while some read the other */
	const struct cvy_gpu_message *x = cvy_message_at(m);
	const uint8_t *cell = cvy_from(m->all.call, &m->r, m->with->peer) + cvy_gpu_cell_at(m->cell);
	const unsigned i = m->lanes == 1 && threadIdx.x < CVY_GPU_CELL_PACKETS ? threadIdx.x : 0;
	uint64_t head[2] = { 0, 0 }, *all = heads[m->cell & 1], word = 0;
	int stopped = 0, more;

	if (m->lanes == 1 || !threadIdx.x)
		stopped = cvy_wait_cell(cell, i, m->cell + 1, m->with->peer, head, &word, &m->r.watch);
	if (!threadIdx.x) {
		all[0] = head[0];
		all[1] = head[1];
	}
	if (__syncthreads_or(stopped))
		return 1;
	m->bytes = all[0];
	m->keeps = (x->tag == (int)(all[1] >> 32) || x->tag == COVEY_TAG_ANY) && m->bytes <= x->bytes;
	if (!m->index && !threadIdx.x) {
		if (m->keeps)
			cvy_message_came(m->all, x, m->bytes, (uint32_t)(all[1] >> 32));
		else
			cvy_message_failed(m->all, m->with->peer, m->way, m->at, COVEY_ERR_MISMATCH);
	}
	if (m->lanes == 1 && m->keeps && cvy_gpu_cell_has(m->bytes, i))
		cvy_word_put(x->at, i - 1, m->bytes, word);
	more = m->lanes == 1 ? cvy_gpu_cell_has(m->bytes, blockDim.x) : m->bytes <= CVY_GPU_CELL_MOST;
	if (more && cvy_message_cell_is_mine(m)) {
		const struct cvy_message_rest_of rest = { cell, m->keeps ? x->at : NULL, m->cell + 1, m->bytes,
							  m->with->peer };

		stopped = cvy_message_take_cell(rest, threadIdx.x + (m->lanes == 1 ? blockDim.x : 0), m->r.watch);
		if (__syncthreads_or(stopped))
			return 1;
	}
	cvy_message_headed(m);
	return 0;
}

/* All threads of a warp: its next piece, to where it belongs; what nobody asked for goes nowhere. 1: stopped. */
static __device__ __forceinline__ int cvy_message_take(struct cvy_message_run *m)
{
	const struct cvy_gpu_message *x = cvy_message_at(m);
	const struct cvy_gpu_call *c = m->all.call;
	const uint8_t *piece = cvy_from(c, &m->r, m->with->peer) + cvy_gpu_piece_at(m->next);
	const unsigned gate = cvy_message_gate(m);
	uint64_t v[CVY_GPU_ROWS][2], word[CVY_GPU_ROWS];
	int n[CVY_GPU_ROWS];
	unsigned need = cvy_message_packets(m, m->bytes, word, n);

	if (cvy_wait_lines_of<CVY_GPU_ROWS>(cvy_ranks_one(m->with->peer), __popc(need), 32 * CVY_GPU_PACKET,
					    m->next + 1, &m->r.watch, [&](int) { return piece; }))
		return 1;
#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++)
		if (need >> i & 1)
			cvy_load_packet(piece + cvy_message_packet(i), v[i]);
#pragma unroll
	for (int i = 0; i < CVY_GPU_ROWS; i++)
		if ((need >> i & 1) && m->keeps)
			cvy_set<CVY_GPU_LINE>(x->at, word[i], n[i], m->bytes, v[i]);
	__syncwarp(); /* all of the warp have read */
	if (threadIdx.x % 32 == 0)
		cvy_store_word(cvy_to(c, &m->r, m->with->peer) + cvy_gpu_given_at(m->next), m->next + 1);
	m->next += cvy_message_warps(m);
	return __any_sync(0xffffffffu, gate != m->r.watch.open);
}

/* All threads: until all messages are here. 1: stopped. */
static __device__ __forceinline__ int cvy_message_receive(struct cvy_message_run *m)
{
	while (m->at >= 0) {
		uint64_t end;
		int stopped = 0;

		if (!m->headed && cvy_message_take_head(m))
			return 1;
		end = m->first + cvy_gpu_pieces(m->bytes);
#pragma unroll 1
		while (m->next < end && !stopped)
			stopped = cvy_message_take(m);
		if (end != m->first && __syncthreads_or(m->next < end))
			return 1;
		cvy_message_on(m, m->bytes);
	}
	return 0;
}

#endif
