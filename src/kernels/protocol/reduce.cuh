/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fold of one 8-byte word of elements, as the host folds (collectives/bytes/reduce_body.h): ascending ranks, f16 and bf16
 * in f32 and rounded once, integers wrap, one fixed NaN. Compiled without fused multiply-add: the same bits.
 */
#ifndef CVY_REDUCE_CUH
#define CVY_REDUCE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "covey.h"
#include "layout.h"

/* How an element is kept while folding. */
template <typename T> struct cvy_wide {
	typedef T type;
};
template <> struct cvy_wide<__half> {
	typedef float type;
};
template <> struct cvy_wide<__nv_bfloat16> {
	typedef float type;
};

template <typename T, int = std::is_integral<T>::value> struct cvy_number_of { /* no integer */
	typedef T wrap, with_sign, via;
};
template <typename T> struct cvy_number_of<T, 1> {
	/* In what sums and products wrap. */
	typedef typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type wrap;
	/* The type that it is taken for if the call says that it has a sign. */
	typedef typename std::make_signed<T>::type with_sign;
	/* The type in which an average divides. */
	typedef typename std::conditional<sizeof(T) == 8, T,
					  typename std::conditional<sizeof(T) == 4, double, float>::type>::type via;
};

static __device__ __forceinline__ float cvy_widen(__half v)
{
	return __half2float(v);
}
static __device__ __forceinline__ float cvy_widen(__nv_bfloat16 v)
{
	return __bfloat162float(v);
}
template <typename T> static __device__ __forceinline__ T cvy_widen(T v)
{
	return v;
}

template <typename T, typename W> struct cvy_narrow {
	static __device__ __forceinline__ T of(W v)
	{
		return (T)v;
	}
};
template <> struct cvy_narrow<__half, float> {
	static __device__ __forceinline__ __half of(float v)
	{
		uint32_t bits = __float_as_uint(v);

		return v == v ? __float2half_rn(v)
			      : __ushort_as_half((uint16_t)((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff)));
	}
};
template <> struct cvy_narrow<__nv_bfloat16, float> {
	static __device__ __forceinline__ __nv_bfloat16 of(float v)
	{
		return v == v ? __float2bfloat16_rn(v)
			      : __ushort_as_bfloat16((uint16_t)(__float_as_uint(v) >> 16 | 0x40));
	}
};

static __device__ __forceinline__ float cvy_number(float v)
{
	return v == v ? v : __uint_as_float(0x7fc00000u);
}
static __device__ __forceinline__ double cvy_number(double v)
{
	return v == v ? v : __longlong_as_double(0x7ff8000000000000ll);
}
template <typename T> static __device__ __forceinline__ T cvy_number(T v)
{
	return v;
}

template <typename W> static __device__ __forceinline__ W cvy_fold_one(W a, W b, int redop)
{
	typedef typename cvy_number_of<W>::wrap U;

	if (redop == COVEY_PROD)
		return cvy_number((W)((U)a * (U)b));
	if (redop == COVEY_MAX)
		return b > a || a != a ? b : a;
	if (redop == COVEY_MIN)
		return b < a || a != a ? b : a;
	return cvy_number((W)((U)a + (U)b));
}

template <typename T> struct cvy_acc {
	typedef typename cvy_wide<T>::type W;
	enum { N = 8 / sizeof(T) };
	W v[N];

	__device__ __forceinline__ void first(uint64_t word)
	{
		T t[N];

		memcpy(t, &word, 8);
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = cvy_widen(t[i]);
	}

	/* AS: the same, or with a sign. */
	template <int REDOP, typename AS = W> __device__ __forceinline__ void fold_as(uint64_t word)
	{
		T t[N];

		memcpy(t, &word, 8);
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = (W)cvy_fold_one<AS>((AS)v[i], (AS)cvy_widen(t[i]), REDOP);
	}

	__device__ __forceinline__ uint64_t result(void)
	{
		T t[N];
		uint64_t word;

#pragma unroll
		for (int i = 0; i < N; i++)
			t[i] = cvy_narrow<T, W>::of(v[i]);
		memcpy(&word, t, 8);
		return word;
	}
};

static __device__ __forceinline__ int cvy_redop(int how)
{
	return how & (CVY_GPU_SIGNED - 1);
}

/* Everything but sums, out of line: most calls are sums, and their code is short. */
template <typename T, typename AS>
static __device__ __forceinline__ void cvy_fold_rare_as(cvy_acc<T> *a, uint64_t word, int redop)
{
	if (redop == COVEY_PROD)
		a->template fold_as<COVEY_PROD>(word);
	else if (redop == COVEY_MAX)
		a->template fold_as<COVEY_MAX, AS>(word);
	else
		a->template fold_as<COVEY_MIN, AS>(word);
}

template <typename T> static __device__ __noinline__ cvy_acc<T> cvy_fold_rare(cvy_acc<T> a, uint64_t word, int how)
{
	if (how & CVY_GPU_SIGNED)
		cvy_fold_rare_as<T, typename cvy_number_of<typename cvy_acc<T>::W>::with_sign>(&a, word,
											       cvy_redop(how));
	else
		cvy_fold_rare_as<T, typename cvy_acc<T>::W>(&a, word, how);
	return a;
}

template <typename T, typename AS> static __device__ __forceinline__ void cvy_average_as(cvy_acc<T> *a, int n)
{
	typedef typename cvy_number_of<AS>::via D;

#pragma unroll 1
	for (int i = 0; i < cvy_acc<T>::N; i++)
		a->v[i] = (typename cvy_acc<T>::W)(AS)((D)(AS)a->v[i] / (D)n);
}

template <typename T> static __device__ __noinline__ cvy_acc<T> cvy_average(cvy_acc<T> a, int how, int n)
{
	if (how & CVY_GPU_SIGNED)
		cvy_average_as<T, typename cvy_number_of<typename cvy_acc<T>::W>::with_sign>(&a, n);
	else
		cvy_average_as<T, typename cvy_acc<T>::W>(&a, n);
	return a;
}

/*
 * The types that are seldom reduced on devices (cvy_gpu_is_other) share one kernel, which looks the type up at every word.
 * None of them is widened, so a word holds all that is kept between two folds.
 */
struct cvy_other {
};

template <> struct cvy_acc<cvy_other> {
	uint64_t word;

	__device__ __forceinline__ void first(uint64_t w)
	{
		word = w;
	}

	__device__ __forceinline__ uint64_t result(void)
	{
		return word;
	}
};

/* @n: 0: folds @word in; else divides by it. */
template <typename T>
static __device__ __forceinline__ uint64_t cvy_other_of(uint64_t kept, uint64_t word, int how, int n)
{
	cvy_acc<T> a;

	a.first(kept);
	if (n)
		a = cvy_average<T>(a, how, n);
	else if (cvy_redop(how) == COVEY_SUM || cvy_redop(how) == COVEY_AVG)
		a.template fold_as<COVEY_SUM>(word);
	else
		a = cvy_fold_rare<T>(a, word, how & (CVY_GPU_SIGNED * 2 - 1));
	return a.result();
}

static __device__ __noinline__ uint64_t cvy_fold_other(uint64_t kept, uint64_t word, int how, int n)
{
	switch (how >> CVY_GPU_OTHER_SHIFT) {
	case COVEY_INT8:
	case COVEY_UINT8:
		return cvy_other_of<uint8_t>(kept, word, how, n);
	case COVEY_INT16:
		return cvy_other_of<int16_t>(kept, word, how, n);
	case COVEY_FLOAT64:
		return cvy_other_of<double>(kept, word, how, n);
	default:
		return cvy_other_of<uint64_t>(kept, word, how, n);
	}
}

#endif
