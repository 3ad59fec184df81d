/* SPDX-License-Identifier: Apache-2.0 */
/* --json FILE: the table for other programs. Times are microseconds, bandwidths GB/s; a missing measurement is null. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "perf.h"

static void put_side(FILE *f, const char *name, const struct perf_side *side)
{
	fprintf(f, ", \"%s\": ", name);
	if (!side->measured) {
		fprintf(f, "null");
		return;
	}
	fprintf(f,
		"{\"time\": %.4f, \"algbw\": %.4f, \"busbw\": %.4f, \"p50\": %.3f, \"p99\": %.3f, \"min\": %.3f, "
		"\"max\": %.3f, \"wrong\": ",
		side->us, side->algbw, side->busbw, side->p50_us, side->p99_us, side->min_us, side->max_us);
	if (side->wrong < 0)
		fprintf(f, "null");
	else
		fprintf(f, "%" PRId64, side->wrong);
	if (side->nccl_us > 0)
		fprintf(f, ", \"nccl\": %.4f", side->nccl_us);
	fputc('}', f);
}

static void put_name(FILE *f, const char *key, const char *name)
{
	if (name)
		fprintf(f, ", \"%s\": \"%s\"", key, name);
	else
		fprintf(f, ", \"%s\": null", key);
}

static void put_row(FILE *f, const struct perf_job *job, const struct perf_row *row)
{
	fprintf(f, "  {\"size\": %zu, \"count\": %zu, \"ranks\": %d, \"root\": %d", row->bytes, row->count, row->ranks,
		row->root);
	put_name(f, "type", !job->opt.op || job->opt.op->no_data ? NULL : perf_types[row->type].name);
	put_name(f, "redop", row->redop < 0 ? NULL : perf_redops[row->redop].name);
	put_side(f, "out_of_place", &row->out);
	put_side(f, "in_place", &row->in);
	if (row->fault.struck)
		fprintf(f, ", \"fault\": {\"rank\": %d, \"detect\": %.1f, \"recover\": %.1f, \"ranks\": %d}}",
			job->opt.fault_rank, row->fault.detect_us, row->fault.recover_us, row->fault.left);
	else
		fprintf(f, ", \"fault\": null}");
}

static void put_ep(FILE *f, const struct perf_job *job)
{
	const struct perf_ep_row *row = &job->ep_row;

	fprintf(f,
		"  {\"tokens\": %d, \"hidden\": %d, \"experts\": %d, \"topk\": %d, \"bytes\": %zu, \"dispatch\": %.3f, "
		"\"combine\": %.3f, \"memcpy\": %.3f, \"times_memcpy\": %.3f, \"p50\": %.3f, \"p99\": %.3f, "
		"\"wrong\": %" PRId64 "}",
		job->opt.tokens, job->opt.hidden, job->opt.experts, job->opt.topk, row->bytes, row->dispatch_us,
		row->combine_us, row->memcpy_us, row->ratio, row->p50_us, row->p99_us, row->wrong);
}

int perf_json(const struct perf_job *job, bool ok, double busbw)
{
	FILE *f = fopen(job->opt.json, "we");

	if (!f) {
		fprintf(stderr, "ep-perf: --json %s: %s\n", job->opt.json, strerror(errno));
		return -1;
	}
	fprintf(f,
		"{\"version\": \"%s\", \"operation\": \"%s\", \"ranks\": %d, \"iters\": %d, \"warmup\": %d, "
		"\"wrong\": %" PRId64 ", \"busbw\": %.4f, \"ok\": %s, \"rows\": [\n",
		COVEY_VERSION, job->opt.op ? job->opt.op->name : "dispatch", job->size, job->opt.iters, job->opt.warmup,
		job->wrong, busbw, ok ? "true" : "false");
	for (int i = 0; i < job->row_count; i++) {
		put_row(f, job, &job->rows[i]);
		fprintf(f, i + 1 < job->row_count ? ",\n" : "\n");
	}
	if (!job->opt.op) {
		put_ep(f, job);
		fputc('\n', f);
	}
	fprintf(f, "]}\n");
	if (fclose(f)) {
		fprintf(stderr, "ep-perf: --json %s: %s\n", job->opt.json, strerror(errno));
		return -1;
	}
	return 0;
}
