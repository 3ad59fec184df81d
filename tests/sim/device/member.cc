/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes, and what stands for their membership: the steps of a view change as PROTOCOL.md has them (stand still, decide,
 * learn, acknowledge, go on; section 10 for devices), each told to each member at a time of its own. What a member does in
 * a step is the library's own (device_change.c, device_chunk.c, device_admit.c), on a fiber that kernels do not wait for.
 */
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "gpu_state.cuh"

std::vector<struct process *> processes;
struct member_view view;
std::vector<struct member_view> committed;
extern "C" const struct cvy_gpu_ops cvy_gpu_ops;
extern "C" const struct cvy_gpu_ep_ops cvy_gpu_ep_ops;

enum phase { AT_REST, STOPPING, LEARNING };

static struct {
	enum phase phase;
	uint64_t attempt; /* names a try at a change */
	int leaving;	  /* processes */
	uint64_t said;	  /* ranks that stand still, or have acknowledged */
	std::vector<struct process *> joining;
} change;

int process_leaves(const struct process *p)
{
	return p->leaves;
}

struct process *process_by(uint64_t inc)
{
	return inc && inc <= processes.size() ? processes[inc - 1] : NULL;
}

struct process *process_of(int rank)
{
	return view.members >> rank & 1 ? process_by(view.inc[rank]) : NULL;
}

int same_view(const struct process *a, const struct process *b)
{
	return a->alive && b->alive && process_of(a->rank) == a && process_of(b->rank) == b && !process_leaves(a) &&
	       !process_leaves(b);
}

/* ---- a change ---- */

static void begin(void);

/* Until a member is told of a step: now and then longer. In crowded runs soon, or much later than by others. */
static uint64_t some_time(uint64_t most, uint64_t at_times)
{
	if (sim.crowded)
		return sim_below(sim_odds(2) ? 30 * US : 600 * US);
	return sim_below(at_times == most || !sim_odds(4) ? most : at_times);
}

static struct cvy_view *view_now(void)
{
	struct cvy_view *v = cvy_view_new(ROOM);

	v->epoch = view.epoch;
	v->vid = view.epoch;
	v->size = setup.size;
	for (int r = 0; r < ROOM; r++) {
		if (!(view.members >> r & 1))
			continue;
		cvy_mask_add(&v->members, r);
		if (view.pending >> r & 1)
			cvy_mask_add(&v->pending, r);
		v->member[r].inc = view.inc[r];
		v->member[r].host = sim.hosts ? 1 + (uint64_t)(r / sim.width) : process_by(view.inc[r])->host;
		v->member[r].from = view.pending >> r & 1 ? CVY_PENDING : process_by(view.inc[r])->from;
	}
	return v;
}

/* Of those whom @p knew as members, who is none any more. */
static struct covey_mask removed_by(struct process *p, const struct cvy_view *now)
{
	struct covey_mask removed = {};

	for (int r = 0; p->learned && r < ROOM; r++) {
		uint64_t was = covey_mask_has(&p->learned->members, r) ? p->learned->member[r].inc : 0;

		if (was && (!covey_mask_has(&now->members, r) || now->member[r].inc != was)) {
			cvy_mask_add(&removed, r);
			p->fenced.push_back(was);
		}
	}
	return removed;
}

static void post_own(struct process *p, int kind, uint64_t attempt)
{
	struct cvy_sink sink = cvy_device_sink(p->device);
	struct cvy_event ev = {};

	ev.kind = kind;
	ev.rank = -1;
	ev.number = attempt;
	cvy_post(&sink, &ev);
}

static void learn(struct process *p, struct cvy_view *v, uint64_t attempt)
{
	struct covey_mask removed = removed_by(p, v);

	sim_tell("rank %d.%d learns epoch %u, members %x", p->rank, (int)p->inc, v->epoch,
		 (unsigned)v->members.word[0]);
	cvy_view_free(p->learned);
	p->learned = v;
	cvy_device_learn(p->device, v, &removed);
	post_own(p, CVY_EV_REPAIRED, attempt);
	faults_on_change("learn");
}

/* The safe point of the host: who has come is no longer pending. */
static void safe_point(void)
{
	struct covey_result outcome = {};

	outcome.epoch = view.epoch;
	outcome.size = setup.size;
	outcome.mask.word[0] = view.members;
	for (int r = 0; r < ROOM; r++)
		if (view.pending >> r & 1)
			process_of(r)->from = view.epoch; /* grows, and is alike for all who come in at a time */
	view.pending = 0;
	sim_tell("they come in with operation %zu: %llx", app_safe_point(&outcome), (unsigned long long)view.members);
}

/* It is an operation of the host, too: nobody has an outcome before all have gone on. */
static int all_go_on(void)
{
	for (int r = 0; r < ROOM; r++)
		if (process_of(r) && process_of(r)->device->epoch != view.epoch)
			return 0;
	return view.active;
}

static void thaw(struct process *p, uint64_t attempt)
{
	if (p->attempt != attempt)
		return;
	sim_tell("rank %d.%d goes on in epoch %u", p->rank, (int)p->inc, p->learned->epoch);
	check_words(p);
	cvy_device_thaw(p->device);
	if (view.pending && all_go_on()) {
		safe_point();
		for (int r = 0; r < ROOM; r++)
			if (process_of(r))
				app_run(process_of(r));
	}
	faults_on_change("thaw");
	app_run(p);
}

static void activate(void)
{
	uint64_t attempt = change.attempt;

	sim_tell("epoch %u is active", view.epoch);
	view.active = 1;
	change.phase = AT_REST;
	for (int r = 0; r < ROOM; r++) {
		struct process *p = process_of(r);

		if (p)
			agent_do(&p->agent, some_time(100 * US, MS), [p, attempt] { thaw(p, attempt); });
	}
	if (view.pending && !sim.crowded && !sim.uneven) /* sooner than it can be: these runs are kept as they are */
		safe_point();
	if (change.leaving)
		begin();
}

/* It is out, and hears so some time. */
static void tell_out(struct process *p)
{
	agent_do(&p->agent, sim_below(3 * MS), [p] {
		p->out = OUT_TOLD;
		cvy_device_stop(p->device, COVEY_ERR_FENCED);
	});
}

static void decide(void)
{
	uint64_t gone = 0;

	for (int r = 0; r < ROOM; r++) {
		struct process *p = process_of(r);

		if (!p || !process_leaves(p))
			continue;
		gone |= 1ull << r;
		p->out = OUT_LEFT;
		p->leaves = 0;
		change.leaving--;
		if (p->alive && !p->stopped)
			tell_out(p);
	}
	view.epoch++;
	view.members &= ~gone;
	view.pending &= ~gone;
	for (struct process *p : change.joining) {
		view.members |= 1ull << p->rank;
		view.pending |= 1ull << p->rank;
		view.inc[p->rank] = p->inc;
	}
	change.joining.clear();
	committed.push_back(view);
	view.active = 0;
	change.phase = LEARNING;
	change.said = 0;
	sim_tell("epoch %u is decided: members %llx, without %llx", view.epoch, (unsigned long long)view.members,
		 (unsigned long long)gone);
	for (int r = 0; r < ROOM; r++) {
		struct process *p = process_of(r);
		struct cvy_view *v = p ? view_now() : NULL;
		uint64_t attempt = change.attempt;

		if (!p)
			continue;
		p->attempt = attempt;
		agent_do(&p->agent, some_time(200 * US, 2 * MS), [p, v, attempt] {
			if (p->attempt == attempt)
				learn(p, v, attempt);
			else
				cvy_view_free(v);
		});
	}
	faults_on_change("decide");
}

static uint64_t whoever_stays(void)
{
	uint64_t mask = 0;

	for (int r = 0; r < ROOM; r++)
		if (process_of(r) && !process_leaves(process_of(r)))
			mask |= 1ull << r;
	return mask;
}

/* Nobody is left to decide: who gives up leaves by itself. The group is closed, for who would have come, too. */
static void end_all(void)
{
	change.phase = AT_REST;
	for (struct process *p : processes)
		if (p->alive && !p->stopped && p->out == OUT_NOT &&
		    (process_leaves(p) ||
		     std::find(change.joining.begin(), change.joining.end(), p) != change.joining.end()))
			tell_out(p);
}

/* Once more from the beginning, whatever was under way. */
static void begin(void)
{
	uint64_t attempt = ++change.attempt;

	change.phase = STOPPING;
	change.said = 0;
	sim_tell("a change begins");
	for (int r = 0; r < ROOM; r++) {
		struct process *p = process_of(r);

		if (!p || process_leaves(p))
			continue;
		agent_do(&p->agent, p->held_back ? sim_below(30 * US) : some_time(200 * US, 200 * US), [p, attempt] {
			if (p->attempt >= attempt) /* a later one came first */
				return;
			p->attempt = attempt;
			faults_on_gate(p);
			cvy_device_freeze(p->device, view.epoch);
			post_own(p, CVY_EV_FROZEN, attempt);
			faults_on_change("freeze");
		});
	}
	if (!whoever_stays())
		end_all();
}

void process_suspect(struct process *p)
{
	if (process_of(p->rank) != p || process_leaves(p))
		return;
	sim_tell("rank %d.%d is to be left out", p->rank, (int)p->inc);
	p->leaves = 1;
	change.leaving++;
	begin();
}

/*
 * As drain() of handle.c and retire() of driver.c: looks again and again. So does the agent. The safe point is an operation of
 * the host, which all members have completed before one leaves.
 */
static void quit_look(struct process *p)
{
	agent_do(&p->agent, sim_below(sim_odds(2) ? 20 * US : MS), [p] {
		if (p->out != OUT_NOT || process_leaves(p) || p->device->ended)
			return;
		if (process_of(p->rank) == p && all_go_on() && !view.pending &&
		    (p->quits == IS_RETIRED || p->stream.empty()) &&
		    cvy_device_may_leave(p->device, p->quits == IS_RETIRED)) {
			p->left = 1;
			process_suspect(p);
		} else {
			cvy_device_look(p->device);
			quit_look(p);
		}
	});
}

void process_quit(struct process *p, int how)
{
	if (p->quits)
		return;
	sim_tell("rank %d.%d %s", p->rank, (int)p->inc, how == QUITS ? "quits" : "is retired");
	p->quits = how;
	quit_look(p);
}

/* From the library, on its way to the agent. */
static void heard(void *ctx, const struct cvy_event *ev)
{
	struct process *p = (struct process *)ctx;
	uint64_t said = change.said | 1ull << p->rank;

	if (ev->kind == CVY_EV_FROZE_NOT && p->out == OUT_NOT) {
		check_gives_up(p, ev->text);
		process_suspect(p);
	}
	if (ev->kind == CVY_EV_LATE) {
		struct process *q = process_by(ev->inc);

		if (q)
			process_suspect(q);
	}
	if (process_of(p->rank) != p || ev->number != change.attempt || p->attempt != change.attempt)
		return;
	if (ev->kind == CVY_EV_FROZEN && change.phase == STOPPING) {
		sim_tell("rank %d.%d stands still", p->rank, (int)p->inc);
		change.said = said;
		if ((said & whoever_stays()) == whoever_stays())
			decide();
	} else if (ev->kind == CVY_EV_REPAIRED && change.phase == LEARNING) {
		sim_tell("rank %d.%d acknowledges epoch %u", p->rank, (int)p->inc, view.epoch);
		change.said = said;
		if ((said & view.members) == view.members)
			activate();
	}
}

int members_settled(void)
{
	return change.phase == AT_REST && !change.leaving && change.joining.empty();
}

/* ---- processes ---- */

static struct cvy_device *device_open(struct process *p)
{
	struct cvy_device *d = (struct cvy_device *)calloc(1, sizeof(*d));
	struct cvy_gpu_args args = { (int)p->inc - 1, 1000, COVEY_DEVICE_MEMORY_VMM, ROOM };
	char why[300];

	d->ops = &cvy_gpu_ops;
	d->ep = &cvy_gpu_ep_ops;
	d->loop = (struct cvy_loop *)p;
	d->send = letter_send;
	d->send_ctx = p;
	d->agent = { heard, p };
	d->box = cvy_errbox_new();
	d->rank = p->rank;
	d->window_fd = -1;
	d->join_ms = 10000;
	pthread_mutex_init(&d->lock, NULL);
	cvy_device_drain_init(d);
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		d->peer[r].fd = d->peer[r].old_fd = -1;
	if (cvy_gpu_ops.open(&args, &d->gpu, why, sizeof(why))) {
		fprintf(stderr, "no device: %s\n", why);
		abort();
	}
	d->mapped = cvy_gpu_ops.mapped(d->gpu);
	p->far_from = d->gpu->out;
	p->far_to = d->gpu->out + MAPPINGS * CVY_GPU_STRIDE;
	return d;
}

/* Each tick of its agent. */
static void look(struct process *p)
{
	agent_do(&p->agent, 5 * MS + sim_below(5 * MS), [p] {
		if (p->out == OUT_TOLD)
			return;
		cvy_device_look(p->device);
		look(p);
	});
}

struct process *process_open(int rank, size_t first)
{
	struct process *p = new process();

	p->rank = rank;
	p->host = setup.host[rank];
	processes.push_back(p);
	p->inc = processes.size();
	if (sim.hops && p->inc > (uint64_t)setup.size && sim_odds(2))
		p->host = (uint8_t)sim_below(3);
	p->alive = 1;
	p->next = p->completed = first;
	p->first = NONE;
	agent_open(&p->agent, p);
	p->device = device_open(p);
	if (cvy_device_ep_state(p->device, &setup.tables, 0, &p->state))
		abort();
	for (struct process *q : processes) {
		if (q == p || q->rank == rank || process_of(q->rank) != q)
			continue;
		link_up(p, q);
		link_up(q, p);
	}
	look(p);
	return p;
}

int members_join(int rank)
{
	struct process *p;

	if (!members_settled() || !view.active || (view.members >> rank & 1) || processes.size() + 1 >= INCS)
		return 0;
	p = process_open(rank, NONE);
	sim_tell("rank %d.%d comes", rank, (int)p->inc);
	change.joining.push_back(p);
	for (struct process *q : processes) /* two that come at a time */
		if (q != p && std::find(change.joining.begin(), change.joining.end(), q) != change.joining.end()) {
			link_up(p, q);
			link_up(q, p);
		}
	begin();
	return 1;
}

/* On a GPU, kernels went on for 9 to 29 ms after SIGKILL: many changes. Launches that wait in the stream begin, too. */
static void linger(struct process *p)
{
	p->lingers = 1;
	sim_after(sim_below(sim_odds(2)	  ? 20 * US
			    : sim_odds(2) ? 200 * US
					  : 5 * MS),
		  [p] {
			  sim_tell("kernels of rank %d.%d end", p->rank, (int)p->inc);
			  machine_die(p);
			  p->lingers = 0;
		  });
}

void process_kill(struct process *p)
{
	if (!p->alive)
		return;
	sim_tell("rank %d.%d dies", p->rank, (int)p->inc);
	p->alive = 0;
	if (sim.linger && sim_odds(2))
		linger(p);
	else
		machine_die(p);
	change.joining.erase(std::remove(change.joining.begin(), change.joining.end(), p), change.joining.end());
	sim_after(20 * US + sim_below(200 * US), [p] { process_suspect(p); });
}

void process_stop(struct process *p, int on)
{
	if (!p->alive || p->stopped == on)
		return;
	sim_tell("rank %d.%d %s", p->rank, (int)p->inc, on ? "is stopped" : "goes on");
	p->stopped = on;
	p->ever_slow = 1;
	if (on)
		return;
	for (struct warp *w : p->held)
		sim_turn_after(sim_below(5 * US), w);
	for (deed &what : p->held_deeds)
		sim_after(sim_below(5 * US), what);
	p->held.clear();
	p->held_deeds.clear();
	if (p->out == OUT_LEFT)
		tell_out(p);
	app_run(p);
}

void members_begin(int n)
{
	change = {};
	letters_begin();
	view = {};
	committed.clear();
	check_begin();
	for (int r = 0; r < n; r++) {
		struct process *p = process_open(r, 0);

		view.members |= 1ull << r;
		view.inc[r] = p->inc;
		for (int q = 0; q < r; q++) {
			link_up(p, processes[(size_t)q]);
			link_up(processes[(size_t)q], p);
		}
	}
	begin();
}

void members_end(void)
{
	letters_end();
	for (struct process *p : processes) {
		p->device->library = NULL;
		cvy_device_ep_free(p->device, p->state, 0);
		for (int r = 0; r < CVY_GPU_RANKS; r++) {
			if (p->device->peer[r].fd >= 0)
				close(p->device->peer[r].fd);
			if (p->device->peer[r].old_fd >= 0)
				close(p->device->peer[r].old_fd);
		}
		p->device->ops->close(p->device->gpu);
		cvy_errbox_free(p->device->box);
		cvy_view_free(p->device->view);
		free(p->device);
		agent_close(&p->agent);
		cvy_view_free(p->learned);
		for (struct launch *l : p->stream)
			delete l;
		delete p;
	}
	processes.clear();
}

void stream_pump(struct process *p)
{
	struct launch *l;

	if (p->running || p->stream.empty() || !(p->alive || p->lingers) || p->held_back == HELD_STREAM)
		return;
	l = p->stream.front();
	p->running = 1;
	sim_after(sim_below(10 * US), [l] { machine_start(l); });
}
