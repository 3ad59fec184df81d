/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: parts of the own window for the application, whose bytes operations may lend (lend.h). */
#include <stdlib.h>

#include "handle.h"

struct cvy_memory {
	struct cvy_memory *next;
	size_t offset, bytes;
};

int covey_mem_alloc(struct covey_group *group, size_t bytes, void **out)
{
	struct cvy_memory *m;
	int err = cvy_handle_check(group), held;

	if (err)
		return err;
	if (!bytes || !out)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "mem_alloc: bytes is 0 or the place for it NULL");
	m = malloc(sizeof(*m));
	if (!m)
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a registered buffer");
	m->bytes = bytes;
	m->offset = cvy_space_alloc_top(group->engine, bytes, &held);
	if (!m->offset) {
		free(m);
		return cvy_fail(group->box, COVEY_ERR_NOMEM, -1, 0,
				"no room for a registered buffer of %zu bytes: window_bytes is %zu%s", bytes,
				group->here->layout.window_bytes,
				held ? ", and peers still read what covey_ep_destroy gave back: call a barrier first, "
				       "or make window_bytes larger"
				     : "");
	}
	pthread_mutex_lock(&group->lock);
	m->next = group->memory;
	group->memory = m;
	pthread_mutex_unlock(&group->lock);
	*out = group->here->own_base + m->offset;
	return 0;
}

int covey_mem_free(struct covey_group *group, void *memory)
{
	struct cvy_memory **at, *m;
	int err = cvy_handle_check(group);
	uint64_t lent;

	if (err == COVEY_ERR_INVAL || err == COVEY_ERR_FORKED)
		return err;
	pthread_mutex_lock(&group->lock);
	for (at = &group->memory; *at && group->here->own_base + (*at)->offset != memory;)
		at = &(*at)->next;
	m = *at;
	lent = m ? cvy_engine_uses(group->engine, memory, m->bytes) : 0;
	if (m && !lent)
		*at = m->next;
	pthread_mutex_unlock(&group->lock);
	if (!m)
		return cvy_fail(group->box, COVEY_ERR_INVAL, -1, 0, "mem_free: this is not what covey_mem_alloc gave");
	if (lent)
		return cvy_fail(
			group->box, COVEY_ERR_INVAL, -1, 0,
			"mem_free: operation %llu, which is not over, reads or writes this memory: wait for it first",
			(unsigned long long)lent);
	cvy_space_free(group->engine, m->offset, m->bytes, 0);
	free(m);
	return 0;
}

void cvy_memory_forget(struct covey_group *group)
{
	while (group->memory) {
		struct cvy_memory *m = group->memory;

		group->memory = m->next;
		free(m);
	}
}
