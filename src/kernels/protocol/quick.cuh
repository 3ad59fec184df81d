/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of one step and one packet a thread as most are: sums of whole words at even addresses, pairs or lines. Nothing but
 * what these need, since a hundred instructions take half as long as the hop; all else goes
 * the long way (step.cuh), which does the same in the same slots. Pairs whose words are not whole (PARTS: blocks of one float
 * stand side by side) have kernels of their own.
 */
#ifndef CVY_QUICK_CUH
#define CVY_QUICK_CUH

#include "take.cuh"

/* Does the short way do for such calls? */
template <int PARTS> static __device__ __forceinline__ int cvy_quick_may(const struct cvy_gpu_call *c)
{
	return c->plain == (PARTS ? CVY_GPU_PARTS : CVY_GPU_WHOLE);
}

/* And for this operation? */
template <int PARTS>
static __device__ __forceinline__ int cvy_quick_does(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return cvy_quick_may<PARTS>(c) && !cvy_far(r);
}

/* The packet of one thread. */
template <int PACKET> struct cvy_quick {
	enum { WORDS = PACKET == CVY_GPU_PAIR ? 1 : 2 };
	uint64_t tag;
	uint32_t word; /* its first, of a block */
	uint32_t slot; /* of the packet in any chunk */
	int rows;      /* 0: the thread has none, of lines its warp */
	int n;	       /* words that it has; of a pair, where it has any */
};

/* Follows from the call alone. */
template <int PACKET, int PARTS>
static __device__ __forceinline__ struct cvy_quick<PACKET> cvy_quick_words(const struct cvy_gpu_call *c) {
	const uint32_t words = (uint32_t)((PARTS ? c->bytes + 7 : c->bytes) / 8);
	const uint32_t base = blockIdx.x * (uint32_t)cvy_tile_words<PACKET>((int)blockDim.x);
	struct cvy_quick<PACKET> q;
	uint64_t word;
	int n = cvy_place<PACKET>((int)threadIdx.x, &word);

	q.word = base + (uint32_t)word;
	q.n = PACKET == CVY_GPU_PAIR || q.word + (uint32_t)n <= words ? n : q.word < words;
	q.rows = base + (uint32_t)cvy_warp_word<PACKET>((int)threadIdx.x) < words;
	return q;
}

template <int PACKET, int PARTS>
static __device__ __forceinline__ struct cvy_quick<PACKET> cvy_quick_of(const struct cvy_gpu_call *c,
									const struct cvy_lane_run *r) {
	const uint32_t count = r->lane.count + 1;
	struct cvy_quick<PACKET> q = cvy_quick_words<PACKET, PARTS>(c);

	q.tag = CVY_GPU_TAG(r->lane.epoch, count);
	q.slot = (uint32_t)cvy_gpu_slot_at(0, (int)blockIdx.x, count) + threadIdx.x * CVY_GPU_PACKET;
	return q;
}

template <int PACKET, int PARTS>
static __device__ __forceinline__ void cvy_quick_get(const struct cvy_gpu_call *c, const struct cvy_quick<PACKET> *q,
						     int block, uint64_t *v)
{
	const uint8_t *send = c->send + (uint64_t)(uint32_t)block * c->send_stride;

#pragma unroll
	for (int i = 0; i < q->WORDS; i++)
		if (PARTS)
			v[i] = cvy_word_get(send, q->word, c->bytes);
		else
			v[i] = i < q->n ? *(const uint64_t *)(send + ((uint64_t)q->word + (uint64_t)i) * 8) : 0;
}

/* Own words, before those of the lane are here: what befalls the operation does not change them. */
template <int PACKET, int PARTS>
static __device__ __forceinline__ void cvy_quick_ahead(const struct cvy_gpu_call *c, uint64_t *own)
{
	const struct cvy_quick<PACKET> q = cvy_quick_words<PACKET, PARTS>(c);

	if (cvy_quick_may<PARTS>(c) && q.rows)
		cvy_quick_get<PACKET, PARTS>(c, &q, c->rank, own);
}

template <int PACKET, int PARTS>
static __device__ __forceinline__ void cvy_quick_set(const struct cvy_gpu_call *c, uint8_t *recv,
						     const struct cvy_quick<PACKET> *q, const uint64_t *v)
{
#pragma unroll
	for (int i = 0; i < q->WORDS; i++)
		if (PARTS)
			cvy_word_put(recv, q->word, c->bytes, v[i]);
		else if (i < q->n)
			*(uint64_t *)(recv + ((uint64_t)q->word + (uint64_t)i) * 8) = v[i];
}

/* The words for all of @peers: the same for all, or a block of its own for each that the buffers have one of. */
template <int PACKET, int PARTS>
static __device__ __forceinline__ void cvy_quick_push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      const struct cvy_quick<PACKET> *q, cvy_ranks peers,
						      const uint64_t *own)
{
	uint64_t v[2] = { own[0], own[q->WORDS - 1] };

#pragma unroll 1
	for (; cvy_ranks_any(peers); peers = cvy_ranks_rest(peers)) {
		int p = cvy_ranks_first(peers);

		if (c->send_stride) {
			v[0] = v[1] = 0;
			if (p < c->size)
				cvy_quick_get<PACKET, PARTS>(c, q, p, v);
		}
		cvy_push<PACKET>(cvy_straight_to(c, r, p) + (q->slot - threadIdx.x * CVY_GPU_PACKET), (int)threadIdx.x,
				 v, q->tag);
	}
}

/*
 * Four sources' packets: those of @need are awaited, of others the words are @own. 1: stopped. All lines are awaited before: their
 * tags are looked at in another way. 1: one was written over since (cvy_lines_lost).
 */
template <int PACKET>
static __device__ __forceinline__ int cvy_quick_four(const uint8_t *const at[4], const int whom[4], unsigned need,
						     const struct cvy_quick<PACKET> *q, uint64_t v[4][2],
						     struct cvy_waiting *w)
{
	if constexpr (PACKET == CVY_GPU_PAIR) {
		return cvy_wait_pairs(at, whom, need, q->tag, v, w);
	} else {
		const uint8_t *read[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			read[i] = need >> i & 1 ? at[i] : NULL;
			if (read[i])
				cvy_load_packet(read[i], v[i]);
		}
		return CVY_GUARDED && cvy_lines_lost<1, 4>(read, 1, 0, q->tag);
	}
}

/* The packets of all @sources, four at a time, handed to each(rank, first, words) in ascending order. 1: stopped. */
template <int PACKET, typename EACH>
static __device__ __forceinline__ int cvy_quick_take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_quick<PACKET> *q, cvy_ranks sources,
						     const uint64_t *own, EACH each)
{
	const cvy_ranks all = sources;
	int first, lost;

	do {
		if (PACKET == CVY_GPU_LINE &&
		    cvy_wait_lines_of<1>(cvy_ranks_without(all, c->rank), q->rows, 0, q->tag, &r->watch, [&](int rank) {
			    return cvy_straight_from(c, r, rank) + (q->slot - threadIdx.x % 32 * CVY_GPU_PACKET);
		    }))
			return 1;
		first = 1;
		lost = 0;
#pragma unroll 1
		for (sources = all; cvy_ranks_any(sources) && !lost;) {
			const uint8_t *at[4];
			uint64_t v[4][2];
			unsigned need = 0;
			int whom[4];

#pragma unroll
			for (int i = 0; i < 4; i++) {
				whom[i] = cvy_ranks_first(sources);
				sources = cvy_ranks_rest(sources);
				v[i][0] = own[0];
				v[i][1] = own[q->WORDS - 1];
				need |= (unsigned)(whom[i] >= 0 && whom[i] != c->rank) << i;
				at[i] = cvy_straight_from(c, r, whom[i] & (CVY_GPU_RANKS - 1)) + q->slot;
			}
			lost = cvy_quick_four(at, whom, need, q, v, &r->watch);
			if (PACKET == CVY_GPU_PAIR && lost)
				return 1;
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (whom[i] >= 0 && !lost)
					each(whom[i], first && !i, v[i]);
			first = 0;
		}
	} while (PACKET == CVY_GPU_LINE && CVY_GUARDED && lost); /* was written over: waits, and tells the host */
	return 0;
}

#endif
