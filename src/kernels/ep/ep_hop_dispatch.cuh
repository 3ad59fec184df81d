/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch over two hops. A source tells its forwarder on another host what each rank there gets, and stores there once each
 * row that any of them needs. The forwarder passes words and lines on as it reads them. Places of rows, and all else that
 * receivers do, are those of a dispatch (ep_dispatch.cuh) with one bin for a rank.
 */
#ifndef CVY_EP_HOP_DISPATCH_CUH
#define CVY_EP_HOP_DISPATCH_CUH

#include "ep_dispatch.cuh"
#include "ep_hop.cuh"

/* ---- hop one ---- */

/* The ranks of which this one's header for @rank tells: it, or the contributors of its host; none: it only hears a word. */
static __device__ __forceinline__ uint32_t cvy_ep_hop_told(const struct cvy_ep_hop *h, int rank)
{
	if (!cvy_has(h->gives, rank))
		return 0;
	return cvy_has(cvy_ep_hop_near(h), rank) ? 1u << rank : h->hosts.of[rank];
}

/* Words of a header that tells of @told: for each rank tokens and counts, then entries, which are for all. */
static __device__ __forceinline__ int cvy_ep_hop_words(const struct cvy_ep_form *f, uint32_t told)
{
	return told ? __popc(told) * (1 + f->count_words) + f->per_step * f->entry_words : 1;
}

/* Word @w of such a header is word *w of the header for one rank. Which? -1: any, it is an entry. */
static __device__ __forceinline__ int cvy_ep_hop_whose(const struct cvy_ep_form *f, uint32_t told, int *w)
{
	const int each = 1 + f->count_words, all = __popc(told) * each;
	const int nth = *w / each;

	if (*w >= all) {
		*w += each - all;
		return -1;
	}
	*w %= each;
	return cvy_ep_member(told, nth);
}

static __device__ __forceinline__ void cvy_ep_hop_push_headers(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							       const struct cvy_ep_room *room,
							       const struct cvy_ep_hop *h, uint32_t to)
{
	const struct cvy_ep_form *f = &t->a->form;
	int i = 0;

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
		const uint32_t told = cvy_ep_hop_told(h, (int)p);
		const int words = cvy_ep_hop_words(f, told);

#pragma unroll 1
		for (int first = 0; first < words; first += 32, i++) {
			int w = first + (int)(threadIdx.x % 32), of = w, whose;
			uint64_t v = 0;

			if (i % CVY_EP_WARPS != CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32) || w >= words)
				continue;
			whose = told ? cvy_ep_hop_whose(f, told, &of) : -1;
			if (told)
				v = cvy_ep_own_word<1>(t, room, whose < 0 ? 0 : whose, of);
			cvy_ep_hop_say(t, s, (int)p, 0, w, v);
		}
	}
}

/* Own tokens of the step that go to @rank, for it or for others of its host. */
static __device__ __forceinline__ uint64_t cvy_ep_hop_tokens_for(const struct cvy_ep_room *room,
								 const struct cvy_ep_hop *h, int rank)
{
	uint64_t tokens = 0;

#pragma unroll 1
	for (uint32_t told = cvy_ep_hop_told(h, rank); told; told &= told - 1)
		tokens |= room->mine[__ffs((int)told) - 1];
	return tokens;
}

static __device__ __forceinline__ void cvy_ep_hop_push_rows(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    const struct cvy_ep_room *room, const struct cvy_ep_hop *h,
							    uint32_t to)
{
	const struct cvy_ep_form *f = &t->a->form;
	int first = s->slice * f->slice_lines, lines = cvy_ep_last_line(t, s) - first, quads = (lines + 3) / 4;
	int q = (int)(threadIdx.x / 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
#pragma unroll 1
		for (uint64_t left = cvy_ep_hop_tokens_for(room, h, (int)p); left; left &= left - 1) {
			int j = __ffsll((long long)left) - 1;

#pragma unroll 1
			for (; q < quads; q += CVY_EP_WARPS) {
				int word, line = cvy_ep_place(q, &word);
				uint64_t v[2];

				cvy_ep_staged(t->a, room, j, first * CVY_EP_LINE_WORDS + word, v);
				cvy_ep_send(t, s, (int)p, f->header_lines + j * f->slice_lines + line, line < lines, v);
			}
			q -= quads;
		}
	}
}

/* Thread p: lines of the step that were pushed to rank p, and any before them. */
static __device__ __forceinline__ int cvy_ep_hop_lines(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       const struct cvy_ep_room *room, const struct cvy_ep_hop *h)
{
	const int p = (int)threadIdx.x;

	if (p >= CVY_GPU_RANKS || !cvy_has(h->hears, p))
		return 0;
	return cvy_ep_hop_extent(t, s, cvy_ep_hop_words(&t->a->form, cvy_ep_hop_told(h, p)),
				 cvy_ep_hop_tokens_for(room, h, p));
}

/* ---- headers that come ---- */

/* One thread: word @w of the header of @rank, which tells of @told: for this rank, and for those that it passes it on to. */
static __device__ __forceinline__ void cvy_ep_hop_heard(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room, struct cvy_ep_hop *h, int rank,
							uint32_t told, int w, uint64_t v)
{
	const int me = t->a->call.rank, whose = cvy_ep_hop_whose(&t->a->form, told, &w);
	uint32_t to = told & ~(1u << me);

	if (whose >= 0)
		to &= 1u << whose;
	if (whose >= 0 && !w)
		atomicOr((unsigned long long *)&h->tokens[rank], (unsigned long long)v);
	if (whose < 0 || whose == me)
		cvy_ep_heard<1>(t, room, rank, w, v);
#pragma unroll 1
	for (; to; to &= to - 1)
		cvy_ep_hop_say(t, s, __ffs((int)to) - 1, cvy_ep_hop_out(h, rank), w, v);
}

/* Whoever stores here, or in whose memory this rank stores. */
static __device__ __forceinline__ void cvy_ep_hop_hear_direct(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							      const struct cvy_ep_room *room, struct cvy_ep_hop *h)
{
	const int me = t->a->call.rank;

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		uint32_t told = 0;
		auto take = [&](int w, uint64_t v) {
			if (told)
				cvy_ep_hop_heard(t, s, room, h, p, told, w, v);
		};

		if (!cvy_has(h->hears, p))
			continue;
		if (h->by[p] == p)
			told = cvy_has(cvy_ep_hop_near(h), p) ? 1u << me : h->hosts.of[me];
		CVY_TRACED(WAIT, p);
		if (cvy_ep_hop_take_words(t, s, p, 0, cvy_ep_hop_words(&t->a->form, told), take) != 1)
			cvy_ep_waited(t, p);
	}
}

/* Sources that others pass on; behind those above, for which others may wait. And those of which nothing comes. */
static __device__ __forceinline__ void cvy_ep_hop_hear_passed(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							      const struct cvy_ep_room *room, struct cvy_ep_hop *h)
{
	const int me = t->a->call.rank;

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		auto take = [&](int w, uint64_t v) { cvy_ep_hop_heard(t, s, room, h, p, 1u << me, w, v); };

		if (p == me || !cvy_has(t->sources, p)) {
			cvy_ep_not_heard<1>(t, room, p);
			if (threadIdx.x % 32 == 0)
				h->tokens[p] = t->sh->theirs[p];
		} else if (h->by[p] != p) {
			CVY_TRACED(WAIT, p);
			if (cvy_ep_hop_take_words(t, s, h->by[p], h->at[p], cvy_ep_hop_words(&t->a->form, 1u << me),
						  take) != 1)
				cvy_ep_waited(t, p);
		}
	}
}

/* ---- rows that come ---- */

/* A warp: neighbours that need token @j of @rank, which this rank passes on. */
static __device__ __forceinline__ uint32_t cvy_ep_hop_on(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
							 const struct cvy_ep_hop *h, int rank, int j)
{
	const struct cvy_ep_args *a = t->a;
	const uint32_t *said = room->entry + (size_t)rank * cvy_ep_entries(a) + (size_t)(j * 2 * a->form.entry_words);
	const int k = (int)(threadIdx.x % 32);
	uint32_t to = 0, entry = k < a->top_k ? said[k] : CVY_EP_ALL;
	int owner = CVY_GPU_RANKS;

	if (entry != CVY_EP_ALL && (int)(entry & 0xffff) < a->experts)
		owner = t->sh->tables.owner[entry & 0xffff];
	if (owner < CVY_GPU_RANKS)
		to = 1u << owner;
	return __reduce_or_sync(CVY_EP_ALL, to) & cvy_ep_hop_near(h);
}

/* As cvy_ep_take_row(), of a block; and the lines go on to whoever needs them. Not 0: stopped. */
static __device__ __forceinline__ int cvy_ep_hop_take_row(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_room *room, const struct cvy_ep_hop *h,
							  int rank, int j, int q, int last)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_form *f = &a->form;
	const int self = rank == a->call.rank, writer = h->by[rank], row_at = f->header_lines + j * f->slice_lines;
	const int begin = s->slice * f->slice_lines, lines = cvy_ep_last_line(t, s) - begin;
	const int here = (last * 4 < lines ? last * 4 : lines) - q * 4; /* lines of this warp */
	const int whose[CVY_EP_PAIR] = { writer, writer };
	struct cvy_ep_named named = { -1, -1, 0, 0 };
	uint32_t rows = 0, on = 0;
	int how = 0;

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
				at[i] = cvy_ep_from(t, s, writer, h->at[rank] + row_at + line);
		}
		if (!self)
			how = cvy_wait_lines<CVY_EP_PAIR>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		if (how)
			cvy_ep_failed(t, how, whom);
		if (q == first) {
			named = cvy_ep_rows_of<CVY_EP_ONE>(t, room, rank, j);
			rows = __ballot_sync(CVY_EP_ALL, named.row >= 0);
			if (cvy_has(h->passes[a->call.rank], rank))
				on = cvy_ep_hop_on(t, room, h, rank, j);
			if (!first && !s->slice && (t->sh->theirs[rank] >> j & 1))
				cvy_ep_write_route<1>(t, rank, cvy_ep_token(t, s, j), &named);
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_PAIR && !how && q + i < last; i++) {
			const int line = (q + i) * 4 + (int)(threadIdx.x % 32) / 8;

#pragma unroll 1
			for (uint32_t to = on; to; to &= to - 1)
				cvy_ep_send(t, s, __ffs((int)to) - 1, cvy_ep_hop_out(h, rank) + row_at + line,
					    line < lines, v[i]);
			cvy_ep_put(a, &named, rows, word[i], v[i]);
			if (a->code && (begin + (q + i + 1) * 4) * CVY_EP_LINE_WORDS > a->hidden / 8)
				cvy_ep_put_scales<CVY_EP_ONE>(a, named.scale, rows, word[i], v[i][0], v[i][1]);
		}
	}
	if (!how)
		cvy_ep_row_arrives(a, named.row, here, cvy_ep_row_lines(a));
	return how;
}

/*
 * Rows that come: the own first, then those that their sources store here, which others may wait for, then what others pass
 * on: those of parts @part to @parts, of two. Each warp has as many quads of all, in one piece.
 */
static __device__ __forceinline__ void cvy_ep_hop_take_rows(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    const struct cvy_ep_room *room, const struct cvy_ep_hop *h,
							    int part, int parts)
{
	const struct cvy_ep_args *a = t->a;
	const int quads = (cvy_ep_last_line(t, s) - s->slice * a->form.slice_lines + 3) / 4, size = a->call.size;
	int rows = 0, share, at, last;

#pragma unroll 1
	for (int p = 0; p < size; p++)
		if ((h->by[p] != p) >= part && (h->by[p] != p) < parts)
			rows += __popcll(h->tokens[p]);
	share = (rows * quads + CVY_EP_WARPS - 1) / CVY_EP_WARPS;
	at = (int)(threadIdx.x / 32) * share;
	last = at + share;
#pragma unroll 1
	for (int i = part * size; i < parts * size && last > 0; i++) {
		const int p = i % size, rank = (a->call.rank + p) % size;

		if ((h->by[rank] == rank) != (i < size))
			continue;
#pragma unroll 1
		for (uint64_t left = h->tokens[rank]; left && last > 0; left &= left - 1) {
			int end = last < quads ? last : quads;

			if (at < end && cvy_ep_hop_take_row(t, s, room, h, rank, __ffsll((long long)left) - 1, at, end))
				return;
			at = at > quads ? at - quads : 0;
			last -= quads;
		}
	}
}

/* ---- what is passed on, to neighbours that a queue leads to ---- */

/*
 * All threads: headers of blocks, or (@rows) their rows, up to the last that the neighbour awaits. Each put is of lines that
 * nobody writes while it is under way: rows are stored after headers have been put.
 */
static __device__ __forceinline__ void cvy_ep_hop_put_near(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_hop *h, int rows)
{
	const struct cvy_ep_form *f = &t->a->form;
	const int p = (int)threadIdx.x, posts = p < CVY_GPU_RANKS && cvy_has(h->posts, p);

	CVY_EACH_PEER(source, h->passes[t->a->call.rank], t->a->call.rank)
	{
		const int line = cvy_ep_hop_out(h, (int)source);
		uint64_t tokens[2] = { 0, 0 }; /* as the header has them */
		int end = 0;

		if (posts && rows)
			cvy_load_packet(cvy_to(&t->a->call, t->r, p) + cvy_ep_hop_word_at(t, s, line, 0), tokens);
		if (posts && (!rows || tokens[0]))
			end = line + cvy_ep_hop_extent(t, s, cvy_ep_hop_words(f, 1u << p), tokens[0]);
		cvy_ep_far_put_lines(t, s, rows ? line + f->header_lines : line, end);
	}
}

/* ---- the body ---- */

struct cvy_ep_hop_dispatch {
	enum { PLACES = 1, CLOSES = 1 };

	typedef struct cvy_ep_ahead ahead;

	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *a, struct cvy_ep_ahead *x)
	{
		cvy_ep_dispatch<CVY_EP_ONE>::read_ahead(a, x);
	}

	/* Ids alone: where the rest stands depends on the paths. */
	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							  uint64_t *dynamic, const struct cvy_ep_ahead *x)
	{
		struct cvy_ep_room room = cvy_ep_room_of<CVY_EP_ONE>(a, sh, dynamic);
		int ids = a->num_tokens * a->top_k;

#pragma unroll 1
		for (int i = (int)threadIdx.x; room.near && i < ids; i += CVY_EP_THREADS)
			room.near[i] = i == (int)threadIdx.x ? x->id : cvy_ep_id_given(a, i);
	}

	template <int HOT>
	static __device__ __forceinline__ void send(struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						    const struct cvy_ep_hop *h, const struct cvy_ep_step *s, int step)
	{
		int push = cvy_ep_must_send<HOT>(t, step);
		CVY_TRACED(SEND, step);

		if (push)
			push = cvy_ep_hop_may_push(t, s, step);
		if (push)
			cvy_ep_hop_push_headers(t, s, room, h, h->hears & t->peers);
		cvy_ep_say_sent(t, step);
		if (push)
			cvy_ep_hop_push_rows(t, s, room, h, h->gives & t->peers);
		if (push && cvy_far(t->r))
			cvy_ep_far_put(t, s, cvy_ep_hop_lines(t, s, room, h));
	}

	/* All threads: a step whose tokens are the first of a row is planned and staged, the others have these. */
	static __device__ __forceinline__ void plan(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						    const struct cvy_ep_room *room, struct cvy_ep_hop *h, int step,
						    const struct cvy_ep_ahead *x)
	{
		if (threadIdx.x < CVY_GPU_RANKS)
			h->tokens[threadIdx.x] = 0;
		if (!s->slice)
			cvy_ep_clear<1>(t->a, t->sh, room, !step);
		__syncthreads();
		if (!s->slice)
			cvy_ep_dispatch<CVY_EP_ONE>::plan(t, s, room, step, x);
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *dynamic,
							  const struct cvy_ep_ahead *x)
	{
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);
		struct cvy_ep_hop *h = cvy_ep_hop_here();
		struct cvy_ep_room room;
		struct cvy_ep_step s;

		cvy_ep_hop_begin(a, *r, h, t.sources);
		t.a = &h->a;
		room = cvy_ep_room_of<CVY_EP_ONE>(t.a, sh, dynamic);
		s = cvy_ep_step_of(&t, 0);
		plan(&t, &s, &room, h, 0, x);
		send<1>(&t, &room, h, &s, 0);
	}

	/* All threads: what came of a step is taken, and passed on. 1: stopped. */
	static __device__ __forceinline__ int take(struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						   struct cvy_ep_hop *h, const struct cvy_ep_step *s, int step)
	{
		CVY_TRACED(HEAR, step);

		cvy_ep_hop_hear_direct(t, s, room, h);
		if (h->posts) /* a neighbour may wait for these words before it passes on what is awaited here */
			cvy_ep_hop_put_near(t, s, h, 0);
		cvy_ep_hop_hear_passed(t, s, room, h);
		if (cvy_ep_stopped(t))
			return 1;
		CVY_TRACED_NEXT(TAKE, step);
		if (!t->r->index && !s->slice)
			cvy_ep_tell<CVY_EP_ONE>(t->a, room);
		if (!t->r->index && !step)
			cvy_ep_range_arrives(t->a, 1);
		if (!s->slice)
			cvy_ep_write_none<1>(t, s);
		cvy_ep_hop_take_rows(t, s, room, h, 0, h->posts ? 1 : 2);
		if (cvy_ep_stopped(t))
			return 1;
		if (!h->posts)
			return 0;
		cvy_ep_hop_put_near(t, s, h, 1); /* rows likewise */
		cvy_ep_hop_take_rows(t, s, room, h, 1, 2);
		if (cvy_ep_stopped(t))
			return 1;
		return 0;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *dynamic, uint32_t,
						  struct cvy_ep_ahead *x)
	{
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);
		struct cvy_ep_hop *h = cvy_ep_hop_here();
		struct cvy_ep_room room;

		if (cvy_mode<HOT>(r) == CVY_COMPLETE) {
			cvy_ep_hop_closed(a, r, sh);
			return 0;
		}
		cvy_ep_hop_begin(a, *r, h, t.sources);
		t.a = &h->a;
		r->steps = t.a->form.steps + 1;
		room = cvy_ep_room_of<CVY_EP_ONE>(t.a, sh, dynamic);
#pragma unroll 1
		for (int step = 0; step < t.a->form.steps; step++) {
			struct cvy_ep_step s = cvy_ep_step_of(&t, step), next = cvy_ep_step_of(&t, step + 1);

			if ((!HOT || step) && !s.slice)
				cvy_ep_ahead_of(t.a, cvy_ep_token(&t, &s, 0), x);
			plan(&t, &s, &room, h, step, x);
			send<HOT>(&t, &room, h, &s, step);
			if (take(&t, &room, h, &s, step))
				return 1;
			if (cvy_ep_windows(t.a) && step + 1 < t.a->form.steps && !next.slice)
				cvy_ep_pass_window<1>(t.a, room, cvy_ep_window(t.a, &s), cvy_ep_window(t.a, &next));
		}
		return cvy_ep_hop_close(&t);
	}
};

#endif
