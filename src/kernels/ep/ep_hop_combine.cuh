/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine over two hops, the paths of dispatch back. An owner sends the row of a token to its source, if that is of its host;
 * else to the forwarder of the source on its own host. The forwarder adds what its host has, by ascending rank, in f32,
 * rounds once, and sends the sum. The source adds what comes by ascending rank of those that bring it, in f32, and rounds
 * once.
 */
#ifndef CVY_EP_HOP_COMBINE_CUH
#define CVY_EP_HOP_COMBINE_CUH

#include "ep_combine.cuh"
#include "ep_hop.cuh"

/* ---- rows to neighbours ---- */

/* Far ranks that this one brings nothing to hear its word at once, neighbours what there is for them and those behind them. */
static __device__ __forceinline__ void cvy_ep_hop_push_words_back(const struct cvy_ep_turn *t,
								  const struct cvy_ep_step *s,
								  const struct cvy_ep_hop *h, uint32_t to)
{
	const int u = (int)(threadIdx.x % 32);

	to &= h->hears & ~h->passes[t->a->call.rank];
#pragma unroll 1
	for (int p = CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32); p < t->a->call.size; p += CVY_EP_WARPS) {
		const uint32_t on = cvy_has(cvy_ep_hop_near(h), p) ? h->passes[p] : 0;

		if (!cvy_has(to, p))
			continue;
		if (u == 0)
			cvy_ep_hop_say(t, s, p, 0, 0, t->sh->theirs[p]);
		else if (u <= __popc(on))
			cvy_ep_hop_say(t, s, p, 0, u, t->sh->theirs[cvy_ep_member(on, u - 1)]);
	}
}

/* The row for token @j of @source goes to @rank, in lines from @line on: its quads from @q on; returns where the next begin. */
static __device__ __forceinline__ int cvy_ep_hop_push_token(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    int rank, int source, int line_at, int j, int q)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_place p = cvy_ep_here<1>(a, source, cvy_ep_token(t, s, j));
	const uint32_t rows = __ballot_sync(CVY_EP_ALL, p.row >= 0);
	const int row = __shfl_sync(CVY_EP_ALL, p.row, rows ? __ffs((int)rows) - 1 : 0);
	const int first = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s), quads = (last - first + 3) / 4;

#pragma unroll 1
	for (; rows && q < quads; q += CVY_EP_WARPS) {
		int word, line = cvy_ep_place(q, &word) + first;
		uint64_t v[2] = { 0, 0 };

		if (line < last)
			cvy_ep_result(a, row, word + first * CVY_EP_LINE_WORDS, v);
		cvy_ep_send(t, s, rank, cvy_ep_combine_line(t, s, j, 0, line_at + line), line < last, v);
	}
	return rows ? q - quads : q;
}

static __device__ __forceinline__ void cvy_ep_hop_push_results(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							       const struct cvy_ep_hop *h, uint32_t to)
{
	int q = (int)(threadIdx.x / 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
		uint32_t on = h->passes[p];
		int source = (int)p, block = 0;

#pragma unroll 1
		for (;; block++) {
#pragma unroll 1
			for (uint64_t left = t->sh->theirs[source]; left; left &= left - 1)
				q = cvy_ep_hop_push_token(t, s, (int)p, source, block * h->block_lines,
							  __ffsll((long long)left) - 1, q);
			if (!on)
				break;
			source = __ffs((int)on) - 1;
			on &= on - 1;
		}
	}
}

/* ---- what the host has for a far source ---- */

/* What neighbours have for this rank, and for those that it brings sums to. */
static __device__ __forceinline__ void cvy_ep_hop_hear_near(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    struct cvy_ep_hop *h)
{
	const uint32_t passes = h->passes[t->a->call.rank];

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		auto take = [&](int w, uint64_t v) {
			if (w)
				h->gave[cvy_ep_member(passes, w - 1)][p] = v;
			else
				t->sh->got[p] = v;
		};

		if (!cvy_has(cvy_ep_hop_near(h), p))
			continue;
		CVY_TRACED(WAIT, p);
		if (cvy_ep_hop_take_words(t, s, p, 0, 1 + __popc(passes), take) != 1)
			cvy_ep_waited(t, p);
	}
}

/* To each far source that this rank forwards, what each rank of this host has for it. */
static __device__ __forceinline__ void cvy_ep_hop_bring_words(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							      const struct cvy_ep_hop *h, uint32_t to)
{
	const uint32_t of = h->hosts.of[t->a->call.rank];
	const int u = (int)(threadIdx.x % 32);

#pragma unroll 1
	for (int p = CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32); p < t->a->call.size; p += CVY_EP_WARPS)
		if (cvy_has(to, p) && u < __popc(of))
			cvy_ep_hop_say(t, s, p, 0, u, h->gave[p][cvy_ep_member(of, u)]);
}

/* A warp: those of this host that have a row for token @j of @source. */
static __device__ __forceinline__ uint32_t cvy_ep_hop_who(const struct cvy_ep_hop *h, int source, int j)
{
	const int p = (int)(threadIdx.x % 32);

	return __ballot_sync(CVY_EP_ALL, cvy_has(h->hosts.of[h->a.call.rank], p) && (h->gave[source][p] >> j & 1));
}

/* A warp: the sum for token @j of @source, its quads from *q on. Not 0: stopped. */
static __device__ __forceinline__ int cvy_ep_hop_bring_token(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							     const struct cvy_ep_hop *h, int source, int j, int *q)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_place p = cvy_ep_weighed<1>(a, cvy_ep_here<1>(a, source, cvy_ep_token(t, s, j)));
	const uint32_t who = cvy_ep_hop_who(h, source, j), rows = __ballot_sync(CVY_EP_ALL, p.row >= 0);
	const int first = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s), quads = (last - first + 3) / 4;

#pragma unroll 1
	for (; who && *q < quads; *q += CVY_EP_WARPS) {
		int word, line = cvy_ep_place(*q, &word) + first, how;
		struct cvy_ep_sum sum, own;
		uint64_t v[2];

		word += first * CVY_EP_LINE_WORDS;
		own = cvy_ep_sum_here(a, &p, rows, word);
		sum.clear();
		how = cvy_ep_gather<1>(t, s, &p, who, j, cvy_ep_hop_out(h, source) + line, word, line < last, 1, own,
				       &sum);
		if (how)
			return how;
		cvy_ep_round(a, &sum, v);
		cvy_ep_send(t, s, source, cvy_ep_combine_line(t, s, j, 0, line), line < last, v);
	}
	*q -= quads;
	return 0;
}

static __device__ __forceinline__ uint64_t cvy_ep_hop_tokens_of(const struct cvy_ep_hop *h, int source)
{
	uint64_t tokens = 0;

#pragma unroll 1
	for (uint32_t of = h->hosts.of[h->a.call.rank]; of; of &= of - 1)
		tokens |= h->gave[source][__ffs((int)of) - 1];
	return tokens;
}

static __device__ __forceinline__ void cvy_ep_hop_bring_sums(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							     const struct cvy_ep_hop *h, uint32_t to)
{
	int q = (int)(threadIdx.x / 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
#pragma unroll 1
		for (uint64_t left = cvy_ep_hop_tokens_of(h, (int)p); left; left &= left - 1)
			if (cvy_ep_hop_bring_token(t, s, h, (int)p, __ffsll((long long)left) - 1, &q))
				return;
	}
}

/* ---- the own tokens ---- */

/* Of other hosts: forwarders say what each rank there has for this one, the others that they have come to this step. */
static __device__ __forceinline__ void cvy_ep_hop_hear_far(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_hop *h)
{
	const uint32_t far = h->hears & ~cvy_ep_hop_near(h);

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		const uint32_t of = cvy_has(h->gives, p) ? h->hosts.of[p] : 0;
		auto take = [&](int w, uint64_t v) {
			if (of)
				t->sh->got[cvy_ep_member(of, w)] = v;
		};

		if (!cvy_has(far, p))
			continue;
		CVY_TRACED(WAIT, p);
		if (cvy_ep_hop_take_words(t, s, p, 0, of ? __popc(of) : 1, take) != 1)
			cvy_ep_waited(t, p);
	}
}

/* Those that bring what @owners have for this rank. */
static __device__ __forceinline__ uint32_t cvy_ep_hop_bearers(const struct cvy_ep_hop *h, uint32_t owners)
{
	const int p = (int)(threadIdx.x % 32);

	return __reduce_or_sync(CVY_EP_ALL, cvy_has(owners, p) ? 1u << h->by[p] : 0);
}

/* A warp: its quads of the own token @j. Not 0: stopped. */
static __device__ __forceinline__ int cvy_ep_hop_take_token(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    const struct cvy_ep_hop *h, int j)
{
	const struct cvy_ep_args *a = t->a;
	const int token = cvy_ep_token(t, s, j), first = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s);
	const struct cvy_ep_place p = cvy_ep_away<1>(t, token);
	const struct cvy_ep_parts parts = cvy_ep_parts_of<1>(t, &p, j);
	const uint32_t from = cvy_ep_hop_bearers(h, parts.from);
	const uint64_t bytes = (uint64_t)a->hidden * 2;
	uint8_t *out = a->out + (size_t)token * bytes;

#pragma unroll 1
	for (int q = cvy_ep_sums_from(t, j); q < (last - first + 3) / 4; q += CVY_EP_WARPS) {
		int word, line = cvy_ep_place(q, &word) + first, how;
		struct cvy_ep_sum sum, none;
		uint64_t v[2];

		word += first * CVY_EP_LINE_WORDS;
		sum.clear();
		none.clear();
		how = cvy_ep_gather<1>(t, s, &p, from, j, line, word, line < last, 0, none, &sum);
		if (how)
			return how;
		if (parts.scale != 1)
			sum.scale(parts.scale);
		cvy_ep_round(a, &sum, v);
		if (line < last && word < a->form.row_words)
			cvy_word_put(out, (uint64_t)word, bytes, v[0]);
		if (line < last && threadIdx.x % 8 != 7 && word + 1 < a->form.row_words)
			cvy_word_put(out, (uint64_t)word + 1, bytes, v[1]);
	}
	return 0;
}

/* ---- the body ---- */

struct cvy_ep_hop_combine {
	enum { PLACES = 0, CLOSES = 1 };

	struct ahead {
	};

	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *, ahead *)
	{
	}

	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *, struct cvy_ep_shared *,
							  uint64_t *, const ahead *)
	{
	}

	/* Thread p: lines that neighbours are given, if a queue leads there, up to the last that is awaited. */
	static __device__ int lines_near(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
					 const struct cvy_ep_hop *h, int p)
	{
		const int words = 1 + __popc(h->passes[p]);
		int lines = cvy_ep_hop_extent(t, s, words, t->sh->theirs[p]), block = h->block_lines;

#pragma unroll 1
		for (uint32_t on = h->passes[p]; on; on &= on - 1, block += h->block_lines) {
			const uint64_t tokens = t->sh->theirs[__ffs((int)on) - 1];

			if (tokens)
				lines = block + cvy_ep_hop_extent(t, s, words, tokens);
		}
		return lines;
	}

	/* Thread p: those, and far ranks hear a word alone. */
	static __device__ int lines(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
				    const struct cvy_ep_hop *h)
	{
		const int p = (int)threadIdx.x;

		if (p < CVY_GPU_RANKS && cvy_has(cvy_ep_hop_near(h), p))
			return lines_near(t, s, h, p);
		return p < CVY_GPU_RANKS && cvy_has(h->hears & ~h->passes[h->a.call.rank], p);
	}

	/* All threads: hop one. What there is for whom is known behind it in any case. */
	template <int HOT>
	static __device__ __forceinline__ void send(struct cvy_ep_turn *t, struct cvy_ep_hop *h,
						    const struct cvy_ep_step *s, int step)
	{
		CVY_TRACED(SEND, step);

		cvy_ep_nobody(t->sh);
		__syncthreads();
		cvy_ep_who<1>(t, s, t->sh->theirs, CVY_EP_WARPS);
		__syncthreads();
		if (threadIdx.x < CVY_GPU_RANKS)
			h->gave[threadIdx.x][t->a->call.rank] = t->sh->theirs[threadIdx.x];
		if (!cvy_ep_must_send<HOT>(t, step))
			return;
		cvy_ep_say_sent(t, step);
		if (!cvy_ep_hop_may_push(t, s, step))
			return;
		cvy_ep_hop_push_words_back(t, s, h, t->peers);
		cvy_ep_hop_push_results(t, s, h, cvy_ep_hop_near(h) & t->peers);
		if (cvy_far(t->r))
			cvy_ep_far_put(t, s, lines(t, s, h));
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *, const ahead *)
	{
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);
		struct cvy_ep_hop *h = cvy_ep_hop_here();
		struct cvy_ep_step s;

		cvy_ep_hop_begin(a, *r, h, t.sources);
		t.a = &h->a;
		s = cvy_ep_step_of(&t, 0);
		send<1>(&t, h, &s, 0);
	}

	/* All threads: hop two. 1: stopped. */
	static __device__ __forceinline__ int bring(struct cvy_ep_turn *t, struct cvy_ep_hop *h,
						    const struct cvy_ep_step *s, int step)
	{
		const uint32_t to = h->passes[t->a->call.rank] & t->peers;
		const int p = (int)threadIdx.x;
		int lines;
		CVY_TRACED(HEAR, step);

		cvy_ep_hop_hear_near(t, s, h);
		if (cvy_ep_stopped(t))
			return 1;
		cvy_ep_hop_bring_words(t, s, h, to);
		cvy_ep_hop_bring_sums(t, s, h, to);
		if (!cvy_far(t->r))
			return 0; /* who was stopped is seen behind what follows */
		if (cvy_ep_stopped(t))
			return 1;
		lines = 0;
		if (p < CVY_GPU_RANKS && cvy_has(to, p))
			lines = cvy_ep_hop_extent(t, s, __popc(h->hosts.of[t->a->call.rank]),
						  cvy_ep_hop_tokens_of(h, p));
		cvy_ep_far_put(t, s, lines);
		return 0;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *, uint32_t, const ahead *)
	{
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);
		struct cvy_ep_hop *h = cvy_ep_hop_here();

		if (cvy_mode<HOT>(r) == CVY_COMPLETE) {
			cvy_ep_hop_closed(a, r, sh);
			return 0;
		}
		cvy_ep_hop_begin(a, *r, h, t.sources);
		t.a = &h->a;
		r->steps = t.a->form.steps + 1;
#pragma unroll 1
		for (int step = 0; step < t.a->form.steps; step++) {
			const struct cvy_ep_step s = cvy_ep_step_of(&t, step);

			send<HOT>(&t, h, &s, step);
			if (bring(&t, h, &s, step))
				return 1;
			cvy_ep_hop_hear_far(&t, &s, h);
			if (cvy_ep_stopped(&t))
				return 1;
			CVY_TRACED(ADD, step);
#pragma unroll 1
			for (int j = 0; j < t.a->form.per_step && cvy_ep_token(&t, &s, j) < t.a->num_tokens; j++)
				if (cvy_ep_hop_take_token(&t, &s, h, j))
					break;
			if (cvy_ep_stopped(&t))
				return 1;
		}
		return cvy_ep_hop_close(&t);
	}
};

#endif
