/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine on devices by the public calls, under ep-run: one rank after the other is killed at a random moment
 * of twenty pairs and replaced, `--cycles` times. Tokens and routing are functions of source, token and step, so every row
 * has one right place and value; experts give back what they got, so a combined token is itself times the weights of
 * the owners that took part (with --compact 1: times how many took part, since the row of a rank comes back as it is; with
 * --ht 1 the same, and rows go to other hosts over two hops).
 * With --lanes 1 rows go by bulk. With --flat 1 rows are announced, and half of the experts' results are negated on their
 * way back.
 * Each outcome must be alike on all who are left, and every byte right by what it says. Pairs are launched whole and in
 * two phases, and by a graph that each process captured once. With --late MS all have that deadline, and each comes later
 * than that now and then: its part is missing where it says so, and nothing else is wrong. With --victim it is always the same rank that dies, and
 * what the others hold at the end (device memory, addresses, descriptors) must be what they held after two cycles.
 *
 * With `--how kill|stop|stall|error --where before|dispatch|between|combine|phases|graph` that befalls the victim at that
 * place of a pair, and `--after` pairs more are exact before its replacement comes in. A stopped rank is woken a second
 * later with its operations still queued: it must find that it was left out, and what it stores must change nothing. Who
 * only stalls is masked nowhere. With `--away MS` the victim stays away from that dispatch or combine, in one phase or two,
 * until the others' deadline has passed it by: it gets all the same and is there again, or (COVEY_LATE=evict) is left out.
 *
 * Plain C over the table for tools (kernels/tool/tool.h), so it runs on devices and with the real kernels on a CPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "holds.h"
#include "options.h"
#include "outcome.h"
#include "stroke.h"
#include "tokens.h"
#include "tool_find.h"

#define PAIRS 20
#define FLIGHT 16 /* of one kind under way when somebody is struck inside of it */
#define CALM 2	  /* steps, whole, before the next is killed */

enum where { BEFORE, IN_DISPATCH, BETWEEN, IN_COMBINE, BETWEEN_PHASES, IN_GRAPH, ANYWHERE };
static const char *const wheres[] = { "before", "dispatch", "between", "combine", "phases", "graph", "anywhere" };

struct tokens_of host;
static struct tokens_of *there;
struct tokens_state state;

static const struct cvy_gpu_tool *tool;
static struct covey_group *group;
struct covey_ep *ep;
static struct CUstream_st *stream;
static struct cvy_gpu_graph *graph;
static void *route;
int rank, size, compact, flat, win, announces;
static int failures, cycles, per_rank, ht, lanes, striking, late, victim = -1, after = 40, away_ms, deadline;
static enum where where = ANYWHERE;
uint64_t checks, again;
static uint64_t cut, contributors; /* the latter: of the last operation */
static struct holds held, holding; /* after the second cycle, and now */

static void must(int err, const char *what)
{
	struct covey_error_info info = { 0 };

	if (!err)
		return;
	covey_last_error(group, &info);
	if (stroke.here) { /* as it must be: a process that was left out, or whose device failed, hears it by its calls */
		printf("rank %d, cycle %ld: was struck, and hears: %s: %s\n", rank, state.cycle, what,
		       covey_strerror(err));
		fflush(stdout);
		_exit(STRUCK);
	}
	fprintf(stderr, "rank %d, step %ld: %s: %s: %s %s\n", rank, state.step, what, covey_strerror(err), info.cause,
		tool ? tool->why() : "");
	exit(1);
}

void wrong(const char *what, int i, long got, long want, const struct covey_device_outcome *o)
{
	if (failures++ < 8)
		fprintf(stderr, "rank %d, step %ld, cycle %ld: %s %d: %ld, not %ld; %llu by %llx without %llx\n", rank,
			state.step, state.cycle, what, i, got, want, (unsigned long long)o->seq,
			(unsigned long long)o->mask, (unsigned long long)o->missing);
}

/* ---- calls ---- */

/* It befalls who is to be struck when it comes by the place. */
static void strike(enum where at)
{
	if (!striking || where != at)
		return;
	striking = 0;
	if (at == IN_DISPATCH || at == IN_COMBINE || at == IN_GRAPH)
		stroke_soon(2000);
	else
		stroke_now();
}

static void dispatch(int phases, int num_tokens)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;

	args.num_tokens = masks() ? TOKENS : num_tokens;
	args.token_mask = masks() ? there->mask : NULL;
	args.x = there->x;
	if (rank % 2)
		args.experts64 = there->experts64[0];
	else
		args.experts = there->experts[0];
	args.weights = there->weights[0];
	args.packed_x = there->packed;
	args.count = there->count;
	args.src_info = there->src_info;
	args.range = there->range;
	args.recv_experts = there->named[0];
	args.recv_weights = there->named_weights[0];
	args.expert_tokens = there->expert_tokens;
	args.expert_alignment = win ? 0 : 8;
	args.triplets = there->triplets[0];
	args.flat = there->flat[0];
	args.fill_tail = 1;
	args.arrived = announces ? there->arrived : NULL;
	args.route = route;
	args.timeout_ms = late ? late : deadline;
	if (!phases) {
		must(covey_dispatch(ep, &args, stream, NULL), "dispatch");
		return;
	}
	must(covey_dispatch_send(ep, &args, stream), "dispatch_send");
	strike(BETWEEN_PHASES);
	must(covey_dispatch_recv(ep, 0, NULL), "dispatch_recv");
}

static void combine(int phases, int num_tokens)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;

	args.num_tokens = masks() ? TOKENS : num_tokens;
	args.y = there->packed;
	args.experts = there->experts[0];
	args.weights = there->weights[0];
	args.out = there->out;
	args.expert_scale = flat ? there->expert_scale : NULL;
	args.route = route;
	args.timeout_ms = late ? late : deadline;
	if (!phases) {
		must(covey_combine(ep, &args, stream, NULL), "combine");
		return;
	}
	must(covey_combine_send(ep, &args, stream), "combine_send");
	must(covey_combine_recv(ep, 0, NULL), "combine_recv");
}

/* Comes late, one time of eight; mostly by less than two deadlines. */
static void dawdle(void)
{
	static unsigned seed;

	if (!seed)
		seed = (unsigned)getpid();
	if (late && rand_r(&seed) % 8 == 0)
		usleep((unsigned)rand_r(&seed) % (unsigned)(2000 * late));
}

/* Of the last operation, when the stream has passed it: its number, view and contributors are alike on all. */
static struct covey_device_outcome outcome(void)
{
	struct covey_device_outcome o, all[RANKS];
	struct covey_result result;

	must(tool->wait(stream), "waiting");
	must(device_outcome(group, tool->copy, &o), "outcome");
	must(o.status, "the outcome");
	must(tool->copy(&host, there, sizeof(host)), "a copy");
	memset(all, 0, sizeof(all));
	must(covey_allgather(&o, all, sizeof(o), COVEY_UINT8, group, NULL, &result), "allgather of outcomes");
	for (int r = 0; r < size; r++) /* who went on without another may have been of an earlier view */
		if (covey_mask_has(&result.mask, r) && !(late && ((o.missing >> r | all[r].missing >> rank) & 1)) &&
		    (all[r].seq != o.seq || all[r].epoch != o.epoch || all[r].mask != o.mask))
			wrong("mask of rank", r, (long)all[r].mask, (long)o.mask, &o);
	cut += o.missing != 0;
	contributors = o.mask;
	return o;
}

static void fill(void)
{
	for (int t = 0; t < TOKENS; t++)
		host.mask[t] = t < tokens(state.step, rank);
	for (int t = 0; t < tokens(state.step, rank); t++) {
		for (int h = 0; h < HIDDEN; h++)
			host.x[t][h] = bf16(token(state.step, rank, t, h));
		for (int k = 0; k < TOP_K; k++) {
			host.experts64[t][k] = host.experts[t][k] = expert(state.step, rank, t, k);
			host.weights[t][k] = (float)(k + 1);
		}
	}
	memset(host.arrived, 0, sizeof(host.arrived));
	for (int id = 0, e = 0; id < EXPERTS; id++)
		if (owner(size, id) == rank)
			host.expert_scale[e++] = sign(id);
	memset(host.out, 0xc5, sizeof(host.out));
	must(tool->copy(there, &host, sizeof(host)), "a copy");
}

static void pair(int phases)
{
	struct covey_device_outcome o;

	dawdle();
	announces = flat;
	dispatch(phases, tokens(state.step, rank));
	o = outcome();
	check_dispatch(&o);
	announces = 0;
	dawdle();
	combine(phases, tokens(state.step, rank));
	o = outcome();
	check_combine(&o);
}

/* Of as many tokens as there may be: those that are no longer of this step are sent as they were. */
static void capture(void)
{
	must(tool->capture(stream), "capture");
	dispatch(0, TOKENS);
	combine(0, TOKENS);
	must(tool->captured(stream, &graph), "capture");
}

/* Three pairs; of the last the result is known. */
static void replay(void)
{
	struct covey_device_outcome o;

	for (int i = 0; i < 3; i++) {
		dawdle();
		must(tool->replay(graph, stream), "a graph");
	}
	o = outcome();
	check_combine(&o);
}

static void work(int pairs)
{
	if (striking)
		stroke_soon(12000);
	for (int i = 0; i < pairs; i++) {
		fill();
		pair(i % 2);
		if (!graph) /* what a handle has on its device is made by its first call, outside of graphs */
			capture();
		if (i % 3 == 1)
			replay();
	}
	stroke_wait();
	striking = 0;
}

/* A pair that is struck at its place; inside of dispatch or combine there are many of it, and the last must be right. */
static void struck_pair(void)
{
	struct covey_device_outcome o;

	fill();
	strike(BEFORE);
	strike(IN_DISPATCH);
	for (int i = where == IN_DISPATCH ? FLIGHT : 1; i > 0; i--)
		dispatch(where == BETWEEN_PHASES, tokens(state.step, rank));
	o = outcome();
	check_dispatch(&o);
	strike(BETWEEN);
	strike(IN_COMBINE);
	for (int i = where == IN_COMBINE ? FLIGHT : 1; i > 0; i--)
		combine(0, tokens(state.step, rank));
	o = outcome();
	check_combine(&o);
	strike(IN_GRAPH);
	if (where == IN_GRAPH)
		replay();
	stroke_wait();
}

static int evicts(void)
{
	const char *policy = getenv("COVEY_LATE");

	return policy && !strcmp(policy, "evict");
}

/* The others have passed the victim by; or it hears that it was left out, and this is its end. */
static void meet(void)
{
	struct covey_result result;
	int32_t all[RANKS];

	stroke.here = evicts() && rank == victim;
	for (; stroke.here; usleep(1000))
		must(covey_device_result(group, &result), "outcome");
	if (!evicts())
		must(covey_allgather(&rank, all, 1, COVEY_INT32, group, NULL, &result), "allgather");
}

/* A dispatch or combine from which the victim stays away until it is late. */
static struct covey_device_outcome passed_by(enum where at, int phases)
{
	const int stays = striking && where == at;
	const uint64_t missing = where == at && rank != victim ? 1ull << victim : 0;
	struct covey_device_outcome o;

	if (stays)
		meet();
	deadline = where != at ? 0 : stays ? 60 * away_ms : away_ms;
	if (at == IN_DISPATCH)
		dispatch(phases, tokens(state.step, rank));
	else
		combine(phases, tokens(state.step, rank));
	deadline = 0;
	if (where == at && !stays) {
		must(tool->wait(stream), "waiting");
		meet();
	}
	o = outcome();
	if ((at == where || rank != victim) && (evicts() ? o.mask & ~o.missing & missing : o.missing != missing))
		wrong("missing by rank", rank, (long)o.missing, (long)missing, &o);
	return o;
}

static void away_pair(int phases)
{
	struct covey_device_outcome o;

	fill();
	o = passed_by(IN_DISPATCH, phases);
	check_dispatch(&o);
	o = passed_by(IN_COMBINE, phases);
	check_combine(&o);
	striking = 0;
}

static void struck(int whole)
{
	const int stays = away_ms ? !evicts() : stroke.how == STALL;
	const struct covey_device_outcome none = { 0 };
	uint64_t was = cut;

	if (away_ms) {
		away_pair((int)state.cycle % 2);
		was = cut;
	} else {
		struck_pair();
	}
	work(after);
	if (stays && (cut != was || __builtin_popcountll(contributors) != whole))
		wrong("who was only late is missing", 0, (long)contributors, (long)(cut - was), &none);
	if (!stays && (contributors >> victim & 1))
		wrong("still there: rank", victim, (long)contributors, 0, &none);
}

/* ---- the group ---- */

static void start(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	const int device = stroke_device();
	struct covey_view view;
	void *at;

	must(covey_join(NULL, &group), "join");
	tool = cvy_gpu_tool_find();
	if (!tool)
		exit(1);
	must(tool->use(device), "the device");
	must(tool->stream(&stream), "a stream");
	stroke.stream = stream;
	must(covey_view(group, &view), "view");
	rank = view.rank;
	config.max_tokens = TOKENS;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	config.preset = ht	  ? COVEY_EP_HT
			: compact ? COVEY_EP_COMPACT
			: flat	  ? COVEY_EP_FLAT
			: win	  ? COVEY_EP_WIN
				  : COVEY_EP_LL;
	config.combine = per_rank ? COVEY_EP_PER_RANK : COVEY_EP_PER_EXPERT;
	config.lanes = lanes;
	must(covey_ep_create(group, &config, &ep), "ep_create");
	must(tool->alloc(sizeof(host), &at), "memory");
	there = at;
	must(tool->alloc(covey_ep_route_bytes(ep), &route), "memory");
}

/* One step; 0: that was the last. */
static int step(int whole)
{
	struct covey_result result;

	must(covey_admit_async(group, &state, sizeof(state), stream, &result), "admit");
	if (!size) /* a process that comes later laid out for as many ranks as there may be */
		must(covey_ep_remap(ep, NULL), "ep_remap");
	size = result.size;
	if (covey_mask_count(&result.mask) < whole || state.calm++ < CALM) {
		if (covey_mask_count(&result.mask) < whole)
			state.calm = 0;
		work(2);
		return 1;
	}
	state.calm = 0;
	holding = holds_look(tool);
	if (state.cycle == 2)
		held = holding;
	stroke_progress(rank, state.cycle, cycles);
	if (state.cycle == cycles)
		return 0;
	striking = (victim < 0 ? (int)(state.cycle % whole) : victim) == rank;
	state.cycle++;
	if (where == ANYWHERE)
		work(PAIRS);
	else
		struck(whole);
	return 1;
}

int main(int argc, char **argv)
{
	static const struct number numbers[] = {
		{ "--cycles", &cycles }, { "--per-rank", &per_rank }, { "--compact", &compact }, { "--ht", &ht },
		{ "--flat", &flat },	 { "--win", &win },	      { "--lanes", &lanes },	 { "--late", &late },
		{ "--victim", &victim }, { "--away", &away_ms },      { "--after", &after },	 { NULL, NULL }
	};
	const char *world = getenv("WORLD_SIZE");

	options_read(argc, argv, numbers);
	where = (enum where)stroke_options(argc, argv, wheres, ANYWHERE, where);
	compact |= ht;
	if (where != ANYWHERE && victim < 0)
		victim = 1;
	stroke_stand_by();
	start();
	while (step(world ? atoi(world) : 1) && !failures)
		state.step++;
	failures += !holds_same(&held, &holding, rank, state.cycle);
	printf("rank %d: %s %s: %llu checks, %d failed, %llu without a part, %llu placed anew, %ld cycles\n", rank,
	       away_ms ? "away" : hows[stroke.how], wheres[where], (unsigned long long)checks, failures,
	       (unsigned long long)cut, (unsigned long long)again, state.cycle);
	fflush(stdout);
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
