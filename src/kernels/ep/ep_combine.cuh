/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine in a lane. The owner of experts reads their results in place. For each token that came to it, it sends their
 * weighted sum, or each result as it is. The source adds in ascending rank, or in the order of its experts, in f32, and
 * rounds once. The route that dispatch wrote says which result belongs to which token; no index travels.
 */
#ifndef CVY_EP_COMBINE_CUH
#define CVY_EP_COMBINE_CUH

#include "ep_ints_combine.cuh"
#include "trace.cuh"

#define CVY_EP_ASKS 8 /* ranks up to which each warp looks itself for what came of them */

/* All threads, before a barrier. */
static __device__ __forceinline__ void cvy_ep_nobody(struct cvy_ep_shared *sh)
{
	if (threadIdx.x < CVY_GPU_RANKS)
		sh->theirs[threadIdx.x] = sh->got[threadIdx.x] = 0;
}

/* A warp: has token @j of @rank a row here? */
template <int ONCE>
static __device__ __forceinline__ int cvy_ep_came(const struct cvy_ep_turn *t, const struct cvy_ep_step *s, int rank,
						  int j)
{
	return __any_sync(CVY_EP_ALL, cvy_ep_here<ONCE>(t->a, rank, cvy_ep_token(t, s, j)).row >= 0);
}

/* The first @warps warps, before a barrier: which tokens of the step have rows here for each of the others. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_who(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						  uint64_t *theirs, int warps)
{
	const struct cvy_ep_args *a = t->a;
	int n = a->call.size * a->form.per_step;

#pragma unroll 1
	for (int i = (int)(threadIdx.x / 32); i < n; i += warps) {
		int j, rank = cvy_ep_split(i, a->form.per_step, &j);

		if (rank != a->call.rank && cvy_ep_came<ONCE>(t, s, rank, j) && threadIdx.x % 32 == 0)
			atomicOr((unsigned long long *)&theirs[rank], 1ull << j);
	}
}

/*
 * To each rank, which of its tokens there are results of; by the last warps, since the first push those. @one: the step has one
 * token of each of a few ranks, and nobody has told (cvy_ep_who).
 */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_push_headers_back(const struct cvy_ep_turn *t,
								const struct cvy_ep_step *s, int one,
								const uint64_t *tokens, cvy_ranks to)
{
#pragma unroll 1
	for (int p = CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32); p < t->a->call.size; p += CVY_EP_WARPS) {
		uint64_t v[2] = { 0, s->tag }, theirs;

		if (!cvy_has(to, p))
			continue;
		theirs = one ? (uint64_t)cvy_ep_came<ONCE>(t, s, p, 0) : tokens[p];
		if (threadIdx.x % 8 == 0)
			v[0] = theirs;
		else if (threadIdx.x % 8 == 1) /* so that lane 0 of each knows, whatever it has sent there */
			v[0] = (uint32_t)cvy_has(t->sh->lost, p);
		cvy_ep_send(t, s, p, 0, threadIdx.x % 32 < 8, v);
	}
}

/* The results for token @j of @rank: its quads from @q on, summed or one by one; returns where the next begin. */
template <int ONCE, int CODED>
static __device__ __forceinline__ int cvy_ep_push_token(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							int rank, int j, int q)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_place p = cvy_ep_here<ONCE>(a, rank, cvy_ep_token(t, s, j));
	uint32_t rows = __ballot_sync(CVY_EP_ALL, p.row >= 0);
	int first = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s);
	int n = a->per_rank ? rows != 0 : __popc(rows);
	int quads = (last - first + 3) / 4;
	const struct cvy_ep_place by_weight = cvy_ep_weighed<ONCE>(a, p);

#pragma unroll 1
	for (int nth = 0; nth < n; nth++, rows &= rows - 1) {
		uint32_t these = a->per_rank ? rows : rows & (0u - rows);

#pragma unroll 1
		for (; q < quads; q += CVY_EP_WARPS) {
			int word, line = cvy_ep_place(q, &word) + first;
			uint64_t v[2] = { 0, 0 };

			word += first * CVY_EP_LINE_WORDS;
			if constexpr (CODED) {
				cvy_ep_codes_here<ONCE>(a, &p, these, line, line < last, v);
			} else if (a->per_rank) {
				struct cvy_ep_sum sum = cvy_ep_sum_here(a, &by_weight, these, word);

				cvy_ep_round(a, &sum, v);
			} else {
				int row = __shfl_sync(CVY_EP_ALL, p.row, __ffs((int)these) - 1);

				if (line < last)
					cvy_ep_result_scaled<ONCE>(a, row, word, v);
			}
			cvy_ep_send(t, s, rank, cvy_ep_combine_line(t, s, j, nth, line), line < last, v);
		}
		q -= quads;
	}
	return q;
}

template <int ONCE, int CODED>
static __device__ __forceinline__ void cvy_ep_push_results(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   int one, const uint64_t *theirs, cvy_ranks to)
{
	int q = (int)(threadIdx.x / 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
#pragma unroll 1
		for (uint64_t left = one ? 1 : theirs[p]; left; left &= left - 1)
			q = cvy_ep_push_token<ONCE, CODED>(t, s, (int)p, __ffsll((long long)left) - 1, q);
	}
}

/* Each owner's announcement of what it sends; of a bulk step the signal behind it, too. */
template <int BULK>
static __device__ __forceinline__ void cvy_ep_hear(struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < a->call.size; p += CVY_EP_WARPS) {
		auto take = [&](int w, uint64_t v) {
			if (w == 0)
				t->sh->got[p] = v;
			else if (w == 1 && v)
				cvy_ranks_join(&t->sh->lacking, p);
		};
		uint64_t v[2];
		int how, raw;

		if (p == a->call.rank || !cvy_has(t->sources, p))
			continue;
		CVY_TRACED(WAIT, p);
		how = BULK ? cvy_ep_take_signal(t, s, p, v, &raw) : cvy_ep_take_header(t, s, p, take);
		if (BULK && !how)
			take((int)(threadIdx.x % 32), v[0]);
		if (how != 1)
			cvy_ep_waited(t, p);
	}
}

/* Known to a warp of the step's first own token before it hears anybody. */
struct cvy_ep_begun {
	struct cvy_ep_place place;
	struct cvy_ep_sum own; /* BEGINS: what this rank has itself, at the first quad of the warp */
};

/* A warp, while headers and lines are on their way. */
template <int ONCE, int BEGINS>
static __device__ __forceinline__ struct cvy_ep_begun cvy_ep_begin_sum(const struct cvy_ep_turn *t,
								       const struct cvy_ep_step *s)
{
	const struct cvy_ep_args *a = t->a;
	const int q = cvy_ep_sums_from(t, 0), token = cvy_ep_token(t, s, 0);
	struct cvy_ep_begun b;
	int word;

	b.place = cvy_ep_away<ONCE>(t, token);
	if (BEGINS && q < cvy_ep_quads(a) && token < a->num_tokens) {
		cvy_ep_place(q, &word);
		word += s->slice * a->form.slice_lines * CVY_EP_LINE_WORDS;
		b.own = cvy_ep_own_sum<ONCE>(a, &b.place, word);
	}
	return b;
}

/*
 * The own token @j at @word: everything that comes for it, in order; @own: what this rank has itself, if it is known. Not 0:
 * stopped or late.
 */
template <int ONCE>
static __device__ __forceinline__ int cvy_ep_gather(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						    const struct cvy_ep_place *p, cvy_ranks from, int j, int line,
						    int word, int in, int known, struct cvy_ep_sum own,
						    struct cvy_ep_sum *sum)
{
	const struct cvy_ep_args *a = t->a;

	if (!known && a->per_rank && cvy_has(from, a->call.rank))
		own = cvy_ep_own_sum<ONCE>(a, p, word);
#pragma unroll 1
	while (cvy_ranks_any(from)) {
		const uint8_t *at[CVY_EP_BATCH];
		uint64_t v[CVY_EP_BATCH][2];
		float weight[CVY_EP_BATCH];
		int whose[CVY_EP_BATCH], whom, how;

#pragma unroll
		for (int i = 0; i < CVY_EP_BATCH; i++) {
			int k = cvy_ranks_first(from) & (CVY_GPU_RANKS - 1), nth = __shfl_sync(CVY_EP_ALL, p->nth, k);
			int row = __shfl_sync(CVY_EP_ALL, p->row, k);

			weight[i] = __shfl_sync(CVY_EP_ALL, p->weight, k);
			whose[i] = a->per_rank ? k : __shfl_sync(CVY_EP_ALL, p->owner, k);
			at[i] = NULL;
			if (!cvy_ranks_any(from))
				whose[i] = -1;
			else if (in && whose[i] != a->call.rank)
				at[i] = cvy_ep_from(t, s, whose[i],
						    cvy_ep_combine_line(t, s, j, a->per_rank ? 0 : nth, line));
			else if (in && !a->per_rank)
				cvy_ep_result_scaled<ONCE>(a, row, word, v[i]);
			from = cvy_ranks_rest(from);
		}
		how = cvy_wait_lines<CVY_EP_BATCH>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		if (how) {
			cvy_ep_failed(t, how, whom);
			return how;
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_BATCH; i++) {
			if (whose[i] < 0)
				continue;
			if (a->per_rank && whose[i] == a->call.rank)
				sum->more(&own);
			else if (in)
				cvy_ep_add(a, sum, v[i], a->per_rank ? 1.0f : weight[i]);
		}
	}
	return 0;
}

/* A warp: its quads of the own token @j. Not 0: stopped or late. */
template <int ONCE, int BEGINS>
static __device__ __forceinline__ int cvy_ep_take_token(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_begun *begun, int j)
{
	const struct cvy_ep_args *a = t->a;
	int token = cvy_ep_token(t, s, j), first = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s);
	int q = cvy_ep_sums_from(t, j), known = BEGINS && !j;
	struct cvy_ep_place p = begun->place;
	struct cvy_ep_parts parts;

	if (j)
		p = cvy_ep_away<ONCE>(t, token);
	parts = cvy_ep_parts_of<ONCE>(t, &p, j);
#pragma unroll 1
	for (; q < (last - first + 3) / 4; q += CVY_EP_WARPS) {
		int word, line = cvy_ep_place(q, &word) + first, how;
		struct cvy_ep_sum sum;
		uint64_t v[2];

		word += first * CVY_EP_LINE_WORDS;
		sum.clear();
		how = cvy_ep_gather<ONCE>(t, s, &p, parts.from, j, line, word, line < last, known, begun->own, &sum);
		if (how)
			return how;
		known = 0;
		if (parts.scale != 1)
			sum.scale(parts.scale);
		cvy_ep_round(a, &sum, v);
		if (line < last && word < a->form.row_words)
			cvy_word_put(a->out + (size_t)token * (size_t)a->hidden * 2, (uint64_t)word,
				     (uint64_t)a->hidden * 2, v[0]);
		if (line < last && threadIdx.x % 8 != 7 && word + 1 < a->form.row_words)
			cvy_word_put(a->out + (size_t)token * (size_t)a->hidden * 2, (uint64_t)word + 1,
				     (uint64_t)a->hidden * 2, v[1]);
	}
	return 0;
}

template <int ONCE, int BEGINS, int CODED>
static __device__ __forceinline__ void cvy_ep_take_results(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_begun *begun)
{
#pragma unroll 1
	for (int j = 0; j < t->a->form.per_step && cvy_ep_token(t, s, j) < t->a->num_tokens; j++)
		if ((CODED ? cvy_ep_take_coded<ONCE>(t, s, &begun->place, j)
			   : cvy_ep_take_token<ONCE, BEGINS>(t, s, begun, j)) == 1)
			return;
}

/* BEGINS: own parts are summed before anybody is heard (cvy_ep_begins); kernels of their own, since it takes registers.
 * CODED: rows travel as integers (ep_ints.cu). */
template <int ONCE, int BEGINS, int CODED = 0> struct cvy_ep_combine {
	enum { PLACES = 0, CLOSES = 0 };

	/* Lines of the step that went to @rank, and any before them. */
	static __device__ int lines(const struct cvy_ep_turn *t, const struct cvy_ep_step *s, const uint64_t *tokens,
				    int rank)
	{
		const struct cvy_ep_args *a = t->a;
		uint64_t theirs = rank < CVY_GPU_RANKS ? tokens[rank] : 0;
		int j = theirs ? 63 - __clzll((long long)theirs) : 0, rows = theirs != 0;

		if (theirs && !a->per_rank)
			rows = cvy_ep_rows_here<ONCE>(a, rank, cvy_ep_token(t, s, j));
		return a->form.header_lines + (j * a->form.rows + rows) * a->form.slice_lines;
	}

	struct ahead {
		cvy_ranks lost;
	};

	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *a, ahead *x)
	{
		x->lost = threadIdx.x ? cvy_ranks_none() : cvy_load_ranks(a->lost);
	}

	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *, struct cvy_ep_shared *sh,
							  uint64_t *, const ahead *x)
	{
		cvy_ep_nobody(sh);
		if (threadIdx.x == 0)
			sh->lost = x->lost;
	}

	template <int HOT>
	static __device__ __forceinline__ void send(struct cvy_ep_turn *t, const struct cvy_ep_step *s, int step)
	{
		const int far = cvy_far(t->r);
		const int one = t->a->form.per_step == 1 && t->a->call.size <= CVY_EP_ASKS && !far;
		CVY_TRACED(SEND, step);

		if (!HOT || step) {
			cvy_ep_nobody(t->sh);
			__syncthreads();
		}
		if (!cvy_ep_must_send<HOT>(t, step))
			return;
		if (!one)
			cvy_ep_who<ONCE>(t, s, t->sh->theirs, CVY_EP_WARPS);
		if (!one)
			__syncthreads();
		if (cvy_ep_records<HOT>(t))
			cvy_ep_say_sent(t, step);
		if (far && !cvy_ep_far_may_push(t, s, step))
			return;
		cvy_ep_overtake(t, s, step);
		cvy_ep_push_headers_back<ONCE>(t, s, one, t->sh->theirs, t->peers);
		cvy_ep_push_results<ONCE, CODED>(t, s, one, t->sh->theirs, t->peers);
		if (far)
			cvy_ep_far_put(t, s, lines(t, s, t->sh->theirs, (int)threadIdx.x));
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *, const ahead *)
	{
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);
		struct cvy_ep_step s = cvy_ep_step_of(&t, 0);

		send<1>(&t, &s, 0);
	}

	/* It got nothing, and says so. */
	static __device__ __noinline__ void nothing(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
						    struct cvy_ep_shared *sh)
	{
		const uint64_t bytes = (uint64_t)a->hidden * 2;

#pragma unroll 1
		for (int token = cvy_ep_first_token(a, r->index); token < a->num_tokens; token += a->form.apart)
#pragma unroll 1
			for (uint64_t i = threadIdx.x; i < (bytes + 7) / 8; i += CVY_EP_THREADS)
				cvy_word_put(a->out + (size_t)token * bytes, i, bytes, 0);
		if (threadIdx.x == 0)
			sh->left_out = r->lane.mask;
	}

	/* Of an operation that others have completed, a lane lacks the last step alone; or, by deadlines, more, and then all of it. */
	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *, cvy_ranks late, const ahead *)
	{
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);

		t.sources = cvy_ranks_but(t.sources, late);
		const int none = cvy_mode<HOT>(r) == CVY_COMPLETE && a->form.steps > 1 && sh->nothing;

		if (none)
			nothing(a, r, sh);
		if (none && !cvy_ep_owes_last(&t))
			return 0;
#pragma unroll 1
		for (int step = cvy_mode<HOT>(r) == CVY_COMPLETE ? a->form.steps - 1 : 0; step < a->form.steps;
		     step++) {
			struct cvy_ep_step s = cvy_ep_step_of(&t, step);
			struct cvy_ep_begun begun;
			int stopped;

			send<HOT>(&t, &s, step);
			if (none)
				return 0;
			begun = cvy_ep_begin_sum<ONCE, BEGINS>(&t, &s);
			CVY_TRACED(HEAR, step);
			cvy_ep_hear<0>(&t, &s);
			if (cvy_ep_stopped(&t))
				return 1;
			CVY_TRACED_NEXT(ADD, step);
#pragma unroll 1
			for (;;) { /* a rank that is late in the middle has no part in any of it */
				cvy_ranks with = t.sources;

				cvy_ep_take_results<ONCE, BEGINS, CODED>(&t, &s, &begun);
				if (cvy_ep_overtakes(&t))
					cvy_ep_far_look(&t, &s);
				stopped = cvy_ep_stopped(&t);
				if (stopped || cvy_ranks_equal(t.sources, with))
					break;
			}
			if (stopped)
				return 1;
		}
		return 0;
	}
};

#endif
