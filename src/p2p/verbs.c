/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections. The control link has authenticated the peer and carried a cookie. The request shows it; request and
 * answer bring address and key of the mirror. A request without the cookie is refused.
 *
 * All of this runs on the agent's thread, from events that are acknowledged before they are handled: so no call that
 * ends a connection waits for an event of it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "rdma.h"
#include "verbs.h"

#define PAGE 4096
#define INLINE_BYTES offsetof(struct cvy_line, tag)
#define HELLO_MAGIC 0x52564f43u /* "COVR" */
#define EVENTS_AT_ONCE 64
#define RESOLVE_MS \
	100 /* one try: the kernel may look at a neighbour that it has just learned only when this time is up */

/* In request and answer; 56 bytes are what every kind of device can carry. */
struct hello {
	uint8_t cookie[16];
	uint32_t magic;
	uint32_t mirror_key;
	uint64_t mirror, box;
	uint32_t box_key;
	int32_t rank;
};

_Static_assert(sizeof(struct hello) <= 56, "private data of a request");

/* ---- end ---- */

static void release(const struct cvy_verbs_api *api, struct ibv_mr **mr)
{
	if (*mr)
		api->ibv_dereg_mr(*mr);
	*mr = NULL;
}

static void count_out(const struct cvy_verbs *v)
{
	const struct cvy_verbs_counts *c = &v->counts;

	cvy_info("p2p",
		 "verbs to rank %d: puts %llu, lines %llu, bytes %llu, work requests %llu, doorbells %llu, completions "
		 "%llu, sleeps %llu, wakes %llu",
		 v->rank, (unsigned long long)c->puts, (unsigned long long)c->lines, (unsigned long long)c->bytes,
		 (unsigned long long)c->writes, (unsigned long long)c->bells, (unsigned long long)c->completions,
		 (unsigned long long)c->sleeps, (unsigned long long)c->wakes);
}

/* Queue pair first: writes of the peer on their way must find no key, and our memory no writer. */
static void objects_free(struct cvy_verbs *v)
{
	const struct cvy_verbs_api *api = v->rdma->api;

	if (v->qp)
		api->rdma_destroy_qp(v->id);
	for (int i = 0; i < CVY_RDMA_REGIONS; i++)
		release(api, &v->mirror_mr[i]);
	release(api, &v->box_mr);
	release(api, &v->stage_mr);
	if (v->cq)
		api->ibv_destroy_cq(v->cq);
	if (v->events)
		api->ibv_destroy_comp_channel(v->events);
	if (v->id)
		api->rdma_destroy_id(v->id); /* notifies the peer, too */
}

void cvy_verbs_free(struct cvy_verbs *v)
{
	struct cvy_peer *peer;

	if (!v)
		return;
	peer = v->rdma->mesh->peer[v->rank];
	if (peer && peer->verbs == v)
		peer->verbs = NULL;
	CVY_UNLINK(v->rdma->first, v, next);
	if (v->established)
		count_out(v);
	cvy_loop_cancel(v->timer);
	objects_free(v);
	free(v->stage);
	free(v->box);
	free(v);
}

struct cvy_verbs *cvy_verbs_find(const struct cvy_rdma *rdma, uint64_t number)
{
	struct cvy_verbs *v = rdma->first;

	while (v && v->number != number)
		v = v->next;
	return v;
}

/* While the connection is made: the peer may try another transport. Afterwards: the path is lost. */
static void failed(struct cvy_verbs *v, const char *cause)
{
	struct cvy_mesh *mesh = v->rdma->mesh;
	struct cvy_peer *peer = mesh->peer[v->rank];

	cvy_mesh_lock(mesh);
	if (v->link) {
		cvy_verbs_lost(v, cause);
		cvy_mesh_unlock(mesh);
		return;
	}
	cvy_verbs_free(v);
	cvy_mesh_unlock(mesh);
	cvy_peer_rdma_failed(peer, cause);
}

/* ---- begin ---- */

static struct cvy_verbs *verbs_new(struct cvy_peer *peer, int dialer)
{
	struct cvy_rdma *rdma = peer->mesh->rdma;
	struct cvy_verbs *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->rdma = rdma;
	v->rank = peer->rank;
	v->inc = peer->inc;
	v->number = ++rdma->number;
	v->dialer = dialer;
	v->mirror = cvy_mesh_place(rdma->mesh, peer->rank);
	v->depth = rdma->depth;
	v->box = aligned_alloc(PAGE, PAGE);
	if (!v->box) {
		free(v);
		return NULL;
	}
	memset(v->box, 0, PAGE);
	v->next = rdma->first;
	rdma->first = v;
	peer->verbs = v;
	return v;
}

static int make_queues(struct cvy_verbs *v, char *why, size_t bytes)
{
	const struct cvy_verbs_api *api = v->rdma->api;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = (uint32_t)v->depth,
						  .max_recv_wr = CVY_RDMA_RECVS,
						  .max_send_sge = 1,
						  .max_recv_sge = 1,
						  .max_inline_data = INLINE_BYTES } };

	v->events = api->ibv_create_comp_channel(v->rdma->context);
	if (!v->events || fcntl(v->events->fd, F_SETFL, fcntl(v->events->fd, F_GETFL) | O_NONBLOCK))
		goto fail;
	v->cq = api->ibv_create_cq(v->rdma->context, v->depth + CVY_RDMA_RECVS, NULL, v->events, 0);
	if (!v->cq)
		goto fail;
	attr.send_cq = attr.recv_cq = v->cq;
	v->is_inline = !api->rdma_create_qp(v->id, v->rdma->pd, &attr);
	if (!v->is_inline) {
		attr.cap.max_inline_data = 0;
		if (api->rdma_create_qp(v->id, v->rdma->pd, &attr))
			goto fail;
	}
	v->qp = v->id->qp;
	return 0;
fail:
	snprintf(why, bytes, "making a queue pair of %d entries: %s", v->depth, strerror(errno));
	return COVEY_ERR_UNSUPPORTED;
}

static int make_memory(struct cvy_verbs *v, char *why, size_t bytes)
{
	int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	size_t stage = ((size_t)v->depth * sizeof(*v->stage) + PAGE - 1) / PAGE * PAGE;

	v->box_mr = cvy_rdma_register(v->rdma, v->box, PAGE, writable, why, bytes);
	if (!v->box_mr)
		return COVEY_ERR_UNSUPPORTED;
	v->mirror_mr[0] = cvy_rdma_register(v->rdma, v->mirror, cvy_region_get(&v->rdma->mesh->layout, 0).bytes,
					    writable, why, bytes);
	if (!v->mirror_mr[0])
		return COVEY_ERR_UNSUPPORTED;
	if (v->is_inline)
		return 0;
	v->stage = aligned_alloc(PAGE, stage);
	if (!v->stage) {
		snprintf(why, bytes, "no memory");
		return COVEY_ERR_NOMEM;
	}
	memset(v->stage, 0, stage);
	v->stage_mr = cvy_rdma_register(v->rdma, v->stage, stage, 0, why, bytes);
	return v->stage_mr ? 0 : COVEY_ERR_UNSUPPORTED;
}

/* Makes everything that the connection needs on this side. */
static int equip(struct cvy_verbs *v, char *why, size_t bytes)
{
	int err;

	if (v->id->verbs != v->rdma->context) {
		snprintf(why, bytes, "the way to its address is over another RDMA device than %.140s", v->rdma->what);
		return COVEY_ERR_UNSUPPORTED;
	}
	/* Without it a cut port of a peer is noticed after seconds. An old kernel has no such option. */
	if (v->rdma->api->rdma_set_option(v->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &v->rdma->ack_timeout,
					  sizeof(v->rdma->ack_timeout)))
		cvy_debug("p2p", "rdma_cm takes no ACK timeout: %s", strerror(errno));
	err = make_queues(v, why, bytes);
	if (!err)
		err = make_memory(v, why, bytes);
	if (!err && cvy_verbs_recv(v, CVY_RDMA_RECVS)) {
		snprintf(why, bytes, "the RDMA device takes no receives");
		err = COVEY_ERR_UNSUPPORTED;
	}
	return err;
}

static void hello_fill(const struct cvy_verbs *v, struct hello *h)
{
	memset(h, 0, sizeof(*h));
	memcpy(h->cookie, v->cookie, sizeof(h->cookie));
	h->magic = HELLO_MAGIC;
	h->mirror = (uint64_t)(uintptr_t)v->mirror;
	h->mirror_key = v->mirror_mr[0]->rkey;
	h->box = (uint64_t)(uintptr_t)v->box;
	h->box_key = v->box_mr->rkey;
	h->rank = v->rdma->mesh->id.rank;
}

static void hello_take(struct cvy_verbs *v, const struct hello *h)
{
	v->far.mirror = h->mirror;
	v->far.box = h->box;
	v->far.box_key = h->box_key;
	v->far.key[0] = h->mirror_key;
	v->far.state[0] = CVY_KEY_HERE;
}

static struct rdma_conn_param parameters(struct hello *h)
{
	return (struct rdma_conn_param){ .private_data = h,
					 .private_data_len = sizeof(*h),
					 .retry_count = CVY_RDMA_RETRY,
					 .rnr_retry_count = CVY_RDMA_RETRY };
}

static void established(struct cvy_verbs *v)
{
	cvy_loop_cancel(v->timer);
	v->timer = NULL;
	v->established = 1;
	cvy_peer_rdma_up(v->rdma->mesh->peer[v->rank]);
}

/* ---- the dialer ---- */

static void dial_late(void *ctx)
{
	struct cvy_verbs *v = ctx;

	v->timer = NULL; /* it fired */
	failed(v, "rdma_cm did not connect in time");
}

int cvy_rdma_dial(struct cvy_peer *peer, const struct cvy_welcome *welcome, const char **why)
{
	struct cvy_rdma *rdma = peer->mesh->rdma;
	struct cvy_verbs *v = verbs_new(peer, 1);
	struct sockaddr_storage from = rdma->addr;

	*why = "no memory";
	if (!v)
		return COVEY_ERR_NOMEM;
	memcpy(v->cookie, welcome->rdma_cookie, sizeof(v->cookie));
	cvy_rdma_unmap(welcome->rdma_ip, welcome->rdma_port, &v->to);
	if (from.ss_family == AF_INET) /* the listener has the port */
		((struct sockaddr_in *)&from)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&from)->sin6_port = 0;
	v->timer = cvy_loop_timer(rdma->mesh->loop, cvy_now_ns() + CVY_RDMA_DIAL_MS * CVY_MS, dial_late, v);
	*why = from.ss_family == v->to.ss_family
		       ? "rdma_cm does not find its address"
		       : "its RDMA device has an IPv6 address and this one IPv4, or the reverse";
	if (v->timer && from.ss_family == v->to.ss_family &&
	    !rdma->api->rdma_create_id(rdma->channel, &v->id, (void *)(uintptr_t)v->number, RDMA_PS_TCP) &&
	    !rdma->api->rdma_resolve_addr(v->id, (struct sockaddr *)&from, (struct sockaddr *)&v->to, RESOLVE_MS)) {
		cvy_debug("p2p", "connection %llu: rdma_cm resolves the address of rank %d",
			  (unsigned long long)v->number, peer->rank);
		return 0;
	}
	cvy_mesh_lock(rdma->mesh);
	cvy_verbs_free(v);
	cvy_mesh_unlock(rdma->mesh);
	return COVEY_ERR_IO;
}

static void dial_connect(struct cvy_verbs *v)
{
	struct rdma_conn_param param;
	struct hello hello;
	char why[CVY_CAUSE];

	if (equip(v, why, sizeof(why))) {
		failed(v, why);
		return;
	}
	hello_fill(v, &hello);
	param = parameters(&hello);
	if (v->rdma->api->rdma_connect(v->id, &param)) {
		snprintf(why, sizeof(why), "rdma_cm does not connect: %s", strerror(errno));
		failed(v, why);
	}
}

/* ---- the listener ---- */

static struct cvy_peer *invited(const struct cvy_rdma *rdma, const struct hello *h)
{
	struct cvy_peer *peer;

	if (h->magic != HELLO_MAGIC || h->rank < 0 || h->rank >= rdma->mesh->max_ranks)
		return NULL;
	peer = rdma->mesh->peer[h->rank];
	if (!peer || peer->want != CVY_WANT_EXPECT || !peer->control || peer->control->state != CVY_SHAKE_UP ||
	    peer->path != CVY_PATH_VERBS || peer->verbs ||
	    sodium_memcmp(peer->rdma_cookie, h->cookie, sizeof(h->cookie)))
		return NULL;
	return peer;
}

static void answer(struct cvy_rdma *rdma, struct rdma_cm_id *id, const struct hello *h)
{
	struct cvy_peer *peer = invited(rdma, h);
	struct cvy_verbs *v = peer ? verbs_new(peer, 0) : NULL;
	struct rdma_conn_param param;
	struct hello mine;
	char why[CVY_CAUSE];

	if (!v) {
		cvy_shake_complain(rdma->mesh, "an RDMA connection was refused: %s",
				   peer ? "no memory" : "not expected, or without the cookie");
		rdma->api->rdma_reject(id, NULL, 0);
		rdma->api->rdma_destroy_id(id);
		return;
	}
	v->id = id;
	id->context = (void *)(uintptr_t)v->number;
	hello_take(v, h);
	if (equip(v, why, sizeof(why))) {
		rdma->api->rdma_reject(id, NULL, 0);
		failed(v, why);
		return;
	}
	hello_fill(v, &mine);
	param = parameters(&mine);
	if (rdma->api->rdma_accept(id, &param)) {
		snprintf(why, sizeof(why), "rdma_cm does not accept: %s", strerror(errno));
		failed(v, why);
	}
}

/* ---- events ---- */

struct news {
	enum rdma_cm_event_type event;
	int status, has_hello;
	uint64_t number;
	struct rdma_cm_id *id;
	struct hello hello;
};

static void progress(struct cvy_verbs *v, const struct news *n)
{
	char cause[CVY_CAUSE];

	switch (n->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (v->rdma->api->rdma_resolve_route(v->id, CVY_RDMA_DIAL_MS))
			failed(v, "rdma_cm finds no route");
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		dial_connect(v);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (v->established)
			break;
		if (v->dialer && (!n->has_hello || n->hello.magic != HELLO_MAGIC)) {
			failed(v, "what answered by rdma_cm is no peer");
			break;
		}
		if (v->dialer)
			hello_take(v, &n->hello);
		established(v);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		failed(v, "its end of the RDMA connection is gone");
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		failed(v, "the RDMA device was taken away");
		break;
	case RDMA_CM_EVENT_ADDR_ERROR: /* until the timer of the dialler */
		if (n->status != -ETIMEDOUT ||
		    v->rdma->api->rdma_resolve_addr(v->id, NULL, (struct sockaddr *)&v->to, RESOLVE_MS))
			failed(v, "rdma_cm does not find its address");
		break;
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		snprintf(cause, sizeof(cause), "rdma_cm: %s (%d)",
			 n->event == RDMA_CM_EVENT_REJECTED ? "it refused" : "it is not reached", n->status);
		failed(v, cause);
		break;
	default:
		break;
	}
}

/* 0: there is none. Its contents are copied before it is acknowledged. */
static int next_news(struct cvy_rdma *rdma, struct news *n)
{
	struct rdma_cm_event *e;

	if (rdma->api->rdma_get_cm_event(rdma->channel, &e))
		return 0;
	*n = (struct news){
		.event = e->event, .status = e->status, .id = e->id, .number = (uint64_t)(uintptr_t)e->id->context
	};
	if (e->param.conn.private_data && e->param.conn.private_data_len >= sizeof(n->hello) &&
	    (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED)) {
		memcpy(&n->hello, e->param.conn.private_data, sizeof(n->hello));
		n->has_hello = 1;
	}
	rdma->api->rdma_ack_cm_event(e);
	return 1;
}

void cvy_verbs_events(void *ctx, uint32_t events)
{
	struct cvy_mesh *mesh = ctx;
	struct news n;

	(void)events;
	for (int i = 0; i < EVENTS_AT_ONCE && next_news(mesh->rdma, &n); i++) {
		struct cvy_verbs *v = cvy_verbs_find(mesh->rdma, n.number);

		cvy_debug("p2p", "rdma_cm event %d, status %d, connection %llu", (int)n.event, n.status,
			  (unsigned long long)n.number);
		if (n.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			answer(mesh->rdma, n.id, &n.hello);
		else if (v)
			progress(v, &n);
	}
}

void cvy_rdma_hang_up(struct cvy_peer *peer)
{
	if (peer->verbs && !peer->verbs->link)
		cvy_verbs_free(peer->verbs);
}

int cvy_rdma_link(struct cvy_peer *peer, struct cvy_link *link)
{
	if (!peer->verbs || !peer->verbs->established || peer->verbs->link)
		return 0;
	cvy_verbs_open(link, peer->verbs);
	return 1;
}
