/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of dispatch and combine: what is wrong with them, and what would be right. */
#include "ep.h"
#include "ep_code.h"
#include "handle.h"

static int check_call(struct covey_ep *ep, int which)
{
	int err = cvy_handle_check_op(ep->group), size;

	if (err)
		return err;
	if (ep->sent[which])
		return cvy_ep_refuse(ep->group, "the one sent before was not received");
	err = cvy_ep_settle(ep);
	if (err)
		return err;
	size = cvy_ep_group_size(cvy_handle_engine(ep->group));
	if (size != ep->size)
		return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_STALE, -1, 0,
				"laid out for %d ranks, the group has %d: call covey_ep_remap after covey_admit",
				ep->size, size);
	if (cvy_site(cvy_handle_engine(ep->group))->rank != ep->rank)
		return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_STALE, -1, 0,
				"laid out for rank %d, this is rank %d: call covey_ep_remap after covey_admit",
				ep->rank, cvy_site(cvy_handle_engine(ep->group))->rank);
	return 0;
}

/*
 * The stream says where a call runs; NULL: on host memory. A kernel that gets memory of the host dies, and its rank with
 * it. A buffer that is NULL is not used.
 */
static int check_memory(struct covey_ep *ep, const struct CUstream_st *stream, const void *const *at, size_t n)
{
	if (stream && !ep->group->device)
		return cvy_ep_fail(ep->group, COVEY_ERR_UNSUPPORTED,
				   "a stream needs a group that was joined with a device (device, COVEY_DEVICE)");
	for (size_t i = 0; i < n && ep->group->device; i++)
		if (at[i] && cvy_ep_on_device(ep, at[i]) != (stream != NULL))
			return cvy_ep_refuse(
				ep->group,
				stream ? "with a stream all buffers are memory of the device"
				       : "a buffer is memory of the device: give a stream; the default stream is "
					 "COVEY_STREAM_DEFAULT");
	return 0;
}

/* The outputs that may be NULL. */
static int check_more(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	const struct cvy_ep_shape *s = &ep->shape;
	const int rows = s->top_k < ep->el ? s->top_k : ep->el; /* of a token here, at most */

	if (a->expert_tokens_as != COVEY_EP_TOKENS_COUNTS && a->expert_tokens_as != COVEY_EP_TOKENS_SUMS)
		return cvy_ep_refuse(ep->group, "expert_tokens_as must be of enum covey_ep_tokens_as");
	if (a->expert_alignment < 0)
		return cvy_ep_refuse(ep->group, "expert_alignment is %d: it must be 1 or more, or 0 for 1",
				     a->expert_alignment);
	if (a->expert_alignment > 1 && cvy_ep_pack_of(s->preset)->close)
		return cvy_ep_refuse(
			ep->group, "expert_alignment rounds up beyond rows that stand close: give 0 with COVEY_EP_WIN");
	if (a->expert_alignment > 1 && !a->expert_tokens)
		return cvy_ep_refuse(ep->group, "expert_alignment rounds expert_tokens up, which is NULL: give both");
	if (a->recv_counts && cvy_ep_pack_of(s->preset)->once)
		return cvy_ep_refuse(
			ep->group,
			"recv_counts are not of COVEY_EP_COMPACT and COVEY_EP_HT: there a row is of several experts");
	if (a->recv_counts && (int64_t)ep->size * s->tokens * rows > INT32_MAX)
		return cvy_ep_refuse(ep->group,
				     "recv_counts may reach %lld, and are int32: ranks * max_tokens * min(top_k, local "
				     "experts) must be below 2^31",
				     (long long)ep->size * s->tokens * rows);
	return 0;
}

static int check_outputs(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	if (!a->packed_x || !a->count || !a->src_info || !a->range)
		return cvy_ep_refuse(ep->group, "packed_x, count, src_info and range must not be NULL");
	if (ep->rows_as != COVEY_EP_ROWS_BF16 && !a->packed_scales)
		return cvy_ep_refuse(ep->group, "packed_scales must not be NULL with rows in e4m3, int8 or int4");
	if (cvy_ep_pack_of(ep->shape.preset)->beside && (!a->recv_experts || !a->recv_weights))
		return cvy_ep_refuse(
			ep->group,
			"recv_experts and recv_weights must not be NULL with COVEY_EP_COMPACT and COVEY_EP_HT");
	if (cvy_ep_pack_of(ep->shape.preset)->flat && !a->flat)
		return cvy_ep_refuse(ep->group, "flat must not be NULL with COVEY_EP_FLAT");
	if (cvy_ep_pack_of(ep->shape.preset)->triplets && !a->triplets)
		return cvy_ep_refuse(ep->group, "triplets must not be NULL with COVEY_EP_WIN");
	if ((uintptr_t)a->arrived % sizeof(*a->arrived))
		return cvy_ep_refuse(ep->group, "arrived must be 4-byte aligned");
	return check_more(ep, a);
}

/* int32 or int64; @needed: one of them must be there. */
static int check_ids(struct covey_ep *ep, const int32_t *experts, const int64_t *experts64, int needed)
{
	if (experts && experts64)
		return cvy_ep_refuse(
			ep->group,
			"experts and experts64 are both given: give ids in int32 or in int64, and NULL for the other");
	if (needed && !experts && !experts64)
		return cvy_ep_refuse(ep->group,
				     "experts and experts64 are NULL: give one of them when there are tokens");
	return 0;
}

/* Factors differ by expert, so the rows of experts must be apart. */
static int check_smooth(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	if (!a->smooth)
		return 0;
	if (!cvy_ep_in_ints(ep->rows_as))
		return cvy_ep_refuse(ep->group, "smooth is for rows of integers: lay the handle out with "
						"COVEY_EP_ROWS_INT8 or COVEY_EP_ROWS_INT4, or give NULL");
	if (cvy_ep_pack_of(ep->shape.preset)->once)
		return cvy_ep_refuse(ep->group,
				     "smooth differs by expert, and with COVEY_EP_COMPACT and COVEY_EP_HT a row is for "
				     "all experts of a rank: lay the handle out with COVEY_EP_LL, or give NULL");
	return 0;
}

static int check_mask(struct covey_ep *ep, int columns)
{
	if (columns >= 0 && (columns <= 1 || columns == ep->shape.top_k))
		return 0;
	return cvy_ep_refuse(ep->group,
			     "mask_columns is %d: it must be 1 (or 0) if token_mask has an entry for each token, and "
			     "top_k, %d, if it has one for each expert that a token names",
			     columns, ep->shape.top_k);
}

static int check_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *a, int on_device)
{
	int err;

	if (a->num_tokens < 0 || a->num_tokens > ep->shape.tokens)
		return cvy_ep_refuse(ep->group, "num_tokens is %d, max_tokens %d", a->num_tokens, ep->shape.tokens);
	if (a->num_tokens && !a->x)
		return cvy_ep_refuse(ep->group, "x must not be NULL when there are tokens");
	err = check_ids(ep, a->experts, a->experts64, a->num_tokens > 0);
	if (!err)
		err = check_mask(ep, a->mask_columns);
	if (err)
		return err;
	if (a->x_scales && !cvy_ep_in_e4m3(ep->rows_as))
		return cvy_ep_refuse(ep->group, "x_scales are for rows in e4m3: lay the handle out with "
						"COVEY_EP_ROWS_E4M3, or give x in the handle's dtype and no scales");
	err = check_smooth(ep, a);
	if (err)
		return err;
	if (a->num_tokens && cvy_ep_pack_of(ep->shape.preset)->beside && !a->weights)
		return cvy_ep_refuse(ep->group, "weights must not be NULL with COVEY_EP_COMPACT and COVEY_EP_HT");
	if (a->num_tokens && !on_device && cvy_ep_places(&ep->shape) > 1 && !a->placed)
		return cvy_ep_refuse(
			ep->group, "placed must not be NULL with places above 1: the combine of these tokens reads it");
	return ep->el ? check_outputs(ep, a) : 0;
}

/* Entries that the dispatch of these tokens cannot have written. */
static int check_placed(struct covey_ep *ep, const struct covey_combine_args *a)
{
	const int places = cvy_ep_places(&ep->shape);

	if (!a->num_tokens || places == 1)
		return 0;
	if (!a->placed)
		return cvy_ep_refuse(
			ep->group,
			"placed must not be NULL with places above 1: give what the dispatch of these tokens wrote");
	for (size_t i = 0; i < (size_t)a->num_tokens * (size_t)ep->shape.top_k; i++) {
		int64_t id = a->experts64 ? a->experts64[i] : a->experts[i];
		int32_t v = a->placed[i];

		if (v != -1 && (!cvy_ep_is_place(&ep->shape, v) || v / places != id || ep->owner[v] < 0))
			return cvy_ep_refuse(ep->group,
					     "placed[%zu] is %d, which is no place of expert %lld: give what the "
					     "dispatch of these tokens wrote",
					     i, v, (long long)id);
	}
	return 0;
}

static int check_combine(struct covey_ep *ep, const struct covey_combine_args *a, int on_device)
{
	const struct cvy_ep_pack *pack = cvy_ep_pack_of(ep->shape.preset);
	uint64_t rows = cvy_ep_bin_rows(ep);
	int err;

	if (a->num_tokens < 0 || a->num_tokens > ep->shape.tokens)
		return cvy_ep_refuse(ep->group, "num_tokens is %d, max_tokens %d", a->num_tokens, ep->shape.tokens);
	if (a->num_tokens && !a->out)
		return cvy_ep_refuse(ep->group, "out must not be NULL when there are tokens");
	err = check_ids(ep, a->experts, a->experts64, a->num_tokens > 0 && !on_device);
	if (!err)
		err = check_mask(ep, a->mask_columns);
	if (!err && !on_device)
		err = check_placed(ep, a);
	if (err)
		return err;
	if (a->num_tokens && !a->weights && (a->renormalise || !pack->once))
		return cvy_ep_refuse(ep->group, "weights must not be NULL when there are tokens");
	if (a->expert_scale && (pack->once || pack->close))
		return cvy_ep_refuse(ep->group,
				     "expert_scale differs by expert, which only rows of COVEY_EP_LL and COVEY_EP_FLAT "
				     "say by their place: lay the handle out with one of them, or give NULL");
	if (ep->el && !a->range && !on_device)
		return cvy_ep_refuse(ep->group, "range must not be NULL");
	for (size_t i = 0; i < (size_t)cvy_ep_bins(ep) * (size_t)ep->size && !on_device; i++) {
		uint64_t n = cvy_ep_range_count(a->range[i]);

		if (n > (uint64_t)ep->shape.tokens || cvy_ep_range_first(a->range[i]) + n > rows)
			return cvy_ep_refuse(ep->group, "range[%zu] is not what a dispatch gave", i);
		if (n && !a->y)
			return cvy_ep_refuse(ep->group, "y must not be NULL when rows came");
	}
	return 0;
}

int cvy_ep_check_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, const struct CUstream_st *stream,
			  struct covey_dispatch_args *copy)
{
	int err = check_call(ep, CVY_EP_DISPATCHES);

	if (!err)
		err = cvy_ep_take_struct(ep->group, copy, sizeof(*copy), args, "args");
	if (!err) {
		const void *const at[] = {
			copy->x,	   copy->experts,	copy->weights,	    copy->packed_x,
			copy->count,	   copy->packed_scales, copy->src_info,	    copy->range,
			copy->waited,	   copy->active_ranks,	copy->recv_experts, copy->recv_weights,
			copy->x_scales,	   copy->experts64,	copy->token_mask,   copy->expert_tokens,
			copy->recv_counts, copy->triplets,	copy->flat,	    copy->smooth,
			copy->arrived,	   copy->placed
		};

		err = check_memory(ep, stream, at, sizeof(at) / sizeof(at[0]));
	}
	return err ? err : check_dispatch(ep, copy, stream != NULL);
}

int cvy_ep_check_combine(struct covey_ep *ep, const struct covey_combine_args *args, const struct CUstream_st *stream,
			 struct covey_combine_args *copy)
{
	int err = check_call(ep, CVY_EP_COMBINES);

	if (!err)
		err = cvy_ep_take_struct(ep->group, copy, sizeof(*copy), args, "args");
	if (!err)
		err = cvy_ep_check_specials(ep, copy, stream);
	if (!err) {
		const void *const at[] = { copy->y,	 copy->out,	    copy->weights, copy->active_ranks,
					   copy->waited, copy->expert_scale };
		const void *const of_host[] = { copy->experts,	   copy->experts64,   copy->count,	copy->src_info,
						copy->range,	   copy->token_mask,  copy->placed,	copy->x,
						copy->constant_a1, copy->constant_a2, copy->constant_v, copy->bias };

		err = check_memory(ep, stream, at, sizeof(at) / sizeof(at[0]));
		if (!err && !stream) /* devices do not read these: the route has them */
			err = check_memory(ep, stream, of_host, sizeof(of_host) / sizeof(of_host[0]));
	}
	return err ? err : check_combine(ep, copy, stream != NULL);
}
