/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of events that wait for the thread that handles them. Any thread may push. An event that comes only once must
 * not be lost, so some wait without memory of their own.
 */
#ifndef CVY_EVENT_QUEUE_H
#define CVY_EVENT_QUEUE_H

#include "event.h"

#include <pthread.h>

#define CVY_EVENT_QUEUE_MAX 65536 /* waiting events; more are dropped */
#define CVY_EVENT_SPARES 16	  /* events without fields or body that can wait without memory */

struct cvy_event_item {
	struct cvy_event_item *next;
	struct cvy_event event; /* its pointers point into the bytes behind this struct, or to `text` */
	uint64_t now_ns;
	char text[160]; /* of a spare item: may be cut */
};

struct cvy_event_queue {
	pthread_mutex_t lock;
	struct cvy_event_item *first, *last;
	struct cvy_event_item *spare; /* those of spares[] that are free, linked by next */
	struct cvy_event_item spares[CVY_EVENT_SPARES];
	int queued;
};

void cvy_event_queue_init(struct cvy_event_queue *queue);
void cvy_event_queue_clear(struct cvy_event_queue *queue);
/* Copies the event, with the data that it points to. 0 or COVEY_ERR_NOMEM. */
int cvy_event_queue_push(struct cvy_event_queue *queue, const struct cvy_event *event, uint64_t now_ns);
/* The first, NULL: none. The caller gives it back. */
struct cvy_event_item *cvy_event_queue_pop(struct cvy_event_queue *queue);
void cvy_event_queue_give_back(struct cvy_event_queue *queue, struct cvy_event_item *item);

#endif
