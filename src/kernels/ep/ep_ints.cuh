/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of dispatch as integers with one scale (ep_code.h): int8, or two int4 in a byte. A row's scale needs all of it, so
 * the threads of a CTA meet once for each token that they stage.
 */
#ifndef CVY_EP_INTS_CUH
#define CVY_EP_INTS_CUH

#include "ep_stage.cuh"

static_assert(sizeof(struct cvy_ep_shared) + 128 + 2 * CVY_EP_WARPS * 4 <= CVY_EP_STATIC, "and cvy_ep_largest()'s");

enum cvy_ep_ints {
	CVY_EP_CAST = 1,  /* the source makes the codes */
	CVY_EP_SMOOTH = 2 /* rows travel as they are, and receivers make codes for each expert, by its factors */
};

static __device__ __forceinline__ int cvy_ep_int_bits(const struct cvy_ep_args *a)
{
	return a->code == CVY_EP_INT4 ? 4 : 8;
}

/* Where a row's scale is, in its words of 4 bytes: behind its codes. */
static __device__ __forceinline__ int cvy_ep_scale_at(const struct cvy_ep_args *a)
{
	return a->hidden * cvy_ep_int_bits(a) / 32;
}

static __device__ __forceinline__ struct cvy_ep_scaling cvy_ep_scaling_of(uint32_t largest, int bits)
{
	return cvy_ep_scale_of(largest, bits == 4 ? 7.0f : 127.0f);
}

/* The largest of the warp. */
static __device__ __forceinline__ uint32_t cvy_ep_warp_most(uint32_t most)
{
#pragma unroll
	for (int k = 16; k; k /= 2) {
		uint32_t other = __shfl_xor_sync(CVY_EP_ALL, most, k);

		most = other > most ? other : most;
	}
	return most;
}

/*
 * All threads: the largest element of a token without its sign, in bits of its type, in which a NaN is above infinity.
 * @odd: tokens by turns, so that one barrier is enough.
 */
static __device__ __forceinline__ uint32_t cvy_ep_largest(const struct cvy_ep_ahead *x, int odd)
{
	__shared__ uint32_t of[2][CVY_EP_WARPS];
	uint32_t most = 0;

#pragma unroll
	for (int i = 0; i < CVY_EP_PARTS * 8; i++) {
		uint32_t one = (uint32_t)(x->v[i / 8][i / 4 % 2] >> (16 * (i % 4))) & 0x7fff;

		most = one > most ? one : most;
	}
	most = cvy_ep_warp_most(most);
	if (threadIdx.x % 32 == 0)
		of[odd][threadIdx.x / 32] = most;
	__syncthreads();
	return cvy_ep_warp_most(of[odd][threadIdx.x % CVY_EP_WARPS]);
}

/* Eight elements as codes of @bits. */
template <int FP16>
static __device__ __forceinline__ uint64_t cvy_ep_eight_ints(const uint64_t v[2], float by, int bits)
{
	const uint32_t in = (1u << bits) - 1;
	uint64_t out = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		out |= (uint64_t)((uint32_t)cvy_ep_nearest(cvy_ep_wide<FP16>(v[i / 4], i % 4), by) & in) << (bits * i);
	return out;
}

/* All threads: a token, as it travels. */
template <int FP16>
static __device__ __forceinline__ void cvy_ep_stage_int(const struct cvy_ep_args *a, const struct cvy_ep_ahead *x,
							int odd, uint64_t *stage)
{
	const float largest = cvy_ep_wide<FP16>(cvy_ep_largest(x, odd), 0);
	const int bits = cvy_ep_int_bits(a), at = cvy_ep_scale_at(a);
	const struct cvy_ep_scaling s = cvy_ep_scaling_of(cvy_ep_magnitude(largest), bits);
	uint32_t *halves = (uint32_t *)stage;

	if (threadIdx.x == 0) {
		halves[at] = __float_as_uint(s.scale);
		if (at % 2 == 0) /* half of a word is left */
			halves[at + 1] = 0;
	}
#pragma unroll
	for (int i = 0; i < CVY_EP_PARTS; i++) {
		int w = i * CVY_EP_THREADS + (int)threadIdx.x;
		uint64_t out;

		if (w >= a->hidden / 8)
			break;
		out = cvy_ep_eight_ints<FP16>(x->v[i], s.by, bits);
		if (bits == 4)
			halves[w] = (uint32_t)out;
		else
			stage[w] = out;
	}
}

/* As cvy_ep_stage(): the tokens of a step. @x: of the first. */
static __device__ __forceinline__ void cvy_ep_stage_ints(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							 const struct cvy_ep_room *room, struct cvy_ep_ahead x)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int j = 0; j < a->form.per_step && cvy_ep_token(t, s, j) < a->num_tokens; j++) {
		uint64_t *stage = room->stage + (size_t)j * (size_t)a->form.row_words;
		struct cvy_ep_ahead next;

		cvy_ep_ahead_of(a, j + 1 < a->form.per_step ? cvy_ep_token(t, s, j + 1) : a->num_tokens, &next);
		if (a->fp16)
			cvy_ep_stage_int<1>(a, &x, j & 1, stage);
		else
			cvy_ep_stage_int<0>(a, &x, j & 1, stage);
		x = next;
	}
}

/* One thread: words @word and the next of a row that came, to @to, whose rows may be odd multiples of 4 bytes. */
static __device__ __forceinline__ void cvy_ep_put_halves(uint8_t *to, int bytes, int word, const uint64_t v[2])
{
	const int words = threadIdx.x % 8 == 7 ? 1 : 2;

	if (bytes % 8 == 0) {
#pragma unroll
		for (int i = 0; i < 2; i++)
			if (i < words && (word + i) * 8 < bytes)
				((uint64_t *)to)[word + i] = v[i];
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (i < 2 * words && (word * 2 + i) * 4 < bytes)
			((uint32_t *)to)[word * 2 + i] = (uint32_t)(v[i / 2] >> (32 * (i % 2)));
}

/* As cvy_ep_put(), with the scale. @row: of the thread's own expert. */
static __device__ __forceinline__ void cvy_ep_put_ints(const struct cvy_ep_args *a, int row, uint32_t rows, int word,
						       const uint64_t v[2])
{
	const int at = cvy_ep_scale_at(a) - word * 2, here = at >= 0 && at < (threadIdx.x % 8 == 7 ? 2 : 4);
	const int bytes = cvy_ep_scale_at(a) * 4;
	const uint32_t scale = (uint32_t)((at < 2 ? v[0] : v[1]) >> (32 * (at & 1)));

#pragma unroll 1
	for (; rows; rows &= rows - 1) {
		int to = __shfl_sync(CVY_EP_ALL, row, __ffs((int)rows) - 1);

		cvy_ep_put_halves(a->packed + (size_t)to * (size_t)bytes, bytes, word, v);
		if (here)
			a->scales[to] = __uint_as_float(scale);
	}
}

#endif
