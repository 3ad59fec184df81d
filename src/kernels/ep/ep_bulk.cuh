/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk steps of dispatch and combine: many tokens in few lanes. Rows go from shared memory to the place of their lines in the
 * slot, whole and without tags, by the copy engine of the processor; when all of a step are written, one signal says so.
 * The header's first line comes before and says who goes this way (CVY_EP_RAW). To ranks of other hosts the same rows go as
 * lines in the same step; a reader waits for all of their tags where others have a signal. Behind the barrier that follows
 * the rows of the step are memory like any other.
 *
 * Rows without tags do not tell when they are written over. A source that goes on without this rank, by a deadline, says so
 * before it does (cvy_gpu_ahead_at), and a reader looks there when it has read.
 */
#ifndef CVY_EP_BULK_CUH
#define CVY_EP_BULK_CUH

#include "ep_far.cuh"

#define CVY_EP_RAW ((uint64_t)1 << 63) /* of the word that says which tokens come: their rows have no tags */
#define CVY_EP_UNIT 64		       /* words: what a warp moves at a time of a row without tags, 16 bytes a thread */

/* Where byte @at of a step is, its lines being one behind the other. */
static __device__ __forceinline__ size_t cvy_ep_byte_at(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							size_t at)
{
	return cvy_gpu_slot_at((int)(at / CVY_GPU_SLOT), t->r->index, s->count) + at % CVY_GPU_SLOT;
}

/* The first byte of row @j of a step. */
static __device__ __forceinline__ size_t cvy_ep_row_at(const struct cvy_ep_turn *t, int j)
{
	return (size_t)(t->a->form.header_lines + j * t->a->form.slice_lines) * CVY_EP_LINE_BYTES;
}

/* A warp: those of @ranks that rows go to by bulk. */
static __device__ __forceinline__ cvy_ranks cvy_ep_by_bulk(const struct cvy_ep_turn *t, cvy_ranks ranks)
{
	cvy_ranks far;

	if (!CVY_HAS_BULK)
		return cvy_ranks_none();
	if (!cvy_far(t->r))
		return ranks;
	CVY_EACH_OF_WARP(p)
	*cvy_ranks_word(&far, p / 32) =
		__ballot_sync(CVY_EP_ALL, cvy_far_queue(&t->a->call, t->r->lane.out, ranks, p) != NULL);
	return cvy_ranks_but(ranks, far);
}

/* Bytes of as many lines as @bytes touch: what is written without tags takes those of whole lines away, or a reader that is late
 * would find new words beside an old tag. */
static __device__ __forceinline__ uint32_t cvy_ep_whole_lines(uint32_t bytes)
{
	return (bytes + CVY_EP_LINE_BYTES - 1) / CVY_EP_LINE_BYTES * CVY_EP_LINE_BYTES;
}

/* One thread: @bytes from shared memory to @rank, from word @word of row @j on. A row may go over from one slot to the other. */
static __device__ __forceinline__ void cvy_ep_bulk_put(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       int rank, int j, int word, const void *from, uint32_t bytes)
{
	uint8_t *to = cvy_to(&t->a->call, t->r, rank);
	size_t at = cvy_ep_row_at(t, j) + (size_t)word * 8, here = CVY_GPU_SLOT - at % CVY_GPU_SLOT;

	if (here > bytes)
		here = bytes;
	cvy_bulk_store(to + cvy_ep_byte_at(t, s, at), from, (uint32_t)here);
	if (here < bytes)
		cvy_bulk_store(to + cvy_ep_byte_at(t, s, at + here), (const uint8_t *)from + here,
			       bytes - (uint32_t)here);
}

/*
 * The last warp puts rows while the others prepare what comes next: so nobody meets for it. Its threads know their own copies only.
 */
static __device__ __forceinline__ int cvy_ep_puts(void)
{
	return threadIdx.x / 32 == CVY_EP_WARPS - 1;
}

/* The warp that puts, when it has put all rows of the step: waits until they are written, and tells @ranks. */
static __device__ __forceinline__ void cvy_ep_bulk_signal(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  cvy_ranks ranks)
{
	cvy_wait_written();
	__syncwarp();
	CVY_EACH_OF_WARP(p)
	{
		if (cvy_has(ranks, p)) {
			cvy_order_system();
			cvy_store_packet(cvy_to(&t->a->call, t->r, p) + cvy_gpu_signal_at(0, t->r->index, s->count),
					 s->tag, s->tag);
		}
	}
}

/*
 * A warp: the first line of @rank's header, a word a thread, and if it says so, the signal behind all of its rows. Both are looked at
 * at once: mostly they are here. Not 0: stopped or late, and said so.
 */
static __device__ __forceinline__ int cvy_ep_take_signal(struct cvy_ep_turn *t, const struct cvy_ep_step *s, int rank,
							 uint64_t v[2], int *raw)
{
	const uint8_t *from = cvy_from(&t->a->call, t->r, rank);
	const uint8_t *signal = from + cvy_gpu_signal_at(0, t->r->index, s->count);
	const int lane = (int)(threadIdx.x % 32), bears = lane < CVY_EP_LINE_PACKETS;
	uint64_t tag = lane ? s->tag : cvy_acquire_word((const uint64_t *)signal);
	int how = 0;

	v[0] = v[1] = 0;
	if (bears)
		cvy_load_packet(from + cvy_ep_line_at(t, s, 0) + cvy_ep_packet_at(), v);
	if (__any_sync(CVY_EP_ALL, bears && v[1] != s->tag))
		how = cvy_wait_packet(bears ? from + cvy_ep_line_at(t, s, 0) + cvy_ep_packet_at() : NULL, rank, s->tag,
				      v, &t->r->watch, &t->until);
	*raw = !how && __any_sync(CVY_EP_ALL, !lane && (v[0] & CVY_EP_RAW));
	if (*raw && __any_sync(CVY_EP_ALL, tag != s->tag)) {
		uint64_t two[2];

		how = cvy_wait_packet(lane ? NULL : signal, rank, s->tag, two, &t->r->watch, &t->until);
		if (!lane)
			cvy_acquire_word((const uint64_t *)signal);
	}
	if (how)
		cvy_ep_failed(t, how, rank);
	else if (!lane && *raw)
		cvy_ranks_join(&t->sh->raw, rank);
	if (!lane)
		v[0] &= ~CVY_EP_RAW;
	__syncwarp();
	return how;
}

/* All threads, behind the barrier after headers: until all lines of the rows of @from are here; @tokens: that come from each. */
static __device__ __noinline__ void cvy_ep_wait_lines_apart(struct cvy_ep_apart *x, struct cvy_ep_step step,
							    cvy_ranks from, const uint64_t *tokens)
{
	const struct cvy_ep_step *s = &step;
	struct cvy_ep_turn *t = &x->t;
	const struct cvy_ep_form *f = &t->a->form;
	int n = 0, lines = (f->row_words + CVY_EP_LINE_WORDS - 1) / CVY_EP_LINE_WORDS;

#pragma unroll 1
	for (int p = 0; p < t->a->call.size; p++) {
#pragma unroll 1
		for (uint64_t left = cvy_has(from, p) ? tokens[p] : 0; left; left &= left - 1) {
			int first = f->header_lines + (__ffsll((long long)left) - 1) * f->slice_lines;

#pragma unroll 1
			for (int line = (int)(threadIdx.x % 32); line - (int)(threadIdx.x % 32) < lines; line += 32) {
				const uint8_t *at = NULL;
				uint64_t v[2];
				int how;

				if (n++ % CVY_EP_WARPS != (int)(threadIdx.x / 32))
					continue;
				if (line < lines)
					at = cvy_from(&t->a->call, t->r, p) + cvy_ep_line_at(t, s, first + line) +
					     CVY_EP_LINE_BYTES - CVY_GPU_PACKET;
				how = cvy_wait_packet(at, p, s->tag, v, &t->r->watch, &t->until);
				if (how)
					cvy_ep_failed(t, how, p);
				if (how == 1)
					return;
			}
		}
	}
	__threadfence_system();
}

/* As cvy_ep_stopped(), of sources whose rows are lines, if there are any. */
static __device__ __forceinline__ int cvy_ep_wait_lines(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							const uint64_t *tokens)
{
	const cvy_ranks from = cvy_ranks_but(cvy_ranks_without(t->sources, t->a->call.rank), t->sh->raw);
	struct cvy_ep_apart x;

	if (!cvy_ranks_any(from))
		return 0;
	cvy_ep_set_apart(&x, t);
	cvy_ep_wait_lines_apart(&x, *s, from, tokens);
	return cvy_ep_stopped(t);
}

/* A row that is here. Unrolled code has short ways alone: a step that is too long for the processor's instruction cache crawls. */
struct cvy_ep_row {
	const uint8_t *step; /* first slot of the step */
	uint32_t at;	     /* bytes from there on */
	int raw;
};

static __device__ __forceinline__ struct cvy_ep_row cvy_ep_row_of(const struct cvy_ep_turn *t,
								  const struct cvy_ep_step *s, int rank, int j)
{
	const uint8_t *step = cvy_from(&t->a->call, t->r, rank) + cvy_gpu_slot_at(0, t->r->index, s->count);
	struct cvy_ep_row row = { step, (uint32_t)cvy_ep_row_at(t, j), cvy_has(t->sh->raw, rank) };

	return row;
}

/* Byte @at of a step that begins at @step: the second slot stands where the first slots of all lanes end. */
static __device__ __forceinline__ const uint8_t *cvy_ep_byte_of(const uint8_t *step, uint32_t at)
{
	return step + at + (at < CVY_GPU_SLOT ? 0 : CVY_GPU_ROUND_BYTES - CVY_GPU_SLOT);
}

/* Words @word and the next of a row of lines. */
static __device__ __noinline__ void cvy_ep_arrived_lines(const struct cvy_ep_row row, int word, uint64_t *v)
{
#pragma unroll 1
	for (int i = 0; i < 2; i++) {
		int line = (word + i) / CVY_EP_LINE_WORDS;
		int at = line * CVY_EP_LINE_BYTES + (word + i - line * CVY_EP_LINE_WORDS) * 8;

		v[i] = cvy_load_word((const uint64_t *)cvy_ep_byte_of(row.step, row.at + (uint32_t)at));
	}
}

/* A row's words @word, which is even, and the next. */
static __device__ __forceinline__ void cvy_ep_arrived(const struct cvy_ep_row *row, int word, uint64_t v[2])
{
	if (row->raw) {
		cvy_load_packet(cvy_ep_byte_of(row->step, row->at + (uint32_t)word * 8), v);
	} else {
		uint64_t two[2];

		cvy_ep_arrived_lines(*row, word, two);
		v[0] = two[0];
		v[1] = two[1];
	}
}

static __device__ __noinline__ void cvy_ep_put_anywhere(uint8_t *at, uint64_t v0, uint64_t v1)
{
	cvy_word_put(at, 0, 16, v0);
	cvy_word_put(at, 1, 16, v1);
}

/* Two words to @at, which is as a row is: whole 16 bytes where its memory is. */
static __device__ __forceinline__ void cvy_ep_put_two(uint8_t *at, const uint64_t v[2])
{
	if (((uintptr_t)at & 15) == 0)
		*(ulonglong2 *)at = make_ulonglong2(v[0], v[1]);
	else
		cvy_ep_put_anywhere(at, v[0], v[1]);
}

/*
 * All threads, when they have read a step, before a barrier: has a source begun to write over it? What was read has been stored: no
 * load of it comes later. Without a deadline of its own this rank cannot go on without the source, nor with it.
 */
static __device__ __noinline__ void cvy_ep_bulk_look_apart(struct cvy_ep_apart *x)
{
	const struct cvy_gpu_call *c = &x->t.a->call;
	const int rank = (int)threadIdx.x;

	if (x->t.until.most) {
		cvy_ranks_join(&x->t.sh->late, rank);
		return;
	}
	cvy_store_word((uint8_t *)&c->mailbox->outrun[rank], cvy_load_word(&c->control->finished) / CVY_GPU_QUANTA + 1);
	cvy_wait_closed(rank, &x->r.watch);
	((volatile struct cvy_ep_shared *)x->t.sh)->stopped = 1;
}

static __device__ __forceinline__ void cvy_ep_bulk_look(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	const int rank = (int)threadIdx.x;
	struct cvy_ep_apart x;

	if (!CVY_GUARDED)
		return;
	__syncthreads();
	if (rank >= CVY_GPU_RANKS || rank == t->a->call.rank || !cvy_has(t->sources, rank) ||
	    !cvy_far_overtaken(&t->a->call, t->r, rank, s->tag ^ CVY_GPU_MARK))
		return;
	cvy_ep_set_apart(&x, t);
	cvy_ep_bulk_look_apart(&x);
}

#endif
