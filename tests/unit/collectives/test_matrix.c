/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation x type x reduction x ranks x transport x in place or not x size around every switch of an
 * algorithm x root x alignment, bit for bit against the oracle. Two values of two different columns meet in some case
 * of the set that runs always: it is made by a greedy search from a fixed seed. COVEY_TEST_ALL=1: the whole product.
 *
 * labels: redis matrix
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum op {
	ALLREDUCE,
	REDUCE,
	REDUCE_SCATTER, /* those above reduce */
	BROADCAST,
	ALLGATHER,
	ALLGATHERV,
	GATHER,
	SCATTER,
	ALLTOALL,
	ALLTOALLV,
	OPS
};

static const char *const op_names[OPS] = { "allreduce",	 "reduce", "reduce_scatter", "broadcast", "allgather",
					   "allgatherv", "gather", "scatter",	     "alltoall",  "alltoallv" };
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
static const int values[COLUMNS] = { OPS, N(dtypes), 5, N(worlds), TRANSPORTS, SLOTS, 2, N(sizes), 2, 2 };
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

/* Operations that do not reduce have one reduction, those without a root one root. */
static void normal(struct one *one)
{
	int op = one->at[OP];

	if (op > REDUCE_SCATTER)
		one->at[REDOP] = 0;
	if (op != REDUCE && op != BROADCAST && op != GATHER && op != SCATTER)
		one->at[ROOT] = 0;
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
	uint8_t *memory[2], *send, *recv, *want;
	size_t count, bytes, out; /* elements and bytes of a block; bytes of the result */
	int op, dtype, redop, root, n, rank, number;
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

static void fold_of(const struct rig *rig, int block)
{
	type_fold(rig->want, rig->count, rig->dtype, rig->redop, (1ull << rig->n) - 1,
		  rig->seed * 64 + (uint64_t)block);
}

/* what @from sends to @to with v; in place as much as comes back */
static size_t vcount(const struct rig *rig, int from, int to)
{
	int a = from, b = to;

	if (rig->op == ALLGATHERV)
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
	if (rig->op == ALLTOALLV && rig->one->at[IN_PLACE])
		rig->recv = rig->send;
	else if (rig->one->at[IN_PLACE])
		rig->send = rig->recv + rig->displs[1][rig->rank] * elem;
	memset(rig->recv, 0x5a, rig->out);
	for (int r = 0; r < rig->n; r++) {
		input_of(rig, rig->want + rig->displs[1][r] * elem, r, rig->op == ALLGATHERV ? 0 : rig->rank,
			 rig->counts[1][r]);
		if (rig->op == ALLTOALLV)
			input_of(rig, rig->send + rig->displs[0][r] * elem, rig->rank, r, rig->counts[0][r]);
	}
	if (rig->op == ALLGATHERV)
		input_of(rig, rig->send, rig->rank, 0, rig->counts[1][rig->rank]);
}

static void prepare_reduction(struct rig *rig)
{
	int in_place = rig->one->at[IN_PLACE];

	rig->out = rig->bytes;
	if (rig->op == REDUCE_SCATTER) {
		blocks_of(rig, rig->send, rig->rank);
		if (in_place)
			rig->recv = rig->send + (size_t)rig->rank * rig->bytes;
		fold_of(rig, rig->rank);
		return;
	}
	input_of(rig, rig->send, rig->rank, 0, rig->count);
	if (in_place)
		rig->recv = rig->send;
	if (rig->op == REDUCE && rig->rank != rig->root)
		memcpy(rig->want, rig->recv, rig->bytes); /* untouched */
	else
		fold_of(rig, 0);
}

static void prepare_copies(struct rig *rig)
{
	int in_place = rig->one->at[IN_PLACE], is_root = rig->rank == rig->root;
	size_t own = (size_t)rig->rank * rig->bytes;

	rig->out = rig->op == BROADCAST || rig->op == SCATTER ? rig->bytes : rig->bytes * (size_t)rig->n;
	if (in_place && (rig->op == ALLGATHER || (rig->op == GATHER && is_root)))
		rig->send = rig->recv + own;
	else if (in_place && rig->op == SCATTER && is_root)
		rig->recv = rig->send + own;
	else if (in_place && rig->op != GATHER && rig->op != SCATTER)
		rig->recv = rig->send;
	if (rig->op == ALLTOALL || (rig->op == SCATTER && is_root))
		blocks_of(rig, rig->send, rig->rank);
	else if (rig->op != BROADCAST || is_root)
		input_of(rig, rig->send, rig->rank, 0, rig->count);
	if (rig->op == GATHER && !is_root)
		memcpy(rig->want, rig->recv, rig->out);
	else if (rig->op == BROADCAST || rig->op == SCATTER)
		input_of(rig, rig->want, rig->root, rig->op == SCATTER ? rig->rank : 0, rig->count);
	else
		for (int r = 0; r < rig->n; r++)
			input_of(rig, rig->want + (size_t)r * rig->bytes, r, rig->op == ALLTOALL ? rig->rank : 0,
				 rig->count);
}

/* Started and waited for on some ranks, in one call on the others. */
#define CALL(name, ...) \
	((rig->number + rig->rank) % 2 \
		 ? await(covey_##name##_start(__VA_ARGS__, rig->m->group, NULL, &work), &work, res) \
		 : covey_##name(__VA_ARGS__, rig->m->group, NULL, res))

static int await(int err, struct covey_work **work, struct covey_result *res)
{
	if (!err)
		err = covey_work_wait(*work, 0, res);
	covey_work_free(*work);
	return err;
}

static int call(const struct rig *rig, struct covey_result *res)
{
	void *recv = rig->recv;
	const void *send = rig->send;
	struct covey_work *work = NULL;

	switch (rig->op) {
	case ALLREDUCE:
		return CALL(allreduce, send, recv, rig->count, rig->dtype, rig->redop);
	case REDUCE:
		return CALL(reduce, send, recv, rig->count, rig->dtype, rig->redop, rig->root);
	case REDUCE_SCATTER:
		return CALL(reduce_scatter, send, recv, rig->count, rig->dtype, rig->redop);
	case BROADCAST:
		return CALL(broadcast, send, recv, rig->count, rig->dtype, rig->root);
	case ALLGATHER:
		return CALL(allgather, send, recv, rig->count, rig->dtype);
	case ALLGATHERV:
		return CALL(allgatherv, send, rig->counts[1][rig->rank], recv, rig->counts[1], rig->displs[1],
			    rig->dtype);
	case GATHER:
		return CALL(gather, send, rig->rank == rig->root ? recv : NULL, rig->count, rig->dtype, rig->root);
	case SCATTER:
		return CALL(scatter, rig->rank == rig->root ? send : NULL, recv, rig->count, rig->dtype, rig->root);
	case ALLTOALL:
		return CALL(alltoall, send, recv, rig->count, rig->dtype);
	default:
		return CALL(alltoallv, send, rig->counts[0], rig->displs[0], recv, rig->counts[1], rig->displs[1],
			    rig->dtype);
	}
}

static void check_case(const struct rig *rig, int err, const struct covey_result *res)
{
	const struct one *o = rig->one;
	size_t i = 0;

	must(!err && !res->status && res->mask.word[0] == (1ull << rig->n) - 1 && res->size == rig->n,
	     "rank %d of %d: %s type %d op %d of %zu: %s, mask %llx", rig->rank, rig->n, op_names[rig->op], rig->dtype,
	     rig->redop, rig->count, covey_strerror(err), (unsigned long long)res->mask.word[0]);
	while (i < rig->out && rig->recv[i] == rig->want[i])
		i++;
	must(i == rig->out,
	     "rank %d of %d: %s type %d op %d of %zu, transport %d slot %d in place %d root %d: byte %zu", rig->rank,
	     rig->n, op_names[rig->op], rig->dtype, rig->redop, rig->count, o->at[TRANSPORT], o->at[SLOT],
	     o->at[IN_PLACE], rig->root, i);
	must(o->at[IN_PLACE] || rig->recv[rig->out] == 0xa5, "%s of %zu writes past the end", op_names[rig->op],
	     rig->count);
}

static void run_case(struct rig *rig, const struct one *one)
{
	struct covey_result res = { 0 };
	uint64_t sum;

	rig->one = one;
	rig->op = one->at[OP];
	rig->dtype = dtypes[one->at[DTYPE]];
	rig->redop = one->at[REDOP];
	rig->root = one->at[ROOT] ? rig->n - 1 : 0;
	rig->count = sizes[one->at[SIZE]] / type_bytes(rig->dtype);
	rig->bytes = rig->count * type_bytes(rig->dtype);
	rig->send = rig->memory[0] + 64 + one->at[SHIFT];
	rig->recv = rig->memory[1] + 64 + 3 * one->at[SHIFT];
	rig->seed = (uint64_t)++rig->number;
	if (rig->op <= REDUCE_SCATTER)
		prepare_reduction(rig);
	else if (rig->op == ALLGATHERV || rig->op == ALLTOALLV)
		prepare_v(rig);
	else
		prepare_copies(rig);
	if (!one->at[IN_PLACE])
		rig->recv[rig->out] = 0xa5;
	sum = one->at[IN_PLACE] ? 0 : checksum(rig->send, rig->bytes);
	check_case(rig, call(rig, &res), &res);
	must(one->at[IN_PLACE] || sum == checksum(rig->send, rig->bytes), "%s of %zu overwrites its input",
	     op_names[rig->op], rig->count);
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

int main(void)
{
	return harness_main(SUITE(.name = "collectives/matrix", .timeout_s = getenv("COVEY_TEST_ALL") ? 3600 : 0));
}
