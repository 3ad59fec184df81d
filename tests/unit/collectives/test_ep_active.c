/* SPDX-License-Identifier: Apache-2.0 */
/*
 * active_ranks and waited of dispatch and combine on host memory, and rows that are summed rank by rank.
 *
 * labels: redis tsan
 */
#include "ep_layer.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handle.h"
#include "reduce.h"

enum { RANKS = 3, TOKENS = 12, HIDDEN = 64, SHORT_MS = 50, LONG_MS = 40000 };

static const int presets[] = { COVEY_EP_LL, COVEY_EP_COMPACT, COVEY_EP_WIN };

struct turn {
	int preset;
	uint64_t done; /* ranks that are through */
};

static int recv_dispatch(struct layer *l, struct covey_result *res)
{
	return covey_dispatch_recv(l->ep, harness_deadline(WATCHDOG_MS), res);
}

static void expect_mask(const struct covey_result *res, uint64_t mask, const char *what, int rank)
{
	must(res->mask.word[0] == mask, "rank %d: %s has %llx, not %llx", rank, what,
	     (unsigned long long)res->mask.word[0], (unsigned long long)mask);
}

/* A dispatch and a combine of the ranks in @mask, no matter what the others do. */
static void pair_of(struct layer *l, int salt, uint64_t mask, int rank)
{
	struct covey_result res;

	must(!layer_send(l, salt) && !recv_dispatch(l, &res), "dispatch");
	expect_mask(&res, mask, "dispatch", rank);
	for (int s = 0; s < RANKS; s++)
		must((l->range[s] >> 32 > 0) == (mask >> s & 1), "rank %d: rows of %d", rank, s);
	must(!layer_combine(l, &res), "combine");
	expect_mask(&res, mask, "combine", rank);
	layer_check(l, &res.mask);
}

/* Rank 2 calls when the others are through: who would wait for it would wait for ever. Then all take part again. */
static void left_out(struct member *m)
{
	struct turn *turn = m->arg;
	int32_t active[RANKS] = { 1, 1, 1 };
	uint64_t waited[RANKS] = { 0 };
	struct layer l;

	layer_open(&l, m->group, turn->preset, TOKENS, HIDDEN);
	l.active = active;
	l.waited = waited;
	for (int i = 0; i < 6; i++) {
		pair_of(&l, 10 * i, 7, m->rank);
		active[2] = 0; /* of rank 2 it is the own entry, which is not read */
		if (m->rank == 2)
			harness_until(&turn->done, (uint64_t)(2 * i + 2), "the others");
		waited[2] = 0;
		pair_of(&l, 10 * i + 5, m->rank == 2 ? 4 : 3, m->rank);
		must(m->rank == 2 || !waited[2], "%llu ns for who is left out", (unsigned long long)waited[2]);
		must(active[0] && active[1] && !active[2], "active ranks");
		if (m->rank != 2)
			__atomic_add_fetch(&turn->done, 1, __ATOMIC_SEQ_CST);
		active[2] = 1;
	}
	layer_close(&l);
}

TEST_LOOP(who_is_left_out_is_not_waited_for_and_hears_so, 0, 6)
{
	struct covey_config config = harness_config_over(_i % 2, "epout", RANKS);
	struct turn turn = { .preset = presets[_i / 2] };

	harness_threads(&config, left_out, &turn);
}

/*
 * Rank 2 is late for rank 0 alone, whose deadline is short; what rank 1 has is there before that one begins. From then on
 * rank 0 leaves rank 2 out, and rank 2 hears so.
 */
static void late_once(struct member *m)
{
	static const uint64_t combined[RANKS] = { 3, 7, 6 };
	struct turn *turn = m->arg;
	int32_t active[RANKS] = { 1, 1, 1 };
	uint64_t waited[RANKS] = { 0 };
	struct covey_result res;
	struct layer l;

	layer_open(&l, m->group, turn->preset, TOKENS, HIDDEN);
	l.active = active;
	l.waited = waited;
	l.timeout_ms = m->rank ? LONG_MS : SHORT_MS;
	if (m->rank != 1)
		harness_until(&turn->done, m->rank ? 2 : 1, "the others");
	must(!layer_send(&l, 1), "dispatch");
	if (m->rank == 1)
		__atomic_add_fetch(&turn->done, 1, __ATOMIC_SEQ_CST);
	must(!recv_dispatch(&l, &res), "dispatch");
	if (m->rank == 0)
		__atomic_add_fetch(&turn->done, 1, __ATOMIC_SEQ_CST);
	expect_mask(&res, m->rank ? 7 : 3, "dispatch", m->rank);
	must(active[2] == (m->rank != 0) && active[0] && active[1], "active ranks");
	must(m->rank || waited[2] >= (uint64_t)SHORT_MS * 1000000, "waited %llu ns for who was late",
	     (unsigned long long)waited[2]);
	must(!waited[m->rank], "waited for itself");
	l.timeout_ms = LONG_MS;
	waited[2] = 0;
	must(!layer_combine(&l, &res), "combine");
	expect_mask(&res, combined[m->rank], "combine", m->rank);
	layer_check(&l, &res.mask);
	must(m->rank || !waited[2], "waited for who is left out");
	layer_close(&l);
}

TEST_LOOP(a_deadline_leaves_out_who_was_late, 0, 6)
{
	struct covey_config config = harness_config_over(_i % 2, "eplateout", RANKS);
	struct turn turn = { .preset = presets[_i / 2] };

	harness_threads(&config, late_once, &turn);
}

struct stamps {
	uint64_t sent_ns, sent;
};

/* Rank 1 calls some time after rank 0 has published: that much at least rank 0 has waited, and it says so once. */
static void timed(struct member *m)
{
	struct stamps *at = m->arg;
	uint64_t waited[2] = { 5, 5 }, late_ns = 0;
	struct covey_result res;
	struct layer l;

	layer_open(&l, m->group, COVEY_EP_LL, TOKENS, HIDDEN);
	if (m->rank == 0)
		l.waited = waited;
	if (m->rank == 1) {
		harness_until(&at->sent, 1, "rank 0");
		at->sent_ns = harness_now_ns() - at->sent_ns;
	}
	must(!layer_send(&l, 1), "dispatch");
	if (m->rank == 0) {
		/* Another thread may be about to publish; whoever waits has published. */
		must(covey_dispatch_recv(l.ep, harness_deadline(1), &res) == COVEY_ERR_TIMEOUT, "a wait in vain");
		at->sent_ns = harness_now_ns();
		__atomic_store_n(&at->sent, 1, __ATOMIC_SEQ_CST);
	}
	must(!recv_dispatch(&l, &res), "dispatch");
	late_ns = at->sent_ns;
	must(m->rank == 1 || (waited[1] - 5 >= late_ns && waited[0] == 5), "waited %llu and %llu of %llu ns",
	     (unsigned long long)waited[0], (unsigned long long)waited[1], (unsigned long long)late_ns);
	must(!layer_combine(&l, &res), "combine");
	layer_check(&l, &res.mask);
	layer_close(&l);
}

TEST(what_was_waited_is_told_for_each_source)
{
	struct covey_config config = harness_config("epwaited", 2);
	struct stamps at = { 0 };

	harness_threads(&config, timed, &at);
}

TEST_RANKS(active_ranks_are_given_by_all_or_none, RANKS)
{
	int32_t active[RANKS] = { 1, 1, 1 };
	struct covey_result res;
	struct layer l;

	layer_open(&l, m->group, COVEY_EP_LL, TOKENS, HIDDEN);
	l.active = m->rank ? active : NULL;
	must(!layer_send(&l, 1) && recv_dispatch(&l, &res) == COVEY_ERR_MISMATCH, "active_ranks on some ranks alone");
	layer_close(&l);
}

/* ---- left out, and a death ---- */

enum { MORTALS = 4 };

struct death {
	struct covey_config config;
	int preset;
	uint64_t *done; /* rank 1 has its outcome */
};

/* Calls nothing meanwhile: the view without the dead is not active before this rank has called. */
static void learn_of_the_death(struct covey_group *group)
{
	const uint32_t *epoch = &cvy_site(cvy_handle_engine(group))->own->epoch;
	const uint64_t deadline = harness_deadline(WATCHDOG_MS);

	while (__atomic_load_n(epoch, __ATOMIC_RELAXED) < 2) {
		must(harness_now_ns() < deadline, "rank 3 does not leave");
		sched_yield();
	}
}

/*
 * Rank 1 alone leaves rank 0 out and is done; rank 3 has published and dies; rank 2 waits for rank 0, which calls when it
 * has learned of the death. So the repair of the dispatch needs its call.
 */
static int loses_rank_3(void *arg, int rank)
{
	static const uint64_t dispatched[] = { 5, 0xe, 7 }, combined[] = { 5, 6, 7 };
	const struct death *d = arg;
	struct covey_group *group = harness_join(&d->config, rank);
	int32_t active[MORTALS] = { rank != 1, 1, 1, 1 };
	struct covey_result res;
	struct layer l;

	layer_open(&l, group, d->preset, TOKENS, HIDDEN);
	l.active = active;
	must(!covey_barrier(group, NULL, NULL), "barrier");
	if (rank == 0)
		learn_of_the_death(group);
	must(!layer_send(&l, 1), "dispatch");
	if (rank == 3) {
		harness_until(d->done, 1, "rank 1");
		kill(getpid(), SIGKILL);
	}
	must(!recv_dispatch(&l, &res), "dispatch");
	if (rank == 1)
		__atomic_store_n(d->done, 1, __ATOMIC_SEQ_CST);
	expect_mask(&res, dispatched[rank], "dispatch", rank);
	must(active[0] == (rank != 1), "rank %d: rank 0 counts as left out", rank);
	active[0] = 1;
	must(!layer_combine(&l, &res), "combine");
	expect_mask(&res, combined[rank], "combine", rank);
	layer_check(&l, &res.mask);
	must(!covey_barrier(group, NULL, NULL), "barrier");
	layer_close(&l);
	covey_close(group);
	return 0;
}

TEST_LOOP(who_is_left_out_by_one_reaches_the_others_after_a_death, 0, 6)
{
	struct death d = { harness_config_over(_i % 2, "epoutdeath", MORTALS), presets[_i / 2],
			   harness_shared(sizeof(uint64_t)) };
	pid_t pid[MORTALS];

	harness_fork_all(loses_rank_3, &d, pid, MORTALS);
	ck_assert(WIFSIGNALED(harness_reap(pid[3])));
	harness_reap_all(pid, 3, -1);
}

/* ---- rows that are summed rank by rank ---- */

enum { EXPERTS = 8, TOP_K = 5 };

struct sums {
	uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], packed[EXPERTS * 2 * TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOP_K], count[EXPERTS], src[EXPERTS * 2 * TOKENS];
	int64_t range[EXPERTS * 2];
	float weights[TOKENS * TOP_K];
};

/* Expert e multiplies by e + 1; k ascending on each rank, rounded there, ranks ascending. */
static uint16_t rank_by_rank(const struct sums *s, int rank, int token, int h)
{
	float x = cvy_bf16_f32(s->x[token * HIDDEN + h]), all = 0;

	for (int p = 0; p < 2; p++) {
		float part = 0;

		for (int k = 0; k < TOP_K; k++) {
			int e = s->ids[token * TOP_K + k];

			if (e / (EXPERTS / 2) == p)
				part += s->weights[token * TOP_K + k] * cvy_bf16_f32(cvy_f32_bf16(x * (float)(e + 1)));
		}
		all += p == rank ? part : cvy_bf16_f32(cvy_f32_bf16(part));
	}
	return cvy_f32_bf16(all);
}

static void fill(struct sums *s, int rank)
{
	uint64_t state = (uint64_t)rank + 1;

	for (int i = 0; i < TOKENS * HIDDEN; i++)
		s->x[i] = cvy_f32_bf16((float)(harness_random(&state) % 1000) / 77);
	for (int i = 0; i < TOKENS * TOP_K; i++) {
		s->ids[i] = (int32_t)(harness_random(&state) % EXPERTS);
		s->weights[i] = (float)(harness_random(&state) % 1000) / 999;
	}
}

TEST_RANKS_OVER_BOTH(rows_are_summed_and_rounded_rank_by_rank, 2)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, TOP_K, EXPERTS);
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_combine_args a = COVEY_COMBINE_INIT;
	struct sums *s = calloc(1, sizeof(*s));
	struct covey_ep *ep;

	must(s, "memory");
	fill(s, m->rank);
	c.combine = COVEY_EP_PER_RANK;
	must(!covey_ep_create(m->group, &c, &ep), "create");
	d.num_tokens = a.num_tokens = TOKENS;
	d.x = s->x;
	d.experts = a.experts = s->ids;
	d.packed_x = s->packed;
	a.y = s->packed;
	d.count = s->count;
	d.src_info = s->src;
	d.range = s->range;
	a.range = s->range;
	a.weights = s->weights;
	a.out = s->out;
	must(!covey_dispatch(ep, &d, NULL, NULL), "dispatch");
	for (int e = 0; e < EXPERTS / 2; e++)
		for (int i = 0; i < s->count[e] * HIDDEN; i++) {
			uint16_t *v = &s->packed[e * 2 * TOKENS * HIDDEN + i];

			*v = cvy_f32_bf16(cvy_bf16_f32(*v) * (float)(m->rank * EXPERTS / 2 + e + 1));
		}
	must(!covey_combine(ep, &a, NULL, NULL), "combine");
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		must(s->out[i] == rank_by_rank(s, m->rank, i / HIDDEN, i % HIDDEN), "element %d: %g, not %g", i,
		     (double)cvy_bf16_f32(s->out[i]),
		     (double)cvy_bf16_f32(rank_by_rank(s, m->rank, i / HIDDEN, i % HIDDEN)));
	covey_ep_destroy(ep);
	free(s);
}

HARNESS_MAIN(.name = "collectives/ep_active")
