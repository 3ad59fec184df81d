/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of ep-chaos. What is accepted is looked at as the run would: every number in it is an index or a bound there.
 * The random plan of a seed, which ep-chaos writes for itself, must always be accepted.
 */
#include "tool.h" /* before the tool */

#include "../../tools/chaos/ep-chaos.c"
#undef main

#include "chaos/plan.h"
#include "fuzz.h"

#define SEED_BYTES 8

static int ends(const char *text, size_t bytes)
{
	return memchr(text, 0, bytes) != NULL;
}

static void check_step(const struct chaos_plan *plan, const struct chaos_step *s)
{
	fuzz_check(s->verb >= CHAOS_KILL && s->verb <= CHAOS_QUIET);
	fuzz_check(!(s->ranks >> CHAOS_MAX_RANKS) && s->count >= 0 && s->count <= CHAOS_MAX_RANKS);
	fuzz_check(s->from_ms <= s->to_ms);
	fuzz_check(ends(s->text, sizeof(s->text)) && ends(s->kind, sizeof(s->kind)) && s->kind[0]);
	if (s->verb == CHAOS_KILL)
		fuzz_check(s->what > -CHAOS_T_COUNT && s->what <= CHAOS_W_COUNT);
	if (s->verb == CHAOS_SERVER)
		fuzz_check(s->what >= CHAOS_S_STOP && s->what <= CHAOS_S_REVIVE);
	if (s->verb == CHAOS_CUT)
		fuzz_check(plan->hosts && s->a < plan->hosts && s->b < plan->hosts && s->a >= -1 && s->b >= -1);
	if (s->verb == CHAOS_SLOW)
		fuzz_check(s->a >= 0 && s->a < plan->hosts && s->b >= 0);
	if (s->verb == CHAOS_EXTEND)
		fuzz_check(plan->groups <= 1 && s->a >= 2 && s->a <= CHAOS_MAX_RANKS);
}

static void check(const struct chaos_plan *plan)
{
	fuzz_check(plan->steps >= 1 && plan->steps <= CHAOS_STEPS);
	fuzz_check(plan->ranks >= 0 && plan->ranks <= CHAOS_MAX_RANKS && plan->hosts >= 0 && plan->hosts <= 4);
	fuzz_check(plan->groups >= 0 && plan->groups <= CHAOS_GROUPS && plan->members <= CHAOS_MAX_RANKS);
	fuzz_check(plan->sizes >= 0 && plan->sizes <= CHAOS_SIZES && plan->settings <= CHAOS_SETTINGS);
	fuzz_check(!(plan->work >> CHAOS_W_COUNT));
	fuzz_check(plan->mix.mistakes >= 0 && !(plan->mix.slips >> CHAOS_L_COUNTED));
	fuzz_check(!plan->mix.mistakes || plan->mix.slips);
	for (int i = 0; i < plan->sizes; i++)
		fuzz_check(plan->bytes[i] >= 4 && plan->bytes[i] <= CHAOS_BYTES_MAX);
	for (int i = 0; i < plan->settings; i++)
		fuzz_check(ends(plan->setting[i][0], 64) && ends(plan->setting[i][1], 64) &&
			   !strncmp(plan->setting[i][0], "COVEY_", 6));
	for (int i = 0; i < plan->steps; i++)
		check_step(plan, &plan->step[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct chaos_plan plan;
	char *text = fuzz_text(data, size), *random;
	struct fuzz_in in = { data, size };
	uint64_t seed;

	memset(&plan, 0, sizeof(plan));
	if (!chaos_plan_parse(&plan, "fuzz", text))
		check(&plan);
	free(text);
	if (fuzz_take(&in, &seed, SEED_BYTES) < SEED_BYTES)
		return 0;
	memset(&plan, 0, sizeof(plan));
	random = chaos_plan_random(seed);
	fuzz_check(random && !chaos_plan_parse(&plan, "random", random));
	check(&plan);
	free(random);
	return 0;
}
