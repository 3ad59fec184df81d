/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry of a send queue: what shape it has, whether it is well-formed, and what it does. Checks come first and
 * do nothing, so that an entry that is refused has moved no byte. The rules are those of drivers and of
 * libmlx5's own entries; where an adapter's behaviour is not known it is refused.
 */
#include <infiniband/mlx5dv.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "state.h"

#define REMOTE_WRITE 2
#define REMOTE_READ 4
#define REMOTE_ATOMIC 8
#define LOCAL_WRITE 1
#define MALFORMED MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR

#define REFUSE(check, ...) \
	do { \
		if (found(check, __VA_ARGS__)) \
			return MALFORMED; \
	} while (0)

void entry_shape(const uint8_t *entry, struct picked *p)
{
	uint32_t segments = be32_at(entry + 4) & 0x3f;

	p->opcode = (uint8_t)be32_at(entry);
	p->blocks = segments ? (uint8_t)((segments + 3) / 4) : 1;
	p->signalled = (entry[11] & 0xc) == MLX5_WQE_CTRL_CQ_UPDATE;
}

static int is_copy(int opcode)
{
	return opcode == MLX5_OPCODE_RDMA_WRITE || opcode == MLX5_OPCODE_RDMA_READ;
}

/* Segments of data behind the first two; adds up their bytes. */
static uint32_t check_data(const uint8_t *entry, uint32_t segments)
{
	uint32_t at = 32, end = segments * 16, n;

	while (at < end) {
		n = be32_at(entry + at);
		if (n & MLX5_INLINE_SEG) {
			n &= 0x3ff;
			if (at + 4 + n > end)
				REFUSE(SOFTMLX5_INLINE, "inline data of %u bytes end behind the entry", n);
			at += (4 + n + 15) / 16 * 16;
			if (at < end)
				REFUSE(SOFTMLX5_SIZE, "%u segments where inline data end at %u", segments, at / 16);
		} else {
			if (!n)
				REFUSE(SOFTMLX5_ZERO, "a data segment of length 0 means 2 GiB");
			at += 16;
		}
	}
	return 0;
}

static uint32_t check_atomic(const uint8_t *entry, uint32_t opcode, uint32_t opmod, uint32_t segments)
{
	if (segments != 4)
		REFUSE(SOFTMLX5_SIZE, "an atomic operation of %u segments", segments);
	if (opmod)
		REFUSE(SOFTMLX5_OPMOD, "modifier %x of an add", opmod);
	if (opcode != MLX5_OPCODE_ATOMIC_CS && be64_at(entry + 40))
		REFUSE(SOFTMLX5_RESERVED, "compare, or boundaries, of an add");
	if (be32_at(entry + 48) != 8)
		REFUSE(SOFTMLX5_SIZE, "an answer of %u bytes", be32_at(entry + 48));
	return 0;
}

uint32_t entry_check(const struct queue *q, const uint8_t *entry, const struct picked *p)
{
	uint32_t first = be32_at(entry), second = be32_at(entry + 4), segments = second & 0x3f, opmod = first >> 24;

	if ((uint16_t)(first >> 8) != p->index)
		REFUSE(SOFTMLX5_INDEX, "index %u in entry %u", (uint16_t)(first >> 8), p->index);
	if (second >> 8 != q->shared->qpn)
		REFUSE(SOFTMLX5_QPN, "an entry of queue %x in %x", second >> 8, q->shared->qpn);
	if (!segments)
		REFUSE(SOFTMLX5_SIZE, "an entry of no segments");
	if (second & 0xc0 || entry[11] & 0x11 || entry[9] || entry[10] || be32_at(entry + 12))
		REFUSE(SOFTMLX5_RESERVED, "reserved bits of the control segment");
	if (p->opcode == MLX5_OPCODE_NOP) {
		if (segments != 1)
			REFUSE(SOFTMLX5_SIZE, "nothing to do in %u segments", segments);
		return 0;
	}
	if (segments < 2)
		REFUSE(SOFTMLX5_SIZE, "no remote address");
	if (be32_at(entry + 28))
		REFUSE(SOFTMLX5_RESERVED, "reserved word behind the key");
	if (is_copy(p->opcode)) {
		if (opmod)
			REFUSE(SOFTMLX5_OPMOD, "modifier %x of a copy", opmod);
		return check_data(entry, segments);
	}
	if (p->opcode == MLX5_OPCODE_ATOMIC_FA || p->opcode == MLX5_OPCODE_ATOMIC_CS)
		return check_atomic(entry, p->opcode, opmod, segments);
	REFUSE(SOFTMLX5_OPMOD, "operation %x is not known here", p->opcode);
	return MALFORMED;
}

/* The plan's death: half of the bytes are there, the other half never will be. */
static void die_half_way(const struct queue *q, const struct region *to, uint64_t at, const void *from, size_t bytes)
{
	if (adapter.plan.kill_qpn != q->shared->qpn || q->entries <= adapter.plan.kill_at || bytes < 2)
		return;
	move_out(to, at, from, bytes / 2);
	kill(getpid(), SIGKILL);
}

static uint32_t copy_out(struct queue *q, const struct shared_queue *far, const void *from, size_t bytes, uint64_t at,
			 uint32_t key)
{
	struct region *to;

	if (!(far->access & REMOTE_WRITE))
		return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	to = region_find(key, at, bytes, REMOTE_WRITE, far->pd);
	if (!to || to->process != far->process)
		return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	die_half_way(q, to, at, from, bytes);
	return move_out(to, at, from, bytes) ? MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR : 0;
}

static uint32_t copy_back(const struct shared_queue *far, void *to, size_t bytes, uint64_t at, uint32_t key)
{
	struct region *from;

	if (!(far->access & REMOTE_READ))
		return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	from = region_find(key, at, bytes, REMOTE_READ, far->pd);
	if (!from || from->process != far->process)
		return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	return move_in(from, at, to, bytes) ? MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR : 0;
}

static uint32_t execute_copy(struct queue *q, const struct shared_queue *far, const uint8_t *entry, struct picked *p)
{
	uint32_t at = 32, end = (be32_at(entry + 4) & 0x3f) * 16, n, err, key = be32_at(entry + 24);
	int read = p->opcode == MLX5_OPCODE_RDMA_READ;
	uint64_t remote = be64_at(entry + 16), address;
	struct region *local;
	void *here;

	for (; at < end; remote += n, p->bytes += n) {
		n = be32_at(entry + at);
		if (n & MLX5_INLINE_SEG) {
			n &= 0x3ff;
			here = (void *)(uintptr_t)(entry + at + 4);
			at += (4 + n + 15) / 16 * 16;
		} else {
			n = n ? n : 1u << 31;
			address = be64_at(entry + at + 8);
			local = region_find(be32_at(entry + at + 4), address, n, read ? LOCAL_WRITE : 0, q->shared->pd);
			if (!local || local->process != adapter.process)
				return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
			here = region_local(local, address);
			at += 16;
		}
		err = read ? copy_back(far, here, n, remote, key) : copy_out(q, far, here, n, remote, key);
		if (err)
			return err;
	}
	return 0;
}

static uint32_t execute_add(struct queue *q, const struct shared_queue *far, const uint8_t *entry, struct picked *p)
{
	uint64_t at = be64_at(entry + 16), answer = be64_at(entry + 56), old = 0;
	struct region *local = region_find(be32_at(entry + 52), answer, 8, LOCAL_WRITE, q->shared->pd);
	struct region *to;

	if (!local || local->process != adapter.process)
		return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
	if (at % 8)
		return MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
	if (!(far->access & REMOTE_ATOMIC) || !far->atomic_mode || p->opcode == MLX5_OPCODE_ATOMIC_CS)
		return MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
	to = region_find(be32_at(entry + 24), at, 8, REMOTE_ATOMIC, far->pd);
	if (!to || to->process != far->process)
		return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	if (fetch_add(to, at, be64_at(entry + 32), &old))
		return MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
	memcpy(region_local(local, answer), &old, 8);
	p->bytes = 8;
	return 0;
}

uint32_t entry_execute(struct queue *q, const uint8_t *entry, struct picked *p)
{
	const struct shared_queue *far = &adapter.segment->queue[q->shared->far & (QUEUES - 1)];

	if (p->opcode == MLX5_OPCODE_NOP)
		return 0;
	/* Another number there: who was meant is gone. Numbers of packets that do not agree are as if nobody answered. */
	if (far->qpn != q->shared->far || far->far != q->shared->qpn || far->state < QUEUE_RTR ||
	    far->state == QUEUE_ERROR || far->silent || far->recv_psn != q->shared->send_psn ||
	    process_gone(far->process))
		return MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
	if (is_copy(p->opcode))
		return execute_copy(q, far, entry, p);
	return execute_add(q, far, entry, p);
}
