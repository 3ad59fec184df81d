/* SPDX-License-Identifier: Apache-2.0 */
/* Routings at random, by seed, and images as long as a test asks, so that a read past the end is seen by a sanitizer. */
#ifndef TESTS_GOLDEN_WIRE_ORACLE_H
#define TESTS_GOLDEN_WIRE_ORACLE_H

#include "../suite.h"
#include <stdlib.h>

#include "wire.h"

#define ORACLE_RANKS 64

struct oracle {
	struct cvy_wire_routing routing;
	struct cvy_wire_source source[ORACLE_RANKS];
	struct cvy_wire_slot slot; /* gives the lengths of payload and scales */
};

uint32_t oracle_draw(uint32_t below);
void oracle_seed(int seed);
/* Every third seed: each token names all of its experts. Ids of a token are distinct, as ever. */
void oracle_open(struct oracle *o, int seed, const struct cvy_wire_routing *shape, const struct cvy_wire_slot *slot);
void oracle_close(struct oracle *o);
const uint8_t *oracle_payload(const struct oracle *o, int src, int token);
const uint8_t *oracle_scales(const struct oracle *o, int src, int token);
int32_t oracle_id(const struct oracle *o, int src, int token, int k);

struct cvy_wire_image image_open(size_t bytes);		     /* zeroes */
void image_spoil(struct cvy_wire_image *image, int percent); /* so many of its words, or all */
void image_close(struct cvy_wire_image *image);

/* Fails with INVAL, and the cause says @words. */
#define ck_refused(call, words) \
	do { \
		struct covey_error_info refused_info; \
		ck_assert_int_eq(call, COVEY_ERR_INVAL); \
		cvy_errbox_get(NULL, &refused_info); \
		ck_assert_msg(strstr(refused_info.cause, words) != NULL, "\"%s\" does not say \"%s\"", \
			      refused_info.cause, words); \
	} while (0)

#endif
