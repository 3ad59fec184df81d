/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of algorithms: what COVEY_ALGO may say, what is taken where, that each algorithm gives the same bits over
 * hosts of all shapes, and that ranks which were asked for different ones find out when they join. And that the table of
 * forms on device memory is what launches take.
 *
 * labels: redis
 */
#include "harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "covey_admin.h"
#include "algorithm.h"
#include "device_explain.h"
#include "ep_call.h"
#include "handle.h"
#include "plan.h"
#include "shape.h"

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
	char text[4096];

	must(!covey_explain(m->group, text, sizeof(text)), "explain");
	must(strstr(text, "ranks 4, hosts 2, up to 2 ranks on one, all alike"), "%s", text);
	must(strstr(text, "\nallreduce           0       64  twolevel"), "%s", text);
	must(strstr(text, "\nallreduce          65       1K  oneshot "), "%s", text);
	must(strstr(text, "(COVEY_ALGO)\nallreduce        1025 "), "%s", text);
	must(strstr(text, "chain"), "%s", text);
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

/* ---- device memory ---- */

struct form {
	char from[24], to[24], shots[8], lanes[24], step[24], buffers[16];
	int packet, threads, rows, levels;
};

static uint64_t bytes_of(const char *text)
{
	static const char units[] = "KMG";
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	return *text == '-' ? UINT64_MAX : *end ? n << (10 * (strchr(units, *end) - units + 1)) : n;
}

/* Does the row say what a launch of @bytes takes? In place or not: some ranks of a call may be so alone. */
static void check_form(const struct form *f, int kind, uint64_t bytes)
{
	struct cvy_gpu_call c = { .kind = kind, .in_place = (int)(bytes / 3 % 2), .bytes = bytes };
	uint64_t step = bytes_of(f->step);
	int lanes = 1, least = atoi(f->lanes), most = strchr(f->lanes, '-') ? atoi(strchr(f->lanes, '-') + 1) : least;

	cvy_gpu_shape(&c);
	while (lanes < CVY_GPU_LANES && (uint64_t)lanes * step < (bytes + 7) / 8 * 8)
		lanes *= 2;
	if (kind == CVY_GPU_ALLTOALLV) /* nobody knows the others' counts */
		lanes = CVY_GPU_UNEVEN_LANES;
	ck_assert_int_eq(c.packet == CVY_GPU_PAIR ? 16 : 128, f->packet);
	ck_assert_int_eq(cvy_gpu_has_rounds(c.kind), !strcmp(f->shots, "two"));
	ck_assert_int_eq(c.levels, f->levels);
	ck_assert_int_eq(c.threads, f->threads);
	ck_assert_int_eq(c.rows, f->rows);
	ck_assert(c.packet != CVY_GPU_PAIR || (c.rows == 1 && c.steps == 1)); /* there is no kernel for others */
	ck_assert_msg(c.lanes == lanes && lanes >= least && lanes <= most, "%llu bytes: %d lanes, %d by the step, %s",
		      (unsigned long long)bytes, c.lanes, lanes, f->lanes);
	if (bytes % CVY_GPU_PACKET == 0)
		ck_assert_int_eq(c.pulls, !strcmp(f->buffers, "registered"));
}

/* All sizes near the ends of the row, and many in between. */
static int check_row(const struct form *f, int kind)
{
	uint64_t from = bytes_of(f->from), to = bytes_of(f->to), seed = from + 1;
	int n = 0;

	if (to == UINT64_MAX)
		to = from + ((uint64_t)8 << 30);
	for (uint64_t i = 0; i < 4096 && from + i <= to; i++, n += 2) {
		check_form(f, kind, from + i);
		check_form(f, kind, to - i);
	}
	for (int i = 0; i < 4096; i++, n++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		check_form(f, kind, from + (seed >> 11) % (to - from + 1));
	}
	return n;
}

static const struct {
	const char *name;
	int kind;
} on_device[] = {
	{ "allreduce", CVY_GPU_ALLREDUCE },
	{ "allgather", CVY_GPU_ALLGATHER },
	{ "reduce_scatter", CVY_GPU_REDUCE_SCATTER },
	{ "alltoall", CVY_GPU_ALLTOALL },
	{ "broadcast", CVY_GPU_BROADCAST },
	{ "reduce", CVY_GPU_REDUCE },
	{ "gather", CVY_GPU_GATHER },
	{ "scatter", CVY_GPU_SCATTER },
	{ "barrier", CVY_GPU_BARRIER },
	{ "allgatherv", CVY_GPU_ALLGATHERV },
	{ "alltoallv", CVY_GPU_ALLTOALLV },
};

static int has_levels(int kind)
{
	return kind == CVY_GPU_ALLREDUCE || kind == CVY_GPU_ALLGATHER || kind == CVY_GPU_REDUCE_SCATTER ||
	       kind == CVY_GPU_BROADCAST;
}

/* Is @name one of "a, b, c:"? */
static int lists(const char *line, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = line; (at = strstr(at, name)); at++)
		if ((at == line || at[-1] == ' ') && (at[n] == ',' || at[n] == ':') && (at == line || at[-2] == ','))
			return 1;
	return 0;
}

TEST_LOOP(forms_on_devices_are_those_of_launches, 0, N(on_device))
{
	char *text = NULL, line[200];
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes), *from;
	uint64_t next = UINT64_MAX;
	int here = 0, rows = 0, levels = 0;

	cvy_device_forms(to);
	fclose(to);
	from = fmemopen(text, bytes, "r");
	while (fgets(line, sizeof(line), from)) {
		struct form f;

		if (line[strlen(line) - 2] == ':') {
			here = lists(line, on_device[_i].name);
			next = here ? 0 : next;
			continue;
		}
		if (!here)
			continue;
		ck_assert_int_eq(sscanf(line, "%23s %23s %d B %7s %23s %23s %d %d %15s", f.from, f.to, &f.packet,
					f.shots, f.lanes, f.step, &f.threads, &f.rows, f.buffers),
				 9);
		f.levels = strstr(line, "two levels between hosts") != NULL;
		levels += f.levels;
		if (on_device[_i].kind == CVY_GPU_BARRIER) /* has no bytes */
			snprintf(f.to, sizeof(f.to), "0");
		ck_assert_uint_eq(bytes_of(f.from), next);
		next = bytes_of(f.to) + (strcmp(f.to, "-") != 0);
		ck_assert_int_gt(check_row(&f, on_device[_i].kind), 4096);
		rows++;
	}
	ck_assert_msg(next == UINT64_MAX || on_device[_i].kind == CVY_GPU_BARRIER, "%s", text);
	ck_assert_int_ge(rows,
			 on_device[_i].kind == CVY_GPU_BARRIER || on_device[_i].kind == CVY_GPU_ALLTOALLV ? 1 : 6);
	ck_assert_int_eq(levels > 0, has_levels(on_device[_i].kind));
	fclose(from);
	free(text);
}

/* ---- dispatch and combine ---- */

#define LOCAL 32

static const struct handle {
	const char *head;
	int code, per_rank, once, back;
} handles[] = {
	{ "\nLL, rows bf16, combine per expert:\n", 0, 0, 0, 0 },
	{ "\nLL, rows e4m3, combine per expert:\n", 1, 0, 0, 0 },
	{ "\nLL, rows bf16, combine per rank:\n", 0, 1, 0, 0 },
	{ "\nLL, rows e4m3, combine per rank:\n", 1, 1, 0, 0 },
	{ "\nCOMPACT, rows bf16, combine per rank:\n", 0, 0, 1, 0 },
	{ "\nCOMPACT, rows e4m3, combine per rank:\n", 1, 0, 1, 0 },
	{ "\nCOMPACT, rows int8 or int4, combine per rank, in int8:\n", CVY_EP_INT8, 0, 1, CVY_EP_INT8_BY_8 },
};

/* Does a handle with @each tokens a lane take the form that its row says? */
static void check_ep_row(const struct handle *h, int size, int each, const char *row)
{
	struct cvy_ep_shape_gpu s = { .tokens = each * CVY_GPU_LANES,
				      .hidden = 7168,
				      .top_k = 8,
				      .experts = size * LOCAL,
				      .size = size,
				      .code = h->code,
				      .back = h->back,
				      .per_rank = h->per_rank,
				      .most_local = LOCAL,
				      .once = h->once,
				      .ranks = CVY_GPU_RANKS };
	struct cvy_ep_form f[2];
	char want[2][80];

	for (int combine = 0; combine < 2; combine++) {
		ck_assert(cvy_ep_form_of(&s, CVY_GPU_LANES, combine, &f[combine]));
		if (f[combine].bulk)
			snprintf(want[combine], sizeof(want[combine]), "bulk steps of %d", (int)f[combine].per_step);
		else
			snprintf(want[combine], sizeof(want[combine]), "lines: %s",
				 combine && !h->per_rank && !h->once ? "the rows of each expert come back"
				 : h->back			     ? "rows of integers"
								     : "few tokens of a lane");
		ck_assert_int_eq(f[combine].bulk,
				 each >= CVY_EP_BULK_TOKENS && !h->back && (!combine || h->per_rank || h->once));
	}
	ck_assert_msg(strstr(row, want[0]) && strstr(strstr(row, want[0]), want[1]), "%d a lane: %s, %s, not: %s", each,
		      want[0], want[1], row);
}

TEST_LOOP(forms_of_dispatch_and_combine_are_those_of_handles, 0, N(handles))
{
	const struct handle *h = &handles[_i];
	char *text = NULL, row[200];
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes), *from;
	int next = 1, first, last, size = 4;
	char end[16];

	cvy_device_ep_forms(size, COVEY_MAX_RANKS, to);
	fclose(to);
	ck_assert_ptr_nonnull(strstr(text, h->head));
	from = fmemopen(strstr(text, h->head) + strlen(h->head), strlen(strstr(text, h->head) + strlen(h->head)), "r");
	while (next && fgets(row, sizeof(row), from)) {
		ck_assert_int_eq(sscanf(row, "%d %15s", &first, end), 2);
		ck_assert_int_eq(first, next);
		last = *end == '-' ? CVY_EP_TOKENS / CVY_GPU_LANES : atoi(end);
		for (int each = first; each <= last; each++)
			check_ep_row(h, size, each, row);
		next = *end == '-' ? 0 : last + 1;
	}
	ck_assert_int_eq(next, 0);
	ck_assert_ptr_nonnull(
		strstr(text, "lanes, if the handle says 0: 8 for max_tokens 1, 16 from 2 on, 32 from 3 on"));
	fclose(from);
	free(text);
}

static const struct {
	struct cvy_ep_shape_gpu shape;
	int lanes, combine;
	const char *text;
} reasons[] = {
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, 1, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "bulk steps of 8" },
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 16, 0, "lines: few tokens of a lane" },
	{ { 64, 7168, 8, 64, 2, 0, 0, 32, 0, 2, 0, 0, 0, 0 }, 1, 1, "lines: the rows of each expert come back" },
	{ { 8, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 128, 0, "lines: one row is for several lanes or steps" },
	{ { 64, 200, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows are short or no multiple of 16 bytes" },
	{ { 64, 64, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows are short or no multiple of 16 bytes" },
	{ { 64, 7168, 8, 1024, 32, 0, 1, 1024, 0, 32, 0, 0, 0, 0 }, 1, 0, "lines: shared memory is too small" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT8, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows of integers" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT4, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 1, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, CVY_EP_INT8_BY_8, 0, 0, 0 }, 1, 1, "lines: rows of integers" },
	{ { 64, 7168, 8, 64, 2, 0, 0, 32, 1, 2, CVY_EP_INT8_BY_8, 0, 0, 0 }, 1, 0, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT8, 1, 32, 0, 2, 0, 1, 0, 0 }, 1, 0, "lines: rows of integers" },
};

TEST_LOOP(why_rows_are_lines_is_said, 0, N(reasons))
{
	struct cvy_ep_form f;
	char text[80];

	ck_assert(cvy_ep_form_of(&reasons[_i].shape, reasons[_i].lanes, reasons[_i].combine, &f));
	cvy_device_ep_form(&reasons[_i].shape, reasons[_i].combine, &f, text, sizeof(text));
	ck_assert_str_eq(text, reasons[_i].text);
}

HARNESS_MAIN(.name = "collectives/plan")
