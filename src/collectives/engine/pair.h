/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a group, as calls and the agent see them (pair_state.h). */
#ifndef CVY_PAIR_H
#define CVY_PAIR_H

#include "engine.h"

extern const struct cvy_op_kind cvy_op_send, cvy_op_recv;

/* An operation for @count elements; count, elem, bytes, root (the peer) and buffers are set. NULL: no memory. */
struct cvy_op *cvy_pair_op(struct cvy_engine *e, int sending, int tag);
/* Queues it. Takes a reference for the queue. 0, or the engine's end. A caller that does not wait for it soon kicks the
 * progress thread. Lock not held. */
int cvy_pair_post(struct cvy_engine *e, struct cvy_op *op);

void cvy_pairs_look(struct cvy_engine *e); /* agent's tick: credit that was kept back, links that came up again */
/* 1 when every live peer has taken everything sent to it. */
int cvy_pairs_drained(struct cvy_engine *e);

#endif
