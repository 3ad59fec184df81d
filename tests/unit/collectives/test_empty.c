/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A buffer of no bytes may be NULL: collectives and messages of no elements, on one rank or on all; dispatch and combine
 * of ranks without tokens, rows or experts, in each preset, also when a rank dies and the others do the operation again.
 *
 * labels: redis real
 */
#include "ep_fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "reduce.h"

enum { RANKS = 3, HIDDEN = 64, TOKENS = 4, EXPERTS = 4, ROWS = RANKS * TOKENS * EXPERTS };

/* ---- collectives and messages ---- */

static void ended_well(int err, struct covey_group *group, const char *what)
{
	struct covey_error_info why;

	covey_last_error(group, &why);
	must(!err, "%s: %s", what, why.cause);
}

/* No rank has an element. */
static void none_at_all(struct member *m)
{
	struct covey_group *g = m->group;
	size_t none[RANKS] = { 0 };
	struct covey_work *work;

	for (int root = 0; root < m->n; root++) {
		ended_well(covey_broadcast(NULL, NULL, 0, COVEY_INT32, root, g, NULL, NULL), g, "broadcast");
		ended_well(covey_reduce(NULL, NULL, 0, COVEY_INT32, COVEY_SUM, root, g, NULL, NULL), g, "reduce");
		ended_well(covey_gather(NULL, NULL, 0, COVEY_INT32, root, g, NULL, NULL), g, "gather");
		ended_well(covey_scatter(NULL, NULL, 0, COVEY_INT32, root, g, NULL, NULL), g, "scatter");
	}
	ended_well(covey_allreduce(NULL, NULL, 0, COVEY_FLOAT16, COVEY_AVG, g, NULL, NULL), g, "allreduce");
	ended_well(covey_allgather(NULL, NULL, 0, COVEY_INT32, g, NULL, NULL), g, "allgather");
	ended_well(covey_alltoall(NULL, NULL, 0, COVEY_INT32, g, NULL, NULL), g, "alltoall");
	ended_well(covey_reduce_scatter(NULL, NULL, 0, COVEY_INT32, COVEY_MAX, g, NULL, NULL), g, "reduce_scatter");
	ended_well(covey_alltoallv(NULL, none, none, NULL, none, none, COVEY_INT32, g, NULL, NULL), g, "alltoallv");
	ended_well(covey_allgatherv(NULL, 0, NULL, none, none, COVEY_INT32, g, NULL, NULL), g, "allgatherv");
	ended_well(covey_admit(g, NULL, 0, NULL), g, "admit");
	ended_well(covey_allreduce_start(NULL, NULL, 0, COVEY_INT32, COVEY_SUM, g, NULL, &work), g, "allreduce_start");
	ended_well(covey_work_wait(work, 0, NULL), g, "work of allreduce_start");
	covey_work_free(work);
}

/* Rank 0 has none where the others have one each. */
static void none_of_one(struct member *m)
{
	struct covey_group *g = m->group;
	int32_t own = m->rank, got[RANKS] = { -1, -1, -1 };
	size_t all[RANKS] = { 0, 1, 1 }, none[RANKS] = { 0 }, places[RANKS] = { 0, 1, 2 };
	const size_t *counts = m->rank ? all : none;

	ended_well(covey_alltoallv(m->rank ? got : NULL, none, places, m->rank ? got : NULL, none, places, COVEY_INT32,
				   g, NULL, NULL),
		   g, "alltoallv of none");
	ended_well(covey_allgatherv(m->rank ? &own : NULL, counts[m->rank], got, all, places, COVEY_INT32, g, NULL,
				    NULL),
		   g, "allgatherv");
	must(got[0] == -1 && got[1] == 1 && got[2] == 2, "allgatherv gave %d %d %d", got[0], got[1], got[2]);
	got[1] = got[2] = -1;
	ended_well(covey_alltoallv(m->rank ? (const int32_t[]){ m->rank, m->rank, m->rank } : NULL, counts, places,
				   m->rank ? got : NULL, counts, places, COVEY_INT32, g, NULL, NULL),
		   g, "alltoallv");
	must(got[0] == -1 && got[1] == (m->rank ? 1 : -1) && got[2] == (m->rank ? 2 : -1), "alltoallv gave %d %d %d",
	     got[0], got[1], got[2]);
}

static void messages(struct member *m)
{
	const int next = (m->rank + 1) % m->n, last = (m->rank + m->n - 1) % m->n;
	struct covey_result res = { 0 };

	covey_group_start();
	ended_well(covey_send(NULL, 0, COVEY_INT32, next, 1, m->group, NULL, NULL), m->group, "send");
	ended_well(covey_recv(NULL, 0, COVEY_INT32, last, 1, m->group, NULL, &res), m->group, "recv");
	ended_well(covey_group_end(), m->group, "group of messages");
	must(res.bytes == 0 && res.peer == last, "%zu bytes from %d", res.bytes, res.peer);
}

TEST_RANKS_OVER_BOTH(operations_without_elements_need_no_buffers, RANKS)
{
	for (int i = 0; i < 3; i++) {
		none_at_all(m);
		none_of_one(m);
		messages(m);
	}
}

/* ---- dispatch and combine ---- */

static const struct {
	int preset, combine, back, once;
} forms[] = { { COVEY_EP_LL, COVEY_EP_PER_EXPERT, COVEY_EP_BACK_PLAIN, 0 },
	      { COVEY_EP_LL, COVEY_EP_PER_RANK, COVEY_EP_BACK_INT8, 0 },
	      { COVEY_EP_FLAT, COVEY_EP_PER_EXPERT, COVEY_EP_BACK_PLAIN, 0 },
	      { COVEY_EP_WIN, COVEY_EP_PER_RANK, COVEY_EP_BACK_PLAIN, 0 },
	      { COVEY_EP_WIN, COVEY_EP_PER_EXPERT, COVEY_EP_BACK_INT8, 0 },
	      { COVEY_EP_COMPACT, COVEY_EP_PER_EXPERT, COVEY_EP_BACK_PLAIN, 1 },
	      { COVEY_EP_HT, COVEY_EP_PER_EXPERT, COVEY_EP_BACK_PLAIN, 1 } };

enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

/* Rank 0 owns experts 0 and 1, rank 1 owns 2 and 3, and rank 2 none. All tokens go to the experts of rank @to. */
struct pair {
	struct covey_group *group;
	struct covey_ep *ep;
	int rank, tokens, once;
	uint16_t x[TOKENS * HIDDEN], packed[ROWS * HIDDEN], out[TOKENS * HIDDEN];
	int32_t ids[TOKENS * 2], count[EXPERTS], src[ROWS], triplets[ROWS * 3], flat[ROWS * 2], experts[ROWS * 2];
	int64_t range[EXPERTS * RANKS];
	float weights[TOKENS * 2], beside[ROWS * 2];
};

static struct pair *pair_open(struct covey_group *group, int rank, int form)
{
	static const int owner[EXPERTS] = { 0, 0, 1, 1 };
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, 2, EXPERTS);
	struct pair *p = calloc(1, sizeof(*p));

	must(p, "memory");
	p->group = group;
	p->rank = rank;
	p->once = forms[form].once;
	c.expert_owner = owner;
	c.preset = forms[form].preset;
	c.combine = forms[form].combine;
	c.combine_rows = forms[form].back;
	ended_well(covey_ep_create(group, &c, &p->ep), group, "create");
	return p;
}

static void pair_close(struct pair *p)
{
	covey_ep_destroy(p->ep);
	free(p);
}

static int pair_dispatch(struct pair *p, int tokens, int to, struct covey_result *res)
{
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;

	p->tokens = d.num_tokens = tokens;
	for (int t = 0; t < tokens; t++) {
		p->ids[t * 2] = to * 2;
		p->ids[t * 2 + 1] = to * 2 + 1;
		p->weights[t * 2] = p->weights[t * 2 + 1] = 1;
		for (int h = 0; h < HIDDEN; h++)
			p->x[t * HIDDEN + h] = cvy_f32_bf16((float)(t + 1));
	}
	if (tokens) {
		d.x = p->x;
		d.experts = p->ids;
		d.weights = p->weights;
	}
	d.fill_tail = 1;
	if (p->rank < 2) {
		d.packed_x = p->packed;
		d.count = p->count;
		d.src_info = p->src;
		d.range = p->range;
		d.triplets = p->triplets;
		d.flat = p->flat;
		d.recv_experts = p->experts;
		d.recv_weights = p->beside;
	}
	return covey_dispatch(p->ep, &d, NULL, res);
}

static int pair_rows(const struct pair *p)
{
	int rows = 0;

	for (int e = 0; p->rank < 2 && e < 2; e++)
		rows += p->count[e];
	return rows;
}

static int pair_combine(struct pair *p, struct covey_result *res)
{
	struct covey_combine_args c = COVEY_COMBINE_INIT;

	c.num_tokens = p->tokens;
	if (p->tokens) {
		c.experts = p->ids;
		c.weights = p->weights;
		c.out = p->out;
	}
	if (p->rank < 2)
		c.range = p->range;
	if (pair_rows(p))
		c.y = p->packed;
	return covey_combine(p->ep, &c, NULL, res);
}

/* COMPACT has one row for both experts; the others two that are added. */
static void check_out(const struct pair *p, int here)
{
	for (int i = 0; i < p->tokens * HIDDEN; i++) {
		const float want = (float)((i / HIDDEN + 1) * (p->once ? 1 : 2) * here);

		must(cvy_bf16_f32(p->out[i]) == want, "rank %d: out[%d] is %g, not %g", p->rank, i,
		     (double)cvy_bf16_f32(p->out[i]), (double)want);
	}
}

/* The @i-th: a bit of it says of each rank whether it has tokens, the last one which rank gets them. */
static void of_pairs(struct member *m)
{
	struct pair *p = pair_open(m->group, m->rank, *(int *)m->arg);

	for (int i = 0; i < 1 << (RANKS + 1); i++) {
		const int tokens = i >> m->rank & 1 ? TOKENS : 0;

		ended_well(pair_dispatch(p, tokens, i >> RANKS, NULL), p->group, "dispatch");
		must(!!pair_rows(p) == (m->rank == i >> RANKS && i % (1 << RANKS)), "%d rows", pair_rows(p));
		ended_well(pair_combine(p, NULL), p->group, "combine");
		check_out(p, 1);
	}
	pair_close(p);
}

TEST_LOOP(ranks_without_tokens_rows_or_experts_need_no_buffers, 0, 2 * FORMS)
{
	struct covey_config config = harness_config_over(_i % 2, "empty", RANKS);
	int form = _i / 2;

	harness_threads(&config, of_pairs, &form);
}

/* Rows that came need their results: a rank that forgets these is told so, and the others wait for its next call. */
static void forgotten(struct member *m)
{
	struct pair *p = pair_open(m->group, m->rank, *(int *)m->arg);
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	struct covey_error_info why;

	ended_well(pair_dispatch(p, 1, 0, NULL), p->group, "dispatch");
	c.range = p->range;
	if (m->rank == 0) {
		must(covey_combine(p->ep, &c, NULL, NULL) == COVEY_ERR_INVAL, "combine without y");
		covey_last_error(m->group, &why);
		must(strstr(why.cause, "y must not be NULL when rows came"), "the cause: %s", why.cause);
	}
	ended_well(pair_combine(p, NULL), p->group, "combine");
	check_out(p, 1);
	pair_close(p);
}

TEST_LOOP(rows_that_came_need_y, 0, FORMS)
{
	struct covey_config config = harness_config("empty", RANKS);
	int form = _i;

	harness_threads(&config, forgotten, &form);
}

/* ---- the owner of all rows dies, and the others do the operation again ---- */

struct kill_plan {
	struct covey_config config;
	int form, when;
};

static int mortal(void *arg, int rank)
{
	const struct kill_plan *plan = arg;
	struct pair *p = pair_open(harness_join(&plan->config, rank), rank, plan->form);
	struct covey_result res;

	for (int i = 0; i < 20; i++) {
		const int moment = rank == 1 && i == 10 ? plan->when : -1;

		if (moment == 0)
			raise(SIGKILL);
		ended_well(pair_dispatch(p, rank == 2 ? 0 : TOKENS, 1, &res), p->group, "dispatch");
		if (moment == 1)
			raise(SIGKILL);
		ended_well(pair_combine(p, &res), p->group, "combine");
		check_out(p, covey_mask_has(&res.mask, 1));
	}
	must(!covey_mask_has(&res.mask, 1), "the dead one is still there");
	must(!covey_leave(p->group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(p->group);
	return 0;
}

TEST_LOOP(without_buffers_an_operation_is_done_again, 0, UNDER_TSAN ? 0 : 2 * FORMS)
{
	struct kill_plan plan = { .config = harness_config("empty", RANKS), .form = _i / 2, .when = _i % 2 };
	pid_t pid[RANKS];

	harness_fork_all(mortal, &plan, pid, RANKS);
	harness_reap_all(pid, RANKS, 1);
}

HARNESS_MAIN(.name = "collectives/empty")
