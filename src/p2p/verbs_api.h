/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of libibverbs and librdmacm that we make, as one table. It is filled by dlopen, so that one package runs on
 * machines without these libraries, or by a test with its own calls.
 */
#ifndef CVY_VERBS_API_H
#define CVY_VERBS_API_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>

/* X(library (VERBS, CM), return type, name, arguments): symbols of the libraries */
#define CVY_VERBS_CALLS(X) \
	X(CM, struct rdma_event_channel *, rdma_create_event_channel, (void)) \
	X(CM, void, rdma_destroy_event_channel, (struct rdma_event_channel *)) \
	X(CM, int, rdma_create_id, (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space)) \
	X(CM, int, rdma_destroy_id, (struct rdma_cm_id *)) \
	X(CM, int, rdma_bind_addr, (struct rdma_cm_id *, struct sockaddr *)) \
	X(CM, int, rdma_listen, (struct rdma_cm_id *, int)) \
	X(CM, __be16, rdma_get_src_port, (struct rdma_cm_id *)) \
	X(CM, int, rdma_resolve_addr, (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int)) \
	X(CM, int, rdma_resolve_route, (struct rdma_cm_id *, int)) \
	X(CM, int, rdma_set_option, (struct rdma_cm_id *, int, int, void *, size_t)) \
	X(CM, int, rdma_create_qp, (struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *)) \
	X(CM, void, rdma_destroy_qp, (struct rdma_cm_id *)) \
	X(CM, int, rdma_connect, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	X(CM, int, rdma_accept, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	X(CM, int, rdma_reject, (struct rdma_cm_id *, const void *, uint8_t)) \
	X(CM, int, rdma_get_cm_event, (struct rdma_event_channel *, struct rdma_cm_event **)) \
	X(CM, int, rdma_ack_cm_event, (struct rdma_cm_event *)) \
	X(VERBS, int, ibv_fork_init, (void)) \
	X(VERBS, const char *, ibv_get_device_name, (struct ibv_device *)) \
	X(VERBS, int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *)) \
	X(VERBS, int, ibv_query_port, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *)) \
	X(VERBS, struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *)) \
	X(VERBS, int, ibv_dealloc_pd, (struct ibv_pd *)) \
	X(VERBS, struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int)) \
	X(VERBS, int, ibv_dereg_mr, (struct ibv_mr *)) \
	X(VERBS, struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *)) \
	X(VERBS, int, ibv_destroy_comp_channel, (struct ibv_comp_channel *)) \
	X(VERBS, struct ibv_cq *, ibv_create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	X(VERBS, int, ibv_destroy_cq, (struct ibv_cq *)) \
	X(VERBS, int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	X(VERBS, void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int)) \
	X(VERBS, int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	X(VERBS, const char *, ibv_wc_status_str, (enum ibv_wc_status))

struct cvy_verbs_api {
#define CVY_VERBS_FIELD(library, type, name, args) type(*name) args;
	CVY_VERBS_CALLS(CVY_VERBS_FIELD)
#undef CVY_VERBS_FIELD
	/* inline functions of the header, not symbols */
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *wc);
	int (*notify_cq)(struct ibv_cq *cq, int solicited_only);
};

/* The table of the libraries on this machine, kept for the life of the process. NULL: @why names the missing one. */
const struct cvy_verbs_api *cvy_verbs_load(char *why, size_t bytes);

#endif
