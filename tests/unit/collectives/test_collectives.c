/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective against an oracle, bit for bit: types, operations, sizes around every boundary of
 * the algorithms, unaligned and in-place buffers, one to eight ranks, shm and tcp. Ranks are threads
 * of one process and join once per test: each test is a long list of operations.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <stdlib.h>

#define ROOM_BYTES ((size_t)(UNDER_TSAN ? 1 : 5) << 20)

static const int dtypes[] = { COVEY_UINT8, COVEY_INT32, COVEY_INT64, COVEY_FLOAT32, COVEY_FLOAT64, COVEY_BFLOAT16 };
static const int redops[] = { COVEY_SUM, COVEY_PROD, COVEY_MAX, COVEY_MIN, COVEY_AVG };
static const int worlds[] = { 1, 2, 3, 4, 5, 8 };
static const int few_worlds[] = { 2, 3, 8 };

struct rig { /* of one rank */
	struct member *m;
	uint8_t *send, *recv, *want;
	uint64_t all, seed; /* mask of the ranks; number of the operation */
};

static void rig_open(struct rig *rig, struct member *m, size_t bytes)
{
	*rig = (struct rig){ .m = m, .all = (1ull << m->n) - 1 };
	rig->send = malloc(bytes + 64);
	rig->recv = malloc(bytes + 64);
	rig->want = malloc(bytes + 64);
}

static void rig_close(struct rig *rig)
{
	free(rig->send);
	free(rig->recv);
	free(rig->want);
}

static void check_result(struct rig *rig, const char *what, int err, const struct covey_result *res, size_t count)
{
	must(!err && !res->status, "rank %d: %s of %zu: %s", rig->m->rank, what, count, covey_strerror(err));
	must(res->mask.word[0] == rig->all && res->size == rig->m->n && res->seq && res->epoch,
	     "rank %d: %s of %zu: mask %llx size %d seq %llu epoch %u", rig->m->rank, what, count,
	     (unsigned long long)res->mask.word[0], res->size, (unsigned long long)res->seq, res->epoch);
}

static void check_bytes(struct rig *rig, const char *what, const uint8_t *at, size_t bytes, size_t count, int dtype)
{
	size_t i = 0;

	if (!memcmp(at, rig->want, bytes))
		return;
	while (at[i] == rig->want[i])
		i++;
	must(0, "rank %d of %d: %s of %zu x type %d: byte %zu is %02x, not %02x", rig->m->rank, rig->m->n, what, count,
	     dtype, i, at[i], rig->want[i]);
}

/* @shift: how far the buffers are from an aligned address; @in_place: the result replaces the input */
static void allreduce(struct rig *rig, size_t count, int dtype, int redop, size_t shift, int in_place)
{
	size_t bytes = count * type_bytes(dtype);
	uint8_t *send = rig->send + shift, *recv = in_place ? send : rig->recv + shift / 2;
	struct covey_result res;
	int err;

	type_input(send, count, dtype, rig->m->rank, ++rig->seed);
	type_fold(rig->want, count, dtype, redop, rig->all, rig->seed);
	recv[bytes] = 0xa5;
	err = covey_allreduce(send, recv, count, dtype, redop, rig->m->group, NULL, &res);
	check_result(rig, "allreduce", err, &res, count);
	check_bytes(rig, in_place ? "allreduce in place" : "allreduce", recv, bytes, count, dtype);
	must(recv[bytes] == 0xa5, "allreduce of %zu writes past the end", count);
	if (in_place)
		return;
	type_input(rig->want, count, dtype, rig->m->rank, rig->seed);
	check_bytes(rig, "input of allreduce", send, bytes, count, dtype);
}

static void broadcast(struct rig *rig, size_t count, int dtype, int root, size_t shift, int in_place)
{
	size_t bytes = count * type_bytes(dtype);
	uint8_t *send = rig->send + shift, *recv = in_place ? send : rig->recv + shift;
	const void *from = rig->m->rank == root || in_place ? send : NULL; /* read on the root only */
	struct covey_result res;
	int err;

	rig->seed++;
	memset(send, 0x11, bytes);
	if (rig->m->rank == root)
		type_input(send, count, dtype, root, rig->seed);
	type_input(rig->want, count, dtype, root, rig->seed);
	err = covey_broadcast(from, recv, count, dtype, root, rig->m->group, NULL, &res);
	check_result(rig, "broadcast", err, &res, count);
	check_bytes(rig, "broadcast", recv, bytes, count, dtype);
}

static void allgather(struct rig *rig, size_t count, int dtype, size_t shift, int in_place)
{
	size_t bytes = count * type_bytes(dtype);
	uint8_t *recv = rig->recv + shift, *send = in_place ? recv + (size_t)rig->m->rank * bytes : rig->send + shift;
	struct covey_result res;
	int err;

	rig->seed++;
	memset(recv, 0x22, bytes * (size_t)rig->m->n);
	type_input(send, count, dtype, rig->m->rank, rig->seed);
	for (int r = 0; r < rig->m->n; r++)
		type_input(rig->want + (size_t)r * bytes, count, dtype, r, rig->seed);
	err = covey_allgather(send, recv, count, dtype, rig->m->group, NULL, &res);
	check_result(rig, "allgather", err, &res, count);
	check_bytes(rig, "allgather", recv, bytes * (size_t)rig->m->n, count, dtype);
}

/* what rank @from sends to rank @to is its input numbered seed * 64 + to */
static void alltoall(struct rig *rig, size_t count, int dtype, size_t shift, int in_place)
{
	size_t bytes = count * type_bytes(dtype);
	uint8_t *send = rig->send + shift, *recv = in_place ? send : rig->recv + shift;
	struct covey_result res;
	int err;

	rig->seed++;
	for (int r = 0; r < rig->m->n; r++) {
		type_input(send + (size_t)r * bytes, count, dtype, rig->m->rank, rig->seed * 64 + (uint64_t)r);
		type_input(rig->want + (size_t)r * bytes, count, dtype, r, rig->seed * 64 + (uint64_t)rig->m->rank);
	}
	err = covey_alltoall(send, recv, count, dtype, rig->m->group, NULL, &res);
	check_result(rig, "alltoall", err, &res, count);
	check_bytes(rig, in_place ? "alltoall in place" : "alltoall", recv, bytes * (size_t)rig->m->n, count, dtype);
}

static void barrier(struct rig *rig)
{
	struct covey_result res;
	int err = covey_barrier(rig->m->group, NULL, &res);

	rig->seed++;
	check_result(rig, "barrier", err, &res, 0);
}

/* How many elements @from sends to @to: zero for some pairs, uneven for all. */
static size_t pair_count(int from, int to, size_t unit)
{
	return (from + 2 * to) % 3 ? (size_t)(from + 1) * unit + (size_t)to : 0;
}

struct blocks {
	size_t sendcounts[16], senddispls[16], recvcounts[16], recvdispls[16];
	size_t recv_end;
};

/* Blocks with gaps between them; received ones lie in descending order of rank. */
static void blocks_plan(struct blocks *b, int rank, int n, size_t unit)
{
	size_t at = 1;

	for (int r = 0; r < n; r++) {
		b->sendcounts[r] = pair_count(rank, r, unit);
		b->senddispls[r] = at;
		at += b->sendcounts[r] + 2;
	}
	at = 3;
	for (int r = n - 1; r >= 0; r--) {
		b->recvcounts[r] = pair_count(r, rank, unit);
		b->recvdispls[r] = at;
		at += b->recvcounts[r] + 1;
	}
	b->recv_end = at;
}

static void alltoallv(struct rig *rig, size_t unit, int dtype)
{
	size_t elem = type_bytes(dtype);
	struct covey_result res;
	struct blocks b;
	int err, rank = rig->m->rank;

	rig->seed++;
	blocks_plan(&b, rank, rig->m->n, unit);
	memset(rig->recv, 0x33, b.recv_end * elem);
	memset(rig->want, 0x33, b.recv_end * elem);
	for (int r = 0; r < rig->m->n; r++) {
		type_input(rig->send + b.senddispls[r] * elem, b.sendcounts[r], dtype, rank,
			   rig->seed * 64 + (uint64_t)r);
		type_input(rig->want + b.recvdispls[r] * elem, b.recvcounts[r], dtype, r,
			   rig->seed * 64 + (uint64_t)rank);
	}
	err = covey_alltoallv(rig->send, b.sendcounts, b.senddispls, rig->recv, b.recvcounts, b.recvdispls, dtype,
			      rig->m->group, NULL, &res);
	check_result(rig, "alltoallv", err, &res, unit);
	check_bytes(rig, "alltoallv", rig->recv, b.recv_end * elem, unit, dtype);
}

/* In place: counts are symmetric, so every block is replaced by one of its size. */
static void alltoallv_in_place(struct rig *rig, size_t unit)
{
	size_t counts[16] = { 0 }, displs[16] = { 0 }, at = 0;
	struct covey_result res;
	int err, rank = rig->m->rank;

	rig->seed++;
	for (int r = 0; r < rig->m->n; r++) {
		counts[r] = (size_t)(r + rank) * unit;
		displs[r] = at;
		type_input(rig->send + at * 4, counts[r], COVEY_INT32, rank, rig->seed * 64 + (uint64_t)r);
		type_input(rig->want + at * 4, counts[r], COVEY_INT32, r, rig->seed * 64 + (uint64_t)rank);
		at += counts[r];
	}
	err = covey_alltoallv(rig->send, counts, displs, rig->send, counts, displs, COVEY_INT32, rig->m->group, NULL,
			      &res);
	check_result(rig, "alltoallv in place", err, &res, unit);
	check_bytes(rig, "alltoallv in place", rig->send, at * 4, unit, COVEY_INT32);
}

/* ---- the lists ---- */

static void every_type(struct rig *rig)
{
	for (size_t d = 0; d < 6; d++) {
		for (size_t o = 0; o < 5; o++)
			for (int in_place = 0; in_place < 2; in_place++) {
				allreduce(rig, 1, dtypes[d], redops[o], 0, in_place);
				allreduce(rig, 1001, dtypes[d], redops[o], (size_t)rig->m->rank % 3, in_place);
				if (in_place == (int)(o + d) % 2)
					allreduce(rig, 9001, dtypes[d], redops[o], 0, in_place);
			}
		for (int in_place = 0; in_place < 2; in_place++) {
			broadcast(rig, 777, dtypes[d], (int)d % rig->m->n, 1, in_place);
			allgather(rig, 777, dtypes[d], 1, in_place);
			alltoall(rig, 777, dtypes[d], 1, in_place);
		}
		alltoallv(rig, 77, dtypes[d]);
	}
}

/* Bytes around: a line's data, one-shot, one and two slots and more; for both slot sizes of the tests. */
static void every_size(struct rig *rig, size_t slot)
{
	const size_t edges[] = { 0, 8, 32, 64, 4096, 32768, 65536, slot, 2 * slot, 5 * slot };
	size_t blocks = (size_t)rig->m->n, most = ROOM_BYTES / blocks - 64;

	for (size_t k = 0; k < sizeof(edges) / sizeof(edges[0]); k++)
		for (int off = -1; off <= 1; off++) {
			size_t bytes = edges[k] + (size_t)off;

			if (bytes > ROOM_BYTES)
				continue;
			/* one of the three for large sizes: the oracle is what takes time */
			if (bytes < 16384 || off == (int)(k + 2) % 3 - 1)
				allreduce(rig, bytes, COVEY_UINT8, COVEY_SUM, 0, off == 0);
			allreduce(rig, bytes / 4, COVEY_FLOAT32, COVEY_SUM, 3, off > 0);
			broadcast(rig, bytes, COVEY_UINT8, (int)k % rig->m->n, 0, off == 0);
			if (bytes > most)
				continue;
			allgather(rig, bytes, COVEY_UINT8, 0, off == 0);
			alltoall(rig, bytes, COVEY_UINT8, 0, off == 0);
			alltoall(rig, bytes / blocks, COVEY_UINT8, 5, off > 0);
			if (bytes * blocks < most / 2)
				alltoallv(rig, bytes, COVEY_UINT8);
		}
	barrier(rig);
}

static void zero_counts(struct rig *rig)
{
	size_t none[16] = { 0 };
	struct covey_result res;

	allreduce(rig, 0, COVEY_FLOAT32, COVEY_SUM, 0, 0);
	broadcast(rig, 0, COVEY_INT64, 0, 0, 0);
	allgather(rig, 0, COVEY_FLOAT32, 0, 0);
	alltoall(rig, 0, COVEY_FLOAT32, 0, 0);
	check_result(rig, "alltoallv of nothing",
		     covey_alltoallv(NULL, none, none, NULL, none, none, COVEY_INT32, rig->m->group, NULL, &res), &res,
		     0);
	check_result(rig, "allreduce of nothing",
		     covey_allreduce(NULL, NULL, 0, COVEY_INT32, COVEY_SUM, rig->m->group, NULL, &res), &res, 0);
	barrier(rig);
	barrier(rig);
}

/* Results that no longer fit a cache; streams of many slots. */
static void megabytes(struct rig *rig)
{
	size_t floats = ROOM_BYTES / 4 - 7;

	allreduce(rig, floats, COVEY_FLOAT32, COVEY_SUM, 0, 0);
	allreduce(rig, floats / 2, COVEY_FLOAT32, COVEY_SUM, 4, 1);
	broadcast(rig, floats, COVEY_FLOAT32, rig->m->n - 1, 0, 0);
	allgather(rig, floats / (size_t)rig->m->n - 3, COVEY_FLOAT32, 0, 1);
	alltoall(rig, floats / (size_t)rig->m->n - 3, COVEY_FLOAT32, 0, 1);
	alltoallv_in_place(rig, floats / (size_t)(rig->m->n * rig->m->n * 2) - 3);
}

static void run_all(struct member *m)
{
	size_t slot = m->config.slot_bytes ? m->config.slot_bytes : 131072;
	struct rig rig;

	rig_open(&rig, m, ROOM_BYTES);
	zero_counts(&rig);
	every_type(&rig);
	every_size(&rig, slot);
	alltoallv_in_place(&rig, 1000);
	megabytes(&rig);
	rig_close(&rig);
}

static void run_short(struct member *m)
{
	struct rig rig;

	rig_open(&rig, m, ROOM_BYTES);
	zero_counts(&rig);
	every_size(&rig, m->config.slot_bytes);
	alltoallv_in_place(&rig, 500);
	rig_close(&rig);
}

/* ---- tests ---- */

TEST_LOOP(collectives_match_the_oracle_over_shm, 0, 6)
{
	struct covey_config config = harness_config("shm", worlds[_i]);

	config.transport = COVEY_TRANSPORT_SHM;
	harness_threads(&config, run_all, NULL);
}

TEST_LOOP(collectives_match_the_oracle_over_tcp, 0, 3)
{
	struct covey_config config = harness_config("tcp", few_worlds[_i]);

	config.transport = COVEY_TRANSPORT_TCP;
	harness_threads(&config, UNDER_TSAN ? run_short : run_all, NULL);
}

/* Many ticks for every operation: the slots are used over and over. */
TEST_LOOP(small_slots_give_the_same_bytes, 0, 6)
{
	struct covey_config config = harness_config("small", few_worlds[_i % 3]);

	config.transport = _i < 3 ? COVEY_TRANSPORT_SHM : COVEY_TRANSPORT_TCP;
	config.slot_bytes = 4096;
	harness_threads(&config, run_short, NULL);
}

/* Half of the ranks claim another host: links of both kinds in one group. */
static void run_mixed(struct member *m)
{
	struct rig rig;

	rig_open(&rig, m, ROOM_BYTES);
	every_size(&rig, 131072);
	rig_close(&rig);
}

TEST(shm_and_tcp_links_mix)
{
	struct covey_config config = harness_config("mixed", 4);

	harness_threads_on(&config, run_mixed, NULL, 2);
}

/* The same operations twice give the same bits, though timing differs. */
static void run_twice(struct member *m)
{
	size_t count = UNDER_TSAN ? 20001 : 300001;
	uint8_t *send = malloc(count * 4), *recv = malloc(count * 4);
	uint64_t first = 0;

	type_input(send, count, COVEY_FLOAT32, m->rank, 99);
	for (int i = 0; i < 8; i++) {
		int err = covey_allreduce(send, recv, count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL);
		uint64_t sum = checksum(recv, count * 4);

		must(!err, "%s", covey_strerror(err));
		must(!i || sum == first, "rank %d: run %d differs from the first", m->rank, i);
		first = sum;
	}
	((uint64_t *)m->arg)[m->rank] = first;
	free(send);
	free(recv);
}

TEST(sums_are_bitwise_equal_from_run_to_run)
{
	struct covey_config config = harness_config("twice", 5);
	uint64_t sums[5] = { 0 };

	harness_threads(&config, run_twice, sums);
	for (int r = 1; r < 5; r++)
		ck_assert_uint_eq(sums[r], sums[0]);
}

/* Rank 1 expects of rank 0 one element more than it sends: rank 1 is told, the others are not, and all go on. */
TEST_RANKS(alltoallv_names_counts_that_do_not_match, 3)
{
	size_t counts[4], displs[4], recvcounts[4];
	int32_t send[64] = { 0 }, recv[64];
	struct covey_error_info info;
	struct covey_result res;
	struct rig rig;
	int err;

	for (int r = 0; r < m->n; r++) {
		counts[r] = recvcounts[r] = 3;
		displs[r] = (size_t)r * 8;
	}
	if (m->rank == 1)
		recvcounts[0] = 4;
	err = covey_alltoallv(send, counts, displs, recv, recvcounts, displs, COVEY_INT32, m->group, NULL, &res);
	must(err == (m->rank == 1 ? COVEY_ERR_MISMATCH : 0) && res.status == err, "rank %d: %s", m->rank,
	     covey_strerror(err));
	covey_last_error(m->group, &info);
	must(m->rank != 1 || (info.err == COVEY_ERR_MISMATCH && info.rank == 0 && strstr(info.cause, "12") &&
			      strstr(info.cause, "16")),
	     "rank %d: %s", m->rank, info.cause);
	rig_open(&rig, m, 1 << 20);
	alltoallv(&rig, 100, COVEY_INT32);
	rig_close(&rig);
}

#define BIG ((size_t)64 << 20)

static void run_big(struct member *m)
{
	size_t count = BIG / 4 - 1;
	float *send = malloc(BIG), *recv = malloc(BIG);
	struct covey_result res;
	int err;

	for (size_t i = 0; i < count; i++)
		send[i] = (float)(i % 1000) * (float)(m->rank + 1);
	err = covey_allreduce(send, recv, count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, &res);
	must(!err, "%s", covey_strerror(err));
	for (size_t i = 0; i < count; i++)
		must(recv[i] == (float)(i % 1000) * 6, "element %zu is %g", i, (double)recv[i]);
	err = covey_broadcast(send, recv, count, COVEY_FLOAT32, 2, m->group, NULL, &res);
	must(!err, "%s", covey_strerror(err));
	for (size_t i = 0; i < count; i++)
		must(recv[i] == (float)(i % 1000) * 3, "element %zu is %g", i, (double)recv[i]);
	free(send);
	free(recv);
}

TEST_LOOP(sixty_four_mebibytes_go_through, 0, UNDER_TSAN ? 0 : 2)
{
	struct covey_config config = harness_config_over(_i, "big", 3);

	harness_threads(&config, run_big, NULL);
}

/* Ranks at different places: a root may run ahead, no further than the slots allow. */
TEST_RANKS_OVER_BOTH(a_stream_of_broadcasts_keeps_its_order, 4)
{
	uint64_t value;

	for (uint64_t i = 0; i < (UNDER_TSAN ? 300 : 3000); i++) {
		int root = (int)(i / 100) % m->n, err;

		value = m->rank == root ? i * 3 + 1 : 0;
		err = covey_broadcast(&value, &value, 1, COVEY_INT64, root, m->group, NULL, NULL);
		must(!err && value == i * 3 + 1, "rank %d: operation %llu gives %llu: %s", m->rank,
		     (unsigned long long)i, (unsigned long long)value, covey_strerror(err));
	}
}

/* Some ranks flush denormals, or round up: the sums are as everywhere, and a call leaves the thread as it was. */
TEST_RANKS_OVER_BOTH(sums_do_not_depend_on_how_a_thread_computes, 3)
{
	const float tiny = 1e-42f, third = 1.0f / 3;
	float in[2] = { tiny, third }, out[2];
	volatile float one = third;
	uint32_t bits[2];

#if defined(__x86_64__)
	unsigned had = __builtin_ia32_stmxcsr();

	if (m->rank)
		__builtin_ia32_ldmxcsr(had | (m->rank == 1 ? 0x8040 : 0x4000));
#endif
	must(!covey_allreduce(in, out, 2, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL), "allreduce");
#if defined(__x86_64__)
	must(m->rank != 2 || one + 1e-9f > third, "rank 2 does not round up any longer");
	__builtin_ia32_ldmxcsr(had);
#endif
	in[0] = tiny + tiny + tiny;
	in[1] = one + one + one;
	memcpy(bits, in, sizeof(bits));
	must(!memcmp(bits, out, sizeof(bits)), "rank %d: %a %a, not %a %a", m->rank, (double)out[0], (double)out[1],
	     (double)in[0], (double)in[1]);
}

HARNESS_MAIN(.name = "collectives/collectives")
