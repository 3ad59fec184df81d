/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a step on device memory, for ranks that were asked to (--devices). */
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include "rank.h"

void moe_device_choose(const struct moe_options *opt); /* before covey_join() */
/* Without --devices both do nothing. */
int moe_device_open(struct moe_rank *r);
int moe_device_room(struct moe_rank *r, int size); /* for the present layout */
void moe_device_close(struct moe_rank *r);

/* As covey_dispatch() and covey_combine() with @args of host memory; complete at return. Rows stay on the device. */
int moe_device_dispatch(struct moe_rank *r, struct covey_dispatch_args *args, struct covey_result *result);
int moe_device_experts(struct moe_rank *r); /* launched */
int moe_device_combine(struct moe_rank *r, struct covey_combine_args *args, struct covey_result *result);

#endif
