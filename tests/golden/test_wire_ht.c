/* SPDX-License-Identifier: Apache-2.0 */
/* The high-throughput kernels: slots, buffers and channels, against known numbers. */
#include "wire_oracle.h"

#include "wire_ht.h"

static struct cvy_wire_slot slot(int format)
{
	struct cvy_wire_slot s;

	ck_assert_int_eq(cvy_wire_slot_of(NULL, format, 7168, 8, &s), 0);
	return s;
}

TEST(slots_have_the_known_sizes)
{
	ck_assert_uint_eq(slot(CVY_WIRE_HT_BF16).bytes, 14416);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_FP8).bytes, 7472);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_DEEPEP_BF16).bytes, 14416);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_DEEPEP_FP8).bytes, 7472);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_COMBINE).bytes, 14384);
}

TEST(fields_have_two_orders)
{
	struct cvy_wire_slot s = slot(CVY_WIRE_HT_FP8), d = slot(CVY_WIRE_HT_DEEPEP_FP8);

	ck_assert_uint_eq(s.part[CVY_WIRE_PAYLOAD].at, 0);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].at, 7168);
	ck_assert_uint_eq(s.part[CVY_WIRE_META].bytes, 8);
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].at, 7176); /* not at a multiple of 16 */
	ck_assert_uint_eq(s.part[CVY_WIRE_SCALE].bytes, 224);
	ck_assert_uint_eq(s.part[CVY_WIRE_IDS].at, 7400);
	ck_assert_uint_eq(s.part[CVY_WIRE_WEIGHTS].at, 7432);
	ck_assert_uint_eq(s.used, 7464);
	ck_assert_uint_eq(d.part[CVY_WIRE_SCALE].at, 7168);
	ck_assert_uint_eq(d.part[CVY_WIRE_META].at, 7392);
	ck_assert_uint_eq(d.part[CVY_WIRE_IDS].at, 7400);
	ck_assert_uint_eq(d.part[CVY_WIRE_WEIGHTS].at, 7432);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_COMBINE).part[CVY_WIRE_IDS].bytes, 0);
	ck_assert_uint_eq(slot(CVY_WIRE_HT_COMBINE).part[CVY_WIRE_WEIGHTS].at, 14344);
}

/* A slot of 1024 bytes. */
static const struct cvy_wire_ht known = { .format = CVY_WIRE_HT_BF16,
					  .nodes = 2,
					  .gpus = 8,
					  .experts = 64,
					  .tokens = 4096,
					  .hidden = 496,
					  .top_k = 2,
					  .channels = 10,
					  .rdma_capacity = 1024,
					  .nvl_capacity = 1024 };

TEST(buffers_have_the_known_sizes)
{
	struct cvy_wire_ht ht = known;

	ck_assert_int_eq(cvy_wire_ht_layout(&ht), 0);
	ck_assert_uint_eq(ht.slot.bytes, 1024);
	ck_assert_int_eq(ht.counts, 18);
	ck_assert_int_eq(ht.ranks, 16);
	ck_assert_uint_eq(ht.rdma.bytes, 20973280);
	ck_assert_uint_eq(ht.nvl.bytes, 83888000);
	ck_assert_uint_eq(ht.rdma.bytes + ht.nvl.bytes, 104861280);
	ck_assert_uint_eq(ht.rdma.slots_at, 0);
	ck_assert_uint_eq(ht.rdma.counts_at, 20971520);
	ck_assert_uint_eq(ht.rdma.head_at, 20971520 + 1440);
	ck_assert_uint_eq(ht.rdma.tail_at, 20971520 + 1440 + 160);
	ck_assert_uint_eq(ht.nvl.counts_at, 83886080);
	ck_assert_uint_eq(ht.nvl.ends_at, 83886080 + 640);
	ck_assert_uint_eq(ht.nvl.head_at, 83886080 + 1280);
	ck_assert_uint_eq(ht.nvl.tail_at, 83886080 + 1600);
}

/* DeepEP also counts the arrays that it sends from. */
TEST(the_doubled_buffer_has_the_known_size)
{
	struct cvy_wire_ht ht = known;

	ht.doubled = 1;
	ck_assert_int_eq(cvy_wire_ht_layout(&ht), 0);
	ck_assert_uint_eq(ht.rdma.bytes, 41946240);
	ck_assert_uint_eq(ht.rdma.slots_at, 20971520);
	ck_assert_uint_eq(ht.rdma.counts_at, 2 * 20971520 + 1440);
	ck_assert_uint_eq(ht.rdma.head_at, 2 * 20971520 + 2880);
	ck_assert_uint_eq(ht.nvl.bytes, 83888000);
}

static void refuse(struct cvy_wire_ht ht, const char *words)
{
	ck_refused(cvy_wire_ht_layout(&ht), words);
}

TEST(bad_shapes_are_refused)
{
	struct cvy_wire_ht ht = known;

	ht.rdma_chunk = 20;
	refuse(ht, "an RDMA ring of 1024 slots is filled in puts of 20");
	ht = known;
	ht.gpus = 9;
	refuse(ht, "GPUs of a node is 9: it must be from 1 to 8");
	ht = known;
	ht.experts = 65;
	refuse(ht, "65 experts on 16 ranks");
	ht = known;
	ht.hidden = 500;
	refuse(ht, "takes multiples of 8");
	ht = known;
	ht.format = CVY_WIRE_LL_FP8;
	refuse(ht, "format is 0");
	ht = known;
	ht.channels = 1024;
	ht.nodes = 512;
	ht.experts = 4096;
	ht.hidden = 1 << 20;
	ht.rdma_capacity = INT32_MAX;
	refuse(ht, "are too large: use smaller rings");
}

TEST(channels_take_blocks_of_tokens)
{
	struct cvy_wire_ht ht = known;
	int next = 0;

	ck_assert_int_eq(cvy_wire_ht_layout(&ht), 0);
	ck_assert_int_eq(cvy_wire_ht_channel(&ht, 101, 0).end, 11);
	ck_assert_int_eq(cvy_wire_ht_channel(&ht, 101, 9).first, 99);
	ck_assert_int_eq(cvy_wire_ht_channel(&ht, 101, 9).end, 101);
	ck_assert_int_eq(cvy_wire_ht_channel(&ht, 3, 5).first, 3); /* fewer tokens than channels */
	for (int tokens = 0; tokens < 45; tokens++, next = 0) {
		for (int c = 0; c < 10; c++) {
			struct cvy_wire_ht_span s = cvy_wire_ht_channel(&ht, tokens, c);

			ck_assert_int_eq(s.first, next);
			ck_assert_int_le(s.first, s.end);
			next = s.end;
		}
		ck_assert_int_eq(next, tokens);
	}
}

SUITE_MAIN(.name = "golden/wire_ht")
