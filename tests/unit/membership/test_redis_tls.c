/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rediss:// against a private redis-server with a made-up authority: a certificate that is right, and each way in which
 * one can be wrong. Skipped (77) where the build has no TLS, or there is no openssl or no redis-server that speaks it.
 *
 * labels: redis
 */
#include <check.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../server.h"
#include "../../suite.h"
#include "clock.h"
#include "covey.h"
#include "loop.h"
#include "membership.h"
#include "store.h"

#define WATCHDOG_MS 20000

/*
 * ca signs good (for localhost and 127.0.0.1), other_name, old (its time is over) and client; other_ca signs nothing.
 */
static const char make_certificates[] =
	"set -e; cd \"$DIR\"; q='-nodes -newkey rsa:2048 -batch'\n"
	"openssl req -x509 $q -days 2 -subj /CN=ca -keyout ca.key -out ca.crt\n"
	"openssl req -x509 $q -days 2 -subj /CN=other -keyout other_ca.key -out other_ca.crt\n"
	"sign() { openssl req $q -subj /CN=$1 -keyout $1.key -out $1.csr; printf '%s' \"$2\" > $1.ext\n"
	"  openssl x509 -req -in $1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile $1.ext -out $1.crt $3 $4; }\n"
	"sign good subjectAltName=DNS:localhost,IP:127.0.0.1 -days 2\n"
	"sign other_name subjectAltName=DNS:elsewhere.example -days 2\n"
	"sign client subjectAltName=DNS:client -days 2\n"
	"mkdir db; : > db/index; echo 01 > db/serial\n"
	"printf "
	"'[ca]\\ndefault_ca=d\\n[d]\\ndatabase=db/index\\nserial=db/serial\\nnew_certs_dir=db\\ndefault_md=sha256\\n"
	"policy=p\\n[p]\\ncommonName=supplied\\n' > ca.conf\n"
	"openssl req $q -subj /CN=old -keyout old.key -out old.csr; cp good.ext old.ext\n"
	"openssl ca -batch -config ca.conf -in old.csr -cert ca.crt -keyfile ca.key -extfile old.ext -out old.crt "
	"-startdate 20200101000000Z -enddate 20200102000000Z\n";

struct world {
	char dir[64], url[600], cause[400];
	const char *host;
	int port, up, down_err, replied;
	pid_t server;
	struct cvy_loop *loop;
	struct cvy_store *store;
	uint64_t give_up_ns;
};

static struct world w;

static void on_reply(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause)
{
	(void)ctx, (void)id, (void)argc, (void)argv;
	w.replied = 1;
	w.down_err = err;
	snprintf(w.cause, sizeof(w.cause), "%s", cause ? cause : "");
}

static void on_notice(void *ctx, const char *text)
{
	(void)ctx, (void)text;
}

static void on_up(void *ctx)
{
	const char *const peek[] = { "peek", "" };

	(void)ctx;
	w.up++;
	w.store->ops->call(w.store, 1, 1, peek);
}

static void on_down(void *ctx, int err, const char *cause)
{
	(void)ctx;
	w.down_err = err;
	snprintf(w.cause, sizeof(w.cause), "%s", cause);
}

static void on_tick(void *ctx, uint64_t now_ns)
{
	(void)ctx;
	if (w.replied || w.down_err || now_ns > w.give_up_ns)
		cvy_loop_stop(w.loop);
}

/* Until a first call is answered, or the store is given up: the error. */
static int client(const char *options)
{
	const struct cvy_store_sink sink = { NULL, on_reply, on_notice, on_up, on_down };
	int tick_ms = 5;

	snprintf(w.url, sizeof(w.url), "rediss://%s:%d?%s", w.host, w.port, options);
	w.up = w.down_err = w.replied = 0;
	w.cause[0] = '\0';
	ck_assert_int_eq(cvy_loop_new(&w.loop), 0);
	ck_assert_int_eq(cvy_redis_open(w.url, "g", w.loop, &sink, 200, NULL, &w.store), 0);
	w.give_up_ns = cvy_now_ns() + WATCHDOG_MS * CVY_MS;
	cvy_loop_run(w.loop, on_tick, NULL, &tick_ms);
	ck_assert_msg(w.replied || w.down_err, "waited in vain");
	w.store->ops->close(w.store);
	cvy_loop_free(w.loop);
	return w.down_err;
}

static const char *trusting(const char *ca)
{
	static char text[200];

	snprintf(text, sizeof(text), "ca=%s/%s.crt", w.dir, ca);
	return text;
}

static const char *presenting(const char *name)
{
	static char text[400];

	snprintf(text, sizeof(text), "ca=%s/ca.crt&cert=%s/%s.crt&key=%s/%s.key", w.dir, w.dir, name, w.dir, name);
	return text;
}

/* @cert: whose certificate the server shows, NULL: it speaks without TLS. */
static void server(const char *cert, const char *clients)
{
	w.port = server_free_port();
	if (cert)
		w.server = server_begin(
			"--bind 127.0.0.1 --port 0 --tls-port %d --tls-cert-file %s/%s.crt --tls-key-file %s/%s.key "
			"--tls-ca-cert-file %s/ca.crt --tls-auth-clients %s --dir %s",
			w.port, w.dir, cert, w.dir, cert, w.dir, clients, w.dir);
	else
		w.server = server_begin("--bind 127.0.0.1 --port %d --dir %s", w.port, w.dir);
	server_wait(w.port);
}

static void setup(void)
{
	snprintf(w.dir, sizeof(w.dir), "%s", getenv("DIR"));
	unsetenv("COVEY_STORE_CA");
	w.host = "127.0.0.1";
}

static void teardown(void)
{
	if (w.server)
		server_end(w.server);
	w.server = 0;
}

TEST(who_proves_its_name_is_served)
{
	server("good", "no");
	ck_assert_int_eq(client(trusting("ca")), 0);
	ck_assert_int_eq(w.up, 1);
	setenv("COVEY_STORE_CA", trusting("ca") + 3, 1); /* the same from the environment */
	ck_assert_int_eq(client(""), 0);
	w.host = "localhost";
	if (gethostbyname(w.host)) /* not everywhere */
		ck_assert_int_eq(client(""), 0);
}

static const struct wrong {
	const char *cert, *trusted;
	int err;
	const char *cause;
} wrongs[] = {
	{ "good", "other_ca", COVEY_ERR_AUTH, "certificate" },
	{ "old", "ca", COVEY_ERR_AUTH, "expired" },
	{ "other_name", "ca", COVEY_ERR_AUTH, "mismatch" },
	{ NULL, "ca", COVEY_ERR_STORE, "speak TLS on this port" },
};

TEST_LOOP(what_is_wrong_with_a_certificate_is_named, 0, sizeof(wrongs) / sizeof(wrongs[0]))
{
	int err;

	server(wrongs[_i].cert, "no");
	err = client(trusting(wrongs[_i].trusted));
	if (!wrongs[_i].cert && err == COVEY_ERR_INVAL) /* it took the greeting for a line, and answered */
		err = COVEY_ERR_STORE;
	ck_assert_int_eq(err, wrongs[_i].err);
	ck_assert_msg(strcasestr(w.cause, wrongs[_i].cause) != NULL, "\"%s\" lacks \"%s\"", w.cause, wrongs[_i].cause);
	ck_assert_int_eq(w.up, 0);
}

TEST(a_server_may_ask_for_a_certificate)
{
	server("good", "yes");
	ck_assert_int_eq(client(presenting("client")), 0);
	ck_assert_int_eq(client(trusting("ca")), COVEY_ERR_AUTH);
	ck_assert_msg(strstr(w.cause, "certificate") != NULL, "%s", w.cause);
}

TEST(files_that_are_of_no_use_are_named)
{
	static const char *const lines[][2] = {
		{ "rediss://h?ca=/nowhere", "/nowhere" },
		{ "rediss://h?cert=/nowhere", "given together" },
		{ "rediss://h?cert=/nowhere&key=/nowhere", "/nowhere" },
		{ "rediss://h?caa=/x", "may stand" },
	};
	const struct cvy_store_sink sink = { 0 };
	struct covey_error_info info;
	struct cvy_store *store;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		ck_assert_int_eq(cvy_redis_open(lines[i][0], "g", NULL, &sink, 200, NULL, &store), COVEY_ERR_INVAL);
		cvy_errbox_get(NULL, &info);
		ck_assert_msg(strstr(info.cause, lines[i][1]) != NULL, "%s: %s", lines[i][0], info.cause);
	}
}

static int can_run(void)
{
	const struct cvy_store_sink sink = { 0 };
	struct cvy_store *store;

	if (cvy_redis_open("rediss://h?caa=", "g", NULL, &sink, 200, NULL, &store) != COVEY_ERR_INVAL ||
	    cvy_redis_open("rediss://h?ca=/nowhere", "g", NULL, &sink, 200, NULL, &store) == COVEY_ERR_UNSUPPORTED) {
		puts("skipped: this build has no TLS");
		return 0;
	}
	if (system("command -v openssl redis-server > /dev/null && redis-server --tls-port x 2>&1 | grep -q integer")) {
		puts("skipped: there is no openssl, or no redis-server that speaks TLS");
		return 0;
	}
	return 1;
}

int main(void)
{
	char dir[] = "/tmp/covey-tls-XXXXXX", command[64];
	int failed;

	if (!can_run())
		return 77;
	if (!mkdtemp(dir) || setenv("DIR", dir, 1) || freopen("/dev/null", "w", stderr) == NULL ||
	    system(make_certificates)) {
		puts("openssl makes no certificates");
		return EXIT_FAILURE;
	}
	failed =
		suite_run(SUITE(.name = "membership/redis_tls", .setup = setup, .teardown = teardown, .timeout_s = 60));
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
