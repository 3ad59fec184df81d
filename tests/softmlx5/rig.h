/* SPDX-License-Identifier: Apache-2.0 */
/* A pair of connected queues on the software adapter, made by plain verbs; the second end only receives. */
#ifndef RIG_H
#define RIG_H

#include <check.h>
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <string.h>

#include "softmlx5.h"

#define RIG_BYTES 65536
#define RIG_BOUND_NS 30000000000ull

struct rig {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *near_mr, *far_mr;
	struct ibv_cq *cq;
	struct ibv_qp *near_qp, *far_qp;
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp ring;
	uint8_t *near, *far;
	uint32_t far_key;
};

void rig_open(struct rig *r, unsigned depth);
void rig_close(struct rig *r);
struct ibv_context *rig_context(void);
struct ibv_wc rig_completion(struct rig *r); /* the next one, within RIG_BOUND_NS */
int rig_no_completion(struct rig *r);
uint8_t *rig_slot(struct rig *r, unsigned index);
void rig_ring(struct rig *r, uint16_t next); /* record and doorbell */
uint64_t rig_now(void);

#endif
