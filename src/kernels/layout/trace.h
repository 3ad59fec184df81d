/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace of kernels: what a build with -DCOVEY_TRACE=ON records if COVEY_TRACE names a file. Each lane has a ring of
 * words in device memory: how many events there were in all, and then the last CVY_TRACE_EVENTS of them, four words each:
 * start, duration, tag and id. Times are cycles of the processor that the CTA is on. A CTA brackets its events by two that
 * have both clocks, so the host can make ns of them all (gpu_trace.cu).
 */
#ifndef CVY_TRACE_H
#define CVY_TRACE_H

#include <stdint.h>

#ifdef CVY_TRACE
#define CVY_TRACES 1
#else
#define CVY_TRACES 0
#endif

#ifndef CVY_TRACE_EVENTS
#define CVY_TRACE_EVENTS 1024 /* of a lane: a power of two */
#endif
#define CVY_TRACE_WORDS (1 + 4 * CVY_TRACE_EVENTS) /* of a lane */

/* The rows of a lane in the picture, and who records there: events of one row never overlap, unless one is in the other. */
enum cvy_trace_row {
	CVY_TRACE_LANE, /* the first thread of the CTA */
	CVY_TRACE_PUTS, /* the last warp, which puts bulk steps while the others go on */
	CVY_TRACE_FROM	/* one row for each source: the warp that waits for it */
};

/* X(tag, name, row, what the id is) */
#define CVY_TRACE_LIST(X) \
	X(PLAN, "plan", LANE, "step") \
	X(PREPARE, "prepare", LANE, "step") \
	X(SEND, "send", LANE, "step") \
	X(HEAR, "hear", LANE, "step") \
	X(TAKE, "take", LANE, "step") \
	X(ADD, "add", LANE, "step") \
	X(PARK, "park", LANE, "op") \
	X(AGAIN, "again", LANE, "lane") \
	X(PUT, "put", PUTS, "step") \
	X(TELL, "tell", PUTS, "step") \
	X(WAIT, "wait", FROM, "rank")

enum cvy_trace_tag {
	CVY_TRACE_BEGIN, /* %globaltimer in place of a start, clock64() of a duration; the id: CVY_TRACE_WHAT */
	CVY_TRACE_END,	 /* the same, without an id */
#define CVY_TRACE_TAG(tag, name, row, id) CVY_TRACE_##tag,
	CVY_TRACE_LIST(CVY_TRACE_TAG)
#undef CVY_TRACE_TAG
};

/* What a CTA does: kind and phases of the launch, the rank, the number of the operation. */
#define CVY_TRACE_WHAT(kind, phases, rank, op) \
	((uint64_t)(op) << 24 | (uint64_t)(rank) << 16 | (uint64_t)(phases) << 8 | (uint64_t)(kind))

#endif
