/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large operations whose buffers are in registered windows: nobody pushes, everyone reads the inputs of others in place. In
 * the first step all ranks tell each other where their buffers are, so each rank may use any buffer. If one rank has none
 * registered, or members are on several hosts, all use packets (PACKETS), a step later. In the second step all ranks tell
 * that they have read.
 *
 * Lent memory is not overwritten before all have read it, and nobody completes before that. So after a change either no data
 * are lacking, or nobody was done and all do it again.
 *
 * allreduce (in place on any rank, or with more than two ranks) and broadcast (with more than two) use shards: each rank makes the shard
 * that it owns, then all read the shards of the others from their results.
 */
#ifndef CVY_PULL_CUH
#define CVY_PULL_CUH

#include "shape.h"
#include "take.cuh"

#define CVY_PULL_UNROLL 4 /* loads of 16 bytes that a thread has under way */

template <typename T, typename PACKETS> struct cvy_body_pull {
	enum { ONE = 0, AHEAD = 0, APART = 0, FOLDS = !std::is_void<T>::value };
	static_assert(!PACKETS::AHEAD, "it says hello first");
	static_assert(CVY_GPU_PULL > (uint64_t)CVY_GPU_LANES * CVY_GPU_SLOT,
		      "in place it is of several steps (cvy_spoils)");
	typedef typename std::conditional<FOLDS, T, uint64_t>::type element;

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return 1 + PACKETS::steps(c, mask);
	}

	/* A part of a block that this lane works on, in packets of 16 bytes. */
	struct part {
		uint64_t begin, end;
	};

	static __device__ __forceinline__ struct part shard(const struct cvy_gpu_call *c, int i, int n)
	{
		uint64_t packets = c->bytes / CVY_GPU_PACKET, each = (packets + (uint64_t)n - 1) / (uint64_t)n;
		struct part p = { (uint64_t)i * each, (uint64_t)(i + 1) * each };

		p.begin = p.begin < packets ? p.begin : packets;
		p.end = p.end < packets ? p.end : packets;
		return p;
	}

	/* Where the buffers of all stand: in shared memory, by rank. */
	struct places {
		const uint8_t *send[CVY_GPU_RANKS], *recv[CVY_GPU_RANKS];
		int shards; /* each rank makes the one that it owns, and reads the others */
	};

	/* Tells where the own buffers are and hears of the others'. All threads. 1: stopped. */
	static __device__ int hello(const struct cvy_gpu_call *c, struct cvy_lane_run *r, struct places *places,
				    int *all_lent)
	{
		struct cvy_step s = cvy_step_of(c, r, 0, 0);
		int p = (int)threadIdx.x, stopped = 0,
		    in_place; /* there are more threads than ranks: blocks are large */
		/* Of a rank that has come since the graph was captured others know no buffers: so none are lent, for all. */
		const int none = cvy_far(r) || cvy_ranks_any_from(r->lane.mask, c->size);
		const uint64_t lent_send = none ? 0 : c->lent_send, lent_recv = none ? 0 : c->lent_recv;
		const cvy_ranks peers = cvy_ranks_without(r->lane.mask, c->rank);
		const int member = p < CVY_GPU_RANKS && cvy_has(r->lane.mask, p),
			  folds = c->kind <= CVY_GPU_ALLREDUCE_TWO_SHOT;
		const int many = cvy_ranks_count(r->lane.mask) > 2;
		uint64_t lent[2] = { lent_send, lent_recv }; /* by rank p */

		if (member && p != c->rank) {
			uint8_t *to = cvy_to(c, r, p) + cvy_gpu_slot_at(0, r->index, s.count);
			const uint8_t *at[4] = { cvy_from(c, r, p) + cvy_gpu_slot_at(0, r->index, s.count) };
			const uint8_t *window = cvy_window(c, r, p);
			uint64_t v[4][2];
			int whom[4] = { p, p, p, p };

			at[1] = at[0] + CVY_GPU_PACKET;
			cvy_order_system(); /* earlier kernels wrote the buffers: the end of a kernel orders that on its device alone */
			cvy_store_packet(to, lent_send, s.tag);
			cvy_store_packet(to + CVY_GPU_PACKET, lent_recv, s.tag);
			if (cvy_far(r))
				cvy_far_put(c, r->lane.out, peers, p, cvy_gpu_slot_at(0, r->index, s.count),
					    2 * CVY_GPU_PACKET);
			stopped = cvy_wait_pairs(at, whom, 3, s.tag, v, &r->watch);
			places->send[p] = window + v[0][0] - 1;
			places->recv[p] = window + v[1][0] - 1;
			lent[0] = v[0][0];
			lent[1] = v[1][0];
		} else if (p == c->rank) {
			places->send[p] = c->send;
			places->recv[p] = c->recv;
		}
		if (__syncthreads_or(stopped))
			return 1;
		in_place = __syncthreads_or(member && folds && lent[0] && lent[0] == lent[1]);
		places->shards = in_place || (many && (folds || cvy_gpu_is_broadcast(c->kind)));
		*all_lent = !__syncthreads_or(member && !needed(c, r, p, places->shards, lent));
		return 0;
	}

	/* Has @rank registered what others will read of it? Alike on all ranks, since it follows from what each has told. */
	static __device__ __forceinline__ int needed(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     int rank, int shards, const uint64_t lent[2])
	{
		if (cvy_far(r) || (shards && !lent[1]))
			return 0;
		return cvy_gpu_is_broadcast(c->kind) ? rank != c->root || lent[0] : lent[0] != 0;
	}

	/* ---- moving ---- */

	typedef struct cvy_fold<element, CVY_GPU_LINE> fold;

	/* result[i] = fold, in ascending order, of the packets that each source has at @offset. */
	static __device__ __forceinline__ void reduce(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      const struct places *places, struct part all, uint64_t offset)
	{
		const uint64_t lanes = (uint64_t)c->lanes * blockDim.x;
		uint64_t i = all.begin + (uint64_t)r->index * blockDim.x + threadIdx.x;

#pragma unroll 1
		for (; i < all.end; i += lanes * CVY_PULL_UNROLL) {
			fold f[CVY_PULL_UNROLL];
			uint64_t v[CVY_PULL_UNROLL][2];

#pragma unroll 1
			for (cvy_ranks left = r->lane.mask; cvy_ranks_any(left); left = cvy_ranks_rest(left)) {
				const uint8_t *from = places->send[cvy_ranks_first(left)] + offset;

#pragma unroll
				for (int k = 0; k < CVY_PULL_UNROLL; k++)
					if (i + (uint64_t)k * lanes < all.end)
						cvy_load_packet(from + (i + (uint64_t)k * lanes) * CVY_GPU_PACKET,
								v[k]);
#pragma unroll
				for (int k = 0; k < CVY_PULL_UNROLL; k++)
					f[k].add(v[k], c->fold, cvy_ranks_equal(left, r->lane.mask));
			}
#pragma unroll
			for (int k = 0; k < CVY_PULL_UNROLL; k++) {
				f[k].result(v[k], c->fold, cvy_ranks_count(r->lane.mask));
				if (i + (uint64_t)k * lanes < all.end)
					put(c->recv, i + (uint64_t)k * lanes, v[k]);
			}
		}
	}

	static __device__ __forceinline__ void put(uint8_t *to, uint64_t packet, const uint64_t v[2])
	{
		*(ulonglong2 *)(to + packet * CVY_GPU_PACKET) = make_ulonglong2(v[0], v[1]);
	}

	/* Packets @all of @from to the same places of @to. */
	static __device__ __forceinline__ void copy(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    uint8_t *to, const uint8_t *from, struct part all)
	{
		const uint64_t lanes = (uint64_t)c->lanes * blockDim.x;
		uint64_t i = all.begin + (uint64_t)r->index * blockDim.x + threadIdx.x;

		if (to == from)
			return;
#pragma unroll 1
		for (; i < all.end; i += lanes * CVY_PULL_UNROLL) {
			uint64_t v[CVY_PULL_UNROLL][2];

#pragma unroll
			for (int k = 0; k < CVY_PULL_UNROLL; k++)
				if (i + (uint64_t)k * lanes < all.end)
					cvy_load_packet(from + (i + (uint64_t)k * lanes) * CVY_GPU_PACKET, v[k]);
#pragma unroll
			for (int k = 0; k < CVY_PULL_UNROLL; k++)
				if (i + (uint64_t)k * lanes < all.end)
					put(to, i + (uint64_t)k * lanes, v[k]);
		}
	}

	/*
	 * The block that each rank has for this one. Not all begin with the same rank, and the own one, which does not
	 * cross, is copied in between.
	 */
	static __device__ __forceinline__ void blocks(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      const struct places *places)
	{
		const uint64_t tile = (uint64_t)c->lanes * blockDim.x * CVY_PULL_UNROLL;
		const struct part all = shard(c, 0, 1);

#pragma unroll 1
		for (uint64_t at = 0; at < all.end; at += tile) {
			const struct part part = { at, at + tile < all.end ? at + tile : all.end };

#pragma unroll 1
			for (int k = 1; k <= c->size; k++) {
				int p = (c->rank + k) % c->size;
				uint8_t *to = c->recv + (size_t)p * c->bytes;

				if (cvy_has(r->lane.mask, p))
					copy(c, r, to, places->send[p] + (size_t)c->rank * c->send_stride, part);
				else
					zero(c, r, to, part);
			}
		}
	}

	static __device__ __noinline__ void zero(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						 uint8_t *to, struct part all)
	{
		const uint64_t none[2] = { 0, 0 };

		for (uint64_t i = all.begin + (uint64_t)r->index * blockDim.x + threadIdx.x; i < all.end;
		     i += (uint64_t)c->lanes * blockDim.x)
			put(to, i, none);
	}

	/* Of which view @rank's words are, by its window. One thread. */
	static __device__ __forceinline__ uint32_t epoch_of(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							    int rank)
	{
		const uint8_t *window = cvy_window(c, r, rank);

		return cvy_load_half((const uint32_t *)(window + CVY_GPU_WINDOW_EPOCH));
	}

	/*
	 * As cvy_meet() in the last round, but what was read does not count where a source has gone on to a later view, which
	 * has done without this rank, and may have written there since: the host knows that, or will, and its word is awaited.
	 * The look crosses while the signals do.
	 */
	static __device__ __forceinline__ int all_have_read(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
							    const struct cvy_step *s)
	{
		const int p = (int)threadIdx.x, peer = p < CVY_GPU_RANKS && p != c->rank && cvy_has(r->lane.mask, p);
		uint32_t theirs = 0;
		int stopped;

		__syncthreads();
		if (p < CVY_GPU_RANKS)
			__threadfence_system();
		if (CVY_GUARDED && peer) /* before others may know that this rank has read, and leave */
			theirs = epoch_of(c, r, p);
		cvy_tell(c, r, s, 1, r->lane.mask);
		stopped = cvy_hear(c, r, s, 1, r->lane.mask);
		if (CVY_GUARDED && !stopped && theirs > r->lane.epoch)
			stopped = cvy_wait_closed(p, &r->watch);
		if (p < CVY_GPU_RANKS)
			__threadfence_system();
		return __syncthreads_or(stopped);
	}

	/* The shards that others own, from their results. */
	static __device__ __forceinline__ void gather(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      const struct places *places)
	{
		int n = cvy_ranks_count(r->lane.mask);

		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		copy(c, r, c->recv, places->recv[p], shard(c, cvy_ranks_index(r->lane.mask, (int)p), n));
	}

	/* Everything is read where it stands. All threads. 1: stopped. */
	static __device__ __forceinline__ int pull(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct places *places)
	{
		const struct cvy_step s = cvy_step_of(c, r, 1, 0);
		const int n = cvy_ranks_count(r->lane.mask), self = cvy_ranks_index(r->lane.mask, c->rank);
		const struct part mine = places->shards ? shard(c, self, n) : shard(c, 0, 1);

		if (FOLDS)
			reduce(c, r, places, mine, (size_t)c->rank * c->send_stride);
		else if (cvy_gpu_is_broadcast(c->kind))
			copy(c, r, c->recv, places->send[c->root], mine);
		else
			blocks(c, r, places);
		if (places->shards) {
			if (cvy_meet(c, r, &s, 0, r->lane.mask, r->lane.mask))
				return 1;
			gather(c, r, places);
		}
		return all_have_read(c, r, &s);
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		__shared__ struct places places;
		int stopped, lent;

		if (cvy_gpu_is_broadcast(c->kind) && !cvy_has(r->lane.mask, c->root))
			return cvy_long_way<PACKETS>(c, *r);
		if (cvy_mode<HOT>(r) == CVY_COMPLETE && r->settled)
			return 0;
		if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
			if (hello(c, r, &places, &lent))
				return 1;
			r->settled = lent;
			if (lent) {
				r->steps = 2;
				return pull(c, r, &places);
			}
		}
		r->lane.count++; /* by packets, after the step of hello */
		r->steps--;
		if constexpr (HOT)
			stopped = PACKETS::template run<1>(c, r);
		else if constexpr (!PACKETS::APART)
			stopped = PACKETS::template run<0>(c, r);
		else
			stopped = cvy_long_way<PACKETS>(c, *r);
		r->lane.count--;
		r->steps++;
		return stopped;
	}
};

#endif
