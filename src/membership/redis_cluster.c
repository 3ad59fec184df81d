/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Redis Cluster. Key and channel of a group have its name in braces, so they are in one slot, which one node serves.
 * Any node says which one (MOVED); the client then dials that. It asks before the first call of a connection, so that
 * no call is lost. If a connection ends, the search begins at the URL again: a failover, or a slot that moved, is no
 * more than that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis.h"

#define HOPS 5 /* nodes that name each other, in one search */

/* TYPE is a command with the key that the client may say anyway. */
void cvy_redis_ask_slot(struct conn *k)
{
	const char *argv[] = { "TYPE", k->redis->key };

	cvy_redis_ask(k, GREET_SLOT, 2, argv);
}

/* `MOVED SLOT HOST:PORT`; without a host it is the one that said so. 0: it is not of that form. */
static int read_moved(const char *text, const struct redis *r, struct cvy_redis_place *to)
{
	const char *host = strchr(text + strlen("MOVED "), ' '), *colon = host ? strrchr(host, ':') : NULL;
	int port = colon ? atoi(colon + 1) : 0;

	if (!colon || port < 1 || port > 65535)
		return 0;
	host++;
	if (colon > host && *host != '?')
		snprintf(to->host, sizeof(to->host), "%.*s", (int)(colon - host), host);
	else
		snprintf(to->host, sizeof(to->host), "%s", r->to.count ? r->to.ip[r->to.at] : "");
	to->port = port;
	return 1;
}

void cvy_redis_moved(struct conn *k, const char *text)
{
	struct redis *r = k->redis;
	struct cvy_redis_place to = { "", 0 };
	char why[400];

	if (!read_moved(text, r, &to)) {
		snprintf(why, sizeof(why), "the store's cluster gives an answer that makes no sense: %.100s", text);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
	} else if (r->url.path[0]) {
		snprintf(why, sizeof(why),
			 "the store is a node of a cluster, and the node %.200s:%d serves the group's slot: name the "
			 "cluster by host and port (redis://), not by a unix socket",
			 to.host, to.port);
		cvy_redis_break(k, COVEY_ERR_INVAL, 1, why);
	} else if (++r->hops > HOPS) {
		snprintf(why, sizeof(why),
			 "the nodes of the store's cluster name each other for the group's slot: %.100s", text);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
	} else {
		r->moved = to;
		snprintf(why, sizeof(why), "the node %.200s:%d of the store's cluster serves the group's slot", to.host,
			 to.port);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
	}
}

int cvy_redis_follow(struct redis *r)
{
	struct cvy_redis_place to = r->moved;

	r->moved.host[0] = '\0'; /* if it cannot be reached, the next search begins at the URL */
	if (!to.host[0])
		return 0;
	snprintf(r->named, sizeof(r->named), " (%.60s:%d, which a node of the cluster names for the group's slot)",
		 to.host, to.port);
	cvy_redis_dial(r, to.host, to.port);
	return 1;
}
