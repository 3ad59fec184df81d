/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes that ranks compare with each other: they must be the same on every machine and in every process. */
#ifndef CVY_HASH_H
#define CVY_HASH_H

#include <stdint.h>

#define CVY_HASH_BEGIN 0xcbf29ce484222325ull /* of FNV-1a, like the factor below */

/* FNV-1a takes bytes; a wider value is taken as one. */
static inline uint64_t cvy_hash(uint64_t h, uint64_t value)
{
	return (h ^ value) * 0x100000001b3ull;
}

static inline uint64_t cvy_hash_text(const char *text)
{
	uint64_t h = CVY_HASH_BEGIN;

	for (; *text; text++)
		h = cvy_hash(h, (uint8_t)*text);
	return h;
}

/* Odd factors that spread the low bits of a number over the high half of the product. */
#define CVY_SPREAD 0x9e3779b97f4a7c15ull
#define CVY_SPREAD_MORE 0xd6e8feb86659fd93ull

#endif
