/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-perf - how fast the operations are, with the options, columns and exit codes of nccl-tests
 *
 * This file reads the options; perf.h lists the other files. Every rank reads the same words, and only the first one
 * complains.
 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../inherit.h"
#include "../local/output.h"
#include "options.h"
#include "tool.h"

#define MOST_BYTES ((size_t)1 << 46)
#define MOST_ITERS 100000000
#define MOST_SECONDS 86400
#define WINDOW_PAGE ((size_t)2 << 20) /* windows are multiples of it */
#define PLAIN_TURNS 11		      /* of all iterations, on a device without graphs */

const char *argp_program_version = "ep-perf " COVEY_VERSION;

static const char doc[] =
	"Measure an operation of covey on host or device memory and check its results. Start it with ep-run, or "
	"another launcher, as one process per rank: ep-run -n 4 -- ep-perf allreduce -b 8 -e 64M -f 2"
	"\v"
	"Options and columns are those of nccl-tests; p50 and p99 of single operations, of all ranks, follow behind. "
	"Sizes take K, M and G. The time is that of all iterations back to back; buffers stay where they are, in the "
	"caches if they fit. The single times are taken in a loop of their own.\n\n"
	"With --device, or COVEY_DEVICE, buffers are memory of a device, and the time is the median of several turns "
	"of all iterations, on the device's clock; with -G each turn replays them as one graph. p50 and p99 are those "
	"of turns. Where libnccl.so.2 is found it takes its turns between ours, in columns of its own: its time, and "
	"how many times ours that is. Its results are not checked.\n\n"
	"-F strikes a rank of this host once, in an iteration that follows the measurement of the first row: "
	"kill:RANK@ITER or stop:RANK@ITER. detect: from the stroke to the first SUSPECT event of a survivor; recover: "
	"until the last survivor returned with the agreed result. The rows below are those of the survivors.\n\n"
	"dispatch measures expert parallelism, dispatch and combine. On host memory it stands beside a memcpy of the "
	"same bytes. On a device there is a row for each number of tokens and of lanes: dispatch alone, combine alone, "
	"then both as a pair; GB/s are those of rows that go to other ranks. form: rows of dispatch, and of combine, "
	"are lines or go by bulk copies (--explain says why). steps: in how many a lane moves its tokens.\n\n"
	"--split: the send and the receive are launched apart, and a kernel of another stream, which wants every "
	"processor for itself, runs between them. held is its time there over its time alone: about 1 if the operation "
	"holds no processor, about 2 if it holds any. beside is its time if the receive begins with it. The send has "
	"the first step of each lane, the receive all others.\n\n"
	"Exit status: 0 all is right, 1 wrong data (or less than 0.9 x NCCL_TESTS_MIN_BW), 2 an operation or the group "
	"failed, or the output cannot be written, 64 usage.";

static const struct argp_option options[] = {
	{ "minbytes", 'b', "BYTES", 0, "First size (32M)", 1 },
	{ "maxbytes", 'e', "BYTES", 0, "Last size (32M, or that of -b)", 1 },
	{ "stepbytes", 'i', "BYTES", 0, "From one size to the next (1M)", 1 },
	{ "stepfactor", 'f', "FACTOR", 0, "Multiply sizes instead", 1 },
	{ "iters", 'n', "N", 0, "Iterations (20)", 1 },
	{ "warmup_iters", 'w', "N", 0, "Iterations that nobody counts, before them (1)", 1 },
	{ "check", 'c', "N", 0, "Operations whose every byte is checked; 0: none (1)", 1 },
	{ "op", 'o', "sum|prod|min|max|avg|all", 0, "Reduction (sum)", 1 },
	{ "datatype", 'd', "TYPE|all", 0, "int32, float, bfloat16, ... (float)", 1 },
	{ "root", 'r', "RANK|all", 0, "Root (0)", 1 },
	{ "average", 'a', "0|1|2|3", 0, "The time is that of rank 0, the average, the least, the most (1)", 1 },
	{ "timeout", 'T', "SECONDS", 0, "Give up after so long", 1 },
	{ "local_register", 'R', "0|1|2", 0,
	  "1: inputs lie in registered buffers (covey_mem_alloc); on a device NCCL's are registered, 2: as symmetric "
	  "windows (0)",
	  2 },
	{ "device", OPT_DEVICE, "N|local", 0, "Buffers in memory of that device; local: as the launcher numbers ranks",
	  2 },
	{ "cudagraph", 'G', "N", 0, "Device: replay a graph of all iterations N times; 0: none (0)", 2 },
	{ "seed", OPT_SEED, "N", 0, "Other inputs for each; alike on all ranks (0)", 2 },
	{ "alone", OPT_ALONE, NULL, 0, "Device: leave NCCL out", 2 },
	{ "fault", 'F', "kill|stop:RANK@ITER", 0, "Strike a rank", 2 },
	{ "explain", OPT_EXPLAIN, NULL, 0, "Say which algorithm is taken at which size, and leave", 2 },
	{ "json", OPT_JSON, "FILE", 0, "Write the table for other programs", 2 },
	{ "plot", OPT_PLOT, "FILE", 0, "Draw time by size, as SVG", 2 },
	{ "tokens", OPT_TOKENS, "T[,T...]", 0, "dispatch: tokens of a rank; device: a row for each number (128)", 3 },
	{ "hidden", OPT_HIDDEN, "H", 0, "dispatch: elements of a token, bfloat16 (2048)", 3 },
	{ "experts", OPT_EXPERTS, "E", 0, "dispatch: experts of all ranks (8 for each rank)", 3 },
	{ "topk", OPT_TOPK, "K", 0, "dispatch: experts of a token (8)", 3 },
	{ "lanes", OPT_LANES, "L[,L...]", 0,
	  "dispatch, device: processors that a call takes, a row for each number; 0: as many as pay (0)", 3 },
	{ "preset", OPT_PRESET, "ll|compact|flat|win|mesh|ht", 0,
	  "dispatch, device: a row for each expert of a token, or for each rank; flat: as ll, each row with its source "
	  "and entry; win, mesh: as ll, without gaps between experts; ht: as compact, over two hops between hosts (ll)",
	  3 },
	{ "rows", OPT_ROWS, "bf16|e4m3|e4m3_pow2|int8|int4", 0, "dispatch: type of the dispatched rows (bf16)", 3 },
	{ "back", OPT_BACK, "plain|int8", 0, "dispatch: type of the rows that come back; plain: bfloat16 (plain)", 3 },
	{ "combine", OPT_COMBINE, "expert|rank", 0,
	  "dispatch, device, ll: rows come back for each expert, or summed for each rank (expert)", 3 },
	{ "split", OPT_SPLIT, NULL, 0,
	  "dispatch, device: send and receive apart, too, with another stream's kernel between them", 3 },
	{ "spoil", OPT_SPOIL, NULL, OPTION_HIDDEN, "Change a bit before the check", 0 },
	{ "nthreads", 't', "N", OPTION_HIDDEN, NULL, 0 },
	{ "ngpus", 'g', "N", OPTION_HIDDEN, NULL, 0 },
	{ "agg_iters", 'm', "N", OPTION_HIDDEN, NULL, 0 },
	{ "run_cycles", 'N', "N", OPTION_HIDDEN, NULL, 0 },
	{ "parallel_init", 'p', "N", OPTION_HIDDEN, NULL, 0 },
	{ "blocking", 'z', "N", OPTION_HIDDEN, NULL, 0 },
	{ "stream_null", 'y', "N", OPTION_HIDDEN, NULL, 0 },
	{ "report_cputime", 'C', "N", OPTION_HIDDEN, NULL, 0 },
	{ "device_implementation", 'D', "N", OPTION_HIDDEN, NULL, 0 },
	{ "device_cta_count", 'V', "N", OPTION_HIDDEN, NULL, 0 },
	{ "cta_policy", 'x', "N", OPTION_HIDDEN, NULL, 0 },
	{ 0 },
};

/* Options of nccl-tests that host memory does not have. */
static const struct {
	int key;
	const char *why;
} senseless[] = {
	{ 't', "a rank is a process: start more with ep-run -n" },
	{ 'g', "a rank is a process: start more with ep-run -n" },
	{ 'm', "operations are not aggregated" },
	{ 'N', "there is one cycle: start ep-perf again" },
	{ 'p', "ranks join by themselves" },
	{ 'z', "calls on host memory always block" },
	{ 'y', "operations on device memory have a stream of their own, host memory has none" },
	{ 'C', "a call on host memory keeps its thread: its time is what the table has" },
	{ 'D', "host memory has no device implementations" },
	{ 'V', "host memory has no thread blocks" },
	{ 'x', "host memory has no thread blocks" },
};

int perf_fail(const struct perf_job *job, const char *what, int err)
{
	struct covey_error_info info = { 0 };

	char rank[32] = "";

	covey_last_error(job->group, &info);
	if (job->rank >= 0)
		snprintf(rank, sizeof(rank), "rank %d: ", job->rank);
	fprintf(stderr, "ep-perf: %s%s: %s%s%s\n", rank, what, covey_strerror(err), info.cause[0] ? ": " : "",
		info.cause);
	return err;
}

/* The launcher's number of this rank, before the group assigns one; -1: none. */
static int launched_as(void)
{
	static const char *const names[] = { "COVEY_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *text = getenv(names[i]);

		if (text)
			return atoi(text);
	}
	return -1;
}

void perf_usage(const char *format, ...)
{
	va_list args;

	if (launched_as() <= 0) {
		fprintf(stderr, "ep-perf: ");
		va_start(args, format);
		vfprintf(stderr, format, args);
		va_end(args);
		fprintf(stderr, "\nTry `ep-perf --help'.\n");
	}
	exit(PERF_USAGE);
}

static long number(const char *name, const char *text, long min, long max)
{
	long value;

	if (!tool_number(text, min, max, &value, NULL))
		perf_usage("%s is %s: a number from %ld to %ld is needed", name, text, min, max);
	return value;
}

static size_t bytes_of(const char *name, const char *text)
{
	static const char units[] = { 'K', 'M', 'G' };
	char *end;
	double value = strtod(text, &end);
	const char *unit = memchr(units, *end & ~0x20, sizeof(units));

	if (unit) {
		value *= (double)((size_t)1 << (10 * (unit - units + 1)));
		end++;
	}
	if (end == text || *end || !(value >= 0) || value > (double)MOST_BYTES)
		perf_usage("%s is %s: bytes are needed, like 8, 64K, 1.5M or 2G", name, text);
	return (size_t)value;
}

static int type_named(const char *text)
{
	if (!strcmp(text, "all"))
		return PERF_ALL;
	for (int i = 0; i < perf_type_count; i++)
		if (!strcmp(perf_types[i].name, text))
			return i;
	perf_usage("-d is %s: not a type that covey has", text);
}

static int redop_named(const char *text)
{
	if (!strcmp(text, "all"))
		return PERF_ALL;
	for (int i = 0; i < perf_redop_count; i++)
		if (!strcmp(perf_redops[i].name, text))
			return i;
	perf_usage("-o is %s: not a reduction that covey has", text);
}

static void fault_named(const char *text, struct perf_options *opt)
{
	char kind[8] = "", rest;

	if (sscanf(text, "%7[a-z]:%d@%d%c", kind, &opt->fault_rank, &opt->fault_iter, &rest) != 3 ||
	    (strcmp(kind, "kill") && strcmp(kind, "stop")) || opt->fault_rank < 0 ||
	    opt->fault_rank >= COVEY_MAX_RANKS || opt->fault_iter < 1)
		perf_usage("-F is %s: kill:RANK@ITER or stop:RANK@ITER is needed, iterations counted from 1", text);
	opt->fault = strcmp(kind, "kill") ? PERF_STOP : PERF_KILL;
}

static void operation_named(const char *text, struct perf_options *opt, bool *ep)
{
	if (opt->op || *ep)
		perf_usage("%s: one operation at a time", text);
	*ep = !strcmp(text, "dispatch") || !strcmp(text, "combine");
	for (int i = 0; i < OP_COUNT; i++)
		if (!strcmp(operation_table[i].name, text))
			opt->op = &operation_table[i];
	if (!opt->op && !*ep)
		perf_usage("%s: no such operation", text);
}

struct reading {
	struct perf_options *opt;
	bool ep, max_given, min_given;
};

static error_t parse_sizes(int key, char *arg, struct reading *in)
{
	struct perf_options *opt = in->opt;
	char *end;

	switch (key) {
	case 'b':
		opt->min_bytes = bytes_of("-b", arg);
		in->min_given = true;
		return 0;
	case 'e':
		opt->max_bytes = bytes_of("-e", arg);
		in->max_given = true;
		return 0;
	case 'i':
		opt->step_bytes = bytes_of("-i", arg);
		return 0;
	case 'f':
		opt->factor = strtod(arg, &end);
		if (end == arg || *end || !(opt->factor > 1) || opt->factor > 1e6)
			perf_usage("-f is %s: a factor above 1 is needed", arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse_number(int key, const char *arg, struct perf_options *opt)
{
	const struct tool_option numbers[] = {
		{ OPT_HIDDEN, "--hidden", &opt->hidden, 8, 1 << 20 },
		{ OPT_EXPERTS, "--experts", &opt->experts, 1, 65536 },
		{ OPT_TOPK, "--topk", &opt->topk, 1, 32 },
		{ 'n', "-n", &opt->iters, 1, MOST_ITERS },
		{ 'w', "-w", &opt->warmup, 0, MOST_ITERS },
		{ 'c', "-c", &opt->checks, 0, 1000 },
		{ 'a', "-a", &opt->average, PERF_OF_RANK0, PERF_OF_MAX },
		{ 'T', "-T", &opt->timeout_s, 1, MOST_SECONDS },
		{ 'R', "-R", &opt->registered, 0, 2 },
		{ 'G', "-G", &opt->graphs, 0, MOST_ITERS },
		{ 0 },
	};
	const struct tool_option *o = tool_option(numbers, key);

	if (o)
		*o->to = (int)number(o->name, arg, o->min, o->max);
	return o ? 0 : ARGP_ERR_UNKNOWN;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct reading *in = state->input;
	struct perf_options *opt = in->opt;
	const struct tool_set plain[] = {
		{ OPT_ALONE, &opt->alone, NULL },
		{ OPT_EXPLAIN, &opt->explain, NULL },
		{ OPT_SPOIL, &opt->spoil, NULL },
		{ OPT_SPLIT, &opt->split, NULL },
		{ OPT_JSON, NULL, &opt->json },
		{ OPT_PLOT, NULL, &opt->plot },
		{ 0 },
	};

	if (tool_set(plain, key, arg))
		return 0;
	for (size_t i = 0; i < sizeof(senseless) / sizeof(senseless[0]); i++)
		if (senseless[i].key == key)
			perf_usage("-%c has no meaning here: %s", key, senseless[i].why);
	switch (key) {
	case 'o':
		opt->redop = redop_named(arg);
		return 0;
	case 'd':
		opt->type = type_named(arg);
		return 0;
	case 'r':
		opt->root = !strcmp(arg, "all") ? PERF_ALL : (int)number("-r", arg, 0, COVEY_MAX_RANKS - 1);
		return 0;
	case OPT_DEVICE:
		setenv("COVEY_DEVICE", arg, 1);
		return 0;
	case OPT_SEED:
		opt->seed = (uint64_t)number("--seed", arg, 0, LONG_MAX);
		return 0;
	case 'F':
		fault_named(arg, opt);
		return 0;
	case ARGP_KEY_ARG:
		operation_named(arg, opt, &in->ep);
		return 0;
	}
	return parse_sizes(key, arg, in) && parse_number(key, arg, opt) && perf_parse_ep(key, arg, opt)
		       ? ARGP_ERR_UNKNOWN
		       : 0;
}

static void check_device(const struct perf_options *opt)
{
	if (!opt->device && opt->graphs)
		perf_usage("-G: host memory has no graphs; --device chooses a device's");
	if (!opt->device && opt->registered > 1)
		perf_usage("-R 2 is for device memory");
	if (!opt->device || opt->explain)
		return;
	if (opt->fault)
		perf_usage("-F is for host memory alone");
}

static void check_options(const struct reading *in)
{
	const struct perf_options *opt = in->opt;

	if (opt->explain)
		return;
	if (!opt->op && !in->ep)
		perf_usage("an operation is needed: allreduce, barrier, dispatch, ... (see --help)");
	if (opt->min_bytes > opt->max_bytes)
		perf_usage("-b %zu is more than -e %zu", opt->min_bytes, opt->max_bytes);
	if (opt->factor <= 0 && !opt->step_bytes && opt->min_bytes != opt->max_bytes)
		perf_usage("-i 0 leads nowhere");
	if (in->ep && (opt->fault || opt->plot || in->min_given || in->max_given))
		perf_usage("dispatch and combine have no sizes in bytes: -b, -e, -F and --plot are for the other "
			   "operations");
	if (in->ep)
		perf_check_ep(opt);
	check_device(opt);
	if (opt->fault && opt->op->of == OP_OF_BEFORE)
		perf_usage("-F: survivors agree on no result of %s", opt->op->name);
	if (opt->fault && opt->op->rooted && (opt->root == PERF_ALL || opt->root == opt->fault_rank))
		perf_usage("-F strikes the root, and no result is left to agree on: choose another by -r");
}

/* Room for both buffers, unless a setting says how much there is. */
static void make_window(const struct perf_options *opt)
{
	char bytes[32];

	snprintf(bytes, sizeof(bytes), "%zu",
		 (2 * opt->max_bytes + 2 * WINDOW_PAGE) / WINDOW_PAGE * WINDOW_PAGE + WINDOW_PAGE);
	setenv("COVEY_DEVICE_WINDOW_BYTES", bytes, 0);
}

/* Of dispatch and combine. */
static void fill_in(struct perf_options *opt)
{
	if (!opt->hidden)
		opt->hidden = 2048;
	if (!opt->topk)
		opt->topk = 8;
	if (!opt->token_list.count)
		opt->token_list = (struct perf_list){ .value = { 128 }, .count = 1 };
	opt->tokens = opt->token_list.value[0];
}

int perf_parse(int argc, char **argv, struct perf_options *opt)
{
	static char args_doc[] = "OPERATION";
	static const struct argp argp = { options, parse, args_doc, doc, NULL, NULL, NULL };
	struct reading in = { .opt = opt };
	const char *least = getenv("NCCL_TESTS_MIN_BW"), *device;
	int err;

	*opt = (struct perf_options){ .min_bytes = (size_t)32 << 20,
				      .max_bytes = (size_t)32 << 20,
				      .step_bytes = (size_t)1 << 20,
				      .iters = 20,
				      .warmup = 1,
				      .checks = 1,
				      .average = PERF_OF_AVG,
				      .type = type_named("float"),
				      .redop = redop_named("sum"),
				      .fault_rank = -1,
				      .least_busbw = least ? atof(least) : 0 };
	err = argp_parse(&argp, argc, argv, launched_as() > 0 ? ARGP_SILENT : 0, NULL, &in);
	if (err)
		return PERF_USAGE;
	if (!in.max_given && opt->min_bytes > opt->max_bytes)
		opt->max_bytes = opt->min_bytes;
	device = getenv("COVEY_DEVICE");
	opt->device = device && device[0] && strcmp(device, "none");
	fill_in(opt);
	opt->turns = opt->graphs ? opt->graphs : PLAIN_TURNS;
	if (opt->device && opt->registered)
		make_window(opt);
	check_options(&in);
	if (in.ep && opt->device)
		perf_ep_window(opt);
	if (!opt->lane_list.count)
		opt->lane_list.count = 1; /* 0 */
	return 0;
}

static void too_late(int number_of_signal)
{
	static const char text[] = "ep-perf: the time of -T is over\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)number_of_signal;
	(void)n;
	_exit(PERF_FAILED);
}

int main(int argc, char **argv)
{
	struct perf_job job = { .rank = launched_as() };
	struct sigaction late = { .sa_handler = too_late };
	int err;

	tool_settle();
	tool_output_checked("ep-perf", 2);
	err = perf_parse(argc, argv, &job.opt);
	if (err)
		return err;
	if (job.opt.timeout_s) {
		sigaction(SIGALRM, &late, NULL);
		alarm((unsigned)job.opt.timeout_s);
	}
	return perf_run(&job);
}
