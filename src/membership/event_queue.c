/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of events (event_queue.h). One block holds an event and all data that it points to. */
#include "event_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *put_bytes(char **at, const void *from, size_t bytes)
{
	char *to = *at;

	memcpy(to, from, bytes);
	*at += bytes;
	return to;
}

static struct cvy_event_item *copy(const struct cvy_event *e)
{
	size_t argc = e->argv && e->argc > 0 ? (size_t)e->argc : 0, bytes = argc * sizeof(char *);
	struct cvy_event_item *item;
	const char **argv;
	char *at;

	for (size_t i = 0; i < argc; i++)
		bytes += strlen(e->argv[i]) + 1;
	bytes += e->text ? strlen(e->text) + 1 : 0;
	bytes += e->msg.body ? e->msg.bytes : 0;
	item = malloc(sizeof(*item) + bytes);
	if (!item)
		return NULL;
	item->event = *e;
	argv = (const char **)(item + 1);
	at = (char *)(argv + argc);
	item->event.argc = (int)argc;
	item->event.argv = argv;
	for (size_t i = 0; i < argc; i++)
		argv[i] = put_bytes(&at, e->argv[i], strlen(e->argv[i]) + 1);
	if (e->text)
		item->event.text = put_bytes(&at, e->text, strlen(e->text) + 1);
	if (e->msg.body)
		item->event.msg.body = put_bytes(&at, e->msg.body, e->msg.bytes);
	return item;
}

/*
 * For events when there is no memory. An engine says only once that it froze or fenced: if that were lost, the whole
 * group would wait. A reply that cannot be kept counts as lost and its call is repeated; of a notice the first line is
 * enough.
 */
static struct cvy_event_item *spare(struct cvy_event_queue *q, const struct cvy_event *e)
{
	struct cvy_event_item *item = e->msg.body ? NULL : q->spare;
	const char *text = e->text;

	if (!item)
		return NULL;
	q->spare = item->next;
	item->event = *e;
	if (e->argc) {
		item->event.argc = 0;
		item->event.argv = NULL;
		item->event.err = COVEY_ERR_TIMEOUT;
		text = "no memory for the reply of the store";
	}
	if (text) {
		int line = e->kind == CVY_EV_NOTICE ? (int)strcspn(text, "\n") : (int)strlen(text);

		snprintf(item->text, sizeof(item->text), "%.*s", line, text);
		item->event.text = item->text;
	}
	return item;
}

int cvy_event_queue_push(struct cvy_event_queue *q, const struct cvy_event *e, uint64_t now_ns)
{
	struct cvy_event_item *item =
		__atomic_load_n(&q->queued, __ATOMIC_RELAXED) < CVY_EVENT_QUEUE_MAX ? copy(e) : NULL;

	pthread_mutex_lock(&q->lock);
	if (!item)
		item = spare(q, e);
	if (item) {
		item->next = NULL;
		item->now_ns = now_ns;
		if (q->last)
			q->last->next = item;
		else
			q->first = item;
		q->last = item;
		__atomic_store_n(&q->queued, q->queued + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&q->lock);
	return item ? 0 : COVEY_ERR_NOMEM;
}

struct cvy_event_item *cvy_event_queue_pop(struct cvy_event_queue *q)
{
	struct cvy_event_item *item;

	pthread_mutex_lock(&q->lock);
	item = q->first;
	if (item) {
		q->first = item->next;
		if (!q->first)
			q->last = NULL;
		__atomic_store_n(&q->queued, q->queued - 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&q->lock);
	return item;
}

void cvy_event_queue_give_back(struct cvy_event_queue *q, struct cvy_event_item *item)
{
	if (item < q->spares || item >= q->spares + CVY_EVENT_SPARES) {
		free(item);
		return;
	}
	pthread_mutex_lock(&q->lock);
	item->next = q->spare;
	q->spare = item;
	pthread_mutex_unlock(&q->lock);
}

void cvy_event_queue_init(struct cvy_event_queue *q)
{
	memset(q, 0, sizeof(*q));
	pthread_mutex_init(&q->lock, NULL);
	for (int i = 0; i < CVY_EVENT_SPARES; i++)
		cvy_event_queue_give_back(q, q->spares + i);
}

void cvy_event_queue_clear(struct cvy_event_queue *q)
{
	struct cvy_event_item *item;

	while ((item = cvy_event_queue_pop(q)))
		cvy_event_queue_give_back(q, item);
	pthread_mutex_destroy(&q->lock);
}
