/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by dispatch and combine: places of words and lines of a step, the ranks that take part, and how a warp sends and
 * takes lines. A warp stores and loads four lines at a time: its thread u has packet u % 8 of line u / 8.
 */
#ifndef CVY_EP_BODY_CUH
#define CVY_EP_BODY_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "step.cuh"
#include "ep_call.h"

#define CVY_EP_WARPS (CVY_EP_THREADS / 32)
#define CVY_EP_ALL 0xffffffffu

/* Of a CTA, in shared memory. */
struct cvy_ep_shared {
	uint64_t mine[2]
		     [CVY_GPU_RANKS]; /* dispatch: tokens of the step that go to each rank; of a bulk step, and the next */
	uint64_t theirs[CVY_GPU_RANKS];	 /* tokens of the step that come from each; combine: rows for each */
	uint64_t back[2][CVY_GPU_RANKS]; /* combine in bulk steps: rows for each, of a step and the next */
	uint64_t got[CVY_GPU_RANKS];	 /* combine: of the own tokens of the step, which each says that it sends */
	cvy_ranks late;			 /* deadline passed without them */
	cvy_ranks lacking;		 /* owners that had not got what was sent */
	cvy_ranks left_out;		 /* contributors that are not waited for: removed, or not active */
	cvy_ranks raw;			 /* bulk steps: whose rows have no tags */
	uint32_t taken[2];		 /* and how much of a step, and of the next, warps have taken to stage */
	cvy_ranks unsent;		 /* of other hosts: what was put to them before has not left */
	int stopped;
	int nothing; /* completing: others ended steps without this rank, and what they had sent may be gone */
	/* One thread reads these for all when the CTA begins: others may write them later. */
	struct cvy_gpu_lane lane;
	uint64_t pushed;
	uint64_t entered; /* what thread 0 found when it counted the CTA, for itself: kept here it takes no register */
	cvy_ranks lost;	  /* combine: whose tokens did not come */
	cvy_ranks active; /* ranks that the caller does not rule out */
	struct cvy_ep_tables tables; /* as in the handle's memory, where a look takes a tenth of that */
};

static_assert(CVY_EP_THREADS >= CVY_GPU_RANKS, "thread p is for rank p");
static_assert(sizeof(struct cvy_ep_shared) + 128 <= CVY_EP_STATIC, "and what functions have of their own");

/* Of thread 0: what it found when it counted the CTA. Volatile, or compilers let all threads read it and choose then. */
static __device__ __forceinline__ uint64_t cvy_ep_entered(const struct cvy_ep_shared *sh)
{
	uint64_t entered = 0;

	if (threadIdx.x == 0)
		entered = ((const volatile struct cvy_ep_shared *)sh)->entered;
	return entered;
}

/* The counts of a dispatch without rows. */
static __device__ __forceinline__ void cvy_ep_no_rows(const struct cvy_ep_args *a)
{
	const int bins = a->once ? a->el > 0 : a->el;

#pragma unroll 1
	for (int i = (int)threadIdx.x; i < bins * a->call.size; i += CVY_EP_THREADS)
		a->range[i] = 0;
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->el; i += CVY_EP_THREADS)
		a->count[i] = 0;
}

/* One step, as all threads see it. */
struct cvy_ep_step {
	uint64_t tag;
	uint32_t count;
	int first; /* token of the lane */
	int slice; /* piece of a row: its lines are `slice_lines` from there */
};

struct cvy_ep_turn {
	const struct cvy_ep_args *a;
	struct cvy_lane_run *r;
	struct cvy_ep_shared *sh;
	uint64_t base;	   /* tag before the first step of this attempt */
	cvy_ranks sources; /* ranks that it hears, and itself */
	cvy_ranks peers;   /* ranks that it sends to */
	int sent;	   /* the first step was, by the send phase of this operation in this view */
	struct cvy_until until;
};

static __device__ __forceinline__ struct cvy_ep_step cvy_ep_step_of(const struct cvy_ep_turn *t, int step)
{
	const struct cvy_ep_form *f = &t->a->form;
	struct cvy_ep_step s;

	s.count = (uint32_t)t->base + 1 + (uint32_t)step;
	s.tag = CVY_GPU_TAG(t->base >> 32, s.count);
	s.first = step * f->per_step;
	s.slice = t->r->index & ((1 << f->across) - 1);
	if (f->slices > 1) {
		s.first = step / f->slices * f->per_step;
		s.slice = s.slice * f->slices + step % f->slices;
	}
	return s;
}

/* The first token of lane @index. */
static __device__ __forceinline__ int cvy_ep_first_token(const struct cvy_ep_args *a, int index)
{
	return index >> a->form.across;
}

/* Token @j of the step, as its rank numbers it. */
static __device__ __forceinline__ int cvy_ep_token(const struct cvy_ep_turn *t, const struct cvy_ep_step *s, int j)
{
	return (s->first + j) * t->a->form.apart + cvy_ep_first_token(t->a, t->r->index);
}

static __device__ __forceinline__ int cvy_ep_row_lines(const struct cvy_ep_args *a)
{
	return (a->form.row_words + CVY_EP_LINE_WORDS - 1) / CVY_EP_LINE_WORDS;
}

/* Lines of a row up to which this step moves it, from s->slice * slice_lines on; there may be none. */
static __device__ __forceinline__ int cvy_ep_last_line(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	int lines = cvy_ep_row_lines(t->a), to = (s->slice + 1) * t->a->form.slice_lines;

	return to < lines ? to : lines;
}

/* Line @g of a step in a chunk. */
static __device__ __forceinline__ size_t cvy_ep_line_at(const struct cvy_ep_turn *t, const struct cvy_ep_step *s, int g)
{
	return cvy_gpu_slot_at(g / CVY_EP_SLOT_LINES, t->r->index, s->count) +
	       (size_t)(g % CVY_EP_SLOT_LINES) * CVY_EP_LINE_BYTES;
}

/* Place of this thread in quad @q: its line, and its first word of all that stand in lines from there. */
static __device__ __forceinline__ int cvy_ep_place(int q, int *word)
{
	int u = (int)(threadIdx.x % 32), line = q * 4 + u / 8;

	*word = line * CVY_EP_LINE_WORDS + u % 8 * 2;
	return line;
}

static __device__ __forceinline__ size_t cvy_ep_packet_at(void)
{
	return (size_t)(threadIdx.x % 8) * CVY_GPU_PACKET;
}

/* This thread's packet of line @g to @rank, if @in. All threads of a warp. */
static __device__ __forceinline__ void cvy_ep_send(const struct cvy_ep_turn *t, const struct cvy_ep_step *s, int rank,
						   int g, int in, const uint64_t v[2])
{
	uint8_t *at = cvy_to(&t->a->call, t->r, rank) + cvy_ep_line_at(t, s, g) + cvy_ep_packet_at();

	__syncwarp(); /* one instruction stores a line */
	if (in)
		cvy_store_packet(at, v[0], threadIdx.x % 8 == 7 ? s->tag : v[1]);
}

static __device__ __forceinline__ const uint8_t *cvy_ep_from(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							     int rank, int g)
{
	return cvy_from(&t->a->call, t->r, rank) + cvy_ep_line_at(t, s, g) + cvy_ep_packet_at();
}

/* A warp's wait that did not end well: for all to see. */
static __device__ __forceinline__ void cvy_ep_failed(struct cvy_ep_turn *t, int how, int whom)
{
	if (threadIdx.x % 32)
		return;
	if (how == 1)
		((volatile struct cvy_ep_shared *)t->sh)->stopped = 1;
	else
		cvy_ranks_join(&t->sh->late, whom);
}

/* The first rank that this warp hears, and then every CVY_EP_WARPS-th: the first warps push rows, and the last headers. */
static __device__ __forceinline__ int cvy_ep_hears(void)
{
	return (int)(threadIdx.x / 32 + CVY_EP_WARPS / 2) % CVY_EP_WARPS;
}

/*
 * A warp waits for the whole header of @rank; each(word number, word). Not 0: stopped or late, and said so.
 */
template <typename EACH>
static __device__ __forceinline__ int cvy_ep_take_header(struct cvy_ep_turn *t, const struct cvy_ep_step *s, int rank,
							 EACH each)
{
	int lines = t->a->form.header_lines, u = (int)(threadIdx.x % 32);

#pragma unroll 1
	for (int first = 0; first < lines; first += 4) {
		int line = first + u / CVY_EP_LINE_PACKETS, how;
		uint64_t v[2];

		how = cvy_wait_packet(line < lines ? cvy_ep_from(t, s, rank, line) : NULL, rank, s->tag, v,
				      &t->r->watch, &t->until);
		if (how) {
			cvy_ep_failed(t, how, rank);
			return how;
		}
		if (line < lines)
			each(first * CVY_EP_LINE_PACKETS + u, v[0]);
	}
	return 0;
}

/* Number @i of a list of @by in each, and *rest its place there. */
static __device__ __forceinline__ int cvy_ep_split(int i, int by, int *rest)
{
	int whole = 0;

	*rest = i;
	if (by == 1) {
		whole = i;
		*rest = 0;
	} else if (i >= by) {
		whole = i / by;
		*rest = i % by;
	}
	return whole;
}

/* Adds how long lane 0 waited for @rank, in vain or not, to the caller's `waited`. */
static __device__ __forceinline__ void cvy_ep_waited(const struct cvy_ep_turn *t, int rank)
{
	if (t->a->waited && !t->r->index && threadIdx.x % 32 == 0)
		t->a->waited[rank] += clock64() - t->until.began;
}

/* Of expert, or rank, @i. */
struct cvy_ep_names {
	uint16_t local, first;
	cvy_rank_small owner;
};

static __device__ __forceinline__ struct cvy_ep_names cvy_ep_names_at(const struct cvy_ep_args *a, int i)
{
	const struct cvy_ep_tables *tables = &a->state->tables;
	struct cvy_ep_names n = {};

	if (i < a->experts) {
		n.owner = tables->owner[i];
		n.local = tables->local[i];
	}
	if (i <= a->call.size)
		n.first = tables->first[i];
	return n;
}

/* All threads, before a barrier: the tables come near. @n: of the thread's own number, read before. */
static __device__ __forceinline__ void cvy_ep_keep_names(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							 struct cvy_ep_names n)
{
	struct cvy_ep_tables *near = &sh->tables;

#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->experts || i <= a->call.size; i += CVY_EP_THREADS) {
		if (i != (int)threadIdx.x)
			n = cvy_ep_names_at(a, i);
		if (i < a->experts) {
			near->owner[i] = n.owner;
			near->local[i] = n.local;
		}
		if (i <= a->call.size)
			near->first[i] = n.first;
	}
}

/* A warp: ranks that the caller does not rule out. */
static __device__ __forceinline__ cvy_ranks cvy_ep_active(const struct cvy_ep_args *a)
{
	cvy_ranks active;

	CVY_EACH_OF_WARP(p)
	*cvy_ranks_word(&active, p / 32) =
		__ballot_sync(CVY_EP_ALL, p < a->call.size && (!a->active || p == a->call.rank ||
							       ((volatile int32_t *)a->active)[p]));
	return active;
}

/* The ranks that take part: admitted, known to the buffers, not gone, and active if the caller gives active_ranks. */
template <int HOT>
static __device__ __forceinline__ cvy_ranks cvy_ep_members(const struct cvy_lane_run *r, const struct cvy_ep_shared *sh)
{
	return cvy_ranks_but(cvy_ranks_and(r->lane.mask, sh->active),
			     cvy_mode<HOT>(r) == CVY_COMPLETE ? r->gone : cvy_ranks_none());
}

/* One thread, of an attempt of contributors @mask that waits for @sources: nothing has befallen it yet. */
static __device__ __forceinline__ void cvy_ep_none_yet(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
						       cvy_ranks mask, cvy_ranks sources)
{
	sh->late = sh->lacking = sh->unsent = cvy_ranks_none();
	sh->left_out = cvy_ranks_but(cvy_ranks_and(mask, a->size_mask), sources);
	sh->stopped = 0;
}

#define CVY_EP_UNSENT -1 /* the step of a record that tells of the outcome alone */

/* One thread: @lane was pushed under @tag, up to step @step, with the contributors @mask. */
static __device__ __forceinline__ void cvy_ep_record(struct cvy_ep_lane *lane, uint64_t tag, int step, cvy_ranks mask)
{
#if CVY_GPU_IS_WIDE
	cvy_ranks_write(&lane->contributors, mask);
	__threadfence();
	cvy_store_packet((uint8_t *)&lane->pushed, tag, (uint64_t)(uint32_t)step << 32);
#else
	cvy_store_packet((uint8_t *)&lane->pushed, tag, (uint64_t)(uint32_t)step << 32 | mask);
#endif
}

static __device__ __forceinline__ cvy_ranks cvy_ep_recorded(const struct cvy_ep_lane *lane)
{
#if CVY_GPU_IS_WIDE
	return cvy_load_ranks(&lane->contributors);
#else
	return (uint32_t)cvy_load_word(&lane->mask);
#endif
}

/* All threads; what is set in @sh is seen behind the next barrier. */
template <int HOT>
static __device__ __forceinline__ struct cvy_ep_turn cvy_ep_begin(const struct cvy_ep_args *a, struct cvy_lane_run *r,
								  struct cvy_ep_shared *sh)
{
	struct cvy_ep_turn t = { a, r, sh, CVY_GPU_STEP(r->lane.epoch, r->lane.count), {}, {}, 0, { 0, 0 } };
	uint64_t pushed = HOT ? r->pushed : 0;

	if (!HOT && r->mode == CVY_RUN)
		pushed = r->pushed;
	else if (!HOT)
		pushed = cvy_load_word(&a->state->lane[r->index].pushed);
	t.sent = pushed == t.base;
	if (cvy_mode<HOT>(r) == CVY_COMPLETE) {
		t.base = pushed;
		r->lane.epoch = (uint32_t)(pushed >> 32);
		r->lane.count = (uint32_t)pushed;
		r->lane.mask = cvy_ep_recorded(&a->state->lane[r->index]);
		t.sent = (int)(cvy_load_word(&a->state->lane[r->index].mask) >> 32) != CVY_EP_UNSENT;
	}
	t.sources = cvy_ep_members<HOT>(r, sh);
	t.peers = cvy_ranks_without(t.sources, a->call.rank);
	t.until.began = clock64();
	t.until.most = HOT ? a->timeout_cycles : r->most; /* completing, too: others may have written on */
	if (!HOT && threadIdx.x == 0)			  /* else it is (cvy_ep_prepare) */
		cvy_ep_none_yet(a, sh, r->lane.mask, t.sources);
	return t;
}

/* May a source of another host go on without this rank while it reads? */
static __device__ __forceinline__ int cvy_ep_overtakes(const struct cvy_ep_turn *t)
{
	return CVY_GUARDED && t->until.most && cvy_far(t->r);
}

template <int HOT> static __device__ __forceinline__ int cvy_ep_must_send(const struct cvy_ep_turn *t, int step)
{
	return cvy_mode<HOT>(t->r) == CVY_COMPLETE ? !t->sent : step > 0 || !t->sent;
}

/* After a barrier that all readers have passed: step @step is sent, so the steps before it were taken. */
static __device__ __forceinline__ void cvy_ep_say_sent(const struct cvy_ep_turn *t, int step)
{
	if (threadIdx.x == 0)
		cvy_ep_record(&t->a->state->lane[t->r->index], t->base, step, t->r->lane.mask);
}

/* Of the last step that cvy_ep_owes_last() sends there is no record: a later change must not take the lane for one that has all. */
template <int HOT> static __device__ __forceinline__ int cvy_ep_records(const struct cvy_ep_turn *t)
{
	return cvy_mode<HOT>(t->r) != CVY_COMPLETE || t->a->form.steps == 1;
}

/*
 * All threads, of a lane that gets nothing: is its last step to be sent even so? If it has not been, to the ranks that did come to
 * theirs: they have all steps before, and wait for this one. Their headers of it are here since before the change. Others may still
 * read what stands in that slot.
 */
static __device__ __forceinline__ int cvy_ep_owes_last(struct cvy_ep_turn *t)
{
	const struct cvy_ep_step s = cvy_ep_step_of(t, t->a->form.steps - 1);

	if ((int)(cvy_load_word(&t->a->state->lane[t->r->index].mask) >> 32) + 1 >= t->a->form.steps)
		return 0;
	__syncthreads(); /* behind cvy_ep_none_yet() */
	CVY_EACH_OWN(p)
	{
		if (cvy_has(t->peers, p) && cvy_load_word((const uint64_t *)(cvy_from(&t->a->call, t->r, p) +
									     cvy_ep_line_at(t, &s, 0) + 8)) != s.tag)
			cvy_ranks_join(&t->sh->unsent, p);
	}
	__syncthreads();
	t->peers = cvy_ranks_but(t->peers, t->sh->unsent);
	t->sent = 0;
	return cvy_ranks_any(t->peers);
}

/* After a step: did a warp stop? Those that are late are waited for no more. Alike for all threads. */
static __device__ __forceinline__ int cvy_ep_stopped(struct cvy_ep_turn *t)
{
	const volatile struct cvy_ep_shared *sh = t->sh;
	cvy_ranks late;
	int stopped;

	if (!__syncthreads_or(sh->stopped ||
			      cvy_ranks_any(cvy_ranks_read(&sh->late)))) /* a rank that has said so sees it */
		return 0;
	late = cvy_ranks_read(&sh->late);
	stopped = sh->stopped;
	__syncthreads();
	t->sources = cvy_ranks_but(t->sources, late);
	return stopped;
}

/*
 * ---- elements: bf16 or fp16, alike for a launch ----
 *
 * Code that converts is a template. Its caller asks a->fp16 once for all that is converted.
 */

/* Element @i of a word. */
template <int FP16> static __device__ __forceinline__ float cvy_ep_wide(uint64_t v, int i)
{
	uint32_t two = i < 2 ? (uint32_t)v : (uint32_t)(v >> 32);

	if (FP16) {
		__half2 pair;

		memcpy(&pair, &two, sizeof(pair));
		return i % 2 ? __high2float(pair) : __low2float(pair);
	}
	return __uint_as_float(i % 2 ? two & 0xffff0000u : two << 16);
}

/* Four elements as a word, rounded to nearest even. The conversions make each NaN 0x7fff, and the host does the same. */
template <int FP16> static __device__ __forceinline__ uint64_t cvy_ep_narrow(const float v[4])
{
	uint32_t low, high;

	if (FP16) {
		__half2 l = __floats2half2_rn(v[0], v[1]), h = __floats2half2_rn(v[2], v[3]);

		memcpy(&low, &l, sizeof(low));
		memcpy(&high, &h, sizeof(high));
	} else {
		__nv_bfloat162 l = __floats2bfloat162_rn(v[0], v[1]), h = __floats2bfloat162_rn(v[2], v[3]);

		memcpy(&low, &l, sizeof(low));
		memcpy(&high, &h, sizeof(high));
	}
	return (uint64_t)high << 32 | low;
}

#endif
