/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way by a heap (struct cvy_gpu_heap): kernels that store rows into the memory of their owners, each behind a flag. A
 * warp does an entry. The steps of the ladder are those of a work log about the same problem on MI300X, rewritten.
 *
 * Two halves suffice without a barrier: each rank waits for the counts of all. Whoever is in turn n + 1 has seen this rank's
 * count of turn n, which left after its turn n - 1, the last that read the half of turn n + 1.
 */
#include "routed.cuh"
#include "tool_heap.h"
#include "tool_part.cuh"
#include "word.cuh"

#ifndef CVY_HEAP_THREADS
#define CVY_HEAP_THREADS 256
#endif
#ifndef CVY_HEAP_CTAS
#define CVY_HEAP_CTAS 0 /* two for each processor: all run at a time, since in `combine` they wait for other ranks' */
#endif
#define WARPS (CVY_HEAP_THREADS / 32)
#define BATCH 8	  /* loads of a lane on their way */
#define PIECES 4  /* of a token's sum: a warp each */
#define LOOKS 16  /* between two looks at the clock */
#define CLEARS 32 /* CTAs */
#define ALL 0xffffffffu

struct heap_args {
	struct cvy_gpu_heap h;
	struct cvy_heap_at at;
	int ctas;
};

/* What a kernel finds out once. */
struct turn {
	uint64_t tag; /* upper half of the words of this turn */
	size_t base;  /* of its half */
	struct cvy_heap_words *words;
	int lane, warp, warps; /* in the CTA; the warp's number in the grid; of the grid */
};

static __device__ __forceinline__ struct turn turn_of(const struct heap_args *a)
{
	struct cvy_heap_words *words = (struct cvy_heap_words *)a->h.own;
	uint64_t turn = words->turn;
	struct turn t = { a->h.rung < CVY_GPU_HEAP_NOCLEAR ? 0 : (turn + 1) << 32,
			  turn % 2 * a->at.half,
			  words,
			  (int)threadIdx.x % 32,
			  (int)blockIdx.x * WARPS + (int)threadIdx.x / 32,
			  a->ctas * WARPS };

	return t;
}

/* In the heap of @rank. */
static __device__ __forceinline__ uint8_t *at_rank(const struct heap_args *a, const struct turn *t, int rank, size_t at)
{
	return a->h.heap[rank] + t->base + at;
}

static __device__ __forceinline__ uint16_t *row_at(const struct heap_args *a, uint8_t *rows, size_t row)
{
	return (uint16_t *)rows + row * (size_t)a->h.in.hidden;
}

/* By one thread, behind stores that it has met: whoever sees the word sees them. */
static __device__ __forceinline__ void tell(uint8_t *at, uint64_t word)
{
	cvy_order_system();
	cvy_store_word(at, word);
}

/* The lower half of the word that this turn writes at @at; 0: it did not come in time. */
static __device__ __forceinline__ uint32_t hear(const struct heap_args *a, const struct turn *t, const uint8_t *at)
{
	uint64_t start = (uint64_t)clock64();

	for (int look = 1;; look++) {
		uint64_t word = cvy_acquire_word((const uint64_t *)at);

		if ((word ^ t->tag) >> 32 == 0 && (uint32_t)word)
			return (uint32_t)word;
		if (look % LOOKS)
			continue;
		if (cvy_load_word(&t->words->late))
			return 0;
		if ((uint64_t)clock64() - start > a->h.wait_ticks) {
			cvy_store_word((uint8_t *)&t->words->late, 1);
			return 0;
		}
	}
}

/* The same by lane 0, for the warp. */
static __device__ __forceinline__ uint32_t warp_hears(const struct heap_args *a, const struct turn *t,
						      const uint8_t *at)
{
	uint32_t word = t->lane ? 0 : hear(a, t, at);

	word = __shfl_sync(ALL, word, 0);
	__syncwarp();
	return word;
}

/* By a warp. @change: what becomes of eight elements. */
template <typename CHANGE>
static __device__ __forceinline__ void copy_row(uint16_t *to, const uint16_t *from, int hidden, CHANGE change)
{
	for (int first = (int)(threadIdx.x % 32) * 8; first < hidden; first += BATCH * 256) {
		struct cvy_halves v[BATCH];

#pragma unroll
		for (int i = 0; i < BATCH; i++)
			if (first + i * 256 < hidden)
				v[i] = cvy_halves_load(from + first + i * 256);
#pragma unroll
		for (int i = 0; i < BATCH; i++)
			if (first + i * 256 < hidden)
				cvy_halves_store(to + first + i * 256, change(v[i], first + i * 256));
	}
}

static __device__ __forceinline__ void copy_plain(uint16_t *to, const uint16_t *from, int hidden)
{
	copy_row(to, from, hidden, [](struct cvy_halves v, int) { return v; });
}

/* ---- how many of them, and which ---- */

/* Each warp takes what it has of the entries of @parts lists, list by list. @count: of their entries. */
template <typename TAKE>
static __device__ __forceinline__ void visit_even(const struct turn *t, int parts, const int *count, TAKE take)
{
	int i = t->warp, first = 0;

	for (int p = 0; p < parts; p++) {
		for (; i < first + count[p]; i += t->warps)
			take(p, i - first);
		first += count[p];
	}
}

/* As many CTAs for each list, whatever its length. */
template <typename TAKE>
static __device__ __forceinline__ void visit_parts(const struct heap_args *a, int parts, const int *count, TAKE take)
{
	int group = a->ctas / parts > 1 ? a->ctas / parts : 1, of = (int)blockIdx.x % group;

	for (int p = (int)blockIdx.x / group; p < parts; p += a->ctas / group)
		for (int i = of * WARPS + (int)threadIdx.x / 32; i < count[p]; i += group * WARPS)
			take(p, i);
}

template <typename TAKE>
static __device__ __forceinline__ void visit(const struct heap_args *a, const struct turn *t, int parts,
					     const int *count, TAKE take)
{
	if (a->h.rung >= CVY_GPU_HEAP_EVEN)
		visit_even(t, parts, count, take);
	else
		visit_parts(a, parts, count, take);
}

/* ---- clear: what the next turn must find zeroed; and counters of this one ---- */

static __global__ void __launch_bounds__(CVY_HEAP_THREADS) clear(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);
	uint64_t *words = (uint64_t *)(a.h.heap[a.h.in.rank] + (a.at.half - t.base));

	for (size_t i = blockIdx.x * CVY_HEAP_THREADS + threadIdx.x; i < a.at.zeroed / 8;
	     i += CLEARS * CVY_HEAP_THREADS)
		words[i] = 0;
	if (blockIdx.x)
		return;
	if (threadIdx.x < CVY_GPU_ROUTED_RANKS)
		t.words->sent[threadIdx.x] = 0;
	for (int e = (int)threadIdx.x; e < a.h.in.local; e += CVY_HEAP_THREADS)
		t.words->post_count[e] = 0;
}

/* ---- send: entries to their owners; counts, first of all ---- */

static __device__ __forceinline__ void tell_counts(const struct heap_args *a, const struct turn *t)
{
	__shared__ int n[CVY_GPU_ROUTED_RANKS];
	const struct cvy_gpu_routed *in = &a->h.in;

	if (threadIdx.x < CVY_GPU_ROUTED_RANKS)
		n[threadIdx.x] = 0;
	__syncthreads();
	for (int i = (int)threadIdx.x; i < in->tokens * in->top_k; i += CVY_HEAP_THREADS)
		atomicAdd(&n[in->ids[i] / in->local], 1);
	__syncthreads();
	if ((int)threadIdx.x < in->size)
		tell(at_rank(a, t, (int)threadIdx.x, a->at.count + (size_t)in->rank * 8),
		     t->tag | (uint64_t)(n[threadIdx.x] + 1));
}

static __device__ __forceinline__ void hear_counts(const struct heap_args *a, const struct turn *t)
{
	uint32_t word;

	if ((int)threadIdx.x >= a->h.in.size)
		return;
	word = hear(a, t, at_rank(a, t, a->h.in.rank, a->at.count + threadIdx.x * 8));
	t->words->came[threadIdx.x] = word ? (int)word - 1 : 0;
}

static __device__ __forceinline__ void send_entry(const struct heap_args *a, const struct turn *t, int i)
{
	const struct cvy_gpu_routed *in = &a->h.in;
	int owner = in->ids[i] / in->local, pos = 0;
	size_t row;

	if (!t->lane)
		pos = atomicAdd(&t->words->sent[owner], 1);
	row = (size_t)in->rank * a->at.entries + (size_t)__shfl_sync(ALL, pos, 0);
	copy_plain(row_at(a, at_rank(a, t, owner, a->at.rows), row),
		   in->x + (size_t)(i / in->top_k) * (size_t)in->hidden, in->hidden);
	if (!t->lane)
		cvy_store_word(at_rank(a, t, owner, a->at.meta + row * 8),
			       (uint64_t)(in->ids[i] % in->local) << 32 | (uint64_t)i);
	__syncwarp();
	if (!t->lane && a->h.rung >= CVY_GPU_HEAP_TOKEN)
		tell(at_rank(a, t, owner, a->at.flag + row * 8), t->tag | 1);
}

static __global__ void __launch_bounds__(CVY_HEAP_THREADS, 2) send(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);

	if (!blockIdx.x)
		tell_counts(&a, &t);
	if (!blockIdx.x && a.h.rung >= CVY_GPU_HEAP_NOCLEAR) /* nobody counts them here */
		for (int e = (int)threadIdx.x; e < a.h.in.local; e += CVY_HEAP_THREADS)
			t.words->post_count[e] = 0;
	for (int i = t.warp; i < a.h.in.tokens * a.h.in.top_k; i += t.warps)
		send_entry(&a, &t, i);
	if (!blockIdx.x)
		hear_counts(&a, &t);
}

/* One warp, behind the kernel whose stores it tells all ranks of. */
static __device__ __forceinline__ void tell_all(const struct heap_args *a, size_t at)
{
	struct turn t = turn_of(a);

	if ((int)threadIdx.x < a->h.in.size)
		tell(at_rank(a, &t, (int)threadIdx.x, at + (size_t)a->h.in.rank * 8), t.tag | 1);
}

static __global__ void __launch_bounds__(32) tell_sent(const __grid_constant__ struct heap_args a)
{
	tell_all(&a, a.at.sent);
}

static __global__ void __launch_bounds__(32) tell_returned(const __grid_constant__ struct heap_args a)
{
	tell_all(&a, a.at.returned);
}

/* ---- receive: entries by expert ---- */

static __device__ __forceinline__ void receive_entry(const struct heap_args *a, const struct turn *t, int source, int i)
{
	int rank = a->h.in.rank, slot = 0;
	size_t row = (size_t)source * a->at.entries + (size_t)i, post;
	uint64_t meta;

	if (!warp_hears(a, t,
			at_rank(a, t, rank,
				a->h.rung < CVY_GPU_HEAP_TOKEN ? a->at.sent + (size_t)source * 8
							       : a->at.flag + row * 8)))
		return;
	meta = *(const uint64_t *)at_rank(a, t, rank, a->at.meta + row * 8);
	if (!t->lane)
		slot = atomicAdd(&t->words->post_count[meta >> 32], 1);
	post = (size_t)(meta >> 32) * a->at.post_rows + (size_t)__shfl_sync(ALL, slot, 0);
	copy_plain(row_at(a, a->h.own + a->at.post, post), row_at(a, at_rank(a, t, rank, a->at.rows), row),
		   a->h.in.hidden);
	if (!t->lane)
		((uint64_t *)(a->h.own + a->at.post_meta))[post] = (uint64_t)source << 32 | (uint32_t)meta;
}

static __global__ void __launch_bounds__(CVY_HEAP_THREADS, 2) receive(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);

	if (!blockIdx.x && a.h.rung >= CVY_GPU_HEAP_NOCLEAR && threadIdx.x < CVY_GPU_ROUTED_RANKS)
		t.words->sent[threadIdx.x] = 0;
	/* Words that are cleared must all have come, also of sources without entries. */
	if (!blockIdx.x && a.h.rung < CVY_GPU_HEAP_TOKEN && (int)threadIdx.x < a.h.in.size)
		hear(&a, &t, at_rank(&a, &t, a.h.in.rank, a.at.sent + threadIdx.x * 8));
	visit(&a, &t, a.h.in.size, t.words->came, [&a, &t](int source, int i) { receive_entry(&a, &t, source, i); });
}

/* ---- combine: results to where their tokens are, and their sums ---- */

static __device__ __forceinline__ void return_entry(const struct heap_args *a, const struct turn *t, int expert, int i)
{
	size_t post = (size_t)expert * a->at.post_rows + (size_t)i;
	uint64_t meta = ((const uint64_t *)(a->h.own + a->at.post_meta))[post];
	int source = (int)(meta >> 32);
	uint16_t *to = row_at(a, at_rank(a, t, source, a->at.back), (uint32_t)meta);

	if (a->h.rung >= CVY_GPU_HEAP_FUSED)
		copy_row(to, row_at(a, a->h.own + a->at.post, post), a->h.in.hidden,
			 [=](struct cvy_halves v, int h) { return cvy_routed_apply(&a->h.in, expert, h, v); });
	else
		copy_plain(to, row_at(a, a->h.own + a->at.result, post), a->h.in.hidden);
	__syncwarp();
	if (!t->lane && a->h.rung >= CVY_GPU_HEAP_TOKEN)
		tell(at_rank(a, t, source, a->at.back_flag + (uint32_t)meta * 8), t->tag | 1);
}

static __device__ __forceinline__ void return_all(const struct heap_args *a, const struct turn *t)
{
	__shared__ int count[CVY_HEAP_EXPERTS];

	for (int e = (int)threadIdx.x; e < a->h.in.local; e += CVY_HEAP_THREADS)
		count[e] = t->words->post_count[e];
	__syncthreads();
	visit(a, t, a->h.in.local, count, [=](int expert, int i) { return_entry(a, t, expert, i); });
}

/* A lane for each word: all results of the token, or those of all owners. */
static __device__ __forceinline__ int results_are_here(const struct heap_args *a, const struct turn *t, int token)
{
	const struct cvy_gpu_routed *in = &a->h.in;
	int each = a->h.rung >= CVY_GPU_HEAP_TOKEN, here = 1;
	size_t at = each ? a->at.back_flag + ((size_t)token * (size_t)in->top_k + (size_t)t->lane) * 8
			 : a->at.returned + (size_t)t->lane * 8;

	if (t->lane < (each ? in->top_k : in->size))
		here = hear(a, t, at_rank(a, t, in->rank, at)) != 0;
	here = !__any_sync(ALL, !here);
	__syncwarp();
	return here;
}

static __device__ __forceinline__ void sum_all(const struct heap_args *a, const struct turn *t)
{
	int piece = (a->h.in.hidden / 8 + PIECES - 1) / PIECES * 8;

	for (int i = t->warp; i < a->h.in.tokens * PIECES; i += t->warps) {
		int token = i / PIECES, first = i % PIECES * piece, end = first + piece;

		if (!results_are_here(a, t, token))
			continue;
		for (int h = first + t->lane * 8; h < end && h < a->h.in.hidden; h += 256)
			cvy_routed_sum(&a->h.in, token, h, [=](int entry) {
				return row_at(a, at_rank(a, t, a->h.in.rank, a->at.back), (size_t)entry);
			});
	}
}

/* The last CTA. */
static __device__ __forceinline__ void end_turn(const struct heap_args *a, const struct turn *t)
{
	__syncthreads();
	if (!threadIdx.x && atomicInc(&t->words->done, (unsigned)a->ctas - 1) == (unsigned)a->ctas - 1)
		t->words->turn++;
}

static __global__ void __launch_bounds__(CVY_HEAP_THREADS, 2) give(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);

	return_all(&a, &t);
}

static __global__ void __launch_bounds__(CVY_HEAP_THREADS, 2) sum(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);

	sum_all(&a, &t);
	end_turn(&a, &t);
}

static __global__ void __launch_bounds__(CVY_HEAP_THREADS, 2) combine(const __grid_constant__ struct heap_args a)
{
	struct turn t = turn_of(&a);

	return_all(&a, &t);
	__syncthreads();
	sum_all(&a, &t);
	end_turn(&a, &t);
}

/* ---- the launches of a turn ---- */

typedef void (*heap_kernel)(const struct heap_args);

static int launch(struct CUstream_st *stream, heap_kernel kernel, const struct heap_args *a, int ctas, int threads)
{
	cudaLaunchConfig_t config = { dim3((unsigned)ctas), dim3((unsigned)threads), 0, stream, NULL, 0 };

	return cvy_tool_check(cudaLaunchKernelEx(&config, kernel, *a), "launching a kernel");
}

static int run(struct CUstream_st *stream, heap_kernel kernel, const struct heap_args *a)
{
	return launch(stream, kernel, a, a->ctas, CVY_HEAP_THREADS);
}

static int experts(struct CUstream_st *stream, const struct heap_args *a)
{
	const struct cvy_gpu_routed *in = &a->h.in;
	struct cvy_gpu_scale s = {};

	s.x = (const uint16_t *)(a->h.own + a->at.post);
	s.y = (uint16_t *)(a->h.own + a->at.result);
	s.table = in->table;
	s.factor = in->factor;
	s.experts = in->local;
	s.rows = (int)a->at.post_rows;
	s.hidden = in->hidden;
	s.count = ((const struct cvy_heap_words *)a->h.own)->post_count;
	return cvy_tool_scale(stream, &s);
}

/* A flag for each peer: all is sent before anything is heard of, in kernels of their own. */
static int combine_by_peer(struct CUstream_st *stream, const struct heap_args *a)
{
	int err = run(stream, give, a);

	if (!err)
		err = launch(stream, tell_returned, a, 1, 32);
	return err ? err : run(stream, sum, a);
}

int cvy_tool_heap(struct CUstream_st *stream, const struct cvy_gpu_heap *h)
{
	static int processors;
	struct heap_args a = { *h, cvy_heap_places(&h->in, h->most), 0 };
	int device, err = 0;

	if (!processors && cudaGetDevice(&device) == cudaSuccess)
		err = cvy_tool_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
				     "counting processors");
	a.ctas = CVY_HEAP_CTAS ? CVY_HEAP_CTAS : 2 * processors;
	if (!err && h->rung < CVY_GPU_HEAP_NOCLEAR)
		err = launch(stream, clear, &a, CLEARS, CVY_HEAP_THREADS);
	if (!err)
		err = run(stream, send, &a);
	if (!err && h->rung < CVY_GPU_HEAP_TOKEN)
		err = launch(stream, tell_sent, &a, 1, 32);
	if (!err)
		err = run(stream, receive, &a);
	if (!err && h->rung < CVY_GPU_HEAP_FUSED)
		err = experts(stream, &a);
	if (err)
		return err;
	return h->rung < CVY_GPU_HEAP_TOKEN ? combine_by_peer(stream, &a) : run(stream, combine, &a);
}

int cvy_tool_heap_load(void)
{
	static const heap_kernel all[] = { clear, send, tell_sent, receive, give, tell_returned, sum, combine };
	struct cudaFuncAttributes unused;
	int err = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !err; i++)
		err = cvy_tool_check(cudaFuncGetAttributes(&unused, (const void *)all[i]), "loading the kernels");
	return err;
}
