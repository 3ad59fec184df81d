/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at the links of a group. A look at a socket is a system call, so a rank looks where the operation under way
 * waits. It looks at the other links less often, for done lines and the end of a link.
 */
#include <limits.h>

#include "engine_state.h"
#include "pair_state.h"

#define FAR_LOOKS 8 /* these links are looked at so many times as often */

struct few { /* ranks whose links are looked at */
	const int *rank;
	int n;
};

/*
 * Do few bytes come, in no order that matters? Before a deadline every link is looked at, else a rank whose line is here
 * would be masked as late. Parts of operations without a size come from all links at once.
 */
static int in_turn(const struct cvy_op *op)
{
	return op->bytes <= CVY_FEW_BYTES && !op->partial && (op->bytes || op->kind->op_class != CVY_OP_PRIVATE);
}

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
	if (in_turn(e->head) && cvy_engine_missing(e, &tag, &source))
		return (struct few){ &e->here.set.rank[source], 1 };
	return all;
}

void cvy_engine_look_far(struct cvy_engine *e)
{
	e->looks = UINT_MAX;
}

void cvy_engine_look_at_push(struct cvy_engine *e)
{
	for (int i = 0; i < e->here.set.npush; i++) {
		struct cvy_link *link = cvy_push_link(e, i);

		if (link && link->ops->poll)
			link->ops->poll(link);
	}
}

int cvy_engine_look_at_links(struct cvy_engine *e)
{
	struct few few = awaited(e);
	int progress = 0;

	e->looked = few.n;
	for (int i = 0; i < few.n; i++) {
		struct cvy_link *link = cvy_mesh_link(e->mesh, few.rank[i]);

		if (link && link->ops->poll && link->ops->poll(link) > 0)
			progress = 1;
	}
	return progress;
}
