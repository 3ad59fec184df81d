/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder: the last actions of a member, in memory that others can read while it hangs or is stopped.
 *
 * Each handle has one such page, a memfd named covey-flight. Users that may inspect the process find it in
 * /proc/PID/fd; it ends with the process. With COVEY_FLIGHT it is a file of that directory instead, which remains
 * after a death, and which its process locks while it lives. Only the owner writes. Readers may see a page in the middle of a change: they compare seq before and
 * after.
 */
#ifndef CVY_FLIGHT_H
#define CVY_FLIGHT_H

#include <stdint.h>

#define CVY_FLIGHT_MAGIC 0x3467696c66766373ull /* changes with the layout */
#define CVY_FLIGHT_OPS 256
#define CVY_FLIGHT_EVENTS 64
#define CVY_FLIGHT_KINDS 16
#define CVY_FLIGHT_NAME "covey-flight"
#define CVY_FLIGHT_END ".flight"
#define CVY_BEAT_TEXT 192 /* room for the numbers of a beat (metrics.h), of at most 20 characters each */

enum cvy_flight_state { CVY_FLIGHT_NONE, CVY_FLIGHT_POSTED, CVY_FLIGHT_DECIDED };

struct cvy_flight_op { /* one cache line; operation seq is at seq % CVY_FLIGHT_OPS */
	uint64_t seq;
	uint64_t bytes;
	uint64_t posted_ns; /* CLOCK_MONOTONIC at the agent's last beat: up to a beat early */
	uint64_t wait_ns;   /* 0: it never waited */
	uint32_t kind;	    /* into cvy_flight.kind */
	uint32_t epoch;
	int32_t status;
	uint32_t state; /* enum cvy_flight_state; stored last */
	uint64_t size;
	uint64_t spare;
};

struct cvy_flight_event {
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	int32_t kind;	  /* enum covey_event_kind */
	int32_t rank;
	uint32_t epoch, spare;
	char cause[104];
};

struct cvy_flight {
	uint64_t magic;
	int32_t pid, rank; /* rank -1: not known yet */
	uint64_t inc;
	char group[72], host[128];
	char kind[CVY_FLIGHT_KINDS][16]; /* names of operations */

	/* written by the agent */
	uint64_t clock_ns __attribute__((aligned(64))); /* CLOCK_MONOTONIC at its last beat */
	uint32_t epoch;
	uint32_t active; /* 1: the view of epoch is active */
	uint32_t members, pending;
	uint64_t events; /* counts up; event n is at n % CVY_FLIGHT_EVENTS */
	uint64_t views, suspicions, store_lost;
	uint32_t store_up, ended;
	int32_t awaited; /* rank that the oldest operation or message under way waits for, -1: none; once a second */
	uint64_t awaited_ns; /* its wait so far, 0: none */

	/* written by the thread that steps operations */
	uint64_t posted __attribute__((aligned(64))); /* last seq posted */
	uint64_t decided;			      /* last seq decided */
	uint64_t failed, waited, waited_ns;
	uint64_t count[CVY_FLIGHT_KINDS], bytes[CVY_FLIGHT_KINDS]; /* decided operations */

	struct cvy_flight_op op[CVY_FLIGHT_OPS] __attribute__((aligned(64)));
	struct cvy_flight_event event[CVY_FLIGHT_EVENTS];
};

#endif
