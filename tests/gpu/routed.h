/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank has in a step of tokens.c, and where it goes: all know it of all, so each can say what must come. */
#ifndef ROUTED_H
#define ROUTED_H

#include <stdint.h>
#include <string.h>

#define TOKENS 8 /* in one lane, steps are of bulk */
#define HIDDEN 64
#define TOP_K 2
#ifndef EXPERTS
#define EXPERTS 8
#endif

/* Integers up to 256 have one bf16, the upper half of their float. */
static inline uint16_t bf16(int n)
{
	float f = (float)n;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static inline int token(long step, int source, int t, int h)
{
	return (int)((source * 32 + t * 5 + h + step) % 63) + 1;
}

static inline int tokens(long step, int source)
{
	return (int)((source * 5 + step) % TOKENS) + 1;
}

static inline int expert(long step, int source, int t, int k)
{
	long first = (source * 3 + t * 7 + step) % EXPERTS;

	return (int)(k ? (first + 1 + (t + step) % (EXPERTS - 1)) % EXPERTS : first);
}

static inline int owner(int size, int id)
{
	return id / ((EXPERTS + size - 1) / size);
}

#endif
