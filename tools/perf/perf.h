/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of ep-perf. ep-perf.c reads the options; job.c joins the group and walks sizes, types, reductions
 * and roots; measure.c times one row of the table; types.c is the table of types and
 * reductions; device.c has memory, graphs and times of a device, nccl.c NCCL beside us; data.c knows the right value of
 * every byte; fault.c strikes a rank; ep.c measures dispatch and combine on host memory, ep_device.c, ep_check.c and
 * ep_split.c on devices; out.c, ep_out.c, json.c and plot.c print.
 *
 * Every rank runs the same calls in the same order, decisions included: values that decide a loop are agreed on first.
 * Rank 0, or the lowest remaining rank, prints.
 */
#ifndef PERF_H
#define PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../local/small.h"
#include "../operations/operations.h"
#include "covey_ep.h"

enum { PERF_OK, PERF_WRONG, PERF_FAILED, PERF_USAGE = 64 }; /* exit codes */
enum { PERF_OF_RANK0, PERF_OF_AVG, PERF_OF_MIN, PERF_OF_MAX };
enum { PERF_KILL = 1, PERF_STOP };

#define PERF_ALL (-1)

struct perf_type {
	const char *name; /* nccl-tests' */
	int dtype;	  /* enum covey_dtype */
	size_t bytes;
	enum { PERF_SIGNED, PERF_UNSIGNED, PERF_FLOAT, PERF_HALF, PERF_BF16 } kind;
};

struct perf_redop {
	const char *name;
	int redop; /* enum covey_redop */
	enum { PERF_SUM, PERF_PROD, PERF_MIN, PERF_MAX, PERF_AVG } kind;
};

extern const struct perf_type perf_types[];
extern const struct perf_redop perf_redops[];
extern const int perf_type_count, perf_redop_count;

#define PERF_LIST 16

struct perf_list {
	int value[PERF_LIST], count;
};

struct perf_options {
	const struct operation *op; /* NULL: dispatch and combine */
	size_t min_bytes, max_bytes, step_bytes;
	double factor; /* 0: steps */
	int iters, warmup, checks, average;
	int registered; /* 1: in the own window (on a device both buffers, NCCL's too); 2: these as symmetric windows */
	bool device, alone; /* memory of a device; NCCL is not loaded */
	int graphs, turns;  /* replays of a graph of iters operations, 0: none; turns whose median counts */
	int type, redop;    /* index into the table, PERF_ALL */
	int root;	    /* PERF_ALL */
	int timeout_s;
	int fault, fault_rank, fault_iter;
	int tokens, hidden, experts, topk;	/* tokens: of the row that is measured */
	struct perf_list token_list, lane_list; /* lanes: on devices; 0: as many as pay */
	int rows, back;				/* enum covey_ep_rows_as, _back_as */
	int preset, combine;			/* on devices; enum covey_ep_preset, _combine_as */
	bool split;
	const char *json, *plot;
	bool explain; /* print the chosen options, and leave */
	bool spoil;   /* one bit before each check: it must be found */
	double least_busbw;
	uint64_t seed; /* of inputs */
};

/* Times of single operations, logarithmic: within 1/PERF_SUB of the truth. Filled by a loop of its own. */
#define PERF_SUB_BITS 6
#define PERF_SUB (1 << PERF_SUB_BITS)
#define PERF_BUCKETS (PERF_SUB * 40)

struct perf_hist {
	int64_t count[PERF_BUCKETS];
	uint64_t min_ns, max_ns;
};

struct perf_side { /* out of place, or in place */
	bool measured;
	double us, algbw, busbw;
	double p50_us, p99_us, min_us, max_us;
	double nccl_us; /* 0: not measured */
	int64_t wrong;	/* -1: not checked */
};

struct perf_fault { /* us from the stroke; 0: none in this row */
	double detect_us, recover_us;
	int left; /* ranks */
	bool struck;
};

struct perf_row {
	size_t bytes, count;
	int type, redop, root; /* redop: -1 where there is none; type too */
	int ranks;
	struct perf_side out, in;
	struct perf_fault fault;
};

struct perf_ep_row {
	size_t bytes; /* of the rows that a rank received, average */
	double dispatch_us, combine_us, memcpy_us, p50_us, p99_us;
	double ratio; /* (dispatch + combine) / two memcpys */
	int64_t wrong;
};

/* us; of a busy kernel: between the phases; with nothing beside it; begun together with the receive */
struct perf_split {
	double send_us, recv_us, all_us;
	double busy_us, alone_us, beside_us;
};

/* Dispatch and combine on devices; of an array of two the first is dispatch, the second combine. */
struct perf_pair_row {
	int tokens, lanes;
	int steps[2];		  /* of a lane; the first goes in the send phase */
	bool bulk[2];		  /* the form of rows; else lines */
	double bytes[2];	  /* of rows that a rank sends to others, average */
	struct perf_side side[3]; /* the third: both, one after the other */
	struct perf_split split[2];
	int64_t wrong;
};

#define PERF_HOST_RANKS 256 /* of a library for devices, at most */

struct perf_job {
	struct perf_options opt;
	struct covey_group *group;
	int rank, size; /* own; of the group when it was joined */
	int max_ranks;
	uint8_t host[PERF_HOST_RANKS]; /* the first rank of each rank's host; of two hops (hosts.c) */
	struct covey_mask mask;	       /* contributors of the last operation */
	char *send, *recv;	       /* inside guarded buffers */
	size_t room;		       /* bytes of each, without guards */
	struct perf_device *device;    /* NULL: host memory */
	struct perf_hist *hist;
	struct perf_row *rows;
	int row_count;
	struct perf_ep_row ep_row;
	struct perf_pair_row *pair_rows;
	int pair_row_count;
	int64_t wrong;
	double busbw_sum;
	int busbw_count;
};

static inline int perf_live(const struct perf_job *job)
{
	return covey_mask_count(&job->mask);
}

/* The lowest remaining rank. */
static inline bool perf_speaks(const struct perf_job *job)
{
	for (int r = 0; r < job->rank; r++)
		if (covey_mask_has(&job->mask, r))
			return false;
	return true;
}

/* ep-perf.c */
int perf_parse(int argc, char **argv, struct perf_options *opt);
int perf_fail(const struct perf_job *job, const char *what, int err); /* prints the cause; returns @err */

/* job.c: PERF_OK, PERF_WRONG or PERF_FAILED */
int perf_run(struct perf_job *job);
int perf_agree(struct perf_job *job, double *value, int redop);
int perf_agree_counts(struct perf_job *job, int64_t *values, size_t count);

/* data.c */
int perf_buffers_open(struct perf_job *job, size_t bytes);
void perf_buffers_close(struct perf_job *job);
void perf_fill(struct perf_job *job, const struct perf_row *row, const struct operation_call *call);
int64_t perf_wrong(struct perf_job *job, const struct perf_row *row, const struct operation_call *call);
void perf_spoil(const struct perf_job *job, const struct perf_row *row, const struct operation_call *call);

/* types.c */
void perf_put(const struct perf_type *type, void *to, int value);
/* The reduction of @n small @values, stored at @to. */
void perf_fold(const struct perf_type *type, const struct perf_redop *op, const int *values, int n, void *to);

/* measure.c */
int perf_measure(struct perf_job *job, struct perf_row *row);
void perf_set_up(struct perf_job *job, const struct perf_row *row, bool in_place, struct operation_call *call);

int perf_combined(struct perf_job *job, double *us); /* over the ranks, as -a says */

/* device.c: 0 or COVEY_ERR_*, after a message */
int perf_device_open(struct perf_job *job);
int perf_device_buffers(struct perf_job *job, const char *send, const char *recv, size_t bytes);
void perf_device_close(struct perf_job *job);
void perf_device_call(const struct perf_job *job, const struct operation_call *call, struct operation_call *out);
int perf_device_copy(struct perf_job *job, bool back);
int perf_device_wait(struct perf_job *job);
int perf_device_once(struct perf_job *job, const struct operation_call *call); /* on the copied buffers */
int perf_device_measure(struct perf_job *job, const struct operation_call *call, struct perf_side *side);

/* nccl.c */
struct perf_nccl;
int perf_nccl_open(struct perf_job *job, size_t bytes, struct perf_nccl **out); /* NULL: there is none */
void perf_nccl_close(struct perf_nccl *n);
bool perf_nccl_has(const struct perf_nccl *n, const struct operation *op, const struct operation_call *call);
int perf_nccl_run(const struct perf_nccl *n, const struct operation *op, const struct operation_call *call,
		  const char *const ours[2], size_t bytes);

/* hist.c */
void perf_hist_clear(struct perf_hist *hist);
void perf_hist_add(struct perf_hist *hist, uint64_t ns);
double perf_hist_us(const struct perf_hist *hist, double part);
int perf_hist_merge(struct perf_job *job, struct perf_hist *hist);

/* fault.c */
int perf_strike(struct perf_job *job, struct perf_row *row);

/* ep.c */
int perf_ep(struct perf_job *job);
unsigned perf_ep_value(int source, int token, int element);			  /* of a token */
int perf_ep_expert(const struct perf_options *opt, int source, int token, int k); /* distinct for the k of a token */

/* ep_value.c */
struct cvy_ep_code;
const struct cvy_ep_code *perf_ep_code(const struct perf_options *opt); /* of dispatched rows */
/* Is element @h of a dispatched row @want? @scale: the row's first, if there are scales, and the others @apart. */
bool perf_ep_is(const struct perf_options *opt, const uint8_t *row, const float *scale, size_t apart, int h,
		unsigned want);
/* Is an element that came back topk * @want? */
bool perf_ep_came(const struct perf_options *opt, uint16_t out, unsigned want);

/* ep_device.c */
int perf_ep_device(struct perf_job *job);

/* hosts.c: all ranks */
int perf_hosts(struct perf_job *job);

/* ep_options.c */
enum perf_names { PERF_PRESETS, PERF_ROWS, PERF_BACKS, PERF_COMBINES };
const char *perf_name_of(enum perf_names of, int value);
const char *perf_combined_per(const struct perf_options *opt); /* "expert" or "rank" */
/* A row is for all experts of a rank that its token names. */
static inline bool perf_once(int preset)
{
	return preset == COVEY_EP_COMPACT || preset == COVEY_EP_HT;
}

/* The rows of an expert begin where those of the one before end. */
static inline bool perf_close(int preset)
{
	return preset == COVEY_EP_WIN;
}

/* ep_out.c */
void perf_print_pair_head(const struct perf_job *job);
void perf_print_pair(const struct perf_job *job, const struct perf_pair_row *row);
void perf_print_splits(const struct perf_job *job);

/* out.c */
void perf_print_head(const struct perf_job *job);
void perf_print_row(const struct perf_job *job, const struct perf_row *row);
void perf_print_foot(const struct perf_job *job, bool ok, double busbw);

/* json.c, plot.c: 0, or -1 after a message */
int perf_json(const struct perf_job *job, bool ok, double busbw);
int perf_plot(const struct perf_job *job);

#endif
