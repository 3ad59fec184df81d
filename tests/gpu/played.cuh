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

/* As @from would push @words of its to a lane of @r, in lines. */
static inline void played_lines(const struct job *j, int r, int from, int round, int lane, uint32_t count,
				const uint64_t *words)
{
	const int packets = j->rows * j->threads;
	uint64_t *v = (uint64_t *)malloc((size_t)packets * CVY_GPU_PACKET);

	for (int u = 0; u < packets; u++) {
		const int word = u / 8 * 15 + u % 8 * 2;

		v[2 * u] = words[word];
		v[2 * u + 1] = u % 8 == 7 ? CVY_GPU_TAG(epoch, count) : words[word + 1];
	}
	OK(ranks[r].gpu, ops->write(ranks[r].gpu, from, (int)(ranks[r].in >> (2 * from) & 3),
				    cvy_gpu_slot_at(round, lane, count), v, (size_t)packets * CVY_GPU_PACKET));
	free(v);
}

/* All others have come to step @count of a lane of @r. */
static inline void played_signals(int r, int lane, uint32_t count)
{
	for (int p = 0; p < n; p++)
		if (p != r)
			played_word(r, p, cvy_gpu_signal_at(0, lane, count), CVY_GPU_TAG(epoch, count), 0,
				    sizeof(uint64_t));
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
	struct job j = job_of(kind, COVEY_INT32, 4096);
	const int last = n - 1;
	const uint64_t op = finished(last);

	j.in_place = in_place;
	j.registered = (int)mask;
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

/*
 * Two steps, of which the second has words in the first of two lanes only, and not for all warps. All that the others push is
 * here, but nothing says that they have taken the first step everywhere: who went on would write over it.
 */
static void thin_end(int kind)
{
	struct job j = job_of(kind, COVEY_INT64, 300);
	static const uint64_t words[16 * 15] = { 1 };
	const int last = n - 1;
	const uint64_t op = finished(last);
	struct cvy_gpu_counters c;

	if (kind == CVY_GPU_ALLREDUCE_TWO_SHOT && n > 2)
		j.count *= (size_t)n;
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	OK(ranks[last].gpu, ops->counters(ranks[last].gpu, &c, 1));
	for (int p = 0; p < last; p++)
		for (int i = 0; i < 8; i++) /* rounds, lanes, steps */
			played_lines(&j, last, p, i / 4, i / 2 % 2, c.lane[i / 2 % 2].count + 1 + (uint32_t)i % 2,
				     words);
	checks++;
	if (played_completes(&j, last, op) && ++failures)
		fprintf(stderr, "kind %d: a slot that others may not have read is free\n", kind);
	for (int lane = 0; lane < 2; lane++)
		played_signals(last, lane, c.lane[lane].count + 2);
	CUDA(cudaSetDevice(ranks[last].device));
	CUDA(cudaStreamSynchronize(ranks[last].stream));
}

/*
 * Rank 1 dies in the second round of a broadcast, or of a reduce to the last rank: others have its piece, and are done; the
 * last rank has not. What it parks with leads a holder to that piece, and with it the operation is completed.
 */
static void passed_on_by_one(int kind)
{
	const int last = n - 1, gone = 1, folds = cvy_gpu_folds(kind), first = folds ? 0 : 1;
	struct job j = job_of(kind, COVEY_INT64, 120 * (size_t)(n - 1), 1);
	const uint64_t op = finished(last);
	uint64_t *pieces = (uint64_t *)calloc((size_t)n * 120 + 2, sizeof(uint64_t));
	struct cvy_gpu_counters c;
	uint32_t count;

	j.root = folds ? last : 0;
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	for (size_t i = 0; i < j.count; i++)
		pieces[i] = (uint64_t)(int64_t)(folds ? folded(&j, mask, i) : number(&j, j.root, i));
	OK(ranks[last].gpu, ops->counters(ranks[last].gpu, &c, 1));
	count = c.lane[0].count + 1;
	if (!folds)
		played_lines(&j, last, j.root, 0, 0, count, pieces + (size_t)(last - 1) * 120);
	for (int p = first; p < last; p++)
		if (p != gone)
			played_lines(&j, last, p, 1, 0, count, pieces + (size_t)(p - first) * 120);
	played_signals(last, 0, count);
	checks += 2;
	if (played_completes(&j, last, op) && ++failures)
		fprintf(stderr, "kind %d is complete without a piece of it\n", kind);
	freeze(last);
	OK(ranks[last].gpu, ops->counters(ranks[last].gpu, &c, 1));
	if ((c.parked.op != op || c.parked.rounds != 2 || c.parked.private_parts || c.parked.steps != 1) && ++failures)
		fprintf(stderr, "what is lacking of kind %d is asked for in round %u\n", kind, c.parked.rounds);
	played_lines(&j, last, gone, (int)c.parked.rounds - 1, 0, count, pieces + (size_t)(gone - first) * 120);
	epoch++;
	thaw(last, mask & ~(1u << gone), op + 1, 1u << gone);
	CUDA(cudaSetDevice(ranks[last].device));
	CUDA(cudaStreamSynchronize(ranks[last].stream));
	compare(&j, last, mask, "a piece from a holder");
	freeze(last);
	epoch++;
	thaw(last, mask, op + 1, 0);
	free(pieces);
}

/*
 * A change found that others had completed an operation in which this rank's lanes, as words were dealt out then, had none; by words
 * of the next view they have. Kernels of it that come only now push nothing and wait for nobody; what comes next is as ever.
 */
static void completed_without(int kind)
{
	struct job j = job_of(kind, COVEY_INT64, 300);
	const uint64_t op = finished(0);
	struct cvy_gpu_counters before, after;
	struct cvy_gpu_status s;

	for (int r = 0; r < n; r++) {
		prepare(&j, r);
		freeze(r);
	}
	epoch++;
	for (int r = 0; r < n; r++, checks++) {
		thaw(r, mask, op + 1, 0);
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &before, 1));
		if (!played_completes(&j, r, op) && ++failures)
			fprintf(stderr, "kind %d: rank %d waits for what others had completed\n", kind, r);
	}
	synchronise();
	for (int r = 0; r < n; r++, checks++) {
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &after, 1));
		OK(ranks[r].gpu, ops->status_read(ranks[r].gpu, &s));
		if ((s.status || s.op != op || s.epoch != epoch - 1 || s.mask != mask ||
		     after.lane[1].count != before.lane[1].count + 1) &&
		    ++failures)
			fprintf(stderr, "kind %d: rank %d ends with %d, epoch %u, mask %llx\n", kind, r, s.status,
				s.epoch, (unsigned long long)s.mask);
	}
	run(&j);
	for (int r = 0; r < n; r++, checks++) {
		OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &after, 1));
		if ((after.lane[0].failed || after.lane[1].failed) && ++failures)
			fprintf(stderr, "kind %d: rank %d looks first for ever\n", kind, r);
	}
}

/* What cannot be posted is told by mapping, so no later process of that rank has to answer for it. */
static void posted_by_one(void)
{
	struct job j = job_of(CVY_GPU_BARRIER, COVEY_INT32, 0, 1);
	const struct cvy_gpu_mailbox *box = ops->mailbox(ranks[0].gpu);
	const size_t words = sizeof(box->unsent) / sizeof(box->unsent[0]), generation = ranks[0].outgen >> 2 & 3;
	size_t at = words;

	j.packet = CVY_GPU_PAIR;
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
