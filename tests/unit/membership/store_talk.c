/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to the store as members make them, and what was answered; and the table of cases. */
#include "store_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 200
#define CASES 100
#define GLUE '\x01' /* a space inside a word of say() */

/* One call: @line is split at spaces. From NOBODY it comes from outside. */
const char *say(struct bench *b, int who, const char *line)
{
	char text[8192], rank[16] = "-", nonce[16] = "-", rnd[40];
	const char *argv[WORDS], *inc = "-", *gid = "-", *life = "-";
	int argc = 7;

	snprintf(text, sizeof(text), "%s", line);
	snprintf(rnd, sizeof(rnd), "%032lx", ++b->random * 0x9e3779b97f4a7c15ul);
	argv[0] = strtok(text, " ");
	if (who >= 0) {
		snprintf(nonce, sizeof(nonce), "n%d", who);
		if (strcmp(argv[0], "register") != 0) {
			snprintf(rank, sizeof(rank), "%d", who % CASE_RANKS);
			inc = b->inc[who];
			gid = b->gid;
			life = b->life[who][0] ? b->life[who] : "-";
		}
	}
	argv[1] = gid;
	argv[2] = rank;
	argv[3] = inc;
	argv[4] = nonce;
	argv[5] = life;
	argv[6] = rnd;
	while (argc < WORDS && (argv[argc] = strtok(NULL, " "))) {
		for (char *at = strchr(argv[argc], GLUE); at; at = strchr(at, GLUE))
			*at = ' ';
		argc++;
	}
	memory_reply_clear(&b->reply);
	ck_assert_msg(b->call(b->ctx, argc, argv, &b->reply) == 0, "%s: %s", line,
		      b->reply.argv ? b->reply.argv[0] : "?");
	return b->reply.argv[0];
}

const char *got(struct bench *b, const char *field)
{
	const char *value = memory_reply_get(&b->reply, field);

	return value ? value : "";
}

void twice(struct bench *b, int who, const char *line, const char *status)
{
	SAYS(b, who, line, status);
	SAYS(b, who, line, status);
}

/* A field of the hash, seen from outside. */
const char *field(struct bench *b, const char *name)
{
	SAYS(b, NOBODY, "peek 0 -1", "OK");
	return got(b, name);
}

void enlist(struct bench *b, int who, int create, int world, const char *policy)
{
	char line[160];

	snprintf(line, sizeof(line), "register %d a%d:1 h %d %d %d %s sec", who % CASE_RANKS, who, create, world,
		 CASE_RANKS, policy);
	twice(b, who, line, "OK");
	snprintf(b->inc[who], sizeof(b->inc[who]), "%s", got(b, "inc"));
	snprintf(b->life[who], sizeof(b->life[who]), "%s", got(b, "life"));
	snprintf(b->gid, sizeof(b->gid), "%s", got(b, "gid"));
}

void acks(struct bench *b, int from, int to)
{
	char line[80], epoch[24], vid[40];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(vid, sizeof(vid), "%s", got(b, "vid"));
	snprintf(line, sizeof(line), "ack %s %s", epoch, vid);
	for (int i = from; i < to; i++)
		twice(b, i, line, i == to - 1 ? "ACTIVE" : "WAIT");
}

void group(struct bench *b, int world, const char *policy)
{
	for (int i = 0; i < world; i++)
		enlist(b, i, 1, world, policy);
	for (int i = 0; i < world; i++)
		twice(b, i, "ready 0", "OK");
	GOT(b, "ph", "inst");
	GOT(b, "epoch", "1");
	acks(b, 0, world);
	ck_assert_str_eq(field(b, "ph"), "run");
}

const char *report(struct bench *b, int who, const char *rest)
{
	char line[200], epoch[24];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(line, sizeof(line), "report %s %s %s", epoch, got(b, "vid"), rest);
	return say(b, who, line);
}

void accuse(struct bench *b, int by, int victim)
{
	char line[120], epoch[24];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(line, sizeof(line), "open %s heartbeat 1 %d %s", epoch, victim % CASE_RANKS, b->inc[victim]);
	twice(b, by, line, "OK");
	GOT(b, "ph", "open");
}

void prove(struct bench *b, int victim)
{
	char line[80];

	snprintf(line, sizeof(line), "prove %d %s pidfd", victim % CASE_RANKS, b->inc[victim]);
	twice(b, NOBODY, line, "OK");
}

/* hello with the record as the store holds it now, kept in @record by tell(). */
void tell(struct bench *b, char *record, size_t bytes, const char *ph)
{
	int pairs = 1;
	char *at = record + 12;

	(void)field(b, "epoch");
	at += snprintf(at, bytes - 12, " ph %s secret sec", ph);
	for (int i = 1; i + 1 < b->reply.argc; i += 2) {
		const char *f = b->reply.argv[i], *v = b->reply.argv[i + 1];

		if (strcmp(f, "ph") == 0 || strcmp(f, "act") == 0 || strcmp(f, "srv") == 0)
			continue;
		at += snprintf(at, bytes - (size_t)(at - record), " %s ", f);
		for (; *v; v++)
			*at++ = *v == ' ' ? GLUE : *v;
		*at = '\0';
		pairs++;
	}
	memset(record, ' ', 12);
	memcpy(record, "hello", 5);
	at = record + 6;
	at[snprintf(at, 6, "%d", pairs + 1)] = ' ';
}

const char *hello(struct bench *b, int who, const char *record)
{
	const char *status = say(b, who, record);

	if (strcmp(status, "OK") == 0)
		snprintf(b->life[who], sizeof(b->life[who]), "%s", got(b, "life"));
	return status;
}

struct store_case store_cases[CASES];
int store_case_count;

void store_case_add(const char *name, void (*run)(struct bench *b))
{
	if (store_case_count == CASES)
		abort();
	store_cases[store_case_count++] = (struct store_case){ name, run };
}
