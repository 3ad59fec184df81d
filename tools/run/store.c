/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A redis-server for one run. Its configuration is sent to standard input, so that a password never appears in an
 * argument list. It keeps nothing on disk, and lives in the private directory.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interface.h"
#include "run.h"

#define PONG_MS 5000
#define STORE_FILES 128 /* descriptors that a redis-server needs: 32 of its own, the others for clients */
#define STORE_STARTS 6	/* the first and five more */

/* The server's names. redis-check-rdb is the same program, and serves when it is called redis-server. */
static const char *const servers[] = { "redis-server", "valkey-server", "redis-check-rdb", NULL };

/* The IPv4 address that ranks on this machine would offer their peers first. */
static int find_address(char *text, size_t bytes)
{
	static struct cvy_interface list[CVY_INTERFACES];
	const char *setting = getenv("COVEY_INTERFACE");
	char there[300];
	int taken, count = cvy_interface_list(setting ? setting : "", list, CVY_INTERFACES, &taken);

	for (int i = 0; i < taken; i++) {
		if (list[i].addr.ss_family != AF_INET || list[i].kind == CVY_INTERFACE_LOOPBACK)
			continue;
		snprintf(text, bytes, "%s", list[i].text);
		return 0;
	}
	cvy_interface_print(list, count, there, sizeof(there));
	run_say("no IPv4 address for the store, with COVEY_INTERFACE=%.60s: name one with --address; there are: %s",
		setting ? setting : "", count ? there : "none");
	return -1;
}

static int tcp_address(const char *text, int port, struct sockaddr_in *to)
{
	memset(to, 0, sizeof(*to));
	to->sin_family = AF_INET;
	to->sin_port = htons((uint16_t)port);
	return inet_pton(AF_INET, text, &to->sin_addr) == 1 ? 0 : -1;
}

/* If another process takes the port before the server does, the server ends, and another port is tried. */
int run_free_port(const char *address)
{
	struct sockaddr_in at;
	socklen_t length = sizeof(at);
	int fd, port = -1;

	if (tcp_address(address, 0, &at))
		return -1;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !getsockname(fd, (struct sockaddr *)&at, &length))
		port = ntohs(at.sin_port);
	close(fd);
	return port;
}

static int make_password(char text[65])
{
	unsigned char random[32];

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return -1;
	for (int i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", random[i]);
	return 0;
}

static int choose_place(const struct run_options *opt, struct run_store *store)
{
	if (!opt->launch_count && !opt->ssh_count) {
		snprintf(store->socket, sizeof(store->socket), "%s/store", opt->dir);
		snprintf(store->url, sizeof(store->url), "redis+unix://%s", store->socket);
		return 0;
	}
	if (opt->address)
		snprintf(store->address, sizeof(store->address), "%s", opt->address);
	else if (find_address(store->address, sizeof(store->address)))
		return -1;
	store->port = run_free_port(store->address);
	if (store->port <= 0) {
		run_say("the store cannot listen at %s: it is no IPv4 address of this machine", store->address);
		return -1;
	}
	if (make_password(store->password))
		return -1;
	snprintf(store->url, sizeof(store->url), "redis://default:%s@%s:%d/0", store->password, store->address,
		 store->port);
	return 0;
}

static int write_config(const struct run_options *opt, const struct run_store *store, int fd)
{
	int n = dprintf(fd,
			"daemonize no\nsave \"\"\nappendonly no\nmaxmemory-policy noeviction\nloglevel warning\n"
			"dir %s\nlogfile %s/log\n",
			opt->dir, opt->dir);

	if (n < 0)
		return -1;
	if (store->port)
		n = dprintf(fd, "bind %s\nport %d\nrequirepass %s\n", store->address, store->port, store->password);
	else
		n = dprintf(fd, "port 0\nunixsocket %s\nunixsocketperm 700\n", store->socket);
	return n < 0 ? -1 : 0;
}

static void __attribute__((noreturn)) exec_server(int config)
{
	char name[] = "redis-server", from_stdin[] = "-", *argv[] = { name, from_stdin, NULL };
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (null < 0 || dup2(config, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
		_exit(RUN_EXIT_SELF);
	for (int i = 0; servers[i]; i++)
		execvp(servers[i], argv);
	_exit(127);
}

/* The configuration, which a pipe holds, is in it before the server runs: one that ends at once is no broken pipe. */
int run_store_restart(const struct run_options *opt, struct run_store *store)
{
	int ends[2], err;

	if (store->starts++ == STORE_STARTS || pipe2(ends, O_CLOEXEC))
		return -1;
	err = write_config(opt, store, ends[1]);
	close(ends[1]);
	if (!err) {
		store->pid = run_fork();
		if (!store->pid)
			exec_server(ends[0]);
		err = store->pid < 0;
	}
	close(ends[0]);
	return err ? -1 : 0;
}

static int connect_store(const struct run_store *store)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in in;
	int fd, err;

	fd = socket(store->port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", store->socket);
	if (store->port)
		err = tcp_address(store->address, store->port, &in) || connect(fd, (struct sockaddr *)&in, sizeof(in));
	else
		err = connect(fd, (struct sockaddr *)&un, sizeof(un));
	if (!err)
		return fd;
	close(fd);
	return -1;
}

/* 1: it answers PONG. Anything else, another server's answer too, means no. */
static int ping(const struct run_store *store, int timeout_ms)
{
	struct pollfd wait = { .fd = connect_store(store), .events = POLLIN };
	char reply[128] = "";
	ssize_t n = 0, used = 0;
	int pong = 0;

	if (wait.fd < 0)
		return 0;
	if (store->port)
		dprintf(wait.fd, "AUTH %s\r\n", store->password);
	dprintf(wait.fd, "PING\r\n");
	while (!pong && used < (ssize_t)sizeof(reply) - 1 && poll(&wait, 1, timeout_ms) > 0) {
		n = read(wait.fd, reply + used, sizeof(reply) - 1 - (size_t)used);
		if (n <= 0)
			break;
		used += n;
		reply[used] = '\0';
		pong = strstr(reply, "+PONG") != NULL && reply[0] == '+';
	}
	close(wait.fd);
	return pong;
}

/* The last line that the server logged, without its stamp; empty: there is none. */
static void last_words(const struct run_options *opt, char *text, size_t bytes)
{
	char path[96], line[300], *message;
	FILE *file;

	text[0] = '\0';
	snprintf(path, sizeof(path), "%s/log", opt->dir);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		message = strstr(line, " # "); /* PID:ROLE DATE # MESSAGE */
		if (line[0])
			snprintf(text, bytes, "%s", message ? message + 3 : line);
	}
	if (file)
		fclose(file);
}

/* Prints its last message, and the limit that is often too low: with too few descriptors some versions end silently. */
static void say_why_ended(const struct run_options *opt, int status)
{
	struct rlimit files = { 0 };
	char text[64], words[300];

	if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
		run_say("no redis-server found: install redis-tools, or name a store with --store");
		return;
	}
	last_words(opt, words, sizeof(words));
	getrlimit(RLIMIT_NOFILE, &files);
	run_say("redis-server %s at its start%s%s", run_status_text(status, text), words[0] ? ": " : "", words);
	if (files.rlim_max < STORE_FILES)
		run_say("the limit of open files is %lu, and redis-server needs %d: raise it with ulimit -n, or name a "
			"store with --store",
			(unsigned long)files.rlim_max, STORE_FILES);
}

static int wait_for_pong(const struct run_options *opt, struct run_store *store)
{
	uint64_t end = tool_now_ns() + PONG_MS * UINT64_C(1000000);
	int status;

	while (tool_now_ns() < end) {
		if (waitpid(store->pid, &status, WNOHANG) == store->pid) {
			store->pid = 0;
			say_why_ended(opt, status);
			return -1;
		}
		if (ping(store, 1000))
			return 0;
		poll(NULL, 0, 2);
	}
	run_say("redis-server does not answer within %d ms", PONG_MS);
	return -1;
}

static int start_once(const struct run_options *opt, struct run_store *store)
{
	if (choose_place(opt, store))
		return -1;
	if (run_store_restart(opt, store)) {
		run_say("redis-server cannot be started: %s%s", strerror(errno), run_why(errno));
		return -1;
	}
	return wait_for_pong(opt, store);
}

int run_store_start(const struct run_options *opt, struct run_store *store)
{
	if (!start_once(opt, store))
		return 0;
	/* Only a port can be taken by another process: every other failure would repeat. */
	if (!store->port || store->pid)
		return -1;
	run_say("trying another port");
	return start_once(opt, store);
}
