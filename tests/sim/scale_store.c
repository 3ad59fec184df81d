/* SPDX-License-Identifier: Apache-2.0 */
/* The store of the lean world: the real script, one call after the other, with what each costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scale_world.h"

const char *const scale_call_names[SC_CALLS] = { "register", "ready", "open", "report", "decide",
						 "ack",	     "peek",  "beat", "other" };

static void call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	struct member *m = ((struct endpoint *)store)->m;
	struct scale_world *w = m->w;
	struct request *r = must(malloc(sizeof(*r)));
	int kind = 0;

	while (kind < SC_OTHER && strcmp(scale_call_names[kind], argv[0]) != 0)
		kind++;
	w->total.calls[kind]++;
	m->calls++;
	r->id = id;
	r->from = m;
	r->next = NULL;
	r->argc = argc;
	r->argv = must(malloc((size_t)argc * sizeof(char *)));
	for (int i = 0; i < argc; i++) {
		r->argv[i] = must(strdup(argv[i]));
		w->total.request_bytes += strlen(argv[i]);
	}
	scale_at(w, w->now + us(LATENCY_US), (struct event){ .kind = CALL, .member = m->id, .data = r });
}

static void close_store(struct cvy_store *store)
{
	(void)store;
}

const struct cvy_store_ops scale_store_ops = { .call = call, .close = close_store };

void scale_published(void *ctx, const char *channel, const char *text)
{
	struct scale_world *w = ctx;
	struct notice *n = must(calloc(1, sizeof(*n)));

	(void)channel;
	n->text = must(strdup(text));
	if (w->publishing < 8)
		w->published[w->publishing++] = n;
	else
		abort();
}

static void serve_notices(struct scale_world *w, uint64_t when)
{
	for (int k = 0; k < w->publishing; k++) {
		struct notice *n = w->published[k];

		for (int i = 0; i < w->count; i++) {
			if (!w->member[i]->alive)
				continue;
			n->hearers++;
			scale_at(w, when, (struct event){ .kind = NOTICE, .member = i, .data = n });
		}
		w->total.notices += (uint64_t)n->hearers;
		if (!n->hearers)
			notice_free(n);
	}
	w->publishing = 0;
}

static void request_free(struct request *r)
{
	for (int i = 0; i < r->argc; i++)
		free(r->argv[i]);
	free(r->argv);
	free(r);
}

/* Virtual ns that the call took; its reply and its notices are on their way. */
static uint64_t serve(struct scale_world *w, const struct request *r)
{
	const struct memory_work *work = memory_server_work(w->server);
	struct memory_work was = *work;
	struct reply *reply = must(calloc(1, sizeof(*reply)));
	uint64_t bytes = 0, fields, took;

	memory_server_time(w->server, 1000 + w->now / CVY_MS);
	reply->id = r->id;
	reply->err = memory_server_call(w->server, "scale", r->argc, (const char *const *)r->argv, &reply->got);
	for (int i = 0; i < reply->got.argc; i++)
		bytes += strlen(reply->got.argv[i]);
	if (reply->err)
		fprintf(stderr, "scale: the script failed: %s\n", reply->got.argv[0]);
	fields = work->fields_read - was.fields_read + work->fields_written - was.fields_written;
	took = us(CALL_US + FIELD_US * (double)fields + KBYTE_US * (double)bytes / 1000 +
		  NOTICE_US * (double)(w->publishing * w->alive));
	if (w->quick)
		took /= QUICK;
	w->total.commands += work->commands - was.commands;
	w->total.fields += fields;
	w->total.reply_bytes += bytes;
	r->from->bytes += bytes;
	w->total.busy_ns += took;
	scale_at(w, w->now + took + us(LATENCY_US),
		 (struct event){ .kind = REPLY, .member = r->from->id, .data = reply });
	serve_notices(w, w->now + took + us(LATENCY_US));
	return took;
}

/* A script runs when its turn comes: thousands of replies made at once, each with a whole record, are gigabytes. */
void scale_store_free(struct scale_world *w)
{
	struct request *r = w->first;

	w->serving = r != NULL;
	if (!r)
		return;
	w->first = r->next;
	scale_at(w, w->now + serve(w, r), (struct event){ .kind = STORE_FREE });
	request_free(r);
}

void scale_arrived(struct scale_world *w, struct request *r)
{
	if (!w->first)
		w->last = &w->first;
	*w->last = r;
	w->last = &r->next;
	if (!w->serving)
		scale_store_free(w);
}

void scale_store_close(struct scale_world *w)
{
	while (w->first) {
		struct request *r = w->first;

		w->first = r->next;
		request_free(r);
	}
}
