/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane as its CTA has it: the words, the places of packets by them, what it leaves for the next operation and the host,
 * and the claim of a CTA that does it again (the life of a CTA is in operate.cuh).
 */
#ifndef CVY_LANE_CUH
#define CVY_LANE_CUH

#include "covey.h"
#include "packet.cuh"

enum cvy_mode {
	CVY_RUN,     /* from the first step */
	CVY_AGAIN,   /* the same, once more: inputs in place are read from where they were saved */
	CVY_COMPLETE /* all was pushed by everyone: only the last step's results are awaited */
};

/* A body works with this and the call. The call is never reached through memory that may change. */
struct cvy_lane_run {
	struct cvy_gpu_lane lane; /* words as they were when the attempt began */
	int index;		  /* of the lane */
	int steps;		  /* of this attempt: may depend on how many contribute */
	int settled;		  /* when one rank has ended, no rank lacks anything */
	int touched;		  /* results may stand over inputs of which no copy is kept */
	int saved;		  /* inputs in place of the CTA's own lane have been */
	enum cvy_mode mode;
	cvy_ranks gone;	 /* COMPLETE: sources that nothing more comes of */
	uint64_t pushed; /* dispatch and combine: tag before the first step of what the lane pushed last */
	uint64_t most;	 /* and cycles that an attempt which is not the first waits for; 0: until it is done */
	struct cvy_waiting watch;
};

static __device__ __forceinline__ struct cvy_gpu_lane cvy_lane_words(const struct cvy_gpu_control *control, int i)
{
	const uint8_t *at = (const uint8_t *)&control->lane[i];
	struct cvy_gpu_lane lane;
#if CVY_GPU_IS_WIDE
	uint64_t v[sizeof(lane) / sizeof(uint64_t)];

	for (size_t i = 0; i < sizeof(lane) / CVY_GPU_PACKET; i++)
		cvy_load_packet(at + i * CVY_GPU_PACKET, v + 2 * i);
	memcpy(&lane, v, sizeof(lane));
#else
	uint64_t v[4];

	cvy_load_packet(at, v);
	cvy_load_packet(at + 16, v + 2);
	lane.count = (uint32_t)v[0];
	lane.epoch = (uint32_t)(v[0] >> 32);
	lane.mask = (uint32_t)v[1];
	lane.failed = (uint32_t)(v[1] >> 32);
	lane.in = v[2];
	lane.out = v[3];
#endif
	return lane;
}

static __device__ __forceinline__ cvy_ranks cvy_load_missing(const struct cvy_gpu_status *status)
{
	uint64_t word[CVY_RANKS_LONGS] = { cvy_load_word(&status->missing) };

	for (int i = 1; i < CVY_RANKS_LONGS; i++)
		word[i] = cvy_load_word(&status->missing_64[i - 1]);
	return cvy_ranks_of_longs(word);
}

/* Which of all places of its kind is @rank's, by its mapping. */
static __device__ __forceinline__ uint32_t cvy_mapping(cvy_generations generations, int rank)
{
	return (uint32_t)rank * CVY_GPU_GENERATIONS + (uint32_t)cvy_generation_of(generations, rank);
}

/*
 * Where a mapping stands. Memory by VMM follows from @base: nothing is looked up. By IPC it stands where the driver put it;
 * the host writes that down before any words name the mapping.
 */
static __device__ __forceinline__ uint8_t *cvy_stands(const struct cvy_gpu_call *c, enum cvy_gpu_place kind,
						      uint8_t *base, uint64_t stride, uint32_t mapping)
{
	if (c->places)
		return (uint8_t *)cvy_load_place(c->places + kind * CVY_GPU_MAPPINGS + mapping);
	return base + mapping * stride;
}

/* Chunk that @rank pushes into here; chunk there that this rank pushes into; its registered memory. */
static __device__ __forceinline__ const uint8_t *cvy_from(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							  int rank)
{
	return cvy_stands(c, CVY_GPU_IN, c->in, CVY_GPU_STRIDE, cvy_mapping(r->lane.in, rank));
}

static __device__ __forceinline__ uint8_t *cvy_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank)
{
	return cvy_stands(c, CVY_GPU_OUT, c->out, CVY_GPU_STRIDE, cvy_mapping(r->lane.out, rank));
}

/* The same where it is known that nothing is looked up: `plain` operations. */
static __device__ __forceinline__ const uint8_t *cvy_straight_from(const struct cvy_gpu_call *c,
								   const struct cvy_lane_run *r, int rank)
{
	return c->in + cvy_mapping(r->lane.in, rank) * CVY_GPU_STRIDE;
}

static __device__ __forceinline__ uint8_t *cvy_straight_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							   int rank)
{
	return c->out + cvy_mapping(r->lane.out, rank) * CVY_GPU_STRIDE;
}

static __device__ __forceinline__ const uint8_t *cvy_window(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							    int rank)
{
	return cvy_stands(c, CVY_GPU_WINDOW, c->windows, c->window_stride, cvy_mapping(r->lane.out, rank));
}

static __device__ __forceinline__ int cvy_has(cvy_ranks mask, int rank)
{
	return cvy_ranks_has(mask, rank);
}

/* Adds a rank to a set that other threads add to. */
static __device__ __forceinline__ void cvy_ranks_join(cvy_ranks *set, int rank)
{
#if CVY_GPU_IS_WIDE
	atomicOr(&set->word[rank / 32], 1u << rank % 32);
#else
	atomicOr(set, 1u << rank);
#endif
}

static __device__ __forceinline__ void cvy_ranks_join_all(cvy_ranks *set, cvy_ranks more)
{
#if CVY_GPU_IS_WIDE
	for (int i = 0; i < CVY_RANKS_WORDS; i++)
		atomicOr(&set->word[i], more.word[i]);
#else
	atomicOr(set, more);
#endif
}

/*
 * Thread p is for rank p where a CTA meets its peers, and does what follows. A wide build gives a thread several: there may be
 * more ranks than threads. The same in a warp.
 */
#if CVY_GPU_IS_WIDE
#define CVY_EACH_OWN(p) for (int p = (int)threadIdx.x; p < CVY_GPU_RANKS; p += (int)blockDim.x)
#define CVY_EACH_OF_WARP(p) for (int p = (int)(threadIdx.x % 32); p < CVY_GPU_RANKS; p += 32)
#define CVY_EACH_OF_FIRST_WARP(p) for (int p = (int)threadIdx.x; threadIdx.x < 32 && p < CVY_GPU_RANKS; p += 32)
#else
#define CVY_EACH_OWN(p) if (const int p = (int)threadIdx.x; p < CVY_GPU_RANKS)
#define CVY_EACH_OF_WARP(p) if (const int p = (int)(threadIdx.x % 32); 1)
#define CVY_EACH_OF_FIRST_WARP(p) CVY_EACH_OWN(p)
#endif

/* The contributors of an outcome, and those of them whose part is not here. */
static __device__ __forceinline__ void cvy_store_masks(struct cvy_gpu_status *status, cvy_ranks mask, cvy_ranks missing)
{
	cvy_store_packet((uint8_t *)&status->mask, cvy_ranks_long(mask, 0), cvy_ranks_long(missing, 0));
	for (int i = 1; i < CVY_RANKS_LONGS; i++) {
		cvy_store_word((uint8_t *)&status->mask_64[i - 1], cvy_ranks_long(mask, i));
		cvy_store_word((uint8_t *)&status->missing_64[i - 1], cvy_ranks_long(missing, i));
	}
}

/* The last operation, plus 1, that @rank ended without this rank; 0: it never did. */
static __device__ uint64_t cvy_passed(const struct cvy_gpu_call *c, int rank)
{
	cvy_generations in = cvy_lane_words(c->control, 0).in;
	const uint8_t *from = cvy_stands(c, CVY_GPU_IN, c->in, CVY_GPU_STRIDE, cvy_mapping(in, rank));

	return cvy_load_word((const uint64_t *)(from + cvy_gpu_passed_at()));
}

/* The verdict stands until all that entered under it have finished. */
static __device__ __forceinline__ int cvy_lane_failed(const struct cvy_gpu_control *control,
						      const struct cvy_lane_run *r, uint64_t op)
{
	struct cvy_gpu_era era;

	if (r->mode != CVY_COMPLETE)
		return (r->lane.failed & CVY_GPU_FAILS) && op == cvy_load_word(&control->verdict.base);
	era = cvy_gpu_era_of(&control->roll, op);
	return era.fails && era.op == op;
}

/* Are there members whose memory is not mapped here? Alike on all of them, and for all threads. */
static __device__ __forceinline__ int cvy_far(const struct cvy_lane_run *r)
{
	return (r->lane.failed & CVY_GPU_FAR) != 0;
}

/* By words of a change that found this rank behind? */
static __device__ __forceinline__ int cvy_lags(const struct cvy_lane_run *r)
{
	return (r->lane.failed & CVY_GPU_LAGS) != 0;
}

/* Is there something to look at before anything is pushed? Rare: one test. */
static __device__ __forceinline__ int cvy_looks_first(const struct cvy_lane_run *r)
{
	return (r->lane.failed & (CVY_GPU_LAGS | CVY_GPU_LATE)) != 0;
}

/* Stores the outcome for later kernels: by lane 0, and by any lane that knows of a missing part. */
static __device__ __forceinline__ void cvy_lane_status(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       uint64_t op)
{
	struct cvy_gpu_status *status = &c->control->status;
	cvy_ranks missing = r->mode == CVY_COMPLETE && !r->settled && cvy_gpu_is_private(c->kind)
				    ? cvy_ranks_and(r->gone, r->lane.mask)
				    : cvy_ranks_none();
	int root = c->root >= 0, result = 0;

	if (r->index && !cvy_ranks_any(missing))
		return;
	if (cvy_lane_failed(c->control, r, op))
		result = COVEY_ERR_LOST;
	else if (root && !cvy_has(r->lane.mask, c->root))
		result = COVEY_ERR_ROOT;
	else if (cvy_ranks_any(missing) && (c->kind == CVY_GPU_REDUCE_SCATTER || (root && cvy_has(missing, c->root))))
		result = COVEY_ERR_LOST;
	cvy_store_packet((uint8_t *)status, (uint64_t)r->lane.epoch << 32 | (uint32_t)result, op);
	cvy_store_masks(status, r->lane.mask, missing);
}

/* One thread. The steps of the lane are done: the words that the next operation, and the host, begin from. */
static __device__ __forceinline__ void cvy_lane_done(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     uint64_t op)
{
	struct cvy_gpu_control *control = c->control;

	cvy_store_packet((uint8_t *)&control->past[r->index], CVY_GPU_DONE(op, r->lane.epoch),
			 CVY_GPU_COUNTED(r->lane.count));
	((volatile struct cvy_gpu_lane *)control->lane)[r->index].count = r->lane.count + (uint32_t)r->steps;
	cvy_lane_status(c, r, op);
}

/* Would it read, done again, inputs that its results replace? In place, and more than the slots of one step. */
static __device__ __forceinline__ int cvy_spoils(const struct cvy_gpu_call *c)
{
	return c->in_place && c->steps > 1;
}

static __device__ void cvy_say_parked(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, uint64_t op)
{
	struct cvy_gpu_parked *p = &c->control->parked;

	p->op = op;
	p->lanes = (uint32_t)c->lanes;
	p->steps = (uint32_t)r->steps;
	p->rounds = cvy_gpu_has_rounds(c->kind) && cvy_ranks_count(r->lane.mask) > 2 ? 2 : 1;
	p->slot_bytes = (uint32_t)(c->rows * c->threads * CVY_GPU_PACKET);
	p->private_parts = (uint32_t)(r->settled || cvy_gpu_is_private(c->kind) || c->kind == CVY_GPU_ADMIT);
	if (cvy_spoils(c) && r->touched)
		p->spoiled = op + 1;
}

/*
 * Is lane @i, which was last done as @was says, for this CTA to do (again) in @epoch? Its own, or one whose CTA has left;
 * nobody else may have it then. Of a lane that has been done since, it is not.
 */
static __device__ int cvy_claim_from(struct cvy_gpu_control *control, int i, uint64_t was, uint64_t op, uint32_t epoch)
{
	uint64_t want = CVY_GPU_DONE(op, epoch);
	int same = CVY_GPU_DONE_OP(was) == CVY_GPU_DONE_OP(want);

	if (was == want || (i != (int)blockIdx.x && !same))
		return 0;
	if (!same) { /* the count is of an earlier operation: a reader of both words would take it for this one's */
		cvy_store_word((uint8_t *)&control->past[i].counted, 0);
		__threadfence();
	}
	return atomicCAS((unsigned long long *)&control->past[i].done, was, want) == was;
}

static __device__ int cvy_claim(struct cvy_gpu_control *control, int i, uint64_t op, uint32_t epoch)
{
	return cvy_claim_from(control, i, cvy_load_word(&control->past[i].done), op, epoch);
}

/* This CTA has claimed lane @i: its words as before the operation, with the steps counted so far. */
static __device__ __forceinline__ void cvy_take_lane(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int i)
{
	const uint64_t counted = cvy_load_word(&c->control->past[i].counted);

	r->index = i;
	r->lane = cvy_lane_words(c->control, i);
	r->lane.failed &= ~CVY_GPU_LAGS;
	if (counted >> 32) /* of this operation: the claim saw to it */
		r->lane.count = (uint32_t)counted;
}

/* A body by the long way. Its changes of @r are not needed afterwards. */
template <typename BODY>
static __device__ __noinline__ int cvy_long_way(const struct cvy_gpu_call *c, struct cvy_lane_run r)
{
	return BODY::template run<0>(c, &r);
}

#endif
