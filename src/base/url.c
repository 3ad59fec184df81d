/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where user and password of a store URL end. A URL that passes here goes to the parser of the store client. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "url.h"

#define ENOUGH 32 /* bytes by which a secret is known that a server has cut */

/* The part after the scheme; NULL: not a scheme of a store. */
static const char *behind_scheme(const char *url)
{
	static const char *const scheme[] = { "redis://", "rediss://", "redis+unix://", "redis+sentinel://" };

	for (size_t i = 0; i < sizeof(scheme) / sizeof(scheme[0]); i++)
		if (!strncmp(url, scheme[i], strlen(scheme[i])))
			return url + strlen(scheme[i]);
	return NULL;
}

/* host[:port] or [address][:port], of @bytes. */
static const char *place_wrong(const char *at, size_t bytes)
{
	const char *end = at + bytes, *host = at, *port;

	if (bytes && *at == '[') {
		port = memchr(at, ']', bytes);
		if (!port)
			return "the [ of an IPv6 address has no ]";
		for (host++; host < port; host++)
			if (!isalnum((unsigned char)*host) && !strchr(":.%", *host))
				return "between [ and ] stands no IPv6 address";
		port++;
	} else {
		port = memchr(at, ':', bytes);
		port = port ? port : end;
		for (; host < port; host++)
			if (!isalnum((unsigned char)*host) && !strchr("._-", *host))
				return "a host has a character that no name of a host has";
	}
	if (port == end)
		return NULL;
	if (*port++ != ':' || port == end || end - port > 5)
		return "a port is not a number from 1 to 65535";
	for (; port < end; port++)
		if (!isdigit((unsigned char)*port))
			return "a port is not a number from 1 to 65535";
	return NULL;
}

/* The hosts, with commas between, of @bytes. */
static const char *places_wrong(const char *at, size_t bytes)
{
	const char *end = at + bytes, *why = NULL;

	while (!why && at <= end) {
		const char *comma = memchr(at, ',', (size_t)(end - at));
		size_t one = comma ? (size_t)(comma - at) : (size_t)(end - at);

		why = place_wrong(at, one);
		at += one + 1;
	}
	return why;
}

const char *cvy_url_wrong(const char *url)
{
	const char *rest = behind_scheme(url), *query, *at;
	size_t bytes;

	if (!rest)
		return "it does not begin with " CVY_URL_RIGHT;
	for (const char *c = rest; *c; c++)
		if ((unsigned char)*c <= ' ' || *c == 0x7f)
			return "it has a space or a control character in it";
	query = strchr(rest, '?');
	if (query && strchr(query, '@'))
		return "an @ stands behind a ?: in a user or a password write ? as %3F, in a parameter write @ as %40";
	if (!strncmp(url, "redis+unix://", 13))
		return *rest == '/' ? NULL : "the path of the socket is missing or not absolute";
	bytes = strcspn(rest, "/?");
	if (strchr(rest + bytes, '@'))
		return "an @ stands behind a /: in a user or a password write / as %2F, elsewhere write @ as %40";
	at = memrchr(rest, '@', bytes);
	return at ? places_wrong(at + 1, bytes - (size_t)(at + 1 - rest)) : places_wrong(rest, bytes);
}

/* The first place in @text of @secret, or of so much of it as a server may have left; *len: its bytes there. */
static char *find_secret(char *text, const char *secret, size_t *len)
{
	char start[ENOUGH + 1];
	char *at;

	snprintf(start, sizeof(start), "%s", secret);
	at = strstr(text, start);
	for (*len = strlen(start); at && secret[*len] && at[*len] == secret[*len]; ++*len)
		;
	return at;
}

void cvy_url_hide(char *text, size_t bytes, const char *secret)
{
	char *at = text;
	size_t len;

	while (*secret && (at = find_secret(at, secret, &len))) {
		size_t room = bytes - (size_t)(at - text), left = strlen(at + len) + 1;

		if (len < ENOUGH &&
		    ((at > text && isalnum((unsigned char)at[-1])) || isalnum((unsigned char)at[len]))) {
			at++;
			continue;
		}
		if (room < 3 + left) { /* no room: end the text here, without half of the *** */
			*at = '\0';
			return;
		}
		memmove(at + 3, at + len, left);
		memcpy(at, "***", 3);
		at += 3;
	}
}
