/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store URL before anything is taken out of it. The one idea: no text of a URL is printed before this has shown where
 * its user and password end. A character that they may not have (?, /) would let a part of a password pass for a
 * parameter, a database or a host, and each of these is named in messages.
 */
#ifndef CVY_URL_H
#define CVY_URL_H

#include <stddef.h>

#define CVY_URL_RIGHT "redis://, rediss://, redis+unix:// or redis+sentinel://"

/* What is wrong with @url, in a text that repeats none of it; NULL: nothing here. */
const char *cvy_url_wrong(const char *url);

/* Each word of @text that is @secret becomes ***; for texts that a server made. An empty secret hides nothing. */
void cvy_url_hide(char *text, size_t bytes, const char *secret);

#endif
