/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey_ep_*: handles. Slots are in the heap of the window. Sizes follow from max_ranks, offsets from the order of the
 * calls: both are the same on all ranks. Calls are in ep_calls.c.
 */
#include <stdlib.h>
#include <string.h>

#include "ep.h"
#include "ep_code.h"
#include "handle.h"
#include "hash.h"
#include "reduce.h"

int cvy_ep_fail(struct covey_group *group, int err, const char *cause)
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
int cvy_ep_take_struct(struct covey_group *group, void *to, size_t known, const void *from, const char *name)
{
	size_t size;

	memset(to, 0, known);
	if (!from)
		return cvy_ep_refuse(group, "%s is NULL", name);
	memcpy(&size, from, sizeof(size));
	if (size < sizeof(size))
		return cvy_ep_refuse(group, "%s: size is not set: use its initialiser", name);
	for (size_t i = known; i < size; i++)
		if (((const uint8_t *)from)[i])
			return cvy_ep_refuse(group, "%s: a field is set that this version does not know", name);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

static int in_range(struct covey_group *group, const char *name, int value, int least, int most)
{
	if (value >= least && value <= most)
		return 0;
	return cvy_ep_refuse(group, "%s is %d: it must be from %d to %d", name, value, least, most);
}

static int check_config(struct covey_group *group, const struct covey_ep_config *c)
{
	int err = in_range(group, "max_tokens", c->max_tokens, 1, CVY_EP_MAX_TOKENS);

	if (!err)
		err = in_range(group, "hidden", c->hidden, 8, CVY_EP_MAX_HIDDEN);
	if (!err && c->hidden % 8)
		err = cvy_ep_refuse(group, "hidden is %d: it must be a multiple of 8 (16 bytes)", c->hidden);
	if (!err)
		err = in_range(group, "top_k", c->top_k, 1, CVY_EP_MAX_TOP_K);
	if (!err)
		err = in_range(group, "experts", c->experts, 1, CVY_EP_MAX_EXPERTS);
	if (err)
		return err;
	if (c->dtype != COVEY_BFLOAT16 && c->dtype != COVEY_FLOAT16)
		return cvy_ep_refuse(group, "dtype is %s (%d): it must be COVEY_BFLOAT16 or COVEY_FLOAT16",
				     cvy_dtype_name(c->dtype), c->dtype);
	if (!cvy_ep_pack_of(c->preset))
		return cvy_ep_refuse(group, "preset must be of enum covey_ep_preset");
	err = in_range(group, "rows (enum covey_ep_rows_as)", c->rows, COVEY_EP_ROWS_BF16, COVEY_EP_ROWS_E4M3_POW2);
	if (!err)
		err = in_range(group, "combine_rows (enum covey_ep_back_as)", c->combine_rows, COVEY_EP_BACK_PLAIN,
			       COVEY_EP_BACK_INT8);
	if (err)
		return err;
	if (c->combine != COVEY_EP_PER_EXPERT && c->combine != COVEY_EP_PER_RANK)
		return cvy_ep_refuse(group, "combine must be of enum covey_ep_combine_as");
	return in_range(group, "lanes", c->lanes, 0, COVEY_DEVICE_MAX_LANES);
}

static int check_places(struct covey_group *group, const struct covey_ep_config *c, int max_ranks)
{
	if (c->places < 0 || c->places > max_ranks)
		return cvy_ep_refuse(group,
				     "places is %d: an expert has one place on a rank at most, so it must be from 0 to "
				     "max_ranks, %d",
				     c->places, max_ranks);
	if ((int64_t)c->experts * c->places > CVY_EP_MAX_PLACES)
		return cvy_ep_refuse(group, "experts * places is %lld: it must be at most %d",
				     (long long)c->experts * c->places, CVY_EP_MAX_PLACES);
	return 0;
}

/* The places of expert @x of more than one. */
static int check_places_of(struct covey_group *group, const int *owner, int places, int size, int x)
{
	int n = 0;

	for (int p = 0; p < places; p++) {
		if (owner[p] < -1 || owner[p] >= size)
			return cvy_ep_refuse(group,
					     "expert_owner[%d][%d] is %d: it must be a rank of the group, 0 to %d, or "
					     "-1 for no place",
					     x, p, owner[p], size - 1);
		for (int q = 0; q < p; q++)
			if (owner[p] >= 0 && owner[q] == owner[p])
				return cvy_ep_refuse(group,
						     "expert_owner[%d][%d] and [%d] are both rank %d: an expert has "
						     "one place on a rank at most; -1 for no place",
						     x, q, p, owner[p]);
		n += owner[p] >= 0;
	}
	return n ? 0
		 : cvy_ep_refuse(group, "expert_owner[%d] has -1 for all %d places: an expert needs one place at least",
				 x, places);
}

int cvy_ep_owners(struct covey_group *group, const int *given, const struct cvy_ep_shape *shape, int size, int *owner)
{
	int places = cvy_ep_places(shape), err = 0;

	if (given)
		memcpy(owner, given, (size_t)cvy_ep_all_places(shape) * sizeof(*owner));
	else
		cvy_ep_spread(shape, size, owner);
	for (int x = 0; x < shape->experts && !err; x++)
		if (places > 1)
			err = check_places_of(group, owner + (size_t)x * (size_t)places, places, size, x);
		else if (owner[x] < 0 || owner[x] >= size)
			err = cvy_ep_refuse(group, "expert_owner[%d] is %d, the group has ranks 0 to %d", x, owner[x],
					    size - 1);
	return err;
}

/* New owners of the experts for a group of @size ranks; the handle changes only on success. */
static int lay_out(struct covey_ep *ep, const int *expert_owner, int size)
{
	int n = cvy_ep_all_places(&ep->shape), *owner = malloc((size_t)n * sizeof(*owner));
	uint64_t h = cvy_hash(0, ep->dispatch) ^ ep->combine;
	int err;

	if (!owner)
		return cvy_ep_fail(ep->group, COVEY_ERR_NOMEM, "no memory for the table of owners");
	err = cvy_ep_owners(ep->group, expert_owner, &ep->shape, size, owner);
	if (err) {
		free(owner);
		return err;
	}
	for (int v = 0; v < n; v++)
		h = cvy_hash(h, (uint64_t)owner[v]);
	h = cvy_hash(h, (uint64_t)ep->shape.tokens);
	h = cvy_hash(h, (uint64_t)ep->shape.hidden);
	h = cvy_hash(h, (uint64_t)ep->shape.top_k << 32 ^ (uint64_t)size);
	h = cvy_hash(h, (uint64_t)ep->lanes << 32 ^ (uint64_t)(cvy_ep_places(&ep->shape) - 1) << 8 ^
				(uint64_t)ep->back_as);
	h = cvy_hash(h, (uint64_t)ep->rows_as << 32 ^ (uint64_t)ep->shape.preset << 16 ^ (uint64_t)ep->combine_as);
	free(ep->owner);
	ep->owner = owner;
	ep->sign = h;
	ep->size = size;
	ep->rank = cvy_site(cvy_handle_engine(ep->group))->rank; /* a joiner's rank may change before it is let in */
	ep->el = cvy_ep_locals(n, owner, ep->rank, ep->local);
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
	size_t bytes = (size_t)cvy_ep_all_places(&ep->shape) * sizeof(*given);

	if (waits && expert_owner) {
		given = malloc(bytes);
		if (!given)
			return cvy_ep_fail(ep->group, COVEY_ERR_NOMEM, "no memory for the table of owners");
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
int cvy_ep_settle(struct covey_ep *ep)
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
	return cvy_ep_settle((struct covey_ep *)(uintptr_t)ep);
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
		err = cvy_ep_take_struct(group, c, sizeof(*c), config, "config");
	if (!err)
		err = check_config(group, c);
	if (!err)
		err = covey_view(group, &view);
	if (err)
		return err;
	if (view.rank < 0 || view.max_ranks < 1)
		return cvy_ep_refuse(group, "the group is not joined yet: covey_join_wait() first");
	if ((uint64_t)view.max_ranks * (uint64_t)c->max_tokens > CVY_EP_MAX_ROWS)
		return cvy_ep_refuse(group, "max_ranks * max_tokens must be below 2^31");
	*shape = (struct cvy_ep_shape){ c->max_tokens,	c->hidden, c->top_k,   c->experts,
					view.max_ranks, c->preset, back_of(c), c->places };
	if (cvy_ep_rows_kept(shape, view.max_ranks, c->experts) > CVY_EP_MAX_ROWS)
		return cvy_ep_refuse(
			group, "with COVEY_EP_WIN max_ranks * max_tokens * min(top_k, experts) must be below 2^31");
	return check_places(group, c, view.max_ranks);
}

COVEY_API int covey_ep_create(struct covey_group *group, const struct covey_ep_config *config, struct covey_ep **out)
{
	struct cvy_engine *e;
	struct covey_ep_config c;
	struct cvy_ep_shape shape = { 0 };
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
		return cvy_ep_fail(group, COVEY_ERR_NOMEM, "no memory for the handle");
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
	ep->local = malloc((size_t)c.experts * (size_t)cvy_ep_places(&shape) * sizeof(*ep->local));
	err = ep->local ? 0 : cvy_ep_fail(group, COVEY_ERR_NOMEM, "no memory for the handle");
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
	if (ep->sent[CVY_EP_DISPATCHES] || ep->sent[CVY_EP_COMBINES] || cvy_ep_device_sent(ep))
		return cvy_ep_refuse(ep->group, "an operation of this handle was sent and not received");
	return lay_out_now(ep, expert_owner);
}

COVEY_API void covey_ep_destroy(struct covey_ep *ep)
{
	if (!ep)
		return;
	for (int which = CVY_EP_DISPATCHES; which <= CVY_EP_COMBINES; which++)
		if (ep->sent[which])
			cvy_op_put(ep->sent[which]);
	if (cvy_handle_check(ep->group) != COVEY_ERR_FORKED) {
		struct cvy_engine *e = cvy_handle_engine(ep->group);

		/* what was sent on the device ends, too */
		for (int which = CVY_EP_DISPATCHES; which <= CVY_EP_COMBINES; which++)
			cvy_ep_device_receive(ep, which == CVY_EP_COMBINES, NULL);
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

	return err ? err : (int)cvy_ep_bin_rows(ep);
}
