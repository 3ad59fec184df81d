/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operation `seq` is: kind, size, root, in place or not, made from the seed and alike on all ranks but
 * for the odd one that errs now and then; and its buffers. Six operations make a block that begins with a safe
 * point; in some blocks dispatches and combines stand, so that who has called the one calls the other.
 */
#include <stdlib.h>

#include "algo.h"
#include "sim.h"

#define TIMED(s) ((s)->seed % 16 >= 14) /* runs in which most dispatches and combines have a deadline */
#define CHOOSY(s) ((s)->seed % 16 == 9) /* runs in which most dispatches and combines have active_ranks */
#define ODD_ONE_IN 71			/* operations at which one rank calls something else */
#define EACH_ONE_IN 83			/* broadcasts and scatters at which each rank calls itself the root */

const char *const app_names[APP_KINDS] = { OPERATION_LIST(OPERATION_NAME)[ADMIT] = "admit", "dispatch", "combine" };

const struct operation *app_op(int kind)
{
	static const struct operation none = { .no_data = true };

	return kind < OP_SENDRECV ? &operation_table[kind] : &none;
}

int app_private(int kind)
{
	return kind == DISPATCH || kind == COMBINE || (app_op(kind)->send_blocks && !app_op(kind)->rooted);
}

int app_needs_everyone(int kind)
{
	return kind != ADMIT && app_op(kind)->of != OP_OF_ROOT;
}

int app_sends_blocks(const struct proc *p, const struct shape *shape)
{
	const struct operation *op = app_op(shape->kind);

	return op->send_blocks && (!op->rooted || shape->root == p->rank);
}

size_t app_gcount(const struct shape *shape, int rank)
{
	return rank % 3 == 1 ? shape->count / 3 : shape->count;
}

/* D, C: dispatch and combine of layer 0; d, c: of layer 1; others stand between them. */
static int layer_at(const struct sim *s, uint64_t seq, struct shape *shape)
{
	static const char *const blocks[] = { "DC...", "D.C.d", "DCdc.", "DdCc.", ".D..C" };
	uint64_t h = sim_hash(s->seed * 3 + 1, seq / SIM_BLOCK);
	char c = blocks[h / 4 % 5][seq % SIM_BLOCK - 1];

	if ((h % 4 && !((TIMED(s) || CHOOSY(s)) && h % 4 == 1) && !(app_swaps(s) && h % 4 < 3)) || c == '.')
		return 0;
	*shape = (struct shape){ c == 'D' || c == 'd' ? DISPATCH : COMBINE, .layer = c == 'd' || c == 'c',
				 .timed = TIMED(s) && h / 32 % 8, .choosy = CHOOSY(s) && h / 32 % 8 };
	return 1;
}

int app_odd(const struct sim *s, uint64_t seq)
{
	uint64_t h = sim_hash(s->seed * 5 + 2, seq);

	if (h % ODD_ONE_IN || (seq % SIM_BLOCK == 0 && s->seed % 2)) /* then safe points say who must contribute */
		return -1;
	return (int)(h / ODD_ONE_IN % (uint64_t)s->world);
}

static int each_is_root(const struct sim *s, uint64_t seq, int kind)
{
	return app_op(kind)->of == OP_OF_ROOT && !(sim_hash(s->seed * 13 + 5, seq) % EACH_ONE_IN);
}

/* Another kind, count, root or, where the kind has none of these, simply a barrier. */
static void err(const struct sim *s, struct shape *shape, int rank)
{
	const struct operation *op = app_op(shape->kind);

	shape->odd = 1;
	if (shape->kind == OP_BARRIER)
		*shape = (struct shape){ OP_ALLREDUCE, .odd = 1, .on_loss = shape->on_loss, .count = 3 };
	else if (op->of == OP_OF_ROOT && s->seed % 3)
		shape->root = rank;
	else if (!op->no_data && !(op->send_blocks && op->recv_blocks) && s->seed % 3)
		shape->count++;
	else if (shape->kind == OP_ALLTOALL && s->seed % 3 == 1)
		*shape = (struct shape){ OP_BROADCAST, rank, .odd = 1, .on_loss = shape->on_loss, .count = 9 };
	else
		*shape = (struct shape){ OP_BARRIER, .odd = 1, .on_loss = shape->on_loss };
}

static struct shape plain(const struct sim *s, uint64_t seq)
{
	static const int kinds[] = { OP_ALLREDUCE, OP_BROADCAST, OP_ALLGATHER, OP_ALLTOALL,
				     OP_BARRIER,   OP_ALLREDUCE, OP_ALLTOALLV, OP_BROADCAST };
	static const int more[] = { OP_REDUCE,	OP_REDUCE_SCATTER, OP_ALLGATHERV, OP_GATHER,
				    OP_SCATTER, OP_REDUCE,	   OP_ALLREDUCE,  OP_SCATTER };
	uint64_t h = sim_hash(s->seed, seq);
	size_t slot = s->slot_bytes / 4;
	const struct operation *op;
	const size_t counts[] = { 4, 0, 8, 50, slot, slot + 1, 3 * slot + 7, 5 * slot };
	/* One seed in four: the others make the runs that they made before these operations came. */
	struct shape shape = { .kind = s->seed % 4 ? kinds[h % 8] : more[h % 8],
			       .root = (int)((h >> 8) % (uint64_t)(s->world + ((h >> 40) % 16 == 0))),
			       .in_place = (int)(h >> 16) & 1,
			       .count = counts[(h >> 24) % 8] };

	if (shape.kind == OP_BARRIER || shape.kind == OP_ALLTOALLV)
		shape.count = 0;
	op = app_op(shape.kind);
	if (!op->rooted)
		shape.root = 0;
	if (!op->reduces && !(op->send_blocks && op->recv_blocks))
		shape.in_place = 0;
	return shape;
}

struct shape app_shape(const struct sim *s, uint64_t seq, int rank)
{
	struct shape shape = { .kind = ADMIT };

	if (seq % SIM_BLOCK) {
		if (!layer_at(s, seq, &shape))
			shape = plain(s, seq);
		/* of some runs half of the operations */
		if (s->seed % 2 && sim_hash(s->seed * 7 + 3, seq) % (s->seed % 16 == 7 ? 2 : 8) == 0)
			shape.on_loss = COVEY_ON_LOSS_FAIL;
	}
	if (app_odd(s, seq) == rank) {
		err(s, &shape, rank);
	} else if (each_is_root(s, seq, shape.kind)) {
		shape.root = rank;
		shape.odd = 1;
	}
	return shape;
}

int app_errs(const struct sim *s, uint64_t seq)
{
	struct shape shape;

	if (app_odd(s, seq) >= 0)
		return 1;
	shape = app_shape(s, seq, 0);
	return each_is_root(s, seq, shape.kind);
}

/* Elements that rank @from sends to rank @to: none, few, some ticks, or all for one. In place: as many back. */
size_t app_vcount(const struct sim *s, const struct shape *shape, uint64_t seq, int from, int to)
{
	int a = shape->in_place && from > to ? to : from, b = shape->in_place && from > to ? from : to;
	uint64_t h = sim_hash(s->seed * 11 + seq, (uint64_t)(a * 64 + b));
	size_t slot = s->slot_bytes / 4;

	switch (h % 5) {
	case 0:
		return 0;
	case 1:
		return (h >> 8) % 9;
	case 2:
		return (h >> 8) % slot;
	case 3:
		return (seq & 1) ? (h >> 8) % (3 * slot) : 0;
	default:
		return b == (int)(seq % SIM_RANKS) ? 2 * slot : 5;
	}
}

/* Where the block for (or of) another rank begins: one after the other, with a gap behind every second one. */
size_t app_vat(const struct sim *s, const struct shape *shape, uint64_t seq, int rank, int block, int receive)
{
	size_t at = 0;

	for (int r = 0; r < block; r++)
		at += (receive ? app_vcount(s, shape, seq, r, rank) : app_vcount(s, shape, seq, rank, r)) +
		      (size_t)(r & 1);
	return at;
}

struct stream app_stream(uint64_t inc, uint64_t seq, int to)
{
	uint64_t h = sim_hash(inc * 64 + (uint64_t)to, seq);

	return (struct stream){ (uint32_t)h, (uint32_t)(h >> 32) | 1 };
}

uint64_t app_hash(const uint8_t *bytes, size_t n)
{
	uint64_t h = n, word;

	for (; n >= 8; bytes += 8, n -= 8) {
		memcpy(&word, bytes, 8);
		h = (h ^ word) * 0xd6e8feb86659fd93ull;
		h ^= h >> 32;
	}
	for (; n; bytes++, n--)
		h = (h ^ *bytes) * 0x100000001b3ull;
	return h;
}

static uint8_t *buffer(size_t bytes)
{
	uint8_t *b = malloc(bytes + 1);

	if (!b)
		abort();
	memset(b, 0x5a, bytes + 1);
	return b;
}

static void fill(uint8_t *at, uint64_t inc, uint64_t seq, int to, size_t count)
{
	struct stream w = app_stream(inc, seq, to);

	for (size_t i = 0; i < count; i++) {
		uint32_t v = w.at + (uint32_t)i * w.by;

		memcpy(at + 4 * i, &v, 4);
	}
}

static void size_buffers(const struct proc *p, struct call *c)
{
	const struct shape *shape = &c->shape;
	size_t bytes = 4 * shape->count, all = bytes * (size_t)c->size;

	c->send_bytes = app_sends_blocks(p, shape) ? all : bytes;
	c->recv_bytes = app_op(shape->kind)->recv_blocks ? all : bytes;
	if (shape->kind == OP_ALLGATHERV) {
		c->send_bytes = 4 * app_gcount(shape, p->rank);
		c->recv_bytes = 4 * (size_t)c->size * (shape->count + 1);
	}
	if (shape->kind == ADMIT)
		c->send_bytes = c->recv_bytes = STATE_BYTES;
	if (shape->kind == OP_ALLTOALLV) {
		c->send_bytes = 4 * app_vat(p->sim, shape, c->seq, p->rank, c->size, 0);
		c->recv_bytes = 4 * app_vat(p->sim, shape, c->seq, p->rank, c->size, 1);
	}
}

/* One seed in eighteen: the others make the runs that they made before handles went. */
int app_swaps(const struct sim *s)
{
	return s->seed % 18 == 3;
}

/* One seed in three. */
int app_places(const struct sim *s)
{
	return s->seed % 3 == 2;
}

int app_lends(const struct sim *s)
{
	return s->seed % 5 == 0;
}

/* In one seed of five some ranks have some of their inputs in registered buffers. */
static uint8_t *input(struct proc *p, struct call *c)
{
	uint64_t h = sim_hash(p->sim->seed * 17 + (uint64_t)p->id, c->seq);
	void *memory = NULL;

	if (!app_lends(p->sim) || h % 3 == 0 || c->shape.kind == ADMIT ||
	    covey_mem_alloc(p->app.group, c->send_bytes + 1, &memory))
		return buffer(c->send_bytes);
	c->lent = 1;
	memset(memory, 0x5a, c->send_bytes + 1);
	return memory;
}

void app_buffers(struct proc *p, struct call *c)
{
	const struct shape *shape = &c->shape;

	size_buffers(p, c);
	c->in_place = shape->in_place;
	c->send = input(p, c);
	c->recv = c->in_place ? c->send : buffer(c->recv_bytes);
	if (c->in_place && shape->kind == OP_REDUCE_SCATTER)
		c->recv = c->send + 4 * shape->count * (size_t)p->rank;
	if (shape->kind == OP_ALLTOALLV)
		for (int r = 0; r < c->size; r++)
			fill(c->send + 4 * app_vat(p->sim, shape, c->seq, p->rank, r, 0), p->inc, c->seq, r,
			     app_vcount(p->sim, shape, c->seq, p->rank, r));
	else if (app_sends_blocks(p, shape))
		for (int r = 0; r < c->size; r++)
			fill(c->send + 4 * shape->count * (size_t)r, p->inc, c->seq, r, shape->count);
	else if (shape->kind == OP_ALLGATHERV)
		fill(c->send, p->inc, c->seq, 0, app_gcount(shape, p->rank));
	else if (shape->kind == ADMIT && c->seq)
		fill(c->send, 0, c->seq, 0, STATE_BYTES / 4);
	else
		fill(c->send, p->inc, c->seq, 0, shape->count);
	c->send_hash = app_hash(c->send, c->send_bytes);
}
