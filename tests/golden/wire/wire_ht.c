/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the high-throughput kernels' buffers, and the counts that they exchange. */
#include "wire_ht.h"

static size_t product(int a, int b, size_t c, size_t d)
{
	return cvy_wire_times(cvy_wire_times((size_t)a, (size_t)b), cvy_wire_times(c, d));
}

static size_t next(size_t *at, size_t bytes)
{
	size_t here = *at;

	*at = cvy_wire_plus(here, bytes);
	return here;
}

/* An array to send from stands before the one to receive into, of which the book tells. */
static size_t next_received(size_t *at, size_t bytes, int doubled)
{
	if (doubled)
		next(at, bytes);
	return next(at, bytes);
}

static void places(struct cvy_wire_ht *ht)
{
	int c = ht->channels, n = ht->nodes, p = ht->gpus;
	struct cvy_wire_ht_buffer r = { 0 }, v = { 0 };

	r.slots_at = next_received(&r.bytes, product(c, n, (size_t)ht->rdma_capacity, ht->slot.bytes), ht->doubled);
	r.counts_at = next_received(&r.bytes, product(c, n, (size_t)ht->counts, 4), ht->doubled);
	r.head_at = next(&r.bytes, product(c, n, 1, 8));
	r.tail_at = next(&r.bytes, product(c, n, 1, 8));
	v.slots_at = next(&v.bytes, product(c, p, (size_t)ht->nvl_capacity, ht->slot.bytes));
	v.counts_at = next(&v.bytes, product(c, p, (size_t)n, 4));
	v.ends_at = next(&v.bytes, product(c, p, (size_t)n, 4));
	v.head_at = next(&v.bytes, product(c, p, 1, 4));
	v.tail_at = next(&v.bytes, product(c, p, 1, 4));
	ht->rdma = r;
	ht->nvl = v;
}

static int check(const struct cvy_wire_ht *ht)
{
	int err = cvy_wire_between(ht->box, "format", ht->format, CVY_WIRE_HT_FP8, CVY_WIRE_HT_COMBINE);

	err = err ? err : cvy_wire_between(ht->box, "nodes", ht->nodes, 1, CVY_WIRE_HT_NODES);
	err = err ? err : cvy_wire_between(ht->box, "GPUs of a node", ht->gpus, 1, CVY_WIRE_HT_GPUS);
	err = err ? err : cvy_wire_between(ht->box, "tokens", ht->tokens, 1, CVY_WIRE_HT_TOKENS);
	err = err ? err : cvy_wire_between(ht->box, "channels", ht->channels, 1, CVY_WIRE_HT_CHANNELS);
	err = err ? err : cvy_wire_between(ht->box, "slots of an RDMA ring", ht->rdma_capacity, 1, INT32_MAX);
	err = err ? err : cvy_wire_between(ht->box, "slots of an NVL ring", ht->nvl_capacity, 1, INT32_MAX);
	err = err ? err : cvy_wire_between(ht->box, "slots of a put", ht->rdma_chunk, 0, ht->rdma_capacity);
	if (!err && ht->rdma_chunk && ht->rdma_capacity % ht->rdma_chunk)
		err = cvy_fail(
			ht->box, COVEY_ERR_INVAL, -1,
			0, "an RDMA ring of %d slots is filled in puts of %d: a put must divide the ring, or it would wrap",
			ht->rdma_capacity, ht->rdma_chunk);
	return err;
}

int cvy_wire_ht_layout(struct cvy_wire_ht *ht)
{
	int err = check(ht);

	if (err)
		return err;
	ht->ranks = ht->nodes * ht->gpus;
	ht->counts = 2 * ht->gpus + 2;
	err = cvy_wire_local_experts(ht->box, ht->experts, ht->ranks, &ht->local);
	err = err ? err : cvy_wire_slot_of(ht->box, ht->format, ht->hidden, ht->top_k, &ht->slot);
	if (err)
		return err;
	places(ht);
	if (ht->rdma.bytes == CVY_WIRE_TOO_LARGE || ht->nvl.bytes == CVY_WIRE_TOO_LARGE)
		return cvy_fail(ht->box, COVEY_ERR_INVAL, -1, 0,
				"rings of %d and %d slots of %zu bytes for %d channels and %d nodes are too large: use "
				"smaller rings",
				ht->rdma_capacity, ht->nvl_capacity, ht->slot.bytes, ht->channels, ht->nodes);
	return 0;
}

struct cvy_wire_ht_span cvy_wire_ht_channel(const struct cvy_wire_ht *ht, int tokens, int channel)
{
	int each = (tokens + ht->channels - 1) / ht->channels;
	long long first = (long long)each * channel, end = first + each;

	return (struct cvy_wire_ht_span){ first < tokens ? (int)first : tokens, end < tokens ? (int)end : tokens };
}

int cvy_wire_ht_mask(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int t, int node)
{
	const int32_t *ids = routing->source[src].experts + (size_t)t * (size_t)routing->top_k;
	int mask = 0;

	for (int k = 0; k < routing->top_k; k++) {
		int owner = ids[k] < 0 ? -1 : ids[k] / ht->local;

		if (owner >= 0 && owner / ht->gpus == node)
			mask |= 1 << owner % ht->gpus;
	}
	return mask;
}

/* Tokens of channels up to @channel that any GPU in @of wants. */
static int prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int node, int of,
		  int channel)
{
	int end = cvy_wire_ht_channel(ht, routing->source[src].tokens, channel).end, n = 0;

	for (int t = 0; t < end; t++)
		n += (cvy_wire_ht_mask(ht, routing, src, t, node) & of) != 0;
	return n;
}

int cvy_wire_ht_rank_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int dst,
			    int channel)
{
	return prefix(ht, routing, src, dst / ht->gpus, 1 << dst % ht->gpus, channel);
}

int cvy_wire_ht_node_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src, int node,
			    int channel)
{
	return prefix(ht, routing, src, node, ~0, channel);
}

int cvy_wire_ht_recv_rank_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst, int src)
{
	int n = 0;

	for (int s = 0; s <= src; s++)
		n += cvy_wire_ht_rank_prefix(ht, routing, s, dst, ht->channels - 1);
	return n;
}

int cvy_wire_ht_recv_node_prefix(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
				 int node)
{
	int n = 0;

	for (int m = 0; m <= node; m++)
		n += cvy_wire_ht_node_prefix(ht, routing, m * ht->gpus + dst % ht->gpus, dst / ht->gpus,
					     ht->channels - 1);
	return n;
}
