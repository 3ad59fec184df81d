/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of one handle in Prometheus' text form, served from the agent's loop to askers at a socket. The numbers are
 * those of the flight recorder. The list is the registry: the answers and docs/operate/metrics.md are made from it.
 */
#ifndef CVY_METRICS_H
#define CVY_METRICS_H

#include <stdio.h>

#include "config.h"
#include "flight.h"
#include "loop.h"

/* X(name, type, "help", value): value is an expression of `f`, the page, as a double */
#define CVY_METRIC_LIST(X) \
	X("covey_epoch", "gauge", "Number of the view that this member has learned last", f->epoch) \
	X("covey_active", "gauge", "1 while that view is active, 0 while a change of the members is under way", \
	  f->active) \
	X("covey_members", "gauge", "Admitted ranks of the view", f->members) \
	X("covey_pending", "gauge", "Joiners that wait for a safe point", f->pending) \
	X("covey_incarnation", "gauge", "Which process holds the rank: grows with every replacement", f->inc) \
	X("covey_store_up", "gauge", "1 while the store answers this member", f->store_up) \
	X("covey_views_total", "counter", "Views that became active", f->views) \
	X("covey_suspicions_total", "counter", "Times that a rank was suspected here", f->suspicions) \
	X("covey_store_lost_total", "counter", "Times that the store did not answer any more", f->store_lost) \
	X("covey_operations_posted", "gauge", "Number of the last operation that was called", f->posted) \
	X("covey_operations_decided", "gauge", "Number of the last operation whose outcome is fixed here", f->decided) \
	X("covey_failed_operations_total", "counter", "Operations that ended with an error", f->failed) \
	X("covey_waited_operations_total", "counter", \
	  "Operations that were not done at once and whose wait was timed", f->waited) \
	X("covey_waited_seconds_total", "counter", "Their time from the call, or the wait, to the outcome", \
	  (double)f->waited_ns / 1e9) \
	X("covey_awaited_rank", "gauge", \
	  "Rank that the oldest operation or message under way waits for, -1: none. Updated once a second. " \
	  "Operations on devices are not counted", \
	  f->awaited) \
	X("covey_awaited_seconds", "gauge", "How long that operation or message has waited", \
	  (double)f->awaited_ns / 1e9)

static inline uint64_t cvy_metrics_sum(const uint64_t of[CVY_FLIGHT_KINDS])
{
	uint64_t sum = 0;

	for (int k = 0; k < CVY_FLIGHT_KINDS; k++)
		sum += of[k];
	return sum;
}

/* With a label kind, the operation's name: X(name, type, "help", value of kind k) */
#define CVY_METRIC_KIND_LIST(X) \
	X("covey_operations_total", "counter", "Operations that were decided", f->count[k]) \
	X("covey_operation_bytes_total", "counter", "Bytes of their buffers, as count times size of an element", \
	  f->bytes[k])

/*
 * Numbers that a member's beat carries to the store, for ep-admin top: whole, in this order. New ones go last.
 * X(field, "metric", number of its parts in one unit of the metric, value); the first is a time and no metric
 */
#define CVY_BEAT_LIST(X) \
	X(time_ms, "", 1, f->clock_ns / 1000000) \
	X(epoch, "covey_epoch", 1, f->epoch) \
	X(posted, "covey_operations_posted", 1, f->posted) \
	X(failed, "covey_failed_operations_total", 1, f->failed) \
	X(waited_us, "covey_waited_seconds_total", 1000000, f->waited_ns / 1000) \
	X(operations, "covey_operations_total", 1, cvy_metrics_sum(f->count)) \
	X(bytes, "covey_operation_bytes_total", 1, cvy_metrics_sum(f->bytes)) \
	X(awaited, "covey_awaited_rank", 1, f->awaited) \
	X(awaited_us, "covey_awaited_seconds", 1000000, f->awaited_ns / 1000)

enum cvy_beat_number {
#define NUMBER(field, metric, parts, value) CVY_BEAT_##field,
	CVY_BEAT_LIST(NUMBER)
#undef NUMBER
		CVY_BEAT_NUMBERS
};
_Static_assert(CVY_BEAT_NUMBERS * 21 < CVY_BEAT_TEXT, "each is a comma and up to 20 characters");

struct cvy_metrics;

/* NULL in *out if none are wanted or there is no page. Before the loop runs. */
int cvy_metrics_open(const struct cvy_config *config, struct cvy_loop *loop, const struct cvy_flight *page,
		     struct cvy_metrics **out);
void cvy_metrics_serve(struct cvy_metrics *metrics, int rank); /* a failure is logged; NULL is fine */
void cvy_metrics_forget(struct cvy_metrics *metrics);	       /* in the child of a fork: its sockets; NULL is fine */
void cvy_metrics_close(struct cvy_metrics *metrics);	       /* the loop has stopped */

void cvy_metrics_print(const struct cvy_flight *page, FILE *to);
void cvy_metrics_beat(const struct cvy_flight *page, char text[CVY_BEAT_TEXT]); /* ",NUMBER,NUMBER,..." */
void cvy_metrics_manual(FILE *file);						/* the manual's table, in Markdown */

#endif
