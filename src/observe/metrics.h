/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of one handle in Prometheus' text form, served from the agent's loop to askers at a socket. The numbers are
 * those of the flight recorder. The list is the registry: the answers and docs/metrics.md are made from it.
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
	  (double)f->waited_ns / 1e9)

/* With a label kind, the operation's name: X(name, type, "help", value of kind k) */
#define CVY_METRIC_KIND_LIST(X) \
	X("covey_operations_total", "counter", "Operations that were decided", f->count[k]) \
	X("covey_operation_bytes_total", "counter", "Bytes of their buffers, as count times size of an element", \
	  f->bytes[k])

struct cvy_metrics;

/* NULL in *out if none are wanted or there is no page. Before the loop runs. */
int cvy_metrics_open(const struct cvy_config *config, struct cvy_loop *loop, const struct cvy_flight *page,
		     struct cvy_metrics **out);
void cvy_metrics_serve(struct cvy_metrics *metrics, int rank); /* a failure is logged; NULL is fine */
void cvy_metrics_close(struct cvy_metrics *metrics);	       /* the loop has stopped */

void cvy_metrics_print(const struct cvy_flight *page, FILE *to);
void cvy_metrics_manual(FILE *file); /* the manual's table, in Markdown */

#endif
