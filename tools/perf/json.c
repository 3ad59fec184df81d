/* SPDX-License-Identifier: Apache-2.0 */
/* --json FILE: the table for other programs. Times are microseconds, bandwidths GB/s; a missing measurement is null. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "perf.h"

static json_t *side_json(const struct perf_side *side)
{
	json_t *to;

	if (!side->measured)
		return json_null();
	to = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "time", side->us, "algbw", side->algbw, "busbw",
		       side->busbw, "p50", side->p50_us, "p99", side->p99_us, "min", side->min_us, "max", side->max_us,
		       "wrong", side->wrong < 0 ? json_null() : json_integer(side->wrong));
	if (side->nccl_us > 0)
		json_object_set_new(to, "nccl", json_real(side->nccl_us));
	return to;
}

static json_t *row_json(const struct perf_job *job, const struct perf_row *row)
{
	const struct perf_fault *fault = &row->fault;
	json_t *struck = json_null();

	if (fault->struck)
		struck = json_pack("{s:i, s:f, s:f, s:i}", "rank", job->opt.fault_rank, "detect", fault->detect_us,
				   "recover", fault->recover_us, "ranks", fault->left);
	return json_pack("{s:I, s:I, s:i, s:i, s:s?, s:s?, s:o, s:o, s:o}", "size", (json_int_t)row->bytes, "count",
			 (json_int_t)row->count, "ranks", row->ranks, "root", row->root, "type",
			 !job->opt.op || job->opt.op->no_data ? NULL : perf_types[row->type].name, "redop",
			 row->redop < 0 ? NULL : perf_redops[row->redop].name, "out_of_place", side_json(&row->out),
			 "in_place", side_json(&row->in), "fault", struck);
}

static json_t *ep_json(const struct perf_job *job)
{
	const struct perf_ep_row *row = &job->ep_row;

	return json_pack("{s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "tokens", job->opt.tokens,
			 "hidden", job->opt.hidden, "experts", job->opt.experts, "topk", job->opt.topk, "bytes",
			 (json_int_t)row->bytes, "dispatch", row->dispatch_us, "combine", row->combine_us, "memcpy",
			 row->memcpy_us, "times_memcpy", row->ratio, "p50", row->p50_us, "p99", row->p99_us, "wrong",
			 (json_int_t)row->wrong);
}

static json_t *time_json(const struct perf_side *side)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f}", "time", side->us, "p50", side->p50_us, "p99", side->p99_us, "min",
			 side->min_us, "max", side->max_us);
}

static json_t *split_json(const struct perf_split *split)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "send", split->send_us, "receive", split->recv_us, "all",
			 split->all_us, "busy", split->busy_us, "busy_alone", split->alone_us, "busy_beside_receive",
			 split->beside_us);
}

static json_t *pair_json(const struct perf_job *job, const struct perf_pair_row *row)
{
	const struct perf_options *opt = &job->opt;
	static const char *const names[] = { "dispatch", "combine", "pair" };
	json_t *to = json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:I}", "tokens", row->tokens, "lanes",
			       row->lanes, "hidden", opt->hidden, "experts", opt->experts, "topk", opt->topk, "preset",
			       perf_name_of(PERF_PRESETS, opt->preset), "rows", perf_name_of(PERF_ROWS, opt->rows),
			       "back", perf_name_of(PERF_BACKS, opt->back), "combine_as", perf_combined_per(opt),
			       "wrong", (json_int_t)row->wrong);

	for (int i = 0; i < 3; i++)
		json_object_set_new(to, names[i], time_json(&row->side[i]));
	for (int i = 0; i < 2; i++) {
		json_t *side = json_object_get(to, names[i]);

		json_object_set_new(side, "form", json_string(row->bulk[i] ? "bulk" : "lines"));
		json_object_set_new(side, "steps", json_integer(row->steps[i]));
		json_object_set_new(side, "bytes", json_real(row->bytes[i]));
		if (opt->split)
			json_object_set_new(side, "split", split_json(&row->split[i]));
	}
	return to;
}

int perf_json(const struct perf_job *job, bool ok, double busbw)
{
	json_t *rows = json_array(), *all;
	int err;

	for (int i = 0; i < job->row_count; i++)
		json_array_append_new(rows, row_json(job, &job->rows[i]));
	for (int i = 0; i < job->pair_row_count; i++)
		json_array_append_new(rows, pair_json(job, &job->pair_rows[i]));
	if (!job->opt.op && !job->device)
		json_array_append_new(rows, ep_json(job));
	all = json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:f, s:b, s:o}", "version", COVEY_VERSION, "operation",
			job->opt.op ? job->opt.op->name : "dispatch", "ranks", job->size, "iters", job->opt.iters,
			"warmup", job->opt.warmup, "wrong", (json_int_t)job->wrong, "busbw", busbw, "ok", ok, "rows",
			rows);
	errno = ENOMEM;
	err = !all || json_dump_file(all, job->opt.json, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	if (err)
		fprintf(stderr, "ep-perf: --json %s: %s\n", job->opt.json, strerror(errno));
	json_decref(all);
	return err ? -1 : 0;
}
