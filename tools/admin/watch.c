/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes in a group as they occur: the whole picture again and again (watch), or a line for each difference between
 * two looks at the store (events). A store that does not answer is a line too, and is asked again, unless it was that of
 * an ep-run that has ended.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../local/local.h"
#include "admin.h"

#define WATCH_MS 1000
#define EVENTS_MS 100
#define MAX_PAGES 4096

const char *admin_clock(char text[16])
{
	struct timespec t;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &t);
	localtime_r(&t.tv_sec, &tm);
	snprintf(text, 16, "%02d:%02d:%02d.%03d", tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(t.tv_nsec / 1000000));
	return text;
}

bool admin_over(struct admin *a, int err)
{
	if (a->looks >= 0)
		return false;
	if (err == COVEY_ERR_CLOSED && a->seen)
		fprintf(stderr, "ep-admin: group %s is gone from the store\n", a->group);
	else if (!err && !strcmp(a->now.phase, "closed"))
		fprintf(stderr, "ep-admin: group %s is closed: its last member has left\n", a->group);
	else if (err && a->run && !local_lives((pid_t)a->run))
		fprintf(stderr, "ep-admin: the ep-run of group %s, process %ld, has ended\n", a->group, a->run);
	else {
		a->seen |= !err;
		return false;
	}
	return true;
}

static void show_look(const struct admin *a, int err)
{
	struct covey_error_info info;
	char now[16], why[256];

	covey_last_error(NULL, &info);
	snprintf(why, sizeof(why), "%s: %s", covey_strerror(err), info.cause);
	admin_clock(now);
	if (a->json) {
		if (err)
			admin_json_failure(a->group, now, why);
		else
			admin_json_look(&a->now, a->group, now);
		return;
	}
	printf("%s\n", now);
	if (err)
		printf("%s\n", why);
	else
		admin_print_status(&a->now, a->group);
}

int admin_watch(struct admin *a)
{
	bool screen = isatty(STDOUT_FILENO) && !a->json;
	int err = 0;

	for (long look = 0; a->looks < 0 || look < a->looks; look++) {
		if (look)
			poll(NULL, 0, (int)(a->interval_ms ? a->interval_ms : WATCH_MS));
		err = admin_try(a);
		if (screen)
			fputs("\033[H\033[2J", stdout);
		show_look(a, err);
		if (fflush(stdout))
			return EXIT_OUTPUT;
		if (admin_over(a, err))
			return EXIT_DONE;
	}
	return err ? admin_code(a, err) : EXIT_DONE;
}

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	va_list args;
	char now[16];

	printf("%s ", admin_clock(now));
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* Prints why a member is gone: it left, an operator removed it, or neither. */
static void say_gone(const struct admin_member *was, const struct admin_member *is, int r)
{
	const char *proven = was->proven[0] ? was->proven : is->proven;

	if (is->left[0])
		say("rank %d left: inc %" PRIu64 "%s", r, was->inc, strcmp(is->left, "retired") ? "" : ", retired");
	else
		say("rank %d left: inc %" PRIu64 "%s%s", r, was->inc, proven[0] ? ", proven dead: " : "", proven);
}

static void compare_rank(const struct admin_group *was, const struct admin_group *is, int r)
{
	const struct admin_member *a = &was->rank[r], *b = &is->rank[r];

	if (a->member && (!b->member || b->inc != a->inc))
		say_gone(a, b, r);
	if (b->member && (!a->member || a->inc != b->inc))
		say("rank %d came: inc %" PRIu64 " on %s%s", r, b->inc, admin_host_name(b->host),
		    b->pending ? ", waits for a safe point" : "");
	else if (b->member && a->pending && !b->pending)
		say("rank %d was admitted", r);
	if (b->joiner && (!a->joiner || a->joiner_inc != b->joiner_inc))
		say("rank %d has a joiner: inc %" PRIu64 " on %s", r, b->joiner_inc, admin_host_name(b->joiner_host));
	else if (a->joiner && !b->joiner && !(b->member && b->inc == a->joiner_inc))
		say("rank %d has no joiner any more", r);
	if (b->accused[0] && strcmp(a->accused, b->accused))
		say("rank %d is suspected: %s", r, b->accused);
	if (b->proven[0] && strcmp(a->proven, b->proven) && strcmp(b->proven, "left"))
		say("rank %d is proven dead: %s", r, b->proven);
	if (b->mark[0] && strcmp(a->mark, b->mark))
		say("rank %d: %s was asked for", r, b->mark);
	if (b->wanted[0] && strcmp(a->wanted, b->wanted))
		say("rank %d: %s was asked for", r, b->wanted);
}

static void compare(const struct admin_group *was, const struct admin_group *is)
{
	if (strcmp(was->gid, is->gid))
		say("group %s: life %s", was->gid[0] ? "begins anew" : "is there", is->gid);
	if (strcmp(was->life, is->life))
		say("store: life %s", is->life);
	for (int r = 0; r < COVEY_MAX_RANKS; r++)
		compare_rank(was, is, r);
	if (strcmp(was->phase, is->phase) || was->epoch != is->epoch || strcmp(was->vid, is->vid))
		say("view %" PRIu64 ": %s, size %d, base %" PRIu64, is->epoch,
		    !strcmp(is->phase, "run")	 ? "active"
		    : !strcmp(is->phase, "open") ? "a change is under way"
		    : !strcmp(is->phase, "inst") ? "decided, not acknowledged by all yet"
		    : !strcmp(is->phase, "form") ? "the group forms"
						 : is->phase,
		    is->size, is->base);
}

/* Strings of ranks that a group owns move with it. */
static void keep(struct admin_group *was, struct admin_group *is)
{
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		free(is->rank[r].links);
		is->rank[r].links = NULL;
	}
	memcpy(was, is, sizeof(*was));
}

static int follow(struct admin *a)
{
	struct admin_group *was = calloc(1, sizeof(*was));
	struct covey_error_info info;
	bool down = false;
	int err = 0;

	for (long look = 0; was && (a->looks < 0 || look < a->looks); look++) {
		if (look)
			poll(NULL, 0, (int)(a->interval_ms ? a->interval_ms : EVENTS_MS));
		err = admin_try(a);
		if (err && admin_over(a, err)) {
			err = 0;
			break;
		}
		if (err) {
			covey_last_error(NULL, &info);
			if (!down)
				say("store: %s: %s", covey_strerror(err), info.cause);
			down = true;
			continue;
		}
		if (down)
			say("store: it answers again");
		down = false;
		compare(was, &a->now);
		if (fflush(stdout) || admin_over(a, err))
			break;
		keep(was, &a->now);
	}
	free(was);
	return err ? admin_code(a, err) : EXIT_DONE;
}

int admin_events(struct admin *a)
{
	static struct admin_flight list[MAX_PAGES];
	int count = admin_flight_find(a->group, a->flight, list, MAX_PAGES);

	if (a->json)
		admin_flight_json(list, count);
	else
		admin_flight_print(list, count);
	admin_flight_drop(list, count);
	if (fflush(stdout))
		return EXIT_OUTPUT;
	if (a->json || !a->looks)
		return count ? EXIT_DONE : EXIT_REFUSED;
	return follow(a);
}
