/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency kernels: sizes and places against numbers computed by hand from their description, and images. */
#include "wire_oracle.h"

#include "ep_layout.h"
#include "wire_ll.h"

static const struct cvy_wire_ll known = { .ranks = 8, .experts = 256, .tokens = 128, .hidden = 7168, .fp8 = 1 };

static size_t message(int fp8, int hidden)
{
	struct cvy_wire_slot s;

	ck_assert_int_eq(cvy_wire_slot_of(NULL, fp8 ? CVY_WIRE_LL_FP8 : CVY_WIRE_LL_BF16, hidden, 8, &s), 0);
	return s.bytes;
}

TEST(messages_have_the_sizes_of_the_wire)
{
	static const int hidden[] = { 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192 };
	struct cvy_wire_slot s;

	ck_assert_uint_eq(message(1, 7168), 7408);
	ck_assert_uint_eq(message(0, 7168), 14352);
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
		ck_assert_uint_eq(message(1, hidden[i]) % 16, 0);
		ck_assert_uint_eq(message(0, hidden[i]) % 16, 0);
	}
	ck_assert_uint_eq(message(0, 2880), 5776);
	ck_assert_int_eq(cvy_wire_slot_of(NULL, CVY_WIRE_LL_COMBINE, 7168, 8, &s), 0);
	ck_assert_uint_eq(s.bytes, 14336);
	ck_assert_int_eq(cvy_wire_slot_of(NULL, CVY_WIRE_LL_FP8, 7168, 8, &s), 0);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].at, 0);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].bytes, 16);
	ck_assert_uint_eq(s.part[CVY_WIRE_PAYLOAD].at, 16);
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].at, 7184);
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].bytes, 224);
	ck_refused(cvy_wire_slot_of(NULL, CVY_WIRE_LL_FP8, 2880, 8, &s), "takes multiples of 512");
}

TEST(slots_are_by_expert_then_source_then_token)
{
	struct cvy_wire_ll ll = known;

	ck_assert_int_eq(cvy_wire_ll_layout(&ll), 0);
	/* expert 3 of 8 ranks, source 5, slot 17, T 128: ((3 * 8 + 5) * 128 + 17) * 7408 */
	ck_assert_uint_eq(cvy_wire_ll_message_at(&ll, 3, 5, 17), 27624432);
	ck_assert_uint_eq(cvy_wire_ll_message_at(&ll, 0, 0, 0), 0);
	ck_assert_uint_eq(cvy_wire_ll_message_at(&ll, 0, 1, 0), 948224);
	ck_assert_uint_eq(cvy_wire_ll_count_at(&ll, 3, 5), 4 * 29);
	/* by global expert, then token: (200 * 128 + 100) * 14336 */
	ck_assert_uint_eq(cvy_wire_ll_row_at(&ll, 200, 100), 368435200);
	ck_assert_uint_eq(cvy_wire_ll_row_at(&ll, 0, 1), 14336);
	ck_assert_uint_eq(cvy_wire_ll_done_at(200), 800);
}

TEST(zero_tokens_is_not_silence)
{
	ck_assert_int_eq(cvy_wire_count_encode(0), -1);
	ck_assert_int_eq(cvy_wire_count_encode(128), -129);
	for (int n = 0; n <= 4096; n++) {
		ck_assert_int_ne(cvy_wire_count_encode(n), 0);
		ck_assert_int_eq(cvy_wire_count_decode(cvy_wire_count_encode(n)), n);
	}
}

TEST(two_halves_take_the_known_total)
{
	struct cvy_wire_ll ll = known;

	ck_assert_int_eq(cvy_wire_ll_layout(&ll), 0);
	ck_assert_uint_eq(ll.data_bytes, 470810624);
	ck_assert_uint_eq(ll.total_bytes, 1883246592u);
	ck_assert_uint_eq(ll.half_bytes, 941623296);
	ck_assert_uint_eq(ll.send_words_at, 0);
	ck_assert_uint_eq(ll.recv_words_at, 1024);
	ck_assert_uint_eq(ll.send_data_at, 2048);
	ck_assert_uint_eq(ll.recv_data_at, 470812672);
	ck_assert_int_eq(ll.local, 32);
}

TEST(outputs_have_the_documented_shapes)
{
	struct cvy_wire_ll ll = known;
	struct cvy_wire_ll_outputs o;

	ck_assert_int_eq(cvy_wire_ll_layout(&ll), 0);
	ck_assert_int_eq(cvy_wire_ll_outputs(&ll, &o), 0);
	ck_assert_uint_eq(o.packed_x, 234881024);
	ck_assert_uint_eq(o.count, 32);
	ck_assert_uint_eq(o.src_info, 32768);
	ck_assert_uint_eq(o.range, 256);
	ck_assert_uint_eq(o.scales, 1835008);
	ck_assert_uint_eq(cvy_wire_ll_scale_at(&ll, 0, 0, 5), 5);
	ck_assert_uint_eq(cvy_wire_ll_scale_at(&ll, 0, 1, 0), 1024);
	ck_assert_uint_eq(cvy_wire_ll_scale_at(&ll, 2, 3, 7), (2 * 56 + 3) * 1024 + 7);
	ll = (struct cvy_wire_ll){ .ranks = 1, .experts = 2, .tokens = 6, .hidden = 512, .fp8 = 1 };
	ck_assert_int_eq(cvy_wire_ll_layout(&ll), 0);
	ck_refused(cvy_wire_ll_outputs(&ll, &o), "multiples of 4");
}

TEST(range_packs_count_above_first_row)
{
	int64_t range = cvy_ep_range(5, 300);

	ck_assert_int_eq(range, 21474836780);
	ck_assert_uint_eq(cvy_ep_range_count(range), 5);
	ck_assert_uint_eq(cvy_ep_range_first(range), 300);
	ck_assert_uint_eq(cvy_ep_range_count(cvy_ep_range(0x80000000u, 0xffffffffu)), 0x80000000u);
	ck_assert_uint_eq(cvy_ep_range_first(cvy_ep_range(0x80000000u, 0xffffffffu)), 0xffffffffu);
}

TEST(data_and_their_count_share_a_queue)
{
	ck_assert_int_eq(cvy_wire_ll_queue(NULL, 8, 0, 0), 0);
	ck_assert_int_eq(cvy_wire_ll_queue(NULL, 8, 3, 5), 101);
	ck_assert_int_eq(cvy_wire_ll_queue(NULL, 8, 3, 37), 101); /* 32 queues for a rank, then again */
	ck_assert_int_eq(cvy_wire_ll_queue(NULL, 8, 7, 31), 255);
	ck_assert_int_eq(cvy_wire_ll_queue(NULL, 256, 255, 9), 255);
	ck_refused(cvy_wire_ll_queue(NULL, 6, 0, 0), "256 queues on 6 ranks");
	ck_refused(cvy_wire_ll_queue(NULL, 8, 8, 0), "the destination is 8: it must be from 0 to 7");
	ck_refused(cvy_wire_ll_queue(NULL, 0, 0, 0), "ranks is 0");
	ck_refused(cvy_wire_ll_queue(NULL, 8, 1, -1), "the local expert is -1");
}

TEST(bad_shapes_are_refused)
{
	struct cvy_wire_ll ll = known;

	ll.experts = 255;
	ck_refused(cvy_wire_ll_layout(&ll), "255 experts on 8 ranks");
	ll = known;
	ll.tokens = -1;
	ck_refused(cvy_wire_ll_layout(&ll), "tokens is -1: it must be from 1 to 1048576");
	ll = known;
	ll.hidden = 1 << 21;
	ck_refused(cvy_wire_ll_layout(&ll), "hidden is 2097152");
}

/* 4 ranks of 2 experts. */
static void small(struct cvy_wire_ll *ll, struct oracle *o, int seed)
{
	struct cvy_wire_routing shape = { .ranks = 4, .experts = 8, .top_k = 3, .tokens = 5 };

	*ll = (struct cvy_wire_ll){ .ranks = 4, .experts = 8, .tokens = 5, .hidden = 512, .fp8 = seed & 1 };
	ck_assert_int_eq(cvy_wire_ll_layout(ll), 0);
	oracle_open(o, seed, &shape, &ll->message);
}

/* Messages of one run, against the routing. */
static void check_run(const struct cvy_wire_ll *ll, const struct oracle *o, const struct cvy_wire_image *half, int rank,
		      int local, int src)
{
	uint8_t payload[1024], scales[16];
	int n = 0, count;

	ck_assert_int_eq(cvy_wire_ll_count(ll, half, local, src, &count), 0);
	for (int i = 0; i < o->source[src].tokens * 3; i++) {
		struct cvy_wire_token got = { .payload = payload, .scales = scales };

		if (oracle_id(o, src, i / 3, i % 3) != rank * ll->local + local)
			continue;
		ck_assert_int_eq(cvy_wire_ll_read(ll, half, local, src, n, &got), 0);
		ck_assert_int_eq(got.token, i / 3);
		ck_assert_mem_eq(payload, oracle_payload(o, src, i / 3), o->slot.part[CVY_WIRE_PAYLOAD].bytes);
		if (ll->fp8)
			ck_assert_mem_eq(scales, oracle_scales(o, src, i / 3), 16);
		n++;
	}
	ck_assert_int_eq(count, n);
	ck_assert_int_eq(cvy_wire_ll_read(ll, half, local, src, n, &(struct cvy_wire_token){ 0 }), COVEY_ERR_INVAL);
}

TEST_LOOP(dispatch_images_give_the_tokens_back, 0, 12)
{
	struct cvy_wire_image half;
	struct cvy_wire_ll ll;
	struct oracle o;

	small(&ll, &o, _i);
	half = image_open(ll.half_bytes);
	for (int rank = 0; rank < 4; rank++) {
		ck_assert_int_eq(cvy_wire_ll_write(&ll, &o.routing, rank, &half), 0);
		for (int run = 0; run < 8; run++)
			check_run(&ll, &o, &half, rank, run / 4, run % 4);
	}
	image_close(&half);
	oracle_close(&o);
}

/* Byte by byte where the numbers say, without a reader. */
TEST(one_message_is_where_the_formula_says)
{
	const struct cvy_wire_ll shape = { .ranks = 2, .experts = 4, .tokens = 3, .hidden = 512, .fp8 = 0 };
	static const int32_t ids[] = { -1, 3 }; /* rank 1's token 1 goes to local expert 1 of rank 1 */
	struct cvy_wire_source source[2] = { { 0 }, { .tokens = 2, .experts = ids } };
	struct cvy_wire_routing routing = { .ranks = 2, .experts = 4, .top_k = 1, .tokens = 2, .source = source };
	struct cvy_wire_ll ll = shape;
	struct cvy_wire_image half;
	uint8_t payload[2 * 1024];
	const uint8_t *at;

	memset(payload, 0x5a, sizeof(payload));
	source[1].payload = payload;
	ck_assert_int_eq(cvy_wire_ll_layout(&ll), 0);
	half = image_open(ll.half_bytes);
	ck_assert_int_eq(cvy_wire_ll_write(&ll, &routing, 1, &half), 0);
	for (int word = 0; word < 4; word++) /* behind 4 words that are sent */
		ck_assert_int_eq((int32_t)cvy_wire_get32(half.at + 16 + 4 * word), word == 3 ? -2 : -1);
	at = half.at + 32 + 4 * 3 * (32 + 1024) + (1 * 2 + 1) * 3 * 1040;
	ck_assert_uint_eq(cvy_wire_get32(at), 1);
	ck_assert_uint_eq(cvy_wire_get64(at + 4), 0);
	ck_assert_uint_eq(cvy_wire_get32(at + 12), 0);
	ck_assert_mem_eq(at + 16, payload, 1024);
	image_close(&half);
}

TEST_LOOP(combine_images_give_the_rows_back, 0, 6)
{
	uint8_t rows[15 * 1024], row[1024];
	struct cvy_wire_image half;
	struct cvy_wire_ll ll;
	struct oracle o;

	small(&ll, &o, _i);
	half = image_open(ll.half_bytes);
	for (size_t i = 0; i < sizeof(rows); i++)
		rows[i] = (uint8_t)oracle_draw(256);
	for (int src = 0; src < 4; src++) {
		ck_assert_int_eq(cvy_wire_ll_combine_write(&ll, &o.source[src], 3, rows, &half), 0);
		for (int i = 0; i < o.source[src].tokens * 3; i++) {
			int32_t e = oracle_id(&o, src, i / 3, i % 3);

			if (e < 0)
				continue;
			ck_assert_int_eq(cvy_wire_ll_combine_read(&ll, &half, e, i / 3, row), 0);
			ck_assert_mem_eq(row, rows + (size_t)i * 1024, 1024);
		}
	}
	image_close(&half);
	oracle_close(&o);
}

TEST(silence_and_wrong_words_are_told_apart)
{
	struct cvy_wire_image half;
	struct cvy_wire_token token = { .payload = NULL };
	uint8_t row[1024];
	struct cvy_wire_ll ll;
	struct oracle o;
	int count;

	small(&ll, &o, 3);
	half = image_open(ll.half_bytes);
	ck_assert_int_eq(cvy_wire_ll_count(&ll, &half, 1, 2, &count), COVEY_ERR_AGAIN);
	ck_assert_int_eq(cvy_wire_ll_combine_read(&ll, &half, 1, 2, row), COVEY_ERR_AGAIN);
	cvy_wire_put32(half.at + ll.recv_words_at + cvy_wire_ll_count_at(&ll, 1, 2), 1);
	ck_refused(cvy_wire_ll_count(&ll, &half, 1, 2, &count), "is 1: it must be from -6 to 0");
	cvy_wire_put32(half.at + ll.recv_words_at + cvy_wire_ll_count_at(&ll, 1, 2), (uint32_t)-7);
	ck_refused(cvy_wire_ll_count(&ll, &half, 1, 2, &count), "is -7");
	cvy_wire_put32(half.at + ll.recv_words_at + cvy_wire_ll_count_at(&ll, 1, 2), (uint32_t)-6);
	cvy_wire_put32(half.at + ll.recv_data_at + cvy_wire_ll_message_at(&ll, 1, 2, 4), 5);
	ck_refused(cvy_wire_ll_read(&ll, &half, 1, 2, 4, &token), "the token in a header is 5");
	ck_refused(cvy_wire_ll_read(&ll, &half, 2, 2, 4, &token), "the local expert is 2");
	half.bytes--;
	ck_refused(cvy_wire_ll_count(&ll, &half, 1, 2, &count), "the image of a half has");
	ck_refused(cvy_wire_ll_write(&ll, &o.routing, 0, &half), "the image of a half has");
	half.bytes++;
	((int32_t *)(void *)o.source[0].experts)[0] = 8;
	ck_refused(cvy_wire_ll_write(&ll, &o.routing, 0, &half), "names expert 8: it must be below 8");
	o.routing.ranks = 3;
	ck_refused(cvy_wire_ll_write(&ll, &o.routing, 0, &half), "ranks of the routing is 3");
	o.routing.ranks = 4;
	image_close(&half);
	oracle_close(&o);
}

TEST_LOOP(any_bytes_do_no_harm, 0, 11)
{
	struct cvy_wire_image half;
	uint8_t payload[1024], scales[16];
	struct cvy_wire_ll ll;
	struct oracle o;

	small(&ll, &o, _i);
	half = image_open(ll.half_bytes);
	ck_assert_int_eq(cvy_wire_ll_write(&ll, &o.routing, 1, &half), 0);
	image_spoil(&half, 10 * _i);
	for (int i = 0; i < 400; i++) {
		struct cvy_wire_token token = { .token = -1, .payload = payload, .scales = scales };
		int err = cvy_wire_ll_read(&ll, &half, (int)oracle_draw(4) - 1, (int)oracle_draw(6) - 1,
					   (int)oracle_draw(7) - 1, &token);

		ck_assert(err || (token.token >= 0 && token.token < 5));
		cvy_wire_ll_combine_read(&ll, &half, (int)oracle_draw(10) - 1, (int)oracle_draw(7) - 1, payload);
	}
	image_close(&half);
	oracle_close(&o);
}

SUITE_MAIN(.name = "golden/wire_ll")
