/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks of a bulk dispatch: at once, of all own tokens, which ranks they go to. Then a row's place is a sum of bits, and
 * any warp plans a step by itself.
 */
#ifndef CVY_EP_MARK_CUH
#define CVY_EP_MARK_CUH

#include "ep_dispatch.cuh"

/* Ids of @token, eight from its @from-th on; -1: there are not so many. */
static __device__ __forceinline__ void cvy_ep_eight_ids(const struct cvy_ep_args *a, const struct cvy_ep_room *room,
							int token, int from, int32_t v[8])
{
	const int first = token * a->top_k + from, n = token < a->num_tokens ? a->top_k - from : 0;
	const int wide = a->wide;
	const int32_t *at = room->ids + ((size_t)first << wide);
	const int whole = n >= 8 && ((uintptr_t)at & 15) == 0;

	if (whole && wide) {
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int4 two = ((const int4 *)at)[k];

			v[2 * k] = cvy_ep_id_narrow(two.x, two.y);
			v[2 * k + 1] = cvy_ep_id_narrow(two.z, two.w);
		}
		return;
	}
	if (whole) {
		const int4 low = ((const int4 *)at)[0], high = ((const int4 *)at)[1];
		const int32_t all[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };

#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] = all[k];
		return;
	}
#pragma unroll
	for (int k = 0; k < 8; k++)
		v[k] = k < n ? cvy_ep_id(a, room, first + k) : -1;
}

/* Experts whose counts one lane tells. */
static __device__ __forceinline__ int cvy_ep_told_by(const struct cvy_ep_args *a)
{
	return (a->experts + a->form.lanes - 1) / a->form.lanes;
}

/*
 * All threads, before a barrier: a bit for each rank and token that goes there; and how many rows those experts get whose counts
 * this lane, @index, tells: as many as others. Ids are read a turn ahead: a loop that is short is fetched once.
 */
static __device__ __noinline__ void cvy_ep_mark(const struct cvy_ep_args *a, const struct cvy_ep_tables *tables,
						struct cvy_ep_room room, int index)
{
	const int words = cvy_ep_mark_words(a), lane = (int)(threadIdx.x % 32), each = cvy_ep_told_by(a);
	const int chunks = (a->top_k + 7) / 8;
	int w = (int)(threadIdx.x / 32), chunk = 0;
	int32_t id[8], next[8];
	cvy_ranks to = cvy_ranks_none();

	cvy_ep_eight_ids(a, &room, w * 32 + lane, 0, next);
#pragma unroll 1
	while (w < words) {
		const int token = w * 32 + lane, from = chunk * 8, last = chunk + 1 == chunks;
		uint32_t hits = 0;

#pragma unroll
		for (int k = 0; k < 8; k++)
			id[k] = next[k];
		chunk = last ? 0 : chunk + 1;
		w += last ? CVY_EP_WARPS : 0;
		cvy_ep_eight_ids(a, &room, w * 32 + lane, chunk * 8, next);
#pragma unroll
		for (int k = 0; k < 8; k++) {
			const uint32_t known = cvy_ep_known(a, id[k]);

			to = cvy_ranks_with_if(to, tables->owner[known ? id[k] : 0], (int)known);
			hits |= (known & (uint32_t)((uint32_t)(id[k] - index * each) < (uint32_t)each)) << k;
		}
#pragma unroll 1
		for (; hits; hits &= hits - 1) {
			const int ids = token * a->top_k, k = from + __ffs((int)hits) - 1;
			const int32_t one = cvy_ep_id(a, &room, ids + k);
			int met = 0;

#pragma unroll 1
			for (int j = 0; j < k; j++)
				met |= cvy_ep_id(a, &room, ids + j) == one;
			if (!met)
				atomicAdd(&room.counted[tables->first[tables->owner[one]] + tables->local[one]], 1u);
		}
		__syncwarp();
#pragma unroll 1
		for (int r = 0; r < a->call.size && last; r++) {
			uint32_t bits = __ballot_sync(CVY_EP_ALL, cvy_has(to, r));

			if (lane == 0)
				room.goes[token / 32 * a->call.size + r] = bits;
		}
		to = last ? cvy_ranks_none() : to;
	}
}

/* All threads, behind that barrier and before another: how many tokens before each word of marks go to each rank. */
static __device__ __noinline__ void cvy_ep_add_marks(const struct cvy_ep_args *a, struct cvy_ep_room room)
{
	const int words = cvy_ep_mark_words(a), lane = (int)(threadIdx.x % 32), size = a->call.size;

#pragma unroll 1
	for (int r = (int)(threadIdx.x / 32); r < size; r += CVY_EP_WARPS) {
		uint32_t before = 0;

#pragma unroll 1
		for (int first = 0; first < words; first += 32) {
			int w = first + lane;
			uint32_t own = w < words ? (uint32_t)__popc(room.goes[w * size + r]) : 0, sum = own;

#pragma unroll
			for (int by = 1; by < 32; by *= 2) {
				uint32_t lower = __shfl_sync(CVY_EP_ALL, sum, lane - by);

				sum += lane >= by ? lower : 0;
			}
			if (w < words)
				room.before[w * size + r] = before + sum - own;
			before += __shfl_sync(CVY_EP_ALL, sum, 31);
		}
		if (lane == 0)
			room.counted[a->experts + r] = before;
	}
}

/* All threads: the caller is told of each expert whose counts this lane has (cvy_ep_mark); lane 0 tells the rest. */
template <int ONCE>
static __device__ __noinline__ void cvy_ep_tell_marked(const struct cvy_ep_args *a, const struct cvy_ep_tables *tables,
						       struct cvy_ep_room room, int index)
{
	const int columns = a->el + ONCE, each = cvy_ep_told_by(a);
	uint32_t before = 0;

#pragma unroll 1
	for (int i = (int)threadIdx.x, id = index * each + i; i < each && id < a->experts;
	     i += CVY_EP_THREADS, id += CVY_EP_THREADS) {
		uint32_t sum = 0;

		for (int p = 0; p < a->call.size && tables->owner[id] == a->call.rank; p++)
			sum += room.rows[p * columns + tables->local[id]];
		if (tables->owner[id] == a->call.rank)
			a->count[tables->local[id]] = (int32_t)sum;
	}
	for (int p = 0; p < a->call.size && !index && a->el && threadIdx.x == 0; p++) {
		uint32_t n = room.rows[p * columns + a->el];

		a->range[p] = (int64_t)((uint64_t)n << 32 | before);
		before += n;
	}
}

/* A warp, by marks: where the tokens of a step go. A thread has an entry, and those of a token are in one warp. */
static __device__ __forceinline__ void cvy_ep_plan_marked(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const cvy_rank_small *owner = t->sh->tables.owner;
	const int each = a->form.entry_words, at_once = 32 / each, lane = (int)(threadIdx.x % 32);
	const int nth = lane / each, k = lane - nth * each;

	CVY_EACH_OF_WARP(p)
	room->mine[p] = 0;
	__syncwarp();
#pragma unroll 1
	for (int first = 0; first < a->form.per_step; first += at_once) {
		int j = first + nth, here = nth < at_once && j < a->form.per_step, token = cvy_ep_token(t, s, j);
		int in = here && token < a->num_tokens && k < a->top_k, rank = 0;
		int32_t id = in ? cvy_ep_id(a, room, token * a->top_k + k) : -1;
		float weight = in && a->weights ? a->weights[token * a->top_k + k] : 0;
		uint32_t place = (uint32_t)a->tokens, same;

		if (!cvy_ep_known(a, id))
			id = a->places > 1 && id == CVY_EP_UNPLACED ? id : -1;
		else
			rank = owner[id];
		same = __match_any_sync(CVY_EP_ALL, id < 0 ? -1 - lane : nth * CVY_GPU_RANKS + rank);
		if (id >= 0) {
			int at = token / 32 * a->call.size + rank;

			place = same & ((1u << lane) - 1)
					? 0
					: room->before[at] +
						  (uint32_t)__popc(room->goes[at] & ((1u << token % 32) - 1));
		}
		if (here)
			cvy_ep_note(t, room, token, j, k, id, place, weight);
	}
	__syncwarp();
}

#endif
