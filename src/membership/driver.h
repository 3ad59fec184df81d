/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver turns the actions of the pure group state machine into calls of the seam, the store and
 * the observer. It owns a queue, so that these may post events from inside a call. It reads no clock:
 * the agent's thread drives it with real time, the simulator with virtual time.
 *
 * Life: cvy_driver_init, set `store` when it is open (calls made before fail with COVEY_ERR_STORE),
 * then cvy_driver_post for each event. Post an API JOIN to begin. Post a TICK when
 * cvy_driver_timer() is reached. After `ended` is set the driver does nothing.
 *
 * The owner turns a reply of the store into CVY_EV_REPLY, a notice into CVY_EV_NOTICE (text: the message),
 * up and down into CVY_EV_STORE_UP and CVY_EV_STORE_DOWN (text: cause; err AUTH, VERSION or INVAL when
 * it will not be retried).
 *
 * Retire: while this rank is marked `retire` (cvy_group_retiring) the driver calls seam->retire at every
 * event: the engine enters no further operation and reports when every member has what this rank completed.
 * Then, or after CVY_DRAIN_MS, the driver posts API LEAVE (id 0) for itself.
 */
#ifndef CVY_DRIVER_H
#define CVY_DRIVER_H

#include "event_queue.h"
#include "group.h"
#include "membership.h"

#define CVY_DRAIN_MS 10000 /* longest wait of a retired rank for the others */

struct cvy_driver {
	struct cvy_group_state *group; /* owned */
	const struct cvy_seam *seam;
	struct cvy_store *store; /* the owner's, NULL while there is none */
	struct cvy_observer observer;
	unsigned views; /* times that the observer was told of one */
	struct cvy_errbox *box;
	/* enum cvy_proc_found of the process at @host and @addr, set by the owner; NULL: no process can be looked up */
	int (*find)(void *ctx, const char *host, const char *addr);
	void *find_ctx;
	int ended;				     /* COVEY_ERR_* once over */
	uint64_t now_ns;			     /* of the event being handled */
	uint64_t retire_deadline_ns, retire_look_ns; /* 0: not retiring */
	uint64_t stat_ns;			     /* when the kinds of the links are read again */
	struct cvy_event_queue queue;
	int draining;
	struct cvy_actions actions;
};

/* 0 or COVEY_ERR_NOMEM. @args is copied. */
int cvy_driver_init(struct cvy_driver *driver, const struct cvy_group_args *args, const struct cvy_seam *seam,
		    const struct cvy_observer *observer, struct cvy_errbox *box, uint64_t now_ns);
void cvy_driver_clear(struct cvy_driver *driver);

/* Copies the event, with the data it points to, into the queue and drains that, unless it is being drained. */
void cvy_driver_post(struct cvy_driver *driver, const struct cvy_event *event, uint64_t now_ns);

/* Latest time for the next TICK; CVY_NEVER: none is needed. */
uint64_t cvy_driver_timer(const struct cvy_driver *driver);

#endif
