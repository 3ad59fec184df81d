/* SPDX-License-Identifier: Apache-2.0 */
/* Queues, rings of completions, doorbell pages and handles: what the kernel, or commands to the firmware, make and end. */
#include <stdlib.h>
#include <sys/mman.h>

#include "state.h"

#define FIRST_QPN 0x40

/* Takes a free place; its number grows by QUEUES each time, so a number does not come back soon. */
struct queue *queue_add(uint32_t pd)
{
	struct segment *s = adapter.segment;

	for (uint32_t i = FIRST_QPN; i < QUEUES; i++) {
		struct shared_queue *sq = &s->queue[i];
		uint32_t free_state = QUEUE_FREE, before;

		if (!__atomic_compare_exchange_n(&sq->state, &free_state, QUEUE_RESET, 0, __ATOMIC_SEQ_CST,
						 __ATOMIC_SEQ_CST))
			continue;
		before = sq->qpn;
		*sq = (struct shared_queue){ .state = QUEUE_RESET, .process = adapter.process, .pd = pd };
		sq->qpn = before ? (before + QUEUES) & 0xffffff : i;
		adapter.queue[i] = (struct queue){ .shared = sq, .active = adapter.queue[i].active };
		adapter.stats.queues++;
		return &adapter.queue[i];
	}
	return NULL;
}

/* Once this returned the adapter looks at nothing of it. */
void queue_remove(struct queue *q)
{
	struct shared_queue *shared = q->shared;

	if (!shared)
		return;
	free(q->under_way);
	q->under_way = NULL;
	q->ring = NULL;
	q->shared = NULL;
	adapter.stats.queues--;
	__atomic_store_n(&shared->state, QUEUE_FREE, __ATOMIC_SEQ_CST);
}

int cq_add(const struct completions *from)
{
	for (int i = 1; i < QUEUES; i++) {
		if (adapter.cq[i].live)
			continue;
		adapter.cq[i] = *from;
		adapter.cq[i].live = 1;
		return i;
	}
	return -1;
}

int handle_add(int kind, uint32_t index)
{
	for (uint32_t n = 0; n < HANDLES; n++) {
		uint32_t i = 1 + (adapter.handles + n) % (HANDLES - 1);

		if (adapter.handle[i].kind != HANDLE_NONE)
			continue;
		adapter.handles = i;
		adapter.handle[i] = (struct handle){ .kind = (uint32_t)kind, .index = index };
		return (int)i;
	}
	return -1;
}

struct handle *handle_get(uint64_t handle, int kind)
{
	struct handle *h = handle < HANDLES ? &adapter.handle[handle] : NULL;

	return h && h->kind == (uint32_t)kind ? h : NULL;
}

int uar_add(void)
{
	for (uint32_t i = 0; i < UARS; i++) {
		uint64_t *page = (uint64_t *)(adapter.uars + (size_t)i * PAGE_BYTES);

		if (adapter.uar_used[i])
			continue;
		for (unsigned w = 0; w < PAGE_BYTES / 8; w++)
			page[w] = NO_BELL;
		adapter.uar_used[i] = 1;
		if (i >= adapter.uar_top)
			adapter.uar_top = i + 1;
		adapter.stats.uar_pages++;
		return (int)i;
	}
	return -1;
}

void uar_remove(uint32_t index)
{
	if (index >= UARS || !adapter.uar_used[index])
		return;
	adapter.uar_used[index] = 0;
	adapter.stats.uar_pages--;
}
