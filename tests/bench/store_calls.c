/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of each call of the script in a real Redis. A group of N is formed and its view renewed again and again by
 * made-up members; the server itself says how long its EVALSHAs took (INFO commandstats), so neither the socket
 * nor this program is in the numbers.
 *
 *   store_calls SOCKET FILE.lua N ROUNDS        run by tests/bench/store
 */
#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS 24
#define RANKS_MAX 4096

enum kind { REGISTER, READY, OPEN, REOPEN, REPORT, DECIDE, COMMIT, LEARN, ACK, ACTIVE, PEEK, BEAT, KINDS };

static const char *const names[KINDS] = { "register", "ready",	       "open, the first", "open, others",
					  "report",   "decide, waits", "last report",	  "peek, new view",
					  "ack",      "last ack",      "peek, quiet",	  "beat" };

struct cost {
	double usec;
	long calls;
	double bytes;
};

static redisContext *redis;
static char sha[64], gid[40], life[80], epoch[24] = "0", vid[24] = "-", rev[32] = "-1";
static char inc[RANKS_MAX][24];
static struct cost cost[KINDS];
static double reply_bytes;

static void die(const char *what)
{
	fprintf(stderr, "store_calls: %s\n", what);
	exit(1);
}

static redisReply *must(redisReply *r)
{
	if (!r || r->type == REDIS_REPLY_ERROR)
		die(r ? r->str : redis->errstr);
	return r;
}

static const char *get(const redisReply *r, const char *field)
{
	for (size_t i = 1; i + 1 < r->elements; i += 2)
		if (strcmp(r->element[i]->str, field) == 0)
			return r->element[i + 1]->str;
	return NULL;
}

static void keep(char *to, size_t bytes, const char *from)
{
	if (from)
		snprintf(to, bytes, "%s", from);
}

/* One call as rank @who; @format holds name and arguments. The reply's status must be @status. */
static redisReply *say(int who, const char *status, const char *format, ...)
{
	static unsigned long serial;
	const char *argv[ARGS] = { "EVALSHA", sha, "2", "covey:{bench}:g", "covey:{bench}:n" };
	char text[1024], rank[16], nonce[16], rnd[40];
	int argc = 12;
	redisReply *r;
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	snprintf(rank, sizeof(rank), "%d", who);
	snprintf(nonce, sizeof(nonce), "n%d", who);
	snprintf(rnd, sizeof(rnd), "%032lx", ++serial * 0x9e3779b97f4a7c15ul);
	argv[5] = strtok(text, " ");
	argv[6] = inc[who][0] ? gid : "-";
	argv[7] = inc[who][0] ? rank : "-";
	argv[8] = inc[who][0] ? inc[who] : "-";
	argv[9] = nonce;
	argv[10] = inc[who][0] ? life : "-";
	argv[11] = rnd;
	while (argc < ARGS && (argv[argc] = strtok(NULL, " ")))
		argc++;
	r = must(redisCommandArgv(redis, argc, argv, NULL));
	if (strcmp(r->element[0]->str, status) != 0)
		die(get(r, "why") ? get(r, "why") : r->element[0]->str);
	keep(epoch, sizeof(epoch), get(r, "epoch"));
	keep(vid, sizeof(vid), get(r, "vid"));
	keep(rev, sizeof(rev), get(r, "rev"));
	for (size_t i = 0; i < r->elements; i++)
		reply_bytes += (double)r->element[i]->len;
	return r;
}

static double spent(long *calls)
{
	redisReply *r = must(redisCommand(redis, "INFO commandstats"));
	const char *at = strstr(r->str, "cmdstat_evalsha:calls=");
	double usec = 0;

	*calls = 0;
	if (at && sscanf(at, "cmdstat_evalsha:calls=%ld,usec=%lf", calls, &usec) != 2)
		die("no commandstats");
	freeReplyObject(r);
	return usec;
}

/* What was called since the last one() belongs to @kind. */
static void one(enum kind kind)
{
	static double usec;
	static long calls;
	long n;
	double u = spent(&n);

	if (kind < KINDS) {
		cost[kind].usec += u - usec;
		cost[kind].calls += n - calls;
		cost[kind].bytes += reply_bytes;
	}
	usec = u;
	calls = n;
	reply_bytes = 0;
}

static void acks(int ranks)
{
	one(KINDS);
	for (int i = 0; i < ranks - 1; i++)
		freeReplyObject(say(i, "WAIT", "ack %s %s", epoch, vid));
	one(ACK);
	freeReplyObject(say(ranks - 1, "ACTIVE", "ack %s %s", epoch, vid));
	one(ACTIVE);
}

static void form(int ranks)
{
	char line[128];

	one(KINDS);
	for (int i = 0; i < ranks; i++) {
		redisReply *r;

		snprintf(line, sizeof(line), "register %d shm:/run/covey/%d:%d host%d 1 %d %d auto secret", i, i, i,
			 i / 8, ranks, ranks);
		r = say(i, "OK", line);
		keep(gid, sizeof(gid), get(r, "gid"));
		keep(life, sizeof(life), get(r, "life"));
		keep(inc[i], sizeof(inc[i]), get(r, "inc"));
		freeReplyObject(r);
	}
	one(REGISTER);
	for (int i = 0; i < ranks; i++)
		freeReplyObject(say(i, "OK", "ready 0"));
	one(READY);
	acks(ranks);
}

static void change(int ranks)
{
	char was[24];

	one(KINDS);
	keep(was, sizeof(was), epoch);
	freeReplyObject(say(0, "OK", "open %s bench 0", epoch));
	one(OPEN);
	for (int i = 1; i < ranks; i++)
		freeReplyObject(say(i, "OK", "open %s bench 0", epoch));
	one(REOPEN);
	for (int i = 0; i < ranks - 1; i++)
		freeReplyObject(say(i, "WAIT", "report %s %s 7 7 0 9 - - -", epoch, vid));
	one(REPORT);
	freeReplyObject(say(0, "WAIT", "decide %s 1", epoch));
	one(DECIDE);
	freeReplyObject(say(ranks - 1, "COMMIT", "report %s %s 7 7 0 9 - - -", epoch, vid));
	one(COMMIT);
	for (int i = 0; i < ranks; i++)
		freeReplyObject(say(i, "OK", "peek %s %s", was, rev));
	one(LEARN);
	acks(ranks);
	for (int i = 0; i < ranks; i++)
		freeReplyObject(say(i, "OK", "peek %s %s", epoch, rev));
	one(PEEK);
	for (int i = 0; i < ranks; i++)
		freeReplyObject(say(i, "OK", "beat %s %s run;7;1:shm", epoch, rev));
	one(BEAT);
}

static void load(const char *path)
{
	static char text[1 << 20];
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text), f) : 0;
	redisReply *r;

	if (!n)
		die("cannot read the script");
	fclose(f);
	r = must(redisCommand(redis, "SCRIPT LOAD %b", text, n));
	snprintf(sha, sizeof(sha), "%s", r->str);
	freeReplyObject(r);
}

int main(int argc, char **argv)
{
	int ranks = argc == 5 ? atoi(argv[3]) : 0, rounds = argc == 5 ? atoi(argv[4]) : 0;

	if (ranks < 2 || ranks > RANKS_MAX || rounds < 1)
		die("usage: store_calls SOCKET FILE.lua N ROUNDS");
	redis = redisConnectUnix(argv[1]);
	if (!redis || redis->err)
		die("no server at this socket");
	load(argv[2]);
	freeReplyObject(must(redisCommand(redis, "FLUSHALL")));
	form(ranks);
	for (int i = 0; i < rounds; i++)
		change(ranks);
	for (int k = 0; k < KINDS; k++)
		printf("%5d  %-16s %9ld %10.1f %12.0f\n", ranks, names[k], cost[k].calls,
		       cost[k].usec / (double)cost[k].calls, cost[k].bytes / (double)cost[k].calls);
	redisFree(redis);
	return 0;
}
