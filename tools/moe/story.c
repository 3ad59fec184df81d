/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of a run, and the checks that need all reports. A rank that reported a step was alive in its dispatch and
 * combine, so a rank that lacked it there had a wrong mask. Ranks that lived on have the same outcome of every
 * allreduce.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "story.h"

#define FIRST_ROOM 256

char *moe_mask_text(uint64_t mask, char *text, size_t bytes)
{
	size_t at = 0;

	snprintf(text, bytes, "none");
	for (int r = 0; r < MOE_MAX_RANKS && at + 8 < bytes; r++) {
		int end = r;

		if (!(mask >> r & 1))
			continue;
		while (end + 1 < MOE_MAX_RANKS && (mask >> (end + 1) & 1))
			end++;
		at += (size_t)snprintf(text + at, bytes - at, end > r ? "%s%d-%d" : "%s%d", at ? "," : "", r, end);
		r = end;
	}
	return text;
}

static int grow(struct moe_story *s, uint64_t step)
{
	uint64_t room = s->room ? s->room : FIRST_ROOM;
	struct moe_step *p;

	while (room <= step)
		room *= 2;
	if (room == s->room)
		return 0;
	p = realloc(s->step, room * sizeof(*p));
	if (!p)
		return -1;
	memset(p + s->room, 0, (room - s->room) * sizeof(*p));
	s->step = p;
	s->room = room;
	return 0;
}

static void differs(struct moe_story *s, const struct moe_report *r)
{
	const struct moe_step *t = &s->step[r->step];
	char one[80], other[80];

	s->differ++;
	printf("%sstep %" PRIu64 ": rank %d has an allreduce of ranks %s, sum %" PRId64 ", others of %s, sum %" PRId64
	       "\n",
	       isatty(STDOUT_FILENO) ? "\r\033[K" : "", r->step, r->rank,
	       moe_mask_text(r->mask[MOE_SUM], one, sizeof(one)), r->sum,
	       moe_mask_text(t->sum_mask, other, sizeof(other)), t->sum);
}

/*
 * The outcome of an allreduce counts if its rank lived on: one that only dead ranks had completed is repeated by the
 * others without them. So a report is compared with others once the same process has reported the next step or its end.
 */
static void survived(struct moe_story *s, const struct moe_report *r)
{
	struct moe_step *t = &s->step[r->step];

	if (!t->survivors) {
		t->sum = r->sum;
		t->sum_mask = r->mask[MOE_SUM];
	} else if (t->sum != r->sum || t->sum_mask != r->mask[MOE_SUM]) {
		differs(s, r);
	}
	t->survivors |= UINT64_C(1) << r->rank;
	t->lacked |= r->mask[MOE_ADMIT] & ~r->mask[MOE_SUM];
}

void moe_story_survived(struct moe_story *s, int rank)
{
	if (s->last[rank].kind)
		survived(s, &s->last[rank]);
	s->last[rank].kind = 0;
}

/* The report of a process that has ended: kept apart, and compared when all is known. */
static void gone(struct moe_story *s, int rank)
{
	struct moe_report *r = &s->last[rank];

	if (r->kind && s->deads < MOE_MAX_STORY)
		s->dead[s->deads++] = (struct moe_last){ r->step, r->mask[MOE_SUM], r->sum };
	r->kind = 0;
}

/* A process of the rank reports one step after the other without a gap. */
static void follow(struct moe_story *s, const struct moe_report *r)
{
	struct moe_report *last = &s->last[r->rank];

	if (last->kind && last->incarnation > r->incarnation)
		return; /* the last report of a rank that was stopped and replaced */
	if (last->kind && last->incarnation == r->incarnation) {
		struct moe_step *t = &s->step[r->step];

		s->gaps += last->step + 1 != r->step;
		if (r->end_ns - last->end_ns > t->longest_ns)
			t->longest_ns = r->end_ns - last->end_ns;
		survived(s, last);
	} else {
		s->gaps += !r->fresh && r->step != 0;
		gone(s, r->rank);
	}
	*last = *r;
}

int moe_story_step(struct moe_story *s, const struct moe_report *r)
{
	uint64_t here = r->mask[MOE_DISPATCH] & r->mask[MOE_COMBINE];
	struct moe_step *t;

	if (r->step > UINT32_MAX || grow(s, r->step))
		return -1;
	if (!s->first_ns)
		s->first_ns = r->end_ns;
	follow(s, r);
	t = &s->step[r->step];
	t->reported |= UINT64_C(1) << r->rank;
	t->missing |= r->mask[MOE_ADMIT] & ~here;
	t->admitted |= r->mask[MOE_ADMIT];
	t->tokens += (uint64_t)r->tokens;
	if (r->end_ns > t->end_ns)
		t->end_ns = r->end_ns;
	if (r->step >= s->steps)
		s->steps = r->step + 1;
	s->reports++;
	return 0;
}

struct moe_event *moe_story_add(struct moe_story *s, int kind, int rank)
{
	struct moe_event *e;

	if (s->events == MOE_MAX_STORY)
		return NULL;
	e = &s->event[s->events++];
	memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->rank = rank;
	e->time_ns = moe_now_ns();
	return e;
}

struct moe_event *moe_story_last(struct moe_story *s, int kind, int rank)
{
	for (int i = s->events - 1; i >= 0; i--)
		if (s->event[i].kind == kind && s->event[i].rank == rank)
			return &s->event[i];
	return NULL;
}

void moe_story_progress(struct moe_story *s, const struct moe_report *r, bool last)
{
	static uint64_t next_ns;
	uint64_t now = moe_now_ns();
	bool tty = isatty(STDOUT_FILENO);
	char mask[80];

	if (!last && now < next_ns)
		return;
	next_ns = now + (tty ? 100000000u : 2000000000u);
	printf("%sstep %-6" PRIu64 " epoch %-3u ranks %-10s wait %7.3f ms   lost %" PRIu64 " wrong %" PRIu64 "%s",
	       tty ? "\r" : "", r->step, r->epoch[MOE_SUM], moe_mask_text(r->mask[MOE_SUM], mask, sizeof(mask)),
	       (double)r->wait_ns[MOE_DISPATCH] / 1e6, s->lost, s->wrong, tty && !last ? "\033[K" : "\n");
	fflush(stdout);
}

void moe_story_sum(struct moe_story *s, const struct moe_options *opt)
{
	uint64_t tokens = (uint64_t)opt->shape.tokens;

	for (int r = 0; r < MOE_MAX_RANKS; r++)
		gone(s, r);
	for (uint64_t i = 0; i < s->steps; i++) {
		const struct moe_step *t = &s->step[i];
		uint64_t silent = t->admitted & ~t->reported;
		uint64_t liars = (t->missing & t->reported) | (t->lacked & t->survivors);

		s->lost += (uint64_t)__builtin_popcountll(silent) * tokens;
		s->wrong += (uint64_t)__builtin_popcountll(liars) * tokens;
	}
	for (int i = 0; i < s->deads; i++) {
		const struct moe_step *t = &s->step[s->dead[i].step];

		s->undone += t->survivors && (t->sum != s->dead[i].sum || t->sum_mask != s->dead[i].mask);
	}
}

void moe_story_close(struct moe_story *s)
{
	free(s->step);
	memset(s, 0, sizeof(*s));
}
