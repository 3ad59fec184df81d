/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch in bulk steps. The last warp puts the header and the rows of a step, and tells when they are there; meanwhile the
 * others plan and stage the next step in a room of its own. Then all hear, the next step leaves, and what was heard is
 * taken. Steps themselves follow each other as with lines: a step is told when the one before has been taken.
 */
#ifndef CVY_EP_BULK_DISPATCH_CUH
#define CVY_EP_BULK_DISPATCH_CUH

#include "ep_bulk_stage.cuh"
#include "ep_mark.cuh"
#include "trace.cuh"

#define CVY_EP_TAKEN 8 /* units of a row that a warp takes at a time */

/* The room of a step, whose number is odd or not. */
static __device__ __forceinline__ struct cvy_ep_room cvy_ep_room_turn(const struct cvy_ep_turn *t,
								      const struct cvy_ep_room *room, int odd)
{
	const struct cvy_ep_args *a = t->a;
	struct cvy_ep_room at = *room;

	if (odd) {
		at.stage += (size_t)a->form.per_step * (size_t)a->form.row_words;
		at.mine = t->sh->mine[1];
		at.own = at.entry + (size_t)a->call.size * cvy_ep_entries(a);
	}
	return at;
}

/*
 * A header without tags, behind its first line, which has but the word that says which tokens come: entries, and in the first step
 * rows per expert.
 */
static __device__ __forceinline__ size_t cvy_ep_entries_at(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	return cvy_ep_byte_at(t, s, CVY_EP_LINE_BYTES);
}

static __device__ __forceinline__ size_t cvy_ep_counts_at(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	return cvy_ep_entries_at(t, s) + cvy_ep_whole_lines((uint32_t)(cvy_ep_entries(t->a) * sizeof(uint32_t)));
}

/* The warp that puts: headers and rows of a step leave for the ranks @to. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_put_rows(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       const struct cvy_ep_room *room, cvy_ranks to, int first)
{
	const size_t words = (size_t)t->a->form.row_words;
	const int lane = (int)(threadIdx.x % 32),
		  counts = (int)cvy_ep_whole_lines((uint32_t)t->a->form.count_words * 8) / 8;
	int n = 0;

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
		const uint64_t v[2] = { lane ? 0 : room->mine[p] | CVY_EP_RAW, s->tag };
		uint8_t *at = cvy_to(&t->a->call, t->r, (int)p);

		cvy_ep_send(t, s, (int)p, 0, lane < CVY_EP_LINE_PACKETS, v);
		if (n++ % 32 == lane)
			cvy_bulk_store(at + cvy_ep_entries_at(t, s), room->own,
				       cvy_ep_whole_lines((uint32_t)(cvy_ep_entries(t->a) * sizeof(uint32_t))));
#pragma unroll 1
		for (int w = 1 + lane * 2; first && w <= counts; w += 64)
			cvy_store_packet(at + cvy_ep_counts_at(t, s) + (size_t)(w - 1) * 8,
					 w > t->a->form.count_words ? 0 : cvy_ep_own_word<ONCE>(t, room, (int)p, w),
					 w < t->a->form.count_words ? cvy_ep_own_word<ONCE>(t, room, (int)p, w + 1)
								    : 0);
#pragma unroll 1
		for (uint64_t left = room->mine[p]; left; left &= left - 1) {
			int j = __ffsll((long long)left) - 1;

			CVY_HOLDS(j < t->a->form.per_step);
			if (n++ % 32 == lane)
				cvy_ep_bulk_put(t, s, (int)p, j, 0, room->stage + (size_t)j * words,
						cvy_ep_whole_lines((uint32_t)words * 8));
		}
	}
	cvy_bulk_commit();
}

/* Everyone's header, and the signal that is behind rows without tags. A warp has a rank. */
template <int ONCE>
static __device__ __forceinline__ void cvy_ep_bulk_headers(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_room *room, int first)
{
	const int lane = (int)(threadIdx.x % 32), counts = t->a->form.count_words;

#pragma unroll 1
	for (int p = cvy_ep_hears(); p < t->a->call.size; p += CVY_EP_WARPS) {
		auto take = [&](int w, uint64_t v) { cvy_ep_heard<ONCE>(t, room, p, w, v); };
		uint64_t v[2];
		int how = -1, raw = 0;

		if (p != t->a->call.rank && cvy_has(t->sources, p)) {
			CVY_TRACED(WAIT, p);
			how = cvy_ep_take_signal(t, s, p, v, &raw);
			if (!how && !raw)
				how = cvy_ep_take_header(t, s, p, take);
			if (!how && raw && !lane)
				t->sh->theirs[p] = v[0];
#pragma unroll 1
			for (int w = 1 + lane; !how && raw && first && w <= counts; w += 32)
				take(w, cvy_load_word((const uint64_t *)(cvy_from(&t->a->call, t->r, p) +
									 cvy_ep_counts_at(t, s)) +
						      w - 1));
			if (how != 1)
				cvy_ep_waited(t, p);
		}
		if (how)
			cvy_ep_not_heard<ONCE>(t, room, p);
	}
}

/* As cvy_ep_rows_of(), of a bulk step: entries of rows without tags are read where they stand. All threads of a warp. */
template <int BINS>
static __device__ __forceinline__ struct cvy_ep_named cvy_ep_rows_named(const struct cvy_ep_turn *t,
									const struct cvy_ep_step *s,
									const struct cvy_ep_room *room, int rank, int j)
{
	const int k = (int)(threadIdx.x % 32), each = t->a->form.entry_words;
	uint32_t entry = CVY_EP_ALL, weight = 0;

	if (!cvy_has(t->sh->raw, rank))
		return cvy_ep_rows_of<BINS>(t, room, rank, j);
	if (k < t->a->top_k) {
		const uint32_t *said =
			(const uint32_t *)(cvy_from(&t->a->call, t->r, rank) + cvy_ep_entries_at(t, s)) + j * 2 * each;

		entry = cvy_load_half(said + k);
		weight = cvy_load_half(said + each + k);
	}
	return cvy_ep_rows_by<BINS>(t, room, rank, j, entry, __uint_as_float(weight));
}

/* A warp: the scales of token @j, which is here: two a thread. */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_take_scales(const struct cvy_ep_args *a, const struct cvy_ep_room *room,
							  const struct cvy_ep_row *row, int j,
							  const struct cvy_ep_named *named, uint32_t rows)
{
	const int lane = (int)(threadIdx.x % 32), groups = (a->hidden + CVY_EP_GROUP - 1) / CVY_EP_GROUP;
	const int word = a->hidden / 8 + lane / 2 * 2, in = word < a->form.row_words;
	const size_t apart = BINS != CVY_EP_EACH ? 1 : (size_t)a->call.size * (size_t)a->tokens;
	uint64_t v[2] = { 0, 0 };

	if (in && !row->step)
		cvy_ep_staged(a, room, j, word, v);
	else if (in)
		cvy_ep_arrived(row, word, v);
	v[0] = v[lane % 2];
#pragma unroll 1
	for (; rows; rows &= rows - 1) {
		float *to = a->scales + __shfl_sync(CVY_EP_ALL, named->scale, __ffs((int)rows) - 1);

		if (lane * 2 < groups)
			to[(size_t)(lane * 2) * apart] = __uint_as_float((uint32_t)v[0]);
		if (lane * 2 + 1 < groups)
			to[(size_t)(lane * 2 + 1) * apart] = __uint_as_float((uint32_t)(v[0] >> 32));
	}
}

/*
 * A warp: units @u to @last of token @j of @rank, which is here, into each of its rows; with the first its route, and behind the last
 * its scales.
 */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_take_whole(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							 const struct cvy_ep_room *room, int rank, int j, int u,
							 int last)
{
	const struct cvy_ep_args *a = t->a;
	const int words = a->hidden / (a->code ? 8 : 4), units = (words + CVY_EP_UNIT - 1) / CVY_EP_UNIT;
	struct cvy_ep_named named = { -1, -1, 0, 0 };
	struct cvy_ep_row row = { NULL, 0, 0 };
	int at = u * CVY_EP_UNIT + (int)(threadIdx.x % 32) * 2, begins = 1;
	const int here = last - u;
	uint32_t rows = 0;

	if (rank != a->call.rank)
		row = cvy_ep_row_of(t, s, rank, j);
#pragma unroll 1
	for (; u < last; u += CVY_EP_TAKEN, at += CVY_EP_TAKEN * CVY_EP_UNIT) {
		uint64_t v[CVY_EP_TAKEN][2];

#pragma unroll
		for (int i = 0; i < CVY_EP_TAKEN; i++) {
			int word = at + i * CVY_EP_UNIT;

			v[i][0] = v[i][1] = 0;
			if (u + i < last && word < words && row.step)
				cvy_ep_arrived(&row, word, v[i]);
			else if (u + i < last && word < words)
				cvy_ep_staged(a, room, j, word, v[i]);
		}
		if (begins) { /* where it goes is read while it is on its way */
			named = cvy_ep_rows_named<BINS>(t, s, room, rank, j);
			rows = __ballot_sync(CVY_EP_ALL, named.row >= 0);
			if (!u)
				cvy_ep_write_route<BINS == CVY_EP_ONE>(t, rank, cvy_ep_token(t, s, j), &named);
			if (a->code && last >= units)
				cvy_ep_take_scales<BINS>(a, room, &row, j, &named, rows);
			begins = 0;
		}
#pragma unroll 1
		for (uint32_t left = rows; left; left &= left - 1) {
			int to = __shfl_sync(CVY_EP_ALL, named.row, __ffs((int)left) - 1);
			uint8_t *out = a->packed + (size_t)to * (size_t)words * 8 + (size_t)at * 8;

#pragma unroll
			for (int i = 0; i < CVY_EP_TAKEN; i++)
				if (u + i < last && at + i * CVY_EP_UNIT < words)
					cvy_ep_put_two(out + (size_t)(i * CVY_EP_UNIT) * 8, v[i]);
		}
	}
	cvy_ep_row_arrives(a, named.row, here, units);
}

/*
 * All threads: rows of a step that are here, of others. Each of the first @warps has as many units of all, in one piece, the
 * last of them the first.
 */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_take_all(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       const struct cvy_ep_room *room, int warps)
{
	const struct cvy_ep_args *a = t->a;
	const int words = a->hidden / (a->code ? 8 : 4), units = (words + CVY_EP_UNIT - 1) / CVY_EP_UNIT;
	int rows = 0, share, at, last;

#pragma unroll 1
	for (int p = 0; p < a->call.size; p++)
		rows += p == a->call.rank ? 0 : __popcll(t->sh->theirs[p]);
	share = (rows * units + warps - 1) / warps;
	at = (warps - 1 - (int)(threadIdx.x / 32)) * share;
	last = at < 0 ? 0 : at + share;
#pragma unroll 1
	for (int p = 0; p < a->call.size && last > 0; p++) {
#pragma unroll 1
		for (uint64_t left = p == a->call.rank ? 0 : t->sh->theirs[p]; left && last > 0; left &= left - 1) {
			int end = last < units ? last : units;

			if (at < end)
				cvy_ep_take_whole<BINS>(t, s, room, p, __ffsll((long long)left) - 1, at, end);
			at = at > units ? at - units : 0;
			last -= units;
		}
	}
}

/* A row of its own, where outputs are no whole 16 bytes. */
template <int BINS>
static __device__ __noinline__ void cvy_ep_take_own_apart(const struct cvy_ep_apart *x, struct cvy_ep_step s,
							  struct cvy_ep_room room, int j)
{
	const int words = x->t.a->hidden / (x->t.a->code ? 8 : 4);

	cvy_ep_take_whole<BINS>(&x->t, &s, &room, x->t.a->call.rank, j, 0, (words + CVY_EP_UNIT - 1) / CVY_EP_UNIT);
}

/* All threads: the own rows of a step, where they stay, a row a warp. Scales, and all where outputs are no whole 16 bytes, it stores. */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_take_own(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       const struct cvy_ep_room *room)
{
	const struct cvy_ep_args *a = t->a;
	const uint32_t bytes = (uint32_t)a->hidden * (a->code ? 1 : 2);
	const int whole = CVY_HAS_BULK && ((uintptr_t)a->packed & 15) == 0, self = a->call.rank;
	const struct cvy_ep_row staged = { NULL, 0, 0 };

#pragma unroll 1
	for (int j = (int)(threadIdx.x / 32); j < a->form.per_step; j += CVY_EP_WARPS) {
		const uint64_t *stage = room->stage + (size_t)j * (size_t)a->form.row_words;

		if (!(t->sh->theirs[self] >> j & 1))
			continue;
		if (whole) {
			const struct cvy_ep_named named = cvy_ep_rows_of<BINS>(t, room, self, j);
			const uint32_t rows = __ballot_sync(CVY_EP_ALL, named.row >= 0);

			if (named.row >= 0)
				cvy_bulk_store(a->packed + (size_t)named.row * bytes, stage, bytes);
			cvy_ep_write_route<BINS == CVY_EP_ONE>(t, self, cvy_ep_token(t, s, j), &named);
			if (a->code)
				cvy_ep_take_scales<BINS>(a, room, &staged, j, &named, rows);
		} else {
			struct cvy_ep_apart x;

			cvy_ep_set_apart(&x, t);
			cvy_ep_take_own_apart<BINS>(&x, *s, *room, j);
		}
	}
	cvy_bulk_commit();
}

/* All threads: own rows that were stored by bulk are announced when they are written. */
template <int BINS>
static __device__ __noinline__ void cvy_ep_own_arrive(const struct cvy_ep_apart *x, struct cvy_ep_room room)
{
	const struct cvy_ep_args *a = x->t.a;
	const int self = a->call.rank;

	if (!CVY_HAS_BULK || ((uintptr_t)a->packed & 15))
		return; /* they are (cvy_ep_take_own_apart) */
	cvy_wait_written();
#pragma unroll 1
	for (int j = (int)(threadIdx.x / 32); j < a->form.per_step; j += CVY_EP_WARPS)
		if (x->t.sh->theirs[self] >> j & 1)
			cvy_ep_row_arrives(a, cvy_ep_rows_of<BINS>(&x->t, &room, self, j).row, 1, 1);
}

template <int BINS> struct cvy_ep_bulk_dispatch {
	enum { ONCE = BINS == CVY_EP_ONE };
	typedef cvy_ep_dispatch<BINS> by_lines;
	enum { PLACES = by_lines::PLACES, CLOSES = 0 };

	struct ahead {
		int32_t id;
	};

	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *a, ahead *x)
	{
		const int i = (int)threadIdx.x;

		x->id = i < a->num_tokens * a->top_k ? cvy_ep_id_given(a, i) : -1;
	}

	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							  uint64_t *dynamic, const ahead *x)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		int ids = a->num_tokens * a->top_k;

#pragma unroll 1
		for (int i = (int)threadIdx.x; room.near && i < ids; i += CVY_EP_THREADS)
			room.near[i] = i == (int)threadIdx.x ? x->id : cvy_ep_id_given(a, i);
		begin(a, sh, &room);
	}

	/* All threads, before a barrier. */
	static __device__ __forceinline__ void begin(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
						     const struct cvy_ep_room *room)
	{
		cvy_ep_clear<ONCE>(a, sh, room, 1);
		if (threadIdx.x == 0) {
			sh->raw = cvy_ranks_none();
			sh->taken[0] = sh->taken[1] = 0;
		}
	}

	/*
	 * All threads, where marks would take too much, up to a barrier: the places of step @step are counted by all. Called with copies,
	 * as all that is called: what has an address is in memory, and that of so many threads is far.
	 */
	static __device__ __noinline__ void plan_all(struct cvy_ep_apart *x, struct cvy_ep_room room, int step)
	{
		CVY_TRACED(PLAN, step);
		const struct cvy_ep_turn *t = &x->t;
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const int from = cvy_ep_window(t->a, &s);

		if (!step)
			cvy_ep_count<ONCE>(t, &room);
		else if (cvy_ep_windows(t->a))
			cvy_ep_pass_window<ONCE>(t->a, room, from - t->a->form.per_step * t->a->form.apart, from);
		if (step)
			cvy_ep_clear<ONCE>(t->a, t->sh, &room, 0);
		__syncthreads();
		if (ONCE && cvy_ep_windows(t->a)) {
			cvy_ep_mark_window(t->a, t->sh->tables.owner, room, from);
			__syncthreads();
		}
		cvy_ep_plan<ONCE>(t, &s, &room);
		cvy_bulk_fence(); /* entries go by bulk, too */
		__syncthreads();
	}

	static __device__ __forceinline__ void plan(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						    int step)
	{
		struct cvy_ep_apart x;

		cvy_ep_set_apart(&x, t);
		plan_all(&x, cvy_ep_room_turn(t, room, step & 1), step);
	}

	/* All threads, up to a barrier: where all tokens go; or, where that takes too much, those of the first step. */
	static __device__ __forceinline__ void mark(const struct cvy_ep_turn *t, const struct cvy_ep_room *room)
	{
		if (t->a->places > 1)
			cvy_ep_place_all(t->a, &t->sh->tables, (int32_t *)room->ids,
					 cvy_ranks_and(t->r->lane.mask, t->a->size_mask));
		if (!cvy_ep_marks(t->a)) {
			plan(t, room, 0);
			return;
		}
		CVY_TRACED(PLAN, 0);
		cvy_ep_mark(t->a, &t->sh->tables, *room, t->r->index);
		__syncthreads();
		cvy_ep_add_marks(t->a, *room);
		__syncthreads();
	}

	/* All threads, before a barrier: step @step, in a room of its own. */
	static __device__ __forceinline__ void prepare(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
						       int step)
	{
		CVY_TRACED(PREPARE, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const struct cvy_ep_room at = cvy_ep_room_turn(t, room, step & 1);

		if (threadIdx.x < 32 && cvy_ep_marks(t->a))
			cvy_ep_plan_marked(t, &s, &at);
		cvy_ep_stage_all(t, &s, &at, &t->sh->taken[step & 1]);
	}

	/* Step @step leaves for ranks that rows go to by bulk, and for none of them is it there yet. Returns them. */
	template <int HOT>
	static __device__ __forceinline__ cvy_ranks put(const struct cvy_ep_turn *t, const struct cvy_ep_room *room,
							int step)
	{
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const struct cvy_ep_room at = cvy_ep_room_turn(t, room, step & 1);
		cvy_ranks bulk;

		if (!cvy_ep_must_send<HOT>(t, step))
			return cvy_ranks_none();
		CVY_TRACED(PUT, step);
		cvy_ep_overtake(t, &s, step);
		bulk = cvy_ep_by_bulk(t, t->peers);
		if (cvy_ep_puts())
			cvy_ep_put_rows<ONCE>(t, &s, &at, bulk, !step);
		return bulk;
	}

	/* Sends a step to ranks that get lines, or are of other hosts: all but @bulk. */
	static __device__ __noinline__ void send_lines(struct cvy_ep_apart *x, struct cvy_ep_room room,
						       struct cvy_ep_step s, int step, cvy_ranks bulk)
	{
		struct cvy_ep_turn *t = &x->t;
		const int far = cvy_far(t->r);

		if (far && !cvy_ep_far_may_push(t, &s, step))
			return;
		cvy_ep_push_headers<ONCE>(t, &s, &room, cvy_ranks_but(t->peers, bulk));
		cvy_ep_push_rows(t, &s, &room, cvy_ranks_but(t->peers, bulk));
		if (far)
			cvy_ep_far_put(t, &s, cvy_ep_lines_of(t, room.mine, (int)threadIdx.x));
	}

	/* All threads, when the step before has been taken: tells the ranks @bulk of step @step, and sends it to the others. */
	template <int HOT>
	static __device__ __forceinline__ void tell(struct cvy_ep_turn *t, const struct cvy_ep_room *room, int step,
						    cvy_ranks bulk)
	{
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const int push = cvy_ep_must_send<HOT>(t, step);

		CVY_TRACED(TELL, step);
		cvy_ep_say_sent(t, step);
		if (push && !cvy_ranks_equal(bulk, t->peers)) {
			struct cvy_ep_apart x;

			cvy_ep_set_apart(&x, t);
			send_lines(&x, cvy_ep_room_turn(t, room, step & 1), s, step, bulk);
			t->peers = cvy_ranks_but(t->peers, t->sh->unsent);
		}
		if (push && cvy_ep_puts())
			cvy_ep_bulk_signal(t, &s, bulk);
	}

	/* All threads, up to a barrier: all of step @step is here, and where it goes is known. Not 0: stopped. */
	static __device__ __forceinline__ int hear(struct cvy_ep_turn *t, const struct cvy_ep_room *room, int step)
	{
		CVY_TRACED(HEAR, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const struct cvy_ep_room at = cvy_ep_room_turn(t, room, step & 1);

		cvy_ep_bulk_headers<ONCE>(t, &s, &at, !step);
		if (cvy_ep_stopped(t) || cvy_ep_wait_lines(t, &s, t->sh->theirs))
			return 1;
		cvy_ep_arrives_late(t);
		if constexpr (BINS == CVY_EP_CLOSE)
			cvy_ep_begin_bins(t->a, &at);
		if (threadIdx.x == 0)
			t->sh->taken[step & 1] = 0;
		return 0;
	}

	/* All threads, up to a barrier: rows of step @step go where they belong, by warps that put nothing. Not 0: stopped. */
	static __device__ __forceinline__ int take(struct cvy_ep_turn *t, const struct cvy_ep_room *room, int step,
						   int puts)
	{
		CVY_TRACED(TAKE, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const struct cvy_ep_room at = cvy_ep_room_turn(t, room, step & 1);

		if (cvy_ep_marks(t->a) && !step)
			cvy_ep_tell_marked<ONCE>(t->a, &t->sh->tables, at, t->r->index);
		else if (!t->r->index && !step)
			cvy_ep_tell<BINS>(t->a, &at);
		if (!step && (cvy_ep_marks(t->a) || !t->r->index))
			cvy_ep_range_arrives(t->a, cvy_ep_marks(t->a) ? t->a->form.lanes : 1);
		cvy_ep_write_none<ONCE>(t, &s);
		cvy_ep_take_own<BINS>(t, &s, &at);
		cvy_ep_take_all<BINS>(t, &s, &at, CVY_EP_WARPS - puts);
		cvy_wait_read<0>(); /* of the own rows: the room is of the step after the next */
		if (t->a->arrived) {
			struct cvy_ep_apart x;

			cvy_ep_set_apart(&x, t);
			cvy_ep_own_arrive<BINS>(&x, at);
		}
		cvy_ep_bulk_look(t, &s);
		return cvy_ep_stopped(t);
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *dynamic, const ahead *)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);

		mark(&t, &room);
		prepare(&t, &room, 0);
		__syncthreads();
		tell<1>(&t, &room, 0, put<1>(&t, &room, 0));
	}

	/* A CTA that stops has written its own rows, too: others may place them anew. */
	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late,
						  const ahead *)
	{
		int stopped = steps<HOT>(a, r, sh, dynamic, late);

		cvy_wait_written();
		return stopped;
	}

	template <int HOT>
	static __device__ __forceinline__ int steps(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						    struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late)
	{
		struct cvy_ep_room room = cvy_ep_room_of<BINS>(a, sh, dynamic);
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);

		t.sources = cvy_ranks_but(t.sources, late);
		if (cvy_mode<HOT>(r) == CVY_COMPLETE && a->form.steps > 1) {
			by_lines::nothing(&t);
			return 0;
		}
		if (!HOT) {
			begin(a, sh, &room);
			__syncthreads();
		}
		mark(&t, &room);
#pragma unroll 1
		for (int step = -1; step < a->form.steps; step++) { /* before the first there is nothing to hear */
			const int more = step + 1 < a->form.steps;
			cvy_ranks bulk = cvy_ranks_none();

			if (more && step >= 0 && !cvy_ep_marks(a))
				plan(&t, &room, step + 1);
			if (more)
				prepare(&t, &room, step + 1);
			if (step < 0)
				__syncthreads();
			else if (hear(&t, &room, step))
				return 1;
			if (more)
				bulk = put<HOT>(&t, &room, step + 1);
			if (step >= 0 && take(&t, &room, step, more))
				return 1;
			if (more)
				tell<HOT>(&t, &room, step + 1, bulk);
		}
		return 0;
	}
};

#endif
