/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view change as the device sees it (device.h): freeze, fences, exchange of numbers, thaw. Packets of removed ranks
 * are in device_packets.c. Agent's thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "device_state.h"
#include "log.h"

#define FREEZE_MS 2000	 /* if kernels do not stop by then, the rank gives up */
#define FREEZE_SPIN_MS 2 /* of these the agent waits without a break */

/* ---- freeze ---- */

/* Has the operation under way, if one is, replaced inputs that it would need again? */
static uint32_t spoiled(const struct cvy_device *d)
{
	const struct cvy_gpu_counters *c = &d->counters;
	uint64_t op = c->finished / CVY_GPU_QUANTA;

	return c->entered > op * CVY_GPU_QUANTA && c->parked.spoiled == op + 1;
}

enum still { MOVES, STILL, BROKEN };

/* Has every kernel that has entered ended or parked, and left if it is the application's? @all: lanes are read, too. */
static enum still stands_still(struct cvy_device *d, int all)
{
	const struct cvy_gpu_counters *c = &d->counters;

	if (d->ops->counters(d->gpu, &d->counters, all)) {
		cvy_device_broken(d, "the counters of the device");
		return BROKEN;
	}
	return c->finished + c->stopped == c->entered && !c->guests ? STILL : MOVES;
}

static void do_not_stop(struct cvy_device *d)
{
	cvy_device_give_up(d, COVEY_ERR_TIMEOUT, d->rank, d->epoch,
			   "kernels of this rank do not stop, or one of the application is still inside");
}

static void take_turn(struct cvy_device *d, enum cvy_device_turn turn)
{
	pthread_mutex_lock(&d->lock);
	d->phase = cvy_device_next(d->phase, turn);
	pthread_mutex_unlock(&d->lock);
}

/* Posts an event of the engine that hold_back() kept, if the device has come as far. */
static void release(struct cvy_device *d, struct cvy_event *held)
{
	struct cvy_event ev = { .kind = 0 };

	pthread_mutex_lock(&d->lock);
	if (held->kind && !cvy_device_holds_back(d->phase, held->kind)) {
		ev = *held;
		held->kind = 0;
	}
	pthread_mutex_unlock(&d->lock);
	if (ev.kind)
		cvy_post(&d->agent, &ev);
}

static void forget_repaired(struct cvy_device *d)
{
	pthread_mutex_lock(&d->lock);
	d->held_repaired.kind = 0;
	pthread_mutex_unlock(&d->lock);
}

static void try_freeze(void *ctx)
{
	struct cvy_device *d = ctx;
	uint64_t until = cvy_now_ns() + FREEZE_SPIN_MS * CVY_MS;
	enum still still;

	d->timer = NULL;
	do
		still = stands_still(d, 0);
	while (still == MOVES && cvy_now_ns() < until);
	if (still == MOVES && cvy_now_ns() - d->freeze_ns < FREEZE_MS * CVY_MS) {
		d->timer = cvy_loop_timer(d->loop, cvy_now_ns() + CVY_MS, try_freeze, d);
		return;
	}
	take_turn(d, still == STILL ? CVY_DEVICE_STOOD : CVY_DEVICE_STOOD_NOT);
	if (still == MOVES)
		do_not_stop(d);
	if (still != STILL || stands_still(d, 1) == BROKEN)
		return;
	if (d->counters.finished / CVY_GPU_QUANTA >= d->lags)
		cvy_device_forget_packets(d);
	cvy_device_forget_retired(d);
	release(d, &d->held_frozen);
}

/* If there was no memory for a timer, the next tick serves as one. */
void cvy_device_go_on(struct cvy_device *d)
{
	if (d->phase == CVY_DEVICE_STOPS && !d->timer)
		try_freeze(d);
	else if (d->phase >= CVY_DEVICE_STANDS && !d->queues.timer)
		cvy_device_reconcile(d);
}

void cvy_device_freeze(struct cvy_device *d, uint32_t epoch)
{
	(void)epoch;
	forget_repaired(d);
	if (d->phase != CVY_DEVICE_RUNS) {
		take_turn(d, CVY_DEVICE_FREEZE);
		return;
	}
	if (d->ops->gate(d->gpu, CVY_GPU_GATE_CLOSED(d->epoch))) {
		cvy_device_broken(d, "closing the gate of the device");
		return;
	}
	take_turn(d, CVY_DEVICE_FREEZE);
	d->lags_ns = 0;
	d->freeze_ns = cvy_now_ns();
	try_freeze(d);
}

/* ---- a view is learned: fences, then the exchange of numbers ---- */

/* A message that is lost with its link is sent again when the link is up, or another view follows. */
static void say_have(struct cvy_device *d, int rank)
{
	struct cvy_device_have *h = &d->peer[d->rank].have;

	d->send(d->send_ctx, rank, d->view->member[rank].inc, CVY_MSG_HAVE, d->view->epoch, h, sizeof(*h), -1);
}

static void own_have(struct cvy_device *d)
{
	struct cvy_device_peer *p = &d->peer[d->rank];
	struct cvy_device_have *h = &p->have;

	memset(h, 0, sizeof(*h));
	h->op = d->counters.finished / CVY_GPU_QUANTA;
	/* Words are of the last view that was active here: a removed rank's successor is no contributor. */
	h->mask = cvy_ranks_but(cvy_device_contributors(d), cvy_device_removed(d));
	h->fresh = !cvy_ranks_any(h->mask);
	if (!h->fresh && h->op < d->begin) /* its kernel does not know it yet */
		h->op = d->begin;
	h->spoiled = spoiled(d);
	h->width = cvy_device_own_width(d);
	cvy_device_tell_eras(d, h);
	p->have_epoch = d->view->epoch;
}

/* For kernels: the first member of each member's host. Alike on all ranks, unlike the ways that memory is mapped. */
static void note_hosts(struct cvy_device *d)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		int first = r;

		CVY_MASK_EACH(q, &d->view->members)
		if (q < first && covey_mask_has(&d->view->members, r) &&
		    cvy_device_host_of(d, q) == cvy_device_host_of(d, r))
			first = q;
		d->roll.host[r] = (uint8_t)first;
	}
}

/* Notes ranks whose process a view lists for the first time: an ADMIT that is called later may count them in. */
static void note_arrivals(struct cvy_device *d)
{
	cvy_ranks members = cvy_device_mask(&d->view->members);

	pthread_mutex_lock(&d->lock);
	CVY_MASK_EACH(r, &d->view->members)
	{
		struct cvy_device_peer *p = &d->peer[r];
		uint64_t inc = d->view->member[r].inc;

		if (p->arrivals && p->arrival[(p->arrivals - 1) % CVY_DEVICE_ARRIVALS].inc == inc)
			continue;
		p->arrival[p->arrivals++ % CVY_DEVICE_ARRIVALS] = (struct cvy_device_arrival){ inc, d->view->epoch, 0 };
		d->roll.since[r] = d->view->epoch;
		d->contributors = cvy_ranks_without(d->contributors, r);
	}
	d->roll.members = members;
	d->contributors = cvy_ranks_and(d->contributors, members);
	pthread_mutex_unlock(&d->lock);
}

/* A founder needs no ADMIT. A rank that begins the group again still calls the safe point that let it in. */
static void count_all(struct cvy_device *d, cvy_ranks mask)
{
	pthread_mutex_lock(&d->lock);
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (cvy_ranks_has(mask, r) && !d->view->member[r].from)
			d->peer[r].arrival[(d->peer[r].arrivals - 1) % CVY_DEVICE_ARRIVALS].counted = 1;
	d->contributors = cvy_ranks_or(d->contributors, mask);
	pthread_mutex_unlock(&d->lock);
}

void cvy_device_learn(struct cvy_device *d, const struct cvy_view *view, const struct covey_mask *removed)
{
	cvy_ranks left = cvy_device_mask(removed), lost;

	if (!d->view)
		d->view = cvy_view_dup(view);
	else
		cvy_view_copy(d->view, view);
	if (!d->view) {
		cvy_device_give_up(d, COVEY_ERR_NOMEM, d->rank, view->epoch, "no memory for a view of the device");
		return;
	}
	if (cvy_mask_next(&view->members, CVY_GPU_RANKS) >= 0) {
		cvy_device_give_up(
			d, COVEY_ERR_UNSUPPORTED, cvy_mask_next(&view->members, CVY_GPU_RANKS), view->epoch,
			"device: a group with devices has at most %d ranks, 0 to %d: more need COVEY_DEVICE=none",
			CVY_GPU_RANKS, CVY_GPU_RANKS - 1);
		return;
	}
	if (d->phase == CVY_DEVICE_RUNS) /* a first view: nothing runs, and the gate was never open */
		cvy_device_freeze(d, view->epoch);
	lost = cvy_ranks_and(left, cvy_device_contributors(d));
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		/* A later rank that came before the device was thawed may leave too, with an empty chunk. */
		if (cvy_ranks_has(cvy_ranks_but(lost, cvy_device_removed(d)), r))
			d->peer[r].left = d->peer[r].in;
		if (cvy_ranks_has(left, r))
			cvy_device_forget_outrun(d, r);
		if (cvy_ranks_has(left, r))
			cvy_device_queue_fence(d, r);
		if (cvy_ranks_has(left, r) && d->peer[r].inc && cvy_device_fresh_chunk(d, r))
			cvy_device_broken(d, "a fence");
	}
	cvy_device_gone_turn(d, lost, CVY_GONE_REMOVE);
	cvy_device_gone_turn(d, cvy_ranks_all(), CVY_GONE_UNASK);
	take_turn(d, CVY_DEVICE_LEARN);
	own_have(d);
	note_arrivals(d);
	note_hosts(d);
	CVY_MASK_EACH(r, &view->members)
	if (r != d->rank)
		say_have(d, r);
	cvy_device_reconcile(d);
}

/* Ranks that have taken part, and the most operations that one of them has completed. */
static cvy_ranks taken_part(const struct cvy_device *d, cvy_ranks members, uint64_t *base, int *holder)
{
	cvy_ranks old = cvy_ranks_none();

	*base = 0;
	*holder = -1;
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		const struct cvy_device_have *h = &d->peer[r].have;

		if (!cvy_ranks_has(members, r) || h->fresh)
			continue;
		old = cvy_ranks_with(old, r);
		if (*holder < 0 || h->op > *base) {
			*base = h->op;
			*holder = r;
		}
	}
	return old;
}

/*
 * If no member has taken part: the ranks that were let in first. If all earlier ranks are gone, the others' ADMITs are
 * still in their streams, behind operations that later ranks do not call.
 */
static cvy_ranks founders(const struct cvy_device *d, cvy_ranks members)
{
	cvy_ranks first = cvy_ranks_none();
	uint64_t from = CVY_PENDING;

	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		if (!cvy_ranks_has(members, r) || d->view->member[r].from > from)
			continue;
		first = d->view->member[r].from < from ? cvy_ranks_none() : first;
		from = d->view->member[r].from;
		first = cvy_ranks_with(first, r);
	}
	return first;
}

/*
 * Contributors and base of the next words, from all members' numbers, so the same on all. Newcomers count if a member
 * has completed the ADMIT that lets them in: the others complete it too.
 */
static void conclude(struct cvy_device *d, cvy_ranks *mask, uint64_t *base, int *holder, uint32_t *fail)
{
	cvy_ranks members = cvy_device_mask(&d->view->members);
	cvy_ranks old = taken_part(d, members, base, holder);

	*fail = 0;
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		const struct cvy_device_have *h = &d->peer[r].have;

		if (cvy_ranks_has(old, r) && h->spoiled && h->op == *base)
			*fail = CVY_GPU_FAILS;
	}
	*mask = cvy_ranks_any(old) ? cvy_ranks_and(d->peer[*holder].have.mask, members)
				   : founders(d, cvy_ranks_but(members, cvy_device_mask(&d->view->pending)));
}

void cvy_device_tell_repaired(struct cvy_device *d)
{
	if (d->phase == CVY_DEVICE_FETCHES && !cvy_device_awaits_packets(d))
		take_turn(d, CVY_DEVICE_FETCHED);
	release(d, &d->held_repaired);
}

static cvy_generations generations(const struct cvy_device *d, int out)
{
	cvy_generations all = cvy_generations_none();

	for (int r = 0; r < CVY_GPU_RANKS; r++)
		all = cvy_generations_with(all, r, out ? d->peer[r].out : d->peer[r].in);
	return all;
}

/* Is all memory of @rank mapped that kernels use? */
static int reaches(const struct cvy_device *d, int rank, uint64_t inc)
{
	const struct cvy_device_peer *p = &d->peer[rank];

	return p->out_inc == inc && (!d->window_bytes || p->window_inc == inc);
}

static void look_again(void *ctx)
{
	struct cvy_device *d = ctx;

	d->queues.timer = NULL;
	cvy_device_reconcile(d);
}

static void reconcile_soon(struct cvy_device *d)
{
	if (!d->queues.timer)
		d->queues.timer = cvy_loop_timer(d->loop, cvy_now_ns() + CVY_MS / 5, look_again, d);
}

/*
 * A kernel that enters behind the gate pushes before it knows. So others may have completed an operation that had not
 * been entered here when the device froze. The lacking steps are read when the kernel has parked; 0: later.
 */
static int knows_what_it_lacks(struct cvy_device *d)
{
	uint64_t now = cvy_now_ns(), entered;
	enum still still = stands_still(d, 1);

	entered = d->counters.entered;
	if (still == STILL) /* no kernel entered while that was read */
		still = stands_still(d, 0);
	if (still == STILL && d->counters.entered == entered) {
		d->lags_ns = 0;
		return 1;
	}
	if (!d->lags_ns)
		d->lags_ns = now;
	if (now - d->lags_ns > FREEZE_MS * CVY_MS)
		do_not_stop(d);
	else if (still != BROKEN)
		reconcile_soon(d);
	return 0;
}

/* @begins: takes the others' number and counts for this rank. */
static void set_lanes(struct cvy_device *d, cvy_ranks mask, uint32_t fail, int begins)
{
	for (int i = 0; i < CVY_GPU_LANES; i++) {
		const struct cvy_gpu_lane *was = &d->counters.lane[i];
		uint32_t count = begins ? d->admitted.count[i] : was->count;
		uint32_t late = was->failed & CVY_GPU_LATE;

		d->lanes[i] = (struct cvy_gpu_lane){ count,	  d->view->epoch,    mask,
						     fail | late, generations(d, 0), generations(d, 1) };
	}
}

/* This rank lacks @op, which others have completed: is its era known? 0: no, and this rank gives up. */
static int knows_how_it_ended(struct cvy_device *d, uint64_t op)
{
	if (cvy_gpu_era_of(&d->roll, op).epoch)
		return 1;
	cvy_device_give_up(d, COVEY_ERR_FENCED, d->rank, d->epoch,
			   "others completed device operation %llu more than %d changes of the view before this rank",
			   (unsigned long long)op, CVY_GPU_ERAS);
	return 0;
}

/*
 * CTAs of operation @base have ended here, others have not entered it, and none waits to do their lanes again. So
 * nobody has completed it, and all of it is done by this view's words; CTAs that enter do this.
 */
static int is_partly_done(const struct cvy_device *d, uint64_t base)
{
	const struct cvy_gpu_counters *c = &d->counters;

	return c->finished % CVY_GPU_QUANTA && c->finished / CVY_GPU_QUANTA == base && !c->stopped;
}

/* Own words of the view: contributors, first operation, and the holder of earlier ones. 0: not yet, or never. */
static int settle(struct cvy_device *d, cvy_ranks mask, uint64_t base, int holder, uint32_t fail)
{
	const struct cvy_device_have *h = &d->peer[d->rank].have;
	int begins = h->fresh && cvy_ranks_has(mask, d->rank);
	uint64_t own = begins ? cvy_device_first_operation(d, holder) : h->op;
	uint32_t partly = !h->fresh && is_partly_done(d, base);
	cvy_ranks gone = cvy_device_removed(d);

	d->lags = (begins || !h->fresh) && own < base ? base : 0;
	if (d->lags && !knows_what_it_lacks(d))
		return 0;
	cvy_device_take_eras(d, holder, base, mask, fail & CVY_GPU_FAILS);
	if (d->lags && !knows_how_it_ended(d, own))
		return 0;
	if (d->lags) /* it may have had no words of ranks that came and left since */
		gone = cvy_ranks_or(gone, cvy_ranks_but(cvy_device_named_since(d, own), mask));
	if (begins)
		d->begin = d->roll.begin = own;
	d->verdict = (struct cvy_gpu_verdict){ .epoch = d->view->epoch, .base = base, .gone = gone, .partly = partly };
	set_lanes(d, mask, d->lags || partly ? fail | CVY_GPU_LAGS : fail, begins);
	return 1;
}

void cvy_device_reconcile(struct cvy_device *d)
{
	uint32_t fail;
	cvy_ranks mask;
	uint64_t base;
	int holder;

	if (!d->view || d->phase != CVY_DEVICE_STANDS)
		return;
	CVY_MASK_EACH(r, &d->view->members)
	if (d->peer[r].have_epoch != d->view->epoch || (r != d->rank && !reaches(d, r, d->view->member[r].inc)))
		return;
	if (!cvy_device_queues_idle(d)) { /* memory that is still being put must not be written again */
		reconcile_soon(d);
		return;
	}
	conclude(d, &mask, &base, &holder, &fail);
	if (cvy_device_any_far(d))
		fail |= CVY_GPU_FAR;
	fail |= cvy_device_settle_width(d) << CVY_GPU_WIDTH_SHIFT;
	if (!settle(d, mask, base, holder, fail))
		return;
	if (holder < 0)
		count_all(d, mask);
	take_turn(d, CVY_DEVICE_SETTLE);
	if (d->lags && !d->peer[d->rank].have.fresh) /* a rank that has begun nothing has nothing under way */
		cvy_device_ask(d, holder);
	cvy_device_tell_repaired(d);
}

static void got_have(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];

	if (msg->bytes != sizeof(p->have)) {
		cvy_warn("device", "rank %d tells its progress in %u bytes instead of %zu", msg->rank, msg->bytes,
			 sizeof(p->have));
		return;
	}
	memcpy(&p->have, msg->body, sizeof(p->have));
	if (p->have.eras > CVY_GPU_ERAS) {
		cvy_warn("device", "rank %d tells of %u eras instead of %d at most", msg->rank, p->have.eras,
			 CVY_GPU_ERAS);
		p->have.eras = CVY_GPU_ERAS;
	}
	p->have_epoch = msg->epoch;
	cvy_device_reconcile(d);
}

/* ---- thaw, end ---- */

void cvy_device_thaw(struct cvy_device *d)
{
	int err = d->ops->words(d->gpu, d->lanes, &d->roll, &d->verdict);

	if (!err)
		err = d->ops->gate(d->gpu, d->leaving.shut ? CVY_GPU_GATE_CLOSED(d->view->epoch)
							   : CVY_GPU_GATE_OPEN(d->view->epoch));
	if (err) {
		cvy_device_broken(d, "opening the gate of the device");
		return;
	}
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (covey_mask_has(&d->view->members, r))
			d->peer[r].in_named = d->peer[r].out_named = 1;
	take_turn(d, CVY_DEVICE_THAW);
	d->thaws++;
	d->epoch = d->view->epoch;
}

/*
 * Kernels that were launched before the end enter after it, and push before they look. The operation under way did not
 * end, so they would begin it. Their packets would replace its packets, under its tag, where others have completed it
 * and keep them for a laggard. By these words a lane has no peers and belongs to no view.
 */
static void end_lanes(const struct cvy_device *d, struct cvy_gpu_lane *lanes)
{
	for (int i = 0; i < CVY_GPU_LANES; i++)
		lanes[i] = (struct cvy_gpu_lane){ 0, d->epoch + 1,	cvy_ranks_one(d->rank),
						  0, generations(d, 0), generations(d, 1) };
}

void cvy_device_stop(struct cvy_device *d, int err)
{
	struct cvy_gpu_verdict end = { .epoch = UINT32_MAX, .ended = err };
	struct cvy_gpu_lane lanes[CVY_GPU_LANES];

	if (__atomic_exchange_n(&d->ended, err, __ATOMIC_ACQ_REL))
		return;
	cvy_device_queues_stop(d);
	end_lanes(d, lanes);
	if (d->ops->gate(d->gpu, CVY_GPU_GATE_CLOSED(d->epoch)) || d->ops->words(d->gpu, lanes, NULL, &end))
		cvy_warn("device", "ending the kernels: %s", d->ops->why(d->gpu));
}

/* ---- messages and news that pass by on their way to the agent ---- */

static int for_device(const struct cvy_event *ev)
{
	return ev->kind == CVY_EV_MSG && ev->msg.type >= CVY_MSG_CHUNK && ev->msg.type <= CVY_MSG_PASSED;
}

static void got(struct cvy_device *d, const struct cvy_msg *msg)
{
	if (msg->rank < 0 || msg->rank >= CVY_GPU_RANKS)
		return;
	switch (msg->type) {
	case CVY_MSG_CHUNK:
		cvy_device_got_chunk(d, msg);
		cvy_device_reconcile(d);
		break;
	case CVY_MSG_QUEUE:
		cvy_device_got_queue(d, msg);
		break;
	case CVY_MSG_HAVE:
		got_have(d, msg);
		break;
	case CVY_MSG_WANT:
		cvy_device_got_want(d, msg);
		break;
	case CVY_MSG_PASSED:
		cvy_device_got_passed(d, msg);
		break;
	default:
		cvy_device_got_slots(d, msg);
	}
}

/*
 * The engine's FROZEN and REPAIRED (cvy_post_after_device) go on to the agent when the device has come as far:
 * release(). REPAIRED comes from the thread that stepped the repair, and the device may become ready at that moment.
 */
static int hold_back(struct cvy_device *d, const struct cvy_event *ev)
{
	int holds;

	pthread_mutex_lock(&d->lock);
	holds = cvy_device_holds_back(d->phase, ev->kind);
	if (holds)
		*(ev->kind == CVY_EV_FROZEN ? &d->held_frozen : &d->held_repaired) = *ev;
	pthread_mutex_unlock(&d->lock);
	return holds;
}

static void sink(void *ctx, const struct cvy_event *ev)
{
	struct cvy_device *d = ctx;

	if (for_device(ev)) {
		got(d, &ev->msg);
		return;
	}
	if (hold_back(d, ev))
		return;
	if (ev->kind == CVY_EV_LINK_UP && ev->rank >= 0 && ev->rank < CVY_GPU_RANKS) {
		cvy_device_send_chunk(d, ev->rank, ev->inc);
		if (d->view && d->phase >= CVY_DEVICE_STANDS && covey_mask_has(&d->view->members, ev->rank) &&
		    d->view->member[ev->rank].inc == ev->inc)
			say_have(d, ev->rank);
	}
	cvy_post(&d->agent, ev);
}

struct cvy_sink cvy_device_sink(struct cvy_device *d)
{
	return (struct cvy_sink){ sink, d };
}
