/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the own window: puts and signals, to one rank, to all, or the way of an operation. */
#include "engine_state.h"
#include "hosts.h"

int cvy_source_open(const struct cvy_engine *e, int k)
{
	return e->here.set.base[k] && !e->here.set.link[k];
}

int cvy_root_index(const struct cvy_engine *e, const struct cvy_op *op)
{
	int k = 0;

	while (k < e->here.set.n && e->here.set.rank[k] != op->root)
		k++;
	return k;
}

/* Nobody waits for room here: a put that is left out, with a line after it that is not, would be a wrong result. */
static void push(const struct cvy_engine *e, struct cvy_link *link, const void *at, size_t n)
{
	if (link && link->ops->put && !link->choked &&
	    link->ops->put(link, (size_t)((const uint8_t *)at - e->here.own_base), n) == COVEY_ERR_AGAIN)
		cvy_link_choke(link);
}

static void push_line(const struct cvy_engine *e, struct cvy_link *link, const struct cvy_line *line)
{
	if (link && link->ops->signal && !link->choked &&
	    link->ops->signal(link, (size_t)((const uint8_t *)line - e->here.own_base)) == COVEY_ERR_AGAIN)
		cvy_link_choke(link);
}

void cvy_put(struct cvy_engine *e, int rank, const void *at, size_t n)
{
	if (n && rank != e->here.rank)
		push(e, cvy_mesh_link(e->mesh, rank), at, n);
}

void cvy_put_all(struct cvy_engine *e, const void *at, size_t n)
{
	for (int i = 0; n && i < e->here.set.npush; i++)
		push(e, cvy_push_link(e, i), at, n);
}

void cvy_put_out(struct cvy_engine *e, const struct cvy_op *op, const void *at, size_t n)
{
	const struct cvy_hosts *h = &e->here.set.hosts;

	if (op->way == CVY_WAY_FLAT) {
		cvy_put_all(e, at, n);
		return;
	}
	for (int i = 0; i < (op->way == CVY_WAY_HOSTS ? h->nout : h->nmate); i++)
		cvy_put(e, op->way == CVY_WAY_HOSTS ? h->out[i] : h->mate[i], at, n);
}

void cvy_signal(struct cvy_engine *e, int rank, const struct cvy_line *line)
{
	push_line(e, cvy_mesh_link(e->mesh, rank), line);
}

void cvy_signal_all(struct cvy_engine *e, const struct cvy_line *line)
{
	for (int i = 0; i < e->here.set.npush; i++)
		push_line(e, cvy_push_link(e, i), line);
	cvy_engine_announce(e, line);
}
