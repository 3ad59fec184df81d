/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong: drawn when the seed begins, each at a moment of its own: some time after a rank has called an operation, or
 * in a phase of a change, where it hurts. And who comes in where a rank is free.
 *
 * In a *crowded* run (a seed of four) they come close together. Before a rank is struck others are held back until about
 * when their gates close: so it has sent what they have not asked for yet, and they enter behind the gate what others, told
 * to stand still much later, complete with what these send even so. The next strike follows in a phase of the change, and
 * newcomers come as soon as a view is active.
 */
#include "device.h"

enum fault_kind { KILL, STOP, STOP_FOR_LONG, STALL, EVICT, KINDS, LEAVE };

struct fault {
	int kind, rank, fired;
	size_t at_op;
	const char *phase; /* instead of an operation */
	int at_end;	   /* when another has ended the operation: the others lack what was on its way to them */
	uint64_t delay;
	uint64_t holds; /* ranks */
};

static std::vector<struct fault> faults;
static int joins, asleep;

/* Without @but; nobody who is pending decides a view, so in the end somebody else is there. */
static int stay(int but)
{
	int n = 0;

	for (int r = 0; r < setup.size; r++) {
		struct process *p = process_of(r);

		if (view.pending >> r & 1)
			continue;
		n += r != but && p && p->alive && !p->stopped && !process_leaves(p);
	}
	return n;
}

static void wake_later(struct process *p, uint64_t ns)
{
	asleep++;
	sim_after(ns, [p] {
		asleep--;
		process_stop(p, 0);
	});
}

/* The rest of a host goes with one of its ranks, or soon after it. */
static void kill_neighbours(const struct process *p)
{
	for (int r = 0; r < setup.size; r++) {
		struct process *q = process_of(r);

		if (q && q != p && q->host == p->host)
			sim_after(sim_odds(2) ? 0 : sim_below(200 * US), [q] {
				if (process_of(q->rank) == q && stay(q->rank) >= 1)
					process_kill(q);
			});
	}
}

static void strike(const struct fault *f)
{
	struct process *p = process_of(f->rank);

	if (!p || !p->alive || p->stopped || stay(f->rank) < 1)
		return;
	switch (f->kind) {
	case KILL:
		process_kill(p);
		if (sim.hops && sim_odds(3))
			kill_neighbours(p);
		break;
	case STOP:
		process_stop(p, 1);
		wake_later(p, sim_below(2 * MS));
		break;
	case STOP_FOR_LONG: {
		uint64_t until = sim_below(3 * MS);

		process_stop(p, 1);
		sim_after(until, [p] { process_suspect(p); });
		wake_later(p, until + sim_below(12 * MS));
		break;
	}
	case STALL:
		p->ever_slow = 1;
		p->stalled_until = sim.now + sim_below(3 * MS);
		sim_tell("rank %d.%d is slow", p->rank, (int)p->inc);
		break;
	case LEAVE:
		process_quit(p, sim_odds(2) ? QUITS : IS_RETIRED);
		break;
	default:
		process_suspect(p);
	}
}

static void let_go(struct process *p)
{
	if (!p->held_back)
		return;
	p->held_back = HELD_NOT;
	sim_tell("rank %d.%d is held back no more", p->rank, (int)p->inc);
	stream_pump(p);
}

/* Until its gate closes (faults_on_gate), or nothing has come of it. */
static void hold(struct process *p)
{
	p->held_back = sim_odds(3) ? HELD_LANE : HELD_STREAM;
	p->held_lane = (unsigned)sim_below(2);
	sim_tell("rank %d.%d is held back", p->rank, (int)p->inc);
	sim_after(500 * US + sim_below(MS), [p] { let_go(p); });
}

void faults_on_gate(struct process *p)
{
	if (p->held_back)
		sim_after(sim_below(100 * US), [p] { let_go(p); });
}

static void fire(struct fault *f)
{
	struct fault copy = *f;

	f->fired = 1;
	for (int r = 0; r < setup.size; r++)
		if ((f->holds >> r & 1) && r != f->rank && process_of(r) && !process_of(r)->held_back)
			hold(process_of(r));
	sim_after(f->delay, [copy] { strike(&copy); });
}

void faults_on_progress(struct process *p, size_t op)
{
	for (struct fault &f : faults)
		if (!f.fired && !f.at_end && f.rank == p->rank && op >= f.at_op && (!f.phase || op > f.at_op + 12))
			fire(&f);
}

void faults_on_end(struct process *p, size_t op)
{
	for (struct fault &f : faults)
		if (!f.fired && f.at_end && op >= f.at_op && (f.rank != p->rank || op > f.at_op + 12)) {
			fire(&f);
			return;
		}
}

void faults_on_change(const char *phase)
{
	if (view.epoch < 2 && phase[0] != 't') /* the first view is whole */
		return;
	for (struct fault &f : faults)
		if (!f.fired && f.phase && !std::string(phase).compare(f.phase)) {
			fire(&f);
			return;
		}
}

static int somebody_missing(void)
{
	for (int r = 0; r < setup.size; r++)
		if (!process_of(r))
			return 1;
	return 0;
}

int faults_over(void)
{
	for (const struct fault &f : faults)
		if (process_of(f.rank) && (!f.fired || process_of(f.rank)->quits))
			return 0;
	return !asleep && !(joins && somebody_missing());
}

static void come(void)
{
	for (int r = 0; joins && r < setup.size; r++)
		if (!process_of(r) && members_join(r)) {
			joins--;
			break;
		}
	if (joins)
		sim_after(sim.crowded ? 10 * US + sim_below(100 * US) : 200 * US + sim_below(MS), come);
}

static struct fault close_fault(int n, int first)
{
	static const char *const phases[] = { "freeze", "decide", "learn", "thaw" };
	struct fault f = {};

	f.kind = sim_odds(4) ? (int)sim_below(KINDS) : sim_odds(2) ? EVICT : KILL;
	f.rank = (int)sim_below((uint64_t)n);
	f.at_op = sim_below(12);
	f.phase = !first && !sim_odds(4) ? phases[sim_below(4)] : NULL;
	f.delay = sim_below(sim_odds(3) ? 5 * US : 150 * US);
	f.holds = sim_odds(3) ? 0 : sim_ranks(n);
	return f;
}

static void begin_crowded(int n)
{
	uint64_t many = 1 + sim_below(5);

	for (uint64_t i = 0; i < many; i++)
		faults.push_back(close_fault(n, !i));
	joins = sim_odds(3) ? 0 : 1 + (int)sim_below(4);
	if (joins)
		sim_after(sim_below(MS), come);
}

static void begin_loose(int n)
{
	static const char *const phases[] = { "freeze", "decide", "learn", "thaw" };
	uint64_t many = sim_odds(6) ? 0 : 1 + sim_below(3);

	for (uint64_t i = 0; i < many; i++) {
		struct fault f = {};

		f.kind = sim_odds(2) ? KILL : (int)sim_below(KINDS);
		f.rank = (int)sim_below((uint64_t)n);
		f.at_op = sim_below(10);
		f.phase = i && sim_odds(3) ? phases[sim_below(4)] : NULL;
		f.delay = sim_below(sim_odds(3) ? 2 * US : 100 * US);
		faults.push_back(f);
	}
	joins = sim_odds(2) ? 1 + (int)sim_below(2) : 0;
	if (joins)
		sim_after(500 * US + sim_below(4 * MS), come);
}

void faults_begin(int n)
{
	faults.clear();
	asleep = 0;
	if (sim.crowded)
		begin_crowded(n);
	else
		begin_loose(n);
	for (uint64_t i = 0; sim.leave && i < 2; i++) {
		struct fault f = {};

		f.kind = LEAVE;
		f.rank = (int)sim_below((uint64_t)n);
		f.at_op = sim_below(16);
		f.at_end = sim_odds(2);
		f.delay = sim_below(sim_odds(2) ? 2 * US : 200 * US);
		f.holds = sim_odds(2) ? sim_ranks(n) : 0;
		faults.push_back(f);
		joins += joins > 0;
	}
	for (uint64_t i = 0; sim.uneven && i < 2; i++) {
		struct fault f = {};

		f.kind = KILL;
		f.rank = (int)sim_below((uint64_t)n);
		f.at_op = sim_below(20);
		f.at_end = 1;
		f.delay = sim_below(sim_odds(2) ? 2 * US : 300);
		faults.push_back(f);
		joins += joins > 0;
	}
}
