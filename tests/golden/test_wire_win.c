/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of MoeDistributeDispatchV2: slots, states and capacity, against known numbers. */
#include "wire_oracle.h"

#include "wire_win.h"

static struct cvy_wire_slot slot(int format, int hidden)
{
	struct cvy_wire_slot s;

	ck_assert_int_eq(cvy_wire_slot_of(NULL, format, hidden, 8, &s), 0);
	return s;
}

TEST(window_slots_have_the_known_sizes)
{
	struct cvy_wire_slot s = slot(CVY_WIRE_WIN_INT4, 7168);

	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].at, 3584);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].at, 3616);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].bytes, 12);
	ck_assert_uint_eq(s.used, 3628);
	ck_assert_uint_eq(s.staged, 3648);
	ck_assert_uint_eq(s.bytes, 4096);
	s = slot(CVY_WIRE_WIN_INT8, 7168);
	ck_assert_uint_eq(s.used, 7212);
	ck_assert_uint_eq(s.staged, 7232);
	ck_assert_uint_eq(s.bytes, 7680);
	s = slot(CVY_WIRE_WIN_16, 7168);
	ck_assert_uint_eq(s.used, 14380);
	ck_assert_uint_eq(s.staged, 14400);
	ck_assert_uint_eq(s.bytes, 14848);
	ck_assert_uint_eq(slot(CVY_WIRE_WIN_INT8, 7001).part[CVY_WIRE_SCALE].at, 7008);
	ck_refused(cvy_wire_slot_of(NULL, CVY_WIRE_WIN_INT4, 7001, 8, &s), "takes multiples of 2");
}

TEST(mesh_slots_have_the_known_sizes)
{
	struct cvy_wire_slot s = slot(CVY_WIRE_MESH_INT4, 7168);

	ck_assert_uint_eq(cvy_wire_block_count(7000), 15);
	ck_assert_uint_eq(cvy_wire_block_count(7000) * CVY_WIRE_BLOCK, 7680);
	ck_assert_uint_eq(slot(CVY_WIRE_MESH_INT8, 7000).bytes, 7680);
	ck_assert_uint_eq(s.blocks, 8);
	ck_assert_uint_eq(s.bytes, 4096);
	s = slot(CVY_WIRE_MESH_INT8, 7168);
	ck_assert_uint_eq(s.blocks, 16);
	ck_assert_uint_eq(s.bytes, 8192);
	s = slot(CVY_WIRE_MESH_16, 7168);
	ck_assert_uint_eq(s.blocks, 30);
	ck_assert_uint_eq(s.bytes, 15360);
	ck_assert_uint_eq(s.staged * 16, s.bytes * 15);
}

TEST(combine_slots_have_room_for_16_bits)
{
	struct cvy_wire_slot s = slot(CVY_WIRE_WIN_COMBINE_INT8, 7168);

	ck_assert_uint_eq(slot(CVY_WIRE_WIN_COMBINE, 7168).bytes, 14336);
	ck_assert_uint_eq(slot(CVY_WIRE_WIN_COMBINE, 7001).bytes, 14336);
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].at, 7168);
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].bytes, 1792);
	ck_assert_uint_eq(s.used, 8960);
	ck_assert_uint_eq(s.bytes, 14336);
}

TEST(a_block_says_that_it_has_arrived)
{
	struct cvy_wire_slot s = slot(CVY_WIRE_MESH_INT8, 1000); /* 1024 + 64 bytes: 3 blocks */
	uint8_t image[3 * 512] = { 0 }, payload[1000], back[1000];
	float one;

	ck_assert_uint_eq(s.bytes, sizeof(image));
	for (int i = 0; i < 1000; i++)
		payload[i] = (uint8_t)(i % 251 + 1);
	cvy_wire_part_write(&s, image, CVY_WIRE_PAYLOAD, payload);
	ck_assert_mem_eq(image, payload, 480);
	ck_assert_mem_eq(image + 512, payload + 480, 480);
	ck_assert_mem_eq(image + 1024, payload + 960, 40);
	ck_assert_uint_eq(cvy_wire_blocks_arrived(&s, image), 0);
	cvy_wire_blocks_mark(&s, image);
	for (int b = 0; b < 3; b++) {
		memcpy(&one, image + 512 * b + 480, 4);
		ck_assert_float_eq(one, 1);
		ck_assert_uint_eq(cvy_wire_get32(image + 512 * b + 484), 0);
	}
	ck_assert_uint_eq(cvy_wire_blocks_arrived(&s, image), 3);
	cvy_wire_put32(image + 512 + 480, 0);
	ck_assert_uint_eq(cvy_wire_blocks_arrived(&s, image), 1); /* the third has come, the second has not */
	cvy_wire_part_read(&s, image, CVY_WIRE_PAYLOAD, back);
	ck_assert_mem_eq(back, payload, 1000);
}

/* 4 experts each, on 64 ranks. */
static const struct cvy_wire_win known = {
	.format = CVY_WIRE_WIN_16, .ranks = 64, .experts = 256, .tokens = 64, .hidden = 7168, .top_k = 8
};

TEST(a_window_that_is_too_small_is_refused_with_the_size)
{
	struct cvy_wire_win w = known;

	ck_refused(cvy_wire_win_layout(&w), "a window of 209715200 bytes: 4 experts of a rank, 64 ranks, 64 tokens and "
					    "hidden 7168 need 501219328 (478.0 MiB); use one of 478 MiB");
	ck_assert_uint_eq(cvy_wire_win_capacity(&w, CVY_WIRE_WIN_BY_DISPATCH), 501219328);
	ck_assert_uint_eq(cvy_wire_win_capacity(&w, CVY_WIRE_WIN_BY_COMBINE), 501219328);
	ck_assert_uint_eq(cvy_wire_win_capacity(&w, CVY_WIRE_WIN_BY_MESH), 517996544);
	w.window_bytes = 501219327;
	ck_refused(cvy_wire_win_layout(&w), "a window of 501219327 bytes");
	w.window_bytes = 501219328;
	ck_assert_int_eq(cvy_wire_win_layout(&w), 0);
	ck_assert_int_eq(w.local, 4);
	ck_assert_uint_eq(w.run_bytes, 950272);
	ck_assert_uint_eq(w.dispatch_at, 7340032);
	ck_assert_uint_eq(w.half_bytes, 250609664);
	ck_assert_uint_eq(2 * w.half_bytes, w.needed_bytes);
	w.format = CVY_WIRE_MESH_16;
	ck_refused(cvy_wire_win_layout(&w), "need 517996544 (494.0 MiB); use one of 494 MiB");
}

TEST(states_are_where_the_operator_has_them)
{
	struct cvy_wire_win w = known;

	w.window_bytes = (size_t)1 << 30;
	ck_assert_int_eq(cvy_wire_win_layout(&w), 0);
	ck_assert_uint_eq(cvy_wire_win_count_at(&w, 0, 0, 1), 32);
	ck_assert_uint_eq(cvy_wire_win_count_at(&w, 1, 3, 5), 512000 + 32 * (3 * 64 + 5));
	ck_assert_uint_eq(cvy_wire_win_done_at(&w, 0, 0, 0), 65536);
	ck_assert_uint_eq(cvy_wire_win_done_at(&w, 1, 7, 2), 512000 + 65536 + 32 * (7 * 8 + 2));
	ck_assert_uint_eq(cvy_wire_win_run_at(&w, 9, 3, 5), 7340032 + (5 * 4 + 3) * (size_t)950272);
	ck_assert_uint_eq(cvy_wire_win_row_at(&w, 7, 2), (7 * 8 + 2) * 14336);
	ck_assert_uint_eq(CVY_WIRE_WIN_DISPATCH_HALF, 972800);
	ck_assert_uint_eq(CVY_WIRE_WIN_COMBINE_HALF, 998400);
	ck_assert_uint_eq(CVY_WIRE_WIN_TIMEOUT, 1024000);
	ck_assert_uint_eq(CVY_WIRE_WIN_STATE, 1048576);
	/* The most tokens and choices end below the words that say which half is next. */
	w = (struct cvy_wire_win){ .format = CVY_WIRE_WIN_INT4,
				   .ranks = 8,
				   .experts = 4,
				   .tokens = 512,
				   .hidden = 1024,
				   .top_k = 16,
				   .shared_ranks = 4,
				   .shared_experts = 4,
				   .window_bytes = (size_t)1 << 30 };
	ck_assert_int_eq(cvy_wire_win_layout(&w), 0);
	ck_assert_int_eq(w.choices, 20);
	ck_assert_uint_lt(cvy_wire_win_done_at(&w, 1, 511, 19), CVY_WIRE_WIN_DISPATCH_HALF - 32);
}

static void refuse(struct cvy_wire_win w, const char *words)
{
	ck_refused(cvy_wire_win_layout(&w), words);
}

TEST(bad_shapes_are_refused)
{
	struct cvy_wire_win w = known;

	w.format = CVY_WIRE_WIN_COMBINE;
	refuse(w, "format WIN combine is of combine");
	w = known;
	w.combine_format = CVY_WIRE_MESH_16;
	refuse(w, "format of combine is");
	w = known;
	w.shared_ranks = 3;
	w.shared_experts = 2;
	refuse(w, "3 shared ranks for 2 shared experts");
	w.shared_ranks = 0;
	refuse(w, "0 shared ranks for 2 shared experts");
	w.shared_experts = 0;
	w.shared_ranks = 2;
	refuse(w, "2 shared ranks for 0 shared experts");
	w.shared_experts = 1;
	refuse(w, "256 experts on 62 ranks");
	w = known;
	w.tokens = 513;
	refuse(w, "tokens is 513: it must be from 1 to 512");
	w = known;
	w.top_k = 17;
	refuse(w, "top_k is 17");
	w = (struct cvy_wire_win){ .format = CVY_WIRE_WIN_INT4,
				   .ranks = 768,
				   .experts = 1020,
				   .tokens = 1,
				   .hidden = 64,
				   .top_k = 1,
				   .shared_ranks = 700,
				   .shared_experts = 1 };
	refuse(w, "15 experts of a rank and 768 ranks are 11520 runs: the state window has words for 2048");
}

TEST(copies_under_way_are_two_or_one)
{
	const size_t budget = CVY_WIRE_WIN_STAGING;

	ck_assert_int_eq(cvy_wire_win_buffers(NULL, budget, 0, 14400), 2);
	ck_assert_int_eq(cvy_wire_win_buffers(NULL, budget, budget - 28800, 14400), 2);
	ck_assert_int_eq(cvy_wire_win_buffers(NULL, budget, budget - 28799, 14400), 1);
	ck_assert_int_eq(cvy_wire_win_buffers(NULL, budget, budget - 14400, 14400), 1);
	ck_refused(cvy_wire_win_buffers(NULL, budget, budget - 14399, 14400), "have no room for a copy of 14400");
	ck_refused(cvy_wire_win_buffers(NULL, budget, budget + 1, 1), "no room");
}

SUITE_MAIN(.name = "golden/wire_win")
