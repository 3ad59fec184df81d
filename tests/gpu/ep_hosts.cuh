/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over two hops (preset HT): in groups of several hosts, what comes is what the host engine gives, or
 * for a combine the sum in the documented order; lines that cross to other hosts are counted where they arrive; a rank is
 * lost.
 */
#ifndef EP_HOSTS_CUH
#define EP_HOSTS_CUH

#include "ep_hops.h"
#include "ep_compare.cuh"

static const struct topology {
	const char *name;
	int ranks;
	uint8_t host[RANKS];
} topologies[] = {
	{ "3x1", 3, { 0, 1, 2 } },
	{ "2+1", 3, { 0, 0, 1 } },
	{ "2x2", 4, { 0, 0, 1, 1 } },
	{ "3+1", 4, { 0, 0, 0, 1 } },
	{ "2x2, in turn", 4, { 0, 1, 0, 1 } },
	{ "2x3", 6, { 0, 0, 0, 1, 1, 1 } },
	{ "3x2", 6, { 0, 0, 1, 1, 2, 2 } },
	{ "2x4", 8, { 0, 0, 0, 0, 1, 1, 1, 1 } },
	{ "4x2", 8, { 0, 0, 1, 1, 2, 2, 3, 3 } },
	{ "2 and six alone", 8, { 0, 0, 1, 2, 3, 4, 5, 6 } },
	{ "4 and four alone", 8, { 0, 0, 0, 0, 1, 2, 3, 4 } }, /* no room for headers of 1024 experts */
	{ "3, 3, 1 and 1", 8, { 2, 0, 1, 0, 2, 0, 2, 3 } },
};

/* All are of other hosts from here on, in a view of their own. */
static inline void place_ranks(const struct topology *t)
{
	uint64_t base;

	for (int r = 0; r < n; r++)
		freeze(r);
	base = finished(0);
	epoch++;
	memcpy(hosts, t->host, sizeof(hosts));
	for (int r = 0; r < n; r++)
		thaw(r, mask, base, 0);
}

static inline struct cvy_ep_hosts hosts_now(void)
{
	struct cvy_ep_hosts h = { mask, { 0 } };
	uint8_t host[CVY_GPU_RANKS] = { 0 };

	memcpy(host, hosts, sizeof(hosts));
	for (int r = 0; r < n; r++)
		h.of[r] = cvy_ep_of_host(host, mask, r);
	return h;
}

/* The form of an attempt by all ranks; 0: none, each is a host of its own. */
static inline int form_now(const struct setup *s, int combine, struct cvy_ep_form *f)
{
	const struct cvy_ep_hosts h = hosts_now();
	int blocks = 1, members = 1;

	for (int r = 0; r < n; r++) {
		blocks = cvy_ep_blocks_of(&h, r) > blocks ? cvy_ep_blocks_of(&h, r) : blocks;
		members = cvy_ep_members(h.of[r]) > members ? cvy_ep_members(h.of[r]) : members;
	}
	*f = combine ? s->combine : s->dispatch;
	return cvy_ep_hops_form(combine, s->shape.tokens, blocks, members, f);
}

/* Lines of rows that the last operation, of one step, has put into memory of ranks of other hosts. */
static inline size_t lines_across(const struct setup *s)
{
	static uint64_t slot[CVY_GPU_SLOT / 8];
	size_t lines = 0;

	for (int to = 0; to < n; to++) {
		struct cvy_gpu_counters c;

		OK(ranks[to].gpu, ops->counters(ranks[to].gpu, &c, 1));
		for (int from = 0; from < n; from++)
			for (int i = 0; i < 2 * s->lanes && hosts[from] != hosts[to]; i++) {
				const uint32_t step =
					c.lane[i / 2].count - 1; /* behind it comes the word that closes */
				const uint64_t tag = CVY_GPU_TAG(epoch, step);

				OK(ranks[to].gpu, ops->read(ranks[to].gpu, from, 0, cvy_gpu_slot_at(i % 2, i / 2, step),
							    slot, sizeof(slot)));
				for (size_t at = 0; at < CVY_GPU_SLOT / 8; at += CVY_EP_LINE_BYTES / 8)
					lines +=
						slot[at + 15] == tag && slot[at + 1] != tag; /* words have a tag each */
			}
	}
	return lines;
}

/* Tokens, each for every other host that has an expert of it. */
static inline size_t tokens_across(const struct setup *s)
{
	size_t tokens = 0;

	for (int r = 0; r < n; r++) {
		const int32_t *ids = (int32_t *)host_at(r, IDS);

		for (int t = 0; t < side[r].num_tokens; t++) {
			uint32_t to = 0;

			for (int k = 0; k < s->shape.top_k; k++)
				to |= 1u << hosts[s->owner[ids[t * s->shape.top_k + k]]];
			tokens += (size_t)__builtin_popcount(to & ~(1u << hosts[r]));
		}
	}
	return tokens;
}

static inline void expect_across(const struct setup *s, const char *what, int combine)
{
	const size_t want = tokens_across(s) * (size_t)cvy_ep_div(s->shape.hidden / 4, CVY_EP_LINE_WORDS);
	const size_t got = lines_across(s);

	checks++;
	if (got != want)
		complain(s, what, 0, combine ? "lines of a combine that cross" : "lines of a dispatch that cross", 0,
			 (unsigned)got, (unsigned)want);
}

/* Rows cross to a host once, there and back. */
static inline void count_crossing(const struct topology *t)
{
	struct setup s = {};

	seed = 7;
	s.shape.hidden = 136;
	s.shape.tokens = s.lanes = 8;
	s.shape.top_k = 6;
	s.shape.experts = 3 * n;
	s.shape.once = s.shape.hops = 1;
	for (int e = 0; e < s.shape.experts; e++)
		s.owner[e] = e % n;
	prepare(&s);
	go(&s, CVY_GPU_DISPATCH, mask);
	synchronise();
	expect_across(&s, t->name, 0);
	compute(&s, mask);
	go(&s, CVY_GPU_COMBINE, mask);
	synchronise();
	expect_across(&s, t->name, 1);
}

#endif
