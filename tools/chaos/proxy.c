/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow path to the store: a process that passes bytes between the ranks' connections and the server, each piece
 * delayed by the time in the shared memory. Nothing is lost or reordered.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "plan.h"

#define PAIRS 128 /* connections at a time: more are refused */
#define PIECE 16384
#define LOOK_MS 1

/* One direction of one connection: at most one piece under way. */
struct way {
	int from, to;
	size_t bytes, sent;
	uint64_t due_ns;
	char piece[PIECE];
};

struct pair {
	bool used;
	struct way up, down;
};

static int unix_socket(const char *dir, const char *name, struct sockaddr_un *at)
{
	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(at->sun_path, sizeof(at->sun_path), "%s/%s", dir, name);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void take(struct pair *pairs, const char *dir, int listener)
{
	struct sockaddr_un at;
	int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC), server = unix_socket(dir, "store", &at);
	struct pair *p = pairs;

	while (p < pairs + PAIRS && p->used)
		p++;
	if (client < 0 || server < 0 || p == pairs + PAIRS || connect(server, (struct sockaddr *)&at, sizeof(at))) {
		if (client >= 0)
			close(client);
		if (server >= 0)
			close(server);
		return;
	}
	p->used = true;
	p->up.from = p->down.to = client;
	p->up.to = p->down.from = server;
	p->up.bytes = p->down.bytes = 0;
}

/* -1: the connection is over. */
static int move(struct way *w, uint64_t now, uint64_t delay_ns)
{
	ssize_t n;

	if (!w->bytes) {
		n = recv(w->from, w->piece, sizeof(w->piece), MSG_DONTWAIT);
		if (n <= 0)
			return n < 0 && errno == EAGAIN ? 0 : -1;
		w->bytes = (size_t)n;
		w->sent = 0;
		w->due_ns = now + delay_ns;
	}
	if (now < w->due_ns)
		return 0;
	n = send(w->to, w->piece + w->sent, w->bytes - w->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN ? 0 : -1;
	w->sent += (size_t)n;
	if (w->sent == w->bytes)
		w->bytes = 0;
	return 0;
}

static void __attribute__((noreturn)) serve(struct chaos_run *run, int listener)
{
	static struct pair pairs[PAIRS];
	struct pollfd wait[1 + 2 * PAIRS];

	for (;;) {
		uint64_t delay = __atomic_load_n(&run->crew->proxy_us, __ATOMIC_RELAXED) * UINT64_C(1000), now;
		nfds_t n = 1;
		bool held = false;

		wait[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
		for (struct pair *p = pairs; p < pairs + PAIRS; p++) {
			if (!p->used)
				continue;
			held |= p->up.bytes || p->down.bytes;
			wait[n++] = (struct pollfd){ .fd = p->up.bytes ? -1 : p->up.from, .events = POLLIN };
			wait[n++] = (struct pollfd){ .fd = p->down.bytes ? -1 : p->down.from, .events = POLLIN };
		}
		poll(wait, n, held ? LOOK_MS : -1);
		if (wait[0].revents)
			take(pairs, run->server.dir, listener);
		now = tool_now_ns();
		for (struct pair *p = pairs; p < pairs + PAIRS; p++) {
			if (!p->used || (!move(&p->up, now, delay) && !move(&p->down, now, delay)))
				continue;
			close(p->up.from);
			close(p->up.to);
			p->used = false;
		}
	}
}

int chaos_proxy_start(struct chaos_run *run)
{
	struct sockaddr_un at;
	int listener = unix_socket(run->server.dir, "slow", &at);
	pid_t parent = getpid();

	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, PAIRS)) {
		fprintf(stderr, "ep-chaos: slow proxy: %s\n", strerror(errno));
		return -1;
	}
	run->proxy = fork();
	if (!run->proxy) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(125);
		serve(run, listener);
	}
	close(listener);
	return run->proxy > 0 ? 0 : -1;
}
