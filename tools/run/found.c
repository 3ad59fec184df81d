/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a private store to the tools of this host, and finds the group for a run of --grow that has joiners alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "covey_admin.h"
#include "../local/local.h"
#include "run.h"

#define CALL_MS 5000

int run_show_store(const struct run_options *opt, const char *url)
{
	struct local_run run = { .pid = getppid() }; /* the front, which the user sees */
	char text[512];

	snprintf(run.url, sizeof(run.url), "%s", url);
	snprintf(run.group, sizeof(run.group), "%s", opt->group);
	snprintf(run.program, sizeof(run.program), "%s", opt->argv[0]);
	if (opt->verbose) {
		local_printable(url, text, sizeof(text));
		run_say("private store %s, group %s: ep-admin finds it on this host (--run %d)", text, opt->group,
			(int)run.pid);
	}
	return local_show(&run);
}

struct group {
	char phase[16];
	int size, max, world, joiner; /* joiner: the highest rank that has one */
};

static void see_pair(void *ctx, const char *key, const char *value)
{
	struct group *g = ctx;
	int rank;

	if (!strcmp(key, "ph"))
		snprintf(g->phase, sizeof(g->phase), "%s", value);
	else if (!strcmp(key, "size"))
		g->size = atoi(value);
	else if (!strcmp(key, "max"))
		g->max = atoi(value);
	else if (!strcmp(key, "world"))
		g->world = atoi(value);
	else if (sscanf(key, "j:%d", &rank) == 1 && rank > g->joiner)
		g->joiner = rank;
}

int run_find_group(struct run_options *opt)
{
	static const char *const argv[] = { "peek" };
	struct group g = { .joiner = -1 };
	struct covey_error_info info;
	struct local_run run;
	int err;

	if (!opt->store) {
		if (local_choose("ep-run", "--group or --store", opt->group_named ? opt->group : NULL, 0, &run))
			return -1;
		snprintf(opt->found_group, sizeof(opt->found_group), "%s", run.group);
		opt->group = opt->found_group;
		snprintf(opt->found, sizeof(opt->found), "%s", run.url);
		opt->store = opt->found;
	}
	err = covey_admin_call(opt->store, opt->group, 1, argv, tool_now_ns() + CALL_MS * UINT64_C(1000000), see_pair,
			       &g);
	if (err) {
		covey_last_error(NULL, &info);
		run_say("--grow without -n: %s: %s", covey_strerror(err), info.cause);
		return -1;
	}
	opt->first = (g.joiner >= g.size ? g.joiner : g.size - 1) + 1;
	opt->world = g.world;
	opt->max_ranks = g.max;
	if (strcmp(g.phase, "closed") && g.size && opt->first + opt->ranks <= g.max)
		return 0;
	if (!strcmp(g.phase, "closed") || !g.size)
		run_say("--grow without -n: group %s is %s", opt->group, g.size ? "closed" : "not formed yet");
	else
		run_say("--grow %d: the ranks of group %s end at %d, joiners included, and its max_ranks is %d",
			opt->ranks, opt->group, opt->first - 1, g.max);
	return -1;
}
