/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check: computes a step again from text and seed, under the rank's masks, and compares. Counts, ranges and entries
 * must be exact. Rows may differ by 2^-7 of the largest magnitude in the row: one rounding to bf16. With COMPACT and HT
 * each owner has rounded its sum, too: twice as much.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"

struct work { /* of one check */
	struct moe_shape shape;
	struct moe_batch batch[MOE_MAX_RANKS];
	unsigned char here[MOE_MAX_RANKS];
	int *owner, local; /* of places, which count as experts here */
	const struct moe_model *ref;
	uint64_t living;
	float most; /* error of a row */
};

static void *need(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		abort(); /* a checker that cannot check must not report success */
	return p;
}

/* The tokens of a rank, with the places that take them for ids. */
static struct moe_batch make_batch(const struct work *w, uint64_t step, int rank)
{
	const struct moe_model *ref = w->ref;
	const struct moe_shape *s = &ref->shape;
	size_t entries = (size_t)s->tokens * (size_t)s->top_k;
	uint16_t *x = need(2 * (size_t)s->tokens * (size_t)s->hidden);
	int32_t *experts = need(entries * sizeof(*experts));
	float *weights = need(entries * sizeof(*weights));

	moe_model_batch(ref, step, rank, x, experts, weights);
	for (size_t i = 0; i < entries; i++)
		experts[i] = ref->places == 1 ? experts[i] : moe_serves(ref, w->owner, experts[i], rank, w->living);
	return (struct moe_batch){ s->tokens, x, experts, weights };
}

static void free_batch(struct moe_batch *b)
{
	free((void *)b->x);
	free((void *)b->experts);
	free((void *)b->weights);
}

/* Of the rows that are here. */
static int entries_differ(const struct work *w, const int32_t *count, const int32_t *flat, const int32_t *got)
{
	size_t rows = (size_t)w->shape.size * (size_t)w->shape.tokens;

	for (size_t e = 0; e < (size_t)w->local; e++)
		if (memcmp(flat + 2 * e * rows, got + 2 * e * rows, 2 * (size_t)count[e] * sizeof(*flat)) != 0)
			return 1;
	return 0;
}

/* The same as triplets, of rows that stand close. */
static int triplets_differ(const struct work *w, const int32_t *count, const int32_t *flat, const int32_t *got)
{
	size_t rows = (size_t)w->shape.size * (size_t)w->shape.tokens;

	for (size_t e = 0; e < (size_t)w->local; e++, flat += 2 * rows)
		for (size_t i = 0; i < (size_t)count[e]; i++, got += 3) {
			int32_t entry = flat[2 * i + 1];

			if (got[0] != flat[2 * i] || got[1] != entry / w->shape.top_k ||
			    got[2] != entry % w->shape.top_k)
				return 1;
		}
	return 0;
}

/* The first row of a run, among those of all experts. */
static void count_through(const struct work *w, const int32_t *count, int64_t *range)
{
	int64_t before = 0;

	for (int e = 0; e < w->local; before += count[e++])
		for (int src = 0; src < w->shape.size; src++)
			range[e * w->shape.size + src] += before;
}

static int counts_differ(const struct work *w, const struct moe_report *r, const struct moe_arrived *got)
{
	const int once = moe_once(got->preset);
	size_t local = (size_t)w->local, ranges = (once ? local > 0 : local) * (size_t)r->size;
	int64_t *range = need((ranges + (size_t)r->size) * sizeof(*range));
	int32_t *count = need(local * sizeof(*count));
	int32_t *flat = need(local * (size_t)r->size * (size_t)w->shape.tokens * 2 * sizeof(*flat));
	struct moe_packed to = { NULL, count, NULL, range, flat };
	int differ;

	if (once)
		moe_ref_dispatch_once(&w->shape, w->batch, w->owner, r->rank, &to);
	else
		moe_ref_dispatch(&w->shape, w->batch, w->owner, r->rank, &to);
	if (moe_close(got->preset))
		count_through(w, count, range);
	differ = memcmp(range, got->range, ranges * sizeof(*range)) != 0 ||
		 memcmp(count, got->count, local * sizeof(*count)) != 0 ||
		 (got->preset == COVEY_EP_FLAT && entries_differ(w, count, flat, got->flat)) ||
		 (moe_close(got->preset) && triplets_differ(w, count, flat, got->triplets));
	free(range);
	free(count);
	free(flat);
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

static void run_place(void *model, int place, const uint16_t *x, uint16_t *y)
{
	struct moe_model *ref = model;

	moe_expert_run(ref, place / ref->places, x, y);
}

static void check_rows(struct moe_model *ref, const struct work *w, const struct moe_batch *own, const uint16_t *got,
		       struct moe_verdict *v)
{
	size_t hidden = (size_t)w->shape.hidden, bytes = 2 * (size_t)own->tokens * hidden;
	uint16_t *want = need(bytes);

	for (int e = 0; e < ref->shape.experts; e++)
		if (!moe_expert_make(ref, e))
			abort();
	moe_ref_combine(&w->shape, own, w->owner, w->here, 0, run_place, ref, want);
	for (int t = 0; t < own->tokens; t++) {
		float error = row_error(got + (size_t)t * hidden, want + (size_t)t * hidden, w->shape.hidden);
		int here = 0;

		for (int k = 0; k < w->shape.top_k; k++) {
			int place = own->experts[t * w->shape.top_k + k];

			here += place >= 0 && w->here[w->owner[place]];
		}
		v->lost += here == 0;
		v->partial += here > 0 && here < w->shape.top_k;
		v->wrong += !(error <= w->most);
		if (!(error <= v->worst))
			v->worst = error;
	}
	free(want);
}

void moe_check(struct moe_model *ref, const struct moe_report *r, const struct moe_arrived *arrived,
	       const uint16_t *out, struct moe_verdict *v)
{
	struct work w = { .shape = ref->shape,
			  .ref = ref,
			  .living = r->living,
			  .most = moe_once(arrived->preset) ? 0x1p-6f : 0x1p-7f };
	struct moe_batch own;

	*v = (struct moe_verdict){ 0 };
	w.shape.size = r->size;
	w.shape.experts *= ref->places;
	w.owner = need((size_t)w.shape.experts * sizeof(*w.owner));
	moe_owners(ref, r->size, w.owner);
	for (int p = 0; p < w.shape.experts; p++)
		w.local += w.owner[p] == r->rank;
	for (int q = 0; q < r->size; q++) {
		if (r->mask[MOE_DISPATCH] >> q & 1)
			w.batch[q] = make_batch(&w, r->step, q);
		w.here[q] = r->mask[MOE_COMBINE] >> q & 1;
	}
	v->counts_bad = w.local != r->local || counts_differ(&w, r, arrived);
	own = make_batch(&w, r->step, r->rank);
	check_rows(ref, &w, &own, out, v);
	free_batch(&own);
	for (int q = 0; q < r->size; q++)
		free_batch(&w.batch[q]);
	free(w.owner);
}
