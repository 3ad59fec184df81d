/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that fails over: a master, a replica and three sentinels on this machine, on free ports of loopback. All
 * return 0, or -1 after a line on stderr with the cause; nothing waits for ever. All processes are children of the
 * caller and die with it.
 */
#ifndef CHAOS_SENTINEL_H
#define CHAOS_SENTINEL_H

#include <stddef.h>

/* @dir: an empty directory for logs and the sentinels' files. @url: the store for a group. */
int chaos_sentinel_start(const char *dir, char *url, size_t bytes);

/* @look is called again and again during every wait; it takes a moment itself. */
void chaos_sentinel_meanwhile(void (*look)(void *ctx), void *ctx);

int chaos_sentinel_ask(void);	   /* a planned failover begins: the replica has everything */
void chaos_sentinel_strike(void);  /* kills the master: the sentinels will find out; a lagging replica continues */
int chaos_sentinel_promoted(void); /* waits for the new master, after either of them */

int chaos_sentinel_failover(void); /* ask and promoted */
int chaos_sentinel_kill(void);	   /* strike and promoted */
int chaos_sentinel_lag(void);	   /* from here on the replica misses all writes, until the next strike */
int chaos_sentinel_revive(void);   /* the killed server comes back, empty, and becomes a replica */
int chaos_sentinel_port(void);	   /* of the master */
long chaos_sentinel_number(int replica, const char *key, const char *field); /* of a hash; -1: none */

void chaos_sentinel_stop(void);

#endif
