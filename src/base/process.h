/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inherited properties of a process: limits, closed standard descriptors, signals and stacks of threads. A limit that
 * is too small is reported before anything begins, with its value and the way to raise it.
 */
#ifndef CVY_PROCESS_H
#define CVY_PROCESS_H

#include <pthread.h>

#include "config.h"

/* Descriptors of a member without peers, and of each peer on its host; with tcp one more each. */
#define CVY_OWN_DESCRIPTORS 11
#define CVY_PEER_DESCRIPTORS 4

/* Opens /dev/null for 0, 1 or 2 if closed: else the program would write its output into a socket or a window. */
void cvy_process_standard(void);

/* Do the limits of this process suffice for a member? 0, or the error with the limit in @box. */
int cvy_process_check(const struct cvy_config *config, struct cvy_errbox *box);

/* For the end of a message about a call that failed with @err: the limit that may be the cause, or "". */
const char *cvy_process_hint(int err, char *text, size_t bytes);

#define CVY_HINT 160 /* bytes that every hint fits */

/*
 * pthread_create() for the library's own threads: they handle no signal of the program, and the stack does not depend
 * on `ulimit -s`, which may be tiny or larger than the address space. 0 or an errno.
 */
int cvy_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/*
 * Room for the first @bytes of a file, so that no write into them ends by SIGBUS: 0 or an errno. Signals wait meanwhile:
 * an older kernel begins anew with EINTR at each one, and a program's timer may come more often than it needs.
 */
int cvy_file_reserve(int fd, size_t bytes);

#endif
