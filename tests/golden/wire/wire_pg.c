/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks and slots of a process group. */
#include "wire_pg.h"

enum { PG_CHUNK_ALIGN = 8, PG_ARRIVED = 1 };

int cvy_wire_pg_layout(struct cvy_wire_pg *pg)
{
	int err = cvy_wire_between(pg->box, "ranks", pg->ranks, 1, CVY_WIRE_PG_RANKS);

	err = err ? err : cvy_wire_between(pg->box, "kind", pg->kind, CVY_WIRE_PG_SAME, CVY_WIRE_PG_EACH);
	if (err)
		return err;
	pg->chunk = cvy_round_down((CVY_WIRE_PG_BUFFER - 1) / (size_t)pg->ranks, PG_CHUNK_ALIGN);
	pg->buffers_bytes = 2 * CVY_WIRE_PG_BUFFERS * CVY_WIRE_PG_BUFFER;
	pg->sync_bytes = CVY_WIRE_PG_RANKS * sizeof(int32_t);
	return 0;
}

size_t cvy_wire_pg_steps(const struct cvy_wire_pg *pg, size_t bytes)
{
	return bytes / pg->chunk + (bytes % pg->chunk != 0);
}

static int check(const struct cvy_wire_pg *pg, const struct cvy_wire_pg_memory *m, int rank, size_t bytes)
{
	int err = cvy_wire_fits(pg->box, "a buffer", &m->buffer, (size_t)pg->ranks * pg->chunk);

	err = err ? err : cvy_wire_fits(pg->box, "sync words", &m->sync, pg->sync_bytes);
	err = err ? err : cvy_wire_between(pg->box, "the rank", rank, 0, pg->ranks - 1);
	if (!err && bytes > pg->chunk)
		err = cvy_fail(pg->box, COVEY_ERR_INVAL, -1, 0, "a step of %zu bytes: with %d ranks it has at most %zu",
			       bytes, pg->ranks, pg->chunk);
	return err;
}

int cvy_wire_pg_write(const struct cvy_wire_pg *pg, const uint8_t *const *send, size_t bytes, int rank,
		      const struct cvy_wire_pg_memory *to)
{
	int err = check(pg, to, rank, bytes);

	for (int src = 0; !err && src < pg->ranks; src++) {
		if (send[src])
			memcpy(to->buffer.at + cvy_wire_pg_to(pg, src), send[src] + cvy_wire_pg_from(pg, rank), bytes);
		cvy_wire_put32(to->sync.at + 4 * (size_t)src, PG_ARRIVED);
	}
	return err;
}

int cvy_wire_pg_read(const struct cvy_wire_pg *pg, const struct cvy_wire_pg_memory *from, int src, size_t bytes,
		     void *piece)
{
	int err = check(pg, from, src, bytes);
	uint32_t word;

	if (err)
		return err;
	word = cvy_wire_get32(from->sync.at + 4 * (size_t)src);
	if (!word)
		return COVEY_ERR_AGAIN;
	if (word != PG_ARRIVED)
		return cvy_fail(pg->box, COVEY_ERR_INVAL, src, 0, "the sync word of rank %d is %u: it must be 0 or %d",
				src, (unsigned)word, PG_ARRIVED);
	memcpy(piece, from->buffer.at + cvy_wire_pg_to(pg, src), bytes);
	return 0;
}

int cvy_wire_pg_slots(struct cvy_errbox *box, uint64_t seq, size_t bytes, struct cvy_wire_pg_slots *out)
{
	int first = (int)(seq % CVY_WIRE_PG_SLOTS), count;

	if (bytes > CVY_WIRE_PG_BUFFER)
		return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "a message of %zu bytes: all slots together have %zu",
				bytes, CVY_WIRE_PG_BUFFER);
	count = (int)((bytes + CVY_WIRE_PG_SLOT - 1) / CVY_WIRE_PG_SLOT);
	*out = (struct cvy_wire_pg_slots){ first + count > CVY_WIRE_PG_SLOTS ? 0 : first, count };
	return 0;
}

int cvy_wire_pg_message_write(struct cvy_errbox *box, uint64_t seq, const void *message, size_t bytes,
			      const struct cvy_wire_image *region)
{
	struct cvy_wire_pg_slots slots = { 0, 0 };
	int err = cvy_wire_fits(box, "a region of slots", region, CVY_WIRE_PG_BUFFER);

	err = err ? err : cvy_wire_pg_slots(box, seq, bytes, &slots);
	if (!err && bytes)
		memcpy(region->at + (size_t)slots.first * CVY_WIRE_PG_SLOT, message, bytes);
	return err;
}

int cvy_wire_pg_message_read(struct cvy_errbox *box, uint64_t seq, const struct cvy_wire_image *region, void *message,
			     size_t bytes)
{
	struct cvy_wire_pg_slots slots = { 0, 0 };
	int err = cvy_wire_fits(box, "a region of slots", region, CVY_WIRE_PG_BUFFER);

	err = err ? err : cvy_wire_pg_slots(box, seq, bytes, &slots);
	if (!err && bytes)
		memcpy(message, region->at + (size_t)slots.first * CVY_WIRE_PG_SLOT, bytes);
	return err;
}
