/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine through the engine, against what each token must come back as: expert e multiplies
 * by e + 1, so out[t] = sum over k of w * bf16(x * (e + 1)). Every kind of routing, over both transports,
 * and a rank killed before, inside and between the two phases.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "reduce.h"

enum { HIDDEN = 40, TOKENS = 24, TOP_K = 3, EXPERTS = 7 };
enum routing { RANDOM, SKEWED, EMPTY, ONE_EXPERT, HOSTILE, ROUTINGS };

struct job {
	struct covey_group *group;
	struct covey_ep *ep;
	int rank, tokens, rows, local;
	uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], *packed;
	int32_t ids[TOKENS * TOP_K], *count, *src;
	int64_t *range;
	float w[TOKENS * TOP_K];
};

static int owner_of(int expert, int size)
{
	return expert / ((EXPERTS + size - 1) / size);
}

static int32_t route(enum routing routing, uint64_t *state)
{
	uint64_t r = harness_random(state);

	switch (routing) {
	case SKEWED:
		return r % 4 ? 0 : (int32_t)(r / 7 % EXPERTS);
	case ONE_EXPERT:
		return EXPERTS - 1;
	case HOSTILE: /* below and past all ids, and the same two again and again */
		if (r % 5 == 0)
			return -1 - (int32_t)(r % 1000);
		return r % 5 == 1 ? EXPERTS + (int32_t)(r % 100000) : (int32_t)(r % 2);
	default:
		return (int32_t)(r % EXPERTS);
	}
}

static void job_open(struct job *j, struct covey_group *group)
{
	struct covey_ep_config c = COVEY_EP_CONFIG_INIT;
	struct covey_view view;

	memset(j, 0, sizeof(*j));
	c.max_tokens = TOKENS;
	c.hidden = HIDDEN;
	c.top_k = TOP_K;
	c.experts = EXPERTS;
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
		j->ids[i] = route(routing, &state);
		j->w[i] = (float)(harness_random(&state) % 64) / 64;
	}
}

static int dispatch(struct job *j, struct covey_result *res)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

	a.num_tokens = j->tokens;
	a.x = j->x;
	a.experts = j->ids;
	a.packed_x = j->packed;
	a.count = j->count;
	a.src_info = j->src;
	a.range = j->range;
	return covey_dispatch(j->ep, &a, NULL, res);
}

static void experts(struct job *j, int size)
{
	int first = j->rank * ((EXPERTS + size - 1) / size);

	for (int e = 0; e < j->local; e++)
		for (size_t i = 0; i < (size_t)j->count[e] * HIDDEN; i++) {
			uint16_t *v = j->packed + (size_t)e * (size_t)j->rows * HIDDEN + i;

			*v = cvy_f32_bf16(cvy_bf16_f32(*v) * (float)(first + e + 1));
		}
}

static void combine_args(struct job *j, struct covey_combine_args *a)
{
	a->num_tokens = j->tokens;
	a->y = j->packed;
	a->count = j->count;
	a->src_info = j->src;
	a->range = j->range;
	a->experts = j->ids;
	a->weights = j->w;
	a->out = j->out;
}

/* Which terms of the routing travel: known ids, and of one source at most T rows for one expert. */
static void valid_terms(const struct job *j, bool *valid)
{
	int rows[EXPERTS] = { 0 };

	for (int i = 0; i < j->tokens * TOP_K; i++) {
		int32_t e = j->ids[i];

		valid[i] = e >= 0 && e < EXPERTS && rows[e] < TOKENS;
		if (valid[i])
			rows[e]++;
	}
}

/* Bit for bit: k ascending in f32, rounded once; terms of owners that are not in @mask are left out. */
static void check_out(const struct job *j, int size, const struct covey_mask *mask)
{
	bool valid[TOKENS * TOP_K];

	valid_terms(j, valid);
	for (int t = 0; t < j->tokens; t++) {
		for (int h = 0; h < HIDDEN; h++) {
			uint16_t got = j->out[t * HIDDEN + h];
			float sum = 0;

			for (int k = 0; k < TOP_K; k++) {
				int32_t e = j->ids[t * TOP_K + k];
				float y;

				if (!valid[t * TOP_K + k] || !covey_mask_has(mask, owner_of(e, size)))
					continue;
				y = cvy_bf16_f32(cvy_f32_bf16(cvy_bf16_f32(j->x[t * HIDDEN + h]) * (float)(e + 1)));
				sum += j->w[t * TOP_K + k] * y;
			}
			must(got == cvy_f32_bf16(sum) || (!sum && !cvy_bf16_f32(got)),
			     "rank %d token %d element %d: %g, not %g", j->rank, t, h, (double)cvy_bf16_f32(got),
			     (double)sum);
		}
	}
}

static void every_routing(struct member *m)
{
	struct covey_result res;
	struct job j;

	job_open(&j, m->group);
	for (int i = 0; i < 5 * ROUTINGS; i++) {
		struct covey_combine_args a = COVEY_COMBINE_INIT;
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
		combine_args(&j, &a);
		must(!covey_combine_send(j.ep, &a, NULL), "combine send");
		must(!covey_combine_recv(j.ep, harness_deadline(WATCHDOG_MS), &res), "combine");
		check_out(&j, m->n, &res.mask);
	}
	job_close(&j);
}

static const int worlds[] = { 1, 2, 4 };

START_TEST(every_token_comes_back_right)
{
	struct covey_config config = harness_config("ep", worlds[_i / 2]);

	config.transport = _i % 2 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	harness_threads(&config, every_routing, NULL);
}
END_TEST

/* ---- a rank dies: before dispatch, inside it, between the phases ---- */

struct kill_plan {
	struct covey_config config;
	int when;
};

static void victim_moment(const struct kill_plan *plan, int rank, int when)
{
	if (rank != 2 || plan->when != when)
		return;
	raise(SIGKILL);
}

static int mortal(void *arg, int rank)
{
	struct kill_plan *plan = arg;
	struct covey_combine_args a = COVEY_COMBINE_INIT;
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_result res;
	struct job j;

	job_open(&j, harness_join(&plan->config, rank));
	for (uint64_t i = 0; i < 30; i++) {
		job_fill(&j, RANDOM, i);
		if (i == 10)
			victim_moment(plan, rank, 0);
		d.num_tokens = j.tokens;
		d.x = j.x;
		d.experts = j.ids;
		d.packed_x = j.packed;
		d.count = j.count;
		d.src_info = j.src;
		d.range = j.range;
		must(!covey_dispatch_send(j.ep, &d, NULL), "dispatch send");
		if (i == 10)
			victim_moment(plan, rank, 1);
		must(!covey_dispatch_recv(j.ep, 0, &res), "dispatch");
		for (int e = 0; e < j.local; e++)
			must(covey_mask_has(&res.mask, 2) || !(j.range[e * 3 + 2] >> 32),
			     "rows of a source that is missing");
		experts(&j, 3);
		if (i == 10)
			victim_moment(plan, rank, 2);
		combine_args(&j, &a);
		must(!covey_combine(j.ep, &a, NULL, &res), "combine");
		check_out(&j, 3, &res.mask);
		must(i < 11 || !covey_mask_has(&res.mask, 2), "the dead one is still there");
	}
	job_close(&j);
	must(!covey_leave(j.group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(j.group);
	return 0;
}

START_TEST(survivors_of_a_death_go_on_with_what_is_there)
{
	struct kill_plan plan = { .config = harness_config("epkill", 3), .when = _i / 2 };
	pid_t pid[3];

	plan.config.transport = _i % 2 ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	for (int r = 0; r < 3; r++)
		pid[r] = harness_fork(mortal, &plan, r);
	for (int r = 0; r < 3; r++) {
		int status = harness_reap(pid[r]);

		if (r == 2)
			ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		else
			ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "rank %d: status %#x", r, status);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collectives/ep");
	TCase *tc = tcase_create("ep");

	tcase_add_loop_test(tc, every_token_comes_back_right, 0, 6);
	if (!UNDER_TSAN)
		tcase_add_loop_test(tc, survivors_of_a_death_go_on_with_what_is_there, 0, 6);
	suite_add_tcase(suite, tc);
	return harness_main(suite);
}
