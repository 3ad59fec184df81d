/* SPDX-License-Identifier: Apache-2.0 */
/* The store behind unique ids (store.c). */
#ifndef CVY_NCCL_STORE_H
#define CVY_NCCL_STORE_H

#include "pure.h"

/*
 * Fills in store and own_store of a new id: COVEY_STORE, else the store that this process already uses, else a server
 * that is started here. Errors are told by cvy_nccl_fail().
 */
ncclResult_t cvy_nccl_store_find(struct cvy_nccl_id *id);
/* The store of @id, for covey_config.store; it is used from here on, and the caller frees the text. NULL: told. */
char *cvy_nccl_store_use(const struct cvy_nccl_id *id);

#endif
