/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member: its driver and state machine, with whatever a store, peers and an application may say. A
 * line is an event; corpus/group shows the words. Replies of the store are words separated by `|` and go
 * to the last call of that name; bodies of messages between members are hexadecimal.
 */
#include "clock.h"
#include "driver.h"
#include "fuzz.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define WORDS 1024
#define LINES 400
#define NAMES 11
#define BODY 4096

static const char *const names[NAMES] = { "register", "ready", "hello", "open",	 "report", "decide",
					  "ack",      "peek",  "beat",	"prove", "ask" };

struct member {
	struct cvy_driver driver;
	struct cvy_store store;
	uint64_t last[NAMES], now;
};

static struct member *member;

static void store_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	fuzz_check(argc > 0);
	for (int i = 0; i < argc; i++)
		fuzz_check(argv[i]);
	for (int i = 0; i < NAMES; i++)
		if (!strcmp(names[i], argv[0]))
			member->last[i] = id;
}

static void store_close(struct cvy_store *store)
{
}

static void on_identity(void *ctx, const struct cvy_identity *id)
{
	fuzz_check(id->rank >= 0 && id->rank < id->max_ranks && id->max_ranks <= COVEY_MAX_RANKS && id->inc);
}

static void on_expect(void *ctx, int rank, uint64_t inc)
{
	fuzz_check(rank >= 0 && rank < COVEY_MAX_RANKS && inc);
}

static void on_dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	on_expect(ctx, rank, inc);
	fuzz_check(addr && host);
}

static int on_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	fuzz_check(rank >= 0 && rank < COVEY_MAX_RANKS && type && (body || !bytes) && bytes <= CVY_MSG_MAX);
	return 0;
}

static struct cvy_page *no_page(void *ctx, int rank)
{
	return NULL;
}

static void on_freeze(void *ctx, uint32_t epoch)
{
}

static void on_learn(void *ctx, const struct cvy_view *v, const struct covey_mask *removed,
		     const struct covey_mask *lag)
{
	fuzz_check(v->max_ranks >= 1 && v->max_ranks <= COVEY_MAX_RANKS && v->size <= v->max_ranks);
	for (int r = v->max_ranks; r < COVEY_MAX_RANKS; r++)
		fuzz_check(!covey_mask_has(&v->members, r));
}

static void on_repair(void *ctx, const struct covey_mask *holders)
{
}

static void on_thaw(void *ctx)
{
}

static void on_message(void *ctx, const struct cvy_msg *msg)
{
	fuzz_check(msg->body || !msg->bytes);
}

static void on_stop(void *ctx, int err)
{
	fuzz_check(err < 0);
}

static uint64_t progress(void *ctx, int *waiting)
{
	*waiting = 0;
	return 0;
}

static int retired(void *ctx)
{
	return 1;
}

static void peer_progress(void *ctx, int rank, uint64_t done)
{
	on_expect(ctx, rank, 1);
}

static const struct cvy_seam seam = { .identity = on_identity,
				      .expect = on_expect,
				      .dial = on_dial,
				      .drop = on_expect,
				      .send = on_send,
				      .page = no_page,
				      .freeze = on_freeze,
				      .learn = on_learn,
				      .repair = on_repair,
				      .thaw = on_thaw,
				      .message = on_message,
				      .stop = on_stop,
				      .progress = progress,
				      .retire = retired,
				      .peer_progress = peer_progress };

static void reply(char *line, struct cvy_event *e)
{
	static const char *argv[WORDS];
	char *words = strchr(line, ' ');

	e->kind = CVY_EV_REPLY;
	if (words)
		*words++ = 0;
	for (int i = 0; i < NAMES; i++)
		if (!strcmp(names[i], line))
			e->id = member->last[i];
	if (words && (*words == '-' || (*words >= '0' && *words <= '9'))) { /* no answer came */
		e->err = atoi(words) % 2 ? COVEY_ERR_STORE : COVEY_ERR_TIMEOUT;
		return;
	}
	e->argc = fuzz_split(words, "|", argv, WORDS);
	e->argv = argv;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void message(const char *line, struct cvy_event *e)
{
	static uint8_t body[BODY];
	int at = 0;

	e->kind = CVY_EV_MSG;
	if (sscanf(line, "%d %d %lu %u %n", &e->msg.type, &e->msg.rank, &e->msg.inc, &e->msg.epoch, &at) < 4)
		return;
	for (const char *c = line + at; at && c[0] && hex(c[0]) >= 0 && hex(c[1]) >= 0 && e->msg.bytes < BODY; c += 2)
		body[e->msg.bytes++] = (uint8_t)(hex(c[0]) * 16 + hex(c[1]));
	e->msg.type = e->msg.type < CVY_MSG_PING || e->msg.type > CVY_MSG_ACKED ? CVY_MSG_RELAY : e->msg.type;
	e->msg.body = e->msg.bytes ? body : NULL; /* as control.c gives it */
	e->rank = e->msg.rank;
	e->inc = e->msg.inc;
}

static void api(const char *word, const char *rest, struct cvy_event *e)
{
	static const char *const words[] = { "join", "go", "leave", "recover", "extend", "retire", "evict" };

	for (int i = 0; i < 7; i++)
		if (!strcmp(words[i], word))
			e->api = CVY_API_JOIN + i;
	e->kind = e->api ? CVY_EV_API : 0;
	e->id = 1000 + (uint64_t)e->api;
	e->number = strtoul(rest, NULL, 10);
	e->rank = (int)(e->number % COVEY_MAX_RANKS);
	cvy_mask_add(&e->ranks, e->rank);
}

static void note(const char *word, char *rest, struct cvy_event *e)
{
	unsigned long n[6] = { 0 };

	sscanf(rest, "%lu %lu %lu %lu %lu %lu", n, n + 1, n + 2, n + 3, n + 4, n + 5);
	e->epoch = (uint32_t)n[0];
	if (!strcmp(word, "tick")) {
		e->kind = CVY_EV_TICK;
		member->now += n[0] % 100000 * CVY_MS;
	} else if (!strcmp(word, "up")) {
		e->kind = CVY_EV_STORE_UP;
	} else if (!strcmp(word, "down")) {
		e->kind = CVY_EV_STORE_DOWN;
		e->err = n[0] ? COVEY_ERR_AUTH : COVEY_ERR_STORE;
		e->text = rest;
	} else if (!strcmp(word, "notice")) {
		e->kind = CVY_EV_NOTICE;
		e->text = strchr(rest, ' ') ? strchr(rest, ' ') + 1 : "";
	} else if (!strcmp(word, "link") || !strcmp(word, "unlink")) {
		e->kind = *word == 'l' ? CVY_EV_LINK_UP : CVY_EV_LINK_DOWN;
		e->rank = (int)(n[0] % COVEY_MAX_RANKS);
		e->inc = n[1];
		e->text = "cut";
	} else if (!strcmp(word, "suspect")) {
		e->kind = CVY_EV_SUSPECT;
		e->rank = (int)(n[0] % COVEY_MAX_RANKS);
		e->inc = n[1];
		e->source = (int)(n[2] % 10) + 1;
	} else if (!strcmp(word, "frozen")) {
		e->kind = CVY_EV_FROZEN;
		e->report = (struct cvy_report){ .done = n[1], .ent = n[1] + n[2] % 2, .adm = n[3] };
	} else if (!strcmp(word, "fenced")) {
		e->kind = CVY_EV_FENCED;
	} else if (!strcmp(word, "repaired")) {
		e->kind = CVY_EV_REPAIRED;
	} else if (!strcmp(word, "admitted")) {
		e->kind = CVY_EV_ADMITTED;
		e->number = n[0];
	} else if (!strcmp(word, "want")) {
		e->kind = CVY_EV_WANT_CHANGE;
		e->text = rest;
	} else {
		api(word, rest, e);
	}
}

static void happen(char *line)
{
	struct cvy_event e = { .rank = -1 };
	char *rest = line + strcspn(line, " ");

	if (*rest)
		*rest++ = 0;
	if (!strcmp(line, "reply"))
		reply(rest, &e);
	else if (!strcmp(line, "msg"))
		message(rest, &e);
	else
		note(line, rest, &e);
	if (e.kind)
		cvy_driver_post(&member->driver, &e, member->now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct cvy_store_ops ops = { store_call, store_close };
	struct cvy_group_args args = {
		.rank = 0, .world = 2, .max_ranks = 4, .addr = "a", .host = "h", .nonce = 7, .seed = 1
	};
	struct cvy_observer nobody = { 0 };
	char *text = fuzz_text(data, size), *rest = text, *line;
	struct member here = { .store = { &ops }, .now = CVY_MS };

	member = &here;
	fuzz_check(!cvy_driver_init(&here.driver, &args, &seam, &nobody, NULL, here.now));
	here.driver.store = &here.store;
	for (int i = 0; i < LINES && (line = strsep(&rest, "\n")); i++)
		happen(line);
	fuzz_check(!here.driver.queue.queued);
	cvy_driver_clear(&here.driver);
	free(text);
	return 0;
}
