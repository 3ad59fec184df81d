/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kernel kernel = { .parked = OP };
struct cvy_gpu_mailbox box;
int read_from = -1, fresh[CVY_GPU_RANKS], stands[2][CVY_GPU_RANKS][CVY_GPU_GENERATIONS];
int attached, written, written_to, wants, passes;
uint8_t gate_is;

static int gate(struct cvy_gpu *gpu, uint8_t value)
{
	gate_is = value;
	return 0;
}

static int counters(struct cvy_gpu *gpu, struct cvy_gpu_counters *c, int all)
{
	memset(c, 0, all ? sizeof(*c) : offsetof(struct cvy_gpu_counters, parked));
	c->finished = kernel.newcomer ? 0 : (uint64_t)OP * CVY_GPU_QUANTA + kernel.before;
	c->entered = c->finished + kernel.entered;
	c->stopped = kernel.stopped;
	if (all) {
		c->admitted = kernel.admitted;
		c->parked.op = kernel.parked;
		c->parked.lanes = kernel.never_parked ? 0 : 1;
		c->parked.private_parts = kernel.private_parts;
	}
	for (int i = 0; all && !kernel.newcomer && i < CVY_GPU_LANES; i++)
		c->lane[i].mask = 7u & ~kernel.without;
	return 0;
}

static int words(struct cvy_gpu *gpu, const struct cvy_gpu_lane *lanes, const struct cvy_gpu_roll *roll,
		 const struct cvy_gpu_verdict *verdict)
{
	return 0;
}

static int chunk(struct cvy_gpu *gpu, int rank, int generation)
{
	fresh[rank] = generation;
	stands[0][rank][generation] = 1;
	return 0;
}

static int attach(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	stands[1][rank][generation] = 1;
	attached++;
	return 0;
}

static int chunk_fd(struct cvy_gpu *gpu, int rank, int generation, int *fd)
{
	*fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	return 0;
}

static int unchunk(struct cvy_gpu *gpu, int rank, int generation)
{
	stands[0][rank][generation] = 0;
	return 0;
}

static int detach(struct cvy_gpu *gpu, int rank, int generation)
{
	stands[1][rank][generation] = 0;
	return 0;
}

static int read_chunk(struct cvy_gpu *gpu, int rank, int generation, size_t at, void *to, size_t bytes)
{
	read_from = generation;
	memset(to, 0, bytes);
	return 0;
}

static int write_chunk(struct cvy_gpu *gpu, int rank, int generation, size_t at, const void *from, size_t bytes)
{
	written++;
	written_to = generation;
	return 0;
}

static struct cvy_gpu_mailbox *mailbox(struct cvy_gpu *gpu)
{
	return &box;
}

static const char *why(const struct cvy_gpu *gpu)
{
	return "a device of numbers";
}

static int memory(const struct cvy_gpu *gpu)
{
	return COVEY_DEVICE_MEMORY_VMM;
}

static int say_nothing(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes,
		       int fd)
{
	wants += type == CVY_MSG_WANT;
	passes += type == CVY_MSG_PASSED;
	return 0;
}

void hear_nothing(void *ctx, const struct cvy_event *event)
{
}

static void enter(struct cvy_gpu *gpu, struct cvy_gpu_scope *had)
{
}

static void leave(struct cvy_gpu *gpu, const struct cvy_gpu_scope *had)
{
}

static const struct cvy_gpu_memory mapped = {
	.chunk = chunk,
	.chunk_fd = chunk_fd,
	.unchunk = unchunk,
	.attach = attach,
	.detach = detach,
};

struct cvy_gpu_ops numbers = {
	.enter = enter,
	.leave = leave,
	.gate = gate,
	.counters = counters,
	.words = words,
	.read = read_chunk,
	.write = write_chunk,
	.mailbox = mailbox,
	.why = why,
	.memory = memory,
};

void link_up(struct cvy_device *d, int rank, uint64_t inc)
{
	const struct cvy_event ev = { .kind = CVY_EV_LINK_UP, .rank = rank, .inc = inc };
	struct cvy_sink sink = cvy_device_sink(d);

	sink.post(sink.ctx, &ev);
}

void learn(struct cvy_device *d, uint32_t epoch, uint64_t members, uint64_t removed, uint64_t inc_of_2)
{
	struct cvy_view *view = cvy_view_new(8);
	struct covey_mask gone = { { removed } };

	view->epoch = epoch;
	view->members.word[0] = members;
	for (int r = 0; r < 3; r++)
		view->member[r].inc = r == 2 ? inc_of_2 : (uint64_t)r + 1;
	cvy_device_learn(d, view, &gone);
	cvy_view_free(view);
}

struct cvy_device *device_new(void (*hear)(void *ctx, const struct cvy_event *event))
{
	struct cvy_device *d = calloc(1, sizeof(*d));

	d->ops = &numbers;
	d->mapped = &mapped;
	d->send = say_nothing;
	d->agent.post = hear;
	d->window_fd = -1;
	pthread_mutex_init(&d->lock, NULL);
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		d->peer[r].fd = d->peer[r].old_fd = -1;
	return d;
}

void device_free(struct cvy_device *d)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		if (d->peer[r].fd >= 0)
			close(d->peer[r].fd);
		if (d->peer[r].old_fd >= 0)
			close(d->peer[r].old_fd);
	}
	cvy_view_free(d->view);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

void tell(struct cvy_device *d, int type, int rank, uint64_t inc, const void *body, size_t bytes)
{
	struct cvy_sink sink = cvy_device_sink(d);
	struct cvy_event ev = { .kind = CVY_EV_MSG };

	ev.msg = (struct cvy_msg){
		.type = type, .rank = rank, .inc = inc, .body = body, .bytes = (uint32_t)bytes, .fd = 0
	};
	ev.msg.epoch = d->view ? d->view->epoch : 0;
	sink.post(sink.ctx, &ev);
}

void meet(struct cvy_device *d, int rank, uint64_t inc)
{
	static const struct {
		uint64_t window_bytes;
		uint32_t window, ipc;
	} chunk; /* as device_chunk.c has it */

	link_up(d, rank, inc);
	tell(d, CVY_MSG_CHUNK, rank, inc, &chunk, sizeof(chunk));
}

void lose_rank_2(struct cvy_device *d)
{
	meet(d, 1, 2);
	meet(d, 2, 3);
	learn(d, 1, 7, 0, 3);
	cvy_device_thaw(d);
	cvy_device_freeze(d, 1);
	learn(d, 2, 3, 4, 3);
}

void hear_have(struct cvy_device *d, int rank, uint64_t inc, uint64_t op)
{
	struct cvy_device_have have = {
		.op = op, .mask = 7, .fresh = !op, .eras = 1, .era = { { .op = 0, .epoch = 1, .mask = 7 } }
	};

	tell(d, CVY_MSG_HAVE, rank, inc, &have, sizeof(have));
}
