/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places through the engine: expert e multiplies by e + 1 wherever it stands, so a token comes back the same from any
 * place. Ranks die before, inside and between the operations, and are replaced; tables change at safe points; and what is
 * wrong with a table, or with `placed`, is said by name.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ep.h"
#include "reduce.h"

enum { HIDDEN = 24, TOKENS = 12, TOP_K = 3, EXPERTS = 7, PLACES = 3, MOST = 4, VICTIM = 2 };

static const int presets[] = { COVEY_EP_LL, COVEY_EP_COMPACT, COVEY_EP_WIN };
enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

struct job {
	struct covey_group *group;
	struct covey_ep *ep;
	struct covey_mask admitted;
	int rank, size, preset, table[EXPERTS * PLACES], local[EXPERTS]; /* local: expert of each number here */
	int tokens, el;
	uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
	uint16_t packed[EXPERTS * MOST * TOKENS * HIDDEN], y[EXPERTS * MOST * TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOP_K], placed[TOKENS * TOP_K], count[EXPERTS], src[EXPERTS * MOST * TOKENS];
	int32_t recv_experts[MOST * TOKENS * TOP_K], triplets[EXPERTS * MOST * TOKENS * 3];
	float weights[TOKENS * TOP_K], recv_weights[MOST * TOKENS * TOP_K];
	int64_t range[EXPERTS * MOST];
};

/* ---- tables ---- */

/* Table @number: 2 or 3 places of each expert on ranks that follow each other, in any order of places. */
static void table_of(int number, int size, int *table)
{
	uint64_t state = (uint64_t)number + 1;

	for (int e = 0; e < EXPERTS; e++) {
		int n = 2 + (int)(harness_random(&state) % 2), first = (int)(harness_random(&state) % (uint64_t)size);
		int hole = n == 2 && size > 2 ? (int)(harness_random(&state) % 3) : -1;

		for (int p = 0; p < PLACES; p++)
			table[e * PLACES + p] = p == hole || p >= size ? -1 : (first + p) % size;
	}
}

static void laid_out(struct job *j)
{
	j->el = 0;
	for (int e = 0; e < EXPERTS; e++)
		for (int p = 0; p < PLACES; p++)
			if (j->table[e * PLACES + p] == j->rank)
				j->local[j->el++] = e;
	must(covey_ep_local_experts(j->ep) == j->el, "%d local experts, not %d", covey_ep_local_experts(j->ep), j->el);
}

static struct covey_ep_config config_of(int preset, const int *table)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, TOP_K, EXPERTS);

	c.preset = preset;
	c.places = PLACES;
	c.expert_owner = table;
	return c;
}

static void job_open(struct job *j, struct covey_group *group, int preset)
{
	struct covey_ep_config c = config_of(preset, NULL);
	struct covey_view view;

	memset(j, 0, sizeof(*j));
	must(!covey_view(group, &view), "view");
	j->group = group;
	j->rank = view.rank;
	j->preset = preset;
	must(!covey_ep_create(group, &c, &j->ep), "create");
}

static void job_remap(struct job *j, int number, int size)
{
	j->size = size;
	table_of(number, size, j->table);
	must(!covey_ep_remap(j->ep, j->table), "remap");
	laid_out(j);
}

/* ---- a pair ---- */

static void job_fill(struct job *j, uint64_t seed)
{
	uint64_t state = seed * 1000 + (uint64_t)j->rank + 1;

	j->tokens = (int)(harness_random(&state) % (TOKENS + 1));
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		j->x[i] = cvy_f32_bf16((float)(int)(harness_random(&state) % 5));
	for (int i = 0; i < TOKENS * TOP_K; i++) {
		j->ids[i] = (int32_t)(harness_random(&state) % (EXPERTS + 1)) - 1;
		j->weights[i] = (float)(1 + harness_random(&state) % 2);
	}
}

static struct covey_dispatch_args dispatch_args(struct job *j)
{
	struct covey_dispatch_args a = EP_DISPATCH(j);

	memset(j->placed, 0x5a, sizeof(j->placed));
	a.weights = j->weights;
	a.recv_experts = j->recv_experts;
	a.recv_weights = j->recv_weights;
	a.placed = j->placed;
	a.triplets = j->preset == COVEY_EP_WIN ? j->triplets : NULL;
	return a;
}

/* The local expert whose row this is; in WIN rows stand close. */
static int bin_of(const struct job *j, int row)
{
	int bin = 0;

	if (j->preset != COVEY_EP_WIN)
		return row / (j->size * TOKENS);
	while (row >= j->count[bin])
		row -= j->count[bin++];
	return bin;
}

static int rows_here(const struct job *j)
{
	int rows = 0;

	for (int e = 0; e < j->el; e++)
		rows += j->preset == COVEY_EP_WIN ? j->count[e] : j->size * TOKENS;
	return rows;
}

static void experts(struct job *j)
{
	const int once = j->preset == COVEY_EP_COMPACT;

	for (int row = 0; row < (once ? j->size * TOKENS : rows_here(j)); row++)
		for (int h = 0; h < HIDDEN; h++) {
			float x = cvy_bf16_f32(j->packed[row * HIDDEN + h]), sum = 0;

			for (int k = 0; once && k < TOP_K; k++)
				if (j->recv_experts[row * TOP_K + k] >= 0)
					sum += j->recv_weights[row * TOP_K + k] * x *
					       (float)(j->local[j->recv_experts[row * TOP_K + k]] + 1);
			j->y[row * HIDDEN + h] = cvy_f32_bf16(once ? sum : x * (float)(j->local[bin_of(j, row)] + 1));
		}
}

static struct covey_combine_args combine_args(struct job *j)
{
	struct covey_combine_args a = EP_COMBINE(j, j->y);

	a.placed = j->placed;
	return a;
}

/* The place that serves the own entry @i while ranks of @living live. */
static int serves(const struct job *j, int i, const struct covey_mask *living)
{
	int list[PLACES], n = 0;

	for (int p = 0; j->ids[i] >= 0 && p < PLACES; p++) {
		int v = j->ids[i] * PLACES + p;

		if (j->table[v] >= 0 && covey_mask_has(living, j->table[v]))
			list[n++] = v;
	}
	return n ? list[j->rank % n] : -1;
}

static int is_placed(const struct job *j, const struct covey_mask *living)
{
	for (int i = 0; i < j->tokens * TOP_K; i++)
		if (j->placed[i] != serves(j, i, living))
			return 0;
	return 1;
}

static void check_placed(const struct job *j, const struct covey_mask *living)
{
	for (int i = 0; i < j->tokens * TOP_K; i++)
		must(j->placed[i] == serves(j, i, living), "rank %d entry %d of expert %d is placed at %d, not %d",
		     j->rank, i, j->ids[i], j->placed[i], serves(j, i, living));
}

/* Entries whose place took no part in the combine. */
static int lacks(const struct job *j, const struct covey_mask *mask)
{
	int n = 0;

	for (int i = 0; i < j->tokens * TOP_K; i++)
		n += j->ids[i] >= 0 && (j->placed[i] < 0 || !covey_mask_has(mask, j->table[j->placed[i]]));
	return n;
}

/* All terms whose place is in @mask; numbers are small, so sums are exact. */
static void check_out(const struct job *j, const struct covey_mask *mask)
{
	for (int t = 0; t < j->tokens; t++)
		for (int h = 0; h < HIDDEN; h++) {
			float sum = 0, got = cvy_bf16_f32(j->out[t * HIDDEN + h]);

			for (int i = t * TOP_K; i < (t + 1) * TOP_K; i++)
				if (j->placed[i] >= 0 && covey_mask_has(mask, j->table[j->placed[i]]))
					sum += j->weights[i] * cvy_bf16_f32(j->x[t * HIDDEN + h]) *
					       (float)(j->ids[i] + 1);
			must(got == sum, "rank %d token %d element %d: %g, not %g", j->rank, t, h, (double)got,
			     (double)sum);
		}
}

static void every_table(struct member *m)
{
	struct covey_result res;
	struct job j;

	for (int preset = 0; preset < PRESETS; preset++) {
		job_open(&j, m->group, presets[preset]);
		for (int i = 0; i < 12; i++) {
			struct covey_dispatch_args d;
			struct covey_combine_args c;

			must(!covey_barrier(m->group, NULL, NULL), "barrier");
			job_remap(&j, i, m->n);
			job_fill(&j, (uint64_t)i);
			d = dispatch_args(&j);
			must(!covey_dispatch(j.ep, &d, NULL, &res) && covey_mask_count(&res.mask) == m->n, "dispatch");
			check_placed(&j, &res.mask);
			experts(&j);
			c = combine_args(&j);
			must(!covey_combine(j.ep, &c, NULL, &res) && !lacks(&j, &res.mask), "combine");
			check_out(&j, &res.mask);
		}
		covey_ep_destroy(j.ep);
	}
}

/* hosts 2 and 4: rows are pushed to the ranks of the places alone. */
TEST_LOOP(tokens_come_back_from_all_tables, 0, 3)
{
	struct covey_config config = harness_config_over(_i, "places", MOST);
	static const int hosts[] = { 0, 2, 4 };

	harness_threads_on(&config, every_table, NULL, hosts[_i]);
}

/* ---- deaths ---- */

enum { STEPS = 40, DIES_AT = 7, AFTER = 10 };
enum when { BEFORE, SENT, BETWEEN, WHENS };

struct plan {
	struct covey_config config;
	enum when when;
	int preset, replaced;
	struct shared {
		uint64_t redone[STEPS]; /* ranks that did the pair of the step again */
		uint64_t dispatched;	/* of the step of the death: ranks that have the outcome */
	} * shared;
};

struct state {
	uint64_t step, back; /* back: the step at which the replacement was let in, 0: not yet */
};

static void die(const struct plan *plan, const struct job *j, uint64_t step, enum when when)
{
	if (!plan->replaced && j->rank == VICTIM && step == DIES_AT && plan->when == when)
		raise(SIGKILL);
}

/* One try of a step's pair. Does this rank lack results? */
static int try_pair(const struct plan *plan, struct job *j, uint64_t step)
{
	struct covey_dispatch_args d = dispatch_args(j);
	const struct covey_mask living = j->admitted;
	struct covey_combine_args c;
	struct covey_result res;

	must(!covey_dispatch_send(j->ep, &d, NULL), "dispatch send");
	die(plan, j, step, SENT);
	must(!covey_dispatch_recv(j->ep, harness_deadline(WATCHDOG_MS), &res), "dispatch");
	/* Of who was let in, or without who died since: if some had completed it with that rank, it counts, and is masked. */
	if (covey_mask_has(&res.mask, VICTIM) || !is_placed(j, &living))
		check_placed(j, &res.mask);
	experts(j);
	if (step == DIES_AT)
		__atomic_add_fetch(&plan->shared->dispatched, 1, __ATOMIC_SEQ_CST);
	if (step == DIES_AT && j->rank == VICTIM && plan->when == BETWEEN && !plan->replaced)
		harness_until(&plan->shared->dispatched, MOST, "the others' outcomes");
	die(plan, j, step, BETWEEN);
	c = combine_args(j);
	must(!covey_combine_send(j->ep, &c, NULL), "combine send");
	must(!covey_combine_recv(j->ep, harness_deadline(WATCHDOG_MS), &res), "combine");
	check_out(j, &res.mask);
	return lacks(j, &res.mask) > 0;
}

/* All ranks do a pair again if one of them lacks results: they agree on it by an allreduce. Returns the ranks left. */
static struct covey_mask step_of(struct plan *plan, struct job *j, uint64_t step)
{
	struct covey_result res = { .status = 0 };
	int32_t lack, any = 1;

	job_fill(j, step);
	for (int tries = 0; any; tries++) {
		must(tries < 4, "step %llu: tokens are lost again and again", (unsigned long long)step);
		lack = try_pair(plan, j, step);
		must(!covey_allreduce(&lack, &any, 1, COVEY_INT32, COVEY_MAX, j->group, NULL, &res), "allreduce");
		if (any)
			__atomic_add_fetch(&plan->shared->redone[step], 1, __ATOMIC_SEQ_CST);
	}
	return res.mask;
}

static int run(void *arg, int rank)
{
	struct plan *plan = arg;
	struct state state = { .step = 1 };
	struct covey_result res;
	struct job *j = malloc(sizeof(*j));
	struct covey_mask left;
	int laid = -1, gone = plan->replaced;

	must(j != NULL, "memory");
	job_open(j, harness_join(&plan->config, rank), plan->preset);
	for (; state.step < STEPS && (!state.back || state.step < state.back + AFTER); state.step++) {
		must(!covey_admit(j->group, &state, sizeof(state), &res), "admit");
		j->admitted = res.mask;
		if (gone && covey_mask_has(&res.mask, VICTIM) && !state.back)
			state.back = state.step;
		if (laid != (int)state.step / 5 || state.back == state.step)
			job_remap(j, laid = (int)state.step / 5, MOST);
		die(plan, j, state.step, BEFORE);
		left = step_of(plan, j, state.step);
		gone |= !covey_mask_has(&left, VICTIM);
		if (!state.back && state.step == STEPS - 1) /* until the replacement comes */
			state.step -= 5, usleep(1000);
	}
	covey_ep_destroy(j->ep);
	must(!covey_leave(j->group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(j->group);
	free(j);
	return 0;
}

TEST_LOOP(a_death_moves_tokens_to_places_that_live, 0, UNDER_TSAN ? 0 : 2 * PRESETS * WHENS)
{
	struct plan plan = { .config = harness_config_over(_i % 2, "replicas", MOST),
			     .when = _i / (2 * PRESETS),
			     .preset = presets[_i / 2 % PRESETS] };
	struct plan second;
	pid_t pid[MOST], again;

	plan.shared = harness_shared(sizeof(*plan.shared));
	harness_fork_all(run, &plan, pid, MOST);
	ck_assert(WIFSIGNALED(harness_reap(pid[VICTIM])));
	second = plan;
	second.replaced = 1;
	second.config.create = COVEY_CREATE_NEVER;
	second.config.world = 0;
	again = harness_fork(run, &second, VICTIM);
	pid[VICTIM] = again;
	harness_reap_all(pid, MOST, -1);
	for (int s = 1; s < STEPS; s++) /* a death before the dispatch costs nothing but the view change */
		ck_assert(!plan.shared->redone[s] || (s == DIES_AT && plan.when != BEFORE));
	if (plan.when == BETWEEN)
		ck_assert_uint_eq(plan.shared->redone[DIES_AT], MOST - 1);
}

/* ---- what is refused ---- */

static void bad_tables(struct member *m)
{
	struct covey_ep_sizes s = COVEY_EP_SIZES_INIT;
	struct covey_ep *ep = NULL;
	int table[EXPERTS * PLACES];
	struct covey_ep_config c = config_of(COVEY_EP_LL, table);
	struct job j;

	job_open(&j, m->group, COVEY_EP_LL);
	for (int way = 0; way < 5; way++) {
		static const char *const causes[] = {
			"expert_owner[5][1] is 4: it must be a rank of the group, 0 to 3, or -1 for no place",
			"expert_owner[5][2] is -2: it must be a rank", "expert_owner[5][0] and [2] are both rank 1",
			"expert_owner[5] has -1 for all 3 places: an expert needs one place at least",
			"expert_owner[0][0] is 2147483647"
		};

		for (int v = 0; v < EXPERTS * PLACES; v++)
			table[v] = v % PLACES;
		if (way == 0)
			table[5 * PLACES + 1] = 4;
		if (way == 1)
			table[5 * PLACES + 2] = -2;
		if (way == 2)
			table[5 * PLACES] = table[5 * PLACES + 2] = 1, table[5 * PLACES + 1] = -1;
		for (int p = 0; way == 3 && p < PLACES; p++)
			table[5 * PLACES + p] = -1;
		if (way == 4)
			table[0] = INT32_MAX;
		must_be_invalid(m->group, covey_ep_create(m->group, &c, &ep), causes[way]);
		must_be_invalid(m->group, covey_ep_sizes(m->group, &c, 0, &s), causes[way]);
		must_be_invalid(m->group, covey_ep_remap(j.ep, table), causes[way]);
	}
	c.expert_owner = NULL;
	c.places = -1;
	must_be_invalid(m->group, covey_ep_create(m->group, &c, &ep),
			"places is -1: an expert has one place on a rank at most");
	c.places = MOST + 1;
	must_be_invalid(m->group, covey_ep_create(m->group, &c, &ep),
			"places is 5: an expert has one place on a rank at most, so it must be from 0 to max_ranks, 4");
	covey_ep_destroy(j.ep);
}

TEST(bad_tables_are_refused_by_name)
{
	struct covey_config config = harness_config("badplaces", MOST);

	config.max_ranks = MOST;
	harness_threads(&config, bad_tables, NULL);
}

TEST_RANKS(placed_is_needed_and_looked_at, 2)
{
	struct covey_dispatch_args d;
	struct covey_combine_args c;
	struct covey_result res;
	int32_t was;
	struct job j;

	job_open(&j, m->group, COVEY_EP_LL);
	job_remap(&j, 3, m->n);
	job_fill(&j, 1);
	j.tokens = 4;
	j.ids[2] = 6;
	d = dispatch_args(&j);
	d.placed = NULL;
	must_be_invalid(m->group, covey_dispatch(j.ep, &d, NULL, &res), "placed must not be NULL with places above 1");
	d.placed = j.placed;
	must(!covey_dispatch(j.ep, &d, NULL, &res), "dispatch");
	experts(&j);
	c = combine_args(&j);
	c.placed = NULL;
	must_be_invalid(m->group, covey_combine(j.ep, &c, NULL, &res), "placed must not be NULL with places above 1");
	c.placed = j.placed;
	was = j.placed[2];
	for (int way = 0; way < 4; way++) {
		static const int32_t wrong[] = { 5 * PLACES, EXPERTS * PLACES, -2, INT32_MIN };
		char cause[60];

		j.placed[2] = wrong[way];
		snprintf(cause, sizeof(cause), "placed[2] is %d, which is no place of expert 6", wrong[way]);
		must_be_invalid(m->group, covey_combine(j.ep, &c, NULL, &res), cause);
	}
	j.placed[2] = was;
	must(!covey_combine(j.ep, &c, NULL, &res), "combine");
	check_out(&j, &res.mask);
	d.num_tokens = c.num_tokens = j.tokens = 0;
	d.placed = NULL;
	c.placed = NULL;
	must(!covey_dispatch(j.ep, &d, NULL, &res) && !covey_combine(j.ep, &c, NULL, &res), "no tokens need none");
	covey_ep_destroy(j.ep);
}

/* Tables that differ are different calls, and so are tables of another number of places with the same ranks. */
TEST_RANKS(tables_that_differ_do_not_match, 2)
{
	struct covey_dispatch_args d;
	struct covey_result res;
	struct job j;

	job_open(&j, m->group, COVEY_EP_LL);
	job_remap(&j, 3, m->n);
	if (m->rank) {
		for (int v = 0; v < EXPERTS * PLACES; v++)
			j.table[v] = j.table[v] < 0 ? -1 : 1 - j.table[v];
		must(!covey_ep_remap(j.ep, j.table), "remap");
	}
	job_fill(&j, 1);
	d = dispatch_args(&j);
	must(covey_dispatch(j.ep, &d, NULL, &res) == COVEY_ERR_MISMATCH, "tables that differ");
	for (int i = 0; i < j.tokens * TOP_K; i++)
		must(j.placed[i] >= -1 && j.placed[i] < EXPERTS * PLACES, "written also with an error");
	covey_ep_destroy(j.ep);
}

/* ---- sizes, and one place each ---- */

static void sizes(struct member *m)
{
	struct covey_ep_config c = config_of(COVEY_EP_LL, NULL);
	struct covey_ep_sizes s = COVEY_EP_SIZES_INIT, one = COVEY_EP_SIZES_INIT;
	struct covey_ep *ep;

	must(!covey_ep_sizes(m->group, &c, 0, &s), "sizes");
	must(!covey_ep_create(m->group, &c, &ep) && covey_ep_local_experts(ep) == s.local_experts, "local experts");
	c.places = 0;
	must(!covey_ep_sizes(m->group, &c, 0, &one), "sizes");
	must(s.space_bytes == one.space_bytes, "the window has room for all experts on one rank anyway");
	must(s.packed_x_bytes == (size_t)s.local_experts * MOST * TOKENS * HIDDEN * 2, "rows of each place");
	covey_ep_destroy(ep);
}

static void one_place(struct member *m)
{
	struct covey_ep_config c = config_of(COVEY_EP_LL, NULL);
	struct covey_dispatch_args d;
	struct covey_combine_args k;
	struct covey_result res;
	struct job j;

	memset(&j, 0, sizeof(j));
	c.places = 1;
	j.rank = m->rank;
	must(!covey_ep_create(m->group, &c, &j.ep), "create");
	job_fill(&j, 5);
	d = dispatch_args(&j);
	must(!covey_dispatch(j.ep, &d, NULL, &res), "dispatch");
	for (int i = 0; i < j.tokens * TOP_K; i++)
		must(j.placed[i] == j.ids[i], "with one place each its number is the expert's");
	d.placed = NULL;
	must(!covey_dispatch(j.ep, &d, NULL, &res), "without placed");
	k = combine_args(&j);
	memset(j.placed, 0x5a, sizeof(j.placed));
	memset(j.y, 0, sizeof(j.y));
	must(!covey_combine(j.ep, &k, NULL, &res), "placed is not read");
	covey_ep_destroy(j.ep);
}

TEST(sizes_count_places)
{
	struct covey_config config = harness_config("placesizes", MOST);

	harness_threads(&config, sizes, NULL);
	harness_threads(&config, one_place, NULL);
}

HARNESS_MAIN(.name = "collectives/ep_replicas")
