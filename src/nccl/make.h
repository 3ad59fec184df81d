/* SPDX-License-Identifier: Apache-2.0 */
/* Steps by which communicators are made (make.c), and the question of a split (ask.c). */
#ifndef CVY_NCCL_MAKE_H
#define CVY_NCCL_MAKE_H

#include "group.h"

/* 0 or 1, @fallback where @config does not say; -1: told. */
int cvy_nccl_blocking(const ncclConfig_t *config, int fallback);
ncclResult_t cvy_nccl_id_read(const ncclUniqueId *bytes, struct cvy_nccl_id *id);
/* A communicator on the device of this thread that has not begun to join. */
ncclResult_t cvy_nccl_make(int size, int rank, const struct cvy_nccl_id *id, int blocking, ncclComm_t *out);
/* Begins to join; frees it and clears *out if that fails. cvy_nccl_making() comes next. */
ncclResult_t cvy_nccl_begin(ncclComm_t *out);

/* Under the lock of @parent: tells its ranks color and key. @child: NULL, or the communicator that gets the answer. */
ncclResult_t cvy_nccl_ask(struct ncclComm *parent, struct ncclComm *child, int color, int key);
/* Under the lock of @child: ncclInProgress, or what became of it; with ncclSuccess size and rank are set. */
ncclResult_t cvy_nccl_answer(struct ncclComm *child);
/* Under the lock of @parent: frees questions that are answered and that nobody reads. */
void cvy_nccl_reap(struct ncclComm *parent);

#endif
