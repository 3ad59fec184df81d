/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of operations, by the use of the bytes. Into a slot: the owner's lines are still in a peer's cache. Vector
 * stores pass a few pages on sooner than the string instructions that memcpy uses at such sizes; above COPY_VECTOR
 * (copy.c) memcpy is faster, since it does not fetch the old lines. Out: past the caches if nobody reads soon.
 */
#ifndef CVY_COPY_H
#define CVY_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

void cvy_copy_in(void *slot, const void *from, size_t bytes);
/* memcpy; `stream`: past the caches */
void cvy_copy_out(uint8_t *dst, const uint8_t *src, size_t bytes, int stream);

/* Copies at most 32 bytes, by two moves that may overlap: a payload in a line. */
static inline void cvy_copy_few(void *to, const void *from, size_t n)
{
	uint8_t *t = to;
	const uint8_t *f = from;

	if (n >= 16) {
		memcpy(t, f, 16);
		memcpy(t + n - 16, f + n - 16, 16);
	} else if (n >= 8) {
		memcpy(t, f, 8);
		memcpy(t + n - 8, f + n - 8, 8);
	} else if (n >= 4) {
		memcpy(t, f, 4);
		memcpy(t + n - 4, f + n - 4, 4);
	} else {
		for (size_t i = 0; i < n; i++)
			t[i] = f[i];
	}
}

#endif
