/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of dispatch as they come: what headers say, the rows of a token here, and its words, which go there from the lines
 * in which they arrive. Own rows are taken from shared memory.
 */
#ifndef CVY_EP_TAKE_CUH
#define CVY_EP_TAKE_CUH

#include "ep_arrive.cuh"
#include "ep_ints.cuh"
#include "trace.cuh"

/* One thread: word @w of the header of @rank: which tokens come, rows per expert, or entries. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_heard(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						    int rank, int w, uint64_t v)
{
	const struct cvy_ep_args *a = t->a;
	int cw = a->form.count_words, columns = a->el + ONCE, entries = a->form.per_step * a->form.entry_words;
	uint32_t *rows = room->rows + (size_t)rank * (size_t)columns;
	uint64_t *entry = (uint64_t *)(room->entry + (size_t)rank * cvy_ep_entries(a));

	if (w == 0)
		t->sh->theirs[rank] = v;
	else if (w > cw && w <= cw + entries)
		entry[w - 1 - cw] = v;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t n = (uint32_t)(v >> (16 * i) & 0xffff), e = (uint32_t)(w - 1) * 4 + i;

		if (w >= 1 && w <= cw && e < (uint32_t)columns)
			rows[e] = n < (uint32_t)a->tokens ? n : (uint32_t)a->tokens;
	}
}

/* A warp: @rank sends nothing that is awaited; it is this one, or not heard. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_not_heard(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
							int rank)
{
	int self = rank == t->a->call.rank, columns = t->a->el + ONCE;

	__syncwarp();
	if (threadIdx.x % 32 == 0)
		t->sh->theirs[rank] = self ? room->mine[rank] : 0;
#pragma unroll 1
	for (int e = (int)(threadIdx.x % 32); e < columns; e += 32)
		room->rows[(size_t)rank * (size_t)columns + e] = self ? cvy_ep_own_count<ONCE>(t, room, rank, e) : 0;
}

/* Everyone's header: all that is looked at later. A warp has a rank. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_headers(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      const struct cvy_ep_room *room)
{
#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		auto take = [&](int w, uint64_t v) { cvy_ep_heard<ONCE>(t, room, p, w, v); };
		int how = -1;

		if (p != t->a->call.rank && cvy_has(t->sources, p)) {
			CVY_TRACED(WAIT, p);
			how = cvy_ep_take_header(t, s, p, take);
			if (how != 1)
				cvy_ep_waited(t, p);
		}
		if (how)
			cvy_ep_not_heard<ONCE>(t, room, p);
	}
}

/* First row in bin @e of what @rank sent: behind that of all before it. */
template <int ONCE>
static __device__ __forceinline__ uint32_t cvy_ep_first(const struct cvy_ep_args *a, const struct cvy_ep_room *room,
							int rank, int e)
{
	uint32_t sum = 0;

#pragma unroll 1
	for (int p = 0; p < rank; p++)
		sum += room->rows[(size_t)p * (size_t)(a->el + ONCE) + e];
	return sum;
}

/* All threads, behind the barrier of headers and up to one: where bins begin that stand close. */
static __device__ __forceinline__ void cvy_ep_begin_bins(const struct cvy_ep_args *a, const struct cvy_ep_room *room)
{
	uint32_t before = 0;

#pragma unroll 1
	for (int e = (int)threadIdx.x; e < a->el; e += CVY_EP_THREADS)
		room->begin[e] = cvy_ep_first<0>(a, room, a->call.size, e);
	__syncthreads();
#pragma unroll 1
	for (int first = 0; first < a->el && threadIdx.x < 32; first += 32) {
		const int e = first + (int)threadIdx.x;
		const uint32_t own = e < a->el ? room->begin[e] : 0;
		uint32_t sum = own;

#pragma unroll
		for (int by = 1; by < 32; by *= 2) {
			const uint32_t lower = __shfl_sync(CVY_EP_ALL, sum, (int)threadIdx.x - by);

			sum += (int)threadIdx.x >= by ? lower : 0;
		}
		if (e < a->el)
			room->begin[e] = before + sum - own;
		before += __shfl_sync(CVY_EP_ALL, sum, 31);
	}
	__syncthreads();
}

/* Rows of the buffers in which bins stand close: no header may name one past them. */
static __device__ __forceinline__ int cvy_ep_kept(const struct cvy_ep_args *a)
{
	return a->call.size * a->tokens * (a->top_k < a->el ? a->top_k : a->el);
}

/* Lane 0 tells the caller how many rows came, and where each source's are. */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_tell(const struct cvy_ep_args *a, const struct cvy_ep_room *room)
{
	constexpr int ONCE = BINS == CVY_EP_ONE;

#pragma unroll 1
	for (int e = (int)threadIdx.x; e < a->el + (ONCE && a->el); e += CVY_EP_THREADS) {
		const uint32_t kept = BINS == CVY_EP_CLOSE ? (uint32_t)cvy_ep_kept(a) : 0;
		const uint32_t begin = BINS != CVY_EP_CLOSE ? 0 : room->begin[e] < kept ? room->begin[e] : kept;
		int tells = !ONCE || e == a->el;
		int64_t *range = a->range + (size_t)(ONCE ? 0 : e) * (size_t)a->call.size;
		uint32_t sum = 0;

#pragma unroll 1
		for (int p = 0; p < a->call.size; p++) {
			uint32_t n = room->rows[(size_t)p * (size_t)(a->el + ONCE) + e];

			if (BINS == CVY_EP_CLOSE &&
			    n > kept - begin - sum) /* without tags: of a later step. Readers go by it */
				n = kept - begin - sum;
			if (tells)
				range[p] = (int64_t)((uint64_t)n << 32 | (begin + sum));
			sum += n;
		}
		if (e < a->el)
			a->count[e] = (int32_t)sum;
	}
}

/* Known to thread k of a warp of the k-th expert of an arriving token. */
struct cvy_ep_named {
	int local; /* which of the experts here, -1: none */
	int row;   /* -1: none, or (once) that of an earlier k */
	float weight;
	uint64_t scale; /* where the row's first is: the others stand a column apart, or (once, close) behind it */
};

/* A warp: words @word and the next of a row that came, into each of the @rows that @n names. Scales are left out. */
static __device__ __forceinline__ void cvy_ep_put(const struct cvy_ep_args *a, const struct cvy_ep_named *n,
						  uint32_t rows, int word, const uint64_t v[2])
{
	int bytes = a->hidden * (a->code ? 1 : 2), one = word * 8 < bytes;
	int two = threadIdx.x % 8 != 7 && word * 8 + 8 < bytes;
	uint8_t *at = a->packed + (size_t)word * 8;

#pragma unroll 1
	for (; rows; rows &= rows - 1) {
		int row = __shfl_sync(CVY_EP_ALL, n->row, __ffs((int)rows) - 1);
		uint64_t *to = (uint64_t *)(at + (size_t)row * (size_t)bytes);

		if (one)
			to[0] = v[0];
		if (two)
			to[1] = v[1];
	}
}

/* As above: the scales alone. A row has them in one quad, or in two. */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_put_scales(const struct cvy_ep_args *a, uint64_t scale, uint32_t rows,
							 int word, uint64_t v0, uint64_t v1)
{
	int groups = (a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP, g = (word - a->hidden / 8) * 2;
	size_t apart = BINS != CVY_EP_EACH ? 1 : (size_t)a->call.size * (size_t)a->tokens;

#pragma unroll 1
	for (; rows; rows &= rows - 1) {
		float *at = a->scales + __shfl_sync(CVY_EP_ALL, scale, __ffs((int)rows) - 1);

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (g + i >= 0 && g + i < groups && (i < 2 || threadIdx.x % 8 != 7))
				at[(size_t)(g + i) * apart] =
					__uint_as_float((uint32_t)((i < 2 ? v0 : v1) >> (32 * (i % 2))));
	}
}

/* Token @j of @rank, as its header says: of each expert @entry, and its weight. All threads of a warp. */
template <int BINS>
static __device__ __forceinline__ struct cvy_ep_named cvy_ep_rows_by(const struct cvy_ep_turn *t,
								     const struct cvy_ep_room *room, int rank, int j,
								     uint32_t entry, float weight)
{
	constexpr int ONCE = BINS == CVY_EP_ONE;
	const struct cvy_ep_args *a = t->a;
	int k = (int)(threadIdx.x % 32), groups = (a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP, e;
	struct cvy_ep_named n = { -1, -1, weight, 0 };
	uint32_t here;

	e = (int)(entry & 0xffff);
	if ((t->sh->theirs[rank] >> j & 1) && entry != CVY_EP_ALL && e < a->experts && (int)(entry >> 16) < a->tokens &&
	    t->sh->tables.owner[e] == a->call.rank)
		n.local = t->sh->tables.local[e];
	if constexpr (ONCE) {
		here = __ballot_sync(CVY_EP_ALL, n.local >= 0);
		if (n.local >= 0 && !(here & ((1u << k) - 1)))
			n.row = (int)(cvy_ep_first<ONCE>(a, room, rank, a->el) + (entry >> 16));
		n.scale = (uint64_t)(n.row < 0 ? 0 : n.row) * (uint64_t)groups;
	} else if (BINS == CVY_EP_CLOSE && n.local >= 0) {
		uint32_t row = room->begin[n.local] + cvy_ep_first<0>(a, room, rank, n.local) + (entry >> 16);

		n.row = row < (uint32_t)cvy_ep_kept(a) ? (int)row : -1;
		n.scale = (uint64_t)(n.row < 0 ? 0 : n.row) * (uint64_t)groups;
	} else if (n.local >= 0) {
		int rows = a->call.size * a->tokens;
		int in = (int)(cvy_ep_first<ONCE>(a, room, rank, n.local) + (entry >> 16));

		n.row = n.local * rows + in;
		n.scale = (uint64_t)n.local * (uint64_t)groups * (uint64_t)rows + (uint64_t)in;
	}
	return n;
}

template <int BINS>
static __device__ __forceinline__ struct cvy_ep_named cvy_ep_rows_of(const struct cvy_ep_turn *t,
								     const struct cvy_ep_room *room, int rank, int j)
{
	const uint32_t *said = room->entry + (size_t)rank * cvy_ep_entries(t->a);
	int k = (int)(threadIdx.x % 32);
	uint32_t entry = CVY_EP_ALL;
	float weight = 0;

	if (rank == t->a->call.rank)
		said = room->own;
	said += j * 2 * t->a->form.entry_words;
	if (k < t->a->top_k) {
		entry = said[k];
		weight = __uint_as_float(said[t->a->form.entry_words + k]);
	}
	return cvy_ep_rows_by<BINS>(t, room, rank, j, entry, weight);
}

/* Needed by combine, and readable by the caller. One warp. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_write_route(const struct cvy_ep_turn *t, int rank, int token,
							  const struct cvy_ep_named *n)
{
	const struct cvy_ep_args *a = t->a;
	int k = (int)(threadIdx.x % 32), row = n->row;
	size_t at = ((size_t)rank * (size_t)a->tokens + (size_t)token) * (size_t)a->top_k + k;

	if constexpr (ONCE) {
		uint32_t here = __ballot_sync(CVY_EP_ALL, row >= 0);

		row = __shfl_sync(CVY_EP_ALL, row, here ? __ffs((int)here) - 1 : 0);
	}
	if (token >= a->tokens || k >= a->top_k)
		return;
	a->route[at] = n->row;
	if (n->row >= 0) {
		a->route_weights[at] = ONCE ? 1 : n->weight;
		a->src_info[n->row] = token;
		if (a->flat) {
			a->flat[(size_t)n->row * 2] = rank;
			a->flat[(size_t)n->row * 2 + 1] = token * a->top_k + k;
		}
	}
	if (ONCE && row >= 0) {
		a->recv_experts[(size_t)row * (size_t)a->top_k + k] = n->local;
		a->recv_weights[(size_t)row * (size_t)a->top_k + k] = n->local < 0 ? 0 : n->weight;
	}
}

#define CVY_EP_PAIR 2 /* quads of a row that a warp waits for at a time */

/* A warp: quads @q to @last of this step's piece of token @j of @rank, and its route with the first. Not 0: stopped or late. */
template <int BINS, int INTS>
static __device__ __forceinline__ int cvy_ep_take_row(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      const struct cvy_ep_room *room, int rank, int j, int q, int last)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_form *f = &a->form;
	int self = rank == a->call.rank, whose[CVY_EP_PAIR] = { rank, rank }, how = 0;
	struct cvy_ep_named named = { -1, -1, 0, 0 };
	int begin = s->slice * f->slice_lines, lines = cvy_ep_last_line(t, s) - begin;
	const int here = (last * 4 < lines ? last * 4 : lines) - q * 4; /* lines of this warp */
	uint32_t rows = 0;

#pragma unroll 1
	for (int first = q; q < last && !how; q += CVY_EP_PAIR) {
		const uint8_t *at[CVY_EP_PAIR];
		uint64_t v[CVY_EP_PAIR][2];
		int word[CVY_EP_PAIR], whom;

#pragma unroll
		for (int i = 0; i < CVY_EP_PAIR; i++) {
			int line = cvy_ep_place(q + i, &word[i]);

			at[i] = NULL;
			v[i][0] = v[i][1] = 0;
			word[i] += begin * CVY_EP_LINE_WORDS;
			if (q + i >= last || line >= lines)
				word[i] = f->row_words + 1;
			else if (self)
				cvy_ep_staged(a, room, j, word[i], v[i]);
			else
				at[i] = cvy_ep_from(t, s, rank, f->header_lines + j * f->slice_lines + line);
		}
		if (!self)
			how = cvy_wait_lines<CVY_EP_PAIR>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		if (how)
			cvy_ep_failed(t, how, whom);
		if (q == first) {
			named = cvy_ep_rows_of<BINS>(t, room, rank, j);
			rows = __ballot_sync(CVY_EP_ALL, named.row >= 0);
			if (!first && !s->slice)
				cvy_ep_write_route<BINS == CVY_EP_ONE>(t, rank, cvy_ep_token(t, s, j), &named);
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_PAIR && !how && q + i < last; i++) {
			if constexpr (INTS == CVY_EP_CAST) {
				cvy_ep_put_ints(a, named.row, rows, word[i], v[i]);
				continue;
			}
			cvy_ep_put(a, &named, rows, word[i], v[i]);
			if (a->code && (begin + (q + i + 1) * 4) * CVY_EP_LINE_WORDS > a->hidden / 8)
				cvy_ep_put_scales<BINS>(a, named.scale, rows, word[i], v[i][0], v[i][1]);
		}
	}
	if (!how)
		cvy_ep_row_arrives(a, named.row, here, cvy_ep_row_lines(a));
	return how;
}

/* A warp: tokens of the step that do not come are nowhere. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_write_none(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_named none = { -1, -1, 0, 0 };
	int n = a->call.size * a->form.per_step;

#pragma unroll 1
	for (int i = (int)(threadIdx.x / 32); i < n; i += CVY_EP_WARPS) {
		int j, rank = cvy_ep_split(i, a->form.per_step, &j);

		if (!(t->sh->theirs[rank] >> j & 1))
			cvy_ep_write_route<ONCE>(t, rank, cvy_ep_token(t, s, j), &none);
	}
}

/* Rows that come, the own first, which need no wait: each warp has as many quads of all, in one piece. */
template <int BINS, int INTS>
static __device__ __forceinline__ void cvy_ep_take_rows(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	int quads = (cvy_ep_last_line(t, s) - s->slice * a->form.slice_lines + 3) / 4, rows = 0, share, at, last;

#pragma unroll 1
	for (int p = 0; p < a->call.size; p++)
		rows += __popcll(t->sh->theirs[p]);
	share = (rows * quads + CVY_EP_WARPS - 1) / CVY_EP_WARPS;
	at = (int)(threadIdx.x / 32) * share;
	last = at + share;
#pragma unroll 1
	for (int p = 0; p < a->call.size && last > 0; p++) {
		int rank = a->call.rank + p < a->call.size ? a->call.rank + p : a->call.rank + p - a->call.size;

#pragma unroll 1
		for (uint64_t left = t->sh->theirs[rank]; left && last > 0; left &= left - 1) {
			int end = last < quads ? last : quads;

			if (at < end &&
			    cvy_ep_take_row<BINS, INTS>(t, s, room, rank, __ffsll((long long)left) - 1, at, end) == 1)
				return;
			at = at > quads ? at - quads : 0;
			last -= quads;
		}
	}
}

#endif
