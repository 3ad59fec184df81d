/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-moe - a Mixture-of-Experts job that goes on while its ranks die, come back and are added
 *
 * Without RANK or COVEY_RANK in the environment this process is the director, which starts itself under ep-run as
 * ranks; with one of them it is a rank.
 */
#include <argp.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe.h"

const char *argp_program_version = "ep-moe " COVEY_VERSION;

static const char doc[] =
	"Run a Mixture-of-Experts layer over text on several ranks, break it, and check every row of every step."
	"\v"
	"Each rank turns its share of the text into token vectors, routes them to the top-k experts, and runs "
	"admit, dispatch, experts, combine and an allreduce per step. A process that has all weights makes every step anew "
	"under the masks that the rank was given. A token is lost only when its source or all of its owners died.\n\n"
	"When the group grows the experts are laid out anew and weights are sent by their old owners; what no living rank "
	"holds is made from the seed, which stands for a checkpoint.\n\n"
	"Exit status: 0 if all rows matched and every planned death hit an operation, 1 if not, 64 usage.";

enum { OPT_HIDDEN = 256, OPT_EXPERTS, OPT_TOPK, OPT_STEPS, OPT_KILL, OPT_FAULT, OPT_RECOVER, OPT_EXTEND, OPT_TRANSPORT,
       OPT_DEMO, OPT_SEED, OPT_REPORT, OPT_TOKENS, OPT_TEXT, OPT_FFN };

static const struct argp_option options[] = {
	{ "ranks", 'n', "N", 0, "Ranks to start (4)", 0 },
	{ "text", OPT_TEXT, "FILE", 0, "Text to work on (a licence of this system)", 0 },
	{ "tokens", OPT_TOKENS, "T", 0, "Tokens per rank and step (32)", 0 },
	{ "hidden", OPT_HIDDEN, "H", 0, "Elements of a token (64)", 0 },
	{ "ffn", OPT_FFN, "F", 0, "Inner size of an expert (128)", 0 },
	{ "experts", OPT_EXPERTS, "E", 0, "Experts (24)", 0 },
	{ "top-k", OPT_TOPK, "K", 0, "Experts of a token (4)", 0 },
	{ "steps", OPT_STEPS, "S", 0, "Steps, at least (200)", 0 },
	{ "kill", OPT_KILL, "R@STEP[:SIGNAL]", 0, "Send rank R a signal from outside (KILL)", 0 },
	{ "fault", OPT_FAULT, "R:PLAN", 0, "COVEY_FAULT of the first process of rank R", 0 },
	{ "recover", OPT_RECOVER, NULL, 0, "Replace ranks that die", 0 },
	{ "extend", OPT_EXTEND, "N@STEP", 0, "Grow to N ranks", 0 },
	{ "transport", OPT_TRANSPORT, "shm|tcp", 0, "How the ranks reach each other (shm)", 0 },
	{ "demo", OPT_DEMO, NULL, 0,
	  "A death inside a dispatch, its replacement, growth to 6 ranks, and a SIGKILL at a random time", 0 },
	{ "seed", OPT_SEED, "X", 0, "Of all random numbers (the time)", 0 },
	{ "report", OPT_REPORT, "SOCKET", OPTION_HIDDEN, NULL, 0 },
	{ 0 },
};

static long number(struct argp_state *state, const char *text, long min, long max, char **rest)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || end == text || value < min || value > max || (*end && !rest))
		argp_error(state, "%s: a number from %ld to %ld is needed", text, min, max);
	if (rest)
		*rest = end;
	return value;
}

static struct moe_plan *plan(struct argp_state *state, int kind)
{
	struct moe_options *opt = state->input;
	struct moe_plan *p = &opt->plan[opt->plans];

	if (opt->plans == MOE_MAX_PLAN)
		argp_error(state, "more than %d of --kill, --fault and --extend", MOE_MAX_PLAN);
	opt->plans++;
	memset(p, 0, sizeof(*p));
	p->kind = kind;
	return p;
}

static int signal_number(struct argp_state *state, const char *name)
{
	for (int s = 1; s < 32; s++)
		if (sigabbrev_np(s) && !strcmp(sigabbrev_np(s), name))
			return s;
	return (int)number(state, name, 1, 31, NULL);
}

static void parse_plan(struct argp_state *state, int kind, char *arg)
{
	struct moe_plan *p = plan(state, kind);
	char *rest;

	p->rank = (int)number(state, arg, kind == MOE_EXTEND ? 2 : 0, MOE_MAX_RANKS - (kind != MOE_EXTEND), &rest);
	if (*rest != (kind == MOE_FAULT ? ':' : '@'))
		argp_error(state, "%s: RANK%s is needed", arg, kind == MOE_FAULT ? ":PLAN" : "@STEP");
	if (kind == MOE_FAULT) {
		p->fault = rest + 1;
		return;
	}
	p->step = (uint64_t)number(state, rest + 1, 0, 1000000, &rest);
	p->signal = *rest == ':' ? signal_number(state, rest + 1) : 9;
}

static void demo(struct argp_state *state)
{
	struct moe_options *opt = state->input;
	struct moe_plan *p = plan(state, MOE_FAULT);

	opt->demo = opt->recover = true;
	p->rank = 2;
	p->fault = "kill@op:dispatch:30.put:2";
	p = plan(state, MOE_EXTEND);
	p->rank = 6;
	p->step = 50;
	p->whole = true;
	p = plan(state, MOE_KILL);
	p->rank = -1;
	p->step = 50;
	p->signal = 9;
	p->whole = true;
}

static error_t parse_size(int key, char *arg, struct argp_state *state)
{
	struct moe_options *opt = state->input;

	switch (key) {
	case 'n':
		opt->ranks = (int)number(state, arg, 1, MOE_MAX_RANKS, NULL);
		return 0;
	case OPT_TOKENS:
		opt->shape.tokens = (int)number(state, arg, 1, 65536, NULL);
		return 0;
	case OPT_HIDDEN:
		opt->shape.hidden = (int)number(state, arg, 8, 65536, NULL);
		return 0;
	case OPT_FFN:
		opt->ffn = (int)number(state, arg, 1, 262144, NULL);
		return 0;
	case OPT_EXPERTS:
		opt->shape.experts = (int)number(state, arg, 1, 4096, NULL);
		return 0;
	case OPT_TOPK:
		opt->shape.top_k = (int)number(state, arg, 1, 32, NULL);
		return 0;
	case OPT_STEPS:
		opt->steps = (int)number(state, arg, 1, 1000000, NULL);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void finish(struct argp_state *state)
{
	struct moe_options *opt = state->input;

	if (opt->shape.hidden % 8)
		argp_error(state, "--hidden must be a multiple of 8");
	if (opt->shape.top_k > opt->shape.experts)
		argp_error(state, "--top-k is larger than --experts");
	opt->max_ranks = opt->ranks > 16 ? opt->ranks : 16;
	for (int i = 0; i < opt->plans; i++) {
		if (opt->plan[i].kind == MOE_EXTEND && opt->plan[i].rank > opt->max_ranks)
			opt->max_ranks = opt->plan[i].rank;
		if (opt->plan[i].kind == MOE_FAULT && opt->plan[i].rank >= opt->ranks)
			argp_error(state, "--fault: there is no rank %d", opt->plan[i].rank);
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct moe_options *opt = state->input;

	switch (key) {
	case OPT_TEXT:
		opt->text = arg;
		return 0;
	case OPT_KILL:
		parse_plan(state, MOE_KILL, arg);
		return 0;
	case OPT_FAULT:
		parse_plan(state, MOE_FAULT, arg);
		return 0;
	case OPT_EXTEND:
		parse_plan(state, MOE_EXTEND, arg);
		return 0;
	case OPT_RECOVER:
		opt->recover = true;
		return 0;
	case OPT_TRANSPORT:
		if (strcmp(arg, "shm") && strcmp(arg, "tcp"))
			argp_error(state, "--transport: shm or tcp");
		opt->transport = arg;
		return 0;
	case OPT_DEMO:
		demo(state);
		return 0;
	case OPT_SEED:
		opt->seed = strtoull(arg, NULL, 10);
		opt->seeded = true;
		return 0;
	case OPT_REPORT:
		opt->report = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "%s: no arguments are taken", arg);
		return 0;
	case ARGP_KEY_END:
		finish(state);
		return 0;
	default:
		return parse_size(key, arg, state);
	}
}

static const char *find_text(void)
{
	static const char *const texts[] = { "/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0",
					     "LICENSE", "README.md" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!access(texts[i], R_OK))
			return texts[i];
	return texts[3];
}

int main(int argc, char **argv)
{
	static struct moe_options opt = { .ranks = 4,
					  .steps = 200,
					  .ffn = 128,
					  .shape = { .tokens = 32, .hidden = 64, .top_k = 4, .experts = 24 },
					  .transport = "shm" };
	static const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };
	char path[4096];
	ssize_t n;

	opt.text = find_text();
	opt.argc = argc;
	opt.argv = argv;
	argp_err_exit_status = 64;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	if (getenv("RANK") || getenv("COVEY_RANK")) {
		opt.seed = opt.seeded ? opt.seed : 1; /* alike on all ranks */
		return moe_rank_main(&opt);
	}
	if (!opt.seeded)
		opt.seed = moe_now_ns() % 1000000;
	n = readlink("/proc/self/exe", opt.self, sizeof(opt.self) - 1);
	if (n <= 0) {
		perror("/proc/self/exe");
		return 1;
	}
	memcpy(path, opt.self, sizeof(path));
	snprintf(opt.tools, sizeof(opt.tools), "%s", dirname(path));
	return moe_director_main(&opt);
}
