/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mesh: own window, the views of the peers, one link per peer.
 *
 * A link lives through cycles: expect or dial, handshake, LINK_UP, LINK_DOWN. What is visible of a
 * peer lives longer than its link: a dead peer's window stays readable (its last contribution is
 * there for all or for none) until the engine fences it or the next incarnation takes the place.
 */
#include "mesh.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "fault.h"
#include "log.h"

#define RANK_BITS 12 /* of a link id: COVEY_MAX_RANKS */
#define ACCEPTS_AT_ONCE 16

static void lock(struct cvy_mesh *mesh)
{
	pthread_mutex_lock(mesh->lock);
}

static void unlock(struct cvy_mesh *mesh)
{
	pthread_mutex_unlock(mesh->lock);
}

static uint8_t *place(const struct cvy_mesh *mesh, int rank)
{
	return mesh->base + (size_t)rank * mesh->layout.window_bytes;
}

/* ---- what is visible of a peer (engine's lock held) ---- */

static size_t page_bytes(const struct cvy_mesh *mesh)
{
	return mesh->layout.slots;
}

static void page_drop(struct cvy_peer *peer)
{
	if (peer->page_mapped)
		munmap(peer->page, page_bytes(peer->mesh));
	peer->page = NULL;
	peer->page_mapped = 0;
}

void cvy_mesh_unview(struct cvy_mesh *mesh, int rank)
{
	struct cvy_peer *peer = mesh->peer[rank];

	if (!peer)
		return;
	page_drop(peer);
	mesh->view[rank] = place(mesh, rank);
	if (peer->memory == CVY_MEMORY_MAPPED)
		cvy_window_void(place(mesh, rank), mesh->layout.window_bytes);
	else if (peer->memory == CVY_MEMORY_MIRROR)
		cvy_window_fresh(place(mesh, rank), mesh->layout.window_bytes);
	cvy_window_put(peer->local);
	peer->local = NULL;
	if (peer->memory != CVY_MEMORY_MIRROR)
		peer->memory = CVY_MEMORY_NONE;
	peer->memory_inc = 0;
}

static void link_remove(struct cvy_peer *peer)
{
	struct cvy_link *link = peer->link;

	peer->link = NULL;
	peer->link_id = 0;
	if (link) {
		link->ops->close(link);
		free(link);
	}
}

static int link_make(struct cvy_peer *peer, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;
	struct cvy_link *link = calloc(1, sizeof(*link)), *outer;

	if (!link)
		return COVEY_ERR_NOMEM;
	*link = (struct cvy_link){ .mesh = mesh,
				   .rank = peer->rank,
				   .inc = peer->inc,
				   .own = mesh->window->own,
				   .view = mesh->view[peer->rank],
				   .window_bytes = mesh->layout.window_bytes };
	if (fd < 0) {
		cvy_shm_open(link);
	} else if (cvy_tcp_open(link, fd)) {
		free(link);
		return COVEY_ERR_NOMEM;
	}
	outer = mesh->fault ? cvy_fault_wrap(mesh->fault, link) : link;
	if (!outer) {
		link->ops->close(link); /* fd, too */
		free(link);
		return COVEY_ERR_NOMEM;
	}
	peer->link = outer;
	peer->link_id = ++mesh->link_seq << RANK_BITS | (uint64_t)peer->rank;
	outer->id = peer->link_id;
	return 0;
}

/* ---- ends ---- */

/* Closes what belongs to the link, in silence. keep_shm: a view of shared memory outlives a broken connection. */
static void peer_hang_up(struct cvy_peer *peer, int keep_shm)
{
	struct cvy_conn *control = peer->control, *data = peer->data;

	peer->control = peer->data = NULL;
	cvy_conn_close(control);
	cvy_conn_close(data);
	cvy_loop_cancel(peer->timer);
	peer->timer = NULL;
	peer->early = NULL;
	peer->want = CVY_WANT_NOTHING;
	peer->up = 0;
	if (!keep_shm || peer->memory == CVY_MEMORY_MIRROR)
		link_remove(peer);
}

void cvy_peer_fail(struct cvy_peer *peer, int err, const char *cause)
{
	struct cvy_event event = { .kind = CVY_EV_LINK_DOWN, .rank = peer->rank, .inc = peer->inc };
	int owed = peer->want != CVY_WANT_NOTHING || peer->up;
	char text[CVY_CAUSE + 40];

	snprintf(text, sizeof(text), "%s", cause); /* the connection that holds it may go */
	lock(peer->mesh);
	peer_hang_up(peer, 1);
	unlock(peer->mesh);
	if (!owed)
		return;
	if (err == COVEY_ERR_AUTH || err == COVEY_ERR_VERSION || err == COVEY_ERR_INVAL ||
	    err == COVEY_ERR_UNSUPPORTED) {
		cvy_fail(peer->mesh->box, err, peer->rank, 0, "link to rank %d: %s", peer->rank, text);
		cvy_warn("p2p", "link to rank %d: %s", peer->rank, text);
	} else {
		cvy_info("p2p", "link to rank %d inc %llu down: %s", peer->rank, (unsigned long long)peer->inc, text);
	}
	event.text = text;
	cvy_post(&peer->mesh->sink, &event);
}

static void peer_up(struct cvy_peer *peer)
{
	struct cvy_event event = { .kind = CVY_EV_LINK_UP, .rank = peer->rank, .inc = peer->inc };

	cvy_loop_cancel(peer->timer);
	peer->timer = NULL;
	peer->want = CVY_WANT_NOTHING;
	peer->up = 1;
	cvy_post(&peer->mesh->sink, &event);
}

static void lost_on_loop(void *ctx, void *arg)
{
	struct cvy_mesh *mesh = ctx;
	uint64_t id = (uint64_t)(uintptr_t)arg;
	struct cvy_peer *peer = mesh->peer[id & (COVEY_MAX_RANKS - 1)];
	char cause[CVY_CAUSE];
	int same;

	lock(mesh);
	same = peer && peer->link_id == id;
	if (same)
		memcpy(cause, peer->lost, sizeof(cause));
	unlock(mesh);
	if (same)
		cvy_peer_fail(peer, COVEY_ERR_PEER, cause);
}

void cvy_mesh_lost(struct cvy_link *link, const char *cause)
{
	struct cvy_peer *peer = link->mesh->peer[link->rank];

	snprintf(peer->lost, sizeof(peer->lost), "%s", cause);
	if (cvy_loop_post(link->mesh->loop, lost_on_loop, link->mesh, (void *)(uintptr_t)peer->link_id))
		cvy_warn("p2p", "link to rank %d: %s, and no memory to tell it", link->rank, cause);
}

/* ---- a proven peer ---- */

void cvy_peer_welcome_self(const struct cvy_mesh *mesh, struct cvy_welcome *welcome)
{
	memset(welcome, 0, sizeof(*welcome));
	snprintf(welcome->host, sizeof(welcome->host), "%s", mesh->host);
	welcome->slot_bytes = mesh->layout.slot_bytes;
	welcome->window_bytes = mesh->layout.window_bytes;
	welcome->max_ranks = mesh->max_ranks;
	welcome->transport = mesh->transport;
}

/* Both sides come to the same answer from the same two messages. */
static int judge(const struct cvy_mesh *mesh, const struct cvy_welcome *w, int *by_tcp, char *why, size_t bytes)
{
	int same = !strcmp(w->host, mesh->host);

	if (w->slot_bytes != mesh->layout.slot_bytes || w->window_bytes != mesh->layout.window_bytes ||
	    w->max_ranks != mesh->max_ranks) {
		snprintf(why, bytes,
			 "settings differ: it has slot_bytes %llu, window_bytes %llu, max_ranks %d; here %zu, %zu, %d",
			 (unsigned long long)w->slot_bytes, (unsigned long long)w->window_bytes, (int)w->max_ranks,
			 mesh->layout.slot_bytes, mesh->layout.window_bytes, mesh->max_ranks);
		return COVEY_ERR_INVAL;
	}
	*by_tcp = !same || w->transport == COVEY_TRANSPORT_TCP || mesh->transport == COVEY_TRANSPORT_TCP;
	if (*by_tcp && (w->transport == COVEY_TRANSPORT_SHM || mesh->transport == COVEY_TRANSPORT_SHM)) {
		snprintf(why, bytes, "transport shm cannot reach it: %s",
			 same ? "one of the two wants tcp" : "it is on another host");
		return COVEY_ERR_UNSUPPORTED;
	}
	return 0;
}

static int page_believed(const struct cvy_peer *peer, const struct cvy_page *page)
{
	const struct cvy_mesh *mesh = peer->mesh;

	/* pairs with the release of cvy_window_name */
	return __atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) == CVY_PAGE_MAGIC &&
	       __atomic_load_n(&page->inc, __ATOMIC_RELAXED) == peer->inc &&
	       __atomic_load_n(&page->nonce, __ATOMIC_RELAXED) == peer->nonce &&
	       page->window_bytes == mesh->layout.window_bytes && page->slot_bytes == mesh->layout.slot_bytes;
}

/* Data by tcp: a mirror, and of a peer on this host its page, for its signs of life. */
static int view_mirror(struct cvy_peer *peer, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;
	void *page;

	if (cvy_window_fresh(place(mesh, peer->rank), mesh->layout.window_bytes))
		return COVEY_ERR_NOMEM;
	peer->memory = CVY_MEMORY_MIRROR;
	if (fd < 0)
		return 0;
	peer->local = cvy_window_local(fd, peer->nonce);
	if (peer->local) {
		peer->page = (struct cvy_page *)peer->local->own;
		return 0;
	}
	page = mmap(NULL, page_bytes(mesh), PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return COVEY_ERR_NOMEM;
	peer->page = page;
	peer->page_mapped = 1;
	return 0;
}

static int view_shared(struct cvy_peer *peer, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;

	peer->local = cvy_window_local(fd, peer->nonce);
	if (peer->local) { /* a rank of this process: one address for both, so that race detectors see it */
		peer->memory = CVY_MEMORY_LOCAL;
		mesh->view[peer->rank] = peer->local->own;
	} else {
		if (cvy_window_map(place(mesh, peer->rank), fd, mesh->layout.window_bytes))
			return COVEY_ERR_NOMEM;
		peer->memory = CVY_MEMORY_MAPPED;
	}
	peer->page = (struct cvy_page *)mesh->view[peer->rank];
	return 0;
}

static int view_make(struct cvy_peer *peer, int by_tcp, int fd, const char **why)
{
	struct cvy_mesh *mesh = peer->mesh;
	int err;

	if (fd >= 0 && cvy_window_check(fd, &mesh->layout, why))
		return COVEY_ERR_INVAL;
	if (fd < 0 && !by_tcp) {
		*why = "its window did not come along";
		return COVEY_ERR_INVAL;
	}
	/* The same incarnation again, after a broken connection: what is here stays. */
	if (peer->memory_inc == peer->inc && (peer->memory == CVY_MEMORY_MIRROR) == by_tcp)
		return by_tcp || peer->link ? 0 : link_make(peer, -1);
	link_remove(peer);
	cvy_mesh_unview(mesh, peer->rank);
	*why = "no memory to map its window";
	err = by_tcp ? view_mirror(peer, fd) : view_shared(peer, fd);
	if (!err && peer->page && !page_believed(peer, peer->page)) {
		*why = "its window belongs to another process";
		err = COVEY_ERR_INVAL;
	}
	if (!err && !by_tcp)
		err = link_make(peer, -1);
	if (err)
		cvy_mesh_unview(mesh, peer->rank);
	else
		peer->memory_inc = peer->inc;
	return err;
}

static void dial_data(struct cvy_peer *peer)
{
	const char *why = "no memory";
	int fd = cvy_address_connect(peer->addr, 0, &why);

	peer->data = fd < 0 ? NULL : cvy_conn_new(peer->mesh->loop, fd, 1);
	if (peer->data)
		cvy_shake_dial(peer->data, peer, 1);
	else
		cvy_peer_fail(peer, COVEY_ERR_IO, why);
}

int cvy_peer_welcome(struct cvy_peer *peer, const struct cvy_welcome *welcome, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;
	char text[CVY_CAUSE];
	const char *why = text;
	int by_tcp, err = judge(mesh, welcome, &by_tcp, text, sizeof(text));

	if (!err) {
		lock(mesh);
		err = view_make(peer, by_tcp, fd, &why);
		unlock(mesh);
	}
	if (err)
		cvy_peer_fail(peer, err, why);
	else if (!by_tcp)
		peer_up(peer);
	else if (peer->want == CVY_WANT_DIAL)
		dial_data(peer);
	else
		cvy_conn_pause(peer->control, 1); /* its messages come after LINK_UP */
	return err;
}

void cvy_peer_data(struct cvy_peer *peer, int fd)
{
	int one = 1, err;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	lock(peer->mesh);
	link_remove(peer);
	err = link_make(peer, fd);
	unlock(peer->mesh);
	if (err) {
		cvy_peer_fail(peer, err, "no memory for its data path");
		return;
	}
	cvy_conn_pause(peer->control, 0);
	peer_up(peer);
}

void cvy_peer_frame(struct cvy_conn *conn, const struct cvy_wire *head, const uint8_t *body)
{
	struct cvy_peer *peer = conn->peer;
	struct cvy_mesh *mesh = conn->mesh;
	struct cvy_event event = { .kind = CVY_EV_MSG, .rank = peer->rank, .inc = peer->inc, .epoch = head->epoch };

	if (head->src != peer->rank || head->src_inc != peer->inc || head->dst != mesh->id.rank ||
	    head->dst_inc != mesh->id.inc || head->type < CVY_MSG_PING || head->type > CVY_MSG_GIVE) {
		mesh->dropped++;
		cvy_debug("p2p", "dropped a message of type %u from rank %d", (unsigned)head->type, peer->rank);
		return;
	}
	if (head->type == CVY_MSG_BYE) {
		cvy_peer_fail(peer, COVEY_ERR_PEER, "the peer ended the link");
		return;
	}
	event.msg = (struct cvy_msg){ .type = head->type,
				      .rank = peer->rank,
				      .inc = peer->inc,
				      .epoch = head->epoch,
				      .bytes = head->bytes,
				      .body = body };
	cvy_post(&mesh->sink, &event);
}

/* ---- the seam ---- */

struct cvy_peer *cvy_peer_get(struct cvy_mesh *mesh, int rank)
{
	if (rank < 0 || rank >= mesh->max_ranks || rank == mesh->id.rank)
		return NULL;
	if (!mesh->peer[rank]) {
		struct cvy_peer *peer = calloc(1, sizeof(*peer));

		if (!peer)
			return NULL;
		peer->mesh = mesh;
		peer->rank = rank;
		lock(mesh);
		mesh->peer[rank] = peer;
		unlock(mesh);
	}
	return mesh->peer[rank];
}

static void peer_late(void *ctx)
{
	struct cvy_peer *peer = ctx;

	peer->timer = NULL; /* it fired */
	if (peer->early)
		cvy_peer_fail(peer, COVEY_ERR_IO, peer->early);
	else if (peer->want == CVY_WANT_DIAL || peer->control)
		cvy_peer_fail(peer, COVEY_ERR_TIMEOUT, "no handshake within 5 seconds");
	else
		cvy_peer_fail(peer, COVEY_ERR_TIMEOUT, "it did not dial within 5 seconds");
}

/* A new cycle with @inc. 0: there is one already. */
static int peer_begin(struct cvy_peer *peer, uint64_t inc, enum cvy_want want)
{
	if (!peer || (peer->inc == inc && (peer->up || peer->want == want)))
		return 0;
	lock(peer->mesh);
	peer_hang_up(peer, peer->inc == inc);
	if (peer->inc != inc)
		cvy_mesh_unview(peer->mesh, peer->rank);
	peer->inc = inc;
	unlock(peer->mesh);
	peer->want = want;
	peer->timer = cvy_loop_timer(peer->mesh->loop, cvy_now_ns() + CVY_HANDSHAKE_MS * CVY_MS, peer_late, peer);
	return 1;
}

void cvy_mesh_expect(void *ctx, int rank, uint64_t inc)
{
	struct cvy_mesh *mesh = ctx;

	if (peer_begin(cvy_peer_get(mesh, rank), inc, CVY_WANT_EXPECT))
		cvy_shake_retry(mesh);
}

/* The event follows from the loop, never from inside a call of the agent. */
static void fail_soon(struct cvy_peer *peer, const char *why)
{
	peer->early = why;
	cvy_loop_cancel(peer->timer);
	peer->timer = cvy_loop_timer(peer->mesh->loop, cvy_now_ns(), peer_late, peer);
}

void cvy_mesh_dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct cvy_mesh *mesh = ctx;
	struct cvy_peer *peer = cvy_peer_get(mesh, rank);
	int by_unix = cvy_mesh_same_host(mesh, host);
	const char *why = "no memory";
	int fd;

	if (!peer_begin(peer, inc, CVY_WANT_DIAL))
		return;
	if (!by_unix && mesh->transport == COVEY_TRANSPORT_SHM) {
		fail_soon(peer, "transport shm cannot reach it: it is on another host");
		return;
	}
	free(peer->addr);
	peer->addr = strdup(addr);
	fd = peer->addr ? cvy_address_connect(addr, by_unix, &why) : -1;
	peer->control = fd < 0 ? NULL : cvy_conn_new(mesh->loop, fd, 1);
	if (!peer->control) {
		fail_soon(peer, why);
		return;
	}
	peer->control->is_unix = by_unix;
	cvy_shake_dial(peer->control, peer, 0);
	if (peer->early)
		fail_soon(peer, peer->early);
}

void cvy_mesh_drop(void *ctx, int rank, uint64_t inc)
{
	struct cvy_mesh *mesh = ctx;
	struct cvy_peer *peer = cvy_peer_get(mesh, rank);

	if (!peer || peer->inc != inc)
		return;
	if (peer->up)
		cvy_mesh_send(mesh, rank, inc, CVY_MSG_BYE, 0, NULL, 0);
	lock(mesh);
	peer_hang_up(peer, 0);
	unlock(mesh);
	/* The view stays until the fence: the engine may set aside what a removed member left. */
}

int cvy_mesh_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	struct cvy_mesh *mesh = ctx;
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
	return cvy_conn_send(peer->control, &head, body, -1);
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

int cvy_mesh_same_host(void *ctx, const char *host)
{
	const struct cvy_mesh *mesh = ctx;

	return !strcmp(mesh->host, host);
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
					       mesh->peer[r]->memory == CVY_MEMORY_MIRROR ? "tcp" : "shm");
}

void cvy_mesh_fence(struct cvy_mesh *mesh, int rank)
{
	struct cvy_peer *peer = rank >= 0 && rank < mesh->max_ranks ? mesh->peer[rank] : NULL;

	if (!peer)
		return;
	if (peer->link)
		peer->link->ops->fence(peer->link);
	peer_hang_up(peer, 0);
	cvy_mesh_unview(mesh, rank);
	peer->inc = 0;
}

static int views_reserve(struct cvy_mesh *mesh, int max_ranks)
{
	uint8_t *base = cvy_window_reserve(mesh->layout.window_bytes, max_ranks);

	if (!base)
		return cvy_fail(
			mesh->box, COVEY_ERR_NOMEM, -1,
			0, "no room for the addresses of %d windows of %zu bytes: a smaller window_bytes or max_ranks fits",
			max_ranks, mesh->layout.window_bytes);
	if (mesh->base)
		munmap(mesh->base, mesh->layout.window_bytes * (size_t)mesh->reserved);
	mesh->base = base;
	mesh->max_ranks = mesh->reserved = max_ranks;
	for (int r = 0; r < max_ranks; r++)
		mesh->view[r] = place(mesh, r);
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
	lock(mesh);
	for (int r = 0; r < mesh->max_ranks; r++) /* a group whose store forgot it while it formed: all begins anew */
		cvy_mesh_fence(mesh, r);
	if (mesh->known)
		mesh->view[mesh->id.rank] = place(mesh, mesh->id.rank);
	/* max_ranks is the creator's word. Only without a peer yet can the addresses still move. */
	if (id->max_ranks > mesh->reserved)
		views_reserve(mesh, id->max_ranks);
	else
		mesh->max_ranks = id->max_ranks;
	if (id->rank >= mesh->max_ranks) {
		unlock(mesh);
		cvy_error("p2p", "rank %d has no place: %d windows are reserved", id->rank, mesh->max_ranks);
		return;
	}
	mesh->id = *id;
	mesh->view[id->rank] = mesh->window->own;
	cvy_window_name(mesh->window, id->inc, id->nonce, mesh->max_ranks);
	unlock(mesh);
	mesh->known = 1;
	cvy_shake_retry(mesh);
}

/* ---- open and close ---- */

/* Without a free descriptor a listener would be ready for ever: the spare one takes the caller and lets it go. */
static void accept_none(struct cvy_mesh *mesh, int listener)
{
	int fd;

	cvy_warn("p2p", "no descriptor left for a connection: it was closed");
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
		if (listener == mesh->listen_tcp)
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

static void accept_tcp(void *ctx, uint32_t events)
{
	struct cvy_mesh *mesh = ctx;

	(void)events;
	accept_all(mesh, mesh->listen_tcp);
}

static int listen_all(struct cvy_mesh *mesh, const char *interface)
{
	char name[2][120];

	mesh->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	mesh->listen_unix = cvy_address_listen_unix(name[0], sizeof(name[0]), mesh->box);
	if (mesh->listen_unix < 0)
		return mesh->listen_unix;
	mesh->listen_tcp = cvy_address_listen_tcp(interface, name[1], sizeof(name[1]), mesh->box);
	if (mesh->listen_tcp < 0)
		return mesh->listen_tcp;
	snprintf(mesh->addr, sizeof(mesh->addr), "%s,%s", name[0], name[1]);
	if (cvy_loop_watch(mesh->loop, mesh->listen_unix, EPOLLIN, accept_unix, mesh, &mesh->watch_unix) ||
	    cvy_loop_watch(mesh->loop, mesh->listen_tcp, EPOLLIN, accept_tcp, mesh, &mesh->watch_tcp))
		return COVEY_ERR_IO;
	return 0;
}

static int mesh_open(struct cvy_mesh *mesh, const struct cvy_config *config)
{
	const char *plan = getenv("COVEY_FAULT");
	int err;

	if (sodium_init() < 0)
		return cvy_fail(mesh->box, COVEY_ERR_UNSUPPORTED, -1, 0, "libsodium does not start");
	if (config->max_ranks < 1 || config->max_ranks > COVEY_MAX_RANKS || config->slot_bytes % 4096 ||
	    config->window_bytes % 4096 || !config->slot_bytes || config->slot_bytes > (SIZE_MAX >> 8) ||
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
		err = cvy_heap_init(&mesh->heap, mesh->layout.heap, mesh->layout.window_bytes - mesh->layout.heap);
	return err ? err : listen_all(mesh, config->interface ? config->interface : "");
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
	mesh->listen_unix = mesh->listen_tcp = mesh->spare_fd = -1;
	pthread_mutex_init(&mesh->own_lock, NULL);
	mesh->lock = &mesh->own_lock;
	mesh->transport = args->config->transport;
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
	if (!mesh->forgotten) { /* in a forked child loop and memory are the parent's: nothing is touched */
		cvy_shake_close_strangers(mesh);
		lock(mesh);
		for (int r = 0; r < COVEY_MAX_RANKS; r++)
			if (mesh->peer[r])
				cvy_mesh_fence(mesh, r);
		unlock(mesh);
		cvy_loop_unwatch(mesh->watch_unix);
		cvy_loop_unwatch(mesh->watch_tcp);
		cvy_window_put(mesh->window);
		if (mesh->base)
			munmap(mesh->base, mesh->layout.window_bytes * (size_t)mesh->reserved);
		cvy_fault_close(mesh->fault);
	}
	close_fd(&mesh->listen_unix);
	close_fd(&mesh->listen_tcp);
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
	close_fd(&mesh->listen_tcp);
	close_fd(&mesh->spare_fd);
	close_fd(&mesh->window->fd);
	for (struct cvy_conn *conn = mesh->strangers; conn; conn = conn->next)
		close_fd(&conn->fd);
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		struct cvy_peer *peer = mesh->peer[r];
		struct cvy_link *link = peer ? peer->link : NULL;
		int fd = link && link->ops->fd ? link->ops->fd(link, &events) : -1;

		close_fd(&fd); /* no shutdown: the parent goes on with it */
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

void cvy_mesh_heap_free(struct cvy_mesh *mesh, size_t offset, size_t bytes)
{
	cvy_heap_free(&mesh->heap, offset, bytes);
}

struct cvy_fault *cvy_mesh_fault(struct cvy_mesh *mesh)
{
	return mesh->fault;
}
