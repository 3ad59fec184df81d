/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from a seed: pieces that each begin and end with a whole group, in random order with random parameters. It is
 * text in the same form as written plans, so that --show can print it and a part of it can be run alone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

#define PIECES 40

struct shape {
	int ranks, groups;
};

static uint64_t draw(uint64_t *random, uint64_t below)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return (*random >> 24) % below; /* the upper bits are the better ones */
}

/* @stands: the group may be blocked, so that no process reaches a place: an operation is looked for without a wait. */
static void death(FILE *f, uint64_t *random, bool stands)
{
	static const char *const places[] = { "",
					      " in allreduce",
					      " in broadcast",
					      " in allgather",
					      " in alltoall",
					      " in alltoallv",
					      " in barrier",
					      " in dispatch",
					      " in combine",
					      " at in-dispatch",
					      " at between",
					      " at in-combine" };

	fprintf(f, "kill any%s\n", places[draw(random, stands ? 9 : 12)]);
	if (draw(random, 3) == 0)
		fprintf(f, "wait 0ms..%dms\nkill any\n", 1 + (int)draw(random, 10));
}

static void store_fault(FILE *f, uint64_t *random)
{
	static const char *const faults[][2] = {
		{ "store stop", "store continue" },  { "store kill", "store start" },
		{ "store kill", "store empty" },     { "store flush", "wait 1ms" },
		{ "store pause 200ms", "wait 1ms" }, { "store slow 20ms", "store slow 0ms" }
	};
	int i = (int)draw(random, 6);

	fprintf(f, "%s\nwait 0ms..20ms\n", faults[i][0]);
	if (draw(random, 2))
		death(f, random, true);
	fprintf(f, "wait 0ms..%dms\n%s\nsettle\nreplace\n", 1 + (int)draw(random, 300), faults[i][1]);
}

static void halt(FILE *f, uint64_t *random)
{
	int ms = (int)draw(random, 3) ? 20 + (int)draw(random, 40) : 200 + (int)draw(random, 300);

	fprintf(f, "stop any\nwait %dms\nresume\nsettle\nreplace\n", ms);
}

/* Ranks that leave by themselves, are asked to, are removed, or are added; another may die meanwhile. */
static void change_size(FILE *f, uint64_t *random, struct shape *shape)
{
	static const char *const ways[] = { "leave", "evict", "retire" };
	int what = (int)draw(random, shape->groups > 1 ? 1 : 4);

	if (what == 3 && shape->ranks < CHAOS_MAX_RANKS) {
		fprintf(f, "extend %d\n", ++shape->ranks);
		return;
	}
	fprintf(f, "%s any\nwait 0ms..%dms\n", ways[what % 3], 1 + (int)draw(random, 20));
	if (draw(random, 2))
		fprintf(f, "kill any\nwait 0ms..5ms\n");
	fprintf(f, "settle\nreplace\n");
}

static void piece(FILE *f, uint64_t *random, struct shape *shape)
{
	static const char *const armed[] = { "report", "COMMIT", "learn", "learned", "ack", "ACTIVE", "freeze" };

	switch (draw(random, 7)) {
	case 0:
		store_fault(f, random);
		break;
	case 1:
		halt(f, random);
		break;
	case 2:
		fprintf(f, "arm 2 kill@agent:%s\nkill 2\nsettle\nreplace\nkill 1\nsettle\nreplace\n",
			armed[draw(random, 7)]);
		break;
	case 3:
		fprintf(f, "kill any\nwait 0ms..40ms\nstart\nsettle\nreplace\n");
		break;
	case 4:
		change_size(f, random, shape);
		break;
	default:
		death(f, random, false);
		fprintf(f, "settle\nreplace\n");
	}
	fprintf(f, "wait 0ms..50ms\n");
}

static struct shape settings(FILE *f, uint64_t *random)
{
	struct shape shape = { 4 + (int)draw(random, 3), 1 };

	fprintf(f, "ranks %d\n", shape.ranks);
	if (draw(random, 3) == 0)
		fprintf(f, "set COVEY_TRANSPORT tcp\n");
	if (draw(random, 4) == 0) {
		shape.groups = 2;
		fprintf(f, "groups 2 of 3\n");
	}
	if (draw(random, 4) == 0)
		fprintf(f, "bytes 8 65536 1000000\n");
	if (draw(random, 4) == 0)
		fprintf(f, "losses fail\n");
	if (draw(random, 4) == 0)
		fprintf(f, "set COVEY_UNDO_BYTES 100000\n");
	fprintf(f, "handles\nmistakes %d\nmasks %d\n", 20 << draw(random, 4), 2 << draw(random, 4));
	return shape;
}

char *chaos_plan_random(uint64_t seed)
{
	uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	char *text = NULL;
	struct shape shape;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	if (!f)
		return NULL;
	for (int i = 0; i < 8; i++) /* a small seed has few bits to begin with */
		draw(&random, 2);
	shape = settings(f, &random);
	for (int i = 0; i < PIECES; i++)
		piece(f, &random, &shape);
	fclose(f);
	return text;
}
