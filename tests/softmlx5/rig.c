/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs by the book; no call of the library under test. */
#include "rig.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

uint64_t rig_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

struct ibv_context *rig_context(void)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *context;
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	ck_assert_ptr_nonnull(list);
	ck_assert_int_eq(n, 1);
	ck_assert(mlx5dv_is_supported(list[0]));
	context = mlx5dv_open_device(list[0], &attr);
	ck_assert_ptr_nonnull(context);
	ibv_free_device_list(list);
	return context;
}

static struct ibv_qp *queue(struct rig *r, unsigned depth, struct ibv_qp_ex **ex)
{
	struct ibv_qp_init_attr_ex a = { .send_cq = r->cq,
					 .recv_cq = r->cq,
					 .cap = { .max_send_wr = depth, .max_send_sge = 1, .max_inline_data = 12 },
					 .qp_type = IBV_QPT_RC,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					 .pd = r->pd,
					 .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
							   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };
	struct ibv_qp *qp = ibv_create_qp_ex(r->context, &a);

	ck_assert_msg(qp != NULL, "no queue: %s", strerror(errno));
	if (ex)
		*ex = ibv_qp_to_qp_ex(qp);
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t far)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags =
					 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

	ck_assert(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_4096,
				  .dest_qp_num = far,
				  .rq_psn = 0x77,
				  .max_dest_rd_atomic = 4,
				  .min_rnr_timer = 12,
				  .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 } };
	ck_assert(!ibv_modify_qp(qp, &a,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				  .timeout = 10,
				  .retry_cnt = 3,
				  .rnr_retry = 7,
				  .sq_psn = 0x77,
				  .max_rd_atomic = 4 };
	ck_assert(!ibv_modify_qp(qp, &a,
				 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC));
}

void rig_open(struct rig *r, unsigned depth)
{
	struct mlx5dv_obj o = { 0 };

	memset(r, 0, sizeof(*r));
	r->context = rig_context();
	r->pd = ibv_alloc_pd(r->context);
	r->near = aligned_alloc(4096, RIG_BYTES);
	r->far = aligned_alloc(4096, RIG_BYTES);
	memset(r->near, 0, RIG_BYTES);
	memset(r->far, 0, RIG_BYTES);
	r->near_mr = ibv_reg_mr(r->pd, r->near, RIG_BYTES, IBV_ACCESS_LOCAL_WRITE);
	r->far_mr = ibv_reg_mr(r->pd, r->far, RIG_BYTES,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC);
	ck_assert(r->near_mr && r->far_mr);
	r->far_key = r->far_mr->rkey;
	r->cq = ibv_create_cq(r->context, 1023, NULL, NULL, 0);
	ck_assert_ptr_nonnull(r->cq);
	r->near_qp = queue(r, depth, &r->ex);
	r->far_qp = queue(r, depth, NULL);
	connect_to(r->near_qp, r->far_qp->qp_num);
	connect_to(r->far_qp, r->near_qp->qp_num);
	o.qp.in = r->near_qp;
	o.qp.out = &r->ring;
	ck_assert(!mlx5dv_init_obj(&o, MLX5DV_OBJ_QP));
}

void rig_close(struct rig *r)
{
	ck_assert(!ibv_destroy_qp(r->near_qp));
	ck_assert(!ibv_destroy_qp(r->far_qp));
	ck_assert(!ibv_destroy_cq(r->cq));
	ck_assert(!ibv_dereg_mr(r->near_mr));
	ck_assert(!ibv_dereg_mr(r->far_mr));
	ck_assert(!ibv_dealloc_pd(r->pd));
	ck_assert(!ibv_close_device(r->context));
	free(r->near);
	free(r->far);
}

struct ibv_wc rig_completion(struct rig *r)
{
	uint64_t since = rig_now();
	struct ibv_wc wc = { 0 };
	int n;

	do {
		n = ibv_poll_cq(r->cq, 1, &wc);
		if (!n)
			sched_yield();
	} while (!n && rig_now() - since < RIG_BOUND_NS);
	ck_assert_int_eq(n, 1);
	return wc;
}

int rig_no_completion(struct rig *r)
{
	struct ibv_wc wc;

	return ibv_poll_cq(r->cq, 1, &wc) == 0;
}

uint8_t *rig_slot(struct rig *r, unsigned index)
{
	return (uint8_t *)r->ring.sq.buf + (size_t)(index & (r->ring.sq.wqe_cnt - 1)) * 64;
}

void rig_ring(struct rig *r, uint16_t next)
{
	uint32_t bell[2] = { htobe32((uint32_t)next << 8), htobe32(r->near_qp->qp_num << 8) };
	uint64_t value;

	memcpy(&value, bell, 8);
	__atomic_store_n(&r->ring.dbrec[1], htobe32(next), __ATOMIC_SEQ_CST);
	__atomic_store_n((uint64_t *)r->ring.bf.reg, value, __ATOMIC_SEQ_CST);
}
