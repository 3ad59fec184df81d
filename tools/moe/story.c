/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The story of a run: checks that need the reports of all ranks, the timeline, the speed between the events, and the
 * table over all parts. A rank that reported a step was alive in its dispatch and combine, so a rank that lacked it
 * there had a wrong mask. Speed is taken from the ranks' clocks, in steps that no event and no start of processes
 * touched.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe.h"

#define FIRST_ROOM 256
#define PHASE_STEPS 10 /* fewer say nothing about speed */
#define USUAL_STEPS 64 /* of which the median is taken */

static const char *const op_names[MOE_OPS] = { "admit", "dispatch", "combine", "allreduce" };

static char *mask_text(uint64_t mask, char text[80])
{
	size_t at = 0, bytes = 80;

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

/* ---- While it runs ---- */

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

static void differs(struct moe_story *s, const struct moe_report *r, const struct moe_step *t)
{
	char one[80], other[80];

	s->differ++;
	printf("%sstep %" PRIu64 ": rank %d has an allreduce of ranks %s, sum %" PRId64 ", others of %s, sum %" PRId64
	       "\n",
	       isatty(STDOUT_FILENO) ? "\r\033[K" : "", r->step, r->rank, mask_text(r->mask[MOE_SUM], one), r->sum,
	       mask_text(t->mask, other), t->sum);
}

/*
 * All ranks have one outcome of an allreduce. Only ranks that died may have had another, of an older epoch, that no
 * other rank knew: then the others did it again without them. They report no step after that.
 */
static void compare(struct moe_story *s, const struct moe_report *r, struct moe_step *t)
{
	bool same = t->sum == r->sum && t->mask == r->mask[MOE_SUM];

	if (t->owners && !same && t->epoch == r->epoch[MOE_SUM])
		differs(s, r, t);
	if (t->owners && !same && t->epoch > r->epoch[MOE_SUM]) {
		s->past[r->rank].undone = true;
		s->undone++;
		return;
	}
	for (int q = 0; q < MOE_MAX_RANKS && t->owners && !same && t->epoch < r->epoch[MOE_SUM]; q++) {
		if (!(t->owners >> q & 1))
			continue;
		if (s->past[q].step > r->step)
			differs(s, r, t);
		s->past[q].undone = true;
		s->undone++;
	}
	if (!t->owners || (!same && t->epoch < r->epoch[MOE_SUM])) {
		t->sum = r->sum;
		t->mask = r->mask[MOE_SUM];
		t->epoch = r->epoch[MOE_SUM];
		t->owners = t->lacked = 0;
	}
	t->owners |= UINT64_C(1) << r->rank;
	t->lacked |= r->mask[MOE_ADMIT] & ~r->mask[MOE_SUM];
}

/* A process of the rank reports one step after the other without a gap. */
static void follow(struct moe_story *s, const struct moe_report *r, struct moe_step *t)
{
	struct moe_past *past = &s->past[r->rank];

	if (past->incarnation == r->incarnation) {
		s->gaps += past->step + 1 != r->step;
		if (r->end_ns - past->end_ns > t->longest_ns)
			t->longest_ns = r->end_ns - past->end_ns;
		if (past->undone)
			differs(s, r, t);
	} else {
		s->gaps += !r->fresh && r->step != 0;
	}
	*past = (struct moe_past){ r->incarnation, r->step, r->end_ns, false };
}

static void add_verdict(struct moe_verdict *sum, const struct moe_verdict *v)
{
	sum->counts_bad += v->counts_bad;
	sum->wrong += v->wrong;
	sum->lost += v->lost;
	sum->partial += v->partial;
	if (!(v->worst <= sum->worst)) /* also of a NaN */
		sum->worst = v->worst;
}

int moe_story_step(struct moe_story *s, const struct moe_report *r)
{
	struct moe_step *t;

	if (grow(s, r->step))
		return -1;
	if (!s->first_ns)
		s->first_ns = r->end_ns;
	t = &s->step[r->step];
	follow(s, r, t);
	compare(s, r, t);
	t->reported |= UINT64_C(1) << r->rank;
	t->missing |= r->mask[MOE_ADMIT] & ~(r->mask[MOE_DISPATCH] & r->mask[MOE_COMBINE]);
	t->admitted |= r->mask[MOE_ADMIT];
	if (r->end_ns > t->end_ns)
		t->end_ns = r->end_ns;
	if (r->step >= s->steps)
		s->steps = r->step + 1;
	s->reports++;
	if ((uint64_t)r->again > t->again)
		t->again = (uint64_t)r->again;
	add_verdict(&s->sum, &r->verdict);
	return 0;
}

struct moe_event *moe_story_add(struct moe_story *s, int kind, int rank)
{
	struct moe_event *e;

	if (s->events == MOE_MAX_EVENTS)
		return NULL;
	e = &s->event[s->events++];
	*e = (struct moe_event){ .kind = kind, .rank = rank, .time_ns = tool_now_ns() };
	return e;
}

struct moe_event *moe_story_last(struct moe_story *s, int kind, int rank)
{
	for (int i = s->events - 1; i >= 0; i--)
		if (s->event[i].kind == kind && s->event[i].rank == rank)
			return &s->event[i];
	return NULL;
}

void moe_story_progress(const struct moe_story *s, const struct moe_report *r, bool last)
{
	static uint64_t next_ns;
	uint64_t now = tool_now_ns();
	bool tty = isatty(STDOUT_FILENO);
	char mask[80];

	if (!last && now < next_ns)
		return;
	next_ns = now + (tty ? 100000000u : 2000000000u);
	printf("%sstep %-6" PRIu64 " epoch %-3u ranks %-10s wait %7.3f ms   lost %d wrong %d%s", tty ? "\r" : "",
	       r->step, r->epoch[MOE_SUM], mask_text(r->mask[MOE_SUM], mask), (double)r->wait_ns / 1e6, s->sum.lost,
	       s->sum.wrong, tty && !last ? "\033[K" : "\n");
	fflush(stdout);
}

/* ---- At its end ---- */

static double ms(uint64_t from, uint64_t to)
{
	return from && to > from ? (double)(to - from) / 1e6 : 0;
}

static void print_death(const struct moe_event *e)
{
	char mask[80];

	printf("rank %d died in %s (%s); from %s to the new view %.1f ms, to the last survivor's outcome %.1f ms; "
	       "epoch %u -> %u, contributors %s\n",
	       e->rank, op_names[e->op], e->how, e->exact ? "the signal" : "the first suspicion",
	       ms(e->death_ns, e->view_ns), ms(e->death_ns, e->done_ns), e->epoch_before, e->epoch,
	       mask_text(e->mask, mask));
}

/* Did an event touch step @i? */
static bool touched(const struct moe_story *s, uint64_t i)
{
	for (int k = 0; k < s->events; k++)
		if (i >= s->event[k].from && i <= s->event[k].step)
			return true;
	return false;
}

static int rising(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/*
 * Median of the longest steps just before @e, which no event touched; 0: there are too few. It shows whether the
 * machine was busy with other things.
 */
static uint64_t usual_step(const struct moe_story *s, const struct moe_event *e)
{
	uint64_t ns[USUAL_STEPS];
	size_t n = 0;

	for (uint64_t i = e->from; i-- > 0 && n < USUAL_STEPS && !touched(s, i);)
		if (s->step[i].longest_ns)
			ns[n++] = s->step[i].longest_ns;
	qsort(ns, n, sizeof(*ns), rising);
	return n >= PHASE_STEPS ? ns[n / 2] : 0;
}

static void print_comer(const struct moe_story *s, const struct moe_event *e)
{
	uint64_t longest = 0, usual = usual_step(s, e); /* steps of a rank */
	char mask[80];

	for (uint64_t i = e->from + 1; i <= e->step && i < s->steps; i++)
		if (s->step[i].longest_ns > longest)
			longest = s->step[i].longest_ns;
	printf("rank %d is %s, %.0f ms from exec to its first operation, %.0f ms since %s; epoch %u, "
	       "ranks %s; longest step of the others %.1f ms",
	       e->rank, e->kind == MOE_BACK ? "replaced" : "in (new)", ms(e->exec_ns, e->first_ns),
	       ms(e->asked_ns, e->first_ns), e->kind == MOE_BACK ? "a report told the death" : "it was asked for",
	       e->epoch, mask_text(e->mask, mask), (double)longest / 1e6);
	if (usual)
		printf(", in the steps before %.1f ms (median)", (double)usual / 1e6);
	if (e->moved || e->made)
		printf("; experts moved %d, from the seed %d", e->moved, e->made);
	printf("\n");
}

/* Of the untouched steps [from, to). @first: the speed of the first phase, 0: not known yet */
static void print_phase(const struct moe_story *s, uint64_t from, uint64_t to, int tokens, double *first)
{
	uint64_t reports = 0, time = s->step[to - 1].end_ns - s->step[from].end_ns;
	double speed;
	char mask[80];

	if (to - from < PHASE_STEPS || !time)
		return;
	for (uint64_t i = from + 1; i < to; i++)
		reports += (uint64_t)__builtin_popcountll(s->step[i].reported);
	speed = (double)reports * tokens * 1e9 / (double)time;
	*first = *first > 0 ? *first : speed;
	printf("  %8" PRIu64 " - %-8" PRIu64 "   %-10s  %.0f (%.2f)\n", from, to - 1,
	       mask_text(s->step[to - 1].admitted, mask), speed, speed / *first);
}

static void print_phases(const struct moe_story *s, int tokens)
{
	uint64_t from = 0, to;
	double first = 0;

	printf("\n  steps without events  ranks       tokens/s of all ranks, checks included (and against the first; "
	       "more ranks than cores share them)\n");
	for (; from < s->steps; from = to + 1) {
		for (to = from; to < s->steps && !touched(s, to);)
			to++;
		if (to > from)
			print_phase(s, from, to, tokens, &first);
	}
}

static void add_up(struct moe_story *s, int planned, int tokens, struct moe_total *t)
{
	for (uint64_t i = 0; i < s->steps; i++) {
		const struct moe_step *step = &s->step[i];
		uint64_t silent = step->admitted & ~step->reported;
		uint64_t liars = (step->missing & step->reported) | (step->lacked & step->owners);

		s->again += step->again;
		s->sum.lost += __builtin_popcountll(silent) * tokens;
		s->sum.wrong += __builtin_popcountll(liars) * tokens;
	}
	add_verdict(&t->all.sum, &s->sum);
	t->steps += s->steps;
	t->all.reports += s->reports;
	t->all.differ += s->differ;
	t->all.gaps += s->gaps;
	t->all.undone += s->undone;
	t->all.again += s->again;
	t->planned += planned;
	t->failed |= !s->reports;
	for (int i = 0; i < s->events; i++) {
		t->hits += s->event[i].kind == MOE_DIED && s->event[i].planned;
		t->moved += s->event[i].moved;
		t->made += s->event[i].made;
	}
}

void moe_story_part(struct moe_story *s, const struct moe_options *opt, int planned, struct moe_total *total)
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
	print_phases(s, opt->shape.tokens);
	add_up(s, planned, opt->shape.tokens, total);
	free(s->step);
}

int moe_story_end(const struct moe_total *t)
{
	const struct moe_verdict *v = &t->all.sum;
	int bad = t->failed || v->wrong || v->counts_bad || t->all.differ || t->all.gaps || t->hits != t->planned;

	printf("\n  steps                          %" PRIu64 "\n  reports checked                %" PRIu64 "\n"
	       "  tokens wrong                   %d\n  reports with wrong counts      %d\n"
	       "  allreduces that differ         %" PRIu64 "\n  steps left out                 %" PRIu64 "\n"
	       "  known to a dead rank only      %" PRIu64 " (done again without it)\n"
	       "  largest error / row magnitude  %.5f (bound %.5f)\n"
	       "  tokens lost                    %d (source or all owners dead)\n"
	       "  tokens with some owners dead   %d\n"
	       "  pairs done again               %" PRIu64 "\n"
	       "  deaths in operations           %d of %d planned\n"
	       "  experts moved / from the seed  %d / %d\n%s\n",
	       t->steps, t->all.reports, v->wrong, v->counts_bad, t->all.differ, t->all.gaps, t->all.undone,
	       (double)v->worst, 0x1p-7, v->lost, v->partial, t->all.again, t->hits, t->planned, t->moved, t->made,
	       bad ? "FAILED" : "all matched");
	return bad;
}
