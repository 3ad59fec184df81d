/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What handles and calls of expert parallelism must be given: what is missing or wrong is refused by its name, and ranks
 * whose handles differ do not take each other's bytes for what they are not.
 *
 * labels: redis tsan
 */
#include "ep_layer.h"

#include <stddef.h>

enum { HIDDEN = 136, TOKENS = 3 };

static struct covey_dispatch_args dispatch_args(struct layer *l)
{
	struct covey_dispatch_args d = EP_DISPATCH(l);

	d.weights = l->weights;
	d.recv_experts = l->experts;
	d.recv_weights = d.packed_scales = l->beside;
	return d;
}

/* Each is refused with @CAUSE when it is given FIELD as VALUE. */
#define DISPATCH_REFUSED(FIELD, VALUE, CAUSE) \
	do { \
		d = dispatch_args(&l); \
		d.FIELD = VALUE; \
		must_be_invalid(m->group, covey_dispatch(l.ep, &d, NULL, NULL), CAUSE); \
	} while (0)
#define CREATE_REFUSED(FIELD, VALUE, CAUSE) \
	do { \
		config = ep_config(8, 8, 1, 1); \
		config.preset = COVEY_EP_COMPACT; \
		config.FIELD = VALUE; \
		must_be_invalid(m->group, covey_ep_create(m->group, &config, &other), CAUSE); \
	} while (0)

TEST_RANKS(what_it_needs_is_asked_for, 1)
{
	struct covey_ep_config config;
	struct covey_dispatch_args d;
	struct covey_combine_args c;
	struct covey_ep *other;
	struct layer l;

	layer_open(&l, m->group, COVEY_EP_COMPACT, TOKENS, HIDDEN);
	l.ep->rows_as = COVEY_EP_ROWS_INT8;
	DISPATCH_REFUSED(weights, NULL, "weights must not be NULL with COVEY_EP_COMPACT");
	DISPATCH_REFUSED(recv_experts, NULL, "recv_experts and recv_weights must not be NULL");
	DISPATCH_REFUSED(x_scales, l.beside, "x_scales are for rows in e4m3");
	DISPATCH_REFUSED(packed_scales, NULL, "packed_scales must not be NULL with rows in e4m3, int8 or");
	DISPATCH_REFUSED(smooth, l.beside, "smooth differs by expert, and with COVEY_EP_COMPACT");
	l.ep->rows_as = COVEY_EP_ROWS_E4M3;
	DISPATCH_REFUSED(smooth, l.beside, "smooth is for rows of integers: lay the handle out with");
	c = EP_COMBINE(&l, l.packed);
	c.weights = NULL;
	c.renormalise = 1;
	must_be_invalid(m->group, covey_combine(l.ep, &c, NULL, NULL), "weights must not be NULL");
	CREATE_REFUSED(preset, COVEY_EP_HT + 1, "preset must be of enum covey_ep_preset");
	CREATE_REFUSED(rows, COVEY_EP_ROWS_E4M3_POW2 + 1, "rows (enum covey_ep_rows_as) is 5: it must be from 0");
	CREATE_REFUSED(combine_rows, -1, "combine_rows (enum covey_ep_back_as) is -1: it must");
	CREATE_REFUSED(dtype, COVEY_FLOAT32, "dtype is f32 (7): it must be COVEY_BFLOAT16 or COVEY_FLOAT16");
	layer_close(&l);
}

TEST_RANKS(ids_are_given_in_one_type, 1)
{
	int64_t wide[TOKENS * LAYER_EXPERTS] = { 0 };
	const int64_t *const ids64[] = { wide, NULL };
	const char *const causes[] = { "experts and experts64 are both given", "experts and experts64 are NULL" };
	struct covey_dispatch_args d;
	struct covey_combine_args c;
	struct layer l;

	layer_open(&l, m->group, COVEY_EP_COMPACT, TOKENS, HIDDEN);
	d = dispatch_args(&l);
	c = EP_COMBINE(&l, l.packed);
	for (int i = 0; i < 2; i++) {
		d.experts = c.experts = i ? NULL : l.ids;
		d.experts64 = c.experts64 = ids64[i];
		must_be_invalid(m->group, covey_dispatch(l.ep, &d, NULL, NULL), causes[i]);
		must_be_invalid(m->group, covey_combine(l.ep, &c, NULL, NULL), causes[i]);
	}
	d.experts = c.experts = l.ids;
	d.size = offsetof(struct covey_dispatch_args, experts64);
	c.size = offsetof(struct covey_combine_args, experts64);
	d.experts64 = c.experts64 = wide; /* of a struct that ends before them: not read */
	must(!covey_dispatch(l.ep, &d, NULL, NULL), "a struct without experts64");
	must(!covey_combine(l.ep, &c, NULL, NULL), "a struct without experts64");
	layer_close(&l);
}

enum unlike { PRESETS, ELEMENTS, RESULTS, FACTORS, UNLIKES };

/* In one thing the ranks' handles, or calls, differ. */
static void differ(struct member *m)
{
	static const float factors[LAYER_EXPERTS * HIDDEN];
	const enum unlike unlike = *(enum unlike *)m->arg;
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, LAYER_EXPERTS, LAYER_EXPERTS);
	struct layer l = { .group = m->group, .tokens = TOKENS, .hidden = HIDDEN };
	struct covey_dispatch_args d;

	c.preset = unlike == FACTORS || (unlike == PRESETS && !m->rank) ? COVEY_EP_LL : COVEY_EP_COMPACT;
	c.dtype = unlike == ELEMENTS && m->rank ? COVEY_FLOAT16 : COVEY_BFLOAT16;
	c.combine_rows = unlike == RESULTS && m->rank;
	c.rows = COVEY_EP_ROWS_INT8;
	must(!covey_ep_create(m->group, &c, &l.ep), "create");
	layer_buffers(&l);
	d = dispatch_args(&l);
	d.smooth = unlike == FACTORS && m->rank ? factors : NULL;
	must(covey_dispatch(l.ep, &d, NULL, NULL) == COVEY_ERR_MISMATCH, "handles that differ");
	layer_close(&l);
}

TEST_LOOP(handles_that_differ_do_not_match, 0, UNLIKES)
{
	struct covey_config config = harness_config("epunlike", 2);
	enum unlike unlike = (enum unlike)_i;

	harness_threads(&config, differ, &unlike);
}

HARNESS_MAIN(.name = "collectives/ep_needs")
