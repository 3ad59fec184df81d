/* SPDX-License-Identifier: Apache-2.0 */
/* Views: storage, and the two questions that operations ask about a sequence number. */
#include <stdlib.h>

#include "view.h"

static size_t view_bytes(int max_ranks)
{
	return sizeof(struct cvy_view) + (size_t)max_ranks * sizeof(struct cvy_member);
}

struct cvy_view *cvy_view_new(int max_ranks)
{
	struct cvy_view *view = calloc(1, view_bytes(max_ranks));

	if (view)
		view->max_ranks = max_ranks;
	return view;
}

struct cvy_view *cvy_view_dup(const struct cvy_view *view)
{
	struct cvy_view *copy = malloc(view_bytes(view->max_ranks));

	if (copy)
		memcpy(copy, view, view_bytes(view->max_ranks));
	return copy;
}

void cvy_view_copy(struct cvy_view *to, const struct cvy_view *from)
{
	memcpy(to, from, view_bytes(from->max_ranks));
}

void cvy_view_free(struct cvy_view *view)
{
	free(view);
}

void cvy_view_mask(const struct cvy_view *view, uint64_t seq, struct covey_mask *mask)
{
	*mask = view->members;
	cvy_mask_sub(mask, &view->pending);
	CVY_MASK_EACH(rank, mask)
	if (view->member[rank].from > seq)
		cvy_mask_del(mask, rank);
}

int cvy_view_size(const struct cvy_view *view, uint64_t seq)
{
	int size = view->size;

	CVY_MASK_EACH(rank, &view->members)
	if (rank >= size && !covey_mask_has(&view->pending, rank) && view->member[rank].from < seq)
		size = rank + 1;
	return size;
}
