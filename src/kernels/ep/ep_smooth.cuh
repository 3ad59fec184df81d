/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch with factors of elements for each expert: rows travel as they are, once to each rank, and the receiver makes the
 * integers of each expert. A scale needs all of a row, so a warp has a whole row and reads its lines twice.
 */
#ifndef CVY_EP_SMOOTH_CUH
#define CVY_EP_SMOOTH_CUH

#include "ep_take.cuh"

/* As cvy_ep_stage(): the tokens of a step, as they are. @x: of the first. */
static __device__ __forceinline__ void cvy_ep_stage_plain(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_room *room, struct cvy_ep_ahead x)
{
	const struct cvy_ep_args *a = t->a;

#pragma unroll 1
	for (int j = 0; j < a->form.per_step && cvy_ep_token(t, s, j) < a->num_tokens; j++) {
		uint64_t *stage = room->stage + (size_t)j * (size_t)a->form.row_words;

		if (j)
			cvy_ep_ahead_of(a, cvy_ep_token(t, s, j), &x);
#pragma unroll
		for (int i = 0; i < CVY_EP_PARTS; i++) {
			int w = i * CVY_EP_THREADS + (int)threadIdx.x;

			if (w < a->hidden / 8) {
				stage[2 * w] = x.v[i][0];
				stage[2 * w + 1] = x.v[i][1];
			}
		}
	}
}

/* One thread: element @i of two words from @word on, times its factor; past the row's end, and beside a tag, 0. */
static __device__ __forceinline__ float cvy_ep_smoothed(const struct cvy_ep_args *a, const float *factors, int word,
							const uint64_t v[2], int i)
{
	const int at = word * 4 + i;

	if (at >= a->hidden || (i >= 4 && threadIdx.x % 8 == 7))
		return 0;
	return (a->fp16 ? cvy_ep_wide<1>(v[i / 4], i % 4) : cvy_ep_wide<0>(v[i / 4], i % 4)) * factors[at];
}

static __device__ __forceinline__ uint32_t cvy_ep_smooth_most(const struct cvy_ep_args *a, const float *factors,
							      int word, const uint64_t v[2])
{
	uint32_t most = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const uint32_t one = cvy_ep_magnitude(cvy_ep_smoothed(a, factors, word, v, i));

		most = one > most ? one : most;
	}
	return most;
}

/* One thread: the codes of two words, four in 4 bytes or, int4, in 2. */
static __device__ __forceinline__ void cvy_ep_put_smooth(const struct cvy_ep_args *a, const float *factors, int word,
							 const uint64_t v[2], float by, uint8_t *row)
{
	const int bits = cvy_ep_int_bits(a), words = threadIdx.x % 8 == 7 ? 1 : 2;

#pragma unroll
	for (int k = 0; k < 2; k++) {
		uint32_t out = 0;

		if (k >= words || (word + k) * 4 >= a->hidden)
			continue;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float one = cvy_ep_smoothed(a, factors, word, v, k * 4 + i);

			out |= ((uint32_t)cvy_ep_nearest(one, by) & ((1u << bits) - 1)) << (bits * i);
		}
		if (bits == 4)
			((uint16_t *)row)[word + k] = (uint16_t)out;
		else
			((uint32_t *)row)[word + k] = out;
	}
}

/* A warp: each(word, v) of all packets of token @j of @rank. Not 0: stopped or late, and said so. */
template <typename EACH>
static __device__ __forceinline__ int cvy_ep_each_packet(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							 const struct cvy_ep_room *room, int rank, int j, EACH each)
{
	const struct cvy_ep_form *f = &t->a->form;
	const int lines = cvy_ep_last_line(t, s), whose[1] = { rank };

#pragma unroll 1
	for (int q = 0; q < (lines + 3) / 4; q++) {
		int word, line = cvy_ep_place(q, &word), whom, how = 0;
		const uint8_t *at[1] = { NULL };
		uint64_t v[1][2] = { { 0, 0 } };

		if (rank == t->a->call.rank) {
			cvy_ep_staged(t->a, room, j, word, v[0]);
		} else {
			if (line < lines)
				at[0] = cvy_ep_from(t, s, rank, f->header_lines + j * f->slice_lines + line);
			how = cvy_wait_lines<1>(at, whose, s->tag, v, &t->r->watch, &t->until, &whom);
		}
		if (how) {
			cvy_ep_failed(t, how, whom);
			return how;
		}
		each(line < lines ? word : f->row_words, v[0]);
	}
	return 0;
}

/* A warp: a row of expert @id for token @j of @rank, to row @to. Each packet is looked at twice, with its tag. */
static __device__ __forceinline__ int cvy_ep_take_smoothed(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							   const struct cvy_ep_room *room, int rank, int j, int id,
							   int to)
{
	const struct cvy_ep_args *a = t->a;
	const float *factors = a->smooth + (size_t)(a->places > 1 ? id / a->places : id) * (size_t)a->hidden;
	const int bits = cvy_ep_int_bits(a);
	uint8_t *row = a->packed + (size_t)to * (size_t)cvy_ep_scale_at(a) * 4;
	struct cvy_ep_scaling scaling;
	uint32_t most = 0;
	int how;

	how = cvy_ep_each_packet(t, s, room, rank, j, [&](int word, const uint64_t v[2]) {
		const uint32_t one = cvy_ep_smooth_most(a, factors, word, v);

		most = one > most ? one : most;
	});
	if (how)
		return how;
	scaling = cvy_ep_scaling_of(cvy_ep_warp_most(most), bits);
	how = cvy_ep_each_packet(t, s, room, rank, j, [&](int word, const uint64_t v[2]) {
		cvy_ep_put_smooth(a, factors, word, v, scaling.by, row);
	});
	if (!how && threadIdx.x % 32 == 0)
		a->scales[to] = scaling.scale;
	return how;
}

/* A warp: token @j of @rank, into the rows of its experts here. */
template <int BINS>
static __device__ __forceinline__ int cvy_ep_take_experts(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_room *room, int rank, int j)
{
	const struct cvy_ep_args *a = t->a;
	const struct cvy_ep_named named = cvy_ep_rows_of<BINS>(t, room, rank, j);
	const uint32_t *said = rank == a->call.rank ? room->own : room->entry + (size_t)rank * cvy_ep_entries(a);
	const int k = (int)(threadIdx.x % 32);
	int id = 0, how = 0;

	if (k < a->top_k)
		id = (int)(said[j * 2 * a->form.entry_words + k] & 0xffff);
	cvy_ep_write_route<0>(t, rank, cvy_ep_token(t, s, j), &named);
#pragma unroll 1
	for (uint32_t rows = __ballot_sync(CVY_EP_ALL, named.row >= 0); rows && !how; rows &= rows - 1) {
		const int from = __ffs((int)rows) - 1;

		how = cvy_ep_take_smoothed(t, s, room, rank, j, __shfl_sync(CVY_EP_ALL, id, from),
					   __shfl_sync(CVY_EP_ALL, named.row, from));
	}
	if (!how)
		cvy_ep_row_arrives(a, named.row, 1, 1);
	return how;
}

/* All threads: as cvy_ep_take_rows(), a token a warp. */
template <int BINS>
static __device__ __forceinline__ void cvy_ep_take_smooth(struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							  const struct cvy_ep_room *room)
{
	int n = 0;

#pragma unroll 1
	for (int p = 0; p < t->a->call.size; p++) {
#pragma unroll 1
		for (uint64_t left = t->sh->theirs[p]; left; left &= left - 1) {
			if (n++ % CVY_EP_WARPS != (int)(threadIdx.x / 32))
				continue;
			if (cvy_ep_take_experts<BINS>(t, s, room, p, __ffsll((long long)left) - 1) == 1)
				return;
		}
	}
}

#endif
