/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that pass for ranks of another host, though this host can map their memory. No kernel maps their chunks. The
 * proxy does, and copies packets there that kernels have pushed into memory that stands in for them. The chunk here is
 * then memory of the device, the same as for a neighbour, and its descriptor travels with message QUEUE.
 *
 * Each pair tries whether that works: a descriptor must pass, and both sides must map what they got. Each reports when
 * it has mapped the other's, and no rank posts before it has that report. A rank that cannot map logs the cause once
 * and takes a chunk of another kind; its next message has no descriptor, so the other does the same. Bytes that are
 * copied after a rank was left out land in memory that was set aside, the same as a neighbour's packets. Agent's
 * thread.
 */
#include <string.h>

#include "device_state.h"
#include "log.h"

/* Does COVEY_QUEUES name copies before any way that an adapter here offers? */
static int comes_first(struct cvy_device *d)
{
	for (const int *way = d->queues.way; *way && *way != CVY_QUEUES_TCP; way++) {
		if (*way == CVY_QUEUES_COPY)
			return 1;
		if (cvy_device_pair_have(d, *way))
			return 0;
	}
	return 0;
}

/* 1: copies may be tried. Everything that they need is opened with the first. */
static int have(struct cvy_device *d)
{
	struct cvy_device_queues *q = &d->queues;

	if (q->lacks >> CVY_QUEUES_COPY & 1)
		return 0;
	if (q->opened >> CVY_QUEUES_COPY & 1)
		return 1;
	if (d->ops->copies_open(d->gpu))
		cvy_fail(q->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s", d->ops->why(d->gpu));
	else
		q->opened |= 1u << CVY_QUEUES_COPY;
	if (!(q->opened >> CVY_QUEUES_COPY & 1))
		cvy_device_lacks(d, 1u << CVY_QUEUES_COPY, cvy_queues_word(CVY_QUEUES_COPY));
	return q->opened >> CVY_QUEUES_COPY & 1;
}

int cvy_device_copy_wanted(struct cvy_device *d, int rank)
{
	return !d->peer[rank].far.copy.refused && comes_first(d) && have(d);
}

void cvy_device_copy_refuse(struct cvy_device *d, int rank, const char *why)
{
	struct cvy_device_queues *q = &d->queues;

	d->peer[rank].far.copy.refused = 1;
	if (q->copy_refused)
		return;
	q->copy_refused = 1;
	cvy_log(q->wished ? COVEY_LOG_WARN : COVEY_LOG_INFO, "device", "queues copy are not to be had: rank %d: %s",
		rank, why);
}

int cvy_device_copy_map(struct cvy_device *d, int rank, int fd)
{
	struct cvy_device_copy *x = &d->peer[rank].far.copy;
	int err;

	x->generation = (d->peer[rank].out + 1) % CVY_GPU_GENERATIONS;
	err = fd < 0 ? COVEY_ERR_UNSUPPORTED : d->ops->copies(d->gpu, rank, x->generation, fd, &x->copies);
	if (err)
		cvy_device_copy_refuse(d, rank, fd < 0 ? "no descriptor has come" : d->ops->why(d->gpu));
	x->mapped = !err;
	return err;
}

int cvy_device_copy_use(struct cvy_device *d, int rank)
{
	struct cvy_device_copy *x = &d->peer[rank].far.copy;
	struct cvy_proxy_link link;
	int err = cvy_copy_sender_open(&x->copies, CVY_GPU_CHUNK, &x->sender);

	if (err)
		return err;
	cvy_copy_sender_link(x->sender, &link);
	x->used = 1;
	return cvy_device_proxy_use(d, rank, x->generation, &link);
}

void cvy_device_copy_end(struct cvy_device *d, int rank)
{
	struct cvy_device_copy *x = &d->peer[rank].far.copy;
	int refused = x->refused;

	if (x->used)
		cvy_proxy_detach(d->queues.proxy, cvy_device_queue_number(rank, x->generation));
	if (x->mapped)
		d->ops->copies_end(d->gpu, rank);
	cvy_copy_sender_close(x->sender);
	memset(x, 0, sizeof(*x));
	x->refused = refused;
}

const char *cvy_device_copy_wrong(const struct cvy_device *d, int rank)
{
	const struct cvy_device_copy *x = &d->peer[rank].far.copy;

	return x->used && cvy_proxy_status(d->queues.proxy, cvy_device_queue_number(rank, x->generation))
		       ? "copies to it fail"
		       : NULL;
}
