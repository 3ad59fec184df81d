/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation of covey at several sizes, for tests/bench/healthy: a line `operation bytes mean_ns
 * repetitions` for each, the mean being loop time / operations, the largest over the ranks. `ops_covey N` divides the
 * repetitions by N, so that instructions can be counted in a slow emulator.
 */
#include "bench.h"
#include "covey.h"

#define EP_EXPERTS 8
#define EP_TOP_K 2
#define EP_HIDDEN 64
#define EP_ROW (2 * EP_HIDDEN) /* bytes of a token */
#define EP_MOST 131072	       /* bytes of the tokens of one dispatch */
#define EP_TOKENS (EP_MOST / EP_ROW)

static const size_t sizes[] = { 8, 1024, 16384, 131072, 1048576 };
static const int repetitions[] = { 40000, 20000, 6000, 1500, 150 };

struct work {
	struct covey_group *group;
	struct covey_ep *ep;
	int rank, ranks;
	uint8_t *send, *recv;
	int32_t *experts, *count, *source;
	int64_t *range;
	float *weights;
	void *rows;
};

static int open_ep(struct work *w)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	size_t rows, local;
	int err;

	config.max_tokens = EP_TOKENS;
	config.hidden = EP_HIDDEN;
	config.top_k = EP_TOP_K;
	config.experts = EP_EXPERTS;
	err = covey_ep_create(w->group, &config, &w->ep);
	if (err)
		return err;
	local = (size_t)covey_ep_local_experts(w->ep);
	rows = (size_t)covey_ep_rows(w->ep);
	w->experts = calloc((size_t)EP_TOKENS * EP_TOP_K, sizeof(*w->experts));
	w->weights = calloc((size_t)EP_TOKENS * EP_TOP_K, sizeof(*w->weights));
	w->count = calloc(local, sizeof(*w->count));
	w->source = calloc(local * rows, sizeof(*w->source));
	w->range = calloc(local * (size_t)w->ranks, sizeof(*w->range));
	w->rows = calloc(local * rows, EP_ROW);
	if (!w->experts || !w->weights || !w->count || !w->source || !w->range || !w->rows)
		return COVEY_ERR_NOMEM;
	for (int i = 0; i < EP_TOKENS * EP_TOP_K; i++) {
		w->experts[i] = (i * 5 + i / 3) % EP_EXPERTS;
		w->weights[i] = 0.5f;
	}
	return 0;
}

static void close_ep(struct work *w)
{
	covey_ep_destroy(w->ep);
	free(w->experts);
	free(w->weights);
	free(w->count);
	free(w->source);
	free(w->range);
	free(w->rows);
}

static int allreduce(struct work *w, size_t n)
{
	return covey_allreduce(w->send, w->recv, n / 4, COVEY_FLOAT32, COVEY_SUM, w->group, NULL, NULL);
}

/* Sums grow from call to call, so the data are zeros: copying is what is looked at. */
static int in_place(struct work *w, size_t n)
{
	return covey_allreduce(w->recv, w->recv, n / 4, COVEY_FLOAT32, COVEY_SUM, w->group, NULL, NULL);
}

static int broadcast(struct work *w, size_t n)
{
	return covey_broadcast(w->send, w->recv, n / 4, COVEY_FLOAT32, 0, w->group, NULL, NULL);
}

static int allgather(struct work *w, size_t n)
{
	return covey_allgather(w->send, w->recv, n / 4 / (size_t)w->ranks, COVEY_FLOAT32, w->group, NULL, NULL);
}

static int alltoall(struct work *w, size_t n)
{
	return covey_alltoall(w->send, w->recv, n / 4 / (size_t)w->ranks, COVEY_FLOAT32, w->group, NULL, NULL);
}

static int barrier(struct work *w, size_t n)
{
	(void)n;
	return covey_barrier(w->group, NULL, NULL);
}

static int dispatch(struct work *w, size_t n)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;

	args.num_tokens = (int)(n / EP_ROW);
	args.x = w->send;
	args.experts = w->experts;
	args.packed_x = w->rows;
	args.count = w->count;
	args.src_info = w->source;
	args.range = w->range;
	return covey_dispatch(w->ep, &args, NULL, NULL);
}

/* The dispatch goes along: a combine needs one. */
static int combine(struct work *w, size_t n)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	int err = dispatch(w, n);

	args.num_tokens = (int)(n / EP_ROW);
	args.y = w->rows;
	args.count = w->count;
	args.src_info = w->source;
	args.range = w->range;
	args.experts = w->experts;
	args.weights = w->weights;
	args.out = w->recv;
	return err ? err : covey_combine(w->ep, &args, NULL, NULL);
}

static const struct {
	const char *name;
	int (*run)(struct work *w, size_t n);
	size_t least, most; /* bytes */
} kinds[] = { { "allreduce", allreduce, 8, 1u << 20 }, { "in-place", in_place, 8, 1u << 20 },
	      { "broadcast", broadcast, 8, 1u << 20 }, { "allgather", allgather, 8, 1u << 20 },
	      { "alltoall", alltoall, 8, 1u << 20 },   { "barrier", barrier, 8, 8 },
	      { "dispatch", dispatch, 1024, EP_MOST }, { "dispatch+combine", combine, 1024, EP_MOST } };

/* A function of its own, so that an emulator can count what happens inside. */
static __attribute__((noinline)) int timed(struct work *w, size_t k, size_t s, int n)
{
	int err = 0;

	for (int i = 0; !err && i < n; i++)
		err = kinds[k].run(w, sizes[s]);
	return err;
}

static int measure(struct work *w, size_t k, size_t s, int n)
{
	double ns;
	uint64_t start;
	int err = 0;

	for (int i = 0; !err && i < n / 10 + 2; i++)
		err = kinds[k].run(w, sizes[s]);
	if (!err)
		err = covey_barrier(w->group, NULL, NULL);
	start = bench_now_ns();
	if (!err)
		err = timed(w, k, s, n);
	ns = (double)(bench_now_ns() - start) / n;
	if (!err)
		err = covey_allreduce(&ns, &ns, 1, COVEY_FLOAT64, COVEY_MAX, w->group, NULL, NULL);
	if (!err && !w->rank)
		printf("%s %zu %.1f %d\n", kinds[k].name, sizes[s], ns, n);
	return err;
}

static int run(struct work *w, int divide)
{
	int err = 0;

	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		for (size_t s = 0; !err && s < sizeof(sizes) / sizeof(sizes[0]); s++)
			if (sizes[s] >= kinds[k].least && sizes[s] <= kinds[k].most)
				err = measure(w, k, s, repetitions[s] / divide + 1);
	return err;
}

int main(int argc, char **argv)
{
	struct work w = { 0 };
	struct covey_view view;
	size_t most = sizes[sizeof(sizes) / sizeof(sizes[0]) - 1];
	int err = covey_join(NULL, &w.group);

	w.send = calloc(1, most);
	w.recv = calloc(1, most);
	if (!err)
		err = covey_view(w.group, &view);
	if (!err && w.send && w.recv) {
		w.rank = view.rank;
		w.ranks = covey_mask_count(&view.members);
		bench_pin(w.rank, w.ranks);
		memset(w.send, 0, most);
		err = open_ep(&w);
	}
	if (!err) {
		err = run(&w, argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 1);
	}
	close_ep(&w);
	if (!err)
		err = covey_leave(w.group, 0);
	if (err)
		fprintf(stderr, "ops_covey: %s\n", covey_strerror(err));
	covey_close(w.group);
	free(w.send);
	free(w.recv);
	return err != 0;
}
