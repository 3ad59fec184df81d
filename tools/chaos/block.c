/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers that come and go: of changing sizes, for each rank alone, and overwritten as soon as an operation
 * has ended. So a peer that still reads one then, or reads its successor, gets wrong bytes.
 */
#include <string.h>

#include "work.h"

#define OVERWRITTEN 0x77

/* A different draw on every rank. */
static uint64_t draw(const struct chaos_member *m, unsigned what, uint64_t below)
{
	return chaos_scramble(m->random + (uint64_t)(m->rank + 1) * 104729 + what * UINT64_C(15485863)) % below;
}

static int give_back(struct chaos_member *m, int at)
{
	int err = m->block[at] ? covey_mem_free(m->group, m->block[at]) : 0;

	m->block[at] = NULL;
	return err ? chaos_member_fail(m, "mem_free", err) : 0;
}

int chaos_block_take(struct chaos_member *m, size_t bytes)
{
	int at = (int)draw(m, 1, CHAOS_BLOCKS), err, code;

	m->send = m->home;
	m->sent = 0;
	if (!m->crew->mix.handles || draw(m, 2, 2))
		return 0;
	code = give_back(m, at);
	if (code)
		return code;
	err = covey_mem_alloc(m->group, bytes + CHAOS_ROOM_SLACK, &m->block[at]);
	if (err)
		return chaos_member_fail(m, "mem_alloc", err);
	__atomic_fetch_add(&m->desk->blocks, 1, __ATOMIC_RELAXED);
	m->send = m->block[at];
	m->sent = bytes;
	return 0;
}

int chaos_block_give(struct chaos_member *m)
{
	if (!m->sent)
		return 0;
	memset(m->send, OVERWRITTEN, m->sent);
	m->sent = 0;
	m->send = m->home;
	return draw(m, 3, 2) ? give_back(m, (int)draw(m, 1, CHAOS_BLOCKS)) : 0;
}
