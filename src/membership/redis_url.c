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
#define REDIS_PORT 6379
#define SENTINEL_PORT 26379

static int bad(struct cvy_errbox *box, const char *what)
{
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "store URL: %s" RIGHT, what);
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
		return bad(box, "the path of the socket is longer than 107 bytes or has a broken % escape");
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
		return bad(box, "the user is too long or has a broken % escape");
	if (colon && decode(colon + 1, bytes - user - 1, u->password, sizeof(u->password)))
		return bad(box, "the password is too long or has a broken % escape");
	return 0;
}

/* host[:port], an IPv6 address in brackets, of @bytes. */
static int parse_place(const char *at, size_t bytes, int port, struct cvy_redis_place *to, struct cvy_errbox *box)
{
	const char *end = at + bytes, *after;
	size_t host;

	if (bytes && *at == '[') {
		after = memchr(at, ']', bytes);
		if (!after)
			return bad(box, "the [ of an IPv6 address has no ]");
		host = (size_t)(after++ - ++at);
	} else {
		after = memchr(at, ':', bytes);
		host = after ? (size_t)(after - at) : bytes;
		after = at + host;
	}
	if (!host || host >= sizeof(to->host))
		return bad(box, "a host is missing or too long");
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
				       ? bad(box, "the path of a file is too long or has a broken % escape")
				       : 0;
	if (value && strlen(value) >= room)
		return bad(box, "the path of a file is too long");
	strcpy(to, value ? value : "");
	return 0;
}

/* Only ca, cert and key may follow the ?. */
static int parse_tls(const char *rest, struct cvy_redis_url *u, struct cvy_errbox *box)
{
	char head[600];
	size_t bytes = strcspn(rest, "?");
	const char *query = rest[bytes] ? rest + bytes + 1 : NULL;
	int err;

	if (bytes >= sizeof(head))
		return bad(box, "it is too long");
	memcpy(head, rest, bytes);
	head[bytes] = '\0';
	for (const char *at = query; at && *at; at += strcspn(at, "&"), at += *at == '&')
		if (strncmp(at, "ca=", 3) != 0 && strncmp(at, "cert=", 5) != 0 && strncmp(at, "key=", 4) != 0)
			return bad(box, "after the host only /db and ?ca=FILE&cert=FILE&key=FILE may stand");
	u->tls = 1;
	err = parse_tcp(head, u, box);
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

	if (!bytes || decode(tail, bytes, u->master, sizeof(u->master)))
		return bad(box,
			   "after the sentinels the name of the master is missing, too long or has a broken % escape");
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
	if (!err && !u->password[0] && secret && strlen(secret) < sizeof(u->password))
		strcpy(u->password, secret);
	return err;
}
