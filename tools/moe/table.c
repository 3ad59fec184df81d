/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of a run: its timeline, its speed between the events, and the table over all parts. Speed is taken from
 * the ranks' clocks, in steps that no event and no start of processes touched.
 */
#include <inttypes.h>
#include <stdio.h>

#include "story.h"

#define PHASE_STEPS 10 /* fewer say nothing about speed */

static const char *const op_names[MOE_OPS] = { "admit", "dispatch", "combine", "allreduce" };

static double ms(uint64_t from, uint64_t to)
{
	return from && to > from ? (double)(to - from) / 1e6 : 0;
}

/* Longest step of a rank during the event. */
static double longest(const struct moe_story *s, const struct moe_event *e, uint64_t from)
{
	uint64_t most = 0;

	for (uint64_t i = from; i <= e->step && i < s->steps; i++)
		if (s->step[i].longest_ns > most)
			most = s->step[i].longest_ns;
	return (double)most / 1e6;
}

static void print_death(const struct moe_event *e)
{
	char mask[80];

	printf("rank %d died in %s (%s); from %s to the new view %.1f ms, to the last survivor's outcome %.1f ms; "
	       "epoch %u -> %u, contributors %s",
	       e->rank, op_names[e->op], e->how, e->exact ? "the signal" : "the first suspicion",
	       ms(e->death_ns, e->view_ns), ms(e->death_ns, e->done_ns), e->epoch_before, e->epoch,
	       moe_mask_text(e->mask, mask, sizeof(mask)));
	if (e->fenced_ns)
		printf("; it went on later and was fenced after %.1f ms", ms(e->woken_ns, e->fenced_ns));
	printf("\n");
}

static void print_comer(const struct moe_story *s, const struct moe_event *e)
{
	char mask[80];

	printf("rank %d is %s, %.0f ms from exec to its first operation, %.0f ms since it was asked for; epoch %u, "
	       "ranks %s; "
	       "longest step of the others %.1f ms",
	       e->rank, e->kind == MOE_BACK ? "replaced" : "in (new)", ms(e->exec_ns, e->first_ns),
	       ms(e->asked_ns, e->first_ns), e->epoch, moe_mask_text(e->mask, mask, sizeof(mask)),
	       longest(s, e, e->from + 1));
	if (e->moved || e->made)
		printf("; experts moved %d, from the seed %d", e->moved, e->made);
	printf("\n");
}

/* Did an event touch step @i? */
static bool touched(const struct moe_story *s, uint64_t i)
{
	for (int k = 0; k < s->events; k++)
		if (i >= s->event[k].from && i <= s->event[k].step)
			return true;
	return false;
}

/* A run of untouched steps, [from, to); from == to: there are no more. */
static void next_phase(const struct moe_story *s, uint64_t at, uint64_t *from, uint64_t *to)
{
	while (at < s->steps && touched(s, at))
		at++;
	*from = at;
	while (at < s->steps && !touched(s, at))
		at++;
	*to = at;
}

static void print_phases(const struct moe_story *s)
{
	double first = 0;
	uint64_t from, to;
	char mask[80];

	printf("\n  steps without events  ranks       tokens/s of all ranks (and against the first; more ranks than "
	       "cores share them)\n");
	for (next_phase(s, 0, &from, &to); from < to; next_phase(s, to, &from, &to)) {
		uint64_t tokens = 0, time = s->step[to - 1].end_ns - s->step[from].end_ns;
		double speed;

		if (to - from < PHASE_STEPS || !time)
			continue;
		for (uint64_t i = from + 1; i < to; i++)
			tokens += s->step[i].tokens;
		speed = (double)tokens * 1e9 / (double)time;
		first = first > 0 ? first : speed;
		printf("  %8" PRIu64 " - %-8" PRIu64 "   %-10s  %.0f (%.2f)\n", from, to - 1,
		       moe_mask_text(s->step[to - 1].admitted, mask, sizeof(mask)), speed, speed / first);
	}
}

static void add_up(const struct moe_story *s, int planned, struct moe_total *t)
{
	t->steps += s->steps;
	t->reports += s->reports;
	t->checked += s->checked;
	t->wrong += s->wrong;
	t->counts_bad += s->counts_bad;
	t->differ += s->differ;
	t->gaps += s->gaps;
	t->undone += s->undone;
	t->lost += s->lost;
	t->partial += s->partial;
	t->planned += planned;
	t->failed |= !s->reports;
	if (!(s->worst <= t->worst))
		t->worst = s->worst;
	for (int i = 0; i < s->events; i++) {
		t->hits += s->event[i].kind == MOE_DIED && s->event[i].planned;
		t->moved += s->event[i].moved;
		t->made += s->event[i].made;
	}
}

void moe_table_part(const struct moe_story *s, const struct moe_options *opt, int planned, struct moe_total *total)
{
	printf("\nseed %" PRIu64 ", transport %s\n", opt->seed, opt->transport);
	for (int i = 0; i < s->events; i++) {
		const struct moe_event *e = &s->event[i];

		printf("%7.3f s  step %-5" PRIu64 " ", ms(s->first_ns, e->time_ns) / 1e3, e->step);
		if (e->kind == MOE_DIED)
			print_death(e);
		else
			print_comer(s, e);
	}
	print_phases(s);
	add_up(s, planned, total);
}

int moe_table_end(const struct moe_total *t)
{
	int bad = t->failed || t->wrong || t->differ || t->gaps || t->counts_bad || t->checked != t->reports ||
		  t->hits != t->planned;

	printf("\n  steps                          %" PRIu64 "\n  reports checked                %" PRIu64
	       " of %" PRIu64 "\n"
	       "  tokens wrong                   %" PRIu64 "\n  reports with wrong counts      %" PRIu64 "\n"
	       "  allreduces that differ         %" PRIu64 "\n  steps left out                 %" PRIu64 "\n"
	       "  known to a dead rank only      %" PRIu64 " (done again without it)\n"
	       "  largest error / row magnitude  %.5f (bound %.5f)\n"
	       "  tokens lost                    %" PRIu64 " (source or all owners dead)\n"
	       "  tokens with some owners dead   %" PRIu64 "\n"
	       "  deaths in operations           %d of %d planned\n"
	       "  experts moved / from the seed  %d / %d\n%s\n",
	       t->steps, t->checked, t->reports, t->wrong, t->counts_bad, t->differ, t->gaps, t->undone,
	       (double)t->worst, 0x1p-7, t->lost, t->partial, t->hits, t->planned, t->moved, t->made,
	       bad ? "FAILED" : "all matched");
	return bad;
}
