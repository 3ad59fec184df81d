/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA of a mesh: opens and closes the device, fills in its part of a welcome, exchanges keys of regions over the
 * control link, and finds failed completions, by a tick, on links that nobody polls. Agent's thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "rdma.h"
#include "verbs.h"

/* A region that the peer wants to put to, and the answer. */
struct ask {
	int32_t region, err;
	uint32_t key, reserved;
	char text[CVY_CAUSE];
};

/* A waiting thread polls; the tick is for connections without one, and never waits for the lock. */
static void tick(void *ctx)
{
	struct cvy_mesh *mesh = ctx;

	mesh->rdma->tick = NULL; /* it fired */
	if (mesh->rdma->first && !pthread_mutex_trylock(mesh->lock)) {
		for (struct cvy_verbs *v = mesh->rdma->first; v; v = v->next)
			if (v->link && !v->dead)
				cvy_verbs_poll(v);
		pthread_mutex_unlock(mesh->lock);
	}
	mesh->rdma->tick = cvy_loop_timer(mesh->loop, cvy_now_ns() + CVY_RDMA_TICK_MS * CVY_MS, tick, mesh);
}

/* ---- keys of regions ---- */

/* Entries behind a key that is neither requested nor given would wait for ever: then the path is given up. */
static void tell(struct cvy_verbs *v, int type, const struct ask *ask)
{
	struct cvy_mesh *mesh = v->rdma->mesh;

	if (!cvy_mesh_send(mesh, v->rank, v->inc, type, 0, ask, sizeof(*ask)))
		return;
	cvy_mesh_lock(mesh);
	cvy_verbs_lost(v, "a key of a region cannot be told to it");
	cvy_mesh_unlock(mesh);
}

static void ask_on_loop(void *ctx, void *arg)
{
	struct cvy_mesh *mesh = ctx;
	struct cvy_verbs *v = mesh->rdma ? cvy_verbs_find(mesh->rdma, (uint64_t)(uintptr_t)arg) : NULL;
	int region[CVY_RDMA_REGIONS], n = 0;

	if (!v)
		return;
	cvy_mesh_lock(mesh);
	for (int i = 0; i < CVY_RDMA_REGIONS && n < v->wanted; i++) {
		if (v->far.state[i] != CVY_KEY_WANTED)
			continue;
		v->far.state[i] = CVY_KEY_ASKED;
		region[n++] = i;
	}
	v->wanted = 0; /* a later request posts again */
	cvy_mesh_unlock(mesh);
	for (int i = 0; i < n; i++) {
		struct ask ask = { .region = region[i] };

		tell(v, CVY_WIRE_ASK, &ask);
	}
}

void cvy_verbs_ask(struct cvy_verbs *v)
{
	if (cvy_loop_post(v->rdma->mesh->loop, ask_on_loop, v->rdma->mesh, (void *)(uintptr_t)v->number))
		cvy_verbs_lost(v, "no memory to ask for a region");
}

static void give(struct cvy_verbs *v, const struct ask *asked)
{
	const struct cvy_layout *l = &v->rdma->mesh->layout;
	struct ask answer_ = { .region = asked->region };
	int i = asked->region;
	struct cvy_verbs_region r;

	if (i < 0 || i >= cvy_region_count(l))
		return;
	r = cvy_region_get(l, i);
	if (!v->mirror_mr[i])
		v->mirror_mr[i] = cvy_rdma_register(v->rdma, v->mirror + r.at, r.bytes,
						    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, answer_.text,
						    sizeof(answer_.text));
	if (v->mirror_mr[i])
		answer_.key = v->mirror_mr[i]->rkey;
	else
		answer_.err = COVEY_ERR_NOMEM;
	if (answer_.err)
		cvy_warn("p2p", "for rank %d: %s", v->rank, answer_.text);
	tell(v, CVY_WIRE_KEY, &answer_);
}

static void take(struct cvy_verbs *v, const struct ask *given)
{
	struct cvy_mesh *mesh = v->rdma->mesh;
	int i = given->region;
	char cause[CVY_CAUSE];

	if (i < 0 || i >= cvy_region_count(&mesh->layout))
		return;
	if (given->err) {
		snprintf(cause, sizeof(cause), "it cannot register region %d of its mirror", i);
		cvy_mesh_lock(mesh);
		cvy_verbs_unfit(v, cause);
		cvy_mesh_unlock(mesh);
		return;
	}
	cvy_mesh_lock(mesh);
	if (v->far.state[i] == CVY_KEY_ASKED) {
		v->far.key[i] = given->key;
		v->far.state[i] = CVY_KEY_HERE;
		if (v->link)
			cvy_verbs_poll(v);
	}
	cvy_mesh_unlock(mesh);
}

void cvy_rdma_frame(struct cvy_peer *peer, const struct cvy_wire *head, const uint8_t *body)
{
	struct ask ask;

	if (head->bytes != sizeof(ask) || !peer->verbs || !peer->verbs->established)
		return;
	memcpy(&ask, body, sizeof(ask));
	if (head->type == CVY_WIRE_ASK)
		give(peer->verbs, &ask);
	else
		take(peer->verbs, &ask);
}

/* ---- of a mesh ---- */

void cvy_rdma_welcome(struct cvy_peer *peer, struct cvy_welcome *welcome)
{
	const struct cvy_rdma *rdma = peer->mesh->rdma;

	if (!rdma || peer->rdma_off == peer->inc)
		return;
	randombytes_buf(peer->rdma_cookie, sizeof(peer->rdma_cookie));
	memcpy(welcome->rdma_cookie, peer->rdma_cookie, sizeof(welcome->rdma_cookie));
	cvy_rdma_map((const struct sockaddr *)&rdma->addr, welcome->rdma_ip);
	welcome->rdma_port =
		ntohs(rdma->addr.ss_family == AF_INET ? ((const struct sockaddr_in *)&rdma->addr)->sin_port
						      : ((const struct sockaddr_in6 *)&rdma->addr)->sin6_port);
}

static int open_all(struct cvy_rdma *rdma, const struct cvy_config *config, char *why, size_t bytes)
{
	struct cvy_mesh *mesh = rdma->mesh;
	struct cvy_rdma_wish wish = { .gid = -1, .interface = config->interface ? config->interface : "" };
	int err;

	if (cvy_rdma_parse(config->rdma_device ? config->rdma_device : "", &wish)) {
		snprintf(why, bytes, "rdma_device \"%.60s\": it must be NAME, NAME:PORT or NAME:PORT/GID",
			 config->rdma_device);
		return COVEY_ERR_UNSUPPORTED;
	}
	err = cvy_rdma_device_open(rdma, &wish, why, bytes);
	if (err)
		return err;
	rdma->ack_timeout = cvy_rdma_ack_timeout(config->rdma_ms);
	rdma->ready_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
	rdma->own = calloc((size_t)cvy_region_count(&mesh->layout), sizeof(struct ibv_mr *));
	if (rdma->ready_fd < 0 || !rdma->own ||
	    fcntl(rdma->channel->fd, F_SETFL, fcntl(rdma->channel->fd, F_GETFL) | O_NONBLOCK) ||
	    cvy_loop_watch(mesh->loop, rdma->channel->fd, EPOLLIN, cvy_verbs_events, mesh, &rdma->watch)) {
		snprintf(why, bytes, "no memory or descriptor for RDMA");
		return COVEY_ERR_UNSUPPORTED;
	}
	rdma->own[0] = cvy_rdma_register(rdma, mesh->window->own, mesh->layout.heap, 0, why, bytes);
	if (!rdma->own[0])
		return COVEY_ERR_UNSUPPORTED;
	rdma->tick = cvy_loop_timer(mesh->loop, cvy_now_ns() + CVY_RDMA_TICK_MS * CVY_MS, tick, mesh);
	return rdma->tick ? 0 : COVEY_ERR_NOMEM;
}

int cvy_rdma_open(struct cvy_mesh *mesh, const struct cvy_config *config, char *why, size_t bytes)
{
	struct cvy_rdma *rdma = calloc(1, sizeof(*rdma));
	int err;

	snprintf(why, bytes, "no memory");
	if (!rdma)
		return COVEY_ERR_NOMEM;
	rdma->mesh = mesh;
	rdma->ready_fd = -1;
	mesh->rdma = rdma;
	err = open_all(rdma, config, why, bytes);
	if (err)
		cvy_rdma_close(mesh);
	else
		cvy_info("p2p", "%s", rdma->what);
	return err;
}

void cvy_rdma_close(struct cvy_mesh *mesh)
{
	struct cvy_rdma *rdma = mesh->rdma;

	if (!rdma)
		return;
	while (rdma->first)
		cvy_verbs_free(rdma->first);
	cvy_loop_cancel(rdma->tick);
	cvy_loop_unwatch(rdma->watch);
	for (int i = 0; rdma->own && i < cvy_region_count(&mesh->layout); i++)
		if (rdma->own[i])
			rdma->api->ibv_dereg_mr(rdma->own[i]);
	free(rdma->own);
	if (rdma->pd)
		rdma->api->ibv_dealloc_pd(rdma->pd);
	if (rdma->listener)
		rdma->api->rdma_destroy_id(rdma->listener);
	if (rdma->channel)
		rdma->api->rdma_destroy_event_channel(rdma->channel);
	if (rdma->ready_fd >= 0)
		close(rdma->ready_fd);
	free(rdma);
	mesh->rdma = NULL;
}

void cvy_rdma_forget(struct cvy_mesh *mesh)
{
	struct cvy_rdma *rdma = mesh->rdma;

	if (!rdma)
		return;
	if (rdma->channel)
		close(rdma->channel->fd);
	close(rdma->ready_fd);
}
