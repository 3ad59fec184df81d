/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of a store, as users write them: what is wrong with one is said, and no password is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "covey.h"
#include "membership.h"
#include "redis_url.h"
#include "store.h"
#include "url.h"

TEST(bad_urls_are_explained)
{
	static const char *const bad[] = { "",
					   "http://x",
					   "redis://",
					   "redis://h:0",
					   "redis://h:x",
					   "redis://h/a",
					   "redis+unix://a",
					   "redis+unix:///a?x=1",
					   "redis://u:p%zz@h",
					   "redis://[::1",
					   "redis+sentinel://h",
					   "redis+sentinel://h/",
					   "redis+sentinel://h,/m",
					   "redis+sentinel://h:1,h:0/m",
					   "redis+sentinel://h/m/x",
					   "redis+sentinel://u:p%zz@h/m",
					   "redis+sentinel://a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q/m" };
	const struct cvy_store_sink sink = { 0 };
	struct covey_error_info info;
	struct cvy_store *store;
	int err;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_eq(cvy_redis_open(bad[i], "g", NULL, &sink, 200, NULL, &store), COVEY_ERR_INVAL);
		cvy_errbox_get(NULL, &info);
		ck_assert_ptr_nonnull(strstr(info.cause, "redis://[user:password@]host"));
		ck_assert_ptr_null(strstr(info.cause, "p%zz"));
	}
	/* With TLS in the build the file is missed, without it TLS is. */
	err = cvy_redis_open("rediss://h?ca=/nowhere", "g", NULL, &sink, 200, NULL, &store);
	cvy_errbox_get(NULL, &info);
	ck_assert_ptr_nonnull(strstr(info.cause, err == COVEY_ERR_UNSUPPORTED ? "hiredis_ssl" : "/nowhere"));
	ck_assert(err == COVEY_ERR_UNSUPPORTED || err == COVEY_ERR_INVAL);
}

TEST(sentinel_urls_are_taken_apart)
{
	struct cvy_redis_url u;

	unsetenv("COVEY_STORE_PASSWORD");
	ck_assert_int_eq(cvy_redis_url_parse("redis+sentinel://me:p%40ss@a:1,[::1]:2,c/my%20master/3", &u, NULL), 0);
	ck_assert_int_eq(u.sentinels, 3);
	ck_assert_str_eq(u.sentinel[0].host, "a");
	ck_assert_int_eq(u.sentinel[0].port, 1);
	ck_assert_str_eq(u.sentinel[1].host, "::1");
	ck_assert_int_eq(u.sentinel[1].port, 2);
	ck_assert_str_eq(u.sentinel[2].host, "c");
	ck_assert_int_eq(u.sentinel[2].port, 26379);
	ck_assert_str_eq(u.master, "my master");
	ck_assert_str_eq(u.user, "me");
	ck_assert_str_eq(u.password, "p@ss");
	ck_assert_int_eq(u.db, 3);
	ck_assert_str_eq(u.server.host, "");
	ck_assert_int_eq(cvy_redis_url_parse("redis://h", &u, NULL), 0);
	ck_assert_int_eq(u.sentinels, 0);
	ck_assert_str_eq(u.server.host, "h");
	ck_assert_int_eq(u.server.port, 6379);
}

/* Tokens of clouds stand for passwords. What is too long is refused, with the limit. */
TEST(urls_have_room_for_tokens)
{
	static char token[CVY_SECRET_BYTES + 1], url[sizeof(token) + 64];
	struct covey_error_info info;
	static struct cvy_redis_url u;

	memset(token, 'a', sizeof(token) - 1);
	for (size_t bytes = CVY_SECRET_BYTES - 1; bytes <= CVY_SECRET_BYTES; bytes++) {
		int want = bytes < CVY_SECRET_BYTES ? 0 : COVEY_ERR_INVAL;

		token[bytes] = '\0';
		snprintf(url, sizeof(url), "rediss://me:%s@h:1", token);
		ck_assert_int_eq(cvy_redis_url_parse(url, &u, NULL), want);
		if (!want)
			ck_assert_str_eq(u.password, token);
		setenv("COVEY_STORE_PASSWORD", token, 1);
		ck_assert_int_eq(cvy_redis_url_parse("redis://h", &u, NULL), want);
		unsetenv("COVEY_STORE_PASSWORD");
		if (!want)
			ck_assert_str_eq(u.password, token);
		token[bytes] = 'a';
	}
	cvy_errbox_get(NULL, &info);
	ck_assert_ptr_nonnull(strstr(info.cause, "COVEY_STORE_PASSWORD is longer than 16383 bytes"));
}

/* A server repeats what it refuses, and cuts it. */
TEST(long_secrets_are_hidden_where_they_are_cut)
{
	char text[200] = "with args beginning with: 'abcdefghijklmnopqrstuvwxyz0123456789ABCDE' a",
	     secret[] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJK";

	cvy_url_hide(text, sizeof(text), secret);
	ck_assert_str_eq(text, "with args beginning with: '***' a");
}

SUITE_MAIN(.name = "membership/store_url")
