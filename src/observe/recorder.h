/* SPDX-License-Identifier: Apache-2.0 */
/* Writes of engine and handle into the flight recorder (flight.h). All take a NULL page for "not recorded". */
#ifndef CVY_RECORDER_H
#define CVY_RECORDER_H

#include "engine.h"
#include "flight.h"

struct cvy_recorder; /* the page and the file behind it */

/* NULL: it cannot be made, which is logged; the group works without it. */
struct cvy_recorder *cvy_recorder_open(const struct cvy_config *config, const char *host);
void cvy_recorder_close(struct cvy_recorder *recorder); /* removes its file; NULL is fine */
struct cvy_flight *cvy_recorder_page(struct cvy_recorder *recorder);

/* Agent's thread. */
void cvy_flight_identity(struct cvy_flight *flight, int rank, uint64_t inc);
void cvy_flight_event(struct cvy_flight *flight, const struct covey_event *event);
void cvy_flight_view(struct cvy_flight *flight, const struct cvy_view *view, int active);

/* One writer at a time, read by others: plain code on x86. */
static inline void cvy_flight_add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* Under the engine's lock: a few stores into one line each, no clock. */
static inline void cvy_flight_posted(struct cvy_flight *flight, const struct cvy_op *op)
{
	struct cvy_flight_op *to;

	if (!flight || !op->seq)
		return;
	to = &flight->op[op->seq % CVY_FLIGHT_OPS];
	__atomic_store_n(&to->state, CVY_FLIGHT_NONE, __ATOMIC_RELAXED);
	__atomic_store_n(&to->seq, op->seq, __ATOMIC_RELEASE);
	to->kind = (uint32_t)(op->call >> 60);
	to->bytes = op->bytes;
	to->posted_ns = __atomic_load_n(&flight->clock_ns, __ATOMIC_RELAXED);
	to->wait_ns = 0;
	__atomic_store_n(&to->state, CVY_FLIGHT_POSTED, __ATOMIC_RELEASE);
	__atomic_store_n(&flight->posted, op->seq, __ATOMIC_RELAXED);
}

static inline void cvy_flight_decided(struct cvy_flight *flight, const struct cvy_op *op)
{
	struct cvy_flight_op *to;

	if (!flight || !op->seq)
		return;
	to = &flight->op[op->seq % CVY_FLIGHT_OPS];
	if (to->seq != op->seq) /* a joiner's first: it had no number when it was posted */
		cvy_flight_posted(flight, op);
	to->wait_ns = op->result.wait_ns;
	to->epoch = op->result.epoch;
	to->status = op->result.status;
	to->size = (uint64_t)op->result.size;
	__atomic_store_n(&to->state, CVY_FLIGHT_DECIDED, __ATOMIC_RELEASE);
	__atomic_store_n(&flight->decided, op->seq, __ATOMIC_RELAXED);
	cvy_flight_add(&flight->count[to->kind], 1);
	cvy_flight_add(&flight->bytes[to->kind], to->bytes);
	if (op->result.status)
		cvy_flight_add(&flight->failed, 1);
	if (op->result.wait_ns) {
		cvy_flight_add(&flight->waited, 1);
		cvy_flight_add(&flight->waited_ns, op->result.wait_ns);
	}
}

#endif
