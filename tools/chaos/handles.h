/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle of dispatch and combine that comes and goes: handles.c makes and uses it, handles_check.c knows what must come
 * out. What every rank sends is a function of source, token and step.
 */
#ifndef CHAOS_HANDLES_H
#define CHAOS_HANDLES_H

#include "work.h"

#define CHAOS_TOKENS 32 /* the most of each */
#define CHAOS_HIDDEN 320
#define CHAOS_TOP_K 4
#define CHAOS_EXPERTS 16
#define CHAOS_PLACES 3
#define CHAOS_GROUP 128	 /* elements with one scale */
#define CHAOS_PEAK 448	 /* the largest 8-bit number */
#define CHAOS_VALUES 15U /* exact as 8-bit numbers: 1 to 15 */

struct chaos_handle {
	struct covey_ep *ep;
	int tokens, hidden, top_k, experts, preset, rows, back, size, places;
	bool smoothed, scaled; /* the dispatch gets factors of elements; the combine those of experts */
	int owner[CHAOS_EXPERTS * CHAOS_PLACES]; /* [experts][places] */
	uint16_t *x, *y, *out;
	void *packed; /* uint16_t or, of 8-bit rows, uint8_t */
	float *scales, *weights, *recv_weights, *smooth;
	float factors[CHAOS_EXPERTS]; /* of the local experts */
	int32_t *ids, *count, *src_info, *recv_ids, *flat, *triplets, *placed;
	uint32_t *arrived;
	int64_t *range;
};

/* A row is for all experts of a rank that its token names. */
static inline bool chaos_handle_once(const struct chaos_handle *h)
{
	return h->preset == COVEY_EP_COMPACT || h->preset == COVEY_EP_HT;
}

/* The rows of an expert begin where those of the one before end. */
static inline bool chaos_handle_close(const struct chaos_handle *h)
{
	return h->preset == COVEY_EP_WIN;
}

/* Has @rank a place of the expert? */
bool chaos_handle_owns(const struct chaos_handle *h, int expert, int rank);
float chaos_handle_element(const struct chaos_member *m, int source, int t, int i);
int chaos_handle_tokens(const struct chaos_member *m, const struct chaos_handle *h, int source);
int chaos_handle_expert(const struct chaos_member *m, const struct chaos_handle *h, int source, int t, int k);
/* Factors of an expert that do not make exact numbers inexact. */
float chaos_handle_smooth(int expert, int i);
float chaos_handle_scale(const struct chaos_handle *h, int expert); /* 1: the combine gets none */

uint16_t chaos_bf16(float f); /* to nearest even */
float chaos_from_bf16(uint16_t half);

/* handles_check.c: 0 or the exit code. The first also makes the experts' results. */
int chaos_handle_check_dispatch(struct chaos_member *m, struct chaos_handle *h);
int chaos_handle_check_combine(struct chaos_member *m, const struct chaos_handle *h);

#endif
