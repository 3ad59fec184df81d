/* SPDX-License-Identifier: Apache-2.0 */
/* Copies into slots and past the caches. */
#include "copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define COPY_VECTOR (16u << 10) /* bytes: longer copies into a slot use memcpy */

void cvy_copy_in(void *slot, const void *from, size_t bytes)
{
#if defined(__SSE2__)
	uint8_t *to = slot;
	const uint8_t *at = from;

	if (bytes >= 64 && bytes <= COPY_VECTOR) {
		for (; bytes >= 64; bytes -= 64, to += 64, at += 64) {
			__m128i a = _mm_loadu_si128((const __m128i *)(const void *)at);
			__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(at + 16));
			__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(at + 32));
			__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(at + 48));

			_mm_storeu_si128((__m128i *)(void *)to, a);
			_mm_storeu_si128((__m128i *)(void *)(to + 16), b);
			_mm_storeu_si128((__m128i *)(void *)(to + 32), c);
			_mm_storeu_si128((__m128i *)(void *)(to + 48), d);
		}
		memcpy(to, at, bytes);
		return;
	}
#endif
	memcpy(slot, from, bytes);
}

/* Whole 16-byte pieces of an aligned middle; the rest as usual. */
void cvy_copy_out(uint8_t *dst, const uint8_t *src, size_t bytes, int stream)
{
#if defined(__SSE2__)
	size_t at = -(uintptr_t)dst & 15;

	if (stream && bytes >= 64) {
		memcpy(dst, src, at);
		for (; at + 16 <= bytes; at += 16)
			_mm_stream_si128((__m128i *)(void *)(dst + at),
					 _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
		memcpy(dst + at, src + at, bytes - at);
		return;
	}
#else
	(void)stream;
#endif
	memcpy(dst, src, bytes);
}
