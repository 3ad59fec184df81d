/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a lane is made of, for all bodies: where its packets stand, own words, push, what others have sent.
 * In each step a thread first pushes all its packets, then waits for the others' in the same places and stores.
 *
 * Bodies are compiled for the first attempt of an operation that nothing stops (HOT), whose code is kept short (each instruction of a
 * warp is 4 or 5 cycles), and for whatever comes after a change; and of the first attempt for what is known of words (enum cvy_words).
 */
#ifndef CVY_STEP_CUH
#define CVY_STEP_CUH

#include "far.cuh"
#include "reduce.cuh"

/* Rows of this call: kernels for one row, which small operations are, have no loops over them. */
template <int ROWS> static __device__ __forceinline__ int cvy_rows(const struct cvy_gpu_call *c)
{
	return ROWS == 1 ? 1 : c->rows;
}

template <int HOT> static __device__ __forceinline__ enum cvy_mode cvy_mode(const struct cvy_lane_run *r)
{
	return HOT ? CVY_RUN : r->mode;
}

/* One step of a lane, as the thread sees it. */
struct cvy_step {
	uint64_t tag;
	uint32_t count; /* of the lane, with this step: says which slot */
	int last;	/* of the operation, here */
	uint64_t base;	/* first word of the tile */
};

static __device__ __forceinline__ struct cvy_step cvy_step_of(const struct cvy_gpu_call *c,
							      const struct cvy_lane_run *r, int step,
							      uint64_t tile_words)
{
	struct cvy_step s;

	s.count = r->lane.count + 1 + (uint32_t)step;
	s.tag = CVY_GPU_TAG(r->lane.epoch, s.count);
	s.last = step + 1 == r->steps;
	s.base = ((uint64_t)step * (uint64_t)c->lanes + (uint64_t)r->index) * tile_words;
	return s;
}

static __device__ __forceinline__ int cvy_first_step(const struct cvy_lane_run *r)
{
	return r->mode == CVY_COMPLETE ? r->steps - 1 : 0;
}

/*
 * What is known of the words of a step, so that no more is asked of each than must be. PLAIN: they are 8 bytes at addresses of their own,
 * between ranks of one host, and summed if anything is folded: as in most calls. FULL: the tile is full of such, too: as in all steps but
 * the last. WHOLE: and it has all rows, as in calls of many steps. The first attempt has code for these alone, and goes the long way where
 * words are not plain.
 */
enum cvy_words { CVY_ANY, CVY_PLAIN, CVY_FULL, CVY_WHOLE };

template <int ROWS> static __device__ __forceinline__ int cvy_has_all_rows(const struct cvy_gpu_call *c)
{
	return cvy_rows<ROWS>(c) == ROWS;
}

static __device__ __forceinline__ int cvy_is_plain(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return c->plain == CVY_GPU_WHOLE && !cvy_far(r);
}

/* How many steps of the lane are full, of blocks of @words: the first so many. */
static __device__ __forceinline__ int cvy_full_steps(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     uint64_t words, uint64_t tile)
{
	int steps = r->steps;

#pragma unroll 1
	while (steps && ((uint64_t)(steps - 1) * (uint64_t)c->lanes + (uint64_t)r->index + 1) * tile > words)
		steps--; /* once, or twice where a shard is short; all, where there are no words */
	return steps;
}

/* Whose data is awaited: of private operations nothing more comes of the removed, of others a holder has it all. */
template <int HOT>
static __device__ __forceinline__ uint32_t cvy_sources(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return cvy_mode<HOT>(r) == CVY_COMPLETE && cvy_gpu_is_private(c->kind) ? r->lane.mask & ~r->gone : r->lane.mask;
}

/* This thread's packets of a step: one in each of the first `rows` rows, in which its warp has something. */
struct cvy_here {
	int rows, n;   /* words of each packet */
	uint64_t word; /* first of the first */
};

/* From one row to the next: packets, and words. */
static __device__ __forceinline__ int cvy_row(int i)
{
	return i * (int)blockDim.x + (int)threadIdx.x;
}

template <int PACKET> static __device__ __forceinline__ uint64_t cvy_row_words(int i)
{
	return (uint64_t)((uint32_t)i * (PACKET == CVY_GPU_PAIR ? blockDim.x : blockDim.x / 8 * CVY_LINE_WORDS));
}

template <int PACKET, int ROWS, int WORDS = CVY_ANY>
static __device__ __forceinline__ struct cvy_here cvy_here_of(const struct cvy_gpu_call *c, const struct cvy_step *s,
							      uint64_t words)
{
	struct cvy_here h = { WORDS == CVY_WHOLE ? ROWS : WORDS == CVY_FULL ? cvy_rows<ROWS>(c) : 0, 0, 0 };

	h.n = cvy_place<PACKET>((int)threadIdx.x, &h.word);
	h.word += s->base;
	while (WORDS < CVY_FULL && h.rows < cvy_rows<ROWS>(c) &&
	       s->base + cvy_warp_word<PACKET>(cvy_row(h.rows)) < words)
		h.rows++;
	return h;
}

/* ---- words of buffers ---- */

template <int PACKET>
static __device__ __forceinline__ void cvy_get(const uint8_t *buf, uint64_t word, uint64_t bytes, uint64_t v[2])
{
	v[0] = cvy_word_get(buf, word, bytes);
	v[1] = PACKET == CVY_GPU_PAIR ? 0 : cvy_word_get(buf, word + 1, bytes);
}

template <int PACKET>
static __device__ __forceinline__ void cvy_set(uint8_t *buf, uint64_t word, int n, uint64_t bytes, const uint64_t v[2])
{
	cvy_word_put(buf, word, bytes, v[0]);
	if (PACKET != CVY_GPU_PAIR && n == 2)
		cvy_word_put(buf, word + 1, bytes, v[1]);
}

/* How many words of a buffer of @bytes the packet of row @i has, where none is a part of one. */
template <int PACKET, int WORDS>
static __device__ __forceinline__ int cvy_words_of(const struct cvy_here *h, int i, uint64_t bytes)
{
	const uint64_t word = h->word + cvy_row_words<PACKET>(i);

	if (WORDS >= CVY_FULL)
		return h->n;
	return word >= bytes / 8 ? 0 : word + 1 < bytes / 8 ? h->n : 1;
}

/* Lines of a whole step that is still to come, @ahead words from the one at hand: nobody waits for memory then. */
template <int PACKET, int ROWS>
static __device__ __forceinline__ void cvy_fetch_rows(const uint8_t *buf, const struct cvy_here *h, uint64_t ahead)
{
#pragma unroll
	for (int i = 0; i < ROWS; i++)
		if (threadIdx.x % 8 == 0)
			cvy_fetch(buf + (h->word + ahead + cvy_row_words<PACKET>(i)) * 8);
}

/* The words of all rows. */
template <int PACKET, int ROWS, int WORDS = CVY_ANY>
static __device__ __forceinline__ void cvy_get_rows(const uint8_t *buf, const struct cvy_here *h, uint64_t bytes,
						    uint64_t v[ROWS][2])
{
#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const uint64_t word = h->word + cvy_row_words<PACKET>(i);
		const uint64_t *from = (const uint64_t *)buf + word;

		if (WORDS == CVY_ANY && i < h->rows) {
			cvy_get<PACKET>(buf, word, bytes, v[i]);
		} else if (WORDS != CVY_ANY && i < h->rows) {
			const int n = cvy_words_of<PACKET, WORDS>(h, i, bytes);

			v[i][0] = n ? from[0] : 0;
			v[i][1] = n == 2 ? from[1] : 0;
		}
	}
}

template <int PACKET, int ROWS, int WORDS = CVY_ANY>
static __device__ __forceinline__ void cvy_set_rows(uint8_t *buf, const struct cvy_here *h, uint64_t bytes,
						    const uint64_t v[ROWS][2])
{
#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const uint64_t word = h->word + cvy_row_words<PACKET>(i);
		uint64_t *to = (uint64_t *)buf + word;

		if (WORDS == CVY_ANY && i < h->rows) {
			cvy_set<PACKET>(buf, word, h->n, bytes, v[i]);
		} else if (WORDS != CVY_ANY && i < h->rows) {
			const int n = cvy_words_of<PACKET, WORDS>(h, i, bytes);

			if (n)
				to[0] = v[i][0];
			if (n == 2)
				to[1] = v[i][1];
		}
	}
}

/* Own words of an operation in place are kept until its outcome is decided: its results overwrite them. */
static __device__ __forceinline__ uint8_t *cvy_saved(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, int u)
{
	return c->saved + cvy_gpu_slot_at(0, r->index, s->count) + (size_t)u * CVY_GPU_PACKET;
}

/*
 * The copy is of the last steps alone: where there are more, who does it again has its inputs whole, or all is lost. A lane whose CTA
 * came to no attempt has none; others do a lane again that a CTA has done or begun.
 */
template <int HOT>
static __device__ __forceinline__ int cvy_from_saved(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return !HOT && c->in_place &&
	       (r->mode == CVY_COMPLETE ||
		(r->mode == CVY_AGAIN && !cvy_spoils(c, r) && (r->saved || r->index != (int)blockIdx.x)));
}

/* ---- push ---- */

template <int PACKET, int WORDS = CVY_ANY>
static __device__ __forceinline__ void cvy_push_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_step *s, int round, int u, int rank,
						   const uint64_t v[2])
{
	uint8_t *chunk = WORDS != CVY_ANY ? cvy_straight_to(c, r, rank) : cvy_to(c, r, rank);

	cvy_push<PACKET>(chunk + cvy_gpu_slot_at(round, r->index, s->count), u, v, s->tag);
}

/* All that this thread has of a step, to one rank. */
template <int PACKET, int ROWS, int WORDS = CVY_ANY>
static __device__ __forceinline__ void cvy_push_rows(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, int round, const struct cvy_here *h,
						     int rank, const uint64_t v[ROWS][2])
{
#pragma unroll
	for (int i = 0; i < ROWS; i++)
		if (i < h->rows)
			cvy_push_to<PACKET, WORDS>(c, r, s, round, cvy_row(i), rank, v[i]);
}

/* All threads, after a push of what there is of @words to @to: what is for ranks of another host leaves. */
template <int PACKET>
static __device__ __forceinline__ void cvy_pushed(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						  const struct cvy_step *s, int round, int rows, uint64_t words,
						  uint32_t to)
{
	if (cvy_far(r))
		cvy_far_push(c, r->lane.out, to, cvy_gpu_slot_at(round, r->index, s->count),
			     cvy_packets<PACKET>(rows * (int)blockDim.x, s->base, words) * CVY_GPU_PACKET);
}

/* All threads: has any of them stopped? With ranks of another host all go on to the next push, or none. */
static __device__ __forceinline__ int cvy_all_stop(const struct cvy_lane_run *r, int stopped)
{
	return cvy_far(r) ? __syncthreads_or(stopped) : stopped;
}

/* Ranks of a mask but this one, beginning after it: not all push to the same peer at once. */
#define CVY_EACH_PEER(p, mask, self) \
	_Pragma("unroll 1") for (uint32_t p##_left = \
					 __funnelshift_r((mask) & ~(1u << (self)), (mask) & ~(1u << (self)), (self)), \
				 p; \
				 p##_left && \
				 (p = ((uint32_t)__ffs((int)p##_left) - 1 + (uint32_t)(self)) % CVY_GPU_RANKS, 1); \
				 p##_left &= p##_left - 1)

/*
 * All threads. Packets of the first step will stand where others may still read lines, and a pair in place of some of a line's words
 * leaves its tag as it is: so the tags go first, and who finds none knows (cvy_read_lines).
 */
static __device__ __noinline__ void cvy_spoil_lines(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	enum { LINE = 128, LINES = CVY_GPU_SLOT / LINE };

	CVY_EACH_PEER(p, r->lane.mask, c->rank)
	{
		uint8_t *to = cvy_to(c, r, (int)p);

		if (cvy_far(r) && cvy_far_queue(c, r->lane.out, r->lane.mask, (int)p))
			continue;
#pragma unroll 1
		for (unsigned i = threadIdx.x; i < CVY_GPU_ROUNDS * LINES; i += blockDim.x)
			cvy_store_word(to + cvy_gpu_slot_at((int)(i / LINES), r->index, r->lane.count + 1) +
					       (i % LINES + 1) * LINE - sizeof(uint64_t),
				       0);
	}
	__threadfence_system();
	__syncthreads();
}

/* ---- signals, and what they say has come ---- */

/* One thread per rank: tells those in @to that this CTA has come to @round of the step. NEAR: all are of this host, and `plain`. */
template <int NEAR = 0>
static __device__ __forceinline__ void cvy_tell(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						const struct cvy_step *s, int round, uint32_t to)
{
	int p = (int)threadIdx.x;

	if (p < CVY_GPU_RANKS && p != c->rank && cvy_has(to, p))
		cvy_store_word((NEAR ? cvy_straight_to(c, r, p) : cvy_to(c, r, p)) +
				       cvy_gpu_signal_at(round, r->index, s->count),
			       s->tag);
	if (!NEAR && cvy_far(r))
		cvy_far_tell(c, r->lane.out, to, cvy_gpu_signal_at(round, r->index, s->count), s->tag);
}

/* One thread per rank: waits until those in @from have told. 1: stopped. NEAR: as above. */
template <int NEAR = 0>
static __device__ __forceinline__ int cvy_hear(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
					       const struct cvy_step *s, int round, uint32_t from)
{
	int p = (int)threadIdx.x;

	if (p >= CVY_GPU_RANKS || p == c->rank || !cvy_has(from, p))
		return 0;
	return cvy_wait_signal((NEAR ? cvy_straight_from(c, r, p) : cvy_from(c, r, p)) +
				       cvy_gpu_signal_at(round, r->index, s->count),
			       p, s->tag, &r->watch);
}

/* All threads: what they have stored and read is told to @to, and as much is here of @from. 1: stopped. */
static __device__ __forceinline__ int cvy_meet(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
					       const struct cvy_step *s, int round, uint32_t to, uint32_t from)
{
	int stopped;

	__syncthreads();
	if (threadIdx.x < CVY_GPU_RANKS)
		__threadfence_system();
	cvy_tell(c, r, s, round, to);
	stopped = cvy_hear(c, r, s, round, from);
	if (threadIdx.x < CVY_GPU_RANKS)
		__threadfence_system();
	return __syncthreads_or(stopped);
}

/*
 * Whoever has all of a step knows that the others have taken the step before: what the next writes over. But in the last of several
 * steps some warps of the lane may have no words, or all of them, and nothing comes there that shows it of the same warps; then the
 * next operation would begin in slots that a rank which is held up between its push and its look has not read. So where the last
 * tile is not full, ranks say that they have come to it. (An operation of one step is shown by the next: that begins behind it.)
 */
static __device__ __forceinline__ int cvy_ends_thin(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    uint64_t words, uint64_t tile)
{
	const uint64_t last = (uint64_t)(r->steps - 1);

	return r->steps > 1 && (last * (uint64_t)c->lanes + (uint64_t)r->index + 1) * tile > words;
}

/* All threads, before such a step: 1: one of them has stopped. */
static __device__ __forceinline__ int cvy_say_thin(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_step *s, int stopped)
{
	if (__syncthreads_or(stopped))
		return 1;
	cvy_tell(c, r, s, 0, r->lane.mask);
	return 0;
}

/* The first rank of a mask from @rank on; CVY_GPU_RANKS or more: none. */
static __device__ __forceinline__ int cvy_next(uint32_t mask, int rank)
{
	uint32_t left = rank < CVY_GPU_RANKS ? mask >> rank : 0;

	return left ? rank + __ffs((int)left) - 1 : CVY_GPU_RANKS;
}

/* A pair of each of @sources, four at a time, handed to each(rank, first, v) in ascending order. 1: stopped. */
template <typename EACH>
static __device__ __forceinline__ int cvy_each_pair(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, uint32_t sources,
						    const uint64_t own[1][2], EACH each)
{
	const int first = __ffs((int)sources) - 1;
	int rank = 0;

#pragma unroll 1
	while (rank < CVY_GPU_RANKS && sources >> rank) {
		const uint8_t *at[4];
		uint64_t v[4][1][2];
		unsigned need = 0;
		int whom[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			rank = cvy_next(sources, rank);
			whom[i] = rank;
			v[i][0][0] = own[0][0];
			v[i][0][1] = own[0][1];
			need |= (unsigned)(rank < CVY_GPU_RANKS && rank != c->rank) << i;
			at[i] = cvy_from(c, r, rank % CVY_GPU_RANKS) + packet;
			rank++;
		}
		if (cvy_wait_pairs(at, whom, need, s->tag, (uint64_t(*)[2])v, &r->watch))
			return 1;
		if (cvy_far(r)) { /* from memory of the host: only words of 8 bytes are whole */
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (need >> i & 1)
					cvy_load_packet(at[i], v[i][0]);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (whom[i] < CVY_GPU_RANKS)
				each(whom[i], whom[i] == first, v[i]);
	}
	return 0;
}

/*
 * All threads of a warp, behind the loads of N sources: was a line written over meanwhile, by who has gone on by deadlines? Told
 * as in cvy_read_lines(), but each thread looks at one tag for all. Only the last step is asked: who has gone on has completed the
 * operation, so this rank has pushed all of it, and had read what came before.
 */
template <int ROWS, int N>
static __device__ __forceinline__ int cvy_lines_lost(const uint8_t *const at[N], int rows, size_t apart, uint64_t tag)
{
	const int lane = (int)threadIdx.x % 32, row = lane / 4 % ROWS;
	const uint8_t *whose = NULL;
	int lost = 0;

#pragma unroll
	for (int k = 0; k < N; k++)
		if (lane / (4 * ROWS) == k)
			whose = at[k];
	__syncwarp();
	if (whose && row < rows)
		lost = cvy_load_word((const uint64_t *)(whose - lane * CVY_GPU_PACKET + row * apart + lane % 4 * 128 +
							120)) != tag;
	return __any_sync(0xffffffffu, lost);
}

/* Where what @rank pushes stands. */
template <int WORDS>
static __device__ __forceinline__ const uint8_t *cvy_chunk_of(const struct cvy_gpu_call *c,
							      const struct cvy_lane_run *r, int rank)
{
	return WORDS != CVY_ANY ? cvy_straight_from(c, r, rank) : cvy_from(c, r, rank);
}

/* All threads of a warp: until the lines that all of @sources have sent are here. 1: stopped. */
template <int ROWS, int WORDS>
static __device__ __forceinline__ int cvy_wait_rows(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows, size_t apart,
						    uint32_t sources)
{
	const size_t line = packet - threadIdx.x % 32 * CVY_GPU_PACKET;

	return cvy_wait_lines_of<ROWS>(sources & ~(1u << c->rank), rows, apart, s->tag, &r->watch,
				       [&](int rank) { return cvy_chunk_of<WORDS>(c, r, rank) + line; });
}

/* A warp: what one source has sent, handed to each(rank, first, v). 1: it was written over meanwhile, and is not. */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_rows(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows, int whom,
						    int first, EACH each)
{
	const size_t apart = blockDim.x * CVY_GPU_PACKET;
	const uint8_t *const at[1] = { cvy_chunk_of<WORDS>(c, r, whom) + packet };
	uint64_t v[1][ROWS][2]; /* without the 1 nvcc spills other words: 2 percent slower */

#pragma unroll
	for (int i = 0; i < ROWS; i++)
		if (i < rows)
			cvy_load_packet(at[0] + i * apart, v[0][i]);
	if (CVY_GUARDED && s->last && cvy_lines_lost<ROWS, 1>(at, rows, apart, s->tag))
		return 1;
	each(whom, first, v[0]);
	return 0;
}

/*
 * What all sources have sent, one after the other. The first and this rank have code of their own: words that come on two ways are
 * moved from register to register where the ways meet. 1: as above.
 */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_each(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows, uint32_t sources,
						    const uint64_t own[ROWS][2], EACH each)
{
	const int begins = __ffs((int)sources) - 1;

	if (begins == c->rank)
		each(begins, 1, own);
	else if (cvy_take_rows<ROWS, WORDS>(c, r, s, packet, rows, begins, 1, each))
		return 1;
#pragma unroll 1
	for (uint32_t left = sources & (sources - 1); left; left &= left - 1) {
		const int whom = __ffs((int)left) - 1;

		if (whom == c->rank)
			each(whom, 0, own);
		else if (cvy_take_rows<ROWS, WORDS>(c, r, s, packet, rows, whom, 0, each))
			return 1;
	}
	return 0;
}

/* The same of one row, of four sources at a time. */
template <int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_fours(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, size_t packet, int rows,
						     uint32_t sources, const uint64_t own[1][2], EACH each)
{
	const int begins = __ffs((int)sources) - 1;
	int lost = 0;

#pragma unroll 1
	for (uint32_t left = sources; left && !lost;) {
		uint64_t v[4][1][2];
		const uint8_t *at[4];
		int whom[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
			whom[k] = __ffs((int)left) - 1;
			left &= left - 1;
			at[k] = whom[k] < 0 || whom[k] == c->rank ? NULL : cvy_chunk_of<WORDS>(c, r, whom[k]) + packet;
			v[k][0][0] = own[0][0];
			v[k][0][1] = own[0][1];
			if (at[k] && rows)
				cvy_load_packet(at[k], v[k][0]);
		}
		if (CVY_GUARDED && s->last)
			lost = cvy_lines_lost<1, 4>(at, rows, 0, s->tag);
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (whom[k] >= 0 && !lost)
				each(whom[k], whom[k] == begins, v[k]);
	}
	return lost;
}

/* As cvy_each_source(), from @packet on, of lines. Of what is not here any more the wait has no end, but tells the host. */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_each_of_rows(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						       const struct cvy_step *s, size_t packet, int rows,
						       uint32_t sources, const uint64_t own[ROWS][2], EACH each)
{
	const size_t apart = blockDim.x * CVY_GPU_PACKET;
	int lost;

	do {
		if (cvy_wait_rows<ROWS, WORDS>(c, r, s, packet, rows, apart, sources))
			return 1;
		if constexpr (ROWS == 1)
			lost = cvy_take_fours<WORDS>(c, r, s, packet, rows, sources, own, each);
		else
			lost = sources && cvy_take_each<ROWS, WORDS>(c, r, s, packet, rows, sources, own, each);
	} while (lost);
	return 0;
}

/*
 * The same packets of all @sources, row @row of the thread and those of @rows after it, handed to each(rank, first, v) in ascending
 * order, v[row][2]. Own words come from @own where this rank is among them. 1: stopped.
 */
template <int PACKET, int ROWS, int WORDS = CVY_ANY, typename EACH>
static __device__ __forceinline__ int cvy_each_source(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, int round, int row, int rows,
						      uint32_t sources, const uint64_t own[ROWS][2], EACH each)
{
	const size_t packet = cvy_gpu_slot_at(round, r->index, s->count) + (size_t)cvy_row(row) * CVY_GPU_PACKET;

	static_assert(PACKET == CVY_GPU_LINE || ROWS == 1, "pairs go in one row (shape.h)");
	if constexpr (PACKET == CVY_GPU_PAIR)
		return rows ? cvy_each_pair(c, r, s, packet, sources, own, each) : 0;
	else
		return cvy_each_of_rows<ROWS, WORDS>(c, r, s, packet, rows, sources, own, each);
}

/* ---- results ---- */

/* The fold of a packet's words, in the order in which sources are handed over; @how: `fold` of the call; @first: of the first. */
template <typename T, int PACKET> struct cvy_fold {
	enum { WORDS = PACKET == CVY_GPU_PAIR ? 1 : 2 };
	cvy_acc<T> acc[WORDS];

	__device__ __forceinline__ void add(const uint64_t v[2], int how, int first)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (first)
				acc[i].first(v[i]);
			else if (cvy_redop(how) == COVEY_SUM || cvy_redop(how) == COVEY_AVG)
				acc[i].template fold_as<COVEY_SUM>(v[i]);
			else
				acc[i] = cvy_fold_rare<T>(acc[i], v[i], how);
		}
	}

	__device__ __forceinline__ void result(uint64_t out[2], int how, int n)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (cvy_redop(how) == COVEY_AVG)
				acc[i] = cvy_average<T>(acc[i], how, n);
			out[i] = acc[i].result();
		}
	}
};

/* Blocks of ranks that do not contribute are zero; of ranks past the buffers (the group has grown since) nothing is kept. */
template <int PACKET>
static __device__ __noinline__ void cvy_zero_blocks(const struct cvy_gpu_call *c, uint32_t absent, uint64_t word, int n)
{
	const uint64_t zero[2] = { 0, 0 };

#pragma unroll 1
	for (int p = 0; p < c->size; p++)
		if (cvy_has(absent, p))
			cvy_set<PACKET>(c->recv + (size_t)p * c->bytes, word, n, c->bytes, zero);
}

template <int PACKET>
static __device__ __noinline__ void cvy_zero_rows(const struct cvy_gpu_call *c, uint32_t absent, struct cvy_here h)
{
#pragma unroll 1
	for (int i = 0; i < h.rows; i++)
		cvy_zero_blocks<PACKET>(c, absent, h.word + cvy_row_words<PACKET>(i), h.n);
}

/* Ranks that the buffers have a block of. */
static __device__ __forceinline__ uint32_t cvy_blocks(const struct cvy_gpu_call *c)
{
	return c->size < CVY_GPU_RANKS ? (1u << c->size) - 1 : ~0u;
}

#endif
