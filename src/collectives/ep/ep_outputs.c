/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs of a dispatch that follow from `count` and `range`, when the rows of all sources are placed: rows by expert, ends
 * of runs, and what stands past the last row. Devices have the same (ep_outputs.cu).
 */
#include <string.h>

#include "ep.h"

static void write_expert_tokens(const struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	const int64_t by = args->expert_alignment > 1 ? args->expert_alignment : 1;
	int64_t sum = 0;

	for (int e = 0; e < ep->el; e++) {
		const int64_t rows = (args->count[e] + by - 1) / by * by;

		sum += rows;
		args->expert_tokens[e] = args->expert_tokens_as == COVEY_EP_TOKENS_SUMS ? sum : rows;
	}
}

static void write_recv_counts(const struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	uint32_t sum = 0;

	for (size_t run = 0; run < (size_t)ep->el * (size_t)ep->size; run++) {
		sum += cvy_ep_range_count(args->range[run]);
		args->recv_counts[run] = (int32_t)sum;
	}
}

/* Rows @first to @end of @at, which has @columns; all bits of -1 are set. */
static void fill(void *at, int value, size_t first, size_t end, size_t columns)
{
	if (at)
		memset((int32_t *)at + first * columns, value, (end - first) * columns * sizeof(int32_t));
}

/* Rows past the last one, of each bin; close: of all. */
static void fill_tail(const struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	const struct cvy_ep_pack *pack = cvy_ep_pack_of(ep->shape.preset);
	const size_t bins = (size_t)cvy_ep_bins(ep), size = (size_t)ep->size, top_k = (size_t)ep->shape.top_k;

	for (size_t bin = pack->close ? bins - 1 : 0; bin < bins; bin++) {
		const int64_t last = args->range[(bin + 1) * size - 1];
		const size_t begin = cvy_ep_row_at(ep, (int)bin, 0), end = begin + cvy_ep_bin_rows(ep);
		const size_t first = begin + cvy_ep_range_first(last) + cvy_ep_range_count(last);

		fill(args->src_info, -1, first, end, 1);
		fill(args->triplets, -1, first, end, 3);
		fill(args->flat, -1, first, end, 2);
		fill(pack->beside ? args->recv_experts : NULL, -1, first, end, top_k);
		fill(pack->beside ? args->recv_weights : NULL, 0, first, end, top_k);
	}
}

void cvy_ep_dispatch_outputs(const struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	if (!ep->el)
		return;
	if (args->expert_tokens)
		write_expert_tokens(ep, args);
	if (args->recv_counts)
		write_recv_counts(ep, args);
	if (args->fill_tail)
		fill_tail(ep, args);
}
