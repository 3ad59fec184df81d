/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of MoeDistributeDispatchV2: counts, and images with shared ranks. */
#include "wire_oracle.h"

#include "wire_win.h"

/* 8 ranks, of which 2 have the shared expert; or 4 that have 2; or none. */
static void small(struct cvy_wire_win *w, struct oracle *o, int seed)
{
	static const int formats[] = { CVY_WIRE_WIN_16,	 CVY_WIRE_WIN_INT8,  CVY_WIRE_WIN_INT4,
				       CVY_WIRE_MESH_16, CVY_WIRE_MESH_INT8, CVY_WIRE_MESH_INT4 };
	static const int shared_ranks[] = { 2, 4, 0 }, shared_experts[] = { 1, 2, 1 };
	struct cvy_wire_routing shape = { .ranks = 8, .top_k = 3, .tokens = 4 };

	*w = (struct cvy_wire_win){ .format = formats[seed % 6],
				    .combine_format = seed & 1 ? CVY_WIRE_WIN_COMBINE_INT8 : 0,
				    .ranks = 8,
				    .tokens = 4,
				    .hidden = 600,
				    .top_k = 3,
				    .shared_ranks = shared_ranks[seed % 3],
				    .shared_experts = shared_experts[seed % 3] };
	shape.experts = w->experts = 2 * (8 - w->shared_ranks);
	ck_assert_int_eq(cvy_wire_win_layout(w), 0);
	oracle_open(o, seed, &shape, &w->slot);
}

/* Where choice @c goes, by the words of the operator's manual. */
static int goes_to(const struct cvy_wire_win *w, const struct oracle *o, int src, int t, int c, int *local)
{
	int any = 0;

	*local = 0;
	if (c < 3) {
		int e = oracle_id(o, src, t, c);

		*local = e & 1;
		return e < 0 ? -1 : w->shared_ranks + e / 2;
	}
	for (int k = 0; k < 3; k++)
		any |= oracle_id(o, src, t, k) >= 0;
	if (!any)
		return -1;
	return (c - 3) * (w->shared_ranks / w->shared_experts) + src % (w->shared_ranks / w->shared_experts);
}

TEST(shared_experts_come_after_the_others)
{
	static const int32_t ids[] = { 5, -1, 0, -1, -1, -1 };
	struct cvy_wire_source source[8] = { [5] = { .tokens = 2, .experts = ids } };
	struct cvy_wire_routing routing = { .ranks = 8, .experts = 8, .top_k = 3, .tokens = 4, .source = source };
	struct cvy_wire_win w = { .format = CVY_WIRE_WIN_16,
				  .ranks = 8,
				  .experts = 8,
				  .tokens = 4,
				  .hidden = 64,
				  .top_k = 3,
				  .shared_ranks = 4,
				  .shared_experts = 2 };
	struct cvy_wire_win_owner owner;

	ck_assert_int_eq(cvy_wire_win_layout(&w), 0);
	owner = cvy_wire_win_owner(&w, &routing, 5, 0, 0);
	ck_assert_int_eq(owner.rank, 6);
	ck_assert_int_eq(owner.local, 1);
	ck_assert_int_eq(cvy_wire_win_owner(&w, &routing, 5, 0, 1).rank, -1);
	ck_assert_int_eq(cvy_wire_win_owner(&w, &routing, 5, 0, 3).rank, 1); /* 0 * 2 + 5 % 2 */
	ck_assert_int_eq(cvy_wire_win_owner(&w, &routing, 5, 0, 4).rank, 3); /* 1 * 2 + 5 % 2 */
	ck_assert_int_eq(cvy_wire_win_owner(&w, &routing, 5, 1, 3).rank, -1);
	ck_assert_uint_eq(cvy_wire_win_rows(&w, 1), 16); /* 4 * 8 * 2 / 4 */
	ck_assert_uint_eq(cvy_wire_win_rows(&w, 4), 64); /* 4 * 8 * 2 experts */
}

TEST_LOOP(counts_are_prefixes_by_expert_then_source, 0, 12)
{
	struct cvy_wire_win w;
	struct oracle o;

	small(&w, &o, _i);
	for (int rank = 0; rank < 8; rank++) {
		int locals = cvy_wire_win_local(&w, rank), n = 0;
		int64_t nums[2], ends_by_expert[2];
		int32_t ends[16];

		ck_assert_int_eq(locals, rank < w.shared_ranks ? 1 : 2);
		ck_assert_int_eq(cvy_wire_win_recv_counts(&w, &o.routing, rank, ends), 0);
		ck_assert_int_eq(cvy_wire_win_token_nums(&w, &o.routing, rank, 1, nums), 0);
		ck_assert_int_eq(cvy_wire_win_token_nums(&w, &o.routing, rank, 0, ends_by_expert), 0);
		for (int e = 0; e < locals; e++) {
			int first = n;

			for (int src = 0; src < 8; src++) {
				for (int i = 0; i < o.source[src].tokens * w.choices; i++) {
					int local, to = goes_to(&w, &o, src, i / w.choices, i % w.choices, &local);

					n += to == rank && local == e;
				}
				ck_assert_int_eq(ends[e * 8 + src], n);
			}
			ck_assert_int_eq(nums[e], n - first);
			ck_assert_int_eq(ends_by_expert[e], n);
		}
		ck_assert_uint_le((size_t)n, cvy_wire_win_rows(&w, rank));
	}
	ck_refused(cvy_wire_win_token_nums(&w, &o.routing, 0, 2, &(int64_t){ 0 }), "type is 2: it must be from 0 to 1");
	ck_refused(cvy_wire_win_recv_counts(&w, &o.routing, 8, &(int32_t){ 0 }), "the rank is 8");
	oracle_close(&o);
}

static void check_run(const struct cvy_wire_win *w, const struct oracle *o, const struct cvy_wire_win_memory *m,
		      const struct cvy_wire_win_run *run)
{
	uint8_t x[1200], scale[4];
	struct cvy_wire_token got = { .payload = x, .scales = scale };
	int n = 0, count;

	for (int i = 0; i < o->source[run->src].tokens * w->choices; i++) {
		int t = i / w->choices, local, to = goes_to(w, o, run->src, t, i % w->choices, &local);

		if (to != m->rank || local != run->local)
			continue;
		ck_assert_int_eq(cvy_wire_win_read(w, m, run, n++, &got), 0);
		ck_assert_int_eq(got.token, t);
		ck_assert_int_eq(got.choice, i % w->choices);
		ck_assert_mem_eq(x, oracle_payload(o, run->src, t), w->slot.part[CVY_WIRE_PAYLOAD].bytes);
		ck_assert_mem_eq(scale, oracle_scales(o, run->src, t), 4);
	}
	ck_assert_int_eq(cvy_wire_win_count(w, m, run, &count), 0);
	ck_assert_int_eq(count, n);
}

static struct cvy_wire_win_memory memory_open(const struct cvy_wire_win *w, int parity)
{
	return (struct cvy_wire_win_memory){ .parity = parity,
					     .half = image_open(w->half_bytes),
					     .state = image_open(CVY_WIRE_WIN_STATE) };
}

static void memory_close(struct cvy_wire_win_memory *m)
{
	image_close(&m->half);
	image_close(&m->state);
}

TEST_LOOP(dispatch_images_give_the_tokens_back, 0, 12)
{
	struct cvy_wire_win_run run;
	struct cvy_wire_win_memory m;
	struct cvy_wire_win w;
	struct oracle o;

	small(&w, &o, _i);
	for (int rank = 0; rank < 8; rank++) {
		m = memory_open(&w, _i & 1);
		m.rank = rank;
		ck_assert_int_eq(cvy_wire_win_write(&w, &o.routing, &m), 0);
		for (run.local = 0; run.local < cvy_wire_win_local(&w, rank); run.local++)
			for (run.src = 0; run.src < 8; run.src++)
				check_run(&w, &o, &m, &run);
		memory_close(&m);
	}
	oracle_close(&o);
}

TEST_LOOP(combine_images_give_the_rows_back, 0, 12)
{
	uint8_t payload[4 * 5 * 1200], scales[4 * 5 * 150], x[1200], s[150];
	struct cvy_wire_token got = { .payload = x, .scales = s };
	struct cvy_wire_win_rows rows = { payload, scales };
	struct cvy_wire_win_memory m;
	struct cvy_wire_win w;
	struct oracle o;

	small(&w, &o, _i);
	m = memory_open(&w, _i & 1);
	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = scales[i % sizeof(scales)] = (uint8_t)oracle_draw(256);
	m.rank = _i % 8;
	ck_assert_int_eq(cvy_wire_win_combine_write(&w, &o.routing, &rows, &m), 0);
	for (int i = 0; i < 4 * w.choices; i++) {
		size_t p = w.row.part[CVY_WIRE_PAYLOAD].bytes, q = w.row.part[CVY_WIRE_SCALE].bytes;
		int local, there = i / w.choices < o.source[m.rank].tokens &&
				   goes_to(&w, &o, m.rank, i / w.choices, i % w.choices, &local) >= 0;

		ck_assert_int_eq(cvy_wire_win_combine_read(&w, &m, i / w.choices, i % w.choices, &got),
				 there ? 0 : COVEY_ERR_AGAIN);
		if (!there)
			continue;
		ck_assert_mem_eq(x, payload + (size_t)i * p, p);
		ck_assert_mem_eq(s, scales + (size_t)i * q, q);
	}
	memory_close(&m);
	oracle_close(&o);
}

TEST(silence_and_wrong_words_are_told_apart)
{
	const struct cvy_wire_win_run run = { 1, 3 };
	struct cvy_wire_token got = { .token = 0 };
	struct cvy_wire_win_memory m;
	struct cvy_wire_win w;
	struct oracle o;
	uint8_t *word, *slot;
	int n;

	small(&w, &o, 0);
	m = memory_open(&w, 1);
	m.rank = 5;
	ck_assert_int_eq(cvy_wire_win_count(&w, &m, &run, &n), COVEY_ERR_AGAIN);
	word = m.state.at + cvy_wire_win_count_at(&w, 1, 1, 3);
	cvy_wire_put32(word, CVY_WIRE_ONE);
	cvy_wire_put32(word + 4, 5);
	ck_refused(cvy_wire_win_count(&w, &m, &run, &n), "the count of a run is 5: it must be from 0 to 4");
	cvy_wire_put32(word + 4, 4);
	slot = m.half.at + cvy_wire_win_run_at(&w, 5, 1, 3) + 2 * w.slot.bytes + w.slot.part[CVY_WIRE_META].at;
	ck_refused(cvy_wire_win_read(&w, &m, &run, 2, &got), "the rank in a triplet is 0: it must be from 3 to 3");
	cvy_wire_put32(slot, 3);
	cvy_wire_put32(slot + 4, 4);
	ck_refused(cvy_wire_win_read(&w, &m, &run, 2, &got), "the token in a triplet is 4");
	cvy_wire_put32(slot + 4, 3);
	cvy_wire_put32(slot + 8, 4);
	ck_refused(cvy_wire_win_read(&w, &m, &run, 2, &got), "the choice in a triplet is 4: it must be from 0 to 3");
	cvy_wire_put32(slot + 8, 3);
	ck_assert_int_eq(cvy_wire_win_read(&w, &m, &run, 2, &got), 0);
	m.rank = 1; /* a shared rank has one expert */
	ck_refused(cvy_wire_win_count(&w, &m, &run, &n), "the local expert is 1: it must be from 0 to 0");
	m.parity = 2;
	ck_refused(cvy_wire_win_count(&w, &m, &run, &n), "parity is 2");
	memory_close(&m);
	oracle_close(&o);
}

TEST_LOOP(any_bytes_do_no_harm, 0, 22)
{
	uint8_t x[1200], s[150];
	struct cvy_wire_token got = { .payload = x, .scales = s };
	struct cvy_wire_win_memory m;
	struct cvy_wire_win w;
	struct oracle o;
	int n;

	small(&w, &o, _i);
	m = memory_open(&w, 0);
	m.rank = 7;
	ck_assert_int_eq(cvy_wire_win_write(&w, &o.routing, &m), 0);
	image_spoil(&m.half, 10 * (_i % 11));
	image_spoil(&m.state, 10 * (_i % 11));
	for (int i = 0; i < 500; i++) {
		struct cvy_wire_win_run run = { (int)oracle_draw(4) - 1, (int)oracle_draw(10) - 1 };
		int a = (int)oracle_draw(7) - 1, b = (int)oracle_draw(7) - 1;

		m.rank = (int)oracle_draw(10) - 1;
		m.parity = (int)oracle_draw(2);
		cvy_wire_win_count(&w, &m, &run, &n);
		cvy_wire_win_read(&w, &m, &run, a, &got);
		cvy_wire_win_combine_read(&w, &m, a, b, &got);
	}
	memory_close(&m);
	oracle_close(&o);
}

SUITE_MAIN(.name = "golden/wire_win_image")
