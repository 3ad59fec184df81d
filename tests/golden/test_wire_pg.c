/* SPDX-License-Identifier: Apache-2.0 */
/* The process group: chunks, regions and slots of messages. */
#include "wire_oracle.h"

#include "wire_pg.h"

static struct cvy_wire_pg group(int ranks, int kind)
{
	struct cvy_wire_pg pg = { .ranks = ranks, .kind = kind };

	ck_assert_int_eq(cvy_wire_pg_layout(&pg), 0);
	return pg;
}

TEST(chunks_are_a_buffer_shared_by_the_ranks)
{
	struct cvy_wire_pg eight = group(8, CVY_WIRE_PG_SAME), most = group(64, CVY_WIRE_PG_EACH);

	ck_assert_uint_eq(eight.chunk, 2097144);
	ck_assert_uint_eq(most.chunk, 262136);
	ck_assert_uint_eq(group(1, CVY_WIRE_PG_SAME).chunk, 16777208);
	ck_assert_uint_eq(cvy_wire_pg_steps(&eight, (size_t)64 << 20), 33);
	ck_assert_uint_eq(cvy_wire_pg_steps(&eight, 2097144), 1);
	ck_assert_uint_eq(cvy_wire_pg_steps(&eight, 0), 0);
	for (int ranks = 1; ranks <= 64; ranks++)
		ck_assert_uint_lt((size_t)ranks * group(ranks, CVY_WIRE_PG_SAME).chunk, CVY_WIRE_PG_BUFFER);
	ck_assert_uint_eq(eight.buffers_bytes, 67108864);
	ck_assert_uint_eq(eight.sync_bytes, 256);
}

TEST(pieces_lie_by_rank)
{
	struct cvy_wire_pg same = group(8, CVY_WIRE_PG_SAME), each = group(8, CVY_WIRE_PG_EACH);

	ck_assert_uint_eq(cvy_wire_pg_to(&same, 3), 6291432);
	ck_assert_uint_eq(cvy_wire_pg_to(&each, 3), 6291432);
	ck_assert_uint_eq(cvy_wire_pg_from(&same, 5), 0);
	ck_assert_uint_eq(cvy_wire_pg_from(&each, 5), 10485720);
	ck_assert_int_eq(cvy_wire_pg_parity(6), 0);
	ck_assert_int_eq(cvy_wire_pg_parity(7), 1);
}

TEST(bad_shapes_are_refused)
{
	struct cvy_wire_pg pg = { .ranks = 65 };

	ck_refused(cvy_wire_pg_layout(&pg), "ranks is 65: it must be from 1 to 64");
	pg = (struct cvy_wire_pg){ .ranks = 2, .kind = 2 };
	ck_refused(cvy_wire_pg_layout(&pg), "kind is 2");
}

static void check_slots(uint64_t seq, size_t bytes, int first, int count)
{
	struct cvy_wire_pg_slots s = { -1, -1 };

	ck_assert_int_eq(cvy_wire_pg_slots(NULL, seq, bytes, &s), 0);
	ck_assert_int_eq(s.first, first);
	ck_assert_int_eq(s.count, count);
}

TEST(messages_take_adjacent_slots)
{
	struct cvy_wire_pg_slots s;

	check_slots(0, 1, 0, 1);
	check_slots(0, 65536, 0, 1);
	check_slots(0, 65537, 0, 2);
	check_slots(255, 65536, 255, 1);
	check_slots(255, 65537, 0, 2); /* it would go on at the other end */
	check_slots(256, 1, 0, 1);
	check_slots(300, 65536 * 10, 44, 10);
	check_slots(1, (size_t)16 << 20, 0, 256);
	check_slots(0, (size_t)16 << 20, 0, 256);
	check_slots(7, 0, 7, 0);
	ck_refused(cvy_wire_pg_slots(NULL, 0, ((size_t)16 << 20) + 1, &s),
		   "16777217 bytes: all slots together have 16777216");
}

TEST_LOOP(steps_are_read_as_they_were_written, 0, 6)
{
	enum { RANKS = 5 };
	struct cvy_wire_pg pg = group(RANKS, _i & 1 ? CVY_WIRE_PG_EACH : CVY_WIRE_PG_SAME);
	struct cvy_wire_pg_memory memory = { image_open(CVY_WIRE_PG_BUFFER), image_open(pg.sync_bytes) };
	const uint8_t *send[RANKS];
	size_t bytes = 1 + (size_t)_i * 1000;
	uint8_t piece[8192];

	oracle_seed(_i);
	for (int r = 0; r < RANKS; r++) {
		uint8_t *b = calloc(1, CVY_WIRE_PG_BUFFER);

		for (size_t i = 0; i < CVY_WIRE_PG_BUFFER; i += 61) /* cheap, and different in each piece */
			b[i] = (uint8_t)oracle_draw(256);
		send[r] = b;
	}
	ck_assert_int_eq(cvy_wire_pg_read(&pg, &memory, 1, bytes, piece), COVEY_ERR_AGAIN);
	for (int rank = 0; rank < RANKS; rank++) {
		ck_assert_int_eq(cvy_wire_pg_write(&pg, send, bytes, rank, &memory), 0);
		for (int src = 0; src < RANKS; src++) {
			ck_assert_int_eq(cvy_wire_pg_read(&pg, &memory, src, bytes, piece), 0);
			ck_assert_mem_eq(piece, send[src] + cvy_wire_pg_from(&pg, rank), bytes);
		}
	}
	for (int r = 0; r < RANKS; r++)
		free((void *)send[r]);
	image_close(&memory.buffer);
	image_close(&memory.sync);
}

TEST(wrong_words_are_refused)
{
	struct cvy_wire_pg pg = group(2, CVY_WIRE_PG_SAME);
	struct cvy_wire_pg_memory memory = { image_open(2 * pg.chunk), image_open(pg.sync_bytes) };
	uint8_t piece[8];

	cvy_wire_put32(memory.sync.at + 4, 2);
	ck_refused(cvy_wire_pg_read(&pg, &memory, 1, 8, piece), "the sync word of rank 1 is 2: it must be 0 or 1");
	ck_refused(cvy_wire_pg_read(&pg, &memory, 2, 8, piece), "the rank is 2");
	ck_refused(cvy_wire_pg_read(&pg, &memory, 0, pg.chunk + 1, piece), "with 2 ranks it has at most 8388600");
	memory.buffer.bytes--;
	ck_refused(cvy_wire_pg_read(&pg, &memory, 0, 8, piece), "the image of a buffer has");
	image_close(&memory.buffer);
	image_close(&memory.sync);
}

TEST(messages_are_read_as_they_were_written)
{
	struct cvy_wire_image region = image_open(CVY_WIRE_PG_BUFFER);
	uint8_t *message = malloc(150000), *back = malloc(150000);

	oracle_seed(7);
	for (uint64_t seq = 250; seq < 260; seq++) {
		size_t bytes = oracle_draw(150000);

		for (size_t i = 0; i < bytes; i++)
			message[i] = (uint8_t)oracle_draw(256);
		ck_assert_int_eq(cvy_wire_pg_message_write(NULL, seq, message, bytes, &region), 0);
		ck_assert_int_eq(cvy_wire_pg_message_read(NULL, seq, &region, back, bytes), 0);
		ck_assert_mem_eq(message, back, bytes);
	}
	region.bytes = 65536;
	ck_refused(cvy_wire_pg_message_read(NULL, 0, &region, back, 1),
		   "a region of slots has 65536 bytes: it must have 16777216");
	image_close(&region);
	free(message);
	free(back);
}

SUITE_MAIN(.name = "golden/wire_pg")
