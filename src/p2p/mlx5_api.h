/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 by name, opened when a NIC is: covey runs where they are not installed. */
#ifndef CVY_MLX5_API_H
#define CVY_MLX5_API_H

#ifdef CVY_HAVE_MLX5 /* its headers are there */

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "error.h"

#define CVY_VERBS_CALLS(X) \
	X(ibv_get_device_list) \
	X(ibv_free_device_list) \
	X(ibv_get_device_name) \
	X(ibv_close_device) \
	X(ibv_alloc_pd) \
	X(ibv_dealloc_pd) \
	X(ibv_reg_mr) \
	X(ibv_reg_dmabuf_mr) \
	X(ibv_dereg_mr) \
	X(ibv_destroy_cq) \
	X(ibv_modify_qp) \
	X(ibv_destroy_qp) \
	X(ibv_query_gid) \
	X(ibv_query_port) \
	X(ibv_create_ah) \
	X(ibv_destroy_ah)

#define CVY_MLX5_CALLS(X) \
	X(mlx5dv_is_supported) \
	X(mlx5dv_open_device) \
	X(mlx5dv_init_obj) \
	X(mlx5dv_create_qp) \
	X(mlx5dv_devx_general_cmd) \
	X(mlx5dv_devx_query_eqn) \
	X(mlx5dv_devx_umem_reg) \
	X(mlx5dv_devx_umem_dereg) \
	X(mlx5dv_devx_alloc_uar) \
	X(mlx5dv_devx_free_uar) \
	X(mlx5dv_devx_obj_create) \
	X(mlx5dv_devx_obj_modify) \
	X(mlx5dv_devx_obj_destroy)

struct cvy_mlx5_api {
#define X(name) __typeof__(&(name)) name##_;
	CVY_VERBS_CALLS(X)
	CVY_MLX5_CALLS(X)
#undef X
};

/* The table, or NULL; then the cause says what is missing. It stays for the life of the process. */
const struct cvy_mlx5_api *cvy_mlx5_api(struct cvy_errbox *box);

#endif

#endif
