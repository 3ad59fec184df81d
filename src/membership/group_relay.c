/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relay: a member that cannot reach the store asks another to make a call for it. The body of RELAY
 * is {id, argc, (length, bytes)*}, of RELAYED {id, err, argc, (length, bytes)*}, little endian.
 */
#include "group_state.h"

#include <stdlib.h>

#define FIELDS_MAX 65536

struct body {
	uint8_t *data;
	size_t bytes, at;
	int bad;
};

static void put(struct body *b, const void *data, size_t bytes)
{
	if (b->data)
		memcpy(b->data + b->at, data, bytes);
	b->at += bytes;
}

static void get(struct body *b, void *data, size_t bytes)
{
	if (b->bad || b->bytes - b->at < bytes) {
		b->bad = 1;
		memset(data, 0, bytes);
		return;
	}
	memcpy(data, b->data + b->at, bytes);
	b->at += bytes;
}

static void put_all(struct body *b, uint64_t id, int32_t err, int argc, const char *const *argv)
{
	uint32_t n = (uint32_t)argc;

	put(b, &id, sizeof(id));
	put(b, &err, sizeof(err));
	put(b, &n, sizeof(n));
	for (int i = 0; i < argc; i++) {
		uint32_t length = (uint32_t)strlen(argv[i]);

		put(b, &length, sizeof(length));
		put(b, argv[i], length);
	}
}

static void send(struct cvy_group_state *g, int type, int rank, uint64_t inc, uint64_t id, int err, int argc,
		 const char *const *argv)
{
	struct body b = { NULL, 0, 0, 0 };
	struct cvy_action *a;

	put_all(&b, id, err, argc, argv);
	if (b.at > CVY_MSG_MAX)
		return;
	b.data = malloc(b.at);
	if (!b.data)
		return;
	b.at = 0;
	put_all(&b, id, err, argc, argv);
	a = cvy_do(g, CVY_DO_SEND, rank);
	a->inc = inc;
	a->type = type;
	a->body = b.data;
	a->bytes = (uint32_t)b.at;
}

/* Is its link up, and the member not known to be dead? The link of a dead member stays up for some milliseconds. */
int cvy_relay_can(const struct cvy_group_state *g, int rank)
{
	const struct cvy_view *v = g->view;
	uint64_t inc = v ? v->member[rank].inc : 0;

	return inc && covey_mask_has(&v->members, rank) && g->peer[rank].up && g->peer[rank].inc == inc &&
	       g->peer[rank].proven != inc;
}

/* Members with a link, in turn; the last helper as long as it answers. A negative `helper` names one that did not. */
int cvy_relay_helper(struct cvy_group_state *g)
{
	const struct cvy_view *v = g->view;
	int last = g->helper < 0 ? -1 - g->helper : g->helper;

	if (!v)
		return -1;
	for (int i = g->helper < 0; i <= v->max_ranks; i++) {
		int r = (last + i) % v->max_ranks;

		if (r == g->rank || !cvy_relay_can(g, r))
			continue;
		g->helper = r;
		return r;
	}
	return -1;
}

void cvy_relay_send(struct cvy_group_state *g, int rank, uint64_t id, int argc, const char *const *argv)
{
	send(g, CVY_MSG_RELAY, rank, g->peer[rank].inc, id, 0, argc, argv);
}

/* Strings of a body as argv, in one block with their bytes; NULL: the body is malformed. */
static char **strings(struct body *b, uint32_t *count)
{
	size_t start, total = 0;
	char **argv, *at;

	get(b, count, sizeof(*count));
	if (b->bad || *count > FIELDS_MAX)
		return NULL;
	start = b->at;
	for (uint32_t i = 0; i < *count && !b->bad; i++) {
		uint32_t length;

		get(b, &length, sizeof(length));
		if (b->bad || length > b->bytes - b->at)
			return NULL;
		b->at += length;
		total += length + 1;
	}
	argv = malloc((*count + 1) * sizeof(*argv) + total);
	if (b->bad || !argv) {
		free(argv);
		return NULL;
	}
	at = (char *)(argv + *count + 1);
	b->at = start;
	for (uint32_t i = 0; i < *count; i++) {
		uint32_t length;

		get(b, &length, sizeof(length));
		get(b, at, length);
		at[length] = 0;
		argv[i] = at;
		at += length + 1;
	}
	return argv;
}

static void help(struct cvy_group_state *g, const struct cvy_msg *msg, uint64_t theirs, uint32_t argc, char **argv)
{
	struct relay *free_one = NULL;

	for (int i = 0; i < CVY_RELAYS_MAX && !free_one; i++)
		if (!g->relay[i].id)
			free_one = &g->relay[i];
	if (!g->store_up || !free_one || cvy_do_call(g, g->next_id + 1, (int)argc, (const char *const *)argv)) {
		send(g, CVY_MSG_RELAYED, msg->rank, msg->inc, theirs, COVEY_ERR_STORE, 0, NULL);
		return;
	}
	free_one->id = ++g->next_id;
	free_one->theirs = theirs;
	free_one->rank = msg->rank;
	free_one->inc = msg->inc;
}

void cvy_relay_msg(struct cvy_group_state *g, const struct cvy_msg *msg)
{
	struct body b = { (uint8_t *)(uintptr_t)msg->body, msg->bytes, 0, 0 };
	uint64_t id;
	int32_t err;
	uint32_t argc = 0;
	char **argv;

	if (!cvy_group_member(g, msg->rank, msg->inc))
		return;
	get(&b, &id, sizeof(id));
	get(&b, &err, sizeof(err));
	argv = strings(&b, &argc);
	if (!argv)
		return;
	if (msg->type == CVY_MSG_RELAY) {
		if (argc)
			help(g, msg, id, argc, argv);
	} else {
		struct cvy_event reply = { .kind = CVY_EV_REPLY,
					   .rank = -1,
					   .id = id,
					   .err = err,
					   .argc = (int)argc,
					   .argv = (const char *const *)argv };

		if (err)
			g->helper = -1 - msg->rank;
		for (int s = 0; s < CALLS; s++) /* only replies to calls that were relayed */
			if (g->call[s].id == id && g->call[s].until_ns != CVY_NEVER) {
				cvy_store_reply(g, &reply);
				break;
			}
	}
	free(argv);
}

int cvy_relay_reply(struct cvy_group_state *g, const struct cvy_event *event)
{
	for (int i = 0; i < CVY_RELAYS_MAX; i++) {
		struct relay *r = &g->relay[i];

		if (!event->id || r->id != event->id)
			continue;
		r->id = 0;
		if (cvy_group_member(g, r->rank, r->inc))
			send(g, CVY_MSG_RELAYED, r->rank, r->inc, r->theirs, event->err, event->argc, event->argv);
		return 1;
	}
	return 0;
}
