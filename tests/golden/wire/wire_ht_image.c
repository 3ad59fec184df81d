/* SPDX-License-Identifier: Apache-2.0 */
/* Images of the high-throughput kernels' rings. */
#include "wire_ht.h"

/* A ring that is written: tokens come one after the other, and only those that there is room for. */
struct writer {
	const struct cvy_wire_ht *ht;
	const struct cvy_wire_routing *routing;
	uint8_t *slots;
	uint64_t capacity, head, count;
};

static size_t index_of(const struct cvy_wire_ht_ring *ring, int sources)
{
	return (size_t)ring->channel * (size_t)sources + (size_t)ring->source;
}

static int check_ring(const struct cvy_wire_ht *ht, const struct cvy_wire_ht_ring *ring, int sources,
		      const struct cvy_wire_image *buffer, size_t bytes)
{
	int err = cvy_wire_fits(ht->box, "a buffer", buffer, bytes);

	err = err ? err : cvy_wire_between(ht->box, "the channel", ring->channel, 0, ht->channels - 1);
	return err ? err : cvy_wire_between(ht->box, "the source of a ring", ring->source, 0, sources - 1);
}

static int check_routing(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst)
{
	const struct cvy_wire_routing like = {
		.ranks = ht->ranks, .experts = ht->experts, .top_k = ht->top_k, .tokens = ht->tokens
	};
	int err = cvy_wire_between(ht->box, "the rank", dst, 0, ht->ranks - 1);

	return err ? err : cvy_wire_routing_check(ht->box, routing, &like);
}

static void add(struct writer *w, int src, int t, int node)
{
	struct cvy_wire_ht_meta meta = { src / w->ht->gpus, cvy_wire_ht_mask(w->ht, w->routing, src, t, node) };
	uint8_t *to = w->slots + w->count % w->capacity * w->ht->slot.bytes;

	if (w->count - w->head < w->capacity || w->count < w->head) {
		cvy_wire_token_write(&w->ht->slot, &w->routing->source[src], t, to);
		cvy_wire_part_write(&w->ht->slot, to, CVY_WIRE_META, &meta);
		w->count++;
	}
}

/* Tokens of a channel of @src that any GPU in @of wants. */
static void add_channel(struct writer *w, int src, int channel, int node, int of)
{
	struct cvy_wire_ht_span span = cvy_wire_ht_channel(w->ht, w->routing->source[src].tokens, channel);

	for (int t = span.first; t < span.end; t++)
		if (cvy_wire_ht_mask(w->ht, w->routing, src, t, node) & of)
			add(w, src, t, node);
}

static int check_head(const struct cvy_wire_ht *ht, uint64_t head, int tokens)
{
	if (head <= (uint64_t)tokens)
		return 0;
	return cvy_fail(ht->box, COVEY_ERR_INVAL, -1, 0, "the head is %llu: the ring has only %d tokens",
			(unsigned long long)head, tokens);
}

/* Tokens of the channel for a node, and for one GPU. */
static struct cvy_wire_ht_span node_span(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src,
					 int node, int channel)
{
	return (struct cvy_wire_ht_span){ channel ? cvy_wire_ht_node_prefix(ht, routing, src, node, channel - 1) : 0,
					  cvy_wire_ht_node_prefix(ht, routing, src, node, channel) };
}

static struct cvy_wire_ht_span rank_span(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int src,
					 int dst, int channel)
{
	return (struct cvy_wire_ht_span){ channel ? cvy_wire_ht_rank_prefix(ht, routing, src, dst, channel - 1) : 0,
					  cvy_wire_ht_rank_prefix(ht, routing, src, dst, channel) };
}

static void put_span(uint8_t *first, uint8_t *end, struct cvy_wire_ht_span span)
{
	cvy_wire_put32(first, (uint32_t)cvy_wire_count_encode(span.first));
	cvy_wire_put32(end, (uint32_t)cvy_wire_count_encode(span.end));
}

int cvy_wire_ht_rdma_write(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
			   const struct cvy_wire_ht_ring *ring, uint64_t head, const struct cvy_wire_image *buffer)
{
	int err = check_ring(ht, ring, ht->nodes, buffer, ht->rdma.bytes), node = dst / ht->gpus, c = ring->channel;
	size_t index = index_of(ring, ht->nodes);
	struct writer w = { ht, routing, NULL, (uint64_t)ht->rdma_capacity, head, 0 };
	int src = ring->source * ht->gpus + dst % ht->gpus;
	struct cvy_wire_ht_span span;
	uint8_t *counts;

	err = err ? err : check_routing(ht, routing, dst);
	if (err)
		return err;
	span = node_span(ht, routing, src, node, c);
	err = check_head(ht, head, span.end - span.first);
	if (err)
		return err;
	w.slots = buffer->at + ht->rdma.slots_at + index * (size_t)ht->rdma_capacity * ht->slot.bytes;
	add_channel(&w, src, c, node, ~0);
	counts = buffer->at + ht->rdma.counts_at + index * 4 * (size_t)ht->counts;
	for (int p = 0; p < ht->gpus; p++)
		put_span(counts + 4 * p, counts + 4 * (ht->gpus + p),
			 rank_span(ht, routing, src, node * ht->gpus + p, c));
	put_span(counts + 8 * ht->gpus, counts + 8 * ht->gpus + 4, span);
	cvy_wire_put64(buffer->at + ht->rdma.head_at + 8 * index, head);
	cvy_wire_put64(buffer->at + ht->rdma.tail_at + 8 * index, w.count);
	return 0;
}

/* AGAIN if either has not arrived. */
static int get_span(const struct cvy_wire_ht *ht, const uint8_t *first, const uint8_t *end,
		    struct cvy_wire_ht_span *out)
{
	int32_t a = (int32_t)cvy_wire_get32(first), b = (int32_t)cvy_wire_get32(end);

	if (!a || !b)
		return COVEY_ERR_AGAIN;
	if (a > 0 || b > 0 || cvy_wire_count_decode(a) > cvy_wire_count_decode(b) ||
	    cvy_wire_count_decode(b) > ht->tokens)
		return cvy_fail(ht->box, COVEY_ERR_INVAL, -1, 0,
				"the words of a span are %d and %d: they must be -first - 1 and -end - 1, with 0 <= "
				"first <= end <= %d",
				(int)a, (int)b, ht->tokens);
	*out = (struct cvy_wire_ht_span){ cvy_wire_count_decode(a), cvy_wire_count_decode(b) };
	return 0;
}

static int check_state(const struct cvy_wire_ht *ht, const struct cvy_wire_ht_state *s, int capacity, int most)
{
	if (s->head <= s->tail && s->tail - s->head <= (uint64_t)capacity && s->tail <= (uint64_t)most)
		return 0;
	return cvy_fail(ht->box, COVEY_ERR_INVAL, -1, 0,
			"head %llu and tail %llu: they must be at most %d apart, and the tail at most %d",
			(unsigned long long)s->head, (unsigned long long)s->tail, capacity, most);
}

int cvy_wire_ht_rdma_state(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			   const struct cvy_wire_ht_ring *ring, struct cvy_wire_ht_state *out)
{
	int err = check_ring(ht, ring, ht->nodes, buffer, ht->rdma.bytes);
	struct cvy_wire_ht_state s = { 0 };
	const uint8_t *counts;
	size_t index;

	if (err)
		return err;
	index = index_of(ring, ht->nodes);
	counts = buffer->at + ht->rdma.counts_at + index * 4 * (size_t)ht->counts;
	for (int p = 0; !err && p < ht->gpus; p++)
		err = get_span(ht, counts + 4 * p, counts + 4 * (ht->gpus + p), &s.gpu[p]);
	err = err ? err : get_span(ht, counts + 8 * ht->gpus, counts + 8 * ht->gpus + 4, &s.node);
	s.head = cvy_wire_get64(buffer->at + ht->rdma.head_at + 8 * index);
	s.tail = cvy_wire_get64(buffer->at + ht->rdma.tail_at + 8 * index);
	err = err ? err : check_state(ht, &s, ht->rdma_capacity, s.node.end - s.node.first);
	if (!err)
		*out = s;
	return err;
}

static int check_number(const struct cvy_wire_ht *ht, const struct cvy_wire_ht_state *s, uint64_t n)
{
	if (n >= s->head && n < s->tail)
		return 0;
	return cvy_fail(ht->box, COVEY_ERR_INVAL, -1, 0,
			"token %llu of a ring: it must be from head %llu to before tail %llu", (unsigned long long)n,
			(unsigned long long)s->head, (unsigned long long)s->tail);
}

/* @nodes: from which the token may be */
static int read_slot(const struct cvy_wire_ht *ht, const uint8_t *from, struct cvy_wire_ht_span nodes,
		     struct cvy_wire_ht_meta *meta, struct cvy_wire_token *token)
{
	struct cvy_wire_ht_meta m;
	int err;

	cvy_wire_part_read(&ht->slot, from, CVY_WIRE_META, &m);
	err = cvy_wire_between(ht->box, "the node in a slot", m.node, nodes.first, nodes.end - 1);
	err = err ? err : cvy_wire_between(ht->box, "the mask in a slot", m.mask, 1, (1 << ht->gpus) - 1);
	if (err)
		return err;
	*meta = m;
	token->token = token->choice = -1; /* the place says it: tokens come in order */
	cvy_wire_token_read(&ht->slot, from, token);
	return 0;
}

int cvy_wire_ht_rdma_read(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			  const struct cvy_wire_ht_ring *ring, uint64_t n, struct cvy_wire_ht_meta *meta,
			  struct cvy_wire_token *token)
{
	const struct cvy_wire_ht_span node = { ring->source, ring->source + 1 };
	struct cvy_wire_ht_state s;
	int err = cvy_wire_ht_rdma_state(ht, buffer, ring, &s);
	size_t slot;

	err = err ? err : check_number(ht, &s, n);
	if (err)
		return err;
	slot = index_of(ring, ht->nodes) * (size_t)ht->rdma_capacity + n % (uint64_t)ht->rdma_capacity;
	return read_slot(ht, buffer->at + ht->rdma.slots_at + slot * ht->slot.bytes, node, meta, token);
}

/* The two words of node @n in the NVL ring @index. */
static size_t nvl_word(const struct cvy_wire_ht *ht, size_t index, int n)
{
	return 4 * (index * (size_t)ht->nodes + (size_t)n);
}

int cvy_wire_ht_nvl_write(const struct cvy_wire_ht *ht, const struct cvy_wire_routing *routing, int dst,
			  const struct cvy_wire_ht_ring *ring, uint64_t head, const struct cvy_wire_image *buffer)
{
	int err = check_ring(ht, ring, ht->gpus, buffer, ht->nvl.bytes), c = ring->channel, all = 0;
	struct writer w = { ht, routing, NULL, (uint64_t)ht->nvl_capacity, head, 0 };
	size_t index = index_of(ring, ht->gpus);
	struct cvy_wire_ht_span span;

	err = err ? err : check_routing(ht, routing, dst);
	for (int n = 0; !err && n < ht->nodes; n++) {
		span = rank_span(ht, routing, n * ht->gpus + ring->source, dst, c);
		all += span.end - span.first;
	}
	err = err ? err : check_head(ht, head, all);
	if (err)
		return err;
	w.slots = buffer->at + ht->nvl.slots_at + index * (size_t)ht->nvl_capacity * ht->slot.bytes;
	for (int n = 0; n < ht->nodes; n++) {
		int src = n * ht->gpus + ring->source;
		size_t at = nvl_word(ht, index, n);

		add_channel(&w, src, c, dst / ht->gpus, 1 << dst % ht->gpus);
		put_span(buffer->at + ht->nvl.counts_at + at, buffer->at + ht->nvl.ends_at + at,
			 rank_span(ht, routing, src, dst, c));
	}
	cvy_wire_put32(buffer->at + ht->nvl.head_at + 4 * index, (uint32_t)head);
	cvy_wire_put32(buffer->at + ht->nvl.tail_at + 4 * index, (uint32_t)w.count);
	return 0;
}

static int nvl_span(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer, size_t index, int n,
		    struct cvy_wire_ht_span *out)
{
	size_t at = nvl_word(ht, index, n);

	return get_span(ht, buffer->at + ht->nvl.counts_at + at, buffer->at + ht->nvl.ends_at + at, out);
}

int cvy_wire_ht_nvl_state(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			  const struct cvy_wire_ht_ring *ring, struct cvy_wire_ht_state *out,
			  struct cvy_wire_ht_span *by_node)
{
	int err = check_ring(ht, ring, ht->gpus, buffer, ht->nvl.bytes);
	struct cvy_wire_ht_span span = { 0, 0 };
	struct cvy_wire_ht_state s = { 0 };
	size_t index = index_of(ring, ht->gpus);
	long long all = 0;

	for (int n = 0; !err && n < ht->nodes; n++) {
		err = nvl_span(ht, buffer, index, n, &span);
		all += span.end - span.first;
	}
	if (err)
		return err;
	s.head = cvy_wire_get32(buffer->at + ht->nvl.head_at + 4 * index);
	s.tail = cvy_wire_get32(buffer->at + ht->nvl.tail_at + 4 * index);
	err = check_state(ht, &s, ht->nvl_capacity, all < INT32_MAX ? (int)all : INT32_MAX);
	if (err)
		return err;
	for (int n = 0; by_node && n < ht->nodes; n++)
		nvl_span(ht, buffer, index, n, &by_node[n]);
	*out = s;
	return 0;
}

int cvy_wire_ht_nvl_read(const struct cvy_wire_ht *ht, const struct cvy_wire_image *buffer,
			 const struct cvy_wire_ht_ring *ring, uint64_t n, struct cvy_wire_ht_meta *meta,
			 struct cvy_wire_token *token)
{
	const struct cvy_wire_ht_span all = { 0, ht->nodes };
	struct cvy_wire_ht_state s;
	int err = cvy_wire_ht_nvl_state(ht, buffer, ring, &s, NULL);
	size_t slot;

	err = err ? err : check_number(ht, &s, n);
	if (err)
		return err;
	slot = index_of(ring, ht->gpus) * (size_t)ht->nvl_capacity + n % (uint64_t)ht->nvl_capacity;
	return read_slot(ht, buffer->at + ht->nvl.slots_at + slot * ht->slot.bytes, all, meta, token);
}
