/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allreduce as a chain of hosts: one fold, not every input, travels from host to host.
 *
 * Every host has the same number of adjacent ranks. So the fold over host 0, continued by host 1, and so on, is the
 * fold in ascending rank. The j-th rank of each host handles shard j: it waits for its neighbours' inputs and for the
 * fold of the host before, and folds on. It sends that with its first line, which only the neighbours had seen until
 * then, to the j-th rank of the next host. The last host's fold is the result. The other hosts get it with the second
 * line, and pass it on to their neighbours with their own. A tick is complete when the neighbours' second lines are
 * here; each of them shows that every rank has entered it.
 */
#include "algo.h"
#include "chain.h"
#include "guard.h"
#include "reduce.h"

#include <string.h>

/* In the second half of a slot: first the fold for the next host, then, halfway, the result. */
static size_t result_at(const struct cvy_engine *e)
{
	const struct cvy_site *here = cvy_site(e);

	return here->layout.slot_bytes + here->layout.slot_bytes / 2;
}

static int is_last(const struct cvy_hosts *h)
{
	return h->own == h->n - 1;
}

void cvy_chain_fold(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	const struct cvy_hosts *h = &here->set.hosts;
	uint8_t *out = cvy_own_slot(e, op, i) + (is_last(h) ? result_at(e) : here->layout.slot_bytes);
	int redop = op->redop == COVEY_AVG ? COVEY_SUM : op->redop, n = 0;
	size_t at, len;

	cvy_shard(cvy_tick_bytes(op, i), h->nth, h->local, &at, &len);
	if (h->own)
		here->set.src[n++] = cvy_source_slot(e, op, i, h->like[h->own - 1]) + here->layout.slot_bytes;
	for (int k = here->set.self - h->nth; n < h->local + (h->own > 0); k++)
		here->set.src[n++] = cvy_source_slot(e, op, i, k) + at;
	cvy_reduce(out, here->set.src, n, len / op->elem, op->dtype, redop, 0);
	if (CVY_GUARDED && cvy_engine_outrun(e))
		return;
	if (!is_last(h)) {
		int next = here->set.rank[h->like[h->own + 1]];

		cvy_put(e, next, out, len);
		cvy_signal(e, next, &here->own->first[cvy_slot_index(op, i)]);
	} else if (op->redop == COVEY_AVG) {
		cvy_reduce_average(out, len / op->elem, op->dtype, here->set.n);
	}
}

void cvy_chain_pass_on(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	const struct cvy_hosts *h = &here->set.hosts;
	uint8_t *result = cvy_own_slot(e, op, i) + result_at(e);
	size_t at, len;

	cvy_shard(cvy_tick_bytes(op, i), h->nth, h->local, &at, &len);
	line->bytes = (uint32_t)len;
	if (!is_last(h))
		memcpy(result, cvy_source_slot(e, op, i, h->like[h->n - 1]) + result_at(e), len);
	for (int host = 0; is_last(h) && host < h->own; host++)
		cvy_put(e, here->set.rank[h->like[host]], result, len);
	for (int m = 0; m < h->nmate; m++)
		cvy_put(e, h->mate[m], result, len);
}

void cvy_chain_signal(struct cvy_engine *e, const struct cvy_line *line, int round)
{
	const struct cvy_site *here = cvy_site(e);
	const struct cvy_hosts *h = &here->set.hosts;

	for (int host = 0; round == 2 && is_last(h) && host < h->own; host++)
		cvy_signal(e, here->set.rank[h->like[host]], line);
	for (int m = 0; m < h->nmate; m++)
		cvy_signal(e, h->mate[m], line);
	cvy_engine_announce(e, line);
}

int cvy_chain_needs(const struct cvy_hosts *h, int k, int round)
{
	if (round == 3)
		return !is_last(h) && k == h->like[h->n - 1];
	return h->of[k] == h->own || (round == 1 && h->own && k == h->like[h->own - 1]);
}

void cvy_chain_result(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	const struct cvy_site *here = cvy_site(e);
	const struct cvy_hosts *h = &here->set.hosts;

	for (int j = 0; j < h->local; j++) {
		size_t at, len;

		cvy_shard(cvy_tick_bytes(op, i), j, h->local, &at, &len);
		cvy_copy_out(out + at, cvy_source_slot(e, op, i, here->set.self - h->nth + j) + result_at(e), len,
			     op->bytes >= CVY_STREAM_BYTES);
	}
}
