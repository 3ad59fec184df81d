/* SPDX-License-Identifier: Apache-2.0 */
#include "ep_layer.h"

#include <stdlib.h>

void layer_create(struct layer *l, struct covey_group *group, int preset, int tokens, int hidden, const int *owners)
{
	struct covey_ep_config c = ep_config(tokens, hidden, LAYER_EXPERTS, LAYER_EXPERTS);
	struct covey_error_info why;
	int err;

	*l = (struct layer){ .group = group, .preset = preset, .tokens = tokens, .hidden = hidden };
	c.preset = preset;
	c.expert_owner = owners;
	err = covey_ep_create(group, &c, &l->ep);
	covey_last_error(group, &why);
	must(!err, "create: %s", why.cause);
}

void layer_buffers(struct layer *l)
{
	size_t t = (size_t)l->tokens, h = (size_t)l->hidden, ids = t * LAYER_EXPERTS;
	size_t rows = (size_t)covey_ep_rows(l->ep) * LAYER_EXPERTS;

	must(covey_ep_rows(l->ep) >= 0 && l->ep->size <= LAYER_RANKS, "%d rows", covey_ep_rows(l->ep));
	l->x = calloc(t * h, 2);
	l->out = calloc(t * h, 2);
	l->packed = calloc(rows * h, 2);
	l->src = calloc(rows, 4);
	l->triplets = calloc(rows * 3, 4);
	l->experts = calloc(rows * LAYER_EXPERTS, 4);
	l->beside = calloc(rows * LAYER_EXPERTS, 4);
	l->ids = calloc(ids, 4);
	l->weights = calloc(ids, 4);
	must(l->x && l->out && l->packed && l->ids && l->src && l->weights && l->experts && l->beside && l->triplets,
	     "memory");
	for (size_t i = 0; i < ids; i++) {
		l->ids[i] = (int32_t)(i % LAYER_EXPERTS);
		l->weights[i] = 1;
	}
}

void layer_open(struct layer *l, struct covey_group *group, int preset, int tokens, int hidden)
{
	layer_create(l, group, preset, tokens, hidden, NULL);
	layer_buffers(l);
}

void layer_close(struct layer *l)
{
	covey_ep_destroy(l->ep);
	free(l->x);
	free(l->out);
	free(l->packed);
	free(l->ids);
	free(l->src);
	free(l->weights);
	free(l->experts);
	free(l->triplets);
	free(l->beside);
}

uint16_t layer_element(const struct layer *l, int token)
{
	return cvy_f32_bf16((float)((token + l->salt) % 50 + 1));
}

int layer_send(struct layer *l, int salt)
{
	struct covey_dispatch_args d = EP_DISPATCH(l);

	l->salt = salt;
	for (int t = 0; t < l->tokens; t++)
		for (int h = 0; h < l->hidden; h++)
			l->x[t * l->hidden + h] = layer_element(l, t);
	d.weights = l->weights;
	d.triplets = l->triplets;
	d.recv_experts = l->experts;
	d.recv_weights = l->beside;
	d.timeout_ms = l->timeout_ms;
	d.active_ranks = l->active;
	d.waited = l->waited;
	return covey_dispatch_send(l->ep, &d, NULL);
}

int layer_combine(struct layer *l, struct covey_result *res)
{
	struct covey_combine_args c = EP_COMBINE(l, l->packed);

	c.timeout_ms = l->timeout_ms;
	c.active_ranks = l->active;
	c.waited = l->waited;
	return covey_combine(l->ep, &c, NULL, res);
}

void layer_check(const struct layer *l, const struct covey_mask *mask)
{
	int times = 0;

	for (int x = 0; x < LAYER_EXPERTS; x++) /* in blocks; with COMPACT a rank counts once */
		if (covey_mask_has(mask, l->ep->owner[x]) &&
		    !(l->preset == COVEY_EP_COMPACT && x && l->ep->owner[x] == l->ep->owner[x - 1]))
			times++;
	for (int t = 0; t < l->tokens; t++)
		for (int h = 0; h < l->hidden; h++) {
			float got = cvy_bf16_f32(l->out[t * l->hidden + h]);

			must(got == (float)times * cvy_bf16_f32(layer_element(l, t)),
			     "rank %d, %d x %d: token %d [%d] is %g, %d times %g", l->ep->rank, l->tokens, l->hidden, t,
			     h, (double)got, times, (double)cvy_bf16_f32(layer_element(l, t)));
		}
}

void layer_pair(struct layer *l, int salt, int n)
{
	struct covey_result res;

	must(!layer_send(l, salt), "dispatch");
	must(!covey_dispatch_recv(l->ep, 0, &res) && covey_mask_count(&res.mask) == n, "dispatch: mask %llx",
	     (unsigned long long)res.mask.word[0]);
	must(!layer_combine(l, &res) && covey_mask_count(&res.mask) == n, "combine: mask %llx",
	     (unsigned long long)res.mask.word[0]);
	layer_check(l, &res.mask);
}
