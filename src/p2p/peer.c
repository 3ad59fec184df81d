/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer: cycles of its link (expect or dial, handshake, LINK_UP, LINK_DOWN) and the visible part of its window.
 *
 * The view lives longer than the link: a dead peer's window stays readable (all or none of its last contribution is
 * there) until the engine fences it or the next incarnation takes the place.
 */
#include "mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "fault.h"
#include "log.h"
#include "rdma.h"

#define RANK_BITS 12   /* of a link id: COVEY_MAX_RANKS */
#define IDLE_BOUNDS 10 /* an idle link is probed after this many link_ms without data */

/* ---- views of peers (engine's lock held) ---- */

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
	mesh->view[rank] = cvy_mesh_place(mesh, rank);
	if (peer->memory == CVY_MEMORY_MAPPED)
		cvy_window_void(cvy_mesh_place(mesh, rank), mesh->layout.window_bytes);
	else if (peer->memory == CVY_MEMORY_MIRROR)
		cvy_window_fresh(cvy_mesh_place(mesh, rank), mesh->layout.window_bytes);
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

/* Makes the link of its data connections, of RDMA, or of shared memory. */
static int link_make(struct cvy_peer *peer)
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
	if (cvy_rdma_link(peer, link)) {
		;
	} else if (!peer->fds) {
		cvy_shm_open(link);
	} else if (cvy_tcp_open(link, peer->fd, peer->fds)) {
		free(link);
		return COVEY_ERR_NOMEM;
	}
	peer->fds = 0;
	outer = mesh->fault ? cvy_fault_wrap(mesh->fault, link) : link;
	if (!outer) {
		link->ops->close(link); /* closes the descriptors too */
		free(link);
		return COVEY_ERR_NOMEM;
	}
	peer->link = outer;
	peer->link_id = ++mesh->link_seq << RANK_BITS | (uint64_t)peer->rank;
	outer->id = peer->link_id;
	return 0;
}

/* ---- ends ---- */

/* Closes the parts of the link without an event. keep_shm: a view of shared memory outlives a broken connection. */
void cvy_peer_hang_up(struct cvy_peer *peer, int keep_shm)
{
	struct cvy_conn *control = peer->control, *data = peer->data;

	if (peer->want == CVY_WANT_DIAL && control && !peer->up && peer->at >= 0)
		peer->at++; /* the handshake failed: the next cycle begins with the next address */
	cvy_peer_dialled(peer);
	peer->control = peer->data = NULL;
	while (peer->fds)
		close(peer->fd[--peer->fds]);
	cvy_conn_close(control);
	cvy_conn_close(data);
	cvy_rdma_hang_up(peer);
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
	char text[CVY_CAUSE + 1], told[2 * CVY_CAUSE + 40];

	snprintf(text, sizeof(text), "%s", cause); /* the connection that holds it may be freed */
	snprintf(told, sizeof(told), "%s", text);
	cvy_mesh_lock(peer->mesh);
	cvy_peer_hang_up(peer, 1);
	cvy_mesh_unlock(peer->mesh);
	if (!owed)
		return;
	if (err == COVEY_ERR_AUTH || err == COVEY_ERR_VERSION || err == COVEY_ERR_INVAL ||
	    err == COVEY_ERR_UNSUPPORTED) {
		cvy_fail(peer->mesh->box, err, peer->rank, 0, "link to rank %d: %s", peer->rank, text);
		if (strncmp(peer->warned, text, sizeof(peer->warned) - 1) != 0)
			cvy_warn("p2p", "link to rank %d: %s", peer->rank, text);
		snprintf(peer->warned, sizeof(peer->warned), "%.199s", text);
	} else {
		cvy_info("p2p", "link to rank %d inc %llu down: %s", peer->rank, (unsigned long long)peer->inc, text);
		if (peer->warned[0]) /* the earlier warning says more: a cause that cannot mend itself */
			snprintf(told, sizeof(told), "%s; at last: %s", peer->warned, text);
	}
	event.text = told;
	cvy_post(&peer->mesh->sink, &event);
}

/*
 * A path that drops everything breaks no connection by itself for many minutes, and meanwhile nobody could report which
 * peer it cannot reach. So data that the peer's kernel does not acknowledge for link_ms break it: PINGs, or a probe on
 * an idle link. Data connections have no such bound: a full window only says that the peer is late.
 */
static void bound_silence(const struct cvy_peer *peer)
{
	int ms = peer->mesh->link_ms, one = 1, fd = peer->control->fd;
	int idle_s = ms / 1000 * IDLE_BOUNDS;

	if (ms < 0 || peer->control->is_unix)
		return;
	if (idle_s < 1)
		idle_s = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

static void peer_up(struct cvy_peer *peer)
{
	struct cvy_event event = { .kind = CVY_EV_LINK_UP, .rank = peer->rank, .inc = peer->inc };

	bound_silence(peer);
	cvy_loop_cancel(peer->timer);
	peer->timer = NULL;
	peer->want = CVY_WANT_NOTHING;
	peer->up = 1;
	peer->warned[0] = '\0';
	cvy_post(&peer->mesh->sink, &event);
}

static void lost_on_loop(void *ctx, void *arg)
{
	struct cvy_mesh *mesh = ctx;
	uint64_t id = (uint64_t)(uintptr_t)arg;
	struct cvy_peer *peer = mesh->peer[id & (COVEY_MAX_RANKS - 1)];
	char cause[CVY_CAUSE];
	int same;

	cvy_mesh_lock(mesh);
	same = peer && peer->link_id == id;
	if (same)
		memcpy(cause, peer->lost, sizeof(cause));
	cvy_mesh_unlock(mesh);
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

void cvy_link_choke(struct cvy_link *link)
{
	if (link->choked)
		return;
	link->choked = 1;
	cvy_mesh_lost(link, "more waits for it than its queue holds");
}

/* ---- a proven peer ---- */

void cvy_peer_welcome_self(const struct cvy_mesh *mesh, struct cvy_peer *peer, struct cvy_welcome *welcome)
{
	memset(welcome, 0, sizeof(*welcome));
	snprintf(welcome->host, sizeof(welcome->host), "%s", mesh->host);
	welcome->slot_bytes = mesh->layout.slot_bytes;
	welcome->window_bytes = mesh->layout.window_bytes;
	welcome->max_ranks = mesh->max_ranks;
	welcome->transport = mesh->transport;
	welcome->streams = (uint32_t)mesh->streams;
	welcome->algo = mesh->algo;
	if (peer)
		cvy_rdma_welcome(peer, welcome);
}

static int wants_verbs(int transport)
{
	return transport == COVEY_TRANSPORT_VERBS || transport == COVEY_TRANSPORT_VERBS_TCP;
}

/* For two hosts, or for one host if either side wants tcp. */
static int judge_far(struct cvy_peer *peer, const struct cvy_welcome *w, int same, char *why, size_t bytes)
{
	const struct cvy_mesh *mesh = peer->mesh;

	if (w->transport == COVEY_TRANSPORT_SHM || mesh->transport == COVEY_TRANSPORT_SHM) {
		snprintf(why, bytes, "transport shm cannot reach it: %s",
			 same ? "one of the two wants tcp" : "it is on another host");
		return COVEY_ERR_UNSUPPORTED;
	}
	peer->path = CVY_PATH_TCP;
	peer->may_tcp = same || (w->transport != COVEY_TRANSPORT_VERBS && mesh->transport != COVEY_TRANSPORT_VERBS);
	if (same)
		return 0;
	if (wants_verbs(w->transport) && wants_verbs(mesh->transport) && w->rdma_port && mesh->rdma &&
	    peer->rdma_off != peer->inc)
		peer->path = CVY_PATH_VERBS;
	else if (!peer->may_tcp) {
		snprintf(why, bytes, "transport verbs cannot reach it: %s",
			 mesh->rdma ? "it has no RDMA, or its transport is another" : mesh->rdma_why);
		return COVEY_ERR_UNSUPPORTED;
	}
	return 0;
}

/* Both sides reach the same verdict from the same two messages. */
static int judge(struct cvy_peer *peer, const struct cvy_welcome *w, char *why, size_t bytes)
{
	const struct cvy_mesh *mesh = peer->mesh;
	int same = !strcmp(w->host, mesh->host);

	if (w->slot_bytes != mesh->layout.slot_bytes || w->window_bytes != mesh->layout.window_bytes ||
	    w->max_ranks != mesh->max_ranks) {
		snprintf(why, bytes,
			 "settings differ: it has slot_bytes %llu, window_bytes %llu, max_ranks %d; here %zu, %zu, %d",
			 (unsigned long long)w->slot_bytes, (unsigned long long)w->window_bytes, (int)w->max_ranks,
			 mesh->layout.slot_bytes, mesh->layout.window_bytes, mesh->max_ranks);
		return COVEY_ERR_INVAL;
	}
	if (w->algo != mesh->algo) {
		snprintf(why, bytes, "settings differ: algo (COVEY_ALGO) must be alike on all ranks");
		return COVEY_ERR_INVAL;
	}
	peer->path = CVY_PATH_SHM;
	if (!same || w->transport == COVEY_TRANSPORT_TCP || mesh->transport == COVEY_TRANSPORT_TCP)
		return judge_far(peer, w, same, why, bytes);
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

/* Data by tcp: a mirror. Of a peer on this host also its page, for its signs of life. */
static int view_mirror(struct cvy_peer *peer, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;
	void *page;

	if (cvy_window_fresh(cvy_mesh_place(mesh, peer->rank), mesh->layout.window_bytes))
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
	cvy_window_hide(page, page_bytes(mesh));
	peer->page = page;
	peer->page_mapped = 1;
	return 0;
}

static int view_shared(struct cvy_peer *peer, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;

	peer->local = cvy_window_local(fd, peer->nonce);
	if (peer->local) { /* a rank of this process: both use one address, so that race detectors see the accesses */
		peer->memory = CVY_MEMORY_LOCAL;
		mesh->view[peer->rank] = peer->local->own;
	} else {
		if (cvy_window_map(cvy_mesh_place(mesh, peer->rank), fd, mesh->layout.window_bytes))
			return COVEY_ERR_NOMEM;
		peer->memory = CVY_MEMORY_MAPPED;
	}
	peer->page = (struct cvy_page *)mesh->view[peer->rank];
	return 0;
}

static int view_make(struct cvy_peer *peer, int fd, const char **why)
{
	struct cvy_mesh *mesh = peer->mesh;
	int mirrored = peer->path != CVY_PATH_SHM, err;

	if (fd >= 0 && cvy_window_check(fd, &mesh->layout, why))
		return COVEY_ERR_INVAL;
	if (fd < 0 && !mirrored) {
		*why = "its window did not come along";
		return COVEY_ERR_INVAL;
	}
	/* The same incarnation again, after a broken connection: its memory stays. */
	if (peer->memory_inc == peer->inc && (peer->memory == CVY_MEMORY_MIRROR) == mirrored)
		return mirrored || peer->link ? 0 : link_make(peer);
	link_remove(peer);
	cvy_mesh_unview(mesh, peer->rank);
	*why = "no memory to map its window";
	err = mirrored ? view_mirror(peer, fd) : view_shared(peer, fd);
	if (!err && peer->page && !page_believed(peer, peer->page)) {
		*why = "its window belongs to another process";
		err = COVEY_ERR_INVAL;
	}
	if (!err && !mirrored)
		err = link_make(peer);
	if (err)
		cvy_mesh_unview(mesh, peer->rank);
	else
		peer->memory_inc = peer->inc;
	return err;
}

static void dial_data(struct cvy_peer *peer)
{
	const char *why = "no memory";
	int fd = cvy_address_connect(peer->addr, peer->at < 0 ? 0 : peer->at, peer->mesh->from, &why);

	peer->data = fd < 0 ? NULL : cvy_conn_new(peer->mesh->loop, fd, 1);
	if (peer->data)
		cvy_shake_dial(peer->data, peer, peer->fds + 1);
	else
		cvy_peer_fail(peer, COVEY_ERR_IO, why);
}

/* The dialler decides: the other side follows. */
void cvy_peer_rdma_failed(struct cvy_peer *peer, const char *cause)
{
	if (!peer || peer->want == CVY_WANT_NOTHING)
		return;
	if (!peer->may_tcp) {
		cvy_peer_fail(peer, COVEY_ERR_IO, cause);
	} else if (peer->want == CVY_WANT_DIAL) {
		cvy_warn("p2p", "rank %d is not reached by RDMA: %s: tcp it is", peer->rank, cause);
		cvy_conn_pause(peer->control, 0);
		dial_data(peer);
	}
}

static void dial_rdma(struct cvy_peer *peer, const struct cvy_welcome *welcome)
{
	const char *why;

	cvy_conn_pause(peer->control,
		       1); /* over iWARP the peer may be connected first: its messages come after LINK_UP */
	if (cvy_rdma_dial(peer, welcome, &why))
		cvy_peer_rdma_failed(peer, why);
}

int cvy_peer_welcome(struct cvy_peer *peer, const struct cvy_welcome *welcome, int fd)
{
	struct cvy_mesh *mesh = peer->mesh;
	char text[CVY_CAUSE];
	const char *why = text;
	int err = judge(peer, welcome, text, sizeof(text));

	peer->streams = welcome->streams < (uint32_t)mesh->streams ? (int)welcome->streams : mesh->streams;
	if (!peer->streams)
		peer->streams = 1;
	if (!err) {
		cvy_mesh_lock(mesh);
		err = view_make(peer, fd, &why);
		cvy_mesh_unlock(mesh);
	}
	if (err)
		cvy_peer_fail(peer, err, why);
	else if (peer->path == CVY_PATH_SHM)
		peer_up(peer);
	else if (peer->want == CVY_WANT_DIAL && peer->path == CVY_PATH_VERBS)
		dial_rdma(peer, welcome);
	else if (peer->want == CVY_WANT_DIAL)
		dial_data(peer);
	else
		cvy_conn_pause(peer->control, 1); /* its messages come after LINK_UP */
	return err;
}

/* The data path has all its parts. */
static void data_up(struct cvy_peer *peer)
{
	int err;

	cvy_mesh_lock(peer->mesh);
	link_remove(peer);
	err = link_make(peer);
	cvy_mesh_unlock(peer->mesh);
	if (err) {
		cvy_peer_fail(peer, err, "no memory for its data path");
		return;
	}
	cvy_conn_pause(peer->control, 0);
	peer_up(peer);
}

void cvy_peer_rdma_up(struct cvy_peer *peer)
{
	while (peer->fds) /* it had begun to dial tcp instead */
		close(peer->fd[--peer->fds]);
	peer->path = CVY_PATH_VERBS;
	data_up(peer);
}

void cvy_peer_data(struct cvy_peer *peer, int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	peer->fd[peer->fds++] = fd;
	if (peer->fds < peer->streams) {
		if (peer->want == CVY_WANT_DIAL)
			dial_data(peer);
		else
			cvy_shake_retry(peer->mesh);
		return;
	}
	cvy_mesh_lock(peer->mesh);
	cvy_rdma_hang_up(peer); /* the peer has given RDMA up */
	cvy_mesh_unlock(peer->mesh);
	peer->path = CVY_PATH_TCP;
	data_up(peer);
}

void cvy_peer_frame(struct cvy_conn *conn, const struct cvy_wire *head, const uint8_t *body)
{
	struct cvy_peer *peer = conn->peer;
	struct cvy_mesh *mesh = conn->mesh;
	struct cvy_event event = { .kind = CVY_EV_MSG, .rank = peer->rank, .inc = peer->inc, .epoch = head->epoch };

	if ((head->type == CVY_WIRE_ASK || head->type == CVY_WIRE_KEY) && head->src == peer->rank &&
	    head->src_inc == peer->inc && head->dst == mesh->id.rank && head->dst_inc == mesh->id.inc) {
		cvy_rdma_frame(peer, head, body);
		return;
	}
	if (head->src != peer->rank || head->src_inc != peer->inc || head->dst != mesh->id.rank ||
	    head->dst_inc != mesh->id.inc || head->type < CVY_MSG_PING || head->type > CVY_MSG_PASSED) {
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
				      .body = body,
				      .fd = conn->in_fd };
	conn->in_fd = -1;
	cvy_post(&mesh->sink, &event);
	if (event.msg.fd >= 0)
		close(event.msg.fd);
}

/* ---- begin ---- */

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
		cvy_mesh_lock(mesh);
		mesh->peer[rank] = peer;
		cvy_mesh_unlock(mesh);
	}
	return mesh->peer[rank];
}

static void peer_late(void *ctx)
{
	struct cvy_peer *peer = ctx;
	char why[CVY_CAUSE];

	peer->timer = NULL; /* it fired */
	snprintf(why, sizeof(why), "%.150s%sno handshake within 5 seconds", peer->said, peer->said[0] ? "; " : "");
	if (peer->data && peer->data->state >= CVY_SHAKE_TRIAL) {
		snprintf(why, sizeof(why), "within 5 seconds no packet of full size came through" CVY_PATH_HINT);
		cvy_warn("p2p", "link to rank %d: %s", peer->rank, why);
	}
	if (peer->early)
		cvy_peer_fail(peer, COVEY_ERR_IO, peer->early);
	else if (peer->want == CVY_WANT_DIAL || peer->control)
		cvy_peer_fail(peer, COVEY_ERR_TIMEOUT, why);
	else if (peer->mesh->other_user[0])
		cvy_peer_fail(peer, COVEY_ERR_TIMEOUT,
			      peer->mesh->other_user); /* the caller did not say which rank it is */
	else
		cvy_peer_fail(peer, COVEY_ERR_TIMEOUT, "it did not dial within 5 seconds");
}

/* Begins a new cycle with @inc. 0: there is one already. */
int cvy_peer_begin(struct cvy_peer *peer, uint64_t inc, enum cvy_want want)
{
	if (!peer || (peer->inc == inc && (peer->up || peer->want == want)))
		return 0;
	cvy_mesh_lock(peer->mesh);
	cvy_peer_hang_up(peer, peer->inc == inc);
	if (peer->inc != inc) {
		cvy_mesh_unview(peer->mesh, peer->rank);
		peer->warned[0] = '\0';
	}
	peer->inc = inc;
	cvy_mesh_unlock(peer->mesh);
	peer->want = want;
	peer->timer = cvy_loop_timer(peer->mesh->loop, cvy_now_ns() + CVY_HANDSHAKE_MS * CVY_MS, peer_late, peer);
	return 1;
}

/* Posts the event from the loop, never from inside a call of the agent. */
void cvy_peer_fail_soon(struct cvy_peer *peer, const char *why)
{
	peer->early = why;
	cvy_loop_cancel(peer->timer);
	peer->timer = cvy_loop_timer(peer->mesh->loop, cvy_now_ns(), peer_late, peer);
}
