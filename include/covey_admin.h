/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey: for operators, launchers and tools: what a group does, and requests to it from outside. Members ask by the
 * calls of covey.h.
 */
#ifndef COVEY_H
#include <covey.h> /* which includes this one */
#elif !defined(COVEY_ADMIN_H)
#define COVEY_ADMIN_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Algorithms --------------------------------------------------------------------------- */

/**
 * covey_explain - says which algorithm each operation takes at which size in the present view, and why
 * @text: [bytes], host memory: a table, then one of forms on device memory if the group has a device
 *
 * For dispatch and combine on devices it says from how many tokens of a lane on rows go by bulk copies, with how many
 * lanes a handle runs, and why rows stay lines where they do. A form depends on the handle: the table is of one with
 * hidden 7168, top_k 8 and 32 experts a rank. With log = debug each handle says its own forms at its first call.
 *
 * The text is cut to @bytes; 8192 are enough. The call is local.
 * Errors: INVAL, and those of the group
 */
COVEY_API int covey_explain(struct covey_group *group, char *text, size_t bytes);

/* ---- Requests ----------------------------------------------------------------------------- */

/**
 * covey_admin_call - one request to a group's store from outside, as ep-admin and launchers make it
 * @store, @group: as in covey_config; NULL: the environment
 * @argv:  [argc] words of a request, host memory
 * @pair:  called on the caller's thread for each field of the reply, first with key "status"; may be NULL
 * @ctx:   given to @pair
 *
 *   request                       what it does
 *   peek                          reads all fields of the group but its secret
 *   ask evict R[,R]               as covey_evict()
 *   ask retire R[,R]              as covey_retire()
 *   ask recover R[,R]             as covey_recover()
 *   ask extend N                  as covey_extend()
 *   ask policy auto|manual        sets enum covey_admission
 *   ask forget                    removes a group whose processes are gone
 *   prove RANK INC KIND           says that incarnation INC of RANK is dead; KIND names the evidence
 *
 * Errors: INVAL, TIMEOUT at @deadline_ns, STORE, AUTH, VERSION; REFUSED: the pair "why" says why.
 *         The cause is in covey_last_error(NULL, ...).
 */
COVEY_API int covey_admin_call(const char *store, const char *group, int argc, const char *const *argv,
			       uint64_t deadline_ns, void (*pair)(void *ctx, const char *key, const char *value),
			       void *ctx);

#ifdef __cplusplus
}
#endif

#endif /* COVEY_ADMIN_H */
