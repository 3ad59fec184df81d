/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of an mlx5 send queue, as stores of 4-byte words. They equal those of the adapter's own library, byte for
 * byte (tests/softmlx5 compares). All fields are big-endian; keys are swapped before. Each entry used here fits into
 * one block of 64 bytes, so an index of blocks also counts entries.
 *
 *	write	control, remote address, data      3 segments of 16 bytes; empty: 2
 *	signal	control, remote address, inline    3: 4 bytes of length, 8 of value
 *	add	control, remote address, atomic, response  4
 */
#ifndef CVY_QUEUE_MLX5_H
#define CVY_QUEUE_MLX5_H

#include "queue_port.h"

#define CVY_MLX5_BLOCK 64
#define CVY_MLX5_DEPTH_MAX 32768 /* half the range of a 16-bit index, so that far ahead differs from done */
#define CVY_MLX5_PUT_MAX ((uint64_t)1 << 30)

#define CVY_MLX5_WRITE 0x08
#define CVY_MLX5_ADD64 0x12
#define CVY_MLX5_SIGNALLED 0x08u /* a completion; else one only if it fails */
#define CVY_MLX5_INLINE 0x80000000u

/* The last word of a completion, as a little-endian load sees it. */
#define CVY_MLX5_CQE_TAIL 60
#define CVY_MLX5_CQE_SYNDROME 55
#define CVY_MLX5_CQE_OPCODE(tail) ((tail) >> 28)
#define CVY_MLX5_CQE_OWNER(tail) ((tail) >> 24 & 1)
#define CVY_MLX5_CQE_COUNTER(tail) ((uint16_t)(((tail)&0xff) << 8 | ((tail) >> 8 & 0xff)))
#define CVY_MLX5_CQE_OK 0x0
#define CVY_MLX5_CQE_FAILED 0xd
#define CVY_MLX5_CQE_NONE 0xf

struct cvy_mlx5_entry {
	uint32_t qpn;
	uint64_t index; /* of the block; its low 16 bits are in the entry */
	int signalled;
	uint64_t remote;
	uint32_t rkey_be;
};

CVY_Q_BOTH void cvy_mlx5_head(uint32_t *w, const struct cvy_mlx5_entry *e, uint32_t opcode, uint32_t segments)
{
	w[0] = cvy_q_be32((opcode & 0xff000000u) | ((uint32_t)e->index & 0xffff) << 8 | (opcode & 0xff));
	w[1] = cvy_q_be32(e->qpn << 8 | segments);
	w[2] = e->signalled ? cvy_q_be32(CVY_MLX5_SIGNALLED) : 0;
	w[3] = 0;
	w[4] = cvy_q_be32((uint32_t)(e->remote >> 32));
	w[5] = cvy_q_be32((uint32_t)e->remote);
	w[6] = e->rkey_be;
	w[7] = 0;
}

CVY_Q_BOTH void cvy_mlx5_data(uint32_t *w, uint32_t bytes, uint32_t lkey_be, uint64_t local)
{
	w[0] = cvy_q_be32(bytes);
	w[1] = lkey_be;
	w[2] = cvy_q_be32((uint32_t)(local >> 32));
	w[3] = cvy_q_be32((uint32_t)local);
}

/* A length of 0 in a data segment would mean 2 GiB: an empty write has none. */
CVY_Q_BOTH void cvy_mlx5_write(uint32_t *w, const struct cvy_mlx5_entry *e, uint32_t bytes, uint32_t lkey_be,
			       uint64_t local)
{
	cvy_mlx5_head(w, e, CVY_MLX5_WRITE, bytes ? 3 : 2);
	if (bytes)
		cvy_mlx5_data(w + 8, bytes, lkey_be, local);
}

CVY_Q_BOTH void cvy_mlx5_signal(uint32_t *w, const struct cvy_mlx5_entry *e, uint64_t value)
{
	cvy_mlx5_head(w, e, CVY_MLX5_WRITE, 3);
	w[8] = cvy_q_be32(CVY_MLX5_INLINE | 8);
	w[9] = (uint32_t)value;
	w[10] = (uint32_t)(value >> 32);
	w[11] = 0;
}

CVY_Q_BOTH void cvy_mlx5_add64(uint32_t *w, const struct cvy_mlx5_entry *e, uint64_t value, uint32_t lkey_be,
			       uint64_t response)
{
	cvy_mlx5_head(w, e, CVY_MLX5_ADD64, 4);
	w[8] = cvy_q_be32((uint32_t)(value >> 32));
	w[9] = cvy_q_be32((uint32_t)value);
	w[10] = 0;
	w[11] = 0;
	cvy_mlx5_data(w + 12, 8, lkey_be, response);
}

/* The value for the register. The adapter takes the queue's number from it and reads the index from the record. */
CVY_Q_BOTH uint64_t cvy_mlx5_doorbell(uint32_t qpn, uint64_t next)
{
	uint32_t first = cvy_q_be32(((uint32_t)next & 0xffff) << 8), second = cvy_q_be32(qpn << 8);

	return (uint64_t)second << 32 | first;
}

#endif
