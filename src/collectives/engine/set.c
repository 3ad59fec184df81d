/* SPDX-License-Identifier: Apache-2.0 */
/* The set of members whose data the engine reads, and to which it pushes: made anew from each view. */
#include <stdlib.h>
#include <unistd.h>

#include "engine_state.h"
#include "hosts.h"

#define NO_LINK UINT64_MAX /* id of no link */

void cvy_set_clear(struct cvy_set *set)
{
	free(set->rank);
	free(set->page);
	free(set->base);
	free(set->src);
	free(set->gone);
	free(set->link);
	free(set->push);
	free(set->local);
	free(set->host);
	cvy_hosts_clear(&set->hosts);
	memset(set, 0, sizeof(*set));
}

static int set_alloc(struct cvy_set *set, int n, int max_ranks)
{
	set->rank = calloc((size_t)n + 1, sizeof(*set->rank));
	set->page = calloc((size_t)n + 1, sizeof(*set->page));
	set->base = calloc((size_t)n + 1, sizeof(*set->base));
	set->src = calloc((size_t)n + 1, sizeof(*set->src));
	set->gone = calloc((size_t)n + 1, sizeof(*set->gone));
	set->link = calloc((size_t)n + 1, sizeof(*set->link));
	set->push = calloc((size_t)max_ranks, sizeof(*set->push)); /* also for the members of the next view */
	set->local = calloc((size_t)n + 1, sizeof(*set->local));
	set->host = calloc((size_t)n + 1, sizeof(*set->host));
	return set->rank && set->page && set->base && set->src && set->gone && set->link && set->push && set->local &&
	       set->host;
}

static void set_add(struct cvy_engine *e, struct cvy_set *set, int rank)
{
	struct cvy_link *link = rank == e->here.rank ? NULL : cvy_mesh_link(e->mesh, rank);
	int k = set->n++;

	set->rank[k] = rank;
	set->host[k] = e->view->member[rank].host;
	set->base[k] = cvy_mesh_view(e->mesh, rank);
	set->page[k] = (struct cvy_page *)(uintptr_t)set->base[k];
	if (rank == e->here.rank)
		set->self = k;
	if (!link && rank != e->here.rank && !cvy_mesh_page(e->mesh, rank)) { /* down: its puts need another link */
		set->push[set->npush++] = rank;
		set->link[k] = NO_LINK;
	}
	if (!link)
		return;
	if (link->ops->put || link->ops->signal) {
		set->push[set->npush++] = rank;
		set->link[k] = link->id;
	}
	if (!link->ops->fd)
		set->local[set->nlocal++] = set->page[k];
}

static int cores_of_machine(void)
{
	static int cores; /* read once: the answer comes from a file, and survivors of a change wait for it */

	if (!__atomic_load_n(&cores, __ATOMIC_RELAXED))
		__atomic_store_n(&cores, (int)sysconf(_SC_NPROCESSORS_ONLN), __ATOMIC_RELAXED);
	return __atomic_load_n(&cores, __ATOMIC_RELAXED);
}

/*
 * Is there a core for this rank and for each that shares its cores? Those are the ranks of this host with the same
 * mask, and those under the same quota. A rank with another mask has other cores, from a launcher that binds.
 */
static int cores_suffice(struct cvy_engine *e)
{
	const struct cvy_page *own = e->here.own;
	const struct cvy_set *set = &e->here.set;
	uint32_t here = 1, with_mask = 1, with_quota = 1;

	for (int k = 0; k < set->n; k++) {
		const struct cvy_page *peer = k == set->self ? NULL : cvy_mesh_page(e->mesh, set->rank[k]);

		if (!peer)
			continue;
		here++;
		with_mask += peer->cores_id == own->cores_id || !peer->cores_id || !own->cores_id;
		with_quota += peer->quota_id == own->quota_id;
	}
	return here <= (uint32_t)cores_of_machine() && with_mask <= own->cores &&
	       (!own->quota_id || with_quota <= own->quota);
}

void cvy_set_build(struct cvy_engine *e)
{
	struct cvy_set set = { .self = -1 };

	e->mask = e->view->members;
	cvy_mask_sub(&e->mask, &e->view->pending);
	if (e->head && e->head->kind->op_class == CVY_OP_ADMIT && e->head->state == CVY_OP_QUEUED)
		cvy_mask_or(&e->mask, &e->view->pending); /* an ADMIT that begins includes them */
	if (!set_alloc(&set, covey_mask_count(&e->mask), e->view->max_ranks))
		goto fail;
	CVY_MASK_EACH(r, &e->mask)
	set_add(e, &set, r);
	if (cvy_hosts_build(&set))
		goto fail;
	set.open = 1;
	for (int k = 0; k < set.n; k++)
		set.open &= k == set.self || (cvy_mesh_link(e->mesh, set.rank[k]) && set.base[k] && !set.link[k]);
	cvy_set_clear(&e->here.set);
	e->here.set = set;
	__atomic_store_n(&e->here.plans, e->here.plans + 1, __ATOMIC_RELAXED);
	e->spin = cores_suffice(e);
	__atomic_store_n(&e->sockets, e->here.set.npush > 0, __ATOMIC_RELAXED);
	return;
fail:
	cvy_set_clear(&set);
	cvy_engine_give_up(e, "no memory for the members of a view");
}
