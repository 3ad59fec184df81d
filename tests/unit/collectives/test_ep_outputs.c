/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers of other systems give a dispatch and expect of it: masks of tokens, rows and ends of runs by expert, the
 * origin of each row, and a filled tail. Against a list of rows made from the routing alone; then by the public calls.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <stdlib.h>

#include "ep.h"
#include "wire_win.h"

enum { WORLD = 4, T = 6, H = 8, K = 3, E = 8, ROWS = WORLD * T, POISON = 0x5a };

static const struct way {
	const char *name;
	int preset, columns, masked; /* masked: one entry of so many, 0: there is no mask */
	int sums, alignment, fill_tail, missing;
} ways[] = {
	{ "plain", COVEY_EP_LL, 0, 0, 0, 0, 0, 0 },
	{ "a filled tail", COVEY_EP_LL, 0, 0, 0, 1, 1, 0 },
	{ "masked tokens", COVEY_EP_LL, 1, 2, 0, 4, 1, 0 },
	{ "masked tokens, by default", COVEY_EP_LL, 0, 3, 1, 5, 0, 0 },
	{ "masked entries", COVEY_EP_LL, K, 2, 1, 0, 1, 0 },
	{ "all is masked", COVEY_EP_LL, K, 1, 1, 8, 1, 0 },
	{ "a source is missing", COVEY_EP_LL, 0, 0, 1, 128, 1, 1 },
	{ "win", COVEY_EP_WIN, 0, 0, 0, 0, 0, 0 },
	{ "win, a filled tail", COVEY_EP_WIN, 0, 0, 1, 1, 1, 0 },
	{ "win, masked tokens", COVEY_EP_WIN, 1, 2, 0, 0, 0, 0 },
	{ "win, masked entries", COVEY_EP_WIN, K, 2, 1, 0, 1, 0 },
	{ "win, all is masked", COVEY_EP_WIN, 0, 1, 1, 0, 1, 0 },
	{ "win, a source is missing", COVEY_EP_WIN, 0, 0, 1, 1, 1, 1 },
	{ "compact", COVEY_EP_COMPACT, 0, 0, 0, 0, 0, 0 },
	{ "compact, a filled tail", COVEY_EP_COMPACT, 0, 0, 1, 1, 1, 0 },
	{ "compact, masked tokens", COVEY_EP_COMPACT, 1, 2, 0, 3, 1, 0 },
	{ "compact, masked entries", COVEY_EP_COMPACT, K, 2, 1, 16, 1, 0 },
	{ "compact, all is masked", COVEY_EP_COMPACT, 0, 1, 1, 16, 1, 0 },
	{ "compact, a source is missing", COVEY_EP_COMPACT, K, 3, 0, 0, 1, 1 },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]), SEEDS = 20 };

struct origin {
	int source, token, k;
};

struct expected {
	struct origin row[E][ROWS];
	int rows[E];	    /* of a bin */
	int runs[E][WORLD]; /* of a bin, by source */
	int64_t experts[E]; /* rows that name each */
};

struct job {
	struct expected expected;
	struct covey_ep *ep, bare;
	int rank, tokens;
	int owner[E], local[E];
	uint16_t x[T * H], out[T * H], want[T * H], packed[E * ROWS * H];
	int32_t ids[T * K], masked_ids[T * K];
	uint8_t mask[T * K];
	float weights[T * K];
	int32_t count[E], src[E * ROWS], recv_counts[E * WORLD], triplets[E * ROWS * 3], flat[E * ROWS * 2];
	int32_t recv_experts[ROWS * K];
	float recv_weights[ROWS * K];
	int64_t range[E * WORLD], expert_tokens[E];
	uint8_t *slot;
};

static struct job jobs[WORLD];

/* ---- what they give ---- */

static void fill(struct job *j, const struct way *w, uint64_t seed)
{
	uint64_t state = seed * 977 + (uint64_t)j->rank + 1;

	j->tokens = (int)(harness_random(&state) % (T + 1));
	for (int i = 0; i < T * H; i++)
		j->x[i] = (uint16_t)(0x3f80 + harness_random(&state) % 64);
	for (int i = 0; i < T * K; i++) {
		j->ids[i] = seed % 4 == 3 ? 2 : (int32_t)(harness_random(&state) % (E + 2)) - 1;
		j->weights[i] = (float)(1 + harness_random(&state) % 8) / 8;
		j->mask[i] = w->masked && harness_random(&state) % (uint64_t)w->masked == 0 ? 0 : 3;
	}
	for (int i = 0; i < T * K; i++)
		j->masked_ids[i] = j->mask[w->columns == K ? i : i / K] ? j->ids[i] : -1;
}

static int once(const struct way *w)
{
	return w->preset == COVEY_EP_COMPACT;
}

static int close_by(const struct way *w)
{
	return w->preset == COVEY_EP_WIN;
}

static void dispatch_args(struct job *j, const struct way *w, struct covey_dispatch_args *a)
{
	*a = EP_DISPATCH(j);
	a->weights = j->weights;
	a->recv_experts = j->recv_experts;
	a->recv_weights = j->recv_weights;
	a->token_mask = w->masked ? j->mask : NULL;
	a->mask_columns = w->columns;
	a->fill_tail = w->fill_tail;
	a->expert_tokens = j->expert_tokens;
	a->expert_tokens_as = w->sums ? COVEY_EP_TOKENS_SUMS : COVEY_EP_TOKENS_COUNTS;
	a->expert_alignment = w->alignment;
	a->recv_counts = once(w) ? NULL : j->recv_counts;
	a->triplets = j->triplets;
	a->flat = j->flat;
}

static void poison(struct job *j)
{
	memset(j->src, POISON, sizeof(j->src));
	memset(j->triplets, POISON, sizeof(j->triplets));
	memset(j->flat, POISON, sizeof(j->flat));
	memset(j->recv_experts, POISON, sizeof(j->recv_experts));
	memset(j->recv_weights, POISON, sizeof(j->recv_weights));
	memset(j->recv_counts, POISON, sizeof(j->recv_counts));
	memset(j->expert_tokens, POISON, sizeof(j->expert_tokens));
}

/* ---- what is right ---- */

static void add_row(struct expected *x, int bin, struct origin from)
{
	x->row[bin][x->rows[bin]++] = from;
	x->runs[bin][from.source]++;
}

/* The rows of @to for one token: each expert's, or one for all. */
static void expect_token(struct expected *x, const struct job *to, const struct job *from, int t, int once)
{
	const int32_t *ids = from->masked_ids + t * K;
	int first = -1, named[E] = { 0 };

	for (int k = 0; k < K; k++) {
		int le = ids[k] >= 0 && ids[k] < E ? to->local[ids[k]] : -1;

		if (le < 0)
			continue;
		first = first < 0 ? k : first;
		named[le] = 1;
		if (!once && x->runs[le][from->rank] < T)
			add_row(x, le, (struct origin){ from->rank, t, k });
	}
	for (int e = 0; e < E && once; e++)
		x->experts[e] += named[e];
	if (once && first >= 0)
		add_row(x, 0, (struct origin){ from->rank, t, first });
}

static void expect(struct job *to, const struct way *w, uint64_t here)
{
	struct expected *x = &to->expected;

	memset(x, 0, sizeof(*x));
	for (int s = 0; s < WORLD; s++)
		for (int t = 0; t < jobs[s].tokens && here >> s & 1; t++)
			expect_token(x, to, &jobs[s], t, once(w));
	for (int e = 0; e < E && !once(w); e++)
		x->experts[e] = x->rows[e];
}

/* Row @row is the @i-th of @bin. */
static void check_row(const struct job *j, const struct way *w, int row, int bin, int i)
{
	const struct origin *o = &j->expected.row[bin][i];
	const int32_t *triplet = j->triplets + row * 3, *flat = j->flat + row * 2;

	must(j->src[row] == o->token, "%s: token", w->name);
	must(!memcmp(&j->packed[row * H], &jobs[o->source].x[o->token * H], H * 2), "%s: row %d", w->name, row);
	must(triplet[0] == o->source && triplet[1] == o->token && triplet[2] == o->k,
	     "%s: row %d of bin %d is of (%d, %d, %d), not (%d, %d, %d)", w->name, i, bin, triplet[0], triplet[1],
	     triplet[2], o->source, o->token, o->k);
	must(flat[0] == o->source && flat[1] == o->token * K + o->k, "%s: flat (%d, %d)", w->name, flat[0], flat[1]);
}

static void check_tail(const struct way *w, const char *what, const void *at, int columns, int row, int filled)
{
	const uint8_t *bytes = (const uint8_t *)at + (size_t)row * (size_t)columns * 4;
	const uint8_t want = w->fill_tail ? (uint8_t)filled : POISON;

	for (int i = 0; i < columns * 4; i++)
		must(bytes[i] == want, "%s: %s, row %d: byte %02x, not %02x", w->name, what, row, bytes[i], want);
}

static void check_rows(const struct job *j, const struct way *w, int bins)
{
	const int kept = close_by(w) ? T * WORLD * (K < j->ep->el ? K : j->ep->el) : ROWS;
	int row = 0;

	for (int bin = 0; bin < bins; bin++) {
		row = close_by(w) ? row : bin * ROWS;
		for (int i = 0; i < j->expected.rows[bin]; i++)
			check_row(j, w, row++, bin, i);
		for (; close_by(w) ? bin + 1 == bins && row < kept : row < (bin + 1) * ROWS; row++) {
			check_tail(w, "src_info", j->src, 1, row, -1);
			check_tail(w, "triplets", j->triplets, 3, row, -1);
			check_tail(w, "flat", j->flat, 2, row, -1);
			if (!once(w))
				continue;
			check_tail(w, "recv_experts", j->recv_experts, K, row, -1);
			check_tail(w, "recv_weights", j->recv_weights, K, row, 0);
		}
	}
}

static void check(struct job *j, const struct way *w, uint64_t here)
{
	int64_t by = w->alignment ? w->alignment : 1, sum = 0;
	int32_t end = 0;

	expect(j, w, here);
	check_rows(j, w, once(w) ? j->ep->el > 0 : j->ep->el);
	for (int e = 0; e < j->ep->el; e++) {
		int64_t rows = j->expected.experts[e];

		must(j->count[e] == rows, "%s: count is not rounded", w->name);
		while (rows % by)
			rows++;
		sum += rows;
		must(j->expert_tokens[e] == (w->sums ? sum : rows), "%s: expert %d has %lld", w->name, e,
		     (long long)j->expert_tokens[e]);
		for (int s = 0; s < WORLD && !once(w); s++) {
			end += j->expected.runs[e][s];
			must(j->recv_counts[e * WORLD + s] == end, "%s: run (%d, %d) ends at %d, not %d", w->name, e, s,
			     j->recv_counts[e * WORLD + s], end);
		}
	}
}

/* ---- the functions alone ---- */

static void open_jobs(const struct way *w, uint64_t seed)
{
	const struct cvy_ep_shape shape = { T, H, K, E, WORLD, w->preset, 0, 0 };

	for (int r = 0; r < WORLD; r++) {
		struct job *j = &jobs[r];

		*j = (struct job){ .rank = r, .ep = &j->bare };
		for (int e = 0; e < E; e++)
			j->owner[e] = (int)((seed + (uint64_t)e * 5) % 3); /* the last rank has none */
		j->bare = (struct covey_ep){ .shape = shape,
					     .rank = r,
					     .size = WORLD,
					     .owner = j->owner,
					     .local = j->local,
					     .dtype = COVEY_BFLOAT16 };
		j->bare.el = cvy_ep_locals(E, j->owner, r, j->local);
		j->slot = calloc(1, cvy_ep_dispatch_bytes(&shape));
		must(j->slot != NULL, "memory");
		fill(j, w, seed);
		poison(j);
	}
}

static void dispatch_alone(const struct way *w, uint64_t here)
{
	const uint8_t *slot[WORLD];
	uint64_t told[WORLD];

	for (int r = 0; r < WORLD; r++) {
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		dispatch_args(&jobs[r], w, &a);
		told[r] = cvy_ep_dispatch_write(&jobs[r].bare, &a, jobs[r].slot);
		slot[r] = here >> r & 1 ? jobs[r].slot : NULL;
	}
	for (int r = 0; r < WORLD; r++) {
		struct cvy_ep_call *call = cvy_ep_call_new(&jobs[r].bare, 0);
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		must(call != NULL, "memory");
		dispatch_args(&jobs[r], w, &a);
		call->dispatch = a;
		cvy_ep_dispatch_take_all(call, slot, told);
		cvy_ep_dispatch_outputs(&jobs[r].bare, &a);
		cvy_ep_call_free(call);
	}
}

TEST_LOOP(outputs_say_what_the_routing_says, 0, WAYS)
{
	const struct way *w = &ways[_i];

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		uint64_t here = w->missing ? 0xd : 0xf;

		open_jobs(w, seed);
		dispatch_alone(w, here);
		for (int r = 0; r < WORLD; r++) {
			check(&jobs[r], w, here);
			free(jobs[r].slot);
		}
	}
}

/* ---- the wire book ---- */

/* As the book has it: experts in blocks, and a token names each once. */
static void route_by_the_book(struct job *j, const struct way *w, uint64_t seed)
{
	uint64_t state = seed * 31 + (uint64_t)j->rank + 1;

	cvy_ep_blocks(E, WORLD, j->owner);
	j->bare.el = cvy_ep_locals(E, j->owner, j->rank, j->local);
	for (int i = 0; i < T * K; i++) {
		j->ids[i] = i % K ? (j->ids[i - 1] + 3) % E : (int32_t)(harness_random(&state) % E);
		j->masked_ids[i] = j->mask[w->columns == K ? i : i / K] ? j->ids[i] : -1;
	}
}

TEST_LOOP(the_wire_book_counts_the_same, 0, 20)
{
	static const struct way book[] = { { "the book, ends", COVEY_EP_LL, K, 3, 1, 0, 0, 0 },
					   { "the book, counts", COVEY_EP_LL, 1, 3, 0, 0, 0, 0 } };
	const struct way *w = &book[_i % 2];
	struct cvy_wire_win win = {
		.format = CVY_WIRE_WIN_16, .ranks = WORLD, .experts = E, .tokens = T, .hidden = 64, .top_k = K
	};
	struct cvy_wire_source source[WORLD] = { 0 };
	struct cvy_wire_routing routing = { .ranks = WORLD, .experts = E, .top_k = K, .tokens = T, .source = source };

	ck_assert_int_eq(cvy_wire_win_layout(&win), 0);
	open_jobs(w, (uint64_t)_i);
	for (int r = 0; r < WORLD; r++) {
		route_by_the_book(&jobs[r], w, (uint64_t)_i);
		source[r].tokens = jobs[r].tokens;
		source[r].experts = jobs[r].masked_ids;
	}
	dispatch_alone(w, (1 << WORLD) - 1);
	for (int r = 0; r < WORLD; r++) {
		int32_t ends[E / WORLD * WORLD];
		int64_t nums[E / WORLD];

		ck_assert_int_eq(cvy_wire_win_recv_counts(&win, &routing, r, ends), 0);
		ck_assert_mem_eq(jobs[r].recv_counts, ends, sizeof(ends));
		ck_assert_int_eq(cvy_wire_win_token_nums(&win, &routing, r, !w->sums, nums), 0);
		ck_assert_mem_eq(jobs[r].expert_tokens, nums, sizeof(nums));
		free(jobs[r].slot);
	}
}

/* ---- by the public calls ---- */

static struct covey_ep *create(struct covey_group *group, int preset)
{
	struct covey_ep_config c = ep_config(T, H, K, E);
	struct covey_ep *ep = NULL;

	c.preset = preset;
	must(!covey_ep_create(group, &c, &ep), "create");
	return ep;
}

/* Experts give back what they got. */
static void combine(struct job *j, const int32_t *ids, const uint8_t *mask, int columns, uint16_t *out)
{
	struct covey_combine_args a = EP_COMBINE(j, j->packed);

	a.experts = ids;
	a.renormalise = 1;
	a.token_mask = mask;
	a.mask_columns = columns;
	a.out = out;
	must(!covey_combine(j->ep, &a, NULL, NULL), "combine");
}

static void masked_pair(struct job *j, const struct way *w)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

	dispatch_args(j, w, &a);
	must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
	check(j, w, (1 << WORLD) - 1);
	combine(j, j->ids, a.token_mask, w->columns, j->out);
	a.experts = j->masked_ids; /* without a mask: the same tokens have the ids that are left */
	a.token_mask = NULL;
	must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
	combine(j, j->masked_ids, NULL, 0, j->want);
	must(!memcmp(j->out, j->want, (size_t)j->tokens * H * 2), "%s: out", w->name);
	for (int t = 0; t < j->tokens; t++)
		for (int h = 0; h < H && w->masked == 1; h++)
			must(j->out[t * H + h] == 0, "%s: a token without an entry gives zeros", w->name);
}

TEST_RANKS(a_mask_is_ids_that_are_not_there, WORLD)
{
	for (int i = 0; i < 2 * WAYS; i++) {
		const struct way *w = &ways[i % WAYS];
		struct job *j = &jobs[m->rank];
		struct covey_result res;

		*j = (struct job){ .rank = m->rank };
		j->ep = create(m->group, w->preset);
		for (int e = 0; e < E; e++)
			j->local[e] = j->ep->local[e];
		fill(j, w, (uint64_t)i);
		poison(j);
		must(!covey_barrier(m->group, NULL, &res), "all are known before one looks");
		if (!w->missing)
			masked_pair(j, w);
		must(!covey_barrier(m->group, NULL, &res), "all have looked");
		covey_ep_destroy(j->ep);
	}
}

/* ---- refusals ---- */

static void refused(struct job *j, const struct covey_dispatch_args *a, const char *cause)
{
	must_be_invalid(j->ep->group, covey_dispatch(j->ep, a, NULL, NULL), cause);
}

TEST_RANKS(what_cannot_be_given_is_refused, 1)
{
	static const struct way plain[2] = { { .preset = COVEY_EP_LL }, { .preset = COVEY_EP_COMPACT } };
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct job *j = &jobs[m->rank];

	*j = (struct job){ .tokens = 1 };
	for (int preset = 0; preset < 2; preset++) {
		j->ep = create(m->group, plain[preset].preset);
		dispatch_args(j, &plain[preset], &a);
		a.mask_columns = K + 1;
		refused(j, &a, "mask_columns is 4");
		a.mask_columns = -1;
		refused(j, &a, "mask_columns is -1");
		a.mask_columns = 2;
		refused(j, &a, "mask_columns is 2");
		a.mask_columns = 0;
		a.expert_tokens_as = 2;
		refused(j, &a, "enum covey_ep_tokens_as");
		a.expert_tokens_as = 0;
		a.expert_alignment = -8;
		refused(j, &a, "expert_alignment is -8");
		a.expert_alignment = 8;
		a.expert_tokens = NULL;
		refused(j, &a, "rounds expert_tokens up, which is NULL");
		a.expert_alignment = 0;
		a.recv_counts = j->recv_counts;
		if (plain[preset].preset == COVEY_EP_COMPACT)
			refused(j, &a, "recv_counts are not of COVEY_EP_COMPACT");
		covey_ep_destroy(j->ep);
	}
	j->ep = create(m->group, COVEY_EP_LL);
	c.mask_columns = 2;
	must_be_invalid(m->group, covey_combine(j->ep, &c, NULL, NULL), "mask_columns is 2");
	covey_ep_destroy(j->ep);
}

/* recv_counts that may not fit: a handle whose shape alone is large. */
TEST_RANKS(counts_past_int32_are_refused, 1)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct job *j = &jobs[m->rank];

	*j = (struct job){ .rank = m->rank };
	j->ep = create(m->group, COVEY_EP_LL);
	dispatch_args(j, &ways[0], &a);
	j->ep->shape.tokens = 1 << 30;
	refused(j, &a, "recv_counts may reach 3221225472");
	j->ep->shape.tokens = T;
	covey_ep_destroy(j->ep);
}

HARNESS_MAIN(.name = "collectives/ep_outputs")
