/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a lane's step, for all bodies: places of its packets, own words, push, signals. take.cuh takes the data of
 * others. In each step a thread first pushes all its packets, then waits for the others' in the same places and stores.
 *
 * Bodies are compiled for the first attempt of an operation that nothing stops (HOT), and for every attempt after a change.
 * Code of the first attempt is kept short (each instruction of a warp is 4 or 5 cycles) and compiled for what is known of
 * the words (enum cvy_words).
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
 * Knowledge about the words of a step, so that no question is asked of each word in vain. PLAIN: words of 8 bytes at
 * multiples of 8, between ranks of one host, and summed if anything is folded: most calls. FULL: the tile is also full: all
 * steps but the last. WHOLE: it also has all rows: calls of many steps. The first attempt has code for these alone; other
 * words go the long way.
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
static __device__ __forceinline__ cvy_ranks cvy_sources(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return cvy_mode<HOT>(r) == CVY_COMPLETE && cvy_gpu_is_private(c->kind) ? cvy_ranks_but(r->lane.mask, r->gone)
									       : r->lane.mask;
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
 * The copy is of the last steps alone. In operations of more steps a CTA that does it again has its inputs whole, or
 * everything is lost. A lane whose CTA came to no attempt has no copy; a lane that a CTA has done or begun is done again by
 * others.
 */
template <int HOT>
static __device__ __forceinline__ int cvy_from_saved(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return !HOT && c->in_place &&
	       (r->mode == CVY_COMPLETE ||
		(r->mode == CVY_AGAIN && !cvy_spoils(c) && (r->saved || r->index != (int)blockIdx.x)));
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
						  cvy_ranks to)
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
#if CVY_GPU_IS_WIDE
static __device__ __forceinline__ uint32_t cvy_next_peer(cvy_ranks left, int self)
{
	const int next = cvy_ranks_next(left, self);

	return (uint32_t)(next < CVY_GPU_RANKS ? next : cvy_ranks_first(left));
}

#define CVY_EACH_PEER(p, mask, self) \
	_Pragma("unroll 1") for (cvy_ranks p##_left = cvy_ranks_without(mask, self); cvy_ranks_any( \
					 p##_left);) for (uint32_t p = cvy_next_peer(p##_left, self), \
							  p##_once = \
								  (p##_left = cvy_ranks_without(p##_left, (int)p), 1); \
							  p##_once; p##_once = 0)
#else
#define CVY_EACH_PEER(p, mask, self) \
	_Pragma("unroll 1") for (uint32_t p##_left = \
					 __funnelshift_r((mask) & ~(1u << (self)), (mask) & ~(1u << (self)), (self)), \
				 p; \
				 p##_left && \
				 (p = ((uint32_t)__ffs((int)p##_left) - 1 + (uint32_t)(self)) % CVY_GPU_RANKS, 1); \
				 p##_left &= p##_left - 1)
#endif

/*
 * All threads. Packets of the first step will be written where others may still read lines, and a packet in place of some
 * words of a line leaves the line's tag as it is. So the tags are cleared first, and a reader that finds none knows
 * (cvy_read_lines).
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
						const struct cvy_step *s, int round, cvy_ranks to)
{
	CVY_EACH_OWN(p)
	{
		if (p != c->rank && cvy_has(to, p))
			cvy_store_word((NEAR ? cvy_straight_to(c, r, p) : cvy_to(c, r, p)) +
					       cvy_gpu_signal_at(round, r->index, s->count),
				       s->tag);
	}
	if (!NEAR && cvy_far(r))
		cvy_far_tell(c, r->lane.out, to, cvy_gpu_signal_at(round, r->index, s->count), s->tag);
}

/* Waits until @p has told. 1: stopped. NEAR: as above. */
template <int NEAR = 0>
static __device__ __forceinline__ int cvy_hear_of(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s, int round, int p)
{
	return cvy_wait_signal((NEAR ? cvy_straight_from(c, r, p) : cvy_from(c, r, p)) +
				       cvy_gpu_signal_at(round, r->index, s->count),
			       p, s->tag, &r->watch);
}

/* One thread per rank: waits until those in @from have told. 1: stopped. NEAR: as above. */
template <int NEAR = 0>
static __device__ __forceinline__ int cvy_hear(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
					       const struct cvy_step *s, int round, cvy_ranks from)
{
	CVY_EACH_OWN(p)
	{
		if (p != c->rank && cvy_has(from, p) && cvy_hear_of<NEAR>(c, r, s, round, p))
			return 1;
	}
	return 0;
}

/* All threads: what they have stored and read is told to @to, and as much is here of @from. 1: stopped. */
static __device__ __forceinline__ int cvy_meet(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
					       const struct cvy_step *s, int round, cvy_ranks to, cvy_ranks from)
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
 * A warp that has all of a step knows that the others have taken the step before, whose slots the next step writes. But in
 * the last of several steps some warps of the lane, or all, may have no words, so nothing shows this for them. The next
 * operation would then begin in slots that a slow rank has not read. So if the last tile is not full, ranks say that they
 * have come to it. (An operation of one step is shown by the next operation, which begins behind it.)
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

#endif
