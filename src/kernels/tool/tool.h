/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device for programs in plain C that try the operations there: memory, a stream, graphs, times. Our tools and tests are
 * built without CUDA; they find this table in libcovey_cuda_tools.
 */
#ifndef CVY_GPU_TOOL_H
#define CVY_GPU_TOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_GPU_TOOL_ABI 5
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
	int (*copy)(void *to, const void *from,
		    size_t bytes); /* either may be host memory; has ended when it returns */
	int (*fill)(void *at, int byte, size_t bytes);
	size_t (*room)(void); /* bytes of the device that nobody has */

	int (*stream)(struct CUstream_st **out); /* does not wait for the legacy default stream */
	void (*stream_end)(struct CUstream_st *stream);
	int (*wait)(struct CUstream_st *stream);
	int (*experts)(struct CUstream_st *stream, const struct cvy_gpu_experts *e); /* launched */
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
