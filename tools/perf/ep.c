/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism: dispatch and combine of made-up tokens beside a memcpy of the same bytes in the same process. The
 * copy is the least work of a rank: the bytes of its received rows, from one buffer to another, by all ranks at once.
 * Experts return their input and every weight is 1, so a combined token is top-k times itself: exact, since tokens are
 * small integers.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ep_code.h"
#include "perf.h"

struct room {
	struct covey_ep *ep;
	uint16_t *x, *out, *y;
	uint8_t *packed, *copy;
	int32_t *experts, *count, *src_info;
	int64_t *range;
	float *weights, *scales;
	size_t row_bytes, groups; /* of a dispatched row, without scales; and how many of these */
	size_t rows;		  /* received by the last dispatch */
};

/* 1, 2 or 4: whatever the largest of a group is, e4m3 with its scale has the others. Integers are close to them. */
unsigned perf_ep_value(int source, int token, int element)
{
	uint64_t mixed = ((uint64_t)source * 7919 + (uint64_t)token * 131 + (uint64_t)element + 1) *
			 UINT64_C(0x9e3779b97f4a7c15);

	return 1u << (mixed >> 33) % 3;
}

/* Spread over all experts. */
int perf_ep_expert(const struct perf_options *opt, int source, int token, int k)
{
	uint64_t mixed = ((uint64_t)source * 65537 + (uint64_t)token + 1) * UINT64_C(0xbf58476d1ce4e5b9);

	return (int)(((mixed >> 33) + (uint64_t)k * (unsigned)(opt->experts / opt->topk)) % (uint64_t)opt->experts);
}

static int room_open(struct perf_job *job, struct room *room)
{
	const struct perf_options *opt = &job->opt;
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	size_t tokens = (size_t)opt->tokens, hidden = (size_t)opt->hidden, slots, local;
	int err;

	config.max_tokens = opt->tokens;
	config.hidden = opt->hidden;
	config.top_k = opt->topk;
	config.experts = opt->experts;
	config.rows = opt->rows;
	config.combine_rows = opt->back;
	err = covey_ep_create(job->group, &config, &room->ep);
	if (err)
		return err;
	local = (size_t)covey_ep_local_experts(room->ep);
	slots = local * (size_t)covey_ep_rows(room->ep);
	room->x = calloc(tokens * hidden, 2);
	room->out = calloc(tokens * hidden, 2);
	room->row_bytes = cvy_ep_code_bytes(perf_ep_code(opt), hidden);
	room->groups = cvy_ep_code_groups(perf_ep_code(opt), hidden);
	room->packed = calloc(slots, room->row_bytes);
	room->copy = calloc(slots, room->row_bytes);
	room->y = calloc(slots * hidden, 2);
	room->scales = calloc(slots * room->groups + 1, sizeof(*room->scales));
	room->experts = calloc(tokens * (size_t)opt->topk, sizeof(*room->experts));
	room->weights = calloc(tokens * (size_t)opt->topk, sizeof(*room->weights));
	room->count = calloc(local, sizeof(*room->count));
	room->src_info = calloc(slots, sizeof(*room->src_info));
	room->range = calloc(local * (size_t)job->size, sizeof(*room->range));
	if (!room->x || !room->out || !room->packed || !room->copy || !room->y || !room->scales || !room->experts ||
	    !room->weights || !room->count || !room->src_info || !room->range)
		return COVEY_ERR_NOMEM;
	for (int t = 0; t < opt->tokens; t++) {
		for (int h = 0; h < opt->hidden; h++)
			room->x[(size_t)t * hidden + (size_t)h] = tool_bf16(perf_ep_value(job->rank, t, h));
		for (int k = 0; k < opt->topk; k++) {
			room->experts[t * opt->topk + k] = perf_ep_expert(opt, job->rank, t, k);
			room->weights[t * opt->topk + k] = 1;
		}
	}
	return 0;
}

static void room_close(struct room *room)
{
	covey_ep_destroy(room->ep);
	free(room->x);
	free(room->out);
	free(room->packed);
	free(room->copy);
	free(room->y);
	free(room->scales);
	free(room->experts);
	free(room->weights);
	free(room->count);
	free(room->src_info);
	free(room->range);
}

static int dispatch(struct perf_job *job, struct room *room)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;

	args.num_tokens = job->opt.tokens;
	args.x = room->x;
	args.experts = room->experts;
	args.packed_x = room->packed;
	args.packed_scales = room->scales;
	args.count = room->count;
	args.src_info = room->src_info;
	args.range = room->range;
	return covey_dispatch(room->ep, &args, NULL, NULL);
}

static int combine(struct perf_job *job, struct room *room)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;

	args.num_tokens = job->opt.tokens;
	args.y = job->opt.rows == COVEY_EP_ROWS_BF16 ? (const void *)room->packed : room->y;
	args.count = room->count;
	args.src_info = room->src_info;
	args.range = room->range;
	args.experts = room->experts;
	args.weights = room->weights;
	args.out = room->out;
	return covey_combine(room->ep, &args, NULL, NULL);
}

static int copy(struct perf_job *job, struct room *room)
{
	(void)job;
	memcpy(room->copy, room->packed, room->rows * room->row_bytes);
	__asm__ volatile("" : : "r"(room->copy) : "memory");
	return 0;
}

static void count_rows(struct room *room)
{
	room->rows = 0;
	for (int e = 0; e < covey_ep_local_experts(room->ep); e++)
		room->rows += (size_t)room->count[e];
}

/* Row @row of expert @e is token @t of @source. Also makes the input of combine, where the row has codes. */
static int64_t wrong_row(const struct perf_job *job, const struct room *room, size_t all, size_t row, int source, int t)
{
	const struct perf_options *opt = &job->opt;
	const float *scale = room->scales + row / all * all * room->groups + row % all;
	int64_t wrong = room->src_info[row] != t;

	for (int h = 0; h < opt->hidden; h++) {
		unsigned want = perf_ep_value(source, t, h);

		wrong += !perf_ep_is(opt, room->packed + row * room->row_bytes, scale, all, h, want);
		room->y[row * (size_t)opt->hidden + (size_t)h] = tool_bf16(want);
	}
	return wrong;
}

/* Rows of one local expert: those of source 0, 1, ... without gaps, tokens ascending. */
static int64_t wrong_rows(const struct perf_job *job, const struct room *room, int e)
{
	const struct perf_options *opt = &job->opt;
	int per_rank = (opt->experts + job->size - 1) / job->size, id = job->rank * per_rank + e;
	size_t all = (size_t)covey_ep_rows(room->ep), row = (size_t)e * all, first = row;
	int64_t wrong = 0;

	for (int s = 0; s < job->size; s++) {
		for (int t = 0; t < opt->tokens; t++) {
			for (int k = 0; k < opt->topk; k++) {
				if (perf_ep_expert(opt, s, t, k) != id)
					continue;
				wrong += wrong_row(job, room, all, row++, s, t);
			}
		}
	}
	return wrong + (room->count[e] != (int32_t)(row - first));
}

static int64_t wrong_dispatch(const struct perf_job *job, const struct room *room)
{
	int64_t wrong = 0;

	for (int e = 0; e < covey_ep_local_experts(room->ep); e++)
		wrong += wrong_rows(job, room, e);
	return wrong;
}

static int64_t wrong_combine(const struct perf_job *job, const struct room *room)
{
	const struct perf_options *opt = &job->opt;
	int64_t wrong = 0;

	for (int t = 0; t < opt->tokens; t++)
		for (int h = 0; h < opt->hidden; h++)
			wrong += !perf_ep_came(opt, room->out[(size_t)t * (size_t)opt->hidden + (size_t)h],
					       perf_ep_value(job->rank, t, h));
	return wrong;
}

/* Dispatch, combine and copies in turn; each gets its own time, of this rank, in us. */
static int times(struct perf_job *job, struct room *room, double us[3])
{
	int (*const step[3])(struct perf_job *, struct room *) = { dispatch, combine, copy };
	uint64_t start, ns[3] = { 0 };
	int err = 0;

	for (int i = 0; i < job->opt.iters && !err; i++) {
		uint64_t both = 0;

		for (int k = 0; k < 3 && !err; k++) {
			if (k == 2)
				err = covey_barrier(job->group, NULL, NULL);
			start = tool_now_ns();
			if (!err)
				err = step[k](job, room);
			ns[k] += tool_now_ns() - start;
			both += k < 2 ? tool_now_ns() - start : 0;
		}
		perf_hist_add(job->hist, both);
	}
	for (int k = 0; k < 3; k++)
		us[k] = (double)ns[k] / 1000 / job->opt.iters;
	return err;
}

static int measure(struct perf_job *job, struct room *room)
{
	struct perf_ep_row *row = &job->ep_row;
	double us[3] = { 0 }, bytes;
	int err = 0;

	for (int i = 0; i <= job->opt.warmup && !err; i++) {
		err = dispatch(job, room);
		if (!err && i == 0 && (job->opt.checks || job->opt.rows != COVEY_EP_ROWS_BF16))
			row->wrong = wrong_dispatch(job, room);
		if (!err)
			err = combine(job, room);
	}
	if (err)
		return err;
	count_rows(room);
	memset(room->copy, 1, room->rows * room->row_bytes);
	if (job->opt.spoil)
		room->out[0] ^= 1;
	row->wrong = job->opt.checks ? row->wrong + wrong_combine(job, room) : 0;
	bytes = (double)(room->rows * room->row_bytes);
	perf_hist_clear(job->hist);
	err = times(job, room, us);
	for (int k = 0; k < 3 && !err; k++)
		err = perf_agree(job, &us[k], COVEY_MAX);
	if (!err)
		err = perf_agree(job, &bytes, COVEY_AVG);
	if (!err)
		err = perf_agree_counts(job, &row->wrong, 1);
	if (!err)
		err = perf_hist_merge(job, job->hist);
	row->bytes = (size_t)bytes;
	row->dispatch_us = us[0];
	row->combine_us = us[1];
	row->memcpy_us = us[2];
	row->ratio = us[2] > 0 ? (us[0] + us[1]) / (2 * us[2]) : 0;
	row->p50_us = perf_hist_us(job->hist, 0.5);
	row->p99_us = perf_hist_us(job->hist, 0.99);
	job->wrong = row->wrong;
	return err;
}

static void print(const struct perf_job *job)
{
	const struct perf_options *opt = &job->opt;
	const struct perf_ep_row *row = &job->ep_row;
	double bytes = (double)row->bytes;

	printf("# ep-perf %s dispatch and combine, bfloat16, rows %s, back %s, ranks %d experts %d warmup iters: %d "
	       "iters: %d validation: %d\n"
	       "# bytes: of the rows that a rank received, average; times: the slowest rank; x memcpy: of both, beside "
	       "two copies\n#\n"
	       "# %6s %6s %5s %12s  %9s %7s  %9s %7s  %9s %7s  %8s %6s  %9s %9s\n",
	       COVEY_VERSION, perf_name_of(PERF_ROWS, opt->rows), perf_name_of(PERF_BACKS, opt->back), job->size,
	       opt->experts, opt->warmup, opt->iters, opt->checks, "tokens", "hidden", "topk", "bytes", "dispatch",
	       "GB/s", "combine", "GB/s", "memcpy", "GB/s", "x memcpy", "#wrong", "both p50", "both p99");
	printf("%8d %6d %5d %12zu  %9.1f %7.2f  %9.1f %7.2f  %9.1f %7.2f  %8.2f %6" PRId64 "  %9.1f %9.1f\n",
	       opt->tokens, opt->hidden, opt->topk, row->bytes, row->dispatch_us, bytes / row->dispatch_us / 1000,
	       row->combine_us, bytes / row->combine_us / 1000, row->memcpy_us, bytes / row->memcpy_us / 1000,
	       row->ratio, row->wrong, row->p50_us, row->p99_us);
}

int perf_ep(struct perf_job *job)
{
	struct room room = { 0 };
	int err;

	if (!job->opt.experts)
		job->opt.experts = 8 * job->size;
	if (job->opt.topk > job->opt.experts) {
		if (perf_speaks(job))
			fprintf(stderr, "ep-perf: --topk %d is more than %d experts\n", job->opt.topk,
				job->opt.experts);
		return PERF_USAGE;
	}
	if (job->opt.device)
		return perf_ep_device(job);
	job->hist = malloc(sizeof(*job->hist));
	err = job->hist ? room_open(job, &room) : COVEY_ERR_NOMEM;
	if (!err)
		err = measure(job, &room);
	if (err)
		perf_fail(job, "dispatch and combine", err);
	else if (perf_speaks(job))
		print(job);
	room_close(&room);
	return err ? PERF_FAILED : PERF_OK;
}
