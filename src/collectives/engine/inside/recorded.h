/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes of the engine into the flight recorder (flight.h): a few stores into one line each, no clock. Under the engine's
 * lock. A page may be NULL: "not recorded".
 */
#ifndef CVY_RECORDED_H
#define CVY_RECORDED_H

#include "operation.h"
#include "recorder.h"

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
