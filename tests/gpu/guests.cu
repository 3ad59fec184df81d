/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the application that reach their peers (covey_device.h), under ep-run: in each step every rank puts a block to
 * every other, tells it, waits for theirs, over changes of the view, and looks at them. With `--kill RANK@STEP` that rank
 * dies in that step, and its replacement comes in.
 *
 *	ep-run -n 2 --restart on-failure -- ./gpu-guests --kill 1@20 --steps 50
 */
#include "driver.cuh"
#include "covey_device.h"

#define CTAS 4
#define THREADS 64
#define BLOCK 5000 /* bytes; those of a rank begin at multiples of 8, not 16 */
#define MOST 32	   /* ranks */

/* Of one launch. */
struct report {
	uint32_t again, wrong, mask, epoch;
	int err;
};

static uint8_t *data, *mine; /* [MOST][CTAS][BLOCK], [BLOCK] */
static uint64_t *word;	     /* [MOST][CTAS] */
static struct report *report;
static struct covey_device_peers peers;
static uint64_t again;
static int stays; /* a rank that says nothing: the others wait until it is gone */

static __device__ uint8_t byte_of(int r, int cta, size_t i, uint32_t value)
{
	return (uint8_t)((size_t)r * 31 + (size_t)cta * 7 + i * 3 + value);
}

static __device__ void put(const struct covey_device_peers *to, const struct covey_visit *visit, uint8_t *all,
			   uint8_t *own, uint32_t value)
{
	const int cta = (int)blockIdx.x;
	uint8_t *here = own + (size_t)cta * BLOCK;

	for (size_t i = threadIdx.x; i < BLOCK; i += blockDim.x)
		here[i] = byte_of(to->rank, cta, i, value);
	__syncthreads();
	for (int p = 0; p < MOST; p++)
		if (p != to->rank && (visit->mask >> p & 1))
			covey_put(covey_at(to, visit, p, all + (size_t)(to->rank * CTAS + cta) * BLOCK), here, BLOCK,
				  threadIdx.x, blockDim.x);
	__syncthreads();
}

static __device__ uint32_t look(const struct covey_device_peers *to, const struct covey_visit *visit,
				const uint8_t *all, uint32_t value)
{
	const int cta = (int)blockIdx.x;
	uint32_t wrong = 0;

	for (int p = 0; p < MOST; p++)
		for (size_t i = threadIdx.x; i < BLOCK && p != to->rank && (visit->mask >> p & 1); i += blockDim.x)
			wrong += ((const volatile uint8_t *)all)[(size_t)(p * CTAS + cta) * BLOCK + i] !=
				 byte_of(p, cta, i, value);
	return wrong;
}

/* All threads: waits for all peers that are there, or for as long as the view stands. 1: it ends. */
static __device__ int hear(const struct covey_device_peers *to, const struct covey_visit *visit, const uint64_t *words,
			   uint32_t value)
{
	const int p = (int)threadIdx.x;
	int ends = 0;

	if (p < MOST && p != to->rank)
		ends = covey_wait(to, visit, p, &words[p * CTAS + (int)blockIdx.x], value);
	return __syncthreads_or(ends);
}

static __global__ void meet(const __grid_constant__ struct covey_device_peers to, uint8_t *all, uint64_t *words,
			    uint8_t *own, uint32_t value, int silent, struct report *says)
{
	__shared__ struct covey_visit visit;
	__shared__ int err;
	const int p = (int)threadIdx.x;
	uint32_t wrong, again = 0;

	if (p == 0)
		err = covey_enter(&to, &visit);
	__syncthreads();
	if (!err) {
		put(&to, &visit, all, own, value);
		if (p < MOST && p != to.rank && (visit.mask >> p & 1) && !silent)
			covey_signal(&to, &visit, p, &words[to.rank * CTAS + (int)blockIdx.x], value);
	}
	while (!err && hear(&to, &visit, words, value)) {
		if (p == 0)
			err = covey_again(&to, &visit);
		again++;
		__syncthreads();
	}
	if (err) {
		says->err = err;
		return;
	}
	wrong = look(&to, &visit, all, value);
	if (wrong)
		atomicAdd(&says->wrong, wrong);
	__syncthreads();
	if (p == 0) {
		says->mask = visit.mask;
		says->epoch = visit.epoch;
		atomicAdd(&says->again, again);
		covey_exit(&to);
	}
}

static void launch(uint32_t value)
{
#ifdef CPU_MACHINE_H
	cudaLaunchConfig_t config = { dim3(CTAS), dim3(THREADS), 0, stream, NULL, 0 };

	CUDA(cpu_launch(&config, [=] { meet(peers, data, word, mine, value, stays, report); }));
#else
	meet<<<CTAS, THREADS, 0, stream>>>(peers, data, word, mine, value, stays, report);
	CUDA(cudaGetLastError());
#endif
}

static void one_step(void)
{
	static const unsigned moments[2] = { 0, 20000 };
	struct report got = {};

	if (doomed())
		die_soon(moments);
	stays = doomed();
	CUDA(cudaMemcpyAsync(report, &got, sizeof(got), cudaMemcpyHostToDevice, stream));
	launch((uint32_t)state.step + 1);
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemcpy(&got, report, sizeof(got), cudaMemcpyDeviceToHost));
	must(got.err, "covey_enter");
	if (got.wrong || !(got.mask >> rank & 1)) {
		fprintf(stderr, "rank %d, step %ld, epoch %u, mask %x: %u bytes of peers are wrong\n", rank, state.step,
			got.epoch, got.mask, got.wrong);
		failures++;
	}
	checks++;
	again += got.again;
	must(covey_barrier(group, NULL, NULL), "barrier"); /* all have read: the next step writes there */
}

int main(int argc, char **argv)
{
	static const struct number own[] = { { NULL, NULL } };
	struct covey_result result;

	steps = 50;
	options(argc, argv, own);
	setenv("COVEY_DEVICE_WINDOW_BYTES", "8388608", 1);
	start();
	must(covey_device_peers(group, &peers), "device_peers");
	must(covey_device_mem_alloc(group, (size_t)MOST * CTAS * BLOCK, (void **)&data), "device_mem_alloc");
	must(covey_device_mem_alloc(group, MOST * CTAS * sizeof(*word), (void **)&word), "device_mem_alloc");
	CUDA(cudaMalloc(&mine, CTAS * BLOCK));
	CUDA(cudaMalloc(&report, sizeof(*report)));
	for (;; state.step++) {
		must(covey_admit(group, &state, sizeof(state), &result), "admit");
		size = result.size;
		one_step();
		if (!another(&result, world()))
			break;
	}
	printf("rank %d: %llu checks, %d failed, %llu waits over a change, epoch %u\n", rank,
	       (unsigned long long)checks, failures, (unsigned long long)again, result.epoch);
	return finish();
}
