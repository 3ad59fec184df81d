/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of experts, as combine reads them where they stand: which rows a token has here and where its others are, by the route
 * that dispatch wrote, and their sum by weight, in f32.
 */
#ifndef CVY_EP_RESULT_CUH
#define CVY_EP_RESULT_CUH

#include "ep_bulk.cuh"

#define CVY_EP_BATCH 2 /* lines that a thread waits for at a time */

#ifndef CVY_EP_RESULTS
#define CVY_EP_RESULTS 4 /* rows of results that a thread reads at a time */
#endif

/* Two words, that is 8 elements, in f32. */
struct cvy_ep_sum {
	float v[8];

	__device__ __forceinline__ void clear()
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = 0;
	}

	template <int FP16> __device__ __forceinline__ void add(const uint64_t x[2], float weight)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] += weight * cvy_ep_wide<FP16>(x[i / 4], i % 4);
	}

	__device__ __forceinline__ void more(const struct cvy_ep_sum *with)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] += with->v[i];
	}

	__device__ __forceinline__ void scale(float by)
	{
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] *= by;
	}

	template <int FP16> __device__ __forceinline__ void narrow(uint64_t x[2]) const
	{
		x[0] = cvy_ep_narrow<FP16>(v);
		x[1] = cvy_ep_narrow<FP16>(v + 4);
	}
};

static __device__ __forceinline__ void cvy_ep_add(const struct cvy_ep_args *a, struct cvy_ep_sum *sum,
						  const uint64_t x[2], float weight)
{
	if (a->fp16)
		sum->add<1>(x, weight);
	else
		sum->add<0>(x, weight);
}

static __device__ __forceinline__ void cvy_ep_round(const struct cvy_ep_args *a, const struct cvy_ep_sum *sum,
						    uint64_t x[2])
{
	if (a->fp16)
		sum->narrow<1>(x);
	else
		sum->narrow<0>(x);
}

/* The first @n of the parts that are read at a time. */
template <int FP16>
static __device__ __forceinline__ void cvy_ep_add_first(struct cvy_ep_sum *sum, const uint64_t v[CVY_EP_RESULTS][2],
							const float by[CVY_EP_RESULTS], int n)
{
#pragma unroll
	for (int i = 0; i < CVY_EP_RESULTS; i++)
		if (i < n)
			sum->add<FP16>(v[i], by[i]);
}

/* Known to thread k of a warp of the k-th expert of a token. */
struct cvy_ep_place {
	int row;   /* of y, -1: not here */
	int owner; /* of the expert, where the token is of this rank; -1: it goes nowhere; or CVY_EP_UNPLACED */
	int nth;   /* of the token's rows at that owner */
	float weight;
};

/* Rows that the experts here may have: a route that no dispatch has written may name others. */
template <int ONCE> static __device__ __forceinline__ int cvy_ep_rows(const struct cvy_ep_args *a)
{
	return (ONCE ? 1 : a->el) * a->call.size * a->tokens;
}

/* Rows here of @token of @rank. No load waits for another: weights without a row are not used. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_place cvy_ep_here(const struct cvy_ep_args *a, int rank, int token)
{
	int k = (int)(threadIdx.x % 32);
	size_t at = ((size_t)rank * (size_t)a->tokens + (size_t)token) * (size_t)a->top_k + k;
	struct cvy_ep_place p = { -1, -1, 0, 0 };

	if (token < a->tokens && k < a->top_k) {
		p.row = a->route[at];
		p.weight = a->route_weights[at];
	}
	if (p.row >= cvy_ep_rows<ONCE>(a))
		p.row = -1;
	return p;
}

/* One thread: how many rows here @token of @rank has. */
template <int ONCE>
static __device__ __noinline__ int cvy_ep_rows_here(const struct cvy_ep_args *a, int rank, int token)
{
	const int32_t *row = a->route + ((size_t)rank * (size_t)a->tokens + (size_t)token) * (size_t)a->top_k;
	int n = 0;

#pragma unroll 1
	for (int k = 0; k < a->top_k && token < a->tokens; k++)
		n += row[k] >= 0 && row[k] < cvy_ep_rows<ONCE>(a);
	return n;
}

/* Where the experts of the own @token are. All threads of a warp. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_place cvy_ep_away(const struct cvy_ep_turn *t, int token)
{
	const struct cvy_ep_args *a = t->a;
	int k = (int)(threadIdx.x % 32);
	struct cvy_ep_place p = { -1, -1, 0, 0 };
	uint32_t same;

	if (token < a->num_tokens && k < a->top_k) {
		size_t at = (size_t)token * (size_t)a->top_k + k;
		int id = a->sent[at], row = a->route[(size_t)a->call.rank * (size_t)a->tokens * (size_t)a->top_k + at];
		float weight = ONCE && !a->weights ? 0 : a->weights[at];

		if (id >= 0 && id < a->experts) {
			p.owner = t->sh->tables.owner[id];
			p.row = row < cvy_ep_rows<ONCE>(a) ? row : -1;
			p.weight = weight;
		} else if (id == CVY_EP_UNPLACED) {
			p.owner = CVY_EP_UNPLACED;
			p.weight = weight;
		}
	}
	same = __match_any_sync(CVY_EP_ALL, p.owner);
	p.nth = __popc(same & ((1u << k) - 1));
	return p;
}

/* The rare case: rows do not begin at words. */
static __device__ __noinline__ void cvy_ep_result_part(const uint8_t *row, int hidden, int word, uint64_t v[2])
{
	v[0] = cvy_word_get_part(row, (uint64_t)word * 8, (uint64_t)hidden * 2);
	v[1] = cvy_word_get_part(row, (uint64_t)word * 8 + 8, (uint64_t)hidden * 2);
}

/* Two words of row @row of the experts' results: rows are whole words (hidden). CODED: row_words are those of codes. */
template <int CODED = 0>
static __device__ __forceinline__ void cvy_ep_result(const struct cvy_ep_args *a, int row, int word, uint64_t v[2])
{
	const uint8_t *at = a->y + (size_t)row * (size_t)a->hidden * 2;
	const uint64_t *words = (const uint64_t *)at + word;
	const int end = CODED ? a->hidden / 4 : a->form.row_words;

	if (((uintptr_t)a->y & 7) == 0) {
		v[0] = word < end ? words[0] : 0;
		v[1] = word + 1 < end ? words[1] : 0;
	} else {
		uint64_t part[2];

		cvy_ep_result_part(at, a->hidden, word, part);
		v[0] = part[0];
		v[1] = part[1];
	}
}

static __device__ __noinline__ void cvy_ep_result_anywhere(const uint8_t *at, uint64_t v[2])
{
	v[0] = cvy_word_get(at, 0, 16);
	v[1] = cvy_word_get(at, 1, 16);
}

/* As above, of a bulk step: @word is even, and rows are whole 16 bytes. */
static __device__ __forceinline__ void cvy_ep_result_two(const struct cvy_ep_args *a, int row, int word, uint64_t v[2])
{
	const uint8_t *at = a->y + (size_t)row * (size_t)a->hidden * 2 + (size_t)word * 8;

	if (((uintptr_t)at & 15) == 0) {
		const ulonglong2 two = *(const ulonglong2 *)at;

		v[0] = two.x;
		v[1] = two.y;
	} else {
		uint64_t two[2];

		cvy_ep_result_anywhere(at, two);
		v[0] = two[0];
		v[1] = two[1];
	}
}

/* The factor of the expert of a row here. Inlined: a loop with a call is slower, also where it is not called. */
static __device__ __forceinline__ float cvy_ep_factor(const struct cvy_ep_args *a, int row)
{
	return row < 0 ? 1 : a->expert_scale[row / (a->call.size * a->tokens)];
}

/* What rows here are summed with: their weights, or 1 where they are sent one by one; times the factors of their experts. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_place cvy_ep_weighed(const struct cvy_ep_args *a, struct cvy_ep_place p)
{
	if (ONCE || !a->per_rank)
		p.weight = 1;
	if (!ONCE && a->expert_scale)
		p.weight *= cvy_ep_factor(a, p.row);
	return p;
}

/* Two words of a row that is sent, or added, by itself: times the factor of its expert, if there are factors. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_result_scaled(const struct cvy_ep_args *a, int row, int word,
							    uint64_t v[2])
{
	cvy_ep_result(a, row, word, v);
	if (!ONCE && a->expert_scale) {
		struct cvy_ep_sum sum;

		sum.clear();
		cvy_ep_add(a, &sum, v, cvy_ep_factor(a, row));
		cvy_ep_round(a, &sum, v);
	}
}

/* The weighted sum of the rows in @rows, at @word. All threads of a warp. */
template <int CODED = 0>
static __device__ __forceinline__ struct cvy_ep_sum cvy_ep_sum_here(const struct cvy_ep_args *a,
								    const struct cvy_ep_place *p, uint32_t rows,
								    int word)
{
	struct cvy_ep_sum sum;

	sum.clear();
#pragma unroll 1
	while (rows) {
		uint64_t v[CVY_EP_RESULTS][2];
		float by[CVY_EP_RESULTS];
		int n = __popc(rows);

#pragma unroll
		for (int i = 0; i < CVY_EP_RESULTS; i++) {
			int k = (__ffs((int)rows) - 1) & 31, r = __shfl_sync(CVY_EP_ALL, p->row, k);

			by[i] = __shfl_sync(CVY_EP_ALL, p->weight, k);
			if (i < n)
				cvy_ep_result<CODED>(a, r, word, v[i]);
			rows &= rows - 1;
		}
		if (a->fp16)
			cvy_ep_add_first<1>(&sum, v, by, n);
		else
			cvy_ep_add_first<0>(&sum, v, by, n);
	}
	return sum;
}

/* This rank's own part of the own token, at @word. All threads of a warp. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_sum cvy_ep_own_sum(const struct cvy_ep_args *a,
								   const struct cvy_ep_place *p, int word)
{
	const struct cvy_ep_place mine = cvy_ep_weighed<ONCE>(a, *p);

	return cvy_ep_sum_here(a, &mine, __ballot_sync(CVY_EP_ALL, p->owner == a->call.rank && p->row >= 0), word);
}

/* ---- an own token: what comes for it, and where it is in a step ---- */

/* Line of word @word of row @nth of token @j in the step, -1: of another slice. */
static __device__ __forceinline__ int cvy_ep_combine_line(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  int j, int nth, int line)
{
	const struct cvy_ep_form *f = &t->a->form;

	return f->header_lines + (j * f->rows + nth) * f->slice_lines + line - s->slice * f->slice_lines;
}

/* The first quad of own token @j of a step that this warp sums: from the last warp on, since the first have results to push. */
static __device__ __forceinline__ int cvy_ep_sums_from(const struct cvy_ep_turn *t, int j)
{
	return (CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32) + j * cvy_ep_quads(t->a)) % CVY_EP_WARPS;
}

/* The sum of the weights whose owners take part: k ascending, as the host adds. */
static __device__ __forceinline__ float cvy_ep_scale(const struct cvy_ep_args *a, const struct cvy_ep_place *p,
						     uint32_t valid, uint32_t here)
{
	float all = 0, left = 0;

	if (!a->renormalise || valid == here)
		return 1;
#pragma unroll 1
	for (int k = 0; k < a->top_k; k++) {
		float w = __shfl_sync(CVY_EP_ALL, p->weight, k);

		if (valid >> k & 1)
			all += w;
		if (here >> k & 1)
			left += w;
	}
	return left != all && left != 0 ? all / left : 1;
}

/* Of an own token, known to a warp before it adds: the parts that come, and the factor of their sum. */
struct cvy_ep_parts {
	cvy_ranks from; /* ranks, or numbers of its experts */
	float scale;
};

/* A warp: of the own token @j. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_parts cvy_ep_parts_of(const struct cvy_ep_turn *t,
								      const struct cvy_ep_place *p, int j)
{
	const struct cvy_ep_args *a = t->a;
	int self = p->owner == a->call.rank, own = p->row >= 0, comes;
	struct cvy_ep_parts parts;
	uint32_t valid, here;

	if (ONCE) /* the row stands at the first that names the rank */
		own = __any_sync(CVY_EP_ALL, self && own);
	comes = p->owner >= 0 && (self ? own : cvy_has(t->sources, p->owner) && (t->sh->got[p->owner] >> j & 1));
	valid = __ballot_sync(CVY_EP_ALL, p->owner != -1);
	here = __ballot_sync(CVY_EP_ALL, comes);
	parts.scale = cvy_ep_scale(a, p, valid, here);
	parts.from = cvy_ranks_none();
	*cvy_ranks_word(&parts.from, 0) = here;
	if (a->per_rank) /* owners in place of experts */
		for (int i = 0; i < CVY_RANKS_WORDS; i++)
			*cvy_ranks_word(&parts.from, i) =
				__reduce_or_sync(CVY_EP_ALL, comes ? cvy_ranks_bit(p->owner, i) : 0);
	return parts;
}

#endif
