/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the fields of a group's hash, as a peek from outside returns them. Unknown fields are skipped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "admin.h"
#include "clean.h"

void admin_group_clear(struct admin_group *group)
{
	struct timespec t;

	for (int r = 0; r < COVEY_MAX_RANKS; r++)
		free(group->rank[r].links);
	memset(group, 0, sizeof(*group));
	clock_gettime(CLOCK_REALTIME, &t);
	group->now_ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void copy(char *to, size_t bytes, const char *from)
{
	snprintf(to, bytes, "%s", from);
}

/* The name in a member's host, `BOOT.NETWORK.PIDS.NAME`: what people know it by. */
const char *admin_host_name(const char *host)
{
	const char *at = host;

	for (int dots = 0; dots < 3; dots++, at++)
		if (!(at = strchr(at, '.')))
			return host;
	return *at ? at : host;
}

/* `inc from addr host` */
static void read_member(struct admin_member *m, const char *value)
{
	char from[24] = "";

	if (sscanf(value, "%" SCNu64 " %23s %*s %127s", &m->inc, from, m->host) < 2)
		return;
	m->member = true;
	m->pending = !strcmp(from, "-");
	m->from = strtoull(from, NULL, 10);
}

/* `inc nonce addr host epoch`; epoch 0: not ready */
static void read_joiner(struct admin_member *m, const char *value)
{
	uint64_t epoch = 0;

	if (sscanf(value, "%" SCNu64 " %*s %*s %127s %" SCNu64, &m->joiner_inc, m->joiner_host, &epoch) < 2)
		return;
	m->joiner = true;
	m->joiner_ready = epoch != 0;
}

/* `,NUMBER,NUMBER,...`; members of another version report less or more */
static void read_numbers(struct admin_member *m, const char *at)
{
	char *end;

	for (m->numbers = 0; *at == ',' && m->numbers < CVY_BEAT_NUMBERS; at = end)
		m->number[m->numbers++] = strtoll(at + 1, &end, 10);
}

/* `ms phase;done,numbers;links`, the links as `0:shm,1:tcp`; new members report less */
static void read_beat(struct admin_member *m, const char *value)
{
	const char *done, *links;
	char *end;

	m->beat_ms = strtoull(value, &end, 10);
	done = strchr(end, ';');
	if (!done)
		return;
	m->done = strtoull(done + 1, &end, 10);
	m->done_told = true;
	read_numbers(m, end);
	links = strchr(done + 1, ';');
	if (links && links[1] && !m->links)
		m->links = strdup(links + 1);
}

static void read_rank(struct admin_member *m, char kind, const char *value)
{
	switch (kind) {
	case 'm':
		read_member(m, value);
		break;
	case 'j':
		read_joiner(m, value);
		break;
	case 't':
		read_beat(m, value);
		break;
	case 'e':
		sscanf(value, "%*s %7s", m->mark);
		break;
	case 'w':
		sscanf(value, "%7s", m->wanted);
		break;
	case 'x':
		sscanf(value, "%*s %*s %63[^\n]", m->accused);
		break;
	case 'd':
		sscanf(value, "%*s %*s %31s", m->proven);
		break;
	case 'q':
		sscanf(value, "%*s %11s", m->left);
		break;
	case 'r':
		sscanf(value, "%*s %*s %*s %*s %*s %7s", m->flags);
		break;
	default:
		break;
	}
}

static bool read_text(struct admin_group *g, const char *key, const char *value)
{
	const struct {
		const char *key;
		char *to;
		size_t bytes;
	} field[] = {
		{ "status", g->status, sizeof(g->status) }, { "why", g->why, sizeof(g->why) },
		{ "gid", g->gid, sizeof(g->gid) },	    { "vid", g->vid, sizeof(g->vid) },
		{ "ph", g->phase, sizeof(g->phase) },	    { "life", g->life, sizeof(g->life) },
		{ "policy", g->policy, sizeof(g->policy) },
	};

	for (size_t i = 0; i < sizeof(field) / sizeof(*field); i++) {
		if (!strcmp(key, field[i].key)) {
			copy(field[i].to, field[i].bytes, value);
			return true;
		}
	}
	return false;
}

static void read_pair(struct admin_group *g, const char *key, const char *value)
{
	unsigned long rank;
	char *end;

	if (read_text(g, key, value))
		return;
	if (!strcmp(key, "epoch"))
		g->epoch = strtoull(value, NULL, 10);
	else if (!strcmp(key, "base"))
		g->base = strtoull(value, NULL, 10);
	else if (!strcmp(key, "size"))
		g->size = (int)strtol(value, NULL, 10);
	else if (!strcmp(key, "max"))
		g->max_ranks = (int)strtol(value, NULL, 10);
	if (key[0] == '\0' || key[1] != ':')
		return;
	rank = strtoul(key + 2, &end, 10);
	if (end != key + 2 && !*end && rank < COVEY_MAX_RANKS)
		read_rank(&g->rank[rank], key[0], value);
}

/* What a store says may be anything, and is shown to people. */
void admin_group_pair(void *ctx, const char *key, const char *value)
{
	char *text = strdup(value);

	if (text)
		read_pair(ctx, key, cvy_clean(text));
	free(text);
}
