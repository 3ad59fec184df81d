/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uniform outcomes: the ranks must log the same for one sequence number. Only a killed rank may have seen another,
 * earlier outcome: one that no survivor has, so that the others ran the operation again in a newer epoch.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "chaos.h"

#define SAID_MAX 10 /* faults that are printed; all are counted */

void chaos_wrong(struct chaos *c, const char *format, ...)
{
	va_list args;

	if (c->wrong++ >= SAID_MAX)
		return;
	fprintf(stderr, "ep-chaos: WRONG: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

/* These promise each rank its own mask only: a rank admitted at a safe point may have its outcome in the next epoch. */
static bool own(const struct chaos_record *a)
{
	return a->op == CHAOS_ALLTOALL || a->op == CHAOS_DISPATCH || a->op == CHAOS_COMBINE ||
	       (a->op == CHAOS_ADMIT && a->stream == CHAOS_DEVICE);
}

static bool alike(const struct chaos_record *a, const struct chaos_record *b)
{
	if (a->op != b->op || a->step != b->step)
		return false;
	if (own(a))
		return true;
	return a->epoch == b->epoch && a->status == b->status && a->mask == b->mask && a->checksum == b->checksum;
}

static uint32_t killed(const struct chaos *c)
{
	uint32_t mask = c->victims;

	for (int r = 0; r < c->opt->ranks; r++)
		if (c->process[r].killed)
			mask |= 1u << r;
	return mask;
}

static void in_order(struct chaos *c, int rank, const struct chaos_record *record)
{
	const struct chaos_record *last = &c->process[rank].last[record->stream];

	if (!last->seq || (record->seq == last->seq + 1 && record->epoch >= last->epoch &&
			   (record->enter_ns >= last->done_ns || record->op == CHAOS_COMBINE)))
		return;
	chaos_wrong(c, "rank %d: after seq %llu in epoch %u came seq %llu in epoch %u", rank,
		    (unsigned long long)last->seq, last->epoch, (unsigned long long)record->seq, record->epoch);
}

static void differ(struct chaos *c, int rank, const struct chaos_record *a, const struct chaos_outcome *outcome)
{
	const struct chaos_record *b = &outcome->record;

	chaos_wrong(c,
		    "seq %llu: rank %d has op %u step %llu epoch %u status %d mask %#llx sum %#llx, ranks %#x have op "
		    "%u step "
		    "%llu epoch %u status %d mask %#llx sum %#llx",
		    (unsigned long long)a->seq, rank, a->op, (unsigned long long)a->step, a->epoch, a->status,
		    (unsigned long long)a->mask, (unsigned long long)a->checksum, outcome->owners, b->op,
		    (unsigned long long)b->step, b->epoch, b->status, (unsigned long long)b->mask,
		    (unsigned long long)b->checksum);
}

void chaos_verify(struct chaos *c, int rank, const struct chaos_record *record)
{
	struct chaos_outcome *outcome = &c->outcome[(record->seq * CHAOS_STREAMS + record->stream) % CHAOS_SEQS];
	uint32_t own = 1u << rank, dead = killed(c);

	in_order(c, rank, record);
	if (outcome->record.seq > record->seq)
		return; /* overwritten: this rank was read much later than the others */
	if (outcome->record.seq < record->seq) {
		outcome->record = *record;
		outcome->owners = own;
		return;
	}
	c->compared++;
	if (alike(record, &outcome->record)) {
		outcome->owners |= own;
	} else if (!(outcome->owners & ~dead) && outcome->record.epoch < record->epoch) {
		outcome->record = *record;
		outcome->owners = own;
	} else if (!(dead & own) || record->epoch >= outcome->record.epoch) {
		differ(c, rank, record, outcome);
	}
}
