/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every operation does when a rank dies in the middle of it, for the manual. A row belongs to an operation kind;
 * its name and class are the kind's own, so that the table cannot tell another story than the engine.
 */
#ifndef CVY_LOSSES_H
#define CVY_LOSSES_H

#include <stdio.h>

/*
 * X(kind, "a contributor dies", "result->mask is", "how else it may end")
 * Said of operations under COVEY_ON_LOSS_CONTINUE; FAIL turns a missing contributor into COVEY_ERR_PEER for all.
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

void cvy_losses_manual(FILE *file); /* the manual's table, in Markdown */

#endif
