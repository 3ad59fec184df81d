/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top: reads the numbers that members' beats carry to the store (observe/metrics.h). A member tells them once a second,
 * with the time when it read them, so a rate is exact whatever the interval between two looks. One look is one call of
 * the store, whatever the size of the group.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "top.h"

#define TOP_MS 2000
#define FIRST_MS 1200 /* from the look before the first table to that table: by then each member has told new numbers */
#define STALE_MS 3500 /* numbers are not shown when no beat came for so long */

/* The last two numbers of the process that holds a rank. */
struct sample {
	uint64_t inc;
	int count;		    /* 0, 1, 2 */
	uint64_t beat_ms, heard_ns; /* its last beat, and when it was seen here: clocks of two hosts may differ */
	int64_t was[CVY_BEAT_NUMBERS], is[CVY_BEAT_NUMBERS];
};

static void keep(struct sample *s, const struct admin_member *m)
{
	if (s->inc != m->inc)
		memset(s, 0, sizeof(*s));
	s->inc = m->inc;
	if (s->beat_ms != m->beat_ms)
		s->heard_ns = tool_now_ns();
	s->beat_ms = m->beat_ms;
	if (m->numbers < CVY_BEAT_NUMBERS || (s->count && s->is[CVY_BEAT_time_ms] == m->number[CVY_BEAT_time_ms]))
		return;
	memcpy(s->was, s->is, sizeof(s->was));
	memcpy(s->is, m->number, sizeof(s->is));
	s->count += s->count < 2;
}

static double grown(const struct sample *s, enum cvy_beat_number n)
{
	return (double)(s->is[n] - s->was[n]);
}

/* A wait that has not ended counts as far as it has come: it is not among the waited seconds yet. */
static double share(const struct sample *s)
{
	double ms = (grown(s, CVY_BEAT_waited_us) + grown(s, CVY_BEAT_awaited_us)) / 1000;
	double part = ms / grown(s, CVY_BEAT_time_ms);

	return part < 0 ? 0 : part > 1 ? 1 : part;
}

static void rate(struct top_row *row, const struct sample *s, const struct admin_group *g)
{
	const struct admin_member *m = row->member;
	double seconds = grown(s, CVY_BEAT_time_ms) / 1000;
	int64_t awaits = s->is[CVY_BEAT_awaited];

	row->told = m->member && s->count && tool_now_ns() - s->heard_ns < STALE_MS * UINT64_C(1000000);
	row->rated = row->told && s->count == 2 && seconds > 0;
	if (row->rated) {
		row->operations = grown(s, CVY_BEAT_operations) / seconds;
		row->bytes = grown(s, CVY_BEAT_bytes) / seconds;
		row->waiting = share(s);
	}
	if (row->told && awaits >= 0 && awaits < COVEY_MAX_RANKS && g->rank[awaits].member) {
		row->awaits = (int)awaits;
		row->awaits_s = (double)s->is[CVY_BEAT_awaited_us] / 1e6;
	}
}

/* The rank at the end of the waits that begin at @row. A circle has no end: then the next one. */
static int awaited_in_the_end(struct top_row *const of[], const struct top *top, const struct top_row *row)
{
	int rank = row->awaits;

	for (int steps = 0; of[rank] && of[rank]->awaits >= 0; steps++) {
		if (steps == top->rows)
			return row->awaits;
		rank = of[rank]->awaits;
	}
	return rank;
}

static void count_waiters(struct top *top)
{
	static struct top_row *of[COVEY_MAX_RANKS];

	memset(of, 0, sizeof(of));
	for (int i = 0; i < top->rows; i++)
		of[top->row[i].rank] = &top->row[i];
	for (int i = 0; i < top->rows; i++) {
		struct top_row *row = &top->row[i], *last;

		if (row->awaits < 0)
			continue;
		row->in_the_end = awaited_in_the_end(of, top, row);
		last = of[row->in_the_end];
		if (!last)
			continue;
		last->waiters++;
		if (row->awaits_s > last->longest_s)
			last->longest_s = row->awaits_s;
	}
}

static void fill(struct top *top, const struct admin *a, struct sample *samples)
{
	const struct admin_group *g = &a->now;

	memset(top, 0, sizeof(*top));
	top->group = g;
	top->name = a->group;
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		const char *state = admin_state(g, r);
		struct top_row *row = &top->row[top->rows];

		if (!state)
			continue;
		*row = (struct top_row){
			.rank = r, .state = state, .member = &g->rank[r], .awaits = -1, .in_the_end = -1
		};
		top->rows++;
		if (row->member->member) {
			keep(&samples[r], row->member);
			rate(row, &samples[r], g);
			top->active += !strcmp(state, "active");
			top->pending += !strcmp(state, "pending");
		} else if (r < g->size) {
			top->gone++;
		}
		top->operations += row->operations;
		top->bytes += row->bytes;
	}
	count_waiters(top);
}

static void show(struct admin *a, struct top *top, bool screen, int err)
{
	struct covey_error_info info;
	char time[16], why[256];

	admin_clock(time);
	if (!err && a->json)
		top_json(top, time);
	else if (!err && screen)
		top_draw(top, time);
	else if (!err)
		top_print(top, time, stdout);
	if (!err)
		return;
	covey_last_error(NULL, &info);
	snprintf(why, sizeof(why), "%s: %s", covey_strerror(err), info.cause);
	if (a->json)
		admin_json_failure(a->group, time, why);
	else
		printf("%s%s  %s%s\n", screen ? "\033[H\033[J" : "", time, why, screen ? "\033[J" : "");
}

int admin_top(struct admin *a)
{
	static char table[65536]; /* of stdout, which writes lines one by one on a terminal */
	bool screen = isatty(STDOUT_FILENO) && !a->json;
	long interval_ms = a->interval_ms ? a->interval_ms : TOP_MS;
	struct sample *samples = calloc(COVEY_MAX_RANKS, sizeof(*samples));
	struct top *top = malloc(sizeof(*top));
	int err = COVEY_ERR_NOMEM, code = EXIT_DONE;

	setvbuf(stdout, table, _IOFBF, sizeof(table));
	/* The look before the first gives the numbers that rates begin at. A screen shows it, without rates. */
	for (long look = -1; top && samples && (a->looks < 0 || look < a->looks); look++) {
		if (look >= 0)
			poll(NULL, 0, look ? (int)interval_ms : FIRST_MS);
		err = admin_try(a);
		if (!err)
			fill(top, a, samples);
		if (look >= 0 || screen)
			show(a, top, screen, err);
		if (fflush(stdout)) {
			code = EXIT_OUTPUT;
			break;
		}
		if (admin_over(a, err)) {
			err = 0;
			break;
		}
	}
	free(top);
	free(samples);
	return code ? code : err ? admin_code(a, err) : EXIT_DONE;
}
