/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries as we build them are, byte for byte, those of the distribution's libmlx5, by both of its ways to post; and its
 * own posting, 16-bit indices wrapping, and its reading of our adapter's completions, errors included, work. That is
 * what makes the adapter a judge of what GPU threads write.
 */
#include "../suite.h"
#include "rig.h"

#include <stdlib.h>

#include "queue_mlx5.h"

static struct rig rig;

static void open_rig(void)
{
	rig_open(&rig, 64);
}

static void close_rig(void)
{
	rig_close(&rig);
}

static struct cvy_mlx5_entry entry_to(unsigned index, unsigned at)
{
	struct cvy_mlx5_entry e = { .qpn = rig.near_qp->qp_num,
				    .index = index,
				    .signalled = 1,
				    .remote = (uint64_t)(uintptr_t)rig.far + at,
				    .rkey_be = htobe32(rig.far_key) };

	return e;
}

static void expect_ok(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = rig_completion(&rig);

	ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
	ck_assert_int_eq(wc.opcode, opcode);
}

/* Posted by the functions of an extended queue. */
TEST(entries_equal_those_of_ibv_wr)
{
	uint64_t value = 0x1122334455667788ull, near = (uint64_t)(uintptr_t)rig.near;
	struct cvy_mlx5_entry e;
	uint32_t ours[16] = { 0 };

	rig.ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(rig.ex);
	ibv_wr_rdma_write(rig.ex, rig.far_key, (uint64_t)(uintptr_t)rig.far + 64);
	ibv_wr_set_sge(rig.ex, rig.near_mr->lkey, near, 48);
	ck_assert(!ibv_wr_complete(rig.ex));
	expect_ok(IBV_WC_RDMA_WRITE);
	e = entry_to(0, 64);
	cvy_mlx5_write(ours, &e, 48, htobe32(rig.near_mr->lkey), near);
	ck_assert_mem_eq(ours, rig_slot(&rig, 0), 48);

	rig.ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_start(rig.ex);
	ibv_wr_rdma_write(rig.ex, rig.far_key, (uint64_t)(uintptr_t)rig.far + 256);
	ibv_wr_set_inline_data(rig.ex, &value, 8);
	ck_assert(!ibv_wr_complete(rig.ex));
	expect_ok(IBV_WC_RDMA_WRITE);
	e = entry_to(1, 256);
	cvy_mlx5_signal(ours, &e, value);
	ck_assert_mem_eq(ours, rig_slot(&rig, 1), 44); /* what follows is padding */
	ck_assert_mem_eq(rig.far + 256, &value, 8);

	rig.ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(rig.ex);
	ibv_wr_atomic_fetch_add(rig.ex, rig.far_key, (uint64_t)(uintptr_t)rig.far + 512, value);
	ibv_wr_set_sge(rig.ex, rig.near_mr->lkey, near + 1024, 8);
	ck_assert(!ibv_wr_complete(rig.ex));
	expect_ok(IBV_WC_FETCH_ADD);
	e = entry_to(2, 512);
	cvy_mlx5_add64(ours, &e, value, htobe32(rig.near_mr->lkey), near + 1024);
	ck_assert_mem_eq(ours, rig_slot(&rig, 2), 64);
	ck_assert_mem_eq(rig.far + 512, &value, 8);
	ck_assert_uint_eq(softmlx5_found(), 0);
}

static void post(int opcode, unsigned flags, struct ibv_sge *sge, unsigned at)
{
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = sge ? 1 : 0, .send_flags = flags }, *bad;

	wr.opcode = (enum ibv_wr_opcode)opcode;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uint64_t)(uintptr_t)rig.far + at;
		wr.wr.atomic.rkey = rig.far_key;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)rig.far + at;
		wr.wr.rdma.rkey = rig.far_key;
	}
	ck_assert(!ibv_post_send(rig.near_qp, &wr, &bad));
}

/* Posted by the older call: unsignalled, empty, and far along the ring, too. */
TEST(entries_equal_those_of_ibv_post_send)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)rig.near, 48, rig.near_mr->lkey };
	struct ibv_sge answer = { (uint64_t)(uintptr_t)rig.near + 1024, 8, rig.near_mr->lkey };
	struct cvy_mlx5_entry e;
	uint32_t ours[16] = { 0 };

	post(IBV_WR_RDMA_WRITE, 0, &sge, 64);
	post(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, NULL, 64);
	expect_ok(IBV_WC_RDMA_WRITE);
	e = entry_to(0, 64);
	e.signalled = 0;
	cvy_mlx5_write(ours, &e, 48, htobe32(sge.lkey), sge.addr);
	ck_assert_mem_eq(ours, rig_slot(&rig, 0), 48);
	e = entry_to(1, 64);
	cvy_mlx5_write(ours, &e, 0, 0, 0);
	ck_assert_mem_eq(ours, rig_slot(&rig, 1), 32);
	post(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, &answer, 512);
	expect_ok(IBV_WC_FETCH_ADD);
	e = entry_to(2, 512);
	cvy_mlx5_add64(ours, &e, 1, htobe32(answer.lkey), answer.addr);
	ck_assert_mem_eq(ours, rig_slot(&rig, 2), 64);
	ck_assert_uint_eq(softmlx5_found(), 0);
}

/* Numbers seen in one run of libmlx5, so that no later edit of both builders agrees with itself. */
TEST(entries_equal_what_was_written_down)
{
	static const uint32_t write[12] = { 0x00000008, 0x00002003, 0x00000008, 0,	    0x00005590, 0x0853b040,
					    0x0010020e, 0,	    0x00000040, 0x00100107, 0x00005590, 0x0854b000 };
	static const uint32_t inlined[9] = { 0x00000108, 0x00002003, 0x00000008, 0,	    0x00005590,
					     0x0853b100, 0x0010020e, 0,		 0x80000008 };
	static const uint32_t add[16] = { 0x00000212, 0x00002004, 0x00000008, 0,	 0x00005590, 0x0853b200,
					  0x0010020e, 0,	  0x00000000, 2,	 0,	     0,
					  0x00000008, 0x00100107, 0x00005590, 0x0854b400 };
	struct cvy_mlx5_entry e = { 0x20, 0, 1, 0x55900853b040ull, htobe32(0x0010020e) };
	uint32_t w[16] = { 0 };

	cvy_mlx5_write(w, &e, 64, htobe32(0x00100107), 0x55900854b000ull);
	for (int i = 0; i < 12; i++)
		ck_assert_uint_eq(be32toh(w[i]), write[i]);
	e.index = 1;
	e.remote = 0x55900853b100ull;
	cvy_mlx5_signal(w, &e, 0x3231454e494c4e49ull);
	for (int i = 0; i < 9; i++)
		ck_assert_uint_eq(be32toh(w[i]), inlined[i]);
	ck_assert_mem_eq(w + 9, "INLINE12", 8);
	e.index = 2;
	e.remote = 0x55900853b200ull;
	cvy_mlx5_add64(w, &e, 2, htobe32(0x00100107), 0x55900854b400ull);
	for (int i = 0; i < 16; i++)
		ck_assert_uint_eq(be32toh(w[i]), add[i]);
}

TEST(libmlx5_goes_round_its_ring)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)rig.near, 8, rig.near_mr->lkey };
	struct softmlx5_stats stats;
	uint64_t n = 140800; /* indices of 16 bits wrap twice */

	for (uint64_t i = 0; i < n; i++) {
		memcpy(rig.near, &i, 8);
		post(IBV_WR_RDMA_WRITE, i % 64 == 63 ? IBV_SEND_SIGNALED : 0, &sge, 64);
		if (i % 64 == 63)
			expect_ok(IBV_WC_RDMA_WRITE);
	}
	softmlx5_stats(&stats);
	ck_assert_uint_eq(softmlx5_found(), 0);
	ck_assert_uint_eq(stats.entries, n);
	ck_assert_uint_eq(stats.completions, n / 64);
	n--;
	ck_assert_mem_eq(rig.far + 64, &n, 8);
}

TEST(reads_come_back)
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)rig.near, 32, rig.near_mr->lkey };

	memcpy(rig.far + 128, "what the far end has is read   ", 32);
	post(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, &sge, 128);
	expect_ok(IBV_WC_RDMA_READ);
	ck_assert_mem_eq(rig.near, rig.far + 128, 32);
}

static const struct {
	const char *what;
	enum ibv_wc_status status;
} failures[] = {
	{ "bad local key", IBV_WC_LOC_PROT_ERR },	{ "behind the local region", IBV_WC_LOC_PROT_ERR },
	{ "bad remote key", IBV_WC_REM_ACCESS_ERR },	{ "behind the remote region", IBV_WC_REM_ACCESS_ERR },
	{ "region taken back", IBV_WC_REM_ACCESS_ERR }, { "silent peer", IBV_WC_RETRY_EXC_ERR },
	{ "peer in error", IBV_WC_RETRY_EXC_ERR },	{ "misaligned add", IBV_WC_REM_INV_REQ_ERR },
	{ "own error", IBV_WC_WR_FLUSH_ERR },
};

/* Then everything behind it is flushed, and the cause, which came first, was not lost. */
TEST_LOOP(failures_are_told, 0, sizeof(failures) / sizeof(failures[0]))
{
	struct ibv_sge sge = { (uint64_t)(uintptr_t)rig.near, 8, rig.near_mr->lkey };
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	unsigned at = 64;
	int opcode = IBV_WR_RDMA_WRITE;

	switch (_i) {
	case 0:
		sge.lkey ^= 1;
		break;
	case 1:
		sge.addr += RIG_BYTES - 4;
		break;
	case 2:
		rig.far_key ^= 1;
		break;
	case 3:
		at = RIG_BYTES - 4;
		break;
	case 4:
		ck_assert(!ibv_dereg_mr(rig.far_mr));
		break;
	case 5:
		softmlx5_silence(rig.far_qp->qp_num);
		break;
	case 6:
		ck_assert(!ibv_modify_qp(rig.far_qp, &error, IBV_QP_STATE));
		break;
	case 7:
		opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		at = 68;
		break;
	default:
		ck_assert(!ibv_modify_qp(rig.near_qp, &error, IBV_QP_STATE));
	}
	post(opcode, IBV_SEND_SIGNALED, &sge, at);
	post(IBV_WR_RDMA_WRITE, 0, &sge, 64);
	post(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &sge, 64);
	ck_assert_msg(rig_completion(&rig).status == failures[_i].status, "%s", failures[_i].what);
	ck_assert_int_eq(rig_completion(&rig).status, IBV_WC_WR_FLUSH_ERR); /* signalled or not */
	ck_assert_int_eq(rig_completion(&rig).status, IBV_WC_WR_FLUSH_ERR);
	ck_assert(rig_no_completion(&rig));
	ck_assert(!rig.far[0] && !memcmp(rig.far, rig.far + 1, RIG_BYTES - 1)); /* nothing was written */
	ck_assert_uint_eq(softmlx5_found(), 0);
	if (_i == 4)
		rig.far_mr = ibv_reg_mr(rig.pd, rig.far, RIG_BYTES, IBV_ACCESS_LOCAL_WRITE);
}

SUITE_MAIN(.name = "softmlx5/golden", .setup = open_rig, .teardown = close_rig)
