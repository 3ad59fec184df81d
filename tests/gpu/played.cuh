/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's kernel while a hand plays the others: what they would have stored in its chunks stands there before it runs.
 * So the moment is there for sure that a kernel meets which was held still while the others went on without it.
 */
#ifndef PLAYED_CUH
#define PLAYED_CUH

#include "jobs.cuh"
#include "queue.h"

static inline void played_word(int r, int from, size_t at, uint64_t first, uint64_t second, size_t bytes)
{
	const uint64_t v[2] = { first, second };

	OK(ranks[r].gpu, ops->write(ranks[r].gpu, from, (int)(ranks[r].in >> (2 * from) & 3), at, v, bytes));
}

/* Of an operation on registered buffers, all that @r hears: where the others' stand, and that they have read. */
static inline void played_pull(const struct job *j, int r)
{
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	for (int i = 0; i < j->lanes; i++) {
		const uint32_t hello = c.lane[i].count + 1, read = hello + 1;

		for (int p = 0; p < n; p++) {
			const size_t at = cvy_gpu_slot_at(0, i, hello);

			if (p == r)
				continue;
			played_word(r, p, at, (uint64_t)(ranks[p].send + pad_at(j, p) - ranks[p].window) + 1,
				    CVY_GPU_TAG(epoch, hello), CVY_GPU_PACKET);
			played_word(r, p, at + CVY_GPU_PACKET, (uint64_t)(recv_at(j, p) - ranks[p].window) + 1,
				    CVY_GPU_TAG(epoch, hello), CVY_GPU_PACKET);
			for (int round = 0; round < CVY_GPU_ROUNDS; round++)
				played_word(r, p, cvy_gpu_signal_at(round, i, read), CVY_GPU_TAG(epoch, read), 0,
					    sizeof(uint64_t));
		}
	}
}

/* The others learn a view without @r, and write where it was to read. */
static inline void played_go_on(int r)
{
	epoch++;
	for (int p = 0; p < n; p++) {
		if (p == r)
			continue;
		OK(ranks[p].gpu, ops->gate(ranks[p].gpu, CVY_GPU_GATE_CLOSED(epoch - 1)));
		thaw(p, mask & ~(1u << r), finished(p), 1u << r);
		CUDA(cudaSetDevice(ranks[p].device));
		CUDA(cudaMemset(ranks[p].send, 0x11, MOST));
		CUDA(cudaDeviceSynchronize());
	}
}

/* Does @r complete operation @op of @j? It does, or it says whom it waits for. */
static inline int played_completes(const struct job *j, int r, uint64_t op)
{
	const struct cvy_gpu_mailbox *box = ops->mailbox(ranks[r].gpu);
	uint64_t late[RANKS];
	int waits = 0;

	memcpy(late, box->late, sizeof(late));
	launch(j, r);
	while (finished(r) == op && !waits) {
		usleep(1000);
		for (int p = 0; p < n; p++)
			waits |= __atomic_load_n(&box->late[p], __ATOMIC_ACQUIRE) != late[p];
	}
	return finished(r) != op;
}

/* The host ends all that @r has under way, as a member does that was left out. Says how the operation ended. */
static inline int played_end(int r)
{
	struct cvy_gpu_verdict end = { UINT32_MAX, COVEY_ERR_FENCED, 0, 0, 0 };
	struct cvy_gpu_counters c;
	struct cvy_gpu_status s;

	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, NULL, &end));
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaStreamSynchronize(ranks[r].stream));
	OK(ranks[r].gpu, ops->status_read(ranks[r].gpu, &s));
	return s.status;
}

/* A queue to @to that takes nothing: its rank is of another host from now on, as far as @r's kernels know. */
static inline void played_queue(int r, int to)
{
	struct cvy_queue none = {};
	struct cvy_gpu_verdict v = {};
	struct cvy_gpu_counters c;

	none.kind = CVY_QUEUE_RING;
	freeze(r);
	OK(ranks[r].gpu, ops->queue(ranks[r].gpu, to, (int)(ranks[r].outgen >> (2 * to) & 3), &none, 1));
	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	v.epoch = ++epoch;
	v.base = c.finished / CVY_GPU_QUANTA;
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, mask, CVY_GPU_FAR, ranks[r].in, ranks[r].outgen };
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, &ranks[r].roll, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

/*
 * What the last rank reads where it stands is good as long as nobody has gone on without it. Its host is late to hear of
 * that view: nothing is completed then, and what becomes of the operation is the host's word.
 */
static void read_by_one(int kind, int in_place, int outrun)
{
	struct job j = { kind, CVY_GPU_LINE, COVEY_INT32, COVEY_SUM, -1, 2, 64, 1, in_place, 4096, 0, (int)mask, 0, 0 };
	const int last = n - 1;
	const uint64_t op = finished(last);

	for (int r = 0; r < n; r++)
		prepare(&j, r);
	played_pull(&j, last);
	if (outrun)
		played_go_on(last);
	checks++;
	if (played_completes(&j, last, op) == outrun && ++failures)
		fprintf(stderr, "kind %d: what others %s read is %s\n", kind,
			outrun ? "wrote later and this rank" : "have", outrun ? "taken for good" : "not taken");
	if (!outrun)
		compare(&j, last, mask, "read by one");
	else if (played_end(last) != COVEY_ERR_FENCED && ++failures)
		fprintf(stderr, "kind %d: who was left out is not told\n", kind);
}

/* What cannot be posted is told by mapping, so no later process of that rank has to answer for it. */
static void posted_by_one(void)
{
	struct job j = { CVY_GPU_BARRIER, CVY_GPU_PAIR, COVEY_INT32, COVEY_SUM, -1, 1, 64, 1, 0, 0, 0, 0, 0, 0 };
	const struct cvy_gpu_mailbox *box = ops->mailbox(ranks[0].gpu);
	const size_t words = sizeof(box->unsent) / sizeof(box->unsent[0]), generation = ranks[0].outgen >> 2 & 3;
	size_t at = words;

	played_queue(0, 1);
	launch(&j, 0);
	for (; at == words; usleep(1000))
		for (at = 0; at < words && !__atomic_load_n(&box->unsent[at], __ATOMIC_ACQUIRE); at++)
			;
	played_end(0);
	checks++;
	if (at != CVY_GPU_GENERATIONS + generation && ++failures)
		fprintf(stderr, "rank 1, mapping %zu: what could not be posted is told of %zu\n", generation, at);
}

#endif
