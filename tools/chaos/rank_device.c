/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured operations on device memory: an allreduce, or a step of an MoE layer, dispatch and combine of --tokens
 * tokens, whose experts return their input. Each is launched and waited for, since its time is measured. Inputs are
 * made and results checked on the host, outside that time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank.h"
#include "tool.h"

#define HIDDEN 7168
#define TOP_K 8
#define EXPERTS 256
#define VALUES 31 /* 1 to 31: a sum of TOP_K of them, and each part of it, is a bf16 */

struct chaos_there {
	const struct cvy_gpu_tool *tool;
	struct CUstream_st *stream;
	uint64_t next;	    /* number of the next operation of the device */
	float *send, *recv; /* of the allreduce */
	struct covey_ep *ep;
	uint16_t *own; /* [tokens][HIDDEN] on the host: the tokens sent, and the tokens that came back */
	int32_t *ids;  /* [tokens][TOP_K] on the host */
	/* On the device, as struct covey_dispatch_args has them. */
	uint16_t *x, *packed, *out;
	int32_t *experts, *count, *src_info;
	float *weights;
	int64_t *range;
	void *route;
};

int chaos_there_open(struct worker *w)
{
	int device = w->shared->devices ? w->rank % w->shared->devices : -1;

	if (device < 0)
		return 0;
	chaos_device_choose(w->shared->devices, w->rank);
	w->there = calloc(1, sizeof(*w->there));
	if (w->there)
		w->there->tool = chaos_tool_open(device, &w->there->stream);
	if (w->there && w->there->tool)
		return 0;
	snprintf(w->slot->cause, sizeof(w->slot->cause), "device %d is not to be had", device);
	return 1;
}

static int lacks(struct worker *w, const char *what)
{
	snprintf(w->slot->cause, sizeof(w->slot->cause), "%s on the device: %.160s", what, w->there->tool->why());
	return 1;
}

static int open_step(struct worker *w)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct chaos_there *t = w->there;
	int err;

	config.max_tokens = w->shared->tokens;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	config.combine = COVEY_EP_PER_RANK;
	err = covey_ep_create(w->group, &config, &t->ep);
	if (err)
		return chaos_rank_fail(w, "ep_create", err);
	return 0;
}

/* All weights are 1. */
static int weigh(const struct chaos_there *t, int tokens)
{
	float ones[TOP_K];
	int err = 0;

	for (int k = 0; k < TOP_K; k++)
		ones[k] = 1;
	for (int i = 0; i < tokens && !err; i++)
		err = t->tool->copy(t->weights + (size_t)i * TOP_K, ones, sizeof(ones));
	return err;
}

/* A handle is laid out for the ranks that a joiner knows: none before its first safe point. */
static int lay_out(struct worker *w)
{
	struct chaos_there *t = w->there;
	size_t tokens = (size_t)w->shared->tokens, rows, named = tokens * TOP_K;
	int err;

	if (!t->ep || t->own)
		return 0;
	err = covey_ep_remap(t->ep, NULL);
	if (err)
		return chaos_rank_fail(w, "ep_remap", err);
	rows = (size_t)covey_ep_local_experts(t->ep) * (size_t)covey_ep_rows(t->ep);
	t->own = malloc(tokens * HIDDEN * sizeof(*t->own));
	t->ids = malloc(named * sizeof(*t->ids));
	if (!t->own || !t->ids)
		return chaos_rank_fail(w, "no memory", COVEY_ERR_NOMEM);
	if (t->tool->alloc(tokens * HIDDEN * sizeof(*t->x), (void **)&t->x) ||
	    t->tool->alloc(tokens * HIDDEN * sizeof(*t->out), (void **)&t->out) ||
	    t->tool->alloc(rows * HIDDEN * sizeof(*t->packed), (void **)&t->packed) ||
	    t->tool->alloc(rows * sizeof(*t->src_info), (void **)&t->src_info) ||
	    t->tool->alloc(named * sizeof(*t->experts), (void **)&t->experts) ||
	    t->tool->alloc(named * sizeof(*t->weights), (void **)&t->weights) ||
	    t->tool->alloc(EXPERTS * sizeof(*t->count), (void **)&t->count) ||
	    t->tool->alloc(EXPERTS * CHAOS_MAX_RANKS * sizeof(*t->range), (void **)&t->range) ||
	    t->tool->alloc(covey_ep_route_bytes(t->ep), &t->route))
		return lacks(w, "memory of a step");
	return weigh(t, w->shared->tokens) ? lacks(w, "weights") : 0;
}

static int open_allreduce(struct worker *w)
{
	struct chaos_there *t = w->there;
	size_t bytes = w->count * sizeof(float);

	if (t->tool->alloc(bytes, (void **)&t->send) || t->tool->alloc(bytes, (void **)&t->recv) ||
	    t->tool->copy(t->send, w->send, bytes))
		return lacks(w, "memory of an allreduce");
	return 0;
}

int chaos_there_prepare(struct worker *w)
{
	if (!w->there)
		return 0;
	return w->shared->tokens ? open_step(w) : open_allreduce(w);
}

void chaos_there_close(struct worker *w)
{
	struct chaos_there *t = w->there;

	if (!t)
		return;
	covey_ep_destroy(t->ep);
	t->tool->stream_end(t->stream); /* memory is freed with the process */
	free(t->own);
	free(t->ids);
	free(t);
}

/* The device's outcome of its last operation. */
static int outcome(struct worker *w, int err, struct covey_result *result)
{
	struct chaos_there *t = w->there;

	if (!err && t->tool->wait(t->stream))
		err = COVEY_ERR_IO;
	if (!err)
		err = covey_device_result(w->group, result);
	if (err)
		return err;
	t->next = ++result->seq; /* records count from 1 */
	w->record.stream = CHAOS_DEVICE;
	return result->status;
}

/* A safe point that admitted ranks was an operation of the device. */
int chaos_there_admitted(struct worker *w)
{
	struct chaos_there *t = w->there;
	struct covey_result last;

	if (!t)
		return 0;
	if (t->tool->wait(t->stream))
		return lacks(w, "a safe point");
	if (covey_device_result(w->group, &last) || !last.mask.word[0] || last.seq < t->next)
		return lay_out(w);
	t->next = last.seq + 1;
	w->record.stream = CHAOS_DEVICE;
	w->record.seq = t->next;
	w->record.epoch = last.epoch;
	w->record.mask = last.mask.word[0];
	chaos_record_put(w);
	return lay_out(w);
}

int chaos_there_allreduce(struct worker *w, struct covey_result *result)
{
	struct chaos_there *t = w->there;
	int err = t->tool->copy(t->send, w->send, sizeof(float)); /* the step's own value */

	chaos_record_begin(w, CHAOS_ALLREDUCE);
	if (!err)
		err = covey_allreduce(t->send, t->recv, w->count, COVEY_FLOAT32, COVEY_SUM, w->group, t->stream, NULL);
	err = outcome(w, err, result);
	chaos_record_done(w, result);
	return err ? err : t->tool->copy(w->recv, t->recv, w->count * sizeof(float));
}

/* ---- a step ---- */

static int expert(uint64_t step, int rank, int token, int k)
{
	return (int)(((uint64_t)rank * 3 + (uint64_t)token * 7 + step + (uint64_t)k * 37) % EXPERTS);
}

static uint16_t bf16(unsigned n)
{
	float f = (float)n;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static unsigned value(uint64_t step, int rank, int token, int h)
{
	return (unsigned)((step + (uint64_t)rank * 5 + (uint64_t)token * 3 + (uint64_t)h) % VALUES + 1);
}

static int route(struct worker *w)
{
	struct chaos_there *t = w->there;
	size_t named = (size_t)w->shared->tokens * TOP_K;
	int err;

	for (int i = 0; i < w->shared->tokens; i++) {
		for (int h = 0; h < HIDDEN; h++)
			t->own[(size_t)i * HIDDEN + (size_t)h] = bf16(value(w->step, w->rank, i, h));
		for (int k = 0; k < TOP_K; k++)
			t->ids[i * TOP_K + k] = expert(w->step, w->rank, i, k);
	}
	err = t->tool->copy(t->x, t->own, (size_t)w->shared->tokens * HIDDEN * sizeof(*t->x));
	return err ? err : t->tool->copy(t->experts, t->ids, named * sizeof(*t->experts));
}

/* The weight of a token that came back is the number of its experts whose owners took part in both halves. */
static int check(struct worker *w, uint64_t took)
{
	struct chaos_there *t = w->there;
	int per_rank = (EXPERTS + w->shared->ranks - 1) / w->shared->ranks;

	if (t->tool->copy(t->own, t->out, (size_t)w->shared->tokens * HIDDEN * sizeof(*t->out)))
		return lacks(w, "results");
	for (int i = 0; i < w->shared->tokens; i++) {
		unsigned n = 0;

		for (int k = 0; k < TOP_K; k++)
			n += took >> (expert(w->step, w->rank, i, k) / per_rank) & 1;
		for (int h = 0; h < HIDDEN; h++)
			if (t->own[(size_t)i * HIDDEN + (size_t)h] != bf16(n * value(w->step, w->rank, i, h)))
				return chaos_rank_wrong(w, "combine");
	}
	return 0;
}

static int dispatch(struct worker *w, struct covey_result *result)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct chaos_there *t = w->there;

	args.num_tokens = w->shared->tokens;
	args.x = t->x;
	args.experts = t->experts;
	args.weights = t->weights;
	args.packed_x = t->packed;
	args.count = t->count;
	args.src_info = t->src_info;
	args.range = t->range;
	args.route = t->route;
	chaos_record_begin(w, CHAOS_DISPATCH);
	return outcome(w, covey_dispatch(t->ep, &args, t->stream, NULL), result);
}

static int combine(struct worker *w, struct covey_result *result)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	struct chaos_there *t = w->there;

	args.num_tokens = w->shared->tokens;
	args.y = t->packed;
	args.count = t->count;
	args.src_info = t->src_info;
	args.range = t->range;
	args.experts = t->experts;
	args.weights = t->weights;
	args.out = t->out;
	args.route = t->route;
	return outcome(w, covey_combine(t->ep, &args, t->stream, NULL), result);
}

int chaos_there_step(struct worker *w)
{
	struct covey_result result = { 0 };
	uint64_t begun, took;
	int err = route(w);

	if (err)
		return lacks(w, "inputs");
	err = dispatch(w, &result);
	begun = w->record.enter_ns;
	if (err)
		return chaos_rank_fail(w, "dispatch", err);
	chaos_record_done(w, &result);
	took = w->record.mask;
	chaos_record_put(w);
	chaos_record_begin(w, CHAOS_COMBINE);
	w->record.enter_ns = begun;
	err = combine(w, &result);
	if (err)
		return chaos_rank_fail(w, "combine", err);
	chaos_record_done(w, &result);
	return check(w, took & w->record.mask);
}
