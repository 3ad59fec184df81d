/* SPDX-License-Identifier: Apache-2.0 */
/* The options of dispatch and combine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

#define PERF_NAMES 6 /* of an option, at most */

static const struct {
	const char *option, *name[PERF_NAMES];
	int value[PERF_NAMES];
} names[] = {
	[PERF_PRESETS] = { "--preset",
			   { "ll", "compact", "flat", "win", "mesh", "ht" },
			   { COVEY_EP_LL, COVEY_EP_COMPACT, COVEY_EP_FLAT, COVEY_EP_WIN, COVEY_EP_MESH, COVEY_EP_HT } },
	[PERF_ROWS] = { "--rows",
			{ "bf16", "e4m3", "int8", "int4", "e4m3_pow2" },
			{ COVEY_EP_ROWS_BF16, COVEY_EP_ROWS_E4M3, COVEY_EP_ROWS_INT8, COVEY_EP_ROWS_INT4,
			  COVEY_EP_ROWS_E4M3_POW2 } },
	[PERF_BACKS] = { "--back", { "plain", "int8" }, { COVEY_EP_BACK_PLAIN, COVEY_EP_BACK_INT8 } },
	[PERF_COMBINES] = { "--combine", { "expert", "rank" }, { COVEY_EP_PER_EXPERT, COVEY_EP_PER_RANK } },
};

const char *perf_name_of(enum perf_names of, int value)
{
	int i = 0;

	while (i < PERF_NAMES - 1 && names[of].value[i] != value)
		i++;
	return names[of].name[i];
}

/* COMPACT and HT have one row a rank, whatever was asked for. */
const char *perf_combined_per(const struct perf_options *opt)
{
	return perf_name_of(PERF_COMBINES, perf_once(opt->preset) ? COVEY_EP_PER_RANK : opt->combine);
}

static int named(enum perf_names of, const char *text)
{
	const char *const *name = names[of].name;
	char all[64] = "";

	for (int i = 0; i < PERF_NAMES && name[i]; i++) {
		const char *after = i + 1 < PERF_NAMES && name[i + 1] ? ", " : " or ";
		size_t used = strlen(all);

		if (!strcmp(name[i], text))
			return names[of].value[i];
		snprintf(all + used, sizeof(all) - used, "%s%s", i ? after : "", name[i]);
	}
	perf_usage("%s is %s: %s is needed", names[of].option, text, all);
}

/* Numbers with commas between. */
static struct perf_list list_of(const char *name, const char *text, long min, long max)
{
	struct perf_list list = { .count = 0 };
	char *rest = (char *)(uintptr_t)text;
	long value;

	do {
		if (list.count)
			rest++;
		if (list.count == PERF_LIST || !tool_number(rest, min, max, &value, &rest) || (*rest && *rest != ','))
			perf_usage("%s is %s: numbers from %ld to %ld are needed, %d at most, with commas between",
				   name, text, min, max, PERF_LIST);
		list.value[list.count++] = (int)value;
	} while (*rest);
	return list;
}

error_t perf_parse_ep(int key, const char *arg, struct perf_options *opt)
{
	switch (key) {
	case OPT_TOKENS:
		opt->token_list = list_of("--tokens", arg, 1, 1 << 20);
		opt->tokens = opt->token_list.value[0];
		return 0;
	case OPT_LANES:
		opt->lane_list = list_of("--lanes", arg, 0, COVEY_DEVICE_MAX_LANES);
		return 0;
	case OPT_PRESET:
		opt->preset = named(PERF_PRESETS, arg);
		return 0;
	case OPT_ROWS:
		opt->rows = named(PERF_ROWS, arg);
		return 0;
	case OPT_BACK:
		opt->back = named(PERF_BACKS, arg);
		return 0;
	case OPT_COMBINE:
		opt->combine = named(PERF_COMBINES, arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* What HT has not on devices. */
static void check_hops(const struct perf_options *opt)
{
	const char *late = getenv("COVEY_LATE_MS");

	if (opt->preset != COVEY_EP_HT || !opt->device)
		return;
	if (late && atoi(late) > 0)
		perf_usage("--preset ht has no deadlines on devices, and COVEY_LATE_MS is %s: unset it, or take "
			   "--preset compact",
			   late);
	if (opt->rows == COVEY_EP_ROWS_INT8 || opt->rows == COVEY_EP_ROWS_INT4)
		perf_usage("--preset ht has no rows of integers on devices, and --rows is %s: take bf16 or e4m3, or "
			   "--preset compact",
			   perf_name_of(PERF_ROWS, opt->rows));
	if (opt->back != COVEY_EP_BACK_PLAIN)
		perf_usage("--preset ht has no results of integers on devices, and --back is %s: take plain, or "
			   "--preset compact",
			   perf_name_of(PERF_BACKS, opt->back));
}

void perf_check_ep(const struct perf_options *opt)
{
	if (!opt->device) {
		if (opt->token_list.count > 1)
			perf_usage("--tokens: on host memory dispatch has one row; --device has one for each number");
		if (opt->lane_list.count || opt->preset || opt->combine || opt->split)
			perf_usage("--lanes, --preset, --combine and --split are for device memory; --device chooses "
				   "a device's");
		return;
	}
	for (int i = 0; i < opt->token_list.count; i++)
		if (opt->token_list.value[i] > COVEY_DEVICE_MAX_TOKENS)
			perf_usage("--tokens has %d: a device takes %d at most", opt->token_list.value[i],
				   COVEY_DEVICE_MAX_TOKENS);
	if (opt->hidden > COVEY_DEVICE_MAX_HIDDEN)
		perf_usage("--hidden is %d: a device takes %d at most", opt->hidden, COVEY_DEVICE_MAX_HIDDEN);
	if (opt->experts > COVEY_DEVICE_MAX_EXPERTS)
		perf_usage("--experts is %d: a device takes %d at most", opt->experts, COVEY_DEVICE_MAX_EXPERTS);
	if (opt->registered)
		perf_usage("-R: buffers of dispatch and combine are not registered");
	check_hops(opt);
}

#define MANY_RANKS 64		      /* default of max_ranks */
#define WINDOW ((size_t)4 << 30)      /* default of window_bytes */
#define MOST_WINDOW ((size_t)1 << 42) /* limit of window_bytes */

/*
 * A handle has places in the window on the host, too, for as many ranks as there may ever be. They are addresses alone,
 * since calls on device memory do not touch them. COVEY_WINDOW_BYTES becomes as large as the largest handle needs, if it
 * is not set.
 */
static void make_room(const struct perf_options *opt, size_t elements, size_t top_k)
{
	const char *text = getenv("COVEY_MAX_RANKS");
	size_t ranks = text && atoi(text) > 0 ? (size_t)atoi(text) : MANY_RANKS, need;
	char bytes[32];

	/* Four slots, of which each has the tokens and what comes back; a quarter of the window is for messages. */
	need = 6 * elements * 2 * (1 + ranks * (perf_once(opt->preset) ? 1 : top_k));
	need = (need / WINDOW + 1) * WINDOW;
	if (need > MOST_WINDOW)
		need = MOST_WINDOW;
	snprintf(bytes, sizeof(bytes), "%zu", need);
	if (need > WINDOW)
		setenv("COVEY_WINDOW_BYTES", bytes, 0);
}

void perf_ep_window(const struct perf_options *opt)
{
	size_t tokens = 0;

	for (int i = 0; i < opt->token_list.count; i++)
		if ((size_t)opt->token_list.value[i] > tokens)
			tokens = (size_t)opt->token_list.value[i];
	make_room(opt, tokens * (size_t)opt->hidden, (size_t)opt->topk);
}
