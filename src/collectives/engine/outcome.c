/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outcomes that repairs brought. One may be wanted twice: by the application, which has not called the operation yet,
 * and by members that lag behind this one. It is in both lists, and freed with the last. So an operation needs no
 * further memory when it is counted as done.
 */
#include <stdlib.h>

#include "outcome.h"

void *cvy_calloc_twice(size_t bytes)
{
	void *memory = calloc(1, bytes);

	return memory ? memory : calloc(1, bytes);
}

void cvy_outcome_put(struct cvy_outcome *o)
{
	if (o && o->shared) {
		o->shared = 0;
		return;
	}
	if (o)
		free(o->bytes);
	free(o);
}

int cvy_outcome_add_tick(struct cvy_outcome *o, const uint8_t *bytes, uint32_t n)
{
	size_t all = o->n + sizeof(n) + n;
	uint8_t *grown = realloc(o->bytes, all);

	if (!grown)
		grown = realloc(o->bytes, all);
	if (!grown)
		return COVEY_ERR_NOMEM;
	o->bytes = grown;
	memcpy(o->bytes + o->n, &n, sizeof(n));
	if (n)
		memcpy(o->bytes + o->n + sizeof(n), bytes, n);
	o->n = all;
	return 0;
}

const uint8_t *cvy_outcome_tick(const struct cvy_outcome *o, uint64_t i, uint32_t *bytes)
{
	const uint8_t *at = o->bytes;

	for (uint64_t t = o->from;; t++) {
		memcpy(bytes, at, sizeof(*bytes));
		at += sizeof(*bytes);
		if (t == i)
			return at;
		at += *bytes;
	}
}

void cvy_outcome_hold(struct cvy_engine *e, struct cvy_outcome *o, int called)
{
	o->next_given = e->given;
	e->given = o;
	if (called)
		return;
	o->shared = 1;
	o->next = e->outcomes;
	e->outcomes = o;
}

struct cvy_outcome *cvy_outcome_claim(struct cvy_engine *e, uint64_t seq)
{
	struct cvy_outcome **at = &e->outcomes, *o;

	while (*at && (*at)->result.seq != seq)
		at = &(*at)->next;
	o = *at;
	if (o)
		*at = o->next;
	return o;
}

/* A view is active: nobody asks for outcomes given before. */
void cvy_outcome_forget_given(struct cvy_engine *e)
{
	while (e->given) {
		struct cvy_outcome *o = e->given;

		e->given = o->next_given;
		cvy_outcome_put(o);
	}
}

void cvy_outcome_forget(struct cvy_engine *e)
{
	cvy_outcome_forget_given(e);
	while (e->outcomes) {
		struct cvy_outcome *o = e->outcomes;

		e->outcomes = o->next;
		cvy_outcome_put(o);
	}
}
