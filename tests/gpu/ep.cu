/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine alone, by ranks of one process: every output byte against the host engine's functions, for random,
 * skewed, empty, one-expert and hostile routing, in every form (bf16, fp16, e4m3; a row per expert, per rank; all kinds of bins), with
 * masks of tokens and with the outputs that may be asked for, in one phase and two, twice alike, with canaries and poisoned outputs. Then one rank stays away: removed by a view made by hand, or
 * passed by at a deadline (with 7 ranks or more, one is lost after the other).
 *
 *	gpu-ep [RANKS [SEEDS [times|compact|hidden|hops]]]
 */
#include "ep_hosts.cuh"
#include "ep_times.cuh"
#include "guard.h"

/* ---- the cases ---- */

/* Some experts that may have several places have one, and not the first. */
static void owners(struct setup *s, int how)
{
	const int experts = experts_of(s), places = s->places > 1 ? s->places : 1, block = (experts + n - 1) / n;

	for (int e = 0; e < experts; e++) {
		const int first = how == 0 ? e / block : how == 1 ? (e * 7 + 3) % n : e % 5 ? 0 : e % n;
		int *owner = s->owner + e * places;

		for (int p = 0; p < places; p++)
			owner[p] = p && e % 4 == 3 ? -1 : (first + p) % n;
		if (places > 1 && e % 5 == 1 && owner[1] >= 0)
			owner[0] = -1;
	}
}

/* Masks, and outputs beside the usual, by the bits of @draw. */
static void ask(struct setup *s, uint64_t draw)
{
	static const int alignments[] = { 0, 1, 3, 128 };

	s->masked = draw & 3 ? 0 : (uint32_t)(draw >> 8) & mask;
	s->mask_columns = draw >> 2 & 1 ? s->shape.top_k : draw >> 3 & 1;
	s->asked = draw >> 4 & 1 ? (uint32_t)(draw >> 40 & 15) | (uint32_t)(draw >> 45 & 1) << 4 : 0;
	s->scaled = draw >> 46 & 1 && !s->shape.once && !s->shape.close;
	s->sums = draw >> 5 & 1;
	s->alignment = alignments[draw >> 6 & 3];
	s->fill_tail = draw >> 44 & 1;
}

static struct setup random_setup(void)
{
	static const int hiddens[] = { 8, 40, 136, 2048, 2560, 2880, 3072, 4096, 5120, 6144, 7168, 8192, 16, 128, 256 };
	struct setup s = {};

	s.shape.hidden = hiddens[below(15)];
	s.shape.tokens = 1 + (int)below(s.shape.hidden > 1000 ? 40 : 130);
	s.shape.top_k = 1 + (int)below(below(4) ? 8 : 32);
	s.shape.experts = n + (int)below(below(3) ? 24 : 8);
	s.shape.code = (int)below(CVY_EP_INT8_BY_8);
	s.shape.back = below(3) ? CVY_EP_AS_IS : CVY_EP_INT8_BY_8;
	s.shape.per_rank = (int)below(2);
	s.shape.once = below(3) == 0;
	s.shape.close = !s.shape.once && below(3) == 0;
	s.lanes = 1 << below(devices < n ? 5 : 8); /* ranks that share a device must all fit */
	s.lanes -= (int)below((uint64_t)s.lanes / 2 + 1);
	s.split = (int)below(2);
	s.renormalise = (int)below(2);
	s.routing = (enum routing)below(ROUTINGS);
	s.places = below(3) ? 0 : 2 + (int)below((uint64_t)(n - 1));
	if (s.places > 1)
		s.shape.experts *= s.places;
	while ((size_t)s.shape.experts * (size_t)n * (size_t)s.shape.tokens * (size_t)s.shape.hidden * 2 >
	       room_bytes / 2)
		s.shape.tokens = (s.shape.tokens + 1) / 2;
	owners(&s, (int)below(3));
	s.smooth = cvy_ep_in_ints(s.shape.code) && !s.shape.once && below(2);
	s.given = cvy_ep_in_e4m3(s.shape.code) ? (uint32_t)below(1u << n) : 0;
	s.wide = (uint32_t)below(1u << n);
	s.fp16 = (int)below(2);
	s.odd = below(4) == 0;
	ask(&s, next_random());
	return s;
}

/* A pair by all ranks, twice. */
static void healthy(struct setup *given)
{
	struct setup s = *given;

	prepare(&s);
	for (int again = 0; again < 2; again++) {
		go(&s, CVY_GPU_DISPATCH, mask);
		synchronise();
		check_dispatch(&s, again ? "dispatch again" : "dispatch", mask, mask, 1);
		for (int r = 0; r < n; r++)
			expect_first_attempt(&s, r);
		compute(&s, mask);
		go(&s, CVY_GPU_COMBINE, mask);
		synchronise();
		check_combine(&s, again ? "combine again" : "combine", mask, mask);
		expect_missing(&s, "healthy", mask, 0);
		for (int r = 0; r < n; r++)
			check_waited(&s, "healthy", r, mask & ~(1u << r));
		for (int r = 0; r < n && !again; r++) {
			CUDA(cudaSetDevice(ranks[r].device));
			poison(r, PACKED);
			poison(r, SRC);
			poison(r, RANGE);
			poison(r, OUT);
			for (int part = EXPERT_TOKENS; part <= FLAT; part++)
				poison(r, part);
		}
	}
}

static void one_seed(uint64_t number)
{
	struct setup s;

	seed = number * 0x9e3779b97f4a7c15ull + 1;
	s = random_setup();
	healthy(&s);
}

/* What a call may be at most, and at least: each in all kinds of bins, in one phase and two, in both kinds of rows back. */
static void corners(void)
{
	static const struct corner {
		const char *name;
		int hidden, tokens, top_k, experts, owners, wide, places;
	} all[] = {
		{ "rows of 16 bytes", 8, 9, 2, 8, 0, 0, 0 },
		{ "rows of 8192 elements", 8192, 3, 4, 9, 0, 0, 0 },
		{ "rows of 8184 elements", 8184, 3, 2, 9, 1, 0, 0 },
		{ "32 experts of a token", 136, 6, 32, 40, 1, 0, 0 },
		{ "32 experts of a token, rows of 8192", 8192, 2, 32, 33, 1, 0, 0 },
		{ "1024 experts", 16, 12, 8, 1024, 1, 0, 0 },
		{ "1024 experts, 32 of a token", 16, 4, 32, 1024, 0, 0, 0 },
		{ "uneven experts", 40, 12, 4, 23, 2, 0, 0 },
		{ "fewer experts than ranks", 40, 12, 1, 1, 0, 0, 0 },
		{ "ids in int64, few", 136, 9, 8, 24, 1, 1, 0 },
		{ "ids in int64, more than are copied", 16, 300, 8, 24, 1, 1, 0 },
		{ "ids in int64, an odd number of a token", 256, 130, 17, 24, 1, 1, 0 },
		{ "two places of an expert, ids more than are copied", 16, 300, 8, 24, 1, 0, 2 },
		{ "two places, ids in int64, more than are copied", 256, 300, 8, 24, 1, 1, 2 },
		{ "1024 places, two of an expert", 16, 12, 8, 512, 0, 0, 2 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		int before = checks;

		for (int way = 0; way < (i % 2 ? 12 : 8) && failures < 20; way++) {
			struct setup s = {};

			seed = i * 8 + (uint64_t)way + 1;
			s.shape.hidden = all[i].hidden;
			s.shape.tokens = all[i].tokens;
			s.shape.top_k = all[i].top_k;
			s.places = all[i].places;
			s.shape.experts = all[i].experts * (s.places ? s.places : 1);
			s.shape.close = way >> 3;
			s.shape.once = way & 1 && !s.shape.close;
			s.shape.per_rank = way >> 1 & 1;
			s.split = s.shape.close ? way & 1 : way >> 2;
			s.shape.code = s.split + 2 * (int)(i & 1); /* as they are and e4m3, or int8 and int4 */
			s.shape.back = i / 2 & 1 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS;
			s.fp16 = s.shape.once ^ s.split;
			s.smooth = cvy_ep_in_ints(s.shape.code) && !s.shape.once && i & 2;
			s.lanes = 4;
			s.wide = all[i].wide ? mask : 0;
			s.masked = way & 2 ? mask : 0;
			s.mask_columns = way & 4 ? s.shape.top_k : 1;
			s.asked = way & 3 ? 31 : 0;
			s.scaled = way & 4 && !s.shape.once;
			s.sums = s.fill_tail = way >> 2 & 1;
			owners(&s, all[i].owners);
			healthy(&s);
		}
		printf("%s: %d checks, %d failed\n", all[i].name, checks - before, failures);
	}
}

/* Rows of @hidden elements, in the @way-th of eight ways. */
static void one_hidden(int hidden, int way)
{
	struct setup s = {};

	seed = (uint64_t)hidden * 8 + (uint64_t)way + 1;
	s.shape.hidden = hidden;
	s.shape.tokens = 3;
	s.shape.top_k = 2;
	s.shape.experts = 2 * n + 1;
	s.shape.code = (way + hidden / 512) % CVY_EP_INT8_BY_8;
	s.shape.back = hidden / 1024 & 1 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS;
	s.shape.once = way >> 1 & 1;
	s.shape.per_rank = s.split = way >> 2;
	s.fp16 = s.shape.once ^ s.split;
	s.lanes = 2;
	owners(&s, 0);
	healthy(&s);
}

/* All that presets have, in @ways; and odd multiples of 16 bytes, each @step-th: their last line is filled in part. */
static void hiddens(int ways, int step)
{
	static const int presets[] = { 2048, 2560, 2880, 3072, 4096, 5120, 6144, 7168, 8192 };
	int before = checks, sizes = 0;

	for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++, sizes++)
		for (int way = 0; way < ways; way++)
			one_hidden(presets[i], way);
	for (int hidden = 8; hidden < 8192 && failures < 20; hidden += 16 * step, sizes++)
		one_hidden(hidden, hidden / 16 % 8);
	printf("%d hidden sizes: %d checks, %d failed\n", sizes, checks - before, failures);
}

/* A route that no dispatch has written, as where one ended without an outcome: nothing is read by it, and nothing comes. */
static void unrouted(int once)
{
	struct setup s = {};
	int before = checks;

	seed = 1;
	s.shape.hidden = 264;
	s.shape.tokens = s.lanes = 4;
	s.shape.top_k = 4;
	s.shape.experts = 3 * n;
	s.shape.per_rank = 1;
	s.shape.once = once;
	owners(&s, 0);
	prepare(&s);
	for (int r = 0; r < n; r++) {
		size_t items = cvy_ep_route_items(n, s.shape.tokens, s.shape.top_k);

		memset(host_at(r, ROUTE), 0, 16);
		memset(host_at(r, ROUTE) + 16, 0x7f, 2 * items * 4);
		memcpy(host_at(r, ROUTE) + 16 + 2 * items * 4, host_at(r, IDS), side[r].part[IDS].bytes);
		upload(r, ROUTE);
		memset(host_at(r, OUT), 0, (size_t)side[r].num_tokens * (size_t)s.shape.hidden * 2);
	}
	go(&s, CVY_GPU_COMBINE, mask);
	synchronise();
	for (int r = 0; r < n; r++)
		same(&s, "without a route", r, OUT, "out", side[r].part[OUT].bytes);
	printf("combined without a route: %d checks, %d failed\n", checks - before, failures);
}

/* ---- losses: @victim is the last of @mask, and is no member afterwards ---- */

static int compact; /* in that preset */
static int by_hops; /* in preset HT, which has the same rows */

static struct setup small_setup(int lanes, int split, int timeout_ms)
{
	struct setup s = {};

	s.shape.hidden = 264;
	s.shape.tokens = 16;
	s.shape.top_k = 4;
	s.places = lanes == 4 ? 2 : 0;
	s.living = mask;
	s.shape.experts = 3 * n * (s.places ? s.places : 1);
	s.lanes = lanes;
	s.split = split;
	s.timeout_ms = timeout_ms;
	s.shape.once = compact || by_hops;
	s.shape.hops = by_hops;
	s.renormalise = 1;
	s.masked = mask;
	s.mask_columns = split ? s.shape.top_k : 1;
	s.asked = 31;
	s.fill_tail = 1;
	owners(&s, 0);
	prepare(&s);
	return s;
}

static int victim_of(uint32_t members)
{
	return 31 - __builtin_clz(members);
}

/* The others stand still and go on without it: what all had not completed by then is done again, or completed. */
static void remove_rank(int victim)
{
	uint64_t base = 0;

	for (int r = 0; r < victim; r++)
		freeze(r);
	for (int r = 0; r < victim; r++)
		base = finished(r) > base ? finished(r) : base;
	epoch++;
	mask &= ~(1u << victim);
	for (int r = 0; r < victim; r++)
		thaw(r, mask, base, 1u << victim);
}

static void both(const struct setup *s, const char *what, uint32_t members, uint32_t missing)
{
	check_dispatch(s, what, members, mask, 0);
	expect_missing(s, what, mask, missing);
	compute(s, mask);
	go(s, CVY_GPU_COMBINE, mask);
	synchronise();
	check_combine(s, what, members & mask, mask);
}

/* It never came: done again by the new view. */
static void never_came(int lanes)
{
	struct setup s = small_setup(lanes, 0, 0);
	int victim = victim_of(mask);

	go(&s, CVY_GPU_DISPATCH, mask & ~(1u << victim));
	usleep(20000);
	remove_rank(victim);
	s.living = mask;
	synchronise();
	both(&s, "never came", mask, 0);
	expect_missing(&s, "never came", mask, 0);
}

/* It died between the phases of the others. */
static void between(void)
{
	struct setup s = small_setup(4, 1, 0);
	int victim = victim_of(mask);

	for (int r = 0; r <= victim; r++)
		launch_ep(&s, r, CVY_GPU_DISPATCH, CVY_EP_SEND);
	synchronise();
	remove_rank(victim);
	s.living = mask;
	for (int r = 0; r < victim; r++)
		launch_ep(&s, r, CVY_GPU_DISPATCH, CVY_EP_RECV);
	synchronise();
	both(&s, "between the phases", mask, 0);
}

/* All but one have it whole when it dies: that one completes without it, and says so. */
static void one_lacks(int kind)
{
	struct setup s = small_setup(4, 0, 0);
	int victim = victim_of(mask), one = victim - 1;
	uint32_t others = mask & ~(1u << one) & ~(1u << victim);

	if (kind == CVY_GPU_COMBINE) {
		go(&s, CVY_GPU_DISPATCH, mask);
		synchronise();
		check_dispatch(&s, "whole", mask, mask, 1);
		compute(&s, mask);
	}
	OK(ranks[one].gpu, ops->gate(ranks[one].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	go(&s, kind, mask);
	for (int r = 0; r <= victim; r++)
		if (r != one)
			CUDA(cudaStreamSynchronize(ranks[r].stream));
	if (kind == CVY_GPU_DISPATCH)
		check_dispatch(&s, "the others have it", mask, others, 1);
	else
		check_combine(&s, "the others have it", mask, others);
	remove_rank(victim);
	synchronise();
	expect_missing(&s, "one lacks it", 1u << one, 1u << victim);
	if (kind == CVY_GPU_COMBINE) {
		check_combine(&s, "one lacks it", mask, 1u << one);
		return;
	}
	check_dispatch(&s, "one lacks it", mask, 1u << one, 0);
	compute(&s, mask);
	go(&s, CVY_GPU_COMBINE, mask);
	synchronise();
	check_combine(&s, "then combined", mask, mask);
	expect_missing(&s, "then combined", mask, 0);
}

/* A deadline passes; the caller's array says so, and nobody waits for it again. */
static void late(void)
{
	struct setup s = small_setup(4, 0, 4000); /* who is only slow must not be late */
	int victim = victim_of(mask);
	uint32_t left = mask & ~(1u << victim), all = mask;

	go(&s, CVY_GPU_DISPATCH, left);
	synchronise();
	check_dispatch(&s, "late", left, left, 0);
	expect_missing(&s, "late", left, 1u << victim);
	for (int r = 0; r < victim; r++) {
		((int32_t *)host_at(r, ACTIVE))[victim] = 0;
		same(&s, "late", r, ACTIVE, "active", side[r].part[ACTIVE].bytes);
		check_waited(&s, "late", r, 1u << victim);
	}
	mask = left;
	compute(&s, left);
	go(&s, CVY_GPU_COMBINE, left);
	synchronise();
	check_combine(&s, "combined without who was late", left, left);
	expect_missing(&s, "combined without who was late", left, 1u << victim);
	mask = all;
	remove_rank(victim);
}

/*
 * All have sent; all but one have the operation when a view comes, and that one's second phase enters then: it completes
 * what the others have, from what had come.
 */
static void second_phase_late(int kind)
{
	struct setup s = small_setup(4, 0, 0);
	int one = victim_of(mask);
	uint64_t base = 0;

	if (kind == CVY_GPU_COMBINE) {
		go(&s, CVY_GPU_DISPATCH, mask);
		synchronise();
		check_dispatch(&s, "before a late second phase", mask, mask, 1);
		compute(&s, mask);
	}
	for (int r = 0; r <= one; r++)
		launch_ep(&s, r, kind, CVY_EP_SEND);
	synchronise();
	for (int r = 0; r < one; r++)
		launch_ep(&s, r, kind, CVY_EP_RECV);
	synchronise();
	for (int r = 0; r <= one; r++)
		freeze(r);
	base = finished(0);
	epoch++;
	for (int r = 0; r <= one; r++)
		thaw(r, mask, base, 0);
	launch_ep(&s, one, kind, CVY_EP_RECV);
	synchronise();
	if (kind == CVY_GPU_DISPATCH)
		check_dispatch(&s, "a late second phase", mask, mask, 1);
	else
		check_combine(&s, "a late second phase", mask, mask);
	expect_missing(&s, "a late second phase", mask, 0);
}

static void losses(void)
{
	one_lacks(CVY_GPU_DISPATCH);
	one_lacks(CVY_GPU_COMBINE);
	between();
	never_came(4);
	never_came(1);
	late();
	printf("losses: %d checks, %d failed\n", checks, failures);
}

/* ---- two hops ---- */

static struct setup random_hops(void)
{
	struct setup s = random_setup();

	s.shape.once = s.shape.hops = 1;
	s.shape.close = s.smooth = s.scaled = 0;
	s.shape.back = CVY_EP_AS_IS;
	s.shape.code = cvy_ep_in_ints(s.shape.code) ? CVY_EP_AS_IS : s.shape.code;
	return s;
}

/* Rows so long that a step has a part of one, and headers so long that there is no room for two hops. */
static void crowded_slots(void)
{
	static const struct {
		int hidden, top_k, experts, owners;
	} all[] = { { 8192, 4, 9, 0 }, { 7168, 8, 24, 1 }, { 8192, 8, 1024, 2 }, { 136, 8, 1024, 2 } };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct cvy_ep_form form;
		struct setup s = {};

		seed = i + 1;
		s.shape.hidden = all[i].hidden;
		s.shape.tokens = 5;
		s.shape.top_k = all[i].top_k;
		s.shape.experts = all[i].experts;
		s.shape.once = s.shape.hops = 1;
		s.lanes = 2;
		s.renormalise = (int)i % 2;
		owners(&s, all[i].owners);
		prepare(&s); /* for the form */
		for (int combine = 0; combine < 2; combine++) {
			const int hops = form_now(&s, combine, &form);

			printf("  hidden %d, %d experts, %s: %s, %d steps, rows in %d parts\n", s.shape.hidden,
			       s.shape.experts, combine ? "combine" : "dispatch", hops ? "two hops" : "one hop",
			       form.steps, form.slices);
		}
		healthy(&s);
	}
}

static void one_topology(const struct topology *t, uint64_t seeds)
{
	const int before = checks;

	place_ranks(t);
	count_crossing(t);
	crowded_slots();
	for (uint64_t i = 0; i < seeds && failures < 20; i++) {
		struct setup s;

		seed = i * 0x9e3779b97f4a7c15ull + 11;
		s = random_hops();
		healthy(&s);
	}
	printf("%s: %d checks, %d failed\n", t->name, checks - before, failures);
}

static void all_topologies(uint64_t seeds)
{
	by_hops = 1;
	for (size_t i = 0; i < sizeof(topologies) / sizeof(topologies[0]); i++)
		if (topologies[i].ranks == n)
			one_topology(&topologies[i], seeds);
	if (!CVY_GUARDED)
		return;
	while (n > 3 && __builtin_popcount(mask) > 2) /* one after the other is lost */
		if (__builtin_popcount(mask) % 2)
			never_came(1 + 3 * (__builtin_popcount(mask) % 4 == 1));
		else
			between();
}

int main(int argc, char **argv)
{
	uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 200;

	n = argc > 1 ? atoi(argv[1]) : 2;
	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no device\n");
		return 77;
	}
	if (n < 2 || n > RANKS) {
		fprintf(stderr, "gpu-ep [RANKS [SEEDS [times|compact|hidden|hops]]]: 2 to %d ranks\n", RANKS);
		return 2;
	}
	compact = argc > 3 && !strcmp(argv[3], "compact");
	if (argc > 3 && !strcmp(argv[3], "times"))
		room_bytes = (size_t)1 << 30;
	open_all();
	make_room();
	if (argc > 3 && !strcmp(argv[3], "hops")) {
		all_topologies(seeds);
		seeds = 0;
	} else if (n < 4) {
		corners();
	}
	for (int once = 0; once < 2 && !by_hops; once++)
		unrouted(once);
	if (argc > 3 && !strcmp(argv[3], "hidden"))
		hiddens(8, 1);
	else if (n < 4 && !by_hops)
		hiddens(2, 47);
	for (uint64_t i = 0; i < seeds && failures < 20; i++)
		one_seed(i);
	if (argc > 3 && !strcmp(argv[3], "times"))
		times();
	if (CVY_GUARDED && !by_hops) { /* over two hops nobody completes it before */
		second_phase_late(CVY_GPU_DISPATCH);
		second_phase_late(CVY_GPU_COMBINE);
	}
	if (n >= 7 && CVY_GUARDED && !by_hops)
		losses();
	printf("%d ranks, %llu seeds: %d checks, %d failed\n", n, (unsigned long long)seeds, checks, failures);
	for (int r = 0; r < n; r++) {
		cvy_gpu_ep_ops.state_free(ranks[r].gpu, side[r].state, BEHIND);
		ops->close(ranks[r].gpu);
	}
	return failures != 0;
}
