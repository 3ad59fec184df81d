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

/* @look is called again and again while anything is waited for; it takes a moment itself. */
void chaos_sentinel_meanwhile(void (*look)(void *ctx), void *ctx);

int chaos_sentinel_ask(void);	   /* a planned failover begins: the replica has everything */
void chaos_sentinel_strike(void);  /* the master is killed: the sentinels will find out; a replica that lags goes on */
int chaos_sentinel_promoted(void); /* waits for the new master, which either of them leads to */

int chaos_sentinel_failover(void); /* ask and promoted */
int chaos_sentinel_kill(void);	   /* strike and promoted */
int chaos_sentinel_lag(void);	   /* from now on the replica misses what is written, until the next strike */
int chaos_sentinel_revive(void);   /* the killed server comes back, empty, and becomes a replica */
int chaos_sentinel_port(void);	   /* of the master */
long chaos_sentinel_number(int replica, const char *key, const char *field); /* of a hash; -1: none */

void chaos_sentinel_stop(void);

#endif
