/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Redis of one key per group, in memory and deterministic: it runs the text of the script through
 * liblua with a small hash store behind redis.call. Time and the server's names are the caller's, so a
 * simulator decides when a key expires, when the server restarts and what it then remembers.
 */
#ifndef STORE_MEMORY_H
#define STORE_MEMORY_H

#include <stdint.h>

#include "membership.h"

struct memory_server;
struct memory_copy; /* the data of a server at one moment */

struct memory_work { /* of all scripts so far */
	uint64_t commands, fields_read, fields_written;
};

struct memory_reply {
	int argc;
	char **argv; /* [0]: status */
};

struct memory_server *memory_server_new(const char *run_id, const char *master_replid);
void memory_server_free(struct memory_server *server);
/* Groups of more than @members get notices as if they were large (NOTICE_MEMBERS). */
void memory_server_large(struct memory_server *server, int members);

/* Time of the server, ms; keys whose time has come are gone. */
void memory_server_time(struct memory_server *server, uint64_t now_ms);
/* A restart or a failover gives other names. */
void memory_server_names(struct memory_server *server, const char *run_id, const char *master_replid);
/* For a fuzzer: a call that takes more than so many instructions of Lua fails; lines[n] counts when line n is reached. */
void memory_server_watch(struct memory_server *server, int instructions, uint8_t *lines, int count);
void memory_server_flush(struct memory_server *server); /* FLUSHALL */

struct memory_copy *memory_server_save(const struct memory_server *server);
void memory_server_load(struct memory_server *server, const struct memory_copy *copy); /* as often as wanted */
void memory_copy_free(struct memory_copy *copy);

const struct memory_work *memory_server_work(const struct memory_server *server);

/* Every PUBLISH, during the call that makes it. */
void memory_server_on_publish(struct memory_server *server,
			      void (*publish)(void *ctx, const char *channel, const char *message), void *ctx);

/* One call of the script: 0 and @reply, or COVEY_ERR_STORE when the script itself failed (its text in argv[0]). */
int memory_server_call(struct memory_server *server, const char *group, int argc, const char *const *argv,
		       struct memory_reply *reply);
void memory_reply_clear(struct memory_reply *reply);
const char *memory_reply_get(const struct memory_reply *reply, const char *field); /* NULL: not there */

/* Looks and pokes for tests: NULL when the field is not there; a value that makes the key another type. */
const char *memory_server_field(struct memory_server *server, const char *group, const char *field);
void memory_server_poke(struct memory_server *server, const char *group, const char *field, const char *value);
void memory_server_retype(struct memory_server *server, const char *group, const char *type);

/*
 * A client for the state machine. The call runs on the server at once; its reply is handed to
 * @deliver, which owns it and gives it to the sink when it likes, or loses it: memory_delivery_run,
 * memory_delivery_drop (the sink then sees @err). To lose the call itself, set `deaf`.
 */
struct memory_delivery {
	struct cvy_store_sink sink;
	uint64_t id;
	int err;
	struct memory_reply reply;
};

struct memory_client {
	struct cvy_store store; /* first: the agent's view of it */
	struct memory_server *server;
	char group[72];
	struct cvy_store_sink sink;
	void (*deliver)(void *ctx, struct memory_delivery *delivery);
	void *ctx;
	int deaf; /* calls do not reach the server; they end with TIMEOUT */
};

void memory_client_init(struct memory_client *client, struct memory_server *server, const char *group,
			const struct cvy_store_sink *sink, void (*deliver)(void *ctx, struct memory_delivery *delivery),
			void *ctx);
void memory_delivery_run(struct memory_delivery *delivery);
void memory_delivery_drop(struct memory_delivery *delivery, int err);

#endif
