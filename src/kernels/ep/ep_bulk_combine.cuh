/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Combine in bulk steps. Rows are cut into pieces: all warps but the last sum a round of them, a piece each, while the
 * last puts the round before. When all pieces of a step have been put and told, the first round of the next is summed.
 * Then all hear, the next step leaves, and what was heard is added. Steps themselves follow each other as with lines.
 */
#ifndef CVY_EP_BULK_COMBINE_CUH
#define CVY_EP_BULK_COMBINE_CUH

#include "ep_combine.cuh"

#define CVY_EP_SUMMED 5 /* units of a piece that a warp reads at a time */
#define CVY_EP_ADDED 4	/* units of a token that a warp adds at a time */
#define CVY_EP_SUMMERS (CVY_EP_WARPS - 1)

/* ---- what goes back ---- */

/* How a step is cut. All pieces that there may be are numbered, by rank, then token: nobody need know which there are. */
struct cvy_ep_cut {
	int words;  /* of a piece */
	int pieces; /* of a row */
	int rounds; /* of a step */
};

static __device__ __forceinline__ struct cvy_ep_cut cvy_ep_cut_of(const struct cvy_ep_args *a)
{
	const int most = (int)(CVY_EP_BULK_PIECE / 8), words = a->form.row_words;
	struct cvy_ep_cut cut;

	cut.pieces = (words + most - 1) / most;
	cut.words = ((words + cut.pieces - 1) / cut.pieces + 15) / 16 * 16; /* whole lines of the wire */
	cut.rounds = ((a->call.size - 1) * a->form.per_step * cut.pieces + CVY_EP_SUMMERS - 1) / CVY_EP_SUMMERS;
	return cut;
}

struct cvy_ep_piece {
	int rank; /* -1: there is none of that number */
	int j;
	int from, last; /* words of its row */
};

static __device__ __forceinline__ struct cvy_ep_piece cvy_ep_piece_of(const struct cvy_ep_args *a,
								      const struct cvy_ep_cut *cut, int number)
{
	const int row = number / cut->pieces, nth = row / a->form.per_step;
	struct cvy_ep_piece piece;

	piece.rank = (a->call.rank + 1 + nth) % a->call.size;
	piece.j = row - nth * a->form.per_step;
	piece.from = (number - row * cut->pieces) * cut->words;
	piece.last = piece.from + cut->words < a->form.row_words ? piece.from + cut->words : a->form.row_words;
	if (nth >= a->call.size - 1)
		piece.rank = -1;
	return piece;
}

/* A warp's room for pieces of a round. */
static __device__ __forceinline__ uint8_t *cvy_ep_piece_room(uint64_t *dynamic, int warp, int round)
{
	return (uint8_t *)dynamic + (size_t)(warp * 2 + (round & 1)) * CVY_EP_BULK_PIECE;
}

/* A warp: its piece of a round, if there is one. */
template <int ONCE, int FP16>
static __device__ __forceinline__ void cvy_ep_sum_piece_as(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_piece *piece, uint8_t *room)
{
	const struct cvy_ep_args *a = t->a;
	struct cvy_ep_place p = { -1, -1, 0, 0 };
	const int lane = (int)(threadIdx.x % 32);
	uint32_t rows;

	if (piece->rank >= 0)
		p = cvy_ep_weighed<ONCE>(a, cvy_ep_here<ONCE>(a, piece->rank, cvy_ep_token(t, s, piece->j)));
	rows = __ballot_sync(CVY_EP_ALL, p.row >= 0);
	if (!rows)
		return;
#pragma unroll 1
	for (int word = piece->from + lane * 2; word - lane * 2 < piece->last; word += CVY_EP_SUMMED * CVY_EP_UNIT) {
		uint8_t *to = room + (size_t)(word - piece->from) * 8;
		struct cvy_ep_sum sum[CVY_EP_SUMMED];

#pragma unroll
		for (int i = 0; i < CVY_EP_SUMMED; i++)
			sum[i].clear();
#pragma unroll 1
		for (uint32_t left = rows; left; left &= left - 1) {
			const int k = __ffs((int)left) - 1, row = __shfl_sync(CVY_EP_ALL, p.row, k);
			const float by = ONCE ? 1 : __shfl_sync(CVY_EP_ALL, p.weight, k);
			uint64_t v[CVY_EP_SUMMED][2];

#pragma unroll
			for (int i = 0; i < CVY_EP_SUMMED; i++) {
				v[i][0] = v[i][1] = 0;
				if (word + i * CVY_EP_UNIT < piece->last)
					cvy_ep_result_two(a, row, word + i * CVY_EP_UNIT, v[i]);
			}
#pragma unroll
			for (int i = 0; i < CVY_EP_SUMMED; i++)
				sum[i].add<FP16>(v[i], by);
			if (ONCE) /* one row alone stands at a token */
				break;
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_SUMMED; i++) {
			uint64_t v[2];

			sum[i].narrow<FP16>(v);
			if (word + i * CVY_EP_UNIT < piece->last)
				cvy_ep_put_two(to + (size_t)(i * CVY_EP_UNIT) * 8, v);
		}
	}
	cvy_bulk_fence();
}

template <int ONCE>
static __device__ __forceinline__ void cvy_ep_sum_piece(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_piece *piece, uint8_t *room)
{
	if (t->a->fp16)
		cvy_ep_sum_piece_as<ONCE, 1>(t, s, piece, room);
	else
		cvy_ep_sum_piece_as<ONCE, 0>(t, s, piece, room);
}

/* The warp that puts: to each of the ranks @to, which of its tokens there are results of, and that these have no tags. */
static __device__ __forceinline__ void cvy_ep_put_headers(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const uint64_t *tokens, cvy_ranks to)
{
	const int lane = (int)(threadIdx.x % 32);

	CVY_EACH_PEER(p, to, t->a->call.rank)
	{
		uint64_t v[2] = { 0, s->tag };

		if (lane == 0)
			v[0] = tokens[p] | CVY_EP_RAW;
		else if (lane == 1)
			v[0] = (uint32_t)cvy_has(t->sh->lost, (int)p);
		cvy_ep_send(t, s, (int)p, 0, lane < CVY_EP_LINE_PACKETS, v);
	}
}

/* The warp that puts: all pieces of a round to the ranks @to, one a thread. @tokens: of the step that have rows for each. */
static __device__ __forceinline__ void cvy_ep_put_round(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_cut *cut, uint64_t *dynamic, int nth,
							int round, const uint64_t *tokens, cvy_ranks to)
{
	const int i = (int)(threadIdx.x % 32);
	struct cvy_ep_piece piece = cvy_ep_piece_of(t->a, cut, nth * CVY_EP_SUMMERS + i);

	if (i < CVY_EP_SUMMERS && piece.rank >= 0 && cvy_has(to, piece.rank) && (tokens[piece.rank] >> piece.j & 1))
		cvy_ep_bulk_put(t, s, piece.rank, piece.j, piece.from, cvy_ep_piece_room(dynamic, i, round),
				cvy_ep_whole_lines((uint32_t)(piece.last - piece.from) * 8));
	cvy_bulk_commit();
}

/* ---- what comes back ---- */

/* A warp: what this rank has itself for an own token, at all units that are added at a time; the sums are in f32 there, too. */
template <int FP16>
static __device__ __forceinline__ void cvy_ep_add_own(const struct cvy_ep_args *a, const struct cvy_ep_place *place,
						      uint32_t rows, int at, struct cvy_ep_sum sum[CVY_EP_ADDED])
{
	const struct cvy_ep_place mine = cvy_ep_weighed<0>(a, *place);
	struct cvy_ep_sum own[CVY_EP_ADDED];

#pragma unroll
	for (int i = 0; i < CVY_EP_ADDED; i++)
		own[i].clear();
#pragma unroll 1
	for (; rows; rows &= rows - 1) {
		const int k = __ffs((int)rows) - 1, row = __shfl_sync(CVY_EP_ALL, mine.row, k);
		const float by = __shfl_sync(CVY_EP_ALL, mine.weight, k);
		uint64_t v[CVY_EP_ADDED][2];

#pragma unroll
		for (int i = 0; i < CVY_EP_ADDED; i++) {
			v[i][0] = v[i][1] = 0;
			if (at + i * CVY_EP_UNIT < a->form.row_words)
				cvy_ep_result_two(a, row, at + i * CVY_EP_UNIT, v[i]);
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_ADDED; i++)
			own[i].add<FP16>(v[i], by);
	}
#pragma unroll
	for (int i = 0; i < CVY_EP_ADDED; i++)
		sum[i].more(&own[i]);
}

/* A warp: units @u to @last of the own token @j, of @place, whose parts are all here: in ascending rank, as with lines. */
template <int ONCE, int FP16>
static __device__ __forceinline__ void cvy_ep_add_whole(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_place *place, int j, int u, int last)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_parts parts = cvy_ep_parts_of<ONCE>(t, place, j);
	const uint32_t own = __ballot_sync(CVY_EP_ALL, place->owner == a->call.rank && place->row >= 0);
	const int row = __shfl_sync(CVY_EP_ALL, place->row, (__ffs((int)own) - 1) & 31);
	uint8_t *out = a->out + (size_t)cvy_ep_token(t, s, j) * (size_t)a->hidden * 2;

#pragma unroll 1
	for (; u < last; u += CVY_EP_ADDED) {
		const int at = u * CVY_EP_UNIT + (int)(threadIdx.x % 32) * 2;
		struct cvy_ep_sum sum[CVY_EP_ADDED];

#pragma unroll
		for (int i = 0; i < CVY_EP_ADDED; i++)
			sum[i].clear();
#pragma unroll 1
		for (cvy_ranks from = parts.from; cvy_ranks_any(from);) {
			uint64_t v[CVY_EP_BATCH][CVY_EP_ADDED][2];
			int rank[CVY_EP_BATCH];

#pragma unroll
			for (int b = 0; b < CVY_EP_BATCH; b++) {
				struct cvy_ep_row there = {};

				rank[b] = cvy_ranks_first(from);
				from = cvy_ranks_rest(from);
				if (rank[b] >= 0)
					there = cvy_ep_row_of(t, s, rank[b], j);
#pragma unroll
				for (int i = 0; i < CVY_EP_ADDED; i++) {
					int word = at + i * CVY_EP_UNIT;

					v[b][i][0] = v[b][i][1] = 0;
					if (rank[b] < 0 || u + i >= last || word >= a->form.row_words)
						continue;
					if (rank[b] != a->call.rank)
						cvy_ep_arrived(&there, word, v[b][i]);
					else if (ONCE)
						cvy_ep_result_two(a, row, word, v[b][i]);
				}
			}
#pragma unroll
			for (int b = 0; b < CVY_EP_BATCH; b++) {
				if (rank[b] < 0)
					continue;
				if (!ONCE && rank[b] == a->call.rank)
					cvy_ep_add_own<FP16>(a, place, own, at, sum);
				else
#pragma unroll
					for (int i = 0; i < CVY_EP_ADDED; i++)
						sum[i].add<FP16>(v[b][i], 1);
			}
		}
#pragma unroll
		for (int i = 0; i < CVY_EP_ADDED; i++) {
			int word = at + i * CVY_EP_UNIT;
			uint64_t v[2];

			if (parts.scale != 1)
				sum[i].scale(parts.scale);
			sum[i].narrow<FP16>(v);
			if (u + i < last && word < a->form.row_words)
				cvy_ep_put_two(out + (size_t)word * 8, v);
		}
	}
}

/* The units of a step's own tokens that a warp adds: in one piece, of as many as others have. */
struct cvy_ep_share {
	int at, last, units;
	struct cvy_ep_place first; /* of the token that it begins with */
};

/* A warp, before it hears anybody: one of @warps that add. */
template <int ONCE>
static __device__ __forceinline__ struct cvy_ep_share cvy_ep_share_of(const struct cvy_ep_turn *t,
								      const struct cvy_ep_step *s, int warps)
{
	const struct cvy_ep_args *a = t->a;
	int rows = (a->num_tokens - cvy_ep_token(t, s, 0) + a->form.apart - 1) / a->form.apart, each;
	struct cvy_ep_share share;

	rows = rows < 0 ? 0 : rows > a->form.per_step ? a->form.per_step : rows;
	share.units = (a->form.row_words + CVY_EP_UNIT - 1) / CVY_EP_UNIT;
	each = (rows * share.units + warps - 1) / warps;
	share.at = (int)(threadIdx.x / 32) * each;
	share.last = share.at + each < rows * share.units ? share.at + each : rows * share.units;
	share.first = cvy_ep_away<ONCE>(t, share.at < share.last ? cvy_ep_token(t, s, share.at / share.units)
								 : a->num_tokens);
	return share;
}

template <int ONCE>
static __device__ __forceinline__ void cvy_ep_add_share(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const struct cvy_ep_share *share)
{
	struct cvy_ep_place place = share->first;

#pragma unroll 1
	for (int at = share->at; at < share->last;) {
		int j = at / share->units, begin = j * share->units;
		int end = begin + share->units < share->last ? begin + share->units : share->last;

		if (at != share->at)
			place = cvy_ep_away<ONCE>(t, cvy_ep_token(t, s, j));
		if (t->a->fp16)
			cvy_ep_add_whole<ONCE, 1>(t, s, &place, j, at - begin, end - begin);
		else
			cvy_ep_add_whole<ONCE, 0>(t, s, &place, j, at - begin, end - begin);
		at = end;
	}
}

template <int ONCE> struct cvy_ep_bulk_combine {
	typedef cvy_ep_combine<ONCE, 0> by_lines;
	typedef typename by_lines::ahead ahead;
	enum { PLACES = by_lines::PLACES, CLOSES = 0 };

	static __device__ __forceinline__ void read_ahead(const struct cvy_ep_args *a, ahead *x)
	{
		by_lines::read_ahead(a, x);
	}

	static __device__ __forceinline__ void bring_near(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							  uint64_t *dynamic, const ahead *x)
	{
		by_lines::bring_near(a, sh, dynamic, x);
		begin(sh);
	}

	/* All threads, before a barrier. */
	static __device__ __forceinline__ void begin(struct cvy_ep_shared *sh)
	{
		if (threadIdx.x < CVY_GPU_RANKS)
			sh->back[0][threadIdx.x] = sh->back[1][threadIdx.x] = 0;
		if (threadIdx.x == 0)
			sh->raw = cvy_ranks_none();
	}

	/* All threads, before a barrier: the first round of step @step, number @round of all, and which tokens have rows for whom. */
	static __device__ __forceinline__ void prepare(const struct cvy_ep_turn *t, int step,
						       const struct cvy_ep_cut *cut, uint64_t *dynamic, int round)
	{
		CVY_TRACED(PREPARE, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const int warp = (int)(threadIdx.x / 32);
		const struct cvy_ep_piece piece = cvy_ep_piece_of(t->a, cut, warp);

		if (cvy_ep_puts())
			return;
		cvy_ep_who<ONCE>(t, &s, t->sh->back[step & 1], CVY_EP_SUMMERS);
		cvy_ep_sum_piece<ONCE>(t, &s, &piece, cvy_ep_piece_room(dynamic, warp, round));
	}

	/*
	 * Step @step, whose first round is number @round of all, leaves for ranks that rows go to by bulk, and for none of them is it
	 * there yet. *bulk: they. Returns the number of the next step's first round.
	 */
	template <int HOT>
	static __device__ __forceinline__ int put(const struct cvy_ep_turn *t, int step, const struct cvy_ep_cut *cut,
						  uint64_t *dynamic, int round, cvy_ranks *bulk)
	{
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);
		const uint64_t *back = t->sh->back[step & 1];

		if (!cvy_ep_must_send<HOT>(t, step))
			return round;
		CVY_TRACED(PUT, step);
		cvy_ep_overtake(t, &s, step);
		*bulk = cvy_ep_by_bulk(t, t->peers);
		if (cvy_ep_puts())
			cvy_ep_put_headers(t, &s, back, *bulk);
#pragma unroll 1
		for (int nth = 0; nth < cut->rounds; nth++, round++) {
			const int others = nth + 1 < cut->rounds;
			const int warp = (int)(threadIdx.x / 32);

			if (cvy_ep_puts()) {
				cvy_ep_put_round(t, &s, cut, dynamic, nth, round, back, *bulk);
				if (others)
					cvy_wait_read<0>();
			} else if (others) {
				CVY_TRACED(PREPARE, step);
				const struct cvy_ep_piece piece =
					cvy_ep_piece_of(t->a, cut, (nth + 1) * CVY_EP_SUMMERS + warp);

				cvy_ep_sum_piece<ONCE>(t, &s, &piece, cvy_ep_piece_room(dynamic, warp, round + 1));
			}
			if (others)
				__syncthreads();
		}
		return round;
	}

	/* Sends a step to ranks that get lines, or are of other hosts: all but @bulk. */
	static __device__ __noinline__ void send_lines(struct cvy_ep_apart *x, struct cvy_ep_step s, int step,
						       cvy_ranks bulk)
	{
		struct cvy_ep_turn *t = &x->t;
		const uint64_t *back = t->sh->back[step & 1];
		const int far = cvy_far(t->r);

		if (far && !cvy_ep_far_may_push(t, &s, step))
			return;
		cvy_ep_push_headers_back<ONCE>(t, &s, 0, back, cvy_ranks_but(t->peers, bulk));
		cvy_ep_push_results<ONCE, 0>(t, &s, 0, back, cvy_ranks_but(t->peers, bulk));
		if (far)
			cvy_ep_far_put(t, &s, by_lines::lines(t, &s, back, (int)threadIdx.x));
	}

	/* All threads, when the step before has been added: tells the ranks @bulk of step @step, and sends it to the others. */
	template <int HOT> static __device__ __forceinline__ void tell(struct cvy_ep_turn *t, int step, cvy_ranks bulk)
	{
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);

		if (!cvy_ep_must_send<HOT>(t, step))
			return;
		CVY_TRACED(TELL, step);
		if (cvy_ep_records<HOT>(t))
			cvy_ep_say_sent(t, step);
		if (!cvy_ranks_equal(bulk, t->peers)) {
			struct cvy_ep_apart x;

			cvy_ep_set_apart(&x, t);
			send_lines(&x, s, step, bulk);
			t->peers = cvy_ranks_but(t->peers, t->sh->unsent);
		}
		if (cvy_ep_puts())
			cvy_ep_bulk_signal(t, &s, bulk);
	}

	/*
	 * All threads, up to a barrier: all of step @step is here, and this warp's share of it is known; it has none if it puts the next.
	 * Not 0: stopped.
	 */
	static __device__ __forceinline__ int hear(struct cvy_ep_turn *t, int step, int puts,
						   struct cvy_ep_share *share)
	{
		CVY_TRACED(HEAR, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);

		*share = cvy_ep_share_of<ONCE>(t, &s, CVY_EP_WARPS - puts);
		cvy_ep_hear<1>(t, &s);
		if (cvy_ep_stopped(t) || cvy_ep_wait_lines(t, &s, t->sh->got))
			return 1;
		if (threadIdx.x < CVY_GPU_RANKS)
			t->sh->back[step & 1][threadIdx.x] = 0;
		return 0;
	}

	/* All threads, up to a barrier. A rank that is late in the middle has no part in any of it. Not 0: stopped. */
	static __device__ __forceinline__ int add(struct cvy_ep_turn *t, int step, const struct cvy_ep_share *share)
	{
		CVY_TRACED(ADD, step);
		const struct cvy_ep_step s = cvy_ep_step_of(t, step);

#pragma unroll 1
		for (;;) {
			const cvy_ranks with = t->sources;
			int stopped;

			cvy_ep_add_share<ONCE>(t, &s, share);
			cvy_ep_bulk_look(t, &s);
			stopped = cvy_ep_stopped(t);
			if (stopped || cvy_ranks_equal(t->sources, with))
				return stopped;
		}
	}

	static __device__ __forceinline__ void send_first(const struct cvy_ep_args *a, struct cvy_lane_run *r,
							  struct cvy_ep_shared *sh, uint64_t *dynamic, const ahead *)
	{
		struct cvy_ep_turn t = cvy_ep_begin<1>(a, r, sh);
		const struct cvy_ep_cut cut = cvy_ep_cut_of(a);
		cvy_ranks bulk = cvy_ranks_none();

		prepare(&t, 0, &cut, dynamic, 0);
		__syncthreads();
		put<1>(&t, 0, &cut, dynamic, 0, &bulk);
		tell<1>(&t, 0, bulk);
	}

	/* A CTA that stops has written what it put: a change, and the next attempt, find no copy on its way. */
	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						  struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late,
						  const ahead *)
	{
		int stopped = steps<HOT>(a, r, sh, dynamic, late);

		cvy_wait_written();
		return stopped;
	}

	/* As with lines: an operation that others have completed lacks the last step alone, or all of it. */
	template <int HOT>
	static __device__ __forceinline__ int steps(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						    struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late)
	{
		struct cvy_ep_turn t = cvy_ep_begin<HOT>(a, r, sh);
		const int complete = cvy_mode<HOT>(r) == CVY_COMPLETE;
		const struct cvy_ep_cut cut = cvy_ep_cut_of(a);
		int first = complete ? a->form.steps - 1 : 0, round = 0;

		t.sources = cvy_ranks_but(t.sources, late);
		const int none = complete && a->form.steps > 1 && sh->nothing;

		if (none)
			by_lines::nothing(a, r, sh);
		if (none && !cvy_ep_owes_last(&t))
			return 0;
		if (!HOT) {
			begin(sh);
			__syncthreads();
		}
#pragma unroll 1
		for (int step = first - 1; step < a->form.steps;
		     step++) { /* before the first there is nothing to hear */
			const int more = step + 1 < a->form.steps;
			struct cvy_ep_share share;
			cvy_ranks bulk = cvy_ranks_none();

			if (none && !more)
				break;
			if (more && cvy_ep_must_send<HOT>(&t, step + 1))
				prepare(&t, step + 1, &cut, dynamic, round);
			if (step < first)
				__syncthreads();
			else if (hear(&t, step, more, &share))
				return 1;
			if (more)
				round = put<HOT>(&t, step + 1, &cut, dynamic, round, &bulk);
			if (step >= first && add(&t, step, &share))
				return 1;
			if (more)
				tell<HOT>(&t, step + 1, bulk);
		}
		return 0;
	}
};

#endif
