/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: own window, the windows of the peers, one link per peer, and the calls of the agent and the engine. */
#include "mesh.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "fault.h"
#include "hash.h"
#include "log.h"
#include "process.h"
#include "rdma.h"
#include "size.h"

/* A link that lacks memory is one that failed: membership tries again later. No link to a rank that is none, or ours. */
static struct cvy_peer *peer_or_down(struct cvy_mesh *mesh, int rank, uint64_t inc)
{
	struct cvy_event event = { .kind = CVY_EV_LINK_DOWN, .rank = rank, .inc = inc, .text = "no memory for a link" };
	struct cvy_peer *peer = cvy_peer_get(mesh, rank);

	if (!peer && rank >= 0 && rank < mesh->max_ranks && rank != mesh->id.rank)
		cvy_post(&mesh->sink, &event);
	return peer;
}

void cvy_mesh_expect(void *ctx, int rank, uint64_t inc)
{
	struct cvy_mesh *mesh = ctx;

	if (cvy_peer_begin(peer_or_down(mesh, rank, inc), inc, CVY_WANT_EXPECT))
		cvy_shake_retry(mesh);
}

void cvy_mesh_dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct cvy_mesh *mesh = ctx;
	struct cvy_peer *peer = peer_or_down(mesh, rank, inc);
	int by_unix = !strcmp(mesh->host, host);

	if (!cvy_peer_begin(peer, inc, CVY_WANT_DIAL))
		return;
	if (!by_unix && mesh->transport == COVEY_TRANSPORT_SHM)
		cvy_peer_fail_soon(peer, "transport shm cannot reach it: it is on another host");
	else
		cvy_peer_dial(peer, addr, by_unix);
}

void cvy_mesh_drop(void *ctx, int rank, uint64_t inc)
{
	struct cvy_mesh *mesh = ctx;
	struct cvy_peer *peer = cvy_peer_get(mesh, rank);

	if (!peer || peer->inc != inc)
		return;
	if (peer->up)
		cvy_mesh_send(mesh, rank, inc, CVY_MSG_BYE, 0, NULL, 0);
	cvy_mesh_lock(mesh);
	cvy_peer_hang_up(peer, 0);
	cvy_mesh_unlock(mesh);
	/* The view stays until the fence: the engine may set aside data of a removed member. */
}

static int mesh_send(struct cvy_mesh *mesh, int rank, uint64_t inc, int type, uint32_t epoch, const void *body,
		     uint32_t bytes, int fd)
{
	struct cvy_peer *peer = cvy_peer_get(mesh, rank);
	struct cvy_wire head = { .magic = CVY_WIRE_MAGIC,
				 .version = CVY_WIRE_VERSION,
				 .type = (uint16_t)type,
				 .bytes = bytes,
				 .epoch = epoch,
				 .src = mesh->id.rank,
				 .dst = rank,
				 .src_inc = mesh->id.inc,
				 .dst_inc = inc };

	if (!peer || peer->inc != inc || !peer->up || !peer->control)
		return COVEY_ERR_PEER;
	if (bytes > CVY_MSG_MAX)
		return COVEY_ERR_INVAL;
	if (fd >= 0 && !peer->control->is_unix)
		return COVEY_ERR_UNSUPPORTED;
	return cvy_conn_send(peer->control, &head, body, fd);
}

int cvy_mesh_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	return mesh_send(ctx, rank, inc, type, epoch, body, bytes, -1);
}

int cvy_mesh_send_fd(struct cvy_mesh *mesh, int rank, uint64_t inc, int type, const void *body, uint32_t bytes, int fd)
{
	return mesh_send(mesh, rank, inc, type, 0, body, bytes, fd);
}

struct cvy_page *cvy_mesh_page(void *ctx, int rank)
{
	struct cvy_mesh *mesh = ctx;

	if (rank < 0 || rank >= mesh->max_ranks)
		return NULL;
	if (mesh->known && rank == mesh->id.rank)
		return (struct cvy_page *)mesh->window->own;
	return mesh->peer[rank] ? mesh->peer[rank]->page : NULL;
}

void cvy_mesh_describe(void *ctx, char *text, size_t bytes)
{
	struct cvy_mesh *mesh = ctx;
	size_t at = 0;

	if (bytes)
		text[0] = '\0';
	for (int r = 0; r < mesh->max_ranks && at < bytes; r++)
		if (mesh->peer[r] && mesh->peer[r]->up)
			at += (size_t)snprintf(text + at, bytes - at, "%s%d:%s", at ? "," : "", r,
					       mesh->peer[r]->memory != CVY_MEMORY_MIRROR ? "shm"
					       : mesh->peer[r]->path == CVY_PATH_VERBS	  ? "verbs"
											  : "tcp");
}

void cvy_mesh_fence(struct cvy_mesh *mesh, int rank)
{
	struct cvy_peer *peer = rank >= 0 && rank < mesh->max_ranks ? mesh->peer[rank] : NULL;

	if (!peer)
		return;
	if (peer->link)
		peer->link->ops->fence(peer->link);
	cvy_peer_hang_up(peer, 0);
	cvy_mesh_unview(mesh, rank);
	peer->inc = 0;
}

static int views_reserve(struct cvy_mesh *mesh, int max_ranks)
{
	uint8_t *base = cvy_window_reserve(mesh->layout.window_bytes, max_ranks);
	char why[CVY_HINT];

	if (!base)
		return cvy_fail(mesh->box, COVEY_ERR_NOMEM, -1, 0,
				"no room for the addresses of %d windows of %zu bytes%s: a smaller window_bytes or "
				"max_ranks fits",
				max_ranks, mesh->layout.window_bytes, cvy_process_hint(ENOMEM, why, sizeof(why)));
	if (mesh->base)
		munmap(mesh->base, mesh->layout.window_bytes * (size_t)mesh->reserved);
	mesh->base = base;
	mesh->max_ranks = mesh->reserved = max_ranks;
	for (int r = 0; r < max_ranks; r++)
		mesh->view[r] = cvy_mesh_place(mesh, r);
	return 0;
}

/* Member by member: the padding between them has no value of its own. */
static int same_identity(const struct cvy_identity *a, const struct cvy_identity *b)
{
	return !memcmp(a->gid, b->gid, sizeof(a->gid)) && !memcmp(a->secret, b->secret, sizeof(a->secret)) &&
	       a->rank == b->rank && a->max_ranks == b->max_ranks && a->inc == b->inc && a->nonce == b->nonce;
}

void cvy_mesh_identity(void *ctx, const struct cvy_identity *id)
{
	struct cvy_mesh *mesh = ctx;

	if (mesh->known && same_identity(&mesh->id, id))
		return;
	cvy_mesh_lock(mesh);
	for (int r = 0; r < mesh->max_ranks;
	     r++) /* the store forgot a group that was forming: everything begins anew */
		cvy_mesh_fence(mesh, r);
	if (mesh->known)
		mesh->view[mesh->id.rank] = cvy_mesh_place(mesh, mesh->id.rank);
	/* The creator decides max_ranks. Addresses can move only while there is no peer. */
	if (id->max_ranks > mesh->reserved)
		views_reserve(mesh, id->max_ranks);
	else
		mesh->max_ranks = id->max_ranks;
	if (id->rank >= mesh->max_ranks) {
		cvy_mesh_unlock(mesh);
		cvy_error("p2p", "rank %d has no place: %d windows are reserved", id->rank, mesh->max_ranks);
		return;
	}
	mesh->id = *id;
	mesh->view[id->rank] = mesh->window->own;
	cvy_window_name(mesh->window, id->inc, id->nonce, mesh->max_ranks);
	cvy_mesh_unlock(mesh);
	mesh->known = 1;
	cvy_shake_retry(mesh);
}

/* ---- open and close ---- */

/* If RDMA is not available: an error, or the next transport if the settings allow it. */
static int open_rdma(struct cvy_mesh *mesh, const struct cvy_config *config)
{
	int err;

	snprintf(mesh->rdma_why, sizeof(mesh->rdma_why), "its transport is another");
	if (config->transport != COVEY_TRANSPORT_VERBS && config->transport != COVEY_TRANSPORT_VERBS_TCP)
		return 0;
	err = cvy_rdma_open(mesh, config, mesh->rdma_why, sizeof(mesh->rdma_why));
	if (err && config->transport == COVEY_TRANSPORT_VERBS)
		return cvy_fail(mesh->box, err, -1, 0, "transport verbs: %s", mesh->rdma_why);
	if (err)
		cvy_warn("p2p", "transport verbs,tcp: %s: tcp it is", mesh->rdma_why);
	return 0;
}

static int mesh_open(struct cvy_mesh *mesh, const struct cvy_config *config)
{
	const char *plan = getenv("COVEY_FAULT");
	int err;

	if (sodium_init() < 0)
		return cvy_fail(mesh->box, COVEY_ERR_UNSUPPORTED, -1, 0, "libsodium does not start");
	if (config->max_ranks < 1 || config->max_ranks > COVEY_MAX_RANKS || config->slot_bytes % CVY_MEMORY_PAGE ||
	    config->window_bytes % CVY_MEMORY_PAGE || !config->slot_bytes || config->slot_bytes > (SIZE_MAX >> 8) ||
	    mesh->layout.heap > config->window_bytes)
		return cvy_fail(mesh->box, COVEY_ERR_INVAL, -1, 0,
				"max_ranks %d, slot_bytes %zu, window_bytes %zu: multiples of 4096, and a window holds "
				"at least %zu",
				config->max_ranks, config->slot_bytes, config->window_bytes, mesh->layout.heap);
	if (plan && *plan && (err = cvy_fault_open(plan, mesh->box, &mesh->fault)))
		return err;
	cvy_address_host(config->host ? config->host : "", mesh->host, sizeof(mesh->host));
	err = cvy_window_new(&mesh->layout, config->max_ranks, mesh->box, &mesh->window);
	if (!err)
		err = views_reserve(mesh, config->max_ranks);
	if (!err)
		err = cvy_heap_init(&mesh->heap, mesh->layout.heap, mesh->layout.pool - mesh->layout.heap);
	if (!err)
		err = cvy_mesh_listen(mesh, config->interface ? config->interface : "");
	return err ? err : open_rdma(mesh, config);
}

int cvy_mesh_open(const struct cvy_mesh_args *args, struct cvy_mesh **out)
{
	struct cvy_mesh *mesh = calloc(1, sizeof(*mesh));
	int err;

	if (!mesh)
		return COVEY_ERR_NOMEM;
	mesh->loop = args->loop;
	mesh->sink = args->sink;
	mesh->box = args->box;
	mesh->id.rank = -1;
	mesh->listen_unix = mesh->spare_fd = -1;
	for (int i = 0; i < CVY_LISTENERS; i++)
		mesh->listen_tcp[i] = -1;
	pthread_mutex_init(&mesh->own_lock, NULL);
	mesh->lock = &mesh->own_lock;
	mesh->transport = args->config->transport;
	mesh->streams = args->config->tcp_connections;
	mesh->link_ms = args->config->link_ms;
	mesh->algo = cvy_hash_text(args->config->algo ? args->config->algo : "");
	mesh->layout = cvy_layout(args->config->window_bytes, args->config->slot_bytes);
	err = mesh_open(mesh, args->config);
	if (err) {
		cvy_mesh_close(mesh);
		return err;
	}
	*out = mesh;
	return 0;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void cvy_mesh_close(struct cvy_mesh *mesh)
{
	if (!mesh)
		return;
	if (!mesh->forgotten) { /* in a forked child, loop and memory are the parent's: touch nothing */
		cvy_shake_close_strangers(mesh);
		cvy_mesh_lock(mesh);
		for (int r = 0; r < COVEY_MAX_RANKS; r++)
			if (mesh->peer[r])
				cvy_mesh_fence(mesh, r);
		cvy_rdma_close(mesh);
		cvy_mesh_unlock(mesh);
		cvy_loop_unwatch(mesh->watch_unix);
		for (int i = 0; i < CVY_LISTENERS; i++)
			cvy_loop_unwatch(mesh->watch_tcp[i]);
		cvy_window_put(mesh->window);
		if (mesh->base)
			munmap(mesh->base, mesh->layout.window_bytes * (size_t)mesh->reserved);
		cvy_fault_close(mesh->fault);
	}
	close_fd(&mesh->listen_unix);
	for (int i = 0; i < CVY_LISTENERS; i++)
		close_fd(&mesh->listen_tcp[i]);
	close_fd(&mesh->spare_fd);
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		if (mesh->peer[r])
			free(mesh->peer[r]->addr);
		free(mesh->peer[r]);
	}
	cvy_heap_clear(&mesh->heap);
	sodium_memzero(mesh->id.secret, sizeof(mesh->id.secret));
	pthread_mutex_destroy(&mesh->own_lock);
	free(mesh);
}

void cvy_mesh_forget(struct cvy_mesh *mesh)
{
	short events;

	mesh->forgotten = 1;
	close_fd(&mesh->listen_unix);
	for (int i = 0; i < CVY_LISTENERS; i++)
		close_fd(&mesh->listen_tcp[i]);
	close_fd(&mesh->spare_fd);
	close_fd(&mesh->window->fd);
	cvy_rdma_forget(mesh);
	for (struct cvy_conn *conn = mesh->strangers; conn; conn = conn->next)
		close_fd(&conn->fd);
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		struct cvy_peer *peer = mesh->peer[r];
		struct cvy_link *link = peer ? peer->link : NULL;
		int fd;

		for (int i = 0; link && link->ops->fd && (fd = link->ops->fd(link, i, &events)) >= 0; i++)
			close_fd(&fd); /* no shutdown: the parent goes on with it */
		for (int i = 0; peer && i < peer->fds; i++)
			close_fd(&peer->fd[i]);
		if (peer && peer->control)
			close_fd(&peer->control->fd);
		if (peer && peer->data)
			close_fd(&peer->data->fd);
	}
}

/* ---- looks ---- */

void cvy_mesh_set_lock(struct cvy_mesh *mesh, pthread_mutex_t *engine_lock)
{
	mesh->lock = engine_lock;
}

const char *cvy_mesh_addr(const struct cvy_mesh *mesh)
{
	return mesh->addr;
}

const char *cvy_mesh_host(const struct cvy_mesh *mesh)
{
	return mesh->host;
}

struct cvy_layout cvy_mesh_layout(const struct cvy_mesh *mesh)
{
	return mesh->layout;
}

uint8_t *cvy_mesh_own(const struct cvy_mesh *mesh)
{
	return mesh->window->own;
}

uint8_t *cvy_mesh_view(const struct cvy_mesh *mesh, int rank)
{
	return mesh->view[rank];
}

struct cvy_link *cvy_mesh_link(const struct cvy_mesh *mesh, int rank)
{
	return mesh->peer[rank] ? mesh->peer[rank]->link : NULL;
}

size_t cvy_mesh_heap_alloc(struct cvy_mesh *mesh, size_t bytes)
{
	return cvy_heap_alloc(&mesh->heap, bytes);
}

size_t cvy_mesh_heap_alloc_top(struct cvy_mesh *mesh, size_t bytes)
{
	return cvy_heap_alloc_top(&mesh->heap, bytes);
}

void cvy_mesh_heap_free(struct cvy_mesh *mesh, size_t offset, size_t bytes)
{
	cvy_heap_free(&mesh->heap, offset, bytes);
}

struct cvy_fault *cvy_mesh_fault(struct cvy_mesh *mesh)
{
	return mesh->fault;
}
