/* SPDX-License-Identifier: Apache-2.0 */
/* covey_ep_sizes: what a configuration takes, from the arithmetic by which a handle is laid out (ep_layout.h). */
#include <stdlib.h>
#include <string.h>

#include "ep.h"
#include "ep_call.h"
#include "handle.h"

static size_t times(size_t a, size_t b)
{
	size_t product;

	return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static size_t plus(size_t a, size_t b)
{
	size_t sum;

	return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

static void size_window(const struct cvy_ep_shape *s, struct cvy_engine *e, struct covey_ep_sizes *to)
{
	to->space_bytes = CVY_SLOTS * (cvy_ep_dispatch_bytes(s) + cvy_ep_combine_bytes(s));
	to->window_bytes = cvy_window_for(&cvy_site(e)->layout, to->space_bytes);
}

static void size_buffers(const struct cvy_ep_shape *s, const struct cvy_ep_code *code, struct covey_ep_sizes *to)
{
	const struct cvy_ep_pack *pack = cvy_ep_pack_of(s->preset);
	size_t el = (size_t)to->local_experts, bins = pack->once ? el > 0 : el;
	size_t rows = times(pack->close ? el > 0 : bins, (size_t)to->rows);
	size_t beside = pack->beside ? times(rows, (size_t)s->top_k) : 0, plain = cvy_ep_row_bytes(s);
	size_t hidden = (size_t)s->hidden;

	to->packed_x_bytes = times(rows, cvy_ep_code_bytes(code, hidden));
	to->packed_scales_bytes = times(rows, cvy_ep_code_groups(code, hidden) * sizeof(float));
	to->count_bytes = el * sizeof(int32_t);
	to->src_info_bytes = times(rows, sizeof(int32_t));
	to->range_bytes = bins * (size_t)to->ranks * sizeof(int64_t);
	to->recv_experts_bytes = times(beside, sizeof(int32_t));
	to->recv_weights_bytes = times(beside, sizeof(float));
	to->y_bytes = times(rows, plain);
	to->out_bytes = (size_t)s->tokens * plain;
	to->expert_tokens_bytes = el * sizeof(int64_t);
	to->recv_counts_bytes = pack->once ? 0 : el * (size_t)to->ranks * sizeof(int32_t);
	to->triplets_bytes = times(rows, 3 * sizeof(int32_t));
	to->flat_bytes = times(rows, 2 * sizeof(int32_t));
	to->arrived_bytes = el ? plus(times(rows, sizeof(uint32_t)), COVEY_EP_ARRIVED_ROWS * sizeof(uint32_t)) : 0;
}

/* How many experts this rank has among @ranks; or an error. */
static int count_experts(struct covey_group *group, const struct covey_ep_config *c, const struct cvy_ep_shape *s,
			 int ranks, int *el)
{
	int n = cvy_ep_all_places(s), *owner = malloc((size_t)n * sizeof(*owner)), err;

	if (!owner)
		return cvy_fail(cvy_handle_box(group), COVEY_ERR_NOMEM, -1, 0, "no memory for the table of owners");
	err = cvy_ep_owners(group, c->expert_owner, s, ranks, owner);
	*el = 0;
	for (int v = 0; v < n && !err; v++)
		*el += owner[v] == cvy_site(cvy_handle_engine(group))->rank;
	free(owner);
	return err;
}

/* The R to count for. */
static int take_ranks(struct covey_group *group, int ranks, int max_ranks, int *out)
{
	int size = cvy_ep_group_size(cvy_handle_engine(group)), rank = cvy_site(cvy_handle_engine(group))->rank;

	if (ranks && (ranks <= rank || ranks > max_ranks))
		return cvy_ep_refuse(group,
				     "ranks is %d: on rank %d it must be from %d to %d, or 0 for the present size",
				     ranks, rank, rank + 1, max_ranks);
	*out = ranks ? ranks : size > 0 ? size : max_ranks;
	return 0;
}

COVEY_API int covey_ep_sizes(struct covey_group *group, const struct covey_ep_config *config, int ranks,
			     struct covey_ep_sizes *out)
{
	struct covey_ep_sizes to = { 0 };
	struct covey_ep_config c;
	struct cvy_ep_shape s = { 0 };
	int err;

	if (!group || !out)
		return COVEY_ERR_INVAL;
	err = cvy_ep_take_config(group, config, &c, &s);
	if (!err && out->size < sizeof(out->size))
		err = cvy_ep_refuse(group, "out: size is not set: use COVEY_EP_SIZES_INIT");
	if (!err)
		err = take_ranks(group, ranks, s.max_ranks, &to.ranks);
	if (!err)
		err = count_experts(group, &c, &s, to.ranks, &to.local_experts);
	if (err)
		return err;
	to.size = out->size;
	to.rows = (int)cvy_ep_rows_kept(&s, to.ranks, to.local_experts);
	size_window(&s, cvy_handle_engine(group), &to);
	size_buffers(&s, cvy_ep_code_of(c.rows), &to);
	if (group->device)
		to.route_bytes = cvy_ep_route_bytes(to.ranks, s.tokens, s.top_k, cvy_ep_places(&s));
	memset(out, 0, to.size);
	memcpy(out, &to, to.size < sizeof(to) ? to.size : sizeof(to));
	return 0;
}
