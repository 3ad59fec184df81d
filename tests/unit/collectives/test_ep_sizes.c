/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What covey_ep_sizes() says is what there is: a window of that size holds the handle, one page less does not, and
 * outputs of those sizes hold all that the fullest dispatch and combine write, between canaries.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <stdlib.h>

#include "ep.h"

enum { T = 7, H = 136, K = 3, E = 5, WORLD = 3, CANARY = 64, MOST = 14 };

static struct covey_ep_config config_of(int preset, int rows)
{
	struct covey_ep_config c = ep_config(T, H, K, E);

	c.preset = preset;
	c.rows = rows;
	return c;
}

/* ---- the window ---- */

TEST(window_is_the_least_whose_heap_holds_it)
{
	const size_t page = CVY_MEMORY_PAGE, most = 3 * CVY_POOL_MAX / page;
	struct cvy_layout l = cvy_layout(1 << 20, 4096);

	for (size_t n = 1; n < most + 50; n += n == 50 ? most - 90 : 1) {
		size_t least = cvy_window_for(&l, n * page);
		struct cvy_layout is = cvy_layout(least, 4096), less = cvy_layout(least - page, 4096);

		ck_assert_uint_ge(is.pool - is.heap, n * page);
		ck_assert_uint_lt(less.pool - less.heap, n * page);
	}
}

struct asked {
	struct covey_ep_config config;
	struct covey_ep_sizes sizes;
};

static void ask(struct member *m)
{
	struct asked *a = m->arg;

	a->sizes = (struct covey_ep_sizes)COVEY_EP_SIZES_INIT;
	must(!covey_ep_sizes(m->group, &a->config, 0, &a->sizes), "sizes");
	must(!covey_ep_sizes(m->group, &a->config, 0, &a->sizes), "the call takes nothing");
}

static void fits(struct member *m)
{
	const struct asked *a = m->arg;
	struct covey_ep *ep, *second;
	struct covey_error_info why;
	char text[40];

	must(!covey_ep_create(m->group, &a->config, &ep), "create");
	must(CVY_SLOTS * (ep->dispatch_bytes + ep->combine_bytes) == a->sizes.space_bytes, "space");
	must(covey_ep_create(m->group, &a->config, &second) == COVEY_ERR_NOMEM, "there is room for one");
	covey_last_error(m->group, &why);
	snprintf(text, sizeof(text), "window_bytes %zu, ", a->sizes.window_bytes);
	must(!strstr(why.cause, text), "two take more: %s", why.cause);
	covey_ep_destroy(ep);
}

static void lacks_a_page(struct member *m)
{
	const struct asked *a = m->arg;
	struct covey_ep *ep;
	char text[40];

	snprintf(text, sizeof(text), "window_bytes %zu, ", a->sizes.window_bytes);
	must_refuse(m->group, covey_ep_create(m->group, &a->config, &ep), COVEY_ERR_NOMEM, text);
}

TEST_LOOP(creation_takes_the_window_that_is_said, 0, 6)
{
	struct covey_config config = harness_config("epsizes", 1);
	struct asked a = { .config = config_of(_i % 2 ? COVEY_EP_COMPACT : COVEY_EP_LL, COVEY_EP_ROWS_BF16) };

	a.config.max_tokens = 1 + 13 * _i;
	a.config.combine_rows = _i / 2 % 2;
	config.max_ranks = 1 + _i % 4;
	config.slot_bytes = 4096;
	harness_threads(&config, ask, &a);
	config.window_bytes = a.sizes.window_bytes;
	harness_threads(&config, fits, &a);
	config.window_bytes -= CVY_MEMORY_PAGE;
	harness_threads(&config, lacks_a_page, &a);
}

/* ---- buffers ---- */

struct room {
	uint8_t *at;
	size_t bytes;
};

static void *guarded(struct room *r, size_t bytes)
{
	r->bytes = bytes;
	r->at = malloc(bytes + 2 * CANARY);
	must(r->at != NULL, "memory");
	memset(r->at, 0xc5, bytes + 2 * CANARY);
	return r->at + CANARY;
}

static void check_canaries(struct room *rooms, int n)
{
	for (int i = 0; i < n; i++) {
		for (size_t k = 0; k < CANARY; k++)
			must(rooms[i].at[k] == 0xc5 && rooms[i].at[CANARY + rooms[i].bytes + k] == 0xc5,
			     "buffer %d of %zu bytes", i, rooms[i].bytes);
		free(rooms[i].at);
	}
}

static void pair_in_rooms(struct covey_ep *ep, const struct covey_ep_sizes *s)
{
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	uint16_t *x = calloc(T * H, sizeof(*x));
	int64_t ids[T * K];
	float weights[T * K];
	struct room rooms[MOST];
	struct covey_result res;

	must(x != NULL, "memory");
	for (int i = 0; i < T * K; i++) { /* an expert that all tokens name gets all rows that there can be */
		ids[i] = i % K;
		weights[i] = 1;
	}
	d.num_tokens = c.num_tokens = T;
	d.x = x;
	d.experts64 = c.experts64 = ids;
	d.weights = c.weights = weights;
	d.packed_x = guarded(&rooms[0], s->packed_x_bytes);
	d.packed_scales = guarded(&rooms[1], s->packed_scales_bytes);
	d.count = guarded(&rooms[2], s->count_bytes);
	d.src_info = guarded(&rooms[3], s->src_info_bytes);
	d.range = guarded(&rooms[4], s->range_bytes);
	d.recv_experts = guarded(&rooms[5], s->recv_experts_bytes);
	d.recv_weights = guarded(&rooms[6], s->recv_weights_bytes);
	c.y = guarded(&rooms[7], s->y_bytes);
	c.out = guarded(&rooms[8], s->out_bytes);
	d.expert_tokens = guarded(&rooms[9], s->expert_tokens_bytes);
	d.recv_counts = guarded(&rooms[10], s->recv_counts_bytes);
	d.triplets = guarded(&rooms[11], s->triplets_bytes);
	d.flat = guarded(&rooms[12], s->flat_bytes);
	d.arrived = guarded(&rooms[13], s->arrived_bytes);
	memset(d.arrived, 0, s->arrived_bytes);
	d.fill_tail = 1;
	if (!s->recv_counts_bytes)
		d.recv_counts = NULL;
	must(!covey_dispatch(ep, &d, NULL, &res) && covey_mask_count(&res.mask) == WORLD, "dispatch");
	must(ep->rank || d.arrived[s->arrived_bytes / 4 - 1] == COVEY_EP_ARRIVED, "experts of rank 0 have all rows");
	c.count = d.count;
	c.src_info = d.src_info;
	c.range = d.range;
	must(!covey_combine(ep, &c, NULL, &res), "combine");
	check_canaries(rooms, MOST);
	free(x);
}

static void rooms_of(struct member *m)
{
	for (int way = 0; way < 12; way++) {
		const int close = way > 8, once = way < 8 && way % 2;
		struct covey_ep_config c = config_of(close	? COVEY_EP_WIN
						     : way == 8 ? COVEY_EP_FLAT
						     : once	? COVEY_EP_COMPACT
								: COVEY_EP_LL,
						     way / 2 % 4);
		struct covey_ep_sizes s = COVEY_EP_SIZES_INIT;
		struct covey_ep *ep;

		c.combine_rows = way % 3 == 0 ? COVEY_EP_BACK_INT8 : COVEY_EP_BACK_PLAIN;
		must(!covey_ep_sizes(m->group, &c, 0, &s), "sizes");
		must(!covey_ep_create(m->group, &c, &ep), "create");
		must(s.rows == covey_ep_rows(ep) && s.local_experts == covey_ep_local_experts(ep), "rows, experts");
		must(s.ranks == WORLD && s.route_bytes == covey_ep_route_bytes(ep), "ranks, route");
		must(way != 0 || s.packed_x_bytes == (size_t)s.local_experts * WORLD * T * H * 2, "packed_x");
		must(way != 4 || s.packed_x_bytes == (size_t)s.local_experts * WORLD * T * H, "packed_x of int8");
		must(way != 7 || s.packed_x_bytes == (size_t)WORLD * T * H / 2, "packed_x of int4");
		must(c.rows < COVEY_EP_ROWS_INT8 || s.packed_scales_bytes == s.src_info_bytes, "a scale a row");
		must(way != 2 || s.packed_scales_bytes == (size_t)s.local_experts * WORLD * T * 2 * 4, "scales");
		must(way != 1 || s.recv_experts_bytes == (size_t)WORLD * T * K * 4, "recv_experts");
		must(once || !s.recv_weights_bytes, "LL has none");
		must(!close || s.rows == WORLD * T * (K < s.local_experts ? K : s.local_experts),
		     "rows that stand close");
		must(!close || s.src_info_bytes == (s.local_experts ? (size_t)s.rows * 4 : 0), "src_info of all rows");
		must(s.expert_tokens_bytes == (size_t)s.local_experts * 8, "expert_tokens");
		must(way < 10 || s.packed_scales_bytes == s.src_info_bytes * 2, "two scales a row");
		must(s.recv_counts_bytes == (once ? 0 : (size_t)s.local_experts * WORLD * 4), "recv_counts");
		must(s.triplets_bytes == s.src_info_bytes * 3 && s.flat_bytes == s.src_info_bytes * 2, "origins");
		must(s.arrived_bytes == 4 * (size_t)(3 + (once || close ? 1 : s.local_experts) * s.rows), "arrived");
		pair_in_rooms(ep, &s);
		covey_ep_destroy(ep);
	}
}

TEST(outputs_of_these_sizes_hold_the_fullest_dispatch)
{
	struct covey_config config = harness_config("eprooms", WORLD);

	config.max_ranks = WORLD + 2;
	harness_threads(&config, rooms_of, NULL);
}

/* ---- arguments ---- */

static void refused(struct member *m, const struct covey_ep_config *c, int ranks, const char *cause)
{
	struct covey_ep_sizes s = COVEY_EP_SIZES_INIT;

	must_be_invalid(m->group, covey_ep_sizes(m->group, c, ranks, &s), cause);
	must(!s.space_bytes && !s.rows, "written");
}

static void arguments(struct member *m)
{
	struct covey_ep_config c = config_of(COVEY_EP_LL, COVEY_EP_ROWS_BF16);
	struct covey_ep_sizes s = COVEY_EP_SIZES_INIT;
	int owner[E] = { 1, 3, 1, 3, 3 };

	must(!covey_ep_sizes(m->group, &c, 4, &s) && s.ranks == 4 && s.rows == 4 * T && s.local_experts == 2, "of 4");
	refused(m, &c, 5, "ranks is 5: on rank 1 it must be from 2 to 4");
	refused(m, &c, 1, "ranks is 1: on rank 1");
	c.expert_owner = owner;
	must(!covey_ep_sizes(m->group, &c, 4, &s) && s.local_experts == 2, "owners of 4");
	refused(m, &c, 0, "expert_owner[1] is 3");
	c = config_of(COVEY_EP_LL, COVEY_EP_ROWS_BF16);
	c.hidden = 12;
	refused(m, &c, 0, "hidden is 12");
	c = config_of(COVEY_EP_LL, COVEY_EP_ROWS_BF16);
	s.size = offsetof(struct covey_ep_sizes, window_bytes);
	s.space_bytes = s.window_bytes = 1;
	must(!covey_ep_sizes(m->group, &c, 0, &s) && s.space_bytes > 1 && s.window_bytes == 1, "a shorter struct");
	s.size = 0;
	must(covey_ep_sizes(m->group, &c, 0, &s) == COVEY_ERR_INVAL, "no size");
	c.experts = CVY_EP_MAX_EXPERTS;
	c.hidden = CVY_EP_MAX_HIDDEN;
	c.max_tokens = CVY_EP_MAX_TOKENS;
	s.size = sizeof(s);
	must(!covey_ep_sizes(m->group, &c, 0, &s) && s.y_bytes / s.local_experts / s.rows == 2ull * c.hidden,
	     "the most");
}

static void only_of_one(struct member *m)
{
	if (m->rank == 1)
		arguments(m);
}

TEST(what_cannot_be_counted_is_refused)
{
	struct covey_config config = harness_config("epsizeargs", 2);

	config.max_ranks = 4;
	harness_threads(&config, only_of_one, NULL);
}

HARNESS_MAIN(.name = "collectives/ep_sizes")
