/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine through the engine, against the job's plain reference: expert e multiplies by e + 1, so
 * out[t] = sum over k of w * bf16(x * (e + 1)). Every kind of routing, over both transports, and a rank killed before,
 * inside and between the two phases.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../../../tools/moe/reference.c" /* a part of this test: tools see covey.h alone */

enum { HIDDEN = 40, TOKENS = 24, TOP_K = 3, EXPERTS = 7 };

struct job {
	struct covey_group *group;
	struct covey_ep *ep;
	int rank, tokens, rows, local;
	uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], *packed;
	int32_t ids[TOKENS * TOP_K], *count, *src;
	int64_t *range;
	float weights[TOKENS * TOP_K];
};

static int owner_of(int expert, int size)
{
	return expert / ((EXPERTS + size - 1) / size);
}

static void job_open(struct job *j, struct covey_group *group)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, TOP_K, EXPERTS);
	struct covey_view view;

	memset(j, 0, sizeof(*j));
	must(!covey_view(group, &view), "view");
	j->group = group;
	j->rank = view.rank;
	must(!covey_ep_create(group, &c, &j->ep), "create");
	j->rows = covey_ep_rows(j->ep);
	j->local = covey_ep_local_experts(j->ep);
	j->packed = calloc((size_t)(j->local + 1) * (size_t)j->rows * HIDDEN, 2);
	j->count = calloc((size_t)j->local + 1, sizeof(*j->count));
	j->src = calloc((size_t)(j->local + 1) * (size_t)j->rows, sizeof(*j->src));
	j->range = calloc((size_t)(j->local + 1) * COVEY_MAX_RANKS, sizeof(*j->range));
	must(j->packed && j->count && j->src && j->range, "memory");
}

static void job_close(struct job *j)
{
	covey_ep_destroy(j->ep);
	free(j->packed);
	free(j->count);
	free(j->src);
	free(j->range);
}

static void job_fill(struct job *j, enum routing routing, uint64_t seed)
{
	uint64_t state = seed * 1000 + (uint64_t)j->rank + 1;

	j->tokens = routing == EMPTY && j->rank % 2 == 0 ? 0 : (int)(harness_random(&state) % (TOKENS + 1));
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		j->x[i] = cvy_f32_bf16((float)(int)(harness_random(&state) % 200) / 16 - 6);
	for (int i = 0; i < TOKENS * TOP_K; i++) {
		j->ids[i] = ep_route(routing, EXPERTS, &state);
		j->weights[i] = (float)(harness_random(&state) % 64) / 64;
	}
}

static int dispatch(struct job *j, struct covey_result *res)
{
	struct covey_dispatch_args a = EP_DISPATCH(j);

	return covey_dispatch(j->ep, &a, NULL, res);
}

static void expert(void *ctx, int e, const uint16_t *x, uint16_t *y)
{
	(void)ctx;
	for (int h = 0; h < HIDDEN; h++)
		y[h] = cvy_f32_bf16(cvy_bf16_f32(x[h]) * (float)(e + 1));
}

static void experts(struct job *j, int size)
{
	int first = j->rank * ((EXPERTS + size - 1) / size);

	for (int e = 0; e < j->local; e++)
		for (int i = 0; i < j->count[e]; i++) {
			uint16_t *row = j->packed + (e * j->rows + i) * HIDDEN;

			expert(NULL, first + e, row, row);
		}
}

/* Bit for bit; terms of owners that are not in @mask are left out. */
static void check_out(const struct job *j, int size, const struct covey_mask *mask)
{
	const struct moe_shape shape = { TOKENS, HIDDEN, TOP_K, EXPERTS, size };
	const struct moe_batch batch = { j->tokens, j->x, j->ids, j->weights };
	unsigned char here[COVEY_MAX_RANKS];
	uint16_t want[TOKENS * HIDDEN];
	int owner[EXPERTS];

	for (int r = 0; r < size; r++)
		here[r] = covey_mask_has(mask, r) != 0;
	for (int e = 0; e < EXPERTS; e++)
		owner[e] = owner_of(e, size);
	moe_ref_combine(&shape, &batch, owner, here, 0, expert, NULL, want);
	for (int i = 0; i < j->tokens * HIDDEN; i++)
		must(j->out[i] == want[i], "rank %d token %d element %d: %g, not %g", j->rank, i / HIDDEN, i % HIDDEN,
		     (double)cvy_bf16_f32(j->out[i]), (double)cvy_bf16_f32(want[i]));
}

static void every_routing(struct member *m)
{
	struct covey_result res;
	struct job j;

	job_open(&j, m->group);
	for (int i = 0; i < 5 * ROUTINGS; i++) {
		struct covey_combine_args a;
		int rows = 0, before;

		job_fill(&j, (enum routing)(i % ROUTINGS), (uint64_t)i);
		must(!dispatch(&j, &res) && covey_mask_count(&res.mask) == m->n, "dispatch %d", i);
		for (int e = 0; e < j.local; e++) {
			before = 0;
			for (int s = 0; s < m->n; s++) { /* sources ascending, without gaps */
				int64_t r = j.range[(size_t)e * (size_t)m->n + (size_t)s];

				must((int)(r & 0xffffffff) == before || !(r >> 32), "expert %d source %d begins at %d",
				     e, s, (int)(r & 0xffffffff));
				before += (int)(r >> 32);
			}
			must(before == j.count[e], "expert %d has %d rows, sources %d", e, j.count[e], before);
			rows += before;
		}
		must(i % ROUTINGS != ONE_EXPERT || !rows || owner_of(EXPERTS - 1, m->n) == m->rank, "%d rows", rows);
		experts(&j, m->n);
		a = EP_COMBINE(&j, j.packed);
		if (j.local && i % 2) /* sums over the results: rows of later tokens are read before */
			a.out = j.packed;
		must(!covey_combine_send(j.ep, &a, NULL), "combine send");
		must(!covey_combine_recv(j.ep, harness_deadline(WATCHDOG_MS), &res), "combine");
		if (a.out == j.packed)
			memcpy(j.out, j.packed, (size_t)j.tokens * HIDDEN * sizeof(*j.out));
		check_out(&j, m->n, &res.mask);
	}
	job_close(&j);
}

static const int worlds[] = { 1, 2, 4 };

TEST_LOOP(every_token_comes_back_right, 0, 6)
{
	struct covey_config config = harness_config_over(_i % 2, "ep", worlds[_i / 2]);

	harness_threads(&config, every_routing, NULL);
}

/* ---- a rank dies: before dispatch, inside it, between the phases ---- */

static int mortal(void *arg, int rank)
{
	struct ep_kill *plan = arg;
	struct covey_combine_args a;
	struct covey_dispatch_args d;
	struct covey_result res;
	struct job j;

	job_open(&j, harness_join(&plan->config, rank));
	for (uint64_t i = 0; i < 30; i++) {
		job_fill(&j, RANDOM, i);
		ep_may_die(plan, rank, i, EP_BEFORE);
		d = EP_DISPATCH(&j);
		must(!covey_dispatch_send(j.ep, &d, NULL), "dispatch send");
		ep_may_die(plan, rank, i, EP_SENT);
		must(!covey_dispatch_recv(j.ep, 0, &res), "dispatch");
		for (int e = 0; e < j.local; e++)
			must(covey_mask_has(&res.mask, 2) || !(j.range[e * 3 + 2] >> 32),
			     "rows of a source that is missing");
		experts(&j, 3);
		ep_may_die(plan, rank, i, EP_BETWEEN);
		a = EP_COMBINE(&j, j.packed);
		must(!covey_combine(j.ep, &a, NULL, &res), "combine");
		check_out(&j, 3, &res.mask);
		must(i < 11 || !covey_mask_has(&res.mask, 2), "the dead one is still there");
	}
	job_close(&j);
	must(!covey_leave(j.group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(j.group);
	return 0;
}

TEST_LOOP(survivors_of_a_death_go_on_with_what_is_there, 0, UNDER_TSAN ? 0 : 6)
{
	ep_kill(_i, "epkill", mortal);
}

/* ---- a rank is late: stopped, not dead ---- */

enum { LAYERS = 24, STOPS_AT = 10, SHORT_MS = 100, LONG_MS = 40000 };

struct late_plan {
	struct covey_config config;
	struct late_shared {
		uint64_t ready; /* ranks that stand before the late one, or have seen it leave */
	} * shared;
};

static int timed_dispatch(struct job *j, uint64_t layer, int timeout_ms)
{
	struct covey_dispatch_args d;

	job_fill(j, RANDOM, layer);
	d = EP_DISPATCH(j);
	d.timeout_ms = timeout_ms;
	return covey_dispatch_send(j->ep, &d, NULL);
}

static int timed_combine(struct job *j, int timeout_ms, struct covey_result *res)
{
	struct covey_combine_args c;

	experts(j, 3);
	c = EP_COMBINE(j, j->packed);
	c.timeout_ms = timeout_ms;
	return covey_combine(j->ep, &c, NULL, res);
}

static void no_rows_of_the_late(const struct job *j, const struct covey_result *res)
{
	for (int e = 0; e < j->local; e++)
		must(covey_mask_has(&res->mask, 2) || !(j->range[e * 3 + 2] >> 32), "rows of a source that is late");
}

/* Rank 2 stops before one layer. The others make that layer and the next without it, and stand before the third. */
static int patient(void *arg, int rank)
{
	struct late_plan *plan = arg;
	struct covey_result res;
	struct job j;

	job_open(&j, harness_join(&plan->config, rank));
	for (uint64_t i = 0; i < LAYERS; i++) {
		int late = rank != 2 && (i == STOPS_AT || i == STOPS_AT + 1), err;

		if (rank == 2 && i == STOPS_AT)
			raise(SIGSTOP);
		must(!timed_dispatch(&j, i, late ? SHORT_MS : LONG_MS), "dispatch send");
		if (rank != 2 && i == STOPS_AT + 2) { /* a tick further and the slots that it needs would go */
			err = covey_dispatch_recv(j.ep, harness_deadline(3 * SHORT_MS), &res);
			must(err == COVEY_ERR_TIMEOUT, "five ticks past the late one: %s", covey_strerror(err));
			__atomic_add_fetch(&plan->shared->ready, 1, __ATOMIC_SEQ_CST);
		}
		must(!covey_dispatch_recv(j.ep, 0, &res), "dispatch");
		must(covey_mask_has(&res.mask, 2) == !late, "layer %llu: dispatch has %llx", (unsigned long long)i,
		     (unsigned long long)res.mask.word[0]);
		no_rows_of_the_late(&j, &res);
		must(!timed_combine(&j, late ? SHORT_MS : LONG_MS, &res), "combine");
		must(!late || !covey_mask_has(&res.mask, 2), "a late owner took part");
		check_out(&j, 3, &res.mask);
		must(i < STOPS_AT + 2 || covey_mask_count(&res.mask) == 3, "layer %llu: who was late is not back",
		     (unsigned long long)i);
	}
	must(res.epoch == 1, "late is not dead: epoch %u", res.epoch);
	job_close(&j);
	must(!covey_leave(j.group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(j.group);
	return 0;
}

/* The policy is `evict`: the others go on when the group is without it. Rank 2 learns when it wakes up. */
static int strict(void *arg, int rank)
{
	struct late_plan *plan = arg;
	struct covey_result res = { 0 };
	struct job j;
	int err = 0;

	job_open(&j, harness_join(&plan->config, rank));
	for (uint64_t i = 0; !err && (rank == 2 || i < LAYERS); i++) {
		if (rank == 2 && i == STOPS_AT)
			raise(SIGSTOP);
		err = timed_dispatch(&j, i, 0);
		if (!err)
			err = covey_dispatch_recv(j.ep, harness_deadline(WATCHDOG_MS), &res);
		if (err)
			break;
		no_rows_of_the_late(&j, &res);
		err = timed_combine(&j, 0, &res);
		if (!err)
			check_out(&j, 3, &res.mask);
	}
	must(err == (rank == 2 ? COVEY_ERR_FENCED : 0), "rank %d: %s", rank, covey_strerror(err));
	must(rank == 2 || (res.epoch > 1 && covey_mask_count(&res.mask) == 2 && !covey_mask_has(&res.mask, 2)),
	     "epoch %u, combine has %llx", res.epoch, (unsigned long long)res.mask.word[0]);
	__atomic_add_fetch(&plan->shared->ready, 1, __ATOMIC_SEQ_CST);
	job_close(&j);
	must(rank == 2 || !covey_leave(j.group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(j.group);
	return 0;
}

static void run_late(struct late_plan *plan, int (*fn)(void *, int))
{
	pid_t pid[3];
	int status;

	plan->shared = harness_shared(sizeof(*plan->shared));
	plan->config.hang_ms = plan->config.link_ms = plan->config.lease_ms = -1; /* nobody takes late for dead */
	harness_fork_all(fn, plan, pid, 3);
	ck_assert_int_eq(waitpid(pid[2], &status, WUNTRACED), pid[2]);
	ck_assert(WIFSTOPPED(status));
	harness_until(&plan->shared->ready, 2, "the others");
	kill(pid[2], SIGCONT);
	harness_reap_all(pid, 3, -1);
}

TEST_LOOP(who_is_late_is_masked_and_comes_back, 0, UNDER_TSAN ? 0 : 2)
{
	struct late_plan plan = { .config = harness_config_over(_i, "eplate", 3) };

	run_late(&plan, patient);
}

TEST_LOOP(who_is_late_leaves_where_the_policy_says_so, 0, !UNDER_TSAN)
{
	struct late_plan plan = { .config = harness_config("epevict", 3) };

	plan.config.late_ms = 5 * SHORT_MS; /* the others must not take each other for late */
	plan.config.late = COVEY_LATE_EVICT;
	run_late(&plan, strict);
}

/* A program built before there were active_ranks: what stands behind its struct is not ours. */
TEST_RANKS(deadlines_are_of_all_ranks_or_none, 2)
{
	int32_t active[2] = { 1, 1 };
	struct covey_dispatch_args d;
	struct covey_result res;
	struct job j;

	job_open(&j, m->group);
	job_fill(&j, RANDOM, 1);
	d = EP_DISPATCH(&j);
	if (m->rank == 0) {
		d.size = offsetof(struct covey_dispatch_args, active_ranks);
		d.active_ranks = active; /* read, it would make this another call than rank 1's */
	}
	must(!covey_dispatch(j.ep, &d, NULL, &res) && covey_mask_count(&res.mask) == 2, "an older struct");
	d.active_ranks = NULL;
	if (m->rank == 0) {
		d.size = sizeof(d);
		d.timeout_ms = WATCHDOG_MS;
	}
	must(covey_dispatch(j.ep, &d, NULL, &res) == COVEY_ERR_MISMATCH, "a deadline on one rank alone");
	job_close(&j);
}

/* Whatever a dispatch ends with, the combine behind it takes its place: on all ranks, or none would know how far it is. */
TEST_RANKS(a_dispatch_that_failed_has_no_rows, 2)
{
	struct covey_dispatch_args d;
	struct covey_combine_args c;
	struct covey_result res;
	struct job j;
	int err;

	job_open(&j, m->group);
	job_fill(&j, RANDOM, 1);
	d = EP_DISPATCH(&j);
	memset(j.range, 0x5a, (size_t)j.local * 2 * sizeof(*j.range));
	memset(j.count, 0x5a, (size_t)j.local * sizeof(*j.count));
	d.timeout_ms = m->rank ? WATCHDOG_MS : 0;
	must(covey_dispatch(j.ep, &d, NULL, &res) == COVEY_ERR_MISMATCH && res.seq == 1,
	     "a deadline on one rank alone");
	for (int e = 0; e < j.local; e++)
		must(!j.count[e] && !(j.range[2 * e] >> 32) && !(j.range[2 * e + 1] >> 32), "expert %d has rows", e);
	c = EP_COMBINE(&j, j.packed);
	err = covey_combine(j.ep, &c, NULL, &res);
	must(!err && res.seq == 2, "rank %d: its combine: %s", m->rank, covey_strerror(err));
	must(!covey_barrier(m->group, NULL, &res) && res.seq == 3, "numbers are in step");
	job_close(&j);
}

HARNESS_MAIN(.name = "collectives/ep")
