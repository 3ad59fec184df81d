/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of top: for pipes as plain lines, for programs as JSON, for a terminal drawn over the last one. That goes
 * out in one write, line by line over the old text, so nothing flickers. Where the window is too small for all ranks,
 * those that somebody should look at are shown first.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "top.h"

#define AWAITED_LINES 3 /* ranks that are waited for, below the table */
#define NAMED 8		/* waiters that such a line names */

static const char *amount(char text[32], double value, const char *unit)
{
	static const char *const prefix[] = { "", "k", "M", "G", "T" };
	int p = 0;

	while (value >= 1000 && p < 4) {
		value /= 1000;
		p++;
	}
	snprintf(text, 32, "%.*f %s%s", p || (value > 0 && value < 10) ? 1 : 0, value, prefix[p], unit);
	return text;
}

static const char *state_of(const struct top_row *row)
{
	return !strcmp(row->state, "hole") && row->member->left[0] ? row->member->left : row->state;
}

static void print_row(const struct top *top, const struct top_row *row, FILE *to)
{
	const struct admin_member *m = row->member;
	char operations[32] = "-", bytes[32] = "-", wait[32] = "-", awaits[40] = "-", beat[24] = "-";
	char epoch[24] = "-", failed[24] = "-";

	if (row->rated) {
		amount(operations, row->operations, "");
		amount(bytes, row->bytes, "B");
		snprintf(wait, sizeof(wait), "%.0f%%", 100 * row->waiting);
	}
	if (row->told) {
		snprintf(epoch, sizeof(epoch), "%" PRId64, m->number[CVY_BEAT_epoch]);
		snprintf(failed, sizeof(failed), "%" PRId64, m->number[CVY_BEAT_failed]);
	}
	if (row->awaits >= 0)
		snprintf(awaits, sizeof(awaits), "%d, %.1f s", row->awaits, row->awaits_s);
	if (m->member && m->beat_ms)
		snprintf(beat, sizeof(beat), "%.1f s", (double)admin_beat_age_ms(top->group, m) / 1000);
	fprintf(to, "%-5d %-8s %6s %9s %9s %5s  %-14s %6s %7s  %s", row->rank, state_of(row), epoch, operations, bytes,
		wait, awaits, failed, beat,
		m->member   ? admin_host_name(m->host)
		: m->joiner ? admin_host_name(m->joiner_host)
			    : "-");
	admin_notes(m, to);
	fputc('\n', to);
}

static void print_head(const struct top *top, const char *time, FILE *to)
{
	const struct admin_group *g = top->group;

	fprintf(to, "%s  group %s  phase %s  epoch %" PRIu64 "  active %d  pending %d  gone %d\n", time, top->name,
		g->phase, g->epoch, top->active, top->pending, top->gone);
	fprintf(to, "%-5s %-8s %6s %9s %9s %5s  %-14s %6s %7s  %s\n", "RANK", "STATE", "EPOCH", "OPS/S", "BYTES/S",
		"WAIT", "WAITS FOR", "FAILED", "BEAT", "HOST");
}

static void print_total(const struct top *top, FILE *to)
{
	char operations[32], bytes[32];

	fprintf(to, "%-5s %-8s %6s %9s %9s\n", "all", "", "", amount(operations, top->operations, ""),
		amount(bytes, top->bytes, "B"));
}

static void print_awaited(const struct top *top, const struct top_row *row, FILE *to)
{
	int named = 0;

	fprintf(to, "rank %d is waited for by %d rank%s, the longest for %.1f s:", row->rank, row->waiters,
		row->waiters > 1 ? "s" : "", row->longest_s);
	for (int i = 0; i < top->rows && named <= NAMED; i++)
		if (top->row[i].in_the_end == row->rank)
			named++ < NAMED ? fprintf(to, " %d", top->row[i].rank) : fprintf(to, " ...");
	fputc('\n', to);
}

/* The ranks that most wait for; returns how many. */
static int find_awaited(const struct top *top, const struct top_row *list[AWAITED_LINES])
{
	int n = 0;

	for (int i = 0; i < top->rows; i++) {
		const struct top_row *row = &top->row[i];
		int at = n < AWAITED_LINES ? n++ : AWAITED_LINES;

		while (at && list[at - 1]->waiters < row->waiters) {
			if (at < AWAITED_LINES)
				list[at] = list[at - 1];
			at--;
		}
		if (at < AWAITED_LINES)
			list[at] = row;
	}
	while (n && !list[n - 1]->waiters)
		n--;
	return n;
}

static bool needs_a_look(const struct top_row *row)
{
	return strcmp(row->state, "active") != 0 || !row->told || row->waiters || row->member->accused[0];
}

/* At most @room rows, in the order of ranks. */
static void print_rows(const struct top *top, int room, FILE *to)
{
	int urgent = 0, others, left_out = 0;

	for (int i = 0; i < top->rows; i++)
		urgent += needs_a_look(&top->row[i]);
	if (top->rows > room && room > 0)
		room--; /* for the line that says so */
	urgent = urgent < room ? urgent : room;
	others = room - urgent;
	for (int i = 0; i < top->rows; i++) {
		int *places = needs_a_look(&top->row[i]) ? &urgent : &others;

		if (*places > 0) {
			--*places;
			print_row(top, &top->row[i], to);
		} else {
			left_out++;
		}
	}
	if (left_out)
		fprintf(to, "%d more ranks: a larger window, a pipe or --json shows them\n", left_out);
}

static void print_table(const struct top *top, const char *time, int lines, FILE *to)
{
	const struct top_row *list[AWAITED_LINES];
	int awaited = find_awaited(top, list), room;

	while (awaited && lines - 3 - awaited < 1)
		awaited--;
	room = lines - 3 - awaited;
	print_head(top, time, to);
	print_rows(top, room > 1 ? room : 1, to);
	print_total(top, to);
	for (int i = 0; i < awaited; i++)
		print_awaited(top, list[i], to);
}

void top_print(const struct top *top, const char *time, FILE *to)
{
	print_table(top, time, COVEY_MAX_RANKS + AWAITED_LINES + 4, to);
}

void top_draw(const struct top *top, const char *time)
{
	struct winsize window = { .ws_row = 24, .ws_col = 80 };
	char *text = NULL, *line, *next;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);

	if (!to)
		return;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) || !window.ws_row || !window.ws_col)
		window = (struct winsize){ .ws_row = 24, .ws_col = 80 };
	print_table(top, time, window.ws_row - 1, to); /* the cursor stands in the last line */
	fclose(to);
	fputs("\033[H", stdout);
	for (line = text; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		printf("%.*s\033[K\n", (int)window.ws_col, line);
		if (!next)
			break;
	}
	fputs("\033[J", stdout);
	free(text);
}

static void add_rates(json_t *to, const struct top_row *row)
{
	const struct admin_member *m = row->member;

	if (row->rated) {
		json_object_set_new(to, "operations_per_s", json_real(row->operations));
		json_object_set_new(to, "bytes_per_s", json_real(row->bytes));
		json_object_set_new(to, "wait_share", json_real(row->waiting));
	}
	if (!row->told)
		return;
#define NUMBER(field, metric, parts, value) \
	if (metric[0]) \
		json_object_set_new(to, metric, \
				    (parts) == 1 ? json_integer((json_int_t)m->number[CVY_BEAT_##field]) \
						 : json_real((double)m->number[CVY_BEAT_##field] / (parts)));
	CVY_BEAT_LIST(NUMBER)
#undef NUMBER
}

static json_t *json_row(const struct top *top, const struct top_row *row)
{
	const struct admin_member *m = row->member;
	json_t *to = json_pack("{s:i, s:s}", "rank", row->rank, "state", state_of(row));

	if (m->member || m->joiner) {
		json_object_set_new(to, "inc", json_integer((json_int_t)(m->member ? m->inc : m->joiner_inc)));
		json_object_set_new(to, "host", json_string(m->member ? m->host : m->joiner_host));
	}
	if (m->member && m->beat_ms)
		json_object_set_new(to, "beat_age_ms", json_integer((json_int_t)admin_beat_age_ms(top->group, m)));
	if (m->accused[0])
		json_object_set_new(to, "accused", json_string(m->accused));
	add_rates(to, row);
	if (row->waiters) {
		json_object_set_new(to, "waiters", json_integer(row->waiters));
		json_object_set_new(to, "longest_wait_s", json_real(row->longest_s));
	}
	return to;
}

void top_json(const struct top *top, const char *time)
{
	const struct admin_group *g = top->group;
	json_t *ranks = json_array(), *json;

	for (int i = 0; i < top->rows; i++)
		json_array_append_new(ranks, json_row(top, &top->row[i]));
	json = json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:f, s:f, s:o}", "group", top->name, "time", time,
			 "phase", g->phase, "epoch", (json_int_t)g->epoch, "active", top->active, "pending",
			 top->pending, "gone", top->gone, "operations_per_s", top->operations, "bytes_per_s",
			 top->bytes, "ranks", ranks);
	if (json && !json_dumpf(json, stdout, JSON_COMPACT))
		putchar('\n');
	json_decref(json);
}
