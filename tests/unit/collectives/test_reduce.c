/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reductions: every type and operation over few and many sources, bit for bit against a scalar
 * fold, at any alignment, with the result in the place of a source; all instruction sets alike; conversions,
 * NaN and -0.
 *
 * labels: tsan
 */
#include "../../suite.h"
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "reduce.h"

#define COUNT 2600 /* more than two blocks of bf16, odd for no type's vectors */
#define SOURCES 65

static const int dtypes[] = { COVEY_INT8,   COVEY_UINT8,   COVEY_INT16,	   COVEY_INT32,	  COVEY_UINT32, COVEY_INT64,
			      COVEY_UINT64, COVEY_FLOAT16, COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_FLOAT64 };
static const char *const isas[] = { "plain", "avx2", "avx512" };
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))
static const int sources[] = { 1, 2, 3, 5, 8, 64 };
static const size_t counts[] = { 0, 1, 3, 7, 63, 513, 1025, COUNT - 1 };

struct room {
	uint8_t *memory[SOURCES], *dst, *want;
	const void *src[SOURCES];
};

static void room_open(struct room *room)
{
	for (int k = 0; k < SOURCES; k++)
		room->memory[k] = malloc(COUNT * 8 + 64);
	room->dst = malloc(COUNT * 8 + 64);
	room->want = malloc(COUNT * 8);
}

static void room_close(struct room *room)
{
	for (int k = 0; k < SOURCES; k++)
		free(room->memory[k]);
	free(room->dst);
	free(room->want);
}

static void fill(struct room *room, int n, size_t count, int dtype, size_t shift)
{
	for (int k = 0; k < n; k++) {
		uint8_t *at = room->memory[k] + (shift ? shift + (size_t)k % 5 : 0);

		type_input(at, count, dtype, k, 7);
		room->src[k] = at;
	}
}

static void one(struct room *room, int n, size_t count, int dtype, int redop)
{
	size_t bytes = count * type_bytes(dtype);

	type_fold(room->want, count, dtype, redop, n == 64 ? ~0ull : (1ull << n) - 1, 7);
	for (size_t shift = 0; shift < 4; shift += 3) {
		uint8_t *dst = room->dst + 8 + shift;

		fill(room, n, count, dtype, shift);
		memset(room->dst, 0xee, COUNT * 8 + 64);
		cvy_reduce(dst, room->src, n, count, dtype, redop, shift != 0);
		must(!memcmp(dst, room->want, bytes), "type %d op %d sources %d count %zu shift %zu", dtype, redop, n,
		     count, shift);
		must(dst[-1] == 0xee && dst[bytes] == 0xee, "type %d op %d count %zu: writes past the end", dtype,
		     redop, count);
	}
	for (int k = 0; k<n; k += n> 3 ? n / 3 : 1) {
		fill(room, n, count, dtype, 1);
		cvy_reduce((void *)(uintptr_t)room->src[k], room->src, n, count, dtype, redop, 0);
		must(!memcmp(room->src[k], room->want, bytes), "type %d op %d sources %d count %zu in place of %d",
		     dtype, redop, n, count, k);
	}
}

TEST_LOOP(reduce_is_a_left_fold_of_every_type, 0, 3 * (int)DTYPES)
{
	const struct cvy_reduce_table *table = cvy_reduce_find(isas[_i % 3]);
	int dtype = dtypes[_i / 3];
	struct room room;

	if (!table) /* not on this CPU */
		return;
	cvy_reduce_use(table);
	room_open(&room);
	for (int redop = COVEY_SUM; redop <= COVEY_AVG; redop++)
		for (size_t s = 0; s < sizeof(sources) / sizeof(sources[0]); s++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
				one(&room, sources[s], counts[c], dtype, redop);
	room_close(&room);
}

/* Numbers where CPUs could differ: every kind of NaN, infinities, zeros of both signs, denormals, ties. */
static uint64_t odd_bits(uint64_t h, size_t elem)
{
	static const uint64_t odd64[] = { 0x7ff8000000000001,
					  0xfff0000000000123,
					  0x7ff0000000000000,
					  1ull << 63,
					  1,
					  0x800fffffffffffff,
					  0x7fefffffffffffff,
					  0 };
	static const uint32_t odd32[] = { 0x7fc00001, 0xff800123, 0x7f800000, 0x80000000, 1, 0x807fffff, 0x7f7fffff, 0 };
	static const uint16_t odd16[] = { 0x7e01, 0xfc23, 0x7c00, 0x8000, 1, 0x83ff, 0x7bff, 0x7f81 };

	if (h >> 60 >= 8)
		return h * 0x9e3779b97f4a7c15ull;
	return elem == 8 ? odd64[h >> 60] : elem == 4 ? odd32[h >> 60] : odd16[h >> 60];
}

static void fill_odd(uint8_t *at, size_t count, size_t elem, uint64_t seed)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t v = odd_bits(harness_random(&seed), elem);

		memcpy(at + i * elem, &v, elem);
	}
}

TEST_LOOP(instruction_sets_give_the_same_bits, 0, 2 * (int)DTYPES)
{
	const struct cvy_reduce_table *table = cvy_reduce_find(isas[1 + _i % 2]);
	int dtype = dtypes[_i / 2];
	size_t elem = type_bytes(dtype), count = 2500;
	struct room room;

	if (!table)
		return;
	room_open(&room);
	for (int k = 0; k < 5; k++) {
		fill_odd(room.memory[k] + 1, count, elem, (uint64_t)k * 77 + (uint64_t)dtype);
		room.src[k] = room.memory[k] + 1;
	}
	for (int redop = COVEY_SUM; redop <= COVEY_AVG; redop++)
		for (int n = 1; n <= 5; n++) {
			size_t i = 0;

			cvy_reduce_use(&cvy_reduce_plain);
			cvy_reduce(room.want, room.src, n, count, dtype, redop, 0);
			cvy_reduce_use(table);
			cvy_reduce(room.dst, room.src, n, count, dtype, redop, 0);
			while (i < count * elem && room.dst[i] == room.want[i])
				i++;
			must(i == count * elem, "%s: type %d op %d sources %d: byte %zu is %02x, plain has %02x",
			     isas[1 + _i % 2], dtype, redop, n, i, room.dst[i], room.want[i]);
		}
	room_close(&room);
}

/* All of f16, and of f32 those near everything that f16 has. The CPU's own conversions say what is right. */
TEST(f16_converts_as_the_cpu_does)
{
	const struct cvy_reduce_table *table = cvy_reduce_find("avx2");
	uint16_t in[8], out[8];
	float wide[8];

	if (!table)
		return;
	for (uint32_t h = 0; h < 65536; h += 8) {
		for (uint32_t k = 0; k < 8; k++)
			in[k] = (uint16_t)(h + k);
		table->widen[COVEY_FLOAT16](wide, in, 8);
		for (uint32_t k = 0; k < 8; k++) {
			float f = cvy_f16_f32(in[k]);

			must(!memcmp(&f, &wide[k], 4), "%04x widens to %a, not %a", in[k], (double)f, (double)wide[k]);
		}
		for (uint32_t step = 0; step < 64; step++) {
			for (uint32_t k = 0; k < 8; k++) {
				uint32_t bits;

				memcpy(&bits, &wide[k], 4);
				bits += (step - 32) * (step & 1 ? 1 : 0x100);
				memcpy(&wide[k], &bits, 4);
			}
			table->narrow[COVEY_FLOAT16](out, wide, 8);
			for (uint32_t k = 0; k < 8; k++)
				must(cvy_f32_f16(wide[k]) == out[k], "%a narrows to %04x, not %04x", (double)wide[k],
				     cvy_f32_f16(wide[k]), out[k]);
		}
	}
}

/* All of f16, in a row whose end is no whole vector, and at an odd address. */
TEST_LOOP(rows_of_f16_are_weighed_alike, 0, 3)
{
	enum { N = 65536 - 5 };
	const struct cvy_reduce_table *table = cvy_reduce_find(isas[_i % 3]);
	uint8_t *row = malloc(2 * N + 1);
	float *sum = malloc(N * sizeof(*sum));

	must(row && sum, "memory");
	for (uint32_t i = 0; i < N; i++) {
		uint16_t h = (uint16_t)i;

		memcpy(row + 1 + 2 * i, &h, 2);
		sum[i] = (float)(i % 7);
	}
	if (table)
		table->weigh[COVEY_FLOAT16](sum, row + 1, 0.3f, N);
	for (uint32_t i = 0; table && i < N; i++) {
		float want = (float)(i % 7) + 0.3f * cvy_f16_f32((uint16_t)i);

		must(!memcmp(&want, &sum[i], 4) || (isnan(want) && isnan(sum[i])), "%s: %04x: %a, not %a", isas[_i % 3],
		     i, (double)sum[i], (double)want);
	}
	free(row);
	free(sum);
}

TEST(f16_rounds_to_nearest_even)
{
	ck_assert_uint_eq(cvy_f32_f16(1.0f), 0x3c00);
	ck_assert_uint_eq(cvy_f32_f16(1.0f + 0x1p-11f), 0x3c00); /* tie, even below */
	ck_assert_uint_eq(cvy_f32_f16(1.0f + 0x3p-11f), 0x3c02); /* tie, even above */
	ck_assert_uint_eq(cvy_f32_f16(65519.0f), 0x7bff);
	ck_assert_uint_eq(cvy_f32_f16(65520.0f), 0x7c00);
	ck_assert_uint_eq(cvy_f32_f16(-0x1p-24f), 0x8001);
	ck_assert_uint_eq(cvy_f32_f16(0x1p-25f), 0x0000); /* tie with zero */
	ck_assert_uint_eq(cvy_f32_f16(0x1.8p-24f), 0x0002);
	ck_assert_uint_eq(cvy_f32_f16(-0.0f), 0x8000);
	ck_assert(cvy_f16_f32(0x0001) == 0x1p-24f);
	ck_assert(cvy_f16_f32(0xc000) == -2.0f);
	ck_assert(isnan(cvy_f16_f32(0x7c01)));
}

/* avg truncates towards zero; wide products wrap */
TEST(integers_divide_and_wrap)
{
	int8_t a[3] = { -7, 100, -128 }, b[3] = { 0, 100, -128 }, out[3];
	const void *src[2] = { a, b };
	uint64_t x = ~0ull, y = 3, z;
	const void *wide[2] = { &x, &y };

	cvy_reduce(out, src, 2, 3, COVEY_INT8, COVEY_AVG, 0);
	ck_assert_int_eq(out[0], -3);
	ck_assert_int_eq(out[1], -28); /* 200 is -56 */
	ck_assert_int_eq(out[2], 0);
	cvy_reduce(out, src, 2, 3, COVEY_INT8, COVEY_PROD, 0);
	ck_assert_int_eq(out[1], 16); /* 10000 */
	cvy_reduce(&z, wide, 2, 1, COVEY_UINT64, COVEY_PROD, 0);
	ck_assert_uint_eq(z, ~2ull);
	cvy_reduce(&z, wide, 2, 1, COVEY_UINT64, COVEY_MAX, 0);
	ck_assert_uint_eq(z, ~0ull);
	cvy_reduce(&z, wide, 2, 1, COVEY_INT64, COVEY_MAX, 0);
	ck_assert_uint_eq(z, 3);
}

TEST(reduce_of_65_sources_sums_all)
{
	int32_t in[SOURCES], sum = 0, out;
	const void *src[SOURCES];

	for (int k = 0; k < SOURCES; k++) {
		in[k] = k * k - 100;
		sum += in[k];
		src[k] = &in[k];
	}
	cvy_reduce(&out, src, SOURCES, 1, COVEY_INT32, COVEY_SUM, 0);
	ck_assert_int_eq(out, sum);
	cvy_reduce(&out, src, SOURCES, 1, COVEY_INT32, COVEY_AVG, 0);
	ck_assert_int_eq(out, sum / SOURCES);
}

TEST(bf16_keeps_every_value)
{
	for (uint32_t h = 0; h < 65536; h++) {
		uint16_t back = cvy_f32_bf16(cvy_bf16_f32((uint16_t)h)), in = (uint16_t)h, out;
		const void *src[1] = { &in };
		int nan = (h & 0x7f80) == 0x7f80 && h & 0x7f;

		must(nan ? (back | 0x40) == (h | 0x40) && back & 0x40 : back == h, "%04x becomes %04x", h, back);
		cvy_reduce(&out, src, 1, 1, COVEY_BFLOAT16, COVEY_SUM, 0);
		must(out == back, "%04x reduces to %04x", h, out);
	}
}

static uint16_t bf16_of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return cvy_f32_bf16(f);
}

TEST(bf16_rounds_to_nearest_even)
{
	ck_assert_uint_eq(bf16_of_bits(0x3f808000), 0x3f80); /* tie, even below */
	ck_assert_uint_eq(bf16_of_bits(0x3f818000), 0x3f82); /* tie, even above */
	ck_assert_uint_eq(bf16_of_bits(0x3f808001), 0x3f81);
	ck_assert_uint_eq(bf16_of_bits(0x3f807fff), 0x3f80);
	ck_assert_uint_eq(bf16_of_bits(0x7f7fffff), 0x7f80); /* past the largest: infinity */
	ck_assert_uint_eq(bf16_of_bits(0xff7fffff), 0xff80);
	ck_assert_uint_eq(bf16_of_bits(0x80000000), 0x8000);
	ck_assert_uint_eq(bf16_of_bits(0x00000001), 0x0000);
	ck_assert(bf16_of_bits(0x7f800001) & 0x7f); /* a NaN does not become infinity */
}

/* bf16 sums are rounded once: 1 + 2^-8 + 2^-8 is 1 + 2^-7 through f32, 1 when rounded at every step */
TEST(bf16_accumulates_in_f32)
{
	uint16_t in[3] = { 0x3f80, 0x3b80, 0x3b80 }, out;
	const void *src[3] = { &in[0], &in[1], &in[2] };

	cvy_reduce(&out, src, 3, 1, COVEY_BFLOAT16, COVEY_SUM, 0);
	ck_assert_uint_eq(out, 0x3f81);
}

static float fold2(float a, float b, int redop)
{
	const void *src[2] = { &a, &b };
	float out;

	cvy_reduce(&out, src, 2, 1, COVEY_FLOAT32, redop, 0);
	return out;
}

static double fold2d(double a, double b, int redop)
{
	const void *src[2] = { &a, &b };
	double out;

	cvy_reduce(&out, src, 2, 1, COVEY_FLOAT64, redop, 0);
	return out;
}

TEST(min_and_max_of_a_nan_and_a_number_are_the_number)
{
	for (int op = COVEY_MAX; op <= COVEY_MIN; op++) {
		ck_assert(fold2(NAN, 2, op) == 2);
		ck_assert(fold2(2, NAN, op) == 2);
		ck_assert(isnan(fold2(NAN, NAN, op)));
		ck_assert(fold2d(NAN, -2, op) == -2);
		ck_assert(fold2d(-2, NAN, op) == -2);
		ck_assert(fold2(NAN, INFINITY, op) == INFINITY);
	}
	ck_assert(isnan(fold2(NAN, 2, COVEY_SUM)));
	ck_assert(isnan(fold2(2, NAN, COVEY_AVG)));
}

TEST(zeros_keep_the_sign_of_the_first)
{
	ck_assert(signbit(fold2(-0.0f, -0.0f, COVEY_SUM)));
	ck_assert(!signbit(fold2(-0.0f, 0.0f, COVEY_SUM)));
	ck_assert(signbit(fold2(-0.0f, 0.0f, COVEY_MAX))); /* equal: the lower rank's */
	ck_assert(!signbit(fold2(0.0f, -0.0f, COVEY_MIN)));
	ck_assert(signbit(fold2d(-0.0, 0.0, COVEY_MAX)));
}

TEST(unknown_types_and_operations_are_known_as_such)
{
	for (int d = -20; d < 40; d++) {
		int known = 0;

		for (size_t i = 0; i < DTYPES; i++)
			known |= dtypes[i] == d;
		ck_assert_uint_eq(cvy_dtype_bytes(d), known ? type_bytes(d) : 0);
		ck_assert_int_eq(!strcmp(cvy_dtype_name(d), "?"), !known);
		ck_assert_int_eq(cvy_redop_known(d), d >= 0 && d <= 4);
	}
}

SUITE_MAIN(.name = "collectives/reduce")
