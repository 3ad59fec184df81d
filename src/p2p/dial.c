/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the address at which a peer is dialled. They are tried in the peer's order until a connection is made. An
 * address that swallows everything is given up after CVY_CONNECT_MS. The next cycle begins with the address that
 * worked, unless the handshake failed there: then another process may have that address (networks of containers use the
 * same addresses on many hosts), and the next one is tried.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mesh.h"

static void dial_at(struct cvy_peer *peer);

static void note(struct cvy_peer *peer, const char *why)
{
	size_t used = strlen(peer->said);
	char name[CVY_LISTENER_NAME] = "its unix socket";

	if (peer->at >= 0)
		cvy_address_name(peer->addr, peer->at, name, sizeof(name));
	snprintf(peer->said + used, sizeof(peer->said) - used, "%s%s: %s", used ? "; " : "", name, why);
}

/* The tried address is of no use. 1: there is another. */
static int advance(struct cvy_peer *peer, const char *why)
{
	note(peer, why);
	if (!peer->left)
		return 0;
	peer->left--;
	peer->at = (peer->at + 1) % cvy_address_count(peer->addr);
	return 1;
}

static void connect_late(void *ctx)
{
	struct cvy_peer *peer = ctx;

	peer->connect = NULL; /* it fired */
	cvy_peer_dial_next(peer, "no answer in time");
}

static void dial_at(struct cvy_peer *peer)
{
	struct cvy_mesh *mesh = peer->mesh;

	while (!peer->control) {
		const char *why = "no memory";
		int fd = cvy_address_connect(peer->addr, peer->at, mesh->from, &why);

		peer->control = fd < 0 ? NULL : cvy_conn_new(mesh->loop, fd, 1);
		if (!peer->control && !advance(peer, why)) {
			cvy_peer_fail_soon(peer, peer->said);
			return;
		}
	}
	peer->control->is_unix = peer->at == CVY_BY_UNIX;
	peer->dialling = 1;
	if (peer->left)
		peer->connect = cvy_loop_timer(mesh->loop, cvy_now_ns() + CVY_CONNECT_MS * CVY_MS, connect_late, peer);
	cvy_shake_dial(peer->control, peer, 0);
	if (peer->early)
		cvy_peer_fail_soon(peer, peer->early);
}

void cvy_peer_dial(struct cvy_peer *peer, const char *addr, int by_unix)
{
	int count = by_unix ? 1 : cvy_address_count(addr), again = peer->addr && !strcmp(peer->addr, addr);

	if (!again) {
		free(peer->addr);
		peer->addr = strdup(addr);
	}
	peer->said[0] = '\0';
	if (!peer->addr) {
		cvy_peer_fail_soon(peer, "no memory");
		return;
	}
	peer->left = count > 1 ? count - 1 : 0;
	peer->at = by_unix ? CVY_BY_UNIX : again && peer->at > 0 && count ? peer->at % count : 0;
	dial_at(peer);
}

void cvy_peer_dialled(struct cvy_peer *peer)
{
	peer->dialling = 0;
	cvy_loop_cancel(peer->connect);
	peer->connect = NULL;
}

int cvy_peer_dial_next(struct cvy_peer *peer, const char *why)
{
	struct cvy_conn *control = peer->control;

	cvy_peer_dialled(peer);
	if (!advance(peer, why))
		return 0;
	peer->control = NULL;
	cvy_conn_close(control);
	dial_at(peer);
	return 1;
}
