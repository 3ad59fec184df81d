/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the group has grown, the experts are laid out anew. Their weights move by covey_alltoallv() from living owners;
 * weights that no living rank holds are made from the seed, the job's checkpoint.
 */
#include "rank.h"

#include <stdlib.h>
#include <string.h>

struct move { /* weights on their way to new owners, by rank */
	float *send, *recv;
	size_t to[MOE_MAX_RANKS], to_at[MOE_MAX_RANKS], from[MOE_MAX_RANKS], from_at[MOE_MAX_RANKS];
};

/* Places of experts: as they were, as they become, and the ranks that hold what they had. */
struct layouts {
	const struct moe_model *m;
	const int *old, *new;
	uint64_t holders;
};

/* Does expert e move from rank a to rank b? From the first place that lives, to ranks that have not got it. */
static int goes(const struct layouts *l, int e, int a, int b)
{
	int from = -1;

	for (int v = (e + 1) * l->m->places - 1; v >= e * l->m->places; v--)
		if (l->old[v] >= 0 && l->holders >> l->old[v] & 1)
			from = l->old[v];
	return from == a && a != b && moe_owns(l->m, l->new, e, b) &&
	       !(l->holders >> b & 1 && moe_owns(l->m, l->old, e, b));
}

/* Does any move? The same on all ranks. A change of the table counts, too. */
static bool moves(const struct layouts *l, int size)
{
	for (int v = 0; v < l->m->shape.experts * l->m->places; v++)
		if (l->old[v] != l->new[v])
			return true;
	for (int e = 0; e < l->m->shape.experts; e++)
		for (int a = 0; a < size; a++)
			for (int b = 0; b < size; b++)
				if (goes(l, e, a, b))
					return true;
	return false;
}

static int pack(struct moe_rank *r, struct move *m, const struct layouts *l, int size)
{
	size_t n = moe_expert_floats(&r->model), send = 0, recv = 0;

	memset(m, 0, sizeof(*m));
	for (int q = 0; q < size; q++) {
		m->to_at[q] = send;
		m->from_at[q] = recv;
		for (int e = 0; e < r->model.shape.experts; e++) {
			if (goes(l, e, q, r->self))
				recv += n;
			if (!goes(l, e, r->self, q))
				continue;
			m->send = moe_room(m->send, (send + n) * sizeof(float));
			if (!moe_expert_make(&r->model, e))
				return -1;
			memcpy(m->send + send, r->model.weights[e], n * sizeof(float));
			send += n;
		}
		m->to[q] = send - m->to_at[q];
		m->from[q] = recv - m->from_at[q];
	}
	m->recv = moe_room(NULL, recv * sizeof(float));
	return moves(l, size);
}

static int unpack(struct moe_rank *r, const struct move *m, const struct layouts *l, const struct covey_mask *here,
		  int size)
{
	size_t n = moe_expert_floats(&r->model);

	for (int q = 0; q < size; q++) {
		const float *from = m->recv + m->from_at[q];

		for (int e = 0; e < r->model.shape.experts; e++) {
			if (!goes(l, e, q, r->self))
				continue;
			if (covey_mask_has(here, q) && !r->model.weights[e]) {
				r->model.weights[e] = moe_room(NULL, n * sizeof(float));
				memcpy(r->model.weights[e], from, n * sizeof(float));
				r->report.moved++;
			}
			from += n;
		}
	}
	return 0;
}

/* From the layout for old_size, held by @holders, to the one for @size. */
int moe_elastic_move(struct moe_rank *r, int old_size, uint64_t holders, int size)
{
	int experts = r->model.shape.experts, err = 0, any;
	int *old = moe_room(NULL, (size_t)(experts * r->model.places) * sizeof(*old));
	const struct layouts l = { &r->model, old, r->owner, holders };
	struct covey_result result;
	struct move m;

	moe_owners(&r->model, old_size, old);
	moe_owners(&r->model, size, r->owner);
	any = pack(r, &m, &l, size);
	if (any > 0)
		err = covey_alltoallv(m.send, m.to, m.to_at, m.recv, m.from, m.from_at, COVEY_FLOAT32, r->group, NULL,
				      &result);
	if (any > 0 && !err)
		unpack(r, &m, &l, &result.mask, size);
	for (int e = 0; e < experts; e++) {
		if (!moe_owns(&r->model, r->owner, e, r->self)) {
			moe_expert_drop(&r->model, e);
		} else if (!r->model.weights[e]) {
			any = moe_expert_make(&r->model, e) ? any : -1;
			r->report.made++;
		}
	}
	free(m.send);
	free(m.recv);
	free(old);
	return err ? err : any < 0 ? COVEY_ERR_NOMEM : 0;
}
