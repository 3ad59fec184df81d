/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's side of libibverbs: the ioctl of /dev/infiniband/uverbs0, as far as libmlx5 needs it for reliable
 * queues, regions, completions and DEVX. What is not here is refused as by a kernel that is too old. No receive
 * queues, no completion channels.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include "state.h"

#define PD_NUMBER 0x11
#define CALL(object, method) ((uint32_t)(object) << 16 | (uint32_t)(method))
#define PORT_ETHERNET 2

enum { ATTR_STATE = 1, ATTR_ACCESS = 8, ATTR_TIMEOUT = 1 << 9, ATTR_RETRIES = 1 << 10, ATTR_RQ_PSN = 1 << 12 };
enum { ATTR_SQ_PSN = 1 << 16, ATTR_FAR = 1 << 20 };

static struct ib_uverbs_attr *attr(struct ib_uverbs_ioctl_hdr *h, int id)
{
	for (int i = 0; i < h->num_attrs; i++)
		if (h->attrs[i].attr_id == id)
			return &h->attrs[i];
	return NULL;
}

static const void *input(struct ib_uverbs_attr *a)
{
	if (!a)
		return NULL;
	return a->len <= 8 ? (const void *)&a->data : (const void *)(uintptr_t)a->data;
}

static uint64_t input64(struct ib_uverbs_attr *a)
{
	uint64_t v = 0;

	if (a)
		memcpy(&v, input(a), a->len < 8 ? a->len : 8);
	return v;
}

/* Handles and descriptors have no length. */
static struct handle *handle_of(const struct ib_uverbs_attr *a, int kind)
{
	return a ? handle_get(a->data, kind) : NULL;
}

static void output(struct ib_uverbs_attr *a, const void *from, size_t bytes)
{
	if (!a)
		return;
	memcpy((void *)(uintptr_t)a->data, from, bytes < a->len ? bytes : a->len);
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

static int fail(int error)
{
	errno = error;
	return -1;
}

static int hand_out(struct ib_uverbs_attr *a, int kind, int index)
{
	int handle = index < 0 || !a ? -1 : handle_add(kind, (uint32_t)index);

	if (handle < 0)
		return fail(ENOMEM);
	a->data = (uint64_t)handle;
	return 0;
}

/* SOFTMLX5_LACKS=devx,memory: what the kernel refuses, as where it is not built in, or cannot pin what a GPU's driver maps. */
static int kernel_lacks(const char *what)
{
	const char *list = getenv("SOFTMLX5_LACKS");

	return list && strstr(list, what);
}

static int query_device(struct ib_uverbs_attr *out, int extended)
{
	struct ib_uverbs_ex_query_device_resp r = { .base = { .fw_ver = 28ull << 32 | 40 << 16,
							      .node_guid = htobe64(1),
							      .vendor_id = 0x15b3,
							      .vendor_part_id = 4129,
							      .max_mr_size = ~0ull,
							      .page_size_cap = ~0xfffull,
							      .max_qp = QUEUES,
							      .max_qp_wr = 32768,
							      .max_sge = 30,
							      .max_cq = QUEUES,
							      .max_cqe = 1 << 20,
							      .max_mr = REGIONS,
							      .max_pd = 64,
							      .max_qp_rd_atom = 16,
							      .max_qp_init_rd_atom = 16,
							      .atomic_cap = 1,
							      .phys_port_cnt = 1 },
						    .response_length = sizeof(r) };

	if (!out)
		return fail(ENOSPC);
	output(out, &r, extended ? sizeof(r) : sizeof(r.base));
	return 0;
}

static int reg_mr(const struct ib_uverbs_reg_mr *m, struct ib_uverbs_attr *out)
{
	struct ib_uverbs_reg_mr_resp r = { 0 };
	uint32_t i;

	if (m->length > PAGE_BYTES && kernel_lacks("memory"))
		return fail(EFAULT);
	i = region_add(m->start, m->hca_va, m->length, m->access_flags, PD_NUMBER);
	if (!i)
		return fail(ENOMEM);
	r.mr_handle = (uint32_t)handle_add(HANDLE_REGION, i);
	r.lkey = r.rkey = adapter.segment->region[i].key;
	output(out, &r, sizeof(r));
	return 0;
}

static void end_handle(uint64_t handle)
{
	struct handle *h = handle < HANDLES ? &adapter.handle[handle] : NULL;

	if (!h)
		return;
	if (h->kind == HANDLE_REGION)
		region_remove(h->index);
	else if (h->kind == HANDLE_CQ)
		adapter.cq[h->index].live = 0;
	else if (h->kind == HANDLE_QUEUE && queue_of(h->index)) {
		adapter_hear(); /* what was rung for it in time is no stranger's */
		queue_remove(queue_of(h->index));
	} else if (h->kind == HANDLE_UAR)
		uar_remove(h->index);
	if (h->kind == HANDLE_UMEM) {
		adapter.stats.umem_bytes -= adapter.umem[h->index].bytes;
		adapter.umem[h->index].bytes = 0;
	}
	h->kind = HANDLE_NONE;
}

static int modify_state(struct queue *q, const struct ib_uverbs_modify_qp *m)
{
	static const uint8_t from_verbs[] = { QUEUE_RESET, QUEUE_INIT, QUEUE_RTR, QUEUE_RTS, 0, 0, QUEUE_ERROR };
	uint8_t state = m->qp_state < sizeof(from_verbs) ? from_verbs[m->qp_state] : 0;
	uint32_t now = q->shared->state;

	if (!state)
		return fail(EINVAL);
	if (state == QUEUE_ERROR) {
		adapter_error(q);
		return 0;
	}
	if (state == QUEUE_RESET)
		q->picked = q->done = 0;
	else if (state != now && state != now + 1)
		return fail(EINVAL);
	q->shared->state = state;
	return 0;
}

static int modify_qp(const struct ib_uverbs_modify_qp *m)
{
	struct handle *h = handle_get(m->qp_handle, HANDLE_QUEUE);
	struct queue *q = h ? queue_of(h->index) : NULL;

	if (!q)
		return fail(EINVAL);
	if (m->attr_mask & ATTR_ACCESS) {
		q->shared->access = m->qp_access_flags;
		q->shared->atomic_mode = 1;
	}
	if (m->attr_mask & ATTR_FAR)
		q->shared->far = m->dest_qp_num;
	if (m->attr_mask & ATTR_TIMEOUT)
		q->timeout = m->timeout;
	if (m->attr_mask & ATTR_RETRIES)
		q->retries = m->retry_cnt;
	if (m->attr_mask & ATTR_RQ_PSN)
		q->shared->recv_psn = m->rq_psn & 0xffffff;
	if (m->attr_mask & ATTR_SQ_PSN)
		q->shared->send_psn = m->sq_psn & 0xffffff;
	return m->attr_mask & ATTR_STATE ? modify_state(q, m) : 0;
}

/* Calls of the older interface, wrapped. */
static int invoke_write(struct ib_uverbs_ioctl_hdr *h)
{
	uint32_t command = (uint32_t)input64(attr(h, UVERBS_ATTR_WRITE_CMD));
	struct ib_uverbs_attr *in = attr(h, UVERBS_ATTR_CORE_IN), *out = attr(h, UVERBS_ATTR_CORE_OUT);
	struct ib_uverbs_attr *driver_out = attr(h, UVERBS_ATTR_UHW_OUT);
	static const struct mlx5_ib_alloc_pd_resp pdn = { .pdn = PD_NUMBER };
	struct ib_uverbs_alloc_pd_resp pd = { 0 };
	struct mlx5_ib_create_ah_resp ah = { .response_length = sizeof(ah), .dmac = { 2, 0, 0, 0, 0, 1 } };
	struct ib_uverbs_create_ah_resp ah_handle = { .ah_handle = 1 };

	if (command == IB_USER_VERBS_CMD_QUERY_DEVICE)
		return query_device(out, 0);
	if (!in)
		return fail(ENOSPC);
	switch (command & ~(uint32_t)IB_USER_VERBS_CMD_FLAG_EXTENDED) {
	case IB_USER_VERBS_EX_CMD_QUERY_DEVICE:
		return query_device(out, 1);
	case IB_USER_VERBS_CMD_ALLOC_PD:
		pd.pd_handle = (uint32_t)handle_add(HANDLE_PD, PD_NUMBER);
		output(out, &pd, sizeof(pd));
		output(driver_out, &pdn, sizeof(pdn));
		return 0;
	case IB_USER_VERBS_CMD_DEALLOC_PD:
		end_handle(((const struct ib_uverbs_dealloc_pd *)input(in))->pd_handle);
		return 0;
	case IB_USER_VERBS_CMD_REG_MR:
		return reg_mr(input(in), out);
	case IB_USER_VERBS_CMD_DEREG_MR:
		end_handle(((const struct ib_uverbs_dereg_mr *)input(in))->mr_handle);
		return 0;
	case IB_USER_VERBS_CMD_CREATE_AH:
		output(out, &ah_handle, sizeof(ah_handle));
		output(driver_out, &ah, sizeof(ah));
		return 0;
	case IB_USER_VERBS_CMD_DESTROY_AH:
		return 0;
	case IB_USER_VERBS_CMD_MODIFY_QP:
		return modify_qp(input(in));
	}
	return fail(EOPNOTSUPP);
}

static int get_context(struct ib_uverbs_ioctl_hdr *h)
{
	struct mlx5_ib_alloc_ucontext_resp r = { .qp_tab_size = 1 << 18,
						 .bf_reg_size = 512,
						 .cache_line_size = 64,
						 .max_sq_desc_sz = 1024,
						 .max_rq_desc_sz = 512,
						 .max_send_wqebb = 32768,
						 .max_recv_wr = 32768,
						 .max_srq_recv_wr = 32767,
						 .num_ports = 1,
						 .response_length = sizeof(r),
						 .cqe_version = 1,
						 .log_uar_size = 12,
						 .num_uars_per_page = 1,
						 .cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
						 .num_dyn_bfregs = 1024 };
	const struct mlx5_ib_alloc_ucontext_req_v2 *asks = input(attr(h, UVERBS_ATTR_UHW_IN));
	uint32_t vectors = 1;
	uint64_t none = 0;

	if (asks && (asks->flags & MLX5_IB_ALLOC_UCTX_DEVX) && kernel_lacks("devx"))
		return fail(EPERM);

	output(attr(h, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS), &vectors, 4);
	output(attr(h, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT), &none, 8);
	output(attr(h, UVERBS_ATTR_UHW_OUT), &r, sizeof(r));
	return 0;
}

static int query_port(struct ib_uverbs_ioctl_hdr *h)
{
	struct ib_uverbs_query_port_resp_ex r = { .legacy_resp = { .state = 4,
								   .max_mtu = 5,
								   .active_mtu = 5,
								   .gid_tbl_len = 1,
								   .max_msg_sz = 1u << 30,
								   .pkey_tbl_len = 1,
								   .active_width = 2,
								   .active_speed = 64,
								   .phys_state = 5,
								   .link_layer = PORT_ETHERNET } };

	output(attr(h, UVERBS_ATTR_QUERY_PORT_RESP), &r, sizeof(r));
	return 0;
}

static int cq_create(struct ib_uverbs_ioctl_hdr *h)
{
	const struct mlx5_ib_create_cq *m = input(attr(h, UVERBS_ATTR_UHW_IN));
	uint32_t want = (uint32_t)input64(attr(h, UVERBS_ATTR_CREATE_CQ_CQE)), n = 1;
	struct mlx5_ib_create_cq_resp driver = { 0 };
	struct completions c = { 0 };
	int i;

	if (attr(h, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL))
		return fail(EOPNOTSUPP);
	while (n < want + 1) /* as the driver */
		n *= 2;
	c.ring = (uint8_t *)(uintptr_t)m->buf_addr;
	c.record = (uint32_t *)(uintptr_t)m->db_addr;
	c.n = n;
	c.ignore_overrun = !!(input64(attr(h, UVERBS_ATTR_CREATE_CQ_FLAGS)) & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN);
	i = cq_add(&c);
	n--;
	driver.cqn = (uint32_t)i;
	output(attr(h, UVERBS_ATTR_CREATE_CQ_RESP_CQE), &n, 4);
	output(attr(h, UVERBS_ATTR_UHW_OUT), &driver, sizeof(driver));
	return hand_out(attr(h, UVERBS_ATTR_CREATE_CQ_HANDLE), HANDLE_CQ, i);
}

static int qp_create(struct ib_uverbs_ioctl_hdr *h)
{
	const struct mlx5_ib_create_qp *m = input(attr(h, UVERBS_ATTR_UHW_IN));
	struct handle *cq = handle_of(attr(h, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE), HANDLE_CQ);
	struct mlx5_ib_create_qp_resp driver = { .bfreg_index = m->bfreg_index };
	struct queue *q = cq ? queue_add(PD_NUMBER) : NULL;

	if (!q)
		return fail(cq ? ENOMEM : EINVAL);
	q->depth = m->sq_wqe_count;
	q->under_way = calloc(q->depth ? q->depth : 1, sizeof(*q->under_way));
	q->cq = cq->index;
	q->user_index = m->uidx;
	q->record = (uint32_t *)(uintptr_t)m->db_addr + 1;
	q->ring = (uint8_t *)(uintptr_t)m->buf_addr + ((uint64_t)m->rq_wqe_count << m->rq_wqe_shift);
	output(attr(h, UVERBS_ATTR_CREATE_QP_RESP_CAP), input(attr(h, UVERBS_ATTR_CREATE_QP_CAP)),
	       sizeof(struct ib_uverbs_qp_cap));
	output(attr(h, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM), &q->shared->qpn, 4);
	output(attr(h, UVERBS_ATTR_UHW_OUT), &driver, sizeof(driver));
	return hand_out(attr(h, UVERBS_ATTR_CREATE_QP_HANDLE), HANDLE_QUEUE, (int)q->shared->qpn);
}

static int uar_alloc(struct ib_uverbs_ioctl_hdr *h)
{
	int i = uar_add();
	uint64_t offset = (uint64_t)i * PAGE_BYTES;
	uint32_t bytes = PAGE_BYTES, page = (uint32_t)i;

	if (i < 0)
		return fail(ENOMEM);
	output(attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), &offset, 8);
	output(attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), &bytes, 4);
	output(attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), &page, 4);
	return hand_out(attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE), HANDLE_UAR, i);
}

static int umem_reg(struct ib_uverbs_ioctl_hdr *h)
{
	struct umem m = { input64(attr(h, MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR)),
			  input64(attr(h, MLX5_IB_ATTR_DEVX_UMEM_REG_LEN)) };
	uint32_t i = 1;

	while (i < QUEUES && adapter.umem[i].bytes)
		i++;
	if (i == QUEUES || !m.bytes)
		return fail(m.bytes ? ENOMEM : EINVAL);
	adapter.umem[i] = m;
	adapter.stats.umem_bytes += m.bytes;
	output(attr(h, MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID), &i, 4);
	return hand_out(attr(h, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE), HANDLE_UMEM, (int)i);
}

static int dmabuf_reg(struct ib_uverbs_ioctl_hdr *h)
{
	uint64_t offset = input64(attr(h, UVERBS_ATTR_REG_DMABUF_MR_OFFSET));
	uint64_t bytes = input64(attr(h, UVERBS_ATTR_REG_DMABUF_MR_LENGTH));
	int fd = (int)attr(h, UVERBS_ATTR_REG_DMABUF_MR_FD)->data;
	uint8_t *base = mmap(NULL, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint32_t i;

	if (base == MAP_FAILED)
		return fail(EOPNOTSUPP);
	i = region_add((uint64_t)(uintptr_t)base + offset, input64(attr(h, UVERBS_ATTR_REG_DMABUF_MR_IOVA)), bytes,
		       (uint32_t)input64(attr(h, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)), PD_NUMBER);
	if (!i)
		return fail(ENOMEM);
	output(attr(h, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY), &adapter.segment->region[i].key, 4);
	output(attr(h, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY), &adapter.segment->region[i].key, 4);
	return hand_out(attr(h, UVERBS_ATTR_REG_DMABUF_MR_HANDLE), HANDLE_REGION, (int)i);
}

static int devx(struct ib_uverbs_ioctl_hdr *h, int in_id, int out_id, int handle_id)
{
	struct ib_uverbs_attr *in = attr(h, in_id), *out = attr(h, out_id);
	uint32_t index = 0;
	int kind = HANDLE_NONE, err;

	if (!in || !out)
		return fail(EINVAL);
	out->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
	err = firmware(input(in), in->len, (void *)(uintptr_t)out->data, out->len, &kind, &index);
	if (err)
		return fail(err);
	return handle_id >= 0 ? hand_out(attr(h, handle_id), kind, (int)index) : 0;
}

/* The lowest number, of the driver's attributes or of all, is the handle. The answer says how many events there were. */
static int destroy(struct ib_uverbs_ioctl_hdr *h)
{
	static const struct ib_uverbs_destroy_cq_resp none;
	uint32_t id = CALL(h->object_id, h->method_id);
	struct ib_uverbs_attr *handle = attr(h, h->object_id >> UVERBS_ID_NS_SHIFT ? 1 << UVERBS_ID_NS_SHIFT : 0);

	if (id == CALL(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY))
		output(attr(h, UVERBS_ATTR_DESTROY_QP_RESP), &none, 4);
	if (id == CALL(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY))
		output(attr(h, UVERBS_ATTR_DESTROY_CQ_RESP), &none, sizeof(none));
	if (!handle)
		return fail(EINVAL);
	end_handle(handle->data);
	return 0;
}

int uverbs_ioctl(void *header)
{
	struct ib_uverbs_ioctl_hdr *h = header;
	uint32_t eqn = 3;

	adapter.calls++;
	if (adapter.plan.refuse && !--adapter.plan.refuse)
		return fail(ENOMEM);
	switch (CALL(h->object_id, h->method_id)) {
	case CALL(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE):
		return invoke_write(h);
	case CALL(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT):
		return get_context(h);
	case CALL(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT):
		return query_port(h);
	case CALL(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC):
		attr(h, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data_s64 = eventfd(0, EFD_CLOEXEC);
		return 0;
	case CALL(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE):
		return cq_create(h);
	case CALL(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE):
		return qp_create(h);
	case CALL(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR):
		return dmabuf_reg(h);
	case CALL(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY):
	case CALL(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY):
	case CALL(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY):
	case CALL(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY):
	case CALL(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG):
	case CALL(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY):
		return destroy(h);
	case CALL(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC):
		return uar_alloc(h);
	case CALL(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG):
		return umem_reg(h);
	case CALL(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_EQN):
		output(attr(h, MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN), &eqn, 4);
		return 0;
	case CALL(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER):
		return devx(h, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, -1);
	case CALL(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE):
		return devx(h, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT,
			    MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);
	case CALL(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY):
		return devx(h, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, -1);
	}
	if (getenv("SOFTMLX5_TRACE"))
		fprintf(stderr, "softmlx5: object %x method %x is not known\n", h->object_id, h->method_id);
	return fail(EPROTONOSUPPORT);
}
