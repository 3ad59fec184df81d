/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency kernels (DeepEP, Mooncake EP): one message for each token and expert, written into the memory of the
 * expert's rank. Memory is two halves, used in turns: words that a rank sends, words that it receives, data that it
 * sends, data that it receives.
 *
 *	message		((local expert * ranks + source) * tokens + slot) * message bytes
 *	count word	local expert * ranks + source: -count - 1
 *	combined row	(expert * tokens + token) * row bytes, on the token's rank
 *	done word	expert: 1
 *
 * The first word of a message's header is the token's number; the other three are 0. A system gives slots to messages in
 * the order in which they are sent; an image written here has them in the order of tokens. A reader takes any order.
 */
#ifndef CVY_WIRE_LL_H
#define CVY_WIRE_LL_H

#include "wire.h"

#define CVY_WIRE_LL_QUEUES 256 /* of a rank, for all others together */
#define CVY_WIRE_LL_GROUP 128  /* elements of one scale */

struct cvy_wire_ll {
	/* by the caller */
	struct cvy_errbox *box;
	int ranks, experts, tokens, hidden;
	int fp8; /* else bf16 */
	/* by cvy_wire_ll_layout */
	int local; /* experts of a rank */
	struct cvy_wire_slot message, row;
	size_t send_words_at, recv_words_at, send_data_at, recv_data_at; /* in a half */
	size_t words_bytes, data_bytes, half_bytes, total_bytes;
};

int cvy_wire_ll_layout(struct cvy_wire_ll *ll);

/* From the start of the receiver's data. */
static inline size_t cvy_wire_ll_message_at(const struct cvy_wire_ll *ll, int local_expert, int src, int slot)
{
	size_t run = (size_t)local_expert * (size_t)ll->ranks + (size_t)src;

	return (run * (size_t)ll->tokens + (size_t)slot) * ll->message.bytes;
}

static inline size_t cvy_wire_ll_row_at(const struct cvy_wire_ll *ll, int expert, int token)
{
	return ((size_t)expert * (size_t)ll->tokens + (size_t)token) * ll->row.bytes;
}

/* From the start of the receiver's words. */
static inline size_t cvy_wire_ll_count_at(const struct cvy_wire_ll *ll, int local_expert, int src)
{
	return 4 * ((size_t)local_expert * (size_t)ll->ranks + (size_t)src);
}

static inline size_t cvy_wire_ll_done_at(int expert)
{
	return 4 * (size_t)expert;
}

/* Returns the sender's queue for messages to a local expert of rank @dst, and for their count word; or an error. */
int cvy_wire_ll_queue(struct cvy_errbox *box, int ranks, int dst, int local_expert);

/* Arrays that a caller of dispatch receives, in elements. */
struct cvy_wire_ll_outputs {
	size_t packed_x, count, src_info, range, scales;
};

/* Scales are by column: all rows of a group are adjacent. So the rows must be a multiple of 4. */
int cvy_wire_ll_outputs(const struct cvy_wire_ll *ll, struct cvy_wire_ll_outputs *out);
size_t cvy_wire_ll_scale_at(const struct cvy_wire_ll *ll, int local_expert, int group, int row); /* element */

/* @half: one half of the memory of @rank, after a dispatch. All words are written, and the messages that came. */
int cvy_wire_ll_write(const struct cvy_wire_ll *ll, const struct cvy_wire_routing *routing, int rank,
		      const struct cvy_wire_image *half);
/* AGAIN: has not arrived */
int cvy_wire_ll_count(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int local_expert, int src,
		      int *count);
int cvy_wire_ll_read(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int local_expert, int src,
		     int slot, struct cvy_wire_token *token);

/* @half: of a rank that sent @source, after a combine. @rows [tokens][top_k]: results of the experts. */
int cvy_wire_ll_combine_write(const struct cvy_wire_ll *ll, const struct cvy_wire_source *source, int top_k,
			      const uint8_t *rows, const struct cvy_wire_image *half);
int cvy_wire_ll_combine_read(const struct cvy_wire_ll *ll, const struct cvy_wire_image *half, int expert, int token,
			     void *row);

#endif
