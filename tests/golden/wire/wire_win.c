/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of windows, and which rank a token goes to. */
#include "wire_win.h"

enum { WIN_SCALE = 32, WIN_TRIPLET = 12, WIN_ALIGN = 512, WIN_UNIT = 32, WIN_HALVES = 2 };

static int is_mesh(const struct cvy_wire_win *w)
{
	return w->format >= CVY_WIRE_MESH_16;
}

size_t cvy_wire_win_capacity(const struct cvy_wire_win *w, enum cvy_wire_win_formula formula)
{
	size_t hidden = 2 * (size_t)w->hidden, token = cvy_round_up(hidden, WIN_UNIT), slot;
	size_t rows = (size_t)(w->top_k + w->shared_experts) * (size_t)w->tokens * cvy_round_up(hidden, WIN_ALIGN);

	if (formula == CVY_WIRE_WIN_BY_MESH)
		slot = cvy_wire_block_count(token + 2 * WIN_SCALE) * CVY_WIRE_BLOCK;
	else
		slot = cvy_round_up(token + WIN_SCALE + (formula == CVY_WIRE_WIN_BY_COMBINE ? WIN_TRIPLET : WIN_SCALE),
				    WIN_ALIGN);
	return WIN_HALVES * ((size_t)w->local * (size_t)w->tokens * (size_t)w->ranks * slot + rows);
}

static int check_shared(const struct cvy_wire_win *w)
{
	int err = cvy_wire_between(w->box, "shared ranks", w->shared_ranks, 0, w->ranks - 1);

	err = err ? err : cvy_wire_between(w->box, "shared experts", w->shared_experts, 0, CVY_WIRE_WIN_SHARED);
	if (err || (!w->shared_ranks && w->shared_experts <= 1))
		return err;
	if (!w->shared_ranks || !w->shared_experts || w->shared_ranks % w->shared_experts)
		return cvy_fail(
			w->box, COVEY_ERR_INVAL, -1, 0,
			"%d shared ranks for %d shared experts: each expert must have as many ranks as the others",
			w->shared_ranks, w->shared_experts);
	return 0;
}

static int check(const struct cvy_wire_win *w)
{
	int err = cvy_wire_between(w->box, "format", w->format, CVY_WIRE_WIN_16, CVY_WIRE_MESH_INT4);

	if (!err && w->format > CVY_WIRE_WIN_INT4 && w->format < CVY_WIRE_MESH_16)
		err = cvy_fail(w->box, COVEY_ERR_INVAL, -1, 0, "format %s is of combine: dispatch has another",
			       cvy_wire_format_name(w->format));
	err = err ? err : cvy_wire_between(w->box, "ranks", w->ranks, 1, CVY_WIRE_WIN_RANKS);
	err = err ? err : cvy_wire_between(w->box, "experts", w->experts, 1, CVY_WIRE_WIN_EXPERTS);
	err = err ? err : cvy_wire_between(w->box, "tokens", w->tokens, 1, CVY_WIRE_WIN_TOKENS);
	err = err ? err : cvy_wire_between(w->box, "top_k", w->top_k, 1, CVY_WIRE_WIN_TOP_K);
	return err ? err : check_shared(w);
}

static int check_window(struct cvy_wire_win *w)
{
	size_t window = w->window_bytes ? w->window_bytes : CVY_WIRE_WIN_DEFAULT, unit = (size_t)1 << 20;

	w->needed_bytes = cvy_wire_win_capacity(w, is_mesh(w) ? CVY_WIRE_WIN_BY_MESH : CVY_WIRE_WIN_BY_DISPATCH);
	if (w->needed_bytes > window)
		return cvy_fail(w->box, COVEY_ERR_INVAL, -1, 0,
				"a window of %zu bytes: %d experts of a rank, %d ranks, %d tokens and hidden %d need "
				"%zu (%.1f MiB); use one of %zu MiB",
				window, w->local, w->ranks, w->tokens, w->hidden, w->needed_bytes,
				(double)w->needed_bytes / (double)unit, (w->needed_bytes + unit - 1) / unit);
	if (32 * (size_t)w->local * (size_t)w->ranks > CVY_WIRE_WIN_COMBINE_STATE)
		return cvy_fail(w->box, COVEY_ERR_INVAL, -1, 0,
				"%d experts of a rank and %d ranks are %d runs: the state window has words for %zu",
				w->local, w->ranks, w->local * w->ranks, CVY_WIRE_WIN_COMBINE_STATE / 32);
	return 0;
}

int cvy_wire_win_layout(struct cvy_wire_win *w)
{
	int err = check(w);

	if (!w->combine_format)
		w->combine_format = CVY_WIRE_WIN_COMBINE;
	err = err ? err
		  : cvy_wire_between(w->box, "format of combine", w->combine_format, CVY_WIRE_WIN_COMBINE,
				     CVY_WIRE_WIN_COMBINE_INT8);
	err = err ? err : cvy_wire_local_experts(w->box, w->experts, w->ranks - w->shared_ranks, &w->local);
	err = err ? err : cvy_wire_slot_of(w->box, w->format, w->hidden, w->top_k, &w->slot);
	err = err ? err : cvy_wire_slot_of(w->box, w->combine_format, w->hidden, w->top_k, &w->row);
	if (err)
		return err;
	w->choices = w->top_k + (w->shared_ranks ? w->shared_experts : 0);
	w->run_bytes = (size_t)w->tokens * w->slot.bytes;
	w->dispatch_at = (size_t)w->tokens * (size_t)w->choices * w->row.bytes;
	w->half_bytes = w->dispatch_at + (size_t)w->ranks * (size_t)w->local * w->run_bytes;
	return check_window(w);
}

int cvy_wire_win_buffers(struct cvy_errbox *box, size_t budget, size_t fixed, size_t each)
{
	size_t room = fixed < budget ? budget - fixed : 0;

	if (each && room / 2 >= each)
		return 2;
	if (each && room >= each)
		return 1;
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0,
			"%zu bytes, of which %zu are taken, have no room for a copy of %zu", budget, fixed, each);
}

int cvy_wire_win_local(const struct cvy_wire_win *w, int rank)
{
	return rank < w->shared_ranks ? 1 : w->local;
}

size_t cvy_wire_win_rows(const struct cvy_wire_win *w, int rank)
{
	size_t all = (size_t)w->tokens * (size_t)w->ranks;

	if (rank < w->shared_ranks)
		return all * (size_t)w->shared_experts / (size_t)w->shared_ranks;
	return all * (size_t)(w->local < w->top_k ? w->local : w->top_k);
}

struct cvy_wire_win_owner cvy_wire_win_owner(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing,
					     int src, int t, int c)
{
	const int32_t *ids = routing->source[src].experts + (size_t)t * (size_t)w->top_k;
	struct cvy_wire_win_owner nobody = { -1, -1 };
	int active = 0, each;

	if (c < w->top_k) {
		if (ids[c] < 0)
			return nobody;
		return (struct cvy_wire_win_owner){ w->shared_ranks + ids[c] / w->local, ids[c] % w->local };
	}
	for (int k = 0; k < w->top_k; k++)
		active |= ids[k] >= 0;
	if (!active)
		return nobody;
	each = w->shared_ranks / w->shared_experts;
	return (struct cvy_wire_win_owner){ (c - w->top_k) * each + src % each, 0 };
}

static int check_routing(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing, int rank)
{
	const struct cvy_wire_routing like = {
		.ranks = w->ranks, .experts = w->experts, .top_k = w->top_k, .tokens = w->tokens
	};
	int err = cvy_wire_between(w->box, "the rank", rank, 0, w->ranks - 1);

	return err ? err : cvy_wire_routing_check(w->box, routing, &like);
}

static int run_length(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing, int rank, int local,
		      int src)
{
	int n = 0;

	for (int i = 0; i < routing->source[src].tokens * w->choices; i++) {
		struct cvy_wire_win_owner o = cvy_wire_win_owner(w, routing, src, i / w->choices, i % w->choices);

		n += o.rank == rank && o.local == local;
	}
	return n;
}

int cvy_wire_win_recv_counts(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing, int rank,
			     int32_t *ends)
{
	int err = check_routing(w, routing, rank), end = 0;

	for (int local = 0; !err && local < cvy_wire_win_local(w, rank); local++)
		for (int src = 0; src < w->ranks; src++)
			*ends++ = end += run_length(w, routing, rank, local, src);
	return err;
}

int cvy_wire_win_token_nums(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing, int rank, int type,
			    int64_t *nums)
{
	int err = check_routing(w, routing, rank), end = 0;

	err = err ? err : cvy_wire_between(w->box, "type", type, 0, 1);
	for (int local = 0; !err && local < cvy_wire_win_local(w, rank); local++) {
		int first = end;

		for (int src = 0; src < w->ranks; src++)
			end += run_length(w, routing, rank, local, src);
		nums[local] = type ? end - first : end;
	}
	return err;
}
