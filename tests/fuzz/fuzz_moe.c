/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of ep-moe with its plans, one a line. The tool is compiled into the target, so that its
 * own reader is called; where it would end with a message, the input ends.
 */
#include "tool.h" /* before the tool */

#include "../../tools/moe/ep-moe.c"
#undef main

#include "fuzz.h"

static void check(const struct moe_options *opt)
{
	fuzz_check(opt->plans >= 0 && opt->plans <= MOE_MAX_PLAN);
	fuzz_check(opt->ranks >= 1 && opt->ranks <= MOE_MAX_RANKS && opt->max_ranks >= opt->ranks);
	fuzz_check(opt->max_ranks <= MOE_MAX_RANKS);
	for (int i = 0; i < opt->plans; i++) {
		const struct moe_plan *p = &opt->plan[i];

		fuzz_check(p->rank >= 0 && p->rank <= MOE_MAX_RANKS);
		fuzz_check(p->kind == MOE_EXTEND ? p->rank > opt->ranks : p->rank < opt->max_ranks);
		fuzz_check(p->kind != MOE_FAULT || p->fault);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *rest = text, *line;
	static struct moe_options opt;
	struct argp_state state = { .input = &opt };

	memset(&opt, 0, sizeof(opt));
	opt.ranks = 4;
	if (!setjmp(refused)) {
		while ((line = strsep(&rest, "\n"))) {
			char *value = line + strcspn(line, " ");
			int key = 0;

			if (*value)
				*value++ = 0;
			for (const struct argp_option *o = options; o->name; o++)
				if (!strcmp(o->name, line))
					key = o->key;
			if (key && parse(key, value, &state))
				break;
		}
		finish_plan(&state);
		check(&opt);
	}
	free(text);
	return 0;
}
