/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis://[user:password@]host[:port][/db], the same with rediss:// for TLS and ?ca=FILE&cert=FILE&key=FILE,
 * redis+unix:///path[?db=N] and redis+sentinel://[user:password@]host[:port][,host[:port]...]/MASTER[/db], parsed.
 */
#ifndef CVY_REDIS_URL_H
#define CVY_REDIS_URL_H

#include "error.h"

#define CVY_SENTINELS_MAX 16
#define CVY_SECRET_BYTES \
	16384 /* with the last 0; tokens of clouds, which stand for passwords, have up to some thousand */
#define CVY_FILE_BYTES 4096

struct cvy_redis_place {
	char host[256];
	int port;
};

struct cvy_redis_url {
	char path[108];		       /* of a unix socket; empty: host and port */
	struct cvy_redis_place server; /* empty with a unix socket or with sentinels */
	struct cvy_redis_place sentinel[CVY_SENTINELS_MAX];
	int sentinels;	  /* 0: the server is named directly */
	char master[128]; /* name by which sentinels know the master */
	int tls;
	char ca[CVY_FILE_BYTES], cert[CVY_FILE_BYTES],
		key[CVY_FILE_BYTES]; /* of TLS: files; empty: the system's authorities, no own certificate */
	int db;
	/* Of the server; sentinels get neither. Empty: none; COVEY_STORE_PASSWORD is taken if the URL has no password. */
	char user[CVY_SECRET_BYTES], password[CVY_SECRET_BYTES];
};

/* INVAL or UNSUPPORTED; the cause never repeats the URL, which may hold a password. */
int cvy_redis_url_parse(const char *url, struct cvy_redis_url *out, struct cvy_errbox *box);

#endif
