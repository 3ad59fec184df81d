/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of ep-perf all2all. all2all_load.c makes the five shapes and their inputs, all2all_check.c knows
 * what must come out; all2all.c walks shapes, experts and ways, and has their buffers; all2all_time.c takes the times.
 * A *way* is how tokens go to their experts and back: all2all_covey.c by covey, all2all_nccl.c by grouped sends and
 * receives of NCCL, all2all_heap.c by kernels on a heap that all ranks map.
 */
#ifndef PERF_ALL2ALL_H
#define PERF_ALL2ALL_H

#include "perf.h"

#define PERF_WIRE_GBS 370 /* of one device, each way */
#define PERF_A2A_PARTS 40
#define PERF_A2A_RANKS 8
#define PERF_A2A_TOPK 8

/* ---- all2all_load.c ---- */

struct perf_shape {
	int experts, topk, hidden, tokens; /* a rank has 1 to tokens - 1 of them */
	uint64_t seed;
};

extern const struct perf_shape perf_shapes[PERF_SHAPES];

uint32_t perf_philox(uint64_t key); /* first word of Philox 4x32-10 at counter 0 */
int perf_shape_tokens(const struct perf_shape *s, int rank);
void perf_shape_experts(const struct perf_shape *s, int rank, int token, int32_t *ids);	  /* topk distinct ones */
void perf_shape_weights(const struct perf_shape *s, int rank, int token, float *weights); /* from 0 to 1 */
void perf_shape_row(const struct perf_shape *s, int rank, int token, uint16_t *x);	  /* fp16, normal */
void perf_shape_table(const struct perf_shape *s, int owner, size_t count, float *table); /* what owners know */

float perf_of_half(uint16_t half);
uint16_t perf_half(float f); /* to nearest even */

/* ---- one shape, with one kind of experts ---- */

/* An expert multiplies its rows by 1 + its rank, or by a vector: the owner's table from the expert's local number on. */
enum perf_expert { PERF_BY_RANK, PERF_BY_VECTOR };

struct perf_a2a {
	struct perf_job *job;
	const struct perf_shape *shape;
	enum perf_expert expert;
	int n;	   /* own tokens */
	int rung;  /* of a heap's way */
	int local; /* experts of a rank: the first `local` are rank 0's */
	/* own inputs, on the host */
	uint16_t *x;
	int32_t *ids;
	float *weights, *table;
	/* the same where a way reads them, and what it writes: memory of the device, if there is one */
	const uint16_t *in_x;
	const int32_t *in_ids;
	const float *in_weights, *in_table;
	uint16_t *out;
	uint16_t *clone_x; /* of the inputs; a way reads these */
	int32_t *clone_ids;
	float *clone_weights;
	void *part[PERF_A2A_PARTS];
	int parts;
};

struct perf_way {
	/* 0 and *state NULL: it cannot be had here, as was said */
	int (*open)(struct perf_a2a *a, void **state);
	int (*pair)(struct perf_a2a *a, void *state);  /* there, through the experts and back; queued on a device */
	int (*again)(struct perf_a2a *a, void *state); /* the same, as a graph can have it */
	int (*late)(struct perf_a2a *a, void *state, bool *is); /* did a wait end in vain, on any rank? may be NULL */
	void (*close)(struct perf_a2a *a, void *state);
	int rung;	 /* of a heap */
	bool by_options; /* sums are those of --preset and --combine, else over k ascending */
};

extern const struct perf_way perf_way_covey, perf_way_nccl, perf_way_heap[PERF_RUNGS];

/* Zeroed memory of the device, or of the host. Does nothing, and gives NULL, if *err is set; sets it if it fails. */
void *perf_a2a_part(struct perf_a2a *a, size_t bytes, int *err);
/* The same with what is in host memory at @from. */
void *perf_a2a_copy(struct perf_a2a *a, const void *from, size_t bytes, int *err);
void perf_a2a_give_back(struct perf_a2a *a, int from); /* those that came after the first @from */

static inline float perf_a2a_factor(const struct perf_a2a *a, const float *table, int owner, int local, int h)
{
	return a->expert == PERF_BY_VECTOR ? table[local + h] : (float)(1 + owner);
}

/* Is there no step of experts, since the combine multiplies? */
static inline bool perf_a2a_fused(const struct perf_a2a *a)
{
	return a->job->opt.fused && a->expert == PERF_BY_RANK;
}

/* What an expert gives for one element. */
static inline uint16_t perf_a2a_times(uint16_t x, float factor)
{
	return perf_half(perf_of_half(x) * factor);
}

struct cvy_gpu_routed;

/* What the kernels of tool.h have of the open shape. */
void perf_a2a_routed(const struct perf_a2a *a, struct cvy_gpu_routed *to);

/* all2all_check.c: adds elements that are not covey's documented sum, and those too far from the contest's */
int perf_a2a_check(const struct perf_a2a *a, const struct perf_way *way, const uint16_t *out,
		   struct perf_a2a_time *time);

/* all2all_time.c */
int perf_a2a_floor(struct perf_a2a *a, double *us);
int perf_a2a_measure(struct perf_a2a *a, const struct perf_way *way, void *state, struct perf_a2a_time *time);

/* all2all_out.c */
void perf_print_a2a_head(const struct perf_job *job);
void perf_print_a2a(const struct perf_job *job, const struct perf_a2a_row *row);
void perf_print_a2a_means(const struct perf_job *job);

#endif
