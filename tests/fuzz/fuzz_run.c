/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ep-run, one a line, and how its ranks are dealt out to the hosts that they name. */
#include "tool.h" /* before the tool */

#include "../../tools/run/ep-run.c"
#undef main

#include "fuzz.h"

static void check(const struct run_options *opt)
{
	fuzz_check(opt->ranks >= 0 && opt->ranks <= COVEY_MAX_RANKS && opt->max_ranks <= COVEY_MAX_RANKS);
	fuzz_check(opt->host_count >= 0 && opt->host_count <= RUN_MAX_HOSTS && opt->launch_count <= RUN_MAX_WORDS);
	for (int i = 0; i < opt->host_count; i++)
		fuzz_check(*opt->hosts[i]);
	if (!opt->host_count || opt->host_count > opt->ranks)
		return;
	for (int r = 0; r < opt->ranks; r++) {
		int host = -1, local = -1;

		run_place(opt, r, &host, &local);
		fuzz_check(host >= 0 && host < opt->host_count && local >= 0 && local <= r);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *rest = text, *line;
	static struct run_options opt;
	struct argp_state state = { .input = &opt };

	memset(&opt, 0, sizeof(opt));
	if (!setjmp(refused)) {
		while ((line = strsep(&rest, "\n"))) {
			char *value = line + strcspn(line, " ");

			if (*value)
				*value++ = 0;
			for (const struct argp_option *o = options; o->name; o++)
				if (!strcmp(o->name, line))
					parse(o->key, value, &state);
		}
		check(&opt);
	}
	free(text);
	return 0;
}
