/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency kernels' protocol on the strict adapter: messages by RDMA WRITE, counts by masked add of 32 bits, on
 * the queue that the wire book chooses. The receiver reads as soon as a count is there, while other entries are under
 * way: data come first only because both are in one queue. In the end memory is the book's image, byte for byte.
 */
#include "pairs.h"
#include "wire_ll.h"
#include "wire_oracle.h"

enum { MOST_RANKS = 4, LOCAL = 3, TOP_K = 3, TOKENS = 4, HIDDEN = 512 };

static struct group {
	struct cvy_wire_ll ll;
	struct oracle o;
	struct cvy_errbox *box;
	struct cvy_nic *nic;
	struct cvy_region *region[MOST_RANKS];
	struct cvy_wire_image memory[MOST_RANKS];
	struct cvy_queue_pair *pair[MOST_RANKS][CVY_WIRE_LL_QUEUES]; /* those that are used; NULL: of none */
	struct cvy_queue queue[MOST_RANKS][CVY_WIRE_LL_QUEUES];
	int64_t ticket[MOST_RANKS][CVY_WIRE_LL_QUEUES];
	uint64_t abort;
} g;

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

/* libmlx5 itself loses an address handle whose creation the kernel refused. */
const char *__lsan_default_suppressions(void)
{
	return "leak:libmlx5.so";
}

static void connect_ranks(int a, int b, int local)
{
	const int end[2] = { a, b }, queue[2] = { cvy_wire_ll_queue(NULL, g.ll.ranks, b, local),
						  cvy_wire_ll_queue(NULL, g.ll.ranks, a, local) };
	struct cvy_pair_args args = { .mode = CVY_PAIR_DEVX,
				      .depth = 64,
				      .wait_ticks = PAIRS_WAIT_NS,
				      .abort = &g.abort,
				      .timeout = 8,
				      .retry = 1 };
	struct cvy_pair_name name[2];

	for (int i = 0; i < 2; i++) {
		args.local = args.window = g.region[end[i]];
		ck_assert_int_eq(cvy_pair_open(g.nic, &args, &g.pair[end[i]][queue[i]]), 0);
		cvy_pair_name(g.pair[end[i]][queue[i]], &name[i]);
	}
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(cvy_pair_connect(g.pair[end[i]][queue[i]], &name[!i]), 0);
		cvy_pair_queue(g.pair[end[i]][queue[i]], &g.queue[end[i]][queue[i]]);
	}
}

static void group_open(int ranks, int seed)
{
	struct cvy_wire_routing shape = { .ranks = ranks, .experts = ranks * LOCAL, .top_k = TOP_K, .tokens = TOKENS };
	struct cvy_nic_args nic = { 0 };

	memset(&g, 0, sizeof(g));
	g.ll = (struct cvy_wire_ll){
		.ranks = ranks, .experts = ranks * LOCAL, .tokens = TOKENS, .hidden = HIDDEN, .fp8 = seed & 1
	};
	ck_assert_int_eq(cvy_wire_ll_layout(&g.ll), 0);
	oracle_open(&g.o, seed, &shape, &g.ll.message);
	nic.box = g.box = cvy_errbox_new();
	ck_assert_int_eq(cvy_nic_open(&nic, &g.nic), 0);
	for (int r = 0; r < ranks; r++) {
		g.memory[r].bytes = cvy_round_up(g.ll.total_bytes, 4096);
		g.memory[r].at = aligned_alloc(4096, g.memory[r].bytes);
		memset(g.memory[r].at, 0, g.memory[r].bytes);
		ck_assert_int_eq(cvy_region_open(g.nic, g.memory[r].at, g.memory[r].bytes, -1, &g.region[r]), 0);
	}
	for (int a = 0; a < ranks; a++)
		for (int b = a + 1; b < ranks; b++)
			for (int e = 0; e < LOCAL; e++)
				connect_ranks(a, b, e);
}

static void group_close(void)
{
	struct softmlx5_stats s;

	softmlx5_stats(&s);
	ck_assert_msg(softmlx5_found() == 0, "%s", s.last);
	for (int r = 0; r < g.ll.ranks; r++)
		for (int q = 0; q < CVY_WIRE_LL_QUEUES; q++)
			cvy_pair_close(g.pair[r][q]);
	for (int r = 0; r < g.ll.ranks; r++) {
		cvy_region_close(g.region[r]);
		image_close(&g.memory[r]);
	}
	cvy_nic_close(g.nic);
	cvy_errbox_free(g.box);
	oracle_close(&g.o);
}

/* The same offset of all memories is the same place: the address of a peer's is its base plus the offset. */
static void send_bytes(int src, int dst, int local, size_t from, size_t to, size_t bytes)
{
	int q = cvy_wire_ll_queue(NULL, g.ll.ranks, dst, local);

	if (src == dst) {
		memcpy(g.memory[dst].at + to, g.memory[src].at + from, bytes);
		return;
	}
	g.ticket[src][q] = cvy_queue_put(&g.queue[src][q], from, to, bytes);
	ck_assert_int_gt(g.ticket[src][q], 0);
}

static void send_word(int src, int dst, int local, size_t to, uint32_t value)
{
	int q = cvy_wire_ll_queue(NULL, g.ll.ranks, dst, local);

	if (src == dst) {
		cvy_wire_put32(g.memory[dst].at + to, cvy_wire_get32(g.memory[dst].at + to) + value);
		return;
	}
	g.ticket[src][q] = cvy_queue_add32(&g.queue[src][q], to, value);
	ck_assert_int_gt(g.ticket[src][q], 0);
	cvy_queue_flush(&g.queue[src][q]);
}

static void dispatch(int src)
{
	const struct cvy_wire_ll *ll = &g.ll;
	size_t staged = ll->send_data_at;
	int sent[MOST_RANKS * LOCAL] = { 0 };

	for (int i = 0; i < g.o.source[src].tokens * TOP_K; i++, staged += ll->message.bytes) {
		const uint32_t header[4] = { (uint32_t)(i / TOP_K) };
		int e = oracle_id(&g.o, src, i / TOP_K, i % TOP_K);

		if (e < 0)
			continue;
		cvy_wire_token_write(&ll->message, &g.o.source[src], i / TOP_K, g.memory[src].at + staged);
		cvy_wire_part_write(&ll->message, g.memory[src].at + staged, CVY_WIRE_META, header);
		send_bytes(src, e / LOCAL, e % LOCAL, staged,
			   ll->recv_data_at + cvy_wire_ll_message_at(ll, e % LOCAL, src, sent[e]++), ll->message.bytes);
	}
	for (int e = 0; e < ll->experts; e++)
		send_word(src, e / LOCAL, e % LOCAL, ll->recv_words_at + cvy_wire_ll_count_at(ll, e % LOCAL, src),
			  (uint32_t)cvy_wire_count_encode(sent[e]));
}

/* Tokens of a run, at the moment when its count is there. */
static void receive_run(int dst, int local, int src)
{
	uint8_t payload[2 * HIDDEN];
	uint64_t since = cvy_q_ticks();
	int count, n = 0, err;

	while ((err = cvy_wire_ll_count(&g.ll, &g.memory[dst], local, src, &count)) == COVEY_ERR_AGAIN) {
		ck_assert_uint_lt(cvy_q_ticks() - since, PAIRS_WAIT_NS);
		cvy_q_pause();
	}
	ck_assert_int_eq(err, 0);
	for (int i = 0; i < g.o.source[src].tokens * TOP_K; i++) {
		struct cvy_wire_token got = { .payload = payload };

		if (oracle_id(&g.o, src, i / TOP_K, i % TOP_K) != dst * LOCAL + local)
			continue;
		ck_assert_int_eq(cvy_wire_ll_read(&g.ll, &g.memory[dst], local, src, n++, &got), 0);
		ck_assert_int_eq(got.token, i / TOP_K);
		ck_assert_mem_eq(payload, oracle_payload(&g.o, src, i / TOP_K),
				 g.ll.message.part[CVY_WIRE_PAYLOAD].bytes);
	}
	ck_assert_int_eq(count, n);
}

static void check_image(int rank)
{
	struct cvy_wire_image half = image_open(g.ll.half_bytes);

	ck_assert_int_eq(cvy_wire_ll_write(&g.ll, &g.o.routing, rank, &half), 0);
	ck_assert_mem_eq(g.memory[rank].at + g.ll.recv_words_at, half.at + g.ll.recv_words_at, g.ll.words_bytes);
	ck_assert_mem_eq(g.memory[rank].at + g.ll.recv_data_at, half.at + g.ll.recv_data_at, g.ll.data_bytes);
	image_close(&half);
}

static void await_all(void)
{
	for (int r = 0; r < g.ll.ranks; r++)
		for (int q = 0; q < CVY_WIRE_LL_QUEUES; q++)
			if (g.ticket[r][q])
				ck_assert_int_eq(cvy_queue_await(&g.queue[r][q], g.ticket[r][q]), 1);
}

START_TEST(dispatch_leaves_the_image_of_the_book)
{
	struct softmlx5_plan plan = { .seed = (uint64_t)_i + 1, .delay_ns = 100000 };

	group_open(_i % 2 ? 4 : 2, _i);
	softmlx5_plan(&plan);
	for (int src = 0; src < g.ll.ranks; src++)
		dispatch(src);
	for (int dst = 0; dst < g.ll.ranks; dst++)
		for (int run = 0; run < LOCAL * g.ll.ranks; run++)
			receive_run(dst, run / g.ll.ranks, run % g.ll.ranks);
	await_all();
	for (int dst = 0; dst < g.ll.ranks; dst++)
		check_image(dst);
	softmlx5_plan(&(struct softmlx5_plan){ 0 });
	group_close();
}
END_TEST

/* A byte of a row tells its source, its token and its expert apart. */
static uint8_t row_byte(int src, int token, int expert, size_t at)
{
	return (uint8_t)(src * 101 + token * 37 + expert * 11 + (int)at);
}

/* Results of the experts of @owner for @dst. */
static void combine(int owner, int dst)
{
	const struct cvy_wire_ll *ll = &g.ll;
	size_t staged = ll->half_bytes + ll->send_data_at + (size_t)(dst * TOKENS * LOCAL) * ll->row.bytes;

	for (int local = 0; local < LOCAL; local++) {
		int e = owner * LOCAL + local;

		for (int i = 0; i < g.o.source[dst].tokens * TOP_K; i++) {
			if (oracle_id(&g.o, dst, i / TOP_K, i % TOP_K) != e)
				continue;
			for (size_t b = 0; b < ll->row.bytes; b++)
				g.memory[owner].at[staged + b] = row_byte(dst, i / TOP_K, e, b);
			send_bytes(owner, dst, local, staged,
				   ll->half_bytes + ll->recv_data_at + cvy_wire_ll_row_at(ll, e, i / TOP_K),
				   ll->row.bytes);
			staged += ll->row.bytes;
		}
		send_word(owner, dst, local, ll->half_bytes + ll->recv_words_at + cvy_wire_ll_done_at(e), 1);
	}
}

START_TEST(combine_leaves_the_rows_where_the_book_says)
{
	struct cvy_wire_image half;
	uint8_t row[2 * HIDDEN];

	group_open(_i % 2 ? 4 : 2, _i);
	for (int owner = 0; owner < g.ll.ranks; owner++)
		for (int dst = 0; dst < g.ll.ranks; dst++)
			combine(owner, dst);
	await_all();
	for (int dst = 0; dst < g.ll.ranks; dst++) {
		half = (struct cvy_wire_image){ g.memory[dst].at + g.ll.half_bytes, g.ll.half_bytes };
		for (int i = 0; i < g.o.source[dst].tokens * TOP_K; i++) {
			int e = oracle_id(&g.o, dst, i / TOP_K, i % TOP_K);

			if (e < 0)
				continue;
			ck_assert_int_eq(cvy_wire_ll_combine_read(&g.ll, &half, e, i / TOP_K, row), 0);
			for (size_t b = 0; b < sizeof(row); b++)
				ck_assert_uint_eq(row[b], row_byte(dst, i / TOP_K, e, b));
		}
	}
	group_close();
}
END_TEST

int main(void)
{
	const struct oracle_test tests[] = {
		{ dispatch_leaves_the_image_of_the_book, 16 },
		{ combine_leaves_the_rows_where_the_book_says, 4 },
	};

	return oracle_run("softmlx5/wire", tests, sizeof(tests) / sizeof(tests[0]));
}
