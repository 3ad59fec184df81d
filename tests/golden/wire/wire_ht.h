/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The high-throughput kernels (DeepEP's normal dispatch): a token goes once to each node that wants it, to the GPU there
 * with the source's index, which forwards it within the node. Tokens of a rank are dealt to channels in blocks.
 *
 * Each channel has a ring for each source node in the RDMA buffer, and a ring for each forwarding GPU in the NVL buffer.
 * Within a buffer each kind of memory is one array by channel, then by source:
 *
 *	RDMA	slots, counts (ints), head (uint64), tail (uint64)
 *	NVL	slots, first token by node (int32), end by node (int32), head (int32), tail (int32)
 *
 * Head and tail count tokens since the beginning; token n is in slot n % capacity. Counts are encoded as -count - 1.
 * They are prefixes: where the tokens of this channel begin and end among those of all channels of the source, for each
 * GPU of the node ([P] begins, [P] ends), then for the node (begin, end).
 *
 * DeepEP's RDMA buffer has slots and counts twice: an array to send from, then one to receive into.
 */
#ifndef CVY_WIRE_HT_H
#define CVY_WIRE_HT_H

#include "wire.h"

#define CVY_WIRE_HT_GPUS 8     /* of a node, at most: a token's mask has a bit for each */
#define CVY_WIRE_HT_NODES 4096 /* at most */
#define CVY_WIRE_HT_CHANNELS 1024
#define CVY_WIRE_HT_TOKENS CVY_WIRE_MAX_TOKENS

/* Where a token comes from, and which GPUs of this node want it: 8 bytes. */
struct cvy_wire_ht_meta {
	int32_t node, mask;
};

/* Arrays of a buffer, [channel][source], from its start. */
struct cvy_wire_ht_buffer {
	size_t slots_at, counts_at, ends_at, head_at, tail_at; /* counts_at: begins, in the NVL buffer */
	size_t bytes;
};

struct cvy_wire_ht {
	/* by the caller */
	struct cvy_errbox *box;
	int format; /* CVY_WIRE_HT_* */
	int nodes, gpus, experts, tokens, hidden, top_k, channels;
	int rdma_capacity, nvl_capacity; /* slots of a ring */
	int rdma_chunk;			 /* slots of one put; 0: not checked */
	int doubled;			 /* DeepEP's RDMA buffer */
	/* by cvy_wire_ht_layout */
	int ranks, local;
	struct cvy_wire_slot slot;
	int counts; /* ints of an RDMA ring: 2 for each GPU, and 2 */
	struct cvy_wire_ht_buffer rdma, nvl;
};

int cvy_wire_ht_layout(struct cvy_wire_ht *ht);

/* ---- Counts ---- */

struct cvy_wire_ht_span {
	int first, end;
};

/* The tokens of channel @channel, of a rank that has @tokens. */
struct cvy_wire_ht_span cvy_wire_ht_channel(const struct cvy_wire_ht *ht, int tokens, int channel);
/* Bit p: GPU p of node @node wants token @t of rank @src. */
int cvy_wire_ht_mask(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int t, int node);
/* Tokens of rank @src in channels up to @channel, inclusive: for one rank, and for a node, each token once. */
int cvy_wire_ht_rank_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int dst,
			    int channel);
int cvy_wire_ht_node_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int node,
			    int channel);
/* Tokens for rank @dst from ranks up to @src, inclusive; and those that its index receives from nodes up to @node. */
int cvy_wire_ht_recv_rank_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
				 int src);
int cvy_wire_ht_recv_node_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
				 int node);

/* ---- Images of buffers ---- */

/* One ring: of the RDMA buffer (source: a node) or of the NVL buffer (source: a GPU of the node). */
struct cvy_wire_ht_ring {
	int channel, source;
};

/* The words that announce a ring's tokens. */
struct cvy_wire_ht_state {
	uint64_t head, tail;
	struct cvy_wire_ht_span gpu[CVY_WIRE_HT_GPUS]; /* of an RDMA ring */
	struct cvy_wire_ht_span node;		       /* of an RDMA ring */
};

/*
 * The ring @ring of the RDMA buffer of rank @dst: @head tokens are consumed, and the sender is as far as there is room.
 */
int cvy_wire_ht_rdma_write(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
			   const struct cvy_wire_ht_ring *ring, uint64_t head, const struct cvy_wire_image *buffer);
/* AGAIN: the counts have not arrived */
int cvy_wire_ht_rdma_state(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			   const struct cvy_wire_ht_ring *ring, struct cvy_wire_ht_state *out);
/* Token number @n of the ring, which is neither consumed nor still to come. */
int cvy_wire_ht_rdma_read(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			  const struct cvy_wire_ht_ring *ring, uint64_t n, struct cvy_wire_ht_meta *meta,
			  struct cvy_wire_token *token);

/*
 * The same for the NVL buffer. A forwarder takes nodes as they come, so the order among nodes is not defined; an image
 * written here has them in ascending order. @by_node [nodes]: begin and end of each node's tokens; NULL: not wanted.
 */
int cvy_wire_ht_nvl_write(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
			  const struct cvy_wire_ht_ring *ring, uint64_t head, const struct cvy_wire_image *buffer);
int cvy_wire_ht_nvl_state(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			  const struct cvy_wire_ht_ring *ring, struct cvy_wire_ht_state *out,
			  struct cvy_wire_ht_span *by_node);
int cvy_wire_ht_nvl_read(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			 const struct cvy_wire_ht_ring *ring, uint64_t n, struct cvy_wire_ht_meta *meta,
			 struct cvy_wire_token *token);

#endif
