/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preset COMPACT: a token has one row at each rank that it names, rows stand by source, then token, and come back as one
 * sum for each rank. Inputs of all ranks are functions of a seed, so whoever checks makes them anew and goes through the
 * rows in the order that they must have; nothing here shares code with what it checks but the conversions. First alone,
 * with sources and owners missing and with bytes that no honest peer writes, then through the engine, over both
 * transports, with a rank killed before, inside and between the two phases.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ep.h"
#include "ep_quant.h"
#include "mask.h"

enum { HIDDEN = 136, TOKENS = 17, TOP_K = 4, EXPERTS = 7, MOST = 5, GROUPS = 2, ROWS = MOST * TOKENS };
enum { ODD = 7 }; /* this element of each token is one of odd() */

struct batch { /* of one rank */
	int tokens;
	uint16_t x[TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOP_K];
	float w[TOKENS * TOP_K];
};

struct job {
	struct covey_group *group;
	struct covey_ep *ep;
	int rank, size, dtype;
	int rows, back; /* enum covey_ep_rows_as, covey_ep_back_as */
	int owner[EXPERTS], local[EXPERTS];
	struct batch own;
	uint16_t packed[ROWS * HIDDEN], y[ROWS * HIDDEN], out[TOKENS * HIDDEN];
	float scales[ROWS * GROUPS], recv_weights[ROWS * TOP_K];
	uint8_t codes[TOKENS * HIDDEN]; /* own rows, where they are given in e4m3 */
	float code_scales[TOKENS * GROUPS];
	int32_t count[EXPERTS], src[ROWS], recv_experts[ROWS * TOP_K];
	int64_t range[MOST], ids[TOKENS * TOP_K]; /* those of own in int64 */
};

/* Neither blocks nor even: expert 0 is alone, and with four ranks or more the last but one has none. */
static void owners(int size, int *owner)
{
	for (int e = 0; e < EXPERTS; e++)
		owner[e] = e ? (e * 5 + 1) % (size > 3 ? size - 2 : size) : size - 1;
}

/* NaN with and without a sign and payload, infinities, the largest number, -0, and the smallest numbers. */
static uint16_t odd(int dtype, int i)
{
	const uint16_t endless = dtype == COVEY_FLOAT16 ? 0x7c00 : 0x7f80;
	const uint16_t all[] = {
		endless, 0x8000 | endless,	 endless + 1, 0xffff, 0x7fff, endless - 1, 0x8000, 0, 1, 0x8001,
		0x0155,	 (endless - 1) | 0x8000, endless + 2, 0x8003
	};

	return all[(size_t)i % (sizeof(all) / sizeof(all[0]))];
}

static void make(struct batch *b, int dtype, enum routing routing, uint64_t seed, int rank)
{
	uint64_t state = seed * 1000 + (uint64_t)rank + 1;

	b->tokens = routing == EMPTY && rank % 2 == 0 ? 0 : (int)(harness_random(&state) % (TOKENS + 1));
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		b->x[i] = ep_narrow(dtype, (float)(int)(harness_random(&state) % 200) / 16 - 6);
	for (int t = 0; t < TOKENS; t++)
		b->x[t * HIDDEN + ODD] = odd(dtype, t + rank);
	for (int i = 0; i < TOKENS * TOP_K; i++) {
		b->ids[i] = ep_route(routing, EXPERTS, &state);
		b->w[i] = (float)(harness_random(&state) % 64) / 64;
	}
}

/* ---- what is right ---- */

static bool names(const int *owner, const struct batch *b, int t, int rank)
{
	for (int k = 0; k < TOP_K; k++) {
		int32_t e = b->ids[t * TOP_K + k];

		if (e >= 0 && e < EXPERTS && owner[e] == rank)
			return true;
	}
	return false;
}

/* What the experts of @rank make of a token's element, summed there by weight. */
static uint16_t answer(const struct job *j, const struct batch *b, int t, int h, int rank)
{
	float sum = 0;

	for (int k = 0; k < TOP_K; k++) {
		int32_t e = b->ids[t * TOP_K + k];

		if (e >= 0 && e < EXPERTS && j->owner[e] == rank)
			sum += b->w[t * TOP_K + k] * ep_wide(j->dtype, b->x[t * HIDDEN + h]) * (float)(e + 1);
	}
	return ep_narrow(j->dtype, sum);
}

static void check_elements(const struct job *j, const struct batch *b, int t, int row)
{
	uint8_t codes[HIDDEN];
	float scales[GROUPS];
	const struct cvy_ep_plain x = { b->x + t * HIDDEN, j->dtype, HIDDEN, NULL, NULL };
	const int bytes = j->rows == COVEY_EP_ROWS_INT4 ? HIDDEN / 2 : HIDDEN;
	const int groups = j->rows == COVEY_EP_ROWS_E4M3 ? GROUPS : 1;

	if (j->rows == COVEY_EP_ROWS_BF16) {
		must(!memcmp(j->packed + row * HIDDEN, b->x + t * HIDDEN, 2 * HIDDEN), "elements of row %d", row);
		return;
	}
	cvy_ep_quantise(j->rows, &x, codes, scales, 1);
	must(!memcmp((uint8_t *)j->packed + row * bytes, codes, (size_t)bytes), "codes of row %d", row);
	must(!memcmp(&j->scales[row * groups], scales, (size_t)groups * 4), "scales of row %d", row);
}

/* As answer(), as it comes back. */
static float came(const struct job *j, const struct batch *b, int t, int h, int rank)
{
	float v[8];

	if (j->back == COVEY_EP_BACK_PLAIN)
		return ep_wide(j->dtype, answer(j, b, t, h, rank));
	for (int k = 0; k < 8; k++)
		v[k] = ep_wide(j->dtype, answer(j, b, t, h / 8 * 8 + k, rank));
	return ep_coded(j->dtype, v, h % 8);
}

static void check_row(struct job *j, const struct batch *b, int t, int row, int *count)
{
	bool counted[EXPERTS] = { false };

	must(j->src[row] == t, "row %d is token %d, not %d", row, j->src[row], t);
	check_elements(j, b, t, row);
	for (int k = 0; k < TOP_K; k++) {
		int32_t e = b->ids[t * TOP_K + k];
		bool here = e >= 0 && e < EXPERTS && j->owner[e] == j->rank;

		must(j->recv_experts[row * TOP_K + k] == (here ? j->local[e] : -1), "row %d, expert %d", row, k);
		must(j->recv_weights[row * TOP_K + k] == (here ? b->w[t * TOP_K + k] : 0), "row %d, weight %d", row, k);
		if (here && !counted[e])
			count[j->local[e]]++;
		if (here)
			counted[e] = true;
	}
	for (int h = 0; h < HIDDEN; h++)
		j->y[row * HIDDEN + h] = answer(j, b, t, h, j->rank);
}

/* All outputs of a dispatch by the sources in @mask; what the experts make of the rows is in y then. */
static void check_dispatch(struct job *j, enum routing routing, uint64_t seed, const struct covey_mask *mask)
{
	int row = 0, count[EXPERTS] = { 0 }, locals = 0;

	for (int e = 0; e < EXPERTS; e++)
		locals += j->owner[e] == j->rank;
	for (int s = 0; s < j->size && locals; s++) {
		struct batch b;
		int first = row;

		make(&b, j->dtype, routing, seed, s);
		for (int t = 0; t < b.tokens && covey_mask_has(mask, s); t++)
			if (names(j->owner, &b, t, j->rank))
				check_row(j, &b, t, row++, count);
		must(j->range[s] == cvy_ep_range((uint32_t)(row - first), (uint32_t)first), "range of source %d", s);
	}
	for (int e = 0; e < locals; e++)
		must(j->count[e] == count[e], "expert %d: %d rows, not %d", e, j->count[e], count[e]);
	for (int i = row * TOP_K; i < ROWS * TOP_K; i++)
		must(j->recv_experts[i] == 99, "past the last row");
}

/* Bit for bit: owners ascending in f32, rounded once. */
static void check_out(const struct job *j, int renormalise, const struct covey_mask *mask)
{
	for (int t = 0; t < j->own.tokens; t++) {
		float all = 0, here = 0;

		for (int k = 0; k < TOP_K; k++) {
			int32_t e = j->own.ids[t * TOP_K + k];

			if (e < 0 || e >= EXPERTS)
				continue;
			all += j->own.w[t * TOP_K + k];
			here += covey_mask_has(mask, j->owner[e]) ? j->own.w[t * TOP_K + k] : 0;
		}
		for (int h = 0; h < HIDDEN; h++) {
			float sum = 0, scale = renormalise && all != here && here != 0 ? all / here : 1;

			for (int o = 0; o < j->size; o++)
				if (covey_mask_has(mask, o) && names(j->owner, &j->own, t, o))
					sum += came(j, &j->own, t, h, o);
			must(j->out[t * HIDDEN + h] == ep_narrow(j->dtype, sum * scale),
			     "rank %d token %d element %d: %g, not %g", j->rank, t, h,
			     (double)ep_wide(j->dtype, j->out[t * HIDDEN + h]), (double)(sum * scale));
		}
	}
}

/* ---- calls ---- */

/* Half of the ranks give rows in e4m3, cast as receivers would: nobody can tell. */
static void give_codes(struct job *j, struct covey_dispatch_args *a)
{
	for (int t = 0; t < j->own.tokens; t++)
		cvy_ep_quantise(CVY_EP_E4M3,
				&(struct cvy_ep_plain){ j->own.x + t * HIDDEN, j->dtype, HIDDEN, NULL, NULL },
				j->codes + t * HIDDEN, j->code_scales + t * GROUPS, 1);
	a->x = j->codes;
	a->x_scales = j->code_scales;
}

/* In int64 what is no expert is beyond int32, with an expert in its low word. */
static const int64_t *wide_ids(struct job *j)
{
	for (int i = 0; i < j->own.tokens * TOP_K; i++) {
		int32_t id = j->own.ids[i];
		int64_t far = i % 3 ? (int64_t)1 << (32 + i % 31) : INT64_MIN;

		j->ids[i] = id >= 0 && id < EXPERTS ? id : far + i % EXPERTS;
	}
	return j->ids;
}

static void dispatch_args(struct job *j, struct covey_dispatch_args *a)
{
	for (int i = 0; i < ROWS * TOP_K; i++)
		j->recv_experts[i] = 99;
	a->num_tokens = j->own.tokens;
	a->x = j->own.x;
	a->experts = j->own.ids;
	a->weights = j->own.w;
	a->packed_x = j->packed;
	a->packed_scales = j->scales;
	a->count = j->count;
	a->src_info = j->src;
	a->range = j->range;
	a->recv_experts = j->recv_experts;
	a->recv_weights = j->recv_weights;
	if ((j->rank + j->own.tokens) % 2) {
		a->experts = NULL;
		a->experts64 = wide_ids(j);
	}
	if (j->rows == COVEY_EP_ROWS_E4M3 && j->rank % 2)
		give_codes(j, a);
}

static void combine_args(struct job *j, struct covey_combine_args *a, int renormalise)
{
	a->num_tokens = j->own.tokens;
	a->renormalise = renormalise;
	a->y = j->y;
	a->range = j->range;
	a->experts = j->own.ids;
	a->weights = renormalise ? j->own.w : NULL;
	a->out = j->out;
	if ((j->rank + j->own.tokens / 2) % 2) {
		a->experts = NULL;
		a->experts64 = wide_ids(j);
	}
}

/* ---- alone: slots in plain memory ---- */

static const int dtypes[] = { COVEY_BFLOAT16, COVEY_FLOAT16 };
static struct job jobs[MOST];
static struct cvy_ep_call *calls[MOST];
static uint8_t *slots[2][MOST];

static void open_jobs(int rows, int back, int dtype)
{
	memset(jobs, 0, sizeof(jobs));
	for (int r = 0; r < MOST; r++) {
		struct job *j = &jobs[r];
		struct cvy_ep_shape shape = { TOKENS,
					      HIDDEN,
					      TOP_K,
					      EXPERTS,
					      MOST + 3,
					      COVEY_EP_COMPACT,
					      back == COVEY_EP_BACK_INT8 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS,
					      0 };

		owners(MOST, j->owner);
		j->rank = r;
		j->size = MOST;
		j->rows = rows;
		j->back = back;
		j->dtype = dtype;
		j->ep = calloc(1, sizeof(*j->ep));
		ck_assert_ptr_nonnull(j->ep);
		*j->ep = (struct covey_ep){
			.shape = shape,
			.rank = r,
			.size = MOST,
			.owner = j->owner,
			.local = j->local,
			.rows_as = rows,
			.back_as = back,
			.dtype = dtype,
		};
		j->ep->el = cvy_ep_locals(EXPERTS, j->owner, r, j->local);
		calls[r] = cvy_ep_call_new(j->ep, 1);
		slots[0][r] = calloc(1, cvy_ep_dispatch_bytes(&shape));
		slots[1][r] = calloc(1, cvy_ep_combine_bytes(&shape));
		ck_assert(calls[r] && slots[0][r] && slots[1][r]);
	}
}

static void close_jobs(void)
{
	for (int r = 0; r < MOST; r++) {
		free(jobs[r].ep);
		cvy_ep_call_free(calls[r]);
		free(slots[0][r]);
		free(slots[1][r]);
	}
}

static struct covey_mask random_mask(uint64_t *state)
{
	struct covey_mask mask = { { 0 } };

	for (int r = 0; r < MOST; r++)
		if (harness_random(state) % 3)
			cvy_mask_add(&mask, r);
	return mask;
}

static void dispatch_alone(const struct covey_mask *here)
{
	uint64_t told[MOST];

	for (int r = 0; r < MOST; r++) {
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		dispatch_args(&jobs[r], &a);
		told[r] = cvy_ep_dispatch_write(jobs[r].ep, &a, slots[0][r]);
	}
	for (int r = 0; r < MOST; r++) {
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		dispatch_args(&jobs[r], &a);
		memset(jobs[r].count, 0, sizeof(jobs[r].count));
		for (int s = 0; s < MOST; s++)
			cvy_ep_dispatch_read(jobs[r].ep, &a, s, covey_mask_has(here, s) ? slots[0][s] : NULL, told[s]);
	}
}

static void combine_alone(const struct covey_mask *here, int renormalise)
{
	const uint8_t *slot[MOST];

	for (int r = 0; r < MOST; r++) {
		struct covey_combine_args a = COVEY_COMBINE_INIT;
		uint32_t next = 0;

		combine_args(&jobs[r], &a, renormalise);
		calls[r]->combine = a;
		for (int s = 0; s < MOST; s++)
			next = cvy_ep_combine_write(jobs[r].ep, &a, s, next, slots[1][r]);
		slot[r] = covey_mask_has(here, r) ? slots[1][r] : NULL;
	}
	for (int r = 0; r < MOST; r++)
		cvy_ep_combine_read(calls[r], slot);
}

/* Sources missing in dispatch, then owners in combine; an owner that has experts of ours and lost our tokens is one, too. */
TEST_LOOP(rows_stand_by_source_whoever_is_missing, 0, 120)
{
	uint64_t state = (uint64_t)_i + 1;
	struct covey_mask all = { { (1 << MOST) - 1 } }, sources = _i % 3 ? random_mask(&state) : all;
	struct covey_mask here = _i % 4 ? random_mask(&state) : all;

	open_jobs(_i % 4, _i / 8 % 2, dtypes[_i / 4 % 2]);
	for (int r = 0; r < MOST; r++)
		make(&jobs[r].own, jobs[r].dtype, (enum routing)(_i % ROUTINGS), (uint64_t)_i, r);
	dispatch_alone(&sources);
	for (int r = 0; r < MOST; r++)
		check_dispatch(&jobs[r], (enum routing)(_i % ROUTINGS), (uint64_t)_i, &sources);
	combine_alone(&here, _i & 1);
	for (int r = 0; r < MOST; r++) {
		struct covey_mask with = here;

		for (int o = 0; o < MOST && !covey_mask_has(&sources, r); o++)
			for (int t = 0; t < jobs[r].own.tokens; t++)
				if (names(jobs[r].owner, &jobs[r].own, t, o))
					cvy_mask_del(&with, o);
		check_out(&jobs[r], _i & 1, &with);
		for (int o = 0; o < MOST; o++)
			ck_assert_int_eq(covey_mask_has(&calls[r]->missing, o), !covey_mask_has(&with, o));
	}
	close_jobs();
}

TEST_LOOP(wild_bytes_of_a_peer_do_no_harm, 0, 40)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct covey_mask all = { { (1 << MOST) - 1 } };
	const uint8_t *slot[MOST] = { NULL };
	struct job *j = &jobs[0];
	uint64_t state = (uint64_t)_i + 1;

	open_jobs(0, _i / 2 % 2, dtypes[_i % 2]);
	for (int r = 0; r < MOST; r++)
		make(&jobs[r].own, jobs[r].dtype, RANDOM, (uint64_t)_i, r);
	dispatch_alone(&all);
	for (size_t i = 0; i < cvy_ep_dispatch_bytes(&j->ep->shape); i++)
		slots[0][1][i] = (uint8_t)harness_random(&state);
	for (size_t i = 0; i < cvy_ep_combine_rows_at(&j->ep->shape); i++)
		slots[1][1][i] = (uint8_t)harness_random(&state);
	dispatch_args(j, &a);
	ck_assert_int_eq(cvy_ep_dispatch_read(j->ep, &a, 0, slots[0][1], TOKENS + 1), -1);
	ck_assert_int_eq(cvy_ep_dispatch_read(j->ep, &a, 0, slots[0][1], UINT64_MAX), -1);
	ck_assert_int_eq(cvy_ep_dispatch_read(j->ep, &a, 0, slots[0][1], TOKENS | (uint64_t)1 << 32), -1);
	for (int s = 0; s < MOST; s++)
		ck_assert_int_eq(cvy_ep_dispatch_read(j->ep, &a, s, slots[0][1], TOKENS), 0);
	slot[1] = slots[1][1];
	combine_args(j, &calls[0]->combine, 0);
	for (int i = 0; i < TOKENS * TOP_K; i++)
		j->own.ids[i] = (int32_t)(i % EXPERTS);
	calls[0]->combine.experts = j->own.ids;
	calls[0]->combine.experts64 = NULL;
	calls[0]->combine.num_tokens = TOKENS;
	cvy_ep_combine_read(calls[0], slot);
	ck_assert_int_eq(covey_mask_has(&calls[0]->missing, 1), 1);
	close_jobs();
}

/* A row a token and rank, where LL keeps one for each expert: what slots of combine shrink by. */
TEST(slots_of_combine_take_one_row_a_token)
{
	struct cvy_ep_shape s = { 128, 7168, 8, 256, 64, COVEY_EP_COMPACT, 0, 0 };

	ck_assert_uint_eq(cvy_ep_dispatch_weights_at(&s), 4096);
	ck_assert_uint_eq(cvy_ep_dispatch_rows_at(&s), 8192);
	ck_assert_uint_eq(cvy_ep_combine_rows(&s), 8192);
	ck_assert_ptr_null(cvy_ep_pack_of(-1));
	ck_assert_ptr_null(cvy_ep_pack_of(COVEY_EP_HT + 1));
}

/* ---- through the engine ---- */

static struct job *job_open(struct covey_group *group, int size, int rows, int back, int dtype)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, TOP_K, EXPERTS);
	struct job *j = calloc(1, sizeof(*j));
	struct covey_view view;

	must(j && !covey_view(group, &view), "view");
	owners(size, j->owner);
	c.expert_owner = j->owner;
	c.dtype = dtype;
	c.preset = COVEY_EP_COMPACT;
	c.rows = rows;
	c.combine_rows = back;
	j->group = group;
	j->rank = view.rank;
	j->size = size;
	j->rows = rows;
	j->back = back;
	j->dtype = dtype;
	must(!covey_ep_create(group, &c, &j->ep), "create");
	cvy_ep_locals(EXPERTS, j->owner, j->rank, j->local);
	return j;
}

static void job_close(struct job *j)
{
	covey_ep_destroy(j->ep);
	free(j);
}

static void every_routing(struct member *m)
{
	for (int way = 0; way < 8; way++) {
		struct job *j = job_open(m->group, m->n, way % 4, (way + way / 4) % 2, dtypes[way / 4]);

		for (int i = 0; i < 4 * ROUTINGS; i++) {
			struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
			struct covey_combine_args c = COVEY_COMBINE_INIT;
			enum routing routing = (enum routing)(i % ROUTINGS);
			struct covey_result res;

			make(&j->own, j->dtype, routing, (uint64_t)i, j->rank);
			dispatch_args(j, &d);
			must(!covey_dispatch(j->ep, &d, NULL, &res) && covey_mask_count(&res.mask) == m->n, "dispatch");
			check_dispatch(j, routing, (uint64_t)i, &res.mask);
			combine_args(j, &c, i & 1);
			must(!covey_combine_send(j->ep, &c, NULL), "combine send");
			must(!covey_combine_recv(j->ep, harness_deadline(WATCHDOG_MS), &res), "combine");
			check_out(j, i & 1, &res.mask);
		}
		job_close(j);
	}
}

static const int worlds[] = { 1, 2, 4 };

TEST_LOOP(every_token_comes_back_right, 0, 6)
{
	struct covey_config config = harness_config_over(_i % 2, "epcompact", worlds[_i / 2]);

	harness_threads(&config, every_routing, NULL);
}

/* ---- a rank dies: before dispatch, inside it, between the phases ---- */

static int mortal(void *arg, int rank)
{
	struct ep_kill *plan = arg;
	struct job *j = job_open(harness_join(&plan->config, rank), 3, 0, plan->when / 2, dtypes[plan->when % 2]);

	for (uint64_t i = 0; i < 30; i++) {
		struct covey_combine_args c = COVEY_COMBINE_INIT;
		struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
		struct covey_result res;

		make(&j->own, j->dtype, RANDOM, i, rank);
		ep_may_die(plan, rank, i, EP_BEFORE);
		dispatch_args(j, &d);
		must(!covey_dispatch_send(j->ep, &d, NULL), "dispatch send");
		ep_may_die(plan, rank, i, EP_SENT);
		must(!covey_dispatch_recv(j->ep, 0, &res), "dispatch");
		check_dispatch(j, RANDOM, i, &res.mask);
		ep_may_die(plan, rank, i, EP_BETWEEN);
		combine_args(j, &c, 1);
		must(!covey_combine(j->ep, &c, NULL, &res), "combine");
		check_out(j, 1, &res.mask);
		must(i < 11 || !covey_mask_has(&res.mask, 2), "the dead one is still there");
	}
	must(!covey_leave(j->group, harness_deadline(WATCHDOG_MS)), "leave");
	covey_ep_destroy(j->ep);
	covey_close(j->group);
	free(j);
	return 0;
}

TEST_LOOP(survivors_of_a_death_go_on_with_what_is_there, 0, UNDER_TSAN ? 0 : 6)
{
	ep_kill(_i, "epckill", mortal);
}

HARNESS_MAIN(.name = "collectives/ep_compact")
