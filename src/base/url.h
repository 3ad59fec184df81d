/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the store URL before it is parsed. No part of a URL is printed before this has found where its user and
 * password end. With a character that they may not have (?, /) a part of a password would pass for a parameter, a
 * database or a host, which messages name.
 */
#ifndef CVY_URL_H
#define CVY_URL_H

#include <stddef.h>

#define CVY_URL_RIGHT "redis://, rediss://, redis+unix:// or redis+sentinel://"

/* The error in @url, in a text that repeats no part of it; NULL: none found here. */
const char *cvy_url_wrong(const char *url);

/* Replaces each word of @text that is @secret by ***; for texts of a server. An empty secret hides nothing. */
void cvy_url_hide(char *text, size_t bytes, const char *secret);

#endif
