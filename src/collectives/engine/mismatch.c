/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that make different calls at one number: the signature in each line shows it, causes name the calls, and a view
 * change fails the operation for all.
 *
 * The root of a broadcast or scatter hears of nobody before it is done, and the others hear of the root alone. So every
 * mark in a line also covers all calls before it (e->past): the next operation that hears of anybody shows an unseen
 * mismatch. A root of consecutive broadcasts looks at done lines, which have the mark of their tick, and which it must
 * read every CVY_SLOTS ticks anyway. A call counts as its caller made it: an operation counts with the call made here,
 * whatever outcome it got, and not at all if it failed for all.
 */
#include "hash.h"
#include "outcome.h"

#include <stdio.h>
#include <string.h>

void cvy_engine_want_change(struct cvy_engine *e, struct cvy_op *op, const char *why)
{
	struct cvy_event ev = { .kind = CVY_EV_WANT_CHANGE, .rank = -1, .number = op->seq, .text = why };

	if (e->wanted == op->seq)
		return;
	e->wanted = op->seq;
	cvy_post(&e->sink, &ev);
}

/* ---- the calls before ---- */

void cvy_engine_count_call(struct cvy_engine *e, const struct cvy_op *op)
{
	uint64_t h = (op->sig ^ op->seq * CVY_SPREAD) * CVY_SPREAD_MORE;

	if (op->seq > e->since)
		e->past ^= (uint32_t)(h >> 32);
	if (op->kind->op_class == CVY_OP_ROOT)
		e->unheard = 1;
	else if (op->kind->op_class != CVY_OP_ADMIT && !op->late)
		e->unheard = 0;
}

void cvy_engine_forget_calls(struct cvy_engine *e, uint64_t seq)
{
	e->past = 0;
	e->since = seq;
}

void cvy_engine_told_calls(struct cvy_engine *e, uint64_t seq, uint32_t past, uint64_t since)
{
	/* A holder that is past a later failure counts from there: this rank does so when it gets there itself. */
	if (e->newcomer) {
		e->past = past;
		e->since = since < seq ? since : 0;
		e->newcomer = 0;
	}
	if (since > e->since && since <= seq)
		cvy_engine_forget_calls(e, since);
}

/* The operation that a done line is about: in its data, for causes alone. */
static uint64_t *spoken_of(const struct cvy_line *line)
{
	return (uint64_t *)(uintptr_t)line->data;
}

/* The tick is written first, and read last: a mark of a later one does not count for this one. */
void cvy_engine_tell_calls(struct cvy_engine *e, const struct cvy_op *op, uint32_t tick)
{
	struct cvy_line *line = &e->here.own->done;

	e->told[tick % (2 * CVY_SLOTS)] = (struct cvy_told){ tick, op->mark };
	__atomic_store_n(&line->bytes, tick, __ATOMIC_RELAXED);
	cvy_named();
	__atomic_store_n(&line->sig, op->mark, __ATOMIC_RELAXED);
	__atomic_store_n(&line->call, op->call, __ATOMIC_RELAXED);
	__atomic_store_n(spoken_of(line), op->seq, __ATOMIC_RELAXED);
}

int cvy_engine_calls_differ(const struct cvy_engine *e, int k, uint64_t tag)
{
	const struct cvy_line *line = &e->here.set.page[k]->done;
	uint32_t tick = (uint32_t)tag, mark;
	const struct cvy_told *own = &e->told[tick % (2 * CVY_SLOTS)];

	if (!tick || own->tick != tick)
		return 0;
	mark = __atomic_load_n(&line->sig, __ATOMIC_RELAXED);
	cvy_read();
	return mark != own->mark && __atomic_load_n(&line->bytes, __ATOMIC_RELAXED) == tick;
}

struct words {
	char *text;
	size_t bytes;
	uint64_t seq;	     /* of the operation that failed */
	const char *current; /* its call here, NULL: it is not called yet */
};

static void name_earlier(const struct cvy_engine *e, const struct words *w, uint64_t seq, uint64_t own, int k,
			 uint64_t other)
{
	char mine[72], theirs[72];

	snprintf(w->text, w->bytes,
		 "operation %llu%s%s: operation %llu had not matched: rank %d called %s, rank %d called %s",
		 (unsigned long long)w->seq, w->current ? ", " : "", w->current ? w->current : "",
		 (unsigned long long)seq, e->here.rank, cvy_call_text(own, mine, sizeof(mine)), e->here.set.rank[k],
		 cvy_call_text(other, theirs, sizeof(theirs)));
}

static int same_call(uint64_t a, uint64_t b)
{
	return a >> CVY_LAP_BITS == b >> CVY_LAP_BITS;
}

/*
 * The first recorded operation at which the k-th source made another call. If none of this view did, the last operation
 * in done lines.
 */
static int earlier_call(struct cvy_engine *e, int k, const struct words *w)
{
	const struct cvy_line *done = e->here.set.page[k] ? &e->here.set.page[k]->done : NULL;
	const struct cvy_op *first = NULL;
	uint64_t seq, own, call;

	for (int i = 0; done && i < CVY_KEPT; i++) {
		const struct cvy_op *op = e->record[i];
		const struct cvy_line *line = op && op->first ? cvy_source_line(e, op, 0, k, 1) : NULL;

		if (line && __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == cvy_tag(e->here.epoch, op->first) &&
		    line->sig != op->mark && !same_call(line->call, op->call) && (!first || op->seq < first->seq))
			first = op;
	}
	if (first) {
		name_earlier(e, w, first->seq, first->call, k, cvy_source_line(e, first, 0, k, 1)->call);
		return 1;
	}
	if (!done)
		return 0;
	seq = __atomic_load_n(spoken_of(done), __ATOMIC_RELAXED);
	own = __atomic_load_n(&e->here.own->done.call, __ATOMIC_RELAXED);
	call = __atomic_load_n(&done->call, __ATOMIC_RELAXED);
	if (!seq || seq <= e->since || seq != __atomic_load_n(spoken_of(&e->here.own->done), __ATOMIC_RELAXED) ||
	    same_call(own, call))
		return 0;
	name_earlier(e, w, seq, own, k, call);
	return 1;
}

/* ---- causes ---- */

static void name_calls(struct cvy_engine *e, const struct cvy_op *op, int k, const struct cvy_line *line)
{
	char text[256], mine[72], theirs[72];
	struct words w = { text, sizeof(text), op->seq, cvy_call_text(op->call, mine, sizeof(mine)) };

	if (!same_call(op->call, line->call) || !earlier_call(e, k, &w))
		snprintf(text, sizeof(text), "operation %llu: rank %d calls %s, rank %d calls %s%s",
			 (unsigned long long)op->seq, e->here.rank, mine, e->here.set.rank[k],
			 cvy_call_text(line->call, theirs, sizeof(theirs)),
			 same_call(op->call, line->call) ? " with other details, or after other calls" : "");
	cvy_fail(e->here.box, COVEY_ERR_MISMATCH, e->here.set.rank[k], e->here.epoch, "%s", text);
}

void cvy_engine_apart(struct cvy_engine *e, struct cvy_op *op)
{
	char text[256], mine[72];
	struct words w = { text, sizeof(text), op->seq, cvy_call_text(op->call, mine, sizeof(mine)) };
	int k = e->apart - 1;

	if (e->repair || cvy_engine_outrun(e) || e->mismatch)
		return;
	e->mismatch = 1;
	if (!earlier_call(e, k, &w))
		snprintf(text, sizeof(text),
			 "operation %llu: rank %d calls %s, after other calls than those of rank %d",
			 (unsigned long long)op->seq, e->here.rank, mine, e->here.set.rank[k]);
	cvy_fail(e->here.box, COVEY_ERR_MISMATCH, e->here.set.rank[k], e->here.epoch, "%s", text);
	cvy_engine_want_change(e, op, "mismatch");
}

/* The first tick that @seq would have if it had begun; 0: unknown. */
static uint32_t tick_of(const struct cvy_engine *e, uint64_t seq)
{
	return e->tick_seq + 1 == seq ? e->tick + 1 : 0;
}

/* Reads lines that are still on their way, since they name the calls. */
static void hear(struct cvy_engine *e)
{
	if (!e->active)
		cvy_engine_look_at_push(e);
}

/* The k-th source's line of an operation that has not begun here. NULL: it is not there. */
static const struct cvy_line *line_at(const struct cvy_engine *e, uint32_t tick, int k)
{
	const struct cvy_line *line;

	if (!tick || k == e->here.set.self || e->here.set.gone[k] || !e->here.set.page[k])
		return NULL;
	line = &e->here.set.page[k]->first[tick % CVY_SLOTS];
	return __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == cvy_tag(e->here.epoch, tick) ? line : NULL;
}

void cvy_engine_keep_words(struct cvy_engine *e, uint64_t seq)
{
	struct words w = { e->why.text, sizeof(e->why.text), seq, NULL };
	int n = 0;

	hear(e);
	e->why.seq = seq;
	e->why.text[0] = 0;
	e->why.by[0] = e->why.by[1] = -1;
	for (int k = 0; n < 2 && k < e->here.set.n; k++) {
		const struct cvy_line *line = line_at(e, tick_of(e, seq), k);

		if (!line || (n && same_call(line->call, e->why.call[0])))
			continue;
		e->why.call[n] = line->call;
		e->why.by[n++] = e->here.set.rank[k];
	}
	for (int k = 0; !e->why.text[0] && k < e->here.set.n; k++)
		if (k != e->here.set.self && !e->here.set.gone[k] && earlier_call(e, k, &w))
			e->why.rank = e->here.set.rank[k];
}

static void say(struct cvy_engine *e, const struct cvy_op *op, int rank, uint64_t call)
{
	char mine[72], theirs[72];

	cvy_fail(e->here.box, COVEY_ERR_MISMATCH, rank, e->here.epoch,
		 "operation %llu: rank %d calls %s, rank %d calls %s", (unsigned long long)op->seq, e->here.rank,
		 cvy_call_text(op->call, mine, sizeof(mine)), rank, cvy_call_text(call, theirs, sizeof(theirs)));
}

/* Names the calls by words that were kept when it failed for all. */
static int named_before(struct cvy_engine *e, const struct cvy_op *op)
{
	for (int i = 0; e->why.seq == op->seq && i < 2; i++)
		if (e->why.by[i] >= 0 && !same_call(e->why.call[i], op->call)) {
			say(e, op, e->why.by[i], e->why.call[i]);
			return 1;
		}
	if (e->why.seq != op->seq || !e->why.text[0])
		return 0;
	cvy_fail(e->here.box, COVEY_ERR_MISMATCH, e->why.rank, e->here.epoch, "%s", e->why.text);
	return 1;
}

/*
 * An operation of a root waits for nobody. So calls that did not match may have passed unseen, with more ticks here
 * than there; then this tick has data of another operation or another part of it. In the next view all count the same,
 * and this operation is executed again.
 */
void cvy_engine_mismatch(struct cvy_engine *e, struct cvy_op *op, int k, const struct cvy_line *line)
{
	/*
	 * In a repair it was reported before, for the operation that fails for all. Outrun: lines of a view without
	 * this rank.
	 */
	if (e->repair || cvy_engine_outrun(e))
		return;
	if (cvy_lap(line->call) != cvy_lap(op->call)) {
		cvy_engine_want_change(e, op, "ticks counted apart");
		return;
	}
	e->mismatch = 1;
	name_calls(e, op, k, line);
	cvy_engine_want_change(e, op, "mismatch");
}

/* Names the calls by a line of this operation, by one of an operation before it, or by kept words. */
static int named(struct cvy_engine *e, const struct cvy_op *op)
{
	int entered = op->state == CVY_OP_ENTERED;
	uint32_t tick = entered ? op->first : tick_of(e, op->seq);
	char text[256], mine[72];
	struct words w = { text, sizeof(text), op->seq, cvy_call_text(op->call, mine, sizeof(mine)) };

	if (named_before(e, op))
		return 1;
	hear(e);
	for (int k = 0; !e->active && k < e->here.set.n; k++) {
		const struct cvy_line *line = line_at(e, tick, k);

		if (!line || (entered ? line->sig == op->mark || cvy_lap(line->call) != cvy_lap(op->call)
				      : same_call(line->call, op->call)))
			continue;
		if (entered)
			name_calls(e, op, k, line);
		else
			say(e, op, e->here.set.rank[k], line->call);
		return 1;
	}
	for (int k = 0; !e->active && k < e->here.set.n; k++) {
		if (k == e->here.set.self || e->here.set.gone[k] || !earlier_call(e, k, &w))
			continue;
		cvy_fail(e->here.box, COVEY_ERR_MISMATCH, e->here.set.rank[k], e->here.epoch, "%s", text);
		return 1;
	}
	return 0;
}

/* A change may have come before this rank looked: the lines are unchanged until the next view is active. */
void cvy_engine_explain(struct cvy_engine *e, const struct cvy_op *op, int status)
{
	char mine[72];

	if (status == COVEY_ERR_LOST)
		cvy_fail(e->here.box, status, -1, e->here.epoch,
			 (op->kind->whole || op->kind->own) && e->failed.seq != op->seq
				 ? "operation %llu: a rank died and took this rank's part with it"
				 : "operation %llu: results had overwritten inputs when a rank died; in place above "
				   "undo_bytes",
			 (unsigned long long)op->seq);
	if (status != COVEY_ERR_MISMATCH || named(e, op))
		return;
	cvy_fail(e->here.box, status, -1, e->here.epoch, "operation %llu: rank %d calls %s, others call something else",
		 (unsigned long long)op->seq, e->here.rank, cvy_call_text(op->call, mine, sizeof(mine)));
}

void cvy_engine_look_for_mismatch(struct cvy_engine *e)
{
	struct cvy_op *op = e->head;

	if (!op || op->state != CVY_OP_ENTERED || op->completed ||
	    (op->kind->op_class != CVY_OP_ROOT && op->kind->op_class != CVY_OP_TO_ROOT))
		return;
	for (int k = 0; k < e->here.set.n; k++) {
		const struct cvy_line *line = e->here.set.gone[k] ? NULL : cvy_source_line(e, op, 0, k, 1);

		if (line && k != e->here.set.self &&
		    __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == cvy_tag(e->here.epoch, op->first) &&
		    line->sig != op->mark)
			cvy_engine_mismatch(e, op, k, line);
	}
}
