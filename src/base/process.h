/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process inherits and the library meets: limits, standard descriptors that are closed, signals and stacks of
 * threads. A limit that is too small is named, with its value and what raises it, before anything is begun.
 */
#ifndef CVY_PROCESS_H
#define CVY_PROCESS_H

#include <pthread.h>

#include "config.h"

/* Descriptors of a member without peers, and of each peer on its host: with tcp one more. */
#define CVY_OWN_DESCRIPTORS 11
#define CVY_PEER_DESCRIPTORS 4

/* /dev/null where 0, 1 or 2 is closed: else a socket or a window would be what the program takes for its output. */
void cvy_process_standard(void);

/* Will a member find room under the limits of this process? 0, or the error with the limit in @box. */
int cvy_process_check(const struct cvy_config *config, struct cvy_errbox *box);

/* For the end of a message about a call that failed with @err: the limit that may be behind it, or "". */
const char *cvy_process_hint(int err, char *text, size_t bytes);

#define CVY_HINT 160 /* bytes that every hint fits */

/*
 * pthread_create() for the library's own threads: no signal of the program is handled there, and the stack does not
 * depend on `ulimit -s`, which may be tiny or larger than the addresses there are. 0 or an errno.
 */
int cvy_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

#endif
