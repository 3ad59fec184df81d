/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at the links of a group. A look at a socket is a system call, so a rank looks where the operation under way
 * waits. It looks at the other links less often, for done lines and the end of a link.
 */
#include "engine_state.h"
#include "pair_state.h"

#define FAR_LOOKS 8 /* these links are looked at so many times as often */

struct few { /* ranks whose links are looked at */
	const int *rank;
	int n;
};

/* An operation in two levels mostly hears of one rank of each host, a flat one misses one rank first. */
static struct few awaited(struct cvy_engine *e)
{
	const struct cvy_hosts *h = &e->here.set.hosts;
	struct few all = { e->here.set.push, e->here.set.npush };
	uint64_t tag;
	int source;

	if (all.n < 2 || !e->head || !(++e->looks % FAR_LOOKS) || cvy_pairs_busy(e))
		return all;
	if (e->head->way)
		return (struct few){ h->near, h->nnear };
	if (e->head->bytes <= CVY_FEW_BYTES && cvy_engine_missing(e, &tag, &source))
		return (struct few){ &e->here.set.rank[source], 1 };
	return all;
}

int cvy_engine_look_at_links(struct cvy_engine *e)
{
	struct few few = awaited(e);
	int progress = 0;

	for (int i = 0; i < few.n; i++) {
		struct cvy_link *link = cvy_mesh_link(e->mesh, few.rank[i]);

		if (link && link->ops->poll && link->ops->poll(link) > 0)
			progress = 1;
	}
	return progress;
}
