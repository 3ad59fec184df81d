/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the manual: what operations come to when a rank dies (kinds.h), and calls that took their place. */
#ifndef CVY_LOSSES_H
#define CVY_LOSSES_H

#include <stdio.h>

/*
 * X(error, "when", "its place in the order of operations", "which ranks get it", "what the caller does")
 * Did a call that returned this error take its place? All ranks call the same operations in one order. A rank that
 * counts a refused call, or repeats one that was counted, is one number off the others afterwards.
 */
#define CVY_TURN_LIST(X) \
	X(INVAL, "the call was refused", "not taken", "this one", \
	  "Correct the argument and make the call: the other ranks wait for it at this number.") \
	X(UNSUPPORTED, "the call was refused", "not taken", "this one", "As INVAL: make a call that is supported.") \
	X(NOMEM, "there was no memory to make the call", "not taken", "this one", \
	  "Free memory and make the call again, or close the handle. If covey_view() returns it too, the handle has " \
	  "ended.") \
	X(STALE, "dispatch, combine: the handle is laid out for another size of the group", "not taken", \
	  "all, where all of them called covey_ep_remap() at the same safe points", \
	  "Call covey_ep_remap(), then make the call.") \
	X(MISMATCH, "ranks made different calls here, or before where the operation went by", "taken", \
	  "all; alltoallv whose counts differ: the rank that expected another count", \
	  "Go on with the next operation. Do not use the output.") \
	X(PEER, "on_loss is fail, and a rank of the last safe point did not contribute", "taken", \
	  "all; of alltoall(v), dispatch and combine each by its own mask, so maybe some", \
	  "Go on with the next operation, or to the next safe point, on all ranks. A dispatch has its combine also " \
	  "when " \
	  "it ended so.") \
	X(LOST, "inputs were overwritten, or a part died with its rank (docs/guide/losses.md)", "taken", \
	  "all; of reduce_scatter and scatter maybe some", "Go on with the next operation. Do not use the output.") \
	X(ROOT, "the root is no member", "taken", "all", "Go on with the next operation, with another root.") \
	X(TIMEOUT, "covey_work_wait(), covey_dispatch_recv(), covey_combine_recv(); a joiner's covey_admit()", \
	  "taken: the operation goes on", "this one", \
	  "Wait for it again; a joiner calls covey_admit() again. Do not make the call anew.") \
	X(AGAIN, "covey_work_test(); a blocking call after covey_set_slice()", "taken: the operation goes on", \
	  "this one", "Ask or wait again, after the call by covey_work_resume().") \
	X(FENCED, "the handle has ended", "none", "this one; the others go on without it", \
	  "Close the handle, join again.") \
	X(CLOSED, "the group has ended", "none", "all", "Close the handle.") \
	X(ABORTED, "covey_abort() was called here", "none", "this one", "Close the handle.") \
	X(FORKED, "the handle is the parent's", "not taken", "this one", "Join in the child.")

void cvy_losses_manual(FILE *file); /* the manual's table, in Markdown */
void cvy_turns_manual(FILE *file);

#endif
