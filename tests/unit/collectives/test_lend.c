/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: every operation that reads inputs where they stand, ranks that lend beside ranks that do not, and
 * inputs overwritten as soon as the call returns. And the same call made again after the group has grown.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>

#define RANKS 3
#define SLOT 4096
#define ROUNDS 12 /* of one shape, so that operations are used again */

enum { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, GATHER, KINDS };

static const size_t counts[] = { SLOT / 8, SLOT / 4, 3 * SLOT / 4 + 7, 9 * SLOT / 4 + 1 };

struct buffers {
	float *send, *recv, *want;
	size_t count;
};

static int call(const struct member *m, int kind, const struct buffers *b, int root)
{
	switch (kind) {
	case ALLREDUCE:
		return covey_allreduce(b->send, b->recv, b->count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL);
	case REDUCE:
		return covey_reduce(b->send, b->recv, b->count, COVEY_FLOAT32, COVEY_SUM, root, m->group, NULL, NULL);
	case BROADCAST:
		return covey_broadcast(b->send, b->recv, b->count, COVEY_FLOAT32, root, m->group, NULL, NULL);
	case ALLGATHER:
		return covey_allgather(b->send, b->recv, b->count, COVEY_FLOAT32, m->group, NULL, NULL);
	default:
		return covey_gather(b->send, b->recv, b->count, COVEY_FLOAT32, root, m->group, NULL, NULL);
	}
}

/* What recv must hold; blocks of it. */
static size_t expect(const struct member *m, int kind, const struct buffers *b, int root, uint64_t seed)
{
	if ((kind == REDUCE || kind == GATHER) && m->rank != root)
		return 0;
	if (kind == ALLREDUCE || kind == REDUCE) {
		type_fold(b->want, b->count, COVEY_FLOAT32, COVEY_SUM, (1u << RANKS) - 1, seed);
		return 1;
	}
	if (kind == BROADCAST) {
		type_input(b->want, b->count, COVEY_FLOAT32, root, seed);
		return 1;
	}
	for (int r = 0; r < RANKS; r++)
		type_input(b->want + (size_t)r * b->count, b->count, COVEY_FLOAT32, r, seed);
	return RANKS;
}

static void one_shape(struct member *m, int kind, size_t count, int who)
{
	struct buffers b = { NULL, malloc(RANKS * count * 4), malloc(RANKS * count * 4), count };
	int lends = who >> m->rank & 1;
	void *memory = NULL;

	if (lends)
		must(!covey_mem_alloc(m->group, count * 4, &memory), "mem_alloc");
	b.send = lends ? memory : malloc(count * 4);
	must(b.send && b.recv && b.want, "memory");
	for (uint64_t i = 0; i < ROUNDS; i++) {
		int root = (int)(i / 9 % RANKS), err;
		size_t blocks = expect(m, kind, &b, root, i);

		type_input(b.send, count, COVEY_FLOAT32, m->rank, i);
		memset(b.recv, 0x5a, RANKS * count * 4);
		err = call(m, kind, &b, root);
		must(!err, "kind %d: %s", kind, covey_strerror(err));
		memset(b.send, 0xee, count * 4); /* it is ours again: nobody may be reading it */
		must(!memcmp(b.recv, b.want, blocks * count * 4), "kind %d of %zu, %x lend, round %d: other bytes",
		     kind, count, who, (int)i);
	}
	if (lends)
		must(!covey_mem_free(m->group, memory), "mem_free");
	else
		free(b.send);
	free(b.recv);
	free(b.want);
}

static void run_shapes(struct member *m)
{
	static const int whos[] = { 7, 2, 5 };

	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < 4; i++)
			one_shape(m, kind, counts[i], whos[(kind + i) % 3]);
}

static struct covey_config small(const char *name, int world)
{
	struct covey_config config = harness_config(name, world);

	config.slot_bytes = SLOT;
	config.window_bytes = 4u << 20;
	return config;
}

/* Two hosts: that a slot is free again comes by a socket from a third rank, which ThreadSanitizer does not see. */
TEST_LOOP(inputs_are_read_where_they_stand_and_not_after_the_call, 0, UNDER_TSAN ? 2 : 3)
{
	struct covey_config config = small("lend", RANKS);

	config.transport = _i == 1 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_AUTO;
	harness_threads_on(&config, run_shapes, NULL, _i == 2 ? 2 : 0);
}

/* In place nobody lends: results stand over an input that others may still read. */
static void run_in_place(struct member *m)
{
	size_t count = 5 * SLOT / 4;
	float *want = malloc(count * 4);
	void *memory = NULL;

	must(!covey_mem_alloc(m->group, count * 4, &memory) && want, "memory");
	for (uint64_t i = 0; i < ROUNDS; i++) {
		type_input(memory, count, COVEY_FLOAT32, m->rank, i);
		type_fold(want, count, COVEY_FLOAT32, COVEY_SUM, (1u << RANKS) - 1, i);
		must(!covey_allreduce(memory, memory, count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL), "sum");
		must(!memcmp(memory, want, count * 4), "round %d: other bytes", (int)i);
	}
	free(want); /* the rest goes with the group */
}

TEST(results_in_place_do_not_stand_over_what_others_read)
{
	struct covey_config config = small("lend-in-place", RANKS);

	harness_threads(&config, run_in_place, NULL);
}

/* Rank 0 makes one call over and over; rank 1 lends for a while and then no more: no closing words are said then. */
static void run_no_more(struct member *m)
{
	size_t count = 3 * SLOT / 4;
	float *own = malloc(count * 4), *out = malloc(count * 4), *want = malloc(count * 4);
	void *memory = NULL;

	must(own && out && want && !covey_mem_alloc(m->group, count * 4, &memory), "memory");
	for (uint64_t i = 0; i < 3 * ROUNDS; i++) {
		void *send = m->rank == 1 && i / ROUNDS != 1 ? memory : own;

		type_input(send, count, COVEY_FLOAT32, m->rank, i);
		type_fold(want, count, COVEY_FLOAT32, COVEY_SUM, (1u << RANKS) - 1, i);
		must(!covey_allreduce(send, out, count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL), "sum");
		memset(send, 0xee, count * 4);
		must(!memcmp(out, want, count * 4), "round %d: other bytes", (int)i);
	}
	free(own);
	free(out);
	free(want);
}

TEST(the_same_call_waits_for_closing_words_only_where_somebody_lends)
{
	struct covey_config config = small("lend-no-more", RANKS);

	harness_threads(&config, run_no_more, NULL);
}

static void run_errors(struct member *m)
{
	void *a = NULL, *b = NULL;

	must(covey_mem_alloc(NULL, 1, &a) == COVEY_ERR_INVAL, "no group");
	must(covey_mem_alloc(m->group, 0, &a) == COVEY_ERR_INVAL && !a, "nothing");
	must(covey_mem_alloc(m->group, 1, NULL) == COVEY_ERR_INVAL, "nowhere");
	must(covey_mem_alloc(m->group, 4u << 20, &a) == COVEY_ERR_NOMEM && !a, "a whole window");
	must(covey_mem_alloc(m->group, SIZE_MAX, &a) == COVEY_ERR_NOMEM && !a, "more than there is");
	must(!covey_mem_alloc(m->group, 100, &a) && !covey_mem_alloc(m->group, 100, &b) && a != b, "two");
	must((uintptr_t)a % 64 == 0, "aligned");
	must(covey_mem_free(m->group, (char *)a + 64) == COVEY_ERR_INVAL, "the middle");
	must(!covey_mem_free(m->group, a) && covey_mem_free(m->group, a) == COVEY_ERR_INVAL, "twice");
	must(!covey_mem_free(m->group, b), "the other");
	must(!covey_mem_alloc(m->group, 2u << 20, &a), "all of it is free again");
}

TEST(memory_is_given_and_taken_back)
{
	struct covey_config config = small("lend-errors", 1);

	harness_threads(&config, run_errors, NULL);
}

/* Rank 0 cannot be done: rank 1 calls when rank 0 has tried to give back what it lends. */
static void run_too_soon(struct member *m)
{
	size_t count = 2 * SLOT / 4;
	float *recv = malloc(count * 4);
	struct covey_error_info why;
	struct covey_work *work;
	void *memory = NULL;

	must(recv && !covey_mem_alloc(m->group, count * 4, &memory), "memory");
	memset(memory, 0, count * 4);
	if (m->rank)
		harness_until(m->arg, 1, "rank 0");
	must(!covey_allreduce_start(memory, recv, count, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, &work), "start");
	if (!m->rank) {
		must(covey_mem_free(m->group, memory) == COVEY_ERR_INVAL, "it is read");
		covey_last_error(m->group, &why);
		must(strstr(why.cause, "operation 1"), "%s", why.cause);
		__atomic_store_n((uint64_t *)m->arg, 1, __ATOMIC_SEQ_CST);
	}
	must(!covey_work_wait(work, harness_deadline(WATCHDOG_MS), NULL), "wait");
	covey_work_free(work);
	must(!covey_mem_free(m->group, memory), "it is not read");
	free(recv);
}

TEST(what_is_read_is_not_taken_back)
{
	struct covey_config config = small("lend-soon", 2);
	uint64_t tried = 0;

	harness_threads(&config, run_too_soon, &tried);
}

/* ---- the same call in a larger group ---- */

#define EACH 5
#define EXCHANGES 100

static void exchange(struct covey_group *group, int me, const int *send, int *recv, int size)
{
	for (int i = 0; i < EXCHANGES; i++) {
		memset(recv, 0, 4 * EACH * RANKS);
		must(!covey_alltoall(send, recv, EACH, COVEY_INT32, group, NULL, NULL), "alltoall");
		for (int k = 0; k < size * EACH; k++)
			must(recv[k] == 1000 * (k / EACH) + EACH * me + k % EACH, "rank %d: element %d of %d is %d", me,
			     k, size, recv[k]);
	}
}

static void grow(struct covey_group *group, int me, int joiner)
{
	int send[EACH * RANKS], recv[EACH * RANKS];
	struct covey_result res = { .size = 2 };

	for (int k = 0; k < EACH * RANKS; k++)
		send[k] = 1000 * me + k;
	do { /* the view with the joiner comes in the middle of an exchange, most likely */
		if (!joiner)
			exchange(group, me, send, recv, 2);
		must(!covey_admit(group, NULL, 0, &res), "admit");
	} while (res.size < RANKS);
	exchange(group, me, send, recv, RANKS);
}

static void *join_late(void *arg)
{
	struct covey_config config = *(const struct covey_config *)arg;
	struct covey_group *group;

	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	group = harness_join(&config, RANKS - 1);
	grow(group, RANKS - 1, 1);
	must(!covey_leave(group, 0), "leave");
	covey_close(group);
	return NULL;
}

static void run_growing(struct member *m)
{
	pthread_t late;

	if (m->rank == 0)
		must(!pthread_create(&late, NULL, join_late, m->arg), "a thread");
	grow(m->group, m->rank, 0);
	if (m->rank == 0)
		pthread_join(late, NULL);
}

TEST(the_same_call_is_planned_anew_when_the_group_has_grown)
{
	struct covey_config config = small("lend-grow", 2);

	config.max_ranks = 4;
	harness_threads(&config, run_growing, &config);
}

HARNESS_MAIN(.name = "collectives/lend")
