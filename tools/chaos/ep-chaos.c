/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-chaos - kill ranks of a working group and check what the survivors agree on
 *
 * This file reads the options and runs one kind of test. See chaos.h for how the parts fit.
 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../local/output.h"
#include "plan.h"
#include "covey.h"
#include "../inherit.h"

#define STOOD_STILL_NS 1000000000u

const char *argp_program_version = "ep-chaos " COVEY_VERSION;

static const char doc[] =
	"Kill ranks of a working covey group again and again, and compare every outcome of the survivors."
	"\v"
	"A private redis-server and all ranks are started here and end with ep-chaos. Each rank checks the bytes of "
	"each operation; ep-chaos compares status, epoch, contributors and a checksum between the ranks, kills, and "
	"starts a replacement. The settings of the group are the defaults, or those of COVEY_* in the environment.\n\n"
	"Without --bench, --idle, --leak or --steps: 20 kills, by SIGKILL and SIGSTOP in turn, one or two ranks at a "
	"time, all kinds of operations.\n\n"
	"With --plan: faults by a plan, which is a text (share/covey/chaos has the usual ones and the grammar, in its "
	"README), the name of one of those, or `random`. The ranks do all kinds and sizes of operations, in one group "
	"or in several, and check every element; ep-chaos injects, compares all outcomes, and ends with a table and a "
	"verdict. With --devices buffers are in memory of devices, a third of the calls are captured and replayed, and "
	"outcomes are what the devices say; safe points wait for them, or with an odd seed do not.\n\n"
	"Times count from the kill to the end of the operation that could not be done without the new view, on each "
	"survivor; from exec of a replacement (on devices: from its call of covey_join, its device open) to the end of "
	"its first operation, its memory touched; the pause is the longest time from one operation to the next on a "
	"survivor meanwhile, less the median.\n\n"
	"Exit status: 0 if all outcomes were uniform and nothing leaked; 1 if not, or with --strict if a bar was "
	"missed; 2 if the run could not start or the output cannot be written; 64: usage.";

enum {
	OPT_BENCH = 256,
	OPT_IDLE,
	OPT_LEAK,
	OPT_STEPS,
	OPT_EXTEND,
	OPT_OVERLOAD,
	OPT_KILLS,
	OPT_TOUCH,
	OPT_MIX,
	OPT_SIGNAL,
	OPT_JSON,
	OPT_STRICT,
	OPT_BURST,
	OPT_SEED,
	OPT_BYTES,
	OPT_RANK,
	OPT_SHARED,
	OPT_JOINER,
	OPT_PLAN,
	OPT_SECONDS,
	OPT_PLOT,
	OPT_SHOW,
	OPT_DEVICES,
	OPT_TOKENS,
	OPT_DESK
};

static const struct argp_option options[] = {
	{ "bench", OPT_BENCH, NULL, 0, "Measure: 100 kills of ranks with 256 MiB each, allreduce of 64 KiB", 0 },
	{ "idle", OPT_IDLE, "SECONDS", 0, "Measure the time that an idle group takes of one core", 0 },
	{ "leak", OPT_LEAK, NULL, 0, "100 cycles of death and replacement; nothing may grow after the 20th", 0 },
	{ "steps", OPT_STEPS, "N", 0, "N steps without a kill; nothing may grow after the first tenth", 0 },
	{ "plan", OPT_PLAN, "FILE|NAME|random", 0, "Faults by a plan", 0 },
	{ "seconds", OPT_SECONDS, "N", 0, "How long to repeat the plan (default 10, or its rounds)", 1 },
	{ "plot", OPT_PLOT, "FILE.svg", 0, "Waiting times and faults of a plan's run, drawn", 2 },
	{ "devices", OPT_DEVICES, "N", 0,
	  "With --plan or --bench: operations on device memory, the ranks on N devices in turn; no messages", 1 },
	{ "tokens", OPT_TOKENS, "N", 0,
	  "With --bench --devices: dispatch and combine of N tokens a rank instead of allreduce", 1 },
	{ "show", OPT_SHOW, NULL, 0, "Print the random plan of this seed and end", 2 },
	{ "extend", OPT_EXTEND, "TIMES", 0, "Measure: 4 ranks grow to 8 under traffic, and lose them again", 0 },
	{ "overload", OPT_OVERLOAD, "SECONDS", 0, "Count suspicions while 8 ranks and busy loops share the cores", 0 },
	{ "ranks", 'n', "N", 0, "Ranks of the group (3 to 8, of --bench --devices 2 to 8; default 4)", 1 },
	{ "kills", OPT_KILLS, "N", 0, "Cycles of kill and replacement", 1 },
	{ "burst", OPT_BURST, "N", 0, "Kill up to N ranks at one instant, fewer than half of them or half", 1 },
	{ "signal", OPT_SIGNAL, "kill|stop|both", 0, "SIGKILL, SIGSTOP or both", 1 },
	{ "touch", OPT_TOUCH, "MIB", 0, "Memory that each rank touches", 1 },
	{ "bytes", OPT_BYTES, "N", 0, "Size of an operation (default 65536)", 1 },
	{ "mix", OPT_MIX, NULL, 0, "All kinds of operations in turn instead of allreduce", 1 },
	{ "seed", OPT_SEED, "N", 0, "Choice of victims and instants", 1 },
	{ "json", OPT_JSON, NULL, 0, "Figures as JSON", 2 },
	{ "strict", OPT_STRICT, NULL, 0, "A bar that is missed is an error", 2 },
	{ "verbose", 'v', NULL, 0, "A line for each kill", 2 },
	{ "rank", OPT_RANK, "R", OPTION_HIDDEN, NULL, 0 },
	{ "shared", OPT_SHARED, "FD", OPTION_HIDDEN, NULL, 0 },
	{ "desk", OPT_DESK, "D", OPTION_HIDDEN, NULL, 0 },
	{ "joiner", OPT_JOINER, NULL, OPTION_HIDDEN, NULL, 0 },
	{ 0 },
};

uint64_t chaos_awake_ns(void)
{
	static uint64_t last, stood;
	uint64_t now = tool_now_ns();

	if (last && now - last > STOOD_STILL_NS)
		stood += now - last;
	last = now;
	return now - stood;
}

uint64_t chaos_outcome_end(void)
{
	return chaos_awake_ns() + CHAOS_OUTCOME_MS * UINT64_C(1000000);
}

void chaos_sleep_us(unsigned us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static void set_signal(struct argp_state *state, struct chaos_options *opt, const char *text)
{
	if (strcmp(text, "kill") && strcmp(text, "stop") && strcmp(text, "both"))
		argp_error(state, "--signal is %s: kill, stop or both is needed", text);
	opt->signal_named = true;
	opt->stop = !strcmp(text, "stop");
	opt->both = !strcmp(text, "both");
}

static error_t parse_number(int key, const char *arg, struct argp_state *state)
{
	struct chaos_options *opt = state->input;
	const struct tool_option numbers[] = {
		{ 'n', "-n", &opt->ranks, 2, CHAOS_MAX_RANKS },
		{ OPT_IDLE, "--idle", &opt->idle_s, 1, 86400 },
		{ OPT_STEPS, "--steps", &opt->steps, 100, 1000000000 },
		{ OPT_EXTEND, "--extend", &opt->extends, 1, CHAOS_SAMPLES },
		{ OPT_OVERLOAD, "--overload", &opt->overload_s, 1, 86400 },
		{ OPT_KILLS, "--kills", &opt->kills, 1, 1000000 },
		{ OPT_BURST, "--burst", &opt->burst, 1, CHAOS_MAX_RANKS / 2 },
		{ OPT_TOUCH, "--touch", &opt->touch_mib, 0, 1 << 20 },
		{ OPT_BYTES, "--bytes", &opt->bytes, 8, 1 << 30 },
		{ OPT_SEED, "--seed", &opt->seed, 1, 1 << 30 },
		{ OPT_SECONDS, "--seconds", &opt->seconds, 1, 86400 },
		{ OPT_DEVICES, "--devices", &opt->devices, 1, 64 },
		{ OPT_TOKENS, "--tokens", &opt->tokens, 1, 4096 },
		{ OPT_DESK, "--desk", &opt->desk, 0, CHAOS_DESKS - 1 },
		{ OPT_RANK, "--rank", &opt->rank, 0, CHAOS_MAX_RANKS - 1 },
		{ OPT_SHARED, "--shared", &opt->shared_fd, 3, 1 << 20 },
		{ 0 },
	};
	const struct tool_option *o = tool_option(numbers, key);
	long value;

	if (!o)
		return ARGP_ERR_UNKNOWN;
	if (!tool_number(arg, o->min, o->max, &value, NULL))
		argp_error(state, "%s is %s: a number from %ld to %ld is needed", o->name, arg, o->min, o->max);
	*o->to = (int)value;
	opt->ranks_named |= key == 'n';
	return 0;
}

/* Checks options that need others. */
static void check_together(struct argp_state *state, const struct chaos_options *opt)
{
	bool measured = opt->bench && opt->devices;

	if (opt->devices && !opt->plan && !opt->bench)
		argp_error(state, "--devices needs a --plan, or --bench");
	if (opt->tokens && !measured)
		argp_error(state, "--tokens needs --bench and --devices");
	if (opt->mix && measured)
		argp_error(state, "--mix is for host memory: on devices --plan has all kinds of operations");
	if (opt->ranks == 2 && !measured)
		argp_error(state, "-n is 2: a number from 3 to 8 is needed, 2 only with --bench --devices");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct chaos_options *opt = state->input;
	const struct tool_set plain[] = {
		{ OPT_BENCH, &opt->bench, NULL },
		{ OPT_LEAK, &opt->leak, NULL },
		{ OPT_MIX, &opt->mix, NULL },
		{ OPT_JSON, &opt->json, NULL },
		{ OPT_STRICT, &opt->strict, NULL },
		{ OPT_SHOW, &opt->show, NULL },
		{ 'v', &opt->verbose, NULL },
		{ OPT_JOINER, &opt->joiner, NULL },
		{ OPT_PLAN, NULL, &opt->plan },
		{ OPT_PLOT, NULL, &opt->plot },
		{ 0 },
	};

	if (tool_set(plain, key, arg))
		return 0;
	switch (key) {
	case OPT_SIGNAL:
		set_signal(state, opt, arg);
		return 0;
	case ARGP_KEY_END:
		check_together(state, opt);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "%s: no arguments are needed", arg);
		return 0;
	}
	return parse_number(key, arg, state);
}

int main(int argc, char **argv)
{
	struct chaos_options opt = { .ranks = 4, .desk = -1, .shared_fd = -1, .touch_mib = -1, .bytes = 65536 };
	const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };

	tool_settle();
	tool_output_checked("ep-chaos", 2);
	opt.seed = (int)(tool_now_ns() % (1 << 30) | 1);
	argp_err_exit_status = 64;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	if (opt.desk >= 0)
		return chaos_member_main(&opt);
	return opt.plan || opt.show ? chaos_plan_run(&opt) : chaos_bench_run(&opt);
}
