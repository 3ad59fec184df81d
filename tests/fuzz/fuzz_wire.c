/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images of the wire book. The first byte chooses the system and the second the shape; then come the words that announce
 * slots, then the slots. Images are as long as their layout says, or one byte shorter. Tokens that are read are within bounds.
 */
#include "fuzz.h"
#include "wire_elastic.h"
#include "wire_flat.h"
#include "wire_ht.h"
#include "wire_ll.h"
#include "wire_pg.h"
#include "wire_win.h"

enum { HIDDEN = 512, TOP_K = 2, RANKS = 2, TOKENS = 2, EXPERTS = 4 };

static struct fuzz_in in;
static uint8_t payload[2 * HIDDEN], scales[2 * HIDDEN];
static int32_t ids[TOP_K];
static float weights[TOP_K];
static struct cvy_wire_token token = { .payload = payload, .scales = scales, .experts = ids, .weights = weights };

static struct cvy_wire_image image_open(size_t bytes)
{
	struct cvy_wire_image image = { calloc(1, bytes), bytes };

	fuzz_check(image.at);
	return image;
}

/* The next bytes of the input are words; those behind them are slots. */
static void fill(struct cvy_wire_image *image, size_t words_at, size_t words, size_t slots_at)
{
	fuzz_take(&in, image->at + words_at, words);
	fuzz_take(&in, image->at + slots_at, image->bytes - slots_at);
}

static void check_token(int err, int tokens, int choices)
{
	if (!err)
		fuzz_check(token.token < tokens && token.choice < choices);
}

static void low_latency(uint8_t how)
{
	struct cvy_wire_ll ll = {
		.ranks = RANKS, .experts = EXPERTS, .tokens = TOKENS, .hidden = HIDDEN, .fp8 = how & 1
	};
	struct cvy_wire_image half;

	fuzz_check(!cvy_wire_ll_layout(&ll));
	half = image_open(ll.half_bytes - (how & 2) / 2);
	fill(&half, ll.recv_words_at, ll.words_bytes, ll.recv_data_at);
	for (int i = 0; i < EXPERTS * TOKENS; i++) {
		check_token(cvy_wire_ll_read(&ll, &half, i / 4, i / 2 % 2, i % 2, &token), TOKENS, TOP_K);
		cvy_wire_ll_combine_read(&ll, &half, i / 2, i % 2, payload);
	}
	free(half.at);
}

static void process_group(uint8_t how)
{
	struct cvy_wire_pg pg = { .ranks = CVY_WIRE_PG_RANKS, .kind = how & 1 };
	struct cvy_wire_pg_memory m;
	struct cvy_wire_pg_slots slots;
	uint64_t seq = 0, bytes = 0;

	fuzz_check(!cvy_wire_pg_layout(&pg));
	m.buffer = image_open((size_t)pg.ranks * pg.chunk); /* zero pages: never written */
	m.sync = image_open(pg.sync_bytes - (how & 2) / 2);
	fuzz_take(&in, m.sync.at, m.sync.bytes);
	for (int src = 0; src < pg.ranks; src++)
		cvy_wire_pg_read(&pg, &m, src, sizeof(payload), payload);
	fuzz_take(&in, &seq, 8);
	fuzz_take(&in, &bytes, 8);
	if (!cvy_wire_pg_slots(NULL, seq, bytes, &slots))
		fuzz_check(slots.first >= 0 && slots.first + slots.count <= CVY_WIRE_PG_SLOTS &&
			   (size_t)slots.count * CVY_WIRE_PG_SLOT >= bytes);
	free(m.buffer.at);
	free(m.sync.at);
}

static void high_throughput(uint8_t how)
{
	struct cvy_wire_ht ht = { .format = CVY_WIRE_HT_FP8 + how % 4,
				  .nodes = 2,
				  .gpus = 2,
				  .experts = EXPERTS,
				  .tokens = 9,
				  .hidden = 128,
				  .top_k = TOP_K,
				  .channels = 1,
				  .rdma_capacity = 2,
				  .nvl_capacity = 2,
				  .doubled = how >> 2 & 1 };
	struct cvy_wire_ht_span by_node[2];
	struct cvy_wire_ht_meta meta;
	struct cvy_wire_ht_state s;
	struct cvy_wire_image rdma, nvl;

	fuzz_check(!cvy_wire_ht_layout(&ht));
	rdma = image_open(ht.rdma.bytes);
	nvl = image_open(ht.nvl.bytes - (how & 8) / 8);
	fuzz_take(&in, rdma.at + ht.rdma.counts_at, rdma.bytes - ht.rdma.counts_at);
	fuzz_take(&in, nvl.at + ht.nvl.counts_at, nvl.bytes - ht.nvl.counts_at);
	fuzz_take(&in, rdma.at + ht.rdma.slots_at, ht.rdma_capacity * ht.slot.bytes);
	fuzz_take(&in, nvl.at, ht.nvl_capacity * ht.slot.bytes);
	for (int i = 0; i < 2; i++) {
		struct cvy_wire_ht_ring ring = { 0, i };

		if (!cvy_wire_ht_rdma_state(&ht, &rdma, &ring, &s))
			for (uint64_t n = s.head; n != s.tail + 1; n++)
				cvy_wire_ht_rdma_read(&ht, &rdma, &ring, n, &meta, &token);
		if (!cvy_wire_ht_nvl_state(&ht, &nvl, &ring, &s, by_node))
			for (uint64_t n = s.head; n != s.tail + 1; n++)
				cvy_wire_ht_nvl_read(&ht, &nvl, &ring, n, &meta, &token);
	}
	free(rdma.at);
	free(nvl.at);
}

static void flat(uint8_t how)
{
	struct cvy_wire_flat f = { .ranks = RANKS, .experts = EXPERTS, .tokens = TOKENS, .hidden = 16, .top_k = TOP_K };
	struct cvy_wire_image heap;
	int other;

	fuzz_check(!cvy_wire_flat_layout(&f));
	heap = image_open(f.dispatch_bytes - (how & 1));
	fill(&heap, f.comm_meta.at, f.comm_meta.bytes, f.comm_flag.at);
	for (int i = 0; i < RANKS * TOKENS * TOP_K; i++) {
		check_token(cvy_wire_flat_read(&f, &heap, i / 4, i % 4, &other, &token), TOKENS, TOP_K);
		check_token(cvy_wire_flat_post_read(&f, &heap, i / 4, i % 4, &other, &token), TOKENS, TOP_K);
		cvy_wire_flat_count(&f, &heap, i / 4, &other);
		cvy_wire_flat_combine_read(&f, &heap, i / 2, i % 2, payload);
	}
	free(heap.at);
}

static void window(uint8_t how)
{
	static const int formats[] = { CVY_WIRE_WIN_16, CVY_WIRE_WIN_INT8, CVY_WIRE_MESH_16, CVY_WIRE_MESH_INT4 };
	struct cvy_wire_win w = { .format = formats[how % 4],
				  .combine_format = CVY_WIRE_WIN_COMBINE + (how >> 2 & 1),
				  .ranks = RANKS,
				  .experts = 2 * (RANKS - (how >> 3 & 1)),
				  .tokens = TOKENS,
				  .hidden = 64,
				  .top_k = TOP_K,
				  .shared_ranks = how >> 3 & 1,
				  .shared_experts = how >> 3 & 1 };
	struct cvy_wire_win_memory m = { .rank = how >> 4 & 1, .parity = how >> 5 & 1 };

	fuzz_check(!cvy_wire_win_layout(&w));
	m.half = image_open(w.half_bytes - (how >> 6 & 1));
	m.state = image_open(CVY_WIRE_WIN_STATE);
	fuzz_take(&in, m.state.at + cvy_wire_win_count_at(&w, m.parity, 0, 0), 128);
	fuzz_take(&in, m.state.at + cvy_wire_win_done_at(&w, m.parity, 0, 0), 64);
	fill(&m.half, w.dispatch_at, 0, w.dispatch_at);
	for (int i = 0; i < 2 * RANKS * TOKENS; i++) {
		struct cvy_wire_win_run run = { i / 4, i / 2 % 2 };

		check_token(cvy_wire_win_read(&w, &m, &run, i % 2, &token), TOKENS, w.choices);
		check_token(cvy_wire_win_combine_read(&w, &m, i / 3, i % 3, &token), TOKENS, w.choices);
	}
	free(m.half.at);
	free(m.state.at);
}

static void elastic(uint8_t how)
{
	struct cvy_wire_elastic e = { .ranks = 4, .shared_ranks = how % 3, .experts = 12 };
	struct covey_mask living;
	int32_t *words = malloc(12 * sizeof(*words)), again[12];

	fuzz_check(words);
	fuzz_take(&in, words, 12 * sizeof(*words));
	for (int i = 0; i < 12; i++) /* one byte decides, so that tables are found */
		words[i] = (int8_t)words[i];
	if (!cvy_wire_elastic_read(&e, words, 12, &living)) {
		fuzz_check(!cvy_wire_elastic_write(&e, &living, again));
		fuzz_check(!words[0] || (again[1] == words[1] && again[2] == words[2] && again[3] == words[3]));
	}
	free(words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const systems[])(uint8_t how) = { low_latency, process_group, high_throughput,
							flat,	     window,	    elastic };
	uint8_t system;

	in = (struct fuzz_in){ data, size };
	system = fuzz_byte(&in) % 6;
	systems[system](fuzz_byte(&in));
	return 0;
}
