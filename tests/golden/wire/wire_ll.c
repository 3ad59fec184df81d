/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency kernels' memory. */
#include "wire_ll.h"

enum { LL_HEADER = 16, LL_SCALE_ALIGN = 4 };

int cvy_wire_ll_layout(struct cvy_wire_ll *ll)
{
	int err = cvy_wire_local_experts(ll->box, ll->experts, ll->ranks, &ll->local);

	err = err ? err : cvy_wire_between(ll->box, "tokens", ll->tokens, 1, CVY_WIRE_MAX_TOKENS);
	err = err ? err
		  : cvy_wire_slot_of(ll->box, ll->fp8 ? CVY_WIRE_LL_FP8 : CVY_WIRE_LL_BF16, ll->hidden, 1,
				     &ll->message);
	err = err ? err : cvy_wire_slot_of(ll->box, CVY_WIRE_LL_COMBINE, ll->hidden, 1, &ll->row);
	if (err)
		return err;
	/* Room for either kind of message and for one header more. The bounds above keep this far from overflowing. */
	ll->words_bytes = 4 * (size_t)ll->experts;
	ll->data_bytes = (size_t)ll->experts * (size_t)ll->tokens * (2 * LL_HEADER + 2 * (size_t)ll->hidden);
	ll->send_words_at = 0;
	ll->recv_words_at = ll->words_bytes;
	ll->send_data_at = 2 * ll->words_bytes;
	ll->recv_data_at = ll->send_data_at + ll->data_bytes;
	ll->half_bytes = ll->recv_data_at + ll->data_bytes;
	ll->total_bytes = 2 * ll->half_bytes;
	return 0;
}

int cvy_wire_ll_queue(struct cvy_errbox *box, int ranks, int dst, int local_expert)
{
	int err = cvy_wire_between(box, "ranks", ranks, 1, CVY_WIRE_LL_QUEUES);

	if (!err && CVY_WIRE_LL_QUEUES % ranks)
		err = cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "%d queues on %d ranks: ranks must divide the queues",
			       CVY_WIRE_LL_QUEUES, ranks);
	err = err ? err : cvy_wire_between(box, "the destination", dst, 0, ranks - 1);
	err = err ? err : cvy_wire_between(box, "the local expert", local_expert, 0, CVY_WIRE_MAX_EXPERTS - 1);
	if (err)
		return err;
	return dst * (CVY_WIRE_LL_QUEUES / ranks) + local_expert % (CVY_WIRE_LL_QUEUES / ranks);
}

int cvy_wire_ll_outputs(const struct cvy_wire_ll *ll, struct cvy_wire_ll_outputs *out)
{
	size_t el = (size_t)ll->local, rows = (size_t)ll->ranks * (size_t)ll->tokens, hidden = (size_t)ll->hidden;

	if (ll->fp8 && rows % LL_SCALE_ALIGN)
		return cvy_fail(ll->box, COVEY_ERR_INVAL, -1, 0,
				"%d ranks of %d tokens are %zu rows: scales by column take multiples of %d", ll->ranks,
				ll->tokens, rows, LL_SCALE_ALIGN);
	*out = (struct cvy_wire_ll_outputs){ .packed_x = el * rows * hidden,
					     .count = el,
					     .src_info = el * rows,
					     .range = el * (size_t)ll->ranks,
					     .scales = ll->fp8 ? el * (hidden / CVY_WIRE_LL_GROUP) * rows : 0 };
	return 0;
}

size_t cvy_wire_ll_scale_at(const struct cvy_wire_ll *ll, int local_expert, int group, int row)
{
	size_t groups = (size_t)ll->hidden / CVY_WIRE_LL_GROUP, rows = (size_t)ll->ranks * (size_t)ll->tokens;

	return ((size_t)local_expert * groups + (size_t)group) * rows + (size_t)row;
}

static void write_source(const struct cvy_wire_ll *ll, const struct cvy_wire_routing *routing, int src, int rank,
			 uint8_t *half)
{
	const struct cvy_wire_source *s = &routing->source[src];

	for (int i = 0; i < s->tokens * routing->top_k; i++) {
		int e = s->experts[i] < 0 ? -1 : s->experts[i] - rank * ll->local, t = i / routing->top_k;
		uint32_t header[LL_HEADER / 4] = { (uint32_t)t };
		uint8_t *word, *to;
		int32_t n;

		if (e < 0 || e >= ll->local)
			continue;
		word = half + ll->recv_words_at + cvy_wire_ll_count_at(ll, e, src);
		n = cvy_wire_count_decode((int32_t)cvy_wire_get32(word));
		to = half + ll->recv_data_at + cvy_wire_ll_message_at(ll, e, src, n);
		cvy_wire_token_write(&ll->message, s, t, to);
		cvy_wire_part_write(&ll->message, to, CVY_WIRE_META, header);
		cvy_wire_put32(word, (uint32_t)cvy_wire_count_encode(n + 1));
	}
}

int cvy_wire_ll_write(const struct cvy_wire_ll *ll, const struct cvy_wire_routing *routing, int rank,
		      const struct cvy_wire_image *half)
{
	const struct cvy_wire_routing like = { .ranks = ll->ranks, .experts = ll->experts, .tokens = ll->tokens };
	int err = cvy_wire_fits(ll->box, "a half", half, ll->half_bytes);

	err = err ? err : cvy_wire_between(ll->box, "rank", rank, 0, ll->ranks - 1);
	err = err ? err : cvy_wire_routing_check(ll->box, routing, &like);
	if (err)
		return err;
	for (int run = 0; run < ll->experts; run++)
		cvy_wire_put32(half->at + ll->recv_words_at + 4 * (size_t)run, (uint32_t)cvy_wire_count_encode(0));
	for (int src = 0; src < ll->ranks; src++)
		write_source(ll, routing, src, rank, half->at);
	return 0;
}

int cvy_wire_ll_count(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int local_expert, int src,
		      int *count)
{
	int err = cvy_wire_fits(ll->box, "a half", half, ll->half_bytes);
	int32_t word;

	err = err ? err : cvy_wire_between(ll->box, "the local expert", local_expert, 0, ll->local - 1);
	err = err ? err : cvy_wire_between(ll->box, "the source", src, 0, ll->ranks - 1);
	if (err)
		return err;
	word = (int32_t)cvy_wire_get32(half->at + ll->recv_words_at + cvy_wire_ll_count_at(ll, local_expert, src));
	if (!word)
		return COVEY_ERR_AGAIN;
	if (word > 0 || cvy_wire_count_decode(word) > ll->tokens)
		return cvy_fail(ll->box, COVEY_ERR_INVAL, src, 0,
				"the count word of local expert %d and source %d is %d: it must be from %d to 0",
				local_expert, src, (int)word, (int)cvy_wire_count_encode(ll->tokens));
	*count = cvy_wire_count_decode(word);
	return 0;
}

int cvy_wire_ll_read(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int local_expert, int src,
		     int slot, struct cvy_wire_token *token)
{
	uint32_t header[LL_HEADER / 4];
	const uint8_t *from;
	int count = 0, err = cvy_wire_ll_count(ll, half, local_expert, src, &count);

	err = err ? err : cvy_wire_between(ll->box, "the slot", slot, 0, count - 1);
	if (err)
		return err;
	from = half->at + ll->recv_data_at + cvy_wire_ll_message_at(ll, local_expert, src, slot);
	cvy_wire_part_read(&ll->message, from, CVY_WIRE_META, header);
	err = cvy_wire_between(ll->box, "the token in a header", header[0], 0, ll->tokens - 1);
	if (err)
		return err;
	token->token = (int)header[0];
	token->choice = -1;
	cvy_wire_token_read(&ll->message, from, token);
	return 0;
}

int cvy_wire_ll_combine_write(const struct cvy_wire_ll *ll, const struct cvy_wire_source *source, int top_k,
			      const uint8_t *rows, const struct cvy_wire_image *half)
{
	const struct cvy_wire_routing own = {
		.ranks = 1, .experts = ll->experts, .top_k = top_k, .tokens = ll->tokens, .source = source
	};
	int err = cvy_wire_fits(ll->box, "a half", half, ll->half_bytes);

	err = err ? err : cvy_wire_between(ll->box, "top_k", top_k, 1, CVY_WIRE_MAX_TOP_K);
	err = err ? err : cvy_wire_routing_check(ll->box, &own, &own);
	if (err)
		return err;
	for (int i = 0; i < source->tokens * top_k; i++)
		if (source->experts[i] >= 0)
			memcpy(half->at + ll->recv_data_at + cvy_wire_ll_row_at(ll, source->experts[i], i / top_k),
			       rows + (size_t)i * ll->row.bytes, ll->row.bytes);
	for (int e = 0; e < ll->experts; e++)
		cvy_wire_put32(half->at + ll->recv_words_at + cvy_wire_ll_done_at(e), 1);
	return 0;
}

int cvy_wire_ll_combine_read(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int expert, int token,
			     void *row)
{
	int err = cvy_wire_fits(ll->box, "a half", half, ll->half_bytes);
	uint32_t word;

	err = err ? err : cvy_wire_between(ll->box, "the expert", expert, 0, ll->experts - 1);
	err = err ? err : cvy_wire_between(ll->box, "the token", token, 0, ll->tokens - 1);
	if (err)
		return err;
	word = cvy_wire_get32(half->at + ll->recv_words_at + cvy_wire_ll_done_at(expert));
	if (!word)
		return COVEY_ERR_AGAIN;
	if (word != 1)
		return cvy_fail(ll->box, COVEY_ERR_INVAL, -1, 0, "the done word of expert %d is %u: it must be 0 or 1",
				expert, (unsigned)word);
	memcpy(row, half->at + ll->recv_data_at + cvy_wire_ll_row_at(ll, expert, token), ll->row.bytes);
	return 0;
}
