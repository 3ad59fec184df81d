/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: all members of a group must log the same for one sequence number. Only a removed rank may have seen
 * another outcome, of an earlier view, if no survivor has it: then the others ran the operation again in a newer view.
 * The removal may be known later than the log entry: until then there is a dispute. A rank that logs anything in the
 * newer view was not removed.
 */
#include <stdio.h>
#include <string.h>

#include "plan.h"

/* These promise each rank its own mask, or its own part, only; all other fields are the same on all ranks. */
bool chaos_private(const struct chaos_record *record)
{
	uint32_t op = record->op;

	return record->own || (op < OP_COUNT && operation_table[op].send_blocks) || op == CHAOS_W_DISPATCH ||
	       op == CHAOS_W_COMBINE || op == CHAOS_W_COME;
}

static bool alike(const struct chaos_record *a, const struct chaos_record *b)
{
	if (a->op != b->op || a->step != b->step)
		return false;
	if (chaos_private(a))
		return true;
	return a->epoch == b->epoch && a->status == b->status && a->mask == b->mask && a->checksum == b->checksum;
}

static uint64_t doubted(const struct chaos_run *run)
{
	uint64_t desks = 0;

	for (int d = 0; d < CHAOS_DESKS; d++)
		if (run->worker[d].doubt)
			desks |= UINT64_C(1) << d;
	return desks;
}

/* With a deadline, others may complete a dispatch before this rank begins: then it has no part of it or its combine. */
static int came_too_late(const struct chaos_run *run, const struct chaos_record *record)
{
	int timed = 0;

	for (int i = 0; i < run->plan.settings; i++)
		timed |= !strcmp(run->plan.setting[i][0], "COVEY_LATE_MS");
	return timed && ((record->op == CHAOS_W_DISPATCH && !record->mask) || record->op == CHAOS_W_COMBINE);
}

/*
 * A rank that another left out, and that had not called yet when the view changed: all members that remain had decided
 * without it (covey_ep.h). So this was its last operation of the old view, but for others of the kind, and for those that
 * a root decides alone.
 */
static int was_left_behind(const struct chaos_record *record)
{
	return record->left && !record->mask;
}

static int decided_alone(const struct chaos_record *record)
{
	return was_left_behind(record) || (record->op < OP_COUNT && operation_table[record->op].of == OP_OF_ROOT);
}

/* A member's own log: consecutive numbers, epochs that never fall, itself among the contributors. */
static void in_order(struct chaos_run *run, const struct chaos_worker *w, int group, const struct chaos_record *record)
{
	const struct chaos_record *last = &w->last[group];
	int member = 0;

	chaos_in_group(run->crew, group, w->rank, &member);
	if (last->seq &&
	    (record->seq != last->seq + 1 || record->epoch < last->epoch || record->enter_ns < last->done_ns))
		chaos_wrong(run, "group %d rank %d: after seq %llu in epoch %u came seq %llu in epoch %u", group,
			    member, (unsigned long long)last->seq, last->epoch, (unsigned long long)record->seq,
			    record->epoch);
	if (!record->status && !last->status && was_left_behind(last) && last->epoch == record->epoch &&
	    !decided_alone(record))
		chaos_wrong(run,
			    "group %d rank %d: seq %llu is in epoch %u, in which others decided seq %llu without it",
			    group, member, (unsigned long long)record->seq, record->epoch,
			    (unsigned long long)last->seq);
	if (!record->status && !(record->mask >> member & 1) && !came_too_late(run, record) && !record->slip &&
	    !was_left_behind(record))
		chaos_wrong(run, "group %d rank %d: seq %llu, %s, has mask %#llx, without the rank itself", group,
			    member, (unsigned long long)record->seq, chaos_work_names[record->op],
			    (unsigned long long)record->mask);
	if (last->seq && last->epoch == record->epoch && !record->status && !last->status && !chaos_private(record) &&
	    !chaos_private(last) && last->mask & ~record->mask)
		chaos_wrong(run, "group %d rank %d: in epoch %u mask %#llx became %#llx", group, member, record->epoch,
			    (unsigned long long)last->mask, (unsigned long long)record->mask);
}

/* Nobody has the part of a rank that was left behind: it had not called. A combine may lack all rows of a failed dispatch. */
static void look_behind(struct chaos_run *run, int desk, int group, struct chaos_entry *entry,
			const struct chaos_record *record)
{
	int member = 0;

	if (record->status || record->slip || record->epoch < entry->epoch ||
	    (record->op != CHAOS_W_DISPATCH && record->op != CHAOS_W_COMBINE))
		return;
	chaos_in_group(run->crew, group, run->worker[desk].rank, &member);
	if (record->epoch > entry->epoch)
		entry->named = entry->behind = 0;
	entry->epoch = record->epoch;
	entry->named |= record->mask;
	entry->behind |= (uint64_t)(was_left_behind(record) && !run->worker[desk].last[group].status) << member;
	if (entry->named & entry->behind)
		chaos_wrong(run,
			    "group %d seq %llu, %s, in epoch %u: masks name members %#llx, and %#llx were left behind",
			    group, (unsigned long long)record->seq, chaos_work_names[record->op], record->epoch,
			    (unsigned long long)entry->named, (unsigned long long)entry->behind);
}

static void dispute(struct chaos_run *run, int desk, int group, const struct chaos_record *a,
		    const struct chaos_entry *entry)
{
	const struct chaos_record *b = &entry->record;
	bool older = a->epoch < b->epoch;
	struct chaos_dispute *d;

	if (run->disputes == CHAOS_DISPUTES) {
		chaos_wrong(run, "more than %d outcomes that differ", CHAOS_DISPUTES);
		return;
	}
	d = &run->dispute[run->disputes++];
	d->owners = older ? UINT64_C(1) << desk : entry->owners;
	d->group = group;
	d->epoch = older ? b->epoch : a->epoch;
	d->never = a->epoch == b->epoch;
	snprintf(d->text, sizeof(d->text),
		 "group %d seq %llu: rank %d has %s step %llu epoch %u status %d mask %#llx sum %#llx, desks %#llx "
		 "have %s step %llu epoch %u status %d mask %#llx sum %#llx",
		 group, (unsigned long long)a->seq, run->worker[desk].rank, chaos_work_names[a->op],
		 (unsigned long long)a->step, a->epoch, a->status, (unsigned long long)a->mask,
		 (unsigned long long)a->checksum, (unsigned long long)entry->owners, chaos_work_names[b->op],
		 (unsigned long long)b->step, b->epoch, b->status, (unsigned long long)b->mask,
		 (unsigned long long)b->checksum);
}

/* Did a rank of the older side continue in the newer view? */
static bool went_on(const struct chaos_run *run, const struct chaos_dispute *d)
{
	for (int desk = 0; desk < CHAOS_DESKS; desk++)
		if (d->owners >> desk & 1 && run->worker[desk].last[d->group].epoch >= d->epoch)
			return true;
	return d->never;
}

/* A dispute whose older side was removed from the group is no fault. */
void chaos_check_disputes(struct chaos_run *run, bool last)
{
	uint64_t out = doubted(run);
	int kept = 0;

	for (int i = 0; i < run->disputes; i++) {
		const struct chaos_dispute *d = &run->dispute[i];
		bool wrong = went_on(run, d);

		if (!wrong && !(d->owners & ~out))
			continue;
		if (wrong || last)
			chaos_wrong(run, "%s", d->text);
		else
			run->dispute[kept++] = *d;
	}
	run->disputes = kept;
}

/* A wrong call counts once for all ranks that made it at one number, and as found with the first error. */
static void count_slip(struct chaos_run *run, struct chaos_entry *entry, const struct chaos_record *record)
{
	if (!record->slip)
		return;
	run->slips[record->slip - 1] += !entry->wrong && (record->wrong || record->found);
	entry->wrong |= record->wrong || record->found;
	run->found[record->slip - 1] += !entry->found && record->found;
	entry->found |= record->found;
}

void chaos_check(struct chaos_run *run, int desk, int group, const struct chaos_record *record)
{
	struct chaos_entry *entry = &run->ledger[group][record->seq % CHAOS_LEDGER];
	uint64_t own = UINT64_C(1) << desk;

	in_order(run, &run->worker[desk], group, record);
	run->checked++;
	run->on_device += group >= run->crew->groups;
	run->failed += record->status && !record->slip;
	if (run->worker[desk].scribbles)
		return;
	if (entry->record.seq > record->seq)
		return; /* overwritten: this rank was read much later than the others */
	if (entry->record.seq < record->seq)
		*entry = (struct chaos_entry){ .record = *record };
	count_slip(run, entry, record);
	look_behind(run, desk, group, entry, record);
	run->compared += entry->owners != 0;
	if (!entry->owners) {
		entry->owners = own;
	} else if (alike(record, &entry->record)) {
		entry->owners |= own;
	} else {
		dispute(run, desk, group, record, entry);
		if (record->epoch > entry->record.epoch) {
			entry->record = *record;
			entry->owners = own;
		}
	}
	if (!chaos_private(record) && !record->status && record->seq > run->uniform[group].seq)
		run->uniform[group] = *record;
}
