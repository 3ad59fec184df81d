/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a bulk dispatch as they travel: those of a whole step at a time, 16 elements a thread. Cast as ep_stage.cuh casts
 * them, to the bit.
 */
#ifndef CVY_EP_BULK_STAGE_CUH
#define CVY_EP_BULK_STAGE_CUH

#include "ep_dispatch.cuh"

#define CVY_EP_STAGED 2 /* units of 512 elements that a warp reads at a time */

/* 16 elements of a token that the caller has in e4m3, and the scale with the first of a group. */
static __device__ __forceinline__ void cvy_ep_sixteen_given(const struct cvy_ep_args *a, int token, int w,
							    uint64_t v[4])
{
	const uint8_t *at = a->x + (size_t)token * (size_t)a->hidden + (size_t)w * 16;
	const size_t groups = (size_t)((a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP);

	if (((uintptr_t)at & 15) == 0) {
		const ulonglong2 codes = *(const ulonglong2 *)at;

		v[0] = codes.x;
		v[1] = codes.y;
	} else {
		v[0] = cvy_word_get(at, 0, 16);
		v[1] = cvy_word_get(at, 1, 16);
	}
	if (w % 8 == 0)
		v[2] = __float_as_uint(a->x_scales[(size_t)token * groups + (size_t)(w / 8)]);
}

/* 16 elements of a token, from its @w-th 16 on; beyond its end 0. */
static __device__ __noinline__ void cvy_ep_sixteen_anywhere(const uint8_t *at, uint64_t v[4])
{
#pragma unroll 1
	for (int i = 0; i < 4; i++)
		v[i] = cvy_word_get(at, (uint64_t)i, 32);
}

static __device__ __forceinline__ void cvy_ep_sixteen(const struct cvy_ep_args *a, int token, int w, uint64_t v[4])
{
	const uint8_t *at = a->x + (size_t)token * (size_t)a->hidden * 2 + (size_t)w * 32;

	v[0] = v[1] = v[2] = v[3] = 0;
	if (token >= a->num_tokens || w >= a->hidden / 16)
		return;
	if (a->x_scales) {
		cvy_ep_sixteen_given(a, token, w, v);
		return;
	}
	if (((uintptr_t)at & 15) == 0) {
		const ulonglong2 low = ((const ulonglong2 *)at)[0], high = ((const ulonglong2 *)at)[1];

		v[0] = low.x;
		v[1] = low.y;
		v[2] = high.x;
		v[3] = high.y;
	} else {
		uint64_t four[4];

		cvy_ep_sixteen_anywhere(at, four);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = four[i];
	}
}

/* Eight threads have a group of 128 elements: those of the thread as e4m3, and the group's scale. As cvy_ep_cast() has it, to the bit. */
template <int FP16>
static __device__ __forceinline__ void cvy_ep_cast_sixteen_as(const uint64_t v[4], int pow2, uint64_t out[2],
							      float *scale)
{
	uint32_t high = 0;
	struct cvy_ep_scaling s;
	float most;

#pragma unroll
	for (int i = 0; i < 8; i++)
		high = cvy_max_halves<FP16>(high, (uint32_t)(v[i / 2] >> (32 * (i % 2))) & 0x7fff7fffu);
	most = fmaxf(CVY_EP_E4M3_LEAST, fmaxf(cvy_ep_wide<FP16>(high, 0), cvy_ep_wide<FP16>(high, 1)));
#pragma unroll
	for (int k = 4; k; k /= 2)
		most = fmaxf(most, __shfl_xor_sync(CVY_EP_ALL, most, k));
	s = cvy_ep_scale_e4m3(most, pow2);
	out[0] = out[1] = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float2 pair = make_float2(cvy_ep_wide<FP16>(v[i / 2], i % 2 * 2) * s.by,
					  cvy_ep_wide<FP16>(v[i / 2], i % 2 * 2 + 1) * s.by);

		out[i / 4] |= (uint64_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) << (16 * (i % 4));
	}
	*scale = s.scale;
}

struct cvy_ep_sixteen_cast {
	uint64_t low, high;
	float scale;
};

/* Called, by value, and so in registers: inlined it costs dispatch of bf16 up to 11 percent. */
static __device__ __noinline__ struct cvy_ep_sixteen_cast cvy_ep_cast_sixteen_fp16(uint64_t v0, uint64_t v1,
										   uint64_t v2, uint64_t v3, int pow2)
{
	const uint64_t v[4] = { v0, v1, v2, v3 };
	struct cvy_ep_sixteen_cast cast;
	uint64_t out[2];

	cvy_ep_cast_sixteen_as<1>(v, pow2, out, &cast.scale);
	cast.low = out[0];
	cast.high = out[1];
	return cast;
}

static __device__ __forceinline__ void cvy_ep_cast_sixteen(const struct cvy_ep_args *a, const uint64_t v[4],
							   uint64_t out[2], float *scale)
{
	const int pow2 = a->code == CVY_EP_E4M3_POW2;

	if (a->fp16) {
		const struct cvy_ep_sixteen_cast cast = cvy_ep_cast_sixteen_fp16(v[0], v[1], v[2], v[3], pow2);

		out[0] = cast.low;
		out[1] = cast.high;
		*scale = cast.scale;
	} else {
		cvy_ep_cast_sixteen_as<0>(v, pow2, out, scale);
	}
}

/* A warp: the thread's 16 elements of a token, its @w-th, as they travel. */
static __device__ __forceinline__ void cvy_ep_stage_sixteen(const struct cvy_ep_args *a, const uint64_t v[4], int w,
							    uint64_t *stage)
{
	const int in = w < a->hidden / 16;

	if (a->code) {
		uint64_t out[2] = { v[0], v[1] };
		float scale = __uint_as_float((uint32_t)v[2]);

		if (!a->x_scales)
			cvy_ep_cast_sixteen(a, v, out, &scale);
		if (in)
			((ulonglong2 *)stage)[w] = make_ulonglong2(out[0], out[1]);
		if (in && w % 8 == 0)
			((float *)(stage + a->hidden / 8))[w / 8] = scale;
	} else if (in) {
		((ulonglong2 *)stage)[2 * w] = make_ulonglong2(v[0], v[1]);
		((ulonglong2 *)stage)[2 * w + 1] = make_ulonglong2(v[2], v[3]);
	}
}

/* All threads, before a barrier: rows of a step, as much of them at a time as a warp that is free takes. */
static __device__ __forceinline__ void cvy_ep_stage_all(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room, uint32_t *taken)
{
	const struct cvy_ep_args *a = t->a;
	const int units = (a->hidden / 16 + 31) / 32, words = units * 32, all = a->form.per_step * units;
	const int lane = (int)(threadIdx.x % 32);

#pragma unroll 1
	for (int i = (int)threadIdx.x; a->code && i < a->form.per_step; i += CVY_EP_THREADS)
		cvy_ep_stage_end(a, room->stage + (size_t)i * (size_t)a->form.row_words);
#pragma unroll 1
	for (;;) {
		uint64_t v[CVY_EP_STAGED][4];
		int first = 0, j, w;

		if (lane == 0)
			first = (int)atomicAdd(taken, (unsigned)CVY_EP_STAGED);
		first = __shfl_sync(CVY_EP_ALL, first, 0);
		if (first >= all)
			break;
		j = first / units;
		w = (first - j * units) * 32 + lane;
#pragma unroll
		for (int i = 0, row = j, at = w; i < CVY_EP_STAGED; i++, at += 32) {
			if (at >= words) {
				at -= words;
				row++;
			}
			cvy_ep_sixteen(a, first + i < all ? cvy_ep_token(t, s, row) : a->num_tokens, at, v[i]);
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_STAGED; i++, w += 32) {
			if (w >= words) {
				w -= words;
				j++;
			}
			if (first + i < all)
				cvy_ep_stage_sixteen(a, v[i], w, room->stage + (size_t)j * (size_t)a->form.row_words);
		}
	}
	cvy_bulk_fence();
}

#endif
