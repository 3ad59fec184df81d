/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of ranks of a group with devices, and the generations of their memory, as host and kernels have them. A build has room
 * for CVY_GPU_RANKS ranks (COVEY_DEVICE_RANKS of CMake). With 32 a set is one word that stays in a register; with more it is
 * an array. Code that is to work in both uses these functions, and no operators: the wide build does not compile otherwise.
 */
#ifndef CVY_RANKS_H
#define CVY_RANKS_H

#include <stdint.h>

#ifdef __CUDACC__
#define CVY_GPU_BOTH __host__ __device__
#else
#define CVY_GPU_BOTH
#endif

#ifndef COVEY_DEVICE_RANKS
#define COVEY_DEVICE_RANKS 32
#endif
#define CVY_GPU_RANKS COVEY_DEVICE_RANKS
#define CVY_GPU_IS_WIDE (CVY_GPU_RANKS > 32)
#define CVY_RANKS_WORDS (CVY_GPU_RANKS / 32)
#define CVY_RANKS_LONGS ((CVY_GPU_RANKS + 63) / 64) /* words of 64 bits of which they are sent and told */

#if CVY_GPU_RANKS != 32 && CVY_GPU_RANKS != 64 && CVY_GPU_RANKS != 128 && CVY_GPU_RANKS != 256
#error "COVEY_DEVICE_RANKS must be 32, 64, 128 or 256"
#endif

/* A rank in a table. 0xff and 0xffff are none. */
#if CVY_GPU_RANKS < 256
typedef uint8_t cvy_rank_small;
#else
typedef uint16_t cvy_rank_small;
#endif

#ifdef __CUDACC__
#define CVY_RANKS_FN __host__ __device__ static __forceinline__
#else
#define CVY_RANKS_FN static inline
#endif

/* Of a word: how many bits are set, and the lowest of them, -1: none. */
#ifdef __CUDA_ARCH__
#define CVY_WORD_COUNT(word) __popc(word)
#define CVY_WORD_FIRST(word) (__ffs((int)(word)) - 1)
#else
#define CVY_WORD_COUNT(word) __builtin_popcount(word)
#define CVY_WORD_FIRST(word) (__builtin_ffs((int)(word)) - 1)
#endif

#if !CVY_GPU_IS_WIDE

/*
 * A set of ranks: bit r is rank r. And two bits for each rank, which of its mappings is in use. Macros: with functions in
 * their place compilers put instructions of the kernels in another order, and some more.
 */
typedef uint32_t cvy_ranks;
typedef uint64_t cvy_generations;

#define cvy_ranks_none() ((cvy_ranks)0)
#define cvy_ranks_all() (~(cvy_ranks)0)
#define cvy_ranks_one(rank) (1u << (rank))
#define cvy_ranks_before(rank) ((1u << (rank)) - 1) /* ranks below @rank, which is one */
#define cvy_ranks_has(set, rank) ((set) >> (rank)&1)
#define cvy_ranks_and(a, b) ((a) & (b))
#define cvy_ranks_or(a, b) ((a) | (b))
#define cvy_ranks_but(a, b) ((a) & ~(b)) /* those of @a that are not in @b */
#define cvy_ranks_any(set) ((set) != 0)
#define cvy_ranks_any_from(set, rank) ((rank) < CVY_GPU_RANKS && (set) >> (rank)) /* is one left, from @rank on? */
#define cvy_ranks_equal(a, b) ((a) == (b))
#define cvy_ranks_count(set) CVY_WORD_COUNT(set)
#define cvy_ranks_first(set) CVY_WORD_FIRST(set) /* the lowest; -1: none */
#define cvy_ranks_rest(set) ((set) & ((set)-1))	 /* all but the lowest */
#define cvy_ranks_read(at) (*(at))		 /* from memory that others write */
#define cvy_ranks_write(at, set) ((void)(*(volatile cvy_ranks *)(at) = (set)))
#define cvy_ranks_long(set, i) ((i) ? 0 : (uint64_t)(set)) /* word @i of 64 bits */
#define cvy_ranks_of_longs(word) ((cvy_ranks)(word)[0])
#define cvy_ranks_bit(rank, i) (1u << (rank))				    /* of word @i of 32 bits */
#define cvy_ranks_word(set, i) (&(set)[(i)*0])				    /* where word @i of 32 bits stands */
#define cvy_ranks_with_if(set, rank, in) ((set) | (uint32_t)(in) << (rank)) /* if @in is 1; it is not in @set */
#define cvy_ranks_with(set, rank) ((set) | 1u << (rank))
#define cvy_ranks_without(set, rank) ((set) & ~(1u << (rank)))
#define cvy_ranks_up_to(n) ((n) < CVY_GPU_RANKS ? (1u << (n)) - 1 : ~0u)	/* ranks 0 to @n - 1 */
#define cvy_ranks_index(set, rank) CVY_WORD_COUNT((set) & ((1u << (rank)) - 1)) /* how many of @set are below @rank */

#define cvy_generation_of(all, rank) ((uint32_t)((all) >> (2 * (rank))) & 3)
#define cvy_generations_none() ((cvy_generations)0)
#define cvy_generations_with(all, rank, generation) \
	((all) | (uint64_t)(generation) << (2 * (rank))) /* it has none yet */

/* The lowest from @rank on; CVY_GPU_RANKS or more: none. */
CVY_RANKS_FN int cvy_ranks_next(cvy_ranks set, int rank)
{
	uint32_t left = rank < CVY_GPU_RANKS ? set >> rank : 0;

	return left ? rank + CVY_WORD_FIRST(left) : CVY_GPU_RANKS;
}

#else

struct cvy_ranks_wide {
	uint32_t word[CVY_RANKS_WORDS]; /* rank r is bit r % 32 of word r / 32 */
};
struct cvy_generations_wide {
	uint64_t word[CVY_RANKS_WORDS];
};
typedef struct cvy_ranks_wide cvy_ranks;
typedef struct cvy_generations_wide cvy_generations;

#define CVY_RANKS_EACH_WORD(i) for (int i = 0; i < CVY_RANKS_WORDS; i++)

CVY_RANKS_FN cvy_ranks cvy_ranks_none(void)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = 0;
	return set;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_all(void)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = ~0u;
	return set;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_one(int rank)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = rank / 32 == i ? 1u << rank % 32 : 0;
	return set;
}

/* Ranks below @rank, which is one. */
CVY_RANKS_FN cvy_ranks cvy_ranks_before(int rank)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = rank / 32 > i ? ~0u : rank / 32 == i ? (1u << rank % 32) - 1 : 0;
	return set;
}

CVY_RANKS_FN int cvy_ranks_has(cvy_ranks set, int rank)
{
	return set.word[rank / 32] >> rank % 32 & 1;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_and(cvy_ranks a, cvy_ranks b)
{
	CVY_RANKS_EACH_WORD(i)
	a.word[i] &= b.word[i];
	return a;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_or(cvy_ranks a, cvy_ranks b)
{
	CVY_RANKS_EACH_WORD(i)
	a.word[i] |= b.word[i];
	return a;
}

/* Those of @a that are not in @b. */
CVY_RANKS_FN cvy_ranks cvy_ranks_but(cvy_ranks a, cvy_ranks b)
{
	CVY_RANKS_EACH_WORD(i)
	a.word[i] &= ~b.word[i];
	return a;
}

CVY_RANKS_FN int cvy_ranks_any(cvy_ranks set)
{
	uint32_t any = 0;

	CVY_RANKS_EACH_WORD(i)
	any |= set.word[i];
	return any != 0;
}

CVY_RANKS_FN int cvy_ranks_equal(cvy_ranks a, cvy_ranks b)
{
	uint32_t other = 0;

	CVY_RANKS_EACH_WORD(i)
	other |= a.word[i] ^ b.word[i];
	return !other;
}

CVY_RANKS_FN int cvy_ranks_count(cvy_ranks set)
{
	int n = 0;

	CVY_RANKS_EACH_WORD(i)
	n += CVY_WORD_COUNT(set.word[i]);
	return n;
}

/* The lowest from @rank on; CVY_GPU_RANKS or more: none. */
CVY_RANKS_FN int cvy_ranks_next(cvy_ranks set, int rank)
{
	for (int i = rank / 32; i < CVY_RANKS_WORDS; i++) {
		const uint32_t left = i == rank / 32 ? set.word[i] & ~0u << rank % 32 : set.word[i];

		if (left)
			return i * 32 + CVY_WORD_FIRST(left);
	}
	return CVY_GPU_RANKS;
}

/* The lowest; -1: none. */
CVY_RANKS_FN int cvy_ranks_first(cvy_ranks set)
{
	const int rank = cvy_ranks_next(set, 0);

	return rank < CVY_GPU_RANKS ? rank : -1;
}

/* All but the lowest. */
CVY_RANKS_FN cvy_ranks cvy_ranks_rest(cvy_ranks set)
{
	for (int i = 0; i < CVY_RANKS_WORDS; i++) {
		if (!set.word[i])
			continue;
		set.word[i] &= set.word[i] - 1;
		break;
	}
	return set;
}

/* Is one left, from @rank on? */
CVY_RANKS_FN int cvy_ranks_any_from(cvy_ranks set, int rank)
{
	return cvy_ranks_next(set, rank) < CVY_GPU_RANKS;
}

/* From and to memory that others write. */
CVY_RANKS_FN cvy_ranks cvy_ranks_read(const volatile cvy_ranks *at)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = at->word[i];
	return set;
}

CVY_RANKS_FN void cvy_ranks_write(volatile cvy_ranks *at, cvy_ranks set)
{
	CVY_RANKS_EACH_WORD(i)
	at->word[i] = set.word[i];
}

/* Word @i of 64 bits. */
CVY_RANKS_FN uint64_t cvy_ranks_long(cvy_ranks set, int i)
{
	return i < CVY_RANKS_LONGS ? (uint64_t)set.word[2 * i + 1] << 32 | set.word[2 * i] : 0;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_of_longs(const uint64_t *word)
{
	cvy_ranks set;

	CVY_RANKS_EACH_WORD(i)
	set.word[i] = (uint32_t)(word[i / 2] >> (i % 2 * 32));
	return set;
}

/* The bit of @rank in word @i of 32 bits. */
CVY_RANKS_FN uint32_t cvy_ranks_bit(int rank, int i)
{
	return rank / 32 == i ? 1u << rank % 32 : 0;
}

/* Where word @i of 32 bits stands. */
CVY_RANKS_FN uint32_t *cvy_ranks_word(cvy_ranks *set, int i)
{
	return &set->word[i];
}

/* With @rank, which is not in @set, if @in is 1. */
CVY_RANKS_FN cvy_ranks cvy_ranks_with_if(cvy_ranks set, int rank, int in)
{
	set.word[rank / 32] |= (uint32_t)in << rank % 32;
	return set;
}

CVY_RANKS_FN int cvy_generation_of(cvy_generations all, int rank)
{
	return (int)((uint32_t)(all.word[rank / 32] >> (2 * (rank % 32))) & 3);
}

CVY_RANKS_FN cvy_generations cvy_generations_none(void)
{
	cvy_generations all;

	CVY_RANKS_EACH_WORD(i)
	all.word[i] = 0;
	return all;
}

/* @rank has none in @all yet. */
CVY_RANKS_FN cvy_generations cvy_generations_with(cvy_generations all, int rank, int generation)
{
	all.word[rank / 32] |= (uint64_t)generation << (2 * (rank % 32));
	return all;
}

CVY_RANKS_FN cvy_ranks cvy_ranks_with(cvy_ranks set, int rank)
{
	return cvy_ranks_or(set, cvy_ranks_one(rank));
}

CVY_RANKS_FN cvy_ranks cvy_ranks_without(cvy_ranks set, int rank)
{
	return cvy_ranks_but(set, cvy_ranks_one(rank));
}

/* Ranks 0 to @n - 1. */
CVY_RANKS_FN cvy_ranks cvy_ranks_up_to(int n)
{
	return n < CVY_GPU_RANKS ? cvy_ranks_before(n) : cvy_ranks_all();
}

/* How many of @set are below @rank. */
CVY_RANKS_FN int cvy_ranks_index(cvy_ranks set, int rank)
{
	return cvy_ranks_count(cvy_ranks_and(set, cvy_ranks_before(rank)));
}

#endif

#endif
