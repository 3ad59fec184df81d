/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA connections that are made, or die while they are: the events of rdma_cm come from an array, in any order, and
 * every object that was made is counted until it is gone.
 */
#ifdef CVY_RDMA
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../suite.h"
#include "rdma.h"
#include "verbs.h"

#define SLOT 65536
#define WINDOW ((size_t)16 << 20)
#define COOKIE 0x5a

/* As in verbs.c. */
struct hello {
	uint8_t cookie[16];
	uint32_t magic, mirror_key;
	uint64_t mirror, box;
	uint32_t box_key;
	int32_t rank;
};

/* As in verbs_mesh.c. */
struct ask {
	int32_t region, err;
	uint32_t key, reserved;
	char text[CVY_CAUSE];
};

static struct {
	struct rdma_cm_event event[8];
	int first, last, unacked;
	int ids, qps, cqs, channels, mrs, rejects, accepts;
	uint32_t keys;
	struct rdma_cm_id *id; /* the last one that was made */
} cm;

static struct {
	struct cvy_mesh mesh;
	struct cvy_window window;
	struct cvy_rdma rdma;
	struct cvy_peer *peer;
	struct ibv_mr *own[64];
	int far; /* of the control connection */
	int ups, downs;
} t;

/* ---- rdma_cm and the adapter ---- */

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	(void)channel, (void)ps;
	*id = cm.id = calloc(1, sizeof(**id));
	ck_assert_ptr_nonnull(*id);
	(*id)->context = context;
	(*id)->verbs = t.rdma.context;
	cm.ids++;
	return 0;
}

static int destroy_id(struct rdma_cm_id *id)
{
	ck_assert_int_eq(cm.unacked, 0); /* the real one would wait for ever */
	ck_assert_ptr_null(id->qp);
	free(id);
	cm.ids--;
	return 0;
}

static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms)
{
	(void)id, (void)from, (void)to, (void)ms;
	return 0;
}

static int resolve_route(struct rdma_cm_id *id, int ms)
{
	(void)id, (void)ms;
	return 0;
}

static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
	(void)id, (void)level, (void)name, (void)value, (void)bytes;
	return 0;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd, (void)attr;
	ck_assert_ptr_null(id->qp);
	id->qp = calloc(1, sizeof(*id->qp));
	cm.qps++;
	return id->qp ? 0 : -1;
}

static void destroy_qp(struct rdma_cm_id *id)
{
	free(id->qp);
	id->qp = NULL;
	cm.qps--;
}

static int connect_(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	ck_assert_ptr_nonnull(id->qp);
	ck_assert_uint_eq(param->private_data_len, sizeof(struct hello));
	return 0;
}

static int accept_(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	cm.accepts++;
	return connect_(id, param);
}

static int reject(struct rdma_cm_id *id, const void *data, uint8_t bytes)
{
	(void)id, (void)data, (void)bytes;
	cm.rejects++;
	return 0;
}

static int get_event(struct rdma_event_channel *channel, struct rdma_cm_event **e)
{
	(void)channel;
	errno = EAGAIN;
	if (cm.first == cm.last)
		return -1;
	*e = &cm.event[cm.first++];
	cm.unacked++;
	return 0;
}

static int ack_event(struct rdma_cm_event *e)
{
	memset(e, 0xee, sizeof(*e)); /* it is not looked at any more */
	cm.unacked--;
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	(void)pd, (void)access;
	ck_assert_ptr_nonnull(mr);
	*mr = (struct ibv_mr){ .addr = at, .length = bytes, .lkey = ++cm.keys, .rkey = cm.keys };
	cm.mrs++;
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	cm.mrs--;
	return 0;
}

static struct ibv_comp_channel *create_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	(void)context;
	ck_assert_ptr_nonnull(channel);
	channel->fd = eventfd(0, EFD_NONBLOCK);
	cm.channels++;
	return channel;
}

static int destroy_channel(struct ibv_comp_channel *channel)
{
	ck_assert_int_eq(cm.cqs, 0);
	close(channel->fd);
	free(channel);
	cm.channels--;
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int n, void *ctx, struct ibv_comp_channel *ch, int vector)
{
	(void)context, (void)n, (void)ctx, (void)ch, (void)vector;
	cm.cqs++;
	return calloc(1, sizeof(struct ibv_cq));
}

static int destroy_cq(struct ibv_cq *cq)
{
	ck_assert_int_eq(cm.qps, 0);
	free(cq);
	cm.cqs--;
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **ctx)
{
	(void)channel, (void)cq, (void)ctx;
	return -1;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq, (void)n, (void)wc;
	return 0;
}

static const struct cvy_verbs_api fake = { .rdma_create_id = create_id,
					   .rdma_destroy_id = destroy_id,
					   .rdma_resolve_addr = resolve_addr,
					   .rdma_resolve_route = resolve_route,
					   .rdma_set_option = set_option,
					   .rdma_create_qp = create_qp,
					   .rdma_destroy_qp = destroy_qp,
					   .rdma_connect = connect_,
					   .rdma_accept = accept_,
					   .rdma_reject = reject,
					   .rdma_get_cm_event = get_event,
					   .rdma_ack_cm_event = ack_event,
					   .ibv_reg_mr = reg_mr,
					   .ibv_dereg_mr = dereg_mr,
					   .ibv_create_comp_channel = create_channel,
					   .ibv_destroy_comp_channel = destroy_channel,
					   .ibv_create_cq = create_cq,
					   .ibv_destroy_cq = destroy_cq,
					   .ibv_get_cq_event = get_cq_event,
					   .ibv_modify_qp = modify_qp,
					   .post_send = post_send,
					   .post_recv = post_recv,
					   .poll_cq = poll_cq };

/* ---- a mesh of one rank, its control connection and its peer ---- */

static void hear(void *ctx, const struct cvy_event *e)
{
	(void)ctx;
	t.ups += e->kind == CVY_EV_LINK_UP;
	t.downs += e->kind == CVY_EV_LINK_DOWN;
}

static void begin(enum cvy_want want, int transport)
{
	struct cvy_welcome welcome = {
		.slot_bytes = SLOT, .window_bytes = WINDOW, .max_ranks = 2, .streams = 2, .rdma_port = 7
	};
	int sv[2];

	memset(&cm, 0, sizeof(cm));
	memset(&t, 0, sizeof(t));
	ck_assert_int_eq(cvy_loop_new(&t.mesh.loop), 0);
	pthread_mutex_init(&t.mesh.own_lock, NULL);
	t.mesh.lock = &t.mesh.own_lock;
	t.mesh.sink = (struct cvy_sink){ hear, NULL };
	t.mesh.layout = cvy_layout(WINDOW, SLOT);
	t.mesh.window = &t.window;
	t.mesh.transport = transport;
	t.mesh.streams = t.mesh.max_ranks = t.mesh.reserved = 2;
	t.mesh.link_ms = -1;
	t.mesh.known = 1;
	t.window.own = aligned_alloc(4096, WINDOW);
	t.mesh.base = cvy_window_reserve(WINDOW, 2);
	ck_assert(t.window.own && t.mesh.base);
	t.mesh.view[1] = cvy_mesh_place(&t.mesh, 1);
	t.rdma = (struct cvy_rdma){ .api = &fake, .mesh = &t.mesh, .own = t.own, .depth = 64, .ready_fd = -1 };
	t.rdma.device.max_mr_size = UINT64_MAX;
	t.rdma.context = (struct ibv_context *)&t; /* only handed on */
	t.rdma.addr.ss_family = AF_INET;
	t.mesh.rdma = &t.rdma;
	t.peer = cvy_peer_get(&t.mesh, 1);
	ck_assert_int_eq(cvy_peer_begin(t.peer, 7, want), 1);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv), 0);
	t.far = sv[1];
	t.peer->control = cvy_conn_new(t.mesh.loop, sv[0], 0);
	ck_assert_ptr_nonnull(t.peer->control);
	t.peer->control->mesh = &t.mesh;
	t.peer->control->peer = t.peer;
	t.peer->control->state = CVY_SHAKE_UP;
	memset(t.peer->rdma_cookie, COOKIE, sizeof(t.peer->rdma_cookie));
	snprintf(welcome.host, sizeof(welcome.host), "another");
	welcome.transport = transport;
	cvy_rdma_map((const struct sockaddr *)&t.rdma.addr, welcome.rdma_ip);
	ck_assert_int_eq(cvy_peer_welcome(t.peer, &welcome, -1), 0);
}

/* All that was made is gone again. */
static void end(void)
{
	cvy_mesh_lock(&t.mesh);
	cvy_mesh_fence(&t.mesh, 1);
	cvy_mesh_unlock(&t.mesh);
	ck_assert_ptr_null(t.rdma.first);
	for (size_t i = 0; i < sizeof(t.own) / sizeof(*t.own); i++)
		if (t.own[i])
			dereg_mr(t.own[i]);
	ck_assert_msg(!cm.ids && !cm.qps && !cm.cqs && !cm.channels && !cm.mrs && !cm.unacked,
		      "left: ids %d, queue pairs %d, completion queues %d, channels %d, regions %d", cm.ids, cm.qps,
		      cm.cqs, cm.channels, cm.mrs);
	close(t.far);
	free(t.peer->addr);
	free(t.peer);
	munmap(t.mesh.base, 2 * WINDOW);
	free(t.window.own);
	cvy_loop_free(t.mesh.loop);
	pthread_mutex_destroy(&t.mesh.own_lock);
}

static const struct hello theirs = {
	.cookie = { COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE, COOKIE,
		    COOKIE, COOKIE, COOKIE, COOKIE },
	.magic = 0x52564f43u,
	.mirror_key = 5,
	.box_key = 6,
	.rank = 1,
};

/* rdma_cm says it of the connection with this number. */
static void say_of(struct rdma_cm_id *id, enum rdma_cm_event_type event)
{
	struct rdma_cm_event e = { .id = id, .event = event };

	if (event == RDMA_CM_EVENT_ESTABLISHED || event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		e.param.conn.private_data = &theirs;
		e.param.conn.private_data_len = sizeof(theirs);
	}
	cm.first = cm.last = 0;
	cm.event[cm.last++] = e;
	cvy_verbs_events(&t.mesh, 0);
}

static void say(enum rdma_cm_event_type event)
{
	say_of(cm.id, event);
}

static void request(void)
{
	struct rdma_cm_id *id;

	create_id(NULL, &id, NULL, RDMA_PS_TCP); /* as that of the listener, its number is 0 */
	say_of(id, RDMA_CM_EVENT_CONNECT_REQUEST);
}

/* A message of the peer on the control connection, whether we read it or not. */
static void told(int type, int region, uint32_t key)
{
	struct ask ask = { .region = region, .key = key };
	struct cvy_wire head = {
		.type = (uint16_t)type, .bytes = sizeof(ask), .src = 1, .dst = 0, .src_inc = 7, .dst_inc = 0
	};

	cvy_peer_frame(t.peer->control, &head, (const uint8_t *)&ask);
}

static void dial_all(int steps)
{
	static const enum rdma_cm_event_type way[] = { RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
						       RDMA_CM_EVENT_ESTABLISHED };

	for (int i = 0; i < steps; i++)
		say(way[i]);
}

/* ---- made, and dead on the way ---- */

TEST(a_dialled_connection_comes_up_and_leaves_nothing)
{
	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(3);
	ck_assert_int_eq(t.ups, 1);
	ck_assert_ptr_eq(t.peer->link->ops, &cvy_transport_verbs);
	end();
}

TEST(a_request_with_the_cookie_is_taken_once)
{
	begin(CVY_WANT_EXPECT, COVEY_TRANSPORT_VERBS);
	request();
	ck_assert_int_eq(cm.accepts, 1);
	request();
	ck_assert_int_eq(cm.accepts, 1);
	ck_assert_int_eq(cm.rejects, 1);
	ck_assert_int_eq(cm.ids, 1);
	say_of(t.peer->verbs->id, RDMA_CM_EVENT_ESTABLISHED);
	ck_assert_int_eq(t.ups, 1);
	end();
}

/* _i: how far it had come. Each event, expected there or not, ends it or changes nothing, and never twice. */
TEST_LOOP(any_event_in_any_state_leaves_nothing, 0, 4)
{
	for (int event = RDMA_CM_EVENT_ADDR_RESOLVED; event <= RDMA_CM_EVENT_TIMEWAIT_EXIT; event++) {
		struct rdma_cm_id late = { .context = (void *)(uintptr_t)1 };

		if (event == RDMA_CM_EVENT_CONNECT_REQUEST)
			continue;
		begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
		dial_all(_i);
		if (event != RDMA_CM_EVENT_ADDR_RESOLVED && event != RDMA_CM_EVENT_ROUTE_RESOLVED)
			say((enum rdma_cm_event_type)event);
		ck_assert_int_le(t.ups, 1);
		ck_assert_int_le(t.downs, 1);
		cvy_mesh_lock(&t.mesh);
		cvy_mesh_fence(&t.mesh, 1);
		cvy_mesh_unlock(&t.mesh);
		say_of(&late, (enum rdma_cm_event_type)event); /* of an id that is gone */
		end();
	}
}

TEST(established_twice_is_one_link)
{
	struct cvy_link *link;

	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(3);
	link = t.peer->link;
	say(RDMA_CM_EVENT_ESTABLISHED);
	ck_assert_ptr_eq(t.peer->link, link);
	ck_assert_ptr_eq(link->ops, &cvy_transport_verbs);
	ck_assert_int_eq(t.ups, 1);
	end();
}

/* ---- the control link beside it ---- */

/* Over iWARP the listener's end stands first: what it says then must not be read before ours stands, too. */
TEST(who_dials_reads_nothing_until_both_are_up)
{
	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(2);
	ck_assert_int_eq(t.peer->control->stopped, 1);
	say(RDMA_CM_EVENT_ESTABLISHED);
	ck_assert_int_eq(t.ups, 1);
	ck_assert_int_eq(t.peer->control->stopped, 0);
	end();
}

TEST(a_key_asked_for_before_there_is_a_queue_pair_is_not_given)
{
	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	told(CVY_WIRE_ASK, 0, 0);
	ck_assert_int_eq(cm.mrs, 0);
	dial_all(3);
	end();
}

TEST(a_region_asked_for_twice_is_registered_once)
{
	int before;

	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(3);
	before = cm.mrs;
	told(CVY_WIRE_ASK, 3, 0);
	told(CVY_WIRE_ASK, 3, 0);
	told(CVY_WIRE_ASK, -1, 0);
	told(CVY_WIRE_ASK, CVY_RDMA_REGIONS, 0);
	ck_assert_int_eq(cm.mrs, before + 1);
	end();
}

/* Else the number of keys that are wanted is wrong for ever, and the next one is never asked for. */
TEST(a_key_that_nobody_asked_for_is_not_taken)
{
	struct cvy_verbs *v;

	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(3);
	v = t.peer->verbs;
	told(CVY_WIRE_KEY, 0, 77);
	ck_assert_uint_eq(v->far.key[0], 5);
	ck_assert_int_eq(t.peer->link->ops->put(t.peer->link, t.mesh.layout.heap, 8), 0);
	ck_assert_int_eq(t.peer->link->ops->poll(t.peer->link), 0);
	ck_assert_int_eq(v->far.state[1], CVY_KEY_WANTED);
	told(CVY_WIRE_KEY, 1, 77); /* before the loop has asked */
	ck_assert_int_eq(v->far.state[1], CVY_KEY_WANTED);
	end();
}

/* Else the peer's ring waits behind it for ever. */
TEST(a_key_that_cannot_be_told_ends_the_path)
{
	begin(CVY_WANT_DIAL, COVEY_TRANSPORT_VERBS);
	dial_all(3);
	ck_assert_int_eq(t.peer->verbs->dead, 0);
	t.peer->control->cause = "as if it were cut";
	told(CVY_WIRE_ASK, 3, 0);
	ck_assert_int_eq(t.peer->verbs->dead, 1);
	end();
}

/* The dialler went on to tcp, and rdma_cm connects all the same. */
TEST(rdma_that_wins_over_tcp_closes_its_connections)
{
	int fd;

	begin(CVY_WANT_EXPECT, COVEY_TRANSPORT_VERBS_TCP);
	request();
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	cvy_peer_data(t.peer, fd);
	ck_assert_int_eq(t.peer->fds, 1);
	say_of(t.peer->verbs->id, RDMA_CM_EVENT_ESTABLISHED);
	ck_assert_int_eq(t.ups, 1);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
	end();
}

SUITE_MAIN(.name = "p2p/verbs_dial")
#else
#include <stdio.h>

int main(void)
{
	printf("no verbs transport in this build\n");
	return 77;
}
#endif
