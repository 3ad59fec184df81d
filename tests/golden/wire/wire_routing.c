/* SPDX-License-Identifier: Apache-2.0 */
/* Routings, and the parts of a token that come from one. */
#include "wire.h"

/* A token names an expert once, so a run of one source and one expert has at most as many rows as the source tokens. */
static int distinct(struct cvy_errbox *box, const struct cvy_wire_routing *r, int src, int t)
{
	const int32_t *ids = r->source[src].experts + (size_t)t * (size_t)r->top_k;

	for (int k = 0; k < r->top_k; k++) {
		if (ids[k] >= r->experts)
			return cvy_fail(box, COVEY_ERR_INVAL, src, 0,
					"token %d of rank %d names expert %d: it must be below %d", t, src, (int)ids[k],
					r->experts);
		for (int j = 0; j < k; j++)
			if (ids[k] >= 0 && ids[j] == ids[k])
				return cvy_fail(box, COVEY_ERR_INVAL, src, 0,
						"token %d of rank %d names expert %d twice: each once, and -1 for none",
						t, src, (int)ids[k]);
	}
	return 0;
}

int cvy_wire_routing_check(struct cvy_errbox *box, const struct cvy_wire_routing *r,
			   const struct cvy_wire_routing *like)
{
	int err = cvy_wire_between(box, "ranks of the routing", r->ranks, like->ranks, like->ranks);

	err = err ? err : cvy_wire_between(box, "experts of the routing", r->experts, like->experts, like->experts);
	err = err ? err : cvy_wire_between(box, "tokens of the routing", r->tokens, 0, like->tokens);
	err = err ? err
		  : cvy_wire_between(box, "top_k of the routing", r->top_k, like->top_k ? like->top_k : 1,
				     like->top_k ? like->top_k : CVY_WIRE_MAX_TOP_K);
	for (int src = 0; !err && src < r->ranks; src++) {
		err = cvy_wire_between(box, "tokens of a source", r->source[src].tokens, 0, r->tokens);
		for (int t = 0; !err && t < r->source[src].tokens; t++)
			err = distinct(box, r, src, t);
	}
	return err;
}

int cvy_wire_local_experts(struct cvy_errbox *box, int experts, int ranks, int *local)
{
	int err = cvy_wire_between(box, "ranks", ranks, 1, CVY_WIRE_MAX_RANKS);

	err = err ? err : cvy_wire_between(box, "experts", experts, 1, CVY_WIRE_MAX_EXPERTS);
	if (err)
		return err;
	if (experts % ranks)
		return cvy_fail(box, COVEY_ERR_INVAL, -1, 0,
				"%d experts on %d ranks: each must have as many as the others", experts, ranks);
	*local = experts / ranks;
	return 0;
}

static void put(const struct cvy_wire_slot *slot, uint8_t *to, int part, const void *rows, size_t t)
{
	if (rows && slot->part[part].bytes)
		cvy_wire_part_write(slot, to, part, (const uint8_t *)rows + t * slot->part[part].bytes);
}

void cvy_wire_token_write(const struct cvy_wire_slot *slot, const struct cvy_wire_source *source, int t, uint8_t *to)
{
	memset(to, 0, slot->bytes);
	put(slot, to, CVY_WIRE_PAYLOAD, source->payload, (size_t)t);
	put(slot, to, CVY_WIRE_SCALE, source->scales, (size_t)t);
	put(slot, to, CVY_WIRE_IDS, source->experts, (size_t)t);
	put(slot, to, CVY_WIRE_WEIGHTS, source->weights, (size_t)t);
}

void cvy_wire_token_read(const struct cvy_wire_slot *slot, const uint8_t *from, struct cvy_wire_token *token)
{
	void *to[CVY_WIRE_PARTS] = { [CVY_WIRE_PAYLOAD] = token->payload,
				     [CVY_WIRE_SCALE] = token->scales,
				     [CVY_WIRE_IDS] = token->experts,
				     [CVY_WIRE_WEIGHTS] = token->weights };

	for (int part = 0; part < CVY_WIRE_PARTS; part++)
		if (to[part])
			cvy_wire_part_read(slot, from, part, to[part]);
}
