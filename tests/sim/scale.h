/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lean world for very many members: real drivers and state machines, the real script of the store, no engines (a
 * freeze, a repair and an ADMIT are answered at once) and nothing that fails but processes. Time is virtual
 * and comes from two places alone: every message takes LATENCY_US, and the store serves one call after the other.
 */
#ifndef SCALE_H
#define SCALE_H

#include "driver.h"
#include "store_memory.h"

/*
 * What is assumed. The costs of the store are those of Redis 7.0 on one core of a 2.x GHz virtual machine, from
 * tests/bench/store: a call that touches 20 fields takes about 30 us, one that reads 5000 about 4 ms. A notice or a
 * reply is one write to a socket.
 */
#define LATENCY_US 50.0	 /* one way, between any two processes, the store too */
#define CALL_US 25.0	 /* of a call of the store */
#define FIELD_US 0.6	 /* of a field that a script reads or writes */
#define NOTICE_US 2.0	 /* of a notice, for every process that hears it */
#define KBYTE_US 0.5	 /* of a kilobyte of reply */
#define ROBUST_US 60.0	 /* until the processes of its host see a death: that is proof */
#define BROKEN_US 1000.0 /* until all others see its links break: that is suspicion */
#define HOST_RANKS 8
#define QUICK 16 /* a store that is made quick is so many times faster */

enum scale_call { SC_REGISTER, SC_READY, SC_OPEN, SC_REPORT, SC_DECIDE, SC_ACK, SC_PEEK, SC_BEAT, SC_OTHER, SC_CALLS };

extern const char *const scale_call_names[SC_CALLS];

struct scale_count {
	uint64_t calls[SC_CALLS], most_calls; /* of one member */
	uint64_t commands, fields, request_bytes, reply_bytes, most_bytes, notices, messages, views;
	uint64_t busy_ns; /* of the store */
};

struct scale_world;

struct scale_world *scale_open(int ranks,
			       int max_ranks); /* @ranks founders: the first scale_settle() is until they have formed */
void scale_close(struct scale_world *w);

void scale_quick(struct scale_world *w, int quick); /* for what is not measured */
void scale_kill(struct scale_world *w, int rank);
void scale_join(struct scale_world *w, int rank);
/* Runs until every live process is an admitted member of one active view. Virtual ns that took; 0: it does not end. */
uint64_t scale_settle(struct scale_world *w, struct scale_count *count);
uint64_t scale_events(const struct scale_world *w);

#endif
