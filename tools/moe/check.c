/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker: computes a reported step again from text and seed, under the rank's masks, and compares. Counts and
 * ranges must be exact. Rows may differ by 2^-7 of the largest magnitude in the row: one rounding to bf16.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe.h"

int moe_write(int fd, const void *from, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, from, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		from = (const uint8_t *)from + n;
		bytes -= (size_t)n;
	}
	return 0;
}

int moe_read(int fd, void *to, size_t bytes)
{
	while (bytes) {
		ssize_t n = read(fd, to, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		to = (uint8_t *)to + n;
		bytes -= (size_t)n;
	}
	return 0;
}

size_t moe_body_bytes(const struct moe_shape *s, int local, int size, int tokens)
{
	return (size_t)local * ((size_t)size * sizeof(int64_t) + sizeof(int32_t)) +
	       2 * (size_t)tokens * (size_t)s->hidden;
}

struct work { /* of one check */
	struct moe_shape shape;
	struct moe_batch batch[MOE_MAX_RANKS];
	unsigned char here[MOE_MAX_RANKS];
	int *owner;
};

static void *need(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		abort(); /* a checker that cannot check must not report success */
	return p;
}

static struct moe_batch make_batch(const struct moe_model *ref, uint64_t step, int rank)
{
	const struct moe_shape *s = &ref->shape;
	size_t entries = (size_t)s->tokens * (size_t)s->top_k;
	uint16_t *x = need(2 * (size_t)s->tokens * (size_t)s->hidden);
	int32_t *experts = need(entries * sizeof(*experts));
	float *weights = need(entries * sizeof(*weights));

	moe_model_batch(ref, step, rank, x, experts, weights);
	return (struct moe_batch){ s->tokens, x, experts, weights };
}

static void free_batch(struct moe_batch *b)
{
	free((void *)b->x);
	free((void *)b->experts);
	free((void *)b->weights);
}

static int counts_differ(const struct work *w, const struct moe_report *r, const uint8_t *body)
{
	size_t ranges = (size_t)r->local * (size_t)r->size, local = 0;
	int64_t *range = need(ranges * sizeof(*range));
	int32_t *count = need((size_t)r->local * sizeof(*count));
	struct moe_packed to = { NULL, count, NULL, range };
	int differ;

	for (int e = 0; e < w->shape.experts; e++)
		local += w->owner[e] == r->rank;
	differ = local != (size_t)r->local;
	if (!differ) {
		moe_ref_dispatch(&w->shape, w->batch, w->owner, r->rank, &to);
		differ = memcmp(range, body, ranges * sizeof(*range)) != 0 ||
			 memcmp(count, body + ranges * sizeof(*range), local * sizeof(*count)) != 0;
	}
	free(range);
	free(count);
	return differ;
}

/* Largest error of a row over the largest magnitude in it. */
static float row_error(const uint16_t *got, const uint16_t *want, int hidden)
{
	float largest = 0, error = 0;

	for (int h = 0; h < hidden; h++) {
		float g = moe_from_bf16(got[h]), x = moe_from_bf16(want[h]);

		if (!(fabsf(g - x) <= error))
			error = fabsf(g - x); /* also when x or g is a NaN */
		if (fabsf(x) > largest)
			largest = fabsf(x);
	}
	return error == 0 ? 0 : largest > 0 ? error / largest : INFINITY;
}

static void check_rows(struct moe_model *ref, const struct work *w, const struct moe_batch *own, const uint8_t *rows,
		       struct moe_verdict *v)
{
	size_t hidden = (size_t)w->shape.hidden, bytes = 2 * (size_t)own->tokens * hidden;
	uint16_t *want = need(bytes), *got = need(bytes);

	memcpy(got, rows, bytes);
	for (int e = 0; e < w->shape.experts; e++)
		if (!moe_expert_make(ref, e))
			abort();
	moe_ref_combine(&w->shape, own, w->owner, w->here, 0, moe_expert_run, ref, want);
	for (int t = 0; t < own->tokens; t++) {
		float error = row_error(got + (size_t)t * hidden, want + (size_t)t * hidden, w->shape.hidden);
		int here = 0;

		for (int k = 0; k < w->shape.top_k; k++)
			here += w->here[w->owner[own->experts[t * w->shape.top_k + k]]];
		v->lost += here == 0;
		v->partial += here > 0 && here < w->shape.top_k;
		v->wrong += !(error <= 0x1p-7f);
		if (!(error <= v->worst))
			v->worst = error;
	}
	free(want);
	free(got);
}

void moe_check(struct moe_model *ref, const struct moe_report *r, const uint8_t *body, struct moe_verdict *v)
{
	size_t head = (size_t)r->local * ((size_t)r->size * sizeof(int64_t) + sizeof(int32_t));
	struct work w = { .shape = ref->shape };
	struct moe_batch own;

	*v = (struct moe_verdict){ .step = r->step, .rank = r->rank };
	w.shape.size = r->size;
	w.owner = need((size_t)ref->shape.experts * sizeof(*w.owner));
	moe_owners(ref, r->size, w.owner);
	for (int q = 0; q < r->size; q++) {
		if (r->mask[MOE_DISPATCH] >> q & 1)
			w.batch[q] = make_batch(ref, r->step, q);
		w.here[q] = r->mask[MOE_COMBINE] >> q & 1;
	}
	v->counts_bad = counts_differ(&w, r, body);
	own = make_batch(ref, r->step, r->rank);
	check_rows(ref, &w, &own, body + head, v);
	free_batch(&own);
	for (int q = 0; q < r->size; q++)
		free_batch(&w.batch[q]);
	free(w.owner);
}

int moe_check_main(const struct moe_options *opt, int fd)
{
	struct moe_model ref;
	struct moe_report report;
	struct moe_verdict verdict;

	if (moe_model_open(&ref, &opt->shape, opt->ffn, opt->seed, opt->text))
		return 1;
	while (!moe_read(fd, &report, sizeof(report))) {
		uint8_t *body = need(report.body);

		if (moe_read(fd, body, report.body))
			abort();
		moe_check(&ref, &report, body, &verdict);
		free(body);
		if (moe_write(fd, &verdict, sizeof(verdict)))
			break;
	}
	moe_model_close(&ref);
	return 0;
}
