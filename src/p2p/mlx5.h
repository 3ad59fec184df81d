/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files about mlx5 pairs. */
#ifndef CVY_MLX5_H
#define CVY_MLX5_H

#ifdef CVY_HAVE_MLX5 /* its headers are there */

#include "mlx5_api.h"
#include "queues.h"

#define CVY_PAGE 4096u
#define CVY_PAIR_READS 4 /* adds under way at the far end */
#define CVY_PAIR_HOPS 64

struct cvy_uar { /* a register for doorbells; libmlx5 gives out each of a page's by itself */
	struct mlx5dv_devx_uar *uar;
	int used, mapped; /* by a pair; for posters, until the end */
	struct cvy_uar *next;
};

struct cvy_nic {
	const struct cvy_mlx5_api *api;
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t pdn, lid, psn;
	int port, ethernet, gid_index, mtu;
	uint8_t gid[16];
	int devx; /* 0: not tried, 1: works, else the error */
	char name[64];
	const struct cvy_queue_memory *memory;
	struct cvy_errbox *box;
	struct cvy_uar *uars;
	struct { /* of pairs made by commands, mapped for posters; slots of one size */
		uint8_t *memory, *taken;
		size_t slot_bytes, bytes;
		uint32_t depth;
		unsigned slots, next;
		int mapped;
	} reserve;
	struct cvy_region *sink; /* answers of adds */
	uint64_t *sink_word;
};

struct cvy_region {
	struct cvy_nic *nic;
	struct ibv_mr *mr;
	uint64_t address, bytes;
};

struct cvy_queue_pair {
	struct cvy_nic *nic;
	struct cvy_pair_args args;
	struct cvy_pair_name far;
	uint32_t psn;
	struct cvy_queue queue; /* as posters see it */
	uint8_t *ring, *cqes;	/* as this process sees them */
	uint32_t *record;
	uint64_t *reg;
	size_t ring_bytes, cqes_bytes;
	struct {
		void *host;
		size_t bytes;
	} mapped[4];
	unsigned nmapped;
	/* verbs */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	/* DEVX */
	struct mlx5dv_devx_obj *devx_cq, *devx_qp;
	struct mlx5dv_devx_umem *umem;
	struct cvy_uar *uar;
	uint8_t *memory; /* ring, completion, record */
	size_t memory_bytes;
	int reserved; /* it is a slot of the nic's */
};

/* mlx5_devx.c: each 0 or COVEY_ERR_*; open fills ring, cqes, record, reg and the queue's number */
int cvy_devx_probe(struct cvy_nic *nic);
void cvy_devx_unreserve(struct cvy_nic *nic);
int cvy_devx_open(struct cvy_queue_pair *pair);
int cvy_devx_connect(struct cvy_queue_pair *pair, const struct cvy_pair_name *far);
int cvy_devx_stop(struct cvy_queue_pair *pair);
void cvy_devx_close(struct cvy_queue_pair *pair);
void cvy_devx_free(struct cvy_queue_pair *pair); /* its memory, when no poster sees it */

#endif

#endif
