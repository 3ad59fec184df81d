/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the flight recorders of members on this host (src/base/flight.h): those of living processes from /proc/PID/fd,
 * where they are memfds, and files in a directory. A page is copied by reads, because one that is cut short would kill
 * us if it were mapped. It is written meanwhile, so it is read twice, and what differs is left out. What others wrote may
 * be anything: texts are cleaned, numbers are bounded where they count.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "clean.h"
#include "flight.h"

#define SHOWN 12 /* operations in the table */

static bool read_page(int fd, struct cvy_flight *page)
{
	return pread(fd, page, sizeof(*page), 0) == (ssize_t)sizeof(*page) && page->magic == CVY_FLIGHT_MAGIC &&
	       page->rank >= 0 && page->rank < COVEY_MAX_RANKS;
}

static void clean_text(char *text, size_t bytes)
{
	text[bytes - 1] = '\0';
	cvy_clean(text);
}

static void clean_page(struct cvy_flight *page, const struct cvy_flight *again)
{
	clean_text(page->group, sizeof(page->group));
	for (int kind = 0; kind < CVY_FLIGHT_KINDS; kind++)
		clean_text(page->kind[kind], sizeof(page->kind[kind]));
	for (int i = 0; i < CVY_FLIGHT_OPS; i++)
		if (memcmp(&page->op[i], &again->op[i], sizeof(page->op[i])))
			page->op[i].state = CVY_FLIGHT_NONE;
	for (int i = 0; i < CVY_FLIGHT_EVENTS; i++) {
		if (memcmp(&page->event[i], &again->event[i], sizeof(page->event[i])))
			page->event[i].kind = 0;
		clean_text(page->event[i].cause, sizeof(page->event[i].cause));
	}
	if (page->posted > INT64_MAX) /* none has so many: loops and JSON count up to it */
		page->posted = 0;
}

/* The page in that file, if it is a member's of @group. Its process holds a lock on the file while it lives. */
static struct cvy_flight *copy_page(int fd, const char *group, bool *alive)
{
	static struct cvy_flight again;
	struct flock owner = { .l_type = F_WRLCK };
	struct cvy_flight *page = NULL;
	struct stat st;

	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size == (off_t)sizeof(*page))
		page = aligned_alloc(_Alignof(struct cvy_flight), sizeof(*page));
	if (!page || !read_page(fd, page) || !read_page(fd, &again) ||
	    strncmp(page->group, group, sizeof(page->group)) != 0) {
		free(page);
		return NULL;
	}
	clean_page(page, &again);
	*alive = !fcntl(fd, F_GETLK, &owner) && owner.l_type != F_UNLCK;
	return page;
}

/* @in: a directory, whose files are not followed elsewhere; of /proc/PID/fd all are links. */
static int add(struct admin_flight *list, int count, int max, int in, const char *name, bool process, const char *group)
{
	int fd = openat(in, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (process ? 0 : O_NOFOLLOW));
	struct cvy_flight *page;
	bool alive = process;

	if (fd < 0)
		return count;
	page = copy_page(fd, group, &alive);
	close(fd);
	if (page && count < max)
		list[count++] = (struct admin_flight){ page, alive || process };
	else
		free(page);
	return count;
}

/* The descriptors of one process that are recorders. */
static int find_in_process(const char *pid, const char *group, struct admin_flight *list, int count, int max)
{
	char path[64], target[64];
	struct dirent *entry;
	ssize_t n;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	d = opendir(path);
	while (d && (entry = readdir(d))) {
		n = readlinkat(dirfd(d), entry->d_name, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = '\0';
		if (!strncmp(target, "/memfd:" CVY_FLIGHT_NAME, strlen("/memfd:" CVY_FLIGHT_NAME)))
			count = add(list, count, max, dirfd(d), entry->d_name, true, group);
	}
	if (d)
		closedir(d);
	return count;
}

static int by_rank(const void *a, const void *b)
{
	const struct cvy_flight *x = ((const struct admin_flight *)a)->page;
	const struct cvy_flight *y = ((const struct admin_flight *)b)->page;

	return x->rank != y->rank ? x->rank - y->rank : x->inc < y->inc ? -1 : x->inc > y->inc;
}

int admin_flight_find(const char *group, const char *directory, struct admin_flight *list, int max)
{
	struct dirent *entry;
	DIR *d = opendir("/proc");
	int count = 0;

	while (d && (entry = readdir(d)))
		if (isdigit((unsigned char)entry->d_name[0]))
			count = find_in_process(entry->d_name, group, list, count, max);
	if (d)
		closedir(d);
	d = directory ? opendir(directory) : NULL;
	while (d && (entry = readdir(d)))
		count = add(list, count, max, dirfd(d), entry->d_name, false, group);
	if (d)
		closedir(d);
	qsort(list, (size_t)count, sizeof(*list), by_rank);
	return count;
}

void admin_flight_drop(struct admin_flight *list, int count)
{
	for (int i = 0; i < count; i++)
		free(list[i].page);
}

/* false: the operation is not recorded there */
static bool read_op(const struct cvy_flight *page, uint64_t seq, struct cvy_flight_op *op)
{
	const struct cvy_flight_op *from = &page->op[seq % CVY_FLIGHT_OPS];

	*op = *from;
	return op->seq == seq && op->state != CVY_FLIGHT_NONE && op->kind < CVY_FLIGHT_KINDS;
}

static const char *status_text(int status)
{
	switch (status) {
	case 0:
		return "ok";
#define NAME(name, code, text) \
	case code: \
		return #name;
		COVEY_ERROR_LIST(NAME)
#undef NAME
	}
	return "?";
}

static uint64_t last_posted(const struct admin_flight *list, int count)
{
	uint64_t last = 0;

	for (int i = 0; i < count; i++)
		if (list[i].page->posted > last)
			last = list[i].page->posted;
	return last;
}

static void print_row(const struct admin_flight *list, int count, uint64_t seq)
{
	struct cvy_flight_op op, first = { 0 };
	const struct cvy_flight *named = NULL;

	for (int i = 0; i < count && !named; i++)
		if (read_op(list[i].page, seq, &first))
			named = list[i].page;
	if (!named)
		return;
	printf("%-10" PRIu64 " %-14.15s %12" PRIu64, seq, named->kind[first.kind], first.bytes);
	for (int i = 0; i < count; i++) {
		const struct cvy_flight *page = list[i].page;
		const char *cell = "-"; /* not called here yet, or too long ago */
		char other[32];

		if (read_op(page, seq, &op)) {
			cell = op.state == CVY_FLIGHT_DECIDED ? status_text(op.status) : "...";
			if (strcmp(page->kind[op.kind], named->kind[first.kind])) {
				snprintf(other, sizeof(other), "!%.7s", page->kind[op.kind]);
				cell = other;
			}
		}
		printf(" %8s", cell);
	}
	putchar('\n');
}

static void print_line(const struct admin_flight *list, int count, const char *name,
		       uint64_t (*value)(const struct cvy_flight *))
{
	printf("%-38s", name);
	for (int i = 0; i < count; i++)
		printf(" %8" PRIu64, value(list[i].page));
	putchar('\n');
}

static uint64_t epoch_of(const struct cvy_flight *page)
{
	return page->epoch;
}

static uint64_t pid_of(const struct cvy_flight *page)
{
	return (uint64_t)page->pid;
}

/* Milliseconds since the agent's last beat. */
static uint64_t silence_of(const struct cvy_flight *page)
{
	uint64_t now = tool_now_ns();

	return now > page->clock_ns ? (now - page->clock_ns) / 1000000 : 0;
}

static void print_events(const struct cvy_flight *page)
{
	static const char *const kinds[] = {
		[COVEY_EVENT_VIEW] = "view",
		[COVEY_EVENT_SUSPECT] = "suspect",
		[COVEY_EVENT_JOIN_REQUESTED] = "join requested",
		[COVEY_EVENT_FENCED] = "fenced",
		[COVEY_EVENT_STORE_LOST] = "store lost",
		[COVEY_EVENT_STORE_BACK] = "store back",
		[COVEY_EVENT_JOIN_LOST] = "joiner lost",
	};
	uint64_t last = page->events;

	for (uint64_t n = last > 4 ? last - 4 : 0; n < last; n++) {
		const struct cvy_flight_event *e = &page->event[n % CVY_FLIGHT_EVENTS];
		uint64_t now = tool_now_ns();

		if (e->kind < 1 || e->kind > COVEY_EVENT_JOIN_LOST)
			continue;
		printf("rank %d, %.1f s ago: %s", page->rank, now > e->time_ns ? (double)(now - e->time_ns) / 1e9 : 0.0,
		       kinds[e->kind]);
		if (e->rank >= 0)
			printf(" rank %d", e->rank);
		printf(", epoch %u%s%.*s\n", e->epoch, e->cause[0] ? ": " : "", (int)sizeof(e->cause), e->cause);
	}
}

void admin_flight_print(const struct admin_flight *list, int count)
{
	uint64_t last = last_posted(list, count);

	if (!count) {
		puts("no member of this group that we may look into is on this host");
		return;
	}
	printf("%-38s", "rank");
	for (int i = 0; i < count; i++)
		printf(" %7d%c", list[i].page->rank, list[i].alive ? ' ' : 'x');
	putchar('\n');
	print_line(list, count, "process", pid_of);
	print_line(list, count, "epoch", epoch_of);
	print_line(list, count, "ms since its agent's last beat", silence_of);
	printf("%-10s %-14s %12s\n", "operation", "kind", "bytes");
	for (uint64_t seq = last > SHOWN ? last - SHOWN + 1 : 1; seq <= last; seq++)
		print_row(list, count, seq);
	puts("ok, or its error: decided; ...: under way; -: not called yet, or no longer recorded; x: the process is "
	     "gone");
	for (int i = 0; i < count; i++)
		print_events(list[i].page);
}

static json_t *json_ops(const struct cvy_flight *page)
{
	uint64_t last = page->posted;
	json_t *ops = json_array();
	struct cvy_flight_op op;

	for (uint64_t seq = last >= CVY_FLIGHT_OPS ? last - CVY_FLIGHT_OPS + 1 : 1; seq <= last; seq++) {
		if (!read_op(page, seq, &op))
			continue;
		json_array_append_new(ops, json_pack("{s:I, s:s, s:I, s:s, s:i, s:i, s:I, s:I}", "seq", (json_int_t)seq,
						     "kind", page->kind[op.kind], "bytes", (json_int_t)op.bytes,
						     "state", op.state == CVY_FLIGHT_DECIDED ? "decided" : "posted",
						     "status", op.state == CVY_FLIGHT_DECIDED ? op.status : 0, "epoch",
						     (int)op.epoch, "posted_ns", (json_int_t)op.posted_ns, "wait_ns",
						     (json_int_t)op.wait_ns));
	}
	return ops;
}

void admin_flight_json(const struct admin_flight *list, int count)
{
	json_t *json = json_array();

	for (int i = 0; i < count; i++) {
		const struct cvy_flight *page = list[i].page;

		json_array_append_new(json, json_pack("{s:i, s:i, s:b, s:I, s:i, s:I, s:o}", "rank", page->rank, "pid",
						      page->pid, "alive", (int)list[i].alive, "inc",
						      (json_int_t)page->inc, "epoch", (int)page->epoch, "beat_age_ms",
						      (json_int_t)silence_of(page), "operations", json_ops(page)));
	}
	if (!json_dumpf(json, stdout, JSON_INDENT(2)))
		putchar('\n');
	json_decref(json);
}
