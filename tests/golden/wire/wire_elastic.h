/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elasticInfo: how Ascend's operators learn that ranks are gone. 4 + 2 * ranks words: whether any is gone, living ranks,
 * living shared ranks, living experts, the new number of each rank (-1: gone), the rank of each new number (-1: none).
 * A rank keeps its number of experts. covey never renumbers: the words are made from a mask, and become one.
 */
#ifndef CVY_WIRE_ELASTIC_H
#define CVY_WIRE_ELASTIC_H

#include "wire.h"

#define CVY_WIRE_ELASTIC_HEAD 4

/* The group as it began. */
struct cvy_wire_elastic {
	struct cvy_errbox *box;
	int ranks;
	int shared_ranks; /* the first of them */
	int experts;	  /* without shared ones */
};

static inline size_t cvy_wire_elastic_words(const struct cvy_wire_elastic *e)
{
	return CVY_WIRE_ELASTIC_HEAD + 2 * (size_t)e->ranks;
}

int cvy_wire_elastic_write(const struct cvy_wire_elastic *e, const struct covey_mask *living, int32_t *words);
int cvy_wire_elastic_read(const struct cvy_wire_elastic *e, const int32_t *words, size_t count,
			  struct covey_mask *living);

#endif
