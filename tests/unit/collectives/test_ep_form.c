/* SPDX-License-Identifier: Apache-2.0 */
/* How dispatch and combine on devices cut rows into lanes and steps (ep_call.h): nothing is left out, nothing goes twice, all fits. */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "covey_device.h"
#include "ep.h"
#include "ep_call.h"

static const int tokens[] = { 1, 2, 3, 8, 16, 17, 33, 64, 100, 128, 200, 1000 };
static const int hidden[] = { 8, 16, 64, 128, 2048, 7168, 8192 };
static const int top_k[] = { 1, 3, 8, 32 };
static const int sizes[] = { 2, 4, 8, 32 };

static int lines_of(const struct cvy_ep_form *f)
{
	return cvy_ep_div(f->row_words, CVY_EP_LINE_WORDS);
}

/* Counts what lane @lane moves: of each token, of each line of its row. As cvy_ep_step_of() and cvy_ep_token() have it. */
static void move(const struct cvy_ep_form *f, int lane, int n, uint8_t *moved)
{
	int lines = lines_of(f);

	for (int step = 0; step < f->steps; step++) {
		int slice = (lane & ((1 << f->across) - 1)) * f->slices + step % f->slices;

		for (int j = 0; j < f->per_step; j++) {
			int token = (step / f->slices * f->per_step + j) * f->apart + (lane >> f->across);

			for (int line = slice * f->slice_lines; line < (slice + 1) * f->slice_lines && line < lines;
			     line++)
				if (token < n)
					moved[token * lines + line]++;
		}
	}
}

static void check_one(const struct cvy_ep_shape_gpu *s, int lanes, int combine)
{
	struct cvy_ep_form f;
	uint8_t *moved;

	if (!cvy_ep_form_of(s, lanes, combine, &f))
		return;
	moved = calloc((size_t)s->tokens, (size_t)lines_of(&f));
	for (int lane = 0; lane < lanes; lane++)
		move(&f, lane, s->tokens, moved);
	for (int i = 0; i < s->tokens * lines_of(&f); i++)
		if (moved[i] != 1) /* each assertion takes a system call */
			ck_abort_msg("%d tokens of %d, top %d, %d lanes: line %d of token %d moves %d times", s->tokens,
				     s->hidden, s->top_k, lanes, i % lines_of(&f), i / lines_of(&f), moved[i]);
	ck_assert_int_le(f.header_lines + f.per_step * f.rows * f.slice_lines, CVY_EP_STEP_LINES);
	ck_assert_int_le(f.per_step, CVY_EP_STEP_TOKENS);
	if (f.bulk)
		ck_assert_int_ge(f.header_lines,
				 1 + cvy_ep_div(f.per_step * f.entry_words, 16) + cvy_ep_div(f.count_words, 16));
	if (f.per_step > 1)
		ck_assert_int_le(s->size * f.per_step * f.entry_words * 8, CVY_EP_ENTRIES);
	free(moved);
}

/* @form: 0, of each expert's row apart; 1, summed per rank; 2, once at a rank. */
static void check_all(int n, int wide, int form)
{
	for (size_t k = 0; k < sizeof(top_k) / sizeof(*top_k); k++)
		for (size_t z = 0; z < sizeof(sizes) / sizeof(*sizes); z++)
			for (int combine = 0; combine < 2; combine++) {
				struct cvy_ep_shape_gpu s = { .tokens = n,
							      .hidden = wide,
							      .top_k = top_k[k],
							      .experts = 256,
							      .size = sizes[z],
							      .code = (wide / 8 + n) % 4,
							      .back = n % 2 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS,
							      .per_rank = form == 1,
							      .most_local = 256 / sizes[z],
							      .once = form == 2 };

				for (int lanes = 1; lanes <= CVY_GPU_LANES; lanes += lanes + 1)
					check_one(&s, lanes, combine);
				check_one(&s, cvy_ep_lanes_of(&s), combine);
			}
}

TEST_LOOP(every_line_of_every_token_moves_once, 0, sizeof(tokens) / sizeof(*tokens))
{
	for (size_t w = 0; w < sizeof(hidden) / sizeof(*hidden); w++)
		for (int form = 0; form < 3; form++)
			check_all(tokens[_i], hidden[w], form);
}

static int goes_by_bulk(int n, int lanes, int per_rank, int combine)
{
	struct cvy_ep_shape_gpu s = { .tokens = n,
				      .hidden = 7168,
				      .top_k = 8,
				      .experts = 256,
				      .size = 4,
				      .code = 1,
				      .per_rank = per_rank,
				      .most_local = 64 };
	struct cvy_ep_form f;

	ck_assert(cvy_ep_form_of(&s, lanes, combine, &f));
	return f.bulk;
}

TEST(many_tokens_of_a_lane_go_by_bulk)
{
	for (int combine = 0; combine < 2; combine++) {
		ck_assert(!goes_by_bulk(128, 128, 1, combine));
		ck_assert(!goes_by_bulk(CVY_EP_BULK_TOKENS * 32 - 32, 32, 1, combine));
		ck_assert(goes_by_bulk(CVY_EP_BULK_TOKENS * 32, 32, 1, combine));
		ck_assert(goes_by_bulk(4096, 128, 1, combine));
	}
	ck_assert(goes_by_bulk(4096, 128, 0, 0));
	ck_assert(!goes_by_bulk(4096, 128, 0, 1)); /* results of each expert go back as they are */
}

TEST(few_tokens_are_cut_across_lanes)
{
	struct cvy_ep_shape_gpu s = {
		.tokens = 1, .hidden = 7168, .top_k = 8, .experts = 256, .size = 4, .per_rank = 1, .most_local = 64
	};
	struct cvy_ep_form f;

	ck_assert_int_eq(cvy_ep_lanes_of(&s), CVY_EP_ACROSS);
	ck_assert(cvy_ep_form_of(&s, CVY_EP_ACROSS, 1, &f));
	ck_assert_int_eq(1 << f.across, CVY_EP_ACROSS);
	ck_assert_int_eq(f.slice_lines, cvy_ep_div(lines_of(&f), CVY_EP_ACROSS));
	s.tokens = 128;
	ck_assert_int_eq(cvy_ep_lanes_of(&s), 128);
	ck_assert(cvy_ep_form_of(&s, 128, 1, &f));
	ck_assert_int_eq(f.across, 0);
	ck_assert_int_eq(f.slice_lines, lines_of(&f));
	s.tokens = 1;
	s.hidden = 64; /* two lines: no pieces */
	ck_assert_int_eq(cvy_ep_lanes_of(&s), 1);
	ck_assert(cvy_ep_form_of(&s, CVY_EP_ACROSS, 1, &f));
	ck_assert_int_eq(f.across, 0);
}

/* The rows of each expert of one token are more than a step has lines: pieces of them are not, as long as lanes are idle. */
TEST(rows_of_each_expert_come_in_one_step_while_lanes_are_idle)
{
	struct cvy_ep_shape_gpu s = { .hidden = 7168, .top_k = 8, .experts = 256, .size = 4, .most_local = 64 };
	struct cvy_ep_form f;

	for (s.tokens = 1; s.tokens <= 64; s.tokens *= 2) {
		ck_assert(cvy_ep_form_of(&s, cvy_ep_lanes_of(&s), 1, &f));
		ck_assert_int_eq(f.steps, 1);
	}
	s.tokens = 128;
	ck_assert(cvy_ep_form_of(&s, 128, 1, &f));
	ck_assert_int_eq(f.steps, 2);
	ck_assert_int_eq(f.slices, 1); /* the first one is enough for 64 tokens, wherever they are in the handle */
	s.hidden = 8192;
	ck_assert(cvy_ep_form_of(&s, 128, 1, &f));
	ck_assert_int_eq(f.slices, 1);
	ck_assert_int_eq(f.steps, 4); /* 3 in slices */
	s.top_k = 20;		      /* 8 pieces would be 8 steps, where slices are 6 */
	ck_assert(cvy_ep_form_of(&s, 128, 1, &f));
	ck_assert_int_eq(f.across, 0);
	ck_assert_int_eq(f.steps, 6);
}

/* Lines that lane @lane takes, of sources with so many tokens each. */
static int taken(const struct cvy_ep_form *f, int lane, const int *sources, int n)
{
	int lines = lines_of(f), sum = 0;

	for (int r = 0; r < n; r++) {
		uint8_t *moved = calloc((size_t)sources[r] + 1, (size_t)lines);

		move(f, lane, sources[r], moved);
		for (int i = 0; i < sources[r] * lines; i++)
			sum += moved[i];
		free(moved);
	}
	return sum;
}

/* All warps of a lane share its lines. However ragged sources are, no warp has a row more than another, in any lane. */
TEST(ragged_sources_are_an_even_share_for_each_warp)
{
	static const int sources[] = { 1, 0, 0, 90, 17, 3, 128, 64 };
	enum { SOURCES = sizeof(sources) / sizeof(*sources), WARPS = CVY_EP_THREADS / 32 };
	struct cvy_ep_shape_gpu s = { .tokens = 128,
				      .hidden = 7168,
				      .top_k = 8,
				      .experts = 256,
				      .size = SOURCES,
				      .per_rank = 1,
				      .most_local = 32 };

	for (int lanes = 1; lanes <= 128; lanes++) {
		int most = 0, least = INT32_MAX, n;
		struct cvy_ep_form f;

		ck_assert(cvy_ep_form_of(&s, lanes, 0, &f));
		for (int lane = 0; lane < lanes; lane++) {
			n = taken(&f, lane, sources, SOURCES);
			most = n > most ? n : most;
			least = n < least ? n : least;
		}
		ck_assert_msg(cvy_ep_div(most, WARPS) - least / WARPS <= lines_of(&f), "%d lanes: %d to %d lines",
			      lanes, least, most);
	}
}

/* What ranks of a host keep for each other's rows, whatever a handle is like: it has no buffers of its own. */
TEST(slots_of_eight_ranks_take_less_than_150_mb)
{
	ck_assert_uint_le(7 * CVY_GPU_SIGNALS, 150000000);
}

static size_t room_of(const struct cvy_ep_shape_gpu *s)
{
	struct cvy_ep_args a = { .tokens = s->tokens,
				 .hidden = s->hidden,
				 .top_k = s->top_k,
				 .experts = s->experts,
				 .el = s->experts,
				 .num_tokens = s->tokens,
				 .once = s->once,
				 .close = s->close };
	size_t near, all;

	if (!cvy_ep_form_of(s, cvy_ep_lanes_of(s), 0, &a.form))
		return 0;
	a.call.size = s->size;
	all = cvy_ep_dispatch_room(&a);
	if (a.num_tokens > CVY_EP_NEAR / a.top_k)
		a.num_tokens = CVY_EP_NEAR / a.top_k; /* then all ids come near */
	near = cvy_ep_dispatch_room(&a);
	return all > near ? all : near;
}

/* On devices with little shared memory, too, where experts are spread over the ranks. */
TEST_LOOP(two_hops_find_room_on_small_devices, 0, sizeof(sizes) / sizeof(*sizes))
{
	for (int tokens_of = 1; tokens_of <= CVY_EP_TOKENS; tokens_of *= 2)
		for (int wide = 8; wide <= CVY_EP_HIDDEN; wide += wide < 1024 ? 8 : 128)
			for (int code = 0; code < 2; code++) {
				struct cvy_ep_shape_gpu s = { .tokens = tokens_of,
							      .hidden = wide,
							      .top_k = 8,
							      .experts = 256,
							      .size = sizes[_i],
							      .code = code,
							      .most_local = cvy_ep_div(256, sizes[_i]),
							      .once = 1,
							      .hops = 1 };
				struct cvy_ep_args a = { .tokens = tokens_of,
							 .hidden = wide,
							 .top_k = 8,
							 .experts = 256,
							 .el = s.most_local,
							 .num_tokens = tokens_of < CVY_EP_NEAR / 8 ? tokens_of
												   : CVY_EP_NEAR / 8,
							 .once = 1,
							 .hops = 1 };
				size_t all;

				a.call.size = s.size;
				ck_assert(cvy_ep_form_of(&s, cvy_ep_lanes_of(&s), 0, &a.form));
				all = cvy_ep_dispatch_room(&a) + CVY_EP_STATIC_HOPS;
				if (all > CVY_EP_LEAST_SHARED || cvy_ep_hops_room(&s, &a.form) < all)
					ck_abort_msg("%d tokens of %d, %d ranks: %zu bytes of %zu counted", tokens_of,
						     wide, s.size, all, cvy_ep_hops_room(&s, &a.form));
			}
}

/* Also where one rank has all experts: else its launch alone would fail, and the others would wait for it. */
TEST_LOOP(shared_memory_of_a_dispatch_is_there, 0, sizeof(sizes) / sizeof(*sizes))
{
	static const int experts[] = { 8, 256, 1024 };

	for (int tokens_of = 1; tokens_of <= CVY_EP_TOKENS; tokens_of *= 2)
		for (size_t k = 0; k < sizeof(top_k) / sizeof(*top_k); k++)
			for (int wide = 8; wide <= CVY_EP_HIDDEN; wide += wide < 1024 ? 8 : 128)
				for (int way = 0; way < 12; way++) {
					struct cvy_ep_shape_gpu s = { .tokens = tokens_of,
								      .hidden = wide,
								      .top_k = top_k[k],
								      .experts = experts[way / 4],
								      .size = sizes[_i],
								      .code = way % 2 ? 1 + wide / 8 % 3 : 0,
								      .most_local = experts[way / 4],
								      .once = way / 2 % 2,
								      .close = !(way / 2 % 2) };

					if (room_of(&s) > CVY_EP_ROOM)
						ck_abort_msg(
							"%d tokens of %d, top %d of %d, %d ranks, once %d: %zu bytes",
							s.tokens, wide, s.top_k, s.experts, s.size, s.once,
							room_of(&s));
				}
}

TEST(shapes_above_what_devices_take_are_named)
{
	struct cvy_ep_shape s = { .tokens = COVEY_DEVICE_MAX_TOKENS,
				  .hidden = COVEY_DEVICE_MAX_HIDDEN,
				  .top_k = CVY_EP_MAX_TOP_K,
				  .experts = COVEY_DEVICE_MAX_EXPERTS };
	char why[160];

	ck_assert(cvy_ep_device_takes(&s, COVEY_DEVICE_MAX_RANKS, why, sizeof(why)));
	ck_assert_str_eq(why, "");
	ck_assert(!cvy_ep_device_takes(&s, 33, why, sizeof(why)));
	ck_assert_str_eq(why, "the ranks of the group: 33, at most 32");
	s.tokens = 16385;
	s.hidden = 8200;
	s.experts = 1025;
	ck_assert(!cvy_ep_device_takes(&s, 4000, why, sizeof(why)));
	ck_assert_str_eq(why,
			 "the ranks of the group: 4000, at most 32; max_tokens: 16385, at most 16384; hidden: 8200, at "
			 "most 8192; experts: 1025, at most 1024");
	s = (struct cvy_ep_shape){ .tokens = 1, .hidden = 8, .top_k = 1, .experts = 512, .places = 3 };
	ck_assert(!cvy_ep_device_takes(&s, 8, why, sizeof(why)));
	ck_assert_str_eq(why, "experts * places: 1536, at most 1024");
	s.places = 1;
	ck_assert(cvy_ep_device_takes(&s, 8, why, sizeof(why)));
}

SUITE_MAIN(.name = "collectives/ep_form")
