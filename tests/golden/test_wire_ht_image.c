/* SPDX-License-Identifier: Apache-2.0 */
/* The high-throughput kernels: prefixes, and images of rings that have wrapped. */
#include "wire_oracle.h"

#include "wire_ht.h"

static void small(struct cvy_wire_ht *ht, struct oracle *o, int seed)
{
	static const int formats[] = { CVY_WIRE_HT_FP8, CVY_WIRE_HT_BF16, CVY_WIRE_HT_DEEPEP_FP8,
				       CVY_WIRE_HT_DEEPEP_BF16 };
	struct cvy_wire_routing shape = { .ranks = 6, .experts = 12, .top_k = 3, .tokens = 23 };

	*ht = (struct cvy_wire_ht){ .format = formats[seed % 4],
				    .nodes = seed % 2 ? 2 : 3,
				    .gpus = seed % 2 ? 3 : 2,
				    .experts = 12,
				    .tokens = 23,
				    .hidden = 256,
				    .top_k = 3,
				    .channels = 2,
				    .rdma_capacity = 4,
				    .nvl_capacity = 3,
				    .rdma_chunk = 2,
				    .doubled = seed / 2 % 2 };
	ck_assert_int_eq(cvy_wire_ht_layout(ht), 0);
	oracle_open(o, seed, &shape, &ht->slot);
}

/* Does GPU @dst want token @t of @src? */
static int wants(const struct cvy_wire_ht *ht, const struct oracle *o, int src, int t, int dst)
{
	for (int k = 0; k < 3; k++)
		if (oracle_id(o, src, t, k) >= 0 && oracle_id(o, src, t, k) / ht->local == dst)
			return 1;
	return 0;
}

static int mask_of(const struct cvy_wire_ht *ht, const struct oracle *o, int src, int t, int node)
{
	int mask = 0;

	for (int p = 0; p < ht->gpus; p++)
		mask |= wants(ht, o, src, t, node * ht->gpus + p) << p;
	return mask;
}

TEST_LOOP(prefixes_count_each_token_once, 0, 8)
{
	struct cvy_wire_ht ht;
	struct oracle o;

	small(&ht, &o, _i);
	for (int dst = 0, ranks = 0, nodes = 0; dst < 6; dst++, ranks = nodes = 0)
		for (int src = 0; src < 6; src++) {
			int n = 0, m = 0, node = dst / ht.gpus;

			for (int t = 0; t < o.source[src].tokens; t++) {
				n += wants(&ht, &o, src, t, dst);
				m += mask_of(&ht, &o, src, t, node) != 0;
				ck_assert_int_eq(cvy_wire_ht_mask(&ht, &o.routing, src, t, node),
						 mask_of(&ht, &o, src, t, node));
			}
			ck_assert_int_eq(cvy_wire_ht_rank_prefix(&ht, &o.routing, src, dst, 1), n);
			ck_assert_int_eq(cvy_wire_ht_node_prefix(&ht, &o.routing, src, node, 1), m);
			ranks += n;
			ck_assert_int_eq(cvy_wire_ht_recv_rank_prefix(&ht, &o.routing, dst, src), ranks);
			if (src % ht.gpus != dst % ht.gpus)
				continue;
			nodes += m;
			ck_assert_int_eq(cvy_wire_ht_recv_node_prefix(&ht, &o.routing, dst, src / ht.gpus), nodes);
		}
	oracle_close(&o);
}

struct read {
	uint8_t payload[512], scales[8];
	int32_t ids[3];
	float weights[3];
	struct cvy_wire_ht_meta meta;
	struct cvy_wire_token token;
};

static void check_token(const struct cvy_wire_ht *ht, const struct oracle *o, struct read *r, int src, int t, int node)
{
	ck_assert_int_eq(r->meta.node, src / ht->gpus);
	ck_assert_int_eq(r->meta.mask, mask_of(ht, o, src, t, node));
	ck_assert_mem_eq(r->payload, oracle_payload(o, src, t), ht->slot.part[CVY_WIRE_PAYLOAD].bytes);
	ck_assert_mem_eq(r->scales, oracle_scales(o, src, t), ht->slot.part[CVY_WIRE_SCALE].bytes);
	ck_assert_mem_eq(r->ids, o->source[src].experts + 3 * t, 12);
	ck_assert_mem_eq(r->weights, o->source[src].weights + 3 * t, 12);
}

static void aim(struct read *r)
{
	r->token = (struct cvy_wire_token){
		.payload = r->payload, .scales = r->scales, .experts = r->ids, .weights = r->weights
	};
}

/* From the start of the ring to its end, as a forwarder consumes it. */
static void check_rdma(const struct cvy_wire_ht *ht, const struct oracle *o, int dst, struct cvy_wire_ht_ring ring,
		       struct cvy_wire_image *buffer)
{
	int src = ring.source * ht->gpus + dst % ht->gpus, node = dst / ht->gpus;
	struct cvy_wire_ht_span span = cvy_wire_ht_channel(ht, o->source[src].tokens, ring.channel);
	struct cvy_wire_ht_state s;
	struct read r;
	uint64_t n = 0;

	aim(&r);
	for (int t = span.first; t < span.end; t++) {
		if (!mask_of(ht, o, src, t, node))
			continue;
		ck_assert_int_eq(cvy_wire_ht_rdma_write(ht, &o->routing, dst, &ring, n, buffer), 0);
		ck_assert_int_eq(cvy_wire_ht_rdma_read(ht, buffer, &ring, n, &r.meta, &r.token), 0);
		check_token(ht, o, &r, src, t, node);
		ck_assert_int_eq(cvy_wire_ht_rdma_state(ht, buffer, &ring, &s), 0);
		ck_assert_uint_le(s.tail - n, 4);
		n++;
	}
	ck_assert_int_eq(cvy_wire_ht_rdma_write(ht, &o->routing, dst, &ring, n, buffer), 0);
	ck_assert_int_eq(cvy_wire_ht_rdma_state(ht, buffer, &ring, &s), 0);
	ck_assert_uint_eq(s.tail, n);
	ck_assert_int_eq(s.node.end - s.node.first, (int)n);
	for (int p = 0; p < ht->gpus; p++)
		ck_assert_int_eq(s.gpu[p].end,
				 cvy_wire_ht_rank_prefix(ht, &o->routing, src, node * ht->gpus + p, ring.channel));
	ck_assert_int_eq(s.gpu[0].first,
			 ring.channel ? cvy_wire_ht_rank_prefix(ht, &o->routing, src, node * ht->gpus, 0) : 0);
	ck_refused(cvy_wire_ht_rdma_read(ht, buffer, &ring, n, &r.meta, &r.token), "to before tail");
	ck_refused(cvy_wire_ht_rdma_write(ht, &o->routing, dst, &ring, n + 1, buffer), "the ring has only");
}

TEST_LOOP(rdma_rings_give_the_tokens_back, 0, 8)
{
	struct cvy_wire_image buffer;
	struct cvy_wire_ht ht;
	struct oracle o;

	small(&ht, &o, _i);
	buffer = image_open(ht.rdma.bytes);
	for (int dst = 0; dst < 6; dst++)
		for (int c = 0; c < 2; c++)
			for (int n = 0; n < ht.nodes; n++)
				check_rdma(&ht, &o, dst, (struct cvy_wire_ht_ring){ c, n }, &buffer);
	image_close(&buffer);
	oracle_close(&o);
}

static void check_nvl(const struct cvy_wire_ht *ht, const struct oracle *o, int dst, struct cvy_wire_ht_ring ring,
		      struct cvy_wire_image *buffer)
{
	struct cvy_wire_ht_span by_node[3];
	struct cvy_wire_ht_state s;
	struct read r;
	uint64_t n = 0;

	aim(&r);
	for (int node = 0; node < ht->nodes; node++) {
		int src = node * ht->gpus + ring.source;
		struct cvy_wire_ht_span span = cvy_wire_ht_channel(ht, o->source[src].tokens, ring.channel);

		for (int t = span.first; t < span.end; t++) {
			if (!wants(ht, o, src, t, dst))
				continue;
			ck_assert_int_eq(cvy_wire_ht_nvl_write(ht, &o->routing, dst, &ring, n, buffer), 0);
			ck_assert_int_eq(cvy_wire_ht_nvl_read(ht, buffer, &ring, n, &r.meta, &r.token), 0);
			check_token(ht, o, &r, src, t, dst / ht->gpus);
			n++;
		}
	}
	ck_assert_int_eq(cvy_wire_ht_nvl_write(ht, &o->routing, dst, &ring, n, buffer), 0);
	ck_assert_int_eq(cvy_wire_ht_nvl_state(ht, buffer, &ring, &s, by_node), 0);
	ck_assert_uint_eq(s.tail, n);
	for (int node = 0; node < ht->nodes; node++)
		ck_assert_int_eq(by_node[node].end,
				 cvy_wire_ht_rank_prefix(ht, &o->routing, node * ht->gpus + ring.source, dst,
							 ring.channel));
}

TEST_LOOP(nvl_rings_give_the_tokens_back, 0, 8)
{
	struct cvy_wire_image buffer;
	struct cvy_wire_ht ht;
	struct oracle o;

	small(&ht, &o, _i);
	buffer = image_open(ht.nvl.bytes);
	for (int dst = 0; dst < 6; dst++)
		for (int c = 0; c < 2; c++)
			for (int p = 0; p < ht.gpus; p++)
				check_nvl(&ht, &o, dst, (struct cvy_wire_ht_ring){ c, p }, &buffer);
	image_close(&buffer);
	oracle_close(&o);
}

TEST(silence_and_wrong_words_are_told_apart)
{
	const struct cvy_wire_ht_ring ring = { 1, 1 };
	struct cvy_wire_image buffer;
	struct cvy_wire_ht_state s;
	struct cvy_wire_ht ht;
	struct oracle o;
	struct read r;
	uint8_t *counts;

	small(&ht, &o, 3); /* every token names three experts */
	aim(&r);
	buffer = image_open(ht.rdma.bytes);
	ck_assert_int_eq(cvy_wire_ht_rdma_state(&ht, &buffer, &ring, &s), COVEY_ERR_AGAIN);
	ck_assert_int_eq(cvy_wire_ht_rdma_write(&ht, &o.routing, 4, &ring, 0, &buffer), 0);
	ck_assert_int_eq(cvy_wire_ht_rdma_state(&ht, &buffer, &ring, &s), 0);
	ck_assert_uint_gt(s.tail, 0);
	cvy_wire_put64(buffer.at + ht.rdma.head_at + 8 * 3, s.tail + 1);
	ck_refused(cvy_wire_ht_rdma_state(&ht, &buffer, &ring, &s), "they must be at most 4 apart");
	cvy_wire_put64(buffer.at + ht.rdma.head_at + 8 * 3, 0);
	counts = buffer.at + ht.rdma.slots_at + 3 * 4 * ht.slot.bytes + ht.slot.part[CVY_WIRE_META].at;
	cvy_wire_put32(counts, 0);
	ck_refused(cvy_wire_ht_rdma_read(&ht, &buffer, &ring, 0, &r.meta, &r.token),
		   "the node in a slot is 0: it must be from 1 to 1");
	cvy_wire_put32(counts, 1);
	cvy_wire_put32(counts + 4, 8);
	ck_refused(cvy_wire_ht_rdma_read(&ht, &buffer, &ring, 0, &r.meta, &r.token), "the mask in a slot is 8");
	counts = buffer.at + ht.rdma.counts_at + 3 * 4 * (size_t)ht.counts;
	cvy_wire_put32(counts, 7);
	ck_refused(cvy_wire_ht_rdma_state(&ht, &buffer, &ring, &s), "the words of a span are 7");
	image_close(&buffer);
	oracle_close(&o);
}

TEST_LOOP(any_bytes_do_no_harm, 0, 12)
{
	struct cvy_wire_image rdma, nvl;
	struct cvy_wire_ht_span by_node[3];
	struct cvy_wire_ht_state s;
	struct cvy_wire_ht ht;
	struct oracle o;
	struct read r;

	small(&ht, &o, _i);
	rdma = image_open(ht.rdma.bytes);
	nvl = image_open(ht.nvl.bytes);
	aim(&r);
	for (int i = 0; i < 300; i++) {
		struct cvy_wire_ht_ring ring = { (int)oracle_draw(4) - 1, (int)oracle_draw(5) - 1 };
		uint64_t n = oracle_draw(10) ? oracle_draw(8) : UINT64_MAX - oracle_draw(3);

		if (i % 50 == 0) { /* an honest image, with some words that are not; in the end all are drawn */
			cvy_wire_ht_rdma_write(&ht, &o.routing, 3, &(struct cvy_wire_ht_ring){ 1, 1 }, 0, &rdma);
			cvy_wire_ht_nvl_write(&ht, &o.routing, 3, &(struct cvy_wire_ht_ring){ 1, 1 }, 0, &nvl);
			image_spoil(&rdma, i);
			image_spoil(&nvl, i);
		}
		cvy_wire_ht_rdma_read(&ht, &rdma, &ring, n, &r.meta, &r.token);
		cvy_wire_ht_nvl_read(&ht, &nvl, &ring, n, &r.meta, &r.token);
		cvy_wire_ht_nvl_state(&ht, &nvl, &ring, &s, by_node);
	}
	image_close(&rdma);
	image_close(&nvl);
	oracle_close(&o);
}

SUITE_MAIN(.name = "golden/wire_ht_image")
