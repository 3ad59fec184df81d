/* SPDX-License-Identifier: Apache-2.0 */
/* The listening sockets of a member. Each caller is a stranger until the handshake has proven its identity. */
#include "mesh.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process.h"

#define ACCEPTS_AT_ONCE 16

/* Without a free descriptor a listener would be ready for ever: the spare one accepts the caller and closes it. */
static void accept_none(struct cvy_mesh *mesh, int listener)
{
	char why[CVY_HINT];
	int fd;

	cvy_shake_complain(mesh, "no descriptor left for a connection: it was closed%s",
			   cvy_process_hint(EMFILE, why, sizeof(why)));
	close(mesh->spare_fd);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	mesh->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_all(struct cvy_mesh *mesh, int listener)
{
	int one = 1;

	for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct cvy_conn *conn;

		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			accept_none(mesh, listener);
		if (fd < 0)
			return;
		if (listener != mesh->listen_unix)
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		conn = cvy_conn_new(mesh->loop, fd, 0);
		if (!conn)
			continue;
		conn->mesh = mesh;
		conn->is_unix = listener == mesh->listen_unix;
		cvy_shake_accept(conn);
	}
}

static void accept_unix(void *ctx, uint32_t events)
{
	struct cvy_mesh *mesh = ctx;

	(void)events;
	accept_all(mesh, mesh->listen_unix);
}

/* Accepts at every listener: those without a caller return at once. */
static void accept_tcp(void *ctx, uint32_t events)
{
	struct cvy_mesh *mesh = ctx;

	(void)events;
	for (int i = 0; i < CVY_LISTENERS && mesh->listen_tcp[i] >= 0; i++)
		accept_all(mesh, mesh->listen_tcp[i]);
}

static int listen_tcp(struct cvy_mesh *mesh, const char *interface)
{
	struct cvy_listener at[CVY_LISTENERS];
	int n = cvy_address_listen(interface, at, CVY_LISTENERS, mesh->box);
	size_t used = strlen(mesh->addr), from = 0;

	for (int i = 0; i < n; i++) {
		mesh->listen_tcp[i] = at[i].fd;
		if (used + 1 + strlen(at[i].name) > CVY_ADDR_MAX)
			continue; /* it listens nowhere: nobody calls */
		used += (size_t)snprintf(mesh->addr + used, sizeof(mesh->addr) - used, ",%s", at[i].name);
		if (*interface)
			from += (size_t)snprintf(mesh->from + from, sizeof(mesh->from) - from, "%s%s", from ? "," : "",
						 at[i].name);
	}
	return n < 0 ? n : 0;
}

int cvy_mesh_listen(struct cvy_mesh *mesh, const char *interface)
{
	int err;

	mesh->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	mesh->listen_unix = cvy_address_listen_unix(mesh->addr, sizeof(mesh->addr), mesh->box);
	if (mesh->listen_unix < 0)
		return mesh->listen_unix;
	err = listen_tcp(mesh, interface);
	if (err)
		return err;
	if (cvy_loop_watch(mesh->loop, mesh->listen_unix, EPOLLIN, accept_unix, mesh, &mesh->watch_unix))
		return COVEY_ERR_IO;
	for (int i = 0; i < CVY_LISTENERS && mesh->listen_tcp[i] >= 0; i++)
		if (cvy_loop_watch(mesh->loop, mesh->listen_tcp[i], EPOLLIN, accept_tcp, mesh, &mesh->watch_tcp[i]))
			return COVEY_ERR_IO;
	return 0;
}
