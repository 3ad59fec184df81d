/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: lines of words, settings first, then steps. An error names file and line of the bad word, and the right form.
 * tests/chaos/plans/README has the grammar.
 */
#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan.h"

#define WORDS 12
#define TEXT_MAX (64 << 10)
#define TIME_MAX_MS 600000

struct reader {
	struct chaos_plan *plan;
	const char *file;
	int line, words;
	char *word[WORDS];
};

static int wrong(const struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(const struct reader *r, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "ep-chaos: %s:%d: ", r->file, r->line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

static int whole(const char *text, long min, long max, int *to)
{
	long n;

	if (!text || !tool_number(text, min, max, &n, NULL))
		return -1;
	*to = (int)n;
	return 0;
}

static int number(const struct reader *r, int at, const char *what, long min, long max, int *to)
{
	const char *text = at < r->words ? r->word[at] : NULL;

	if (!whole(text, min, max, to))
		return 0;
	return wrong(r, "%s is %s: a number from %ld to %ld is needed", what, text ? text : "missing", min, max);
}

static int one_time(char *text, uint64_t *ms)
{
	char *end;
	long n;

	if (!tool_number(text, 0, TIME_MAX_MS, &n, &end))
		return -1;
	*ms = (uint64_t)n * (!strcmp(end, "s") ? 1000 : 1);
	return (!strcmp(end, "ms") || !strcmp(end, "s")) && *ms <= TIME_MAX_MS ? 0 : -1;
}

static int times(const struct reader *r, int at, struct chaos_step *step)
{
	char *text = at < r->words ? r->word[at] : NULL, *dots = text ? strstr(text, "..") : NULL;
	char first[32];

	if (!text)
		return wrong(r, "a time is missing: 20ms, 2s or 0ms..50ms is needed");
	snprintf(first, sizeof(first), "%.*s", dots ? (int)(dots - text) : 30, text);
	if (one_time(first, &step->from_ms) || one_time(dots ? dots + 2 : first, &step->to_ms) ||
	    step->to_ms < step->from_ms)
		return wrong(r, "%s is no time: 20ms, 2s or 0ms..50ms is needed (at most 10 minutes)", text);
	return 0;
}

/* One of @names; the error lists them all. */
static int choice(const struct reader *r, int at, const char *what, const char *const *names, int count, int *to)
{
	const char *text = at < r->words ? r->word[at] : NULL;
	char list[256] = "";

	for (int i = 0; i < count; i++) {
		if (text && *names[i] && !strcmp(text, names[i])) {
			*to = i;
			return 0;
		}
		if (*names[i])
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", *list ? ", " : "", names[i]);
	}
	return wrong(r, "%s is %s: one of %s is needed", what, text ? text : "missing", list);
}

/* `2`, `1,3`, `any` or `any 2`; the place of the next word in @at. */
static int who(const struct reader *r, int *at, struct chaos_step *step)
{
	char *text = *at < r->words ? r->word[(*at)++] : NULL, *save = NULL;
	int rank;

	if (text && !strcmp(text, "any")) {
		step->count = 1;
		if (*at < r->words && isdigit((unsigned char)*r->word[*at]))
			return number(r, (*at)++, "how many ranks", 1, CHAOS_MAX_RANKS - 1, &step->count);
		return 0;
	}
	for (char *one = text ? strtok_r(text, ",", &save) : NULL; one; one = strtok_r(NULL, ",", &save)) {
		if (whole(one, 0, CHAOS_MAX_RANKS - 1, &rank))
			return wrong(r, "%s is no rank: 2, or 1,3, or any, or any 2 is needed, ranks below %d", one,
				     CHAOS_MAX_RANKS);
		step->ranks |= 1u << rank;
	}
	step->count = __builtin_popcount(step->ranks);
	return step->ranks ? 0 : wrong(r, "who? 2, or 1,3, or any, or any 2 is needed");
}

/* ---- Settings ---- */

static int set_load(struct reader *r)
{
	int op = 0;

	r->plan->work = 0;
	for (int i = 1; i < r->words; i++) {
		if (choice(r, i, "an operation", chaos_work_names, CHAOS_W_COMBINE, &op))
			return -1;
		r->plan->work |= 1u << op;
	}
	return r->plan->work ? 0 : wrong(r, "load has no operation: allreduce, or allreduce dispatch");
}

static int set_bytes(struct reader *r)
{
	int bytes;

	r->plan->sizes = 0;
	for (int i = 1; i < r->words; i++) {
		if (i > CHAOS_SIZES)
			return wrong(r, "bytes has more than %d sizes", CHAOS_SIZES);
		if (number(r, i, "a size", 4, CHAOS_BYTES_MAX, &bytes))
			return -1;
		r->plan->bytes[r->plan->sizes++] = (uint32_t)bytes;
	}
	return r->plan->sizes ? 0 : wrong(r, "bytes has no size: bytes 8 65536");
}

static int set_mistakes(const struct reader *r)
{
	int slip = 0;

	r->plan->mix.slips = r->words > 2 ? 0 : (1u << CHAOS_L_COUNTED) - 1;
	for (int i = 2; i < r->words; i++) {
		if (choice(r, i, "what is wrong", chaos_slip_names, CHAOS_L_COUNTED, &slip))
			return -1;
		r->plan->mix.slips |= 1u << slip;
	}
	return number(r, 1, "one step in how many is called wrongly", 2, 1000000, &r->plan->mix.mistakes);
}

static int set_variable(struct reader *r)
{
	struct chaos_plan *plan = r->plan;

	if (r->words != 3 || strncmp(r->word[1], "COVEY_", 6))
		return wrong(r, "set NAME VALUE is needed, with a name that begins with COVEY_");
	for (int i = 1; i < 3; i++)
		if (strlen(r->word[i]) >= sizeof(plan->setting[0][0]))
			return wrong(r, "%.20s...: longer than %zu bytes", r->word[i], sizeof(plan->setting[0][0]) - 1);
	if (plan->settings == CHAOS_SETTINGS)
		return wrong(r, "more than %d settings", CHAOS_SETTINGS);
	snprintf(plan->setting[plan->settings][0], sizeof(plan->setting[0][0]), "%s", r->word[1]);
	snprintf(plan->setting[plan->settings++][1], sizeof(plan->setting[0][1]), "%s", r->word[2]);
	return 0;
}

static int set_groups(struct reader *r)
{
	struct chaos_plan *plan = r->plan;

	if (r->words != 4 || strcmp(r->word[2], "of"))
		return wrong(r, "groups 2 of 3 is needed: how many groups, of how many ranks each");
	return number(r, 1, "groups", 1, CHAOS_GROUPS, &plan->groups) ||
			       number(r, 3, "ranks of a group", 2, CHAOS_MAX_RANKS, &plan->members)
		       ? -1
		       : 0;
}

/* 1: it was none. */
static int mix(const struct reader *r)
{
	struct chaos_mix *mix = &r->plan->mix;

	if (!strcmp(r->word[0], "mistakes"))
		return set_mistakes(r);
	if (!strcmp(r->word[0], "masks"))
		return number(r, 1, "in one step of how many a rank is left out", 1, 1000000, &mix->masks);
	if (!strcmp(r->word[0], "handles")) {
		mix->handles = true;
		return r->words == 1 ? 0 : wrong(r, "%s: nothing may follow handles", r->word[1]);
	}
	if (!strcmp(r->word[0], "losses")) {
		mix->fails = r->words == 2 && !strcmp(r->word[1], "fail");
		return mix->fails ? 0 : wrong(r, "losses fail is needed");
	}
	return 1;
}

/* 1: it was none. */
static int setting(struct reader *r)
{
	const char *word = r->word[0];
	struct chaos_plan *plan = r->plan;

	if (!strcmp(word, "ranks"))
		return number(r, 1, "ranks", 2, CHAOS_MAX_RANKS, &plan->ranks);
	if (!strcmp(word, "hosts"))
		return number(r, 1, "hosts", 2, 4, &plan->hosts);
	if (!strcmp(word, "rounds"))
		return number(r, 1, "rounds", 1, 1000000, &plan->rounds);
	if (!strcmp(word, "groups"))
		return set_groups(r);
	if (!strcmp(word, "load"))
		return set_load(r);
	if (!strcmp(word, "bytes"))
		return set_bytes(r);
	if (!strcmp(word, "set"))
		return set_variable(r);
	if (!strcmp(word, "logs")) {
		plan->logs_full = r->words == 2 && !strcmp(r->word[1], "full");
		return plan->logs_full ? 0 : wrong(r, "logs full is needed");
	}
	return mix(r);
}

/* ---- Steps ---- */

static int step_kill(struct reader *r, struct chaos_step *step)
{
	int at = 1;

	if (who(r, &at, step))
		return -1;
	snprintf(step->kind, sizeof(step->kind), step->count > 1 ? "kill %d" : "kill", step->count);
	if (at == r->words)
		return 0;
	if (!strcmp(r->word[at], "in")) {
		if (choice(r, at + 1, "the operation to be killed in", chaos_work_names, CHAOS_W_COUNT, &step->what))
			return -1;
		snprintf(step->kind, sizeof(step->kind), "kill in %s", chaos_work_names[step->what++]);
	} else if (!strcmp(r->word[at], "at")) {
		if (choice(r, at + 1, "the place to be killed at", chaos_trap_names, CHAOS_T_COUNT, &step->what))
			return -1;
		snprintf(step->kind, sizeof(step->kind), "kill at %s", chaos_trap_names[step->what]);
		step->what = -step->what;
	} else {
		return wrong(r, "%s: `in OPERATION` or `at PLACE` may follow", r->word[at]);
	}
	return 0;
}

static int step_server(struct reader *r, struct chaos_step *step)
{
	static const char *const acts[] = { "stop", "continue", "kill",	    "start",	"empty", "flush",    "pause",
					    "slow", "clock",	"failover", "failkill", "lag",	 "promoted", "revive" };
	struct chaos_plan *plan = r->plan;

	if (choice(r, 1, "what the store suffers", acts, CHAOS_S_REVIVE + 1, &step->what))
		return -1;
	snprintf(step->kind, sizeof(step->kind), "store %s", acts[step->what]);
	plan->needs_data |= step->what == CHAOS_S_START;
	plan->needs_proxy |= step->what == CHAOS_S_SLOW;
	plan->needs_clock |= step->what == CHAOS_S_CLOCK;
	plan->needs_sentinel |= step->what >= CHAOS_S_FAILOVER;
	plan->needs_single |= step->what < CHAOS_S_FAILOVER;
	if (plan->needs_sentinel && (plan->needs_single || plan->hosts))
		return wrong(r, "store %s: a plan whose store fails over has no other fault of it and no hosts",
			     acts[step->what]);
	if (step->what == CHAOS_S_CLOCK)
		return number(r, 2, "seconds to step the clock by", -86400, 86400, &step->a);
	if (step->what == CHAOS_S_PAUSE || step->what == CHAOS_S_SLOW)
		return times(r, 2, step);
	return 0;
}

static int step_network(struct reader *r, struct chaos_step *step)
{
	int most = r->plan->hosts - 1;

	if (!r->plan->hosts)
		return wrong(r, "%s needs hosts: say `hosts 2` above", r->word[0]);
	if (step->verb == CHAOS_CUT)
		return number(r, 1, "host that sends", -1, most, &step->a) ||
				       number(r, 2, "host that receives", -1, most, &step->b)
			       ? -1
			       : 0;
	if (step->verb == CHAOS_SLOW)
		return number(r, 1, "host", 0, most, &step->a) ||
				       number(r, 2, "kbit per second (0: undo)", 0, 10000000, &step->b)
			       ? -1
			       : 0;
	return 0;
}

static int step_rank_text(struct reader *r, struct chaos_step *step)
{
	static const char *const lacks[] = { "memory", "files" };
	int at = 1, what = 0;

	if (who(r, &at, step))
		return -1;
	if (step->verb == CHAOS_ARM) {
		if (at + 1 != r->words || !step->ranks)
			return wrong(r, "arm 2 RULE is needed, with a rule of COVEY_FAULT such as kill@agent:report");
		if (strlen(r->word[at]) >= sizeof(step->text))
			return wrong(r, "%.20s...: longer than %zu bytes", r->word[at], sizeof(step->text) - 1);
		snprintf(step->text, sizeof(step->text), "%s", r->word[at]);
		return 0;
	}
	if (step->count != 1 || choice(r, at, "what is short", lacks, 2, &what))
		return -1;
	snprintf(step->text, sizeof(step->text), "%s", lacks[what]);
	snprintf(step->kind, sizeof(step->kind), "%s %s", r->word[0], lacks[what]);
	return 0;
}

static int step_rest(struct reader *r, struct chaos_step *step)
{
	int at = 1;

	switch (step->verb) {
	case CHAOS_KILL:
		return step_kill(r, step);
	case CHAOS_SERVER:
		return step_server(r, step);
	case CHAOS_CUT:
	case CHAOS_HEAL:
	case CHAOS_SLOW:
		return step_network(r, step);
	case CHAOS_ARM:
	case CHAOS_LIMIT:
	case CHAOS_STARVE:
		return step_rank_text(r, step);
	case CHAOS_HALT:
	case CHAOS_RETIRE:
	case CHAOS_EVICT:
	case CHAOS_LEAVE:
	case CHAOS_UNLIMIT:
	case CHAOS_GONE:
		return who(r, &at, step);
	case CHAOS_EXTEND:
		if (r->plan->groups > 1)
			return wrong(r, "extend works with one group only");
		return number(r, 1, "size", 2, CHAOS_MAX_RANKS, &step->a);
	case CHAOS_WAIT:
		return times(r, 1, step);
	default:
		return r->words == 1 ? 0 : wrong(r, "%s: nothing may follow %s", r->word[1], r->word[0]);
	}
}

static int step(struct reader *r)
{
	static const char *const verbs[] = { "kill",	"stop",	  "resume", "start", "replace", "extend",
					     "retire",	"evict",  "leave",  "arm",   "wait",	"settle",
					     "flow",	"store",  "cut",    "heal",  "slow",	"limit",
					     "unlimit", "starve", "gone",   "quiet" };
	struct chaos_plan *plan = r->plan;
	struct chaos_step *step = &plan->step[plan->steps];
	int verb = 0;

	if (plan->steps == CHAOS_STEPS)
		return wrong(r, "more than %d steps", CHAOS_STEPS);
	if (choice(r, 0, "the first word", verbs, CHAOS_QUIET + 1, &verb))
		return -1;
	*step = (struct chaos_step){ .verb = (enum chaos_verb)verb, .line = r->line };
	snprintf(step->kind, sizeof(step->kind), "%s", verbs[verb]);
	if (step_rest(r, step))
		return -1;
	plan->steps++;
	return 0;
}

static int line(struct reader *r, char *text)
{
	char *save = NULL;
	int found;

	text[strcspn(text, "#")] = '\0';
	r->words = 0;
	for (char *word = strtok_r(text, " \t\r", &save); word; word = strtok_r(NULL, " \t\r", &save)) {
		if (r->words == WORDS)
			return wrong(r, "more than %d words", WORDS);
		r->word[r->words++] = word;
	}
	if (!r->words)
		return 0;
	found = setting(r);
	if (found != 1)
		return !found && r->plan->steps ? wrong(r, "%s: settings stand before the first step", r->word[0])
						: found;
	return step(r);
}

int chaos_plan_parse(struct chaos_plan *plan, const char *file, char *text)
{
	struct reader r = { .plan = plan, .file = file };

	for (char *next = text; next;) {
		char *this = next;

		next = strchr(this, '\n');
		if (next)
			*next++ = '\0';
		r.line++;
		if (line(&r, this))
			return -1;
	}
	return plan->steps ? 0 : wrong(&r, "the plan has no step: kill any, settle, replace");
}

/* ---- Where plans are ---- */

static FILE *find(const char *name, char *path, size_t bytes)
{
	static const char *const places[] = { "../../tests/chaos/plans", "../share/covey/chaos" };
	char self[PATH_MAX] = "";
	FILE *f = NULL;

	snprintf(path, bytes, "%s", name);
	if (strchr(name, '/'))
		return fopen(name, "re");
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0)
		dirname(self);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !f; i++) {
		snprintf(path, bytes, "%s/%s/%s", self, places[i], name);
		f = fopen(path, "re");
	}
	if (!f) {
		snprintf(path, bytes, "%s", name);
		f = fopen(name, "re");
	}
	return f;
}

int chaos_plan_read(struct chaos_plan *plan, const char *name, uint64_t seed)
{
	const char *base = strrchr(name, '/');
	char path[PATH_MAX], *text = NULL;
	size_t n;
	FILE *f;
	int err;

	snprintf(plan->name, sizeof(plan->name), "%s", base ? base + 1 : name);
	if (!strcmp(name, "random")) {
		text = chaos_plan_random(seed);
		err = text ? chaos_plan_parse(plan, "random plan", text) : -1;
		free(text);
		return err;
	}
	f = find(name, path, sizeof(path));
	text = calloc(1, TEXT_MAX);
	if (!f || !text) {
		fprintf(stderr, "ep-chaos: plan %s: %s\n", name, strerror(errno));
		free(text);
		if (f)
			fclose(f);
		return -1;
	}
	n = fread(text, 1, TEXT_MAX, f);
	fclose(f);
	if (n == TEXT_MAX)
		fprintf(stderr, "ep-chaos: plan %s: longer than %d bytes\n", path, TEXT_MAX);
	err = n == TEXT_MAX ? -1 : chaos_plan_parse(plan, path, text);
	free(text);
	return err;
}
