/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reductions. Work is done in blocks that stay in the first cache. The accumulator of a block takes one source
 * after the other, so every path folds in the same order and gives the same bits. The loops are in reduce_body.h, once
 * for each instruction set; the first use chooses one. -ffp-contract=off keeps their results the same.
 */
#include "reduce.h"

#include "copy.h"

#include <assert.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <string.h>

#define BLOCK_BYTES 4096

static const struct {
	size_t bytes;
	const char *name;
} types[CVY_DTYPES] = {
	[COVEY_INT8] = { 1, "i8" },	[COVEY_UINT8] = { 1, "u8" },	[COVEY_INT16] = { 2, "i16" },
	[COVEY_INT32] = { 4, "i32" },	[COVEY_UINT32] = { 4, "u32" },	[COVEY_INT64] = { 8, "i64" },
	[COVEY_UINT64] = { 8, "u64" },	[COVEY_FLOAT16] = { 2, "f16" }, [COVEY_BFLOAT16] = { 2, "bf16" },
	[COVEY_FLOAT32] = { 4, "f32" }, [COVEY_FLOAT64] = { 8, "f64" },
};

size_t cvy_dtype_bytes(int dtype)
{
	return dtype >= 0 && dtype < CVY_DTYPES ? types[dtype].bytes : 0;
}

const char *cvy_dtype_name(int dtype)
{
	return cvy_dtype_bytes(dtype) ? types[dtype].name : "?";
}

int cvy_redop_known(int redop)
{
	return redop >= COVEY_SUM && redop <= COVEY_AVG;
}

/* ---- which table ---- */

static const struct cvy_reduce_table *in_use;

#if defined(__x86_64__)
/* Conversions of f16: some compilers have no name for the feature. */
static int has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

const struct cvy_reduce_table *cvy_reduce_find(const char *name)
{
	if (!strcmp(name, "plain"))
		return &cvy_reduce_plain;
#if defined(__x86_64__)
	if (!strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && has_f16c())
		return &cvy_reduce_avx2;
	if (!strcmp(name, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && has_f16c())
		return &cvy_reduce_avx512;
#endif
	return NULL;
}

const struct cvy_reduce_table *cvy_reduce_use(const struct cvy_reduce_table *table)
{
	if (!table)
		table = cvy_reduce_find("avx512");
	if (!table)
		table = cvy_reduce_find("avx2");
	if (!table)
		table = &cvy_reduce_plain;
	__atomic_store_n(&in_use, table, __ATOMIC_RELAXED);
	return table;
}

const struct cvy_reduce_table *cvy_reduce_loops(void)
{
	const struct cvy_reduce_table *t = __atomic_load_n(&in_use, __ATOMIC_RELAXED);

	return t ? t : cvy_reduce_use(NULL);
}

/* f16, bf16: through f32, rounded once */
static void reduce_halves(uint8_t *dst, const void *const *src, int n, size_t count, int dtype, int redop)
{
	const struct cvy_reduce_table *t = cvy_reduce_loops();
	float acc[BLOCK_BYTES / 4], add[BLOCK_BYTES / 4];
	cvy_fold_fn fold = t->fold[COVEY_FLOAT32][redop == COVEY_AVG ? COVEY_SUM : redop];

	for (size_t at = 0; at < count; at += BLOCK_BYTES / 4) {
		size_t m = count - at < BLOCK_BYTES / 4 ? count - at : BLOCK_BYTES / 4;

		t->widen[dtype](acc, (const uint8_t *)src[0] + 2 * at, m);
		for (int k = 1; k < n; k++) {
			t->widen[dtype](add, (const uint8_t *)src[k] + 2 * at, m);
			fold(acc, acc, add, m);
		}
		if (redop == COVEY_AVG)
			t->average[COVEY_FLOAT32](acc, m, n);
		t->narrow[dtype](dst + 2 * at, acc, m);
	}
}

/*
 * One block. The last fold stores into the result, unless another step follows or a source that is read later is in the
 * same place.
 */
static void reduce_block(uint8_t *dst, const void *const *src, int n, size_t at, size_t m, int dtype, int redop,
			 int stream)
{
	uint8_t acc[BLOCK_BYTES] __attribute__((aligned(64)));
	const struct cvy_reduce_table *t = cvy_reduce_loops();
	cvy_fold_fn fold = t->fold[dtype][redop == COVEY_AVG ? COVEY_SUM : redop];
	size_t elem = types[dtype].bytes, pos = at * elem;
	const void *left = (const uint8_t *)src[0] + pos;
	int direct = redop != COVEY_AVG && !stream;

	for (int k = 1; k < n; k++) {
		void *to = direct && k == n - 1 ? dst + pos : acc;

		fold(to, left, (const uint8_t *)src[k] + pos, m);
		left = to;
	}
	if (n > 1 && direct)
		return;
	if (redop == COVEY_AVG) {
		if (n == 1)
			memcpy(acc, left, m * elem);
		t->average[dtype](acc, m, n);
		left = acc;
	}
	if (left != dst + pos)
		cvy_copy_out(dst + pos, left, m * elem, stream);
}

void cvy_reduce(void *dst, const void *const *src, int n, size_t count, int dtype, int redop, int stream)
{
	size_t elem = cvy_dtype_bytes(dtype), block;

	assert(elem && n > 0); /* checked when the operation was made */
	if (dtype == COVEY_FLOAT16 || dtype == COVEY_BFLOAT16) {
		reduce_halves(dst, src, n, count, dtype, redop);
		return;
	}
	if (n == 2 && redop != COVEY_AVG && !stream) { /* nothing follows the only fold */
		cvy_reduce_loops()->fold[dtype][redop](dst, src[0], src[1], count);
		return;
	}
	block = BLOCK_BYTES / elem;
	for (size_t at = 0; at < count; at += block)
		reduce_block(dst, src, n, at, count - at < block ? count - at : block, dtype, redop, stream);
#if defined(__SSE2__)
	if (stream)
		_mm_sfence(); /* before the outcome is announced */
#endif
}

void cvy_reduce_average(void *at, size_t count, int dtype, int by)
{
	cvy_reduce_loops()->average[dtype](at, count, by);
}
