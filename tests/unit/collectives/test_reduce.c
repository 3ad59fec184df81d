/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reductions: every type and operation over few and many sources, bit for bit against a scalar
 * fold, at any alignment, with the result in the place of a source; bf16 conversions, NaN and -0.
 *
 * labels: tsan
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "reduce.h"

#define COUNT 2600 /* more than two blocks of bf16, odd for no type's vectors */
#define SOURCES 65

static const int dtypes[] = { COVEY_UINT8, COVEY_INT32, COVEY_INT64, COVEY_FLOAT32, COVEY_FLOAT64, COVEY_BFLOAT16 };
static const int redops[] = { COVEY_SUM, COVEY_MAX, COVEY_MIN, COVEY_AVG };
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

START_TEST(reduce_is_a_left_fold_of_every_type)
{
	struct room room;
	int dtype = dtypes[_i];

	room_open(&room);
	for (size_t o = 0; o < 4; o++)
		for (size_t s = 0; s < sizeof(sources) / sizeof(sources[0]); s++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
				one(&room, sources[s], counts[c], dtype, redops[o]);
	room_close(&room);
}
END_TEST

START_TEST(reduce_of_65_sources_sums_all)
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
END_TEST

START_TEST(bf16_keeps_every_value)
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
END_TEST

static uint16_t bf16_of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return cvy_f32_bf16(f);
}

START_TEST(bf16_rounds_to_nearest_even)
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
END_TEST

/* bf16 sums are rounded once: 1 + 2^-8 + 2^-8 is 1 + 2^-7 through f32, 1 when rounded at every step */
START_TEST(bf16_accumulates_in_f32)
{
	uint16_t in[3] = { 0x3f80, 0x3b80, 0x3b80 }, out;
	const void *src[3] = { &in[0], &in[1], &in[2] };

	cvy_reduce(&out, src, 3, 1, COVEY_BFLOAT16, COVEY_SUM, 0);
	ck_assert_uint_eq(out, 0x3f81);
}
END_TEST

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

START_TEST(min_and_max_of_a_nan_and_a_number_are_the_number)
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
END_TEST

START_TEST(zeros_keep_the_sign_of_the_first)
{
	ck_assert(signbit(fold2(-0.0f, -0.0f, COVEY_SUM)));
	ck_assert(!signbit(fold2(-0.0f, 0.0f, COVEY_SUM)));
	ck_assert(signbit(fold2(-0.0f, 0.0f, COVEY_MAX))); /* equal: the lower rank's */
	ck_assert(!signbit(fold2(0.0f, -0.0f, COVEY_MIN)));
	ck_assert(signbit(fold2d(-0.0, 0.0, COVEY_MAX)));
}
END_TEST

START_TEST(unknown_types_and_operations_are_known_as_such)
{
	ck_assert_uint_eq(cvy_dtype_bytes(0), 0);
	ck_assert_uint_eq(cvy_dtype_bytes(3), 0);
	ck_assert_uint_eq(cvy_dtype_bytes(-1), 0);
	ck_assert(!cvy_redop_known(1));
	ck_assert(!cvy_redop_known(-1));
	for (size_t d = 0; d < 6; d++)
		ck_assert_uint_eq(cvy_dtype_bytes(dtypes[d]), type_bytes(dtypes[d]));
	for (size_t o = 0; o < 4; o++)
		ck_assert(cvy_redop_known(redops[o]));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collectives/reduce");
	TCase *tc = tcase_create("reduce");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, reduce_is_a_left_fold_of_every_type, 0, 6);
	tcase_add_test(tc, reduce_of_65_sources_sums_all);
	tcase_add_test(tc, bf16_keeps_every_value);
	tcase_add_test(tc, bf16_rounds_to_nearest_even);
	tcase_add_test(tc, bf16_accumulates_in_f32);
	tcase_add_test(tc, min_and_max_of_a_nan_and_a_number_are_the_number);
	tcase_add_test(tc, zeros_keep_the_sign_of_the_first);
	tcase_add_test(tc, unknown_types_and_operations_are_known_as_such);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
