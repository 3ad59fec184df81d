/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation x type x reduction x ranks x transport x in place or not x size around every switch of an
 * algorithm x root x alignment, bit for bit against the oracle. Two values of two different columns meet in some case
 * of the set that runs always: it is made by a greedy search from a fixed seed. COVEY_TEST_ALL=1: the whole product.
 *
 * labels: redis matrix
 */
#include "harness.h"
#include "operations/operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static const int dtypes[] = { COVEY_INT8,   COVEY_UINT8,   COVEY_INT16,	   COVEY_INT32,	  COVEY_UINT32, COVEY_INT64,
			      COVEY_UINT64, COVEY_FLOAT16, COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_FLOAT64 };
static const int worlds[] = { 1, 2, 3, 4, 5, 8, 13 };
/* around nothing, a line, one and two shots, one slot, many */
static const size_t sizes[] = { 0, 8, 32, 40, 1000, 16376, 16384, 16392, 32768, 32776, 65544, 131072, 131080, 300008 };

#define N(array) (int)(sizeof(array) / sizeof((array)[0]))
#define TRANSPORTS 5 /* shm, tcp, and both, when the ranks claim two hosts by turns, two or four of neighbours */
#define SLOTS 2	     /* small and as by default */

/* Columns of a case, each an index. */
enum column { OP, DTYPE, REDOP, WORLD, TRANSPORT, SLOT, IN_PLACE, SIZE, ROOT, SHIFT, COLUMNS };
static const int values[COLUMNS] = { OP_SENDRECV, N(dtypes), 5, N(worlds), TRANSPORTS, SLOTS, 2, N(sizes), 2, 2 };
#define ROUNDS 3
#define MOST 14 /* values of a column */

struct one {
	uint8_t at[COLUMNS];
};

static struct {
	struct one *one;
	int n, room;
} cases;

static void add_case(const struct one *one)
{
	if (cases.n == cases.room) {
		cases.room = cases.room ? 2 * cases.room : 1024;
		cases.one = realloc(cases.one, (size_t)cases.room * sizeof(*cases.one));
	}
	cases.one[cases.n++] = *one;
}

/* An operation has one value in each column that says nothing of it. */
static void normal(struct one *one)
{
	const struct operation *op = &operation_table[one->at[OP]];

	if (!op->reduces)
		one->at[REDOP] = 0;
	if (!op->rooted)
		one->at[ROOT] = 0;
	if (op->no_data)
		one->at[DTYPE] = one->at[IN_PLACE] = one->at[SIZE] = one->at[SHIFT] = 0;
}

/* ---- pairs ---- */

static uint8_t met[COLUMNS][MOST][COLUMNS][MOST];

static int news(const struct one *one, int mark)
{
	int n = 0;

	for (int a = 0; a < COLUMNS; a++)
		for (int b = a + 1; b < COLUMNS; b++) {
			uint8_t *seen = &met[a][one->at[a]][b][one->at[b]];

			n += !*seen;
			if (mark)
				*seen = 1;
		}
	return n;
}

/* A case that holds the given pair, and of many such the one with most pairs that are new. */
static struct one best_with(int a, int va, int b, int vb, uint64_t *random)
{
	struct one best = { { 0 } };
	int most = -1;

	for (int try = 0; try < 40; try++) {
		struct one one;
		int n;

		for (int c = 0; c < COLUMNS; c++)
			one.at[c] = (uint8_t)(harness_random(random) % (uint64_t)values[c]);
		one.at[a] = (uint8_t)va;
		one.at[b] = (uint8_t)vb;
		normal(&one);
		n = one.at[a] == va && one.at[b] == vb ? news(&one, 0) : -1;
		if (n > most) {
			most = n;
			best = one;
		}
	}
	return best;
}

static void make_pairs(uint64_t random)
{
	for (int a = 0; a < COLUMNS; a++)
		for (int va = 0; va < values[a]; va++)
			for (int b = a + 1; b < COLUMNS; b++)
				for (int vb = 0; vb < values[b]; vb++) {
					struct one one;

					if (met[a][va][b][vb])
						continue;
					one = best_with(a, va, b, vb, &random);
					if (one.at[a] == va && one.at[b] == vb) { /* else it cannot be */
						news(&one, 1);
						add_case(&one);
					}
				}
}

static void make_all(void)
{
	struct one one = { { 0 } };
	int c = 0;

	while (c < COLUMNS) {
		struct one same = one;

		normal(&same);
		if (!memcmp(&same, &one, sizeof(one)))
			add_case(&one);
		for (c = 0; c < COLUMNS && ++one.at[c] == values[c]; c++)
			one.at[c] = 0;
	}
}

static void make_cases(void)
{
	if (getenv("COVEY_TEST_ALL"))
		make_all();
	else
		for (uint64_t i = 0; i < ROUNDS; i++) { /* each meets all pairs, with other company */
			memset(met, 0, sizeof(met));
			make_pairs(20 + i);
		}
}

/* ---- one case on one rank ---- */

#define ROOM ((size_t)13 * 300100 + 4096)

struct rig {
	struct member *m;
	const struct one *one;
	const struct operation *op;
	uint8_t *memory[2], *send, *recv, *want;
	size_t count, bytes, out; /* elements and bytes of a block; bytes of the result */
	int dtype, redop, root, n, rank, number;
	uint64_t seed;
	size_t counts[2][16], displs[2][16]; /* sent, received */
};

static void input_of(const struct rig *rig, uint8_t *to, int from, int block, size_t count)
{
	type_input(to, count, rig->dtype, from, rig->seed * 64 + (uint64_t)block);
}

static void blocks_of(const struct rig *rig, uint8_t *to, int from)
{
	for (int r = 0; r < rig->n; r++)
		input_of(rig, to + (size_t)r * rig->bytes, from, r, rig->count);
}

/* what @from sends to @to with v; in place as much as comes back */
static size_t vcount(const struct rig *rig, int from, int to)
{
	int a = from, b = to;

	if (!rig->op->send_blocks)
		return a % 3 == 1 ? rig->count / 3 : rig->count - (rig->count ? (size_t)a % rig->count : 0);
	if (rig->one->at[IN_PLACE] && a > b) {
		a = to;
		b = from;
	}
	return (a + 2 * b) % 4 == 1 ? 0 : rig->count / (size_t)(1 + (a + b) % 3);
}

/* Blocks with a gap between them; received ones in descending order of rank unless they take the place of others. */
static void plan_v(struct rig *rig)
{
	size_t at[2] = { 0, 0 };

	for (int i = 0; i < rig->n; i++)
		for (int recv = 0; recv < 2; recv++) {
			int r = recv && !rig->one->at[IN_PLACE] ? rig->n - 1 - i : i;

			rig->counts[recv][r] = recv ? vcount(rig, r, rig->rank) : vcount(rig, rig->rank, r);
			rig->displs[recv][r] = at[recv];
			at[recv] += rig->counts[recv][r] + (size_t)(i & 1);
		}
	rig->out = at[1] * type_bytes(rig->dtype);
	memset(rig->want, 0x5a, rig->out);
}

static void prepare_v(struct rig *rig)
{
	size_t elem = type_bytes(rig->dtype);

	plan_v(rig);
	if (rig->op->send_blocks && rig->one->at[IN_PLACE])
		rig->recv = rig->send;
	else if (rig->one->at[IN_PLACE])
		rig->send = rig->recv + rig->displs[1][rig->rank] * elem;
	memset(rig->recv, 0x5a, rig->out);
	for (int r = 0; r < rig->n; r++) {
		input_of(rig, rig->want + rig->displs[1][r] * elem, r, rig->op->send_blocks ? rig->rank : 0,
			 rig->counts[1][r]);
		if (rig->op->send_blocks)
			input_of(rig, rig->send + rig->displs[0][r] * elem, rig->rank, r, rig->counts[0][r]);
	}
	if (!rig->op->send_blocks)
		input_of(rig, rig->send, rig->rank, 0, rig->counts[1][rig->rank]);
}

/* Only the root of a rooted operation has a buffer of blocks, which the other may be part of. */
static void place(struct rig *rig)
{
	const struct operation *op = rig->op;
	size_t own = (size_t)rig->rank * rig->bytes;

	if (!rig->one->at[IN_PLACE] || (op->rooted && operation_has_blocks(op) && rig->rank != rig->root))
		return;
	if (op->send_blocks && !op->recv_blocks)
		rig->recv = rig->send + own;
	else if (!op->send_blocks && op->recv_blocks)
		rig->send = rig->recv + own;
	else
		rig->recv = rig->send;
}

static void prepare(struct rig *rig)
{
	const struct operation *op = rig->op;
	int elsewhere = op->rooted && rig->rank != rig->root, to = op->send_blocks ? rig->rank : 0;

	rig->out = op->no_data ? 0 : rig->bytes * (op->recv_blocks ? (size_t)rig->n : 1);
	place(rig);
	if (op->send_blocks && !elsewhere)
		blocks_of(rig, rig->send, rig->rank);
	else if (op->of != OP_OF_ROOT || !elsewhere)
		input_of(rig, rig->send, rig->rank, 0, rig->count);
	if (op->to_root && elsewhere)
		memcpy(rig->want, rig->recv, rig->out); /* untouched */
	else if (op->reduces)
		type_fold(rig->want, rig->count, rig->dtype, rig->redop, (1ull << rig->n) - 1,
			  rig->seed * 64 + (uint64_t)to);
	else if (op->of == OP_OF_ROOT)
		input_of(rig, rig->want, rig->root, to, rig->count);
	else
		for (int r = 0; r < rig->n; r++)
			input_of(rig, rig->want + (size_t)r * rig->bytes, r, to, rig->count);
}

/* Started and waited for on some ranks, in one call on the others. */
static int call(const struct rig *rig, struct covey_result *res)
{
	const struct operation *op = rig->op;
	int elsewhere = op->rooted && rig->rank != rig->root, err;
	struct covey_work *work = NULL;
	struct operation_call call = { .send = elsewhere && op->send_blocks ? NULL : rig->send,
				       .recv = elsewhere && op->recv_blocks ? NULL : rig->recv,
				       .count = op->uneven ? rig->counts[1][rig->rank] : rig->count,
				       .dtype = rig->dtype,
				       .redop = rig->redop,
				       .root = rig->root,
				       .send_counts = rig->counts[0],
				       .send_displs = rig->displs[0],
				       .recv_counts = rig->counts[1],
				       .recv_displs = rig->displs[1],
				       .group = rig->m->group,
				       .result = res };

	if ((rig->number + rig->rank) % 2 == 0)
		return op->call(&call);
	call.work = &work;
	err = op->call(&call);
	if (!err)
		err = covey_work_wait(work, 0, res);
	covey_work_free(work);
	return err;
}

static void check_case(const struct rig *rig, int err, const struct covey_result *res)
{
	const struct one *o = rig->one;
	size_t i = 0;

	must(!err && !res->status && res->mask.word[0] == (1ull << rig->n) - 1 && res->size == rig->n,
	     "rank %d of %d: %s type %d op %d of %zu: %s, mask %llx", rig->rank, rig->n, rig->op->name, rig->dtype,
	     rig->redop, rig->count, covey_strerror(err), (unsigned long long)res->mask.word[0]);
	while (i < rig->out && rig->recv[i] == rig->want[i])
		i++;
	must(i == rig->out,
	     "rank %d of %d: %s type %d op %d of %zu, transport %d slot %d in place %d root %d: byte %zu", rig->rank,
	     rig->n, rig->op->name, rig->dtype, rig->redop, rig->count, o->at[TRANSPORT], o->at[SLOT], o->at[IN_PLACE],
	     rig->root, i);
	must(o->at[IN_PLACE] || rig->recv[rig->out] == 0xa5, "%s of %zu writes past the end", rig->op->name,
	     rig->count);
}

static void run_case(struct rig *rig, const struct one *one)
{
	struct covey_result res = { 0 };
	uint64_t sum;

	rig->one = one;
	rig->op = &operation_table[one->at[OP]];
	rig->dtype = dtypes[one->at[DTYPE]];
	rig->redop = one->at[REDOP];
	rig->root = one->at[ROOT] ? rig->n - 1 : 0;
	rig->count = sizes[one->at[SIZE]] / type_bytes(rig->dtype);
	rig->bytes = rig->count * type_bytes(rig->dtype);
	rig->send = rig->memory[0] + 64 + one->at[SHIFT];
	rig->recv = rig->memory[1] + 64 + 3 * one->at[SHIFT];
	rig->seed = (uint64_t)++rig->number;
	if (rig->op->uneven)
		prepare_v(rig);
	else
		prepare(rig);
	if (!one->at[IN_PLACE])
		rig->recv[rig->out] = 0xa5;
	sum = one->at[IN_PLACE] ? 0 : checksum(rig->send, rig->bytes);
	check_case(rig, call(rig, &res), &res);
	must(one->at[IN_PLACE] || sum == checksum(rig->send, rig->bytes), "%s of %zu overwrites its input",
	     rig->op->name, rig->count);
}

static void run_cases(struct member *m)
{
	const int *which = m->arg; /* world, transport, slot */
	struct rig rig = { .m = m, .n = m->n, .rank = m->rank };

	rig.memory[0] = calloc(1, ROOM);
	rig.memory[1] = calloc(1, ROOM);
	rig.want = calloc(1, ROOM);
	for (int i = 0; i < cases.n; i++)
		if (cases.one[i].at[WORLD] == which[0] && cases.one[i].at[TRANSPORT] == which[1] &&
		    cases.one[i].at[SLOT] == which[2])
			run_case(&rig, &cases.one[i]);
	free(rig.memory[0]);
	free(rig.memory[1]);
	free(rig.want);
	m->no_leave = 1; /* which takes as long as a PING between hosts */
	harness_meet(m);
}

TEST_LOOP(every_pair_of_columns_gives_the_bytes_of_the_oracle, 0, N(worlds) * TRANSPORTS * SLOTS)
{
	int which[3] = { _i % N(worlds), _i / N(worlds) % TRANSPORTS, _i / N(worlds) / TRANSPORTS };
	static const int hosts[TRANSPORTS] = { 0, 0, 2, -2, -4 };
	struct covey_config config = harness_config("matrix", worlds[which[0]]);
	int transport = which[1];

	make_cases();
	if (transport < 2)
		config.transport = transport ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	config.slot_bytes = which[2] ? 0 : 16384;
	harness_threads_on(&config, run_cases, which, hosts[transport]);
	free(cases.one);
}

#define HUGE_COUNT (((size_t)1 << 31) + 77)

static uint8_t *huge(void)
{
	uint8_t *at =
		mmap(NULL, HUGE_COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(at != MAP_FAILED, "no %zu bytes", HUGE_COUNT);
	return at;
}

/* Where a count or an offset of 32 bits would have wrapped. */
static const size_t marks[] = { 0, 1, ((size_t)1 << 31) - 1, (size_t)1 << 31, HUGE_COUNT - 1 };

static void run_huge(struct member *m)
{
	uint8_t *send = huge(), *recv = m->rank == 1 ? huge() : NULL;
	struct covey_result res;
	int err;

	for (int i = 0; i < N(marks); i++)
		send[marks[i]] = (uint8_t)(m->rank + 3 * i + 1);
	err = covey_reduce(send, recv, HUGE_COUNT, COVEY_UINT8, COVEY_SUM, 1, m->group, NULL, &res);
	must(!err, "reduce: %s", covey_strerror(err));
	for (int i = 0; recv && i < N(marks); i++)
		must(recv[marks[i]] == 6 * i + 3, "reduce: byte %zu is %d", marks[i], recv[marks[i]]);
	err = covey_broadcast(send, recv ? recv : send, HUGE_COUNT, COVEY_INT8, 0, m->group, NULL, &res);
	must(!err, "broadcast: %s", covey_strerror(err));
	for (int i = 0; recv && i < N(marks); i++)
		must(recv[marks[i]] == 3 * i + 1, "broadcast: byte %zu is %d", marks[i], recv[marks[i]]);
	munmap(send, HUGE_COUNT);
	if (recv)
		munmap(recv, HUGE_COUNT);
}

TEST_LOOP(counts_past_2_gibibytes_go_through, 0, getenv("COVEY_TEST_ALL") ? 1 : 0)
{
	struct covey_config config = harness_config("huge", 2);

	config.transport = COVEY_TRANSPORT_SHM;
	harness_threads(&config, run_huge, NULL);
}

TEST(all_pairs_that_can_be_are_met)
{
	struct one one = { { 0 } };

	make_pairs(20);
	printf("%d cases\n", cases.n);
	for (int i = 0; i < 20000; i++) {
		static uint64_t random = 7;

		for (int c = 0; c < COLUMNS; c++)
			one.at[c] = (uint8_t)(harness_random(&random) % (uint64_t)values[c]);
		normal(&one);
		ck_assert_int_eq(news(&one, 0), 0);
	}
	free(cases.one);
}

HARNESS_MAIN(.name = "collectives/matrix", .timeout_s = getenv("COVEY_TEST_ALL") ? 3600 : 0)
