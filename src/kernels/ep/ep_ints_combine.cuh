/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of combine as int8 with a scale for each 8 elements (CVY_EP_INT8_BY_8). A line has 12 eights and then, in its last
 * three words, their scales: it can be read alone. Of the eight threads that have a line the first six have two eights
 * each. Own rows become codes as well.
 */
#ifndef CVY_EP_INTS_COMBINE_CUH
#define CVY_EP_INTS_COMBINE_CUH

#include "ep_result.cuh"

static_assert(CVY_EP_LINE_EIGHTS + CVY_EP_LINE_EIGHTS / 4 == CVY_EP_LINE_WORDS, "four scales to a word");

/* This thread's two eights of a line. */
struct cvy_ep_sums {
	struct cvy_ep_sum eight[2];
};

/* The first of this thread's four words of line @line, as elements are; past the row's end if it has none. */
static __device__ __forceinline__ int cvy_ep_sums_at(const struct cvy_ep_args *a, int line, int in)
{
	const int u = (int)(threadIdx.x % 8);

	return in && u < CVY_EP_LINE_EIGHTS / 2 ? (line * CVY_EP_LINE_EIGHTS + u * 2) * 2 : a->hidden / 4;
}

/* The first of the eight threads that have this one's line. */
static __device__ __forceinline__ int cvy_ep_line_thread(void)
{
	return (int)(threadIdx.x % 32) & ~7;
}

/* A warp: the thread's packet of a line that has @sums. */
static __device__ __forceinline__ void cvy_ep_line_of(const struct cvy_ep_args *a, const struct cvy_ep_sums *sums,
						      uint64_t v[2])
{
	const struct cvy_ep_by_eight low = cvy_ep_eight_of(sums->eight[0].v, a->fp16);
	const struct cvy_ep_by_eight high = cvy_ep_eight_of(sums->eight[1].v, a->fp16);
	const uint32_t own = (uint32_t)low.scale | (uint32_t)high.scale << 16;
	const int u = (int)(threadIdx.x % 8), from = cvy_ep_line_thread() + (u == 7 ? 4 : 0);
	uint64_t scales[2] = { 0, 0 };

#pragma unroll
	for (int i = 0; i < 4; i++)
		scales[i / 2] |= (uint64_t)__shfl_sync(CVY_EP_ALL, own, from + i) << (32 * (i % 2));
	v[0] = u < 6 ? low.codes : scales[0];
	v[1] = u < 6 ? high.codes : scales[1]; /* the last packet has the tag there */
}

/* A warp: adds a line. */
static __device__ __forceinline__ void cvy_ep_add_line(const struct cvy_ep_args *a, struct cvy_ep_sums *sums,
						       const uint64_t v[2], float weight)
{
	const int u = (int)(threadIdx.x % 8), line = cvy_ep_line_thread();
	const uint64_t first = __shfl_sync(CVY_EP_ALL, v[0], line + 6),
		       second = __shfl_sync(CVY_EP_ALL, v[1], line + 6);
	const uint64_t third = __shfl_sync(CVY_EP_ALL, v[0], line + 7);
	const uint32_t own = (uint32_t)((u < 2 ? first : u < 4 ? second : third) >> (32 * (u % 2)));

#pragma unroll
	for (int k = 0; k < 2; k++) {
		const float scale = cvy_ep_scale_wide((uint16_t)(own >> (16 * k)), a->fp16);

#pragma unroll
		for (int i = 0; i < CVY_EP_EIGHT; i++)
			sums->eight[k].v[i] += weight * cvy_ep_eighth(v[k], i, scale);
	}
}

/* A warp: line @line, if @in, of the results @rows of a token here: their sum, or that of one, which has no weight. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_codes_here(const struct cvy_ep_args *a, const struct cvy_ep_place *p,
							 uint32_t rows, int line, int in, uint64_t v[2])
{
	const int word = cvy_ep_sums_at(a, line, in);
	const struct cvy_ep_place here = cvy_ep_weighed<ONCE>(a, *p);
	struct cvy_ep_sums sums;

	sums.eight[0] = cvy_ep_sum_here<1>(a, &here, rows, word);
	sums.eight[1] = cvy_ep_sum_here<1>(a, &here, rows, word + 2);
	cvy_ep_line_of(a, &sums, v);
}

/* As cvy_ep_gather(), of line @line. */
template <int ONCE>
static __device__ __forceinline__ int cvy_ep_gather_coded(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_place *p, cvy_ranks from, int j, int line,
							  int in, struct cvy_ep_sums *sums)
{
	const struct cvy_ep_args *a = t->a;
	const uint32_t mine = __ballot_sync(CVY_EP_ALL, p->owner == a->call.rank && p->row >= 0);

#pragma unroll 1
	while (cvy_ranks_any(from)) {
		const uint8_t *at[CVY_EP_BATCH];
		uint64_t v[CVY_EP_BATCH][2];
		float weight[CVY_EP_BATCH];
		int whose[CVY_EP_BATCH], whom, how;

#pragma unroll
		for (int i = 0; i < CVY_EP_BATCH; i++) {
			int k = cvy_ranks_first(from) & (CVY_GPU_RANKS - 1), nth = __shfl_sync(CVY_EP_ALL, p->nth, k);

			weight[i] = __shfl_sync(CVY_EP_ALL, p->weight, k);
			whose[i] = a->per_rank ? k : __shfl_sync(CVY_EP_ALL, p->owner, k);
			at[i] = NULL;
			v[i][0] = v[i][1] = 0;
			if (!cvy_ranks_any(from))
				whose[i] = -1;
			else if (whose[i] == a->call.rank)
				cvy_ep_codes_here<ONCE>(a, p, a->per_rank ? mine : 1u << k, line, in, v[i]);
			else if (in)
				at[i] = cvy_ep_from(t, s, whose[i],
						    cvy_ep_combine_line(t, s, j, a->per_rank ? 0 : nth, line));
			from = cvy_ranks_rest(from);
		}
		how = cvy_wait_lines<CVY_EP_BATCH>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		if (how) {
			cvy_ep_failed(t, how, whom);
			return how;
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_BATCH; i++)
			if (whose[i] >= 0)
				cvy_ep_add_line(a, sums, v[i], a->per_rank ? 1.0f : weight[i]);
	}
	return 0;
}

/* One thread: its sums of line @line of the own token @token. */
static __device__ __forceinline__ void cvy_ep_put_sums(const struct cvy_ep_args *a, const struct cvy_ep_sums *sums,
						       int token, int line, int in)
{
	const uint64_t bytes = (uint64_t)a->hidden * 2;
	const int word = cvy_ep_sums_at(a, line, in);

#pragma unroll
	for (int k = 0; k < 2; k++) {
		uint64_t v[2];

		cvy_ep_round(a, &sums->eight[k], v);
#pragma unroll
		for (int i = 0; i < 2; i++)
			if (word + k * 2 + i < a->hidden / 4)
				cvy_word_put(a->out + (size_t)token * bytes, (uint64_t)(word + k * 2 + i), bytes, v[i]);
	}
}

/* A warp: its quads of the own token @j, which goes to @first if it is the first. Not 0: stopped or late. */
template <int ONCE>
static __device__ __forceinline__ int cvy_ep_take_coded(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_place *first, int j)
{
	const struct cvy_ep_args *a = t->a;
	const int token = cvy_ep_token(t, s, j), begin = s->slice * a->form.slice_lines, last = cvy_ep_last_line(t, s);
	const struct cvy_ep_place p = j ? cvy_ep_away<ONCE>(t, token) : *first;
	const struct cvy_ep_parts parts = cvy_ep_parts_of<ONCE>(t, &p, j);

#pragma unroll 1
	for (int q = cvy_ep_sums_from(t, j); q < (last - begin + 3) / 4; q += CVY_EP_WARPS) {
		int word, line = cvy_ep_place(q, &word) + begin, how;
		struct cvy_ep_sums sums;

		sums.eight[0].clear();
		sums.eight[1].clear();
		how = cvy_ep_gather_coded<ONCE>(t, s, &p, parts.from, j, line, line < last, &sums);
		if (how)
			return how;
		if (parts.scale != 1) {
			sums.eight[0].scale(parts.scale);
			sums.eight[1].scale(parts.scale);
		}
		cvy_ep_put_sums(a, &sums, token, line, line < last);
	}
	return 0;
}

#endif
