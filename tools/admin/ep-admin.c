/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-admin - look at a group and ask for changes of its members, from outside
 *
 * It talks to the store alone. A request is one call. Its result is seen by another look, which --wait repeats.
 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../inherit.h"
#include "../local/local.h"
#include "../local/output.h"
#include "admin.h"

#define CALL_MS 6000  /* one call: longer than a request to the store may take, whose cause is told then */
#define WAIT_MS 30000 /* --wait without a number */
#define LOOK_MS 50    /* between two looks while waiting */
#define MAX_WORDS ADMIN_MAX_WORDS
#define MAX_LISTED 16 /* ranks that a line names */

const char *argp_program_version = "ep-admin " COVEY_VERSION;

static const char doc[] =
	"Look at a covey group and ask for changes of its members."
	"\v"
	"Commands:\n"
	"  status           ranks, their state and progress\n"
	"  links            how the members reach each other\n"
	"  watch            the same as status, again and again\n"
	"  top              a live table: how fast each member works, how long it waits and for whom, its epoch; for "
	"scripts with --once or --json. A member tells the store its numbers once a second\n"
	"  events           the last operations of the members on this host, side by side; then changes of the group "
	"as they come: views, joiners, suspicions\n"
	"  plan N           memory, addresses and descriptors that each of N ranks on one host needs, with the "
	"settings of the environment\n"
	"  doctor           looks for what would keep a group from working here, and says what to change\n"
	"  recover R...     let joiners of these ranks come in\n"
	"  extend N         let joiners of the ranks size..N-1 come in\n"
	"  retire R         take a healthy rank out once nobody needs its data\n"
	"  evict R          fence a sick rank at once; with --dead you also vouch that its process is dead, which lets "
	"survivors decide without it. A wrong --dead can split the group\n"
	"  forget           delete a group of which nobody is alive from the store\n\n"
	"The names of what --json prints stay as they are; new ones may come.\n\n"
	"Put a password into COVEY_STORE (redis://user:password@host/db) or COVEY_STORE_PASSWORD.\n\n"
	"Exit status: 0 done, 1 usage, 2 refused, or there is no such group (doctor: something must be changed; "
	"events: nothing is recorded), 3 not done in time, 4 the store cannot be used, 5 the output cannot be written.";

enum { OPT_JSON = 256, OPT_WAIT, OPT_DEAD, OPT_INTERVAL, OPT_LOOKS, OPT_FLIGHT, OPT_RUN, OPT_ONCE, OPT_DEVICE };

static const struct argp_option options[] = {
	{ "store", 's', "URL", 0, "Store of the group (default COVEY_STORE, else that of an ep-run on this host)", 0 },
	{ "run", OPT_RUN, "PID", 0, "The group of this ep-run on this host, in its private store", 0 },
	{ "group", 'g', "NAME", 0, "Name of the group (default COVEY_GROUP, else covey)", 0 },
	{ "json", OPT_JSON, NULL, 0,
	  "status, links, plan, doctor, watch, top, events: print JSON (watch, top: a line for each look; events: the "
	  "operations alone)",
	  0 },
	{ "interval", OPT_INTERVAL, "MS", 0, "watch, top, events: time between two looks (1000, 2000, 100)", 0 },
	{ "looks", OPT_LOOKS, "N", 0, "watch, top, events: end after N looks; events 0: the operations alone", 0 },
	{ "once", OPT_ONCE, NULL, 0, "watch, top: the same as --looks 1", 0 },
	{ "flight", OPT_FLIGHT, "DIR", 0, "events: records that members left in this COVEY_FLIGHT too", 0 },
	{ "wait", OPT_WAIT, "MS", OPTION_ARG_OPTIONAL, "Wait until it is done, at most MS (30000)", 0 },
	{ "device", OPT_DEVICE, NULL, 0, "plan: also what each rank takes on its device", 0 },
	{ "dead", OPT_DEAD, NULL, 0, "evict: the process is known to be dead", 0 },
	{ 0 },
};

/* Replaces the text between the scheme and the last @ by *, so that a list of processes does not show it. */
static void hide_password(char *url)
{
	char *scheme = strstr(url, "://"), *at = strrchr(url, '@');
	char *user = scheme && at && scheme < at ? scheme + 3 : url;

	if (at)
		memset(user, '*', (size_t)(at - user));
}

/* A misplaced word, fit to print: it may be a URL whose --store was forgotten. */
static const char *shown(const char *word)
{
	return strchr(word, '@') ? "a word with an @, which is not shown," : word;
}

static long number(struct argp_state *state, const char *text, long min, long max)
{
	long value;

	if (!tool_number(text, min, max, &value, NULL))
		argp_error(state, "%s: a number from %ld to %ld is needed", shown(text), min, max);
	return value;
}

static void take_word(struct admin *a, char *arg, struct argp_state *state)
{
	bool extend = a->command && (!strcmp(a->command, "extend") || !strcmp(a->command, "plan"));

	if (!a->command) {
		a->command = arg;
		return;
	}
	if (a->count == MAX_WORDS)
		argp_error(state, "more than %d ranks", MAX_WORDS);
	a->ranks[a->count++] = (int)number(state, arg, extend ? 1 : 0, extend ? COVEY_MAX_RANKS : COVEY_MAX_RANKS - 1);
}

static void check_words(const struct admin *a, struct argp_state *state)
{
	static const struct {
		const char *name;
		int min, max;
	} known[] = { { "status", 0, 0 },	   { "links", 0, 0 },  { "watch", 0, 0 },  { "top", 0, 0 },
		      { "events", 0, 0 },	   { "forget", 0, 0 }, { "doctor", 0, 0 }, { "plan", 1, 1 },
		      { "recover", 1, MAX_WORDS }, { "extend", 1, 1 }, { "retire", 1, 1 }, { "evict", 1, 1 } };

	if (!a->command) {
		argp_error(state, "a command is needed: --help lists them");
		return;
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (strcmp(a->command, known[i].name))
			continue;
		if (a->count < known[i].min || a->count > known[i].max)
			argp_error(state, "%s takes %s", a->command,
				   !known[i].max       ? "no rank"
				   : known[i].max == 1 ? "one number"
						       : "one or more ranks");
		if (a->device && strcmp(a->command, "plan"))
			argp_error(state, "--device belongs to plan");
		if (a->dead && strcmp(a->command, "evict"))
			argp_error(state, "--dead belongs to evict");
		if (a->once && strcmp(a->command, "watch") && strcmp(a->command, "top"))
			argp_error(state, "--once belongs to watch and top");
		if (!a->looks && !strcmp(a->command, "top"))
			argp_error(state, "--looks 0: top needs at least one look, as with --once");
		return;
	}
	argp_error(state, "unknown command: %s", shown(a->command));
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct admin *a = state->input;
	const struct tool_set plain[] = {
		{ OPT_JSON, &a->json, NULL }, { OPT_DEAD, &a->dead, NULL },	{ OPT_DEVICE, &a->device, NULL },
		{ 'g', NULL, &a->group },     { OPT_FLIGHT, NULL, &a->flight }, { 0 },
	};

	if (tool_set(plain, key, arg))
		return 0;
	switch (key) {
	case 's':
		free(a->store);
		a->store = strdup(arg);
		hide_password(arg);
		return 0;
	case OPT_RUN:
		a->run = number(state, arg, 1, INT_MAX);
		return 0;
	case OPT_WAIT:
		a->wait_ms = arg ? number(state, arg, 1, 86400000) : WAIT_MS;
		return 0;
	case OPT_INTERVAL:
		a->interval_ms = number(state, arg, 1, 86400000);
		return 0;
	case OPT_LOOKS:
		a->looks = number(state, arg, 0, 1000000000);
		return 0;
	case OPT_ONCE:
		a->looks = 1;
		a->once = true;
		return 0;
	case ARGP_KEY_ARG:
		take_word(a, arg, state);
		return 0;
	case ARGP_KEY_END:
		check_words(a, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* The exit code for a call that failed. */
int admin_code(const struct admin *a, int err)
{
	if (!strcmp(a->now.status, "GONE") || !strcmp(a->now.status, "CLOSED") || !strcmp(a->now.status, "REFUSED"))
		return EXIT_REFUSED;
	switch (err) {
	case COVEY_ERR_CLOSED:
	case COVEY_ERR_REFUSED:
		return EXIT_REFUSED;
	case COVEY_ERR_TIMEOUT:
		return EXIT_TIMEOUT;
	case COVEY_ERR_INVAL:
		return EXIT_USAGE;
	default:
		return EXIT_STORE;
	}
}

/* Prints why a call failed; returns the exit code for it. */
static int explain(const struct admin *a, int err)
{
	struct covey_error_info info;

	if (!strcmp(a->now.status, "GONE") || !strcmp(a->now.status, "CLOSED") || err == COVEY_ERR_CLOSED) {
		fprintf(stderr, "ep-admin: there is no group %s in this store\n", a->group);
		return admin_code(a, err);
	}
	if (err == COVEY_ERR_REFUSED || !strcmp(a->now.status, "REFUSED")) {
		fprintf(stderr, "ep-admin: refused: %s\n", a->now.why[0] ? a->now.why : "the store does not say why");
		return admin_code(a, err);
	}
	covey_last_error(NULL, &info);
	fprintf(stderr, "ep-admin: %s%s%s\n", covey_strerror(err ? err : COVEY_ERR_STORE), info.cause[0] ? ": " : "",
		info.cause);
	return admin_code(a, err);
}

/* One request; the group from the reply is in a->now. */
static int call(struct admin *a, int argc, const char *const *argv)
{
	int err;

	admin_group_clear(&a->now);
	err = covey_admin_call(a->store, a->group, argc, argv, tool_now_ns() + CALL_MS * UINT64_C(1000000),
			       admin_group_pair, &a->now);
	if (err || (a->now.status[0] && strcmp(a->now.status, "OK")))
		return explain(a, err);
	return EXIT_DONE;
}

int admin_look(struct admin *a)
{
	static const char *const argv[] = { "peek" };

	return call(a, 1, argv);
}

int admin_try(struct admin *a)
{
	static const char *const argv[] = { "peek" };

	admin_group_clear(&a->now);
	return covey_admin_call(a->store, a->group, 1, argv, tool_now_ns() + CALL_MS * UINT64_C(1000000),
				admin_group_pair, &a->now);
}

static int forget(struct admin *a)
{
	static const char *const argv[] = { "ask", "forget" };

	return call(a, 2, argv);
}

static bool admitted(const struct admin_group *g, int r)
{
	return g->rank[r].member && !g->rank[r].pending;
}

/* Do recover or extend want rank @r in the group? Ranks below its size that left or were retired are not wanted. */
static bool wanted(const struct admin *a, int first, int r)
{
	if (!strcmp(a->command, "extend"))
		return r < a->ranks[0] && (r >= first || !a->now.rank[r].left[0]);
	for (int i = 0; !strcmp(a->command, "recover") && i < a->count; i++)
		if (a->ranks[i] == r)
			return true;
	return false;
}

/* Does the group that we see satisfy the request? @first: size before; @inc: of the rank to remove. */
static bool done(const struct admin *a, int first, uint64_t inc)
{
	const struct admin_group *g = &a->now;
	bool removes = !strcmp(a->command, "retire") || !strcmp(a->command, "evict");

	if (removes && !strcmp(g->phase, "closed"))
		return true; /* it was the last rank */
	if (strcmp(g->phase, "run"))
		return false;
	if (removes)
		return !g->rank[a->ranks[0]].member || g->rank[a->ranks[0]].inc != inc;
	for (int r = 0; r < COVEY_MAX_RANKS; r++)
		if (a->count ? wanted(a, first, r) && !admitted(g, r) : g->rank[r].member && g->rank[r].pending)
			return false;
	return true;
}

enum lack { LACK_NOTHING, LACK_JOINER, LACK_LINKS, LACK_ADMISSION, LACK_POINT, LACKS };

static enum lack lack_of(const struct admin *a, int first, int r)
{
	const struct admin_member *m = &a->now.rank[r];

	if (m->member)
		return m->pending ? LACK_POINT : LACK_NOTHING;
	if (!wanted(a, first, r))
		return LACK_NOTHING;
	if (!m->joiner)
		return LACK_JOINER;
	return m->joiner_ready ? LACK_ADMISSION : LACK_LINKS;
}

/* The reason why requested ranks are missing, up to @last: `ranks 4, 5 have no joiner`; empty: none is visible. */
static void say_lacks(const struct admin *a, int first, enum lack last, char *text, size_t bytes)
{
	static const char *const one[LACKS] = { "", "has no joiner",
						"has a joiner that is not connected to all members yet",
						"has a joiner that is ready", "waits for a safe point, covey_admit()" };
	static const char *const many[LACKS] = { "", "have no joiner",
						 "have joiners that are not connected to all members yet",
						 "have joiners that are ready",
						 "wait for a safe point, covey_admit()" };
	size_t used = 0;

	text[0] = '\0';
	for (enum lack lack = LACK_JOINER; lack <= last; lack++) {
		char list[128] = "";
		size_t listed = 0;
		int count = 0;

		for (int r = 0; r < COVEY_MAX_RANKS; r++) {
			if (lack_of(a, first, r) != lack)
				continue;
			if (count++ < MAX_LISTED)
				listed += (size_t)snprintf(list + listed, sizeof(list) - listed, "%s%d",
							   count > 1 ? ", " : "", r);
			else if (count == MAX_LISTED + 1)
				listed += (size_t)snprintf(list + listed, sizeof(list) - listed, ", ...");
		}
		if (count && used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%srank%s %s %s", used ? "; " : "",
						 count > 1 ? "s" : "", list, (count > 1 ? many : one)[lack]);
	}
}

static int wait_done(struct admin *a, int first, uint64_t inc)
{
	uint64_t end = tool_now_ns() + (uint64_t)a->wait_ms * 1000000;
	char said[640] = "", line[640], lacks[512];
	int code;

	for (;;) {
		code = admin_look(a);
		if (code)
			return code;
		if (done(a, first, inc))
			return EXIT_DONE;
		say_lacks(a, first, LACK_POINT, lacks, sizeof(lacks));
		snprintf(line, sizeof(line), "phase %s, epoch %" PRIu64 ", size %d%s%s", a->now.phase, a->now.epoch,
			 a->now.size, lacks[0] ? ": " : "", lacks);
		if (strcmp(line, said))
			fprintf(stderr, "ep-admin: waiting for %s: %s\n", a->command, line);
		memcpy(said, line, sizeof(said));
		if (tool_now_ns() >= end) {
			fprintf(stderr, "ep-admin: %s is not done after %ld ms%s%s\n", a->command, a->wait_ms,
				lacks[0] ? ": " : "", lacks);
			return EXIT_TIMEOUT;
		}
		poll(NULL, 0, LOOK_MS);
	}
}

/* The operator's proof that a process is dead is sent before the request, so that the change need not wait. */
static int vouch(struct admin *a, int rank, uint64_t inc)
{
	char number_text[16], inc_text[24];
	const char *argv[] = { "prove", number_text, inc_text, "operator" };

	snprintf(number_text, sizeof(number_text), "%d", rank);
	snprintf(inc_text, sizeof(inc_text), "%" PRIu64, inc);
	return call(a, 4, argv);
}

static int ask(struct admin *a)
{
	static char list[MAX_WORDS * 5 + 1];
	const char *argv[] = { "ask", a->command, list };
	bool removes = !strcmp(a->command, "retire") || !strcmp(a->command, "evict");
	int code = admin_look(a), first = a->now.size;
	uint64_t inc = removes ? a->now.rank[a->ranks[0]].inc : 0;
	char lacks[512];
	size_t used = 0;

	if (code)
		return code;
	say_lacks(a, first, LACK_JOINER, lacks, sizeof(lacks));
	for (int i = 0; i < a->count && !strcmp(a->command, "recover"); i++) {
		const struct admin_member *m = &a->now.rank[a->ranks[i]];

		if (m->member && !m->pending && !m->accused[0] && !m->proven[0]) {
			fprintf(stderr, "ep-admin: refused: rank %d is alive (incarnation %" PRIu64 " on %s)\n",
				a->ranks[i], m->inc, admin_host_name(m->host));
			return EXIT_REFUSED;
		}
	}
	if (removes && !a->now.rank[a->ranks[0]].member) {
		fprintf(stderr, "ep-admin: refused: rank %d is not in the view\n", a->ranks[0]);
		return EXIT_REFUSED;
	}
	for (int i = 0; i < a->count; i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", i ? "," : "", a->ranks[i]);
	if (a->dead)
		code = vouch(a, a->ranks[0], inc);
	if (!code)
		code = call(a, 3, argv);
	if (!code && !a->wait_ms && lacks[0])
		fprintf(stderr,
			"ep-admin: %s stands, but %s: processes that join with COVEY_CREATE=never are needed (ep-run "
			"--grow starts some)\n",
			a->command, lacks);
	return code || !a->wait_ms ? code : wait_done(a, first, inc);
}

static int show(struct admin *a)
{
	bool links = !strcmp(a->command, "links");
	int code = a->wait_ms ? wait_done(a, 0, 0) : admin_look(a);

	if (code)
		return code;
	if (a->json && links)
		admin_json_links(&a->now, a->group);
	else if (a->json)
		admin_json_status(&a->now, a->group);
	else if (links)
		admin_print_links(&a->now);
	else
		admin_print_status(&a->now, a->group);
	return EXIT_DONE;
}

static int run(struct admin *a)
{
	if (!strcmp(a->command, "status") || !strcmp(a->command, "links"))
		return show(a);
	if (!strcmp(a->command, "watch") || !strcmp(a->command, "top") || !strcmp(a->command, "events"))
		covey_log_set(NULL, NULL, getenv("COVEY_LOG") ? 0 : COVEY_LOG_ERROR); /* they say what fails, once */
	if (!strcmp(a->command, "watch"))
		return admin_watch(a);
	if (!strcmp(a->command, "top"))
		return admin_top(a);
	if (!strcmp(a->command, "events"))
		return admin_events(a);
	if (!strcmp(a->command, "plan"))
		return admin_plan(a);
	if (!strcmp(a->command, "doctor"))
		return admin_doctor(a);
	return !strcmp(a->command, "forget") ? forget(a) : ask(a);
}

static bool needs_store(const struct admin *a)
{
	if (!strcmp(a->command, "events"))
		return !a->json && a->looks;
	return strcmp(a->command, "plan") && strcmp(a->command, "doctor");
}

/* If a store is needed and none is named: the store of a run on this host. */
static int choose_store(struct admin *a)
{
	static struct local_run run;
	const char *store = getenv("COVEY_STORE"), *group = a->group ? a->group : getenv("COVEY_GROUP");

	if (group && !*group)
		group = NULL;
	a->group = group ? group : "covey";
	if (!a->run && (a->store || (store && *store) || !needs_store(a)))
		return EXIT_DONE;
	if (local_choose("ep-admin", "--run PID", group, (pid_t)a->run, &run))
		return EXIT_USAGE;
	free(a->store);
	a->store = strdup(run.url);
	a->run = run.pid;
	if (!group)
		a->group = run.group;
	return EXIT_DONE;
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, "COMMAND [RANK...]", doc, NULL, NULL, NULL };
	static struct admin a = { .looks = -1 };
	int code;

	tool_settle();
	tool_output_checked("ep-admin", EXIT_OUTPUT);
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	code = a.command ? choose_store(&a) : EXIT_USAGE; /* without a command argp has ended this */
	if (!code)
		code = run(&a);
	admin_group_clear(&a.now);
	free(a.store);
	return code;
}
