/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small operations as most are: one packet a thread, sums. Nothing but what these need, since a launch fetches its
 * instructions anew and each costs about as much as the hop; all else goes the long way (step.cuh), which does the same
 * in the same slots. Most have whole words at even addresses; those that have not (PARTS: blocks of one float stand side
 * by side) have kernels of their own.
 */
#ifndef CVY_QUICK_CUH
#define CVY_QUICK_CUH

#include "step.cuh"

/* One packet of one thread. */
struct cvy_quick {
	uint64_t tag;
	uint32_t word; /* of a block */
	uint32_t slot; /* of the packet in any chunk */
};

static __device__ __forceinline__ struct cvy_quick cvy_quick_of(const struct cvy_lane_run *r)
{
	struct cvy_quick q;
	uint32_t count = r->lane.count + 1;

	q.tag = CVY_GPU_TAG(r->lane.epoch, count);
	q.word = blockIdx.x * blockDim.x + threadIdx.x;
	q.slot = (uint32_t)cvy_gpu_slot_at(0, (int)blockIdx.x, count) + threadIdx.x * CVY_GPU_PACKET;
	return q;
}

/* Has this thread a word? */
template <int PARTS>
static __device__ __forceinline__ int cvy_quick_has(const struct cvy_gpu_call *c, const struct cvy_quick *q)
{
	return q->word < (uint32_t)((PARTS ? c->bytes + 7 : c->bytes) / 8);
}

template <int PARTS>
static __device__ __forceinline__ uint64_t cvy_quick_get(const struct cvy_gpu_call *c, const struct cvy_quick *q,
							 int block)
{
	const uint8_t *send = c->send + (uint64_t)(uint32_t)block * c->send_stride;

	if (PARTS)
		return cvy_word_get(send, q->word, c->bytes);
	return *(const uint64_t *)(send + (uint64_t)q->word * 8);
}

template <int PARTS>
static __device__ __forceinline__ void cvy_quick_set(const struct cvy_gpu_call *c, uint8_t *recv,
						     const struct cvy_quick *q, uint64_t v)
{
	if (PARTS)
		cvy_word_put(recv, q->word, c->bytes, v);
	else
		*(uint64_t *)(recv + (uint64_t)q->word * 8) = v;
}

/* The words for all of @peers: the same for all, or a block of its own for each that the buffers have one of. */
template <int PARTS>
static __device__ __forceinline__ void cvy_quick_push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      const struct cvy_quick *q, uint32_t peers, uint64_t own)
{
	uint64_t v = own;

#pragma unroll 1
	for (; peers; peers &= peers - 1) {
		int p = __ffs((int)peers) - 1;

		if (c->send_stride)
			v = p < c->size ? cvy_quick_get<PARTS>(c, q, p) : 0;
		cvy_store_packet(cvy_straight_to(c, r, p) + q->slot, v, q->tag);
	}
}

/* The packets of all @sources, four at a time, handed to each(rank, first, word) in ascending order. 1: stopped. */
template <typename EACH>
static __device__ __forceinline__ int cvy_quick_take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_quick *q, uint32_t sources, uint64_t own,
						     EACH each)
{
	int first = 1;

#pragma unroll 1
	while (sources) {
		const uint8_t *at[4];
		uint64_t v[4][2];
		unsigned need = 0;
		int whom[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			whom[i] = __ffs((int)sources) - 1;
			sources &= sources - 1;
			v[i][0] = own;
			need |= (unsigned)(whom[i] >= 0 && whom[i] != c->rank) << i;
			at[i] = cvy_straight_from(c, r, whom[i] & (CVY_GPU_RANKS - 1)) + q->slot;
		}
		if (cvy_wait_packets<CVY_GPU_PAIR>(at, whom, need, q->tag, v, &r->watch))
			return 1;
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (whom[i] >= 0)
				each(whom[i], first && !i, v[i][0]);
		first = 0;
	}
	return 0;
}

#endif
