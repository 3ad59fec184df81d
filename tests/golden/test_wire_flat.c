/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap of the alltoall work log: slices, and images of their contents. */
#include "wire_oracle.h"

#include "wire_flat.h"

/* The largest of the five shapes. */
static const struct cvy_wire_flat known = { .ranks = 8, .experts = 256, .tokens = 256, .hidden = 7168, .top_k = 8 };

TEST(slices_are_aligned_and_in_order)
{
	struct cvy_wire_flat f = known;

	ck_assert_int_eq(cvy_wire_flat_layout(&f), 0);
	ck_assert_uint_eq(f.entries, 2048);
	ck_assert_uint_eq(f.row.bytes, 14336);
	ck_assert_uint_eq(f.comm_x.at, 0);
	ck_assert_uint_eq(f.comm_x.bytes, 234881024);
	ck_assert_uint_eq(f.comm_meta.at, 234881024);
	ck_assert_uint_eq(f.comm_meta.bytes, 131072);
	ck_assert_uint_eq(f.comm_flag.at, 235012096);
	ck_assert_uint_eq(f.comm_flag.bytes, 65536);
	ck_assert_uint_eq(f.recv_counts.at, 235077632);
	ck_assert_uint_eq(f.recv_counts.bytes, 32);
	ck_assert_uint_eq(f.recv_flag.at, 235077760); /* 128 behind */
	ck_assert_uint_eq(f.post_x.at, 235077888);
	ck_assert_uint_eq(f.post_x.bytes, 939524096);
	ck_assert_uint_eq(f.post_meta.at, 1174601984);
	ck_assert_uint_eq(f.post_meta.bytes, 524288);
	ck_assert_uint_eq(f.post_counts.at, 1175126272);
	ck_assert_uint_eq(f.dispatch_bytes, 1175126400);
	ck_assert_uint_eq(f.back_x.at, 0);
	ck_assert_uint_eq(f.back_x.bytes, 29360128);
	ck_assert_uint_eq(f.back_flag.at, 29360128);
	ck_assert_uint_eq(f.combine_bytes, 29368320);
	ck_assert_uint_eq(CVY_WIRE_FLAT_HEAP, 10737418240);
	ck_assert_uint_eq(CVY_WIRE_FLAT_COMBINE, 5368709120);
}

TEST(a_slice_begins_at_a_multiple_of_128)
{
	size_t top = 0;

	ck_assert_uint_eq(cvy_wire_flat_slice(&top, 1), 0);
	ck_assert_uint_eq(cvy_wire_flat_slice(&top, 128), 128);
	ck_assert_uint_eq(cvy_wire_flat_slice(&top, 300), 256);
	ck_assert_uint_eq(cvy_wire_flat_slice(&top, 0), 640);
	ck_assert_uint_eq(top, 640);
	cvy_wire_flat_slice(&top, SIZE_MAX - 700);
	ck_assert_uint_eq(cvy_wire_flat_slice(&top, 1000), SIZE_MAX);
}

TEST(addresses_differ_by_the_heaps)
{
	ck_assert_uint_eq(cvy_wire_flat_translate(0x7000001234, 0x7000000000, 0x9000000000), 0x9000001234);
	ck_assert_uint_eq(cvy_wire_flat_translate(0x9000001234, 0x9000000000, 0x7000000000), 0x7000001234);
}

TEST(bytes_of_a_rank_are_those_of_the_log)
{
	static const struct {
		int experts, top_k, hidden, tokens;
		size_t bytes;
	} shape[] = { { 8, 2, 6144, 16, 393216 },
		      { 64, 6, 2048, 32, 786432 },
		      { 128, 4, 2880, 128, 2949120 },
		      { 128, 8, 4096, 256, 16777216 },
		      { 256, 8, 7168, 256, 29360128 } };

	for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
		struct cvy_wire_flat f = { .ranks = 8,
					   .experts = shape[i].experts,
					   .tokens = shape[i].tokens,
					   .hidden = shape[i].hidden,
					   .top_k = shape[i].top_k };

		ck_assert_int_eq(cvy_wire_flat_layout(&f), 0);
		ck_assert_uint_eq(f.entries * f.row.bytes, shape[i].bytes);
		ck_assert_uint_eq(f.back_x.bytes, shape[i].bytes);
	}
}

TEST(bad_shapes_are_refused)
{
	struct cvy_wire_flat f = known;

	f.tokens = 4096;
	ck_refused(cvy_wire_flat_layout(&f), "at most 5368709120 and 5368709120 fit; use fewer tokens");
	f = known;
	f.ranks = 7;
	ck_refused(cvy_wire_flat_layout(&f), "256 experts on 7 ranks");
	f = known;
	f.top_k = 0;
	ck_refused(cvy_wire_flat_layout(&f), "top_k is 0: it must be from 1 to 32");
	f = (struct cvy_wire_flat){ .ranks = 4096, .experts = 4096, .tokens = 1 << 20, .hidden = 1 << 20, .top_k = 32 };
	ck_refused(cvy_wire_flat_layout(&f), "use fewer tokens");
}

enum { RANKS = 4, TOP_K = 3, TOKENS = 5, HIDDEN = 45 };

static void small(struct cvy_wire_flat *f, struct oracle *o, int seed)
{
	struct cvy_wire_routing shape = { .ranks = RANKS, .experts = 8, .top_k = TOP_K, .tokens = TOKENS };

	*f = (struct cvy_wire_flat){ .ranks = RANKS, .experts = 8, .tokens = TOKENS, .hidden = HIDDEN, .top_k = TOP_K };
	ck_assert_int_eq(cvy_wire_flat_layout(f), 0);
	oracle_open(o, seed, &shape, &f->row);
}

TEST_LOOP(dispatch_images_give_the_entries_back, 0, 9)
{
	struct cvy_wire_image heap;
	struct cvy_wire_flat f;
	struct oracle o;

	small(&f, &o, _i);
	heap = image_open(f.dispatch_bytes);
	for (int rank = 0; rank < RANKS; rank++) {
		ck_assert_int_eq(cvy_wire_flat_write(&f, &o.routing, rank, &heap), 0);
		for (int src = 0; src < RANKS; src++) {
			int n = 0, count, local;

			for (int i = 0; i < o.source[src].tokens * TOP_K; i++) {
				uint8_t x[2 * HIDDEN];
				struct cvy_wire_token got = { .payload = x };
				int32_t e = oracle_id(&o, src, i / TOP_K, i % TOP_K);

				if (e < 0 || e / 2 != rank)
					continue;
				ck_assert_int_eq(cvy_wire_flat_read(&f, &heap, src, n++, &local, &got), 0);
				ck_assert_int_eq(local, e % 2);
				ck_assert_int_eq(got.token * TOP_K + got.choice, i);
				ck_assert_mem_eq(x, oracle_payload(&o, src, i / TOP_K), sizeof(x));
			}
			ck_assert_int_eq(cvy_wire_flat_count(&f, &heap, src, &count), 0);
			ck_assert_int_eq(count, n);
		}
	}
	image_close(&heap);
	oracle_close(&o);
}

TEST_LOOP(post_images_are_by_expert, 0, 9)
{
	struct cvy_wire_image heap;
	struct cvy_wire_flat f;
	struct oracle o;

	small(&f, &o, _i);
	heap = image_open(f.dispatch_bytes);
	for (int e = 0; e < 8; e++) {
		uint8_t x[2 * HIDDEN];
		struct cvy_wire_token got = { .payload = x };
		int n = 0, from;

		ck_assert_int_eq(cvy_wire_flat_post_write(&f, &o.routing, e / 2, &heap), 0);
		for (int src = 0; src < RANKS; src++)
			for (int i = 0; i < o.source[src].tokens * TOP_K; i++) {
				if (oracle_id(&o, src, i / TOP_K, i % TOP_K) != e)
					continue;
				ck_assert_int_eq(cvy_wire_flat_post_read(&f, &heap, e % 2, n++, &from, &got), 0);
				ck_assert_int_eq(from, src);
				ck_assert_int_eq(got.token * TOP_K + got.choice, i);
				ck_assert_mem_eq(x, oracle_payload(&o, src, i / TOP_K), sizeof(x));
			}
		ck_assert_int_eq(cvy_wire_flat_post_read(&f, &heap, e % 2, n, &from, &got), COVEY_ERR_INVAL);
	}
	image_close(&heap);
	oracle_close(&o);
}

TEST_LOOP(combine_images_give_the_rows_back, 0, 6)
{
	uint8_t rows[TOKENS * TOP_K * 2 * HIDDEN], row[2 * HIDDEN];
	struct cvy_wire_image heap;
	struct cvy_wire_flat f;
	struct oracle o;

	small(&f, &o, _i);
	for (size_t i = 0; i < sizeof(rows); i++)
		rows[i] = (uint8_t)oracle_draw(256);
	for (int src = 0; src < RANKS; src++) {
		heap = image_open(f.combine_bytes);
		ck_assert_int_eq(cvy_wire_flat_combine_write(&f, &o.source[src], rows, &heap), 0);
		for (int i = 0; i < TOKENS * TOP_K; i++) {
			int there = i / TOP_K < o.source[src].tokens && oracle_id(&o, src, i / TOP_K, i % TOP_K) >= 0;

			ck_assert_int_eq(cvy_wire_flat_combine_read(&f, &heap, i / TOP_K, i % TOP_K, row),
					 there ? 0 : COVEY_ERR_AGAIN);
			if (there)
				ck_assert_mem_eq(row, rows + i * 2 * HIDDEN, 2 * HIDDEN);
		}
		image_close(&heap);
	}
	oracle_close(&o);
}

TEST(silence_and_wrong_words_are_told_apart)
{
	struct cvy_wire_token token = { .payload = NULL };
	struct cvy_wire_image heap;
	struct cvy_wire_flat f;
	struct oracle o;
	int n;

	small(&f, &o, 0);
	heap = image_open(f.dispatch_bytes);
	ck_assert_int_eq(cvy_wire_flat_count(&f, &heap, 1, &n), COVEY_ERR_AGAIN);
	ck_assert_int_eq(cvy_wire_flat_read(&f, &heap, 1, 0, &n, &token), COVEY_ERR_AGAIN);
	cvy_wire_put32(heap.at + f.recv_flag.at + 4, 17);
	ck_refused(cvy_wire_flat_count(&f, &heap, 1, &n), "is 17: it must be 0 or from 1 to 16");
	cvy_wire_put32(heap.at + f.comm_flag.at + 4 * 15, 2);
	ck_refused(cvy_wire_flat_read(&f, &heap, 1, 0, &n, &token), "is 2: it must be 0 or 1");
	cvy_wire_put32(heap.at + f.comm_flag.at + 4 * 15, 1);
	cvy_wire_put32(heap.at + f.comm_meta.at + 8 * 15, 2);
	ck_refused(cvy_wire_flat_read(&f, &heap, 1, 0, &n, &token), "the first word of a row's meta is 2");
	cvy_wire_put32(heap.at + f.comm_meta.at + 8 * 15, 1);
	cvy_wire_put32(heap.at + f.comm_meta.at + 8 * 15 + 4, 15);
	ck_refused(cvy_wire_flat_read(&f, &heap, 1, 0, &n, &token), "the entry in a row's meta is 15");
	cvy_wire_put32(heap.at + f.post_counts.at, 21);
	ck_refused(cvy_wire_flat_post_read(&f, &heap, 0, 0, &n, &token),
		   "an expert's count is 21: it must be from 0 to 20");
	image_close(&heap);
	oracle_close(&o);
}

TEST_LOOP(any_bytes_do_no_harm, 0, 11)
{
	struct cvy_wire_image heap;
	uint8_t x[2 * HIDDEN];
	struct cvy_wire_token token = { .payload = x };
	struct cvy_wire_flat f;
	struct oracle o;
	int n;

	small(&f, &o, _i);
	heap = image_open(f.dispatch_bytes);
	ck_assert_int_eq(cvy_wire_flat_write(&f, &o.routing, 1, &heap), 0);
	ck_assert_int_eq(cvy_wire_flat_post_write(&f, &o.routing, 1, &heap), 0);
	image_spoil(&heap, 10 * _i);
	for (int i = 0; i < 400; i++) {
		int a = (int)oracle_draw(6) - 1, b = (int)oracle_draw(17) - 1;

		cvy_wire_flat_count(&f, &heap, a, &n);
		cvy_wire_flat_read(&f, &heap, a, b, &n, &token);
		cvy_wire_flat_post_read(&f, &heap, a, b, &n, &token);
		cvy_wire_flat_combine_read(&f, &heap, a, b, x); /* its slices are fewer */
	}
	image_close(&heap);
	oracle_close(&o);
}

SUITE_MAIN(.name = "golden/wire_flat")
