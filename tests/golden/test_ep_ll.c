/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and wire formats of the low-latency preset, against numbers computed by hand from its description. */
#include <check.h>
#include <stdlib.h>

#include "ep_layout.h"

START_TEST(messages_have_the_sizes_of_the_wire)
{
	ck_assert_uint_eq(cvy_ep_ll_message_fp8(7168), 7408);
	ck_assert_uint_eq(cvy_ep_ll_message_bf16(7168), 14352);
	ck_assert_uint_eq(cvy_ep_ll_message_combine(7168), 14336);
	for (int hidden = 2048; hidden <= 8192; hidden += 512) {
		ck_assert_uint_eq(cvy_ep_ll_message_fp8(hidden) % 16, 0);
		ck_assert_uint_eq(cvy_ep_ll_message_bf16(hidden) % 16, 0);
	}
}
END_TEST

START_TEST(dispatch_slots_are_by_expert_then_source_then_token)
{
	/* expert 3 of 8 ranks, source 5, slot 17, T 128: ((3 * 8 + 5) * 128 + 17) * 7408 */
	ck_assert_uint_eq(cvy_ep_ll_dispatch_at(3, 8, 5, 128, 17, 7408), 27624432);
	ck_assert_uint_eq(cvy_ep_ll_dispatch_at(0, 8, 0, 128, 0, 7408), 0);
	ck_assert_uint_eq(cvy_ep_ll_dispatch_at(0, 8, 1, 128, 0, 7408), 948224);
	ck_assert_uint_eq(cvy_ep_ll_signal_at(3, 8, 5), 29);
}
END_TEST

START_TEST(combine_slots_are_by_global_expert_then_token)
{
	/* (200 * 128 + 100) * 14336 */
	ck_assert_uint_eq(cvy_ep_ll_combine_at(200, 128, 100, 7168), 368435200);
	ck_assert_uint_eq(cvy_ep_ll_combine_at(0, 128, 1, 7168), 14336);
}
END_TEST

START_TEST(zero_tokens_is_not_silence)
{
	ck_assert_int_eq(cvy_ep_ll_count_encode(0), -1);
	ck_assert_int_eq(cvy_ep_ll_count_encode(128), -129);
	for (int n = 0; n <= 4096; n++) {
		ck_assert_int_ne(cvy_ep_ll_count_encode(n), 0);
		ck_assert_int_eq(cvy_ep_ll_count_decode(cvy_ep_ll_count_encode(n)), n);
	}
}
END_TEST

START_TEST(two_halves_take_the_known_total)
{
	ck_assert_uint_eq(cvy_ep_ll_data_bytes(256, 128, 7168), 470810624);
	ck_assert_uint_eq(cvy_ep_ll_total_bytes(256, 128, 7168), 1883246592u);
}
END_TEST

START_TEST(outputs_have_the_documented_shapes)
{
	struct cvy_ep_ll_outputs o = cvy_ep_ll_outputs(32, 8, 128, 7168);

	ck_assert_uint_eq(o.packed_x, 234881024);
	ck_assert_uint_eq(o.count, 32);
	ck_assert_uint_eq(o.src_info, 32768);
	ck_assert_uint_eq(o.range, 256);
	ck_assert_uint_eq(o.scales, 1835008);
}
END_TEST

START_TEST(range_packs_count_above_first_row)
{
	int64_t range = cvy_ep_range(5, 300);

	ck_assert_int_eq(range, 21474836780);
	ck_assert_uint_eq(cvy_ep_range_count(range), 5);
	ck_assert_uint_eq(cvy_ep_range_first(range), 300);
	ck_assert_uint_eq(cvy_ep_range_count(cvy_ep_range(0x80000000u, 0xffffffffu)), 0x80000000u);
	ck_assert_uint_eq(cvy_ep_range_first(cvy_ep_range(0x80000000u, 0xffffffffu)), 0xffffffffu);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("golden/ep_ll");
	TCase *tc = tcase_create("numbers");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_test(tc, messages_have_the_sizes_of_the_wire);
	tcase_add_test(tc, dispatch_slots_are_by_expert_then_source_then_token);
	tcase_add_test(tc, combine_slots_are_by_global_expert_then_token);
	tcase_add_test(tc, zero_tokens_is_not_silence);
	tcase_add_test(tc, two_halves_take_the_known_total);
	tcase_add_test(tc, outputs_have_the_documented_shapes);
	tcase_add_test(tc, range_packs_count_above_first_row);
	suite_add_tcase(suite, tc);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
