/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may befall a rank with a device, under ep-run: `--how kill|stop|error|stall` at `--where before|small|large|graph`,
 * `--cycles` times. Every sum is of one bit a rank, so each result says who contributed: it must be right by that, alike
 * on all survivors, and nobody may come back but at a safe point. After each stroke `--after` operations more are exact;
 * then the replacement comes in, and all that a process holds (device memory, addresses, descriptors) is as it was. The
 * graph was captured once, by each process at its start. A stopped rank is woken a second later with operations still
 * queued: it must find that it was left out, and what it stores must change nothing. --extend: when all is done one
 * more process comes in, for which nobody left.
 *
 * Plain C over the table for tools (kernels/tool/tool.h), so it runs on devices and on the device that is none.
 */
#include <covey_device.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "holds.h"
#include "options.h"
#include "stroke.h"
#include "tool_find.h"

#define RANKS 8
#define SMALL 64  /* elements; of a large operation: count_large */
#define FLIGHT 40 /* operations under way when somebody is struck, at most */
#define GRAPH 10  /* operations in the graph */
#define CALM 2	  /* steps, whole, before the next stroke */

enum where { BEFORE, IN_SMALL, IN_LARGE, IN_GRAPH };
static const char *const wheres[] = { "before", "small", "large", "graph" };

static struct {
	enum where where;
	int victim, cycles, after, extend;
} opt = { IN_SMALL, 1, 1, 1000, 0 };

static struct { /* what joiners get */
	long step, calm, cycle, extended;
} state;

static const struct cvy_gpu_tool *tool;
static struct covey_group *group;
static struct CUstream_st *stream;
static struct cvy_gpu_graph *graph;
static int rank, size, whole, failures;
static int *send, *recv, *host;
static size_t count_large;
static uint64_t checks;
static uint32_t before; /* contributors of the last operation, by its result */
static struct holds first, last;
static char **arguments;

static void wrong(const char *what, int i, uint32_t got, uint32_t other)
{
	if (failures++ < 8)
		fprintf(stderr, "rank %d, step %ld, cycle %ld: %s, operation %d: %x, %x\n", rank, state.step,
			state.cycle, what, i, got, other);
}

static void must(int err, const char *what)
{
	struct covey_error_info info = { 0 };

	if (!err)
		return;
	covey_last_error(group, &info);
	if (stroke.here && stroke.how == FAIL &&
	    err == COVEY_ERR_UNSUPPORTED) /* that is no word for a device that failed */
		wrong("a failed device is taken for none", 0, 0, 0);
	if (stroke.here) { /* as it must be: a process that was left out, or whose device failed, hears it by its calls */
		printf("rank %d, cycle %ld: was struck, and hears: %s: %s\n", rank, state.cycle, what,
		       covey_strerror(err));
		fflush(stdout);
		_exit(STRUCK);
	}
	fprintf(stderr, "rank %d, step %ld: %s: %s: %s %s\n", rank, state.step, what, covey_strerror(err), info.cause,
		tool ? tool->why() : "");
	if (err == COVEY_ERR_FENCED && rank >= whole) /* ep-run replaces the others when the machine stood still */
		execv("/proc/self/exe", arguments);
	exit(1);
}

static int element(size_t i)
{
	return (int)(i % 3) + 1;
}

static void launch(int i, size_t count)
{
	must(covey_allreduce(send, recv + (size_t)i * count, count, COVEY_INT32, COVEY_SUM, group, stream, NULL),
	     "allreduce");
}

/* By its result, operation @i of @count elements was of ...; 0: it ended without one. */
static uint32_t contributors(int i, size_t count)
{
	const int *at = host + (size_t)i * count;
	uint32_t mask = (uint32_t)at[0];

	checks++;
	for (size_t k = 0; k < count; k++)
		if (at[k] != element(k) * (int)mask) {
			wrong("an element", i, (uint32_t)at[k], mask);
			break;
		}
	return mask;
}

static void outcome_is_good(void)
{
	struct covey_result o;

	must(covey_device_result(group, &o), "outcome");
	must(o.status, "the outcome");
}

/* Results of @n operations: each of those before it or fewer, this rank among them, alike on all who are left. */
static void check(int n, size_t count, uint32_t start)
{
	uint32_t mask[FLIGHT + 1], all[RANKS * (FLIGHT + 1)];
	struct covey_result result;
	uint32_t was = start;

	must(tool->wait(stream), "waiting");
	outcome_is_good(); /* before it is looked at: who was left out has none */
	must(tool->copy(host, recv, (size_t)n * count * sizeof(int)), "a copy");
	memset(mask, 0, sizeof(mask));
	for (int i = 0; i < n; i++) {
		mask[i] = contributors(i, count);
		if ((mask[i] & ~was) || !(mask[i] >> rank & 1))
			wrong("contributors", i, mask[i], was);
		was = mask[i];
	}
	memset(all, 0, sizeof(all));
	must(covey_allgather(mask, all, FLIGHT + 1, COVEY_INT32, group, NULL, &result), "allgather");
	for (int r = 0; r < size; r++)
		for (int i = 0; i < n && covey_mask_has(&result.mask, r); i++)
			if (all[r * (FLIGHT + 1) + i] && all[r * (FLIGHT + 1) + i] != mask[i])
				wrong("not alike", i, mask[i], all[r * (FLIGHT + 1) + i]);
	before = was;
}

/*
 * Operations of a root that is gone say so, and are a meeting like the others: whoever runs ahead of one would write over what
 * others have not read yet.
 */
static void rootless(void)
{
	struct covey_result o;

	for (int i = 0; i < FLIGHT; i++) {
		int *to = recv + (size_t)i * SMALL;

		must(i % 2 ? covey_broadcast(send, to, SMALL, COVEY_INT32, opt.victim, group, stream, NULL)
			   : covey_gather(send, recv, 1, COVEY_INT32, opt.victim, group, stream, NULL),
		     "of a root that is gone");
		launch(i, SMALL);
	}
	must(covey_scatter(send, recv + (size_t)FLIGHT * SMALL, 1, COVEY_INT32, opt.victim, group, stream, NULL),
	     "scatter");
	must(tool->wait(stream), "waiting");
	must(covey_device_result(group, &o), "outcome");
	if (o.status != COVEY_ERR_ROOT)
		wrong("a root that is gone", 0, (uint32_t)o.status, (uint32_t)COVEY_ERR_ROOT);
	launch(FLIGHT - 1, SMALL);
	check(FLIGHT, SMALL, before);
}

/* ---- strokes ---- */

static void begin_stroke(void)
{
	if (rank != opt.victim)
		return;
	if (opt.where == BEFORE)
		stroke_now();
	else
		stroke_soon(opt.where == IN_LARGE ? 500 : 3000);
}

static void struck_step(uint32_t contributing)
{
	size_t count = opt.where == IN_LARGE ? count_large : SMALL;
	int n = opt.where == BEFORE ? 1 : opt.where == IN_LARGE ? 4 : FLIGHT;

	if (stroke.how == FAIL && opt.where != BEFORE && rank == opt.victim)
		launch(0, count);
	begin_stroke();
	for (int i = stroke.how == FAIL && opt.where != BEFORE && rank == opt.victim; i < n && opt.where != IN_GRAPH;
	     i++)
		launch(i, count);
	for (int i = 0; i < n && opt.where == IN_GRAPH; i += GRAPH)
		must(tool->replay(graph, stream), "a graph");
	if (opt.where == IN_GRAPH) /* all write to one place: the last counts */
		n = 1;
	check(n, opt.where == IN_GRAPH ? SMALL : count, contributing);
	stroke_wait();
	if (stroke.how == STALL && before != contributing)
		wrong("who was only late is missing", 0, before, contributing);
	for (int done = 0; done < opt.after; done += FLIGHT) {
		for (int i = 0; i < FLIGHT; i++)
			launch(i, SMALL);
		check(FLIGHT, SMALL, before);
	}
	if (stroke.how != STALL && (before >> opt.victim & 1))
		wrong("the victim is still there", 0, before, 1u << opt.victim);
	if (stroke.how != STALL && !failures)
		rootless();
}

/* Plain, large, and the graph of old. */
static void calm_step(uint32_t contributing)
{
	launch(0, SMALL);
	launch(1, SMALL);
	check(2, SMALL, contributing);
	launch(0, count_large);
	check(1, count_large, before);
	must(tool->replay(graph, stream), "a graph");
	check(1, SMALL, before);
}

static void compare_holds(void)
{
	if (!holds_same(&first, &last, rank, state.cycle))
		wrong("more is held", 0, (uint32_t)first.descriptors, (uint32_t)last.descriptors);
}

/* ---- the group ---- */

static void start(void)
{
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
	count_large = tool->room() >> 30 ? (size_t)4 << 20 : 20000; /* four take about as long as a stroke may wait */
	host = calloc(FLIGHT * count_large, sizeof(int));
	must(tool->alloc(count_large * sizeof(int), &at), "memory");
	send = at;
	must(tool->alloc(FLIGHT * SMALL > 4 * count_large ? (FLIGHT + 1) * SMALL * sizeof(int)
							  : 4 * count_large * sizeof(int),
			 &at),
	     "memory");
	recv = at;
	must(covey_view(group, &view), "view");
	rank = view.rank;
	for (size_t i = 0; i < count_large; i++)
		host[i] = element(i) << rank;
	must(tool->copy(send, host, count_large * sizeof(int)), "a copy");
}

/* Whoever it is, its sums say that it is here: the same value for one rank's processes. */
static void capture(void)
{
	if (graph)
		return;
	must(tool->capture(stream), "capture");
	for (int i = 0; i < GRAPH; i++)
		launch(0, SMALL);
	must(tool->captured(stream, &graph), "capture");
}

/* One more process than ep-run knows of. */
static void extend(void)
{
	extern char **environ;
	char number[16];
	pid_t pid;

	snprintf(number, sizeof(number), "%d", whole);
	setenv("COVEY_RANK", number, 1);
	setenv("RANK", number, 1);
	setenv("COVEY_CREATE", "never", 1);
	setenv("LOCAL_RANK", number, 1);
	unsetenv("COVEY_DEVICE");
	if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ))
		exit(1);
}

/* One step; 0: that was the last. */
static int step(void)
{
	struct covey_result result;
	uint32_t mask;

	must(covey_admit_async(group, &state, sizeof(state), stream, &result), "admit");
	size = result.size;
	mask = (uint32_t)result.mask.word[0];
	capture();
	if (covey_mask_count(&result.mask) < whole + state.extended) {
		state.calm = 0;
		calm_step(mask);
		return 1;
	}
	if (state.calm++ < CALM) {
		calm_step(mask);
		if (!state.extended) /* with one more rank more is held */
			last = holds_look(tool);
		if (state.cycle == 2 && !first.addresses)
			first = last;
		return 1;
	}
	state.calm = 0;
	stroke_progress(rank, state.cycle, opt.cycles);
	if (state.cycle++ < opt.cycles) {
		struck_step(mask);
		return 1;
	}
	state.cycle--;
	if (!opt.extend || state.extended)
		return 0;
	state.extended = 1;
	if (rank == __builtin_ctz(mask))
		extend();
	return 1;
}

int main(int argc, char **argv)
{
	static const struct number numbers[] = { { "--victim", &opt.victim },
						 { "--cycles", &opt.cycles },
						 { "--after", &opt.after },
						 { "--extend", &opt.extend },
						 { NULL, NULL } };
	const char *world = getenv("WORLD_SIZE");

	arguments = argv;
	options_read(argc, argv, numbers);
	opt.where = (enum where)stroke_options(argc, argv, wheres, 4, opt.where);
	whole = world ? atoi(world) : 1;
	stroke_stand_by();
	start();
	while (step() && !failures)
		state.step++;
	compare_holds();
	printf("rank %d: %s %s: %llu checks, %d failed, %ld cycles\n", rank, hows[stroke.how], wheres[opt.where],
	       (unsigned long long)checks, failures, state.cycle);
	fflush(stdout);
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
