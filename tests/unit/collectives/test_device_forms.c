/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of forms on device memory, which covey_explain() shows, are what launches, dispatch and combine take. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "device_explain.h"
#include "ep_call.h"
#include "shape.h"

#define N(array) (int)(sizeof(array) / sizeof((array)[0]))

struct form {
	char from[24], to[24], shots[8], lanes[24], step[24], buffers[16];
	int packet, threads, rows, levels;
};

static uint64_t bytes_of(const char *text)
{
	static const char units[] = "KMG";
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	return *text == '-' ? UINT64_MAX : *end ? n << (10 * (strchr(units, *end) - units + 1)) : n;
}

/* Does the row say what a launch of @bytes takes? In place or not: some ranks of a call may be so alone. */
static void check_form(const struct form *f, int kind, uint64_t bytes)
{
	struct cvy_gpu_call c = { .kind = kind, .in_place = (int)(bytes / 3 % 2), .bytes = bytes };
	uint64_t step = bytes_of(f->step);
	int lanes = 1, least = atoi(f->lanes), most = strchr(f->lanes, '-') ? atoi(strchr(f->lanes, '-') + 1) : least;

	cvy_gpu_shape(&c);
	while (lanes < CVY_GPU_LANES && (uint64_t)lanes * step < (bytes + 7) / 8 * 8)
		lanes *= 2;
	if (kind == CVY_GPU_ALLTOALLV) /* nobody knows the others' counts */
		lanes = CVY_GPU_UNEVEN_LANES;
	must((c.packet == CVY_GPU_PAIR ? 16 : 128) == f->packet, "%llu bytes: packets", (unsigned long long)bytes);
	must(cvy_gpu_has_rounds(c.kind) == !strcmp(f->shots, "two"), "%llu bytes: shots", (unsigned long long)bytes);
	must(c.levels == f->levels && c.threads == f->threads && c.rows == f->rows,
	     "%llu bytes: %d levels, %d threads, %d rows", (unsigned long long)bytes, c.levels, c.threads, c.rows);
	must(c.packet != CVY_GPU_PAIR || (c.rows == 1 && c.steps == 1), "%llu bytes: there is no such kernel",
	     (unsigned long long)bytes);
	must(c.lanes == lanes && lanes >= least && lanes <= most, "%llu bytes: %d lanes, %d by the step, %s",
	     (unsigned long long)bytes, c.lanes, lanes, f->lanes);
	must(bytes % CVY_GPU_PACKET || c.pulls == !strcmp(f->buffers, "registered"), "%llu bytes: buffers",
	     (unsigned long long)bytes);
}

/* All sizes near the ends of the row, and many in between. */
static int check_row(const struct form *f, int kind)
{
	uint64_t from = bytes_of(f->from), to = bytes_of(f->to), seed = from + 1;
	int n = 0;

	if (to == UINT64_MAX)
		to = from + ((uint64_t)8 << 30);
	for (uint64_t i = 0; i < 4096 && from + i <= to; i++, n += 2) {
		check_form(f, kind, from + i);
		check_form(f, kind, to - i);
	}
	for (int i = 0; i < 4096; i++, n++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		check_form(f, kind, from + (seed >> 11) % (to - from + 1));
	}
	return n;
}

static const struct {
	const char *name;
	int kind, rows, levels; /* at least so many rows; some in two levels */
} on_device[] = {
	{ "allreduce", CVY_GPU_ALLREDUCE, 6, 1 },
	{ "allgather", CVY_GPU_ALLGATHER, 6, 1 },
	{ "reduce_scatter", CVY_GPU_REDUCE_SCATTER, 6, 1 },
	{ "alltoall", CVY_GPU_ALLTOALL, 6, 0 },
	{ "broadcast", CVY_GPU_BROADCAST, 6, 1 },
	{ "reduce", CVY_GPU_REDUCE, 6, 0 },
	{ "gather", CVY_GPU_GATHER, 6, 0 },
	{ "scatter", CVY_GPU_SCATTER, 6, 0 },
	{ "barrier", CVY_GPU_BARRIER, 1, 0 },
	{ "allgatherv", CVY_GPU_ALLGATHERV, 6, 0 },
	{ "alltoallv", CVY_GPU_ALLTOALLV, 1, 0 },
};

/* Is @name one of "a, b, c:"? */
static int lists(const char *line, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = line; (at = strstr(at, name)); at++)
		if ((at == line || at[-1] == ' ') && (at[n] == ',' || at[n] == ':') && (at == line || at[-2] == ','))
			return 1;
	return 0;
}

TEST_LOOP(forms_on_devices_are_those_of_launches, 0, N(on_device))
{
	char *text = NULL, line[200];
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes), *from;
	uint64_t next = UINT64_MAX;
	int here = 0, rows = 0, levels = 0;

	cvy_device_forms(to);
	fclose(to);
	from = fmemopen(text, bytes, "r");
	while (fgets(line, sizeof(line), from)) {
		struct form f;

		if (line[strlen(line) - 2] == ':') {
			here = lists(line, on_device[_i].name);
			next = here ? 0 : next;
			continue;
		}
		if (!here)
			continue;
		ck_assert_int_eq(sscanf(line, "%23s %23s %d B %7s %23s %23s %d %d %15s", f.from, f.to, &f.packet,
					f.shots, f.lanes, f.step, &f.threads, &f.rows, f.buffers),
				 9);
		f.levels = strstr(line, "two levels between hosts") != NULL;
		levels += f.levels;
		if (on_device[_i].kind == CVY_GPU_BARRIER) /* has no bytes */
			snprintf(f.to, sizeof(f.to), "0");
		ck_assert_uint_eq(bytes_of(f.from), next);
		next = bytes_of(f.to) + (strcmp(f.to, "-") != 0);
		ck_assert_int_gt(check_row(&f, on_device[_i].kind), 4096);
		rows++;
	}
	ck_assert_msg(next == UINT64_MAX || on_device[_i].kind == CVY_GPU_BARRIER, "%s", text);
	ck_assert_int_ge(rows, on_device[_i].rows);
	ck_assert_int_eq(levels > 0, on_device[_i].levels);
	fclose(from);
	free(text);
}

/* ---- dispatch and combine ---- */

#define LOCAL 32

static const struct handle {
	const char *head;
	int code, per_rank, once, back;
} handles[] = {
	{ "\nLL, rows bf16, combine per expert:\n", 0, 0, 0, 0 },
	{ "\nLL, rows e4m3, combine per expert:\n", 1, 0, 0, 0 },
	{ "\nLL, rows bf16, combine per rank:\n", 0, 1, 0, 0 },
	{ "\nLL, rows e4m3, combine per rank:\n", 1, 1, 0, 0 },
	{ "\nCOMPACT, rows bf16, combine per rank:\n", 0, 0, 1, 0 },
	{ "\nCOMPACT, rows e4m3, combine per rank:\n", 1, 0, 1, 0 },
	{ "\nCOMPACT, rows int8 or int4, combine per rank, in int8:\n", CVY_EP_INT8, 0, 1, CVY_EP_INT8_BY_8 },
};

/* Does a handle with @each tokens a lane take the form that its row says? */
static void check_ep_row(const struct handle *h, int size, int each, const char *row)
{
	struct cvy_ep_shape_gpu s = { .tokens = each * CVY_GPU_LANES,
				      .hidden = 7168,
				      .top_k = 8,
				      .experts = size * LOCAL,
				      .size = size,
				      .code = h->code,
				      .back = h->back,
				      .per_rank = h->per_rank,
				      .most_local = LOCAL,
				      .once = h->once,
				      .ranks = CVY_GPU_RANKS };
	struct cvy_ep_form f[2];
	char want[2][80];

	for (int combine = 0; combine < 2; combine++) {
		ck_assert(cvy_ep_form_of(&s, CVY_GPU_LANES, combine, &f[combine]));
		if (f[combine].bulk)
			snprintf(want[combine], sizeof(want[combine]), "bulk steps of %d", (int)f[combine].per_step);
		else
			snprintf(want[combine], sizeof(want[combine]), "lines: %s",
				 combine && !h->per_rank && !h->once ? "the rows of each expert come back"
				 : h->back			     ? "rows of integers"
								     : "few tokens of a lane");
		ck_assert_int_eq(f[combine].bulk,
				 each >= CVY_EP_BULK_TOKENS && !h->back && (!combine || h->per_rank || h->once));
	}
	ck_assert_msg(strstr(row, want[0]) && strstr(strstr(row, want[0]), want[1]), "%d a lane: %s, %s, not: %s", each,
		      want[0], want[1], row);
}

TEST_LOOP(forms_of_dispatch_and_combine_are_those_of_handles, 0, N(handles))
{
	const struct handle *h = &handles[_i];
	char *text = NULL, row[200];
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes), *from;
	int next = 1, first, last, size = 4;
	char end[16];

	cvy_device_ep_forms(size, COVEY_MAX_RANKS, to);
	fclose(to);
	ck_assert_ptr_nonnull(strstr(text, h->head));
	from = fmemopen(strstr(text, h->head) + strlen(h->head), strlen(strstr(text, h->head) + strlen(h->head)), "r");
	while (next && fgets(row, sizeof(row), from)) {
		ck_assert_int_eq(sscanf(row, "%d %15s", &first, end), 2);
		ck_assert_int_eq(first, next);
		last = *end == '-' ? CVY_EP_TOKENS / CVY_GPU_LANES : atoi(end);
		for (int each = first; each <= last; each++)
			check_ep_row(h, size, each, row);
		next = *end == '-' ? 0 : last + 1;
	}
	ck_assert_int_eq(next, 0);
	ck_assert_ptr_nonnull(
		strstr(text, "lanes, if the handle says 0: 8 for max_tokens 1, 16 from 2 on, 32 from 3 on"));
	fclose(from);
	free(text);
}

static const struct {
	struct cvy_ep_shape_gpu shape;
	int lanes, combine;
	const char *text;
} reasons[] = {
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, 1, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "bulk steps of 8" },
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 16, 0, "lines: few tokens of a lane" },
	{ { 64, 7168, 8, 64, 2, 0, 0, 32, 0, 2, 0, 0, 0, 0 }, 1, 1, "lines: the rows of each expert come back" },
	{ { 8, 7168, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 128, 0, "lines: one row is for several lanes or steps" },
	{ { 64, 200, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows are short or no multiple of 16 bytes" },
	{ { 64, 64, 8, 64, 2, 0, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows are short or no multiple of 16 bytes" },
	{ { 64, 7168, 8, 1024, 32, 0, 1, 1024, 0, 32, 0, 0, 0, 0 }, 1, 0, "lines: shared memory is too small" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT8, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 0, "lines: rows of integers" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT4, 1, 32, 0, 2, 0, 0, 0, 0 }, 1, 1, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, 0, 1, 32, 0, 2, CVY_EP_INT8_BY_8, 0, 0, 0 }, 1, 1, "lines: rows of integers" },
	{ { 64, 7168, 8, 64, 2, 0, 0, 32, 1, 2, CVY_EP_INT8_BY_8, 0, 0, 0 }, 1, 0, "bulk steps of 4" },
	{ { 64, 7168, 8, 64, 2, CVY_EP_INT8, 1, 32, 0, 2, 0, 1, 0, 0 }, 1, 0, "lines: rows of integers" },
};

TEST_LOOP(why_rows_are_lines_is_said, 0, N(reasons))
{
	struct cvy_ep_form f;
	char text[80];

	ck_assert(cvy_ep_form_of(&reasons[_i].shape, reasons[_i].lanes, reasons[_i].combine, &f));
	cvy_device_ep_form(&reasons[_i].shape, reasons[_i].combine, &f, text, sizeof(text));
	ck_assert_str_eq(text, reasons[_i].text);
}

SUITE_MAIN(.name = "collectives/device_forms")
