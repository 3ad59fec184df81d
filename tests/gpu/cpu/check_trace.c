/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_trace FILE RANKS LANES [NAME...] - looks through a trace of kernels (src/kernels/layout/trace.h): all ranks and lanes are
 * there, events of a row nest or do not overlap, a lane puts a step before it tells and tells before it takes, nobody ends an
 * operation before another has begun it. Events of each NAME must be there, of -NAME must not. Prints what is wrong.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 32
#define LANES 128
#define NEST 16
#define GRAIN 0.0025 /* us: three decimals, twice rounded */

struct event {
	const char *name;
	int rank, lane, row; /* row 0: the lane; 1: puts; 2 and up: from rank row - 2 */
	double from, until;
	long long id;
	size_t whole; /* number of the operation that it is in, by the lane; itself: it is one */
};

static struct event *events;
static size_t count;
static double error_us[RANKS];
static char has_lane[RANKS][LANES];
static int wrong;

#define WRONG(...) (printf(__VA_ARGS__), putchar('\n'), wrong++)

static int is_whole(const struct event *e)
{
	return !strncmp(e->name, "dispatch", 8) || !strncmp(e->name, "combine", 7);
}

static int by_row(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank - y->rank;
	if (x->lane != y->lane)
		return x->lane - y->lane;
	if (x->row != y->row)
		return x->row - y->row;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return x->until > y->until ? -1 : x->until < y->until;
}

/* ---- reading ---- */

static void read_event(const json_t *j)
{
	struct event *e = &events[count];
	const char *id = NULL;
	const json_t *args;
	double dur = -1;
	long long tid;
	int pid;

	if (json_unpack((json_t *)j, "{s:s,s:i,s:I,s:F,s:F,s:o}", "name", &e->name, "pid", &pid, "tid", &tid, "ts",
			&e->from, "dur", &dur, "args", &args)) {
		WRONG("an event that lacks something");
		return;
	}
	if (pid < 0 || pid >= RANKS || tid < 100 || tid >= 100 * (LANES + 1) || tid % 100 >= 2 + RANKS) {
		WRONG("%s of rank %d, thread %lld", e->name, pid, tid);
		return;
	}
	id = json_object_iter_key(json_object_iter((json_t *)args));
	e->id = id ? json_integer_value(json_object_get(args, id)) : -1;
	e->rank = pid;
	e->lane = (int)(tid / 100 - 1);
	e->row = (int)(tid % 100);
	e->until = e->from + dur;
	if (dur < 0 || e->from < 0)
		WRONG("%s of rank %d begins at %f and takes %f", e->name, pid, e->from, dur);
	if (!strcmp(e->name, "wait") && e->row != 2 + e->id)
		WRONG("rank %d waits for rank %lld in row %d", pid, e->id, e->row);
	count++;
}

static void read_name(const json_t *j)
{
	const char *name = "", *text = "";
	int pid = -1, tid = 0, lane, error = -1;

	json_unpack((json_t *)j, "{s:s,s?i,s?i,s:{s?s,s?i}}", "name", &name, "pid", &pid, "tid", &tid, "args", "name",
		    &text, "clock_error_ns", &error);
	if (pid < 0 || pid >= RANKS)
		return;
	if (!strcmp(name, "process_name") && error >= 0)
		error_us[pid] = error / 1e3;
	if (!strcmp(name, "thread_name") && sscanf(text, "lane %d", &lane) == 1 && lane >= 0 && lane < LANES &&
	    tid == 100 * (lane + 1))
		has_lane[pid][lane] = 1;
}

static int read_file(const char *path)
{
	static json_t *all; /* names stay in it */
	json_error_t why;
	json_t *list, *j;
	size_t i;

	all = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	list = json_object_get(all, "traceEvents");
	if (!json_is_array(list)) {
		printf("%s: %s\n", path, all ? "no traceEvents" : why.text);
		return 1;
	}
	events = calloc(json_array_size(list), sizeof(*events));
	if (!events)
		return 1;
	json_array_foreach(list, i, j)
	{
		const char *phase = json_string_value(json_object_get(j, "ph"));

		if (phase && !strcmp(phase, "X"))
			read_event(j);
		else if (phase && !strcmp(phase, "M"))
			read_name(j);
		else
			WRONG("event %zu is of no phase that is known", i);
	}
	return 0;
}

/* ---- checks ---- */

static int same_row(const struct event *a, const struct event *b)
{
	return a->rank == b->rank && a->lane == b->lane && a->row == b->row;
}

static void check_rows(void)
{
	double open[NEST];
	int depth = 0;

	for (size_t i = 0; i < count; i++) {
		const struct event *e = &events[i];

		if (!i || !same_row(e, e - 1))
			depth = 0;
		while (depth && open[depth - 1] <= e->from + GRAIN)
			depth--;
		if (depth && e->until > open[depth - 1] + GRAIN)
			WRONG("%s of rank %d, lane %d, row %d overlaps what is before it: %f to %f", e->name, e->rank,
			      e->lane, e->row, e->from, e->until);
		if (depth == NEST)
			WRONG("more than %d events in each other", NEST);
		else
			open[depth++] = e->until;
	}
}

/* Everything is in an operation of its lane. */
static void find_wholes(void)
{
	for (size_t i = 0; i < count; i++) {
		events[i].whole = count;
		for (size_t k = 0; k < count && events[i].whole == count; k++)
			if (is_whole(&events[k]) && events[k].rank == events[i].rank &&
			    events[k].lane == events[i].lane && events[k].from <= events[i].from + GRAIN &&
			    events[k].until + GRAIN >= events[i].until)
				events[i].whole = k;
		if (events[i].whole == count)
			WRONG("%s of rank %d, lane %d at %f is in no operation", events[i].name, events[i].rank,
			      events[i].lane, events[i].from);
	}
}

/* In each operation of a lane, of a step that is done once: the end of @first is not behind the beginning of @then. */
static size_t check_order(const char *first, const char *then)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < count && !strcmp(events[i].name, first); k++) {
			const struct event *a = &events[i], *b = &events[k];

			if (strcmp(b->name, then) || a->whole != b->whole || a->rank != b->rank || a->lane != b->lane ||
			    a->id != b->id)
				continue;
			found++;
			if (a->until > b->from + GRAIN)
				WRONG("rank %d, lane %d, step %lld: %s to %f, %s from %f", a->rank, a->lane, a->id,
				      first, a->until, then, b->from);
		}
	return found;
}

/* Nobody can end what another has not begun: by one clock, as far as it is known. */
static size_t check_clock(void)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < count && is_whole(&events[i]); k++) {
			const struct event *a = &events[i], *b = &events[k];

			if (!is_whole(b) || a->id != b->id || strcmp(a->name, b->name) || a->rank == b->rank ||
			    a->lane != b->lane)
				continue;
			found++;
			if (a->until + error_us[a->rank] + error_us[b->rank] < b->from)
				WRONG("%s %lld: rank %d ends it at %f, rank %d begins it at %f", a->name, a->id,
				      a->rank, a->until, b->rank, b->from);
		}
	return found;
}

static void check_name(const char *name)
{
	int must = *name != '-', is = 0;

	name += !must;
	for (size_t i = 0; i < count && !is; i++)
		is = !strcmp(events[i].name, name);
	if (is != must)
		WRONG("%s: %s", name, must ? "there is none" : "there is one");
}

int main(int argc, char **argv)
{
	int ranks = argc > 3 ? atoi(argv[2]) : 0, lanes = argc > 3 ? atoi(argv[3]) : 0, changes = 0;

	if (ranks < 1 || ranks > RANKS || lanes < 1 || lanes > LANES) {
		fprintf(stderr, "check_trace FILE RANKS LANES [NAME...]\n");
		return 2;
	}
	if (read_file(argv[1]))
		return 1;
	for (int r = 0; r < ranks; r++)
		for (int l = 0; l < lanes; l++)
			if (!has_lane[r][l])
				WRONG("rank %d has no lane %d", r, l);
	qsort(events, count, sizeof(*events), by_row);
	check_rows();
	find_wholes();
	for (int i = 4; i < argc; i++) {
		check_name(argv[i]);
		changes |= !strcmp(argv[i], "again");
	}
	if (!changes) { /* else steps come more than once, and operations end without some */
		size_t bulk = check_order("put", "tell") && check_order("tell", "take") && check_order("tell", "add");

		if (!bulk && !check_order("send", "take"))
			WRONG("no lane does one step after the other");
		if (!check_clock() && ranks > 1)
			WRONG("no operation is of two ranks");
	}
	printf("%s: %zu events, %d wrong\n", argv[1], count, wrong);
	return wrong != 0;
}
