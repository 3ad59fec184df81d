/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of operations. Their order is that of their numbers in the protocol: a new one comes last.
 *
 * X(kind, what the text of a call says, "a contributor dies", "result->mask is", "how else it may end")
 * The last three are for the manual, of operations under COVEY_ON_LOSS_CONTINUE; FAIL turns a missing contributor into
 * COVEY_ERR_PEER for all.
 */
#ifndef CVY_KINDS_H
#define CVY_KINDS_H

#include "op.h"

#define CVY_SAYS_TYPE 1
#define CVY_SAYS_COUNT 3 /* and the type */
#define CVY_SAYS_REDOP 4
#define CVY_SAYS_ROOT 8

#define CVY_KIND_LIST(X) \
	X(allreduce, CVY_SAYS_COUNT | CVY_SAYS_REDOP, \
	  "reduced over the survivors; or with the dead rank's input too, if any survivor has completed it so", \
	  "the ranks that were reduced", "LOST, alike on all: in place above undo_bytes") \
	X(broadcast, CVY_SAYS_COUNT | CVY_SAYS_ROOT, \
	  "nothing, unless it is the root: then any survivor that has the data gives it to the others", \
	  "the ranks of the operation", "ROOT, alike on all: the root died and no survivor has the data") \
	X(allgather, CVY_SAYS_COUNT, "its block is zero; or its data, if any survivor has completed with it", \
	  "the ranks whose blocks are there", "") \
	X(alltoall, CVY_SAYS_COUNT, "its block is zero on the ranks that it had not reached", \
	  "the ranks whose blocks are here; may differ between ranks", \
	  "LOST, alike on all: in place above undo_bytes") \
	X(alltoallv, 0, "its block is zero on the ranks that it had not reached", \
	  "the ranks whose blocks are here; may differ between ranks", \
	  "LOST, alike on all: in place above undo_bytes; MISMATCH here: a source sent another count") \
	X(barrier, 0, "completes without it", "the ranks that came", "") \
	X(admit, 0, "completes without it; a joiner that dies is not let in", \
	  "the ranks from here to the next safe point", "TIMEOUT on a joiner, after join_ms") \
	X(dispatch, CVY_SAYS_TYPE, "it has no rows on the ranks that it had not reached", \
	  "the sources whose tokens are here; may differ between ranks; none here: this rank was late", "") \
	X(combine, CVY_SAYS_TYPE, "its rows take no part; the weights are scaled up if renormalise is set", \
	  "the owners whose rows took part; may differ between ranks; none here: this rank was late", "") \
	X(reduce, CVY_SAYS_COUNT | CVY_SAYS_REDOP | CVY_SAYS_ROOT, \
	  "as allreduce; if it is the root there is no outcome, unless somebody has completed it", \
	  "the ranks that were reduced", \
	  "ROOT, alike on all: the root died; LOST: in place on the root above undo_bytes") \
	X(reduce_scatter, CVY_SAYS_COUNT | CVY_SAYS_REDOP, \
	  "reduced over the survivors, who begin anew; who lags behind one that is done needs all parts", \
	  "the ranks that were reduced", "LOST here: a part that it needed is gone; in place above undo_bytes") \
	X(allgatherv, CVY_SAYS_COUNT, "its block is zero; or its data, if any survivor has completed with it", \
	  "the ranks whose blocks are there", "MISMATCH: counts that differ") \
	X(gather, CVY_SAYS_COUNT | CVY_SAYS_ROOT, \
	  "its block is zero; if it is the root there is no outcome, unless somebody has completed it", \
	  "the ranks whose blocks are on the root", "ROOT, alike on all: the root died") \
	X(scatter, CVY_SAYS_COUNT | CVY_SAYS_ROOT, \
	  "nothing, unless it is the root: then who has not got its part asks for it", "the ranks of the operation", \
	  "ROOT, alike on all: the root died before; LOST here: the own part is gone with it")

#define CVY_KIND_DECLARED(kind, ...) extern const struct cvy_op_kind cvy_op_##kind;
CVY_KIND_LIST(CVY_KIND_DECLARED)

#endif
