/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of ep-chaos: operations without end, each checked against the right result of its contributors, then logged.
 * Values are small integers, so that sums are exact: rank r gives (r + 1) * (i % 61 + 1) at element i, and (r + 1) *
 * step at element 0.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rank.h"

#define STEP_VALUES 1024

int chaos_rank_fail(struct worker *w, const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(w->group, &info);
	snprintf(w->slot->cause, sizeof(w->slot->cause), "%s: %s: %.180s", what, covey_strerror(err), info.cause);
	return err == COVEY_ERR_FENCED ? CHAOS_EXIT_FENCED : 1;
}

static float base(size_t i)
{
	return (float)(i % 61 + 1);
}

static float step_value(const struct worker *w)
{
	return (float)(w->step % STEP_VALUES);
}

/* The view events so far: from them the parent knows when a view was agreed. */
static void note_views(struct worker *w, uint32_t epoch)
{
	struct covey_event event;

	while (!covey_event_next(w->group, &event)) {
		struct chaos_view *view = &w->slot->view[event.epoch % CHAOS_VIEWS];

		w->slot->suspects += event.kind == COVEY_EVENT_SUSPECT;
		if (event.kind != COVEY_EVENT_VIEW)
			continue;
		view->time_ns = event.time_ns;
		__atomic_store_n(&view->epoch, event.epoch, __ATOMIC_RELEASE);
	}
	if (w->slot->view[epoch % CHAOS_VIEWS].epoch == epoch)
		w->epoch = epoch;
}

void chaos_record_begin(struct worker *w, enum chaos_op op)
{
	w->record = (struct chaos_record){ .step = w->step, .op = op, .enter_ns = chaos_now_ns() };
	__atomic_store_n(&w->slot->inside, 1, __ATOMIC_RELEASE);
}

void chaos_record_done(struct worker *w, const struct covey_result *result)
{
	w->record.done_ns = chaos_now_ns();
	__atomic_store_n(&w->slot->inside, 0, __ATOMIC_RELEASE);
	w->record.seq = result->seq;
	w->record.epoch = result->epoch;
	w->record.status = result->status;
	w->record.mask = result->mask.word[0];
}

/* The parent reads every millisecond; our death signal ensures that it lives. */
void chaos_record_put(struct worker *w)
{
	uint64_t head = w->slot->head;

	while (head - __atomic_load_n(&w->slot->tail, __ATOMIC_ACQUIRE) == CHAOS_RING)
		sched_yield();
	w->slot->ring[head % CHAOS_RING] = w->record;
	__atomic_store_n(&w->slot->head, head + 1, __ATOMIC_RELEASE);
	if (w->record.epoch != w->epoch)
		note_views(w, w->record.epoch);
}

static uint64_t checksum(const float *data, size_t count)
{
	uint64_t sum = count, word;

	for (size_t i = 0; i + 1 < count; i += 2) {
		memcpy(&word, data + i, sizeof(word));
		sum += word * (2 * i + 1);
	}
	return sum;
}

/* A wrong value is a result like another: it is logged, and the parent reports it. */
int chaos_rank_wrong(struct worker *w, const char *what)
{
	snprintf(w->slot->cause, sizeof(w->slot->cause), "%s: wrong bytes at step %llu, seq %llu, epoch %u, mask %llx",
		 what, (unsigned long long)w->step, (unsigned long long)w->record.seq, w->record.epoch,
		 (unsigned long long)w->record.mask);
	return 1;
}

/* @recv must be @weight * base at @count elements, the step's value in front. */
static int expect(struct worker *w, const float *recv, size_t count, float weight)
{
	if (w->want_weight != weight) {
		for (size_t i = 0; i < w->count; i++)
			w->want[i] = weight * base(i);
		w->want_weight = weight;
	}
	w->want[0] = weight * step_value(w);
	return memcmp(recv, w->want, count * sizeof(float)) ? -1 : 0;
}

static int expect_zero(const float *recv, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (recv[i] != 0)
			return -1;
	return 0;
}

static float weight_of(uint64_t mask)
{
	float sum = 0;

	for (int r = 0; r < CHAOS_MAX_RANKS; r++)
		if (mask >> r & 1)
			sum += (float)(r + 1);
	return sum;
}

static int run_allreduce(struct worker *w, enum chaos_op op, struct covey_result *result)
{
	const float *from = w->send;
	int err;

	if (op == CHAOS_IN_PLACE)
		from = memcpy(w->recv, w->send, w->count * sizeof(float));
	if (w->there) {
		err = chaos_there_allreduce(w, result);
	} else {
		chaos_record_begin(w, op);
		err = covey_allreduce(from, w->recv, w->count, COVEY_FLOAT32, COVEY_SUM, w->group, NULL, result);
		chaos_record_done(w, result);
	}
	if (err)
		return chaos_rank_fail(w, "allreduce", err);
	w->record.checksum = checksum(w->recv, w->count);
	return expect(w, w->recv, w->count, weight_of(w->record.mask)) ? chaos_rank_wrong(w, "allreduce") : 0;
}

static int run_broadcast(struct worker *w, struct covey_result *result)
{
	int root = (int)(w->step / CHAOS_MIXED % (uint64_t)w->shared->ranks), err;

	chaos_record_begin(w, CHAOS_BROADCAST);
	err = covey_broadcast(w->send, w->recv, w->count, COVEY_FLOAT32, root, w->group, NULL, result);
	chaos_record_done(w, result);
	if (err == COVEY_ERR_ROOT)
		return 0;
	if (err)
		return chaos_rank_fail(w, "broadcast", err);
	w->record.checksum = checksum(w->recv, w->count);
	return expect(w, w->recv, w->count, (float)(root + 1)) ? chaos_rank_wrong(w, "broadcast") : 0;
}

/* Blocks of the sources in the mask are there, the others zero. In alltoall all blocks of a source are the same. */
static int run_blocks(struct worker *w, enum chaos_op op, struct covey_result *result)
{
	size_t block = w->count / (size_t)w->shared->ranks;
	int err;

	memset(w->recv, 1, w->count * sizeof(float));
	if (op == CHAOS_ALLTOALL)
		for (int r = 1; r < w->shared->ranks; r++)
			memcpy(w->send + (size_t)r * block, w->send, block * sizeof(float));
	chaos_record_begin(w, op);
	if (op == CHAOS_ALLGATHER)
		err = covey_allgather(w->send, w->recv, block, COVEY_FLOAT32, w->group, NULL, result);
	else
		err = covey_alltoall(w->send, w->recv, block, COVEY_FLOAT32, w->group, NULL, result);
	chaos_record_done(w, result);
	if (op == CHAOS_ALLTOALL)
		for (size_t i = block; i < w->count; i++)
			w->send[i] = (float)(w->rank + 1) * base(i);
	if (err)
		return chaos_rank_fail(w, "allgather, alltoall", err);
	if (op == CHAOS_ALLGATHER)
		w->record.checksum = checksum(w->recv, w->count);
	for (int r = 0; r < w->shared->ranks; r++) {
		const float *got = w->recv + (size_t)r * block;
		int bad = w->record.mask >> r & 1 ? expect(w, got, block, (float)(r + 1)) : expect_zero(got, block);

		if (bad)
			return chaos_rank_wrong(w, op == CHAOS_ALLGATHER ? "allgather" : "alltoall");
	}
	return 0;
}

static int run_barrier(struct worker *w, struct covey_result *result)
{
	int err;

	chaos_record_begin(w, CHAOS_BARRIER);
	err = covey_barrier(w->group, NULL, result);
	chaos_record_done(w, result);
	return err ? chaos_rank_fail(w, "barrier", err) : 0;
}

static int run_op(struct worker *w)
{
	enum chaos_op op = w->shared->mix ? (enum chaos_op)(w->step % CHAOS_MIXED) : CHAOS_ALLREDUCE;
	struct covey_result result = { 0 };

	if (w->shared->tokens)
		return chaos_there_step(w);
	w->send[0] = (float)(w->rank + 1) * step_value(w);
	switch (op) {
	case CHAOS_BROADCAST:
		return run_broadcast(w, &result);
	case CHAOS_ALLGATHER:
	case CHAOS_ALLTOALL:
		return run_blocks(w, op, &result);
	case CHAOS_BARRIER:
		return run_barrier(w, &result);
	default:
		return run_allreduce(w, op, &result);
	}
}

/* A joiner begins at the members' step: the step is the state of the group. */
static int safe_point(struct worker *w)
{
	struct covey_result result = { 0 };
	int err;

	chaos_record_begin(w, CHAOS_ADMIT);
	err = covey_admit(w->group, &w->step, sizeof(w->step), &result);
	chaos_record_done(w, &result);
	if (err)
		return chaos_rank_fail(w, "admit", err);
	w->record.step = w->step;
	chaos_record_put(w);
	note_views(w, w->record.epoch);
	return chaos_there_admitted(w);
}

/* All ranks obey one command in one place, because they agree on the highest that one of them saw. */
static int agree_command(struct worker *w, int32_t *command)
{
	int32_t mine = (int32_t)__atomic_load_n(&w->shared->command, __ATOMIC_ACQUIRE);
	struct covey_result result = { 0 };
	int err;

	chaos_record_begin(w, CHAOS_CONTROL);
	err = covey_allreduce(&mine, command, 1, COVEY_INT32, COVEY_MAX, w->group, NULL, &result);
	chaos_record_done(w, &result);
	if (err)
		return chaos_rank_fail(w, "control allreduce", err);
	w->record.checksum = (uint64_t)*command;
	chaos_record_put(w);
	return 0;
}

/* Sleeps until the parent withdraws CHAOS_IDLE; a rank that has not seen the command does not stop at all. */
static void stay_idle(struct worker *w)
{
	while (__atomic_load_n(&w->shared->command, __ATOMIC_ACQUIRE) == CHAOS_IDLE)
		syscall(SYS_futex, &w->shared->command, FUTEX_WAIT, CHAOS_IDLE, NULL, NULL, 0);
}

static void touch_beside(struct worker *w);

static int work(struct worker *w, bool joiner)
{
	int32_t command;
	int err;

	for (bool first = true;; w->step++, first = false) {
		if (first || w->step % CHAOS_ADMIT_EVERY == 0) {
			err = safe_point(w);
			if (!err)
				err = agree_command(w, &command);
			if (err)
				return err;
			if (command == CHAOS_STOP)
				return 0;
			if (command == CHAOS_IDLE)
				stay_idle(w);
		}
		err = run_op(w);
		if (w->record.seq && (w->record.status == 0 || w->record.status == COVEY_ERR_ROOT))
			chaos_record_put(w); /* an outcome of the group, not the end of this handle */
		if (err)
			return err;
		if (first && joiner && w->shared->touch_bytes)
			touch_beside(w);
		__atomic_store_n(&w->slot->steps, w->step, __ATOMIC_RELAXED);
	}
}

/*
 * Memory that the kernel must free when this process dies. A replacement touches it beside its first operations: it is
 * ballast for its own death later, not work of a joiner.
 */
static void *touch(void *arg)
{
	struct worker *w = arg;
	uint64_t start = chaos_now_ns();
	char *memory;

	memory = mmap(NULL, w->shared->touch_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, w->shared->touch_bytes, MADV_NOHUGEPAGE);
	for (uint64_t i = 0; i < w->shared->touch_bytes; i += 4096)
		memory[i] = 1;
	__atomic_store_n(&w->slot->touch_ns, chaos_now_ns() - start, __ATOMIC_RELEASE);
	return NULL;
}

static void touch_beside(struct worker *w)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, touch, w))
		pthread_detach(thread);
}

static int prepare(struct worker *w, bool joiner)
{
	size_t room = (w->count * sizeof(float) + 4095) / 4096 * 4096;

	w->send = aligned_alloc(4096, room);
	w->recv = aligned_alloc(4096, room);
	w->want = aligned_alloc(4096, room);
	w->slot->touch_ns = 0;
	if (!joiner && w->shared->touch_bytes)
		touch(w);
	if (!w->send || !w->recv || !w->want)
		return chaos_rank_fail(w, "no memory", COVEY_ERR_NOMEM);
	for (size_t i = 0; i < w->count; i++)
		w->send[i] = (float)(w->rank + 1) * base(i);
	memset(w->recv, 0, room);
	memset(w->want, 0, room);
	memset(w->slot->ring, 0, sizeof(w->slot->ring)); /* so that it does not count as growth later */
	return 0;
}

int chaos_rank_main(const struct chaos_options *opt)
{
	struct covey_config config = COVEY_CONFIG_INIT;
	struct worker w = { .rank = opt->rank };
	int err;

	w.shared = mmap(NULL, sizeof(*w.shared), PROT_READ | PROT_WRITE, MAP_SHARED, opt->shared_fd, 0);
	if (w.shared == MAP_FAILED)
		return 1;
	close(opt->shared_fd);
	w.slot = &w.shared->slot[w.rank];
	w.count = w.shared->bytes / sizeof(float);
	err = prepare(&w, opt->joiner);
	if (!err)
		err = chaos_there_open(&w);
	if (err)
		return err;
	w.slot->ready_ns = chaos_now_ns();
	config.store = w.shared->store;
	config.group = "chaos";
	config.rank = w.rank;
	config.world = w.shared->world;
	config.create = opt->joiner ? COVEY_CREATE_NEVER : COVEY_CREATE_FIRST;
	err = covey_join(&config, &w.group);
	if (err)
		return chaos_rank_fail(&w, "join", err);
	w.slot->joined_ns = chaos_now_ns();
	err = chaos_there_prepare(&w);
	if (!err)
		err = work(&w, opt->joiner);
	chaos_there_close(&w);
	if (!err && covey_leave(w.group, 0))
		err = chaos_rank_fail(&w, "leave", COVEY_ERR_TIMEOUT);
	covey_close(w.group);
	return err;
}
