/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of the job: text to token vectors, a fixed router, experts that are two-layer ReLU nets. All of it follows
 * from one seed, so that the checker can make every weight itself. The seed is the job's checkpoint too: weights of
 * dead owners are made from it.
 */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reference.h"

#define MOE_MAX_RANKS 64

struct moe_model {
	struct moe_shape shape; /* size: of the present step */
	int ffn;
	int places; /* of an expert */
	uint64_t seed;
	const uint8_t *text;
	size_t text_bytes;
	float *router;	 /* [experts][hidden] */
	float **weights; /* [experts]: first layer [ffn][hidden], second [hidden][ffn]; NULL: not held here */
	float *inner;	 /* [ffn + hidden] scratch */
};

/* Reads the text whole. 0, or -1 with errno. */
int moe_model_open(struct moe_model *m, const struct moe_shape *shape, int ffn, uint64_t seed, const char *text);
void moe_model_close(struct moe_model *m);

size_t moe_expert_floats(const struct moe_model *m);
float *moe_expert_make(struct moe_model *m, int expert); /* from the seed, if it is not held; NULL: no memory */
void moe_expert_drop(struct moe_model *m, int expert);
void moe_expert_run(void *model, int expert, const uint16_t *x, uint16_t *y); /* a moe_expert_fn */

/* Tokens of rank @rank in step @step: x [tokens][hidden], experts and weights [tokens][top_k]. */
void moe_model_batch(const struct moe_model *m, uint64_t step, int rank, uint16_t *x, int32_t *experts, float *weights);

/* owner[e][p], the library's default: blocks of ceil(experts / size), and further places as far apart as ranks allow */
void moe_owners(const struct moe_model *m, int size, int *owner);
bool moe_owns(const struct moe_model *m, const int *owner, int expert, int rank);
/* The place e * places + p that takes tokens of @source; @living: ranks; -1: none lives. */
int moe_serves(const struct moe_model *m, const int *owner, int expert, int source, uint64_t living);

#endif
