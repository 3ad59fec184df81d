/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of dispatch and combine share: elements of both types, routings, and arguments that all calls have. */
#ifndef TESTS_COLLECTIVES_EP_FIXTURE_H
#define TESTS_COLLECTIVES_EP_FIXTURE_H

#include "covey_ep.h"
#include "harness.h"

#include <math.h>
#include <signal.h>

#include "reduce.h"

/* Of a struct with these members; what else a test gives is set behind. */
#define EP_DISPATCH(J) \
	((struct covey_dispatch_args){ .size = sizeof(struct covey_dispatch_args), \
				       .num_tokens = (J)->tokens, \
				       .x = (J)->x, \
				       .experts = (J)->ids, \
				       .packed_x = (J)->packed, \
				       .count = (J)->count, \
				       .src_info = (J)->src, \
				       .range = (J)->range })
#define EP_COMBINE(J, Y) \
	((struct covey_combine_args){ .size = sizeof(struct covey_combine_args), \
				      .num_tokens = (J)->tokens, \
				      .y = Y, \
				      .count = (J)->count, \
				      .src_info = (J)->src, \
				      .range = (J)->range, \
				      .experts = (J)->ids, \
				      .weights = (J)->weights, \
				      .out = (J)->out })

static inline struct covey_ep_config ep_config(int tokens, int hidden, int top_k, int experts)
{
	struct covey_ep_config c = COVEY_EP_CONFIG_INIT;

	c.max_tokens = tokens;
	c.hidden = hidden;
	c.top_k = top_k;
	c.experts = experts;
	return c;
}

static inline float ep_wide(int dtype, uint16_t half)
{
	return dtype == COVEY_FLOAT16 ? cvy_f16_f32(half) : cvy_bf16_f32(half);
}

/* A sum that is a NaN is 0x7fff. */
static inline uint16_t ep_narrow(int dtype, float v)
{
	if (v != v)
		return 0x7fff;
	return dtype == COVEY_FLOAT16 ? cvy_f32_f16(v) : cvy_f32_bf16(v);
}

/* One of eight elements, when codes have come back: a code times its scale, which is rounded up. */
static inline float ep_coded(int dtype, const float v[8], int i)
{
	float most = 0, scale;
	uint16_t half;

	for (int k = 0; k < 8; k++)
		most = fabsf(v[k]) > most || v[k] != v[k] ? fabsf(v[k]) : most;
	if (!isfinite(most))
		return NAN;
	if (most < 0x1p-100f)
		return 0;
	half = ep_narrow(dtype, most / 127);
	if (ep_wide(dtype, half) < most / 127)
		half++;
	scale = ep_wide(dtype, half);
	return isfinite(scale) ? rintf(v[i] / scale) * scale : NAN;
}

enum routing { RANDOM, SKEWED, EMPTY, ONE_EXPERT, HOSTILE, ROUTINGS };

static inline int32_t ep_route(enum routing routing, int experts, uint64_t *state)
{
	uint64_t r = harness_random(state);

	switch (routing) {
	case SKEWED:
		return r % 4 ? 0 : (int32_t)(r / 7 % (uint64_t)experts);
	case ONE_EXPERT:
		return experts - 1;
	case HOSTILE: /* below and past all ids, and the same two again and again */
		if (r % 5 == 0)
			return -1 - (int32_t)(r % 1000);
		return r % 5 == 1 ? experts + (int32_t)(r % 100000) : (int32_t)(r % 2);
	default:
		return (int32_t)(r % (uint64_t)experts);
	}
}

/* Three processes, of which rank 2 dies in its tenth round. */
struct ep_kill {
	struct covey_config config;
	enum ep_when { EP_BEFORE, EP_SENT, EP_BETWEEN } when; /* of dispatch, and of the two phases */
};

static inline void ep_may_die(const struct ep_kill *plan, int rank, uint64_t round, enum ep_when when)
{
	if (rank == 2 && round == 10 && plan->when == when)
		raise(SIGKILL);
}

/* @i below 6: each moment, over shared memory and over TCP. */
static inline void ep_kill(int i, const char *name, int (*rank)(void *plan, int rank))
{
	struct ep_kill plan = { .config = harness_config_over(i % 2, name, 3), .when = (enum ep_when)(i / 2) };
	pid_t pid[3];

	harness_fork_all(rank, &plan, pid, 3);
	harness_reap_all(pid, 3, 2);
}

#endif
