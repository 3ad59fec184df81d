/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory into which devices write for each other: a chunk per peer, another for each process of it, freed when no
 * kernel can look at it. Their descriptors travel in messages CHUNK. Agent's thread.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device_state.h"
#include "log.h"

struct chunk {		       /* comes with a descriptor */
	uint64_t window_bytes; /* the sender's device_window_bytes */
	uint32_t window;       /* the descriptor is of its window, not of a chunk */
	uint32_t ipc;	       /* the descriptor holds a handle of CUDA IPC; 0: it is the memory (VMM) */
};

/* A new mapping takes the place of the old one if no kernel has had words that name that; else another address. */
static int generation_after(int generation, int named)
{
	return named ? (generation + 1) % CVY_GPU_GENERATIONS : generation;
}

int cvy_device_next_out(const struct cvy_device *d, int rank)
{
	return generation_after(d->peer[rank].out, d->peer[rank].out_named);
}

static void retire(struct cvy_device *d, int rank, int generation, int out)
{
	if (d->retirees < (int)(sizeof(d->retired) / sizeof(d->retired[0])))
		d->retired[d->retirees++] = (struct cvy_device_retired){ rank, generation, out, d->thaws };
}

/* Frozen: kernels that could look at memory retired before the last thaw have ended since. */
void cvy_device_forget_retired(struct cvy_device *d)
{
	int n = 0;

	for (int i = 0; i < d->retirees; i++) {
		struct cvy_device_retired *r = &d->retired[i];

		if (r->thaws >= d->thaws)
			d->retired[n++] = *r;
		else if (r->out)
			d->mapped->detach(d->gpu, r->rank, r->generation);
		else
			d->mapped->unchunk(d->gpu, r->rank, r->generation);
	}
	d->retirees = n;
}

/* It takes half a millisecond, so a view change does not wait for it. */
static void close_old(struct cvy_device_peer *p)
{
	if (p->old_fd >= 0)
		close(p->old_fd);
	p->old_fd = -1;
}

/* Fresh memory for packets of @rank: its predecessor's writes, past or late, stay in the old one. */
int cvy_device_fresh_chunk(struct cvy_device *d, int rank)
{
	struct cvy_device_peer *p = &d->peer[rank];
	int next = generation_after(p->in, p->in_named);
	int err =
		cvy_device_is_far(d, rank) ? cvy_device_far_chunk(d, rank, next) : d->mapped->chunk(d->gpu, rank, next);

	if (err)
		return err;
	if (p->in_named)
		retire(d, rank, p->in, 0);
	close_old(p);
	p->old_fd = p->fd;
	p->fd = -1;
	p->here = 1;
	p->in = next;
	p->in_named = 0;
	p->inc = 0;
	return 0;
}

/* No view had this process, which joins again: chunks that it got and gave were for its earlier name. */
void cvy_device_begin_anew(struct cvy_device *d)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		struct cvy_device_peer *p = &d->peer[r];

		cvy_device_queue_fence(d, r);
		p->inc = p->out_inc = p->window_inc = 0;
		p->have_epoch = 0;
		p->here = 0;
	}
}

static uint32_t uses_ipc(const struct cvy_device *d)
{
	return d->ops->memory(d->gpu) == COVEY_DEVICE_MEMORY_IPC;
}

int cvy_device_chunk_fd(struct cvy_device *d, int rank)
{
	struct cvy_device_peer *p = &d->peer[rank];

	close_old(p);
	if (p->fd < 0 && d->mapped->chunk_fd(d->gpu, rank, p->in, &p->fd))
		cvy_device_broken(d, "a descriptor for a peer");
	return p->fd;
}

/* A descriptor, to a rank of this host. */
static int send_memory(struct cvy_device *d, int rank, uint64_t inc)
{
	struct cvy_device_peer *p = &d->peer[rank];
	struct chunk chunk = { d->window_bytes, 0, uses_ipc(d) };
	int err;

	if (cvy_device_chunk_fd(d, rank) < 0)
		return 0;
	err = d->send(d->send_ctx, rank, inc, CVY_MSG_CHUNK, 0, &chunk, sizeof(chunk), p->fd);

	chunk.window = 1;
	if (!err && d->window_bytes)
		err = d->send(d->send_ctx, rank, inc, CVY_MSG_CHUNK, 0, &chunk, sizeof(chunk), d->window_fd);
	return err;
}

void cvy_device_send_chunk(struct cvy_device *d, int rank, uint64_t inc)
{
	struct cvy_device_peer *p = &d->peer[rank];
	int err;

	if (((p->inc && p->inc != inc) || !p->here) && cvy_device_fresh_chunk(d, rank)) {
		cvy_device_broken(d, "a chunk for a peer");
		return;
	}
	p->inc = inc;
	if (!cvy_device_is_far(d, rank)) {
		err = send_memory(d, rank, inc);
		if (err != COVEY_ERR_UNSUPPORTED)
			return;
		p->far.is = 1; /* no descriptor reaches it: another chunk, and a queue */
		if (cvy_device_copy_wanted(d, rank))
			cvy_device_copy_refuse(d, rank, "it is on another host");
		if (cvy_device_fresh_chunk(d, rank)) {
			cvy_device_broken(d, "a chunk for a rank of another host");
			return;
		}
		p->inc = inc;
	}
	err = cvy_device_send_queue(d, rank, inc);
	if (err == COVEY_ERR_NOMEM)
		cvy_device_broken(d, "a queue from a rank of another host");
}

/* The window comes after the chunk, and is mapped in the same generation. */
static void got_window(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];

	if (p->window_inc == msg->inc || p->out_inc != msg->inc)
		return;
	if (msg->fd < 0 || d->mapped->attach_window(d->gpu, msg->rank, p->out, msg->fd))
		cvy_warn("device", "the window of rank %d cannot be used: %s", msg->rank,
			 msg->fd < 0 ? "no descriptor came" : d->ops->why(d->gpu));
	else
		p->window_inc = msg->inc;
}

/* A rank that joins others that agree already is the one to leave. */
static void differs(struct cvy_device *d, int rank, const char *text)
{
	if (d->epoch)
		cvy_fail(d->box, COVEY_ERR_INVAL, rank, d->epoch, "%s", text);
	else
		cvy_device_give_up(d, COVEY_ERR_INVAL, rank, d->epoch, "%s", text);
}

static int same_memory(struct cvy_device *d, int rank, uint32_t theirs)
{
	static const char *const names[] = { "VMM", "CUDA IPC" };
	char text[200];

	if (theirs == uses_ipc(d))
		return 1;
	snprintf(text, sizeof(text),
		 "memory of devices is mapped by %s here and by %s on rank %d: it must be alike on all ranks "
		 "(device_memory, COVEY_DEVICE_MEMORY=ipc)",
		 names[!theirs], names[theirs != 0], rank);
	differs(d, rank, text);
	return 0;
}

int cvy_device_same_window(struct cvy_device *d, int rank, uint64_t theirs)
{
	char text[200];

	if (theirs == d->window_bytes)
		return 1;
	snprintf(text, sizeof(text),
		 "device_window_bytes is %zu here and %llu on rank %d: it must be alike on all ranks", d->window_bytes,
		 (unsigned long long)theirs, rank);
	differs(d, rank, text);
	return 0;
}

void cvy_device_attached(struct cvy_device *d, int rank, int generation, uint64_t inc)
{
	struct cvy_device_peer *p = &d->peer[rank];

	if (p->out_named)
		retire(d, rank, p->out, 1);
	p->out = generation;
	p->out_named = 0;
	p->out_inc = inc;
}

void cvy_device_got_chunk(struct cvy_device *d, const struct cvy_msg *msg)
{
	struct cvy_device_peer *p = &d->peer[msg->rank];
	int next = cvy_device_next_out(d, msg->rank);
	struct chunk chunk;

	if (msg->bytes != sizeof(chunk)) {
		cvy_warn("device", "rank %d tells of its memory in %u bytes instead of %zu", msg->rank, msg->bytes,
			 sizeof(chunk));
		return;
	}
	memcpy(&chunk, msg->body, sizeof(chunk));
	if (!same_memory(d, msg->rank, chunk.ipc) || !cvy_device_same_window(d, msg->rank, chunk.window_bytes))
		return;
	if (chunk.window) {
		got_window(d, msg);
		return;
	}
	if (p->out_inc == msg->inc)
		return;
	if (msg->fd < 0 || d->mapped->attach(d->gpu, msg->rank, next, msg->fd)) {
		cvy_warn("device", "the chunk of rank %d cannot be used: %s", msg->rank,
			 msg->fd < 0 ? "no descriptor came" : d->ops->why(d->gpu));
		return;
	}
	if (d->queues.proxy && d->ops->queue(d->gpu, msg->rank, next, NULL, 0)) {
		cvy_device_broken(d, "a queue that is none");
		return;
	}
	cvy_device_attached(d, msg->rank, next, msg->inc);
}
