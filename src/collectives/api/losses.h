/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of every operation when a rank dies during it, for the manual. A row belongs to an operation kind; its
 * name and class are the kind's own, so that the table cannot differ from the engine.
 */
#ifndef CVY_LOSSES_H
#define CVY_LOSSES_H

#include <stdio.h>

/*
 * X(kind, "a contributor dies", "result->mask is", "how else it may end")
 * For operations under COVEY_ON_LOSS_CONTINUE; FAIL turns a missing contributor into COVEY_ERR_PEER for all.
 */
#define CVY_LOSS_LIST(X) \
	X(allreduce, \
	  "reduced over the survivors; or with the dead rank's input too, if any survivor has completed it so", \
	  "the ranks that were reduced", "LOST, alike on all: in place above undo_bytes") \
	X(broadcast, "nothing, unless it is the root: then any survivor that has the data gives it to the others", \
	  "the ranks of the operation", "ROOT, alike on all: the root died and no survivor has the data") \
	X(allgather, "its block is zero; or its data, if any survivor has completed with it", \
	  "the ranks whose blocks are there", "") \
	X(alltoall, "its block is zero on the ranks that it had not reached", \
	  "the ranks whose blocks are here; may differ between ranks", \
	  "LOST, alike on all: in place above undo_bytes") \
	X(alltoallv, "its block is zero on the ranks that it had not reached", \
	  "the ranks whose blocks are here; may differ between ranks", \
	  "LOST, alike on all: in place above undo_bytes; MISMATCH here: a source sent another count") \
	X(allgatherv, "its block is zero; or its data, if any survivor has completed with it", \
	  "the ranks whose blocks are there", "MISMATCH: counts that differ") \
	X(reduce, "as allreduce; if it is the root there is no outcome, unless somebody has completed it", \
	  "the ranks that were reduced", \
	  "ROOT, alike on all: the root died; LOST: in place on the root above undo_bytes") \
	X(gather, "its block is zero; if it is the root there is no outcome, unless somebody has completed it", \
	  "the ranks whose blocks are on the root", "ROOT, alike on all: the root died") \
	X(scatter, "nothing, unless it is the root: then who has not got its part asks for it", \
	  "the ranks of the operation", \
	  "ROOT, alike on all: the root died before; LOST here: the own part is gone with it") \
	X(reduce_scatter, \
	  "reduced over the survivors, who begin anew; who lags behind one that is done needs all parts", \
	  "the ranks that were reduced", "LOST here: a part that it needed is gone; in place above undo_bytes") \
	X(barrier, "completes without it", "the ranks that came", "") \
	X(admit, "completes without it; a joiner that dies is not let in", \
	  "the ranks from here to the next safe point", "TIMEOUT on a joiner, after join_ms") \
	X(dispatch, "it has no rows on the ranks that it had not reached", \
	  "the sources whose tokens are here; may differ between ranks; none here: this rank was late", "") \
	X(combine, "its rows take no part; the weights are scaled up if renormalise is set", \
	  "the owners whose rows took part; may differ between ranks; none here: this rank was late", "")

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
