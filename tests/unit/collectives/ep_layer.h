/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pair of dispatch and combine whose outcome is known at a glance: every token goes to all LAYER_EXPERTS experts,
 * with weight 1, and each gives it back as it is. So it comes back as often as experts took part.
 */
#ifndef TESTS_COLLECTIVES_EP_LAYER_H
#define TESTS_COLLECTIVES_EP_LAYER_H

#include "ep_fixture.h"

#include "ep.h"

enum { LAYER_EXPERTS = 3, LAYER_RANKS = 4 };

struct layer {
	struct covey_group *group;
	struct covey_ep *ep;
	int preset, tokens, hidden, salt;
	int timeout_ms; /* of its calls */
	int32_t *active;
	uint64_t *waited;
	uint16_t *x, *packed, *out;
	int32_t *ids, *src, *experts, *triplets, count[LAYER_EXPERTS];
	int64_t range[LAYER_EXPERTS * LAYER_RANKS];
	float *weights, *beside;
};

/* The handle alone; @owners: NULL blocks. The buffers when the size of the group is known. Both, for blocks. */
void layer_create(struct layer *l, struct covey_group *group, int preset, int tokens, int hidden, const int *owners);
void layer_buffers(struct layer *l);
void layer_open(struct layer *l, struct covey_group *group, int preset, int tokens, int hidden);
void layer_close(struct layer *l); /* with the handle, where there is one */

uint16_t layer_element(const struct layer *l, int token); /* of a token that was sent with @l->salt */
int layer_send(struct layer *l, int salt);
int layer_combine(struct layer *l, struct covey_result *res);
/* Did every token come back from the experts of the ranks in @mask, and from no others? */
void layer_check(const struct layer *l, const struct covey_mask *mask);
/* All of it, with @n ranks that take part. */
void layer_pair(struct layer *l, int salt, int n);

#endif
