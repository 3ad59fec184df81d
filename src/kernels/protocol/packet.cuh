/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data and signal in one store. A thread's packet is 16 bytes. PAIR: a word of data and the tag. LINE: eight threads
 * make a line of 128 bytes, 15 words and one tag; it is stored by one instruction of a warp and arrives whole, as
 * others have relied on over NVLink for years. Nothing is ever cleared: a tag bears epoch and step.
 *
 * A *tile* is what a lane moves in a step: rows * threads packets. Its words are consecutive, so packet u of
 * a tile holds the words that cvy_place() names.
 */
#ifndef CVY_PACKET_CUH
#define CVY_PACKET_CUH

#include "wait.cuh"

#define CVY_LINE_WORDS 15 /* of eight packets */

template <int PACKET> static __device__ __forceinline__ uint64_t cvy_tile_words(int packets)
{
	return cvy_gpu_tile_words(PACKET, packets);
}

/* First word of packet @u, and how many it holds. */
template <int PACKET> static __device__ __forceinline__ int cvy_place(int u, uint64_t *word)
{
	if (PACKET == CVY_GPU_PAIR) {
		*word = (uint64_t)u;
		return 1;
	}
	*word = (uint64_t)(u / 8 * CVY_LINE_WORDS + u % 8 * 2);
	return u % 8 == 7 ? 1 : 2;
}

/*
 * First word of those that take part, or do not, together with packet @u. LINE: a warp. PAIR: a packet alone, since
 * another rank may go the short way (quick.cuh), which sends no packet past the end.
 */
template <int PACKET> static __device__ __forceinline__ uint64_t cvy_warp_word(int u)
{
	return PACKET == CVY_GPU_PAIR ? (uint64_t)u : (uint64_t)(u / 32 * 4 * CVY_LINE_WORDS);
}

/* How many packets of a tile that begins with word @base bear something of @words: those from the first on. */
template <int PACKET> static __device__ __forceinline__ uint32_t cvy_packets(int packets, uint64_t base, uint64_t words)
{
	const int warp = PACKET == CVY_GPU_PAIR ? 1 : 4 * CVY_LINE_WORDS, each = PACKET == CVY_GPU_PAIR ? 1 : 32;
	uint64_t left = words > base ? (words - base + warp - 1) / warp * each : 0;

	return left < (uint64_t)packets ? (uint32_t)left : (uint32_t)packets;
}

template <int PACKET>
static __device__ __forceinline__ void cvy_push(uint8_t *slot, int u, const uint64_t v[2], uint64_t tag)
{
	const int bears = PACKET == CVY_GPU_PAIR || threadIdx.x % 8 == 7; /* @u is of the same place in a line */

	if (PACKET == CVY_GPU_LINE)
		__syncwarp(); /* a line is stored by one instruction, or the tag may be there before the data */
	cvy_store_packet(slot + (size_t)u * CVY_GPU_PACKET, v[0], bears ? tag : v[1]);
}

/*
 * The rare word: at an address that is no multiple of 8, or the last of a buffer. Out of line: the code of the many is short.
 * Its loads are under way together: one after the other, those of four bytes would take as long as a small operation.
 */
static __device__ __noinline__ uint64_t cvy_word_get_part(const uint8_t *buf, uint64_t at, uint64_t bytes)
{
	const uint64_t left = at < bytes ? bytes - at : 0;
	const uint8_t *from = buf + at;
	uint64_t v = 0;

	if (!(((uintptr_t)from | left) & 3)) {
		uint32_t low = 0, high = 0;

		if (left)
			low = *(const uint32_t *)from;
		if (left > 4)
			high = *(const uint32_t *)(from + 4);
		return (uint64_t)high << 32 | low;
	}
#pragma unroll
	for (unsigned k = 0; k < 8; k++)
		if (k < left)
			v |= (uint64_t)from[k] << (8 * k);
	return v;
}

static __device__ __noinline__ void cvy_word_put_part(uint8_t *buf, uint64_t at, uint64_t bytes, uint64_t v)
{
	const uint64_t left = at < bytes ? bytes - at : 0;
	uint8_t *to = buf + at;

	if (!(((uintptr_t)to | left) & 3)) {
		if (left)
			*(uint32_t *)to = (uint32_t)v;
		if (left > 4)
			*(uint32_t *)(to + 4) = (uint32_t)(v >> 32);
		return;
	}
#pragma unroll 1
	for (unsigned k = 0; k < 8 && k < left; k++)
		to[k] = (uint8_t)(v >> (8 * k));
}

/* Word @i of a buffer of @bytes bytes at any address; what is past its end is 0. */
static __device__ __forceinline__ uint64_t cvy_word_get(const uint8_t *buf, uint64_t i, uint64_t bytes)
{
	if (i * 8 + 8 <= bytes && ((uintptr_t)buf & 7) == 0)
		return *(const uint64_t *)(buf + i * 8);
	return cvy_word_get_part(buf, i * 8, bytes);
}

static __device__ __forceinline__ void cvy_word_put(uint8_t *buf, uint64_t i, uint64_t bytes, uint64_t v)
{
	if (i * 8 + 8 <= bytes && ((uintptr_t)buf & 7) == 0)
		*(uint64_t *)(buf + i * 8) = v;
	else
		cvy_word_put_part(buf, i * 8, bytes, v);
}

#endif
