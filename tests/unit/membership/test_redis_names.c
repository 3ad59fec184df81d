/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name that stands for several addresses, as localhost often does: the store, and a Sentinel, are looked for at each
 * of them in order, and an error names each with its cause. The resolver here knows one more name. Skipped (77) where
 * there is no server.
 */
#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../server.h"
#include "../../suite.h"
#include "clock.h"
#include "covey_admin.h"

#define WATCHDOG_MS 20000

/* For the resolver's own program, the library and hiredis: `three.test` is 127.0.0.3, then .2, then .1; `none.test` is not
 * known. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hint, struct addrinfo **list)
{
	static const char *const ip[] = { "127.0.0.3", "127.0.0.2", "127.0.0.1" };
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	struct addrinfo **at = list;
	int err = 0;

	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (host && !strcmp(host, "none.test"))
		return EAI_NONAME;
	if (!host || strcmp(host, "three.test") != 0 || (hint && (hint->ai_flags & AI_NUMERICHOST)))
		return real(host, port, hint, list);
	for (int i = 0; i < 3 && !err; i++) {
		err = real(ip[i], port, hint, at);
		while (!err && *at)
			at = &(*at)->ai_next;
	}
	return err;
}

/* A socket at @ip and @port (0: any), listening or not; its port into *@port. */
static int place(const char *ip, int *port, int listening)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	ck_assert_int_eq(inet_pton(AF_INET, ip, &at.sin_addr), 1);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	*port = ntohs(at.sin_port);
	if (listening)
		ck_assert_int_eq(listen(fd, 8), 0);
	return fd;
}

static pid_t server;
static int port;

static void server_start(void)
{
	port = server_free_port();
	server = server_begin("--port %d --bind 127.0.0.1 --dir /tmp", port);
	server_wait(port);
}

static void server_stop(void)
{
	server_end(server);
}

/* What a request to @url ends with; the cause into @cause. */
static int ask(const char *url, int ms, char *cause, size_t bytes)
{
	const char *argv[] = { "peek" };
	struct covey_error_info info;
	int err = covey_admin_call(url, "g", 1, argv, cvy_now_ns() + (uint64_t)ms * CVY_MS, NULL, NULL);

	covey_last_error(NULL, &info);
	snprintf(cause, bytes, "%s", info.cause);
	return err;
}

/* Asks with more and more time until the cause has @why: a machine under load is slow. */
static int ask_until(const char *url, const char *why, char *cause, size_t bytes)
{
	int err = COVEY_OK;

	cause[0] = '\0';
	for (int ms = 300; ms < WATCHDOG_MS && !strstr(cause, why); ms *= 2)
		err = ask(url, ms, cause, bytes);
	return err;
}

TEST(a_store_is_found_at_the_last_address_of_its_name)
{
	char url[80], cause[240];

	snprintf(url, sizeof(url), "redis://three.test:%d", port);
	ck_assert_msg(ask(url, WATCHDOG_MS, cause, sizeof(cause)) == COVEY_ERR_REFUSED, "%s", cause);
	ck_assert_msg(strstr(cause, "no group named g") != NULL, "%s", cause);
}

/* What is at the first address takes the connection and says nothing. */
TEST(an_address_that_is_silent_leaves_time_for_the_next)
{
	int silent = place("127.0.0.3", &port, 1);
	char url[80], cause[240];

	snprintf(url, sizeof(url), "redis://three.test:%d", port);
	ck_assert_msg(ask(url, WATCHDOG_MS, cause, sizeof(cause)) == COVEY_ERR_REFUSED, "%s", cause);
	close(silent);
}

TEST(a_store_that_is_nowhere_is_named_with_each_address)
{
	char url[80], cause[240], want[3][60];
	int nobody = 0, fd = place("127.0.0.1", &nobody, 0);

	snprintf(url, sizeof(url), "redis://three.test:%d", nobody);
	for (int i = 0; i < 3; i++)
		snprintf(want[i], sizeof(want[i]), "127.0.0.%d:%d: Connection refused", 3 - i, nobody);
	ck_assert_int_eq(ask_until(url, want[2], cause, sizeof(cause)), COVEY_ERR_STORE);
	for (int i = 0; i < 3; i++)
		ck_assert_msg(strstr(cause, want[i]) != NULL, "no %s in: %s", want[i], cause);
	ck_assert(strstr(cause, want[0]) < strstr(cause, want[1]) && strstr(cause, want[1]) < strstr(cause, want[2]));
	ck_assert_ptr_nonnull(strstr(cause, "three.test"));
	close(fd);
}

static void *sentinel(void *arg)
{
	int listener = *(int *)arg, fd = accept(listener, NULL, NULL);
	char question[400], answer[80], text[8];
	ssize_t n;

	snprintf(text, sizeof(text), "%d", port);
	snprintf(answer, sizeof(answer), "*2\r\n$10\r\nthree.test\r\n$%zu\r\n%s\r\n", strlen(text), text);
	n = fd < 0 ? -1 : read(fd, question, sizeof(question));
	if (n > 0)
		n = write(fd, answer, strlen(answer));
	return (void *)(intptr_t)(n > 0 ? fd : -1);
}

/* The name of the Sentinel has three addresses, and so has that of the master that it names. */
TEST(a_sentinel_and_its_master_are_found_at_their_last_address)
{
	char url[80], cause[240];
	int at = 0, listener = place("127.0.0.1", &at, 1);
	pthread_t thread;
	void *end;

	ck_assert_int_eq(pthread_create(&thread, NULL, sentinel, &listener), 0);
	snprintf(url, sizeof(url), "redis+sentinel://three.test:%d/m", at);
	ck_assert_msg(ask(url, WATCHDOG_MS, cause, sizeof(cause)) == COVEY_ERR_REFUSED, "%s", cause);
	pthread_join(thread, &end);
	ck_assert_int_ge((int)(intptr_t)end, 0);
	close((int)(intptr_t)end);
	close(listener);
	/* Nobody listens there any longer. */
	ck_assert_int_eq(ask_until(url, "(127.0.0.1): Connection refused", cause, sizeof(cause)), COVEY_ERR_STORE);
	ck_assert_msg(strstr(cause, "(127.0.0.3): Connection refused") &&
			      strstr(cause, "(127.0.0.1): Connection refused"),
		      "%s", cause);
}

struct node {
	int listener;
	char moved[40]; /* HOST:PORT */
	pthread_t thread;
};

/* A node of a cluster: it sends whoever asks for the slot elsewhere. */
static void *node_main(void *arg)
{
	static const char info[] = "redis_version:7.0.0\r\nredis_mode:cluster\r\n";
	const struct node *node = arg;
	char question[400];
	ssize_t n;
	int fd;

	while ((fd = accept(node->listener, NULL, NULL)) >= 0) {
		while ((n = read(fd, question, sizeof(question) - 1)) > 0) {
			question[n] = '\0';
			if (strstr(question, "INFO"))
				dprintf(fd, "$%zu\r\n%s\r\n", strlen(info), info);
			else
				dprintf(fd, "-MOVED 7629 %s\r\n", node->moved);
		}
		close(fd);
	}
	return NULL;
}

static void node_close(struct node *node)
{
	shutdown(node->listener, SHUT_RDWR); /* accept() fails then */
	pthread_join(node->thread, NULL);
	close(node->listener);
}

/* What a request to a name ends with whose first address is such a node. */
static int ask_node(const char *moved, int ms, char *cause, size_t bytes)
{
	int at = 0, err;
	struct node node = { .listener = place("127.0.0.3", &at, 1) };
	char url[80];

	snprintf(node.moved, sizeof(node.moved), "%s", moved);
	ck_assert_int_eq(pthread_create(&node.thread, NULL, node_main, &node), 0);
	snprintf(url, sizeof(url), "redis://three.test:%d", at);
	err = ask(url, ms, cause, bytes);
	node_close(&node);
	return err;
}

TEST(nodes_that_name_each_other_are_named)
{
	static const char why[] = "name each other for the group's slot: MOVED 7629";
	struct node node[2];
	int at[2] = { 0 };
	char url[80], cause[240];

	for (int i = 0; i < 2; i++)
		node[i].listener = place("127.0.0.1", &at[i], 1);
	for (int i = 0; i < 2; i++) {
		snprintf(node[i].moved, sizeof(node[i].moved), "127.0.0.1:%d", at[!i]);
		ck_assert_int_eq(pthread_create(&node[i].thread, NULL, node_main, &node[i]), 0);
	}
	snprintf(url, sizeof(url), "redis://127.0.0.1:%d", at[0]);
	ck_assert_int_eq(ask_until(url, why, cause, sizeof(cause)), COVEY_ERR_STORE);
	ck_assert_msg(strstr(cause, why) != NULL, "%s", cause);
	for (int i = 0; i < 2; i++)
		node_close(&node[i]);
}

TEST(a_node_that_is_named_is_found_at_the_last_address_of_its_name)
{
	char cause[240], moved[40];

	snprintf(moved, sizeof(moved), "three.test:%d", port);
	ck_assert_msg(ask_node(moved, WATCHDOG_MS, cause, sizeof(cause)) == COVEY_ERR_REFUSED, "%s", cause);
	ck_assert_msg(strstr(cause, "no group named g") != NULL, "%s", cause);
}

/* The other addresses of the URL belong to another port. */
TEST(a_node_whose_name_is_unknown_is_named)
{
	char cause[240] = "";

	for (int ms = 300; ms < WATCHDOG_MS && !strstr(cause, "none.test"); ms *= 2)
		ck_assert_int_eq(ask_node("none.test:1", ms, cause, sizeof(cause)), COVEY_ERR_STORE);
	ck_assert_msg(strstr(cause, "none.test") && !strstr(cause, "127.0.0.2:1:"), "%s", cause);
}

int main(void)
{
	if (system("command -v redis-server > /dev/null") != 0) {
		puts("skipped: there is no redis-server on PATH");
		return 77;
	}
	return suite_run(SUITE(.name = "membership/redis_names", .setup = server_start, .teardown = server_stop,
			       .timeout_s = 60));
}
