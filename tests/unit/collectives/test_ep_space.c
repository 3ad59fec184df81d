/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of dispatch and combine that come and go: space of one that was destroyed is another's at once, but nobody
 * writes there while a slow rank still reads. The slow one is held still by a fault plan where it would read wrong rows.
 *
 * labels: redis tsan
 */
#include "ep_layer.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

enum {
	RANKS = 3,
	SOON_MS = 100,
	WINDOW = 8 << 20,
	MOST = 6200000, /* bytes of its heap: no room for them beside a handle */
};

/* The slot of an operation that is tick @tick. */
static struct cvy_extent place_of(size_t slots, size_t bytes, int tick)
{
	return (struct cvy_extent){ slots + (size_t)tick % CVY_SLOTS * bytes, bytes };
}

static int overlap(const struct cvy_extent *a, const struct cvy_extent *b)
{
	return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* ---- a rank is held still while it reads ---- */

struct slow_plan {
	struct covey_config config;
	int tcp, preset;
	uint64_t *ready; /* ranks that go on without the slow one */
};

/*
 * On one host rank 2 stops before it reads what has come. Over sockets it reads as soon as all has come, so there rank 1
 * stops before it has told rank 2: rank 0 goes on, and what it puts comes into the memory that rank 2 is to read.
 */
static int slow(void *arg, int rank)
{
	struct slow_plan *plan = arg;
	struct covey_group *group;
	struct cvy_extent was, is;
	struct covey_result res;
	struct layer a, b;
	void *memory = NULL;
	int ahead = plan->tcp ? rank == 0 : rank != 2;

	if (rank == (plan->tcp ? 1 : 2))
		setenv("COVEY_FAULT", plan->tcp ? "stop@op:combine:1.signal:2" : "stop@op:combine:1.read:1", 1);
	group = harness_join(&plan->config, rank);
	layer_open(&a, group, plan->preset, 16, 264);
	layer_pair(&a, 0, RANKS);
	was = place_of(a.ep->combine, a.ep->combine_bytes, 2);
	layer_close(&a);
	if (ahead) { /* what nobody can hold back: the application writes there when it likes */
		must_refuse(group, covey_mem_alloc(group, MOST, &memory), COVEY_ERR_NOMEM, "still read");
	}
	/* Its dispatch, the third tick, stands where the combine before it did, the second tick of a smaller handle. */
	layer_open(&b, group, plan->preset, plan->preset == COVEY_EP_LL ? 60 : 30, 528);
	is = place_of(b.ep->dispatch, b.ep->dispatch_bytes, 3);
	must(overlap(&is, &was), "they do not overlap: the test shows nothing");
	must(!layer_send(&b, 17), "dispatch");
	if (ahead) {
		must(covey_dispatch_recv(b.ep, harness_deadline(SOON_MS), &res) == COVEY_ERR_TIMEOUT, "without all");
		__atomic_add_fetch(plan->ready, 1, __ATOMIC_SEQ_CST);
	}
	must(!covey_dispatch_recv(b.ep, 0, &res), "dispatch");
	must(!layer_combine(&b, &res) && covey_mask_count(&res.mask) == RANKS, "combine");
	layer_check(&b, &res.mask);
	layer_close(&b);
	must(!covey_barrier(group, NULL, NULL) && !covey_barrier(group, NULL, NULL), "barrier");
	must(!covey_mem_alloc(group, MOST, &memory), "all have read");
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(group);
	return 0;
}

TEST_LOOP(nobody_writes_where_a_slow_rank_reads, 0, UNDER_TSAN ? 0 : 4)
{
	struct slow_plan plan = { .config = harness_config_over(_i % 2, "epslow", RANKS),
				  .tcp = _i % 2,
				  .preset = _i / 2 };
	int status, stops = plan.tcp ? 1 : 2;
	pid_t pid[RANKS];

	plan.ready = harness_shared(sizeof(*plan.ready));
	plan.config.max_ranks = RANKS;
	plan.config.slot_bytes = 4096;
	plan.config.window_bytes = WINDOW;
	plan.config.hang_ms = plan.config.link_ms = plan.config.lease_ms = -1; /* slow is not dead */
	harness_fork_all(slow, &plan, pid, RANKS);
	ck_assert_int_eq(waitpid(pid[stops], &status, WUNTRACED), pid[stops]);
	ck_assert_msg(WIFSTOPPED(status), "status %#x", status);
	harness_until(plan.ready, plan.tcp ? 1 : 2, "those ahead");
	kill(pid[stops], SIGCONT);
	harness_reap_all(pid, RANKS, -1);
}

/* Memory of the application leaves the offsets of handles as they are, wherever the others are by then. */
static int with_memory(void *arg, int rank)
{
	struct slow_plan *plan = arg;
	struct covey_group *group;
	struct covey_result res;
	struct layer a, b, c;
	void *memory = NULL;
	int err;

	if (rank == 2)
		setenv("COVEY_FAULT", "stop@op:combine:1.read:1", 1);
	group = harness_join(&plan->config, rank);
	layer_open(&a, group, COVEY_EP_LL, 60, 528);
	layer_open(&b, group, COVEY_EP_LL, 60, 528);
	layer_pair(&b, 0, RANKS);
	layer_close(&a);
	layer_close(&b);
	err = covey_mem_alloc(group, 1500000, &memory);
	must(!err || err == COVEY_ERR_NOMEM, "memory: %d", err); /* a slow rank may still read there */
	layer_open(&c, group, COVEY_EP_LL, 60, 528);
	if (rank != 2)
		__atomic_add_fetch(plan->ready, 1, __ATOMIC_SEQ_CST);
	err = layer_send(&c, 17);
	if (!err)
		err = covey_dispatch_recv(c.ep, 0, &res);
	must(!err, "dispatch: %d", err);
	layer_close(&c);
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(group);
	return 0;
}

TEST_LOOP(memory_moves_no_handle, 0, !UNDER_TSAN)
{
	struct slow_plan plan = { .config = harness_config("epmem", RANKS) };
	pid_t pid[RANKS];
	int status;

	plan.ready = harness_shared(sizeof(*plan.ready));
	plan.config.transport = COVEY_TRANSPORT_SHM;
	plan.config.max_ranks = RANKS;
	plan.config.slot_bytes = 4096;
	plan.config.window_bytes = WINDOW;
	plan.config.hang_ms = plan.config.link_ms = plan.config.lease_ms = -1; /* slow is not dead */
	harness_fork_all(with_memory, &plan, pid, RANKS);
	ck_assert_int_eq(waitpid(pid[2], &status, WUNTRACED), pid[2]);
	ck_assert_msg(WIFSTOPPED(status), "status %#x", status);
	harness_until(plan.ready, 2, "those ahead");
	kill(pid[2], SIGCONT);
	harness_reap_all(pid, RANKS, -1);
}

/* ---- sizes that change, as fast as it goes ---- */

static void changing(struct member *m)
{
	static const int tokens[] = { 7, 16, 64, 3 }, hidden[] = { 136, 264, 64, 520 };
	int rounds = UNDER_TSAN ? 10 : 60;
	struct layer l[2];

	for (int i = 0; i < rounds; i++) {
		layer_open(&l[0], m->group, *(int *)m->arg, tokens[i % 4], hidden[i % 4]);
		if (i % 3 == 1) { /* two at a time, the first to come goes first */
			layer_open(&l[1], m->group, *(int *)m->arg, tokens[i % 2], hidden[i % 2]);
			layer_pair(&l[1], 3 * i, RANKS);
		}
		layer_pair(&l[0], i, RANKS);
		layer_close(&l[0]);
		if (i % 3 == 1)
			layer_close(&l[1]);
	}
}

TEST_LOOP(handles_of_changing_sizes_come_and_go, 0, 4)
{
	struct covey_config config = harness_config_over(_i % 2, "epsizes", RANKS);
	int preset = _i / 2;

	harness_threads(&config, changing, &preset);
}

/* What was sent and is never received goes on to its end, though its handle is gone. */
TEST_RANKS(a_handle_may_go_before_what_it_sent, RANKS)
{
	struct layer a, b;

	for (int i = 0; i < 20; i++) {
		layer_open(&a, m->group, COVEY_EP_LL, 16, 64 + 8 * i);
		must(!layer_send(&a, i), "dispatch");
		covey_ep_destroy(a.ep);
		layer_open(&b, m->group, COVEY_EP_LL, 8, 128);
		layer_pair(&b, i, RANKS);
		must(a.count[0] == RANKS * a.tokens, "%d rows", a.count[0]);
		for (int t = 0; t < a.count[0]; t++)
			must(a.packed[t * a.hidden] == layer_element(&a, t % a.tokens), "row %d", t);
		layer_close(&b);
		a.ep = NULL;
		layer_close(&a);
	}
}

HARNESS_MAIN(.name = "collectives/ep_space")
