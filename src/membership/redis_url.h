/* SPDX-License-Identifier: Apache-2.0 */
/* redis://[user:password@]host[:port][/db] and redis+unix:///path[?db=N], taken apart. */
#ifndef CVY_REDIS_URL_H
#define CVY_REDIS_URL_H

#include "error.h"

struct cvy_redis_url {
	char path[108]; /* of a unix socket; empty: host and port */
	char host[256];
	int port, db;
	char user[128],
		password[256]; /* empty: none; the password comes from COVEY_STORE_PASSWORD if the URL has none */
};

/* INVAL or UNSUPPORTED with a cause that never repeats the URL, which may hold a password. */
int cvy_redis_url_parse(const char *url, struct cvy_redis_url *out, struct cvy_errbox *box);

#endif
