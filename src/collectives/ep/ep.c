/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey_ep_*, covey_dispatch* and covey_combine*: argument checks, slots in the heap of the window, and the split
 * phases. A handle keeps no state of an operation besides the posted operation itself, so a redo in a new view needs
 * nothing from here. Sizes follow from max_ranks, offsets from the order of the calls: both are the same on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "clock.h"
#include "ep.h"
#include "ep_code.h"
#include "handle.h"
#include "hash.h"
#include "mask.h"
#include "reduce.h"
#include "size.h"

enum { DISPATCH, COMBINE };

static int fail(struct covey_group *group, int err, const char *cause)
{
	return cvy_fail(cvy_handle_box(group), err, -1, 0, "%s", cause);
}

int cvy_ep_group_size(struct cvy_engine *e)
{
	int size;

	pthread_mutex_lock(cvy_engine_lock(e));
	size = cvy_site(e)->size;
	pthread_mutex_unlock(cvy_engine_lock(e));
	return size;
}

/*
 * An argument struct of another version: a shorter one reads as zero-filled, a longer one must be zero past our fields.
 */
static int take_struct(struct covey_group *group, void *to, size_t known, const void *from, const char *name)
{
	size_t size;

	memset(to, 0, known);
	if (!from)
		return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0, "%s is NULL", name);
	memcpy(&size, from, sizeof(size));
	if (size < sizeof(size))
		return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0,
				"%s: size is not set: use its initialiser", name);
	for (size_t i = known; i < size; i++)
		if (((const uint8_t *)from)[i])
			return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0,
					"%s: a field is set that this version does not know", name);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

static int in_range(struct covey_group *group, const char *name, int value, int least, int most)
{
	if (value >= least && value <= most)
		return 0;
	return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0, "%s is %d: it must be from %d to %d", name,
			value, least, most);
}

static int check_config(struct covey_group *group, const struct covey_ep_config *c)
{
	int err = in_range(group, "max_tokens", c->max_tokens, 1, CVY_EP_MAX_TOKENS);

	if (!err)
		err = in_range(group, "hidden", c->hidden, 8, CVY_EP_MAX_HIDDEN);
	if (!err && c->hidden % 8)
		err = cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0,
			       "hidden is %d: it must be a multiple of 8 (16 bytes)", c->hidden);
	if (!err)
		err = in_range(group, "top_k", c->top_k, 1, CVY_EP_MAX_TOP_K);
	if (!err)
		err = in_range(group, "experts", c->experts, 1, CVY_EP_MAX_EXPERTS);
	if (err)
		return err;
	if (c->dtype != COVEY_BFLOAT16 && c->dtype != COVEY_FLOAT16)
		return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0,
				"dtype is %s (%d): it must be COVEY_BFLOAT16 or COVEY_FLOAT16",
				cvy_dtype_name(c->dtype), c->dtype);
	if (!cvy_ep_pack_of(c->preset))
		return fail(group, COVEY_ERR_INVAL, "preset must be of enum covey_ep_preset");
	err = in_range(group, "rows (enum covey_ep_rows_as)", c->rows, COVEY_EP_ROWS_BF16, COVEY_EP_ROWS_INT4);
	if (!err)
		err = in_range(group, "combine_rows (enum covey_ep_back_as)", c->combine_rows, COVEY_EP_BACK_PLAIN,
			       COVEY_EP_BACK_INT8);
	if (err)
		return err;
	if (c->combine != COVEY_EP_PER_EXPERT && c->combine != COVEY_EP_PER_RANK)
		return fail(group, COVEY_ERR_INVAL, "combine must be of enum covey_ep_combine_as");
	return in_range(group, "lanes", c->lanes, 0, COVEY_DEVICE_MAX_LANES);
}

int cvy_ep_owners(struct covey_group *group, const int *given, int experts, int size, int *owner)
{
	if (given)
		memcpy(owner, given, (size_t)experts * sizeof(*owner));
	else
		cvy_ep_blocks(experts, size, owner);
	for (int x = 0; x < experts; x++)
		if (owner[x] < 0 || owner[x] >= size)
			return cvy_fail(cvy_handle_box(group), COVEY_ERR_INVAL, -1, 0,
					"expert_owner[%d] is %d, the group has ranks 0 to %d", x, owner[x], size - 1);
	return 0;
}

/* New owners of the experts for a group of @size ranks; the handle changes only on success. */
static int lay_out(struct covey_ep *ep, const int *expert_owner, int size)
{
	int experts = ep->shape.experts, *owner = malloc((size_t)experts * sizeof(*owner));
	uint64_t h = cvy_hash(0, ep->dispatch) ^ ep->combine;
	int err;

	if (!owner)
		return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the table of owners");
	err = cvy_ep_owners(ep->group, expert_owner, experts, size, owner);
	if (err) {
		free(owner);
		return err;
	}
	for (int x = 0; x < experts; x++)
		h = cvy_hash(h, (uint64_t)owner[x]);
	h = cvy_hash(h, (uint64_t)ep->shape.tokens);
	h = cvy_hash(h, (uint64_t)ep->shape.hidden);
	h = cvy_hash(h, (uint64_t)ep->shape.top_k << 32 ^ (uint64_t)size);
	h = cvy_hash(h, (uint64_t)ep->lanes << 32 ^ (uint64_t)ep->back_as);
	h = cvy_hash(h, (uint64_t)ep->rows_as << 32 ^ (uint64_t)ep->shape.preset << 16 ^ (uint64_t)ep->combine_as);
	free(ep->owner);
	ep->owner = owner;
	ep->sign = h;
	ep->size = size;
	ep->rank = cvy_site(cvy_handle_engine(ep->group))->rank; /* a joiner's rank may change before it is let in */
	ep->el = cvy_ep_locals(experts, owner, ep->rank, ep->local);
	cvy_ep_device_stale(ep);
	return 0;
}

/*
 * Lays out for the size of the last safe point. A joiner before its safe point does not know it. It lays out for
 * max_ranks, the most that its buffers will hold, and again with the first call after its safe point.
 */
static int lay_out_now(struct covey_ep *ep, const int *expert_owner)
{
	int size = cvy_ep_group_size(cvy_handle_engine(ep->group)), waits = size < 1, *given = NULL, err;
	size_t bytes = (size_t)ep->shape.experts * sizeof(*given);

	if (waits && expert_owner) {
		given = malloc(bytes);
		if (!given)
			return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the table of owners");
		memcpy(given, expert_owner, bytes);
	}
	err = lay_out(ep, expert_owner, waits ? ep->shape.max_ranks : size);
	if (err) {
		free(given);
		return err;
	}
	free(ep->given);
	ep->given = given;
	ep->waits = waits;
	return 0;
}

/* Lays out a joiner's handle again, once it is let in. */
static int settle(struct covey_ep *ep)
{
	int size = ep->waits ? cvy_ep_group_size(cvy_handle_engine(ep->group)) : 0, err;

	if (size < 1)
		return 0;
	err = lay_out(ep, ep->given, size);
	if (err)
		return err;
	free(ep->given);
	ep->given = NULL;
	ep->waits = 0;
	return 0;
}

/* A read in name, but it may lay out a joiner's handle: no other thread calls at the same time. */
int cvy_ep_settled(const struct covey_ep *ep)
{
	if (!ep)
		return COVEY_ERR_INVAL;
	if (cvy_handle_check(ep->group) == COVEY_ERR_FORKED)
		return COVEY_ERR_FORKED;
	return settle((struct covey_ep *)(uintptr_t)ep);
}

static int take_slots(struct covey_ep *ep, struct cvy_engine *e)
{
	const struct cvy_site *here = cvy_site(e);
	size_t dispatch = CVY_SLOTS * ep->dispatch_bytes, combine = CVY_SLOTS * ep->combine_bytes;
	size_t need = dispatch + combine, room = here->layout.pool - here->layout.heap;

	ep->dispatch = cvy_space_alloc(e, dispatch, &ep->behind);
	ep->combine = ep->dispatch ? cvy_space_alloc(e, combine, &ep->behind) : 0;
	if (ep->combine)
		return 0;
	if (need <= room)
		need += room; /* other handles use it */
	return cvy_fail(
		cvy_handle_box(ep->group), COVEY_ERR_NOMEM, -1,
		0, "no room for the expert-parallel buffers: they take window_bytes %zu, it is %zu (sized for max_ranks %d)",
		cvy_window_for(&here->layout, need), here->layout.window_bytes, ep->shape.max_ranks);
}

/*
 * How rows of a combine slot travel. With COVEY_EP_PER_RANK the slot has the rows of experts, and only their sum becomes
 * codes (ep_combine.c).
 */
static int back_of(const struct covey_ep_config *c)
{
	if (c->combine_rows != COVEY_EP_BACK_INT8)
		return CVY_EP_AS_IS;
	if (c->combine == COVEY_EP_PER_RANK && !cvy_ep_pack_of(c->preset)->once)
		return CVY_EP_AS_IS;
	return CVY_EP_INT8_BY_8;
}

int cvy_ep_take_config(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep_config *c,
		       struct cvy_ep_shape *shape)
{
	struct covey_view view;
	int err = cvy_handle_check(group);

	if (!err)
		err = take_struct(group, c, sizeof(*c), config, "config");
	if (!err)
		err = check_config(group, c);
	if (!err)
		err = covey_view(group, &view);
	if (err)
		return err;
	if (view.rank < 0 || view.max_ranks < 1)
		return fail(group, COVEY_ERR_INVAL, "the group is not joined yet: covey_join_wait() first");
	if ((uint64_t)view.max_ranks * (uint64_t)c->max_tokens > CVY_EP_MAX_ROWS)
		return fail(group, COVEY_ERR_INVAL, "max_ranks * max_tokens must be below 2^31");
	*shape = (struct cvy_ep_shape){ c->max_tokens,	c->hidden, c->top_k,  c->experts,
					view.max_ranks, c->preset, back_of(c) };
	return 0;
}

COVEY_API int covey_ep_create(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep **out)
{
	struct cvy_engine *e;
	struct covey_ep_config c;
	struct cvy_ep_shape shape;
	struct covey_ep *ep;
	int err;

	if (!group || !out)
		return COVEY_ERR_INVAL;
	err = cvy_ep_take_config(group, config, &c, &shape);
	if (err)
		return err;
	e = cvy_handle_engine(group);
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return fail(group, COVEY_ERR_NOMEM, "no memory for the handle");
	ep->group = group;
	ep->refs = 1;
	ep->shape = shape;
	ep->dispatch_bytes = cvy_ep_dispatch_bytes(&ep->shape);
	ep->combine_bytes = cvy_ep_combine_bytes(&ep->shape);
	ep->dtype = c.dtype;
	ep->rows_as = c.rows;
	ep->combine_as = c.combine;
	ep->back_as = c.combine_rows;
	ep->lanes = c.lanes;
	ep->local = malloc((size_t)c.experts * sizeof(*ep->local));
	err = ep->local ? 0 : fail(group, COVEY_ERR_NOMEM, "no memory for the handle");
	if (!err)
		err = take_slots(ep, e);
	if (!err)
		err = lay_out_now(ep, c.expert_owner);
	if (!err) {
		cvy_ep_device_warn(ep);
		*out = ep;
	} else {
		covey_ep_destroy(ep);
	}
	return err;
}

COVEY_API int covey_ep_remap(struct covey_ep *ep, const int *expert_owner)
{
	int err;

	if (!ep)
		return COVEY_ERR_INVAL;
	err = cvy_handle_check(ep->group);
	if (err)
		return err;
	if (ep->sent[DISPATCH] || ep->sent[COMBINE] || cvy_ep_device_sent(ep))
		return fail(ep->group, COVEY_ERR_INVAL, "an operation of this handle was sent and not received");
	return lay_out_now(ep, expert_owner);
}

COVEY_API void covey_ep_destroy(struct covey_ep *ep)
{
	if (!ep)
		return;
	for (int which = DISPATCH; which <= COMBINE; which++)
		if (ep->sent[which])
			cvy_op_put(ep->sent[which]);
	if (cvy_handle_check(ep->group) != COVEY_ERR_FORKED) {
		struct cvy_engine *e = cvy_handle_engine(ep->group);

		for (int which = DISPATCH; which <= COMBINE; which++) /* what was sent on the device ends, too */
			cvy_ep_device_receive(ep, which == COMBINE, NULL);
		cvy_ep_device_free(ep);
		if (ep->combine)
			cvy_space_free(e, ep->combine, CVY_SLOTS * ep->combine_bytes, ep->last);
		if (ep->dispatch)
			cvy_space_free(e, ep->dispatch, CVY_SLOTS * ep->dispatch_bytes, ep->last);
	}
	cvy_ep_put(ep);
}

void cvy_ep_put(struct covey_ep *ep)
{
	if (__atomic_sub_fetch(&ep->refs, 1, __ATOMIC_ACQ_REL))
		return;
	free(ep->owner);
	free(ep->given);
	free(ep->local);
	free(ep);
}

COVEY_API int covey_ep_local_experts(const struct covey_ep *ep)
{
	int err = cvy_ep_settled(ep);

	return err ? err : ep->el;
}

COVEY_API int covey_ep_rows(const struct covey_ep *ep)
{
	int err = cvy_ep_settled(ep);

	return err ? err : ep->size * ep->shape.tokens;
}

/* ---- Split phases ---- */

static int check_call(struct covey_ep *ep, int which)
{
	int err = cvy_handle_check_op(ep->group), size;

	if (err)
		return err;
	if (ep->sent[which])
		return fail(ep->group, COVEY_ERR_INVAL, "the one sent before was not received");
	err = settle(ep);
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
		return fail(ep->group, COVEY_ERR_UNSUPPORTED,
			    "a stream needs a group that was joined with a device (device, COVEY_DEVICE)");
	for (size_t i = 0; i < n && ep->group->device; i++)
		if (at[i] && cvy_ep_on_device(ep, at[i]) != (stream != NULL))
			return fail(ep->group, COVEY_ERR_INVAL,
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
		return fail(ep->group, COVEY_ERR_INVAL, "expert_tokens_as must be of enum covey_ep_tokens_as");
	if (a->expert_alignment < 0)
		return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0,
				"expert_alignment is %d: it must be 1 or more, or 0 for 1", a->expert_alignment);
	if (a->expert_alignment > 1 && !a->expert_tokens)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "expert_alignment rounds expert_tokens up, which is NULL: give both");
	if (a->recv_counts && cvy_ep_pack_of(s->preset)->once)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "recv_counts are of COVEY_EP_LL: with COVEY_EP_COMPACT a row is of several experts");
	if (a->recv_counts && (int64_t)ep->size * s->tokens * rows > INT32_MAX)
		return cvy_fail(
			cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0,
			"recv_counts may reach %lld, and are int32: ranks * max_tokens * min(top_k, local experts) "
			"must be below 2^31",
			(long long)ep->size * s->tokens * rows);
	return 0;
}

static int check_outputs(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	if (!a->packed_x || !a->count || !a->src_info || !a->range)
		return fail(ep->group, COVEY_ERR_INVAL, "packed_x, count, src_info and range must not be NULL");
	if (ep->rows_as != COVEY_EP_ROWS_BF16 && !a->packed_scales)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "packed_scales must not be NULL with rows in e4m3, int8 or int4");
	if (cvy_ep_pack_of(ep->shape.preset)->beside && (!a->recv_experts || !a->recv_weights))
		return fail(ep->group, COVEY_ERR_INVAL,
			    "recv_experts and recv_weights must not be NULL with COVEY_EP_COMPACT");
	return check_more(ep, a);
}

/* int32 or int64; @needed: one of them must be there. */
static int check_ids(struct covey_ep *ep, const int32_t *experts, const int64_t *experts64, int needed)
{
	if (experts && experts64)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "experts and experts64 are both given: give ids in int32 or in int64, and NULL for the "
			    "other");
	if (needed && !experts && !experts64)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "experts and experts64 are NULL: give one of them when there are tokens");
	return 0;
}

/* Factors differ by expert, so the rows of experts must be apart. */
static int check_smooth(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	if (!a->smooth)
		return 0;
	if (!cvy_ep_in_ints(ep->rows_as))
		return fail(ep->group, COVEY_ERR_INVAL,
			    "smooth is for rows of integers: lay the handle out with COVEY_EP_ROWS_INT8 or "
			    "COVEY_EP_ROWS_INT4, or give NULL");
	if (cvy_ep_pack_of(ep->shape.preset)->once)
		return fail(
			ep->group, COVEY_ERR_INVAL,
			"smooth differs by expert, and with COVEY_EP_COMPACT a row is for all experts of a rank: lay "
			"the handle out with COVEY_EP_LL, or give NULL");
	return 0;
}

static int check_mask(struct covey_ep *ep, int columns)
{
	if (columns >= 0 && (columns <= 1 || columns == ep->shape.top_k))
		return 0;
	return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0,
			"mask_columns is %d: it must be 1 (or 0) if token_mask has an entry for each token, and top_k, "
			"%d, if it has one for each expert that a token names",
			columns, ep->shape.top_k);
}

static int check_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *a)
{
	int err;

	if (a->num_tokens < 0 || a->num_tokens > ep->shape.tokens)
		return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0, "num_tokens is %d, max_tokens %d",
				a->num_tokens, ep->shape.tokens);
	if (a->num_tokens && !a->x)
		return fail(ep->group, COVEY_ERR_INVAL, "x must not be NULL when there are tokens");
	err = check_ids(ep, a->experts, a->experts64, a->num_tokens > 0);
	if (!err)
		err = check_mask(ep, a->mask_columns);
	if (err)
		return err;
	if (a->x_scales && ep->rows_as != COVEY_EP_ROWS_E4M3)
		return fail(ep->group, COVEY_ERR_INVAL,
			    "x_scales are for rows in e4m3: lay the handle out with COVEY_EP_ROWS_E4M3, or give x in "
			    "the handle's dtype and no scales");
	err = check_smooth(ep, a);
	if (err)
		return err;
	if (a->num_tokens && cvy_ep_pack_of(ep->shape.preset)->beside && !a->weights)
		return fail(ep->group, COVEY_ERR_INVAL, "weights must not be NULL with COVEY_EP_COMPACT");
	return ep->el ? check_outputs(ep, a) : 0;
}

static int check_combine(struct covey_ep *ep, const struct covey_combine_args *a, int on_device)
{
	uint64_t rows = (uint64_t)ep->size * (uint64_t)ep->shape.tokens;
	int err;

	if (a->num_tokens < 0 || a->num_tokens > ep->shape.tokens)
		return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0, "num_tokens is %d, max_tokens %d",
				a->num_tokens, ep->shape.tokens);
	if (a->num_tokens && !a->out)
		return fail(ep->group, COVEY_ERR_INVAL, "out must not be NULL when there are tokens");
	err = check_ids(ep, a->experts, a->experts64, a->num_tokens > 0 && !on_device);
	if (!err)
		err = check_mask(ep, a->mask_columns);
	if (err)
		return err;
	if (a->num_tokens && !a->weights && (a->renormalise || !cvy_ep_pack_of(ep->shape.preset)->once))
		return fail(ep->group, COVEY_ERR_INVAL, "weights must not be NULL when there are tokens");
	if (ep->el && (!a->y || (!a->range && !on_device)))
		return fail(ep->group, COVEY_ERR_INVAL, "y and range must not be NULL");
	for (size_t i = 0; i < (size_t)cvy_ep_bins(ep) * (size_t)ep->size && !on_device; i++) {
		uint64_t n = cvy_ep_range_count(a->range[i]);

		if (n > (uint64_t)ep->shape.tokens || cvy_ep_range_first(a->range[i]) + n > rows)
			return cvy_fail(cvy_handle_box(ep->group), COVEY_ERR_INVAL, -1, 0,
					"range[%zu] is not what a dispatch gave", i);
	}
	return 0;
}

/* Takes @call over, also if it fails. */
static int post(struct covey_ep *ep, int which, struct cvy_ep_call *call, int timeout_ms)
{
	struct cvy_engine *e = cvy_handle_engine(ep->group);
	struct cvy_op *op = cvy_op_new(e, which == DISPATCH ? &cvy_op_dispatch : &cvy_op_combine);
	int err, on_loss;

	if (!op) {
		cvy_ep_call_free(call);
		return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
	}
	op->priv = call;
	__atomic_add_fetch(&ep->refs, 1, __ATOMIC_RELAXED);
	op->behind = ep->behind;
	op->rounds = 1;
	op->ticks = 1;
	op->dtype = ep->dtype;
	op->count = (size_t)ep->sign;
	if (!timeout_ms)
		timeout_ms = cvy_engine_late_ms(e);
	if (timeout_ms > 0)
		op->timeout_ns = (uint64_t)timeout_ms * CVY_MS;
	/* a deadline on all ranks or on none; the same for active_ranks and smooth */
	op->detail = (uint64_t)(timeout_ms > 0) | (uint64_t)(call->active != NULL) << 1;
	op->partial = op->detail != 0;
	op->detail |= (uint64_t)(which == DISPATCH && call->dispatch.smooth != NULL) << 2;
	pthread_mutex_lock(cvy_engine_lock(e));
	on_loss = cvy_site(e)->on_loss;
	pthread_mutex_unlock(cvy_engine_lock(e));
	cvy_op_sign(op, on_loss);
	err = cvy_engine_post(e, op);
	if (err) {
		cvy_op_put(op);
		return err;
	}
	ep->sent[which] = op;
	ep->last = op->seq;
	return 0;
}

static int receive(struct covey_ep *ep, int which, uint64_t deadline_ns, struct covey_result *result)
{
	struct cvy_op *op;
	int err;

	if (!ep)
		return COVEY_ERR_INVAL;
	if (cvy_handle_check(ep->group) == COVEY_ERR_FORKED) /* only the parent steps it */
		return COVEY_ERR_FORKED;
	op = ep->sent[which];
	if (!op) {
		err = cvy_handle_check(ep->group);
		return err ? err : fail(ep->group, COVEY_ERR_INVAL, "nothing was sent");
	}
	if (!cvy_op_decided(op)) {
		err = cvy_engine_wait(cvy_handle_engine(ep->group), op, deadline_ns ? deadline_ns : CVY_NEVER);
		if (err)
			return err;
	}
	err = op->result.status;
	if (result)
		*result = op->result;
	ep->sent[which] = NULL;
	cvy_op_put(op);
	return err;
}

/* Frees @call if it fails. */
static int take_active(struct covey_ep *ep, struct cvy_ep_call *call, int32_t *active, uint64_t *waited)
{
	if (!cvy_ep_active_open(call, active, waited))
		return 0;
	cvy_ep_call_free(call);
	return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
}

static int check_dispatch_call(struct covey_ep *ep, const struct covey_dispatch_args *args,
			       const struct CUstream_st *stream, struct covey_dispatch_args *copy)
{
	int err = check_call(ep, DISPATCH);

	if (!err)
		err = take_struct(ep->group, copy, sizeof(*copy), args, "args");
	if (!err) {
		const void *const at[] = {
			copy->x,	   copy->experts,	copy->weights,	    copy->packed_x,
			copy->count,	   copy->packed_scales, copy->src_info,	    copy->range,
			copy->waited,	   copy->active_ranks,	copy->recv_experts, copy->recv_weights,
			copy->x_scales,	   copy->experts64,	copy->token_mask,   copy->expert_tokens,
			copy->recv_counts, copy->triplets,	copy->flat,	    copy->smooth
		};

		err = check_memory(ep, stream, at, sizeof(at) / sizeof(at[0]));
	}
	return err ? err : check_dispatch(ep, copy);
}

static int dispatch_on_host(struct covey_ep *ep, const struct covey_dispatch_args *args)
{
	struct cvy_ep_call *call = cvy_ep_call_new(ep, 0);
	int err;

	if (!call)
		return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
	call->dispatch = *args;
	err = take_active(ep, call, args->active_ranks, args->waited);
	return err ? err : post(ep, DISPATCH, call, args->timeout_ms);
}

COVEY_API int covey_dispatch_send(struct covey_ep *ep, const struct covey_dispatch_args *args,
				  struct CUstream_st *stream)
{
	struct covey_dispatch_args copy;
	int err;

	if (!ep)
		return COVEY_ERR_INVAL;
	err = check_dispatch_call(ep, args, stream, &copy);
	if (err)
		return err;
	return stream ? cvy_ep_device_dispatch(ep, &copy, stream, CVY_EP_SEND_PHASE, NULL)
		      : dispatch_on_host(ep, &copy);
}

COVEY_API int covey_dispatch_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result)
{
	int err = ep ? cvy_ep_device_receive(ep, 0, result) : COVEY_ERR_INVAL;

	return err == CVY_EP_NOT_SENT ? receive(ep, DISPATCH, deadline_ns, result) : err;
}

/* The halves say when to wait; a group would wait last, after the combine that needs the dispatched rows. */
static int refuse_grouped(struct covey_ep *ep)
{
	if (!ep || !cvy_calls_open())
		return 0;
	return cvy_calls_failed(fail(ep->group, COVEY_ERR_INVAL, "in grouped calls: use the _send and _recv forms"));
}

COVEY_API int covey_dispatch(struct covey_ep *ep, const struct covey_dispatch_args *args, struct CUstream_st *stream,
			     struct covey_result *result)
{
	struct covey_dispatch_args copy;
	int err = refuse_grouped(ep);

	if (err || !ep)
		return err ? err : COVEY_ERR_INVAL;
	err = check_dispatch_call(ep, args, stream, &copy);
	if (err)
		return err;
	if (stream)
		return cvy_ep_device_dispatch(ep, &copy, stream, CVY_EP_BOTH_PHASES, result);
	err = dispatch_on_host(ep, &copy);
	return err ? err : receive(ep, DISPATCH, 0, result);
}

static int check_combine_call(struct covey_ep *ep, const struct covey_combine_args *args,
			      const struct CUstream_st *stream, struct covey_combine_args *copy)
{
	int err = check_call(ep, COMBINE);

	if (!err)
		err = take_struct(ep->group, copy, sizeof(*copy), args, "args");
	if (!err) {
		const void *const at[] = { copy->y, copy->out, copy->weights, copy->active_ranks, copy->waited };
		const void *const of_host[] = { copy->experts,	copy->experts64, copy->count,
						copy->src_info, copy->range,	 copy->token_mask };

		err = check_memory(ep, stream, at, sizeof(at) / sizeof(at[0]));
		if (!err && !stream) /* devices do not read these: the route has them */
			err = check_memory(ep, stream, of_host, sizeof(of_host) / sizeof(of_host[0]));
	}
	return err ? err : check_combine(ep, copy, stream != NULL);
}

static int combine_on_host(struct covey_ep *ep, const struct covey_combine_args *args)
{
	struct cvy_ep_call *call = cvy_ep_call_new(ep, 1);
	int err;

	if (!call)
		return fail(ep->group, COVEY_ERR_NOMEM, "no memory for the operation");
	call->combine = *args;
	err = take_active(ep, call, args->active_ranks, args->waited);
	return err ? err : post(ep, COMBINE, call, args->timeout_ms);
}

COVEY_API int covey_combine_send(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream)
{
	struct covey_combine_args copy;
	int err;

	if (!ep)
		return COVEY_ERR_INVAL;
	err = check_combine_call(ep, args, stream, &copy);
	if (err)
		return err;
	return stream ? cvy_ep_device_combine(ep, &copy, stream, CVY_EP_SEND_PHASE, NULL) : combine_on_host(ep, &copy);
}

COVEY_API int covey_combine_recv(struct covey_ep *ep, uint64_t deadline_ns, struct covey_result *result)
{
	int err = ep ? cvy_ep_device_receive(ep, 1, result) : COVEY_ERR_INVAL;

	return err == CVY_EP_NOT_SENT ? receive(ep, COMBINE, deadline_ns, result) : err;
}

COVEY_API int covey_combine(struct covey_ep *ep, const struct covey_combine_args *args, struct CUstream_st *stream,
			    struct covey_result *result)
{
	struct covey_combine_args copy;
	int err = refuse_grouped(ep);

	if (err || !ep)
		return err ? err : COVEY_ERR_INVAL;
	err = check_combine_call(ep, args, stream, &copy);
	if (err)
		return err;
	if (stream)
		return cvy_ep_device_combine(ep, &copy, stream, CVY_EP_BOTH_PHASES, result);
	err = combine_on_host(ep, &copy);
	return err ? err : receive(ep, COMBINE, 0, result);
}
