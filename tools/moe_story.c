/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The story of a run: what each step was told and by whom, what died where, and the table at the end. The one check
 * that needs all reports is here: a rank that reported a step was alive in its dispatch and combine, so whoever lacked
 * it there was told wrong.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe.h"

static const char *const op_names[MOE_OPS] = { "admit", "dispatch", "combine", "allreduce" };

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
	uint64_t **all[] = { &s->reported, &s->missing, &s->admitted, &s->time_ns, &s->tokens, &s->sum, &s->sum_mask, &s->survivors, &s->lacked };
	uint64_t room = s->room ? s->room : 256;

	while (room <= step)
		room *= 2;
	if (room == s->room)
		return 0;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		uint64_t *p = realloc(*all[i], room * sizeof(*p));

		if (!p)
			return -1;
		memset(p + s->room, 0, (room - s->room) * sizeof(*p));
		*all[i] = p;
	}
	s->room = room;
	return 0;
}

static void differs(struct moe_story *s, const struct moe_report *r)
{
	char one[80], other[80];

	s->differ++;
	printf("%sstep %" PRIu64 ": rank %d has an allreduce of ranks %s, sum %" PRId64 ", others of %s, sum %" PRId64 "\n",
	       isatty(STDOUT_FILENO) ? "\r\033[K" : "", r->step, r->rank, moe_mask_text(r->mask[MOE_SUM], one, sizeof(one)), r->sum,
	       moe_mask_text(s->sum_mask[r->step], other, sizeof(other)), (int64_t)s->sum[r->step]);
}

/*
 * The outcome of an allreduce counts when its rank lived on: what only the dead had completed the others do again,
 * without them. So a report is compared with others when the same process has reported the next step.
 */
static void survived(struct moe_story *s, const struct moe_report *r)
{
	if (!s->survivors[r->step]) {
		s->sum[r->step] = (uint64_t)r->sum;
		s->sum_mask[r->step] = r->mask[MOE_SUM];
	} else if (s->sum[r->step] != (uint64_t)r->sum || s->sum_mask[r->step] != r->mask[MOE_SUM]) {
		differs(s, r);
	}
	s->survivors[r->step] |= UINT64_C(1) << r->rank;
	s->lacked[r->step] |= r->mask[MOE_ADMIT] & ~r->mask[MOE_SUM];
}

int moe_story_step(struct moe_story *s, const struct moe_report *r)
{
	uint64_t here = r->mask[MOE_DISPATCH] & r->mask[MOE_COMBINE];

	if (r->step > UINT32_MAX || grow(s, r->step))
		return -1;
	if (!s->first_ns)
		s->first_ns = r->end_ns;
	if (!r->fresh && s->last[r->rank].kind && s->last[r->rank].step + 1 == r->step)
		survived(s, &s->last[r->rank]);
	s->last[r->rank] = *r;
	s->reported[r->step] |= UINT64_C(1) << r->rank;
	s->missing[r->step] |= r->mask[MOE_ADMIT] & ~here;
	s->admitted[r->step] |= r->mask[MOE_ADMIT];
	s->tokens[r->step] += (uint64_t)r->tokens;
	if (r->end_ns > s->time_ns[r->step])
		s->time_ns[r->step] = r->end_ns;
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

void moe_story_progress(struct moe_story *s, const struct moe_report *r, bool last)
{
	static uint64_t next_ns;
	uint64_t now = moe_now_ns();
	bool tty = isatty(STDOUT_FILENO);
	char mask[80];

	if (!last && now < next_ns)
		return;
	next_ns = now + (tty ? 100000000u : 2000000000u);
	printf("%sstep %-6" PRIu64 " epoch %-3u ranks %-10s wait %7.3f ms   lost %" PRIu64 " wrong %" PRIu64 "%s", tty ? "\r" : "",
	       r->step, r->epoch[MOE_SUM], moe_mask_text(r->mask[MOE_SUM], mask, sizeof(mask)),
	       (double)r->wait_ns[MOE_DISPATCH] / 1e6, s->lost, s->wrong, tty && !last ? "\033[K" : "\n");
	fflush(stdout);
}

/* Tokens per second of the steps after @from, before @to. */
static double rate(const struct moe_story *s, uint64_t from, uint64_t to)
{
	uint64_t tokens = 0;

	if (to > s->steps)
		to = s->steps;
	if (from + 2 > to || s->time_ns[to - 1] <= s->time_ns[from])
		return 0;
	for (uint64_t i = from + 1; i < to; i++)
		tokens += s->tokens[i];
	return (double)tokens * 1e9 / (double)(s->time_ns[to - 1] - s->time_ns[from]);
}

static void print_event(const struct moe_story *s, const struct moe_event *e, uint64_t until, double before)
{
	double at = (double)(e->time_ns - s->first_ns) / 1e9, now = rate(s, e->step, until);
	char mask[80];

	printf("%7.3f s  step %-5" PRIu64 " ", at, e->step);
	if (e->kind == MOE_DIED)
		printf("rank %d died in %s (%s); survivors waited %.3f ms at most, epoch %u -> %u, contributors %s", e->rank,
		       op_names[e->op], e->how, (double)e->wait_ns / 1e6, e->epoch_before, e->epoch,
		       moe_mask_text(e->mask, mask, sizeof(mask)));
	else
		printf("rank %d is %s after %.3f s, epoch %u, ranks %s", e->rank, e->kind == MOE_BACK ? "replaced" : "in (new)",
		       (double)(e->time_ns - e->asked_ns) / 1e9, e->epoch, moe_mask_text(e->mask, mask, sizeof(mask)));
	if (now > 0)
		printf("; then %.0f tokens/s (%.2f)", now, before > 0 ? now / before : 0);
	printf("\n");
}

/* Steps that are not over may lack reports: the last one of all is. */
static void count_dead_sources(struct moe_story *s, int tokens)
{
	for (uint64_t i = 0; i < s->steps; i++) {
		uint64_t silent = s->admitted[i] & ~s->reported[i];
		uint64_t liars = (s->missing[i] & s->reported[i]) | (s->lacked[i] & s->survivors[i]);

		s->lost += (uint64_t)__builtin_popcountll(silent) * (uint64_t)tokens;
		s->wrong += (uint64_t)__builtin_popcountll(liars) * (uint64_t)tokens;
	}
}

int moe_story_end(struct moe_story *s, const struct moe_options *opt, int planned)
{
	uint64_t first = s->events ? s->event[0].step : s->steps;
	double before = rate(s, 0, first);
	int hits = 0, moved = 0, made = 0, bad;

	count_dead_sources(s, opt->shape.tokens);
	printf("\nseed %" PRIu64 ", transport %s: %.0f tokens/s before the first event\n", opt->seed, opt->transport, before);
	for (int i = 0; i < s->events; i++) {
		const struct moe_event *e = &s->event[i];

		print_event(s, e, i + 1 < s->events ? s->event[i + 1].step : s->steps, before);
		hits += e->kind == MOE_DIED && e->planned;
		moved += e->moved;
		made += e->made;
	}
	bad = s->wrong || s->differ || s->counts_bad || s->checked != s->reports || hits != planned || !s->reports;
	printf("\n  steps                          %" PRIu64 "\n  reports checked                %" PRIu64 " of %" PRIu64 "\n"
	       "  tokens wrong                   %" PRIu64 "\n  reports with wrong counts      %" PRIu64 "\n"
	       "  allreduces that differ         %" PRIu64 "\n"
	       "  largest error / row magnitude  %.5f (bound %.5f)\n"
	       "  tokens lost                    %" PRIu64 " (source or all owners dead)\n"
	       "  tokens with some owners dead   %" PRIu64 "\n"
	       "  deaths in operations           %d of %d planned\n"
	       "  experts moved / from the seed  %d / %d\n%s\n",
	       s->steps, s->checked, s->reports, s->wrong, s->counts_bad, s->differ, (double)s->worst, 0x1p-7, s->lost, s->partial, hits,
	       planned, moved, made, bad ? "FAILED" : "all matched");
	free(s->reported), free(s->missing), free(s->admitted), free(s->time_ns), free(s->tokens);
	free(s->sum), free(s->sum_mask), free(s->survivors), free(s->lacked);
	return bad;
}
