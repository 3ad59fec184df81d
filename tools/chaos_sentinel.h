/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that fails over: a master, a replica and three sentinels on this machine, on ports of loopback that
 * were free. All return 0, or -1 after a line on stderr that says why; nothing waits for ever. Everything is
 * a child of the caller and dies with it.
 */
#ifndef CHAOS_SENTINEL_H
#define CHAOS_SENTINEL_H

#include <stddef.h>

/* @dir: an empty directory for logs and the sentinels' files. @url: what a group takes for a store. */
int chaos_sentinel_start(const char *dir, char *url, size_t bytes);

int chaos_sentinel_failover(void); /* planned: the sentinels are asked, the replica has everything */
int chaos_sentinel_kill(void); /* unplanned: the master is killed, the sentinels find out. Both wait for the new one */
int chaos_sentinel_lag(void);  /* from now on the replica misses what is written; the next kill lets it go on */
int chaos_sentinel_revive(void); /* the killed server comes back, empty, and becomes a replica */
int chaos_sentinel_port(void);	 /* of the master */

void chaos_sentinel_stop(void);

#endif
