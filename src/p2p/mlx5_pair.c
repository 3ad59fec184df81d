/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A send queue that posters write themselves. Verbs make it, so the kernel handles addresses and states. Then it is
 * taken over: libmlx5 says where ring, record, register and completions are, and neither posts nor polls afterwards.
 * Each completion has its own place (as many as entries), so the adapter need not know which were seen.
 */
#include "queues.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mlx5.h"

static int pair_fails(const struct cvy_queue_pair *p, const char *what)
{
	return cvy_fail(p->nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s: %s: %s", p->nic->name, what, strerror(errno));
}

/* NULL: posters are threads of this process. */
static const struct cvy_queue_memory *posters(const struct cvy_queue_pair *p)
{
	return p->args.hosted ? NULL : p->nic->memory;
}

static void verbs_destroy(struct cvy_queue_pair *p)
{
	if (p->qp && p->nic->api->ibv_destroy_qp_(p->qp))
		cvy_warn("p2p", "%s: queue %x does not end", p->nic->name, p->queue.mlx5.qpn);
	if (p->cq)
		p->nic->api->ibv_destroy_cq_(p->cq);
	p->qp = NULL;
	p->cq = NULL;
}

static int verbs_create(struct cvy_queue_pair *p, uint32_t cqes)
{
	struct ibv_cq_init_attr_ex cq = { .cqe = cqes - 1,
					  .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					  .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	/* The operations are named: else libmlx5 makes room for entries four times as long as ours. */
	struct ibv_qp_init_attr_ex qp = {
		.cap = { .max_send_wr = p->args.depth, .max_send_sge = 1, .max_inline_data = 12 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
		.pd = p->nic->pd
	};
	/* Answers of adds are written to memory, not into completions. */
	struct mlx5dv_qp_init_attr mlx5 = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
					    .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(p->nic->context, &cq);

	if (!ex)
		return pair_fails(p, "no completion queue that ignores overruns");
	p->cq = ibv_cq_ex_to_cq(ex);
	qp.send_cq = qp.recv_cq = p->cq;
	p->qp = p->nic->api->mlx5dv_create_qp_(p->nic->context, &qp, &mlx5);
	return p->qp ? 0 : pair_fails(p, "no queue pair");
}

static int verbs_take_over(struct cvy_queue_pair *p, struct mlx5dv_qp *qp, struct mlx5dv_cq *cq)
{
	struct mlx5dv_obj obj = { 0 };

	memset(qp, 0, sizeof(*qp));
	memset(cq, 0, sizeof(*cq));
	obj.qp.in = p->qp;
	obj.qp.out = qp;
	obj.cq.in = p->cq;
	obj.cq.out = cq;
	if (p->nic->api->mlx5dv_init_obj_(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ))
		return pair_fails(p, "the queue pair cannot be taken over");
	if (qp->sq.stride != CVY_MLX5_BLOCK || cq->cqe_size != CVY_MLX5_BLOCK || qp->sq.wqe_cnt < p->args.depth ||
	    qp->sq.wqe_cnt > CVY_MLX5_DEPTH_MAX)
		return cvy_fail(p->nic->box, COVEY_ERR_UNSUPPORTED, -1, 0,
				"%s: %u entries of %u, %u completions of %u bytes", p->nic->name, qp->sq.wqe_cnt,
				qp->sq.stride, cq->cqe_cnt, cq->cqe_size);
	return 0;
}

/* Each entry has a place for its completion; libmlx5 decides the number of entries. */
static int verbs_open(struct cvy_queue_pair *p)
{
	struct mlx5dv_qp qp;
	struct mlx5dv_cq cq;
	int err = verbs_create(p, p->args.depth);

	if (!err)
		err = verbs_take_over(p, &qp, &cq);
	if (!err && cq.cqe_cnt < qp.sq.wqe_cnt) {
		verbs_destroy(p);
		err = verbs_create(p, qp.sq.wqe_cnt);
		if (!err)
			err = verbs_take_over(p, &qp, &cq);
	}
	if (err)
		return err;
	p->args.depth = qp.sq.wqe_cnt;
	p->ring = qp.sq.buf;
	p->record = (uint32_t *)qp.dbrec;
	p->reg = qp.bf.reg;
	p->cqes = cq.buf;
	p->ring_bytes = (size_t)qp.sq.wqe_cnt * CVY_MLX5_BLOCK;
	p->cqes_bytes = (size_t)cq.cqe_cnt * CVY_MLX5_BLOCK;
	p->queue.mlx5.qpn = p->qp->qp_num;
	p->queue.mlx5.cqe_shift = (uint32_t)__builtin_ctz(cq.cqe_cnt);
	return 0;
}

/* The posters' address of @host; whole pages around it are mapped. */
static int pair_map(struct cvy_queue_pair *p, void *host, size_t bytes, int io, void *to)
{
	const struct cvy_queue_memory *m = posters(p);
	uint8_t *first = (uint8_t *)((uintptr_t)host & ~(uintptr_t)(CVY_PAGE - 1));
	size_t before = (size_t)((uint8_t *)host - first);
	char why[160] = "";
	void *at;
	int err;

	if (!m) {
		*(void **)to = host;
		return 0;
	}
	bytes = (before + bytes + CVY_PAGE - 1) & ~(size_t)(CVY_PAGE - 1);
	err = m->map(m->ctx, first, bytes, io, &at, why, sizeof(why));
	if (err)
		return cvy_fail(p->nic->box, err, -1, 0, "%s: %s of queue %x is out of the GPU's reach: %s",
				p->nic->name, io ? "the register" : "memory", p->queue.mlx5.qpn, why);
	p->mapped[p->nmapped].host = first;
	p->mapped[p->nmapped++].bytes = bytes;
	*(uint8_t **)to = (uint8_t *)at + before;
	return 0;
}

static int pair_words(struct cvy_queue_pair *p)
{
	const struct cvy_queue_memory *m = posters(p);

	if (m)
		return m->words(m->ctx, sizeof(*p->queue.words), (void **)&p->queue.words);
	p->queue.words = aligned_alloc(64, sizeof(*p->queue.words));
	if (!p->queue.words)
		return COVEY_ERR_NOMEM;
	memset(p->queue.words, 0, sizeof(*p->queue.words));
	return 0;
}

static int pair_show(struct cvy_queue_pair *p)
{
	struct cvy_queue_mlx5 *m = &p->queue.mlx5;
	int err = pair_words(p);

	if (!err)
		err = pair_map(p, p->ring, p->ring_bytes, 0, &m->entries);
	if (!err)
		err = pair_map(p, p->cqes, p->cqes_bytes, 0, &m->cqes);
	if (!err)
		err = pair_map(p, p->record, 8, 0, &m->record);
	if (err)
		return err;
	if (p->args.bells)
		return cvy_bells_add(p->args.bells, p->reg, &m->bell);
	return pair_map(p, p->reg, 8, 1, &m->bell);
}

int cvy_pair_open(struct cvy_nic *nic, const struct cvy_pair_args *args, struct cvy_queue_pair **out)
{
	struct cvy_queue_pair *p;
	int err;

	if (args->depth > CVY_MLX5_DEPTH_MAX || (args->depth & (args->depth - 1)) || !args->abort)
		return cvy_fail(nic->box, COVEY_ERR_INVAL, -1, 0, "a queue of %u entries", args->depth);
	p = calloc(1, sizeof(*p));
	if (!p)
		return COVEY_ERR_NOMEM;
	p->nic = nic;
	p->args = *args;
	if (!p->args.depth)
		p->args.depth = CVY_PAIR_DEPTH;
	p->args.timeout = args->timeout ? args->timeout : 14;
	p->args.retry = args->retry ? args->retry : 3;
	p->psn = nic->psn;
	err = args->mode == CVY_PAIR_DEVX ? cvy_devx_open(p) : verbs_open(p);
	if (!err)
		err = pair_show(p);
	if (err) {
		cvy_pair_close(p);
		return err;
	}
	p->queue.kind = CVY_QUEUE_MLX5;
	p->queue.depth = p->args.depth;
	p->queue.wait_ticks = args->wait_ticks;
	p->queue.abort = args->abort;
	p->queue.local_bytes = args->local->bytes;
	p->queue.mlx5.local = args->local->address;
	p->queue.mlx5.lkey_be = cvy_q_be32(args->local->mr->lkey);
	p->queue.mlx5.sink = nic->sink->address;
	p->queue.mlx5.sink_lkey_be = cvy_q_be32(nic->sink->mr->lkey);
	*out = p;
	return 0;
}

void cvy_pair_name(const struct cvy_queue_pair *p, struct cvy_pair_name *name)
{
	*name = (struct cvy_pair_name){ .qpn = p->queue.mlx5.qpn,
					.psn = p->psn,
					.rkey = p->args.window->mr->rkey,
					.lid = p->nic->lid,
					.address = p->args.window->address,
					.bytes = p->args.window->bytes,
					.ethernet = (uint8_t)p->nic->ethernet };
	memcpy(name->gid, p->nic->gid, sizeof(name->gid));
}

static int verbs_connect(struct cvy_queue_pair *p, const struct cvy_pair_name *far)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = (uint8_t)p->nic->port,
				 .qp_access_flags =
					 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

	if (p->nic->api->ibv_modify_qp_(p->qp, &a,
					IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return pair_fails(p, "the queue does not initialise");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = (enum ibv_mtu)p->nic->mtu,
				  .dest_qp_num = far->qpn,
				  .rq_psn = far->psn,
				  .max_dest_rd_atomic = CVY_PAIR_READS,
				  .min_rnr_timer = 12,
				  .ah_attr = { .dlid = (uint16_t)far->lid, .port_num = (uint8_t)p->nic->port } };
	a.ah_attr.is_global = (uint8_t)p->nic->ethernet;
	a.ah_attr.grh.hop_limit = CVY_PAIR_HOPS;
	a.ah_attr.grh.sgid_index = (uint8_t)p->nic->gid_index;
	memcpy(a.ah_attr.grh.dgid.raw, far->gid, 16);
	if (p->nic->api->ibv_modify_qp_(p->qp, &a,
					IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return pair_fails(p, "no way to the far end");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				  .timeout = (uint8_t)p->args.timeout,
				  .retry_cnt = (uint8_t)p->args.retry,
				  .rnr_retry = 6,
				  .sq_psn = p->psn,
				  .max_rd_atomic = CVY_PAIR_READS };
	if (p->nic->api->ibv_modify_qp_(p->qp, &a,
					IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return pair_fails(p, "the queue does not send");
	return 0;
}

int cvy_pair_connect(struct cvy_queue_pair *p, const struct cvy_pair_name *far)
{
	int err = p->args.mode == CVY_PAIR_DEVX ? cvy_devx_connect(p, far) : verbs_connect(p, far);

	if (err)
		return err;
	p->far = *far;
	p->queue.remote_bytes = far->bytes;
	p->queue.mlx5.remote = far->address;
	p->queue.mlx5.rkey_be = cvy_q_be32(far->rkey);
	return 0;
}

void cvy_pair_queue(const struct cvy_queue_pair *p, struct cvy_queue *queue)
{
	*queue = p->queue;
}

int cvy_pair_check(struct cvy_queue_pair *p, int rank)
{
	const struct cvy_queue_memory *m = posters(p);
	uint64_t status = 0;
	int err;

	if (m) {
		err = m->read(m->ctx, p->queue.words, offsetof(struct cvy_queue_words, status), sizeof(status),
			      &status);
		if (err)
			return err;
	} else {
		status = cvy_q_load(&p->queue.words->status);
	}
	if (!status)
		return 0;
	return cvy_fail(p->nic->box, COVEY_ERR_PEER, rank, 0, "queue %x to rank %d failed: %s (%#x)", p->queue.mlx5.qpn,
			rank, cvy_syndrome(status), (unsigned)status);
}

int cvy_pair_stop(struct cvy_queue_pair *p)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	if (p->args.mode == CVY_PAIR_DEVX)
		return cvy_devx_stop(p);
	return p->nic->api->ibv_modify_qp_(p->qp, &a, IBV_QP_STATE) ? pair_fails(p, "the queue does not stop") : 0;
}

/* The adapter releases the queue first, then the memory that it wrote into is freed. */
void cvy_pair_close(struct cvy_queue_pair *p)
{
	const struct cvy_queue_memory *m;

	if (!p)
		return;
	m = posters(p);
	if (p->args.bells && p->queue.mlx5.bell)
		cvy_bells_remove(p->args.bells, p->queue.mlx5.bell);
	if (p->args.mode == CVY_PAIR_DEVX)
		cvy_devx_close(p);
	verbs_destroy(p);
	for (; p->nmapped; p->nmapped--)
		m->unmap(m->ctx, p->mapped[p->nmapped - 1].host, p->mapped[p->nmapped - 1].bytes);
	if (m && p->queue.words)
		m->words_free(m->ctx, p->queue.words);
	else
		free(p->queue.words);
	cvy_devx_free(p);
	free(p);
}

static uint32_t newest(const struct cvy_queue_pair *p)
{
	return cvy_q_load32((const uint32_t *)(void *)(p->cqes + CVY_MLX5_CQE_TAIL));
}

uint64_t cvy_pair_status(const struct cvy_queue_pair *p)
{
	if (CVY_MLX5_CQE_OPCODE(newest(p)) != CVY_MLX5_CQE_FAILED)
		return 0;
	return p->cqes[CVY_MLX5_CQE_SYNDROME] ? p->cqes[CVY_MLX5_CQE_SYNDROME] : 255;
}

/* The last entry of each call asks for a completion, and the poster has rung for it. */
int cvy_pair_idle(const struct cvy_queue_pair *p)
{
	uint16_t rung = (uint16_t)cvy_q_be32(cvy_q_load32(&p->record[1]));
	uint32_t tail = newest(p);

	switch (CVY_MLX5_CQE_OPCODE(tail)) {
	case CVY_MLX5_CQE_NONE:
		return !rung;
	case CVY_MLX5_CQE_OK:
		return rung == (uint16_t)(CVY_MLX5_CQE_COUNTER(tail) + 1);
	}
	return 1;
}

size_t cvy_pair_bytes(const struct cvy_queue_pair *p)
{
	return p->memory_bytes ? p->memory_bytes : p->ring_bytes + p->cqes_bytes + CVY_MLX5_BLOCK;
}
