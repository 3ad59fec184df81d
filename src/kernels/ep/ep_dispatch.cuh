/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch in a lane. Places follow from the routing alone: a row's number is its source's first row in the bin (an
 * expert's, or the rank's) plus the number of earlier tokens of that source for it. The second the source computes from all
 * its ids, the first the receiver from everyone's counts, so no lane asks another, and every run gives the same bytes.
 */
#ifndef CVY_EP_DISPATCH_CUH
#define CVY_EP_DISPATCH_CUH

#include "ep_smooth.cuh"
#include "trace.cuh"

/* Whole lines: words that are not there are 0. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_push_headers(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_room *room, cvy_ranks to)
{
	int lines = t->a->form.header_lines, u = (int)(threadIdx.x % 32), i = 0;

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
#pragma unroll 1
		for (int first = 0; first < lines; first += 4, i++) {
			int line = first + u / CVY_EP_LINE_PACKETS;
			uint64_t v[2] = { 0, s->tag };

			if (i % CVY_EP_WARPS !=
			    CVY_EP_WARPS - 1 - (int)(threadIdx.x / 32)) /* the first ones push rows */
				continue;
			if (line < lines)
				v[0] = cvy_ep_own_word<ONCE>(t, room, (int)p, first * CVY_EP_LINE_PACKETS + u);
			cvy_ep_send(t, s, (int)p, line, line < lines, v);
		}
	}
}

static __device__ __forceinline__ void cvy_ep_push_rows(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_room *room, cvy_ranks to)
{
	const struct cvy_ep_form *f = &t->a->form;
	int first = s->slice * f->slice_lines, lines = cvy_ep_last_line(t, s) - first, quads = (lines + 3) / 4;
	int q = (int)(threadIdx.x / 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
#pragma unroll 1
		for (uint64_t left = room->mine[p]; left; left &= left - 1) {
			int j = __ffsll((long long)left) - 1;

#pragma unroll 1
			for (; q < quads; q += CVY_EP_WARPS) {
				int word, line = cvy_ep_place(q, &word);
				uint64_t v[2];

				cvy_ep_staged(t->a, room, j, first * CVY_EP_LINE_WORDS + word, v);
				cvy_ep_send(t, s, (int)p, f->header_lines + j * f->slice_lines + line, line < lines, v);
			}
			q -= quads; /* the next row begins with the warp that has least to do */
		}
	}
}

/* Lines of the step that went to @rank, and any before them. */
static __device__ __forceinline__ int cvy_ep_lines_of(const struct cvy_ep_turn *t, const uint64_t *mine, int rank)
{
	const struct cvy_ep_form *f = &t->a->form;
	uint64_t tokens = rank < CVY_GPU_RANKS ? mine[rank] : 0;

	return f->header_lines + (tokens ? 64 - __clzll((long long)tokens) : 0) * f->slice_lines;
}

/* INTS: enum cvy_ep_ints; kernels of their own (ep_ints.cu). */
template <int BINS, int INTS = 0> struct cvy_ep_dispatch {
	enum { ONCE = BINS == CVY_EP_ONE };
	enum { PLACES = 1 }; /* of rows depend on the contributors */
	enum { CLOSES = 0 }; /* nobody completes it before all lack nothing (ep_hop.cuh) */

	typedef struct cvy_ep_ahead ahead;

	/* All threads, at once: what no word of the view is needed for is on its way. */
	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *a, struct cvy_ep_ahead *x)
	{
		int i = (int)threadIdx.x;

		x->id = i < a->num_tokens * a->top_k ? cvy_ep_id_given(a, i) : -1;
		cvy_ep_ahead_of(a, cvy_ep_first_token(a, (int)blockIdx.x), x);
	}

	/* All threads, before the first barrier. */
	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							  uint64_t *dynamic, const struct cvy_ep_ahead *x)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		int ids = a->num_tokens * a->top_k;

#pragma unroll 1
		for (int i = (int)threadIdx.x; room.near && i < ids; i += CVY_EP_THREADS)
			room.near[i] = i == (int)threadIdx.x ? x->id : cvy_ep_id_given(a, i);
		cvy_ep_clear<ONCE>(a, sh, &room, 1);
	}

	/* Up to a barrier, behind which the step is planned and staged. @x: of its first token. */
	static __device__ __forceinline__ void plan(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						    const struct cvy_ep_room *room, int step,
						    const struct cvy_ep_ahead *x)
	{
		CVY_TRACED(PLAN, step);
		if (!step && t->a->places > 1)
			cvy_ep_place_all(t->a, &t->sh->tables, (int32_t *)room->ids,
					 cvy_ranks_and(t->r->lane.mask, t->a->size_mask));
		if (!step)
			cvy_ep_count<ONCE>(t, room);
		if (ONCE && cvy_ep_windows(t->a)) {
			cvy_ep_mark_window(t->a, t->sh->tables.owner, *room, cvy_ep_window(t->a, s));
			__syncthreads();
		}
		cvy_ep_plan<ONCE>(t, s, room);
		if constexpr (INTS == CVY_EP_SMOOTH)
			cvy_ep_stage_plain(t, s, room, *x);
		else if constexpr (INTS == CVY_EP_CAST)
			cvy_ep_stage_ints(t, s, room, *x);
		else
			cvy_ep_stage(t, s, room, *x);
		__syncthreads();
	}

	/* Sends step @step, and nothing else. */
	template <int HOT>
	static __device__ __forceinline__ void send(struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						    const struct cvy_ep_step *s, int step)
	{
		int push = cvy_ep_must_send<HOT>(t, step), far = push && cvy_far(t->r);
		CVY_TRACED(SEND, step);

		if (far)
			push = cvy_ep_far_may_push(t, s, step);
		if (push)
			cvy_ep_overtake(t, s, step);
		if (push)
			cvy_ep_push_headers<ONCE>(t, s, room, t->peers);
		cvy_ep_say_sent(t, step);
		if (push)
			cvy_ep_push_rows(t, s, room, t->peers);
		if (far && push)
			cvy_ep_far_put(t, s, cvy_ep_lines_of(t, room->mine, (int)threadIdx.x));
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *dynamic,
							  const struct cvy_ep_ahead *x)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);
		struct cvy_ep_step s = cvy_ep_step_of(&t, 0);

		plan(&t, &s, &room, 0, x);
		send<1>(&t, &room, &s, 0);
	}

	/* Not all of its steps can be had: it got nothing, and says so. */
	static __device__ void nothing(const struct cvy_ep_turn *t)
	{
		const struct cvy_ep_args *a = t->a;

		cvy_ep_no_rows(a);
#pragma unroll 1
		for (int p = 0; p < a->call.size; p++)
#pragma unroll 1
			for (int i = cvy_ep_first_token(a, t->r->index); i < a->tokens; i += a->form.apart)
				if ((int)threadIdx.x < a->top_k)
					a->route[((size_t)p * (size_t)a->tokens + (size_t)i) * (size_t)a->top_k +
						 threadIdx.x] = -1;
	}

	/* @x: where HOT, of the first token; then all is cleared, too. 1: stopped. */
	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late,
						  struct cvy_ep_ahead *x)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);

		t.sources = cvy_ranks_but(t.sources, late);
		if (cvy_mode<HOT>(r) == CVY_COMPLETE && a->form.steps > 1) {
			nothing(&t);
			return 0;
		}
#pragma unroll 1
		for (int step = 0; step < a->form.steps; step++) {
			struct cvy_ep_step s = cvy_ep_step_of(&t, step);

			if (!HOT || step) {
				if (!HOT)
					cvy_ep_ahead_of(a, cvy_ep_token(&t, &s, 0), x);
				cvy_ep_clear<ONCE>(a, sh, &room, !step);
				__syncthreads();
			}
			plan(&t, &s, &room, step, x);
			send<HOT>(&t, &room, &s, step);
			CVY_TRACED(HEAR, step);
			cvy_ep_headers<ONCE>(&t, &s, &room);
			if (cvy_ep_stopped(&t))
				return 1;
			cvy_ep_arrives_late(&t);
			CVY_TRACED_NEXT(TAKE, step);
			if constexpr (BINS == CVY_EP_CLOSE)
				cvy_ep_begin_bins(a, &room);
			if (!r->index)
				cvy_ep_tell<BINS>(a, &room);
			if (!r->index && !step)
				cvy_ep_range_arrives(a, 1);
			cvy_ep_write_none<ONCE>(&t, &s);
			if constexpr (INTS == CVY_EP_SMOOTH)
				cvy_ep_take_smooth<BINS>(&t, &s, &room);
			else
				cvy_ep_take_rows<BINS, INTS>(&t, &s, &room);
			if (cvy_ep_overtakes(&t))
				cvy_ep_far_look(&t, &s);
			if (cvy_ep_stopped(&t))
				return 1;
			if (step + 1 == a->form.steps)
				break;
			s = cvy_ep_step_of(&t, step + 1);
			if (cvy_ep_windows(a))
				cvy_ep_pass_window<ONCE>(a, room,
							 cvy_ep_window(a, &s) - a->form.per_step * a->form.apart,
							 cvy_ep_window(a, &s));
			if (HOT) /* none is kept over a step: registers */
				cvy_ep_ahead_of(a, cvy_ep_token(&t, &s, 0), x);
		}
		return 0;
	}
};

#endif
