/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path over one queue pair. Entries wait in a ring and are posted as credits allow, many with one doorbell.
 * The last of each batch is signalled, and its completion returns the credits of all.
 *
 * An incoming write wakes nobody. A rank that goes to sleep writes into the peer's box and learns from the completion
 * when that has arrived. The peer answers the next line, or lines that the sleeper may have missed, with one empty
 * send, which wakes it. Both look after they wrote, so at least one sees the other.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "verbs.h"

#define RECEIVED (1ull << 63) /* of a request's number: a receive */
#define POLLS 16
#define TAG offsetof(struct cvy_line, tag)

/* Work requests of one doorbell, with the data that they point to. */
struct batch {
	int n;
	int lines;
	size_t bytes;
	struct ibv_send_wr wr[CVY_RDMA_BATCH];
	struct ibv_sge sge[CVY_RDMA_BATCH];
	uint64_t word; /* of an announcement: inline */
};

int cvy_verbs_lost(struct cvy_verbs *v, const char *cause)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (v->dead)
		return COVEY_ERR_PEER;
	v->dead = 1;
	if (v->qp)
		v->rdma->api->ibv_modify_qp(v->qp, &attr, IBV_QP_STATE); /* no byte of either side moves afterwards */
	if (v->link)
		cvy_mesh_lost(v->link, cause);
	return COVEY_ERR_PEER;
}

int cvy_verbs_unfit(struct cvy_verbs *v, const char *cause)
{
	struct cvy_peer *peer = v->rdma->mesh->peer[v->rank];

	if (peer)
		peer->rdma_off = v->inc; /* tcp is next, if it is allowed */
	return cvy_verbs_lost(v, cause);
}

int cvy_verbs_recv(struct cvy_verbs *v, int n)
{
	/* A wake-up is empty, but siw takes no receive without a buffer. */
	struct ibv_sge to = { (uint64_t)(uintptr_t)&v->box->spare, sizeof(v->box->spare), v->box_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = RECEIVED, .sg_list = &to, .num_sge = 1 }, *bad;

	int err = 0;

	while (n-- && !err)
		err = v->rdma->api->post_recv(v->qp, &wr, &bad);
	return err;
}

/* ---- work requests ---- */

static int credits(const struct cvy_verbs *v)
{
	return v->depth - (int)(v->posted - v->completed);
}

static struct ibv_send_wr *batch_add(struct cvy_verbs *v, struct batch *b, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr *wr = &b->wr[b->n];

	*wr = (struct ibv_send_wr){ .wr_id = v->posted + (uint64_t)b->n + 1, .opcode = opcode };
	if (b->n)
		b->wr[b->n - 1].next = wr;
	b->n++;
	return wr;
}

static void batch_write(struct cvy_verbs *v, struct batch *b, struct ibv_sge from, uint64_t to, uint32_t key)
{
	struct ibv_send_wr *wr = batch_add(v, b, IBV_WR_RDMA_WRITE);

	b->sge[b->n - 1] = from;
	wr->sg_list = &b->sge[b->n - 1];
	wr->num_sge = 1;
	wr->wr.rdma.remote_addr = to;
	wr->wr.rdma.rkey = key;
	b->bytes += from.length;
}

/* A few bytes that are reused at once: inside the request, or beside it if the device cannot. */
static void batch_value(struct cvy_verbs *v, struct batch *b, const void *value, uint32_t bytes, uint64_t to,
			uint32_t key)
{
	struct ibv_sge from = { (uint64_t)(uintptr_t)value, bytes, 0 };

	if (!v->is_inline) {
		struct cvy_line *copy = &v->stage[(v->posted + (uint64_t)b->n) % (uint64_t)v->depth];

		memcpy(copy, value, bytes);
		from.addr = (uint64_t)(uintptr_t)copy;
		from.lkey = v->stage_mr->lkey;
	}
	batch_write(v, b, from, to, key);
	if (v->is_inline)
		b->wr[b->n - 1].send_flags = IBV_SEND_INLINE;
}

static int batch_post(struct cvy_verbs *v, struct batch *b)
{
	struct ibv_send_wr *bad;
	char cause[80];
	int err;

	if (!b->n)
		return 0;
	b->wr[b->n - 1].send_flags |= IBV_SEND_SIGNALED;
	err = v->rdma->api->post_send(v->qp, b->wr, &bad);
	if (err) {
		snprintf(cause, sizeof(cause), "posting to the RDMA device: %s",
			 strerror(abs(err))); /* some say -EINVAL */
		return cvy_verbs_lost(v, cause);
	}
	v->posted += (uint64_t)b->n;
	v->lines += (uint64_t)b->lines;
	v->counts.writes += (uint64_t)b->n;
	v->counts.bytes += b->bytes;
	v->counts.bells++;
	return 1;
}

/* ---- asleep and awake ---- */

/* The peer sleeps, and a line was posted since it was last woken: it may have missed it. */
static int must_wake(const struct cvy_verbs *v, const struct batch *b)
{
	/* pairs with the peer's write, which its adapter's acknowledgement follows */
	return __atomic_load_n(&v->box->asleep, __ATOMIC_ACQUIRE) != v->woken && v->lines + (uint64_t)b->lines;
}

static void batch_wake(struct cvy_verbs *v, struct batch *b)
{
	if (!must_wake(v, b) || credits(v) <= b->n)
		return;
	v->woken = __atomic_load_n(&v->box->asleep, __ATOMIC_ACQUIRE);
	v->lines = 0;
	b->lines = 0;
	batch_add(v, b, IBV_WR_SEND);
	v->counts.wakes++;
}

static void announce_sleep(struct cvy_verbs *v)
{
	struct batch b = { .n = 0 };

	if (v->asleep || v->dead || credits(v) < 1)
		return;
	b.word = v->announced + 1;
	batch_value(v, &b, &b.word, sizeof(b.word), v->far.box + offsetof(struct cvy_box, asleep), v->far.box_key);
	if (batch_post(v, &b) < 0)
		return;
	v->announced++;
	v->asleep = 1;
	v->counts.sleeps++;
}

/* ---- out ---- */

static struct ibv_mr *own_region(struct cvy_verbs *v, int i, char *why, size_t room)
{
	struct cvy_rdma *rdma = v->rdma;
	struct cvy_verbs_region r = cvy_region_get(&rdma->mesh->layout, i);

	if (!rdma->own[i])
		rdma->own[i] = cvy_rdma_register(rdma, rdma->mesh->window->own + r.at, r.bytes, 0, why, room);
	return rdma->own[i];
}

/* One work request of the put at the head. 1: done or begun, 0: the peer's key is not here, < 0: lost */
static int add_put(struct cvy_verbs *v, struct batch *b, struct cvy_verbs_entry *e)
{
	const struct cvy_layout *l = &v->rdma->mesh->layout;
	int i = cvy_region_of(l, e->at);
	struct cvy_verbs_region r = cvy_region_get(l, i);
	size_t n = r.at + r.bytes - e->at, max = CVY_RDMA_WRITE_MAX;
	struct ibv_mr *mr;
	char why[CVY_CAUSE];

	if (v->far.state[i] != CVY_KEY_HERE) {
		if (v->far.state[i] == CVY_KEY_NONE) {
			v->far.state[i] = CVY_KEY_WANTED;
			if (!v->wanted++)
				cvy_verbs_ask(v);
		}
		return 0;
	}
	mr = own_region(v, i, why, sizeof(why));
	if (!mr)
		return cvy_verbs_unfit(v, why);
	if (v->rdma->port.max_msg_sz && v->rdma->port.max_msg_sz < max)
		max = v->rdma->port.max_msg_sz;
	n = n < e->left ? n : e->left;
	n = n < max ? n : max;
	batch_write(v, b, (struct ibv_sge){ (uint64_t)(uintptr_t)(v->link->own + e->at), (uint32_t)n, mr->lkey },
		    v->far.mirror + e->at, v->far.key[i]);
	e->at += n;
	e->left -= n;
	return 1;
}

/* All of a line but the tag, then the tag: the order in which bytes of one write become visible is not defined. */
static void add_line(struct cvy_verbs *v, struct batch *b, const struct cvy_verbs_entry *e)
{
	int i = cvy_region_of(&v->rdma->mesh->layout, e->at);
	uint64_t to = v->far.mirror + e->at;

	batch_value(v, b, e->line, TAG, to, v->far.key[i]);
	batch_value(v, b, e->line + TAG, sizeof(uint64_t), to + TAG, v->far.key[i]);
	b->lines++;
}

/* A line of a channel is past the slots: its region may not be known yet, as with a put. */
static int line_ready(struct cvy_verbs *v, const struct cvy_verbs_entry *e)
{
	int i = cvy_region_of(&v->rdma->mesh->layout, e->at);

	if (v->far.state[i] == CVY_KEY_NONE) {
		v->far.state[i] = CVY_KEY_WANTED;
		if (!v->wanted++)
			cvy_verbs_ask(v);
	}
	return v->far.state[i] == CVY_KEY_HERE;
}

static void pop(struct cvy_verbs *v)
{
	v->head = (v->head + 1) % CVY_RDMA_QUEUE;
	v->count--;
}

/* 1: full, posts as many as credits and the batch allow; < 0: lost */
static int gather(struct cvy_verbs *v, struct batch *b)
{
	while (v->count && b->n + 3 <= CVY_RDMA_BATCH && credits(v) - b->n >= 2 + CVY_RDMA_RESERVE) {
		struct cvy_verbs_entry *e = &v->ring[v->head];
		int r = 1;

		if (e->left) {
			r = add_put(v, b, e);
			if (r > 0 && !e->left)
				pop(v);
		} else if ((r = line_ready(v, e))) {
			add_line(v, b, e);
			pop(v);
		}
		if (r <= 0)
			return r;
	}
	return 1;
}

/* 1: something was posted, 0: nothing to post or no credit, < 0: lost */
static int flush(struct cvy_verbs *v)
{
	int moved = 0, r;

	do {
		struct batch b = { .n = 0 };

		if (v->dead || gather(v, &b) < 0)
			return COVEY_ERR_PEER;
		batch_wake(v, &b);
		r = batch_post(v, &b);
		moved |= r;
	} while (r > 0);
	return r < 0 ? r : moved;
}

static int verbs_put(struct cvy_link *link, size_t offset, size_t bytes)
{
	struct cvy_verbs *v = link->state;

	if (offset > link->window_bytes || bytes > link->window_bytes - offset)
		return COVEY_ERR_INVAL;
	if (!v || v->dead || (v->count == CVY_RDMA_QUEUE && flush(v) < 0))
		return COVEY_ERR_PEER;
	if (v->count == CVY_RDMA_QUEUE)
		return COVEY_ERR_AGAIN;
	v->counts.puts++;
	if (bytes) {
		struct cvy_verbs_entry *e = &v->ring[(v->head + v->count++) % CVY_RDMA_QUEUE];

		e->at = offset;
		e->left = bytes;
	}
	return 0; /* leaves with its line, with one doorbell, or with the next poll */
}

int cvy_verbs_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line)
{
	struct cvy_verbs *v = link->state;
	struct cvy_verbs_entry *e;

	if (!v || v->dead || (v->count == CVY_RDMA_QUEUE && flush(v) < 0))
		return COVEY_ERR_PEER;
	if (v->count == CVY_RDMA_QUEUE)
		return COVEY_ERR_AGAIN;
	v->counts.lines++;
	e = &v->ring[(v->head + v->count++) % CVY_RDMA_QUEUE];
	e->at = offset;
	e->left = 0;
	memcpy(e->line, line, sizeof(e->line));
	return flush(v) < 0 ? COVEY_ERR_PEER : 0;
}

static int verbs_signal(struct cvy_link *link, size_t offset)
{
	return cvy_verbs_signal_line(link, offset, (const struct cvy_line *)(link->own + offset));
}

/* ---- in ---- */

static int completed(struct cvy_verbs *v, const struct ibv_wc *wc)
{
	char cause[80];

	v->counts.completions++;
	if (wc->status != IBV_WC_SUCCESS) {
		snprintf(cause, sizeof(cause), "RDMA completion: %s", v->rdma->api->ibv_wc_status_str(wc->status));
		return cvy_verbs_lost(v, cause);
	}
	if (wc->wr_id & RECEIVED) {
		v->asleep = 0;
		if (cvy_verbs_recv(v, 1))
			return cvy_verbs_lost(v, "posting a receive to the RDMA device");
	} else {
		v->completed = wc->wr_id;
	}
	return 0;
}

/* 1: something completed, 0: nothing, < 0: lost */
static int reap(struct cvy_verbs *v)
{
	struct ibv_wc wc[POLLS];
	int n, moved = 0;

	do {
		n = v->rdma->api->poll_cq(v->cq, POLLS, wc);
		if (n < 0)
			return cvy_verbs_lost(v, "the completion queue of the RDMA device does not answer");
		for (int i = 0; i < n; i++)
			if (completed(v, &wc[i]))
				return COVEY_ERR_PEER;
		moved |= n > 0;
	} while (n == POLLS);
	return moved;
}

int cvy_verbs_poll(struct cvy_verbs *v)
{
	int in = v->dead ? COVEY_ERR_PEER : reap(v), out = in < 0 ? in : flush(v);

	return out < 0 ? COVEY_ERR_PEER : in | out;
}

static int verbs_poll(struct cvy_link *link)
{
	return link->state ? cvy_verbs_poll(link->state) : COVEY_ERR_PEER;
}

/* Posted requests leave without a look; the mesh's tick finds failed completions. */
static int verbs_unsent(struct cvy_link *link)
{
	const struct cvy_verbs *v = link->state;

	return v && !v->dead ? (int)v->count : 0;
}

/* Drops old events and asks for one with the next completion. 0: there are completions already. */
static int arm(struct cvy_verbs *v)
{
	struct ibv_cq *cq;
	void *ctx;

	while (!v->rdma->api->ibv_get_cq_event(v->events, &cq, &ctx))
		v->rdma->api->ibv_ack_cq_events(cq, 1);
	if (v->rdma->api->notify_cq(v->cq, 0))
		return 1; /* the sleep is bounded */
	return !reap(v);
}

/* Called before a sleep: announces it to the peer, and arms the completion queue for the next completion. */
static int verbs_fd(struct cvy_link *link, int i, short *events)
{
	struct cvy_verbs *v = link->state;

	if (i || !v || !v->events)
		return -1;
	*events = POLLIN;
	if (link->mesh->forgotten) /* a forked child closes it, and touches nothing else */
		return v->events->fd;
	if (v->dead || !arm(v))
		return v->rdma->ready_fd;
	announce_sleep(v);
	return v->events->fd;
}

static void verbs_fence(struct cvy_link *link)
{
	struct cvy_verbs *v = link->state;

	v->link = NULL; /* without an event */
	cvy_verbs_free(v);
	link->state = NULL;
	cvy_mesh_unview(link->mesh, link->rank);
}

static void verbs_close(struct cvy_link *link)
{
	cvy_verbs_free(link->state);
	link->state = NULL;
}

const struct cvy_transport cvy_transport_verbs = {
	.name = "verbs",
	.put = verbs_put,
	.signal = verbs_signal,
	.poll = verbs_poll,
	.unsent = verbs_unsent,
	.fd = verbs_fd,
	.fence = verbs_fence,
	.close = verbs_close,
};

void cvy_verbs_open(struct cvy_link *link, struct cvy_verbs *v)
{
	link->ops = &cvy_transport_verbs;
	link->state = v;
	v->link = link;
}
