/* SPDX-License-Identifier: Apache-2.0 */
/* covey's side of the benchmark, every operation: see bench.h. Started by ep-run, default settings. */
#include "bench.h"
#include "covey_ep.h"

#define EP_EXPERTS 8
#define EP_TOP_K 2
#define EP_HIDDEN 64
#define EP_ROW (2 * EP_HIDDEN) /* bytes of a token */
#define EP_MOST 131072	       /* bytes of the tokens of one dispatch */
#define EP_TOKENS (EP_MOST / EP_ROW)
#define F32 COVEY_FLOAT32

static struct covey_group *group;
static struct bench_side side;

static struct {
	struct covey_ep *ep;
	int32_t *experts, *count, *source;
	int64_t *range;
	float *weights;
	void *rows;
} ep;

static int failed(const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(group, &info);
	fprintf(stderr, "%s: %s: %s\n", what, covey_strerror(err), info.cause);
	return err;
}

static int allreduce(void *send, void *recv, size_t count)
{
	return covey_allreduce(send, recv, count, F32, COVEY_SUM, group, NULL, NULL);
}

static int in_place(void *send, void *recv, size_t count)
{
	(void)send;
	return covey_allreduce(recv, recv, count, F32, COVEY_SUM, group, NULL, NULL);
}

/* In place on the root, as MPI_Bcast always is. */
static int broadcast(void *send, void *recv, size_t count)
{
	return covey_broadcast(send, side.rank ? recv : send, count, F32, 0, group, NULL, NULL);
}

static int allgather(void *send, void *recv, size_t count)
{
	return covey_allgather(send, recv, count, F32, group, NULL, NULL);
}

static int alltoall(void *send, void *recv, size_t count)
{
	return covey_alltoall(send, recv, count, F32, group, NULL, NULL);
}

static int reduce_scatter(void *send, void *recv, size_t count)
{
	return covey_reduce_scatter(send, recv, count, F32, COVEY_SUM, group, NULL, NULL);
}

static int reduce(void *send, void *recv, size_t count)
{
	return covey_reduce(send, recv, count, F32, COVEY_SUM, 0, group, NULL, NULL);
}

static int gather(void *send, void *recv, size_t count)
{
	return covey_gather(send, recv, count, F32, 0, group, NULL, NULL);
}

static int scatter(void *send, void *recv, size_t count)
{
	return covey_scatter(send, recv, count, F32, 0, group, NULL, NULL);
}

static int sendrecv(void *send, void *recv, size_t count)
{
	int next = (side.rank + 1) % side.ranks, before = (side.rank + side.ranks - 1) % side.ranks;

	if (covey_group_start() || covey_send(send, count, F32, next, 0, group, NULL, NULL) ||
	    covey_recv(recv, count, F32, before, 0, group, NULL, NULL))
		return -1;
	return covey_group_end();
}

static int barrier(void *send, void *recv, size_t count)
{
	(void)send;
	(void)recv;
	(void)count;
	return covey_barrier(group, NULL, NULL);
}

static int dispatch(void *send, void *recv, size_t count)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;

	(void)recv;
	args.num_tokens = (int)(count * sizeof(float) / EP_ROW);
	args.x = send;
	args.experts = ep.experts;
	args.packed_x = ep.rows;
	args.count = ep.count;
	args.src_info = ep.source;
	args.range = ep.range;
	return covey_dispatch(ep.ep, &args, NULL, NULL);
}

/* The dispatch goes along: a combine needs one. */
static int combine(void *send, void *recv, size_t count)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	int err = dispatch(send, recv, count);

	args.num_tokens = (int)(count * sizeof(float) / EP_ROW);
	args.y = ep.rows;
	args.count = ep.count;
	args.src_info = ep.source;
	args.range = ep.range;
	args.experts = ep.experts;
	args.weights = ep.weights;
	args.out = recv;
	return err ? err : covey_combine(ep.ep, &args, NULL, NULL);
}

static int open_ep(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	size_t rows, local;
	int err;

	if (ep.ep)
		return 0;
	config.max_tokens = EP_TOKENS;
	config.hidden = EP_HIDDEN;
	config.top_k = EP_TOP_K;
	config.experts = EP_EXPERTS;
	err = covey_ep_create(group, &config, &ep.ep);
	if (err)
		return failed("covey_ep_create", err);
	local = (size_t)covey_ep_local_experts(ep.ep);
	rows = (size_t)covey_ep_rows(ep.ep);
	ep.experts = calloc((size_t)EP_TOKENS * EP_TOP_K, sizeof(*ep.experts));
	ep.weights = calloc((size_t)EP_TOKENS * EP_TOP_K, sizeof(*ep.weights));
	ep.count = calloc(local, sizeof(*ep.count));
	ep.source = calloc(local * rows, sizeof(*ep.source));
	ep.range = calloc(local * (size_t)side.ranks, sizeof(*ep.range));
	ep.rows = calloc(local * rows, EP_ROW);
	if (!ep.experts || !ep.weights || !ep.count || !ep.source || !ep.range || !ep.rows)
		return COVEY_ERR_NOMEM;
	for (int i = 0; i < EP_TOKENS * EP_TOP_K; i++) {
		ep.experts[i] = (i * 5 + i / 3) % EP_EXPERTS;
		ep.weights[i] = 0.5f;
	}
	return 0;
}

static void close_ep(void)
{
	covey_ep_destroy(ep.ep);
	free(ep.experts);
	free(ep.weights);
	free(ep.count);
	free(ep.source);
	free(ep.range);
	free(ep.rows);
}

static int max(double *value)
{
	return covey_allreduce(value, value, 1, COVEY_FLOAT64, COVEY_MAX, group, NULL, NULL);
}

static struct bench_side side = {
	.call = { [BENCH_ALLREDUCE] = allreduce,
		  [BENCH_IN_PLACE] = in_place,
		  [BENCH_BROADCAST] = broadcast,
		  [BENCH_ALLGATHER] = allgather,
		  [BENCH_ALLTOALL] = alltoall,
		  [BENCH_REDUCE_SCATTER] = reduce_scatter,
		  [BENCH_REDUCE] = reduce,
		  [BENCH_GATHER] = gather,
		  [BENCH_SCATTER] = scatter,
		  [BENCH_SENDRECV] = sendrecv,
		  [BENCH_BARRIER] = barrier,
		  [BENCH_DISPATCH] = dispatch,
		  [BENCH_COMBINE] = combine },
	.max = max,
	.prepare = open_ep,
};

int main(int argc, char **argv)
{
	struct covey_view view;
	int err = covey_join(NULL, &group);

	if (!err)
		err = covey_view(group, &view);
	if (err)
		return failed("covey_join", err), 1;
	side.rank = view.rank;
	side.ranks = covey_mask_count(&view.members);
	/* An operation that lost a contributor is no measurement. */
	covey_set_on_loss(group, COVEY_ON_LOSS_FAIL);
	err = bench_main(&side, argc, argv);
	close_ep();
	if (!err && covey_leave(group, 0))
		err = 1;
	if (err)
		failed("ops_covey", err);
	covey_close(group);
	return err;
}
