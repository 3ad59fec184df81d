/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of the store client, if hiredis has it (hiredis_ssl, from 1.0 on) and OpenSSL's headers are installed. Otherwise
 * open() returns an error, and nothing else is called.
 */
#ifndef CVY_REDIS_TLS_H
#define CVY_REDIS_TLS_H

#include "redis_url.h"

struct conn;
struct cvy_redis_tls; /* shared by all connections of a client: trusted authorities, own certificate */

int cvy_redis_tls_open(const struct cvy_redis_url *url, struct cvy_errbox *box, struct cvy_redis_tls **out);
void cvy_redis_tls_close(struct cvy_redis_tls *tls);

/* Begins the handshake, which continues by reads and writes. Breaks the connection if it cannot. */
void cvy_redis_tls_start(struct conn *k);
int cvy_redis_tls_reads(const struct conn *k);	 /* output waits for input */
int cvy_redis_tls_pending(const struct conn *k); /* bytes read from the socket, not taken yet */
int cvy_redis_tls_hangs(const struct conn *k);	 /* its handshake is not over */
/* If the connection broke in a handshake, breaks it with the cause; else 0. */
int cvy_redis_tls_broke(struct conn *k);

#endif
