/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the group, walks types, reductions, roots and sizes of the options, one row each, and sums up. */
#include <stdlib.h>

#include "covey_admin.h"
#include "perf.h"

#define ROWS_STEP 64

int perf_agree(struct perf_job *job, double *value, int redop)
{
	struct covey_result result = { 0 };
	double in = *value;
	int err = covey_allreduce(&in, value, 1, COVEY_FLOAT64, redop, job->group, NULL, &result);

	if (!err)
		job->mask = result.mask;
	return err;
}

int perf_agree_counts(struct perf_job *job, int64_t *values, size_t count)
{
	return covey_allreduce(values, values, count, COVEY_INT64, COVEY_SUM, job->group, NULL, NULL);
}

static struct perf_row *new_row(struct perf_job *job)
{
	if (job->row_count % ROWS_STEP == 0) {
		struct perf_row *rows = realloc(job->rows, ((size_t)job->row_count + ROWS_STEP) * sizeof(*rows));

		if (!rows)
			return NULL;
		job->rows = rows;
	}
	job->rows[job->row_count] = (struct perf_row){ 0 };
	return &job->rows[job->row_count++];
}

/* The stroke happens once, beside the first row. */
static int one_row(struct perf_job *job, size_t bytes, int type, int redop, int root)
{
	const struct operation *op = job->opt.op;
	size_t elements = bytes / perf_types[type].bytes;
	struct perf_row *row = new_row(job);
	int err;

	if (!row)
		return perf_fail(job, "the table", COVEY_ERR_NOMEM);
	row->count = operation_has_blocks(op) ? elements / (size_t)job->size : elements;
	row->bytes = row->count * perf_types[type].bytes * (operation_has_blocks(op) ? (size_t)job->size : 1);
	row->type = type;
	row->redop = op->reduces ? redop : -1;
	row->root = op->rooted ? root : -1;
	err = perf_measure(job, row);
	if (!err && job->opt.fault && job->row_count == 1)
		err = perf_strike(job, row);
	if (err)
		return perf_fail(job, op->name, err);
	if (perf_speaks(job))
		perf_print_row(job, row);
	return 0;
}

static int sizes(struct perf_job *job, int type, int redop, int root)
{
	const struct perf_options *opt = &job->opt;
	int err = 0;

	if (opt->op->no_data)
		return one_row(job, 0, type, redop, root);
	for (size_t bytes = opt->min_bytes; bytes <= opt->max_bytes && !err;) {
		size_t next = opt->factor > 0 ? (size_t)((double)bytes * opt->factor) : bytes + opt->step_bytes;

		err = one_row(job, bytes, type, redop, root);
		bytes = next > bytes ? next : bytes + 1;
	}
	return err;
}

static int roots(struct perf_job *job, int type, int redop)
{
	int first = job->opt.root == PERF_ALL ? 0 : job->opt.root, err = 0;
	int end = job->opt.op->rooted && job->opt.root == PERF_ALL ? job->size : first + 1;

	for (int root = first; root < end && !err; root++)
		err = sizes(job, type, redop, root);
	return err;
}

static int walk(struct perf_job *job)
{
	const struct perf_options *opt = &job->opt;
	int err = 0;

	for (int t = 0; t < perf_type_count && !err; t++) {
		if (opt->type != PERF_ALL && opt->type != t)
			continue;
		for (int r = 0; r < perf_redop_count && !err; r++)
			if (opt->op->reduces ? opt->redop == PERF_ALL || opt->redop == r : !r)
				err = roots(job, t, r);
		if (opt->op->no_data)
			break;
	}
	return err;
}

static int table(struct perf_job *job)
{
	const struct perf_options *opt = &job->opt;

	if (opt->root >= job->size || opt->fault_rank >= job->size) {
		if (perf_speaks(job))
			fprintf(stderr, "ep-perf: the group has %d ranks, 0 to %d\n", job->size, job->size - 1);
		return PERF_USAGE;
	}
	if (opt->device && perf_device_open(job))
		return PERF_FAILED;
	job->hist = malloc(sizeof(*job->hist));
	if (!job->hist || perf_buffers_open(job, opt->max_bytes))
		return perf_fail(job, "buffers", COVEY_ERR_NOMEM), PERF_FAILED;
	if (perf_speaks(job))
		perf_print_head(job);
	return walk(job) ? PERF_FAILED : PERF_OK;
}

/* The same on every rank: wrong bytes were summed over all. */
static int sum_up(struct perf_job *job)
{
	double busbw = job->busbw_count ? job->busbw_sum / job->busbw_count : 0;
	bool ok = !job->wrong && busbw >= 0.9 * job->opt.least_busbw;

	if (!perf_speaks(job))
		return ok ? PERF_OK : PERF_WRONG;
	perf_print_foot(job, ok, busbw);
	if ((job->opt.json && perf_json(job, ok, busbw)) || (job->opt.plot && perf_plot(job)))
		return PERF_FAILED;
	return ok ? PERF_OK : PERF_WRONG;
}

static int explain(struct perf_job *job)
{
	static char text[16384];
	double nothing = 0;
	int err = 0;

	for (int i = 0; i < 4 && !err; i++) /* operations after which ranks check how near they are */
		err = perf_agree(job, &nothing, COVEY_MAX);
	if (!err)
		err = covey_explain(job->group, text, sizeof(text));

	if (err)
		return perf_fail(job, "explain", err), PERF_FAILED;
	if (perf_speaks(job))
		fputs(text, stdout);
	return PERF_OK;
}

int perf_run(struct perf_job *job)
{
	struct covey_view view;
	double nothing = 0;
	int err = covey_join(NULL, &job->group), code;

	if (!err)
		err = covey_view(job->group, &view);
	/* All ranks arrive before the first may find a reason to leave; the result also lists them. */
	if (!err)
		err = perf_agree(job, &nothing, COVEY_MAX);
	if (err)
		return perf_fail(job, "joining the group", err), PERF_FAILED;
	job->rank = view.rank;
	job->size = view.size;
	job->max_ranks = view.max_ranks;
	if (job->opt.device && job->opt.preset == COVEY_EP_HT && perf_hosts(job))
		code = PERF_FAILED;
	else if (job->opt.explain)
		code = explain(job);
	else
		code = job->opt.op ? table(job) : perf_ep(job);
	if (code == PERF_OK && !job->opt.explain)
		code = sum_up(job);
	if (code != PERF_FAILED && covey_leave(job->group, 0))
		code = code == PERF_OK ? PERF_FAILED : code;
	perf_device_close(job);
	covey_close(job->group);
	perf_buffers_close(job);
	free(job->hist);
	free(job->rows);
	free(job->pair_rows);
	return code;
}
