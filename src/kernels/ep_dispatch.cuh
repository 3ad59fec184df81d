/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch in a lane. Places follow from the routing alone: a row's number is its source's first row in the bin (an
 * expert's, or the rank's) plus the number of earlier tokens of that source for it. The second the source computes from all
 * its ids, the first the receiver from everyone's counts, so no lane asks another, and every run gives the same bytes.
 */
#ifndef CVY_EP_DISPATCH_CUH
#define CVY_EP_DISPATCH_CUH

#include <cuda_fp8.h>

#include "ep_plan.cuh"

/* ---- rows as they travel ---- */

/* 8 elements of bf16 at word pair @w of a row; past its end 0. */
static __device__ __forceinline__ void cvy_ep_eight(const struct cvy_ep_args *a, int token, int w, uint64_t v[2])
{
	const uint8_t *row = a->x + (size_t)token * (size_t)a->hidden * 2;

	if (((uintptr_t)row & 15) == 0 && w * 16 + 16 <= a->hidden * 2) {
		ulonglong2 x = ((const ulonglong2 *)row)[w];

		v[0] = x.x;
		v[1] = x.y;
		return;
	}
	v[0] = cvy_word_get(row, 2 * (uint64_t)w, (uint64_t)a->hidden * 2);
	v[1] = cvy_word_get(row, 2 * (uint64_t)w + 1, (uint64_t)a->hidden * 2);
}

/* The eight elements at which this thread begins with a token, read ahead of when they are needed. */
struct cvy_ep_ahead {
	uint64_t v[2];
};

static __device__ __forceinline__ struct cvy_ep_ahead cvy_ep_ahead_of(const struct cvy_ep_args *a, int token, int w)
{
	struct cvy_ep_ahead x = { { 0, 0 } };

	if (token < a->num_tokens && w < a->hidden / 8)
		cvy_ep_eight(a, token, w, x.v);
	return x;
}

static __device__ __forceinline__ void cvy_ep_stage_bf16(const struct cvy_ep_args *a, int token, struct cvy_ep_ahead x,
							 uint64_t *stage)
{
	struct cvy_ep_ahead next;

#pragma unroll 1
	for (int w = (int)threadIdx.x; w < a->hidden / 8; w += CVY_EP_THREADS, x = next) {
		next = cvy_ep_ahead_of(a, token, w + CVY_EP_THREADS);
		stage[2 * w] = x.v[0];
		stage[2 * w + 1] = x.v[1];
	}
}

/* 16 threads have a group of 128 elements. */
static __device__ __forceinline__ void cvy_ep_stage_fp8(const struct cvy_ep_args *a, int token, struct cvy_ep_ahead x,
							uint64_t *stage)
{
	int words = a->hidden / 8, up = (words + 31) / 32 * 32, groups = (words + 15) / 16;
	float *scales = (float *)(stage + words);
	struct cvy_ep_ahead next;

	if (threadIdx.x == 0 && groups % 2)
		scales[groups] = 0;
#pragma unroll 1
	for (int w = (int)threadIdx.x; w < up; w += CVY_EP_THREADS, x = next) {
		uint64_t out = 0;
		float most = 1e-4f, scale;

		next = cvy_ep_ahead_of(a, token, w + CVY_EP_THREADS);
#pragma unroll
		for (int i = 0; i < 8; i++)
			most = fmaxf(most, fabsf(cvy_bf16_wide(x.v[i / 4], i % 4)));
#pragma unroll
		for (int k = 8; k; k /= 2)
			most = fmaxf(most, __shfl_xor_sync(CVY_EP_ALL, most, k));
		scale = 448.0f / most;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float2 pair = make_float2(cvy_bf16_wide(x.v[i / 2], i % 2 * 2) * scale,
						  cvy_bf16_wide(x.v[i / 2], i % 2 * 2 + 1) * scale);

			out |= (uint64_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) << (16 * i);
		}
		if (w < words)
			stage[w] = out;
		if (w < words && w % 16 == 0)
			scales[w / 16] = most / 448.0f;
	}
}

/* @x: of the first token. */
static __device__ __forceinline__ void cvy_ep_stage(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						    const struct cvy_ep_room *room, struct cvy_ep_ahead x)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int j = 0; j < a->form.per_step; j++) {
		int token = cvy_ep_token(t, s, j);
		uint64_t *stage = room->stage + (size_t)j * (size_t)a->form.row_words;

		if (token >= a->num_tokens)
			break;
		if (j)
			x = cvy_ep_ahead_of(a, token, (int)threadIdx.x);
		if (a->fp8)
			cvy_ep_stage_fp8(a, token, x, stage);
		else
			cvy_ep_stage_bf16(a, token, x, stage);
	}
}

/* Words of a staged row: odd ends are 0. */
static __device__ __forceinline__ void cvy_ep_staged(const struct cvy_ep_args *a, const struct cvy_ep_room *room, int j,
						     int word, uint64_t v[2])
{
	const uint64_t *row = room->stage + (size_t)j * (size_t)a->form.row_words;

	v[0] = word < a->form.row_words ? row[word] : 0;
	v[1] = word + 1 < a->form.row_words ? row[word + 1] : 0;
}

template <int ONCE>
static __device__ __forceinline__ void cvy_ep_push_headers(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_room *room)
{
	int quads = (t->a->form.header_lines + 3) / 4, i = 0;

	CVY_EACH_PEER(p, t->peers, t->a->call.rank)
	{
#pragma unroll 1
		for (int q = 0; q < quads; q++, i++) {
			int word, line = cvy_ep_place(q, &word), in = line < t->a->form.header_lines;
			uint64_t v[2] = { 0, 0 };

			if (i % CVY_EP_WARPS != (int)(threadIdx.x / 32))
				continue;
			if (in)
				v[0] = cvy_ep_own_word<ONCE>(t, s, room, (int)p, word);
			if (in && threadIdx.x % 8 != 7)
				v[1] = cvy_ep_own_word<ONCE>(t, s, room, (int)p, word + 1);
			cvy_ep_send(t, s, (int)p, line, in, v);
		}
	}
}

static __device__ __forceinline__ void cvy_ep_push_rows(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room)
{
	const struct cvy_ep_form *f = &t->a->form;
	int quads = (f->slice_lines + 3) / 4, warp = (int)(threadIdx.x / 32), q = warp;

	CVY_EACH_PEER(p, t->peers, t->a->call.rank)
	{
#pragma unroll 1
		for (uint64_t left = t->sh->mine[p]; left; left &= left - 1) {
			int j = __ffsll((long long)left) - 1;

#pragma unroll 1
			for (; q < quads; q += CVY_EP_WARPS) {
				int word, line = cvy_ep_place(q, &word);
				uint64_t v[2];

				cvy_ep_staged(t->a, room, j, word, v);
				cvy_ep_send(t, s, (int)p, f->header_lines + j * f->slice_lines + line,
					    line < f->slice_lines, v);
			}
			q -= quads; /* the next row begins with the warp that has least to do */
		}
	}
}

/* ---- rows that come ---- */

/* Everyone's header: which tokens come, and rows per expert. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_headers(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	int cw = a->form.count_words, self = a->call.rank, columns = a->el + ONCE;

#pragma unroll 1
	for (int p = (int)(threadIdx.x / 32); p < a->call.size; p += CVY_EP_WARPS) {
		uint32_t *counts = room->first + (size_t)p * (size_t)columns;
		auto take = [&](int w, uint64_t v) {
			if (w == 0)
				t->sh->theirs[p] = v;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t n = (uint32_t)(v >> (16 * i) & 0xffff), e = (uint32_t)(w - 1) * 4 + i;

				if (w >= 1 && w <= cw && e < (uint32_t)columns)
					counts[e] = n < (uint32_t)a->tokens ? n : (uint32_t)a->tokens;
			}
		};

		if (p == self) {
			if (threadIdx.x % 32 == 0)
				t->sh->theirs[p] = t->sh->mine[p];
#pragma unroll 1
			for (int e = (int)(threadIdx.x % 32); e < columns; e += 32)
				counts[e] = e < a->el ? room->listed[t->sh->tables.first[p] + e]
						      : cvy_ep_said(a, room->counted[a->experts + p]);
			continue;
		}
		if (cvy_has(t->sources, p)) {
			int how = cvy_ep_take_header(t, s, p, take);

			if (how != 1)
				cvy_ep_waited(t, p);
			if (!how)
				continue;
		}
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			t->sh->theirs[p] = 0;
#pragma unroll 1
		for (int e = (int)(threadIdx.x % 32); e < columns; e += 32)
			counts[e] = 0;
	}
}

/* Rows per expert and source become first rows; lane 0 tells the caller. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_firsts(const struct cvy_ep_turn *t, const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int e = (int)threadIdx.x; e < a->el + (ONCE && a->el); e += CVY_EP_THREADS) {
		int bin = ONCE ? 0 : e, tell = !t->r->index && (!ONCE || e == a->el);
		uint32_t sum = 0;

#pragma unroll 1
		for (int p = 0; p < a->call.size; p++) {
			uint32_t *at = &room->first[(size_t)p * (size_t)(a->el + ONCE) + e], n = *at;

			*at = sum;
			if (tell)
				a->range[(size_t)bin * (size_t)a->call.size + p] = (int64_t)((uint64_t)n << 32 | sum);
			sum += n;
		}
		if (!t->r->index && e < a->el)
			a->count[e] = (int32_t)sum;
	}
}

/* What thread k of a warp knows of the k-th expert of a token that comes. */
struct cvy_ep_named {
	int local; /* which of the experts here, -1: none */
	int row;   /* -1: none, or (once) that of an earlier k */
	float weight;
	uint64_t scale; /* where the row's first is: the others stand a column apart, or (once) behind it */
};

/* A warp: words @word and the next of a row that came, into each of the @rows that @n names. Scales are left out. */
static __device__ __forceinline__ void cvy_ep_put(const struct cvy_ep_args *a, const struct cvy_ep_named *n,
						  uint32_t rows, int word, const uint64_t v[2])
{
	int bytes = a->hidden * (a->fp8 ? 1 : 2), one = word * 8 < bytes;
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
template <int ONCE>
static __device__ __noinline__ void cvy_ep_put_scales(const struct cvy_ep_args *a, uint64_t scale, uint32_t rows,
						      int word, uint64_t v0, uint64_t v1)
{
	int groups = (a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP, g = (word - a->hidden / 8) * 2;
	size_t apart = ONCE ? 1 : (size_t)a->call.size * (size_t)a->tokens;

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

/* Token @j of @rank. All threads of a warp. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_named cvy_ep_rows_of(const struct cvy_ep_turn *t,
								     const struct cvy_ep_step *s,
								     const struct cvy_ep_room *room, int rank, int j)
{
	const struct cvy_ep_args *a = t->a;
	const uint32_t *first = room->first + (size_t)rank * (size_t)(a->el + ONCE);
	int k = (int)(threadIdx.x % 32), groups = (a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP, e;
	struct cvy_ep_named n = { -1, -1, 0, 0 };
	uint32_t entry = CVY_EP_ALL, here;

	if (k < a->top_k && t->sh->theirs[rank] >> j & 1)
		entry = cvy_ep_entry(t, s, room, rank, j, k, &n.weight);
	e = (int)(entry & 0xffff);
	if (entry != CVY_EP_ALL && e < a->experts && (int)(entry >> 16) < a->tokens &&
	    t->sh->tables.owner[e] == a->call.rank)
		n.local = t->sh->tables.local[e];
	if constexpr (ONCE) {
		here = __ballot_sync(CVY_EP_ALL, n.local >= 0);
		if (n.local >= 0 && !(here & ((1u << k) - 1)))
			n.row = (int)(first[a->el] + (entry >> 16));
		n.scale = (uint64_t)(n.row < 0 ? 0 : n.row) * (uint64_t)groups;
	} else if (n.local >= 0) {
		int rows = a->call.size * a->tokens, in = (int)(first[n.local] + (entry >> 16));

		n.row = n.local * rows + in;
		n.scale = (uint64_t)n.local * (uint64_t)groups * (uint64_t)rows + (uint64_t)in;
	}
	return n;
}

/* What combine needs, and the caller may read. One warp. */
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
	}
	if (ONCE && row >= 0) {
		a->recv_experts[(size_t)row * (size_t)a->top_k + k] = n->local;
		a->recv_weights[(size_t)row * (size_t)a->top_k + k] = n->local < 0 ? 0 : n->weight;
	}
}

/* A warp: its quads of token @j of @rank, from quad @q on. Not 0: stopped or late. */
template <int ONCE>
static __device__ __forceinline__ int cvy_ep_take_row(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      const struct cvy_ep_room *room, int rank, int j, int q,
						      const struct cvy_ep_named *named)
{
	const struct cvy_ep_form *f = &t->a->form;
	uint32_t rows = __ballot_sync(CVY_EP_ALL, named->row >= 0);
	int quads = (f->slice_lines + 3) / 4, self = rank == t->a->call.rank, whose[1] = { rank };

#pragma unroll 1
	for (; q < quads; q += CVY_EP_WARPS) {
		const uint8_t *at[1] = { NULL };
		uint64_t v[1][2] = { { 0, 0 } };
		int word, whom, how, line = cvy_ep_place(q, &word);

		if (line >= f->slice_lines)
			word = f->row_words + 1;
		else if (self)
			cvy_ep_staged(t->a, room, j, word, v[0]);
		else
			at[0] = cvy_ep_from(t, s, rank, f->header_lines + j * f->slice_lines + line);
		how = self ? 0 : cvy_wait_lines<1>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		if (how) {
			cvy_ep_failed(t, how, whom);
			return how;
		}
		cvy_ep_put(t->a, named, rows, word, v[0]);
		if (t->a->fp8 && (q + 1) * 4 * CVY_EP_LINE_WORDS > t->a->hidden / 8)
			cvy_ep_put_scales<ONCE>(t->a, named->scale, rows, word, v[0][0], v[0][1]);
	}
	return 0;
}

template <int ONCE>
static __device__ __forceinline__ void cvy_ep_take_rows(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	int quads = (a->form.slice_lines + 3) / 4, warp = (int)(threadIdx.x / 32), n = 0;

#pragma unroll 1
	for (int p = 0; p < a->call.size; p++) {
		int rank = (a->call.rank + p) % a->call.size; /* its own first: that needs no wait */

#pragma unroll 1
		for (int j = 0; j < a->form.per_step; j++, n++) {
			int q = (warp + n * quads) % CVY_EP_WARPS, writes = n % CVY_EP_WARPS == warp;
			int comes = t->sh->theirs[rank] >> j & 1;
			struct cvy_ep_named named;

			if (!writes && !comes)
				continue;
			named = cvy_ep_rows_of<ONCE>(t, s, room, rank, j);
			if (writes)
				cvy_ep_write_route<ONCE>(t, rank, cvy_ep_token(t, s, j), &named);
			if (comes && cvy_ep_take_row<ONCE>(t, s, room, rank, j, q, &named) == 1)
				return;
		}
	}
}

template <int ONCE> struct cvy_ep_dispatch {
	enum { PLACES = 1 }; /* of rows depend on who takes part */

	/* Lines of the step that went to @rank, and any before them. */
	static __device__ __forceinline__ int lines(const struct cvy_ep_turn *t, int rank)
	{
		const struct cvy_ep_form *f = &t->a->form;
		uint64_t mine = rank < CVY_GPU_RANKS ? t->sh->mine[rank] : 0;

		return f->header_lines + (mine ? 64 - __clzll((long long)mine) : 0) * f->slice_lines;
	}

	/* Sends step @step, and nothing else. */
	static __device__ __forceinline__ void send(struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						    const struct cvy_ep_step *s, int step)
	{
		int push = cvy_ep_must_send(t, step), far = push && cvy_far(t->r);
		struct cvy_ep_ahead x = cvy_ep_ahead_of(t->a, cvy_ep_token(t, s, 0), (int)threadIdx.x);

		cvy_ep_plan<ONCE>(t, s, room);
		if (far)
			push = cvy_ep_far_may_push(t, s, step);
		if (push)
			cvy_ep_push_headers<ONCE>(t, s, room);
		cvy_ep_stage(t, s, room, x);
		__syncthreads();
		cvy_ep_say_sent(t);
		if (push)
			cvy_ep_push_rows(t, s, room);
		if (far && push)
			cvy_ep_far_put(t, s, lines(t, (int)threadIdx.x));
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *dynamic)
	{
		struct cvy_ep_room room = cvy_ep_room_of<ONCE>(a, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin(a, r, sh);
		struct cvy_ep_step s = cvy_ep_step_of(&t, 0);

		cvy_ep_count<ONCE>(&t, &room);
		send(&t, &room, &s, 0);
	}

	/* Not all of its last steps can be had any more: it got nothing, and says so. */
	static __device__ void nothing(const struct cvy_ep_turn *t)
	{
		const struct cvy_ep_args *a = t->a;

#pragma unroll 1
		for (int i = (int)threadIdx.x; i < (ONCE ? a->el > 0 : a->el) * a->call.size; i += CVY_EP_THREADS)
			a->range[i] = 0;
#pragma unroll 1
		for (int i = (int)threadIdx.x; i < a->el; i += CVY_EP_THREADS)
			a->count[i] = 0;
#pragma unroll 1
		for (int p = 0; p < a->call.size; p++)
#pragma unroll 1
			for (int i = t->r->index; i < a->tokens; i += a->form.lanes)
				if ((int)threadIdx.x < a->top_k)
					a->route[((size_t)p * (size_t)a->tokens + (size_t)i) * (size_t)a->top_k +
						 threadIdx.x] = -1;
	}

	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *dynamic, uint32_t late)
	{
		struct cvy_ep_room room = cvy_ep_room_of<ONCE>(a, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin(a, r, sh);

		t.sources &= ~late;
		if (r->mode == CVY_COMPLETE && a->form.steps > 1) {
			nothing(&t);
			return 0;
		}
		cvy_ep_count<ONCE>(&t, &room);
#pragma unroll 1
		for (int step = 0; step < a->form.steps; step++) {
			struct cvy_ep_step s = cvy_ep_step_of(&t, step);

			send(&t, &room, &s, step);
			cvy_ep_headers<ONCE>(&t, &s, &room);
			if (cvy_ep_stopped(&t))
				return 1;
			cvy_ep_firsts<ONCE>(&t, &room);
			__syncthreads();
			cvy_ep_take_rows<ONCE>(&t, &s, &room);
			if (cvy_ep_overtakes(&t))
				cvy_ep_far_look(&t, &s);
			if (cvy_ep_stopped(&t))
				return 1;
		}
		return 0;
	}
};

#endif
