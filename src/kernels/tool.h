/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device for programs in plain C that try the operations there: memory, a stream, graphs, times. Our tools and tests are
 * built without CUDA; they find this table, beside covey's own (gpu.h), in libcovey_cuda after covey_join() has opened it.
 */
#ifndef CVY_GPU_TOOL_H
#define CVY_GPU_TOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_GPU_TOOL_ABI 4
#define CVY_GPU_TOOL_SYMBOL "cvy_gpu_tool"

struct CUstream_st;
struct cvy_gpu_graph;

/*
 * Experts, each a two-layer net: y = second * relu(first * x) for the first count[e] rows of expert e. bf16 in and out, f32
 * between; a sum is that of eight, of the elements whose numbers are alike modulo 8, on top of what is left over.
 */
struct cvy_gpu_experts {
	const uint16_t *x;    /* [experts][rows][hidden]; close: [rows][hidden] */
	uint16_t *y;	      /* the same */
	const int32_t *count; /* [experts] */
	const float *weights; /* [experts], of each [ffn][hidden], then [hidden][ffn] */
	int experts, rows, hidden, ffn;
	int close; /* the rows of an expert begin where those of the one before end */
};

/*
 * Experts that multiply, in fp16: an element h of expert e by table[e + h], or by factor. Rows are those of dispatch: in
 * LL the first count[e] of each expert, in COMPACT as many as *range says. COMPACT's are summed here: over k ascending, in
 * f32, weight times product.
 */
struct cvy_gpu_scale {
	const uint16_t *x; /* LL: [experts][rows][hidden]; COMPACT, close: [rows][hidden] */
	uint16_t *y;	   /* the same */
	const float *table;
	float factor; /* if table is NULL */
	int experts, rows, hidden;
	const int32_t *count; /* LL */
	/* COMPACT; count is NULL */
	const int64_t *range; /* of the last source */
	const int32_t *ids;   /* [rows][top_k], -1: none */
	const float *weights; /* the same */
	int top_k;
	int close; /* as of struct cvy_gpu_experts */
};

/*
 * Tokens on their way to experts that multiply, and back, in fp16, as ep-perf has it beside covey. An *entry* is a token and
 * one of its experts, with number token * top_k + k; expert e is number e % local of rank e / local.
 */
struct cvy_gpu_routed {
	const uint16_t *x;    /* [tokens][hidden] */
	const int32_t *ids;   /* [tokens][top_k] */
	const float *weights; /* the same */
	uint16_t *out;	      /* as x: the sum of weight times result, k ascending, in f32 */
	const float *table;   /* as of struct cvy_gpu_scale */
	float factor;
	int tokens, hidden, top_k, local;
	int rank, size;
};

/* For a library that brings rows: entries are ordered by owner. The row of entry i is place[i]. */
struct cvy_gpu_sorted {
	struct cvy_gpu_routed in;
	int32_t *count, *place;	      /* [size], [tokens][top_k] */
	uint16_t *rows;		      /* sent; then what came back */
	int32_t *experts;	      /* of the sent rows, numbers at their owner */
	uint16_t *theirs;	      /* rows that came; then the results */
	const int32_t *their_experts; /* of them */
	int came;
};

/* Order: count and place. Pack: rows and experts. Apply: theirs. Sum: out. */
enum { CVY_GPU_SORTED_ORDER, CVY_GPU_SORTED_PACK, CVY_GPU_SORTED_APPLY, CVY_GPU_SORTED_SUM };

#define CVY_GPU_ROUTED_RANKS 8

/*
 * By kernels alone, over memory that all ranks map (tool_heap.h has its places). Each rung has what is below it: a flag
 * for each peer, experts between; a flag for each entry; experts in the kernel that sends back; flags with the number of
 * their turn, so that nothing is cleared; entries split evenly over warps.
 */
enum cvy_gpu_rung {
	CVY_GPU_HEAP_PEER,
	CVY_GPU_HEAP_TOKEN,
	CVY_GPU_HEAP_FUSED,
	CVY_GPU_HEAP_NOCLEAR,
	CVY_GPU_HEAP_EVEN
};

struct cvy_gpu_heap {
	struct cvy_gpu_routed in;
	uint8_t *heap[CVY_GPU_ROUTED_RANKS]; /* of each rank, two halves, as mapped here; zeroed at first */
	uint8_t *own;			     /* of this rank alone; zeroed at first */
	int most;			     /* tokens of a rank */
	int rung;
	uint64_t wait_ticks; /* of the device's clock: a wait that takes longer is the last one */
};

#define CVY_GPU_SHARED_BYTES 64

#define CVY_GPU_EXPERT_FFN 8192 /* at most */
#define CVY_GPU_TOOL_MARKS 8

/* All int: 0 or COVEY_ERR_*, with a line in why(). Of the calling thread's device. */
struct cvy_gpu_tool {
	uint32_t abi;
	int (*count)(void); /* of devices */
	int (*use)(int device);
	const char *(*why)(void);

	int (*alloc)(size_t bytes, void **out);
	void (*release)(void *at);
	/* Memory of whole pages of 2 MiB, for another process: it detaches before this one releases. */
	int (*share)(void *at, uint8_t name[CVY_GPU_SHARED_BYTES]);
	int (*attach)(const uint8_t name[CVY_GPU_SHARED_BYTES], void **out);
	void (*detach)(void *at);
	int (*copy)(void *to, const void *from,
		    size_t bytes); /* either may be host memory; has ended when it returns */
	int (*fill)(void *at, int byte, size_t bytes);
	int (*move)(struct CUstream_st *stream, void *to, const void *from, size_t bytes); /* queued */
	size_t (*room)(void); /* bytes of the device that nobody has */

	int (*stream)(struct CUstream_st **out); /* does not wait for the legacy default stream */
	void (*stream_end)(struct CUstream_st *stream);
	int (*wait)(struct CUstream_st *stream);
	int (*experts)(struct CUstream_st *stream, const struct cvy_gpu_experts *e); /* launched */
	int (*scale)(struct CUstream_st *stream, const struct cvy_gpu_scale *s);     /* launched */
	int (*sorted)(struct CUstream_st *stream, const struct cvy_gpu_sorted *s, int step);
	int (*heap)(struct CUstream_st *stream, const struct cvy_gpu_heap *h); /* one turn */
	/*
	 * A kernel that multiplies and adds @rounds times in each thread. Each of its CTAs takes the shared memory of a whole
	 * processor, and there is one for each: if another kernel holds a processor, one CTA runs behind the others.
	 */
	int (*busy)(struct CUstream_st *stream, int rounds);
	int (*order)(struct CUstream_st *first, struct CUstream_st *then); /* then: what follows waits for first */
	int (*mark)(struct CUstream_st *stream, int which); /* below CVY_GPU_TOOL_MARKS: now, in the stream */
	int (*between)(int from, int to, double *us);	    /* two marks, both passed */

	int (*capture)(struct CUstream_st *stream);
	int (*captured)(struct CUstream_st *stream, struct cvy_gpu_graph **out);
	int (*replay)(struct cvy_gpu_graph *graph, struct CUstream_st *stream);
	void (*graph_end)(struct cvy_gpu_graph *graph);
};

#ifdef __cplusplus
}
#endif

#endif
