/* SPDX-License-Identifier: Apache-2.0 */
/* What launches sends and receives (message.cuh), and says which of them failed. */
#include "gpu_state.cuh"
#include "message.cuh"

static_assert(CVY_GPU_CREDIT >= CVY_GPU_SIGNALS + CVY_GPU_LANES * CVY_GPU_PARITIES * CVY_GPU_SIGNAL_BYTES,
	      "signals end before");
static_assert(CVY_GPU_RING_AT + CVY_GPU_RING * CVY_GPU_SLOT <= CVY_GPU_WELCOME, "and a welcome begins behind the ring");
static_assert(sizeof(struct cvy_gpu_messages) <= 4096, "what a launch takes at most");

/* Few for few bytes: a CTA of few threads begins sooner. Nothing else follows from it. */
static int threads_for(const struct cvy_gpu_messages *m)
{
	uint64_t most = 0;

	for (int i = 0; i < m->call.lanes; i++) {
		for (int k = m->with[i].send; k >= 0; k = m->message[k].next)
			most = m->message[k].bytes > most ? m->message[k].bytes : most;
		for (int k = m->with[i].recv; k >= 0; k = m->message[k].next)
			most = m->message[k].bytes > most ? m->message[k].bytes : most;
	}
	return most <= 448 ? 32 : most <= 16 << 10 ? 256 : CVY_GPU_THREADS;
}

const void *cvy_gpu_message_kernel(void)
{
	return (const void *)cvy_messages;
}

static int message_launch(struct cvy_gpu *gpu, struct cvy_gpu_messages *messages, struct CUstream_st *stream)
{
	struct cvy_gpu_call *call = &messages->call;
	void *args[] = { messages };
	int was, err = cvy_gpu_begin(gpu, call, &was);

	if (err)
		return err;
	call->kind = CVY_GPU_MESSAGE;
	call->threads = threads_for(messages);
	return cvy_gpu_end(gpu,
			   cudaLaunchKernel(cvy_gpu_message_kernel(), dim3((unsigned)call->lanes),
					    dim3((unsigned)call->threads), args, 0, stream),
			   "launching messages", was);
}

/* Nobody writes a word that is not 0 but this. */
static int message_failure(struct cvy_gpu *gpu, uint64_t *failure)
{
	static const uint64_t none = 0;
	int err = use(gpu);

	if (!err)
		err = copy(gpu, failure, &gpu->control->failure, sizeof(*failure), "what became of messages");
	if (!err && *failure)
		err = copy(gpu, &gpu->control->failure, &none, sizeof(none), "what became of messages");
	return err;
}

extern "C" __attribute__((visibility("default")))
const struct cvy_gpu_message_ops cvy_gpu_message_ops = { CVY_GPU_ABI, message_launch, message_failure };
