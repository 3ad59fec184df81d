/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: parts of the own window for the application, whose bytes operations may lend (lend.h). */
#include <stdlib.h>

#include "handle.h"

static int within(const void *at, const uint8_t *from, size_t bytes)
{
	return (uintptr_t)at >= (uintptr_t)from && (uintptr_t)at - (uintptr_t)from < bytes;
}

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
				group->engine->layout.window_bytes,
				held ? ", and peers still read what covey_ep_destroy gave back: call a barrier first, "
				       "or make window_bytes larger"
				     : "");
	}
	pthread_mutex_lock(&group->lock);
	m->next = group->memory;
	group->memory = m;
	pthread_mutex_unlock(&group->lock);
	*out = group->engine->own_base + m->offset;
	return 0;
}

/* An operation under way whose buffers begin in @m: peers may read there. Its number, 0: none. */
static uint64_t is_lent(struct cvy_engine *e, const struct cvy_memory *m)
{
	const uint8_t *from = e->own_base + m->offset;
	uint64_t seq = 0;

	pthread_mutex_lock(&e->lock);
	for (const struct cvy_op *op = e->head; op && !seq; op = op->next)
		if (within(op->send, from, m->bytes) || within(op->recv, from, m->bytes))
			seq = op->seq;
	pthread_mutex_unlock(&e->lock);
	return seq;
}

int covey_mem_free(struct covey_group *group, void *memory)
{
	struct cvy_memory **at, *m;
	int err = cvy_handle_check(group);
	uint64_t lent;

	if (err == COVEY_ERR_INVAL || err == COVEY_ERR_FORKED)
		return err;
	pthread_mutex_lock(&group->lock);
	for (at = &group->memory; *at && group->engine->own_base + (*at)->offset != memory;)
		at = &(*at)->next;
	m = *at;
	lent = m && is_lent(group->engine, m);
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
