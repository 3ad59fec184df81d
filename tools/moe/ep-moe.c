/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-moe - a Mixture-of-Experts job that continues while its ranks die, come back and are added
 *
 * Without RANK or COVEY_RANK in the environment this process is the director, which starts itself under ep-run as
 * ranks; with one of them it is a rank.
 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../inherit.h"
#include "../local/output.h"
#include "moe.h"
#include "tool.h"

const char *argp_program_version = "ep-moe " COVEY_VERSION;

static const char doc[] =
	"Run a Mixture-of-Experts layer over text on several ranks, break it, and check every row of every step."
	"\v"
	"Each rank turns its share of the text into token vectors, routes them to the top-k experts, and runs admit, "
	"dispatch, experts, combine and an allreduce per step. Then it makes the step again in the plainest way, with "
	"all weights, under the masks that it was given. A token is lost only when its source or all of its owners "
	"died.\n\n"
	"When the group grows the experts are laid out anew and weights are sent by their old owners; what no living "
	"rank holds is made from the seed, which stands for a checkpoint.\n\n"
	"Exit status: 0 if all rows matched and every planned death hit an operation, 1 if not or if the output cannot "
	"be written, 64 usage.";

enum {
	OPT_HIDDEN = 256,
	OPT_EXPERTS,
	OPT_TOPK,
	OPT_STEPS,
	OPT_KILL,
	OPT_FAULT,
	OPT_RECOVER,
	OPT_EXTEND,
	OPT_TRANSPORT,
	OPT_DEMO,
	OPT_SEED,
	OPT_REPORT,
	OPT_PART,
	OPT_TOKENS,
	OPT_TEXT,
	OPT_FFN,
	OPT_DEVICES,
	OPT_PRESET,
	OPT_REPLICAS
};

static const struct argp_option options[] = {
	{ "ranks", 'n', "N", 0, "Ranks to start (4)", 0 },
	{ "text", OPT_TEXT, "FILE", 0, "Text to work on (a licence of this system)", 0 },
	{ "tokens", OPT_TOKENS, "T", 0, "Tokens per rank and step (32)", 0 },
	{ "hidden", OPT_HIDDEN, "H", 0, "Elements of a token (64)", 0 },
	{ "ffn", OPT_FFN, "F", 0, "Inner size of an expert (128)", 0 },
	{ "experts", OPT_EXPERTS, "E", 0, "Experts (24)", 0 },
	{ "top-k", OPT_TOPK, "K", 0, "Experts of a token (4)", 0 },
	{ "preset", OPT_PRESET, "ll|compact|flat|win|mesh|ht", 0,
	  "How rows arrive: one for each expert of a token; one for each rank, which sums; as ll, each with its source "
	  "and entry; as ll, without gaps between experts, each with its source, token and k; as compact (ll)",
	  0 },
	{ "replicas", OPT_REPLICAS, "P", 0,
	  "Places of an expert (1): ranks that hold it. If one dies, its tokens go to another in the same dispatch; "
	  "results that it had are made again",
	  0 },
	{ "steps", OPT_STEPS, "S", 0, "Steps, at least (200)", 0 },
	{ "kill", OPT_KILL, "R@STEP", 0, "Kill rank R from outside", 0 },
	{ "fault", OPT_FAULT, "R:PLAN", 0, "COVEY_FAULT of the first process of rank R", 0 },
	{ "recover", OPT_RECOVER, NULL, 0, "Replace ranks that die", 0 },
	{ "extend", OPT_EXTEND, "N@STEP", 0, "Grow to N ranks", 0 },
	{ "devices", OPT_DEVICES, "D", 0,
	  "Dispatch, experts and combine on device memory: rank R takes device R % D (0: on the host)", 0 },
	{ "transport", OPT_TRANSPORT, "shm|tcp", 0, "How the ranks reach each other (shm)", 0 },
	{ "demo", OPT_DEMO, NULL, 0,
	  "Over shm: a death inside a dispatch, its replacement, growth to 6 ranks, a SIGKILL at a random time. Then "
	  "over tcp: a death inside an allreduce that some survivors have data of and some have not. With --transport: "
	  "the first part over that. With --devices: the first part, with both deaths at random times",
	  0 },
	{ "seed", OPT_SEED, "X", 0, "Of all random numbers (the time)", 0 },
	{ "report", OPT_REPORT, "SOCKET", OPTION_HIDDEN, NULL, 0 },
	{ "part", OPT_PART, "N", OPTION_HIDDEN, NULL, 0 },
	{ 0 },
};

/* @name: of the option, for errors */
static long number(struct argp_state *state, const char *name, const char *text, long min, long max, char **rest)
{
	long value;

	if (!tool_number(text, min, max, &value, rest))
		argp_error(state, "--%s %s: a number from %ld to %ld is needed", name, text, min, max);
	return value;
}

const char *moe_preset_name(int preset)
{
	static const char *const names[] = { [COVEY_EP_LL] = "ll",
					     [COVEY_EP_COMPACT] = "compact",
					     [COVEY_EP_FLAT] = "flat",
					     [COVEY_EP_WIN] = "win",
					     [COVEY_EP_HT] = "ht" };

	return preset < (int)(sizeof(names) / sizeof(names[0])) ? names[preset] : NULL;
}

static struct moe_plan *plan(struct moe_options *opt, int kind, int rank)
{
	struct moe_plan *p = &opt->plan[opt->plans++];

	memset(p, 0, sizeof(*p));
	p->kind = kind;
	p->rank = rank;
	return p;
}

static void parse_plan(struct argp_state *state, int kind, char *arg)
{
	static const char *const names[] = { "kill", "fault", "extend" };
	struct moe_options *opt = state->input;
	struct moe_plan *p;
	char *rest;
	int rank = (int)number(state, names[kind], arg, kind == MOE_EXTEND ? 2 : 0,
			       MOE_MAX_RANKS - (kind != MOE_EXTEND), &rest);

	if (*rest != (kind == MOE_FAULT ? ':' : '@') || !rest[1])
		argp_error(state, "--%s %s: %s is needed", names[kind], arg,
			   kind == MOE_FAULT  ? "RANK:PLAN"
			   : kind == MOE_KILL ? "RANK@STEP"
					      : "RANKS@STEP");
	if (opt->plans == MOE_MAX_PLAN)
		argp_error(state, "more than %d of --kill, --fault and --extend", MOE_MAX_PLAN);
	p = plan(opt, kind, rank);
	if (kind == MOE_FAULT) {
		p->fault = rest + 1;
		return;
	}
	p->step = (uint64_t)number(state, names[kind], rest + 1, 0, 1000000, &rest);
	if (*rest)
		argp_error(state, "--%s %s: '%s' is not understood", names[kind], arg, rest);
}

/* Later entries of a part wait until the earlier ones are done and the group is whole. */
void moe_demo_plan(struct moe_options *opt, int part)
{
	struct moe_plan *p;

	opt->plans = 0;
	if (part > 0) {
		plan(opt, MOE_FAULT, 1)->fault = "kill@op:allreduce:30.signal:2";
		opt->steps = 100;
		return;
	}
	if (opt->devices) { /* faults strike in operations of the host */
		p = plan(opt, MOE_KILL, -1);
		p->step = 30;
	} else {
		plan(opt, MOE_FAULT, 2)->fault = "kill@op:dispatch:30.put:2";
	}
	p = plan(opt, MOE_EXTEND, 6);
	p->step = 50;
	p->whole = true;
	p = plan(opt, MOE_KILL, -1);
	p->step = 50;
	p->whole = true;
}

static error_t parse_size(int key, char *arg, struct argp_state *state)
{
	struct moe_options *opt = state->input;
	const struct tool_option sizes[] = {
		{ 'n', "ranks", &opt->ranks, 1, MOE_MAX_RANKS },
		{ OPT_TOKENS, "tokens", &opt->shape.tokens, 1, 65536 },
		{ OPT_HIDDEN, "hidden", &opt->shape.hidden, 8, 65536 },
		{ OPT_FFN, "ffn", &opt->ffn, 1, 262144 },
		{ OPT_EXPERTS, "experts", &opt->shape.experts, 1, 4096 },
		{ OPT_TOPK, "top-k", &opt->shape.top_k, 1, 32 },
		{ OPT_DEVICES, "devices", &opt->devices, 0, MOE_MAX_RANKS },
		{ OPT_REPLICAS, "replicas", &opt->replicas, 1, MOE_MAX_RANKS },
		{ OPT_STEPS, "steps", &opt->steps, 1, 1000000 },
		{ OPT_PART, "part", &opt->part, 0, MOE_PARTS - 1 },
		{ 0 },
	};
	const struct tool_option *o = tool_option(sizes, key);

	if (o)
		*o->to = (int)number(state, o->name, arg, o->min, o->max, NULL);
	return o ? 0 : ARGP_ERR_UNKNOWN;
}

static int preset_named(struct argp_state *state, const char *name)
{
	if (!strcmp(name, "mesh"))
		return COVEY_EP_MESH;
	for (int preset = 0; moe_preset_name(preset); preset++)
		if (!strcmp(moe_preset_name(preset), name))
			return preset;
	argp_error(state, "--preset %s: ll, compact, flat, win, mesh or ht is needed", name);
	return 0;
}

static void finish_plan(struct argp_state *state)
{
	struct moe_options *opt = state->input;
	int most = opt->ranks;

	for (int i = 0; i < opt->plans; i++) {
		const struct moe_plan *p = &opt->plan[i];

		if (p->kind == MOE_EXTEND && p->rank <= opt->ranks)
			argp_error(state, "--extend %d: there are %d ranks already", p->rank, opt->ranks);
		if (p->kind == MOE_EXTEND && p->rank > most)
			most = p->rank;
	}
	for (int i = 0; i < opt->plans; i++) {
		const struct moe_plan *p = &opt->plan[i];

		if (p->kind == MOE_FAULT && p->rank >= opt->ranks)
			argp_error(state, "--fault: there is no rank %d at the start", p->rank);
		if (p->kind == MOE_KILL && p->rank >= most)
			argp_error(state, "--kill: there is no rank %d", p->rank);
		if (p->kind != MOE_EXTEND && opt->ranks < 2)
			argp_error(state, "nobody survives the death of the only rank: --ranks 2 or more is needed");
	}
	opt->max_ranks = most > 16 ? most : 16;
}

/* One rank of a launcher's; else it starts ranks. */
static bool is_rank(void)
{
	return getenv("RANK") || getenv("COVEY_RANK");
}

static void finish(struct argp_state *state)
{
	struct moe_options *opt = state->input;
	FILE *text = fopen(opt->text, "rbe");
	bool acts = opt->demo || opt->recover;

	for (int i = 0; i < opt->plans; i++)
		acts |= opt->plan[i].kind != MOE_FAULT;
	if (acts && !opt->report && is_rank())
		argp_error(state,
			   "RANK or COVEY_RANK is set, so this is one rank of a launcher: --kill, --extend, --recover "
			   "and --demo are for ranks that ep-moe starts itself, without a launcher");
	if (opt->demo && opt->plans)
		argp_error(state, "--demo has a plan of its own: no --kill, --fault, --extend");
	if (opt->demo && opt->ranks != 4)
		argp_error(state, "--demo starts 4 ranks");
	if (opt->demo && opt->devices && opt->part < 0)
		opt->part = 0;
	if (opt->demo) {
		moe_demo_plan(opt, opt->part > 0 ? opt->part : 0);
		opt->recover = true;
	}
	if (opt->devices && opt->ffn > CVY_GPU_EXPERT_FFN)
		argp_error(state, "--ffn %d: on devices %d at most", opt->ffn, CVY_GPU_EXPERT_FFN);
	if (opt->devices && moe_once(opt->preset))
		argp_error(state, "--preset %s: on devices a row is of one expert: ll, flat, win or mesh is needed",
			   moe_preset_name(opt->preset));
	if (opt->replicas > opt->ranks)
		argp_error(state, "--replicas %d: an expert has one place on a rank at most, and --ranks is %d",
			   opt->replicas, opt->ranks);
	if (opt->shape.hidden % 8)
		argp_error(state, "--hidden %d: a multiple of 8 is needed", opt->shape.hidden);
	if (opt->shape.top_k > opt->shape.experts)
		argp_error(state, "--top-k %d is larger than --experts %d", opt->shape.top_k, opt->shape.experts);
	finish_plan(state);
	if (!text || getc(text) == EOF)
		argp_error(state, "--text %s: %s", opt->text, text ? "it is empty" : strerror(errno));
	else
		fclose(text);
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
		opt->part = opt->part < 0 ? 0 : opt->part;
		return 0;
	case OPT_PRESET:
		opt->preset = preset_named(state, arg);
		return 0;
	case OPT_DEMO:
		opt->demo = true;
		return 0;
	case OPT_SEED:
		opt->seed = (uint64_t)number(state, "seed", arg, 0, INT64_MAX, NULL);
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
	static const char *const texts[] = { "/usr/share/common-licenses/GPL-3",
					     "/usr/share/common-licenses/Apache-2.0", "LICENSE", "README.md" };

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
					  .replicas = 1,
					  .shape = { .tokens = 32, .hidden = 64, .top_k = 4, .experts = 24 },
					  .transport = "shm",
					  .part = -1 };
	static const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };

	tool_settle();
	tool_output_checked("ep-moe", 1);
	opt.text = find_text();
	opt.argc = argc;
	opt.argv = argv;
	argp_err_exit_status = 64;
	argp_parse(&argp, argc, argv, 0, NULL, &opt);
	if (is_rank()) {
		opt.seed = opt.seeded ? opt.seed : 1; /* the same on all ranks */
		return moe_rank_main(&opt);
	}
	if (!opt.seeded)
		opt.seed = tool_now_ns() % 1000000;
	return moe_director_main(&opt);
}
