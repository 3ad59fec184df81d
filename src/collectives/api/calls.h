/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped calls, as the blocking forms see them. */
#ifndef CVY_CALLS_H
#define CVY_CALLS_H

#include "engine.h"

struct cvy_device;

#define CVY_NESTED_MAX 64 /* covey_group_start() inside one another */

int cvy_calls_open(void); /* this thread is between covey_group_start() and covey_group_end() */
/* Posts by @post instead of waiting. Takes over the caller's reference. 0, or why it is not posted. */
int cvy_calls_add(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result,
		  int (*post)(struct cvy_engine *e, struct cvy_op *op));
/* Runs it, or posts it if this thread is between start and end. Takes over the caller's reference. */
int cvy_calls_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result);
/* A call was refused: covey_group_end() returns that error too. Returns @err. */
int cvy_calls_failed(int err);
/* A handle that was stopped closes: calls of it that this thread has grouped end with it. */
void cvy_calls_close(struct cvy_engine *e, const struct cvy_device *d);
void cvy_calls_forget(void); /* in the child of a fork: what its thread had posted is the parent's */

#endif
