/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of an operation: begin, the tick pipeline (publish, second round, complete), decide. Every step does all
 * that it can and returns.
 */
#include "engine_state.h"

#include <stdlib.h>
#include <string.h>

#include "chain.h"
#include "floats.h"
#include "hash.h"
#include "hosts.h"
#include "guard.h"
#include "lend.h"
#include "pair_state.h"
#include "algorithm.h"

#define TICKS_MAX 0xc0000000u /* of a view: then a new view is requested, so that no number is used twice */

/* Compiled into each way of an operation: a source costs no call. */
#define IN_EACH_WAY __attribute__((always_inline)) static inline

/*
 * Does a source write for a view past @epoch? Its page shows this before it writes. (In mirrors the epoch is 0: a rank
 * that left us out puts nothing there.)
 */
int cvy_engine_passed(const struct cvy_engine *e, uint32_t epoch)
{
	cvy_read();
	for (int k = 0; k < e->here.set.n; k++) {
		const struct cvy_page *page = e->here.set.page[k];

		if (k != e->here.set.self && page && !e->here.set.gone[k] &&
		    __atomic_load_n(&page->epoch, __ATOMIC_RELAXED) > epoch)
			return 1;
	}
	return 0;
}

/*
 * A process that is stopped while it reads may wake when the others have left it out and write over their slots. Then
 * nothing that was read counts or is passed on, and the membership ends the call.
 */
int cvy_engine_outrun(struct cvy_engine *e)
{
	e->outrun |= cvy_engine_passed(e, e->view->epoch);
	return e->outrun;
}

/* The own line of a round: everything before the tag, the tag last. */
static void publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round)
{
	struct cvy_line *line = (round == 1 ? e->here.own->first : e->here.own->second) + cvy_slot_index(op, i);

	if (CVY_GUARDED) {
		line->sig = op->mark;
		line->call = op->call;
	}
	if (round == 1) {
		if (op->kind->publish && (op->kind->op_class != CVY_OP_ROOT || op->root == e->here.rank))
			op->kind->publish(e, op, i, line);
	} else if (op->way) {
		cvy_hosts_pass_on(e, op, i, line);
	} else if (op->kind->publish2) {
		op->kind->publish2(e, op, i, line);
	} else {
		line->aux = cvy_lendable(e, op) && cvy_lend_seen(e, op, i);
	}
	if (CVY_GUARDED && round == 2 && cvy_engine_outrun(e))
		return;
	__atomic_store_n(&line->tag, cvy_tag(e->here.epoch, op->first + (uint32_t)i), __ATOMIC_RELEASE);
	if (op->way)
		cvy_hosts_signal(e, op, line, round);
	else
		cvy_signal_all(e, line);
}

/* Done words: an operation of a root shows nothing about the others, so its ranks report the completed tick. */
void cvy_tell_done(struct cvy_engine *e, const struct cvy_op *op, uint32_t tick)
{
	struct cvy_line *line = &e->here.own->done;

	if (CVY_GUARDED && op)
		cvy_engine_tell_calls(e, op, tick);
	__atomic_store_n(&line->tag, cvy_tag(e->here.epoch, tick), __ATOMIC_RELEASE);
	cvy_signal_all(e, line);
}

void cvy_say_done(struct cvy_engine *e)
{
	cvy_signal_all(e, &e->here.own->done);
}

static void refresh_floor(struct cvy_engine *e)
{
	uint32_t least = e->complete;

	for (int k = 0; k < e->here.set.n; k++) {
		uint64_t tag;

		if (k == e->here.set.self ||
		    covey_mask_has(&e->view->pending, e->here.set.rank[k])) /* of the admitted alone */
			continue;
		if (CVY_GUARDED &&
		    e->here.set.gone[k]) /* in repair: all entered an operation that a survivor decided */
			return;
		tag = __atomic_load_n(&e->here.set.page[k]->done.tag, __ATOMIC_ACQUIRE);
		if ((uint32_t)(tag >> 32) != e->here.epoch)
			return;
		if (CVY_GUARDED && !e->here.set.gone[k] && cvy_engine_calls_differ(e, k, tag))
			e->apart = k + 1;
		if ((uint32_t)tag < least)
			least = (uint32_t)tag;
	}
	if (least > e->floor)
		__atomic_store_n(&e->floor, least, __ATOMIC_RELAXED);
}

/* PROTOCOL section 7, rule 1 */
static int may_enter(struct cvy_engine *e, uint32_t tick)
{
	if (tick > CVY_DEPTH && e->complete < tick - CVY_DEPTH)
		return 0;
	if (tick <= CVY_SLOTS || e->floor >= tick - CVY_SLOTS)
		return 1;
	refresh_floor(e);
	return e->floor >= tick - CVY_SLOTS;
}

/* ---- one operation ---- */

/* The root has no second line for this tick: does its first one show another call? */
static int root_differs(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int k, uint64_t tag)
{
	const struct cvy_line *line = cvy_source_line(e, op, i, k, 1);

	if (cvy_line_passed(line, tag))
		return 1;
	return __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == tag && line->sig != op->mark;
}

static int of_root(const struct cvy_op *op)
{
	return op->kind->op_class == CVY_OP_ROOT || op->kind->op_class == CVY_OP_TO_ROOT;
}

/* Had a removed source announced the tick before? */
static int left(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int k, uint64_t tag)
{
	return (op->kind->whole || op->kind->op_class == CVY_OP_TO_ROOT) && e->here.set.page[k] &&
	       __atomic_load_n(&cvy_source_line(e, op, i, k, 1)->tag, __ATOMIC_ACQUIRE) == tag;
}

/* The awaited line is not here. Is its source masked as late? If it made another call, that is reported. */
static int masked(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int k, int round)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first + (uint32_t)i);
	const struct cvy_line *line = cvy_source_line(e, op, i, k, round);

	if (cvy_line_passed(line, tag))
		cvy_engine_mismatch(e, op, k, line);
	else if (op->kind->op_class == CVY_OP_TO_ROOT && round == 2 && root_differs(e, op, i, k, tag))
		cvy_engine_mismatch(e, op, k, cvy_source_line(e, op, i, k, 1));
	else
		return op->partial && cvy_late(e, op, e->here.set.rank[k]);
	return 0;
}

/* The k-th source was removed before it announced the tick. Does it count as missing? */
CVY_RARE static int lost(struct cvy_engine *e, const struct cvy_op *op, int k)
{
	if (op->kind->op_class == CVY_OP_TO_ROOT) /* all that a rank lacks is here, or it is lost */
		return 0;
	cvy_mask_add(&e->here.lost, e->here.set.rank[k]);
	e->here.some_lost = 1;
	return 1;
}

/* Is there no need to wait for the k-th source? Its line is here, or it counts as missing. */
IN_EACH_WAY int heard(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int k, int round)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first + (uint32_t)i);
	const struct cvy_line *line;

	if (CVY_GUARDED && e->here.set.gone[k] && !left(e, op, i, k, tag))
		return lost(e, op, k);
	line = cvy_source_line(e, op, i, k, round);
	if (__atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != tag)
		return CVY_GUARDED && masked(e, op, i, k, round);
	if (CVY_GUARDED && line->sig != op->mark) {
		cvy_engine_mismatch(e, op, k, line);
		return 0;
	}
	return 1;
}

/* Does @round of the operation wait for the k-th source? */
typedef int needs_fn(const struct cvy_engine *e, const struct cvy_op *op, int k, int round);

/* Have all sources that @round of the tick needs announced it? The next look continues at the first that has not. */
IN_EACH_WAY int arrived(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round, needs_fn *needs)
{
	int *k = &op->scan[round - 1];

	for (; *k < e->here.set.n; ++*k)
		if (*k != e->here.set.self && needs(e, op, *k, round) && !heard(e, op, i, *k, round))
			return 0;
	*k = 0;
	return 1;
}

/*
 * Are results written over inputs before the operation is decided? Yes with many ticks (0: possibly, they are not
 * counted yet), or with a closing word to wait for.
 */
static int stands_over(const struct cvy_op *op)
{
	return op->input_bytes && (op->ticks != 1 || op->lent);
}

/* Memory for the copy stays for the next one: fresh pages cost several times what the copy does. */
static uint8_t *undo_room(struct cvy_engine *e, size_t bytes)
{
	if (bytes > e->undo_room) {
		free(e->undo);
		e->undo = malloc(bytes);
		e->undo_room = e->undo ? bytes : 0;
	}
	return e->undo;
}

/* In place: the first result would overwrite an input that a redo needs. */
static void save_input(struct cvy_engine *e, struct cvy_op *op)
{
	if (!CVY_GUARDED || op->undo || !stands_over(op) || op->input_bytes > e->undo_bytes)
		return;
	op->undo = undo_room(e, op->input_bytes);
	if (op->undo) {
		memcpy(op->undo, op->recv, op->input_bytes);
		if (op->send == op->recv &&
		    !op->kind->whole) /* whole: a copy of the own block, which only recv overwrites */
			op->input = op->undo;
	}
}

/* The rank that sends joiners their number: not index 0 of the set, which may be a joiner. */
int cvy_lowest_admitted(const struct cvy_engine *e)
{
	CVY_MASK_EACH(r, &e->view->members)
	if (!covey_mask_has(&e->view->pending, r))
		return r;
	return -1;
}

static int begin_admit(struct cvy_engine *e, struct cvy_op *op)
{
	if (e->here.pending) { /* a joiner: it receives number and tick */
		if (!e->admit_seq || e->admit_epoch != e->here.epoch)
			return 0;
		cvy_engine_reach(e, e->admit_seq - 1);
		e->posted = e->admit_seq;
		e->tick = e->admit_tick - 1;
		__atomic_store_n(&e->complete, e->tick, __ATOMIC_RELAXED);
		__atomic_store_n(&e->floor, e->admit_tick > CVY_DEPTH ? e->admit_tick - CVY_DEPTH : 0,
				 __ATOMIC_RELAXED);
		op->seq = e->admit_seq;
		e->past = e->admit_past;
		e->since = e->admit_since;
		e->newcomer = 0; /* a change that let it in may have been undone */
		cvy_set_build(e);
	} else if (!cvy_mask_empty(&e->view->pending)) {
		cvy_set_build(e);
		if (cvy_lowest_admitted(e) == e->here.rank)
			cvy_admit_send(e, op);
	}
	return !__atomic_load_n(&e->here.ended, __ATOMIC_RELAXED); /* 0: no memory for that set */
}

/*
 * After calls that did not match, a tick may belong to different operations, or parts of one, on two ranks. Then the
 * marks do not match either, so bytes of such ticks never mix. An operation that waited for nobody shows its mismatch
 * at the next one (mismatch.c).
 */
static uint32_t mark(const struct cvy_op *op)
{
	return op->sig ^ op->past ^ (uint32_t)((op->seq * CVY_SPREAD + op->first * CVY_SPREAD_MORE) >> 32);
}

/* Gives the operation its tick numbers. 0: it cannot begin yet. */
static int begin(struct cvy_engine *e, struct cvy_op *op)
{
	int rootless;

	if (__atomic_load_n(&e->retiring, __ATOMIC_RELAXED))
		return 0;
	if (op->kind->op_class == CVY_OP_ADMIT && !begin_admit(e, op))
		return 0;
	if (op->seq != e->done + 1)
		return 0;
	rootless = of_root(op) && !covey_mask_has(&e->mask, op->root);
	if (rootless &&
	    !may_enter(e, e->tick + 1)) /* decided at once, but no further ahead of the others than any tick */
		return 0;
	if (e->tick >= TICKS_MAX && !e->wanted)
		cvy_engine_want_change(e, op, "tick numbers run out");
	e->ent = op->seq;
	cvy_op_turn(op, CVY_OP_ENTERED);
	op->first = e->tick + 1;
	op->past = e->past;
	op->mark = mark(op);
	op->call = op->call >> CVY_LAP_BITS << CVY_LAP_BITS | (uint8_t)(op->seq * 16 + op->first);
	if (op->flat_rounds || e->here.set.hosts.n > 1 || e->rules)
		cvy_plan_choose(e, op);
	if (op->kind->op_class == CVY_OP_TO_ROOT && !op->way)
		op->rounds = op->root != e->here.rank && e->here.set.open ? 1 : 2;
	op->entered = op->second = op->completed = op->handed = 0;
	op->scan[0] = op->scan[1] = op->scan[2] = 0;
	op->late = op->lent = 0;
	if (op->kind->counted) /* a removed source may have needed more */
		op->ticks = 0;
	if (op->kind->op_class == CVY_OP_PRIVATE && e->here.some_lost) {
		memset(&e->here.lost, 0, sizeof(e->here.lost));
		e->here.some_lost = 0;
	}
	op->result.status = 0;
	if (rootless) {
		e->tick = op->first;
		e->tick_seq = op->seq;
		__atomic_store_n(&e->complete, e->tick, __ATOMIC_RELAXED);
		cvy_fail(e->here.box, COVEY_ERR_ROOT, op->root, e->here.epoch,
			 "operation %llu: the root is not a member", (unsigned long long)op->seq);
		op->ticks = 1;
		publish(e, op, 0, 1); /* ranks with another call must see it */
		cvy_engine_decide(e, op, COVEY_ERR_ROOT, e->here.epoch, &e->mask, e->here.size);
		cvy_tell_done(e, op, e->tick);
		return 0;
	}
	cvy_lend_begin(e, op);
	save_input(e, op);
	if (e->fault)
		cvy_fault_op(e->fault, op->seq, op->kind->name);
	return 1;
}

/*
 * The tick's lines show what the others completed, unless one was masked as late. So ranks of an operation with a
 * deadline send done words.
 */
static void complete_tick(struct cvy_engine *e, struct cvy_op *op)
{
	uint32_t tick = op->first + (uint32_t)op->completed;
	int waits = op->kind->op_class != CVY_OP_ROOT &&
		    !(op->kind->op_class == CVY_OP_ADMIT && cvy_mask_empty(&e->view->pending));

	assert(op->state == CVY_OP_ENTERED && op->completed < op->entered && op->second <= op->entered);
	if (cvy_lendable(e, op) && cvy_lend_seen(e, op, op->completed)) {
		op->lent = 1;
		if (!op->completed)
			save_input(e, op);
	}
	if (op->kind->look)
		op->kind->look(e, op, op->completed);
	if (e->fault)
		cvy_fault_read(e->fault);
	if (op->kind->consume)
		op->kind->consume(e, op, op->completed);
	if (CVY_GUARDED && cvy_engine_outrun(e)) {
		op->spoiled |= op->input_bytes && !op->undo; /* even of one tick: it is not decided */
		return;
	}
	if (stands_over(op) && !op->undo)
		op->spoiled = 1;
	op->completed++;
	__atomic_store_n(&e->complete, tick, __ATOMIC_RELAXED);
	if (waits && !op->late) {
		if (tick > CVY_DEPTH && e->floor < tick - CVY_DEPTH)
			__atomic_store_n(&e->floor, tick - CVY_DEPTH, __ATOMIC_RELAXED);
		if (e->active && e->passed < op->seq - 1) /* a rank that has entered it has decided all before */
			e->passed = op->seq - 1;
	}
	if (!waits || (op->partial && e->active) || (op->lent && op->completed == op->ticks))
		cvy_tell_done(e, op, tick);
}

/* Has everyone read the lent inputs? */
static int returned(struct cvy_engine *e, const struct cvy_op *op)
{
	uint32_t last = op->first + (uint32_t)op->ticks - 1;

	if (e->repair) /* below base: a member is done with it */
		return 1;
	if (e->floor < last)
		refresh_floor(e);
	return e->floor >= last;
}

static void tell_admitted(struct cvy_engine *e, uint64_t seq)
{
	struct cvy_event ev = { .kind = CVY_EV_ADMITTED, .rank = -1, .number = seq, .epoch = e->here.epoch };

	cvy_post(&e->sink, &ev);
}

/* After an ADMIT with pending ranks: they are members from here on. */
static void admitted(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_view *v = e->view;

	CVY_MASK_EACH(r, &v->pending)
	v->member[r].from = op->seq;
	memset(&v->pending, 0, sizeof(v->pending));
	__atomic_store_n(&e->here.pending, 0, __ATOMIC_RELAXED);
	e->adm = op->seq;
}

static void decide(struct cvy_engine *e, struct cvy_op *op)
{
	int took = op->kind->op_class == CVY_OP_ADMIT && !cvy_mask_empty(&e->view->pending);
	const struct covey_mask *mask = &e->mask;
	uint64_t seq = op->seq;
	struct covey_mask kept;
	int size = e->here.size;

	e->tick = op->first + (uint32_t)op->ticks - 1;
	e->tick_seq = op->seq;
	if (took)
		admitted(e, op);
	if (op->kind->op_class == CVY_OP_ADMIT)
		size = cvy_view_size(e->view, op->seq + 1);
	if (CVY_GUARDED && op->kind->op_class == CVY_OP_PRIVATE && e->here.some_lost) {
		kept = e->mask;
		cvy_mask_sub(&kept, &e->here.lost);
		mask = &kept;
		if (op->kind->whole && !op->result.status) {
			op->result.status = COVEY_ERR_LOST;
			cvy_engine_explain(e, op, COVEY_ERR_LOST);
		}
	}
	cvy_engine_decide(e, op, op->result.status, e->here.epoch, mask, size);
	if (took) {
		cvy_set_build(e);
		tell_admitted(e, seq);
	}
}

/* ---- the ways: what is between the publishing of a tick and its completion ---- */

/* All but the root wait for the root alone: in an operation of a root, and in the second round of one to a root. */
static int flat_needs(const struct cvy_engine *e, const struct cvy_op *op, int k, int round)
{
	if (op->kind->op_class == CVY_OP_ROOT || (op->kind->op_class == CVY_OP_TO_ROOT && round == 2))
		return e->here.set.rank[k] == op->root;
	return 1;
}

static int flat_arrived(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round)
{
	return arrived(e, op, i, round, flat_needs);
}

static int flat_pass(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->rounds != 2)
		return 0;
	if (op->kind->op_class == CVY_OP_TO_ROOT && op->root != e->here.rank)
		op->second = op->entered;
	if (op->second == op->entered || !flat_arrived(e, op, op->second, 1))
		return 0;
	publish(e, op, op->second++, 2);
	return 1;
}

/* Two levels, and the chain: the second round passes on what came from other hosts. */
static int hosts_arrived(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round)
{
	return arrived(e, op, i, round, cvy_hosts_needs);
}

static int hosts_pass(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->second == op->entered || !hosts_arrived(e, op, op->second, 1))
		return 0;
	publish(e, op, op->second++, 2);
	return 1;
}

/* The first round ends with the own fold, the second begins with the result, which comes from the end of the chain. */
static int chain_pass(struct cvy_engine *e, struct cvy_op *op)
{
	int progress = 0;

	if (op->handed < op->entered && hosts_arrived(e, op, op->handed, 1)) {
		cvy_chain_fold(e, op, op->handed++);
		progress = 1;
	}
	if (op->second < op->handed && hosts_arrived(e, op, op->second, 3)) {
		publish(e, op, op->second++, 2);
		progress = 1;
	}
	return progress;
}

static const struct {
	int (*pass)(struct cvy_engine *e, struct cvy_op *op); /* from round to round; 1: progress */
	int (*arrived)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int round);
} ways[] = {
	[CVY_WAY_FLAT] = { flat_pass, flat_arrived },
	[CVY_WAY_HOSTS] = { hosts_pass, hosts_arrived },
	[CVY_WAY_CHAIN] = { chain_pass, hosts_arrived },
};

/* ---- a step ---- */

/* Publishes the next tick, if there is one and its slot is free; 1: progress. */
static int enter(struct cvy_engine *e, struct cvy_op *op)
{
	if (CVY_GUARDED && e->unheard && !op->entered && op->kind->op_class == CVY_OP_ROOT && op->root == e->here.rank)
		refresh_floor(e); /* it waits for nobody again: looks at the others' words about earlier calls */
	if (op->entered >= (op->ticks ? op->ticks : 1) || !may_enter(e, op->first + (uint32_t)op->entered) ||
	    (CVY_GUARDED && e->apart) || (op->behind && !cvy_space_clear(e, op)))
		return 0;
	if (op->kind->op_class != CVY_OP_ROOT || op->root == e->here.rank || !op->entered)
		publish(e, op, op->entered, 1);
	if (op->timeout_ns)
		cvy_late_from_now(e, op);
	op->entered++;
	return 1;
}

/* Completes the next tick, if its last round is here; 1: progress. */
static int complete(struct cvy_engine *e, struct cvy_op *op)
{
	if (op->completed >= (op->rounds == 2 ? op->second : op->entered))
		return 0;
	if (op->kind->look)
		op->kind->look(e, op, op->completed);
	if ((op->kind->op_class != CVY_OP_ADMIT || !cvy_mask_empty(&e->view->pending)) &&
	    !ways[op->way].arrived(e, op, op->completed, op->rounds))
		return 0;
	complete_tick(e, op);
	return 1;
}

int cvy_op_step(struct cvy_engine *e, struct cvy_op *op)
{
	int progress;

	if (CVY_GUARDED && e->outrun)
		return 0;
	if (op->state == CVY_OP_QUEUED && !begin(e, op))
		return op->state == CVY_OP_DECIDED;
	progress = enter(e, op);
	if (CVY_GUARDED && e->apart && !e->repair) {
		cvy_engine_apart(e, op);
		return 0;
	}
	progress |= ways[op->way].pass(e, op);
	progress |= complete(e, op);
	if (op->ticks && op->completed == op->ticks && (!op->lent || returned(e, op)))
		decide(e, op);
	return progress;
}

static int step(struct cvy_engine *e)
{
	int progress;

	if (__atomic_load_n(&e->gate, __ATOMIC_ACQUIRE)) {
		if (e->repair)
			cvy_repair_step(e);
		return e->pairs ? cvy_pairs_step(e) : 0; /* messages do not freeze */
	}
	progress = cvy_engine_look_at_links(e);
	if (e->pairs)
		progress |= cvy_pairs_step(e);
	if (e->head)
		progress |= cvy_op_step(e, e->head);
	return progress;
}

int cvy_engine_step(struct cvy_engine *e)
{
	/* Whoever steps folds, with the same bits on all ranks: not as the thread of a caller rounds or flushes denormals. */
	unsigned floats = CVY_GET_FLOATS(), odd = (floats ^ CVY_PLAIN_FLOATS) & ~CVY_FLOATS_SEEN;
	int progress;

	if (odd)
		CVY_SET_FLOATS(CVY_PLAIN_FLOATS);
	progress = __atomic_load_n(&e->here.ended, __ATOMIC_RELAXED) ? 0 : step(e);
	if (odd)
		CVY_SET_FLOATS(floats);
	if (__builtin_expect(!__atomic_load_n(&e->here.ended, __ATOMIC_RELAXED), 1))
		return progress;
	cvy_engine_look_for_end(e); /* it may have ended by itself: no memory for a set of members */
	return 0;
}
