/* SPDX-License-Identifier: Apache-2.0 */
/*
 * active_ranks and waited on host memory. A rank that is left out counts as missing from the publishing on, here alone.
 * It learns that nothing comes (from a bit in the dispatch slot, or the length of its run in the combine slot), so it
 * does not wait. All ranks of such a call give active_ranks, so each knows that others may have decided it without a part
 * from it. Others may still want that part: in a repair, too (repair.c, take_part).
 */
#include <stdlib.h>
#include <string.h>

#include "ep.h"
#include "mask.h"

int cvy_ep_active_open(struct cvy_ep_call *call, int32_t *active, uint64_t *waited)
{
	call->active = active;
	call->waited = waited;
	call->ns = waited ? calloc((size_t)call->ep->size, sizeof(*call->ns)) : NULL;
	return waited && !call->ns ? COVEY_ERR_NOMEM : 0;
}

int cvy_ep_left_out(const struct cvy_ep_call *call, int rank)
{
	return call->active && rank < call->ep->size && rank != call->ep->rank && !call->active[rank];
}

void cvy_ep_active_begin(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_site *here = cvy_site(e);
	struct cvy_ep_call *call = op->priv;

	memset(&call->seen, 0, sizeof(call->seen));
	if (call->waited)
		call->since_ns = cvy_engine_now(e);
	for (int k = 0; call->active && k < here->set.n; k++) {
		int r = here->set.rank[k];

		if (!cvy_ep_left_out(call, r))
			continue;
		cvy_leave_out(e, op, r);
		cvy_mask_add(&call->seen, r);
	}
}

void cvy_ep_active_look(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	uint64_t tag = cvy_tag(here->epoch, op->first + (uint32_t)i), now;
	struct cvy_ep_call *call = op->priv;

	if (!call->waited)
		return;
	now = cvy_engine_now(e);
	for (int k = 0; k < here->set.n; k++) {
		int r = here->set.rank[k];

		if (k == here->set.self || r >= call->ep->size || covey_mask_has(&call->seen, r))
			continue;
		if (!cvy_ep_source_missing(e, k) &&
		    __atomic_load_n(&cvy_source_line(e, op, i, k, 1)->tag, __ATOMIC_ACQUIRE) != tag)
			continue;
		cvy_mask_add(&call->seen, r);
		call->ns[r] += now - call->since_ns;
	}
}

/* For an operation decided with success. The next call does not wait for ranks that are masked as late. */
void cvy_ep_active_finish(struct cvy_engine *e, struct cvy_ep_call *call)
{
	const struct cvy_site *here = cvy_site(e);

	for (int r = 0; call->waited && r < call->ep->size; r++)
		call->waited[r] += call->ns[r];
	for (int k = 0; call->active && call->consumed && k < here->set.n; k++)
		if (here->set.rank[k] < call->ep->size && !here->set.gone[k] &&
		    covey_mask_has(&here->lost, here->set.rank[k]))
			call->active[here->set.rank[k]] = 0;
}
