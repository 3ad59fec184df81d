/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of the symmetric heap, and their contents. */
#include "wire_flat.h"

enum { FLAT_META = 2 * sizeof(int32_t), FLAT_ARRIVED = 1 };

size_t cvy_wire_flat_slice(size_t *top, size_t bytes)
{
	size_t here = *top > CVY_WIRE_TOO_LARGE - CVY_WIRE_FLAT_ALIGN ? CVY_WIRE_TOO_LARGE
								      : cvy_round_up(*top, CVY_WIRE_FLAT_ALIGN);

	*top = cvy_wire_plus(here, bytes);
	return here;
}

static struct cvy_wire_place slice(size_t *top, size_t n, size_t each)
{
	size_t bytes = cvy_wire_times(n, each);

	return (struct cvy_wire_place){ cvy_wire_flat_slice(top, bytes), bytes };
}

static void places(struct cvy_wire_flat *f)
{
	size_t rows = (size_t)f->ranks * f->entries, posts = (size_t)f->local * f->post_rows;

	f->dispatch_bytes = f->combine_bytes = 0;
	f->comm_x = slice(&f->dispatch_bytes, rows, f->row.bytes);
	f->comm_meta = slice(&f->dispatch_bytes, rows, FLAT_META);
	f->comm_flag = slice(&f->dispatch_bytes, rows, 4);
	f->recv_counts = slice(&f->dispatch_bytes, (size_t)f->ranks, 4);
	f->recv_flag = slice(&f->dispatch_bytes, (size_t)f->ranks, 4);
	f->post_x = slice(&f->dispatch_bytes, posts, f->row.bytes);
	f->post_meta = slice(&f->dispatch_bytes, posts, FLAT_META);
	f->post_counts = slice(&f->dispatch_bytes, (size_t)f->local, 4);
	f->back_x = slice(&f->combine_bytes, f->entries, f->row.bytes);
	f->back_flag = slice(&f->combine_bytes, f->entries, 4);
}

int cvy_wire_flat_layout(struct cvy_wire_flat *f)
{
	int err = cvy_wire_local_experts(f->box, f->experts, f->ranks, &f->local);
	size_t combine_most = CVY_WIRE_FLAT_HEAP - CVY_WIRE_FLAT_COMBINE;

	err = err ? err : cvy_wire_between(f->box, "tokens", f->tokens, 1, CVY_WIRE_MAX_TOKENS);
	err = err ? err : cvy_wire_slot_of(f->box, CVY_WIRE_FLAT, f->hidden, f->top_k, &f->row);
	if (err)
		return err;
	f->entries = (size_t)f->tokens * (size_t)f->top_k;
	f->post_rows = (size_t)f->ranks * (size_t)f->tokens;
	places(f);
	if (f->dispatch_bytes > CVY_WIRE_FLAT_COMBINE || f->combine_bytes > combine_most)
		return cvy_fail(
			f->box, COVEY_ERR_INVAL, -1,
			0, "slices of %zu bytes for dispatch and %zu for combine: at most %zu and %zu fit; use fewer tokens",
			f->dispatch_bytes, f->combine_bytes, CVY_WIRE_FLAT_COMBINE, combine_most);
	return 0;
}

static int check(const struct cvy_wire_flat *f, const struct cvy_wire_routing *routing, int rank,
		 const struct cvy_wire_image *heap)
{
	const struct cvy_wire_routing like = {
		.ranks = f->ranks, .experts = f->experts, .top_k = f->top_k, .tokens = f->tokens
	};
	int err = cvy_wire_fits(f->box, "a heap", heap, f->dispatch_bytes);

	err = err ? err : cvy_wire_between(f->box, "the rank", rank, 0, f->ranks - 1);
	return err ? err : cvy_wire_routing_check(f->box, routing, &like);
}

static void put_pair(uint8_t *at, int a, int b)
{
	cvy_wire_put32(at, (uint32_t)a);
	cvy_wire_put32(at + 4, (uint32_t)b);
}

/* Index of entry @i's expert on @rank; -1: it is elsewhere, or there is none. */
static int local_of(const struct cvy_wire_flat *f, const struct cvy_wire_source *s, int i, int rank)
{
	int e = s->experts[i];

	return e >= 0 && e / f->local == rank ? e % f->local : -1;
}

int cvy_wire_flat_write(const struct cvy_wire_flat *f, const struct cvy_wire_routing *routing, int rank,
			const struct cvy_wire_image *heap)
{
	int err = check(f, routing, rank, heap);

	for (int src = 0; !err && src < f->ranks; src++) {
		const struct cvy_wire_source *s = &routing->source[src];
		size_t row = (size_t)src * f->entries, first = row;

		for (int i = 0; i < s->tokens * f->top_k; i++) {
			int e = local_of(f, s, i, rank);

			if (e < 0)
				continue;
			cvy_wire_token_write(&f->row, s, i / f->top_k, heap->at + f->comm_x.at + row * f->row.bytes);
			put_pair(heap->at + f->comm_meta.at + row * FLAT_META, e, i);
			cvy_wire_put32(heap->at + f->comm_flag.at + 4 * row++, FLAT_ARRIVED);
		}
		cvy_wire_put32(heap->at + f->recv_flag.at + 4 * (size_t)src, (uint32_t)(row - first) + 1);
	}
	return err;
}

int cvy_wire_flat_count(const struct cvy_wire_flat *f, const struct cvy_wire_image *heap, int src, int *count)
{
	int err = cvy_wire_fits(f->box, "a heap", heap, f->dispatch_bytes);
	uint32_t word;

	err = err ? err : cvy_wire_between(f->box, "the source", src, 0, f->ranks - 1);
	if (err)
		return err;
	word = cvy_wire_get32(heap->at + f->recv_flag.at + 4 * (size_t)src);
	if (!word)
		return COVEY_ERR_AGAIN;
	if (word > f->entries + 1)
		return cvy_fail(f->box, COVEY_ERR_INVAL, src, 0,
				"the count flag of source %d is %u: it must be 0 or from 1 to %zu, the count + 1", src,
				(unsigned)word, f->entries + 1);
	*count = (int)word - 1;
	return 0;
}

/* The flag of one row: 0, 1, or an error. */
static int check_flag(const struct cvy_wire_flat *f, const uint8_t *at, size_t row)
{
	uint32_t word = cvy_wire_get32(at + 4 * row);

	if (word == FLAT_ARRIVED)
		return 0;
	return word ? cvy_fail(f->box, COVEY_ERR_INVAL, -1, 0, "the flag of row %zu is %u: it must be 0 or %d", row,
			       (unsigned)word, FLAT_ARRIVED)
		    : COVEY_ERR_AGAIN;
}

/* A row and its meta: the first word is below @most. */
static int read_row(const struct cvy_wire_flat *f, const uint8_t *meta, const uint8_t *row, int most, int *first,
		    struct cvy_wire_token *token)
{
	int32_t a = (int32_t)cvy_wire_get32(meta), entry = (int32_t)cvy_wire_get32(meta + 4);
	int err = cvy_wire_between(f->box, "the first word of a row's meta", a, 0, most - 1);

	err = err ? err : cvy_wire_between(f->box, "the entry in a row's meta", entry, 0, (long long)f->entries - 1);
	if (err)
		return err;
	*first = a;
	token->token = entry / f->top_k;
	token->choice = entry % f->top_k;
	cvy_wire_token_read(&f->row, row, token);
	return 0;
}

int cvy_wire_flat_read(const struct cvy_wire_flat *f, const struct cvy_wire_image *heap, int src, int row,
		       int *local_expert, struct cvy_wire_token *token)
{
	int err = cvy_wire_fits(f->box, "a heap", heap, f->dispatch_bytes);
	size_t at;

	err = err ? err : cvy_wire_between(f->box, "the source", src, 0, f->ranks - 1);
	err = err ? err : cvy_wire_between(f->box, "the row", row, 0, (long long)f->entries - 1);
	if (err)
		return err;
	at = (size_t)src * f->entries + (size_t)row;
	err = check_flag(f, heap->at + f->comm_flag.at, at);
	if (err)
		return err;
	return read_row(f, heap->at + f->comm_meta.at + at * FLAT_META, heap->at + f->comm_x.at + at * f->row.bytes,
			f->local, local_expert, token);
}

int cvy_wire_flat_post_write(const struct cvy_wire_flat *f, const struct cvy_wire_routing *routing, int rank,
			     const struct cvy_wire_image *heap)
{
	int err = check(f, routing, rank, heap);

	for (int e = 0; !err && e < f->local; e++) {
		size_t first = (size_t)e * f->post_rows, row = first;

		for (int src = 0; src < f->ranks; src++)
			for (int i = 0; i < routing->source[src].tokens * f->top_k; i++) {
				if (local_of(f, &routing->source[src], i, rank) != e)
					continue;
				cvy_wire_token_write(&f->row, &routing->source[src], i / f->top_k,
						     heap->at + f->post_x.at + row * f->row.bytes);
				put_pair(heap->at + f->post_meta.at + FLAT_META * row++, src, i);
			}
		cvy_wire_put32(heap->at + f->post_counts.at + 4 * (size_t)e, (uint32_t)(row - first));
	}
	return err;
}

int cvy_wire_flat_post_read(const struct cvy_wire_flat *f, const struct cvy_wire_image *heap, int local_expert, int row,
			    int *src, struct cvy_wire_token *token)
{
	int err = cvy_wire_fits(f->box, "a heap", heap, f->dispatch_bytes);
	uint32_t count;
	size_t at;

	err = err ? err : cvy_wire_between(f->box, "the local expert", local_expert, 0, f->local - 1);
	if (err)
		return err;
	count = cvy_wire_get32(heap->at + f->post_counts.at + 4 * (size_t)local_expert);
	err = cvy_wire_between(f->box, "an expert's count", count, 0, (long long)f->post_rows);
	err = err ? err : cvy_wire_between(f->box, "the row", row, 0, (long long)count - 1);
	if (err)
		return err;
	at = (size_t)local_expert * f->post_rows + (size_t)row;
	return read_row(f, heap->at + f->post_meta.at + at * FLAT_META, heap->at + f->post_x.at + at * f->row.bytes,
			f->ranks, src, token);
}

int cvy_wire_flat_combine_write(const struct cvy_wire_flat *f, const struct cvy_wire_source *source,
				const uint8_t *rows, const struct cvy_wire_image *heap)
{
	const struct cvy_wire_routing own = {
		.ranks = 1, .experts = f->experts, .top_k = f->top_k, .tokens = f->tokens, .source = source
	};
	int err = cvy_wire_fits(f->box, "a heap", heap, f->combine_bytes);

	err = err ? err : cvy_wire_routing_check(f->box, &own, &own);
	if (err)
		return err;
	for (int i = 0; i < source->tokens * f->top_k; i++) {
		if (source->experts[i] < 0)
			continue;
		memcpy(heap->at + f->back_x.at + (size_t)i * f->row.bytes, rows + (size_t)i * f->row.bytes,
		       f->row.bytes);
		cvy_wire_put32(heap->at + f->back_flag.at + 4 * (size_t)i, FLAT_ARRIVED);
	}
	return 0;
}

int cvy_wire_flat_combine_read(const struct cvy_wire_flat *f, const struct cvy_wire_image *heap, int token, int choice,
			       void *row)
{
	int err = cvy_wire_fits(f->box, "a heap", heap, f->combine_bytes);
	size_t entry;

	err = err ? err : cvy_wire_between(f->box, "the token", token, 0, f->tokens - 1);
	err = err ? err : cvy_wire_between(f->box, "the choice", choice, 0, f->top_k - 1);
	if (err)
		return err;
	entry = (size_t)token * (size_t)f->top_k + (size_t)choice;
	err = check_flag(f, heap->at + f->back_flag.at, entry);
	if (!err)
		memcpy(row, heap->at + f->back_x.at + entry * f->row.bytes, f->row.bytes);
	return err;
}
