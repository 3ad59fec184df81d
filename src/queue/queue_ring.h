/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of 16 bytes to a thread of the host that posts them on any network. Only 8 bytes are whole across PCIe, so
 * each half has a *lap* bit, which flips on each lap of the ring. A command is there when both halves have the bit of
 * this lap. Memory begins as zeros, so the first lap's bit is 1.
 *
 *	first	lap:1 op:3 queue:14 remote:46	offset at the far end
 *	second	lap:1 bytes:27 local:36		put
 *		lap:1 value:63			signal, add; the value's top bit is in op
 */
#ifndef CVY_QUEUE_RING_H
#define CVY_QUEUE_RING_H

#include "queue_port.h"

#define CVY_RING_QUEUES (1 << 14)
#define CVY_RING_PUT_MAX (((uint64_t)1 << 27) - 64) /* of one command, whole lines; longer puts are several commands */
#define CVY_RING_LOCAL_MAX ((uint64_t)1 << 36)
#define CVY_RING_REMOTE_MAX ((uint64_t)1 << 46)
#define CVY_RING_LAP ((uint64_t)1 << 63)

enum cvy_ring_op {
	CVY_RING_PUT = 1,
	CVY_RING_SIGNAL,
	CVY_RING_SIGNAL_HIGH, /* value's top bit set */
	CVY_RING_ADD,
	CVY_RING_ADD_HIGH
};

struct cvy_ring_command {
	int op; /* PUT, SIGNAL or ADD */
	uint32_t queue;
	uint64_t remote;
	uint64_t local, bytes; /* put */
	uint64_t value;	       /* signal, add */
};

CVY_Q_BOTH uint64_t cvy_ring_lap(uint64_t index, uint32_t depth)
{
	return index & depth ? 0 : CVY_RING_LAP; /* a power of two */
}

CVY_Q_BOTH void cvy_ring_pack(const struct cvy_ring_command *c, uint64_t lap, uint64_t w[2])
{
	uint64_t op = (uint64_t)c->op;

	if (c->op == CVY_RING_PUT) {
		w[1] = lap | c->bytes << 36 | c->local;
	} else {
		op += c->value >> 63;
		w[1] = lap | (c->value & ~CVY_RING_LAP);
	}
	w[0] = lap | op << 60 | (uint64_t)c->queue << 46 | c->remote;
}

CVY_Q_BOTH void cvy_ring_unpack(const uint64_t w[2], struct cvy_ring_command *c)
{
	int op = (int)(w[0] >> 60 & 7);
	uint64_t low = w[1] & ~CVY_RING_LAP;

	c->queue = (uint32_t)(w[0] >> 46) & (CVY_RING_QUEUES - 1);
	c->remote = w[0] & (CVY_RING_REMOTE_MAX - 1);
	c->bytes = op == CVY_RING_PUT ? low >> 36 : 0;
	c->local = op == CVY_RING_PUT ? low & (CVY_RING_LOCAL_MAX - 1) : 0;
	c->value = op == CVY_RING_PUT ? 0 : low;
	if (op == CVY_RING_SIGNAL_HIGH || op == CVY_RING_ADD_HIGH) {
		c->value |= CVY_RING_LAP;
		op--;
	}
	c->op = op;
}

#endif
