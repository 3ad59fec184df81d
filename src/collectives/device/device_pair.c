/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of an mlx5 adapter to ranks of other hosts. Threads of the device ring its doorbells themselves (direct),
 * or a thread of the host copies them (assisted), or the proxy posts for them (ring). A pair belongs to two processes
 * and serves both directions. The adapter stores received bytes in the chunk here, and sends from the memory that
 * stands in for the chunk there. It ends, with its keys, before that memory is set aside.
 *
 * A way that does not work here is logged once, with its cause, and not tried again; the next word of COVEY_QUEUES is
 * tried. Everything that a GPU must reach is mapped before there are pairs, since mapping more may wait for kernels.
 * Agent's thread.
 */
#include <stdio.h>
#include <string.h>

#include "device_state.h"
#include "log.h"

#define DEPTH 512 /* entries: two of each lane */
#define OF_THE_ADAPTER (1u << CVY_QUEUES_DIRECT | 1u << CVY_QUEUES_ASSISTED | 1u << CVY_QUEUES_RING)

/* ---- shared by all pairs ---- */

/* A wish that cannot be granted is a warning; a default without an adapter is none. */
void cvy_device_lacks(struct cvy_device *d, unsigned ways, const char *which)
{
	struct cvy_device_queues *q = &d->queues;
	struct covey_error_info info;

	cvy_errbox_get(q->box, &info);
	q->lacks |= ways;
	cvy_log(q->wished ? COVEY_LOG_WARN : COVEY_LOG_INFO, "device", "queues %s are not to be had: %s", which,
		info.cause);
}

/* Reads rdma_device, NAME:PORT/GID; parts that it leaves out are the adapter's first. */
static int open_nic(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;
	struct cvy_nic_args args = { .memory = &q->reach, .box = q->box };
	char name[64] = "";

	if (q->nic)
		return 0;
	if (sscanf(q->adapter, "%63[^:]:%d/%d", name, &args.port, &args.gid_index) > 0)
		args.device = name;
	return cvy_nic_open(&args, &q->nic);
}

static int open_bells(struct cvy_device_queues *q)
{
	int err = q->bells ? 0 : cvy_bells_open(&q->reach, q->pairs, &q->bells);

	return err ? cvy_fail(q->box, err, -1, 0, "no thread that copies doorbells") : 0;
}

int cvy_device_pair_have(struct cvy_device *d, int way)
{
	struct cvy_device_queues *q = &d->queues;
	int err;

	if ((q->lacks | q->opened) >> way & 1)
		return q->opened >> way & 1;
	if (open_nic(d)) {
		cvy_device_lacks(d, OF_THE_ADAPTER, "of an adapter");
		return 0;
	}
	err = way == CVY_QUEUES_RING ? 0 : cvy_nic_reserve(q->nic, q->pairs, DEPTH, way == CVY_QUEUES_DIRECT);
	if (!err && way == CVY_QUEUES_ASSISTED)
		err = open_bells(q);
	if (err)
		cvy_device_lacks(d, 1u << way, cvy_queues_word(way));
	else
		q->opened |= 1u << way;
	return !err;
}

void cvy_device_pairs_close(struct cvy_device *d)
{
	cvy_bells_close(d->queues.bells);
	cvy_nic_close(d->queues.nic);
	cvy_errbox_free(d->queues.box);
}

/* ---- one pair ---- */

static int open_regions(struct cvy_device *d, int rank, int generation)
{
	struct cvy_device_far *f = &d->peer[rank].far;
	void *at;
	int err = d->ops->far_chunk(d->gpu, rank, generation, 1, &at);

	if (err)
		return cvy_fail(d->queues.box, err, rank, 0, "%s", d->ops->why(d->gpu));
	err = cvy_region_open(d->queues.nic, at, CVY_GPU_CHUNK, -1, &f->pair.local);
	return err ? err : cvy_region_open(d->queues.nic, f->in, CVY_GPU_CHUNK, -1, &f->pair.window);
}

static int open_pair(struct cvy_device *d, int rank, int way)
{
	struct cvy_device_queues *q = &d->queues;
	struct cvy_device_pair *x = &d->peer[rank].far.pair;
	struct cvy_pair_args args = { .mode = way == CVY_QUEUES_RING ? CVY_PAIR_VERBS : CVY_PAIR_DEVX,
				      .depth = DEPTH,
				      .abort = way == CVY_QUEUES_RING ? q->abort : q->abort_seen,
				      .bells = way == CVY_QUEUES_ASSISTED ? q->bells : NULL,
				      .hosted = way == CVY_QUEUES_RING };
	int err;

	x->way = way;
	x->generation = cvy_device_next_out(d, rank);
	err = open_regions(d, rank, x->generation);
	args.local = x->local;
	args.window = x->window;
	if (!err)
		err = cvy_pair_open(q->nic, &args, &x->pair);
	if (err)
		cvy_device_pair_end(d, rank);
	return err;
}

void cvy_device_pair_open(struct cvy_device *d, int rank)
{
	for (const int *way = d->queues.way; *way && *way != CVY_QUEUES_TCP; way++) {
		if (*way == CVY_QUEUES_COPY || !cvy_device_pair_have(d, *way))
			continue;
		if (!open_pair(d, rank, *way))
			return;
		cvy_device_lacks(d, 1u << *way, cvy_queues_word(*way));
		d->queues.opened &= ~(1u << *way);
	}
}

int cvy_device_pair_connect(struct cvy_device *d, int rank, const struct cvy_pair_name *far)
{
	struct cvy_device_pair *x = &d->peer[rank].far.pair;
	struct covey_error_info info;

	if (far->bytes != CVY_GPU_CHUNK)
		cvy_fail(d->queues.box, COVEY_ERR_INVAL, rank, 0, "its chunk has %llu bytes",
			 (unsigned long long)far->bytes);
	else if (!cvy_pair_connect(x->pair, far))
		x->connected = 1;
	if (x->connected)
		return 0;
	cvy_errbox_get(d->queues.box, &info);
	cvy_warn("device", "rank %d cannot be reached by %s: %s", rank, cvy_nic_name(d->queues.nic), info.cause);
	cvy_device_pair_end(d, rank);
	return COVEY_ERR_PEER;
}

int cvy_device_pair_use(struct cvy_device *d, int rank)
{
	struct cvy_device_pair *x = &d->peer[rank].far.pair;
	struct cvy_proxy_link link;

	x->used = 1;
	cvy_pair_queue(x->pair, &x->queue);
	if (x->way != CVY_QUEUES_RING)
		return d->ops->queue(d->gpu, rank, x->generation, &x->queue, CVY_DEVICE_QUEUE_WAIT_MS);
	cvy_proxy_pair_link(&x->queue, &link);
	return cvy_device_proxy_use(d, rank, x->generation, &link);
}

/* Nobody posts from here on: a kernel finds no queue in the table. */
void cvy_device_pair_end(struct cvy_device *d, int rank)
{
	struct cvy_device_pair *x = &d->peer[rank].far.pair;

	if (x->used && x->way == CVY_QUEUES_RING)
		cvy_proxy_detach(d->queues.proxy, cvy_device_queue_number(rank, x->generation));
	else if (x->used && d->ops->queue(d->gpu, rank, x->generation, NULL, 0))
		cvy_device_broken(d, "the end of a queue");
	cvy_pair_close(x->pair);
	cvy_region_close(x->local);
	cvy_region_close(x->window);
	memset(x, 0, sizeof(*x));
}

/* ---- watching ---- */

/* The proxy counts its own pairs. */
int cvy_device_pairs_idle(const struct cvy_device *d)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		const struct cvy_device_pair *x = &d->peer[r].far.pair;

		if (x->used && x->way != CVY_QUEUES_RING && !cvy_pair_idle(x->pair))
			return 0;
	}
	return 1;
}

const char *cvy_device_pair_wrong(const struct cvy_device *d, int rank)
{
	const struct cvy_device_pair *x = &d->peer[rank].far.pair;
	uint64_t status;

	if (!x->used)
		return NULL;
	status = x->way == CVY_QUEUES_RING
			 ? cvy_proxy_status(d->queues.proxy, cvy_device_queue_number(rank, x->generation))
			 : cvy_pair_status(x->pair);
	return status ? cvy_syndrome(status) : NULL;
}
