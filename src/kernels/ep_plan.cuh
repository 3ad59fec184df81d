/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a row moves: who gets which of the own tokens, and at which place, from the ids alone; and the words of a header,
 * which say so to each rank.
 */
#ifndef CVY_EP_PLAN_CUH
#define CVY_EP_PLAN_CUH

#include "ep_far.cuh"

/* Dynamic shared memory of dispatch. */
struct cvy_ep_room {
	uint32_t *counted; /* [experts] rows of each, from here; once: and [size] rows of each rank */
	uint32_t *first;   /* [size][el + once] rows of each source, then its first row; of the rank last */
	uint32_t *entry;   /* [per_step][top_k] expert | place << 16, CVY_EP_ALL: none */
	float *weight;	   /* [per_step][top_k] of each, as the caller gave it */
	uint16_t *listed;  /* [experts] rows of each from here, by owner: as headers say them */
	uint64_t *stage;   /* [per_step][row_words] */
};

static inline size_t cvy_ep_dispatch_room(const struct cvy_ep_args *a)
{
	size_t size = (size_t)a->call.size, once = (size_t)a->once;
	size_t words = (size_t)a->experts + once * size + size * ((size_t)a->el + once) + 4 +
		       2 * (size_t)a->form.per_step * (size_t)a->top_k + ((size_t)a->experts + 1) / 2;

	return (words / 2 + 2) * 8 + (size_t)a->form.per_step * (size_t)a->form.row_words * 8;
}

template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_room cvy_ep_room_of(const struct cvy_ep_args *a, uint64_t *room)
{
	struct cvy_ep_room at;

	at.stage = room;
	at.counted = (uint32_t *)(room + (size_t)a->form.per_step * (size_t)a->form.row_words);
	at.first = at.counted + a->experts + (ONCE ? a->call.size : 0);
	at.entry = at.first + (size_t)a->call.size * (size_t)(a->el + ONCE);
	at.weight = (float *)(at.entry + a->form.per_step * a->top_k);
	at.listed = (uint16_t *)(at.weight + a->form.per_step * a->top_k);
	return at;
}

static __device__ __forceinline__ int cvy_ep_known(const struct cvy_ep_args *a, int32_t id)
{
	return id >= 0 && id < a->experts;
}

/* Of the ids of a token before its @k-th: bit 0, one is the same expert; bit 1, one is of the same rank. */
static __device__ __forceinline__ unsigned cvy_ep_before(const struct cvy_ep_args *a, const uint8_t *owner,
							 const int32_t *ids, int k)
{
	unsigned met = 0;

#pragma unroll 1
	for (int j = 0; j < k; j++)
		if (cvy_ep_known(a, ids[j]) && owner[ids[j]] == owner[ids[k]])
			met |= ids[j] == ids[k] ? 3u : 2u;
	return met;
}

/* A number of rows, as headers say it. */
static __device__ __forceinline__ uint16_t cvy_ep_said(const struct cvy_ep_args *a, uint32_t rows)
{
	return (uint16_t)(rows < (uint32_t)a->tokens ? rows : (uint32_t)a->tokens);
}

/* How many rows each expert gets from here, and each rank where a token has one there. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_count(const struct cvy_ep_turn *t, const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_tables *tables = &t->sh->tables;
	int ids = a->num_tokens * a->top_k;

#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->experts + (ONCE ? a->call.size : 0); i += CVY_EP_THREADS)
		room->counted[i] = 0;
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < ids; i += CVY_EP_THREADS) {
		int32_t id = a->ids[i];

		unsigned met = ONCE && cvy_ep_known(a, id)
				       ? cvy_ep_before(a, tables->owner, &a->ids[i - i % a->top_k], i % a->top_k)
				       : 0;

		if (cvy_ep_known(a, id) && !(met & 1))
			atomicAdd(&room->counted[id], 1u);
		if (ONCE && cvy_ep_known(a, id) && !met)
			atomicAdd(&room->counted[a->experts + tables->owner[id]], 1u);
	}
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->experts; i += CVY_EP_THREADS)
		room->listed[i] = cvy_ep_said(a, room->counted[tables->expert[i]]);
}

/* A warp: how many of the first @n ids are @id. */
static __device__ __forceinline__ uint32_t cvy_ep_earlier(const struct cvy_ep_args *a, int n, int32_t id)
{
	uint32_t sum = 0;
	int i = (int)(threadIdx.x % 32), whole = ((uintptr_t)a->ids & 15) == 0 ? n / 4 : 0;

#pragma unroll 4
	for (int k = i; k < whole; k += 32) {
		int4 v = ((const int4 *)a->ids)[k];

		sum += (v.x == id) + (v.y == id) + (v.z == id) + (v.w == id);
	}
#pragma unroll 1
	for (int k = whole * 4 + i; k < n; k += 32)
		sum += a->ids[k] == id;
	return __reduce_add_sync(CVY_EP_ALL, sum);
}

/* A warp: how many tokens before @token go to @rank. */
static __device__ __forceinline__ uint32_t cvy_ep_earlier_rows(const struct cvy_ep_args *a, const uint8_t *owner,
							       int token, int rank)
{
	uint32_t sum = 0;

#pragma unroll 1
	for (int t = (int)(threadIdx.x % 32); t < token; t += 32) {
		const int32_t *ids = a->ids + (size_t)t * (size_t)a->top_k;
		int goes = 0;

#pragma unroll 1
		for (int k = 0; k < a->top_k && !goes; k++)
			goes = cvy_ep_known(a, ids[k]) && owner[ids[k]] == rank;
		sum += (uint32_t)goes;
	}
	return __reduce_add_sync(CVY_EP_ALL, sum);
}

/*
 * A warp: place of the row of @id, the @k-th expert of @token, among those of this rank in its bin. Where a token has one
 * row in it, the first of the ids that name it has the place, and nobody reads that of the others.
 */
template <int ONCE>
static __device__ __forceinline__ uint32_t cvy_ep_place_of(const struct cvy_ep_args *a, const uint8_t *owner, int token,
							   int k, int32_t id)
{
	int at = token * a->top_k;

	if constexpr (!ONCE)
		return cvy_ep_earlier(a, at + k, id);
	return cvy_ep_before(a, owner, a->ids + at, k) ? 0 : cvy_ep_earlier_rows(a, owner, token, owner[id]);
}

/* Where the tokens of this step go. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_plan(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						   const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const uint8_t *owner = t->sh->tables.owner;

	if (threadIdx.x < CVY_GPU_RANKS)
		t->sh->mine[threadIdx.x] = 0;
	__syncthreads();
#pragma unroll 1
	for (int i = (int)(threadIdx.x / 32); i < a->form.per_step * a->top_k; i += CVY_EP_WARPS) {
		int j = i / a->top_k, token = cvy_ep_token(t, s, j), at = token * a->top_k + i % a->top_k;
		int32_t id = token < a->num_tokens ? a->ids[at] : -1;
		uint32_t place = cvy_ep_known(a, id) ? cvy_ep_place_of<ONCE>(a, owner, token, i % a->top_k, id)
						     : (uint32_t)a->tokens;
		float weight = a->weights && token < a->num_tokens ? a->weights[at] : 0;

		if (place >= (uint32_t)a->tokens)
			id = -1;
		if (threadIdx.x % 32)
			continue;
		room->entry[i] = id < 0 ? CVY_EP_ALL : (uint32_t)id | place << 16;
		room->weight[i] = weight;
		if (id >= 0)
			atomicOr((unsigned long long *)&t->sh->mine[owner[id]], 1ull << j);
		if (token < a->tokens)
			a->sent[at] = id;
	}
	__syncthreads();
}

/* Word @w of this rank's header for @rank. */
template <int ONCE>
static __device__ __noinline__ uint64_t cvy_ep_own_word(const struct cvy_ep_turn *t, const struct cvy_ep_step *,
							const struct cvy_ep_room *room, int rank, int w)
{
	const struct cvy_ep_args *a = t->a;
	const uint16_t *first = t->sh->tables.first;
	int half = a->form.entry_words / 2, j, k;
	uint64_t v = 0;

	if (w == 0)
		return t->sh->mine[rank];
	w -= 1;
	if (w < a->form.count_words) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int e = first[rank] + 4 * w + i;
			uint64_t n = e < first[rank + 1] ? room->listed[e] : 0;

			if (ONCE && e == first[rank + 1])
				n = cvy_ep_said(a, room->counted[a->experts + rank]);
			v |= n << (16 * i);
		}
		return v;
	}
	w -= a->form.count_words;
	j = w / a->form.entry_words;
	k = w % a->form.entry_words;
	if (j >= a->form.per_step)
		return 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int which = k % half * 2 + i, at = j * a->top_k + which;
		uint32_t x = k < half ? CVY_EP_ALL : 0;

		if (which < a->top_k)
			x = k < half ? room->entry[at] : __float_as_uint(room->weight[at]);
		v |= (uint64_t)x << (32 * i);
	}
	return v;
}

/* Entry @k of token @j of @rank's header, or of its own: expert | place << 16; and its weight. */
static __device__ __forceinline__ uint32_t cvy_ep_entry(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room, int rank, int j, int k,
							float *weight)
{
	const struct cvy_ep_args *a = t->a;
	int w = 1 + a->form.count_words + j * a->form.entry_words + k / 2;
	uint64_t e, f;

	if (rank == a->call.rank) {
		*weight = room->weight[j * a->top_k + k];
		return room->entry[j * a->top_k + k];
	}
	e = cvy_ep_header_word(t, s, rank, w);
	f = cvy_ep_header_word(t, s, rank, w + a->form.entry_words / 2);
	*weight = __uint_as_float((uint32_t)(f >> (32 * (k % 2))));
	return (uint32_t)(e >> (32 * (k % 2)));
}

#endif
