/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of dispatch as they travel: read ahead of when they are needed, cast where the wire has e4m3, and kept in shared
 * memory, from where they are pushed and the own ones stored.
 */
#ifndef CVY_EP_STAGE_CUH
#define CVY_EP_STAGE_CUH

#include <cuda_fp8.h>

#include "ep_plan.cuh"

/* 8 elements of a token that the caller has in e4m3, and the scale with the first of a group. */
static __device__ __forceinline__ void cvy_ep_eight_given(const struct cvy_ep_args *a, int token, int w, uint64_t v[2])
{
	const uint8_t *row = a->x + (size_t)token * (size_t)a->hidden;
	const size_t groups = (size_t)((a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP);

	v[0] = ((uintptr_t)row & 7) == 0 ? ((const uint64_t *)row)[w]
					 : cvy_word_get(row, (uint64_t)w, (uint64_t)a->hidden);
	v[1] = 0;
	if (w % (CVY_EP_GROUP / 8) == 0)
		v[1] = __float_as_uint(a->x_scales[(size_t)token * groups + (size_t)(w / (CVY_EP_GROUP / 8))]);
}

/* The @w-th 8 elements of a token; past its end 0. */
static __device__ __forceinline__ void cvy_ep_eight(const struct cvy_ep_args *a, int token, int w, uint64_t v[2])
{
	const uint8_t *row = a->x + (size_t)token * (size_t)a->hidden * 2;

	if (a->x_scales) {
		cvy_ep_eight_given(a, token, w, v);
		return;
	}
	if (((uintptr_t)row & 15) == 0 && w * 16 + 16 <= a->hidden * 2) {
		ulonglong2 x = ((const ulonglong2 *)row)[w];

		v[0] = x.x;
		v[1] = x.y;
		return;
	}
	v[0] = cvy_word_get(row, 2 * (uint64_t)w, (uint64_t)a->hidden * 2);
	v[1] = cvy_word_get(row, 2 * (uint64_t)w + 1, (uint64_t)a->hidden * 2);
}

#define CVY_EP_PARTS ((CVY_EP_HIDDEN / 8 + CVY_EP_THREADS - 1) / CVY_EP_THREADS)

/* This thread's part of a token, eight elements a part, read ahead. */
struct cvy_ep_ahead {
	uint64_t v[CVY_EP_PARTS][2];
	int32_t id; /* the first of all that this thread brings near; with the first token of the first step alone */
};

static __device__ __forceinline__ void cvy_ep_ahead_of(const struct cvy_ep_args *a, int token, struct cvy_ep_ahead *x)
{
#pragma unroll
	for (int i = 0; i < CVY_EP_PARTS; i++) {
		int w = i * CVY_EP_THREADS + (int)threadIdx.x;

		x->v[i][0] = x->v[i][1] = 0;
		if (token < a->num_tokens && w < a->hidden / 8)
			cvy_ep_eight(a, token, w, x->v[i]);
	}
}

/* 16 threads have a group of 128 elements. Returns the eight as e4m3. */
template <int FP16>
static __device__ __forceinline__ uint64_t cvy_ep_cast_as(const uint64_t v[2], int pow2, float *scale)
{
	uint64_t out = 0;
	float most = CVY_EP_E4M3_LEAST;
	struct cvy_ep_scaling s;

#pragma unroll
	for (int i = 0; i < 8; i++)
		most = fmaxf(most, fabsf(cvy_ep_wide<FP16>(v[i / 4], i % 4)));
#pragma unroll
	for (int k = 8; k; k /= 2)
		most = fmaxf(most, __shfl_xor_sync(CVY_EP_ALL, most, k));
	s = cvy_ep_scale_e4m3(most, pow2);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 pair = make_float2(cvy_ep_wide<FP16>(v[i / 2], i % 2 * 2) * s.by,
					  cvy_ep_wide<FP16>(v[i / 2], i % 2 * 2 + 1) * s.by);

		out |= (uint64_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) << (16 * i);
	}
	*scale = s.scale;
	return out;
}

struct cvy_ep_eight_cast {
	uint64_t out;
	float scale;
};

/* Called, by value, and so in registers: inlined it costs dispatch of bf16 3 percent. */
static __device__ __noinline__ struct cvy_ep_eight_cast cvy_ep_cast_fp16(uint64_t v0, uint64_t v1, int pow2)
{
	const uint64_t v[2] = { v0, v1 };
	struct cvy_ep_eight_cast cast;

	cast.out = cvy_ep_cast_as<1>(v, pow2, &cast.scale);
	return cast;
}

static __device__ __forceinline__ uint64_t cvy_ep_cast(const struct cvy_ep_args *a, const uint64_t v[2], float *scale)
{
	const int pow2 = a->code == CVY_EP_E4M3_POW2;
	struct cvy_ep_eight_cast cast;

	if (!a->fp16)
		return cvy_ep_cast_as<0>(v, pow2, scale);
	cast = cvy_ep_cast_fp16(v[0], v[1], pow2);
	*scale = cast.scale;
	return cast.out;
}

/* A warp: 8 elements of a token, its @w-th, as they travel; beyond its end nothing. */
static __device__ __forceinline__ void cvy_ep_stage_eight(const struct cvy_ep_args *a, const uint64_t v[2], int w,
							  uint64_t *stage)
{
	int words = a->hidden / 8;

	if (a->code) {
		float *scales = (float *)(stage + words), scale = __uint_as_float((uint32_t)v[1]);
		uint64_t out = v[0];

		if (!a->x_scales)
			out = cvy_ep_cast(a, v, &scale);
		if (w < words)
			stage[w] = out;
		if (w < words && w % 16 == 0)
			scales[w / 16] = scale;
	} else if (w < words) {
		stage[2 * w] = v[0];
		stage[2 * w + 1] = v[1];
	}
}

/* One thread: an odd number of scales ends with 0. */
static __device__ __forceinline__ void cvy_ep_stage_end(const struct cvy_ep_args *a, uint64_t *stage)
{
	int words = a->hidden / 8, groups = (words + 15) / 16;

	if (a->code && groups % 2)
		((float *)(stage + words))[groups] = 0;
}

/* All threads: a token, as it travels. */
static __device__ __forceinline__ void cvy_ep_stage_one(const struct cvy_ep_args *a, const struct cvy_ep_ahead *x,
							uint64_t *stage)
{
	if (threadIdx.x == 0)
		cvy_ep_stage_end(a, stage);
#pragma unroll
	for (int i = 0; i < CVY_EP_PARTS; i++) {
		int w = i * CVY_EP_THREADS + (int)threadIdx.x;

		if (w / 32 * 32 >= a->hidden / 8)
			break;
		cvy_ep_stage_eight(a, x->v[i], w, stage);
	}
}

/* All threads: the tokens of a step. @x: of the first. */
static __device__ __forceinline__ void cvy_ep_stage(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						    const struct cvy_ep_room *room, struct cvy_ep_ahead x)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int j = 0; j < a->form.per_step && cvy_ep_token(t, s, j) < a->num_tokens; j++) {
		struct cvy_ep_ahead next;

		cvy_ep_ahead_of(a, j + 1 < a->form.per_step ? cvy_ep_token(t, s, j + 1) : a->num_tokens, &next);
		cvy_ep_stage_one(a, &x, room->stage + (size_t)j * (size_t)a->form.row_words);
		x = next;
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

#endif
