/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a group: tables for people, JSON with stable names for programs. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"

/* The last member that leaves closes a group: then the other members of its last view have left too, or died. */
const char *admin_state(const struct admin_group *g, int r)
{
	const struct admin_member *m = &g->rank[r];

	if (m->member && !strcmp(g->phase, "closed"))
		return m->left[0] ? m->left : "dead";
	if (m->member)
		return m->pending ? "pending" : "active";
	if (m->joiner)
		return "joiner";
	return r < g->size ? "hole" : NULL;
}

/* The operations that it has completed: at least those before the active view, which a beat reports only later. */
bool admin_done(const struct admin_group *g, const struct admin_member *m, uint64_t *done)
{
	*done = m->done;
	if (!m->member || m->pending || !m->beat_ms)
		return false;
	if (!strcmp(g->phase, "run") && g->base && *done < g->base - 1)
		*done = g->base - 1;
	return m->done_told || *done;
}

uint64_t admin_beat_age_ms(const struct admin_group *g, const struct admin_member *m)
{
	return g->now_ms > m->beat_ms ? g->now_ms - m->beat_ms : 0;
}

void admin_notes(const struct admin_member *m, FILE *to)
{
	if (m->mark[0])
		fprintf(to, "  %s asked", m->mark);
	if (m->wanted[0])
		fprintf(to, "  %s asked", m->wanted);
	if (m->accused[0])
		fprintf(to, "  accused: %s", m->accused);
	if (m->proven[0] && strcmp(m->proven, "left"))
		fprintf(to, "  proven dead: %s", m->proven);
	if (m->member && m->joiner)
		fprintf(to, "  a joiner waits");
}

static void print_rank(const struct admin_group *g, int r, const char *state)
{
	const struct admin_member *m = &g->rank[r];
	char inc[24] = "-", beat[24] = "-", done[24] = "-";
	uint64_t seq;

	if (m->member || m->joiner)
		snprintf(inc, sizeof(inc), "%" PRIu64, m->member ? m->inc : m->joiner_inc);
	if (m->member && m->beat_ms)
		snprintf(beat, sizeof(beat), "%.1f s", (double)admin_beat_age_ms(g, m) / 1000.0);
	if (admin_done(g, m, &seq))
		snprintf(done, sizeof(done), "%" PRIu64, seq);
	if (!strcmp(state, "hole") && m->left[0])
		state = m->left;
	printf("%-5d %-8s %-10s %-8s %-10s %s", r, state, inc, beat, done,
	       m->member   ? admin_host_name(m->host)
	       : m->joiner ? admin_host_name(m->joiner_host)
			   : "-");
	admin_notes(m, stdout);
	putchar('\n');
}

void admin_print_status(const struct admin_group *g, const char *name)
{
	printf("group %s  phase %s  epoch %" PRIu64 "  size %d of %d  base %" PRIu64 "  admission %s\n", name, g->phase,
	       g->epoch, g->size, g->max_ranks, g->base, g->policy);
	printf("%-5s %-8s %-10s %-8s %-10s %s\n", "RANK", "STATE", "INC", "BEAT", "DONE", "HOST");
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		const char *state = admin_state(g, r);

		if (state)
			print_rank(g, r, state);
	}
}

/* The kind of the link from a member to @peer, into @kind; false: unknown. */
static bool link_kind(const struct admin_member *m, int peer, char *kind, size_t bytes)
{
	const char *at = m->links;

	while (at && *at) {
		char *end;
		long rank = strtol(at, &end, 10);
		size_t length;

		if (end == at || *end != ':')
			return false;
		length = strcspn(end + 1, ",");
		if (rank == peer) {
			snprintf(kind, bytes, "%.*s", (int)length, end + 1);
			return true;
		}
		at = end[1 + length] ? end + 2 + length : NULL;
	}
	return false;
}

void admin_print_links(const struct admin_group *g)
{
	char kind[16];

	printf("from\\to");
	for (int to = 0; to < COVEY_MAX_RANKS; to++)
		if (g->rank[to].member)
			printf(" %6d", to);
	putchar('\n');
	for (int from = 0; from < COVEY_MAX_RANKS; from++) {
		if (!g->rank[from].member)
			continue;
		printf("%7d", from);
		for (int to = 0; to < COVEY_MAX_RANKS; to++) {
			if (!g->rank[to].member)
				continue;
			if (to == from)
				snprintf(kind, sizeof(kind), "self");
			else if (!link_kind(&g->rank[from], to, kind, sizeof(kind)))
				snprintf(kind, sizeof(kind), "-");
			printf(" %6s", kind);
		}
		putchar('\n');
	}
}

static json_t *json_head(const struct admin_group *g, const char *name)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:s, s:i, s:i, s:I, s:s}", "group", name, "gid", g->gid, "phase",
			 g->phase, "epoch", (json_int_t)g->epoch, "view", g->vid, "size", g->size, "max_ranks",
			 g->max_ranks, "base", (json_int_t)g->base, "admission", g->policy);
}

static void print_json(json_t *json)
{
	if (json && !json_dumpf(json, stdout, JSON_INDENT(2)))
		putchar('\n');
	json_decref(json);
}

static void set_text(json_t *to, const char *key, const char *text)
{
	if (*text)
		json_object_set_new(to, key, json_string(text));
}

static json_t *json_rank(const struct admin_group *g, int r, const char *state)
{
	const struct admin_member *m = &g->rank[r];
	json_t *to = json_pack("{s:i, s:s}", "rank", r, "state", state);
	uint64_t seq;

	if (m->member || m->joiner) {
		json_object_set_new(to, "inc", json_integer((json_int_t)(m->member ? m->inc : m->joiner_inc)));
		set_text(to, "host", m->member ? m->host : m->joiner_host);
	}
	if (m->member && m->beat_ms)
		json_object_set_new(to, "beat_age_ms", json_integer((json_int_t)admin_beat_age_ms(g, m)));
	if (admin_done(g, m, &seq))
		json_object_set_new(to, "done_seq", json_integer((json_int_t)seq));
	set_text(to, "mark", m->mark);
	set_text(to, "wanted", m->wanted);
	set_text(to, "accused", m->accused);
	if (strcmp(m->proven, "left"))
		set_text(to, "proven_dead", m->proven);
	if (!m->member)
		set_text(to, "gone", m->left);
	return to;
}

static json_t *json_status(const struct admin_group *g, const char *name)
{
	json_t *json = json_head(g, name), *ranks = json_array();

	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		const char *state = admin_state(g, r);

		if (state)
			json_array_append_new(ranks, json_rank(g, r, state));
	}
	json_object_set_new(json, "ranks", ranks);
	return json;
}

void admin_json_status(const struct admin_group *g, const char *name)
{
	print_json(json_status(g, name));
}

static void print_line(json_t *json, const char *time)
{
	json_object_set_new(json, "time", json_string(time));
	if (json && !json_dumpf(json, stdout, JSON_COMPACT))
		putchar('\n');
	json_decref(json);
}

void admin_json_look(const struct admin_group *g, const char *name, const char *time)
{
	print_line(json_status(g, name), time);
}

void admin_json_failure(const char *name, const char *time, const char *why)
{
	print_line(json_pack("{s:s, s:s}", "group", name, "error", why), time);
}

void admin_json_links(const struct admin_group *g, const char *name)
{
	json_t *json = json_head(g, name), *links = json_array();
	char kind[16];

	for (int from = 0; from < COVEY_MAX_RANKS; from++) {
		for (int to = 0; g->rank[from].member && to < COVEY_MAX_RANKS; to++) {
			if (to != from && g->rank[to].member && link_kind(&g->rank[from], to, kind, sizeof(kind)))
				json_array_append_new(links, json_pack("{s:i, s:i, s:s}", "from", from, "to", to,
								       "kind", kind));
		}
	}
	json_object_set_new(json, "links", links);
	print_json(json);
}
