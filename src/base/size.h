/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the machine, and sizes in whole units. */
#ifndef CVY_SIZE_H
#define CVY_SIZE_H

#include <stddef.h>

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

#endif
