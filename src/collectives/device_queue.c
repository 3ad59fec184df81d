/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other hosts, whose memory no device maps: what is pushed to one goes by a queue. Each side makes the chunk
 * that the other's packets are stored in, here, in memory of the host, and says by a message QUEUE where to call; the
 * caller has the queue, and memory in the place of the chunk there. A connection is of two processes, and ends with the
 * first of them that leaves: what comes is stored until then and not after, so a removed rank's packets stand still.
 * Agent's thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "device_state.h"
#include "log.h"

#define RING_DEPTH 8192 /* commands of all queues */
#define WAIT_MS 1000	/* a kernel waits for room; less than cvy_device_freeze() waits for kernels */
#define LINGER_MS 1000	/* at the end, for what is under way */
#define PAGE 4096

struct name { /* body of QUEUE */
	uint64_t window_bytes;
	struct cvy_cookie cookie;
	char door[CVY_DOOR_NAME];
};

static uint32_t number(int rank, int generation)
{
	return (uint32_t)rank * CVY_GPU_GENERATIONS + (uint32_t)generation;
}

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

/* ---- what all queues share ---- */

static int open_proxy(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	struct cvy_proxy_args args = { .depth = RING_DEPTH,
				       .queues = CVY_GPU_RANKS * CVY_GPU_GENERATIONS,
				       .memory = &q->reach };
	char why[160] = "";
	int err = d->ops->reach(d->gpu, &q->reach);

	if (err)
		return cvy_fail(d->box, err, d->rank, d->epoch, "%s", d->ops->why(d->gpu));
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

static int open_all(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	int err = 0;

	if (!d->ops->reach)
		return cvy_fail(d->box, COVEY_ERR_UNSUPPORTED, d->rank, d->epoch,
				"device: this libcovey_cuda has no queues to ranks of other hosts");
	if (!q->proxy)
		err = open_proxy(d);
	if (!err && !q->door)
		err = cvy_door_open(d->loop, q->interface, d, come, d->box, &q->door);
	return err;
}

/* ---- what comes ---- */

static void end_receiver(struct cvy_device *d, int rank)
{
	struct cvy_device_far *f = &d->peer[rank].far;

	if (d->queues.door)
		cvy_door_forget(d->queues.door, rank);
	f->named = 0;
	if (!f->receiver)
		return;
	cvy_tcp_receiver_close(f->receiver);
	close(f->in_fd);
	f->receiver = NULL;
}

int cvy_device_far_chunk(struct cvy_device *d, int rank, int generation)
{
	int err = open_all(d);

	end_receiver(d, rank);
	return err ? err : d->ops->far_chunk(d->gpu, rank, generation, 0, &d->peer[rank].far.in);
}

/* Somebody has shown the cookie of @rank. */
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

int cvy_device_send_queue(struct cvy_device *d, int rank, uint64_t inc)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	struct name name = { .window_bytes = d->window_bytes };
	int err = f->named ? 0 : cvy_door_expect(d->queues.door, rank, &f->cookie);

	if (err)
		return err;
	f->named = 1;
	name.cookie = f->cookie;
	snprintf(name.door, sizeof(name.door), "%s", cvy_door_name(d->queues.door));
	return d->send(d->send_ctx, rank, inc, CVY_MSG_QUEUE, 0, &name, sizeof(name), -1);
}

/* ---- what goes ---- */

/* Said once in an epoch: first as a suspicion; whom a change has kept all the same is to leave. */
static void lost(struct cvy_device *d, int rank, uint64_t inc, const char *why)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	struct cvy_event ev = {
		.kind = CVY_EV_SUSPECT, .rank = rank, .inc = inc, .source = CVY_SOURCE_LINK, .text = why
	};

	if (f->lost_inc == inc && f->lost_epoch == d->epoch)
		return;
	if (f->lost_inc == inc)
		ev.kind = CVY_EV_LATE;
	cvy_info("device", "rank %d, epoch %u: its queue failed: %s", rank, d->epoch, why);
	f->lost_inc = inc;
	f->lost_epoch = d->epoch;
	cvy_post(&d->agent, &ev);
}

static void end_sender(struct cvy_device *d, int rank)
{
	struct cvy_device_far *f = &d->peer[rank].far;

	cvy_door_hang_up(f->call);
	f->call = NULL;
	if (!f->sender)
		return;
	cvy_proxy_detach(d->queues.proxy, number(rank, d->peer[rank].out));
	cvy_tcp_sender_close(f->sender);
	close(f->out_fd);
	f->sender = NULL;
}

void cvy_device_queue_fence(struct cvy_device *d, int rank)
{
	end_sender(d, rank);
	end_receiver(d, rank);
	d->peer[rank].far.is = 0; /* its next process may be of this one */
}

/* Takes @fd, whatever becomes of it. */
static int open_queue(struct cvy_device *d, int rank, int generation, int fd, struct cvy_tcp_sender **sender)
{
	struct cvy_proxy_link link;
	struct cvy_queue queue;
	void *at;
	int err = d->ops->far_chunk(d->gpu, rank, generation, 1, &at);

	if (!err)
		err = cvy_tcp_sender_open(fd, at, CVY_GPU_CHUNK, CVY_GPU_CHUNK, sender);
	if (!err) {
		cvy_tcp_sender_link(*sender, &link);
		err = cvy_proxy_attach(d->queues.proxy, number(rank, generation), &link);
	}
	if (!err) {
		cvy_proxy_queue(d->queues.proxy, number(rank, generation), &queue);
		err = d->ops->queue(d->gpu, rank, generation, &queue, WAIT_MS);
		if (err)
			cvy_proxy_detach(d->queues.proxy, number(rank, generation));
	}
	if (err) {
		cvy_tcp_sender_close(*sender);
		close(fd);
	}
	return err;
}

/* A call was taken. */
static void taken(void *ctx, int rank, int fd, const char *why)
{
	struct cvy_device *d = ctx;
	struct cvy_device_peer *p = &d->peer[rank];
	struct cvy_tcp_sender *sender = NULL;
	int next = (p->out + 1) % CVY_GPU_GENERATIONS;

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
	cvy_device_attached(d, rank, next, p->far.call_inc);
	p->far.sender = sender;
	p->far.out_fd = fd;
	p->window_inc = p->out_inc; /* no window is mapped across hosts */
	__atomic_store_n(&d->ops->mailbox(d->gpu)->unsent[number(rank, next)], 0, __ATOMIC_RELEASE);
	cvy_info("device", "rank %d is on another host: reached by a queue, proxy over tcp", rank);
	cvy_device_reconcile(d);
}

void cvy_device_got_queue(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];
	struct cvy_device_far *f = &p->far;
	struct name name;
	int err;

	if (msg->bytes != sizeof(name)) {
		cvy_warn("device", "rank %d tells of its queue in %u bytes instead of %zu", msg->rank, msg->bytes,
			 sizeof(name));
		return;
	}
	memcpy(&name, msg->body, sizeof(name));
	name.door[sizeof(name.door) - 1] = 0;
	if (!cvy_device_same_window(d, msg->rank, name.window_bytes) || p->out_inc == msg->inc ||
	    (f->call && f->call_inc == msg->inc))
		return;
	f->is = 1;
	cvy_door_hang_up(f->call);
	f->call = NULL;
	f->call_inc = msg->inc;
	err = open_all(d);
	if (err)
		cvy_device_give_up(d, err, msg->rank, d->epoch, "device: no queue to rank %d, which is on another host",
				   msg->rank);
	else if (cvy_door_dial(d->queues.door, name.door, &name.cookie, msg->rank, taken, &f->call))
		lost(d, msg->rank, msg->inc, "it cannot be called");
}

/* ---- watching ---- */

int cvy_device_queues_idle(struct cvy_device *d)
{
	return !d->queues.proxy || cvy_proxy_idle(d->queues.proxy);
}

static const char *whats_wrong(const struct cvy_device *d, int rank)
{
	const struct cvy_device_far *f = &d->peer[rank].far;
	const uint32_t queue = number(rank, d->peer[rank].out);
	uint64_t unsent = __atomic_load_n(&d->ops->mailbox(d->gpu)->unsent[queue], __ATOMIC_ACQUIRE);

	if (f->sender && cvy_proxy_status(d->queues.proxy, queue))
		return "it does not answer";
	if (f->receiver && cvy_tcp_receiver_check(f->receiver))
		return "it has ended";
	if (unsent)
		return "a kernel could not post to it";
	return NULL;
}

void cvy_device_queues_look(struct cvy_device *d)
{
	const char *why;

	if (!d->queues.proxy || !d->view || d->given_up)
		return;
	CVY_MASK_EACH(r, &d->view->members)
	{
		if (r == d->rank || d->peer[r].out_inc != d->view->member[r].inc)
			continue;
		why = whats_wrong(d, r);
		if (why)
			lost(d, r, d->view->member[r].inc, why);
	}
}

/* ---- begin and end ---- */

int cvy_device_queues_open(struct cvy_device *d, const struct cvy_config *config)
{
	int hosts;

	if (*config->topology)
		cvy_topology_parse(config->topology, &hosts, &d->queues.ranks);
	d->queues.interface = strdup(config->interface);
	return d->queues.interface ? 0 : COVEY_ERR_NOMEM;
}

void cvy_device_queues_stop(struct cvy_device *d)
{
	if (d->queues.abort)
		cvy_q_store(d->queues.abort, 1);
}

/* No kernel posts any more. What the last ones have posted is given time to leave. */
void cvy_device_queues_close(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	uint64_t until = cvy_now_ns() + LINGER_MS * CVY_MS;

	while (q->proxy && !d->given_up && !cvy_proxy_idle(q->proxy) && cvy_now_ns() < until)
		usleep(100);
	cvy_device_queues_stop(d);
	if (q->proxy) {
		cvy_device_stop(d, COVEY_ERR_CLOSED);
		d->ops->synchronise(d->gpu);
	}
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		cvy_device_queue_fence(d, r);
	cvy_proxy_close(q->proxy);
	cvy_door_close(q->door);
	if (q->abort)
		q->reach.unmap(q->reach.ctx, q->abort, PAGE);
	free(q->abort);
	free(q->interface);
}
