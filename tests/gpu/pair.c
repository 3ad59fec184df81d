/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dispatch, a combine and the pair of both take as operations of a group, under ep-run: so also between ranks that
 * COVEY_TEST_TOPOLOGY makes hosts of their own, by whatever way COVEY_QUEUES has. Graphs of as many operations as --ops says are
 * replayed; rank 0 prints the median over --rounds of the time of one. Rows are e4m3
 * with scales, sums are made per rank, the experts of a token are spread over all ranks.
 *
 * Every expert gives back ones and the weights of a token add up to one: so does every combined element, or it fails.
 */
#include <covey_device.h>
#include <covey_ep.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "tool_find.h"

#define TOP_K 8
#define ROUNDS_MOST 100
#define ONE 0x3f80 /* bf16 */

static const struct cvy_gpu_tool *tool;
static struct covey_group *group;
static struct covey_ep *ep;
static struct CUstream_st *stream;
static struct covey_dispatch_args to = COVEY_DISPATCH_INIT;
static struct covey_combine_args back = COVEY_COMBINE_INIT;
static int rank, size, tokens = 128, hidden = 7168, experts = 64, ops = 20, rounds = 15, failures;
static uint16_t *out;

static void must(int err, const char *what)
{
	struct covey_error_info info = { 0 };

	if (!err)
		return;
	covey_last_error(group, &info);
	fprintf(stderr, "rank %d: %s: %s: %s %s\n", rank, what, covey_strerror(err), info.cause,
		tool ? tool->why() : "");
	exit(1);
}

static void *room(size_t bytes)
{
	void *at;

	must(tool->alloc((bytes + 255) / 256 * 256, &at), "memory");
	return at;
}

/* With what stands on the host, which is given back. */
static void *filled(void *from, size_t bytes)
{
	void *at = room(bytes);

	must(tool->copy(at, from, bytes), "a copy");
	free(from);
	return at;
}

static void *halves(size_t count, uint16_t value)
{
	uint16_t *h = malloc(count * sizeof(*h));

	if (!h)
		exit(1);
	for (size_t i = 0; i < count; i++)
		h[i] = value;
	return filled(h, count * sizeof(*h));
}

static void *ids(int all)
{
	int32_t *id = malloc((size_t)tokens * TOP_K * sizeof(*id));

	if (!id)
		exit(1);
	for (int t = 0; t < tokens; t++)
		for (int k = 0; k < TOP_K; k++) /* each another, and of every rank some */
			id[t * TOP_K + k] = (t * 13 + rank * 5 + k * all / TOP_K) % all;
	return filled(id, (size_t)tokens * TOP_K * sizeof(*id));
}

static void *weights(void)
{
	float *w = malloc((size_t)tokens * TOP_K * sizeof(*w));

	if (!w)
		exit(1);
	for (int i = 0; i < tokens * TOP_K; i++)
		w[i] = 1.0f / TOP_K;
	return filled(w, (size_t)tokens * TOP_K * sizeof(*w));
}

static void make_room(void)
{
	size_t local = (size_t)covey_ep_local_experts(ep), rows = local * (size_t)covey_ep_rows(ep);

	to.num_tokens = back.num_tokens = tokens;
	to.x = halves((size_t)tokens * (size_t)hidden, ONE);
	to.experts = back.experts = ids(experts * size);
	to.weights = back.weights = weights();
	to.packed_x = room(rows * (size_t)hidden);
	to.packed_scales = room(rows * ((size_t)hidden + 127) / 128 * sizeof(float));
	to.count = room(local * sizeof(int32_t));
	to.src_info = room(rows * sizeof(int32_t));
	to.range = room(local * (size_t)size * sizeof(int64_t));
	to.route = room(covey_ep_route_bytes(ep));
	back.route = to.route;
	back.y = halves(rows * (size_t)hidden, ONE);
	back.out = room((size_t)tokens * (size_t)hidden * sizeof(uint16_t));
	out = malloc((size_t)tokens * (size_t)hidden * sizeof(*out));
	if (!out)
		exit(1);
}

/* An input in memory of the host would kill the kernel, and its rank with it. */
static void refuse_host_memory(void)
{
	static const float scale = 1;

	to.x_scales = &scale;
	if (covey_dispatch(ep, &to, stream, NULL) != COVEY_ERR_INVAL)
		failures++, fprintf(stderr, "rank %d: scales in memory of the host are taken\n", rank);
	to.x_scales = NULL;
}

static void start(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	const char *device, *local = getenv("LOCAL_RANK");
	struct covey_result result;
	struct covey_view view;

	setenv("COVEY_DEVICE", "local", 0);
	device = getenv("COVEY_DEVICE");
	must(covey_join(NULL, &group), "join");
	tool = cvy_gpu_tool_find();
	if (!tool)
		exit(1);
	must(tool->use(device && strcmp(device, "local") ? atoi(device) : local ? atoi(local) : 0), "the device");
	must(tool->stream(&stream), "a stream");
	must(covey_view(group, &view), "view");
	rank = view.rank;
	must(covey_admit_async(group, NULL, 0, stream, &result), "admit");
	size = result.size;
	config.max_tokens = tokens;
	config.hidden = hidden;
	config.top_k = TOP_K;
	config.experts = experts * size;
	config.rows = COVEY_EP_ROWS_E4M3;
	config.combine = COVEY_EP_PER_RANK;
	must(covey_ep_create(group, &config, &ep), "ep_create");
	make_room();
	refuse_host_memory();
}

static void launch(int kinds)
{
	if (kinds & 1)
		must(covey_dispatch(ep, &to, stream, NULL), "dispatch");
	if (kinds & 2)
		must(covey_combine(ep, &back, stream, NULL), "combine");
}

static void check(void)
{
	struct covey_result o;
	size_t n = (size_t)tokens * (size_t)hidden;

	must(tool->wait(stream), "waiting");
	must(covey_device_result(group, &o), "outcome");
	must(o.status, "the outcome");
	must(tool->copy(out, back.out, n * sizeof(*out)), "a copy");
	for (size_t i = 0; i < n; i++)
		if (out[i] != ONE && failures++ < 4)
			fprintf(stderr, "rank %d: element %zu is %04x\n", rank, i, out[i]);
	must(tool->fill(back.out, 0xc5, n * sizeof(*out)), "a fill");
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double timed(int kinds)
{
	struct cvy_gpu_graph *graph;
	double us[ROUNDS_MOST];

	must(tool->capture(stream), "capture");
	for (int i = 0; i < ops; i++)
		launch(kinds);
	must(tool->captured(stream, &graph), "capture");
	for (int i = -1; i < rounds; i++) { /* one to warm up */
		struct covey_result result;

		must(covey_barrier(group, NULL, &result), "barrier");
		must(tool->mark(stream, 0), "a mark");
		must(tool->replay(graph, stream), "a graph");
		must(tool->mark(stream, 1), "a mark");
		must(tool->wait(stream), "waiting");
		must(tool->between(0, 1, &us[i < 0 ? 0 : i]), "the time");
	}
	tool->graph_end(graph);
	qsort(us, (size_t)rounds, sizeof(*us), ascending);
	return us[rounds / 2] / ops;
}

int main(int argc, char **argv)
{
	static const struct number numbers[] = { { "--tokens", &tokens },   { "--hidden", &hidden },
						 { "--experts", &experts }, { "--ops", &ops },
						 { "--rounds", &rounds },   { NULL, NULL } };
	double us[4] = { 0 };

	options_read(argc, argv, numbers);
	rounds = rounds < 1 ? 1 : rounds > ROUNDS_MOST ? ROUNDS_MOST : rounds;
	start();
	launch(3); /* what a handle has on its device is made by its first call, outside of graphs */
	check();
	for (int kinds = 1; kinds <= 3; kinds++)
		us[kinds] = timed(kinds);
	check();
	if (rank == 0)
		printf("%d ranks, topology %s, queues %s, %d tokens of %d: dispatch %.2f us, combine %.2f, pair %.2f\n",
		       size, getenv("COVEY_TEST_TOPOLOGY") ? getenv("COVEY_TEST_TOPOLOGY") : "-",
		       getenv("COVEY_QUEUES") ? getenv("COVEY_QUEUES") : "-", tokens, hidden, us[1], us[2], us[3]);
	printf("rank %d: %d failed\n", rank, failures);
	fflush(stdout);
	covey_ep_destroy(ep);
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
