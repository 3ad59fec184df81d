/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over two hops: the paths of an attempt, words of headers, and the word that closes an operation
 * (docs/design/ep.md, Two hops). Kernels of their own (ep_hops.cu).
 *
 * A rank stores in memory of another what is its own and, for a neighbour, what it passes on: *blocks* of a slot, each with
 * a header and rows. How many there are follows from the contributors. So the steps are cut by each attempt, into a copy of
 * the launch's arguments that is in shared memory, and a lane counts the steps of the attempt that it ended with.
 *
 * The step behind the last has no rows: each rank tells all that it lacks nothing. So when somebody has completed an
 * operation, nobody has anything left to do in it, and its rows are where they belong.
 */
#ifndef CVY_EP_HOP_CUH
#define CVY_EP_HOP_CUH

#include "ep_far.cuh"
#include "ep_hops.h"

/* Of an attempt, in shared memory. */
struct cvy_ep_hop {
	struct cvy_ep_args a; /* those of the launch, with steps cut by these paths */
	struct cvy_ep_hosts hosts;
	uint32_t gives, hears;
	uint32_t posts;			/* neighbours that a queue leads to, if this rank passes on */
	uint32_t passes[CVY_GPU_RANKS]; /* what each contributor passes on */
	uint8_t by[CVY_GPU_RANKS]; /* dispatch: who stores rows of each source here; combine: who brings those of each owner */
	int32_t block_lines, at[CVY_GPU_RANKS]; /* dispatch: the first line of each source's block there */
	/* Of a step: */
	uint64_t tokens[CVY_GPU_RANKS]; /* dispatch: of each source, those that come, also if only to be passed on */
	uint64_t gave[CVY_GPU_RANKS]
		     [CVY_GPU_RANKS]; /* combine: of each source that this rank forwards, those that each neighbour has */
};

static_assert(sizeof(struct cvy_ep_shared) + sizeof(struct cvy_ep_hop) + 128 <= CVY_EP_STATIC_HOPS,
	      "and what functions have of their own");

static __device__ __noinline__ struct cvy_ep_hop *cvy_ep_hop_here(void)
{
	__shared__ struct cvy_ep_hop hop;

	return &hop;
}

/* One warp: the steps by these hosts. 0: a slot has no room for so many blocks. */
static __device__ int cvy_ep_hop_cut(const struct cvy_ep_args *a, struct cvy_ep_hop *h)
{
	const int p = (int)(threadIdx.x % 32), combine = a->call.kind == CVY_GPU_COMBINE;
	const int here = cvy_ep_lives(&h->hosts, p) ? cvy_ep_blocks_of(&h->hosts, p) : 1;
	const int blocks = __reduce_max_sync(CVY_EP_ALL, here);
	const int members = __reduce_max_sync(CVY_EP_ALL, __popc(h->hosts.of[p]));
	struct cvy_ep_form form = a->form;
	const int fits = cvy_ep_hops_form(combine, a->tokens, blocks, members, &form);

	if (p == 0) {
		h->a.form = form;
		h->block_lines = form.header_lines + form.per_step * form.slice_lines;
	}
	__syncwarp();
	return fits;
}

/* One warp: who is where, and what follows from it. If slots have no room for two hops, each rank is a host of its own. */
static __device__ void cvy_ep_hop_paths(const struct cvy_ep_args *a, const struct cvy_lane_run *r, struct cvy_ep_hop *h,
					uint32_t living)
{
	const volatile uint8_t *host = a->call.control->roll.host;
	const int p = (int)(threadIdx.x % 32), me = a->call.rank, lives = cvy_has(living, p);
	const uint32_t same = __match_any_sync(CVY_EP_ALL, lives ? host[p] : 256 + p);

	h->hosts.of[p] = same & living;
	if (p == 0)
		h->hosts.living = living;
	__syncwarp();
	if (!cvy_ep_hop_cut(a, h)) {
		h->hosts.of[p] = 1u << p & living;
		__syncwarp();
		cvy_ep_hop_cut(a, h);
	}
	h->passes[p] = lives ? cvy_ep_passes_on(&h->hosts, p) : 0;
	__syncwarp();
	h->by[p] = (uint8_t)p;
	h->at[p] = 0;
	if (lives && p != me && a->call.kind == CVY_GPU_COMBINE) {
		h->by[p] = (uint8_t)(cvy_ep_of_one_host(&h->hosts, me, p) ? p : cvy_ep_forwarder(&h->hosts, me, p));
	} else if (lives && p != me) {
		h->by[p] = (uint8_t)cvy_ep_stored_by(&h->hosts, p, me);
		h->at[p] = h->by[p] == p ? 0 : cvy_ep_block(&h->hosts, h->by[p], p) * h->block_lines;
	}
	h->posts = __ballot_sync(CVY_EP_ALL,
				 cvy_far(r) && h->passes[me] &&
					 cvy_far_queue(&a->call, r->lane.out, cvy_ep_neighbours(&h->hosts, me), p));
	if (p == 0) {
		h->gives = cvy_ep_gives(&h->hosts, me);
		h->hears = cvy_ep_hears(&h->hosts, me);
	}
}

/*
 * All threads: the paths of an attempt by the contributors that it hears, and its steps. The table of hosts stands while a
 * CTA is counted as one that moves. That of a closed gate parks first (cvy_ep_guarded).
 */
static __device__ __noinline__ void cvy_ep_hop_begin(const struct cvy_ep_args *a, struct cvy_lane_run r,
						     struct cvy_ep_hop *h, uint32_t living)
{
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < (int)(sizeof(*a) / 4); i += CVY_EP_THREADS)
		((uint32_t *)&h->a)[i] = ((const uint32_t *)a)[i];
	__syncthreads();
	if (threadIdx.x < 32)
		cvy_ep_hop_paths(a, &r, h, living);
	__syncthreads();
}

static __device__ __forceinline__ uint32_t cvy_ep_hop_near(const struct cvy_ep_hop *h)
{
	return cvy_ep_neighbours(&h->hosts, h->a.call.rank);
}

/* The first line of the block of @source that this rank passes on. */
static __device__ __forceinline__ int cvy_ep_hop_out(const struct cvy_ep_hop *h, int source)
{
	return (1 + __popc(h->passes[h->a.call.rank] & ((1u << source) - 1))) * h->block_lines;
}

/* Packet @w of the header of the block that begins at line @line. */
static __device__ __forceinline__ size_t cvy_ep_hop_word_at(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    int line, int w)
{
	return cvy_ep_line_at(t, s, line + w / CVY_EP_LINE_PACKETS) +
	       (size_t)(w % CVY_EP_LINE_PACKETS) * CVY_GPU_PACKET;
}

static __device__ __forceinline__ void cvy_ep_hop_say(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      int rank, int line, int w, uint64_t v)
{
	cvy_store_packet(cvy_to(&t->a->call, t->r, rank) + cvy_ep_hop_word_at(t, s, line, w), v, s->tag);
}

/*
 * Lines of a step for one rank that end where what it awaits ends: @words of a header, then rows of @tokens. Its answer says
 * that nothing of the put is under way then, and the slot may be written again.
 */
static __device__ __forceinline__ int cvy_ep_hop_extent(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							int words, uint64_t tokens)
{
	const struct cvy_ep_form *f = &t->a->form;

	if (!tokens)
		return (words + CVY_EP_LINE_PACKETS - 1) / CVY_EP_LINE_PACKETS;
	return f->header_lines + (63 - __clzll((long long)tokens)) * f->slice_lines + cvy_ep_last_line(t, s) -
	       s->slice * f->slice_lines;
}

/*
 * A warp waits for the first @words words of the header that begins at line @line of what @rank stores here; each(number,
 * word). Not 0: stopped, and said so.
 */
template <typename EACH>
static __device__ __forceinline__ int cvy_ep_hop_take_words(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    int rank, int line, int words, EACH each)
{
#pragma unroll 1
	for (int first = 0; first < words; first += 32) {
		const int w = first + (int)(threadIdx.x % 32);
		const uint8_t *at = NULL;
		uint64_t v[2];
		int how;

		if (w < words)
			at = cvy_from(&t->a->call, t->r, rank) + cvy_ep_hop_word_at(t, s, line, w);
		how = cvy_wait_packet(at, rank, s->tag, v, &t->r->watch, &t->until);
		if (how) {
			cvy_ep_failed(t, how, rank);
			return how;
		}
		if (w < words)
			each(w, v[0]);
	}
	return 0;
}

/* All threads, before a step is pushed: may it be? Contributors that the operation before did without are told. */
static __device__ __forceinline__ int cvy_ep_hop_may_push(struct cvy_ep_turn *t, const struct cvy_ep_step *s, int step)
{
	if (cvy_far(t->r) && !cvy_ep_far_may_push(t, s, step))
		return 0;
	cvy_ep_overtake(t, s, step);
	return 1;
}

/*
 * All threads, behind a barrier: this lane lacks nothing, and has passed on everything. Ends when all have said so. 1: stopped.
 * Completing an operation that others have completed it does not come here: it had said so, or they would not be done.
 */
static __device__ __forceinline__ int cvy_ep_hop_close(struct cvy_ep_turn *t)
{
	const int steps = t->a->form.steps, p = (int)threadIdx.x;
	const struct cvy_ep_step s = cvy_ep_step_of(t, steps);
	auto heard = [](int, uint64_t) {};

	if (p < CVY_GPU_RANKS && cvy_has(t->peers, p))
		cvy_ep_hop_say(t, &s, p, 0, 0, 0);
	cvy_ep_say_sent(t, steps);
	if (cvy_far(t->r))
		cvy_ep_far_put(t, &s, 1);
#pragma unroll 1
	for (int from = cvy_ep_hears(); from < t->a->call.size; from += CVY_EP_WARPS)
		if (from != t->a->call.rank &&
		    cvy_has(t->sources, from) && /* also of one that this step does not reach */
		    cvy_ep_hop_take_words(t, &s, from, 0, 1, heard))
			break;
	return cvy_ep_stopped(t);
}

/*
 * All threads of a lane of an operation that others have completed. It had closed its part, by what it recorded: what it
 * wrote then stands, and nobody's part is missing.
 */
static __device__ __forceinline__ void cvy_ep_hop_closed(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							 struct cvy_ep_shared *sh)
{
	r->steps = (int)(cvy_load_word(&a->state->lane[r->index].mask) >> 32) + 1;
	if (threadIdx.x == 0)
		sh->left_out = 0;
	__syncthreads();
}

#endif
