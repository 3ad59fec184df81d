/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that a program sends through libmlx5 (DEVX): queues whose rings stand in registered memory. The table of
 * fields is written here on its own, as {byte of the word, lowest bit, width}, and not taken from the library under
 * test, so a wrong number there shows. Every field that matters is checked; a refusal has a syndrome that names it.
 */
#include <errno.h>
#include <stdlib.h>

#include "state.h"

struct field {
	uint16_t byte;
	uint8_t low, width;
};

enum {
	CMD_QUERY_CAP = 0x100,
	CMD_CREATE_CQ = 0x400,
	CMD_CREATE_QP = 0x500,
	CMD_INIT = 0x502,
	CMD_RTR = 0x503,
	CMD_RTS = 0x504
};
enum { CMD_TO_ERROR = 0x507, CMD_TO_RESET = 0x50a };

static const struct field opcode = { 0x00, 16, 16 }, modifier = { 0x04, 0, 16 }, number = { 0x08, 0, 24 };
static const struct field status = { 0x00, 24, 8 }, syndrome = { 0x04, 0, 32 };

static const struct field cq_record_valid = { 0x10, 25, 1 }, cq_collapsed = { 0x10, 20, 1 },
			  cq_no_overrun = { 0x10, 17, 1 }, cq_entry_size = { 0x10, 21, 3 },
			  cq_record_umem = { 0x14, 0, 32 }, cq_log = { 0x1c, 24, 5 }, cq_uar = { 0x1c, 0, 24 },
			  cq_eqn = { 0x24, 0, 8 }, cq_record_at = { 0x48, 0, 32 }, cq_ring_at = { 0x50, 0, 32 },
			  cq_ring_umem = { 0x58, 0, 32 }, cq_ring_valid = { 0x5c, 31, 1 };

static const struct field qp_service = { 0x18, 16, 8 }, qp_path_state = { 0x18, 11, 2 }, qp_pd = { 0x1c, 0, 24 },
			  qp_log = { 0x20, 11, 4 }, qp_no_ring = { 0x20, 15, 1 }, qp_uar = { 0x24, 0, 24 },
			  qp_user_index = { 0x28, 0, 24 }, qp_cq = { 0x94, 0, 24 }, qp_record_at = { 0xb8, 0, 32 },
			  qp_receive_type = { 0xc4, 24, 3 }, qp_record_valid = { 0xe8, 28, 1 },
			  qp_record_umem = { 0xfc, 0, 32 }, qp_ring_at = { 0x100, 0, 32 },
			  qp_ring_umem = { 0x108, 0, 32 }, qp_ring_valid = { 0x10c, 31, 1 };

static const struct field qp_may_read = { 0xa8, 15, 1 }, qp_may_write = { 0xa8, 14, 1 }, qp_may_add = { 0xa8, 13, 1 },
			  qp_atomic_mode = { 0xa8, 16, 4 }, qp_port = { 0x54, 16, 8 }, qp_mtu = { 0x20, 29, 3 },
			  qp_message_log = { 0x20, 24, 5 }, qp_far = { 0x2c, 0, 24 }, qp_recv_psn = { 0xac, 0, 24 },
			  qp_reads_in = { 0xa8, 21, 3 }, qp_retries = { 0x88, 16, 3 }, qp_send_psn = { 0x90, 0, 24 },
			  qp_timeout = { 0x38, 27, 5 }, qp_hops = { 0x38, 0, 8 }, qp_udp_port = { 0x50, 0, 16 },
			  qp_mac_low = { 0x58, 0, 32 };

static uint32_t get(const void *p, struct field f)
{
	uint32_t w = be32_at((const uint8_t *)p + f.byte);

	return f.width == 32 ? w : w >> f.low & ((1u << f.width) - 1);
}

static uint64_t get64(const void *p, struct field f)
{
	return be64_at((const uint8_t *)p + f.byte);
}

static void set(void *p, struct field f, uint32_t v)
{
	uint8_t *at = (uint8_t *)p + f.byte;
	uint32_t mask = f.width == 32 ? UINT32_MAX : ((1u << f.width) - 1) << f.low, w;

	w = htobe32((be32_at(at) & ~mask) | (v << f.low & mask));
	memcpy(at, &w, 4);
}

static int refuse(void *out, uint32_t why)
{
	set(out, status, 3);
	set(out, syndrome, why);
	errno = EREMOTEIO;
	return EREMOTEIO;
}

/* [at, at + bytes) of a registered memory; NULL: not within it */
static void *within(uint32_t umem, uint64_t at, uint64_t bytes)
{
	const struct umem *m = umem < QUEUES ? &adapter.umem[umem] : NULL;

	if (!m || !m->bytes || bytes > m->bytes || at > m->bytes - bytes)
		return NULL;
	return (void *)(uintptr_t)(m->start + at);
}

static int uar_is_there(uint32_t page)
{
	return page < UARS && adapter.uar_used[page];
}

static int create_cq(const void *in, void *out, int *kind, uint32_t *index)
{
	struct completions c = { .n = 1u << get(in, cq_log) };
	int i;

	if (!get(in, cq_ring_valid) || !get(in, cq_record_valid) || get(in, cq_entry_size))
		return refuse(out, 0x1001);
	c.ring = within(get(in, cq_ring_umem), get64(in, cq_ring_at), c.n * 64ull);
	c.record = within(get(in, cq_record_umem), get64(in, cq_record_at), 8);
	if (!c.ring || !c.record || get64(in, cq_record_at) % 8)
		return refuse(out, 0x1002);
	if (get(in, cq_eqn) != 3 || !uar_is_there(get(in, cq_uar)))
		return refuse(out, 0x1003);
	c.collapsed = get(in, cq_collapsed);
	c.ignore_overrun = get(in, cq_no_overrun);
	for (uint32_t k = 0; k < (c.collapsed ? 1 : c.n); k++)
		if (c.ring[64 * k + 63] >> 4 != 0xf && found(SOFTMLX5_CQ_INIT, "completion %u does not begin as ff", k))
			return refuse(out, 0x1004);
	i = cq_add(&c);
	if (i < 0)
		return refuse(out, 0x1005);
	set(out, number, (uint32_t)i);
	*kind = HANDLE_CQ;
	*index = (uint32_t)i;
	return 0;
}

static int create_qp(const void *in, void *out, int *kind, uint32_t *index)
{
	uint32_t depth = 1u << get(in, qp_log), cq = get(in, qp_cq);
	uint8_t *ring, *record;
	struct queue *q;

	if (!get(in, qp_ring_valid) || !get(in, qp_record_valid) || get(in, qp_no_ring))
		return refuse(out, 0x2001);
	ring = within(get(in, qp_ring_umem), get64(in, qp_ring_at), depth * 64ull);
	record = within(get(in, qp_record_umem), get64(in, qp_record_at), 8);
	if (!ring || !record || get64(in, qp_record_at) % 8)
		return refuse(out, 0x2002);
	if (get(in, qp_service) || get(in, qp_path_state) != 3 || get(in, qp_receive_type) != 3)
		return refuse(out, 0x2003);
	if (cq >= QUEUES || !adapter.cq[cq].live || !uar_is_there(get(in, qp_uar)))
		return refuse(out, 0x2004);
	q = queue_add(get(in, qp_pd));
	if (!q)
		return refuse(out, 0x2005);
	q->under_way = calloc(depth, sizeof(*q->under_way));
	q->depth = depth;
	q->cq = cq;
	q->user_index = get(in, qp_user_index);
	q->record = (uint32_t *)(record + 4);
	q->ring = ring;
	set(out, number, q->shared->qpn);
	*kind = HANDLE_QUEUE;
	*index = q->shared->qpn;
	return 0;
}

static int to_init(const void *in, void *out, struct queue *q)
{
	struct shared_queue *s = q->shared;

	if (s->state != QUEUE_RESET || get(in, qp_port) != 1 || get(in, qp_path_state) != 3)
		return refuse(out, 0x3002);
	s->access = get(in, qp_may_write) << 1 | get(in, qp_may_read) << 2 | get(in, qp_may_add) << 3;
	s->atomic_mode = get(in, qp_atomic_mode);
	if (get(in, qp_may_add) && !s->atomic_mode)
		return refuse(out, 0x3005);
	s->state = QUEUE_INIT;
	return 0;
}

static int to_rtr(const void *in, void *out, struct queue *q)
{
	struct shared_queue *s = q->shared;

	if (s->state != QUEUE_INIT)
		return refuse(out, 0x3003);
	if (get(in, qp_mtu) < 1 || get(in, qp_mtu) > 5 || get(in, qp_message_log) != 30 || !get(in, qp_far))
		return refuse(out, 0x3006);
	if (!get(in, qp_hops) || get(in, qp_udp_port) < 0xc000 || !get(in, qp_mac_low) || !get(in, qp_reads_in))
		return refuse(out, 0x3007);
	s->far = get(in, qp_far);
	s->recv_psn = get(in, qp_recv_psn);
	s->state = QUEUE_RTR;
	return 0;
}

static int modify(int op, const void *in, void *out)
{
	struct queue *q = queue_of(get(in, number));

	if (!q)
		return refuse(out, 0x3001);
	switch (op) {
	case CMD_INIT:
		return to_init(in, out, q);
	case CMD_RTR:
		return to_rtr(in, out, q);
	case CMD_RTS:
		if (q->shared->state != QUEUE_RTR)
			return refuse(out, 0x3004);
		q->shared->send_psn = get(in, qp_send_psn);
		q->retries = get(in, qp_retries);
		q->timeout = get(in, qp_timeout);
		q->shared->state = QUEUE_RTS;
		return 0;
	case CMD_TO_ERROR:
		adapter_error(q);
		return 0;
	default:
		q->shared->state = QUEUE_RESET;
		q->picked = q->done = 0;
		return 0;
	}
}

static int query(const void *in, void *out, size_t out_bytes)
{
	static const struct field cqe_version = { 0x10 + 0x3c, 0, 4 }, log_queues = { 0x10 + 0x10, 0, 5 },
				  atomics = { 0x10 + 0x40, 1, 1 }, operations = { 0x10 + 0x10, 0, 16 },
				  sizes = { 0x10 + 0x14, 0, 16 };

	if (out_bytes < 0x10 + 0x1000)
		return refuse(out, 0x4001);
	switch (get(in, modifier) >> 1) {
	case 0:
		set(out, cqe_version, 1);
		set(out, log_queues, 13);
		set(out, atomics, 1);
		return 0;
	case 3:
		set(out, operations, 0xf); /* compare and swap, fetch and add, both masked */
		set(out, sizes, 0xc);	   /* 4 and 8 bytes */
		return 0;
	}
	return refuse(out, 0x4002);
}

int firmware(const void *in, size_t in_bytes, void *out, size_t out_bytes, int *kind, uint32_t *index)
{
	int op;

	memset(out, 0, out_bytes);
	if (in_bytes < 0x10 || out_bytes < 0x10)
		return refuse(out, 0x5001);
	op = (int)get(in, opcode);
	if (op >= CMD_CREATE_CQ && in_bytes != 0x110)
		return refuse(out, 0x5002);
	switch (op) {
	case CMD_QUERY_CAP:
		return query(in, out, out_bytes);
	case CMD_CREATE_CQ:
		return create_cq(in, out, kind, index);
	case CMD_CREATE_QP:
		return create_qp(in, out, kind, index);
	case CMD_INIT:
	case CMD_RTR:
	case CMD_RTS:
	case CMD_TO_ERROR:
	case CMD_TO_RESET:
		return modify(op, in, out);
	}
	return refuse(out, 0x5003);
}
