/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of ep-perf that read options. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <argp.h>

#include "perf.h"

enum {
	OPT_JSON = 256,
	OPT_EXPLAIN,
	OPT_PLOT,
	OPT_SPOIL,
	OPT_TOKENS,
	OPT_HIDDEN,
	OPT_EXPERTS,
	OPT_TOPK,
	OPT_DEVICE,
	OPT_ALONE,
	OPT_SEED,
	OPT_LANES,
	OPT_PRESET,
	OPT_ROWS,
	OPT_COMBINE,
	OPT_BACK,
	OPT_SPLIT
};

/* Prints the error once, not once a rank, and ends. */
void __attribute__((format(printf, 1, 2), noreturn)) perf_usage(const char *format, ...);

/* ep_options.c */
error_t perf_parse_ep(int key, const char *arg, struct perf_options *opt);
void perf_check_ep(const struct perf_options *opt);
/* before the group is joined */
void perf_ep_window(const struct perf_options *opt);

#endif
