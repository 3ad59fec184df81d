/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of covey_explain for dispatch and combine on device memory: whether rows are lines or go by bulk, from how
 * many tokens of a lane on, and why not. It asks ep_call.h, as a handle does. A form depends on the
 * handle's shape, which the group does not know: the table is of one shape, that of models with 256 experts.
 */
#include "device_explain.h"

#include <string.h>

#include "ep_call.h"

#define HIDDEN 7168
#define TOP_K 8
#define LOCAL 32 /* experts of a rank */

static const char *const why_lines[] = {
	[CVY_EP_IN_BULK] = "",
	[CVY_EP_FEW_TOKENS] = "few tokens of a lane",
	[CVY_EP_ROWS_EACH] = "the rows of each expert come back",
	[CVY_EP_IN_PIECES] = "one row is for several lanes or steps",
	[CVY_EP_SHORT_ROWS] = "rows are short or no multiple of 16 bytes",
	[CVY_EP_INTEGERS] = "rows of integers",
	[CVY_EP_TWO_HOPS] = "a forwarder passes them on",
	[CVY_EP_NO_SHARED] = "shared memory is too small",
	[CVY_EP_NO_ROOM] = "a step is larger than a slot",
};

static const struct preset {
	const char *name, *rows, *sum;
	int once, code, per_rank, back;
} presets[] = {
	{ "LL", "bf16", "per expert", 0, CVY_EP_AS_IS, 0, CVY_EP_AS_IS },
	{ "LL", "e4m3", "per expert", 0, CVY_EP_E4M3, 0, CVY_EP_AS_IS },
	{ "LL", "bf16", "per rank", 0, CVY_EP_AS_IS, 1, CVY_EP_AS_IS },
	{ "LL", "e4m3", "per rank", 0, CVY_EP_E4M3, 1, CVY_EP_AS_IS },
	{ "COMPACT", "bf16", "per rank", 1, CVY_EP_AS_IS, 0, CVY_EP_AS_IS },
	{ "COMPACT", "e4m3", "per rank", 1, CVY_EP_E4M3, 0, CVY_EP_AS_IS },
	{ "COMPACT", "int8 or int4", "per rank, in int8", 1, CVY_EP_INT8, 0, CVY_EP_INT8_BY_8 },
};

static struct cvy_ep_shape_gpu shape_of(const struct preset *p, int tokens, int size, int ranks)
{
	struct cvy_ep_shape_gpu s = { .tokens = tokens,
				      .hidden = HIDDEN,
				      .top_k = TOP_K,
				      .experts = size * LOCAL < CVY_EP_EXPERTS ? size * LOCAL : CVY_EP_EXPERTS,
				      .size = size,
				      .code = p->code,
				      .back = p->back,
				      .per_rank = p->per_rank,
				      .once = p->once,
				      .ranks = ranks < CVY_GPU_RANKS ? ranks : CVY_GPU_RANKS };

	s.most_local = cvy_ep_div(s.experts, size);
	return s;
}

void cvy_device_ep_form(const struct cvy_ep_shape_gpu *s, int combine, const struct cvy_ep_form *f, char *text,
			size_t bytes)
{
	if (f->bulk)
		snprintf(text, bytes, "bulk steps of %d", (int)f->per_step);
	else
		snprintf(text, bytes, "lines: %s", why_lines[cvy_ep_lines_why(s, combine, f)]);
}

#define TEXT 80

/* Of a handle with @each tokens a lane, in as many lanes as there are. */
static void forms_of(const struct preset *p, int each, int size, int ranks, char text[2][TEXT])
{
	struct cvy_ep_shape_gpu s = shape_of(p, each * CVY_GPU_LANES, size, ranks);

	for (int combine = 0; combine < 2; combine++) {
		struct cvy_ep_form f;

		if (cvy_ep_form_of(&s, CVY_GPU_LANES, combine, &f))
			cvy_device_ep_form(&s, combine, &f, text[combine], TEXT);
		else
			snprintf(text[combine], TEXT, "none: one row is too large");
	}
}

static void print_preset(const struct preset *p, int size, int ranks, FILE *to)
{
	char now[2][TEXT], next[2][TEXT];
	int from = 1, most = CVY_EP_TOKENS / CVY_GPU_LANES;

	fprintf(to, "%s, rows %s, combine %s:\n", p->name, p->rows, p->sum);
	forms_of(p, 1, size, ranks, now);
	for (int each = 2; each <= most + 1; each++) {
		if (each <= most) {
			forms_of(p, each, size, ranks, next);
			if (!strcmp(now[0], next[0]) && !strcmp(now[1], next[1]))
				continue;
		}
		if (each <= most)
			fprintf(to, "%8d %8d", from, each - 1);
		else
			fprintf(to, "%8d %8s", from, "-");
		fprintf(to, "  %-28s %s\n", now[0], now[1]);
		memcpy(now, next, sizeof(now));
		from = each;
	}
}

/* The number of lanes that a handle with lanes 0 gets, by its max_tokens. */
static void print_lanes(int size, int ranks, FILE *to)
{
	struct cvy_ep_shape_gpu s = shape_of(&presets[0], 1, size, ranks);
	int lanes = cvy_ep_lanes_of(&s);

	fprintf(to, "lanes, if the handle says 0: %d for max_tokens 1", lanes);
	while (lanes < CVY_GPU_LANES) {
		int before = lanes;

		do
			s.tokens++;
		while ((lanes = cvy_ep_lanes_of(&s)) == before);
		fprintf(to, ", %d from %d on", lanes, (int)s.tokens);
	}
	fprintf(to, "\n");
}

void cvy_device_ep_forms(int size, int ranks, FILE *to)
{
	if (size < 1 || size > CVY_GPU_RANKS)
		return;
	fprintf(to,
		"dispatch, combine: by tokens of a lane, max_tokens / lanes, rounded up; lines of 128 B, or bulk steps "
		"of so "
		"many tokens; %d threads\n"
		"a handle of hidden %d, top_k %d, %d experts a rank, %d ranks; log = debug says the forms of each "
		"handle\n",
		CVY_EP_THREADS, HIDDEN, TOP_K, LOCAL, size);
	print_lanes(size, ranks, to);
	fprintf(to,
		"bulk steps: at most %zu KiB of shared memory for a dispatch, %zu for a combine; a device with less "
		"refuses the call\n",
		CVY_EP_ROOM >> 10, (CVY_EP_THREADS / 32 * 2 * CVY_EP_BULK_PIECE + CVY_EP_STATIC) >> 10);
	fprintf(to, "%8s %8s  %-28s %s\n", "from", "to", "dispatch", "combine");
	for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++)
		print_preset(&presets[i], size, ranks, to);
}
