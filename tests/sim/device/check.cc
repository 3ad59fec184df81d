/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of every operation when it has ended on a rank: what the status word says is alike on all who are in the
 * view (G2), it tells the truth about every byte, by the host engine's own functions (G3), and inputs are intact (G6).
 */
#include "device.h"

#include <string.h>

void check_same(struct process *p, size_t op, const char *of, const void *got, const void *want, size_t bytes)
{
	const uint8_t *g = (const uint8_t *)got, *w = (const uint8_t *)want;

	for (size_t i = 0; i < bytes; i++)
		if (g[i] != w[i]) {
			const struct cvy_gpu_status *s = &p->outcome[op].status;

			WRONG("G3", p, op, "%s: byte %zu is %02x, not %02x (epoch %u, mask %llx, missing %llx)", of, i,
			      g[i], w[i], s->epoch, (unsigned long long)s->mask, (unsigned long long)s->missing);
			return;
		}
}

/* ---- collectives ---- */

static int32_t expected(const struct op *o, const struct step *s, int rank, uint64_t members, size_t i)
{
	size_t block = i / o->count, at = i % o->count;
	uint32_t sum = 0;

	if (o->kind == CVY_GPU_ALLGATHER || o->kind == CVY_GPU_ALLTOALL) {
		size_t from = o->kind == CVY_GPU_ALLTOALL ? (size_t)rank * o->count + at : at;

		return members >> block & 1 ? s->given[block].send[from] : 0;
	}
	if (cvy_gpu_is_broadcast(o->kind))
		return s->given[o->call.root].send[at];
	if (cvy_gpu_is_reduce(o->kind) && rank != o->call.root) /* untouched */
		return (int32_t)(POISON * 0x01010101u);
	for (int r = 0; r < setup.size; r++)
		if (members >> r & 1)
			sum += (uint32_t)s->given[r]
				       .send[o->kind == CVY_GPU_REDUCE_SCATTER ? (size_t)rank * o->count + at : at];
	return (int32_t)sum;
}

static void check_plain(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct step *step = &steps[o->step];
	struct buffers *b = &p->buffers[o->step];
	const int32_t *got = (const int32_t *)b->at[o->in_place >> p->rank & 1 ? SEND : RECV];
	int blocks = o->kind == CVY_GPU_ALLGATHER || o->kind == CVY_GPU_ALLTOALL ? setup.size : 1;

	if (s->missing && !cvy_gpu_is_private(o->kind))
		WRONG("G3", p, op, "is not private and lacks %llx", (unsigned long long)s->missing);
	for (size_t i = 0; i < o->count * (size_t)blocks; i++) {
		int32_t want = expected(o, step, p->rank, (s->mask & ~s->missing), i);

		if (got[i] != want) {
			check_same(p, op, "recv", &got[i], &want, 4);
			return;
		}
	}
}

/* What lies between blocks stays as it was. */
static void check_uneven(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const int32_t *got = (const int32_t *)p->buffers[o->step].at[RECV];

	for (int r = 0; r < setup.size; r++) {
		const int32_t *from = &steps[o->step].given[r].send[(size_t)p->rank * o->count];
		size_t at, n = plan_pair(o, r, p->rank, &at);

		for (size_t i = 0; i < o->count; i++) {
			int here = (s->mask & ~s->missing) >> r & 1;
			int32_t want = i - at < n ? (here ? from[i] : 0) : (int32_t)(POISON * 0x01010101u);

			if (got[(size_t)r * o->count + i] == want)
				continue;
			sim_tell("rank %d, operation %zu: element %zu of the block of rank %d, which begins at %zu and "
				 "has %zu",
				 p->rank, op, i, r, at, n);
			check_same(p, op, "recv", &got[(size_t)r * o->count + i], &want, 4);
			return;
		}
	}
}

/* ---- all ---- */

static void check_buffers(struct process *p, size_t op)
{
	const struct op *o = &plan[op];
	struct buffers *b = &p->buffers[o->step];
	const struct given *g = &steps[o->step].given[p->rank];

	for (int i = 0; i < PARTS; i++)
		for (int j = 0; j < CANARY; j++)
			if (b->at[i][-1 - j] != POISON &&
			    (i == 0 || b->at[i] - 1 - j >= b->at[i - 1] + b->bytes[i - 1])) {
				WRONG("G3", p, op, "a canary before part %d died", i);
				return;
			}
	if (!g->x.empty() &&
	    (memcmp(b->at[X], g->x.data(), b->bytes[X]) || memcmp(b->at[IDS], g->ids.data(), b->bytes[IDS])))
		WRONG("G6", p, op, "inputs are changed");
	if (!g->send.empty() && !(o->in_place >> p->rank & 1) && memcmp(b->at[SEND], g->send.data(), b->bytes[SEND]))
		WRONG("G6", p, op, "inputs are changed");
}

/* What a rank lacks of an operation of which each has a part of its own is its own loss. */
static int same_status(size_t op, const struct cvy_gpu_status *a, const struct cvy_gpu_status *b)
{
	return a->status == b->status || (cvy_gpu_is_private(plan[op].kind) && a->missing != b->missing);
}

/* An ADMIT that takes it in has no outcome for a newcomer but the number. */
static int comes_with(const struct process *p, size_t op)
{
	return plan[op].kind == CVY_GPU_ADMIT && p->first == op;
}

static int is_in(const struct process *p)
{
	return p->alive && process_of(p->rank) == p && !process_leaves(p);
}

/* Who has left by itself had the outcomes of those who are left. */
static void check_alike(struct process *p, size_t op)
{
	const struct cvy_gpu_status *mine = &p->outcome[op].status;

	for (struct process *q : processes) {
		const struct cvy_gpu_status *theirs;

		if (q == p || !(same_view(p, q) || (q->left && is_in(p))) || q->outcome.size() <= op ||
		    !q->outcome[op].done)
			continue;
		theirs = &q->outcome[op].status;
		if ((comes_with(p, op) || comes_with(q, op)) && mine->op == theirs->op)
			continue;
		if (!same_status(op, mine, theirs) || mine->epoch != theirs->epoch || mine->op != theirs->op ||
		    mine->mask != theirs->mask)
			sim_fail("G2",
				 "operation %zu of kind %d: rank %d has status %d epoch %u number %llu mask %llx, rank "
				 "%d has %d, %u, %llu, %llx",
				 op, plan[op].kind, p->rank, mine->status, mine->epoch, (unsigned long long)mine->op,
				 (unsigned long long)mine->mask, q->rank, theirs->status, theirs->epoch,
				 (unsigned long long)theirs->op, (unsigned long long)theirs->mask);
	}
}

/* ---- views ---- */

struct words { /* with which the members of a view go on */
	int known;
	uint64_t base;
	uint64_t mask;
	uint64_t members;
	int width; /* ranks of a host, in operations of two levels */
};
static std::vector<struct words> words; /* by epoch */

void check_begin(void)
{
	words.clear();
}

static const struct member_view *view_of(uint32_t epoch)
{
	return epoch && epoch <= committed.size() ? &committed[epoch - 1] : NULL;
}

/*
 * G1: an outcome names a committed view that this rank has learned and was a member of, and none before that of the operation
 * before. Contributors are members of that view, and who is missing is one of them.
 */
static void check_view(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct member_view *v = view_of(s->epoch);
	uint32_t before = 0;

	for (size_t i = 0; i < op; i++)
		if (p->outcome[i].done && p->outcome[i].status.epoch > before)
			before = p->outcome[i].status.epoch;
	if (!v || s->epoch > p->learned->epoch || s->epoch < before || !(v->members >> p->rank & 1) ||
	    v->inc[p->rank] != p->inc)
		sim_fail("G1",
			 "rank %d.%d, operation %zu of kind %d: epoch %u is of no view of this rank, which has learned "
			 "%u and had an outcome of %u",
			 p->rank, (int)p->inc, op, plan[op].kind, s->epoch, p->learned->epoch, before);
	else if (s->mask & ~(uint64_t)v->members || s->missing & ~s->mask)
		WRONG("G1", p, op, "epoch %u has members %llx, mask %llx, missing %llx", s->epoch,
		      (unsigned long long)v->members, (unsigned long long)s->mask, (unsigned long long)s->missing);
}

/* G1: all members of a view go on from the same operation, and with the same contributors. */
void check_words(const struct process *p)
{
	const struct cvy_device *d = p->device;
	struct words *w;

	if (words.size() <= p->learned->epoch)
		words.resize(p->learned->epoch + 1);
	w = &words[p->learned->epoch];
	if (!w->known) {
		*w = { 1, d->verdict.base, low_ranks(d->lanes[0].mask), low_ranks(d->roll.members),
		       CVY_GPU_WIDTH(d->lanes[0].failed) };
		return;
	}
	if (w->width != CVY_GPU_WIDTH(d->lanes[0].failed))
		sim_fail("G1", "rank %d.%d goes on in epoch %u with hosts of %d ranks, another with hosts of %d",
			 p->rank, (int)p->inc, p->learned->epoch, CVY_GPU_WIDTH(d->lanes[0].failed), w->width);
	if (w->base != d->verdict.base || w->mask != low_ranks(d->lanes[0].mask) ||
	    w->members != low_ranks(d->roll.members))
		sim_fail("G1",
			 "rank %d.%d goes on in epoch %u from operation %llu with contributors %llx of %llx, another "
			 "from %llu with %llx of %llx",
			 p->rank, (int)p->inc, p->learned->epoch, (unsigned long long)d->verdict.base,
			 (unsigned long long)low_ranks(d->lanes[0].mask),
			 (unsigned long long)low_ranks(d->roll.members), (unsigned long long)w->base,
			 (unsigned long long)w->mask, (unsigned long long)w->members);
}

/* Nobody is missing for nothing: without deadlines, only who is no member any more. */
static void check_missing(struct process *p, size_t op)
{
	const struct cvy_gpu_status *s = &p->outcome[op].status;
	const uint64_t left_out = app_left_out(&plan[op], p->rank);
	int all_here = 1;

	for (const struct process *q : processes)
		all_here &= q->alive && q->out == OUT_NOT && !q->ever_slow;
	/* A dispatch of several steps that is completed after a change is empty, and says so. */
	all_here &= setup.form[0].steps == 1 || view.epoch == 1 || setup.shape.hops;
	for (size_t i = 0; i <= op; i++)
		all_here &= !plan[i].timeout_ms;
	if (left_out & s->mask & ~s->missing)
		WRONG("G3", p, op, "%llx are left out, and only %llx are missing", (unsigned long long)left_out,
		      (unsigned long long)s->missing);
	if (s->missing & ~left_out && all_here)
		WRONG("G3", p, op, "%llx are missing, and all are here", (unsigned long long)s->missing);
	if (s->missing && setup.shape.hops && (plan[op].kind == CVY_GPU_DISPATCH || plan[op].kind == CVY_GPU_COMBINE))
		WRONG("G3", p, op, "%llx are missing over two hops", (unsigned long long)s->missing);
	if (!(s->mask >> p->rank & 1))
		WRONG("G3", p, op, "its mask is %llx", (unsigned long long)s->mask);
}

/* Has @q gone on without rank @rank from an operation with a deadline, or may it have done so from a step of one? */
static int went_on(const struct process *q, size_t op, int rank)
{
	const int combine = plan[op].kind == CVY_GPU_COMBINE;

	if (op < q->next && app_left_out(&plan[op], q->rank) >> rank & 1)
		return 1;
	if (!plan[op].timeout_ms || op >= q->next)
		return 0;
	if (op == q->completed && (combine || plan[op].kind == CVY_GPU_DISPATCH))
		return setup.form[combine].steps > 1;
	return op + 1 < q->next && op < q->outcome.size() && (q->outcome[op].without >> rank & 1);
}

/*
 * Nobody gives up but who is in an operation without a deadline while another has gone on, without it, from a later one that
 * has a deadline.
 */
void check_gives_up(const struct process *p, const char *why)
{
	size_t at = p->completed;

	sim_tell("rank %d.%d gives up in %zu: %s", p->rank, (int)p->inc, at, why);
	for (const struct process *q : processes)
		for (size_t op = at + 1; op < plan.size() && op < q->next; op++)
			if (!plan[at].timeout_ms && q->rank != p->rank && went_on(q, op, p->rank))
				return;
	sim_fail("G5", "rank %d gives up: %s", p->rank, why);
}

static int lacks_root(const struct op *o, const struct cvy_gpu_status *s)
{
	return (cvy_gpu_is_broadcast(o->kind) || cvy_gpu_is_reduce(o->kind)) && !(s->mask >> o->call.root & 1);
}

/* Of a dispatch that has no outcome: its counts are written, and within their buffers. */
static void check_no_rows(const struct process *p, size_t op)
{
	const struct buffers *b = &p->buffers[plan[op].step];

	for (size_t e = 0; e < b->bytes[COUNT] / 4; e++)
		if (((const uint32_t *)b->at[COUNT])[e] > app_kept(p->rank))
			WRONG("G5", p, op, "has no outcome, and %#x rows of expert %zu",
			      ((const uint32_t *)b->at[COUNT])[e], e);
}

void check_ended(struct process *p, size_t op)
{
	struct cvy_gpu_status *s = &p->outcome[op].status;
	const struct op *o = &plan[op];

	if (p->device->ended && o->kind == CVY_GPU_DISPATCH && o->phase != CVY_EP_SEND)
		check_no_rows(p, op);
	if (p->device->ended || o->phase == CVY_EP_SEND)
		return;
	p->device->ops->status_read(p->device->gpu, s);
	p->outcome[op].without = s->missing;
	if (p->out != OUT_NOT)
		return;
	p->outcome[op].done = 1;
	sim_tell("rank %d.%d has %zu: status %d epoch %u number %llu mask %llx missing %llx", p->rank, (int)p->inc, op,
		 s->status, s->epoch, (unsigned long long)s->op, (unsigned long long)s->mask,
		 (unsigned long long)s->missing);
	check_alike(p, op);
	check_view(p, op);
	check_missing(p, op);
	check_buffers(p, op);
	if (s->status == COVEY_ERR_LOST || (s->status == COVEY_ERR_ROOT && lacks_root(o, s)))
		return;
	if (s->status || lacks_root(o, s))
		WRONG("G5", p, op, "ends with %d", s->status);
	else if (o->kind == CVY_GPU_DISPATCH)
		check_dispatch(p, op);
	else if (o->kind == CVY_GPU_COMBINE)
		check_combine(p, op);
	else if (o->kind == CVY_GPU_ALLTOALLV)
		check_uneven(p, op);
	else if (o->kind != CVY_GPU_ADMIT && o->kind != CVY_GPU_BARRIER)
		check_plain(p, op);
}
