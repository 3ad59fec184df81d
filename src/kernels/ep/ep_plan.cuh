/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before a row moves: which rank gets which of the own tokens, and at which place, from the ids alone; and the words of
 * the header that tells each rank.
 */
#ifndef CVY_EP_PLAN_CUH
#define CVY_EP_PLAN_CUH

#include "ep_bulk.cuh"
#include "ep_places.h"

/* Dynamic shared memory of dispatch. */
struct cvy_ep_room {
	const int32_t *ids; /* the copy, or the caller's, or places behind the handle's state: read with cvy_ep_id() */
	int32_t *near;	    /* NULL: there is no room for one */
	uint64_t *stage;    /* [per_step][row_words] */
	uint64_t *mine;	    /* [rank] own tokens of the step that go there */
	uint32_t *own;	    /* entries of the own tokens: among those of all sources, or in a room of theirs */
	uint32_t *entry; /* [size][per_step][2][entry_words] of each source, as its header has them: expert | place << 16,
			  * CVY_EP_ALL: none; then weights */
	uint32_t *counted; /* [experts] rows of each, from here, by owner; once: and [size] rows of each rank */
	uint32_t *rows;	   /* [size][el + once] of each source; of the rank last */
	uint32_t *begin;   /* close: [el] first row of each bin */
	uint32_t *earlier; /* with windows: rows of each expert, once: of each rank, that tokens before the window have */
	uint32_t *goes;	   /* once: [window / 32][size] tokens of the window that go to each rank, a bit for each */
	uint32_t *before; /* with marks: [tokens / 32][size] how many go there before these 32 */
};

/* The first token of a step's window; without windows all are in it. */
static __device__ __forceinline__ int cvy_ep_window(const struct cvy_ep_args *a, const struct cvy_ep_step *s)
{
	return cvy_ep_windows(a) ? s->first * a->form.apart : 0;
}

/* This CTA's words for places (cvy_ep_placed_words). */
static __device__ __forceinline__ int32_t *cvy_ep_placed_at(const struct cvy_ep_args *a)
{
	return (int32_t *)(a->state + 1) + (size_t)blockIdx.x * cvy_ep_placed_words(a->tokens, a->top_k, a->places);
}

template <int BINS>
static __device__ __forceinline__ struct cvy_ep_room cvy_ep_room_of(const struct cvy_ep_args *a,
								    struct cvy_ep_shared *sh, uint64_t *room)
{
	constexpr int ONCE = BINS == CVY_EP_ONE;
	size_t near = cvy_ep_near_ids(a);
	struct cvy_ep_room at;

	at.near = near ? (int32_t *)room : NULL;
	at.ids = near ? at.near : a->places > 1 ? cvy_ep_placed_at(a) : a->ids64 ? (const int32_t *)a->ids64 : a->ids;
	at.stage = room + near / 2;
	at.mine = sh->mine[0];
	at.entry =
		(uint32_t *)(at.stage + (size_t)cvy_ep_turns(a) * (size_t)a->form.per_step * (size_t)a->form.row_words);
	at.own = at.entry + (size_t)a->call.rank * cvy_ep_entries(a);
	at.counted = at.entry + (size_t)(a->call.size + cvy_ep_turns(a) - 1) * cvy_ep_entries(a);
	at.rows = at.counted + a->experts + (ONCE ? a->call.size : 0);
	at.begin = at.rows + (size_t)a->call.size * (size_t)(a->el + ONCE);
	at.earlier = BINS == CVY_EP_CLOSE ? at.begin + a->el : at.begin;
	at.goes = at.earlier + cvy_ep_window_bins(a);
	at.before = at.earlier + (size_t)cvy_ep_mark_words(a) * (size_t)a->call.size;
	if (cvy_ep_marks(a))
		at.goes = at.earlier;
	return at;
}

/* An int64 id by its two words. One beyond int32 is no expert's. */
static __device__ __forceinline__ int32_t cvy_ep_id_narrow(int32_t low, int32_t high)
{
	return high == low >> 31 ? low : -1;
}

static __device__ __forceinline__ int32_t cvy_ep_id_narrow_at(const int32_t *wide, int i)
{
	const int2 words = ((const int2 *)wide)[i];

	return cvy_ep_id_narrow(words.x, words.y);
}

/* The @i-th id of the caller. */
static __device__ __forceinline__ int32_t cvy_ep_id_given(const struct cvy_ep_args *a, int i)
{
	return a->ids64 ? cvy_ep_id_narrow_at((const int32_t *)a->ids64, i) : a->ids[i];
}

/* The same id, from the copy if there is one; of a place, where experts have several. */
static __device__ __forceinline__ int32_t cvy_ep_id(const struct cvy_ep_args *a, const struct cvy_ep_room *room, int i)
{
	return a->wide ? cvy_ep_id_narrow_at(room->ids, i) : room->ids[i];
}

/* The place that takes tokens of this rank for expert @id of the caller, of those whose ranks are in @living. */
static __device__ __forceinline__ int32_t cvy_ep_placed(const struct cvy_ep_args *a, const struct cvy_ep_tables *tables,
							cvy_ranks living, int32_t id)
{
	const struct cvy_ep_places places = { NULL, a->places, tables->owner };
	uint64_t word[CVY_RANKS_LONGS];
	int place;

	for (int i = 0; i < CVY_RANKS_LONGS; i++)
		word[i] = cvy_ranks_long(living, i);
	if (id < 0 || id >= a->experts / a->places)
		return -1;
	place = cvy_ep_place_of(&places, id, a->call.rank, word);
	return place < 0 ? CVY_EP_UNPLACED : place;
}

/*
 * All threads, up to a barrier, before an attempt looks at ids, where experts have several places: which of them take the own
 * tokens follows from its contributors @living. What stands in the room @to may be of an attempt before.
 */
static __device__ __noinline__ void cvy_ep_place_all(const struct cvy_ep_args *a, const struct cvy_ep_tables *tables,
						     int32_t *to, cvy_ranks living)
{
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->num_tokens * a->top_k; i += CVY_EP_THREADS)
		to[i] = cvy_ep_placed(a, tables, living, cvy_ep_id_given(a, i));
	__syncthreads();
}

static __device__ __forceinline__ int cvy_ep_known(const struct cvy_ep_args *a, int32_t id)
{
	return id >= 0 && id < a->experts;
}

/*
 * Of the ids before @id, the @k-th of a token whose ids begin at @at: bit 0, one is the same expert; bit 1, one is of
 * the same rank.
 */
static __device__ __forceinline__ unsigned cvy_ep_before(const struct cvy_ep_args *a, const cvy_rank_small *owner,
							 const struct cvy_ep_room *room, int at, int k, int32_t id)
{
	unsigned met = 0;

#pragma unroll 1
	for (int j = 0; j < k; j++) {
		int32_t one = cvy_ep_id(a, room, at + j);

		if (cvy_ep_known(a, one) && owner[one] == owner[id])
			met |= one == id ? 3u : 2u;
	}
	return met;
}

/* All threads, before a barrier: nothing is counted if @counted, and no token goes anywhere yet. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_clear(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
						    const struct cvy_ep_room *room, int counted)
{
	if (threadIdx.x < CVY_GPU_RANKS)
		room->mine[threadIdx.x] = 0;
#pragma unroll 1
	for (int i = (int)threadIdx.x; counted && i < a->experts + (ONCE ? a->call.size : 0); i += CVY_EP_THREADS)
		room->counted[i] = 0;
#pragma unroll 1
	for (int i = (int)threadIdx.x; counted && cvy_ep_windows(a) && i < cvy_ep_window_bins(a); i += CVY_EP_THREADS)
		room->earlier[i] = 0;
}

/* All threads, once, before a barrier: which tokens of the window go where. */
static __device__ __noinline__ void cvy_ep_mark_window(const struct cvy_ep_args *a, const cvy_rank_small *owner,
						       struct cvy_ep_room room, int from)
{
	int words = cvy_ep_window_words(a);

#pragma unroll 1
	for (int w = (int)(threadIdx.x / 32); w < words; w += CVY_EP_WARPS) {
		int token = from + w * 32 + (int)(threadIdx.x % 32);
		cvy_ranks to = cvy_ranks_none();

#pragma unroll 1
		for (int k = 0; k < a->top_k && token < a->num_tokens; k++) {
			int32_t id = cvy_ep_id(a, &room, token * a->top_k + k);

			if (cvy_ep_known(a, id))
				to = cvy_ranks_with(to, owner[id]);
		}
		__syncwarp();
#pragma unroll 1
		for (int r = 0; r < a->call.size; r++) {
			uint32_t bits = __ballot_sync(CVY_EP_ALL, cvy_has(to, r));

			if (threadIdx.x % 32 == 0)
				room.goes[w * a->call.size + r] = bits;
		}
	}
}

/* A warp: how many of the first @n tokens of the window go to @rank. */
static __device__ __forceinline__ uint32_t cvy_ep_marked(const struct cvy_ep_args *a, const struct cvy_ep_room *room,
							 int n, int rank)
{
	uint32_t sum = 0;

#pragma unroll 1
	for (int w = (int)(threadIdx.x % 32); w * 32 < n; w += 32) {
		uint32_t all = n - w * 32 < 32 ? (1u << (n - w * 32)) - 1 : CVY_EP_ALL;

		sum += (uint32_t)__popc(room->goes[w * a->call.size + rank] & all);
	}
	return __reduce_add_sync(CVY_EP_ALL, sum);
}

/* All threads, behind a step whose places nobody needs, and before a barrier: its window is passed. */
template <int ONCE>
static __device__ __noinline__ void cvy_ep_pass_window(const struct cvy_ep_args *a, struct cvy_ep_room room, int from,
						       int to)
{
	int last = to < a->num_tokens ? to : a->num_tokens;

#pragma unroll 1
	for (int r = (int)(threadIdx.x / 32); ONCE && r < a->call.size; r += CVY_EP_WARPS) {
		uint32_t rows = cvy_ep_marked(a, &room, to - from, r);

		if (threadIdx.x % 32 == 0)
			room.earlier[r] += rows;
	}
#pragma unroll 1
	for (int i = from * a->top_k + (int)threadIdx.x; !ONCE && i < last * a->top_k; i += CVY_EP_THREADS) {
		int32_t id = cvy_ep_id(a, &room, i);

		if (cvy_ep_known(a, id))
			atomicAdd(&room.earlier[id], 1u);
	}
}

/* All threads: how many rows each expert gets from here, and each rank where a token has one there. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_count(const struct cvy_ep_turn *t, const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_tables *tables = &t->sh->tables;
	const cvy_rank_small *owner = tables->owner;
	int ids = a->num_tokens * a->top_k;

#pragma unroll 1
	for (int i = (int)threadIdx.x; i < ids; i += CVY_EP_THREADS) {
		int32_t id = cvy_ep_id(a, room, i);
		unsigned met;

		if (!cvy_ep_known(a, id))
			continue;
		met = ONCE ? cvy_ep_before(a, owner, room, i - i % a->top_k, i % a->top_k, id) : 0;
		if (!(met & 1))
			atomicAdd(&room->counted[tables->first[owner[id]] + tables->local[id]], 1u);
		if (ONCE && !met)
			atomicAdd(&room->counted[a->experts + owner[id]], 1u);
	}
	__syncwarp(); /* together: what follows takes twice the time otherwise */
}

/* A warp: how many of @n ids from the @begin-th on are @id. */
static __device__ __forceinline__ uint32_t cvy_ep_earlier(const struct cvy_ep_args *a, const struct cvy_ep_room *room,
							  int begin, int n, int32_t id)
{
	const int32_t *ids = room->ids + begin;
	uint32_t sum = 0;
	int i = (int)(threadIdx.x % 32), whole = ((uintptr_t)ids & 15) == 0 && !a->wide ? n / 4 : 0;

#pragma unroll 4
	for (int k = i; k < whole; k += 32) {
		int4 v = ((const int4 *)ids)[k];

		sum += (v.x == id) + (v.y == id) + (v.z == id) + (v.w == id);
	}
#pragma unroll 1
	for (int k = whole * 4 + i; k < n; k += 32)
		sum += cvy_ep_id(a, room, begin + k) == id;
	return __reduce_add_sync(CVY_EP_ALL, sum);
}

/* A warp: how many tokens before @token go to @rank. */
static __device__ __forceinline__ uint32_t cvy_ep_earlier_rows(const struct cvy_ep_args *a, const cvy_rank_small *owner,
							       const struct cvy_ep_room *room, int token, int rank)
{
	uint32_t sum = 0;

#pragma unroll 1
	for (int t = (int)(threadIdx.x % 32); t < token; t += 32) {
		int goes = 0;

#pragma unroll 1
		for (int k = 0; k < a->top_k && !goes; k++) {
			int32_t id = cvy_ep_id(a, room, t * a->top_k + k);

			goes = cvy_ep_known(a, id) && owner[id] == rank;
		}
		sum += (uint32_t)goes;
	}
	return __reduce_add_sync(CVY_EP_ALL, sum);
}

/*
 * A warp: place of the row of @id, the @k-th expert of @token, among those of this rank in its bin. Where a token has one
 * row in it, the first of the ids that name it has the place, and nobody reads that of the others.
 */
template <int ONCE>
static __device__ __forceinline__ uint32_t cvy_ep_place_of(const struct cvy_ep_args *a, const cvy_rank_small *owner,
							   const struct cvy_ep_room *room, int from, int token, int k,
							   int32_t id)
{
	int at = token * a->top_k, begin = from * a->top_k;
	uint32_t before = 0;

	if (cvy_ep_windows(a))
		before = room->earlier[ONCE ? owner[id] : id];
	if constexpr (!ONCE)
		return before + cvy_ep_earlier(a, room, begin, at + k - begin, id);
	if (cvy_ep_before(a, owner, room, at, k, id))
		return 0;
	if (cvy_ep_windows(a))
		return before + cvy_ep_marked(a, room, token - from, owner[id]);
	return cvy_ep_earlier_rows(a, owner, room, token, owner[id]);
}

/* One thread: the @k-th expert of @token, the @j-th of its step, is @id, and its row is at @place there; or it is none. */
static __device__ __forceinline__ void cvy_ep_note(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						   int token, int j, int k, int32_t id, uint32_t place, float weight)
{
	const struct cvy_ep_args *a = t->a;
	const int each = a->form.entry_words, at = token * a->top_k + k;
	uint32_t *entry = room->own + j * 2 * each + k;

	if (place >= (uint32_t)a->tokens && !(a->places > 1 && id == CVY_EP_UNPLACED))
		id = -1;
	entry[0] = id < 0 ? CVY_EP_ALL : (uint32_t)id | place << 16;
	entry[each] = __float_as_uint(weight);
	if (id >= 0)
		atomicOr((unsigned long long *)&room->mine[t->sh->tables.owner[id]], 1ull << j);
	if (token < a->tokens && k < a->top_k)
		a->sent[at] = id;
}

/* All threads: where the tokens of this step go. A warp has an entry, from the last on: the first ones count. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_plan(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						   const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const cvy_rank_small *owner = t->sh->tables.owner;
	int each = a->form.entry_words;

#pragma unroll 1
	for (int i = CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32); i < a->form.per_step * each; i += CVY_EP_WARPS) {
		int k, j = cvy_ep_split(i, each, &k), token = cvy_ep_token(t, s, j), at = token * a->top_k + k;
		int in = token < a->num_tokens && k < a->top_k;
		int32_t id = in ? cvy_ep_id(a, room, at) : -1;
		uint32_t place = (uint32_t)a->tokens;
		float weight = in && a->weights ? a->weights[at] : 0;

		if (cvy_ep_known(a, id))
			place = cvy_ep_place_of<ONCE>(a, owner, room, cvy_ep_window(a, s), token, k, id);
		if (threadIdx.x % 32 == 0)
			cvy_ep_note(t, room, token, j, k, id, place, weight);
	}
}

/* How many rows expert @e of @rank gets from here, as a header says it; once: behind the last, how many the rank does. */
template <int ONCE>
static __device__ __forceinline__ uint32_t cvy_ep_own_count(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
							    int rank, int e)
{
	const uint16_t *first = &t->sh->tables.first[rank];
	int experts = first[1] - first[0], at = first[0] + e;
	uint32_t rows = 0;

	if (ONCE && e == experts)
		at = t->a->experts + rank;
	if (e < experts + ONCE)
		rows = room->counted[at];
	return rows < (uint32_t)t->a->tokens ? rows : (uint32_t)t->a->tokens;
}

/* Word @w of this rank's header for @rank. */
template <int ONCE>
static __device__ __forceinline__ uint64_t cvy_ep_own_word(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
							   int rank, int w)
{
	const struct cvy_ep_form *f = &t->a->form;
	uint64_t v = 0;

	if (w == 0)
		return room->mine[rank];
	if (w > f->count_words) {
		const uint64_t *entry = (const uint64_t *)room->own;

		w -= 1 + f->count_words;
		return w < f->per_step * f->entry_words ? entry[w] : 0;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		v |= (uint64_t)cvy_ep_own_count<ONCE>(t, room, rank, 4 * (w - 1) + i) << (16 * i);
	return v;
}

#endif
