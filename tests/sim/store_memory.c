/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands that the script uses, over hashes in the order of insertion (store_hash.c): HGETALL gives the same order
 * every time, so that a seed of the simulator gives the same run.
 */
#include "store_memory.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"
#include "store_hash.h"

struct memory_copy {
	struct hash *hashes;
};

struct memory_server {
	lua_State *lua;
	int script; /* registry reference of the compiled text */
	char run_id[64], master_replid[64];
	uint64_t now_ms;
	int limit; /* instructions of one call, 0: any number */
	uint8_t *lines;
	int line_count;
	struct hash *hashes;
	struct memory_work work;
	void (*publish)(void *ctx, const char *channel, const char *message);
	void *publish_ctx;
};

/* ---- redis.call ---- */

static struct memory_server *server_of(lua_State *lua)
{
	struct memory_server *s;

	lua_getfield(lua, LUA_REGISTRYINDEX, "server");
	s = lua_touserdata(lua, -1);
	lua_pop(lua, 1);
	return s;
}

static int push_value(lua_State *lua, struct hash *h, const char *name)
{
	struct field *f = hash_field(h, name);

	if (f)
		lua_pushstring(lua, f->value);
	else
		lua_pushboolean(lua, 0);
	return 1;
}

static int do_hgetall(lua_State *lua, struct hash *h)
{
	int n = 0;

	lua_createtable(lua, h ? 2 * h->count : 0, 0);
	for (int i = 0; h && i < h->used; i++) {
		if (!h->field[i].name)
			continue;
		lua_pushstring(lua, h->field[i].name);
		lua_rawseti(lua, -2, ++n);
		lua_pushstring(lua, h->field[i].value);
		lua_rawseti(lua, -2, ++n);
	}
	return 1;
}

static int do_hmget(lua_State *lua, struct hash *h, int top)
{
	lua_newtable(lua);
	for (int i = 3; i <= top; i++) {
		push_value(lua, h, lua_tostring(lua, i));
		lua_rawseti(lua, -2, i - 2);
	}
	return 1;
}

static int do_hset(lua_State *lua, struct memory_server *s, const char *key, int top)
{
	struct hash *h = hash_need(&s->hashes, key);

	if (top < 4 || top % 2)
		return luaL_error(lua, "wrong number of arguments for 'hset' command");
	for (int i = 3; i < top; i += 2)
		hash_set(h, luaL_checkstring(lua, i), luaL_checkstring(lua, i + 1));
	lua_pushinteger(lua, (top - 2) / 2);
	return 1;
}

static int do_hdel(lua_State *lua, struct memory_server *s, const char *key, int top)
{
	struct hash *h = hash_find(s->hashes, key);

	if (top < 3)
		return luaL_error(lua, "wrong number of arguments for 'hdel' command");
	for (int i = 3; h && i <= top; i++)
		hash_del(h, luaL_checkstring(lua, i));
	if (h && !h->count)
		hash_remove(&s->hashes, key);
	lua_pushinteger(lua, 0);
	return 1;
}

static int do_type(lua_State *lua, const struct hash *h)
{
	lua_newtable(lua);
	lua_pushstring(lua, h ? h->type : "none");
	lua_setfield(lua, -2, "ok");
	return 1;
}

static int do_time(lua_State *lua, const struct memory_server *s)
{
	lua_newtable(lua);
	lua_pushfstring(lua, "%d", (int)(s->now_ms / 1000));
	lua_rawseti(lua, -2, 1);
	lua_pushfstring(lua, "%d", (int)(s->now_ms % 1000 * 1000));
	lua_rawseti(lua, -2, 2);
	return 1;
}

static int do_info(lua_State *lua, const struct memory_server *s, const char *section)
{
	if (strcmp(section, "server") == 0)
		lua_pushfstring(lua, "# Server\r\nredis_version:7.0.0\r\nrun_id:%s\r\n", s->run_id);
	else
		lua_pushfstring(lua, "# Replication\r\nmaster_replid:%s\r\nmaster_replid2:0\r\n", s->master_replid);
	return 1;
}

static int do_publish(lua_State *lua, struct memory_server *s, const char *channel)
{
	if (s->publish)
		s->publish(s->publish_ctx, channel, luaL_checkstring(lua, 3));
	lua_pushinteger(lua, 0);
	return 1;
}

static int redis_call(lua_State *lua)
{
	struct memory_server *s = server_of(lua);
	int top = lua_gettop(lua);
	const char *command = luaL_checkstring(lua, 1);
	const char *key = top > 1 ? luaL_checkstring(lua, 2) : "";
	struct hash *h = hash_find(s->hashes, key);

	s->work.commands++;
	if (strcmp(command, "HGETALL") == 0)
		s->work.fields_read += h ? (uint64_t)h->count : 0;
	else if (command[0] == 'H' && strcmp(command, "HSET") == 0)
		s->work.fields_written += (uint64_t)(top - 2) / 2;
	else if (strcmp(command, "HDEL") == 0)
		s->work.fields_written += (uint64_t)(top - 2);
	else if (command[0] == 'H')
		s->work.fields_read += (uint64_t)(top - 2);
	if (strcmp(command, "HGETALL") == 0)
		return do_hgetall(lua, h);
	if (strcmp(command, "HGET") == 0)
		return push_value(lua, h, luaL_checkstring(lua, 3));
	if (strcmp(command, "HMGET") == 0)
		return do_hmget(lua, h, top);
	if (strcmp(command, "HSET") == 0)
		return do_hset(lua, s, key, top);
	if (strcmp(command, "HDEL") == 0)
		return do_hdel(lua, s, key, top);
	if (strcmp(command, "TYPE") == 0)
		return do_type(lua, h);
	if (strcmp(command, "TIME") == 0)
		return do_time(lua, s);
	if (strcmp(command, "INFO") == 0)
		return do_info(lua, s, key);
	if (strcmp(command, "PUBLISH") == 0)
		return do_publish(lua, s, key);
	if (strcmp(command, "DEL") == 0)
		hash_remove(&s->hashes, key);
	else if (strcmp(command, "PEXPIRE") != 0)
		return luaL_error(lua, "unknown command '%s'", command);
	else if (h)
		h->expires_ms = s->now_ms + (uint64_t)luaL_checknumber(lua, 3);
	lua_pushinteger(lua, 1);
	return 1;
}

/* The one error that a script asks about: the key is of another type. */
static int redis_pcall(lua_State *lua)
{
	const struct hash *h = hash_find(server_of(lua)->hashes, luaL_checkstring(lua, 2));

	if (!h || strcmp(h->type, "hash") == 0)
		return redis_call(lua);
	lua_newtable(lua);
	lua_pushliteral(lua, "WRONGTYPE Operation against a key holding the wrong kind of value");
	lua_setfield(lua, -2, "err");
	return 1;
}

/* ---- Server ---- */

static void load(struct memory_server *s, const char *text)
{
	if (luaL_loadbuffer(s->lua, text, strlen(text), "@store.lua")) {
		fprintf(stderr, "%s\n", lua_tostring(s->lua, -1));
		abort();
	}
	s->script = luaL_ref(s->lua, LUA_REGISTRYINDEX);
}

struct memory_server *memory_server_new(const char *run_id, const char *master_replid)
{
	struct memory_server *s = must(calloc(1, sizeof(*s)));

	memory_server_names(s, run_id, master_replid);
	s->now_ms = 1000000;
	s->lua = must(luaL_newstate());
	luaL_openlibs(s->lua);
	lua_pushlightuserdata(s->lua, s);
	lua_setfield(s->lua, LUA_REGISTRYINDEX, "server");
	lua_newtable(s->lua);
	lua_pushcfunction(s->lua, redis_call);
	lua_setfield(s->lua, -2, "call");
	lua_pushcfunction(s->lua, redis_pcall);
	lua_setfield(s->lua, -2, "pcall");
	lua_setglobal(s->lua, "redis");
	load(s, cvy_store_lua);
	return s;
}

void memory_server_large(struct memory_server *s, int members)
{
	static const char name[] = "\n\tlocal NOTICE_MEMBERS = ";
	const char *at = must(strstr(cvy_store_lua, name));
	const size_t before = (size_t)(at - cvy_store_lua) + sizeof(name) - 1;
	const size_t room = strlen(cvy_store_lua) + 32;
	char *text = must(malloc(room));

	snprintf(text, room, "%.*s%d --%s", (int)before, cvy_store_lua, members, cvy_store_lua + before);
	luaL_unref(s->lua, LUA_REGISTRYINDEX, s->script);
	load(s, text);
	free(text);
}

void memory_server_free(struct memory_server *s)
{
	if (!s)
		return;
	lua_close(s->lua);
	hashes_free(s->hashes);
	free(s);
}

void memory_server_time(struct memory_server *s, uint64_t now_ms)
{
	struct hash **at = &s->hashes;

	s->now_ms = now_ms;
	while (*at) {
		struct hash *h = *at;

		if (h->expires_ms && h->expires_ms <= now_ms) {
			*at = h->next;
			h->next = NULL;
			hashes_free(h);
		} else {
			at = &h->next;
		}
	}
}

void memory_server_names(struct memory_server *s, const char *run_id, const char *master_replid)
{
	snprintf(s->run_id, sizeof(s->run_id), "%s", run_id);
	snprintf(s->master_replid, sizeof(s->master_replid), "%s", master_replid);
}

static void on_step(lua_State *lua, lua_Debug *debug)
{
	struct memory_server *s = server_of(lua);

	if (debug->event == LUA_HOOKCOUNT)
		luaL_error(lua, "the call takes too long");
	else if (debug->currentline >= 0 && debug->currentline < s->line_count)
		s->lines[debug->currentline]++;
}

void memory_server_watch(struct memory_server *s, int instructions, uint8_t *lines, int count)
{
	s->limit = instructions;
	s->lines = lines;
	s->line_count = count;
}

void memory_server_flush(struct memory_server *s)
{
	hashes_free(s->hashes);
	s->hashes = NULL;
}

struct memory_copy *memory_server_save(const struct memory_server *s)
{
	struct memory_copy *copy = must(calloc(1, sizeof(*copy)));

	copy->hashes = hashes_copy(s->hashes);
	return copy;
}

void memory_server_load(struct memory_server *s, const struct memory_copy *copy)
{
	memory_server_flush(s);
	s->hashes = hashes_copy(copy->hashes);
}

void memory_copy_free(struct memory_copy *copy)
{
	if (!copy)
		return;
	hashes_free(copy->hashes);
	free(copy);
}

const struct memory_work *memory_server_work(const struct memory_server *s)
{
	return &s->work;
}

void memory_server_on_publish(struct memory_server *s, void (*publish)(void *, const char *, const char *), void *ctx)
{
	s->publish = publish;
	s->publish_ctx = ctx;
}

static void key_of(char *key, const char *group, char kind)
{
	snprintf(key, KEY_MAX, "covey:{%s}:%c", group, kind);
}

static void set_array(lua_State *lua, const char *name, const char *const *item, int count)
{
	lua_createtable(lua, count, 0);
	for (int i = 0; i < count; i++) {
		lua_pushstring(lua, item[i]);
		lua_rawseti(lua, -2, i + 1);
	}
	lua_setglobal(lua, name);
}

int memory_server_call(struct memory_server *s, const char *group, int argc, const char *const *argv,
		       struct memory_reply *reply)
{
	char key[KEY_MAX], channel[KEY_MAX];
	const char *keys[2] = { key, channel };
	int failed;

	key_of(key, group, 'g');
	key_of(channel, group, 'n');
	set_array(s->lua, "KEYS", keys, 2);
	set_array(s->lua, "ARGV", argv, argc);
	lua_rawgeti(s->lua, LUA_REGISTRYINDEX, s->script);
	if (s->limit)
		lua_sethook(s->lua, on_step, LUA_MASKCOUNT | LUA_MASKLINE, s->limit);
	failed = lua_pcall(s->lua, 0, 1, 0) != 0;
	reply->argc = failed ? 1 : (int)lua_objlen(s->lua, -1);
	reply->argv = must(calloc((size_t)reply->argc + 1, sizeof(char *)));
	if (failed)
		reply->argv[0] = must(strdup(lua_tostring(s->lua, -1)));
	for (int i = 0; !failed && i < reply->argc; i++) {
		lua_rawgeti(s->lua, -1, i + 1);
		reply->argv[i] = must(strdup(lua_tostring(s->lua, -1)));
		lua_pop(s->lua, 1);
	}
	lua_pop(s->lua, 1);
	return failed ? COVEY_ERR_STORE : 0;
}

void memory_reply_clear(struct memory_reply *reply)
{
	for (int i = 0; i < reply->argc; i++)
		free(reply->argv[i]);
	free(reply->argv);
	memset(reply, 0, sizeof(*reply));
}

const char *memory_reply_get(const struct memory_reply *reply, const char *field)
{
	for (int i = 1; i + 1 < reply->argc; i += 2)
		if (strcmp(reply->argv[i], field) == 0)
			return reply->argv[i + 1];
	return NULL;
}

const char *memory_server_field(struct memory_server *s, const char *group, const char *name)
{
	char key[KEY_MAX];
	struct field *f;

	key_of(key, group, 'g');
	f = hash_field(hash_find(s->hashes, key), name);
	return f ? f->value : NULL;
}

void memory_server_poke(struct memory_server *s, const char *group, const char *name, const char *value)
{
	char key[KEY_MAX];

	key_of(key, group, 'g');
	hash_set(hash_need(&s->hashes, key), name, value);
}

void memory_server_retype(struct memory_server *s, const char *group, const char *type)
{
	char key[KEY_MAX];

	key_of(key, group, 'g');
	snprintf(hash_need(&s->hashes, key)->type, sizeof(((struct hash *)0)->type), "%s", type);
}

/* ---- Client ---- */

static void client_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	struct memory_client *c = (struct memory_client *)store;
	struct memory_delivery *d = must(calloc(1, sizeof(*d)));

	d->sink = c->sink;
	d->id = id;
	d->err = c->deaf ? COVEY_ERR_TIMEOUT : memory_server_call(c->server, c->group, argc, argv, &d->reply);
	c->deliver(c->ctx, d);
}

static void client_close(struct cvy_store *store)
{
	(void)store; /* the owner of the memory is the simulator */
}

static const struct cvy_store_ops client_ops = { .call = client_call, .close = client_close };

void memory_client_init(struct memory_client *c, struct memory_server *server, const char *group,
			const struct cvy_store_sink *sink, void (*deliver)(void *, struct memory_delivery *), void *ctx)
{
	memset(c, 0, sizeof(*c));
	c->store.ops = &client_ops;
	c->server = server;
	snprintf(c->group, sizeof(c->group), "%s", group);
	c->sink = *sink;
	c->deliver = deliver;
	c->ctx = ctx;
}

static void deliver(struct memory_delivery *d, int err)
{
	if (err)
		d->sink.reply(d->sink.ctx, d->id, err, 0, NULL, d->reply.argc ? d->reply.argv[0] : "no answer");
	else
		d->sink.reply(d->sink.ctx, d->id, 0, d->reply.argc, (const char *const *)d->reply.argv, NULL);
	memory_reply_clear(&d->reply);
	free(d);
}

void memory_delivery_run(struct memory_delivery *d)
{
	deliver(d, d->err);
}

void memory_delivery_drop(struct memory_delivery *d, int err)
{
	deliver(d, err);
}
