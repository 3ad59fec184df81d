/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-perf as a shell would start it under ep-run: the columns of nccl-tests, the file of --json, exit codes, wrong data
 * that is found, ranks that are struck. And the parts that are plain arithmetic: quantiles and numbers.
 *
 * labels: redis real
 */
#include <stdarg.h>
#include <jansson.h>

#include "perf/perf.h"
#include "program.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define WORDS 40
#define FEW "-n", "3"

static const char *const text = run.text; /* of the last run */

/* hist.c wants it for more ranks than one. */
int perf_agree(struct perf_job *job, double *value, int redop)
{
	return 0;
}

int perf_agree_counts(struct perf_job *job, int64_t *values, size_t count)
{
	return 0;
}

/* Exit code of ep-perf with the words that follow, up to NULL, as @ranks ranks; 0: without ep-run. */
static int perf(int ranks, ...)
{
	const char *argv[WORDS] = { 0 };
	char count[16];
	va_list args;
	int n = 0;

	snprintf(count, sizeof(count), "%d", ranks);
	if (ranks) {
		const char *const under[] = { EP_RUN, "-n", count, "--" };

		memcpy(argv, under, sizeof(under));
		n = sizeof(under) / sizeof(under[0]);
	}
	argv[n++] = EP_PERF;
	va_start(args, ranks);
	while ((argv[n] = va_arg(args, const char *)))
		ck_assert_int_lt(++n, WORDS - 1);
	va_end(args);
	start_words(argv);
	return finish();
}

struct row {
	size_t size, count;
	char type[16], redop[16];
	int root;
	double time[2], algbw[2], busbw[2];
	long wrong[2];
	double tail[7]; /* p50 p99 p50 p99 detect recover ranks */
	int tails;
};

/* The next line from @at on that is a row of the table, as what reads nccl-tests' tables splits it. */
static const char *next_row(const char *at, struct row *row)
{
	for (; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
		const char *line = strstr(at, "] ");

		if (!line || (strchr(at, '\n') && line > strchr(at, '\n')))
			continue;
		memset(row, 0, sizeof(*row));
		row->tails = sscanf(line + 2,
				    "%zu %zu %15s %15s %d %lf %lf %lf %ld %lf %lf %lf %ld %lf %lf %lf %lf %lf %lf %lf",
				    &row->size, &row->count, row->type, row->redop, &row->root, &row->time[0],
				    &row->algbw[0], &row->busbw[0], &row->wrong[0], &row->time[1], &row->algbw[1],
				    &row->busbw[1], &row->wrong[1], &row->tail[0], &row->tail[1], &row->tail[2],
				    &row->tail[3], &row->tail[4], &row->tail[5], &row->tail[6]) -
			     13;
		if (row->tails >= -4)
			return strchr(at, '\n') ? strchr(at, '\n') + 1 : "";
	}
	return NULL;
}

static int rows(void)
{
	const char *at = text;
	struct row row;
	int n = 0;

	while ((at = next_row(at, &row)))
		n++;
	return n;
}

static int times_said(const char *what)
{
	int n = 0;

	for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
		n++;
	return n;
}

static const struct {
	const char *name;
	double factor; /* busbw / algbw with 4 ranks */
	const char *redop;
	int blocks; /* size is that of 4 blocks */
	int in_place;
	int rooted;
} operations[] = {
	{ "allreduce", 1.5, "sum", 0, 1, 0 },	 { "broadcast", 1, "none", 0, 1, 1 },
	{ "allgather", 0.75, "none", 1, 1, 0 },	 { "alltoall", 0.75, "none", 1, 1, 0 },
	{ "reduce", 1, "sum", 0, 1, 1 },	 { "reduce_scatter", 0.75, "sum", 1, 1, 0 },
	{ "allgatherv", 0.75, "none", 1, 1, 0 }, { "gather", 0.75, "none", 1, 1, 1 },
	{ "scatter", 0.75, "none", 1, 1, 1 },	 { "sendrecv", 1, "none", 0, 0, 0 },
	{ "alltoallv", 0.75, "none", 1, 1, 0 },
};
enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

TEST_LOOP(columns_are_those_of_nccl_tests, 0, OPERATIONS)
{
	const char *at = text;
	struct row row;

	ck_assert_int_eq(perf(4, operations[_i].name, "-b", "64K", "-e", "1M", "-f", "4", FEW, NULL), 0);
	for (size_t size = 65536; size <= 1048576; size *= 4) {
		at = next_row(at, &row);
		ck_assert_msg(at != NULL, "no row of %zu bytes: %s", size, text);
		ck_assert_uint_eq(row.size, size);
		ck_assert_uint_eq(row.count, size / 4 / (operations[_i].blocks ? 4 : 1));
		ck_assert_str_eq(row.type, "float");
		ck_assert_str_eq(row.redop, operations[_i].redop);
		ck_assert_int_eq(row.tails, operations[_i].in_place ? 4 : -4); /* N/A is no number */
		for (int side = 0; side < 1 + operations[_i].in_place; side++) {
			double algbw = (double)size / row.time[side] / 1000;

			ck_assert_int_eq(row.wrong[side], 0);
			ck_assert_double_gt(row.time[side], 0);
			ck_assert_double_eq_tol(row.algbw[side], algbw, 0.006 + algbw * 0.01);
			ck_assert_double_eq_tol(row.busbw[side], row.algbw[side] * operations[_i].factor, 0.02);
			ck_assert(!operations[_i].in_place || row.tail[2 * side] <= row.tail[2 * side + 1]);
		}
	}
	ck_assert_ptr_null(next_row(at, &row));
	ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 0 OK"));
	ck_assert_ptr_nonnull(strstr(text, "# Avg bus bandwidth"));
}

TEST(a_barrier_has_one_row)
{
	struct row row;

	ck_assert_int_eq(perf(3, "barrier", "-b", "8", "-e", "64", "-f", "2", FEW, NULL), 0);
	ck_assert_int_eq(rows(), 1);
	ck_assert_ptr_nonnull(next_row(text, &row));
	ck_assert_uint_eq(row.size, 0);
}

TEST_LOOP(every_type_and_reduction_is_checked, 0, OPERATIONS)
{
	ck_assert_int_eq(perf(3, operations[_i].name, "-b", "1000", "-e", "1000", "-d", "all", "-o", "all", "-r", "all",
			      "-w", "0", FEW, NULL),
			 0);
	ck_assert_int_eq(rows(), perf_type_count * (strcmp(operations[_i].redop, "none") ? perf_redop_count : 1) *
					 (operations[_i].rooted ? 3 : 1));
}

TEST(sizes_go_by_steps_or_by_a_factor)
{
	ck_assert_int_eq(perf(1, "allreduce", "-b", "1K", "-e", "4K", "-i", "1K", FEW, NULL), 0);
	ck_assert_int_eq(rows(), 4);
	ck_assert_int_eq(perf(1, "allreduce", "-b", "0", "-e", "1M", "-f", "10", FEW, NULL), 0);
	ck_assert_int_ge(rows(), 6); /* 0, and what follows it */
	ck_assert_int_eq(perf(1, "allreduce", "-b", "33M", "-w", "0", "-n", "1", NULL), 0);
	ck_assert_int_eq(rows(), 1);
}

TEST_LOOP(wrong_data_is_found, 0, OPERATIONS)
{
	struct row row;

	ck_assert_int_eq(perf(3, operations[_i].name, "-b", "1K", "-e", "1K", "--spoil", FEW, NULL), 1);
	ck_assert_ptr_nonnull(next_row(text, &row));
	ck_assert_int_eq(row.wrong[0], 1);
	ck_assert_int_eq(row.wrong[1], operations[_i].in_place);
	ck_assert_ptr_nonnull(strstr(text, operations[_i].in_place ? " : 2 FAILED" : " : 1 FAILED"));
}

TEST(without_checks_nothing_is_called_right)
{
	ck_assert_int_eq(perf(2, "allreduce", "-b", "1K", "-e", "1K", "--spoil", "-c", "0", FEW, NULL), 0);
	ck_assert_int_eq(times_said(" N/A "), 2);
}

TEST(too_little_bandwidth_fails)
{
	setenv("NCCL_TESTS_MIN_BW", "1e9", 1);
	ck_assert_int_eq(perf(2, "allreduce", "-b", "1K", "-e", "1K", FEW, NULL), 1);
	unsetenv("NCCL_TESTS_MIN_BW");
}

static const char *const bad[][4] = {
	{ "", "an operation is needed", NULL, NULL },
	{ "nonsense", "no such operation", NULL, NULL },
	{ "allreduce", "host memory has no graphs", "-G", "1" },
	{ "allreduce", "for device memory", "-R", "2" },
	{ "dispatch", "numbers from 0 to 128", "--device=0", "--lanes=64,129" },
	{ "dispatch", "are for device memory", "--lanes", "2" },
	{ "dispatch", "are for device memory", "--split", NULL },
	{ "dispatch", "on host memory dispatch has one row", "--tokens", "1,2" },
	{ "dispatch", "with commas between", "--tokens", "1," },
	{ "dispatch", "a device takes 16384 at most", "--device=0", "--tokens=1,16385" },
	{ "dispatch", "a device takes 8192 at most", "--device=0", "--hidden=8200" },
	{ "dispatch", "ll, compact, flat, win, mesh or ht is needed", "--device=0", "--preset=deep" },
	{ "dispatch", "bf16, e4m3, int8, int4 or e4m3_pow2 is needed", "--device=0", "--rows=fp8" },
	{ "dispatch", "plain or int8 is needed", "--back=int4", NULL },
	{ "dispatch", "expert or rank is needed", "--device=0", "--combine=token" },
	{ "dispatch", "are not registered", "--device=0", "-R1" },
	{ "allreduce", "for host memory alone", "--device=0", "-Fkill:1@1" },
	{ "allreduce", "has no meaning here", "-t", "2" },
	{ "allreduce", "has no meaning here", "-z", "1" },
	{ "allreduce", "bytes are needed", "-b", "8X" },
	{ "allreduce", "bytes are needed", "-e", "-8" },
	{ "allreduce", "a factor above 1", "-f", "1" },
	{ "allreduce", "is more than -e", "-b64M", "-e1M" },
	{ "allreduce", "leads nowhere", "-b8", "-i0" },
	{ "allreduce", "a number from", "-n", "0" },
	{ "allreduce", "not a type", "-d", "complex" },
	{ "allreduce", "not a reduction", "-o", "xor" },
	{ "allreduce", "kill:RANK@ITER", "-F", "kill:1" },
	{ "allreduce", "kill:RANK@ITER", "-F", "maim:1@1" },
	{ "allreduce", "kill:RANK@ITER", "-F", "kill:1@0" },
	{ "allreduce", "the group has 2 ranks", "-F", "kill:7@1" },
	{ "broadcast", "strikes the root", "-F", "kill:0@1" },
	{ "sendrecv", "agree on no result", "-F", "kill:0@1" },
	{ "broadcast", "the group has 2 ranks", "-r", "2" },
	{ "dispatch", "have no sizes in bytes", "-b", "8" },
	{ "dispatch", "more than 4 experts", "--experts=4", "--topk=5" },
	{ "allreduce", "unrecognized option", "--nonsense", NULL },
};

TEST_LOOP(what_makes_no_sense_is_said_once, 0, sizeof(bad) / sizeof(bad[0]))
{
	int code = *bad[_i][0] ? perf(2, bad[_i][0], bad[_i][2], bad[_i][3], NULL) : perf(2, NULL);

	ck_assert_msg(code == 64, "%s %s: code %d: %s", bad[_i][0], bad[_i][2], code, text);
	ck_assert_msg(times_said(bad[_i][1]) == 1, "%s %s: %s", bad[_i][0], bad[_i][2], text);
}

TEST(what_two_hops_lack_is_said_with_what_would_be_right)
{
	ck_assert_int_eq(perf(2, "dispatch", "--device=0", "--preset=ht", "--rows=int4", NULL), 64);
	ck_assert_ptr_nonnull(strstr(text, "--rows is int4: take bf16 or e4m3, or --preset compact"));
	ck_assert_int_eq(perf(2, "dispatch", "--device=0", "--preset=ht", "--back=int8", NULL), 64);
	ck_assert_ptr_nonnull(strstr(text, "--back is int8: take plain, or --preset compact"));
	setenv("COVEY_LATE_MS", "50", 1);
	ck_assert_int_eq(perf(2, "dispatch", "--device=0", "--preset=ht", NULL), 64);
	ck_assert_ptr_nonnull(strstr(text, "COVEY_LATE_MS is 50: unset it, or take --preset compact"));
	unsetenv("COVEY_LATE_MS");
}

TEST(without_a_store_it_fails_with_a_cause)
{
	unsetenv("COVEY_STORE");
	ck_assert_int_eq(perf(0, "allreduce", NULL), 2);
	ck_assert_ptr_nonnull(strstr(text, "joining the group"));
}

/* Each under the number that it was started as, where the group has not said one. */
TEST(who_cannot_join_says_which_rank_it_is)
{
	setenv("COVEY_QUEUES", "nothing", 1);
	ck_assert_int_eq(perf(2, "barrier", NULL), 2);
	unsetenv("COVEY_QUEUES");
	ck_assert_ptr_nonnull(strstr(text, "[0] ep-perf: rank 0: joining the group: "));
	ck_assert_ptr_nonnull(strstr(text, "[1] ep-perf: rank 1: joining the group: "));
}

TEST(it_gives_up_when_the_time_is_over)
{
	ck_assert_int_eq(perf(2, "allreduce", "-b", "8", "-e", "8", "-T", "1", "-n", "100000000", NULL), 2);
	ck_assert_ptr_nonnull(strstr(text, "the time of -T is over"));
}

TEST_LOOP(a_death_has_its_columns, 0, OPERATIONS)
{
	struct row row;
	const char *at;

	if (!operations[_i].in_place)
		return; /* messages: refused, see bad[] */
	ck_assert_int_eq(perf(4, operations[_i].name, "-b", "1K", "-e", "2K", "-f", "2", "-F", "kill:2@3", FEW, NULL),
			 0);
	at = next_row(text, &row);
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(row.tails, 7);
	ck_assert_int_eq(row.wrong[0], 0);
	ck_assert_double_gt(row.tail[5], 0);
	ck_assert_double_gt(row.tail[5], row.tail[4]);
	ck_assert_double_eq(row.tail[6], 3);
	ck_assert_ptr_nonnull(strstr(text, "# rank 2 was killed: 3 ranks from here"));
	ck_assert_ptr_nonnull(next_row(at, &row));
	ck_assert_int_eq(row.tails, 4);
	ck_assert_int_eq(row.wrong[0], 0);
	ck_assert_int_eq(row.wrong[1], 0);
	ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 0 OK"));
}

/* Rank 0 is struck: the next one tells. The stopped rank goes on and ends, or ep-run would not. */
TEST(a_stopped_rank_is_left_out)
{
	struct row row;

	ck_assert_int_eq(perf(3, "allreduce", "-b", "1K", "-e", "1K", "-F", "stop:0@1", FEW, NULL), 0);
	ck_assert_ptr_nonnull(next_row(text, &row));
	ck_assert_int_eq(row.tails, 7);
	ck_assert_double_eq(row.tail[6], 2);
	ck_assert_ptr_nonnull(strstr(text, "[1] # rank 0 was stopped: 2 ranks from here"));
}

static const char *const codes[][2] = {
	{ "bf16", "plain" }, { "e4m3", "plain" }, { "int8", "plain" },
	{ "int4", "int8" },  { "bf16", "int8" },  { "e4m3_pow2", "plain" },
};

TEST_LOOP(rows_of_codes_are_checked, 0, sizeof(codes) / sizeof(codes[0]))
{
	char rows[24], back[16];

	snprintf(rows, sizeof(rows), "--rows=%s", codes[_i][0]);
	snprintf(back, sizeof(back), "--back=%s", codes[_i][1]);
	ck_assert_int_eq(perf(2, "dispatch", "--tokens", "20", "--hidden", "264", "--topk", "3", "--experts", "7", rows,
			      back, FEW, NULL),
			 0);
}

TEST(dispatch_and_combine_are_checked)
{
	ck_assert_int_eq(
		perf(3, "dispatch", "--tokens", "20", "--hidden", "64", "--topk", "3", "--experts", "7", FEW, NULL), 0);
	ck_assert_ptr_nonnull(strstr(text, "x memcpy"));
	ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 0 OK"));
	ck_assert_int_eq(perf(2, "combine", "--tokens", "20", "--hidden", "64", "--spoil", FEW, NULL), 1);
	ck_assert_ptr_nonnull(strstr(text, "# Out of bounds values : 2 FAILED"));
}

static json_t *written(const char *file)
{
	json_error_t error;
	json_t *all = json_load_file(file, 0, &error);

	ck_assert_msg(all != NULL, "%s: line %d: %s", file, error.line, error.text);
	unlink(file);
	return all;
}

TEST(json_says_what_the_table_says)
{
	char file[] = "/tmp/covey-test-XXXXXX";
	const char *at = text;
	json_t *all, *list;
	struct row row;

	close(mkstemp(file));
	ck_assert_int_eq(perf(4, "allgather", "-b", "4K", "-e", "16K", "-f", "2", "-F", "kill:1@1", "--json", file, FEW,
			      NULL),
			 0);
	all = written(file);
	list = json_object_get(all, "rows");
	ck_assert_str_eq(json_string_value(json_object_get(all, "operation")), "allgather");
	ck_assert(json_is_true(json_object_get(all, "ok")));
	ck_assert_uint_eq(json_array_size(list), 3);
	for (size_t i = 0; i < 3; i++) {
		json_t *mine = json_array_get(list, i), *out = json_object_get(mine, "out_of_place");
		json_t *fault = json_object_get(mine, "fault");

		at = next_row(at, &row);
		ck_assert_ptr_nonnull(at);
		ck_assert_int_eq(json_integer_value(json_object_get(mine, "size")), (json_int_t)row.size);
		ck_assert_int_eq(json_integer_value(json_object_get(mine, "ranks")), i ? 3 : 4);
		ck_assert_double_eq_tol(json_real_value(json_object_get(out, "time")), row.time[0],
					row.time[0] * 0.02 + 0.02);
		ck_assert_int_eq(json_integer_value(json_object_get(out, "wrong")), 0);
		ck_assert(json_is_object(json_object_get(mine, "in_place")));
		ck_assert(i ? json_is_null(fault) : json_integer_value(json_object_get(fault, "ranks")) == 3);
	}
	json_decref(all);
}

TEST(json_of_a_barrier_and_of_dispatch)
{
	char file[] = "/tmp/covey-test-XXXXXX";
	json_t *all;

	close(mkstemp(file));
	ck_assert_int_eq(perf(2, "barrier", "--json", file, "-c", "0", FEW, NULL), 0);
	all = written(file);
	ck_assert(json_is_null(json_object_get(json_array_get(json_object_get(all, "rows"), 0), "type")));
	json_decref(all);
	ck_assert_int_eq(
		perf(2, "dispatch", "--json", file, "--tokens", "8", "--hidden", "64", "--topk", "2", FEW, NULL), 0);
	all = written(file);
	ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(json_object_get(all, "rows"), 0), "tokens")),
			 8);
	json_decref(all);
}

TEST(a_plot_is_an_svg)
{
	char file[] = "/tmp/covey-test-XXXXXX", drawn[65536];
	FILE *f;

	close(mkstemp(file));
	ck_assert_int_eq(perf(2, "allreduce", "-b", "8", "-e", "64K", "-f", "8", "--plot", file, FEW, NULL), 0);
	f = fopen(file, "re");
	ck_assert_ptr_nonnull(f);
	drawn[fread(drawn, 1, sizeof(drawn) - 1, f)] = '\0';
	fclose(f);
	unlink(file);
	ck_assert_int_eq(strncmp(drawn, "<svg ", 5), 0);
	ck_assert_ptr_nonnull(strstr(drawn, "<polyline"));
	ck_assert_ptr_nonnull(strstr(drawn, "</svg>"));
	ck_assert_ptr_null(strstr(drawn, "nan"));
	ck_assert_int_eq(perf(1, "allreduce", "-b", "8", "-e", "8", "--plot", "/nonexistent/x.svg", FEW, NULL), 2);
	ck_assert_int_eq(perf(1, "allreduce", "-b", "8", "-e", "8", "--json", "/nonexistent/x", FEW, NULL), 2);
}

TEST(quantiles_are_within_two_per_cent)
{
	static struct perf_hist hist;

	perf_hist_clear(&hist);
	ck_assert_double_eq(perf_hist_us(&hist, 0.5), 0);
	for (uint64_t ns = 1; ns <= 100000; ns++)
		perf_hist_add(&hist, ns * 10);
	ck_assert_double_eq_tol(perf_hist_us(&hist, 0.5), 500, 10);
	ck_assert_double_eq_tol(perf_hist_us(&hist, 0.99), 990, 20);
	ck_assert_double_eq(perf_hist_us(&hist, 1), 1000); /* never outside what was seen */
	perf_hist_add(&hist, UINT64_MAX);
	ck_assert_double_ge(perf_hist_us(&hist, 1), 1000);
}

TEST(numbers_are_those_of_their_type)
{
	const struct perf_type types[] = { { "half", 0, 2, PERF_HALF }, { "bf16", 0, 2, PERF_BF16 } };
	const struct perf_redop avg = { "avg", 0, PERF_AVG };
	const int thirds[] = { 1, 0, 0 };
	uint16_t got;
	const struct {
		int value;
		uint16_t half, bf16;
	} known[] = { { 0, 0, 0 },
		      { 1, 0x3c00, 0x3f80 },
		      { 127, 0x57f0, 0x42fe },
		      { 2048, 0x6800, 0x4500 },
		      { 2049, 0x6800, 0x4500 },	 /* ties to even */
		      { 2051, 0x6802, 0x4500 },	 /* 2052 */
		      { 65504, 0x7bff, 0x4780 }, /* the largest half */
		      { 65536, 0x7c00, 0x4780 } };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		perf_put(&types[0], &got, known[i].value);
		ck_assert_uint_eq(got, known[i].half);
		perf_put(&types[1], &got, known[i].value);
		ck_assert_uint_eq(got, known[i].bf16);
	}
	perf_fold(&types[0], &avg, thirds, 3, &got);
	ck_assert_uint_eq(got, 0x3555);
	perf_fold(&types[1], &avg, thirds, 3, &got);
	ck_assert_uint_eq(got, 0x3eab);
}

int main(void)
{
	if (system("command -v redis-server >/dev/null 2>&1"))
		return 77;
	return suite_run(SUITE(.name = "tools/perf"));
}
