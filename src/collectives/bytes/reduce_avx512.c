/* SPDX-License-Identifier: Apache-2.0 */
/* The reductions for CPUs with AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define TABLE cvy_reduce_avx512
#define F16_LANES 16
#define F16_WIDEN(to, from) \
	_mm512_storeu_ps((to), _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from))))
#define F16_NARROW(to, from) \
	_mm256_storeu_si256((__m256i *)(void *)(to), _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))

#include "reduce_body.h"
#else
typedef int cvy_no_avx512; /* a file must not be empty */
#endif
