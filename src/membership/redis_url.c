/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of the store. An error names the wrong part and not the URL, which may hold a password. */
#include "redis_url.h"
#include "url.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DB_MAX 65535
#define RIGHT \
	"; right: redis://[user:password@]host[:port][/db] (rediss:// with TLS), redis+unix:///path[?db=N] or " \
	"redis+sentinel://[user:password@]host[:port][,host[:port]...]/MASTER[/db]"
#define BROKEN ", or has a % without two hex digits behind it"
#define REDIS_PORT 6379
#define SENTINEL_PORT 26379

static int bad(struct cvy_errbox *box, const char *what)
{
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "store URL: %s" RIGHT, what);
}

/* @room: of its array, with the last 0; @or: "" or BROKEN, for what decode() has refused */
static int too_long(struct cvy_errbox *box, const char *what, size_t room, const char * or)
{
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "store URL: %s is longer than %zu bytes%s" RIGHT, what, room - 1,
			or);
}

static int number(const char *text, size_t bytes, int low, int high, int *out)
{
	int n = 0;

	if (!bytes || bytes > 5)
		return -1;
	for (size_t i = 0; i < bytes; i++) {
		if (!isdigit((unsigned char)text[i]))
			return -1;
		n = n * 10 + text[i] - '0';
	}
	*out = n;
	return n < low || n > high ? -1 : 0;
}

/* Percent-decodes @bytes of @text into @to; -1: too long, or a broken escape. */
static int decode(const char *text, size_t bytes, char *to, size_t room)
{
	size_t n = 0;

	for (size_t i = 0; i < bytes; i++, n++) {
		char hex[3] = { 0 };

		if (n + 1 >= room)
			return -1;
		to[n] = text[i];
		if (text[i] != '%')
			continue;
		if (i + 2 >= bytes || !isxdigit((unsigned char)text[i + 1]) || !isxdigit((unsigned char)text[i + 2]))
			return -1;
		memcpy(hex, text + i + 1, 2);
		to[n] = (char)strtol(hex, NULL, 16);
		i += 2;
		if (!to[n])
			return -1;
	}
	to[n] = '\0';
	return 0;
}

static int parse_unix(const char *rest, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	size_t bytes = strcspn(rest, "?");

	if (rest[0] != '/' || bytes < 2)
		return bad(box, "the path of the socket is missing or not absolute");
	if (decode(rest, bytes, u->path, sizeof(u->path)))
		return too_long(box, "the path of the socket", sizeof(u->path), BROKEN);
	rest += bytes;
	if (!*rest)
		return 0;
	if (strncmp(rest, "?db=", 4) != 0 || number(rest + 4, strlen(rest + 4), 0, DB_MAX, &u->db))
		return bad(box, "after the path only ?db=N may stand");
	return 0;
}

static int parse_user(const char *at, size_t bytes, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	const char *colon = memchr(at, ':', bytes);
	size_t user = colon ? (size_t)(colon - at) : bytes;

	if (decode(at, user, u->user, sizeof(u->user)))
		return too_long(box, "the user", sizeof(u->user), BROKEN);
	if (colon && decode(colon + 1, bytes - user - 1, u->password, sizeof(u->password)))
		return too_long(box, "the password", sizeof(u->password), BROKEN);
	return 0;
}

/* host[:port], an IPv6 address in brackets, of @bytes. */
static int parse_place(const char *at, size_t bytes, int port, struct cvy_redis_place *to, struct cvy_errbox *box)
{
	const char *end = at + bytes, *after;
	size_t host;

	if (bytes && *at == '[') {
		after = memchr(at, ']', bytes); /* there is one (cvy_url_wrong) */
		host = (size_t)(after++ - ++at);
	} else {
		after = memchr(at, ':', bytes);
		host = after ? (size_t)(after - at) : bytes;
		after = at + host;
	}
	if (!host)
		return bad(box, "a host is missing");
	if (host >= sizeof(to->host))
		return too_long(box, "a host", sizeof(to->host), "");
	memcpy(to->host, at, host);
	to->port = port;
	if (after < end && (*after != ':' || number(after + 1, (size_t)(end - after - 1), 1, 65535, &to->port)))
		return bad(box, "a port is not a number from 1 to 65535");
	return 0;
}

/* Parses user and password before the hosts; @rest and @bytes move past them. */
static int skip_user(const char **rest, size_t *bytes, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	const char *at = memrchr(*rest, '@', *bytes);
	int err = at ? parse_user(*rest, (size_t)(at - *rest), u, box) : 0;

	if (at) {
		*bytes -= (size_t)(at + 1 - *rest);
		*rest = at + 1;
	}
	return err;
}

static int parse_tcp(const char *rest, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	size_t bytes = strcspn(rest, "/?");
	const char *tail = rest + bytes;
	int err = skip_user(&rest, &bytes, u, box);

	if (!err)
		err = parse_place(rest, bytes, REDIS_PORT, &u->server, box);
	if (!err &&
	    (*tail == '?' || (*tail == '/' && tail[1] && number(tail + 1, strlen(tail + 1), 0, DB_MAX, &u->db))))
		return bad(box, "after the host only /db, a number, may stand");
	return err;
}

/* One of the files of TLS: from the URL, else from the environment. */
static int tls_file(const char *name, const char *env, const char *query, char *to, size_t room, struct cvy_errbox *box)
{
	size_t bytes = strlen(name);
	const char *value = getenv(env);

	for (; query && *query; query += strcspn(query, "&"), query += *query == '&')
		if (strncmp(query, name, bytes) == 0 && query[bytes] == '=')
			return decode(query + bytes + 1, strcspn(query + bytes + 1, "&"), to, room)
				       ? too_long(box, "the path of a file", room, BROKEN)
				       : 0;
	if (value && strlen(value) >= room)
		return too_long(box, env, room, "");
	strcpy(to, value ? value : "");
	return 0;
}

/* Only ca, cert and key may follow the ?. */
static int parse_tls(const char *rest, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	size_t bytes = strcspn(rest, "?");
	const char *query = rest[bytes] ? rest + bytes + 1 : NULL;
	char *head;
	int err;

	for (const char *at = query; at && *at; at += strcspn(at, "&"), at += *at == '&')
		if (strncmp(at, "ca=", 3) != 0 && strncmp(at, "cert=", 5) != 0 && strncmp(at, "key=", 4) != 0)
			return bad(box, "after the host only /db and ?ca=FILE&cert=FILE&key=FILE may stand");
	head = strndup(rest, bytes);
	if (!head)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "no memory for the store URL");
	u->tls = 1;
	err = parse_tcp(head, u, box);
	free(head);
	if (!err)
		err = tls_file("ca", "COVEY_STORE_CA", query, u->ca, sizeof(u->ca), box);
	if (!err)
		err = tls_file("cert", "COVEY_STORE_CERT", query, u->cert, sizeof(u->cert), box);
	if (!err)
		err = tls_file("key", "COVEY_STORE_KEY", query, u->key, sizeof(u->key), box);
	return err;
}

static int parse_master(const char *tail, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	size_t bytes = *tail == '/' ? strcspn(++tail, "/?") : 0;

	if (!bytes)
		return bad(box, "after the sentinels the name of the master is missing");
	if (decode(tail, bytes, u->master, sizeof(u->master)))
		return too_long(box, "the name of the master", sizeof(u->master), BROKEN);
	tail += bytes;
	if (*tail == '?' || (*tail == '/' && tail[1] && number(tail + 1, strlen(tail + 1), 0, DB_MAX, &u->db)))
		return bad(box, "after the name of the master only /db, a number, may stand");
	return 0;
}

static int parse_sentinel(const char *rest, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	size_t bytes = strcspn(rest, "/?");
	const char *tail = rest + bytes;
	int err = skip_user(&rest, &bytes, u, box);

	while (!err) {
		size_t one = strcspn(rest, ",/?");

		if (u->sentinels == CVY_SENTINELS_MAX)
			return bad(box, "more than 16 sentinels");
		err = parse_place(rest, one, SENTINEL_PORT, &u->sentinel[u->sentinels++], box);
		rest += one;
		if (rest++ == tail)
			break;
	}
	return err ? err : parse_master(tail, u, box);
}

int cvy_redis_url_parse(const char *url, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	const char *secret = getenv("COVEY_STORE_PASSWORD");
	int err;

	memset(u, 0, sizeof(*u));
	if (!url || !*url)
		return bad(box, "it is empty");
	if (cvy_url_wrong(url))
		return bad(box, cvy_url_wrong(url));
	if (strncmp(url, "redis+sentinel://", 17) == 0)
		err = parse_sentinel(url + 17, u, box);
	else if (strncmp(url, "redis+unix://", 13) == 0)
		err = parse_unix(url + 13, u, box);
	else if (strncmp(url, "rediss://", 9) == 0)
		err = parse_tls(url + 9, u, box);
	else
		err = parse_tcp(url + 8, u, box);
	if (err || u->password[0] || !secret)
		return err;
	if (strlen(secret) >= sizeof(u->password))
		return too_long(box, "COVEY_STORE_PASSWORD", sizeof(u->password), "");
	strcpy(u->password, secret);
	return 0;
}
