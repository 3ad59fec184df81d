/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of the application that reads rows of a dispatch while it runs (covey_wait_row), in a stream of its own, under
 * ep-run. With `--kill RANK@STEP` that rank dies in that step, and its replacement comes in.
 *
 *	ep-run -n 2 --restart on-failure -- ./gpu-arrivals --kill 1@20 --steps 50
 */
#include "driver.cuh"
#include "covey_device.h"

#define THREADS 64
#define TOKENS 24
#define HIDDEN 256
#define TOP_K 3
#define EXPERTS 10

/* Of one step. */
struct report {
	uint32_t rows, wrong, none;
};

static struct covey_ep *ep;
static struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
static struct report *report;
static uint16_t *x, *packed;
static int32_t *experts, *count, *flat;
static cudaStream_t beside;
static cudaEvent_t cleared;
static uint64_t rows_read, unread, again;
static int lanes;

/* Integers up to 256 are the upper halves of their floats. */
static __host__ __device__ uint16_t element(int source, int token, int h, uint32_t step)
{
	const float f = (float)((source * 31 + token * 7 + h + (int)step) % 251);
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* A CTA for each expert here. */
static __global__ void read_rows(const uint32_t *arrived, const int32_t *counts, const int32_t *origins,
				 const uint16_t *from, int rows, uint32_t step, struct report *says)
{
	__shared__ int here;
	const int e = (int)blockIdx.x;
	uint32_t wrong = 0;
	int i = 0;

	if (threadIdx.x == 0)
		here = !covey_wait_range(arrived);
	__syncthreads();
	for (; here && i < ((const volatile int32_t *)counts)[e]; i++) {
		const size_t row = (size_t)e * (size_t)rows + (size_t)i;
		const volatile int32_t *origin = origins + row * 2;

		__syncthreads(); /* all have looked at `here` */
		if (threadIdx.x == 0)
			here = !covey_wait_row(arrived, row);
		__syncthreads();
		for (int h = (int)threadIdx.x; here && h < HIDDEN; h += THREADS)
			wrong += ((const volatile uint16_t *)from)[row * HIDDEN + (size_t)h] !=
				 element(origin[0], origin[1] / TOP_K, h, step);
	}
	if (wrong)
		atomicAdd(&says->wrong, wrong);
	if (threadIdx.x == 0)
		atomicAdd(here ? &says->rows : &says->none, here ? (uint32_t)i : 1);
}

static void launch(uint32_t step)
{
	const int ctas = covey_ep_local_experts(ep), rows = covey_ep_rows(ep);

#ifdef CPU_MACHINE_H
	const uint32_t *arrived = args.arrived;
	cudaLaunchConfig_t config = { dim3(ctas), dim3(THREADS), 0, beside, NULL, 0 };

	CUDA(cpu_launch(&config, [=] { read_rows(arrived, count, flat, packed, rows, step, report); }));
#else
	read_rows<<<ctas, THREADS, 0, beside>>>(args.arrived, count, flat, packed, rows, step, report);
	CUDA(cudaGetLastError());
#endif
}

static void fill(uint32_t step)
{
	uint16_t rows[TOKENS][HIDDEN];
	int32_t ids[TOKENS][TOP_K];

	for (int t = 0; t < TOKENS; t++) {
		for (int h = 0; h < HIDDEN; h++)
			rows[t][h] = element(rank, t, h, step);
		for (int k = 0; k < TOP_K; k++)
			ids[t][k] = (int)((unsigned)(rank + t * 3 + k * 7) + step) % EXPERTS;
	}
	CUDA(cudaMemcpyAsync(x, rows, sizeof(rows), cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(experts, ids, sizeof(ids), cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
}

/* The reader's rows are those that the dispatch counted, unless it had to place them anew. */
static void check(uint32_t step, const struct report *got)
{
	uint32_t head[COVEY_EP_ARRIVED_ROWS], all = 0;
	int32_t counts[EXPERTS];

	CUDA(cudaMemcpy(head, args.arrived, sizeof(head), cudaMemcpyDeviceToHost));
	CUDA(cudaMemcpy(counts, count, sizeof(counts), cudaMemcpyDeviceToHost));
	for (int e = 0; e < covey_ep_local_experts(ep); e++)
		all += (uint32_t)counts[e];
	checks++;
	again += head[COVEY_EP_ARRIVED_AGAIN] != 0;
	if (head[COVEY_EP_ARRIVED_AGAIN]) {
		unread += got->none;
		return;
	}
	rows_read += got->rows;
	if (got->wrong || got->none || got->rows != all) {
		fprintf(stderr, "rank %d, step %u: of %u rows %u were read, %u elements are wrong, %u waits in vain\n",
			rank, step, all, got->rows, got->wrong, got->none);
		failures++;
	}
}

static void one_step(void)
{
	static const unsigned moments[2] = { 0, 3000 };
	const uint32_t step = (uint32_t)state.step;
	struct report got = {};
	struct covey_result result;

	fill(step);
	if (doomed())
		die_soon(moments);
	CUDA(cudaMemsetAsync(args.arrived, 0,
			     (COVEY_EP_ARRIVED_ROWS + (size_t)covey_ep_rows(ep) * EXPERTS) * sizeof(uint32_t), stream));
	CUDA(cudaMemsetAsync(report, 0, sizeof(*report), stream));
	CUDA(cudaEventRecord(cleared, stream));
	CUDA(cudaStreamWaitEvent(beside, cleared, 0));
	args.num_tokens = TOKENS;
	must(covey_dispatch(ep, &args, STREAM, NULL), "dispatch");
	if (covey_ep_local_experts(ep)) /* behind a call that was not refused: it will tell its end */
		launch(step);
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaStreamSynchronize(beside));
	must(covey_device_result(group, &result), "device_result");
	must(result.status, "the outcome");
	CUDA(cudaMemcpy(&got, report, sizeof(got), cudaMemcpyDeviceToHost));
	check(step, &got);
}

static void *room(size_t bytes)
{
	void *at;

	CUDA(cudaMalloc(&at, bytes));
	return at;
}

static void lay_out(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_ep_sizes sizes = COVEY_EP_SIZES_INIT;
	cudaFuncAttributes loaded;

	config.max_tokens = TOKENS;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	config.preset = COVEY_EP_FLAT;
	config.combine = COVEY_EP_PER_RANK;
	config.lanes = lanes;
	must(covey_ep_create(group, &config, &ep), "ep_create");
	must(covey_ep_sizes(group, &config, 0, &sizes), "ep_sizes");
	sizes.rows = covey_ep_rows(ep) * EXPERTS; /* owners change with the size */
	args.x = x = (uint16_t *)room(TOKENS * HIDDEN * 2);
	args.experts = experts = (int32_t *)room(TOKENS * TOP_K * 4);
	args.weights = (float *)room(TOKENS * TOP_K * 4);
	args.packed_x = packed = (uint16_t *)room((size_t)sizes.rows * HIDDEN * 2);
	args.count = count = (int32_t *)room(EXPERTS * 4);
	args.src_info = (int32_t *)room((size_t)sizes.rows * 4);
	args.range = (int64_t *)room((size_t)EXPERTS * (size_t)sizes.ranks * 8);
	args.flat = flat = (int32_t *)room((size_t)sizes.rows * 8);
	args.arrived = (uint32_t *)room((COVEY_EP_ARRIVED_ROWS + (size_t)sizes.rows) * 4);
	args.route = room(covey_ep_route_bytes(ep));
	report = (struct report *)room(sizeof(*report));
	CUDA(cudaMemset((void *)args.weights, 0, TOKENS * TOP_K * 4));
	CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&cleared, cudaEventDisableTiming));
	/* Else it is loaded while a dispatch waits, and may wait for that. */
	CUDA(cudaFuncGetAttributes(&loaded, (const void *)read_rows));
}

int main(int argc, char **argv)
{
	static const struct number own[] = { { "--lanes", &lanes }, { NULL, NULL } };
	struct covey_result result;

	steps = 50;
	options(argc, argv, own);
	start();
	lay_out();
	for (;; state.step++) {
		must(covey_admit(group, &state, sizeof(state), &result), "admit");
		if (result.size != size)
			must(covey_ep_remap(ep, NULL), "ep_remap");
		size = result.size;
		one_step();
		if (!another(&result, world()))
			break;
	}
	if (!rows_read && !replacement) /* a replacement's few steps may all have been placed anew */
		failures++;
	printf("rank %d: %llu checks, %d failed, %llu rows read, %llu dispatches placed rows anew, %llu waits in "
	       "vain\n",
	       rank, (unsigned long long)checks, failures, (unsigned long long)rows_read, (unsigned long long)again,
	       (unsigned long long)unread);
	return finish();
}
