/* SPDX-License-Identifier: Apache-2.0 */
/* elasticInfo, of a mask and back. Words that are read must be those that their mask would give. */
#include "wire_elastic.h"

#include "mask.h"

enum { ELASTIC_ANY_GONE, ELASTIC_RANKS, ELASTIC_SHARED, ELASTIC_EXPERTS };

static int check_group(const struct cvy_wire_elastic *e, int *local)
{
	int err = cvy_wire_between(e->box, "ranks", e->ranks, 1, COVEY_MAX_RANKS);

	err = err ? err : cvy_wire_between(e->box, "shared ranks", e->shared_ranks, 0, e->ranks - 1);
	return err ? err : cvy_wire_local_experts(e->box, e->experts, e->ranks - e->shared_ranks, local);
}

static int check_living(const struct cvy_wire_elastic *e, const struct covey_mask *living)
{
	int experts = 0;

	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		if (covey_mask_has(living, r) && r >= e->ranks)
			return cvy_fail(e->box, COVEY_ERR_INVAL, r, 0, "rank %d lives: the group began with %d ranks",
					r, e->ranks);
		experts |= covey_mask_has(living, r) && r >= e->shared_ranks;
	}
	if (!experts)
		return cvy_fail(e->box, COVEY_ERR_INVAL, -1, 0, "no rank from %d to %d lives: one with experts must",
				e->shared_ranks, e->ranks - 1);
	return 0;
}

int cvy_wire_elastic_write(const struct cvy_wire_elastic *e, const struct covey_mask *living, int32_t *words)
{
	int32_t *number = words + CVY_WIRE_ELASTIC_HEAD, *rank;
	int local, n = 0, shared = 0, err = check_group(e, &local);

	err = err ? err : check_living(e, living);
	if (err)
		return err;
	rank = number + e->ranks;
	for (int r = 0; r < e->ranks; r++) {
		int lives = covey_mask_has(living, r);

		number[r] = lives ? n : -1;
		if (lives)
			rank[n++] = r;
		shared += lives && r < e->shared_ranks;
	}
	for (int i = n; i < e->ranks; i++)
		rank[i] = -1;
	words[ELASTIC_ANY_GONE] = n < e->ranks;
	words[ELASTIC_RANKS] = n;
	words[ELASTIC_SHARED] = shared;
	words[ELASTIC_EXPERTS] = (n - shared) * local;
	return 0;
}

/* The tables are each other's inverse; they give the mask. New numbers may be in any order. */
static int read_tables(const struct cvy_wire_elastic *e, const int32_t *words, struct covey_mask *living)
{
	const int32_t *number = words + CVY_WIRE_ELASTIC_HEAD, *rank = number + e->ranks;
	int n = words[ELASTIC_RANKS];

	for (int r = 0; r < e->ranks; r++) {
		if (number[r] == -1)
			continue;
		if (number[r] < 0 || number[r] >= n || rank[number[r]] != r)
			return cvy_fail(e->box, COVEY_ERR_INVAL, r, 0,
					"the new number of rank %d is %d: it must be -1, or one below %d of which the "
					"second table says %d",
					r, (int)number[r], n, r);
		cvy_mask_add(living, r);
	}
	for (int i = covey_mask_count(living); i < e->ranks; i++)
		if (rank[i] != -1)
			return cvy_fail(
				e->box, COVEY_ERR_INVAL, -1, 0,
				"the rank of new number %d is %d: only %d ranks have a number, so it must be -1", i,
				(int)rank[i], covey_mask_count(living));
	return 0;
}

static int check_head(const struct cvy_wire_elastic *e, const int32_t *words, const struct covey_mask *living,
		      int local)
{
	int n = covey_mask_count(living), shared = 0, err;

	for (int r = 0; r < e->shared_ranks; r++)
		shared += covey_mask_has(living, r);
	err = cvy_wire_between(e->box, "living ranks in elasticInfo", words[ELASTIC_RANKS], n, n);
	err = err ? err
		  : cvy_wire_between(e->box, "living shared ranks in elasticInfo", words[ELASTIC_SHARED], shared,
				     shared);
	return err ? err
		   : cvy_wire_between(e->box, "living experts in elasticInfo", words[ELASTIC_EXPERTS],
				      (n - shared) * local, (n - shared) * local);
}

int cvy_wire_elastic_read(const struct cvy_wire_elastic *e, const int32_t *words, size_t count,
			  struct covey_mask *living)
{
	struct covey_mask mask = { { 0 } };
	int local, err = check_group(e, &local);

	if (!err && count != cvy_wire_elastic_words(e))
		err = cvy_fail(e->box, COVEY_ERR_INVAL, -1, 0, "elasticInfo has %zu words: with %d ranks it has %zu",
			       count, e->ranks, cvy_wire_elastic_words(e));
	err = err ? err : cvy_wire_between(e->box, "the first word of elasticInfo", words[ELASTIC_ANY_GONE], 0, 1);
	if (err)
		return err;
	if (!words[ELASTIC_ANY_GONE]) { /* the operators read no further */
		for (int r = 0; r < e->ranks; r++)
			cvy_mask_add(&mask, r);
		*living = mask;
		return 0;
	}
	err = cvy_wire_between(e->box, "living ranks in elasticInfo", words[ELASTIC_RANKS], 1, e->ranks);
	err = err ? err : read_tables(e, words, &mask);
	err = err ? err : check_head(e, words, &mask, local);
	err = err ? err : check_living(e, &mask);
	if (!err)
		*living = mask;
	return err;
}
