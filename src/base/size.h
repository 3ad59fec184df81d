/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the machine, and sizes in whole units. */
#ifndef CVY_SIZE_H
#define CVY_SIZE_H

#include <stddef.h>
#include <stdio.h>

#define CVY_CACHE_LINE 64
#define CVY_MEMORY_PAGE 4096

/* @unit: a power of two */
static inline size_t cvy_round_down(size_t bytes, size_t unit)
{
	return bytes & ~(unit - 1);
}

static inline size_t cvy_round_up(size_t bytes, size_t unit)
{
	return cvy_round_down(bytes + unit - 1, unit);
}

/* As settings are written: 64K. */
static inline const char *cvy_size_text(size_t bytes, char text[24])
{
	int unit = 0;

	for (; bytes && bytes % 1024 == 0 && unit < 4; unit++)
		bytes /= 1024;
	snprintf(text, 24, unit ? "%zu%c" : "%zu", bytes, " KMGT"[unit]);
	return text;
}

#endif
