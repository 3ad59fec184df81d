/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault plans: COVEY_FAULT names what happens to this process, and when, counted in puts and signals
 * and not in time, so that a failure can be reproduced. Several, separated by `;`:
 *
 *   kill@PLACE           SIGKILL to itself right before that put takes effect
 *   stop@PLACE           SIGSTOP to itself
 *   delay@PLACE:TIME     sleeps, the engine's lock held (at most 10 s)
 *   cut:RANK@PLACE       breaks the link to RANK
 *   late@PLACE:TIME      (signals only) copies that signal, and sends the copy TIME later from poll
 *   scribble@PLACE       SIGSTOP to itself; once continued it is a late writer: it fills all its slots, and its
 *                        lines with the stamps of the next views, and puts and signals them to every peer
 *   reorder:W            up to W puts and signals of different peers leave in another order (W <= 1024)
 *
 *   PLACE  [op:SEQ.|op:NAME:K.]put:N or ...signal:N; counts from 1, over all peers; with op: inside
 *          operation number SEQ, or the K-th operation called NAME.
 *          Or ...read:N: before the N-th tick is read, when all its data are here.
 *          Or agent:POINT[:N] (kill and stop only): the N-th time that the agent passes
 *          open report decide ack (before that call to the store is made), WAIT COMMIT ACTIVE (right after such a
 *          reply came), freeze learn learned repair thaw (before that step of a view change; learned: after it)
 *   TIME   20ms or 2s
 *
 * Each happens once. The engine calls put and signal for every peer and tick when links are wrapped,
 * on shared memory too, where they only count.
 */
#ifndef CVY_FAULT_H
#define CVY_FAULT_H

#include "p2p.h"

int cvy_fault_open(const char *plan, struct cvy_errbox *box, struct cvy_fault **out);
void cvy_fault_close(struct cvy_fault *fault);					  /* NULL is fine */
struct cvy_link *cvy_fault_wrap(struct cvy_fault *fault, struct cvy_link *inner); /* takes inner; NULL: no memory */

#endif
