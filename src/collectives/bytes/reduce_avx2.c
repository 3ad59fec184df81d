/* SPDX-License-Identifier: Apache-2.0 */
/* The reductions for CPUs with AVX2 and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define TABLE cvy_reduce_avx2
#define F16_LANES 8
#define F16_WIDEN(to, from) \
	_mm256_storeu_ps((to), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from))))
#define F16_NARROW(to, from) \
	_mm_storeu_si128((__m128i *)(void *)(to), _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT))

#include "reduce_body.h"
#else
typedef int cvy_no_avx2; /* a file must not be empty */
#endif
