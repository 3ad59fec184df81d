/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other hosts, whose memory no device maps: packets to one travel by a queue. Each side makes the chunk for
 * the other's packets, and sends the way to it in messages QUEUE: copies (device_copy.c), or, to memory of the host,
 * the name of an adapter's pair (device_pair.c) and an address to call. If both have mapped the other's chunk, or have
 * a pair and connect, a rank posts once the other has reported that it hears. Else each calls the other, and a proxy
 * posts on the socket. A connection between two processes ends with the first of them that leaves: bytes are stored
 * until then and not after, so a removed rank's packets do not change. Agent's thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "device_state.h"
#include "log.h"

#define RING_DEPTH 8192 /* commands of all queues */
#define LINGER_MS 1000	/* at the end, for work under way */
#define PAGE 4096
#define EVERY_WAY "direct,assisted,ring,tcp"

struct name { /* body of QUEUE */
	uint64_t window_bytes;
	struct cvy_cookie cookie;
	char door[CVY_DOOR_NAME];
	uint32_t state; /* enum pair_state of the sender's pair */
	uint32_t copy;	/* the same of copies: its chunk's descriptor comes along, other fields are unused */
	struct cvy_pair_name pair;
};

enum pair_state { PAIR_NONE, PAIR_OFFERED, PAIR_HEARS, PAIR_STATES };

int cvy_device_is_far(const struct cvy_device *d, int rank)
{
	const struct cvy_device_queues *q = &d->queues;

	return d->peer[rank].far.is || (q->ranks && rank / q->ranks != d->rank / q->ranks);
}

int cvy_device_any_far(const struct cvy_device *d)
{
	int any = 0;

	for (int r = 0; d->view && r < CVY_GPU_RANKS; r++)
		any |= r != d->rank && covey_mask_has(&d->view->members, r) && cvy_device_is_far(d, r);
	return any;
}

/* ---- shared by all queues ---- */

static int open_proxy(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	struct cvy_proxy_args args = { .depth = RING_DEPTH,
				       .queues = CVY_GPU_RANKS * CVY_GPU_GENERATIONS,
				       .memory = &q->reach };
	char why[160] = "";
	int err = d->ops->reach(d->gpu, &q->reach);

	if (err)
		return cvy_device_tells(d, err);
	q->abort = aligned_alloc(PAGE, PAGE);
	if (!q->abort)
		return cvy_fail(d->box, COVEY_ERR_NOMEM, d->rank, d->epoch, "no memory for queues of the device");
	memset(q->abort, 0, PAGE);
	err = q->reach.map(q->reach.ctx, q->abort, PAGE, 0, (void **)&q->abort_seen, why, sizeof(why));
	if (err) {
		free(q->abort);
		q->abort = NULL;
		return cvy_fail(d->box, err, d->rank, d->epoch, "queues of the device: %s", why);
	}
	args.abort = q->abort_seen;
	return cvy_proxy_open(&args, &q->proxy);
}

static void come(void *ctx, int rank, int fd, const char *why);
static void end_sender(struct cvy_device *d, int rank);

static int have_proxy(struct cvy_device *d)
{
	return d->queues.proxy ? 0 : open_proxy(d);
}

static int open_all(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	int err = have_proxy(d);

	if (!err && !q->door)
		err = cvy_door_open(d->loop, q->interface, d, come, d->box, &q->door);
	return err;
}

/* ---- receiving ---- */

static void end_receiver(struct cvy_device *d, int rank)
{
	struct cvy_device_far *f = &d->peer[rank].far;

	if (d->queues.door)
		cvy_door_forget(d->queues.door, rank);
	cvy_device_pair_end(d, rank);
	cvy_device_copy_end(d, rank);
	f->named = f->tried = 0;
	if (!f->receiver)
		return;
	cvy_tcp_receiver_close(f->receiver);
	close(f->in_fd);
	f->receiver = NULL;
}

int cvy_device_far_chunk(struct cvy_device *d, int rank, int generation)
{
	int err = have_proxy(d);

	end_sender(d, rank); /* to an earlier process, which no view may have had */
	end_receiver(d, rank);
	if (!err && cvy_device_copy_wanted(d, rank)) {
		d->peer[rank].far.copy.here = 1;
		return d->mapped->chunk(d->gpu, rank, generation);
	}
	if (!err)
		err = open_all(d);
	return err ? err : d->ops->far_chunk(d->gpu, rank, generation, 0, &d->peer[rank].far.in);
}

/* A caller has shown the cookie of @rank. */
static void come(void *ctx, int rank, int fd, const char *why)
{
	struct cvy_device *d = ctx;
	struct cvy_device_far *f = &d->peer[rank].far;

	(void)why;
	if (f->receiver || cvy_tcp_receiver_open(fd, f->in, CVY_GPU_CHUNK, &f->receiver)) {
		close(fd);
		return;
	}
	f->in_fd = fd;
}

/* For a chunk that is for copies. */
static int send_copy(struct cvy_device *d, int rank, uint64_t inc)
{
	struct name name = { .window_bytes = d->window_bytes,
			     .copy = d->peer[rank].far.copy.mapped ? PAIR_HEARS : PAIR_OFFERED };
	int fd = cvy_device_chunk_fd(d, rank);

	return fd < 0 ? 0 : d->send(d->send_ctx, rank, inc, CVY_MSG_QUEUE, 0, &name, sizeof(name), fd);
}

static int send_name(struct cvy_device *d, int rank, uint64_t inc)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	struct name name = { .window_bytes = d->window_bytes };
	int err = f->named ? 0 : cvy_door_expect(d->queues.door, rank, &f->cookie);

	if (err)
		return err;
	f->named = 1;
	if (!f->tried)
		cvy_device_pair_open(d, rank);
	f->tried = 1;
	name.cookie = f->cookie;
	snprintf(name.door, sizeof(name.door), "%s", cvy_door_name(d->queues.door));
	if (f->pair.way) {
		name.state = f->pair.connected ? PAIR_HEARS : PAIR_OFFERED;
		cvy_pair_name(f->pair.pair, &name.pair);
	}
	return d->send(d->send_ctx, rank, inc, CVY_MSG_QUEUE, 0, &name, sizeof(name), -1);
}

/* Copies between the two do not work, which is logged: another chunk, and its name. */
static int instead_of_copies(struct cvy_device *d, int rank, uint64_t inc)
{
	if (cvy_device_fresh_chunk(d, rank)) {
		cvy_device_broken(d, "a chunk for a rank of another host");
		return 0;
	}
	d->peer[rank].inc = inc;
	return send_name(d, rank, inc);
}

int cvy_device_send_queue(struct cvy_device *d, int rank, uint64_t inc)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	int err;

	if (f->asked_inc != inc)
		f->asked_ns = cvy_now_ns();
	f->asked_inc = inc;
	if (!f->copy.here)
		return send_name(d, rank, inc);
	err = send_copy(d, rank, inc);
	if (err != COVEY_ERR_UNSUPPORTED)
		return err;
	cvy_device_copy_refuse(d, rank, "no descriptor passes to it");
	return instead_of_copies(d, rank, inc);
}

/* ---- sending ---- */

/* Reported once in @epoch: first as a suspicion; a rank that a change has kept is then asked to leave. */
static void lost_in(struct cvy_device *d, int rank, uint64_t inc, uint32_t epoch, const char *why)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	struct cvy_event ev = {
		.kind = CVY_EV_SUSPECT, .rank = rank, .inc = inc, .source = CVY_SOURCE_LINK, .text = why
	};

	if (f->lost_inc == inc && f->lost_epoch == epoch)
		return;
	if (f->lost_inc == inc)
		ev.kind = CVY_EV_LATE;
	cvy_info("device", "rank %d, epoch %u: its queue failed: %s", rank, epoch, why);
	f->lost_inc = inc;
	f->lost_epoch = epoch;
	cvy_post(&d->agent, &ev);
}

static void lost(struct cvy_device *d, int rank, uint64_t inc, const char *why)
{
	lost_in(d, rank, inc, d->epoch, why);
}

static void end_sender(struct cvy_device *d, int rank)
{
	struct cvy_device_far *f = &d->peer[rank].far;

	cvy_door_hang_up(f->call);
	f->call = NULL;
	if (!f->sender)
		return;
	cvy_proxy_detach(d->queues.proxy, cvy_device_queue_number(rank, d->peer[rank].out));
	cvy_tcp_sender_close(f->sender);
	close(f->out_fd);
	f->sender = NULL;
}

void cvy_device_queue_fence(struct cvy_device *d, int rank)
{
	end_sender(d, rank);
	end_receiver(d, rank);
	d->peer[rank].far.is = 0; /* its next process may be on this host */
	d->peer[rank].far.copy.refused = 0;
	__atomic_store_n(&d->peer[rank].far.way, 0, __ATOMIC_RELAXED);
}

int cvy_device_proxy_use(struct cvy_device *d, int rank, int generation, const struct cvy_proxy_link *link)
{
	const uint32_t number = cvy_device_queue_number(rank, generation);
	struct cvy_queue queue;
	int err = cvy_proxy_attach(d->queues.proxy, number, link);

	if (err)
		return err;
	cvy_proxy_queue(d->queues.proxy, number, &queue);
	return d->ops->queue(d->gpu, rank, generation, &queue, CVY_DEVICE_QUEUE_WAIT_MS);
}

/* Takes @fd over, also if it fails. */
static int open_queue(struct cvy_device *d, int rank, int generation, int fd, struct cvy_tcp_sender **sender)
{
	struct cvy_proxy_link link;
	void *at;
	int err = d->ops->far_chunk(d->gpu, rank, generation, 1, &at);

	if (!err)
		err = cvy_tcp_sender_open(fd, at, CVY_GPU_CHUNK, CVY_GPU_CHUNK, d->queues.link_ms, sender);
	if (!err) {
		cvy_tcp_sender_link(*sender, &link);
		err = cvy_device_proxy_use(d, rank, generation, &link);
		if (err)
			cvy_proxy_detach(d->queues.proxy, cvy_device_queue_number(rank, generation));
	}
	if (err) {
		cvy_tcp_sender_close(*sender);
		close(fd);
	}
	return err;
}

static void reached(struct cvy_device *d, int rank, int generation, uint64_t inc, int way)
{
	struct cvy_device_peer *p = &d->peer[rank];

	cvy_device_attached(d, rank, generation, inc);
	p->window_inc = p->out_inc; /* no window is mapped across hosts */
	__atomic_store_n(&d->ops->mailbox(d->gpu)->unsent[cvy_device_queue_number(rank, generation)], 0,
			 __ATOMIC_RELEASE);
	__atomic_store_n(&p->far.way, way, __ATOMIC_RELEASE);
	if (way == CVY_QUEUES_TCP)
		cvy_info("device", "rank %d is on another host: reached by a queue, proxy over tcp", rank);
	else if (way == CVY_QUEUES_COPY)
		cvy_info("device", "rank %d passes for one of another host: reached by a queue, proxy copies", rank);
	else
		cvy_info("device", "rank %d is on another host: reached by a queue, %s on %s", rank,
			 cvy_queues_word(way), cvy_nic_name(d->queues.nic));
	cvy_device_reconcile(d);
}

/* The peer has taken a call. */
static void taken(void *ctx, int rank, int fd, const char *why)
{
	struct cvy_device *d = ctx;
	struct cvy_device_peer *p = &d->peer[rank];
	struct cvy_tcp_sender *sender = NULL;
	int next = cvy_device_next_out(d, rank);

	p->far.call = NULL;
	if (fd < 0) {
		lost(d, rank, p->far.call_inc, why);
		return;
	}
	if (open_queue(d, rank, next, fd, &sender)) {
		cvy_device_broken(d, "a queue to a rank of another host");
		return;
	}
	end_sender(d, rank);
	p->far.sender = sender;
	p->far.out_fd = fd;
	reached(d, rank, next, p->far.call_inc, CVY_QUEUES_TCP);
}

static int may_call(const struct cvy_device_queues *q)
{
	int may = 0;

	for (const int *way = q->way; *way; way++)
		may |= *way == CVY_QUEUES_TCP;
	return may;
}

static void call(struct cvy_device *d, int rank, uint64_t inc, const struct name *name)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	int err;

	if (f->call && f->call_inc == inc)
		return;
	cvy_door_hang_up(f->call);
	f->call = NULL;
	f->call_inc = inc;
	err = may_call(&d->queues) ? open_all(d) : COVEY_ERR_UNSUPPORTED;
	if (err)
		cvy_device_give_up(d, err, rank, d->epoch, "device: no queue to rank %d, which is on another host%s",
				   rank,
				   may_call(&d->queues) ? "" : ": no adapter on both sides, and queues has no tcp");
	else if (cvy_door_dial(d->queues.door, name->door, &name->cookie, rank, taken, &f->call))
		lost(d, rank, inc, "it cannot be called");
}

/* Both have a pair: they connect, and each reports it. A rank that does not hear sends no report. */
static void pair_up(struct cvy_device *d, int rank, uint64_t inc, const struct name *name)
{
	struct cvy_device_pair *x = &d->peer[rank].far.pair;
	int fresh = !x->connected;

	if (fresh && cvy_device_pair_connect(d, rank, &name->pair)) {
		cvy_device_send_queue(d, rank, inc); /* reports that there is no pair */
		call(d, rank, inc, name);
		return;
	}
	if (fresh || name->state == PAIR_OFFERED)
		cvy_device_send_queue(d, rank, inc);
	if (name->state != PAIR_HEARS)
		return;
	if (cvy_device_pair_use(d, rank))
		cvy_device_broken(d, "a queue to a rank of another host");
	else
		reached(d, rank, x->generation, inc, x->way);
}

/* Both have a chunk for copies: they map it, and each reports it. */
static void copy_to(struct cvy_device *d, const struct cvy_msg *msg, uint32_t state)
{
	struct cvy_device_copy *x = &d->peer[msg->rank].far.copy;
	int fresh = !x->mapped;

	if (fresh && cvy_device_copy_map(d, msg->rank, msg->fd)) {
		instead_of_copies(d, msg->rank, msg->inc);
		return;
	}
	if (fresh || state == PAIR_OFFERED)
		cvy_device_send_queue(d, msg->rank, msg->inc);
	if (state != PAIR_HEARS)
		return;
	if (cvy_device_copy_use(d, msg->rank))
		cvy_device_broken(d, "a queue to a rank of another host");
	else
		reached(d, msg->rank, x->generation, msg->inc, CVY_QUEUES_COPY);
}

void cvy_device_got_queue(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];
	struct cvy_device_far *f = &p->far;
	struct name name;

	if (msg->bytes != sizeof(name)) {
		cvy_warn("device", "rank %d tells of its queue in %u bytes instead of %zu", msg->rank, msg->bytes,
			 sizeof(name));
		return;
	}
	memcpy(&name, msg->body, sizeof(name));
	name.door[sizeof(name.door) - 1] = 0;
	if (!cvy_device_same_window(d, msg->rank, name.window_bytes))
		return;
	if (p->out_inc == msg->inc) { /* but it may not know yet that it is heard */
		if ((f->pair.used && name.state == PAIR_OFFERED) || (f->copy.used && name.copy == PAIR_OFFERED))
			cvy_device_send_queue(d, msg->rank, msg->inc);
		return;
	}
	f->is = 1;
	if (name.copy) { /* else the message sent to it shows that there are none */
		if (f->copy.here && p->inc == msg->inc)
			copy_to(d, msg, name.copy);
		return;
	}
	if (f->copy.here && p->inc == msg->inc) {
		cvy_device_copy_refuse(d, msg->rank, "it makes none to here");
		instead_of_copies(d, msg->rank, msg->inc);
	}
	if (f->pair.way && name.state != PAIR_NONE && name.state < PAIR_STATES) {
		pair_up(d, msg->rank, msg->inc, &name);
		return;
	}
	cvy_device_pair_end(d, msg->rank);
	call(d, msg->rank, msg->inc, &name);
}

/* ---- watching ---- */

int cvy_device_queues_idle(struct cvy_device *d)
{
	return !d->queues.proxy || (cvy_proxy_idle(d->queues.proxy) && cvy_device_pairs_idle(d));
}

static const char *whats_wrong(const struct cvy_device *d, int rank)
{
	const struct cvy_device_far *f = &d->peer[rank].far;
	const uint32_t queue = cvy_device_queue_number(rank, d->peer[rank].out);
	uint64_t unsent = __atomic_load_n(&d->ops->mailbox(d->gpu)->unsent[queue], __ATOMIC_ACQUIRE);
	const char *why;

	if (f->sender && cvy_proxy_status(d->queues.proxy, queue))
		return "it does not answer, or no data of it came through for link_ms";
	if (f->receiver && cvy_tcp_receiver_check(f->receiver))
		return "it has ended";
	if (unsent)
		return "a kernel could not post to it";
	why = cvy_device_copy_wrong(d, rank);
	return why ? why : cvy_device_pair_wrong(d, rank);
}

/* A rank that is not reached yet holds up the change that let it in, while the device is frozen: this has a limit. */
static int unanswered(const struct cvy_device *d, int rank, uint64_t inc)
{
	const struct cvy_device_far *f = &d->peer[rank].far;

	return f->asked_inc == inc && cvy_now_ns() - f->asked_ns > (uint64_t)d->join_ms * CVY_MS;
}

void cvy_device_queues_look(struct cvy_device *d)
{
	if (!d->queues.proxy || !d->view || d->given_up)
		return;
	CVY_MASK_EACH(r, &d->view->members)
	{
		uint64_t inc = d->view->member[r].inc;
		int reached = d->peer[r].out_inc == inc;
		const char *why = r != d->rank && reached ? whats_wrong(d, r) : NULL;

		if (why)
			lost(d, r, inc, why);
		else if (r != d->rank && !reached && unanswered(d, r, inc))
			lost_in(d, r, inc, d->view->epoch, "it has not answered in join_ms what was offered to it");
	}
}

/* ---- begin and end ---- */

int cvy_device_queues_open(struct cvy_device *d, const struct cvy_config *config)
{
	int hosts;

	struct cvy_device_queues *q = &d->queues;

	if (*config->topology)
		cvy_topology_parse(config->topology, &hosts, &q->ranks);
	q->link_ms = config->link_ms;
	q->wished = *config->queues != 0;
	cvy_queues_parse(q->wished ? config->queues : EVERY_WAY, q->way);
	q->pairs = 2u * (unsigned)(config->max_ranks < CVY_GPU_RANKS ? config->max_ranks : CVY_GPU_RANKS);
	q->interface = strdup(config->interface);
	q->adapter = strdup(config->rdma_device);
	q->box = cvy_errbox_new();
	return q->interface && q->adapter && q->box ? 0 : COVEY_ERR_NOMEM;
}

void cvy_device_queues_stop(struct cvy_device *d)
{
	if (d->queues.abort)
		cvy_q_store(d->queues.abort, 1);
}

/* No kernel posts. The entries of the last ones get some time to leave. */
void cvy_device_queues_close(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	uint64_t until = cvy_now_ns() + LINGER_MS * CVY_MS;

	while (!d->given_up && !cvy_device_queues_idle(d) && cvy_now_ns() < until)
		usleep(100);
	cvy_device_queues_stop(d);
	if (q->proxy) {
		cvy_device_stop(d, COVEY_ERR_CLOSED);
		d->ops->synchronise(d->gpu, 1);
	}
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		cvy_device_queue_fence(d, r);
	cvy_proxy_close(q->proxy);
	cvy_device_pairs_close(d);
	cvy_door_close(q->door);
	if (q->abort)
		q->reach.unmap(q->reach.ctx, q->abort, PAGE);
	free(q->abort);
	free(q->interface);
	free(q->adapter);
}
