/* SPDX-License-Identifier: Apache-2.0 */
/* The private redis-server of a run without a plan: on a unix socket in the private directory, nothing on disk. */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

static struct chaos_server server_of(const struct chaos *c)
{
	struct chaos_server server = { .pid = c->store };

	snprintf(server.dir, sizeof(server.dir), "%s", c->dir);
	return server;
}

long chaos_store_ask(const struct chaos *c, const char *command)
{
	struct chaos_server server = server_of(c);
	char reply[128];

	if (chaos_server_say(&server, command, reply, sizeof(reply)) || reply[0] != ':')
		return -1;
	return strtol(reply + 1, NULL, 10);
}

int chaos_store_start(struct chaos *c)
{
	struct chaos_server server = server_of(c);
	int err = chaos_server_start(&server);

	snprintf(c->shared->store, sizeof(c->shared->store), "redis+unix://%s/store", c->dir);
	c->store = server.pid;
	return err;
}
