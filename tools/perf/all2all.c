/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the shapes, the kinds of experts and the ways. All that a way reads and writes is allocated here: memory of the
 * device if there is one, else of the host.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "all2all.h"
#include "device.h"

static const struct perf_way *way_of(int way)
{
	return way == PERF_WAY_COVEY  ? &perf_way_covey
	       : way == PERF_WAY_NCCL ? &perf_way_nccl
				      : &perf_way_heap[way - PERF_WAY_HEAP];
}

/* ---- buffers ---- */

void *perf_a2a_part(struct perf_a2a *a, size_t bytes, int *err)
{
	struct perf_device *d = a->job->device;
	void *at = NULL;

	if (*err)
		return NULL;
	if (!bytes)
		bytes = 1;
	if (!d) {
		at = calloc(1, bytes);
		*err = at ? 0 : perf_fail(a->job, "buffers", COVEY_ERR_NOMEM);
	} else {
		*err = d->tool->alloc(bytes, &at);
		if (!*err)
			*err = d->tool->fill(at, 0, bytes);
		if (*err)
			perf_device_failed(a->job, "buffers", *err);
	}
	if (at)
		a->part[a->parts++] = at;
	return at;
}

void perf_a2a_give_back(struct perf_a2a *a, int from)
{
	while (a->parts > from)
		if (a->job->device)
			a->job->device->tool->release(a->part[--a->parts]);
		else
			free(a->part[--a->parts]);
}

void *perf_a2a_copy(struct perf_a2a *a, const void *from, size_t bytes, int *err)
{
	void *at = perf_a2a_part(a, bytes, err);

	if (!*err && a->job->device)
		*err = a->job->device->tool->copy(at, from, bytes);
	else if (!*err)
		memcpy(at, from, bytes);
	return at;
}

void perf_a2a_routed(const struct perf_a2a *a, struct cvy_gpu_routed *to)
{
	*to = (struct cvy_gpu_routed){ .x = a->clone_x,
				       .ids = a->clone_ids,
				       .weights = a->clone_weights,
				       .out = a->out,
				       .table = a->expert == PERF_BY_VECTOR ? a->in_table : NULL,
				       .factor = (float)(1 + a->job->rank),
				       .tokens = a->n,
				       .hidden = a->shape->hidden,
				       .top_k = a->shape->topk,
				       .local = a->local,
				       .rank = a->job->rank,
				       .size = a->job->size };
}

static int make_inputs(struct perf_a2a *a)
{
	const struct perf_shape *s = a->shape;
	size_t hidden = (size_t)s->hidden, topk = (size_t)s->topk, n = (size_t)a->n;

	a->x = malloc(n * hidden * sizeof(*a->x));
	a->ids = malloc(n * topk * sizeof(*a->ids));
	a->weights = malloc(n * topk * sizeof(*a->weights));
	a->table = malloc(((size_t)a->local + hidden) * sizeof(*a->table));
	if (!a->x || !a->ids || !a->weights || !a->table)
		return perf_fail(a->job, "inputs", COVEY_ERR_NOMEM);
	for (int t = 0; t < a->n; t++) {
		perf_shape_row(s, a->job->rank, t, a->x + (size_t)t * hidden);
		perf_shape_experts(s, a->job->rank, t, a->ids + (size_t)t * topk);
		perf_shape_weights(s, a->job->rank, t, a->weights + (size_t)t * topk);
	}
	perf_shape_table(s, a->job->rank, (size_t)a->local + hidden, a->table);
	return 0;
}

static int shape_open(struct perf_a2a *a)
{
	size_t elements, names;
	int err;

	a->n = perf_shape_tokens(a->shape, a->job->rank);
	a->local = (a->shape->experts + a->job->size - 1) / a->job->size;
	elements = (size_t)a->n * (size_t)a->shape->hidden * sizeof(*a->x);
	names = (size_t)a->n * (size_t)a->shape->topk;
	err = make_inputs(a);
	a->in_x = perf_a2a_copy(a, a->x, elements, &err);
	a->in_ids = perf_a2a_copy(a, a->ids, names * sizeof(*a->ids), &err);
	a->in_weights = perf_a2a_copy(a, a->weights, names * sizeof(*a->weights), &err);
	a->in_table =
		perf_a2a_copy(a, a->table, ((size_t)a->local + (size_t)a->shape->hidden) * sizeof(*a->table), &err);
	a->clone_x = perf_a2a_copy(a, a->x, elements, &err);
	a->clone_ids = perf_a2a_copy(a, a->ids, names * sizeof(*a->ids), &err);
	a->clone_weights = perf_a2a_copy(a, a->weights, names * sizeof(*a->weights), &err);
	a->out = perf_a2a_part(a, elements, &err);
	return err;
}

static void shape_close(struct perf_a2a *a)
{
	perf_a2a_give_back(a, 0);
	free(a->x);
	free(a->ids);
	free(a->weights);
	free(a->table);
}

/* ---- checks ---- */

/* Then the output is overwritten: the next pair must write all of it. */
static int check(struct perf_a2a *a, const struct perf_way *way, struct perf_a2a_time *time)
{
	const struct cvy_gpu_tool *tool = a->job->device ? a->job->device->tool : NULL;
	size_t bytes = (size_t)a->n * (size_t)a->shape->hidden * sizeof(*a->out);
	uint16_t *out = malloc(bytes);
	int err = out ? 0 : COVEY_ERR_NOMEM;

	if (!err && tool)
		err = tool->copy(out, a->out, bytes);
	else if (!err)
		memcpy(out, a->out, bytes);
	if (!err && a->job->opt.spoil)
		out[0] ^= 0x4000;
	if (!err)
		err = perf_a2a_check(a, way, out, time);
	if (!err && tool)
		err = tool->fill(a->out, 0xc5, bytes);
	else if (!err)
		memset(a->out, 0xc5, bytes);
	free(out);
	return err ? perf_fail(a->job, "the check", err) : 0;
}

/* What has been queued ends. *late: a wait ended in vain. */
static int settle(struct perf_a2a *a, const struct perf_way *way, void *state, bool *late)
{
	int err = a->job->device ? perf_device_wait(a->job) : 0;

	return err || !way->late ? err : way->late(a, state, late);
}

static int nothing(struct perf_a2a *a, void *state)
{
	(void)a, (void)state;
	return 0;
}

static int checked(struct perf_a2a *a, const struct perf_way *way, void *state, struct perf_a2a_time *time,
		   int (*pair)(struct perf_a2a *, void *), bool *late)
{
	int err = *late ? 0 : pair(a, state);

	if (!err && !*late)
		err = settle(a, way, state, late);
	return err || *late || !a->job->opt.checks ? err : check(a, way, time);
}

/* ---- a way, a shape ---- */

/* Experts are gone, and what is measured is no longer what the table says. */
static int lost(const struct perf_job *job)
{
	fprintf(stderr, "ep-perf: rank %d: %d of %d ranks are left: all2all needs all\n", job->rank, perf_live(job),
		job->size);
	return COVEY_ERR_PEER;
}

/* Checked, timed, and what the last pair left checked again. */
static int run_way(struct perf_a2a *a, const struct perf_way *way, void *state, struct perf_a2a_time *time)
{
	double ranks = 0; /* agreed on for the mask alone */
	bool late = false;
	int err = checked(a, way, state, time, way->pair, &late);

	if (!err && way->again != way->pair)
		err = checked(a, way, state, time, way->again, &late);
	if (!err && !late)
		err = perf_a2a_measure(a, way, state, time);
	if (!err && !late)
		err = checked(a, way, state, time, nothing, &late);
	if (!err)
		err = perf_agree_counts(a->job, &time->wrong, 1);
	if (!err)
		err = perf_agree_counts(a->job, &time->far, 1);
	if (!err)
		err = perf_agree(a->job, &ranks, COVEY_MAX);
	time->measured = !err && !late;
	a->job->wrong += time->wrong + time->far;
	if (err)
		return perf_fail(a->job, "all2all", err);
	return perf_live(a->job) == a->job->size ? 0 : lost(a->job);
}

static int one_way(struct perf_a2a *a, const struct perf_way *way, struct perf_a2a_time *time)
{
	int from = a->parts, err;
	void *state = NULL;

	a->rung = way->rung;
	err = way->open(a, &state);
	if (!err && state)
		err = run_way(a, way, state, time);
	way->close(a, state);
	perf_a2a_give_back(a, from);
	return err;
}

/* The bytes of the busiest wire: each token once for each other rank that owns one of its experts. */
static double wire_us(const struct perf_a2a *a)
{
	const struct perf_shape *s = a->shape;
	size_t out[PERF_A2A_RANKS] = { 0 }, in[PERF_A2A_RANKS] = { 0 }, most = 0;

	for (int r = 0; r < a->job->size; r++)
		for (int t = 0; t < perf_shape_tokens(s, r); t++) {
			int32_t ids[PERF_A2A_TOPK];
			unsigned to = 1u << r;

			perf_shape_experts(s, r, t, ids);
			for (int k = 0; k < s->topk; k++) {
				int owner = ids[k] / a->local;

				out[r] += !(to >> owner & 1);
				in[owner] += !(to >> owner & 1);
				to |= 1u << owner;
			}
		}
	for (int r = 0; r < a->job->size; r++) {
		most = out[r] > most ? out[r] : most;
		most = in[r] > most ? in[r] : most;
	}
	return 2 * (double)most * s->hidden * 2 / (PERF_WIRE_GBS * 1e3);
}

static int one_row(struct perf_job *job, int shape, enum perf_expert expert)
{
	struct perf_a2a a = { .job = job, .shape = &perf_shapes[shape], .expert = expert };
	struct perf_a2a_row *row = &job->a2a_rows[job->a2a_row_count];
	int err = shape_open(&a);

	row->shape = shape;
	row->expert = expert;
	for (int r = 0; r < job->size; r++)
		row->tokens += perf_shape_tokens(a.shape, r);
	row->wire_us = wire_us(&a);
	if (!err)
		err = perf_a2a_floor(&a, &row->floor_us);
	for (int w = 0; w < PERF_WAYS && !err; w++)
		err = one_way(&a, way_of(w), &row->way[w]);
	shape_close(&a);
	if (err)
		return err;
	job->a2a_row_count++;
	if (perf_speaks(job))
		perf_print_a2a(job, row);
	return 0;
}

int perf_all2all(struct perf_job *job)
{
	const struct perf_list *shapes = &job->opt.shapes;
	int err = 0;

	if (job->size > PERF_A2A_RANKS) {
		if (perf_speaks(job))
			fprintf(stderr, "ep-perf: all2all has tokens for %d ranks at most: the group has %d\n",
				PERF_A2A_RANKS, job->size);
		return PERF_USAGE;
	}
	if (job->opt.device && perf_device_open(job))
		return PERF_FAILED;
	if (job->opt.device && !job->opt.alone && perf_nccl_open(job, 0, &job->device->nccl))
		return PERF_FAILED;
	job->a2a_rows = calloc((size_t)shapes->count * 2, sizeof(*job->a2a_rows));
	if (!job->a2a_rows)
		return perf_fail(job, "the table", COVEY_ERR_NOMEM), PERF_FAILED;
	if (perf_speaks(job))
		perf_print_a2a_head(job);
	for (int expert = PERF_BY_RANK; expert <= PERF_BY_VECTOR; expert++)
		for (int i = 0; i < shapes->count && !err; i++)
			err = one_row(job, shapes->value[i] - 1, (enum perf_expert)expert);
	if (!err && perf_speaks(job))
		perf_print_a2a_means(job);
	return err ? PERF_FAILED : PERF_OK;
}
