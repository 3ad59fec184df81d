/* SPDX-License-Identifier: Apache-2.0 */
/* Images of a window's half and of the state window. */
#include "wire_win.h"

enum { WIN_TRIPLET_WORDS = 3, WIN_DONE_WORDS = 8 };

static int is_mesh(const struct cvy_wire_win *w)
{
	return w->slot.blocks != 0;
}

static int check_memory(const struct cvy_wire_win *w, const struct cvy_wire_win_memory *m)
{
	int err = cvy_wire_fits(w->box, "a half", &m->half, w->half_bytes);

	err = err ? err : cvy_wire_fits(w->box, "a state window", &m->state, CVY_WIRE_WIN_STATE);
	err = err ? err : cvy_wire_between(w->box, "parity", m->parity, 0, 1);
	return err ? err : cvy_wire_between(w->box, "the rank", m->rank, 0, w->ranks - 1);
}

static int check_routing(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing)
{
	const struct cvy_wire_routing like = {
		.ranks = w->ranks, .experts = w->experts, .top_k = w->top_k, .tokens = w->tokens
	};

	return cvy_wire_routing_check(w->box, routing, &like);
}

/* Returns the number of tokens of the run. */
static int write_run(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing,
		     const struct cvy_wire_win_memory *m, const struct cvy_wire_win_run *run)
{
	uint8_t *to = m->half.at + cvy_wire_win_run_at(w, m->rank, run->local, run->src);
	const struct cvy_wire_source *source = &routing->source[run->src];
	int n = 0;

	for (int i = 0; i < source->tokens * w->choices; i++) {
		int t = i / w->choices, c = i % w->choices;
		const int32_t triplet[WIN_TRIPLET_WORDS] = { run->src, t, c };
		struct cvy_wire_win_owner o = cvy_wire_win_owner(w, routing, run->src, t, c);

		if (o.rank != m->rank || o.local != run->local)
			continue;
		cvy_wire_token_write(&w->slot, source, t, to);
		cvy_wire_part_write(&w->slot, to, CVY_WIRE_META, triplet);
		cvy_wire_blocks_mark(&w->slot, to);
		to += w->slot.bytes;
		n++;
	}
	return n;
}

int cvy_wire_win_write(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing,
		       const struct cvy_wire_win_memory *to)
{
	int err = check_memory(w, to);
	struct cvy_wire_win_run run;

	err = err ? err : check_routing(w, routing);
	if (err)
		return err;
	for (run.local = 0; run.local < cvy_wire_win_local(w, to->rank); run.local++)
		for (run.src = 0; run.src < w->ranks; run.src++) {
			int n = write_run(w, routing, to, &run);
			uint8_t *word = to->state.at + cvy_wire_win_count_at(w, to->parity, run.local, run.src);

			if (is_mesh(w))
				continue;
			cvy_wire_put32(word, CVY_WIRE_ONE);
			cvy_wire_put32(word + 4, (uint32_t)n);
		}
	return 0;
}

static int check_run(const struct cvy_wire_win *w, const struct cvy_wire_win_memory *from,
		     const struct cvy_wire_win_run *run)
{
	int err = check_memory(w, from);

	err = err ? err
		  : cvy_wire_between(w->box, "the local expert", run->local, 0, cvy_wire_win_local(w, from->rank) - 1);
	return err ? err : cvy_wire_between(w->box, "the source", run->src, 0, w->ranks - 1);
}

/* Full mesh: no word, only blocks. */
static int arrived(const struct cvy_wire_win *w, const uint8_t *slot)
{
	int n = 0;

	while (n < w->tokens && cvy_wire_blocks_arrived(&w->slot, slot + (size_t)n * w->slot.bytes) == w->slot.blocks)
		n++;
	return n;
}

int cvy_wire_win_count(const struct cvy_wire_win *w, const struct cvy_wire_win_memory *from,
		       const struct cvy_wire_win_run *run, int *count)
{
	int err = check_run(w, from, run);
	const uint8_t *word;

	if (err)
		return err;
	if (is_mesh(w)) {
		*count = arrived(w, from->half.at + cvy_wire_win_run_at(w, from->rank, run->local, run->src));
		return 0;
	}
	word = from->state.at + cvy_wire_win_count_at(w, from->parity, run->local, run->src);
	if (cvy_wire_get32(word) != CVY_WIRE_ONE)
		return COVEY_ERR_AGAIN;
	err = cvy_wire_between(w->box, "the count of a run", (int32_t)cvy_wire_get32(word + 4), 0, w->tokens);
	if (!err)
		*count = (int)cvy_wire_get32(word + 4);
	return err;
}

int cvy_wire_win_read(const struct cvy_wire_win *w, const struct cvy_wire_win_memory *from,
		      const struct cvy_wire_win_run *run, int slot, struct cvy_wire_token *token)
{
	int32_t triplet[WIN_TRIPLET_WORDS];
	const uint8_t *at;
	int count = 0, err = cvy_wire_win_count(w, from, run, &count);

	err = err ? err : cvy_wire_between(w->box, "the slot", slot, 0, is_mesh(w) ? w->tokens - 1 : count - 1);
	if (!err && slot >= count)
		err = COVEY_ERR_AGAIN;
	if (err)
		return err;
	at = from->half.at + cvy_wire_win_run_at(w, from->rank, run->local, run->src) + (size_t)slot * w->slot.bytes;
	cvy_wire_part_read(&w->slot, at, CVY_WIRE_META, triplet);
	err = cvy_wire_between(w->box, "the rank in a triplet", triplet[0], run->src, run->src);
	err = err ? err : cvy_wire_between(w->box, "the token in a triplet", triplet[1], 0, w->tokens - 1);
	err = err ? err : cvy_wire_between(w->box, "the choice in a triplet", triplet[2], 0, w->choices - 1);
	if (err)
		return err;
	token->token = triplet[1];
	token->choice = triplet[2];
	cvy_wire_token_read(&w->slot, at, token);
	return 0;
}

int cvy_wire_win_combine_write(const struct cvy_wire_win *w, const struct cvy_wire_routing *routing,
			       const struct cvy_wire_win_rows *rows, const struct cvy_wire_win_memory *to)
{
	int err = check_memory(w, to);

	err = err ? err : check_routing(w, routing);
	if (err)
		return err;
	for (int i = 0; i < routing->source[to->rank].tokens * w->choices; i++) {
		struct cvy_wire_source row = { .payload = rows->payload, .scales = rows->scales };
		int t = i / w->choices, c = i % w->choices;
		uint8_t *done = to->state.at + cvy_wire_win_done_at(w, to->parity, t, c);

		if (cvy_wire_win_owner(w, routing, to->rank, t, c).rank < 0)
			continue;
		cvy_wire_token_write(&w->row, &row, i, to->half.at + cvy_wire_win_row_at(w, t, c));
		for (int k = 0; k < WIN_DONE_WORDS; k++)
			cvy_wire_put32(done + 4 * k, CVY_WIRE_ONE);
	}
	return 0;
}

int cvy_wire_win_combine_read(const struct cvy_wire_win *w, const struct cvy_wire_win_memory *from, int token, int c,
			      struct cvy_wire_token *row)
{
	int err = check_memory(w, from);
	const uint8_t *done;

	err = err ? err : cvy_wire_between(w->box, "the token", token, 0, w->tokens - 1);
	err = err ? err : cvy_wire_between(w->box, "the choice", c, 0, w->choices - 1);
	if (err)
		return err;
	done = from->state.at + cvy_wire_win_done_at(w, from->parity, token, c);
	for (int k = 0; k < WIN_DONE_WORDS; k++)
		if (cvy_wire_get32(done + 4 * k) != CVY_WIRE_ONE)
			return COVEY_ERR_AGAIN;
	row->token = token;
	row->choice = c;
	cvy_wire_token_read(&w->row, from->half.at + cvy_wire_win_row_at(w, token, c), row);
	return 0;
}
