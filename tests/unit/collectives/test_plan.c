/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of algorithms: what COVEY_ALGO may say, what is taken where, that each algorithm gives the same bits over
 * hosts of all shapes, and that ranks which were asked for different ones find out when they join.
 *
 * labels: redis
 */
#include "harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "covey_admin.h"
#include "algorithm.h"
#include "handle.h"
#include "plan.h"

#define N(array) (int)(sizeof(array) / sizeof((array)[0]))

/* ---- COVEY_ALGO ---- */

static struct cvy_engine *bare(void)
{
	struct cvy_engine *e = calloc(1, sizeof(*e));

	e->here.box = cvy_errbox_new();
	e->here.layout = cvy_layout(256u << 20, 128u << 10);
	return e;
}

static void bare_free(struct cvy_engine *e)
{
	cvy_errbox_free(e->here.box);
	free(e->rule);
	free(e);
}

static const struct {
	const char *text, *says;
} bad[] = {
	{ "allreduce", "an algorithm is needed, of oneshot, twoshot, twolevel, chain" },
	{ "allreduce=", "an algorithm is needed, of oneshot" },
	{ "allreduce=flat", "an algorithm is needed, of oneshot" },
	{ "allreduce=oneshots", "an algorithm is needed" },
	{ "sum=oneshot", "an operation is needed, of allreduce, broadcast, allgather, allgatherv, barrier" },
	{ "=oneshot", "an operation is needed" },
	{ "barrier=flat,", "an operation is needed" },
	{ "barrier=flat,,barrier=flat", "an operation is needed" },
	{ "barrier:=flat", "bytes are needed" },
	{ "barrier:-=flat", "bytes are needed" },
	{ "barrier:1M-1K=flat", "bytes are needed" },
	{ "barrier:x-=flat", "bytes are needed, like 64K-1M, 1M- or -8; algorithms are flat, twolevel" },
	{ "barrier:-1=flat:", "a comma is needed" },
	{ "barrier:99999999999999999999-=flat", "bytes are needed" },
	{ "barrier:18014398509481984G-=flat", "bytes are needed" },
	{ "barrier:4Q=flat", "an algorithm is needed" },
};

TEST_LOOP(bad_text_is_refused_with_what_would_be_right, 0, N(bad))
{
	struct cvy_engine *e = bare();
	struct covey_error_info info;

	ck_assert_int_eq(cvy_plan_rules(e, bad[_i].text), COVEY_ERR_INVAL);
	cvy_errbox_get(e->here.box, &info);
	ck_assert_msg(strstr(info.cause, bad[_i].says) != NULL, "%s: %s", bad[_i].text, info.cause);
	bare_free(e);
}

TEST(as_many_rules_as_there_may_be)
{
	struct cvy_engine *e = bare();
	char text[1024] = "barrier=flat";

	for (int i = 1; i < 32; i++)
		strcat(text, ",barrier=flat");
	ck_assert_int_eq(cvy_plan_rules(e, text), 0);
	ck_assert_int_eq(e->rules, 32);
	strcat(text, ",barrier=flat");
	ck_assert_int_eq(cvy_plan_rules(e, text), COVEY_ERR_INVAL);
	bare_free(e);
}

static const char *taken(struct cvy_engine *e, const struct cvy_op_kind *kind, int ranks, int hosts, size_t bytes)
{
	struct cvy_shape s = { .ranks = ranks,
			       .hosts = hosts,
			       .widest = ranks / hosts,
			       .even = 1,
			       .parts = hosts - 1,
			       .dtype = COVEY_FLOAT32,
			       .slot_bytes = 128u << 10,
			       .piece = 128u << 10,
			       .bytes = bytes,
			       .ticks = bytes / (128u << 10) + 1 };
	int asked;
	const struct cvy_algorithm *a = cvy_plan_best(e, kind, &s, &asked);

	return a ? a->name : "none";
}

TEST(rules_hold_for_their_bytes_the_first_that_fits)
{
	struct cvy_engine *e = bare();
	const struct cvy_op_kind *kind = &cvy_op_allreduce;

	ck_assert_int_eq(cvy_plan_rules(e, "allreduce:1K-2K=twoshot,allreduce:2K=oneshot,allreduce:1M-=oneshot,"
					   "allreduce:-8=twoshot,broadcast=twolevel"),
			 0);
	ck_assert_str_eq(taken(e, kind, 4, 1, 1023), "oneshot");
	ck_assert_str_eq(taken(e, kind, 4, 1, 1024), "twoshot");
	ck_assert_str_eq(taken(e, kind, 4, 1, 2048), "twoshot");
	ck_assert_str_eq(taken(e, kind, 4, 1, 2049), "oneshot");
	ck_assert_str_eq(taken(e, kind, 4, 1, 1 << 20), "oneshot");
	ck_assert_str_eq(taken(e, kind, 4, 1, 8), "twoshot");
	ck_assert_str_eq(taken(e, &cvy_op_broadcast, 4, 1, 8), "flat"); /* it cannot be done on one host */
	ck_assert_str_eq(taken(e, &cvy_op_broadcast, 4, 2, 8), "twolevel");
	bare_free(e);
}

TEST(hosts_and_bytes_decide)
{
	struct cvy_engine *e = bare();

	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 4, 1, 32 << 10), "oneshot");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 4, 1, (32 << 10) + 1), "twoshot");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 2, 1, 1 << 30), "oneshot");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 1, 1, 1 << 30), "oneshot");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 4, 2, 8), "twolevel");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 4, 2, 4 << 20), "chain");
	ck_assert_str_eq(taken(e, &cvy_op_allreduce, 4, 4, 4 << 20), "twoshot"); /* each lives alone */
	ck_assert_str_eq(taken(e, &cvy_op_barrier, 4, 4, 0), "flat");
	ck_assert_str_eq(taken(e, &cvy_op_barrier, 4, 2, 0), "twolevel");
	ck_assert_str_eq(taken(e, &cvy_op_allgather, 16, 4, 1 << 20), "flat"); /* three parts do not fit half a slot */
	ck_assert_str_eq(taken(e, &cvy_op_broadcast, 16, 4, 1 << 20), "twolevel");
	ck_assert_str_eq(taken(e, &cvy_op_alltoall, 4, 2, 8), "none");
	bare_free(e);
}

/* ---- each of them, over hosts of all shapes ---- */

static const char *const wishes[] = { "allreduce=oneshot", "allreduce=twoshot",
				      "allreduce=twolevel,broadcast=twolevel,allgather=twolevel,barrier=twolevel",
				      "allreduce=chain,broadcast=flat,allgather=flat,barrier=flat" };
static const int shapes[][2] = { { 4, -2 }, { 5, -2 }, { 6, -3 }, { 7, 3 }, { 3, 0 } };

#define MOST 70001

static void check_bits(struct member *m, size_t count, int dtype, int redop, uint64_t seed)
{
	size_t bytes = count * type_bytes(dtype);
	uint8_t *in = malloc(bytes + 1), *out = malloc(bytes + 1), *want = malloc(bytes + 1);
	struct covey_result res;
	int err;

	type_input(in, count, dtype, m->rank, seed);
	type_fold(want, count, dtype, redop, (1ull << m->n) - 1, seed);
	err = covey_allreduce(in, out, count, dtype, redop, m->group, NULL, &res);
	must(!err && !memcmp(out, want, bytes), "allreduce of %zu, type %d, op %d, %d ranks: %s", count, dtype, redop,
	     m->n, covey_strerror(err));
	type_input(want, count, dtype, m->n - 1, seed);
	err = covey_broadcast(in, out, count, dtype, m->n - 1, m->group, NULL, &res);
	must(!err && !memcmp(out, want, bytes), "broadcast of %zu: %s", count, covey_strerror(err));
	must(!covey_barrier(m->group, NULL, &res), "barrier");
	free(in);
	free(out);
	free(want);
}

static void run_all(struct member *m)
{
	static const size_t counts[] = { 1, 8, 33, 4096, 8192, 20000, MOST };
	static const int dtypes[] = { COVEY_FLOAT32, COVEY_FLOAT16, COVEY_INT64, COVEY_UINT8 };
	static const int redops[] = { COVEY_SUM, COVEY_AVG, COVEY_MAX };
	uint64_t seed = 1;

	for (int c = 0; c < N(counts); c++)
		for (int t = 0; t < N(dtypes); t++)
			check_bits(m, counts[c], dtypes[t], redops[(c + t) % N(redops)], seed++);
	m->no_leave = 1;
	harness_meet(m);
}

TEST_LOOP(every_algorithm_gives_the_same_bits, 0, N(wishes) * N(shapes))
{
	const int *shape = shapes[_i / N(wishes)];
	struct covey_config config = harness_config("plan", shape[0]);

	config.algo = wishes[_i % N(wishes)];
	config.slot_bytes = _i % 2 ? 16384 : 0;
	harness_threads_on(&config, run_all, NULL, shape[1]);
}

/*
 * In two levels a rank does not see the first lines of all. What stands in the others is of earlier operations: here of
 * alltoallv, which says in them how many ticks it needs.
 */
static void run_after_others(struct member *m)
{
	static const size_t counts[] = { 1, 1, 1, 1 }, displs[] = { 0, 1, 2, 3 };
	size_t bytes =
		m->n == 3 ? m->config.slot_bytes / 2 : 2 * m->config.slot_bytes + 8; /* both parts fit half a slot */
	int sum = m->n * (m->n + 1) / 2;
	uint8_t *in = calloc(4, bytes), *out = calloc(4, bytes);

	memset(in, m->rank + 1, bytes);
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < CVY_SLOTS; k++)
			must(!covey_alltoallv(in, counts, displs, out, counts, displs, COVEY_UINT8, m->group, NULL,
					      NULL),
			     "alltoallv");
		must(!covey_allgather(in, out, bytes, COVEY_UINT8, m->group, NULL, NULL), "allgather");
		for (int r = 0; r < m->n; r++)
			must(out[(size_t)r * bytes] == r + 1 && out[(size_t)(r + 1) * bytes - 1] == r + 1, "block %d",
			     r);
		must(!covey_allreduce(in, out, bytes, COVEY_UINT8, COVEY_SUM, m->group, NULL, NULL), "allreduce");
		must(out[0] == sum && out[bytes - 1] == sum, "sum %d", out[0]);
		must(!covey_broadcast(in, out, bytes, COVEY_UINT8, 1, m->group, NULL, NULL), "broadcast");
		must(out[0] == 2 && out[bytes - 1] == 2, "byte %d", out[0]);
	}
	free(in);
	free(out);
	m->no_leave = 1;
	harness_meet(m);
}

TEST_LOOP(what_earlier_operations_left_in_lines_is_not_read, 0, 6)
{
	static const char *const algo[] = { NULL, "allreduce=twolevel", "allreduce=chain" };
	struct covey_config config = harness_config("left", 4 - _i / 3); /* three: one of them lives alone */

	config.algo = algo[_i % 3];
	config.slot_bytes = 16384;
	harness_threads_on(&config, run_after_others, NULL, -2);
}

/*
 * Three on two hosts, then two on one: rank 0 has begun before the change, rank 1 calls after it. Bytes for which two
 * ranks of three use two rounds.
 */
#define CUT_BYTES 65536

static void run_cut(struct member *m)
{
	int *begun = m->arg;
	uint8_t *in = malloc(CUT_BYTES), *out = calloc(1, CUT_BYTES);
	uint64_t end = harness_deadline(WATCHDOG_MS);
	struct covey_work *work;
	struct covey_view view;
	struct covey_result res;
	int err;

	must(in && out, "memory");
	memset(in, m->rank + 1, CUT_BYTES);
	m->no_leave = m->rank == 2;
	while (m->rank && !__atomic_load_n(begun, __ATOMIC_ACQUIRE))
		must(harness_now_ns() < end, "rank 0 has not begun");
	for (int members = 3; m->rank == 1 && members != 2; members = covey_mask_count(&view.members))
		must(harness_now_ns() < end && !covey_view(m->group, &view), "the view stays");
	if (m->rank < 2) {
		must(!covey_allreduce_start(in, out, CUT_BYTES, COVEY_UINT8, COVEY_SUM, m->group, NULL, &work),
		     "allreduce");
		__atomic_store_n(begun, 1, __ATOMIC_RELEASE);
		err = covey_work_wait(work, end, &res);
		must(!err && res.mask.word[0] == 3 && out[0] == 3 && out[CUT_BYTES - 1] == 3, "rank %d: %s, sum %d",
		     m->rank, covey_strerror(err), out[0]);
		covey_work_free(work);
	}
	free(in);
	free(out);
}

TEST(a_call_begun_over_two_hosts_ends_on_one)
{
	struct covey_config config = harness_config("cut", 3);
	int begun = 0;

	harness_threads_on(&config, run_cut, &begun, -2);
}

/* ---- what is shown, and what must be alike ---- */

static void run_explain(struct member *m)
{
	static const char *const shown[] = { "ranks 4, hosts 2, up to 2 ranks on one, all alike",
					     "\nallreduce           0       64  twolevel",
					     "\nallreduce          65       1K  oneshot ",
					     "(COVEY_ALGO)\nallreduce        1025 ", "chain" };
	char text[4096];

	must(!covey_explain(m->group, text, sizeof(text)), "explain");
	for (int i = 0; i < N(shown); i++)
		must(strstr(text, shown[i]), "no \"%s\" in: %s", shown[i], text);
	must(covey_explain(m->group, NULL, 0) == COVEY_ERR_INVAL, "no text");
	must(!covey_explain(m->group, text, 5) && !strcmp(text, "rank"), "%s", text);
	harness_meet(m); /* who leaves is gone from the table */
}

TEST(explain_shows_what_is_taken)
{
	struct covey_config config = harness_config("explain", 4);

	config.algo = "allreduce:65-1K=oneshot";
	harness_threads_on(&config, run_explain, NULL, -2);
}

struct odd {
	struct covey_config config;
	int rank;
	struct covey_error_info info;
};

static void *join_oddly(void *arg)
{
	struct odd *odd = arg;
	struct covey_group *group = NULL;
	int err;

	odd->config.rank = odd->rank;
	odd->config.algo = odd->rank ? "barrier=flat" : NULL;
	err = covey_join(&odd->config, &group);
	must(err == COVEY_ERR_INVAL, "rank %d: %d", odd->rank, err);
	covey_last_error(NULL, &odd->info);
	return NULL;
}

TEST(ranks_that_want_different_algorithms_do_not_join)
{
	struct odd odd[2];
	pthread_t id[2];

	for (int r = 0; r < 2; r++) {
		odd[r] = (struct odd){ .config = harness_config("odd", 2), .rank = r };
		odd[r].config.group = "plan-odd";
		ck_assert(!pthread_create(&id[r], NULL, join_oddly, &odd[r]));
	}
	for (int r = 0; r < 2; r++)
		pthread_join(id[r], NULL);
	for (int r = 0; r < 2; r++)
		ck_assert_msg(strstr(odd[r].info.cause, "algo is ") &&
				      strstr(odd[r].info.cause, "barrier=flat in rank 1"),
			      "rank %d: %s", r, odd[r].info.cause);
}

TEST(bad_text_fails_the_join)
{
	struct covey_config config = harness_config("bad", 1);
	struct covey_group *group = NULL;
	struct covey_error_info info;

	config.algo = "barrier=tree";
	ck_assert_int_eq(covey_join(&config, &group), COVEY_ERR_INVAL);
	covey_last_error(NULL, &info);
	ck_assert_ptr_nonnull(strstr(info.cause, "an algorithm is needed, of flat, twolevel"));
}

HARNESS_MAIN(.name = "collectives/plan")
