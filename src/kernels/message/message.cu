/* SPDX-License-Identifier: Apache-2.0 */
/* Launches sends and receives (message.cuh), and reports which of them failed. */
#include "gpu_state.cuh"
#include "message.cuh"

/*
 * One way of a pair. With 64 large messages take a tenth less, but two launches that wait for each other's peers would not
 * fit on a device together.
 */
#define MOST_LANES 32

static_assert(CVY_GPU_CREDIT >= CVY_GPU_SIGNALS + CVY_GPU_LANES * CVY_GPU_PARITIES * CVY_GPU_SIGNAL_BYTES,
	      "signals end before");
static_assert(CVY_GPU_GIVEN + CVY_GPU_RING * sizeof(uint64_t) <= CVY_GPU_CELLS_AT, "cells begin behind");
static_assert(CVY_GPU_RING_AT + CVY_GPU_RING * CVY_GPU_PIECE <= CVY_GPU_WELCOME,
	      "and a welcome begins behind the ring");
static_assert(CVY_GPU_CELL_MOST >= 2048 || CVY_GPU_RANKS > 128, "a message of 2 KiB has no pieces");
static_assert(CVY_GPU_CELLS / 4 + CVY_GPU_MESSAGES < CVY_GPU_CELLS,
	      "a launch's cells find room beside what is not given back yet");
static_assert(sizeof(struct cvy_gpu_messages) <= (CVY_GPU_IS_WIDE ? 32764 : 4096),
	      "what a launch takes at most"); /* more: from CUDA 12.1 on */

/* Of the messages from @at on: how many pieces; *most: bytes of the largest until here. */
static uint64_t pieces_of(const struct cvy_gpu_messages *m, int at, uint64_t *most)
{
	uint64_t pieces = 0;

	for (; at >= 0; at = m->message[at].next) {
		pieces += cvy_gpu_pieces(m->message[at].bytes);
		*most = m->message[at].bytes > *most ? m->message[at].bytes : *most;
	}
	return pieces;
}

/*
 * Threads: few for few bytes, since a CTA of few begins sooner. Lanes: a piece for each warp, if there is room for all CTAs
 * of the launch at once. Both are of this side alone: a piece says by its number which warp's it is, here and there.
 */
static int shape(const struct cvy_gpu *gpu, struct cvy_gpu_messages *m)
{
	uint64_t pieces[CVY_GPU_RANKS][CVY_GPU_WAYS], most = 0;
	int ways = 0, room;

	for (int i = 0; i < m->pairs; i++)
		for (int way = 0; way < CVY_GPU_WAYS; way++) {
			pieces[i][way] = pieces_of(m, m->with[i].first[way], &most);
			ways += m->with[i].first[way] >= 0;
		}
	m->call.threads = most <= 31 * 8 ? 32 : most <= 255 * 8 ? 256 : CVY_GPU_THREADS;
	m->call.lanes = 1;
	room = ways ? gpu->processors / ways : 0;
	for (int i = 0; i < m->pairs; i++)
		for (int way = 0; way < CVY_GPU_WAYS; way++) {
			uint16_t *lanes = &m->with[i].lanes[way];

			*lanes = m->with[i].first[way] >= 0;
			while (*lanes && *lanes < MOST_LANES && *lanes * 2 <= room &&
			       (uint64_t)(*lanes * m->call.threads / 32) < pieces[i][way])
				*lanes = (uint16_t)(*lanes * 2);
			m->call.lanes = *lanes > m->call.lanes ? *lanes : m->call.lanes;
		}
	return room > 0;
}

const struct cvy_gpu_entry *cvy_gpu_message_kernel(int few)
{
	return few ? &cvy_listed<cvy_messages<struct cvy_gpu_few_messages>>
		   : &cvy_listed<cvy_messages<struct cvy_gpu_messages>>;
}

static int are_few(const struct cvy_gpu_messages *m)
{
	int most = -1;

	for (int i = 0; i < m->pairs; i++)
		for (int way = 0; way < CVY_GPU_WAYS; way++)
			for (int at = m->with[i].first[way]; at >= 0; at = m->message[at].next)
				most = at > most ? at : most;
	return m->pairs <= CVY_GPU_FEW_PAIRS && most < CVY_GPU_FEW_MESSAGES;
}

static void copy_few(struct cvy_gpu_few_messages *to, const struct cvy_gpu_messages *from)
{
	to->call = from->call;
	to->pairs = from->pairs;
	to->receipts = from->receipts;
	memcpy(to->with, from->with, sizeof(to->with));
	memcpy(to->message, from->message, sizeof(to->message));
}

static int message_launch(struct cvy_gpu *gpu, struct cvy_gpu_messages *messages, struct CUstream_st *stream)
{
	struct cvy_gpu_call *call = &messages->call;
	const int is_few = are_few(messages);
	struct cvy_gpu_few_messages few;
	void *args[] = { is_few ? (void *)&few : messages };

	if (!shape(gpu, messages))
		return fail(gpu, COVEY_ERR_UNSUPPORTED, "more sends and receives at a time than processors");
	cvy_gpu_begin(gpu, call);
	call->kind = CVY_GPU_MESSAGE;
	messages->receipts = cvy_gpu_receipts_at(gpu);
	if (is_few)
		copy_few(&few, messages);
	return check(gpu,
		     cvy_gpu_launch_kernel(gpu, cvy_gpu_message_kernel(is_few),
					   messages->pairs * CVY_GPU_WAYS * call->lanes, call->threads, args, 0,
					   stream),
		     "launching messages");
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

extern "C" __attribute__((visibility("default"))) const struct cvy_gpu_message_ops cvy_gpu_message_ops = {
	CVY_GPU_ABI,
	message_launch,
	message_failure,
	cvy_gpu_receipt_promise,
	cvy_gpu_receipt_promised,
	cvy_gpu_receipt_answer,
};
