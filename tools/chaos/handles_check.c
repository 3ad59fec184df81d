/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dispatch and a combine by a handle must have written: every row and where it is from, every sum. Where rows or
 * results are integers, elements are as near as codes are.
 */
#include <math.h>

#include "handles.h"

static float from_e4m3(uint8_t code)
{
	int e = code >> 3 & 15, fraction = code & 7;
	float f = e ? ldexpf((float)(8 + fraction), e - 10) : ldexpf((float)fraction, -9);

	return code & 0x80 ? -f : f;
}

/* Integers have one scale a row, which is as LL has it. */
static float from_integer(const struct chaos_handle *h, size_t row, int i)
{
	const uint8_t *codes = (const uint8_t *)h->packed;
	size_t at = row * (size_t)h->hidden + (size_t)i;

	if (h->rows == COVEY_EP_ROWS_INT8)
		return (float)(int8_t)codes[at] * h->scales[row];
	return (float)(codes[at / 2] >> (i % 2 * 4) & 15) * h->scales[row]; /* no element is below 0 */
}

static float value(const struct chaos_handle *h, size_t at, int i)
{
	size_t all = (size_t)h->size * (size_t)h->tokens, groups = (size_t)(h->hidden + CHAOS_GROUP - 1) / CHAOS_GROUP;
	size_t scale = at * groups + (size_t)(i / CHAOS_GROUP);

	if (h->rows == COVEY_EP_ROWS_BF16)
		return chaos_from_bf16(((const uint16_t *)h->packed)[at * (size_t)h->hidden + (size_t)i]);
	if (h->rows != COVEY_EP_ROWS_E4M3)
		return from_integer(h, at, i);
	if (!chaos_handle_once(h) && !chaos_handle_close(h))
		scale = (at / all * groups + (size_t)(i / CHAOS_GROUP)) * all + at % all;
	return from_e4m3(((const uint8_t *)h->packed)[at * (size_t)h->hidden + (size_t)i]) * h->scales[scale];
}

/* An element of a row of expert @e, which its factors have changed; < 0: there are none. */
static float sent(const struct chaos_member *m, const struct chaos_handle *h, int e, int source, int t, int i)
{
	return chaos_handle_element(m, source, t, i) * (e >= 0 && h->smoothed ? chaos_handle_smooth(e, i) : 1);
}

/* How far an element may be off: integers by half of the scale, which the largest gives. */
static float off(const struct chaos_member *m, const struct chaos_handle *h, int e, int source, int t)
{
	float most = 0;

	if (h->rows != COVEY_EP_ROWS_INT8 && h->rows != COVEY_EP_ROWS_INT4)
		return 0;
	for (int i = 0; i < h->hidden; i++)
		most = fmaxf(most, sent(m, h, e, source, t, i));
	return most / (h->rows == COVEY_EP_ROWS_INT8 ? 127.0f : 7.0f) * 0.501f;
}

struct origin {
	int source, t, k, e; /* k, e: entry and its expert; with COMPACT the first entry here, and -1 */
};

/* Where row @at is from, and that it was told. */
static int check_origin(struct chaos_member *m, const struct chaos_handle *h, size_t at, const struct origin *o)
{
	const int32_t *triplet = h->triplets + 3 * at;

	if (h->src_info[at] != o->t)
		return chaos_bad_bytes(m, "src_info of a handle", at, h->src_info[at], o->t);
	if (h->flat[2 * at] != o->source || h->flat[2 * at + 1] != o->t * h->top_k + o->k)
		return chaos_bad_bytes(m, "flat of a handle", at, h->flat[2 * at + 1], o->t * h->top_k + o->k);
	if (triplet[0] != o->source || triplet[1] != o->t || triplet[2] != o->k)
		return chaos_bad_bytes(m, "triplets of a handle", at, triplet[2], o->k);
	if (h->arrived[COVEY_EP_ARRIVED_ROWS + at] != COVEY_EP_ARRIVED)
		return chaos_bad_bytes(m, "arrived of a handle", at, h->arrived[COVEY_EP_ARRIVED_ROWS + at],
				       COVEY_EP_ARRIVED);
	return 0;
}

/* One row. Makes the experts' result of it: the token itself, weighted if the experts apply weights. */
static int check_row(struct chaos_member *m, struct chaos_handle *h, size_t at, const struct origin *o)
{
	float weight = 1, slack = off(m, h, o->e, o->source, o->t);
	int code = check_origin(m, h, at, o);

	if (code)
		return code;
	if (chaos_handle_once(h))
		weight = 0;
	for (int k = 0; k < h->top_k && chaos_handle_once(h); k++)
		weight += h->recv_weights[at * (size_t)h->top_k + (size_t)k];
	for (int i = 0; i < h->hidden; i++) {
		float got = value(h, at, i), want = sent(m, h, o->e, o->source, o->t, i);

		if (!(fabsf(got - want) <= slack))
			return chaos_bad_bytes(m, "dispatch of a handle", at * (size_t)h->hidden + (size_t)i,
					       (double)got, (double)want);
		h->y[at * (size_t)h->hidden + (size_t)i] =
			chaos_bf16(chaos_handle_element(m, o->source, o->t, i) * weight);
	}
	return 0;
}

static int check_run(struct chaos_member *m, const struct chaos_handle *h, int at, int first, int want)
{
	if (h->range[at] >> 32 != want || (want && (int32_t)h->range[at] != first))
		return chaos_bad_bytes(m, "range of a handle", (size_t)at, (double)(h->range[at] >> 32), want);
	return 0;
}

/* A bin for each local expert: in its own place, or close behind the one before. */
static int check_by_expert(struct chaos_member *m, struct chaos_handle *h)
{
	int bin = 0, row = 0, code = 0;

	for (int e = 0; e < h->experts; e++) {
		int begin = row;
		size_t base = chaos_handle_close(h) ? 0 : (size_t)bin * (size_t)(h->size * h->tokens);

		if (!chaos_handle_owns(h, e, m->rank))
			continue;
		for (int s = 0; s < h->size && !code; s++) {
			int first = row, elsewhere = h->places > 1 && !(h->range[bin * h->size + s] >> 32);

			/* Of several places one takes all that the source has for the expert, and the others nothing. */
			for (int t = 0; t < (m->record.mask >> s & 1 && !elsewhere ? chaos_handle_tokens(m, h, s) : 0);
			     t++)
				for (int k = 0; k < h->top_k && !code; k++)
					if (chaos_handle_expert(m, h, s, t, k) == e)
						code = check_row(m, h, base + (size_t)row++,
								 &(struct origin){ s, t, k, e });
			if (!code)
				code = check_run(m, h, bin * h->size + s, first, row - first);
		}
		if (!code && h->count[bin] != row - begin)
			code = chaos_bad_bytes(m, "count of a handle", (size_t)bin, h->count[bin], row - begin);
		if (code)
			return code;
		row = chaos_handle_close(h) ? row : 0;
		bin++;
	}
	return 0;
}

/* Data beside a row: the local experts in the places where the token names them. 0: it names none here. */
static int check_beside(struct chaos_member *m, const struct chaos_handle *h, const int *local, int row, int s, int t,
			int *named)
{
	int here = 0;

	for (int k = 0; k < h->top_k; k++) {
		int e = chaos_handle_expert(m, h, s, t, k);

		here += e >= 0 && local[e] >= 0;
	}
	for (int k = 0; k < h->top_k && here; k++) {
		int e = chaos_handle_expert(m, h, s, t, k), at = row * h->top_k + k, want = e >= 0 ? local[e] : -1;

		if (h->recv_ids[at] != want || h->recv_weights[at] != (float)(want >= 0 ? k + 1 : 0))
			return chaos_bad_bytes(m, "experts beside a row", (size_t)at, h->recv_ids[at], want) ? -1 : 0;
		if (want >= 0)
			named[want]++;
	}
	return here;
}

/* The first entry of a token that names an expert here, as there is one. */
static int first_here(const struct chaos_member *m, const struct chaos_handle *h, const int *local, int s, int t)
{
	int k = 0;

	for (int e; (e = chaos_handle_expert(m, h, s, t, k)) < 0 || local[e] < 0; k++)
		;
	return k;
}

/* One bin for all. */
static int check_compact(struct chaos_member *m, struct chaos_handle *h)
{
	int local[CHAOS_EXPERTS], named[CHAOS_EXPERTS] = { 0 }, locals = 0, row = 0, code = 0;

	for (int e = 0; e < h->experts; e++)
		local[e] = h->owner[e] == m->rank ? locals++ : -1;
	for (int s = 0; s < h->size && locals; s++) {
		int first = row;

		for (int t = 0; t < (m->record.mask >> s & 1 ? chaos_handle_tokens(m, h, s) : 0); t++) {
			int here = check_beside(m, h, local, row, s, t, named);

			if (here > 0)
				code = check_row(m, h, (size_t)row++,
						 &(struct origin){ s, t, first_here(m, h, local, s, t), -1 });
			if (here < 0 || code)
				return 1;
		}
		code = check_run(m, h, s, first, row - first);
		if (code)
			return code;
	}
	for (int e = 0; e < locals; e++)
		if (h->count[e] != named[e])
			return chaos_bad_bytes(m, "count of a handle", (size_t)e, h->count[e], named[e]);
	return 0;
}

/* What the codes of eight results, and the rounding of their sum, can make of an element; 0: it is exact. */
static float slack_of(const struct chaos_member *m, const struct chaos_handle *h, int t, int i, float weight)
{
	float most = 0;

	if (h->back == COVEY_EP_BACK_PLAIN)
		return 0;
	for (int k = i / 8 * 8; k < i / 8 * 8 + 8; k++)
		most = fmaxf(most, chaos_handle_element(m, m->rank, t, k));
	return weight * (most * 0.505f / 127 + chaos_handle_element(m, m->rank, t, i) / 256);
}

/* The rank that served entry @k of the own token @t, which names @e; -1: none. */
static int served_by(const struct chaos_handle *h, int e, int t, int k)
{
	int place = h->places > 1 ? h->placed[t * h->top_k + k] : e;

	return e < 0 || place < 0 ? -1 : h->owner[place];
}

int chaos_handle_check_combine(struct chaos_member *m, const struct chaos_handle *h)
{
	for (int t = 0; t < chaos_handle_tokens(m, h, m->rank); t++) {
		float weight = 0;

		for (int k = 0; k < h->top_k; k++) {
			int e = chaos_handle_expert(m, h, m->rank, t, k), owner = served_by(h, e, t, k);

			if (owner >= 0 && m->record.mask >> owner & 1)
				weight += (float)(k + 1) * chaos_handle_scale(h, e);
		}
		for (int i = 0; i < h->hidden; i++) {
			float got = chaos_from_bf16(h->out[t * h->hidden + i]);
			float want = chaos_from_bf16(chaos_bf16(weight * chaos_handle_element(m, m->rank, t, i)));

			if (!(fabsf(got - want) <= slack_of(m, h, t, i, weight)))
				return chaos_bad_bytes(m, "combine of a handle", (size_t)(t * h->hidden + i),
						       (double)got, (double)want);
		}
	}
	return 0;
}

/* Readers of a dispatch that has ended are told, and rows were placed once. */
static int check_told(struct chaos_member *m, const struct chaos_handle *h)
{
	size_t all = (size_t)h->size * (size_t)h->tokens, told = 0, rows = 0;
	int local = 0, bins;

	for (int e = 0; e < h->experts; e++)
		local += chaos_handle_owns(h, e, m->rank);
	for (int i = COVEY_EP_ARRIVED_RANGE; i <= COVEY_EP_ARRIVED_ENDED && local; i++)
		if (h->arrived[i] != COVEY_EP_ARRIVED)
			return chaos_bad_bytes(m, "words of a handle", (size_t)i, h->arrived[i], COVEY_EP_ARRIVED);
	if (!local || h->arrived[COVEY_EP_ARRIVED_AGAIN])
		return 0;
	bins = chaos_handle_once(h) ? 1 : local;
	for (int b = chaos_handle_close(h) ? bins - 1 : 0; b < bins; b++)
		rows += (size_t)(h->range[(b + 1) * h->size - 1] >> 32) + (uint32_t)h->range[(b + 1) * h->size - 1];
	for (size_t i = 0; i < all * (size_t)bins; i++)
		told += h->arrived[COVEY_EP_ARRIVED_ROWS + i] != 0;
	return told == rows ? 0 : chaos_bad_bytes(m, "rows that a handle has told", 0, (double)told, (double)rows);
}

int chaos_handle_check_dispatch(struct chaos_member *m, struct chaos_handle *h)
{
	int code = chaos_handle_once(h) ? check_compact(m, h) : check_by_expert(m, h);

	return code ? code : check_told(m, h);
}
